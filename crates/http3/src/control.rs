//! Unidirectional streams of the peer: what their bytes mean to the connection.

use sections::Priority;

use crate::connection::{Connection, ConnectionEvent};
use crate::error::{Http3Code, Http3Error};
use crate::frame::{self, kind};
use crate::settings::Http3Settings;
use crate::unidirectional::{ControlFrame, StreamRole, UnidirectionalStream, stream_kind};
use crate::varint;

/// Priorities of requests that have not arrived; others are dropped (RFC 9218 section 7.2 allows it).
const EARLY_PRIORITIES_MAX: usize = 64;

impl Connection {
    /// Processes bytes of a unidirectional stream of the peer; `fin` means that they are its last. Returns
    /// the number of bytes consumed and an event; feed the remaining bytes again.
    ///
    /// # Errors
    /// An error that ends the connection.
    pub fn feed_unidirectional(
        &mut self,
        stream: &mut UnidirectionalStream,
        bytes: &[u8],
        fin: bool,
    ) -> Result<(usize, Option<ConnectionEvent>), Http3Error> {
        let mut at = 0;
        if stream.role == StreamRole::Unknown {
            match stream.read_kind(bytes) {
                Some((kind, consumed)) => {
                    at = consumed;
                    stream.role = self.open(kind)?;
                    if stream.role == StreamRole::Ignored {
                        let code = Http3Code::STREAM_CREATION_ERROR;
                        return Ok((bytes.len(), Some(ConnectionEvent::StopReading(code))));
                    }
                }
                // A stream that ends before its type is ignored (RFC 9114 section 6.2).
                None => return Ok((bytes.len(), None)),
            }
        }
        let rest = &bytes[at..];
        let (consumed, event) = match stream.role {
            StreamRole::Unknown | StreamRole::Ignored => (rest.len(), None),
            StreamRole::Control => self.feed_control(stream, rest)?,
            StreamRole::QpackEncoder => {
                let before = self.decoder.inserted();
                self.decoder.receive(rest)?;
                let is_waited_for = self.blocked_streams > 0 && self.decoder.inserted() > before;
                (rest.len(), is_waited_for.then_some(ConnectionEvent::Unblocked))
            }
            StreamRole::QpackDecoder => {
                self.encoder.receive(rest)?;
                (rest.len(), None)
            }
        };
        at += consumed;
        if fin && at == bytes.len() && stream.role != StreamRole::Ignored {
            return Err(Http3Error::connection(Http3Code::CLOSED_CRITICAL_STREAM, "critical stream closed"));
        }
        Ok((at, event))
    }

    /// Ends the connection if a reset stream is one that must stay open (RFC 9114 section 6.2.1).
    ///
    /// # Errors
    /// H3_CLOSED_CRITICAL_STREAM.
    pub fn reset_unidirectional(&self, stream: &UnidirectionalStream) -> Result<(), Http3Error> {
        match stream.role {
            StreamRole::Unknown | StreamRole::Ignored => Ok(()),
            _ => Err(Http3Error::connection(Http3Code::CLOSED_CRITICAL_STREAM, "critical stream reset")),
        }
    }

    fn open(&mut self, kind: u64) -> Result<StreamRole, Http3Error> {
        let creation = |reason| Err(Http3Error::connection(Http3Code::STREAM_CREATION_ERROR, reason));
        let (place, role) = match kind {
            stream_kind::CONTROL => (0, StreamRole::Control),
            stream_kind::QPACK_ENCODER => (1, StreamRole::QpackEncoder),
            stream_kind::QPACK_DECODER => (2, StreamRole::QpackDecoder),
            stream_kind::PUSH if self.is_server => return creation("push stream of a client"),
            stream_kind::PUSH => {
                return Err(Http3Error::connection(Http3Code::ID_ERROR, "push is not enabled"));
            }
            _ => return Ok(StreamRole::Ignored),
        };
        if std::mem::replace(&mut self.opened[place], true) {
            return creation("second stream of a type");
        }
        Ok(role)
    }

