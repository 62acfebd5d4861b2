//! HTTP/2: concurrent requests on a connection, each on its own stream.

use std::rc::Rc;

use http::Limits;
use http2::{ErrorCode, Event, Machine, NoStream, Options, RequestLine};
use net::{Fault, Interest, Link};

use crate::active_requests::{ActiveRequest, RequestsInFlight};
use crate::clock::now_ns;
use crate::connection_loop::{ConnectionState, JobConnection};
use crate::load_state::LoadState;
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Maximum consecutive reads before other connections get their turn.
const READS_MAX: usize = 16;
/// Maximum bytes of content that are buffered for sending.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// Flow-control window of streams and connections: received content is consumed at once.
const WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Result of reading.
enum StreamReadResult {
    /// Bytes were read.
    Received,
    /// No bytes are available.
    Blocked,
    /// More bytes are available, but other connections should get their turn.
    Yielded,
    /// The server closed its side of the connection.
    Closed,
}

/// Sequence of HTTP/2 load connections.
pub(crate) struct MultiplexedConnection {
    state: ConnectionState,
    machine: Machine,
    /// Requests in progress, by ascending stream ID.
    active_requests: RequestsInFlight,
    /// Bytes of an incomplete frame.
    partial_frame: Vec<u8>,
    /// Bytes to be sent, of which the first `out_at` bytes have been sent.
    out: Vec<u8>,
    out_at: usize,
    /// Whether the server accepts no further streams.
    is_closing: bool,
}

fn options(limits: Limits) -> Options {
    Options {
        head: limits,
        stream_window: WINDOW_BYTES,
        connection_window: WINDOW_BYTES,
        ..Options::default()
    }
}

/// Returns the name of an error code, or its number if it has no name.
fn error_name(code: ErrorCode) -> String {
    match code.text() {
        "" => format!("error code {}", code.0),
        name => name.to_string(),
    }
}

impl MultiplexedConnection {
    pub(crate) fn new(load_state: Rc<LoadState>, origin: usize) -> MultiplexedConnection {
        let machine = Machine::client(options(load_state.limits));
        MultiplexedConnection {
            state: ConnectionState::new(load_state, origin),
            machine,
            active_requests: RequestsInFlight::default(),
            partial_frame: Vec::new(),
            out: Vec::new(),
            out_at: 0,
            is_closing: false,
        }
    }

    /// Whether no further stream can be opened: by the plan, by the server's limit, or as the connection is closing.
    fn is_full(&self) -> bool {
        self.active_requests.len() >= self.state.load_state.plan.pipeline
            || self.is_closing
            || self.machine.can_request().is_err()
    }

    /// Opens as many streams as the plan requests and the server allows.
    fn open_streams(&mut self) -> Result<(), RequestFailure> {
        let depth = self.state.load_state.plan.pipeline;
        while self.active_requests.len() < depth && !self.is_closing {
            match self.machine.can_request() {
                Ok(()) => {}
                Err(NoStream::Full) => return Ok(()),
                Err(_) => {
                    self.is_closing = true;
                    return Ok(());
                }
            }
            let Some(job) = self.state.next_request() else { return Ok(()) };
            let world = self.state.load_state.clone();
            let request = &world.plan.requests[job.request as usize];
            let head = request.head.as_ref().expect("rendered for HTTP/2");
            let line = RequestLine {
                method: head.method.as_bytes(),
                scheme: head.scheme.as_bytes(),
                authority: head.authority.as_bytes(),
                path: head.path.as_bytes(),
                protocol: None,
            };
            let ended = request.bytes.is_empty();
            let (stream, mut writer) = self
                .machine
                .request(&line, ended, &mut self.out)
                .map_err(|why| RequestFailure::new(ErrorKind::Malformed, format!("no stream: {why:?}")))?;
            writer.fields(&head.fields);
            drop(writer);
            self.active_requests.begin(&self.state, stream, job);
        }
        Ok(())
    }

