//! HTTP/2 for multiplexed connections: implements [`MuxProtocol`] and [`ClientProtocol`] with [`http2::Machine`].

use http::{Fields, Head, Limits, Status};
use http2::frame::{HEADER_BYTES, PAYLOAD_BYTES_MAX, PREFACE};
use http2::{ErrorCode, Event, Machine, RequestLine};
use times::Moment;

use crate::fault::Fault;
use crate::mux::{
    AbortReason, ByteProtocol, ClientProtocol, ContentFrames, MuxEvent, MuxProtocol, MuxRequest, ResetReason,
    StreamRequest, convert_extended_connect,
};
use crate::options;

/// Size of a head whose memory is kept for the next stream, in bytes.
const SPARE_BYTES_MAX: usize = 4 * 1024;
/// Room in a server's window for all streams, in bytes, from which on a request with a body can begin.
const SEND_ROOM_MIN: usize = 16 * 1024;

/// Result of comparing the first bytes of a connection with the HTTP/2 preface; `Partial` means that more
/// bytes are needed.
pub(crate) enum PrefaceMatch {
    Whole,
    Partial,
    Other,
}

/// Compares the first bytes of a connection with the preface.
pub(crate) fn preface(input: &[u8]) -> PrefaceMatch {
    match input.len() >= PREFACE.len() {
        true if input.starts_with(PREFACE) => PrefaceMatch::Whole,
        false if PREFACE.starts_with(input) => PrefaceMatch::Partial,
        _ => PrefaceMatch::Other,
    }
}

/// A state machine and its output.
pub(crate) struct Frames {
    pub(crate) machine: Machine,
    pub(crate) out: Vec<u8>,
    /// The stream of the last DATA frame, and where the frame begins in `out`, while that was not touched since.
    last_data: Option<(u32, usize)>,
}

impl Frames {
    pub(crate) fn new(machine: Machine) -> Frames {
        Frames { machine, out: Vec::new(), last_data: None }
    }
}

impl ContentFrames for Frames {
    fn capacity(&self, id: u32) -> usize {
        self.machine.sendable(id)
    }

    fn data(&mut self, id: u32, bytes: &[u8], ends: bool) {
        let taken = self.machine.data(id, bytes, ends, &mut self.out);
        let start = self.out.len().checked_sub(HEADER_BYTES + taken);
        self.last_data =
            start.filter(|_| (1..=PAYLOAD_BYTES_MAX).contains(&taken) && !ends).map(|start| (id, start));
    }

    fn end(&mut self, id: u32) {
        // The frame before becomes the last one, instead of an empty frame that follows.
        let last = self.last_data.take().filter(|&(stream, _)| stream == id);
        let frame = last.and_then(|(_, start)| self.out.get_mut(start..));
        if !frame.is_some_and(|frame| self.machine.end_with(id, frame)) {
            self.machine.data(id, b"", true, &mut self.out);
        }
    }

    fn data_in_place(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize {
        self.machine.data_in_place(id, len, ends, &mut self.out, read)
    }

    fn trailers(&mut self, id: u32, trailers: &Fields) {
        self.machine.send_trailers(id, trailers, &mut self.out);
    }
}

impl ClientProtocol for Frames {
    fn can_request(&mut self) -> bool {
        self.machine.can_request().is_ok()
    }

    fn request(&mut self, request: &MuxRequest<'_>) -> Option<u32> {
        let line = RequestLine {
            method: request.method_name,
            scheme: request.scheme,
            authority: request.authority,
            path: request.path,
            protocol: request.protocol,
        };
        let (id, mut head) = self.machine.request(&line, request.has_no_body, &mut self.out).ok()?;
        head.lines(request.lines);
        Some(id)
    }

    fn supports_connect(&self) -> bool {
        self.machine.peer_settings().connect_protocol
    }

    fn grant(&mut self, id: u32, bytes: usize) {
        self.machine.grant(id, bytes);
    }

    fn release(&mut self, id: u32) -> bool {
        self.machine.release(id)
    }

    fn has_send_room(&self) -> bool {
        self.machine.connection_sendable() >= SEND_ROOM_MIN
    }

