//! Replay protection of address tokens (RFC 9000 section 8.1.4).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::{TokenLog, TokenReuseError};

/// Number of tokens remembered. A token that was pushed out may be used again, which saves the client a round
/// trip and permits this server no more bytes than an address that was validated before.
const SLOTS: usize = 4096;

/// The tokens used last, by their random numbers.
pub(super) struct UsedTokens(Mutex<Vec<u128>>);

impl Default for UsedTokens {
    fn default() -> UsedTokens {
        UsedTokens(Mutex::new(Vec::new()))
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(&self, nonce: u128, _: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.is_empty() {
            used.resize(SLOTS, 0);
        }
        let slot = &mut used[nonce as usize % SLOTS];
        if std::mem::replace(slot, nonce) == nonce { Err(TokenReuseError) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_accepted_once() {
        let used = UsedTokens::default();
        let check = |nonce| used.check_and_insert(nonce, SystemTime::now(), Duration::from_secs(1)).is_ok();
        assert!(check(7) && check(8));
        assert!(!check(7) && !check(8));
    }
}
