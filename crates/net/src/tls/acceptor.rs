//! TLS settings of the server: sites, the certificates that they present, and client certificates.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use failure::Failure;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerSessionMemoryCache, StoresServerSessions,
    VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, RootCertStore, ServerConfig, SignatureScheme, SupportedProtocolVersion};

use super::certificate::ServerCertificate;
use super::client_expiry::{ClientTrust, UnverifiedClients};
use super::directives::TlsVersion;
use super::pem::{certificates, describe_syntax_error, strip_byte_order_marks};
use super::store::CertificateStore;
use super::tickets::{SECRET_BYTES_MIN, TicketKeys, Ticketer};

/// ALPN protocol with which a certificate authority validates a name (RFC 8737).
const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";
/// Maximum number of cached TLS 1.2 sessions for resumption by session ID.
const SESSIONS_MAX: usize = 4096;
/// ALPN protocol of HTTP/2 over TLS (RFC 9113 section 3.2).
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// ALPN protocol of HTTP/3 (RFC 9114 section 3.1).
pub(crate) const ALPN_HTTP3: &[u8] = b"h3";
/// Tickets sent after a TLS 1.3 handshake: browsers open two connections at once.
const TICKETS_PER_HANDSHAKE: usize = 2;

/// Options for all sites.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// The oldest version that clients may speak.
    pub min: TlsVersion,
    /// Application protocols (ALPN), in the server's order of preference.
    pub protocols: Vec<Vec<u8>>,
    /// Source of the session ticket keys; `None` disables resumption, by tickets and by IDs.
    pub tickets: Option<TicketKeys>,
}

impl Default for TlsOptions {
    /// TLS 1.2 and 1.3; HTTP/2 before HTTP/1.1 and HTTP/1.0; ticket keys of this process.
    fn default() -> TlsOptions {
        TlsOptions {
            min: TlsVersion::Tls12,
            protocols: vec![ALPN_HTTP2.to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()],
            tickets: Some(TicketKeys::random()),
        }
    }
}

/// Bit of a policy's hash by which certificates that cannot be verified are admitted.
pub(super) const UNVERIFIED_POLICY: u64 = 1;

/// TLS settings of a site.
#[derive(Clone, Debug, Default)]
pub struct TlsSite {
    /// Certificates. A client gets the first one for its name whose signature algorithm it supports.
    pub certificates: Vec<ServerCertificate>,
    /// Whether to use certificates of the [`CertificateStore`] too.
    pub uses_store: bool,
    /// Verification of client certificates, if enabled.
    pub client: Option<ClientCertificates>,
}

/// Settings for client certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Certificates of the trusted authorities (PEM).
    pub authorities_pem: Vec<u8>,
    /// Certificate revocation lists of these authorities (PEM).
    pub revoked_pem: Vec<Vec<u8>>,
    /// Whether clients without a certificate are refused.
    pub is_required: bool,
    /// Whether certificates that cannot be verified are as good as none. No certificate is known then, not even a valid one.
    pub admits_unverified: bool,
}

impl ClientCertificates {
    /// Checks that a text contains certificates of authorities.
    ///
    /// # Errors
    /// Returns a message with the content found and the remedy.
    pub fn check_authority(pem: &[u8]) -> Result<(), Failure> {
        add_authorities(&mut RootCertStore::empty(), pem)
    }

    /// Checks that clients can be verified with these settings.
    ///
    /// # Errors
    /// Returns a message about the invalid authority or list and the remedy.
    pub fn check(&self) -> Result<(), Failure> {
        self.verifier(&Arc::new(provider::default_provider())).map(drop)
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Failure> {
        let mut roots = RootCertStore::empty();
        add_authorities(&mut roots, &self.authorities_pem)?;
        let mut lists = Vec::new();
        for pem in &self.revoked_pem {
            lists.extend(revocation_lists(pem)?);
        }
        let has_lists = !lists.is_empty();
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).with_crls(lists);
        if has_lists {
            // Lists of intermediate authorities are rarely available.
            builder = builder.only_check_end_entity_revocation().allow_unknown_revocation_status();
        }
        if !self.is_required {
            builder = builder.allow_unauthenticated();
        }
        let built = builder.build().map_err(|error| match error {
            VerifierBuilderError::InvalidCrl(error) => Failure::new(format!(
                "a certificate revocation list that is not valid ({error:?}): `openssl crl -noout -text -in FILE` shows it"
            )),
            error => Failure::new(format!("client certificates: {error}")),
        })?;
        Ok(if self.admits_unverified { Arc::new(UnverifiedClients(built)) } else { built })
    }

