//! Input: bytes in, events out.

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{FrameHeader, HEADER_BYTES, PAYLOAD_BYTES_MAX, PREFACE, flag, kind};
use crate::ledger::price;
use crate::machine::{ConnectionStart, Event, Machine};

impl Machine {
    /// Processes received bytes. Returns the number of bytes consumed and an event; feed the remaining bytes
    /// again, together with those that follow. `now_ms` is the time of any monotonic clock.
    ///
    /// # Errors
    /// A [`ConnectionError`]: flush, which sends the GOAWAY frame, and close the connection.
    pub fn feed(&mut self, bytes: &[u8], now_ms: u64) -> Result<(usize, Event), ConnectionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.ledger.tick(now_ms);
        if self.was_throttled {
            self.is_throttled();
        }
        // A span has 32 bits: any further bytes are left for the next call.
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let result = self.advance(bytes);
        if let Err(error) = result {
            self.fail(error);
        }
        result
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<(usize, Event), ConnectionError> {
        let mut at = 0;
        if self.start == ConnectionStart::Preface {
            let len = bytes.len().min(PREFACE.len());
            if bytes[..len] != PREFACE[..len] {
                return Err(ConnectionError::protocol("not the preface of HTTP/2"));
            }
            if len < PREFACE.len() {
                return Ok((0, Event::NeedMore));
            }
            self.start = ConnectionStart::Settings;
            at = len;
        }
        loop {
            let rest = &bytes[at..];
            if self.skip_bytes > 0 {
                let len = self.skip_bytes.min(rest.len());
                self.skip_bytes -= len;
                at += len;
                if self.skip_bytes > 0 {
                    return Ok((at, Event::NeedMore));
                }
                continue;
            }
            if self.data.is_some() {
                if rest.is_empty() {
                    return Ok((at, Event::NeedMore));
                }
                let (len, event) = self.take_data(rest, at);
                at += len;
                match event {
                    Some(event) => return Ok((at, event)),
                    None => continue,
                }
            }
            let Some(header) = FrameHeader::read(rest) else { return Ok((at, Event::NeedMore)) };
            self.check_header(header)?;
            let Some((len, event)) = self.process_frame(header, &rest[HEADER_BYTES..])? else {
                return Ok((at, Event::NeedMore));
            };
            at += HEADER_BYTES + len;
            self.check_peer_limits()?;
            if let Some(event) = event {
                return Ok((at, event));
            }
        }
    }

    /// Validates a frame by its header alone. Changes no state, because a frame is checked again when more of
    /// it arrives.
    fn check_header(&self, header: FrameHeader) -> Result<(), ConnectionError> {
        if self.start == ConnectionStart::Settings && (header.kind != kind::SETTINGS || header.has(flag::ACK))
        {
            return Err(ConnectionError::protocol("first frame is not SETTINGS"));
        }
        if header.len > PAYLOAD_BYTES_MAX {
            return Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "frame too large"));
        }
        match self.continuation {
            Some(open) if header.kind != kind::CONTINUATION || header.stream != open.stream => {
                return Err(ConnectionError::protocol("header block is interrupted"));
            }
            None if header.kind == kind::CONTINUATION => {
                return Err(ConnectionError::protocol("CONTINUATION without HEADERS"));
            }
            _ => {}
        }
        let is_right = match header.kind {
            kind::DATA
            | kind::HEADERS
            | kind::PRIORITY
            | kind::RST_STREAM
            | kind::CONTINUATION
            | kind::PUSH_PROMISE => header.stream != 0,
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE => header.stream == 0,
            _ => true,
        };
        if !is_right {
            return Err(ConnectionError::protocol("frame on a stream that it does not go with"));
        }
        let is_idle = header.stream != 0 && self.is_idle(header.stream);
        match header.kind {
            kind::PUSH_PROMISE => Err(ConnectionError::protocol("push is not enabled")),
            kind::HEADERS if self.is_server && !header.stream.is_multiple_of(2) => Ok(()),
            kind::DATA | kind::HEADERS | kind::RST_STREAM | kind::WINDOW_UPDATE if is_idle => {
                Err(ConnectionError::protocol("frame on an idle stream"))
            }
            kind::SETTINGS if header.has(flag::ACK) && header.len > 0 => {
                Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "acknowledgement with settings"))
            }
            kind::SETTINGS if !header.len.is_multiple_of(6) => {
                Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "settings of a wrong length"))
            }
            _ => Ok(()),
        }
    }

    /// Processes the frame with that header, whose payload begins `rest`. Returns the number of payload bytes
    /// consumed; `None` if more bytes are needed.
    fn process_frame(
        &mut self,
        header: FrameHeader,
        rest: &[u8],
    ) -> Result<Option<(usize, Option<Event>)>, ConnectionError> {
        if header.kind == kind::DATA {
            let padding = match header.has(flag::PADDED) {
                true if header.len == 0 => {
                    return Err(ConnectionError::new(
                        ErrorCode::FRAME_SIZE_ERROR,
                        "padded frame without its padding",
                    ));
                }
                true if rest.is_empty() => return Ok(None),
                true => Some(rest[0]),
                false => None,
            };
            let event = self.begin_data(header, padding)?;
            return Ok(Some((usize::from(padding.is_some()), event)));
        }
        if !matches!(header.kind, kind::HEADERS..=kind::CONTINUATION | kind::PRIORITY_UPDATE) {
            self.ledger.spend(price::FRAME)?;
            self.skip_bytes = header.len;
            return Ok(Some((0, None)));
        }
        let Some(payload) = rest.get(..header.len) else { return Ok(None) };
        let event = match header.kind {
            kind::HEADERS => self.take_headers(header, payload)?,
            kind::CONTINUATION => self.take_continuation(header, payload)?,
            kind::PRIORITY => self.take_priority(header, payload)?,
            kind::RST_STREAM => self.take_rst_stream(header, payload)?,
            kind::SETTINGS => self.take_settings(header, payload)?,
            kind::PING => self.take_ping(header, payload)?,
            kind::GOAWAY => self.take_goaway(payload)?,
            kind::WINDOW_UPDATE => self.take_window_update(header, payload)?,
            _ => self.take_priority_update(payload)?,
        };
        Ok(Some((header.len, event)))
    }
}
