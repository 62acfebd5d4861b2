//! The upstream's side of a request: an HTTP/1 connection of its own, a stream of a shared HTTP/2 connection, or a
//! connection of FastCGI and its kin.

use std::borrow::Cow;

use http::body::Body;
use http::encode::{CHUNK_END, chunk_start, last_chunk};
use http::machine::Step;
use http::{Fields, Limits, Method, ResponseHead, Span, Status};
use net::{Core, Exchange, Fault, H2Stream, Interest, StreamFailure, StreamStep};

use crate::cgi_side::{CgiSide, CgiStep};
use crate::failure::AttemptFailure;
use crate::upstream_connection::{UpstreamConnection, announced_idle_ms};

/// Where a request goes.
pub(crate) enum UpstreamSide {
    /// An HTTP/1 connection, which carries this request alone now.
    H1(Http1Side),
    /// A stream. Boxed, so that a request over HTTP/1 does not pay for it.
    Stream(Box<H2Stream>),
    /// FastCGI, uwsgi or SCGI.
    Cgi(Box<CgiSide>),
}

/// An HTTP/1 connection, and where its response is read.
pub(crate) struct Http1Side {
    pub(crate) connection: UpstreamConnection,
    /// Whether the request's body goes in chunks: its length is not known.
    chunked: bool,
    /// Bytes of the last step, which are consumed with the next one.
    consumed: usize,
    /// Content of the last step.
    data: Span,
}

