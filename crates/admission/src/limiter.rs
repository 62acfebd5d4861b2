//! A rate limit: its quota, the table of its keys, and delayed requests.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::quota::{Decision, Quota};
use crate::table::{KeyTable, TableAccount};
use crate::unreported::{LimitKey, Unreported, UnreportedKeys};
use aws_lc_rs::digest::Context;

/// Maximum servers assumed to share a limit; each can spend a key's whole quota before it learns of the
/// others.
const SERVERS_MAX: u64 = 64;

/// Options of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterOptions {
    /// Allowed rate and burst of a key.
    pub quota: Quota,
    /// Maximum delay of a request; zero refuses immediately.
    pub delay_max: Duration,
    /// Maximum delayed requests at a time, over all cores; more are refused.
    pub delayed_max: u32,
    /// Approximate number of keys that are stored.
    pub keys_max: usize,
}

impl LimiterOptions {
    fn delay_ns_max(&self) -> u64 {
        times::nanos(self.delay_max)
    }
}

/// Counters of a limit since its creation.
#[derive(Debug, Default)]
pub struct LimitCounters {
    /// Refused requests, including those that a dry run would have refused.
    pub refused: AtomicU64,
    /// Delayed requests.
    pub delayed: AtomicU64,
    /// Keys evicted for lack of room before their buckets were full; each is treated as new.
    pub evicted: AtomicU64,
}

/// A rate limit, shared by all cores.
#[derive(Debug)]
pub struct Limiter {
    options: LimiterOptions,
    table: KeyTable,
    secret: RandomState,
    delayed: AtomicU32,
    /// Spending not yet reported to the servers that share the limit.
    unreported: Option<UnreportedKeys>,
    /// Slots given back while later slots of the same key are in use: the key, and its state after the slot.
    /// At most `delayed_max` entries. Locked within a change of the table.
    returned_slots: Mutex<BTreeSet<(u64, u64)>>,
    /// Counters of the limit.
    pub counters: LimitCounters,
}

/// Hasher that makes the key of a request from its parts. A secret seed prevents the construction of
/// colliding keys.
pub struct KeyHasher {
    local: std::hash::DefaultHasher,
    /// Digest of the key's name in all servers, if the limit is shared.
    name: Option<Box<Context>>,
}

/// Decision about a request.
#[derive(Debug)]
pub enum LimitVerdict {
    /// The request may be served now.
    Pass {
        /// Time at which the key's bucket is full again; an argument of [`Limiter::remaining`].
        full_at_ns: u64,
    },
    /// The request may be served after a delay.
    Delay {
        /// Delay in nanoseconds.
        wait_ns: u64,
        /// Place of the delayed request.
        permit: DelayPermit,
    },
    /// The request is refused.
    Refuse {
        /// Time after which it would be admitted, in nanoseconds.
        retry_ns: u64,
    },
}

/// A delayed request and its time slot. Dropping it, because the client has left, releases the place and
/// gives the slot back to the key. [`DelayPermit::use_slot`] uses the slot.
#[derive(Debug)]
pub struct DelayPermit {
    limiter: Arc<Limiter>,
    key: LimitKey,
    /// State of the key after the slot.
    full_at_ns: u64,
    since_ns: u64,
    is_taken: bool,
}

impl KeyHasher {
    /// Creates a key hasher from a secretly seeded hasher.
    pub(crate) fn of(hasher: std::hash::DefaultHasher) -> KeyHasher {
        KeyHasher { local: hasher, name: None }
    }

    /// Adds a part with its length, so that `ab`, `c` and `a`, `bc` differ.
    pub fn add(&mut self, part: &[u8]) {
        self.local.write_usize(part.len());
        self.local.write(part);
        if let Some(name) = &mut self.name {
            name.update(&(part.len() as u64).to_be_bytes());
            name.update(part);
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.local.finish()
    }

    /// Returns the key with its name in all servers.
    #[must_use]
    pub fn limit_key(self) -> LimitKey {
        let mut key = LimitKey::from(self.local.finish());
        if let Some(name) = self.name {
            key.name.copy_from_slice(&name.finish().as_ref()[..16]);
        }
        key
    }
}

impl Limiter {
    /// Creates an unused limit. `account` is called with the memory of the table.
    #[must_use]
    pub fn new(options: LimiterOptions, account: TableAccount) -> Limiter {
        Limiter {
            options,
            table: KeyTable::new(options.keys_max, account),
            secret: RandomState::new(),
            delayed: AtomicU32::new(0),
            unreported: None,
            returned_slots: Mutex::default(),
            counters: LimitCounters::default(),
        }
    }

