//! Where log lines go: written by a thread of their own, off the request path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// Blocks of lines that may wait for a slow disk; more are dropped and counted.
const WAITING_MAX: usize = 256;

/// How long the end of the process waits for the last lines to be taken: whoever reads a pipe may have stopped doing so.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What a sink writes to.
#[derive(Clone)]
pub(crate) enum Target {
    Stdout,
    Stderr,
    File(PathBuf),
    /// A file that another process opens, which may.
    Given(Opener),
}

impl From<&config::Sink> for Target {
    fn from(sink: &config::Sink) -> Target {
        match sink {
            config::Sink::Stdout => Target::Stdout,
            config::Sink::Stderr => Target::Stderr,
            config::Sink::File(path) => Target::File(path.clone()),
        }
    }
}

/// Opens a log.
pub(crate) type Opener = Arc<dyn Fn() -> io::Result<File> + Send + Sync>;

/// Opens a log file for appending; makes it where it is missing. In a folder that others than this process's user can
/// write to, a link is not followed, and a file with several names is not taken: else they could have any file written to.
///
/// # Errors
/// Why it cannot be opened, with its name.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let own = rustix::process::geteuid().as_raw();
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let is_ours = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| found.uid() == own && found.mode() & 0o022 == 0)
    };
    let careful = own == 0 && !is_ours(folder);
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()))
    };
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    if careful {
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    }
    let file = options.open(path).map_err(named)?;
    let found = file.metadata().map_err(named)?;
    if careful && found.is_file() && found.nlink() > 1 {
        return Err(named(io::Error::other("it has several names, and others can write to its folder")));
    }
    Ok(file)
}

enum Order {
    Lines(Vec<u8>),
    /// The file was moved away: open it anew.
    Reopen,
    Stop,
}

/// A log's destination. Cheap to clone; every clone feeds the same thread.
#[derive(Clone)]
pub(crate) struct Sink {
    orders: SyncSender<Order>,
    dropped: Arc<AtomicU64>,
    /// To be opened anew, where there was no room to say so in turn.
    reopen: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Sink {
    /// Opens the target and starts its thread.
    ///
    /// # Errors
    /// Where the file cannot be opened for appending.
    pub(crate) fn open(target: Target) -> io::Result<Sink> {
        let output = Output::open(target)?;
        let (orders, inbox) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let reopen = Arc::new(AtomicBool::new(false));
        let theirs = (dropped.clone(), reopen.clone());
        let thread = std::thread::Builder::new()
            .name("komainu-log".into())
            .spawn(move || write(output, &inbox, &theirs.0, &theirs.1))?;
        Ok(Sink { orders, dropped, reopen, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Hands lines over. Never blocks: where the disk is too slow they are dropped, and the log says how many blocks.
    pub(crate) fn write(&self, lines: Vec<u8>) {
        match self.orders.try_send(Order::Lines(lines)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Opens a file anew (SIGUSR1). Never blocks.
    pub(crate) fn reopen(&self) {
        if let Err(TrySendError::Full(_)) = self.orders.try_send(Order::Reopen) {
            self.reopen.store(true, Ordering::Relaxed);
        }
    }

    /// Writes out what was handed over, and ends the thread. One that waits for a reader who takes nothing is left
    /// behind: it ends with the process.
    pub(crate) fn close(&self) {
        let until = Instant::now() + CLOSE_MAX;
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let mut told = false;
        while !thread.is_finished() {
            if Instant::now() >= until {
                return;
            }
            told = told || !matches!(self.orders.try_send(Order::Stop), Err(TrySendError::Full(_)));
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

fn write(mut output: Output, inbox: &Receiver<Order>, dropped: &AtomicU64, reopen: &AtomicBool) {
    while let Ok(order) = inbox.recv() {
        if reopen.swap(false, Ordering::Relaxed) {
            output.reopen();
        }
        match order {
            Order::Lines(lines) => output.write(&lines),
            Order::Reopen => output.reopen(),
            Order::Stop => return,
        }
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            count => {
                output.write(format!("# {count} blocks of lines dropped: the disk is too slow\n").as_bytes())
            }
        }
    }
}

struct Output {
    target: Target,
    file: Option<File>,
    /// Whether the last write failed; said once, not for every line.
    failing: bool,
}

impl Output {
    fn open(target: Target) -> io::Result<Output> {
        let file = match &target {
            Target::File(path) => Some(open_file(path)?),
            Target::Given(opener) => Some(opener()?),
            Target::Stdout | Target::Stderr => None,
        };
        Ok(Output { target, file, failing: false })
    }

    fn write(&mut self, lines: &[u8]) {
        let written = match (&mut self.file, &self.target) {
            (Some(file), _) => file.write_all(lines),
            (None, Target::Stderr) => io::stderr().write_all(lines),
            (None, _) => io::stdout().write_all(lines).and_then(|()| io::stdout().flush()),
        };
        match written {
            Ok(()) => self.failing = false,
            Err(error) if !std::mem::replace(&mut self.failing, true) => {
                let _ = writeln!(io::stderr(), "komainu: cannot write the log: {error}");
            }
            Err(_) => {}
        }
    }

    fn reopen(&mut self) {
        match Output::open(self.target.clone()) {
            Ok(anew) => *self = anew,
            Err(error) => _ = writeln!(io::stderr(), "komainu: {error}; the old file stays in use"),
        }
    }
}