    /// Returns a hash of these settings, which is stored with the connections that they have admitted
    /// ([`super::TlsSession::policy`]). Never 0.
    #[must_use]
    pub fn policy(&self) -> u64 {
        let hash = self.digest().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let hash = (hash & !UNVERIFIED_POLICY).max(2);
        if self.admits_unverified { hash | UNVERIFIED_POLICY } else { hash }
    }

    fn digest(&self) -> Vec<u8> {
        let mut all = vec![u8::from(self.is_required) | (u8::from(self.admits_unverified) << 1)];
        for text in std::iter::once(&self.authorities_pem).chain(&self.revoked_pem) {
            all.extend_from_slice(&text.len().to_be_bytes());
            all.extend_from_slice(text);
        }
        digest(&SHA256, &all).as_ref().to_vec()
    }
}

fn add_authorities(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), Failure> {
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| format!("a certificate of no authority ({error})"))?;
    }
    Ok(())
}

fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, Failure> {
    let text = strip_byte_order_marks(pem);
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| describe_syntax_error(&error))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let is_der = pem.first() == Some(&0x30);
    Err(if is_der {
        "this is DER, not PEM: `openssl crl -inform der -in FILE -out NEW.pem` converts a revocation list"
            .into()
    } else {
        "there is no certificate revocation list (BEGIN X509 CRL) in it: `openssl ca -gencrl -out FILE` makes one"
            .into()
    })
}

/// The server side of TLS, shared by all cores. Clones share the settings, which can be replaced.
#[derive(Clone)]
pub struct TlsAcceptor(Arc<AcceptorShared>);

struct AcceptorShared {
    store: CertificateStore,
    /// `None` if no site uses TLS, so that no memory is used for rustls' caches.
    table: RwLock<Option<Arc<SiteTable>>>,
    sessions: OnceLock<Arc<dyn StoresServerSessions>>,
    /// Secret of QUIC endpoints, if none is configured.
    endpoint_secret: OnceLock<Vec<u8>>,
}

/// Finds the site for a host and the key of a listener, as for requests.
type SiteFinder = Box<dyn Fn(&str, u64) -> Option<usize> + Send + Sync>;

struct SiteTable {
    tickets: Option<TicketKeys>,
    find: SiteFinder,
    sites: Vec<Option<SiteTls>>,
    challenge: Arc<ServerConfig>,
}

struct SiteTls {
    certificates: SiteCertificates,
    config: Arc<ServerConfig>,
    /// `config` with the client's order of cipher suites.
    config_client_order: Arc<ServerConfig>,
    /// `config` for QUIC, whose application protocol is HTTP/3.
    config_quic: Arc<ServerConfig>,
    /// Present if sessions of clients with certificates may be resumed.
    trust: Option<ClientTrust>,
    policy: u64,
}

/// The certificates of a site.
#[derive(Clone, Debug)]
struct SiteCertificates {
    certificates: Arc<[ServerCertificate]>,
    store: Option<CertificateStore>,
}

/// Settings with which a handshake continues.
pub(super) struct TlsAdmission {
    pub(super) config: Arc<ServerConfig>,
    /// Hash of the policy on client certificates; 0 for none.
    pub(super) policy: u64,
    /// Whether the connection only validates a name for a certificate authority and ends after the handshake.
    pub(super) is_challenge: bool,
}

