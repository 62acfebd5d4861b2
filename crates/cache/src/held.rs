//! Accounting of memory for as long as it is held.

use std::fmt;
use std::sync::Arc;

/// Called with the bytes held before and after each change.
pub(crate) type Account = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Bytes accounted as held for as long as this value lives. Content that has left the store may still be read
/// by slow clients.
pub(crate) struct HeldBytes {
    pub(crate) account: Account,
    pub(crate) bytes: u64,
}

impl HeldBytes {
    /// Accounts for `bytes` from this call on.
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
