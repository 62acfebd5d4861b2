//! Who has changed what: the last changes in memory, all of them in a log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use config::Level;
use serde_json::{Value, json};

use crate::access::rfc3339;
use crate::api::request::{ApiRequest, ApiResponse};
use crate::notice::ErrorLog;
use crate::sink::LogSink;

/// Changes that are kept in memory.
const ENTRIES_MAX: usize = 1_000;
/// The longest path, query or result of an entry, in characters.
const TEXT_CHARS_MAX: usize = 500;

/// The log of changes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AuditLog(Arc<AuditState>);

struct AuditState {
    entries: Mutex<VecDeque<Value>>,
    /// A log of its own, where one is configured.
    file: Option<LogSink>,
    notices: ErrorLog,
}

impl AuditLog {
    /// Entries go to `file`, or to the error log.
    pub(crate) fn new(file: Option<LogSink>, notices: ErrorLog) -> AuditLog {
        AuditLog(Arc::new(AuditState { entries: Mutex::default(), file, notices }))
    }

    /// Opens its file again.
    pub(crate) fn reopen(&self) {
        self.0.file.iter().for_each(LogSink::reopen);
    }

    /// The last changes, the newest first.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let entries = self.0.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().rev().cloned().collect()
    }

    /// Records a request for a change, and what has become of it.
    pub(crate) fn record(&self, request: &ApiRequest, response: &ApiResponse) {
        let unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let result = ["error", "done"].iter().find_map(|key| response.document[key].as_str());
        let target = match request.query.as_str() {
            "" => request.path.clone(),
            query => format!("{}?{query}", request.path),
        };
        let entry = json!({
            "time": rfc3339(unix_s),
            "who": short(&request.caller.name),
            "role": request.caller.role.text(),
            "what": format!("{} {}", request.method, short(&target)),
            "status": response.status,
            "result": short(result.unwrap_or_default()),
        });
        let is_refused = matches!(response.status, 401 | 403);
        match &self.0.file {
            Some(file) => file.write(format!("{entry}\n").into_bytes()),
            // Whoever is refused again and again does not fill the log.
            None if is_refused => {
                let kind = format!("control: {} was refused", short(&request.caller.name));
                self.0.notices.once_a_second(Level::Warn, kind, || line(&entry));
            }
            None => self.0.notices.info(&line(&entry)),
        }
        let mut entries = self.0.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Those who may nothing do not push out what others have done.
        if is_refused && entries.back().is_some_and(|last| last["status"] == entry["status"]) {
            return;
        }
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// An entry in the error log.
fn line(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().replace(char::is_control, " ");
    let status = &entry["status"];
    format!("control: {} ({}): {}: {status} {}", text("who"), text("role"), text("what"), text("result"))
        .trim_end()
        .to_owned()
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}
