//! Upstream side of a request: an HTTP/1 connection, a stream of a shared HTTP/2 connection, or a connection
//! to a FastCGI, uwsgi or SCGI server.

use std::borrow::Cow;

use http::body::Body;
use http::encode::{CHUNK_END, write_chunk_start, write_last_chunk};
use http::machine::Step;
use http::{Fields, Limits, Method, ResponseHead, Span, Status};
use net::{Core, Exchange, Fault, Interest, MuxRequestStream, StreamFailure, StreamStep};
use times::{Millis, Moment};

use crate::cgi_side::{CgiSide, CgiStep};
use crate::failure::AttemptFailure;
use crate::upstream_connection::{UpstreamConnection, announced_idle};

/// Upstream side of a request.
pub(crate) enum UpstreamSide {
    /// An HTTP/1 connection that carries only this request at present.
    H1(Http1Side),
    /// An HTTP/2 stream. Boxed, so that it does not enlarge HTTP/1 requests.
    Stream(Box<MuxRequestStream>),
    /// FastCGI, uwsgi or SCGI.
    Cgi(Box<CgiSide>),
}

/// An HTTP/1 connection and the read position of its response.
pub(crate) struct Http1Side {
    pub(crate) connection: UpstreamConnection,
    /// Whether the request body is chunked, because its length is unknown.
    chunked: bool,
    /// Bytes of the last step, consumed at the beginning of the next one.
    consumed: usize,
    /// Content of the last step, as a range of the input.
    data: Span,
}

/// Result of [`UpstreamSide::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamStep {
    Pending,
    /// A head, in [`UpstreamSide::head`].
    Head,
    /// Content, in [`UpstreamSide::data`] until the next step.
    Data,
    End,
    /// Many bytes outside the response's content were read; the caller lets other tasks run.
    NonContent,
}

impl UpstreamSide {
    pub(crate) fn core(&self) -> &Core {
        match self {
            UpstreamSide::H1(side) => side.connection.link.core(),
            UpstreamSide::Stream(stream) => stream.core(),
            UpstreamSide::Cgi(side) => side.connection.link.core(),
        }
    }

