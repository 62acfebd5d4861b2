//! A connection to Redis: sends the commands that are needed, and parses replies strictly.
//!
//! A reply is limited in bytes and by one timeout, and must have exactly the form that its command requires;
//! otherwise the connection is closed.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum bytes of a reply: the longest valid one has 500 numbers of a few bytes each.
const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of an error reply that are shown.
const ERROR_BYTES_MAX: usize = 200;
const DEFAULT_PORT: u16 = 6379;

/// Address of a server, with the user and database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    endpoint: RedisEndpoint,
    user: Option<String>,
    database: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum RedisEndpoint {
    Tcp(String, u16),
    Unix(String),
}

impl RedisAddress {
    /// Parses `redis://[USER@]HOST[:PORT][/DATABASE]` or `unix:PATH`.
    ///
    /// # Errors
    /// The text has neither form.
    pub(crate) fn parse(text: &str) -> io::Result<RedisAddress> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{text:?}: {what}"));
        if let Some(path) = text.strip_prefix("unix:") {
            let place = RedisEndpoint::Unix(path.to_owned());
            return Ok(RedisAddress { endpoint: place, user: None, database: 0 });
        }
        let rest = text.strip_prefix("redis://");
        let rest = rest.ok_or_else(|| wrong("write \"redis://HOST:PORT\" or \"unix:PATH\""))?;
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), rest),
            None => (None, rest),
        };
        let (at, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| wrong("the database is a number"))?,
        };
        // Colons within brackets belong to an IPv6 address.
        let (host, port) = match at.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong("the port is from 0 to 65535"))?),
            None => (at, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("there is no host"));
        }
        Ok(RedisAddress { endpoint: RedisEndpoint::Tcp(host.to_owned(), port), user, database })
    }
}

enum RedisStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RedisStream {
    fn connect(place: &RedisEndpoint, timeout: Duration) -> io::Result<RedisStream> {
        match place {
            RedisEndpoint::Unix(path) => UnixStream::connect(path).map(RedisStream::Unix),
            RedisEndpoint::Tcp(host, port) => {
                let until = Instant::now() + timeout;
                let mut failed = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, remaining(until, timeout)?) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(RedisStream::Tcp(stream));
                        }
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            RedisStream::Tcp(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
            RedisStream::Unix(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RedisStream::Tcp(stream) => stream.write(bytes),
            RedisStream::Unix(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            RedisStream::Tcp(stream) => stream.read(bytes),
            RedisStream::Unix(stream) => stream.read(bytes),
        }
    }
}

/// Returns the time left until the deadline, or a timeout error.
fn remaining(until: Instant, timeout: Duration) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(timeout_error(timeout)),
        left => Ok(left),
    }
}

fn timeout_error(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no whole answer within {timeout:?}"))
}

