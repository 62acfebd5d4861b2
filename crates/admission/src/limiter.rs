//! One limit: its quota, the table of its keys, and the requests that wait for their turn.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::quota::{Decision, Quota};
use crate::table::{KeyTable, TableAccount};
use crate::unreported::{LimitKey, Unreported, UnreportedKeys};
use aws_lc_rs::digest::Context;

/// Servers that may share a limit, each of which can spend all of a key before it hears of the others.
const SERVERS_MAX: u64 = 64;

/// What a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterOptions {
    /// How often a key may ask.
    pub quota: Quota,
    /// How long a request waits for its turn at most; zero refuses at once.
    pub delay_max: Duration,
    /// Requests that wait at the same time, over all cores; more are refused.
    pub delayed_max: u32,
    /// Keys that are remembered, about.
    pub keys_max: usize,
}

impl LimiterOptions {
    fn delay_ns_max(&self) -> u64 {
        u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What a limit has done since it was made.
#[derive(Debug, Default)]
pub struct LimitCounters {
    /// Requests that were refused, or in a dry run would have been.
    pub refused: AtomicU64,
    /// Requests that had to wait.
    pub delayed: AtomicU64,
    /// Keys that were forgotten before their time, for want of room: each may ask as if it had not asked before.
    pub forgotten: AtomicU64,
}

/// A limit, for all cores.
#[derive(Debug)]
pub struct Limiter {
    options: LimiterOptions,
    table: KeyTable,
    secret: RandomState,
    delayed: AtomicU32,
    /// What was not reported to the servers that share the limit.
    unreported: Option<UnreportedKeys>,
    /// Turns that were given back while others of the same key wait for later ones: the key, and its state after the turn. At most
    /// as many as may wait. It is locked inside of a change of the table.
    freed: Mutex<BTreeSet<(u64, u64)>>,
    /// What it has done.
    pub counters: LimitCounters,
}

/// Makes the key of a request from its parts, which a secret keeps hidden: nobody can look for two keys that are the same here.
pub struct KeyHasher {
    local: std::hash::DefaultHasher,
    /// Of a limit that is shared.
    name: Option<Box<Context>>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum LimitVerdict {
    /// It may be answered now. The key's state is for [`Limiter::left`].
    Pass {
        /// When its bucket is full again.
        full_at_ns: u64,
    },
    /// It may be answered after this time.
    Delay {
        /// How long.
        wait_ns: u64,
        /// Its place among the requests that wait.
        place: DelayPlace,
    },
    /// It is refused.
    Refuse {
        /// After which time it would not be.
        retry_ns: u64,
    },
}

/// The place of a request that waits, and its turn. Dropping it makes room for another and gives the turn back to the key: the
/// client has left. [`DelayPlace::take`] uses the turn.
#[derive(Debug)]
pub struct DelayPlace {
    limiter: Arc<Limiter>,
    key: LimitKey,
    /// The key's state after the turn.
    full_at_ns: u64,
    since_ns: u64,
    is_taken: bool,
}

impl KeyHasher {
    /// Begins with the secret that is in the hasher.
    pub(crate) fn of(hasher: std::hash::DefaultHasher) -> KeyHasher {
        KeyHasher { local: hasher, name: None }
    }

    /// Adds a part. Its length is a part of the key: `ab` and `c` are not `a` and `bc`.
    pub fn add(&mut self, part: &[u8]) {
        self.local.write_usize(part.len());
        self.local.write(part);
        if let Some(name) = &mut self.name {
            name.update(&(part.len() as u64).to_be_bytes());
            name.update(part);
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.local.finish()
    }

    /// The key with its name in all servers.
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
    /// A limit that nobody has used yet. `account` is called with the memory that its table takes.
    #[must_use]
    pub fn new(options: LimiterOptions, account: TableAccount) -> Limiter {
        Limiter {
            options,
            table: KeyTable::new(options.keys_max, account),
            secret: RandomState::new(),
            delayed: AtomicU32::new(0),
            unreported: None,
            freed: Mutex::default(),
            counters: LimitCounters::default(),
        }
    }

    /// A limit that several servers share. `scope` says which one it is: the same in all of them.
    #[must_use]
    pub fn shared(options: LimiterOptions, account: TableAccount, scope: &[u8]) -> Limiter {
        let unreported = Some(UnreportedKeys::new(scope, options.keys_max, account.clone()));
        Limiter { unreported, ..Limiter::new(options, account) }
    }

    /// What was counted here since the last call, for those that share it.
    #[must_use]
    pub fn take_unreported(&self) -> Vec<Unreported> {
        self.unreported.as_ref().map(UnreportedKeys::take).unwrap_or_default()
    }

    /// All servers together have spent so much of a key that at `now_ns` its bucket is full again only in `ahead_ns`. More than
    /// [`SERVERS_MAX`] servers could have spent at once is not believed.
    pub fn settle(&self, key: u64, now_ns: u64, ahead_ns: u64) {
        let Some(unreported) = &self.unreported else { return };
        let of_one_ns = self.options.quota.window_ns().saturating_add(self.options.delay_ns_max());
        let ahead_ns = ahead_ns.min(of_one_ns.saturating_mul(SERVERS_MAX));
        self.table.update(key, now_ns, |_| {
            (now_ns.saturating_add(ahead_ns).saturating_add_signed(unreported.of(key)), ())
        });
    }

    /// Remembers for other servers that a key's state has changed from `before_ns`.
    fn note(&self, key: LimitKey, before_ns: u64, after_ns: u64) {
        if let Some(unreported) = self.unreported.as_ref().filter(|_| before_ns != after_ns) {
            unreported.add(key, before_ns, after_ns);
        }
    }

    /// What it is.
    #[must_use]
    pub fn options(&self) -> &LimiterOptions {
        &self.options
    }

    /// Begins the key of a request.
    #[must_use]
    pub fn hasher(&self) -> KeyHasher {
        let name = self.unreported.as_ref().map(|unreported| Box::new(unreported.scope()));
        KeyHasher { local: self.secret.build_hasher(), name }
    }

    /// Decides about a request of a key, and counts it against the key unless it is refused. The times of all calls are those of
    /// one clock.
    pub fn admit(self: &Arc<Self>, key: impl Into<LimitKey>, now_ns: u64) -> LimitVerdict {
        let key = key.into();
        let Limiter { options, counters, .. } = &**self;
        let delay_ns_max = options.delay_ns_max();
        let updated = self.table.update(key.local, now_ns, |before_ns| {
            let full_at_ns = before_ns;
            let changed = match options.quota.decide(full_at_ns, now_ns, delay_ns_max) {
                Decision::Admit { full_at_ns, wait_ns: 0 } => (full_at_ns, LimitVerdict::Pass { full_at_ns }),
                decision => match self.wait(key, now_ns, full_at_ns, decision) {
                    Ok((wait_ns, place)) => {
                        (full_at_ns.max(place.full_at_ns), LimitVerdict::Delay { wait_ns, place })
                    }
                    Err(retry_ns) => (full_at_ns, LimitVerdict::Refuse { retry_ns }),
                },
            };
            if changed.0 != before_ns {
                self.note(key, before_ns.max(now_ns), changed.0);
            }
            changed
        });
        if updated.has_forgotten {
            counters.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        match updated.result {
            LimitVerdict::Pass { .. } => {}
            LimitVerdict::Delay { .. } => _ = counters.delayed.fetch_add(1, Ordering::Relaxed),
            LimitVerdict::Refuse { .. } => _ = counters.refused.fetch_add(1, Ordering::Relaxed),
        }
        updated.result
    }

    /// Takes back that a request was counted: another limit has refused it.
    pub fn refund(&self, key: impl Into<LimitKey>, now_ns: u64) {
        let key = key.into();
        self.table.update(key.local, now_ns, |full_at_ns| {
            let after_ns = self.options.quota.refund(full_at_ns);
            self.note(key, full_at_ns, after_ns);
            (after_ns, ())
        });
    }

    /// How many requests more a key may send at once, and in how many nanoseconds there is room for one more than that.
    #[must_use]
    pub fn left(&self, full_at_ns: u64, now_ns: u64) -> (u64, u64) {
        let quota = &self.options.quota;
        (quota.left(full_at_ns, now_ns), quota.next_ns(full_at_ns, now_ns))
    }

    /// Bytes of its table now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Finds a turn for a request that cannot pass at once: one that was given back, or else the one of `decision`. Returns how
    /// long it waits, or in which time it would not be refused.
    fn wait(
        self: &Arc<Self>,
        key: LimitKey,
        now_ns: u64,
        full_at_ns: u64,
        decision: Decision,
    ) -> Result<(u64, DelayPlace), u64> {
        let last = match decision {
            Decision::Admit { full_at_ns, wait_ns } => Ok((full_at_ns, wait_ns)),
            Decision::Refuse { retry_ns } => Err(retry_ns),
        };
        if self.options.delay_max.is_zero() {
            last?;
        }
        let mut freed = self.freed();
        // Of turns that are over, nobody has any use.
        let first_ns = now_ns.saturating_add(self.options.quota.window_ns());
        let freed_ns = freed
            .range((key.local, first_ns)..(key.local, full_at_ns.max(first_ns)))
            .next()
            .map(|turn| turn.1);
        let (after_ns, wait_ns) = match freed_ns {
            Some(after_ns) => (after_ns, after_ns - first_ns),
            None => last?,
        };
        let place = self.place(key, after_ns, now_ns).ok_or(wait_ns)?;
        freed.remove(&(key.local, after_ns));
        Ok((wait_ns, place))
    }

    fn place(self: &Arc<Self>, key: LimitKey, full_at_ns: u64, since_ns: u64) -> Option<DelayPlace> {
        let max = self.options.delayed_max;
        let more = |taken: u32| (taken < max).then_some(taken + 1);
        self.delayed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(DelayPlace { limiter: self.clone(), key, full_at_ns, since_ns, is_taken: false })
    }

    /// Takes back the turn of a request that has waited. Those that wait for later turns keep theirs, so the key's state goes
    /// back to the last turn that is somebody's; a turn before that is kept for those that come.
    fn give_back(&self, place: &DelayPlace) {
        let (key, quota) = (place.key, &self.options.quota);
        // A key that is forgotten has nothing to take back, at any time.
        self.table.update(key.local, 0, |mut full_at_ns| {
            let before_ns = full_at_ns;
            let mut freed = self.freed();
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
            self.note(key, before_ns, full_at_ns);
            (full_at_ns, ())
        });
    }

    fn freed(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayPlace {
    /// Uses the turn: the request is served. It makes room for another.
    pub fn take(mut self) {
        self.is_taken = true;
    }

    /// Whether it is one of this limit.
    #[must_use]
    pub fn is_of(&self, limiter: &Arc<Limiter>) -> bool {
        Arc::ptr_eq(&self.limiter, limiter)
    }
}

impl Drop for DelayPlace {
    fn drop(&mut self) {
        if !self.is_taken {
            self.limiter.give_back(self);
        }
        self.limiter.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
