//! HTTP/3 connections over QUIC: sockets, connection identifiers, handshakes, and the task of each connection.
//!
//! QUIC itself is `quinn-proto`, which makes no system calls and has no clock; `http3` frames requests. This module
//! moves datagrams between both and the sockets of a core. Nothing of it is known to handlers: streams,
//! scheduling and accounting are those of [`crate::mux`].
//!
//! ```text
//! socket ──▶ endpoint ──datagrams──▶ connection's task ──events──▶ streams (one task each)
//!    ▲            (by connection ID)         │
//!    └───────────────packets────────────────┘
//! ```

mod identifiers;
mod keys;
mod tokens;
mod handshake;
mod timers;
mod acknowledgements;
mod succession;
mod inbox;
mod endpoint;
mod link;
mod h3_server;
mod receiving;
mod connection;
mod socket_task;

pub(crate) use endpoint::{OpenEndpoint, QuicSocket};
pub(crate) use socket_task::serve_socket;
