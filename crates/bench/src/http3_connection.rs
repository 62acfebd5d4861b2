//! HTTP/3: concurrent requests on a QUIC connection, each on its own stream.

use std::rc::Rc;

use http3::Http3Code;
use net::{Http3Client, Http3Event, MuxRequest};

use crate::active_requests::RequestsInFlight;
use crate::clock::now_ns;
use crate::connection_loop::{ConnectionState, JobConnection};
use crate::load_state::LoadState;
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Maximum consecutive turns before other connections get theirs.
const TURNS_MAX: usize = 16;

/// Sequence of HTTP/3 load connections.
pub(crate) struct Http3Connection {
    state: ConnectionState,
    active_requests: RequestsInFlight,
    /// Whether content of requests waits for flow control.
    has_unsent_content: bool,
    /// Sizes of received and sent packets that were counted.
    counted_bytes: (u64, u64),
    /// Whether the server accepts no further streams.
    is_closing: bool,
}

impl Http3Connection {
    pub(crate) fn new(load_state: Rc<LoadState>, origin: usize) -> Http3Connection {
        Http3Connection {
            state: ConnectionState::new(load_state, origin),
            active_requests: RequestsInFlight::default(),
            has_unsent_content: false,
            counted_bytes: (0, 0),
            is_closing: false,
        }
    }

    /// Opens as many streams as the plan requests and the server allows.
    fn open_streams(&mut self, client: &mut Http3Client) {
        let world = self.state.load_state.clone();
        while self.active_requests.len() < world.plan.pipeline && !self.is_closing && client.can_request() {
            let Some(job) = self.state.next_request() else { return };
            let request = &world.plan.requests[job.request as usize];
            let head = request.head.as_ref().expect("rendered for HTTP/3");
            let begun = client.request(&MuxRequest {
                method: request.method,
                method_name: head.method.as_bytes(),
                scheme: head.scheme.as_bytes(),
                authority: head.authority.as_bytes(),
                path: head.path.as_bytes(),
                lines: head.fields.as_bytes(),
                has_no_body: request.bytes.is_empty(),
                protocol: None,
            });
            let Some(stream) = begun else {
                self.state.retry_queue.push_front(job);
                return;
            };
            self.has_unsent_content |= !request.bytes.is_empty();
            self.active_requests.begin(&self.state, stream, job);
        }
    }

    /// Sends as much request content as flow control allows.
    fn send_content(&mut self, client: &mut Http3Client) {
        if !std::mem::take(&mut self.has_unsent_content) {
            return;
        }
        let world = self.state.load_state.clone();
        for request in self.active_requests.iter_mut() {
            let content = &world.plan.requests[request.job.request as usize].bytes;
            while request.sent_bytes < content.len() {
                let sent = client.data(request.stream, &content[request.sent_bytes..], true);
                request.sent_bytes += sent;
                if sent == 0 {
                    self.has_unsent_content = true;
                    break;
                }
            }
        }
    }

    /// Handles the events that were received. Returns whether there were any.
    fn handle_events(&mut self, client: &mut Http3Client) -> Result<bool, RequestFailure> {
        let mut has_events = false;
        while let Some(event) = client.next_event()? {
            has_events = true;
            match event {
                Http3Event::Head { stream, ended } => {
                    client.with_head(|status, head, bytes| {
                        let field = |name| head.field(bytes, name);
                        self.active_requests.receive_head(&self.state, stream, status, field);
                    });
                    if ended {
                        self.finish_response(client, stream);
                    }
                }
                Http3Event::Data { stream, data, ended } => {
                    client.grant(stream, data.len());
                    self.active_requests.receive_content(stream, &data);
                    if ended {
                        self.finish_response(client, stream);
                    }
                }
                Http3Event::End { stream, .. } => self.finish_response(client, stream),
                Http3Event::Reset { stream, code } => {
                    client.release(stream);
                    match self.active_requests.remove(stream) {
                        // The server did not process the request, so it can be sent again.
                        Some(request) if code == Http3Code::REQUEST_REJECTED => {
                            self.state.retry_queue.push_back(request.job);
                        }
                        Some(request) => {
                            let example = format!("stream reset: {}", error_name(code));
                            request.fail(&self.state, ErrorKind::Closed, &example);
                        }
                        None => {}
                    }
                }
                Http3Event::Failed { stream, reason } => {
                    if let Some(request) = self.active_requests.remove(stream) {
                        request.fail(&self.state, ErrorKind::Malformed, reason);
                    }
                }
                Http3Event::GoAway { first_stream } => {
                    self.is_closing = true;
                    // Requests from there on were not processed.
                    while let Some(request) = self.active_requests.take_from(first_stream) {
                        client.release(request.stream);
                        self.state.retry_queue.push_front(request.job);
                    }
                }
                Http3Event::Other => {}
            }
        }
        Ok(has_events)
    }

