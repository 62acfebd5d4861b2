//! HTTP/2 for both ends of a connection (RFC 9113): bytes in, events out.
//!
//! This crate owns frames, HPACK, streams and windows, and the accounting of the memory and work that a peer
//! causes; `sections` has what HTTP/3 needs too. It never does I/O, reads a clock or wakes a task: time is an argument, and output
//! is written to a buffer.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod error;
pub mod frame;
mod entries;
pub mod decode;
pub mod encode;
pub mod settings;
mod window;
pub mod ledger;
mod streams;
pub mod machine;
mod growth;
mod control;
mod message;
mod feed;
pub mod send;

pub use decode::HpackDecoder;
pub use encode::HpackEncoder;
pub use error::{ConnectionError, ErrorCode};
pub use ledger::PeerLimits;
pub use machine::{Event, Machine, Options};
pub use sections::{FieldBlock, Priority};
pub use send::{HeadWriter, NoStream, RequestLine};
pub use settings::PeerSettings;
