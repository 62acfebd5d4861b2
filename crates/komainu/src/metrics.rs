//! What is counted of requests, by route. Each core writes cells of its own, which are summed when they are read: no request takes a lock or an
//! atomic read-modify-write. Labels come from the configuration alone, never from a client.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

<<<<<<< HEAD
use config::Action;
use net::{Counter, Counters, RequestRecord};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
=======
use net::{CacheOutcome, Counter, DurationHistogram, RequestRecord};
>>>>>>> main

/// Statuses are counted each: 100 to 599.
pub(crate) const STATUS_MIN: u16 = 100;
pub(crate) const STATUSES: usize = 500;

/// What requests are counted under.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteLabels {
    /// The first host of the site; `*` for the default site; empty for requests that no site answers.
    pub(crate) site: String,
    /// The paths of the route; empty where no route answers.
    pub(crate) route: String,
    /// `files`, `proxy`, `redirect`, `respond`, or `app` with its name.
    pub(crate) handler: String,
}

impl RouteLabels {
    /// What the requests of a route are counted under.
    pub(crate) fn of(site: &config::Site, route: &config::Route) -> RouteLabels {
        let handler = match &route.action {
            Action::Files(_) => "files".to_owned(),
            Action::Proxy(_) => "proxy".to_owned(),
            Action::App(mounted) => format!("app {}", mounted.name),
            Action::Redirect(_) => "redirect".to_owned(),
            Action::Respond(_) | Action::NotFound => "respond".to_owned(),
        };
        let paths: Vec<String> = route.path.iter().map(ToString::to_string).collect();
        let route = if paths.is_empty() { "*".to_owned() } else { paths.join(" ") };
        RouteLabels { site: RouteLabels::of_site(site), route, handler }
    }

    /// The label of a site.
    pub(crate) fn of_site(site: &config::Site) -> String {
        site.hosts.first().map_or_else(|| "*".to_owned(), ToString::to_string)
    }

    /// Its route, for people.
    pub(crate) fn route_name(&self) -> &str {
        if self.route.is_empty() { "any" } else { &self.route }
    }
}

/// What one core has counted under one label.
#[derive(Debug)]
pub(crate) struct RouteCounters {
    /// From [`STATUS_MIN`] on.
    pub(crate) statuses: Box<[Counter]>,
    pub(crate) request_bytes: Counter,
    pub(crate) response_bytes: Counter,
    pub(crate) duration: DurationHistogram,
    pub(crate) first_byte: DurationHistogram,
    /// Of requests that may have to wait for an upstream server or a worker.
    pub(crate) queue: DurationHistogram,
    pub(crate) cache: [Counter; CacheOutcome::ALL.len()],
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
            cache: Default::default(),
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
        if let Some(outcome) = record.notes.cache {
            self.cache[outcome as usize].add(1);
        }
    }
}

/// The counters of all cores. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<LabelCounters>>);

#[derive(Debug, Default)]
struct LabelCounters {
    /// In order of their numbers; 0 is for requests that no route answers.
    labels: Vec<RouteLabels>,
    /// By label: the counters of each core that has served it.
    counters: Vec<Vec<Arc<RouteCounters>>>,
}

/// One core's counters.
#[derive(Debug)]
pub(crate) struct CoreMetrics {
    all: Metrics,
    /// By label.
    counters: RefCell<Vec<Option<Arc<RouteCounters>>>>,
}

impl Metrics {
    /// The counters of one more core.
    pub(crate) fn core(&self) -> CoreMetrics {
        let core = CoreMetrics { all: self.clone(), counters: RefCell::default() };
        core.label(&RouteLabels::default());
        core
    }

    /// Each label with the counters of the cores.
    pub(crate) fn each(&self, mut see: impl FnMut(&RouteLabels, &[Arc<RouteCounters>])) {
        let registered = self.registered();
        registered.labels.iter().zip(&registered.counters).for_each(|(labels, cores)| see(labels, cores));
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, LabelCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CoreMetrics {
    /// The number of a label. Called when the configuration is read: a route that stays keeps its counters.
    pub(crate) fn label(&self, labels: &RouteLabels) -> usize {
        let mut registered = self.all.registered();
        let known = registered.labels.iter().position(|other| other == labels);
        let label = known.unwrap_or_else(|| {
            registered.labels.push(labels.clone());
            registered.counters.push(Vec::new());
            registered.labels.len() - 1
        });
        let mut own = self.counters.borrow_mut();
        if own.len() <= label {
            own.resize(label + 1, None);
        }
        if own[label].is_none() {
            let counters = Arc::new(RouteCounters::new());
            registered.counters[label].push(counters.clone());
            own[label] = Some(counters);
        }
        label
    }

    /// Counts a request that is over.
    pub(crate) fn count(&self, record: &RequestRecord<'_>) {
        if let Some(Some(counters)) = self.counters.borrow().get(record.label) {
            counters.count(record);
        }
    }
}
<<<<<<< HEAD

/// A process of an application.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    pub(crate) app: String,
    pub(crate) state: String,
    pub(crate) pss_bytes: u64,
}

/// A limit on how often clients ask.
#[derive(Debug)]
pub(crate) struct LimitMetrics {
    pub(crate) site: String,
    /// Empty for a limit of a site.
    pub(crate) route: String,
    pub(crate) limit: String,
    pub(crate) is_dry: bool,
    pub(crate) refused: u64,
    pub(crate) delayed: u64,
    pub(crate) forgotten: u64,
    pub(crate) bytes: u64,
}

/// What is read from elsewhere at the time of a scrape.
#[derive(Debug)]
pub(crate) struct Gauges {
    pub(crate) cores: Vec<Arc<Counters>>,
    pub(crate) uptime_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) budget_bytes: u64,
    pub(crate) refused: u64,
    pub(crate) workers: Vec<WorkerMetrics>,
    pub(crate) limits: Vec<LimitMetrics>,
    /// Name and expiry, in seconds since 1970.
    pub(crate) certificates: Vec<(String, i64)>,
}

