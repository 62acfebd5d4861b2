//! Results file: one line per measurement, so that an interrupted experiment can be resumed.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use failure::{Failure, FailureContext};
use serde_json::{Map, Value, json};

use crate::stats::{self, Ratio};

/// A measurement of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct LabMeasurement {
    /// Key of the cell.
    pub cell: String,
    /// Repetition, from 0.
    pub repetition: usize,
    /// Figures by key, or the reason why there are none.
    pub figures: Result<Map<String, Value>, Failure>,
}

/// Results of an experiment, stored on disk.
pub struct ResultsFile {
    file: File,
    path: PathBuf,
    /// Measurements so far.
    pub rows: Vec<LabMeasurement>,
}

/// Returns a hash of the experiment's file and options: results with a different fingerprint are not reused.
#[must_use]
pub fn fingerprint(text: &str, options: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    (text, options).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl ResultsFile {
    /// Opens the results at `path`. Results with the same fingerprint are kept; the file is emptied if the
    /// fingerprint differs or `fresh` is set. Broken cells are discarded, so that they are measured again.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn open(path: &Path, fingerprint: &str, fresh: bool) -> Result<ResultsFile, Failure> {
        let attempted = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(attempted)?;
        }
        let before = fs::read_to_string(path).unwrap_or_default();
        let same = before.lines().next().is_some_and(|line| line.contains(fingerprint)) && !fresh;
        let rows = if same {
            before
                .lines()
                .skip(1)
                .filter_map(parse)
                .filter(|row: &LabMeasurement| row.figures.is_ok())
                .collect()
        } else {
            Vec::new()
        };
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .append(same)
            .truncate(!same)
            .open(path)
            .with_context(attempted)?;
        if !same {
            writeln!(file, "{}", json!({ "experiment": fingerprint })).with_context(attempted)?;
        }
        if same && !before.ends_with('\n') {
            writeln!(file).with_context(attempted)?;
        }
        Ok(ResultsFile { file, path: path.to_path_buf(), rows })
    }

    /// Whether this repetition of the cell has been measured.
    #[must_use]
    pub fn has_measurement(&self, cell: &str, repetition: usize) -> bool {
        self.rows.iter().any(|row| row.cell == cell && row.repetition == repetition)
    }

    /// Appends a measurement.
    ///
    /// # Errors
    /// Fails if the file cannot be written, for example because the disk is full.
    pub fn append(&mut self, row: LabMeasurement) -> Result<(), Failure> {
        let line = match &row.figures {
            Ok(figures) => json!({ "cell": row.cell, "repetition": row.repetition, "figures": figures }),
            Err(broken) => {
                json!({ "cell": row.cell, "repetition": row.repetition, "broken": broken.to_string() })
            }
        };
        self.rows.push(row);
        writeln!(self.file, "{line}").with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Parses a line; returns `None` for one that a crash has truncated.
fn parse(line: &str) -> Option<LabMeasurement> {
    let value: Value = serde_json::from_str(line).ok()?;
    let figures = match (value["figures"].as_object(), value["broken"].as_str()) {
        (Some(figures), _) => Ok(figures.clone()),
        (None, Some(broken)) => Err(Failure::new(broken)),
        (None, None) => return None,
    };
    Some(LabMeasurement {
        cell: value["cell"].as_str()?.to_string(),
        repetition: value["repetition"].as_u64()? as usize,
        figures,
    })
}

/// Returns all measurements of a figure in a cell, by repetition.
#[must_use]
pub fn cell_values(rows: &[LabMeasurement], cell: &str, key: &str) -> Vec<(usize, f64)> {
    let of_one =
        |row: &LabMeasurement| Some((row.repetition, row.figures.as_ref().ok()?.get(key)?.as_f64()?));
    rows.iter().filter(|row| row.cell == cell).filter_map(of_one).collect()
}

/// Returns a cell's figure as a multiple of another cell's, from repetitions that both have, because these
/// were measured in one round.
#[must_use]
pub fn cell_ratio(rows: &[LabMeasurement], cell: &str, to: &str, key: &str) -> Option<(f64, Option<Ratio>)> {
    let base = cell_values(rows, to, key);
    let pairs: Vec<(f64, f64)> = cell_values(rows, cell, key)
        .into_iter()
        .filter_map(|(repetition, value)| {
            Some((value, base.iter().find(|(other, _)| *other == repetition)?.1))
        })
        .collect();
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let plain = stats::median(&ours)? / stats::median(&theirs)?;
    plain.is_finite().then(|| (plain, stats::ratio(&pairs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cell: &str, repetition: usize, rate: f64) -> LabMeasurement {
        let figures = Map::from_iter([("requests_per_s".to_string(), json!(rate))]);
        LabMeasurement { cell: cell.into(), repetition, figures: Ok(figures) }
    }

    #[test]
    fn interrupted_experiment_resumes_and_a_changed_one_restarts() {
        let folder = std::env::temp_dir().join(format!("komainu-kept-{}", std::process::id()));
        let path = folder.join("lab.jsonl");
        let mut kept = ResultsFile::open(&path, "f1", false).unwrap();
        kept.append(row("a", 0, 10.0)).unwrap();
        kept.append(LabMeasurement { figures: Err(Failure::new("no start")), ..row("b", 0, 0.0) }).unwrap();
        drop(kept);
        fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"cell\":\"c\",\"repe").unwrap();
        let mut kept = ResultsFile::open(&path, "f1", false).unwrap();
        assert!(kept.has_measurement("a", 0) && !kept.has_measurement("a", 1));
        assert!(!kept.has_measurement("b", 0) && kept.rows.len() == 1, "what was broken is measured again");
        // The new entry starts on a line after the truncated one.
        kept.append(row("c", 0, 20.0)).unwrap();
        assert!(ResultsFile::open(&path, "f1", false).unwrap().has_measurement("c", 0));
        assert!(ResultsFile::open(&path, "f2", false).unwrap().rows.is_empty());
        assert!(ResultsFile::open(&path, "f2", true).unwrap().rows.is_empty());
        fs::remove_dir_all(folder).unwrap();
        assert_ne!(fingerprint("x", &true), fingerprint("x", &false));
    }

    #[test]
    fn ratios_pair_repetitions_present_in_both_cells() {
        let rows =
            [row("a", 0, 20.0), row("b", 0, 10.0), row("a", 1, 42.0), row("b", 1, 20.0), row("a", 2, 99.0)];
        let (plain, interval) = cell_ratio(&rows, "a", "b", "requests_per_s").unwrap();
        assert!((plain - 31.0 / 15.0).abs() < 1e-9);
        assert!((interval.unwrap().ratio - (2.0f64 * 2.1).sqrt()).abs() < 1e-9);
        assert_eq!(cell_ratio(&rows, "a", "none", "requests_per_s"), None);
        assert_eq!(cell_values(&rows, "a", "requests_per_s"), [(0, 20.0), (1, 42.0), (2, 99.0)]);
    }
}
