//! Who may have how many connections is decided elsewhere: asked at the accept, before a byte is read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::address::Peer;

/// A client may have no more connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;

/// What a connection holds for as long as it is open.
pub type ConnectionPlace = Box<dyn Any + Send>;

/// Decides whether a client may have one more connection. Called on every core; must not block.
pub trait ConnectionGate: Send + Sync {
    /// One more connection, of a client itself or of a proxy. What is returned is dropped with the connection; `None` where it is
    /// not counted.
    ///
    /// # Errors
    /// [`TooManyConnections`]: it is closed at once.
    fn enter(&self, client: Peer) -> Result<Option<ConnectionPlace>, TooManyConnections>;
}

/// The gate of a server.
#[derive(Clone)]
pub struct SharedGate(pub Arc<dyn ConnectionGate>);

impl fmt::Debug for SharedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedGate")
    }
}
