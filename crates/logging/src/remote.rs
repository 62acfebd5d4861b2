//! Log lines as messages: to a syslog server (RFC 5424), to systemd's journal, or to an OpenTelemetry
//! collector.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, SystemTime};

use http::encode::write_decimal;
use otlp::{OtlpClient, OtlpOptions, OtlpSignal};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use time::OffsetDateTime;

use crate::destination::{Journal, Syslog, SyslogAddress};
use crate::directives::Level;

/// Timeout for connecting, and for writing to a receiver.
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a line in a syslog message: what receivers accept by default.
const SYSLOG_LINE_MAX: usize = 8 * 1024;
/// Maximum bytes of a line in a journal entry: longer entries would each need a memory file.
const JOURNAL_LINE_MAX: usize = 48 * 1024;
/// Maximum bytes of `HOSTNAME` (RFC 5424 section 6).
const HOST_NAME_MAX: usize = 255;

/// Pause before an unreachable receiver is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Severity of a message, numbered as in RFC 5424 section 6.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SyslogSeverity {
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

impl From<Level> for SyslogSeverity {
    fn from(level: Level) -> SyslogSeverity {
        match level {
            Level::Error => SyslogSeverity::Error,
            Level::Warn => SyslogSeverity::Warning,
            Level::Info => SyslogSeverity::Info,
            Level::Debug => SyslogSeverity::Debug,
        }
    }
}

/// Receiver of log messages.
#[derive(Clone, Debug)]
pub enum RemoteTarget {
    /// A syslog server.
    Syslog(Syslog),
    /// The systemd journal.
    Journal(Journal),
    /// An OpenTelemetry collector.
    Otlp(OtlpOptions),
}

impl RemoteTarget {
    /// Display name of the receiver.
    pub(crate) fn name(&self) -> String {
        match self {
            RemoteTarget::Journal(journal) => format!("journald ({})", journal.socket.display()),
            RemoteTarget::Otlp(options) => format!("otlp ({})", options.url),
            RemoteTarget::Syslog(syslog) => match &syslog.to {
                SyslogAddress::None => "syslog".to_owned(),
                SyslogAddress::Unix(path) => format!("syslog (unix:{})", path.display()),
                SyslogAddress::Udp(address) => format!("syslog (udp://{address})"),
                SyslogAddress::Tcp(address) => format!("syslog (tcp://{address})"),
            },
        }
    }

    /// Whether lines are kept until the receiver is back. UDP does not report whether messages arrive.
    pub(crate) fn keeps_lines(&self) -> bool {
        !matches!(self, RemoteTarget::Syslog(Syslog { to: SyslogAddress::Udp(_), .. }))
    }
}

/// A connection to the receiver.
enum ReceiverConnection {
    Datagrams(UnixDatagram),
    Udp(UdpSocket),
    Stream(ReceiverStream),
    Otlp(Box<OtlpClient>),
}

/// A stream connection to a syslog server.
enum ReceiverStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ReceiverStream {
    /// Whether the receiver has closed the connection: the kernel would accept further writes, and they would
    /// be lost.
    fn has_ended(&self) -> bool {
        let socket = match self {
            ReceiverStream::Tcp(stream) => stream.as_fd(),
            ReceiverStream::Unix(stream) => stream.as_fd(),
        };
        let mut byte = [0];
        match recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => true,
            // The receiver has sent data, or nothing yet.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ReceiverStream::Tcp(stream) => stream.write(bytes),
            ReceiverStream::Unix(stream) => stream.write(bytes),
        }
    }
}

/// Error of a send: some lines were not sent.
pub(crate) struct SendError {
    /// Bytes of the preceding lines, which were sent.
    pub(crate) bytes: usize,
    pub(crate) error: io::Error,
    /// Pause before a retry; `None` if the receiver rejected the lines permanently.
    pub(crate) retry_after: Option<Duration>,
}

impl From<(usize, io::Error)> for SendError {
    fn from((bytes, error): (usize, io::Error)) -> SendError {
        SendError { bytes, error, retry_after: Some(RETRY_PAUSE) }
    }
}

/// A log that is sent to a receiver.
pub(crate) struct RemoteLog {
    target: RemoteTarget,
    connection: Option<ReceiverConnection>,
    /// Host name for syslog messages.
    host: String,
    /// Reused buffer for messages.
    messages: Vec<u8>,
}

impl RemoteLog {
    /// A log that connects with its first line.
    pub(crate) fn new(target: RemoteTarget) -> RemoteLog {
        RemoteLog { target, connection: None, host: host_name(), messages: Vec::new() }
    }

    /// Drops the connection: the next line opens a new one.
    pub(crate) fn reconnect(&mut self) {
        self.connection = None;
    }

