//! Request counters by route. Each core writes its own cells, which are summed when they are read, so
//! counting takes no lock and no atomic read-modify-write. Labels come from the configuration only, never
//! from a client.

use std::cell::RefCell;
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

/// The counters of all cores. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<LabelCounters>>);

#[derive(Debug, Default)]
struct LabelCounters {
    /// Labels by number; number 0 is for requests that match no route.
    labels: Vec<RouteLabels>,
    numbers: HashMap<RouteLabels, usize>,
    /// Counters of each core that has served a label, indexed by label number.
    counters: Vec<Vec<Arc<RouteCounters>>>,
    /// Stream counters by labels, of each core.
    streams: BTreeMap<StreamLabels, Vec<Arc<StreamCounters>>>,
}

/// One core's counters.
#[derive(Debug)]
pub struct CoreMetrics {
    metrics: Metrics,
    /// Counters by label number.
    counters: RefCell<Vec<Option<Arc<RouteCounters>>>>,
    streams: RefCell<BTreeMap<StreamLabels, Arc<StreamCounters>>>,
}

impl Metrics {
    /// Creates the counters of another core.
    pub fn core(&self) -> CoreMetrics {
        let core =
            CoreMetrics { metrics: self.clone(), counters: RefCell::default(), streams: RefCell::default() };
        core.label(&RouteLabels::default());
        core
    }

    /// Calls `visit` with each set of labels and its counters on all cores.
    pub fn for_each(&self, mut visit: impl FnMut(&RouteLabels, &[Arc<RouteCounters>])) {
        let registered = self.registered();
        registered.labels.iter().zip(&registered.counters).for_each(|(labels, cores)| visit(labels, cores));
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
    pub fn label(&self, labels: &RouteLabels) -> usize {
        let mut registered = self.metrics.registered();
        let known = registered.numbers.get(labels).copied();
        known.unwrap_or_else(|| {
            let label = registered.labels.len();
            registered.labels.push(labels.clone());
            registered.numbers.insert(labels.clone(), label);
            registered.counters.push(Vec::new());
            label
        })
    }

    /// Returns this core's counters of a label, which are made with the first request: they take 10 KB, and most of thousands of
    /// routes may be idle.
    fn first_counters(&self, label: usize) -> Option<Arc<RouteCounters>> {
        let mut registered = self.metrics.registered();
        let cores = registered.counters.get_mut(label)?;
        let counters = Arc::new(RouteCounters::new());
        cores.push(counters.clone());
        let mut own = self.counters.borrow_mut();
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
        let new = || {
            let counters = Arc::new(StreamCounters::default());
            let mut registered = self.metrics.registered();
            registered.streams.entry(labels.clone()).or_default().push(counters.clone());
            counters
        };
        own.entry(labels.clone()).or_insert_with(new).clone()
    }

    /// The labels with this number; empty ones for an unknown number.
    pub fn labels(&self, label: usize) -> RouteLabels {
        self.metrics.registered().labels.get(label).cloned().unwrap_or_default()
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
