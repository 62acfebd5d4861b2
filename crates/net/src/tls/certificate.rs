//! Certificates and private keys: reading from PEM files and directories, and their attributes.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use data_encoding::HEXLOWER;
use failure::Failure;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureScheme};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::oid_registry::{OID_PKIX_ACCESS_DESCRIPTOR_CA_ISSUERS, OID_PKIX_ACCESS_DESCRIPTOR_OCSP};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use super::pem::{begins_certificate, certificates, private_key, swapped_files};

/// A certificate with its chain and private key. Clones share the same data.
#[derive(Clone, Debug)]
pub struct ServerCertificate(Arc<CertificateData>);

#[derive(Debug)]
struct CertificateData {
    key: Arc<CertifiedKey>,
    /// `key` with an OCSP response. Only present for certificates that name a responder.
    stapled: Option<RwLock<Option<Arc<CertifiedKey>>>>,
    info: CertificateInfo,
}

impl CertificateData {
    fn new(certified: CertifiedKey, info: CertificateInfo) -> CertificateData {
        let stapled = info.ocsp_responder.is_some().then(RwLock::default);
        CertificateData { key: Arc::new(certified), stapled, info }
    }
}

/// Attributes of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Distinguished name of the subject in RFC 4514 format: `CN=alice,O=Example`.
    pub subject: String,
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// DNS names and IP addresses of the subjectAltName extension, in lower case.
    pub names: Vec<String>,
    /// Names of the subjectAltName extension with their types: `DNS:a.example`, `email:b@example`.
    pub alternatives: Vec<String>,
    /// Start of the validity period, in seconds since 1970.
    pub not_before_unix_s: i64,
    /// End of the validity period, in seconds since 1970.
    pub not_after_unix_s: i64,
    /// SHA-256 of the DER encoding, in hexadecimal.
    pub sha256: String,
    /// URL of the OCSP responder that the certificate names.
    pub ocsp_responder: Option<String>,
    /// Whether clients require an OCSP response in the handshake (must-staple, RFC 7633).
    pub is_staple_required: bool,
}

impl CertificateInfo {
    /// Parses a certificate.
    ///
    /// # Errors
    /// Fails if `der` is not the encoding of a certificate.
    pub fn of_der(der: &[u8]) -> Result<CertificateInfo, Failure> {
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| format!("certificate: {error}"))?;
        let mut info = CertificateInfo {
            subject: distinguished_name(parsed.subject()),
            issuer: distinguished_name(parsed.issuer()),
            serial: HEXLOWER.encode(parsed.raw_serial()),
            not_before_unix_s: parsed.validity().not_before.timestamp(),
            not_after_unix_s: parsed.validity().not_after.timestamp(),
            sha256: HEXLOWER.encode(sha256_digest(der).as_ref()),
            ocsp_responder: ocsp_responder(&parsed),
            is_staple_required: is_staple_required(&parsed),
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
            info.alternatives.push(format!("{kind}:{text}"));
            if matches!(kind, "DNS" | "IP") {
                info.names.push(text);
            }
        }
        Ok(info)
    }

    /// Whether the certificate covers this host: a name in lower case, or an IP address.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        self.names.iter().any(|name| covers(name, host))
    }
}

/// Returns a description if an intermediate certificate is missing from a chain.
fn chain_fault(chain: &[CertificateDer<'_>]) -> Option<String> {
    let parsed = |der: &CertificateDer<'_>| {
        X509Certificate::from_der(der).ok().map(|(_, one)| {
            let subject = one.subject().as_raw().to_vec();
            let issuer = one.issuer().as_raw().to_vec();
            let shown = distinguished_name(one.issuer());
            (subject, issuer, shown, names_issuers_certificate(&one))
        })
    };
    let all: Vec<_> = chain.iter().filter_map(parsed).collect();
    let (subject, issuer, shown, names_it) = all.first()?;
    let remedy = "use the file with the whole chain (certbot: fullchain.pem)";
    let has_issuer = all.iter().skip(1).any(|other| other.0 == *issuer);
    if subject == issuer || has_issuer {
        return None;
    }
    if all.len() > 1 {
        return Some(format!(
            "is issued by {shown}, and the other certificates in the file are not its: {remedy}"
        ));
    }
    // An authority known only to its clients may be a root, which needs no intermediate certificate.
    (*names_it && !is_system_root(issuer)).then(|| {
        format!("is issued by {shown}, whose certificate the file lacks: clients that do not trust it by itself refuse it; {remedy}")
    })
}

