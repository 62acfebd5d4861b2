//! Mirroring of requests to test servers, and fault injection.

use crate::conditions::Conditions;
use proxy::options::ProxyOptions;
use proxy::upstream_group::Proxied;
use settings::checker::Checker;
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::Node;
use settings::shape::{Count, Flag, Maybe, OneOrMore, Shape, Size, Time};
use settings::units::MIB;
use shapes::share::SHARE;
use std::time::Duration;

/// Faults of one route, and mirrors of one route.
const FAULTS_MAX: usize = 16;

/// `mirror` of a route.
pub(crate) fn mirrors() -> impl Shape<Out = Vec<Mirror>> {
    OneOrMore(brief::<Mirror>("to"))
}

/// `fault` of a route.
pub(crate) fn faults() -> impl Shape<Out = Vec<InjectedFault>> {
    OneOrMore(table())
}

directives! {
    /// Copies of requests that are sent to other servers, whose responses are discarded. A URL alone is
    /// shorthand for `to`. With a list, each of its mirrors gets a copy.
    ///
    /// ```toml
    /// [[route]]
    /// path   = "/*"
    /// proxy  = "http://127.0.0.1:3000"
    /// mirror = { to = "http://127.0.0.1:4000", share = "10%" }
    /// ```
    ///
    /// The client's request neither waits for a copy nor fails because of one. Copies are made of requests
    /// that the route has admitted, with `X-Mirrored: 1`, whatever answers the request (a cache too);
    /// requests that have this field are not copied. A copy is sent once the request's body has been read. A
    /// response is read up to 64 KiB and discarded.
    Mirror in "`mirror`" {
        /// The servers: a URL, a list, or a table as of `proxy`, which may name a group (`{ upstream = "NAME" }`).
        "to" to: ProxyOptions = required(""), Proxied;
        /// Share of the requests that are copied: `"0%"` to `"100%"`.
        "share" share: u32 = "100%", SHARE;
        /// Only requests that meet these conditions.
        "when" when: Option<Conditions> = absent("every request"), Maybe(table());
        /// Bytes of a request body that a copy may have. Requests with a longer one have no copy.
        "body_max" body_bytes_max: u64 = "64KiB", Size { min: 0, max: 16 * MIB };
        /// Copies in flight at the same time, on all threads. Further ones are dropped and counted.
        "in_flight" in_flight_max: u32 = 100, Count { min: 1, max: 10_000 };
        /// Maximum time for a copy, including its response.
        "timeout" timeout: Duration = "10s", Time { min: Duration::from_millis(10), max: Duration::from_secs(600) };
    }
    held {
        /// The hidden route of its site by whose rules copies are sent.
        route: usize;
    }
}

directives! {
    /// An injected fault, to test how clients behave when this server or its upstream servers are slow or
    /// fail. Each start warns of configured faults. If there are several, each request gets the first one
    /// that applies.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = "http://127.0.0.1:3000"
    /// fault = [
    ///     { delay = "200ms", share = "10%" },
    ///     { status = 503, when = { header = { X-Test-Fault = "status" } } },
    /// ]
    /// ```
    InjectedFault in "`fault`", check fault_agrees {
        /// Time that the request is delayed before anything else is done.
        "delay" delay: Duration = "0s", Time { min: Duration::ZERO, max: Duration::from_secs(600) };
        /// The status that it is answered with.
        "status" status: Option<u16> = absent("the request is served"), Maybe(Count { min: 400, max: 599 });
        /// Whether the connection is closed without a response; over HTTP/2, the stream is reset.
        "abort" abort: bool = false, Flag;
        /// Share of the requests that meet `when`: `"0%"` to `"100%"`.
        "share" share: u32 = "100%", SHARE;
        /// Only requests that meet these conditions.
        "when" when: Option<Conditions> = absent("every request"), Maybe(table());
    }
}

fn fault_agrees(fault: &mut InjectedFault, node: &Node, check: &mut Checker) {
    if fault.delay.is_zero() && fault.status.is_none() && !fault.abort {
        let title = "a `fault` that does nothing".to_owned();
        let finding = check.error(&node.span, title, "neither `delay` nor `status` nor `abort`");
        finding.help("write for example `fault = { delay = \"200ms\", share = \"10%\" }`, or remove it");
        return;
    }
    if let (Some(entry), Some(other)) = (node.entry("abort").filter(|_| fault.abort), node.entry("status")) {
        let title = "a `fault` with both `status` and `abort`".to_owned();
        let finding = check.error(&other.key_span, title, "an aborted request has no status");
        finding
            .related(entry.key_span.clone(), "it is aborted")
            .help("write two faults, or remove one of them");
    }
    if fault.share > 0 {
        let title = "requests are made to fail (`fault`)".to_owned();
        let finding = check.warning(&node.span, title, "this is for tests");
        finding.help("remove it, or write `share = \"0%\"`, where clients are to be served");
    }
}

/// Reports a route with more than [`FAULTS_MAX`] faults, or as many mirrors.
pub(crate) fn check_faults(node: &Node, check: &mut Checker) {
    for (key, name) in [("fault", "faults"), ("mirror", "mirrors")] {
        if let Some(item) = node.items(key).get(FAULTS_MAX) {
            check.error(&item.span, format!("more than {FAULTS_MAX} {name}"), "one too many");
        }
    }
}
