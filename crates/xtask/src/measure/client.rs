//! The smallest HTTP/1.1 client that can tell a right answer from a wrong one. It is not in the measured path.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const TIMEOUT: Duration = Duration::from_secs(10);

/// One kept-alive connection.
pub(crate) struct Connection(TcpStream);

/// What came back for a GET.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    /// Connects from any address of this machine.
    pub(crate) fn open(to: SocketAddr) -> io::Result<Connection> {
        Connection::ready(TcpStream::connect_timeout(&to, TIMEOUT)?)
    }

    /// Connects from 127.0.0.`host`: each source address brings a range of ephemeral ports of its own.
    pub(crate) fn open_from(host: u8, to: SocketAddr) -> io::Result<Connection> {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket: OwnedFd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0))?;
        rustix::net::connect(&socket, &to)?;
        Connection::ready(TcpStream::from(socket))
    }

    fn ready(stream: TcpStream) -> io::Result<Connection> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Connection(stream))
    }

    /// Sends a GET without waiting for its answer.
    pub(crate) fn send(&mut self, target: &str) -> io::Result<()> {
        self.0.write_all(format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())
    }

    /// Reads one answer, which must state its length.
    pub(crate) fn receive(&mut self) -> io::Result<Answer> {
        receive(&mut BufReader::new(&self.0))
    }

    /// Sends a GET and reads its answer.
    pub(crate) fn ask(&mut self, target: &str) -> io::Result<Answer> {
        self.send(target)?;
        self.receive()
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

fn receive(from: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| bad("no HTTP/1.1 status line"))?;
    let mut length = None;
    loop {
        line.clear();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().ok();
        }
    }
    let mut body = vec![0; length.ok_or_else(|| bad("no Content-Length"))?];
    from.read_exact(&mut body)?;
    Ok(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_stated_length() {
        let mut bytes = &b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\nX: y\r\n\r\nhiHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"[..];
        assert_eq!(receive(&mut bytes).expect("whole"), Answer { status: 200, body: b"hi".to_vec() });
        assert_eq!(receive(&mut bytes).expect("whole"), Answer { status: 404, body: Vec::new() });
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        for bytes in
            ["", "220 ftp\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut"]
        {
            assert!(receive(&mut bytes.as_bytes()).is_err(), "{bytes:?}");
        }
    }
}
