//! Loads on the server of known behaviour, and the figures that are known of them.

use std::time::Duration;

use super::bounds::Bounds;
use super::known_server::{CONTENT, ODD_INTERVAL};
use super::measured_case::{Case, Connections, KnownFigure, LoadProtocol, MeasuredCase, value};
use crate::figure::{Figure, Unit};
use crate::plan::{Arrivals, LoadPlan, Pace};
use crate::procfs::ProcessMemory;
use crate::tally::ErrorKind;

const MS: f64 = 1_000.0;
const S: f64 = 1_000_000.0;
const MIB: f64 = 1024.0 * 1024.0;
/// Excess of a time that a quiet machine may add.
const MORE: f64 = 2.0 * MS;

/// All cases, in the order in which they are measured.
pub(crate) const CASES: &[Case] = &[
    Case {
        title: "Each answer after 10 ms: 10 connections, closed loop",
        path: "/delay/10",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 100 } else { 2_000 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            let (count, connections) = (run.requests(), run.plan.connections as f64);
            let turns = count / connections;
            figures.extend([
                run.figure("rate", Bounds::up_to(connections * 100.0, 0.15)),
                time_of_run(run, Bounds::from(turns * 10.0 * MS, turns * MORE)),
                run.figure("p50", Bounds::from(10.0 * MS, MORE)),
                run.figure("p90", Bounds::from(10.0 * MS, MORE)),
                run.figure("p99", Bounds::from(10.0 * MS, 10.0 * MS)),
                run.figure("mean", Bounds::from(10.0 * MS, MORE)),
                run.figure("first-byte", Bounds::from(10.0 * MS, MORE)),
                value("connections", Unit::Count, made(run), Bounds::exactly(connections)),
                run.figure("reuse", Bounds::exactly(1.0 - connections / count)),
                content(run, count * CONTENT.len() as f64),
            ]);
        },
    },
    Case {
        title: "The head at once, the end after 50 ms",
        path: "/late-end/50",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 20 } else { 200 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            figures.extend([
                run.figure("first-byte", Bounds::from(0.0, MORE)),
                run.figure("p50", Bounds::from(50.0 * MS, MORE)),
                content(run, run.requests() * 2.0 * CONTENT.len() as f64),
            ]);
        },
    },
    Case {
        title: "1 % of the answers after 1 s, the others at once",
        path: "/slow/1000",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 100 } else { 2_000 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            let latency = &run.outcome.measured.tally.latency;
            let slow = latency.buckets().filter(|(ns, _)| *ns >= 1_000_000_000).map(|(_, count)| count);
            let odd = run.requests() / ODD_INTERVAL as f64;
            figures.extend([
                value("after 1 s or more", Unit::Count, slow.sum::<u64>() as f64, Bounds::from(odd, 0.0)),
                run.figure("p50", Bounds::from(0.0, MORE)),
                run.figure("p95", Bounds::from(0.0, 2.0 * MORE)),
                run.figure("p99.9", Bounds::from(S, 20.0 * MS)),
                run.figure("max", Bounds::from(S, 50.0 * MS)),
                run.figure("mean", Bounds::from(10.0 * MS, MORE)),
            ]);
        },
    },
    Case {
        title: "1 % never answered: a timeout for each",
        path: "/never",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| {
            plan.requests_max = Some(if is_short { 100 } else { 1_000 });
            plan.timeout = Duration::from_millis(if is_short { 2_000 } else { 500 });
        },
        figures: |run, figures| {
            let odd = run.requests() / ODD_INTERVAL as f64;
            add_counts(run, figures, odd);
            let timeout = run.plan.timeout.as_micros() as f64;
            // Timeouts are accurate to a tenth of a second.
            let waited = Bounds::from(timeout, 150.0 * MS).but_always_from(timeout / 2.0);
            figures.extend([
                value("timeouts", Unit::Count, run.failures(ErrorKind::Timeout), Bounds::exactly(odd)),
                run.figure("p50", Bounds::from(0.0, MORE)),
                run.figure("max", waited),
                // The run ends with the last failure.
                time_of_run(run, Bounds::at_least(timeout).but_always_from(timeout / 2.0)),
            ]);
        },
    },
    Case {
        title: "20 answers, and then none: 4 connections, closed loop for 1 s",
        path: "/first/20",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, _| {
            (plan.connections, plan.duration) = (4, Some(Duration::from_secs(1)));
        },
        figures: |run, figures| {
            let unanswered = run.failures(ErrorKind::Unanswered);
            figures.extend([
                run.figure("responses", Bounds::exactly(20.0)),
                run.figure("errors", Bounds::exactly(4.0)),
                value("unanswered", Unit::Count, unanswered, Bounds::exactly(4.0)),
                value("times in the latencies", Unit::Count, timed(run), Bounds::exactly(24.0)),
                run.figure("max", Bounds::at_least(2.0 * S)),
            ]);
        },
    },
    Case {
        title: "No answer for 0.5 s of every 2 s: open loop, 200 requests/s",
        path: "/stall/500/2000",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, channel, is_short| {
            set_open(plan, channel, 200.0, Arrivals::Constant, if is_short { 400 } else { 4_000 });
        },
        figures: |run, figures| {
            add_due(run, figures);
            figures.extend([
                run.figure("p50", Bounds::about(0.0, MORE)),
                // A quarter becomes due in a stall, and waits for any time up to 500 ms.
                run.figure("p90", Bounds::about(300.0 * MS, 15.0 * MS)),
                run.figure("p99", Bounds::about(480.0 * MS, 15.0 * MS)),
                run.figure("max", Bounds::about(500.0 * MS, 15.0 * MS)),
                run.figure("mean", Bounds::about(62.5 * MS, 5.0 * MS)),
            ]);
        },
    },
    Case {
        title: "Each answer after 100 ms: open loop, 200 requests/s",
        path: "/delay/100",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, channel, is_short| {
            set_open(plan, channel, 200.0, Arrivals::Constant, if is_short { 300 } else { 3_000 });
        },
        figures: |run, figures| {
            add_due(run, figures);
            figures.extend([
                run.figure("p50", Bounds::from(100.0 * MS, MORE)),
                run.figure("p99", Bounds::from(100.0 * MS, 10.0 * MS)),
            ]);
            add_punctuality(run, figures, Bounds::about(0.0, 0.3), 0.01);
        },
    },
    Case {
        title: "Open loop, 1,000 requests/s (Poisson)",
        path: "/size/100",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, channel, is_short| {
            set_open(plan, channel, 1_000.0, Arrivals::Poisson, if is_short { 300 } else { 4_000 });
        },
        figures: |run, figures| {
            figures.extend([seen(run), run.figure("errors", Bounds::exactly(0.0))]);
            add_punctuality(run, figures, Bounds::about(1.0, 0.1), 0.05);
        },
    },
    Case {
        title: "Every other answer is a 500",
        path: "/half",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 100 } else { 2_000 }),
        figures: |run, figures| {
            let half = Bounds::exactly(run.requests() / 2.0);
            figures.extend([
                run.figure("responses", Bounds::exactly(run.requests())),
                run.figure("errors", half),
                value("status 200", Unit::Count, run.status(200), half),
                value("status 500", Unit::Count, run.status(500), half),
                seen(run),
            ]);
        },
    },
    Case {
        title: "Contents of 100,000 bytes",
        path: "/size/100000",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 50 } else { 500 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            let bytes = run.requests() * 100_000.0;
            let measured = &run.outcome.measured;
            let received = measured.tally.bytes_in as f64;
            let rate =
                Figure::find("bytes").and_then(|figure| figure.value_in(&run.outcome)).unwrap_or(f64::NAN);
            let time_s = measured.seconds;
            figures.extend([
                content(run, bytes),
                run.figure("differ", Bounds::exactly(0.0)),
                match run.response_bytes {
                    Some(one) => {
                        value("received", Unit::Count, received, Bounds::exactly(one * run.requests()))
                    }
                    None => value(
                        "received, with frames",
                        Unit::Count,
                        received,
                        Bounds::from(bytes, bytes * 0.05),
                    ),
                },
                value(
                    "received/s × time / content",
                    Unit::Share,
                    rate * time_s / bytes,
                    Bounds::from(1.0, 0.05),
                ),
            ]);
        },
    },
    Case {
        title: "Contents of 5,000 bytes that end with the connection (HTTP/1.0)",
        path: "/until-close/5000",
        connections: Connections::Http10,
        channels: &[LoadProtocol::Http1, LoadProtocol::Tls],
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 20 } else { 200 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            add_one_connection_each(run, figures);
            let length = run.outcome.measured.facts.content_bytes as f64;
            figures.push(value("Document Length of ab", Unit::Count, length, Bounds::exactly(5_000.0)));
            figures.push(content(run, run.requests() * 5_000.0));
        },
    },
    Case {
        title: "A connection for each request",
        path: "/size/1000",
        connections: Connections::OneEach,
        channels: &LoadProtocol::ALL,
        is_alone: false,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 20 } else { 200 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            add_one_connection_each(run, figures);
        },
    },
    Case {
        title: "CPU time of 200 µs for each request",
        path: "/burn/200",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: true,
        load: |plan, _, is_short| plan.requests_max = Some(if is_short { 200 } else { 5_000 }),
        figures: |run, figures| {
            add_counts(run, figures, 0.0);
            let cpu_ns = run.outcome.server.as_ref().map_or(f64::NAN, |server| server.cpu.total_ns as f64);
            let (busy, own) = (cpu_ns / run.server_cpu_ns, Bounds::up_to(1.0, 0.03));
            figures.extend([
                run.figure("cpu", Bounds::at_least(200.0)),
                value("share of the server's own clock", Unit::Share, busy, own),
                run.figure("per-cpu", Bounds::up_to(50.0, 0.5)),
                run.figure("cores", Bounds::about(1.0, 0.15)),
            ]);
        },
    },
    Case {
        title: "Memory of 32 MiB for the first request",
        path: "/hold/32",
        connections: Connections::Kept,
        channels: &LoadProtocol::ALL,
        is_alone: true,
        load: |plan, _, _| plan.requests_max = Some(20),
        figures: |run, figures| {
            let growth = |name: &str, of: fn(&ProcessMemory) -> u64| {
                let sum = |all: &[ProcessMemory]| all.iter().map(of).sum::<u64>() as f64;
                let server = run.outcome.server.as_ref();
                let grown = server.map_or(f64::NAN, |server| sum(&server.after) - sum(&server.before));
                let bounds = Bounds::about(32.0 * MIB, 4.0 * MIB).but_always_from(16.0 * MIB);
                value(&format!("{name}, growth"), Unit::Bytes, grown, bounds)
            };
            figures.extend([
                growth("RSS", |memory| memory.rss),
                growth("PSS", |memory| memory.pss),
                growth("private dirty", |memory| memory.private_dirty),
            ]);
        },
    },
];

