//! Comparison of two subjects that were measured in alternating runs.

use failure::Failure;
use serde_json::{Value, json};

use crate::figure::{self, Better, Figure, Unit};
use crate::outcome::BenchOutcome;
use crate::outcome_export;
use crate::stats::{self, CONFIDENCE, Ratio};
use crate::table::TextTable;

/// Figures that are compared if both sides have them.
const COMPARED_FIGURES: [&str; 7] = ["cpu", "rate", "p50", "p99", "per-cpu", "pss", "errors"];

/// Highest percentile that is compared.
pub const PERCENTILE_MAX: f64 = 99.0;

/// Comparison of one figure of two subjects.
#[derive(Clone, Debug)]
pub struct VersusLine {
    /// Name of the figure.
    pub figure: &'static str,
    /// Whether the values are means instead of medians.
    pub is_mean: bool,
    /// Median of A, or its mean.
    pub a: f64,
    /// Median of B, or its mean.
    pub b: f64,
    /// B as a multiple of A; `None` if it is not meaningful (errors, zeros, too few measurements).
    pub ratio: Option<Ratio>,
}

/// Comparison of two subjects.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Names of A and B.
    pub names: [String; 2],
    /// Description of the measurement in one sentence.
    pub basis: String,
    /// Compared figures.
    pub lines: Vec<VersusLine>,
}

/// Whether a figure is tested for a difference. Memory is not: it is read repeatedly from the same two
/// processes, which does not show the variation between starts.
fn is_tested(figure: &Figure) -> bool {
    figure.unit != Unit::Bytes
}

/// Figure whose sums over all runs are always compared too: a median says nothing about a server that stands still at
/// times. Of other figures they are compared if a run had none of it, so that the medians cannot be.
const SUMMED_FIGURE: &str = "rate";

/// Returns a line about the mean of all runs, if that says more than the medians.
fn line_of_means(median: &VersusLine, a: &[f64], b: &[f64], ratio: Option<Ratio>) -> Option<VersusLine> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let line = VersusLine { is_mean: true, a: mean(a), b: mean(b), ratio, ..median.clone() };
    let differs = |ratio: Ratio| {
        median.figure == SUMMED_FIGURE && ratio.is_distinct() && line.verdict() != median.verdict()
    };
    let is_compared = Figure::find(median.figure).is_some_and(is_tested);
    let says_more = ratio.is_some_and(|ratio| median.ratio.is_none() || differs(ratio));
    (is_compared && says_more).then_some(line)
}

/// Compares pairs of consecutive runs.
#[must_use]
pub fn of_pairs(names: [String; 2], pairs: &[(BenchOutcome, BenchOutcome)]) -> Comparison {
    let mut lines = Vec::new();
    for name in COMPARED_FIGURES {
        let figure = Figure::find(name).expect("a figure's name");
        let values: Vec<(f64, f64)> =
            pairs.iter().filter_map(|(a, b)| Some((figure.value_in(a)?, figure.value_in(b)?))).collect();
        let (all_a, all_b): (Vec<f64>, Vec<f64>) = values.iter().copied().unzip();
        let (Some(a), Some(b)) = (stats::median(&all_a), stats::median(&all_b)) else { continue };
        // B relative to A: the change when A is replaced by B.
        let swapped: Vec<(f64, f64)> = values.iter().map(|&(a, b)| (b, a)).collect();
        let ratio = is_tested(figure).then(|| stats::ratio(&swapped)).flatten();
        let line = VersusLine { figure: figure.name, is_mean: false, a, b, ratio };
        let of_means = line_of_means(&line, &all_a, &all_b, stats::ratio_of_sums(&swapped));
        lines.extend([Some(line), of_means].into_iter().flatten());
    }
    let basis = format!("{} pairs of runs in turns, medians", pairs.len());
    Comparison { names, basis, lines }
}

