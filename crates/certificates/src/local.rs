//! The local authority, which issues certificates for names that no public authority issues for.
//!
//! The authority is created once, in the state folder. Name constraints (RFC 5280 section 4.2.1.10) permit
//! only private names and addresses, so that a stolen key cannot be used to impersonate internet sites to those
//! who trust the authority.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use failure::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use shapes::host::PRIVATE_SUFFIXES;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::certificate::CertificateFacts;
use crate::state_folder::StateFolder;
use crate::subject::Subject;

const DAY: Duration = Duration::from_secs(86_400);
/// Lifetime of the authority's own certificate.
const ROOT_LIFETIME: Duration = Duration::from_secs(3_650 * 86_400);
/// Lifetime of the certificates that it issues.
const LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// Networks that the authority issues for: address and prefix length.
const NETWORKS: [(&str, u8); 9] = [
    ("127.0.0.0", 8),
    ("10.0.0.0", 8),
    ("172.16.0.0", 12),
    ("192.168.0.0", 16),
    ("169.254.0.0", 16),
    ("100.64.0.0", 10),
    ("::1", 128),
    ("fc00::", 7),
    ("fe80::", 10),
];

/// The authority with its key.
pub struct LocalAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    info: CertificateFacts,
}

/// A certificate issued by the authority, with its key.
pub(crate) struct LocalCertificate {
    /// Certificate and key as PEM text.
    pub(crate) pem: String,
    pub(crate) info: CertificateFacts,
}

impl LocalAuthority {
    /// Opens the authority of the state folder; creates it if there is none or it has expired. `host` is the
    /// name of this machine, which distinguishes its authority from others.
    ///
    /// # Errors
    /// Reason why it cannot be read or created.
    pub fn open(store: &StateFolder, host: &str, now: SystemTime) -> Result<LocalAuthority, Failure> {
        let failed = |error: std::io::Error| format!("the local authority: {error}");
        let _lock = store.lock_authority().map_err(failed)?;
        let in_file = |error: std::io::Error| {
            format!("the local authority in {}: {error}", store.authority_path().display())
        };
        if let Some(pem) = store.authority().map_err(in_file)? {
            let authority = LocalAuthority::parse(&pem).map_err(|error| {
                let path = store.authority_path();
                format!(
                    "the local authority in {} cannot be read: {error}; remove the file to have a new authority made, \
                     and run `komainu trust` again",
                    path.display()
                )
            })?;
            if authority.info.not_after > now + LIFETIME {
                return Ok(authority);
            }
        }
        let (pem, certificate) =
            create(host, now).map_err(|error| format!("the local authority: {error}"))?;
        store.write_authority(&pem, &certificate).map_err(failed)?;
        LocalAuthority::parse(&pem)
    }

    fn parse(pem: &str) -> Result<LocalAuthority, Failure> {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(Failure::new)?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(Failure::new)?;
        let key = KeyPair::try_from(&key).map_err(Failure::new)?;
        let info = CertificateFacts::read(&certificate)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(Failure::new)?;
        Ok(LocalAuthority { issuer, certificate, info })
    }

    /// Returns the authority's own certificate in DER.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a certificate for a private name.
    pub(crate) fn issue(&self, subject: &Subject, now: SystemTime) -> Result<LocalCertificate, Failure> {
        let made = || {
            let key = KeyPair::generate()?;
            let mut parameters = certificate_params(now, LIFETIME);
            parameters.subject_alt_names = vec![match subject {
                Subject::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
                Subject::Ip(address) => SanType::IpAddress(*address),
            }];
            parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            parameters.use_authority_key_identifier_extension = true;
            Ok((parameters.signed_by(&key, &self.issuer)?, key))
        };
        let (certificate, key) = made().map_err(|error: rcgen::Error| Failure::new(error))?;
        let info = CertificateFacts::read(certificate.der())?;
        Ok(LocalCertificate { pem: certificate.pem() + &key.serialize_pem(), info })
    }
}

