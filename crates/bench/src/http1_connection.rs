//! HTTP/1: requests on a connection, sequential or pipelined.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use http::body::Body;
use http::framing::Framing;
use http::machine::{ClientMachine, Step};
use http::{Method, Name, Status};
use net::{Fault, Interest, Link};
use times::Moment;

use crate::clock::now_ns;
use crate::connection_loop::{CompleteResponse, ConnectionState, JobConnection};
use crate::load_state::{LoadState, RequestJob, SCRATCH_BYTES};
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Maximum consecutive reads before other connections get their turn.
const READS_MAX: usize = 16;

/// Request that has been sent or is being sent.
struct SentRequest {
    job: RequestJob,
    sent_ns: u64,
}

/// Result of reading.
enum ReadResult {
    /// At least one response is complete.
    Response,
    /// All available bytes have been read.
    Blocked,
    /// More bytes are available, but other connections should get their turn.
    Yielded,
    /// The connection cannot carry further requests.
    Ended,
}

/// Sequence of HTTP/1 load connections.
pub(crate) struct LoadConnection {
    state: ConnectionState,
    machine: ClientMachine,
    /// Whether no byte of the next response has been parsed yet.
    is_response_unstarted: bool,
    /// Bytes of an incomplete response head.
    partial_head: Vec<u8>,
    sent_requests: VecDeque<SentRequest>,
    /// Serialized requests to be sent, of which the first `out_at` bytes have been sent.
    out: Vec<u8>,
    out_at: usize,
    /// A single request that is sent without copying it from the plan: its index, and the number of bytes
    /// sent.
    uncopied_request: Option<(u32, usize)>,
    /// Time of the first byte of the current response; 0 if none has arrived.
    first_ns: u64,
    content_bytes: u64,
    hasher: DefaultHasher,
    has_ended: bool,
}

impl LoadConnection {
    pub(crate) fn new(load_state: Rc<LoadState>, origin: usize) -> LoadConnection {
        LoadConnection {
            state: ConnectionState::new(load_state, origin),
            machine: ClientMachine::default(),
            is_response_unstarted: true,
            partial_head: Vec::new(),
            sent_requests: VecDeque::new(),
            out: Vec::new(),
            out_at: 0,
            uncopied_request: None,
            first_ns: 0,
            content_bytes: 0,
            hasher: DefaultHasher::new(),
            has_ended: false,
        }
    }

    /// Starts as many requests as the pipeline allows.
    fn start_requests(&mut self) {
        let depth = self.state.load_state.plan.pipeline;
        while self.sent_requests.len() < depth {
            let Some(job) = self.state.next_request() else { return };
            self.sent_requests.push_back(SentRequest { job, sent_ns: self.state.now_ns });
            if depth == 1 {
                self.uncopied_request = Some((job.request, 0));
            } else {
                self.out.extend_from_slice(&self.state.load_state.plan.requests[job.request as usize].bytes);
            }
        }
    }

    /// Sends pending bytes; returns true if all of them have been sent.
    fn flush(&mut self, link: &mut Link) -> Result<bool, RequestFailure> {
        let before = self.out_at + self.uncopied_request.map_or(0, |(_, at)| at);
        let mut after = before;
        let done = loop {
            let (bytes, at) = match &mut self.uncopied_request {
                Some((request, at)) => (&self.state.load_state.plan.requests[*request as usize].bytes, at),
                None => (&self.out, &mut self.out_at),
            };
            if *at == bytes.len() {
                break true;
            }
            match link.try_write(&[&bytes[*at..]], false)? {
                0 => break false,
                len => (*at, after) = (*at + len, after + len),
            }
        };
        if after > before {
            self.state.load_state.tally.borrow_mut().bytes_out += (after - before) as u64;
        }
        if done {
            self.uncopied_request = None;
            self.out.clear();
            self.out_at = 0;
        }
        Ok(link.try_flush()? && done)
    }

