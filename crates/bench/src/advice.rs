//! Warnings about a run that make its figures doubtful.

use crate::outcome::BenchOutcome;
use crate::quantity;
use crate::tally::ErrorKind;

/// Share of the time above which a busy engine thread may limit the rate.
const BUSY_SHARE_MAX: f64 = 0.95;
/// Share of the machine's CPU time used by other programs above which the figures may be wrong.
const NOISE_SHARE_MAX: f64 = 0.05;
/// Minimum number of values beyond a percentile for it to be reliable.
const VALUES_BEYOND_MIN: f64 = 10.0;
/// Delay in nanoseconds above which an open-loop request counts as late; more than 1 % of late requests
/// causes a warning.
const LATE_NS_MAX: u64 = 1_000_000;

/// Programs that listen in place of a server in a container.
const CONTAINER_PROXIES: [&str; 5] = ["docker-proxy", "rootlessport", "slirp4netns", "pasta", "passt"];

/// Minimum time in seconds without a response that is reported as a stall.
const STALL_S_MIN: f64 = 0.1;

/// Returns the warnings about a run, each as one sentence.
#[must_use]
pub fn warnings(outcome: &BenchOutcome) -> Vec<String> {
    warnings_up_to(outcome, 99.99)
}

/// Returns the warnings for a report that shows no percentile above `percentile_max`.
#[must_use]
pub fn warnings_up_to(outcome: &BenchOutcome, percentile_max: f64) -> Vec<String> {
    let mut reported = Vec::new();
    let (measured, tally) = (&outcome.measured, &outcome.measured.tally);
    if measured.interrupted {
        reported
            .push(format!("The run was interrupted: these are the figures of {:.1} s.", measured.seconds));
    }
    if tally.responses == 0 {
        reported.push("There was no response at all.".into());
    }
    for (kind, count, example) in tally.errors.causes() {
        let count = quantity::format_thousands(count as f64);
        reported.push(match kind {
            ErrorKind::Connect => format!("{count} attempts to connect failed: {example}."),
            _ => format!("{count} requests failed ({}): {example}.", kind.name()),
        });
    }
    if tally.error_statuses() > 0 {
        reported.push(format!(
            "{} of {} responses had a status of 400 or above.",
            quantity::format_thousands(tally.error_statuses() as f64),
            quantity::format_thousands(tally.responses as f64)
        ));
    }
    if tally.different_contents > 0 {
        reported.push(format!("{} responses differed from the first one.", tally.different_contents));
    }
    if measured.busiest_thread > BUSY_SHARE_MAX {
        reported.push(format!(
            "The generator was busy {:.0} % of its time: it may be the bottleneck. More threads (-t) help where \
             cores are free.",
            measured.busiest_thread * 100.0
        ));
    }
    if let Some(noise) = outcome.machine.noise.filter(|&noise| noise > NOISE_SHARE_MAX) {
        reported.push(format!(
            "{:.0} % of the machine's time went to neither the server nor the generator: the machine was noisy.",
            noise * 100.0
        ));
    }
    if let Some(percentile) =
        first_unreliable_percentile(tally.latency.count()).filter(|&percent| percent <= percentile_max)
    {
        reported.push(format!(
            "{} requests are too few for percentiles from p{percentile} on: fewer than ten lie beyond.",
            quantity::format_thousands(tally.latency.count() as f64)
        ));
    }
    let listening = outcome.server.iter().flat_map(|server| &server.before);
    if let Some(proxy) =
        listening.map(|process| &process.name).find(|name| CONTAINER_PROXIES.contains(&name.as_str()))
    {
        reported.push(format!(
            "The process that listens is {proxy}, which passes connections on to a container: its CPU time is not the \
             server's. --server-pid names the server."
        ));
    }
    let late_ns = tally.lateness.percentile(99.0);
    if outcome.setup.is_open && late_ns > LATE_NS_MAX {
        reported.push(format!(
            "The generator itself was up to {} late for 99 of 100 requests; that is part of the latencies.",
            quantity::format_time(late_ns as f64)
        ));
    }
    reported
}

/// Returns the lowest displayed percentile that has fewer than [`VALUES_BEYOND_MIN`] values beyond it.
fn first_unreliable_percentile(count: u64) -> Option<f64> {
    let beyond = |percent: f64| count as f64 * (100.0 - percent) / 100.0;
    [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99]
        .into_iter()
        .find(|&percent| beyond(percent) < VALUES_BEYOND_MIN - 1e-6)
}

