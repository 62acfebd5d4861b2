//! Limits on how often clients ask.

use settings::checker::{Checker, InvalidValue};
use settings::directive_table::brief;
use settings::directives;
use settings::node::Node;
use settings::shape::{Count, Flag, Maybe, OneOrMore, Shape, Text, Time};
use shapes::header;
use shapes::network::{SOURCE, TrustedSource};
use shapes::rate::{COUNT_MAX, RATE, Rate};
use std::fmt;
use std::time::Duration;

/// Limits of one site or route.
const LIMITS_MAX: usize = 16;
/// Parts of one key.
const KEY_PARTS_MAX: usize = 8;
/// The longest time in which a burst may become free again.
const WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Part of the key by which requests are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RateKey {
    /// The client's address, or its network.
    Client,
    /// A header field.
    Header(String),
    /// A cookie.
    Cookie(String),
    /// A parameter of the query.
    Query(String),
    /// The path.
    Path,
    /// The host that the request is for.
    Host,
    /// Nothing: all requests together.
    All,
}

impl fmt::Display for RateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateKey::Client => f.write_str("client"),
            RateKey::Header(name) => write!(f, "header:{name}"),
            RateKey::Cookie(name) => write!(f, "cookie:{name}"),
            RateKey::Query(name) => write!(f, "query:{name}"),
            RateKey::Path => f.write_str("path"),
            RateKey::Host => f.write_str("host"),
            RateKey::All => f.write_str("all"),
        }
    }
}

const KEY: OneOrMore<Text<RateKey>> = OneOrMore(Text {
    what: "\"client\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"path\", \"host\" or \"all\"",
    parse: parse_key,
});

/// `limit` of a site or a route.
pub fn limits() -> impl Shape<Out = Vec<RateLimit>> {
    OneOrMore(brief::<RateLimit>("rate"))
}

directives! {
    /// A limit on the request rate of a client, or on its concurrent requests; `key` selects another key than
    /// the client. A rate alone is shorthand for `rate`. A list is several limits, all of which a request must
    /// meet.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/login"
    /// proxy = "http://127.0.0.1:3000"
    /// limit = { rate = "5/m", burst = 2 }
    ///
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = "http://127.0.0.1:3000"
    /// limit = [
    ///     { rate = "100/s", key = "client" },
    ///     { rate = "10000/h", key = "header:X-Api-Key", headers = true },
    /// ]
    /// ```
    ///
    /// Requests are counted exactly, on all threads together (a token bucket, as GCRA): `burst` requests, and
    /// one more, pass at once; after that they pass at `rate`. Refused requests are not counted. A site's
    /// limits are shared by its routes and applied before theirs. A reload that leaves a limit unchanged
    /// keeps its counts; a restart does not.
    RateLimit in "`limit` of a site or route", check rate_agrees {
        /// Requests in a time: `"10/s"`, `"300/5m"`, `"1000/h"`; 1 to 1,000,000 in 1 ms to 1 day.
        "rate" rate: Option<Rate> = absent("none: `concurrent` is the limit"), Maybe(RATE);
        /// Requests under way at the same time, in place of `rate`: from their head until their client has the response. WebSockets
        /// count as long as they are open.
        "concurrent" concurrent: Option<u32> = absent("none: `rate` is the limit"), Maybe(Count { min: 1, max: COUNT_MAX });
        /// Requests beyond the rate that pass at once after a silence.
        "burst" burst: Option<u32> = absent("one less than the number in `rate`"),
            Maybe(Count { min: 0, max: COUNT_MAX });
        /// Key by which requests are counted: `"client"` (its address, or its network: see `ipv6_prefix`),
        /// `"header:NAME"`, `"cookie:NAME"`, `"query:NAME"`, `"path"`, `"host"`, or `"all"` for one count of
        /// all requests. The parts of a list form one key. If a request lacks the field, cookie or parameter,
        /// or has several that differ, it is counted by its client. A client can invent values of fields,
        /// cookies and parameters, and each value has a count of its own: add a limit by `"client"`, unless
        /// something else checks the values.
        "key" key: Vec<RateKey> = "client", KEY;
        /// Bits of an IPv4 address that are one client.
        "ipv4_prefix" ipv4_prefix: u8 = 32, Count { min: 8, max: 32 };
        /// Bits of an IPv6 address that are one client: networks of this size are given to one customer.
        "ipv6_prefix" ipv6_prefix: u8 = 64, Count { min: 16, max: 128 };
        /// Maximum time that a request beyond `burst` is delayed. `"0s"` refuses it at once.
        "delay" delay: Duration = "0s", Time { min: Duration::ZERO, max: Duration::from_secs(60) };
        /// Requests that wait at the same time; more are refused.
        "delayed" delayed_max: u32 = 1000, Count { min: 1, max: 100_000 };
        /// Status of refused requests. `error_pages` may have a page for it.
        "status" status: u16 = 429, Count { min: 400, max: 599 };
        /// Whether responses to admitted requests have `RateLimit` and `RateLimit-Policy` too. Refused ones
        /// always have them, and `Retry-After`.
        "headers" headers: bool = false, Flag;
        /// Whether requests are only counted and logged that would be refused, and nothing is refused or delayed.
        "dry_run" dry_run: bool = false, Flag;
        /// Whether only requests count that the cache does not answer. Without a cache that is all of them.
        "misses_only" misses_only: bool = false, Flag;
        /// Whether servers with the same limit and the same `[limits.shared]` count together.
        "shared" shared: bool = false, Flag;
        /// Clients that are not limited, by address: networks, addresses and `"unix"`.
        "except" except: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Number of keys that are remembered, with 34 to 69 bytes each. If more are active at the same time,
        /// those with the fewest requests are forgotten.
        "keys" keys_max: u32 = 100_000, Count { min: 1000, max: 10_000_000 };
        /// The limit's name in `RateLimit`, in metrics and in the log.
        "name" name: Option<String> = absent("its `key`"), Maybe(Text { what: "a name", parse: name });
    }
}

