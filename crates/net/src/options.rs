//! Limits, timeouts and other options of the server.

use times::Millis;

use crate::gate::SharedGate;
use crate::memory::MemoryBudget;
use crate::tls::TlsAcceptor;

/// Limits of connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections, over all cores. At the limit, idle ones are closed, then accepting
    /// pauses. At least 1.
    pub connections_max: usize,
    /// Maximum number of requests served on one connection before it is closed; 0 for no limit.
    pub requests_per_connection_max: u32,
    /// Maximum number of concurrent requests of a connection; further ones are refused. At least 1.
    pub streams_max: usize,
    /// Limits of request heads.
    pub head: http::Limits,
    /// Maximum size of a request body, unless the route has its own limit.
    pub body_bytes_max: u64,
}

/// Timeouts in milliseconds, with a precision of a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a request head (of a new connection: from the accept) to the last.
    pub head: Millis,
    /// Between two pieces of a request body.
    pub body: Millis,
    /// While the client accepts no bytes of a response.
    pub write: Millis,
    /// Between two requests.
    pub idle: Millis,
    /// For requests in progress when the server begins to stop.
    pub drain: Millis,
}

/// Settings that may change while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingLimits {
    /// Limits of connections and requests.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// See [`Options::hints_over_http1`].
    pub hints_over_http1: bool,
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of engine threads, each with its own listening sockets. At least 1.
    pub threads: usize,
    /// Maximum number of threads for blocking calls of each kind, shared by all engines.
    pub blocking_threads_max: usize,
    /// Limits of connections and requests.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Whether HTTP/1.1 clients get 103 (Early Hints); some mistake it for the final response (RFC 8297
    /// section 3). HTTP/1.0 clients never get interim responses. Default true.
    pub hints_over_http1: bool,
    /// Value of the `Server` field; empty for no field.
    pub server: &'static str,
    /// Budget of memory held for peers. Default no limit.
    pub memory: MemoryBudget,
    /// TLS settings for [`crate::ListenOptions::is_tls`]. Without them, connections to these listeners are closed.
    pub tls: Option<TlsAcceptor>,
    /// Consulted for each client connection. By default, all connections are accepted.
    pub gate: Option<SharedGate>,
    /// Called on a core's thread after much memory was freed there, to return it to the system.
    pub release_memory: Option<fn()>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 10_000,
            requests_per_connection_max: 0,
            streams_max: 128,
            head: http::Limits::default(),
            body_bytes_max: 1024 * 1024,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            head: Millis(15_000),
            body: Millis(30_000),
            write: Millis(30_000),
            idle: Millis(75_000),
            drain: Millis(30_000),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            threads: 1,
            blocking_threads_max: 8,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            hints_over_http1: true,
            server: "Komainu",
            memory: MemoryBudget::default(),
            tls: None,
            gate: None,
            release_memory: None,
        }
    }
}
