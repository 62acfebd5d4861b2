//! A response being received into the cache: one writer, paced by the origin, and any number of readers on
//! any core.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::{Fields, Status};

use crate::freshness::Freshness;
use crate::held::HeldBytes;
use crate::not_stored::NotStored;
use crate::object::{Object, StoredBody};
use crate::vary::RequestVariant;

/// Size of the pieces in which content is kept.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum bytes that a response that is not stored is read ahead of its fastest reader.
const WINDOW_BYTES: u64 = 128 * 1024;
/// Maximum lag of a reader of such a response, in objects of the maximum size.
const LAG_OBJECTS_MAX: u64 = 2;
/// Minimum of this limit, in bytes, for small object sizes.
const LAG_BYTES_MAX: u64 = 4 << 20;
/// Maximum interim responses kept for waiting readers; further ones are dropped.
const INTERIMS_MAX: usize = 8;
/// Maximum bytes of the fields of kept interim responses.
const INTERIM_BYTES_MAX: usize = 16 * 1024;
/// Maximum fills without clients; further ones are cancelled.
const CLIENTLESS_MAX: usize = 64;

/// Head of a response that is being received.
#[derive(Debug)]
pub struct FillResponse {
    /// The status.
    pub status: Status,
    /// The fields as the origin sent them.
    pub fields: Fields,
    /// Length of the content in bytes, if announced.
    pub length: Option<u64>,
    /// The requests that the response answers, and its freshness; or the reason for not storing it.
    pub outcome: Result<(RequestVariant, Freshness), NotStored>,
    /// Whether the response is fresh, so that waiting requests may use it.
    pub is_shared: bool,
}

/// An interim response (1xx), which precedes the head and is never stored.
#[derive(Debug)]
pub struct InterimResponse {
    /// The status.
    pub status: Status,
    /// The fields.
    pub fields: Fields,
}

/// Reason for which a stored response is used after asking the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validated {
    /// The origin responded 304.
    NotModified,
    /// The origin responded with this error status; the stored response is stale.
    Error(Status),
    /// The origin did not respond; the stored response is stale.
    Unreachable,
}

/// First result that readers wait for.
#[derive(Clone, Debug)]
pub enum FillHead {
    /// A response, whose content follows.
    Response(Arc<FillResponse>),
    /// A stored response.
    Stored(Arc<Object>, Validated),
    /// The response is only for the request that fetched it: each other request goes to the origin.
    NotShared,
    /// No response was received.
    Failed,
}

/// How a fill has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillEnd {
    /// The response was received completely.
    Complete,
    /// The response ended early.
    Failed,
}

#[derive(Debug, Default)]
struct FillState {
    interims: Vec<Arc<InterimResponse>>,
    /// Whether interim responses are also for waiting readers, not only for the leader.
    shares_interims: bool,
    /// Head for the leader: the request that fetches the response.
    head: Option<FillHead>,
    /// Head for the waiting readers, if it differs from the leader's.
    shared_head: Option<FillHead>,
    /// Full pieces, and the offset of the first of them.
    pieces: VecDeque<Arc<[u8]>>,
    pieces_at: u64,
    tail: Vec<u8>,
    len: u64,
    trailers: Fields,
    /// `None` until the fill has ended.
    end: Option<FillEnd>,
    /// Whether all bytes are kept, to be stored.
    is_kept: bool,
    /// Whether the fill counts as one without clients.
    is_clientless: bool,
    /// Whether the fill was started without a client.
    is_background: bool,
    readers: Vec<ReaderSlot>,
    next_id: u64,
    writer: Option<Waker>,
    /// Object that owns the pieces and accounts for their memory.
    object: Option<Arc<Object>>,
    /// Bytes charged to this fill alone, without an object.
    held: Option<HeldBytes>,
}

#[derive(Debug)]
struct ReaderSlot {
    id: u64,
    at: u64,
    /// Number of interim responses delivered.
    interims_delivered: usize,
    waker: Option<Waker>,
}

/// A response being received. Requests for the same key share it.
#[derive(Debug)]
pub struct Fill {
    /// Key under which the response will be stored.
    pub(crate) key: Arc<[u8]>,
    /// Key by which other requests find the fill; `None` if it is not shared.
    pub(crate) shared_key: Option<Arc<[u8]>>,
    /// Number of the last purge before the fill began.
    pub(crate) purges_before: u64,
    object_bytes_max: u64,
    state: Mutex<FillState>,
    counts: Arc<FillCounts>,
}

/// Numbers of fills in progress.
#[derive(Debug, Default)]
pub(crate) struct FillCounts {
    /// All fills.
    pub(crate) all: AtomicUsize,
    /// Fills without clients.
    clientless: AtomicUsize,
}

