//! Destinations of log lines, each written by a thread of its own, off the request path.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

pub(crate) use self::counts::Collector;
use self::counts::SinkCounts;
pub use self::open::open_file;
use crate::destination::Sink;
use crate::directives::RequestLogs;
use crate::remote::{RemoteLog, RemoteTarget, SendError, SyslogSeverity};

mod counts;
mod open;

/// Maximum bytes of lines queued for a slow disk; further lines are dropped and counted.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum time for which the process waits at exit for the last lines: the reader of a pipe may have stopped
/// reading.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for which a rotation waits for the cores to hand over lines of requests answered before it.
const ROTATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Nice increment of log threads, and the kernel's maximum.
const NICENESS: i32 = 5;
const NICENESS_MAX: i32 = 19;
/// Period after a reported failure of a receiver in which further ones are not reported.
const REPORT_PAUSE: Duration = Duration::from_secs(60);
/// Maximum time to wait for a file to be reopened: preceding lines may be going to a slow disk.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time and bytes for which records for a collector are gathered, to be sent together.
const GATHER_MAX: Duration = Duration::from_secs(1);
const GATHER_BYTES_MAX: usize = 1024 * 1024;

/// Interval at which a stop is checked for while a receiver is unreachable.
const STOP_CHECK: Duration = Duration::from_millis(10);

/// The destination of a sink.
#[derive(Clone)]
pub enum LogTarget {
    /// The standard output.
    Stdout,
    /// The standard error.
    Stderr,
    /// A file, opened by this process.
    File(PathBuf),
    /// A file that another process opens, which has the permission to.
    OpenedElsewhere {
        /// The file's path, for messages.
        path: PathBuf,
        /// Opens the file, and reopens it after a rotation.
        open: Opener,
    },
    /// A receiver of messages.
    Remote(RemoteTarget),
}

impl From<&Sink> for LogTarget {
    fn from(sink: &Sink) -> LogTarget {
        match sink {
            Sink::Stdout => LogTarget::Stdout,
            Sink::Stderr => LogTarget::Stderr,
            Sink::File(path) => LogTarget::File(path.clone()),
            Sink::Syslog(syslog) => LogTarget::Remote(RemoteTarget::Syslog(syslog.clone())),
            Sink::Journal(journal) => LogTarget::Remote(RemoteTarget::Journal(journal.clone())),
            // The component that knows the service's keys creates the target. The supervisor, which reads
            // nothing from the network, does not.
            Sink::Otlp(_) => LogTarget::Stderr,
        }
    }
}

impl LogTarget {
    /// Opens the target's file; `None` for other targets, and for a FIFO without a reader.
    fn open(&self) -> io::Result<Option<File>> {
        match self {
            LogTarget::Stdout | LogTarget::Stderr | LogTarget::Remote(_) => Ok(None),
            LogTarget::File(path) => open_file(path),
            LogTarget::OpenedElsewhere { open, .. } => open(),
        }
    }
}

/// Opens a log file; `None` for a FIFO without a reader.
pub(crate) type Opener = Arc<dyn Fn() -> io::Result<Option<File>> + Send + Sync>;

enum LogCommand {
    /// Lines of the named log, with their severity.
    Lines(Vec<u8>, SyslogSeverity, &'static str),
    /// Reopens the file after it was moved away; the reply is the error, if any.
    Reopen(Sender<Option<String>>),
    Stop,
}

/// Handle of a log's destination. Cheap to clone; all clones feed the same thread.
#[derive(Clone)]
pub struct LogSink {
    commands: Sender<LogCommand>,
    counts: Arc<SinkCounts>,
    thread: SinkThread,
    form: LineForm,
}

/// Conversion of lines for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineForm {
    /// Lines are written unchanged.
    Plain,
    /// Each line becomes a message with its own time stamp.
    Message,
    /// Each line is already a record for a collector.
    Record,
}

/// The thread of a sink.
#[derive(Clone)]
pub struct SinkThread(Arc<Mutex<Option<JoinHandle<()>>>>);

