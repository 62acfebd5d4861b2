//! Metrics of the last hour, so that charts of the dashboard are filled when it is opened.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use apps::Usage;
use net::DurationCounts;
use net::durations::DURATION_CLASSES;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use telemetry::metrics::{Metrics, STATUS_MIN};

use crate::overview::{duration_bounds_ms, percentile};
use crate::server_info::ServerInfo;

/// Interval between two points.
const STEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of points: one hour.
const POINTS_MAX: usize = 720;
/// Steps between two readings of memory, which are expensive: the kernel walks the page tables of each
/// process.
const MEMORY_STEPS: usize = 12;

/// The points of the last hour, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: Arc<Mutex<HistoryPoints>>,
    has_started: AtomicBool,
}

#[derive(Debug, Default)]
struct HistoryPoints {
    points: VecDeque<HistoryPoint>,
    last_unix_ms: u64,
}

/// Rates during one step, and the state at its end.
#[derive(Clone, Copy, Debug, Default)]
struct HistoryPoint {
    requests_per_s: f64,
    errors_per_s: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    waiting: u64,
    connections: u64,
    /// CPU usage of the server, in cores.
    cpu: f64,
    /// Memory of the server and its applications; 0 if it cannot be read.
    memory_bytes: u64,
    connection_bytes: u64,
}

/// Counts since the start; points are their differences.
#[derive(Clone, Debug)]
struct HistoryTotals {
    at: Instant,
    cpu: Duration,
    requests: u64,
    errors: u64,
    durations: [u64; DURATION_CLASSES],
}

impl History {
    /// Starts the thread that adds a point at each step; later calls do nothing.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start_thread(&self, info: &Arc<ServerInfo>) -> io::Result<()> {
        if self.has_started.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let points = self.points.clone();
        let info = info.clone();
        // The thread ends with the process.
        std::thread::Builder::new().name("history".into()).spawn(move || {
            let mut before = HistoryTotals::read_totals(&info.counters.metrics);
            let mut memory_bytes = total_memory_bytes(&info);
            for step in 1.. {
                std::thread::sleep(STEP_INTERVAL);
                let now = HistoryTotals::read_totals(&info.counters.metrics);
                if step % MEMORY_STEPS == 0 {
                    memory_bytes = total_memory_bytes(&info);
                }
                let groups = (info.upstreams)();
                let point = HistoryPoint {
                    waiting: (info.hosting.waiting()
                        + groups.iter().map(|group| group.waiting()).sum::<usize>())
                        as u64,
                    connections: info.counters.cores.iter().map(|core| core.connections_open.value()).sum(),
                    memory_bytes,
                    connection_bytes: info.memory.held_bytes(),
                    ..now.rates_since(&before)
                };
                lock(&points).add_point(point, unix_ms());
                before = now;
            }
        })?;
        Ok(())
    }

    /// Returns the points as one array per metric.
    pub(crate) fn to_document(&self) -> Value {
        let points = lock(&self.points);
        let column = |of: fn(&HistoryPoint) -> Value| points.points.iter().map(of).collect::<Vec<_>>();
        json!({
            "step_s": STEP_INTERVAL.as_secs(),
            "last_unix_ms": points.last_unix_ms,
            "requests": column(|point| round_value(point.requests_per_s)),
            "errors": column(|point| round_value(point.errors_per_s)),
            "p50_ms": column(|point| point.p50_ms.map_or(Value::Null, round_value)),
            "p99_ms": column(|point| point.p99_ms.map_or(Value::Null, round_value)),
            "waiting": column(|point| point.waiting.into()),
            "connections": column(|point| point.connections.into()),
            "cpu": column(|point| round_value(point.cpu)),
            "memory_bytes": column(|point| if point.memory_bytes == 0 { Value::Null } else { point.memory_bytes.into() }),
            "held_bytes": column(|point| point.connection_bytes.into()),
        })
    }
}

