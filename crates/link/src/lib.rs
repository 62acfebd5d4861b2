//! The protocol between a server and the supervisor that started it: owns the requests and the states in
//! which each is allowed, and never touches a socket, a file or a process.
//!
//! The supervisor keeps root privileges, and the server, which reads client data, may be under an attacker's
//! control. Therefore the requests are a closed list ([`LinkRequest`]), each is allowed only in some states
//! ([`LinkSession`]), and everything else is a [`LinkViolation`], for which the supervisor kills the server.
//!
//! A packet is text of at most [`TEXT_BYTES_MAX`] bytes, a word and its arguments separated by spaces, with
//! attached descriptors.

mod limits;
mod request;
mod session;

pub use limits::{DESCRIPTORS_MAX, REQUEST_DESCRIPTORS_MAX, TEXT_BYTES_MAX};
pub use request::{LinkRequest, LinkViolation};
pub use session::{LinkSession, LinkState};
