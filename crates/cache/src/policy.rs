//! What a route decides for its cache, and what its rules say of one response.

/// What a route decides for its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Responses with `Set-Cookie` may be stored. Default false.
    pub stores_cookies: bool,
    /// The longest freshness that is guessed from `Last-Modified`, in seconds. Default a day.
    pub heuristic_s_max: u64,
    /// How long a response may be used stale where the origin cannot be reached, in seconds, unless it forbids that. Default
    /// an hour.
    pub unreachable_s: u64,
    /// What rules say of a response beyond that.
    pub rule: RulePolicy,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            stores_cookies: false,
            heuristic_s_max: 86_400,
            unreachable_s: 3600,
            rule: RulePolicy::default(),
        }
    }
}

/// What rules of a route say of a response. By default nothing: the response decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulePolicy {
    /// It is not stored.
    pub refuses: bool,
    /// How long it is fresh from its arrival on, whatever it says of that, in seconds.
    pub ttl_s: Option<u64>,
    /// The same where it says nothing.
    pub default_ttl_s: Option<u64>,
    /// How long it may be used while it is validated, where it does not say, in seconds.
    pub while_revalidate_s: Option<u64>,
    /// How long it may be used where the origin answers an error, where it does not say, in seconds.
    pub if_error_s: Option<u64>,
    /// How long it is kept once it is stale, in seconds.
    pub keep_s: Option<u64>,
    /// `Cache-Control` and `CDN-Cache-Control` do not count.
    pub ignores_cache_control: bool,
    /// `Expires` does not count.
    pub ignores_expires: bool,
    /// `Vary` does not count, but for `Accept-Encoding`.
    pub ignores_vary: bool,
    /// A lifetime that only a rule gives counts for responses to requests with cookies too.
    pub with_cookies: bool,
    /// Responses to requests with `Authorization` may be stored although they do not say so.
    pub with_authorization: bool,
}