    /// Creates a limit that several servers share. `scope` identifies the limit and must be equal on all of
    /// them.
    #[must_use]
    pub fn new_shared(options: LimiterOptions, account: TableAccount, scope: &[u8]) -> Limiter {
        let unreported = Some(UnreportedKeys::new(scope, options.keys_max, account.clone()));
        Limiter { unreported, ..Limiter::new(options, account) }
    }

    /// Takes the spending of this server since the last call, for the servers that share the limit.
    #[must_use]
    pub fn take_unreported(&self) -> Vec<Unreported> {
        self.unreported.as_ref().map(UnreportedKeys::take).unwrap_or_default()
    }

    /// Sets the state of a key from the total spending of all servers: at `now_ns` its bucket is full in
    /// `ahead_ns`. Limited to the amount that [`SERVERS_MAX`] servers could have spent at once.
    pub fn set_total(&self, key: u64, now_ns: u64, ahead_ns: u64) {
        let Some(unreported) = &self.unreported else { return };
        let of_one_ns = self.options.quota.window_ns().saturating_add(self.options.delay_ns_max());
        let ahead_ns = ahead_ns.min(of_one_ns.saturating_mul(SERVERS_MAX));
        self.table.update(key, now_ns, |_| {
            (now_ns.saturating_add(ahead_ns).saturating_add_signed(unreported.of(key)), ())
        });
    }

