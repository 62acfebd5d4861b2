//! HTTP/3 for both ends of a connection (RFC 9114, QPACK: RFC 9204): bytes of streams in, events out.
//!
//! This crate owns frames, the unidirectional streams, settings, QPACK with its dynamic table in both
//! directions, and the bounds of what a peer can make it hold. It never does I/O, reads a clock, or knows
//! QUIC: the caller opens streams, feeds what each one received, and sends what is written to a buffer.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod error;
mod varint;
mod long_integer;
pub mod frame;
pub mod settings;
mod static_table;
mod instruction;
pub mod decode;
pub mod encode;
pub mod message;
pub mod unidirectional;
pub mod connection;
mod control;

pub use connection::{Connection, ConnectionEvent, Options, OwnStream};
pub use decode::QpackDecoder;
pub use encode::QpackEncoder;
pub use error::{Http3Code, Http3Error};
pub use message::{MessageEvent, MessageStream};
pub use settings::Http3Settings;
pub use unidirectional::UnidirectionalStream;
