//! Figures of a row: those of Komainu and its peers, from the report of an experiment or from a file of saved results.

use std::collections::BTreeMap;

use failure::Failure;
use serde_json::{Map, Value, json};

use crate::figure::{Better, Figure};
use crate::lab::aim;
use crate::lab::file::{Aim, BEST, Bound};
use crate::lab::row_file::LabRow;
use crate::quantity;
use crate::stats::{self, Ratio};

/// Keys of the figures that are kept.
const KEPT: [&str; 5] = ["cpu_us_per_request", "requests_per_s", "p50_us", "p99_us", "pss_bytes"];

/// Figures of one row. Figures are medians of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFigures {
    /// Name of the row.
    pub name: String,
    /// Title of the row.
    pub title: String,
    /// Key of the figure by which the row is judged.
    pub figure: String,
    /// Name of the subject that is Komainu.
    pub ours: String,
    /// Figures of each subject by key.
    pub subjects: BTreeMap<String, BTreeMap<String, f64>>,
    /// Ratios to the best peer of each figure.
    pub ratios: Vec<RowRatio>,
    /// Aims, and whether they are met.
    pub aims: Vec<RowAim>,
    /// Version of each subject, as it says it.
    pub versions: BTreeMap<String, String>,
    /// Subjects without figures, and why.
    pub missing: BTreeMap<String, String>,
    /// Number of rounds.
    pub rounds: usize,
    /// Time of the measurement.
    pub date: String,
    /// Machine.
    pub machine: String,
}

/// A figure of Komainu as a multiple of the best peer's.
#[derive(Clone, Debug, PartialEq)]
pub struct RowRatio {
    /// Key of the figure.
    pub figure: String,
    /// Name of the best peer.
    pub of: String,
    /// Ratio of the medians.
    pub ratio: f64,
    /// Interval of the ratio, from the pairs of each round; both ends are the ratio if there was one round only.
    pub interval: (f64, f64),
}

/// An aim of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowAim {
    /// Figure, value, bound and verdict.
    pub text: String,
    /// The bound alone, if the aim is for the row's figure and the best peer, or absolute.
    pub bound: Option<String>,
    /// Whether it is met.
    pub is_met: bool,
}

/// Whether a higher value of the figure is better.
pub(crate) fn is_higher_better(key: &str) -> bool {
    Figure::find(key).is_some_and(|figure| figure.better == Better::Higher)
}

impl RowRatio {
    /// Whether the best peer is ahead.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        if is_higher_better(&self.figure) { self.ratio < 0.995 } else { self.ratio > 1.005 }
    }
}

/// Runs of a cell: the figures of each repetition.
type Runs = Vec<(u64, Map<String, Value>)>;