/// Whether the certificate has the URL of its issuer's certificate, as those of public authorities do.
fn names_issuers_certificate(certificate: &X509Certificate<'_>) -> bool {
    certificate.extensions().iter().any(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityInfoAccess(access) => {
            access.accessdescs.iter().any(|one| one.access_method == OID_PKIX_ACCESS_DESCRIPTOR_CA_ISSUERS)
        }
        _ => false,
    })
}

/// Whether the system trusts a root with this name (DER). Roots are read only once, because a directory may
/// contain thousands of chains.
fn is_system_root(name: &[u8]) -> bool {
    static NAMES: OnceLock<HashSet<Vec<u8>>> = OnceLock::new();
    let subject = |root: &CertificateDer<'_>| {
        X509Certificate::from_der(root).ok().map(|(_, root)| root.subject().as_raw().to_vec())
    };
    let names = NAMES
        .get_or_init(|| rustls_native_certs::load_native_certs().certs.iter().filter_map(subject).collect());
    names.contains(name)
}

/// Returns the first HTTP URL of an OCSP responder in authorityInfoAccess (RFC 5280 section 4.2.2.1).
fn ocsp_responder(certificate: &X509Certificate<'_>) -> Option<String> {
    let access = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityInfoAccess(access) => Some(access),
        _ => None,
    });
    let described = access.iter().flat_map(|access| &access.accessdescs);
    let urls = described.filter(|one| one.access_method == OID_PKIX_ACCESS_DESCRIPTOR_OCSP);
    let mut urls = urls.filter_map(|one| match one.access_location {
        GeneralName::URI(url) if url.starts_with("http://") || url.starts_with("https://") => {
            Some(url.to_owned())
        }
        _ => None,
    });
    urls.next()
}

/// Whether the TLS feature extension (RFC 7633) contains `status_request`, which is 5.
fn is_staple_required(certificate: &X509Certificate<'_>) -> bool {
    let mut extensions = certificate.extensions().iter();
    let feature = extensions.find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.24");
    feature.is_some_and(|extension| extension.value.windows(3).any(|window| window == [2, 1, 5]))
}

/// Formats a distinguished name (RFC 4514), last part first. Escaped values cannot imitate other parts.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let relative: Vec<_> = name.iter_rdn().collect();
    let mut text = String::new();
    for one in relative.into_iter().rev() {
        if !text.is_empty() {
            text.push(',');
        }
        // Multiple attributes of one part are in reverse order too, as in OpenSSL.
        let attributes: Vec<_> = one.iter().collect();
        for (index, attribute) in attributes.into_iter().rev().enumerate() {
            if index > 0 {
                text.push('+');
            }
            let kind = attribute.attr_type();
            match (oid2abbrev(kind, oid_registry()), attribute.as_str()) {
                (Ok(kind), Ok(value)) => {
                    text.push_str(kind);
                    text.push('=');
                    escape(value, &mut text);
                }
                // Section 2.4: attributes without a short name or text value are encoded in hexadecimal.
                _ => text.push_str(&format!("{kind}=#{}", HEXLOWER.encode(attribute.attr_value().data))),
            }
        }
    }
    text
}

/// Escapes an attribute value (RFC 4514 section 2.4).
fn escape(value: &str, into: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (index, char) in value.chars().enumerate() {
        let is_outside = (index == 0 && matches!(char, ' ' | '#')) || (index == last && char == ' ');
        if is_outside || matches!(char, ',' | '+' | '"' | '\\' | '<' | '>' | ';') {
            into.push('\\');
        }
        into.push(char);
    }
}

/// Whether `pattern` (`example.com`, or `*.example.com` for one more label) matches; in lower case.
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

