//! Fixtures for tests of the real binary on its own port, and clients based on plain sockets.
#![allow(dead_code, unreachable_pub, clippy::print_stderr, clippy::unwrap_used)] // each test file uses a part of it

mod forward;
mod forward_h3;
#[path = "../h3_client/mod.rs"]
pub mod h3_client;
pub mod space;

#[allow(unused_imports)]
pub use forward::{any_certificate, client_config};

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

/// Time limit for any single step, generous for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A temporary directory that is removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("komainu-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Folder {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Writes an executable file that can be run at once.
    pub fn write_program(&self, name: &str, content: &str) -> &Folder {
        let source = format!("{name}.source");
        self.write(&source, content);
        install_program(&self.at(&source), &self.at(name));
        fs::remove_file(self.at(&source)).unwrap();
        self
    }

    /// Creates a self-signed certificate for `localhost` in `cert.pem`, and its key in `key.pem`.
    pub fn certify(&self) -> &Folder {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(&self.0)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The virtual environment that `scripts/setup test` creates in cargo's target directory.
pub fn environment() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_komainu")).ancestors().nth(2).unwrap();
    target.join("venv")
}

/// `PATH` extended by the virtual environment and by Debian's directories for servers.
pub fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let more = [environment().join("bin"), PathBuf::from("/usr/sbin")];
    std::env::join_paths(more.into_iter().chain(std::env::split_paths(&given))).unwrap()
}

/// Path of a third-party server to test against; prints a note and returns `None` if it is not installed.
/// `make test` requires all of them.
pub fn installed(program: &str) -> Option<PathBuf> {
    let found =
        std::env::split_paths(&search_path()).map(|folder| folder.join(program)).find(|file| file.is_file());
    if found.is_none() {
        let missing = format!("{program} is not installed; scripts/setup test brings it");
        assert!(std::env::var_os("KOMAINU_TEST_ALL").is_none(), "{missing}");
        eprintln!("SKIPPED: {missing}");
    }
    found
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Configuration that makes a server started as root keep that user and run in one process, as most tests
/// need it.
pub fn as_we_are() -> &'static str {
    if is_root() { "user = \"root\"\n" } else { "" }
}

/// Configurations for a single process and, if it can be tested, for a supervisor.
pub fn kinds() -> Vec<&'static str> {
    let mut kinds = vec![as_we_are()];
    if is_root() {
        kinds.push("user = \"65534\"\ngroup = \"65534\"\n");
    } else {
        eprintln!("SKIPPED: only root can start a server with a supervisor");
    }
    kinds
}

/// Copies the binary so that the copy can be run at once.
pub fn copy_program(to: &Path) {
    install_program(Path::new(env!("CARGO_BIN_EXE_komainu")), to);
}

/// Writes an executable file through `install`. A descriptor that is open for writing in this process is inherited by children that other
/// tests start at that moment, and until they call `exec` the kernel refuses to run the file (`ETXTBSY`).
pub fn install_program(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let installed = Command::new("install").args(["-m", "755"]).arg(from).arg(to).status();
    assert!(installed.unwrap().success(), "{}", to.display());
}

/// Returns an address that refuses connections until a listener is bound to it. The address stays bound until
/// the process ends, so that no other test gets it; listeners can bind it nevertheless, because both set
/// `SO_REUSEADDR`.
pub fn nobody() -> SocketAddr {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    std::mem::forget(socket);
    address
}

/// A listening socket on a free loopback port, with a backlog for many simultaneous connections: the standard
/// library's backlog is 128, beyond which a connection waits for seconds.
pub fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    listener
}

/// Command for the binary, or for that of `KOMAINU_TEST_BINARY`. Its allocator uses no huge pages: in tests that measure
/// memory, one more page would be 2 MiB.
pub fn komainu() -> Command {
    let other = std::env::var_os("KOMAINU_TEST_BINARY");
    let mut command = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_komainu").into()));
    command.env("MIMALLOC_ALLOW_THP", "0").envs(server_environment());
    command
}

