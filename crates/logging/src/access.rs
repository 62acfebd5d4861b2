//! The access log: one line per request, collected on each core and written by another thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::ops::Deref;

use http::encode::write_decimal;
use http::path::encode_beyond_ascii;
use http::template::{TlsValues, VariableValues};
use http::{HeadRef, LogVariable, Name, TemplatePart, Variable};
use net::{Peer, Request, RequestRecord};
use shapes::share::SHARE_MAX;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, PrimitiveDateTime};
use times::Millis;

use self::escape::{LineText, escaped, is_plain_json, json_escaped};
use self::format::{LineField, LineFormat, ValueKind};
use crate::directives::{LogCondition, RequestLog, RequestLogs};
use crate::masks::Masks;
use crate::sink::{Collector, LineForm, LogSink, LogSinks};

mod escape;

mod format;
pub mod stream;
mod record;

/// Lines collected before they are handed over ahead of the next [`FLUSH_INTERVAL`]. Each hand-over may let the
/// writing thread preempt the serving one, so blocks are large.
const BLOCK_BYTES: usize = 128 * 1024;
/// Buffer capacity: a block, and room for the line that fills it.
const BLOCK_ROOM_BYTES: usize = BLOCK_BYTES + 8 * 1024;
/// Maximum time for which a line is collected, in milliseconds.
pub const FLUSH_INTERVAL: Millis = Millis(80);
/// Replacement for secrets.
const MASKED: &[u8] = b"***";

/// One core's access logs.
#[derive(Default)]
pub struct AccessLogs {
    /// Logs of all requests.
    all: Vec<CoreAccessLog>,
    /// Logs of each site's requests, indexed by site.
    sites: Vec<Vec<CoreAccessLog>>,
}

impl AccessLogs {
    /// Access logs whose destinations are open in `sinks`; `None` if there are none.
    pub fn new(logs: &RequestLogs, sinks: &LogSinks) -> Option<AccessLogs> {
        let access = |log: &RequestLog| Some(CoreAccessLog::new(log, sinks.of(&log.file)?));
        let open =
            |logs: &Vec<RequestLog>| -> Vec<CoreAccessLog> { logs.iter().filter_map(access).collect() };
        let logs = AccessLogs { all: open(&logs.all), sites: logs.sites.iter().map(open).collect() };
        let is_empty = logs.logs().next().is_none();
        (!is_empty).then_some(logs)
    }

    fn logs(&self) -> impl Iterator<Item = &CoreAccessLog> {
        self.all.iter().chain(self.sites.iter().flatten())
    }

    /// Adds the lines of a request; `site` returns the index of its site.
    pub fn log(&self, record: &RequestRecord<'_>, site: impl FnOnce(&Request<'_>) -> Option<usize>) {
        if record.notes.is_unlogged {
            return;
        }
        let record = &LineRecord { record, values: OnceCell::new() };
        self.all.iter().for_each(|log| log.log(record));
        if self.sites.iter().all(Vec::is_empty) {
            return;
        }
        // Bytes that are no request belong to no site.
        let site = record.request.as_ref().and_then(site);
        site.and_then(|site| self.sites.get(site)).into_iter().flatten().for_each(|log| log.log(record));
    }

    /// Hands collected lines over to the writing threads.
    pub fn flush(&self) {
        self.logs().for_each(CoreAccessLog::flush);
    }
}

/// One core's access log for one destination.
struct CoreAccessLog {
    format: LineFormat,
    condition: LogCondition,
    /// Accumulator of the sampling, in millionths.
    sampled: Cell<u32>,
    masks: Masks,
    sink: LogSink,
    lines: RefCell<Vec<u8>>,
    collector: RefCell<Collector>,
    /// Unix time in seconds, with its text in the combined format and in RFC 3339, computed once a second.
    timestamp: RefCell<(u64, String, String)>,
    /// Scratch buffer for a variable's value before escaping.
    value: RefCell<Vec<u8>>,
}

