//! HTTP/2 to another server: the client's end of a connection, shared by many requests.
//!
//! One task owns the socket ([`drive`](crate::h2_client::drive)): it reads, hands what came to the streams, and sends what they
//! have written, in turns. A stream is the side of one request: it waits through a [`crate::Source`], which the connection's task
//! makes ready, as the streams of clients do.
//!
//! What a server can make us hold: for each stream its window and a few heads, and for the connection its tables and one buffer
//! each way. All of it is counted in the core's memory. A slow reader of one stream cannot stop the others: the connection's window
//! holds the windows of all streams together.

pub(crate) mod options;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod drive;
pub(crate) mod h2_link;

pub use h2_link::H2Link;
pub use options::{H2Options, H2Request, StreamFailure, StreamStep};
pub use stream::H2Stream;
