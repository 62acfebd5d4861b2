//! One end of an HTTP/3 connection: settings, QPACK, shutdown, and the meaning of its streams.

use std::collections::HashMap;

use http::{Fields, Head, Limits, Reject, Span, Status, Version};
use sections::head::{self, HeadError, RequestSection};
use sections::{FieldBlock, Priority};

use crate::decode::{QpackDecoder, SectionOutcome};
use crate::encode::{QpackEncoder, SectionWriter};
use crate::error::{Http3Code, Http3Error};
use crate::frame::{self, Http3FrameHeader, kind};
use crate::message::{FrameStep, MessageEvent, MessageStream, Phase};
use crate::settings::{self, Http3Settings, id};
use crate::unidirectional::stream_kind;
use crate::varint::{self, VARINT_MAX};

/// Bytes by which an encoded section may exceed the head limit, so that a slightly larger head is still
/// refused with a response.
const SECTION_BYTES_EXTRA: usize = 16 * 1024;
/// Frames of the control stream that a peer may send before its first request, and the most that it may save
/// up.
const CONTROL_CREDIT_MAX: u32 = 1_000;
/// Frames that each request allows in addition.
const CONTROL_CREDIT_PER_REQUEST: u32 = 10;

/// Limits and settings of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Limits of a head and of trailers, as for HTTP/1.
    pub head: Limits,
    /// Size of the dynamic table for received heads, in bytes. Default 4,096.
    pub table_bytes_max: usize,
    /// Maximum number of streams that wait for the dynamic table. Default 16.
    pub blocked_streams_max: usize,
    /// Whether extended CONNECT requests (RFC 9220) are accepted; server only. Default false.
    pub connect_protocol: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            head: Limits::default(),
            table_bytes_max: 4096,
            blocked_streams_max: 16,
            connect_protocol: false,
        }
    }
}

/// A stream that this side opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnStream {
    /// The control stream.
    Control,
    /// The encoder stream of QPACK.
    Encoder,
    /// The decoder stream of QPACK.
    Decoder,
}

impl OwnStream {
    /// All of them.
    pub const ALL: [OwnStream; 3] = [OwnStream::Control, OwnStream::Encoder, OwnStream::Decoder];

    const fn kind(self) -> u64 {
        match self {
            OwnStream::Control => stream_kind::CONTROL,
            OwnStream::Encoder => stream_kind::QPACK_ENCODER,
            OwnStream::Decoder => stream_kind::QPACK_DECODER,
        }
    }
}

/// An event of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The settings of the peer have arrived: [`Connection::peer_settings`].
    Settings,
    /// The peer accepts no streams from this identifier on. A server names pushes, of which there are none.
    GoAway(u64),
    /// The client has changed the priority of a response.
    Priority(u64, Priority),
    /// The dynamic table has grown: call [`Connection::retry`] for blocked streams.
    Unblocked,
    /// The stream has an unknown type: stop reading it with this code.
    StopReading(Http3Code),
}

/// One end of a connection. The caller feeds what its streams receive, acts on events, and sends
/// [`Connection::output`].
#[derive(Debug)]
pub struct Connection {
    options: Options,
    pub(crate) is_server: bool,
    pub(crate) peer: Http3Settings,
    pub(crate) has_peer_settings: bool,
    /// Roles of the peer's streams that were opened.
    pub(crate) opened: [bool; 3],
    pub(crate) decoder: QpackDecoder,
    pub(crate) encoder: QpackEncoder,
    control: Vec<u8>,
    /// Own streams whose type was written.
    announced: [bool; 3],
    /// The lowest identifier of GOAWAY frames received, and the highest of MAX_PUSH_ID frames.
    pub(crate) peer_last: Option<u64>,
    pub(crate) push_id_max: Option<u64>,
    /// The identifier of the last GOAWAY frame sent.
    own_last: Option<u64>,
    /// The identifier after that of the highest request received.
    pub(crate) next_request: u64,
    pub(crate) blocked_streams: usize,
    pub(crate) control_credit: u32,
    pub(crate) early_priorities: HashMap<u64, Priority>,
    block: FieldBlock,
    /// The head of the last [`MessageEvent::Head`]; its spans refer to [`Connection::head_bytes`].
    pub head: Head,
    /// The status of the last [`MessageEvent::Head`] of a client.
    pub status: Status,
    /// The trailers of the last [`MessageEvent::Trailers`].
    pub trailers: Fields,
    /// `:protocol` of the last head, if it was an extended CONNECT.
    pub protocol: Option<Span>,
    /// Whether `:scheme` of the last head was https.
    pub is_https: bool,
    /// The priority of the last request.
    pub priority: Priority,
}

