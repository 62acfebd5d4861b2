//! Requests that no client waits for: a handler serves them as any other, and whoever asked takes the response.
//!
//! A cache asks so for what many clients wait for, or none: no client's pace or end has a part in it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};

use http::encode::{Lines, Outgoing};
use http::template::OwnValues;
use http::{BodySize, EmptySegments, Fields, Head, Length, Name, RequestIds, Span, Status, Version};

use crate::address::{Client, Peer};
use crate::core::Core;
use crate::fault::Fault;
use crate::file::FileSpan;
use crate::filters::DefaultFields;
use crate::memory::MemoryHeld;
use crate::page::ErrorPages;
use crate::permit::Context;
use crate::source::{GONE, Source, WRITE};
use crate::spill::SpilledOutput;
use crate::state::VerifiedUser;
use crate::tls::TlsSession;
use crate::wait::{self, Interest};

/// Bytes of a file that are read together.
const FILE_BYTES: usize = 64 * 1024;
/// Bytes that a request moves before others get their turn.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// What a request holds beside its buffers: its future above all.
const REQUEST_BYTES: usize = 4 * 1024;

/// What takes the response to a detached request. It is asked on the request's core; whoever reads may be on another.
pub trait ResponseSink {
    /// An interim response (1xx, but not 101), before the head.
    fn inform(&self, status: Status, fields: Fields);
    /// The head. `is_own_error` says that this server answers an error itself.
    fn begin(&self, status: Status, fields: Fields, length: Length, is_own_error: bool);
    /// The response will be a file that the one in its place has named, before its head.
    fn note_named_file(&self) {}
    /// The response must not be stored, called before its head.
    fn forbid_storing(&self) {}
    /// Content.
    fn write(&self, bytes: &[u8]);
    /// The trailer fields, after the content; not called where there are none.
    fn end(&self, trailers: Fields);
    /// Bytes beyond what it wants to hold: while there are some, the request waits.
    fn backlog(&self) -> usize;
    /// Bytes that it holds in memory.
    fn held_bytes(&self) -> usize;
    /// Whether nobody wants the response any more.
    fn is_abandoned(&self) -> bool;
    /// Sets the task to wake once there is room, or nobody wants the response any more. Called at each poll of the request.
    fn set_waker(&self, waker: &Waker);
}

/// A request without its client, made by [`crate::Exchange::detach`]. It has no body.
pub struct DetachedRequest {
    pub(crate) head: Head,
    pub(crate) bytes: Vec<u8>,
    pub(crate) peer: Peer,
    pub(crate) client: Client,
    pub(crate) tls: Option<Rc<TlsSession>>,
    pub(crate) empty_segments: EmptySegments,
    pub(crate) passes_as_sent: bool,
    pub(crate) ids: RequestIds,
    pub(crate) user: Option<Rc<VerifiedUser>>,
    pub(crate) own_values: Option<Rc<dyn OwnValues>>,
    pub(crate) pages: Option<Rc<dyn ErrorPages>>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    pub(crate) context: Rc<Context>,
}

impl DetachedRequest {
    /// The head, and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&Head, &[u8]) {
        (&self.head, &self.bytes)
    }

    /// The core that will run it.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.context.core
    }

    /// Removes fields, but none that this server has set itself.
    pub fn retain(&mut self, keeps: impl Fn(Name, &[u8]) -> bool) {
        let (bytes, own_at) = (&self.bytes, self.head.own_at);
        let is_own = |name: Span| own_at != 0 && name.start() >= own_at;
        self.head.fields.retain(|field| is_own(field.name) || keeps(field.id, field.name.of(bytes)));
    }

    /// Replaces the query, and with it the target as sent; `None` for a target without one.
    ///
    /// # Panics
    /// Where the query is not valid in a target. What is left of a request's own is.
    pub fn set_query(&mut self, query: Option<&[u8]>) {
        let path = self.head.target.path(&self.bytes).to_vec();
        let target = match query {
            Some(query) => [&path, &b"?"[..], query].concat(),
            None => path.clone(),
        };
        assert!(path.starts_with(b"/") && http::scan::target(&target) == target.len(), "a target's query");
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&target);
        let (path_end, end) = (at + path.len(), self.bytes.len());
        self.head.target = http::Target {
            whole: Span::new(at, end),
            path: Span::new(at, path_end),
            query: query.map(|_| Span::new(path_end + 1, end)),
            ..http::Target::default()
        };
    }

    /// Adds a field. A value that is not valid in one is left out.
    pub fn add(&mut self, id: Name, value: &[u8]) {
        let value = http::scan::trim(value);
        if http::scan::value(value) != value.len() {
            return;
        }
        let name_at = self.bytes.len();
        self.bytes.extend_from_slice(id.text().as_bytes());
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let name = Span::new(name_at, value_at);
        self.head.fields.push(http::Field { id, name, value: Span::new(value_at, self.bytes.len()) });
    }
}

