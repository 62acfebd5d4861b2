//! A client over a socket, for tests of servers.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{CONNECTION_WINDOW_BYTES, ENDS, Frame, FrameKind, PREFACE, STREAM_WINDOW_BYTES};

/// A test that hangs must fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// Body bytes that are sent together.
const PIECE_BYTES: usize = 10_000;

/// What came on one stream.
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
    /// Whether it is whole.
    pub ended: bool,
    /// Why the server has reset the stream, if it has.
    pub reset: Option<u8>,
}

/// A request body under way.
struct Upload {
    bytes: Vec<u8>,
    at: usize,
    window: usize,
}

/// A connection whose client sends and receives at once, as far as windows allow.
pub struct ToyConnection {
    socket: TcpStream,
    out: Vec<u8>,
    unparsed: Vec<u8>,
    uploads: BTreeMap<u32, Upload>,
    /// Body bytes that may be sent on all streams together.
    window: usize,
    responses: BTreeMap<u32, ToyResponse>,
    next_id: u32,
    /// Whether what is received may be sent again at once, as a client does that reads.
    pub grants: bool,
    /// Whether the server takes no further stream.
    pub goes_away: bool,
}

impl ToyConnection {
    /// Connects.
    ///
    /// # Errors
    /// The system's.
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
            grants: true,
            goes_away: false,
        })
    }

    fn frame(&mut self, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
        Frame { kind, flags, id, payload }.write(&mut self.out);
    }

    /// What the server may send at first on streams that are opened from now on.
    pub fn first_window(&mut self, bytes: u32) {
        self.frame(FrameKind::FirstWindow, 0, 0, &bytes.to_be_bytes());
    }

    /// Lets the server send more on a stream.
    pub fn grant(&mut self, id: u32, bytes: u32) {
        self.frame(FrameKind::Window, 0, id, &bytes.to_be_bytes());
    }

    /// Opens a stream. `head` is a request line and field lines, without the empty line; without a body it has none.
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

    /// Gives a stream up.
    pub fn reset(&mut self, id: u32) {
        self.uploads.remove(&id);
        self.responses.remove(&id);
        self.frame(FrameKind::Reset, 0, id, &[4]);
    }

    /// What has come on a stream.
    ///
    /// # Panics
    /// Where it was never opened, or given up.
    #[must_use]
    pub fn response(&self, id: u32) -> &ToyResponse {
        &self.responses[&id]
    }

    /// Sends and receives until every response is whole, or its stream reset.
    ///
    /// # Errors
    /// The connection broke, or this takes too long.
    pub fn finish(&mut self) -> io::Result<()> {
        self.run_until(|it| it.responses.values().all(|got| got.ended || got.reset.is_some()))
    }

    /// Sends and receives until that is so.
    ///
    /// # Errors
    /// The connection broke, or this takes too long.
    pub fn run_until(&mut self, is_so: impl Fn(&ToyConnection) -> bool) -> io::Result<()> {
        let begun = Instant::now();
        while !is_so(self) {
            if !self.step()? {
                std::thread::sleep(Duration::from_micros(200));
                if begun.elapsed() > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
    }

    /// Sends and receives what can be now. False where nothing could.
    ///
    /// # Errors
    /// The connection broke.
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

    /// Frames bodies, a piece of each in turn, as far as the windows allow.
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
                self.goes_away = true;
            }
            if frame.kind == FrameKind::Window {
                let bytes = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                match self.uploads.get_mut(&frame.id) {
                    Some(upload) => upload.window += bytes as usize,
                    None if frame.id == 0 => self.window += bytes as usize,
                    None => {}
                }
            }
            // Of a stream that was given up something may still be on its way.
            let got = self.responses.get_mut(&frame.id);
            if frame.kind == FrameKind::Data && self.grants && !frame.payload.is_empty() {
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