fn sha256_digest(bytes: &[u8]) -> ::aws_lc_rs::digest::Digest {
    ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, bytes)
}

impl ServerCertificate {
    /// Reads a certificate chain, the server's own certificate first, and its private key (PKCS #8, SEC1 or
    /// PKCS #1), both in PEM. Both may be in one text.
    ///
    /// # Errors
    /// Describes the invalid part; fails also if the key belongs to another certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServerCertificate, CertificateFault> {
        let chain = certificates(chain).map_err(|error| {
            CertificateFault::of_chain(swapped_files(chain, key).map_or(error.to_string(), str::to_owned))
        })?;
        let info = CertificateInfo::of_der(&chain[0]).map_err(|error| {
            CertificateFault::of_chain(format!(
                "the first certificate in it is damaged ({error}): copy the file again"
            ))
        })?;
        let key = private_key(key).map_err(|error| CertificateFault::of_key(error.to_string()))?;
        let provider = aws_lc_rs::default_provider();
        let key = provider.key_provider.load_private_key(key).map_err(|_| {
            CertificateFault::of_key(
                "a private key of a kind that the server does not have: make one of ECDSA (P-256, P-384, P-521), RSA \
                 (2048 to 8192 bits) or Ed25519",
            )
        })?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(mismatched_key(&certified)),
            Err(error) => return Err(CertificateFault::of_chain(unusable(&error))),
        }
        Ok(ServerCertificate(Arc::new(CertificateData::new(certified, info))))
    }

    /// Reads the certificate of a TLS-ALPN-01 challenge and its key from one PEM text. Because of its
    /// critical extension (RFC 8737 section 3), which the parser does not know, the key is not compared with
    /// the certificate.
    ///
    /// # Errors
    /// Returns a message if the certificate or key cannot be read.
    pub fn of_challenge(pem: &[u8]) -> Result<ServerCertificate, Failure> {
        let chain = certificates(pem)?;
        let info = CertificateInfo::of_der(&chain[0])?;
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(private_key(pem)?);
        let key = key.map_err(|error| format!("private key: {error}"))?;
        Ok(ServerCertificate(Arc::new(CertificateData::new(CertifiedKey::new(chain, key), info))))
    }

    /// Reads all certificates of a directory: `NAME.crt`, `NAME.pem` or `NAME.cer` with `NAME.key`, or one
    /// file with both; and `fullchain.pem` with `privkey.pem`, as named by certbot. `files` is its content.
    ///
    /// # Errors
    /// Describes the first invalid file; fails also if there is no certificate with a key.
    pub fn from_folder(
        folder: &Path,
        files: &BTreeMap<std::path::PathBuf, Vec<u8>>,
    ) -> Result<Vec<ServerCertificate>, Failure> {
        let mut found = Vec::new();
        for (path, chain) in files.iter().filter(|(path, _)| path.starts_with(folder)) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if !matches!(extension, Some("crt" | "pem" | "cer")) || path.ends_with("privkey.pem") {
                continue;
            }
            let key = if path.ends_with("fullchain.pem") {
                files.get(&path.with_file_name("privkey.pem"))
            } else {
                files.get(&path.with_extension("key"))
            };
            let is_damaged = certificates(chain).is_err();
            if (is_damaged && !(key.is_some() && begins_certificate(chain)))
                || (key.is_none() && private_key(chain).is_err())
            {
                // A chain or root without a key is not a server certificate.
                continue;
            }
            let certificate = ServerCertificate::from_pem(chain, key.unwrap_or(chain));
            let key_path = match (key.is_some(), path.ends_with("fullchain.pem")) {
                (true, true) => path.with_file_name("privkey.pem"),
                (true, false) => path.with_extension("key"),
                (false, _) => path.clone(),
            };
            found.push(certificate.map_err(|fault| fault.in_files(path, &key_path))?);
        }
        if found.is_empty() {
            Err(Failure::new(format!(
                "{}: no certificate with its key: write NAME.crt and NAME.key, or one NAME.pem with both",
                folder.display()
            )))
        } else {
            Ok(found)
        }
    }

    /// Returns the attributes of the certificate.
    #[must_use]
    pub fn info(&self) -> &CertificateInfo {
        &self.0.info
    }

    /// Returns a description if an intermediate certificate is missing, phrased to follow "the certificate".
    #[must_use]
    pub fn chain_fault(&self) -> Option<String> {
        chain_fault(&self.0.key.cert)
    }

    /// Returns the chain in DER, the server's own certificate first.
    pub fn chain_der(&self) -> impl Iterator<Item = &[u8]> {
        self.0.key.cert.iter().map(|certificate| &**certificate)
    }

    /// Whether the key supports one of these signature schemes.
    pub(super) fn supports_any_of(&self, schemes: &[SignatureScheme]) -> bool {
        self.0.key.key.choose_scheme(schemes).is_some()
    }

    /// Whether both keys use the same algorithm, so that a client can get only one of the certificates.
    pub(super) fn has_same_algorithm(&self, other: &ServerCertificate) -> bool {
        self.0.key.key.algorithm() == other.0.key.key.algorithm()
    }

    /// Sets or removes the OCSP response (DER) of the certificate, if that names a responder.
    pub fn staple(&self, response: Option<Vec<u8>>) {
        let Some(stapled) = &self.0.stapled else { return };
        let key = response.map(|response| {
            let mut key = CertifiedKey::clone(&self.0.key);
            key.ocsp = Some(response);
            Arc::new(key)
        });
        *stapled.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    pub(super) fn certified_key(&self) -> Arc<CertifiedKey> {
        let stapled = self.0.stapled.as_ref();
        let stapled = stapled.and_then(|key| key.read().unwrap_or_else(PoisonError::into_inner).clone());
        stapled.unwrap_or_else(|| self.0.key.clone())
    }
}

