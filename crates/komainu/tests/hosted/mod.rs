//! Applications in the real binary: how they are started, what the server reports about them, and clients that send requests
//! in a loop.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::rig::{
    Folder, PATIENCE, Rig, as_we_are, connect, eventually, komainu, listen, text, tls_arguments,
};

/// Directory of the language modules, built on first use; `KOMAINU_TEST_WORKERS` names a prebuilt one.
pub fn modules() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(given) = std::env::var_os("KOMAINU_TEST_WORKERS") {
            return PathBuf::from(given);
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/workers");
        let done = Command::new(script)
            .arg(&folder)
            .args(["perl", "ruby", "python", "php", "native"])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        folder
    })
}

/// The server binary, configured to find the modules.
pub fn server() -> Command {
    let mut command = komainu();
    command.env("KOMAINU_WORKERS", modules());
    command
}

/// Runs `komainu run` with these arguments in the directory.
pub fn run(folder: Folder, arguments: &[&str]) -> Rig {
    let mut command = server();
    command.args(["run", "--listen", "127.0.0.1:0"]).args(tls_arguments(&folder)).args(arguments);
    command.current_dir(folder.path());
    Rig::start(command, folder)
}

/// Runs `komainu start` with this configuration, to which `listen` is added.
pub fn start(folder: Folder, config: &str) -> Rig {
    folder.write("komainu.toml", format!("{}{}{config}", listen(&folder), as_we_are()));
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Compiles a native handler to `n.so` in the directory.
pub fn native(folder: &Folder, source: &str) {
    folder.write("n.c", source);
    let include = format!("-I{}/../../workers/include", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-O1", "-fPIC", "-shared", "-Wall", "-Werror", &include, "-o"])
        .arg(folder.at("n.so"))
        .arg(folder.at("n.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
}

/// Creates a directory with one file.
pub fn folder(name: &str, content: &str) -> Folder {
    let folder = Folder::new();
    folder.write(name, content);
    folder
}

/// A configuration that routes every request to one application.
pub fn only(app: &str) -> String {
    format!(
        r#"
        [[route]]
        app = "shop"
        [apps.shop]
        {app}
        "#
    )
}

/// A process of an application, as shown by `komainu status --json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub pid: u32,
    pub state: String,
    pub generation: u64,
    pub requests: u64,
}

/// Output of `komainu status --json` for a server.
pub fn status(rig: &Rig) -> Value {
    let reported =
        komainu().args(["status", "--json", "--pid", &rig.child.id().to_string()]).output().unwrap();
    assert!(reported.status.success(), "{}", text(&reported.stderr));
    let servers: Value = serde_json::from_slice(&reported.stdout).unwrap();
    servers[0].clone()
}

/// Processes of the first application.
pub fn processes(rig: &Rig) -> Vec<Seen> {
    let status = status(rig);
    let seen = |process: &Value| Seen {
        pid: process["pid"].as_u64().unwrap() as u32,
        state: process["state"].as_str().unwrap().to_owned(),
        generation: process["generation"].as_u64().unwrap(),
        requests: process["requests"].as_u64().unwrap(),
    };
    status["apps"][0]["processes"].as_array().unwrap().iter().map(seen).collect()
}

/// Process ids of the ready workers.
pub fn workers(rig: &Rig) -> Vec<u32> {
    processes(rig).iter().filter(|process| process.state == "ready").map(|process| process.pid).collect()
}

/// Waits until `count` workers are ready, and returns their process ids.
pub fn ready(rig: &Rig, count: usize) -> Vec<u32> {
    let mut pids = Vec::new();
    eventually(&format!("{count} workers answer"), || {
        pids = workers(rig);
        pids.len() == count
    });
    pids
}

/// Waits until the server's log contains `text`.
pub fn logged(rig: &Rig, text: &str) {
    eventually(&format!("{text:?} stands in the log"), || rig.reported().contains(text));
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Sends a signal; returns false if the process has exited already.
pub fn kill(pid: u32, signal: &str) -> bool {
    Command::new("kill").args([signal, &pid.to_string()]).output().unwrap().status.success()
}

/// A client with a persistent connection.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client(BufReader::with_capacity(64 * 1024, connect(address)))
    }

    /// Extends the read timeout.
    pub fn wait_longer(&self) {
        self.0.get_ref().set_read_timeout(Some(4 * PATIENCE)).unwrap();
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a GET request and returns the status and the body.
    pub fn get(&mut self, path: &str) -> (u16, String) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.answer()
    }

    pub fn post(&mut self, path: &str, body: &str) -> (u16, String) {
        let len = body.len();
        self.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}"));
        self.answer()
    }

    /// Reads the next response.
    pub fn answer(&mut self) -> (u16, String) {
        let head = self.head();
        let status = head[9..12].parse().unwrap();
        let mut body = Vec::new();
        self.body(&head, |piece| body.extend_from_slice(piece));
        (status, text(&body))
    }

    /// Reads the head of the next response.
    pub fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "closed after {head:?}");
        }
        head
    }

    /// Reads the body that follows `head`, piece by piece.
    pub fn body(&mut self, head: &str, mut each: impl FnMut(&[u8])) {
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (other, value) = line.split_once(':')?;
                other.eq_ignore_ascii_case(name).then_some(value.trim())
            })
        };
        if let Some(len) = field("content-length") {
            self.take(len.parse().unwrap(), &mut each);
        } else if field("transfer-encoding").is_some() {
            loop {
                let mut line = String::new();
                self.0.read_line(&mut line).unwrap();
                let len = u64::from_str_radix(line.trim_end(), 16).unwrap();
                self.take(len, &mut each);
                self.0.read_exact(&mut [0; 2]).unwrap();
                if len == 0 {
                    return;
                }
            }
        }
    }

    fn take(&mut self, mut len: u64, each: &mut impl FnMut(&[u8])) {
        while len > 0 {
            let bytes = self.0.fill_buf().unwrap();
            assert!(!bytes.is_empty(), "closed in the middle of a body");
            let count = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            each(&bytes[..count]);
            self.0.consume(count);
            len -= count as u64;
        }
    }
}

/// Clients that request one path in a loop.
pub struct Load {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<u16>>>,
}

impl Load {
    pub fn start(rig: &Rig, clients: usize, path: &'static str) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let good = Arc::new(AtomicUsize::new(0));
        let address = rig.address;
        let threads = (0..clients).map(|_| {
            let stop = stop.clone();
            let good = good.clone();
            std::thread::spawn(move || {
                let mut client = Client::new(address);
                let mut bad = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match client.get(path).0 {
                        200 => _ = good.fetch_add(1, Ordering::Relaxed),
                        other => bad.push(other),
                    }
                }
                bad
            })
        });
        let threads = threads.collect();
        Load { stop, good, threads }
    }

    /// Number of 200 responses so far.
    pub fn good(&self) -> usize {
        self.good.load(Ordering::Relaxed)
    }

    /// Waits for `answers` more 200 responses.
    pub fn wait_for_good(&self, answers: usize) {
        let before = self.good();
        eventually("the answers continue", || self.good() >= before + answers);
    }

    /// Stops the clients and returns the statuses other than 200.
    pub fn finish(self) -> Vec<u16> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}
