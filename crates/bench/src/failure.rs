//! Why a connection ended early.

use net::Fault;

use crate::tally::Kind;

/// Why a connection ended early, and with it the requests under way on it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) example: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, example: impl Into<String>) -> Failure {
        Failure { kind, example: example.into() }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        let kind = match &fault {
            Fault::Timeout => Kind::Timeout,
            Fault::Reject(_) => Kind::Malformed,
            Fault::Gone | Fault::Io(_) | Fault::Broken(_) => Kind::Closed,
        };
        Failure::new(kind, fault.to_string())
    }
}

impl From<http::Reject> for Failure {
    fn from(reject: http::Reject) -> Failure {
        Failure::new(Kind::Malformed, reject.reason)
    }
}