/// Describes in one sentence what this kind of load can and cannot show.
#[must_use]
pub fn describe_scope(outcome: &BenchOutcome) -> String {
    let errors = &outcome.measured.tally.errors;
    let left = match errors.count_and_example(ErrorKind::Unanswered).0
        + errors.count_and_example(ErrorKind::Unsent).0
    {
        0 => String::new(),
        left => {
            format!(" {left} were still waiting at the end and count with the time that they had waited.")
        }
    };
    if outcome.setup.is_open {
        return format!(
            "Open loop: latency counts from when a request was due, so a stall shows in full.{left}"
        );
    }
    let mut text = format!(
        "Closed loop: a connection asks again only when it was answered. While the server stalls, at most {} requests \
         wait, so a stall hardly shows in the percentiles; --rate shows it.{left}",
        quantity::format_thousands(outcome.setup.connections as f64)
    );
    if let Some(stall) = longest_stall(outcome) {
        text += &format!(
            " In this run nothing at all was answered for {} or more.",
            quantity::format_time(stall * 1e9)
        );
    }
    text
}

/// Returns the longest time in seconds without any response, at the resolution of the points; `None` below
/// [`STALL_S_MIN`].
fn longest_stall(outcome: &BenchOutcome) -> Option<f64> {
    let mut longest: f64 = 0.0;
    let mut length = 0.0;
    for point in &outcome.measured.points {
        length = if point.responses == 0 { length + point.to_s - point.from_s } else { 0.0 };
        longest = longest.max(length);
    }
    (longest >= STALL_S_MIN && outcome.measured.tally.responses > 0).then_some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::TimePoint;
    use crate::procfs::ProcessMemory;
    use crate::server_usage::{MachineState, ServerUsage};

    fn idle_outcome() -> BenchOutcome {
        let mut outcome = BenchOutcome::default();
        outcome.setup.connections = 50;
        outcome.measured.tally.responses = 200_000;
        (0..200_000).for_each(|_| outcome.measured.tally.latency.record(1_000));
        outcome
    }

    #[test]
    fn run_without_problems_has_no_warnings() {
        assert_eq!(warnings(&idle_outcome()), Vec::<String>::new());
        assert!(!describe_scope(&idle_outcome()).contains("answered for"));
    }

    #[test]
    fn each_problem_of_a_run_is_reported() {
        let reported = |change: fn(&mut BenchOutcome), what: &str| {
            let mut outcome = idle_outcome();
            change(&mut outcome);
            let reported = warnings(&outcome);
            assert!(reported.len() == 1 && reported[0].contains(what), "{reported:?}");
        };
        reported(|o| o.measured.interrupted = true, "interrupted");
        reported(
            |o| o.measured.tally.errors.add(ErrorKind::Timeout, 3, "timed out"),
            "3 requests failed (timeout): timed out",
        );
        reported(
            |o| o.measured.tally.errors.add(ErrorKind::Connect, 2, "refused"),
            "2 attempts to connect failed: refused",
        );
        reported(|o| o.measured.tally.count_status(503), "status of 400");
        reported(|o| o.measured.tally.different_contents = 2, "differed");
        reported(|o| o.measured.busiest_thread = 0.97, "bottleneck");
        reported(
            |o| {
                let before = vec![ProcessMemory { name: "docker-proxy".into(), ..ProcessMemory::default() }];
                o.server = Some(ServerUsage { before, ..ServerUsage::default() });
            },
            "--server-pid",
        );
        reported(|o| o.machine = MachineState { noise: Some(0.2) }, "20 %");
        reported(
            |o| {
                o.setup.is_open = true;
                o.measured.tally.lateness.record(5_000_000);
            },
            "late",
        );
    }

    #[test]
    fn percentile_requires_ten_values_beyond_it() {
        assert_eq!(first_unreliable_percentile(100_000), None);
        assert_eq!(first_unreliable_percentile(99_999), Some(99.99));
        assert_eq!(first_unreliable_percentile(1_000), Some(99.9));
        assert_eq!(first_unreliable_percentile(19), Some(50.0));
    }

    #[test]
    fn closed_loop_report_states_its_limits_and_gaps() {
        let mut outcome = idle_outcome();
        let point =
            |at: f64, responses| TimePoint { from_s: at, to_s: at + 0.1, responses, ..TimePoint::default() };
        outcome.measured.points = vec![point(0.0, 5), point(0.1, 0), point(0.2, 0), point(0.3, 5)];
        assert!(
            describe_scope(&outcome).contains("--rate") && describe_scope(&outcome).contains("200 ms"),
            "{}",
            describe_scope(&outcome)
        );
        outcome.setup.is_open = true;
        outcome.measured.tally.errors.add(ErrorKind::Unsent, 7, "");
        assert!(describe_scope(&outcome).contains("7 were still waiting"));
    }
}
