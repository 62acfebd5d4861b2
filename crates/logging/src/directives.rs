//! Directives of logs: their destinations, formats and conditions.

use crate::destination::{LogDestination, Sink};
use http::{Template, Variable};
use serde_json::json;
use settings::checker::{Checker, DefinedVariables, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{List, Maybe, OneOrMore, Shape, ShapeKind, Text, Time, Word};
use settings::spelling::nearest_name;
use shapes::header;
use shapes::share::SHARE;
use shapes::status::{StatusMatch, StatusShape};
use shapes::template::{TemplateShape, parse_template};
use std::time::Duration;

/// The format of the access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLog {
    /// None.
    Off,
    /// The format that Apache and nginx call combined.
    Combined,
    /// One JSON object a line.
    Json,
    /// `key=value` pairs.
    Logfmt,
    /// One JSON object a line with the names of the Elastic Common Schema.
    Ecs,
    /// Custom format.
    Template(Template),
    /// Line for people, shown by `komainu run` on a terminal. It cannot be configured.
    Console {
        /// With the colours of a terminal.
        color: bool,
    },
}

/// Severity threshold of the error log: this level and those above it are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Failures.
    Error,
    /// Failures that may happen soon.
    Warn,
    /// Start, reload and stop of the server.
    Info,
    /// Details that help to find a mistake.
    Debug,
}

/// Field of a log: its name, and the variable that is its value.
pub type LogField = (String, Variable);

const FIELDS: List<Text<LogField>> = List(Text { what: "a variable such as \"status\"", parse: parse_field });
const PARAMETERS: List<Text<String>> = List(Text { what: "a parameter's name", parse: parse_parameter });
const HEADERS: List<Text<String>> = List(Text { what: "a header name", parse: header::parse_name });

const CONDITION_TIME: Time = Time { min: Duration::ZERO, max: Duration::from_secs(86_400) };
directives! {
    /// Requests that are logged in the access log: those that meet one of these conditions. Without
    /// conditions, all requests are logged.
    ///
    /// ```toml
    /// [log]
    /// access = "json"
    /// only = { status = ["5xx"], slower_than = "500ms", sample = "1%" }
    /// ```
    LogCondition in "`only` in `[log]`" {
        /// Requests with one of these statuses: 200 to 599, or a class such as `"5xx"`.
        "status" status: Vec<StatusMatch> = absent("none"), OneOrMore(StatusShape);
        /// Requests that took longer.
        "slower_than" slower_than: Option<Duration> = absent("none"), Maybe(CONDITION_TIME);
        /// Share of all requests, evenly spread: `"0.1%"` is each thousandth.
        "sample" sample: Option<u32> = absent("none"), Maybe(SHARE);
    }
}

impl LogCondition {
    /// Whether it admits every request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.status.is_empty() && self.slower_than.is_none() && self.sample.is_none()
    }
}

