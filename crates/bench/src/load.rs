//! A run: starts the threads, merges their reports and notifies an observer of the progress.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::dial;
use crate::moment::{now_ns, process_cpu_ns};
use crate::plan::Plan;
use crate::tally::Tally;
use crate::thread::{self, Schedule, ThreadPart, ThreadReport};
use crate::world::{Facts, RunState};

/// From the start of the threads to the beginning of the load, so that all begin together.
const LEAD_NS: u64 = 2_000_000;
/// Descriptors that a run needs beside its connections.
const DESCRIPTORS_BESIDE: u64 = 256;
/// Longest wait for reports before the observer is asked again.
const LISTEN: Duration = Duration::from_millis(50);

/// The figures of a part of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// When it begins and ends, in seconds since the end of the warm-up; negative during the warm-up.
    pub from_s: f64,
    /// See `from_s`.
    pub to_s: f64,
    /// Responses.
    pub responses: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Requests that failed, and responses of status 400 and above.
    pub errors: u64,
    /// Latency in nanoseconds: median, p99, greatest.
    pub p50_ns: u64,
    /// See `p50_ns`.
    pub p99_ns: u64,
    /// See `p50_ns`.
    pub max_ns: u64,
}

impl Point {
    /// Responses a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.responses as f64 / (self.to_s - self.from_s).max(1e-9)
    }
}

/// The state of a run, sent to an observer a few times a second and at each point.
pub struct Progress<'a> {
    /// Seconds since the load began to count; negative in the warm-up.
    pub elapsed_s: f64,
    /// The planned length, where there is one, in seconds.
    pub planned_s: Option<f64>,
    /// The points so far, without the warm-up.
    pub points: &'a [Point],
    /// Sums so far, without the warm-up.
    pub tally: &'a Tally,
}

/// Watches a run. All calls come from the thread that runs it.
pub trait Observer {
    /// The load begins to count now.
    fn count_begins(&mut self) {}
    /// Called a few times a second while the load runs.
    fn progress(&mut self, _: &Progress<'_>) {}
    /// The load has ended.
    fn count_ends(&mut self) {}
}

/// Watches nothing.
impl Observer for () {}

/// The results of a run on the client's side.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The length of the measured part, in seconds.
    pub seconds: f64,
    /// The sums over the measured part.
    pub tally: Tally,
    /// Responses within [`Measured::seconds`]: all of them in a closed loop; an open one's last answers come later.
    pub responses_in_time: u64,
    /// The same over time.
    pub points: Vec<Point>,
    /// What is known of the server from its responses.
    pub facts: Facts,
    /// CPU time of the generator over what counts, in seconds.
    pub generator_cpu_s: f64,
    /// The share of its time that the busiest engine thread spent working, 0 to 1.
    pub busiest_thread: f64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

impl Measured {
    /// Responses a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.responses_in_time as f64 / self.seconds.max(1e-9)
    }
}

/// Runs the load. `stop` ends it early, with the figures so far.
///
/// # Errors
/// A plan that makes no sense, a server that cannot be reached, a thread that could not start.
pub fn run(plan: &Plan, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<Measured, String> {
    plan.check()?;
    let _raised = DescriptorLimit::raise(plan.connections as u64 + DESCRIPTORS_BESIDE);
    dial::probe(plan)?;
    let plan = Arc::new(Plan { threads: plan.threads(), ..plan.clone() });
    let shared = Arc::new(RunState {
        expected: plan.requests.iter().map(|_| OnceLock::new()).collect(),
        ..RunState::default()
    });
    let schedule = schedule(&plan);
    let (sender, receiver) = channel();
    let mut threads = Vec::new();
    for number in 0..plan.threads {
        let part = ThreadPart { number, plan: plan.clone(), shared: shared.clone(), schedule };
        let sender = sender.clone();
        let thread = std::thread::Builder::new().name(format!("load-{number}"));
        let started = thread.spawn(move || thread::run(part, &sender));
        threads.push(started.map_err(|error| format!("cannot start a thread: {error}"))?);
    }
    drop(sender);
    let mut gathered = Gathering::new(&plan, schedule);
    let outcome = gathered.listen(&receiver, &shared, stop, observer);
    // The threads send no more reports: they have ended, or have failed.
    shared.stop.store(true, Ordering::Relaxed);
    shared.counted.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a load thread panicked".to_string())?;
    }
    outcome?;
    gathered.measured.facts = shared.facts.get().cloned().unwrap_or_default();
    Ok(gathered.measured)
}

