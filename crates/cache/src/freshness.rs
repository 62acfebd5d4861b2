//! Decides whether a response may be stored and how long it is fresh (RFC 9111 sections 3 and 4.2, RFC 5861).

use http::condition::parse_date_s;
use http::{Fields, Status};

use crate::cache_control::{RequestDirectives, ResponseDirectives, decimal};
use crate::not_stored::NotStored;
use crate::policy::{Policy, RulePolicy};

/// Seconds that stand for "never" in atomics and files.
pub(crate) const NEVER_S: u64 = u64::MAX;

/// Returns the seconds, unless they stand for "never".
pub(crate) fn stated_s(seconds: u64) -> Option<u64> {
    (seconds != NEVER_S).then_some(seconds)
}

/// Properties of a request that affect whether its response may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// Whether the request has `Authorization` or a client certificate.
    pub is_authorized: bool,
    /// Whether the request has `Cookie`.
    pub has_cookies: bool,
    /// The request's `Cache-Control` directives.
    pub directives: RequestDirectives,
}

/// Times of a request and its response, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseTimes {
    /// Time at which the request was sent.
    pub requested_s: u64,
    /// Time at which the response head was complete.
    pub received_s: u64,
}

/// Freshness and stale-use limits of a stored response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Time at which the response was received, in seconds since 1970.
    pub received_s: u64,
    /// Age at that time, in seconds.
    pub initial_age_s: u64,
    /// Freshness lifetime in seconds: the age up to which the response is fresh.
    pub lifetime_s: u64,
    /// Further time for which the response may be used while it is validated, in seconds.
    pub while_revalidate_s: u64,
    /// Further time for which the response may be used if the origin responds with an error, in seconds.
    pub if_error_s: u64,
    /// Further time for which the response may be used if the origin does not respond, in seconds.
    pub unreachable_s: u64,
    /// Further time for which the response is kept for validation, in seconds; `None`: as long as there is
    /// room.
    pub keep_s: Option<u64>,
    /// Whether the response must be validated before each use.
    pub no_cache: bool,
    /// Whether the lifetime is heuristic (from `Last-Modified`). Such a response is not used for requests
    /// with cookies, whose pages may differ.
    pub is_guessed: bool,
}

/// Decides whether a response to GET may be stored, and returns its freshness.
///
/// # Errors
/// The reason for not storing the response.
pub fn assess(
    request: &RequestFacts,
    status: Status,
    fields: &Fields,
    times: ResponseTimes,
    policy: &Policy,
) -> Result<Freshness, NotStored> {
    let rule = &policy.rule;
    let directives = if rule.ignores_cache_control {
        ResponseDirectives::default()
    } else {
        ResponseDirectives::of(fields)
    };
    may_store(request, status, fields, &directives, policy)?;
    let date_s = fields.first(b"date").and_then(parse_date_s);
    let age_s = fields.first(b"age").and_then(age).unwrap_or(0);
    let delay_s = times.received_s.saturating_sub(times.requested_s);
    let apparent_s = date_s.map_or(0, |date_s| times.received_s.saturating_sub(date_s));
    let initial_age_s = apparent_s.max(age_s + delay_s);
    let stated = lifetime(status, fields, &directives, date_s.unwrap_or(times.received_s), policy);
    let LifetimeSource { lifetime_s, is_explicit, is_by_rule } =
        ruled_lifetime(stated, &directives, initial_age_s, rule);
    // A response that the origin did not declare cacheable may be specific to the user with the cookie.
    let is_guessed = !is_explicit && !directives.public && lifetime_s > 0;
    if (is_by_rule || is_guessed) && request.has_cookies && !rule.with_cookies {
        return Err(NotStored::Cookie);
    }
    let forbids_stale = directives.forbids_stale();
    let unless_forbidden = |seconds: u64| if forbids_stale { 0 } else { seconds };
    let stale = (directives.stale_while_revalidate_s, directives.stale_if_error_s);
    let if_error_s = unless_forbidden(stale.1.or(rule.if_error_s).unwrap_or(0));
    let freshness = Freshness {
        received_s: times.received_s,
        initial_age_s,
        lifetime_s,
        while_revalidate_s: unless_forbidden(stale.0.or(rule.while_revalidate_s).unwrap_or(0)),
        if_error_s,
        unreachable_s: if_error_s.max(unless_forbidden(policy.unreachable_s)),
        keep_s: rule.keep_s,
        no_cache: directives.no_cache,
        is_guessed: is_guessed && !is_by_rule && !rule.with_cookies,
    };
    let has_validator = fields.first(b"etag").is_some() || fields.first(b"last-modified").is_some();
    let is_of_use_stale = is_explicit || stale.0.or(stale.1).is_some();
    let is_useful = freshness.is_fresh(times.received_s)
        || is_of_use_stale && freshness.while_revalidate_s + if_error_s > 0
        || has_validator && (is_explicit || directives.no_cache);
    if is_useful { Ok(freshness) } else { Err(NotStored::NoFreshness) }
}

