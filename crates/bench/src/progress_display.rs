//! Progress display of a run, redrawn in place in a terminal.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::load::{LoadObserver, LoadProgress, TimePoint};
use crate::quantity::{format_digits, format_thousands, format_time};

/// Minimum interval between two updates.
const REDRAW: Duration = Duration::from_millis(200);
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the progress of a run, and erases it when the run ends.
pub struct ProgressDisplay<W: Write> {
    out: W,
    title: String,
    columns: usize,
    drawn_at: Option<Instant>,
    lines: usize,
}

impl<W: Write> ProgressDisplay<W> {
    /// Creates a display that draws to `out`, a terminal with this many columns, below `title`.
    pub fn new(out: W, title: &str, columns: usize) -> ProgressDisplay<W> {
        ProgressDisplay {
            out,
            title: title.to_string(),
            columns: columns.clamp(40, 120),
            drawn_at: None,
            lines: 0,
        }
    }

    fn draw(&mut self, picture: &str) {
        // If the terminal is closed, the measurement continues.
        let _ = write!(self.out, "{}", self.erase_sequence());
        for line in picture.lines() {
            let _ = writeln!(self.out, "{}", truncate(line, self.columns));
        }
        let _ = self.out.flush();
        self.lines = picture.lines().count();
    }

    /// Returns the control sequence that moves the cursor back to the first line and clears the lines below.
    fn erase_sequence(&self) -> String {
        match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

impl<W: Write> LoadObserver for ProgressDisplay<W> {
    fn progress(&mut self, progress: &LoadProgress<'_>) {
        if self.drawn_at.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn_at = Some(Instant::now());
        let picture = render(&self.title, progress, self.columns);
        self.draw(&picture);
    }

    fn measurement_ends(&mut self) {
        let _ = write!(self.out, "{}", self.erase_sequence());
        let _ = self.out.flush();
        self.lines = 0;
        self.drawn_at = None;
    }
}

fn render(title: &str, progress: &LoadProgress<'_>, columns: usize) -> String {
    let points = progress.points;
    let tally = progress.tally;
    let width = columns - 34;
    let mut text = format!("{title}\n");
    text += &match progress.planned_s {
        _ if progress.elapsed_s < 0.0 => format!("  warming up, {:.0} s\n", -progress.elapsed_s),
        Some(planned_s) => {
            let share = (progress.elapsed_s / planned_s).clamp(0.0, 1.0);
            let left = format_time((planned_s - progress.elapsed_s).max(0.0).ceil() * 1e9);
            format!("  {} {:3.0} %  {left} left\n", draw_bar(share, width), share * 100.0)
        }
        None => format!("  {} so far\n", format_time(progress.elapsed_s.max(0.0) * 1e9)),
    };
    let rates: Vec<f64> = points.iter().map(TimePoint::rate).collect();
    let last = last_second(points);
    text += &format!(
        "  {:<10}{:<width$}  {} requests/s\n",
        "rate",
        sparkline(&rates, width),
        format_digits(last.rate())
    );
    for (name, of) in [("p50", (|p| p.p50_ns) as fn(&TimePoint) -> u64), ("p99", |p| p.p99_ns)] {
        let values: Vec<f64> = points.iter().map(|point| of(point) as f64).collect();
        text += &format!(
            "  {name:<10}{:<width$}  {}\n",
            sparkline(&values, width),
            format_time(of(&last) as f64)
        );
    }
    let statuses: Vec<String> = tally
        .statuses()
        .iter()
        .map(|(code, count)| format!("{code} {}×", format_thousands(*count as f64)))
        .collect();
    let errors: Vec<String> =
        tally.errors.iter().map(|(kind, count, _)| format!("{} {count}×", kind.name())).collect();
    let errors = if errors.is_empty() { "no errors".to_string() } else { errors.join(", ") };
    text += &format!("  {:<10}{}; {errors}\n", "answers", statuses.join(", "));
    text
}

/// Merges the points of about the last second.
fn last_second(points: &[TimePoint]) -> TimePoint {
    let Some(last) = points.last() else { return TimePoint::default() };
    let part: Vec<&TimePoint> =
        points.iter().rev().take_while(|point| last.to_s - point.from_s <= 1.05).collect();
    TimePoint {
        from_s: part.last().map_or(last.from_s, |first| first.from_s),
        responses: part.iter().map(|point| point.responses).sum(),
        ..last.clone()
    }
}

/// Draws a sparkline from zero to the greatest value; neighbours are merged if there are too many.
fn sparkline(values: &[f64], width: usize) -> String {
    let each = values.len().div_ceil(width.max(1)).max(1);
    let means: Vec<f64> =
        values.chunks(each).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
    let most = means.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| BARS[((value / most.max(1e-9) * 7.0).round() as usize).min(7)];
    means.iter().map(bar).collect()
}

fn draw_bar(share: f64, width: usize) -> String {
    let full = (share * width as f64).round() as usize;
    format!("{}{}", "━".repeat(full), "─".repeat(width - full.min(width)))
}

fn truncate(line: &str, columns: usize) -> String {
    if line.chars().count() > columns {
        line.chars().take(columns - 1).chain(['…']).collect()
    } else {
        line.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::LoadTally;

    fn points() -> Vec<TimePoint> {
        (0..30u32)
            .map(|at| TimePoint {
                from_s: f64::from(at) / 10.0,
                to_s: f64::from(at + 1) / 10.0,
                responses: u64::from(at) * 10,
                p50_ns: 1_000_000,
                p99_ns: 2_500_000,
                ..TimePoint::default()
            })
            .collect()
    }

    #[test]
    fn progress_display_shows_rate_and_latency() {
        let mut tally = LoadTally::default();
        tally.count_status(200);
        let points = points();
        let progress = LoadProgress { elapsed_s: 3.0, planned_s: Some(12.0), points: &points, tally: &tally };
        let picture = render("http://h/", &progress, 80);
        for part in [
            "http://h/",
            " 25 %  9.00 s left",
            "2,450 requests/s",
            "▁",
            "█",
            "1.00 ms",
            "2.50 ms",
            "200 1×",
            "no errors",
        ] {
            assert!(picture.contains(part), "{part}\n{picture}");
        }
        assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    }

    #[test]
    fn progress_display_is_redrawn_in_place_and_erased() {
        let mut out = Vec::new();
        let mut live = ProgressDisplay::new(&mut out, "t", 80);
        let tally = LoadTally::default();
        let progress = LoadProgress { elapsed_s: -1.0, planned_s: None, points: &[], tally: &tally };
        live.progress(&progress);
        live.progress(&progress);
        live.measurement_ends();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("warming up").count(), 1, "not more often than the eye follows");
        assert!(text.ends_with("\x1b[6A\x1b[J"), "{text:?}");
    }

    #[test]
    fn sparkline_merges_values_to_fit_its_width() {
        assert_eq!(sparkline(&[0.0, 1.0], 10), "▁█");
        assert_eq!(sparkline(&[1.0; 100], 10).chars().count(), 10);
        assert_eq!(sparkline(&[], 10), "");
    }
}
