//! One end of an HTTP/3 connection: `http3` on the streams of QUIC. Requests of both ends are sent and received alike.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Fields;
use http3::{Connection as Http3, Http3Code, MessageStream, OwnStream, UnidirectionalStream};
use quinn_proto::{Connection, Dir, Side, StreamId, VarInt, WriteError};

use crate::mux::{ContentFrames, StreamMap};

use super::acknowledgements::Acknowledgements;
use super::event::Received;
use super::transport::REQUESTS_FIRST;

/// Unacknowledged data of a connection at its beginning, in bytes.
pub(crate) const SEND_WINDOW_BYTES: u64 = 128 * 1024;
/// Maximum of unacknowledged data of a connection, in bytes: what Linux keeps for a TCP connection by default.
const SEND_WINDOW_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bytes of small frames of a stream that are collected before QUIC gets them.
const COLLECTED_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of bytes framed for a stream at once.
const PIECE_BYTES_MAX: usize = 64 * 1024;
/// Room for the header of a DATA frame.
const DATA_HEADER_BYTES: usize = 9;
/// Unread bytes of a request from which no more of it is taken from QUIC.
pub(crate) const UNREAD_BYTES_MAX: usize = 64 * 1024;
/// Memory of a QUIC connection without streams and data, as measured: keys, congestion control, sent packets, TLS, tasks.
const CONNECTION_BYTES: usize = 26 * 1024;
/// Memory of QUIC's entries for more requests at once than [`REQUESTS_FIRST`], with the largest table.
const PERMITTED_BYTES: usize = 11 * 1024;
/// Messages that the peer may give up before they are answered, and the most that it may save up: each answer allows
/// another one, and so does time.
const GIVEN_UP_CREDIT_MAX: u32 = 2_000;
/// Bytes of a packet that are not content of streams: headers, tag, acknowledgements.
const PACKET_OVERHEAD_BYTES: u64 = 60;
/// Time without progress for which the end of a connection waits for acknowledgements of its last data.
const LAST_DATA_TIME: Duration = Duration::from_secs(5);
/// Urgency of responses whose clients do not name one (RFC 9218 section 4.1).
const DEFAULT_URGENCY: u8 = 3;
/// Estimated memory of a stream in QUIC and here.
const STREAM_BYTES: usize = 1024;

/// A request stream.
pub(crate) struct RequestStream {
    pub(crate) message: MessageStream,
    pub(crate) opened_at: Instant,
    /// Received data that was not parsed, and whether the peer has ended the stream after it.
    pub(crate) received: VecDeque<Bytes>,
    pub(crate) has_fin: bool,
    /// Whether the request has begun, and whether it is complete.
    pub(crate) has_begun: bool,
    pub(crate) is_complete: bool,
    /// Bytes of content that the handler has not read.
    pub(crate) unread_bytes: usize,
    /// Whether unread content keeps the rest of the request in QUIC.
    pub(crate) is_paused: bool,
    /// Whether the receiving side is closed, because the peer has ended or reset it.
    pub(crate) is_closed: bool,
    /// Urgency of what this side sends, as of RFC 9218: 0 is the most urgent.
    pub(crate) urgency: u8,
    /// Small frames that were collected.
    collected: Vec<u8>,
    /// Frames that QUIC has not accepted.
    unsent: VecDeque<Bytes>,
    /// Whether this side's message ends after these, and whether QUIC knows that.
    ends: bool,
    has_ended: bool,
    /// Position of the last bytes that QUIC has accepted among those of all streams, and the time of that.
    accepted_position: u64,
    accepted_at: Instant,
    /// Time for which the peer may accept nothing of what this side sends.
    pub(crate) write_timeout: Duration,
    /// Whether the request's task has ended, so that the stream is forgotten once its response is sent.
    is_released: bool,
}

impl RequestStream {
    pub(crate) fn new(id: u64, now: Instant) -> RequestStream {
        RequestStream {
            message: MessageStream::new(id),
            opened_at: now,
            received: VecDeque::new(),
            has_fin: false,
            has_begun: false,
            is_complete: false,
            unread_bytes: 0,
            is_paused: false,
            is_closed: false,
            urgency: DEFAULT_URGENCY,
            collected: Vec::new(),
            unsent: VecDeque::new(),
            ends: false,
            has_ended: false,
            accepted_position: 0,
            accepted_at: now,
            write_timeout: Duration::MAX,
            is_released: false,
        }
    }

