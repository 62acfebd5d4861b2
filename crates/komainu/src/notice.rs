//! What the operator is told: errors and notices, with time and level.

use std::time::SystemTime;

use config::Level;
use proxy::Trouble;

use crate::access::Utc;
use crate::sink::Sink;

/// The error log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notices {
    sink: Sink,
    level: Level,
}

impl Notices {
    pub(crate) fn new(sink: Sink, level: Level) -> Notices {
        Notices { sink, level }
    }

    /// Something failed that somebody should look at.
    pub(crate) fn error(&self, text: &str) {
        self.say(Level::Error, "error", text);
    }

    /// Something is odd, and the server went on.
    pub(crate) fn warn(&self, text: &str) {
        self.say(Level::Warn, "warn", text);
    }

    /// Something happened.
    pub(crate) fn info(&self, text: &str) {
        self.say(Level::Info, "info", text);
    }

    /// Something that only helps to understand.
    pub(crate) fn debug(&self, text: &str) {
        self.say(Level::Debug, "debug", text);
    }

    /// A line that an application has written.
    pub(crate) fn output(&self, text: &str) {
        self.say(Level::Error, "app", text);
    }

    /// An upstream failed a request: an error if the client had to be told.
    pub(crate) fn upstream(&self, trouble: &Trouble<'_>) {
        let target = String::from_utf8_lossy(trouble.target);
        let server = trouble.server.unwrap_or("no upstream");
        match trouble.status {
            Some(status) => {
                self.error(&format!("{server}: {target:?}: {}: {}", trouble.reason, status.code()))
            }
            None => self.warn(&format!("{server}: {target:?}: {}: trying again", trouble.reason)),
        }
    }

    /// Opens the file anew.
    pub(crate) fn sink(&self) -> &Sink {
        &self.sink
    }

    fn say(&self, level: Level, name: &str, text: &str) {
        if level as u8 > self.level as u8 {
            return;
        }
        let unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.sink.write(format!("{} {name}: {text}\n", Utc::at(unix_s).rfc3339()).into_bytes());
    }
}
