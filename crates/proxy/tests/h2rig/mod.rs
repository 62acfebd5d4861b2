//! Scripted HTTP/2 servers, on threads, with blocking sockets.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)] // each test file uses a part of it

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http::{Fields, Status};
use http2::{ErrorCode, Event, Machine, Options};
use proxy::options::{UpstreamAddress, UpstreamProtocol, UpstreamServer};

/// Read timeout, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that handles each connection by a closure on a thread of its own.
pub struct H2Origin {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    /// Notes that scripts have made.
    pub notes: Arc<Mutex<Vec<String>>>,
}

/// A request whose head has been received.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub stream: u32,
    pub method: String,
    pub path: String,
    pub authority: String,
    /// `name: value` lines.
    pub fields: String,
    pub body: Vec<u8>,
    pub trailers: String,
    pub ended: bool,
}

impl H2Origin {
    /// Starts a server; `serve` gets each connection and its number.
    pub fn start(options: Options, serve: impl Fn(&mut Peer, usize) + Send + Sync + 'static) -> H2Origin {
        H2Origin::on(TcpListener::bind("127.0.0.1:0").unwrap(), options, serve)
    }

    /// Starts a server on the caller's listening socket.
    pub fn on(
        listener: TcpListener,
        options: Options,
        serve: impl Fn(&mut Peer, usize) + Send + Sync + 'static,
    ) -> H2Origin {
        let address = listener.local_addr().unwrap();
        let (connections, ended): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let counter = connections.clone();
        let over = ended.clone();
        let theirs = notes.clone();
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let mut peer = Peer::new(stream, options, theirs.clone());
                let serve = serve.clone();
                let over = over.clone();
                thread::spawn(move || {
                    serve(&mut peer, number);
                    drop(peer);
                    over.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        H2Origin { address, connections, ended, notes }
    }

    /// Starts a server that answers each complete request with the body and trailers returned by `answer`.
    pub fn answering(answer: impl Fn(&Asked) -> (Vec<u8>, Fields) + Send + Sync + 'static) -> H2Origin {
        H2Origin::start(Options::default(), move |peer, _| {
            while let Some(asked) = peer.request() {
                let (body, trailers) = answer(&asked);
                peer.answer(asked.stream, Status::OK, b"", &body, &trailers);
            }
        })
    }

    /// Returns the options of this server, with HTTP/2 by prior knowledge.
    pub fn server(&self) -> UpstreamServer {
        server(self.address)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn noted(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    /// Waits until a script has made a note that begins with `begins`.
    pub fn wait_noted(&self, begins: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(found) = self.noted().into_iter().find(|note| note.starts_with(begins)) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{begins} was never noted: {:?}", self.noted());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until scripts have made `count` notes.
    pub fn wait_count(&self, count: usize) {
        let began = Instant::now();
        while self.noted().len() < count {
            assert!(began.elapsed() < PATIENCE, "only this was noted: {:?}", self.noted());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until every connection has ended.
    pub fn wait_idle(&self) {
        let began = Instant::now();
        while self.ended.load(Ordering::SeqCst) < self.connections() {
            assert!(began.elapsed() < PATIENCE, "a connection never ends");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the options of a server with HTTP/2 by prior knowledge.
pub fn server(address: SocketAddr) -> UpstreamServer {
    let at = UpstreamAddress::Tcp { host: address.ip().to_string(), port: address.port() };
    UpstreamServer { protocol: UpstreamProtocol::Http2, ..UpstreamServer::new(at) }
}

/// The server's side of one connection.
pub struct Peer {
    pub stream: TcpStream,
    pub machine: Machine,
    pub out: Vec<u8>,
    input: Vec<u8>,
    notes: Arc<Mutex<Vec<String>>>,
    /// Incomplete requests, by stream.
    asked: HashMap<u32, Asked>,
    /// Whether flow-control windows are replenished as content is received.
    pub grants: bool,
    /// Whether the total of received content is noted with each piece.
    pub notes_content: bool,
    received_bytes: usize,
}

/// An event on a connection.
#[derive(Debug)]
pub enum Came {
    Head(Asked),
    /// A complete request.
    Whole(Asked),
    Reset(u32, ErrorCode),
    /// An event that concerns only the protocol machine.
    Other,
    /// The connection has ended, or the proxy has violated the protocol.
    End,
}

impl Peer {
    fn new(stream: TcpStream, options: Options, notes: Arc<Mutex<Vec<String>>>) -> Peer {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let machine = Machine::server(options);
        let asked = HashMap::new();
        Peer {
            stream,
            machine,
            out: Vec::new(),
            input: Vec::new(),
            notes,
            asked,
            grants: true,
            notes_content: false,
            received_bytes: 0,
        }
    }

    pub fn note(&self, note: impl Into<String>) {
        self.notes.lock().unwrap().push(note.into());
    }

    /// Sends pending output.
    pub fn flush(&mut self) {
        self.machine.flush(&mut self.out);
        let _ = self.stream.write_all(&self.out);
        self.out.clear();
    }

    /// Sends bytes that bypass the machine.
    pub fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.flush();
        self.stream.write_all(bytes).is_ok()
    }

    /// Reads until an event occurs.
    pub fn next(&mut self) -> Came {
        loop {
            let (consumed, event) = match self.machine.feed(&self.input, 0) {
                Ok(fed) => fed,
                Err(error) => {
                    self.note(format!("broken: {}", error.reason));
                    self.flush();
                    return Came::End;
                }
            };
            let bytes: Vec<u8> = self.input.drain(..consumed).collect();
            match event {
                Event::NeedMore => {
                    self.flush();
                    let mut room = [0; 64 * 1024];
                    match self.stream.read(&mut room) {
                        Ok(len @ 1..) => self.input.extend_from_slice(&room[..len]),
                        _ => return Came::End,
                    }
                }
                Event::Head { stream, ended } => {
                    let asked = self.asked(stream, ended);
                    if ended {
                        return Came::Whole(asked);
                    }
                    self.asked.insert(stream, asked.clone());
                    return Came::Head(asked);
                }
                Event::Data { stream, data, ended } => {
                    let content = data.of(&bytes);
                    if self.grants {
                        self.machine.grant(stream, content.len());
                    }
                    self.received_bytes += content.len();
                    if self.notes_content {
                        self.note(format!("received {}", self.received_bytes));
                    }
                    let asked = self.asked.entry(stream).or_default();
                    asked.body.extend_from_slice(content);
                    if ended {
                        return Came::Whole(self.asked.remove(&stream).unwrap());
                    }
                }
                Event::Trailers { stream } => {
                    let mut asked = self.asked.remove(&stream).unwrap();
                    asked.trailers = String::from_utf8(self.machine.trailers.as_bytes().to_vec()).unwrap();
                    return Came::Whole(asked);
                }
                Event::Reset { stream, code } => {
                    self.machine.release(stream);
                    return Came::Reset(stream, code);
                }
                _ => return Came::Other,
            }
        }
    }

    /// Reads until a request head arrives or the connection ends.
    pub fn next_head(&mut self) -> Came {
        loop {
            let came = self.next();
            if matches!(came, Came::Head(_) | Came::Whole(_) | Came::End) {
                return came;
            }
        }
    }

    /// Takes the bytes that were read but not parsed.
    pub fn unparsed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    fn asked(&self, stream: u32, ended: bool) -> Asked {
        let head = &self.machine.head;
        let bytes = self.machine.head_bytes();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = head.fields.iter();
        Asked {
            stream,
            method: text(head.method_name.of(bytes)),
            path: text(head.target.whole.of(bytes)),
            authority: text(head.authority.of(bytes)),
            fields: fields
                .map(|f| format!("{}: {}\n", text(f.name.of(bytes)), text(f.value.of(bytes))))
                .collect(),
            ended,
            ..Asked::default()
        }
    }

    /// Reads the next complete request; `None` if the connection ends first.
    pub fn request(&mut self) -> Option<Asked> {
        loop {
            match self.next() {
                Came::Whole(asked) => return Some(asked),
                Came::End => return None,
                _ => {}
            }
        }
    }

    /// Reads until the connection ends, and notes each reset.
    pub fn drain(&mut self) {
        loop {
            match self.next() {
                Came::End => return,
                Came::Reset(stream, code) => self.note(format!("reset {stream} {code:?}")),
                _ => {}
            }
        }
    }

    /// Begins a response.
    pub fn begin(&mut self, stream: u32, status: Status, lines: &[u8], ended: bool) {
        if let Some(mut head) = self.machine.respond(stream, status, ended, &mut self.out) {
            head.lines(lines);
        }
    }

    /// Sends a whole response, as the flow-control windows allow. False if the connection or the stream ends
    /// first.
    pub fn answer(
        &mut self,
        stream: u32,
        status: Status,
        lines: &[u8],
        body: &[u8],
        trailers: &Fields,
    ) -> bool {
        let bare = body.is_empty() && trailers.is_empty();
        self.begin(stream, status, lines, bare);
        let done = bare || self.content(stream, body, trailers.is_empty());
        if !trailers.is_empty() {
            self.machine.send_trailers(stream, trailers, &mut self.out);
        }
        self.machine.release(stream);
        self.flush();
        done
    }

    /// Sends content, as the flow-control windows allow.
    pub fn content(&mut self, stream: u32, body: &[u8], ended: bool) -> bool {
        let mut at = 0;
        while at < body.len() {
            at += self.machine.data(stream, &body[at..], ended, &mut self.out);
            self.flush();
            if at < body.len() && self.machine.sendable(stream) == 0 {
                match self.next() {
                    Came::End => return false,
                    Came::Reset(reset, _) if reset == stream => return false,
                    _ => {}
                }
            }
        }
        true
    }
}
