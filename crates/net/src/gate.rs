//! Connection limits of clients: consulted when a connection is accepted, before any byte is read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::address::Peer;

/// Error: the client must not open more connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;

/// A value that a connection keeps until it is closed.
pub type GatePermit = Box<dyn Any + Send>;

/// Decides whether a client may have one more connection. Called on every core; must not block.
pub trait ConnectionGate: Send + Sync {
    /// Called for a new connection of a client or a proxy. The returned value is dropped with the connection;
    /// `None` if it is not counted.
    ///
    /// # Errors
    /// [`TooManyConnections`]: the connection is closed at once.
    fn acquire(&self, client: Peer) -> Result<Option<GatePermit>, TooManyConnections>;
}

/// The connection gate of a server.
#[derive(Clone)]
pub struct SharedGate(pub Arc<dyn ConnectionGate>);

impl fmt::Debug for SharedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedGate")
    }
}
