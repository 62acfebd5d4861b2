//! What an experiment found: as a table, as Markdown, as a page, as JSON.

use serde_json::{Value, json};

use crate::chart::{self, Bar, escape};
use crate::figure::Figure;
use crate::html;
use crate::lab::file::Lab;
use crate::lab::matrix::Cell;
use crate::lab::result::{self, Row};
use crate::outcome::unix_s;
use crate::quantity;
use crate::stats;
use crate::table::Table;

/// Columns: the heading, and the figure's key.
const COLUMNS: [(&str, &str); 10] = [
    ("requests/s", "requests_per_s"),
    ("p50", "p50_us"),
    ("p99", "p99_us"),
    ("CPU/request", "cpu_us_per_request"),
    ("req/s per 1 % CPU", "requests_per_s_per_cpu_percent"),
    ("PSS", "pss_bytes"),
    ("private dirty", "private_dirty_bytes"),
    ("processes", "processes"),
    ("idle connection", "bytes_per_idle_connection"),
    ("errors", "errors"),
];

/// Everything that a report is made of.
pub struct Findings<'l> {
    /// The experiment.
    pub lab: &'l Lab,
    /// Its cells that could be measured.
    pub cells: Vec<Cell>,
    /// Subjects that could not, and why.
    pub skipped: Vec<(String, String)>,
    /// What subjects and services say they are.
    pub versions: Vec<(String, String)>,
    /// What was measured.
    pub rows: Vec<Row>,
    /// The machine.
    pub machine: String,
    /// How the load was put on, in one line.
    pub how: String,
}

