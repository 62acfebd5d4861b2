//! Parsed certificates, and chains with their keys as PEM text.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use failure::Failure;
use instant_acme::CertificateIdentifier;
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::subject::Subject;

/// Maximum number of certificates in a chain from a directory. Every TLS handshake sends all of them.
const CHAIN_LENGTH_MAX: usize = 10;
/// Maximum size of a chain from a directory, as PEM text.
const CHAIN_BYTES_MAX: usize = 100 * 1024;
/// Minimum time for which a certificate from a directory is still valid. Slightly less than an hour, so that one
/// whose lifetime is an hour is used.
const VALID_MIN: Duration = Duration::from_secs(50 * 60);
/// Maximum time until the validity of a certificate from a directory begins: the clock of this machine may be late.
const CLOCK_LATE_MAX: Duration = Duration::from_secs(3_600);
/// Maximum number of names that a message lists.
const LISTED_MAX: usize = 5;

/// Relevant fields of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The names and addresses that it is valid for.
    pub subjects: Vec<Subject>,
    /// Common name of the issuer, or its organisation if it has none.
    pub issuer: String,
    /// Start of the validity period.
    pub not_before: SystemTime,
    /// End of the validity period.
    pub not_after: SystemTime,
    /// Serial number in hexadecimal digits.
    pub serial: String,
}

impl CertificateFacts {
    /// Parses a certificate in DER.
    ///
    /// # Errors
    /// Reason why it cannot be parsed.
    pub fn read(der: &[u8]) -> Result<CertificateFacts, Failure> {
        let (rest, certificate) =
            parse_x509_certificate(der).map_err(|error| format!("no certificate: {error}"))?;
        if !rest.is_empty() {
            return Err("no certificate: bytes after its end".into());
        }
        let names = certificate.subject_alternative_name().map_err(|error| format!("its names: {error}"))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let subjects = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Subject::parse(name).ok(),
            GeneralName::IPAddress(bytes) => address(bytes).map(Subject::Ip),
            _ => None,
        });
        let issuer = certificate.issuer();
        let named = issuer.iter_common_name().chain(issuer.iter_organization()).next();
        let validity = certificate.validity();
        Ok(CertificateFacts {
            subjects: subjects.collect(),
            issuer: named.and_then(|name| name.as_str().ok()).unwrap_or("?").to_owned(),
            not_before: time(validity.not_before.timestamp()),
            not_after: time(validity.not_after.timestamp()),
            serial: HEXLOWER.encode(certificate.raw_serial()),
        })
    }
}

fn time(unix_s: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).unwrap_or_default())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Returns a certificate as PEM text.
pub(crate) fn pem_of(der: &CertificateDer<'_>) -> String {
    let digits = data_encoding::BASE64.encode(der);
    let lines: Vec<&str> =
        digits.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// A chain and its key, stored as one text so that they are replaced together.
#[derive(Debug)]
pub(crate) struct KeyedChain {
    /// The complete text.
    pub(crate) pem: String,
    /// The end-entity certificate, the first of the chain.
    first: CertificateDer<'static>,
    /// Parsed fields of the certificate.
    pub(crate) info: CertificateFacts,
}

impl KeyedChain {
    /// Parses a text with a chain and its key.
    ///
    /// # Errors
    /// Description of what is missing or cannot be parsed.
    pub(crate) fn parse(pem: String) -> Result<KeyedChain, Failure> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let chain = chain.map_err(|error| format!("the chain cannot be read: {error}"))?;
        let first = chain.into_iter().next().ok_or("there is no certificate in it")?;
        let info = CertificateFacts::read(&first)?;
        PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| format!("the key cannot be read: {error}"))?;
        Ok(KeyedChain { pem, first, info })
    }

    /// Parses a chain that a directory issued for `subject` and `key`, and checks that it is what was ordered.
    ///
    /// # Errors
    /// Reason why the chain is refused.
    pub(crate) fn issued(
        chain: &str,
        key: &KeyPair,
        subject: &Subject,
        now: SystemTime,
    ) -> Result<KeyedChain, Failure> {
        let length = count_certificates(chain)?;
        if length > CHAIN_LENGTH_MAX || chain.len() > CHAIN_BYTES_MAX {
            let bytes = chain.len();
            return Err(Failure::new(format!(
                "the chain has {length} certificates in {bytes} bytes: the limits are {CHAIN_LENGTH_MAX} and {CHAIN_BYTES_MAX}"
            )));
        }
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
        let all = all.map_err(|error| format!("the chain cannot be read: {error}"))?;
        all.iter().try_for_each(|one| CertificateFacts::read(one).map(drop))?;
        let first = all.first().filter(|_| all.len() == length).ok_or("there is no certificate in it")?;
        let (_, certificate) =
            parse_x509_certificate(first).map_err(|error| format!("no certificate: {error}"))?;
        check_issued(&certificate, subject)?;
        if certificate.public_key().raw != key.subject_public_key_info() {
            return Err("it is for another key".into());
        }
        let issued = KeyedChain::parse(chain.trim_end().to_owned() + "\n" + &key.serialize_pem())?;
        let CertificateFacts { not_before, not_after, .. } = issued.info;
        let date = |time: SystemTime| time::OffsetDateTime::from(time);
        if not_after < now + VALID_MIN {
            return Err(Failure::new(format!(
                "it is valid until {}, and now is {}: check the clock of this machine, or use another authority",
                date(not_after),
                date(now)
            )));
        }
        if not_before > now + CLOCK_LATE_MAX {
            return Err(Failure::new(format!(
                "it is valid from {}, and now is {}: check the clock of this machine, or use another authority",
                date(not_before),
                date(now)
            )));
        }
        Ok(issued)
    }

    /// Returns the identifier of the certificate for ARI (RFC 9773 section 4.1).
    pub(crate) fn identifier(&self) -> Option<CertificateIdentifier<'static>> {
        CertificateIdentifier::try_from(&self.first).ok().map(CertificateIdentifier::into_owned)
    }
}

