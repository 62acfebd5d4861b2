//! Reasons why a connection ended early.

use net::Fault;

use crate::tally::ErrorKind;

/// Reason why a connection ended early, and with it the requests in progress on it.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub(crate) kind: ErrorKind,
    pub(crate) example: String,
}

impl RequestFailure {
    pub(crate) fn new(kind: ErrorKind, example: impl Into<String>) -> RequestFailure {
        RequestFailure { kind, example: example.into() }
    }
}

impl From<Fault> for RequestFailure {
    fn from(fault: Fault) -> RequestFailure {
        let kind = match &fault {
            Fault::Timeout => ErrorKind::Timeout,
            Fault::Reject(_) => ErrorKind::Malformed,
            Fault::Disconnected | Fault::MuxError { .. } | Fault::Io(_) | Fault::Failed(_) => {
                ErrorKind::Closed
            }
        };
        RequestFailure::new(kind, fault.to_string())
    }
}

impl From<http::Reject> for RequestFailure {
    fn from(reject: http::Reject) -> RequestFailure {
        RequestFailure::new(ErrorKind::Malformed, reject.reason)
    }
}
