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
        let delay_ns_max = u64::try_from(self.options.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let of_one_ns = self.options.quota.window_ns().saturating_add(delay_ns_max);
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
        let delay_ns_max = u64::try_from(options.delay_max.as_nanos()).unwrap_or(u64::MAX);
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
        // One that leaves makes room, and the next has its turn.
        drop(second);
        let fourth = admit();
        assert_eq!(waits(&fourth), 100);
        assert!(matches!(admit(), LimitVerdict::Refuse { .. }));
        assert_eq!(limiter.counters.delayed.load(Ordering::Relaxed), 3);
        assert_eq!(limiter.counters.refused.load(Ordering::Relaxed), 2);
    }

    /// The time that a request of the key 7 waits, in milliseconds, with its place; none for one that passes at once.
    fn waiting(limiter: &Arc<Limiter>, now_ns: u64) -> Option<(u64, DelayPlace)> {
        match limiter.admit(7, now_ns) {
            LimitVerdict::Delay { wait_ns, place } => Some((wait_ns / 1_000_000, place)),
            LimitVerdict::Pass { .. } => None,
            LimitVerdict::Refuse { retry_ns } => panic!("refused for {retry_ns}"),
        }
    }

    #[test]
    fn those_that_leave_give_their_turns_back() {
        for is_last_first in [false, true] {
            let limiter = limiter(1, 0, Duration::from_secs(30), 100);
            assert!(waiting(&limiter, SECOND_NS).is_none());
            let mut places: Vec<DelayPlace> =
                (0..30).map(|_| waiting(&limiter, SECOND_NS).unwrap().1).collect();
            assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Refuse { .. }));
            while !places.is_empty() {
                drop(places.remove(if is_last_first { places.len() - 1 } else { 0 }));
            }
            // The server is as idle as if they had not come: the next waits for the first one's interval alone.
            let (wait_ms, place) = waiting(&limiter, SECOND_NS + SECOND_NS * 3 / 10).unwrap();
            assert_eq!(wait_ms, 700);
            drop(place);
            assert!(waiting(&limiter, 2 * SECOND_NS).is_none());
            assert!(limiter.freed.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn a_turn_that_was_taken_is_not_given_back() {
        let limiter = limiter(1, 0, Duration::from_secs(30), 100);
        assert!(waiting(&limiter, SECOND_NS).is_none());
        waiting(&limiter, SECOND_NS).unwrap().1.take();
        assert_eq!(waiting(&limiter, 2 * SECOND_NS).unwrap().0, 1_000);
        assert_eq!(limiter.delayed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn turns_between_those_who_wait_are_taken_once_and_the_earliest_first() {
        let limiter = limiter(1, 1, Duration::from_secs(5), 100);
        assert!(waiting(&limiter, SECOND_NS).is_none() && waiting(&limiter, SECOND_NS).is_none());
        let mut places: Vec<Option<DelayPlace>> =
            (0..5).map(|_| Some(waiting(&limiter, SECOND_NS).unwrap().1)).collect();
        // The turns after 1, 2 and 4 seconds become free; those after 3 and 5 seconds stay.
        for at in [3, 0, 1] {
            places[at] = None;
        }
        // The first one is over by now.
        let later_ns = 2 * SECOND_NS + SECOND_NS / 2;
        let taken: Vec<(u64, DelayPlace)> = (0..3).map_while(|_| waiting(&limiter, later_ns)).collect();
        let waits_ms: Vec<u64> = taken.iter().map(|(wait_ms, _)| *wait_ms).collect();
        assert_eq!(waits_ms, [500, 2_500, 4_500]);
        assert!(matches!(limiter.admit(7, later_ns), LimitVerdict::Refuse { retry_ns: 5_500_000_000 }));
    }

    /// Whoever waits, leaves and comes: in no time of so many seconds are more requests served than the quota has.
    #[test]
    fn no_order_of_leaving_serves_more_than_the_quota() {
        for seed in 1..200_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let burst = seed % 3;
            let limiter = limiter(1, burst as u32, Duration::from_secs(8), 6);
            let (mut served_ms, mut waiters): (Vec<u64>, Vec<(u64, DelayPlace)>) = (Vec::new(), Vec::new());
            for step in 0..300 {
                let now_ms = 1_000 + step * 100;
                while let Some(at) = waiters.iter().position(|(turn_ms, _)| *turn_ms <= now_ms) {
                    let (turn_ms, place) = waiters.swap_remove(at);
                    place.take();
                    served_ms.push(turn_ms);
                }
                match (next(4), limiter.delayed.load(Ordering::Relaxed)) {
                    (0, 1..) => drop(waiters.swap_remove(next(waiters.len() as u64) as usize)),
                    (1 | 2, _) => match limiter.admit(7, now_ms * 1_000_000) {
                        LimitVerdict::Pass { .. } => served_ms.push(now_ms),
                        LimitVerdict::Delay { wait_ns, place } => {
                            waiters.push((now_ms + wait_ns / 1_000_000, place));
                        }
                        LimitVerdict::Refuse { .. } => {}
                    },
                    _ => {}
                }
                assert!(limiter.freed.lock().unwrap().len() <= 6);
            }
            served_ms.sort_unstable();
            // One more than the burst never comes within as many intervals.
            for pair in served_ms.windows(burst as usize + 2) {
                assert!(pair[burst as usize + 1] - pair[0] >= 1_000, "{seed}: {served_ms:?}");
            }
        }
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

    /// Exchanges what two servers have counted, as a third one that adds it up; returns by how much the key is ahead there.
    fn exchange(ahead_ns: &mut u64, servers: &[&Arc<Limiter>], now_ns: u64) {
        for server in servers {
            for change in server.take_unreported() {
                let sum_ns = (*ahead_ns).max(now_ns).saturating_add_signed(change.spent_ns);
                *ahead_ns = sum_ns;
                server.settle(change.key, now_ns, sum_ns.saturating_sub(now_ns));
            }
        }
    }

    #[test]
    fn what_no_servers_can_have_spent_is_not_believed() {
        let quota = Quota::new(10, Duration::from_secs(1), 9);
        let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 1_000 };
        let limiter = Arc::new(Limiter::shared(options, Arc::new(|_, _| {}), b"limit"));
        limiter.settle(7, SECOND_NS, u64::MAX);
        let refused = limiter.admit(7, SECOND_NS);
        let LimitVerdict::Refuse { .. } = refused else { panic!("{refused:?}") };
        let later_ns = SECOND_NS + 64 * SECOND_NS;
        assert!(matches!(limiter.admit(7, later_ns), LimitVerdict::Pass { .. }));
    }

    #[test]
    fn servers_that_exchange_share_a_limit_and_pay_what_they_exceed() {
        let quota = Quota::new(100, Duration::from_secs(1), 9);
        let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 1_000 };
        let server = || Arc::new(Limiter::shared(options, Arc::new(|_, _| {}), b"limit"));
        let servers = [server(), server()];
        let key = |server: &Limiter| {
            let mut hasher = server.hasher();
            hasher.add(b"192.0.2.1");
            hasher.limit_key()
        };
        assert_eq!(key(&servers[0]).name, key(&servers[1]).name);
        assert_ne!(key(&servers[0]).local, key(&servers[1]).local);
        let (mut passed, mut ahead_ns) = (0, 0);
        for ms in 1_000..21_000 {
            let now_ns = ms * 1_000_000;
            for server in &servers {
                for _ in 0..3 {
                    passed +=
                        u64::from(matches!(server.admit(key(server), now_ns), LimitVerdict::Pass { .. }));
                }
            }
            // Every 20 ms: in that time two requests pass by the rate.
            if ms % 20 == 0 {
                exchange(&mut ahead_ns, &[&servers[0], &servers[1]], now_ns);
            }
        }
        // In 20 seconds 2,000 and the burst of 10; both may have had it, which is paid, and what passed in the last exchange's time.
        assert!((2_000..=2_010 + 2 * 3).contains(&passed), "{passed}");
    }

    #[test]
    fn what_is_given_back_is_reported_and_a_million_keys_cost_no_more() {
        let quota = Quota::new(1, Duration::from_secs(1), 0);
        let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 10_000 };
        let held = Arc::new(AtomicU64::new(0));
        let theirs = held.clone();
        let account = Arc::new(move |before: u64, after: u64| {
            theirs.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        });
        let limiter = Arc::new(Limiter::shared(options, account, b"limit"));
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
        limiter.refund(7, SECOND_NS);
        assert!(limiter.take_unreported().is_empty());
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Refuse { .. }));
        let reported = limiter.take_unreported();
        assert_eq!(reported.iter().map(|change| change.spent_ns).collect::<Vec<_>>(), [SECOND_NS as i64]);
        let before = held.load(Ordering::Relaxed);
        for key in 0..1_000_000 {
            let mut hasher = limiter.hasher();
            hasher.add(&u64::to_be_bytes(key));
            let _ = limiter.admit(hasher.limit_key(), SECOND_NS);
        }
        let bytes = held.load(Ordering::Relaxed) - before;
        assert!(bytes < 4 << 20, "{bytes}");
        assert!(limiter.take_unreported().len() <= 10_000);
        drop(limiter);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