fn invalid_reply(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A connection that carries one command at a time.
pub(crate) struct RedisConnection {
    stream: RedisStream,
    /// Timeout of a command, including the whole reply.
    timeout: Duration,
    /// Bytes received but not yet parsed.
    received: Vec<u8>,
}

impl RedisConnection {
    /// Connects, and authenticates if there is a password.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a command.
    pub(crate) fn open(
        address: &RedisAddress,
        password: Option<&str>,
        timeout: Duration,
    ) -> io::Result<RedisConnection> {
        let stream = RedisStream::connect(&address.endpoint, timeout)?;
        let mut connection = RedisConnection { stream, timeout, received: Vec::new() };
        match (&address.user, password) {
            (Some(user), Some(password)) => connection.expect_ok(&["AUTH", user, password])?,
            (None, Some(password)) => connection.expect_ok(&["AUTH", password])?,
            (_, None) => {}
        }
        if address.database != 0 {
            connection.expect_ok(&["SELECT", &address.database.to_string()])?;
        }
        Ok(connection)
    }

    fn expect_ok(&mut self, command: &[&str]) -> io::Result<()> {
        let mut reply = self.send(command)?;
        match reply.line()?.as_str() {
            "+OK" => reply.end(),
            _ => Err(invalid_reply("its reply is not `OK`")),
        }
    }

    /// Sends a command whose reply is an array of `count` non-negative integers.
    ///
    /// # Errors
    /// The reply has another form, is too long or late. The connection must not be used again.
    pub(crate) fn query_numbers<S: AsRef<str>>(
        &mut self,
        command: &[S],
        count: usize,
    ) -> io::Result<Vec<u64>> {
        let mut reply = self.send(command)?;
        if reply.line()? != format!("*{count}") {
            return Err(invalid_reply("its reply is not a number for each key"));
        }
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            let line = reply.line()?;
            let number = line.strip_prefix(':').and_then(|digits| digits.parse().ok());
            numbers.push(number.ok_or_else(|| invalid_reply("its reply is not a number for each key"))?);
        }
        reply.end()?;
        Ok(numbers)
    }

    fn send<S: AsRef<str>>(&mut self, command: &[S]) -> io::Result<Reply<'_>> {
        let mut text = format!("*{}\r\n", command.len());
        for part in command.iter().map(AsRef::as_ref) {
            // Writing to a string does not fail.
            let _ = write!(text, "${}\r\n{part}\r\n", part.len());
        }
        let until = Instant::now() + self.timeout;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            self.stream.set_timeout(remaining(until, self.timeout)?)?;
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) => self.ignore_interrupt(error)?,
            }
        }
        Ok(Reply { connection: self, deadline: until, bytes: 0 })
    }

    /// Ignores interrupted system calls, because the deadline is checked separately.
    fn ignore_interrupt(&self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(timeout_error(self.timeout)),
            _ => Err(error),
        }
    }
}

/// A reply being read.
struct Reply<'c> {
    connection: &'c mut RedisConnection,
    deadline: Instant,
    /// Bytes of the reply received so far.
    bytes: usize,
}

