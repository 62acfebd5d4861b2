//! Measurements of the most that one client can make the server hold or do: clients are brought into a state,
//! and the server's memory and CPU time for each are compared with the bound in [`table::rows`].
#![allow(dead_code, unreachable_pub, clippy::print_stderr, clippy::unwrap_used)] // each test file uses a part of it

pub mod table;
pub mod table_beside;
pub mod table_h2;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::rig::{PATIENCE, Rig};
use table::Row;

/// Time for which the server is watched once a state is reached.
const WATCH: Duration = Duration::from_millis(1_000);
/// Connections made before the first measurement, so that tables and pools have reached their initial size.
const WARM_UP: usize = 20;

/// Anonymous memory of the server in bytes, without file mappings and memory shared with workers.
pub fn resident_bytes(rig: &Rig) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// CPU time of all threads of the server in nanoseconds, without the applications' workers.
pub fn cpu_ns(rig: &Rig) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", rig.child.id())).unwrap();
    // A thread may exit between the two reads.
    let schedstat = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
    let of = |text: String| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    tasks.flatten().filter_map(schedstat).map(of).sum()
}

/// Bytes of unlinked files in `folder` that the server has open.
pub fn file_bytes(rig: &Rig, folder: &Path) -> u64 {
    let files = fs::read_dir(format!("/proc/{}/fd", rig.child.id())).unwrap();
    let is_in = |file: &fs::DirEntry| fs::read_link(file.path()).is_ok_and(|path| path.starts_with(folder));
    let metadata = files.flatten().filter(is_in).filter_map(|file| fs::metadata(file.path()).ok());
    metadata.filter(|file| file.nlink() == 0).map(|file| file.len()).sum()
}

/// A client with a small receive buffer that reads only on request.
pub struct Client {
    pub stream: TcpStream,
    /// Bytes to send, as far as the server accepts them.
    sends: Arc<[u8]>,
    /// Bytes of `sends` already sent; with `endless`, `sends` is repeated.
    sent: usize,
    endless: bool,
}

impl Client {
    pub fn new(rig: &Rig) -> Client {
        let socket: OwnedFd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
        rustix::net::connect(&socket, &rig.address).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { stream, sends: Arc::default(), sent: 0, endless: false }
    }

    /// Sends `request` and reads the head of the response.
    pub fn ask(mut self, request: &str) -> Client {
        self.stream.write_all(request.as_bytes()).unwrap();
        self.head();
        self
    }

