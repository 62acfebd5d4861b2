//! A server on a free port, and a client with assertions.

// Each test uses only a part of it.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use http::Status;
use net::{BindAddress, Counters, Exchange, Fault, MemoryBudget, RequestRecord, Server, Service};
use times::Millis;

use files::{FileOptions, FileOutcome, Files, Options};

use crate::scratch::ScratchFolder;

/// A server of a temporary folder.
pub(crate) struct Rig {
    pub(crate) folder: ScratchFolder,
    address: SocketAddr,
    server: Option<Server>,
    /// Memory that the server holds for its clients.
    pub(crate) memory: MemoryBudget,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

struct Site {
    files: Files,
    strip: &'static [u8],
}

impl Service for Site {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let path = x.request().normal_path()?.into_owned();
        let path = path.strip_prefix(self.strip).unwrap_or(&path);
        match self.files.serve(x, path).await? {
            FileOutcome::Done => Ok(()),
            FileOutcome::Declined(reason) => x.refuse(Status::NOT_FOUND, reason).await,
        }
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

impl Rig {
    /// Serves the temporary folder's `root`, after `prepare` has filled it and changed the options.
    pub(crate) fn new(prepare: impl FnOnce(&ScratchFolder, &mut Options)) -> Rig {
        Rig::stripping(b"", prepare)
    }

    /// Like [`Rig::new`], below a path prefix.
    pub(crate) fn stripping(strip: &'static [u8], prepare: impl FnOnce(&ScratchFolder, &mut Options)) -> Rig {
        let folder = ScratchFolder::new();
        let mut options = Options {
            files: FileOptions { root: vec![folder.path("root")], ..FileOptions::default() },
            ..Options::default()
        };
        // Every request checks the file unless the test changes this, so that no test has to wait.
        options.cache.revalidate_after = Millis(0);
        prepare(&folder, &mut options);
        let bind = BindAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let memory = MemoryBudget::new(1 << 40);
        let net_options = net::Options {
            memory: memory.clone(),
            timeouts: net::Timeouts { drain: Millis(100), ..net::Timeouts::default() },
            ..net::Options::default()
        };
        let server = Server::start(&net_options, &[bind], move |_| {
            Ok(Site { files: Files::new(options.clone())?, strip })
        })
        .unwrap();
        let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
        Rig { folder, address, server: Some(server), memory }
    }

    /// Opens a connection to the server.
    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Returns a counter of the server, summed over all cores.
    pub(crate) fn count(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.server.as_ref().unwrap().counters().iter().map(|core| of(core)).sum()
    }

    /// Sends a request and returns the connection.
    pub(crate) fn send(&self, method: &str, target: &str, fields: &[&str]) -> TcpStream {
        let mut stream = self.connect();
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        for field in fields {
            head.push_str(field);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn ask(&self, method: &str, target: &str, fields: &[&str]) -> Answer {
        let mut bytes = Vec::new();
        self.send(method, target, fields).read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[])
    }

    pub(crate) fn ask_for(&self, target: &str, fields: &[&str]) -> Answer {
        self.ask("GET", target, fields)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let server = self.server.take().unwrap();
        server.stop_handle().drain();
        let _ = server.join();
    }
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(bytes[..end + 2].to_vec()).unwrap();
        Answer { status: head[9..12].parse().unwrap(), head, body: bytes[end + 4..].to_vec() }
    }

    /// Returns the value of the only field with this name; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        let mut values = self.head.lines().skip(1).filter_map(|line| {
            let (other, value) = line.split_once(": ")?;
            other.eq_ignore_ascii_case(name).then_some(value)
        });
        let value = values.next().unwrap_or_default();
        assert!(values.next().is_none(), "{name} twice in {}", self.head);
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Asserts status and body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16, body: &str) -> &Answer {
        assert_eq!((self.status, self.text()), (status, body), "{}", self.head);
        self
    }

    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect_status(&self, status: u16) -> &Answer {
        assert_eq!(self.status, status, "{}{}", self.head, String::from_utf8_lossy(&self.body));
        self
    }

    /// Asserts a field; an empty value means that it is absent.
    #[track_caller]
    pub(crate) fn expect_field(&self, name: &str, value: &str) -> &Answer {
        assert_eq!(self.field(name), value, "{name} in {}", self.head);
        self
    }
}

/// Waits until `is_true` returns true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
