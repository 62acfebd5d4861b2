//! PEM text (RFC 7468): extracts certificates and private keys, and identifies other contents.

use std::borrow::Cow;

use failure::Failure;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The UTF-8 byte-order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Message for a certificate file and a key file that are swapped.
const SWAPPED_FILES: &str = "there is a private key in it and no certificate, and the certificate is in the file of the key: \
                       exchange the two";

/// Removes UTF-8 byte-order marks, which Windows editors write; concatenated files have several.
#[must_use]
pub fn strip_byte_order_marks(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(mut at) = find(text, BYTE_ORDER_MARK) else { return Cow::Borrowed(text) };
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        plain.extend_from_slice(&rest[..at]);
        rest = &rest[at + BYTE_ORDER_MARK.len()..];
        match find(rest, BYTE_ORDER_MARK) {
            Some(next) => at = next,
            None => break,
        }
    }
    plain.extend_from_slice(rest);
    Cow::Owned(plain)
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

pub(super) fn has_label(text: &[u8], label: &[u8]) -> bool {
    find(text, label).is_some()
}

/// Whether a text contains the beginning of a certificate.
pub(super) fn begins_certificate(text: &[u8]) -> bool {
    has_label(text, b"-----BEGIN CERTIFICATE-----")
}

/// Returns the certificates of a PEM text; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = strip_byte_order_marks(pem);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| describe_syntax_error(&error))?;
    if let Some(index) = found.iter().position(|der| !is_single_value(der)) {
        return Err(Failure::new(format!(
            "certificate {} in it is cut off or damaged: copy the file again",
            index + 1
        )));
    }
    if found.is_empty() {
        Err(match other_contents(pem) {
            Some(text) => text.into(),
            None if private_key(pem).is_ok() => {
                "there is a private key in it and no certificate: `certificate` names the certificate, `key` its key"
                    .into()
            }
            None => "there is no certificate in the PEM text".into(),
        })
    } else {
        Ok(found)
    }
}

/// Returns the private key of a PEM text.
pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Failure> {
    if has_label(pem, b"BEGIN ENCRYPTED PRIVATE KEY") || has_label(pem, b"Proc-Type: 4,ENCRYPTED") {
        return Err(
            "the private key is encrypted: remove its passphrase with `openssl pkey -in FILE -out NEW`"
                .into(),
        );
    }
    let key = PrivateKeyDer::from_pem_slice(&strip_byte_order_marks(pem)).map_err(|error| match error {
        Error::NoItemsFound => match other_contents(pem) {
            Some(text) => text.into(),
            None if begins_certificate(pem) => {
                "there is a certificate in it and no private key: name the key's file with `key`".into()
            }
            None => "there is no private key in the PEM text".to_owned(),
        },
        error => describe_syntax_error(&error),
    })?;
    if is_single_value(key.secret_der()) {
        Ok(key)
    } else {
        Err("the private key in it is cut off or damaged: copy the file again".into())
    }
}

/// Returns a message if the files of the certificate and the key are swapped.
pub(super) fn swapped_files(chain: &[u8], key: &[u8]) -> Option<&'static str> {
    (certificates(chain).is_err() && private_key(chain).is_ok() && certificates(key).is_ok())
        .then_some(SWAPPED_FILES)
}

/// Describes a syntax error of a PEM text.
pub(super) fn describe_syntax_error(error: &Error) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        Error::MissingSectionEnd { end_marker } => format!(
            "it is cut off: the line `-----END {}-----` is missing; copy the file again",
            text(end_marker)
        ),
        Error::IllegalSectionStart { line } => format!("the line {:?} in it lacks dashes", text(line)),
        Error::Base64Decode(_) => {
            "what stands between its lines BEGIN and END is not base64: it is cut off or damaged; copy the file again"
                .into()
        }
        error => format!("PEM: {error}"),
    }
}

/// Whether the bytes are exactly one DER value.
fn is_single_value(der: &[u8]) -> bool {
    let (Some(0x30), Some(&first)) = (der.first(), der.get(1)) else { return false };
    let (len, start) = match first {
        0..=0x7f => (usize::from(first), 2),
        // Four length bytes suffice for 4 GiB.
        0x81..=0x84 => {
            let start = 2 + usize::from(first & 0x7f);
            let Some(digits) = der.get(2..start) else { return false };
            (digits.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), start)
        }
        _ => return false,
    };
    start.checked_add(len) == Some(der.len())
}

/// Describes a file without a certificate or key, with the remedy.
fn other_contents(bytes: &[u8]) -> Option<&'static str> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Some("it is empty");
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Some("this is UTF-16: `iconv -f utf-16 -t utf-8 FILE > NEW` makes plain text of it");
    }
    if has_label(bytes, b"BEGIN CERTIFICATE REQUEST") || has_label(bytes, b"BEGIN NEW CERTIFICATE REQUEST") {
        return Some("this is a certificate request: an authority makes a certificate of it");
    }
    if has_label(bytes, b"BEGIN TRUSTED CERTIFICATE") {
        return Some(
            "this is OpenSSL's form of a trusted certificate: `openssl x509 -in FILE -out NEW` makes a plain one",
        );
    }
    if has_label(bytes, b"BEGIN PKCS7") {
        return Some("this is PKCS #7: `openssl pkcs7 -print_certs -in FILE -out NEW` makes PEM of it");
    }
    if has_label(bytes, b"BEGIN PUBLIC KEY") {
        return Some("this is a public key, not a private one");
    }
    if has_label(bytes, b"BEGIN OPENSSH PRIVATE KEY") {
        return Some("this is a key for SSH, not for TLS");
    }
    // DER begins with a SEQUENCE and its length. The next element is the INTEGER 3 in a PFX (RFC 7292), a
    // SEQUENCE in a certificate, and the INTEGER 0 or 1 in a key (RFC 5208, RFC 5915, RFC 8017).
    let (0x30, length) = (*bytes.first()?, *bytes.get(1)?) else { return None };
    let skipped = if length & 0x80 == 0 { 2 } else { 2 + usize::from(length & 0x7f) };
    match bytes.get(skipped..)?.get(..3)? {
        [2, 1, 3] => Some(
            "this is PKCS #12: `openssl pkcs12 -in FILE -nodes -out NEW.pem` makes one PEM file of certificate and key",
        ),
        [2, 1, 0 | 1] => {
            Some("this is DER, not PEM: `openssl pkey -inform der -in FILE -out NEW.pem` converts a key")
        }
        [0x30, ..] => Some(
            "this is DER, not PEM: `openssl x509 -inform der -in FILE -out NEW.pem` converts a certificate",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_marks_are_removed_anywhere() {
        assert_eq!(&*strip_byte_order_marks(b"plain"), b"plain");
        assert_eq!(&*strip_byte_order_marks(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\xef\xbb\xbf"), b"one\ntwo");
        assert_eq!(&*strip_byte_order_marks(b"\xef\xbb"), b"\xef\xbb");
    }

    #[test]
    fn der_value_length_must_match_its_bytes() {
        assert!(
            is_single_value(&[0x30, 0])
                && is_single_value(&[0x30, 0x81, 1, 5])
                && is_single_value(&[0x30, 1, 5])
        );
        for cut in
            [&[][..], &[0x30], &[0x30, 1], &[0x30, 1, 5, 6], &[0x30, 0x82, 1], &[0x31, 0], &[0x30, 0x80]]
        {
            assert!(!is_single_value(cut), "{cut:?}");
        }
        assert!(!is_single_value(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]));
    }
}
