//! The server side of TLS with clients in memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use rustls::crypto::aws_lc_rs as provider;
use rustls::server::{Acceptor, ServerConnection};
use rustls::{CipherSuite, ClientConfig, ClientConnection, NamedGroup, SignatureScheme};

use super::acceptor::NotAdmitted;
use super::*;

fn issue(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> ServerCertificate {
    let key = match algorithm == &PKCS_RSA_SHA256 {
        // Generating a key takes a second.
        true => KeyPair::from_pem(RSA_KEY).unwrap(),
        false => KeyPair::generate_for(algorithm).unwrap(),
    };
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    ServerCertificate::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

fn ecdsa(names: &[&str]) -> ServerCertificate {
    issue(names, &PKCS_ECDSA_P256_SHA256)
}

/// Creates an acceptor for sites by name; the name `""` is that of the first.
fn acceptor(sites: Vec<(&'static str, TlsSite)>, store: &CertificateStore) -> TlsAcceptor {
    let (names, sites): (Vec<&str>, Vec<_>) =
        sites.into_iter().map(|(name, site)| (name, Some(site))).unzip();
    let find = move |host: &str| {
        let named = |pattern: &&str| super::certificate::covers(pattern, host);
        names.iter().position(named).or_else(|| names.iter().position(|name| name.is_empty()))
    };
    serving(&TlsOptions::default(), find, sites, store.clone())
}

fn serving(
    options: &TlsOptions,
    find: impl Fn(&str) -> Option<usize> + Send + Sync + 'static,
    sites: Vec<Option<TlsSite>>,
    store: CertificateStore,
) -> TlsAcceptor {
    let acceptor = TlsAcceptor::new(store);
    acceptor.replace(options, move |name, _| find(name), sites).unwrap();
    acceptor
}

fn site(certificates: &[ServerCertificate]) -> TlsSite {
    TlsSite { certificates: certificates.to_vec(), ..TlsSite::default() }
}

/// Configuration of a client.
struct Client {
    config: ClientConfig,
}

impl Client {
    fn new() -> Client {
        Client::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut CryptoProvider)) -> Client {
        let mut crypto = provider::default_provider();
        change(&mut crypto);
        let crypto = Arc::new(crypto);
        let mut config = ClientConfig::builder_with_provider(crypto.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(crypto)))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Client { config }
    }

    /// A client that supports only these signature schemes.
    fn verifying(schemes: &'static [SignatureScheme]) -> Client {
        Client::with(|crypto| {
            let algorithms = &mut crypto.signature_verification_algorithms;
            let known = algorithms.mapping.iter().filter(|(scheme, _)| schemes.contains(scheme));
            algorithms.mapping = Vec::leak(known.copied().collect());
        })
    }

    fn connect(
        &self,
        acceptor: &TlsAcceptor,
        name: &str,
    ) -> Result<(ClientConnection, ServerConnection), NotAdmitted> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(self.config.clone()), name).unwrap();
        let mut hello = Acceptor::default();
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        let mut rest = &wire[..];
        let accepted = loop {
            hello.read_tls(&mut rest).unwrap();
            if let Some(accepted) = hello.accept().unwrap() {
                break accepted;
            }
        };
        let admission = acceptor.admit(&accepted.client_hello(), "192.0.2.1", None, 0)?;
        let mut server = accepted.into_connection(admission.config).unwrap();
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut rest = &wire[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            let mut rest = &wire[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
        }
        Ok((client, server))
    }

    /// Returns the names of the certificate that the client gets.
    fn presented_names(&self, acceptor: &TlsAcceptor, name: &str) -> Result<Vec<String>, NotAdmitted> {
        let (client, _) = self.connect(acceptor, name)?;
        Ok(CertificateInfo::of_der(&client.peer_certificates().unwrap()[0]).unwrap().names)
    }
}