/// A freshness lifetime and its origin.
struct LifetimeSource {
    lifetime_s: u64,
    /// Whether the origin or a rule states it; otherwise it is a guess.
    is_explicit: bool,
    /// Whether the response may be stored only because of a rule.
    is_by_rule: bool,
}

/// Applies the rules to the lifetime that a response states.
fn ruled_lifetime(
    stated: LifetimeSource,
    directives: &ResponseDirectives,
    initial_age_s: u64,
    rule: &RulePolicy,
) -> LifetimeSource {
    // Rules count from the arrival, regardless of the initial age.
    let ruled = match (rule.ttl_s, rule.default_ttl_s) {
        (Some(ttl_s), _) => ttl_s,
        (None, Some(ttl_s)) if !stated.is_explicit && !directives.no_cache => ttl_s,
        _ => return stated,
    };
    let is_offered = stated.is_explicit && stated.lifetime_s > 0 || directives.public;
    let lifetime_s = if ruled == 0 { 0 } else { initial_age_s + ruled };
    LifetimeSource { lifetime_s, is_explicit: true, is_by_rule: !is_offered }
}

fn may_store(
    request: &RequestFacts,
    status: Status,
    fields: &Fields,
    directives: &ResponseDirectives,
    policy: &Policy,
) -> Result<(), NotStored> {
    if request.directives.no_store {
        return Err(NotStored::RequestNoStore);
    }
    if policy.rule.refuses {
        return Err(NotStored::Rule);
    }
    if status.is_informational() || matches!(status.code(), 206 | 304) {
        return Err(NotStored::Status);
    }
    if directives.must_understand {
        if !is_understood(status) {
            return Err(NotStored::Status);
        }
    } else if directives.no_store {
        return Err(NotStored::NoStore);
    }
    if directives.private {
        return Err(NotStored::Private);
    }
    let is_shared = directives.public || directives.must_revalidate || directives.s_maxage_s.is_some();
    if request.is_authorized && !is_shared && !policy.rule.with_authorization {
        return Err(NotStored::Authorization);
    }
    let is_removed = directives.unstored.iter().any(|name| name == b"set-cookie");
    // Origins still send `Set-Cookie2` (RFC 2965), although clients no longer use it.
    let sets_cookie = fields.first(b"set-cookie").is_some() || fields.first(b"set-cookie2").is_some();
    if sets_cookie && !policy.stores_cookies && !is_removed {
        return Err(NotStored::SetCookie);
    }
    Ok(())
}

/// Returns the freshness lifetime in seconds, and whether the response states it (section 4.2.1).
fn lifetime(
    status: Status,
    fields: &Fields,
    directives: &ResponseDirectives,
    date_s: u64,
    policy: &Policy,
) -> LifetimeSource {
    let source = |lifetime_s, is_explicit| LifetimeSource { lifetime_s, is_explicit, is_by_rule: false };
    if let Some(lifetime_s) = directives.lifetime_s() {
        return source(lifetime_s, true);
    }
    if let Some(expires) =
        fields.first(b"expires").filter(|_| !directives.is_targeted && !policy.rule.ignores_expires)
    {
        let expires_s = parse_date_s(expires).or_else(|| parse_date_s(&usual_case(expires))).unwrap_or(0);
        return source(expires_s.saturating_sub(date_s), true);
    }
    if !(is_heuristic(status) || directives.public) {
        return source(0, false);
    }
    let modified_s = fields.first(b"last-modified").and_then(parse_date_s);
    let guess_s = modified_s.map_or(0, |modified_s| date_s.saturating_sub(modified_s) / 10);
    source(guess_s.min(policy.heuristic_s_max), false)
}

