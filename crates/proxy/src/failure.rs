//! What can go wrong between a request and its response.

use http::Status;
use net::Fault;

/// Why an attempt at an upstream failed.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// The connection could not be opened.
    Connect(&'static str),
    /// This machine has no file descriptor or local port left for a connection.
    Starved,
    /// The connection was not open within `connect_ms`.
    ConnectSlow,
    /// The upstream closed a kept connection before the first byte of a response, most likely while it was idle.
    Stale,
    /// The upstream refused to process the request (HTTP/2: REFUSED_STREAM, GOAWAY): it may be sent again, whatever its method.
    Unprocessed,
    /// The connection broke before the response head was complete.
    Cut,
    /// The response head was not complete within `head_ms`.
    Slow,
    /// The bytes received are not a valid HTTP response.
    Invalid(&'static str),
    /// The response has a status that `retry.statuses` lists.
    Refused(Status),
    /// The upstream failed in the middle of a response body, so the response cannot be completed.
    Body(&'static str),
    /// The client or this server failed, not the upstream.
    Ours(Fault),
}

impl AttemptFailure {
    /// Whether the failure counts towards the server's ejection. A closed kept connection does not, nor does a lack of
    /// descriptors or ports on this machine.
    pub(crate) fn is_the_servers(&self) -> bool {
        !matches!(
            self,
            AttemptFailure::Stale
                | AttemptFailure::Starved
                | AttemptFailure::Unprocessed
                | AttemptFailure::Ours(_)
        )
    }

    /// Whether to log this failure. A kept connection that the upstream closed is normal and is not logged.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_the_servers() || matches!(self, AttemptFailure::Starved | AttemptFailure::Unprocessed)
    }
}

impl From<Fault> for AttemptFailure {
    fn from(fault: Fault) -> AttemptFailure {
        AttemptFailure::Ours(fault)
    }
}
