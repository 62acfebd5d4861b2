//! Static files: what a request costs in each server, in turns, so that a noisy minute hits all of them.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::bench::options::Options;
use crate::bench::subjects::{self, Running, Stage, Subject};
use crate::bench::www::{self, ROWS, Row};
use crate::measure::children::Scratch;
use crate::measure::wrk::{Load, Wrk};
use crate::measure::{Outcome, procfs, stats};
use crate::report::{Table, keep, thousands, time_us};

const CONNECTIONS: usize = 100;
const WARM_UP_S: u64 = 1;
/// Above this share of the machine's time spent by others, figures deserve a second look.
pub(crate) const NOISE_MAX: f64 = 0.05;

/// One measurement of one subject on one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) load: Load,
    /// CPU of the server's whole tree.
    pub(crate) cpu: procfs::Cpu,
    /// CPU spent on this machine by neither the server nor the generator, as a share of all cores' time.
    pub(crate) noise: f64,
}

impl Sample {
    /// CPU microseconds per request.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu.total_ns as f64 / 1e3 / self.load.requests.max(1) as f64
    }

    fn system_us(&self) -> f64 {
        self.cpu.system_ns as f64 / 1e3 / self.load.requests.max(1) as f64
    }
}

/// Loads `url` and reads what the tree under `pid` spent on it.
pub(crate) fn sample(wrk: &Wrk, pid: u32, url: &str, connections: usize, seconds: u64) -> Outcome<Sample> {
    let (busy, reaped, cpu) = (procfs::machine_busy_ns(), procfs::reaped_ns(), procfs::tree_cpu(pid));
    let load = wrk.run(url, connections, seconds)?;
    let cpu = procfs::tree_cpu(pid).since(cpu);
    let ours = cpu.total_ns + procfs::reaped_ns().saturating_sub(reaped);
    let busy = procfs::machine_busy_ns().saturating_sub(busy);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let noise = busy.saturating_sub(ours) as f64 / (load.duration_us as f64 * 1e3 * cores);
    Ok(Sample { load, cpu, noise })
}

/// A subject with its state: measured, or out with the reason.
struct Entry {
    subject: Subject,
    state: State,
    /// By row, by round.
    samples: Vec<Vec<Sample>>,
}

enum State {
    Running(Running),
    Skipped(String),
    Broken(String),
}

impl Entry {
    fn enter(subject: Subject, stage: &Stage<'_>, rows: &[&Row]) -> Entry {
        let state = match subject.program() {
            Err(remedy) => State::Skipped(remedy),
            Ok(_) => match subject.start(stage) {
                Err(error) => State::Broken(error.to_string()),
                Ok(running) => match rows.iter().try_for_each(|row| running.verify(row)) {
                    Err(error) => State::Broken(error),
                    Ok(()) => State::Running(running),
                },
            },
        };
        Entry { subject, state, samples: rows.iter().map(|_| Vec::new()).collect() }
    }

    /// One measurement; what goes wrong breaks this subject and no other.
    fn measure(
        &mut self,
        wrk: &Wrk,
        at: usize,
        row: &Row,
        options: &Options,
        seconds: u64,
    ) -> Option<Sample> {
        let State::Running(running) = &mut self.state else { return None };
        let connections = options.connections.unwrap_or(CONNECTIONS);
        let taken = sample(wrk, running.tree.pid(), &running.url(row), connections, seconds);
        let broken = match taken {
            Ok(taken) if taken.load.requests == 0 => "no request was answered".to_string(),
            Ok(taken) if taken.load.status_errors > 0 => {
                format!("{} answers to {} were errors", taken.load.status_errors, row.target)
            }
            Ok(_) if !running.tree.is_alive() => "it died under load".to_string(),
            Ok(taken) => {
                self.samples[at].push(taken);
                return Some(taken);
            }
            Err(error) => error.to_string(),
        };
        self.state = State::Broken(broken);
        None
    }
}

