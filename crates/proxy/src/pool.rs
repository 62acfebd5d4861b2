//! Idle connections to one server. A core uses its own connections first, the most recently used one first,
//! so that surplus connections reach their idle timeout. A core without an idle connection takes one from
//! another core before it opens a new one.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::{Core, IdleLinks, Link};
use times::{AtomicMoment, Millis, Moment};

use crate::upstream_connection::IdleConnection;

/// Time for which a new connection waits for its first response before an idle connection is closed for it,
/// in addition to a multiple ([`STARVED_AFTER_FACTOR`]) of the server's usual response time. Sufficient for a
/// server that is merely busy.
const STARVED_AFTER: Millis = Millis(10);
/// Multiple of the usual response time: for a server that answers in 20 ms the wait is 90 ms.
const STARVED_AFTER_FACTOR: u64 = 4;
/// Maximum of the wait that [`STARVED_AFTER`] and [`STARVED_AFTER_FACTOR`] give.
const STARVED_AFTER_MAX: Millis = Millis(5_000);
/// Maximum of the same wait while there are idle connections: one of them may occupy the worker that the new
/// connection needs, however long the server usually takes.
const STARVED_AFTER_IDLE: Millis = Millis(100);
/// Maximum rounds of closing idle connections for one new connection; the wait doubles each round.
const ROUNDS_MAX: u32 = 8;
/// Connections closed for one waiting connection, in addition to one for each that waits before it; halved
/// each round. If the server still does not answer, it is slow rather than short of workers.
const CLOSED_MAX: u64 = 8;
/// Time for which the pool remembers that a server has fewer workers than there are connections.
const WORKER_SHORTAGE_TIME: Millis = Millis(10_000);
/// Consecutive new connections that must wait for a worker before the pool concludes that the server is short
/// of workers. A single one may have waited for another reason.
const WORKER_SHORTAGE_THRESHOLD: u32 = 4;
/// Time after an unaided response on a new connection during which the server does not count as short of
/// workers. A server that accepts one connection per iteration of its event loop has many waiting at first.
const ACCEPTING_TIME: Millis = Millis(250);
/// Units of a millisecond in the representation of [`CorePool::typical`].
const TYPICAL_UNITS_PER_MS: u32 = 64;

/// The idle connections to one server, over all cores and all groups that use it.
#[derive(Default)]
pub(crate) struct SharedPool {
    lists: Mutex<Vec<Arc<CoreList>>>,
    /// Number of lists.
    count: AtomicUsize,
    /// New connections without a response so far. While there are any, connections are closed instead of
    /// kept.
    starved: Mutex<StarvedQueue>,
    starved_count: AtomicUsize,
    /// Consecutive new connections that were answered only after others had been closed.
    helped_in_a_row: AtomicU32,
    /// New connections that have received their first response head.
    admitted: AtomicU64,
    /// Time of the last first response on a new connection for which no other had been closed shortly before.
    admitted_at: AtomicMoment,
    /// Time at which a connection was last closed for a waiting one.
    closed_at: AtomicMoment,
    /// Time until which the server counts as short of workers.
    worker_shortage_until: AtomicMoment,
    /// Usual time to the response head in milliseconds, plus 1; 0 if unknown.
    typical_ms: AtomicU32,
}

/// Idle connections and counts of one core.
struct CoreList {
    links: IdleLinks<IdleConnection>,
    /// Responses on kept connections. Only this core writes it.
    answered: AtomicU64,
    /// Requests under way. Only this core writes it.
    in_use: AtomicU64,
}

/// Progress of a server, which distinguishes a busy server from one that lacks workers.
#[derive(Clone, Copy)]
struct ServerProgress {
    /// New connections answered, minus the connections closed, each of which may have freed a worker. While
    /// this grows, the server accepts new connections without help.
    admitted: i64,
    /// Responses on kept connections.
    answered: u64,
    /// Requests under way.
    in_use: u64,
}

/// The waiting connections, in the order in which the server will accept them.
#[derive(Default)]
struct StarvedQueue {
    queue: VecDeque<QueuedConnection>,
    last: u64,
    /// Connections closed for waiting ones.
    closed: u64,
}

struct QueuedConnection {
    id: u64,
    /// Value of [`Starved::closed`] from which on lack of a worker is no longer the reason for the wait.
    closed_threshold: u64,
}

