//! Handling of requests whose client closes its side of the connection early.

use settings::shape::Word;

/// The value of `client_abort`.
pub const CLIENT_ABORT: Word<ClientAbort> =
    Word(&[("ignore", ClientAbort::Ignore), ("cancel", ClientAbort::Cancel)]);

/// Action for a request whose client closes its side of the connection early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAbort {
    /// The request is processed and answered.
    #[default]
    Ignore,
    /// The request is cancelled.
    Cancel,
}
