//! One limit: its quota, the table of its keys, and the requests that wait for their turn.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::quota::{Decision, Quota};
use crate::table::{KeyTable, TableAccount};

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
    /// What it has done.
    pub counters: LimitCounters,
}

/// Makes the key of a request from its parts, which a secret keeps hidden: nobody can look for two keys that are the same here.
pub struct KeyHasher(std::hash::DefaultHasher);

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
        /// Its place among the requests that wait; dropping it makes room for another.
        place: DelayPlace,
    },
    /// It is refused.
    Refuse {
        /// After which time it would not be.
        retry_ns: u64,
    },
}

/// The place of a request that waits.
#[derive(Debug)]
pub struct DelayPlace(Arc<Limiter>);

impl KeyHasher {
    /// Adds a part. Its length is a part of the key: `ab` and `c` are not `a` and `bc`.
    pub fn add(&mut self, part: &[u8]) {
        self.0.write_usize(part.len());
        self.0.write(part);
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.0.finish()
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
            counters: LimitCounters::default(),
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
        KeyHasher(self.secret.build_hasher())
    }

    /// Decides about a request of a key, and counts it against the key unless it is refused. The times of all calls are those of
    /// one clock.
    pub fn admit(self: &Arc<Self>, key: u64, now_ns: u64) -> LimitVerdict {
        let Limiter { options, counters, .. } = &**self;
        let delay_ns_max = u64::try_from(options.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let updated = self.table.update(key, now_ns, |full_at_ns| {
            match options.quota.decide(full_at_ns, now_ns, delay_ns_max) {
                Decision::Admit { full_at_ns, wait_ns: 0 } => (full_at_ns, LimitVerdict::Pass { full_at_ns }),
                Decision::Admit { full_at_ns: after_ns, wait_ns } => match self.take_place() {
                    Some(place) => (after_ns, LimitVerdict::Delay { wait_ns, place }),
                    None => (full_at_ns, LimitVerdict::Refuse { retry_ns: wait_ns }),
                },
                Decision::Refuse { retry_ns } => (full_at_ns, LimitVerdict::Refuse { retry_ns }),
            }
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
    pub fn refund(&self, key: u64, now_ns: u64) {
        self.table.update(key, now_ns, |full_at_ns| (self.options.quota.refund(full_at_ns), ()));
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

    fn take_place(self: &Arc<Self>) -> Option<DelayPlace> {
        let max = self.options.delayed_max;
        let more = |taken: u32| (taken < max).then_some(taken + 1);
        let taken = self.delayed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| DelayPlace(self.clone()))
    }
}

impl Drop for DelayPlace {
    fn drop(&mut self) {
        self.0.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn limiter(count: u32, burst: u32, delay_max: Duration, delayed_max: u32) -> Arc<Limiter> {
        let quota = Quota::new(count, Duration::from_secs(1), burst);
        let options = LimiterOptions { quota, delay_max, delayed_max, keys_max: 1_000 };
        Arc::new(Limiter::new(options, Arc::new(|_, _| {})))
    }

    fn key(limiter: &Limiter, parts: &[&[u8]]) -> u64 {
        let mut hasher = limiter.hasher();
        parts.iter().for_each(|part| hasher.add(part));
        hasher.key()
    }

    #[test]
    fn cores_share_a_limit_exactly() {
        let limiter = limiter(10, 99, Duration::ZERO, 0);
        let client = key(&limiter, &[b"192.0.2.1"]);
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        if let LimitVerdict::Pass { .. } = limiter.admit(client, SECOND_NS) {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100);
        assert_eq!(limiter.counters.refused.load(Ordering::Relaxed), 3_900);
        // A tenth of a second later there is room for one.
        assert!(matches!(limiter.admit(client, SECOND_NS + SECOND_NS / 10), LimitVerdict::Pass { .. }));
        assert!(matches!(limiter.admit(client, SECOND_NS + SECOND_NS / 10), LimitVerdict::Refuse { .. }));
    }

    #[test]
    fn keys_are_apart_and_their_parts_too() {
        let limiter = limiter(1, 0, Duration::ZERO, 0);
        let keys = [
            key(&limiter, &[b"ab", b"c"]),
            key(&limiter, &[b"a", b"bc"]),
            key(&limiter, &[b"abc"]),
            key(&limiter, &[b"abc", b""]),
            key(&limiter, &[]),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(keys[..index].iter().all(|other| other != one));
            assert!(matches!(limiter.admit(*one, 1), LimitVerdict::Pass { .. }));
            assert!(matches!(limiter.admit(*one, 1), LimitVerdict::Refuse { retry_ns: SECOND_NS }));
        }
        assert_ne!(key(&limiter, &[b"a"]), key(&self::limiter(1, 0, Duration::ZERO, 0), &[b"a"]));
    }

    #[test]
    fn few_wait_and_those_that_leave_make_room() {
        let limiter = limiter(10, 0, Duration::from_secs(9), 2);
        let admit = || limiter.admit(7, SECOND_NS);
        let waits = |admission: &LimitVerdict| match admission {
            LimitVerdict::Delay { wait_ns, .. } => wait_ns / 1_000_000,
            _ => 0,
        };
        let (first, second, third) = (admit(), admit(), admit());
        assert_eq!([waits(&first), waits(&second), waits(&third)], [0, 100, 200]);
        assert!(matches!(admit(), LimitVerdict::Refuse { retry_ns: 300_000_000 }));
        // One that could not wait is not counted against its key.
        drop(second);
        let fourth = admit();
        assert_eq!(waits(&fourth), 300);
        assert!(matches!(admit(), LimitVerdict::Refuse { .. }));
        assert_eq!(limiter.counters.delayed.load(Ordering::Relaxed), 3);
        assert_eq!(limiter.counters.refused.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_refund_makes_room_again() {
        let limiter = limiter(1, 0, Duration::ZERO, 0);
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
        limiter.refund(7, SECOND_NS);
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Refuse { .. }));
        // Of a key that is forgotten there is nothing to take back.
        limiter.refund(8, SECOND_NS);
        assert!(matches!(limiter.admit(8, SECOND_NS), LimitVerdict::Pass { .. }));
        assert!(matches!(limiter.admit(8, SECOND_NS), LimitVerdict::Refuse { .. }));
    }
}
