//! Files of users and hashed passwords in the format of `htpasswd`: a line `NAME:HASH` for each user.

use std::collections::HashMap;

use argon2::password_hash::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordVerifier};
use failure::Failure;

/// Maximum bcrypt cost: about 2 s of CPU time per request on a current machine.
const BCRYPT_COST_MAX: u32 = 15;
const ARGON2_KIB_MAX: u32 = 256 * 1024;
const ARGON2_ROUNDS_MAX: u32 = 16;
const ARGON2_LANES_MAX: u32 = 16;
/// Maximum users of one file.
const USERS_MAX: usize = 100_000;
const LINE_BYTES_MAX: usize = 1024;

/// Users of a file with their hashed passwords.
#[derive(Default)]
pub struct PasswordFile {
    users: HashMap<Vec<u8>, String>,
    /// Hash against which the passwords of unknown users are verified, so that timing does not reveal them.
    dummy_hash: Option<String>,
}

/// A hash to verify a password against.
pub struct PasswordCheck {
    hash: String,
    is_known: bool,
}

impl PasswordFile {
    /// Parses a file.
    ///
    /// # Errors
    /// Describes the error, its line and the remedy.
    pub fn parse(bytes: &[u8]) -> Result<PasswordFile, Failure> {
        let mut file = PasswordFile::default();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let failed = |text: &str| Failure::new(format!("line {}: {text}", index + 1));
            if line.len() > LINE_BYTES_MAX {
                return Err(failed("it is longer than 1024 bytes"));
            }
            let colon = line.iter().position(|&byte| byte == b':').filter(|at| *at > 0);
            let colon = colon.ok_or_else(|| failed("this is not `NAME:HASH`"))?;
            let user = &line[..colon];
            let hash = &line[colon + 1..];
            let name = String::from_utf8_lossy(user);
            let hash = std::str::from_utf8(hash).map_err(|_| failed("the hash is not text"))?;
            check(hash).map_err(|text| failed(&format!("the password of {name:?} {text}")))?;
            if file.users.insert(user.to_vec(), hash.to_owned()).is_some() {
                return Err(failed(&format!("{name:?} is there twice")));
            }
            if file.users.len() > USERS_MAX {
                return Err(failed("there are more than 100000 users"));
            }
            file.dummy_hash.get_or_insert_with(|| hash.to_owned());
        }
        Ok(file)
    }

    /// Returns the number of users.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there are no users.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns the hash to verify a user's password against; for an unknown user one that never matches and
    /// takes as long. `None` if the file has no users.
    #[must_use]
    pub fn check(&self, user: &[u8]) -> Option<PasswordCheck> {
        let known = self.users.get(user);
        let hash = known.or(self.dummy_hash.as_ref())?.clone();
        Some(PasswordCheck { hash, is_known: known.is_some() })
    }
}

impl PasswordCheck {
    /// Verifies the password. Takes as long as the hash's parameters require, from ten milliseconds to
    /// seconds.
    #[must_use]
    pub fn verify(&self, password: &[u8]) -> bool {
        let is_it = if self.hash.starts_with("$argon2") {
            PasswordHash::new(&self.hash)
                .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
        } else {
            bcrypt::verify(password, &self.hash).unwrap_or(false)
        };
        is_it && self.is_known
    }

    /// Returns the bytes of memory that [`PasswordCheck::verify`] uses.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let params = PasswordHash::new(&self.hash).ok().and_then(|hash| Params::try_from(&hash).ok());
        // bcrypt uses 4 KiB.
        params.map_or(4096, |params| u64::from(params.m_cost()) * 1024)
    }
}

/// Checks that a hash is supported and strong enough.
fn check(hash: &str) -> Result<(), Failure> {
    const REMEDY: &str = "make it again with `htpasswd -B FILE NAME` (bcrypt)";
    let weak = |what: &str| Err(Failure::new(format!("is hashed with {what}, which is too weak: {REMEDY}")));
    match hash.split('$').nth(1) {
        Some("2a" | "2b" | "2y") => return check_bcrypt(hash),
        Some("argon2id" | "argon2i" | "argon2d") => return check_argon2(hash),
        Some("2x") => return weak("a faulty bcrypt (2x)"),
        Some("apr1" | "1") => return weak("MD5 (apr1)"),
        Some("5" | "6" | "y" | "7" | "gy") => {
            return Err(Failure::new(format!("is hashed with crypt(3), which is not supported: {REMEDY}")));
        }
        _ => {}
    }
    match hash {
        "" => Err(Failure::new(format!("is missing: {REMEDY}"))),
        _ if hash.starts_with("{SHA}") || hash.starts_with("{SSHA}") => weak("SHA-1"),
        _ if hash.starts_with("{PLAIN}") => weak("nothing"),
        _ => Err(Failure::new(format!("is not a hash of bcrypt or Argon2: {REMEDY}"))),
    }
}

