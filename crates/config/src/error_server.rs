//! Error pages that a server writes.

use proxy::options::ProxyOptions;
use proxy::upstream_group::Proxied;
use settings::directives;
use settings::shape::{Count, OneOrMore, Size, Time};
use settings::units::MIB;
use std::time::Duration;

directives! {
    /// A server that answers in place of error responses: of the route's application or upstream servers, and of this server
    /// while it handles a request of the route.
    ///
    /// ```toml
    /// [[route]]
    /// proxy        = "http://127.0.0.1:3000"
    /// error_server = { to = "http://127.0.0.1:4000", statuses = [404, 503] }
    /// ```
    ///
    /// It gets `GET /` with the fields of the client's request and:
    ///
    /// | Field | Value |
    /// |---|---|
    /// | `X-Code` | the status of the response that it replaces |
    /// | `X-Format` | `Accept` of the request |
    /// | `X-Original-URI` | the path and the query of the request |
    ///
    /// These are the fields that ingress-nginx sends; `request_headers` of `to` may add others, and `add_prefix` a path. The client
    /// gets the server's response with its status, and `WWW-Authenticate`, `Retry-After` and `Allow` of the replaced one where the
    /// response has none. If the server cannot be reached in time, or its response is longer than `body_max`, the client gets the
    /// error page of the site. The response of this server is never replaced.
    ErrorServer in "`error_server`" {
        /// The servers: a URL, a list, or a table as of `proxy`, which may name a group (`{ upstream = "NAME" }`).
        "to" to: ProxyOptions = required(""), Proxied;
        /// The statuses of the responses that are replaced: one, or a list.
        "statuses" statuses: Vec<u16> = required(""), OneOrMore(Count { min: 400, max: 599 });
        /// Bytes that a response of the server may have.
        "body_max" body_bytes_max: u64 = "1MiB", Size { min: 0, max: 16 * MIB };
        /// Maximum time for a response.
        "timeout" timeout: Duration = "10s", Time { min: Duration::from_millis(10), max: Duration::from_secs(600) };
    }
    held {
        /// The hidden route of its site by whose rules the server is asked.
        route: usize;
    }
}
