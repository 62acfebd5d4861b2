//! Signed URLs: a path that anyone who has the URL may request until a given time.
//!
//! The signature is HMAC-SHA256 over the decoded path, a line feed and the time in seconds since 1970 as in
//! the URL; for a URL that is valid for one client only, followed by another line feed and the client's
//! address. It is encoded in base64url without padding.

use std::borrow::Cow;

use aws_lc_rs::hmac;
use data_encoding::BASE64URL_NOPAD;
use times::UnixSeconds;

/// Query parameter with the expiry time.
pub const EXPIRES: &str = "expires";
/// Query parameter with the signature.
pub const SIGNATURE: &str = "signature";
/// Maximum digits of a time.
const DIGITS_MAX: usize = 12;

/// Keys for signing URLs. The first one signs; all of them verify.
#[derive(Debug, Clone)]
pub struct UrlKeys(Vec<hmac::Key>);

/// Reason for refusing a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedRefusal {
    /// The signature is missing, or was made with none of the keys.
    Invalid,
    /// The signature has expired.
    Expired,
}

impl UrlKeys {
    /// Creates keys from these secrets, the first of which signs.
    #[must_use]
    pub fn new<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> UrlKeys {
        UrlKeys(
            secrets.into_iter().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref())).collect(),
        )
    }

    /// Returns the signature of a decoded path, valid until a time, for one client's address or for all
    /// clients; `None` without keys.
    #[must_use]
    pub fn sign(&self, path: &[u8], until: UnixSeconds, client: Option<&str>) -> Option<String> {
        let key = self.0.first()?;
        let tag = hmac::sign(key, &message(path, until.to_string().as_bytes(), client));
        Some(BASE64URL_NOPAD.encode(tag.as_ref()))
    }

    /// Verifies the signature in the query for a decoded path at a time. The comparison takes constant time.
    ///
    /// # Errors
    /// The reason for refusing the URL.
    pub fn verify(
        &self,
        path: &[u8],
        query: &[u8],
        client: Option<&str>,
        now: UnixSeconds,
    ) -> Result<(), SignedRefusal> {
        let until = sole_parameter(query, EXPIRES)?;
        let signature = sole_parameter(query, SIGNATURE)?;
        let until = &*until;
        let signature = &*signature;
        let is_time = !until.is_empty() && until.len() <= DIGITS_MAX && until.iter().all(u8::is_ascii_digit);
        let digits = std::str::from_utf8(until).ok().filter(|_| is_time);
        let end = digits.and_then(|text| text.parse().ok()).map(UnixSeconds).ok_or(SignedRefusal::Invalid)?;
        let tag = BASE64URL_NOPAD.decode(signature).map_err(|_| SignedRefusal::Invalid)?;
        let message = message(path, until, client);
        let is_signed =
            self.0.iter().fold(false, |found, key| hmac::verify(key, &message, &tag).is_ok() | found);
        if !is_signed {
            Err(SignedRefusal::Invalid)
        } else if end <= now {
            Err(SignedRefusal::Expired)
        } else {
            Ok(())
        }
    }
}

fn message(path: &[u8], until: &[u8], client: Option<&str>) -> Vec<u8> {
    let mut message = [path, b"\n", until].concat();
    if let Some(client) = client {
        message.push(b'\n');
        message.extend_from_slice(client.as_bytes());
    }
    message
}

/// Returns the value of a parameter that must occur exactly once, however its name is encoded.
fn sole_parameter<'q>(query: &'q [u8], name: &str) -> Result<Cow<'q, [u8]>, SignedRefusal> {
    let mut values = http::form::values(query, name.as_bytes());
    match (values.next(), values.next()) {
        (Some(Some(value)), None) => Ok(value),
        _ => Err(SignedRefusal::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_url_is_valid_only_unmodified_and_until_it_expires() {
        let keys = UrlKeys::new(["new-secret-of-16", "old-secret-of-16"]);
        let old = UrlKeys::new(["old-secret-of-16"]);
        for signer in [&keys, &old] {
            let signature = signer.sign(b"/a b", UnixSeconds(1000), None).unwrap();
            let query = format!("x=1&expires=1000&signature={signature}");
            let verify = |path: &[u8], query: &str, now_s| {
                keys.verify(path, query.as_bytes(), None, UnixSeconds(now_s))
            };
            assert_eq!(verify(b"/a b", &query, 999), Ok(()));
            assert_eq!(verify(b"/a b", &query, 1000), Err(SignedRefusal::Expired));
            let invalid = Err(SignedRefusal::Invalid);
            assert_eq!(verify(b"/a c", &query, 1), invalid);
            for wrong in [
                query.replace("1000", "1001"),
                query.replace("1000", "01000"),
                query.replace("1000", "+1000"),
                query.replace("expires", "Expires"),
                query.clone() + "=",
                query.clone() + "&expires=1000",
                query.clone() + "&%65xpires=1000",
                query.clone() + "&expires",
                format!("{query}&signature={signature}"),
                query.replace(&signature, ""),
                query.replace(&signature, &signature[..20]),
                String::new(),
                "expires=1000&signature".into(),
            ] {
                assert_eq!(verify(b"/a b", &wrong, 1), invalid, "{wrong}");
            }
            assert_eq!(keys.verify(b"/a b", query.as_bytes(), Some("192.0.2.1"), UnixSeconds(1)), invalid);
        }
        let signature = keys.sign(b"/x", UnixSeconds(1000), Some("192.0.2.1")).unwrap();
        let query = format!("expires=1000&signature={signature}");
        let verify = |client| keys.verify(b"/x", query.as_bytes(), client, UnixSeconds(1));
        assert_eq!(verify(Some("192.0.2.1")), Ok(()));
        assert_eq!(
            (verify(Some("192.0.2.2")), verify(None)),
            (Err(SignedRefusal::Invalid), Err(SignedRefusal::Invalid))
        );
        // Without keys no signature is valid.
        let none = UrlKeys::new::<&str>([]);
        assert_eq!(
            none.verify(b"/x", query.as_bytes(), Some("192.0.2.1"), UnixSeconds(1)),
            Err(SignedRefusal::Invalid)
        );
    }

    #[test]
    fn url_signature_equals_that_of_openssl() {
        // printf '/a b\n1000' | openssl dgst -sha256 -hmac new-secret-of-16 -binary | base64 | tr '+/' '-_' | tr -d '='
        let keys = UrlKeys::new(["new-secret-of-16"]);
        assert_eq!(
            keys.sign(b"/a b", UnixSeconds(1000), None).unwrap(),
            "zq4X80ujO4jqDBonxeqMYYE2nKxArsTrrCVsPgCJdwY"
        );
    }
}
