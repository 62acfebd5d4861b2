//! Human-readable text output of an outcome.

use crate::advice;
use crate::figure::Figure;
use crate::outcome::BenchOutcome;
use crate::quantity::{format_bytes, format_digits, format_thousands, format_time};
use crate::server_usage::ServerUsage;
use crate::table::TextTable;

/// Formats all results of one run.
#[must_use]
pub fn format_report(outcome: &BenchOutcome) -> String {
    let (measured, tally) = (&outcome.measured, &outcome.measured.tally);
    let mut text = format!("{}\n{}\n\n", outcome.setup.url_summary, outcome.setup.load_description);
    let mut line = |title: &str, said: String| text += &format!("  {title:<12}{said}\n");
    line(
        "Requests",
        format!(
            "{} requests/s: {} in {:.2} s{}, {} failed{}",
            format_digits(measured.rate()),
            format_thousands(measured.responses_in_time as f64),
            measured.seconds,
            match tally.responses.saturating_sub(measured.responses_in_time) {
                0 => String::new(),
                late => format!(", {} after it", format_thousands(late as f64)),
            },
            format_thousands(tally.errors.total() as f64),
            match outcome.errors() - tally.errors.total() {
                0 => String::new(),
                // `--expect 'errors = 0'` counts both kinds.
                statuses => format!(", {} with a status of 400 or above", format_thousands(statuses as f64)),
            }
        ),
    );
    let seconds = measured.seconds.max(1e-9);
    line(
        "Received",
        format!(
            "{}/s, {} in all, of it content {}",
            format_bytes(measured.bytes_in_time as f64 / seconds),
            format_bytes(tally.bytes_in as f64),
            format_bytes(tally.content_bytes as f64)
        ),
    );
    let statuses: Vec<String> = tally
        .statuses()
        .iter()
        .map(|(code, count)| format!("{code} {}×", format_thousands(*count as f64)))
        .collect();
    if !statuses.is_empty() {
        line("Statuses", statuses.join(", "));
    }
    line(
        "Connections",
        format!(
            "{}{} made; {:.2} % of the responses came on one that had carried another",
            format_thousands(tally.connections as f64),
            match outcome.setup.connections as u64 {
                wanted if tally.connections < wanted => format!(" of {}", format_thousands(wanted as f64)),
                _ => String::new(),
            },
            tally.reused_responses as f64 * 100.0 / tally.responses.max(1) as f64
        ),
    );
    if tally.handshakes.total() > 0 {
        line("Handshakes", tally.handshakes.text());
    }
    text.push('\n');
    text += &format_latencies(outcome);
    if let Some(spent) = &outcome.server {
        text += &format_server_usage(outcome, spent);
    }
    let generator = Figure::find("generator").and_then(|figure| figure.value_in(outcome));
    text += &format!(
        "\n  {:<12}CPU {} µs a request; its busiest thread worked {:.0} % of the time\n\n",
        "Generator",
        format_digits(generator.unwrap_or(0.0)),
        measured.busiest_thread * 100.0
    );
    text += &wrap_sentence("  ", &advice::describe_scope(outcome));
    for warning in advice::warnings(outcome) {
        text += &wrap_sentence("! ", &warning);
    }
    text
}

