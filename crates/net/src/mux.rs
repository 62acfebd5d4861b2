//! Multiplexed connections: many concurrent requests over one link, independent of the framing protocol.
//!
//! A [`MuxProtocol`] implements the protocol: flow control and framing. What it receives, and how its frames
//! leave, is the concern of the connection's task. This module implements the common part: the table of streams with their unread input and
//! unsent output, the readiness of each stream, scheduling between streams, and memory accounting.

pub(crate) mod protocol;
pub(crate) mod client_protocol;
pub(crate) mod stream_map;
pub(crate) mod shared;
pub(crate) mod send_queue;
pub(crate) mod conn;
pub(crate) mod stream;

pub(crate) use client_protocol::ClientProtocol;
pub use client_protocol::MuxRequest;
pub(crate) use conn::{MuxConn, MuxEndpoints};
pub(crate) use protocol::{
    AbortReason, ByteProtocol, ContentFrames, MuxEvent, MuxProtocol, ResetReason, StreamPriority,
    StreamRequest, convert_extended_connect,
};
pub(crate) use stream::StreamLane;
pub(crate) use stream_map::StreamMap;
