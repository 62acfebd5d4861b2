//! The upstream's side of a request: an HTTP/1 connection of its own, or a stream of a shared HTTP/2 connection.

use http::encode::{CHUNK_END, chunk_start, last_chunk};
use http::machine::Step;
use http::{Fields, Limits, Method, ResponseHead, Span};
use net::{Exchange, Fault, H2Stream, Interest, StreamFailure, StreamStep};

use crate::failure::AttemptFailure;
use crate::upstream_connection::{Read, UpstreamConnection};

/// Where a request goes.
pub(crate) enum UpstreamSide {
    /// An HTTP/1 connection, which carries this request alone now.
    H1(Http1Side),
    /// A stream. Boxed, so that a request over HTTP/1 does not pay for it.
    Stream(Box<H2Stream>),
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
}

/// Why nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFault {
    /// What came is not a response.
    Invalid(&'static str),
    /// The connection ended before the response did.
    Cut(&'static str),
    /// The server reset the stream.
    Reset,
    /// The server has not processed the request.
    Unprocessed,
}

impl UpstreamSide {
    /// A connection; `chunked` says whether the request's body has no known length.
    pub(crate) fn http1(connection: UpstreamConnection, chunked: bool) -> UpstreamSide {
        UpstreamSide::H1(Http1Side { connection, chunked, consumed: 0, data: Span::EMPTY })
    }

    /// Whether the connection carried a request before and no part of this one's response has come: the server may have closed it
    /// while it was idle.
    pub(crate) fn may_be_stale(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.silent && side.connection.reused,
            UpstreamSide::Stream(stream) => stream.is_silent() && stream.is_reused(),
        }
    }

    pub(crate) fn is_reused(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.reused,
            UpstreamSide::Stream(stream) => stream.is_reused(),
        }
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
        }
    }

    /// The upstream reads no more of it.
    pub(crate) fn abandon(&mut self) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.out.clear(),
            UpstreamSide::Stream(stream) => stream.abandon(),
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.backlog(),
            UpstreamSide::Stream(stream) => stream.backlog(),
        }
    }

    /// Whether anything waits to be sent, what TLS has taken and the kernel has not among it.
    pub(crate) fn is_behind(&self) -> bool {
        match self {
            UpstreamSide::H1(side) => side.connection.is_behind(),
            UpstreamSide::Stream(stream) => stream.is_behind(),
        }
    }

    /// Sends what the upstream takes now.
    pub(crate) fn try_flush(&mut self) -> Result<(), Fault> {
        match self {
            UpstreamSide::H1(side) => side.connection.try_flush().map(drop),
            // The connection's task sends it.
            UpstreamSide::Stream(stream) if stream.is_cut() => Err(Fault::Gone),
            UpstreamSide::Stream(_) => Ok(()),
        }
    }

    // ---- the response ----

    /// What came next; what the step before returned is done with.
    pub(crate) fn step(
        &mut self,
        method: Method,
        limits: &Limits,
        is_short: bool,
    ) -> Result<UpstreamStep, UpstreamFault> {
        match self {
            UpstreamSide::H1(side) => side.step(method, limits, is_short),
            UpstreamSide::Stream(stream) => match stream.step() {
                Ok(StreamStep::Pending) => Ok(UpstreamStep::Pending),
                Ok(StreamStep::Head) => Ok(UpstreamStep::Head),
                Ok(StreamStep::Data) => Ok(UpstreamStep::Data),
                Ok(StreamStep::End) => Ok(UpstreamStep::End),
                Err(StreamFailure::NotProcessed) => Err(UpstreamFault::Unprocessed),
                Err(StreamFailure::Reset) => Err(UpstreamFault::Reset),
                Err(StreamFailure::Closed) => Err(UpstreamFault::Cut("the upstream closed the connection")),
                Err(StreamFailure::Invalid(reason)) => Err(UpstreamFault::Invalid(reason)),
            },
        }
    }

    /// The head of the last step.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        match self {
            UpstreamSide::H1(side) => side.connection.buffers.head(),
            UpstreamSide::Stream(stream) => stream.head(),
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
        }
    }

    /// The trailers of a response that is complete.
    pub(crate) fn trailers(&self) -> Fields {
        match self {
            UpstreamSide::H1(side) => match side.connection.buffers.machine.body() {
                Some(body) => body.trailers().clone(),
                None => Fields::new(),
            },
            UpstreamSide::Stream(stream) => stream.trailers(),
        }
    }

    // ---- waiting ----

    /// What its buffers hold of memory; where that is short they hold less from now on. A stream's are counted with its connection.
    pub(crate) fn weigh(&mut self, is_short: bool) -> usize {
        match self {
            UpstreamSide::H1(side) => side.connection.weigh(is_short),
            UpstreamSide::Stream(_) => 0,
        }
    }

    /// Before a wait: gives its buffers back for as long as nothing is in them.
    pub(crate) fn release(&mut self) {
        if let UpstreamSide::H1(side) = self {
            side.connection.release();
        }
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
        match self {
            UpstreamSide::H1(side) => {
                let connection = &mut side.connection;
                let interest = match is_abandoned {
                    // What is left in TLS goes nowhere any more.
                    true => Interest::of(reads, false),
                    false => connection.link.interest(reads, connection.waits()),
                };
                let waited = x.either(client, (&connection.link, interest), deadline_ms).await;
                connection.hold();
                waited
            }
            UpstreamSide::Stream(stream) => {
                let interest = Interest::of(reads, !is_abandoned && stream.is_behind());
                x.either_stream(client, (stream, interest), deadline_ms).await
            }
        }
    }
}