/// The process's limit on open files as it was, for the end of the run: servers that are started later see no other.
struct DescriptorLimit(Rlimit);

impl DescriptorLimit {
    /// Raises the soft limit as far as that is needed and allowed. What is missing then shows as failed connections.
    fn raise(wanted: u64) -> DescriptorLimit {
        let before = getrlimit(Resource::Nofile);
        if before.current.is_some_and(|current| current < wanted) {
            let most = before.maximum.map_or(wanted, |maximum| wanted.min(maximum));
            // Where it is refused, the failures say so.
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

fn schedule(plan: &Plan) -> Schedule {
    let begin_ns = now_ns() + LEAD_NS;
    let count_ns = begin_ns + plan.warm_up.as_nanos() as u64;
    let end_ns = plan.duration.map_or(u64::MAX, |duration| count_ns + duration.as_nanos() as u64);
    // About a hundred points, but no more than ten a second and no fewer than one.
    let slice_ns = match plan.duration {
        Some(duration) => (duration.as_nanos() as u64 / 100).clamp(100_000_000, 1_000_000_000),
        None => 250_000_000,
    };
    Schedule { begin_ns, count_ns, end_ns, slice_ns }
}

/// Merges the threads' reports.
struct Gathering {
    schedule: Schedule,
    threads: usize,
    planned_s: Option<f64>,
    measured: Measured,
    /// Slices that not every thread has reported yet: by their number, how many threads have, and the sum so far.
    open: BTreeMap<u64, (usize, Slice)>,
    /// For each thread that sends no more requests, the number of its last slice; `None` if it reported no slice.
    over: Vec<Option<u64>>,
    ended: usize,
    /// Where what counts began: CPU time of this process, and whether that is behind us.
    cpu_ns: u64,
    counting: bool,
    last_ns: u64,
}

struct Slice {
    from_ns: u64,
    to_ns: u64,
    tally: Box<Tally>,
}

impl Gathering {
    fn new(plan: &Plan, schedule: Schedule) -> Gathering {
        Gathering {
            schedule,
            threads: plan.threads,
            planned_s: plan.duration.map(|duration| duration.as_secs_f64()),
            measured: Measured::default(),
            open: BTreeMap::new(),
            over: Vec::new(),
            ended: 0,
            cpu_ns: 0,
            counting: false,
            last_ns: 0,
        }
    }

    fn listen(
        &mut self,
        reports: &Receiver<ThreadReport>,
        shared: &RunState,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<(), String> {
        let mut counted_out = false;
        while self.ended < self.threads {
            let now_ns = now_ns();
            if !self.counting && now_ns >= self.schedule.count_ns {
                self.counting = true;
                self.cpu_ns = process_cpu_ns();
                observer.count_begins();
            }
            if stop.load(Ordering::Relaxed) {
                self.measured.interrupted = true;
                shared.stop.store(true, Ordering::Relaxed);
            }
            if !counted_out && (now_ns >= self.schedule.end_ns || self.over.len() == self.threads) {
                counted_out = true;
                self.count_ends(observer);
                shared.counted.store(true, Ordering::Relaxed);
            }
            let until_ns = if self.counting { self.schedule.end_ns } else { self.schedule.count_ns };
            let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns))
                .clamp(Duration::from_micros(100), LISTEN);
            match reports.recv_timeout(wait) {
                Ok(report) => self.take(report)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("a load thread ended early".into()),
            }
            observer.progress(&Progress {
                elapsed_s: (now_ns as f64 - self.schedule.count_ns as f64) / 1e9,
                planned_s: self.planned_s,
                points: &self.measured.points,
                tally: &self.measured.tally,
            });
        }
        self.close();
        Ok(())
    }

    fn count_ends(&mut self, observer: &mut dyn Observer) {
        observer.count_ends();
        if self.counting {
            self.measured.generator_cpu_s = (process_cpu_ns() - self.cpu_ns) as f64 / 1e9;
        }
    }

    fn take(&mut self, report: ThreadReport) -> Result<(), String> {
        match report {
            ThreadReport::Broken(error) => return Err(error),
            ThreadReport::Slice { warm_up: true, tally, .. } => {
                // Connections that were made before the measured part are used in it.
                self.measured.tally.add_connections(&tally);
            }
            ThreadReport::Slice { from_ns, to_ns, tally, .. } => self.take_slice(from_ns, to_ns, tally),
            ThreadReport::Over { from_ns } => {
                self.over.push((from_ns > 0).then(|| self.number(from_ns)));
                let whole = |(&number, (reported, _)): (&u64, &(usize, Slice))| {
                    (*reported >= self.needed(number)).then_some(number)
                };
                let whole: Vec<u64> = self.open.iter().filter_map(whole).collect();
                whole.into_iter().for_each(|number| self.finish(number));
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

    /// Slices begin where the one before ended, a little late: their number is the nearest.
    fn number(&self, from_ns: u64) -> u64 {
        (from_ns.saturating_sub(self.schedule.count_ns) + self.schedule.slice_ns / 2) / self.schedule.slice_ns
    }

    /// How many threads report a slice: those that had not ended before it.
    fn needed(&self, number: u64) -> usize {
        self.threads - self.over.iter().filter(|last| last.is_none_or(|last| last < number)).count()
    }

    fn take_slice(&mut self, from_ns: u64, to_ns: u64, tally: Box<Tally>) {
        let number = self.number(from_ns);
        let reported = match self.open.entry(number) {
            Entry::Vacant(vacant) => vacant.insert((1, Slice { from_ns, to_ns, tally })).0,
            Entry::Occupied(occupied) => {
                let (reported, slice) = occupied.into_mut();
                slice.from_ns = slice.from_ns.min(from_ns);
                slice.to_ns = slice.to_ns.max(to_ns);
                slice.tally.add(&tally);
                *reported += 1;
                *reported
            }
        };
        if reported >= self.needed(number) {
            self.finish(number);
        }
    }

    fn finish(&mut self, number: u64) {
        let Some((_, slice)) = self.open.remove(&number) else { return };
        let since = |ns: u64| (ns as f64 - self.schedule.count_ns as f64) / 1e9;
        let tally = &slice.tally;
        self.measured.points.push(Point {
            from_s: since(slice.from_ns),
            to_s: since(slice.to_ns),
            responses: tally.responses,
            bytes_in: tally.bytes_in,
            errors: tally.errors.total() + tally.refusals(),
            p50_ns: tally.latency.percentile(50.0),
            p99_ns: tally.latency.percentile(99.0),
            max_ns: tally.latency.max(),
        });
        self.measured.responses_in_time += tally.responses;
        self.measured.tally.add(tally);
        self.measured.seconds = self.measured.points.iter().map(|point| point.to_s).fold(0.0, f64::max);
    }

    /// Finishes slices that not all threads reported. Sets the length of a run that ended by its number of requests.
    fn close(&mut self) {
        while let Some((&number, _)) = self.open.first_key_value() {
            self.finish(number);
        }
        self.measured.points.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        if self.schedule.end_ns == u64::MAX && self.last_ns > self.schedule.count_ns {
            self.measured.seconds = (self.last_ns - self.schedule.count_ns) as f64 / 1e9;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reach;
    use crate::request::{Ask, RequestManner};
    use crate::url::Url;

    #[test]
    fn nothing_is_kept_for_a_thread_that_has_ended() {
        let ask = Ask::get(Url::parse("http://127.0.0.1:1/").unwrap());
        let plan = Plan::new(&[ask], &RequestManner::default(), &Reach::default()).unwrap();
        let plan = Plan { threads: 2, duration: None, requests_max: Some(9), ..plan };
        let schedule = Schedule { begin_ns: 1_000, count_ns: 1_000, end_ns: u64::MAX, slice_ns: 100 };
        let mut gathered = Gathering::new(&plan, schedule);
        let slice = |number: u64| {
            let mut tally = Box::<Tally>::default();
            tally.responses = 1;
            let from_ns = 1_000 + number * 100;
            ThreadReport::Slice { warm_up: false, from_ns, to_ns: from_ns + 100, tally }
        };
        // One thread is done in the second slice; the other continues for long.
        for report in [slice(0), slice(1), slice(0), ThreadReport::Over { from_ns: 1_100 }, slice(1)] {
            gathered.take(report).unwrap();
        }
        (2..100).for_each(|number| gathered.take(slice(number)).unwrap());
        assert_eq!((gathered.open.len(), gathered.measured.points.len()), (0, 100));
        assert_eq!(gathered.measured.responses_in_time, 102);
        assert_eq!(gathered.measured.points.iter().map(|point| point.responses).max(), Some(2));
    }
}