/// Compares two results that were saved as JSON, of one run or of several.
///
/// # Errors
/// Returns the reason why they cannot be compared.
pub fn of_records(names: [String; 2], a: &Value, b: &Value) -> Result<Comparison, Failure> {
    let runs_a = recorded_runs(a);
    let runs_b = recorded_runs(b);
    if runs_a.is_empty() || runs_b.is_empty() {
        return Err(Failure::new("these are not results of `komainu bench --json`"));
    }
    let alone = runs_a.len() < 2 || runs_b.len() < 2;
    let mut lines = Vec::new();
    for name in COMPARED_FIGURES {
        let figure = Figure::find(name).expect("a figure's name");
        let of = |runs: &[&Value]| -> Vec<f64> {
            runs.iter().filter_map(|run| run["figures"][figure.key].as_f64()).collect()
        };
        let values_a = of(&runs_a);
        let values_b = of(&runs_b);
        let (Some(a), Some(b)) = (stats::median(&values_a), stats::median(&values_b)) else { continue };
        let ratio = if alone {
            stats::ratio_of_sets(
                &partial_values(runs_b[0], figure.name),
                &partial_values(runs_a[0], figure.name),
            )
        } else {
            stats::ratio_of_sets(&values_b, &values_a)
        };
        let ratio = ratio.filter(|_| is_tested(figure));
        let line = VersusLine { figure: figure.name, is_mean: false, a, b, ratio };
        let (parts_a, parts_b) = match alone {
            true => (partial_values(runs_a[0], figure.name), partial_values(runs_b[0], figure.name)),
            false => (values_a, values_b),
        };
        let of_means = line_of_means(&line, &parts_a, &parts_b, stats::ratio_of_means(&parts_b, &parts_a));
        lines.extend([Some(line), of_means].into_iter().flatten());
    }
    let basis = if alone {
        "one run on a side, cut into parts: what differs from run to run is not in the interval".into()
    } else {
        format!("{} runs against {}, medians", runs_a.len(), runs_b.len())
    };
    Ok(Comparison { names, basis, lines })
}

/// Returns the runs of a record: the record itself, or all runs that it contains.
fn recorded_runs(record: &Value) -> Vec<&Value> {
    match record["runs"].as_array() {
        Some(runs) => runs.iter().collect(),
        None if record["figures"].is_object() => vec![record],
        None => Vec::new(),
    }
}

/// Returns up to ten values from parts of a run, for the figures that points have.
fn partial_values(run: &Value, name: &str) -> Vec<f64> {
    const PARTS: usize = 10;
    let points: &[Value] = run["points"].as_array().map_or(&[], Vec::as_slice);
    let number = |point: &Value, key: &str| point[key].as_f64().unwrap_or(0.0);
    let each = points.len().div_ceil(PARTS).max(1);
    let part = |part: &[Value]| {
        let sum = |key: &str| part.iter().map(|point| number(point, key)).sum::<f64>();
        // A point without responses has no latency.
        let answered = part.iter().filter(|point| number(point, "responses") > 0.0).count();
        let mean = |key: &str| (answered > 0).then(|| sum(key) / answered as f64);
        match name {
            "rate" => Some(sum("responses") / (sum("to_s") - sum("from_s")).max(1e-9)),
            "p50" => mean("p50_us"),
            "p99" => mean("p99_us"),
            _ => None,
        }
    };
    // The last part may be shorter.
    points.chunks(each).filter(|points| points.len() == each).filter_map(part).collect()
}

impl Comparison {
    /// Formats the result as text: a sentence about the measurement, and a table.
    #[must_use]
    pub fn text(&self) -> String {
        let [a, b] = &self.names;
        format!("A  {a}\nB  {b}\n{}\n\n{}", self.basis, self.table().plain("  "))
    }

    /// Formats the figures as a table.
    #[must_use]
    pub fn table(&self) -> TextTable {
        let interval = format!("{:.0} % interval", CONFIDENCE * 100.0);
        let mut table = TextTable::new(&["", "A", "B", "B / A", &interval, "verdict"]);
        for line in &self.lines {
            let figure = Figure::find(line.figure).expect("a figure's name");
            let (ratio, interval) = match line.ratio {
                Some(r) => (format!("{:.3}", r.ratio), format!("{:.3}–{:.3}", r.low, r.high)),
                None => (String::new(), String::new()),
            };
            let a = figure.format_value(line.a);
            let b = figure.format_value(line.b);
            let title =
                if line.is_mean { format!("{}, mean", figure.title) } else { figure.title.to_string() };
            table.add_row(vec![title, a, b, ratio, interval, line.verdict().to_string()]);
        }
        table
    }

