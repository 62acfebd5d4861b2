//! Clients that read or send slowly but steadily, and clients that stall: over HTTP/1 and HTTP/2, without TLS
//! and with it.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::origin::{Origin, ok};
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, client_config, komainu};
use bench::attack::wire::*;

/// More than the kernel buffers between two peers, even with its largest buffers.
const LARGE_BYTES: usize = 12_000_000;
/// Far less than must be read before the kernel reports the socket as writable, a third of the send buffer.
const READ_BYTES: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
const WINDOW_BYTES: u32 = 1 << 30;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Carrier {
    pub(crate) is_http2: bool,
    is_tls: bool,
    /// Whether the client grants no more window than it reads.
    has_small_window: bool,
}

impl Carrier {
    const fn new(is_http2: bool, is_tls: bool) -> Carrier {
        Carrier { is_http2, is_tls, has_small_window: false }
    }
}

pub(crate) const CARRIERS: [Carrier; 4] = [
    Carrier::new(false, false),
    Carrier::new(false, true),
    Carrier::new(true, false),
    Carrier::new(true, true),
];
const SMALL_WINDOW: Carrier = Carrier { has_small_window: true, ..Carrier::new(true, false) };

/// Starts the same site without TLS and with it.
pub(crate) fn servers(text: &str) -> [Rig; 2] {
    ["h2c = true }]", "tls = true }]\ntls.default = { certificate = \"cert.pem\", key = \"key.pem\" }"].map(
        |listen| {
            let folder = Folder::new();
            folder.certify().write("www/large", vec![b'x'; LARGE_BYTES]);
            let listen = format!("listen = [{{ address = \"127.0.0.1:0\", {listen}\n");
            folder.write("komainu.toml", format!("{listen}{}{text}", as_we_are()));
            let mut command = komainu();
            command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
            Rig::start(command, folder)
        },
    )
}

/// Runs `check` for each carrier on a thread of its own.
pub(crate) fn each(servers: &[Rig; 2], carriers: &[Carrier], check: impl Fn(&Rig, Carrier) + Sync) {
    thread::scope(|scope| {
        for carrier in carriers {
            scope.spawn(|| check(&servers[usize::from(carrier.is_tls)], *carrier));
        }
    });
}

/// A socket with a small receive buffer, from which little is read at a time while `is_slow`.
struct SlowSocket {
    socket: TcpStream,
    is_slow: Rc<Cell<bool>>,
}

