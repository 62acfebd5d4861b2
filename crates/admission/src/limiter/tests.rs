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
fn rate_limit_is_exact_across_threads() {
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
    // A tenth of a second later one more request is admitted.
    assert!(matches!(limiter.admit(client, SECOND_NS + SECOND_NS / 10), LimitVerdict::Pass { .. }));
    assert!(matches!(limiter.admit(client, SECOND_NS + SECOND_NS / 10), LimitVerdict::Refuse { .. }));
}

#[test]
fn keys_with_different_parts_are_limited_separately() {
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
fn limited_number_of_requests_waits_and_leavers_free_slots() {
    let limiter = limiter(10, 0, Duration::from_secs(9), 2);
    let admit = || limiter.admit(7, SECOND_NS);
    let waits = |admission: &LimitVerdict| match admission {
        LimitVerdict::Delay { wait_ns, .. } => wait_ns / 1_000_000,
        _ => 0,
    };
    let first = admit();
    let second = admit();
    let third = admit();
    assert_eq!([waits(&first), waits(&second), waits(&third)], [0, 100, 200]);
    assert!(matches!(admit(), LimitVerdict::Refuse { retry_ns: 300_000_000 }));
    // A client that leaves releases its slot for the next one.
    drop(second);
    let fourth = admit();
    assert_eq!(waits(&fourth), 100);
    assert!(matches!(admit(), LimitVerdict::Refuse { .. }));
    assert_eq!(limiter.counters.delayed.load(Ordering::Relaxed), 3);
    assert_eq!(limiter.counters.refused.load(Ordering::Relaxed), 2);
}

/// Returns the delay of a request of key 7 in milliseconds and its place; `None` if it passes immediately.
fn waiting(limiter: &Arc<Limiter>, now_ns: u64) -> Option<(u64, DelayPermit)> {
    match limiter.admit(7, now_ns) {
        LimitVerdict::Delay { wait_ns, permit: place } => Some((wait_ns / 1_000_000, place)),
        LimitVerdict::Pass { .. } => None,
        LimitVerdict::Refuse { retry_ns } => panic!("refused for {retry_ns}"),
    }
}

#[test]
fn withdrawn_waiters_return_their_slots() {
    for is_last_first in [false, true] {
        let limiter = limiter(1, 0, Duration::from_secs(30), 100);
        assert!(waiting(&limiter, SECOND_NS).is_none());
        let mut places: Vec<DelayPermit> = (0..30).map(|_| waiting(&limiter, SECOND_NS).unwrap().1).collect();
        assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Refuse { .. }));
        while !places.is_empty() {
            drop(places.remove(if is_last_first { places.len() - 1 } else { 0 }));
        }
        // All slots were given back: the next request waits only for the first one's interval.
        let (wait_ms, place) = waiting(&limiter, SECOND_NS + SECOND_NS * 3 / 10).unwrap();
        assert_eq!(wait_ms, 700);
        drop(place);
        assert!(waiting(&limiter, 2 * SECOND_NS).is_none());
        assert!(limiter.returned_slots.lock().unwrap().is_empty());
    }
}

#[test]
fn used_slot_is_not_returned() {
    let limiter = limiter(1, 0, Duration::from_secs(30), 100);
    assert!(waiting(&limiter, SECOND_NS).is_none());
    waiting(&limiter, SECOND_NS).unwrap().1.use_slot();
    assert_eq!(waiting(&limiter, 2 * SECOND_NS).unwrap().0, 1_000);
    assert_eq!(limiter.delayed.load(Ordering::Relaxed), 0);
}

#[test]
fn returned_slots_are_reused_once_and_earliest_first() {
    let limiter = limiter(1, 1, Duration::from_secs(5), 100);
    assert!(waiting(&limiter, SECOND_NS).is_none() && waiting(&limiter, SECOND_NS).is_none());
    let mut places: Vec<Option<DelayPermit>> =
        (0..5).map(|_| Some(waiting(&limiter, SECOND_NS).unwrap().1)).collect();
    // The slots after 1, 2 and 4 seconds are given back; those after 3 and 5 seconds stay in use.
    for at in [3, 0, 1] {
        places[at] = None;
    }
    // The first slot is in the past by now.
    let later_ns = 2 * SECOND_NS + SECOND_NS / 2;
    let taken: Vec<(u64, DelayPermit)> = (0..3).map_while(|_| waiting(&limiter, later_ns)).collect();
    let waits_ms: Vec<u64> = taken.iter().map(|(wait_ms, _)| *wait_ms).collect();
    assert_eq!(waits_ms, [500, 2_500, 4_500]);
    assert!(matches!(limiter.admit(7, later_ns), LimitVerdict::Refuse { retry_ns: 5_500_000_000 }));
}

