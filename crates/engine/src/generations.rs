//! Generations of the configuration. Each reload or change that takes effect begins one; a request uses the
//! generation in force at its start until it ends.
//!
//! Client connections belong to no generation: each of their requests uses the current one. An old generation
//! is kept alive by long requests: WebSockets and other upgraded connections, event streams, downloads.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::SystemTime;

use http::{Reject, Status};
use logging::access::rfc3339;
use net::{Counter, Fault};
use serde_json::{Value, json};

/// Rejection of a request whose generation was closed.
const CLOSED: Reject =
    Reject::new(Status::SERVICE_UNAVAILABLE, "the configuration that this request worked by was closed");

/// The generations with active requests, and the one in force.
pub struct Generations {
    cores: usize,
    /// Generations by age; the last one is in force.
    all: Mutex<Vec<Arc<ConfigGeneration>>>,
    /// Number of generations that were closed, so far.
    closed_count: AtomicU64,
}

/// A configuration that is in force or has active requests.
pub(crate) struct ConfigGeneration {
    number: u64,
    since: SystemTime,
    cores: Vec<CoreRequestCounts>,
    is_closed: AtomicBool,
}

/// One core's counters of a generation, aligned to avoid false sharing.
#[derive(Default)]
#[repr(align(128))]
struct CoreRequestCounts {
    started: Counter,
    ended: Counter,
    upgraded: Counter,
    upgraded_ended: Counter,
}

/// Number of active requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveRequests {
    /// Requests that use the generation.
    pub requests: u64,
    /// Requests among them whose connection was upgraded: WebSockets and other tunnels.
    pub upgraded: u64,
}

impl ConfigGeneration {
    fn active_requests(&self) -> ActiveRequests {
        // Read the ended counters first: a request that ends meanwhile would otherwise be counted as ended
        // only.
        let sum = |of: fn(&CoreRequestCounts) -> u64| self.cores.iter().map(of).sum::<u64>();
        let ended = sum(|core| core.ended.value());
        let upgraded_ended = sum(|core| core.upgraded_ended.value());
        ActiveRequests {
            requests: sum(|core| core.started.value()).saturating_sub(ended),
            upgraded: sum(|core| core.upgraded.value()).saturating_sub(upgraded_ended),
        }
    }
}

impl Generations {
    /// Creates the first generation, for `cores` cores.
    pub fn new(cores: usize) -> Generations {
        let generations = Generations { cores, all: Mutex::default(), closed_count: AtomicU64::new(0) };
        generations.begin();
        generations
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<ConfigGeneration>>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop generations that no core and no request uses.
        if let Some(last) = all.pop() {
            all.retain(|generation| Arc::strong_count(generation) > 1);
            all.push(last);
        }
        all
    }

    /// Begins a generation, which is in force from now on.
    pub fn begin(&self) {
        let mut all = self.all();
        let number = all.last().map_or(1, |last| last.number + 1);
        all.push(Arc::new(ConfigGeneration {
            number,
            since: SystemTime::now(),
            cores: (0..self.cores).map(|_| CoreRequestCounts::default()).collect(),
            is_closed: AtomicBool::new(false),
        }));
    }

    /// The generation in force, for a core.
    pub fn current(&self, core: usize) -> Rc<CoreGeneration> {
        let current = self.all().last().expect("there always is one").clone();
        Rc::new(CoreGeneration { generation: current, core: core.min(self.cores.saturating_sub(1)) })
    }

    /// Number of times that a generation was closed; when it changes, cores must poll their tasks.
    pub fn closed_count(&self) -> u64 {
        self.closed_count.load(Ordering::Acquire)
    }

    /// All generations as JSON, newest first. `is_draining`: the whole process is draining.
    pub fn to_json(&self, is_draining: bool) -> Value {
        let all = self.all();
        let current = all.last().map_or(0, |last| last.number);
        let shown = all.iter().rev().map(|one| {
            let since = one.since.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let ActiveRequests { requests, upgraded } = one.active_requests();
            let is_current = one.number == current && !is_draining;
            json!({
                "number": one.number,
                "since": rfc3339(since),
                "state": if is_current { "current" } else { "draining" },
                "requests": requests,
                "upgraded": upgraded,
            })
        });
        json!({ "generations": shown.collect::<Vec<_>>() })
    }

