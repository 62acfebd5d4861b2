//! A test rig: a proxy on real sockets, scripted upstream servers, and clients that check every byte.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)] // each test file uses a part of it

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http::machine::{self, Step};
use http::{Limits, Method};
use net::{BindAddress, Exchange, Fault, RequestRecord};
use proxy::options::{GroupOptions, RouteOptions, UpstreamAddress, UpstreamServer};
use proxy::{Group, GroupShared, Proxy};

/// Read timeout, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

// ---- the proxy ----

pub struct Hop(pub Proxy);

impl net::Service for Hop {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// A running proxy.
pub struct Rig {
    pub address: SocketAddr,
    /// Address of the same service over HTTP/2 without TLS.
    pub h2c: SocketAddr,
    pub shared: Arc<GroupShared>,
    server: Option<net::Server>,
}

/// Options of a group and its only route.
#[derive(Clone)]
pub struct Options {
    pub group: GroupOptions,
    pub route: RouteOptions,
}

impl Options {
    /// Returns the default options for these servers.
    pub fn to(servers: Vec<UpstreamServer>) -> Options {
        Options { group: GroupOptions::new(servers), route: RouteOptions::default() }
    }
}

impl Rig {
    /// Starts a proxy with default options in front of one origin.
    pub fn to(origin: &Origin) -> Rig {
        Rig::with(Options::to(vec![origin.server()]))
    }

    /// Starts a proxy with these options on one thread.
    pub fn with(options: Options) -> Rig {
        Rig::on(1, options)
    }

    /// Starts a proxy with temporary files for responses that clients do not read.
    pub fn spilling(options: Options, spill: Option<Arc<net::SpillQuota>>) -> Rig {
        Rig::routing(1, options, spill)
    }

    /// Starts a proxy with these options on `threads` threads.
    pub fn on(threads: usize, options: Options) -> Rig {
        Rig::routing(threads, options, None)
    }

    fn routing(threads: usize, options: Options, spill: Option<Arc<net::SpillQuota>>) -> Rig {
        let route = Arc::new(options.route);
        Rig::serving(threads, GroupShared::new(options.group).unwrap(), move |core, shared| {
            Hop(Group::new(core, shared).proxy(&route, spill.clone()))
        })
    }

    /// Starts a server with a custom service.
    pub fn serving<S: net::Service>(
        threads: usize,
        shared: Arc<GroupShared>,
        service: impl Fn(&net::Core, &Arc<GroupShared>) -> S + Send + Sync + 'static,
    ) -> Rig {
        let theirs = shared.clone();
        let run = net::Options { threads, ..net::Options::default() };
        let run = net::Options { limits: net::Limits { body_bytes_max: u64::MAX, ..run.limits }, ..run };
        let bind = || net::ListenOptions::from(BindAddress::Tcp("127.0.0.1:0".parse().unwrap()));
        let binds = [bind(), net::ListenOptions { allows_h2c: true, ..bind() }];
        let server = net::Server::start(&run, &binds, move |core| Ok(service(core, &theirs))).unwrap();
        let [BindAddress::Tcp(address), BindAddress::Tcp(h2c)] = server.addresses()[..] else {
            panic!("TCP addresses")
        };
        Rig { address, h2c, shared, server: Some(server) }
    }

    /// Opens a client connection.
    pub fn client(&self) -> Client {
        Client::to(self.address)
    }

    /// Sends one request on a new connection and returns the response.
    pub fn ask(&self, request: &str) -> Response {
        let mut client = self.client();
        client.send(request);
        client.response(method_of(request)).unwrap_or_else(|broken| panic!("{broken}: {request}"))
    }

    /// Sends `GET path` on a new connection.
    pub fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: site.test\r\n\r\n"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop_handle().drain();
            let _ = server.join();
        }
    }
}

// ---- origins ----

