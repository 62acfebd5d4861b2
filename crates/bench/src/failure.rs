//! Why a connection ended early.

use net::Fault;

use crate::tally::ErrorKind;

/// Why a connection ended early, and with it the requests under way on it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) example: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, example: impl Into<String>) -> Failure {
        Failure { kind, example: example.into() }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        let kind = match &fault {
            Fault::Timeout => ErrorKind::Timeout,
            Fault::Reject(_) => ErrorKind::Malformed,
            Fault::Gone | Fault::Io(_) | Fault::Broken(_) => ErrorKind::Closed,
        };
        Failure::new(kind, fault.to_string())
    }
}

impl From<http::Reject> for Failure {
    fn from(reject: http::Reject) -> Failure {
        Failure::new(ErrorKind::Malformed, reject.reason)
    }
}