/// A reader of a fill. Dropping it releases content that was kept for it.
#[derive(Debug)]
pub struct FillReader {
    fill: Arc<Fill>,
    id: u64,
    is_leader: bool,
}

/// Error: the response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteResponse;

impl FillState {
    fn wake_readers(&mut self) {
        for reader in &mut self.readers {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }

    /// Returns the position of the slowest reader.
    fn slowest(&self) -> u64 {
        self.readers.iter().map(|reader| reader.at).min().unwrap_or(self.len)
    }

    /// Releases the content that all readers have read.
    fn release_read(&mut self) {
        if self.is_kept {
            return;
        }
        let slowest = self.slowest();
        while let Some(piece) = self.pieces.front() {
            let end = self.pieces_at + piece.len() as u64;
            if end > slowest {
                return;
            }
            self.pieces_at = end;
            self.pieces.pop_front();
        }
        let tail_at = self.len - self.tail.len() as u64;
        if slowest == self.len && tail_at < self.len {
            self.tail.clear();
            self.pieces_at = self.len;
        }
    }

    fn cut_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.tail).into());
        }
    }

    /// Returns the available bytes from `at` on.
    fn piece(&self, at: u64) -> Option<Arc<[u8]>> {
        let mut start = self.pieces_at;
        for piece in &self.pieces {
            let end = start + piece.len() as u64;
            if at < end {
                let from = (at - start) as usize;
                return Some(if from == 0 { piece.clone() } else { piece[from..].into() });
            }
            start = end;
        }
        let from = (at - start) as usize;
        self.tail.get(from..).filter(|rest| !rest.is_empty()).map(Into::into)
    }

    /// Returns the bytes beyond the window of the fastest reader; slower readers do not delay the writer.
    fn backlog(&self) -> u64 {
        let fastest = self.readers.iter().map(|reader| reader.at).max().unwrap_or(self.len);
        if self.is_kept { 0 } else { (self.len - fastest).saturating_sub(WINDOW_BYTES) }
    }

    /// Drops readers that lag too far behind a faster one, to bound the memory kept for them.
    fn drop_slow_readers(&mut self, lag_bytes_max: u64) {
        let from = self.len.saturating_sub(lag_bytes_max);
        if self.is_kept || self.slowest() >= from {
            return;
        }
        let fastest = self.readers.iter().map(|reader| reader.at).max().unwrap_or(self.len);
        let is_slow = |reader: &ReaderSlot| reader.at < from && reader.at < fastest;
        let (slow, others): (Vec<ReaderSlot>, Vec<ReaderSlot>) =
            std::mem::take(&mut self.readers).into_iter().partition(is_slow);
        self.readers = others;
        slow.into_iter().filter_map(|reader| reader.waker).for_each(Waker::wake);
    }
}

impl Fill {
    /// Creates a fill and its first reader, the leader.
    pub(crate) fn new(
        key: Arc<[u8]>,
        shared_key: Option<Arc<[u8]>>,
        began_after: u64,
        object_bytes_max: u64,
        counts: &Arc<FillCounts>,
    ) -> (Arc<Fill>, FillReader) {
        counts.all.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(FillState { is_kept: true, ..FillState::default() });
        let counts = counts.clone();
        let fill =
            Arc::new(Fill { key, shared_key, purges_before: began_after, object_bytes_max, state, counts });
        let reader = fill.reader(&mut fill.state(), true);
        (fill, reader)
    }

