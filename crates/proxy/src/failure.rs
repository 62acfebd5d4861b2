//! What can go wrong between a request and its response.

use http::Status;
use net::Fault;

/// Why an attempt at an upstream failed.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// No connection came about.
    Connect(&'static str),
    /// None could be made here: we are out of descriptors or ports.
    Starved,
    /// Nor in the time it may take.
    ConnectSlow,
    /// A kept connection was closed before anything of a response came: most likely while it lay idle.
    Stale,
    /// The connection broke before the response's head was whole.
    Cut,
    /// No whole head in time.
    Slow,
    /// What came is no response.
    Invalid(&'static str),
    /// A response whose status counts as a failure.
    Refused(Status),
    /// The upstream's part of a body under way: the response cannot be completed.
    Body(&'static str),
    /// It is the client's fault, or ours: not a matter of upstreams.
    Ours(Fault),
}

impl AttemptFailure {
    /// Whether it counts against the server. A kept connection that was closed does not, nor does our own want.
    pub(crate) fn is_the_servers(&self) -> bool {
        !matches!(self, AttemptFailure::Stale | AttemptFailure::Starved | AttemptFailure::Ours(_))
    }

    /// Whether the log is told. A stale connection is nobody's trouble.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_the_servers() || matches!(self, AttemptFailure::Starved)
    }
}

impl From<Fault> for AttemptFailure {
    fn from(fault: Fault) -> AttemptFailure {
        AttemptFailure::Ours(fault)
    }
}
