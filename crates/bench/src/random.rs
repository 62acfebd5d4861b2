//! Randomness that a seed determines, the same on every machine.

/// A generator of 64-bit numbers (SplitMix64): small, fast, and good enough to order and to pace things.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of that seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1, which is not reached.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product: no bias worth speaking of for bounds far below 2^64.
        ((u128::from(self.bits()) * bound.max(1) as u128) >> 64) as usize
    }

    /// A waiting time between events that come independently of each other, `mean` on average.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Brings `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence_and_the_mean_is_right() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..10_000).map(|_| random.exponential(5.0)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mean = draw(3).iter().sum::<f64>() / 10_000.0;
        assert!((4.8..5.2).contains(&mean), "{mean}");
    }

    #[test]
    fn every_place_is_reached_and_a_shuffle_loses_nothing() {
        let mut random = Random::new(7);
        let mut counts = [0; 5];
        (0..5_000).for_each(|_| counts[random.below(5)] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
