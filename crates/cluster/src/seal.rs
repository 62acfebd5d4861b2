//! Encryption of what is written to the store, under the key of `[cluster] key`.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use failure::Failure;

/// First byte of a value that is not encrypted.
const PLAIN: u8 = b'P';
/// First byte of a value that is encrypted with AES-256-GCM.
const SEALED: u8 = b'S';
/// Size of the secret in `[cluster] key`, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=1024;

/// The key, if there is one.
pub(crate) struct ValueSeal(Option<LessSafeKey>);

impl ValueSeal {
    /// Derives the key from the secret of the file.
    ///
    /// # Errors
    /// The secret is too short, or too long to be one.
    pub(crate) fn new(secret: Option<&[u8]>) -> Result<ValueSeal, Failure> {
        let Some(secret) = secret else { return Ok(ValueSeal(None)) };
        if !SECRET_BYTES.contains(&secret.len()) {
            let len = secret.len();
            return Err(Failure::new(format!("a secret has 32 to 1024 bytes, and this one has {len}")));
        }
        let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"komainu cluster values 1");
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).map_err(|_| "the key cannot be used")?;
        Ok(ValueSeal(Some(LessSafeKey::new(key))))
    }

    /// Encrypts a value. Its name is authenticated with it, so that the store cannot exchange values.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let Some(key) = &self.0 else { return Ok([&[PLAIN], plain].concat()) };
        let failed = |_| "it cannot be encrypted".to_owned();
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(failed)?;
        let mut sealed = plain.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(name.as_bytes()), &mut sealed).map_err(failed)?;
        Ok([&[SEALED], &nonce[..], &sealed].concat())
    }

    /// Decrypts a value.
    ///
    /// # Errors
    /// The value is damaged, or written with another key, under another name, or without a key.
    pub(crate) fn open(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        match (value.split_first(), &self.0) {
            (Some((&PLAIN, plain)), None) => Ok(plain.to_vec()),
            (Some((&PLAIN, _)), Some(_)) => {
                Err("it is not encrypted: a server of the set has no `key` in `[cluster]`".into())
            }
            (Some((&SEALED, _)), None) => {
                Err("it is encrypted: set `key` in `[cluster]`, as on the other servers".into())
            }
            (Some((&SEALED, rest)), Some(key)) => {
                let failed = || "it cannot be decrypted: `key` in `[cluster]` is another one".to_owned();
                let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(failed)?;
                let mut plain = sealed.to_vec();
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let opened = key.open_in_place(nonce, Aad::from(name.as_bytes()), &mut plain);
                let len = opened.map_err(|_| failed())?.len();
                plain.truncate(len);
                Ok(plain)
            }
            _ => Err("it is no value of this version".into()),
        }
    }
}

impl fmt::Debug for ValueSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ValueSeal(encrypted)" } else { "ValueSeal(plain)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_opened_only_with_their_key_and_name() {
        let (plain, one, two) = (
            ValueSeal::new(None).unwrap(),
            ValueSeal::new(Some(&[1; 32])).unwrap(),
            ValueSeal::new(Some(&[2; 32])).unwrap(),
        );
        let sealed = one.seal("a", b"text").unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"text"));
        assert_eq!(one.open("a", &sealed).unwrap(), b"text");
        assert!(one.open("b", &sealed).is_err() && two.open("a", &sealed).is_err());
        assert!(plain.open("a", &sealed).unwrap_err().contains("set `key`"));
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert!(one.open("a", &changed).is_err(), "byte {index}");
            assert!(one.open("a", &sealed[..index]).is_err(), "cut at {index}");
        }
        let open = plain.seal("a", b"text").unwrap();
        assert_eq!(plain.open("a", &open).unwrap(), b"text");
        assert!(one.open("a", &open).unwrap_err().contains("not encrypted"));
        assert!(ValueSeal::new(Some(&[0; 31])).is_err());
    }
}