impl Read for SlowSocket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut len = buffer.len();
        if self.is_slow.get() {
            thread::sleep(PAUSE);
            len = len.min(READ_BYTES);
        }
        loop {
            match self.socket.read(&mut buffer[..len]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for SlowSocket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.socket.flush()
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A client with a single request.
pub(crate) struct Client {
    carrier: Carrier,
    stream: Box<dyn Stream>,
    socket: TcpStream,
    is_slow: Rc<Cell<bool>>,
    target: AttackTarget,
    unparsed: Vec<u8>,
    /// Head of an HTTP/1 response without the final line end; the length of the body received follows.
    head: Option<Vec<u8>>,
    body_bytes: usize,
    /// Whether END_STREAM or RST_STREAM (HTTP/2) has been received.
    has_ended: bool,
    /// How the response ended, for messages.
    end: String,
    /// Send windows of the connection and of the stream.
    windows: [usize; 2],
}

impl Client {
    fn connect(rig: &Rig, carrier: Carrier, path: &str) -> Client {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
        rustix::net::connect(&socket, &rig.listens).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let is_slow = Rc::new(Cell::new(false));
        let slow = SlowSocket { socket: socket.try_clone().unwrap(), is_slow: is_slow.clone() };
        let stream: Box<dyn Stream> = if carrier.is_tls {
            let mut config = (*client_config()).clone();
            config.alpn_protocols =
                vec![if carrier.is_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
            let name = ServerName::try_from("localhost").unwrap();
            Box::new(StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), slow))
        } else {
            Box::new(slow)
        };
        let target =
            AttackTarget { authority: "localhost".into(), path: path.into(), is_https: carrier.is_tls };
        let mut client = Client {
            carrier,
            stream,
            socket,
            is_slow,
            target,
            unparsed: Vec::new(),
            head: None,
            body_bytes: 0,
            has_ended: false,
            end: "the end of the response or of the connection".into(),
            windows: [65_535; 2],
        };
        if carrier.is_http2 {
            let window = if carrier.has_small_window { 0 } else { WINDOW_BYTES };
            client.send(&client_start(&[(INITIAL_WINDOW_SIZE, window)]));
            client.send(&frame(kind::SETTINGS, 1, 0, b""));
            client.send(&window_update(0, WINDOW_BYTES));
        }
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn get(rig: &Rig, carrier: Carrier, path: &str) -> Client {
        let mut client = Client::connect(rig, carrier, path);
        let request = if carrier.is_http2 {
            client.target.get(1)
        } else {
            format!("{}Connection: close\r\n\r\n", client.target.http1("GET")).into_bytes()
        };
        client.send(&request);
        client
    }

    /// Reads once; returns false if the response is complete or the connection has ended.
    fn read(&mut self) -> std::io::Result<bool> {
        let mut piece = [0; 16_384];
        let len = self.stream.read(&mut piece)?;
        if self.carrier.is_http2 {
            self.unparsed.extend_from_slice(&piece[..len]);
            self.parse_frames();
            return Ok(len > 0 && !self.has_ended);
        }
        if self.head.is_some() {
            self.body_bytes += len;
            return Ok(len > 0);
        }
        self.unparsed.extend_from_slice(&piece[..len]);
        if let Some(at) = self.unparsed.windows(4).position(|four| four == b"\r\n\r\n") {
            self.body_bytes = self.unparsed.len() - at - 4;
            self.head = Some(self.unparsed.drain(..at).collect());
        }
        Ok(len > 0)
    }

    fn parse_frames(&mut self) {
        while let Some(&[a, b, c, kind, flags]) = self.unparsed.first_chunk() {
            let end = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
            if self.unparsed.len() < end {
                return;
            }
            if kind == kind::HEADERS {
                self.head = Some(self.unparsed[9..end].to_vec());
            }
            if kind == kind::DATA {
                self.body_bytes += end - 9;
            }
            if kind == kind::WINDOW_UPDATE {
                let grown = self.unparsed[9..13].try_into().map(u32::from_be_bytes).unwrap();
                self.windows[usize::from(self.unparsed[8] > 0)] += grown as usize;
            }
            if kind == kind::RST_STREAM {
                self.end = format!("RST_STREAM with {}", self.unparsed[9..end].escape_ascii());
            }
            self.has_ended |= kind == kind::RST_STREAM
                || matches!(kind, kind::DATA | kind::HEADERS) && flags & END_STREAM > 0;
            self.unparsed.drain(..end);
        }
    }

    /// Reads a little at a time for the given time.
    fn read_slowly(&mut self, time: Duration) {
        let began = Instant::now();
        self.is_slow.set(true);
        while began.elapsed() < time {
            if self.carrier.has_small_window {
                self.send(&window_update(1, READ_BYTES as u32));
            }
            let continues = self.read().unwrap_or_else(|error| panic!("{:?}: {error}", self.carrier));
            assert!(continues, "{:?}: cut off after {} bytes", self.carrier, self.body_bytes);
        }
        self.is_slow.set(false);
        if self.carrier.has_small_window {
            self.send(&window_update(1, WINDOW_BYTES));
        }
    }

    /// Reads until the response or the connection has ended; returns the length of the body.
    fn read_rest(&mut self) -> usize {
        sockopt::set_socket_recv_buffer_size(&self.socket, 1 << 20).unwrap();
        loop {
            match self.read() {
                Ok(true) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("{:?}: neither continues nor ends", self.carrier)
                }
                Ok(false) => return self.body_bytes,
                Err(error) => {
                    self.end = error.to_string();
                    return self.body_bytes;
                }
            }
        }
    }

    /// Reads until the head is complete, and returns the status.
    pub(crate) fn status(&mut self) -> u16 {
        while self.head.is_none() {
            let continues = self.read().unwrap();
            assert!(continues || self.head.is_some(), "{:?}: closed before a response", self.carrier);
        }
        let head = self.head.as_ref().unwrap();
        match (self.carrier.is_http2, head[0]) {
            (false, _) => rig::text(&head[9..12]).parse().unwrap(),
            (true, 0x88) => 200,
            // `:status` as a literal with an indexed name.
            (true, _) => rig::text(&head[2..5]).parse().unwrap(),
        }
    }
}

fn large() -> Origin {
    Origin::start(|_| ok(&"x".repeat(LARGE_BYTES)))
}

/// Routes to files and to a proxy whose responses are not buffered in files.
fn routes(origin: &Origin) -> String {
    let proxy = format!("proxy = {{ to = \"{}\", spill = \"0B\" }}", origin.url);
    format!(
        r#"
        timeouts.write = "3s"

        [[route]]
        path = "/large"
        files = "www"

        [[route]]
        path = "/proxy"
        {proxy}

        [[route]]
        path = "/patient"
        timeouts.write = "20s"
        {proxy}
        "#
    )
}

#[test]
fn slow_steady_readers_receive_whole_responses() {
    let origin = large();
    let servers = servers(&routes(&origin));
    for path in ["/large", "/proxy"] {
        each(&servers, &[&CARRIERS[..], &[SMALL_WINDOW]].concat(), |rig, carrier| {
            let mut client = Client::get(rig, carrier, path);
            client.read_slowly(Duration::from_secs(7));
            assert_eq!(client.read_rest(), LARGE_BYTES, "{carrier:?} {path}");
        });
    }
}

#[test]
fn stalled_readers_are_disconnected_by_route_timeout() {
    let origin = large();
    let servers = servers(&routes(&origin));
    each(&servers, &[&CARRIERS[..], &[SMALL_WINDOW]].concat(), |rig, carrier| {
        let mut stopped = ["/large", "/proxy", "/patient"].map(|path| Client::get(rig, carrier, path));
        stopped.iter_mut().for_each(|client| assert_eq!(client.status(), 200, "{carrier:?}"));
        thread::sleep(Duration::from_secs(7));
        for client in &mut stopped {
            let is_patient = client.target.path == "/patient";
            if carrier.has_small_window && is_patient {
                client.send(&window_update(1, WINDOW_BYTES));
            }
            let bytes = client.read_rest();
            let path = &client.target.path;
            assert_eq!(bytes == LARGE_BYTES, is_patient, "{carrier:?} {path}: {bytes}, then {}", client.end);
        }
    });
}

#[test]
fn steady_senders_are_accepted_and_stalled_ones_get_408() {
    const PIECE: &[u8] = &[b'x'; 20];
    const PIECES: usize = 30;
    let origin = Origin::start(|ask| ok(&ask.body.len().to_string()));
    let servers = servers(&format!(
        r#"
        timeouts.body = "1s"
        [[route]]
        proxy = "{}"
        "#,
        origin.url
    ));
    each(&servers, &CARRIERS, |rig, carrier| {
        for sent in [PIECES, 2] {
            let mut client = Client::connect(rig, carrier, "/");
            let head = client.target.http1("POST");
            let length = PIECES * PIECE.len();
            let mut block = client.target.header_block(true);
            push_literal(&mut block, b"content-length", length.to_string().as_bytes());
            client.send(&match carrier.is_http2 {
                true => frame(kind::HEADERS, END_HEADERS, 1, &block),
                false => format!("{head}Content-Length: {length}\r\n\r\n").into_bytes(),
            });
            for at in 0..sent {
                thread::sleep(PAUSE);
                let flags = if at + 1 == PIECES { END_STREAM } else { 0 };
                client.send(&if carrier.is_http2 {
                    frame(kind::DATA, flags, 1, PIECE)
                } else {
                    PIECE.to_vec()
                });
            }
            assert_eq!(client.status(), if sent == PIECES { 200 } else { 408 }, "{carrier:?}: {sent} pieces");
        }
    });
}

/// Starts a server that switches protocols. `/down` sends [`LARGE_BYTES`]; `/up` reads as many, slowly at
/// first, and then confirms.
fn tunnels() -> String {
    let listener = rig::listener();
    sockopt::set_socket_recv_buffer_size(&listener, 4_096).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|socket| drop(thread::spawn(|| tunnel(socket))))
    });
    url
}

