//! HTTP/2 for both ends of a connection (RFC 9113): bytes in, events out.
//!
//! This crate owns frames, HPACK, streams, windows and priorities, and the accounting of the memory and
//! work that a peer causes. It never does I/O, reads a clock or wakes a task: time is an argument, and output
//! is written to a buffer.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod error;
pub mod frame;
mod huffman;
mod integer;
mod entries;
mod table;
pub mod block;
pub mod decode;
pub mod encode;
pub mod priority;
pub mod settings;
mod window;
pub mod ledger;
mod streams;
mod head;
pub mod machine;
mod growth;
mod control;
mod message;
mod feed;
pub mod send;

pub use block::FieldBlock;
pub use decode::HpackDecoder;
pub use encode::HpackEncoder;
pub use error::{ConnectionError, ErrorCode};
pub use ledger::PeerLimits;
pub use machine::{Event, Machine, Options};
pub use priority::Priority;
pub use send::{HeadWriter, NoStream, RequestLine};
pub use settings::PeerSettings;
