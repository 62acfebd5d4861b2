//! `Cache-Control` of responses and requests (RFC 9111 section 5.2) and `CDN-Cache-Control` (RFC 9213).

use http::{Fields, scan};

use crate::structured_fields;

/// Maximum delta-seconds (RFC 9111 section 1.2.2).
pub(crate) const SECONDS_MAX: u64 = 1 << 31;
/// Maximum field names in `no-cache` and `private` of one response; with more, the directive applies to the
/// whole response.
const NAMED_MAX: usize = 32;

/// Whether a quoted string, given without its first quote, ends with its closing quote.
fn is_closed(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => _ = bytes.next(),
            b'"' => return bytes.next().is_none(),
            _ => {}
        }
    }
    false
}

/// Cache directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// Must not be stored.
    pub no_store: bool,
    /// Must be validated before each use.
    pub no_cache: bool,
    /// For a single user only.
    pub private: bool,
    /// May be stored by any cache.
    pub public: bool,
    /// Must not be used stale.
    pub must_revalidate: bool,
    /// Must not be used stale by shared caches.
    pub proxy_revalidate: bool,
    /// May only be stored by caches that understand the status; these ignore `no-store`.
    pub must_understand: bool,
    /// Freshness lifetime in seconds; 0 if the value is invalid.
    pub max_age_s: Option<u64>,
    /// Freshness lifetime for shared caches in seconds; 0 if the value is invalid.
    pub s_maxage_s: Option<u64>,
    /// Time for which the response may be used stale while it is validated (RFC 5861), in seconds.
    pub stale_while_revalidate_s: Option<u64>,
    /// Time for which the response may be used stale after an error, in seconds.
    pub stale_if_error_s: Option<u64>,
    /// Fields that must not be stored, in lower case: those that `no-cache` and `private` name.
    pub unstored: Vec<Vec<u8>>,
    /// Whether the directives come from `CDN-Cache-Control`, so that `Cache-Control` and `Expires` are
    /// ignored.
    pub is_targeted: bool,
}

/// Cache directives of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// Neither the request nor its response may be stored.
    pub no_store: bool,
    /// The request must be answered from the cache or with an error.
    pub only_if_cached: bool,
}

impl ResponseDirectives {
    /// Returns the directives of a response: from a valid `CDN-Cache-Control`, otherwise from
    /// `Cache-Control`.
    #[must_use]
    pub fn of(fields: &Fields) -> ResponseDirectives {
        if let Some(members) = structured_fields::members(&joined(fields, b"cdn-cache-control")) {
            let mut directives = ResponseDirectives { is_targeted: true, ..ResponseDirectives::default() };
            for (name, value) in &members {
                directives.add(name, value.as_deref());
            }
            return directives;
        }
        let mut directives = ResponseDirectives::default();
        for (name, value) in fields.iter() {
            if name.eq_ignore_ascii_case(b"cache-control") {
                for directive in scan::list(value) {
                    let (name, value) = split(directive);
                    directives.add(&name.to_ascii_lowercase(), value);
                    // Such as `max-age=0; private` and `x="a, private`.
                    let is_malformed = |value: &[u8]| match value {
                        [b'"', rest @ ..] => !is_closed(rest),
                        _ => value.contains(&b';'),
                    };
                    if value.is_some_and(is_malformed) {
                        directives.add_malformed(&directive.to_ascii_lowercase());
                    }
                }
            }
        }
        directives
    }

    /// Returns the freshness lifetime for a shared cache, in seconds.
    #[must_use]
    pub fn lifetime_s(&self) -> Option<u64> {
        self.s_maxage_s.or(self.max_age_s)
    }

    /// Whether the response must never be used stale (RFC 9111 section 4.2.4).
    #[must_use]
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage_s.is_some()
    }

    fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        // The first of several values counts (section 4.2.1).
        let seconds = |before: Option<u64>| before.or(Some(value.and_then(seconds).unwrap_or(0)));
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache |= !self.add_unstored(value),
            b"private" => self.private |= !self.add_unstored(value),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"max-age" => self.max_age_s = seconds(self.max_age_s),
            b"s-maxage" => self.s_maxage_s = seconds(self.s_maxage_s),
            b"stale-while-revalidate" => {
                self.stale_while_revalidate_s = seconds(self.stale_while_revalidate_s);
            }
            b"stale-if-error" => self.stale_if_error_s = seconds(self.stale_if_error_s),
            _ => self.add_malformed(name),
        }
    }

    /// Applies the prohibitions in a malformed directive such as `no-store; max-age=0` or `"private"`. The
    /// origin has used a wrong separator, but the response may still be meant for one client.
    fn add_malformed(&mut self, name: &[u8]) {
        for word in name.split(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'-')) {
            match word {
                b"no-store" => self.no_store = true,
                b"no-cache" => self.no_cache = true,
                b"private" => self.private = true,
                b"must-revalidate" => self.must_revalidate = true,
                _ => {}
            }
        }
    }

    /// Adds the fields of `no-cache="…"`; false if there are none, so that the directive applies to the whole
    /// response.
    fn add_unstored(&mut self, value: Option<&[u8]>) -> bool {
        let Some(value) = value.map(unquoted).filter(|value| !value.is_empty()) else { return false };
        let names: Vec<Vec<u8>> = scan::list(value).map(<[u8]>::to_ascii_lowercase).collect();
        let fits = self.unstored.len() + names.len() <= NAMED_MAX;
        if names.is_empty() || !fits || !names.iter().all(|name| scan::is_token(name)) {
            return false;
        }
        self.unstored.extend(names);
        true
    }
}

