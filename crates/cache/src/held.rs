//! Memory that is counted for as long as it is held.

use std::fmt;
use std::sync::Arc;

/// Called with the bytes held before and after each change.
pub(crate) type Account = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Bytes that count as held for as long as this lives: what is no longer in the store may still be on its way to slow clients.
pub(crate) struct HeldBytes {
    pub(crate) account: Account,
    pub(crate) bytes: u64,
}

impl HeldBytes {
    /// So many, from now on.
    pub(crate) fn new(account: &Account, bytes: u64) -> HeldBytes {
        account(0, bytes);
        HeldBytes { account: account.clone(), bytes }
    }
}

impl fmt::Debug for HeldBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        (self.account)(self.bytes, 0);
    }
}
