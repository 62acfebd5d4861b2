//! Lines of relayed connections, and of sessions over UDP: one for each, when it ends.

use http::encode::write_decimal;
use net::{Peer, RelaySide};

use super::escape::{escaped, json_escaped};
use super::{AccessLogs, CoreAccessLog, LineFormat, thousandths, write_ip};
use crate::sink::LineForm;

/// Log data of a stream connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayedConnection<'x> {
    /// The stream's name; empty if no stream accepted the connection.
    pub stream: &'x str,
    /// The address of the client.
    pub client: Peer,
    /// The TLS server name (SNI); empty if the client sent none.
    pub server_name: &'x str,
    /// The upstream server's address; empty if none was tried.
    pub upstream: &'x str,
    /// Bytes relayed from the client to the server.
    pub received_bytes: u64,
    /// Bytes relayed from the server to the client.
    pub sent_bytes: u64,
    /// Datagrams that were relayed; `None` for a connection.
    pub datagrams: Option<RelayedDatagrams>,
    /// Microseconds to connect to the server.
    pub connect_us: Option<u64>,
    /// Microseconds from accept to close.
    pub duration_us: u64,
    /// Why the connection ended.
    pub end: StreamEnd,
    /// End of the connection, in seconds since 1970.
    pub unix_s: u64,
}

/// Datagrams of a session over UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayedDatagrams {
    /// From the client to the server.
    pub received: u64,
    /// From the server to the client.
    pub sent: u64,
}

/// Reason for the end of a stream connection, or of a session over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Both sides have closed; the given one first.
    Closed(RelaySide),
    /// The given side reset the connection.
    Reset(RelaySide),
    /// Idle timeout.
    Idle,
    /// The server stops, or the configuration's generation was closed.
    Stopped,
    /// Rejected by `allow` or `deny`.
    Denied,
    /// Rejected by `connections` or `connections_per_client`.
    TooMany,
    /// Connection that no stream accepts.
    Unmatched,
    /// The client's first message was not received, for this reason.
    Failed(&'static str),
    /// Failure to connect to an upstream server, for this reason.
    Unreachable(&'static str),
    /// The client closed the connection before an upstream server was connected.
    ClientClosed,
    /// The upstream server has sent as many datagrams as it is to.
    Answered,
    /// The session was ended in favour of another client's, because there were too many.
    GivenUp,
    /// The configuration has no such server or stream any more.
    Replaced,
}

impl StreamEnd {
    /// Labels of the metrics.
    pub const KINDS: [&'static str; 14] = [
        "client_closed",
        "upstream_closed",
        "client_reset",
        "upstream_reset",
        "idle",
        "stopped",
        "denied",
        "limit",
        "no_stream",
        "bad_start",
        "no_upstream",
        "answered",
        "given_up",
        "replaced",
    ];

    /// Index in [`StreamEnd::KINDS`].
    pub fn kind(self) -> usize {
        match self {
            StreamEnd::Closed(RelaySide::Client) => 0,
            StreamEnd::Closed(RelaySide::Upstream) => 1,
            StreamEnd::Reset(RelaySide::Client) | StreamEnd::ClientClosed => 2,
            StreamEnd::Reset(RelaySide::Upstream) => 3,
            StreamEnd::Idle => 4,
            StreamEnd::Stopped => 5,
            StreamEnd::Denied => 6,
            StreamEnd::TooMany => 7,
            StreamEnd::Unmatched => 8,
            StreamEnd::Failed(_) => 9,
            StreamEnd::Unreachable(_) => 10,
            StreamEnd::Answered => 11,
            StreamEnd::GivenUp => 12,
            StreamEnd::Replaced => 13,
        }
    }

    /// Text for log lines.
    fn text(self) -> &'static str {
        match self {
            StreamEnd::Closed(RelaySide::Client) => "closed by the client",
            StreamEnd::Closed(RelaySide::Upstream) => "closed by the upstream server",
            StreamEnd::Reset(RelaySide::Client) => "reset by the client",
            StreamEnd::Reset(RelaySide::Upstream) => "reset by the upstream server",
            StreamEnd::Idle => "idle for too long",
            StreamEnd::Stopped => "the server stopped",
            StreamEnd::Denied => "the client's address is not allowed",
            StreamEnd::TooMany => "too many connections",
            StreamEnd::Unmatched => "no stream takes it",
            StreamEnd::ClientClosed => "the client left before the upstream server was connected",
            StreamEnd::Answered => "answered by the upstream server",
            StreamEnd::GivenUp => "given up for another client",
            StreamEnd::Replaced => "the configuration has no such server any more",
            StreamEnd::Failed(reason) | StreamEnd::Unreachable(reason) => reason,
        }
    }

    /// The equivalent status, as in the logs of nginx's stream module.
    pub(super) fn status(self) -> u16 {
        match self {
            StreamEnd::Closed(_) | StreamEnd::Idle | StreamEnd::Answered => 200,
            StreamEnd::Failed(_) => 400,
            StreamEnd::Denied => 403,
            StreamEnd::Unmatched => 404,
            StreamEnd::Reset(RelaySide::Client) | StreamEnd::ClientClosed => 499,
            StreamEnd::Reset(RelaySide::Upstream) | StreamEnd::Unreachable(_) => 502,
            StreamEnd::TooMany | StreamEnd::Stopped | StreamEnd::GivenUp | StreamEnd::Replaced => 503,
        }
    }
}

impl AccessLogs {
    /// Adds the line of a connection to the logs of all requests.
    pub fn log_stream(&self, record: &RelayedConnection<'_>) {
        self.all.iter().for_each(|log| log.log_stream(record));
    }
}