    /// Creates the stream of a request that this side sends.
    pub(crate) fn of_request(message: MessageStream, now: Instant) -> RequestStream {
        RequestStream { message, has_begun: true, ..RequestStream::new(0, now) }
    }

    /// Whether this side's message ends after what was framed.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// Whether QUIC knows the end of this side's message.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn held_bytes(&self) -> usize {
        let chunks = self.received.iter().chain(&self.unsent).map(Bytes::len).sum::<usize>();
        STREAM_BYTES + self.message.held_bytes() + self.collected.capacity() + chunks
    }
}

/// Counts of QUIC.
#[derive(Default)]
struct QuicCounts {
    /// Frames with data of streams that were sent.
    sent_stream_frames: u64,
    received_bytes: u64,
    received_packets: u64,
    /// Frames of this side for which the peer's window for all streams had no room, and of the peer that enlarge it.
    sent_data_blocked: u64,
    received_max_data: u64,
}

/// State at a time.
#[derive(Default)]
struct CompleteState {
    count: u64,
    accepted_bytes: u64,
    /// Frames with data of streams that were sent.
    stream_frames: u64,
}

/// One end of an HTTP/3 connection.
pub(crate) struct H3Connection {
    /// In an allocation of its own: it is large, and moves.
    pub(crate) quic: Box<Connection>,
    pub(crate) http: Http3,
    pub(crate) requests: StreamMap<RequestStream>,
    pub(crate) unidirectional: HashMap<StreamId, UnidirectionalStream>,
    /// Request streams that have room again, and were not used since.
    pub(super) writable: Vec<u32>,
    /// Streams that may have data.
    pub(crate) readable: VecDeque<StreamId>,
    /// Events of the control stream that were not passed on.
    pub(crate) control_events: VecDeque<Received>,
    own: [Option<StreamId>; OwnStream::ALL.len()],
    /// The stream of a client's next request, if QUIC has opened it.
    pub(crate) next_stream: Option<StreamId>,
    /// Requests with collected frames.
    collecting: Vec<u32>,
    /// Bytes framed in this turn.
    turn_bytes: usize,
    /// Bytes of frames of requests that QUIC has accepted, which the peer's flow control permits.
    accepted_bytes: u64,
    /// Time of the last bytes that QUIC has accepted, or that the peer has acknowledged.
    progressed_at: Instant,
    /// Acknowledged bytes of packets when acknowledgements were noted last.
    acknowledged_packet_bytes: u64,
    acknowledgements: Arc<Acknowledgements>,
    /// Counts of QUIC after the last packets were sent.
    counts: QuicCounts,
    /// State at the last time at which everything that had been sent was acknowledged.
    last_complete: CompleteState,
    send_window: u64,
    send_window_max: u64,
    /// Whether the peer's window for all streams was used up, and has not grown since.
    pub(super) is_window_used_up: bool,
    receive_window: u32,
    receive_window_min: u32,
    receive_window_max: u32,
    /// Bytes taken from QUIC, and the difference to those received when nothing could be unread.
    pub(crate) taken_bytes: u64,
    untaken_before: u64,
    /// Number of requests at once that the peer may have once it needs them, if QUIC permits fewer.
    requests_max: Option<u32>,
    /// Memory of QUIC's entries for the requests that the peer was permitted since.
    permitted_bytes: usize,
    /// Messages that the peer may still give up; `None` if it has given up too many.
    given_up_credit: Option<u32>,
    pub(crate) is_peer_leaving: bool,
    pub(crate) now: Instant,
    /// Time of the last check for heads that are overdue.
    pub(crate) heads_checked_at: Instant,
}

