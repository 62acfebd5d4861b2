//! HTTP/2: concurrent requests on a connection, each on its own stream.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use http::{Limits, Name};
use http2::{ErrorCode, Event, Machine, NoStream, Options, RequestLine};
use net::{Fault, Link};

use crate::failure::RequestFailure;
use crate::jobs::{Connection, ConnectionJobs, WholeResponse};
use crate::moment::now_ns;
use crate::tally::ErrorKind;
use crate::world::{RequestJob, World};

/// Maximum consecutive reads before other connections get their turn.
const READS_MAX: usize = 16;
/// Maximum bytes of content that are buffered for sending.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// Flow-control window of streams and connections: received content is consumed at once.
const WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Request in progress and the received part of its response.
struct RequestUnderWay {
    stream: u32,
    job: RequestJob,
    sent_ns: u64,
    /// Bytes of the request content that have been sent.
    sent_bytes: usize,
    /// Time of the first byte of the response; 0 if none has arrived.
    first_ns: u64,
    status: u16,
    content_bytes: u64,
    hasher: Option<Box<DefaultHasher>>,
}

/// Result of reading.
enum StreamReads {
    /// Bytes were read.
    Some,
    /// No bytes are available.
    Blocked,
    /// More bytes are available, but other connections should get their turn.
    Busy,
    /// The server closed its side of the connection.
    Closed,
}

/// Sequence of HTTP/2 load connections.
pub(crate) struct MultiplexedConnection {
    jobs: ConnectionJobs,
    machine: Machine,
    /// Requests in progress, by ascending stream ID.
    under_way: VecDeque<RequestUnderWay>,
    /// Bytes of an incomplete frame.
    held: Vec<u8>,
    /// Bytes to be sent, of which the first `out_at` bytes have been sent.
    out: Vec<u8>,
    out_at: usize,
    /// Whether the server accepts no further streams.
    leaves: bool,
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
fn named(code: ErrorCode) -> String {
    match code.text() {
        "" => format!("error code {}", code.0),
        name => name.to_string(),
    }
}

impl MultiplexedConnection {
    pub(crate) fn new(world: Rc<World>, origin: usize) -> MultiplexedConnection {
        let machine = Machine::client(options(world.limits));
        MultiplexedConnection {
            jobs: ConnectionJobs::new(world, origin),
            machine,
            under_way: VecDeque::new(),
            held: Vec::new(),
            out: Vec::new(),
            out_at: 0,
            leaves: false,
        }
    }

    /// Opens as many streams as the plan requests and the server allows.
    fn fill(&mut self) -> Result<(), RequestFailure> {
        let depth = self.jobs.world.plan.pipeline;
        while self.under_way.len() < depth && !self.leaves {
            match self.machine.can_request() {
                Ok(()) => {}
                Err(NoStream::Full) => return Ok(()),
                Err(_) => {
                    self.leaves = true;
                    return Ok(());
                }
            }
            let Some(job) = self.jobs.next() else { return Ok(()) };
            let world = self.jobs.world.clone();
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
            self.under_way.push_back(RequestUnderWay {
                stream,
                job,
                sent_ns: self.jobs.now_ns,
                sent_bytes: 0,
                first_ns: 0,
                status: 0,
                content_bytes: 0,
                hasher: world.plan.verify.then(Box::default),
            });
        }
        Ok(())
    }

    /// Sends as much request content as the flow-control windows allow.
    fn send_content(&mut self) {
        let world = self.jobs.world.clone();
        for request in &mut self.under_way {
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
            self.jobs.world.tally.borrow_mut().bytes_out += len as u64;
        }
        let done = self.out_at == self.out.len();
        if done {
            self.out.clear();
            self.out_at = 0;
        }
        Ok(link.try_flush()? && done)
    }

    /// Returns the deadline for the response to the oldest request.
    fn deadline_ms(&self) -> u64 {
        self.jobs.deadline_ms(self.under_way.front().map(|request| request.sent_ns))
    }

    /// Reads the bytes that have arrived.
    fn take_in(&mut self, link: &mut Link) -> Result<StreamReads, RequestFailure> {
        let world = self.jobs.world.clone();
        let mut scratch = world.scratch.borrow_mut();
        for reads in 0..READS_MAX {
            let held = self.held.len();
            let Some(len) = link.try_read(&mut scratch[held..])? else {
                return Ok(if reads == 0 { StreamReads::Blocked } else { StreamReads::Some });
            };
            self.jobs.now_ns = now_ns();
            if len == 0 {
                return Ok(StreamReads::Closed);
            }
            world.tally.borrow_mut().bytes_in += len as u64;
            scratch[..held].copy_from_slice(&self.held);
            self.held.clear();
            self.feed(&scratch[..held + len])?;
        }
        Ok(StreamReads::Busy)
    }

