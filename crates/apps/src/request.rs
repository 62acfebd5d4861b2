//! Encoding of request heads for workers.

use std::net::{IpAddr, SocketAddr};

use http::path::{encode_beyond_ascii, encoded_path};
use http::template::{TlsValues, TlsVariable};
use http::{BodySize, HeadRef, Name, TargetForm, Version, encode, forwarded};
use net::{Peer, Request, websocket};
use ring::wire::{self, FieldId as Part, TooLong};

use crate::upgrade::UpgradeRequest;

/// Mount point of an application, and the part of the path below it.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'m> {
    /// Part of the path before `path`, without a trailing slash: `SCRIPT_NAME`. Empty at the root.
    pub prefix: &'m [u8],
    /// Rest of the path, decoded ([`Request::normal_path`]): `PATH_INFO`.
    pub path: &'m [u8],
    /// Scheme: `http` or `https`.
    pub scheme: &'m str,
    /// Host and port for requests that name none.
    pub host: &'m [u8],
    /// Selected target of an application with several targets; empty for the first one.
    pub target: &'m [u8],
    /// Additional CGI variables, which no header field can set.
    pub variables: &'m [(&'m str, &'m [u8])],
}

/// The form in which a WebSocket handshake is passed to the application.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandshakeForm<'u> {
    /// No handshake, or one in the request's own fields.
    Fields,
    /// The server implements WebSocket for the application.
    ByServer(&'u UpgradeRequest),
    /// The application takes the connection over and expects a handshake of HTTP/1.1, but the request is an
    /// extended CONNECT of HTTP/2, which lacks these fields.
    Handshake,
}

/// Mapping from the names that `http` knows to those that `ring` knows.
pub(crate) struct HeaderIds([Option<Part>; 256]);

impl HeaderIds {
    pub(crate) fn new() -> HeaderIds {
        let mut table = [None; 256];
        for part in (0..=u8::MAX).filter_map(Part::of_id).filter(|part| part.is_header()) {
            let name = Name::of(part.text().as_bytes());
            if name != Name::Other {
                table[name as usize] = Some(part);
            }
        }
        HeaderIds(table)
    }

    fn put(&self, into: &mut Vec<u8>, id: Name, name: &[u8], value: &[u8]) -> Result<(), TooLong> {
        match self.0[id as usize] {
            Some(part) => wire::put(into, part, value),
            None => wire::put_header(into, name, value),
        }
    }
}

