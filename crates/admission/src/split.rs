//! Selection of a split's branch for a client: a weighted choice that is equal on all cores and servers.

/// Branches of a split with their weights, selected by rendezvous hashing. A client's branch depends only on
/// the names and weights; a change of weights moves only as many clients as necessary.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedChoice(Vec<(u64, f64)>);

impl WeightedChoice {
    /// Creates a choice of branches by name and weight.
    #[must_use]
    pub fn new<'n>(branches: impl IntoIterator<Item = (&'n str, u32)>) -> WeightedChoice {
        let entry = |(name, weight): (&str, u32)| (point(name.as_bytes()), f64::from(weight));
        WeightedChoice(branches.into_iter().map(entry).collect())
    }

    /// Returns the index of the branch for a point. A branch with weight 0 is never chosen, unless all have
    /// weight 0: then the first one.
    #[must_use]
    pub fn choose(&self, point: u64) -> usize {
        let mut best = (0, f64::NEG_INFINITY);
        for (index, (name, weight)) in self.0.iter().enumerate().filter(|(_, (_, weight))| *weight > 0.0) {
            // Uniform in (0, 1), both ends excluded.
            let drawn = ((mix(point ^ name) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            let score = -weight / drawn.ln();
            if score > best.1 {
                best = (index, score);
            }
        }
        best.0
    }
}

/// Returns the point of a key, equal on all cores and machines (FNV-1a, mixed).
#[must_use]
pub fn point(key: &[u8]) -> u64 {
    let sum = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(sum)
}

/// Returns a number in which every bit depends on every bit of `seed` (splitmix64).
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random selection of a share of requests. Not cryptographically secure.
#[derive(Clone, Debug)]
pub struct ShareSampler(u64);

impl ShareSampler {
    /// Creates a sequence that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> ShareSampler {
        ShareSampler(seed)
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns true for `millionths` of all calls.
    pub fn is_sampled(&mut self, millionths: u32) -> bool {
        // Never true for 0, always true for a million.
        self.next_number() % 1_000_000 < u64::from(millionths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: u64 = 20_000;

    fn chosen(weights: &[(&'static str, u32)]) -> Vec<&'static str> {
        let choice = WeightedChoice::new(weights.iter().copied());
        (0..CLIENTS).map(|client| weights[choice.choose(point(&client.to_be_bytes()))].0).collect()
    }

    fn share(chosen: &[&str], name: &str) -> f64 {
        chosen.iter().filter(|one| **one == name).count() as f64 / CLIENTS as f64
    }

    #[test]
    fn branches_are_chosen_in_proportion_to_their_weights() {
        let all = chosen(&[("stable", 95), ("canary", 5)]);
        assert!((share(&all, "canary") - 0.05).abs() < 0.01, "{}", share(&all, "canary"));
        let all = chosen(&[("a", 1), ("b", 2), ("c", 0), ("d", 1)]);
        assert!((share(&all, "b") - 0.5).abs() < 0.02 && share(&all, "c") == 0.0);
        // With all weights 0, the first branch is chosen.
        assert_eq!(WeightedChoice::new([("a", 0), ("b", 0)]).choose(7), 0);
        assert_eq!(share(&chosen(&[("a", 1_000_000)]), "a"), 1.0);
    }

    #[test]
    fn weight_changes_move_as_few_clients_as_necessary() {
        let before = chosen(&[("stable", 95), ("canary", 5)]);
        let after = chosen(&[("canary", 20), ("stable", 80)]);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        // Clients move only to the branch whose weight increased.
        assert!(moved.clone().all(|(before, _)| *before == "stable"));
        let moved = moved.count() as f64 / CLIENTS as f64;
        assert!((moved - 0.15).abs() < 0.015, "{moved}");
        // An added branch takes clients from all others, and no client moves between those.
        let before = chosen(&[("a", 1), ("b", 1)]);
        let after = chosen(&[("a", 1), ("b", 1), ("c", 1)]);
        assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == "c"));
    }

    #[test]
    fn branch_of_a_client_is_stable_across_versions() {
        // A new version of the server must not move clients.
        let choice = WeightedChoice::new([("stable", 50), ("canary", 50)]);
        let of: Vec<usize> = (0..12u8).map(|client| choice.choose(point(&[client]))).collect();
        assert_eq!(point(b"client"), 0xd33c_696d_2fda_048f);
        assert_eq!(of, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn share_draw_selects_the_configured_fraction() {
        let mut draw = ShareSampler::new(1);
        let drawn = (0..100_000).filter(|_| draw.is_sampled(100_000)).count();
        assert!((9_500..10_500).contains(&drawn), "{drawn}");
        assert!((0..1000).all(|_| !draw.is_sampled(0)) && (0..1000).all(|_| draw.is_sampled(1_000_000)));
    }
}
