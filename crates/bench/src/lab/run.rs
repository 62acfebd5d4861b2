//! Runs an experiment, from its file to its reports.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use failure::{Failure, FailureContext};
use serde_json::{Map, Value, json};

use crate::child_processes;
use crate::job::progress_display;
use crate::lab::environment::{self, LabEnvironment, RunningCell};
use crate::lab::file::{Lab, LabSettings, LabSubject};
use crate::lab::matrix::{self, LabCell};
use crate::lab::overrides;
use crate::lab::peers;
use crate::lab::report::{self, LabFindings};
use crate::lab::results_file::{LabMeasurement, ResultsFile, fingerprint};
use crate::lab::run_progress::RunProgress;
use crate::load;
use crate::outcome::BenchOutcome;
use crate::outcome_export;
use crate::plan::Pace;
use crate::procfs;
use crate::quantity;
use crate::session;

/// Options of an experiment's run.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// File of the experiment.
    pub lab: PathBuf,
    /// Whether to run the short form.
    pub short: bool,
    /// Folder for the results: NAME.jsonl, NAME.json, NAME.md, NAME.html.
    pub out: PathBuf,
    /// Whether to discard earlier results.
    pub fresh: bool,
    /// Substrings of the names of subjects to measure; empty for all.
    pub only: Vec<String>,
    /// Levels and load settings that override the file's.
    pub overrides: Vec<(String, String)>,
    /// Other builds of this program, by name.
    pub other_builds: Vec<(String, PathBuf)>,
    /// Programs of peers instead of the installed ones, by name.
    pub peers: Vec<(String, PathBuf)>,
    /// Path of this program, for Komainu subjects.
    pub komainu: PathBuf,
    /// Suppresses the progress display.
    pub quiet: bool,
}

impl LabOptions {
    fn is_wanted(&self, subject: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| subject.contains(part))
    }
}

/// Runs the experiment. Returns true if every installed subject could be measured.
///
/// # Errors
/// Fails if the file is invalid or results cannot be saved.
pub fn run_lab(options: &LabOptions, out: &mut dyn Write) -> Result<bool, Failure> {
    run_one_of_several(options, &mut RunProgress::default(), out)
}

/// Reads an experiment and applies the options.
fn read_lab(options: &LabOptions) -> Result<(Lab, String), Failure> {
    let path = options.lab.display();
    let text = fs::read_to_string(&options.lab).with_context(|| format!("cannot read {path}"))?;
    let mut lab = Lab::parse(&text).context(&path)?;
    overrides::apply_setting(&mut lab, &options.overrides)?;
    peers::replace_programs(&mut lab, &options.peers).context(&path)?;
    overrides::add_builds(&mut lab, &options.other_builds)?;
    if options.short {
        // The short form does not allow conclusions.
        lab.aims.clear();
    }
    Ok((lab, text))
}

/// Returns the number of measurements of an experiment, as far as it can be told before it is prepared.
///
/// # Errors
/// Fails if the file or an option is invalid.
pub fn count_measurements(options: &LabOptions) -> Result<usize, Failure> {
    let (lab, _) = read_lab(options)?;
    let (cells, _) = select_cells(&lab, options, |_| Ok(None))?;
    Ok(cells.len() * repetitions(&lab, options.short)?)
}

