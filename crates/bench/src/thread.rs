//! Engine thread of a run: its connections, its schedule and its reports.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use fastrand::Rng;
use net::Core;
use net::client::Alarm;

use crate::jobs;
use crate::lane::LoadConnection;
use crate::moment::{now_ns, thread_cpu_ns};
use crate::plan::{Arrivals, Pace, Plan};
use crate::random::exponential;
use crate::streams::MultiplexedConnection;
use crate::tally::Tally;
use crate::world::{RunState, World};

/// Interval in milliseconds at which a thread checks the clock and the stop flag.
const LOOK_MS: u64 = 5;
/// Maximum time that requests in progress at the end of an open loop are waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Times of a run's phases, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Start of the load.
    pub(crate) begin_ns: u64,
    /// The end of the warm-up.
    pub(crate) count_ns: u64,
    /// End of the run; `u64::MAX` if it ends by its number of requests.
    pub(crate) end_ns: u64,
    /// Duration of one report.
    pub(crate) slice_ns: u64,
}

/// Report of a thread.
pub(crate) enum ThreadReport {
    /// Figures of a time slice. The first slices may belong to the warm-up.
    Slice { warm_up: bool, from_ns: u64, to_ns: u64, tally: Box<Tally> },
    /// The thread starts no more requests. `from_ns` is the start of the last counted slice; 0 if there was
    /// none.
    Over { from_ns: u64 },
    /// The thread has ended. `rest` has the responses of an open loop after the end; `cpu_ns` and `wall_ns`
    /// cover the time from the beginning of the measured part to the end.
    End { rest: Box<Tally>, cpu_ns: u64, wall_ns: u64, last_ns: u64 },
    /// The thread failed.
    Broken(String),
}

/// Part of the plan that one thread executes.
pub(crate) struct ThreadPart {
    pub(crate) number: usize,
    pub(crate) plan: Arc<Plan>,
    pub(crate) shared: Arc<RunState>,
    pub(crate) schedule: Schedule,
}

/// Executes the part to its end and sends reports.
pub(crate) fn run(part: ThreadPart, reports: &Sender<ThreadReport>) {
    // Sending fails only if the receiver no longer exists.
    let _ = match load(part, reports.clone()) {
        Ok(end) => reports.send(end),
        Err(error) => reports.send(ThreadReport::Broken(error.to_string())),
    };
}

fn load(part: ThreadPart, reports: Sender<ThreadReport>) -> std::io::Result<ThreadReport> {
    let core = Core::for_client(1)?;
    let seed = Rng::with_seed(part.plan.seed.wrapping_add(part.number as u64)).u64(..);
    let world = Rc::new(World::new(&core, part.plan.clone(), part.shared.clone(), seed));
    let main = conduct(world.clone(), part, reports, seed);
    let (cpu_ns, wall_ns) = core.run_until_end(main)?;
    // The connections are closed at this point, and their requests in progress have been counted.
    world.give_up_waiting(now_ns());
    let rest = Box::new(world.tally.take());
    Ok(ThreadReport::End { rest, cpu_ns, wall_ns, last_ns: world.last_ns.get() })
}

/// Opens the connections, divides the run into slices and ends it. Returns CPU and wall-clock time of the
/// measured part.
async fn conduct(world: Rc<World>, part: ThreadPart, reports: Sender<ThreadReport>, seed: u64) -> (u64, u64) {
    let (plan, schedule) = (part.plan.clone(), part.schedule);
    open_lanes(&world, &part);
    if let Pace::Open { rate, arrivals } = plan.pace {
        world.core.spawn(pace(world.clone(), part.number, rate, arrivals, schedule, seed));
    }
    let mut from_ns = schedule.begin_ns;
    let mut warm_up = schedule.count_ns > schedule.begin_ns;
    let mut counted = (thread_cpu_ns(), now_ns());
    if !warm_up {
        set_quota(&world, &part);
    }
    loop {
        let boundary_ns = match warm_up {
            true => schedule.count_ns,
            false => (from_ns + schedule.slice_ns).min(schedule.end_ns),
        };
        let ended = until(&world, &part, boundary_ns, warm_up).await;
        let to_ns = now_ns();
        let tally = Box::new(world.tally.take());
        let slice = ThreadReport::Slice { warm_up, from_ns, to_ns, tally };
        if reports.send(slice).is_err() || ended || to_ns >= schedule.end_ns {
            break;
        }
        if warm_up {
            warm_up = false;
            counted = (thread_cpu_ns(), to_ns);
            set_quota(&world, &part);
        }
        from_ns = to_ns;
    }
    let spent = (thread_cpu_ns() - counted.0, now_ns() - counted.1);
    world.end();
    // The receiver may no longer exist; the report is not needed then.
    let _ = reports.send(ThreadReport::Over { from_ns: if warm_up { 0 } else { from_ns } });
    if plan.is_open() {
        settle(&world, &part).await;
    }
    while !part.shared.counted.load(Ordering::Relaxed) {
        world.core.sleep(1).await;
    }
    spent
}