/// Reason why a client is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// No site with TLS has the name.
    UnknownName,
    /// The site has no certificate for the name yet.
    NoCertificate,
    /// The client supports the signature algorithm of none of the certificates.
    NoSignature,
    /// The client offers no cipher suite that this server supports.
    NoCipher,
}

impl TlsAcceptor {
    /// Creates an acceptor without sites; see [`TlsAcceptor::replace`].
    #[must_use]
    pub fn new(store: CertificateStore) -> TlsAcceptor {
        TlsAcceptor(Arc::new(AcceptorShared {
            store,
            table: RwLock::default(),
            sessions: OnceLock::new(),
            endpoint_secret: OnceLock::new(),
        }))
    }

    /// Replaces the options and sites for new handshakes. `find` returns the index in `sites` for a host (in
    /// lower case, or an IP address if the client sends no server name) and the key of the listener
    /// ([`crate::ListenOptions::key`]). Sites without TLS are `None`.
    ///
    /// # Errors
    /// Returns a message if an authority or revocation list is invalid; the settings are then unchanged.
    pub fn replace(
        &self,
        options: &TlsOptions,
        find: impl Fn(&str, u64) -> Option<usize> + Send + Sync + 'static,
        sites: Vec<Option<TlsSite>>,
    ) -> Result<(), Failure> {
        let table = if sites.iter().any(Option::is_some) {
            Some(Arc::new(self.0.site_table(options, Box::new(find), sites)?))
        } else {
            None
        };
        *self.0.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        Ok(())
    }

    /// Returns the certificates that are obtained while the server runs.
    #[must_use]
    pub fn store(&self) -> &CertificateStore {
        &self.0.store
    }

    fn table(&self) -> Option<Arc<SiteTable>> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Decides about a client by its ClientHello. `address` is the local one, for clients that send no server
    /// name; `client` is the remote one, together with the key of the listener.
    pub(super) fn admit(
        &self,
        hello: &ClientHello<'_>,
        address: &str,
        client: Option<IpAddr>,
        listener_key: u64,
    ) -> Result<TlsAdmission, NotAdmitted> {
        let table = self.table().ok_or(NotAdmitted::UnknownName)?;
        let name = hello.server_name().unwrap_or(address);
        let is_challenge = hello.alpn().is_some_and(|mut all| all.any(|one| one == CHALLENGE_PROTOCOL));
        if is_challenge && self.0.store.challenge_of(name).is_some() {
            return Ok(TlsAdmission { config: table.challenge.clone(), policy: 0, is_challenge });
        }
        let site = table.site(name, listener_key)?;
        let first = hello.cipher_suites().iter().find(|suite| suite_rank(**suite) < UNSUPPORTED_RANK);
        let first = *first.ok_or(NotAdmitted::NoCipher)?;
        let base = if is_chacha(first) { &site.config_client_order } else { &site.config };
        let config = self.site_config(site, base, hello, name, client)?;
        Ok(TlsAdmission { config, policy: site.policy, is_challenge: false })
    }

    /// Like [`TlsAcceptor::admit`], for QUIC. Returns the settings and the hash of the policy on client
    /// certificates.
    pub(crate) fn admit_quic(
        &self,
        hello: &ClientHello<'_>,
        address: Option<IpAddr>,
        client: IpAddr,
        listener_key: u64,
    ) -> Result<(Arc<ServerConfig>, u64), NotAdmitted> {
        let table = self.table().ok_or(NotAdmitted::UnknownName)?;
        let address = address.map_or_else(String::new, |address| address.to_canonical().to_string());
        let name = hello.server_name().unwrap_or(&address);
        let site = table.site(name, listener_key)?;
        let config = self.site_config(site, &site.config_quic, hello, name, Some(client))?;
        Ok((config, site.policy))
    }