fn format_latencies(outcome: &BenchOutcome) -> String {
    let mut table = TextTable::new(&["", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean"]);
    for (name, times) in outcome.measured.tally.phase_times() {
        let percentiles = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];
        let mut cells = vec![name.to_string()];
        cells.extend(percentiles.map(|percent| format_time(times.percentile(percent) as f64)));
        cells.push(format_time(times.mean()));
        table.add_row(cells);
    }
    if table.is_empty() { String::new() } else { table.plain("  ") }
}

fn format_server_usage(outcome: &BenchOutcome, usage: &ServerUsage) -> String {
    let cores = format_digits(outcome.server_cores().unwrap_or(0.0));
    let responses = outcome.measured.responses_in_time as f64;
    let us = |ns: u64| format_digits(ns as f64 / 1e3 / responses);
    let mut text = match outcome.cpu_us() {
        // Without responses there is no CPU time per request.
        None => format!("\n  {:<12}{cores} cores busy\n", "Server"),
        Some(cpu_us) => format!(
            "\n  {:<12}CPU {} µs a request (user {}, system {})\n\
             \x20 {:<12}{} requests/s per 1 % CPU; {cores} cores busy\n\
             \x20 {:<12}{} voluntary and {} forced context switches a request\n",
            "Server",
            format_digits(cpu_us),
            us(usage.cpu.user_ns()),
            us(usage.cpu.system_ns),
            "",
            Figure::find("per-cpu")
                .and_then(|figure| figure.value_in(outcome))
                .map_or("?".into(), format_digits),
            "",
            format_digits(usage.cpu.switches_voluntary as f64 / responses),
            format_digits(usage.cpu.switches_involuntary as f64 / responses)
        ),
    };
    let mut table = TextTable::new(&["Memory", "RSS", "→", "PSS", "→", "private dirty", "→"]);
    for process in memory_rows(usage) {
        let [name, rest @ ..] = process;
        table.add_row([vec![name], rest.to_vec()].concat());
    }
    if !table.is_empty() {
        text += "\n";
        text += &table.plain("  ");
    }
    text
}

/// Returns a row for each process and for the sum: name, then RSS, PSS and private dirty, each before and
/// after.
#[must_use]
pub fn memory_rows(usage: &ServerUsage) -> Vec<[String; 7]> {
    const SHOWN_MAX: usize = 12;
    let show = |value: Option<u64>| value.map_or("-".into(), |value| format_bytes(value as f64));
    let mut rows: Vec<[String; 7]> = Vec::new();
    let gone = usage.before.iter().filter(|b| usage.after.iter().all(|a| a.pid != b.pid));
    let all: Vec<_> = usage.after.iter().chain(gone).collect();
    for process in all.iter().take(SHOWN_MAX) {
        let before = usage.before.iter().find(|other| other.pid == process.pid);
        let after = usage.after.iter().find(|other| other.pid == process.pid);
        rows.push([
            format!("{} {}", process.name, process.pid),
            show(before.map(|m| m.rss)),
            show(after.map(|m| m.rss)),
            show(before.map(|m| m.pss)),
            show(after.map(|m| m.pss)),
            show(before.map(|m| m.private_dirty)),
            show(after.map(|m| m.private_dirty)),
        ]);
    }
    if all.len() > 1 {
        let sum = |of: &[crate::procfs::ProcessMemory], what: fn(&crate::procfs::ProcessMemory) -> u64| {
            show(Some(of.iter().map(what).sum()))
        };
        rows.push([
            format!("all {}", all.len()),
            sum(&usage.before, |m| m.rss),
            sum(&usage.after, |m| m.rss),
            sum(&usage.before, |m| m.pss),
            sum(&usage.after, |m| m.pss),
            sum(&usage.before, |m| m.private_dirty),
            sum(&usage.after, |m| m.private_dirty),
        ]);
    }
    rows
}

/// Wraps a sentence to the width of a terminal; `mark` precedes the first line, spaces precede the others.
#[must_use]
pub fn wrap_sentence(mark: &str, sentence: &str) -> String {
    const WIDTH: usize = 94;
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last_mut().expect("begun with one");
        if !line.is_empty() && line.chars().count() + word.chars().count() + 1 > WIDTH {
            lines.push(word.to_string());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let indent = " ".repeat(mark.chars().count());
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        text += &format!("{}{line}\n", if at == 0 { mark } else { &indent });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::{CpuUsage, ProcessMemory};
    use crate::tally::ErrorKind;

    #[test]
    fn report_contains_rate_latency_server_and_warnings() {
        let mut outcome = BenchOutcome::default();
        outcome.setup.url_summary = "http://h/".into();
        outcome.measured.seconds = 2.0;
        outcome.measured.responses_in_time = 2_000;
        let tally = &mut outcome.measured.tally;
        tally.responses = 2_000;
        (0..2_000).for_each(|_| tally.latency.record(5_000_000));
        (0..2_000).for_each(|_| tally.count_status(200));
        tally.errors.add(ErrorKind::Timeout, 1, "timed out");
        let memory =
            |pid, rss| ProcessMemory { pid, name: "srv".into(), rss, pss: rss / 2, private_dirty: 0 };
        outcome.server = Some(ServerUsage {
            cpu: CpuUsage { total_ns: 20_000_000, system_ns: 5_000_000, ..CpuUsage::default() },
            before: vec![memory(7, 2048), memory(8, 1024)],
            after: vec![memory(7, 4096), memory(9, 1024)],
            series: Vec::new(),
        });
        let text = format_report(&outcome);
        for part in [
            "1,000 requests/s: 2,000 in 2.00 s, 1 failed",
            "200 2,000×",
            "CPU 10.0 µs a request (user 7.50, system 2.50)",
            "1,000 requests/s per 1 % CPU",
            "! 1 requests failed (timeout): timed out.",
            "Closed loop",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let rows = memory_rows(outcome.server.as_ref().unwrap());
        assert_eq!(
            rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(),
            ["srv 7", "srv 9", "srv 8", "all 3"]
        );
        assert_eq!((rows[1][1].as_str(), rows[2][2].as_str()), ("-", "-"));
    }

    #[test]
    fn sentences_are_wrapped_and_indented() {
        let text = wrap_sentence("! ", &"word ".repeat(50));
        assert!(text.lines().all(|line| line.chars().count() <= 102) && text.lines().count() > 2);
        assert!(text.starts_with("! word") && text.lines().skip(1).all(|line| line.starts_with("  word")));
    }
}