impl SinkThread {
    /// Whether the thread has ended and will write nothing more.
    pub fn has_ended(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the thread has ended, or until `until`: the reader of a pipe may have stopped reading.
    pub fn wait(&self, until: Instant) {
        let Some(thread) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        while !thread.is_finished() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

impl LogSink {
    /// Opens the target and starts its thread. Never waits for a reader: lines for a FIFO without a reader
    /// are dropped and counted until it has one.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or the thread cannot be started.
    pub fn open(target: LogTarget) -> io::Result<LogSink> {
        LogSink::start(LogOutput::open(target)?)
    }

    /// Opens the target like [`LogSink::open`], for a server that must start regardless of its logs: if the
    /// target cannot be opened, lines go to stderr, and each write and each [`LogSink::reopen`] tries again.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open_or_stderr(target: LogTarget) -> io::Result<LogSink> {
        LogSink::start(
            LogOutput::open(target.clone()).unwrap_or_else(|error| LogOutput::stderr_instead(target, &error)),
        )
    }

    fn start(output: LogOutput) -> io::Result<LogSink> {
        let (orders, inbox) = channel();
        let form = match &output.target {
            LogTarget::Remote(RemoteTarget::Otlp(_)) => LineForm::Record,
            LogTarget::Remote(_) => LineForm::Message,
            _ => LineForm::Plain,
        };
        let counts = Arc::new(SinkCounts::default());
        let theirs = counts.clone();
        let thread = std::thread::Builder::new()
            .name("komainu-log".into())
            .spawn(move || write(output, &inbox, &theirs))?;
        let thread = SinkThread(Arc::new(Mutex::new(Some(thread))));
        Ok(LogSink { commands: orders, counts, thread, form })
    }

    /// Conversion of this sink's lines.
    pub(crate) fn form(&self) -> LineForm {
        self.form
    }

    /// The writing thread; it ends when no clone of the sink is left.
    pub fn thread(&self) -> SinkThread {
        self.thread.clone()
    }

    /// Hands over lines of access logs; see [`LogSink::write_as`].
    pub fn write(&self, lines: Vec<u8>) {
        self.write_as(lines, SyslogSeverity::Info, "access");
    }

    /// Hands lines over. Never blocks: if the disk or the receiver is too slow, lines are dropped and
    /// counted. `log` is the name of the log that the lines are from.
    pub(crate) fn write_as(&self, lines: Vec<u8>, severity: SyslogSeverity, log: &'static str) {
        if self.counts.waiting_bytes.load(Ordering::Relaxed) + lines.len() > WAITING_BYTES_MAX {
            self.counts.dropped_lines.fetch_add(count_lines(&lines), Ordering::Relaxed);
            return;
        }
        self.counts.waiting_bytes.fetch_add(lines.len(), Ordering::Relaxed);
        // Fails only after `close`.
        let _ = self.commands.send(LogCommand::Lines(lines, severity, log));
    }

    /// Returns an empty buffer of at least `capacity` bytes: a recycled one if possible.
    pub(crate) fn buffer(&self, capacity: usize) -> Vec<u8> {
        let spare = self.counts.spare_buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.filter(|spare| spare.capacity() >= capacity).unwrap_or_else(|| Vec::with_capacity(capacity))
    }

    /// Registers a collector.
    pub(crate) fn collector(&self) -> Collector {
        Collector::new(&self.counts)
    }

    /// Reopens the file (SIGUSR1) after all lines collected before have been handed over: those go to the old
    /// file. Returns when that is done, or after [`REOPEN_TIMEOUT`], with the reason if the file cannot be
    /// opened.
    pub fn reopen(&self) -> Option<String> {
        let until = Instant::now() + ROTATE_TIMEOUT;
        self.counts.handed_over.store(0, Ordering::Release);
        self.counts.rotations.fetch_add(1, Ordering::AcqRel);
        while self.counts.handed_over.load(Ordering::Acquire) < self.counts.collectors.load(Ordering::Acquire)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (outcome, done) = channel();
        // Fails only after `close`.
        self.commands.send(LogCommand::Reopen(outcome)).ok()?;
        match done.recv_timeout(REOPEN_TIMEOUT) {
            Ok(fault) => fault,
            Err(RecvTimeoutError::Timeout) => {
                Some("a log is still being written: it is opened again afterwards".into())
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Writes the queued lines and ends the thread. A thread that is blocked by a reader that does not read
    /// is left behind, and ends with the process.
    pub fn close(&self) {
        self.begin_close();
        self.thread.wait(Instant::now() + CLOSE_TIMEOUT);
    }

    /// Begins [`LogSink::close`] without waiting for the thread, so that several sinks close concurrently.
    pub fn begin_close(&self) {
        self.counts.is_closing.store(true, Ordering::Release);
        // Fails only after an earlier `close`.
        let _ = self.commands.send(LogCommand::Stop);
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Raises the nice value of this thread, so that its wake-up does not preempt a serving thread. It still gets
/// a quarter of the CPU time of a thread of equal priority.
fn lower_priority() {
    let nice = getpriority_process(None).unwrap_or(0).saturating_add(NICENESS).min(NICENESS_MAX);
    // If that is not permitted, the thread keeps its priority.
    let _ = setpriority_process(Some(gettid()), nice);
}

fn write(mut output: LogOutput, inbox: &Receiver<LogCommand>, counts: &SinkCounts) {
    lower_priority();
    let mut next = None;
    while let Some(order) = next.take().or_else(|| inbox.recv().ok()) {
        match order {
            LogCommand::Lines(mut lines, severity, log) => {
                if matches!(output.target, LogTarget::Remote(RemoteTarget::Otlp(_))) {
                    next = gather(&mut lines, inbox);
                }
                if output.remote.is_some() {
                    output.send(&lines, severity, log, counts)
                } else {
                    output.write(&lines)
                }
                counts.waiting_bytes.fetch_sub(lines.len(), Ordering::Relaxed);
                counts.recycle(lines);
            }
            LogCommand::Reopen(outcome) => _ = outcome.send(output.reopen()),
            LogCommand::Stop => break,
        }
        match counts.dropped_lines.swap(0, Ordering::Relaxed) {
            0 => {}
            1 => output.report_fault("1 line dropped: they are not taken fast enough"),
            count => output.report_fault(&format!("{count} lines dropped: they are not taken fast enough")),
        }
    }
    output.report_lost();
}

/// Appends lines that arrive within [`GATHER_MAX`], so that they are sent together. Returns the first other
/// command received.
fn gather(lines: &mut Vec<u8>, inbox: &Receiver<LogCommand>) -> Option<LogCommand> {
    let until = Instant::now() + GATHER_MAX;
    while lines.len() < GATHER_BYTES_MAX {
        match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(LogCommand::Lines(more, ..)) => lines.extend_from_slice(&more),
            Ok(order) => return Some(order),
            Err(_) => break,
        }
    }
    None
}

struct LogOutput {
    target: LogTarget,
    /// `None` for the standard streams, and for a FIFO that has had no reader yet.
    file: Option<File>,
    /// The receiver, if lines are sent as messages.
    remote: Option<RemoteLog>,
    /// The target could not be opened at the start: lines go to stderr.
    on_stderr: bool,
    /// Whether the last write failed; a failure is reported once, not for every line.
    is_failing: bool,
    /// Whether the current failure of the receiver was reported, and until when further ones are not
    /// reported.
    has_reported: bool,
    quiet_until: Option<Instant>,
    /// Lines lost since writes began to fail.
    lost_lines: u64,
    /// Whether the last write ended within a line.
    ended_within_line: bool,
}

impl LogOutput {
    fn of(target: LogTarget) -> LogOutput {
        let remote = match &target {
            LogTarget::Remote(remote) => Some(RemoteLog::new(remote.clone())),
            _ => None,
        };
        LogOutput {
            target,
            file: None,
            remote,
            on_stderr: false,
            is_failing: false,
            has_reported: false,
            quiet_until: None,
            lost_lines: 0,
            ended_within_line: false,
        }
    }

    /// Writes to stderr, because the target cannot be opened.
    fn stderr_instead(target: LogTarget, error: &io::Error) -> LogOutput {
        let output = LogOutput { on_stderr: true, ..LogOutput::of(target) };
        output.report_fault(&format!("{error}; its lines go to stderr until it can be opened"));
        output
    }

    /// Opens the target, which replaces stderr; fails if that is not possible yet.
    fn retry_open(&mut self) -> io::Result<()> {
        (self.file, self.on_stderr) = (self.target.open()?, false);
        self.report_fault("it can be opened again: its lines go there");
        Ok(())
    }

    fn open(target: LogTarget) -> io::Result<LogOutput> {
        let mut output = LogOutput::of(target);
        if matches!(output.target, LogTarget::Stdout | LogTarget::Stderr | LogTarget::Remote(_)) {
            return Ok(output);
        }
        output.file = output.target.open()?;
        if output.file.is_none() {
            output.is_failing = true;
            output.report_fault(
                "this FIFO has no reader: lines are dropped until somebody reads it; \
                 start the reader, or log to a file",
            );
        }
        Ok(output)
    }

    /// Sends lines to the receiver. While it is unreachable they wait, unless arrival is unknown (UDP).
    fn send(&mut self, mut lines: &[u8], severity: SyslogSeverity, log: &'static str, counts: &SinkCounts) {
        let (Some(remote), LogTarget::Remote(target)) = (&mut self.remote, &self.target) else { return };
        let keeps = target.keeps_lines();
        while let Err(SendError { bytes, error, retry_after: again }) = remote.send(lines, severity, log) {
            lines = &lines[bytes..];
            let now = Instant::now();
            let is_first = !std::mem::replace(&mut self.is_failing, true);
            // A receiver that fails intermittently is reported once a minute.
            let is_quiet = again.is_some() && self.quiet_until.is_some_and(|until| now < until);
            let is_first = is_first && !is_quiet;
            if is_first {
                self.has_reported = true;
                self.quiet_until = again.map(|_| now + REPORT_PAUSE).or(self.quiet_until);
            }
            let text = match (again, keeps) {
                (None, _) => format!("lines are refused and dropped: {error}"),
                (_, true) => format!("cannot be reached: {error}; lines wait for it"),
                (_, false) => format!("cannot be reached: {error}; lines are dropped until it can"),
            };
            let waits = keeps && !counts.is_closing.load(Ordering::Acquire);
            let Some(pause) = again.filter(|_| waits) else {
                self.lost_lines += count_lines(lines);
                if is_first {
                    self.report_fault(&text);
                }
                return;
            };
            let until = Instant::now() + pause;
            if is_first {
                report(&self.target, &text);
            }
            while Instant::now() < until && !counts.is_closing.load(Ordering::Acquire) {
                std::thread::sleep(STOP_CHECK);
            }
        }
        if std::mem::take(&mut self.is_failing) {
            if std::mem::take(&mut self.has_reported) {
                self.report_fault("it can be reached again");
            }
            self.report_lost();
        }
    }

    fn write(&mut self, lines: &[u8]) {
        if self.on_stderr && self.retry_open().is_err() {
            // Nothing is left to report a failure of stderr to.
            let _ = io::stderr().write_all(lines);
            return;
        }
        match self.try_write(lines) {
            Ok(()) if std::mem::take(&mut self.is_failing) => self.report_lost(),
            Ok(()) => {}
            Err((written, error)) => {
                self.ended_within_line |= written > 0 && lines[written - 1] != b'\n';
                self.lost_lines += count_lines(&lines[written..]);
                if !std::mem::replace(&mut self.is_failing, true) {
                    self.report_fault(&format!("cannot be written: {error}; lines are dropped until it can"));
                }
            }
        }
    }

    /// Writes all bytes; an error is returned with the number of bytes written.
    fn try_write(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut stdout = io::stdout();
        let mut stderr = io::stderr();
        // A FIFO, which may have a reader by this time.
        if self.file.is_none() {
            self.file = self.target.open().map_err(|error| (0, error))?;
        }
        let out: &mut dyn Write = match (&mut self.file, &self.target) {
            (Some(file), _) => file,
            (None, LogTarget::Stderr) => &mut stderr,
            (None, LogTarget::Stdout) => &mut stdout,
            (None, _) => return Err((0, Errno::NXIO.into())),
        };
        if self.ended_within_line {
            out.write_all(b"\n").map_err(|error| (0, error))?;
            self.ended_within_line = false;
        }
        let mut written = 0;
        while written < lines.len() {
            match out.write(&lines[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        out.flush().map_err(|error| (written, error))
    }

    fn report_lost(&mut self) {
        match std::mem::take(&mut self.lost_lines) {
            0 => {}
            1 => self.report_fault("1 line was dropped while it could not be written"),
            count => self.report_fault(&format!("{count} lines were dropped while it could not be written")),
        }
    }

    /// Reports a fault of this log on stderr.
    fn report_fault(&self, text: &str) {
        report(&self.target, text);
    }

    /// Opens the target again; returns the reason if it cannot be opened.
    fn reopen(&mut self) -> Option<String> {
        self.report_lost();
        if let Some(remote) = &mut self.remote {
            remote.reconnect();
            return None;
        }
        let opened = if self.on_stderr {
            self.retry_open()
        } else {
            LogOutput::open(self.target.clone()).map(|opened| *self = opened)
        };
        let error = opened.err()?;
        let stays = if self.on_stderr { "its lines go to stderr still" } else { "the old file stays in use" };
        let fault = format!("{error}; {stays}");
        _ = writeln!(io::stderr(), "komainu: {fault}");
        Some(fault)
    }
}

/// The open destinations of access logs. Cheap to clone.
#[derive(Clone, Default)]
pub struct LogSinks(Arc<Vec<(Sink, LogSink)>>);

impl LogSinks {
    /// Sinks of these destinations: those open in `previous` are kept, `open` opens the others.
    ///
    /// # Errors
    /// A destination cannot be opened.
    pub fn new(
        destinations: Vec<Sink>,
        previous: &LogSinks,
        open: impl Fn(&Sink) -> io::Result<LogSink>,
    ) -> io::Result<LogSinks> {
        let sinks = destinations.into_iter().map(|sink| match previous.of(&sink) {
            Some(kept) => Ok((sink, kept)),
            None => open(&sink).map(|opened| (sink, opened)),
        });
        Ok(LogSinks(Arc::new(sinks.collect::<io::Result<_>>()?)))
    }

    /// The sink of a destination.
    pub fn of(&self, sink: &Sink) -> Option<LogSink> {
        self.0.iter().find(|(other, _)| other == sink).map(|(_, open)| open.clone())
    }

    /// Iterates over all sinks.
    pub fn iter(&self) -> impl Iterator<Item = &LogSink> {
        self.0.iter().map(|(_, open)| open)
    }

    /// The threads of the sinks that are not in `after`.
    pub fn removed_in(&self, after: &LogSinks) -> impl Iterator<Item = SinkThread> {
        let left = |(sink, open): &(Sink, LogSink)| after.of(sink).is_none().then(|| open.thread());
        self.0.iter().filter_map(left)
    }
}

/// Reports a fault of a log on stderr.
fn report(target: &LogTarget, text: &str) {
    let name = match target {
        LogTarget::Stdout => "stdout".to_owned(),
        LogTarget::Stderr => "stderr".to_owned(),
        LogTarget::File(path) | LogTarget::OpenedElsewhere { path, .. } => path.display().to_string(),
        LogTarget::Remote(remote) => remote.name(),
    };
    let _ = writeln!(io::stderr(), "komainu: the log {name}: {text}");
}

/// The destinations of these access logs and of the audit log, without duplicates.
pub fn destinations(logs: &RequestLogs, audit: Option<&PathBuf>) -> Vec<Sink> {
    let mut all: Vec<Sink> = Vec::new();
    let audit = audit.cloned().map(Sink::File);
    for sink in logs.iter().map(|log| log.file.clone()).chain(audit) {
        if !all.contains(&sink) {
            all.push(sink);
        }
    }
    all
}

/// The files among these destinations, sorted and without duplicates.
pub fn files(sinks: impl IntoIterator<Item = Sink>) -> Vec<PathBuf> {
    let files: BTreeSet<PathBuf> = sinks
        .into_iter()
        .filter_map(|sink| match sink {
            Sink::File(path) => Some(path),
            _ => None,
        })
        .collect();
    files.into_iter().collect()
}

#[cfg(test)]
mod tests;