/// The text for Prometheus, in OpenMetrics' format 1.0, or in Prometheus' own, 0.0.4.
pub(crate) fn exposition(metrics: &Metrics, gauges: Gauges, is_open: bool) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { metrics: metrics.clone(), gauges }));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    if is_open { text } else { classic(&text) }
}

/// OpenMetrics names a family of counters without its `_total`; the older format with it.
fn classic(text: &str) -> String {
    let counter = |line: &'_ str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: Vec<String> = text.lines().filter_map(counter).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name)) if counters.iter().any(|counter| counter == name) => {
                out.push_str(&format!("# {kind} {name}_total {}\n", words.next().unwrap_or_default()));
            }
            _ => out.extend([line, "\n"]),
        }
    }
    out
}

/// Name, help and kind of a metric.
type Family = (&'static str, &'static str, MetricType);
/// A line's labels and value.
type MetricRow = (Vec<(&'static str, String)>, Sample);

/// One line's value, or the lines of a histogram.
#[derive(Clone, Debug)]
enum Sample {
    Count(u64),
    Seconds(f64),
    Number(f64),
    Durations { classes: Vec<u64>, total_us: u64 },
}

impl Sample {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Sample::Count(count) => encoder.encode_counter::<NoLabelSet, u64, u64>(count, None),
            Sample::Seconds(seconds) => encoder.encode_counter::<NoLabelSet, f64, f64>(seconds, None),
            Sample::Number(number) => encoder.encode_gauge(number),
            Sample::Durations { classes, total_us } => {
                let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds.zip(classes.iter().copied()).collect();
                let count = classes.iter().sum();
                encoder.encode_histogram::<NoLabelSet>(*total_us as f64 / 1e6, count, &buckets, None)
            }
        }
    }
}

/// What one scrape gets.
#[derive(Debug)]
struct Scrape {
    metrics: Metrics,
    gauges: Gauges,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families =
            requests(&self.metrics).into_iter().chain(server(&self.gauges)).chain(others(&self.gauges));
        let families = families.chain(limits(&self.gauges));
        for ((name, help, kind), rows) in families {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sample) in rows {
                match labels.is_empty() {
                    true => sample.encode(&mut metric)?,
                    false => sample.encode(&mut metric.encode_family(&labels)?)?,
                }
            }
        }
        Ok(())
    }
}