    /// Returns the settings for one connection to a site.
    fn site_config(
        &self,
        site: &SiteTls,
        base: &Arc<ServerConfig>,
        hello: &ClientHello<'_>,
        name: &str,
        client: Option<IpAddr>,
    ) -> Result<Arc<ServerConfig>, NotAdmitted> {
        let chosen = site.certificates.choose(name, hello.signature_schemes()).inspect_err(|not| {
            if *not == NotAdmitted::NoCertificate {
                self.0.store.report_miss(name, client);
            }
        })?;
        let mut config = base.clone();
        if let Some(trust) = &site.trust {
            let own = trust.connection_config(&config, config.cert_resolver.clone());
            config = Arc::new(own.ok_or(NotAdmitted::NoCipher)?);
        }
        if hello.server_name().is_none() {
            // The resolver gets no server name, so it cannot select by the address.
            Arc::make_mut(&mut config).cert_resolver =
                Arc::new(SingleCertAndKey::from(chosen.certified_key()));
        }
        Ok(config)
    }

    /// Returns the keys of session tickets in force; `None` without resumption, or without TLS.
    pub(crate) fn ticket_keys(&self) -> Option<TicketKeys> {
        self.table()?.tickets.clone()
    }

    /// Returns the secret from which QUIC endpoints derive their keys: that of the session tickets, so that
    /// servers which share it understand each other's tokens; or that of the process before this one; or one
    /// of this process.
    pub(crate) fn endpoint_secret(&self, inherited: Option<Vec<u8>>) -> Vec<u8> {
        let table = self.table();
        let configured = table.and_then(|table| table.tickets.as_ref()?.configured_secret());
        let own = || {
            let mut secret = vec![0; SECRET_BYTES_MIN];
            // The generator of the library does not fail once it is seeded.
            let _ = rand::fill(&mut secret);
            secret
        };
        let own = || inherited.unwrap_or_else(own);
        configured.unwrap_or_else(|| self.0.endpoint_secret.get_or_init(own).clone())
    }

    /// Returns settings that only provide the keys of the first QUIC packets, which depend on no site.
    pub(crate) fn quic_base() -> Option<Arc<ServerConfig>> {
        let no_certificates = SiteCertificates { certificates: Arc::new([]), store: None };
        let built = build_config(&TlsOptions::default(), None, Arc::new(no_certificates));
        built.ok().map(|(config, _)| Arc::new(config))
    }
}

impl SiteTable {
    fn site(&self, name: &str, listener_key: u64) -> Result<&SiteTls, NotAdmitted> {
        let site = (self.find)(name, listener_key).and_then(|site| self.sites.get(site)?.as_ref());
        site.ok_or(NotAdmitted::UnknownName)
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}

impl AcceptorShared {
    fn site_table(
        &self,
        options: &TlsOptions,
        find: SiteFinder,
        sites: Vec<Option<TlsSite>>,
    ) -> Result<SiteTable, Failure> {
        let store = &self.store;
        let site = |site: TlsSite| {
            let digest = site.client.as_ref().map_or_else(Vec::new, ClientCertificates::digest);
            let presented = SiteCertificates {
                certificates: site.certificates.into(),
                store: site.uses_store.then(|| store.clone()),
            };
            let (mut config, verifier) =
                build_config(options, site.client.as_ref(), Arc::new(presented.clone()))?;
            let resumed = verifier.filter(|_| options.tickets.is_some());
            let trust = resumed.map(|verifier| ClientTrust { verifier, versions: versions(options) });
            if let Some(keys) = &options.tickets {
                config.ticketer = Arc::new(Ticketer::new(keys.clone(), &digest));
                config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
            }
            // A cached session does not contain the policy on client certificates that admitted it.
            config.session_storage = match (&site.client, &options.tickets) {
                (None, Some(_)) => {
                    self.sessions.get_or_init(|| ServerSessionMemoryCache::new(SESSIONS_MAX)).clone()
                }
                _ => Arc::new(NoServerSessionStorage {}),
            };
            if options.tickets.is_none() {
                config.send_tls13_tickets = 0;
            }
            let policy = site.client.as_ref().map_or(0, ClientCertificates::policy);
            let mut client_order = config.clone();
            client_order.ignore_client_order = false;
            let mut quic = config.clone();
            quic.alpn_protocols = vec![ALPN_HTTP3.to_vec()];
            Ok(SiteTls {
                certificates: presented,
                config: Arc::new(config),
                config_client_order: Arc::new(client_order),
                config_quic: Arc::new(quic),
                trust,
                policy,
            })
        };
        let sites = sites.into_iter().map(|one| one.map(site).transpose()).collect::<Result<_, Failure>>()?;
        let (mut challenge, _) =
            build_config(&TlsOptions::default(), None, Arc::new(ChallengeResolver(store.clone())))?;
        challenge.alpn_protocols = vec![CHALLENGE_PROTOCOL.to_vec()];
        challenge.send_tls13_tickets = 0;
        challenge.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(SiteTable { tickets: options.tickets.clone(), find, sites, challenge: Arc::new(challenge) })
    }
}

/// Whether the client prefers ChaCha20, as clients without AES instructions do.
fn is_chacha(suite: CipherSuite) -> bool {
    matches!(suite_rank(suite), 2 | 5)
}

/// Rank of cipher suites that this server does not support.
const UNSUPPORTED_RANK: u8 = 6;

/// Returns the rank of a cipher suite. AES-128 precedes AES-256, which needs a third more CPU time without a
/// practical gain in security.
fn suite_rank(suite: CipherSuite) -> u8 {
    use CipherSuite as Suite;
    match suite {
        Suite::TLS13_AES_128_GCM_SHA256 => 0,
        Suite::TLS13_AES_256_GCM_SHA384 => 1,
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => 2,
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 | Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => 3,
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 | Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => 4,
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => 5,
        _ => UNSUPPORTED_RANK,
    }
}

fn versions(options: &TlsOptions) -> &'static [&'static SupportedProtocolVersion] {
    static ALL: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match options.min {
        TlsVersion::Tls12 => &ALL,
        TlsVersion::Tls13 => &ALL[..1],
    }
}