impl RateLimit {
    /// Requests beyond the rate that pass at once.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.rate().count.saturating_sub(1))
    }

    /// Returns the rate allowed per key.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate.unwrap_or(Rate { count: COUNT_MAX, period: Duration::from_millis(1) })
    }

    /// Returns the name for responses, metrics and the log.
    #[must_use]
    pub fn name(&self) -> String {
        let of_key = || self.key.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        let text = self.name.clone().unwrap_or_else(of_key);
        // Beside the limit of the rate of the same key.
        if self.name.is_none() && self.concurrent.is_some() { format!("{text} concurrent") } else { text }
    }
}

fn rate_agrees(limit: &mut RateLimit, node: &Node, check: &mut Checker) {
    let place = |name: &str| node.entry(name).map_or(node.span.clone(), |entry| entry.value.span.clone());
    check_limit_kind(limit, node, check);
    let rate = limit.rate();
    let interval = rate.period / rate.count.max(1);
    if interval.saturating_mul(limit.burst().saturating_add(1)) > WINDOW_MAX {
        let title = format!("`burst` of {} at {rate} in `{}`", limit.burst(), check.directive_path_text());
        let finding = check.error(&place("burst"), title, "it is free again only after a year");
        finding.help("write a smaller `burst`, or a higher `rate`");
    }
    if limit.key.len() > KEY_PARTS_MAX {
        let title = format!("more than {KEY_PARTS_MAX} parts in `key` of `{}`", check.directive_path_text());
        check.error(&place("key"), title, "one too many").help("name what clients differ in");
    }
    if limit.key.len() > 1 && limit.key.contains(&RateKey::All) {
        let title = format!("`\"all\"` beside others in `key` of `{}`", check.directive_path_text());
        check.error(&place("key"), title, "it adds nothing").help("remove it, or the others");
    }
    if let Some(entry) = node.entry("delayed").filter(|_| limit.delay.is_zero()) {
        let title = format!("`delayed` without `delay` in `{}`", check.directive_path_text());
        check.error(&entry.key_span, title, "no request waits").help("write `delay = \"1s\"`");
    }
}

