//! Templates of the configuration, with variables replaced by values of the request.

use config::{Template, TemplatePart, Variable};
use http::path::strip_prefix;
use net::{Peer, Request};

/// The values of a template's variables.
pub(crate) struct Values<'x> {
    pub(crate) request: Request<'x>,
    /// The part of the route's path before the final `*`, decoded.
    pub(crate) prefix: &'x [u8],
}

/// The text, with the values put in: paths and queries percent-encoded, because decoded they may hold any byte.
pub(crate) fn expand(template: &Template, values: &Values<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for part in &template.parts {
        match part {
            TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
            TemplatePart::Variable(variable) => put(&mut out, *variable, values),
        }
    }
    out
}

fn put(out: &mut Vec<u8>, variable: Variable, values: &Values<'_>) {
    match variable {
        // A refused path has no value.
        Variable::Path => out.extend_from_slice(&values.request.encoded_path().unwrap_or_default()),
        Variable::Rest => {
            let path = values.request.encoded_path().unwrap_or_default();
            out.extend_from_slice(strip_prefix(&path, values.prefix).unwrap_or_default());
        }
        Variable::Query => {
            if let Some(query) = values.request.encoded_query() {
                out.push(b'?');
                out.extend_from_slice(&query);
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
