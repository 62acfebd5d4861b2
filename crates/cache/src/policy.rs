//! Policy for one response: what the directive `cache` of its route ([`crate::route_policy`]) and the rules that
//! match it come to.

/// Policy for one response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether responses with `Set-Cookie` may be stored. Default false.
    pub stores_cookies: bool,
    /// Maximum heuristic lifetime, from `Last-Modified`, in seconds. Default one day.
    pub heuristic_s_max: u64,
    /// Time for which a response may be used stale if the origin cannot be reached, in seconds, unless the
    /// response forbids it. Default one hour.
    pub unreachable_s: u64,
    /// Effect of rules on the response.
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

/// Effect of a route's rules on a response. The default has none: the response decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulePolicy {
    /// Whether storing is forbidden.
    pub refuses: bool,
    /// Lifetime from the arrival in seconds, overriding the response's.
    pub ttl_s: Option<u64>,
    /// Lifetime from the arrival in seconds, if the response states none.
    pub default_ttl_s: Option<u64>,
    /// Time of use while the response is validated, if the response states none, in seconds.
    pub while_revalidate_s: Option<u64>,
    /// Time of use after errors of the origin, if the response states none, in seconds.
    pub if_error_s: Option<u64>,
    /// Time for which a stale response is kept, in seconds.
    pub keep_s: Option<u64>,
    /// Whether `Cache-Control` and `CDN-Cache-Control` are ignored.
    pub ignores_cache_control: bool,
    /// Whether `Expires` is ignored.
    pub ignores_expires: bool,
    /// Whether `Vary` is ignored, except for `Accept-Encoding`.
    pub ignores_vary: bool,
    /// Whether a lifetime from a rule also applies to responses to requests with cookies.
    pub with_cookies: bool,
    /// Whether responses to requests with `Authorization` may be stored without explicit permission.
    pub with_authorization: bool,
}