/// Verifies that a certificate is one that this program creates for a local authority, and therefore cannot
/// vouch for internet names.
///
/// # Errors
/// Reason why the certificate is not one of a local authority.
pub(crate) fn verify_constrained(certificate: &CertificateDer<'_>) -> Result<(), Failure> {
    let (rest, found) = parse_x509_certificate(certificate).map_err(Failure::new)?;
    if !rest.is_empty() || found.issuer() != found.subject() || found.verify_signature(None).is_err() {
        return Err("it is not signed by itself".into());
    }
    let constraint = found.basic_constraints().ok().flatten().map(|found| found.value);
    if !constraint.is_some_and(|found| found.ca && found.path_len_constraint == Some(0)) {
        return Err("it is not an authority, or may have others below it".into());
    }
    let unlimited = || Failure::new("it may vouch for names of the internet");
    let limits =
        found.name_constraints().ok().flatten().filter(|found| found.critical).ok_or_else(unlimited)?;
    let permitted = limits.value.permitted_subtrees.as_deref().unwrap_or_default();
    let networks: Vec<Vec<u8>> = NETWORKS.iter().map(|(address, prefix)| network(address, *prefix)).collect();
    let mut names = 0;
    let mut addresses = 0;
    for subtree in permitted {
        match &subtree.base {
            GeneralName::DNSName(name) if PRIVATE_SUFFIXES.contains(name) => names += 1,
            GeneralName::IPAddress(bytes) if networks.iter().any(|network| network == bytes) => {
                addresses += 1
            }
            _ => return Err(unlimited()),
        }
    }
    // A name type without any subtree is unconstrained.
    if names > 0 && addresses > 0 { Ok(()) } else { Err(unlimited()) }
}

/// Encodes a network for name constraints: the address followed by the mask.
fn network(address: &str, prefix: u8) -> Vec<u8> {
    let address: IpAddr = address.parse().expect("the table holds addresses");
    let address = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let bits = (0..address.len()).map(|at| usize::from(prefix).saturating_sub(at * 8).min(8));
    let mask: Vec<u8> = bits.map(|bits| !(0xff_u8.checked_shr(bits as u32).unwrap_or_default())).collect();
    [address, mask].concat()
}

/// Returns parameters of a certificate valid since an hour ago, to allow for slow clocks.
fn certificate_params(now: SystemTime, lifetime: Duration) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.not_before = (now - DAY / 24).into();
    parameters.not_after = (now + lifetime).into();
    parameters
}

