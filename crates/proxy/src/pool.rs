//! Idle connections to one server. A core uses its own first, the one used last before the others, so that those not
//! needed grow old and are closed; where it has none, it takes one over from another core before a new one is made.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::{Core, IdleLinks, Link};

use crate::leg::Rested;

/// How long a new connection waits for its first answer before an idle one is closed for it, beside the multiple of what
/// the server usually takes: time enough for a server that is merely busy.
const PATIENCE_MS: u64 = 10;
/// The multiple: a server that answers in 20 ms has 90.
const PATIENCE_FACTOR: u64 = 4;
/// The longest patience.
const PATIENCE_MS_MAX: u64 = 5_000;
/// Idle connections closed for one that waits, each after twice the time: a server that answers none the sooner for that is slow.
const CLOSED_MAX: u32 = 8;
/// A millisecond, as [`Pool::typical`] counts.
const MS: u32 = 64;

/// The idle connections to one server, over all cores and all groups that ask it.
#[derive(Default)]
pub(crate) struct Idle {
    lists: Mutex<Vec<Arc<IdleLinks<Rested>>>>,
    /// How many lists there are.
    count: AtomicUsize,
    /// New connections without an answer, for each of which a connection is to be closed instead of kept.
    starved: Mutex<VecDeque<Arc<AtomicBool>>>,
    starved_count: AtomicUsize,
    /// Milliseconds that the server takes for a response's head, one more than that; 0 where nobody knows yet.
    typical_ms: AtomicU32,
}

/// One core's part of it.
pub(crate) struct Pool {
    core: Core,
    mine: Arc<IdleLinks<Rested>>,
    idle: Arc<Idle>,
    /// What the server usually takes, in [`MS`]; `None` where it has not answered yet.
    typical: Cell<Option<u32>>,
}

