//! Histograms of durations, with the resolution of Prometheus' native histograms.
//!
//! Each duration is counted once, in a fine class. The bounds of the fine classes include those of both the
//! native classes (a power of two of seconds, in eighths) and the classic ones, so that either histogram is
//! an exact sum of them.

use crate::counters::Counter;

/// Upper bounds of the classic classes, in microseconds. The last class is unbounded.
pub const DURATION_BOUNDS_US: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];
/// Number of classic classes.
pub const DURATION_CLASSES: usize = DURATION_BOUNDS_US.len() + 1;

/// Prometheus' schema of the native classes: each class is wider than the one before by a factor of 2^(1/8),
/// which is 9 %.
pub const NATIVE_SCHEMA: i32 = 3;
/// Native classes per octave.
const STEPS: i32 = 1 << NATIVE_SCHEMA;
/// Values of 2^(n/8).
const POWERS: [f64; STEPS as usize] = [
    1.0,
    1.090_507_732_665_257_7,
    1.189_207_115_002_721,
    1.296_839_554_651_009_6,
    std::f64::consts::SQRT_2,
    1.542_210_825_407_940_7,
    1.681_792_830_507_429,
    1.834_008_086_409_342_4,
];
/// Upper bound of the zero class, in seconds: 2^-16.
pub const NATIVE_ZERO_MAX_S: f64 = 1.0 / 65_536.0;
/// Native classes that end at 2^-16 s and at 2^10 s (17 minutes). Longer durations have one more class.
const NATIVE_FIRST: i32 = -16 * STEPS;
const NATIVE_LAST: i32 = 10 * STEPS;

/// Number of fine classes with an upper bound.
const FINE_BOUNDS: usize = 221;
/// Number of fine classes.
const FINE_CLASSES: usize = FINE_BOUNDS + 1;
/// Upper bounds of the fine classes, ascending; padded so that a byte index needs no bounds check.
const FINE_BOUNDS_US: [u64; 256] = fine_bounds();
/// Longest duration that is in a bounded class.
const FINE_MAX_US: u64 = FINE_BOUNDS_US[FINE_BOUNDS - 1];

/// Largest power of two such that all shorter durations, in microseconds, are in the first class.
const FIRST_US: u64 = 16;
/// Binary logarithm of the cells per octave in the table of [`fine_class`], chosen so that no cell contains
/// more than one bound.
const CELL_BITS: u32 = 6;
const CELLS: usize = 1 << CELL_BITS;
/// Class of the lowest duration of each cell. Below 2^6 µs each value has its own cell, followed by the
/// octaves up to that of `FINE_MAX_US`; padded to a power of two.
const CELL_CLASSES: [u8; 2_048] = cell_classes();

/// Upper bound of a native class, truncated to whole microseconds, the unit of all durations.
const fn native_bound_us(class: i32) -> u64 {
    let micros = POWERS[class.rem_euclid(STEPS) as usize] * 1e6;
    let octave = class.div_euclid(STEPS);
    let power = (1_u64 << octave.unsigned_abs()) as f64;
    (if octave < 0 { micros / power } else { micros * power }) as u64
}

/// Merges the bounds of the native and classic classes.
const fn fine_bounds() -> [u64; 256] {
    let mut bounds = [u64::MAX; 256];
    let mut at = 0;
    let mut native = NATIVE_FIRST;
    let mut classic = 0;
    while native <= NATIVE_LAST {
        let next = native_bound_us(native);
        let is_classic = classic < DURATION_BOUNDS_US.len() && DURATION_BOUNDS_US[classic] <= next;
        bounds[at] = if is_classic { DURATION_BOUNDS_US[classic] } else { next };
        if bounds[at] == next {
            native += 1;
        }
        if is_classic {
            classic += 1;
        }
        at += 1;
    }
    assert!(at == FINE_BOUNDS && classic == DURATION_BOUNDS_US.len());
    bounds
}

const fn cell_classes() -> [u8; 2_048] {
    let mut classes = [0; 2_048];
    let mut cell = 0;
    let mut class = 0;
    while cell < classes.len() {
        let lowest =
            if cell < CELLS { cell as u64 } else { ((CELLS + cell % CELLS) as u64) << (cell / CELLS - 1) };
        while class < FINE_BOUNDS && FINE_BOUNDS_US[class] < lowest {
            class += 1;
        }
        classes[cell] = class as u8;
        cell += 1;
    }
    classes
}

/// Returns the fine class of a duration. A table gives the class of the lowest duration with the same seven
/// leading bits; a cell contains at most one bound, so one comparison corrects it.
fn fine_class(us: u64) -> usize {
    // Most requests that complete within one turn take no time by the engine's clock.
    if us < FIRST_US {
        return 0;
    }
    let us = us.min(FINE_MAX_US + 1);
    let octave = u64::BITS - 1 - CELL_BITS - (us | CELLS as u64).leading_zeros();
    let cell = (us >> octave) as usize + ((octave as usize) << CELL_BITS);
    let class = usize::from(CELL_CLASSES[cell % CELL_CLASSES.len()]);
    class + usize::from(us > FINE_BOUNDS_US[class])
}

