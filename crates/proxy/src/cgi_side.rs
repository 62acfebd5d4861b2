//! A request to a FastCGI, uwsgi or SCGI server: the connection, and the conversion of its bytes to an HTTP
//! response.

use std::rc::Rc;

use cgi::fastcgi::{self, FastCgiReader, RecordStep};
use cgi::{HeadRules, ResponseHeadReader, Variables, packet};
use http::body::Body;
use http::machine::Step;
use http::{Limits, Method, ResponseHead, Span};
use net::Fault;
use times::Moment;

use crate::failure::AttemptFailure;
use crate::options::CgiProtocol;
use crate::upstream_connection::{InputOutcome, UpstreamConnection};

/// Maximum bytes of error messages read for one request.
const ERRORS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum bytes of error messages logged for one request.
const LOGGED_BYTES_MAX: usize = 8 * 1024;
/// Maximum bytes of one line in the log.
const LINE_BYTES_MAX: usize = 2 * 1024;
/// Maximum bytes read and dropped after the end of the content, so that the connection can be kept.
const EXCESS_BYTES_MAX: usize = 64 * 1024;
/// Number of bytes outside the response's content after which other tasks run.
const NON_CONTENT_BYTES_PER_TURN: usize = 256 * 1024;

/// Callback that receives the lines of an upstream's error messages.
pub(crate) type ErrorSink = Rc<dyn Fn(&str)>;

/// A connection to a server of the CGI family that carries one request.
pub(crate) struct CgiSide {
    pub(crate) connection: UpstreamConnection,
    protocol: CgiProtocol,
    records: FastCgiReader,
    head: ResponseHeadReader,
    /// Response head, converted to HTTP/1.
    head_bytes: Vec<u8>,
    /// Bytes of the response at the beginning of the input.
    content_bytes: usize,
    /// Time at which content was last received, by the core's clock; 0 before the first. Error messages do
    /// not count.
    pub(crate) content_at: Moment,
    /// Bytes of the last step, consumed at the beginning of the next one.
    consumed: usize,
    /// Content of the last step, as a range of the input.
    data: Span,
    /// Whether the application has ended the response.
    ended: bool,
    /// Whether the request's body is complete and its end has been sent.
    finished: bool,
    input_ended: bool,
    /// Bytes outside the content received since the last step (`noise`), and after the end of the content
    /// (`excess`).
    non_content_bytes: usize,
    excess_bytes: usize,
    errors: ErrorLines,
}

/// Result of [`CgiSide::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgiStep {
    Pending,
    Head,
    Data,
    End,
    /// Many bytes outside the content were read; the caller lets other tasks run.
    NonContent,
}

