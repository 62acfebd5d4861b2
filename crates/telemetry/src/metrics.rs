//! Request counters by route. Each core writes its own cells, which are summed when they are read, so
//! counting takes no lock and no atomic read-modify-write. Labels come from the configuration only, never
//! from a client.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use config::{Action, HiddenRouteKind};
use http::TraceSpan;
use logging::access::stream::StreamEnd;
use net::{CacheOutcome, Counter, DropReason, DurationHistogram, RequestRecord};

/// Lowest status code that is counted; codes 100 to 599 are.
pub const STATUS_MIN: u16 = 100;
/// Number of status codes that are counted, from 100.
pub const STATUSES: usize = 500;

/// Labels under which requests are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteLabels {
    /// The first host of the site; `*` for the default site; empty for requests that no site answers.
    pub site: String,
    /// The paths of the route; empty if no route matched.
    pub route: String,
    /// `files`, `proxy`, `redirect`, `respond`, `split`, `rewrite`, or `app` or `branch` with its name. A
    /// route with files and a fallback handler has both: `files, app shop`.
    pub handler: String,
}

impl RouteLabels {
    /// The labels of a route.
    pub fn of(site: &config::Site, route: &config::Route) -> RouteLabels {
        let branch = route.part_of.as_ref().and_then(|of| match &of.kind {
            HiddenRouteKind::Branch(name) => Some(format!("branch {name}")),
            HiddenRouteKind::Mirror | HiddenRouteKind::ErrorServer => None,
        });
        let name = |action: &Action| match action {
            Action::Files(_) => "files".to_owned(),
            Action::Proxy(_) => "proxy".to_owned(),
            Action::App(mounted) => format!("app {}", mounted.name),
            Action::Redirect(_) => "redirect".to_owned(),
            Action::Respond(_) | Action::NotFound => "respond".to_owned(),
            Action::Split(_) => "split".to_owned(),
            Action::RewriteOnly => "rewrite".to_owned(),
        };
        let names = || std::iter::once(&route.action).chain(&route.otherwise).map(name).collect::<Vec<_>>();
        let handler = branch.unwrap_or_else(|| names().join(", "));
        let paths: Vec<String> = route.path.iter().map(ToString::to_string).collect();
        let route = if paths.is_empty() { "*".to_owned() } else { paths.join(" ") };
        RouteLabels { site: RouteLabels::of_site(site), route, handler }
    }

    /// The label of a site.
    pub fn of_site(site: &config::Site) -> String {
        let host = site.hosts.first().map_or_else(|| "*".to_owned(), ToString::to_string);
        // Another site may have the same host at different addresses.
        match site.listen.first() {
            Some(listener) => format!("{host} {}", listener.address),
            None => host,
        }
    }

    /// The route's paths for display; `any` if no route matched.
    pub fn route_name(&self) -> &str {
        if self.route.is_empty() { "any" } else { &self.route }
    }
}

/// A request of a duration bucket, with its trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedRequest {
    pub(crate) trace: TraceSpan,
    pub(crate) duration_us: u64,
    pub(crate) unix_s: u64,
}

/// One core's counters for one set of labels.
#[derive(Debug)]
pub struct RouteCounters {
    /// Number of responses by status, from [`STATUS_MIN`].
    pub statuses: Box<[Counter]>,
    /// Bytes of request bodies.
    pub request_bytes: Counter,
    /// Bytes of response bodies.
    pub response_bytes: Counter,
    /// Times to the last byte.
    pub duration: DurationHistogram,
    /// Times to the first byte.
    pub first_byte: DurationHistogram,
    /// Waiting times of requests for an upstream server or a worker.
    pub queue: DurationHistogram,
    /// CPU time of the server, estimated: see [`crate::costs`].
    pub server_cpu: CpuEstimate,
    /// CPU time of workers, estimated.
    pub worker_cpu: CpuEstimate,
    /// Requests by outcome in the cache.
    pub cache: [Counter; CacheOutcome::ALL.len()],
    /// The last request with a sampled trace, by duration bucket. Only these requests take the lock.
    pub(crate) traced: Mutex<BTreeMap<usize, TracedRequest>>,
}

