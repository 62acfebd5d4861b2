//! Parsed certificates, and chains with their keys as PEM text.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use failure::Failure;
use instant_acme::CertificateIdentifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::subject::Subject;

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
    /// Public key in DER (SubjectPublicKeyInfo).
    pub(crate) public_key: Vec<u8>,
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
            public_key: certificate.public_key().raw.to_vec(),
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

    /// Returns the identifier of the certificate for ARI (RFC 9773 section 4.1).
    pub(crate) fn identifier(&self) -> Option<CertificateIdentifier<'static>> {
        CertificateIdentifier::try_from(&self.first).ok().map(CertificateIdentifier::into_owned)
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
