//! HTTP/1: requests on a connection, sequential or pipelined.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use http::body::Body;
use http::framing::Framing;
use http::machine::{ClientMachine, Step};
use http::{Method, Name, Status};
use net::{Fault, Link};

use crate::failure::RequestFailure;
use crate::jobs::{Connection, ConnectionJobs, WholeResponse};
use crate::moment::now_ns;
use crate::tally::ErrorKind;
use crate::world::{RequestJob, SCRATCH_BYTES, World};

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
    Whole,
    /// All available bytes have been read.
    Blocked,
    /// More bytes are available, but other connections should get their turn.
    Busy,
    /// The connection cannot carry further requests.
    Ended,
}

/// Sequence of HTTP/1 load connections.
pub(crate) struct LoadConnection {
    jobs: ConnectionJobs,
    machine: ClientMachine,
    /// Whether no byte of the next response has been parsed yet.
    at_start: bool,
    /// Bytes of an incomplete response head.
    held: Vec<u8>,
    under_way: VecDeque<SentRequest>,
    /// Serialized requests to be sent, of which the first `out_at` bytes have been sent.
    out: Vec<u8>,
    out_at: usize,
    /// A single request that is sent without copying it from the plan: its index, and the number of bytes
    /// sent.
    direct: Option<(u32, usize)>,
    /// Time of the first byte of the current response; 0 if none has arrived.
    first_ns: u64,
    content_bytes: u64,
    hasher: DefaultHasher,
    ended: bool,
}

impl LoadConnection {
    pub(crate) fn new(world: Rc<World>, origin: usize) -> LoadConnection {
        LoadConnection {
            jobs: ConnectionJobs::new(world, origin),
            machine: ClientMachine::default(),
            at_start: true,
            held: Vec::new(),
            under_way: VecDeque::new(),
            out: Vec::new(),
            out_at: 0,
            direct: None,
            first_ns: 0,
            content_bytes: 0,
            hasher: DefaultHasher::new(),
            ended: false,
        }
    }

    /// Starts as many requests as the pipeline allows.
    fn fill(&mut self) {
        let depth = self.jobs.world.plan.pipeline;
        while self.under_way.len() < depth {
            let Some(job) = self.jobs.next() else { return };
            self.under_way.push_back(SentRequest { job, sent_ns: self.jobs.now_ns });
            if depth == 1 {
                self.direct = Some((job.request, 0));
            } else {
                self.out.extend_from_slice(&self.jobs.world.plan.requests[job.request as usize].bytes);
            }
        }
    }

