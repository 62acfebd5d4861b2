//! The error log: errors and notices for the operator, with time and level.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Instant, SystemTime};

use cache::DiskEvent;
use files::RootState;
use http::path::redact_target;
use proxy::{HealthChange, SOCKET_FORBIDDEN, UpstreamError, UpstreamEvent};
use rights::file_rights::socket_refusal;
use rights::privilege::Identity;

use crate::access::rfc3339;
use crate::directives::Level;
use crate::events::EventRing;
use crate::otlp_record::error_record;
use crate::sink::{LineForm, LogSink};
use crate::throttle::LogThrottles;

/// The error log. Cheap to clone.
#[derive(Clone)]
pub struct ErrorLog {
    /// The destination and the level; a reload may change both.
    output: Arc<RwLock<(LogSink, Level)>>,
    throttles: Arc<Mutex<LogThrottles>>,
    events: EventRing,
    root_states: Arc<Mutex<BTreeMap<PathBuf, LastRootState>>>,
}

/// The last message about a root directory. All cores report, but it is logged once.
#[derive(PartialEq, Eq)]
enum LastRootState {
    Serves(Option<(u64, u64)>),
    Missing,
    Unknown,
}

impl ErrorLog {
    /// A log that writes lines of `level` and above to `sink`.
    pub fn new(sink: LogSink, level: Level) -> ErrorLog {
        let output = Arc::new(RwLock::new((sink, level)));
        let events = EventRing::default();
        ErrorLog { output, throttles: Arc::default(), events, root_states: Arc::default() }
    }

    /// The last lines of any level above `debug`, whatever the log's level.
    pub fn events(&self) -> EventRing {
        self.events.clone()
    }

    /// Changes the level and, with `Some`, the destination; then returns the previous sink.
    pub fn replace(&self, sink: Option<LogSink>, level: Level) -> Option<LogSink> {
        let mut output = self.output.write().unwrap_or_else(PoisonError::into_inner);
        output.1 = level;
        sink.map(|sink| std::mem::replace(&mut output.0, sink))
    }

    fn destination(&self) -> RwLockReadGuard<'_, (LogSink, Level)> {
        self.output.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line at `level`.
    pub fn log(&self, level: Level, text: &str) {
        self.write_line(level, level_name(level), text);
    }

    /// Writes a report of several lines, such as one about a configuration. All lines after the first are
    /// indented, so that none looks like an entry of the log.
    pub fn report(&self, level: Level, text: &str) {
        let lines: Vec<String> = text.trim_end().lines().map(|line| one_line(line).into_owned()).collect();
        self.write(level, level_name(level), &lines.join("\n  "));
    }

    /// Logs a failure that needs attention.
    pub fn error(&self, text: &str) {
        self.write_line(Level::Error, level_name(Level::Error), text);
    }

    /// Logs an unexpected event, after which the server continues.
    pub fn warn(&self, text: &str) {
        self.write_line(Level::Warn, level_name(Level::Warn), text);
    }

    /// Logs a normal event.
    pub fn info(&self, text: &str) {
        self.write_line(Level::Info, level_name(Level::Info), text);
    }

    /// Logs details for debugging.
    pub fn debug(&self, text: &str) {
        self.write_line(Level::Debug, level_name(Level::Debug), text);
    }

    /// Logs a line of an application's output.
    pub fn output(&self, text: &str) {
        self.write_line(Level::Error, "app", text);
    }

