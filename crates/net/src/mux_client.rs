//! Client connections that many requests share: HTTP/2 and HTTP/3.
//!
//! One task owns the socket ([`http2::drive`], [`http3::drive`]): it reads, distributes what was received to
//! the streams, and sends the streams' output in turn. A stream belongs to one request and waits through a
//! [`crate::Source`] that the connection's task makes ready, as for the streams of clients.
//!
//! A server can make this side hold a window and a few heads for each stream, and tables and one buffer in
//! each direction for the connection. All of this is accounted for in the core's memory. A slow reader of one
//! stream cannot block the others: over HTTP/2 only the streams' windows bound what is unread, and over HTTP/3 the
//! connection's window is larger than theirs together.

pub(crate) mod options;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod http2;
pub(crate) mod http3;
pub(crate) mod link;

pub use link::MuxLink;
pub use options::{MuxLinkOptions, StreamFailure, StreamStep};
pub use stream::MuxRequestStream;
