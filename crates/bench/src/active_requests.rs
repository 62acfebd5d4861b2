//! Requests in progress on a connection that carries many.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use http::{Name, Status};
use times::Moment;

use crate::connection_loop::{CompleteResponse, ConnectionState, explain_timeout};
use crate::load_state::RequestJob;
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Request in progress and the received part of its response.
pub(crate) struct ActiveRequest {
    pub(crate) stream: u32,
    pub(crate) job: RequestJob,
    sent_ns: u64,
    /// Bytes of the request content that have been sent.
    pub(crate) sent_bytes: usize,
    /// Time of the first byte of the response; 0 if none has arrived.
    first_ns: u64,
    status: u16,
    pub(crate) content_bytes: u64,
    hasher: Option<Box<DefaultHasher>>,
}

impl ActiveRequest {
    /// Returns the response, which is complete.
    pub(crate) fn complete(&self) -> CompleteResponse {
        CompleteResponse {
            job: self.job,
            sent_ns: self.sent_ns,
            first_ns: self.first_ns,
            status: self.status,
            content_bytes: self.content_bytes,
            hash: self.hasher.as_ref().map_or(0, |hasher| hasher.finish()),
        }
    }

    /// Counts the request as failed.
    pub(crate) fn fail(&self, state: &ConnectionState, kind: ErrorKind, example: &str) {
        state.load_state.fail_request(self.job, kind, example, state.now_ns);
    }

    /// Counts the request as failed, because its response is overdue.
    pub(crate) fn fail_overdue(&self, state: &ConnectionState) {
        let timeout = RequestFailure::new(ErrorKind::Timeout, "");
        self.fail(state, ErrorKind::Timeout, &explain_timeout(timeout, self.content_bytes).example);
    }
}

/// Requests in progress, by ascending stream ID; the oldest is the first.
#[derive(Default)]
pub(crate) struct RequestsInFlight(VecDeque<ActiveRequest>);

impl RequestsInFlight {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ActiveRequest> {
        self.0.iter_mut()
    }

    /// Adds a request that is sent now.
    pub(crate) fn begin(&mut self, state: &ConnectionState, stream: u32, job: RequestJob) {
        self.0.push_back(ActiveRequest {
            stream,
            job,
            sent_ns: state.now_ns,
            sent_bytes: 0,
            first_ns: 0,
            status: 0,
            content_bytes: 0,
            hasher: state.load_state.plan.verify.then(Box::default),
        });
    }

    fn position(&self, stream: u32) -> Option<usize> {
        self.0.binary_search_by_key(&stream, |request| request.stream).ok()
    }

    /// Removes the request of a stream that has ended.
    pub(crate) fn remove(&mut self, stream: u32) -> Option<ActiveRequest> {
        let at = self.position(stream)?;
        self.0.remove(at)
    }

    /// Receives a response head, interim or final. `field` returns the value of one of its fields.
    pub(crate) fn receive_head<'h>(
        &mut self,
        state: &ConnectionState,
        stream: u32,
        status: Status,
        field: impl Fn(Name) -> Option<&'h [u8]>,
    ) {
        let Some(at) = self.position(stream) else { return };
        let request = &mut self.0[at];
        if request.first_ns == 0 {
            request.first_ns = state.now_ns;
        }
        if status.is_informational() {
            return;
        }
        request.status = status.code();
        if state.load_state.run_state.facts.get().is_none() {
            let length =
                field(Name::ContentLength).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            state.load_state.record_facts(field(Name::Server).unwrap_or_default(), length, status.code());
        }
    }

    pub(crate) fn receive_content(&mut self, stream: u32, content: &[u8]) {
        let Some(at) = self.position(stream) else { return };
        let request = &mut self.0[at];
        request.content_bytes += content.len() as u64;
        if let Some(hasher) = &mut request.hasher {
            hasher.write(content);
        }
    }

    /// Returns the time at which the response to the oldest request is overdue.
    pub(crate) fn deadline(&self, state: &ConnectionState) -> Moment {
        Moment(state.deadline_ms(self.0.front().map(|request| request.sent_ns)))
    }

    /// Removes a request whose response is overdue.
    pub(crate) fn take_overdue(&mut self, state: &ConnectionState) -> Option<ActiveRequest> {
        let is_overdue = !self.0.is_empty() && state.load_state.core.now() >= self.deadline(state);
        if is_overdue { self.0.pop_front() } else { None }
    }

    /// Removes a request whose stream is `first` or higher, the highest first.
    pub(crate) fn take_from(&mut self, first: u64) -> Option<ActiveRequest> {
        let is_from = self.0.back().is_some_and(|request| u64::from(request.stream) >= first);
        if is_from { self.0.pop_back() } else { None }
    }

    /// Returns the bytes of content received for the oldest request.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.0.front().map_or(0, |request| request.content_bytes)
    }

    /// Puts all requests back into the queue of those to be sent.
    pub(crate) fn requeue(&mut self, state: &mut ConnectionState) {
        while let Some(request) = self.0.pop_back() {
            state.retry_queue.push_front(request.job);
        }
    }
}
