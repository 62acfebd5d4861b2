//! Engine thread of a run: its connections, its schedule and its reports.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use failure::Failure;
use fastrand::Rng;
use http::Version;
use net::Core;
use net::client::PreciseTimer;
use times::Millis;

use crate::clock::{now_ns, thread_cpu_ns};
use crate::connection_loop::run_connections;
use crate::http1_connection::LoadConnection;
use crate::http2_connection::MultiplexedConnection;
use crate::http3_connection::Http3Connection;
use crate::load_state::{LoadState, RunState};
use crate::plan::{Arrivals, LoadPlan, Pace};
use crate::random::exponential_delay;
use crate::tally::LoadTally;

/// Interval in milliseconds at which a thread checks the clock and the stop flag.
const CHECK_INTERVAL_MS: u64 = 5;
/// Time that requests in progress at the end are waited for, at most; or this many times the longest latency
/// of the run. Without it, slow responses would be missing from short runs.
const FINAL_WAIT: Duration = Duration::from_secs(2);
const FINAL_WAIT_LATENCIES: u64 = 2;

/// Times of a run's phases, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunSchedule {
    /// Start of the load.
    pub(crate) begin_ns: u64,
    /// The end of the warm-up.
    pub(crate) measure_from_ns: u64,
    /// End of the run; `u64::MAX` if it ends by its number of requests.
    pub(crate) end_ns: u64,
    /// Duration of one report.
    pub(crate) slice_ns: u64,
}

/// Report of a thread.
pub(crate) enum ThreadReport {
    /// Figures of a time slice. The first slices may belong to the warm-up.
    Slice { warm_up: bool, from_ns: u64, to_ns: u64, tally: Box<LoadTally> },
    /// The thread starts no more requests. `from_ns` is the start of the last counted slice; 0 if there was
    /// none.
    NoMoreRequests { from_ns: u64 },
    /// The thread has ended. `rest` has the responses after the end of the run; `cpu_ns` and `wall_ns` cover the time from the beginning of the measured part to the end.
    End { rest: Box<LoadTally>, cpu_ns: u64, wall_ns: u64, last_ns: u64 },
    /// The thread failed.
    Failed(Failure),
}

/// Part of the plan that one thread executes.
pub(crate) struct ThreadShare {
    pub(crate) number: usize,
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) run_state: Arc<RunState>,
    pub(crate) schedule: RunSchedule,
}

/// Executes the part to its end and sends reports.
pub(crate) fn run_thread(share: ThreadShare, reports: &Sender<ThreadReport>) {
    // Sending fails only if the receiver no longer exists.
    let _ = match run_load(share, reports.clone()) {
        Ok(end) => reports.send(end),
        Err(error) => reports.send(ThreadReport::Failed(error.into())),
    };
}

fn run_load(share: ThreadShare, reports: Sender<ThreadReport>) -> std::io::Result<ThreadReport> {
    let core = Core::for_client(1)?;
    let seed = Rng::with_seed(share.plan.seed.wrapping_add(share.number as u64)).u64(..);
    let world = Rc::new(LoadState::new(&core, share.plan.clone(), share.run_state.clone(), seed));
    let main = run_phases(world.clone(), share, reports, seed);
    let (cpu_ns, wall_ns) = core.run_until_end(main)?;
    // The connections are closed at this point, and their requests in progress have been counted.
    world.fail_waiting(now_ns());
    let rest = Box::new(world.tally.take());
    Ok(ThreadReport::End { rest, cpu_ns, wall_ns, last_ns: world.last_end_ns.get() })
}

/// Opens the connections, divides the run into slices and ends it. Returns CPU and wall-clock time of the
/// measured part.
async fn run_phases(
    load_state: Rc<LoadState>,
    share: ThreadShare,
    reports: Sender<ThreadReport>,
    seed: u64,
) -> (u64, u64) {
    let plan = share.plan.clone();
    let schedule = share.schedule;
    open_connections(&load_state, &share);
    let arrivals = match plan.pace {
        Pace::Closed { .. } => None,
        Pace::Open { rate, arrivals } => {
            let arrivals = ArrivalSequence::new(&share, load_state.clone(), rate, arrivals, seed);
            let arrivals = Rc::new(RefCell::new(arrivals));
            load_state.core.spawn(generate_arrivals(load_state.clone(), arrivals.clone()));
            Some(arrivals)
        }
    };
    let mut from_ns = schedule.begin_ns;
    let mut warm_up = schedule.measure_from_ns > schedule.begin_ns;
    let mut counted = (thread_cpu_ns(), now_ns());
    if !warm_up {
        set_quota(&load_state, &share);
    }
    loop {
        let boundary_ns = if warm_up {
            schedule.measure_from_ns
        } else {
            (from_ns + schedule.slice_ns).min(schedule.end_ns)
        };
        let ended = wait_until(&load_state, &share, boundary_ns, warm_up).await;
        let to_ns = now_ns();
        let tally = Box::new(load_state.tally.take());
        let slice = ThreadReport::Slice { warm_up, from_ns, to_ns, tally };
        if reports.send(slice).is_err() || ended || to_ns >= schedule.end_ns {
            break;
        }
        if warm_up {
            warm_up = false;
            counted = (thread_cpu_ns(), to_ns);
            set_quota(&load_state, &share);
        }
        from_ns = to_ns;
    }
    let spent = (thread_cpu_ns() - counted.0, now_ns() - counted.1);
    if let Some(arrivals) = arrivals.filter(|_| !share.run_state.stop.load(Ordering::Relaxed)) {
        // Those that became due since the generator last ran.
        arrivals.borrow_mut().add_due(now_ns());
    }
    load_state.end_run();
    // The receiver may no longer exist; the report is not needed then.
    let _ = reports.send(ThreadReport::NoMoreRequests { from_ns: if warm_up { 0 } else { from_ns } });
    wait_for_in_flight(&load_state, &share).await;
    while !share.run_state.is_usage_read.load(Ordering::Relaxed) {
        load_state.core.sleep(Millis(1)).await;
    }
    spent
}

