//! The access log: one line a request, collected on each core and written elsewhere.

use std::cell::RefCell;

use config::AccessLog;
use http::Name;
use http::path::encode_beyond_ascii;
use net::{Request, RequestRecord};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::sink::{Collector, LogSink};

/// Lines collected before they are handed over without waiting for the next [`FLUSH_MS`].
const BLOCK_BYTES: usize = 32 * 1024;
/// How long a line is collected at most, in milliseconds.
pub(crate) const FLUSH_MS: u64 = 80;

/// One core's access log.
pub(crate) struct Access {
    format: AccessLog,
    sink: LogSink,
    lines: RefCell<Vec<u8>>,
    collector: RefCell<Collector>,
    /// The time in the two formats, made once a second.
    stamp: RefCell<(u64, String)>,
}

impl Access {
    pub(crate) fn new(format: AccessLog, sink: LogSink) -> Access {
        let collector = RefCell::new(sink.collector());
        Access { format, sink, lines: RefCell::default(), collector, stamp: RefCell::default() }
    }

    /// Adds the line of a request.
    pub(crate) fn log(&self, record: &RequestRecord<'_>) {
        let mut lines = self.lines.borrow_mut();
        match self.format {
            AccessLog::Off => return,
            AccessLog::Combined => combined(&mut lines, record, &self.stamp(record.unix_s)),
            AccessLog::Json => json(&mut lines, record, &self.stamp(record.unix_s)),
        }
        if lines.len() >= BLOCK_BYTES {
            self.sink.write(std::mem::take(&mut lines));
        }
    }

    /// Hands over what was collected.
    pub(crate) fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            // The next lines are likely to be as many.
            let room = Vec::with_capacity(lines.len());
            self.sink.write(std::mem::replace(&mut lines, room));
        }
        self.collector.borrow_mut().handed_over();
    }

    fn stamp(&self, unix_s: u64) -> String {
        let mut stamp = self.stamp.borrow_mut();
        if stamp.0 != unix_s || stamp.1.is_empty() {
            let text = match self.format {
                AccessLog::Json => rfc3339(unix_s),
                _ => combined_time(unix_s),
            };
            *stamp = (unix_s, text);
        }
        stamp.1.clone()
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Apache's and nginx's combined format.
fn combined(out: &mut Vec<u8>, record: &RequestRecord<'_>, time: &str) {
    out.extend_from_slice(format!("{} - - [{time}] \"", record.client.address).as_bytes());
    match &record.request {
        Some(request) => {
            escaped(out, request.method_name());
            out.push(b' ');
            escaped(out, request.target());
            out.push(b' ');
            out.extend_from_slice(request.version().text().as_bytes());
        }
        None => out.push(b'-'),
    }
    out.extend_from_slice(format!("\" {} {} \"", record.status.code(), record.body_bytes).as_bytes());
    quoted_field(out, record.request.as_ref(), Name::Referer);
    out.extend_from_slice(b"\" \"");
    quoted_field(out, record.request.as_ref(), Name::UserAgent);
    out.extend_from_slice(b"\"\n");
}

fn quoted_field(out: &mut Vec<u8>, request: Option<&Request<'_>>, name: Name) {
    match request.and_then(|request| request.field(name)) {
        Some(value) => escaped(out, value),
        None => out.push(b'-'),
    }
}

/// Bytes that would end the quotes or the line, or steer a terminal, as `\xHH`; and all beyond ASCII, as nginx has it.
fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

fn json(out: &mut Vec<u8>, record: &RequestRecord<'_>, time: &str) {
    let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
    let mut line = serde_json::Map::new();
    line.insert("time".into(), time.into());
    line.insert("remote_addr".into(), record.client.address.to_string().into());
    if record.client.vouched.is_some() {
        line.insert("proxy_addr".into(), record.peer.to_string().into());
    }
    if let Some(request) = &record.request {
        line.insert("method".into(), text(request.method_name()));
        line.insert("host".into(), text(request.authority()));
        line.insert("target".into(), text(&encode_beyond_ascii(request.target())));
        line.insert("version".into(), request.version().text().into());
        for (key, name) in [("referer", Name::Referer), ("user_agent", Name::UserAgent)] {
            if let Some(value) = request.field(name) {
                line.insert(key.into(), text(value));
            }
        }
    }
    line.insert("status".into(), record.status.code().into());
    line.insert("body_bytes".into(), record.body_bytes.into());
    line.insert("duration_ms".into(), (record.duration_us / 1_000).into());
    if let Some(fault) = record.fault {
        line.insert("fault".into(), fault.to_string().into());
    }
    out.extend_from_slice(serde_json::Value::Object(line).to_string().as_bytes());
    out.push(b'\n');
}

/// `2026-11-21T09:00:00Z`: the time, so many seconds after 1970, as RFC 3339 writes it.
pub(crate) fn rfc3339(unix_s: u64) -> String {
    utc(unix_s).format(&Rfc3339).expect("RFC 3339 writes every year up to 9999")
}

/// `21/Nov/2026:09:00:00 +0000`, as the combined format has it.
fn combined_time(unix_s: u64) -> String {
    let time = utc(unix_s);
    let (month, (hour, minute, second)) = (time.month().to_string(), time.to_hms());
    format!("{:02}/{:.3}/{:04}:{hour:02}:{minute:02}:{second:02} +0000", time.day(), month, time.year())
}

/// Clocks beyond the year 9999 are shown as its last second.
fn utc(unix_s: u64) -> OffsetDateTime {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| OffsetDateTime::from_unix_timestamp(unix_s).ok());
    time.unwrap_or(PrimitiveDateTime::MAX.replace_nanosecond(0).expect("zero is valid").assume_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_both_formats() {
        for (unix_s, of_rfc, of_combined) in [
            (0, "1970-01-01T00:00:00Z", "01/Jan/1970:00:00:00 +0000"),
            (951_782_399, "2000-02-28T23:59:59Z", "28/Feb/2000:23:59:59 +0000"),
            (951_782_400, "2000-02-29T00:00:00Z", "29/Feb/2000:00:00:00 +0000"),
            (1_795_251_661, "2026-11-21T09:01:01Z", "21/Nov/2026:09:01:01 +0000"),
            (4_107_542_400, "2100-03-01T00:00:00Z", "01/Mar/2100:00:00:00 +0000"),
            (u64::MAX, "9999-12-31T23:59:59Z", "31/Dec/9999:23:59:59 +0000"),
        ] {
            assert_eq!((rfc3339(unix_s).as_str(), combined_time(unix_s).as_str()), (of_rfc, of_combined));
        }
    }

    #[test]
    fn nothing_a_client_sends_breaks_a_line() {
        let mut out = Vec::new();
        escaped(&mut out, b"a\"b\\c\x1b[31m\x7f");
        assert_eq!(out, b"a\\x22b\\x5Cc\\x1B[31m\\x7F");
        // The same sequence by its one character, as UTF-8: many terminals obey that too.
        out.clear();
        escaped(&mut out, "\u{9b}31m".as_bytes());
        assert_eq!(out, b"\\xC2\\x9B31m");
    }
}
