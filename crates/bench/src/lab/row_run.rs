//! Runs the experiments of a table of rows: `komainu lab table`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use failure::{Failure, FailureContext};
use serde_json::{Value, json};

use crate::child_processes;
use crate::lab::file::{Lab, LabSettings};
use crate::lab::peers;
use crate::lab::row_figures::RowFigures;
use crate::lab::row_file::{LabRow, RowFile};
use crate::lab::row_table;
use crate::lab::run::{self, LabOptions};
use crate::lab::run_progress::RunProgress;

/// Width of the table where the output is not a terminal.
const PLAIN_COLUMNS: usize = 200;

/// Options of a table's run.
#[derive(Clone, Debug)]
pub struct RowOptions {
    /// File of the rows.
    pub file: PathBuf,
    /// Parts of the names of rows to measure; empty for all.
    pub rows: Vec<String>,
    /// Whether to run the short forms.
    pub short: bool,
    /// Folder for the results of the experiments, each in a folder of its own.
    pub out: PathBuf,
    /// Whether to discard earlier results of the experiments.
    pub fresh: bool,
    /// Load settings that override those of all experiments and rows.
    pub overrides: Vec<(String, String)>,
    /// Programs of peers instead of the installed ones, by name.
    pub peers: Vec<(String, PathBuf)>,
    /// Path of this program, for Komainu subjects.
    pub komainu: PathBuf,
    /// Suppresses the progress display.
    pub quiet: bool,
    /// File of saved results, with which the new ones are compared.
    pub results: PathBuf,
    /// Whether to write the new results to that file.
    pub saves: bool,
}

/// Rows that are measured in one run of an experiment.
struct RowGroup<'r> {
    rows: Vec<&'r LabRow>,
    options: LabOptions,
}

/// Measures the rows and prints the table. Returns true if all could be measured.
///
/// # Errors
/// Fails if a file or an option is invalid, or if results cannot be saved.
pub fn run_rows(options: &RowOptions, out: &mut dyn Write) -> Result<bool, Failure> {
    if options.saves && options.short {
        return Err(Failure::new(
            "--save: the short form is too short for figures that stay; leave out --short",
        ));
    }
    let mut file = read_rows(&options.file)?;
    let order: Vec<String> = file.rows.iter().map(|row| row.name.clone()).collect();
    check_peers(&file, options)?;
    file.select(&options.rows)?;
    // Read before the measurement, so that a mistake in it is told before half an hour has gone.
    let saved = if options.results.exists() { read_results(&options.results)? } else { Vec::new() };
    let groups = group_rows(&file, options)?;
    let counts: Vec<usize> =
        groups.iter().map(|group| run::count_measurements(&group.options)).collect::<Result<_, _>>()?;
    let mut progress = RunProgress::of_several();
    let mut measured: Vec<RowFigures> = Vec::new();
    let mut failures = Vec::new();
    let mut is_complete = true;
    for (at, group) in groups.iter().enumerate() {
        let names: Vec<&str> = group.rows.iter().map(|row| row.name.as_str()).collect();
        if !options.quiet {
            let left = progress.title(counts[at..].iter().sum(), counts[at..].iter().sum());
            // If the terminal is closed, the measurement continues.
            let _ = writeln!(io::stderr(), "{left}: {}", names.join(", "));
        }
        progress.begin(counts[at + 1..].iter().sum());
        is_complete &= run::run_one_of_several(&group.options, &mut progress, &mut io::sink())?;
        let report = read_report(&group.options)?;
        for row in &group.rows {
            match RowFigures::from_report(row, &report) {
                Ok(figures) => measured.push(figures),
                Err(why) => failures.push(why.to_string()),
            }
        }
        if child_processes::stop_flag().load(Ordering::Relaxed) {
            failures.push("interrupted: the same command without --fresh continues from here".into());
            break;
        }
    }
    let columns = if io::stdout().is_terminal() {
        rustix::termios::tcgetwinsize(io::stdout()).map_or(PLAIN_COLUMNS, |size| usize::from(size.ws_col))
    } else {
        PLAIN_COLUMNS
    };
    measured.sort_by_key(|row| order.iter().position(|name| *name == row.name));
    let mut text = row_table::text(&file.title, &measured, &saved, columns);
    text.extend(failures.iter().map(|why| format!("\n{why}\n")));
    if options.saves && failures.is_empty() {
        write_results(&options.results, &order, &measured, saved)?;
        text += &format!("\nsaved in {}\n", options.results.display());
    } else if options.saves {
        text += &format!("\nnot saved in {}, because rows are missing\n", options.results.display());
    }
    out.write_all(text.as_bytes()).context("cannot print")?;
    Ok(is_complete && failures.is_empty())
}