    /// Sends pending bytes; returns true if all of them have been sent.
    fn flush(&mut self, link: &mut Link) -> Result<bool, RequestFailure> {
        let before = self.out_at + self.direct.map_or(0, |(_, at)| at);
        let mut after = before;
        let done = loop {
            let (bytes, at) = match &mut self.direct {
                Some((request, at)) => (&self.jobs.world.plan.requests[*request as usize].bytes, at),
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
            self.jobs.world.tally.borrow_mut().bytes_out += (after - before) as u64;
        }
        if done {
            self.direct = None;
            self.out.clear();
            self.out_at = 0;
        }
        Ok(link.try_flush()? && done)
    }

    /// Returns the deadline for the oldest response.
    fn deadline_ms(&self) -> u64 {
        self.jobs.deadline_ms(self.under_way.front().map(|sent| sent.sent_ns))
    }

    /// Reads the bytes that have arrived.
    fn take_in(&mut self, link: &mut Link) -> Result<ReadResult, RequestFailure> {
        let world = self.jobs.world.clone();
        let mut scratch = world.scratch.borrow_mut();
        let before = self.jobs.served;
        for _ in 0..READS_MAX {
            let held = self.held.len();
            let Some(len) = link.try_read(&mut scratch[held..])? else {
                return Ok(if self.jobs.served > before { ReadResult::Whole } else { ReadResult::Blocked });
            };
            self.jobs.now_ns = now_ns();
            if len == 0 {
                return self.take_end();
            }
            world.tally.borrow_mut().bytes_in += len as u64;
            scratch[..held].copy_from_slice(&self.held);
            self.held.clear();
            self.feed(&scratch[..held + len])?;
            if self.ended {
                return Ok(ReadResult::Ended);
            }
            if self.jobs.served > before {
                return Ok(ReadResult::Whole);
            }
        }
        Ok(ReadResult::Busy)
    }

    /// Handles the end of the server's side.
    fn take_end(&mut self) -> Result<ReadResult, RequestFailure> {
        let idle = self.under_way.is_empty() && self.at_start;
        if !idle {
            self.machine.eof().map_err(|reject| {
                let what = match (self.held.is_empty() && self.at_start, self.jobs.served) {
                    (true, 0) => "connection closed without a response",
                    (true, _) => "kept-alive connection closed as a request was sent",
                    (false, _) => reject.reason,
                };
                RequestFailure::new(ErrorKind::Closed, what)
            })?;
            self.complete();
        }
        Ok(ReadResult::Ended)
    }

    /// Parses received bytes; bytes of an incomplete head are kept.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut at = 0;
        while at < bytes.len() && !self.ended {
            let Some(front) = self.under_way.front() else {
                return Err(RequestFailure::new(ErrorKind::Malformed, "bytes that no request asked for"));
            };
            let method = self.jobs.world.plan.requests[front.job.request as usize].method;
            if self.first_ns == 0 {
                self.first_ns = self.jobs.now_ns;
            }
            if self.at_start
                && let Some(len) = self.take_known(&bytes[at..], method)
            {
                at += len;
                continue;
            }
            self.at_start = false;
            let fed = self.machine.feed(&bytes[at..], method, &self.jobs.world.limits)?;
            match fed.step {
                Step::NeedMore if fed.consumed == 0 && self.machine.body().is_none() => {
                    self.held.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
                Step::NeedMore | Step::End => {}
                Step::Head => self.take_head(&bytes[at..], method),
                Step::Data(span) => {
                    self.content_bytes += span.len() as u64;
                    if self.jobs.world.plan.verify {
                        self.hasher.write(span.of(&bytes[at..]));
                    }
                }
            }
            at += fed.consumed;
            if self.machine.body().is_some_and(Body::is_end) {
                self.take_message();
            }
        }
        if at < bytes.len() && self.under_way.is_empty() {
            return Err(RequestFailure::new(ErrorKind::Malformed, "bytes after the end of the response"));
        }
        Ok(())
    }

    /// Takes a complete response that begins with the known head; returns its length.
    fn take_known(&mut self, bytes: &[u8], method: Method) -> Option<usize> {
        let world = self.jobs.world.clone();
        let known = world.known.borrow();
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
    fn take_head(&mut self, bytes: &[u8], method: Method) {
        let head = &self.machine.head;
        if head.status.is_informational() {
            return;
        }
        let server = head.field(bytes, Name::Server).unwrap_or_default();
        self.jobs.world.learn(server, head.length, head.status.code());
        let length = match head.framing {
            Framing::None => 0,
            Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Framing::Chunked | Framing::UntilClose => return,
        };
        if head.keep_alive && self.jobs.world.plan.keep_alive && length < SCRATCH_BYTES {
            let mut known = self.jobs.world.known.borrow_mut();
            known.bytes.clear();
            known.bytes.extend_from_slice(&bytes[..head.len]);
            (known.method, known.status, known.length) = (method, head.status.code(), length);
        }
    }

    /// Handles a complete message, final or interim.
    fn take_message(&mut self) {
        let status = self.machine.head.status;
        if status.is_informational() && status != Status::SWITCHING_PROTOCOLS {
            self.machine.next();
            return;
        }
        self.complete();
    }

    /// Handles the end of a final response.
    fn complete(&mut self) {
        self.ended |= !self.machine.is_reusable();
        let status = self.machine.head.status.code();
        self.machine.next();
        self.at_start = true;
        self.record(status);
    }

    /// Counts the current response.
    fn record(&mut self, status: u16) {
        let Some(SentRequest { job, sent_ns }) = self.under_way.pop_front() else { return };
        let hash = if self.jobs.world.plan.verify { std::mem::take(&mut self.hasher).finish() } else { 0 };
        let content_bytes = std::mem::take(&mut self.content_bytes);
        let first_ns = std::mem::take(&mut self.first_ns);
        self.jobs.record(&WholeResponse { job, sent_ns, first_ns, status, content_bytes, hash });
    }
}

impl Connection for LoadConnection {
    fn jobs(&mut self) -> &mut ConnectionJobs {
        &mut self.jobs
    }

    async fn live(&mut self) -> Result<bool, RequestFailure> {
        let keep_alive = self.jobs.world.plan.keep_alive;
        let Some(mut link) = self.jobs.begin().await? else { return Ok(true) };
        loop {
            if self.under_way.is_empty() && !self.jobs.another(&mut link).await {
                return Ok(false);
            }
            self.fill();
            let sent = self.flush(&mut link)?;
            match self.take_in(&mut link)? {
                ReadResult::Whole if !keep_alive => return Ok(false),
                ReadResult::Whole => {}
                ReadResult::Blocked => {
                    link.stream().ready_for(link.interest(true, !sent), self.deadline_ms()).await?;
                }
                ReadResult::Busy if self.jobs.world.core.now_ms() >= self.deadline_ms() => {
                    return Err(Fault::Timeout.into());
                }
                ReadResult::Busy => self.jobs.world.core.yield_now().await,
                ReadResult::Ended => return Ok(false),
            }
        }
    }

    fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// Handles the end of the connection: requests without a response are sent again on the next one.
    fn forget(&mut self) {
        self.machine.next();
        self.at_start = true;
        self.held.clear();
        self.out.clear();
        self.out_at = 0;
        self.direct = None;
        self.content_bytes = 0;
        self.first_ns = 0;
        self.hasher = DefaultHasher::new();
        self.ended = false;
        while let Some(SentRequest { job, .. }) = self.under_way.pop_back() {
            self.jobs.again.push_front(job);
        }
    }
}

impl Drop for LoadConnection {
    fn drop(&mut self) {
        self.forget();
    }
}
