//! The server side of an HTTP/3 connection: implements [`MuxProtocol`].

use std::time::Duration;

use http::{Head, Reject, Status};
use http3::Http3Code;

use crate::h3::{H3Connection, Received, RequestStream, stream_id};
use crate::mux::{
    AbortReason, MuxEvent, MuxProtocol, ResetReason, StreamPriority, StreamRequest, convert_extended_connect,
};
use times::Millis;

/// Interval of checks for heads that are overdue.
const HEAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which the rest of a request is read and discarded after its response.
const DISCARD_TIME: Millis = Millis(30_000);
/// Requests that a client may give up in each second, beside those that the answered ones allow.
const GIVEN_UP_CREDIT_PER_SECOND: u32 = 2;

impl H3Connection {
    /// Translates an event for the tasks of requests; `None` if they need not know.
    pub(super) fn event(&mut self, received: Received) -> Option<MuxEvent<'static>> {
        Some(match received {
            Received::Head { id, ended } => {
                let request = self.take_request(ended, None);
                self.set_priority(id, request.priority);
                MuxEvent::Request(id, request)
            }
            // The rest of such a request is dropped.
            Received::Refused(id, reject) => MuxEvent::Request(id, self.take_request(true, Some(reject))),
            Received::End(id, trailers) => MuxEvent::End(id, trailers),
            Received::Reset(id, _) | Received::Stopped(id) => MuxEvent::Reset(id, AbortReason::Peer),
            Received::Failed(id, error) => {
                MuxEvent::Reset(id, AbortReason::Error(error.code.text(), error.reason))
            }
            Received::Writable(id) => MuxEvent::Writable(Some(id)),
            Received::Priority(id, priority) => {
                self.set_priority(id, priority);
                MuxEvent::Priority(id, priority)
            }
            Received::Data(..) | Received::GoAway(_) | Received::Settings | Received::StreamsAvailable => {
                return None;
            }
        })
    }

    /// Lets QUIC send what it has of more urgent responses first.
    fn set_priority(&mut self, id: u32, priority: StreamPriority) {
        if let Some(stream) = self.requests.get_mut(&id) {
            stream.urgency = priority.urgency;
            // Fails if the client has stopped the stream.
            let _ = self.quic.send_stream(stream_id(id)).set_priority(-i32::from(priority.urgency));
        }
    }

    fn take_request(&mut self, ended: bool, rejection: Option<Reject>) -> Box<StreamRequest> {
        let mut head = Head::default();
        let mut bytes = Vec::new();
        let protocol = self.http.protocol.take();
        self.http.swap_head(&mut head, &mut bytes);
        let priority = self.http.priority.into();
        if let Some(protocol) = protocol.filter(|_| rejection.is_none()) {
            convert_extended_connect(protocol, &mut head, &mut bytes);
        }
        Box::new(StreamRequest { head, bytes, priority, rejection, ended })
    }

    /// Closes requests whose heads did not arrive in time, and those whose responses the client does not accept.
    pub(super) fn close_overdue(&mut self, timeout: Millis) {
        if self.now < self.heads_checked_at + HEAD_CHECK_INTERVAL {
            return;
        }
        self.heads_checked_at = self.now;
        self.earn(GIVEN_UP_CREDIT_PER_SECOND);
        self.close_stalled();
        let timeout = Duration::from_millis(timeout.0);
        let is_overdue = |stream: &RequestStream| !stream.has_begun && self.now >= stream.opened_at + timeout;
        let overdue = self.requests.iter().filter(|(_, stream)| is_overdue(stream));
        let overdue: Vec<u32> = overdue.map(|(id, _)| *id).collect();
        overdue.into_iter().for_each(|id| self.close_stream(id, Http3Code::REQUEST_CANCELLED));
    }
}

impl MuxProtocol for H3Connection {
    fn head(&mut self, id: u32, status: Status, lines: &[u8], ends: bool) {
        self.collect(id, |http, stream, out| {
            http.write_section(stream, out, |section| {
                section.status(status);
                section.lines(lines);
            });
        });
        if ends {
            self.end(id);
        }
    }

    fn grant(&mut self, id: u32, bytes: usize) {
        self.grant(id, bytes);
    }

    fn set_write_timeout(&mut self, id: u32, timeout: Millis) {
        if let Some(stream) = self.requests.get_mut(&id) {
            stream.write_timeout = Duration::from_millis(timeout.0);
        }
    }

    /// Long limits: Chromium shows a response only once it has sent the whole request, and hangs if it may not.
    fn discard_limits(&self) -> (Millis, usize) {
        (DISCARD_TIME, usize::MAX)
    }

    fn reset(&mut self, id: u32, reason: ResetReason) {
        let code = match reason {
            ResetReason::Refused => Http3Code::REQUEST_REJECTED,
            ResetReason::Answered => Http3Code::NO_ERROR,
            ResetReason::Failed => Http3Code::INTERNAL_ERROR,
            // RFC 9220 section 3: the equivalent of a TCP reset.
            ResetReason::Tunnel => Http3Code::REQUEST_CANCELLED,
        };
        self.release(id, code);
    }

    fn close(&mut self, id: u32) {
        let is_whole = self.requests.get(&id).is_some_and(RequestStream::ends);
        self.earn(u32::from(is_whole));
        self.release(id, if is_whole { Http3Code::NO_ERROR } else { Http3Code::REQUEST_CANCELLED });
    }

    fn go_away(&mut self, is_now: bool) {
        self.http.go_away(is_now);
    }

    fn is_peer_leaving(&self) -> bool {
        self.is_peer_leaving
    }

    fn limit_growth(&mut self, bytes_max: usize) {
        self.limit_growth(bytes_max);
    }

    fn shrink(&mut self) {
        self.shrink();
    }

    fn unsent_bytes(&mut self) -> usize {
        self.turn_bytes()
    }

    fn shared_out(&mut self) -> Option<&mut Vec<u8>> {
        None
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes()
    }
}