directives! {
    /// Logs. On SIGUSR1 the server opens the files again, after logrotate has moved them; requests answered before the
    /// signal are logged in the old files. The access log is written within a tenth of a second. If nobody reads a
    /// FIFO, lines for it are dropped and counted on stderr; requests do not wait. `[[logs]]` and `[[site.logs]]` are further access
    /// logs.
    ///
    /// ```toml
    /// [log]
    /// access = "json"
    /// file = "/var/log/komainu/access.log"
    /// mask_query = ["token", "password"]
    /// ```
    Log in "`[log]`" {
        /// The access log: `"off"`, `"combined"` (the format of Apache and nginx), `"json"` (one object a line),
        /// `"logfmt"`, `"ecs"` (JSON with the names of the Elastic Common Schema), or a text with variables, such as
        /// `"$remote_addr $status $duration_ms \"$method $uri\" $request_id"`. These are the variables of
        /// `response_headers`, and:
        ///
        /// | Variable | Value |
        /// |---|---|
        /// | `$time`, `$time_local` | end of the request, as RFC 3339 or `"combined"` writes it |
        /// | `$proxy_addr` | the trusted proxy that sent the request |
        /// | `$target` | the request target as sent |
        /// | `$version` | `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0` or `HTTP/3.0` |
        /// | `$referer`, `$user_agent` | these fields of the request |
        /// | `$status` | status of the response; 499 if the client closed the connection before it |
        /// | `$body_bytes`, `$request_bytes` | bytes of the response's content that the client's connection has taken, and of the request's that were read; of a WebSocket, all bytes after the handshake |
        /// | `$duration_ms`, `$request_time` | from the complete request head to the end of the response, in ms or s |
        /// | `$first_byte_ms` | from the complete request head to the head of the response |
        /// | `$queue_ms` | time in the queue for an upstream server or an application worker |
        /// | `$connect_ms`, `$upstream_ms` | time to connect to upstream servers, and until the head of their response |
        /// | `$upstream`, `$attempts` | the upstream server, and the number of attempts to reach one |
        /// | `$server_cpu_ms`, `$worker_cpu_ms` | CPU time of this server, and of the worker, for the request |
        /// | `$worker`, `$worker_memory_kib` | number of the worker, and change of its resident memory |
        /// | `$branch`, `$cache` | branch of a `split`; result of the cache lookup |
        /// | `$reason` | why this server generated an error response itself |
        /// | `$fault` | why the request or its response ended early |
        ///
        /// A missing value is `-`. Quotes, backslashes, control characters and bytes beyond ASCII in values are
        /// written as `\xHH`.
        "access" access: AccessLog = "off", AccessFormat;
        /// The fields of `"json"` and `"logfmt"`: names of the variables of `access` other than maps, without `$`.
        /// Fields without a value are left out, such as `"tls_cipher"` and `"tls_resumed"` without TLS.
        "fields" fields: Vec<LogField> = ["time", "remote_addr", "remote_user", "proxy_addr", "method", "host", "target", "version", "referer", "user_agent", "status", "body_bytes", "request_bytes", "duration_ms", "first_byte_ms", "queue_ms", "connect_ms", "upstream", "upstream_ms", "attempts", "cache", "request_id", "trace_id", "reason", "fault", "tls_resumed"], FIELDS;
        /// Parameters of queries, and of paths (`;name=value`), whose values are logged as `***`, in any case, in every
        /// variable that holds a query or a path.
        "mask_query" mask_query: Vec<String> = [], PARAMETERS;
        /// Fields of requests of which `$http_NAME` is logged as `***`; with `cookie` so are `$cookie_NAME`.
        "mask_headers" mask_headers: Vec<String> = ["authorization", "proxy-authorization", "cookie"], HEADERS;
        /// Requests that are logged.
        "only" only: LogCondition = {}, table();
        /// The destination of the access log.
        "file" file: Sink = "stdout", LogDestination;
        /// The destination of the error log.
        "errors" errors: Sink = "stderr", LogDestination;
        /// Minimum severity: messages of this level and of the levels before it are logged, in the order
        /// `"error"`, `"warn"`, `"info"`, `"debug"`.
        "level" level: Level = "info",
            Word(&[("error", Level::Error), ("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)]);
    }
}

directives! {
    /// A further access log: of all requests, or of those of a site (`[[site.logs]]`). Several may write to one destination.
    ///
    /// ```toml
    /// [[logs]]
    /// access = "json"
    /// file = { syslog = "udp://127.0.0.1:514" }
    /// only = { status = ["5xx"], slower_than = "1s" }
    ///
    /// [[site]]
    /// hosts = ["example.com"]
    ///
    /// [[site.logs]]
    /// access = "combined"
    /// file = "/var/log/komainu/example.com.log"
    /// ```
    RequestLog in "`[[logs]]`" {
        /// Format of the access log, as in `[log]`.
        "access" access: AccessLog = "json", AccessFormat;
        /// The fields of `"json"` and `"logfmt"`, as in `[log]`.
        "fields" fields: Vec<LogField> = ["time", "remote_addr", "remote_user", "proxy_addr", "method", "host", "target", "version", "referer", "user_agent", "status", "body_bytes", "request_bytes", "duration_ms", "first_byte_ms", "queue_ms", "connect_ms", "upstream", "upstream_ms", "attempts", "cache", "request_id", "trace_id", "reason", "fault", "tls_resumed"], FIELDS;
        /// Query parameters whose values are logged as `***`, besides those in `[log]`.
        "mask_query" mask_query: Vec<String> = [], PARAMETERS;
        /// Request fields of which `$http_NAME` is logged as `***`, besides those in `[log]`.
        "mask_headers" mask_headers: Vec<String> = [], HEADERS;
        /// Requests that are logged.
        "only" only: LogCondition = {}, table();
        /// Destination of the access log.
        "file" file: Sink = "stdout", LogDestination;
    }
}

/// The access logs of a configuration, without those that are off. All of them mask what `[log]` masks.
#[derive(Debug, Clone, Default)]
pub struct RequestLogs {
    /// Logs of the requests of all sites.
    pub all: Vec<RequestLog>,
    /// Further logs of each site's requests, indexed by site.
    pub sites: Vec<Vec<RequestLog>>,
}

impl RequestLogs {
    /// Collects the access logs of `[log]`, `[[logs]]` and each site.
    pub fn new<'l>(
        log: &Log,
        logs: &'l [RequestLog],
        sites: impl Iterator<Item = &'l [RequestLog]>,
    ) -> RequestLogs {
        let Log { access, fields, only, file, .. } = log.clone();
        let own = RequestLog { access, fields, only, file, mask_query: Vec::new(), mask_headers: Vec::new() };
        let masked = |mut request_log: RequestLog| {
            request_log.mask_query.extend(log.mask_query.iter().cloned());
            request_log.mask_headers.extend(log.mask_headers.iter().cloned());
            request_log
        };
        let collect = |logs: &[RequestLog]| -> Vec<RequestLog> {
            logs.iter().filter(|log| log.access != AccessLog::Off).cloned().map(masked).collect()
        };
        let all = [std::slice::from_ref(&own), logs].concat();
        RequestLogs { all: collect(&all), sites: sites.map(collect).collect() }
    }

    /// Iterates over the logs of all requests, and then those of each site.
    pub fn iter(&self) -> impl Iterator<Item = &RequestLog> {
        self.all.iter().chain(self.sites.iter().flatten())
    }
}

/// Variables of logs: all but `$rest`, which only a route's path has.
fn log_variables() -> Vec<&'static str> {
    Variable::names().filter(|name| *name != "rest").collect()
}

fn parse_field(text: &str) -> Result<LogField, InvalidValue> {
    let names = log_variables();
    let known = Variable::named(text).filter(|variable| names.contains(&variable.canonical_name()));
    known.map(|variable| (text.to_owned(), variable)).ok_or_else(|| {
        let label = match nearest_name(text, names.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "there is no such variable".to_owned(),
        };
        InvalidValue::new(label, "write a variable without its `$`: \"status\", \"http_accept\"")
    })
}

fn parse_parameter(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || text.contains(['=', '&', '?', '%', '#']) {
        Err(InvalidValue::new("this is not a parameter's name", "write it decoded, such as \"token\""))
    } else {
        Ok(text.to_owned())
    }
}

/// A word, or a text with variables.
struct AccessFormat;

impl AccessFormat {
    const WORDS: Word<fn() -> AccessLog> = Word(&[
        ("off", || AccessLog::Off),
        ("combined", || AccessLog::Combined),
        ("json", || AccessLog::Json),
        ("logfmt", || AccessLog::Logfmt),
        ("ecs", || AccessLog::Ecs),
    ]);
}

impl Shape for AccessFormat {
    type Out = AccessLog;

    fn kind(&self) -> ShapeKind {
        let text =
            format!("{}, or a text with variables", AccessFormat::WORDS.kind().text.replace(" or ", ", "));
        ShapeKind::new(
            text,
            json!({ "anyOf": [AccessFormat::WORDS.kind().schema, { "type": "string", "pattern": "\\$" }] }),
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<AccessLog> {
        match &node.data {
            NodeData::Text(text) if text.contains('$') => {
                let parse: fn(&str, &DefinedVariables) -> _ =
                    |text, own| parse_template(text, &log_variables(), own);
                let shape = TemplateShape { what: "a text with variables", parse };
                shape.read(node, check).map(AccessLog::Template)
            }
            _ => AccessFormat::WORDS.read(node, check).map(|format| format()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::LogVariable;
    use std::path::Path;

    fn read(text: &str) -> (Option<Log>, String) {
        let mut check = Checker::new(text, "test", Path::new(""));
        let log = table::<Log>().read(&Node::parse_document(text).unwrap(), &mut check);
        (log, check.report.to_string())
    }

    #[test]
    fn log_formats_and_fields_are_parsed() {
        for (text, want) in [("off", AccessLog::Off), ("logfmt", AccessLog::Logfmt), ("ecs", AccessLog::Ecs)]
        {
            assert_eq!(read(&format!("access = \"{text}\"")).0.unwrap().access, want);
        }
        let (log, _) =
            read("access = \"$status $http_x_a $request_id\"\nfields = [\"status\", \"http_x_a\"]");
        let log = log.unwrap();
        assert!(matches!(log.access, AccessLog::Template(_)));
        assert_eq!(log.fields[0], ("status".to_owned(), Variable::Log(LogVariable::Status)));
        assert_eq!(log.fields[1].1, Variable::Field("x-a".into()));
        assert_eq!(Log::default().fields.len(), 26);
        assert_eq!(RequestLog::default().fields, Log::default().fields);
    }

    #[test]
    fn invalid_log_settings_have_a_remedy() {
        for (text, part) in [
            ("access = \"jsn\"", "json"),
            ("access = \"$stats\"", "$status"),
            ("access = \"$rest\"", "variables here"),
            ("fields = [\"stats\"]", "status"),
            ("mask_query = [\"a=b\"]", "decoded"),
            ("mask_headers = [\"a b\"]", "header"),
        ] {
            let (_, said) = read(text);
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