impl HistoryPoints {
    fn add_point(&mut self, point: HistoryPoint, unix_ms: u64) {
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.last_unix_ms = unix_ms;
    }
}

impl HistoryTotals {
    fn read_totals(metrics: &Metrics) -> HistoryTotals {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let mut counts = HistoryTotals {
            at: Instant::now(),
            cpu: Duration::new(cpu.tv_sec.unsigned_abs(), cpu.tv_nsec.unsigned_abs() as u32),
            requests: 0,
            errors: 0,
            durations: [0; DURATION_CLASSES],
        };
        metrics.for_each(|_, cores| {
            for core in cores {
                for (status, count) in (STATUS_MIN..).zip(&core.statuses) {
                    counts.requests += count.value();
                    counts.errors += if status / 100 == 5 { count.value() } else { 0 };
                }
            }
            let classes = DurationCounts::of(cores.iter().map(|core| &core.duration)).classic();
            counts.durations.iter_mut().zip(classes).for_each(|(sum, count)| *sum += count);
        });
        counts
    }

    /// Returns the rates since `before`. Decreases, from routes that a reload has removed, count as 0.
    fn rates_since(&self, before: &HistoryTotals) -> HistoryPoint {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let classes: [u64; DURATION_CLASSES] =
            std::array::from_fn(|at| self.durations[at].saturating_sub(before.durations[at]));
        let bounds = duration_bounds_ms();
        HistoryPoint {
            requests_per_s: self.requests.saturating_sub(before.requests) as f64 / seconds,
            errors_per_s: self.errors.saturating_sub(before.errors) as f64 / seconds,
            p50_ms: percentile(&bounds, &classes, 0.5),
            p99_ms: percentile(&bounds, &classes, 0.99),
            cpu: self.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds,
            ..HistoryPoint::default()
        }
    }
}

/// Memory of the server and its applications, with shared pages divided among them (PSS).
fn total_memory_bytes(info: &ServerInfo) -> u64 {
    let apps = info.hosting.snapshots();
    let workers = apps.iter().flat_map(|(_, app)| &app.processes).filter_map(|process| process.usage);
    workers.chain(Usage::of(std::process::id())).map(|usage| usage.pss_bytes).sum()
}

fn round_value(value: f64) -> Value {
    json!((value * 1e3).round() / 1e3)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    times::Millis::of(since).0
}

fn lock(points: &Mutex<HistoryPoints>) -> MutexGuard<'_, HistoryPoints> {
    points.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_one_hour() {
        let history = History::default();
        for at in 0..POINTS_MAX as u64 + 5 {
            let point = HistoryPoint { waiting: at, ..HistoryPoint::default() };
            lock(&history.points).add_point(point, at * 5_000);
        }
        let document = history.to_document();
        let waiting = document["waiting"].as_array().unwrap();
        assert_eq!((waiting.len(), &waiting[0]), (POINTS_MAX, &json!(5)));
        assert_eq!(document["last_unix_ms"], (POINTS_MAX as u64 + 4) * 5_000);
        let lengths =
            document.as_object().unwrap().values().filter_map(|value| value.as_array()).map(Vec::len);
        assert!(lengths.eq([POINTS_MAX; 9]), "{document}");
        assert!(document.to_string().len() < 64 << 10);
    }

    #[test]
    fn history_points_are_differences_of_counts() {
        let at = Instant::now();
        let before = HistoryTotals {
            at,
            cpu: Duration::ZERO,
            requests: 10,
            errors: 9,
            durations: [0; DURATION_CLASSES],
        };
        let mut now = HistoryTotals {
            at: at + STEP_INTERVAL,
            cpu: Duration::from_millis(2_500),
            requests: 60,
            // A route with errors was removed.
            errors: 4,
            ..before.clone()
        };
        now.durations[2] = 50;
        let point = now.rates_since(&before);
        assert_eq!((point.requests_per_s, point.errors_per_s, point.cpu), (10.0, 0.0, 0.5));
        assert_eq!(point.p50_ms, Some(0.75));
    }
}
