//! The channel between the server's threads and the worker processes of one application: one region of shared
//! memory, both ends of it, and a C ABI for the language modules.
//!
//! The crate owns the memory layout, the transfer of requests, the streams in both directions, and the
//! doorbells. It never interprets requests: heads and bodies are bytes ([`wire`] only defines the encoding
//! of a head). It starts no process, and reads a clock only for the limit of [`Worker::next`] and the cost of
//! a request ([`WorkerCost`]).
//!
//! # The path of a request
//!
//! ```text
//! ServerSide::submit              head and first body bytes into the most recently used free slot, state READY,
//!                                 tag into the queue
//! ServerSide::flush_doorbells     once per iteration: wakes one idle worker, if there is one
//! Worker::next                    tag from the queue, state READY -> CLAIMED|worker slot by compare-and-swap;
//!                                 wakes another worker if a request is left
//! ClaimedRequest::respond, write  frames into the response stream, visible to the server after a flush or the end
//! ClaimedRequest::finish          state DONE|worker slot, tag into the lane to that server thread; rings its
//!                                 eventfd if it sleeps
//! ServerSide::poll                tags out of the lanes, each validated: this worker slot must hold this slot in
//!                                 this generation
//! ServerSide::receive             frames out of the slot, copied once, then validated; the last one frees the slot
//! ```
//!
//! Longer bodies pass through the two streams of the slot in as many rounds as needed: a writer that finds no
//! room waits until the reader reports free space. Memory usage does not depend on the length of a body.
//!
//! # The layout
//!
//! One memfd per generation, sealed against shrinking; words are 32 bits, a line is 64 bytes.
//!
//! | item | count | words |
//! |---|---|---|
//! | header | 1 | magic, version, threads, worker slots, process slots, slots, request bytes, response bytes, total words |
//! | idle bitmap | 1 | a bit per worker slot, set if it sleeps and waits for work |
//! | worker slot | per worker slot | sleep state (awake, on this word, on its eventfd); retirement flag; number of looks for requests |
//! | sleep flag | per thread | 1 while the thread sleeps |
//! | queue | per thread | head; tail; a tag per cell |
//! | lane | per thread and worker slot | a tag per cell, or 0 |
//! | slot | per thread | state, four stream positions, noticed, cancelled, reason, measurements, time of the claim, CPU time, memory; then the bytes of both streams |
//!
//! A *state* consists of phase, worker slot and generation of a slot; a *tag* of slot and generation. The
//! state word is authoritative, and a claim is one compare-and-swap on it. Queue positions are hints that any
//! worker advances, so a worker that dies between two of its steps blocks nothing. A slot's generation
//! increases with each use, so that a late tag never refers to a later request.
//!
//! # Sleeping and waking
//!
//! Both doorbells follow the same protocol: the waking side *publishes, fences, checks for sleepers*; the
//! sleeping side *announces that it sleeps, fences, checks again*. loom verifies both, and fails if any of
//! the four fences is removed (`tests/loom.rs`). A worker whose idle bit was cleared has been woken, and must
//! check the queue before anything else.
//!
//! # Trust
//!
//! The server trusts nothing that a worker writes. Positions, lengths, tags and states are copied once and
//! validated, and only the copy is used; there are no references into the payload. A value that fails
//! validation is a [`WorkerFault`]: the server ignores the worker from then on, its response ends with an
//! error, and its slots become free when it dies. Applications are isolated from each other and from the
//! server; workers of one application are not: they share the memory, so a malicious worker can corrupt the
//! responses of its siblings. A worker that dies loses only the requests that it held:
//! [`ServerSide::worker_died`].

mod sync;

mod words;

mod error;

mod cost;

mod region;

mod doorbell;

mod layout;

mod shared;

mod pipe;

mod response_part;

mod lane;

mod queue;

mod worker_side;

mod request;

mod worker;

mod server;

mod channel;

pub mod wire;

#[cfg(not(loom))]
mod fork_guard;

#[cfg(not(loom))]
pub mod abi;

#[cfg(all(not(loom), any(test, feature = "hostile")))]
pub mod hostile;

#[cfg(not(loom))]
pub use channel::{Attachment, NotAttached, environment};
pub use channel::{Channel, ENVIRONMENT};
pub use cost::{Measure, WorkerCost};
pub use error::{ProtocolViolation, StopReason, SubmitError, TicketError, WorkerFault, WorkerSlot};
pub use layout::Options;
pub use request::{ClaimedRequest, DAMAGED, DROPPED, Readiness};
pub use response_part::{FilePart, ReceivedPart, ResponsePart};
pub use server::{LostRequest, ServerSide, Ticket};
pub use worker::{NextRequest, Worker};
