//! Upstream servers with responses chosen by the test.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A request as received.
#[derive(Clone, Debug)]
pub struct Ask {
    pub head: String,
    pub body: Vec<u8>,
}

impl Ask {
    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    /// Values of a field, in order.
    pub fn field(&self, name: &str) -> Vec<&str> {
        let values = self.head.lines().skip(1).filter_map(|line| {
            let (other, value) = line.split_once(':').unwrap();
            other.eq_ignore_ascii_case(name).then_some(value.trim())
        });
        values.collect()
    }
}

/// Requests received, and counts of connections.
#[derive(Default)]
pub struct Seen {
    pub asks: Vec<Ask>,
    pub connections: usize,
    /// Connections that have ended.
    pub ended: usize,
}

type Respond = dyn Fn(&Ask) -> String + Send + Sync;

/// A server that answers with the bytes returned by a function; after a 101 it echoes everything.
pub struct Origin {
    /// URL of the server.
    pub url: String,
    pub seen: Arc<Mutex<Seen>>,
}

trait Stream: Read + Write + Send + 'static {}
impl<T: Read + Write + Send + 'static> Stream for T {}

impl Origin {
    pub fn start(respond: impl Fn(&Ask) -> String + Send + Sync + 'static) -> Origin {
        Origin::listen(crate::rig::listener(), respond)
    }

    pub fn start_at(address: SocketAddr, respond: impl Fn(&Ask) -> String + Send + Sync + 'static) -> Origin {
        Origin::listen(TcpListener::bind(address).unwrap(), respond)
    }

    fn listen(listener: TcpListener, respond: impl Fn(&Ask) -> String + Send + Sync + 'static) -> Origin {
        let url = format!("http://{}", listener.local_addr().unwrap());
        Origin::serve(url, move || listener.accept().unwrap().0, respond)
    }

    pub fn unix(path: &Path, respond: impl Fn(&Ask) -> String + Send + Sync + 'static) -> Origin {
        let listener = UnixListener::bind(path).unwrap();
        let url = format!("unix:{}", path.display());
        Origin::serve(url, move || listener.accept().unwrap().0, respond)
    }

    fn serve<S: Stream>(
        url: String,
        accept: impl Fn() -> S + Send + 'static,
        respond: impl Fn(&Ask) -> String + Send + Sync + 'static,
    ) -> Origin {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (noted, respond): (_, Arc<Respond>) = (seen.clone(), Arc::new(respond));
        std::thread::spawn(move || {
            loop {
                let stream = accept();
                let noted = noted.clone();
                let respond = respond.clone();
                std::thread::spawn(move || converse(stream, &noted, &*respond));
            }
        });
        Origin { url, seen }
    }

    pub fn asks(&self) -> Vec<Ask> {
        self.seen.lock().unwrap().asks.clone()
    }

    pub fn last(&self) -> Ask {
        self.asks().pop().expect("nothing came")
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.connections - seen.ended
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }
}

fn converse(stream: impl Stream, seen: &Mutex<Seen>, respond: &Respond) {
    seen.lock().unwrap().connections += 1;
    answer_all(stream, seen, respond);
    seen.lock().unwrap().ended += 1;
}

fn answer_all(mut stream: impl Stream, seen: &Mutex<Seen>, respond: &Respond) {
    while let Some(ask) = read(&mut stream) {
        seen.lock().unwrap().asks.push(ask.clone());
        let answer = respond(&ask);
        if stream.write_all(answer.as_bytes()).is_err() || answer.is_empty() {
            return;
        }
        if answer.starts_with("HTTP/1.1 101") {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                stream.write_all(&bytes[..count]).unwrap();
            }
            return;
        }
    }
}

fn read(stream: &mut impl Read) -> Option<Ask> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap().trim_end().to_owned();
    let mut ask = Ask { head, body: Vec::new() };
    let len = ask.field("Content-Length").first().map_or(0, |len| len.parse().unwrap());
    ask.body.resize(len, 0);
    stream.read_exact(&mut ask.body).ok()?;
    Some(ask)
}

/// A 200 response with this body, on a persistent connection.
pub fn ok(body: &str) -> String {
    answer("200 OK", "", body)
}

/// A response with additional fields, each terminated by CRLF.
pub fn answer(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Whether a server accepts connections at this address.
pub fn listens(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}
