//! What a handful of repeated measurements says: middle, spread, and whether a difference is real.

/// The middle value; the mean of the two middle ones when their number is even. `None` for no values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        1 => Some(upper),
        _ => Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0),
    }
}

/// The least and the greatest value. `None` for no values.
#[must_use]
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// How one thing compares with another, from pairs that were measured one right after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The first as a multiple of the second: the geometric mean over the pairs.
    pub ratio: f64,
    /// The interval that holds the true ratio with the confidence of [`CONFIDENCE`].
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

impl Ratio {
    /// Whether the two can be told apart: 1 lies outside the interval.
    #[must_use]
    pub fn is_distinct(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// The confidence of every interval: one in a hundred misses the truth. With the usual 95 % a comparison of a dozen
/// figures would call one of two equal things faster more often than not.
pub const CONFIDENCE: f64 = 0.99;

/// Compares pairs by the mean of their log ratios, with Student's interval. `None` for fewer than two pairs, or where
/// a value is not above zero.
///
/// A pair sees the same weather, so what slows both does not count; logs, because noise multiplies.
#[must_use]
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    if pairs.len() < 2 || pairs.iter().any(|&(a, b)| a <= 0.0 || b <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    let (mean, error) = mean_and_error(&logs);
    let half = student(logs.len() - 1) * error;
    Some(Ratio { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
}

/// Compares two sets of measurements that were not taken in pairs (Welch). `None` for fewer than two in either.
#[must_use]
pub fn ratio_of_sets(a: &[f64], b: &[f64]) -> Option<Ratio> {
    if a.len() < 2 || b.len() < 2 || a.iter().chain(b).any(|&value| value <= 0.0) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error(&logs(a)), mean_and_error(&logs(b)));
    let (var_a, var_b) = (error_a * error_a, error_b * error_b);
    let spread = var_a * var_a / (a.len() - 1) as f64 + var_b * var_b / (b.len() - 1) as f64;
    let freedom = if spread > 0.0 { (var_a + var_b).powi(2) / spread } else { 1e9 };
    let half = student((freedom.floor() as usize).max(1)) * (var_a + var_b).sqrt();
    let mean = mean_a - mean_b;
    Some(Ratio { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
}

/// The mean and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

/// Student's t for [`CONFIDENCE`], both sides, by degrees of freedom.
fn student(freedom: usize) -> f64 {
    const SMALL: [f64; 30] = [
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977,
        2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763,
        2.756, 2.750,
    ];
    const NORMAL: f64 = 2.576;
    match SMALL.get(freedom.saturating_sub(1)) {
        Some(&t) => t,
        // The distance to the normal distribution shrinks with the degrees of freedom.
        None => NORMAL + (SMALL[29] - NORMAL) * 30.0 / freedom as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_median_ignores_order_and_one_outlier() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[900.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(range(&[3.0, -1.0, 2.0]), Some((-1.0, 3.0)));
        assert_eq!(range(&[]), None);
    }

    /// About normal, by the sum of twelve.
    fn noise(random: &mut Random) -> f64 {
        (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
    }

    /// How many of 2,000 comparisons of eight pairs call the two distinct, and how many cover the truth.
    fn trials(truth: f64, compare: fn(&[(f64, f64)]) -> Option<Ratio>) -> (usize, usize) {
        let mut random = Random::new(42);
        let (mut distinct, mut covered) = (0, 0);
        for _ in 0..2_000 {
            let pairs: Vec<(f64, f64)> = (0..8)
                .map(|_| {
                    let value = |noise: f64| 50_000.0 * (0.02 * noise).exp();
                    (truth * value(noise(&mut random)), value(noise(&mut random)))
                })
                .collect();
            let ratio = compare(&pairs).unwrap();
            distinct += usize::from(ratio.is_distinct());
            covered += usize::from(ratio.low <= truth && truth <= ratio.high);
        }
        (distinct, covered)
    }

    #[test]
    fn equal_things_are_rarely_called_distinct_and_the_interval_covers_the_truth() {
        let unpaired = |pairs: &[(f64, f64)]| {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            ratio_of_sets(&a, &b)
        };
        for compare in [ratio, unpaired as fn(&[(f64, f64)]) -> Option<Ratio>] {
            let (distinct, covered) = trials(1.0, compare);
            assert!(distinct <= 40 && covered >= 1_960, "{distinct} {covered}");
            let (distinct, covered) = trials(1.0 / 1.05, compare);
            assert!(distinct > 1_700 && covered >= 1_960, "5 % with noise of 2 %: {distinct} {covered}");
        }
    }

    #[test]
    fn the_interval_is_students() {
        // Log ratios 0, 0.1, 0.2: mean 0.1, standard error 0.1 / sqrt(3), t(2) = 9.925.
        let pairs = [0.0f64, 0.1, 0.2].map(|log| (log.exp(), 1.0));
        let found = ratio(&pairs).unwrap();
        let half = 9.925 * 0.1 / 3f64.sqrt();
        for (value, log) in [(found.ratio, 0.1), (found.low, 0.1 - half), (found.high, 0.1 + half)] {
            assert!((value.ln() - log).abs() < 1e-9);
        }
        assert!((student(1_000) - 2.581).abs() < 0.002 && (student(60) - 2.660).abs() < 0.01);
    }

    #[test]
    fn too_little_is_no_comparison() {
        assert_eq!(ratio(&[(1.0, 1.0)]), None);
        assert_eq!(ratio(&[(1.0, 1.0), (0.0, 1.0)]), None);
        assert_eq!(ratio_of_sets(&[1.0], &[1.0, 2.0]), None);
        let exact = ratio(&[(2.0, 1.0), (2.0, 1.0)]).unwrap();
        assert!(exact.is_distinct() && (exact.ratio - 2.0).abs() < 1e-12);
    }
}
