//! `komainu bench`: measures, shows and saves the results, and checks expectations.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use failure::{Failure, FailureContext};
use net::ConnectAddress;
use serde_json::Value;

use crate::child_processes::{self, ProcessTree, TempFolder};
use crate::comparison::{self, Comparison};
use crate::expectation::Expectation;
use crate::load::LoadObserver;
use crate::outcome::BenchOutcome;
use crate::progress_display::ProgressDisplay;
use crate::session::{self, LoadSubject};
use crate::{ab, html, outcome_export, quantity, text};

/// Timeout in milliseconds for a server that is started for a comparison to listen.
const READY_MS_MAX: u64 = 15_000;

/// A run of `komainu bench`.
#[derive(Debug)]
pub struct BenchJob {
    /// Load and server that are measured.
    pub subject: LoadSubject,
    /// Subject of the comparison, measured in alternating runs.
    pub compared_side: Option<ComparedSide>,
    /// Pairs of runs in a comparison; at least 2.
    pub pairs: usize,
    /// Expectations of the run; in a comparison, of all runs of each side together.
    pub expectations: Vec<Expectation>,
    /// Output format.
    pub format: OutputFormat,
    /// Suppresses the progress display.
    pub quiet: bool,
    /// Files that the results are saved in.
    pub output_files: OutputFiles,
}

/// Other side of a comparison.
#[derive(Debug)]
pub enum ComparedSide {
    /// A running server.
    Subject(Box<LoadSubject>),
    /// Shell command that starts a server; `{port}` in it is replaced by a free port.
    Command(String),
}

/// Output format of an outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
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
pub struct OutputFiles {
    /// JSON file with all figures.
    pub json: Option<PathBuf>,
    /// CSV file with one line per run.
    pub csv: Option<PathBuf>,
    /// HTML page.
    pub html: Option<PathBuf>,
    /// CSV file with the latency percentiles, as `ab -e` writes it; not available for comparisons.
    pub percentiles: Option<PathBuf>,
}

impl OutputFiles {
    /// Checks before the measurement that the files can be written.
    fn check_writable(&self) -> Result<(), Failure> {
        for path in [&self.json, &self.csv, &self.html, &self.percentiles].into_iter().flatten() {
            let opened = fs::OpenOptions::new().create(true).append(true).open(path);
            opened.with_context(|| cannot_write(path))?;
        }
        Ok(())
    }

    /// Writes the files. The results have been printed before, so a full disk loses only the files.
    fn write(&self, json: &Value, runs: &[(String, &BenchOutcome)], page: &str) -> Result<(), Failure> {
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => fs::write(path, text()).with_context(|| cannot_write(path)),
            None => Ok(()),
        };
        write(&self.json, &|| format!("{json:#}\n"))?;
        write(&self.csv, &|| outcome_export::outcome_csv(runs))?;
        if let [(_, outcome)] = runs {
            write(&self.percentiles, &|| ab::format_percentiles(outcome))?;
        }
        write(&self.html, &|| page.to_string())
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Runs the job. Returns true if there were responses, all expectations are met, and every request was answered or
/// there is an expectation about errors.
///
/// # Errors
/// Returns why the load could not be measured or the results not saved.
pub fn run_job(job: &BenchJob, out: &mut dyn Write) -> Result<bool, Failure> {
    job.output_files.check_writable()?;
    let met = match &job.compared_side {
        None => run_single(job, out)?,
        Some(versus) => run_comparison(job, versus, out)?,
    };
    Ok(met)
}

/// Returns an observer that draws the progress on stderr, if that is a terminal and `quiet` is not set.
pub(crate) fn progress_display(quiet: bool, title: &str) -> Box<dyn LoadObserver> {
    if !quiet && io::stderr().is_terminal() {
        Box::new(ProgressDisplay::new(io::stderr(), title, terminal_columns()))
    } else {
        Box::new(())
    }
}

fn terminal_columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col))
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of the output has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot print"),
    }
}

fn run_single(job: &BenchJob, out: &mut dyn Write) -> Result<bool, Failure> {
    let title = &job.subject.url;
    let outcome = session::measure(
        &job.subject,
        child_processes::stop_flag(),
        &mut *progress_display(job.quiet, title),
    )?;
    let json = outcome_export::outcome_json(&outcome);
    print(
        out,
        &match job.format {
            OutputFormat::Text => text::format_report(&outcome),
            OutputFormat::Ab { any_length } => ab::format_report(&outcome, any_length),
            OutputFormat::Json => format!("{json:#}\n"),
        },
    )?;
    job.output_files.write(&json, &[("run".into(), &outcome)], &html::report_page(&outcome))?;
    Ok(judge(job, &outcome, ""))
}

/// Prints to stderr what makes the exit status 1; returns true if nothing does.
fn judge(job: &BenchJob, outcome: &BenchOutcome, side: &str) -> bool {
    let missed = job.expectations.iter().filter_map(|one| one.check(outcome).err());
    let mut faults: Vec<String> = missed.map(|missed| missed.to_string()).collect();
    let hung = outcome.never_answered();
    if outcome.measured.tally.responses == 0 {
        faults.push("there was no response at all".into());
    } else if hung > 0 && !job.expectations.iter().any(Expectation::is_about_errors) {
        let hung = quantity::format_thousands(hung as f64);
        let remedy = match job.format {
            OutputFormat::Ab { .. } => "",
            _ => " (`--expect 'errors < N'` allows some)",
        };
        faults.push(format!("{hung} requests were never answered{remedy}"));
    }
    for fault in &faults {
        let _ = writeln!(io::stderr(), "komainu bench: {side}{fault}");
    }
    faults.is_empty()
}

