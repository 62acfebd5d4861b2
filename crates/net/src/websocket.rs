//! The key of the WebSocket handshake over HTTP/1 (RFC 6455 section 4). HTTP/2 has none (RFC 8441 section 5).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;

/// Constant that is appended to the key (section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of 16 bytes in base64.
pub const KEY_BYTES: usize = 24;

/// Whether a value of `Sec-WebSocket-Key` is valid.
#[must_use]
pub fn is_key(key: &[u8]) -> bool {
    key.len() == KEY_BYTES
        && key.ends_with(b"==")
        && key[..KEY_BYTES - 2].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte))
}

/// Generates a key for a request of this server.
///
/// # Panics
/// Panics if the system has no random numbers.
#[must_use]
pub fn new_key() -> [u8; KEY_BYTES] {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("random numbers");
    let mut key = [0; KEY_BYTES];
    BASE64.encode_mut(&bytes, &mut key);
    key
}

/// Returns the value of `Sec-WebSocket-Accept` for a key (section 4.2.2): base64 of the SHA-1 of the key and
/// a constant. SHA-1 protects no secret here; the value shows that the server understands WebSocket.
#[must_use]
pub fn accept(key: &[u8]) -> [u8; 28] {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    let mut text = [0; 28];
    BASE64.encode_mut(hash.as_ref(), &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_value_matches_the_rfc_example() {
        assert_eq!(&accept(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn websocket_keys_are_validated() {
        assert!(is_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        for wrong in
            [&b""[..], b"dGhlIHNhbXBsZSBub25jZQ=", b"dGhlIHNhbXBsZSBub25jZQAA", b"dGhlIHNhb.BsZSBub25jZQ=="]
        {
            assert!(!is_key(wrong));
        }
        assert!(is_key(&new_key()) && new_key() != new_key());
    }
}
