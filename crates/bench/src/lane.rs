//! The load of one connection: connect, send requests, read responses, connect again.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;
use std::time::Duration;

use http::body::Body;
use http::framing::Framing;
use http::machine::{ClientMachine, Step};
use http::{Method, Name, Status};
use net::client::Bell;
use net::{Fault, Link};

use crate::dial;
use crate::failure::RequestFailure;
use crate::moment::now_ns;
use crate::plan::Pace;
use crate::quantity;
use crate::tally::ErrorKind;
use crate::world::{Facts, RequestJob, SCRATCH_BYTES, World};

/// Reads in a row before the other connections have their turn.
const READS_MAX: usize = 16;
/// After a failed connection a lane waits this long, twice as long after each further one, up to the maximum.
const BACK_OFF_MS: u64 = 5;
const BACK_OFF_MS_MAX: u64 = 500;

/// A request that has been sent, or is being sent.
struct SentRequest {
    job: RequestJob,
    sent_ns: u64,
}

/// What reading came to.
enum ReadResult {
    /// At least one response is whole.
    Whole,
    /// Nothing more is there.
    Blocked,
    /// More is there, but others should have their turn.
    Busy,
    /// The connection carries no further request.
    Ended,
}

pub(crate) struct LoadConnection {
    world: Rc<World>,
    origin: usize,
    bell: Rc<Bell>,
    machine: ClientMachine,
    /// No byte of the next response has been parsed yet.
    at_start: bool,
    /// The beginning of a head that is not whole.
    held: Vec<u8>,
    under_way: VecDeque<SentRequest>,
    /// Taken, but not sent on a connection that lived: they go first.
    again: VecDeque<RequestJob>,
    /// Requests to be sent in one go, of which `out_at` bytes have been.
    out: Vec<u8>,
    out_at: usize,
    /// A single request that is sent from the plan, and how much of it has been.
    direct: Option<(u32, usize)>,
    /// Responses on this connection.
    served: u64,
    /// The first connection is being made: it has neither succeeded nor failed.
    dials: bool,
    /// That has begun, whatever came of it.
    dialled: bool,
    /// The time of the latest read or of what else set things going.
    now_ns: u64,
    /// When the first byte of the response at the front came; 0 for not yet.
    first_ns: u64,
    content_bytes: u64,
    hasher: DefaultHasher,
    ended: bool,
}

/// Runs one connection after another until the world is over.
pub(crate) async fn run(world: Rc<World>, origin: usize, delay: Duration) {
    world.core.sleep(delay.as_millis() as u64).await;
    let mut lane = LoadConnection::new(world.clone(), origin);
    let mut back_off_ms = BACK_OFF_MS;
    loop {
        let outcome = lane.live().await;
        let outcome = outcome.map_err(|failure| lane.explained(failure));
        let served = lane.served;
        lane.forget_connection();
        match outcome {
            Ok(true) => return,
            Ok(false) => {}
            Err(failure) => lane.give_up(&failure),
        }
        if served > 0 {
            back_off_ms = BACK_OFF_MS;
        } else if !world.is_over() {
            world.core.sleep(back_off_ms).await;
            back_off_ms = (back_off_ms * 2).min(BACK_OFF_MS_MAX);
        }
    }
}

impl LoadConnection {
    fn new(world: Rc<World>, origin: usize) -> LoadConnection {
        let bell = Rc::new(Bell::new(&world.core));
        LoadConnection {
            world,
            origin,
            bell,
            machine: ClientMachine::default(),
            at_start: true,
            held: Vec::new(),
            under_way: VecDeque::new(),
            again: VecDeque::new(),
            out: Vec::new(),
            out_at: 0,
            direct: None,
            served: 0,
            dials: false,
            dialled: false,
            now_ns: 0,
            first_ns: 0,
            content_bytes: 0,
            hasher: DefaultHasher::new(),
            ended: false,
        }
    }

    /// Runs one connection from connect to close. True if no work is left.
    async fn live(&mut self) -> Result<bool, RequestFailure> {
        let (keep_alive, is_open) = (self.world.plan.keep_alive, self.world.plan.is_open());
        self.served = 0;
        // An open loop connects ahead; all else only when there is something to ask.
        let stays_open = is_open && keep_alive;
        if !stays_open && !self.have_job().await {
            return Ok(true);
        }
        let mut link = self.connect().await?;
        self.now_ns = now_ns();
        loop {
            if self.under_way.is_empty() {
                self.think().await;
                if !self.have_job().await {
                    // It is closed with all the others, when the run has been counted.
                    return std::future::pending().await;
                }
                // Closed while it idled: that is the server's right, and no request was lost.
                if self.served > 0 && !link.is_fresh() {
                    return Ok(false);
                }
            }
            self.fill();
            let sent = self.flush(&mut link)?;
            match self.take_in(&mut link)? {
                ReadResult::Whole if !keep_alive => return Ok(false),
                ReadResult::Whole => {}
                ReadResult::Blocked => {
                    link.stream().ready_for(link.interest(true, !sent), self.deadline_ms()).await?;
                }
                ReadResult::Busy if self.world.core.now_ms() >= self.deadline_ms() => {
                    return Err(Fault::Timeout.into());
                }
                ReadResult::Busy => self.world.core.yield_now().await,
                ReadResult::Ended => return Ok(false),
            }
        }
    }

