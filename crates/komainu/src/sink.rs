//! Where log lines go: written by a thread of their own, off the request path.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Blocks of lines that may wait for a slow disk; more are dropped and counted.
const WAITING_MAX: usize = 256;

/// How long the end of the process waits for the last lines to be taken: whoever reads a pipe may have stopped doing so.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What a sink writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Stdout,
    Stderr,
    File(PathBuf),
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
            Target::File(path) => {
                let opened = OpenOptions::new().append(true).create(true).open(path);
                let named = |error: io::Error| {
                    io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()))
                };
                Some(opened.map_err(named)?)
            }
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
