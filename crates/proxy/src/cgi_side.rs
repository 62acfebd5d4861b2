//! A request to a server that speaks FastCGI, uwsgi or SCGI: a connection, and what makes its bytes a response of HTTP.

use std::rc::Rc;

use cgi::fastcgi::{self, FastCgiReader, RecordStep};
use cgi::{ResponseHeadReader, Variables, packet};
use http::body::Body;
use http::machine::Step;
use http::{Limits, Method, ResponseHead, Span};
use net::Fault;

use crate::failure::AttemptFailure;
use crate::options::CgiProtocol;
use crate::upstream_connection::{InputOutcome, UpstreamConnection};

/// The most bytes of error messages that are read of one request.
const ERRORS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most bytes of error messages of one request that are logged.
const LOGGED_BYTES_MAX: usize = 8 * 1024;
/// The most bytes of one line in the log.
const LINE_BYTES_MAX: usize = 2 * 1024;
/// The most bytes of a body that has ended, or that the response does not have, which are read for the connection's sake.
const EXCESS_BYTES_MAX: usize = 64 * 1024;
/// Bytes that are no response, after which other tasks run.
const NOISE_BYTES: usize = 256 * 1024;

/// What gets the lines of an upstream's error messages.
pub(crate) type ErrorSink = Rc<dyn Fn(&str)>;

/// A connection that carries one request now.
pub(crate) struct CgiSide {
    pub(crate) connection: UpstreamConnection,
    protocol: CgiProtocol,
    records: FastCgiReader,
    head: ResponseHeadReader,
    /// The response's head as HTTP/1 writes it.
    head_bytes: Vec<u8>,
    /// Bytes of the response at the beginning of the input.
    content: usize,
    /// When some of them were last received, by the core's clock; 0 while none were. Error messages are no part of the response.
    pub(crate) content_ms: u64,
    /// Bytes of the last step, which are consumed with the next one.
    consumed: usize,
    /// Content of the last step.
    data: Span,
    /// The application has ended the response.
    ended: bool,
    /// The request's body is complete; its end has been passed on.
    finished: bool,
    input_ended: bool,
    /// Bytes received for nothing since the last step, and in all.
    noise: usize,
    excess: usize,
    errors: ErrorLines,
}

/// What a response brings next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgiStep {
    Pending,
    Head,
    Data,
    End,
    /// Much was read that is no response: others have their turn.
    Noise,
}

