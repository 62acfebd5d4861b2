//! A toy multiplexed protocol for tests: framed streams with flow control, resets and an end. It corresponds
//! to HTTP/2 without header compression and settings, so that tests of handlers over streams can examine
//! every byte.
//!
//! A client begins with [`PREFACE`]. A frame consists of kind, flags, stream ID (4 bytes), length (2 bytes)
//! and payload. Requests are HTTP/1 heads in `OPEN` frames.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{BodySize, Fields, Limits, Reject, RequestHead, Status, Version};
use times::Moment;

use crate::fault::Fault;
use crate::memory::MemoryBudget;
use crate::mux::{
    AbortReason, ByteProtocol, ContentFrames, MuxEvent, MuxProtocol, ResetReason, StreamPriority,
    StreamRequest,
};

mod connection;

pub use connection::{ToyConnection, ToyResponse};

/// Connection preface of the client.
pub const PREFACE: &[u8] = b"TOY * HTTP/2.0\r\n\r\n";
/// Size of a frame header.
pub const FRAME_HEAD_BYTES: usize = 8;
/// Initial receive window of a stream.
pub const STREAM_WINDOW_BYTES: usize = 64 * 1024;
/// Initial receive window of the connection.
pub const CONNECTION_WINDOW_BYTES: usize = 1024 * 1024;

/// Maximum payload of a frame with file content.
const READ_BYTES_MAX: usize = 16 * 1024;

/// Whether servers of this process accept the protocol.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Makes all servers of this process accept the protocol, on every address.
pub fn enable() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Waits until a server holds no memory for its peers.
///
/// # Panics
/// Panics if that takes longer than 20 s.
pub fn assert_released(memory: &MemoryBudget) {
    let begun = Instant::now();
    while memory.held_bytes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes are still held", memory.held_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_enabled() -> bool {
    cfg!(test) || IS_ENABLED.load(Ordering::Relaxed)
}

/// Flag of a frame that ends its sender's side of the stream.
pub const ENDS: u8 = 1;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FrameKind {
    /// A request head. Bits 4 to 6 of the flags are the urgency; bit 3 marks a non-incremental request.
    Open = 1,
    /// A response head: three digits, then field lines.
    Head,
    /// Body bytes.
    Data,
    /// Trailer lines, which end a side.
    Trailers,
    /// One byte: 1 refused, 2 answered, 3 failed, 4 cancelled by the client.
    Reset,
    /// A window update of 4 bytes, for a stream or, with stream ID 0, the connection.
    Window,
    /// From a client: 4 bytes, the initial send window of later streams. Default [`STREAM_WINDOW_BYTES`].
    FirstWindow,
    /// From the server: no further streams are accepted.
    GoAway,
    /// From a client, and echoed to it.
    Ping,
    /// From a client: the flags are those of `OPEN`.
    Priority,
}

impl FrameKind {
    fn of(byte: u8) -> Option<FrameKind> {
        use FrameKind::{Data, FirstWindow, GoAway, Head, Open, Ping, Priority, Reset, Trailers, Window};
        [Open, Head, Data, Trailers, Reset, Window, FirstWindow, GoAway, Ping, Priority]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// The type.
    pub kind: FrameKind,
    /// [`ENDS`], and flags of the type.
    pub flags: u8,
    /// Stream ID; 0 for the connection.
    pub id: u32,
    /// The payload.
    pub payload: &'b [u8],
}

impl<'b> Frame<'b> {
    /// Parses the frame at the start of `bytes`; returns it and its length, `None` if it is incomplete.
    ///
    /// # Errors
    /// 400 for an unknown type.
    pub fn read(bytes: &'b [u8]) -> Result<Option<(Frame<'b>, usize)>, Reject> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        let [kind, flags, a, b, c, d, high, low] = *head;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let kind = FrameKind::of(kind).ok_or(Reject::bad_request("unknown frame"))?;
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        let frame = Frame { kind, flags, id: u32::from_be_bytes([a, b, c, d]), payload };
        Ok(Some((frame, FRAME_HEAD_BYTES + len)))
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// Panics if the payload does not fit into a frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let len = u16::try_from(self.payload.len()).expect("a payload that fits a frame");
        out.extend_from_slice(&[self.kind as u8, self.flags]);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(self.payload);
    }
}

/// The server's state of a stream.
struct ToyStream {
    /// Send window.
    send_bytes: usize,
    /// Receive window.
    receive_bytes: usize,
    /// Bytes received for which the window was not updated.
    unread_bytes: usize,
    /// Remaining body bytes, if the head announced a length.
    remaining_bytes: Option<u64>,
    received_end: bool,
}