impl RequestDirectives {
    /// Adds the directives of one `Cache-Control` value.
    pub fn add(&mut self, value: &[u8]) {
        for directive in scan::list(value) {
            self.no_store |= directive.eq_ignore_ascii_case(b"no-store");
            self.only_if_cached |= directive.eq_ignore_ascii_case(b"only-if-cached");
        }
    }
}

/// Splits a directive into its name and value. Whitespace around `=` is not removed, so that the directive is
/// unknown.
fn split(directive: &[u8]) -> (&[u8], Option<&[u8]>) {
    match directive.iter().position(|&byte| byte == b'=') {
        Some(at) => (&directive[..at], Some(&directive[at + 1..])),
        None => (directive, None),
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    }
}

/// Parses a number of seconds, quoted or not.
fn seconds(value: &[u8]) -> Option<u64> {
    decimal(unquoted(value))
}

/// Parses decimal digits; a larger number becomes [`SECONDS_MAX`].
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number =
        digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(number.min(SECONDS_MAX))
}

/// Returns all values of a field, joined by commas; empty if there are none. `name` is in lower case.
pub(crate) fn joined(fields: &Fields, name: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for (other, value) in fields.iter() {
        if other.eq_ignore_ascii_case(name) {
            if !all.is_empty() {
                all.extend_from_slice(b", ");
            }
            all.extend_from_slice(value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[(&str, &str)]) -> ResponseDirectives {
        let mut fields = Fields::new();
        for (name, value) in lines {
            fields.try_push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        ResponseDirectives::of(&fields)
    }

    fn cc(value: &str) -> ResponseDirectives {
        of(&[("Cache-Control", value)])
    }

    #[test]
    fn lifetimes_are_read_strictly_and_the_first_counts() {
        for (value, lifetime_s) in [
            ("max-age=60", Some(60)),
            ("MAX-AGE=60", Some(60)),
            ("max-age=\"60\"", Some(60)),
            ("max-age=0060", Some(60)),
            ("max-age=60, max-age=5", Some(60)),
            ("max-age=60, s-maxage=5", Some(5)),
            ("max-age=99999999999999999999999", Some(SECONDS_MAX)),
            ("max-age='60'", Some(0)),
            ("max-age=60.5", Some(0)),
            ("max-age=-60", Some(0)),
            ("max-age=a60", Some(0)),
            ("max-age", Some(0)),
            ("max-age =60", None),
            ("max-age= 60", Some(0)),
            ("extension=\"max-age=60\"", None),
            ("extension=\"a, max-age=60\", max-age=1", Some(1)),
            ("", None),
        ] {
            assert_eq!(cc(value).lifetime_s(), lifetime_s, "{value}");
        }
    }

    #[test]
    fn directives_ignore_case_and_may_name_fields() {
        let all =
            cc("No-StOrE, private, PUBLIC, must-revalidate, proxy-revalidate, must-understand, no-cache");
        assert!(all.no_store && all.private && all.public && all.no_cache && all.must_understand);
        assert!(all.must_revalidate && all.proxy_revalidate && all.forbids_stale());
        let named = cc("no-cache=\"Set-Cookie, X-A\", private=\"x-b\", max-age=5");
        assert!(!named.no_cache && !named.private);
        assert_eq!(named.unstored, [b"set-cookie".to_vec(), b"x-a".to_vec(), b"x-b".to_vec()]);
        let many = format!("no-cache=\"{}\"", vec!["a"; 33].join(","));
        assert!(cc(&many).no_cache && cc("no-cache=\"a b\"").no_cache && cc("private=\"\"").private);
    }

    #[test]
    fn restrictive_directives_apply_despite_malformed_syntax() {
        for value in [
            "max-age=60, x=\"private, no-store",
            "max-age=60, x=\"\\\", private",
            "max-age=60, x=\"a\"private",
            "private; max-age=60",
            "\"private\"",
            "private ; max-age=1",
            "max-age=60; private",
            "PRIVATE;",
        ] {
            assert!(cc(value).private, "{value}");
        }
        for value in ["no-store; max-age=0", "no-store;", "no-store;must-revalidate", "max-age=9;no-store"] {
            assert!(cc(value).no_store, "{value}");
        }
        assert!(cc("no-cache; private").no_cache && cc("max-age=1; must-revalidate").must_revalidate);
        let others = cc("max-age=60, x-private, not-no-store=1, ext=\"private; no-store\"");
        assert!(!others.private && !others.no_store);
    }

    #[test]
    fn valid_cdn_cache_control_replaces_cache_control() {
        let both = of(&[("Cache-Control", "no-store"), ("CDN-Cache-Control", "max-age=60")]);
        assert!(both.is_targeted && !both.no_store);
        assert_eq!(both.lifetime_s(), Some(60));
        for invalid in ["max-age=60, &&", "max-age=\"60\"", "Max-Age=60", "max-age =60", "max-age= 60", ""] {
            let both = of(&[("Cache-Control", "no-store"), ("CDN-Cache-Control", invalid)]);
            assert!(!both.is_targeted && both.no_store, "{invalid}");
        }
    }

    #[test]
    fn request_directives_are_parsed() {
        let mut request = RequestDirectives::default();
        request.add(b"max-age=0, Only-If-Cached");
        assert!(request.only_if_cached && !request.no_store);
        request.add(b"no-store");
        assert!(request.no_store);
    }
}
