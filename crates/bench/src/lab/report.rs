//! Report of an experiment: as text, Markdown, HTML and JSON.

use failure::Failure;
use serde_json::{Value, json};

use crate::chart::{self, ChartBar, escape};
use crate::figure::{Better, Figure};
use crate::html;
use crate::lab::aim::{self, AimVerdict};
use crate::lab::file::{BEST, EXTRA_FIGURES, Lab};
use crate::lab::matrix::LabCell;
use crate::lab::results_file::{self, LabMeasurement};
use crate::outcome::unix_s;
use crate::quantity;
use crate::stats::{self, Ratio};
use crate::table::TextTable;

/// Columns: heading and key of the figure.
const COLUMNS: [(&str, &str); 11] = [
    ("requests/s", "requests_per_s"),
    ("p50", "p50_us"),
    ("p99", "p99_us"),
    ("CPU/request", "cpu_us_per_request"),
    ("req/s per 1 % CPU", "requests_per_s_per_cpu_percent"),
    ("PSS", "pss_bytes"),
    ("private dirty", "private_dirty_bytes"),
    ("processes", "processes"),
    ("idle connection", "bytes_per_idle_connection"),
    ("rate kept", "rate_kept_share"),
    ("errors", "errors"),
];

/// Keys of figures that are also shown as a multiple of the baseline's.
const BASELINE_FIGURES: [&str; 2] = ["requests_per_s", "cpu_us_per_request"];

/// Content of a report.
pub struct LabFindings<'l> {
    /// Experiment that was run.
    pub lab: &'l Lab,
    /// Cells that could be measured.
    pub cells: Vec<LabCell>,
    /// Subjects that could not be measured, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Versions of subjects and services.
    pub versions: Vec<(String, String)>,
    /// Measurements.
    pub rows: Vec<LabMeasurement>,
    /// Description of the machine.
    pub machine: String,
    /// Description of the load in one line.
    pub load_description: String,
}

