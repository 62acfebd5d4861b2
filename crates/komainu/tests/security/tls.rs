//! The table of docs/security.md for TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use crate::bounds::{hold, work};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, client_config, connect, eventually, komainu, text};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection};

/// Starts a server with TLS and long timeouts.
fn server() -> Rig {
    let folder = Folder::new();
    folder.certify();
    let text = r#"
        threads = 1
        listen = { address = "127.0.0.1:0", tls = true }
        tls.default = { certificate = "cert.pem", key = "key.pem" }

        [limits]
        memory = "8GiB"

        [timeouts]
        head = "2m"
        idle = "2m"

        [[route]]
        respond = "x"
    "#;
    folder.write("komainu.toml", format!("{}{text}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

fn client(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap()
}

/// A connection after a full handshake.
struct Secure {
    tls: ClientConnection,
    stream: TcpStream,
}

impl Secure {
    fn new(rig: &Rig, config: &Arc<ClientConfig>) -> Secure {
        let mut tls = client(config);
        let mut stream = connect(rig.listens);
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        Secure { tls, stream }
    }

    fn ask(mut self, request: &str) -> Secure {
        let mut both = rustls::Stream::new(&mut self.tls, &mut self.stream);
        both.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            both.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "));
        self
    }
}

/// Client configuration without session resumption.
fn full_handshakes() -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&client_config());
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends these bytes on a new connection.
fn says(rig: &Rig, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(rig.listens);
    stream.write_all(bytes).unwrap();
    stream
}

/// Opens `count` connections to a new server: memory freed by other states would be reused.
fn hold_alone<C>(state: &str, count: usize, open: impl Fn(&Rig) -> C) {
    let rig = server();
    // Memory allocated for the first handshake and request is shared by later ones.
    Secure::new(&rig, &full_handshakes()).ask(HEAD);
    hold(&rig, state, count, || open(&rig), |_| ());
}

#[test]
fn idle_and_slow_tls_clients_stay_within_bounds() {
    let config = full_handshakes();
    let mut hello = Vec::new();
    client(&config).write_tls(&mut hello).unwrap();
    hold_alone("TLS, connected, silent", 1_000, |rig| connect(rig.listens));
    hold_alone("TLS, first message begun", 1_000, |rig| says(rig, &hello[..hello.len() / 2]));
    hold_alone("TLS, handshake left half-way", 1_000, |rig| {
        let mut stream = says(rig, &hello);
        // The server has responded and holds its state for the client's next message.
        stream.read_exact(&mut [0; 512]).unwrap();
        stream
    });
    hold_alone("TLS, idle after a request", 1_000, |rig| Secure::new(rig, &config).ask(HEAD));
    let mut record = vec![b'x'; 5 + 16 * 1024];
    record[..5].copy_from_slice(&[23, 3, 3, 0x40, 0x01]);
    hold_alone("TLS, record nearly whole", 500, |rig| {
        let mut client = Secure::new(rig, &config).ask(HEAD);
        client.stream.write_all(&record).unwrap();
        client
    });
}

#[test]
fn tls_floods_stay_within_bounds() {
    let rig = server();
    let config = full_handshakes();
    work(&rig, "TLS, a handshake for each connection", || {
        (0..300).for_each(|_| drop(Secure::new(&rig, &config)));
        300
    });
    let mut post = Secure::new(&rig, &config);
    work(&rig, "TLS, records of one byte", || {
        let mut all = Vec::new();
        let mut say = |bytes: &[u8]| {
            post.tls.writer().write_all(bytes).unwrap();
            while post.tls.wants_write() {
                post.tls.write_tls(&mut all).unwrap();
            }
        };
        say(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n");
        (0..20_000).for_each(|_| say(b"x"));
        post.stream.write_all(&all).unwrap();
        // The response is sent when the last byte has been read.
        post.ask("");
        20_000
    });
    work(&rig, "TLS, key updates without end", || {
        for _ in 0..50 {
            let mut client = Secure::new(&rig, &config).ask(HEAD);
            let mut all = Vec::new();
            for _ in 0..1_000 {
                client.tls.refresh_traffic_keys().unwrap();
                client.tls.write_tls(&mut all).unwrap();
            }
            // The server closes before it has read all of the bytes.
            let _ = client.stream.write_all(&all);
            rig::read_to_close(&mut client.stream);
        }
        50
    });
}

#[test]
fn a_record_that_is_too_long_ends_the_connection() {
    let rig = server();
    let config = full_handshakes();
    let mut client = Secure::new(&rig, &config).ask(HEAD);
    // The record limit of TLS 1.2 is 2^14 + 2048 bytes (RFC 5246 section 6.2.3), which rustls also applies to
    // TLS 1.3. The server does not wait for the payload.
    client.stream.write_all(&[23, 3, 3, 0x48, 0x01]).unwrap();
    // The close or reset arrives within the client's timeout, which is shorter than the server's.
    let ended = client.stream.read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    Secure::new(&rig, &config).ask(HEAD);
}

#[test]
fn oversized_client_hello_ends_the_connection() {
    let rig = server();
    let mut stream = connect(rig.listens);
    // A ClientHello with an announced length of 60,000 bytes, in records of 10,000.
    let mut hello = vec![1, 0, 0xea, 0x60];
    hello.resize(20_000, 0);
    for part in hello.chunks(10_000) {
        stream.write_all(&[&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat()).unwrap();
    }
    // The handshake timeout is two minutes.
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

#[test]
fn half_open_handshakes_yield_memory_to_new_clients() {
    let folder = Folder::new();
    folder.certify();
    let text = r#"
        threads = 1
        listen = { address = "127.0.0.1:0", tls = true }
        tls.default = { certificate = "cert.pem", key = "key.pem" }

        [limits]
        memory = "16MiB"

        [timeouts]
        head = "10m"

        [[route]]
        respond = "x"
    "#;
    folder.write("komainu.toml", format!("{}{text}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    // Each holds 16 KiB, and the timeout is ten minutes.
    let _begun: Vec<TcpStream> = (0..1100)
        .map(|_| {
            let mut stream = connect(rig.listens);
            let _ = stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252]);
            stream
        })
        .collect();
    eventually("a client is served", || {
        let mut tls = client(&client_config());
        let mut stream = connect(rig.listens);
        let mut both = rustls::Stream::new(&mut tls, &mut stream);
        let mut answer = Vec::new();
        let _ = both.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let _ = both.read_to_end(&mut answer);
        answer.starts_with(b"HTTP/1.1 200 ")
    });
}

/// Starts a server that requests client certificates, and returns a client that sends very many.
fn with_certificates() -> (Rig, Arc<ClientConfig>) {
    let folder = Folder::new();
    folder.certify();
    let script = "exec 2>&1
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=staff -keyout staff.key -out staff.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=alice -keyout alice.key -out alice.csr
        printf 'extendedKeyUsage=clientAuth\n' > alice.ext
        openssl x509 -req -in alice.csr -CA staff.pem -CAkey staff.key -CAcreateserial -days 2 -extfile alice.ext -out alice.pem";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stdout));
    let certificate =
        |name: &str| CertificateDer::from_pem_slice(&fs::read(folder.at(name)).unwrap()).unwrap();
    let own = certificate("alice.pem");
    let other = certificate("staff.pem");
    // A handshake message is limited to 64 KiB.
    let chain = std::iter::once(own).chain(std::iter::repeat_n(other.clone(), CHAIN_BYTES / other.len()));
    let key = PrivateKeyDer::from_pem_slice(&fs::read(folder.at("alice.key")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let verified = builder.dangerous().with_custom_certificate_verifier(rig::any_certificate());
    let mut config = verified.with_client_auth_cert(chain.collect(), key).unwrap();
    config.resumption = rustls::client::Resumption::disabled();
    let text = r#"
        threads = 1
        listen = { address = "127.0.0.1:0", tls = true }
        tls.default = { certificate = "cert.pem", key = "key.pem", client = "staff.pem" }

        [limits]
        memory = "8GiB"

        [timeouts]
        head = "5m"
        idle = "5m"

        [[route]]
        respond = "x"
    "#;
    folder.write("komainu.toml", format!("{}{text}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    (Rig::start(command, folder), Arc::new(config))
}

/// Approximate total size of the client's certificates in bytes.
const CHAIN_BYTES: usize = 56 * 1024;

/// A connection whose handshake is complete except for the client's last flight, which is returned.
fn before_certificates(rig: &Rig, config: &Arc<ClientConfig>) -> (Secure, Vec<u8>) {
    let mut tls = client(config);
    let mut stream = connect(rig.listens);
    while tls.wants_write() {
        tls.write_tls(&mut stream).unwrap();
    }
    while tls.is_handshaking() {
        tls.read_tls(&mut stream).unwrap();
        tls.process_new_packets().unwrap();
    }
    let mut rest = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut rest).unwrap();
    }
    assert!(rest.len() > CHAIN_BYTES - 4096, "{}", rest.len());
    (Secure { tls, stream }, rest)
}

/// Bytes that the server accounts as held for clients.
fn charged_bytes(rig: &Rig) -> u64 {
    let pid = rig.child.id().to_string();
    let output = komainu().args(["status", "--json", "--pid", &pid]).output().unwrap();
    let servers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    servers[0]["memory"]["held_bytes"].as_u64().unwrap()
}

#[test]
fn client_certificates_count_as_held_memory() {
    const CLIENTS: usize = 20;
    let (rig, config) = with_certificates();
    let expected = (CLIENTS * (CHAIN_BYTES - 4096)) as u64;
    let begun: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (mut client, rest) = before_certificates(&rig, &config);
            let (first, last) = rest.split_at(rest.len() - 500);
            client.stream.write_all(first).unwrap();
            (client, last.to_vec())
        })
        .collect();
    eventually("handshakes under way are charged what has come", || charged_bytes(&rig) >= expected);
    let complete: Vec<Secure> = begun
        .into_iter()
        .map(|(mut client, last)| {
            client.stream.write_all(&last).unwrap();
            client.ask(HEAD)
        })
        .collect();
    // rustls keeps the certificates until the connection ends.
    eventually("idle connections are charged it too", || charged_bytes(&rig) >= expected);
    drop(complete);
    eventually("and nothing once they are closed", || charged_bytes(&rig) < expected / 4);
}

#[test]
fn large_client_certificate_chains_stay_within_bounds() {
    let (rig, config) = with_certificates();
    before_certificates(&rig, &config);
    hold(
        &rig,
        "TLS, client certificates nearly whole",
        100,
        || {
            let (mut client, rest) = before_certificates(&rig, &config);
            client.stream.write_all(&rest[..rest.len() - 1]).unwrap();
            client
        },
        |_| (),
    );
}