    /// Parses received bytes; bytes of an incomplete frame are kept.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut at = 0;
        if self.jobs.served == 0 && bytes.starts_with(b"HTTP/1.") {
            let what = "the server answers in HTTP/1: it does not accept HTTP/2 with prior knowledge (Komainu: `h2c = true` of a `listen` entry)";
            return Err(RequestFailure::new(ErrorKind::Malformed, what));
        }
        loop {
            let fed = self.machine.feed(&bytes[at..], self.jobs.now_ns / 1_000_000);
            let (consumed, event) =
                fed.map_err(|error| RequestFailure::new(ErrorKind::Malformed, error.reason))?;
            let fed = &bytes[at..];
            at += consumed;
            match event {
                Event::NeedMore => {
                    self.held.extend_from_slice(&bytes[at..]);
                    return Ok(());
                }
                Event::Head { stream, ended } => self.take_head(stream, ended),
                Event::Data { stream, data, ended } => self.take_data(stream, data.of(fed), ended),
                Event::Trailers { stream } => self.complete(stream),
                Event::Reset { stream, code } => match self.remove(stream) {
                    // The server did not process the request, so it can be sent again.
                    Some(request) if code == ErrorCode::REFUSED_STREAM => {
                        self.jobs.again.push_back(request.job);
                    }
                    Some(request) => {
                        self.fail(&request, ErrorKind::Closed, &format!("stream reset: {}", named(code)))
                    }
                    None => {}
                },
                Event::Aborted { stream, reason, .. } => {
                    if let Some(request) = self.remove(stream) {
                        self.fail(&request, ErrorKind::Malformed, reason);
                    }
                }
                Event::GoAway { last_stream, .. } => {
                    self.leaves = true;
                    // Requests on streams above the last stream ID were not processed.
                    while let Some(stream) = self.under_way.back().map(|request| request.stream)
                        && stream > last_stream
                        && let Some(request) = self.remove(stream)
                    {
                        self.jobs.again.push_front(request.job);
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

    fn find(&mut self, stream: u32) -> Option<&mut RequestUnderWay> {
        let at = self.under_way.binary_search_by_key(&stream, |request| request.stream).ok()?;
        self.under_way.get_mut(at)
    }

    /// Removes and returns the request of a stream that has ended.
    fn remove(&mut self, stream: u32) -> Option<RequestUnderWay> {
        self.machine.release(stream);
        let at = self.under_way.binary_search_by_key(&stream, |request| request.stream).ok()?;
        self.under_way.remove(at)
    }

    fn take_head(&mut self, stream: u32, ended: bool) {
        let (status, now_ns) = (self.machine.status, self.jobs.now_ns);
        let Some(request) = self.find(stream) else { return };
        if request.first_ns == 0 {
            request.first_ns = now_ns;
        }
        if status.is_informational() {
            return;
        }
        request.status = status.code();
        if self.jobs.world.shared.facts.get().is_none() {
            let bytes = self.machine.head_bytes();
            let field = |name| self.machine.head.field(bytes, name);
            let server = field(Name::Server).unwrap_or_default();
            let length =
                field(Name::ContentLength).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            self.jobs.world.learn(server, length, status.code());
        }
        if ended {
            self.complete(stream);
        }
    }

    fn take_data(&mut self, stream: u32, content: &[u8], ended: bool) {
        self.machine.grant(stream, content.len());
        let Some(request) = self.find(stream) else { return };
        request.content_bytes += content.len() as u64;
        if let Some(hasher) = &mut request.hasher {
            hasher.write(content);
        }
        if ended {
            self.complete(stream);
        }
    }

    /// Counts the complete response of a stream.
    fn complete(&mut self, stream: u32) {
        let Some(request) = self.remove(stream) else { return };
        self.jobs.record(&WholeResponse {
            job: request.job,
            sent_ns: request.sent_ns,
            first_ns: request.first_ns,
            status: request.status,
            content_bytes: request.content_bytes,
            hash: request.hasher.map_or(0, |hasher| hasher.finish()),
        });
    }

    fn fail(&mut self, request: &RequestUnderWay, kind: ErrorKind, example: &str) {
        self.jobs.world.fail(request.job, kind, example, self.jobs.now_ns);
    }
}

impl Connection for MultiplexedConnection {
    fn jobs(&mut self) -> &mut ConnectionJobs {
        &mut self.jobs
    }

    async fn live(&mut self) -> Result<bool, RequestFailure> {
        let keep_alive = self.jobs.world.plan.keep_alive;
        let Some(mut link) = self.jobs.begin().await? else { return Ok(true) };
        if matches!(link, Link::Tls(_)) && !link.has_agreed_to_http2() {
            return Err(RequestFailure::new(ErrorKind::Tls, "the server does not offer HTTP/2 (ALPN h2)"));
        }
        loop {
            if self.under_way.is_empty() {
                let is_done = self.jobs.served > 0 && !keep_alive;
                if is_done || self.leaves || !self.jobs.another(&mut link).await {
                    return Ok(false);
                }
            }
            self.fill()?;
            let sent = self.flush(&mut link)?;
            match self.take_in(&mut link)? {
                StreamReads::Closed if self.under_way.is_empty() => return Ok(false),
                StreamReads::Closed => {
                    let what = match self.jobs.served {
                        0 => "connection closed without a response",
                        _ => "connection closed with requests under way",
                    };
                    return Err(RequestFailure::new(ErrorKind::Closed, what));
                }
                // Reading may have ended streams or opened windows, so try to send again.
                StreamReads::Some => {}
                StreamReads::Blocked => {
                    link.stream().ready_for(link.interest(true, !sent), self.deadline_ms()).await?;
                }
                StreamReads::Busy if self.jobs.world.core.now_ms() >= self.deadline_ms() => {
                    return Err(Fault::Timeout.into());
                }
                StreamReads::Busy => self.jobs.world.core.yield_now().await,
            }
        }
    }

    fn content_bytes(&self) -> u64 {
        self.under_way.front().map_or(0, |request| request.content_bytes)
    }

    fn forget(&mut self) {
        self.machine = Machine::client(options(self.jobs.world.limits));
        self.held.clear();
        self.out.clear();
        self.out_at = 0;
        self.leaves = false;
        while let Some(request) = self.under_way.pop_back() {
            self.jobs.again.push_front(request.job);
        }
    }
}

impl Drop for MultiplexedConnection {
    fn drop(&mut self) {
        self.forget();
    }
}
