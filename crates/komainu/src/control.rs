//! The control socket, by which `komainu status` and `komainu reload` reach a server that runs.
//!
//! Each server has a socket of its own, `PID.sock`, in a folder that belongs to its user alone. A client sends one line and
//! reads one JSON document, to the end.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, getuid, kill_process};
use serde_json::{Value, json};

use apps::{Process, Usage};

use crate::hosting::Hosting;
use crate::notice::Notices;

/// For either side to say what it has to say.
const PATIENCE: Duration = Duration::from_secs(5);
/// After an accept that failed.
const BREATH: Duration = Duration::from_millis(200);
const LINE_BYTES_MAX: u64 = 4096;

/// Where this user's servers have their sockets: `/run/komainu` for root; else `komainu` in `XDG_RUNTIME_DIR`, or
/// `komainu-UID` in the folder for temporary files.
pub(crate) fn folder() -> PathBuf {
    let uid = getuid();
    if uid.is_root() {
        return "/run/komainu".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Path::new(&folder).join("komainu"),
        None => std::env::temp_dir().join(format!("komainu-{}", uid.as_raw())),
    }
}

/// The folder, made where it is missing. One that others can write to is not used: they could pose as a server.
fn own_folder() -> io::Result<PathBuf> {
    let folder = folder();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != getuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{} is not this user's alone", folder.display())));
    }
    Ok(folder)
}

/// What a server tells of itself.
pub(crate) struct Told {
    pub(crate) hosting: Arc<Hosting>,
    pub(crate) addresses: Vec<String>,
    pub(crate) since: Instant,
    pub(crate) memory: net::MemoryBudget,
}

/// A server's socket; gone when it is dropped.
pub(crate) struct Control(PathBuf);

impl Control {
    /// Answers on a thread of its own from now on.
    ///
    /// # Errors
    /// Where there can be no socket.
    pub(crate) fn open(told: Told, notices: Notices) -> io::Result<Control> {
        let path = own_folder()?.join(format!("{}.sock", std::process::id()));
        // Of an earlier process of this number.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for client in listener.incoming() {
                // Without descriptors every accept fails at once, whether somebody asks or not.
                if client.is_err() {
                    std::thread::sleep(BREATH);
                }
                match client.and_then(|client| answer(client, &told)) {
                    Ok(()) => {}
                    Err(error) => notices.debug(&format!("control socket: {error}")),
                }
            }
        })?;
        Ok(Control(path))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Somebody may have tidied up before us.
        let _ = fs::remove_file(&self.0);
    }
}

fn answer(mut client: UnixStream, told: &Told) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    (&client).take(LINE_BYTES_MAX).read_to_string(&mut line)?;
    let answer = match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
        ("status", "") => status(told),
        // As a signal would: the same way for the same thing.
        ("reload", "") => match kill_process(getpid(), Signal::HUP) {
            Ok(()) => json!({ "done": true }),
            Err(error) => json!({ "error": error.to_string() }),
        },
        ("reload", app) => match told.hosting.reload(app) {
            true => json!({ "done": true }),
            false => json!({ "error": format!("there is no application {app}") }),
        },
        (other, _) => json!({ "error": format!("{other:?} means nothing here") }),
    };
    client.write_all(answer.to_string().as_bytes())
}

fn status(told: &Told) -> Value {
    let pid = std::process::id();
    let apps = told.hosting.processes().into_iter().map(|(name, processes)| {
        json!({ "name": name, "processes": processes.iter().map(process).collect::<Vec<_>>() })
    });
    json!({
        "pid": pid,
        "version": env!("CARGO_PKG_VERSION"),
        "age_ms": ms(told.since.elapsed()),
        "listen": told.addresses,
        "usage": Usage::of(pid).map(usage),
        "memory": {
            "held_bytes": told.memory.held_bytes(),
            "budget_bytes": told.memory.bytes_max(),
            "refused": told.memory.refused(),
        },
        "apps": apps.collect::<Vec<_>>(),
    })
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "state": process.state,
        "generation": process.generation,
        "requests": process.requests,
        "age_ms": process.age_ms,
        "usage": process.usage.map(usage),
    })
}

fn usage(usage: Usage) -> Value {
    json!({
        "cpu_ms": usage.cpu_ms,
        "rss_bytes": usage.rss_bytes,
        "pss_bytes": usage.pss_bytes,
        "private_dirty_bytes": usage.private_dirty_bytes,
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Asks one server.
///
/// # Errors
/// Where it does not answer, or with an error.
pub(crate) fn ask(pid: u32, line: &str) -> Result<Value, String> {
    ask_at(&folder().join(format!("{pid}.sock")), line).map_err(|error| format!("process {pid}: {error}"))
}

fn ask_at(path: &Path, line: &str) -> io::Result<Value> {
    let mut server = UnixStream::connect(path)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.set_write_timeout(Some(PATIENCE))?;
    server.write_all(line.as_bytes())?;
    server.shutdown(Shutdown::Write)?;
    let mut text = String::new();
    server.read_to_string(&mut text)?;
    let answer: Value = serde_json::from_str(&text)?;
    match answer["error"].as_str() {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(answer),
    }
}

/// The process ids of this user's servers, in order. What one that was killed has left behind is cleared away.
pub(crate) fn running() -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok()?;
            match UnixStream::connect(entry.path()) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(entry.path());
                    None
                }
                _ => Some(pid),
            }
        })
        .collect();
    pids.sort_unstable();
    pids
}