    pub(crate) fn is_reused(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.reused,
            UpstreamSide::Stream(stream) => stream.is_reused(),
            UpstreamSide::Cgi(side) => side.connection.reused,
        }
    }

    /// Returns when bytes of the response were last received, by the core's clock; 0 before the first.
    pub(crate) fn received_at(&self) -> Moment {
        match self {
            UpstreamSide::H1(side) => side.connection.received_at,
            UpstreamSide::Stream(stream) => stream.received_at(),
            UpstreamSide::Cgi(side) => side.content_at,
        }
    }

    /// Whether the head of the final response has been received.
    pub(crate) fn has_response_begun(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_response_begun(),
            UpstreamSide::Stream(stream) => stream.has_begun(),
            UpstreamSide::Cgi(side) => side.connection.has_response_begun(),
        }
    }

    /// Whether the response is a 408 for an idle connection that crossed with the request.
    pub(crate) fn is_idle_timeout(&self) -> bool {
        matches!(self, UpstreamSide::H1(side) if side.connection.is_idle_timeout())
    }

    // ---- the request's body ----

    /// Adds bytes of the body.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self {
            UpstreamSide::H1(side) => {
                let out = &mut side.connection.buffers.out;
                if side.chunked {
                    write_chunk_start(out, bytes.len());
                }
                out.extend_from_slice(bytes);
                if side.chunked {
                    out.extend_from_slice(CHUNK_END);
                }
            }
            UpstreamSide::Stream(stream) => stream.offer(bytes),
            UpstreamSide::Cgi(side) => side.add(bytes),
        }
    }

    /// Adds bytes of the body. A large piece is sent without copying, as far as the upstream accepts it
    /// immediately.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            UpstreamSide::H1(side) => {
                if side.chunked {
                    write_chunk_start(&mut side.connection.buffers.out, bytes.len());
                }
                side.connection.offer(bytes)?;
                if side.chunked {
                    side.connection.buffers.out.extend_from_slice(CHUNK_END);
                }
            }
            UpstreamSide::Stream(stream) if stream.is_send_closed() => return Err(Fault::Disconnected),
            UpstreamSide::Stream(stream) => stream.offer(bytes),
            UpstreamSide::Cgi(side) => side.offer(bytes)?,
        }
        Ok(())
    }

    /// Marks the body as complete. `trailers` is called only if trailers can be sent.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> Fields) {
        match self {
            UpstreamSide::H1(side) if side.chunked => {
                write_last_chunk(&mut side.connection.buffers.out, &trailers());
            }
            UpstreamSide::H1(_) => {}
            UpstreamSide::Stream(stream) => stream.finish(trailers()),
            UpstreamSide::Cgi(side) => side.finish(),
        }
    }

    /// Discards unsent bytes of the body, because the upstream no longer reads it.
    pub(crate) fn abandon(&mut self) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.out.clear(),
            UpstreamSide::Stream(stream) => stream.discard_output(),
            UpstreamSide::Cgi(side) => side.connection.buffers.out.clear(),
        }
    }

    /// Returns the number of bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.backlog(),
            UpstreamSide::Stream(stream) => stream.backlog(),
            UpstreamSide::Cgi(side) => side.connection.backlog(),
        }
    }

    /// Whether bytes wait to be sent, including those that TLS has accepted but the kernel has not.
    pub(crate) fn has_pending_output(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_pending_output(),
            UpstreamSide::Stream(stream) => stream.has_pending_output(),
            UpstreamSide::Cgi(side) => side.connection.has_pending_output(),
        }
    }

    /// Sends as much as the upstream accepts; true if nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            UpstreamSide::H1(side) => side.connection.try_flush(),
            // Sent by the HTTP/2 connection's task.
            UpstreamSide::Stream(stream) if stream.is_send_closed() => Err(Fault::Disconnected),
            UpstreamSide::Stream(stream) => Ok(!stream.has_pending_output()),
            UpstreamSide::Cgi(side) => side.try_flush(),
        }
    }

    // ---- the response ----

    /// Returns the next part of the response and consumes the bytes of the step before.
    ///
    /// # Errors
    /// The response is invalid or truncated.
    pub(crate) fn step(&mut self, method: Method, limits: &Limits) -> Result<UpstreamStep, AttemptFailure> {
        match self {
            UpstreamSide::H1(side) => side.step(method, limits),
            UpstreamSide::Stream(stream) => match stream.step() {
                Ok(StreamStep::Pending) => Ok(UpstreamStep::Pending),
                Ok(StreamStep::Head) => Ok(UpstreamStep::Head),
                Ok(StreamStep::Data) => Ok(UpstreamStep::Data),
                Ok(StreamStep::End) => Ok(UpstreamStep::End),
                Err(failure) => Err(stream_failure(stream, failure)),
            },
            UpstreamSide::Cgi(side) => side.step(method, limits).map(|step| match step {
                CgiStep::Pending => UpstreamStep::Pending,
                CgiStep::Head => UpstreamStep::Head,
                CgiStep::Data => UpstreamStep::Data,
                CgiStep::End => UpstreamStep::End,
                CgiStep::NonContent => UpstreamStep::NonContent,
            }),
        }
    }

    /// Whether the upstream has accepted any bytes since the last call, even if no writability was reported.
    /// Costs a system call.
    pub(crate) fn has_progressed(&mut self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_progressed(),
            UpstreamSide::Stream(stream) => stream.has_progressed(),
            UpstreamSide::Cgi(side) => side.connection.has_progressed(),
        }
    }

    /// Whether [`UpstreamSide::step`] may return something; false is certain.
    pub(crate) fn may_have_input(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.may_have_input(),
            UpstreamSide::Stream(_) | UpstreamSide::Cgi(_) => true,
        }
    }

    /// Whether the content of the last step was the last; if so, consumes it.
    pub(crate) fn consume_if_last(&mut self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.consume_if_last(),
            UpstreamSide::Stream(_) | UpstreamSide::Cgi(_) => false,
        }
    }

    /// Whether the response has all announced content although the server has not ended it.
    pub(crate) fn awaits_end(&self) -> bool {
        matches!(self, UpstreamSide::Cgi(side) if side.awaits_end())
    }

    /// Returns the head of the last step, with the bytes that its spans refer to.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.head(),
            UpstreamSide::Stream(stream) => stream.head(),
            UpstreamSide::Cgi(side) => side.head(),
        }
    }

    /// Whether the head switches protocols. `asked`: the request asked for it.
    pub(crate) fn switches_protocol(&self, asked: bool) -> bool {
        let status = self.head().0.status;
        match self {
            UpstreamSide::H1(_) => status == Status::SWITCHING_PROTOCOLS,
            // RFC 8441 section 5.
            UpstreamSide::Stream(_) => asked && status.is_success(),
            UpstreamSide::Cgi(_) => false,
        }
    }

    /// Records that the current head is that of the final response.
    pub(crate) fn record_final_head(&mut self) {
        match self {
            UpstreamSide::H1(side) => {
                let (head, bytes) = side.connection.buffers.head();
                side.connection.idle_timeout = announced_idle(head, bytes).unwrap_or(Millis::MAX);
            }
            UpstreamSide::Stream(_) => {}
            UpstreamSide::Cgi(side) => side.connection.idle_timeout = Millis::MAX,
        }
    }

    /// Continues after an interim head.
    pub(crate) fn next_head(&mut self) {
        if let UpstreamSide::H1(side) = self {
            side.connection.buffers.machine.next();
        }
    }

    /// Returns the content of the last step.
    pub(crate) fn data(&self) -> &[u8] {
        match self {
            UpstreamSide::H1(side) => side.data.of(side.connection.buffers.input.unconsumed()),
            UpstreamSide::Stream(stream) => stream.data(),
            UpstreamSide::Cgi(side) => side.data(),
        }
    }

    /// Returns the trailers of a complete response, if the protocol supports them.
    pub(crate) fn trailers(&self) -> Option<Cow<'_, Fields>> {
        match self {
            UpstreamSide::H1(side) => {
                side.connection.buffers.machine.body().map(|body| Cow::Borrowed(body.trailers()))
            }
            UpstreamSide::Stream(stream) => Some(Cow::Owned(stream.trailers())),
            UpstreamSide::Cgi(_) => None,
        }
    }

    // ---- waiting ----

    /// Returns the memory held by the buffers, in bytes; trims them first if memory is short. A stream's
    /// buffers are counted with its connection.
    pub(crate) fn update_memory(&mut self, is_short: bool) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.update_memory(is_short),
            UpstreamSide::Stream(_) => 0,
            UpstreamSide::Cgi(side) => side.held_bytes() + side.connection.update_memory(is_short),
        }
    }

    /// Returns empty buffers to the pool for the time of a wait.
    pub(crate) fn release_buffers(&mut self) {
        match self {
            UpstreamSide::H1(side) => side.connection.release_buffers(),
            UpstreamSide::Stream(_) => {}
            UpstreamSide::Cgi(side) => side.connection.release_buffers(),
        }
    }

    /// Returns the events to wait for in order to send more of the request, and to read if `reads`.
    pub(crate) fn interest(&self, reads: bool) -> Interest {
        let connection = match self {
            UpstreamSide::H1(side) => &side.connection,
            UpstreamSide::Cgi(side) => &side.connection,
            UpstreamSide::Stream(stream) => return Interest::of(reads, stream.has_pending_output()),
        };
        connection.link.interest(Interest::of(reads, connection.has_buffered_output()))
    }

    /// Waits for this side only.
    pub(crate) async fn wait_alone(&mut self, interest: Interest, deadline: Moment) -> Result<(), Fault> {
        let connection = match self {
            UpstreamSide::H1(side) => &mut side.connection,
            UpstreamSide::Cgi(side) => &mut side.connection,
            UpstreamSide::Stream(stream) => return stream.ready_for(interest, deadline).await,
        };
        let waited = connection.link.stream().ready_for(interest, deadline).await;
        connection.acquire_buffers();
        waited
    }

    /// Waits until the client or this side is ready for the given events.
    pub(crate) async fn wait(
        &mut self,
        exchange: &Exchange<'_>,
        client: Interest,
        interest: Interest,
        deadline: Moment,
    ) -> Result<(), Fault> {
        let connection = match self {
            UpstreamSide::H1(side) => &mut side.connection,
            UpstreamSide::Cgi(side) => &mut side.connection,
            UpstreamSide::Stream(stream) => {
                return exchange.wait_either_stream(client, stream, interest, deadline).await;
            }
        };
        let waited = exchange.wait_either(client, &connection.link, interest, deadline).await;
        connection.acquire_buffers();
        waited
    }
}