/// Error in a certificate or its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFault {
    /// Description of the error and the remedy.
    pub reason: String,
    /// Whether the key is invalid, and not the certificate.
    pub is_key: bool,
}

impl CertificateFault {
    fn of_chain(reason: impl Into<String>) -> CertificateFault {
        CertificateFault { reason: reason.into(), is_key: false }
    }

    fn of_key(reason: impl Into<String>) -> CertificateFault {
        CertificateFault { reason: reason.into(), is_key: true }
    }

    /// Formats the error with the names of the files.
    #[must_use]
    pub fn in_files(&self, chain: &Path, key: &Path) -> String {
        let reason = self.reason.replace(CHAIN_FILE, &chain.display().to_string());
        format!("{}: {reason}", if self.is_key { key } else { chain }.display())
    }
}

impl From<CertificateFault> for Failure {
    fn from(fault: CertificateFault) -> Failure {
        Failure::new(fault.reason.replace(CHAIN_FILE, "its certificate"))
    }
}

/// Placeholder for the certificate's file in a reason.
const CHAIN_FILE: &str = "{certificate}";

/// Describes a key that does not belong to the first certificate.
fn mismatched_key(certified: &CertifiedKey) -> CertificateFault {
    let is_of = |certificate: &CertificateDer<'static>| {
        CertifiedKey::new(vec![certificate.clone()], certified.key.clone()).keys_match().is_ok()
    };
    match certified.cert.iter().position(is_of) {
        Some(index) => CertificateFault::of_chain(format!(
            "the private key belongs to certificate {} in it: put the server's own certificate first, then those of \
             intermediate authorities",
            index + 1
        )),
        None => CertificateFault::of_key(format!(
            "the private key does not belong to the certificate in {CHAIN_FILE}: `openssl x509 -noout -pubkey -in` of \
             the one and `openssl pkey -pubout -in` of the other print the same for a pair"
        )),
    }
}

/// Describes a certificate that was parsed but cannot be used.
fn unusable(error: &rustls::Error) -> String {
    let text = format!("{error:?}");
    if text.contains("UnsupportedCertVersion") {
        "the certificate is of X.509 version 1, which clients refuse: make one with `-addext \
                 subjectAltName=DNS:NAME` (`openssl req -x509`) or `-extfile` (`openssl x509 -req`)"
            .into()
    } else {
        format!("certificate: {error}")
    }
}