/// Random order of waiting, leaving and arriving: no time window has more requests served than the quota
/// allows.
#[test]
fn withdrawals_never_admit_more_than_the_quota() {
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
        let (mut served_ms, mut waiters): (Vec<u64>, Vec<(u64, DelayPermit)>) = (Vec::new(), Vec::new());
        for step in 0..300 {
            let now_ms = 1_000 + step * 100;
            while let Some(at) = waiters.iter().position(|(turn_ms, _)| *turn_ms <= now_ms) {
                let (turn_ms, place) = waiters.swap_remove(at);
                place.use_slot();
                served_ms.push(turn_ms);
            }
            match (next(4), limiter.delayed.load(Ordering::Relaxed)) {
                (0, 1..) => drop(waiters.swap_remove(next(waiters.len() as u64) as usize)),
                (1 | 2, _) => match limiter.admit(7, now_ms * 1_000_000) {
                    LimitVerdict::Pass { .. } => served_ms.push(now_ms),
                    LimitVerdict::Delay { wait_ns, permit: place } => {
                        waiters.push((now_ms + wait_ns / 1_000_000, place));
                    }
                    LimitVerdict::Refuse { .. } => {}
                },
                _ => {}
            }
            assert!(limiter.returned_slots.lock().unwrap().len() <= 6);
        }
        served_ms.sort_unstable();
        // More requests than the burst plus one never fit into one second.
        for pair in served_ms.windows(burst as usize + 2) {
            assert!(pair[burst as usize + 1] - pair[0] >= 1_000, "{seed}: {served_ms:?}");
        }
    }
}

#[test]
fn refund_allows_another_request() {
    let limiter = limiter(1, 0, Duration::ZERO, 0);
    assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
    limiter.refund(7, SECOND_NS);
    assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Pass { .. }));
    assert!(matches!(limiter.admit(7, SECOND_NS), LimitVerdict::Refuse { .. }));
    // An evicted or unknown key has nothing to refund.
    limiter.refund(8, SECOND_NS);
    assert!(matches!(limiter.admit(8, SECOND_NS), LimitVerdict::Pass { .. }));
    assert!(matches!(limiter.admit(8, SECOND_NS), LimitVerdict::Refuse { .. }));
}

/// Exchanges the spending of two servers as a third one that adds it up; returns how far the key is ahead
/// there.
fn exchange(ahead_ns: &mut u64, servers: &[&Arc<Limiter>], now_ns: u64) {
    for server in servers {
        for change in server.take_unreported() {
            let sum_ns = (*ahead_ns).max(now_ns).saturating_add_signed(change.spent_ns);
            *ahead_ns = sum_ns;
            server.set_total(change.key, now_ns, sum_ns.saturating_sub(now_ns));
        }
    }
}

#[test]
fn implausible_reports_of_other_servers_are_capped() {
    let quota = Quota::new(10, Duration::from_secs(1), 9);
    let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 1_000 };
    let limiter = Arc::new(Limiter::new_shared(options, Arc::new(|_, _| {}), b"limit"));
    limiter.set_total(7, SECOND_NS, u64::MAX);
    let refused = limiter.admit(7, SECOND_NS);
    let LimitVerdict::Refuse { .. } = refused else { panic!("{refused:?}") };
    let later_ns = SECOND_NS + 64 * SECOND_NS;
    assert!(matches!(limiter.admit(7, later_ns), LimitVerdict::Pass { .. }));
}

#[test]
fn servers_that_exchange_counts_share_a_limit() {
    let quota = Quota::new(100, Duration::from_secs(1), 9);
    let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 1_000 };
    let server = || Arc::new(Limiter::new_shared(options, Arc::new(|_, _| {}), b"limit"));
    let servers = [server(), server()];
    let key = |server: &Limiter| {
        let mut hasher = server.hasher();
        hasher.add(b"192.0.2.1");
        hasher.limit_key()
    };
    assert_eq!(key(&servers[0]).name, key(&servers[1]).name);
    assert_ne!(key(&servers[0]).local, key(&servers[1]).local);
    let mut passed = 0;
    let mut ahead_ns = 0;
    for ms in 1_000..21_000 {
        let now_ns = ms * 1_000_000;
        for server in &servers {
            for _ in 0..3 {
                passed += u64::from(matches!(server.admit(key(server), now_ns), LimitVerdict::Pass { .. }));
            }
        }
        // Every 20 ms, in which two requests are admitted by the rate.
        if ms % 20 == 0 {
            exchange(&mut ahead_ns, &[&servers[0], &servers[1]], now_ns);
        }
    }
    // 2,000 in 20 seconds, plus the burst of 10. Both servers may have spent the burst, which is paid back
    // later, plus the requests of the last exchange interval.
    assert!((2_000..=2_010 + 2 * 3).contains(&passed), "{passed}");
}

#[test]
fn refunds_cancel_unreported_counts_and_memory_is_bounded() {
    let quota = Quota::new(1, Duration::from_secs(1), 0);
    let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: 10_000 };
    let held = Arc::new(AtomicU64::new(0));
    let theirs = held.clone();
    let account = Arc::new(move |before: u64, after: u64| {
        theirs.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    });
    let limiter = Arc::new(Limiter::new_shared(options, account, b"limit"));
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
