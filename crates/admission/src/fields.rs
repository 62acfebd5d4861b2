//! What a response states about limits: `RateLimit-Policy` and `RateLimit`
//! (draft-ietf-httpapi-ratelimit-headers-11, structured fields as in RFC 9651).

use std::fmt::Write;

use crate::quota::Quota;

/// How much of a limit a client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// Requests that would pass at once.
    pub left: u64,
    /// In how many nanoseconds there is room for one more.
    pub next_ns: u64,
}

/// A member of `RateLimit-Policy`: how many requests (`q`) in how many seconds (`w`). `name` has printable ASCII alone.
#[must_use]
pub fn policy_item(name: &str, quota: &Quota) -> String {
    let mut item = quoted(name);
    // A string takes everything.
    let _ = write!(item, ";q={};w={}", quota.size(), seconds(quota.window_ns()));
    item
}

/// A member of `RateLimit`: what is left (`r`), and in how many seconds there is more (`t`).
#[must_use]
pub fn state_item(name: &str, state: LimitState) -> String {
    let mut item = quoted(name);
    let _ = write!(item, ";r={};t={}", state.left, seconds(state.next_ns));
    item
}

/// Whole seconds, rounded up.
fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

/// A string of structured fields.
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
    fn items_are_written_as_the_draft_has_them() {
        let quota = Quota::new(100, Duration::from_secs(60), 99);
        assert_eq!(policy_item("client", &quota), "\"client\";q=100;w=60");
        assert_eq!(
            policy_item("a\"\\b", &Quota::new(10, Duration::from_secs(1), 5)),
            "\"a\\\"\\\\b\";q=6;w=1"
        );
        let state = LimitState { left: 3, next_ns: 1_000_000_001 };
        assert_eq!(state_item("client", state), "\"client\";r=3;t=2");
    }
}