/// A request to log; the values of its variables are looked up by the first field that needs them.
struct LineRecord<'r> {
    record: &'r RequestRecord<'r>,
    values: OnceCell<VariableValues<'r>>,
}

impl<'r> Deref for LineRecord<'r> {
    type Target = RequestRecord<'r>;

    fn deref(&self) -> &Self::Target {
        self.record
    }
}

impl CoreAccessLog {
    fn new(log: &RequestLog, sink: LogSink) -> CoreAccessLog {
        CoreAccessLog {
            format: LineFormat::new(log),
            condition: log.only.clone(),
            sampled: Cell::new(0),
            masks: Masks::new(&log.mask_query, &log.mask_headers),
            collector: RefCell::new(sink.collector()),
            sink,
            lines: RefCell::default(),
            timestamp: RefCell::default(),
            value: RefCell::default(),
        }
    }

    /// Whether a request with this status and duration is logged.
    fn is_logged(&self, status: u16, duration_us: u64) -> bool {
        let only = &self.condition;
        let is_slow = || only.slower_than.is_some_and(|min| u128::from(duration_us) > min.as_micros());
        only.is_empty()
            || only.status.iter().any(|pattern| pattern.matches(status))
            || is_slow()
            || only.sample.is_some_and(|share| self.is_sampled(share))
    }

    /// Whether to log this request, of which `share` in a million are logged, evenly spaced and not at
    /// random.
    fn is_sampled(&self, share: u32) -> bool {
        let next = self.sampled.get() + share;
        self.sampled.set(next % SHARE_MAX);
        next >= SHARE_MAX
    }

    /// Adds the line of a request.
    fn log(&self, record: &LineRecord<'_>) {
        if !self.is_logged(record.status.code(), record.duration_us) {
            return;
        }
        let mut lines = self.lines.borrow_mut();
        match self.sink.form() {
            LineForm::Record => {
                let mut line = Vec::new();
                self.line(&mut line, record);
                self.record(&mut lines, &line, record);
            }
            LineForm::Plain | LineForm::Message => self.line(&mut lines, record),
        }
        lines.push(b'\n');
        self.hand_over_full(&mut lines);
    }

    /// Hands the lines over if they fill a block.
    fn hand_over_full(&self, lines: &mut Vec<u8>) {
        if lines.len() >= BLOCK_BYTES {
            self.sink.write(std::mem::replace(lines, self.sink.buffer(BLOCK_ROOM_BYTES)));
        }
    }

