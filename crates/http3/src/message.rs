//! The frames of a request stream (RFC 9114 section 4.1): one message in each direction.

use http::Span;

use crate::error::{Http3Code, Http3Error};
use crate::frame::{HEADER_BYTES_MAX, Http3FrameHeader, kind};

/// Maximum number of frames of unknown types on a stream, and of their bytes.
const UNKNOWN_FRAMES_MAX: u32 = 64;
const UNKNOWN_BYTES_MAX: u64 = 64 * 1024;
/// Maximum number of empty DATA frames on a stream.
const EMPTY_FRAMES_MAX: u32 = 1_000;

/// The result of feeding bytes of a stream to [`crate::Connection::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEvent {
    /// More bytes are needed.
    NeedMore,
    /// A head is in [`crate::Connection::head`]; a client finds the status in [`crate::Connection::status`].
    /// `ended` means that the stream ends with it.
    Head {
        /// Whether nothing follows.
        ended: bool,
    },
    /// A request that exceeds a limit: answer it with this status. Its content is dropped.
    Refused(http::Reject),
    /// A range of content in the bytes just fed.
    Data(Span),
    /// The message ends with the trailers in [`crate::Connection::trailers`].
    Trailers,
    /// The section needs entries of the dynamic table that have not arrived. Feed nothing more, and call
    /// [`crate::Connection::retry`] when the encoder stream of the peer has advanced.
    Blocked,
}

/// The receiving side of a request stream.
#[derive(Debug)]
pub struct MessageStream {
    pub(crate) id: u64,
    pub(crate) phase: Phase,
    frame: Option<OpenFrame>,
    /// Bytes of an incomplete frame header.
    header: Vec<u8>,
    /// Payload of an incomplete HEADERS frame, or of one that is blocked.
    pub(crate) section: Vec<u8>,
    /// Entries that the blocked section waits for: see [`MessageEvent::Blocked`].
    pub(crate) blocked_until: Option<u64>,
    /// Bytes of content that must follow, by Content-Length.
    pub(crate) content_left: Option<u64>,
    /// Whether content is dropped.
    pub(crate) is_refused: bool,
    /// Whether the message is the response to HEAD.
    pub(crate) is_of_head: bool,
    unknown_frames: u32,
    unknown_bytes: u64,
    empty_frames: u32,
}

/// The part of a message that has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the head: nothing, or interim responses.
    Head,
    /// The head, and perhaps a part of the body.
    Body,
    /// The whole message.
    Trailers,
}

#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    kind: MessageFrameKind,
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFrameKind {
    Data,
    Headers,
    /// A head that exceeds the limit; its payload is dropped.
    Oversized,
    Unknown,
}

/// A step of the frame parser.
pub(crate) enum FrameStep<'b> {
    NeedMore,
    /// A whole HEADERS payload: in the bytes just fed.
    Section(&'b [u8]),
    /// A whole HEADERS payload: in [`MessageStream::section`].
    BufferedSection,
    /// A HEADERS frame larger than the limit has begun.
    Oversized,
    Data(Span),
}

impl MessageStream {
    /// Creates the state of the stream with that QUIC identifier.
    #[must_use]
    pub fn new(id: u64) -> MessageStream {
        MessageStream {
            id,
            phase: Phase::Head,
            frame: None,
            header: Vec::new(),
            section: Vec::new(),
            blocked_until: None,
            content_left: None,
            is_refused: false,
            is_of_head: false,
            unknown_frames: 0,
            unknown_bytes: 0,
            empty_frames: 0,
        }
    }

    /// Creates the state of a stream on which a client has sent a HEAD request.
    #[must_use]
    pub fn of_head(id: u64) -> MessageStream {
        MessageStream { is_of_head: true, ..MessageStream::new(id) }
    }

