//! Load from wrk, and its figures in full precision.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::measure::Outcome;
use crate::measure::children::Tree;

/// Prints the figures for a machine. It defines no `request`, so wrk's own fast path sends the load.
const SCRIPT: &str = r#"
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("figures %d %d %d %d %d %d %d\n", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(99), latency.max))
end
"#;

/// What wrk saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) duration_us: u64,
    /// Connections that failed or timed out.
    pub(crate) socket_errors: u64,
    /// Answers with a status above 399.
    pub(crate) status_errors: u64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) longest_us: u64,
}

impl Load {
    fn parse(output: &str) -> Option<Load> {
        let line = output.lines().find_map(|line| line.strip_prefix("figures "))?;
        let numbers: Vec<u64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
        let &[requests, duration_us, socket_errors, status_errors, p50_us, p99_us, longest_us] =
            numbers.as_slice()
        else {
            return None;
        };
        Some(Load { requests, duration_us, socket_errors, status_errors, p50_us, p99_us, longest_us })
    }

    /// Requests per second over the whole run.
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / (self.duration_us.max(1) as f64 / 1e6)
    }

    /// Errors of both kinds.
    pub(crate) fn errors(&self) -> u64 {
        self.socket_errors + self.status_errors
    }
}

/// wrk, ready to run.
pub(crate) struct Wrk {
    folder: PathBuf,
    threads: usize,
}

impl Wrk {
    /// Its script and its output live in `folder`.
    pub(crate) fn new(folder: &Path, threads: usize) -> Outcome<Wrk> {
        let folder = folder.to_path_buf();
        std::fs::write(folder.join("figures.lua"), SCRIPT)?;
        Ok(Wrk { folder, threads })
    }

    /// What it saw, by its output.
    pub(crate) fn parse(output: &str) -> Option<Load> {
        Load::parse(output)
    }

    /// Loads `url` over `connections` kept-alive connections for `seconds`.
    pub(crate) fn run(&self, url: &str, connections: usize, seconds: u64) -> Outcome<Load> {
        let mut command = Command::new("wrk");
        command.arg(format!("-t{}", self.threads.min(connections)));
        command.arg(format!("-c{connections}")).arg(format!("-d{seconds}s"));
        command.arg("-s").arg(self.folder.join("figures.lua")).arg(url);
        let started = Tree::start(&mut command, &self.folder.join("wrk.log"));
        let mut tree = started.map_err(|e| format!("wrk does not start ({e}); install the package `wrk`"))?;
        tree.wait_until(Duration::from_secs(seconds + 30).as_millis() as u64, |_| None::<()>);
        Wrk::parse(&tree.output()).ok_or_else(|| format!("wrk gave no figures:\n{}", tree.output()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_among_other_lines() {
        let text = "Running 1s test\nRequests/sec: 9\nfigures 500000 2000000 1 2 300 4500 90000\n";
        let load = Load::parse(text).expect("figures");
        assert_eq!((load.p50_us, load.p99_us, load.longest_us), (300, 4500, 90000));
        assert_eq!(load.errors(), 3);
        assert_eq!(load.rate(), 250_000.0);
        assert_eq!(Load::parse("unable to connect to 127.0.0.1"), None);
    }
}
