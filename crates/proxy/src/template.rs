//! Values with variables in them: `$client_ip`, `${host}:$client_port`.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::encode::Lines;
use http::path::{EmptySegments, encode_beyond_ascii, encoded_path};
use http::{Head, Name, Reject, scan};
use net::{Client, Peer, Request};

/// A value, taken apart once and filled in for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderTemplate {
    parts: Vec<ValuePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    Text(Vec<u8>),
    HeaderVariable(HeaderVariable),
}

/// What a `$name` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderVariable {
    ClientIp,
    ClientPort,
    Scheme,
    Host,
    Method,
    Path,
    Query,
    Uri,
    Upstream,
    /// A request field, by name.
    Field(Vec<u8>),
    /// A cookie, by name.
    Cookie(Vec<u8>),
}

/// One request, as header rules see it.
#[derive(Clone, Copy)]
pub struct TemplateContext<'x> {
    /// Its parsed head.
    pub head: &'x Head,
    /// The bytes that the head's spans refer to.
    pub bytes: &'x [u8],
    /// Who sent it to us.
    pub peer: Peer,
    /// Who asks.
    pub client: Client,
    /// What becomes of empty segments in its path.
    pub empty_segments: EmptySegments,
    /// `host:port` of the chosen upstream.
    pub upstream: &'x str,
}

impl<'x> TemplateContext<'x> {
    /// A request for an upstream.
    #[must_use]
    pub fn of(request: &Request<'x>, upstream: &'x str) -> TemplateContext<'x> {
        let (head, bytes) = request.head();
        let empty_segments = request.empty_segments();
        TemplateContext {
            head,
            bytes,
            peer: request.peer(),
            client: request.client(),
            empty_segments,
            upstream,
        }
    }

    /// The path that routes match, percent-encoded.
    ///
    /// # Errors
    /// 400 for a path that servers read in two ways.
    pub fn path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        encoded_path(self.head.target.path(self.bytes), self.empty_segments)
    }

    /// The query, percent-encoded where it needs to be.
    fn query(&self) -> Option<Cow<'x, [u8]>> {
        self.head.target.query.map(|query| encode_beyond_ascii(query.of(self.bytes)))
    }

    /// The sender's address; none over a Unix socket.
    #[must_use]
    pub fn sender(&self) -> Option<SocketAddr> {
        address_of(self.peer)
    }

    /// The client's address; none over a Unix socket.
    #[must_use]
    pub fn client_address(&self) -> Option<SocketAddr> {
        address_of(self.client.address)
    }

    /// `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.client.secure { "https" } else { "http" }
    }

    /// `host[:port]` that the request is for.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// The first value of the field of that name, any case.
    #[must_use]
    pub fn field(&self, name: &[u8]) -> Option<&'x [u8]> {
        let found = self.head.fields.iter().find(|f| f.name.of(self.bytes).eq_ignore_ascii_case(name))?;
        Some(found.value.of(self.bytes))
    }

    /// The first value of the cookie of that name.
    #[must_use]
    pub fn cookie(&self, name: &[u8]) -> Option<&'x [u8]> {
        let bytes = self.bytes;
        let cookies = self.head.fields.iter().filter(|field| field.id == Name::Cookie);
        cookies.flat_map(|field| field.value.of(bytes).split(|&byte| byte == b';')).find_map(|pair| {
            let pair = scan::trim(pair);
            pair.strip_prefix(name)?.strip_prefix(b"=")
        })
    }
}

impl HeaderTemplate {
    /// Reads a value in which `$name` or `${name}` stands for a variable and `$$` for a dollar sign. Variables:
    /// `client_ip` (or `remote_addr`), `client_port`, `scheme`, `host`, `method`, `path`, `query`, `uri`, `upstream`, `http_NAME` (a
    /// request field, `_` for `-`) and `cookie_NAME`.
    ///
    /// # Errors
    /// The name that is no variable, or what else is wrong.
    pub fn parse(text: &str) -> Result<HeaderTemplate, String> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                plain.push(b'$');
                rest = after;
                continue;
            }
            let (name, after) = split_name(rest).ok_or("`$` without the name of a variable")?;
            let variable = HeaderVariable::of(name).ok_or_else(|| format!("`${name}` is no variable"))?;
            if !plain.is_empty() {
                parts.push(ValuePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(ValuePart::HeaderVariable(variable));
            rest = after;
        }
        plain.extend_from_slice(rest.as_bytes());
        if scan::value(&plain) != plain.len() {
            return Err("a control character cannot stand in a field".into());
        }
        if !plain.is_empty() {
            parts.push(ValuePart::Text(plain));
        }
        Ok(HeaderTemplate { parts })
    }

    /// Writes the value as part of a field line.
    pub fn write(&self, lines: &mut Lines<'_>, ask: &TemplateContext<'_>) {
        for part in &self.parts {
            match part {
                ValuePart::Text(text) => lines.part(text),
                ValuePart::HeaderVariable(variable) => variable.write(lines, ask),
            }
        }
    }
}

