//! Output: heads, content, trailers, and control operations of the caller.

use http::append::append;
use http::{Fields, Method, Name, Status};

use crate::encode::HpackEncoder;
use crate::error::ErrorCode;
use crate::frame::{self, FrameHeader, HEADER_BYTES, MAX_31_BITS, PAYLOAD_BYTES_MAX, flag, kind};
use crate::ledger::price;
use crate::machine::{Machine, SHUTDOWN_PING, Shutdown};
use crate::streams::{Receiving, Sending};

/// A DATA frame smaller than this, in bytes, that was limited by a window earns no credit: the peer opens its
/// window in tiny steps.
const SMALL_DATA_BYTES: usize = 256;

/// Maximum number of DATA frames filled by one call of `read`.
const FRAMES_READ_MAX: usize = 4;

/// The pseudo-header fields of a client's request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The method's name.
    pub method: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a [u8],
    /// `host[:port]`.
    pub authority: &'a [u8],
    /// The path and the query; empty for CONNECT.
    pub path: &'a [u8],
    /// The protocol of an extended CONNECT.
    pub protocol: Option<&'a [u8]>,
}

/// The reason that a client cannot open another stream on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStream {
    /// The server's limit of concurrent streams is reached: wait, or use another connection.
    Full,
    /// The connection is shutting down: use another one.
    Closing,
    /// The server does not accept extended CONNECT.
    NoConnectProtocol,
}

