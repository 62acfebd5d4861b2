//! A client's wish to switch to WebSocket (RFC 6455 section 4.2.1): read, and answered.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use data_encoding::BASE64;
use http::{Fields, Method, Name, Status, scan};
use net::Request;

use crate::deflate::{self, Agreement};

/// What the key is joined with (section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// 16 bytes in base64.
const KEY_BYTES: usize = 24;

/// A valid WebSocket handshake.
#[derive(Debug)]
pub(crate) struct UpgradeRequest {
    /// The value of `Sec-WebSocket-Accept`.
    pub(crate) accept: [u8; 28],
    /// The subprotocols that the client can speak, as it lists them; of several fields, with commas between.
    pub(crate) protocols: Vec<u8>,
    /// How messages can be compressed, where the client offers that.
    pub(crate) deflate: Option<Agreement>,
}

/// Why a WebSocket handshake is refused.
#[derive(Debug, PartialEq)]
pub(crate) struct UpgradeRefusal {
    pub(crate) status: Status,
    pub(crate) reason: &'static str,
    pub(crate) fields: Fields,
}

/// The WebSocket handshake of a request; `None` for an ordinary request.
///
/// # Errors
/// The request asks for a WebSocket, but the handshake is invalid.
pub(crate) fn upgrade_request(request: &Request<'_>) -> Result<Option<UpgradeRequest>, UpgradeRefusal> {
    let Some(upgrade) = request.field(Name::Upgrade) else { return Ok(None) };
    let asks = request.method() == Method::Get
        && request.head().0.may_upgrade()
        && has_token(upgrade, b"websocket")
        && request.fields().any(|(id, _, value)| id == Name::Connection && has_token(value, b"upgrade"));
    if !asks {
        return Ok(None);
    }
    let named = |wanted: &'static str| {
        request
            .fields()
            .filter(move |(_, name, _)| name.eq_ignore_ascii_case(wanted.as_bytes()))
            .map(|(.., value)| value)
    };
    if named("sec-websocket-version").collect::<Vec<_>>() != [b"13"] {
        let mut fields = Fields::new();
        fields.try_push(b"Sec-WebSocket-Version", b"13").expect("a valid field");
        let reason = "this version of WebSocket is not spoken here";
        return Err(UpgradeRefusal { status: Status::UPGRADE_REQUIRED, reason, fields });
    }
    let mut keys = named("sec-websocket-key");
    match (keys.next().filter(|key| is_key(key)), keys.next()) {
        (Some(key), None) => {
            let protocols = named("sec-websocket-protocol").collect::<Vec<_>>().join(&b", "[..]);
            let deflate = deflate::agree(named("sec-websocket-extensions"));
            Ok(Some(UpgradeRequest { accept: accept(key), protocols, deflate }))
        }
        _ => {
            let reason = "Sec-WebSocket-Key is not 16 bytes in base64";
            Err(UpgradeRefusal { status: Status::BAD_REQUEST, reason, fields: Fields::new() })
        }
    }
}

/// Whether a field of the answer belongs to the handshake, which is the server's affair.
pub(crate) fn is_of_handshake(name: &[u8]) -> bool {
    [&b"sec-websocket-accept"[..], b"sec-websocket-extensions"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

fn has_token(list: &[u8], wanted: &[u8]) -> bool {
    scan::tokens(list).any(|token| token.eq_ignore_ascii_case(wanted))
}

fn is_key(key: &[u8]) -> bool {
    key.len() == KEY_BYTES
        && key.ends_with(b"==")
        && key[..KEY_BYTES - 2].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte))
}

/// Section 4.2.2: base64 of the SHA-1 of the key and a constant. SHA-1 keeps no secret here; it shows that the server
/// has understood.
fn accept(key: &[u8]) -> [u8; 28] {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    let mut text = [0; 28];
    BASE64.encode_mut(hash.as_ref(), &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(&accept(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn keys() {
        assert!(is_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        for wrong in
            [&b""[..], b"dGhlIHNhbXBsZSBub25jZQ=", b"dGhlIHNhbXBsZSBub25jZQAA", b"dGhlIHNhb.BsZSBub25jZQ=="]
        {
            assert!(!is_key(wrong));
        }
    }

    #[test]
    fn tokens_of_a_list() {
        assert!(has_token(b"keep-alive, Upgrade", b"upgrade"));
        assert!(!has_token(b"no-upgrade", b"upgrade"));
    }
}