impl H3Connection {
    /// `receive_window` is the number of unread bytes that QUIC permits, its maximum.
    pub(crate) fn new(
        quic: Box<Connection>,
        http: Http3,
        acknowledgements: Arc<Acknowledgements>,
        receive_window: u32,
        now: Instant,
    ) -> H3Connection {
        // What streams that nobody reads hold must leave room for the others. The server's side limits it all the same,
        // because a client that reads nothing stops only its own requests.
        let receive_window_min =
            if quic.side() == Side::Client { receive_window } else { UNREAD_BYTES_MAX as u32 };
        H3Connection {
            quic,
            http,
            requests: StreamMap::default(),
            unidirectional: HashMap::new(),
            writable: Vec::new(),
            readable: VecDeque::new(),
            control_events: VecDeque::new(),
            own: [None; OwnStream::ALL.len()],
            next_stream: None,
            collecting: Vec::new(),
            turn_bytes: 0,
            accepted_bytes: 0,
            progressed_at: now,
            acknowledged_packet_bytes: 0,
            acknowledgements,
            counts: QuicCounts::default(),
            last_complete: CompleteState::default(),
            send_window: SEND_WINDOW_BYTES,
            send_window_max: SEND_WINDOW_BYTES_MAX,
            is_window_used_up: false,
            receive_window,
            receive_window_min,
            receive_window_max: receive_window,
            taken_bytes: 0,
            untaken_before: 0,
            requests_max: None,
            permitted_bytes: 0,
            given_up_credit: Some(GIVEN_UP_CREDIT_MAX),
            is_peer_leaving: false,
            now,
            heads_checked_at: now,
        }
    }

    /// Permits the peer `count` requests at once when it has had half of [`REQUESTS_FIRST`], which QUIC permits.
    pub(crate) fn set_requests_max(&mut self, count: u32) {
        self.requests_max = (count > REQUESTS_FIRST as u32).then_some(count);
    }