impl Reply<'_> {
    /// Reads the next line; an error reply is returned as an error.
    fn line(&mut self) -> io::Result<String> {
        let mut looked = 0;
        let end = loop {
            let received = &self.connection.received;
            match received[looked..].iter().position(|byte| *byte == b'\n') {
                Some(at) => break looked + at,
                None => looked = received.len(),
            }
            self.receive()?;
        };
        let line: Vec<u8> = self.connection.received.drain(..=end).collect();
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or_else(|| invalid_reply("a line of its reply does not end in CRLF"))?;
        match line.strip_prefix(b"-") {
            Some(error) => {
                let shown = String::from_utf8_lossy(&error[..error.len().min(ERROR_BYTES_MAX)]);
                let shown = shown.replace(|c: char| c.is_control(), " ");
                Err(io::Error::other(format!("it answers: {shown}")))
            }
            None => String::from_utf8(line.to_vec()).map_err(|_| invalid_reply("its reply is not text")),
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut block = [0; 4096];
        loop {
            let connection = &mut *self.connection;
            connection.stream.set_timeout(remaining(self.deadline, connection.timeout)?)?;
            match connection.stream.read(&mut block) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.bytes += count;
                    if self.bytes > REPLY_BYTES_MAX {
                        return Err(invalid_reply(&format!(
                            "its reply is longer than {REPLY_BYTES_MAX} bytes"
                        )));
                    }
                    connection.received.extend_from_slice(&block[..count]);
                    return Ok(());
                }
                Err(error) => connection.ignore_interrupt(error)?,
            }
        }
    }

    fn end(self) -> io::Result<()> {
        if self.connection.received.is_empty() {
            Ok(())
        } else {
            Err(invalid_reply("it sends more than it was asked for"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    #[test]
    fn redis_addresses_are_parsed() {
        let tcp = |host: &str, port, user: Option<&str>, database| RedisAddress {
            endpoint: RedisEndpoint::Tcp(host.into(), port),
            user: user.map(Into::into),
            database,
        };
        let parse = |text| RedisAddress::parse(text).unwrap();
        assert_eq!(parse("redis://h"), tcp("h", 6379, None, 0));
        assert_eq!(parse("redis://me@[::1]:1/2"), tcp("::1", 1, Some("me"), 2));
        assert_eq!(parse("redis://[::1]/3"), tcp("::1", 6379, None, 3));
        let unix = RedisAddress { endpoint: RedisEndpoint::Unix("/run/r".into()), user: None, database: 0 };
        assert_eq!(parse("unix:/run/r"), unix);
        for text in ["http://h", "redis://", "redis://h:x", "redis://h/x", "redis://:1"] {
            assert!(RedisAddress::parse(text).is_err(), "{text}");
        }
    }

    /// Starts a server that sends `head` and then `tail` repeatedly; its thread returns the number of bytes
    /// sent.
    fn server(head: &'static str, tail: &'static str) -> (RedisAddress, JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = RedisAddress::parse(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut command = [0; 4096];
            let _ = stream.read(&mut command).unwrap();
            // The first tail is sent with the head, so that it is received with the reply.
            stream.write_all([head, tail].concat().as_bytes()).unwrap();
            let tails = tail.repeat(1 + 4096 / (tail.len() + 1));
            let mut sent = 0;
            // Bounded, so that a client that reads everything fails the test instead of exhausting the
            // machine.
            while !tail.is_empty() && sent < 256 << 20 {
                match stream.write(tails.as_bytes()) {
                    Ok(count) => sent += count,
                    Err(_) => break,
                }
            }
            // Waits until the client closes the connection.
            let _ = stream.read(&mut command);
            sent
        });
        (address, thread)
    }

    fn query_server(
        head: &'static str,
        tail: &'static str,
        timeout: Duration,
    ) -> (io::Result<Vec<u64>>, usize) {
        let (address, thread) = server(head, tail);
        let mut connection = RedisConnection::open(&address, None, timeout).unwrap();
        let outcome = connection.query_numbers(&["EVAL"], 2);
        let held = connection.received.capacity();
        assert!(held <= 2 * REPLY_BYTES_MAX, "{held} bytes are held");
        drop(connection);
        (outcome, thread.join().unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn endless_replies_are_rejected_in_bounded_memory() {
        let lies = [
            ("$99999999999\r\n", "a", "not a number for each key"),
            ("*2147483647\r\n", ":1\r\n", "not a number for each key"),
            ("+", "a", "longer than"),
            ("*2\r\n:1\r\n:", "1", "longer than"),
            ("*2\r\n:1\r\n:2\r\n", ":3\r\n", "more than it was asked for"),
            ("-", "a", "longer than"),
        ];
        for (head, tail, reason) in lies {
            let (outcome, sent) = query_server(head, tail, LONG);
            let error = outcome.unwrap_err().to_string();
            // The excess may be detected later, in the reply to another command.
            assert!(error.contains(reason), "{head:?}: {error}");
            assert!(sent < 64 << 20, "{head:?}: {sent} bytes were taken");
        }
    }

    #[test]
    fn replies_of_another_form_are_refused() {
        for head in [
            "*-1\r\n",
            "*2\r\n:1\r\n:-1\r\n",
            "*2\r\n$1\r\n1\r\n",
            "*2\n:1\n:2\n",
            "+\u{e9}\r\n",
            "*1\r\n:1\r\n",
        ] {
            assert_eq!(
                query_server(head, "", LONG).0.unwrap_err().kind(),
                io::ErrorKind::InvalidData,
                "{head:?}"
            );
        }
        assert_eq!(query_server("*2\r\n:1\r\n:2\r\n", "", LONG).0.unwrap(), [1, 2]);
        let error = query_server("-ERR no\rsuch\u{1b}[31m thing\r\n", "", LONG).0.unwrap_err().to_string();
        assert_eq!(error, "it answers: ERR no such [31m thing");
    }

    #[test]
    fn the_deadline_holds_for_the_whole_reply() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = RedisAddress::parse(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A byte from time to time, so that no single read takes as long as the timeout.
            while stream.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut connection = RedisConnection::open(&address, None, Duration::from_millis(200)).unwrap();
        assert_eq!(connection.query_numbers(&["EVAL"], 1).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(connection);
        thread.join().unwrap();
    }
}