/// CPU time of requests, extrapolated from those that were measured.
#[derive(Debug, Default)]
pub struct CpuEstimate {
    /// Microseconds of CPU time.
    pub us: Counter,
    /// Number of requests that this time covers.
    pub requests: Counter,
}

impl CpuEstimate {
    fn add(&self, us: Option<u64>, weight: u32) {
        if let Some(us) = us {
            self.us.add(us * u64::from(weight));
            self.requests.add(weight.into());
        }
    }
}

impl RouteCounters {
    fn new() -> RouteCounters {
        RouteCounters {
            statuses: (0..STATUSES).map(|_| Counter::default()).collect(),
            request_bytes: Counter::default(),
            response_bytes: Counter::default(),
            duration: DurationHistogram::default(),
            first_byte: DurationHistogram::default(),
            queue: DurationHistogram::default(),
            server_cpu: CpuEstimate::default(),
            worker_cpu: CpuEstimate::default(),
            cache: Default::default(),
            traced: Mutex::default(),
        }
    }

    fn count(&self, record: &RequestRecord<'_>) {
        let status = usize::from(record.status.code().saturating_sub(STATUS_MIN)).min(STATUSES - 1);
        self.statuses[status].add(1);
        self.response_bytes.add(record.body_bytes);
        self.duration.observe(record.duration_us);
        self.first_byte.observe(record.first_byte_us);
        if record.request_bytes > 0 {
            self.request_bytes.add(record.request_bytes);
        }
        if let Some(queue_us) = record.notes.queue_us {
            self.queue.observe(queue_us);
        }
        if record.notes.cpu_weight > 0 {
            self.server_cpu.add(record.notes.server_cpu_us(), record.notes.cpu_weight);
            self.worker_cpu.add(record.notes.worker_cpu_us.map(u64::from), record.notes.cpu_weight);
        }
        if let Some(outcome) = record.notes.cache {
            self.cache[outcome as usize].add(1);
        }
        let trace = record.request.as_ref().and_then(|request| request.ids().trace);
        if let Some(trace) = trace.filter(|trace| trace.is_sampled) {
            let duration_us = record.duration_us;
            let unix_s = record.unix_s;
            let mut traced = self.traced.lock().unwrap_or_else(PoisonError::into_inner);
            traced.insert(
                DurationHistogram::class_of(duration_us),
                TracedRequest { trace, duration_us, unix_s },
            );
        }
    }
}

/// Labels under which stream connections are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamLabels {
    /// The stream's name; empty for connections that no stream accepts.
    pub stream: String,
    /// The URL of the upstream server; empty for connections without one.
    pub upstream: String,
}

/// One core's counters of a stream and one of its upstream servers.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Number of relayed connections.
    pub connections: Counter,
    /// Bytes relayed from clients to the server.
    pub received_bytes: Counter,
    /// Bytes relayed from the server to clients.
    pub sent_bytes: Counter,
    /// Datagrams relayed from clients to the server.
    pub received_datagrams: Counter,
    /// Datagrams relayed from the server to clients.
    pub sent_datagrams: Counter,
    /// Dropped datagrams by reason, indexed like [`DropReason::NAMES`].
    pub(crate) dropped_datagrams: [Counter; DropReason::NAMES.len()],
    /// Ended connections by reason, indexed like [`StreamEnd::KINDS`].
    pub(crate) ends: [Counter; StreamEnd::KINDS.len()],
}

impl StreamCounters {
    /// Counts a connection that has ended.
    pub fn count_end(&self, end: StreamEnd) {
        self.ends[end.kind()].add(1);
    }

    /// Counts dropped datagrams.
    pub fn count_dropped(&self, reason: DropReason, datagrams: u64) {
        self.dropped_datagrams[reason.index()].add(datagrams);
    }
}