impl Http1Side {
    /// Wraps a connection. `chunked`: the length of the request's body is unknown.
    #[inline]
    pub(crate) fn new(connection: UpstreamConnection, chunked: bool) -> Http1Side {
        Http1Side { connection, chunked, consumed: 0, data: Span::EMPTY }
    }

    /// Consumes the bytes of the last step.
    pub(crate) fn consume(&mut self) {
        self.connection.buffers.input.consume(std::mem::take(&mut self.consumed));
    }

    fn consume_if_last(&mut self) -> bool {
        let ends = self.connection.buffers.machine.body().is_some_and(Body::is_end);
        if ends {
            self.consume();
        }
        ends
    }

    fn step(&mut self, method: Method, limits: &Limits) -> Result<UpstreamStep, AttemptFailure> {
        self.consume();
        let fed = self.connection.receive(method, limits)?;
        self.consumed = fed.consumed;
        Ok(match fed.step {
            Step::NeedMore => UpstreamStep::Pending,
            Step::Head => UpstreamStep::Head,
            Step::Data(span) => {
                self.data = span;
                UpstreamStep::Data
            }
            Step::End => {
                self.consume();
                UpstreamStep::End
            }
        })
    }
}

/// Converts the failure of a stream to that of the attempt.
fn stream_failure(stream: &MuxRequestStream, failure: StreamFailure) -> AttemptFailure {
    // The server may have closed the connection before the request arrived.
    let stale = stream.received_at() == Moment::ZERO && stream.is_reused();
    match (failure, stream.has_begun()) {
        (StreamFailure::Invalid(reason), true) => AttemptFailure::Body(reason),
        (StreamFailure::Closed, true) => {
            AttemptFailure::Body("the upstream closed in the middle of a response")
        }
        (StreamFailure::Reset | StreamFailure::NotProcessed, true) => {
            AttemptFailure::Body("the upstream reset the stream in the middle of a response")
        }
        (StreamFailure::Invalid(reason), false) => AttemptFailure::of_head(reason, None),
        (StreamFailure::NotProcessed, false) => AttemptFailure::Unprocessed,
        (StreamFailure::Closed, false) if stale => AttemptFailure::Stale,
        (StreamFailure::Closed | StreamFailure::Reset, false) => AttemptFailure::ConnectionLost,
    }
}
