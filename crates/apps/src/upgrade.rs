//! Parsing of WebSocket handshakes (RFC 6455 section 4.2.1), and the response to them.

use http::{Fields, Method, Status, scan};
use net::{Request, websocket};

use crate::deflate::{self, DeflateParameters};

/// A valid WebSocket handshake.
#[derive(Debug)]
pub(crate) struct UpgradeRequest {
    /// Value of `Sec-WebSocket-Accept`; `None` over HTTP/2.
    pub(crate) accept: Option<[u8; 28]>,
    /// Subprotocols offered by the client, as listed; multiple fields are joined with commas.
    pub(crate) protocols: Vec<u8>,
    /// Negotiated compression, if the client offers it.
    pub(crate) deflate: Option<DeflateParameters>,
}

/// The reason why a WebSocket handshake is refused.
#[derive(Debug, PartialEq)]
pub(crate) struct UpgradeRefusal {
    pub(crate) status: Status,
    pub(crate) reason: &'static str,
    pub(crate) fields: Fields,
}

/// Returns the WebSocket handshake of a request; `None` for an ordinary request.
///
/// # Errors
/// The request asks for a WebSocket, but the handshake is invalid.
pub(crate) fn upgrade_request(request: &Request<'_>) -> Result<Option<UpgradeRequest>, UpgradeRefusal> {
    let head = request.head();
    let Some(upgrade) = head.upgrade(head.bytes) else { return Ok(None) };
    if request.method() != Method::Get || !has_token(upgrade, b"websocket") {
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
    let accept = match (keys.next().filter(|key| websocket::is_key(key)), keys.next()) {
        _ if !head.protocol.is_empty() => None,
        (Some(key), None) => Some(websocket::accept(key)),
        _ => {
            let reason = "Sec-WebSocket-Key is not 16 bytes in base64";
            return Err(UpgradeRefusal { status: Status::BAD_REQUEST, reason, fields: Fields::new() });
        }
    };
    let protocols = named("sec-websocket-protocol").collect::<Vec<_>>().join(&b", "[..]);
    let deflate = deflate::negotiate(named("sec-websocket-extensions"));
    Ok(Some(UpgradeRequest { accept, protocols, deflate }))
}

/// Whether a request is for a WebSocket but has no HTTP/1 handshake: an extended CONNECT (RFC 8441 section
/// 5).
pub(crate) fn lacks_handshake(request: &Request<'_>) -> bool {
    let head = request.head();
    !head.protocol.is_empty() && head.protocol.of(head.bytes).eq_ignore_ascii_case(b"websocket")
}

/// Whether a response field belongs to the handshake, which the server writes itself.
pub(crate) fn is_handshake_field(name: &[u8]) -> bool {
    [&b"sec-websocket-accept"[..], b"sec-websocket-extensions"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

fn has_token(list: &[u8], wanted: &[u8]) -> bool {
    scan::tokens(list).any(|token| token.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_found_in_a_list() {
        assert!(has_token(b"keep-alive, Upgrade", b"upgrade"));
        assert!(!has_token(b"no-upgrade", b"upgrade"));
    }
}