impl CgiSide {
    /// Starts a request with these variables. `keep` asks the server to keep the connection open.
    ///
    /// # Errors
    /// The protocol cannot carry the variables.
    pub(crate) fn new(
        mut connection: UpstreamConnection,
        protocol: CgiProtocol,
        variables: &Variables,
        keep: bool,
        errors: Option<ErrorSink>,
    ) -> Result<CgiSide, &'static str> {
        let out = &mut connection.buffers.out;
        match protocol {
            CgiProtocol::FastCgi => fastcgi::begin(out, variables, keep),
            CgiProtocol::Uwsgi => packet::uwsgi(out, variables)?,
            CgiProtocol::Scgi | CgiProtocol::Program => packet::scgi(out, variables)?,
        }
        Ok(CgiSide {
            connection,
            protocol,
            records: FastCgiReader::default(),
            head: ResponseHeadReader::default(),
            head_bytes: Vec::new(),
            content_bytes: 0,
            content_at: Moment::ZERO,
            consumed: 0,
            data: Span::EMPTY,
            ended: false,
            finished: false,
            input_ended: false,
            non_content_bytes: 0,
            excess_bytes: 0,
            errors: ErrorLines { sink: errors, line: Vec::new(), read: 0, logged: 0 },
        })
    }

    // ---- the request's body ----

    /// Adds bytes of the body. A large piece is sent without copying, as far as the upstream accepts it
    /// immediately.
    pub(crate) fn offer(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.protocol != CgiProtocol::FastCgi {
            return self.connection.offer(bytes);
        }
        while !bytes.is_empty() {
            let len = fastcgi::body_header(&mut self.connection.buffers.out, bytes.len());
            self.connection.offer(&bytes[..len])?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// Appends bytes of the body to the output, to be sent later.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let out = &mut self.connection.buffers.out;
        for part in bytes.chunks(usize::from(u16::MAX) - 7) {
            if self.protocol == CgiProtocol::FastCgi {
                fastcgi::body_header(out, part.len());
            }
            out.extend_from_slice(part);
        }
    }

    /// Marks the body as complete.
    pub(crate) fn finish(&mut self) {
        if self.protocol == CgiProtocol::FastCgi {
            fastcgi::end_body(&mut self.connection.buffers.out);
        }
        self.finished = true;
        if !self.connection.has_pending_output() {
            self.end_input();
        }
    }

    /// Sends as much output as the upstream accepts; true if nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        let flushed = self.connection.try_flush()?;
        if flushed && self.finished {
            self.end_input();
        }
        Ok(flushed)
    }

    /// Closes the sending side for a program, which reads its input to the end.
    fn end_input(&mut self) {
        if self.protocol == CgiProtocol::Program && !std::mem::replace(&mut self.input_ended, true) {
            self.connection.link.shutdown_write();
        }
    }

    // ---- the response ----

    /// Head returned by the last step.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.connection.buffers.machine.head, &self.head_bytes)
    }

    /// Content returned by the last step.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.of(self.connection.buffers.input.unconsumed())
    }

    /// Returns the memory held by this side's own buffers, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.head.held_bytes() + self.head_bytes.capacity() + self.errors.line.capacity()
    }

    /// Whether the connection can carry another request; valid after the response.
    pub(crate) fn is_done(&self) -> bool {
        self.protocol == CgiProtocol::FastCgi && self.ended && self.records.is_record_complete()
    }

    /// Whether the response has all the content that it announces although the server has not ended it: the
    /// application may continue to run.
    pub(crate) fn awaits_end(&self) -> bool {
        !self.ended && self.connection.buffers.machine.body().is_some_and(Body::is_end)
    }

    /// Returns the next part of the response and consumes the bytes of the step before.
    ///
    /// # Errors
    /// The response is invalid or truncated.
    pub(crate) fn step(&mut self, method: Method, limits: &Limits) -> Result<CgiStep, AttemptFailure> {
        self.consume(self.consumed);
        self.consumed = 0;
        loop {
            if self.non_content_bytes >= NON_CONTENT_BYTES_PER_TURN {
                self.non_content_bytes = 0;
                return Ok(CgiStep::NonContent);
            }
            if self.content_bytes > 0 {
                if let Some(step) = self.take_content(method, limits)? {
                    return Ok(step);
                }
                continue;
            }
            if self.ended {
                return self.end();
            }
            let is_empty = self.connection.buffers.input.is_empty();
            if !is_empty {
                self.next_content()?;
                if self.content_bytes > 0 || self.ended || !self.connection.buffers.input.is_empty() {
                    continue;
                }
            }
            match self.connection.read_some()? {
                InputOutcome::Received => {}
                InputOutcome::Nothing => return Ok(CgiStep::Pending),
                InputOutcome::End if self.protocol == CgiProtocol::FastCgi => {
                    return Err(self
                        .connection
                        .connection_lost("the upstream closed in the middle of a response"));
                }
                InputOutcome::End if !self.connection.has_response_begun() && self.head.is_empty() => {
                    return Err(self.connection.connection_lost("the upstream closed without a response"));
                }
                InputOutcome::End => self.ended = true,
            }
        }
    }

    fn consume(&mut self, len: usize) {
        self.connection.buffers.input.consume(len);
        self.content_bytes -= len.min(self.content_bytes);
    }

    /// Finds the next content in the input.
    fn next_content(&mut self) -> Result<(), AttemptFailure> {
        if self.protocol != CgiProtocol::FastCgi {
            self.content_bytes = self.connection.buffers.input.unconsumed().len();
            self.content_at = self.connection.received_at;
            return Ok(());
        }
        let (consumed, step) = match self.records.feed(self.connection.buffers.input.unconsumed()) {
            Ok(fed) => fed,
            Err(reason) => return Err(self.invalid(reason)),
        };
        self.connection.buffers.input.consume(consumed);
        match step {
            RecordStep::NeedMore => {}
            RecordStep::Output(len) => {
                self.content_bytes = len;
                self.content_at = self.connection.received_at;
            }
            RecordStep::Errors(len) => {
                let is_bearable = self.errors.take(&self.connection.buffers.input.unconsumed()[..len]);
                self.connection.buffers.input.consume(len);
                self.non_content_bytes += len;
                if !is_bearable {
                    return Err(self.invalid("the upstream sends error messages without end"));
                }
            }
            RecordStep::End => {
                let skipped = self.records.skip_padding(self.connection.buffers.input.unconsumed());
                self.connection.buffers.input.consume(skipped);
                self.ended = true;
            }
            RecordStep::Overloaded => return Err(AttemptFailure::Unprocessed),
        }
        Ok(())
    }

    /// Parses the content at hand; `None` if more bytes are needed.
    fn take_content(&mut self, method: Method, limits: &Limits) -> Result<Option<CgiStep>, AttemptFailure> {
        let buffers = &mut *self.connection.buffers;
        let content = &buffers.input.unconsumed()[..self.content_bytes];
        let Some(body) = buffers.machine.body() else {
            let fed = self.head.feed(content, limits.head_bytes_max);
            let (taken, is_whole) = fed.map_err(AttemptFailure::Invalid)?;
            self.consume(taken);
            if is_whole {
                self.parse_head(method, limits)?;
                return Ok(Some(CgiStep::Head));
            }
            return Ok(None);
        };
        if Body::is_end(body) {
            let len = content.len();
            self.consume(len);
            self.non_content_bytes += len;
            self.excess_bytes += len;
            // Content after the end of the response is dropped up to this limit; then the connection is not
            // reused.
            self.ended |= self.excess_bytes > EXCESS_BYTES_MAX;
            return Ok(None);
        }
        let fed = match buffers.machine.feed(content, method, limits) {
            Ok(fed) => fed,
            Err(reject) => return Err(AttemptFailure::Body(reject.reason)),
        };
        match fed.step {
            Step::Data(span) => {
                (self.data, self.consumed) = (span, fed.consumed);
                Ok(Some(CgiStep::Data))
            }
            Step::NeedMore | Step::Head | Step::End => {
                self.consume(fed.consumed);
                Ok(None)
            }
        }
    }

    /// Parses the complete head as HTTP/1.
    fn parse_head(&mut self, method: Method, limits: &Limits) -> Result<(), AttemptFailure> {
        let rules = HeadRules {
            may_be_empty: self.protocol == CgiProtocol::FastCgi,
            spaced_colon: limits.lenient_heads,
        };
        self.head_bytes = self.head.into_http(rules).map_err(AttemptFailure::Invalid)?;
        // Converted lines can be slightly longer than the received ones.
        let limits = Limits { head_bytes_max: limits.head_bytes_max.max(self.head_bytes.len()), ..*limits };
        let fed = self.connection.buffers.machine.feed(&self.head_bytes, method, &limits);
        let fed = fed.map_err(|reject| self.connection.refused_head(reject.reason, &self.head_bytes))?;
        match fed.step {
            Step::Head if fed.consumed == self.head_bytes.len() => Ok(()),
            _ => Err(AttemptFailure::Invalid("the upstream's response has no valid head")),
        }
    }

    /// Ends the response.
    fn end(&mut self) -> Result<CgiStep, AttemptFailure> {
        if !self.connection.has_response_begun() {
            return Err(AttemptFailure::Invalid("the upstream's response has no head"));
        }
        match self.connection.buffers.machine.eof() {
            Ok(()) => Ok(CgiStep::End),
            Err(_) => Err(AttemptFailure::Body("the upstream ended a response before its Content-Length")),
        }
    }

    fn invalid(&self, reason: &'static str) -> AttemptFailure {
        if self.connection.has_response_begun() {
            AttemptFailure::Body(reason)
        } else {
            AttemptFailure::Invalid(reason)
        }
    }
}

/// Error messages of a request, logged line by line.
struct ErrorLines {
    sink: Option<ErrorSink>,
    /// The incomplete last line.
    line: Vec<u8>,
    read: usize,
    logged: usize,
}

impl ErrorLines {
    /// Takes bytes of error messages; false if the limit is exceeded.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.read += bytes.len();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.logged >= LOGGED_BYTES_MAX {
                break;
            }
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") || self.line.len() == LINE_BYTES_MAX {
                self.log();
            }
        }
        self.read <= ERRORS_BYTES_MAX
    }

    fn log(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        self.logged += line.len();
        if let Some(sink) = self.sink.as_ref().filter(|_| !text.trim().is_empty()) {
            sink(text.trim_end());
        }
    }
}

impl Drop for ErrorLines {
    fn drop(&mut self) {
        self.log();
    }
}