fn run_comparison(job: &BenchJob, versus: &ComparedSide, out: &mut dyn Write) -> Result<bool, Failure> {
    let scratch = TempFolder::new("bench")?;
    let started;
    let (other, name) = match versus {
        ComparedSide::Subject(subject) => ((**subject).clone(), subject.url.clone()),
        ComparedSide::Command(command) => {
            started = start_compared_server(command, &job.subject, scratch.path())?;
            (started.0.clone(), command.clone())
        }
    };
    let names = [job.subject.url.clone(), name];
    let pairs = run_pairs(job, &other, &names)?;
    if pairs.is_empty() {
        return Err(Failure::new("interrupted before a pair of runs was whole"));
    }
    let mut comparison = comparison::of_pairs(names.clone(), &pairs);
    if pairs.len() < job.pairs {
        comparison.basis += &format!("; interrupted before all {} were made", job.pairs);
    }
    let json = comparison.json(&pairs);
    print(
        out,
        &match job.format {
            OutputFormat::Json => format!("{json:#}\n"),
            OutputFormat::Text | OutputFormat::Ab { .. } => format_comparison(&comparison, &pairs),
        },
    )?;
    let mut runs: Vec<(String, &BenchOutcome)> = Vec::new();
    for (number, (a, b)) in pairs.iter().enumerate() {
        runs.push((format!("A{}", number + 1), a));
        runs.push((format!("B{}", number + 1), b));
    }
    job.output_files.write(&json, &runs, &html::comparison_page(&comparison, &pairs))?;
    let sides = [
        ("A: ", BenchOutcome::pooled(pairs.iter().map(|(a, _)| a))),
        ("B: ", BenchOutcome::pooled(pairs.iter().map(|(_, b)| b))),
    ];
    let are_met = sides.each_ref().map(|(side, all)| judge(job, all, side));
    Ok(are_met == [true; 2])
}

/// Formats the comparison, followed by each distinct warning of its runs.
fn format_comparison(comparison: &Comparison, pairs: &[(BenchOutcome, BenchOutcome)]) -> String {
    let mut said = comparison.text() + "\n";
    let mut doubts: Vec<String> = Vec::new();
    for (side, outcome) in pairs.iter().flat_map(|(a, b)| [("A", a), ("B", b)]) {
        for warning in crate::advice::warnings_up_to(outcome, comparison::PERCENTILE_MAX) {
            // Warnings that differ only in their numbers are shown once.
            let doubt = format!("{side}: {warning}");
            let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
            if doubts.iter().all(|known| letters(known) != letters(&doubt)) {
                doubts.push(doubt);
            }
        }
    }
    said.extend(doubts.iter().map(|doubt| text::wrap_sentence("! ", doubt)));
    said
}

/// Runs pair by pair; the order within a pair alternates, so that neither side always runs second.
fn run_pairs(
    job: &BenchJob,
    other: &LoadSubject,
    names: &[String; 2],
) -> Result<Vec<(BenchOutcome, BenchOutcome)>, Failure> {
    let stop = child_processes::stop_flag();
    let mut pairs = Vec::new();
    for number in 0..job.pairs.max(2) {
        let measure = |subject: &LoadSubject, side: usize| {
            let title =
                format!("pair {} of {}, {}: {}", number + 1, job.pairs, ["A", "B"][side], names[side]);
            session::measure(subject, stop, &mut *progress_display(job.quiet, &title))
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

/// Returns a free TCP port on loopback, below those that the kernel gives to connections: one of these could
/// be taken before the server that is to listen on it does.
///
/// # Errors
/// Fails if none of a hundred ports is free.
pub fn free_port() -> io::Result<u16> {
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for _ in 0..100 {
        let port = fastrand::u16(20_000..32_000);
        result = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|_| port);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Starts the other server and returns it as a subject.
fn start_compared_server(
    command: &str,
    like: &LoadSubject,
    folder: &Path,
) -> Result<(LoadSubject, ProcessTree), Failure> {
    let port = free_port()?;
    if !command.contains("{port}") {
        return Err(Failure::new("--vs-cmd: write {port} where the command takes the port to listen on"));
    }
    let line = format!("exec {}", command.replace("{port}", &port.to_string()));
    let mut tree = ProcessTree::start(Command::new("sh").args(["-c", &line]), &folder.join("output.log"))
        .context(command)?;
    let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ready = tree.wait_until(READY_MS_MAX, |_| TcpStream::connect(listens).ok());
    if ready.is_none() {
        let output = tree.output();
        let last: Vec<&str> = output.lines().rev().take(3).collect();
        return Err(Failure::new(format!("{command}: does not listen on port {port}: {}", last.join(" / "))));
    }
    let mut subject = like.clone();
    subject.server_pids = vec![tree.pid()];
    for origin in &mut subject.plan.origins {
        origin.address = ConnectAddress::Tcp(listens);
        origin.name = listens.to_string();
    }
    Ok((subject, tree))
}

/// Implements `komainu bench compare`: compares two saved results. Returns true if no figure has become
/// worse.
///
/// # Errors
/// Names the result that cannot be read or compared.
pub fn compare_files(a: &Path, b: &Path, as_json: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let read = |path: &Path| -> Result<Value, Failure> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).map_err(Failure::new).with_context(|| path.display())
    };
    let names = [a.display().to_string(), b.display().to_string()];
    let comparison = comparison::of_records(names, &read(a)?, &read(b)?)?;
    let text = if as_json { format!("{:#}\n", comparison.json(&[])) } else { comparison.text() };
    print(out, &text)?;
    Ok(comparison.lines.iter().all(|line| line.verdict() != "B is worse"))
}
