//! Compares the load generator with wrk and h2load: CPU time per request, and request rate.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitCode};

use bench::procfs;
use bench::quantity::format_thousands;
use bench::stats::{self, Ratio};
use bench::table::TextTable;
use serde_json::{Value, json};

use crate::measure::options::MeasureOptions;
use crate::measure::peer;
use crate::measure::{Fallible, save_result};
use bench::child_processes::{ProcessTree, TempFolder};

/// Numbers of connections, one row each.
const ROWS: [usize; 3] = [10, 100, 1000];
const ROUNDS: usize = 20;
const RUN_TIMEOUT_MS: u64 = 120_000;
/// Target for our CPU time and our rate, as multiples of wrk's.
const CPU_TARGET: f64 = 1.0;
const RATE_TARGET: f64 = 1.0;

/// Load generator to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generator {
    Komainu,
    Wrk,
    H2load,
}

const ALL: [Generator; 3] = [Generator::Komainu, Generator::Wrk, Generator::H2load];

/// Run of one generator.
#[derive(Clone, Copy, Debug)]
struct GeneratorRun {
    /// CPU time of the generator's whole run per request, in microseconds.
    cpu_us: f64,
    /// Requests per second.
    rate: f64,
}

impl Generator {
    fn name(self) -> &'static str {
        match self {
            Generator::Komainu => "komainu bench",
            Generator::Wrk => "wrk",
            Generator::H2load => "h2load --h1",
        }
    }

    /// Returns a command that runs the generator with one thread and keep-alive for the configured number of
    /// seconds.
    fn command(self, url: &str, connections: usize, options: &MeasureOptions) -> Command {
        let connections = connections.to_string();
        let seconds = options.seconds.to_string();
        let (program, arguments) = match self {
            Generator::Komainu => (options.binary.as_path(), "bench -q -t 1 --warm-up 0s --format json"),
            Generator::Wrk => (Path::new("wrk"), "-t 1"),
            Generator::H2load => (Path::new("h2load"), "--h1 -t 1"),
        };
        // Pinned to another core than the server, so that they do not compete for CPU time.
        let mut command = Command::new("taskset");
        command.args(["-c", peer::GENERATOR_CORE]).arg(program).args(arguments.split(' '));
        command.args(["-c", &connections]);
        match self {
            Generator::H2load => command.args(["-D", &seconds]),
            _ => command.args(["-d", &format!("{seconds}s")]),
        };
        command.arg(url);
        command
    }

    /// Parses the number of responses and the duration in seconds from the output.
    fn parse_figures(self, output: &str) -> Option<(f64, f64)> {
        match self {
            Generator::Komainu => {
                let figures = &serde_json::from_str::<Value>(output).ok()?["figures"];
                let requests = figures["responses"].as_f64()?;
                Some((requests, requests / figures["requests_per_s"].as_f64()?))
            }
            Generator::Wrk => {
                let requests =
                    output.split(" requests in ").next()?.split_whitespace().last()?.parse().ok()?;
                let rate = output.split("Requests/sec:").nth(1)?.split_whitespace().next()?;
                Some((requests, requests / rate.parse::<f64>().ok()?))
            }
            Generator::H2load => {
                let before = |mark: &str| {
                    let text = output.split(mark).next()?;
                    text.rsplit([' ', ',']).next()?.parse::<f64>().ok()
                };
                let requests = before(" succeeded")?;
                let rate = before(" req/s")?;
                Some((requests, requests / rate))
            }
        }
    }

    fn measure(
        self,
        url: &str,
        connections: usize,
        folder: &Path,
        options: &MeasureOptions,
    ) -> Fallible<GeneratorRun> {
        let before_ns = used_cpu_ns();
        let mut command = self.command(url, connections, options);
        let mut tree = ProcessTree::start(command.current_dir(folder), &folder.join("generator.log"))?;
        tree.wait_until(RUN_TIMEOUT_MS, |_| None::<()>);
        let output = tree.output();
        // The child has ended and has been waited for, so its CPU time is counted with this process's
        // children.
        drop(tree);
        let cpu_ns = used_cpu_ns().saturating_sub(before_ns);
        let (requests, seconds) = self
            .parse_figures(&output)
            .filter(|(requests, _)| *requests > 0.0)
            .ok_or_else(|| format!("{} gave no figures: {output}", self.name()))?;
        Ok(GeneratorRun { cpu_us: cpu_ns as f64 / 1e3 / requests, rate: requests / seconds })
    }
}

/// Returns the CPU time of this process and of its children that have been waited for. This process itself
/// uses hardly any CPU time while it waits for a generator.
fn used_cpu_ns() -> u64 {
    procfs::read_usage(&[std::process::id()]).since_start().total_ns
}