    async fn connect(&mut self) -> Result<Link, RequestFailure> {
        let world = &self.world;
        self.dials |= !self.dialled;
        self.dialled = true;
        // Thousands of attempts in a row would keep the run from its end: the clock has its turn between them.
        while world.is_behind() {
            world.core.yield_now().await;
        }
        if world.has_ended() {
            return std::future::pending().await;
        }
        let timeout_ms = world.plan.connect_timeout.as_millis() as u64;
        let dialled = dial::link(&world.core, &world.plan.origins[self.origin], timeout_ms).await;
        self.dials = false;
        let (link, spent) = dialled?;
        let mut tally = world.tally.borrow_mut();
        tally.connections += 1;
        tally.connect.record(spent.connect_ns);
        if let Some(tls_ns) = spent.tls_ns {
            tally.tls.record(tls_ns);
        }
        Ok(link)
    }

    async fn think(&mut self) {
        if let Pace::Closed { think } = self.world.plan.pace
            && !think.is_zero()
            && self.served > 0
        {
            self.world.core.sleep(think.as_millis() as u64).await;
            self.now_ns = now_ns();
        }
    }

    /// Makes sure that there is something to ask; false where that will never be.
    async fn have_job(&mut self) -> bool {
        while self.again.is_empty() {
            if self.now_ns == 0 || !self.world.plan.keep_alive {
                self.now_ns = now_ns();
            }
            if let Some(job) = self.world.take(self.origin, self.now_ns) {
                self.again.push_back(job);
            } else if self.world.is_over() {
                return false;
            } else {
                self.world.offer(self.bell.clone());
                self.bell.rung().await;
                self.now_ns = now_ns();
            }
        }
        true
    }

    /// Puts as many requests under way as the pipeline takes.
    fn fill(&mut self) {
        let world = self.world.clone();
        let depth = world.plan.pipeline;
        while self.under_way.len() < depth {
            let taken = self.again.pop_front();
            let Some(mut job) = taken.or_else(|| world.take(self.origin, self.now_ns)) else { return };
            if !world.plan.is_open() && world.plan.keep_alive {
                // The time to connect is a figure of its own.
                job.due_ns = self.now_ns;
            }
            self.under_way.push_back(SentRequest { job, sent_ns: self.now_ns });
            if depth == 1 {
                self.direct = Some((job.request, 0));
            } else {
                self.out.extend_from_slice(&world.plan.requests[job.request as usize].bytes);
            }
        }
    }

