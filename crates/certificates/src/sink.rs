//! Interfaces to the serving threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use failure::Failure;

/// Receiver of certificates and log messages. Called on the control thread, and on the thread that starts it.
pub trait CertificateSink: Send + Sync + 'static {
    /// Begins to serve a chain and its key, both in one PEM text, for `name`: a DNS name (including
    /// `*.example.com`) or an IP address.
    ///
    /// # Errors
    /// Reason why the certificate cannot be served.
    fn install(&self, name: &str, pem: &str) -> Result<(), Failure>;

    /// Stops serving a certificate for `name`.
    fn remove(&self, name: &str);

    /// Serves a certificate and its key, both in one PEM text, to clients that send `server_name` and offer
    /// the protocol `acme-tls/1` (RFC 8737).
    ///
    /// # Errors
    /// Reason why the certificate cannot be served.
    fn set_challenge(&self, server_name: &str, pem: &str) -> Result<(), Failure>;

    /// Reverts [`CertificateSink::set_challenge`].
    fn remove_challenge(&self, server_name: &str);

    /// Logs a normal event.
    fn info(&self, text: &str);

    /// Logs a failure that is retried.
    fn warn(&self, text: &str);

    /// Logs a problem that requires attention.
    fn error(&self, text: &str);
}

/// Responses to HTTP-01 challenges, by token (RFC 8555 section 8.3). Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct HttpChallenges(Arc<ChallengeTable>);

#[derive(Debug, Default)]
struct ChallengeTable {
    /// Number of responses. Usually zero, in which case no lock is taken.
    count: AtomicUsize,
    by_token: RwLock<HashMap<String, String>>,
}

impl HttpChallenges {
    /// Path prefix of challenge requests.
    pub const PATH: &str = "/.well-known/acme-challenge/";

    /// Returns the body of the response to a request for this path, if there is a challenge.
    pub fn response(&self, path: &[u8]) -> Option<String> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let token = std::str::from_utf8(path.strip_prefix(Self::PATH.as_bytes())?).ok()?;
        self.0.by_token.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    pub(crate) fn insert(&self, token: String, response: String) {
        self.change(|table| _ = table.insert(token, response));
    }

    pub(crate) fn remove(&self, token: &str) {
        self.change(|table| _ = table.remove(token));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<String, String>)) {
        let mut table = self.0.by_token.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut table);
        self.0.count.store(table.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_tokens_are_served_until_removed() {
        let challenges = HttpChallenges::default();
        let path = b"/.well-known/acme-challenge/abc";
        assert_eq!(challenges.response(path), None);
        challenges.insert("abc".into(), "abc.thumb".into());
        assert_eq!(challenges.response(path).as_deref(), Some("abc.thumb"));
        for other in [&b"/.well-known/acme-challenge/"[..], b"/abc", b"", b"/.well-known/acme-challenge/\xff"]
        {
            assert_eq!(challenges.response(other), None);
        }
        challenges.remove("abc");
        assert_eq!(challenges.response(path), None);
    }
}
