//! Progress of one experiment, or of several that run one after the other.

use std::time::{Duration, Instant};

use crate::quantity;

/// Counts the measurements that are done and those that are left.
#[derive(Debug)]
pub struct RunProgress {
    began: Instant,
    /// Measurements made by this process.
    made: u32,
    /// Measurements of experiments before this one.
    before: usize,
    /// Estimated measurements of experiments after this one.
    after: usize,
    /// Whether each measurement is reported where no display shows it.
    pub reports_each: bool,
}

impl Default for RunProgress {
    fn default() -> RunProgress {
        RunProgress { began: Instant::now(), made: 0, before: 0, after: 0, reports_each: true }
    }
}

impl RunProgress {
    /// Progress of several experiments, whose measurements are not reported one by one.
    #[must_use]
    pub fn of_several() -> RunProgress {
        RunProgress { reports_each: false, ..RunProgress::default() }
    }

    /// Begins an experiment after which others with `after` measurements follow.
    pub fn begin(&mut self, after: usize) {
        self.after = after;
    }

    /// Ends an experiment of `measurements`.
    pub fn end(&mut self, measurements: usize) {
        self.before += measurements;
    }

    /// Counts a measurement.
    pub fn made_one(&mut self) {
        self.made += 1;
    }

    /// Describes the next measurement of an experiment: its number, the number of all, and the time left, once it is
    /// known. `measurements` are all of this experiment, of which `left` are still to be made.
    #[must_use]
    pub fn title(&self, measurements: usize, left: usize) -> String {
        let number = self.before + measurements - left + 1;
        let all = self.before + measurements + self.after;
        format!(
            "{number} of {all}{}",
            self.time_left(left).map_or(String::new(), |left| format!(", {left} left"))
        )
    }

    fn time_left(&self, left: usize) -> Option<String> {
        let each = (self.made > 0).then(|| self.began.elapsed() / self.made)?;
        let left = u32::try_from(left + self.after).unwrap_or(u32::MAX);
        Some(quantity::format_time(each.checked_mul(left).unwrap_or(Duration::MAX).as_nanos() as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_experiments_are_counted_together() {
        let mut progress = RunProgress::default();
        progress.begin(10);
        assert_eq!(progress.title(6, 6), "1 of 16");
        progress.made_one();
        assert!(progress.title(6, 5).starts_with("2 of 16, "), "{}", progress.title(6, 5));
        progress.end(6);
        progress.begin(0);
        assert!(progress.title(9, 9).starts_with("7 of 15, "), "{}", progress.title(9, 9));
    }
}
