//! What a server asks of those who answer.

use std::future::Future;

use http::Status;

use crate::address::{Client, Peer};
use crate::core::Core;
use crate::exchange::{Exchange, Request};
use crate::fault::Fault;
use crate::state::RequestState;

/// What answers requests: made once on each core, so it needs no locks.
pub trait Service: 'static {
    /// Answers one request. A fault ends the connection; before a response it is answered by its status.
    fn serve(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Fault>>;

    /// Called once for each request, after its response. Must not block.
    fn log(&self, record: &RequestRecord<'_>);
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
    /// From the whole head to the end of the handler's work.
    pub duration_ms: u64,
    /// Why it did not end well.
    pub fault: Option<&'x Fault>,
    /// When, in seconds since 1970.
    pub unix_s: u64,
}

impl RequestState {
    /// What there is to say about the request now that it is over.
    pub(crate) fn record<'x>(
        &self,
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
            duration_ms: core.now_ms().saturating_sub(self.started_ms),
            fault,
            unix_s: core.unix_s(),
        }
    }
}
