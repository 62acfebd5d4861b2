//! An error of the peer, as a value.

use crate::status::Status;

/// A message that this machine refuses: the status that answers it and one static reason.
/// After a reject the connection is closed, because where the next message begins is no longer certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The status for the client. (For a response of an upstream server, `proxy` decides what its own client gets.)
    pub status: Status,
    /// The reason, in a few words for a log line or an error page. Never contains bytes of the peer.
    pub reason: &'static str,
}

impl Reject {
    /// The same `Content-Length` twice.
    pub const REPEATED_LENGTH: Reject = Reject::bad("repeated Content-Length");
    /// White space between a field's name and its colon.
    pub const SPACED_COLON: Reject = Reject::bad("space before colon");
    /// A line that LF alone ends.
    pub const BARE_LF: Reject = Reject::bad("LF without CR");

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

    /// The common case: 400.
    #[must_use]
    pub const fn bad(reason: &'static str) -> Reject {
        Reject { status: Status::BAD_REQUEST, reason }
    }
}