fn tunnel(mut socket: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = rig::text(&head);
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let accept = rig::text(&net::websocket::accept(key.as_bytes()));
    write!(socket, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n")
        .unwrap();
    write!(socket, "Sec-WebSocket-Accept: {accept}\r\n\r\n").unwrap();
    if head.starts_with("GET /down") {
        // The client may stop reading.
        let _ = socket.write_all(&vec![b'x'; LARGE_BYTES]);
        return;
    }
    let began = Instant::now();
    let mut count = 0;
    let is_slow = Rc::new(Cell::new(true));
    let mut socket = SlowSocket { socket, is_slow: is_slow.clone() };
    while count < LARGE_BYTES {
        is_slow.set(began.elapsed() < Duration::from_secs(7));
        match socket.read(&mut [0; 65_536]) {
            Ok(len @ 1..) => count += len,
            _ => return,
        }
    }
    socket.write_all(b"all").unwrap();
}

impl Client {
    /// Requests a protocol upgrade, which must succeed.
    fn upgrade(rig: &Rig, carrier: Carrier, path: &str) -> Client {
        let mut client = Client::ask_to_upgrade(rig, carrier, path);
        assert_eq!(client.status(), if carrier.is_http2 { 200 } else { 101 }, "{carrier:?}");
        client
    }

    /// Requests a protocol upgrade.
    pub(crate) fn ask_to_upgrade(rig: &Rig, carrier: Carrier, path: &str) -> Client {
        let mut client = Client::connect(rig, carrier, path);
        let fields = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let head = client.target.http1("GET") + fields;
        if carrier.is_http2 {
            let mut block = Vec::new();
            for (name, value) in [
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", if carrier.is_tls { "https" } else { "http" }),
                (":path", path),
                (":authority", "localhost"),
                ("sec-websocket-version", "13"),
            ] {
                push_literal(&mut block, name.as_bytes(), value.as_bytes());
            }
            client.send(&frame(kind::HEADERS, END_HEADERS, 1, &block));
        } else {
            client.send(head.as_bytes());
        }
        client
    }

    /// Sends `bytes` bytes, as the windows allow.
    fn send_content(&mut self, bytes: usize) {
        if !self.carrier.is_http2 {
            return self.send(&vec![b'x'; bytes]);
        }
        let mut sent = 0;
        while sent < bytes {
            let len = 16_384.min(bytes - sent);
            while self.windows.iter().any(|window| *window < sent + len) {
                assert!(self.read().unwrap(), "{:?}: cut off after {sent} bytes", self.carrier);
            }
            self.send(&frame(kind::DATA, 0, 1, &vec![b'x'; len]));
            sent += len;
        }
    }
}

#[test]
fn tunnels_last_while_either_end_reads_steadily() {
    let servers = servers(&format!(
        "[[route]]\nproxy = {{ to = \"{}\", timeouts = {{ tunnel = \"3s\" }} }}\n",
        tunnels()
    ));
    each(&servers, &CARRIERS, |rig, carrier| {
        let mut stopped = Client::upgrade(rig, carrier, "/down");
        let mut client = Client::upgrade(rig, carrier, "/down");
        client.read_slowly(Duration::from_secs(7));
        assert_eq!(client.read_rest(), LARGE_BYTES, "{carrier:?}");
        let bytes = stopped.read_rest();
        assert!(bytes < LARGE_BYTES, "{carrier:?}: nothing was read for more than the timeout");

        let mut client = Client::upgrade(rig, carrier, "/up");
        client.send_content(LARGE_BYTES);
        assert_eq!(client.read_rest(), "all".len(), "{carrier:?}");
    });
}