/// What a response brings next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamStep {
    Pending,
    /// In [`UpstreamSide::head`].
    Head,
    /// In [`UpstreamSide::data`] until the next step.
    Data,
    End,
    /// Much was read that is no response: others have their turn.
    Noise,
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

    /// When bytes of the response were last received, by the core's clock; 0 while none were.
    pub(crate) fn received_ms(&self) -> u64 {
        match self {
            UpstreamSide::H1(side) => side.connection.received_ms,
            UpstreamSide::Stream(stream) => stream.received_ms(),
            UpstreamSide::Cgi(side) => side.content_ms,
        }
    }

    /// Whether the head of the final response has been received.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_begun(),
            UpstreamSide::Stream(stream) => stream.has_begun(),
            UpstreamSide::Cgi(side) => side.connection.has_begun(),
        }
    }

    /// Whether the response says that the connection was idle for too long, and has crossed with the request.
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
                    chunk_start(out, bytes.len());
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

    /// The same; a large piece is sent from where it stands, as far as the upstream takes it now.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            UpstreamSide::H1(side) => {
                if side.chunked {
                    chunk_start(&mut side.connection.buffers.out, bytes.len());
                }
                side.connection.offer(bytes)?;
                if side.chunked {
                    side.connection.buffers.out.extend_from_slice(CHUNK_END);
                }
            }
            UpstreamSide::Stream(stream) if stream.is_cut() => return Err(Fault::Gone),
            UpstreamSide::Stream(stream) => stream.offer(bytes),
            UpstreamSide::Cgi(side) => side.offer(bytes)?,
        }
        Ok(())
    }

    /// The body is complete; `trailers` makes its trailers where the upstream gets them.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> Fields) {
        match self {
            UpstreamSide::H1(side) if side.chunked => {
                last_chunk(&mut side.connection.buffers.out, &trailers());
            }
            UpstreamSide::H1(_) => {}
            UpstreamSide::Stream(stream) => stream.finish(trailers()),
            UpstreamSide::Cgi(side) => side.finish(),
        }
    }

    /// The upstream reads no more of it.
    pub(crate) fn abandon(&mut self) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.out.clear(),
            UpstreamSide::Stream(stream) => stream.abandon(),
            UpstreamSide::Cgi(side) => side.connection.buffers.out.clear(),
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.backlog(),
            UpstreamSide::Stream(stream) => stream.backlog(),
            UpstreamSide::Cgi(side) => side.connection.backlog(),
        }
    }

    /// Whether anything waits to be sent, what TLS has taken and the kernel has not among it.
    pub(crate) fn is_behind(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.is_behind(),
            UpstreamSide::Stream(stream) => stream.is_behind(),
            UpstreamSide::Cgi(side) => side.connection.is_behind(),
        }
    }

    /// Sends what the upstream takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            UpstreamSide::H1(side) => side.connection.try_flush(),
            // The connection's task sends it.
            UpstreamSide::Stream(stream) if stream.is_cut() => Err(Fault::Gone),
            UpstreamSide::Stream(stream) => Ok(!stream.is_behind()),
            UpstreamSide::Cgi(side) => side.try_flush(),
        }
    }

    // ---- the response ----

    /// What comes next; what the step before returned is done with.
    ///
    /// # Errors
    /// The response is invalid, or it ends before its end.
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
                CgiStep::Noise => UpstreamStep::Noise,
            }),
        }
    }

    /// Whether the upstream has taken anything of the request since the last call, also where no room was reported. Costs a system call.
    pub(crate) fn has_taken(&mut self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_taken(),
            UpstreamSide::Stream(stream) => stream.has_taken(),
            UpstreamSide::Cgi(side) => side.connection.has_taken(),
        }
    }

    /// Whether [`UpstreamSide::step`] may have something to return now; false is certain.
    pub(crate) fn has_news(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.has_news(),
            UpstreamSide::Stream(_) | UpstreamSide::Cgi(_) => true,
        }
    }

    /// Whether the content of the last step was the last; what the step returned is done with then.
    pub(crate) fn ends(&mut self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.ends(),
            UpstreamSide::Stream(_) | UpstreamSide::Cgi(_) => false,
        }
    }

    /// Whether the client has the whole response, and the server has not ended it.
    pub(crate) fn is_unended(&self) -> bool {
        matches!(self, UpstreamSide::Cgi(side) if side.is_unended())
    }

    /// The head of the last step.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.head(),
            UpstreamSide::Stream(stream) => stream.head(),
            UpstreamSide::Cgi(side) => side.head(),
        }
    }

    /// Whether that head switches protocols; `asked` says that the request's did ask for it.
    pub(crate) fn switches(&self, asked: bool) -> bool {
        let status = self.head().0.status;
        match self {
            UpstreamSide::H1(_) => status == Status::SWITCHING_PROTOCOLS,
            // RFC 8441 section 5.
            UpstreamSide::Stream(_) => asked && status.is_success(),
            UpstreamSide::Cgi(_) => false,
        }
    }

    /// The head is that of the final response.
    pub(crate) fn note_final_head(&mut self) {
        match self {
            UpstreamSide::H1(side) => {
                let (head, bytes) = side.connection.buffers.head();
                side.connection.idle_ms = announced_idle_ms(head, bytes).unwrap_or(u64::MAX);
            }
            UpstreamSide::Stream(_) => {}
            UpstreamSide::Cgi(side) => side.connection.idle_ms = u64::MAX,
        }
    }

    /// The head was interim: another one follows.
    pub(crate) fn next_head(&mut self) {
        if let UpstreamSide::H1(side) = self {
            side.connection.buffers.machine.next();
        }
    }

    /// Content of the last step.
    pub(crate) fn data(&self) -> &[u8] {
        match self {
            UpstreamSide::H1(side) => side.data.of(side.connection.buffers.input.rest()),
            UpstreamSide::Stream(stream) => stream.data(),
            UpstreamSide::Cgi(side) => side.data(),
        }
    }

    /// The trailers of a response that is complete, if it may have some.
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

    /// What its buffers hold of memory; where that is short they hold less from now on. A stream's are counted with its connection.
    pub(crate) fn weigh(&mut self, is_short: bool) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.weigh(is_short),
            UpstreamSide::Stream(_) => 0,
            UpstreamSide::Cgi(side) => side.held_bytes() + side.connection.weigh(is_short),
        }
    }

    /// Before a wait: gives its buffers back for as long as nothing is in them.
    pub(crate) fn release(&mut self) {
        match self {
            UpstreamSide::H1(side) => side.connection.release(),
            UpstreamSide::Stream(_) => {}
            UpstreamSide::Cgi(side) => side.connection.release(),
        }
    }

    /// What to wait for in order to read, or to send more of the request.
    fn interest(&self, reads: bool, is_abandoned: bool) -> Interest {
        match self {
            // What is left in TLS goes nowhere any more.
            UpstreamSide::H1(_) | UpstreamSide::Cgi(_) if is_abandoned => Interest::of(reads, false),
            UpstreamSide::H1(side) => side.connection.link.interest(reads, side.connection.waits()),
            UpstreamSide::Stream(stream) => Interest::of(reads, !is_abandoned && stream.is_behind()),
            UpstreamSide::Cgi(side) => side.connection.link.interest(reads, side.connection.waits()),
        }
    }

    /// Waits for this side alone.
    pub(crate) async fn wait_alone(&mut self, is_abandoned: bool, deadline_ms: u64) -> Result<(), Fault> {
        let interest = self.interest(true, is_abandoned);
        let connection = match self {
            UpstreamSide::H1(side) => &mut side.connection,
            UpstreamSide::Cgi(side) => &mut side.connection,
            UpstreamSide::Stream(stream) => return stream.ready_for(interest, deadline_ms).await,
        };
        let waited = connection.link.stream().ready_for(interest, deadline_ms).await;
        connection.hold();
        waited
    }

    /// Waits until the client or this side can do what is wanted of it.
    pub(crate) async fn wait(
        &mut self,
        x: &Exchange<'_>,
        client: Interest,
        reads: bool,
        is_abandoned: bool,
        deadline_ms: u64,
    ) -> Result<(), Fault> {
        let interest = self.interest(reads, is_abandoned);
        let connection = match self {
            UpstreamSide::H1(side) => &mut side.connection,
            UpstreamSide::Cgi(side) => &mut side.connection,
            UpstreamSide::Stream(stream) => {
                return x.either_stream(client, (stream, interest), deadline_ms).await;
            }
        };
        let waited = x.either(client, (&connection.link, interest), deadline_ms).await;
        connection.hold();
        waited
    }
}

impl Http1Side {
    /// A connection; `chunked` says whether the request's body has no known length.
    #[inline]
    pub(crate) fn new(connection: UpstreamConnection, chunked: bool) -> Http1Side {
        Http1Side { connection, chunked, consumed: 0, data: Span::EMPTY }
    }

    /// Consumes the last step.
    pub(crate) fn consume(&mut self) {
        self.connection.buffers.input.consume(std::mem::take(&mut self.consumed));
    }

    fn ends(&mut self) -> bool {
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

/// What the end of a stream is to the attempt.
fn stream_failure(stream: &H2Stream, failure: StreamFailure) -> AttemptFailure {
    // The server may have closed the connection before the request came.
    let stale = stream.received_ms() == 0 && stream.is_reused();
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
        (StreamFailure::Closed | StreamFailure::Reset, false) => AttemptFailure::Cut,
    }
}
