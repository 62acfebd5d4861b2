//! The load-balancing algorithms, as pure functions: random numbers and hash keys are arguments.

use crate::hash::mix;

/// A server, as the load balancer sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Share of the requests; 0 if the server must not be chosen.
    pub weight: u32,
    /// Requests under way on the server.
    pub load: u32,
    /// Hash of the server's URL: stable across restarts and machines.
    pub id: u64,
}

/// Smooth weighted round robin, as in nginx: a server with a higher weight comes more often, but not in a
/// row.
#[derive(Clone, Debug, Default)]
pub struct SmoothRoundRobin {
    /// Current weight of each server (nginx's `current_weight`); the server with the highest one is next.
    credit: Vec<i64>,
}

impl SmoothRoundRobin {
    /// Returns the next server.
    pub fn next(&mut self, candidates: &[Candidate]) -> Option<usize> {
        self.credit.resize(candidates.len(), 0);
        let mut best: Option<usize> = None;
        let mut total = 0;
        for (index, candidate) in candidates.iter().enumerate() {
            if candidate.weight == 0 {
                // A server that returns does not catch up on the turns that it missed.
                self.credit[index] = 0;
                continue;
            }
            self.credit[index] += i64::from(candidate.weight);
            total += i64::from(candidate.weight);
            if best.is_none_or(|best| self.credit[index] > self.credit[best]) {
                best = Some(index);
            }
        }
        self.credit[best?] -= total;
        best
    }
}

/// Returns the server with the fewest requests for its weight; ties go to the first one from `start` on.
#[must_use]
pub fn least_loaded(candidates: &[Candidate], start: usize) -> Option<usize> {
    let count = candidates.len();
    let around = (0..count).map(|step| (start + step) % count);
    around
        .filter(|&index| candidates[index].weight > 0)
        .reduce(|best, index| if is_less_busy(&candidates[index], &candidates[best]) { index } else { best })
}

/// The less busy of two servers picked at random by weight.
#[must_use]
pub fn two_choices(candidates: &[Candidate], random: u64) -> Option<usize> {
    let total: u64 = candidates.iter().map(|candidate| u64::from(candidate.weight)).sum();
    let first = pick(candidates, random, total, usize::MAX)?;
    let rest = total - u64::from(candidates[first].weight);
    let Some(second) = pick(candidates, mix(random), rest, first) else { return Some(first) };
    Some(if is_less_busy(&candidates[second], &candidates[first]) { second } else { first })
}

/// Picks a server at random by weight, excluding `without`.
fn pick(candidates: &[Candidate], random: u64, total: u64, without: usize) -> Option<usize> {
    let mut at = random.checked_rem(total)?;
    for (index, candidate) in candidates.iter().enumerate() {
        let weight = if index == without { 0 } else { u64::from(candidate.weight) };
        if at < weight {
            return Some(index);
        }
        at -= weight;
    }
    None
}

/// Weighted rendezvous hashing: the same key selects the same server. Removing a server moves only its own
/// keys; adding one moves only the keys that it takes over.
#[must_use]
pub fn by_key(candidates: &[Candidate], key: u64) -> Option<usize> {
    let score = |candidate: &Candidate| {
        // Uniform in (0, 1): its logarithm is finite and negative.
        let uniform = (mix(key ^ mix(candidate.id)) >> 11) as f64 + 0.5;
        -f64::from(candidate.weight) / (uniform / (1u64 << 53) as f64).ln()
    };
    let usable = candidates.iter().enumerate().filter(|(_, candidate)| candidate.weight > 0);
    usable.max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b))).map(|(index, _)| index)
}

/// Whether `a`, with one more request, would have a lower load per weight than `b` with one more.
fn is_less_busy(a: &Candidate, b: &Candidate) -> bool {
    (u64::from(a.load) + 1) * u64::from(b.weight) < (u64::from(b.load) + 1) * u64::from(a.weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(weights: &[u32]) -> Vec<Candidate> {
        let candidate = |(id, &weight): (usize, &u32)| Candidate { weight, load: 0, id: mix(id as u64) };
        weights.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn round_robin_follows_weights_without_bursts() {
        let mut turns = SmoothRoundRobin::default();
        let servers = weights(&[5, 1, 1]);
        let order: Vec<usize> = (0..7).filter_map(|_| turns.next(&servers)).collect();
        assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns.next(&weights(&[0, 0, 0])), None);
        assert_eq!(turns.next(&[]), None);
    }

    #[test]
    fn returning_server_takes_only_its_regular_turn() {
        let mut turns = SmoothRoundRobin::default();
        for _ in 0..100 {
            assert_eq!(turns.next(&weights(&[1, 0])), Some(0));
        }
        let order: Vec<usize> = (0..4).filter_map(|_| turns.next(&weights(&[1, 1]))).collect();
        assert_eq!(order, [0, 1, 0, 1]);
    }

    #[test]
    fn least_connections_divides_load_by_weight() {
        let mut servers = weights(&[1, 1, 2, 0]);
        servers[0].load = 1;
        servers[1].load = 1;
        servers[2].load = 2;
        // (1+1)/1, (1+1)/1, (2+1)/2
        assert_eq!(least_loaded(&servers, 0), Some(2));
        servers[2].load = 3;
        assert_eq!(least_loaded(&servers, 0), Some(0));
        assert_eq!(least_loaded(&servers, 1), Some(1));
        assert_eq!(least_loaded(&weights(&[0]), 0), None);
        assert_eq!(least_loaded(&[], 0), None);
    }

    #[test]
    fn two_choices_never_pick_the_busier_server() {
        let mut servers = weights(&[1, 1]);
        servers[0].load = 9;
        for random in 0..1_000 {
            assert_eq!(two_choices(&servers, mix(random)), Some(1));
        }
        assert_eq!(two_choices(&weights(&[0, 3, 0]), 7), Some(1));
        assert_eq!(two_choices(&weights(&[0]), 7), None);
    }

    #[test]
    fn two_choices_reach_every_server_by_weight() {
        let servers = weights(&[1, 1, 4, 1]);
        let mut counts = [0u32; 4];
        for random in 0..10_000 {
            counts[two_choices(&servers, mix(random)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| count > 100) && counts[2] > counts[0], "{counts:?}");
    }

    #[test]
    fn keys_keep_their_server_when_another_one_leaves() {
        let servers = weights(&[1, 1, 2, 1]);
        let before: Vec<usize> = (0..10_000).map(|key| by_key(&servers, mix(key)).unwrap()).collect();
        let mut counts = [0u32; 4];
        before.iter().for_each(|&index| counts[index] += 1);
        for (index, want) in [(0, 2_000), (1, 2_000), (2, 4_000), (3, 2_000)] {
            assert!(counts[index].abs_diff(want) < 300, "{counts:?}");
        }
        let without = weights(&[1, 0, 2, 1]);
        for (key, &was) in before.iter().enumerate() {
            let is = by_key(&without, mix(key as u64)).unwrap();
            assert!(is == was || was == 1, "key {key} moved from {was} to {is}");
        }
        assert_eq!(by_key(&weights(&[0, 0]), 1), None);
    }
}
