//! Frames that carry messages: HEADERS, CONTINUATION and DATA.

use http::{Method, Span, Status, Version};

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{self, FrameHeader, HEADER_BYTES, MAX_31_BITS, flag, u32_at};
use crate::ledger::price;
use crate::machine::{Continuation, Event, Machine, PartialData, Shutdown};
use crate::settings::WINDOW_BYTES_INITIAL;
use crate::streams::{Receiving, Sending, StreamRecord};
use crate::window::{ReceiveWindow, SendWindow};
use sections::block::ENTRY_OVERHEAD_BYTES;
use sections::head::{self, HeadError, RequestExtras, RequestSection};

type FrameOutcome = Result<Option<Event>, ConnectionError>;

/// Ratio of overhead to content above which a DATA frame costs credit, as an empty one does.
const OVERHEAD_RATIO: usize = 16;

impl Machine {
    pub(crate) fn take_headers(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        let mut fragment = unpad(header, payload)?;
        let mut depends_on_itself = false;
        if header.has(flag::PRIORITY) {
            let too_short = ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "HEADERS without its priority");
            let (priority, rest) = fragment.split_at_checked(5).ok_or(too_short)?;
            depends_on_itself = u32_at(priority, 0) & MAX_31_BITS == header.stream;
            fragment = rest;
        }
        let section =
            Continuation { stream: header.stream, ended: header.has(flag::END_STREAM), depends_on_itself };
        if header.has(flag::END_HEADERS) {
            return self.take_section(section, fragment);
        }
        self.fragments.extend_from_slice(fragment);
        self.continuation = Some(section);
        Ok(None)
    }

    pub(crate) fn take_continuation(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        self.ledger.spend(if payload.is_empty() { price::EMPTY_CONTINUATION } else { price::FRAME })?;
        if self.fragments.len() + payload.len() > self.block_bytes_max() {
            return Err(ConnectionError::enhance_your_calm("header block too large"));
        }
        self.fragments.extend_from_slice(payload);
        if !header.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let Some(section) = self.continuation.take() else { return Ok(None) };
        let fragments = std::mem::take(&mut self.fragments);
        self.take_section(section, &fragments)
    }

    /// Processes a whole header block. It is always decoded, because later blocks depend on the dynamic
    /// table.
    fn take_section(&mut self, section: Continuation, fragment: &[u8]) -> FrameOutcome {
        self.decoder.decode(fragment, &mut self.block, &self.options.head)?;
        let stream = section.stream;
        if self.is_server && self.is_idle(stream) {
            return self.take_request(section);
        }
        let Some(record) = self.streams.find(stream) else {
            self.ledger.spend(price::FRAME)?;
            return if self.ignores_frames_of(stream) {
                Ok(None)
            } else {
                Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"))
            };
        };
        if record.reset_by_peer {
            return Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "HEADERS after RST_STREAM"));
        }
        if record.reset.is_some() {
            self.ledger.spend(price::FRAME)?;
            return Ok(None);
        }
        if section.depends_on_itself {
            return self.abort(stream, ErrorCode::PROTOCOL_ERROR, "stream depends on itself");
        }
        match record.receiving {
            Receiving::Head => self.take_response(section),
            Receiving::Body | Receiving::Discard => self.take_trailers(section),
            Receiving::Ended if record.is_closed() => {
                Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"))
            }
            Receiving::Ended => self.abort(stream, ErrorCode::STREAM_CLOSED, "HEADERS after the end"),
        }
    }

    fn abort(&mut self, stream: u32, code: ErrorCode, reason: &'static str) -> FrameOutcome {
        self.stream_error(stream, code, reason, price::STREAM_ERROR).map(Some)
    }

    fn take_request(&mut self, section: Continuation) -> FrameOutcome {
        let stream = section.stream;
        self.last_peer_stream = stream;
        // Charged even if the section is refused, because the work was done.
        self.ledger.spend((self.block.size / price::HEAD_BYTES_FREE) as u32)?;
        if matches!(self.shutdown, Shutdown::Final(last) if stream > last) {
            self.ledger.spend(price::FRAME)?;
            return Ok(None);
        }
        if section.depends_on_itself {
            return self.abort(stream, ErrorCode::PROTOCOL_ERROR, "stream depends on itself");
        }
        let max = self.options.streams_max;
        // Closed streams whose handlers still run count too, with some room for streams that are just ending.
        let is_full = self.open_streams >= max || self.streams.len() >= (max + max / 4 + 8) as usize;
        if is_full || (self.is_throttled() && self.streams.len() > 0) {
            // A client that has not yet received the limit is not at fault.
            self.ledger.spend(if self.settings_acked { price::REFUSED } else { price::FRAME })?;
            frame::rst_stream(&mut self.control, stream, ErrorCode::REFUSED_STREAM);
            self.streams.remember_reset(stream);
            return Ok(None);
        }
        let request = RequestSection {
            limits: self.options.head,
            version: Version::Http2,
            ended: section.ended,
            connect_protocol: self.options.connect_protocol,
        };
        let parsed = head::request(&mut self.block, &mut self.head, &request);
        let (extras, refused) = match parsed {
            Ok(extras) => (extras, None),
            Err(HeadError::Refused(reject)) => {
                self.ledger.spend(price::REFUSED_HEAD)?;
                (RequestExtras::default(), Some(reject))
            }
            Err(HeadError::Malformed(reason)) => {
                return self.abort(stream, ErrorCode::PROTOCOL_ERROR, reason);
            }
        };
        self.protocol = extras.protocol;
        self.is_https = extras.is_https;
        let receiving = match (section.ended, refused) {
            (true, _) => Receiving::Ended,
            (false, Some(_)) => Receiving::Discard,
            (false, None) => Receiving::Body,
        };
        let mut record = self.new_stream(stream, receiving, Sending::Head);
        record.content_left = extras.length;
        record.priority = extras.priority.unwrap_or_default();
        record.held = self.block.bytes.len() + self.head.fields.len() * ENTRY_OVERHEAD_BYTES;
        self.add_stream(record);
        Ok(Some(match refused {
            Some(reject) => Event::Refused { stream, reject },
            None => Event::Head { stream, ended: section.ended },
        }))
    }

    pub(crate) fn new_stream(&self, id: u32, receiving: Receiving, sending: Sending) -> StreamRecord {
        let size = self.options.stream_window.min(MAX_31_BITS);
        // Until the peer has received the settings it uses the initial window.
        let left = if self.settings_acked { size } else { size.max(WINDOW_BYTES_INITIAL) };
        StreamRecord {
            id,
            receiving,
            sending,
            reset: None,
            reset_by_peer: false,
            is_counted: true,
            method: Method::Get,
            send_window: SendWindow(i64::from(self.peer.stream_window)),
            receive_window: ReceiveWindow::new(size, left),
            content_left: None,
            grown_bytes: 0,
            unread: 0,
            held: 0,
            priority: Default::default(),
            earned: 0,
        }
    }

    pub(crate) fn add_stream(&mut self, record: StreamRecord) {
        self.ledger.hold(self.options.stream_bytes + record.held);
        self.open_streams += 1;
        self.streams.insert(record);
    }

    fn take_response(&mut self, section: Continuation) -> FrameOutcome {
        let stream = section.stream;
        let ended = section.ended;
        let (status, length) =
            match head::response(&mut self.block, Version::Http2, self.options.head.lenient_heads) {
                Ok(parsed) => parsed,
                Err(HeadError::Malformed(reason)) => {
                    return self.abort(stream, ErrorCode::PROTOCOL_ERROR, reason);
                }
                Err(HeadError::Refused(reject)) => {
                    return self.abort(stream, ErrorCode::PROTOCOL_ERROR, reject.reason);
                }
            };
        self.status = status;
        std::mem::swap(&mut self.head.fields, &mut self.block.fields);
        if status.is_informational() {
            self.ledger.spend(price::FRAME)?;
            return if ended {
                self.abort(stream, ErrorCode::PROTOCOL_ERROR, "1xx ends the stream")
            } else {
                Ok(Some(Event::Head { stream, ended }))
            };
        }
        let size = self.block.size;
        let Some(record) = self.streams.find_mut(stream) else { return Ok(None) };
        let is_tunnel = record.method == Method::Connect && (200..300).contains(&status.code());
        record.content_left = match record.method {
            Method::Head => Some(0),
            _ if is_tunnel => None,
            _ if status == Status::NO_CONTENT || status == Status::NOT_MODIFIED => Some(0),
            _ => length,
        };
        record.receiving = if ended { Receiving::Ended } else { Receiving::Body };
        record.held += size;
        let is_short = ended && record.content_left.is_some_and(|left| left > 0);
        self.ledger.hold(size);
        if is_short {
            return self.abort(stream, ErrorCode::PROTOCOL_ERROR, "content-length without content");
        }
        self.update_accounting(stream);
        Ok(Some(Event::Head { stream, ended }))
    }

    fn take_trailers(&mut self, section: Continuation) -> FrameOutcome {
        let stream = section.stream;
        let Some(record) = self.streams.find_mut(stream) else { return Ok(None) };
        let is_wanted = record.receiving == Receiving::Body;
        let error = if !section.ended {
            Some("trailers without the end of the stream")
        } else if record.content_left.is_some_and(|left| left > 0) {
            Some("content shorter than content-length")
        } else {
            None
        };
        let trailers = match (error, head::trailers(&self.block)) {
            (None, Ok(trailers)) => trailers,
            (Some(reason), _) | (None, Err(HeadError::Malformed(reason))) => {
                return self.abort(stream, ErrorCode::PROTOCOL_ERROR, reason);
            }
            (None, Err(HeadError::Refused(reject))) => {
                return self.abort(stream, ErrorCode::PROTOCOL_ERROR, reject.reason);
            }
        };
        record.receiving = Receiving::Ended;
        record.held += self.block.size;
        self.ledger.hold(self.block.size);
        self.update_accounting(stream);
        self.trailers = trailers;
        Ok(is_wanted.then_some(Event::Trailers { stream }))
    }

    /// Processes the start of a DATA frame: its header and, if it is padded, the length of the padding.
    pub(crate) fn begin_data(&mut self, header: FrameHeader, padding: Option<u8>) -> FrameOutcome {
        let overhead = padding.map_or(0, |padding| usize::from(padding) + 1);
        let Some(content) = header.len.checked_sub(overhead) else {
            return Err(ConnectionError::protocol("padding longer than its frame"));
        };
        if !self.receive_window.take(header.len) {
            return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "more DATA than the window"));
        }
        let padding = padding.map_or(0, usize::from);
        let ended = header.has(flag::END_STREAM);
        if content * OVERHEAD_RATIO < overhead + HEADER_BYTES && !(ended && padding == 0) {
            self.ledger.spend(price::FRAME)?;
        }
        match self.admit_data(header, content, ended) {
            DataAdmission::Admitted => {
                let is_bounded = self.options.streams_bound_unread;
                self.receive_window.return_bytes(if is_bounded { header.len } else { overhead });
                if let Some(record) = self.streams.find_mut(header.stream) {
                    record.receive_window.return_bytes(overhead);
                }
                if content > 0 {
                    self.data =
                        Some(PartialData { stream: header.stream, remaining_bytes: content, padding, ended });
                    if is_bounded {
                        self.update_windows(0);
                    }
                    return Ok(None);
                }
                self.skip_bytes = padding;
                self.update_windows(header.stream);
                Ok(if ended { Some(self.end_of_data(header.stream, Span::EMPTY)) } else { None })
            }
            DataAdmission::Dropped => {
                self.discard_data(header.len, content + padding);
                self.ledger.spend(price::FRAME)?;
                Ok(None)
            }
            DataAdmission::Discarded => {
                self.discard_data(header.len, content + padding);
                if ended && let Some(record) = self.streams.find_mut(header.stream) {
                    record.receiving = Receiving::Ended;
                    self.update_accounting(header.stream);
                }
                Ok(None)
            }
            DataAdmission::Refused(code, reason) => {
                self.discard_data(header.len, content + padding);
                self.abort(header.stream, code, reason)
            }
        }
    }

    /// Discards `skip` bytes of payload as they arrive; all `len` bytes are returned to the connection's
    /// window.
    fn discard_data(&mut self, len: usize, skip: usize) {
        self.skip_bytes = skip;
        self.receive_window.return_bytes(len);
        self.update_windows(0);
    }

    fn admit_data(&mut self, header: FrameHeader, content: usize, ended: bool) -> DataAdmission {
        let is_left = self.ignores_frames_of(header.stream);
        let Some(record) = self.streams.find_mut(header.stream) else {
            return if is_left {
                DataAdmission::Dropped
            } else {
                DataAdmission::Refused(ErrorCode::STREAM_CLOSED, "DATA on a closed stream")
            };
        };
        match record.receiving {
            _ if record.reset_by_peer => {
                return DataAdmission::Refused(ErrorCode::STREAM_CLOSED, "DATA after RST_STREAM");
            }
            _ if record.reset.is_some() => return DataAdmission::Dropped,
            Receiving::Ended => {
                return DataAdmission::Refused(ErrorCode::STREAM_CLOSED, "DATA after the end");
            }
            Receiving::Head => {
                return DataAdmission::Refused(ErrorCode::PROTOCOL_ERROR, "DATA before HEADERS");
            }
            Receiving::Body | Receiving::Discard => {}
        }
        if !record.receive_window.take(header.len) {
            return DataAdmission::Refused(ErrorCode::FLOW_CONTROL_ERROR, "more DATA than the window");
        }
        if let Some(left) = &mut record.content_left {
            match left.checked_sub(content as u64) {
                Some(rest) if !ended || rest == 0 => *left = rest,
                _ => {
                    return DataAdmission::Refused(
                        ErrorCode::PROTOCOL_ERROR,
                        "content-length is not the content's",
                    );
                }
            }
        }
        match record.receiving {
            Receiving::Discard => {
                record.receive_window.return_bytes(header.len);
                DataAdmission::Discarded
            }
            _ => DataAdmission::Admitted,
        }
    }

    /// Processes content of the current DATA frame at the start of `bytes`, which are at `offset` in the fed
    /// slice.
    pub(crate) fn take_data(&mut self, bytes: &[u8], offset: usize) -> (usize, Option<Event>) {
        let Some(mut rest) = self.data else { return (0, None) };
        let len = rest.remaining_bytes.min(bytes.len());
        rest.remaining_bytes -= len;
        let is_last = rest.remaining_bytes == 0;
        self.data = (!is_last).then_some(rest);
        if is_last {
            self.skip_bytes = rest.padding;
        }
        let wanted =
            |record: &&mut StreamRecord| record.reset.is_none() && record.receiving == Receiving::Body;
        let Some(record) = self.streams.find_mut(rest.stream).filter(wanted) else {
            // The stream ended in the middle of its frame.
            self.return_content(len);
            self.update_windows(0);
            return (len, None);
        };
        record.unread += len;
        self.ledger.hold(len);
        let data = Span::new(offset, offset + len);
        let event = if is_last && rest.ended {
            self.end_of_data(rest.stream, data)
        } else {
            Event::Data { stream: rest.stream, data, ended: false }
        };
        (len, Some(event))
    }

    /// Returns content to the connection's window, unless that was done when it arrived.
    pub(crate) fn return_content(&mut self, len: usize) {
        if !self.options.streams_bound_unread {
            self.receive_window.return_bytes(len);
        }
    }

    fn end_of_data(&mut self, stream: u32, data: Span) -> Event {
        if let Some(record) = self.streams.find_mut(stream) {
            record.receiving = Receiving::Ended;
        }
        self.update_accounting(stream);
        Event::Data { stream, data, ended: true }
    }
}

/// The treatment of a DATA frame.
enum DataAdmission {
    /// Content that is passed to the caller.
    Admitted,
    /// The body was discarded by the caller.
    Discarded,
    /// The stream no longer exists.
    Dropped,
    /// The stream is reset.
    Refused(ErrorCode, &'static str),
}

/// The payload of a frame without its padding.
fn unpad(header: FrameHeader, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if !header.has(flag::PADDED) {
        return Ok(payload);
    }
    let too_long = ConnectionError::protocol("padding longer than its frame");
    let (&padding, rest) = payload
        .split_first()
        .ok_or(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "padded frame without its padding"))?;
    let len = rest.len().checked_sub(usize::from(padding)).ok_or(too_long)?;
    Ok(&rest[..len])
}
