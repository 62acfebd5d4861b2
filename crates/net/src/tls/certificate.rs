//! Certificates and their private keys: read from PEM text and from folders, and described.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate with its chain and its private key, as the server presents it. Clones are the same certificate.
#[derive(Clone, Debug)]
pub struct ServerCertificate(Arc<CertificateData>);

#[derive(Debug)]
struct CertificateData {
    key: Arc<CertifiedKey>,
    info: CertificateInfo,
}

/// What a certificate says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The subject's distinguished name, as RFC 4514 writes it: `CN=alice, O=Example`.
    pub subject: String,
    /// The issuer's distinguished name.
    pub issuer: String,
    /// The serial number in hexadecimal digits.
    pub serial: String,
    /// The DNS names and IP addresses of its subjectAltName extension, in lower case.
    pub names: Vec<String>,
    /// Its subjectAltName extension as one text: `DNS:a.example, email:b@example`.
    pub alternatives: String,
    /// Valid from this second of the Unix clock on.
    pub not_before_unix_s: i64,
    /// Valid up to this second of the Unix clock.
    pub not_after_unix_s: i64,
    /// SHA-256 of its DER encoding, in hexadecimal digits.
    pub sha256: String,
}

impl CertificateInfo {
    /// Reads a certificate.
    ///
    /// # Errors
    /// Where it is not a valid encoding of one.
    pub fn of_der(der: &[u8]) -> Result<CertificateInfo, String> {
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| format!("certificate: {error}"))?;
        let mut info = CertificateInfo {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            serial: HEXLOWER.encode(parsed.raw_serial()),
            not_before_unix_s: parsed.validity().not_before.timestamp(),
            not_after_unix_s: parsed.validity().not_after.timestamp(),
            sha256: HEXLOWER.encode(aws_lc_rs_digest(der).as_ref()),
            ..CertificateInfo::default()
        };
        let names = parsed.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            let (kind, text) = match name {
                GeneralName::DNSName(name) => ("DNS", name.to_ascii_lowercase()),
                GeneralName::IPAddress(bytes) => ("IP", address(bytes).unwrap_or_default()),
                GeneralName::RFC822Name(name) => ("email", (*name).to_owned()),
                GeneralName::URI(name) => ("URI", (*name).to_owned()),
                _ => continue,
            };
            let comma = if info.alternatives.is_empty() { "" } else { ", " };
            info.alternatives.push_str(&format!("{comma}{kind}:{text}"));
            if matches!(kind, "DNS" | "IP") {
                info.names.push(text);
            }
        }
        Ok(info)
    }

    /// Whether it is for this host: a name in lower case, or an IP address.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        self.names.iter().any(|name| covers(name, host))
    }
}

/// Whether `pattern` (`example.com`, or `*.example.com` for one label more) is or covers `host`; both in lower case.
pub(super) fn covers(pattern: &str, host: &str) -> bool {
    if pattern == host {
        return true;
    }
    let below = pattern.strip_prefix("*.").and_then(|parent| host.strip_suffix(parent)?.strip_suffix('.'));
    below.is_some_and(|label| !label.is_empty() && !label.contains('.'))
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.ok().map(|address| address.to_string())
}

fn aws_lc_rs_digest(bytes: &[u8]) -> ::aws_lc_rs::digest::Digest {
    ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, bytes)
}