    /// Sends what is to be sent; true where all of it has been.
    fn flush(&mut self, link: &mut Link) -> Result<bool, RequestFailure> {
        let before = self.out_at + self.direct.map_or(0, |(_, at)| at);
        let mut after = before;
        let done = loop {
            let (bytes, at) = match &mut self.direct {
                Some((request, at)) => (&self.world.plan.requests[*request as usize].bytes, at),
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
            self.world.tally.borrow_mut().bytes_out += (after - before) as u64;
        }
        if done {
            self.direct = None;
            self.out.clear();
            self.out_at = 0;
        }
        Ok(link.try_flush()? && done)
    }

    /// Until when the response at the front may take.
    fn deadline_ms(&self) -> u64 {
        let sent_ns = self.under_way.front().map_or(self.now_ns, |sent| sent.sent_ns);
        // Rounded up: no response is given up before its time.
        sent_ns.div_ceil(1_000_000) + self.world.plan.timeout.as_millis() as u64
    }

    /// Reads what is there.
    fn take_in(&mut self, link: &mut Link) -> Result<ReadResult, RequestFailure> {
        let world = self.world.clone();
        let mut scratch = world.scratch.borrow_mut();
        let before = self.served;
        for _ in 0..READS_MAX {
            let held = self.held.len();
            let Some(len) = link.try_read(&mut scratch[held..])? else {
                return Ok(if self.served > before { ReadResult::Whole } else { ReadResult::Blocked });
            };
            self.now_ns = now_ns();
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
            if self.served > before {
                return Ok(ReadResult::Whole);
            }
        }
        Ok(ReadResult::Busy)
    }

    /// The server closed its side.
    fn take_end(&mut self) -> Result<ReadResult, RequestFailure> {
        let idle = self.under_way.is_empty() && self.at_start;
        if !idle {
            self.machine.eof().map_err(|reject| {
                let what = match (self.held.is_empty() && self.at_start, self.served) {
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

    /// Takes received bytes in; those of a head that is not whole are held.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut at = 0;
        while at < bytes.len() && !self.ended {
            let Some(front) = self.under_way.front() else {
                return Err(RequestFailure::new(ErrorKind::Malformed, "bytes that no request asked for"));
            };
            let method = self.world.plan.requests[front.job.request as usize].method;
            if self.first_ns == 0 {
                self.first_ns = self.now_ns;
            }
            if self.at_start
                && let Some(len) = self.take_known(&bytes[at..], method)
            {
                at += len;
                continue;
            }
            self.at_start = false;
            let fed = self.machine.feed(&bytes[at..], method, &self.world.limits)?;
            match fed.step {
                Step::NeedMore if fed.consumed == 0 && self.machine.body().is_none() => {
                    self.held.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
                Step::NeedMore | Step::End => {}
                Step::Head => self.take_head(&bytes[at..], method),
                Step::Data(span) => {
                    self.content_bytes += span.len() as u64;
                    if self.world.plan.verify {
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

    /// The whole of a response that begins with the known head; its length.
    fn take_known(&mut self, bytes: &[u8], method: Method) -> Option<usize> {
        let world = self.world.clone();
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

    /// A head is whole: facts and, where it is simple enough, the known head are taken from it.
    fn take_head(&mut self, bytes: &[u8], method: Method) {
        let head = &self.machine.head;
        if head.status.is_informational() {
            return;
        }
        if self.world.shared.facts.get().is_none() {
            let server = head.field(bytes, Name::Server).unwrap_or_default();
            let facts = Facts {
                server: String::from_utf8_lossy(server).into_owned(),
                content_bytes: head.length.unwrap_or(0),
                status: head.status.code(),
            };
            // Another thread may have been first.
            let _ = self.world.shared.facts.set(facts);
        }
        let length = match head.framing {
            Framing::None => 0,
            Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Framing::Chunked | Framing::UntilClose => return,
        };
        if head.keep_alive && self.world.plan.keep_alive && length < SCRATCH_BYTES {
            let mut known = self.world.known.borrow_mut();
            known.bytes.clear();
            known.bytes.extend_from_slice(&bytes[..head.len]);
            (known.method, known.status, known.length) = (method, head.status.code(), length);
        }
    }

    /// The machine has a whole message: a response, or one that only announces it.
    fn take_message(&mut self) {
        let status = self.machine.head.status;
        if status.is_informational() && status != Status::SWITCHING_PROTOCOLS {
            self.machine.next();
            return;
        }
        self.complete();
    }

    /// The response that the machine has read is whole.
    fn complete(&mut self) {
        self.ended |= !self.machine.is_reusable();
        let status = self.machine.head.status.code();
        self.machine.next();
        self.at_start = true;
        self.record(status);
    }

    /// Counts the response at the front.
    fn record(&mut self, status: u16) {
        let Some(SentRequest { job, sent_ns }) = self.under_way.pop_front() else { return };
        let world = &self.world;
        let expected = &world.shared.expected[job.request as usize];
        let hash = if world.plan.verify { std::mem::take(&mut self.hasher).finish() } else { 0 };
        let &(length, content) = expected.get_or_init(|| (self.content_bytes, hash));
        let mut tally = world.tally.borrow_mut();
        tally.latency.record(self.now_ns - job.due_ns);
        tally.first_byte.record(self.first_ns.saturating_sub(sent_ns));
        tally.responses += 1;
        tally.reused += u64::from(self.served > 0);
        tally.content_bytes += self.content_bytes;
        tally.lengths_differ += u64::from(length != self.content_bytes);
        tally.contents_differ += u64::from(content != hash);
        tally.count_status(status);
        drop(tally);
        world.last_ns.set(self.now_ns);
        world.ended();
        self.served += 1;
        self.content_bytes = 0;
        self.first_ns = 0;
    }

    /// The connection has ended: requests without a response are sent again on the next one.
    fn forget_connection(&mut self) {
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
            self.again.push_front(job);
        }
    }

    /// A response that took too long, with what there was of it.
    fn explained(&self, failure: RequestFailure) -> RequestFailure {
        match failure.kind {
            ErrorKind::Timeout if self.content_bytes > 0 => RequestFailure::new(
                ErrorKind::Timeout,
                format!(
                    "the response did not end in time, after {} of content",
                    quantity::bytes(self.content_bytes as f64)
                ),
            ),
            ErrorKind::Timeout => RequestFailure::new(ErrorKind::Timeout, "no response in time"),
            _ => failure,
        }
    }

    /// What was under way has failed.
    fn give_up(&mut self, failure: &RequestFailure) {
        if self.again.is_empty() {
            // An open loop that could not connect ahead.
            self.world.tally.borrow_mut().errors.add(failure.kind, 1, &failure.example);
        }
        let now_ns = now_ns();
        for job in self.again.drain(..) {
            self.world.fail(job, failure.kind, &failure.example, now_ns);
        }
    }
}

impl Drop for LoadConnection {
    fn drop(&mut self) {
        if self.dials && self.world.plan.requests_max.is_none() {
            self.world.tally.borrow_mut().errors.add(
                ErrorKind::Connect,
                1,
                "no connection before the run ended",
            );
        }
        let now_ns = now_ns();
        let sent = self.under_way.drain(..).map(|sent| sent.job);
        for job in sent.chain(self.again.drain(..)) {
            // A closed loop's last requests are cut off by the end, not by the server.
            match self.world.plan.is_open() {
                true => self.world.fail(job, ErrorKind::Unanswered, "the run ended first", now_ns),
                false => self.world.ended(),
            }
        }
    }
}