/// Returns the number of certificates in a chain, which contains nothing else (RFC 8555 section 9.1).
fn count_certificates(chain: &str) -> Result<usize, Failure> {
    let (mut count, mut is_inside) = (0, false);
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    for line in chain.lines().map(str::trim) {
        match (is_inside, line) {
            (false, "") => {}
            (false, "-----BEGIN CERTIFICATE-----") => {
                is_inside = true;
                count += 1;
            }
            (true, "-----END CERTIFICATE-----") => is_inside = false,
            (true, line) if !line.is_empty() && line.bytes().all(is_base64) => {}
            (_, line) => {
                let shown: String = line.chars().take(40).collect();
                return Err(Failure::new(format!(
                    "the chain contains {shown:?}, which is no part of a certificate"
                )));
            }
        }
    }
    if is_inside { Err("the chain is cut off".into()) } else { Ok(count) }
}

/// Checks that a certificate is one for servers, and for `subject` alone.
fn check_issued(certificate: &X509Certificate<'_>, subject: &Subject) -> Result<(), Failure> {
    let unreadable = |error| Failure::new(format!("its extensions cannot be read: {error}"));
    if certificate.basic_constraints().map_err(unreadable)?.is_some_and(|found| found.value.ca) {
        return Err("it is one of an authority".into());
    }
    let uses = certificate.extended_key_usage().map_err(unreadable)?;
    if uses.is_some_and(|found| !found.value.server_auth && !found.value.any) {
        return Err("it is not for servers: its extended key usage lacks serverAuth".into());
    }
    let names = certificate.subject_alternative_name().map_err(unreadable)?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let is_subject = |name: &&GeneralName<'_>| match (name, subject) {
        (GeneralName::DNSName(name), Subject::Dns(own)) => own.eq_ignore_ascii_case(name),
        (GeneralName::IPAddress(bytes), Subject::Ip(own)) => address(bytes) == Some(*own),
        _ => false,
    };
    let others = names.iter().filter(|name| !is_subject(name)).take(LISTED_MAX);
    let others: Vec<String> = others.map(shown_name).collect();
    if !others.is_empty() {
        return Err(Failure::new(format!(
            "it is not for {subject} alone, but also for {}",
            others.join(", ")
        )));
    }
    if names.is_empty() { Err(Failure::new(format!("it is not for {subject}"))) } else { Ok(()) }
}

/// Returns a name of a certificate for messages.
fn shown_name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            name.chars().take(253).collect()
        }
        GeneralName::IPAddress(bytes) => {
            address(bytes).map_or("an invalid address".to_owned(), |address| address.to_string())
        }
        _ => "a name of another kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_are_parsed_back() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(["a.test".into(), "::1".into()]).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "somebody");
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2026, 1, 2);
        let made = parameters.self_signed(&key).unwrap();
        let read = KeyedChain::parse(made.pem() + &key.serialize_pem()).unwrap();
        assert_eq!(read.info.subjects, [Subject::parse("a.test").unwrap(), Subject::parse("::1").unwrap()]);
        assert_eq!(read.info.issuer, "somebody");
        assert_eq!(read.info.not_after.duration_since(read.info.not_before).unwrap().as_secs(), 86_400);
        for wrong in [
            String::new(),
            made.pem(),
            key.serialize_pem(),
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
        ] {
            KeyedChain::parse(wrong).unwrap_err();
        }
    }
}
