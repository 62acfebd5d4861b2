//! Address tokens (RFC 9000 section 8.1): their keys, replay protection, and whose they are.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::hkdf;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey};
use quinn_proto::{TokenLog, TokenReuseError};

use crate::tls::TicketKeys;

/// Number of tokens remembered. A token that was pushed out may be used again, which saves the client a round
/// trip and permits this server no more bytes than an address that was validated before.
const SLOTS: usize = 4096;
/// Size of the random number at the end of a token.
const NONCE_BYTES: usize = 16;
/// Maximum size of a token: kinds of token and address, address and port, identifier of 20 bytes with its length, time,
/// tag, random number.
const TOKEN_BYTES_MAX: usize = 2 + 16 + 2 + 21 + 8 + 16 + NONCE_BYTES;

/// The keys of tokens: those that a set of servers shares, so that each takes the tokens of the others, and the endpoint's
/// own, which makes tokens without a set.
pub(super) struct TokenKeys {
    pub(super) own: Arc<hkdf::Prk>,
    /// Returns the session ticket keys in force.
    pub(super) tickets: Box<dyn Fn() -> Option<TicketKeys> + Send + Sync>,
}

impl HandshakeTokenKey for TokenKeys {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let mut keys = (self.tickets)().map(|tickets| tickets.shared_token_keys()).unwrap_or_default();
        keys.push(self.own.clone());
        Box::new(AnyTokenKey { keys, random: random_bytes.to_vec() })
    }
}

/// Keys for one token: the first one makes it, any opens it.
struct AnyTokenKey {
    keys: Vec<Arc<hkdf::Prk>>,
    random: Vec<u8>,
}

impl AeadKey for AnyTokenKey {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let key = self.keys.first().ok_or(CryptoError)?;
        key.aead_from_hkdf(&self.random).seal(data, additional_data)
    }

    fn open<'a>(&self, data: &'a mut [u8], additional_data: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        let sealed = data.to_vec();
        for key in &self.keys {
            // A key that does not fit leaves other bytes behind.
            data.copy_from_slice(&sealed);
            let len = key.aead_from_hkdf(&self.random).open(data, additional_data).map(|plain| plain.len());
            if let Ok(len) = len {
                return Ok(&mut data[..len]);
            }
        }
        Err(CryptoError)
    }
}

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
    use crate::tls::{TICKET_PERIOD_S, token_key};

    #[test]
    fn servers_of_a_set_open_each_others_tokens() {
        let period =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / TICKET_PERIOD_S;
        let server = |own: u8, shared: &[(u64, u8)]| {
            let tickets = TicketKeys::random();
            for (at, secret) in shared {
                tickets.set_period_secret(period + 1 - at, vec![*secret; 32]);
            }
            TokenKeys { own: token_key(&[own]), tickets: Box::new(move || Some(tickets.clone())) }
        };
        let sealed = |server: &TokenKeys, random: &[u8]| {
            let mut token = b"payload".to_vec();
            server.aead_from_hkdf(random).seal(&mut token, b"").unwrap();
            token
        };
        let opens = |server: &TokenKeys, random: &[u8], mut token: Vec<u8>| {
            server.aead_from_hkdf(random).open(&mut token, b"").is_ok_and(|plain| plain == b"payload")
        };
        // The secrets of the next, the present and the last period.
        let (one, two) = (server(1, &[(0, 7), (1, 8), (2, 9)]), server(2, &[(0, 7), (1, 8), (2, 9)]));
        let (late, alone) = (server(3, &[(1, 9)]), server(1, &[]));
        let token = sealed(&one, b"random");
        assert!(opens(&one, b"random", token.clone()) && opens(&two, b"random", token.clone()));
        assert!(!opens(&two, b"other", token.clone()) && !opens(&alone, b"random", token.clone()));
        for at in 0..token.len() {
            let mut changed = token.clone();
            changed[at] ^= 1;
            assert!(!opens(&two, b"random", changed), "byte {at}");
        }
        assert!(opens(&two, b"random", sealed(&late, b"random")), "of the last period");
        assert!(opens(&one, b"random", sealed(&alone, b"random")), "made before it knew the set's secrets");
        assert!(!opens(&two, b"random", sealed(&alone, b"random")));
    }

    #[test]
    fn token_is_accepted_once() {
        let used = UsedTokens::default();
        let check = |nonce| used.check_and_insert(nonce, SystemTime::now(), Duration::from_secs(1)).is_ok();
        assert!(check(7) && check(8));
        assert!(!check(7) && !check(8));
    }
}