    /// Sends lines, each terminated by `\n`.
    pub(crate) fn send(
        &mut self,
        lines: &[u8],
        severity: SyslogSeverity,
        log: &'static str,
    ) -> Result<(), SendError> {
        let has_ended = |connection: &ReceiverConnection| match connection {
            ReceiverConnection::Stream(stream) => stream.has_ended(),
            _ => false,
        };
        let mut connection = match self.connection.take().filter(|connection| !has_ended(connection)) {
            Some(connection) => connection,
            None => self.connect().map_err(|error| (0, error))?,
        };
        let sent = match &mut connection {
            ReceiverConnection::Otlp(client) => {
                let sent = send_records(client, lines);
                // The client keeps count of its failures, so it is kept even after one.
                self.connection = Some(connection);
                return sent;
            }
            ReceiverConnection::Stream(stream) => self.send_frames(stream, lines, severity, log),
            ReceiverConnection::Datagrams(socket) => {
                self.send_each(lines, severity, log, |message| socket.send(message).map(drop))
            }
            ReceiverConnection::Udp(socket) => self.send_each(lines, severity, log, |message| {
                // The first error may belong to an earlier message.
                socket.send(message).or_else(|_| socket.send(message)).map(drop)
            }),
        };
        if sent.is_ok() {
            self.connection = Some(connection);
        }
        sent.map_err(SendError::from)
    }

    fn connect(&self) -> io::Result<ReceiverConnection> {
        let path = match &self.target {
            RemoteTarget::Journal(journal) => &journal.socket,
            RemoteTarget::Otlp(options) => {
                let client = OtlpClient::new(options.clone(), OtlpSignal::Logs)?;
                return Ok(ReceiverConnection::Otlp(Box::new(client)));
            }
            RemoteTarget::Syslog(syslog) => match &syslog.to {
                SyslogAddress::Unix(path) => path,
                SyslogAddress::Udp(address) => return Ok(ReceiverConnection::Udp(udp(address)?)),
                SyslogAddress::Tcp(address) => {
                    return Ok(ReceiverConnection::Stream(ReceiverStream::Tcp(tcp(address)?)));
                }
                SyslogAddress::None => return Err(Errno::DESTADDRREQ.into()),
            },
        };
        let socket = UnixDatagram::unbound()?;
        match socket.connect(path) {
            // The socket is a stream socket.
            Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(RECEIVER_TIMEOUT))?;
                return Ok(ReceiverConnection::Stream(ReceiverStream::Unix(stream)));
            }
            connected => connected?,
        }
        socket.set_write_timeout(Some(RECEIVER_TIMEOUT))?;
        Ok(ReceiverConnection::Datagrams(socket))
    }

    /// Sends one datagram per line.
    fn send_each(
        &mut self,
        lines: &[u8],
        severity: SyslogSeverity,
        log: &'static str,
        mut send: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        let mut message = std::mem::take(&mut self.messages);
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            message.clear();
            self.write_message(&mut message, line, severity, log);
            send(&message).map_err(|error| (done, error))?;
            done += line.len();
        }
        self.messages = message;
        Ok(())
    }

    /// Sends messages with octet counting (RFC 6587 section 3.4.1), all of them in one write if possible.
    fn send_frames(
        &mut self,
        stream: &mut ReceiverStream,
        lines: &[u8],
        severity: SyslogSeverity,
        log: &'static str,
    ) -> Result<(), (usize, io::Error)> {
        let mut frames = std::mem::take(&mut self.messages);
        frames.clear();
        // For each frame: its end in `frames` and the end of its line in `lines`.
        let mut ends = Vec::new();
        let mut line_end = 0;
        let mut message = Vec::new();
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            message.clear();
            self.write_message(&mut message, line, severity, log);
            write_decimal(&mut frames, message.len() as u64);
            frames.push(b' ');
            frames.extend_from_slice(&message);
            line_end += line.len();
            ends.push((frames.len(), line_end));
        }
        let mut written = 0;
        while written < frames.len() {
            match stream.write(&frames[written..]) {
                Ok(count) if count > 0 => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => {
                    let done =
                        ends.iter().rev().find(|(end, _)| *end <= written).map_or(0, |(_, line)| *line);
                    return Err((done, outcome.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into())));
                }
            }
        }
        self.messages = frames;
        Ok(())
    }

    fn write_message(&self, out: &mut Vec<u8>, line: &[u8], severity: SyslogSeverity, log: &'static str) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match &self.target {
            RemoteTarget::Syslog(syslog) => {
                let priority = u64::from(syslog.facility) * 8 + severity as u64;
                out.push(b'<');
                write_decimal(out, priority);
                out.extend_from_slice(b">1 ");
                write_time(out);
                let host = &self.host;
                let tag = &syslog.tag;
                let pid = std::process::id();
                // Writing to a `Vec` does not fail.
                let _ = write!(out, " {host} {tag} {pid} {log} - ");
                out.extend_from_slice(truncate_line(line, SYSLOG_LINE_MAX));
            }
            RemoteTarget::Journal(journal) => {
                let tag = &journal.tag;
                let priority = severity as u8;
                let _ =
                    write!(out, "PRIORITY={priority}\nSYSLOG_IDENTIFIER={tag}\nKOMAINU_LOG={log}\nMESSAGE=");
                out.extend_from_slice(truncate_line(line, JOURNAL_LINE_MAX));
                out.push(b'\n');
            }
            // The lines are records already.
            RemoteTarget::Otlp(_) => out.extend_from_slice(line),
        }
    }
}