    /// Permits the peer more requests at once if it needs them.
    pub(super) fn permit_requests(&mut self) {
        if let Some(count) = self.requests_max.take_if(|_| self.requests.len() >= REQUESTS_FIRST / 2) {
            self.quic.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(count));
            self.permitted_bytes = PERMITTED_BYTES;
        }
    }

    // ---- sending ----

    /// Passes collected frames and those of this side's own streams to QUIC. Returns the number of bytes
    /// framed since the last call.
    pub(crate) fn flush(&mut self) -> usize {
        for stream in OwnStream::ALL {
            self.flush_own(stream);
        }
        while let Some(id) = self.collecting.pop() {
            self.flush_request(id);
        }
        std::mem::take(&mut self.turn_bytes)
    }

    fn flush_own(&mut self, stream: OwnStream) {
        let out = self.http.output(stream);
        if out.is_empty() {
            return;
        }
        let place = &mut self.own[stream as usize];
        if place.is_none() {
            *place = self.quic.streams().open(Dir::Uni);
            if let Some(id) = *place {
                // Control frames go before responses.
                let _ = self.quic.send_stream(id).set_priority(i32::MAX);
            }
        }
        // The client permits no stream yet, or no more data.
        let Some(id) = *place else { return };
        if let Ok(written) = self.quic.send_stream(id).write(out) {
            out.drain(..written);
        }
    }

    /// Number of bytes of this side's own streams that wait, which a client that reads them keeps small.
    pub(crate) fn own_unsent_bytes(&mut self) -> usize {
        OwnStream::ALL.into_iter().map(|stream| self.http.output(stream).len()).sum()
    }

    /// Passes the frames of a stream to QUIC.
    pub(crate) fn flush_request(&mut self, id: u32) {
        let Some(stream) = self.requests.get_mut(&id) else { return };
        if !stream.collected.is_empty() {
            stream.unsent.push_back(Bytes::from(std::mem::take(&mut stream.collected)));
        }
        let quic_id = stream_id(id);
        let mut sending = self.quic.send_stream(quic_id);
        while !stream.unsent.is_empty() {
            match sending.write_chunks(stream.unsent.make_contiguous()) {
                Ok(part) => {
                    stream.unsent.drain(..part.chunks);
                    self.accepted_bytes += part.bytes as u64;
                    self.progressed_at = self.now;
                    (stream.accepted_position, stream.accepted_at) = (self.accepted_bytes, self.now);
                }
                Err(WriteError::Blocked) => break,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    stream.unsent.clear();
                    break;
                }
            }
        }
        if stream.ends && stream.unsent.is_empty() && !std::mem::replace(&mut stream.has_ended, true) {
            // Fails if the peer has stopped the stream.
            let _ = sending.finish();
        }
        if stream.is_released && stream.has_ended {
            self.close_stream(id, Http3Code::NO_ERROR);
        }
    }

    /// Whether QUIC has not accepted all frames of the stream.
    pub(crate) fn is_blocked(&self, id: u32) -> bool {
        self.requests.get(&id).is_some_and(|stream| !stream.unsent.is_empty())
    }

    /// Whether the peer has not acknowledged all that QUIC has accepted. Data for which the peer's flow control has no
    /// room does not count: each stream has a timeout of its own for that.
    pub(crate) fn is_awaiting_acknowledgements(&self) -> bool {
        self.unacknowledged_bytes() > 0
    }

    fn has_unsent(&self) -> bool {
        self.requests.values().any(|stream| !stream.unsent.is_empty())
    }

    /// Whether the connection must stay open for what was framed. A client that has left without a word does not
    /// keep it open for long: it acknowledges nothing then.
    pub(crate) fn is_needed(&self) -> bool {
        self.has_unsent() || self.unacknowledged_bytes() > 0 && self.now < self.progressed_at + LAST_DATA_TIME
    }

    /// Notes acknowledgements that have just been received. Nothing was sent since.
    pub(crate) fn note_acknowledgements(&mut self) {
        let acknowledged = self.acknowledgements.bytes();
        if std::mem::replace(&mut self.acknowledged_packet_bytes, acknowledged) != acknowledged {
            self.progressed_at = self.now;
        }
        let complete = self.acknowledgements.complete();
        if complete != self.last_complete.count {
            let stream_frames = self.counts.sent_stream_frames;
            self.last_complete =
                CompleteState { count: complete, accepted_bytes: self.accepted_bytes, stream_frames };
        }
    }

    /// Notes the counts of QUIC after packets were sent.
    pub(crate) fn note_sent(&mut self) {
        let stats = self.quic.stats();
        let before = &self.counts;
        let has_grown = stats.frame_rx.max_data != before.received_max_data;
        let is_used_up = stats.frame_tx.data_blocked != before.sent_data_blocked;
        self.is_window_used_up = is_used_up || self.is_window_used_up && !has_grown;
        self.counts = QuicCounts {
            sent_data_blocked: stats.frame_tx.data_blocked,
            received_max_data: stats.frame_rx.max_data,
            sent_stream_frames: stats.frame_tx.stream,
            received_bytes: stats.udp_rx.bytes,
            received_packets: stats.udp_rx.datagrams,
        };
        if self.requests.values().all(|stream| stream.is_closed) {
            self.untaken_before = self.unread_difference();
        }
    }

    /// Notes a message that the peer has given up.
    pub(super) fn note_given_up(&mut self) {
        self.given_up_credit = self.given_up_credit.and_then(|credit| credit.checked_sub(1));
    }

    /// Allows the peer to give up `count` further messages.
    pub(crate) fn earn(&mut self, count: u32) {
        let earned = |credit: u32| credit.saturating_add(count).min(GIVEN_UP_CREDIT_MAX);
        self.given_up_credit = self.given_up_credit.map(earned);
    }

    /// Whether the peer has given up more messages than it may.
    pub(crate) fn has_given_up_too_many(&self) -> bool {
        self.given_up_credit.is_none()
    }

    /// Returns the number of acknowledged bytes of packets.
    pub(crate) fn acknowledged_packet_bytes(&self) -> u64 {
        self.acknowledgements.bytes()
    }

    /// Returns the total of bytes that QUIC has accepted, and a lower bound of those that the peer has acknowledged.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.accepted_bytes, self.accepted_bytes.saturating_sub(self.unacknowledged_bytes()))
    }

    /// Maximum number of bytes that QUIC keeps until they are acknowledged.
    fn unacknowledged_bytes(&self) -> u64 {
        let last = &self.last_complete;
        let since = self.accepted_bytes - last.accepted_bytes;
        if since > 0 {
            return since.min(self.send_window);
        }
        // What was accepted before may have been sent only afterwards.
        u64::from(self.counts.sent_stream_frames != last.stream_frames)
    }

    /// Maximum number of received bytes that were not taken from QUIC: of requests that are not read, or out of
    /// order. What packets have around them is estimated.
    fn untaken_bytes(&self) -> usize {
        let untaken = self.unread_difference().saturating_sub(self.untaken_before);
        usize::try_from(untaken.min(u64::from(self.receive_window_max))).unwrap_or(usize::MAX)
    }

    /// The difference between the content received and that taken from QUIC.
    fn unread_difference(&self) -> u64 {
        let overhead = self.counts.received_packets * PACKET_OVERHEAD_BYTES;
        self.counts.received_bytes.saturating_sub(overhead).saturating_sub(self.taken_bytes)
    }

    /// Lets QUIC keep two congestion windows of data, within bounds: enough to use the path, and so little that
    /// urgent responses overtake others.
    pub(crate) fn update_send_window(&mut self) {
        let wanted = self.quic.congestion_state().window() * 2;
        let wanted = wanted.clamp(SEND_WINDOW_BYTES, self.send_window_max);
        if wanted != self.send_window {
            self.send_window = wanted;
            self.quic.set_send_window(wanted);
        }
    }

    /// Forgets a stream whose task has ended, once its response is sent if that is whole.
    pub(crate) fn release(&mut self, id: u32, code: Http3Code) {
        self.flush_request(id);
        let Some(stream) = self.requests.get_mut(&id) else { return };
        if !stream.ends || stream.unsent.is_empty() {
            return self.close_stream(id, code);
        }
        stream.is_released = true;
        if !std::mem::replace(&mut stream.is_closed, true) {
            // Fails if the peer has reset it.
            let _ = self.quic.recv_stream(stream_id(id)).stop(var_int(code));
        }
    }

    /// Closes streams whose tasks have ended, if the peer has accepted nothing of their rest for too long.
    pub(crate) fn close_stalled(&mut self) {
        let is_stalled = |stream: &RequestStream| {
            let stalled = self.now.saturating_duration_since(stream.accepted_at);
            stream.is_released && !stream.unsent.is_empty() && stalled >= stream.write_timeout
        };
        let stalled: Vec<u32> =
            self.requests.iter().filter(|(_, stream)| is_stalled(stream)).map(|(id, _)| *id).collect();
        stalled.into_iter().for_each(|id| self.close_stream(id, Http3Code::REQUEST_CANCELLED));
    }

    /// Closes the stream in both directions, as far as it is open.
    pub(crate) fn close_stream(&mut self, id: u32, code: Http3Code) {
        let Some(mut stream) = self.requests.remove(&id) else { return };
        let quic_id = stream_id(id);
        let code = var_int(code);
        if !stream.has_ended {
            // Closed already if the peer has stopped it.
            let _ = self.quic.send_stream(quic_id).reset(code);
        }
        if !stream.is_closed {
            let _ = self.quic.recv_stream(quic_id).stop(code);
        }
        if !stream.is_complete
            && let Err(error) = self.http.abandon(&mut stream.message)
        {
            self.close(error);
        }
    }

    /// Closes the connection because of an error.
    pub(crate) fn close(&mut self, error: http3::Http3Error) {
        self.quic.close(self.now, var_int(error.code), Bytes::from_static(error.reason.as_bytes()));
    }

    /// Updates the receive window of a stream after `bytes` of its content were read.
    pub(crate) fn grant(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.requests.get_mut(&id) else { return };
        stream.unread_bytes = stream.unread_bytes.saturating_sub(bytes);
        if stream.is_paused && stream.unread_bytes < UNREAD_BYTES_MAX / 2 {
            stream.is_paused = false;
            self.readable.push_back(stream_id(id));
        }
    }

    /// Limits the windows to the memory that a connection may use.
    pub(crate) fn limit_growth(&mut self, bytes_max: usize) {
        self.send_window_max = (bytes_max as u64).clamp(SEND_WINDOW_BYTES, SEND_WINDOW_BYTES_MAX);
        let window = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let window = window.clamp(self.receive_window_min, self.receive_window_max);
        if std::mem::replace(&mut self.receive_window, window) != window {
            self.quic.set_receive_window(VarInt::from_u32(window));
        }
    }

    /// Releases memory that a connection without streams does not need.
    pub(crate) fn shrink(&mut self) {
        self.http.shrink();
        self.requests.shrink_to_fit();
        self.unidirectional.shrink_to_fit();
        self.writable.shrink_to_fit();
        self.readable.shrink_to_fit();
        self.control_events.shrink_to_fit();
        self.collecting.shrink_to_fit();
    }

    /// Returns the number of bytes framed since the last call of [`H3Connection::flush`].
    pub(crate) fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let requests: usize = self.requests.values().map(RequestStream::held_bytes).sum();
        let unacknowledged = usize::try_from(self.unacknowledged_bytes()).unwrap_or(usize::MAX);
        let own = CONNECTION_BYTES + self.permitted_bytes;
        own + self.http.held_bytes() + requests + unacknowledged + self.untaken_bytes()
    }

    /// Appends to the collected frames of a stream.
    pub(crate) fn collect(&mut self, id: u32, write: impl FnOnce(&mut Http3, u64, &mut Vec<u8>)) {
        let Some(stream) = self.requests.get_mut(&id) else { return };
        let before = stream.collected.len();
        if before == 0 {
            self.collecting.push(id);
        }
        write(&mut self.http, stream.message.id(), &mut stream.collected);
        let added = stream.collected.len() - before;
        self.turn_bytes += added;
        if stream.collected.len() >= COLLECTED_BYTES_MAX {
            self.flush_request(id);
        }
    }

    /// Ends this side's message after what was framed.
    pub(crate) fn end(&mut self, id: u32) {
        if let Some(stream) = self.requests.get_mut(&id) {
            stream.ends = true;
            if stream.collected.is_empty() {
                self.flush_request(id);
            }
        }
    }
}

