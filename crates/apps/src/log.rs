//! Log output of applications and of their processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::path::redact_target;
use net::Exchange;

/// Maximum number of bytes of a request's path in a log line.
const PATH_BYTES_MAX: usize = 200;

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppLogLevel {
    /// A failure.
    Error,
    /// An unusual condition.
    Warn,
    /// Normal operation.
    Info,
    /// The application's own output.
    Output,
}

/// A line for the log.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'l> {
    /// The application's name.
    pub app: &'l str,
    /// Process whose output this is; `None` for the server's own messages about the application.
    pub pid: Option<u32>,
    /// Severity of the line.
    pub level: AppLogLevel,
    /// Text without a line end; output of an application may contain arbitrary bytes.
    pub text: &'l [u8],
}

/// Log sink, called from any thread; must not block for long.
pub type Log = Arc<dyn Fn(&LogLine<'_>) + Send + Sync>;

/// Length at which an incomplete line is split.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Maximum time that an incomplete line is held back.
const INCOMPLETE_LINE_MAX: Duration = Duration::from_secs(1);

/// The server's own messages about an application.
#[derive(Clone)]
pub(crate) struct AppLog {
    pub(crate) app: Arc<str>,
    pub(crate) log: Log,
}

impl AppLog {
    pub(crate) fn report(&self, level: AppLogLevel, text: &str) {
        (self.log)(&LogLine { app: &self.app, pid: None, level, text: text.as_bytes() });
    }

    /// Logs a line that a worker sends with a request; `level` is a syslog severity.
    pub(crate) fn line(&self, level: u8, text: &[u8]) {
        let urgency = match level {
            0..=3 => AppLogLevel::Error,
            4 => AppLogLevel::Warn,
            _ => AppLogLevel::Output,
        };
        (self.log)(&LogLine { app: &self.app, pid: None, level: urgency, text });
    }

    pub(crate) fn output(&self, pid: Option<u32>, text: &[u8]) {
        (self.log)(&LogLine { app: &self.app, pid, level: AppLogLevel::Output, text });
    }
}

/// Splits the output of a process into lines.
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    /// The incomplete last line.
    incomplete: Vec<u8>,
    since: Option<Instant>,
}

impl OutputLines {
    /// Adds bytes; `on_line` is called for every complete line.
    pub(crate) fn feed(&mut self, bytes: &[u8], now: Instant, mut on_line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) if self.incomplete.is_empty() => on_line(end),
                Some(end) => {
                    self.incomplete.extend_from_slice(end);
                    on_line(&self.incomplete);
                    self.incomplete.clear();
                }
                None => self.incomplete.extend_from_slice(piece),
            }
            while self.incomplete.len() >= LINE_BYTES_MAX {
                on_line(&self.incomplete[..LINE_BYTES_MAX]);
                self.incomplete.drain(..LINE_BYTES_MAX);
            }
        }
        self.since = if self.incomplete.is_empty() {
            None
        } else if bytes.contains(&b'\n') {
            // A line that was completed in these bytes restarts the timer.
            Some(now)
        } else {
            self.since.or(Some(now))
        };
    }

    /// Emits the incomplete last line at the end of the output.
    pub(crate) fn finish(&mut self, mut on_line: impl FnMut(&[u8])) {
        self.since = None;
        if !self.incomplete.is_empty() {
            on_line(&std::mem::take(&mut self.incomplete));
        }
    }

    /// Time at which the incomplete line is emitted.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + INCOMPLETE_LINE_MAX)
    }
}

/// Returns method and path for the log.
pub(crate) fn request_line(exchange: &Exchange<'_>) -> String {
    let request = exchange.request();
    let path = &request.path()[..request.path().len().min(PATH_BYTES_MAX)];
    format!("{} {}", String::from_utf8_lossy(request.method_name()), redact_target(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_wherever_the_output_is_split() {
        let text = b"one\n\ntwo three\nlast";
        for cut in 0..=text.len() {
            let mut lines = OutputLines::default();
            let mut seen = Vec::new();
            for piece in [&text[..cut], &text[cut..]] {
                lines.feed(piece, Instant::now(), |line| seen.push(line.to_vec()));
            }
            lines.finish(|line| seen.push(line.to_vec()));
            assert_eq!(seen, [&b"one"[..], b"", b"two three", b"last"], "cut at {cut}");
        }
    }

    #[test]
    fn deadline_applies_to_the_incomplete_line() {
        let mut lines = OutputLines::default();
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        lines.feed(b"one\n", at(0), |_| {});
        assert_eq!(lines.deadline(), None);
        lines.feed(b"tw", at(100), |_| {});
        lines.feed(b"o", at(600), |_| {});
        assert_eq!(lines.deadline(), Some(at(1100)));
        lines.feed(b"\nthr", at(700), |_| {});
        assert_eq!(lines.deadline(), Some(at(1700)));
        let mut rest = Vec::new();
        lines.finish(|line| rest.extend_from_slice(line));
        assert_eq!((rest.as_slice(), lines.deadline()), (&b"thr"[..], None));
    }

    #[test]
    fn endless_line_is_held_only_up_to_its_limit() {
        let mut lines = OutputLines::default();
        let mut bytes = 0;
        for _ in 0..100 {
            lines.feed(&[b'x'; 1000], Instant::now(), |line| bytes += line.len());
        }
        assert!(lines.incomplete.len() < LINE_BYTES_MAX);
        assert_eq!(bytes + lines.incomplete.len(), 100_000);
    }
}
