//! Multiplexed connections: many requests at once over one link, whatever protocol frames them.
//!
//! A [`MuxProtocol`] is the protocol: bytes in, events out, windows and frames. What is here is the same for all of them: the table
//! of streams, each with what was received and not read, and what was written and not sent; the readiness of each stream,
//! which the connection's task sets; turns between streams; and what all of it weighs, charged to the connection's permit.

pub(crate) mod protocol;
pub(crate) mod shared;
pub(crate) mod turns;
pub(crate) mod conn;
pub(crate) mod stream;

pub(crate) use conn::{MuxConn, MuxEnds};
pub(crate) use protocol::{
    ContentFrames, CutReason, MuxEvent, MuxProtocol, ResetReason, StreamPriority, StreamRequest,
};
pub(crate) use stream::StreamLane;
