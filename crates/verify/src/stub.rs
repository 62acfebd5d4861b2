//! Stubs that replace upstream servers: they record the requests they receive, and echo them in the response.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use failure::{Failure, FailureContext};
use http::machine::{ServerMachine, Step};
use import::scratch::{StubProtocol, StubServer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::message::{CONTENT_BYTES_MAX, LIMITS, ReceivedRequest, format_content, joined_values};

/// Timeout for an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum concurrent connections of all stubs.
const CONNECTIONS_MAX: usize = 512;

/// Running stubs.
pub(crate) struct Stubs {
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    is_stopped: Arc<AtomicBool>,
    ports: Vec<u16>,
}

/// State of one stub.
#[derive(Clone)]
struct StubState {
    name: String,
    protocol: StubProtocol,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    tls: Arc<ServerConfig>,
}

impl Stubs {
    /// Starts a thread for each stub.
    ///
    /// # Errors
    /// Fails if a port has been taken in the meantime.
    pub(crate) fn start(servers: &[StubServer], tls: &Arc<ServerConfig>) -> Result<Self, Failure> {
        let stubs = Self {
            received: Arc::default(),
            is_stopped: Arc::default(),
            ports: servers.iter().map(|server| server.port).collect(),
        };
        let pool = ThreadPool::new();
        for server in servers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port))
                .with_context(|| format!("the stub for {}", server.name))?;
            let stub = StubState {
                name: server.name.clone(),
                protocol: server.protocol,
                received: Arc::clone(&stubs.received),
                tls: Arc::clone(tls),
            };
            let ended = Arc::clone(&stubs.is_stopped);
            let pool = pool.clone();
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let Ok(socket) = socket else { continue };
                    pool.serve(stub.clone(), socket);
                }
            });
        }
        Ok(stubs)
    }

    /// Returns the requests received since the last call.
    pub(crate) fn take_received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        for port in &self.ports {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            drop(TcpStream::connect_timeout(&address, Duration::from_millis(200)));
        }
    }
}

/// Threads that serve connections of all stubs, one connection at a time each.
#[derive(Clone)]
struct ThreadPool {
    sender: Sender<(StubState, TcpStream)>,
    receiver: Arc<Mutex<Receiver<(StubState, TcpStream)>>>,
    /// Threads without a connection.
    idle: Arc<AtomicUsize>,
    threads: Arc<AtomicUsize>,
}

impl ThreadPool {
    fn new() -> Self {
        let (sender, receiver) = channel();
        Self {
            sender,
            receiver: Arc::new(Mutex::new(receiver)),
            idle: Arc::default(),
            threads: Arc::default(),
        }
    }

    /// Serves a connection on an idle thread, or a new one. Closes the connection if there are too many.
    fn serve(&self, stub: StubState, socket: TcpStream) {
        let take = |count: usize| count.checked_sub(1);
        if self.idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let _ = self.sender.send((stub, socket));
            return;
        }
        if self.threads.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return;
        }
        self.threads.fetch_add(1, Ordering::Relaxed);
        let receiver = Arc::clone(&self.receiver);
        let idle = Arc::clone(&self.idle);
        std::thread::spawn(move || {
            stub.serve(socket);
            loop {
                idle.fetch_add(1, Ordering::Relaxed);
                // Ends when all listeners have ended.
                let next = receiver.lock().ok().and_then(|receiver| receiver.recv().ok());
                let Some((stub, socket)) = next else { return };
                stub.serve(socket);
            }
        });
    }
}

impl StubState {
    fn record_request(&self, mut received: ReceivedRequest) -> ReceivedRequest {
        received.server.clone_from(&self.name);
        if let Ok(mut all) = self.received.lock() {
            all.push(received.clone());
        }
        received
    }

    fn serve(&self, socket: TcpStream) {
        let _ = socket.set_read_timeout(Some(IDLE_TIMEOUT));
        let _ = socket.set_nodelay(true);
        match self.protocol {
            StubProtocol::Http => self.serve_http(socket),
            StubProtocol::Https => {
                if let Ok(session) = ServerConnection::new(Arc::clone(&self.tls)) {
                    self.serve_http(StreamOwned::new(session, socket));
                }
            }
            StubProtocol::FastCgi => self.serve_fastcgi(socket),
            StubProtocol::Unknown => {}
        }
    }

