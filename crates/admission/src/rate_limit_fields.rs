//! Rate limit fields of responses: `RateLimit-Policy` and `RateLimit`
//! (draft-ietf-httpapi-ratelimit-headers-11, structured fields as in RFC 9651).

use std::fmt::Write;

use crate::quota::Quota;

/// Remaining quota of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// Number of requests that would pass immediately.
    pub remaining: u64,
    /// Time until one more request passes, in nanoseconds.
    pub next_ns: u64,
}

/// Returns a member of `RateLimit-Policy`: number of requests (`q`) and window in seconds (`w`). `name` must
/// be printable ASCII.
#[must_use]
pub fn policy_item(name: &str, quota: &Quota) -> String {
    let mut item = quoted(name);
    // Writing to a string does not fail.
    let _ = write!(item, ";q={};w={}", quota.size(), seconds(quota.window_ns()));
    item
}

/// Returns a member of `RateLimit`: remaining requests (`r`) and seconds until there are more (`t`).
#[must_use]
pub fn state_item(name: &str, state: LimitState) -> String {
    let mut item = quoted(name);
    let _ = write!(item, ";r={};t={}", state.remaining, seconds(state.next_ns));
    item
}

/// Converts to whole seconds, rounded up.
fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

/// Encodes a string of structured fields.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 24);
    out.push('"');
    for one in text.chars() {
        if matches!(one, '"' | '\\') {
            out.push('\\');
        }
        out.push(one);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_limit_fields_follow_the_draft() {
        let quota = Quota::new(100, Duration::from_secs(60), 99);
        assert_eq!(policy_item("client", &quota), "\"client\";q=100;w=60");
        assert_eq!(
            policy_item("a\"\\b", &Quota::new(10, Duration::from_secs(1), 5)),
            "\"a\\\"\\\\b\";q=6;w=1"
        );
        let state = LimitState { remaining: 3, next_ns: 1_000_000_001 };
        assert_eq!(state_item("client", state), "\"client\";r=3;t=2");
    }
}
