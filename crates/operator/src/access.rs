//! Access control of the control listener over TCP: tokens, client certificates and per-address counts of
//! wrong tokens.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use certificates::tls;
use config::{Config, ControlClient, TokenRole};
use failure::IoFailure;
use net::{CertificateInfo, CertificateStore, ClientCertificates, TlsAcceptor, TlsOptions, TlsSite};
use process::config_files::ConfigFiles;

/// Maximum bytes read from a token file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Wrong tokens from one address within [`FAILURE_WINDOW`] after which it is answered 429.
pub(crate) const FAILURES_MAX: u32 = 10;
/// Period that starts at an address's first wrong token; the count is reset when it ends.
pub(crate) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses whose wrong tokens are counted.
const ADDRESSES_MAX: usize = 1_024;

/// A configured token. Only its digest is kept, so that the time of a comparison does not depend on the
/// guess.
struct KnownToken {
    name: String,
    role: TokenRole,
    digest: Vec<u8>,
}

/// Access rules of the control listener, read from one configuration.
pub struct ControlAccess {
    tokens: Vec<KnownToken>,
    /// Clients recognized by certificate; the first match applies.
    clients: Vec<ControlClient>,
    /// The listener's certificate and its requirements on client certificates; `None` without TLS.
    tls: Option<TlsSite>,
    /// Whether metrics and status are available without a token.
    pub(crate) allows_anonymous_metrics: bool,
    warnings: Vec<String>,
}

impl ControlAccess {
    /// Reads the token and certificate files.
    ///
    /// # Errors
    /// A file that cannot be read or contains no token, two files with the same token, or invalid TLS
    /// settings.
    pub fn new(config: &Config, files: &ConfigFiles) -> io::Result<ControlAccess> {
        let control = &config.control;
        let (mut tokens, mut warnings): (Vec<KnownToken>, Vec<String>) = Default::default();
        for token in &control.tokens {
            let path = &token.token_file;
            let file = files.open(path)?;
            let text = read_token_text(path, &file)?;
            let known =
                config::parse_control_token(&text).map_err(|fault| file_error(path, &fault.to_string()))?;
            let digest = digest(&SHA256, known.as_bytes()).as_ref().to_vec();
            if let Some(same) = tokens.iter().find(|other| other.digest == digest) {
                let text = format!("it holds the same token as that of `{}`: give each its own", same.name);
                return Err(file_error(path, &text));
            }
            let mode = file.metadata()?.mode();
            if mode & 0o004 != 0 {
                warnings.push(format!(
                    "`control.token` {}: every user of this machine can read {}: chmod o-r it",
                    token.name,
                    path.display()
                ));
            }
            tokens.push(KnownToken { name: token.name.clone(), role: token.role, digest });
        }
        let tls = control.tls.as_ref().filter(|_| control.listen.is_some());
        let tls = tls.map(|tls| tls::read_control(tls, files)).transpose()?;
        let tls = tls.map(|(site, doubts)| {
            warnings.extend(doubts);
            site
        });
        let clients = control.clients.clone();
        let access =
            ControlAccess { tokens, clients, tls, allows_anonymous_metrics: control.is_open, warnings };
        // Validates the authorities and revocation lists.
        access.configure_tls(&TlsAcceptor::new(CertificateStore::new()))?;
        Ok(access)
    }

    /// Applies the TLS settings of this configuration to `acceptor`.
    ///
    /// # Errors
    /// Invalid authorities or revocation lists.
    pub(crate) fn configure_tls(&self, acceptor: &TlsAcceptor) -> io::Result<()> {
        let sites = vec![self.tls.clone()];
        // Serve the same certificate for every server name.
        let replaced = acceptor.replace(&TlsOptions::default(), |_, _| Some(0), sites);
        replaced.map_err(|text| io::Error::new(io::ErrorKind::InvalidData, format!("`control.tls`: {text}")))
    }

    /// Whether the listener speaks TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Id of the client certificate policy, also carried by the connections it admitted; 0 without one.
    pub(crate) fn client_policy_id(&self) -> u64 {
        self.tls.as_ref().and_then(|site| site.client.as_ref()).map_or(0, ClientCertificates::policy)
    }

    /// Whether any role is granted by client certificate.
    pub(crate) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Returns the name and role granted to a verified client certificate.
    pub(crate) fn find_client(&self, certificate: &CertificateInfo) -> Option<(&str, TokenRole)> {
        let fits = |client: &&ControlClient| {
            // The configuration sets exactly one of the three.
            client.subject.as_ref().is_none_or(|subject| *subject == certificate.subject)
                && client.san.as_ref().is_none_or(|san| certificate.alternatives.contains(san))
                && client.fingerprint.as_ref().is_none_or(|sha256| *sha256 == certificate.sha256)
        };
        self.clients.iter().find(fits).map(|client| (client.name.as_str(), client.role))
    }

    /// Warnings about the files, such as a token file that every user can read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether any token is configured.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Returns the name and role of `token`. All tokens are compared, so that timing does not reveal which
    /// one matched.
    pub(crate) fn find_token(&self, token: &[u8]) -> Option<(&str, TokenRole)> {
        let given = digest(&SHA256, token);
        let mut holder = None;
        for known in &self.tokens {
            if verify_slices_are_equal(given.as_ref(), &known.digest).is_ok() {
                holder = Some((known.name.as_str(), known.role));
            }
        }
        holder
    }
}

fn file_error(path: &Path, text: &str) -> io::Error {
    io::Error::other(format!("`token_file` {}: {text}", path.display())).about(path)
}

fn read_token_text(path: &Path, file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(file_error(path, "it is larger than 64 KiB: this is not a token"));
    }
    String::from_utf8(bytes).map_err(|_| file_error(path, "it is not text"))
}