/// Encodes a request's head. `length` is the length of a body that was received completely but has no
/// `Content-Length`. `port` is the local port of the connection.
///
/// # Errors
/// A field is longer than any head that the server reads.
pub(crate) fn encode(
    into: &mut Vec<u8>,
    request: &Request<'_>,
    mount: &Mount<'_>,
    length: Option<u64>,
    socket: HandshakeForm<'_>,
    port: Option<u16>,
    names: &HeaderIds,
) -> Result<(), TooLong> {
    wire::put(into, Part::METHOD, request.method_name())?;
    put_target(into, request)?;
    if !mount.prefix.is_empty() {
        wire::put(into, Part::SCRIPT_NAME, mount.prefix)?;
    }
    wire::put(into, Part::PATH, mount.path)?;
    if let Some(query) = request.encoded_query() {
        wire::put(into, Part::QUERY, &query)?;
    }
    let is_handshake = matches!(socket, HandshakeForm::Handshake);
    let version = if is_handshake { Version::Http11 } else { request.version() };
    wire::put(into, Part::PROTOCOL, version.text().as_bytes())?;
    wire::put(into, Part::SCHEME, mount.scheme.as_bytes())?;
    put_peer(into, request.client().address)?;
    put_host(into, request.authority(), port, mount)?;
    put_variables(into, request, mount)?;
    if !mount.target.is_empty() {
        wire::put(into, Part::APP_TARGET, mount.target)?;
    }
    match socket {
        HandshakeForm::Fields => {}
        HandshakeForm::ByServer(upgrade_request) => {
            wire::put(into, Part::WEBSOCKET, &upgrade_request.protocols)?;
        }
        HandshakeForm::Handshake => {
            names.put(into, Name::SecWebsocketKey, b"sec-websocket-key", &websocket::new_key())?;
        }
    }
    let ids = request.ids();
    for (id, value) in ids.fields() {
        names.put(into, id, id.text().to_ascii_lowercase().as_bytes(), &value)?;
    }
    let HeadRef { head, bytes } = request.head();
    let vouched = request.client().trusted_dialect;
    for field in &head.fields {
        let id = field.id;
        let name = field.name.of(bytes);
        let value = field.value.of(bytes);
        match id {
            // Only a trusted proxy may name the client, because frameworks trust these fields.
            _ if forwarded::dialect_of(id, name).is_some_and(|dialect| vouched != Some(dialect))
                && !head.is_own(field) => {}
            // As CGI variables, these two could not be distinguished from others: `A_B` from `A-B`, and
            // `HTTP_PROXY` from the variable that configures a program's proxy.
            Name::Other if name.contains(&b'_') || name.eq_ignore_ascii_case(b"proxy") => {}
            // Clients must not name file locations: `Rack::Sendfile` would trust them.
            Name::Other if http::is_internal(name) => {}
            // The server writes its own key.
            Name::SecWebsocketKey if is_handshake => {}
            Name::TransferEncoding | Name::ContentLength if length.is_some() => {}
            Name::XRequestId | Name::Traceparent | Name::Tracestate if !ids.is_forwarded(id) => {}
            // The authority of a target in absolute form replaces `Host` (RFC 9112 section 3.2.2).
            Name::Host if !request.authority().is_empty() => {
                names.put(into, id, name, request.authority())?
            }
            _ => names.put(into, id, name, value)?,
        }
    }
    let is_unsized = request.body() == BodySize::Unknown && length.is_none();
    if is_unsized && request.field(Name::TransferEncoding).is_none() {
        // For workers this marks a body of unknown length, whatever the client's HTTP version.
        names.put(into, Name::TransferEncoding, b"transfer-encoding", b"chunked")?;
    }
    if let Some(length) = length {
        let mut digits = Vec::with_capacity(20);
        encode::write_decimal(&mut digits, length);
        names.put(into, Name::ContentLength, b"content-length", &digits)?;
    }
    Ok(())
}

/// Variables of the connection and of the client's certificate, named as usual with nginx and Apache.
const CLIENT_VARIABLES: [(&[u8], TlsVariable); 7] = [
    (b"SSL_PROTOCOL=", TlsVariable::Version),
    (b"SSL_CIPHER=", TlsVariable::Cipher),
    (b"SSL_CLIENT_VERIFY=", TlsVariable::ClientVerify),
    (b"SSL_CLIENT_S_DN=", TlsVariable::ClientSubject),
    (b"SSL_CLIENT_I_DN=", TlsVariable::ClientIssuer),
    (b"SSL_CLIENT_SERIAL=", TlsVariable::ClientSerial),
    (b"SSL_CLIENT_FINGERPRINT=", TlsVariable::ClientFingerprint),
];

/// Writes `HTTPS`, the variables of the mount, and those of the client's certificate if the site requests
/// one. Header fields cannot set them, because their variables begin with `HTTP_`.
fn put_variables(into: &mut Vec<u8>, request: &Request<'_>, mount: &Mount<'_>) -> Result<(), TooLong> {
    if mount.scheme == "https" {
        wire::put(into, Part::VARIABLE, b"HTTPS=on")?;
    }
    if let Some(user) = request.user() {
        wire::put(into, Part::VARIABLE, &[b"REMOTE_USER=", &user.name[..]].concat())?;
        wire::put(into, Part::VARIABLE, &[b"AUTH_TYPE=", user.scheme.as_bytes()].concat())?;
    }
    for (name, value) in mount.variables {
        wire::put(into, Part::VARIABLE, &[name.as_bytes(), b"=", value].concat())?;
    }
    let Some(session) = request.tls().filter(|session| session.policy != 0) else { return Ok(()) };
    let mut text = Vec::with_capacity(128);
    for (name, variable) in CLIENT_VARIABLES {
        text.clear();
        text.extend_from_slice(name);
        session.write(variable, &mut text);
        // Variables without a value are left out.
        if text.len() > name.len() {
            wire::put(into, Part::VARIABLE, &text)?;
        }
    }
    if let Some(client) = &session.client {
        text.clear();
        text.extend_from_slice(b"SSL_CLIENT_CERT=");
        client.write_pem(&mut text);
        wire::put(into, Part::VARIABLE, &text)?;
    }
    Ok(())
}