    fn cancel_flood(&mut self, id: u32) {
        self.machine.reset(id, ErrorCode::ENHANCE_YOUR_CALM);
    }

    fn ping(&mut self) {
        self.machine.ping(*b"alive? \0");
    }

    fn unsent_bytes(&self) -> usize {
        self.out.len()
    }

    fn held_bytes(&self) -> usize {
        self.out.capacity() + self.machine.own_bytes()
    }
}

/// The server side of an HTTP/2 connection.
pub(crate) struct H2Server {
    frames: Frames,
    /// The head of a stream that has ended, whose memory the next one takes.
    spare: Option<(Head, Vec<u8>)>,
    /// Whether the client has sent GOAWAY.
    is_peer_leaving: bool,
    has_sent_goaway: bool,
}

impl H2Server {
    /// Creates the server side with these limits.
    pub(crate) fn new(limits: &options::Limits) -> H2Server {
        let options = http2::Options {
            head: limits.head,
            streams_max: u32::try_from(limits.streams_max).unwrap_or(u32::MAX),
            connect_protocol: true,
            ..http2::Options::default()
        };
        let frames = Frames::new(Machine::server(options));
        H2Server { frames, spare: None, is_peer_leaving: false, has_sent_goaway: false }
    }

    fn request(&mut self, ended: bool, refused: Option<http::Reject>, id: u32) -> Box<StreamRequest> {
        let (mut head, mut bytes) = self.spare.take().unwrap_or_default();
        let machine = &mut self.frames.machine;
        let protocol = machine.protocol.take();
        machine.swap_head(&mut head, &mut bytes);
        let priority = machine.priority(id).into();
        if let Some(protocol) = protocol.filter(|_| refused.is_none()) {
            convert_extended_connect(protocol, &mut head, &mut bytes);
        }
        Box::new(StreamRequest { head, bytes, priority, rejection: refused, ended })
    }

    /// Translates an event of the state machine; `None` if the connection need not know.
    fn event<'b>(&mut self, event: Event, bytes: &'b [u8]) -> Option<MuxEvent<'b>> {
        Some(match event {
            Event::Head { stream, ended } => MuxEvent::Request(stream, self.request(ended, None, stream)),
            // The rest of such a request is discarded.
            Event::Refused { stream, reject } => {
                MuxEvent::Request(stream, self.request(true, Some(reject), stream))
            }
            Event::Data { stream, data, ended } => MuxEvent::Data(stream, data.of(bytes), ended),
            Event::Trailers { stream } => {
                MuxEvent::End(stream, std::mem::take(&mut self.frames.machine.trailers))
            }
            Event::Reset { stream, .. } => MuxEvent::Reset(stream, AbortReason::Peer),
            Event::Aborted { stream, code, reason } => {
                MuxEvent::Reset(stream, AbortReason::Error(code.text(), reason))
            }
            Event::Writable { stream: 0 } | Event::Settings => MuxEvent::Writable(None),
            Event::Writable { stream } => MuxEvent::Writable(Some(stream)),
            Event::Reprioritized { stream, priority: new } => MuxEvent::Priority(stream, new.into()),
            Event::GoAway { .. } => {
                self.is_peer_leaving = true;
                return None;
            }
            Event::NeedMore | Event::Pong { .. } => return None,
        })
    }

    fn finish_shutdown_if_idle(&mut self) {
        if self.has_sent_goaway && self.frames.machine.stream_count() == 0 {
            self.frames.machine.finish_shutdown();
        }
    }
}

impl ContentFrames for H2Server {
    fn capacity(&self, id: u32) -> usize {
        self.frames.capacity(id)
    }

    fn data(&mut self, id: u32, bytes: &[u8], ends: bool) {
        self.frames.data(id, bytes, ends);
    }

    fn end(&mut self, id: u32) {
        self.frames.end(id);
    }

