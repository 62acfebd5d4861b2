//! What happens to a request whose client closes its side early.

use crate::shape::Word;

/// The value of `client_abort`.
pub(crate) const CLIENT_ABORT: Word<ClientAbort> =
    Word(&[("ignore", ClientAbort::Ignore), ("cancel", ClientAbort::Cancel)]);

/// What happens to a request whose client closes its side of the connection early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAbort {
    /// It is started and answered.
    #[default]
    Ignore,
    /// It is cancelled.
    Cancel,
}