/// Returns the native class of a fine one; not defined for the first, which is the zero class.
fn native_class(fine: usize) -> i32 {
    if fine >= FINE_BOUNDS {
        return NATIVE_LAST + 1;
    }
    let mut low = NATIVE_FIRST;
    let mut high = NATIVE_LAST;
    while low < high {
        let middle = (low + high).div_euclid(2);
        if native_bound_us(middle) < FINE_BOUNDS_US[fine] { low = middle + 1 } else { high = middle }
    }
    low
}

/// A histogram of durations that one core writes and any thread may read: 1,784 bytes.
#[derive(Debug)]
pub struct DurationHistogram {
    classes: [Counter; FINE_CLASSES],
    total_us: Counter,
}

impl Default for DurationHistogram {
    fn default() -> DurationHistogram {
        DurationHistogram {
            classes: std::array::from_fn(|_| Counter::default()),
            total_us: Counter::default(),
        }
    }
}

impl DurationHistogram {
    /// Returns the classic class of a duration.
    #[must_use]
    pub fn class_of(us: u64) -> usize {
        DURATION_BOUNDS_US.partition_point(|bound| *bound < us)
    }

    /// Counts a duration. Must only be called by the core that owns the histogram.
    pub fn observe(&self, us: u64) {
        self.classes[fine_class(us)].add(1);
        self.total_us.add(us);
    }
}

/// Sums of several histograms.
#[derive(Clone, Debug)]
pub struct DurationCounts {
    fine: [u64; FINE_CLASSES],
    total_us: u64,
}

impl Default for DurationCounts {
    fn default() -> DurationCounts {
        DurationCounts { fine: [0; FINE_CLASSES], total_us: 0 }
    }
}

impl DurationCounts {
    /// Returns the sum of the histograms.
    #[must_use]
    pub fn of<'h>(histograms: impl Iterator<Item = &'h DurationHistogram>) -> DurationCounts {
        let mut sum = DurationCounts::default();
        for histogram in histograms {
            sum.total_us += histogram.total_us.value();
            sum.fine.iter_mut().zip(&histogram.classes).for_each(|(sum, class)| *sum += class.value());
        }
        sum
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.fine.iter().sum()
    }

    /// Returns the sum of the durations, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.total_us
    }

    /// Returns the number of durations in each classic class.
    #[must_use]
    pub fn classic(&self) -> [u64; DURATION_CLASSES] {
        let mut classes = [0; DURATION_CLASSES];
        for (fine, count) in self.fine.iter().enumerate().filter(|(_, count)| **count > 0) {
            // The last fine bound is `u64::MAX`, which is in the unbounded classic class.
            classes[DurationHistogram::class_of(FINE_BOUNDS_US[fine])] += count;
        }
        classes
    }

    /// Returns the number of durations in the native zero class.
    #[must_use]
    pub fn native_zero(&self) -> u64 {
        self.fine[0]
    }

    /// Returns the non-empty native classes and their counts, ascending. Class `n` contains durations above
    /// 2^((n-1)/8) s up to 2^(n/8) s.
    #[must_use]
    pub fn native(&self) -> Vec<(i32, u64)> {
        let mut classes: Vec<(i32, u64)> = Vec::new();
        for (fine, count) in self.fine.iter().enumerate().skip(1).filter(|(_, count)| **count > 0) {
            let native = native_class(fine);
            match classes.last_mut().filter(|(last, _)| *last == native) {
                Some((_, sum)) => *sum += count,
                None => classes.push((native, *count)),
            }
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations() -> impl Iterator<Item = u64> {
        let near = FINE_BOUNDS_US[..FINE_BOUNDS].iter().flat_map(|us| [us - 1, *us, us + 1]);
        (0..5_000).chain(near).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX])
    }

    #[test]
    fn every_duration_is_in_the_class_whose_bounds_enclose_it() {
        for us in durations() {
            let bounds = &FINE_BOUNDS_US[..FINE_BOUNDS];
            assert_eq!(fine_class(us), bounds.partition_point(|bound| *bound < us), "{us}");
        }
    }

    #[test]
    fn classic_and_native_buckets_are_exact() {
        for us in durations() {
            let histogram = DurationHistogram::default();
            histogram.observe(us);
            let counts = DurationCounts::of([&histogram].into_iter());
            assert_eq!((counts.count(), counts.total_us()), (1, us));
            assert_eq!(counts.classic()[DurationHistogram::class_of(us)], 1, "{us}");
            let seconds = us as f64 / 1e6;
            let native = counts.native();
            if seconds <= NATIVE_ZERO_MAX_S {
                assert_eq!((counts.native_zero(), native.len()), (1, 0), "{us}");
                continue;
            }
            let [(class, 1)] = native[..] else { panic!("{us}: {native:?}") };
            let bound = |class: i32| f64::exp2(f64::from(class) / f64::from(STEPS));
            assert!(seconds > bound(class - 1), "{us}: {class}");
            assert!(seconds <= bound(class) || class == NATIVE_LAST + 1, "{us}: {class}");
        }
    }

    #[test]
    fn duration_histogram_has_the_expected_size() {
        assert_eq!(size_of::<DurationHistogram>(), 1_784);
    }
}