/// Returns the QUIC stream of a request.
pub(crate) fn stream_id(id: u32) -> StreamId {
    StreamId::new(Side::Client, Dir::Bi, u64::from(id))
}

pub(crate) fn var_int(code: Http3Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

impl ContentFrames for H3Connection {
    fn position(&self, id: u32) -> Option<u64> {
        let stream = self.requests.get(&id);
        // What was collected is accepted, or waits for the peer, at the end of this turn.
        Some(stream.map_or(0, |stream| match stream.collected.len() {
            0 => stream.accepted_position,
            collected => self.accepted_bytes + collected as u64,
        }))
    }

    fn capacity(&self, id: u32) -> usize {
        match self.requests.get(&id) {
            Some(stream) if stream.unsent.is_empty() => PIECE_BYTES_MAX,
            _ => 0,
        }
    }

    fn data(&mut self, id: u32, bytes: &[u8], ends: bool) {
        if !bytes.is_empty() {
            self.collect(id, |_, _, out| {
                Http3::write_data_header(bytes.len(), out);
                out.extend_from_slice(bytes);
            });
        }
        if ends {
            self.end(id);
        }
    }

    fn data_in_place(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize {
        let mut content = vec![0; DATA_HEADER_BYTES + len.min(PIECE_BYTES_MAX)];
        let taken = read(&mut [&mut content[DATA_HEADER_BYTES..]]);
        if taken > 0
            && let Some(stream) = self.requests.get_mut(&id)
        {
            content.truncate(DATA_HEADER_BYTES + taken);
            let mut header = Vec::with_capacity(DATA_HEADER_BYTES);
            Http3::write_data_header(taken, &mut header);
            let at = DATA_HEADER_BYTES - header.len();
            content[at..DATA_HEADER_BYTES].copy_from_slice(&header);
            if !stream.collected.is_empty() {
                stream.unsent.push_back(Bytes::from(std::mem::take(&mut stream.collected)));
            }
            stream.unsent.push_back(Bytes::from(content).slice(at..));
            self.turn_bytes += taken;
            stream.ends |= ends && taken == len;
            self.flush_request(id);
        }
        taken
    }

    fn trailers(&mut self, id: u32, trailers: &Fields) {
        self.collect(id, |http, stream, out| {
            http.write_section(stream, out, |section| section.lines(trailers.as_bytes()));
        });
        self.end(id);
    }
}