impl Idle {
    fn lists(&self) -> MutexGuard<'_, Vec<Arc<IdleLinks<Rested>>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn starved(&self) -> MutexGuard<'_, VecDeque<Arc<AtomicBool>>> {
        self.starved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Idle connections in all lists.
    fn total(&self) -> usize {
        self.lists().iter().map(|list| list.len()).sum()
    }

    /// Whether a connection is to be closed for one that waits, who is told.
    fn closes_for_another(&self) -> bool {
        if self.starved_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut starved = self.starved();
        let first = starved.pop_front();
        self.starved_count.store(starved.len(), Ordering::Relaxed);
        first.is_some_and(|closed| {
            closed.store(true, Ordering::Relaxed);
            true
        })
    }

    /// How long a new connection may wait for its first answer; `None` where nobody knows what the server takes.
    fn patience_ms(&self) -> Option<u64> {
        let typical_ms = self.typical_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some((PATIENCE_MS + PATIENCE_FACTOR * u64::from(typical_ms)).min(PATIENCE_MS_MAX))
    }
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idle").field("connections", &self.total()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A core's part.
    pub(crate) fn new(core: &Core, idle: &Arc<Idle>) -> Pool {
        let mine = Arc::new(IdleLinks::new(core));
        let mut lists = idle.lists();
        lists.push(mine.clone());
        idle.count.store(lists.len(), Ordering::Relaxed);
        drop(lists);
        Pool { core: core.clone(), mine, idle: idle.clone(), typical: Cell::new(None) }
    }

    /// A connection on which nothing has happened since it was put here. `certain` asks the kernel too, for requests
    /// that must not be sent twice: a system call, against the moment between an event and its delivery.
    pub(crate) fn take(&self, certain: bool, fits: impl Fn(&Rested) -> bool) -> Option<(Link, Rested)> {
        let now_ms = self.core.now_ms();
        let usable = |list: &IdleLinks<Rested>, certain: bool| {
            loop {
                let (mut link, rested) = list.take(&self.core)?;
                let quiet = !certain || link.stream().is_quiet();
                if quiet && now_ms < rested.until_ms && link.is_fresh() && fits(&rested) {
                    return Some((link, rested));
                }
            }
        };
        // What came by a connection of another core, only the kernel knows.
        usable(&self.mine, certain).or_else(|| self.others().iter().find_map(|list| usable(list, true)))
    }

    /// The lists of other cores and groups that are not empty, the next one first.
    fn others(&self) -> Vec<Arc<IdleLinks<Rested>>> {
        let lists = self.idle.lists();
        let mine = lists.iter().position(|list| Arc::ptr_eq(list, &self.mine)).unwrap_or(0);
        let (before, after) = lists.split_at(mine);
        after.iter().skip(1).chain(before).filter(|list| !list.is_empty()).cloned().collect()
    }

    /// Puts one in; the oldest is closed where there are more than `idle_max` in all.
    pub(crate) fn put(&self, link: Link, rested: Rested, idle_max: usize) {
        if self.idle.closes_for_another() {
            return;
        }
        self.mine.put(link, rested);
        if self.is_above(idle_max) {
            self.mine.close_oldest();
        }
    }

    /// Whether there are too many, and this core has more than its share of them. Others are asked only by who has.
    fn is_above(&self, idle_max: usize) -> bool {
        self.mine.len() > idle_max / self.idle.count.load(Ordering::Relaxed).max(1)
            && self.idle.total() > idle_max
    }

    /// Closes those that are of no more use.
    pub(crate) fn sweep(&self, idle_max: usize, fits: impl Fn(&Rested) -> bool) {
        let now_ms = self.core.now_ms();
        self.mine.sweep(&self.core, |rested| now_ms < rested.until_ms && fits(rested));
        while self.is_above(idle_max) && self.mine.close_oldest() {}
    }

    /// Connections of this core that lie here.
    pub(crate) fn len(&self) -> usize {
        self.mine.len()
    }

    /// The server took so long for a response's head. What a new connection waits for may be something else than the
    /// server, so that its time counts only where there is no other.
    pub(crate) fn learn(&self, ms: u64, reused: bool) {
        let sample = u32::try_from(ms.min(PATIENCE_MS_MAX)).unwrap_or(u32::MAX / MS) * MS;
        let typical = match self.typical.get() {
            // Nearer to the slow ones than to the mean.
            Some(typical) if sample > typical => typical + (sample - typical) / 4,
            Some(typical) if reused => typical - (typical - sample) / 64,
            Some(_) => return,
            None => sample,
        };
        self.typical.set(Some(typical));
        // All cores write here: only what is new.
        let typical_ms = typical / MS + 1;
        if self.idle.typical_ms.load(Ordering::Relaxed) != typical_ms {
            self.idle.typical_ms.store(typical_ms, Ordering::Relaxed);
        }
    }

    /// Sees to it that idle connections do not starve one that is being made: a server that gives a process to each
    /// connection accepts it only when another one ends. So one of the idle ones is closed, or the next that would
    /// become idle. To be polled as long as nothing has come by the new one.
    pub(crate) async fn make_room(&self, patience_ms_max: u64) {
        let mut asks = Asks { idle: &self.idle, closed: None };
        let (began_ms, mut closed) = (self.core.now_ms(), 0);
        while closed < CLOSED_MAX {
            let waited_ms = self.core.now_ms() - began_ms;
            let patience_ms = self.idle.patience_ms().map(|ms| ms.min(patience_ms_max) << closed);
            let left_ms = patience_ms.map(|ms| ms.saturating_sub(waited_ms));
            match left_ms {
                Some(0) if asks.heard() || self.close_oldest() => {
                    asks.withdraw();
                    closed += 1;
                }
                Some(0) => {
                    asks.ask();
                    self.core.sleep(waited_ms.clamp(PATIENCE_MS, PATIENCE_MS_MAX)).await;
                }
                Some(left_ms) => self.core.sleep(left_ms).await,
                None => self.core.sleep(waited_ms.clamp(PATIENCE_MS, PATIENCE_MS_MAX)).await,
            }
        }
    }

    /// Closes an idle connection, wherever it lies.
    fn close_oldest(&self) -> bool {
        self.mine.close_oldest() || self.others().iter().any(|list| list.close_oldest())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut lists = self.idle.lists();
        lists.retain(|list| !Arc::ptr_eq(list, &self.mine));
        self.idle.count.store(lists.len(), Ordering::Relaxed);
    }
}

/// What one that waits has asked for: that the next connection which would become idle is closed. Withdrawn when dropped.
struct Asks<'i> {
    idle: &'i Idle,
    closed: Option<Arc<AtomicBool>>,
}

impl Asks<'_> {
    fn ask(&mut self) {
        if self.closed.is_none() {
            let closed = Arc::<AtomicBool>::default();
            self.closed = Some(closed.clone());
            let mut starved = self.idle.starved();
            starved.push_back(closed);
            self.idle.starved_count.store(starved.len(), Ordering::Relaxed);
        }
    }

    /// Whether it was done.
    fn heard(&self) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.load(Ordering::Relaxed))
    }

    fn withdraw(&mut self) {
        if let Some(closed) = self.closed.take() {
            let mut starved = self.idle.starved();
            starved.retain(|other| !Arc::ptr_eq(other, &closed));
            self.idle.starved_count.store(starved.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