#[test]
fn certificate_is_selected_by_name_and_unknown_names_fail() {
    let store = CertificateStore::new();
    let one = || site(&[ecdsa(&["one.test"])]);
    let wild = || site(&[ecdsa(&["*.wild.test"]), ecdsa(&["exact.wild.test"])]);
    let strict = acceptor(vec![("one.test", one()), ("*.wild.test", wild())], &store);
    let client = Client::new();
    assert_eq!(client.presented_names(&strict, "one.test").unwrap(), ["one.test"]);
    assert_eq!(client.presented_names(&strict, "any.wild.test").unwrap(), ["*.wild.test"]);
    assert_eq!(
        client.presented_names(&strict, "exact.wild.test").unwrap(),
        ["*.wild.test"],
        "the first that is for it"
    );
    assert_eq!(client.presented_names(&strict, "two.test").unwrap_err(), NotAdmitted::UnknownName);
    assert_eq!(client.presented_names(&strict, "10.0.0.1").unwrap_err(), NotAdmitted::UnknownName);
    let lenient = acceptor(vec![("", site(&[ecdsa(&["default.test"])])), ("one.test", one())], &store);
    assert_eq!(client.presented_names(&lenient, "two.test").unwrap(), ["default.test"]);
    assert_eq!(
        client.presented_names(&lenient, "10.0.0.1").unwrap(),
        ["default.test"],
        "a client that names no host"
    );
    assert_eq!(client.presented_names(&lenient, "one.test").unwrap(), ["one.test"]);
}

#[test]
fn certificate_matches_signature_schemes_of_the_client() {
    let both = site(&[ecdsa(&["a.test"]), issue(&["a.test", "rsa.test"], &PKCS_RSA_SHA256)]);
    let acceptor = acceptor(vec![("a.test", both)], &CertificateStore::new());
    assert_eq!(Client::new().presented_names(&acceptor, "a.test").unwrap(), ["a.test"]);
    let rsa_only = Client::verifying(&[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256]);
    assert_eq!(rsa_only.presented_names(&acceptor, "a.test").unwrap(), ["a.test", "rsa.test"]);
    let neither = Client::verifying(&[SignatureScheme::ED25519]);
    assert_eq!(neither.presented_names(&acceptor, "a.test").unwrap_err(), NotAdmitted::NoSignature);
}

#[test]
fn certificates_are_installed_and_removed_at_runtime() {
    let store = CertificateStore::new();
    let automatic = || TlsSite { uses_store: true, ..TlsSite::default() };
    let acceptor = acceptor(vec![("a.test", automatic()), ("*.a.test", automatic())], &store);
    let missing = Arc::new(Mutex::new(Vec::new()));
    let reported = missing.clone();
    store.report_missing(move |name, _| reported.lock().unwrap().push(name.to_owned()));
    let client = Client::new();
    assert_eq!(client.presented_names(&acceptor, "a.test").unwrap_err(), NotAdmitted::NoCertificate);
    assert_eq!(*missing.lock().unwrap(), ["a.test"]);
    store.install(&["A.test", "*.a.test"], &ecdsa(&["a.test", "first.test"]));
    assert_eq!(client.presented_names(&acceptor, "a.test").unwrap(), ["a.test", "first.test"]);
    assert_eq!(client.presented_names(&acceptor, "b.a.test").unwrap(), ["a.test", "first.test"]);
    store.install(&["a.test"], &ecdsa(&["a.test", "second.test"]));
    assert_eq!(client.presented_names(&acceptor, "a.test").unwrap(), ["a.test", "second.test"]);
    store.install(&["a.test"], &issue(&["a.test"], &PKCS_RSA_SHA256));
    assert_eq!(store.certificates("a.test").len(), 2, "an RSA key beside");
    store.remove(&["a.test"]);
    assert_eq!(client.presented_names(&acceptor, "a.test").unwrap_err(), NotAdmitted::NoCertificate);
    store.set_challenge("a.test", Some(ecdsa(&["challenge.test"])));
    assert!(
        client.presented_names(&acceptor, "a.test").is_err(),
        "a challenge's certificate is for its protocol alone"
    );
    let mut authority = Client::new();
    authority.config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    assert_eq!(authority.presented_names(&acceptor, "a.test").unwrap(), ["challenge.test"]);
    store.set_challenge("a.test", None);
    assert!(authority.presented_names(&acceptor, "a.test").is_err());
}