    fn state(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(self: &Arc<Fill>, state: &mut FillState, leads: bool) -> FillReader {
        let id = state.next_id;
        state.next_id += 1;
        state.readers.push(ReaderSlot { id, at: 0, interims_delivered: 0, waker: None });
        FillReader { fill: self.clone(), id, is_leader: leads }
    }

    /// Adds a reader; `None` if the fill can no longer be joined.
    pub(crate) fn join(self: &Arc<Fill>) -> Option<FillReader> {
        let mut state = self.state();
        let is_lost = matches!(state.head, Some(FillHead::NotShared | FillHead::Failed));
        let is_open = state.is_kept && state.end.is_none() && !is_lost;
        is_open.then(|| {
            if std::mem::take(&mut state.is_clientless) {
                self.counts.clientless.fetch_sub(1, Ordering::Relaxed);
            }
            self.reader(&mut state, false)
        })
    }

    /// Records an interim response. `is_shared`: waiting readers get it too.
    pub fn add_interim(&self, interim: InterimResponse, is_shared: bool) {
        let mut state = self.state();
        let held: usize = state.interims.iter().map(|interim| interim.fields.as_bytes().len()).sum();
        let fits = held + interim.fields.as_bytes().len() <= INTERIM_BYTES_MAX;
        if fits && state.interims.len() < INTERIMS_MAX && state.head.is_none() {
            state.shares_interims = is_shared;
            state.interims.push(Arc::new(interim));
            state.wake_readers();
        }
    }

    /// Records the response head.
    pub fn respond(&self, response: FillResponse) {
        let mut state = self.state();
        state.is_kept = response.outcome.is_ok();
        if response.length.is_some_and(|length| length > self.object_bytes_max) {
            state.is_kept = false;
        }
        if let Some(length) = response.length.filter(|_| state.is_kept) {
            state.tail.reserve_exact((length as usize).min(PIECE_BYTES));
        }
        state.shared_head = (!response.is_shared).then_some(FillHead::NotShared);
        state.head = Some(FillHead::Response(Arc::new(response)));
        state.wake_readers();
    }

    /// Answers with a stored response: `leader_object` for the leader, with fields that may be for its client only,
    /// and `shared_object` for waiting readers; `None` makes them go to the origin.
    pub fn serve_stored(
        &self,
        leader_object: Arc<Object>,
        shared_object: Option<Arc<Object>>,
        validated: Validated,
    ) {
        let mut state = self.state();
        state.shared_head =
            Some(shared_object.map_or(FillHead::NotShared, |object| FillHead::Stored(object, validated)));
        state.head = Some(FillHead::Stored(leader_object, validated));
        state.end = Some(FillEnd::Complete);
        state.wake_readers();
    }

    /// Whether the head has been determined.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.state().head.is_some()
    }

    /// Appends content.
    pub fn write(&self, mut bytes: &[u8]) {
        let mut state = self.state();
        while !bytes.is_empty() {
            let room = PIECE_BYTES.saturating_sub(state.tail.len());
            let (piece, rest) = bytes.split_at(bytes.len().min(room));
            state.tail.extend_from_slice(piece);
            state.len += piece.len() as u64;
            if state.tail.len() >= PIECE_BYTES {
                state.cut_tail();
            }
            bytes = rest;
        }
        if state.is_kept && state.len > self.object_bytes_max {
            state.is_kept = false;
        }
        state.drop_slow_readers(self.object_bytes_max.saturating_mul(LAG_OBJECTS_MAX).max(LAG_BYTES_MAX));
        state.release_read();
        state.wake_readers();
    }

    /// Records the trailer fields. They are only for the leader and never stored, because the decision to
    /// share the response depends on its head alone.
    pub fn end(&self, trailers: Fields) {
        self.state().trailers = trailers;
    }

    /// Returns the content received so far, if all of it is kept.
    #[must_use]
    pub fn body(&self) -> Option<StoredBody> {
        let mut state = self.state();
        state.cut_tail();
        state.is_kept.then(|| StoredBody::new(state.pieces.iter().cloned().collect()))
    }

    /// Hands the pieces over to an object, which accounts for their memory while readers still use them here.
    pub fn set_owner(&self, object: Arc<Object>) {
        self.state().object = Some(object);
    }

    /// Charges the pieces to this fill, which releases the charge when it is dropped.
    pub(crate) fn charge(&self, held: HeldBytes) {
        self.state().held = Some(held);
    }

    /// Stops keeping the content for storage; only the content that readers need is kept.
    pub fn stop_keeping(&self) {
        let mut state = self.state();
        state.is_kept = false;
        state.release_read();
    }

