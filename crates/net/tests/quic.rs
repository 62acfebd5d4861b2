//! Clients over QUIC of a server in a process of its own, whose memory is measured.
//!
//! `heaptrack_print --print-leaks 1` shows what an idle connection is made of, and `--flamegraph-cost-type leaked` the same as
//! folded stacks:
//!
//! ```text
//! KOMAINU_TEST_WRAPPER="heaptrack -o /tmp/idle" cargo test -p komainu-net --test quic idle
//! ```
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use http::{Fields, Method, Status};
use net::{
    BindAddress, CertificateStore, Core, Exchange, Fault, Http3Client, Http3Event, Http3Options,
    ListenOptions, MuxRequest, Options, RequestRecord, Server, ServerCertificate, Service, TlsAcceptor,
    TlsClient, TlsClientOptions, TlsHttp, TlsOptions, TlsSite,
};
use rcgen::{CertificateParams, KeyPair};
use times::{Millis, Moment};

const CHILD: &str = "KOMAINU_NET_TEST_CHILD";
/// A command that executes the server: its words, before those of the server.
const WRAPPER: &str = "KOMAINU_TEST_WRAPPER";
/// Memory of an idle connection, in bytes, with a margin. It is 27 KB.
const IDLE_BYTES_MAX: usize = 32 * 1024;
/// Requests at once that a new client may have, and those that it may have when it needs them.
const REQUESTS_FIRST: usize = 32;
const REQUESTS_MAX: usize = 100;

struct Hello;

impl Service for Hello {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        if exchange.request().path() == b"/slow" {
            exchange.core().sleep(Millis(600_000)).await;
        }
        exchange.reply(Status::OK, &Fields::new(), b"hello").await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// The server, which runs in a child process. Does nothing as a test of the parent process.
#[test]
#[allow(clippy::print_stdout)]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["here".to_owned()]).unwrap().self_signed(&key).unwrap();
    let own = ServerCertificate::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    let acceptor = TlsAcceptor::new(CertificateStore::new());
    let site = TlsSite { certificates: vec![own.unwrap()], ..TlsSite::default() };
    acceptor.replace(&TlsOptions::default(), |_, _| Some(0), vec![Some(site)]).unwrap();
    let bind = BindAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let listen = ListenOptions { is_tls: true, allows_http3: true, ..ListenOptions::from(bind) };
    let options = Options { tls: Some(acceptor), ..Options::default() };
    let server = Server::start(&options, &[listen], |_| Ok(Hello)).unwrap();
    let BindAddress::Tcp(address) = &server.addresses()[0] else { panic!("an address") };
    println!("\nport {}", address.port());
    // Blocks until the parent closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
    // Its connections are open: what they hold is not released.
    std::process::exit(0);
}

/// The server, which ends with the parent's end of its input.
struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    fn start() -> ServerProcess {
        let own = std::env::current_exe().unwrap();
        let mut words = std::env::var(WRAPPER).unwrap_or_default();
        words.push_str(&format!(" {} --exact child --nocapture", own.display()));
        let mut words = words.split_whitespace();
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let port: u16 = lines.find_map(|line| line.strip_prefix("port ")?.parse().ok()).unwrap();
        ServerProcess { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    async fn connect(&self, core: &Core) -> Http3Client {
        let options = TlsClientOptions {
            name: "here",
            insecure: true,
            http: TlsHttp::Http3,
            ..TlsClientOptions::default()
        };
        let tls = TlsClient::new(&options).unwrap();
        let options = Http3Options::default();
        Http3Client::connect(core, self.address, &tls, &options, Moment::NEVER).await.unwrap()
    }

    /// Returns clients that have asked once and wait.
    async fn idle_clients(&self, core: &Core, count: usize) -> Vec<Http3Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = self.connect(core).await;
            let stream = client.request(&get(b"/")).unwrap();
            while !exchange(&mut client) {
                core.sleep(Millis(1)).await;
            }
            client.release(stream);
            clients.push(client);
        }
        // What is still to be acknowledged and measured.
        for _ in 0..6 {
            core.sleep(Millis(50)).await;
            clients.iter_mut().for_each(|client| _ = exchange(client));
        }
        // Then the server releases what it does not need.
        core.sleep(Millis(2_500)).await;
        clients
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn get(path: &'static [u8]) -> MuxRequest<'static> {
    MuxRequest {
        method: Method::Get,
        method_name: b"GET",
        scheme: b"https",
        authority: b"here",
        path,
        lines: b"user-agent: Mozilla/5.0 (X11; Linux x86_64)\r\n",
        has_no_body: true,
        protocol: None,
    }
}

/// Receives and sends what there is. Returns whether a response has ended.
fn exchange(client: &mut Http3Client) -> bool {
    let mut has_ended = false;
    client.receive().unwrap();
    while let Some(event) = client.next_event().unwrap() {
        match event {
            Http3Event::Data { stream, data, ended } => {
                client.grant(stream, data.len());
                has_ended |= ended;
            }
            Http3Event::End { .. } => has_ended = true,
            _ => {}
        }
    }
    client.send();
    has_ended
}

#[test]
fn idle_connections_use_little_memory() {
    let server = ServerProcess::start();
    let core = Core::for_client(1).unwrap();
    let inner = core.clone();
    let is_profiled = std::env::var_os(WRAPPER).is_some();
    let each = core.run_until_end(async move {
        // Memory of handshakes is allocated once, with the first connections.
        let some = server.idle_clients(&inner, if is_profiled { 0 } else { 100 }).await;
        let before = server.resident_bytes();
        let more = server.idle_clients(&inner, 200).await;
        let each = server.resident_bytes().saturating_sub(before) / more.len();
        drop(server);
        drop((some, more));
        each
    });
    let each = each.unwrap();
    assert!(is_profiled || each < IDLE_BYTES_MAX, "{each} bytes for an idle connection");
    eprintln!("{each} bytes for an idle connection");
}

#[test]
fn clients_may_have_more_requests_when_they_need_them() {
    let server = ServerProcess::start();
    let core = Core::for_client(1).unwrap();
    let inner = core.clone();
    core.run_until_end(async move {
        let mut client = server.connect(&inner).await;
        let request = get(b"/slow");
        let mut count = 0;
        while client.request(&request).is_some() {
            count += 1;
        }
        assert_eq!(count, REQUESTS_FIRST);
        while count < REQUESTS_MAX {
            exchange(&mut client);
            inner.sleep(Millis(1)).await;
            while client.request(&request).is_some() {
                count += 1;
            }
        }
        exchange(&mut client);
        inner.sleep(Millis(50)).await;
        exchange(&mut client);
        assert!(client.request(&request).is_none());
        drop(server);
    })
    .unwrap();
}
