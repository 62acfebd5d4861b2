//! The end of connections: clients lose no unread data, whatever they still send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{
    BindAddress, CertificateStore, Limits, ListenOptions, Options, Server, ServerCertificate, ServingLimits,
    Timeouts, TlsAcceptor, TlsOptions, TlsSite,
};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use times::Millis;

use crate::rig::{FILE_BYTES, PATIENCE, app, finish, options, start, tcp};
use crate::slow_client;

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
/// A window that no response here exhausts.
const WINDOW_BYTES: u32 = 1 << 30;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"whatever")
}

/// A connection with a small receive buffer, in the clear or through TLS. TLS whose end was not announced by close_notify
/// (RFC 8446 section 6.1) is an error to whoever reads.
trait Wire: Read + Write {}

impl Wire for TcpStream {}
impl Wire for StreamOwned<ClientConnection, TcpStream> {}

/// Certificate of a server, and the configuration of its clients.
struct Secured {
    acceptor: TlsAcceptor,
    client: Arc<ClientConfig>,
}

impl Secured {
    fn new() -> Secured {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["here".to_owned()]).unwrap().self_signed(&key).unwrap();
        let own = ServerCertificate::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
        let acceptor = TlsAcceptor::new(CertificateStore::new());
        let site = TlsSite { certificates: vec![own.unwrap()], ..TlsSite::default() };
        acceptor.replace(&TlsOptions::default(), |_, _| Some(0), vec![Some(site)]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate.der().to_vec())).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec()];
        Secured { acceptor, client: Arc::new(client) }
    }
}

/// A server of HTTP/2, in the clear or through TLS.
struct H2Server {
    server: Server,
    secured: Option<Secured>,
}

impl H2Server {
    /// Starts a server without TLS and one with it, and calls `test` with each and a name for it.
    fn both(options: impl Fn() -> Options, test: impl Fn(H2Server, &str)) {
        test(H2Server { server: h2_server(&options()), secured: None }, "in the clear");
        let secured = Secured::new();
        let options = Options { tls: Some(secured.acceptor.clone()), ..options() };
        let listen = ListenOptions { is_tls: true, ..ListenOptions::from(tcp()) };
        let server = Server::start(&options, &[listen], |_| app()).unwrap();
        test(H2Server { server, secured: Some(secured) }, "through TLS");
    }

    fn connect(&self) -> H2Client {
        let Some(secured) = &self.secured else { return H2Client::connect(&self.server) };
        let socket = slow_client::connect(address(&self.server));
        let name = ServerName::try_from("here").unwrap();
        let tls = ClientConnection::new(secured.client.clone(), name).unwrap();
        let mut client = H2Client::of(Box::new(StreamOwned::new(tls, socket)));
        client.send(&frame(4, 1, 0, b""));
        client
    }
}

fn address(server: &Server) -> SocketAddr {
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    address
}

/// An HTTP/2 client that reads on demand.
struct H2Client {
    socket: Box<dyn Wire>,
    unparsed: Vec<u8>,
    body_bytes: usize,
    has_ended: bool,
    goaways: u32,
    resets: Vec<u32>,
}

impl H2Client {
    fn connect(server: &Server) -> H2Client {
        let mut client = H2Client::begin(server);
        client.send(&frame(4, 1, 0, b""));
        client
    }

    /// Connects without acknowledging the server's SETTINGS.
    fn begin(server: &Server) -> H2Client {
        H2Client::of(Box::new(slow_client::connect(address(server))))
    }

