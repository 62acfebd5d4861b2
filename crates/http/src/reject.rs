//! Protocol errors of the peer, as values.

use crate::status::Status;

/// A rejected message: the status that answers it and a static reason. The connection must be closed
/// afterwards, because the start of the next message is uncertain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The status for the client. (For a response of an upstream server, `proxy` decides the status.)
    pub status: Status,
    /// The reason, in a few words for a log line or an error page. Never contains bytes sent by the peer.
    pub reason: &'static str,
}

impl Reject {
    /// A repeated `Content-Length` with equal values.
    pub const REPEATED_LENGTH: Reject = Reject::bad_request("repeated Content-Length");
    /// White space between a field's name and its colon.
    pub const SPACED_COLON: Reject = Reject::bad_request("space before colon");
    /// A line terminated by LF alone.
    pub const BARE_LF: Reject = Reject::bad_request("LF without CR");

    /// Whether [`crate::Limits::lenient_heads`] accepts responses that are refused for this reason.
    #[must_use]
    pub fn is_repairable(reason: &str) -> bool {
        [Reject::REPEATED_LENGTH, Reject::SPACED_COLON, Reject::BARE_LF]
            .iter()
            .any(|known| known.reason == reason)
    }

    /// A reject of any status.
    #[must_use]
    pub const fn new(status: Status, reason: &'static str) -> Reject {
        Reject { status, reason }
    }

    /// A reject with status 400, the common case.
    #[must_use]
    pub const fn bad_request(reason: &'static str) -> Reject {
        Reject { status: Status::BAD_REQUEST, reason }
    }
}