    pub fn head(&mut self) -> String {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            assert_eq!(self.stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    pub fn sends(mut self, bytes: &Arc<[u8]>) -> Client {
        (self.sends, self.sent) = (bytes.clone(), 0);
        self.push();
        self
    }

    pub fn sends_without_end(mut self, bytes: &Arc<[u8]>) -> Client {
        self.endless = true;
        self.sends(bytes)
    }

    /// Sends as much as the server accepts; returns false once the server has closed the connection.
    pub fn push(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        // Bounded, because a server that accepts everything would keep this client busy forever.
        for _ in 0..64 {
            if self.sent == self.sends.len() {
                if !self.endless || self.sends.is_empty() {
                    return true;
                }
                self.sent = 0;
            }
            match self.stream.write(&self.sends[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// Bytes shared by many clients.
pub fn bytes(bytes: impl AsRef<[u8]>) -> Arc<[u8]> {
    bytes.as_ref().into()
}

/// Brings `count` clients into the state of `row`, one after the other, and compares the server's memory and
/// CPU time for each with the row.
#[track_caller]
pub fn hold<C>(
    rig: &Rig,
    state: &str,
    count: usize,
    open: impl FnMut() -> C,
    push: impl FnMut(&mut C),
) -> Vec<C> {
    // Memory far below the bound means that the attack did not work.
    watch(rig, state, count, table::row(state).memory_bytes / 10, (open, push))
}

/// Like `hold`, for a state that the server ends soon, so that there may be nothing left to measure.
#[track_caller]
pub fn hold_briefly<C>(
    rig: &Rig,
    state: &str,
    count: usize,
    open: impl FnMut() -> C,
    push: impl FnMut(&mut C),
) -> Vec<C> {
    watch(rig, state, count, 0, (open, push))
}

#[track_caller]
fn watch<C>(
    rig: &Rig,
    state: &str,
    count: usize,
    least_bytes: u64,
    (mut open, mut push): (impl FnMut() -> C, impl FnMut(&mut C)),
) -> Vec<C> {
    let row = table::row(state);
    let warm: Vec<_> = (0..WARM_UP.min(count / 10)).map(|_| open()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let before = resident_bytes(rig);
    let cpu_before = cpu_ns(rig);
    let control = Control::start();
    let mut most = before;
    let mut clients = Vec::new();
    for at in 0..count {
        clients.push(open());
        if at % 16 == 0 {
            most = most.max(resident_bytes(rig));
        }
    }
    let each = |most: u64| most.saturating_sub(before) / count as u64;
    let mut reached = None;
    let until = Instant::now() + PATIENCE;
    while reached.is_none_or(|at: Instant| at.elapsed() < WATCH) {
        clients.iter_mut().for_each(&mut push);
        std::thread::sleep(Duration::from_millis(50));
        most = most.max(resident_bytes(rig));
        if reached.is_none() && each(most) >= least_bytes {
            reached = Some(Instant::now());
        }
        assert!(Instant::now() < until, "{state}: {} bytes each, and not more", each(most));
    }
    let cpu = cpu_ns(rig).saturating_sub(cpu_before) / count as u64;
    eprintln!("{state}: {} bytes, {} µs", each(most), cpu / 1000);
    assert!(each(most) <= row.memory_bytes, "{state}: {} bytes each", each(most));
    assert_cpu(row, cpu, control);
    drop(warm);
    clients
}

/// Compares the cost of `attack`, which returns its number of units of work, with the row.
#[track_caller]
pub fn work(rig: &Rig, state: &str, attack: impl FnOnce() -> u64) {
    let before = cpu_ns(rig);
    let control = Control::start();
    let units = attack();
    let cpu = cpu_ns(rig).saturating_sub(before) / units;
    eprintln!("{state}: {cpu} ns each of {units}");
    assert_cpu(table::row(state), cpu, control);
}

#[track_caller]
fn assert_cpu(row: &Row, ns: u64, control: Control) {
    let control_ns = control.stop();
    let ns_max = row.cpu_ns * control_ns.max(CONTROL_NS) / CONTROL_NS;
    assert!(ns <= ns_max, "{}: {ns} ns of CPU for {}; {control_ns} for the control", row.state, row.unit);
}

/// CPU time of one control unit on the idle machine on which the table was measured.
const CONTROL_NS: u64 = 3_000;

/// Known work in a thread beside the measurement, for calibration: cache pressure or a busy host slows down
/// both.
struct Control {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Control {
    fn start() -> Control {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        Control { stop, thread: std::thread::spawn(move || Control::work(&until)) }
    }

    /// Average CPU time of a unit in nanoseconds.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Sends 4 KiB through a socket and receives them. Runs a few units at a time, to disturb the measurement
    /// little.
    fn work(stop: &AtomicBool) -> u64 {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut block = [0; 4096];
        let mut spent = 0;
        let mut units = 0;
        while units == 0 || !stop.load(Ordering::Relaxed) {
            let began = clock_gettime(ClockId::ThreadCPUTime);
            for _ in 0..50 {
                near.write_all(&block).unwrap();
                far.read_exact(&mut block).unwrap();
            }
            let now = clock_gettime(ClockId::ThreadCPUTime);
            spent += (now.tv_sec - began.tv_sec) * 1_000_000_000 + now.tv_nsec - began.tv_nsec;
            units += 50;
            std::thread::sleep(Duration::from_millis(10));
        }
        spent as u64 / units
    }
}

/// Waits until the server is idle, that is, has handled everything sent to it.
pub fn quiet(rig: &Rig) {
    let until = Instant::now() + PATIENCE;
    let mut before = cpu_ns(rig);
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = cpu_ns(rig);
        // Timers and counters keep consuming a little CPU time.
        if now - before < 5_000_000 {
            return;
        }
        assert!(Instant::now() < until, "the server does not come to rest");
        before = now;
    }
}

/// Returns `len` zeros in a deflate stream that is left unfinished, so that the message can continue.
pub fn compressed_zeros(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024 + len / 500);
    let mut compress = flate2::Compress::new(flate2::Compression::best(), false);
    compress.compress_vec(&vec![0; len], &mut bytes, flate2::FlushCompress::Sync).unwrap();
    assert_eq!(compress.total_in(), len as u64);
    bytes
}