    /// Counts the complete response of a stream.
    fn finish_response(&mut self, client: &mut Http3Client, stream: u32) {
        client.release(stream);
        if let Some(request) = self.active_requests.remove(stream) {
            self.state.record(&request.complete());
        }
    }

    /// Cancels the requests that have waited for too long.
    fn cancel_overdue(&mut self, client: &mut Http3Client) {
        while let Some(request) = self.active_requests.take_overdue(&self.state) {
            client.release(request.stream);
            request.fail_overdue(&self.state);
        }
    }

    fn count_bytes(&mut self, client: &Http3Client) {
        let packets = client.packet_bytes();
        let counted = std::mem::replace(&mut self.counted_bytes, packets);
        let mut tally = self.state.load_state.tally.borrow_mut();
        tally.bytes_in += packets.0 - counted.0;
        tally.bytes_out += packets.1 - counted.1;
    }

    /// Runs an open connection. See [`JobConnection::serve_connection`].
    async fn drive(&mut self, client: &mut Http3Client) -> Result<bool, RequestFailure> {
        let keep_alive = self.state.load_state.plan.keep_alive;
        let mut turns = 0;
        loop {
            let is_empty = client.receive()?;
            let has_events = self.handle_events(client)?;
            self.cancel_overdue(client);
            if self.active_requests.is_empty() {
                let is_done = self.state.response_count > 0 && !keep_alive;
                if is_done || self.is_closing {
                    return Ok(false);
                }
                if self.state.retry_queue.is_empty() {
                    // The load may end while it waits.
                    self.count_bytes(client);
                    let answered = client.answer_while(self.state.wait_for_next()).await;
                    // A connection that the server has closed meanwhile lost no request.
                    let is_open = answered.is_ok() && self.handle_events(client).is_ok();
                    if !is_open && self.state.response_count > 0 {
                        return Ok(false);
                    }
                }
            }
            self.open_streams(client);
            self.send_content(client);
            client.send();
            self.count_bytes(client);
            turns += 1;
            if (has_events || !is_empty) && turns < TURNS_MAX {
                self.state.now_ns = now_ns();
                continue;
            }
            if !is_empty {
                turns = 0;
                self.state.load_state.core.yield_now().await;
                self.state.now_ns = now_ns();
                continue;
            }
            turns = 0;
            let deadline = self.active_requests.deadline(&self.state);
            let is_full = self.active_requests.len() >= self.state.load_state.plan.pipeline
                || self.is_closing
                || !client.can_request();
            self.state.wait_for_packets(client, is_full, deadline).await;
        }
    }
}

/// Returns the name of an error code, or its number if it has no name.
fn error_name(code: Http3Code) -> String {
    match code.text() {
        "" => format!("error code {:#x}", code.0),
        name => name.to_string(),
    }
}

impl JobConnection for Http3Connection {
    fn connection_state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    async fn serve_connection(&mut self) -> Result<bool, RequestFailure> {
        let Some(mut client) = self.state.connect_http3_when_needed().await? else { return Ok(true) };
        let ended = self.drive(&mut client).await;
        self.count_bytes(&client);
        ended
    }

    fn content_bytes(&self) -> u64 {
        self.active_requests.content_bytes()
    }

    fn requeue_unanswered(&mut self) {
        self.is_closing = false;
        self.has_unsent_content = false;
        self.counted_bytes = (0, 0);
        self.active_requests.requeue(&mut self.state);
    }
}

impl Drop for Http3Connection {
    fn drop(&mut self) {
        self.requeue_unanswered();
    }
}
