//! Idle kept-alive connections: what each costs in memory, whether it still answers, and what a busy client beside
//! them loses.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::bench::files::{NOISE_MAX, Sample, sample};
use crate::bench::options::Options;
use crate::bench::subjects::{self, Running, Stage};
use crate::bench::www::{self, ROWS};
use crate::measure::children::Scratch;
use crate::measure::client::Connection;
use crate::measure::wrk::Wrk;
use crate::measure::{Outcome, procfs, stats};
use crate::report::{Table, keep, thousands};

const CONNECTIONS: usize = 15_000;
const BUSY_CONNECTIONS: usize = 100;
const WARM_UP_S: u64 = 1;
/// How many connections are opened, and send their request, at once.
const BATCH: usize = 100;
/// Connections from one source address before the next one's turn.
const PER_SOURCE: usize = 1_000;
/// Descriptors this process needs beside its connections.
const SPARE_DESCRIPTORS: usize = 100;
const SETTLE: Duration = Duration::from_secs(1);

const BYTES_AIM: f64 = 1024.0;
const LOSS_AIM: f64 = 0.10;

/// Hands out source addresses 127.0.0.2 to 127.0.0.251 in turn: a closed connection keeps its port for a minute, and
/// one address has too few of them.
struct Sources {
    handed_out: usize,
}

impl Sources {
    fn next(&mut self) -> u8 {
        let host = 2 + (self.handed_out / PER_SOURCE) % 250;
        self.handed_out += 1;
        host as u8
    }
}

/// What one subject showed.
struct Figures {
    pss_before: u64,
    pss_after: u64,
    /// Bytes that each idle connection added.
    bytes_each: f64,
    /// Idle connections that answered a request at the end.
    answered: usize,
    held: usize,
    /// A busy client alone, and beside the idle connections; by round.
    alone: Vec<Sample>,
    beside: Vec<Sample>,
}

impl Figures {
    fn medians(&self, of: fn(&Sample) -> f64) -> (f64, f64) {
        let median =
            |samples: &[Sample]| stats::median(&samples.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0);
        (median(&self.alone), median(&self.beside))
    }

    /// The greatest share of the machine's time that others took.
    fn noise(&self) -> Option<f64> {
        let noises: Vec<f64> = self.alone.iter().chain(&self.beside).map(|sample| sample.noise).collect();
        stats::range(&noises).map(|(_, greatest)| greatest)
    }

    /// The share of its throughput that the busy client loses.
    fn loss(&self) -> f64 {
        let (alone, beside) = self.medians(|sample| sample.load.rate());
        1.0 - beside / alone
    }
}

/// Runs the comparison, prints it, keeps it. Fails when ours is broken.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    let count = options.connections.unwrap_or(CONNECTIONS);
    raise_descriptor_limit(count)?;
    let scratch = Scratch::new("bench-idle")?;
    let root = www::write(scratch.path())?;
    let stage = Stage { folder: scratch.path(), root: &root, threads: options.threads };
    let wrk = Wrk::new(scratch.path(), 2)?;
    let mut code = ExitCode::SUCCESS;
    let mut sources = Sources { handed_out: 0 };
    let (mut table, mut notes, mut kept) = (Table::new(&COLUMNS), String::new(), Vec::new());
    for subject in subjects::chosen(options) {
        let outcome = match subject.program() {
            Err(remedy) => {
                notes += &format!("- {}: skipped, {remedy}\n", subject.name);
                continue;
            }
            Ok(_) => subject
                .start(&stage)
                .and_then(|running| measure(&running, &wrk, options, &mut sources, count)),
        };
        match outcome {
            Ok(figures) => {
                table.row(cells(&subject.name, subject.is_ours(), &figures));
                kept.push(figures_json(&subject.name, &figures));
                notes += &format!("- {}: {}\n", subject.name, subject.version());
                if let Some(noise) = figures.noise().filter(|&noise| noise > NOISE_MAX) {
                    notes += &format!(
                        "  Noisy: up to {:.0} % of the machine's time went elsewhere.\n",
                        noise * 100.0
                    );
                }
            }
            Err(error) => {
                notes += &format!("- {}: BROKEN, {error}\n", subject.name);
                if subject.is_ours() {
                    code = ExitCode::FAILURE;
                }
            }
        }
        eprintln!("{}", notes.lines().last().unwrap_or_default());
    }
    let markdown = format!(
        "# Idle connections\n\n{}. {} threads or workers each; {} kept-alive connections that sent one request each; \
         PSS of the whole process tree; beside them `wrk -t2 -c{BUSY_CONNECTIONS}` on a 1 KiB file, {} rounds of {} s.\n\n\
         {}\n{notes}",
        procfs::machine(),
        options.threads,
        thousands(count as f64),
        options.rounds_or(3),
        options.seconds,
        table.markdown(),
    );
    let json = json!({ "comparison": "idle", "machine": procfs::machine(), "threads": options.threads,
        "connections": count, "rounds": options.rounds_or(3), "seconds": options.seconds, "subjects": kept });
    println!("\n{markdown}");
    println!("Kept as {}", keep(&options.out, "idle", &markdown, &json)?.display());
    Ok(code)
}

