//! HTTP/2 client: a connection to another server, shared by many requests.
//!
//! One task owns the socket ([`drive`](crate::h2_client::drive)): it reads, distributes received frames to
//! the streams, and sends the streams' output in turn. A stream belongs to one request and waits through a
//! [`crate::Source`] that the connection's task makes ready, as for the streams of clients.
//!
//! A server can make this side hold a window and a few heads for each stream, and tables and one buffer in
//! each direction for the connection. All of this is accounted for in the core's memory. A slow reader of one
//! stream cannot block the others, because the connection's window covers all of them.

pub(crate) mod options;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod drive;
pub(crate) mod h2_link;

pub use h2_link::H2Link;
pub use options::{H2Options, H2Request, StreamFailure, StreamStep};
pub use stream::H2Stream;