fn check_bcrypt(hash: &str) -> Result<(), Failure> {
    let parts: bcrypt::HashParts =
        hash.parse().map_err(|error| format!("is not a valid hash of bcrypt: {error}"))?;
    match parts.get_cost() {
        4..=BCRYPT_COST_MAX => Ok(()),
        cost => Err(Failure::new(format!(
            "has the bcrypt cost {cost}: each request with a new password would take too long or too little; use 4 to {BCRYPT_COST_MAX} (`htpasswd -B -C 10`)"
        ))),
    }
}

fn check_argon2(hash: &str) -> Result<(), Failure> {
    let invalid = |error: argon2::password_hash::Error| format!("is not a valid hash of Argon2: {error}");
    let parsed = PasswordHash::new(hash).map_err(invalid)?;
    Algorithm::try_from(parsed.algorithm).map_err(invalid)?;
    if parsed.hash.is_none() || parsed.salt.is_none() {
        return Err("is not a whole hash of Argon2".into());
    }
    let params = Params::try_from(&parsed).map_err(invalid)?;
    let is_small = params.m_cost() <= ARGON2_KIB_MAX
        && params.t_cost() <= ARGON2_ROUNDS_MAX
        && params.p_cost() <= ARGON2_LANES_MAX;
    if is_small {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "takes more of Argon2 than a request may: use at most m={ARGON2_KIB_MAX}, t={ARGON2_ROUNDS_MAX}, p={ARGON2_LANES_MAX}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> String {
        bcrypt::hash("wonder", 4).unwrap().replace("$2b$", "$2y$")
    }

    fn bob() -> String {
        use argon2::password_hash::{PasswordHasher, Salt};
        let argon2 =
            Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, Params::new(64, 1, 1, None).unwrap());
        argon2.hash_password(b"builder", Salt::from_b64("c29tZXNhbHQ").unwrap()).unwrap().to_string()
    }

    #[test]
    fn passwords_are_verified_by_bcrypt_and_argon2() {
        let text = format!("# users\n\nalice:{}\r\nbob:{}\n", alice(), bob());
        let file = PasswordFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.len(), 2);
        let fits =
            |user: &str, password: &str| file.check(user.as_bytes()).unwrap().verify(password.as_bytes());
        assert!(fits("alice", "wonder") && fits("bob", "builder"));
        assert!(
            !fits("alice", "builder") && !fits("bob", "wonder") && !fits("alice", "") && !fits("bob", "")
        );
        assert_eq!(file.check(b"bob").unwrap().memory_bytes(), 64 << 10);
        // An unknown user is verified against a dummy hash, and never matches.
        assert!(!fits("carol", "wonder") && !fits("carol", "builder") && !fits("", "wonder"));
        assert!(PasswordFile::parse(b"").unwrap().check(b"alice").is_none());
    }

    #[test]
    fn known_hashes_of_htpasswd_and_argon2_are_verified() {
        // From the tests of Apache and of the reference implementation of Argon2.
        let bcrypt = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC";
        let argon2 = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        for (hash, password) in [(bcrypt, "myPassword"), (argon2, "password")] {
            let file = PasswordFile::parse(format!("a:{hash}").as_bytes()).unwrap();
            assert!(file.check(b"a").unwrap().verify(password.as_bytes()), "{hash}");
        }
    }

    #[test]
    fn weak_and_malformed_hashes_are_rejected_with_a_remedy() {
        for (line, says) in [
            (
                "alice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
                "line 1: the password of \"alice\" is hashed with SHA-1, which is too weak: make it again with `htpasswd -B FILE NAME` (bcrypt)",
            ),
            ("alice:$apr1$x$y", "MD5 (apr1)"),
            ("alice:$6$x$y", "crypt(3)"),
            ("alice:secret", "is not a hash of bcrypt or Argon2"),
            ("alice:", "is missing"),
            ("alice", "this is not `NAME:HASH`"),
            (":x", "this is not `NAME:HASH`"),
            ("$2y$04$x", "this is not `NAME:HASH`"),
            ("alice:$2y$10$short", "is not a valid hash of bcrypt"),
            ("alice:$argon2id$v=19$m=64,t=1,p=1", "is no"),
            (
                "alice:$argon2id$v=19$m=4194304,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
                "takes more of Argon2",
            ),
            ("\n\nalice:\u{e4}", "line 3"),
        ] {
            let error = PasswordFile::parse(line.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
        let costly = alice().replace("$2y$04$", "$2y$20$");
        assert!(
            PasswordFile::parse(format!("a:{costly}").as_bytes())
                .err()
                .unwrap()
                .to_string()
                .contains("cost 20")
        );
        let twice = format!("a:{0}\na:{0}", alice());
        assert!(
            PasswordFile::parse(twice.as_bytes()).err().unwrap().to_string().contains("\"a\" is there twice")
        );
        assert!(PasswordFile::parse(&[b'a'; 2000]).err().unwrap().to_string().contains("longer than"));
    }
}