/// Raises this process's limit to the hard one; the servers inherit it.
fn raise_descriptor_limit(connections: usize) -> Outcome<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })?;
    match hard {
        Some(hard) if (hard as usize) < connections + SPARE_DESCRIPTORS => {
            Err(format!("the descriptor limit is {hard}: too low for {connections} connections").into())
        }
        _ => Ok(()),
    }
}

fn measure(
    running: &Running,
    wrk: &Wrk,
    options: &Options,
    sources: &mut Sources,
    count: usize,
) -> Outcome<Figures> {
    let (row, pid) = (&ROWS[0], running.tree.pid());
    running.verify(row)?;
    let busy = |seconds| match sample(wrk, pid, &running.url(row), BUSY_CONNECTIONS, seconds)? {
        taken if taken.load.requests == 0 || taken.load.errors() > 0 => {
            Err(format!("the busy client saw {} errors", taken.load.errors()).into())
        }
        taken => Outcome::Ok(taken),
    };
    busy(WARM_UP_S)?;
    std::thread::sleep(SETTLE);
    let pss_before = procfs::tree_pss_bytes(pid);
    let mut idle = hold(running.address, sources, count)?;
    std::thread::sleep(SETTLE);
    let pss_after = procfs::tree_pss_bytes(pid);

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..options.rounds_or(3) {
        if round > 0 {
            idle = hold(running.address, sources, count)?;
        }
        beside.push(busy(options.seconds)?);
        if round + 1 < options.rounds_or(3) {
            idle.clear();
            std::thread::sleep(SETTLE);
            alone.push(busy(options.seconds)?);
        }
    }
    let answered = idle.iter_mut().filter_map(|c| c.ask(row.target).ok()).filter(|a| a.status == 200).count();
    drop(idle);
    std::thread::sleep(SETTLE);
    alone.push(busy(options.seconds)?);
    let bytes_each = pss_after.saturating_sub(pss_before) as f64 / count as f64;
    Ok(Figures { pss_before, pss_after, bytes_each, answered, held: count, alone, beside })
}

/// Opens `count` connections, each of which sends one request and reads its answer.
fn hold(to: SocketAddr, sources: &mut Sources, count: usize) -> Outcome<Vec<Connection>> {
    let row = &ROWS[0];
    let mut held: Vec<Connection> = Vec::with_capacity(count);
    while held.len() < count {
        let from = held.len();
        for at in from..count.min(from + BATCH) {
            let opened = Connection::open_from(sources.next(), to).and_then(|mut connection| {
                connection.send(row.target)?;
                Ok(connection)
            });
            held.push(opened.map_err(|error| format!("connection {at}: {error}"))?);
        }
        for (at, connection) in held.iter_mut().enumerate().skip(from) {
            match connection.receive() {
                Ok(answer) if answer.status == 200 && answer.body.len() == row.length => {}
                Ok(answer) => return Err(format!("connection {at}: status {}", answer.status).into()),
                Err(error) => return Err(format!("connection {at}: {error}").into()),
            }
        }
    }
    Ok(held)
}

const COLUMNS: [&str; 10] = [
    "subject",
    "PSS before",
    "PSS with idle",
    "bytes each",
    "aim",
    "answered",
    "req/s alone",
    "req/s beside",
    "loss",
    "CPU µs/req alone → beside",
];

fn cells(name: &str, ours: bool, figures: &Figures) -> Vec<String> {
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (alone, beside) = figures.medians(|sample| sample.load.rate());
    let (cpu_alone, cpu_beside) = figures.medians(Sample::cpu_us);
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    let (bytes_aim, loss_aim) = match ours {
        true => (
            format!("≤ {BYTES_AIM:.0} {}", verdict(figures.bytes_each <= BYTES_AIM)),
            format!(" (< {:.0} % {})", LOSS_AIM * 100.0, verdict(figures.loss() < LOSS_AIM)),
        ),
        false => (String::new(), String::new()),
    };
    vec![
        name.to_string(),
        mebibytes(figures.pss_before),
        mebibytes(figures.pss_after),
        thousands(figures.bytes_each),
        bytes_aim,
        format!("{}/{}", figures.answered, figures.held),
        thousands(alone),
        thousands(beside),
        format!("{:.1} %{loss_aim}", figures.loss() * 100.0),
        format!("{cpu_alone:.2} → {cpu_beside:.2}"),
    ]
}

fn figures_json(name: &str, figures: &Figures) -> serde_json::Value {
    let (alone, beside) = figures.medians(|sample| sample.load.rate());
    let (cpu_alone, cpu_beside) = figures.medians(Sample::cpu_us);
    json!({ "subject": name, "pss_before": figures.pss_before, "pss_after": figures.pss_after,
        "bytes_per_connection": figures.bytes_each, "answered": figures.answered, "held": figures.held,
        "requests_per_s_alone": alone, "requests_per_s_beside": beside, "loss": figures.loss(),
        "cpu_us_alone": cpu_alone, "cpu_us_beside": cpu_beside })
}
