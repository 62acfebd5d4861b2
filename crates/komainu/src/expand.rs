//! Texts of the configuration with the request's values in place of their variables.

use config::{Part, Template, Variable};
use net::{Peer, Request};

/// What a template's variables stand for.
pub(crate) struct Values<'x> {
    pub(crate) request: Request<'x>,
    /// The path, decoded and normal.
    pub(crate) path: &'x [u8],
    /// What the final `*` of the route's path stands for.
    pub(crate) rest: &'x [u8],
}

/// The text, with the values put in: paths percent-encoded again, because decoded they may hold any byte.
pub(crate) fn expand(template: &Template, values: &Values<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => put(&mut out, *variable, values),
        }
    }
    out
}

fn put(out: &mut Vec<u8>, variable: Variable, values: &Values<'_>) {
    match variable {
        Variable::Path => encode(out, values.path, keeps_slashes(values)),
        Variable::Rest => encode(out, values.rest, keeps_slashes(values)),
        Variable::Query => {
            if let Some(query) = values.request.query() {
                out.push(b'?');
                out.extend_from_slice(query);
            }
        }
        Variable::Host => out.extend(bare_host(values.request.authority()).to_ascii_lowercase()),
        Variable::Scheme => {
            let secure = values.request.client().secure;
            out.extend_from_slice(if secure { b"https" } else { b"http" });
        }
        Variable::Method => out.extend_from_slice(values.request.method_name()),
        Variable::RemoteAddr => match values.request.client().address {
            Peer::Unix => out.extend_from_slice(b"unix:"),
            peer => out.extend_from_slice(peer.to_string().as_bytes()),
        },
    }
}

fn bare_host(authority: &[u8]) -> &[u8] {
    http::target::split_port(authority).map_or(authority, |(host, _)| host)
}

/// Whether the path holds slashes that were sent encoded and stay so: a `%2F` in it is one of those then.
fn keeps_slashes(values: &Values<'_>) -> bool {
    values.request.path().windows(3).any(|bytes| bytes.eq_ignore_ascii_case(b"%2F"))
}

/// Percent-encodes what may not stand in a path (RFC 3986 section 3.3).
fn encode(out: &mut Vec<u8>, path: &[u8], keeps_slashes: bool) {
    for (at, &byte) in path.iter().enumerate() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+'
            | b',' | b';' | b'=' | b':' | b'@' => out.push(byte),
            b'%' if keeps_slashes && path[at..].starts_with(b"%2F") => out.push(byte),
            _ if byte.is_ascii_alphanumeric() => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}