    /// Formats the result as JSON; `pairs` are the runs that it was computed from, if available.
    #[must_use]
    pub fn json(&self, pairs: &[(BenchOutcome, BenchOutcome)]) -> Value {
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                let figure = Figure::find(line.figure).expect("a figure's name");
                json!({ "figure": figure.key, "mean": line.is_mean, "a": line.a, "b": line.b, "verdict": line.verdict(),
                    "ratio": line.ratio.map(|r| r.ratio), "low": line.ratio.map(|r| r.low),
                    "high": line.ratio.map(|r| r.high) })
            })
            .collect();
        let side = |of: fn(&(BenchOutcome, BenchOutcome)) -> &BenchOutcome| -> Value {
            pairs.iter().map(|pair| outcome_export::outcome_json(of(pair))).collect()
        };
        json!({ "a": self.names[0], "b": self.names[1], "basis": self.basis, "confidence": CONFIDENCE,
            "comparison": lines, "runs_a": side(|pair| &pair.0), "runs_b": side(|pair| &pair.1) })
    }
}

impl VersusLine {
    /// Returns the verdict in two or three words: better, worse, or no difference found.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        let Some(figure) = figure::ALL_FIGURES.iter().find(|figure| figure.name == self.figure) else {
            return "";
        };
        let Some(ratio) = self.ratio else {
            // If exactly one side is zero, there is no ratio but a clear result: no errors, or no responses.
            let nothing = [self.a, self.b].map(|value| value == 0.0);
            return match (nothing, (self.b > self.a) == (figure.better == Better::Higher)) {
                _ if !is_tested(figure) => "",
                ([true, true], _) => "",
                ([false, false], _) => "cannot be told",
                (_, true) => "B is better",
                (_, false) => "B is worse",
            };
        };
        match (ratio.is_distinct(), (ratio.ratio > 1.0) == (figure.better == Better::Higher)) {
            (false, _) => "no difference found",
            (true, true) => "B is better",
            (true, false) => "B is worse",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: u64) -> BenchOutcome {
        let mut outcome = BenchOutcome::default();
        outcome.measured.seconds = 1.0;
        outcome.measured.responses_in_time = rate;
        if let Some(latency_ns) = 1_000_000_000_u64.checked_div(rate) {
            outcome.measured.tally.latency.record(latency_ns);
        }
        outcome
    }

    #[test]
    fn difference_is_reported_with_its_direction() {
        let pairs: Vec<_> = [1_000, 1_010, 990, 1_005].map(|rate| (run(rate), run(rate * 2 + 3))).into();
        let compared = of_pairs(["a".into(), "b".into()], &pairs);
        let line = |name| compared.lines.iter().find(|line| line.figure == name).unwrap();
        assert_eq!((line("rate").verdict(), line("p50").verdict()), ("B is better", "B is better"));
        assert!((line("rate").ratio.unwrap().ratio - 2.003).abs() < 0.01);
        assert!(compared.text().contains("B is better"));
        let equal: Vec<_> =
            [(1_000, 1_003), (1_010, 1_001), (990, 999), (1_005, 996)].map(|(a, b)| (run(a), run(b))).into();
        let compared = of_pairs(["a".into(), "b".into()], &equal);
        assert_eq!(compared.lines[0].verdict(), "no difference found");
    }

    #[test]
    fn records_are_compared_by_runs_or_parts_of_one_run() {
        let record = |rate: f64| {
            let points: Vec<Value> = (0..30)
                .map(|at| {
                    let wobble = f64::from(at % 3);
                    json!({ "from_s": at, "to_s": at + 1, "responses": rate + wobble, "p50_us": 5.0 + wobble, "p99_us": 9.0 })
                })
                .collect();
            json!({ "figures": { "requests_per_s": rate, "p50_us": 5.0 }, "points": points })
        };
        let compared = of_records(["a".into(), "b".into()], &record(100.0), &record(150.0)).unwrap();
        assert!(compared.basis.contains("parts") && compared.lines[0].ratio.unwrap().is_distinct());
        let several = |rates: &[f64]| json!({ "runs": rates.iter().map(|r| record(*r)).collect::<Vec<_>>() });
        let compared = of_records(
            ["a".into(), "b".into()],
            &several(&[100.0, 104.0, 97.0]),
            &several(&[101.0, 98.0, 103.0]),
        )
        .unwrap();
        assert_eq!(compared.lines[0].verdict(), "no difference found");
        assert!(of_records(["a".into(), "b".into()], &json!({}), &record(1.0)).is_err());
    }

    #[test]
    fn server_that_stands_still_at_times_is_worse() {
        // In two of five runs nothing is answered, and in the others as much as by A.
        let stalls = |at: u64| if at % 5 < 2 { 0 } else { 1_000 };
        let pairs: Vec<_> = (0..60).map(|at| (run(1_000 + at), run(stalls(at)))).collect();
        let compared = of_pairs(["a".into(), "b".into()], &pairs);
        let line = compared.lines.iter().find(|line| line.is_mean).unwrap();
        assert_eq!((line.figure, line.verdict()), ("rate", "B is worse"), "{}", compared.text());
        assert!(
            (line.ratio.unwrap().ratio - 0.6).abs() < 0.03 && compared.text().contains("requests/s, mean")
        );
        let record = |of: &dyn Fn(u64) -> u64| {
            let runs: Vec<Value> =
                (0..60).map(|at| json!({ "figures": { "requests_per_s": of(at) } })).collect();
            json!({ "runs": runs })
        };
        let compared =
            of_records(["a".into(), "b".into()], &record(&|at| 1_000 + at), &record(&stalls)).unwrap();
        assert!(compared.text().contains("B is worse"), "{}", compared.text());
        let equal: Vec<_> = (0..60).map(|at| (run(stalls(at)), run(stalls(at + 1)))).collect();
        assert!(!of_pairs(["a".into(), "b".into()], &equal).text().contains("worse"));
    }

    #[test]
    fn runs_without_errors_do_not_hide_those_with_them() {
        let record = |of: fn(u64) -> u64| {
            let figures =
                |at: u64| json!({ "figures": { "requests_per_s": 100 + at % 3, "errors": of(at) } });
            json!({ "runs": (0..60).map(figures).collect::<Vec<Value>>() })
        };
        // Both have errors in the median run, and none in some.
        let some = record(|at| if at.is_multiple_of(5) { 0 } else { 10 });
        let many = record(|at| if at.is_multiple_of(5) { 0 } else { 500 });
        let compared = of_records(["a".into(), "b".into()], &some, &many).unwrap();
        let verdicts: Vec<(bool, &str)> = compared
            .lines
            .iter()
            .filter(|line| line.figure == "errors")
            .map(|line| (line.is_mean, line.verdict()))
            .collect();
        assert_eq!(verdicts, [(false, "cannot be told"), (true, "B is worse")], "{}", compared.text());
    }

    #[test]
    fn throughput_always_has_a_verdict() {
        let point = json!({ "from_s": 0.0, "to_s": 0.1, "responses": 5 });
        let run = json!({ "figures": { "requests_per_s": 50.0 }, "points": [point] });
        let compared = of_records(["a".into(), "b".into()], &run, &run).unwrap();
        assert_eq!(compared.lines[0].verdict(), "cannot be told", "{}", compared.text());
    }

    #[test]
    fn errors_or_missing_responses_are_worse_without_a_ratio() {
        let record = |rate: f64, errors: f64| {
            let run = json!({ "figures": { "requests_per_s": rate, "errors": errors } });
            json!({ "runs": [run, run, run] })
        };
        let verdict = |a: &Value, b: &Value, name: &str| {
            let compared = of_records(["a".into(), "b".into()], a, b).unwrap();
            compared.lines.iter().find(|line| line.figure == name).unwrap().verdict()
        };
        let good = record(100.0, 0.0);
        let fast_and_wrong = record(900.0, 500.0);
        let silent = record(0.0, 0.0);
        assert_eq!(verdict(&good, &fast_and_wrong, "errors"), "B is worse");
        assert_eq!(verdict(&fast_and_wrong, &good, "errors"), "B is better");
        assert_eq!(verdict(&good, &silent, "rate"), "B is worse");
        assert_eq!(verdict(&good, &good, "errors"), "");
    }
}