    /// Hands collected lines over.
    fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            // The next batch is likely to be as large.
            let room = self.sink.buffer(lines.len());
            self.sink.write(std::mem::replace(&mut lines, room));
        }
        self.collector.borrow_mut().record_hand_over();
    }

    /// Writes a line in the combined format of Apache and nginx.
    fn combined(&self, out: &mut Vec<u8>, record: &LineRecord<'_>) {
        self.escaped_value(out, &Variable::RemoteAddr, record);
        out.extend_from_slice(b" - ");
        let user = out.len();
        self.escaped_value(out, &Variable::RemoteUser, record);
        // Spaces separate columns.
        while let Some(space) = out[user..].iter().position(|&byte| byte == b' ') {
            out.splice(user + space..=user + space, *b"\\x20");
        }
        out.extend_from_slice(b" [");
        self.escaped_value(out, &Variable::Log(LogVariable::TimeLocal), record);
        out.extend_from_slice(b"] \"");
        match &record.request {
            Some(request) => {
                escaped(out, request.method_name());
                out.push(b' ');
                self.escaped_value(out, &Variable::Log(LogVariable::Target), record);
                out.push(b' ');
                out.extend_from_slice(request.version().text().as_bytes());
            }
            None => out.push(b'-'),
        }
        out.extend_from_slice(b"\" ");
        write_decimal(out, record.status.code().into());
        out.push(b' ');
        write_decimal(out, record.body_bytes);
        out.extend_from_slice(b" \"");
        self.escaped_value(out, &Variable::Log(LogVariable::Referer), record);
        out.extend_from_slice(b"\" \"");
        self.escaped_value(out, &Variable::Log(LogVariable::UserAgent), record);
        out.push(b'"');
    }

    /// Writes `200     0.42 ms   1.3 KiB  GET /path`, then the upstream server, the reason and the fault, if
    /// any.
    fn console(&self, out: &mut Vec<u8>, color: bool, record: &LineRecord<'_>) {
        let status = record.status.code();
        let (begin, end) = match (color, status) {
            (false, _) => ("", ""),
            (true, 500..) => ("\x1b[31m", "\x1b[0m"),
            (true, 400..) => ("\x1b[33m", "\x1b[0m"),
            (true, 300..) => ("\x1b[36m", "\x1b[0m"),
            (true, _) => ("\x1b[32m", "\x1b[0m"),
        };
        let ms = record.duration_us as f64 / 1e3;
        let size = bench::quantity::format_bytes(record.body_bytes as f64);
        out.extend_from_slice(format!("{begin}{status}{end} {ms:>9.2} ms {size:>9}  ").as_bytes());
        match &record.request {
            Some(request) => {
                escaped(out, request.method_name());
                out.push(b' ');
                self.escaped_value(out, &Variable::Log(LogVariable::Target), record);
            }
            None => out.push(b'-'),
        }
        for (start, variable) in [
            (" \u{2190} ", Variable::Upstream),
            (": ", Variable::Log(LogVariable::Reason)),
            (", ", Variable::Log(LogVariable::Fault)),
        ] {
            let before = out.len();
            out.extend_from_slice(start.as_bytes());
            self.escaped_value(out, &variable, record);
            if out.ends_with(b"-") && out.len() == before + start.len() + 1 {
                out.truncate(before);
            }
        }
    }

    fn template(&self, out: &mut Vec<u8>, parts: &[TemplatePart], record: &LineRecord<'_>) {
        for part in parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Variable(variable) => self.escaped_value(out, variable, record),
            }
        }
    }

    /// Writes an escaped value for a template; `-` if it is empty.
    fn escaped_value(&self, out: &mut Vec<u8>, variable: &Variable, record: &LineRecord<'_>) {
        let mut value = self.value.borrow_mut();
        value.clear();
        self.value(&mut value, variable, record);
        if value.is_empty() { out.push(b'-') } else { escaped(out, &value) }
    }

    fn json(&self, out: &mut Vec<u8>, fields: &[LineField], record: &LineRecord<'_>) {
        let start = out.len();
        for field in fields {
            // Written in place; undone if the value is empty or has to be escaped.
            let before = out.len();
            out.extend_from_slice(&field.start);
            let is_text = matches!(field.kind, ValueKind::Text | ValueKind::Version);
            let from = out.len();
            self.value(out, &field.variable, record);
            if out.len() == from {
                out.truncate(before);
            } else if is_text {
                if field.kind == ValueKind::Version && out[from..].starts_with(b"HTTP/") {
                    out.drain(from..from + b"HTTP/".len());
                }
                if !field.is_plain && !is_plain_json(&out[from..]) {
                    let mut value = self.value.borrow_mut();
                    value.clear();
                    value.extend_from_slice(&out[from..]);
                    out.truncate(from);
                    json_escaped(out, &value);
                }
                out.push(b'"');
            } else if field.kind == ValueKind::Nanoseconds {
                out.truncate(from);
                write_decimal(out, record.duration_us.saturating_mul(1_000));
            }
        }
        match out.get_mut(start) {
            // Overwrites the comma before the first field.
            Some(first) => *first = b'{',
            None => out.push(b'{'),
        }
        out.push(b'}');
    }

    fn logfmt(&self, out: &mut Vec<u8>, fields: &[LineField], record: &LineRecord<'_>) {
        let start = out.len();
        let mut value = self.value.borrow_mut();
        for field in fields {
            value.clear();
            self.value(&mut value, &field.variable, record);
            if value.is_empty() {
                continue;
            }
            if out.len() > start {
                out.push(b' ');
            }
            out.extend_from_slice(&field.start);
            let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"=\\".contains(byte);
            if value.iter().all(is_plain) {
                out.extend_from_slice(&value)
            } else {
                out.push(b'"');
                json_escaped(out, &value);
                out.push(b'"');
            }
        }
    }

    /// Appends the value of a variable, unescaped, with secrets masked.
    fn value(&self, out: &mut Vec<u8>, variable: &Variable, record: &LineRecord<'_>) {
        match variable {
            Variable::Log(variable) => return self.log_value(out, *variable, record),
            // Known even if the bytes were no request.
            Variable::RemoteAddr => {
                return match record.client.address {
                    Peer::Tcp(address) => write_ip(out, address.ip().to_canonical()),
                    Peer::Unix => out.extend_from_slice(b"unix:"),
                };
            }
            // The port is 0 if a proxy reported the client's address without a port.
            Variable::ClientPort => {
                return match record.client.address {
                    Peer::Tcp(address) if address.port() != 0 => write_decimal(out, address.port().into()),
                    _ => {}
                };
            }
            Variable::Tls(variable) => {
                return record.tls.iter().for_each(|session| session.write(*variable, out));
            }
            Variable::Upstream => {
                return out
                    .extend_from_slice(record.notes.upstream.as_deref().unwrap_or_default().as_bytes());
            }
            _ => {}
        }
        let Some(request) = &record.request else { return };
        let start = out.len();
        variable.write(out, record.values.get_or_init(|| request_values(request)));
        if out.len() > start && self.masks.hides(variable) {
            out.truncate(start);
            out.extend_from_slice(MASKED);
        } else if matches!(variable, Variable::Uri | Variable::Path | Variable::Query | Variable::Args) {
            self.masks.mask(out, start, *variable != Variable::Args);
        } else if matches!(variable, Variable::Field(name) if name == "referer") {
            self.masks.mask(out, start, true);
        }
    }

    fn log_value(&self, out: &mut Vec<u8>, variable: LogVariable, record: &LineRecord<'_>) {
        let notes = record.notes;
        let start = out.len();
        let field =
            |name| record.request.as_ref().and_then(|request| request.field(name)).unwrap_or_default();
        match variable {
            LogVariable::Time => {
                self.with_timestamp(record.unix_s, |_, rfc| out.extend_from_slice(rfc.as_bytes()))
            }
            LogVariable::TimeLocal => {
                self.with_timestamp(record.unix_s, |local, _| out.extend_from_slice(local.as_bytes()));
            }
            LogVariable::ProxyAddr => {
                if record.client.trusted_dialect.is_some() {
                    let _ = write!(LineText(out), "{}", record.peer);
                }
            }
            LogVariable::Target => {
                if let Some(request) = &record.request {
                    out.extend_from_slice(&encode_beyond_ascii(request.sent_target()));
                    self.masks.mask(out, start, true);
                }
            }
            LogVariable::Version => {
                let text = record.request.as_ref().map_or("", |request| request.version().text());
                out.extend_from_slice(text.as_bytes());
            }
            LogVariable::Referer => {
                out.extend_from_slice(field(Name::Referer));
                self.masks.mask(out, start, true);
            }
            LogVariable::UserAgent => out.extend_from_slice(field(Name::UserAgent)),
            LogVariable::Status => write_decimal(out, record.status.code().into()),
            LogVariable::BodyBytes => write_decimal(out, record.body_bytes),
            LogVariable::RequestBytes => write_decimal(out, record.request_bytes),
            LogVariable::DurationMs => thousandths(out, record.duration_us),
            LogVariable::RequestTime => thousandths(out, record.duration_us / 1_000),
            LogVariable::FirstByteMs => thousandths(out, record.first_byte_us),
            LogVariable::QueueMs => notes.queue_us.iter().for_each(|us| thousandths(out, *us)),
            LogVariable::ConnectMs => notes.connect_us.iter().for_each(|us| thousandths(out, *us)),
            LogVariable::UpstreamMs => notes.upstream_us.iter().for_each(|us| thousandths(out, *us)),
            LogVariable::ServerCpuMs => notes.server_cpu_us().iter().for_each(|us| thousandths(out, *us)),
            LogVariable::Worker => {
                notes.worker.iter().for_each(|worker| write_decimal(out, (*worker).into()))
            }
            LogVariable::WorkerCpuMs => {
                notes.worker_cpu_us.iter().for_each(|us| thousandths(out, (*us).into()));
            }
            LogVariable::WorkerMemoryKib => {
                notes.worker_memory_kib.iter().for_each(|kib| _ = write!(LineText(out), "{kib}"));
            }
            LogVariable::Attempts if notes.attempts == 0 => {}
            LogVariable::Attempts => write_decimal(out, notes.attempts.into()),
            LogVariable::Branch => {
                out.extend_from_slice(notes.branch.as_deref().unwrap_or_default().as_bytes())
            }
            LogVariable::Cache => {
                out.extend_from_slice(notes.cache.map_or("", |outcome| outcome.text()).as_bytes());
            }
            LogVariable::Reason => out.extend_from_slice(notes.refusal.unwrap_or_default().as_bytes()),
            LogVariable::Fault => {
                if let Some(fault) = record.fault {
                    let _ = write!(LineText(out), "{fault}");
                }
            }
        }
    }

    /// Passes the time in the combined format and in RFC 3339 to `see`.
    fn with_timestamp(&self, unix_s: u64, see: impl FnOnce(&str, &str)) {
        let mut stamp = self.timestamp.borrow_mut();
        if stamp.0 != unix_s || stamp.1.is_empty() {
            *stamp = (unix_s, combined_time(unix_s), rfc3339(unix_s));
        }
        see(&stamp.1, &stamp.2);
    }
}