impl Findings<'_> {
    fn median(&self, cell: &Cell, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.values(cell, key);
        stats::median(&values)
    }

    fn values(&self, cell: &Cell, key: &str) -> Vec<f64> {
        result::values(&self.rows, &cell.key(self.lab), key).into_iter().map(|(_, value)| value).collect()
    }

    /// Why a cell has no figures.
    fn broken(&self, cell: &Cell) -> Option<&str> {
        let key = cell.key(self.lab);
        self.rows
            .iter()
            .find_map(|row| (row.cell == key).then(|| row.figures.as_ref().err())?)
            .map(String::as_str)
    }

    /// The baseline's cell at the same levels.
    fn baseline(&self, cell: &Cell) -> Option<&Cell> {
        let name = self.lab.baseline.as_ref()?;
        let same = |other: &&Cell| {
            self.lab.subjects[other.subject].process.name == *name
                && other.levels.iter().all(|(factor, level)| {
                    // At a level where the baseline does not exist, its only one counts.
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

    /// Columns for which there is a figure anywhere.
    fn columns(&self) -> Vec<(&'static str, &'static str)> {
        let has = |key: &str| self.cells.iter().any(|cell| self.median(cell, key).is_some());
        COLUMNS.into_iter().filter(|(_, key)| has(key)).collect()
    }

    /// One row a cell; `narrow` leaves out what a terminal has no room for.
    #[must_use]
    pub fn table(&self, narrow: bool) -> Table {
        const NARROW_WITHOUT: [&str; 4] = ["p50", "private dirty", "processes", "req/s per 1 % CPU"];
        let mut columns = self.columns();
        columns.retain(|(heading, _)| !narrow || !NARROW_WITHOUT.contains(heading));
        let mut head = vec!["".to_string()];
        for (heading, _) in &columns {
            head.push((*heading).to_string());
            if *heading == "requests/s" {
                head.push("range".into());
                head.extend(self.lab.baseline.as_ref().map(|name| format!("of {name}")));
            }
        }
        let mut table = Table::new(&head);
        for cell in &self.cells {
            let mut cells = vec![cell.key(self.lab)];
            if let Some(broken) = self.broken(cell) {
                let short: String = broken.chars().take(40).collect();
                cells.push(format!("BROKEN: {short}"));
                table.row(cells);
                continue;
            }
            for (heading, key) in &columns {
                cells.push(self.median(cell, key).map_or(String::new(), |value| show(key, value)));
                if *heading == "requests/s" {
                    let range = stats::range(&self.values(cell, key));
                    cells.push(range.map_or(String::new(), |(low, high)| {
                        format!("{}–{}", quantity::digits(low), quantity::digits(high))
                    }));
                    if self.lab.baseline.is_some() {
                        cells.push(self.ratio(cell));
                    }
                }
            }
            table.row(cells);
        }
        table
    }

    fn ratio(&self, cell: &Cell) -> String {
        let Some(baseline) = self.baseline(cell) else { return String::new() };
        let (key, to) = (cell.key(self.lab), baseline.key(self.lab));
        match result::ratio(&self.rows, &key, &to, "requests_per_s") {
            None => String::new(),
            Some((plain, _)) if key == to => format!("{plain:.2}"),
            Some((_, Some(r))) => format!("{:.2} ({:.2}–{:.2})", r.ratio, r.low, r.high),
            Some((plain, None)) => format!("{plain:.2}"),
        }
    }

    /// Subjects that are not in the table, one a line.
    fn left_out(&self) -> Vec<String> {
        let skipped = self.skipped.iter().map(|(name, why)| format!("{name}: skipped, {why}"));
        let broken = self
            .cells
            .iter()
            .filter_map(|cell| Some(format!("{}: BROKEN, {}", cell.key(self.lab), self.broken(cell)?)));
        skipped.chain(broken).collect()
    }

    fn noise(&self) -> Option<String> {
        const NOISE_MAX: f64 = 0.05;
        let noise: Vec<f64> = self.cells.iter().flat_map(|cell| self.values(cell, "noise_share")).collect();
        let (median, most) = (stats::median(&noise)?, stats::range(&noise)?.1);
        (most > NOISE_MAX).then(|| {
            format!(
                "Noisy: {:.0} % of the machine's time went to others at the median, {:.0} % at worst. Compare ratios, \
                 not absolutes.",
                median * 100.0,
                most * 100.0
            )
        })
    }

    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n\n{}\n", self.lab.title, self.how, self.table(true).plain("  "));
        text.extend(self.left_out().iter().map(|line| format!("  {line}\n")));
        text.extend(self.noise().map(|noise| format!("  {noise}\n")));
        text
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n", self.lab.title, self.lab.about.trim());
        text += &format!("{}.\n{}\n\n", self.machine, self.how);
        text += &self.table(false).markdown();
        text.extend(self.noise().map(|noise| format!("\n{noise}\n")));
        let left_out = self.left_out();
        if !left_out.is_empty() {
            text += "\n## Not measured\n\n";
            text.extend(left_out.iter().map(|line| format!("- {line}\n")));
        }
        text += "\n## Versions\n\n";
        text.extend(self.versions.iter().map(|(name, version)| format!("- {name}: {version}\n")));
        text
    }

    /// As a page.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = format!("<h1>{}</h1>\n", escape(&self.lab.title));
        for paragraph in self.lab.about.trim().split("\n\n") {
            body += &format!("<p>{}</p>\n", escape(paragraph));
        }
        body += &format!("<p class=\"how\">{}</p>\n", escape(&self.how));
        body.extend(self.noise().map(|noise| format!("<p class=\"warn\">{}</p>\n", escape(&noise))));
        body += "<h2>Side by side</h2>\n<div class=\"charts\">\n";
        for (title, key) in [
            ("Requests a second: more is better", "requests_per_s"),
            ("Server CPU a request: less is better", "cpu_us_per_request"),
            ("Requests/s per 1 % CPU: more is better", "requests_per_s_per_cpu_percent"),
            ("Memory (PSS): less is better", "pss_bytes"),
            ("Bytes for each idle connection: less is better", "bytes_per_idle_connection"),
        ] {
            body += &chart::bars(title, &self.bars(key));
        }
        body += "</div>\n<h2>All figures</h2>\n";
        body += &html::table(&self.table(false));
        let left_out = self.left_out();
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
        body += &format!("<footer>{}. {}</footer>\n", escape(&self.machine), quantity::date(unix_s()));
        html::page(&self.lab.title, &body)
    }

    fn bars(&self, key: &str) -> Vec<Bar> {
        let bar = |cell: &Cell| {
            let value = self.median(cell, key)?;
            Some(Bar {
                name: cell.key(self.lab),
                value,
                range: stats::range(&self.values(cell, key))?,
                label: show(key, value),
                ours: self.lab.subjects[cell.subject].ours,
            })
        };
        self.cells.iter().filter_map(bar).collect()
    }

    /// For machines, and for `komainu lab compare`.
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
                json!({ "cell": key, "subject": self.lab.subjects[cell.subject].process.name,
                    "levels": cell.levels.iter().map(|(f, l)| (f.clone(), json!(l))).collect::<serde_json::Map<_, _>>(),
                    "broken": self.broken(cell), "runs": runs })
            })
            .collect();
        let pairs = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(name, said)| json!({ "name": name, "said": said })).collect()
        };
        json!({ "lab": self.lab.title, "machine": self.machine, "unix_s": unix_s(), "how": self.how, "cells": cells,
            "skipped": pairs(&self.skipped), "versions": pairs(&self.versions) })
    }
}

