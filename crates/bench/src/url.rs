//! URLs of the requests.

use std::fmt;

use failure::Failure;

/// An absolute `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// Host name or address; IPv6 addresses without brackets.
    pub host: String,
    /// Port; the scheme's default if none was given.
    pub port: u16,
    /// Request target: path and query.
    pub target: String,
}

impl Url {
    /// Parses a URL; without a scheme it is `http`.
    ///
    /// # Errors
    /// Describes what is invalid.
    pub fn parse(text: &str) -> Result<Url, Failure> {
        let wrong = |what: &str| {
            Failure::new(format!("{text:?}: {what}; a URL looks like http://127.0.0.1:8080/path"))
        };
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong("only http and https can be loaded")),
            None => (false, text),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(wrong("a user and a password do not belong in it: use -H 'Authorization: …'"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']').ok_or_else(|| wrong("the bracket is not closed"))?;
                (host, port.strip_prefix(':').filter(|_| !port.is_empty()))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|&port| port > 0).ok_or_else(|| wrong("no such port"))?,
            None if tls => 443,
            None => 80,
        };
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong(
                "a number alone is no URL; if it belongs to an option, that option takes no number here",
            ));
        }
        if host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:%".contains(&b)) {
            return Err(wrong("the host's name is missing or has letters that DNS does not"));
        }
        let target = if target.starts_with('/') { target.to_string() } else { format!("/{target}") };
        if !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("spaces and letters beyond ASCII must be percent-encoded"));
        }
        Ok(Url { tls, host: host.to_string(), port, target })
    }

    /// Returns the value of the `Host` field.
    #[must_use]
    pub fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == default { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_printed() {
        for (text, host, port, target, shown) in [
            ("http://a.example/x?y=1#z", "a.example", 80, "/x?y=1", "http://a.example/x?y=1"),
            ("https://a.example", "a.example", 443, "/", "https://a.example/"),
            ("localhost:8080", "localhost", 8080, "/", "http://localhost:8080/"),
            ("http://[::1]:81?q", "::1", 81, "/?q", "http://[::1]:81/?q"),
            ("http://[::1]/", "::1", 80, "/", "http://[::1]/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port, url.target.as_str()), (host, port, target), "{text}");
            assert_eq!(url.to_string(), shown);
        }
    }

    #[test]
    fn unsupported_urls_are_rejected_with_a_reason() {
        for (text, reason) in [
            ("ftp://x/", "only http"),
            ("http://", "host"),
            ("http://x:0/", "port"),
            ("http://x:99999/", "port"),
            ("http://[::1/", "bracket"),
            ("http://u:p@x/", "Authorization"),
            ("http://x/a b", "percent"),
            ("http://bücher.example/", "DNS"),
        ] {
            assert!(Url::parse(text).unwrap_err().to_string().contains(reason), "{text}");
        }
    }
}
