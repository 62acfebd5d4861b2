//! Requests as log records for a collector: the line is the body; attributes are named by OpenTelemetry's
//! semantic conventions for HTTP.

use http::encode::write_decimal;
use http::{LogVariable, Variable, VariableKind};

use super::stream::{RelayedConnection, write_client};
use super::{CoreAccessLog, LineFormat, LineRecord, json_escaped, thousandths};
use crate::directives::Level;
use crate::otlp_record::{now_ns, severity};

/// Attributes and their variables. Empty ones are left out.
const ATTRIBUTES: [(&str, Variable); 18] = [
    ("http.request.method", Variable::Method),
    ("http.response.status_code", Variable::Log(LogVariable::Status)),
    ("http.request.body.size", Variable::Log(LogVariable::RequestBytes)),
    ("http.response.body.size", Variable::Log(LogVariable::BodyBytes)),
    ("url.path", Variable::Path),
    ("url.query", Variable::Args),
    ("url.scheme", Variable::Scheme),
    ("server.address", Variable::Host),
    ("client.address", Variable::RemoteAddr),
    ("client.port", Variable::ClientPort),
    ("user.name", Variable::RemoteUser),
    ("network.protocol.version", Variable::Log(LogVariable::Version)),
    ("user_agent.original", Variable::Log(LogVariable::UserAgent)),
    ("komainu.reason", Variable::Log(LogVariable::Reason)),
    ("komainu.request_id", Variable::RequestId),
    ("komainu.upstream", Variable::Upstream),
    ("komainu.cache", Variable::Log(LogVariable::Cache)),
    ("komainu.fault", Variable::Log(LogVariable::Fault)),
];

impl CoreAccessLog {
    /// Adds the line of a request in the log's format.
    pub(super) fn line(&self, out: &mut Vec<u8>, record: &LineRecord<'_>) {
        match &self.format {
            LineFormat::Combined => self.combined(out, record),
            LineFormat::Json(fields) => self.json(out, fields, record),
            LineFormat::Logfmt(fields) => self.logfmt(out, fields, record),
            LineFormat::Template(parts) => self.template(out, parts, record),
            LineFormat::Console { color } => self.console(out, *color, record),
        }
    }

    /// Adds the record of a request; `line` becomes its body.
    pub(super) fn record(&self, out: &mut Vec<u8>, line: &[u8], record: &LineRecord<'_>) {
        begin_record(out, record.status.code(), line);
        out.extend_from_slice(b",{\"key\":\"http.server.request.duration\",\"value\":{\"doubleValue\":");
        thousandths(out, record.duration_us / 1_000);
        out.extend_from_slice(b"}}");
        for (name, variable) in &ATTRIBUTES {
            self.attribute(out, name, variable, record);
        }
        out.push(b']');
        if let Some(trace) = record.request.as_ref().and_then(|request| request.ids().trace) {
            out.extend_from_slice(b",\"traceId\":\"");
            trace.write_trace(out);
            out.extend_from_slice(b"\",\"spanId\":\"");
            trace.write_span(out);
            out.extend_from_slice(if trace.is_sampled { b"\",\"flags\":1" } else { b"\",\"flags\":0" });
        }
        out.push(b'}');
    }

    fn attribute(&self, out: &mut Vec<u8>, name: &str, variable: &Variable, record: &LineRecord<'_>) {
        let mut value = self.value.borrow_mut();
        value.clear();
        self.value(&mut value, variable, record);
        // The convention names the version without the protocol.
        let value = match variable {
            Variable::Log(LogVariable::Version) => value.strip_prefix(b"HTTP/").unwrap_or(&value),
            _ => &value,
        };
        if value.is_empty() {
            return;
        }
        let kind = if variable.kind() == VariableKind::Number { "intValue" } else { "stringValue" };
        write_attribute(out, name, kind, value);
    }

    /// Adds the record of a relayed connection; `line` becomes its body.
    pub(super) fn stream_record(&self, out: &mut Vec<u8>, line: &[u8], record: &RelayedConnection<'_>) {
        begin_record(out, record.end.status(), line);
        let mut address = Vec::new();
        write_client(&mut address, record.client);
        for (name, value) in [
            ("client.address", address.as_slice()),
            ("server.address", record.server_name.as_bytes()),
            ("komainu.stream", record.stream.as_bytes()),
            ("komainu.upstream", record.upstream.as_bytes()),
        ] {
            if !value.is_empty() {
                write_attribute(out, name, "stringValue", value);
            }
        }
        out.extend_from_slice(b"]}");
    }
}

/// Begins a record with its time, severity and body, and its first attribute.
fn begin_record(out: &mut Vec<u8>, status: u16, line: &[u8]) {
    let level = if status >= 500 { Level::Error } else { Level::Info };
    let ((number, name), now) = (severity(level), now_ns());
    out.extend_from_slice(b"{\"timeUnixNano\":\"");
    write_decimal(out, now);
    out.extend_from_slice(b"\",\"observedTimeUnixNano\":\"");
    write_decimal(out, now);
    out.extend_from_slice(b"\",\"severityNumber\":");
    write_decimal(out, number.into());
    out.extend_from_slice(b",\"severityText\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"body\":{\"stringValue\":\"");
    json_escaped(out, line);
    out.extend_from_slice(
        b"\"},\"attributes\":[{\"key\":\"komainu.log\",\"value\":{\"stringValue\":\"access\"}}",
    );
}

/// Adds one more attribute; `kind` names the encoding of its value.
fn write_attribute(out: &mut Vec<u8>, name: &str, kind: &str, value: &[u8]) {
    out.extend_from_slice(b",{\"key\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"value\":{\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\":\"");
    json_escaped(out, value);
    out.extend_from_slice(b"\"}}");
}
