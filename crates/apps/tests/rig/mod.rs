//! An application on a server of its own, and a client that sees the raw bytes.
// shared by tests that each use only a part of it
#![allow(dead_code, unreachable_pub, clippy::print_stderr, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apps::{App, AppKind, Handle, LogLine, Mount, Options, PythonInterface, Workers};
use net::{BindAddress, Exchange, Fault, ListenOptions, MemoryBudget, RequestRecord, Service};

/// Timeout of all waits; reached only if the awaited event never happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

struct Only {
    handle: Handle,
    /// Number of requests passed to the application so far.
    handed: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Service for Only {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let path = x.request().normal_path()?.into_owned();
        let mount = Mount {
            prefix: b"",
            path: &path,
            scheme: "http",
            host: b"localhost",
            target: b"",
            variables: &[],
        };
        self.handed.fetch_add(1, Ordering::SeqCst);
        self.handle.serve(x, &mount).await
    }

    fn log(&self, record: &RequestRecord<'_>) {
        if let Some(fault) = record.fault {
            self.log
                .lock()
                .unwrap()
                .push(format!("{:?} after {} bytes: {fault:?}", record.status, record.body_bytes));
        }
    }
}

/// A server with one application.
pub(crate) struct Rig {
    pub(crate) app: Arc<App>,
    server: Option<net::Server>,
    pub(crate) address: SocketAddr,
    handed: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) memory: MemoryBudget,
}

impl Rig {
    /// Serves `crates/apps/tests/perl/NAME.psgi` with two workers; `adapt` may change the options.
    pub(crate) fn perl(name: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/perl/{name}.psgi"));
        Rig::perl_file(&file, adapt)
    }

    /// Serves a PSGI file.
    pub(crate) fn perl_file(file: &Path, adapt: impl FnOnce(&mut Options)) -> Rig {
        let worker = modules("perl").join("worker.pl");
        let mut options = Options::new("shop", vec!["perl".into(), worker.into(), file.into()]);
        options.settings.timeouts.stop = Duration::from_millis(5_000);
        adapt(&mut options);
        Rig::start(options)
    }

    /// Serves an application on one core.
    pub(crate) fn start(options: Options) -> Rig {
        Rig::start_on(1, options)
    }

    /// Serves an application on this number of cores.
    pub(crate) fn start_on(cores: usize, options: Options) -> Rig {
        Rig::start_knowing(cores, cores, options)
    }

