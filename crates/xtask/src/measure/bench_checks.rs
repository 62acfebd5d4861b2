//! Checks `komainu bench` against known values: the kernel's accounting, equal servers, and a server that is 5 % slower.
//! `komainu bench calibrate` checks the others.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use bench::procfs;
use bench::table::TextTable;
use serde_json::{Value, json};

use crate::measure::known_server;
use crate::measure::options::MeasureOptions;
use crate::measure::peer::{GENERATOR_CORE, SERVER_CORE};
use crate::measure::{Fallible, save_result};
use bench::child_processes::{ProcessTree, TempFolder};
use bench::job::free_port;

const READY_MS_MAX: u64 = 10_000;
/// Maximum relative difference between a reading and the kernel's value.
const READING_ERROR_MAX: f64 = 0.02;
/// CPU time per request of the compared servers, in microseconds.
const WORK_US: u64 = 100;
/// Maximum share of comparisons of equal servers that may report a difference.
const FALSE_ALARMS_MAX: f64 = 0.05;
/// Default number of comparisons of equal servers.
const EQUAL_COMPARISONS: usize = 100;
/// Options for these comparisons: short runs, so that a hundred fit, but enough pairs for the rank test.
const EQUAL_RUN_OPTIONS: [&str; 6] = ["-d", "150ms", "--warm-up", "30ms", "--pairs", "14"];
/// Default number of comparisons with a slower server, each with the default duration.
const SLOWER_COMPARISONS: usize = 10;
/// Names of the checks for `--rows`.
const CHECKS: [&str; 3] = ["readings", "equals", "slower"];
/// Figures that are compared.
const COMPARED_FIGURES: [&str; 4] = ["cpu_us_per_request", "p50_us", "p99_us", "requests_per_s"];
/// Figures that must show 5 % more work every time. The rate and the slowest requests also depend on other
/// programs on the machine and are therefore only reported.
const DECISIVE_FIGURES: [&str; 2] = ["cpu_us_per_request", "p50_us"];

/// Server of known behaviour.
struct KnownServer {
    address: SocketAddr,
    tree: ProcessTree,
}

/// Result of one check.
struct CheckResult {
    description: String,
    expected: String,
    measured: String,
    is_met: bool,
}

struct BenchChecks<'o> {
    options: &'o MeasureOptions,
    binary: PathBuf,
    folder: &'o Path,
    results: Vec<CheckResult>,
}

