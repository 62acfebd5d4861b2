//! Statistics of repeated measurements: median, spread, and whether a difference is significant.

/// Returns the median; for an even number of values, the mean of the two middle ones. `None` for no values.
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

/// Returns the least and the greatest value. `None` for no values.
#[must_use]
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// Comparison of two subjects, from pairs of consecutive runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The first as a multiple of the second: the central value of the ratios of the pairs.
    pub ratio: f64,
    /// Lower bound of the interval that contains the true ratio with confidence [`CONFIDENCE`].
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
}

impl Ratio {
    /// Returns the ratio of this logarithm, whose interval extends by `half` to both sides.
    fn of_log(log: f64, half: f64) -> Ratio {
        Ratio { ratio: log.exp(), low: (log - half).exp(), high: (log + half).exp() }
    }

    /// Whether the difference is significant: 1 lies outside the interval.
    #[must_use]
    pub fn is_distinct(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Confidence level of every interval: one in a hundred misses the true value. With the usual 95 %, a
/// comparison of a dozen equal figures would report a difference in almost every second case.
pub const CONFIDENCE: f64 = 0.99;

/// Compares pairs by the logarithm of their ratios. `None` for fewer than two pairs, or if a value is not
/// above zero.
///
/// Both runs of a pair are exposed to the same other load on the machine, so it cancels out. Logarithms are
/// used because noise is multiplicative. Fewer than [`RANKED_MIN`] pairs give their mean and Student's
/// interval. More pairs give the pseudo-median and the signed-rank interval (Hodges, Lehmann; Wilcoxon),
/// which only assumes symmetric noise: a disturbed pair counts as one pair, however large its error.
#[must_use]
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    if pairs.len() < 2 || pairs.iter().any(|&(a, b)| a <= 0.0 || b <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    let (middle, low, high) = if logs.len() < RANKED_MIN {
        let (mean, error) = mean_and_error(&logs);
        let half = student_t(logs.len() - 1) * error;
        (mean, mean - half, mean + half)
    } else {
        let mut means: Vec<f64> = Vec::with_capacity(logs.len() * (logs.len() + 1) / 2);
        for (at, one) in logs.iter().enumerate() {
            means.extend(logs[at..].iter().map(|other| (one + other) / 2.0));
        }
        means.sort_by(f64::total_cmp);
        let cut = excluded_ranks(logs.len());
        (median(&means)?, means[cut], means[means.len() - 1 - cut])
    };
    Some(Ratio { ratio: middle.exp(), low: low.exp(), high: high.exp() })
}

/// Minimum number of pairs for the signed-rank interval: with fewer, it covers nearly the whole range, and
/// the mean is used.
const RANKED_MIN: usize = 12;

/// Returns the number of sorted pairwise means that lie outside the interval of [`CONFIDENCE`] on each side.
fn excluded_ranks(count: usize) -> usize {
    const EXACT_MAX: usize = 60;
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let most = count * (count + 1) / 2;
    if count > EXACT_MAX {
        let mean = most as f64 / 2.0;
        let n = count as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        return (mean - NORMAL_QUANTILE * deviation - 0.5).floor().max(0.0) as usize;
    }
    // Probability of each sum of ranks, if every rank is positive with probability one half.
    let mut chance = vec![0.0; most + 1];
    chance[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..=most).rev() {
            chance[sum] = (chance[sum] + if sum >= rank { chance[sum - rank] } else { 0.0 }) / 2.0;
        }
    }
    let mut below = 0.0;
    let within = |chance: &f64| {
        below += chance;
        below <= tail
    };
    // The sum zero (no positive rank) excludes no mean.
    chance.iter().map(within).take_while(|within| *within).count().saturating_sub(1)
}

/// Compares two sets of unpaired measurements (Welch). `None` for fewer than two values in either set.
#[must_use]
pub fn ratio_of_sets(a: &[f64], b: &[f64]) -> Option<Ratio> {
    if a.len() < 2 || b.len() < 2 || a.iter().chain(b).any(|&value| value <= 0.0) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error(&logs(a)), mean_and_error(&logs(b)));
    let var_a = error_a * error_a;
    let var_b = error_b * error_b;
    let spread = var_a * var_a / (a.len() - 1) as f64 + var_b * var_b / (b.len() - 1) as f64;
    let freedom = if spread > 0.0 { (var_a + var_b).powi(2) / spread } else { 1e9 };
    let half = student_t((freedom.floor() as usize).max(1)) * (var_a + var_b).sqrt();
    Some(Ratio::of_log(mean_a - mean_b, half))
}