fn set_quota(load_state: &LoadState, share: &ThreadShare) {
    if let Some(requests) = share.plan.requests_max {
        let threads = share.plan.threads as u64;
        let number = share.number as u64;
        load_state.set_quota(requests / threads + u64::from(number < requests % threads));
    }
}

/// Waits until `boundary_ns`; returns true if the run ended before it.
async fn wait_until(load_state: &LoadState, share: &ThreadShare, boundary_ns: u64, warm_up: bool) -> bool {
    loop {
        let now_ns = now_ns();
        if now_ns >= boundary_ns {
            return false;
        }
        if share.run_state.stop.load(Ordering::Relaxed)
            || (!warm_up && load_state.is_over() && load_state.is_drained())
        {
            return true;
        }
        let left_ms = (boundary_ns - now_ns).div_ceil(1_000_000);
        load_state.core.sleep(Millis(left_ms.min(CHECK_INTERVAL_MS))).await;
    }
}

/// Waits for the requests in progress, as long as [`FINAL_WAIT`] says, but not beyond the timeout.
async fn wait_for_in_flight(load_state: &LoadState, share: &ThreadShare) {
    let longest = Duration::from_nanos(load_state.longest_ns.get().saturating_mul(FINAL_WAIT_LATENCIES));
    let until_ns = now_ns() + share.plan.timeout.min(FINAL_WAIT.max(longest)).as_nanos() as u64;
    while !load_state.is_drained() && now_ns() < until_ns && !share.run_state.stop.load(Ordering::Relaxed) {
        load_state.core.sleep(Millis(CHECK_INTERVAL_MS)).await;
    }
}

/// Opens this thread's share of the connections.
fn open_connections(load_state: &Rc<LoadState>, share: &ThreadShare) {
    let plan = &share.plan;
    let origins = plan.connections_by_origin().into_iter().enumerate();
    let all: Vec<usize> = origins.flat_map(|(origin, count)| (0..count).map(move |_| origin)).collect();
    for (at, &origin) in all.iter().enumerate().filter(|(at, _)| at % plan.threads == share.number) {
        let delay = plan.ramp.mul_f64(at as f64 / all.len() as f64);
        let state = load_state.clone();
        match plan.version {
            Version::Http3 => {
                state.core.clone().spawn(run_connections(Http3Connection::new(state, origin), delay))
            }
            Version::Http2 => {
                state.core.clone().spawn(run_connections(MultiplexedConnection::new(state, origin), delay));
            }
            _ => state.core.clone().spawn(run_connections(LoadConnection::new(state, origin), delay)),
        }
    }
}

/// Arrivals of an open loop: the times at which requests become due, regardless of responses.
struct ArrivalSequence {
    load_state: Rc<LoadState>,
    schedule: RunSchedule,
    arrivals: Arrivals,
    /// Mean distance of two arrivals in nanoseconds.
    mean_ns: f64,
    /// Time of the next arrival in nanoseconds since the start of the load.
    next_ns: f64,
    random: Rng,
}

impl ArrivalSequence {
    fn new(
        share: &ThreadShare,
        load_state: Rc<LoadState>,
        rate: f64,
        arrivals: Arrivals,
        seed: u64,
    ) -> ArrivalSequence {
        let threads = share.plan.threads as f64;
        let mean_ns = 1e9 * threads / rate;
        let mut random = Rng::with_seed(seed ^ 0xa55a_a55a);
        // Threads with constant arrivals are interleaved evenly.
        let next_ns = match arrivals {
            Arrivals::Constant => mean_ns * share.number as f64 / threads,
            Arrivals::Poisson => exponential_delay(&mut random, mean_ns),
        };
        ArrivalSequence { load_state, schedule: share.schedule, arrivals, mean_ns, next_ns, random }
    }

    /// Makes the requests due whose time has come. Returns the time of the next one; `None` if there are no more.
    fn add_due(&mut self, now_ns: u64) -> Option<u64> {
        loop {
            let at_ns = self.schedule.begin_ns + self.next_ns as u64;
            if at_ns >= self.schedule.end_ns {
                return None;
            }
            if at_ns > now_ns {
                return Some(at_ns);
            }
            if !self.load_state.add_due_request(at_ns) {
                return None;
            }
            self.load_state.tally.borrow_mut().lateness.record(now_ns - at_ns);
            self.next_ns += match self.arrivals {
                Arrivals::Constant => self.mean_ns,
                Arrivals::Poisson => exponential_delay(&mut self.random, self.mean_ns),
            };
        }
    }
}

/// Makes requests due at their times.
async fn generate_arrivals(load_state: Rc<LoadState>, arrivals: Rc<RefCell<ArrivalSequence>>) {
    let Ok(alarm) = PreciseTimer::new(&load_state.core) else {
        load_state.end_run();
        return;
    };
    loop {
        let next_ns = arrivals.borrow_mut().add_due(now_ns());
        let Some(at_ns) = next_ns else { return };
        if alarm.wait_until_ns(at_ns).await.is_err() {
            return;
        }
    }
}
