//! Generations of the configuration: each reload or change that takes effect begins one, and requests work by that of their beginning to their end.
//!
//! Connections of clients belong to none: each of their requests works by the configuration of its time. What keeps an old generation alive
//! are requests that take long: WebSockets and other connections that were upgraded, streams of events, downloads.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::SystemTime;

use http::{Reject, Status};
use net::{Counter, Fault};
use serde_json::{Value, json};

use logging::access::rfc3339;

/// Why a request of a generation that was closed gets no response.
const CLOSED: Reject =
    Reject::new(Status::SERVICE_UNAVAILABLE, "the configuration that this request worked by was closed");

/// The generations that have work, and the one in force.
pub struct Generations {
    cores: usize,
    /// The last one is in force.
    all: Mutex<Vec<Arc<ConfigGeneration>>>,
    /// How often one was closed.
    closes: AtomicU64,
}

/// One configuration while it is in force, or has requests.
pub(crate) struct ConfigGeneration {
    number: u64,
    since: SystemTime,
    cores: Vec<CoreWork>,
    is_closed: AtomicBool,
}

/// What a core does by a generation. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct CoreWork {
    begun: Counter,
    ended: Counter,
    upgraded: Counter,
    upgraded_ended: Counter,
}

/// How much is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkUnderWay {
    /// Requests that still work by it.
    pub requests: u64,
    /// Those of them whose connection carries something else by now: WebSockets and other tunnels.
    pub upgraded: u64,
}

impl ConfigGeneration {
    fn work(&self) -> WorkUnderWay {
        // Those that are over first: else one that ends meanwhile would count as less than none.
        let sum = |of: fn(&CoreWork) -> u64| self.cores.iter().map(of).sum::<u64>();
        let (ended, upgraded_ended) =
            (sum(|core| core.ended.value()), sum(|core| core.upgraded_ended.value()));
        WorkUnderWay {
            requests: sum(|core| core.begun.value()).saturating_sub(ended),
            upgraded: sum(|core| core.upgraded.value()).saturating_sub(upgraded_ended),
        }
    }
}

impl Generations {
    /// The first generation of a server of so many cores.
    pub fn new(cores: usize) -> Generations {
        let generations = Generations { cores, all: Mutex::default(), closes: AtomicU64::new(0) };
        generations.begin();
        generations
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<ConfigGeneration>>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that no core and no request uses are over.
        if let Some(last) = all.pop() {
            all.retain(|generation| Arc::strong_count(generation) > 1);
            all.push(last);
        }
        all
    }

    /// Another configuration is in force from now on.
    pub fn begin(&self) {
        let mut all = self.all();
        let number = all.last().map_or(1, |last| last.number + 1);
        all.push(Arc::new(ConfigGeneration {
            number,
            since: SystemTime::now(),
            cores: (0..self.cores).map(|_| CoreWork::default()).collect(),
            is_closed: AtomicBool::new(false),
        }));
    }

    /// The one in force, for a core.
    pub fn current(&self, core: usize) -> Rc<CoreGeneration> {
        let current = self.all().last().expect("there always is one").clone();
        Rc::new(CoreGeneration { generation: current, core: core.min(self.cores.saturating_sub(1)) })
    }

    /// How often one was closed: where that differs, the core's tasks are to look.
    pub fn closes(&self) -> u64 {
        self.closes.load(Ordering::Acquire)
    }

    /// All of them, the newest first; whether the whole process `is_draining`.
    pub fn document(&self, is_draining: bool) -> Value {
        let all = self.all();
        let current = all.last().map_or(0, |last| last.number);
        let shown = all.iter().rev().map(|one| {
            let since = one.since.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let WorkUnderWay { requests, upgraded } = one.work();
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

    /// What a generation has under way; `None` where it is over, or never was.
    pub fn work(&self, number: u64) -> Option<WorkUnderWay> {
        self.all().iter().find(|one| one.number == number).map(|one| one.work())
    }

    /// Whether it is the one in force.
    pub fn is_current(&self, number: u64) -> bool {
        self.all().last().is_some_and(|last| last.number == number)
    }

    /// Ends the requests of a generation, within about a second.
    pub fn close(&self, number: u64) {
        if let Some(found) = self.all().iter().find(|one| one.number == number) {
            found.is_closed.store(true, Ordering::Release);
            self.closes.fetch_add(1, Ordering::Release);
        }
    }
}

/// A generation on one core.
pub struct CoreGeneration {
    generation: Arc<ConfigGeneration>,
    core: usize,
}

impl CoreGeneration {
    fn work(&self) -> &CoreWork {
        &self.generation.cores[self.core]
    }

    /// Counts a request, until what is returned is dropped.
    pub fn begin(self: &Rc<Self>) -> RequestOfGeneration {
        self.work().begun.add(1);
        RequestOfGeneration(self.clone())
    }

    /// Does the work of a request, unless the generation is closed before it is done.
    pub async fn until_closed(
        &self,
        mut work: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    ) -> Result<(), Fault> {
        poll_fn(|context| match self.generation.is_closed.load(Ordering::Relaxed) {
            true => Poll::Ready(Err(Fault::Reject(CLOSED))),
            false => work.as_mut().poll(context),
        })
        .await
    }
}

impl net::UpgradeTap for CoreGeneration {
    fn upgraded(self: Rc<Self>) -> Box<dyn Any> {
        self.work().upgraded.add(1);
        Box::new(UpgradedRequest(self))
    }
}

/// A request under way.
pub struct RequestOfGeneration(Rc<CoreGeneration>);

impl Drop for RequestOfGeneration {
    fn drop(&mut self) {
        self.0.work().ended.add(1);
    }
}

/// A request whose connection carries something else by now.
struct UpgradedRequest(Rc<CoreGeneration>);

impl Drop for UpgradedRequest {
    fn drop(&mut self) {
        self.0.work().upgraded_ended.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::UpgradeTap;

    #[test]
    fn a_generation_lasts_as_long_as_its_requests() {
        let generations = Generations::new(2);
        let shown = |generations: &Generations| -> Vec<(u64, u64, u64)> {
            let document = generations.document(false);
            let all = document["generations"].as_array().unwrap().iter();
            let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
            all.map(|one| (number(one, "number"), number(one, "requests"), number(one, "upgraded"))).collect()
        };
        let (first, other) = (generations.current(0), generations.current(1));
        let (request, tunnel) = (first.begin(), other.begin());
        let upgraded = other.clone().upgraded();
        assert_eq!(shown(&generations), [(1, 2, 1)]);
        generations.begin();
        drop((first, other));
        assert_eq!(shown(&generations), [(2, 0, 0), (1, 2, 1)]);
        drop(request);
        assert_eq!(shown(&generations), [(2, 0, 0), (1, 1, 1)]);
        generations.close(1);
        assert_eq!((generations.closes(), generations.is_current(2)), (1, true));
        drop((tunnel, upgraded));
        assert_eq!(shown(&generations), [(2, 0, 0)]);
        assert_eq!(generations.work(1), None);
        // One that is over cannot be closed.
        generations.close(1);
        assert_eq!(generations.closes(), 1);
    }
}