fn address_of(peer: Peer) -> Option<SocketAddr> {
    match peer {
        Peer::Tcp(address) => Some(SocketAddr::new(address.ip().to_canonical(), address.port())),
        Peer::Unix => None,
    }
}

fn split_name(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}');
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

impl HeaderVariable {
    fn of(name: &str) -> Option<HeaderVariable> {
        Some(match name {
            "client_ip" | "remote_addr" => HeaderVariable::ClientIp,
            "client_port" => HeaderVariable::ClientPort,
            "scheme" => HeaderVariable::Scheme,
            "host" => HeaderVariable::Host,
            "method" => HeaderVariable::Method,
            "path" => HeaderVariable::Path,
            "query" => HeaderVariable::Query,
            "uri" => HeaderVariable::Uri,
            "upstream" => HeaderVariable::Upstream,
            _ => match name.split_once('_')? {
                ("http", field) if scan::is_token(field.as_bytes()) => {
                    HeaderVariable::Field(field.replace('_', "-").into_bytes())
                }
                ("cookie", cookie) if scan::is_token(cookie.as_bytes()) => {
                    HeaderVariable::Cookie(cookie.as_bytes().to_vec())
                }
                _ => return None,
            },
        })
    }

    fn write(&self, lines: &mut Lines<'_>, ask: &TemplateContext<'_>) {
        match self {
            HeaderVariable::ClientIp => match ask.client_address() {
                Some(address) => lines.part(address.ip().to_string().as_bytes()),
                None => lines.part(b"unix:"),
            },
            HeaderVariable::ClientPort => {
                lines.number(ask.client_address().map_or(0, |address| address.port()).into());
            }
            HeaderVariable::Scheme => lines.part(ask.scheme().as_bytes()),
            HeaderVariable::Host => lines.part(ask.authority()),
            HeaderVariable::Method => lines.part(ask.head.method_name.of(ask.bytes)),
            HeaderVariable::Path => lines.part(&ask.path().unwrap_or_default()),
            HeaderVariable::Query => lines.part(&ask.query().unwrap_or_default()),
            HeaderVariable::Uri => {
                lines.part(&ask.path().unwrap_or_default());
                if let Some(query) = ask.query() {
                    lines.part(b"?");
                    lines.part(&query);
                }
            }
            HeaderVariable::Upstream => lines.part(ask.upstream.as_bytes()),
            HeaderVariable::Field(name) => lines.part(ask.field(name).unwrap_or_default()),
            HeaderVariable::Cookie(name) => lines.part(ask.cookie(name).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::RequestHead;

    fn filled(template: &str) -> String {
        let bytes = b"GET /a?b=1 HTTP/1.1\r\nHost: x.test:8080\r\nX-Id: 7\r\nCookie: a=1; sid=abc\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(bytes, &http::Limits::default()).unwrap());
        let peer = Peer::Tcp("[::ffff:192.0.2.7]:5555".parse().unwrap());
        let ask = TemplateContext {
            head: &head,
            bytes,
            peer,
            client: Client::direct(peer, true),
            empty_segments: EmptySegments::Merge,
            upstream: "127.0.0.1:3000",
        };
        let mut out = Vec::new();
        HeaderTemplate::parse(template).unwrap().write(&mut Lines::new(&mut out), &ask);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn variables_are_filled_in() {
        for (template, want) in [
            ("plain", "plain"),
            ("$client_ip:$client_port", "192.0.2.7:5555"),
            ("$remote_addr", "192.0.2.7"),
            ("${scheme}s", "httpss"),
            ("$scheme://$host$uri", "https://x.test:8080/a?b=1"),
            ("$method $path $query", "GET /a b=1"),
            ("$http_x_id/$http_none/$cookie_sid/$cookie_x", "7//abc/"),
            ("a$$b$upstream", "a$b127.0.0.1:3000"),
        ] {
            assert_eq!(filled(template), want, "{template}");
        }
    }

    #[test]
    fn what_is_no_variable_is_refused() {
        for text in ["$", "$-", "${host", "$nothing", "$http_", "$http", "a\r\nb", "${cookie_a=b}"] {
            assert!(HeaderTemplate::parse(text).is_err(), "{text}");
        }
    }
}