/// Routes with requests that are counted apart, at most: their counters take 10 KB on each core. Others are counted together.
const COUNTED_MAX: usize = 4_000;
/// Routes of which those without requests are shown, too, at most.
const IDLE_MAX: usize = 1_000;
/// Labels that are kept although no configuration has them, at least.
const FORGOTTEN_MAX: usize = 1_000;

/// The counters of all cores. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<LabelCounters>>);

#[derive(Debug, Default)]
struct LabelCounters {
    /// Routes by number; number 0 is for requests that match no route.
    routes: Vec<CountedRoute>,
    numbers: HashMap<RouteLabels, usize>,
    /// Numbers of forgotten routes.
    free: Vec<usize>,
    /// Number of routes at which those that no configuration has are forgotten.
    forget_at: usize,
    /// How often routes were forgotten.
    version: u64,
    /// Counters of each core for the routes above [`COUNTED_MAX`].
    others: Vec<Arc<RouteCounters>>,
    /// Stream counters by labels, of each core.
    streams: BTreeMap<StreamLabels, Vec<Arc<StreamCounters>>>,
    /// Number of streams at which those that no configuration and no connection has are forgotten.
    forget_streams_at: usize,
}

#[derive(Debug)]
struct CountedRoute {
    labels: RouteLabels,
    label: RouteLabel,
    /// Counters of each core that has served it.
    cores: Vec<Arc<RouteCounters>>,
}

/// The number of a route's labels. As long as a clone of it exists, the number is of these labels.
#[derive(Clone, Debug, Default)]
pub struct RouteLabel {
    number: usize,
    is_used: Arc<()>,
}

impl RouteLabel {
    /// Returns the number, which requests are counted by.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl LabelCounters {
    fn label(&mut self, labels: &RouteLabels) -> RouteLabel {
        if let Some(number) = self.numbers.get(labels) {
            return self.routes[*number].label.clone();
        }
        if self.numbers.len() >= self.forget_at.max(FORGOTTEN_MAX) {
            self.forget_unused();
        }
        let number = self.free.pop().unwrap_or(self.routes.len());
        let label = RouteLabel { number, is_used: Arc::default() };
        let route = CountedRoute { labels: labels.clone(), label: label.clone(), cores: Vec::new() };
        match self.routes.get_mut(number) {
            Some(free) => *free = route,
            None => self.routes.push(route),
        }
        self.numbers.insert(labels.clone(), number);
        label
    }

    /// Forgets the routes that no configuration has. A changing configuration would fill the memory.
    fn forget_unused(&mut self) {
        for (number, route) in self.routes.iter_mut().enumerate().skip(1) {
            let is_known = self.numbers.get(&route.labels) == Some(&number);
            if is_known && Arc::strong_count(&route.label.is_used) == 1 {
                self.numbers.remove(&route.labels);
                route.cores = Vec::new();
                self.free.push(number);
            }
        }
        self.version += 1;
        self.forget_at = 2 * self.numbers.len();
    }

    fn has_too_many_counted(&self) -> bool {
        self.routes.iter().filter(|route| !route.cores.is_empty()).count() >= COUNTED_MAX
    }
}

/// One core's counters.
#[derive(Debug)]
pub struct CoreMetrics {
    metrics: Metrics,
    /// Counters by label number.
    counters: RefCell<Vec<Option<Arc<RouteCounters>>>>,
    /// How often routes had been forgotten when the counters were compared.
    version: Cell<u64>,
    /// Counters of the routes that are not counted apart.
    others: OnceCell<Arc<RouteCounters>>,
    streams: RefCell<BTreeMap<StreamLabels, Arc<StreamCounters>>>,
}

impl Metrics {
    /// Creates the counters of another core.
    pub fn core(&self) -> CoreMetrics {
        let core = CoreMetrics {
            metrics: self.clone(),
            counters: RefCell::default(),
            version: Cell::default(),
            others: OnceCell::new(),
            streams: RefCell::default(),
        };
        core.label(&RouteLabels::default());
        core
    }