/// Part of the pool on one core.
pub(crate) struct CorePool {
    core: Core,
    own_list: Arc<CoreList>,
    shared: Arc<SharedPool>,
    /// Usual time to the response head, in units of 1/[`MS`] ms; `None` before the first response.
    typical: Cell<Option<u32>>,
}

impl SharedPool {
    fn lists(&self) -> MutexGuard<'_, Vec<Arc<CoreList>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn starved(&self) -> MutexGuard<'_, StarvedQueue> {
        self.starved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of idle connections in all lists.
    fn total(&self) -> usize {
        self.lists().iter().map(|list| list.links.len()).sum()
    }

    /// Whether to close a connection because others wait for a worker. If true, it is already counted as
    /// closed.
    fn closes_for_others(&self, now: Moment) -> bool {
        if self.starved_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut starved = self.starved();
        let any = !starved.queue.is_empty();
        if any {
            self.count_closed(&mut starved, now);
        }
        any
    }

    fn count_closed(&self, starved: &mut StarvedQueue, now: Moment) {
        starved.closed += 1;
        self.closed_at.store(now, Ordering::Relaxed);
        while starved.queue.front().is_some_and(|first| first.closed_threshold <= starved.closed) {
            starved.queue.pop_front();
        }
        self.starved_count.store(starved.queue.len(), Ordering::Relaxed);
    }

    /// Counts a new connection that has received its first response.
    fn admit(&self, now: Moment) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        if now >= self.closed_at.load(Ordering::Relaxed) + ACCEPTING_TIME {
            self.admitted_at.store(now, Ordering::Relaxed);
        }
    }

    fn progress(&self) -> ServerProgress {
        let closed = self.starved().closed;
        let mut progress = ServerProgress {
            admitted: self.admitted.load(Ordering::Relaxed).cast_signed() - closed.cast_signed(),
            answered: 0,
            in_use: 0,
        };
        for list in self.lists().iter() {
            progress.answered += list.answered.load(Ordering::Relaxed);
            progress.in_use += list.in_use.load(Ordering::Relaxed);
        }
        progress
    }

    /// Whether a connection that has waited since `before` is starved: the server accepts no new connections
    /// without help, and there are idle connections or more responses have arrived on kept ones than there
    /// were requests under way. A server that is merely busy or stalled would have answered the new
    /// connection among those.
    fn is_starving(&self, before: ServerProgress, after: ServerProgress, now: Moment) -> bool {
        after.admitted <= before.admitted
            && now >= self.admitted_at.load(Ordering::Relaxed) + ACCEPTING_TIME
            && (self.total() > 0
                || after.answered.saturating_sub(before.answered) > before.in_use.max(after.in_use))
    }

    /// Returns the time for which a new connection may wait for its first response; `None` while the usual
    /// time is unknown.
    fn starved_after(&self) -> Option<Millis> {
        let typical_ms = self.typical_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some((STARVED_AFTER + Millis(u64::from(typical_ms)) * STARVED_AFTER_FACTOR).min(STARVED_AFTER_MAX))
    }
}

impl std::fmt::Debug for SharedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleEntry").field("connections", &self.total()).finish_non_exhaustive()
    }
}

impl CorePool {
    /// Creates a core's part of the pool.
    pub(crate) fn new(core: &Core, idle: &Arc<SharedPool>) -> CorePool {
        let mine = Arc::new(CoreList {
            links: IdleLinks::new(core),
            answered: AtomicU64::new(0),
            in_use: AtomicU64::new(0),
        });
        let mut lists = idle.lists();
        lists.push(mine.clone());
        idle.count.store(lists.len(), Ordering::Relaxed);
        drop(lists);
        CorePool { core: core.clone(), own_list: mine, shared: idle.clone(), typical: Cell::new(None) }
    }

    /// Takes a connection without events since it was put here. `certain` also asks the kernel, which costs a
    /// system call but covers events that are not delivered yet; for requests that must not be sent twice.
    pub(crate) fn take(
        &self,
        certain: bool,
        fits: impl Fn(&IdleConnection) -> bool,
    ) -> Option<(Link, IdleConnection)> {
        let now = self.core.now();
        let usable = |list: &IdleLinks<IdleConnection>, certain: bool| {
            loop {
                let (mut link, rested) = list.take(&self.core)?;
                let quiet = !certain || link.stream().has_no_input();
                if quiet && now < rested.until && link.is_reusable() && fits(&rested) {
                    return Some((link, rested));
                }
            }
        };
        // Only the kernel knows whether another core's connection has unread bytes.
        usable(&self.own_list.links, certain)
            .or_else(|| self.other_lists().iter().find_map(|list| usable(&list.links, true)))
    }

