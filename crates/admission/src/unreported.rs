//! Spending of a shared limit that was not yet reported to the other servers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};

use crate::table::TableAccount;

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// Hash with a secret of this process.
    pub local: u64,
    /// Name of the key in all servers that share the limit: a digest, so that collisions cannot be
    /// constructed. Zero if the limit is not shared.
    pub name: [u8; 16],
}

/// Spending of a key since the last exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreported {
    /// Local hash of the key.
    pub key: u64,
    /// Name of the key.
    pub name: [u8; 16],
    /// Change of the time at which the bucket is full, in nanoseconds.
    pub spent_ns: i64,
}

impl From<u64> for LimitKey {
    fn from(local: u64) -> LimitKey {
        LimitKey { local, name: [0; 16] }
    }
}

/// Keys of a shared limit with unreported spending.
pub(crate) struct UnreportedKeys {
    /// Prefix of the digests, which identifies the limit.
    scope: Context,
    keys_max: usize,
    spent: Mutex<SpentKeys>,
    account: TableAccount,
}

#[derive(Default)]
struct SpentKeys {
    by_key: HashMap<u64, ([u8; 16], i64)>,
    bytes: usize,
}

/// Bytes of a key, including one control byte of the map.
const ENTRY_BYTES: usize = size_of::<(u64, ([u8; 16], i64))>() + 1;

impl UnreportedKeys {
    pub(crate) fn new(scope: &[u8], keys_max: usize, account: TableAccount) -> UnreportedKeys {
        let mut context = Context::new(&SHA256);
        context.update(&(scope.len() as u64).to_be_bytes());
        context.update(scope);
        UnreportedKeys { scope: context, keys_max, spent: Mutex::default(), account }
    }

    pub(crate) fn scope(&self) -> Context {
        self.scope.clone()
    }

    fn spent(&self) -> MutexGuard<'_, SpentKeys> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a change of a key's state. Without room for a new key, the change is not reported.
    pub(crate) fn add(&self, key: LimitKey, before_ns: u64, after_ns: u64) {
        let spent_ns = i64::try_from(i128::from(after_ns) - i128::from(before_ns)).unwrap_or(0);
        let mut spent = self.spent();
        if let Some(entry) = spent.by_key.get_mut(&key.local) {
            entry.1 = entry.1.saturating_add(spent_ns);
        } else if spent.by_key.len() < self.keys_max {
            spent.by_key.insert(key.local, (key.name, spent_ns));
            let bytes = (spent.by_key.capacity() + spent.by_key.capacity() / 7) * ENTRY_BYTES;
            if bytes != spent.bytes {
                (self.account)(spent.bytes as u64, bytes as u64);
                spent.bytes = bytes;
            }
        }
    }

    /// Returns the unreported spending of a key.
    pub(crate) fn of(&self, key: u64) -> i64 {
        self.spent().by_key.get(&key).map_or(0, |entry| entry.1)
    }

    pub(crate) fn take(&self) -> Vec<Unreported> {
        let mut spent = self.spent();
        if spent.by_key.is_empty() {
            return Vec::new();
        }
        let taken = std::mem::take(&mut *spent);
        drop(spent);
        (self.account)(taken.bytes as u64, 0);
        let entry = |(key, (name, spent_ns))| Unreported { key, name, spent_ns };
        taken.by_key.into_iter().map(entry).filter(|entry| entry.spent_ns != 0).collect()
    }
}

impl Drop for UnreportedKeys {
    fn drop(&mut self) {
        (self.account)(self.spent().bytes as u64, 0);
    }
}

impl std::fmt::Debug for UnreportedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnreportedKeys").finish_non_exhaustive()
    }
}