/// Environment variables for servers and their workers only, from `KOMAINU_TEST_ENV`: words `NAME=VALUE`.
pub fn server_environment() -> Vec<(String, String)> {
    let words = std::env::var("KOMAINU_TEST_ENV").unwrap_or_default();
    let pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether the tests' clients reach every server through TLS, by [`forward`] or [`forward_h3`].
pub fn through_tls() -> bool {
    std::env::var_os("KOMAINU_TEST_TLS").is_some() || through_http3()
}

/// Whether the tests' clients reach every server through HTTP/3, by [`forward_h3`].
pub fn through_http3() -> bool {
    std::env::var_os("KOMAINU_TEST_HTTP3").is_some()
}

/// The `listen` setting for a configuration in this directory, with TLS if the tests use it.
pub fn listen(folder: &Folder) -> String {
    if !through_tls() {
        return "listen = \"127.0.0.1:0\"\n".to_owned();
    }
    write_certificate(folder);
    "listen = [{ address = \"127.0.0.1:0\", tls = true }]\n\
     tls.default = { certificate = \"rig.pem\", key = \"rig.key\" }\n"
        .to_owned()
}

/// Arguments that enable TLS for `komainu run`, if the tests use it.
pub fn tls_arguments(folder: &Folder) -> Vec<OsString> {
    if !through_tls() {
        return Vec::new();
    }
    write_certificate(folder);
    let certificate = folder.at("rig.pem");
    let key = folder.at("rig.key");
    vec!["--tls-certificate".into(), certificate.into(), "--tls-key".into(), key.into()]
}

/// Writes the certificate shared by all servers with TLS, and its key: `rig.pem` and `rig.key`.
fn write_certificate(folder: &Folder) {
    static MADE: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let [certificate, key] = MADE.get_or_init(|| {
        let folder = Folder::new();
        folder.certify();
        ["cert.pem", "key.pem"].map(|name| fs::read(folder.at(name)).unwrap())
    });
    folder.write("rig.pem", certificate).write("rig.key", key);
}

/// A server that is killed on drop.
pub struct Rig {
    pub child: Child,
    /// Address to which clients connect.
    pub address: SocketAddr,
    /// Address on which the server listens; differs from `address` if clients are forwarded.
    pub listens: SocketAddr,
    /// File that receives the server's stderr.
    pub stderr: PathBuf,
    pub folder: Folder,
}

impl Rig {
    /// Serves a directory with these files.
    pub fn files(files: &[(&str, &str)]) -> Rig {
        let folder = Folder::new();
        fs::create_dir_all(folder.at("www")).unwrap();
        for (name, content) in files {
            folder.write(&format!("www/{name}"), content);
        }
        let mut command = komainu();
        command.args(["run", "--listen", "127.0.0.1:0", "--threads", "2"]).arg(folder.at("www"));
        command.args(tls_arguments(&folder));
        Rig::start(command, folder)
    }

    /// Serves with a configuration that is written to the directory, with `listen` added.
    pub fn config(folder: Folder, text: &str) -> Rig {
        folder.write("komainu.toml", format!("{}{}{text}", listen(&folder), as_we_are()));
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        Rig::start(command, folder)
    }

    /// Like [`Rig::config`], in a new directory, with the control socket in its subdirectory `run`.
    pub fn controlled(text: &str) -> Rig {
        let folder = Folder::new();
        folder.write("komainu.toml", format!("{}{}{text}", listen(&folder), as_we_are()));
        let mut command = komainu();
        command
            .arg("start")
            .arg("-c")
            .arg(folder.at("komainu.toml"))
            .env("RUNTIME_DIRECTORY", folder.at("run"));
        Rig::start(command, folder)
    }

    pub fn start(mut command: Command, folder: Folder) -> Rig {
        let stderr = folder.at("stderr");
        let errors = fs::File::create(&stderr).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (listens, is_tls): (SocketAddr, bool) = loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("did not start: {}", fs::read_to_string(&stderr).unwrap());
            };
            let is_tls = line.contains("https://");
            let of = |scheme| line.split_once(scheme);
            let found = ["https://", "http://", "tcp://", "udp://"].into_iter().find_map(of);
            if let Some((_, address)) = found {
                break (address.split_whitespace().next().unwrap().parse().unwrap(), is_tls);
            }
        };
        let address = match is_tls {
            true if through_http3() => forward_h3::start(listens),
            true if through_tls() => forward::start(listens),
            _ => listens,
        };
        // Further output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Rig { child, address, listens, stderr, folder }
    }

    /// Returns an address that forwards plain connections to the server through TLS.
    pub fn through_tls(&self) -> SocketAddr {
        forward::start(self.listens)
    }

    /// URL scheme of the server.
    pub fn scheme(&self) -> &'static str {
        if through_tls() { "https" } else { "http" }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Sends a GET request on a new connection.
    pub fn get(&self, target: &str) -> Answer {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// Sends a GET request with additional fields, each terminated by CRLF.
    pub fn ask(&self, target: &str, fields: &str) -> Answer {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))
    }

    /// Sends these bytes on a new connection and reads until it is closed.
    pub fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes)
    }

    /// Asks for the metrics at the control socket, which the configuration has at `unix:control.sock`.
    pub fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.folder.at("control.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        Answer::parse(read_to_close(&mut stream)).expect_status(200).text()
    }

    pub fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }

    /// Waits for the process to exit.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn reported(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits until stderr contains `text`; another thread of the server writes the lines.
    #[track_caller]
    pub fn expect_report(&self, text: &str) {
        eventually(&format!("it reports: {text}"), || self.reported().contains(text));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server's stderr:\n{}", self.reported());
        }
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits until a condition is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    // Some operations of the server are retried after 30 s.
    let until = Instant::now() + 3 * PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A response, parsed strictly.