    fn data_in_place(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize {
        self.frames.data_in_place(id, len, ends, read)
    }

    fn trailers(&mut self, id: u32, trailers: &Fields) {
        self.frames.trailers(id, trailers);
    }
}

impl MuxProtocol for H2Server {
    fn head(&mut self, id: u32, status: Status, lines: &[u8], ends: bool) {
        let Frames { machine, out, .. } = &mut self.frames;
        if let Some(mut head) = machine.respond(id, status, ends, out) {
            head.lines(lines);
        }
    }

    fn grant(&mut self, id: u32, bytes: usize) {
        self.frames.machine.grant(id, bytes);
    }

    fn take_back(&mut self, head: Head, bytes: Vec<u8>) {
        if bytes.capacity() + head.fields.weight_bytes() <= SPARE_BYTES_MAX {
            let mut fields = head.fields;
            fields.clear();
            self.spare = Some((Head { fields, ..Head::default() }, bytes));
        }
    }

    fn reset(&mut self, id: u32, reason: ResetReason) {
        let code = match reason {
            ResetReason::Refused => ErrorCode::REFUSED_STREAM,
            ResetReason::Answered => ErrorCode::NO_ERROR,
            ResetReason::Failed => ErrorCode::INTERNAL_ERROR,
            // RFC 8441 section 4: the equivalent of a TCP reset.
            ResetReason::Tunnel => ErrorCode::CANCEL,
        };
        self.frames.machine.reset(id, code);
        self.close(id);
    }

    fn close(&mut self, id: u32) {
        self.frames.machine.release(id);
        self.finish_shutdown_if_idle();
    }

    fn go_away(&mut self, is_now: bool) {
        self.frames.machine.shutdown();
        self.has_sent_goaway |= is_now;
        self.finish_shutdown_if_idle();
    }

    fn is_peer_leaving(&self) -> bool {
        self.is_peer_leaving
    }

    fn limit_growth(&mut self, bytes_max: usize) {
        self.frames.machine.limit_growth(u32::try_from(bytes_max).unwrap_or(u32::MAX));
    }

    fn shrink(&mut self) {
        self.spare = None;
        self.frames.out.shrink_to_fit();
        self.frames.machine.shrink();
    }

    fn held_bytes(&self) -> usize {
        let spare =
            self.spare.as_ref().map_or(0, |(head, bytes)| head.fields.weight_bytes() + bytes.capacity());
        self.frames.out.capacity() + self.frames.machine.own_bytes() + spare
    }

    fn unsent_bytes(&mut self) -> usize {
        let Frames { machine, out, .. } = &mut self.frames;
        machine.flush(out);
        out.len()
    }

    fn shared_out(&mut self) -> Option<&mut Vec<u8>> {
        Some(self.out())
    }
}

impl ByteProtocol for H2Server {
    fn feed<'b>(
        &mut self,
        bytes: &'b [u8],
        limits: &Limits,
        now: Moment,
    ) -> Result<(usize, Option<MuxEvent<'b>>), Fault> {
        self.frames.machine.set_head_limits(*limits);
        match self.frames.machine.feed(bytes, now.0) {
            Ok((consumed, event)) => Ok((consumed, self.event(event, bytes))),
            Err(error) => {
                self.frames.machine.flush(&mut self.frames.out);
                Err(Fault::MuxError { code: error.code.text(), reason: error.reason })
            }
        }
    }

    fn awaits_peer(&self) -> bool {
        self.frames.machine.is_reading_head() || !self.frames.machine.settings_acked()
    }

    fn close_overdue(&mut self) -> Fault {
        let (code, reason) = if self.frames.machine.is_reading_head() {
            (ErrorCode::NO_ERROR, "the request head took too long")
        } else {
            (ErrorCode::SETTINGS_TIMEOUT, "the settings were not acknowledged in time")
        };
        self.frames.machine.close(code, reason);
        Fault::MuxError { code: code.text(), reason }
    }

    fn is_measuring(&self) -> bool {
        self.frames.machine.is_ping_unanswered()
    }

    fn mark_sent(&mut self) {
        self.frames.machine.mark_sent();
    }

    fn out(&mut self) -> &mut Vec<u8> {
        // The caller may take frames out.
        self.frames.last_data = None;
        let Frames { machine, out, .. } = &mut self.frames;
        machine.flush(out);
        out
    }
}