    /// Calls `visit` with each set of labels and its counters on all cores. With many routes, those without requests are left
    /// out. Requests of routes that are not counted apart have the handler `others`.
    pub fn for_each(&self, mut visit: impl FnMut(&RouteLabels, &[Arc<RouteCounters>])) {
        let registered = self.registered();
        let shows_idle = registered.numbers.len() <= IDLE_MAX;
        for (number, route) in registered.routes.iter().enumerate() {
            let is_known = registered.numbers.get(&route.labels) == Some(&number);
            let is_idle = route.cores.is_empty();
            if is_known && (!is_idle || (shows_idle && Arc::strong_count(&route.label.is_used) > 1)) {
                visit(&route.labels, &route.cores);
            }
        }
        if !registered.others.is_empty() {
            let labels = RouteLabels { handler: "others".to_owned(), ..RouteLabels::default() };
            visit(&labels, &registered.others);
        }
    }

    /// Calls `visit` with each stream and server and its counters on all cores.
    pub(crate) fn for_each_stream(&self, mut visit: impl FnMut(&StreamLabels, &[Arc<StreamCounters>])) {
        self.registered().streams.iter().for_each(|(labels, cores)| visit(labels, cores));
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, LabelCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CoreMetrics {
    /// Returns the number of a set of labels. Called when the configuration is loaded; existing routes keep
    /// their counters.
    pub fn label(&self, labels: &RouteLabels) -> RouteLabel {
        let mut registered = self.metrics.registered();
        let label = registered.label(labels);
        if self.version.replace(registered.version) != registered.version {
            // Numbers may be of other routes now.
            for (number, counters) in self.counters.borrow_mut().iter_mut().enumerate() {
                let is_of = |own: &Arc<RouteCounters>| {
                    registered.routes[number].cores.iter().any(|known| Arc::ptr_eq(known, own))
                };
                if !counters.as_ref().is_some_and(is_of) {
                    *counters = None;
                }
            }
        }
        label
    }

    /// Returns this core's counters of a label, which are made with the first request: they take 10 KB, and most of thousands of
    /// routes may be idle.
    fn first_counters(&self, label: usize) -> Option<Arc<RouteCounters>> {
        let mut registered = self.metrics.registered();
        let mut own = self.counters.borrow_mut();
        let is_new = registered.routes.get(label)?.cores.is_empty();
        let counters = if is_new && registered.has_too_many_counted() {
            let new = || {
                let new = Arc::new(RouteCounters::new());
                registered.others.push(new.clone());
                new
            };
            self.others.get_or_init(new).clone()
        } else {
            let new = Arc::new(RouteCounters::new());
            registered.routes[label].cores.push(new.clone());
            new
        };
        if own.len() <= label {
            own.resize(label + 1, None);
        }
        own[label] = Some(counters.clone());
        Some(counters)
    }

    /// This core's counters of a stream and a server. Called when the configuration is loaded; existing ones
    /// are kept.
    pub fn stream(&self, labels: &StreamLabels) -> Arc<StreamCounters> {
        let mut own = self.streams.borrow_mut();
        if let Some(known) = own.get(labels) {
            return known.clone();
        }
        let counters = Arc::new(StreamCounters::default());
        let mut registered = self.metrics.registered();
        if registered.streams.len() >= registered.forget_streams_at.max(FORGOTTEN_MAX) {
            // The registry and a core have the counters of streams that no configuration and no connection has.
            registered.streams.retain(|_, cores| {
                cores.retain(|counters| Arc::strong_count(counters) > 2);
                !cores.is_empty()
            });
            registered.forget_streams_at = 2 * registered.streams.len();
        }
        if own.len() > registered.streams.len() {
            own.retain(|_, known| Arc::strong_count(known) > 1);
        }
        registered.streams.entry(labels.clone()).or_default().push(counters.clone());
        own.insert(labels.clone(), counters.clone());
        counters
    }

    /// The labels with this number; empty ones for an unknown number.
    pub fn labels(&self, label: usize) -> RouteLabels {
        self.metrics.registered().routes.get(label).map(|route| route.labels.clone()).unwrap_or_default()
    }

    /// Counts a completed request.
    pub fn count(&self, record: &RequestRecord<'_>) {
        if let Some(Some(counters)) = self.counters.borrow().get(record.label) {
            counters.count(record);
            return;
        }
        if let Some(counters) = self.first_counters(record.label) {
            counters.count(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(at: usize) -> RouteLabels {
        RouteLabels { site: format!("{at}.example"), route: "/*".to_owned(), handler: "files".to_owned() }
    }

    fn shown(metrics: &Metrics) -> Vec<(String, u64)> {
        let mut shown = Vec::new();
        metrics.for_each(|labels, cores| {
            let bytes = cores.iter().map(|core| core.response_bytes.value()).sum();
            shown.push((format!("{}{}", labels.site, labels.handler), bytes));
        });
        shown
    }

    #[test]
    fn routes_of_earlier_configurations_are_forgotten() {
        let metrics = Metrics::default();
        let cores = [metrics.core(), metrics.core()];
        let kept = [cores[0].label(&labels(0)), cores[1].label(&labels(0))];
        cores[1].first_counters(kept[1].number()).unwrap().response_bytes.add(7);
        for at in 1..100_000 {
            // A configuration of one other route.
            let label = cores[0].label(&labels(at));
            assert!(label.number() <= 2 * FORGOTTEN_MAX, "{label:?}");
            if at % 100 == 0 {
                cores[0].first_counters(label.number()).unwrap();
                cores[1].label(&labels(at));
                cores[1].first_counters(label.number()).unwrap();
            }
        }
        assert_eq!(cores[1].labels(kept[1].number()), labels(0));
        cores[0].label(&labels(0));
        cores[1].label(&labels(0));
        assert!(shown(&metrics).contains(&("0.examplefiles".to_owned(), 7)));
        for core in &cores {
            let own = core.counters.borrow();
            let known = own.iter().flatten().count();
            assert!(own.len() <= 2 * FORGOTTEN_MAX && known <= 30, "{} {known}", own.len());
        }
    }

    #[test]
    fn number_of_another_route_has_counters_of_its_own() {
        let metrics = Metrics::default();
        let cores = [metrics.core(), metrics.core()];
        let first = labels(1);
        let number = cores[0].label(&first).number();
        cores[1].label(&first);
        for core in &cores {
            core.first_counters(number).unwrap().response_bytes.add(5);
        }
        let mut at = 2;
        let reused = loop {
            let label = cores[0].label(&labels(at));
            if label.number() == number {
                break label;
            }
            at += 1;
            assert!(at < 10_000);
        };
        cores[1].label(&labels(at));
        for core in &cores {
            assert!(core.counters.borrow()[number].is_none());
        }
        assert_eq!(cores[1].labels(reused.number()), labels(at));
        assert!(!shown(&metrics).iter().any(|(_, bytes)| *bytes > 0));
    }

    #[test]
    fn many_routes_are_counted_together() {
        let metrics = Metrics::default();
        let core = metrics.core();
        let all: Vec<RouteLabel> = (0..COUNTED_MAX + 500).map(|at| core.label(&labels(at))).collect();
        assert!(shown(&metrics).is_empty(), "idle routes are shown");
        for label in &all {
            core.first_counters(label.number()).unwrap().response_bytes.add(1);
        }
        let shown = shown(&metrics);
        assert_eq!(shown.len(), COUNTED_MAX + 1);
        assert_eq!(shown.last().unwrap(), &("others".to_owned(), 500));
    }

    #[test]
    fn streams_of_earlier_configurations_are_forgotten() {
        let metrics = Metrics::default();
        let core = metrics.core();
        let labels = |at: usize| StreamLabels { stream: at.to_string(), upstream: String::new() };
        let kept = core.stream(&labels(0));
        kept.connections.add(3);
        for at in 1..50_000 {
            core.stream(&labels(at));
        }
        assert!(Arc::ptr_eq(&kept, &core.stream(&labels(0))));
        let mut streams = 0;
        metrics.for_each_stream(|_, _| streams += 1);
        assert!(streams <= FORGOTTEN_MAX && core.streams.borrow().len() <= 2 * FORGOTTEN_MAX, "{streams}");
    }
}
