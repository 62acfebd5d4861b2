//! Request queue of a route: limits the requests in its handler and the requests waiting for it, counted over
//! all cores.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use admission::queue::RequestQueue;
use config::matcher::RouteId;
use config::{Config, HiddenRouteKind, PartOf};
use http::{Fields, Name, Status};
use logging::Level;
use logging::notice::ErrorLog;
use net::{Exchange, Fault};
use reload::KeptState;
use telemetry::gauges::QueueMetrics;
use telemetry::metrics::RouteLabels;
use telemetry::rule_counters::{RuleCounter, RuleCounters};
use times::Millis;

/// Memory charged to a waiting request in addition to its connection, in bytes.
const WAITING_BYTES: usize = 4096;

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueRefusal {
    /// The queue was full and this request was the oldest.
    Full,
    /// The request has waited too long.
    Age,
}

impl QueueRefusal {
    const ALL: [(QueueRefusal, &'static str); 2] = [(QueueRefusal::Full, "full"), (QueueRefusal::Age, "age")];

    fn reason_text(self) -> &'static str {
        match self {
            QueueRefusal::Full => "too many requests wait for an answer: try again later",
            QueueRefusal::Age => "the request has waited too long for its turn: try again later",
        }
    }
}

/// Outcome of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitOutcome {
    /// The request has a permit for the handler.
    Admitted,
    Refused(QueueRefusal),
}

/// Waiting requests of one route, and the number of requests in its handler.
#[derive(Debug)]
struct WaitingRequests {
    active_max: usize,
    waiting_max: usize,
    active: usize,
    /// Waiting requests by number, which is the order of arrival.
    waiting: BTreeMap<u64, Waker>,
    /// Outcomes that have not been polled yet.
    outcomes: BTreeMap<u64, WaitOutcome>,
    next_number: u64,
}