/// Sends records, one per line, in one OTLP document.
fn send_records(client: &mut OtlpClient, lines: &[u8]) -> Result<(), SendError> {
    let (start, end) = client.frame();
    let mut document = Vec::with_capacity(start.len() + lines.len() + end.len());
    document.extend_from_slice(start.as_bytes());
    for (at, line) in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
        if at > 0 {
            document.push(b',');
        }
        document.extend_from_slice(line);
    }
    document.extend_from_slice(end.as_bytes());
    let refused = client.send(document).map_err(|not_taken| SendError {
        bytes: 0,
        retry_after: not_taken.retry_after,
        error: io::Error::other(not_taken.text),
    })?;
    match refused.count {
        0 => Ok(()),
        count => Err(SendError {
            bytes: lines.len(),
            error: io::Error::other(format!("{count} of them: {}", refused.remark)),
            retry_after: None,
        }),
    }
}

/// Truncates a line to at most `max` bytes, at a character boundary.
fn truncate_line(line: &[u8], max: usize) -> &[u8] {
    let mut end = line.len().min(max);
    while end < line.len() && end > 0 && line[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &line[..end]
}

/// Writes the current time as RFC 5424 section 6.2.3 specifies, in milliseconds.
fn write_time(out: &mut Vec<u8>) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).ok();
    let Some(time) = seconds.and_then(|unix_s| OffsetDateTime::from_unix_timestamp(unix_s).ok()) else {
        return out.push(b'-');
    };
    let ((year, month, day), (hour, minute, second)) =
        ((time.year(), u8::from(time.month()), time.day()), time.to_hms());
    let ms = since.subsec_millis();
    // Writing to a `Vec` does not fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z");
}

/// The host name, or `-` if it is not a valid `HOSTNAME` of RFC 5424.
pub fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = text.trim();
    let is_plain =
        (1..=HOST_NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain { name.to_owned() } else { "-".to_owned() }
}

fn addresses(text: &str) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = text.to_socket_addrs()?.collect();
    if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
}

fn udp(address: &str) -> io::Result<UdpSocket> {
    let mut outcome = Err(Errno::ADDRNOTAVAIL.into());
    for address in addresses(address)? {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        outcome = UdpSocket::bind(any).and_then(|socket| socket.connect(address).map(|()| socket));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn tcp(address: &str) -> io::Result<TcpStream> {
    let mut outcome = Err(Errno::ADDRNOTAVAIL.into());
    for address in addresses(address)? {
        outcome = TcpStream::connect_timeout(&address, RECEIVER_TIMEOUT);
        if outcome.is_ok() {
            break;
        }
    }
    let stream = outcome?;
    stream.set_write_timeout(Some(RECEIVER_TIMEOUT))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_messages_follow_rfc_5424_and_are_truncated() {
        let syslog = Syslog { facility: 23, tag: "shop".into(), ..Syslog::default() };
        let log = RemoteLog::new(RemoteTarget::Syslog(syslog));
        let mut out = Vec::new();
        log.write_message(&mut out, b"a line\n", SyslogSeverity::Info, "access");
        let text = String::from_utf8(out).unwrap();
        let words: Vec<&str> = text.splitn(8, ' ').collect();
        let pid = std::process::id().to_string();
        assert_eq!(words[0], "<190>1");
        assert!(words[1].len() == 24 && words[1].ends_with('Z'), "{text}");
        assert_eq!(words[3..], ["shop", &pid, "access", "-", "a line"]);
        let long = "é".repeat(SYSLOG_LINE_MAX);
        assert_eq!(truncate_line(long.as_bytes(), SYSLOG_LINE_MAX - 1).len(), SYSLOG_LINE_MAX - 2);
    }
}
