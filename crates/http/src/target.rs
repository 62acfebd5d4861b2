//! Request targets (RFC 9112 section 3.2).

use crate::method::Method;
use crate::reject::Reject;
use crate::scan;
use crate::span::Span;

/// The form of a request target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://host/path?query`, as sent to proxies; every server accepts it.
    Absolute,
    /// `host:port`, with CONNECT only.
    Authority,
    /// `*`, with OPTIONS only.
    Asterisk,
}

/// A request target, split into its parts but not decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The form it was sent in.
    pub form: TargetForm,
    /// The whole target as sent.
    pub whole: Span,
    /// `host[:port]` of the absolute and authority forms, else empty.
    pub authority: Span,
    /// The path from the first `/` to the `?`; empty for a form without a path.
    pub path: Span,
    /// The query after the `?`; `None` if there is no `?`.
    pub query: Option<Span>,
}

impl Target {
    /// Parses the target at `span` of `buffer`. `span` holds target bytes only (see [`scan::target_len`]).
    ///
    /// # Errors
    /// 400 for a target that has none of the four forms, or a form that is not allowed with the method.
    pub fn parse(method: Method, buffer: &[u8], span: Span) -> Result<Target, Reject> {
        let bytes = span.of(buffer);
        let mut target = Target { whole: span, ..Target::default() };
        if method == Method::Connect {
            target.form = TargetForm::Authority;
            target.authority = span;
            return match split_port(bytes) {
                Some((host, Some(_))) if is_host(host) && !host.is_empty() => Ok(target),
                _ => Err(Reject::bad_request("CONNECT needs host:port")),
            };
        }
        match bytes {
            [b'/', ..] => target.split_path(buffer, span.start()),
            b"*" if method == Method::Options => target.form = TargetForm::Asterisk,
            b"*" => return Err(Reject::bad_request("target * needs OPTIONS")),
            _ => target.split_absolute(buffer)?,
        }
        Ok(target)
    }

    fn split_path(&mut self, buffer: &[u8], start: usize) {
        let rest = &buffer[start..self.whole.end()];
        let path_len = memchr::memchr(b'?', rest).unwrap_or(rest.len());
        self.path = Span::new(start, start + path_len);
        if path_len < rest.len() {
            self.query = Some(Span::new(start + path_len + 1, self.whole.end()));
        }
    }

    fn split_absolute(&mut self, buffer: &[u8]) -> Result<(), Reject> {
        let bytes = self.whole.of(buffer);
        let scheme_len = ["http://", "https://"]
            .iter()
            .find(|scheme| {
                bytes.get(..scheme.len()).is_some_and(|b| b.eq_ignore_ascii_case(scheme.as_bytes()))
            })
            .ok_or(Reject::bad_request("target has no known form"))?
            .len();
        let rest = &bytes[scheme_len..];
        let authority_len = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        let start = self.whole.start() + scheme_len;
        if authority_len == 0 || !is_authority(&rest[..authority_len]) {
            return Err(Reject::bad_request("invalid host in target"));
        }
        self.form = TargetForm::Absolute;
        self.authority = Span::new(start, start + authority_len);
        self.split_path(buffer, start + authority_len);
        Ok(())
    }

    /// The path as sent, `/` where an absolute-form target has none, `*` for the asterisk form.
    #[must_use]
    pub fn path<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        match self.form {
            TargetForm::Asterisk => b"*",
            _ if self.path.is_empty() => b"/",
            _ => self.path.of(buffer),
        }
    }
}

/// Whether `bytes` is a `host` or `host:port` (RFC 3986 section 3.2, without user information and empty labels), or empty.
#[must_use]
pub fn is_authority(bytes: &[u8]) -> bool {
    // The fast path for usual hosts; brackets and percent-encoding are handled below.
    let host_len = scan::host_len(bytes);
    match &bytes[host_len..] {
        [] => !has_empty_label(bytes),
        [b':', port @ ..] if host_len > 0 => {
            (port.is_empty() || is_port(port)) && !has_empty_label(&bytes[..host_len])
        }
        _ => split_port(bytes).is_some_and(|(host, _)| !host.is_empty() && is_host(host)),
    }
}

/// Whether two dots of a host follow each other, as in `a..example`: no name has an empty label but the last one (RFC 1035
/// section 3.1), and a wildcard would match it.
fn has_empty_label(host: &[u8]) -> bool {
    host.windows(2).any(|pair| pair == b"..")
}

/// Splits `host[:port]`. `None` if the colon, the brackets or the digits of the port are invalid.
#[must_use]
pub fn split_port(bytes: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let host_len = match bytes {
        [b'[', ..] => memchr::memchr(b']', bytes)? + 1,
        _ => memchr::memchr(b':', bytes).unwrap_or(bytes.len()),
    };
    let (host, rest) = bytes.split_at(host_len);
    match rest {
        [] => Some((host, None)),
        // An empty port is valid (RFC 3986 section 3.2.3) and means the default.
        [b':'] => Some((host, None)),
        [b':', port @ ..] if is_port(port) => Some((host, Some(port))),
        _ => None,
    }
}

fn is_port(digits: &[u8]) -> bool {
    scan::parse_decimal(digits).is_some_and(|port| port <= 65535)
}

fn is_host(host: &[u8]) -> bool {
    match host {
        [b'[', inner @ .., b']'] => {
            std::str::from_utf8(inner).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
        }
        _ => is_reg_name(host) && !has_empty_label(host),
    }
}

/// Whether `host` consists of host bytes and valid percent-encoded bytes.
fn is_reg_name(mut host: &[u8]) -> bool {
    loop {
        match &host[scan::host_len(host)..] {
            [] => return true,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                host = rest
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_validated() {
        for good in ["a", "a.b:80", "127.0.0.1", "[::1]", "[::1]:8080", "a:", "", "xn--n3h.net", "a%2Fb"] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "a b", "u@h", "a:b", "a:65536", "[::1", "[::g]", "[::1]x", "a:80:80", "::1", "a/b", "\u{e9}",
            ":80", "a%2", "%g0", "a..b", "..b", "a..", "a..b:80", "a%2d..b",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn target_form_must_match_the_method() {
        let form = |method, text: &str| {
            let span = Span::new(0, text.len());
            Target::parse(method, text.as_bytes(), span)
                .map(|target| target.form)
                .map_err(|reject| reject.reason)
        };
        assert_eq!(form(Method::Get, "/a?b"), Ok(TargetForm::Origin));
        assert_eq!(form(Method::Get, "HTTP://a?b"), Ok(TargetForm::Absolute));
        assert_eq!(form(Method::Options, "*"), Ok(TargetForm::Asterisk));
        assert_eq!(form(Method::Get, "*"), Err("target * needs OPTIONS"));
        assert_eq!(form(Method::Connect, "a:443"), Ok(TargetForm::Authority));
        assert_eq!(form(Method::Connect, "a"), Err("CONNECT needs host:port"));
        assert_eq!(form(Method::Connect, "/"), Err("CONNECT needs host:port"));
        assert_eq!(form(Method::Get, "a:443"), Err("target has no known form"));
        assert_eq!(form(Method::Get, "http://u@a/"), Err("invalid host in target"));
        assert_eq!(form(Method::Get, "http:///"), Err("invalid host in target"));
    }
}