impl WaitingRequests {
    fn new(options: &RequestQueue) -> WaitingRequests {
        WaitingRequests {
            active_max: options.active_max as usize,
            waiting_max: options.waiting_max as usize,
            active: 0,
            waiting: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Takes a permit if one is free and no request is waiting. Returns whether it did.
    fn try_acquire(&mut self) -> bool {
        let is_free = self.active < self.active_max && self.waiting.is_empty();
        self.active += usize::from(is_free);
        is_free
    }

    /// Adds a waiting request; if the queue is full, the oldest one is refused. Returns the number of the
    /// added request and the waker of the refused one. `None` if the queue has no room at all (`waiting_max`
    /// is 0).
    fn enqueue(&mut self, waker: &Waker) -> Option<(u64, Option<Waker>)> {
        if self.waiting_max == 0 {
            return None;
        }
        let shed = if self.waiting.len() >= self.waiting_max { self.refuse_oldest() } else { None };
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert(number, waker.clone());
        Some((number, shed))
    }

    fn refuse_oldest(&mut self) -> Option<Waker> {
        let (number, waker) = self.waiting.pop_first()?;
        self.outcomes.insert(number, WaitOutcome::Refused(QueueRefusal::Full));
        Some(waker)
    }

    /// Gives free permits to the requests that have waited longest. Returns their wakers.
    fn grant_permits(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.active < self.active_max
            && let Some((number, waker)) = self.waiting.pop_first()
        {
            self.active += 1;
            self.outcomes.insert(number, WaitOutcome::Admitted);
            woken.push(waker);
        }
        woken
    }

    /// Returns the permit of a request that has left the handler. Returns the wakers of admitted requests.
    fn release(&mut self) -> Vec<Waker> {
        self.active -= 1;
        self.grant_permits()
    }
}

/// Queue of one route, shared by all cores.
#[derive(Debug)]
pub(crate) struct RouteQueue {
    labels: RouteLabels,
    requests: Mutex<WaitingRequests>,
    full: Arc<RuleCounter>,
    age: Arc<RuleCounter>,
}

impl RouteQueue {
    fn new(options: &RequestQueue, place: RouteLabels, counters: &RuleCounters) -> RouteQueue {
        let [full, age] = QueueRefusal::ALL.map(|(_, reason)| {
            let labels = vec![
                ("site", place.site.clone()),
                ("route", place.route.clone()),
                ("reason", reason.to_owned()),
            ];
            counters.counter("komainu_queue_shed", labels)
        });
        RouteQueue { labels: place, requests: Mutex::new(WaitingRequests::new(options)), full, age }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limits, also for requests that are waiting.
    fn apply(&self, options: &RequestQueue) {
        let mut requests = self.lock();
        requests.active_max = options.active_max as usize;
        requests.waiting_max = options.waiting_max as usize;
        let mut woken = requests.grant_permits();
        while requests.waiting.len() > requests.waiting_max {
            woken.extend(requests.refuse_oldest());
        }
        drop(requests);
        woken.into_iter().for_each(Waker::wake);
    }

    fn release(&self) {
        let woken = self.lock().release();
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Permit for the handler of a route. Dropping it admits the next waiting request.
pub struct HandlerPermit(Arc<RouteQueue>);

impl Drop for HandlerPermit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A waiting request. Dropping it leaves the queue and returns a permit that has not been polled.
struct QueuedRequest<'q> {
    queue: &'q Arc<RouteQueue>,
    /// `None` before the request has joined the queue, and after its outcome has been returned.
    number: Option<u64>,
}

impl QueuedRequest<'_> {
    /// Polls the outcome. While it is pending, the waker of `cx` is woken when it is known.
    fn poll(&mut self, cx: &Context<'_>) -> Poll<WaitOutcome> {
        let mut requests = self.queue.lock();
        let Some(number) = self.number else {
            if requests.try_acquire() {
                return Poll::Ready(WaitOutcome::Admitted);
            }
            let Some((number, shed)) = requests.enqueue(cx.waker()) else {
                return Poll::Ready(WaitOutcome::Refused(QueueRefusal::Full));
            };
            self.number = Some(number);
            drop(requests);
            shed.into_iter().for_each(Waker::wake);
            return Poll::Pending;
        };
        if let Some(outcome) = requests.outcomes.remove(&number) {
            self.number = None;
            return Poll::Ready(outcome);
        }
        if let Some(waker) = requests.waiting.get_mut(&number) {
            waker.clone_from(cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut requests = self.queue.lock();
        requests.waiting.remove(&number);
        if requests.outcomes.remove(&number) != Some(WaitOutcome::Admitted) {
            return;
        }
        let woken = requests.release();
        drop(requests);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Queue of a route, as used by one core.
pub struct QueueRule {
    queue: Arc<RouteQueue>,
    age: Millis,
    notices: Option<ErrorLog>,
}

impl QueueRule {
    /// Waits for a permit for the handler. `None` if the request has been answered instead.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn acquire(&self, exchange: &mut Exchange<'_>) -> Result<Option<HandlerPermit>, Fault> {
        let entered = self.queue.lock().try_acquire();
        if entered {
            let notes = exchange.notes();
            notes.queue_us = notes.queue_us.or(Some(0));
            return Ok(Some(HandlerPermit(self.queue.clone())));
        }
        // Boxed because it is rare.
        Box::pin(self.wait(exchange)).await
    }

    async fn wait(&self, exchange: &mut Exchange<'_>) -> Result<Option<HandlerPermit>, Fault> {
        let since_us = exchange.core().now_us();
        exchange.hold(WAITING_BYTES);
        let outcome = {
            let mut request = QueuedRequest { queue: &self.queue, number: None };
            let mut too_long = pin!(exchange.core().sleep(self.age));
            poll_fn(|cx| {
                if let Poll::Ready(outcome) = request.poll(cx) {
                    return Poll::Ready(Ok(outcome));
                }
                if exchange.poll_disconnected(cx) {
                    return Poll::Ready(Err(Fault::Disconnected));
                }
                too_long.as_mut().poll(cx).map(|()| Ok(WaitOutcome::Refused(QueueRefusal::Age)))
            })
            .await
        };
        // From here on, dropping `place` returns the permit.
        let place = matches!(outcome, Ok(WaitOutcome::Admitted)).then(|| HandlerPermit(self.queue.clone()));
        exchange.hold(0);
        let waited_us = exchange.core().now_us().saturating_sub(since_us);
        let notes = exchange.notes();
        notes.queue_us = Some(notes.queue_us.unwrap_or(0) + waited_us);
        match outcome? {
            WaitOutcome::Admitted => {}
            WaitOutcome::Refused(reason) => self.refuse(exchange, reason).await?,
        }
        Ok(place)
    }

    async fn refuse(&self, exchange: &mut Exchange<'_>, reason: QueueRefusal) -> Result<(), Fault> {
        let RouteLabels { site, route, .. } = &self.queue.labels;
        let (counter, what) = match reason {
            QueueRefusal::Full => (&self.queue.full, "is full: the oldest requests are refused"),
            QueueRefusal::Age => (&self.queue.age, "is slow: requests that waited for `age` are refused"),
        };
        counter.add(1);
        if let Some(notices) = &self.notices {
            let kind = format!("`queue` of site {site}, route {route} {what}");
            notices.throttled(Level::Warn, kind.clone(), || kind);
        }
        let mut fields = Fields::new();
        // After `age`, all requests that wait at present have been served or refused.
        let retry_s = self.age.seconds_rounded_up().max(1);
        fields.push(Name::RetryAfter, retry_s.to_string().as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange.refuse_with(Status::SERVICE_UNAVAILABLE, reason.reason_text(), &fields).await
    }
}

/// Queue of a route with its limits in this configuration.
type ConfiguredQueue = (RequestQueue, Arc<RouteQueue>);

/// Queues of a configuration, by site and route.
#[derive(Default)]
pub struct QueuePlan(Vec<Vec<Option<ConfiguredQueue>>>);

impl QueuePlan {
    /// Creates the queues. A route that had one keeps it with its requests.
    pub fn new(config: &Config, kept: &mut KeptState, counters: &RuleCounters) -> QueuePlan {
        let mut queue = |site: &config::Site, route: &config::Route| {
            let options = route.queue.clone().filter(|_| route.part_of.is_none())?;
            let place = RouteLabels { handler: String::new(), ..RouteLabels::of(site, route) };
            let queue = kept.keep(place.clone(), || Arc::new(RouteQueue::new(&options, place, counters)));
            Some((options, queue))
        };
        let of_site = |site: &Arc<config::Site>| site.routes.iter().map(|route| queue(site, route)).collect();
        QueuePlan(config.sites.iter().map(of_site).collect())
    }

    fn all(&self) -> impl Iterator<Item = &ConfiguredQueue> {
        self.0.iter().flatten().flatten()
    }

    /// Puts the limits of this configuration into effect.
    pub fn apply(&self) {
        self.all().for_each(|(options, queue)| queue.apply(options));
    }

    /// Returns the queue of a route for one core. Branches share the queue of their route; mirrored requests
    /// are not queued.
    pub fn of(&self, config: &Config, id: RouteId, notices: Option<&ErrorLog>) -> Option<QueueRule> {
        let index = match &config.route(id).part_of {
            None => id.route,
            Some(PartOf { kind: HiddenRouteKind::Mirror | HiddenRouteKind::ErrorServer, .. }) => return None,
            Some(PartOf { route, .. }) => *route,
        };
        let (options, queue) = self.0.get(id.site)?.get(index)?.as_ref()?;
        Some(QueueRule { queue: queue.clone(), age: options.age.into(), notices: notices.cloned() })
    }

    /// Returns the metrics of all queues.
    pub fn metrics(&self) -> Vec<QueueMetrics> {
        let metrics = |(_, queue): &ConfiguredQueue| {
            let requests = queue.lock();
            QueueMetrics {
                site: queue.labels.site.clone(),
                route: queue.labels.route.clone(),
                active: requests.active as u64,
                waiting: requests.waiting.len() as u64,
            }
        };
        self.all().map(metrics).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue(active_max: u32, waiting_max: u32) -> Arc<RouteQueue> {
        let options = RequestQueue { active_max, waiting_max, age: Duration::from_secs(5) };
        Arc::new(RouteQueue::new(&options, RouteLabels::default(), &RuleCounters::default()))
    }

    fn poll(request: &mut QueuedRequest<'_>) -> Poll<WaitOutcome> {
        request.poll(&Context::from_waker(Waker::noop()))
    }

    fn counts(queue: &RouteQueue) -> (usize, usize) {
        let requests = queue.lock();
        assert!(requests.outcomes.is_empty(), "{requests:?}");
        (requests.active, requests.waiting.len())
    }

    const ADMITTED: Poll<WaitOutcome> = Poll::Ready(WaitOutcome::Admitted);
    const FULL: Poll<WaitOutcome> = Poll::Ready(WaitOutcome::Refused(QueueRefusal::Full));

    #[test]
    fn waiting_requests_are_admitted_in_order() {
        let queue = queue(1, 10);
        let mut requests = [(); 3].map(|()| QueuedRequest { queue: &queue, number: None });
        let [first, second, third] = &mut requests;
        assert_eq!(poll(first), ADMITTED);
        assert!(poll(second).is_pending() && poll(third).is_pending());
        queue.release();
        assert!(!queue.lock().try_acquire());
        assert!(poll(third).is_pending());
        assert_eq!(poll(second), ADMITTED);
        queue.release();
        assert_eq!(poll(third), ADMITTED);
        queue.release();
        assert_eq!(counts(&queue), (0, 0));
    }

    #[test]
    fn full_queue_refuses_the_oldest_request() {
        let queue = queue(1, 2);
        assert!(queue.lock().try_acquire());
        let mut requests = [(); 4].map(|()| QueuedRequest { queue: &queue, number: None });
        assert!(requests.iter_mut().all(|request| poll(request).is_pending()));
        let [first, second, third, fourth] = &mut requests;
        assert_eq!((poll(first), poll(second)), (FULL, FULL));
        queue.release();
        assert_eq!(poll(third), ADMITTED);
        assert!(poll(fourth).is_pending());
        drop(requests);
        assert_eq!(counts(&queue), (1, 0));
    }

    #[test]
    fn abandoned_request_returns_its_slot() {
        let queue = queue(1, 10);
        assert!(queue.lock().try_acquire());
        let mut requests: Vec<_> = (0..3).map(|_| QueuedRequest { queue: &queue, number: None }).collect();
        assert!(requests.iter_mut().all(|request| poll(request).is_pending()));
        queue.release();
        // The first request has been admitted but not polled.
        requests.remove(0);
        assert_eq!(poll(&mut requests[0]), ADMITTED);
        drop(requests);
        assert_eq!(counts(&queue), (1, 0));
    }

    #[test]
    fn changed_queue_limits_apply_immediately() {
        let queue = queue(1, 0);
        let options = |active_max, waiting_max| RequestQueue { active_max, waiting_max, age: Duration::ZERO };
        assert!(queue.lock().try_acquire());
        assert_eq!(poll(&mut QueuedRequest { queue: &queue, number: None }), FULL);
        queue.apply(&options(1, 4));
        let mut requests: Vec<_> = (0..4).map(|_| QueuedRequest { queue: &queue, number: None }).collect();
        assert!(requests.iter_mut().all(|request| poll(request).is_pending()));
        queue.apply(&options(2, 2));
        let outcomes: Vec<_> = requests.iter_mut().map(poll).collect();
        assert_eq!(outcomes, [ADMITTED, FULL, Poll::Pending, Poll::Pending]);
        // The limit is lower than the number of requests in the handler: none is admitted until enough have
        // left.
        queue.apply(&options(1, 2));
        queue.release();
        assert!(poll(&mut requests[2]).is_pending());
        queue.release();
        assert_eq!(poll(&mut requests[2]), ADMITTED);
    }
}
