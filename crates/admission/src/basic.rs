//! Credentials of Basic authentication (RFC 7617).

use data_encoding::BASE64;

/// Maximum bytes of user name and password together.
const BYTES_MAX: usize = 1024;

/// User name and password, as sent by a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    bytes: Vec<u8>,
    /// Position of the colon after the name.
    colon: usize,
}

impl Credentials {
    /// Parses a value of `Authorization`; `None` for another scheme or malformed credentials: without a
    /// colon, longer than 1 KiB, or with control characters.
    #[must_use]
    pub fn parse(authorization: &[u8]) -> Option<Credentials> {
        let (scheme, rest) = authorization.split_at_checked(6)?;
        let encoded = rest.trim_ascii();
        if !scheme.eq_ignore_ascii_case(b"basic ") || encoded.len() > BYTES_MAX / 3 * 4 {
            return None;
        }
        let bytes = BASE64.decode(encoded).ok()?;
        if bytes.iter().any(u8::is_ascii_control) {
            return None;
        }
        let colon = bytes.iter().position(|&byte| byte == b':')?;
        Some(Credentials { bytes, colon })
    }

    /// Returns the user name.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        &self.bytes[..self.colon]
    }

    /// Returns the password.
    #[must_use]
    pub fn password(&self) -> &[u8] {
        &self.bytes[self.colon + 1..]
    }

    /// Returns the name and the password, separated by a colon; names contain none.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &String::from_utf8_lossy(self.user()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_credentials_are_parsed_and_malformed_ones_are_rejected() {
        let both = |text: &str| {
            let value = format!("Basic {}", BASE64.encode(text.as_bytes()));
            Credentials::parse(value.as_bytes())
                .map(|found| (found.user().to_vec(), found.password().to_vec()))
        };
        assert_eq!(both("a:b"), Some((b"a".to_vec(), b"b".to_vec())));
        assert_eq!(both("a:b:c"), Some((b"a".to_vec(), b"b:c".to_vec())));
        assert_eq!(both(":"), Some((Vec::new(), Vec::new())));
        assert_eq!(both("jörg:pässwort").unwrap().0, "jörg".as_bytes());
        for wrong in ["", "nocolon", "a:b\0", "a\n:b", &"x:".repeat(600)] {
            assert_eq!(both(wrong), None, "{wrong:?}");
        }
        for wrong in
            ["", "Basic", "Basic ", "Basic *", "Bearer YTpi", "Basic YTpi=", "BasicYTpi", "Basic YTpi YTpi"]
        {
            assert!(Credentials::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(Credentials::parse(b"bASIC   YTpi ").is_some());
        let shown = format!("{:?}", Credentials::parse(b"Basic YTpzZWNyZXQ=").unwrap());
        assert!(shown.contains('a') && !shown.contains("secret"), "{shown}");
    }
}