/// Reads a file of rows.
///
/// # Errors
/// Names the file and the mistake.
pub fn read_rows(path: &Path) -> Result<RowFile, Failure> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    RowFile::parse(&text, path.parent().unwrap_or(Path::new(""))).context(path.display())
}

/// Reads saved results.
///
/// # Errors
/// Names the file and the mistake.
pub fn read_results(path: &Path) -> Result<Vec<RowFigures>, Failure> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_results(&text).context(path.display())
}

/// Parses saved results.
///
/// # Errors
/// Names the mistake.
pub fn parse_results(text: &str) -> Result<Vec<RowFigures>, Failure> {
    let value: Value = serde_json::from_str(text).map_err(Failure::new)?;
    let rows = value["rows"].as_array().ok_or_else(|| Failure::new("there is no list \"rows\""))?;
    rows.iter().map(RowFigures::from_json).collect()
}

/// Writes results, in the order of the rows. Saved ones stay where a row was not measured now, unless its row is gone.
fn write_results(
    path: &Path,
    order: &[String],
    measured: &[RowFigures],
    saved: Vec<RowFigures>,
) -> Result<(), Failure> {
    let mut rows = measured.to_vec();
    for before in saved {
        if order.contains(&before.name) && measured.iter().all(|row| row.name != before.name) {
            rows.push(before);
        }
    }
    rows.sort_by_key(|row| order.iter().position(|name| *name == row.name));
    let rows: Vec<Value> = rows.iter().map(RowFigures::json).collect();
    fs::write(path, format!("{:#}\n", json!({ "rows": rows })))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn read_report(options: &LabOptions) -> Result<Value, Failure> {
    let name = options.lab.file_stem().and_then(|stem| stem.to_str()).unwrap_or("lab");
    let path = options.out.join(format!("{name}.json"));
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).map_err(Failure::new).with_context(|| path.display())
}

/// Puts the rows that share a run together, checks them, and gives each group the options of its run.
fn group_rows<'r>(file: &'r RowFile, options: &RowOptions) -> Result<Vec<RowGroup<'r>>, Failure> {
    let mut groups: Vec<RowGroup<'r>> = Vec::new();
    for row in &file.rows {
        let lab = read_lab(&row.lab)?;
        row.check(&lab)?;
        if let Some(group) = groups.iter_mut().find(|group| group.rows[0].shares_run(row)) {
            group.rows.push(row);
            group.options.overrides.extend(row.levels.clone());
            continue;
        }
        let known = peers::program_names(&lab);
        let of_lab = options.peers.iter().filter(|(name, _)| known.contains(&name.as_str()));
        let load: LabSettings = row.load.clone().into_iter().chain(options.overrides.clone()).collect();
        let name = row.lab.file_stem().unwrap_or_default().to_string_lossy();
        let parts: Vec<String> = std::iter::once(name.into_owned())
            .chain(row.load.iter().map(|(key, value)| format!("{key}-{value}")))
            .collect();
        groups.push(RowGroup {
            rows: vec![row],
            options: LabOptions {
                lab: row.lab.clone(),
                short: options.short,
                out: options.out.join(parts.join("-").replace(['/', ' '], "_")),
                fresh: options.fresh,
                only: Vec::new(),
                overrides: row.levels.clone().into_iter().chain(load).collect(),
                other_builds: Vec::new(),
                peers: of_lab.cloned().collect(),
                komainu: options.komainu.clone(),
                quiet: options.quiet,
            },
        });
    }
    Ok(groups)
}

/// Checks that some peer runs each of the programs to replace. Rows that are left out count too: the same programs are
/// given whichever rows are measured.
fn check_peers(file: &RowFile, options: &RowOptions) -> Result<(), Failure> {
    let labs: BTreeSet<&Path> = file.rows.iter().map(|row| row.lab.as_path()).collect();
    let mut programs: BTreeSet<String> = BTreeSet::new();
    for lab in labs {
        programs.extend(peers::program_names(&read_lab(lab)?).iter().map(ToString::to_string));
    }
    match options.peers.iter().find(|(name, _)| !programs.contains(name)) {
        Some((strange, _)) => Err(Failure::new(format!(
            "--peer: no peer of these rows runs a program {strange:?}; there are {}",
            Vec::from_iter(programs).join(", ")
        ))),
        None => Ok(()),
    }
}

fn read_lab(path: &Path) -> Result<Lab, Failure> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Lab::parse(&text).context(path.display())
}