/// Writes path and query, percent-encoded, in origin-form. The path is equivalent to the decoded one, so that
/// applications see the same path whichever variable they use. If a route has rewritten the target, this is
/// the target that the client sent.
fn put_target(into: &mut Vec<u8>, request: &Request<'_>) -> Result<(), TooLong> {
    let HeadRef { head, bytes } = request.head();
    let parts = head.sent_parts(bytes);
    let whole = request.sent_target();
    let sent = parts.path(bytes);
    let path = encoded_path(sent, request.empty_segments());
    let path = path.expect("a path with a decoded form has an encoded one");
    if *path == *sent && whole.is_ascii() && parts.form != TargetForm::Absolute {
        return wire::put(into, Part::TARGET, whole);
    }
    let mut target = path.into_owned();
    if let Some(query) = parts.query {
        target.push(b'?');
        target.extend_from_slice(&encode_beyond_ascii(query.of(bytes)));
    }
    wire::put(into, Part::TARGET, &target)
}

fn put_peer(into: &mut Vec<u8>, peer: Peer) -> Result<(), TooLong> {
    let Peer::Tcp(address) = peer else {
        return wire::put(into, Part::REMOTE_ADDR, b"127.0.0.1");
    };
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let mut text = ShortText::default();
    match address.ip() {
        IpAddr::V4(v4) => {
            for (at, octet) in v4.octets().into_iter().enumerate() {
                if at > 0 {
                    text.push(b'.');
                }
                text.number(octet.into());
            }
        }
        IpAddr::V6(v6) => text.0.extend_from_slice(v6.to_string().as_bytes()),
    }
    wire::put(into, Part::REMOTE_ADDR, &text.0)?;
    text.0.clear();
    text.number(address.port());
    wire::put(into, Part::REMOTE_PORT, &text.0)
}

/// Writes `SERVER_NAME`, the host that the client named, and `SERVER_PORT`, the port on which the request
/// arrived regardless of `Host` (RFC 3875 section 4.1.15). Programs take 443 as a sign of TLS.
fn put_host(
    into: &mut Vec<u8>,
    authority: &[u8],
    port: Option<u16>,
    mount: &Mount<'_>,
) -> Result<(), TooLong> {
    let named = if authority.is_empty() { mount.host } else { authority };
    let host = http::target::split_port(named).map_or(named, |(host, _)| host);
    wire::put(into, Part::SERVER_NAME, host)?;
    let mut text = ShortText::default();
    let port = match port {
        Some(port) => {
            text.number(port);
            &text.0
        }
        // A Unix socket has no port.
        None if mount.scheme == "https" => &b"443"[..],
        None => b"80",
    };
    wire::put(into, Part::SERVER_PORT, port)
}

/// Short text under construction.
struct ShortText(Vec<u8>);

impl Default for ShortText {
    fn default() -> ShortText {
        ShortText(Vec::with_capacity(40))
    }
}

impl ShortText {
    fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, number: u16) {
        encode::write_decimal(&mut self.0, number.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_map_to_ring_field_ids() {
        let names = HeaderIds::new();
        assert_eq!(names.0[Name::Host as usize], Part::of_header(b"host"));
        assert_eq!(names.0[Name::Other as usize], None);
    }
}