    /// Serves an application that is set up for `cores` cores, of which only `asking` use it.
    pub(crate) fn start_knowing(cores: usize, asking: usize, options: Options) -> Rig {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let reported = log.clone();
        let report = move |line: &LogLine<'_>| {
            let text = String::from_utf8_lossy(line.text).into_owned();
            reported.lock().unwrap().push(text);
        };
        let app = Arc::new(App::start(options, cores, Arc::new(report)).unwrap());
        let net_options = net::Options {
            threads: asking,
            limits: net::Limits { body_bytes_max: u64::MAX, streams_max: 1_000, ..net::Limits::default() },
            ..net::Options::default()
        };
        let memory = net_options.memory.clone();
        let listen = ListenOptions {
            allows_h2c: true,
            ..ListenOptions::from(BindAddress::Tcp(([127, 0, 0, 1], 0).into()))
        };
        let next = AtomicUsize::new(0);
        let handed = Arc::<AtomicUsize>::default();
        let served = app.clone();
        let counted = handed.clone();
        let faults = log.clone();
        let server = net::Server::start(&net_options, &[listen], move |core| {
            let handle = served.handle(core, next.fetch_add(1, Ordering::Relaxed));
            Ok(Only { handle, handed: counted.clone(), log: faults.clone() })
        })
        .unwrap();
        let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
        Rig { app, server: Some(server), address, handed, log, memory }
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { stream, bytes: Vec::new() }
    }

    /// Sends a GET request on a new connection.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.connect().get(path)
    }

    /// Stops the server and waits until all requests have finished.
    pub(crate) fn drain(&self) {
        self.server.as_ref().unwrap().stop_handle().drain();
    }

    /// Returns all lines logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Waits until this number of requests was passed to the application or its queue. Requests of one core
    /// are queued in the order in which this returned.
    pub(crate) fn handed(&self, count: usize) {
        until(&format!("request {count}"), || self.handed.load(Ordering::SeqCst) >= count);
    }

    /// Waits until the log contains `text`.
    pub(crate) fn logged(&self, text: &str) {
        until(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    /// Returns the process ids of workers in this state.
    pub(crate) fn pids(&self, state: &str) -> Vec<u32> {
        self.app
            .processes()
            .iter()
            .filter(|process| process.state == state)
            .map(|process| process.pid)
            .collect()
    }

    /// Waits for this number of ready workers, and returns their process ids.
    pub(crate) fn ready(&self, count: usize) -> Vec<u32> {
        let mut pids = Vec::new();
        until(&format!("{count} workers"), || {
            pids = self.pids("ready");
            pids.len() == count
        });
        pids
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let server = self.server.take().unwrap();
        server.stop_handle().drain();
        let drained = server.join();
        self.app.stop();
        if std::thread::panicking() {
            eprintln!("--- the application's log\n{}\n---", self.log());
        } else {
            drained.unwrap();
        }
    }
}

/// Lets the workers run an event loop, with at most this number of requests at once.
pub fn run_event_loop(options: &mut Options, concurrency: u32) {
    options.settings.kind =
        Some(AppKind::Python { interface: PythonInterface::Auto, callable: String::new() });
    options.settings.concurrency = concurrency;
}

/// Sets the number of workers to exactly one.
pub fn one_worker(options: &mut Options) {
    options.workers = Workers { min: 1, max: 1 };
}

/// Waits until `is_true` returns true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal; false if the process has ended already.
pub(crate) fn kill(pid: u32, signal: &str) -> bool {
    Command::new("kill").args([signal, &pid.to_string()]).output().unwrap().status.success()
}

/// Whether the process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// CPU time of a thread of this process in milliseconds.
pub(crate) fn cpu_ms_of_thread(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let stat = stats.into_iter().find(|stat| stat.contains(&format!("({name})"))).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// Creates a temporary folder for one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the folder of a language's module, which is built if necessary.
pub(crate) fn modules(language: &str) -> PathBuf {
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers");
    // A test that fails to build it poisons the lock.
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !built.iter().any(|other| other == language) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/workers");
        let done = Command::new(script).arg(&folder).arg(language).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        built.push(language.to_owned());
    }
    folder.join(language)
}

/// Compiles a native handler in C, C++ or Rust, according to its extension, with warnings as errors.
pub(crate) fn native_handler(source: &Path, object: &Path) {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../workers/include");
    let c = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", include];
    let (compiler, flags) = match source.extension().unwrap().to_str().unwrap() {
        "c" => ("cc", c.to_vec()),
        "cpp" => ("c++", [&c[..], &["-std=c++20"]].concat()),
        _ => ("rustc", vec!["-O", "-Dwarnings", "--edition=2024", "--crate-type=cdylib"]),
    };
    let built = Command::new(compiler).args(flags).arg("-o").arg(object).arg(source).output();
    let built = built.unwrap_or_else(|error| panic!("{compiler} (apt-get install gcc g++): {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// A client connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// Received bytes that were not consumed yet.
    bytes: Vec<u8>,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (other, value) = line.split_once(": ")?;
            other.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Asserts status and body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16, body: &str) {
        assert_eq!((self.status, self.text().as_str()), (status, body), "{}", self.head);
    }
}

impl Client {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n"));
        self.answer()
    }

    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> Answer {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n", body.len());
        self.send(head);
        self.send(body);
        self.answer()
    }

    /// Reads more bytes; false at the end.
    pub(crate) fn more(&mut self) -> bool {
        let mut piece = [0; 64 * 1024];
        let len = loop {
            match self.stream.read(&mut piece) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read.unwrap(),
            }
        };
        self.bytes.extend_from_slice(&piece[..len]);
        len > 0
    }

    /// Returns the bytes up to and including `end`.
    pub(crate) fn through(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.bytes.windows(end.len()).position(|bytes| bytes == end.as_bytes()) {
                let taken: Vec<u8> = self.bytes.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&taken).into_owned();
            }
            assert!(
                self.more(),
                "the connection ended before {end:?}: {:?}",
                String::from_utf8_lossy(&self.bytes)
            );
        }
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        while self.bytes.len() < len {
            assert!(self.more(), "the connection ended early");
        }
        self.bytes.drain(..len).collect()
    }

    /// Reads the next response, to a method other than HEAD.
    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.through("\r\n\r\n");
        let status = head[9..12].parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        if let Some(len) = answer.field("content-length") {
            answer.body = self.take(len.parse().unwrap());
        } else if answer.field("transfer-encoding").is_some() {
            loop {
                let len = usize::from_str_radix(self.through("\r\n").trim_end(), 16).unwrap();
                if len == 0 {
                    self.through("\r\n");
                    return answer;
                }
                answer.body.extend(self.take(len));
                self.through("\r\n");
            }
        } else if !matches!(status, 100..200 | 204 | 304) {
            while self.more() {}
            answer.body = std::mem::take(&mut self.bytes);
        }
        answer
    }

    /// Returns all bytes until the connection ends in any way. Fails the test if it does not end.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.bytes);
        // A reset counts as an end.
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            let is_open = error.kind() == std::io::ErrorKind::WouldBlock;
            assert!(!is_open, "still open after {:?}", String::from_utf8_lossy(&rest));
        }
        rest
    }
}