impl CgiSide {
    /// A request with these variables, on its way. `keep` asks that the connection stays open.
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
            content: 0,
            content_ms: 0,
            consumed: 0,
            data: Span::EMPTY,
            ended: false,
            finished: false,
            input_ended: false,
            noise: 0,
            excess: 0,
            errors: ErrorLines { sink: errors, line: Vec::new(), read: 0, logged: 0 },
        })
    }

    // ---- the request's body ----

    /// Adds bytes of the body; a large piece is sent from where it stands, as far as the upstream takes it now.
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

    /// Adds bytes of the body, which are sent later.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let out = &mut self.connection.buffers.out;
        for part in bytes.chunks(usize::from(u16::MAX) - 7) {
            if self.protocol == CgiProtocol::FastCgi {
                fastcgi::body_header(out, part.len());
            }
            out.extend_from_slice(part);
        }
    }

    /// The body is complete.
    pub(crate) fn finish(&mut self) {
        if self.protocol == CgiProtocol::FastCgi {
            fastcgi::end_body(&mut self.connection.buffers.out);
        }
        self.finished = true;
        if !self.connection.is_behind() {
            self.end_input();
        }
    }

    /// Sends what the upstream takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        let flushed = self.connection.try_flush()?;
        if flushed && self.finished {
            self.end_input();
        }
        Ok(flushed)
    }

    /// A program reads its input to the end.
    fn end_input(&mut self) {
        if self.protocol == CgiProtocol::Program && !std::mem::replace(&mut self.input_ended, true) {
            self.connection.link.shutdown_write();
        }
    }

    // ---- the response ----

    /// The head of the last step.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.connection.buffers.machine.head, &self.head_bytes)
    }

    /// Content of the last step.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.of(self.connection.buffers.input.rest())
    }

    /// What its own buffers hold of memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.head.held_bytes() + self.head_bytes.capacity() + self.errors.line.capacity()
    }

    /// Whether the connection can carry another request; looked at after the response.
    pub(crate) fn is_done(&self) -> bool {
        self.protocol == CgiProtocol::FastCgi && self.ended && self.records.is_at_rest()
    }

    /// Whether the response has all the content that it announces, though the server has not ended it: it may be at work for a
    /// while.
    pub(crate) fn is_unended(&self) -> bool {
        !self.ended && self.connection.buffers.machine.body().is_some_and(Body::is_end)
    }

    /// What comes next; what the step before returned is done with.
    ///
    /// # Errors
    /// The response is invalid, or it ends before its end.
    pub(crate) fn step(&mut self, method: Method, limits: &Limits) -> Result<CgiStep, AttemptFailure> {
        self.consume(self.consumed);
        self.consumed = 0;
        loop {
            if self.noise >= NOISE_BYTES {
                self.noise = 0;
                return Ok(CgiStep::Noise);
            }
            if self.content > 0 {
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
                if self.content > 0 || self.ended || !self.connection.buffers.input.is_empty() {
                    continue;
                }
            }
            match self.connection.read_some()? {
                InputOutcome::Some => {}
                InputOutcome::Nothing => return Ok(CgiStep::Pending),
                InputOutcome::End if self.protocol == CgiProtocol::FastCgi => {
                    return Err(self.connection.cut("the upstream closed in the middle of a response"));
                }
                InputOutcome::End if !self.connection.has_begun() && self.head.is_empty() => {
                    return Err(self.connection.cut("the upstream closed without a response"));
                }
                InputOutcome::End => self.ended = true,
            }
        }
    }

    fn consume(&mut self, len: usize) {
        self.connection.buffers.input.consume(len);
        self.content -= len.min(self.content);
    }

    /// Finds the next bytes of the response in the input.
    fn next_content(&mut self) -> Result<(), AttemptFailure> {
        if self.protocol != CgiProtocol::FastCgi {
            self.content = self.connection.buffers.input.rest().len();
            self.content_ms = self.connection.received_ms;
            return Ok(());
        }
        let (consumed, step) = match self.records.feed(self.connection.buffers.input.rest()) {
            Ok(fed) => fed,
            Err(reason) => return Err(self.invalid(reason)),
        };
        self.connection.buffers.input.consume(consumed);
        match step {
            RecordStep::NeedMore => {}
            RecordStep::Output(len) => {
                self.content = len;
                self.content_ms = self.connection.received_ms;
            }
            RecordStep::Errors(len) => {
                let is_bearable = self.errors.take(&self.connection.buffers.input.rest()[..len]);
                self.connection.buffers.input.consume(len);
                self.noise += len;
                if !is_bearable {
                    return Err(self.invalid("the upstream sends error messages without end"));
                }
            }
            RecordStep::End => {
                let skipped = self.records.skip_padding(self.connection.buffers.input.rest());
                self.connection.buffers.input.consume(skipped);
                self.ended = true;
            }
            RecordStep::Overloaded => return Err(AttemptFailure::Unprocessed),
        }
        Ok(())
    }

    /// A step of the bytes of the response that are here; `None` where they bring none.
    fn take_content(&mut self, method: Method, limits: &Limits) -> Result<Option<CgiStep>, AttemptFailure> {
        let buffers = &mut *self.connection.buffers;
        let content = &buffers.input.rest()[..self.content];
        let Some(body) = buffers.machine.body() else {
            let fed = self.head.feed(content, limits.head_bytes_max);
            let (taken, is_whole) = fed.map_err(AttemptFailure::Invalid)?;
            self.consume(taken);
            if is_whole {
                self.begin(method, limits)?;
                return Ok(Some(CgiStep::Head));
            }
            return Ok(None);
        };
        if Body::is_end(body) {
            let len = content.len();
            self.consume(len);
            self.noise += len;
            self.excess += len;
            // Of a response without content that much is read and dropped; then the connection is not used again.
            self.ended |= self.excess > EXCESS_BYTES_MAX;
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

    /// The head is whole.
    fn begin(&mut self, method: Method, limits: &Limits) -> Result<(), AttemptFailure> {
        let is_fastcgi = self.protocol == CgiProtocol::FastCgi;
        self.head_bytes =
            self.head.into_http(is_fastcgi, limits.lenient_heads).map_err(AttemptFailure::Invalid)?;
        // Lines may be a little longer than they came.
        let limits = Limits { head_bytes_max: limits.head_bytes_max.max(self.head_bytes.len()), ..*limits };
        let fed = self.connection.buffers.machine.feed(&self.head_bytes, method, &limits);
        let fed = fed.map_err(|reject| self.connection.refused_head(reject.reason, &self.head_bytes))?;
        match fed.step {
            Step::Head if fed.consumed == self.head_bytes.len() => Ok(()),
            _ => Err(AttemptFailure::Invalid("the upstream's response has no valid head")),
        }
    }

    /// The response has ended.
    fn end(&mut self) -> Result<CgiStep, AttemptFailure> {
        if !self.connection.has_begun() {
            return Err(AttemptFailure::Invalid("the upstream's response has no head"));
        }
        match self.connection.buffers.machine.eof() {
            Ok(()) => Ok(CgiStep::End),
            Err(_) => Err(AttemptFailure::Body("the upstream ended a response before its Content-Length")),
        }
    }

    fn invalid(&self, reason: &'static str) -> AttemptFailure {
        match self.connection.has_begun() {
            true => AttemptFailure::Body(reason),
            false => AttemptFailure::Invalid(reason),
        }
    }
}

/// The error messages of a request, on their way to the log line by line.
struct ErrorLines {
    sink: Option<ErrorSink>,
    /// The line that has begun.
    line: Vec<u8>,
    read: usize,
    logged: usize,
}

impl ErrorLines {
    /// Takes bytes; false where there were too many.
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
