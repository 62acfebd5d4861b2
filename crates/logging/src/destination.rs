//! Destinations of log lines.

use otlp::OtlpLogs;
use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{PathShape, Shape, ShapeKind, Text, Word};
use std::path::{Path, PathBuf};

/// Destination of log lines.
#[derive(Debug, Clone, PartialEq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// File, opened for appending.
    File(PathBuf),
    /// A syslog server.
    Syslog(Syslog),
    /// systemd's journal.
    Journal(Journal),
    /// A collector of OpenTelemetry.
    Otlp(OtlpLogs),
}

/// The address of a syslog server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SyslogAddress {
    /// No address; used only by `Default`.
    #[default]
    None,
    /// A Unix socket, of datagrams or of a stream.
    Unix(PathBuf),
    /// `HOST:PORT`, by datagrams (RFC 5426).
    Udp(String),
    /// `HOST:PORT`, by a connection, with octet counting (RFC 6587).
    Tcp(String),
}

/// The socket of this machine's syslog server.
const LOCAL_SOCKET: &str = "/dev/log";
/// Ports of syslog: RFC 5426 for UDP, RFC 6587 for connections.
const UDP_PORT: u16 = 514;
const TCP_PORT: u16 = 601;

directives! {
    /// A syslog server, which gets each line as a message by RFC 5424. `"syslog"` alone is the syslog server
    /// of this machine.
    ///
    /// ```toml
    /// [[logs]]
    /// access = "json"
    /// file = { syslog = "tcp://logs.example.com:601", facility = "local7" }
    /// ```
    ///
    /// While the server cannot be reached, lines are buffered (8 MiB), and stderr reports it; lines for UDP
    /// are lost. A line longer than 8 KiB is truncated.
    Syslog in "a log's destination (syslog)" {
        /// Address: `"unix:/dev/log"` (datagrams or a stream), `"udp://HOST:514"`, or `"tcp://HOST:601"`
        /// (octet counting).
        "syslog" to: SyslogAddress = required(""), SyslogAddressShape;
        /// The facility of the messages.
        "facility" facility: u8 = "daemon", FACILITY;
        /// Their `APP-NAME`.
        "tag" tag: String = "komainu", TAG;
    }
}

directives! {
    /// systemd's journal, which gets each line as an entry, with its priority, `SYSLOG_IDENTIFIER` and `KOMAINU_LOG` (`access` or `error`).
    /// `"journald"` alone as the destination is the one of the system.
    ///
    /// ```toml
    /// [log]
    /// errors = "journald"
    /// ```
    ///
    /// A line longer than 48 KiB is cut.
    Journal in "a log's destination (journald)" {
        /// Socket of the journal. A namespace has `/run/systemd/journal.NAME/socket`.
        "journald" socket: PathBuf = "/run/systemd/journal/socket", PathShape("a socket");
        /// The `SYSLOG_IDENTIFIER` of the entries.
        "tag" tag: String = "komainu", TAG;
    }
}

/// Facilities by name (RFC 5424 section 6.2.1).
const FACILITY: Word<u8> = Word(&[
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
]);
const TAG: Text<String> = Text { what: "a name", parse: parse_tag };

/// At most 48 printable characters of ASCII without spaces (RFC 5424 section 6).
fn parse_tag(text: &str) -> Result<String, InvalidValue> {
    if (1..=48).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a tag", "write at most 48 characters of ASCII, without spaces"))
    }
}

/// `unix:PATH`, `udp://HOST:PORT` or `tcp://HOST:PORT`.
struct SyslogAddressShape;

impl Shape for SyslogAddressShape {
    type Out = SyslogAddress;