    /// Returns the non-empty lists of other cores and groups, starting with the next one.
    fn other_lists(&self) -> Vec<Arc<CoreList>> {
        let lists = self.shared.lists();
        let mine = lists.iter().position(|list| Arc::ptr_eq(list, &self.own_list)).unwrap_or(0);
        let (before, after) = lists.split_at(mine);
        after.iter().skip(1).chain(before).filter(|list| !list.links.is_empty()).cloned().collect()
    }

    /// Keeps a connection. Closes the oldest one if there are more than `idle_max` in all.
    pub(crate) fn put(&self, link: Link, rested: IdleConnection, idle_max: usize) {
        if self.shared.closes_for_others(self.core.now()) {
            return;
        }
        self.own_list.links.put(link, rested);
        if self.exceeds_share(idle_max) {
            self.own_list.links.close_oldest();
        }
    }

    /// Whether there are more than `idle_max` in all and this core has more than its share. The other lists
    /// are counted only if this core exceeds its share.
    fn exceeds_share(&self, idle_max: usize) -> bool {
        self.own_list.links.len().saturating_mul(self.shared.count.load(Ordering::Relaxed).max(1)) > idle_max
            && self.shared.total() > idle_max
    }

    /// Closes connections that have expired or that `fits` rejects.
    pub(crate) fn sweep(&self, idle_max: usize, fits: impl Fn(&IdleConnection) -> bool) {
        let now = self.core.now();
        self.own_list.links.sweep(&self.core, |rested| now < rested.until && fits(rested));
        while self.exceeds_share(idle_max) && self.own_list.links.close_oldest() {}
    }

    /// Returns the number of idle connections of this core.
    pub(crate) fn len(&self) -> usize {
        self.own_list.links.len()
    }

    /// Counts a request under way until the result is dropped.
    pub(crate) fn track_request(&self) -> InUse<'_> {
        change(&self.own_list.in_use, 1);
        InUse(&self.own_list)
    }

    /// Records the time to a response head. On a new connection the wait may include time for a worker, so
    /// such a time is used only while no other is known.
    pub(crate) fn record_response_time(&self, length: Millis, reused: bool) {
        if reused {
            change(&self.own_list.answered, 1)
        } else {
            self.shared.admit(self.core.now())
        }
        let sample = u32::try_from(length.min(STARVED_AFTER_MAX).0)
            .unwrap_or(u32::MAX / TYPICAL_UNITS_PER_MS)
            * TYPICAL_UNITS_PER_MS;
        let typical = match self.typical.get() {
            _ if !reused && self.shared.typical_ms.load(Ordering::Relaxed) != 0 => return,
            // Rises fast and falls slowly, so that the estimate is nearer to slow responses than to the mean.
            Some(typical) if sample > typical => typical + (sample - typical) / 4,
            Some(typical) => typical - (typical - sample) / 64,
            None => sample,
        };
        self.typical.set(Some(typical));
        // Shared by all cores, so written only on change.
        let typical_ms = typical / TYPICAL_UNITS_PER_MS + 1;
        if self.shared.typical_ms.load(Ordering::Relaxed) != typical_ms {
            self.shared.typical_ms.store(typical_ms, Ordering::Relaxed);
        }
    }

    /// Prevents idle connections from starving a new one: a server with one process per connection accepts a
    /// new connection only when another ends. Closes an idle connection, and causes connections that finish a
    /// request to be closed instead of kept, until the server answers on the new one. Must be polled until
    /// the new connection receives its first byte.
    pub(crate) async fn make_room(&self, patience_max: Millis) {
        let mut asks = ClosingRequest { pool: self, id: None, closed: 0, starved: false };
        let mut began = self.core.now();
        let since = began;
        let crowded = began < self.shared.worker_shortage_until.load(Ordering::Relaxed);
        if crowded {
            asks.request_closing(CLOSED_MAX);
        }
        let mut round = 0;
        let mut before = self.shared.progress();
        while round < ROUNDS_MAX {
            let waited = self.core.now() - began;
            let idle_max = if self.shared.total() > 0 { STARVED_AFTER_IDLE } else { Millis::MAX };
            let patience_max = patience_max.min(idle_max);
            let patience = self
                .shared
                .starved_after()
                .map(|usual| usual.min(patience_max).max(Millis(1)) * (1 << round));
            match patience.map(|patience| patience - waited) {
                Some(Millis::ZERO) => {
                    let now = self.shared.progress();
                    if !crowded && !self.shared.is_starving(before, now, self.core.now()) {
                        began = self.core.now();
                        before.admitted = now.admitted.max(before.admitted);
                        continue;
                    }
                    // While the server counts as short of workers nothing is kept, so a wait proves nothing.
                    asks.starved = !crowded;
                    asks.request_closing((CLOSED_MAX >> round).max(1));
                    if self.close_oldest() {
                        self.shared.count_closed(&mut self.shared.starved(), self.core.now());
                    }
                    round += 1;
                }
                // Connections may become idle meanwhile. They are checked ever less often, because requests
                // may take minutes.
                Some(left) => {
                    let look = STARVED_AFTER_IDLE.max((self.core.now() - since) / 8);
                    self.core.sleep(left.min(look)).await;
                }
                None => self.core.sleep(waited.clamp(STARVED_AFTER, STARVED_AFTER_MAX)).await,
            }
        }
        // The last request for closing connections remains in effect until this future is dropped.
        std::future::pending().await
    }

    /// Closes an idle connection of any core.
    fn close_oldest(&self) -> bool {
        self.own_list.links.close_oldest() || self.other_lists().iter().any(|list| list.links.close_oldest())
    }
}