/// The medians of one subject on one row.
struct Figures<'a> {
    name: &'a str,
    ours: bool,
    cpu_us: f64,
    spread: (f64, f64),
    system_us: f64,
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    errors: u64,
    noise: f64,
}

/// What ours is held against: each figure from the peer that is best in it.
#[derive(Clone, Copy)]
struct Best {
    cpu_us: f64,
    p99_us: f64,
}

impl Best {
    fn of(all: &[Figures<'_>]) -> Option<Best> {
        let least =
            |of: fn(&Figures<'_>) -> f64| all.iter().filter(|f| !f.ours).map(of).min_by(f64::total_cmp);
        Some(Best { cpu_us: least(|f| f.cpu_us)?, p99_us: least(|f| f.p99_us)? })
    }
}

fn figures(entry: &Entry, at: usize) -> Option<Figures<'_>> {
    let samples = &entry.samples[at];
    if matches!(entry.state, State::Broken(_)) {
        return None;
    }
    let each = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    Some(Figures {
        name: &entry.subject.name,
        ours: entry.subject.is_ours(),
        cpu_us: stats::median(&each(Sample::cpu_us))?,
        spread: stats::range(&each(Sample::cpu_us))?,
        system_us: stats::median(&each(Sample::system_us))?,
        rate: stats::median(&each(|s| s.load.rate()))?,
        p50_us: stats::median(&each(|s| s.load.p50_us as f64))?,
        p99_us: stats::median(&each(|s| s.load.p99_us as f64))?,
        errors: samples.iter().map(|s| s.load.errors()).sum(),
        noise: stats::median(&each(|s| s.noise))?,
    })
}

/// Runs the comparison, prints it, keeps it. Fails when ours is broken.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    let scratch = Scratch::new("bench")?;
    let root = www::write(scratch.path())?;
    let stage = Stage { folder: scratch.path(), root: &root, threads: options.threads };
    let wrk = Wrk::new(scratch.path(), 2)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| Options::chooses(&options.rows, row.name)).collect();
    let mut entries: Vec<Entry> =
        subjects::chosen(options).into_iter().map(|subject| Entry::enter(subject, &stage, &rows)).collect();
    for entry in &entries {
        match &entry.state {
            State::Running(_) => eprintln!("{}: {}", entry.subject.name, entry.subject.version()),
            State::Skipped(why) => eprintln!("{}: skipped, {why}", entry.subject.name),
            State::Broken(why) => eprintln!("{}: BROKEN, {why}", entry.subject.name),
        }
    }
    measure_all(&mut entries, &rows, &wrk, options);
    let (markdown, json) = report(&entries, &rows, options);
    println!("\n{markdown}");
    println!("Kept as {}", keep(&options.out, "files", &markdown, &json)?.display());
    let broken = entries.iter().any(|e| e.subject.is_ours() && matches!(e.state, State::Broken(_)));
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure_all(entries: &mut [Entry], rows: &[&Row], wrk: &Wrk, options: &Options) {
    let count = entries.len();
    for (at, row) in rows.iter().enumerate() {
        for round in 0..options.rounds_or(3) {
            for turn in 0..count {
                // Every round begins with another subject, so that none always follows the same one.
                let entry = &mut entries[(turn + round) % count];
                if round == 0 && entry.measure(wrk, at, row, options, WARM_UP_S).is_some() {
                    entry.samples[at].clear();
                }
                let Some(taken) = entry.measure(wrk, at, row, options, options.seconds) else { continue };
                eprintln!(
                    "{:<16}  round {}/{}  {:<12}  {:>7.2} µs CPU/request  {:>9} req/s  p99 {}",
                    row.title,
                    round + 1,
                    options.rounds_or(3),
                    entry.subject.name,
                    taken.cpu_us(),
                    thousands(taken.load.rate()),
                    time_us(taken.load.p99_us as f64),
                );
            }
        }
    }
}