#[test]
fn address_certificate_is_served_without_server_name() {
    let store = CertificateStore::new();
    let automatic = TlsSite { uses_store: true, ..TlsSite::default() };
    let acceptor = acceptor(vec![("", automatic)], &store);
    store.install(&["192.0.2.1"], &ecdsa(&["address.test"]));
    assert_eq!(Client::new().presented_names(&acceptor, "10.0.0.1").unwrap(), ["address.test"]);
}

#[test]
fn preferred_cipher_suites_and_groups_are_negotiated() {
    let acceptor = acceptor(vec![("", site(&[ecdsa(&["a.test"])]))], &CertificateStore::new());
    let suite = |client: &Client| {
        let (connection, _) = client.connect(&acceptor, "a.test").unwrap();
        (
            connection.negotiated_cipher_suite().unwrap().suite(),
            connection.negotiated_key_exchange_group().unwrap().name(),
        )
    };
    // A client with OpenSSL's order: AES-256 first.
    let (cipher, group) = suite(&Client::new());
    assert_eq!((cipher, group), (CipherSuite::TLS13_AES_128_GCM_SHA256, NamedGroup::X25519MLKEM768));
    let mobile = Client::with(|crypto| {
        crypto
            .cipher_suites
            .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        crypto.kx_groups.retain(|group| group.name() == NamedGroup::X25519);
    });
    assert_eq!(suite(&mobile), (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, NamedGroup::X25519));
    let old = Client::with(|crypto| crypto.cipher_suites.retain(|suite| suite.tls13().is_none()));
    assert_eq!(suite(&old).0, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
}

#[test]
fn sites_are_added_and_removed_at_runtime() {
    let acceptor = TlsAcceptor::new(CertificateStore::new());
    let shown = || Client::new().presented_names(&acceptor, "a.test").is_ok();
    let replace = |sites| acceptor.replace(&TlsOptions::default(), |_, _| Some(0), sites).unwrap();
    assert!(!shown(), "no site is reached through TLS");
    replace(vec![Some(site(&[ecdsa(&["a.test"])]))]);
    assert!(shown());
    replace(vec![None]);
    assert!(!shown());
}

#[test]
fn a_session_resumes_on_another_server_with_the_same_secret() {
    let certificate = ecdsa(&["a.test"]);
    let server = |secret: u8| {
        let options = TlsOptions {
            tickets: Some(TicketKeys::from_secrets(vec![vec![secret; 48]]).unwrap()),
            ..TlsOptions::default()
        };
        let sites = vec![Some(site(std::slice::from_ref(&certificate)))];
        serving(&options, |_| Some(0), sites, CertificateStore::new())
    };
    let mut client = Client::new();
    client.config.resumption = Resumption::in_memory_sessions(4);
    let resumed = |acceptor: &TlsAcceptor| {
        let (_, server) = client.connect(acceptor, "a.test").unwrap();
        server.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    };
    assert_eq!([resumed(&server(1)), resumed(&server(1)), resumed(&server(2))], [false, true, false]);
}

#[test]
fn client_certificate_policies_differ_and_invalid_ones_fail() {
    let authority = ecdsa(&["authority.test"]);
    let pem = |certificate: &ServerCertificate| {
        let der = certificate.chain_der().next().unwrap().to_vec();
        rcgen_pem(&der)
    };
    let client = |required| ClientCertificates {
        authorities_pem: pem(&authority),
        is_required: required,
        ..ClientCertificates::default()
    };
    let with = |client| TlsSite { client, ..site(&[ecdsa(&["a.test"])]) };
    let one = vec![("a.test", with(Some(client(false))))];
    let acceptor = acceptor(one, &CertificateStore::new());
    assert_ne!(client(false).policy(), client(true).policy());
    let broken = ClientCertificates { authorities_pem: b"none".to_vec(), ..ClientCertificates::default() };
    let replaced = acceptor.replace(&TlsOptions::default(), |_, _| Some(0), vec![Some(with(Some(broken)))]);
    assert!(replaced.unwrap_err().to_string().contains("no certificate"));
    assert!(Client::new().presented_names(&acceptor, "a.test").is_ok(), "all stays as it was");
}

/// A client certificate whose authority nobody knows.
#[derive(Debug)]
struct OwnCertificate(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for OwnCertificate {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn unverified_clients_are_asked_for_a_certificate_of_which_nothing_is_known() {
    let certificate = ecdsa(&["authority.test"]);
    let pem = rcgen_pem(certificate.chain_der().next().unwrap());
    let admitting =
        ClientCertificates { authorities_pem: pem, admits_unverified: true, ..ClientCertificates::default() };
    let sites = |client| vec![("a.test", TlsSite { client: Some(client), ..site(&[ecdsa(&["a.test"])]) })];
    let policy = admitting.policy();
    let strict = ClientCertificates { admits_unverified: false, ..admitting.clone() };
    assert_eq!(strict.policy() & super::acceptor::UNVERIFIED_POLICY, 0);
    let acceptor = acceptor(sites(admitting), &CertificateStore::new());
    let (_, server) = Client::new().connect(&acceptor, "a.test").unwrap();
    assert!(server.peer_certificates().is_none());
    let mut client = Client::new();
    client.config.client_auth_cert_resolver =
        Arc::new(OwnCertificate(ecdsa(&["other.test"]).certified_key()));
    let (_, server) = client.connect(&acceptor, "a.test").unwrap();
    assert!(server.peer_certificates().is_some(), "it was asked for");
    let session = super::TlsSession::of(&server, Some("a.test"), policy).unwrap();
    assert_eq!(session.client, None);
}

fn rcgen_pem(der: &[u8]) -> Vec<u8> {
    let made = std::process::Command::new("openssl")
        .args(["x509", "-inform", "DER"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut openssl = made.unwrap();
    std::io::Write::write_all(&mut openssl.stdin.take().unwrap(), der).unwrap();
    openssl.wait_with_output().unwrap().stdout
}

#[test]
fn all_key_encodings_are_read_and_errors_name_the_cause() {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = std::env::temp_dir().join(format!(
        "komainu-keys-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let script = r#"set -e
        openssl ecparam -name prime256v1 -genkey -out ec.key
        openssl pkcs8 -topk8 -nocrypt -in ec.key -out ec8.key
        openssl req -x509 -new -key ec.key -subj /CN=a.test -addext subjectAltName=DNS:A.test -days 2 -out ec.crt
        openssl rsa -in rsa8.key -traditional -out rsa1.key
        openssl req -x509 -new -key rsa8.key -subj /CN=b.test -days 2 -out rsa8.crt
        openssl pkcs8 -topk8 -in ec.key -passout pass:x -out locked.key
        cat ec.crt ec.key > both.pem
        cat rsa8.crt ec.crt > reversed.pem
        openssl x509 -in ec.crt -outform der -out ec.der
        openssl pkey -in ec.key -outform der -out key.der
        openssl pkcs12 -export -in ec.crt -inkey ec.key -passout pass:x -out ec.p12
        openssl req -new -key ec.key -subj /CN=a.test -out ec.csr
        openssl req -x509 -new -key ec.key -subj '/C=DE/O=A, B; C"/CN=x,O=Admin+OU=y' -days 2 -out dn.crt
        openssl x509 -in dn.crt -noout -subject -nameopt RFC2253 > dn.txt
        openssl x509 -req -in ec.csr -signkey ec.key -days 2 -out v1.crt
        mark() { printf '\357\273\277'; cat $1; }
        mark rsa8.crt > marked.crt; mark ec.crt >> marked.crt; mark rsa8.key > marked.key
        head -c 400 ec.crt > cut.crt; head -c 120 ec8.key > cut.key
        sed 5d ec.crt > hole.crt; sed 5d rsa8.key > hole.key; sed 's/^M/?/' ec.crt > odd.crt
        iconv -t utf-16 ec.crt > wide.crt; : > empty.crt"#;
    std::fs::write(folder.join("rsa8.key"), RSA_KEY).unwrap();
    let made = std::process::Command::new("sh").args(["-c", script]).current_dir(&folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let load = |chain: &str, key: &str| ServerCertificate::from_pem(&read(chain), &read(key));
    for (chain, key) in [
        ("ec.crt", "ec.key"),
        ("ec.crt", "ec8.key"),
        ("rsa8.crt", "rsa1.key"),
        ("rsa8.crt", "rsa8.key"),
        ("both.pem", "both.pem"),
        ("marked.crt", "marked.key"),
    ] {
        load(chain, key).unwrap_or_else(|fault| panic!("{chain}, {key}: {}", fault.reason));
    }
    assert_eq!(load("marked.crt", "marked.key").unwrap().chain_der().count(), 2);
    let info = load("ec.crt", "ec.key").unwrap().info().clone();
    assert_eq!((info.names, info.subject.as_str()), (vec!["a.test".to_owned()], "CN=a.test"));
    // A name in which a value imitates another part, in the format of OpenSSL and nginx.
    let subject = load("dn.crt", "ec.key").unwrap().info().subject.clone();
    assert!(subject.starts_with("CN=x\\,O=Admin"), "{subject}");
    assert_eq!(format!("subject={subject}\n"), String::from_utf8(read("dn.txt")).unwrap());
    // The file to blame, and a part of the message.
    for (chain, key, blamed, words) in [
        ("ec.crt", "rsa8.key", "rsa8.key", "does not belong to the certificate in ec.crt: `openssl x509"),
        ("reversed.pem", "ec.key", "reversed.pem", "belongs to certificate 2 in it: put the server's own"),
        ("ec.crt", "locked.key", "locked.key", "encrypted: remove its passphrase with `openssl pkey"),
        ("ec.crt", "ec.crt", "ec.crt", "no private key: name the key's file with `key`"),
        ("ec.crt", "key.der", "key.der", "DER, not PEM: `openssl pkey -inform der"),
        ("ec.crt", "ec.p12", "ec.p12", "PKCS #12: `openssl pkcs12"),
        ("ec.p12", "ec.p12", "ec.p12", "PKCS #12: `openssl pkcs12"),
        ("ec.der", "ec.key", "ec.der", "DER, not PEM: `openssl x509 -inform der"),
        ("ec.key", "ec.key", "ec.key", "a private key in it and no certificate"),
        ("ec.csr", "ec.key", "ec.csr", "a certificate request"),
        ("v1.crt", "ec.key", "v1.crt", "X.509 version 1"),
        ("cut.crt", "ec.key", "cut.crt", "it is cut off: the line `-----END CERTIFICATE-----` is missing"),
        ("ec.crt", "cut.key", "cut.key", "it is cut off: the line `-----END PRIVATE KEY-----` is missing"),
        ("hole.crt", "ec.key", "hole.crt", "certificate 1 in it is cut off or damaged: copy"),
        ("ec.crt", "hole.key", "hole.key", "the private key in it is cut off or damaged: copy"),
        ("odd.crt", "ec.key", "odd.crt", "not base64"),
        ("wide.crt", "ec.key", "wide.crt", "UTF-16: `iconv"),
        ("empty.crt", "ec.key", "empty.crt", "it is empty"),
        ("ec.key", "ec.crt", "ec.key", "the certificate is in the file of the key: exchange the two"),
    ] {
        let fault = load(chain, key).unwrap_err().in_files(chain.as_ref(), key.as_ref());
        assert!(
            fault.starts_with(&format!("{blamed}: ")) && fault.contains(words),
            "{chain}, {key}: {fault}"
        );
    }
    let names = ["ec.crt", "ec.key", "rsa8.crt", "rsa8.key", "both.pem"];
    let files = names.iter().map(|name| (folder.join(name), read(name))).collect();
    assert_eq!(ServerCertificate::from_folder(&folder, &files).unwrap().len(), 3);
    let cut = ["cut.crt", "cut.key"].iter().map(|name| (folder.join(name), read(name))).collect();
    let damaged = ServerCertificate::from_folder(&folder, &cut).unwrap_err().to_string();
    assert!(damaged.contains("cut.crt: it is cut off"), "{damaged}");
    let none = ServerCertificate::from_folder(&folder.join("none"), &files);
    assert!(none.unwrap_err().to_string().contains("NAME.key"));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// An RSA key for tests, because generating one takes a second.
const RSA_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSiAgEAAoIBAQCias3Uy0OcXGQ2
Q6KJrt8GIW2Q2HJQM9305xRI1r9iyL9tulcZ3krxjTyAXqSrmnJUbaVP4uPhwd0s
HAP342oas/aukz7VhETVpHALF/vBrfGimS3Geq1Ry5NulRlY+JYhiyN91GAYKuoy
v/WJpX7Vdj5Q+S/sKX6yYqpclQul0GSE2WGqWdjfpu+4qTGAeXTvET4yqoZeFjJB
fWVDTz98vuwFTS7er4eaeMLsjcd+kbEmrBVbQEOhptc/4EpMhR0vnIWi57ljQqi0
EX1dL1V3af0TpiSDqNu1QBcRlK4yYDG2CP9O8t+2B/8fkOh9ggaDYmvT5d7rqj0/
Yo0m1b+NAgMBAAECggEAF2wuK2Q156iGVjIKUG9M4AI1nhgs4iacuYsSqI95scoQ
G0eudH9TkQLEiSG8/zdqigT2/G6U3RObbRdMNjVQcbHm3xXCj8G/uIy6kMsAZlXK
vV94U8GQ2bUxWZb8fRF6ezNo5qZYRlv4AuIei593i1q+UWiiUd1JFXo3pdrjv2Fz
rx2fwpWLnW/o0Ikr/pkqEy7jzTIlOtbmU7iifh9vI+2+jB+Mqki4iuVdVeG00bpH
7wC099cJyCwbxM31pXAeMaossIrIoHY0gm2QmV5YZ+PKYVmTcVSjBgPpqxRdVBXx
6m3zoGKmA27hgtUYZPW/qvZgEW3vp7w/kITepzBH8QKBgQDPfuIiiLLU2eVKRZ3P
jUDsRtYPIiAVJtuffKzje3/8tyWhvt6Fyrvuov2tza04qVlzr/XE4Iidl57svRo0
u/epkHa3GOfO//SgeXmJb4Ogb5n4foYY7/GpFVlP8lznQv3nCthffO+8RS/mso7C
DH76En5YJLpEu8ALW/7fCo10fQKBgQDIYk042vZW6fxIDOHAA4JMgKHCpHDHqYsV
QQwQZ09FR/R9lkl6A1uDJT7nZGSo0vSMAalSCtZENE1agi9q7F/7zeOGDNIdXxBG
qMrcZiATh0oKmv2VXHGYtYEsAVxtbDssEkAYirvbTQMAcRvuJBUvrLQGXPFZzFkU
DVkSNpy0UQKBgBXFHjy5Uun6IpB0VWZdT556oCLeVbdiaFCHaCxF3NvK62vY9sfa
yXT0LOF7Xt0/B1+X6pVJaYv/SHFWNdWqkwV7Xrk/J7MUL7pWhGXjCVBf5SupOrCL
HDO9Ra2ZpB2vbaw7+w+psA10xN3Thh7d6MScBB2DXPexKykF8eu807KRAoGAJM9i
DiqzC/5JuNac9c/vNKyAiqf4i8UKZqofVDgWKMzyDcv4zXAmdG34Izue/iBaigmY
GBkjiT3uY8z8dvDbJP+KZ0qdooWfEMvbECe2hr/YiyAzqydjOsFE7FeHqhYyvILR
wXBi2ANKpN8iWVnJhot8OpsCPxO53WQiU6UynjECgYB0kD9e+sMgzlDi4OP8FXWb
vDv8zuEecy/vUYAGjQdQzWiRTekgyWofJu0DSI4rmpn5pDMMP7CeunFmOE+HqQHu
F6/9AVVNDt/MIfsn5gF6wCABnkSVnH5Fuwtl+6A/R7xzk2XDS7j8aye4t+Idxv6k
Scorl0p8niA1IRH/stRpNQ==
-----END PRIVATE KEY-----
";