/// Result of [`decided_by`] if the response itself was not decisive.
pub const DECIDED_BY_CONFIGURATION: &str = "the configuration of the route";

/// Describes the source of a stored response's freshness lifetime, for people.
#[must_use]
pub fn decided_by(status: Status, fields: &Fields, freshness: &Freshness) -> String {
    let directives = ResponseDirectives::of(fields);
    let date_s = fields.first(b"date").and_then(parse_date_s).unwrap_or(freshness.received_s);
    let stated_s = lifetime(status, fields, &directives, date_s, &Policy::default()).lifetime_s;
    let field = if directives.is_targeted { "CDN-Cache-Control" } else { "Cache-Control" };
    match (directives.no_cache, directives.s_maxage_s, directives.max_age_s) {
        _ if (directives.no_cache, stated_s) != (freshness.no_cache, freshness.lifetime_s) => {
            DECIDED_BY_CONFIGURATION.to_owned()
        }
        (true, ..) => format!("{field}: no-cache"),
        (_, Some(seconds), _) => format!("{field}: s-maxage={seconds}"),
        (.., Some(seconds)) => format!("{field}: max-age={seconds}"),
        _ if fields.first(b"expires").is_some() && !directives.is_targeted => "Expires".to_owned(),
        _ if fields.first(b"last-modified").is_some() => "a tenth of the time since Last-Modified".to_owned(),
        _ => "nothing: it is validated each time".to_owned(),
    }
}

/// Returns a date with its names in the usual case, because their case is not significant (section 4.2).
fn usual_case(date: &[u8]) -> Vec<u8> {
    let mut in_word = false;
    let mut usual: Vec<u8> = Vec::with_capacity(date.len());
    for byte in date {
        usual.push(if in_word { byte.to_ascii_lowercase() } else { byte.to_ascii_uppercase() });
        in_word = byte.is_ascii_alphabetic();
    }
    if usual.ends_with(b"Gmt") {
        let at = usual.len() - 3;
        usual[at..].make_ascii_uppercase();
    }
    usual
}

/// Parses `Age`: the first of several values; `None` if it is not a number.
fn age(value: &[u8]) -> Option<u64> {
    decimal(http::scan::list(value).next()?)
}

