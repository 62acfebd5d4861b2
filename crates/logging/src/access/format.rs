//! Formats of access log lines, with the literal text before each field.

use http::{LogVariable, TemplatePart, Variable, VariableKind};

use super::escape::json_escaped;
use crate::directives::{AccessLog, LogField, RequestLog};

/// Format of a line.
pub(super) enum LineFormat {
    Combined,
    Json(Vec<LineField>),
    Logfmt(Vec<LineField>),
    Template(Vec<TemplatePart>),
    Console { color: bool },
}

/// A field of a line.
pub(super) struct LineField {
    /// Text before the value: `"status":`, `"method":"` or `status=`.
    pub(super) start: Box<[u8]>,
    pub(super) variable: Variable,
    pub(super) kind: ValueKind,
    /// Whether no value of the variable needs escaping in a JSON string.
    pub(super) is_plain: bool,
}

/// Encoding of a value in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Text, with quotes in JSON.
    Text,
    /// A number, `true` or `false`: without quotes in JSON.
    Bare,
    /// Milliseconds, written as whole nanoseconds.
    Nanoseconds,
    /// `HTTP/1.1` without the name of the protocol.
    Version,
}

/// The fields of the Elastic Common Schema 8.11.
const ECS: [(&str, Variable); 17] = [
    ("@timestamp", Variable::Log(LogVariable::Time)),
    ("client.ip", Variable::RemoteAddr),
    ("client.port", Variable::ClientPort),
    ("user.name", Variable::RemoteUser),
    ("http.request.method", Variable::Method),
    ("url.original", Variable::Log(LogVariable::Target)),
    ("url.domain", Variable::Host),
    ("http.version", Variable::Log(LogVariable::Version)),
    ("http.request.body.bytes", Variable::Log(LogVariable::RequestBytes)),
    ("http.response.status_code", Variable::Log(LogVariable::Status)),
    ("http.response.body.bytes", Variable::Log(LogVariable::BodyBytes)),
    ("event.duration", Variable::Log(LogVariable::DurationMs)),
    ("http.request.id", Variable::RequestId),
    ("trace.id", Variable::TraceId),
    ("span.id", Variable::SpanId),
    ("error.message", Variable::Log(LogVariable::Reason)),
    ("user_agent.original", Variable::Log(LogVariable::UserAgent)),
];
/// Members that begin each ECS line.
const ECS_START: &[u8] = b"{\"ecs.version\":\"8.11.0\",\"event.dataset\":\"komainu.access\"";

impl LineFormat {
    pub(super) fn new(log: &RequestLog) -> LineFormat {
        match &log.access {
            AccessLog::Off | AccessLog::Combined => LineFormat::Combined,
            AccessLog::Json => LineFormat::Json(log.fields.iter().map(LineField::json).collect()),
            AccessLog::Ecs => {
                let field = |(key, variable): (&str, Variable)| LineField::json(&(key.to_owned(), variable));
                let mut fields: Vec<LineField> = ECS.into_iter().map(field).collect();
                for field in &mut fields {
                    match field.variable {
                        Variable::Log(LogVariable::DurationMs) => field.kind = ValueKind::Nanoseconds,
                        Variable::Log(LogVariable::Version) => field.kind = ValueKind::Version,
                        _ => {}
                    }
                }
                if let Some(first) = fields.first_mut() {
                    first.start = [ECS_START, b",\"@timestamp\":\""].concat().into();
                }
                LineFormat::Json(fields)
            }
            AccessLog::Logfmt => LineFormat::Logfmt(log.fields.iter().map(LineField::logfmt).collect()),
            AccessLog::Template(template) => LineFormat::Template(template.parts().to_vec()),
            AccessLog::Console { color } => LineFormat::Console { color: *color },
        }
    }
}

impl LineField {
    fn new(start: String, variable: &Variable) -> LineField {
        let kind = match variable.kind() {
            VariableKind::Text => ValueKind::Text,
            VariableKind::Number | VariableKind::Boolean => ValueKind::Bare,
        };
        let is_plain = matches!(
            variable,
            Variable::Method
                | Variable::RemoteAddr
                | Variable::Log(
                    LogVariable::Time | LogVariable::TimeLocal | LogVariable::Version | LogVariable::Cache
                )
        );
        LineField { start: start.into_bytes().into(), variable: variable.clone(), kind, is_plain }
    }

    fn json((key, variable): &LogField) -> LineField {
        let mut start = String::from(",\"");
        let mut bytes = Vec::new();
        json_escaped(&mut bytes, key.as_bytes());
        start.push_str(&String::from_utf8_lossy(&bytes));
        start.push_str("\":");
        let mut field = LineField::new(start, variable);
        if field.kind == ValueKind::Text {
            field.start = [&field.start, &b"\""[..]].concat().into();
        }
        field
    }

    fn logfmt((key, variable): &LogField) -> LineField {
        LineField::new(format!("{key}="), variable)
    }
}