impl Http1Side {
    /// Consumes the last step.
    pub(crate) fn consume(&mut self) {
        self.connection.buffers.input.consume(std::mem::take(&mut self.consumed));
    }

    fn step(
        &mut self,
        method: Method,
        limits: &Limits,
        is_short: bool,
    ) -> Result<UpstreamStep, UpstreamFault> {
        self.consume();
        loop {
            let fed = self.connection.feed(method, limits);
            let fed = fed.map_err(|reject| UpstreamFault::Invalid(reject.reason))?;
            self.consumed = fed.consumed;
            match fed.step {
                Step::Head => return Ok(UpstreamStep::Head),
                Step::Data(span) => {
                    self.data = span;
                    return Ok(UpstreamStep::Data);
                }
                Step::End => {
                    self.consume();
                    return Ok(UpstreamStep::End);
                }
                Step::NeedMore => self.consume(),
            }
            match self.connection.fill(is_short) {
                Ok(Read::Bytes) => {}
                Ok(Read::Nothing) => return Ok(UpstreamStep::Pending),
                Ok(Read::End) => {
                    let ended = self.connection.buffers.machine.eof();
                    let cut = UpstreamFault::Cut("the upstream closed in the middle of a response");
                    return ended.map(|()| UpstreamStep::End).map_err(|_| cut);
                }
                Err(Fault::Broken(reason)) => return Err(UpstreamFault::Invalid(reason)),
                Err(_) => return Err(UpstreamFault::Cut("the upstream broke the connection")),
            }
        }
    }
}

impl UpstreamFault {
    /// What it is to the attempt: `begun` says whether the client's response has begun, `stale` that the connection may have been
    /// closed before the request came.
    pub(crate) fn failure(self, begun: bool, stale: bool) -> AttemptFailure {
        match (self, begun) {
            (UpstreamFault::Invalid(reason) | UpstreamFault::Cut(reason), true) => {
                AttemptFailure::Body(reason)
            }
            (UpstreamFault::Unprocessed | UpstreamFault::Reset, true) => {
                AttemptFailure::Body("the upstream reset the stream")
            }
            (UpstreamFault::Invalid(reason), false) => AttemptFailure::Invalid(reason),
            (UpstreamFault::Unprocessed, false) => AttemptFailure::Unprocessed,
            (UpstreamFault::Cut(_), false) if stale => AttemptFailure::Stale,
            (UpstreamFault::Cut(_) | UpstreamFault::Reset, false) => AttemptFailure::Cut,
        }
    }
}
