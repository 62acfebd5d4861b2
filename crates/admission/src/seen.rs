//! Bounded set of keys, each with an expiry time.

use std::fmt;

use crate::table::{KeyTable, TableAccount};

/// Set of keys with expiry times.
pub struct SeenKeys(KeyTable);

impl SeenKeys {
    /// Creates a set for about `keys_max` keys.
    #[must_use]
    pub fn new(keys_max: usize, account: TableAccount) -> SeenKeys {
        SeenKeys(KeyTable::new(keys_max, account))
    }

    /// Inserts a key until `until_ns`. Without room, the key that expires first is evicted.
    pub fn insert(&self, key: u64, now_ns: u64, until_ns: u64) {
        self.0.update(key, now_ns, |_| (until_ns, ()));
    }

    /// Whether a key is in the set and has not expired.
    #[must_use]
    pub fn contains(&self, key: u64, now_ns: u64) -> bool {
        self.0.update(key, now_ns, |until_ns| (until_ns, until_ns > now_ns)).result
    }
}

impl fmt::Debug for SeenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn keys_are_contained_until_they_expire() {
        let seen = SeenKeys::new(100, Arc::new(|_, _| {}));
        assert!(!seen.contains(7, 0));
        seen.insert(7, 10, 20);
        assert!(seen.contains(7, 19) && !seen.contains(7, 20) && !seen.contains(8, 19));
        seen.insert(7, 30, 40);
        assert!(seen.contains(7, 39));
    }
}
