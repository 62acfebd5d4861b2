//! Address tokens (RFC 9000 section 8.1): replay protection, and whose they are.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::{TokenLog, TokenReuseError};

/// Number of tokens remembered. A token that was pushed out may be used again, which saves the client a round
/// trip and permits this server no more bytes than an address that was validated before.
const SLOTS: usize = 4096;
/// Size of the random number at the end of a token.
const NONCE_BYTES: usize = 16;
/// Maximum size of a token: kinds of token and address, address and port, identifier of 20 bytes with its length, time,
/// tag, random number.
const TOKEN_BYTES_MAX: usize = 2 + 16 + 2 + 21 + 8 + 16 + NONCE_BYTES;

/// Whether a token was made with this key for this client, however long ago and at whatever port.
pub(super) fn is_of_client(key: &dyn HandshakeTokenKey, token: &[u8], client: IpAddr) -> bool {
    if token.len() > TOKEN_BYTES_MAX {
        return false;
    }
    let Some((sealed, nonce)) = token.split_last_chunk::<NONCE_BYTES>() else { return false };
    let mut sealed = sealed.to_vec();
    let Ok(payload) = key.aead_from_hkdf(nonce).open(&mut sealed, &[]) else { return false };
    // The kind of the token precedes the address.
    match (payload.get(1), client) {
        (Some(0), IpAddr::V4(ip)) => payload[2..].starts_with(&ip.octets()),
        (Some(1), IpAddr::V6(ip)) => payload[2..].starts_with(&ip.octets()),
        _ => false,
    }
}

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