    /// Returns the deadline for the oldest response.
    fn deadline_ms(&self) -> u64 {
        self.state.deadline_ms(self.sent_requests.front().map(|sent| sent.sent_ns))
    }

    /// Reads the bytes that have arrived.
    fn read_available(&mut self, link: &mut Link) -> Result<ReadResult, RequestFailure> {
        let world = self.state.load_state.clone();
        let mut scratch = world.scratch.borrow_mut();
        let before = self.state.response_count;
        for _ in 0..READS_MAX {
            let held = self.partial_head.len();
            let Some(len) = link.try_read(&mut scratch[held..])? else {
                return Ok(if self.state.response_count > before {
                    ReadResult::Response
                } else {
                    ReadResult::Blocked
                });
            };
            self.state.now_ns = now_ns();
            if len == 0 {
                return self.handle_eof();
            }
            world.tally.borrow_mut().bytes_in += len as u64;
            scratch[..held].copy_from_slice(&self.partial_head);
            self.partial_head.clear();
            self.feed(&scratch[..held + len])?;
            if self.has_ended {
                return Ok(ReadResult::Ended);
            }
            if self.state.response_count > before {
                return Ok(ReadResult::Response);
            }
        }
        Ok(ReadResult::Yielded)
    }

    /// Handles the end of the server's side.
    fn handle_eof(&mut self) -> Result<ReadResult, RequestFailure> {
        let idle = self.sent_requests.is_empty() && self.is_response_unstarted;
        if !idle {
            self.machine.eof().map_err(|reject| {
                let what = match (
                    self.partial_head.is_empty() && self.is_response_unstarted,
                    self.state.response_count,
                ) {
                    (true, 0) => "connection closed without a response",
                    (true, _) => "kept-alive connection closed as a request was sent",
                    (false, _) => reject.reason,
                };
                RequestFailure::new(ErrorKind::Closed, what)
            })?;
            self.finish_response();
        }
        Ok(ReadResult::Ended)
    }

    /// Parses received bytes; bytes of an incomplete head are kept.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut at = 0;
        while at < bytes.len() && !self.has_ended {
            let Some(front) = self.sent_requests.front() else {
                return Err(RequestFailure::new(ErrorKind::Malformed, "bytes that no request asked for"));
            };
            let method = self.state.load_state.plan.requests[front.job.request as usize].method;
            if self.first_ns == 0 {
                self.first_ns = self.state.now_ns;
            }
            if self.is_response_unstarted
                && let Some(len) = self.match_known_head(&bytes[at..], method)
            {
                at += len;
                continue;
            }
            self.is_response_unstarted = false;
            let fed = self.machine.feed(&bytes[at..], method, &self.state.load_state.limits)?;
            match fed.step {
                Step::NeedMore if fed.consumed == 0 && self.machine.body().is_none() => {
                    self.partial_head.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
                Step::NeedMore | Step::End => {}
                Step::Head => self.handle_head(&bytes[at..], method),
                Step::Data(span) => {
                    self.content_bytes += span.len() as u64;
                    if self.state.load_state.plan.verify {
                        self.hasher.write(span.of(&bytes[at..]));
                    }
                }
            }
            at += fed.consumed;
            if self.machine.body().is_some_and(Body::is_end) {
                self.handle_message();
            }
        }
        if at < bytes.len() && self.sent_requests.is_empty() {
            return Err(RequestFailure::new(ErrorKind::Malformed, "bytes after the end of the response"));
        }
        Ok(())
    }

    /// Takes a complete response that begins with the known head; returns its length.
    fn match_known_head(&mut self, bytes: &[u8], method: Method) -> Option<usize> {
        let world = self.state.load_state.clone();
        let known = world.known_head.borrow();
        let len = known.bytes.len() + known.length;
        if known.bytes.is_empty()
            || known.method != method
            || !bytes.starts_with(&known.bytes)
            || bytes.len() < len
        {
            return None;
        }
        self.content_bytes = known.length as u64;
        if world.plan.verify {
            self.hasher.write(&bytes[known.bytes.len()..len]);
        }
        self.record(known.status);
        Some(len)
    }

