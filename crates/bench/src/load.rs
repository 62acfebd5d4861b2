//! A run: starts the threads, merges their reports and notifies an observer of the progress.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use failure::{Failure, FailureContext};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::{now_ns, process_cpu_ns};
use crate::connect;
use crate::load_state::{RunState, ServerFacts};
use crate::load_thread::{self, RunSchedule, ThreadReport, ThreadShare};
use crate::plan::LoadPlan;
use crate::tally::LoadTally;

/// Delay in nanoseconds between the start of the threads and the load, so that all threads begin together.
const START_DELAY_NS: u64 = 2_000_000;
/// File descriptors that a run needs in addition to its connections.
const EXTRA_DESCRIPTORS: u64 = 256;
/// Maximum wait for reports before the observer is called again.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(50);

/// Figures of a time slice of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimePoint {
    /// Begin in seconds since the end of the warm-up; negative during the warm-up.
    pub from_s: f64,
    /// End, relative to the same time.
    pub to_s: f64,
    /// Number of responses.
    pub responses: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Requests that failed, and responses of status 400 and above.
    pub errors: u64,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of the latency in nanoseconds.
    pub p99_ns: u64,
    /// Greatest latency in nanoseconds.
    pub max_ns: u64,
}

impl TimePoint {
    /// Returns responses per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.responses as f64 / (self.to_s - self.from_s).max(1e-9)
    }
}

/// State of a run, sent to an observer a few times per second and at each point.
pub struct LoadProgress<'a> {
    /// Seconds since the measured part began; negative during the warm-up.
    pub elapsed_s: f64,
    /// Planned duration in seconds, if there is one.
    pub planned_s: Option<f64>,
    /// The points so far, without the warm-up.
    pub points: &'a [TimePoint],
    /// Sums so far, without the warm-up.
    pub tally: &'a LoadTally,
}

/// Receives the progress of a run. All calls come from the thread that runs it.
pub trait LoadObserver {
    /// Called when the measured part begins.
    fn measurement_begins(&mut self) {}
    /// Called a few times a second while the load runs.
    fn progress(&mut self, _: &LoadProgress<'_>) {}
    /// Called when the load has ended.
    fn measurement_ends(&mut self) {}
}

/// Ignores all calls.
impl LoadObserver for () {}

/// Results of a run on the client's side.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// Duration of the measured part in seconds.
    pub seconds: f64,
    /// Counters of the measured part.
    pub tally: LoadTally,
    /// Responses within [`LoadResult::seconds`]; those of the last requests arrive later.
    pub responses_in_time: u64,
    /// Bytes received within [`LoadResult::seconds`].
    pub bytes_in_time: u64,
    /// Figures over time.
    pub points: Vec<TimePoint>,
    /// Facts about the server, from its responses.
    pub facts: ServerFacts,
    /// CPU time of the generator during the measured part, in seconds.
    pub generator_cpu_s: f64,
    /// Share of its time that the busiest engine thread spent working, 0 to 1.
    pub busiest_thread: f64,
    /// Whether the run was stopped early.
    pub interrupted: bool,
}

impl LoadResult {
    /// Adds another run of the same load, without its course over time.
    pub(crate) fn add(&mut self, other: &LoadResult) {
        self.seconds += other.seconds;
        self.tally.add(&other.tally);
        self.responses_in_time += other.responses_in_time;
        self.bytes_in_time += other.bytes_in_time;
        self.generator_cpu_s += other.generator_cpu_s;
        self.busiest_thread = self.busiest_thread.max(other.busiest_thread);
        self.interrupted |= other.interrupted;
        self.facts = other.facts.clone();
    }

    /// Returns responses per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.responses_in_time as f64 / self.seconds.max(1e-9)
    }
}