fn requests(metrics: &Metrics) -> Vec<(Family, Vec<MetricRow>)> {
    let registered = metrics.registered();
    let (mut statuses, mut bytes, mut durations) = (Vec::new(), Vec::new(), Vec::new());
    for (labels, cores) in registered.labels.iter().zip(&registered.counters) {
        let RouteLabels { site, route, handler } = labels;
        let labels = vec![("site", site.clone()), ("route", route.clone()), ("handler", handler.clone())];
        let sum = |of: &dyn Fn(&RouteCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        for at in 0..STATUSES {
            let count = sum(&|core| core.statuses[at].value());
            if count > 0 {
                let code = (usize::from(STATUS_MIN) + at).to_string();
                let labels = labels.iter().cloned().chain([("code", code)]);
                statuses.push((labels.collect(), Sample::Count(count)));
            }
        }
        bytes.push((labels.clone(), Sample::Count(sum(&|core| core.body_bytes.value()))));
        let classes = (0..=BOUNDS_US.len()).map(|at| sum(&|core| core.classes[at].value())).collect();
        let total_us = sum(&|core| core.duration_us.value());
        durations.push((labels, Sample::Durations { classes, total_us }));
    }
    let counter = |name, help| (name, help, MetricType::Counter);
    let duration = "From the whole head of a request to the end of its response.";
    vec![
        (counter("komainu_http_requests", "Requests answered, by status."), statuses),
        (counter("komainu_http_response_body_bytes", "Content bytes of responses."), bytes),
        (("komainu_http_request_duration_seconds", duration, MetricType::Histogram), durations),
    ]
}

fn server(gauges: &Gauges) -> Vec<(Family, Vec<MetricRow>)> {
    let sum = |of: &dyn Fn(&Counters) -> u64| gauges.cores.iter().map(|core| of(core)).sum::<u64>();
    let counter = |name, help, sample| ((name, help, MetricType::Counter), vec![(Vec::new(), sample)]);
    let gauge =
        |name, help, number| ((name, help, MetricType::Gauge), vec![(Vec::new(), Sample::Number(number))]);
    let count = |name, help, count| counter(name, help, Sample::Count(count));
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let open = sum(&|core| core.connections_open.value());
    vec![
        (
            ("komainu_build_info", "The version that runs.", MetricType::Gauge),
            vec![(version, Sample::Number(1.0))],
        ),
        count("komainu_connections", "Connections accepted.", sum(&|core| core.connections.value())),
        count(
            "komainu_invalid_requests",
            "Messages refused that were no requests.",
            sum(&|core| core.rejected.value()),
        ),
        count(
            "komainu_handler_panics",
            "Handlers that panicked: each is a bug.",
            sum(&|core| core.panics.value()),
        ),
        count("komainu_memory_refused_requests", "Requests refused for want of memory.", gauges.refused),
        counter(
            "komainu_cpu_seconds",
            "CPU time of the server, without its applications.",
            Sample::Seconds(gauges.cpu_s),
        ),
        gauge("komainu_connections_open", "Connections open now.", open as f64),
        gauge(
            "komainu_memory_held_bytes",
            "Held for clients and upstream servers.",
            gauges.held_bytes as f64,
        ),
        gauge(
            "komainu_memory_budget_bytes",
            "What may be held: `limits.memory`.",
            gauges.budget_bytes as f64,
        ),
        gauge(
            "komainu_resident_bytes",
            "Resident memory of the server, without its applications.",
            gauges.resident_bytes as f64,
        ),
        gauge("komainu_uptime_seconds", "Since the server started.", gauges.uptime_s),
    ]
}

/// Limits on how often clients ask. Those of one name at routes of one label are one line.
fn limits(gauges: &Gauges) -> Vec<(Family, Vec<MetricRow>)> {
    let sum = |of: fn(&LimitMetrics) -> u64| {
        let mut sums: BTreeMap<Vec<(&'static str, String)>, u64> = BTreeMap::new();
        for limit in &gauges.limits {
            let labels = vec![
                ("site", limit.site.clone()),
                ("route", limit.route.clone()),
                ("limit", limit.limit.clone()),
                ("dry_run", limit.is_dry.to_string()),
            ];
            *sums.entry(labels).or_default() += of(limit);
        }
        sums
    };
    let counts = |of| sum(of).into_iter().map(|(labels, count)| (labels, Sample::Count(count))).collect();
    let numbers = sum(|limit| limit.bytes).into_iter();
    let numbers = numbers.map(|(labels, bytes)| (labels, Sample::Number(bytes as f64))).collect();
    let counter = |name, help| (name, help, MetricType::Counter);
    vec![
        (
            counter("komainu_limit_refused", "Requests refused by a limit, or that a dry run would refuse."),
            counts(|limit| limit.refused),
        ),
        (counter("komainu_limit_delayed", "Requests delayed by a limit."), counts(|limit| limit.delayed)),
        (
            counter(
                "komainu_limit_forgotten_keys",
                "Keys that a limit has forgotten early, for want of room.",
            ),
            counts(|limit| limit.forgotten),
        ),
        (("komainu_limit_table_bytes", "Memory of a limit's keys.", MetricType::Gauge), numbers),
    ]
}

/// Applications and certificates.
fn others(gauges: &Gauges) -> Vec<(Family, Vec<MetricRow>)> {
    let mut states: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for worker in &gauges.workers {
        *states.entry((&worker.app, &worker.state)).or_default() += 1;
        *bytes.entry(&worker.app).or_default() += worker.pss_bytes;
    }
    let states = states.into_iter().map(|((app, state), count)| {
        (vec![("app", app.to_owned()), ("state", state.to_owned())], Sample::Number(count as f64))
    });
    let bytes =
        bytes.into_iter().map(|(app, bytes)| (vec![("app", app.to_owned())], Sample::Number(bytes as f64)));
    let certificates = gauges
        .certificates
        .iter()
        .map(|(name, unix_s)| (vec![("name", name.clone())], Sample::Number(*unix_s as f64)));
    let gauge = |name, help| (name, help, MetricType::Gauge);
    vec![
        (gauge("komainu_app_processes", "Processes of applications, by state."), states.collect()),
        (
            gauge("komainu_app_proportional_bytes", "Memory of an application's processes (PSS)."),
            bytes.collect(),
        ),
        (
            gauge(
                "komainu_certificate_expiry_timestamp_seconds",
                "When a certificate expires, in seconds since 1970.",
            ),
            certificates.collect(),
        ),
    ]
}
=======
>>>>>>> main
