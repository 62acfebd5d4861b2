//! A request's head, written down for a worker.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::{Name, encode};
use net::{Peer, Request};
use ring::wire::{self, Name as Part, TooLong};

use crate::upgrade::Wish;

/// Where an application is mounted, and what of the path it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'m> {
    /// What stands before `path`, without a slash at its end: `SCRIPT_NAME`. Empty at the root.
    pub prefix: &'m [u8],
    /// The rest of the path, decoded: `PATH_INFO`.
    pub path: &'m [u8],
    /// `http` or `https`.
    pub scheme: &'m str,
    /// The host and port for requests that name none.
    pub host: &'m [u8],
    /// Which of several targets of the application is meant; empty for the one that it names first.
    pub target: &'m [u8],
}

/// What an application is asked for, of a path as sent (`raw`) and as routes are matched against (`normal`, see
/// [`http::target::normal_path`]): the path below `prefix`, decoded. Applications get repeated slashes and encoded ones as
/// they came; but never dot segments, and never a way out of `prefix`.
#[must_use]
pub fn path_info<'p>(prefix: &[u8], raw: &'p [u8], normal: &'p [u8]) -> Cow<'p, [u8]> {
    let decoded = decode(raw);
    let has_dots = decoded.windows(2).any(|pair| pair == b"/.")
        && decoded.split(|&byte| byte == b'/').any(|segment| matches!(segment, b"." | b".."));
    let below = |path: &[u8]| match path.strip_prefix(prefix) {
        Some([]) => Some(prefix.len()),
        Some([b'/', ..]) => Some(prefix.len()),
        _ => None,
    };
    match below(&decoded) {
        Some(at) if !has_dots => match decoded {
            Cow::Borrowed(path) => Cow::Borrowed(&path[at..]),
            Cow::Owned(mut path) => Cow::Owned(path.split_off(at)),
        },
        _ => Cow::Borrowed(&normal[below(normal).unwrap_or(0)..]),
    }
}