/// Creates an authority; returns its certificate with its key, and its certificate alone, as PEM text.
fn create(host: &str, now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut parameters = certificate_params(now, ROOT_LIFETIME);
    parameters.distinguished_name.push(DnType::OrganizationName, "Komainu");
    let date = time::OffsetDateTime::from(now).date();
    parameters
        .distinguished_name
        .push(DnType::CommonName, format!("Komainu local authority, {host}, {date}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let names = PRIVATE_SUFFIXES.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned()));
    let networks = NETWORKS.iter().map(|(address, prefix)| {
        let address: IpAddr = address.parse().expect("the table holds addresses");
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, *prefix))
    });
    parameters.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.chain(networks).collect(),
        excluded_subtrees: Vec::new(),
    });
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| rcgen::Error::RingUnspecified)?;
    // Positive and not zero (RFC 5280 section 4.1.2.2).
    serial[0] = serial[0] & 0x7f | 0x40;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial));
    let certificate = parameters.self_signed(&key)?.pem();
    Ok((format!("{certificate}{}", key.serialize_pem()), certificate))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::state_folder::tests::scratch;

    fn subject(text: &str) -> Subject {
        Subject::parse(text).unwrap()
    }

    #[test]
    fn only_a_constrained_authority_is_accepted_as_local() {
        let now = SystemTime::now();
        let own = || CertificateDer::from_pem_slice(create("host", now).unwrap().1.as_bytes()).unwrap();
        assert_eq!(verify_constrained(&own()), Ok(()));
        let other = |change: &dyn Fn(&mut CertificateParams)| {
            let mut parameters = certificate_params(now, ROOT_LIFETIME);
            parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            let ip = GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix([127, 0, 0, 0].into(), 8));
            let permitted_subtrees = vec![GeneralSubtree::DnsName("localhost".into()), ip];
            parameters.name_constraints =
                Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
            change(&mut parameters);
            let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
            verify_constrained(certificate.der())
        };
        let permitted = |parameters: &mut CertificateParams, subtrees: Vec<GeneralSubtree>| {
            parameters.name_constraints =
                Some(NameConstraints { permitted_subtrees: subtrees, excluded_subtrees: Vec::new() });
        };
        let dns = |name: &str| GeneralSubtree::DnsName(name.to_owned());
        let ip = |address: [u8; 4], prefix| {
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address.into(), prefix))
        };
        assert_eq!(other(&|_| {}), Ok(()));
        for (what, outcome) in [
            ("no constraints", other(&|parameters| parameters.name_constraints = None)),
            ("no names", other(&|parameters| permitted(parameters, vec![ip([127, 0, 0, 0], 8)]))),
            ("no addresses", other(&|parameters| permitted(parameters, vec![dns("localhost")]))),
            (
                "a name of the internet",
                other(&|parameters| {
                    permitted(parameters, vec![dns("localhost"), dns("com"), ip([127, 0, 0, 0], 8)])
                }),
            ),
            ("every name", other(&|parameters| permitted(parameters, vec![dns(""), ip([127, 0, 0, 0], 8)]))),
            (
                "every address",
                other(&|parameters| permitted(parameters, vec![dns("localhost"), ip([0, 0, 0, 0], 0)])),
            ),
            (
                "others below it",
                other(&|parameters| parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            ),
            ("no authority", other(&|parameters| parameters.is_ca = IsCa::ExplicitNoCa)),
        ] {
            assert!(outcome.is_err(), "{what}");
        }
        let store = scratch("constrained");
        let authority = LocalAuthority::open(&StateFolder::open(&store).unwrap(), "host", now).unwrap();
        let issued = authority.issue(&subject("a.localhost"), now).unwrap();
        assert!(verify_constrained(&CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap()).is_err());
        std::fs::remove_dir_all(store).unwrap();
    }

    #[test]
    fn local_authority_is_reused_until_it_nears_expiry() {
        let path = scratch("authority");
        let store = StateFolder::open(&path).unwrap();
        let now = SystemTime::now();
        let first = LocalAuthority::open(&store, "host", now).unwrap();
        assert_eq!(LocalAuthority::open(&store, "host", now).unwrap().certificate(), first.certificate());
        let later = LocalAuthority::open(&store, "host", now + ROOT_LIFETIME - DAY).unwrap();
        assert_ne!(later.certificate(), first.certificate());
        let issued = later.issue(&subject("a.localhost"), now).unwrap();
        assert_eq!(issued.info.subjects, [subject("a.localhost")]);
        assert_eq!(
            issued.info.not_after.duration_since(issued.info.not_before).unwrap(),
            LIFETIME + DAY / 24
        );
        std::fs::remove_dir_all(path).unwrap();
    }

    /// Uses OpenSSL to validate the chain.
    #[test]
    fn local_authority_is_trusted_only_for_private_names() {
        let path = scratch("constraints");
        let store = StateFolder::open(&path).unwrap();
        let now = SystemTime::now();
        let authority = LocalAuthority::open(&store, "host", now).unwrap();
        let verify = |name: &str| {
            let issued = authority.issue(&subject(name), now).unwrap();
            let leaf = path.join("leaf.pem");
            std::fs::write(&leaf, &issued.pem).unwrap();
            let verified = Command::new("openssl")
                .args(["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile"])
                .arg(store.root_path())
                .arg(&leaf)
                .output()
                .unwrap();
            (verified.status.success(), String::from_utf8_lossy(&verified.stderr).into_owned())
        };
        for name in [
            "localhost",
            "a.b.localhost",
            "*.test",
            "nas.home.arpa",
            "127.0.0.1",
            "::1",
            "192.168.7.7",
            "fd00::7",
        ] {
            let (is_valid, text) = verify(name);
            assert!(is_valid, "{name}: {text}");
        }
        for name in ["example.com", "localhost.example.com", "xlocalhost", "93.184.216.34", "2606:2800::1"] {
            let (is_valid, text) = verify(name);
            assert!(!is_valid && text.contains("permitted subtree violation"), "{name}: {text}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