/// Compares the sums of pairs, where the median of their ratios misleads: a server that stands still in two runs of
/// five has done three fifths of the work, whatever it does in the others. `None` for fewer than two pairs, or if a
/// side is zero throughout.
///
/// The interval is Student's for the logarithm of the ratio, with the error by leaving out each pair (jackknife).
#[must_use]
pub fn ratio_of_sums(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let (sum_a, sum_b) = pairs.iter().fold((0.0, 0.0), |(a, b), pair| (a + pair.0, b + pair.1));
    if pairs.len() < 2 || sum_a <= 0.0 || sum_b <= 0.0 {
        return None;
    }
    let count = pairs.len() as f64;
    // A side whose only value above zero is left out counts as half of the least ratio that can be told.
    let rest = |sum: f64, value: f64| (sum - value).max(sum / (2.0 * count));
    let logs: Vec<f64> = pairs.iter().map(|&(a, b)| (rest(sum_a, a) / rest(sum_b, b)).ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    Some(Ratio::of_log(
        (sum_a / sum_b).ln(),
        student_t(pairs.len() - 1) * (squares * (count - 1.0) / count).sqrt(),
    ))
}

/// Compares the means of two sets of unpaired measurements, as [`ratio_of_sums`] does those of pairs.
#[must_use]
pub fn ratio_of_means(a: &[f64], b: &[f64]) -> Option<Ratio> {
    let relative_error = |values: &[f64]| {
        let (mean, error) = mean_and_error(values);
        (values.len() > 1 && mean > 0.0).then_some((mean, error / mean))
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (relative_error(a)?, relative_error(b)?);
    let half = student_t(a.len().min(b.len()) - 1) * error_a.hypot(error_b);
    Some(Ratio::of_log((mean_a / mean_b).ln(), half))
}

/// Two-sided quantile of the normal distribution for [`CONFIDENCE`], in standard deviations.
const NORMAL_QUANTILE: f64 = 2.576;

/// Returns the mean and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

/// Returns Student's two-sided t for [`CONFIDENCE`] and these degrees of freedom.
fn student_t(freedom: usize) -> f64 {
    const SMALL: [f64; 30] = [
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977,
        2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763,
        2.756, 2.750,
    ];
    match SMALL.get(freedom.saturating_sub(1)) {
        Some(&t) => t,
        // The difference from the normal distribution is inversely proportional to the degrees of freedom.
        None => NORMAL_QUANTILE + (SMALL[29] - NORMAL_QUANTILE) * 30.0 / freedom as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn the_median_ignores_order_and_one_outlier() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[900.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(range(&[3.0, -1.0, 2.0]), Some((-1.0, 3.0)));
        assert_eq!(range(&[]), None);
    }

    /// Returns an approximately normal value: the sum of twelve uniform ones.
    fn noise(random: &mut Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    /// Runs 2,000 comparisons of eight pairs; returns how many find a difference, and how many intervals
    /// contain the true ratio.
    fn count_trials(truth: f64, compare: fn(&[(f64, f64)]) -> Option<Ratio>) -> (usize, usize) {
        let mut random = Rng::with_seed(42);
        let mut distinct = 0;
        let mut covered = 0;
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
    fn confidence_interval_has_the_expected_error_rates() {
        let unpaired = |pairs: &[(f64, f64)]| {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            ratio_of_sets(&a, &b)
        };
        for compare in [ratio, unpaired as fn(&[(f64, f64)]) -> Option<Ratio>] {
            let (distinct, covered) = count_trials(1.0, compare);
            assert!(distinct <= 40 && covered >= 1_960, "{distinct} {covered}");
            let (distinct, covered) = count_trials(1.0 / 1.05, compare);
            assert!(distinct > 1_700 && covered >= 1_960, "5 % with noise of 2 %: {distinct} {covered}");
        }
    }

    #[test]
    fn confidence_interval_uses_students_t() {
        // Log ratios 0, 0.1, 0.2: mean 0.1, standard error 0.1 / sqrt(3), t(2) = 9.925.
        let pairs = [0.0f64, 0.1, 0.2].map(|log| (log.exp(), 1.0));
        let found = ratio(&pairs).unwrap();
        let half = 9.925 * 0.1 / 3f64.sqrt();
        for (value, log) in [(found.ratio, 0.1), (found.low, 0.1 - half), (found.high, 0.1 + half)] {
            assert!((value.ln() - log).abs() < 1e-9);
        }
        assert!((student_t(1_000) - 2.581).abs() < 0.002 && (student_t(60) - 2.660).abs() < 0.01);
    }

    #[test]
    fn rank_interval_follows_wilcoxon_and_resists_outliers() {
        // Critical values of the signed-rank test at 0.005 per side, as the number of excluded means.
        assert_eq!([12, 20, 30, 50].map(excluded_ranks), [7, 37, 109, 373]);
        // The switch to the approximation causes only a small step.
        assert!(
            excluded_ranks(61) - excluded_ranks(60) < 20,
            "{} {}",
            excluded_ranks(60),
            excluded_ranks(61)
        );
        let mut pairs: Vec<(f64, f64)> = (0..20).map(|at| (1.05 + 0.002 * f64::from(at % 5), 1.0)).collect();
        pairs[3] = (0.1, 1.0);
        pairs[8] = (9.0, 1.0);
        let found = ratio(&pairs).unwrap();
        assert!(found.low > 1.04 && found.high < 1.07 && (found.ratio - 1.054).abs() < 0.003, "{found:?}");
        let even: Vec<(f64, f64)> = (0..20).map(|at| (1.0 + 0.01 * f64::from(at % 2), 1.005)).collect();
        assert!(!ratio(&even).unwrap().is_distinct());
    }

    #[test]
    fn heavy_tailed_noise_keeps_error_rate_and_power() {
        let mut random = Rng::with_seed(7);
        let mut equal = 0;
        let mut slower = 0;
        for _ in 0..500 {
            let mut value = |factor: f64| {
                // In one of ten runs, another program uses up to half of the machine.
                let struck = if random.f64() < 0.1 { 1.0 + random.f64() } else { 1.0 };
                factor * struck * (0.02 * noise(&mut random)).exp()
            };
            let mut reported = |factor| {
                let pairs: Vec<(f64, f64)> = (0..40).map(|_| (value(factor), value(1.0))).collect();
                usize::from(ratio(&pairs).unwrap().is_distinct())
            };
            equal += reported(1.0);
            slower += reported(1.05);
        }
        assert!(equal <= 15 && slower >= 450, "of 500: {equal} equals and {slower} that are 5 % slower");
    }

    #[test]
    fn sums_of_runs_show_what_their_median_hides() {
        // B stands still in two of five runs.
        let pairs: Vec<(f64, f64)> =
            (0..60).map(|at| (if at % 5 < 2 { 0.0 } else { 1.0 + 0.01 * f64::from(at % 3) }, 1.0)).collect();
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        assert_eq!(ratio(&pairs), None);
        for found in [ratio_of_sums(&pairs).unwrap(), ratio_of_means(&a, &b).unwrap()] {
            assert!((found.ratio - 0.606).abs() < 0.002 && found.is_distinct(), "{found:?}");
            assert!(found.low > 0.4 && found.high < 0.9, "{found:?}");
        }
        assert_eq!(ratio_of_sums(&[(0.0, 1.0), (0.0, 1.0)]), None);
        assert!(!ratio_of_sums(&[(0.0, 1.0), (3.0, 1.0)]).unwrap().is_distinct());
        let (distinct, covered) = count_trials(1.0, ratio_of_sums);
        assert!(distinct <= 40 && covered >= 1_960, "{distinct} {covered}");
    }

    #[test]
    fn too_few_values_yield_no_comparison() {
        assert_eq!(ratio(&[(1.0, 1.0)]), None);
        assert_eq!(ratio(&[(1.0, 1.0), (0.0, 1.0)]), None);
        assert_eq!(ratio_of_sets(&[1.0], &[1.0, 2.0]), None);
        let exact = ratio(&[(2.0, 1.0), (2.0, 1.0)]).unwrap();
        assert!(exact.is_distinct() && (exact.ratio - 2.0).abs() < 1e-12);
    }
}