    fn kind(&self) -> ShapeKind {
        let text = "\"unix:PATH\", \"udp://HOST:PORT\" or \"tcp://HOST:PORT\"";
        ShapeKind::new(text, json!({ "type": "string", "pattern": "^(unix:|udp://|tcp://)." }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<SyslogAddress> {
        let shape = Text { what: "an address such as \"udp://127.0.0.1:514\"", parse: parse_syslog_address };
        match shape.read(node, check)? {
            SyslogAddress::Unix(path) => {
                Some(SyslogAddress::Unix(check.resolve_path(&path.to_string_lossy())))
            }
            address => Some(address),
        }
    }
}

fn parse_syslog_address(text: &str) -> Result<SyslogAddress, InvalidValue> {
    let invalid = || {
        InvalidValue::new(
            "this is not an address of a syslog server",
            "write \"unix:/dev/log\", \"udp://HOST:514\" or \"tcp://HOST:601\"",
        )
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() || path.contains('\0') {
            Err(invalid())
        } else {
            Ok(SyslogAddress::Unix(path.into()))
        };
    }
    let of = |rest: &str, usual: u16| {
        let is_address = |host: &str| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let is_bare = rest.ends_with(']') || !rest.contains(':');
        let (host, port) = match rest.rsplit_once(':').filter(|_| !is_bare) {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        };
        let port = port.map_or(Some(usual), |port| port.parse().ok().filter(|port| *port > 0));
        let is_plain = is_address(host) && !host.contains(['/', '@']);
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        port.filter(|_| is_plain && (is_v6 || !host.contains(':'))).map(|port| format!("{host}:{port}"))
    };
    let address = match text.split_once("://") {
        Some(("udp", rest)) => of(rest, UDP_PORT).map(SyslogAddress::Udp),
        Some(("tcp", rest)) => of(rest, TCP_PORT).map(SyslogAddress::Tcp),
        _ => None,
    };
    address.ok_or_else(invalid)
}

/// Recognizes notations of other servers for log destinations.
fn foreign_notation(text: &str) -> Option<InvalidValue> {
    let fault = |message: &str, remedy: String| Some(InvalidValue::new(message, remedy));
    if let Some(options) = text.strip_prefix("syslog:") {
        let server = options.split(',').find_map(|option| option.strip_prefix("server="));
        let address = match server {
            Some(path) if path.starts_with("unix:") => path.to_owned(),
            Some(address) => format!("udp://{address}"),
            None => "udp://127.0.0.1:514".to_owned(),
        };
        return fault("nginx writes it so", format!("write `{{ syslog = \"{address}\" }}`"));
    }
    match text {
        "off" | "none" | "false" => fault(
            "this would be the name of a file",
            "`access = \"off\"` turns an access log off; errors are always logged, those of `level`"
                .to_owned(),
        ),
        _ => None,
    }
}

/// "stdout", "stderr", "syslog", "journald", a file, or a table.
pub(crate) struct LogDestination;

impl Shape for LogDestination {
    type Out = Sink;

    fn kind(&self) -> ShapeKind {
        let syslog = table::<Syslog>().kind();
        let journal = table::<Journal>().kind();
        let otlp = table::<OtlpLogs>().kind();
        let text = "\"stdout\", \"stderr\", \"syslog\", \"journald\", a file, or a table with `syslog`, `journald` or `otlp`";
        let schema = json!({ "anyOf": [{ "type": "string", "minLength": 1 }, syslog.schema, journal.schema, otlp.schema] });
        let chapters = [syslog.chapters, journal.chapters, otlp.chapters].concat();
        ShapeKind { chapters, ..ShapeKind::new(text, schema) }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Sink> {
        match &node.data {
            NodeData::Text(text) => match text.as_str() {
                "stdout" => Some(Sink::Stdout),
                "stderr" => Some(Sink::Stderr),
                "syslog" => {
                    let to = SyslogAddress::Unix(Path::new(LOCAL_SOCKET).into());
                    Some(Sink::Syslog(Syslog { to, ..Syslog::default() }))
                }
                "journald" => Some(Sink::Journal(Journal::default())),
                _ if foreign_notation(text).is_some() => {
                    foreign_notation(text)
                        .into_iter()
                        .for_each(|fault| check.report_fault(&node.span, text, fault));
                    None
                }
                _ => PathShape("\"stdout\", \"stderr\", \"syslog\", \"journald\" or a file")
                    .read(node, check)
                    .map(Sink::File),
            },
            NodeData::Table(_) if node.entry("journald").is_some() => {
                table::<Journal>().read(node, check).map(Sink::Journal)
            }
            NodeData::Table(_) if node.entry("otlp").is_some() => {
                table::<OtlpLogs>().read(node, check).map(Sink::Otlp)
            }
            NodeData::Table(_) => table::<Syslog>().read(node, check).map(Sink::Syslog),
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> (Option<Sink>, String) {
        let text = format!("file = {value}");
        let mut check = Checker::new(&text, "test", Path::new("/etc"));
        let node = Node::parse_document(&text).unwrap();
        let sink = LogDestination.read(&node.entry("file").unwrap().value, &mut check);
        (sink, check.report.to_string())
    }

    #[test]
    fn log_destinations_are_parsed() {
        let syslog = |to| Sink::Syslog(Syslog { to, ..Syslog::default() });
        for (value, want) in [
            ("\"stdout\"", Sink::Stdout),
            ("\"a.log\"", Sink::File("/etc/a.log".into())),
            ("\"syslog\"", syslog(SyslogAddress::Unix("/dev/log".into()))),
            ("{ syslog = \"unix:run/log\" }", syslog(SyslogAddress::Unix("/etc/run/log".into()))),
            ("{ syslog = \"udp://logs.test\" }", syslog(SyslogAddress::Udp("logs.test:514".into()))),
            ("{ syslog = \"tcp://[::1]\" }", syslog(SyslogAddress::Tcp("[::1]:601".into()))),
            ("{ syslog = \"tcp://10.0.0.1:99\" }", syslog(SyslogAddress::Tcp("10.0.0.1:99".into()))),
            ("\"journald\"", Sink::Journal(Journal::default())),
            (
                "{ otlp = \"https://logs.test/otlp/\", service = \"shop\" }",
                Sink::Otlp(OtlpLogs {
                    to: "https://logs.test/otlp".into(),
                    service: "shop".into(),
                    ..OtlpLogs::default()
                }),
            ),
        ] {
            assert_eq!(read(value).0, Some(want), "{value}");
        }
        let local = read("{ syslog = \"syslog://a\" }");
        assert!(local.1.contains("udp://HOST:514"), "{}", local.1);
        let Some(Sink::Syslog(full)) =
            read("{ syslog = \"udp://a:5\", facility = \"local7\", tag = \"shop\" }").0
        else {
            panic!("a syslog server")
        };
        assert_eq!((full.facility, full.tag.as_str()), (23, "shop"));
    }

    #[test]
    fn invalid_log_destinations_have_a_remedy() {
        for (value, part) in [
            ("{ syslog = \"udp://\" }", "udp://HOST:514"),
            ("{ syslog = \"udp://a:0\" }", "udp://HOST:514"),
            ("{ syslog = \"tcp://::1:5\" }", "tcp://HOST:601"),
            ("{ syslog = \"udp://a\", facility = \"local8\" }", "local7"),
            ("{ syslog = \"udp://a\", tag = \"a b\" }", "without spaces"),
            ("{ facility = \"local7\" }", "`syslog`"),
            ("{ otlp = \"collector:4318\" }", "http://127.0.0.1:4318"),
            ("{ otlp = \"http://a\", headers = { Host = \"a\" } }", "sets this field itself"),
            ("1", "a file"),
        ] {
            let (_, said) = read(value);
            assert!(said.contains(part), "{value}: {said}");
        }
    }
}