    /// Sends as much request content as the flow-control windows allow.
    fn send_content(&mut self) {
        let world = self.state.load_state.clone();
        for request in self.active_requests.iter_mut() {
            let content = &world.plan.requests[request.job.request as usize].bytes;
            if request.sent_bytes < content.len() && self.out.len() - self.out_at < OUT_BYTES_MAX {
                request.sent_bytes +=
                    self.machine.data(request.stream, &content[request.sent_bytes..], true, &mut self.out);
            }
        }
    }

    /// Sends pending bytes; returns true if all of them have been sent.
    fn flush(&mut self, link: &mut Link) -> Result<bool, RequestFailure> {
        self.send_content();
        self.machine.flush(&mut self.out);
        while self.out_at < self.out.len() {
            let len = link.try_write(&[&self.out[self.out_at..]], false)?;
            if len == 0 {
                break;
            }
            self.out_at += len;
            self.state.load_state.tally.borrow_mut().bytes_out += len as u64;
        }
        let done = self.out_at == self.out.len();
        if done {
            self.out.clear();
            self.out_at = 0;
        }
        Ok(link.try_flush()? && done)
    }

    /// Reads the bytes that have arrived.
    fn read_available(&mut self, link: &mut Link) -> Result<StreamReadResult, RequestFailure> {
        let world = self.state.load_state.clone();
        let mut scratch = world.scratch.borrow_mut();
        for reads in 0..READS_MAX {
            let held = self.partial_frame.len();
            let Some(len) = link.try_read(&mut scratch[held..])? else {
                return Ok(if reads == 0 { StreamReadResult::Blocked } else { StreamReadResult::Received });
            };
            self.state.now_ns = now_ns();
            if len == 0 {
                return Ok(StreamReadResult::Closed);
            }
            world.tally.borrow_mut().bytes_in += len as u64;
            scratch[..held].copy_from_slice(&self.partial_frame);
            self.partial_frame.clear();
            self.feed(&scratch[..held + len])?;
        }
        Ok(StreamReadResult::Yielded)
    }

    /// Parses received bytes; bytes of an incomplete frame are kept.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut at = 0;
        if self.state.response_count == 0 && bytes.starts_with(b"HTTP/1.") {
            let what = "the server answers in HTTP/1: it does not accept HTTP/2 with prior knowledge (Komainu: `h2c = true` of a `listen` entry)";
            return Err(RequestFailure::new(ErrorKind::Malformed, what));
        }
        loop {
            let fed = self.machine.feed(&bytes[at..], self.state.now_ns / 1_000_000);
            let (consumed, event) =
                fed.map_err(|error| RequestFailure::new(ErrorKind::Malformed, error.reason))?;
            let fed = &bytes[at..];
            at += consumed;
            match event {
                Event::NeedMore => {
                    self.partial_frame.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
                Event::Head { stream, ended } => self.handle_head(stream, ended),
                Event::Data { stream, data, ended } => self.handle_data(stream, data.of(fed), ended),
                Event::Trailers { stream } => self.finish_response(stream),
                Event::Reset { stream, code } => match self.remove(stream) {
                    // The server did not process the request, so it can be sent again.
                    Some(request) if code == ErrorCode::REFUSED_STREAM => {
                        self.state.retry_queue.push_back(request.job);
                    }
                    Some(request) => {
                        let example = format!("stream reset: {}", error_name(code));
                        request.fail(&self.state, ErrorKind::Closed, &example);
                    }
                    None => {}
                },
                Event::Aborted { stream, reason, .. } => {
                    if let Some(request) = self.remove(stream) {
                        request.fail(&self.state, ErrorKind::Malformed, reason);
                    }
                }
                Event::GoAway { last_stream, .. } => {
                    self.is_closing = true;
                    // Requests on streams above the last stream ID were not processed.
                    while let Some(request) = self.active_requests.take_from(u64::from(last_stream) + 1) {
                        self.machine.release(request.stream);
                        self.state.retry_queue.push_front(request.job);
                    }
                }
                Event::Refused { .. }
                | Event::Writable { .. }
                | Event::Reprioritized { .. }
                | Event::Settings
                | Event::Pong { .. } => {}
            }
        }
    }

