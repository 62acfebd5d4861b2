//! Servers that are asked whether a request may be served.

use proxy::options::Origin;
use settings::checker::InvalidValue;
use shapes::header;

/// The URL of an authentication server.
#[derive(Debug, Clone, PartialEq)]
pub struct AuthServer {
    /// The server.
    pub origin: Origin,
    /// The path that is asked for, with its query.
    pub path_and_query: String,
}

/// Part of the address of the sign-in page.
#[derive(Debug, Clone, PartialEq)]
pub enum SignInPart {
    /// Text as it is.
    Text(String),
    /// The URL that was asked for, percent-encoded as the value of a parameter.
    Url,
    /// The `Location` of the server's answer.
    Location,
}

/// `http://HOST[:PORT]/PATH`, `https://…` or `unix:SOCKET:/PATH`.
pub(crate) fn parse_auth_server(text: &str) -> Result<AuthServer, InvalidValue> {
    let url = text.strip_prefix("http://unix:").map(|rest| format!("unix:{rest}"));
    let url = url.as_deref().unwrap_or(text);
    if url.starts_with('/') {
        let remedy = format!(
            "write the server's URL: \"http://127.0.0.1:3000{url}\"; other routes of this server are not asked"
        );
        return Err(InvalidValue::new("a path without a server", remedy));
    }
    let split = match url.strip_prefix("unix:") {
        Some(rest) => rest.find(":/").map(|at| (at + "unix:".len(), 1)),
        None => url.find("://").and_then(|at| Some((at + 3 + url[at + 3..].find(['/', '?', '#'])?, 0))),
    };
    let (origin, target) = match split {
        Some((at, between)) => (&url[..at], &url[at + between..]),
        None => (url, "/"),
    };
    let origin = Origin::parse(origin)?;
    match target.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == '#') {
        Some((_, wrong)) => {
            Err(InvalidValue::new(format!("a URL must not contain {wrong:?}"), "percent-encode it"))
        }
        None if !target.starts_with('/') => {
            Err(InvalidValue::new("the path is missing", "write \"http://HOST:PORT/PATH\""))
        }
        None => Ok(AuthServer { origin, path_and_query: target.to_owned() }),
    }
}

/// Parses the name of a field with which the server describes a client.
pub(crate) fn parse_identity_field(text: &str) -> Result<String, InvalidValue> {
    let name = header::parse_rule_name(text)?;
    let ours = ["host", "expect", "content-type", "content-encoding", "set-cookie", "location"];
    let forwarded = ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip"];
    let ids = ["x-request-id", "traceparent", "tracestate", "via", "proxy-authorization"];
    let is_reserved = ours.iter().chain(&forwarded).chain(&ids).any(|other| *other == name);
    if is_reserved || http::is_internal(name.as_bytes()) {
        return Err(InvalidValue::new("this field does not say who a client is", "remove it"));
    }
    Ok(name)
}

/// Parses the address to which browsers are redirected to sign in.
pub(crate) fn sign_in(text: &str) -> Result<Vec<SignInPart>, InvalidValue> {
    let mut parts = Vec::new();
    let mut rest = text;
    if let Some((at, wrong)) = text.char_indices().find(|(_, c)| !c.is_ascii_graphic()) {
        let fault = InvalidValue::new(format!("a URL must not contain {wrong:?}"), "percent-encode it");
        return Err(fault.within(at..at + wrong.len_utf8()));
    }
    while let Some(at) = rest.find('$') {
        let (part, len) = match &rest[at..] {
            after if after.starts_with("$url") => (SignInPart::Url, "$url".len()),
            after if after.starts_with("$location") => (SignInPart::Location, "$location".len()),
            _ => {
                let at = text.len() - rest.len() + at;
                let fault =
                    InvalidValue::new("there is no such variable", "there are `$url` and `$location`");
                return Err(fault.within(at..text.len()));
            }
        };
        if at > 0 {
            parts.push(SignInPart::Text(rest[..at].to_owned()));
        }
        parts.push(part);
        rest = &rest[at + len..];
    }
    if !rest.is_empty() {
        parts.push(SignInPart::Text(rest.to_owned()));
    }
    let begins = text.starts_with('/') && !text.starts_with("//") || text.contains("://");
    if begins || text == "$location" {
        Ok(parts)
    } else {
        Err(InvalidValue::new(
            "neither a URL nor a path",
            "write \"/oauth2/start?rd=$url\", \"https://auth.example.com/?rd=$url\" or \"$location\"",
        ))
    }
}

#[cfg(test)]
mod tests {
    use proxy::origin::OriginScheme;

    use super::*;

    #[test]
    fn auth_server_urls_are_parsed() {
        let tcp = |host: &str, port, is_tls| Origin::Tcp {
            host: host.into(),
            port,
            scheme: if is_tls { OriginScheme::Https } else { OriginScheme::Http },
        };
        for (text, origin, target) in [
            ("http://127.0.0.1:9091/api/verify", tcp("127.0.0.1", 9091, false), "/api/verify"),
            ("https://auth.test/x?rd=https://a.test/", tcp("auth.test", 443, true), "/x?rd=https://a.test/"),
            ("http://auth.test", tcp("auth.test", 80, false), "/"),
            ("unix:/run/a.sock:/verify", Origin::Unix("/run/a.sock".into()), "/verify"),
            ("http://unix:/run/a.sock:/verify", Origin::Unix("/run/a.sock".into()), "/verify"),
            ("unix:/run/a.sock", Origin::Unix("/run/a.sock".into()), "/"),
        ] {
            let expected = AuthServer { origin, path_and_query: target.into() };
            assert_eq!(parse_auth_server(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "127.0.0.1:9091", "http://a.test?x", "http://a.test/a b", "http://a.test/#x", "ftp://a/"]
        {
            assert!(parse_auth_server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sign_in_locations_and_identity_fields_are_validated() {
        let text = |text: &str| SignInPart::Text(text.into());
        assert_eq!(sign_in("/oauth2/start?rd=$url"), Ok(vec![text("/oauth2/start?rd="), SignInPart::Url]));
        assert_eq!(sign_in("$location"), Ok(vec![SignInPart::Location]));
        for wrong in ["", "oauth2", "//evil.test/", "/a?$uri", "/a b", "$url"] {
            assert!(sign_in(wrong).is_err(), "{wrong}");
        }
        assert!(parse_identity_field("Remote-User").is_ok() && parse_identity_field("Authorization").is_ok());
        for wrong in ["Host", "Content-Length", "X-Accel-Redirect", "X-Forwarded-For", "a b", ""] {
            assert!(parse_identity_field(wrong).is_err(), "{wrong}");
        }
    }
}
