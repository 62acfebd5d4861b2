//! A server with a few handlers, and a simple client.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Fields, Length, Status};
use net::{BindAddress, Exchange, Fault, Options, RequestRecord, Server, Service};
use times::Millis;

/// Timeout, to make a hanging test fail.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const FILE_BYTES: usize = 3_000_000;
pub(crate) const BIG_BYTES: usize = 12_000_000;

/// Returns bytes that differ everywhere.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

pub(crate) struct App {
    file: Arc<File>,
}

pub(crate) fn app() -> std::io::Result<App> {
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(&pattern(FILE_BYTES))?;
    Ok(App { file: Arc::new(file) })
}

impl Service for App {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let none = Fields::new();
        match exchange.request().path() {
            b"/slow" => {
                exchange.core().sleep(Millis(200)).await;
                exchange.reply(Status::OK, &none, b"slow").await
            }
            b"/hang" => {
                exchange.core().sleep(Millis(600_000)).await;
                exchange.reply(Status::OK, &none, b"never").await
            }
            b"/until-close" => {
                exchange.begin(Status::OK, &none, Length::Unknown);
                exchange.write(b"and then it").await?;
                exchange.flush().await?;
                exchange.core().sleep(Millis(600_000)).await;
                Ok(())
            }
            b"/file" => {
                // The query is the number of repetitions.
                let times = exchange.request().query().map_or(1, |query| u64::from(query[0] - b'0'));
                exchange.begin(Status::OK, &none, Length::Known(times * FILE_BYTES as u64));
                for _ in 0..times {
                    exchange.write_file(&self.file, 0..FILE_BYTES as u64).await?;
                }
                Ok(())
            }
            b"/big" => exchange.reply(Status::OK, &none, &vec![b'x'; BIG_BYTES]).await,
            b"/echo" => {
                exchange.limit_body(u64::MAX)?;
                exchange.begin(Status::OK, &none, Length::Unknown);
                while let Some(piece) = exchange.read().await? {
                    let piece = piece.to_vec();
                    exchange.write(&piece).await?;
                }
                Ok(())
            }
            _ => exchange.reply(Status::OK, &none, b"hello").await,
        }
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

pub(crate) fn tcp() -> BindAddress {
    BindAddress::Tcp("127.0.0.1:0".parse().unwrap())
}

pub(crate) fn start(options: &Options, binds: &[BindAddress]) -> Server {
    Server::start(options, binds, |_| app()).unwrap()
}

pub(crate) fn options(threads: usize) -> Options {
    Options { threads, ..Options::default() }
}

/// Returns a path for a socket that no other test uses.
pub(crate) fn socket_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("komainu-net-{}-{number}.sock", std::process::id()))
}

/// Stops the server and waits; returns whether all connections were finished.
pub(crate) fn finish(server: Server) -> bool {
    server.stop_handle().drain();
    server.join().unwrap()
}

/// Waits until `done` returns true; fails after [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }
}

/// A kept-alive connection.
pub(crate) struct Client(BufReader<Socket>);

/// A received response.
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn closes(&self) -> bool {
        self.head.contains("\r\nConnection: close\r\n")
    }
}

impl Client {
    pub(crate) fn connect(to: &BindAddress) -> std::io::Result<Client> {
        let socket = match to {
            BindAddress::Tcp(address) => {
                let socket = TcpStream::connect(address)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                Socket::Tcp(socket)
            }
            BindAddress::Unix(path) => {
                let socket = UnixStream::connect(path)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                Socket::Unix(socket)
            }
            other => panic!("no test connects to {other}"),
        };
        Ok(Client(BufReader::new(socket)))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self.0.get_mut() {
            Socket::Tcp(socket) => socket.write_all(bytes),
            Socket::Unix(socket) => socket.write_all(bytes),
        }
    }

    /// Fills `bytes` with received bytes of any kind.
    pub(crate) fn read_exact(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact(bytes)
    }

    /// Returns a second handle, to send while this one reads.
    pub(crate) fn sender(&self) -> Box<dyn Write + Send> {
        match self.0.get_ref() {
            Socket::Tcp(socket) => Box::new(socket.try_clone().unwrap()),
            Socket::Unix(socket) => Box::new(socket.try_clone().unwrap()),
        }
    }

    pub(crate) fn ask(&mut self, path: &str) -> std::io::Result<Answer> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes())?;
        self.answer()
    }

    /// Reads one response, framed by length or chunks.
    pub(crate) fn answer(&mut self) -> std::io::Result<Answer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = Vec::new();
        match length {
            Some(length) => {
                body.resize(length.parse().unwrap(), 0);
                self.0.read_exact(&mut body)?;
            }
            None => self.chunks(&mut body)?,
        }
        Ok(Answer { head, body })
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> std::io::Result<()> {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let len = usize::from_str_radix(line.trim_end(), 16).map_err(std::io::Error::other)?;
            let at = body.len();
            body.resize(at + len + 2, 0);
            self.0.read_exact(&mut body[at..])?;
            body.truncate(at + len);
            if len == 0 {
                return Ok(());
            }
        }
    }

    /// Reads the rest up to the end.
    pub(crate) fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).map(|_| bytes)
    }
}
