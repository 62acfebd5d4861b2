//! A client over a socket, for tests of servers.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{CONNECTION_WINDOW_BYTES, ENDS, Frame, FrameKind, PREFACE, STREAM_WINDOW_BYTES};

/// Timeout, to make a hanging test fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum size of a body frame.
const PIECE_BYTES: usize = 10_000;

/// Received parts of a response.
#[derive(Debug, Default)]
pub struct ToyResponse {
    /// Three digits; empty before the head.
    pub status: String,
    /// The field lines.
    pub lines: String,
    /// The body.
    pub body: Vec<u8>,
    /// The trailer lines.
    pub trailers: String,
    /// Whether the response is complete.
    pub ended: bool,
    /// Reason with which the server has reset the stream, if it has.
    pub reset: Option<u8>,
}

/// A request body in progress.
struct Upload {
    bytes: Vec<u8>,
    at: usize,
    window: usize,
}

/// A client connection that sends and receives at the same time, as far as flow control permits.
pub struct ToyConnection {
    socket: TcpStream,
    out: Vec<u8>,
    unparsed: Vec<u8>,
    uploads: BTreeMap<u32, Upload>,
    /// Send window of the connection.
    window: usize,
    responses: BTreeMap<u32, ToyResponse>,
    next_id: u32,
    /// Whether to update windows as soon as data is received, like a client that reads.
    pub updates_windows: bool,
    /// Whether the server accepts no further streams.
    pub has_received_goaway: bool,
}

impl ToyConnection {
    /// Connects to a server.
    ///
    /// # Errors
    /// System errors.
    pub fn connect(address: SocketAddr) -> io::Result<ToyConnection> {
        let socket = TcpStream::connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(ToyConnection {
            socket,
            out: PREFACE.to_vec(),
            unparsed: Vec::new(),
            uploads: BTreeMap::new(),
            window: CONNECTION_WINDOW_BYTES,
            responses: BTreeMap::new(),
            next_id: 1,
            updates_windows: true,
            has_received_goaway: false,
        })
    }

    fn frame(&mut self, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
        Frame { kind, flags, id, payload }.write(&mut self.out);
    }

    /// Sets the initial send window of the server for later streams.
    pub fn set_first_window(&mut self, bytes: u32) {
        self.frame(FrameKind::FirstWindow, 0, 0, &bytes.to_be_bytes());
    }

    /// Adds to the server's send window of a stream.
    pub fn send_window_update(&mut self, id: u32, bytes: u32) {
        self.frame(FrameKind::Window, 0, id, &bytes.to_be_bytes());
    }

    /// Opens a stream. `head` is a request line and field lines, without the empty line.
    pub fn open(&mut self, head: &str, body: Option<Vec<u8>>) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        let flags = if body.is_none() { ENDS } else { 0 };
        self.frame(FrameKind::Open, flags, id, format!("{head}\r\n\r\n").as_bytes());
        self.responses.insert(id, ToyResponse::default());
        if let Some(bytes) = body {
            self.uploads.insert(id, Upload { bytes, at: 0, window: STREAM_WINDOW_BYTES });
        }
        id
    }

    /// Resets a stream.
    pub fn reset(&mut self, id: u32) {
        self.uploads.remove(&id);
        self.responses.remove(&id);
        self.frame(FrameKind::Reset, 0, id, &[4]);
    }

    /// Returns the received parts of a response.
    ///
    /// # Panics
    /// Panics if the stream was never opened or was reset with [`ToyConnection::reset`].
    #[must_use]
    pub fn response(&self, id: u32) -> &ToyResponse {
        &self.responses[&id]
    }

    /// Sends and receives until every response is complete or its stream was reset.
    ///
    /// # Errors
    /// Fails if the connection breaks or this takes too long.
    pub fn finish(&mut self) -> io::Result<()> {
        self.run_until(|it| it.responses.values().all(|got| got.ended || got.reset.is_some()))
    }

    /// Sends and receives until `is_done` returns true.
    ///
    /// # Errors
    /// Fails if the connection breaks or this takes too long.
    pub fn run_until(&mut self, is_done: impl Fn(&ToyConnection) -> bool) -> io::Result<()> {
        let begun = Instant::now();
        while !is_done(self) {
            if !self.step()? {
                std::thread::sleep(Duration::from_micros(200));
                if begun.elapsed() > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
    }

    /// Sends and receives what is possible now. Returns false if nothing was.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn step(&mut self) -> io::Result<bool> {
        self.fill_out();
        let mut moved = false;
        if !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(len) => {
                    self.out.drain(..len);
                    moved |= len > 0;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let mut buffer = vec![0; 64 * 1024];
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.unparsed.extend_from_slice(&buffer[..len]);
                self.receive()?;
                moved = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(moved)
    }

    /// Frames a piece of each body in turn, as far as the windows permit.
    fn fill_out(&mut self) {
        let mut ended = Vec::new();
        for (&id, upload) in &mut self.uploads {
            let left = upload.bytes.len() - upload.at;
            let len = left.min(upload.window).min(self.window).min(PIECE_BYTES);
            if len > 0 && self.out.len() < 256 * 1024 {
                let payload = &upload.bytes[upload.at..upload.at + len];
                Frame { kind: FrameKind::Data, flags: 0, id, payload }.write(&mut self.out);
                upload.at += len;
                upload.window -= len;
                self.window -= len;
            }
            if upload.at == upload.bytes.len() {
                Frame { kind: FrameKind::Data, flags: ENDS, id, payload: b"" }.write(&mut self.out);
                ended.push(id);
            }
        }
        for id in ended {
            self.uploads.remove(&id);
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let unparsed = std::mem::take(&mut self.unparsed);
        let mut at = 0;
        while let Some((frame, len)) =
            Frame::read(&unparsed[at..]).map_err(|reject| io::Error::other(reject.reason))?
        {
            at += len;
            let text = || String::from_utf8_lossy(frame.payload).into_owned();
            if frame.kind == FrameKind::GoAway {
                self.has_received_goaway = true;
            }
            if frame.kind == FrameKind::Window {
                let bytes = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                match self.uploads.get_mut(&frame.id) {
                    Some(upload) => upload.window += bytes as usize,
                    None if frame.id == 0 => self.window += bytes as usize,
                    None => {}
                }
            }
            // Frames of a stream that was reset may still arrive.
            let got = self.responses.get_mut(&frame.id);
            if frame.kind == FrameKind::Data && self.updates_windows && !frame.payload.is_empty() {
                let bytes = (frame.payload.len() as u32).to_be_bytes();
                Frame { kind: FrameKind::Window, flags: 0, id: 0, payload: &bytes }.write(&mut self.out);
                if got.is_some() {
                    Frame { kind: FrameKind::Window, flags: 0, id: frame.id, payload: &bytes }
                        .write(&mut self.out);
                }
            }
            let Some(got) = got else { continue };
            match frame.kind {
                FrameKind::Head => {
                    let text = text();
                    let (status, lines) = text.split_at(3);
                    (got.status, got.lines) = (status.to_owned(), lines.to_owned());
                }
                FrameKind::Data => got.body.extend_from_slice(frame.payload),
                FrameKind::Trailers => got.trailers = text(),
                FrameKind::Reset => {
                    got.reset = frame.payload.first().copied();
                    self.uploads.remove(&frame.id);
                }
                _ => {}
            }
            got.ended |= frame.flags & ENDS != 0;
        }
        self.unparsed = unparsed[at..].to_vec();
        Ok(())
    }
}
