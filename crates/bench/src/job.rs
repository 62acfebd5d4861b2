//! `komainu bench`: measures, shows and saves the results, and checks expectations.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use net::Dial;
use serde_json::Value;

use crate::children::{self, ProcessTree, TempFolder};
use crate::expect::Expectation;
use crate::live::Live;
use crate::load::Observer;
use crate::outcome::Outcome;
use crate::session::{self, LoadSubject};
use crate::versus::{self, Comparison};
use crate::{ab, html, record, text};

/// Timeout in milliseconds for a server that is started for a comparison to listen.
const READY_MS_MAX: u64 = 15_000;

/// A run of `komainu bench`.
#[derive(Debug)]
pub struct BenchJob {
    /// Load and server that are measured.
    pub subject: LoadSubject,
    /// Subject of the comparison, measured in alternating runs.
    pub versus: Option<Versus>,
    /// Pairs of runs in a comparison; at least 2.
    pub pairs: usize,
    /// Expectations of the run (in a comparison: of the last run of the first side).
    pub expectations: Vec<Expectation>,
    /// Output format.
    pub format: Format,
    /// Suppresses the progress display.
    pub quiet: bool,
    /// Files that the results are saved in.
    pub keep: Keep,
}

/// Other side of a comparison.
#[derive(Debug)]
pub enum Versus {
    /// A running server.
    Subject(Box<LoadSubject>),
    /// Shell command that starts a server; `{port}` in it is replaced by a free port.
    Command(String),
}

/// Output format of an outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// The output format of `ab`.
    Ab {
        /// Whether a response whose length differs from the first one's does not count as failed.
        any_length: bool,
    },
    /// JSON, identical to the file's.
    Json,
}

/// Files that the outcome is saved in.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// JSON file with all figures.
    pub json: Option<PathBuf>,
    /// CSV file with one line per run.
    pub csv: Option<PathBuf>,
    /// HTML page.
    pub html: Option<PathBuf>,
    /// CSV file with the latency percentiles, as `ab -e` writes it; not available for comparisons.
    pub percentiles: Option<PathBuf>,
}

impl Keep {
    /// Checks before the measurement that the files can be written.
    fn check(&self) -> Result<(), String> {
        for path in [&self.json, &self.csv, &self.html, &self.percentiles].into_iter().flatten() {
            let opened = fs::OpenOptions::new().create(true).append(true).open(path);
            opened.map_err(|error| cannot_write(path, &error))?;
        }
        Ok(())
    }

    /// Writes the files. The results have been printed before, so a full disk loses only the files.
    fn write(&self, json: &Value, runs: &[(String, &Outcome)], page: &str) -> Result<(), String> {
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => fs::write(path, text()).map_err(|error| cannot_write(path, &error)),
            None => Ok(()),
        };
        write(&self.json, &|| format!("{json:#}\n"))?;
        write(&self.csv, &|| record::csv(runs))?;
        if let [(_, outcome)] = runs {
            write(&self.percentiles, &|| ab::percentiles(outcome))?;
        }
        write(&self.html, &|| page.to_string())
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Runs the job. Returns true if all expectations are met.
///
/// # Errors
/// Returns why the load could not be measured or the results not saved.
pub fn run(job: &BenchJob, out: &mut dyn Write) -> Result<bool, String> {
    job.keep.check()?;
    let met = match &job.versus {
        None => alone(job, out)?,
        Some(versus) => compared(job, versus, out)?,
    };
    Ok(met)
}

/// Returns an observer that draws the progress on stderr, if that is a terminal and `quiet` is not set.
pub(crate) fn live(quiet: bool, title: &str) -> Box<dyn Observer> {
    match !quiet && io::stderr().is_terminal() {
        true => Box::new(Live::new(io::stderr(), title, columns())),
        false => Box::new(()),
    }
}

fn columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col))
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), String> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of the output has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| format!("cannot print: {error}")),
    }
}

fn alone(job: &BenchJob, out: &mut dyn Write) -> Result<bool, String> {
    let title = &job.subject.url;
    let outcome = session::measure(&job.subject, children::stop(), &mut *live(job.quiet, title))?;
    let json = record::json(&outcome);
    print(
        out,
        &match job.format {
            Format::Text => text::report(&outcome),
            Format::Ab { any_length } => ab::report(&outcome, any_length),
            Format::Json => format!("{json:#}\n"),
        },
    )?;
    job.keep.write(&json, &[("run".into(), &outcome)], &html::report(&outcome))?;
    Ok(judge(job, &outcome) && outcome.measured.tally.responses > 0)
}

/// Prints the expectations that are not met to stderr; returns true if all are met.
fn judge(job: &BenchJob, outcome: &Outcome) -> bool {
    let missed: Vec<String> = job.expectations.iter().filter_map(|one| one.check(outcome).err()).collect();
    for missed in &missed {
        let _ = writeln!(io::stderr(), "komainu bench: {missed}");
    }
    missed.is_empty()
}

