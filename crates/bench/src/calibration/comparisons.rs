//! Comparisons of servers whose difference is known.

use std::time::Duration;

use failure::Failure;

use super::bounds::Bounds;
use super::known_server::CalibrationServer;
use super::measured_case::{Case, Connections, KnownFigure, LoadProtocol, measure_plan, plan, value};
use crate::comparison::{self, Comparison};
use crate::figure::Unit;
use crate::outcome::BenchOutcome;

const PAIRS: usize = 60;
const RUN_TIME: Duration = Duration::from_millis(60);
/// Figures that are compared.
const COMPARED_FIGURES: [&str; 3] = ["rate", "p50", "p99"];

/// A comparison, and the figures that are known of it.
pub(crate) struct KnownComparison {
    pub(crate) title: &'static str,
    /// Paths of A and B in a pair of runs.
    paths: fn(usize) -> [String; 2],
    pub(crate) figures: fn(&Comparison) -> Vec<KnownFigure>,
}

/// All comparisons.
pub(crate) const COMPARISONS: &[KnownComparison] = &[
    KnownComparison {
        title: "A server compared with itself: 60 pairs of 60 ms",
        paths: |_| ["/delay/2".into(), "/delay/2".into()],
        figures: |compared| {
            let differ = verdicts(compared, |verdict| verdict.starts_with("B is"));
            // Of a hundred verdicts, one may be wrong.
            vec![value("figures said to differ", Unit::Count, differ, Bounds::about(0.0, 1.0))]
        },
    },
    KnownComparison {
        title: "B answers after 20 ms, A after 10",
        paths: |_| ["/delay/10".into(), "/delay/20".into()],
        figures: |compared| {
            let worse = verdicts(compared, |verdict| verdict == "B is worse");
            vec![
                value("p50, B / A", Unit::Rate, ratio(compared, "p50", false), Bounds::about(2.0, 0.06)),
                value("figures said to be worse", Unit::Count, worse, Bounds::exactly(3.0)),
            ]
        },
    },
    KnownComparison {
        title: "B stands still in one of three runs",
        paths: |pair| {
            let still = format!("/stall/200/1000000?{pair}");
            ["/delay/2".into(), if pair.is_multiple_of(3) { still } else { "/delay/2".into() }]
        },
        figures: |compared| {
            let rate = compared.lines.iter().rfind(|line| line.figure == "rate");
            let is_worse = f64::from(rate.is_some_and(|line| line.verdict() == "B is worse"));
            let mean = ratio(compared, "rate", true);
            vec![
                value("mean rate, B / A", Unit::Rate, mean, Bounds::about(0.667, 0.03)),
                value("rate said to be worse", Unit::Count, is_worse, Bounds::exactly(1.0)),
            ]
        },
    },
];

/// Returns the number of figures that have such a verdict.
fn verdicts(compared: &Comparison, is_such: fn(&str) -> bool) -> f64 {
    let has_it =
        |name: &&&str| compared.lines.iter().any(|line| line.figure == **name && is_such(line.verdict()));
    COMPARED_FIGURES.iter().filter(has_it).count() as f64
}

fn ratio(compared: &Comparison, name: &str, is_mean: bool) -> f64 {
    let line = compared.lines.iter().find(|line| line.figure == name && line.is_mean == is_mean);
    line.and_then(|line| line.ratio).map_or(f64::NAN, |ratio| ratio.ratio)
}

/// Measures a comparison over HTTP/1.
pub(crate) fn compare(server: &CalibrationServer, known: &KnownComparison) -> Result<Comparison, Failure> {
    let case = Case {
        title: "",
        path: "",
        connections: Connections::Kept,
        channels: &[],
        is_alone: true,
        load: |plan, _, _| (plan.connections, plan.duration) = (4, Some(RUN_TIME)),
        figures: |_, _| {},
    };
    let measure = |target: &str| -> Result<BenchOutcome, Failure> {
        measure_plan(plan(server, &case, LoadProtocol::Http1, target, false)?, target)
    };
    let mut pairs = Vec::new();
    for number in 0..PAIRS {
        let [a, b] = (known.paths)(number);
        pairs.push(if number.is_multiple_of(2) {
            let a = measure(&a)?;
            (a, measure(&b)?)
        } else {
            let b = measure(&b)?;
            (measure(&a)?, b)
        });
    }
    Ok(comparison::of_pairs(["A".into(), "B".into()], &pairs))
}