#[derive(Debug)]
pub struct Answer {
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn parse(bytes: Vec<u8>) -> Answer {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let Some(end) = end else { panic!("no response head in {:?}", String::from_utf8_lossy(&bytes)) };
        Answer { head: String::from_utf8(bytes[..end].to_vec()).unwrap(), body: bytes[end + 4..].to_vec() }
    }

    pub fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (other, value) = line.split_once(':').unwrap();
            other.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Asserts status and body.
    #[track_caller]
    pub fn expect(&self, status: u16, body: &str) -> &Answer {
        assert_eq!((self.status(), self.text().as_str()), (status, body), "{}", self.head);
        self
    }

    /// Asserts the status.
    #[track_caller]
    pub fn expect_status(&self, status: u16) -> &Answer {
        assert_eq!(self.status(), status, "{}\n{}", self.head, self.text());
        self
    }

    /// Whether the cache has answered with a stored response, without asking the origin.
    pub fn is_hit(&self) -> bool {
        self.field("Cache-Status").is_some_and(|status| status.starts_with("Komainu; hit; ttl="))
    }

    /// Asserts that the cache has answered with a stored response.
    #[track_caller]
    pub fn expect_hit(&self) -> &Answer {
        assert!(self.is_hit(), "{}", self.head);
        self
    }

    /// Asserts that a route with a cache has answered, and not with a stored response.
    #[track_caller]
    pub fn expect_no_hit(&self) -> &Answer {
        assert!(self.field("Cache-Status").is_some() && !self.is_hit(), "{}", self.head);
        self
    }

    /// Asserts a field's value.
    #[track_caller]
    pub fn expect_field(&self, name: &str, value: &str) -> &Answer {
        assert_eq!(self.field(name), Some(value), "{name} in {}", self.head);
        self
    }

    /// Asserts that a field is absent.
    #[track_caller]
    pub fn expect_no_field(&self, name: &str) -> &Answer {
        assert_eq!(self.field(name), None, "{name} in {}", self.head);
        self
    }
}

/// Reads one response, framed by `Content-Length` or without a body, from a connection that stays open.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        // A process that was stopped for a moment is interrupted here.
        match stream.read(&mut byte) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => assert_eq!(read.unwrap(), 1, "closed in {:?}", String::from_utf8_lossy(&bytes)),
        }
        bytes.push(byte[0]);
    }
    let mut answer = Answer::parse(bytes);
    let len = answer.field("Content-Length").map_or(0, |len| len.parse().unwrap());
    answer.body = vec![0; len];
    stream.read_exact(&mut answer.body).unwrap();
    answer
}

/// Reads until the peer closes or resets the connection. Panics on a timeout.
pub fn read_to_close(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(error.kind() != ErrorKind::WouldBlock, "still open after {:?}", text(&bytes));
    }
    bytes
}

/// Whether the peer closes or resets the connection without sending anything.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    read_to_close(stream).is_empty()
}

pub fn curl(arguments: &[&str]) -> Output {
    let output = Command::new("curl").args(["-sS", "--max-time", "30"]).args(arguments).output();
    output.expect("curl is installed: `make test` does that")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
