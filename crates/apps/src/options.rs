//! What an application is given, as plain data.

use net::SpillQuota;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

pub use rustix::process::Resource;

use crate::launcher::Launcher;

/// How many worker processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// As many are always there. At least 1.
    pub min: usize,
    /// As many at most, when requests wait. At least `min`; at most 1024.
    pub max: usize,
}

/// When a worker is replaced by a fresh one. Each limit differs from worker to worker by up to a tenth, so that they do
/// not leave together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recycle {
    /// After so many requests.
    pub requests: Option<u64>,
    /// Above so many bytes of memory that it shares with nobody, looked at once in a while.
    pub memory_bytes: Option<u64>,
    /// After so many milliseconds.
    pub age_ms: Option<u64>,
}

/// What holds for each WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSockets {
    /// Bytes of one message from the client, over all its fragments; beyond that the socket is closed with 1009.
    pub message_bytes_max: usize,
    /// Milliseconds without a byte from the client; half-way a ping asks for one. At least 100.
    pub idle_ms: u64,
    /// Whether messages are compressed for clients that offer it (RFC 7692).
    pub compress: bool,
}

/// One application.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, for the log and the status.
    pub name: String,
    /// The program that is started and its arguments; it speaks the protocol of `workers/README.md`.
    pub command: Vec<OsString>,
    /// Variables set beside those of the server.
    pub env: Vec<(OsString, OsString)>,
    /// The folder it is started in; the server's where `None`.
    pub folder: Option<PathBuf>,
    /// User and group ids to run as, without supplementary groups; the server's own where `None`.
    pub user: Option<(u32, u32)>,
    /// Whether its processes lead a session of their own also where the server has no terminal.
    pub is_separate: bool,
    /// Starts its processes, if this process may not.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// Resource limits, soft and hard alike; one on address space is beside what is shared with the server.
    pub limits: Vec<(Resource, u64)>,
    /// Load the application once and fork the workers from that process.
    pub preload: bool,
    /// How many workers.
    pub workers: Workers,
    /// Requests that one worker answers at once, each in a thread of its own. At least 1.
    pub threads: usize,
    /// Whether workers sleep in an event loop and so need a descriptor each.
    pub event_loop: bool,
    /// Requests that one thread has under way at once, where that is an event loop; 1 where it is not. Above 1, a request
    /// that takes too long is cancelled alone, and its worker is killed only if it does not end the request.
    pub concurrency: usize,
    /// Requests that may wait for a worker, over all cores; beyond that the oldest is refused with 503.
    pub queue_max: usize,
    /// Milliseconds that a request may wait for a worker; then 503.
    pub queue_ms_max: u64,
    /// Milliseconds that a worker may take until the head of its answer. Then the client gets 504 and the worker is
    /// killed. What a worker does after a response, or without a client, may take as long again.
    pub request_ms_max: u64,
    /// Milliseconds between two pieces of an answer while the client waits. Then it is cut short, and the worker killed.
    pub between_ms_max: u64,
    /// Milliseconds for loading the application.
    pub start_ms_max: u64,
    /// Milliseconds that a worker asked to leave may take to finish; then it is killed.
    pub stop_ms_max: u64,
    /// Milliseconds without need after which one of the workers above the least is sent away.
    pub idle_ms: u64,
    /// WebSockets; `None` where the application knows none, and gets such requests as ordinary ones.
    pub websockets: Option<WebSockets>,
    /// Milliseconds without a byte either way on a connection that the application has taken over; `None` where it cannot
    /// take any.
    pub hijacked_ms: Option<u64>,
    /// When workers are replaced.
    pub recycle: Recycle,
    /// Whether a client that closes its sending side has given its request up, as if it had reset the connection. If not,
    /// the request is answered nevertheless. `None`: only of an application that runs in an event loop (ASGI).
    pub cancels_closed: Option<bool>,
    /// Show the application's own error to the browser where it does not load. For development.
    pub show_errors: bool,
    /// Bytes of a slot for the request; a head must fit whole.
    pub request_bytes: usize,
    /// Bytes of a slot for the response; its head must fit whole.
    pub response_bytes: usize,
    /// Bytes of a request's body that are collected before a worker is asked, so that a slow client costs none. At most
    /// half of `request_bytes` is of use.
    pub body_ahead_bytes: usize,
    /// Bytes of a response that the server keeps in memory for a slow client, so that its worker is free earlier.
    pub answer_ahead_bytes: usize,
    /// What temporary files may hold of responses beyond `answer_ahead_bytes`, and of request bodies beyond
    /// `body_ahead_bytes`; `None` for no such files.
    pub spill: Option<Arc<SpillQuota>>,
    /// Whether a request's body is read to its end before a worker is asked, into a temporary file where it is longer than
    /// `body_ahead_bytes`. Otherwise a worker gets it as it comes.
    pub request_buffering: bool,
}

impl Options {
    /// An application with these defaults: preloaded, 2 workers of one thread, a queue of 1024 for at most 30 s, a
    /// minute for an answer to begin and between its pieces, a minute to load, 30 s to leave; nothing recycled.
    #[must_use]
    pub fn new(name: &str, command: Vec<OsString>) -> Options {
        Options {
            name: name.to_owned(),
            command,
            env: Vec::new(),
            folder: None,
            user: None,
            is_separate: false,
            launcher: None,
            limits: Vec::new(),
            preload: true,
            workers: Workers { min: 2, max: 2 },
            threads: 1,
            event_loop: false,
            concurrency: 1,
            queue_max: 1024,
            queue_ms_max: 30_000,
            request_ms_max: 60_000,
            between_ms_max: 60_000,
            start_ms_max: 60_000,
            stop_ms_max: 30_000,
            idle_ms: 60_000,
            websockets: None,
            hijacked_ms: None,
            recycle: Recycle::default(),
            cancels_closed: None,
            show_errors: false,
            request_bytes: 64 * 1024,
            response_bytes: 64 * 1024,
            body_ahead_bytes: 128 * 1024,
            answer_ahead_bytes: 256 * 1024,
            spill: None,
            request_buffering: true,
        }
    }

    /// Whether there may be so many workers.
    ///
    /// # Errors
    /// How many worker slots they have, and how many there are.
    pub fn check(&self) -> Result<(), String> {
        const WORKER_SLOTS_MAX: usize = ring::Options::WORKER_SLOTS_MAX;
        let (places, threads) = (self.places(), self.threads.max(1));
        match places.saturating_mul(threads) {
            worker_slots if worker_slots > WORKER_SLOTS_MAX => Err(format!(
                "{} workers, and {} to take over from them, of {threads} threads each are {worker_slots}: there may be {WORKER_SLOTS_MAX}",
                self.workers.max,
                places - self.workers.max,
            )),
            _ => Ok(()),
        }
    }

    /// Places for worker processes: the most there may be, and some for fresh ones beside those that leave.
    pub(crate) fn places(&self) -> usize {
        self.workers.max + self.workers.max.div_ceil(4) + 1
    }
}