    /// Records a change of a key's state from `before_ns`, for the other servers.
    fn record_change(&self, key: LimitKey, before_ns: u64, after_ns: u64) {
        if let Some(unreported) = self.unreported.as_ref().filter(|_| before_ns != after_ns) {
            unreported.add(key, before_ns, after_ns);
        }
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &LimiterOptions {
        &self.options
    }

    /// Starts hashing the key of a request.
    #[must_use]
    pub fn hasher(&self) -> KeyHasher {
        let name = self.unreported.as_ref().map(|unreported| Box::new(unreported.scope()));
        KeyHasher { local: self.secret.build_hasher(), name }
    }

    /// Decides about a request of a key, and counts it against the key unless it is refused. All calls must
    /// use the same clock.
    pub fn admit(self: &Arc<Self>, key: impl Into<LimitKey>, now_ns: u64) -> LimitVerdict {
        let key = key.into();
        let Limiter { options, counters, .. } = &**self;
        let delay_ns_max = options.delay_ns_max();
        let updated = self.table.update(key.local, now_ns, |before_ns| {
            let full_at_ns = before_ns;
            let changed = match options.quota.decide(full_at_ns, now_ns, delay_ns_max) {
                Decision::Admit { full_at_ns, wait_ns: 0 } => (full_at_ns, LimitVerdict::Pass { full_at_ns }),
                decision => match self.find_slot(key, now_ns, full_at_ns, decision) {
                    Ok((wait_ns, place)) => {
                        (full_at_ns.max(place.full_at_ns), LimitVerdict::Delay { wait_ns, permit: place })
                    }
                    Err(retry_ns) => (full_at_ns, LimitVerdict::Refuse { retry_ns }),
                },
            };
            if changed.0 != before_ns {
                self.record_change(key, before_ns.max(now_ns), changed.0);
            }
            changed
        });
        if updated.has_evicted {
            counters.evicted.fetch_add(1, Ordering::Relaxed);
        }
        match updated.result {
            LimitVerdict::Pass { .. } => {}
            LimitVerdict::Delay { .. } => _ = counters.delayed.fetch_add(1, Ordering::Relaxed),
            LimitVerdict::Refuse { .. } => _ = counters.refused.fetch_add(1, Ordering::Relaxed),
        }
        updated.result
    }

    /// Uncounts a request, because another limit has refused it.
    pub fn refund(&self, key: impl Into<LimitKey>, now_ns: u64) {
        let key = key.into();
        self.table.update(key.local, now_ns, |full_at_ns| {
            let after_ns = self.options.quota.refund(full_at_ns);
            self.record_change(key, full_at_ns, after_ns);
            (after_ns, ())
        });
    }

    /// Returns the number of further requests that the key may send at once, and the time in nanoseconds
    /// until there is room for one more.
    #[must_use]
    pub fn remaining(&self, full_at_ns: u64, now_ns: u64) -> (u64, u64) {
        let quota = &self.options.quota;
        (quota.remaining(full_at_ns, now_ns), quota.next_ns(full_at_ns, now_ns))
    }

    /// Returns the bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Finds a slot for a request that cannot pass immediately: one that was given back, or the one of
    /// `decision`. Returns the wait, or as the error the time after which the request would be admitted.
    fn find_slot(
        self: &Arc<Self>,
        key: LimitKey,
        now_ns: u64,
        full_at_ns: u64,
        decision: Decision,
    ) -> Result<(u64, DelayPermit), u64> {
        let last = match decision {
            Decision::Admit { full_at_ns, wait_ns } => Ok((full_at_ns, wait_ns)),
            Decision::Refuse { retry_ns } => Err(retry_ns),
        };
        if self.options.delay_max.is_zero() {
            last?;
        }
        let mut freed = self.returned_slots();
        // Slots in the past are of no use.
        let first_ns = now_ns.saturating_add(self.options.quota.window_ns());
        let freed_ns = freed
            .range((key.local, first_ns)..(key.local, full_at_ns.max(first_ns)))
            .next()
            .map(|turn| turn.1);
        let (after_ns, wait_ns) = match freed_ns {
            Some(after_ns) => (after_ns, after_ns - first_ns),
            None => last?,
        };
        let place = self.new_permit(key, after_ns, now_ns).ok_or(wait_ns)?;
        freed.remove(&(key.local, after_ns));
        Ok((wait_ns, place))
    }

    fn new_permit(self: &Arc<Self>, key: LimitKey, full_at_ns: u64, since_ns: u64) -> Option<DelayPermit> {
        let max = self.options.delayed_max;
        let more = |taken: u32| (taken < max).then_some(taken + 1);
        self.delayed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(DelayPermit { limiter: self.clone(), key, full_at_ns, since_ns, is_taken: false })
    }

    /// Gives back the slot of a delayed request. Later slots in use are kept, so the key's state returns to
    /// the last slot in use, and an earlier slot is stored for later requests.
    fn return_slot(&self, place: &DelayPermit) {
        let key = place.key;
        let quota = &self.options.quota;
        // An evicted key has nothing to give back, whatever the time.
        self.table.update(key.local, 0, |mut full_at_ns| {
            let before_ns = full_at_ns;
            let mut freed = self.returned_slots();
            if full_at_ns == place.full_at_ns {
                full_at_ns = quota.refund(full_at_ns);
                while freed.remove(&(key.local, full_at_ns)) {
                    full_at_ns = quota.refund(full_at_ns);
                }
            } else if full_at_ns > place.full_at_ns {
                let max = self.options.delayed_max as usize;
                if freed.len() >= max {
                    let over_ns = place.since_ns.saturating_add(quota.window_ns());
                    freed.retain(|turn| turn.1 > over_ns);
                }
                if freed.len() < max {
                    freed.insert((key.local, place.full_at_ns));
                }
            }
            self.record_change(key, before_ns, full_at_ns);
            (full_at_ns, ())
        });
    }

    fn returned_slots(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        self.returned_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayPermit {
    /// Uses the slot, because the request is served, and releases the place.
    pub fn use_slot(mut self) {
        self.is_taken = true;
    }

    /// Whether the place belongs to this limit.
    #[must_use]
    pub fn belongs_to(&self, limiter: &Arc<Limiter>) -> bool {
        Arc::ptr_eq(&self.limiter, limiter)
    }
}

impl Drop for DelayPermit {
    fn drop(&mut self) {
        if !self.is_taken {
            self.limiter.return_slot(self);
        }
        self.limiter.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