/// Runs an experiment whose progress is counted in `progress`. Returns true if every installed subject could be
/// measured.
///
/// # Errors
/// Fails if the file is invalid or results cannot be saved.
pub fn run_one_of_several(
    options: &LabOptions,
    progress: &mut RunProgress,
    out: &mut dyn Write,
) -> Result<bool, Failure> {
    let path = options.lab.display();
    let (lab, text) = read_lab(options)?;
    let name = options.lab.file_stem().and_then(|stem| stem.to_str()).unwrap_or("lab");
    let kept = options.out.join(format!("{name}.jsonl"));
    let builds = options.other_builds.iter().chain(&options.peers).map(|(_, path)| path);
    let builds: Vec<_> = builds.chain([&options.komainu]).map(|path| build_id(path)).collect();
    let changes = (&options.overrides, &options.other_builds, &options.peers);
    let state = fingerprint(&text, &(options.short, changes, builds));
    let mut kept = ResultsFile::open(&kept, &state, options.fresh)?;
    if !lab.subjects.iter().any(|subject| options.is_wanted(&subject.process.name)) {
        let names: Vec<&str> = lab.subjects.iter().map(|subject| subject.process.name.as_str()).collect();
        return Err(Failure::new(format!(
            "{path}: no subject has a name with {}: there are {}",
            options.only.join(" or "),
            names.join(", ")
        )));
    }
    let stage = LabEnvironment::new(&lab, &options.komainu)?;
    let (cells, skipped) = select_cells(&lab, options, |subject| stage.unmet_condition(subject))?;
    let versions = versions(&lab, &stage, &cells);
    for (name, why) in skipped.iter().filter(|_| progress.reports_each) {
        report_line(options, &format!("{name}: skipped, {why}"));
    }
    measure_all(&lab, &stage, &cells, &mut kept, options, progress)?;
    let findings = LabFindings {
        load_description: describe_load(&lab, options.short),
        machine: procfs::describe_machine(),
        rows: std::mem::take(&mut kept.rows),
        lab: &lab,
        cells,
        skipped,
        versions,
    };
    let printed = out.write_all(findings.text().as_bytes());
    for (ending, text) in
        [("md", findings.markdown()), ("html", findings.html()), ("json", format!("{:#}\n", findings.json()))]
    {
        let path = options.out.join(format!("{name}.{ending}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    printed.context("cannot print")?;
    Ok(findings.rows.iter().all(|row| row.figures.is_ok())
        && !child_processes::stop_flag().load(Ordering::Relaxed))
}

/// Returns an identifier of a program's build, so that results of different builds are not mixed.
fn build_id(path: &Path) -> Option<(u64, Option<SystemTime>)> {
    let about = fs::metadata(path).ok()?;
    Some((about.len(), about.modified().ok()))
}

/// Names of subjects that are not measured, with the reason.
type SkippedSubjects = Vec<(String, String)>;

/// Returns the cells that can be measured on this machine, and the other subjects with the reason.
///
/// # Errors
/// Fails if a subject's condition cannot be checked.
fn select_cells(
    lab: &Lab,
    options: &LabOptions,
    unmet_condition: impl Fn(&LabSubject) -> Result<Option<String>, Failure>,
) -> Result<(Vec<LabCell>, SkippedSubjects), Failure> {
    let mut cells = matrix::cells(lab, options.short);
    let mut skipped = Vec::new();
    for (number, subject) in lab.subjects.iter().enumerate() {
        let name = &subject.process.name;
        if !options.is_wanted(name) {
            cells.retain(|cell| cell.subject != number);
            continue;
        }
        let mut services =
            lab.services.iter().filter(|service| subject.required_services.contains(&service.name));
        let komainu = subject.komainu.as_deref().unwrap_or(&options.komainu);
        let mut why = subject.skip.clone().or_else(|| {
            environment::missing_requirement(&subject.process, komainu, &subject.programs).or_else(|| {
                services.find_map(|service| environment::missing_requirement(service, komainu, &[]))
            })
        });
        if why.is_none() {
            why = unmet_condition(subject)?;
        }
        if let Some(why) = why {
            cells.retain(|cell| cell.subject != number);
            skipped.push((name.clone(), why));
        }
    }
    Ok((cells, skipped))
}

fn versions(lab: &Lab, stage: &LabEnvironment, cells: &[LabCell]) -> Vec<(String, String)> {
    let mut versions: Vec<(String, String)> = Vec::new();
    for cell in cells {
        let subject = &lab.subjects[cell.subject];
        let services =
            lab.services.iter().filter(|service| subject.required_services.contains(&service.name));
        let services = services.map(|service| (service, None));
        for (process, of) in services.chain([(&subject.process, Some(subject))]) {
            if versions.iter().any(|(name, _)| *name == process.name) {
                continue;
            }
            let version = stage.version(process, of);
            if !version.is_empty() {
                versions.push((process.name.clone(), version));
            }
        }
    }
    versions
}

/// Returns the load settings of a cell: the subject's override those of the short form, which override the
/// experiment's.
fn cell_settings(lab: &Lab, cell: &LabCell, short: bool) -> LabSettings {
    let mut settings = lab.load.clone();
    if short {
        settings.extend(lab.short_load.clone());
    }
    settings.extend(lab.subjects[cell.subject].load.clone());
    settings
}

fn describe_load(lab: &Lab, short: bool) -> String {
    let mut all = lab.load.clone();
    if short {
        all.extend(lab.short_load.clone());
    }
    // Settings that depend on a factor are described with the factor.
    all.retain(|_, value| !value.contains("{{"));
    let each: Vec<String> = all.iter().map(|(key, value)| format!("{key} {value}")).collect();
    let form = if short { "The short form: too short for conclusions. " } else { "" };
    format!(
        "{form}Load: {}. Medians of the repetitions, which went in rounds through all cells.",
        each.join(", ")
    )
}

fn report_line(options: &LabOptions, line: &str) {
    if !options.quiet {
        // If the terminal is closed, the measurement continues.
        let _ = writeln!(io::stderr(), "{line}");
    }
}

fn load_number(lab: &Lab, short: bool, key: &str, default: f64) -> Result<f64, Failure> {
    let text = lab.short_load.get(key).filter(|_| short).or_else(|| lab.load.get(key));
    text.map_or(Ok(default), |text| quantity::count(text))
}

fn repetitions(lab: &Lab, short: bool) -> Result<usize, Failure> {
    load_number(lab, short, "repetitions", 3.0).map(|number| number as usize)
}

fn measure_all(
    lab: &Lab,
    stage: &LabEnvironment,
    cells: &[LabCell],
    kept: &mut ResultsFile,
    options: &LabOptions,
    progress: &mut RunProgress,
) -> Result<(), Failure> {
    let seed = load_number(lab, options.short, "seed", 1.0)? as u64;
    let order = matrix::measurement_order(cells.len(), repetitions(lab, options.short)?, seed);
    let left = |kept: &ResultsFile, cell: &LabCell, repetition: usize| {
        let key = cell.key(lab);
        let broken = kept.rows.iter().any(|row| row.cell == key && row.figures.is_err());
        !broken && !kept.has_measurement(&key, repetition)
    };
    for (at, &(number, repetition)) in order.iter().enumerate() {
        let cell = &cells[number];
        if !left(kept, cell, repetition) {
            continue;
        }
        let remaining =
            order[at..].iter().filter(|(cell, repetition)| left(kept, &cells[*cell], *repetition)).count();
        let key = cell.key(lab);
        let title = format!("{}: {key}", progress.title(order.len(), remaining));
        let figures = measure_cell(lab, stage, cell, options, &title);
        if child_processes::stop_flag().load(Ordering::Relaxed) {
            report_line(options, "interrupted: the same command continues from here");
            return Ok(());
        }
        if (progress.reports_each && !io::stderr().is_terminal()) || figures.is_err() {
            report_line(options, &format!("{title}: {}", summarize(&figures)));
        }
        kept.append(LabMeasurement { cell: key, repetition, figures })?;
        progress.made_one();
    }
    progress.end(order.len());
    Ok(())
}

fn summarize(figures: &Result<Map<String, Value>, Failure>) -> String {
    match figures {
        Err(broken) => format!("BROKEN: {broken}"),
        Ok(figures) => {
            let rate = figures.get("requests_per_s").and_then(Value::as_f64).unwrap_or(0.0);
            let cpu = figures.get("cpu_us_per_request").and_then(Value::as_f64);
            let cpu = cpu
                .map_or(String::new(), |cpu| format!(", {} µs CPU a request", quantity::format_digits(cpu)));
            format!("{} requests/s{cpu}", quantity::format_digits(rate))
        }
    }
}

/// Measures one cell: starts it, puts load on it and stops it.
fn measure_cell(
    lab: &Lab,
    stage: &LabEnvironment,
    cell: &LabCell,
    options: &LabOptions,
    title: &str,
) -> Result<Map<String, Value>, Failure> {
    let settings = cell_settings(lab, cell, options.short);
    let mut running = stage.start(lab, cell, &settings)?;
    let mut figures = Map::new();
    let outcome = match running.idle_connections {
        0 => measure_load(&running, options, title)?,
        idle => measure_with_idle(&running, idle, options, title, &mut figures)?,
    };
    if let Some(dead) = running.ended_process() {
        return Err(Failure::new(dead));
    }
    if outcome.measured.tally.responses == 0 {
        let errors = &outcome.measured.tally.errors;
        let example = errors.iter().next().map_or("", |(_, _, example)| example).to_string();
        return Err(Failure::new(format!("nothing was answered: {example}")));
    }
    if let Some(wrong) = running.response_error(&outcome.measured.tally) {
        return Err(Failure::new(wrong));
    }
    let record = outcome_export::outcome_json(&outcome);
    figures.extend(record["figures"].as_object().cloned().unwrap_or_default());
    if let Some(spent) = &outcome.server {
        figures.insert("processes".into(), json!(spent.after.len()));
    }
    drop(running);
    if let Some(cooldown) = settings.get("cooldown") {
        std::thread::sleep(quantity::parse_duration(cooldown)?);
    }
    Ok(figures)
}

fn measure_load(running: &RunningCell, options: &LabOptions, title: &str) -> Result<BenchOutcome, Failure> {
    session::measure(
        &running.subject,
        child_processes::stop_flag(),
        &mut *progress_display(options.quiet, title),
    )
}

/// Holds idle connections, measures their cost, and puts load on the server at the same time.
fn measure_with_idle(
    running: &RunningCell,
    idle: usize,
    options: &LabOptions,
    title: &str,
    figures: &mut Map<String, Value>,
) -> Result<BenchOutcome, Failure> {
    const SETTLE_TIME: Duration = Duration::from_millis(500);
    const OPEN_S_MAX: u64 = 60;
    raise_descriptor_limit()?;
    let alone = measure_load(running, options, title)?;
    let pids = || procfs::process_tree(&running.subject.server_pids);
    let pss = || procfs::process_memory(&pids()).iter().map(|memory| memory.pss).sum::<u64>();
    std::thread::sleep(SETTLE_TIME);
    let before = pss();
    // A connection that sends one request and then pauses for a day is idle.
    let mut plan = running.subject.plan.clone();
    (plan.connections, plan.threads, plan.pipeline) = (idle, 1, 1);
    (plan.duration, plan.requests_max, plan.warm_up) = (None, Some(idle as u64 + 1), Duration::ZERO);
    plan.pace = Pace::Closed { think: Duration::from_secs(86_400) };
    plan.ramp = Duration::from_millis(idle as u64 / 10);
    plan.timeout = Duration::from_secs(OPEN_S_MAX);
    let answered = AtomicBool::new(false);
    let release = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let held = scope.spawn(|| {
            load::run_load(
                &plan,
                &release,
                &mut AnsweredObserver { wanted_responses: idle as u64, is_reached: &answered },
            )
        });
        let deadline = Instant::now() + Duration::from_secs(OPEN_S_MAX);
        while !answered.load(Ordering::Relaxed) && Instant::now() < deadline && !held.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(SETTLE_TIME);
        let with = pss();
        let beside = if answered.load(Ordering::Relaxed) {
            measure_load(running, options, title)
        } else {
            Err(Failure::new(format!("not all of {idle} idle connections were answered")))
        };
        release.store(true, Ordering::Relaxed);
        let held = held.join().map_err(|_| "the thread of the idle connections panicked".to_string())??;
        let beside = beside?;
        let lost = held.tally.errors.total();
        if lost > 0 {
            return Err(Failure::new(format!("{lost} of {idle} idle connections were lost")));
        }
        figures.insert(
            "bytes_per_idle_connection".into(),
            json!(with.saturating_sub(before) as f64 / idle as f64),
        );
        figures.insert("requests_per_s_without_idle".into(), json!(alone.measured.rate()));
        figures.insert(
            "rate_kept_share".into(),
            json!(beside.measured.rate() / alone.measured.rate().max(1e-9)),
        );
        Ok(beside)
    })?;
    Ok(outcome)
}

/// Observer that records the time at which the wanted number of requests has been answered.
struct AnsweredObserver<'t> {
    wanted_responses: u64,
    is_reached: &'t AtomicBool,
}

impl load::LoadObserver for AnsweredObserver<'_> {
    fn progress(&mut self, progress: &load::LoadProgress<'_>) {
        if progress.tally.responses >= self.wanted_responses {
            self.is_reached.store(true, Ordering::Relaxed);
        }
    }
}

/// Raises the soft limit on open files to the hard limit; servers started afterwards inherit it.
fn raise_descriptor_limit() -> Result<(), Failure> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).map_err(Failure::new)
}

/// Implements `komainu lab compare`: compares two saved results of one experiment.
///
/// # Errors
/// Names the result that cannot be read or compared.
pub fn compare_files(a: &Path, b: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let read = |path: &Path| -> Result<Value, Failure> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).map_err(Failure::new).with_context(|| path.display())
    };
    let table = report::compare_results(&read(a)?, &read(b)?)?;
    let text = format!("A  {}\nB  {}\n\n{}", a.display(), b.display(), table.plain("  "));
    out.write_all(text.as_bytes()).context("cannot print")
}