    /// Active requests of a generation; `None` if it has ended or never existed.
    pub fn active_requests(&self, number: u64) -> Option<ActiveRequests> {
        self.all().iter().find(|one| one.number == number).map(|one| one.active_requests())
    }

    /// Whether a generation is the one in force.
    pub fn is_current(&self, number: u64) -> bool {
        self.all().last().is_some_and(|last| last.number == number)
    }

    /// Aborts the requests of a generation, within about a second.
    pub fn close(&self, number: u64) {
        if let Some(found) = self.all().iter().find(|one| one.number == number) {
            found.is_closed.store(true, Ordering::Release);
            self.closed_count.fetch_add(1, Ordering::Release);
        }
    }
}

/// A generation on one core.
pub struct CoreGeneration {
    generation: Arc<ConfigGeneration>,
    core: usize,
}

impl CoreGeneration {
    fn counts(&self) -> &CoreRequestCounts {
        &self.generation.cores[self.core]
    }

    /// Counts a request until the returned guard is dropped.
    pub fn begin(self: &Rc<Self>) -> RequestGuard {
        self.counts().started.add(1);
        RequestGuard(self.clone())
    }

    /// Whether the generation was closed.
    pub fn is_closed(&self) -> bool {
        self.generation.is_closed.load(Ordering::Relaxed)
    }

    /// Runs the work of a request; fails if the generation is closed before it completes.
    pub async fn run_until_closed(
        &self,
        mut future: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    ) -> Result<(), Fault> {
        poll_fn(|context| {
            if self.is_closed() {
                Poll::Ready(Err(Fault::Reject(CLOSED)))
            } else {
                future.as_mut().poll(context)
            }
        })
        .await
    }
}

impl net::UpgradeTap for CoreGeneration {
    fn upgraded(self: Rc<Self>) -> Box<dyn Any> {
        self.counts().upgraded.add(1);
        Box::new(UpgradeGuard(self))
    }
}

/// Guard that counts an active request.
pub struct RequestGuard(Rc<CoreGeneration>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.counts().ended.add(1);
    }
}

/// Guard that counts a request whose connection was upgraded.
struct UpgradeGuard(Rc<CoreGeneration>);

impl Drop for UpgradeGuard {
    fn drop(&mut self) {
        self.0.counts().upgraded_ended.add(1);
    }
}

#[cfg(test)]
mod tests {
    use net::UpgradeTap;

    use super::*;

    #[test]
    fn a_generation_lasts_as_long_as_its_requests() {
        let generations = Generations::new(2);
        let shown = |generations: &Generations| -> Vec<(u64, u64, u64)> {
            let document = generations.to_json(false);
            let all = document["generations"].as_array().unwrap().iter();
            let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
            all.map(|one| (number(one, "number"), number(one, "requests"), number(one, "upgraded"))).collect()
        };
        let first = generations.current(0);
        let other = generations.current(1);
        let request = first.begin();
        let tunnel = other.begin();
        let upgraded = other.clone().upgraded();
        assert_eq!(shown(&generations), [(1, 2, 1)]);
        generations.begin();
        drop((first, other));
        assert_eq!(shown(&generations), [(2, 0, 0), (1, 2, 1)]);
        drop(request);
        assert_eq!(shown(&generations), [(2, 0, 0), (1, 1, 1)]);
        generations.close(1);
        assert_eq!((generations.closed_count(), generations.is_current(2)), (1, true));
        drop((tunnel, upgraded));
        assert_eq!(shown(&generations), [(2, 0, 0)]);
        assert_eq!(generations.active_requests(1), None);
        // A generation that has ended cannot be closed.
        generations.close(1);
        assert_eq!(generations.closed_count(), 1);
    }
}