fn show(key: &str, value: f64) -> String {
    match (Figure::named(key), key) {
        (Some(figure), _) => figure.show(value),
        (None, "processes") => format!("{value:.0}"),
        (None, _) => quantity::bytes(value),
    }
}

/// Two results of the same experiment, cell by cell.
///
/// # Errors
/// Where they have no cell in common.
pub fn compare(a: &Value, b: &Value) -> Result<Table, String> {
    let mut table = Table::new(&[
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
            let (ours, theirs) = (of(&cell), of(&other));
            match (stats::median(&ours), stats::median(&theirs)) {
                (Some(x), Some(y)) => {
                    row.extend([show(key, x), show(key, y), format!("{:.3}", y / x)]);
                    row.push(match stats::ratio_of_sets(&theirs, &ours) {
                        Some(r) if r.is_distinct() => format!("{:.3}–{:.3}", r.low, r.high),
                        Some(r) => format!("{:.3}–{:.3}, no telling apart", r.low, r.high),
                        None => String::new(),
                    });
                }
                _ => row.extend(std::iter::repeat_n(String::new(), 4)),
            }
        }
        table.row(row);
    }
    if table.is_empty() { Err("the two have no cell in common".into()) } else { Ok(table) }
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

    fn findings(lab: &Lab, factor: f64) -> Findings<'_> {
        let row = |cell: &str, repetition: usize, rate: f64| Row {
            cell: cell.into(),
            repetition,
            figures: Ok(Map::from_iter([
                ("requests_per_s".to_string(), json!(rate * factor)),
                ("noise_share".to_string(), json!(0.2)),
            ])),
        };
        let mut rows: Vec<Row> = (0..3)
            .flat_map(|at| [row("a", at, 1_000.0 + at as f64), row("b", at, 500.0 + at as f64)])
            .collect();
        rows.push(Row {
            cell: "c".into(),
            repetition: 0,
            figures: Err("it answers 502 instead of 200".into()),
        });
        Findings {
            lab,
            cells: matrix::cells(lab, false),
            skipped: vec![("d".into(), "d is not installed: the package d brings it".into())],
            versions: vec![("a".into(), "a 1.0".into())],
            rows,
            machine: "a machine".into(),
            how: "10 connections".into(),
        }
    }

    #[test]
    fn every_form_has_the_figures_the_broken_and_the_skipped() {
        let lab = lab();
        let findings = findings(&lab, 1.0);
        for text in [findings.text(), findings.markdown(), findings.html()] {
            for part in ["1,001", "0.50 (", "BROKEN", "it answers 502", "package d", "Noisy: 20 %"] {
                assert!(text.contains(part), "{part}\n{text}");
            }
        }
        assert!(findings.html().contains("T &amp; more") && findings.html().contains("class=\"bar s0\""));
        let json = findings.json();
        assert_eq!(json["cells"][1]["runs"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["cells"][2]["broken"], "it answers 502 instead of 200");
    }

    #[test]
    fn two_results_are_compared_cell_by_cell() {
        let lab = lab();
        let (a, b) = (findings(&lab, 1.0).json(), findings(&lab, 1.5).json());
        let text = compare(&a, &b).unwrap().plain("");
        assert!(text.contains("1.500") && !text.contains("no telling"), "{text}");
        assert!(compare(&a, &a).unwrap().plain("").contains("no telling apart"));
        assert!(compare(&a, &json!({})).is_err());
    }
}