impl RowFigures {
    /// Takes the figures of `row` from the report of its experiment ([`crate::lab::report::LabFindings::json`]).
    ///
    /// # Errors
    /// Returns the reason if there are no figures of Komainu.
    pub fn from_report(row: &LabRow, report: &Value) -> Result<RowFigures, Failure> {
        let is_of_row = |cell: &&Value| {
            row.levels.iter().all(|(factor, level)| cell["levels"][factor].as_str() == Some(level.as_str()))
        };
        let cells = report["cells"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut runs: BTreeMap<String, Runs> = BTreeMap::new();
        let mut peers: Vec<String> = Vec::new();
        let mut missing = BTreeMap::new();
        for cell in cells.iter().filter(is_of_row) {
            let Some(name) = cell["subject"].as_str() else { continue };
            if let Some(broken) = cell["broken"].as_str() {
                missing.insert(name.to_string(), format!("broken, {broken}"));
                continue;
            }
            let of_cell: Runs = cell["runs"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|run| Some((run["repetition"].as_u64()?, run["figures"].as_object()?.clone())))
                .collect();
            if of_cell.is_empty() {
                continue;
            }
            if cell["peer"].as_bool() == Some(true) {
                peers.push(name.to_string());
            }
            runs.insert(name.to_string(), of_cell);
        }
        for skipped in report["skipped"].as_array().into_iter().flatten() {
            if let (Some(name), Some(why)) = (skipped["name"].as_str(), skipped["said"].as_str()) {
                // A subject may have one part for each level.
                if !runs.contains_key(name) {
                    missing.entry(name.to_string()).or_insert_with(|| format!("skipped, {why}"));
                }
            }
        }
        let ours = runs.get(&row.subject).ok_or_else(|| {
            let why = missing.get(&row.subject).map_or("it was not measured", String::as_str);
            Failure::new(format!("{}: {}: {why}", row.name, row.subject))
        })?;
        let ratio_to = |other: &str, key: &str| -> Option<RowRatio> {
            let pairs = pairs_of(ours, runs.get(other)?, key);
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            let ratio = stats::median(&a)? / stats::median(&b)?;
            let interval = stats::ratio(&pairs).map_or((ratio, ratio), |Ratio { low, high, .. }| (low, high));
            let of = other.to_string();
            ratio.is_finite().then(|| RowRatio { figure: key.to_string(), of, ratio, interval })
        };
        let best = |key: &str| {
            let sign = if is_higher_better(key) { -1.0 } else { 1.0 };
            let value = |name: &&String| sign * median_of(&runs[*name], key).unwrap_or(f64::INFINITY * sign);
            peers
                .iter()
                .filter(|name| median_of(&runs[*name], key).is_some())
                .min_by(|a, b| value(a).total_cmp(&value(b)))
        };
        let ratios: Vec<RowRatio> =
            judged_figures(&row.figure).into_iter().filter_map(|key| ratio_to(best(key)?, key)).collect();
        let aims = row.aims.iter().filter_map(|aim| {
            let compared = match aim.of.as_deref() {
                None => None,
                Some(BEST) => Some(ratio_to(best(&aim.figure)?, &aim.figure)?),
                Some(of) => Some(ratio_to(of, &aim.figure)?),
            };
            judge(row, aim, compared.as_ref(), median_of(ours, &aim.figure)?)
        });
        let aims = aims.collect();
        let versions = report["versions"].as_array().into_iter().flatten().filter_map(|version| {
            let name = version["name"].as_str().filter(|name| runs.contains_key(*name))?;
            Some((name.to_string(), version["said"].as_str()?.to_string()))
        });
        Ok(RowFigures {
            name: row.name.clone(),
            title: row.title.clone(),
            figure: row.figure.clone(),
            ours: row.subject.clone(),
            ratios,
            aims,
            versions: versions.collect(),
            rounds: ours.len(),
            date: quantity::format_date(report["unix_s"].as_u64().unwrap_or_default()),
            machine: report["machine"].as_str().unwrap_or_default().to_string(),
            missing,
            subjects: runs.iter().map(|(name, runs)| (name.clone(), medians(runs))).collect(),
        })
    }

    /// Returns a figure of a subject.
    #[must_use]
    pub fn value(&self, subject: &str, key: &str) -> Option<f64> {
        self.subjects.get(subject)?.get(key).copied()
    }

    /// Returns the ratio of a figure to that of the best peer.
    #[must_use]
    pub fn ratio(&self, key: &str) -> Option<&RowRatio> {
        self.ratios.iter().find(|ratio| ratio.figure == key)
    }

    /// Whether a peer is ahead in the figure by which the row is judged.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.ratio(&self.figure).is_some_and(RowRatio::is_behind)
    }

    /// Returns the number in the version of a subject; an empty text if it has none.
    #[must_use]
    pub fn short_version(&self, subject: &str) -> &str {
        self.versions.get(subject).map_or("", |said| version_number(said))
    }

    /// Converts the row to JSON, for the file of results.
    #[must_use]
    pub fn json(&self) -> Value {
        let subjects: Map<String, Value> = self
            .subjects
            .iter()
            .map(|(name, figures)| {
                let rounded = figures.iter().map(|(key, value)| (key.clone(), json!(round(*value))));
                (name.clone(), Value::Object(rounded.collect()))
            })
            .collect();
        let ratios: Vec<Value> = self
            .ratios
            .iter()
            .map(|ratio| {
                let interval = [round(ratio.interval.0), round(ratio.interval.1)];
                json!({ "figure": ratio.figure, "of": ratio.of, "ratio": round(ratio.ratio), "interval": interval })
            })
            .collect();
        let aims: Vec<Value> = self
            .aims
            .iter()
            .map(|aim| json!({ "text": aim.text, "bound": aim.bound, "met": aim.is_met }))
            .collect();
        json!({ "name": self.name, "title": self.title, "figure": self.figure, "ours": self.ours, "date": self.date,
            "machine": self.machine, "rounds": self.rounds, "subjects": subjects, "ratios": ratios, "aims": aims,
            "versions": self.versions, "missing": self.missing })
    }