impl CoreAccessLog {
    /// Adds the line of a connection.
    fn log_stream(&self, record: &RelayedConnection<'_>) {
        if !self.is_logged(record.end.status(), record.duration_us) {
            return;
        }
        let mut lines = self.lines.borrow_mut();
        match self.sink.form() {
            LineForm::Record => {
                let mut line = Vec::new();
                self.stream_line(&mut line, record);
                self.stream_record(&mut lines, &line, record);
            }
            LineForm::Plain | LineForm::Message => self.stream_line(&mut lines, record),
        }
        lines.push(b'\n');
        self.hand_over_full(&mut lines);
    }

    fn stream_line(&self, out: &mut Vec<u8>, record: &RelayedConnection<'_>) {
        match &self.format {
            LineFormat::Json(_) => self.json_stream(out, record),
            LineFormat::Combined | LineFormat::Console { .. } => self.combined_stream(out, record),
            LineFormat::Logfmt(_) | LineFormat::Template(_) => self.logfmt_stream(out, record),
        }
    }

    /// Writes the line like a request in the combined format: the server as referrer, the reason for the end
    /// as user agent.
    fn combined_stream(&self, out: &mut Vec<u8>, record: &RelayedConnection<'_>) {
        write_client(out, record.client);
        out.extend_from_slice(b" - - [");
        self.with_timestamp(record.unix_s, |local, _| out.extend_from_slice(local.as_bytes()));
        out.extend_from_slice(b"] \"STREAM ");
        let name = if record.server_name.is_empty() { record.stream } else { record.server_name };
        escaped(out, if name.is_empty() { b"-" } else { name.as_bytes() });
        out.extend_from_slice(if record.datagrams.is_some() { b" UDP\" " } else { b" TCP\" " });
        write_decimal(out, record.end.status().into());
        out.push(b' ');
        write_decimal(out, record.sent_bytes);
        out.extend_from_slice(b" \"");
        escaped(out, if record.upstream.is_empty() { b"-" } else { record.upstream.as_bytes() });
        out.extend_from_slice(b"\" \"");
        escaped(out, record.end.text().as_bytes());
        out.extend_from_slice(b"; ");
        write_decimal(out, record.received_bytes);
        out.extend_from_slice(b" bytes received; ");
        thousandths(out, record.duration_us);
        out.extend_from_slice(b" ms\"");
    }

    fn json_stream(&self, out: &mut Vec<u8>, record: &RelayedConnection<'_>) {
        out.extend_from_slice(b"{\"time\":\"");
        self.with_timestamp(record.unix_s, |_, rfc| out.extend_from_slice(rfc.as_bytes()));
        out.extend_from_slice(b"\",\"client\":\"");
        write_client(out, record.client);
        out.push(b'"');
        for (key, text) in texts(record) {
            out.extend_from_slice(format!(",\"{key}\":\"").as_bytes());
            json_escaped(out, text.as_bytes());
            out.push(b'"');
        }
        for (key, write) in numbers(record) {
            out.extend_from_slice(format!(",\"{key}\":").as_bytes());
            write.write(out);
        }
        out.push(b'}');
    }

    fn logfmt_stream(&self, out: &mut Vec<u8>, record: &RelayedConnection<'_>) {
        out.extend_from_slice(b"time=");
        self.with_timestamp(record.unix_s, |_, rfc| out.extend_from_slice(rfc.as_bytes()));
        out.extend_from_slice(b" client=");
        write_client(out, record.client);
        for (key, text) in texts(record) {
            out.extend_from_slice(format!(" {key}=\"").as_bytes());
            json_escaped(out, text.as_bytes());
            out.push(b'"');
        }
        for (key, write) in numbers(record) {
            out.extend_from_slice(format!(" {key}=").as_bytes());
            write.write(out);
        }
    }
}

/// A numeric field of a line.
enum LineNumber {
    Integer(u64),
    /// Microseconds, written as milliseconds.
    Ms(u64),
}

impl LineNumber {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            LineNumber::Integer(number) => write_decimal(out, *number),
            LineNumber::Ms(us) => thousandths(out, *us),
        }
    }
}

/// The non-empty text fields of a line.
fn texts<'x>(record: &RelayedConnection<'x>) -> impl Iterator<Item = (&'static str, &'x str)> {
    let texts = [
        ("stream", record.stream),
        ("server_name", record.server_name),
        ("upstream", record.upstream),
        ("end", record.end.text()),
    ];
    texts.into_iter().filter(|(_, text)| !text.is_empty())
}

fn numbers(record: &RelayedConnection<'_>) -> impl Iterator<Item = (&'static str, LineNumber)> {
    let connect = record.connect_us.map(|us| ("connect_ms", LineNumber::Ms(us)));
    let numbers = [
        ("status", LineNumber::Integer(record.end.status().into())),
        ("received_bytes", LineNumber::Integer(record.received_bytes)),
        ("sent_bytes", LineNumber::Integer(record.sent_bytes)),
    ];
    let datagrams = record.datagrams.map(|RelayedDatagrams { received, sent }| {
        [("received_datagrams", LineNumber::Integer(received)), ("sent_datagrams", LineNumber::Integer(sent))]
    });
    numbers
        .into_iter()
        .chain(datagrams.into_iter().flatten())
        .chain(connect)
        .chain([("duration_ms", LineNumber::Ms(record.duration_us))])
}

pub(super) fn write_client(out: &mut Vec<u8>, client: Peer) {
    match client {
        Peer::Tcp(address) => write_ip(out, address.ip().to_canonical()),
        Peer::Unix => out.extend_from_slice(b"unix:"),
    }
}
