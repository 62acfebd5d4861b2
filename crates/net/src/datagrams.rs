//! Sessions of streams over UDP: a client's datagrams go to one upstream server, and the server's to the client.
//!
//! A session is one client address, with its port, at one listening address; its first datagram opens it. The task
//! of the listening socket ([`crate::datagram_listener`]) receives from clients and sends to servers at once;
//! the session's own task chooses the server, receives its answers and knows when the session ends. Nothing is
//! queued but the datagrams of a session without a server: those for which a socket has no room are dropped.
//! The choice of a server, and what a session is counted as, are not known here.

mod drops;
mod link;
mod table;
mod session;
mod relay;

pub use drops::DropReason;
pub use link::DatagramLink;
pub(crate) use link::RECEIVE_BUFFERS;
pub use relay::{DatagramEnd, DatagramRelayOptions};
pub use session::{DatagramClient, DatagramTap, ServeDatagrams};
pub(crate) use session::{DatagramEndpoint, DatagramSender};
