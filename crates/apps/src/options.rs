//! Options of an application.

use failure::Failure;
use net::SpillQuota;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use times::Millis;

pub use rustix::process::Resource;

use crate::launcher::Launcher;

/// Number of worker processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Workers that always run. At least 1.
    pub min: usize,
    /// Maximum number of workers, reached while requests wait. At least `min`; at most 1024.
    pub max: usize,
}

/// Limits after which a worker is replaced. Each limit varies by up to a tenth between workers, so that they
/// are not replaced at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recycle {
    /// Number of requests.
    pub requests: Option<u64>,
    /// Bytes of private memory, checked periodically.
    pub memory_bytes: Option<u64>,
    /// Age in milliseconds.
    pub age: Option<Millis>,
}

/// Limits of each WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSockets {
    /// Maximum size of one message from the client, over all its fragments, in bytes; a longer one closes the
    /// socket with 1009.
    pub message_bytes_max: usize,
    /// Milliseconds without a byte from the client; a ping is sent after half of that time. At least 100.
    pub idle_timeout: Millis,
    /// Whether messages are compressed for clients that offer it (RFC 7692).
    pub compress: bool,
}

/// Options of one application.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name for the log and the status.
    pub name: String,
    /// Program and arguments; the program speaks the protocol of `workers/README.md`.
    pub command: Vec<OsString>,
    /// Environment variables that are set in addition to those of the server.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; `None` for that of the server.
    pub folder: Option<PathBuf>,
    /// User and group ids to run as, without supplementary groups; `None` for those of the server.
    pub user: Option<(u32, u32)>,
    /// Whether the processes lead a session of their own even if the server has no terminal.
    pub leads_session: bool,
    /// Launcher that starts the processes, if this process lacks the rights.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// Resource limits, both soft and hard; a limit on address space does not include memory shared with the
    /// server.
    pub limits: Vec<(Resource, u64)>,
    /// Whether to load the application once and fork the workers from that process.
    pub preload: bool,
    /// Number of workers.
    pub workers: Workers,
    /// Threads per worker, each of which serves one request at a time. At least 1.
    pub threads: usize,
    /// Whether workers sleep in an event loop and therefore need a descriptor each.
    pub is_event_loop: bool,
    /// Requests that one event loop has in progress at once; 1 for workers without an event loop. Above 1, a
    /// request that takes too long is cancelled individually, and its worker is killed only if it does not
    /// end the request.
    pub concurrency: usize,
    /// Requests that may wait for a worker, over all cores; if exceeded, the oldest is refused with 503.
    pub queue_max: usize,
    /// Milliseconds that a request may wait for a worker before it is refused with 503.
    pub queue_timeout: Millis,
    /// Milliseconds until a worker must send the head of its response. Then the client gets 504 and the
    /// worker is killed. Work after a response, or without a client, is limited to the same time.
    pub request_max: Millis,
    /// Milliseconds between two pieces of a response while the client waits. Then the response is cut off and
    /// the worker killed.
    pub between_max: Millis,
    /// Milliseconds that loading the application may take.
    pub start_max: Millis,
    /// Milliseconds that a worker may take to finish after it was asked to leave; then it is killed.
    pub stop_max: Millis,
    /// Milliseconds of low load after which a worker above the minimum is stopped.
    pub idle_timeout: Millis,
    /// WebSocket limits; `None` if the application does not support WebSockets, so that handshakes are passed
    /// on as ordinary requests.
    pub websockets: Option<WebSockets>,
    /// Milliseconds without data in either direction on a connection that the application has taken over;
    /// `None` if it cannot take over connections.
    pub hijacked_idle: Option<Millis>,
    /// Limits after which workers are replaced.
    pub recycle: Recycle,
    /// Whether a client that closes its sending side cancels its request, as if it had reset the connection.
    /// If not, the request is answered nevertheless. `None`: only for applications that run in an event loop
    /// (ASGI).
    pub cancels_on_client_close: Option<bool>,
    /// Whether to show the application's load error to clients. For development.
    pub show_errors: bool,
    /// Bytes of a slot for the request; the entire head must fit.
    pub request_bytes: usize,
    /// Bytes of a slot for the response; the entire head must fit.
    pub response_bytes: usize,
    /// Bytes of a request's body that are buffered before a worker gets the request, so that a slow client
    /// does not occupy it. Values above half of `request_bytes` have no further effect.
    pub body_ahead_bytes: usize,
    /// Bytes of a response that are buffered in memory for a slow client, so that its worker is free earlier.
    pub response_ahead_bytes: usize,
    /// Quota of temporary files for responses beyond `answer_ahead_bytes` and for request bodies beyond
    /// `body_ahead_bytes`; `None` for no temporary files.
    pub spill: Option<Arc<SpillQuota>>,
    /// Whether a request's body is read completely before a worker gets the request, using a temporary file
    /// if it is longer than `body_ahead_bytes`. Otherwise the worker gets the body as it arrives.
    pub request_buffering: bool,
}

impl Options {
    /// Returns the defaults: preloading, 2 workers with one thread, a queue of 1024 for at most 30 s, a
    /// minute for a response to begin and between its pieces, a minute to load, 30 s to leave; no recycling.
    #[must_use]
    pub fn new(name: &str, command: Vec<OsString>) -> Options {
        Options {
            name: name.to_owned(),
            command,
            env: Vec::new(),
            folder: None,
            user: None,
            leads_session: false,
            launcher: None,
            limits: Vec::new(),
            preload: true,
            workers: Workers { min: 2, max: 2 },
            threads: 1,
            is_event_loop: false,
            concurrency: 1,
            queue_max: 1024,
            queue_timeout: Millis(30_000),
            request_max: Millis(60_000),
            between_max: Millis(60_000),
            start_max: Millis(60_000),
            stop_max: Millis(30_000),
            idle_timeout: Millis(60_000),
            websockets: None,
            hijacked_idle: None,
            recycle: Recycle::default(),
            cancels_on_client_close: None,
            show_errors: false,
            request_bytes: 64 * 1024,
            response_bytes: 64 * 1024,
            body_ahead_bytes: 128 * 1024,
            response_ahead_bytes: 256 * 1024,
            spill: None,
            request_buffering: true,
        }
    }

    /// Checks that the number of worker slots is supported.
    ///
    /// # Errors
    /// The number of worker slots needed, and the maximum.
    pub fn check(&self) -> Result<(), Failure> {
        const WORKER_SLOTS_MAX: usize = ring::Options::WORKER_SLOTS_MAX;
        let places = self.place_count();
        let threads = self.threads.max(1);
        match places.saturating_mul(threads) {
            worker_slots if worker_slots > WORKER_SLOTS_MAX => Err(Failure::new(format!(
                "{} workers, and {} to take over from them, of {threads} threads each are {worker_slots}: there may be {WORKER_SLOTS_MAX}",
                self.workers.max,
                places - self.workers.max,
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the number of places for worker processes: the maximum, and some for replacements of workers
    /// that are leaving.
    pub(crate) fn place_count(&self) -> usize {
        self.workers.max + self.workers.max.div_ceil(4) + 1
    }
}
