//! What a connection needs, with the contents of the files that `[cluster]` names.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use failure::Failure;
use rustls::pki_types::pem::{self, PemObject};
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
        let mut file = |directive: &'static str, path: &Option<PathBuf>, remedy: &str| {
            let Some(path) = path else { return Ok::<_, Failure>(None) };
            let place = FilePlace { directive, path: path.clone() };
            let bytes = read(path).map_err(|error| place.fault(&error, remedy))?;
            fingerprint.update(&(bytes.len() as u64).to_be_bytes());
            fingerprint.update(&bytes);
            Ok(Some(PlacedFile { place, bytes }))
        };
        let mut password = |key: &'static str, path: &Option<PathBuf>| {
            let remedy = "write the password into this file, and let the server's user read it (mode 600)";
            let Some(PlacedFile { place, bytes }) = file(key, path, remedy)? else { return Ok(None) };
            let text = String::from_utf8(bytes).map_err(|_| place.fault(&"it is not text", remedy))?;
            Ok::<_, Failure>(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        };
        let store_password = password("password_file", &table.password_file)?;
        let sentinel_password = password("sentinel_password_file", &table.sentinel_password_file)?;
        let ca = file("ca", &table.ca, AUTHORITIES_REMEDY)?;
        let chain = file("certificate", &table.certificate, CERTIFICATE_REMEDY)?;
        let key = file("certificate_key", &table.certificate_key, KEY_REMEDY)?;
        let key = key.or_else(|| chain.clone());
        let is_tls = |one: &StoreAddress| matches!(one.endpoint, StoreEndpoint::Tcp { is_tls: true, .. });
        let tls = table.store.iter().any(is_tls).then(|| connector(ca.as_ref(), chain.zip(key)));
        let secret = file("key", &table.key, SECRET_REMEDY)?;
        let seal = match &secret {
            Some(PlacedFile { place, bytes }) => {
                ValueSeal::new(Some(bytes)).map_err(|why| place.fault(&why, SECRET_REMEDY))?
            }
            None => ValueSeal::new(None)?,
        };
        let secret = secret.map(|file| file.bytes);
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
            seal: Arc::new(seal),
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

const AUTHORITIES_REMEDY: &str = "name a PEM file with the certificates of the authorities (`-----BEGIN CERTIFICATE-----`), or remove `ca` to trust the system's";
const CERTIFICATE_REMEDY: &str =
    "name a PEM file with the certificate, then its chain (`-----BEGIN CERTIFICATE-----`)";
const KEY_REMEDY: &str = "name a PEM file with the key of `certificate` in `certificate_key` (`-----BEGIN PRIVATE KEY-----`), which the server's user may read";
const SECRET_REMEDY: &str = "make one with `openssl rand -out cluster.key 48`, copy it to all servers of the set, and let the server's user read it";

/// A file that the table names, and its directive.
#[derive(Clone)]
struct FilePlace {
    directive: &'static str,
    path: PathBuf,
}

/// A file with its content.
#[derive(Clone)]
struct PlacedFile {
    place: FilePlace,
    bytes: Vec<u8>,
}

impl FilePlace {
    fn fault(&self, why: &dyn fmt::Display, remedy: &str) -> Failure {
        let (directive, path) = (self.directive, &self.path);
        Failure::new(format!("`[cluster] {directive}`: {}: {why}", path.display())).about(path).help(remedy)
    }
}

fn connector(
    ca: Option<&PlacedFile>,
    client: Option<(PlacedFile, PlacedFile)>,
) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        Some(PlacedFile { place, bytes }) => {
            for certificate in CertificateDer::pem_slice_iter(bytes) {
                let certificate = certificate.map_err(|why| place.fault(&why, AUTHORITIES_REMEDY))?;
                roots.add(certificate).map_err(|why| place.fault(&why, AUTHORITIES_REMEDY))?;
            }
            if roots.is_empty() {
                return Err(place.fault(&"there is no certificate in it", AUTHORITIES_REMEDY));
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
            let place = chain.place;
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain.bytes).collect();
            let chain = chain.map_err(|why| place.fault(&why, CERTIFICATE_REMEDY))?;
            if chain.is_empty() {
                return Err(place.fault(&"there is no certificate in it", CERTIFICATE_REMEDY));
            }
            let read = PrivateKeyDer::from_pem_slice(&key.bytes);
            let pem = read.map_err(|why| {
                let why = match why {
                    pem::Error::NoItemsFound => "there is no private key in it".to_owned(),
                    why => why.to_string(),
                };
                key.place.fault(&why, KEY_REMEDY)
            })?;
            let config = config.with_client_auth_cert(chain, pem);
            config.map_err(|why| key.place.fault(&format!("with `certificate`: {why}"), KEY_REMEDY))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change<'c> = &'c dyn Fn(&mut ClusterTable);

    #[test]
    fn files_are_named_with_their_remedy() {
        let endpoint = "rediss://127.0.0.1:6379";
        let table = |change: Change<'_>| {
            let store = vec![StoreAddress::parse(endpoint).unwrap()];
            let mut table = ClusterTable { store, ..ClusterTable::default() };
            change(&mut table);
            table
        };
        let fault = |content: &[u8], change: Change<'_>| {
            let read = |_: &std::path::Path| Ok(content.to_vec());
            let failure = StoreOptions::of_table(&table(change), &read).unwrap_err();
            (failure.to_string(), failure.with_remedy())
        };
        let path = Some(PathBuf::from("/etc/it"));
        let cases: [(&str, &[u8], Change<'_>, &str); 6] = [
            ("key", b"short", &|table| table.key = path.clone(), "openssl rand"),
            ("ca", b"", &|table| table.ca = path.clone(), "BEGIN CERTIFICATE"),
            (
                "ca",
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &|table| table.ca = path.clone(),
                "BEGIN CERTIFICATE",
            ),
            ("certificate", b"", &|table| table.certificate = path.clone(), "BEGIN CERTIFICATE"),
            (
                "certificate_key",
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &|table| (table.certificate, table.certificate_key) = (path.clone(), path.clone()),
                "PRIVATE KEY",
            ),
            ("password_file", b"\xff", &|table| table.password_file = path.clone(), "write the password"),
        ];
        for (directive, content, change, remedy) in cases {
            let (line, whole) = fault(content, change);
            assert!(line.starts_with(&format!("`[cluster] {directive}`: /etc/it: ")), "{line}");
            assert!(whole.contains(remedy), "{whole}");
        }
        let gone = StoreOptions::of_table(&table(&|table| table.key = path.clone()), &|_| {
            Err(std::io::ErrorKind::NotFound.into())
        });
        assert!(gone.unwrap_err().with_remedy().contains("openssl rand"));
    }
}