impl LabFindings<'_> {
    fn median(&self, cell: &LabCell, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.values(cell, key);
        stats::median(&values)
    }

    fn values(&self, cell: &LabCell, key: &str) -> Vec<f64> {
        results_file::cell_values(&self.rows, &cell.key(self.lab), key)
            .into_iter()
            .map(|(_, value)| value)
            .collect()
    }

    /// Returns the reason why a cell has no figures.
    fn missing_reason(&self, cell: &LabCell) -> Option<String> {
        let key = cell.key(self.lab);
        self.rows
            .iter()
            .find_map(|row| (row.cell == key).then(|| row.figures.as_ref().err())?)
            .map(Failure::to_string)
    }

    /// Returns the reference cell for a multiple: that of the subject `of`, or of the best peer, at the same
    /// levels.
    fn reference_cell(&self, cell: &LabCell, of: &str, key: &str) -> Option<&LabCell> {
        if of == BEST {
            let sign = if better_direction(key) == Better::Higher { -1.0 } else { 1.0 };
            let peers = self
                .cells
                .iter()
                .filter(|other| {
                    let subject = &self.lab.subjects[other.subject];
                    subject.is_peer() && other.levels == cell.levels
                })
                .filter(|other| self.missing_reason(other).is_none())
                .filter_map(|other| Some((other, sign * self.median(other, key)?)));
            return peers.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(other, _)| other);
        }
        let same = |other: &&LabCell| {
            self.lab.subjects[other.subject].process.name == of
                && other.levels.iter().all(|(factor, level)| {
                    // If the baseline is not measured at this level, its only level is used.
                    cell.levels.iter().any(|(f, l)| f == factor && l == level)
                        || self
                            .cells
                            .iter()
                            .filter(|c| c.subject == other.subject)
                            .all(|c| c.levels.iter().any(|(f, l)| f == factor && l == level))
                })
        };
        self.cells.iter().find(same)
    }

    /// Returns the columns for which any cell has a figure.
    fn columns(&self) -> Vec<(&'static str, &'static str)> {
        let has = |key: &str| self.cells.iter().any(|cell| self.median(cell, key).is_some());
        COLUMNS.into_iter().filter(|(_, key)| has(key)).collect()
    }

    /// Builds a table with one row per cell; `narrow` leaves out columns that do not fit in a terminal.
    #[must_use]
    pub fn table(&self, narrow: bool) -> TextTable {
        const NARROW_WITHOUT: [&str; 4] = ["p50", "private dirty", "processes", "req/s per 1 % CPU"];
        let mut columns = self.columns();
        columns.retain(|(heading, _)| !narrow || !NARROW_WITHOUT.contains(heading));
        let mut head = vec!["".to_string()];
        for (heading, key) in &columns {
            head.push((*heading).to_string());
            if *heading == "requests/s" {
                head.push("range".into());
            }
            if BASELINE_FIGURES.contains(key) {
                head.extend(self.lab.baseline.as_ref().map(|name| format!("of {name}")));
            }
        }
        let mut table = TextTable::new(&head);
        for cell in &self.cells {
            let mut cells = vec![cell.key(self.lab)];
            if let Some(broken) = self.missing_reason(cell) {
                let short: String = broken.chars().take(40).collect();
                cells.push(format!("BROKEN: {short}"));
                table.add_row(cells);
                continue;
            }
            for (heading, key) in &columns {
                cells.push(self.median(cell, key).map_or(String::new(), |value| format_figure(key, value)));
                if *heading == "requests/s" {
                    let range = stats::range(&self.values(cell, key));
                    cells.push(range.map_or(String::new(), |(low, high)| {
                        format!("{}–{}", quantity::format_digits(low), quantity::format_digits(high))
                    }));
                }
                if self.lab.baseline.is_some() && BASELINE_FIGURES.contains(key) {
                    cells.push(self.ratio_text(cell, key));
                }
            }
            table.add_row(cells);
        }
        table
    }

    /// Returns a cell's figure as a multiple of the reference cell's (see `other`), its interval, and the
    /// name of the reference subject.
    fn ratio(&self, cell: &LabCell, of: &str, key: &str) -> Option<(f64, Option<Ratio>, &str)> {
        let other = self.reference_cell(cell, of, key)?;
        let (plain, interval) =
            results_file::cell_ratio(&self.rows, &cell.key(self.lab), &other.key(self.lab), key)?;
        let interval = interval.filter(|_| other != cell);
        Some((plain, interval, &self.lab.subjects[other.subject].process.name))
    }

    fn ratio_text(&self, cell: &LabCell, key: &str) -> String {
        let of = self.lab.baseline.as_deref().unwrap_or_default();
        match self.ratio(cell, of, key) {
            None => String::new(),
            Some((plain, Some(r), _)) => format!("{plain:.2} ({:.2}–{:.2})", r.low, r.high),
            Some((plain, None, _)) => format!("{plain:.2}"),
        }
    }

    /// Checks every aim in every Komainu cell that it applies to.
    fn check_aims(&self) -> Vec<AimVerdict> {
        let mut verdicts = Vec::new();
        for aim in &self.lab.aims {
            let ours =
                |cell: &&LabCell| self.lab.subjects[cell.subject].is_komainu && aim::applies_to(aim, cell);
            for cell in self.cells.iter().filter(ours) {
                let figure = match &aim.of {
                    None => {
                        self.median(cell, &aim.figure).map(|value| (value, format_figure(&aim.figure, value)))
                    }
                    Some(of) => self.ratio(cell, of, &aim.figure).map(|(ratio, _, name)| {
                        let best = if of == BEST { " (the best peer)" } else { "" };
                        (ratio, format!("{ratio:.2} of {name}{best}"))
                    }),
                };
                let Some((value, shown)) = figure else { continue };
                verdicts.push(aim::evaluate(
                    aim,
                    &cell.key(self.lab),
                    figure_title(&aim.figure),
                    value,
                    &shown,
                    |bound| {
                        if aim.of.is_some() { format!("{bound}") } else { format_figure(&aim.figure, bound) }
                    },
                ));
            }
        }
        verdicts
    }

    /// Lists the subjects that are not in the table, one per line.
    fn omitted_subjects(&self) -> Vec<String> {
        let skipped = self.skipped.iter().map(|(name, why)| format!("{name}: skipped, {why}"));
        let broken = self.cells.iter().filter_map(|cell| {
            Some(format!("{}: BROKEN, {}", cell.key(self.lab), self.missing_reason(cell)?))
        });
        skipped.chain(broken).collect()
    }

    fn noise_warning(&self) -> Option<String> {
        const NOISE_MAX: f64 = 0.05;
        let noise: Vec<f64> = self.cells.iter().flat_map(|cell| self.values(cell, "noise_share")).collect();
        let median = stats::median(&noise)?;
        let most = stats::range(&noise)?.1;
        (most > NOISE_MAX).then(|| {
            format!(
                "Noisy: {:.0} % of the machine's time went to others at the median, {:.0} % at worst. Compare ratios, \
                 not absolutes.",
                median * 100.0,
                most * 100.0
            )
        })
    }

    /// Formats the report for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text =
            format!("{}\n{}\n\n{}\n", self.lab.title, self.load_description, self.table(true).plain("  "));
        text.extend(self.check_aims().iter().map(|verdict| format!("  {}\n", verdict.text)));
        text.extend(self.omitted_subjects().iter().map(|line| format!("  {line}\n")));
        text.extend(self.noise_warning().map(|noise| format!("  {noise}\n")));
        text.extend(self.versions.iter().map(|(name, version)| format!("  {name}: {version}\n")));
        text
    }

    /// Formats the report as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n", self.lab.title, self.lab.about.trim());
        text += &format!("{}.\n{}\n\n", self.machine, self.load_description);
        text += &self.table(false).markdown();
        text.extend(self.noise_warning().map(|noise| format!("\n{noise}\n")));
        let verdicts = self.check_aims();
        if !verdicts.is_empty() {
            text += "\n## Aims\n\n";
            text.extend(verdicts.iter().map(|verdict| format!("- {}\n", verdict.text)));
        }
        let left_out = self.omitted_subjects();
        if !left_out.is_empty() {
            text += "\n## Not measured\n\n";
            text.extend(left_out.iter().map(|line| format!("- {line}\n")));
        }
        text += "\n## Versions\n\n";
        text.extend(self.versions.iter().map(|(name, version)| format!("- {name}: {version}\n")));
        text
    }

    /// Formats the report as an HTML page.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = html::page_header(&self.lab.title, "Servers side by side, in turns, on one machine");
        for paragraph in self.lab.about.trim().split("\n\n") {
            body += &format!("<p>{}</p>\n", escape(paragraph));
        }
        body += &format!("<p class=\"how\">{}</p>\n", escape(&self.load_description));
        body.extend(self.noise_warning().map(|noise| format!("<p class=\"warn\">{}</p>\n", escape(&noise))));
        body += "<h2>Side by side</h2>\n<div class=\"charts\">\n";
        for (title, key) in [
            ("Throughput, requests/s: more is better", "requests_per_s"),
            ("Server CPU per request: less is better", "cpu_us_per_request"),
            ("Requests/s per 1 % CPU: more is better", "requests_per_s_per_cpu_percent"),
            ("Memory (PSS): less is better", "pss_bytes"),
            ("Bytes for each idle connection: less is better", "bytes_per_idle_connection"),
        ] {
            body += &chart::bar_chart(title, &self.bars(key));
        }
        body += "</div>\n<h2>All figures</h2>\n";
        body += &html::table(&self.table(false));
        let verdicts = self.check_aims();
        if !verdicts.is_empty() {
            body += "<h2>Aims</h2>\n";
            for AimVerdict { text, is_met: met, .. } in &verdicts {
                let class = if *met { "" } else { " class=\"warn\"" };
                body += &format!("<p{class}>{}</p>\n", escape(text));
            }
        }
        let left_out = self.omitted_subjects();
        if !left_out.is_empty() {
            body += "<h2>Not measured</h2>\n";
            body.extend(left_out.iter().map(|line| format!("<p>{}</p>\n", escape(line))));
        }
        body += "<h2>Versions</h2>\n";
        body.extend(
            self.versions
                .iter()
                .map(|(name, version)| format!("<p>{}: {}</p>\n", escape(name), escape(version))),
        );
        body += &format!("<footer>{}. {}</footer>\n", escape(&self.machine), quantity::format_date(unix_s()));
        html::page(&self.lab.title, &body)
    }

    fn bars(&self, key: &str) -> Vec<ChartBar> {
        let bar = |cell: &LabCell| {
            let value = self.median(cell, key)?;
            Some(ChartBar {
                name: cell.key(self.lab),
                value,
                range: stats::range(&self.values(cell, key))?,
                label: format_figure(key, value),
                is_highlighted: self.lab.subjects[cell.subject].is_komainu,
            })
        };
        self.cells.iter().filter_map(bar).collect()
    }

    /// Converts the report to JSON, which `komainu lab compare` reads.
    #[must_use]
    pub fn json(&self) -> Value {
        let cells: Vec<Value> = self
            .cells
            .iter()
            .map(|cell| {
                let key = cell.key(self.lab);
                let runs: Vec<Value> = self
                    .rows
                    .iter()
                    .filter(|row| row.cell == key)
                    .filter_map(|row| Some(json!({ "repetition": row.repetition, "figures": row.figures.as_ref().ok()? })))
                    .collect();
                let subject = &self.lab.subjects[cell.subject];
                json!({ "cell": key, "subject": subject.process.name, "peer": subject.is_peer(),
                    "levels": cell.levels.iter().map(|(f, l)| (f.clone(), json!(l))).collect::<serde_json::Map<_, _>>(),
                    "broken": self.missing_reason(cell), "runs": runs })
            })
            .collect();
        let pairs = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(name, said)| json!({ "name": name, "said": said })).collect()
        };
        json!({ "lab": self.lab.title, "machine": self.machine, "unix_s": unix_s(), "how": self.load_description, "cells": cells,
            "aims": self.check_aims().iter().map(|v| json!({ "cell": v.cell, "aim": v.text, "met": v.is_met })).collect::<Vec<_>>(),
            "skipped": pairs(&self.skipped), "versions": pairs(&self.versions) })
    }
}