/// An upstream server that handles each connection by a closure on a thread of its own.
pub struct Origin {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Origin {
    /// Starts a server; `serve` gets each connection and its number.
    pub fn start(serve: impl Fn(Caller, usize) + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let over = ended.clone();
        let record = seen.clone();
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let caller = Caller::new(stream, record.clone());
                let serve = serve.clone();
                let over = over.clone();
                thread::spawn(move || {
                    let _ = catch_unwind(AssertUnwindSafe(|| serve(caller, number)));
                    over.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Origin { address, connections, ended, seen }
    }

    /// Starts a server with one of `workers` per connection until it ends, as servers with a process per
    /// connection do; other connections wait.
    pub fn prefork(workers: usize, serve: impl Fn(Caller, usize) + Send + Sync + 'static) -> Origin {
        let free = Arc::new((Mutex::new(workers), Condvar::new()));
        Origin::start(move |caller, number| {
            let (count, freed) = &*free;
            let mut left = freed.wait_while(count.lock().unwrap(), |left| *left == 0).unwrap();
            *left -= 1;
            drop(left);
            serve(caller, number);
            *count.lock().unwrap() += 1;
            freed.notify_one();
        })
    }

    /// Starts a server that answers every request with these bytes and keeps its connections.
    pub fn answering(response: &'static str) -> Origin {
        Origin::start(move |mut caller, _| {
            while caller.request().is_some() {
                caller.send(response);
            }
        })
    }

    /// Starts a server that answers every request with its raw bytes as the body.
    pub fn mirror() -> Origin {
        Origin::start(|mut caller, _| {
            while let Some(request) = caller.request() {
                caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len()));
                caller.send_bytes(&request);
            }
        })
    }

    /// Returns the options of this server.
    pub fn server(&self) -> UpstreamServer {
        server(self.address)
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.connections() - self.ended.load(Ordering::SeqCst)
    }

    /// Returns everything that was read from all connections.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen_bytes()).into_owned()
    }

    pub fn seen_bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until every connection has ended.
    pub fn wait_idle(&self) {
        let began = Instant::now();
        while self.ended.load(Ordering::SeqCst) < self.connections() {
            assert!(began.elapsed() < PATIENCE, "a connection never ends");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until `text` has been received.
    pub fn wait_seen(&self, text: &str) {
        let began = Instant::now();
        while !self.seen().contains(text) {
            assert!(began.elapsed() < PATIENCE, "{text} never came: {}", self.seen());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the options of a server at an address.
pub fn server(address: SocketAddr) -> UpstreamServer {
    UpstreamServer::new(UpstreamAddress::Tcp { host: address.ip().to_string(), port: address.port() })
}

/// Returns an address without a listener.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The origin's side of one connection.
pub struct Caller {
    pub stream: TcpStream,
    record: Arc<Mutex<Vec<u8>>>,
    machine: machine::ServerMachine,
    bytes: Vec<u8>,
}

impl Caller {
    pub fn new(stream: TcpStream, record: Arc<Mutex<Vec<u8>>>) -> Caller {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Caller { stream, record, machine: machine::ServerMachine::default(), bytes: Vec::new() }
    }

    fn fill(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("still open after {}", self.bytes.escape_ascii())
            }
            Ok(0) | Err(_) => false,
            Ok(len) => {
                self.record.lock().unwrap().extend_from_slice(&buffer[..len]);
                self.bytes.extend_from_slice(&buffer[..len]);
                true
            }
        }
    }

    /// Reads the next head and returns its bytes; `None` if the connection ends first.
    pub fn head(&mut self) -> Option<String> {
        loop {
            let fed =
                self.machine.feed(&self.bytes, &Limits::default()).expect("the proxy sends valid heads");
            if fed.step == Step::Head {
                let head: Vec<u8> = self.bytes.drain(..fed.consumed).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads the next piece of the body; `None` at the end.
    pub fn body_piece(&mut self) -> Option<Vec<u8>> {
        loop {
            let fed =
                self.machine.feed(&self.bytes, &Limits::default()).expect("the proxy sends valid bodies");
            match fed.step {
                Step::Data(span) => {
                    let piece = span.of(&self.bytes).to_vec();
                    self.bytes.drain(..fed.consumed);
                    return Some(piece);
                }
                Step::End => {
                    self.bytes.drain(..fed.consumed);
                    self.machine.next();
                    return None;
                }
                _ => {
                    self.bytes.drain(..fed.consumed);
                    if !self.fill() {
                        // The proxy has closed the connection or violated the protocol.
                        return None;
                    }
                }
            }
        }
    }

    /// Reads a whole request and returns its head and content.
    pub fn request(&mut self) -> Option<Vec<u8>> {
        let mut request = self.head()?.into_bytes();
        while let Some(piece) = self.body_piece() {
            request.extend(piece);
        }
        Some(request)
    }

    /// Reads raw bytes up to and including `end`.
    pub fn rest_until(&mut self, end: &[u8]) -> Vec<u8> {
        while !self.bytes.ends_with(end) {
            assert!(self.fill(), "the end came after {}", self.bytes.escape_ascii());
        }
        std::mem::take(&mut self.bytes)
    }

    /// Returns raw bytes received; `None` at the end.
    pub fn raw(&mut self) -> Option<Vec<u8>> {
        (!self.bytes.is_empty() || self.fill()).then(|| std::mem::take(&mut self.bytes))
    }

    /// Reads until `end` is received or the connection ends.
    pub fn raw_until(&mut self, end: &[u8]) {
        while !self.bytes.ends_with(end) && self.fill() {}
    }

    /// Skips the first line if it has this prefix; false if the connection ends.
    pub fn skip_line(&mut self, begins: &str) -> bool {
        while self.bytes.len() < begins.len() {
            if !self.fill() {
                return false;
            }
        }
        if self.bytes.starts_with(begins.as_bytes()) {
            let end = self.bytes.iter().position(|&byte| byte == b'\n').expect("a line comes whole");
            self.bytes.drain(..=end);
        }
        true
    }

    /// Reads everything until the proxy closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.bytes)
    }

    pub fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes());
    }

    /// Sends as much as the proxy accepts; ignores a proxy that has closed.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        reset(&self.stream);
    }
}

/// Makes closing the socket send a reset.
pub fn reset(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

// ---- clients ----

/// A client's connection to the proxy.
pub struct Client {
    pub stream: TcpStream,
    bytes: Vec<u8>,
}

/// A response, as received by a client.
#[derive(Debug, Default)]
pub struct Response {
    /// Heads of interim responses.
    pub interim: Vec<String>,
    pub status: u16,
    /// The head without the terminating empty line.
    pub head: String,
    pub body: Vec<u8>,
    /// Trailer lines.
    pub trailers: String,
}

impl Response {
    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the status and the reason on an error page of the proxy.
    pub fn refused(&self) -> (u16, String) {
        let text = self.text();
        let reason = text.trim_end().split_once(": ").map_or("", |(_, reason)| reason);
        (self.status, reason.to_owned())
    }
}

impl Client {
    pub fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, bytes: Vec::new() }
    }

    pub fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // The proxy may have answered and closed already; only its response matters.
        let _ = self.stream.write_all(bytes);
    }