/// Whether a status is heuristically cacheable (RFC 9110 section 15.1).
fn is_heuristic(status: Status) -> bool {
    matches!(status.code(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether this cache knows the caching rules of a status.
fn is_understood(status: Status) -> bool {
    is_heuristic(status) || matches!(status.code(), 302 | 303 | 307 | 400 | 403 | 451 | 500 | 502 | 503 | 504)
}

impl Freshness {
    /// Returns the age in seconds at `now_s`, in seconds since 1970 (RFC 9111 section 4.2.3): the value of
    /// `Age`. If the clock has been set back since the response was received, the difference counts as age,
    /// so that a response from a year ahead is not fresh for a year.
    #[must_use]
    pub fn age_s(&self, now_s: u64) -> u64 {
        self.initial_age_s + now_s.abs_diff(self.received_s)
    }

    /// Whether the response may be used without validation.
    #[must_use]
    pub fn is_fresh(&self, now_s: u64) -> bool {
        !self.no_cache && self.age_s(now_s) < self.lifetime_s
    }

    /// Whether the response is still kept for use or validation.
    #[must_use]
    pub fn is_kept(&self, now_s: u64) -> bool {
        let stale_s = self.while_revalidate_s.max(self.if_error_s).max(self.unreachable_s);
        self.keep_s.is_none_or(|keep_s| self.age_s(now_s) < self.lifetime_s + stale_s.max(keep_s))
    }

    /// Whether the response may be used while it is being validated.
    #[must_use]
    pub fn serves_while_revalidating(&self, now_s: u64) -> bool {
        !self.no_cache && self.age_s(now_s) < self.lifetime_s + self.while_revalidate_s
    }

    /// Whether the response may be used after an error of the origin (`answered`) or without a response.
    #[must_use]
    pub fn serves_on_error(&self, now_s: u64, answered: bool) -> bool {
        let grace_s = if answered { self.if_error_s } else { self.unreachable_s };
        !self.no_cache && self.age_s(now_s) < self.lifetime_s + grace_s
    }

    /// Returns the remaining freshness in seconds; negative if stale.
    #[must_use]
    pub fn ttl_s(&self, now_s: u64) -> i64 {
        self.lifetime_s as i64 - self.age_s(now_s) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::condition::date_text;

    const NOW_S: u64 = 1_700_000_000;

    fn assess_as(
        request: &RequestFacts,
        status: u16,
        lines: &[(&str, &str)],
    ) -> Result<Freshness, NotStored> {
        let mut fields = Fields::new();
        for (name, value) in lines {
            let value = match value.strip_prefix('@') {
                Some(delta) => date_text(NOW_S.checked_add_signed(delta.parse().unwrap()).unwrap()),
                None => (*value).to_owned(),
            };
            fields.try_push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let times = ResponseTimes { requested_s: NOW_S - 2, received_s: NOW_S };
        assess(request, Status::of(status).unwrap(), &fields, times, &Policy::default())
    }

    fn lifetime_of(status: u16, lines: &[(&str, &str)]) -> Option<u64> {
        assess_as(&RequestFacts::default(), status, lines).ok().map(|freshness| freshness.lifetime_s)
    }

    #[test]
    fn freshness_lifetime_depends_on_status_and_header_fields() {
        for (status, lines, lifetime_s) in [
            (200, &[("Cache-Control", "max-age=60")][..], Some(60)),
            (200, &[("Cache-Control", "max-age=60, s-maxage=5")], Some(5)),
            (200, &[("Expires", "@30"), ("Date", "@0")], Some(30)),
            (200, &[("Expires", "@30"), ("Date", "@10")], Some(20)),
            (200, &[("Expires", "0"), ("Date", "@0")], None),
            (200, &[("Expires", "tue, 14 nov 2023 22:14:20 gmt"), ("Date", "@0")], Some(60)),
            (200, &[("Expires", "TUE, 14 NOV 2023 22:14:20 GMT"), ("Date", "@0")], Some(60)),
            (200, &[("Expires", "Tue, 14 Nov 2023 22:14:20 GMT+1"), ("Date", "@0")], None),
            (200, &[("Expires", "@100"), ("Cache-Control", "max-age=0")], None),
            (200, &[("Expires", "@100"), ("Cache-Control", "max-age=0"), ("ETag", "\"a\"")], Some(0)),
            (200, &[("ETag", "\"a\"")], None),
            (200, &[("ETag", "\"a\""), ("Cache-Control", "no-cache")], Some(0)),
            (200, &[("Last-Modified", "@-1000"), ("Date", "@0")], Some(100)),
            (200, &[("Last-Modified", "@-100000000"), ("Date", "@0")], Some(86_400)),
            (403, &[("Last-Modified", "@-1000")], None),
            (599, &[("Last-Modified", "@-1000")], None),
            (599, &[("Last-Modified", "@-1000"), ("Cache-Control", "public")], Some(100)),
            (599, &[("Cache-Control", "max-age=60")], Some(60)),
            (206, &[("Cache-Control", "max-age=60")], None),
            (304, &[("Cache-Control", "max-age=60")], None),
            (200, &[("Cache-Control", "max-age=60, no-store, must-understand")], Some(60)),
            (599, &[("Cache-Control", "max-age=60, no-store, must-understand")], None),
            (200, &[("CDN-Cache-Control", "max-age=60"), ("Expires", "@-10")], Some(60)),
            (200, &[("CDN-Cache-Control", "no-store"), ("Cache-Control", "max-age=60")], None),
            (200, &[], None),
        ] {
            assert_eq!(lifetime_of(status, lines), lifetime_s, "{status} {lines:?}");
        }
    }

    #[test]
    fn deciding_directive_is_named_for_administrators() {
        for (lifetime_s, lines, wanted) in [
            (5, &[("Cache-Control", "max-age=60, s-maxage=5")][..], "Cache-Control: s-maxage=5"),
            (60, &[("Cache-Control", "max-age=60"), ("Expires", "0")], "Cache-Control: max-age=60"),
            (600, &[("Cache-Control", "max-age=60")], "the configuration of the route"),
            (60, &[("CDN-Cache-Control", "max-age=60"), ("Expires", "0")], "CDN-Cache-Control: max-age=60"),
            (0, &[("Expires", "0")], "Expires"),
            (0, &[("Last-Modified", "0")], "a tenth of the time since Last-Modified"),
            (0, &[], "nothing: it is validated each time"),
        ] {
            let mut fields = Fields::new();
            lines
                .iter()
                .for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
            let freshness = Freshness { lifetime_s, ..Freshness::default() };
            assert_eq!(decided_by(Status::OK, &fields, &freshness), wanted);
        }
    }

    #[test]
    fn private_responses_are_not_stored() {
        let plain = RequestFacts::default();
        let authorized = RequestFacts { is_authorized: true, ..plain };
        let mut unstored = plain;
        unstored.directives.no_store = true;
        for (request, value, more, outcome) in [
            (&plain, "max-age=60, private", None, Some(NotStored::Private)),
            (&plain, "max-age=60, private=\"x\"", None, None),
            (&plain, "max-age=60, no-store", None, Some(NotStored::NoStore)),
            (&plain, "max-age=60", Some("a=b"), Some(NotStored::SetCookie)),
            (&plain, "max-age=60, no-cache=\"set-cookie\"", Some("a=b"), None),
            (&authorized, "max-age=60", None, Some(NotStored::Authorization)),
            (&authorized, "max-age=60, public", None, None),
            (&authorized, "max-age=60, must-revalidate", None, None),
            (&authorized, "s-maxage=60", None, None),
            (&unstored, "max-age=60", None, Some(NotStored::RequestNoStore)),
        ] {
            let mut lines = vec![("Cache-Control", value)];
            lines.extend(more.map(|cookie| ("Set-Cookie", cookie)));
            assert_eq!(assess_as(request, 200, &lines).err(), outcome, "{value} {more:?}");
        }
    }

    #[test]
    fn age_is_computed_from_date_and_age_fields() {
        for (lines, age_s) in [
            (&[][..], 2),
            (&[("Date", "@-10")], 10),
            (&[("Date", "@10")], 2),
            (&[("Age", "30")], 32),
            (&[("Age", "30, 0")], 32),
            (&[("Age", "30"), ("Age", "0")], 32),
            (&[("Age", "abc")], 2),
            (&[("Age", "-7")], 2),
            (&[("Age", "7.0")], 2),
            (&[("Date", "@-10"), ("Age", "5")], 10),
        ] {
            let mut lines = lines.to_vec();
            lines.push(("Cache-Control", "max-age=100"));
            let freshness = assess_as(&RequestFacts::default(), 200, &lines).unwrap();
            assert_eq!(freshness.age_s(NOW_S), age_s, "{lines:?}");
            assert_eq!(freshness.age_s(NOW_S + 5), age_s + 5);
            // A clock that was set back.
            assert!(freshness.is_fresh(NOW_S - 5) && !freshness.is_fresh(NOW_S - 1_000), "{lines:?}");
            assert_eq!(freshness.ttl_s(NOW_S + 5), 95 - age_s as i64);
        }
        let old = &[("Cache-Control", "max-age=100"), ("Age", "2147483649"), ("ETag", "\"a\"")];
        assert!(!assess_as(&RequestFacts::default(), 200, old).unwrap().is_fresh(NOW_S));
    }

    #[test]
    fn stale_use_is_limited_and_can_be_forbidden() {
        let of = |value: &str| {
            let lines = [("Cache-Control", value), ("ETag", "\"a\"")];
            assess_as(&RequestFacts::default(), 200, &lines).unwrap()
        };
        let graced = of("max-age=10, stale-while-revalidate=20, stale-if-error=4000");
        assert!(graced.is_fresh(NOW_S + 7) && !graced.is_fresh(NOW_S + 8), "its age begins with 2");
        assert!(
            graced.serves_while_revalidating(NOW_S + 27) && !graced.serves_while_revalidating(NOW_S + 28)
        );
        assert!(graced.serves_on_error(NOW_S + 4007, true) && !graced.serves_on_error(NOW_S + 4008, true));
        let plain = of("max-age=10");
        assert!(!plain.serves_on_error(NOW_S + 10, true) && plain.serves_on_error(NOW_S + 10, false));
        assert!(!plain.serves_on_error(NOW_S + 3700, false));
        for strict in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=10"] {
            let strict = of(&format!("max-age=10, stale-if-error=60, stale-while-revalidate=60, {strict}"));
            assert!(
                !strict.serves_on_error(NOW_S + 10, false) && !strict.serves_while_revalidating(NOW_S + 10)
            );
        }
    }

    #[test]
    fn cache_rules_override_response_directives_where_allowed() {
        let by = |rule: RulePolicy, has_cookies: bool, status: u16, lines: &[(&str, &str)]| {
            let mut fields = Fields::new();
            lines
                .iter()
                .for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
            let request =
                RequestFacts { has_cookies, is_authorized: status == 201, ..RequestFacts::default() };
            let times = ResponseTimes { requested_s: NOW_S, received_s: NOW_S };
            let policy = Policy { rule, ..Policy::default() };
            assess(&request, Status::of(status).unwrap(), &fields, times, &policy)
                .map(|fresh| fresh.ttl_s(NOW_S))
        };
        let none = RulePolicy::default();
        let ttl = RulePolicy { ttl_s: Some(60), ..none };
        let usual = RulePolicy { default_ttl_s: Some(60), ..none };
        let deaf = RulePolicy { ignores_cache_control: true, ..ttl };
        for (rule, has_cookies, status, lines, outcome) in [
            (ttl, false, 200, &[][..], Ok(60)),
            (ttl, false, 404, &[], Ok(60)),
            (ttl, false, 503, &[("Cache-Control", "max-age=5"), ("Age", "1000")], Ok(60)),
            (ttl, false, 200, &[("Cache-Control", "s-maxage=0")], Ok(60)),
            (ttl, false, 200, &[("Cache-Control", "private")], Err(NotStored::Private)),
            (ttl, false, 200, &[("Cache-Control", "no-store")], Err(NotStored::NoStore)),
            (ttl, false, 200, &[("Set-Cookie", "a=b")], Err(NotStored::SetCookie)),
            (ttl, false, 200, &[("Set-Cookie2", "a=b")], Err(NotStored::SetCookie)),
            (ttl, false, 201, &[], Err(NotStored::Authorization)),
            (ttl, false, 206, &[], Err(NotStored::Status)),
            (RulePolicy { with_authorization: true, ..ttl }, false, 201, &[], Ok(60)),
            (ttl, true, 200, &[], Err(NotStored::Cookie)),
            (ttl, true, 200, &[("Cache-Control", "max-age=0")], Err(NotStored::Cookie)),
            (ttl, true, 200, &[("Cache-Control", "max-age=5")], Ok(60)),
            (ttl, true, 200, &[("Cache-Control", "public")], Ok(60)),
            (RulePolicy { with_cookies: true, ..ttl }, true, 200, &[], Ok(60)),
            (usual, false, 200, &[], Ok(60)),
            (usual, false, 200, &[("Cache-Control", "max-age=5")], Ok(5)),
            (usual, false, 200, &[("Cache-Control", "max-age=0")], Err(NotStored::NoFreshness)),
            (usual, false, 200, &[("Cache-Control", "no-cache")], Err(NotStored::NoFreshness)),
            (usual, true, 200, &[], Err(NotStored::Cookie)),
            (deaf, false, 200, &[("Cache-Control", "private, no-store, no-cache")], Ok(60)),
            (deaf, true, 200, &[("Cache-Control", "public, max-age=5")], Err(NotStored::Cookie)),
            (
                deaf,
                false,
                200,
                &[("Cache-Control", "private"), ("Set-Cookie", "a=b")],
                Err(NotStored::SetCookie),
            ),
            (
                RulePolicy { refuses: true, ..ttl },
                false,
                200,
                &[("Cache-Control", "max-age=5")],
                Err(NotStored::Rule),
            ),
            (
                RulePolicy { ttl_s: Some(0), ..none },
                false,
                200,
                &[("Cache-Control", "max-age=5")],
                Err(NotStored::NoFreshness),
            ),
            (RulePolicy { ignores_expires: true, ..usual }, false, 200, &[("Expires", "0")], Ok(60)),
            (
                RulePolicy { while_revalidate_s: Some(9), ..none },
                false,
                200,
                &[],
                Err(NotStored::NoFreshness),
            ),
        ] {
            assert_eq!(by(rule, has_cookies, status, lines), outcome, "{rule:?} {status} {lines:?}");
        }
    }

    #[test]
    fn heuristic_freshness_is_not_used_with_cookies() {
        let outcome = |has_cookies: bool, with_cookies: bool, lines: &[(&str, &str)]| {
            let mut fields = Fields::new();
            for (name, value) in lines {
                fields.try_push(name.as_bytes(), value.as_bytes()).unwrap();
            }
            let request = RequestFacts { has_cookies, ..RequestFacts::default() };
            let times = ResponseTimes { requested_s: NOW_S, received_s: NOW_S };
            let rule = RulePolicy { with_cookies, ..RulePolicy::default() };
            let policy = Policy { rule, ..Policy::default() };
            assess(&request, Status::OK, &fields, times, &policy).map(|freshness| freshness.is_fresh(NOW_S))
        };
        let modified = ("Last-Modified", "Tue, 15 Nov 1994 12:45:26 GMT");
        assert_eq!(outcome(false, false, &[modified]), Ok(true));
        assert_eq!(outcome(true, false, &[modified]), Err(NotStored::Cookie));
        assert_eq!(outcome(true, true, &[modified]), Ok(true));
        assert_eq!(outcome(true, false, &[modified, ("Cache-Control", "public")]), Ok(true));
        assert_eq!(outcome(true, false, &[modified, ("Cache-Control", "max-age=9")]), Ok(true));
        let request = RequestFacts::default();
        let times = ResponseTimes { requested_s: NOW_S, received_s: NOW_S };
        for (line, is_guessed) in [(modified, true), (("Cache-Control", "max-age=9"), false)] {
            let mut fields = Fields::new();
            fields.try_push(line.0.as_bytes(), line.1.as_bytes()).unwrap();
            let freshness = assess(&request, Status::OK, &fields, times, &Policy::default()).unwrap();
            assert_eq!(freshness.is_guessed, is_guessed, "{line:?}");
        }
    }

    #[test]
    fn cache_rules_set_stale_and_retention_times() {
        let rule = RulePolicy {
            while_revalidate_s: Some(20),
            if_error_s: Some(30),
            keep_s: Some(5000),
            ..RulePolicy::default()
        };
        let of = |value: &str| {
            let mut fields = Fields::new();
            fields.try_push(b"Cache-Control", value.as_bytes()).unwrap();
            fields.try_push(b"ETag", b"\"a\"").unwrap();
            let times = ResponseTimes { requested_s: NOW_S, received_s: NOW_S };
            let policy = Policy { rule, ..Policy::default() };
            assess(&RequestFacts::default(), Status::OK, &fields, times, &policy).unwrap()
        };
        let plain = of("max-age=10");
        assert!(plain.serves_while_revalidating(NOW_S + 29) && !plain.serves_while_revalidating(NOW_S + 30));
        assert!(plain.serves_on_error(NOW_S + 39, true) && !plain.serves_on_error(NOW_S + 40, true));
        assert!(plain.is_kept(NOW_S + 5009) && !plain.is_kept(NOW_S + 5010));
        let stated = of("max-age=10, stale-while-revalidate=1, stale-if-error=2");
        assert!(!stated.serves_while_revalidating(NOW_S + 11) && !stated.serves_on_error(NOW_S + 12, true));
        let strict = of("max-age=10, must-revalidate");
        assert!(!strict.serves_while_revalidating(NOW_S + 10) && !strict.serves_on_error(NOW_S + 10, true));
        assert!(strict.is_kept(NOW_S + 5009) && !strict.is_kept(NOW_S + 5010));
    }
}
