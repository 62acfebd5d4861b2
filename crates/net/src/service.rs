//! Interface between the server and the application that handles requests.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use http::{Fields, Status};

use crate::address::{Client, Peer};
use crate::core::Core;
use crate::datagrams::{DropReason, ServeDatagrams};
use crate::detached::{self, DetachedLane, DetachedRequest, ResponseSink};
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::lane::Lane;
use crate::notes::RequestNotes;
use crate::page::{ErrorPages, PlainText};
use crate::permit::ServingContext;
use crate::request::Request;
use crate::request_state::RequestState;
use crate::source::{GONE, Source};
use crate::stream_client::{StreamChoice, StreamStart};
use crate::tls::{HandshakeFailure, TlsSession};

/// A request handler. One instance is made for each core, so no locks are needed.
pub trait Service: 'static {
    /// Handles one request. A fault ends the connection; if no response has begun, an error response for it
    /// is sent first.
    fn serve(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Fault>>;

    /// Called once for each request, after its response. Must not block.
    fn log(&self, record: &RequestRecord<'_>);

    /// Returns the error pages for requests that no handler has seen: malformed ones, and those refused for
    /// lack of memory. [`Exchange::set_error_pages`] replaces them for one request. Default: status and reason in
    /// plain text.
    fn error_pages(&self) -> Rc<dyn ErrorPages> {
        Rc::new(PlainText)
    }

    /// Decides how to handle a connection to a listener with streams ([`crate::ListenOptions::streams`]). Must not
    /// block. Default: close it.
    fn choose_stream(&self, _start: &StreamStart<'_>, _core: &Core) -> StreamChoice {
        StreamChoice::Close
    }

    /// Decides how to handle the first datagram of a client at a UDP address. Must not block. Default: drop it.
    ///
    /// # Errors
    /// Why the datagram is dropped.
    fn choose_datagrams(&self, _start: &StreamStart<'_>, _core: &Core) -> Result<ServeDatagrams, DropReason> {
        Err(DropReason::NoStream)
    }

    /// Called for datagrams that were dropped before they belonged to a session; `listener` is
    /// [`crate::StreamListener::key`]. Must not block.
    fn count_dropped(&self, _listener: &str, _reason: DropReason, _datagrams: u64) {}

    /// Called after a client's TLS handshake has failed. Must not block.
    fn handshake_failed(&self, _peer: Peer, _failure: &HandshakeFailure) {}
}

/// Log record of a completed request.
pub struct RequestRecord<'x> {
    /// The request; `None` if the bytes received were not a valid one.
    pub request: Option<Request<'x>>,
    /// The peer of the connection.
    pub peer: Peer,
    /// The client that sent the request.
    pub client: Client,
    /// The client's TLS session with this server, if there is one; known even if `request` is `None`.
    pub tls: Option<&'x TlsSession>,
    /// Status of the response; 499 if the client disconnected before it.
    pub status: Status,
    /// Bytes of the response body that the client's connection has taken, of an upgraded connection all bytes sent after
    /// the switch. Of a small body whose client has left, some may not have been taken.
    pub body_bytes: u64,
    /// Time from the complete request head to the end of the handler, or of a large response, in microseconds; 0 for
    /// requests served in one turn of the engine.
    pub duration_us: u64,
    /// Time from the complete request head to the response head, in microseconds; 0 if there was none.
    pub first_byte_us: u64,
    /// Bytes of the request body that were read, of an upgraded connection all bytes received after the switch.
    pub request_bytes: u64,
    /// Information reported by handlers.
    pub notes: &'x RequestNotes,
    /// The label set by [`Exchange::set_label`]; 0 by default.
    pub label: usize,
    /// The fault that ended the request, if any.
    pub fault: Option<&'x Fault>,
    /// Time of the record, in seconds since 1970.
    pub unix_s: u64,
}

impl RequestState {
    /// Returns the log record of the completed request.
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
            tls: self.tls.as_deref(),
            status: self.status,
            body_bytes: self.body_sent,
            duration_us: core.now_us().saturating_sub(self.started_us),
            first_byte_us: self.response_started_us.saturating_sub(self.started_us),
            request_bytes: self.body_read,
            notes: &self.notes,
            label: self.label,
            fault,
            unix_s: core.unix_s(),
        }
    }
}

/// The connections of a core and the service that handles their requests.
pub(crate) struct Engine<S> {
    pub(crate) context: Rc<ServingContext>,
    pub(crate) service: S,
}

/// Runs a handler, drops it if its client has disconnected, and catches panics, so that a panic affects only
/// one request.
pub(crate) async fn run_handler(
    source: &Source,
    core: &Core,
    mut serving: Pin<&mut impl Future<Output = Result<(), Fault>>>,
) -> Result<(), Fault> {
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(context))) {
        // A handler that has closed its sending side reads up to the client's end, or notices a reset there.
        Ok(Poll::Pending) if source.ready() & GONE != 0 && !source.has_sent_end.get() => {
            Poll::Ready(Err(Fault::Disconnected))
        }
        Ok(polled) => polled,
        Err(_) => {
            // The panic hook has logged the panic.
            core.count_panic();
            Poll::Ready(Err(Fault::Failed("the handler panicked")))
        }
    })
    .await
}

impl DetachedRequest {
    /// Serves the request with a handler and passes the response to `sink`. Must run as a task of its own.
    /// Ends when the sink is abandoned or the handler panics.
    ///
    /// # Errors
    /// Fails if the response is incomplete.
    pub async fn serve(
        self,
        sink: Rc<dyn ResponseSink>,
        handler: impl AsyncFnOnce(&mut Exchange<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let core = self.core().clone();
        let mut state = RequestState::new(self.peer, self.client, core.now_us());
        state.tls.clone_from(&self.tls);
        state.error_pages.clone_from(&self.error_pages);
        (state.empty_segments, state.preserves_empty_segments) =
            (self.empty_segments, self.preserves_empty_segments);
        state.ids = self.ids;
        state.user.clone_from(&self.user);
        state.custom_variables.clone_from(&self.custom_variables);
        let mut lane = DetachedLane::new(self, sink.clone());
        let source = lane.source_rc();
        let served = {
            let mut exchange = Exchange::new(&mut state, Lane::Detached(&mut lane));
            let serving = pin!(handler(&mut exchange));
            detached::run_with_sink(&source, &sink, run_handler(&source, &core, serving)).await
        };
        let mut exchange = Exchange::new(&mut state, Lane::Detached(&mut lane));
        match served {
            Ok(()) => exchange.end(&Fields::new()),
            Err(fault) if exchange.has_begun() => Err(fault),
            Err(fault) => {
                if exchange.answer_fault(&fault).await {
                    Ok(())
                } else {
                    Err(fault)
                }
            }
        }
    }
}