/// Runs the checks selected by `--rows`, prints their results and saves them.
pub(crate) fn run(options: &MeasureOptions) -> Fallible<ExitCode> {
    let scratch = TempFolder::new("instrument")?;
    let binary = fs::canonicalize(&options.binary)?;
    let mut bench = BenchChecks { options, binary, folder: scratch.path(), results: Vec::new() };
    for check in CHECKS.into_iter().filter(|name| MeasureOptions::is_chosen(&options.rows, name)) {
        match check {
            "readings" => bench.check_readings()?,
            "equals" => bench.check_equals()?,
            _ => bench.check_slower()?,
        }
    }
    let mut table = TextTable::new(&["what", "known", "found", ""]);
    for f in &bench.results {
        let verdict = if f.is_met { "holds" } else { "FAILS" };
        table.add_row(vec![f.description.clone(), f.expected.clone(), f.measured.clone(), verdict.into()]);
    }
    let text = format!(
        "# The instrument, held against the known\n\n{}.\n\n{}",
        procfs::describe_machine(),
        table.markdown()
    );
    println!("\n{text}");
    let each = |f: &CheckResult| json!({ "what": f.description, "known": f.expected, "found": f.measured, "holds": f.is_met });
    let json = json!({ "comparison": "instrument", "machine": procfs::describe_machine(),
        "findings": bench.results.iter().map(each).collect::<Vec<_>>() });
    println!("Kept as {}", save_result(&options.out, "instrument", &text, &json)?.display());
    Ok(if bench.results.iter().all(|f| f.is_met) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl BenchChecks<'_> {
    fn record(&mut self, what: &str, known: String, found: String, holds: bool) {
        eprintln!("{what}: known {known}, found {found}: {}", if holds { "holds" } else { "FAILS" });
        self.results.push(CheckResult {
            description: what.into(),
            expected: known,
            measured: found,
            is_met: holds,
        });
    }

    /// Starts a server of known behaviour on the servers' core; `before` is a command that runs and observes
    /// it.
    fn start_server(&self, turns: &str, before: &[&str]) -> Fallible<KnownServer> {
        let port = free_port()?;
        let mut command = Command::new("taskset");
        command.args(["-c", SERVER_CORE]).args(before).arg(std::env::current_exe()?);
        command.args(["known", &port.to_string(), turns]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut tree = ProcessTree::start(&mut command, &self.folder.join(format!("server-{port}.log")))?;
        match tree.wait_until(READY_MS_MAX, |_| TcpStream::connect(address).ok()) {
            Some(_) => Ok(KnownServer { address, tree }),
            None => Err(format!("{before:?} {turns} does not start: {}", tree.output()).into()),
        }
    }

    /// Runs our generator on another core than the servers and returns its output.
    fn run_bench(&self, arguments: &[&str], to: SocketAddr) -> Fallible<String> {
        let mut command = Command::new("taskset");
        command.args(["-c", GENERATOR_CORE]).arg(&self.binary).args(["bench", "-q", "-t", "1"]);
        let output = command.args(arguments).arg(format!("http://{to}/")).stdin(Stdio::null()).output()?;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout)?)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
        }
    }

    fn run_bench_json(&self, arguments: &[&str], to: SocketAddr) -> Fallible<Value> {
        let arguments = [arguments, &["--format", "json"]].concat();
        Ok(serde_json::from_str(&self.run_bench(&arguments, to)?)?)
    }

    /// Compares CPU time and memory with /proc and /usr/bin/time.
    fn check_readings(&mut self) -> Fallible<()> {
        let reported = self.folder.join("time.txt");
        let watch = [
            "/usr/bin/time",
            "-f",
            "%U %S %M",
            "-o",
            reported.to_str().ok_or("the folder's name is not text")?,
        ];
        let mut server = self.start_server(&known_server::iterations_in(WORK_US).to_string(), &watch)?;
        let pid = *procfs::process_tree(&[server.tree.pid()]).last().ok_or("the server is gone")?;
        let before = process_cpu_s(pid)?;
        let kept = self.run_bench_json(&["-c", "4", "-d", "6s", "--warm-up", "0s"], server.address)?;
        let proc_s = process_cpu_s(pid)? - before;
        let rss = proc_kib(pid, "status", "VmRSS:")?;
        let pss = proc_kib(pid, "smaps", "Pss:")?;
        stop_known_server(server.address)?;
        server.tree.wait_until(READY_MS_MAX, |_| None::<()>);
        let text = fs::read_to_string(&reported)?;
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[user_s, system_s, most_kib] = numbers.as_slice() else {
            return Err(format!("/usr/bin/time (the package time) gave no figures: {text}").into());
        };
        let spent = &kept["server"];
        let cpu_s = as_number(&spent["cpu_user_s"]) + as_number(&spent["cpu_system_s"]);
        let own = spent["after"].as_array().into_iter().flatten().find(|one| one["pid"] == pid);
        let own = own.ok_or("the server's memory was not read")?;
        let readings = [
            ("CPU time, /proc/PID/stat", proc_s, cpu_s, "s"),
            ("CPU time of its whole life, /usr/bin/time", user_s + system_s, cpu_s, "s"),
            ("RSS, /proc/PID/status", rss / 1024.0, as_number(&own["rss_bytes"]) / f64::from(1 << 20), "MiB"),
            (
                "RSS, /usr/bin/time",
                most_kib / 1024.0,
                as_number(&own["rss_bytes"]) / f64::from(1 << 20),
                "MiB",
            ),
            ("PSS, /proc/PID/smaps", pss / 1024.0, as_number(&own["pss_bytes"]) / f64::from(1 << 20), "MiB"),
        ];
        for (what, known, found, unit) in readings {
            let holds = (found / known - 1.0).abs() <= READING_ERROR_MAX;
            self.record(what, format!("{known:.3} {unit}"), format!("{found:.3} {unit}"), holds);
        }
        Ok(())
    }

    /// Compares two servers `count` times; requests to the second take `more` times the work. Returns for
    /// each figure how many comparisons found a difference, and in how many of these the second server was
    /// worse.
    fn count_differences(
        &self,
        count: usize,
        how: &[&str],
        more: f64,
    ) -> Fallible<[(usize, usize); COMPARED_FIGURES.len()]> {
        let turns = known_server::iterations_in(WORK_US);
        let a = self.start_server(&turns.to_string(), &[])?;
        let b = self.start_server(&((turns as f64 * more) as u64).to_string(), &[])?;
        let versus = format!("http://{}/", b.address);
        let arguments = [&["-c", "4", "--vs", &versus], how].concat();
        let mut reported = [(0, 0); COMPARED_FIGURES.len()];
        for number in 0..count {
            let kept = self.run_bench_json(&arguments, a.address)?;
            for line in kept["comparison"].as_array().into_iter().flatten() {
                let Some(at) = COMPARED_FIGURES.iter().position(|figure| line["figure"] == *figure) else {
                    continue;
                };
                reported[at].0 +=
                    usize::from(line["verdict"] == "B is worse" || line["verdict"] == "B is better");
                reported[at].1 += usize::from(line["verdict"] == "B is worse");
            }
            if (number + 1) % 10 == 0 {
                eprintln!("{} of {count} comparisons, differences so far: {reported:?}", number + 1);
            }
        }
        Ok(reported)
    }

    /// Compares a server with itself.
    fn check_equals(&mut self) -> Fallible<()> {
        let count = self.options.rounds_or(EQUAL_COMPARISONS);
        let reported = self.count_differences(count, &EQUAL_RUN_OPTIONS, 1.0)?;
        for (figure, (apart, _)) in COMPARED_FIGURES.iter().zip(reported) {
            let most = (count as f64 * FALSE_ALARMS_MAX) as usize;
            let what = format!("{count} times A against A: difference by {figure}");
            self.record(&what, format!("at most {most}"), apart.to_string(), apart <= most);
        }
        Ok(())
    }

    /// Compares a server with one that has 5 % more work.
    fn check_slower(&mut self) -> Fallible<()> {
        let count = self.options.rounds_or(SLOWER_COMPARISONS);
        let reported = self.count_differences(count, &[], 1.05)?;
        for (figure, (_, worse)) in COMPARED_FIGURES.iter().zip(reported) {
            let what = format!("{count} times against 5 % more work: found worse by {figure}");
            let sure = DECISIVE_FIGURES.contains(figure);
            let known = if sure { "every time" } else { "by the machine's quiet" };
            self.record(&what, known.into(), worse.to_string(), !sure || worse == count);
        }
        Ok(())
    }
}

fn as_number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// Returns user plus system time of a process in seconds, from /proc.
fn process_cpu_s(pid: u32) -> Fallible<f64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = line.rsplit_once(')').ok_or("no stat line")?.1;
    let ticks: f64 =
        after.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the sum of all lines with this name in a /proc file of the process, in KiB.
fn proc_kib(pid: u32, file: &str, name: &str) -> Fallible<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let each = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(each.sum())
}

/// Stops a server of known behaviour.
fn stop_known_server(address: SocketAddr) -> Fallible<()> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /quit HTTP/1.1\r\n\r\n")?;
    stream.read_exact(&mut [0; 12])?;
    Ok(())
}