/// Undoes percent encoding; what is not encoded well stands for itself.
fn decode(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'%') {
        return Cow::Borrowed(raw);
    }
    let digit = |at: usize| raw.get(at).and_then(|&byte| http::scan::hex(byte));
    let mut decoded = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        match (raw[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

/// From the names that `http` knows to those that `ring` knows.
pub(crate) struct Names([Option<Part>; 256]);

impl Names {
    pub(crate) fn new() -> Names {
        let mut table = [None; 256];
        for part in (0..=u8::MAX).filter_map(Part::of_id).filter(|part| part.is_header()) {
            let name = Name::of(part.text().as_bytes());
            if name != Name::Other {
                table[name as usize] = Some(part);
            }
        }
        Names(table)
    }

    fn put(&self, into: &mut Vec<u8>, id: Name, name: &[u8], value: &[u8]) -> Result<(), TooLong> {
        match self.0[id as usize] {
            Some(part) => wire::put(into, part, value),
            None => wire::put_header(into, name, value),
        }
    }
}

/// Writes a request's head. `length` is that of the body where it is known otherwise than by its field: then it was
/// chunked, and is no longer. `socket` is the client's wish for a WebSocket, `port` the one that the client connected to.
///
/// # Errors
/// A field longer than any head that the server reads.
pub(crate) fn encode(
    into: &mut Vec<u8>,
    request: &Request<'_>,
    mount: &Mount<'_>,
    length: Option<u64>,
    socket: Option<&Wish>,
    port: Option<u16>,
    names: &Names,
) -> Result<(), TooLong> {
    wire::put(into, Part::METHOD, request.method_name())?;
    wire::put(into, Part::TARGET, request.target())?;
    if !mount.prefix.is_empty() {
        wire::put(into, Part::SCRIPT_NAME, mount.prefix)?;
    }
    wire::put(into, Part::PATH, mount.path)?;
    if let Some(query) = request.query() {
        wire::put(into, Part::QUERY, query)?;
    }
    wire::put(into, Part::PROTOCOL, request.version().text().as_bytes())?;
    wire::put(into, Part::SCHEME, mount.scheme.as_bytes())?;
    put_peer(into, request.client().address)?;
    put_host(into, request.authority(), port, mount)?;
    if !mount.target.is_empty() {
        wire::put(into, Part::APP_TARGET, mount.target)?;
    }
    if let Some(wish) = socket {
        wire::put(into, Part::WEBSOCKET, &wish.protocols)?;
    }
    for (id, name, value) in request.fields() {
        match id {
            // As variables these two could not be told from others: `A_B` from `A-B`, and `HTTP_PROXY` from the
            // variable that programs take their proxy from.
            Name::Other if name.contains(&b'_') || name.eq_ignore_ascii_case(b"proxy") => {}
            Name::TransferEncoding | Name::ContentLength if length.is_some() => {}
            _ => names.put(into, id, name, value)?,
        }
    }
    if let Some(length) = length {
        let mut digits = Vec::with_capacity(20);
        encode::decimal(&mut digits, length);
        names.put(into, Name::ContentLength, b"content-length", &digits)?;
    }
    Ok(())
}

fn put_peer(into: &mut Vec<u8>, peer: Peer) -> Result<(), TooLong> {
    let Peer::Tcp(address) = peer else {
        return wire::put(into, Part::REMOTE_ADDR, b"127.0.0.1");
    };
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let mut text = Small::default();
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

/// Where `Host` names no port, `SERVER_PORT` is the one that the request came in on, whatever the scheme; where it does,
/// name and port stay a pair.
fn put_host(
    into: &mut Vec<u8>,
    authority: &[u8],
    port: Option<u16>,
    mount: &Mount<'_>,
) -> Result<(), TooLong> {
    let named = if authority.is_empty() { mount.host } else { authority };
    let (host, said) = http::target::split_port(named).unwrap_or((named, None));
    wire::put(into, Part::SERVER_NAME, host)?;
    let mut text = Small::default();
    let port = match (said, port) {
        (Some(said), _) => said,
        (None, Some(port)) => {
            text.number(port);
            &text.0
        }
        // A Unix socket has none.
        (None, None) if mount.scheme == "https" => b"443",
        (None, None) => b"80",
    };
    wire::put(into, Part::SERVER_PORT, port)
}

/// A short text.
struct Small(Vec<u8>);

impl Default for Small {
    fn default() -> Small {
        Small(Vec::with_capacity(40))
    }
}

impl Small {
    fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, number: u16) {
        encode::decimal(&mut self.0, number.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_get_the_path_as_it_came() {
        for (prefix, raw, normal, expected) in [
            ("", "/", "/", "/"),
            ("", "//a///b", "/a/b", "//a///b"),
            ("", "/a%2Fb%20c", "/a/b c", "/a/b c"),
            ("", "/a%252Fb", "/a%2Fb", "/a%2Fb"),
            ("", "/100%", "/100%", "/100%"),
            ("", "/a/../b", "/b", "/b"),
            ("", "/.well-known//x", "/.well-known/x", "/.well-known//x"),
            ("/api", "/api", "/api", ""),
            ("/api", "/api/", "/api/", "/"),
            ("/api", "/api//x", "/api/x", "//x"),
            ("/api", "/x/../api/y", "/api/y", "/y"),
            ("/api", "//api/y", "/api/y", "/y"),
            ("/api", "/api/%2e%2e/y", "/y", "/y"),
        ] {
            let found = path_info(prefix.as_bytes(), raw.as_bytes(), normal.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), expected, "{raw} below {prefix:?}");
        }
    }

    #[test]
    fn names_that_http_and_ring_both_know_are_the_same() {
        let names = Names::new();
        assert_eq!(names.0[Name::Host as usize], Part::of_header(b"host"));
        assert_eq!(names.0[Name::Other as usize], None);
    }
}