impl ServerCertificate {
    /// Reads a chain, the server's own certificate first, and its private key (PKCS #8, SEC1 or PKCS #1), both in PEM. They may
    /// stand in one text.
    ///
    /// # Errors
    /// What is wrong with them, in words; also where the key is another certificate's.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServerCertificate, String> {
        let chain = certificates(chain)?;
        let info = CertificateInfo::of_der(&chain[0])?;
        let key = CertifiedKey::from_der(chain, private_key(key)?, &aws_lc_rs::default_provider());
        let key = key.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                "the private key does not belong to the certificate".to_owned()
            }
            error => format!("private key: {error}"),
        })?;
        Ok(ServerCertificate(Arc::new(CertificateData { key: Arc::new(key), info })))
    }

    /// Reads the certificate of a TLS-ALPN-01 challenge and its key from one PEM text. It has a critical extension that only
    /// authorities know (RFC 8737 section 3), so that whether the key belongs to it is not verified.
    ///
    /// # Errors
    /// What cannot be read, in words.
    pub fn of_challenge(pem: &[u8]) -> Result<ServerCertificate, String> {
        let chain = certificates(pem)?;
        let info = CertificateInfo::of_der(&chain[0])?;
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(private_key(pem)?);
        let key = key.map_err(|error| format!("private key: {error}"))?;
        Ok(ServerCertificate(Arc::new(CertificateData {
            key: Arc::new(CertifiedKey::new(chain, key)),
            info,
        })))
    }

    /// Reads every pair of a folder: `NAME.crt`, `NAME.pem` or `NAME.cer` with `NAME.key`, or a file that holds both; and
    /// `fullchain.pem` with `privkey.pem`, as certbot names them. `files` are those of the folder with their contents.
    ///
    /// # Errors
    /// The first file that cannot be read or is not valid, by name; or that there is no pair.
    pub fn from_folder(
        folder: &Path,
        files: &BTreeMap<std::path::PathBuf, Vec<u8>>,
    ) -> Result<Vec<ServerCertificate>, String> {
        let mut found = Vec::new();
        for (path, chain) in files.iter().filter(|(path, _)| path.starts_with(folder)) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if !matches!(extension, Some("crt" | "pem" | "cer")) || path.ends_with("privkey.pem") {
                continue;
            }
            let key = match path.ends_with("fullchain.pem") {
                true => files.get(&path.with_file_name("privkey.pem")),
                false => files.get(&path.with_extension("key")),
            };
            if certificates(chain).is_err() || (key.is_none() && private_key(chain).is_err()) {
                // A chain or a root that stands beside: without a key it is not for us.
                continue;
            }
            let certificate = ServerCertificate::from_pem(chain, key.unwrap_or(chain));
            found.push(certificate.map_err(|error| format!("{}: {error}", path.display()))?);
        }
        match found.is_empty() {
            true => Err(format!(
                "{}: no certificate with its key: write NAME.crt and NAME.key, or one NAME.pem with both",
                folder.display()
            )),
            false => Ok(found),
        }
    }

    /// What it says of itself.
    #[must_use]
    pub fn info(&self) -> &CertificateInfo {
        &self.0.info
    }

    /// The chain in DER, the server's own certificate first.
    pub fn chain_der(&self) -> impl Iterator<Item = &[u8]> {
        self.0.key.cert.iter().map(|certificate| &**certificate)
    }

    /// Whether its key can sign for a client that verifies these signatures.
    pub(super) fn signs(&self, schemes: &[SignatureScheme]) -> bool {
        self.0.key.key.choose_scheme(schemes).is_some()
    }

    /// Whether the two certificates have keys of one kind, of which a client can be shown only one.
    pub(super) fn is_kind_of(&self, other: &ServerCertificate) -> bool {
        self.0.key.key.algorithm() == other.0.key.key.algorithm()
    }

    pub(super) fn certified_key(&self) -> Arc<CertifiedKey> {
        self.0.key.clone()
    }
}

/// The certificates of a PEM text; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no certificate in the PEM text".into()),
        found => found.map_err(|error| format!("certificate: {error}")),
    }
}

/// The private key of a PEM text.
pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let encrypted = |label: &[u8]| pem.windows(label.len()).any(|window| window == label);
    if encrypted(b"BEGIN ENCRYPTED PRIVATE KEY") || encrypted(b"Proc-Type: 4,ENCRYPTED") {
        return Err("the private key is encrypted: remove its passphrase with `openssl pkey`".into());
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => "there is no private key in the PEM text".to_owned(),
        error => format!("private key: {error}"),
    })
}
