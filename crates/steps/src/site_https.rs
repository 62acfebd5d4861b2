//! TLS and client certificates required by a site.

use certificates::HttpChallenges;
use http::template::{TlsValues, TlsVariable};
use net::{Peer, Request};
use shapes::pattern::ValuePattern;

/// Requirements of a site for the connections of its requests.
#[derive(Clone, Debug, Default)]
pub struct SiteHttps {
    /// Port to which requests without TLS are redirected.
    pub redirect_port: Option<u16>,
    /// Identifier of the client certificate policy; 0 if no certificate is required.
    pub policy: u64,
    /// Subjects of client certificates that are admitted; `None` for all.
    pub subject: Option<ValuePattern>,
    /// Identifier of `scope` of the site's `tls`; 0 without one.
    pub scope: u64,
}

/// Path prefix of HTTP-01 challenges, which are served without TLS (RFC 8555 section 8.3).
const ACME_PATH: &[u8] = HttpChallenges::PATH.as_bytes();

impl SiteHttps {
    /// Returns the HTTPS URL to which a request without TLS is redirected. `None` if the request is not
    /// redirected.
    pub fn location(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let port = self.redirect_port?;
        let is_plain = !request.client().is_secure && matches!(request.peer(), Peer::Tcp(_));
        let authority = request.authority();
        let path = request.encoded_path().ok()?;
        if !is_plain || authority.is_empty() || !path.starts_with(b"/") || path.starts_with(ACME_PATH) {
            return None;
        }
        let host = http::target::split_port(authority).map_or(authority, |(host, _)| host);
        let mut location = [b"https://", host].concat();
        if port != 443 {
            location.extend_from_slice(format!(":{port}").as_bytes());
        }
        location.extend_from_slice(&path);
        if let Some(query) = request.encoded_query() {
            location.push(b'?');
            location.extend_from_slice(&query);
        }
        Some(location)
    }

    /// Returns the reason to refuse a request whose client has named (SNI) a host of `named`, the site of that name.
    pub fn scope_reason(&self, named: Option<&SiteHttps>) -> Option<&'static str> {
        let is_same = self.scope == 0 || named.is_some_and(|named| named.scope == self.scope);
        (!is_same).then_some("this connection was made for another host: make one for this host")
    }

    /// Returns the reason to refuse a request; `None` if its connection was made under exactly the site's
    /// client certificate policy. A connection without TLS has policy 0, even if a trusted proxy reports TLS.
    pub fn misdirection_reason(&self, request: &Request<'_>, now_unix_s: u64) -> Option<&'static str> {
        let policy = request.tls().map_or(0, |session| session.policy);
        match request.tls() {
            Some(session) if policy != 0 && session.has_expired(now_unix_s) => {
                Some("the client's certificate has expired: make a new connection with a valid one")
            }
            _ if policy == self.policy => None,
            Some(_) => Some("this connection was made for another host: make one for this host"),
            None => Some("this host asks for client certificates: make a connection with TLS to this server"),
        }
    }

    /// Whether the client's certificate has another subject than those that are admitted, or there is none.
    pub fn refuses_subject(&self, request: &Request<'_>) -> bool {
        let Some(pattern) = &self.subject else { return false };
        let mut subject = Vec::new();
        if let Some(session) = request.tls() {
            session.write(TlsVariable::ClientSubject, &mut subject);
        }
        !pattern.matches_bytes(&subject)
    }
}