    /// The QUIC identifier.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        size_of::<MessageStream>() + self.header.capacity() + self.section.capacity()
    }

    /// Whether a section waits for the dynamic table.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked_until.is_some()
    }

    /// Whether the head is incomplete, so that the head timeout applies.
    #[must_use]
    pub fn is_reading_head(&self) -> bool {
        self.phase == Phase::Head
    }

    /// Parses frames up to the next step. Returns the number of bytes consumed.
    pub(crate) fn advance<'b>(
        &mut self,
        bytes: &'b [u8],
        section_bytes_max: usize,
        is_server: bool,
    ) -> Result<(usize, FrameStep<'b>), Http3Error> {
        // A span has 32 bits: any further bytes are left for the next call.
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let Some(frame) = &mut self.frame else {
                let Some((header, consumed)) = self.frame_header(rest) else {
                    return Ok((bytes.len(), FrameStep::NeedMore));
                };
                at += consumed;
                let frame = self.begin_frame(header, section_bytes_max, is_server)?;
                self.frame = Some(frame);
                match frame.kind {
                    MessageFrameKind::Oversized => return Ok((at, FrameStep::Oversized)),
                    MessageFrameKind::Headers if frame.left == 0 => {
                        self.frame = None;
                        return Ok((at, FrameStep::Section(&bytes[at..at])));
                    }
                    _ if frame.left == 0 => self.frame = None,
                    _ => {}
                }
                continue;
            };
            if rest.is_empty() {
                return Ok((at, FrameStep::NeedMore));
            }
            let len = usize::try_from(frame.left).unwrap_or(usize::MAX).min(rest.len());
            frame.left -= len as u64;
            let (kind, is_whole) = (frame.kind, frame.left == 0);
            if is_whole {
                self.frame = None;
            }
            let start = at;
            at += len;
            match kind {
                MessageFrameKind::Data if self.is_refused => {}
                MessageFrameKind::Data => return Ok((at, FrameStep::Data(Span::new(start, at)))),
                MessageFrameKind::Headers if is_whole && self.section.is_empty() => {
                    return Ok((at, FrameStep::Section(&bytes[start..at])));
                }
                MessageFrameKind::Headers => {
                    self.section.extend_from_slice(&bytes[start..at]);
                    if is_whole {
                        return Ok((at, FrameStep::BufferedSection));
                    }
                }
                MessageFrameKind::Oversized | MessageFrameKind::Unknown => {}
            }
        }
    }

    /// Reads a frame header, whose first bytes may have been received before. Returns it and the number of
    /// bytes consumed of `rest`. Otherwise keeps all of `rest`.
    fn frame_header(&mut self, rest: &[u8]) -> Option<(Http3FrameHeader, usize)> {
        if self.header.is_empty()
            && let Some(read) = Http3FrameHeader::read(rest)
        {
            return Some(read);
        }
        let before = self.header.len();
        let taken = rest.len().min(HEADER_BYTES_MAX - before);
        self.header.extend_from_slice(&rest[..taken]);
        let (header, len) = Http3FrameHeader::read(&self.header)?;
        self.header.clear();
        Some((header, len - before))
    }

    /// Validates a frame by its header (RFC 9114 sections 4.1, 7.2 and 7.2.8).
    fn begin_frame(
        &mut self,
        header: Http3FrameHeader,
        section_bytes_max: usize,
        is_server: bool,
    ) -> Result<OpenFrame, Http3Error> {
        let unexpected = |reason| Err(Http3Error::connection(Http3Code::FRAME_UNEXPECTED, reason));
        let kind = match header.kind {
            kind::DATA if self.phase == Phase::Head => return unexpected("DATA before the head"),
            kind::DATA if self.phase == Phase::Trailers => return unexpected("DATA after the trailers"),
            kind::DATA => {
                self.count_content(header.len)?;
                self.empty_frames += u32::from(header.len == 0);
                if self.empty_frames > EMPTY_FRAMES_MAX {
                    let reason = "too many empty frames";
                    return Err(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, reason));
                }
                MessageFrameKind::Data
            }
            kind::HEADERS if self.phase == Phase::Trailers => {
                return unexpected("HEADERS after the trailers");
            }
            kind::HEADERS if header.len > section_bytes_max as u64 => MessageFrameKind::Oversized,
            kind::HEADERS => MessageFrameKind::Headers,
            kind::PUSH_PROMISE if !is_server => {
                return Err(Http3Error::connection(Http3Code::ID_ERROR, "push is not enabled"));
            }
            kind::CANCEL_PUSH
            | kind::SETTINGS
            | kind::PUSH_PROMISE
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH => return unexpected("control frame on a request stream"),
            kind if kind::is_http2(kind) => return unexpected("frame of HTTP/2"),
            _ => {
                self.unknown_frames += 1;
                self.unknown_bytes = self.unknown_bytes.saturating_add(header.len);
                if self.unknown_frames > UNKNOWN_FRAMES_MAX || self.unknown_bytes > UNKNOWN_BYTES_MAX {
                    let reason = "too many frames of unknown types";
                    return Err(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, reason));
                }
                MessageFrameKind::Unknown
            }
        };
        Ok(OpenFrame { kind, left: header.len })
    }

    /// Counts content against Content-Length (RFC 9114 section 4.1.2).
    fn count_content(&mut self, len: u64) -> Result<(), Http3Error> {
        if let Some(left) = &mut self.content_left {
            let rest = left.checked_sub(len);
            let longer = Http3Error::stream(Http3Code::MESSAGE_ERROR, "content longer than Content-Length");
            *left = rest.ok_or(longer)?;
        }
        Ok(())
    }

    /// Checks the end of the stream.
    ///
    /// # Errors
    /// A frame is cut off, or the message is incomplete.
    pub(crate) fn end(&self) -> Result<(), Http3Error> {
        if self.frame.is_some() || !self.header.is_empty() {
            return Err(Http3Error::connection(Http3Code::FRAME_ERROR, "stream ends in a frame"));
        }
        if self.phase == Phase::Head {
            return Err(Http3Error::stream(Http3Code::REQUEST_INCOMPLETE, "stream ends before the head"));
        }
        if self.content_left.is_some_and(|left| left > 0) && !self.is_refused {
            return Err(Http3Error::stream(Http3Code::MESSAGE_ERROR, "content shorter than Content-Length"));
        }
        Ok(())
    }
}
