//! Failures between a request and its response.

use http::{Reject, Status};
use net::Fault;

/// Why an attempt at an upstream failed.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// The connection could not be opened.
    Connect(&'static str),
    /// The machine has no file descriptor or local port left for a connection.
    ResourcesExhausted,
    /// The connection was not open within `connect`.
    ConnectTimeout,
    /// The upstream closed a kept connection before the first byte of a response, most likely while it was
    /// idle.
    Stale,
    /// The upstream refused to process the request (REFUSED_STREAM or GOAWAY of HTTP/2, FCGI_OVERLOADED): it
    /// may be sent again, whatever its method.
    Unprocessed,
    /// The connection broke before the response head was complete.
    ConnectionLost,
    /// The response head was not complete within `head_timeout`.
    HeadTimeout,
    /// The bytes received are not a valid HTTP response.
    Invalid(&'static str),
    /// The response head has an error that `lenient_heads` repairs: the reason, and the place in the head.
    Repairable(&'static str, Box<str>),
    /// The response has a status that `retry.statuses` lists.
    RetryableStatus(Status),
    /// The upstream failed in the middle of a response body, so the response cannot be completed.
    Body(&'static str),
    /// The upstream closed the connection, or broke its response off, while the client still owed a part of its body.
    BodyOwed(&'static str),
    /// The client or this server failed, not the upstream.
    NotUpstream(Fault),
}

/// Reason for a connection that closed without a response.
pub(crate) const CLOSED_BEFORE_ANSWER: &str = "the upstream closed the connection before it answered";
/// Reason for a failure in a trailer, after the head: a fixed text, because only that is reported at this
/// point.
const SPACE_IN_TRAILER: &str = "space before colon in a trailer field, which lenient_heads = true repairs";
/// Maximum bytes shown of a field's name.
const NAME_BYTES_SHOWN: usize = 64;

impl AttemptFailure {
    /// Returns the failure for a response head refused for `reason`, on the line of `field`.
    #[cold]
    pub(crate) fn of_head(reason: &'static str, field: Option<&[u8]>) -> AttemptFailure {
        if !Reject::is_repairable(reason) {
            return AttemptFailure::Invalid(reason);
        }
        // A repeated field is detected only when the whole head is parsed, so `field` does not name it.
        let field =
            if reason == Reject::REPEATED_LENGTH.reason { Some(&b"Content-Length"[..]) } else { field };
        let place = match field {
            Some(name) => {
                let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_SHOWN)]);
                format!("field \"{name}\"")
            }
            None => "the head".to_owned(),
        };
        AttemptFailure::Repairable(reason, place.into())
    }

    /// Returns the failure for a body or trailer section refused for `reason`.
    #[cold]
    pub(crate) fn of_body(reason: &'static str) -> AttemptFailure {
        let is_repairable = reason == Reject::SPACED_COLON.reason;
        AttemptFailure::Body(if is_repairable { SPACE_IN_TRAILER } else { reason })
    }

    /// Returns the place in the head that `lenient_heads` would repair, for [`AttemptFailure::Repairable`].
    pub(crate) fn repairable(&self) -> Option<&str> {
        match self {
            AttemptFailure::Repairable(_, place) => Some(place),
            _ => None,
        }
    }

    /// Whether the failure counts towards the server's ejection. A closed kept connection does not, nor does
    /// a lack of descriptors or ports on this machine, nor the end of a request whose client may be the cause.
    pub(crate) fn is_server_fault(&self) -> bool {
        !matches!(
            self,
            AttemptFailure::Stale
                | AttemptFailure::ResourcesExhausted
                | AttemptFailure::Unprocessed
                | AttemptFailure::BodyOwed(_)
                | AttemptFailure::NotUpstream(_)
        )
    }

    /// Whether to log this failure. A kept connection that the upstream closed is normal and is not logged.
    pub(crate) fn should_log(&self) -> bool {
        self.is_server_fault()
            || matches!(
                self,
                AttemptFailure::ResourcesExhausted
                    | AttemptFailure::Unprocessed
                    | AttemptFailure::BodyOwed(_)
            )
    }

    /// Returns the failure of an attempt whose client still owes a part of its body: a server may give up waiting
    /// for it, and clients could have servers ejected by sending none.
    pub(crate) fn with_body_owed(self) -> AttemptFailure {
        match self {
            AttemptFailure::ConnectionLost => AttemptFailure::BodyOwed(CLOSED_BEFORE_ANSWER),
            AttemptFailure::Body(reason) => AttemptFailure::BodyOwed(reason),
            failure => failure,
        }
    }
}

impl From<Fault> for AttemptFailure {
    fn from(fault: Fault) -> AttemptFailure {
        AttemptFailure::NotUpstream(fault)
    }
}