/// Checks that a limit has one of the two kinds, and only the directives of that kind.
fn check_limit_kind(limit: &RateLimit, node: &Node, check: &mut Checker) {
    match (limit.rate, limit.concurrent) {
        // One that is not valid is reported already.
        (None, None)
            if node.entry("rate").is_some() || node.entry("concurrent").is_some() || !node.is_table() => {}
        (None, None) => {
            let title = format!("`{}` without `rate`", check.directive_path_text());
            check
                .error(&node.span, title, "this limits nothing")
                .help("write `rate = \"10/s\"` or `concurrent = 10`");
        }
        (Some(_), Some(_)) => {
            let at = node.entry("concurrent").map_or(node.span.clone(), |entry| entry.key_span.clone());
            let title = format!("`rate` and `concurrent` in one `{}`", check.directive_path_text());
            check.error(&at, title, "a limit is either").help("write a list of two limits");
        }
        (Some(_), None) => {}
        (None, Some(_)) => {
            for name in ["burst", "delay", "delayed", "headers", "misses_only", "shared"] {
                let Some(entry) = node.entry(name) else { continue };
                let title = format!("`{name}` beside `concurrent` in `{}`", check.directive_path_text());
                check.error(&entry.key_span, title, "this is for limits with `rate`").help("remove it");
            }
        }
    }
}

/// At most so many limits, and no two of one name.
pub fn check_limits(limits: &[RateLimit], node: &Node, check: &mut Checker) {
    let Some(entry) = node.entry("limit") else { return };
    let items = match node.items("limit") {
        [] => std::slice::from_ref(&entry.value),
        items => items,
    };
    if let Some(item) = items.get(LIMITS_MAX) {
        check.error(&item.span, format!("more than {LIMITS_MAX} limits"), "one too many");
    }
    if limits.len() != items.len() || items.iter().any(|item| check.has_unknown_keys(item)) {
        return; // reported already: one could not be read
    }
    let known = limits.iter().zip(items).take(LIMITS_MAX);
    for (index, (limit, item)) in known.enumerate() {
        let name = limit.name();
        let Some(first) = limits[..index].iter().position(|other| other.name() == name) else { continue };
        let title = format!("two limits with the name \"{name}\"");
        let finding = check.error(&item.span, title, "clients and metrics could not tell them apart");
        finding.related(items[first].span.clone(), "the first one").help("give one a `name`");
    }
}

fn parse_key(text: &str) -> Result<RateKey, InvalidValue> {
    let named = |name: &str, at: usize, what: &str| {
        if !name.is_empty() && name.chars().all(header::is_token_char) {
            Ok(name.to_owned())
        } else {
            Err(InvalidValue::new(format!("this is not the name of {what}"), "").within(at..text.len()))
        }
    };
    match text.split_once(':') {
        Some(("header", name)) => {
            named(name, 7, "a header field").map(|name| RateKey::Header(name.to_ascii_lowercase()))
        }
        Some(("cookie", name)) => named(name, 7, "a cookie").map(RateKey::Cookie),
        Some(("query", name)) => named(name, 6, "a parameter").map(RateKey::Query),
        _ => match text {
            "client" => Ok(RateKey::Client),
            "path" => Ok(RateKey::Path),
            "host" => Ok(RateKey::Host),
            "all" => Ok(RateKey::All),
            _ => Err(InvalidValue::new(
                "this is nothing to count requests by",
                "write \"client\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"path\", \"host\" or \"all\"",
            )),
        },
    }
}

fn name(text: &str) -> Result<String, InvalidValue> {
    if (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a name", "write 1 to 64 letters, digits and signs of ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_keys_are_parsed_and_printed() {
        for text in ["client", "header:x-api-key", "cookie:Sid", "query:k", "path", "host", "all"] {
            assert_eq!(parse_key(text).unwrap().to_string(), text);
        }
        assert_eq!(parse_key("header:X-Api-Key").unwrap(), RateKey::Header("x-api-key".to_owned()));
        for wrong in ["", "header", "header:", "header:a b", "cookie:", "ip", "Client", "client:"] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