    fn of(socket: Box<dyn Wire>) -> H2Client {
        let mut client = H2Client {
            socket,
            unparsed: Vec::new(),
            body_bytes: 0,
            has_ended: false,
            goaways: 0,
            resets: Vec::new(),
        };
        let window = WINDOW_BYTES.to_be_bytes();
        let settings = [&[0, 4], &window[..]].concat();
        client.send(http2::frame::PREFACE);
        client.send(&frame(4, 0, 0, &settings));
        client.send(&frame(8, 0, 0, &window));
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn ask(&mut self, stream: u32, method: u8, path: &str, flags: u8) {
        let block = [&[method, 0x86, 0x04, path.len() as u8], path.as_bytes(), b"\x01\x04here"].concat();
        self.send(&frame(1, 4 | flags, stream, &block));
    }

    fn get(&mut self, stream: u32, path: &str) {
        self.ask(stream, 0x82, path, END_STREAM);
    }

    /// Reads at most `bytes_max` bytes; returns false at the end.
    fn read(&mut self, bytes_max: usize) -> bool {
        let mut piece = vec![0; bytes_max];
        let len =
            self.socket.read(&mut piece).expect("the connection was reset or ended without close_notify");
        self.unparsed.extend_from_slice(&piece[..len]);
        while self.unparsed.len() >= 9 {
            let end =
                9 + u32::from_be_bytes([0, self.unparsed[0], self.unparsed[1], self.unparsed[2]]) as usize;
            if self.unparsed.len() < end {
                break;
            }
            match (self.unparsed[3], self.unparsed[4] & END_STREAM != 0) {
                (DATA, ends) => {
                    self.body_bytes += end - 9;
                    self.has_ended |= ends;
                }
                (GOAWAY, _) => self.goaways += 1,
                (RST_STREAM, _) => self.resets.push(u32::from(self.unparsed[12])),
                _ => {}
            }
            self.unparsed.drain(..end);
        }
        len > 0
    }

    fn read_until(&mut self, what: &str, done: impl Fn(&H2Client) -> bool) {
        while !done(self) {
            assert!(self.read(65_536), "{what}: the connection ended after {} bytes", self.body_bytes);
        }
    }
}

fn h2_server(options: &Options) -> Server {
    Server::start(options, &[ListenOptions { allows_h2c: true, ..ListenOptions::from(tcp()) }], |_| app())
        .unwrap()
}

/// Reads a file in two parts, more slowly than the server sends, and sends a frame with each piece.
fn read_it_slowly(mut client: H2Client, what: &str) {
    while client.read(65_536) {
        if client.has_ended {
            break;
        }
        // Fails if the server has closed.
        let _ = client.socket.write_all(&ping());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((client.body_bytes, client.has_ended), (2 * FILE_BYTES, true), "{what}");
    assert!(client.goaways > 0, "{what}: no GOAWAY");
}

#[test]
fn http2_response_is_complete_while_the_client_keeps_sending() {
    let limits = Limits { requests_per_connection_max: 1, ..Limits::default() };
    H2Server::both(
        || Options { limits, ..options(1) },
        |server, way| {
            let mut client = server.connect();
            client.get(1, "/file?2");
            read_it_slowly(client, &format!("the last request of its connection, {way}"));
            assert!(finish(server.server));
        },
    );
    // The client takes half a minute, longer on a busy machine.
    let timeouts = Timeouts { drain: Millis(300_000), ..Timeouts::default() };
    H2Server::both(
        || Options { timeouts, ..options(1) },
        |server, way| {
            let mut client = server.connect();
            client.get(1, "/file?2");
            client.read_until("the response begins", |client| client.body_bytes > 0);
            server.server.stop_handle().drain();
            read_it_slowly(client, &format!("a server that stops, {way}"));
            assert!(server.server.join().unwrap());
        },
    );
}

#[test]
fn http2_response_is_complete_after_goaway_from_the_client() {
    H2Server::both(
        || options(1),
        |server, way| {
            let mut client = server.connect();
            client.get(1, "/file?2");
            client.send(&frame(GOAWAY, 0, 0, &[0; 8]));
            client.goaways = 1;
            read_it_slowly(client, &format!("GOAWAY of the client, {way}"));
            assert!(finish(server.server));
        },
    );
}

#[test]
fn idle_http2_connection_receives_goaway_before_the_close() {
    let timeouts = Timeouts { idle: Millis(300), ..Timeouts::default() };
    H2Server::both(
        || Options { timeouts, ..options(1) },
        |server, way| {
            let mut client = server.connect();
            client.get(1, "/");
            client.read_until("a response", |client| client.has_ended);
            // With TLS, the end that follows is that of close_notify.
            while client.read(65_536) {}
            assert!(client.goaways > 0, "no GOAWAY, {way}");
            assert!(finish(server.server));
        },
    );
}

#[test]
fn slow_http2_reader_receives_whole_response() {
    const WRITE_TIMEOUT: Millis = Millis(3_000);
    let timeouts = Timeouts { write: WRITE_TIMEOUT, ..Timeouts::default() };
    let server = h2_server(&Options { timeouts, ..options(1) });
    for path in ["/big", "/file?4"] {
        let mut client = H2Client::connect(&server);
        client.get(1, path);
        let began = Instant::now();
        slow_client::steadily(WRITE_TIMEOUT, || {
            let bytes = client.body_bytes;
            let elapsed = began.elapsed();
            assert!(client.read(4_000), "{path} is cut off after {bytes} bytes and {elapsed:?}");
        });
        client.read_until(path, |client| client.has_ended);
        assert_eq!(client.body_bytes, 4 * FILE_BYTES, "{path}");
    }
    assert!(finish(server));
}

#[test]
fn http2_client_that_reads_nothing_is_disconnected() {
    let timeouts = Timeouts { write: Millis(1_000), ..Timeouts::default() };
    let server = h2_server(&Options { timeouts, ..options(1) });
    let mut client = H2Client::connect(&server);
    client.get(1, "/big");
    // Every frame requires an answer that the client does not read.
    let began = Instant::now();
    while client.socket.write_all(&ping()).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it is still connected");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(finish(server));
}

#[test]
fn requests_in_flight_at_the_request_limit_are_answered() {
    let limits = Limits { requests_per_connection_max: 1, ..Limits::default() };
    H2Server::both(
        || Options { limits, ..options(1) },
        |server, way| {
            let mut client = server.connect();
            for stream in [1, 3, 5] {
                client.get(stream, "/slow");
            }
            while client.read(65_536) {}
            assert_eq!((client.body_bytes, client.resets), (3 * "slow".len(), Vec::new()), "{way}");
            assert!(client.goaways > 0, "no GOAWAY, {way}");
            assert!(finish(server.server));
        },
    );
}

#[test]
fn early_http2_response_arrives_before_the_request_ends() {
    let server = h2_server(&options(1));
    let mut client = H2Client::connect(&server);
    client.ask(1, 0x83, "/", 0);
    client.read_until("a response", |client| client.has_ended);
    std::thread::sleep(Duration::from_millis(200));
    client.send(&frame(DATA, END_STREAM, 1, b"all of it"));
    client.get(3, "/slow");
    client.read_until("the next one", |client| client.body_bytes == "helloslow".len());
    assert_eq!(client.resets, [0_u32; 0]);
    // Requests that never end are ended, however many there are.
    for stream in 0..200 {
        client.ask(5 + 2 * stream, 0x83, "/", 0);
        client.send(&frame(DATA, 0, 5 + 2 * stream, b"some of it"));
    }
    client.read_until("all are reset", |client| client.resets.len() == 200);
    assert!(finish(server));
}

/// Reads to the end, which must come long before an idle connection is closed.
fn assert_is_given_up(mut client: H2Client, what: &str) {
    let began = Instant::now();
    while client.read(65_536) {}
    assert!(client.goaways > 0 && began.elapsed() < PATIENCE, "{what}");
}

#[test]
fn incomplete_headers_and_missing_settings_ack_time_out() {
    let timeouts = Timeouts { head: Millis(500), ..Timeouts::default() };
    let server = h2_server(&Options { timeouts, ..options(1) });
    let mut client = H2Client::connect(&server);
    client.get(1, "/");
    client.read_until("a response", |client| client.has_ended);
    client.send(&frame(1, END_STREAM, 3, &[0x82]));
    assert_is_given_up(client, "a head without its end");

    let mut client = H2Client::begin(&server);
    client.get(1, "/");
    client.read_until("a response", |client| client.has_ended);
    assert_is_given_up(client, "settings without an acknowledgement");
    assert!(finish(server));
}

#[test]
fn new_timeouts_apply_to_open_connections() {
    let server = h2_server(&options(1));
    let mut client = H2Client::connect(&server);
    client.get(1, "/");
    client.read_until("a response", |client| client.has_ended);
    let timeouts = Timeouts { idle: Millis(300), ..Timeouts::default() };
    server.listeners().set_limits(ServingLimits {
        limits: Limits::default(),
        timeouts,
        hints_over_http1: true,
    });
    assert_is_given_up(client, "the new idle timeout");
    assert!(finish(server));
}

#[test]
fn response_is_readable_after_a_large_body_was_sent() {
    const CONTENT_BYTES: usize = 17 << 20;
    let server = start(&options(1), &[tcp()]);
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(socket, "POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {CONTENT_BYTES}\r\n\r\n").unwrap();
    for _ in 0..CONTENT_BYTES >> 16 {
        socket.write_all(&[b'x'; 1 << 16]).expect("the server reads");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("the response");
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    assert!(finish(server));
}

#[test]
fn endlessly_sending_clients_are_disconnected() {
    let server = start(&options(1), &[tcp()]);
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let began = Instant::now();
    let senders: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut socket in &senders {
        socket.write_all(b"nonsense\r\n\r\n").unwrap();
        socket.set_nonblocking(true).unwrap();
    }
    let is_open = |mut socket: &TcpStream| match socket.write(b"x") {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    // None of the clients reads.
    while senders.iter().filter(|socket| is_open(socket)).count() > 0 {
        assert!(began.elapsed() < Duration::from_secs(45), "they are still connected");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(finish(server));
}

/// A client that was refused has read the response and continues to send a byte now and then.
#[test]
fn stop_does_not_wait_for_lingering_closes() {
    let server = start(&options(1), &[tcp()]);
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"nonsense\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let sender = std::thread::spawn(move || {
        while socket.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert!(finish(server));
    // Without this rule, it would take 30 s.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    sender.join().unwrap();
}

#[test]
fn lingering_close_reads_at_a_bounded_rate() {
    const SECONDS: u64 = 3;
    let server = start(&options(1), &[tcp()]);
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"nonsense\r\n\r\n").unwrap();
    let began = Instant::now();
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while began.elapsed() < Duration::from_secs(SECONDS) {
        socket.write_all(&piece).expect("the server reads");
        sent += piece.len() as u64;
    }
    // 4 MiB at once, 26 MB/s, and the kernel's buffers. Without the bound, it would be gigabytes.
    let elapsed = began.elapsed().as_millis() as u64;
    assert!(sent < (32 << 20) + elapsed * 40_000, "{sent} bytes in {elapsed} ms");
    drop(socket);
    assert!(finish(server));
}