fn set_quota(world: &World, part: &ThreadPart) {
    if let Some(requests) = part.plan.requests_max {
        let (threads, number) = (part.plan.threads as u64, part.number as u64);
        world.set_quota(requests / threads + u64::from(number < requests % threads));
    }
}

/// Waits until `boundary_ns`; returns true if the run ended before it.
async fn until(world: &World, part: &ThreadPart, boundary_ns: u64, warm_up: bool) -> bool {
    loop {
        let now_ns = now_ns();
        if now_ns >= boundary_ns {
            return false;
        }
        if part.shared.stop.load(Ordering::Relaxed) || (!warm_up && world.is_over() && world.is_settled()) {
            return true;
        }
        let left_ms = (boundary_ns - now_ns).div_ceil(1_000_000);
        world.core.sleep(left_ms.min(LOOK_MS)).await;
    }
}

/// Waits for the requests in progress of an open loop, up to [`GRACE`].
async fn settle(world: &World, part: &ThreadPart) {
    let until_ns = now_ns() + part.plan.timeout.min(GRACE).as_nanos() as u64;
    while !world.is_settled() && now_ns() < until_ns && !part.shared.stop.load(Ordering::Relaxed) {
        world.core.sleep(LOOK_MS).await;
    }
}

/// Opens this thread's share of the connections.
fn open_lanes(world: &Rc<World>, part: &ThreadPart) {
    let plan = &part.plan;
    let origins = plan.connections_to().into_iter().enumerate();
    let all: Vec<usize> = origins.flat_map(|(origin, count)| (0..count).map(move |_| origin)).collect();
    for (at, &origin) in all.iter().enumerate().filter(|(at, _)| at % plan.threads == part.number) {
        let delay = plan.ramp.mul_f64(at as f64 / all.len() as f64);
        match plan.is_http2() {
            true => world.core.spawn(jobs::run(MultiplexedConnection::new(world.clone(), origin), delay)),
            false => world.core.spawn(jobs::run(LoadConnection::new(world.clone(), origin), delay)),
        }
    }
}

/// Makes requests due at the scheduled times, regardless of responses.
async fn pace(world: Rc<World>, number: usize, rate: f64, arrivals: Arrivals, schedule: Schedule, seed: u64) {
    let threads = world.plan.threads as f64;
    let mean_ns = 1e9 * threads / rate;
    let mut random = Rng::with_seed(seed ^ 0xa55a_a55a);
    // Threads with constant arrivals are interleaved evenly.
    let mut due_ns = match arrivals {
        Arrivals::Constant => mean_ns * number as f64 / threads,
        Arrivals::Poisson => exponential(&mut random, mean_ns),
    };
    let Ok(alarm) = Alarm::new(&world.core) else {
        world.end();
        return;
    };
    loop {
        let now_ns = now_ns();
        let mut at_ns = schedule.begin_ns + due_ns as u64;
        while at_ns <= now_ns && at_ns < schedule.end_ns {
            if !world.arrive(at_ns) {
                return;
            }
            world.tally.borrow_mut().lateness.record(now_ns - at_ns);
            due_ns += match arrivals {
                Arrivals::Constant => mean_ns,
                Arrivals::Poisson => exponential(&mut random, mean_ns),
            };
            at_ns = schedule.begin_ns + due_ns as u64;
        }
        if at_ns >= schedule.end_ns || alarm.at(at_ns).await.is_err() {
            return;
        }
    }
}