    fn serve_http(&self, mut stream: impl Read + Write) {
        let mut machine = ServerMachine::default();
        let mut buffer: Vec<u8> = Vec::new();
        let mut piece = vec![0; 64 << 10];
        let mut received = ReceivedRequest::default();
        loop {
            let fed = match machine.feed(&buffer, &LIMITS) {
                Ok(fed) => fed,
                Err(reject) => {
                    let start = String::from_utf8_lossy(&buffer[..buffer.len().min(200)]).into_owned();
                    received.failure = Some(format!("{}: {}", reject.reason, start.escape_debug()));
                    self.record_request(received);
                    let _ = stream.write_all(
                        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                    );
                    return;
                }
            };
            match fed.step {
                Step::Head => {
                    let text = |span: http::Span| String::from_utf8_lossy(span.of(&buffer)).into_owned();
                    let line = buffer.split(|&b| b == b'\r').next().unwrap_or(&[]);
                    let line = String::from_utf8_lossy(line).into_owned();
                    let mut words = line.split(' ');
                    received.method = words.next().unwrap_or("").to_owned();
                    received.target = words.next().unwrap_or("").to_owned();
                    let fields = machine.head.fields.iter();
                    received.fields = fields
                        .map(|field| (text(field.name).to_ascii_lowercase(), text(field.value)))
                        .collect();
                    if joined_values(&received.fields, "expect").is_some() {
                        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                    }
                }
                Step::Data(span) if received.content.len() < CONTENT_BYTES_MAX => {
                    received.content.extend_from_slice(span.of(&buffer));
                }
                Step::Data(_) => {}
                Step::End => {
                    let keeps = machine.head.keep_alive;
                    let received = self.record_request(std::mem::take(&mut received));
                    let (head, content) = build_response(&received);
                    let connection = if keeps { "" } else { "Connection: close\r\n" };
                    let content = if received.method == "HEAD" { Vec::new() } else { content };
                    let mut out = format!("{head}{connection}\r\n").into_bytes();
                    out.extend_from_slice(&content);
                    if stream.write_all(&out).and_then(|()| stream.flush()).is_err() || !keeps {
                        return;
                    }
                    machine.next();
                }
                Step::NeedMore => match stream.read(&mut piece) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => buffer.extend_from_slice(&piece[..count]),
                },
            }
            buffer.drain(..fed.consumed);
        }
    }

    /// Serves FastCGI requests one after another, including on kept connections.
    fn serve_fastcgi(&self, mut stream: TcpStream) {
        loop {
            let mut variables: Vec<u8> = Vec::new();
            let mut received = ReceivedRequest::default();
            let mut keeps = false;
            let id = loop {
                let mut head = [0; 8];
                if stream.read_exact(&mut head).is_err() {
                    return;
                }
                let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
                let mut content = vec![0; length + usize::from(head[6])];
                if stream.read_exact(&mut content).is_err() {
                    return;
                }
                content.truncate(length);
                match head[1] {
                    1 => keeps = content.get(2).is_some_and(|flags| flags & 1 == 1),
                    4 if variables.len() < CONTENT_BYTES_MAX => variables.extend(content),
                    5 if length == 0 => break [head[2], head[3]],
                    5 if received.content.len() < CONTENT_BYTES_MAX => received.content.extend(content),
                    _ => {}
                }
            };
            received.fields = parse_pairs(&variables);
            received.method = joined_values(&received.fields, "REQUEST_METHOD").unwrap_or_default();
            received.target = joined_values(&received.fields, "REQUEST_URI").unwrap_or_default();
            let is_head = received.method == "HEAD";
            let received = self.record_request(received);
            let (head, content) = build_response(&received);
            let head = head.strip_prefix("HTTP/1.1 ").map_or(head.clone(), |rest| format!("Status: {rest}"));
            let mut out = format!("{head}\r\n").into_bytes();
            if !is_head {
                out.extend_from_slice(&content);
            }
            let mut records = Vec::new();
            for part in out.chunks(32 << 10) {
                write_record(&mut records, 6, id, part);
            }
            write_record(&mut records, 6, id, &[]);
            write_record(&mut records, 3, id, &[0; 8]);
            if stream.write_all(&records).is_err() || !keeps {
                return;
            }
        }
    }
}