/// Returns the token of `Authorization: Bearer TOKEN`; empty for any other value.
pub(crate) fn bearer_token(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => http::scan::trim(token),
        _ => b"",
    }
}

/// Wrong tokens counted per address; IPv6 addresses are counted per /64, the usual allocation of one
/// customer.
#[derive(Default)]
pub struct TokenFailures(Mutex<HashMap<IpAddr, AddressFailures>>);

struct AddressFailures {
    window_start: Instant,
    count: u32,
    /// Whether a refusal of this address has been recorded in the audit log.
    is_refusal_recorded: bool,
}

/// Refusal of an address that has sent too many wrong tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AddressBlock {
    /// Time until the address may try again.
    pub(crate) retry_after: Duration,
    /// Whether this is the address's first refusal in the current window.
    pub(crate) is_first: bool,
}

impl TokenFailures {
    /// Returns the refusal of requests with a token from this address. Correct tokens are refused as well, so
    /// that guessing cannot continue.
    pub(crate) fn check_address(&self, address: IpAddr, now: Instant) -> Option<AddressBlock> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get_mut(&address_key(address))?;
        let wait = (found.window_start + FAILURE_WINDOW).saturating_duration_since(now);
        if wait.is_zero() || found.count < FAILURES_MAX {
            return None;
        }
        Some(AddressBlock {
            retry_after: wait,
            is_first: !std::mem::replace(&mut found.is_refusal_recorded, true),
        })
    }

    /// Counts a wrong token. If the table is full, the address whose window began first is dropped.
    pub(crate) fn count_failure(&self, address: IpAddr, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = address_key(address);
        if let Some(found) = all.get_mut(&key)
            && now < found.window_start + FAILURE_WINDOW
        {
            found.count = found.count.saturating_add(1);
            return;
        }
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&key) {
            all.retain(|_, failures| now < failures.window_start + FAILURE_WINDOW);
        }
        if all.len() >= ADDRESSES_MAX
            && !all.contains_key(&key)
            && let Some(oldest) =
                all.iter().min_by_key(|(_, failures)| failures.window_start).map(|(key, _)| *key)
        {
            all.remove(&oldest);
        }
        all.insert(key, AddressFailures { window_start: now, count: 1, is_refusal_recorded: false });
    }
}

fn address_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_token_is_extracted_or_empty() {
        for (value, token) in
            [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""), ("", "")]
        {
            assert_eq!(bearer_token(value.as_bytes()), token.as_bytes(), "{value:?}");
        }
    }

    #[test]
    fn first_matching_client_determines_the_role() {
        let client = |name: &str, role| ControlClient { name: name.into(), role, ..ControlClient::default() };
        let clients = vec![
            ControlClient { san: Some("DNS:a.test".into()), ..client("by san", TokenRole::Read) },
            ControlClient { subject: Some("CN=a".into()), ..client("by subject", TokenRole::Admin) },
            ControlClient { fingerprint: Some("ab".into()), ..client("by digest", TokenRole::Operate) },
        ];
        let access = ControlAccess {
            tokens: vec![],
            clients,
            tls: None,
            allows_anonymous_metrics: true,
            warnings: Vec::new(),
        };
        let certificate = |subject: &str, san: &[&str], sha256: &str| CertificateInfo {
            subject: subject.into(),
            alternatives: san.iter().map(|name| (*name).to_owned()).collect(),
            sha256: sha256.into(),
            ..CertificateInfo::default()
        };
        for (certificate, want) in [
            (certificate("CN=a", &["email:x@y", "DNS:a.test"], "ab"), Some("by san")),
            (certificate("CN=a", &["DNS:b.test"], "ab"), Some("by subject")),
            (certificate("CN=b", &[], "ab"), Some("by digest")),
            (certificate("CN=b,O=a", &["email:DNS:a.test", "DNS:x, DNS:a.test"], "cd"), None),
        ] {
            assert_eq!(access.find_client(&certificate).map(|(name, _)| name), want);
        }
    }

    #[test]
    fn address_is_blocked_after_ten_failures_per_minute() {
        let failures = TokenFailures::default();
        let start = Instant::now();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for _ in 0..FAILURES_MAX {
            assert_eq!(failures.check_address(address, start), None);
            failures.count_failure(address, start);
        }
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(
            failures.check_address(mapped, start),
            Some(AddressBlock { retry_after: FAILURE_WINDOW, is_first: true })
        );
        assert_eq!(
            failures.check_address(address, start),
            Some(AddressBlock { retry_after: FAILURE_WINDOW, is_first: false })
        );
        assert_eq!(failures.check_address("10.0.0.2".parse().unwrap(), start), None);
        let later = start + FAILURE_WINDOW;
        assert_eq!(failures.check_address(address, later), None);
        failures.count_failure(address, later);
        assert_eq!(failures.check_address(address, later), None);
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let failures = TokenFailures::default();
        let now = Instant::now();
        for at in 0..FAILURES_MAX {
            failures.count_failure(format!("2001:db8:1:2::{at:x}").parse().unwrap(), now);
        }
        assert!(failures.check_address("2001:db8:1:2:ffff::1".parse().unwrap(), now).is_some());
        assert_eq!(failures.check_address("2001:db8:1:3::1".parse().unwrap(), now), None);
    }

    #[test]
    fn failure_table_is_bounded() {
        let failures = TokenFailures::default();
        let now = Instant::now();
        for at in 0..10 * ADDRESSES_MAX as u32 {
            failures
                .count_failure(IpAddr::from(at.to_be_bytes()), now + Duration::from_micros(u64::from(at)));
        }
        assert_eq!(failures.0.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