impl Drop for CoreAccessLog {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The values of a request's variables.
pub fn request_values<'x>(request: &Request<'x>) -> VariableValues<'x> {
    let HeadRef { head, bytes } = request.head();
    let client = request.client();
    let address = match client.address {
        Peer::Tcp(address) => Some(address),
        Peer::Unix => None,
    };
    VariableValues {
        head,
        bytes,
        empty_segments: request.empty_segments(),
        client: address,
        is_secure: client.is_secure,
        tls: request.tls().map(|session| session as &dyn TlsValues),
        ids: request.ids(),
        user: request.user().map_or(b"", |user| &user.name),
        prefix: b"",
        upstream: "",
        custom: request.custom_variables(),
    }
}

/// Writes an IP address; IPv4 without the overhead of `std::fmt`.
fn write_ip(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            write_decimal(out, first.into());
            for octet in rest {
                out.push(b'.');
                write_decimal(out, octet.into());
            }
        }
        IpAddr::V6(address) => _ = write!(LineText(out), "{address}"),
    }
}

/// Writes a number of thousandths with three decimals: `1500` is `1.500`.
fn thousandths(out: &mut Vec<u8>, number: u64) {
    write_decimal(out, number / 1_000);
    let rest = (number % 1_000) as u16;
    let digit = |of: u16| b'0' + (rest / of % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

/// Formats a Unix time in seconds as RFC 3339: `2026-11-21T09:00:00Z`.
pub fn rfc3339(unix_s: u64) -> String {
    utc(unix_s).format(&Rfc3339).expect("RFC 3339 writes every year up to 9999")
}

/// Formats a Unix time in the combined format: `21/Nov/2026:09:00:00 +0000`.
fn combined_time(unix_s: u64) -> String {
    let time = utc(unix_s);
    let (month, (hour, minute, second)) = (time.month().to_string(), time.to_hms());
    format!("{:02}/{:.3}/{:04}:{hour:02}:{minute:02}:{second:02} +0000", time.day(), month, time.year())
}

/// Converts a Unix time; times after the year 9999 become its last second.
fn utc(unix_s: u64) -> OffsetDateTime {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| OffsetDateTime::from_unix_timestamp(unix_s).ok());
    time.unwrap_or(PrimitiveDateTime::MAX.replace_nanosecond(0).expect("zero is valid").assume_utc())
}

#[cfg(test)]
mod tests;