    /// Handles a complete head: records facts about the server, and remembers the head if it is simple
    /// enough.
    fn handle_head(&mut self, bytes: &[u8], method: Method) {
        let head = &self.machine.head;
        if head.status.is_informational() {
            return;
        }
        let server = head.field(bytes, Name::Server).unwrap_or_default();
        self.state.load_state.record_facts(server, head.length, head.status.code());
        let length = match head.framing {
            Framing::None => 0,
            Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Framing::Chunked | Framing::UntilClose => return,
        };
        if head.keep_alive && self.state.load_state.plan.keep_alive && length < SCRATCH_BYTES {
            let mut known = self.state.load_state.known_head.borrow_mut();
            known.bytes.clear();
            known.bytes.extend_from_slice(&bytes[..head.len]);
            (known.method, known.status, known.length) = (method, head.status.code(), length);
        }
    }

    /// Handles a complete message, final or interim.
    fn handle_message(&mut self) {
        let status = self.machine.head.status;
        if status.is_informational() && status != Status::SWITCHING_PROTOCOLS {
            self.machine.next();
            return;
        }
        self.finish_response();
    }

    /// Handles the end of a final response.
    fn finish_response(&mut self) {
        self.has_ended |= !self.machine.is_reusable();
        let status = self.machine.head.status.code();
        self.machine.next();
        self.is_response_unstarted = true;
        self.record(status);
    }

    /// Counts the current response.
    fn record(&mut self, status: u16) {
        let Some(SentRequest { job, sent_ns }) = self.sent_requests.pop_front() else { return };
        let hash =
            if self.state.load_state.plan.verify { std::mem::take(&mut self.hasher).finish() } else { 0 };
        let content_bytes = std::mem::take(&mut self.content_bytes);
        let first_ns = std::mem::take(&mut self.first_ns);
        self.state.record(&CompleteResponse { job, sent_ns, first_ns, status, content_bytes, hash });
    }
}

impl JobConnection for LoadConnection {
    fn connection_state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    async fn serve_connection(&mut self) -> Result<bool, RequestFailure> {
        let keep_alive = self.state.load_state.plan.keep_alive;
        let Some(mut link) = self.state.connect_when_needed().await? else { return Ok(true) };
        loop {
            if self.sent_requests.is_empty() && !self.state.wait_for_request(&mut link).await {
                return Ok(false);
            }
            self.start_requests();
            let sent = self.flush(&mut link)?;
            match self.read_available(&mut link)? {
                ReadResult::Response if !keep_alive => return Ok(false),
                ReadResult::Response => {}
                ReadResult::Blocked => {
                    let deadline = Moment(self.deadline_ms());
                    let interest = link.interest(Interest::of(true, !sent));
                    let is_full = self.sent_requests.len() >= self.state.load_state.plan.pipeline;
                    self.state.wait_for_stream(link.stream(), interest, is_full, deadline).await?;
                }
                ReadResult::Yielded if self.state.load_state.core.now().0 >= self.deadline_ms() => {
                    return Err(Fault::Timeout.into());
                }
                ReadResult::Yielded => self.state.load_state.core.yield_now().await,
                ReadResult::Ended => return Ok(false),
            }
        }
    }

    fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// Handles the end of the connection: requests without a response are sent again on the next one.
    fn requeue_unanswered(&mut self) {
        self.machine.next();
        self.is_response_unstarted = true;
        self.partial_head.clear();
        self.out.clear();
        self.out_at = 0;
        self.uncopied_request = None;
        self.content_bytes = 0;
        self.first_ns = 0;
        self.hasher = DefaultHasher::new();
        self.has_ended = false;
        while let Some(SentRequest { job, .. }) = self.sent_requests.pop_back() {
            self.state.retry_queue.push_front(job);
        }
    }
}

impl Drop for LoadConnection {
    fn drop(&mut self) {
        self.requeue_unanswered();
    }
}
