//! TLS to upstream servers, with a certificate authority created for the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rig;
use crate::rig::{Options, Rig};
use proxy::options::{GroupOptions, HealthCheck, Tls, UpstreamAddress, UpstreamServer};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use times::Millis;

/// A certificate authority.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    /// Issues a certificate for a name; returns it and its key as PEM.
    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (Vec<u8>, Vec<u8>) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(format!("spiffe://{name}/app").try_into().unwrap()));
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

/// A TLS server that answers every request with the requested server name.
struct Secure {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    resumed: Arc<AtomicUsize>,
}

impl Secure {
    fn start(authority: &Authority, name: &str, asks_who: bool) -> Secure {
        let (certificate, key) = authority.sign(name, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if asks_who {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(&authority.pem()).unwrap()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![CertificateDer::from_pem_slice(&certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
        let config = Arc::new(builder.with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, resumed): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let count = connections.clone();
        let again = resumed.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = config.clone();
                let count = count.clone();
                let again = again.clone();
                std::thread::spawn(move || serve(config, stream, &count, &again));
            }
        });
        Secure { address, connections, resumed }
    }

    fn options(&self, tls: Tls) -> Options {
        let at = UpstreamAddress::Tcp { host: self.address.ip().to_string(), port: self.address.port() };
        Options::to(vec![UpstreamServer { tls: Some(tls), ..UpstreamServer::new(at) }])
    }
}

fn serve(config: Arc<ServerConfig>, stream: TcpStream, count: &AtomicUsize, resumed: &AtomicUsize) {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut request = Vec::new();
    let mut first = true;
    let mut waits = true;
    loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(len) if len > 0 => request.extend_from_slice(&piece[..len]),
            _ => return,
        }
        // A slow server: what is sent meanwhile fills all buffers on the way.
        let late = request.starts_with(b"POST /late");
        if late && std::mem::take(&mut waits) {
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        if std::mem::take(&mut first) {
            count.fetch_add(1, Ordering::SeqCst);
            let again = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
            resumed.fetch_add(usize::from(again), Ordering::SeqCst);
        }
        // A server that answers early and stops reading.
        if request.starts_with(b"POST /early") {
            // Until all buffers on the way are full.
            std::thread::sleep(std::time::Duration::from_millis(200));
            let _ = stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 6\r\n\r\nenough");
            return;
        }
        // For `/late` the body ends with an empty line, too.
        if request.ends_with(if late { b"x\r\n\r\n" } else { b"\r\n\r\n" }) {
            let asked = stream.conn.server_name().unwrap_or("nobody").to_owned();
            let closes = request.starts_with(b"GET /close");
            let large = request.starts_with(b"GET /large");
            let more = request.starts_with(b"GET /more");
            request.clear();
            let body = if large { "x".repeat(3_000_000) } else { asked };
            let length = if closes { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
            let mut response = format!("HTTP/1.1 200 OK\r\n{length}\r\n{body}");
            if more {
                // The response fills a record and a buffer exactly; unrequested bytes follow it.
                let body = "x".repeat(16 * 1024 - "HTTP/1.1 200 OK\r\nContent-Length: 16341\r\n\r\n".len());
                response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                response.push_str("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
            }
            if stream.write_all(response.as_bytes()).is_err() {
                return;
            }
            if closes {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
        }
    }
}

#[test]
fn server_without_http2_alpn_yields_502() {
    let authority = Authority::new();
    let origin = Secure::start(&authority, "origin.test", false);
    let tls = Tls { name: Some("origin.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let mut options = origin.options(tls);
    options.group.servers[0].protocol = proxy::options::UpstreamProtocol::Http2;
    let refused = Rig::with(options).get("/").refused();
    assert_eq!(refused, (502, "the upstream does not offer HTTP/2 (ALPN)".into()));
}

#[test]
fn connection_to_a_trusted_server_is_kept() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let rig = Rig::with(secure.options(tls));
    for _ in 0..20 {
        assert_eq!(rig.get("/").text(), "app.test");
    }
    assert_eq!(secure.connections.load(Ordering::SeqCst), 1);
    assert_eq!(rig.get("/large").body.len(), 3_000_000);
    // A body that ends with the connection is complete only after a TLS `close_notify`.
    assert_eq!(rig.get("/close").text(), "app.test");
    assert_eq!(secure.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn connection_with_surplus_bytes_is_not_reused() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let rig = Rig::with(secure.options(tls));
    for number in 1..=5 {
        let body = rig.get("/more").body;
        assert!(body.iter().all(|&byte| byte == b'x') && body.len() > 16_000, "{}", body.escape_ascii());
        assert_eq!(secure.connections.load(Ordering::SeqCst), number);
    }
    assert_eq!(rig.get("/").text(), "app.test");
}

#[test]
fn bodies_of_any_size_reach_a_slow_server() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let mut options = secure.options(tls);
    options.route.timeouts.head = Millis(10_000);
    options.group.ejection = None;
    let rig = Rig::with(options);
    // Bodies of various sizes, so that one of them just fills the socket buffers on the way.
    let clients: Vec<_> = (1..=120)
        .map(|step| {
            let mut client = rig.client();
            std::thread::spawn(move || {
                let mut body = vec![b'x'; step * 40_000];
                body.extend_from_slice(b"\r\n\r\n");
                let len = body.len();
                client.send(&format!("POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"));
                client.send_bytes(&body);
                (len, client.response(http::Method::Post).unwrap().status)
            })
        })
        .collect();
    let answers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let failed: Vec<_> = answers.iter().filter(|(_, status)| *status != 200).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn early_response_is_not_lost_when_the_server_closes() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let rig = Rig::with(secure.options(tls));
    for _ in 0..5 {
        let mut client = rig.client();
        client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 90000000\r\n\r\n");
        let mut writer = client.stream.try_clone().unwrap();
        std::thread::spawn(move || {
            let body = vec![b'x'; 100_000];
            while writer.write_all(&body).is_ok() {}
        });
        let response = client.response(http::Method::Post).unwrap();
        assert_eq!((response.status, response.text().as_str()), (413, "enough"));
    }
}

#[test]
fn tls_sessions_are_resumed() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    let mut options = secure.options(tls);
    options.group.keep_alive.idle_max = 0;
    let rig = Rig::with(options);
    for _ in 0..10 {
        assert_eq!(rig.get("/").text(), "app.test");
    }
    assert_eq!(secure.connections.load(Ordering::SeqCst), 10);
    assert_eq!(secure.resumed.load(Ordering::SeqCst), 9);
}

#[test]
fn server_with_an_untrusted_certificate_gets_no_request() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let trusting = |name: &str, roots: &Authority| Tls {
        name: Some(name.into()),
        roots_pem: Some(roots.pem()),
        ..Tls::default()
    };
    for (tls, reason) in [
        (trusting("app.test", &stranger), "the certificate's issuer is not trusted"),
        (trusting("other.test", &authority), "the certificate is for another name"),
        // The name is the address, and the issuer is not one of the system's roots.
        (Tls::default(), "the certificate's issuer is not trusted"),
    ] {
        let rig = Rig::with(secure.options(tls));
        assert_eq!(rig.get("/").refused(), (502, reason.into()));
    }
    assert_eq!(secure.connections.load(Ordering::SeqCst), 0);
    let anybody = Tls { insecure: true, name: Some("x.test".into()), ..Tls::default() };
    assert_eq!(Rig::with(secure.options(anybody)).get("/").text(), "x.test");
}

#[test]
fn certificate_needs_one_of_the_verified_names() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let naming = |names: &[&str], roots: &Authority| Tls {
        name: Some("sent.test".into()),
        verify_names: names.iter().map(|&name| name.to_owned()).collect(),
        roots_pem: Some(roots.pem()),
        ..Tls::default()
    };
    for names in [&["app.test"][..], &["other.test", "spiffe://app.test/app"]] {
        // The server answers with the name that was sent.
        assert_eq!(Rig::with(secure.options(naming(names, &authority))).get("/").text(), "sent.test");
    }
    let accepted = secure.connections.load(Ordering::SeqCst);
    let other = "the certificate is for another name";
    for (names, roots, reason) in [
        (&["sent.test"][..], &authority, other),
        (&["spiffe://app.test/APP"], &authority, other),
        (&["spiffe://app.test/app/more", "spiffe://app.test"], &authority, other),
        (&["app.test"], &Authority::new(), "the certificate's issuer is not trusted"),
    ] {
        let rig = Rig::with(secure.options(naming(names, roots)));
        assert_eq!(rig.get("/").refused(), (502, reason.into()), "{names:?}");
    }
    assert_eq!(secure.connections.load(Ordering::SeqCst), accepted);
}

#[test]
fn client_certificate_is_presented_when_required() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, "app.test", true);
    let mut tls = Tls { name: Some("app.test".into()), roots_pem: Some(authority.pem()), ..Tls::default() };
    assert_eq!(Rig::with(secure.options(tls.clone())).get("/").status, 502);
    tls.identity_pem = Some(authority.sign("proxy.test", ExtendedKeyUsagePurpose::ClientAuth));
    assert_eq!(Rig::with(secure.options(tls)).get("/").text(), "app.test");
}