fn compared(job: &BenchJob, versus: &Versus, out: &mut dyn Write) -> Result<bool, String> {
    let scratch = TempFolder::new("bench").map_err(|error| error.to_string())?;
    let started;
    let (other, name) = match versus {
        Versus::Subject(subject) => ((**subject).clone(), subject.url.clone()),
        Versus::Command(command) => {
            started = start(command, &job.subject, scratch.path())?;
            (started.0.clone(), command.clone())
        }
    };
    let names = [job.subject.url.clone(), name];
    let pairs = in_turns(job, &other, &names)?;
    if pairs.is_empty() {
        return Err("interrupted before a pair of runs was whole".into());
    }
    let mut comparison = versus::of_pairs(names.clone(), &pairs);
    if pairs.len() < job.pairs {
        comparison.basis += &format!("; interrupted before all {} were made", job.pairs);
    }
    let json = comparison.json(&pairs);
    print(
        out,
        &match job.format {
            Format::Json => format!("{json:#}\n"),
            Format::Text | Format::Ab { .. } => said(&comparison, &pairs),
        },
    )?;
    let mut runs: Vec<(String, &Outcome)> = Vec::new();
    for (number, (a, b)) in pairs.iter().enumerate() {
        runs.push((format!("A{}", number + 1), a));
        runs.push((format!("B{}", number + 1), b));
    }
    job.keep.write(&json, &runs, &html::comparison(&comparison, &pairs))?;
    Ok(pairs.last().is_none_or(|(a, _)| judge(job, a)))
}

/// Formats the comparison, followed by each distinct warning of its runs.
fn said(comparison: &Comparison, pairs: &[(Outcome, Outcome)]) -> String {
    let mut said = comparison.text() + "\n";
    let mut doubts: Vec<String> = Vec::new();
    for (side, outcome) in pairs.iter().flat_map(|(a, b)| [("A", a), ("B", b)]) {
        for warning in crate::advice::warnings_up_to(outcome, versus::PERCENTILE_MAX) {
            // Warnings that differ only in their numbers are shown once.
            let doubt = format!("{side}: {warning}");
            let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
            if doubts.iter().all(|known| letters(known) != letters(&doubt)) {
                doubts.push(doubt);
            }
        }
    }
    said.extend(doubts.iter().map(|doubt| text::wrapped("! ", doubt)));
    said
}

/// Runs pair by pair; the order within a pair alternates, so that neither side always runs second.
fn in_turns(
    job: &BenchJob,
    other: &LoadSubject,
    names: &[String; 2],
) -> Result<Vec<(Outcome, Outcome)>, String> {
    let stop = children::stop();
    let mut pairs = Vec::new();
    for number in 0..job.pairs.max(2) {
        let measure = |subject: &LoadSubject, side: usize| {
            let title =
                format!("pair {} of {}, {}: {}", number + 1, job.pairs, ["A", "B"][side], names[side]);
            session::measure(subject, stop, &mut *live(job.quiet, &title))
        };
        let (a, b) = match number % 2 {
            0 => {
                let a = measure(&job.subject, 0)?;
                (a, measure(other, 1)?)
            }
            _ => {
                let b = measure(other, 1)?;
                (measure(&job.subject, 0)?, b)
            }
        };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        pairs.push((a, b));
    }
    Ok(pairs)
}

/// Returns a free TCP port on loopback.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Starts the other server and returns it as a subject.
fn start(command: &str, like: &LoadSubject, folder: &Path) -> Result<(LoadSubject, ProcessTree), String> {
    let port = free_port().map_err(|error| error.to_string())?;
    if !command.contains("{port}") {
        return Err("--vs-cmd: write {port} where the command takes the port to listen on".into());
    }
    let line = format!("exec {}", command.replace("{port}", &port.to_string()));
    let mut tree = ProcessTree::start(Command::new("sh").args(["-c", &line]), &folder.join("output.log"))
        .map_err(|error| format!("{command}: {error}"))?;
    let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ready = tree.wait_until(READY_MS_MAX, |_| TcpStream::connect(listens).ok());
    if ready.is_none() {
        let output = tree.output();
        let last: Vec<&str> = output.lines().rev().take(3).collect();
        return Err(format!("{command}: does not listen on port {port}: {}", last.join(" / ")));
    }
    let mut subject = like.clone();
    subject.server_pids = vec![tree.pid()];
    for origin in &mut subject.plan.origins {
        origin.dial = Dial::Tcp(listens);
        origin.name = listens.to_string();
    }
    Ok((subject, tree))
}

/// Implements `komainu bench compare`: compares two saved results. Returns true if no figure has become
/// worse.
///
/// # Errors
/// Names the result that cannot be read or compared.
pub fn compare(a: &Path, b: &Path, as_json: bool, out: &mut dyn Write) -> Result<bool, String> {
    let read = |path: &Path| -> Result<Value, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let names = [a.display().to_string(), b.display().to_string()];
    let comparison = versus::of_records(names, &read(a)?, &read(b)?)?;
    print(
        out,
        &match as_json {
            true => format!("{:#}\n", comparison.json(&[])),
            false => comparison.text(),
        },
    )?;
    Ok(comparison.lines.iter().all(|line| line.verdict() != "B is worse"))
}