    /// Reads a whole response; an error describes how it is broken.
    pub fn response(&mut self, method: Method) -> Result<Response, String> {
        let mut machine = machine::ClientMachine::default();
        let mut response = Response::default();
        loop {
            let fed = machine
                .feed(&self.bytes, method, &Limits::default())
                .map_err(|reject| format!("{}: {}", reject.reason, self.bytes.escape_ascii()))?;
            match fed.step {
                Step::Head => {
                    let head = String::from_utf8_lossy(&self.bytes[..fed.consumed]).trim_end().to_owned();
                    response.status = machine.head.status.code();
                    if response.status < 200 && response.status != 101 {
                        response.interim.push(head);
                        machine.next();
                    } else {
                        response.head = head;
                    }
                    self.bytes.drain(..fed.consumed);
                    if response.status == 101 {
                        return Ok(response);
                    }
                }
                Step::Data(span) => {
                    response.body.extend_from_slice(span.of(&self.bytes));
                    self.bytes.drain(..fed.consumed);
                }
                Step::End => {
                    self.bytes.drain(..fed.consumed);
                    return Ok(Client::done(response, &machine));
                }
                Step::NeedMore => {
                    self.bytes.drain(..fed.consumed);
                    if self.fill()? {
                        continue;
                    }
                    machine.eof().map_err(|reject| reject.reason.to_owned())?;
                    return Ok(Client::done(response, &machine));
                }
            }
        }
    }

    fn done(mut response: Response, machine: &machine::ClientMachine) -> Response {
        let trailers = machine.body().map(|body| body.trailers().as_bytes().to_vec()).unwrap_or_default();
        response.trailers = String::from_utf8(trailers).unwrap();
        response
    }

    fn fill(&mut self) -> Result<bool, String> {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(len) => {
                self.bytes.extend_from_slice(&buffer[..len]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err("reset".into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err("still open".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads exactly `len` raw bytes.
    pub fn raw(&mut self, len: usize) -> Vec<u8> {
        while self.bytes.len() < len {
            assert!(self.fill().unwrap(), "the end came after {}", self.bytes.escape_ascii());
        }
        self.bytes.drain(..len).collect()
    }

    /// Reads everything until the proxy closes; true if it closed without a reset.
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let peaceful = loop {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => break true,
                Err(reason) => {
                    assert_ne!(reason, "still open", "after {}", self.bytes.escape_ascii());
                    break false;
                }
            }
        };
        (std::mem::take(&mut self.bytes), peaceful)
    }

    pub fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }
}

pub fn method_of(request: &str) -> Method {
    Method::of(request.split(' ').next().unwrap_or_default().as_bytes())
}
