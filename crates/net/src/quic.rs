//! HTTP/3 connections of clients: sockets, connection identifiers, handshakes, and the task of each connection.
//!
//! This module moves datagrams between the sockets of a core and [`crate::h3`], which has both ends of a connection.
//! Nothing of it is known to handlers: streams, scheduling and accounting are those of [`crate::mux`].
//!
//! ```text
//! socket ──▶ endpoint ──datagrams──▶ connection's task ──events──▶ streams (one task each)
//!    ▲            (by connection ID)         │
//!    └───────────────packets────────────────┘
//! ```

mod identifiers;
mod keys;
mod tokens;
mod unsolicited;
mod handshake;
mod timers;
mod succession;
mod udp_socket;
mod outbox;
mod new_address;
mod inbox;
mod endpoint;
mod link;
mod h3_server;
mod connection;
mod socket_task;

pub(crate) use endpoint::{OpenEndpoint, QuicSocket};
pub(crate) use socket_task::serve_socket;
pub(crate) use udp_socket::QuicUdpSocket;
