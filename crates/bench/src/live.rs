//! Progress display of a run, redrawn in place in a terminal.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::load::{Observer, Point, Progress};
use crate::quantity::{digits, thousands, time};

/// Minimum interval between two updates.
const REDRAW: Duration = Duration::from_millis(200);
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the progress of a run, and erases it when the run ends.
pub struct Live<W: Write> {
    out: W,
    title: String,
    columns: usize,
    drawn: Option<Instant>,
    lines: usize,
}

impl<W: Write> Live<W> {
    /// Creates a display that draws to `out`, a terminal with this many columns, below `title`.
    pub fn new(out: W, title: &str, columns: usize) -> Live<W> {
        Live { out, title: title.to_string(), columns: columns.clamp(40, 120), drawn: None, lines: 0 }
    }

    fn draw(&mut self, picture: &str) {
        // If the terminal is closed, the measurement continues.
        let _ = write!(self.out, "{}", self.erasing());
        for line in picture.lines() {
            let _ = writeln!(self.out, "{}", cut(line, self.columns));
        }
        let _ = self.out.flush();
        self.lines = picture.lines().count();
    }

    /// Returns the control sequence that moves the cursor back to the first line and clears the lines below.
    fn erasing(&self) -> String {
        match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

impl<W: Write> Observer for Live<W> {
    fn progress(&mut self, progress: &Progress<'_>) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let picture = picture(&self.title, progress, self.columns);
        self.draw(&picture);
    }

    fn count_ends(&mut self) {
        let _ = write!(self.out, "{}", self.erasing());
        let _ = self.out.flush();
        self.lines = 0;
        self.drawn = None;
    }
}

fn picture(title: &str, progress: &Progress<'_>, columns: usize) -> String {
    let (points, tally) = (progress.points, progress.tally);
    let width = columns - 34;
    let mut text = format!("{title}\n");
    text += &match progress.planned_s {
        _ if progress.elapsed_s < 0.0 => format!("  warming up, {:.0} s\n", -progress.elapsed_s),
        Some(planned_s) => {
            let share = (progress.elapsed_s / planned_s).clamp(0.0, 1.0);
            let left = time((planned_s - progress.elapsed_s).max(0.0).ceil() * 1e9);
            format!("  {} {:3.0} %  {left} left\n", bar(share, width), share * 100.0)
        }
        None => format!("  {} so far\n", time(progress.elapsed_s.max(0.0) * 1e9)),
    };
    let rates: Vec<f64> = points.iter().map(Point::rate).collect();
    let last = recent(points);
    text +=
        &format!("  {:<10}{:<width$}  {} requests/s\n", "rate", spark(&rates, width), digits(last.rate()));
    for (name, of) in [("p50", (|p| p.p50_ns) as fn(&Point) -> u64), ("p99", |p| p.p99_ns)] {
        let values: Vec<f64> = points.iter().map(|point| of(point) as f64).collect();
        text += &format!("  {name:<10}{:<width$}  {}\n", spark(&values, width), time(of(&last) as f64));
    }
    let statuses: Vec<String> = tally
        .statuses()
        .iter()
        .map(|(code, count)| format!("{code} {}×", thousands(*count as f64)))
        .collect();
    let errors: Vec<String> =
        tally.errors.iter().map(|(kind, count, _)| format!("{} {count}×", kind.name())).collect();
    let errors = if errors.is_empty() { "no errors".to_string() } else { errors.join(", ") };
    text += &format!("  {:<10}{}; {errors}\n", "answers", statuses.join(", "));
    text
}

/// Merges the points of about the last second.
fn recent(points: &[Point]) -> Point {
    let Some(last) = points.last() else { return Point::default() };
    let part: Vec<&Point> =
        points.iter().rev().take_while(|point| last.to_s - point.from_s <= 1.05).collect();
    Point {
        from_s: part.last().map_or(last.from_s, |first| first.from_s),
        responses: part.iter().map(|point| point.responses).sum(),
        ..last.clone()
    }
}

/// Draws a sparkline from zero to the greatest value; neighbours are merged if there are too many.
fn spark(values: &[f64], width: usize) -> String {
    let each = values.len().div_ceil(width.max(1)).max(1);
    let means: Vec<f64> =
        values.chunks(each).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
    let most = means.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| BARS[((value / most.max(1e-9) * 7.0).round() as usize).min(7)];
    means.iter().map(bar).collect()
}

fn bar(share: f64, width: usize) -> String {
    let full = (share * width as f64).round() as usize;
    format!("{}{}", "━".repeat(full), "─".repeat(width - full.min(width)))
}

fn cut(line: &str, columns: usize) -> String {
    match line.chars().count() > columns {
        true => line.chars().take(columns - 1).chain(['…']).collect(),
        false => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Tally;

    fn points() -> Vec<Point> {
        (0..30u32)
            .map(|at| Point {
                from_s: f64::from(at) / 10.0,
                to_s: f64::from(at + 1) / 10.0,
                responses: u64::from(at) * 10,
                p50_ns: 1_000_000,
                p99_ns: 2_500_000,
                ..Point::default()
            })
            .collect()
    }

    #[test]
    fn the_picture_shows_progress_rate_and_latency() {
        let mut tally = Tally::default();
        tally.count_status(200);
        let points = points();
        let progress = Progress { elapsed_s: 3.0, planned_s: Some(12.0), points: &points, tally: &tally };
        let picture = picture("http://h/", &progress, 80);
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
    fn it_redraws_in_place_and_leaves_nothing_behind() {
        let mut out = Vec::new();
        let mut live = Live::new(&mut out, "t", 80);
        let tally = Tally::default();
        let progress = Progress { elapsed_s: -1.0, planned_s: None, points: &[], tally: &tally };
        live.progress(&progress);
        live.progress(&progress);
        live.count_ends();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("warming up").count(), 1, "not more often than the eye follows");
        assert!(text.ends_with("\x1b[6A\x1b[J"), "{text:?}");
    }

    #[test]
    fn many_values_share_bars() {
        assert_eq!(spark(&[0.0, 1.0], 10), "▁█");
        assert_eq!(spark(&[1.0; 100], 10).chars().count(), 10);
        assert_eq!(spark(&[], 10), "");
    }
}