/// A configuration without tickets, and the verifier of its clients.
type VerifyingConfig = (ServerConfig, Option<Arc<dyn ClientCertVerifier>>);

fn build_config(
    options: &TlsOptions,
    client: Option<&ClientCertificates>,
    resolver: Arc<dyn ResolvesServerCert>,
) -> Result<VerifyingConfig, Failure> {
    let mut crypto = provider::default_provider();
    crypto.cipher_suites.sort_by_key(|suite| suite_rank(suite.suite()));
    let crypto = Arc::new(crypto);
    let builder = ServerConfig::builder_with_provider(crypto.clone())
        .with_protocol_versions(versions(options))
        .map_err(|error| error.to_string())?;
    let verifier = client.map(|client| client.verifier(&crypto)).transpose()?;
    let builder = match &verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols.clone_from(&options.protocols);
    config.ignore_client_order = true;
    Ok((config, verifier))
}

impl SiteCertificates {
    /// Returns the certificate for a name, preferably one that covers it, among those whose signature
    /// algorithm the client supports.
    fn choose(&self, name: &str, schemes: &[SignatureScheme]) -> Result<ServerCertificate, NotAdmitted> {
        let issued = self.store.as_ref().map_or_else(Vec::new, |store| store.certificates(name));
        let own = || self.certificates.iter();
        let for_it = own().filter(|certificate| certificate.info().is_for(name));
        let mut any = false;
        for certificate in for_it.chain(&issued).chain(own()) {
            if certificate.supports_any_of(schemes) {
                return Ok(certificate.clone());
            }
            any = true;
        }
        Err(if any { NotAdmitted::NoSignature } else { NotAdmitted::NoCertificate })
    }
}

impl ResolvesServerCert for SiteCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // For a client without server name, `admit` has already chosen the certificate.
        self.choose(hello.server_name()?, hello.signature_schemes()).ok().map(|chosen| chosen.certified_key())
    }
}

#[derive(Debug)]
struct ChallengeResolver(CertificateStore);

impl ResolvesServerCert for ChallengeResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.challenge_of(hello.server_name()?)?.certified_key())
    }
}