    /// Whether the whole content is kept so far, to be stored.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.state().is_kept
    }

    /// Marks the content as complete.
    pub fn finish(&self) {
        let mut state = self.state();
        if state.head.is_none() {
            state.head = Some(FillHead::Failed);
        }
        state.end.get_or_insert(FillEnd::Complete);
        state.wake_readers();
    }

    /// Returns the key under which the response will be stored.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Marks the fill as failed, unless it has already ended.
    pub fn fail(&self) {
        let mut state = self.state();
        if state.head.is_none() {
            state.head = Some(FillHead::Failed);
        }
        state.end.get_or_insert(FillEnd::Failed);
        state.wake_readers();
    }

    /// Returns the bytes beyond the window of the fastest reader; while there are any, the writer waits.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.state().backlog()
    }

    /// Whether the response is not stored and has no readers left.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let state = self.state();
        !state.is_kept && state.readers.is_empty()
    }

    /// Sets the task to wake when there is room again or when the fill is abandoned.
    pub fn set_writer(&self, waker: &Waker) {
        let mut state = self.state();
        if !state.writer.as_ref().is_some_and(|writer| writer.will_wake(waker)) {
            state.writer = Some(waker.clone());
        }
    }

    /// Returns the bytes held by the fill.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let state = self.state();
        let interims: usize = state.interims.iter().map(|interim| interim.fields.as_bytes().len()).sum();
        let fields = interims + state.trailers.as_bytes().len();
        fields + (state.len - state.pieces_at) as usize + state.tail.capacity() - state.tail.len()
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.counts.all.fetch_sub(1, Ordering::Relaxed);
        if self.state().is_clientless {
            self.counts.clientless.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl FillReader {
    /// Drops the reader, but continues the fill for storage without a client.
    pub fn leave_to_background(self) {
        self.fill.state().is_background = true;
    }

    /// Whether this reader's request fetches the response from the origin.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Waits for an interim response that was not delivered yet; `None` once the head is available.
    pub fn poll_interim(&self, cx: &Context<'_>) -> Poll<Option<Arc<InterimResponse>>> {
        let mut state = self.fill.state();
        let is_for_it = self.is_leader || state.shares_interims;
        let at = state.readers.iter().position(|reader| reader.id == self.id);
        if let Some(at) = at.filter(|_| is_for_it)
            && let Some(interim) = state.interims.get(state.readers[at].interims_delivered).cloned()
        {
            state.readers[at].interims_delivered += 1;
            return Poll::Ready(Some(interim));
        }
        if state.head.is_some() {
            return Poll::Ready(None);
        }
        self.wait(&mut state, cx);
        Poll::Pending
    }

    /// Waits for the head.
    pub fn poll_head(&self, cx: &Context<'_>) -> Poll<FillHead> {
        let mut state = self.fill.state();
        match state.shared_head.as_ref().filter(|_| !self.is_leader).or(state.head.as_ref()) {
            Some(head) => Poll::Ready(head.clone()),
            None => {
                self.wait(&mut state, cx);
                Poll::Pending
            }
        }
    }

    /// Waits for content; `None` at the end.
    ///
    /// # Errors
    /// The response is incomplete, or this reader lagged too far behind in a response that is not stored.
    pub fn poll_piece(&self, cx: &Context<'_>) -> Poll<Result<Option<Arc<[u8]>>, IncompleteResponse>> {
        let mut state = self.fill.state();
        let Some(at) = state.readers.iter().find(|reader| reader.id == self.id).map(|reader| reader.at)
        else {
            return Poll::Ready(Err(IncompleteResponse));
        };
        if let Some(piece) = state.piece(at) {
            self.advance(&mut state, at + piece.len() as u64);
            return Poll::Ready(Ok(Some(piece)));
        }
        match state.end {
            Some(FillEnd::Complete) => Poll::Ready(Ok(None)),
            Some(FillEnd::Failed) => Poll::Ready(Err(IncompleteResponse)),
            None => {
                self.wait(&mut state, cx);
                Poll::Pending
            }
        }
    }

    /// Returns the trailer fields, after [`FillReader::poll_piece`] has returned `None`; empty for readers
    /// other than the leader.
    #[must_use]
    pub fn trailers(&self) -> Fields {
        if self.is_leader { self.fill.state().trailers.clone() } else { Fields::new() }
    }

    fn wait(&self, state: &mut FillState, cx: &Context<'_>) {
        if let Some(slot) = state.readers.iter_mut().find(|reader| reader.id == self.id) {
            slot.waker = Some(cx.waker().clone());
        }
    }

    fn advance(&self, state: &mut FillState, to: u64) {
        let waited = state.backlog() > 0;
        if let Some(slot) = state.readers.iter_mut().find(|reader| reader.id == self.id) {
            slot.at = to;
        }
        state.release_read();
        if waited
            && state.backlog() == 0
            && let Some(writer) = &state.writer
        {
            writer.wake_by_ref();
        }
    }
}

impl Drop for FillReader {
    fn drop(&mut self) {
        let mut state = self.fill.state();
        state.readers.retain(|reader| reader.id != self.id);
        let is_under_way = state.is_kept && state.end.is_none();
        if state.readers.is_empty() && is_under_way && !state.is_background {
            // Bounded, because a client could otherwise request many objects and disconnect, and so occupy
            // the origin and the cache's memory.
            state.is_clientless =
                self.fill.counts.clientless.fetch_add(1, Ordering::Relaxed) < CLIENTLESS_MAX;
            if !state.is_clientless {
                self.fill.counts.clientless.fetch_sub(1, Ordering::Relaxed);
                state.is_kept = false;
            }
        }
        state.release_read();
        if !state.is_kept
            && let Some(writer) = &state.writer
        {
            writer.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests;