/// Sets an open loop that has room for all requests of a stall: many connections, or a few with many streams.
fn set_open(plan: &mut LoadPlan, channel: LoadProtocol, rate: f64, arrivals: Arrivals, ms: u64) {
    (plan.pace, plan.duration) = (Pace::Open { rate, arrivals }, Some(Duration::from_millis(ms)));
    (plan.connections, plan.pipeline) = if channel.is_multiplexed() { (4, 64) } else { (130, 1) };
}

/// Adds the counts of a load with a number of requests, of which so many fail.
fn add_counts(run: &MeasuredCase, figures: &mut Vec<KnownFigure>, failed: f64) {
    figures.extend([
        run.figure("responses", Bounds::exactly(run.requests() - failed)),
        run.figure("errors", Bounds::exactly(failed)),
        value("times in the latencies", Unit::Count, timed(run), Bounds::exactly(run.requests())),
        seen(run),
    ]);
}

/// Adds the counts of an open loop with even distances.
fn add_due(run: &MeasuredCase, figures: &mut Vec<KnownFigure>) {
    let Pace::Open { rate, .. } = run.plan.pace else { return };
    let due = rate * run.plan.duration.unwrap_or_default().as_secs_f64();
    figures.extend([
        value("answered or failed", Unit::Count, run.outcomes(), Bounds::exactly(due)),
        run.figure("errors", Bounds::exactly(0.0)),
        value("times in the latencies", Unit::Count, timed(run), Bounds::exactly(due)),
        seen(run),
    ]);
}

