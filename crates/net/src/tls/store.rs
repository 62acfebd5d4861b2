//! Certificates by name that are obtained while the server runs.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::certificate::ServerCertificate;

/// Certificates that another thread obtains while the server runs (ACME), and those that prove control of a
/// name to a certificate authority (TLS-ALPN-01). Clones share the same store.
#[derive(Clone, Default)]
pub struct CertificateStore(Arc<StoreShared>);

#[derive(Default)]
struct StoreShared {
    names: RwLock<NamedCertificates>,
    missing_report: RwLock<Option<MissingReport>>,
}

/// Called with a name for which no certificate was available and the address of the client that requested it.
type MissingReport = Arc<dyn Fn(&str, Option<IpAddr>) + Send + Sync>;

#[derive(Default)]
struct NamedCertificates {
    /// Certificates by exact name in lower case, or by `*.` and the parent domain.
    issued: HashMap<String, Vec<ServerCertificate>>,
    challenges: HashMap<String, ServerCertificate>,
}

impl CertificateStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> CertificateStore {
        CertificateStore::default()
    }

    /// Adds a certificate for these names: exact ones, `*.example.com`, IP addresses. Replaces one with the
    /// same kind of key; a name may have both an ECDSA and an RSA certificate.
    pub fn install(&self, names: &[impl AsRef<str>], certificate: &ServerCertificate) {
        self.change(|all| {
            for name in names {
                let issued = all.issued.entry(name.as_ref().to_ascii_lowercase()).or_default();
                issued.retain(|before| !before.has_same_algorithm(certificate));
                issued.push(certificate.clone());
            }
        });
    }

    /// Removes the certificates of these names.
    pub fn remove(&self, names: &[impl AsRef<str>]) {
        self.change(|all| {
            for name in names {
                all.issued.remove(&name.as_ref().to_ascii_lowercase());
            }
        });
    }

    /// Sets or removes the certificate for TLS-ALPN-01 (RFC 8737) of a name.
    pub fn set_challenge(&self, name: &str, certificate: Option<ServerCertificate>) {
        let name = name.to_ascii_lowercase();
        self.change(|all| match certificate {
            Some(certificate) => _ = all.challenges.insert(name, certificate),
            None => _ = all.challenges.remove(&name),
        });
    }

    /// Returns the certificates of a name, those for the exact name first.
    #[must_use]
    pub fn certificates(&self, name: &str) -> Vec<ServerCertificate> {
        let names = self.0.names.read().unwrap_or_else(PoisonError::into_inner);
        let wildcard = name.split_once('.').map(|(_, domain)| format!("*.{domain}"));
        let keys = [Some(name), wildcard.as_deref()];
        keys.into_iter().flatten().filter_map(|key| names.issued.get(key)).flatten().cloned().collect()
    }

    /// Returns all names with their certificates.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Vec<ServerCertificate>)> {
        let names = self.0.names.read().unwrap_or_else(PoisonError::into_inner);
        names.issued.iter().map(|(name, issued)| (name.clone(), issued.clone())).collect()
    }

    /// Sets a callback for names for which no certificate was available, with the address of the client. It
    /// is called by a serving thread and must not block.
    pub fn report_missing(&self, report: impl Fn(&str, Option<IpAddr>) + Send + Sync + 'static) {
        *self.0.missing_report.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(report));
    }

    pub(super) fn challenge_of(&self, name: &str) -> Option<ServerCertificate> {
        let names = self.0.names.read().unwrap_or_else(PoisonError::into_inner);
        names.challenges.get(name).cloned()
    }

    pub(super) fn report_miss(&self, name: &str, client: Option<IpAddr>) {
        let report = self.0.missing_report.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(report) = report {
            report(name, client);
        }
    }

    fn change(&self, change: impl FnOnce(&mut NamedCertificates)) {
        change(&mut self.0.names.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for CertificateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.names.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("CertificateStore").field("names", &names.issued.keys()).finish_non_exhaustive()
    }
}