impl Drop for CorePool {
    fn drop(&mut self) {
        let mut lists = self.shared.lists();
        lists.retain(|list| !Arc::ptr_eq(list, &self.own_list));
        self.shared.count.store(lists.len(), Ordering::Relaxed);
    }
}

/// A request under way.
pub(crate) struct InUse<'p>(&'p CoreList);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        change(&self.0.in_use, -1);
    }
}

/// Changes a count that only one core writes, so that no atomic read-modify-write is needed.
fn change(count: &AtomicU64, by: i64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

/// A waiting connection's request to close other connections instead of keeping them. Withdrawn on drop.
struct ClosingRequest<'p> {
    pool: &'p CorePool,
    id: Option<u64>,
    /// Value of [`Starved::closed`] when the request was made.
    closed: u64,
    /// Whether the connection has waited longer than the server usually takes.
    starved: bool,
}

impl ClosingRequest<'_> {
    /// Requests one closed connection for each connection that waits before this one, plus `more`.
    fn request_closing(&mut self, more: u64) {
        let idle = &self.pool.shared;
        let mut starved = idle.starved();
        if self.id.is_some_and(|id| starved.position(id).is_ok()) {
            return;
        }
        starved.last += 1;
        (self.id, self.closed) = (Some(starved.last), starved.closed);
        let until_closed = starved.closed + starved.queue.len() as u64 + more;
        let id = starved.last;
        starved.queue.push_back(QueuedConnection { id, closed_threshold: until_closed });
        idle.starved_count.store(starved.queue.len(), Ordering::Relaxed);
    }
}

impl Drop for ClosingRequest<'_> {
    fn drop(&mut self) {
        let idle = &self.pool.shared;
        if !self.starved && idle.helped_in_a_row.load(Ordering::Relaxed) > 0 {
            idle.helped_in_a_row.store(0, Ordering::Relaxed);
        }
        let Some(id) = self.id else { return };
        let mut starved = idle.starved();
        let Ok(place) = starved.position(id) else { return };
        starved.queue.remove(place);
        idle.starved_count.store(starved.queue.len(), Ordering::Relaxed);
        let helped = self.starved && starved.closed > self.closed;
        if helped && idle.helped_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= WORKER_SHORTAGE_THRESHOLD {
            idle.worker_shortage_until.store(self.pool.core.now() + WORKER_SHORTAGE_TIME, Ordering::Relaxed);
        }
    }
}

impl StarvedQueue {
    /// Returns the position of a connection in the queue. Ids ascend.
    fn position(&self, id: u64) -> Result<usize, usize> {
        self.queue.binary_search_by_key(&id, |wait| wait.id)
    }
}