    /// Reads a row from the file of results.
    ///
    /// # Errors
    /// Names the key that is missing or has no such value.
    pub fn from_json(value: &Value) -> Result<RowFigures, Failure> {
        let text = |key: &str| {
            let text = value[key].as_str().map(str::to_string);
            text.ok_or_else(|| Failure::new(format!("a row has no text {key:?}")))
        };
        let name = text("name")?;
        let wrong = |key: &str| Failure::new(format!("row {name:?}: {key:?} is not as `--save` writes it"));
        let texts = |key: &str| -> Result<BTreeMap<String, String>, Failure> {
            let all = value[key].as_object().ok_or_else(|| wrong(key))?.iter();
            all.map(|(name, said)| Ok((name.clone(), said.as_str().ok_or_else(|| wrong(key))?.to_string())))
                .collect()
        };
        let subjects = value["subjects"].as_object().ok_or_else(|| wrong("subjects"))?.iter();
        let subjects = subjects.map(|(name, figures)| {
            let figures = figures.as_object().ok_or_else(|| wrong("subjects"))?.iter();
            let figures = figures.filter_map(|(key, value)| Some((key.clone(), value.as_f64()?)));
            Ok((name.clone(), figures.collect()))
        });
        let ratios = value["ratios"].as_array().ok_or_else(|| wrong("ratios"))?.iter();
        let ratios = ratios.map(|ratio| {
            let of = |key: &str| ratio[key].as_str().map(str::to_string);
            let end = |at: usize| ratio["interval"][at].as_f64();
            let read = || {
                let interval = (end(0)?, end(1)?);
                Some(RowRatio {
                    figure: of("figure")?,
                    of: of("of")?,
                    ratio: ratio["ratio"].as_f64()?,
                    interval,
                })
            };
            read().ok_or_else(|| wrong("ratios"))
        });
        let aims = value["aims"].as_array().ok_or_else(|| wrong("aims"))?.iter();
        let aims = aims.map(|aim| {
            let text = aim["text"].as_str().ok_or_else(|| wrong("aims"))?.to_string();
            let bound = aim["bound"].as_str().map(str::to_string);
            Ok(RowAim { text, bound, is_met: aim["met"].as_bool().ok_or_else(|| wrong("aims"))? })
        });
        Ok(RowFigures {
            title: text("title")?,
            figure: text("figure")?,
            ours: text("ours")?,
            date: text("date")?,
            machine: text("machine")?,
            rounds: value["rounds"].as_u64().ok_or_else(|| wrong("rounds"))? as usize,
            subjects: subjects.collect::<Result<_, Failure>>()?,
            ratios: ratios.collect::<Result<_, Failure>>()?,
            aims: aims.collect::<Result<_, Failure>>()?,
            versions: texts("versions")?,
            missing: texts("missing")?,
            name,
        })
    }
}

/// The figures that are compared with the best peer's: the row's own, the rate, and the slowest requests. A row about
/// memory has no load of which the others would tell anything.
fn judged_figures(figure: &str) -> Vec<&str> {
    if figure == "pss_bytes" { vec![figure] } else { vec![figure, "requests_per_s", "p99_us"] }
}

fn judge(row: &LabRow, aim: &Aim, compared: Option<&RowRatio>, value: f64) -> Option<RowAim> {
    let figure = Figure::find(&aim.figure)?;
    let (judged, shown) = match compared {
        Some(ratio) => (ratio.ratio, format!("{:.2} of {}", ratio.ratio, ratio.of)),
        None => (value, figure.format_value(value)),
    };
    let bound = |bound: f64| if compared.is_some() { format!("{bound}") } else { figure.format_value(bound) };
    let verdict = aim::evaluate(aim, &row.name, figure.title, judged, &shown, bound);
    let limit = match aim.bound {
        Bound::AtMost(limit) | Bound::AtLeast(limit) => limit,
    };
    let is_main = aim.figure == row.figure && aim.of.as_deref().is_none_or(|of| of == BEST);
    let bound = is_main.then(|| bound(limit));
    Some(RowAim { text: verdict.text, bound, is_met: verdict.is_met })
}