fn write_record(out: &mut Vec<u8>, kind: u8, id: [u8; 2], content: &[u8]) {
    let length = u16::try_from(content.len()).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&[1, kind, id[0], id[1], length[0], length[1], 0, 0]);
    out.extend_from_slice(content);
}

/// Parses FastCGI name-value pairs.
fn parse_pairs(mut bytes: &[u8]) -> Vec<(String, String)> {
    fn read_length(bytes: &mut &[u8]) -> Option<usize> {
        let (&first, rest) = bytes.split_first()?;
        if first < 128 {
            *bytes = rest;
            return Some(usize::from(first));
        }
        let (long, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        Some(usize::try_from(u32::from_be_bytes(*long) & 0x7FFF_FFFF).unwrap_or(0))
    }
    let mut found = Vec::new();
    while let (Some(name), Some(value)) = (read_length(&mut bytes), read_length(&mut bytes)) {
        if bytes.len() < name + value {
            break;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.push((text(&bytes[..name]), text(&bytes[name..name + value])));
        bytes = &bytes[name + value..];
    }
    found
}

/// Returns head and content of the response: it echoes the request, or does what the request's `X-Stub` field
/// selects.
fn build_response(received: &ReceivedRequest) -> (String, Vec<u8>) {
    let wanted = joined_values(&received.fields, "x-stub")
        .or_else(|| joined_values(&received.fields, "HTTP_X_STUB"))
        .unwrap_or_default();
    let content = format!(
        "stub {}\n{}\n{}\n{}",
        received.server,
        received.method,
        format_content(&received.content),
        "padding of the stub, so that there is something to compress\n".repeat(20)
    )
    .into_bytes();
    let host = joined_values(&received.fields, "host").unwrap_or_default();
    let mut fields = String::from("Content-Type: text/html\r\nX-Powered-By: stub\r\nServer: stub\r\n");
    let mut status = "200 OK".to_owned();
    match wanted.split_once(' ').unwrap_or((wanted.as_str(), "")) {
        ("status", code) => status = format!("{code} Stub"),
        ("redirect", "path") => {
            "302 Found".clone_into(&mut status);
            fields.push_str("Location: /other/path\r\n");
        }
        ("redirect", _) => {
            "302 Found".clone_into(&mut status);
            fields.push_str(&format!("Location: http://{host}/other/path\r\n"));
        }
        ("cookie", _) => {
            fields.push_str("Set-Cookie: a=1; Path=/; HttpOnly\r\n");
            fields.push_str(&format!("Set-Cookie: b=2; Domain={host}; Path=/app/\r\n"));
        }
        ("headers", _) => fields.push_str(
            "Cache-Control: max-age=60\r\nETag: \"stub\"\r\nVary: Accept-Language\r\nX-Frame-Options: DENY\r\n\
             Strict-Transport-Security: max-age=1\r\nAccess-Control-Allow-Origin: *\r\nX-Accel-Buffering: no\r\n",
        ),
        _ => {}
    }
    let content = if wanted == "empty" { Vec::new() } else { content };
    (format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n", content.len()), content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fastcgi_name_value_pairs_are_parsed() {
        let mut bytes = vec![1, 2, b'A', b'b', b'c', 3, 128, 0, 0, 200, b'X', b'Y', b'Z'];
        bytes.extend([b'v'; 200]);
        let found = parse_pairs(&bytes);
        assert_eq!(found[0], ("A".to_owned(), "bc".to_owned()));
        assert_eq!((found[1].0.as_str(), found[1].1.len()), ("XYZ", 200));
        assert_eq!(parse_pairs(&[5, 5, 1]), []);
    }
}