impl Connection {
    /// Creates the server side.
    #[must_use]
    pub fn server(options: Options) -> Connection {
        Connection::new(options, true)
    }

    /// Creates the client side.
    #[must_use]
    pub fn client(options: Options) -> Connection {
        Connection::new(options, false)
    }

    fn new(options: Options, is_server: bool) -> Connection {
        let section_bytes_max = options.head.head_bytes_max + options.head.fields_max * 32;
        let mut list = vec![(id::MAX_FIELD_SECTION_SIZE, section_bytes_max as u64)];
        if options.table_bytes_max > 0 {
            list.push((id::QPACK_MAX_TABLE_CAPACITY, options.table_bytes_max as u64));
            list.push((id::QPACK_BLOCKED_STREAMS, options.blocked_streams_max as u64));
        }
        if is_server && options.connect_protocol {
            list.push((id::ENABLE_CONNECT_PROTOCOL, 1));
        }
        let mut payload = Vec::new();
        settings::write(&mut payload, &list);
        let mut control = Vec::new();
        frame::write(&mut control, kind::SETTINGS, &payload);
        Connection {
            options,
            is_server,
            peer: Http3Settings::default(),
            has_peer_settings: false,
            opened: [false; 3],
            decoder: QpackDecoder::new(options.table_bytes_max),
            encoder: QpackEncoder::default(),
            control,
            announced: [false; 3],
            peer_last: None,
            push_id_max: None,
            own_last: None,
            next_request: 0,
            blocked_streams: 0,
            control_credit: CONTROL_CREDIT_MAX,
            early_priorities: HashMap::new(),
            block: FieldBlock::default(),
            head: Head::default(),
            status: Status::OK,
            trailers: Fields::new(),
            protocol: None,
            is_https: false,
            priority: Priority::default(),
        }
    }

    /// Sets the limits of the heads that arrive from now on. The peer was told the first ones.
    pub fn set_head_limits(&mut self, limits: Limits) {
        self.options.head = limits;
    }

    /// The buffer that the spans of [`Connection::head`] refer to.
    #[must_use]
    pub fn head_bytes(&self) -> &[u8] {
        &self.block.bytes
    }