    fn feed_control(
        &mut self,
        stream: &mut UnidirectionalStream,
        bytes: &[u8],
    ) -> Result<(usize, Option<ConnectionEvent>), Http3Error> {
        let mut at = 0;
        while at < bytes.len() {
            let (consumed, frame) = stream.read_frame(&bytes[at..], !self.has_peer_settings)?;
            at += consumed;
            let Some(frame) = frame else { continue };
            self.control_credit = self
                .control_credit
                .checked_sub(1)
                .ok_or(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, "too many control frames"))?;
            if let Some(event) = self.take_control_frame(&frame)? {
                return Ok((at, Some(event)));
            }
        }
        Ok((at, None))
    }

    fn take_control_frame(&mut self, frame: &ControlFrame) -> Result<Option<ConnectionEvent>, Http3Error> {
        let unexpected = |reason| Err(Http3Error::connection(Http3Code::FRAME_UNEXPECTED, reason));
        match frame.kind {
            kind::SETTINGS => {
                self.peer = Http3Settings::read(&frame.payload)?;
                self.has_peer_settings = true;
                self.encoder.set_limits(self.peer.table_bytes_max, self.peer.blocked_streams_max);
                Ok(Some(ConnectionEvent::Settings))
            }
            kind::GOAWAY => self.take_goaway(integer(&frame.payload)?).map(Some),
            kind::MAX_PUSH_ID if !self.is_server => unexpected("MAX_PUSH_ID of a server"),
            kind::MAX_PUSH_ID => {
                let push = integer(&frame.payload)?;
                if self.push_id_max.is_some_and(|before| push < before) {
                    return Err(id_error("MAX_PUSH_ID is reduced"));
                }
                self.push_id_max = Some(push);
                Ok(None)
            }
            // Nothing is pushed in either direction.
            kind::CANCEL_PUSH => {
                integer(&frame.payload)?;
                Err(id_error("CANCEL_PUSH of a push that does not exist"))
            }
            kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH if !self.is_server => {
                unexpected("PRIORITY_UPDATE of a server")
            }
            kind::PRIORITY_UPDATE_PUSH => Err(id_error("PRIORITY_UPDATE of a push that does not exist")),
            kind::PRIORITY_UPDATE => self.take_priority_update(&frame.payload),
            _ => Ok(None),
        }
    }

    fn take_goaway(&mut self, last: u64) -> Result<ConnectionEvent, Http3Error> {
        if !self.is_server && !last.is_multiple_of(4) {
            return Err(id_error("GOAWAY with a stream that is not a request"));
        }
        if self.peer_last.is_some_and(|before| last > before) {
            return Err(id_error("GOAWAY is raised"));
        }
        self.peer_last = Some(last);
        Ok(ConnectionEvent::GoAway(last))
    }

    fn take_priority_update(&mut self, payload: &[u8]) -> Result<Option<ConnectionEvent>, Http3Error> {
        let (stream, len) = varint::read(payload).ok_or(FRAME_ERROR)?;
        if !stream.is_multiple_of(4) {
            return Err(id_error("PRIORITY_UPDATE of a stream that is not a request"));
        }
        let priority = Priority::of(&payload[len..]);
        if stream < self.next_request {
            return Ok(Some(ConnectionEvent::Priority(stream, priority)));
        }
        if self.early_priorities.len() < EARLY_PRIORITIES_MAX || self.early_priorities.contains_key(&stream) {
            self.early_priorities.insert(stream, priority);
        }
        Ok(None)
    }
}

const FRAME_ERROR: Http3Error = Http3Error::connection(Http3Code::FRAME_ERROR, "frame of a wrong length");

fn integer(payload: &[u8]) -> Result<u64, Http3Error> {
    frame::read_integer(payload).ok_or(FRAME_ERROR)
}

fn id_error(reason: &'static str) -> Http3Error {
    Http3Error::connection(Http3Code::ID_ERROR, reason)
}
