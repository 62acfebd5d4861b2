//! Events of an HTTP/3 connection.

use bytes::Bytes;
use http::{Fields, Reject};
use http3::{Http3Code, Http3Error};

use crate::mux::StreamPriority;

/// An event of a connection.
pub(crate) enum Received {
    /// A head of the peer's message is in `http` of the connection; if `ended`, nothing follows.
    Head { id: u32, ended: bool },
    /// A request that exceeds a limit.
    Refused(u32, Reject),
    /// Content of a message, and whether the message ends with it.
    Data(u32, Bytes, bool),
    /// A message is complete, with these trailers.
    End(u32, Fields),
    /// The peer has reset its message.
    Reset(u32, Http3Code),
    /// The peer reads no more of this side's message.
    Stopped(u32),
    /// The peer has violated the protocol on a stream, which is closed.
    Failed(u32, Http3Error),
    /// QUIC has accepted all frames of a stream.
    Writable(u32),
    /// A client has changed the priority of a response.
    Priority(u32, StreamPriority),
    /// The peer's settings have arrived.
    Settings,
    /// The peer accepts no requests on streams from this number on.
    GoAway(u64),
    /// This side may open more streams.
    StreamsAvailable,
}