    /// Logs events of upstream servers.
    pub fn log_upstream_event(&self, event: &UpstreamEvent<'_>) {
        let (level, server, text) = match *event {
            UpstreamEvent::UpstreamError(trouble) => return self.log_upstream_error(&trouble),
            UpstreamEvent::ErrorLine { server, line } => {
                let line = line.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"");
                let level = php_level(&line);
                return self.write_line(level, level_name(level), &format!("{server}: stderr: {line}"));
            }
            UpstreamEvent::RefusedCheck { server, reason, place } => {
                let repair = repair_hint(place);
                return self.error(&format!("{server}: health check: {reason}{repair}"));
            }
            UpstreamEvent::SpillFailed { error: why } => {
                return self.warn(&format!("slow clients occupy upstream connections: {why}"));
            }
            UpstreamEvent::HealthChange { server, change: HealthChange::Ejected } => {
                (Level::Warn, server, "ejected: it gets no requests for a time")
            }
            UpstreamEvent::HealthChange { server, change: HealthChange::Recovered } => {
                (Level::Info, server, "back in service")
            }
            UpstreamEvent::HealthChange { server, change: HealthChange::Unhealthy } => {
                (Level::Error, server, "out of service: its health checks fail")
            }
            UpstreamEvent::HealthChange { server, change: HealthChange::Healthy } => {
                (Level::Info, server, "in service again")
            }
        };
        self.write_line(level, level_name(level), &format!("{server}: {text}"));
    }

    /// Logs that a directory of `files.root` was replaced, is missing or cannot be read. Repeated states are
    /// logged once.
    pub fn log_root_state(&self, path: &Path, state: RootState) {
        let seen = match &state {
            RootState::Replaced(id) => LastRootState::Serves(*id),
            RootState::Missing(_) => LastRootState::Missing,
            RootState::Unknown(_) => LastRootState::Unknown,
            RootState::PermissionDenied(file) => {
                let kind = format!(
                    "files.root {}: requests for what the server's user may not read",
                    path.display()
                );
                return self.throttled(Level::Warn, kind, || {
                    let path = path.display();
                    let file = String::from_utf8_lossy(file);
                    format!("files.root {path}: {file:?}: 403, because the server's user may not read what is there")
                });
            }
        };
        let mut roots = self.root_states.lock().unwrap_or_else(PoisonError::into_inner);
        if roots.get(path) == Some(&seen) {
            return;
        }
        roots.insert(path.to_path_buf(), seen);
        let path = path.display();
        match state {
            RootState::Replaced(_) => self.info(&format!("files.root {path}: the folder was replaced; the new one is served")),
            RootState::Missing(error) => {
                self.error(&format!("files.root {path}: {error}; requests get 404 until the folder is back"));
            }
            RootState::Unknown(error) => self.warn(&format!(
                "files.root {path}: cannot check whether it has changed: {error}; the open folder is still served"
            )),
            RootState::PermissionDenied(_) => {}
        }
    }

    /// Logs events of the disk cache.
    pub fn log_disk_event(&self, path: &Path, event: &DiskEvent<'_>) {
        let path = path.display();
        match event {
            DiskEvent::Opened(files, bytes) => {
                self.info(&format!("cache.disk {path}: {files} responses, {} MiB", bytes >> 20));
            }
            DiskEvent::InUse => self.warn(&format!(
                "cache.disk {path}: another process uses the folder; responses are cached in memory until it ends"
            )),
            DiskEvent::Failed(error) => {
                self.error(&format!("cache.disk {path}: {error}; responses are cached in memory alone"));
            }
            DiskEvent::Recovered => self.info(&format!("cache.disk {path}: responses are written again")),
            DiskEvent::Dropped(file, error, count) => self.warn(&format!(
                "cache.disk: dropped {}: {error} ({count} files since the start)",
                file.display()
            )),
        }
    }

    /// Logs a request that an upstream server failed: an error if the client gets an error response, else a
    /// warning. One line a second per server and reason.
    fn log_upstream_error(&self, trouble: &UpstreamError<'_>) {
        let server = trouble.server.unwrap_or("no upstream");
        let (level, outcome) = match trouble.status {
            Some(status) => (Level::Error, status.code().to_string()),
            None => (Level::Warn, "trying again".to_owned()),
        };
        let kind = format!("{server}: {}: {outcome}", trouble.reason);
        self.throttled(level, kind, || {
            let target = redact_target(trouble.target);
            let why = trouble.socket.filter(|_| trouble.reason == SOCKET_FORBIDDEN);
            let why = why.and_then(|path| socket_refusal(path, &Identity::of_process()));
            let why = why.map(|why| format!("; {why}")).unwrap_or_default();
            let repair = trouble.repairable.map(repair_hint).unwrap_or_default();
            format!("{server}: {target:?}: {}{repair}: {outcome}{why}", trouble.reason)
        });
    }

    /// Writes a line, or counts it if one of the same kind was written within the last second.
    pub fn throttled(&self, level: Level, kind: String, line: impl FnOnce() -> String) {
        let now = Instant::now();
        self.log_suppressed(now);
        if self.throttles().admit(level, kind, now) {
            self.write_line(level, level_name(level), &line());
        }
    }

    /// Writes the number of suppressed lines for kinds whose second is over.
    pub fn log_suppressed(&self, now: Instant) {
        let over = self.throttles().take_expired(now);
        for (level, kind, held) in over {
            self.write_line(level, level_name(level), &format!("{kind}: {held} more within a second"));
        }
    }

    fn throttles(&self) -> std::sync::MutexGuard<'_, LogThrottles> {
        self.throttles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log's destination, for reopening its file.
    pub fn sink(&self) -> LogSink {
        self.destination().0.clone()
    }

    /// Writes `text` as a single line.
    fn write_line(&self, level: Level, name: &'static str, text: &str) {
        self.write(level, name, &one_line(text.trim_end()));
    }

    fn write(&self, level: Level, name: &'static str, text: &str) {
        if level != Level::Debug {
            self.events.add(name, text);
        }
        let output = self.destination();
        let (sink, level_max) = &*output;
        if level as u8 > *level_max as u8 {
            return;
        }
        match sink.form() {
            LineForm::Plain => {}
            LineForm::Message => {
                // A text of several lines is still one message.
                let line = format!("{name}: {}\n", text.replace("\n  ", " | "));
                return sink.write_as(line.into_bytes(), level.into(), "error");
            }
            LineForm::Record => return sink.write_as(error_record(level, name, text), level.into(), "error"),
        }
        let unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        sink.write_as(format!("{} {name}: {text}\n", rfc3339(unix_s)).into_bytes(), level.into(), "error");
    }
}

