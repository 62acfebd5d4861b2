//! The server's logs: opening, replacing them on a reload, reopening after a rotation, and closing.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use logging::notice::ErrorLog;
use logging::sink::{CLOSE_TIMEOUT, LogSink, LogSinks, SinkThread};
use logging::{Level, Log, Sink};

use crate::link::SupervisorLink;
use crate::log_target::log_target;

/// Access logs of a configuration, and its error log if that has changed.
pub type OpenedLogs = (LogSinks, Option<LogSink>);

/// All logs of the server. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    access: Arc<Mutex<LogSinks>>,
    /// The error log.
    pub notices: ErrorLog,
    link: Option<SupervisorLink>,
    /// Threads of destinations that are no longer in use.
    retired: Arc<Mutex<Vec<SinkThread>>>,
    reopening: Arc<Mutex<ReopenState>>,
}

/// State of the thread that reopens files.
#[derive(Default)]
struct ReopenState {
    is_requested: bool,
    is_running: bool,
    /// Receivers of the result: the errors of files that could not be opened.
    waiters: Vec<Sender<Vec<String>>>,
}

impl Logs {
    /// Opens the destinations of the access logs and the error log of `log`, through the supervisor if there is
    /// one. `is_restart`: a server has served before this process.
    pub fn open(
        log: &Log,
        destinations: Vec<Sink>,
        link: Option<&SupervisorLink>,
        is_restart: bool,
    ) -> io::Result<Logs> {
        // A server that has served before continues even if its logs cannot be opened.
        let open = if is_restart { LogSink::open_or_stderr } else { LogSink::open };
        let access = LogSinks::new(destinations, &LogSinks::default(), |sink| open(log_target(link, sink)?))?;
        let errors = open(log_target(link, &log.errors)?)?;
        Ok(Logs {
            access: Arc::new(Mutex::new(access)),
            notices: ErrorLog::new(errors, log.level),
            link: link.cloned(),
            retired: Arc::default(),
            reopening: Arc::default(),
        })
    }

    /// The destinations of access logs.
    pub fn access(&self) -> LogSinks {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the destinations that are not open: those of access logs, and the error log of `new` if `old` has
    /// another one.
    pub fn prepare(&self, old: &Log, new: &Log, destinations: Vec<Sink>) -> io::Result<OpenedLogs> {
        let open = |sink: &Sink| LogSink::open(log_target(self.link.as_ref(), sink)?);
        let access = LogSinks::new(destinations, &self.access(), open)?;
        let errors = (old.errors != new.errors).then(|| open(&new.errors)).transpose()?;
        Ok((access, errors))
    }

    /// Switches to other destinations; cores adopt them with the new configuration.
    pub fn replace(&self, sinks: LogSinks, errors: Option<LogSink>, level: Level) {
        let mut access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *access, sinks);
        let mut left = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|thread| !thread.has_ended());
        left.extend(before.removed_in(&access));
        left.extend(self.notices.replace(errors, level).map(|sink| sink.thread()));
    }

    /// Reopens log files on a separate thread, so that it delays neither a stop nor a reload. Requests made
    /// meanwhile are combined into one further run. `asker` receives the errors.
    pub fn reopen_soon(&self, waiter: Option<Sender<Vec<String>>>) {
        let mut state = self.reopen_state();
        state.is_requested = true;
        state.waiters.extend(waiter);
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        drop(state);
        let logs = self.clone();
        let started = std::thread::Builder::new().name("log-reopen".into()).spawn(move || {
            while let Some(askers) = logs.take_reopen_request() {
                let faults = logs.reopen();
                // A receiver may have given up waiting.
                askers.iter().for_each(|asker| _ = asker.send(faults.clone()));
            }
        });
        if let Err(error) = started {
            *self.reopen_state() = ReopenState::default();
            self.notices.error(&format!("the logs are not opened again: there can be no thread: {error}"));
        }
    }

    fn reopen_state(&self) -> MutexGuard<'_, ReopenState> {
        self.reopening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the receivers of a requested run; `None` ends the thread.
    fn take_reopen_request(&self) -> Option<Vec<Sender<Vec<String>>>> {
        let mut state = self.reopen_state();
        let is_wanted = std::mem::take(&mut state.is_requested);
        state.is_running = is_wanted;
        is_wanted.then(|| std::mem::take(&mut state.waiters))
    }

    /// Reopens log files; lines written before go to the old files. Returns the errors.
    fn reopen(&self) -> Vec<String> {
        let of_errors = self.notices.sink().reopen();
        let faults: Vec<String> =
            of_errors.into_iter().chain(self.access().iter().filter_map(LogSink::reopen)).collect();
        faults.iter().for_each(|fault| self.notices.error(fault));
        faults
    }

    /// Flushes and closes all logs.
    pub fn close(&self) {
        // Ends all periods of suppression, so that their counts are logged.
        self.notices.log_suppressed(Instant::now() + Duration::from_secs(1));
        let access = self.access();
        access.iter().for_each(LogSink::begin_close);
        let until = Instant::now() + CLOSE_TIMEOUT;
        access.iter().for_each(|sink| sink.thread().wait(until));
        self.retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(|thread| thread.wait(until));
        self.notices.sink().close();
    }
}
