//! Frames other than messages: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM and priorities.

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{self, FrameHeader, MAX_31_BITS, flag, u32_at};
use crate::ledger::price;
use crate::machine::{CONTROL_BYTES_MAX, ConnectionStart, Event, Machine, SHUTDOWN_PING, Shutdown};
use crate::streams::{Receiving, Sending};
use crate::window::{GROWTH_PING, WindowIncrease};
use sections::Priority;

type FrameOutcome = Result<Option<Event>, ConnectionError>;

const FRAME_SIZE: ConnectionError =
    ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length");

impl Machine {
    /// Fails if the memory held for the peer exceeds its share, or too many control frames wait because the
    /// peer does not read.
    pub(crate) fn check_peer_limits(&self) -> Result<(), ConnectionError> {
        if self.control.len() > CONTROL_BYTES_MAX {
            Err(ConnectionError::enhance_your_calm("answers are not read"))
        } else {
            self.ledger.check(self.table_bytes(), self.unread_allowed())
        }
    }

    pub(crate) fn take_settings(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        if header.has(flag::ACK) {
            if self.settings_acked {
                self.ledger.spend(price::FRAME)?;
            }
            self.settings_acked = true;
            self.decoder.set_table_bytes_max(self.options.table_bytes_max as usize);
            return Ok(None);
        }
        let work = (payload.len() / 6 + self.streams.len()) as u32 / price::SETTINGS_PER_FRAME;
        self.ledger.spend(price::FRAME + work)?;
        let window = i64::from(self.peer.stream_window);
        self.peer.take(payload, !self.is_server)?;
        self.encoder.set_table_bytes_max(self.peer.table_bytes_max as usize);
        let change = i64::from(self.peer.stream_window) - window;
        if change != 0 {
            for stream in self.streams.iter_mut() {
                if stream.send_window.increase(change) == WindowIncrease::TooLarge {
                    return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "window too large"));
                }
            }
        }
        self.start = ConnectionStart::Done;
        frame::settings_ack(&mut self.control);
        Ok(Some(Event::Settings))
    }

    pub(crate) fn take_ping(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        let payload: [u8; 8] = payload.try_into().map_err(|_| FRAME_SIZE)?;
        if !header.has(flag::ACK) {
            self.ledger.spend(price::FRAME)?;
            frame::ping(&mut self.control, true, payload);
            return Ok(None);
        }
        match self.pings.checked_sub(1) {
            Some(left) => self.pings = left,
            None => {
                self.ledger.spend(price::FRAME)?;
                return Ok(None);
            }
        }
        if payload == GROWTH_PING {
            self.take_growth_answer();
            return Ok(None);
        }
        if payload == SHUTDOWN_PING {
            self.finish_shutdown();
            return Ok(None);
        }
        Ok(Some(Event::Pong { payload }))
    }

    pub(crate) fn take_goaway(&mut self, payload: &[u8]) -> FrameOutcome {
        self.ledger.spend(price::FRAME)?;
        if payload.len() < 8 {
            return Err(FRAME_SIZE);
        }
        let last_stream = u32_at(payload, 0) & MAX_31_BITS;
        let code = ErrorCode(u32_at(payload, 4));
        if self.peer_last_stream.is_some_and(|before| last_stream > before) {
            return Err(ConnectionError::protocol("GOAWAY takes back its last stream"));
        }
        self.peer_last_stream = Some(last_stream);
        if !self.is_server {
            let left: Vec<u32> = self.streams.ids().filter(|&id| id > last_stream).collect();
            for id in left {
                if let Some(stream) = self.streams.find_mut(id) {
                    stream.reset.get_or_insert(ErrorCode::REFUSED_STREAM);
                }
                self.update_accounting(id);
            }
        }
        Ok(Some(Event::GoAway { last_stream, code }))
    }

    pub(crate) fn take_window_update(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        self.ledger.spend(price::FRAME)?;
        if payload.len() != 4 {
            return Err(FRAME_SIZE);
        }
        let increment = u32_at(payload, 0) & MAX_31_BITS;
        let stream = header.stream;
        if stream == 0 {
            if increment == 0 {
                return Err(ConnectionError::protocol("window increment of 0"));
            }
            return match self.send_window.increase(i64::from(increment)) {
                WindowIncrease::TooLarge => {
                    Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "window too large"))
                }
                WindowIncrease::HasRoomAgain => Ok(Some(Event::Writable { stream: 0 })),
                WindowIncrease::Unchanged => Ok(None),
            };
        }
        let Some(record) = self.streams.find_mut(stream).filter(|record| record.reset.is_none()) else {
            return match increment {
                0 => Err(ConnectionError::protocol("window increment of 0")),
                _ => Ok(None),
            };
        };
        if increment == 0 {
            let reason = "window increment of 0";
            return self
                .stream_error(stream, ErrorCode::PROTOCOL_ERROR, reason, price::STREAM_ERROR)
                .map(Some);
        }
        match record.send_window.increase(i64::from(increment)) {
            WindowIncrease::TooLarge => {
                let code = ErrorCode::FLOW_CONTROL_ERROR;
                self.stream_error(stream, code, "window too large", price::STREAM_ERROR).map(Some)
            }
            WindowIncrease::HasRoomAgain => Ok(Some(Event::Writable { stream })),
            WindowIncrease::Unchanged => Ok(None),
        }
    }

    pub(crate) fn take_rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        if payload.len() != 4 {
            return Err(FRAME_SIZE);
        }
        let code = ErrorCode(u32_at(payload, 0));
        let Some(record) = self.streams.find_mut(header.stream).filter(|record| record.reset.is_none())
        else {
            // A response that the peer cannot have received yet is no service to it: requests that are reset at once cost
            // what they would if they were answered later.
            let earned = self.streams.take_unsent(header.stream);
            self.ledger.spend(earned.map_or(price::FRAME, |earned| price::RESET.saturating_add(earned)))?;
            return Ok(None);
        };
        // A server may end a request after it has sent the complete response (RFC 9113 section 8.1).
        let is_served = if self.is_server {
            record.sending == Sending::Ended
        } else {
            record.receiving == Receiving::Ended
        };
        record.reset = Some(code);
        record.reset_by_peer = true;
        self.ledger.spend(if is_served { price::FRAME } else { price::RESET })?;
        self.update_accounting(header.stream);
        Ok(Some(Event::Reset { stream: header.stream, code }))
    }

    /// Validates a PRIORITY frame (RFC 7540) and ignores it.
    pub(crate) fn take_priority(&mut self, header: FrameHeader, payload: &[u8]) -> FrameOutcome {
        self.ledger.spend(price::FRAME)?;
        let (code, reason) = match payload.len() {
            5 if u32_at(payload, 0) & MAX_31_BITS != header.stream => return Ok(None),
            5 => (ErrorCode::PROTOCOL_ERROR, "stream depends on itself"),
            _ => (ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        };
        match self.streams.find(header.stream) {
            Some(_) => self.stream_error(header.stream, code, reason, price::STREAM_ERROR).map(Some),
            None => Err(ConnectionError::new(code, reason)),
        }
    }

    pub(crate) fn take_priority_update(&mut self, payload: &[u8]) -> FrameOutcome {
        self.ledger.spend(price::FRAME)?;
        if !self.is_server {
            return Err(ConnectionError::protocol("server sends PRIORITY_UPDATE"));
        }
        if payload.len() < 4 {
            return Err(FRAME_SIZE);
        }
        let stream = u32_at(payload, 0) & MAX_31_BITS;
        if stream.is_multiple_of(2) {
            return Err(ConnectionError::protocol("priority of a stream that no client opens"));
        }
        let priority = Priority::of(&payload[4..]);
        if self.is_idle(stream) {
            self.streams.prioritize_early(stream, priority);
            return Ok(None);
        }
        match self.streams.find_mut(stream) {
            Some(record) if record.priority != priority => {
                record.priority = priority;
                Ok(Some(Event::Reprioritized { stream, priority }))
            }
            _ => Ok(None),
        }
    }

    /// Sends a GOAWAY frame with the last stream that was processed, which completes a graceful shutdown. See
    /// [`Machine::shutdown`].
    pub fn finish_shutdown(&mut self) {
        if !matches!(self.shutdown, Shutdown::Final(_)) && self.failed.is_none() {
            self.shutdown = Shutdown::Final(self.last_peer_stream);
            frame::goaway(&mut self.control, self.last_peer_stream, ErrorCode::NO_ERROR, "");
        }
    }
}
