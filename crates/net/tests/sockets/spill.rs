//! Output of slow clients in temporary files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Fields, Length, Status};
use net::{
    BindAddress, Exchange, Fault, Options, RequestRecord, Server, Service, SpillError, SpillQuota, SpillStore,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// More than the sockets' buffers hold.
const BODY_BYTES: usize = 32 * 1024 * 1024;
const PIECE_BYTES: usize = 100_000;
const AHEAD_BYTES: usize = 64 * 1024;

#[derive(Default)]
struct Seen {
    done: AtomicUsize,
    refused: AtomicUsize,
    backlog_max: AtomicU64,
}

#[derive(Clone)]
struct Sender {
    quota: Arc<SpillQuota>,
    seen: Arc<Seen>,
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

impl Service for Sender {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let length = match x.request().path() {
            b"/chunked" => Length::Unknown,
            _ => Length::Known(BODY_BYTES as u64),
        };
        x.begin(Status::OK, &Fields::new(), length);
        let mut at = 0;
        while at < BODY_BYTES {
            let end = BODY_BYTES.min(at + PIECE_BYTES);
            let piece: Vec<u8> = (at..end).map(byte).collect();
            at = end;
            x.offer(&piece)?;
            if x.backlog() > AHEAD_BYTES
                && let Err(why) = x.spill(&self.quota).await?
            {
                assert!(matches!(why, SpillError::QuotaFull(_)), "{why}");
                self.seen.refused.fetch_add(1, Ordering::Relaxed);
                x.flush().await?;
            }
            self.seen.backlog_max.fetch_max(x.backlog() as u64, Ordering::Relaxed);
        }
        self.seen.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

fn start(bytes_max: u64) -> (Server, std::net::SocketAddr, Sender) {
    let store = SpillStore::new(&std::env::temp_dir(), u64::MAX);
    let sender = Sender { quota: SpillQuota::new(&store, bytes_max).unwrap(), seen: Arc::default() };
    let theirs = sender.clone();
    let bind = BindAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::start(&Options::default(), &[bind], move |_| Ok(theirs.clone())).unwrap();
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("an address") };
    (server, address, sender)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    socket
}

/// Reads a head and the body that it announces.
fn read_answer(socket: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut body = Vec::new();
    if !String::from_utf8_lossy(&head).contains("chunked") {
        body.resize(BODY_BYTES, 0);
        socket.read_exact(&mut body).unwrap();
        return body;
    }
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let len = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let from = body.len();
        body.resize(from + len + 2, 0);
        socket.read_exact(&mut body[from..]).unwrap();
        body.truncate(from + len);
        if len == 0 {
            return body;
        }
    }
}

fn is_whole(body: &[u8]) -> bool {
    body.len() == BODY_BYTES && body.iter().enumerate().all(|(at, found)| *found == byte(at))
}

#[test]
fn handler_finishes_before_the_client_reads_a_spilled_response() {
    let (server, address, sender) = start(u64::MAX);
    for path in ["/", "/chunked"] {
        let done = sender.seen.done.load(Ordering::Relaxed);
        let mut socket = ask(address, path);
        until("the handler is done", || sender.seen.done.load(Ordering::Relaxed) > done);
        assert!(sender.quota.used() > 0);
        // The next request waits, because a connection has only one file.
        write!(socket, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        assert!(is_whole(&read_answer(&mut socket)), "{path}");
        assert!(is_whole(&read_answer(&mut socket)), "{path}, once more");
        until("all of its space is free", || sender.quota.used() == 0);
    }
    assert!(sender.seen.backlog_max.load(Ordering::Relaxed) <= (AHEAD_BYTES + PIECE_BYTES) as u64);
    server.stop_handle().drain();
    server.join().unwrap();
}

#[test]
fn disconnected_client_frees_its_spill_space() {
    let (server, address, sender) = start(u64::MAX);
    let sockets: Vec<TcpStream> = (0..4).map(|_| ask(address, "/")).collect();
    until("all are done", || sender.seen.done.load(Ordering::Relaxed) == 4);
    assert!(sender.quota.used() > BODY_BYTES as u64);
    drop(sockets);
    until("all of its space is free", || sender.quota.used() == 0);
    server.stop_handle().drain();
    server.join().unwrap();
}

#[test]
fn handler_waits_for_the_client_beyond_the_spill_quota() {
    const MIB: u64 = 1024 * 1024;
    let (server, address, sender) = start(4 * MIB);
    let mut socket = ask(address, "/");
    until("the file is as large as it may be", || sender.seen.refused.load(Ordering::Relaxed) > 0);
    assert!(sender.quota.used() <= 4 * MIB);
    assert!(sender.quota.should_report() && !sender.quota.should_report());
    assert!(is_whole(&read_answer(&mut socket)));
    until("all of its space is free", || sender.quota.used() == 0);
    server.stop_handle().drain();
    server.join().unwrap();
}

#[test]
fn spill_store_in_a_missing_directory_creates_no_file() {
    let store = SpillStore::new(Path::new("/proc/nowhere"), u64::MAX);
    assert!(store.create().is_err());
    // A file system without O_TMPFILE.
    let store = SpillStore::new(&std::env::temp_dir(), u64::MAX);
    assert!(store.create().is_ok());
    assert!(SpillQuota::new(&store, 0).is_none());
}