/// The server side of the protocol.
pub(crate) struct ToyMachine {
    has_begun: bool,
    head: RequestHead,
    streams: HashMap<u32, ToyStream>,
    last_id: u32,
    first_window: usize,
    send_bytes: usize,
    receive_bytes: usize,
    /// Bytes read for which no window update was sent.
    ungranted_bytes: usize,
    out: Vec<u8>,
    has_sent_goaway: bool,
}

impl ToyMachine {
    pub(crate) fn new() -> ToyMachine {
        ToyMachine {
            has_begun: false,
            head: RequestHead::default(),
            streams: HashMap::new(),
            last_id: 0,
            first_window: STREAM_WINDOW_BYTES,
            send_bytes: CONNECTION_WINDOW_BYTES,
            receive_bytes: CONNECTION_WINDOW_BYTES,
            ungranted_bytes: 0,
            out: Vec::new(),
            has_sent_goaway: false,
        }
    }

    fn frame(&mut self, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
        Frame { kind, flags, id, payload }.write(&mut self.out);
    }

    fn open(&mut self, frame: Frame<'_>, limits: &Limits) -> Result<MuxEvent<'static>, Reject> {
        if frame.id <= self.last_id {
            return Err(Reject::bad_request("numbers of streams rise"));
        }
        self.last_id = frame.id;
        self.head.reset();
        let bytes = frame.payload.to_vec();
        let parsed = self.head.parse(&bytes, limits);
        let refused = match parsed {
            Ok(true) => None,
            Ok(false) => Some(Reject::bad_request("incomplete head")),
            Err(reject) => Some(reject),
        };
        let ends = frame.flags & ENDS != 0;
        let mut head = http::Head::clone(&self.head);
        head.version = Version::Http2;
        head.body = match (ends, head.body) {
            (true, _) => BodySize::None,
            (false, BodySize::Known(length)) => BodySize::Known(length),
            (false, _) => BodySize::Unknown,
        };
        let left = if let BodySize::Known(length) = head.body { Some(length) } else { None };
        let stream = ToyStream {
            send_bytes: self.first_window,
            receive_bytes: STREAM_WINDOW_BYTES,
            unread_bytes: 0,
            remaining_bytes: left,
            received_end: ends,
        };
        self.streams.insert(frame.id, stream);
        let request =
            StreamRequest { head, bytes, priority: priority(frame.flags), rejection: refused, ended: ends };
        Ok(MuxEvent::Request(frame.id, Box::new(request)))
    }

    fn data<'b>(&mut self, frame: Frame<'b>) -> Result<Option<MuxEvent<'b>>, Reject> {
        let len = frame.payload.len();
        self.receive_bytes =
            self.receive_bytes.checked_sub(len).ok_or(Reject::bad_request("more sent than was granted"))?;
        let Some(stream) = self.streams.get_mut(&frame.id) else {
            self.count_read(len);
            return Ok(None);
        };
        stream.receive_bytes =
            stream.receive_bytes.checked_sub(len).ok_or(Reject::bad_request("more sent than was granted"))?;
        stream.unread_bytes += len;
        if stream.received_end {
            return Err(Reject::bad_request("data after the end"));
        }
        if let Some(left) = &mut stream.remaining_bytes {
            *left = left.checked_sub(len as u64).ok_or(Reject::bad_request("more content than announced"))?;
        }
        let ends = frame.flags & ENDS != 0;
        stream.received_end = ends;
        if ends && stream.remaining_bytes.is_some_and(|left| left > 0) {
            return Err(Reject::bad_request("an end in the wrong place"));
        }
        Ok(Some(MuxEvent::Data(frame.id, frame.payload, ends)))
    }

    fn window(&mut self, frame: Frame<'_>) -> Result<Option<MuxEvent<'static>>, Reject> {
        let more = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)) as usize;
        if frame.id == 0 {
            self.send_bytes += more;
            return Ok(Some(MuxEvent::Writable(None)));
        }
        let Some(stream) = self.streams.get_mut(&frame.id) else { return Ok(None) };
        stream.send_bytes += more;
        Ok(Some(MuxEvent::Writable(Some(frame.id))))
    }

    /// Counts bytes that were read, and updates the connection's window when there are many.
    fn count_read(&mut self, bytes: usize) {
        self.ungranted_bytes += bytes;
        if self.ungranted_bytes >= CONNECTION_WINDOW_BYTES / 4 {
            let owed = std::mem::take(&mut self.ungranted_bytes);
            self.receive_bytes += owed;
            self.frame(FrameKind::Window, 0, 0, &(owed as u32).to_be_bytes());
        }
    }

    fn remove_stream(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.remove(&id) else { return false };
        self.count_read(stream.unread_bytes);
        if self.streams.is_empty() {
            self.streams.shrink_to(16);
        }
        true
    }

    fn take<'b>(&mut self, frame: Frame<'b>, limits: &Limits) -> Result<Option<MuxEvent<'b>>, Reject> {
        let ends = frame.flags & ENDS != 0;
        match frame.kind {
            FrameKind::Open => self.open(frame, limits).map(Some),
            FrameKind::Data if !frame.payload.is_empty() => self.data(frame),
            FrameKind::Data | FrameKind::Trailers if ends => {
                let Some(stream) = self.streams.get_mut(&frame.id) else { return Ok(None) };
                if std::mem::replace(&mut stream.received_end, true)
                    || stream.remaining_bytes.is_some_and(|left| left > 0)
                {
                    return Err(Reject::bad_request("an end in the wrong place"));
                }
                Ok(Some(MuxEvent::End(frame.id, fields(frame.payload))))
            }
            FrameKind::Reset => {
                Ok(self.remove_stream(frame.id).then_some(MuxEvent::Reset(frame.id, AbortReason::Peer)))
            }
            FrameKind::Window => self.window(frame),
            FrameKind::Priority => Ok(Some(MuxEvent::Priority(frame.id, priority(frame.flags)))),
            FrameKind::FirstWindow => {
                let bytes = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                self.first_window = bytes as usize;
                Ok(None)
            }
            FrameKind::Ping => {
                self.frame(FrameKind::Ping, 0, 0, frame.payload);
                Ok(None)
            }
            _ => Err(Reject::bad_request("a frame in the wrong place")),
        }
    }
}

