//! Receiving of an HTTP/3 connection: from the events of QUIC and the data of its streams to messages.

use bytes::Bytes;
use http::Fields;
use http3::error::ErrorScope;
use http3::{ConnectionEvent, Http3Code, Http3Error, MessageEvent, UnidirectionalStream};
use quinn_proto::{ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId};
use rustls::AlertDescription;

use super::connection::{H3Connection, RequestStream, UNREAD_BYTES_MAX, stream_id, var_int};
use super::event::Received;
use crate::fault::Fault;
use crate::tls::describe_error;

/// First of the error codes of QUIC for TLS alerts.
const ALERT_CODES: u64 = 0x100;
/// Maximum number of bytes taken from a stream at once.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

impl H3Connection {
    /// Returns the next event of what was received.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn next_event(&mut self) -> Result<Option<Received>, Fault> {
        loop {
            if let Some(event) = self.control_events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(&id) = self.readable.front() {
                let event = match id.dir() {
                    Dir::Bi => self.read_request(id)?,
                    Dir::Uni => self.read_unidirectional(id)?,
                };
                if event.is_some() {
                    return Ok(event);
                }
                self.readable.pop_front();
                continue;
            }
            let Some(event) = self.quic.poll() else { return Ok(self.next_writable()) };
            match event {
                Event::Stream(event) => {
                    if let Some(event) = self.take_stream_event(event) {
                        return Ok(Some(event));
                    }
                }
                Event::ConnectionLost { reason } => return Err(fault(&reason)),
                Event::HandshakeDataReady
                | Event::Connected
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
    }

    /// Passes frames to QUIC on the streams that have room again, the most urgent first, which QUIC does not do itself.
    fn next_writable(&mut self) -> Option<Received> {
        let requests = &self.requests;
        let urgency = |number: &u32| requests.get(number).map(|stream| (stream.urgency, *number));
        self.writable.sort_unstable_by_key(|number| std::cmp::Reverse(urgency(number)));
        while let Some(number) = self.writable.pop() {
            self.flush_request(number);
            if !self.is_blocked(number) {
                return Some(Received::Writable(number));
            }
        }
        None
    }

    fn take_stream_event(&mut self, event: StreamEvent) -> Option<Received> {
        match event {
            StreamEvent::Opened { dir } => {
                while let Some(id) = self.quic.streams().accept(dir) {
                    match dir {
                        Dir::Bi => {
                            // A connection ends long before its streams have other numbers.
                            let number = u32::try_from(id.index()).ok()?;
                            self.requests.insert(number, RequestStream::new(u64::from(id), self.now));
                        }
                        Dir::Uni => _ = self.unidirectional.insert(id, UnidirectionalStream::default()),
                    }
                    self.readable.push_back(id);
                }
                self.permit_requests();
                None
            }
            StreamEvent::Readable { id } => {
                self.readable.push_back(id);
                None
            }
            StreamEvent::Writable { id } => {
                let number = u32::try_from(id.index()).ok().filter(|_| id.dir() == Dir::Bi)?;
                self.writable.push(number);
                None
            }
            StreamEvent::Stopped { id, .. } => {
                let number = u32::try_from(id.index()).ok().filter(|_| id.dir() == Dir::Bi)?;
                let has_begun = self.requests.get(&number)?.has_begun;
                self.note_given_up();
                if has_begun {
                    return Some(Received::Stopped(number));
                }
                self.close_stream(number, Http3Code::REQUEST_CANCELLED);
                None
            }
            StreamEvent::Available { dir: Dir::Bi } => Some(Received::StreamsAvailable),
            StreamEvent::Available { .. } | StreamEvent::Finished { .. } => None,
        }
    }

    /// Reads a request stream as far as its next event. Returns `None` when nothing more is available, or is
    /// to be taken now.
    fn read_request(&mut self, id: StreamId) -> Result<Option<Received>, Fault> {
        let Ok(number) = u32::try_from(id.index()) else { return Ok(None) };
        loop {
            let Some(stream) = self.requests.get_mut(&number) else { return Ok(None) };
            let step = if stream.message.is_blocked() {
                let ended = stream.has_fin && stream.received.is_empty();
                match self.http.retry(&mut stream.message, ended) {
                    Ok(MessageEvent::Blocked) => return Ok(None),
                    event => event.map(|event| (Bytes::new(), event)),
                }
            } else if !stream.received.is_empty() {
                let fin = stream.has_fin && stream.received.len() == 1;
                let chunk = &mut stream.received[0];
                let fed = self.http.feed(&mut stream.message, chunk, fin);
                fed.map(|(consumed, event)| (chunk.split_to(consumed), event))
            } else if stream.has_fin {
                if stream.is_complete {
                    return Ok(None);
                }
                if let Err(error) = self.http.finish(&stream.message) {
                    return self.fail(number, error).map(Some);
                }
                stream.is_complete = true;
                return Ok(Some(Received::End(number, Fields::new())));
            } else {
                if stream.unread_bytes >= UNREAD_BYTES_MAX {
                    stream.is_paused = true;
                    return Ok(self.take_reset(id, number));
                }
                match self.take_chunks(id, number) {
                    Ok(true) => continue,
                    Ok(false) => return Ok(None),
                    Err(event) => return Ok(event),
                }
            };
            let Some(stream) = self.requests.get_mut(&number) else { return Ok(None) };
            while stream.received.front().is_some_and(Bytes::is_empty) {
                stream.received.pop_front();
            }
            match step {
                Ok((_, MessageEvent::NeedMore)) => {}
                Ok((_, MessageEvent::Blocked)) => return Ok(None),
                Ok((bytes, MessageEvent::Data(span))) => {
                    let content = bytes.slice(span.start()..span.end());
                    stream.unread_bytes += content.len();
                    let ends = stream.has_fin && stream.received.is_empty();
                    if !ends {
                        return Ok(Some(Received::Data(number, content, false)));
                    }
                    if let Err(error) = self.http.finish(&stream.message) {
                        return self.fail(number, error).map(Some);
                    }
                    stream.is_complete = true;
                    return Ok(Some(Received::Data(number, content, true)));
                }
                Ok((_, MessageEvent::Trailers)) => {
                    stream.is_complete = true;
                    let trailers = std::mem::take(&mut self.http.trailers);
                    return Ok(Some(Received::End(number, trailers)));
                }
                Ok((_, MessageEvent::Head { ended })) => {
                    stream.has_begun = true;
                    stream.is_complete = ended;
                    return Ok(Some(Received::Head { id: number, ended }));
                }
                Ok((_, MessageEvent::Refused(reject))) => {
                    stream.has_begun = true;
                    return Ok(Some(Received::Refused(number, reject)));
                }
                Err(error) => return self.fail(number, error).map(Some),
            }
        }
    }

    /// Takes received data from QUIC. Returns false if there is none.
    ///
    /// # Errors
    /// The client has reset the stream, with the event for its request if that has begun.
    fn take_chunks(&mut self, id: StreamId, number: u32) -> Result<bool, Option<Received>> {
        let Some(stream) = self.requests.get_mut(&number).filter(|stream| !stream.is_closed) else {
            return Ok(false);
        };
        let mut receiving = self.quic.recv_stream(id);
        let Ok(mut chunks) = receiving.read(true) else { return Ok(false) };
        let mut taken = 0;
        let ended = loop {
            if taken >= CHUNK_BYTES_MAX {
                break Ok(());
            }
            match chunks.next(CHUNK_BYTES_MAX - taken) {
                Ok(Some(chunk)) => {
                    taken += chunk.bytes.len();
                    stream.received.push_back(chunk.bytes);
                }
                Ok(None) => {
                    stream.has_fin = true;
                    stream.is_closed = true;
                    break Ok(());
                }
                Err(ReadError::Blocked) => break Ok(()),
                Err(ReadError::Reset(code)) => break Err(Http3Code(code.into_inner())),
            }
        };
        // Whether QUIC has window updates to send is known when it is asked for packets.
        let _ = chunks.finalize();
        self.taken_bytes += taken as u64;
        match ended {
            Ok(()) => Ok(taken > 0 || stream.has_fin),
            Err(code) => Err(self.note_reset(number, code)),
        }
    }

    /// Looks whether the peer has reset a stream of which no more data is taken: its task may wait for something else.
    fn take_reset(&mut self, id: StreamId, number: u32) -> Option<Received> {
        self.requests.get(&number).filter(|stream| !stream.is_closed)?;
        let code = self.quic.recv_stream(id).received_reset().ok()??;
        self.note_reset(number, Http3Code(code.into_inner()))
    }

    /// Notes that the peer has reset a stream. Returns the event for its request if that has begun and is incomplete.
    fn note_reset(&mut self, number: u32, code: Http3Code) -> Option<Received> {
        let stream = self.requests.get_mut(&number)?;
        stream.is_closed = true;
        let (has_begun, is_complete) = (stream.has_begun, stream.is_complete);
        self.note_given_up();
        if !has_begun {
            self.close_stream(number, Http3Code::REQUEST_CANCELLED);
        }
        (has_begun && !is_complete).then_some(Received::Reset(number, code))
    }

    /// Ends a stream, or the connection, because of an error. Returns the event for the stream's task.
    fn fail(&mut self, number: u32, error: Http3Error) -> Result<Received, Fault> {
        if error.scope == ErrorScope::Connection {
            self.close(error);
            return Err(Fault::MuxError { code: error.code.text(), reason: error.reason });
        }
        self.close_stream(number, error.code);
        Ok(Received::Failed(number, error))
    }

    fn read_unidirectional(&mut self, id: StreamId) -> Result<Option<Received>, Fault> {
        loop {
            let mut receiving = self.quic.recv_stream(id);
            let Ok(mut chunks) = receiving.read(true) else { return Ok(None) };
            let read = chunks.next(CHUNK_BYTES_MAX);
            // See `take_chunks`.
            let _ = chunks.finalize();
            let Some(stream) = self.unidirectional.get_mut(&id) else { return Ok(None) };
            let (mut bytes, fin) = match read {
                Ok(Some(chunk)) => {
                    self.taken_bytes += chunk.bytes.len() as u64;
                    (chunk.bytes, false)
                }
                Ok(None) => (Bytes::new(), true),
                Err(ReadError::Blocked) => return Ok(None),
                Err(ReadError::Reset(_)) => {
                    let reset = self.http.reset_unidirectional(stream);
                    self.unidirectional.remove(&id);
                    return match reset {
                        Ok(()) => Ok(None),
                        Err(error) => Err(self.close_with(error)),
                    };
                }
            };
            loop {
                let fed = self.http.feed_unidirectional(stream, &bytes, fin);
                let (consumed, event) = match fed {
                    Ok(fed) => fed,
                    Err(error) => return Err(self.close_with(error)),
                };
                bytes = bytes.slice(consumed..);
                match event {
                    None if bytes.is_empty() => break,
                    None => {}
                    Some(ConnectionEvent::Settings) => self.control_events.push_back(Received::Settings),
                    Some(ConnectionEvent::GoAway(id)) => {
                        self.is_peer_leaving = true;
                        self.control_events.push_back(Received::GoAway(id / 4));
                    }
                    Some(ConnectionEvent::Priority(stream, priority)) => {
                        if let Ok(number) = u32::try_from(stream / 4) {
                            let event = Received::Priority(number, priority.into());
                            self.control_events.push_back(event);
                        }
                    }
                    Some(ConnectionEvent::Unblocked) => {
                        let blocked = self.requests.iter().filter(|(_, stream)| stream.message.is_blocked());
                        let blocked: Vec<StreamId> = blocked.map(|(number, _)| stream_id(*number)).collect();
                        self.readable.extend(blocked);
                    }
                    Some(ConnectionEvent::StopReading(code)) => {
                        // Fails if the peer has ended it.
                        let _ = self.quic.recv_stream(id).stop(var_int(code));
                        self.unidirectional.remove(&id);
                        return Ok(None);
                    }
                }
            }
            if fin {
                self.unidirectional.remove(&id);
                return Ok(None);
            }
        }
    }

    /// Closes the connection because of an error.
    pub(crate) fn close_with(&mut self, error: Http3Error) -> Fault {
        self.close(error);
        Fault::MuxError { code: error.code.text(), reason: error.reason }
    }
}

/// Returns the fault of a connection that has ended.
pub(super) fn fault(reason: &ConnectionError) -> Fault {
    match reason {
        ConnectionError::TimedOut => Fault::Timeout,
        ConnectionError::TransportError(_) => {
            Fault::MuxError { code: "a QUIC error", reason: "the peer violated the protocol" }
        }
        ConnectionError::ConnectionClosed(close) => match alert(u64::from(close.error_code)) {
            Some(alert) => Fault::Failed(describe_error(&rustls::Error::AlertReceived(alert))),
            None => Fault::Disconnected,
        },
        _ => Fault::Disconnected,
    }
}

/// Returns the TLS alert that an error of QUIC stands for (RFC 9001 section 4.8).
fn alert(code: u64) -> Option<AlertDescription> {
    let alert = code.checked_sub(ALERT_CODES)?;
    u8::try_from(alert).ok().map(AlertDescription::from)
}