    /// Takes the head that was just decoded in exchange for the buffers of another one.
    pub fn swap_head(&mut self, head: &mut Head, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.head, head);
        std::mem::swap(&mut self.block.bytes, bytes);
    }

    /// The peer's settings; defaults until they have arrived.
    #[must_use]
    pub fn peer_settings(&self) -> &Http3Settings {
        &self.peer
    }

    /// Whether the settings of the peer have arrived.
    #[must_use]
    pub fn has_peer_settings(&self) -> bool {
        self.has_peer_settings
    }

    /// Memory held for the peer, in bytes, without its request streams.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.decoder.held_bytes()
            + self.encoder.held_bytes()
            + self.control.capacity()
            + self.block.bytes.capacity()
            + self.early_priorities.capacity() * size_of::<(u64, Priority)>()
    }

    /// The bytes to send on a stream of this side, beginning with the stream's type; remove what was sent.
    /// The stream need not be opened before there are bytes.
    pub fn output(&mut self, stream: OwnStream) -> &mut Vec<u8> {
        let out = match stream {
            OwnStream::Control => &mut self.control,
            OwnStream::Encoder => self.encoder.out(),
            OwnStream::Decoder => self.decoder.out(),
        };
        if !out.is_empty() && !std::mem::replace(&mut self.announced[stream as usize], true) {
            let mut kind = Vec::with_capacity(1);
            varint::write(&mut kind, stream.kind());
            out.splice(..0, kind);
        }
        out
    }

    // ---- request streams ----

    /// Processes bytes of a request stream; `fin` means that they are its last. Returns the number of bytes
    /// consumed and an event; feed the remaining bytes again. Once all bytes are consumed and `fin` is set,
    /// call [`Connection::finish`].
    ///
    /// # Errors
    /// An error that ends the stream or the connection.
    pub fn feed(
        &mut self,
        stream: &mut MessageStream,
        bytes: &[u8],
        fin: bool,
    ) -> Result<(usize, MessageEvent), Http3Error> {
        let section_bytes_max = self.options.head.head_bytes_max + SECTION_BYTES_EXTRA;
        let (consumed, step) = stream.advance(bytes, section_bytes_max, self.is_server)?;
        let ended = fin && consumed == bytes.len();
        let event = match step {
            FrameStep::NeedMore => MessageEvent::NeedMore,
            FrameStep::Data(span) => MessageEvent::Data(span),
            FrameStep::Section(section) => self.take_section(stream, section, ended)?,
            FrameStep::BufferedSection => {
                let section = std::mem::take(&mut stream.section);
                self.take_section(stream, &section, ended)?
            }
            FrameStep::Oversized => self.take_oversized(stream)?,
        };
        Ok((consumed, event))
    }

    /// Decodes the section of a blocked stream again; `ended` means that nothing follows it.
    ///
    /// # Errors
    /// As for [`Connection::feed`].
    pub fn retry(&mut self, stream: &mut MessageStream, ended: bool) -> Result<MessageEvent, Http3Error> {
        match stream.blocked_until {
            None => Ok(MessageEvent::NeedMore),
            Some(required) if required > self.decoder.inserted() => Ok(MessageEvent::Blocked),
            Some(_) => {
                stream.blocked_until = None;
                self.blocked_streams -= 1;
                let section = std::mem::take(&mut stream.section);
                self.take_section(stream, &section, ended)
            }
        }
    }

    /// Checks the end of a request stream.
    ///
    /// # Errors
    /// The message is incomplete.
    pub fn finish(&mut self, stream: &MessageStream) -> Result<(), Http3Error> {
        stream.end()
    }

    /// Forgets a request stream that was reset by either side, or whose rest is not read. The peer still acknowledges or
    /// cancels what this side has sent on it.
    ///
    /// # Errors
    /// H3_EXCESSIVE_LOAD if the peer does not read its decoder stream.
    pub fn abandon(&mut self, stream: &mut MessageStream) -> Result<(), Http3Error> {
        if stream.blocked_until.take().is_some() {
            self.blocked_streams -= 1;
        }
        stream.section = Vec::new();
        self.decoder.cancel(stream.id)
    }

    fn take_section(
        &mut self,
        stream: &mut MessageStream,
        section: &[u8],
        ended: bool,
    ) -> Result<MessageEvent, Http3Error> {
        match self.decoder.decode(stream.id, section, &mut self.block, &self.options.head)? {
            SectionOutcome::Blocked(required) => {
                if self.blocked_streams >= self.options.blocked_streams_max {
                    let reason = "too many blocked streams";
                    return Err(Http3Error::connection(Http3Code::QPACK_DECOMPRESSION_FAILED, reason));
                }
                self.blocked_streams += 1;
                stream.blocked_until = Some(required);
                stream.section = section.to_vec();
                Ok(MessageEvent::Blocked)
            }
            SectionOutcome::Done if stream.phase == Phase::Body => self.take_trailers(stream),
            SectionOutcome::Done if self.is_server => self.take_request(stream, ended),
            SectionOutcome::Done => self.take_response(stream, ended),
        }
    }

    fn take_request(&mut self, stream: &mut MessageStream, ended: bool) -> Result<MessageEvent, Http3Error> {
        self.next_request = self.next_request.max(stream.id + 4);
        self.control_credit = (self.control_credit + CONTROL_CREDIT_PER_REQUEST).min(CONTROL_CREDIT_MAX);
        let early = self.early_priorities.remove(&stream.id);
        let Options { head: limits, connect_protocol, .. } = self.options;
        let request = RequestSection { limits, version: Version::Http3, ended, connect_protocol };
        let parsed = head::request(&mut self.block, &mut self.head, &request);
        stream.phase = Phase::Body;
        match parsed {
            Ok(extras) => {
                self.protocol = extras.protocol;
                self.is_https = extras.is_https;
                self.priority = early.or(extras.priority).unwrap_or_default();
                stream.content_left = extras.length;
                Ok(MessageEvent::Head { ended })
            }
            Err(HeadError::Refused(reject)) => {
                stream.is_refused = true;
                Ok(MessageEvent::Refused(reject))
            }
            Err(error) => Err(malformed(error)),
        }
    }

    fn take_response(&mut self, stream: &mut MessageStream, ended: bool) -> Result<MessageEvent, Http3Error> {
        let is_lenient = self.options.head.lenient_heads;
        match head::response(&mut self.block, Version::Http3, is_lenient) {
            Ok((status, length)) => {
                self.status = status;
                std::mem::swap(&mut self.head.fields, &mut self.block.fields);
                if status.is_informational() {
                    if ended {
                        let reason = "stream ends with an interim response";
                        return Err(Http3Error::stream(Http3Code::MESSAGE_ERROR, reason));
                    }
                } else {
                    stream.phase = Phase::Body;
                    let has_content = !stream.is_of_head && status != Status::NOT_MODIFIED;
                    stream.content_left = length.filter(|_| has_content);
                }
                Ok(MessageEvent::Head { ended })
            }
            Err(error) => Err(malformed(error)),
        }
    }

    fn take_trailers(&mut self, stream: &mut MessageStream) -> Result<MessageEvent, Http3Error> {
        stream.phase = Phase::Trailers;
        match head::trailers(&self.block) {
            Ok(trailers) => {
                self.trailers = trailers;
                Ok(MessageEvent::Trailers)
            }
            Err(error) => Err(malformed(error)),
        }
    }

    /// Handles a section larger than any that is decoded.
    fn take_oversized(&mut self, stream: &mut MessageStream) -> Result<MessageEvent, Http3Error> {
        if !self.is_server || stream.phase != Phase::Head {
            return Err(Http3Error::stream(Http3Code::MESSAGE_ERROR, "section too large"));
        }
        self.next_request = self.next_request.max(stream.id + 4);
        // The section may refer to the dynamic table.
        self.decoder.cancel(stream.id)?;
        stream.phase = Phase::Body;
        stream.is_refused = true;
        self.head = Head { version: Version::Http3, ..Head::default() };
        self.block.clear();
        Ok(MessageEvent::Refused(Reject::new(Status::FIELDS_TOO_LARGE, "head too large")))
    }

    // ---- what this side sends ----

    /// Writes a HEADERS frame with the section that `write` fills.
    pub fn write_section(
        &mut self,
        stream: u64,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut SectionWriter<'_>),
    ) {
        let mut section = self.encoder.begin(stream);
        write(&mut section);
        let mut payload = Vec::with_capacity(256);
        section.finish(&mut payload);
        frame::write(out, kind::HEADERS, &payload);
    }

    /// Writes the header of a DATA frame of `len` bytes, which must follow.
    pub fn write_data_header(len: usize, out: &mut Vec<u8>) {
        Http3FrameHeader { kind: kind::DATA, len: len as u64 }.write(out);
    }

    /// Announces that no further requests are accepted (RFC 9114 section 5.2): soon, so that requests on
    /// their way arrive, or from now on if `is_now`.
    pub fn go_away(&mut self, is_now: bool) {
        let last = match (self.is_server, is_now) {
            (true, true) => self.next_request,
            (true, false) => VARINT_MAX - 3,
            // A client names pushes, of which there are none.
            (false, _) => 0,
        };
        if self.own_last.is_none_or(|before| last < before) {
            self.own_last = Some(last);
            frame::write_integer(&mut self.control, kind::GOAWAY, last);
        }
    }

    /// Whether the peer has announced its end.
    #[must_use]
    pub fn is_peer_leaving(&self) -> bool {
        self.peer_last.is_some()
    }

    /// Asks a server to change the priority of a response (RFC 9218); `value` is like `u=0..7`, `i`.
    pub fn prioritize(&mut self, stream: u64, value: &[u8]) {
        let mut payload = Vec::with_capacity(8 + value.len());
        varint::write(&mut payload, stream);
        payload.extend_from_slice(value);
        frame::write(&mut self.control, kind::PRIORITY_UPDATE, &payload);
    }

    /// Releases memory that a connection without streams does not need.
    pub fn shrink(&mut self) {
        (self.block, self.head, self.trailers) = (FieldBlock::default(), Head::default(), Fields::new());
        self.decoder.shrink();
        self.control.shrink_to_fit();
        self.early_priorities.shrink_to_fit();
    }
}

/// Returns the error of a message that is not answered (RFC 9114 section 4.1.2).
fn malformed(error: HeadError) -> Http3Error {
    let reason = match error {
        HeadError::Malformed(reason) => reason,
        HeadError::Refused(reject) => reject.reason,
    };
    Http3Error::stream(Http3Code::MESSAGE_ERROR, reason)
}