fn format_figure(key: &str, value: f64) -> String {
    match (Figure::find(key), key) {
        (Some(figure), _) => figure.format_value(value),
        (None, "processes") => format!("{value:.0}"),
        (None, "rate_kept_share") => format!("{:.1} %", value * 100.0),
        (None, "requests_per_s_without_idle") => quantity::format_digits(value),
        (None, _) => quantity::format_bytes(value),
    }
}

fn figure_title(key: &str) -> &'static str {
    let beside = EXTRA_FIGURES.iter().find(|(other, _)| *other == key).map(|(_, title)| *title);
    Figure::find(key).map(|figure| figure.title).or(beside).unwrap_or_default()
}

fn better_direction(key: &str) -> Better {
    Figure::find(key).map_or(Better::Lower, |figure| figure.better)
}

/// Compares two results of the same experiment, cell by cell.
///
/// # Errors
/// Fails if they have no cell in common.
pub fn compare_results(a: &Value, b: &Value) -> Result<TextTable, Failure> {
    let mut table = TextTable::new(&[
        "",
        "requests/s A",
        "B",
        "B / A",
        "99 % interval",
        "CPU/request A",
        "B",
        "B / A",
        "99 % interval",
    ]);
    let cells = |value: &Value| value["cells"].as_array().cloned().unwrap_or_default();
    for cell in cells(a) {
        let Some(other) = cells(b).into_iter().find(|other| other["cell"] == cell["cell"]) else { continue };
        let mut row = vec![cell["cell"].as_str().unwrap_or_default().to_string()];
        for key in ["requests_per_s", "cpu_us_per_request"] {
            let of = |value: &Value| -> Vec<f64> {
                let runs = value["runs"].as_array().cloned().unwrap_or_default();
                runs.iter().filter_map(|run| run["figures"][key].as_f64()).collect()
            };
            let ours = of(&cell);
            let theirs = of(&other);
            match (stats::median(&ours), stats::median(&theirs)) {
                (Some(x), Some(y)) => {
                    row.extend([format_figure(key, x), format_figure(key, y), format!("{:.3}", y / x)]);
                    row.push(match stats::ratio_of_sets(&theirs, &ours) {
                        Some(r) if r.is_distinct() => format!("{:.3}–{:.3}", r.low, r.high),
                        Some(r) => format!("{:.3}–{:.3}, no difference found", r.low, r.high),
                        None => String::new(),
                    });
                }
                _ => row.extend(std::iter::repeat_n(String::new(), 4)),
            }
        }
        table.add_row(row);
    }
    if table.is_empty() { Err(Failure::new("the two have no cell in common")) } else { Ok(table) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::matrix;
    use serde_json::Map;

    fn lab() -> Lab {
        let text = "title = \"T & more\"\nabout = \"Why.\"\nbaseline = \"a\"\n[[subject]]\nname = \"a\"\nrun = \"a\"\nours = true\n\
             [[subject]]\nname = \"b\"\nrun = \"b\"\n[[subject]]\nname = \"c\"\nrun = \"c\"\n";
        Lab::parse(text).unwrap()
    }

    fn findings(lab: &Lab, factor: f64) -> LabFindings<'_> {
        let row = |cell: &str, repetition: usize, rate: f64| LabMeasurement {
            cell: cell.into(),
            repetition,
            figures: Ok(Map::from_iter([
                ("requests_per_s".to_string(), json!(rate * factor)),
                ("noise_share".to_string(), json!(0.2)),
            ])),
        };
        let mut rows: Vec<LabMeasurement> = (0..3)
            .flat_map(|at| [row("a", at, 1_000.0 + at as f64), row("b", at, 500.0 + at as f64)])
            .collect();
        rows.push(LabMeasurement {
            cell: "c".into(),
            repetition: 0,
            figures: Err(Failure::new("it answers 502 instead of 200")),
        });
        LabFindings {
            lab,
            cells: matrix::cells(lab, false),
            skipped: vec![("d".into(), "d is not installed: the package d brings it".into())],
            versions: vec![("a".into(), "a 1.0".into())],
            rows,
            machine: "a machine".into(),
            load_description: "10 connections".into(),
        }
    }

    #[test]
    fn every_report_format_has_results_failures_and_noise() {
        let lab = lab();
        let findings = findings(&lab, 1.0);
        for text in [findings.text(), findings.markdown(), findings.html()] {
            for part in
                ["1,001", "0.50 (", "BROKEN", "it answers 502", "package d", "Noisy: 20 %", "a: a 1.0"]
            {
                assert!(text.contains(part), "{part}\n{text}");
            }
        }
        assert!(findings.html().contains("T &amp; more") && findings.html().contains("class=\"bar s0\""));
        let json = findings.json();
        assert_eq!(json["cells"][1]["runs"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["cells"][2]["broken"], "it answers 502 instead of 200");
    }

    #[test]
    fn aims_are_compared_with_the_best_peer_or_a_fixed_value() {
        let text = "title = \"T\"\nbaseline = \"best peer\"\n[[subject]]\nname = \"a\"\nrun = \"a\"\nours = true\n\
             [[subject]]\nname = \"b\"\nrun = \"b\"\n[[subject]]\nname = \"c\"\nrun = \"c\"\n\
             [[aim]]\nfigure = \"rate\"\nat-least = 1.5\nof = \"best peer\"\n[[aim]]\nfigure = \"rate\"\nat-least = 2000\n";
        let lab = Lab::parse(text).unwrap();
        let findings = findings(&lab, 1.0);
        let reported: Vec<String> = findings.check_aims().into_iter().map(|verdict| verdict.text).collect();
        assert_eq!(reported[0], "a: requests/s 2.00 of b (the best peer), aim at least 1.5: met");
        assert_eq!(reported[1], "a: requests/s 1,001, aim at least 2,000: MISSED");
        assert_eq!(findings.json()["aims"][1]["met"], false);
        for text in [findings.text(), findings.markdown(), findings.html()] {
            assert!(text.contains("of best peer") && text.contains("MISSED"), "{text}");
        }
    }

    #[test]
    fn two_results_are_compared_cell_by_cell() {
        let lab = lab();
        let a = findings(&lab, 1.0).json();
        let b = findings(&lab, 1.5).json();
        let text = compare_results(&a, &b).unwrap().plain("");
        assert!(text.contains("1.500") && !text.contains("no difference"), "{text}");
        assert!(compare_results(&a, &a).unwrap().plain("").contains("no difference found"));
        assert!(compare_results(&a, &json!({})).is_err());
    }
}