fn pairs_of(a: &Runs, b: &Runs, key: &str) -> Vec<(f64, f64)> {
    let of = |figures: &Map<String, Value>| figures.get(key).and_then(Value::as_f64);
    a.iter()
        .filter_map(|(at, figures)| {
            let (_, other) = b.iter().find(|(other, _)| other == at)?;
            Some((of(figures)?, of(other)?))
        })
        .collect()
}

fn median_of(runs: &Runs, key: &str) -> Option<f64> {
    let values: Vec<f64> =
        runs.iter().filter_map(|(_, figures)| figures.get(key).and_then(Value::as_f64)).collect();
    stats::median(&values)
}

fn medians(runs: &Runs) -> BTreeMap<String, f64> {
    KEPT.into_iter().filter_map(|key| Some((key.to_string(), median_of(runs, key)?))).collect()
}

/// Rounds to four digits, so that the file of results stays readable.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// Returns the first number with a point in what a program says of its version.
fn version_number(said: &str) -> &str {
    for (at, _) in said.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        let starts = !said[..at].ends_with(|c: char| c.is_ascii_alphanumeric() && c != 'v' || c == '.');
        let end = said[at..].find(|c: char| !c.is_ascii_alphanumeric() && !".-".contains(c));
        let word = said[at..].get(..end.unwrap_or(said.len() - at)).unwrap_or_default();
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        if starts && word[digits..].starts_with('.') && word.len() > digits + 1 {
            // 3.5-dev5-50872d-5 is 3.5-dev5, 2.6.12-1+deb12u4 is 2.6.12.
            let parts: Vec<&str> = word.splitn(3, '-').collect();
            let has_stage =
                parts.get(1).is_some_and(|stage| stage.starts_with(|c: char| c.is_ascii_alphabetic()));
            let length = if has_stage { parts[0].len() + 1 + parts[1].len() } else { parts[0].len() };
            return word[..length].trim_end_matches(['.', '-']);
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::file::LabSettings;

    /// A row and the report of its experiment, in which Komainu takes `cpu` µs for a request.
    pub(crate) fn example(cpu: f64) -> (LabRow, Value) {
        let aim = |figure: &str, bound: Bound, of: Option<&str>| Aim {
            figure: figure.into(),
            bound,
            of: of.map(str::to_string),
            when: BTreeMap::new(),
        };
        let row = LabRow {
            name: "files-1k".into(),
            title: "File, 1 KiB".into(),
            lab: "files.toml".into(),
            levels: LabSettings::from([("page".into(), "1 KiB".into())]),
            load: LabSettings::new(),
            subject: "Komainu".into(),
            figure: "cpu_us_per_request".into(),
            aims: vec![
                aim("cpu_us_per_request", Bound::AtMost(0.75), Some(BEST)),
                aim("cpu_us_per_request", Bound::AtMost(1.15), Some("loop")),
                aim("requests_per_s", Bound::AtLeast(1.1), Some(BEST)),
            ],
        };
        let cell = |name: &str, level: &str, peer: bool, cpu: f64, rate: f64| {
            let runs: Vec<Value> = (0..3)
                .map(|at| {
                    let factor = 1.0 + f64::from(at) * 0.01;
                    json!({ "repetition": at, "figures": { "cpu_us_per_request": cpu * factor, "p50_us": 90.0,
                        "requests_per_s": rate * factor, "p99_us": 1e9 / rate, "noise_share": 0.1 } })
                })
                .collect();
            json!({ "cell": format!("{name} [{level}]"), "subject": name, "peer": peer, "levels": { "page": level, "threads": "2" },
                "broken": null, "runs": runs })
        };
        let broken = json!({ "cell": "Caddy", "subject": "Caddy", "peer": true, "levels": { "page": "1 KiB" },
            "broken": "it says nothing", "runs": [] });
        let report = json!({ "machine": "2 cores", "unix_s": 1_795_252_019, "cells": [
            cell("Komainu", "1 KiB", false, cpu, 100_000.0), cell("Komainu", "1 MiB", false, 99.0, 9.0),
            cell("Komainu, loop", "1 KiB", false, 1.0, 900_000.0),
            cell("loop", "1 KiB", true, 5.0, 70_000.0), cell("nginx", "1 KiB", true, 10.0, 120_000.0), broken ],
            "skipped": [{ "name": "h2o", "said": "h2o is not installed" }],
            "versions": [{ "name": "nginx", "said": "nginx version: nginx/1.31.5" }, { "name": "origin", "said": "1.2" }] });
        (row, report)
    }

    #[test]
    fn each_figure_is_compared_with_its_best_peer() {
        let (row, report) = example(6.0);
        let figures = RowFigures::from_report(&row, &report).unwrap();
        let found: Vec<(&str, &str, String)> = figures
            .ratios
            .iter()
            .map(|ratio| (ratio.figure.as_str(), ratio.of.as_str(), format!("{:.2}", ratio.ratio)))
            .collect();
        assert_eq!(
            found,
            [
                ("cpu_us_per_request", "loop", "1.20".to_string()),
                ("requests_per_s", "nginx", "0.83".to_string()),
                ("p99_us", "nginx", "1.20".to_string()),
            ]
        );
        assert!(figures.is_behind() && figures.ratios.iter().all(RowRatio::is_behind));
        assert_eq!(figures.aims[0].text, "files-1k: CPU per request 1.20 of loop, aim at most 0.75: MISSED");
        assert_eq!(
            (figures.aims[0].bound.as_deref(), figures.aims[1].bound.as_deref()),
            (Some("0.75"), None)
        );
        assert_eq!(figures.missing["Caddy"], "broken, it says nothing");
        assert_eq!(figures.missing["h2o"], "skipped, h2o is not installed");
        assert_eq!(
            (figures.short_version("nginx"), figures.short_version("loop"), figures.rounds),
            ("1.31.5", "", 3)
        );
        assert!((figures.value("Komainu", "cpu_us_per_request").unwrap() - 6.06).abs() < 1e-9);
        let (_, behind) = example(3.0);
        assert!(!RowFigures::from_report(&row, &behind).unwrap().is_behind());
        let nothing = RowFigures::from_report(&row, &json!({ "cells": [] })).unwrap_err().to_string();
        assert_eq!(nothing, "files-1k: Komainu: it was not measured");
    }

    #[test]
    fn saved_rows_are_read_back() {
        let (row, report) = example(6.0);
        let figures = RowFigures::from_report(&row, &report).unwrap();
        let saved = RowFigures::from_json(&figures.json()).unwrap();
        assert_eq!(saved.json(), figures.json());
        assert_eq!((saved.name.as_str(), saved.ratios.len(), &saved.aims), ("files-1k", 3, &figures.aims));
        let mut broken = figures.json();
        broken["ratios"] = json!("x");
        let error = RowFigures::from_json(&broken).unwrap_err().to_string();
        assert!(error.contains("row \"files-1k\": \"ratios\""), "{error}");
        assert_eq!([12_345.6, 0.012_345, 3.0, 0.0].map(round), [12_350.0, 0.012_35, 3.0, 0.0]);
    }

    #[test]
    fn version_numbers_are_found() {
        for (said, number) in [
            ("nginx version: nginx/1.31.5", "1.31.5"),
            ("h2o version 2.2.5", "2.2.5"),
            ("h2o version 2.3.0-DEV@edd7a120b", "2.3.0-DEV"),
            ("HAProxy version 3.5-dev5-50872d-5 2026/08/21", "3.5-dev5"),
            ("HAProxy version 2.6.12-1+deb12u4 2025/10/03", "2.6.12"),
            ("v2.11.7 h1:yj0Y4fYZ", "2.11.7"),
            ("lighttpd/1.4.69 (ssl) - a light server", "1.4.69"),
            ("granian 2.8.7", "2.8.7"),
            ("varnishd (varnish-7.1.1 revision 7cee1c58)", "7.1.1"),
            ("gunicorn (version 27.0.1)", "27.0.1"),
            ("no number", ""),
        ] {
            assert_eq!(version_number(said), number, "{said}");
        }
    }
}