/// The head of a client's request and the bytes of it, without its body and what belongs to its connection.
pub(crate) fn copied((head, bytes): (&Head, &[u8])) -> (Head, Vec<u8>) {
    let spans = head.fields.iter().flat_map(|field| [field.name, field.value]);
    let lines = [head.method_name, head.target.whole, head.sent_target, head.authority];
    let end = spans.chain(lines).map(Span::end).max();
    let bytes = bytes[..end.unwrap_or(0)].to_vec();
    let mut head = head.clone();
    head.body = BodySize::None;
    head.expects_continue = false;
    head.fields.retain(|field| !matches!(field.id, Name::Upgrade | Name::ContentLength | Name::Expect));
    (head, bytes)
}

/// The lane of a detached request.
pub(crate) struct DetachedLane {
    pub(crate) request: DetachedRequest,
    source: Rc<Source>,
    pub(crate) sink: Rc<dyn ResponseSink>,
    /// Never any: the sink decides how much is held.
    pub(crate) overflow: SpilledOutput,
    /// The response that begins next is an error of this server.
    pub(crate) is_own_error: Cell<bool>,
    held: MemoryHeld,
    handler_bytes: usize,
    moved_bytes: usize,
}

impl DetachedLane {
    pub(crate) fn new(request: DetachedRequest, sink: Rc<dyn ResponseSink>) -> DetachedLane {
        let core = &request.context.core;
        let (source, held) = (core.add_source(), core.memory().hold(REQUEST_BYTES + request.bytes.len()));
        let overflow = SpilledOutput::default();
        let is_own_error = Cell::new(false);
        DetachedLane { request, source, sink, overflow, is_own_error, held, handler_bytes: 0, moved_bytes: 0 }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn source_rc(&self) -> Rc<Source> {
        self.source.clone()
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        self.handler_bytes = bytes;
        self.weigh();
    }

    fn weigh(&mut self) {
        let own = REQUEST_BYTES + self.request.bytes.len();
        self.held.set(own + self.handler_bytes + self.sink.held_bytes());
    }

    pub(crate) fn count_moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
    }

    pub(crate) async fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.request.context.core.yield_now().await;
        }
    }

    /// Passes on an interim response.
    pub(crate) fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        let mut block = Vec::new();
        lines(&mut Lines::new(&mut block));
        self.sink.inform(status, crate::filters::fields_of(&block));
        self.weigh();
    }

    /// Passes on the head. Returns how much body follows.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        _: DefaultFields,
        lines: impl FnOnce(&mut Lines<'_>),
    ) -> BodySize {
        let mut block = Vec::new();
        lines(&mut Lines::new(&mut block));
        let outgoing = Outgoing::decide(self.request.head.method, Version::Http2, status, length, true);
        let fields = crate::filters::fields_of(&block);
        self.sink.begin(status, fields, length, self.is_own_error.take());
        outgoing.framing.size()
    }

    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.sink.is_abandoned() {
            return Err(Fault::Gone);
        }
        self.sink.write(bytes);
        self.weigh();
        Ok(())
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.room().await?;
        self.offer(bytes)?;
        self.moved(bytes.len()).await;
        Ok(())
    }

    pub(crate) fn finish(&mut self, trailers: &Fields) {
        if !trailers.is_empty() {
            self.sink.end(trailers.clone());
            self.weigh();
        }
    }

    pub(crate) async fn send_file(&mut self, mut span: FileSpan<'_>, sent: &mut u64) -> Result<(), Fault> {
        let core = self.request.context.core.clone();
        while let Some(bytes) = span.next(&core, FILE_BYTES).await? {
            self.send(&bytes).await?;
            *sent += bytes.len() as u64;
        }
        Ok(())
    }

    /// Whether the sink has room. If not, the source is writable again once it has.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.sink.is_abandoned() {
            return Err(Fault::Gone);
        }
        let has_room = self.sink.backlog() == 0;
        if !has_room {
            self.source.clear(WRITE);
        }
        Ok(has_room)
    }

    /// Waits for room.
    pub(crate) async fn room(&mut self) -> Result<(), Fault> {
        while !self.try_flush()? {
            let core = self.request.context.core.clone();
            let until_ms = core.now_ms().saturating_add(self.request.write_ms);
            wait::ready(&core, &self.source, Interest(WRITE | GONE), until_ms).await?;
        }
        Ok(())
    }
}

impl Drop for DetachedLane {
    fn drop(&mut self) {
        self.request.context.core.deregister(&self.source);
    }
}

/// Runs what serves a detached request, and brings it the news of its sink at each poll.
pub(crate) async fn attended(
    source: &Source,
    sink: &Rc<dyn ResponseSink>,
    serving: impl Future<Output = Result<(), Fault>>,
) -> Result<(), Fault> {
    let mut serving: Pin<&mut _> = pin!(serving);
    poll_fn(|context| {
        sink.set_waker(context.waker());
        let mut ready = source.ready.get();
        if sink.backlog() == 0 {
            ready |= WRITE;
        }
        if sink.is_abandoned() {
            ready |= GONE;
        }
        source.ready.set(ready);
        match serving.as_mut().poll(context) {
            Poll::Pending if sink.is_abandoned() => Poll::Ready(Err(Fault::Gone)),
            polled => polled,
        }
    })
    .await
}
