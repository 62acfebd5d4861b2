//! Random waiting times.

/// Returns an exponentially distributed waiting time with this mean, as between independent events.
pub fn exponential_delay(random: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.f64()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence_and_the_mean_is_right() {
        let draw = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..10_000).map(|_| exponential_delay(&mut random, 5.0)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mean = draw(3).iter().sum::<f64>() / 10_000.0;
        assert!((4.8..5.2).contains(&mean), "{mean}");
    }
}