fn priority(flags: u8) -> StreamPriority {
    StreamPriority { urgency: flags >> 4 & 7, is_incremental: flags & 8 == 0 }
}

/// Parses field lines.
fn fields(lines: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for line in lines.split(|&byte| byte == b'\n') {
        if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            // Invalid lines are ignored.
            let _ = fields.try_push(&line[..colon], line[colon + 1..].trim_ascii());
        }
    }
    fields
}

impl ContentFrames for ToyMachine {
    fn capacity(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, |stream| stream.send_bytes.min(self.send_bytes))
    }

    fn data(&mut self, id: u32, bytes: &[u8], ends: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send_bytes -= bytes.len();
        self.send_bytes -= bytes.len();
        self.frame(FrameKind::Data, u8::from(ends), id, bytes);
    }

    fn data_in_place(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize {
        let mut bytes = vec![0; len.min(self.capacity(id)).min(READ_BYTES_MAX)];
        let taken = read(&mut [&mut bytes]);
        if taken > 0 {
            ContentFrames::data(self, id, &bytes[..taken], ends && taken == len);
        }
        taken
    }

    fn trailers(&mut self, id: u32, trailers: &Fields) {
        if self.streams.contains_key(&id) {
            self.frame(FrameKind::Trailers, ENDS, id, trailers.as_bytes());
        }
    }
}

impl MuxProtocol for ToyMachine {
    fn head(&mut self, id: u32, status: Status, lines: &[u8], ends: bool) {
        if self.streams.contains_key(&id) {
            let payload = [&status.digits()[..], lines].concat();
            self.frame(FrameKind::Head, u8::from(ends), id, &payload);
        }
    }

    fn grant(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.unread_bytes -= bytes;
        let is_open = !stream.received_end;
        if is_open {
            stream.receive_bytes += bytes;
        }
        self.count_read(bytes);
        if is_open {
            self.frame(FrameKind::Window, 0, id, &(bytes as u32).to_be_bytes());
        }
    }

    fn reset(&mut self, id: u32, reason: ResetReason) {
        if self.remove_stream(id) {
            self.frame(FrameKind::Reset, 0, id, &[reason as u8 + 1]);
        }
    }

    fn close(&mut self, id: u32) {
        self.remove_stream(id);
    }

    fn go_away(&mut self, _is_now: bool) {
        if !std::mem::replace(&mut self.has_sent_goaway, true) {
            self.frame(FrameKind::GoAway, 0, 0, b"");
        }
    }

    fn is_peer_leaving(&self) -> bool {
        false
    }

    fn held_bytes(&self) -> usize {
        self.out.capacity() + self.streams.capacity() * (size_of::<ToyStream>() + 16)
    }

    fn unsent_bytes(&mut self) -> usize {
        self.out().len()
    }

    fn shared_out(&mut self) -> Option<&mut Vec<u8>> {
        Some(self.out())
    }
}

impl ByteProtocol for ToyMachine {
    fn feed<'b>(
        &mut self,
        bytes: &'b [u8],
        limits: &Limits,
        _now: Moment,
    ) -> Result<(usize, Option<MuxEvent<'b>>), Fault> {
        if !self.has_begun {
            self.has_begun = bytes.starts_with(PREFACE);
            return Ok((if self.has_begun { PREFACE.len() } else { 0 }, None));
        }
        let Some((frame, len)) = Frame::read(bytes)? else { return Ok((0, None)) };
        let event = self.take(frame, limits)?;
        Ok((len, event))
    }

    fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
