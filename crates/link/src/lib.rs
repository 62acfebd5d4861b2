//! The protocol between a server and the supervisor that has started it, as data: no sockets, no processes.
//!
//! The supervisor keeps root's rights, and the server, which reads what clients send, may be under an attacker's control. So the requests
//! are a closed list ([`Request`]), each is allowed in some states only ([`Session`]), and whatever else arrives is a [`Violation`],
//! for which the supervisor kills the server.
//!
//! A packet is text of at most [`TEXT_BYTES_MAX`] bytes, a word and its arguments separated by spaces, with descriptors beside it.

mod request;
mod session;

pub use request::{Request, Violation};
pub use session::{LinkState, Session};

/// Longest text of a packet; an error of a configuration is cut there.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Descriptors of one packet; the kernel takes 253.
pub const DESCRIPTORS_MAX: usize = 128;
/// Descriptors of one request, which may take several packets.
pub const REQUEST_DESCRIPTORS_MAX: usize = 4096;