#[test]
fn plaintext_server_on_a_tls_upstream_yields_502() {
    let plain = rig::Origin::start(|mut caller, _| caller.send("HTTP/1.1 400 Bad Request\r\n\r\n"));
    let tls = Tls { insecure: true, ..Tls::default() };
    let rig = Rig::with(Options::to(vec![UpstreamServer { tls: Some(tls), ..plain.server() }]));
    assert_eq!(rig.get("/").refused(), (502, "the server does not speak TLS".into()));
}

#[test]
fn invalid_tls_options_are_rejected_at_once() {
    let broken = |tls: Tls| {
        let at = UpstreamAddress::Tcp { host: "127.0.0.1".into(), port: 1 };
        proxy::GroupShared::new(GroupOptions::new(vec![UpstreamServer {
            tls: Some(tls),
            ..UpstreamServer::new(at)
        }]))
        .unwrap_err()
        .to_string()
    };
    let error = broken(Tls { roots_pem: Some(b"nothing".to_vec()), ..Tls::default() });
    assert_eq!(error, "https://127.0.0.1:1: there is no certificate in the PEM text");
    let error = broken(Tls { name: Some("not a name".into()), ..Tls::default() });
    assert!(error.contains("`not a name`"), "{error}");
}

#[test]
fn health_checks_verify_the_certificate() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let secure = Secure::start(&authority, "app.test", false);
    let tls = Tls { name: Some("app.test".into()), roots_pem: Some(stranger.pem()), ..Tls::default() };
    let mut options = secure.options(tls);
    options.group.check = Some(HealthCheck { interval: Millis(1), fall: 1, ..HealthCheck::default() });
    let rig = Rig::with(options);
    for _ in 0..5_000 {
        if rig.get("/").status == 503 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("a server that is not who it says it is was never taken out");
}

#[test]
fn tls_connection_is_shared_between_threads() {
    let authority = Authority::new();
    let origin = Secure::start(&authority, "127.0.0.1", false);
    let rig = Rig::on(4, origin.options(Tls { roots_pem: Some(authority.pem()), ..Tls::default() }));
    for _ in 0..40 {
        assert_eq!(rig.get("/").status, 200);
    }
    assert_eq!(origin.connections.load(Ordering::SeqCst), 1);
}