/// Runs the comparison, prints it and saves it.
pub(crate) fn run(options: &MeasureOptions) -> Fallible<ExitCode> {
    let scratch = TempFolder::new("generator")?;
    let folder = scratch.path();
    let options = &MeasureOptions { binary: fs::canonicalize(&options.binary)?, ..options.clone() };
    let server = peer::nginx(folder)?;
    let url = format!("http://{}/", server.address);
    TcpStream::connect(server.address)?;
    let mut text = format!(
        "# What the load generator costs\n\n{}. One thread each, full histograms on ours, against one worker of nginx (`return 200`) \
         on a core of its own; {} rounds of {} s in turns; medians, and ratios by the pairs of a round with their 99 % interval. CPU is the generator's \
         whole life, its start included.\n",
        procfs::describe_machine(),
        options.rounds_or(ROUNDS),
        options.seconds,
    );
    let mut kept = Vec::new();
    for connections in
        ROWS.into_iter().filter(|row| MeasureOptions::is_chosen(&options.rows, &row.to_string()))
    {
        let samples = run_in_rounds(&url, connections, folder, options)?;
        let (table, row) = format_report(&samples);
        text += &format!("\n## {connections} connections\n\n{}", table.markdown());
        kept.push(json!({ "connections": connections, "generators": row }));
    }
    println!("\n{text}");
    let json = json!({ "comparison": "generator", "machine": procfs::describe_machine(), "rows": kept });
    println!("Kept as {}", save_result(&options.out, "generator", &text, &json)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the runs by generator and round; each round starts with another generator.
fn run_in_rounds(
    url: &str,
    connections: usize,
    folder: &Path,
    options: &MeasureOptions,
) -> Fallible<[Vec<GeneratorRun>; 3]> {
    let mut samples = [const { Vec::new() }; ALL.len()];
    for round in 0..options.rounds_or(ROUNDS) {
        for turn in 0..ALL.len() {
            let at = (turn + round) % ALL.len();
            let sample = ALL[at].measure(url, connections, folder, options)?;
            eprintln!(
                "{connections:>4} connections  round {}/{}  {:<14} {:>6.2} µs CPU/request {:>9} req/s",
                round + 1,
                options.rounds_or(ROUNDS),
                ALL[at].name(),
                sample.cpu_us,
                format_thousands(sample.rate),
            );
            samples[at].push(sample);
        }
    }
    Ok(samples)
}

fn format_report(samples: &[Vec<GeneratorRun>; 3]) -> (TextTable, Vec<Value>) {
    let mut table =
        TextTable::new(&["", "CPU µs/request", "spread", "req/s", "CPU of wrk", "rate of wrk", "aims"]);
    let mut rows = Vec::new();
    let wrk = &samples[1];
    for (generator, own) in ALL.into_iter().zip(samples) {
        let each = |of: fn(&GeneratorRun) -> f64| own.iter().map(of).collect::<Vec<f64>>();
        let ratio = |of: fn(&GeneratorRun) -> f64| {
            let pairs: Vec<(f64, f64)> = own.iter().zip(wrk).map(|(own, wrk)| (of(own), of(wrk))).collect();
            stats::ratio(&pairs).unwrap_or(Ratio { ratio: f64::NAN, low: f64::NAN, high: f64::NAN })
        };
        let median = |values: &[f64]| stats::median(values).unwrap_or(f64::NAN);
        let cpu = each(|s| s.cpu_us);
        let rate = each(|s| s.rate);
        let cpu_ratio = ratio(|s| s.cpu_us);
        let rate_ratio = ratio(|s| s.rate);
        let verdict = |met: bool| if met { "met" } else { "MISSED" };
        let aims = match generator {
            Generator::Komainu => format!(
                "CPU ≤ {CPU_TARGET:.1} {}, rate ≥ {RATE_TARGET:.1} {}",
                verdict(cpu_ratio.ratio <= CPU_TARGET),
                verdict(rate_ratio.ratio >= RATE_TARGET)
            ),
            _ => String::new(),
        };
        let shown = |r: Ratio| match generator {
            Generator::Wrk => String::new(),
            _ => format!("{:.3} ({:.3}–{:.3})", r.ratio, r.low, r.high),
        };
        let (low, high) = stats::range(&cpu).unwrap_or_default();
        table.add_row(vec![
            generator.name().into(),
            format!("{:.2}", median(&cpu)),
            format!("{low:.2}–{high:.2}"),
            format_thousands(median(&rate)),
            shown(cpu_ratio),
            shown(rate_ratio),
            aims,
        ]);
        rows.push(json!({ "name": generator.name(), "cpu_us_per_request": cpu, "requests_per_s": rate,
            "cpu_of_wrk": cpu_ratio.ratio, "rate_of_wrk": rate_ratio.ratio }));
    }
    (table, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_each_generator_is_parsed() {
        let h2load = "finished in 2.00s, 125000.50 req/s, 20.5MB/s\nrequests: 250001 total, 250101 started, 250001 done, 250001 succeeded, 0 failed";
        for (generator, output, requests, rate) in [
            (Generator::H2load, h2load, 250_001.0, 125_000.5),
            (
                Generator::Wrk,
                "Running 2s test\n  500 requests in 2.01s, 1MB read\nRequests/sec:    250.0\nTransfer/sec: 1MB\n",
                500.0,
                250.0,
            ),
            (
                Generator::Komainu,
                "{\"figures\":{\"responses\":300.0,\"requests_per_s\":150.0}}",
                300.0,
                150.0,
            ),
        ] {
            let (found, seconds) = generator.parse_figures(output).expect("figures");
            assert!(
                (found - requests).abs() < 1e-6 && (found / seconds - rate).abs() < 1e-6,
                "{generator:?}"
            );
            assert_eq!(generator.parse_figures("connection refused"), None);
        }
    }

    #[test]
    fn generators_are_compared_by_pairs() {
        let sample = |cpu_us, rate| GeneratorRun { cpu_us, rate };
        let ours = vec![sample(6.0, 100.0), sample(12.0, 90.0)];
        let wrk = vec![sample(7.0, 99.0), sample(14.0, 91.0)];
        let (table, rows) = format_report(&[ours, wrk.clone(), wrk]);
        assert!(table.markdown().contains("CPU ≤ 1.0 met") && table.markdown().contains("0.857"));
        assert_eq!(rows.len(), 3);
    }
}
