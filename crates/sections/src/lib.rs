//! Field sections of HTTP/2 and HTTP/3: what HPACK (RFC 7541) and QPACK (RFC 9204) have in common, and the
//! meaning of a decoded section as a message.
//!
//! This crate owns decoded sections, prefixed integers, dynamic tables, the Huffman code, the checks that make a section a
//! request, a response or trailers, and priorities (RFC 9218). It never knows frames or streams, and does no I/O.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod integer;
pub mod huffman;
pub mod string;
pub mod block;
pub mod indexing;
pub mod table;
pub mod static_entry;
pub mod priority;
pub mod lines;
pub mod head;

pub use block::FieldBlock;
pub use priority::Priority;