/// Adds when requests were sent, by the generator and as the server knows it.
fn add_punctuality(run: &MeasuredCase, figures: &mut Vec<KnownFigure>, deviation: Bounds, tolerance: f64) {
    let Pace::Open { rate, .. } = run.plan.pace else { return };
    let late_us = run.outcome.measured.tally.lateness.percentile(99.0) as f64 / 1e3;
    let (distance, mean) = (run.seen.distance_ms * MS, S / rate);
    figures.extend([
        value("late by, p99", Unit::Us, late_us, Bounds::about(0.0, MS)),
        value("distance at the server", Unit::Us, distance, Bounds::about(mean, mean * tolerance)),
        value("deviation / distance", Unit::Rate, run.seen.deviation, deviation),
    ]);
}

/// Adds the figures of connections that carry one request each.
fn add_one_connection_each(run: &MeasuredCase, figures: &mut Vec<KnownFigure>) {
    figures.push(value("connections", Unit::Count, made(run), Bounds::exactly(run.requests())));
    figures.push(run.figure("reuse", Bounds::exactly(0.0)));
    if run.channel.has_tls() {
        figures.push(run.figure("handshakes", Bounds::exactly(run.requests())));
        figures.push(run.figure("resumed", Bounds::exactly(0.0)));
    }
}

/// The requests that the server has seen are those that were answered or failed.
fn seen(run: &MeasuredCase) -> KnownFigure {
    let difference = run.outcomes() - run.seen.requests;
    value("difference to the server's count", Unit::Count, difference, Bounds::exactly(0.0))
}

fn time_of_run(run: &MeasuredCase, bounds: Bounds) -> KnownFigure {
    value("time of the run", Unit::Us, run.outcome.measured.seconds * S, bounds)
}

fn content(run: &MeasuredCase, bytes: f64) -> KnownFigure {
    let measured = run.outcome.measured.tally.content_bytes as f64;
    value("content", Unit::Count, measured, Bounds::exactly(bytes))
}

fn made(run: &MeasuredCase) -> f64 {
    run.outcome.measured.tally.connections as f64
}

fn timed(run: &MeasuredCase) -> f64 {
    run.outcome.measured.tally.latency.count() as f64
}
