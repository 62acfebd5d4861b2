//! The audit log: the most recent changes in memory, all of them in a log file.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use logging::Level;
use logging::access::rfc3339;
use logging::notice::ErrorLog;
use logging::sink::LogSink;
use serde_json::{Value, json};

use crate::api::request::{ApiRequest, ApiResponse};

/// Maximum number of entries kept in memory.
const ENTRIES_MAX: usize = 1_000;
/// Maximum length of a path, query or result in an entry, in characters.
const TEXT_CHARS_MAX: usize = 500;
/// Maximum length of a value in the file, in bytes.
const VALUE_BYTES_MAX: usize = 1_024;
/// Refusals written to the file within [`REFUSAL_WINDOW`], so that a client that is refused repeatedly cannot fill
/// the disk.
const REFUSALS_MAX: u64 = 600;
const REFUSAL_WINDOW: Duration = Duration::from_secs(60);

/// Returns the audit log file if the configuration names one; it is reopened and closed with the other logs.
pub(crate) type AuditFile = Box<dyn Fn() -> Option<LogSink> + Send + Sync>;

/// The audit log. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog(Arc<AuditState>);

struct AuditState {
    entries: Mutex<VecDeque<Value>>,
    file: AuditFile,
    refusals: Mutex<RefusalCount>,
    notices: ErrorLog,
}

/// Refusals within the current window.
#[derive(Default)]
struct RefusalCount {
    window_start: Option<Instant>,
    count: u64,
    /// Refusals omitted from the file.
    omitted: u64,
}

impl RefusalCount {
    /// Counts a refusal. Returns the number of refusals omitted since the last one written, or `None` to omit
    /// this one.
    fn count_refusal(&mut self, now: Instant) -> Option<u64> {
        if self.window_start.is_none_or(|since| now >= since + REFUSAL_WINDOW) {
            (self.window_start, self.count) = (Some(now), 0);
        }
        if self.count >= REFUSALS_MAX {
            self.omitted += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl AuditLog {
    /// Creates an audit log that writes to `file`, or to the error log if there is none.
    pub fn new(file: AuditFile, notices: ErrorLog) -> AuditLog {
        AuditLog(Arc::new(AuditState {
            entries: Mutex::default(),
            file,
            refusals: Mutex::default(),
            notices,
        }))
    }

    /// Returns the entries in memory, newest first.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let entries = self.0.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().rev().cloned().collect()
    }

    /// Records an attempted change, or a refused request, with its result. Never blocks on disk I/O.
    pub(crate) fn record(&self, request: &ApiRequest, response: &ApiResponse) {
        let unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let result = ["error", "done"].iter().find_map(|key| response.document[key].as_str());
        let result = result.unwrap_or_default();
        let target = match request.query.as_str() {
            "" => request.path.clone(),
            query => format!("{}?{query}", request.path),
        };
        let entry = json!({
            "time": rfc3339(unix_s),
            "who": truncate_text(&request.caller.name),
            "address": request.caller.address,
            "role": request.caller.role.text(),
            "what": format!("{} {}", truncate_text(&request.method), truncate_text(&target)),
            "status": response.status,
            "result": truncate_text(result),
        });
        match (self.0.file)() {
            Some(file) => {
                let written = json!({
                    "time": entry["time"],
                    "actor": truncate_value(&request.caller.name),
                    "address": request.caller.address,
                    "role": entry["role"],
                    "method": truncate_value(&request.method),
                    "path": truncate_value(&target),
                    "status": response.status,
                    "result": truncate_value(result),
                });
                self.write(&file, written, response.is_refusal());
            }
            // Rate limited, so that a client that is refused repeatedly does not fill the log.
            None if response.is_refusal() => {
                let kind = format!("control: {} was refused", truncate_text(&request.caller.name));
                self.0.notices.throttled(Level::Warn, kind, || format_log_line(&entry));
            }
            None => self.0.notices.info(&format_log_line(&entry)),
        }
        let mut entries = self.0.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Refusals in a row are kept once, so that callers without permission cannot displace real changes.
        let refused = |entry: &Value| matches!(entry["status"].as_u64(), Some(401 | 403 | 429));
        if response.is_refusal() && entries.back().is_some_and(refused) {
            return;
        }
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    fn write(&self, file: &LogSink, mut entry: Value, is_refusal: bool) {
        if is_refusal {
            let mut refusals = self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            match refusals.count_refusal(Instant::now()) {
                None => return,
                Some(0) => {}
                Some(omitted) => entry["omitted"] = json!(omitted),
            }
        }
        file.write(format_file_line(&entry));
    }
}

/// Formats an entry as a JSON line. Control characters are escaped, including those beyond ASCII.
fn format_file_line(entry: &Value) -> Vec<u8> {
    let mut text = String::new();
    for c in entry.to_string().chars() {
        if c.is_control() { text.push_str(&format!("\\u{:04x}", u32::from(c))) } else { text.push(c) }
    }
    text.push('\n');
    text.into_bytes()
}

/// Truncates `text` to [`VALUE_BYTES_MAX`] at a character boundary.
fn truncate_value(text: &str) -> &str {
    let end = (0..=VALUE_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Formats an entry for the error log.
fn format_log_line(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().replace(char::is_control, " ");
    let status = &entry["status"];
    format!("control: {} ({}): {}: {status} {}", text("who"), text("role"), text("what"), text("result"))
        .trim_end()
        .to_owned()
}

fn truncate_text(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_line_escapes_control_characters() {
        let line = format_file_line(&json!({ "path": "a\u{1b}[2J\n\u{7f}\u{9b}é" }));
        assert_eq!(String::from_utf8(line).unwrap(), "{\"path\":\"a\\u001b[2J\\n\\u007f\\u009bé\"}\n");
        assert_eq!(truncate_value(&"é".repeat(600)).len(), 1_024);
        assert_eq!(truncate_value(&format!("x{}", "é".repeat(600))).len(), 1_023);
    }

    #[test]
    fn logged_refusals_are_limited_and_counted() {
        let mut count = RefusalCount::default();
        let start = Instant::now();
        let written = (0..10 * REFUSALS_MAX).filter(|_| count.count_refusal(start).is_some()).count();
        assert_eq!(written as u64, REFUSALS_MAX);
        assert_eq!(count.count_refusal(start + REFUSAL_WINDOW), Some(9 * REFUSALS_MAX));
        assert_eq!(count.count_refusal(start + REFUSAL_WINDOW), Some(0));
    }
}
