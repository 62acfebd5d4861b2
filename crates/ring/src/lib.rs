//! The channel between the server's threads and the worker processes of one application: one piece of shared memory, both
//! ends of it, and a C ABI for the languages' modules.
//!
//! It owns the memory's layout, the hand-over of requests, the streams in both directions, and the doorbells. It never
//! knows what a request means: heads and bodies are bytes here ([`wire`] says how a head is written down, no more), starts
//! no process, and reads no clock but for [`Worker::next`]'s limit and what a request costs its worker ([`WorkerCost`]).
//!
//! # The path of a request
//!
//! ```text
//! ServerSide::submit              head and first body bytes into a free slot (the one used last), state READY, tag into the queue
//! ServerSide::flush_doorbells     once per tick: wakes one idle worker, if there is one
//! Worker::next                    tag from the queue, state READY -> CLAIMED|worker slot by compare-and-swap; wakes one more worker if a
//!                                 request is left
//! ClaimedRequest::respond, write  frames into the response stream; the server sees nothing before the first flush or the end
//! ClaimedRequest::finish          state DONE|worker slot, tag into the lane to that server thread; wakes its eventfd, if it sleeps
//! ServerSide::poll                tags out of the lanes, each checked: does this worker slot hold this slot in this generation?
//! ServerSide::receive             frames out of the slot, copied once and then checked; the last one frees the slot
//! ```
//!
//! Longer bodies go through the two streams of the slot in as many rounds as needed: a writer that finds no room waits
//! until the reader reports that it has freed some. A body of a gigabyte takes no more memory than a body of a byte.
//!
//! # The layout
//!
//! One memfd per generation, sealed against shrinking; words are 32 bits, a line is 64 bytes.
//!
//! | what | how many | words |
//! |---|---|---|
//! | header | 1 | magic, version, threads, worker slots, slots, request bytes, response bytes, words in all |
//! | idle bitmap | 1 | a bit per worker slot that sleeps and wants work |
//! | worker slot | per worker slot | how it sleeps (not, on this word, on its eventfd); whether it shall leave |
//! | sleep flag | per thread | 1 while the thread sleeps |
//! | queue | per thread | head; tail; a tag per cell |
//! | lane | per thread and worker slot | a tag per cell, 0 where none is |
//! | slot | per thread | state, four stream positions, noticed, cancelled, reason, what to measure, when it was claimed, CPU time, memory; then both streams' bytes |
//!
//! A *state* is phase, worker slot and generation of a slot; a *tag* is slot and generation. The state word is the truth, and the
//! claim is one compare-and-swap on it. Queue positions are hints that any worker moves on, so a worker that dies between
//! two of its steps wedges nothing. A slot's generation rises with each use, so that no late tag is taken for another's.
//!
//! # Sleeping and waking
//!
//! Both doorbells follow the same protocol: the waking side *publishes, fences, looks who sleeps*; the sleeping side
//! *announces that it sleeps, fences, looks again*. loom checks both, and fails if any of the four fences is removed
//! (`tests/loom.rs`). A worker whose idle bit was cleared has been woken, and must look at the queue before anything else.
//!
//! # What the server trusts
//!
//! Nothing that a worker writes. Positions, lengths, tags and states are copied once, checked, and only the copy is used; no reference into the
//! payload exists. A value that fails its check is a [`WorkerFault`]: the server ignores the worker from
//! then on, its response ends with an error, and its slots become free when it dies. Applications are isolated from each
//! other and from the server; workers of one application are not: they share the memory, so a malicious worker can spoil
//! the responses of its siblings. A worker that dies loses only the requests that it held: [`ServerSide::worker_died`].

mod sync;

mod words;

mod error;

mod cost;

mod region;

mod doorbell;

mod layout;

mod shared;

mod pipe;

mod part;

mod lane;

mod queue;

mod side;

mod request;

mod worker;

mod server;

mod channel;

pub mod wire;

#[cfg(not(loom))]
mod copy;

#[cfg(not(loom))]
pub mod abi;

#[cfg(all(not(loom), any(test, feature = "hostile")))]
pub mod hostile;

#[cfg(not(loom))]
pub use channel::{Attachment, NotAttached, environment};
pub use channel::{Channel, ENVIRONMENT};
pub use cost::{Measure, WorkerCost};
pub use error::{Breach, Error, Refused, StopReason, WorkerFault, WorkerSlot};
pub use layout::Options;
pub use part::{FilePart, Part, Received};
pub use request::{ClaimedRequest, DAMAGED, DROPPED, News};
pub use server::{Lost, ServerSide, Ticket};
pub use worker::{Next, Worker};