impl Machine {
    /// Moves the pending control frames to the end of `out`. Every other sending method does this first.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.control);
        self.control.clear();
        // Release the large buffer that a burst of answers may have left.
        if self.control.capacity() > 1024 {
            self.control = Vec::new();
        }
    }

    /// Whether control frames are pending for [`Machine::flush`].
    #[must_use]
    pub fn wants_flush(&self) -> bool {
        !self.control.is_empty()
    }

    /// Begins a response's head, which ends when the writer is dropped. Returns `None` if the stream was
    /// reset or its response has begun. A 1xx head may be followed by another head.
    pub fn respond<'a>(
        &'a mut self,
        stream: u32,
        status: Status,
        ended: bool,
        out: &'a mut Vec<u8>,
    ) -> Option<HeadWriter<'a>> {
        if !self.is_sending(stream, Sending::Head) {
            return None;
        }
        if !status.is_informational() {
            self.account_head(stream, ended);
        }
        let writer = self.head_writer(stream, ended, out);
        writer.encoder.status(writer.out, status);
        Some(writer)
    }

    /// Opens a stream with a request's head, which ends when the writer is dropped.
    ///
    /// # Errors
    /// [`NoStream`] if no stream can be opened at the moment.
    pub fn request<'a>(
        &'a mut self,
        line: &RequestLine<'_>,
        ended: bool,
        out: &'a mut Vec<u8>,
    ) -> Result<(u32, HeadWriter<'a>), NoStream> {
        debug_assert!(!self.is_server);
        self.can_request()?;
        if line.protocol.is_some() && !self.peer.connect_protocol {
            return Err(NoStream::NoConnectProtocol);
        }
        let stream = self.next_stream;
        self.next_stream += 2;
        let sending = if ended { Sending::Ended } else { Sending::Body };
        let mut record = self.new_stream(stream, Receiving::Head, sending);
        record.method = Method::of(line.method);
        let is_connect = record.method == Method::Connect;
        self.add_stream(record);
        let writer = self.head_writer(stream, ended, out);
        writer.encoder.pseudo(writer.out, METHOD, line.method);
        if !is_connect || line.protocol.is_some() {
            writer.encoder.pseudo(writer.out, SCHEME, line.scheme);
            writer.encoder.pseudo(writer.out, PATH, line.path);
        }
        writer.encoder.pseudo(writer.out, AUTHORITY, line.authority);
        if let Some(protocol) = line.protocol {
            writer.encoder.field(writer.out, b":protocol", protocol);
        }
        Ok((stream, writer))
    }

    /// Checks that a client can open another stream now.
    ///
    /// # Errors
    /// The reason, as a [`NoStream`].
    pub fn can_request(&self) -> Result<(), NoStream> {
        let ends =
            self.failed.is_some() || self.peer_last_stream.is_some() || self.shutdown != Shutdown::None;
        if ends || self.next_stream > MAX_31_BITS {
            return Err(NoStream::Closing);
        }
        if self.open_streams >= self.peer.streams_max {
            return Err(NoStream::Full);
        }
        Ok(())
    }

    fn account_head(&mut self, stream: u32, ended: bool) {
        if let Some(record) = self.streams.find_mut(stream) {
            record.sending = if ended { Sending::Ended } else { Sending::Body };
        }
        if ended {
            self.update_accounting(stream);
        }
    }

    fn head_writer<'a>(&'a mut self, stream: u32, ended: bool, out: &'a mut Vec<u8>) -> HeadWriter<'a> {
        self.flush(out);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin(out);
        let frame_max = (self.peer.frame_bytes_max as usize).min(PAYLOAD_BYTES_MAX);
        HeadWriter { encoder: &mut self.encoder, out, start, stream, ended, frame_max }
    }

    /// Number of bytes of content that may be sent on the stream now.
    #[must_use]
    pub fn sendable(&self, stream: u32) -> usize {
        match self.streams.find(stream) {
            Some(record) if record.reset.is_none() && record.sending == Sending::Body => {
                record.send_window.available().min(self.send_window.available())
            }
            _ => 0,
        }
    }

    /// Writes the header of a DATA frame for at most `len` bytes, limited by the windows and the maximum
    /// frame size. Returns the number of bytes, which must follow. `ended` ends the message if all of `len`
    /// fits; an empty frame can always end it.
    pub fn data_header(&mut self, stream: u32, len: usize, ended: bool, out: &mut Vec<u8>) -> usize {
        if !self.is_sending(stream, Sending::Body) {
            return 0;
        }
        let max = self.sendable(stream).min(self.peer.frame_bytes_max as usize).min(PAYLOAD_BYTES_MAX);
        let taken = len.min(max);
        let ends = ended && taken == len;
        if taken == 0 && !ends {
            return 0;
        }
        self.flush(out);
        out.extend_from_slice(&self.account_data(stream, taken, ends));
        taken
    }

    /// Accounts for a DATA frame of `taken` bytes and returns its header.
    fn account_data(&mut self, stream: u32, taken: usize, ends: bool) -> [u8; HEADER_BYTES] {
        let flags = if ends { flag::END_STREAM } else { 0 };
        self.send_window.0 -= taken as i64;
        if let Some(record) = self.streams.find_mut(stream) {
            record.send_window.0 -= taken as i64;
            if ends {
                record.sending = Sending::Ended;
            }
        }
        if taken >= SMALL_DATA_BYTES || self.sendable(stream) > 0 {
            self.earn(stream, price::DATA_SENT + taken as u32 / price::DATA_BYTES_PER_FRAME);
        }
        if ends {
            self.update_accounting(stream);
        }
        FrameHeader { len: taken, kind: kind::DATA, flags, stream }.bytes()
    }

    /// Adds credit that a stream has earned.
    pub(crate) fn earn(&mut self, stream: u32, credit: u32) {
        self.ledger.add_credit(credit);
        if let Some(record) = self.streams.find_mut(stream) {
            record.earned = record.earned.saturating_add(credit);
        }
    }

    /// All output was sent: what the peer resets from now on, it may have received.
    pub fn mark_sent(&mut self) {
        self.streams.forget_unsent();
    }

    /// Writes up to four DATA frames whose content `read` fills in place, with at most `len` bytes and as
    /// much as the windows allow. `read` is called at most once, fills its slices in order, and returns the
    /// number of bytes, which is also the return value. `ended` ends the message if all of `len` was read.
    pub fn data_in_place(
        &mut self,
        stream: u32,
        len: usize,
        ended: bool,
        out: &mut Vec<u8>,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize {
        let frame = (self.peer.frame_bytes_max as usize).min(PAYLOAD_BYTES_MAX);
        let max = len.min(self.sendable(stream)).min(FRAMES_READ_MAX * frame);
        if max == 0 {
            return 0;
        }
        self.flush(out);
        let start = out.len();
        out.resize(start + max + max.div_ceil(frame) * HEADER_BYTES, 0);
        let mut slices: [&mut [u8]; FRAMES_READ_MAX] = Default::default();
        let mut count = 0;
        for (slice, place) in slices.iter_mut().zip(out[start..].chunks_mut(HEADER_BYTES + frame)) {
            *slice = &mut place[HEADER_BYTES..];
            count += 1;
        }
        let taken = read(&mut slices[..count]).min(max);
        out.truncate(start + taken + taken.div_ceil(frame) * HEADER_BYTES);
        let mut left = taken;
        for place in out[start..].chunks_mut(HEADER_BYTES + frame) {
            let filled = place.len() - HEADER_BYTES;
            left -= filled;
            let header = self.account_data(stream, filled, ended && taken == len && left == 0);
            place[..HEADER_BYTES].copy_from_slice(&header);
        }
        taken
    }

    /// Writes content in DATA frames, as much as the windows allow. Returns the number of bytes taken;
    /// `ended` ends the message if all content was taken.
    pub fn data(&mut self, stream: u32, content: &[u8], ended: bool, out: &mut Vec<u8>) -> usize {
        let mut at = 0;
        loop {
            let taken = self.data_header(stream, content.len() - at, ended, out);
            append(out, &content[at..at + taken]);
            at += taken;
            if taken == 0 || at == content.len() {
                return at;
            }
        }
    }

    /// Ends the message with its last DATA frame, which was not sent: sets END_STREAM in `frame`. Returns false, and
    /// changes nothing, if `frame` is not exactly a DATA frame of the stream, or the stream sends no content.
    pub fn end_with(&mut self, stream: u32, frame: &mut [u8]) -> bool {
        let header = FrameHeader::read(frame).filter(|header| {
            header.kind == kind::DATA && header.stream == stream && HEADER_BYTES + header.len == frame.len()
        });
        let Some(header) = header.filter(|_| self.is_sending(stream, Sending::Body)) else { return false };
        let ended = FrameHeader { flags: header.flags | flag::END_STREAM, ..header };
        frame[..HEADER_BYTES].copy_from_slice(&ended.bytes());
        self.account_head(stream, true);
        true
    }

    /// Ends the message with trailers. Returns false if the stream is not sending a body.
    pub fn send_trailers(&mut self, stream: u32, trailers: &Fields, out: &mut Vec<u8>) -> bool {
        if !self.is_sending(stream, Sending::Body) {
            return false;
        }
        self.account_head(stream, true);
        self.head_writer(stream, true, out).fields(trailers);
        true
    }

    /// Resets a stream unless it is closed. The stream must still be released.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if let Some(record) = self.streams.find_mut(stream)
            && !record.is_closed()
        {
            record.reset = Some(code);
            frame::rst_stream(&mut self.control, stream, code);
            self.update_accounting(stream);
        }
    }

    /// Returns `len` bytes of consumed content to the peer's windows.
    pub fn grant(&mut self, stream: u32, len: usize) {
        let Some(record) = self.streams.find_mut(stream) else { return };
        debug_assert!(len <= record.unread, "granted what was not received");
        let len = len.min(record.unread);
        record.unread -= len;
        record.receive_window.return_bytes(len);
        self.return_content(len);
        self.ledger.free(len);
        self.count_consumed(stream, len);
        if self.update_windows(stream) {
            self.measure_rate(stream);
        }
    }

    /// Enlarges the window of a stream, or of the connection (stream 0).
    pub fn grow_window(&mut self, stream: u32, size: u32) {
        match self.streams.find_mut(stream) {
            _ if stream == 0 => self.receive_window.grow(size),
            Some(record) => record.receive_window.grow(size),
            None => return,
        }
        self.update_windows(stream);
    }

    /// Discards the rest of a message's body: further data is dropped, and unread data is returned to the
    /// connection's window.
    pub fn discard(&mut self, stream: u32) {
        let Some(record) = self.streams.find_mut(stream) else { return };
        if record.receiving == Receiving::Body {
            record.receiving = Receiving::Discard;
        }
        let unread = record.unread;
        self.grant(stream, unread);
    }

    /// Charges bytes that the caller keeps for the stream, such as a response that the client does not read,
    /// until [`Machine::uncharge`] or the stream's release.
    pub fn charge(&mut self, stream: u32, bytes: usize) {
        if let Some(record) = self.streams.find_mut(stream) {
            record.held += bytes;
            self.ledger.hold(bytes);
        }
    }

    /// Subtracts charged bytes.
    pub fn uncharge(&mut self, stream: u32, bytes: usize) {
        if let Some(record) = self.streams.find_mut(stream) {
            let bytes = bytes.min(record.held);
            record.held -= bytes;
            self.ledger.free(bytes);
            self.is_throttled();
        }
    }

    /// Releases a stream that the caller no longer uses. A stream that is not closed is reset; with NO_ERROR
    /// if only the rest of a request is missing, because its response is complete. Returns whether the stream
    /// was cut: reset by either side, unless the peer did so with NO_ERROR.
    pub fn release(&mut self, stream: u32) -> bool {
        let Some(record) = self.streams.find(stream) else { return false };
        if !record.is_closed() {
            let code = match record.sending {
                Sending::Ended if self.is_server => ErrorCode::NO_ERROR,
                _ if self.is_server => ErrorCode::INTERNAL_ERROR,
                _ => ErrorCode::CANCEL,
            };
            self.reset(stream, code);
        }
        let Some(record) = self.streams.remove(stream) else { return false };
        let is_ended_early = record.reset_by_peer && record.reset == Some(ErrorCode::NO_ERROR);
        if record.reset.is_some() && !record.reset_by_peer {
            self.streams.remember_reset(stream);
        }
        if record.reset.is_none() && self.is_server {
            self.streams.remember_unsent(stream, record.earned);
        }
        self.return_content(record.unread);
        self.ledger.free(self.options.stream_bytes + record.held + record.unread);
        self.growth.stream_bytes_grown -= record.grown_bytes;
        self.update_windows(0);
        record.reset.is_some() && !is_ended_early
    }

    /// Sends a ping; the answer is reported as [`crate::Event::Pong`].
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.pings += 1;
        frame::ping(&mut self.control, false, payload);
    }

    /// Begins a graceful shutdown: the peer is notified and opens no more streams; streams in flight are
    /// still served. Once the peer has answered a ping, or the caller calls [`Machine::finish_shutdown`],
    /// later streams are ignored.
    pub fn shutdown(&mut self) {
        if self.shutdown != Shutdown::None || self.failed.is_some() {
            return;
        }
        if !self.is_server {
            return self.finish_shutdown();
        }
        self.shutdown = Shutdown::Announced;
        frame::goaway(&mut self.control, MAX_31_BITS, ErrorCode::NO_ERROR, "");
        self.ping(SHUTDOWN_PING);
    }

    /// Whether the graceful shutdown is complete: flush, and close the connection.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        matches!(self.shutdown, Shutdown::Final(_)) && self.streams.len() == 0
    }

    /// Ends the connection immediately with a GOAWAY frame; later calls of `Machine::feed` fail.
    pub fn close(&mut self, code: ErrorCode, reason: &'static str) {
        self.fail(crate::error::ConnectionError::new(code, reason));
    }

    /// Asks a server to change the priority of a response (RFC 9218); `value` is like `u=0..7`, `i`.
    pub fn prioritize(&mut self, stream: u32, value: &[u8]) {
        frame::priority_update(&mut self.control, stream, value);
    }
}

