//! HTTP/3 connections: both ends, without their sockets, and clients with theirs.
//!
//! QUIC itself is `quinn-proto`, which makes no system calls and has no clock; `http3` frames requests. The server's
//! sockets, which many connections share, are those of [`crate::quic`].

mod acknowledgements;
mod transport;
mod event;
mod connection;
mod receiving;
mod tls_session;
mod client_handshake;
mod client_link;
mod requests;
mod client;

pub use client::{Http3Client, Http3Event, Http3Options};

pub(crate) use acknowledgements::{Acknowledgements, CountingFactory};
pub(crate) use connection::{H3Connection, RequestStream, SEND_WINDOW_BYTES, stream_id, var_int};
pub(crate) use event::Received;
pub(crate) use tls_session::{QUIC_VERSION, changed_keys, initial_keys, next_keys};
pub(crate) use transport::{
    QuicClock, RECEIVE_BUFFERS, REQUESTS_FIRST, REQUESTS_MAX, SEGMENTS_MAX, TURN_BYTES_MAX,
    UNIDIRECTIONAL_STREAMS_MAX, for_each_packet,
};