/// Replaces line breaks by ` | ` and escapes control characters, except tab and ESC (colours).
fn one_line(text: &str) -> Cow<'_, str> {
    // Some log viewers treat U+2028 and U+2029 as line breaks.
    let breaks =
        |c: char| matches!(c, '\u{2028}' | '\u{2029}') || (c.is_control() && !matches!(c, '\t' | '\u{1b}'));
    if !text.contains(breaks) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.replace("\r\n", "\n").chars() {
        match c {
            '\n' => line.push_str(" | "),
            c if breaks(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    Cow::Owned(line)
}

/// The level of a FastCGI server's stderr line: PHP states it; other lines are errors.
fn php_level(line: &str) -> Level {
    let line = line.strip_prefix("PHP message: ").unwrap_or(line);
    match line.split(':').next() {
        Some("PHP Warning") => Level::Warn,
        Some("PHP Notice" | "PHP Deprecated" | "PHP Strict Standards") => Level::Info,
        _ => Level::Error,
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
    }
}

/// Message suffix with the place of a fault in a response head, and the directive that accepts it.
fn repair_hint(place: &str) -> String {
    format!(" in {place} (lenient_heads = true of the upstream group repairs it)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_of_php_messages_is_detected() {
        for (line, level) in [
            ("PHP message: PHP Warning:  Undefined variable $a in /b.php on line 1", Level::Warn),
            ("PHP message: PHP Deprecated:  x", Level::Info),
            ("PHP message: PHP Fatal error:  x", Level::Error),
            ("Warning: of a script", Level::Error),
        ] {
            assert_eq!(php_level(line), level, "{line}");
        }
    }

    #[test]
    fn line_breaks_and_control_characters_are_escaped() {
        assert!(matches!(one_line("plain \u{1b}[31m\tred é"), Cow::Borrowed(_)));
        let text = "ERR a\r\n2026-01-01T00:00:00Z error: forged\rb\u{b}\u{85}\u{2028}\0c";
        let line = one_line(text);
        assert_eq!(line, "ERR a | 2026-01-01T00:00:00Z error: forged\\rb\\u{b}\\u{85}\\u{2028}\\u{0}c");
        assert_eq!(one_line("a\nb\nc"), "a | b | c");
    }
}
