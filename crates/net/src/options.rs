//! What the engine may cost, and for how long.

use crate::gate::SharedGate;
use crate::memory::MemoryBudget;
use crate::tls::TlsAcceptor;

/// Bounds on connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, over all cores; at the limit idle ones are closed, then accepting pauses. At least 1.
    pub connections_max: usize,
    /// Requests served on one connection before it is closed; 0 for no limit.
    pub requests_per_connection_max: u32,
    /// Requests that one multiplexed connection may have under way at once; further ones are refused. At least 1.
    pub streams_max: usize,
    /// Head sizes.
    pub head: http::Limits,
    /// Content bytes of a request body, unless the route says otherwise.
    pub body_bytes_max: u64,
}

/// Timeouts in milliseconds; they are kept to within a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From a head's first byte (on a new connection: from the accept) to its last.
    pub head_ms: u64,
    /// Between two pieces of a request body.
    pub body_ms: u64,
    /// Without the client taking any byte of a response.
    pub write_ms: u64,
    /// Between two requests.
    pub idle_ms: u64,
    /// For requests that are still running when the server begins to stop.
    pub drain_ms: u64,
}

/// What may change while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingLimits {
    /// Bounds.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// As [`Options::hints_over_http1`].
    pub hints_over_http1: bool,
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Engine threads, each with its own listeners. At least 1.
    pub threads: usize,
    /// Threads for blocking calls, shared by all engines.
    pub blocking_threads_max: usize,
    /// Bounds.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Whether clients of HTTP/1.1 get 103 (Early Hints): some take it for the response (RFC 8297 section 3). Those of
    /// HTTP/1.0 get no interim response at all. Default true.
    pub hints_over_http1: bool,
    /// Value of the `Server` field; empty for none.
    pub server: &'static str,
    /// What may be held in memory for peers. Default no limit.
    pub memory: MemoryBudget,
    /// How connections speak TLS to listeners that are set to it. Default not at all: such connections are closed.
    pub tls: Option<TlsAcceptor>,
    /// Asked for each connection of a client. Default none: all may come.
    pub gate: Option<SharedGate>,
    /// Called on each core's thread after much memory has become free there, to give it back to the system.
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
        Timeouts { head_ms: 15_000, body_ms: 30_000, write_ms: 30_000, idle_ms: 75_000, drain_ms: 30_000 }
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
