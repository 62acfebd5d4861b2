//! What a connection needs, with the contents of the files that `[cluster]` names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use failure::Failure;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::address::{StoreAddress, StoreEndpoint};
use crate::directives::ClusterTable;
use crate::peers::{self, PeerOptions};
use crate::seal::ValueSeal;

/// The store, and how a connection to it is opened.
#[derive(Clone)]
pub struct StoreOptions {
    pub(crate) addresses: Vec<StoreAddress>,
    pub(crate) password: Option<String>,
    pub(crate) sentinel: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) timeout: Duration,
    pub(crate) purge_timeout: Duration,
    pub(crate) prefix: String,
    pub(crate) name: String,
    pub(crate) seal: Arc<ValueSeal>,
    /// `None` if this server does not share responses.
    pub(crate) peers: Option<PeerOptions>,
    /// Digest of the table and of the files that it names.
    fingerprint: Vec<u8>,
}

impl StoreOptions {
    /// Reads the files of a table by `read`.
    ///
    /// # Errors
    /// Names the file that cannot be read or used, and why.
    pub fn of_table(
        table: &ClusterTable,
        read: &dyn Fn(&std::path::Path) -> std::io::Result<Vec<u8>>,
    ) -> Result<StoreOptions, Failure> {
        let mut fingerprint = digest::Context::new(&digest::SHA256);
        fingerprint.update(format!("{table:?}").as_bytes());
        let mut file = |key: &str, path: &Option<std::path::PathBuf>| {
            let Some(path) = path else { return Ok::<_, Failure>(None) };
            let named = |error| Failure::new(format!("`[cluster] {key}`: {}: {error}", path.display()));
            let bytes = read(path).map_err(named)?;
            fingerprint.update(&(bytes.len() as u64).to_be_bytes());
            fingerprint.update(&bytes);
            Ok(Some(bytes))
        };
        let mut password = |key: &str, path: &Option<std::path::PathBuf>| match file(key, path)? {
            None => Ok(None),
            Some(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
                Err(_) => Err(Failure::new(format!("`[cluster] {key}`: it is not text"))),
            },
        };
        let store_password = password("password_file", &table.password_file)?;
        let sentinel_password = password("sentinel_password_file", &table.sentinel_password_file)?;
        let ca = file("ca", &table.ca)?;
        let chain = file("certificate", &table.certificate)?;
        let key = file("certificate_key", &table.certificate_key)?;
        let key = key.or_else(|| chain.clone());
        let is_tls = |one: &StoreAddress| matches!(one.endpoint, StoreEndpoint::Tcp { is_tls: true, .. });
        let tls = table.store.iter().any(is_tls).then(|| connector(ca.as_deref(), chain.zip(key)));
        let secret = file("key", &table.key)?;
        let peers = match (table.peers, &secret) {
            (Some(address), Some(secret)) => {
                let timeout = table.peer_timeout;
                Some(PeerOptions { address, timeout, identity_pem: peers::identity(secret)? })
            }
            _ => None,
        };
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(StoreOptions {
            addresses: table.store.clone(),
            password: store_password,
            sentinel: table.sentinel.clone(),
            sentinel_password,
            tls: tls.transpose()?,
            timeout: table.timeout,
            purge_timeout: table.purge_timeout,
            prefix: table.prefix.clone(),
            name: table.name.clone().unwrap_or_else(host),
            seal: Arc::new(ValueSeal::new(secret.as_deref())?),
            peers,
            fingerprint: fingerprint.finish().as_ref().to_vec(),
        })
    }

    /// The same store with another timeout.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> StoreOptions {
        self.timeout = timeout;
        self
    }

    /// Whether the table, and the contents of the files that it names, are the same.
    #[must_use]
    pub fn is_same(&self, other: &StoreOptions) -> bool {
        self.fingerprint == other.fingerprint
    }

    /// The store for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let all: Vec<&str> = self.addresses.iter().map(|one| one.text.as_str()).collect();
        all.join(", ")
    }

    /// Returns the name of a key.
    pub(crate) fn key(&self, what: &str) -> String {
        format!("{}:1:{what}", self.prefix)
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions").field("store", &self.describe()).finish_non_exhaustive()
    }
}

fn connector(ca: Option<&[u8]>, client: Option<(Vec<u8>, Vec<u8>)>) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| format!("`[cluster] ca`: {error}"))?;
                roots.add(certificate).map_err(|error| format!("`[cluster] ca`: {error}"))?;
            }
            if roots.is_empty() {
                return Err("`[cluster] ca`: there is no certificate in it".into());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
            let chain = chain.map_err(|error| format!("`[cluster] certificate`: {error}"))?;
            let key = PrivateKeyDer::from_pem_slice(&key);
            let key = key.map_err(|error| format!("`[cluster] certificate_key`: {error}"))?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| format!("`[cluster] certificate`: {error}"))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
