//! HTTP/3 towards the server for tests whose clients speak HTTP/1.
//!
//! Each connection of a client is a connection of HTTP/3, and each of its requests a stream there. A response that is
//! cut off ends the client's connection. So does one that comes before the request is complete, as with HTTP/1.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use http::Status;
use quinn_proto::{StreamId, TransportConfig, VarInt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::h3_client::{H3Client, RequestHead, Response, client_config};

/// Bytes that wait in either direction before no more are read.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Time for which a client that was answered early may still send.
const LINGER: Duration = Duration::from_secs(2);
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Starts to accept connections and to forward their requests to `server`. Returns the listening address.
pub fn start(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // If the server is gone, the client's connection is closed.
            std::thread::spawn(move || client.ok().and_then(|client| pass(client, server)));
        }
    });
    address
}

/// Forwards requests until a side closes.
fn pass(client: TcpStream, server: SocketAddr) -> Option<()> {
    client.set_nodelay(true).ok()?;
    client.set_nonblocking(true).ok()?;
    let mut transport = TransportConfig::default();
    // What the server sends to a client that does not read stays there, as with HTTP/1.
    transport.stream_receive_window(VarInt::from_u32(WAITING_BYTES_MAX as u32));
    // Connections of HTTP/1 have no such timeout.
    transport.max_idle_timeout(None);
    let h3 = H3Client::begin(server, "localhost", client_config(&[b"h3"], transport));
    let mut forwarder =
        Forwarder { client, h3, server, received: Vec::new(), out: Vec::new(), has_eof: false };
    forwarder.h3.turn();
    while !forwarder.h3.is_connected {
        forwarder.turn(false)?;
    }
    let passed = forwarder.pass_requests();
    forwarder.h3.quic.close(std::time::Instant::now(), VarInt::from_u32(0x100), bytes::Bytes::new());
    forwarder.h3.turn();
    if passed.is_some() {
        forwarder.linger();
    }
    passed
}

/// A connection of a client, and the one to the server.
struct Forwarder {
    client: TcpStream,
    h3: H3Client,
    server: SocketAddr,
    /// Bytes of the client that were not forwarded.
    received: Vec<u8>,
    /// Bytes for the client.
    out: Vec<u8>,
    has_eof: bool,
}

/// Content of a request that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Length(usize),
    /// A chunk of this many bytes, and its line break.
    Chunk(usize),
    /// The line before a chunk.
    ChunkLine,
    Trailers,
    Tunnel,
    Done,
}

/// The framing of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// The head has not been sent.
    Head,
    None,
    AsIs,
    Chunked,
}

struct Request {
    method: Vec<u8>,
    authority: Vec<u8>,
    path: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    is_http10: bool,
    closes: bool,
    /// Value of Sec-WebSocket-Key.
    websocket: Option<Vec<u8>>,
    content: Content,
}