fn report(entries: &[Entry], rows: &[&Row], options: &Options) -> (String, serde_json::Value) {
    let connections = options.connections.unwrap_or(CONNECTIONS);
    let mut text = format!(
        "# Static files\n\n{}. {} threads or workers each, {connections} kept-alive connections from `wrk -t2`, \
         {} rounds of {} s in turns; medians. CPU is the server's whole process tree; the spread is that of the rounds.\n",
        procfs::machine(),
        options.threads,
        options.rounds_or(3),
        options.seconds,
    );
    let mut json_rows = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let all: Vec<Figures<'_>> = entries.iter().filter_map(|entry| figures(entry, at)).collect();
        let best = Best::of(&all);
        text += &format!("\n## {}\n\n{}", row.title, row_table(&all, best, row).markdown());
        json_rows.push(json!({ "row": row.name, "bytes": row.length, "aim": row.aim,
            "subjects": all.iter().map(|f| figures_json(f, best)).collect::<Vec<_>>() }));
        if let Some(noisy) =
            all.iter().map(|f| f.noise).max_by(f64::total_cmp).filter(|&noise| noise > NOISE_MAX)
        {
            text += &format!("\nNoisy: up to {:.0} % of the machine's time went elsewhere.\n", noisy * 100.0);
        }
    }
    text += "\n## Subjects\n\n";
    for entry in entries {
        let state = match &entry.state {
            State::Running(_) => entry.subject.version(),
            State::Skipped(why) => format!("skipped, {why}"),
            State::Broken(why) => format!("BROKEN, {why}"),
        };
        text += &format!("- {}: {state}\n", entry.subject.name);
    }
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let json = json!({ "comparison": "files", "unix_s": unix_s, "machine": procfs::machine(),
        "threads": options.threads, "connections": connections, "rounds": options.rounds_or(3),
        "seconds": options.seconds, "rows": json_rows });
    (text, json)
}

fn row_table(all: &[Figures<'_>], best: Option<Best>, row: &Row) -> Table {
    let mut table = Table::new(&[
        "subject",
        "CPU µs/req",
        "spread",
        "of it system",
        "req/s",
        "p50",
        "p99",
        "errors",
        "CPU of best peer",
        "p99 of best peer",
        "aims",
    ]);
    for f in all {
        let ratios = best.map(|best| (f.cpu_us / best.cpu_us, f.p99_us / best.p99_us));
        let verdict = |met: bool| if met { "met" } else { "MISSED" };
        let aims = ratios.filter(|_| f.ours).map(|(cpu, p99)| {
            format!("CPU ≤ {:.2} {}, p99 ≤ 1 {}", row.aim, verdict(cpu <= row.aim), verdict(p99 <= 1.0))
        });
        table.row(vec![
            f.name.to_string(),
            format!("{:.2}", f.cpu_us),
            format!("{:.2}–{:.2}", f.spread.0, f.spread.1),
            format!("{:.2}", f.system_us),
            thousands(f.rate),
            time_us(f.p50_us),
            time_us(f.p99_us),
            f.errors.to_string(),
            ratios.map_or(String::new(), |(cpu, _)| format!("{cpu:.3}")),
            ratios.map_or(String::new(), |(_, p99)| format!("{p99:.2}")),
            aims.unwrap_or_default(),
        ]);
    }
    table
}

fn figures_json(f: &Figures<'_>, best: Option<Best>) -> serde_json::Value {
    json!({ "subject": f.name, "cpu_us_per_request": f.cpu_us, "cpu_us_least": f.spread.0,
        "cpu_us_greatest": f.spread.1, "system_us_per_request": f.system_us, "requests_per_s": f.rate,
        "p50_us": f.p50_us, "p99_us": f.p99_us, "errors": f.errors, "noise": f.noise,
        "cpu_of_best_peer": best.map(|best| f.cpu_us / best.cpu_us),
        "p99_of_best_peer": best.map(|best| f.p99_us / best.p99_us) })
}
