//! Ids of requests, and traces.

use crate::exports::{COLLECTOR, HEADERS, HEADERS_FILE, SERVICE};
use settings::directives;
use settings::shape::{Flag, Maybe, Time, Word};
use shapes::share::SHARE;
use std::path::PathBuf;
use std::time::Duration;

/// Clients whose request and trace ids are accepted in place of new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdSource {
    /// Requests have no ids, and the field passes as any other.
    Off,
    /// None: every id is new.
    New,
    /// Clients in `trusted_proxies`.
    Trusted,
    /// All clients.
    Any,
}

/// Shape of `request_ids`.
pub const ID_SOURCE: Word<IdSource> = Word(&[
    ("off", IdSource::Off),
    ("new", IdSource::New),
    ("trusted", IdSource::Trusted),
    ("any", IdSource::Any),
]);
const TRACE_SOURCE: Word<IdSource> =
    Word(&[("new", IdSource::New), ("trusted", IdSource::Trusted), ("any", IdSource::Any)]);

const SLOW: Time = Time { min: Duration::ZERO, max: Duration::from_secs(86_400) };

directives! {
    /// Traces by W3C Trace Context: `traceparent` and `tracestate` are read, checked and passed on to upstream servers and
    /// applications, with this server's span as the parent. Without it both fields pass as any others.
    ///
    /// ```toml
    /// [tracing]
    /// enabled = true
    /// sample = "1%"
    /// ```
    ///
    /// `$trace_id` and `$span_id` are variables of templates and of the access log. A `traceparent` that is not valid, and one of
    /// a sender that `from` does not name, is replaced by a new one, and its `tracestate` is removed.
    Tracing in "`[tracing]`" {
        /// Whether this server takes part in traces.
        "enabled" enabled: bool = false, Flag;
        /// Clients whose traces are continued: `"trusted"` for those in `trusted_proxies`, `"any"` for all,
        /// `"new"` for none. A continued trace is recorded if its sender records it, so these clients
        /// determine how much is recorded.
        "from" from: IdSource = "trusted", TRACE_SOURCE;
        /// The share of traces that begin here and are recorded: `"0%"` to `"100%"`.
        "sample" sample: u32 = "0%", SHARE;
        /// The collector that gets the spans of recorded traces, by OTLP over HTTP in its JSON encoding: a URL such as
        /// `"http://127.0.0.1:4318"`, to which `/v1/traces` is appended.
        "to" to: Option<String> = absent("none"), Maybe(COLLECTOR);
        /// Requests that take longer are also sent to the collector if their trace is not recorded; the spans
        /// of other services are missing then.
        "slower_than" slower_than: Option<Duration> = absent("none"), Maybe(SLOW);
        /// The `service.name` of the spans.
        "service" service: String = "komainu", SERVICE;
        /// Fields of each request to the collector, such as the key of a service: names and values.
        "headers" headers: Vec<(String, String)> = {}, HEADERS;
        /// A file of such fields, which may be secret: a line `NAME: VALUE` for each, at most 32.
        "headers_file" headers_file: Option<PathBuf> = absent("none"), Maybe(HEADERS_FILE);
    }
}