    /// Forgets a stream that has ended, and returns its request.
    fn remove(&mut self, stream: u32) -> Option<ActiveRequest> {
        self.machine.release(stream);
        self.active_requests.remove(stream)
    }

    fn handle_head(&mut self, stream: u32, ended: bool) {
        let machine = &self.machine;
        let field = |name| machine.head.field(machine.head_bytes(), name);
        self.active_requests.receive_head(&self.state, stream, machine.status, field);
        if ended {
            self.finish_response(stream);
        }
    }

    fn handle_data(&mut self, stream: u32, content: &[u8], ended: bool) {
        self.machine.grant(stream, content.len());
        self.active_requests.receive_content(stream, content);
        if ended {
            self.finish_response(stream);
        }
    }

    /// Counts the complete response of a stream.
    fn finish_response(&mut self, stream: u32) {
        if let Some(request) = self.remove(stream) {
            self.state.record(&request.complete());
        }
    }

    /// Cancels the requests that have waited for too long.
    fn cancel_overdue(&mut self) {
        while let Some(request) = self.active_requests.take_overdue(&self.state) {
            self.machine.reset(request.stream, ErrorCode::CANCEL);
            self.machine.release(request.stream);
            request.fail_overdue(&self.state);
        }
    }
}

impl JobConnection for MultiplexedConnection {
    fn connection_state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    async fn serve_connection(&mut self) -> Result<bool, RequestFailure> {
        let keep_alive = self.state.load_state.plan.keep_alive;
        let Some(mut link) = self.state.connect_when_needed().await? else { return Ok(true) };
        if matches!(link, Link::Tls(_)) && !link.has_negotiated_http2() {
            return Err(RequestFailure::new(ErrorKind::Tls, "the server does not offer HTTP/2 (ALPN h2)"));
        }
        loop {
            if self.active_requests.is_empty() {
                let is_done = self.state.response_count > 0 && !keep_alive;
                if is_done || self.is_closing || !self.state.wait_for_request(&mut link).await {
                    return Ok(false);
                }
            }
            self.cancel_overdue();
            self.open_streams()?;
            let sent = self.flush(&mut link)?;
            match self.read_available(&mut link)? {
                StreamReadResult::Closed if self.active_requests.is_empty() => return Ok(false),
                StreamReadResult::Closed => {
                    let what = match self.state.response_count {
                        0 => "connection closed without a response",
                        _ => "connection closed with requests under way",
                    };
                    return Err(RequestFailure::new(ErrorKind::Closed, what));
                }
                // Reading may have ended streams or opened windows, so try to send again.
                StreamReadResult::Received => {}
                StreamReadResult::Blocked => {
                    let deadline = self.active_requests.deadline(&self.state);
                    let interest = link.interest(Interest::of(true, !sent));
                    let is_full = self.is_full();
                    match self.state.wait_for_stream(link.stream(), interest, is_full, deadline).await {
                        // Overdue requests are cancelled in the next turn.
                        Err(Fault::Timeout) => {}
                        waited => waited?,
                    }
                }
                StreamReadResult::Yielded => self.state.load_state.core.yield_now().await,
            }
        }
    }

    fn content_bytes(&self) -> u64 {
        self.active_requests.content_bytes()
    }

    fn requeue_unanswered(&mut self) {
        self.machine = Machine::client(options(self.state.load_state.limits));
        self.partial_frame.clear();
        self.out.clear();
        self.out_at = 0;
        self.is_closing = false;
        self.active_requests.requeue(&mut self.state);
    }
}

impl Drop for MultiplexedConnection {
    fn drop(&mut self) {
        self.requeue_unanswered();
    }
}
