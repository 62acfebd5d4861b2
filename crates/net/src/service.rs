//! What a server asks of those who answer.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use http::{Fields, Status};

use crate::address::{Client, Peer};
use crate::core::Core;
use crate::detached::{self, DetachedLane, DetachedRequest, ResponseSink};
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::lane::Lane;
use crate::notes::RequestNotes;
use crate::page::{ErrorPages, PlainText};
use crate::permit::Context;
use crate::request::Request;
use crate::source::{GONE, Source};
use crate::state::RequestState;
use crate::stream_client::{StreamChoice, StreamStart};
use crate::tls::HandshakeFailure;

/// What answers requests: made once on each core, so it needs no locks.
pub trait Service: 'static {
    /// Answers one request. A fault ends the connection; before a response it is answered by its status.
    fn serve(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Fault>>;

    /// Called once for each request, after its response. Must not block.
    fn log(&self, record: &RequestRecord<'_>);

    /// The pages of errors for requests that no handler has seen: bytes that are no valid request, want of memory.
    /// [`Exchange::set_pages`] replaces them for one request. Default: status and reason in plain text.
    fn error_pages(&self) -> Rc<dyn ErrorPages> {
        Rc::new(PlainText)
    }

    /// Decides what becomes of a connection to a listener with streams ([`crate::Listen::streams`]). Must not block. Default: it
    /// is closed.
    fn choose_stream(&self, _start: &StreamStart<'_>, _core: &Core) -> StreamChoice {
        StreamChoice::Close
    }

    /// Called where a client's TLS handshake has failed. Must not block.
    fn handshake_failed(&self, _peer: Peer, _failure: &HandshakeFailure) {}
}

/// What there is to say about a request that is over.
pub struct RequestRecord<'x> {
    /// The request; `None` if the bytes received were not a valid one.
    pub request: Option<Request<'x>>,
    /// Who was at the other end of the connection.
    pub peer: Peer,
    /// Who asked.
    pub client: Client,
    /// What was answered; 499 where the client went away before that.
    pub status: Status,
    /// Content bytes of the response.
    pub body_bytes: u64,
    /// From the whole head to the end of the handler's work, in microseconds: what is served in one turn of the engine takes 0.
    pub duration_us: u64,
    /// From the whole head to the head of the response, in microseconds; 0 where there was none.
    pub first_byte_us: u64,
    /// Content bytes of the request that were read.
    pub request_bytes: u64,
    /// What handlers have reported of it.
    pub notes: &'x RequestNotes,
    /// What [`Exchange::set_label`] was given; 0 by default.
    pub label: usize,
    /// Why it did not end well.
    pub fault: Option<&'x Fault>,
    /// When, in seconds since 1970.
    pub unix_s: u64,
}

impl RequestState {
    /// What there is to say about the request now that it is over.
    pub(crate) fn record<'x>(
        &'x self,
        request: Option<Request<'x>>,
        fault: Option<&'x Fault>,
        core: &Core,
    ) -> RequestRecord<'x> {
        RequestRecord {
            request,
            peer: self.peer,
            client: self.client,
            status: self.status,
            body_bytes: self.body_sent,
            duration_us: core.now_us().saturating_sub(self.started_us),
            first_byte_us: self.begun_us.saturating_sub(self.started_us),
            request_bytes: self.body_read,
            notes: &self.notes,
            label: self.label,
            fault,
            unix_s: core.unix_s(),
        }
    }
}

/// A core's connections and what serves them.
pub(crate) struct Engine<S> {
    pub(crate) context: Rc<Context>,
    pub(crate) service: S,
}

/// Runs a handler, drops it where its client has gone away, and catches its panic: that costs one request.
pub(crate) async fn guarded(
    source: &Source,
    core: &Core,
    mut serving: Pin<&mut impl Future<Output = Result<(), Fault>>>,
) -> Result<(), Fault> {
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(context))) {
        // A handler that has closed its side itself reads up to the client's end, or learns of a reset there.
        Ok(Poll::Pending) if source.ready() & GONE != 0 && !source.sent_end.get() => {
            Poll::Ready(Err(Fault::Gone))
        }
        Ok(polled) => polled,
        Err(_) => {
            // The panic hook has logged it.
            core.count_panic();
            Poll::Ready(Err(Fault::Broken("the handler panicked")))
        }
    })
    .await
}

impl DetachedRequest {
    /// Serves it with a handler, and passes the response to `sink`. To be run as a task of its own. When the sink is abandoned
    /// or the handler panics, it ends.
    ///
    /// # Errors
    /// The response is not whole.
    pub async fn serve(
        self,
        sink: Rc<dyn ResponseSink>,
        handler: impl AsyncFnOnce(&mut Exchange<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let core = self.core().clone();
        let mut state = RequestState::new(self.peer, self.client, core.now_us());
        state.tls.clone_from(&self.tls);
        state.pages.clone_from(&self.pages);
        (state.empty_segments, state.passes_as_sent) = (self.empty_segments, self.passes_as_sent);
        state.ids = self.ids;
        state.user.clone_from(&self.user);
        state.own_values.clone_from(&self.own_values);
        let mut lane = DetachedLane::new(self, sink.clone());
        let source = lane.source_rc();
        let served = {
            let mut exchange = Exchange::new(&mut state, Lane::Detached(&mut lane));
            let serving = pin!(handler(&mut exchange));
            detached::attended(&source, &sink, guarded(&source, &core, serving)).await
        };
        let mut exchange = Exchange::new(&mut state, Lane::Detached(&mut lane));
        match served {
            Ok(()) => exchange.end(&Fields::new()),
            Err(fault) if exchange.has_begun() => Err(fault),
            Err(fault) => match exchange.answer_fault(&fault).await {
                true => Ok(()),
                false => Err(fault),
            },
        }
    }
}