/// Indexes of pseudo-header fields in the static table.
const AUTHORITY: usize = 1;
const METHOD: usize = 2;
const PATH: usize = 4;
const SCHEME: usize = 6;

/// Writes the fields of a head. Names and values must come from a parsed head or from the server itself: they
/// are checked in debug builds only. The head ends when the writer is dropped.
#[derive(Debug)]
pub struct HeadWriter<'a> {
    encoder: &'a mut HpackEncoder,
    out: &'a mut Vec<u8>,
    start: usize,
    stream: u32,
    ended: bool,
    frame_max: usize,
}

impl HeadWriter<'_> {
    /// Writes one field; the name may be in any case. Connection-specific fields are left out (RFC 9113
    /// section 8.2.2).
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.encoder.message_field(self.out, name, value);
    }

    /// Writes every field of a block.
    pub fn fields(&mut self, fields: &Fields) {
        for (name, value) in fields.iter() {
            self.field(name, value);
        }
    }

    /// Writes field lines in HTTP/1 form, such as those that every response carries.
    pub fn lines(&mut self, lines: &[u8]) {
        self.encoder.lines(self.out, lines);
    }

    /// Writes `Content-Length`.
    pub fn content_length(&mut self, length: u64) {
        let mut digits = [0; 20];
        let mut start = 20;
        let mut rest = length;
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.encoder.named_field(self.out, Name::ContentLength, b"content-length", &digits[start..]);
    }
}

impl Drop for HeadWriter<'_> {
    fn drop(&mut self) {
        let ended = if self.ended { flag::END_STREAM } else { 0 };
        let body = self.start + HEADER_BYTES;
        let len = self.out.len() - body;
        let header = |len, kind, flags| FrameHeader { len, kind, flags, stream: self.stream }.bytes();
        if len <= self.frame_max {
            let bytes = header(len, kind::HEADERS, ended | flag::END_HEADERS);
            self.out[self.start..body].copy_from_slice(&bytes);
            return;
        }
        let block = self.out.split_off(body);
        let (first, rest) = block.split_at(self.frame_max);
        self.out[self.start..body].copy_from_slice(&header(first.len(), kind::HEADERS, ended));
        self.out.extend_from_slice(first);
        let count = rest.len().div_ceil(self.frame_max);
        for (at, piece) in rest.chunks(self.frame_max).enumerate() {
            let flags = if at + 1 == count { flag::END_HEADERS } else { 0 };
            self.out.extend_from_slice(&header(piece.len(), kind::CONTINUATION, flags));
            self.out.extend_from_slice(piece);
        }
    }
}
