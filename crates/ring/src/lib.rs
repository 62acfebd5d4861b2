//! The channel between the server's threads and the worker processes of one application: one piece of shared memory, both
//! ends of it, and a C ABI for the languages' modules.
//!
//! It owns the memory's layout, the hand-over of requests, the streams in both directions, and the doorbells. It never
//! knows what a request means: heads and bodies are bytes here ([`wire`] says how a head is written down, no more), starts
//! no process, and reads no clock but for [`Worker::next`]'s limit.
//!
//! # The walk of a request
//!
//! ```text
//! ServerSide::submit            head and first body bytes into a free slot (the one used last), state READY, tag into the queue
//! ServerSide::flush_doorbells   once per tick: one idle worker is woken, if there is one
//! Worker::next              tag from the queue, state READY -> CLAIMED|seat by compare-and-swap; wakes one more if any is left
//! ClaimedRequest::respond, write   frames into the response stream; nothing is shown before the first flush or the end
//! ClaimedRequest::finish           state DONE|seat, tag into the lane to that server thread; its eventfd, if it sleeps
//! ServerSide::poll              tags out of the lanes, each checked: does this seat hold this slot in this generation?
//! ServerSide::receive           frames out of the slot, copied once and then checked; the last one frees the slot
//! ```
//!
//! Longer bodies go through the two streams of the slot in as many rounds as it takes: whoever finds no room waits until
//! the other side tells of having made some. Memory is the same for a byte and for a gigabyte.
//!
//! # The layout
//!
//! One memfd per generation, sealed against shrinking; words are 32 bits, a line is 64 bytes.
//!
//! | what | how many | words |
//! |---|---|---|
//! | header | 1 | magic, version, threads, seats, slots, request bytes, response bytes, words in all |
//! | idle bitmap | 1 | a bit per seat that sleeps and wants work |
//! | seat | per seat | how it sleeps (not, on this word, on its eventfd); whether it shall leave |
//! | sleep flag | per thread | 1 while the thread sleeps |
//! | queue | per thread | head; tail; a tag per cell |
//! | lane | per thread and seat | a tag per cell, 0 where none is |
//! | slot | per thread | state, four stream positions, noticed, cancelled, reason; then both streams' bytes |
//!
//! A *state* is phase, seat and generation of a slot; a *tag* is slot and generation. The state word is the truth, and the
//! claim is one compare-and-swap on it. Queue positions are hints that any worker moves on, so a worker that dies between
//! two of its steps wedges nothing. A slot's generation rises with each use, so that no late tag is taken for another's.
//!
//! # Who waits for whom
//!
//! Both doorbells are the same pair: *publish, fence, look who sleeps* against *say that we sleep, fence, look again*. loom
//! runs both, and every one of the four fences is missed by it when taken out (`tests/loom.rs`). A seat whose idle bit was
//! taken has been rung for, and owes a look at the queue before it does anything else.
//!
//! # Whom the server believes
//!
//! Nobody. Positions, lengths, tags and states are copied once, checked, and only the copy is used; no reference into the
//! payload exists. What does not check is a [`WorkerFault`]: the seat is heard no more, its answer ends as an error, and its
//! slots come back when it dies. The wall stands around the application, not around each of its workers: they share the
//! memory, so one that means harm can spoil the answers of its siblings, but nothing of the server's or of another
//! application's. A worker that dies costs what it held, no more: [`ServerSide::worker_died`].

mod sync;

mod words;

mod error;

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
pub use error::{Breach, Error, Refused, StopReason, WorkerFault, WorkerSlot};
pub use layout::Options;
pub use part::{FilePart, Part, Received};
pub use request::{ClaimedRequest, DAMAGED, DROPPED, News};
pub use server::{Lost, ServerSide, Ticket};
pub use worker::{Next, Worker};