impl Forwarder {
    /// Waits until something has happened, and exchanges bytes with both sides. Returns `None` if either is gone.
    fn turn(&mut self, reads: bool) -> Option<()> {
        self.flush()?;
        let mut wanted = PollFlags::empty();
        if reads && !self.has_eof {
            wanted |= PollFlags::IN;
        }
        if !self.out.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let timeout = Timespec::try_from(self.h3.timeout()).unwrap();
        let mut both = [PollFd::new(&self.client, wanted), PollFd::new(&self.h3.socket, PollFlags::IN)];
        poll(&mut both, Some(&timeout)).ok()?;
        let ready = both[0].revents();
        if reads && !self.has_eof && !ready.is_empty() {
            let mut piece = [0; 16 * 1024];
            match self.client.read(&mut piece) {
                Ok(0) => self.has_eof = true,
                Ok(len) => self.received.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        } else if ready.intersects(PollFlags::ERR | PollFlags::HUP) {
            return None;
        }
        self.flush()?;
        self.h3.reads = self.out.len() < WAITING_BYTES_MAX;
        self.h3.exchange();
        if let Some(lost) = &self.h3.lost {
            eprintln!("the server has ended the connection of HTTP/3: {lost}");
            return None;
        }
        Some(())
    }

    fn flush(&mut self) -> Option<()> {
        while !self.out.is_empty() {
            match self.client.write(&self.out) {
                Ok(len) => _ = self.out.drain(..len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
        Some(())
    }

    fn flush_all(&mut self) -> Option<()> {
        while !self.out.is_empty() {
            self.flush()?;
            let mut one = [PollFd::new(&self.client, PollFlags::OUT)];
            poll(&mut one, None).ok()?;
        }
        Some(())
    }

    /// Ends the connection so that the client can read the rest.
    fn linger(&mut self) {
        if self.flush_all().is_none() || self.client.shutdown(Shutdown::Write).is_err() || self.has_eof {
            return;
        }
        let _ = self.client.set_nonblocking(false);
        let _ = self.client.set_read_timeout(Some(LINGER));
        while self.client.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {}
    }

    fn pass_requests(&mut self) -> Option<()> {
        loop {
            while !has_head(&self.received) {
                if self.has_eof {
                    return Some(());
                }
                let lost = self.turn(true).is_none();
                // The server has closed the connection: none of a request was sent.
                if lost {
                    return self.h3.lost.is_some().then_some(());
                }
            }
            let Some(request) = take_request(&mut self.received, self.server) else {
                self.out.extend_from_slice(BAD_REQUEST);
                return Some(());
            };
            if !self.pass_request(request)? {
                return Some(());
            }
        }
    }

    /// Forwards a request and its response. Returns whether the connection stays open.
    fn pass_request(&mut self, request: Request) -> Option<bool> {
        let fields: Vec<(&[u8], &[u8])> =
            request.fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let head = RequestHead {
            method: if request.websocket.is_some() { b"CONNECT" } else { &request.method },
            authority: Some(&request.authority),
            path: &request.path,
            protocol: request.websocket.as_ref().map(|_| &b"websocket"[..]),
            fields: &fields,
        };
        let id = loop {
            match self.h3.try_open(&head) {
                Some(id) => break id,
                None => self.turn(false)?,
            }
        };
        let mut content = request.content;
        self.h3.push(id, b"", content == Content::Done);
        let mut framing = Framing::Head;
        loop {
            self.feed(id, &mut content);
            let response = self.h3.take_received(id);
            self.answer(&request, &response, &mut framing);
            if response.is_whole {
                if framing == Framing::Chunked {
                    self.out.extend_from_slice(b"0\r\n");
                    self.out.extend(response.trailers.replace('\n', "\r\n").into_bytes());
                    self.out.extend_from_slice(b"\r\n");
                }
                if content == Content::Tunnel {
                    self.h3.cancel(id);
                }
                self.h3.forget(id);
                self.flush()?;
                return Some(!request.closes && !self.h3.has_goaway && content == Content::Done);
            }
            if response.reset.is_some() {
                self.flush_all();
                return None;
            }
            let may_read =
                self.h3.unsent_bytes(id) < WAITING_BYTES_MAX && self.received.len() < WAITING_BYTES_MAX;
            let before = self.has_eof;
            self.turn(may_read && content != Content::Done)?;
            if self.has_eof && !before && content == Content::Tunnel {
                self.h3.push(id, b"", true);
            } else if self.has_eof
                && self.received.is_empty()
                && content != Content::Done
                && content != Content::Tunnel
            {
                // The request is cut off.
                self.h3.cancel(id);
                return None;
            }
        }
    }

    /// Forwards content that was received.
    fn feed(&mut self, id: StreamId, content: &mut Content) {
        while self.h3.unsent_bytes(id) < WAITING_BYTES_MAX {
            let line = self.received.windows(2).position(|pair| pair == b"\r\n");
            match *content {
                Content::Done => return,
                _ if self.received.is_empty() => return,
                Content::Tunnel => {
                    let piece = std::mem::take(&mut self.received);
                    self.h3.push(id, &piece, false);
                }
                Content::Length(left) => {
                    let len = left.min(self.received.len());
                    let piece: Vec<u8> = self.received.drain(..len).collect();
                    *content = if len == left { Content::Done } else { Content::Length(left - len) };
                    self.h3.push(id, &piece, len == left);
                }
                Content::Chunk(0) => {
                    if self.received.len() < 2 {
                        return;
                    }
                    self.received.drain(..2);
                    *content = Content::ChunkLine;
                }
                Content::Chunk(left) => {
                    let len = left.min(self.received.len());
                    let piece: Vec<u8> = self.received.drain(..len).collect();
                    *content = Content::Chunk(left - len);
                    self.h3.push(id, &piece, false);
                }
                Content::ChunkLine => {
                    let Some(at) = line else { return };
                    let digits: String = String::from_utf8_lossy(&self.received[..at]).into_owned();
                    let digits = digits.split(';').next().unwrap().trim();
                    let len = usize::from_str_radix(digits, 16).unwrap_or(0);
                    *content = if len == 0 { Content::Trailers } else { Content::Chunk(len) };
                    self.received.drain(..at + 2);
                }
                Content::Trailers => {
                    let end = self.received.windows(4).position(|four| four == b"\r\n\r\n");
                    let len = if self.received.starts_with(b"\r\n") { Some(2) } else { end.map(|at| at + 4) };
                    let Some(len) = len else { return };
                    let lines: Vec<u8> = self.received.drain(..len).collect();
                    let fields = fields(&lines);
                    let fields: Vec<(&[u8], &[u8])> =
                        fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
                    *content = Content::Done;
                    match fields.is_empty() {
                        true => self.h3.push(id, b"", true),
                        false => self.h3.push_trailers(id, &fields),
                    }
                }
            }
        }
    }

    /// Appends what was received of a response to the client's bytes.
    fn answer(&mut self, request: &Request, response: &Response, framing: &mut Framing) {
        for (code, lines) in &response.interim {
            if !request.is_http10 {
                self.out.extend(head_bytes(*code, lines.as_bytes()));
                self.out.extend_from_slice(b"\r\n");
            }
        }
        if *framing == Framing::Head && response.status != 0 {
            *framing = self.begin(request, response);
        }
        if response.content.is_empty() {
            return;
        }
        match framing {
            Framing::Chunked => {
                self.out.extend(format!("{:x}\r\n", response.content.len()).into_bytes());
                self.out.extend_from_slice(&response.content);
                self.out.extend_from_slice(b"\r\n");
            }
            _ => self.out.extend_from_slice(&response.content),
        }
    }

    fn begin(&mut self, request: &Request, response: &Response) -> Framing {
        if let Some(key) = request.websocket.as_ref().filter(|_| response.status == 200) {
            self.out.extend(head_bytes(101, &response.field_bytes));
            self.out
                .extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ");
            self.out.extend(websocket_accept(key).into_bytes());
            self.out.extend_from_slice(b"\r\n\r\n");
            return Framing::AsIs;
        }
        self.out.extend(head_bytes(response.status, &response.field_bytes));
        let has_none = request.method == b"HEAD" || [204, 304].contains(&response.status);
        let framing = match (has_none, response.field("content-length").is_some()) {
            (true, _) => Framing::None,
            (false, true) => Framing::AsIs,
            (false, false) if request.is_http10 => Framing::AsIs,
            (false, false) => Framing::Chunked,
        };
        if framing == Framing::Chunked {
            self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if request.closes || self.h3.has_goaway {
            self.out.extend_from_slice(b"Connection: close\r\n");
        } else if request.is_http10 {
            self.out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
        framing
    }
}

fn websocket_accept(key: &[u8]) -> String {
    let magic = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &magic);
    data_encoding::BASE64.encode(digest.as_ref())
}

fn head_bytes(code: u16, lines: &[u8]) -> Vec<u8> {
    let reason = Status::of(code).map_or("", Status::reason);
    let mut out = format!("HTTP/1.1 {code} {reason}\r\n").into_bytes();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let name = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        out.extend(capitalized(&line[..name]));
        out.extend_from_slice(&line[name..]);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The usual spelling of a field's name in HTTP/1.
fn capitalized(name: &[u8]) -> Vec<u8> {
    match name {
        b"etag" => return b"ETag".to_vec(),
        b"www-authenticate" => return b"WWW-Authenticate".to_vec(),
        _ => {}
    }
    let mut is_first = true;
    let capital = |byte: &u8| {
        let capital = if is_first { byte.to_ascii_uppercase() } else { *byte };
        is_first = *byte == b'-';
        capital
    };
    name.iter().map(capital).collect()
}

fn has_head(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|four| four == b"\r\n\r\n")
}

fn fields(lines: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        fields.push((line[..at].to_ascii_lowercase(), line[at + 1..].trim_ascii().to_vec()));
    }
    fields
}

/// Takes the head of a request; `None` if it cannot be sent by HTTP/3.
fn take_request(received: &mut Vec<u8>, server: SocketAddr) -> Option<Request> {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head: Vec<u8> = received.drain(..end + 4).collect();
    let line = head.iter().position(|byte| *byte == b'\r')?;
    let mut words = head[..line].split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?.to_vec(), words.next()?, words.next()?);
    let fields = fields(&head[line + 2..]);
    let value = |wanted: &[u8]| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| &value[..]);
    let connection = value(b"connection").unwrap_or_default().to_ascii_lowercase();
    let named: Vec<&[u8]> = connection.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
    let is_http10 = match version {
        b"HTTP/1.0" => true,
        b"HTTP/1.1" => false,
        _ => return None,
    };
    let closes = named.contains(&&b"close"[..]) || is_http10 && !named.contains(&&b"keep-alive"[..]);
    let is_websocket = value(b"upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    let websocket = value(b"sec-websocket-key").filter(|_| is_websocket).map(<[u8]>::to_vec);
    let content = match (value(b"transfer-encoding"), value(b"content-length")) {
        _ if websocket.is_some() => Content::Tunnel,
        (Some(_), _) => Content::ChunkLine,
        (None, Some(length)) => match std::str::from_utf8(length).ok()?.parse().ok()? {
            0 => Content::Done,
            length => Content::Length(length),
        },
        (None, None) => Content::Done,
    };
    let host = value(b"host").map_or_else(|| server.to_string().into_bytes(), <[u8]>::to_vec);
    let (authority, path) = match target.strip_prefix(b"http://").or(target.strip_prefix(b"https://")) {
        Some(rest) => {
            let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            (rest[..end].to_vec(), if end == rest.len() { b"/".to_vec() } else { rest[end..].to_vec() })
        }
        None => (host, target.to_vec()),
    };
    let is_own = |name: &[u8]| {
        let of_http1: [&[u8]; 7] = [
            b"connection",
            b"host",
            b"keep-alive",
            b"proxy-connection",
            b"sec-websocket-key",
            b"transfer-encoding",
            b"upgrade",
        ];
        of_http1.contains(&name) || name != b"te" && named.contains(&name)
    };
    let fields =
        fields.iter().filter(|(name, value)| !is_own(name) && (name != b"te" || value == b"trailers"));
    let fields = fields.cloned().collect();
    Some(Request { method, authority, path, fields, is_http10, closes, websocket, content })
}