/// Runs the load. Setting `stop` ends it early, with the figures so far.
///
/// # Errors
/// Fails for an inconsistent plan, an unreachable server, or a thread that cannot be started.
pub fn run_load(
    plan: &LoadPlan,
    stop: &AtomicBool,
    observer: &mut dyn LoadObserver,
) -> Result<LoadResult, Failure> {
    plan.check()?;
    let _raised = DescriptorLimit::raise(plan.connections as u64 + EXTRA_DESCRIPTORS);
    connect::probe_origins(plan)?;
    let plan = Arc::new(LoadPlan { threads: plan.threads(), ..plan.clone() });
    let shared = Arc::new(RunState {
        expected: plan.requests.iter().map(|_| OnceLock::new()).collect(),
        ..RunState::default()
    });
    // The observer reads for some time, in which requests would already be answered.
    let begun_cpu_ns = plan.warm_up.is_zero().then(|| begin_measurement(observer));
    let schedule = build_schedule(&plan);
    let (sender, receiver) = channel();
    let mut gathered = ReportCollector { begun_cpu_ns, ..ReportCollector::new(&plan, schedule) };
    let mut threads = Vec::new();
    for number in 0..plan.threads {
        let part = ThreadShare { number, plan: plan.clone(), run_state: shared.clone(), schedule };
        let sender = sender.clone();
        let thread = std::thread::Builder::new().name(format!("load-{number}"));
        let started = thread.spawn(move || load_thread::run_thread(part, &sender));
        threads.push(started.context("cannot start a thread")?);
    }
    drop(sender);
    let outcome = gathered.collect(&receiver, &shared, stop, observer);
    // All threads have ended or failed and send no more reports.
    shared.stop.store(true, Ordering::Relaxed);
    shared.is_usage_read.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a load thread panicked".to_string())?;
    }
    outcome?;
    let facts = shared.facts.get().cloned().unwrap_or_default();
    // The head need not say the length.
    let content_bytes = shared.expected.first().and_then(|first| first.get()).map(|(length, _)| *length);
    gathered.measured.facts =
        ServerFacts { content_bytes: content_bytes.unwrap_or(facts.content_bytes), ..facts };
    Ok(gathered.measured)
}

/// Original limit on open files, restored at the end of the run so that servers started later do not inherit
/// the raised one.
struct DescriptorLimit(Rlimit);

impl DescriptorLimit {
    /// Raises the soft limit as far as needed and allowed. If that is not enough, connections fail.
    fn raise(wanted: u64) -> DescriptorLimit {
        let before = getrlimit(Resource::Nofile);
        if before.current.is_some_and(|current| current < wanted) {
            let most = before.maximum.map_or(wanted, |maximum| wanted.min(maximum));
            // If raising the limit fails, connection errors report the shortage.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before });
        }
        DescriptorLimit(before)
    }
}

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

/// Returns the CPU time of this process at the beginning of the measured part.
fn begin_measurement(observer: &mut dyn LoadObserver) -> u64 {
    observer.measurement_begins();
    process_cpu_ns()
}

fn build_schedule(plan: &LoadPlan) -> RunSchedule {
    let begin_ns = now_ns() + START_DELAY_NS;
    let count_ns = begin_ns + plan.warm_up.as_nanos() as u64;
    let end_ns = plan.duration.map_or(u64::MAX, |duration| count_ns + duration.as_nanos() as u64);
    // About a hundred points, at most ten per second and at least one per second.
    let slice_ns = match plan.duration {
        Some(duration) => (duration.as_nanos() as u64 / 100).clamp(100_000_000, 1_000_000_000),
        None => 250_000_000,
    };
    RunSchedule { begin_ns, measure_from_ns: count_ns, end_ns, slice_ns }
}

/// Merges the reports of the threads.
struct ReportCollector {
    schedule: RunSchedule,
    threads: usize,
    planned_s: Option<f64>,
    measured: LoadResult,
    /// Slices that not every thread has reported yet: by number, the count of reports and the sum so far.
    open_slices: BTreeMap<u64, (usize, ReportedSlice)>,
    /// Number of the last slice of each thread that sends no more requests; `None` if it reported no slice.
    last_slices: Vec<Option<u64>>,
    ended: usize,
    /// CPU time of this process when the measured part began; `None` before.
    begun_cpu_ns: Option<u64>,
    last_ns: u64,
}

