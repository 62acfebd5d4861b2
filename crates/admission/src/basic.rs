//! The credentials of Basic authentication (RFC 7617).

use data_encoding::BASE64;

/// The longest user name and password together, in bytes.
const BYTES_MAX: usize = 1024;

/// A user name and a password, as a client sends them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    bytes: Vec<u8>,
    /// Where the name ends.
    colon: usize,
}

impl Credentials {
    /// Those of a value of `Authorization`; `None` for another scheme, and for what is malformed: without a colon, longer than 1 KiB,
    /// or with control characters.
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

    /// The name.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        &self.bytes[..self.colon]
    }

    /// The password.
    #[must_use]
    pub fn password(&self) -> &[u8] {
        &self.bytes[self.colon + 1..]
    }

    /// Both, with the colon between them; a name has none.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Credentials {
    /// Without the password.
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
    fn credentials_are_read_and_malformed_ones_are_not() {
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