struct ReportedSlice {
    from_ns: u64,
    to_ns: u64,
    tally: Box<LoadTally>,
}

impl ReportCollector {
    fn new(plan: &LoadPlan, schedule: RunSchedule) -> ReportCollector {
        ReportCollector {
            schedule,
            threads: plan.threads,
            planned_s: plan.duration.map(|duration| duration.as_secs_f64()),
            measured: LoadResult::default(),
            open_slices: BTreeMap::new(),
            last_slices: Vec::new(),
            ended: 0,
            begun_cpu_ns: None,
            last_ns: 0,
        }
    }

    fn collect(
        &mut self,
        reports: &Receiver<ThreadReport>,
        shared: &RunState,
        stop: &AtomicBool,
        observer: &mut dyn LoadObserver,
    ) -> Result<(), Failure> {
        let mut counted_out = false;
        while self.ended < self.threads {
            let now_ns = now_ns();
            if self.begun_cpu_ns.is_none() && now_ns >= self.schedule.measure_from_ns {
                self.begun_cpu_ns = Some(begin_measurement(observer));
            }
            if stop.load(Ordering::Relaxed) {
                self.measured.interrupted = true;
                shared.stop.store(true, Ordering::Relaxed);
            }
            if !counted_out && (now_ns >= self.schedule.end_ns || self.last_slices.len() == self.threads) {
                counted_out = true;
                self.end_measurement(observer);
                shared.is_usage_read.store(true, Ordering::Relaxed);
            }
            let until_ns = match self.begun_cpu_ns {
                Some(_) => self.schedule.end_ns,
                None => self.schedule.measure_from_ns,
            };
            let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns))
                .clamp(Duration::from_micros(100), REPORT_WAIT_MAX);
            match reports.recv_timeout(wait) {
                Ok(report) => self.take_report(report)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("a load thread ended early")),
            }
            observer.progress(&LoadProgress {
                elapsed_s: (now_ns as f64 - self.schedule.measure_from_ns as f64) / 1e9,
                planned_s: self.planned_s,
                points: &self.measured.points,
                tally: &self.measured.tally,
            });
        }
        self.finish_open_slices();
        Ok(())
    }

    fn end_measurement(&mut self, observer: &mut dyn LoadObserver) {
        observer.measurement_ends();
        if let Some(begun_cpu_ns) = self.begun_cpu_ns {
            self.measured.generator_cpu_s = (process_cpu_ns() - begun_cpu_ns) as f64 / 1e9;
        }
    }

    fn take_report(&mut self, report: ThreadReport) -> Result<(), Failure> {
        match report {
            ThreadReport::Failed(error) => return Err(error),
            ThreadReport::Slice { warm_up: true, tally, .. } => {
                // Connections made during the warm-up are used in the measured part.
                self.measured.tally.add_connections(&tally);
            }
            ThreadReport::Slice { from_ns, to_ns, tally, .. } => self.take_slice(from_ns, to_ns, tally),
            ThreadReport::NoMoreRequests { from_ns } => {
                self.last_slices.push((from_ns > 0).then(|| self.number(from_ns)));
                let whole = |(&number, (reported, _)): (&u64, &(usize, ReportedSlice))| {
                    (*reported >= self.threads_reporting(number)).then_some(number)
                };
                let whole: Vec<u64> = self.open_slices.iter().filter_map(whole).collect();
                whole.into_iter().for_each(|number| self.finish_slice(number));
            }
            ThreadReport::End { rest, cpu_ns, wall_ns, last_ns } => {
                self.ended += 1;
                self.last_ns = self.last_ns.max(last_ns);
                let busy = cpu_ns as f64 / wall_ns.max(1) as f64;
                self.measured.busiest_thread = self.measured.busiest_thread.max(busy);
                self.measured.tally.add(&rest);
            }
        }
        Ok(())
    }

    /// Returns the number of a slice. Slices begin slightly late, so the nearest number is used.
    fn number(&self, from_ns: u64) -> u64 {
        (from_ns.saturating_sub(self.schedule.measure_from_ns) + self.schedule.slice_ns / 2)
            / self.schedule.slice_ns
    }

    /// Returns the number of threads that report a slice: those that had not ended before it.
    fn threads_reporting(&self, number: u64) -> usize {
        self.threads - self.last_slices.iter().filter(|last| last.is_none_or(|last| last < number)).count()
    }

    fn take_slice(&mut self, from_ns: u64, to_ns: u64, tally: Box<LoadTally>) {
        let number = self.number(from_ns);
        let reported = match self.open_slices.entry(number) {
            Entry::Vacant(vacant) => vacant.insert((1, ReportedSlice { from_ns, to_ns, tally })).0,
            Entry::Occupied(occupied) => {
                let (reported, slice) = occupied.into_mut();
                slice.from_ns = slice.from_ns.min(from_ns);
                slice.to_ns = slice.to_ns.max(to_ns);
                slice.tally.add(&tally);
                *reported += 1;
                *reported
            }
        };
        if reported >= self.threads_reporting(number) {
            self.finish_slice(number);
        }
    }

    fn finish_slice(&mut self, number: u64) {
        let Some((_, slice)) = self.open_slices.remove(&number) else { return };
        let since = |ns: u64| (ns as f64 - self.schedule.measure_from_ns as f64) / 1e9;
        let tally = &slice.tally;
        self.measured.points.push(TimePoint {
            from_s: since(slice.from_ns),
            to_s: since(slice.to_ns),
            responses: tally.responses,
            bytes_in: tally.bytes_in,
            errors: tally.errors.total() + tally.error_statuses(),
            p50_ns: tally.latency.percentile(50.0),
            p99_ns: tally.latency.percentile(99.0),
            max_ns: tally.latency.max(),
        });
        self.measured.responses_in_time += tally.responses;
        self.measured.bytes_in_time += tally.bytes_in;
        self.measured.tally.add(tally);
        self.measured.seconds = self.measured.points.iter().map(|point| point.to_s).fold(0.0, f64::max);
    }

    /// Finishes slices that not all threads reported, and sets the duration of a run that ended by its number
    /// of requests.
    fn finish_open_slices(&mut self) {
        while let Some((&number, _)) = self.open_slices.first_key_value() {
            self.finish_slice(number);
        }
        self.measured.points.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        if self.schedule.end_ns == u64::MAX && self.last_ns > self.schedule.measure_from_ns {
            self.measured.seconds = (self.last_ns - self.schedule.measure_from_ns) as f64 / 1e9;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ConnectOptions;
    use crate::request::{BenchRequest, RequestSettings};
    use crate::url::Url;

    #[test]
    fn slices_of_ended_threads_are_not_awaited() {
        let ask = BenchRequest::get(Url::parse("http://127.0.0.1:1/").unwrap());
        let plan = LoadPlan::new(&[ask], &RequestSettings::default(), &ConnectOptions::default()).unwrap();
        let plan = LoadPlan { threads: 2, duration: None, requests_max: Some(9), ..plan };
        let schedule =
            RunSchedule { begin_ns: 1_000, measure_from_ns: 1_000, end_ns: u64::MAX, slice_ns: 100 };
        let mut gathered = ReportCollector::new(&plan, schedule);
        let slice = |number: u64| {
            let mut tally = Box::<LoadTally>::default();
            tally.responses = 1;
            let from_ns = 1_000 + number * 100;
            ThreadReport::Slice { warm_up: false, from_ns, to_ns: from_ns + 100, tally }
        };
        // One thread ends in the second slice; the other one continues.
        for report in
            [slice(0), slice(1), slice(0), ThreadReport::NoMoreRequests { from_ns: 1_100 }, slice(1)]
        {
            gathered.take_report(report).unwrap();
        }
        (2..100).for_each(|number| gathered.take_report(slice(number)).unwrap());
        assert_eq!((gathered.open_slices.len(), gathered.measured.points.len()), (0, 100));
        assert_eq!(gathered.measured.responses_in_time, 102);
        assert_eq!(gathered.measured.points.iter().map(|point| point.responses).max(), Some(2));
    }
}
