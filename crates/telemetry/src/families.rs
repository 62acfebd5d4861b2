//! Metric families at the time of a scrape: request counters, and the state of connections, memory, upstream
//! servers, applications and certificates. Labels come from the configuration only, never from a client.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use apps::WorkerExit;
use logging::access::stream::StreamEnd;
use net::clock::Clock;
use net::durations::DURATION_CLASSES;
use net::{CacheOutcome, Counters, DropReason, DurationCounts, DurationHistogram};
use proxy::health::{ServerState, UpstreamOrder};
use proxy::{FAILURE_REASONS, GroupShared, UpstreamCounters};

use crate::gauges::Gauges;
use crate::metrics::{
    Metrics, RouteCounters, RouteLabels, STATUS_MIN, STATUSES, StreamCounters, StreamLabels, TracedRequest,
};
use crate::rule_counters::FAMILIES;

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FamilyKind {
    /// A value that only increases.
    Counter,
    /// A value that can go up and down.
    Gauge,
    /// Durations by bucket.
    Histogram,
}

/// Metrics with the same name.
#[derive(Debug)]
pub struct Family {
    /// Name without the suffix `_total` of counters.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: FamilyKind,
    pub(crate) rows: Vec<MetricRow>,
}

/// A metric's labels and value.
pub(crate) type MetricRow = (Vec<(&'static str, String)>, Sample);

/// The value of a metric.
#[derive(Clone, Debug)]
pub(crate) enum Sample {
    Count(u64),
    Seconds(f64),
    Number(f64),
    Durations(Box<DurationSample>),
}

/// Durations summed over all cores, and for each classic bucket the latest request with a sampled trace.
#[derive(Clone, Debug)]
pub(crate) struct DurationSample {
    pub(crate) counts: DurationCounts,
    pub(crate) traced: [Option<TracedRequest>; DURATION_CLASSES],
}

/// Collects all metric families.
pub fn collect_families(metrics: &Metrics, gauges: &Gauges) -> Vec<Family> {
    requests(metrics)
        .into_iter()
        .chain(server(gauges))
        .chain(upstreams(&gauges.upstreams))
        .chain(streams(metrics))
        .chain(applications(gauges))
        .chain(limits(gauges))
        .chain(queues(gauges))
        .chain(rules(gauges))
        .chain(certificates(gauges))
        .chain(cluster(gauges))
        .chain(kubernetes(gauges))
        .collect()
}

/// The latest request with a sampled trace on any core, by duration bucket.
fn latest_traced(cores: &[Arc<RouteCounters>]) -> [Option<TracedRequest>; DURATION_CLASSES] {
    let mut latest = [None::<TracedRequest>; DURATION_CLASSES];
    for core in cores {
        let traced = core.traced.lock().unwrap_or_else(PoisonError::into_inner);
        for (class, request) in traced.iter() {
            let before = latest[*class].map_or(0, |before| before.unix_s);
            if request.unix_s >= before {
                latest[*class] = Some(*request);
            }
        }
    }
    latest
}

/// Rows of one family, each with its labels.
#[derive(Default)]
struct Rows(Vec<MetricRow>);

impl Rows {
    fn count(&mut self, labels: Vec<(&'static str, String)>, count: u64) {
        self.0.push((labels, Sample::Count(count)));
    }

    fn gauge(&mut self, labels: Vec<(&'static str, String)>, number: f64) {
        self.0.push((labels, Sample::Number(number)));
    }

    fn durations<'h>(
        &mut self,
        labels: Vec<(&'static str, String)>,
        cores: impl Iterator<Item = &'h DurationHistogram>,
    ) {
        let sample = DurationSample { counts: DurationCounts::of(cores), traced: Default::default() };
        self.0.push((labels, Sample::Durations(Box::new(sample))));
    }

    fn counters(self, name: &'static str, help: &'static str) -> Family {
        Family { name, help, kind: FamilyKind::Counter, rows: self.0 }
    }

    fn gauges(self, name: &'static str, help: &'static str) -> Family {
        Family { name, help, kind: FamilyKind::Gauge, rows: self.0 }
    }

    fn histograms(self, name: &'static str, help: &'static str) -> Family {
        Family { name, help, kind: FamilyKind::Histogram, rows: self.0 }
    }
}

fn requests(metrics: &Metrics) -> Vec<Family> {
    let mut statuses = Rows::default();
    let mut received = Rows::default();
    let mut sent = Rows::default();
    let mut outcomes = Rows::default();
    let mut durations = Rows::default();
    let mut first_bytes = Rows::default();
    let mut queues = Rows::default();
    let mut cpu = Rows::default();
    let mut measured = Rows::default();
    metrics.for_each(|RouteLabels { site, route, handler }, cores| {
        let labels = vec![("site", site.clone()), ("route", route.clone()), ("handler", handler.clone())];
        let with = |name, value: String| labels.iter().cloned().chain([(name, value)]).collect::<Vec<_>>();
        let sum = |of: &dyn Fn(&RouteCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        for at in 0..STATUSES {
            let count = sum(&|core| core.statuses[at].value());
            if count > 0 {
                statuses.count(with("code", (usize::from(STATUS_MIN) + at).to_string()), count);
            }
        }
        for outcome in CacheOutcome::ALL {
            let count = sum(&|core| core.cache[outcome as usize].value());
            if count > 0 {
                outcomes.count(with("outcome", outcome.text().to_owned()), count);
            }
        }
        received.count(labels.clone(), sum(&|core| core.request_bytes.value()));
        sent.count(labels.clone(), sum(&|core| core.response_bytes.value()));
        first_bytes.durations(labels.clone(), cores.iter().map(|core| &core.first_byte));
        for side in ["server", "worker"] {
            let of = |core: &RouteCounters| {
                let estimate = if side == "server" { &core.server_cpu } else { &core.worker_cpu };
                (estimate.us.value(), estimate.requests.value())
            };
            let requests = sum(&|core| of(core).1);
            if requests > 0 {
                let seconds = sum(&|core| of(core).0) as f64 / 1e6;
                cpu.0.push((with("side", side.to_owned()), Sample::Seconds(seconds)));
                measured.count(with("side", side.to_owned()), requests);
            }
        }
        if cores.iter().any(|core| DurationCounts::of([&core.queue].into_iter()).count() > 0) {
            queues.durations(labels.clone(), cores.iter().map(|core| &core.queue));
        }
        let counts = DurationCounts::of(cores.iter().map(|core| &core.duration));
        let sample = DurationSample { counts, traced: latest_traced(cores) };
        durations.0.push((labels, Sample::Durations(Box::new(sample))));
    });
    vec![
        statuses.counters("komainu_http_requests", "Requests answered, by status."),
        received.counters("komainu_http_request_body_bytes", "Content bytes of requests that were read."),
        sent.counters("komainu_http_response_body_bytes", "Content bytes of responses."),
        durations.histograms(
            "komainu_http_request_duration_seconds",
            "From the whole head of a request to the end of its response.",
        ),
        first_bytes.histograms(
            "komainu_http_first_byte_seconds",
            "From the whole head of a request to the head of its response.",
        ),
        queues.histograms(
            "komainu_http_queue_seconds",
            "In the queue for an upstream server or a worker, of requests that were passed on.",
        ),
        cpu.counters(
            "komainu_http_cpu_seconds",
            "CPU time of handlers and workers, estimated from one request in 64.",
        ),
        measured.counters("komainu_http_cpu_requests", "The requests that this is the CPU time of."),
        outcomes.counters("komainu_cache_requests", "What the cache has done for requests."),
    ]
}

/// Stream metrics by stream and upstream server; empty without streams.
fn streams(metrics: &Metrics) -> Vec<Family> {
    let mut connections = Rows::default();
    let mut received = Rows::default();
    let mut sent = Rows::default();
    let mut received_datagrams = Rows::default();
    let mut sent_datagrams = Rows::default();
    let mut dropped_datagrams = Rows::default();
    let mut ends = Rows::default();
    metrics.for_each_stream(|StreamLabels { stream, upstream }, cores| {
        let labels = || vec![("stream", stream.clone()), ("upstream", upstream.clone())];
        let sum = |of: &dyn Fn(&StreamCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        if !upstream.is_empty() {
            connections.count(labels(), sum(&|core| core.connections.value()));
            received.count(labels(), sum(&|core| core.received_bytes.value()));
            sent.count(labels(), sum(&|core| core.sent_bytes.value()));
        }
        for (rows, count) in [
            (&mut received_datagrams, sum(&|core| core.received_datagrams.value())),
            (&mut sent_datagrams, sum(&|core| core.sent_datagrams.value())),
        ] {
            if count > 0 {
                rows.count(labels(), count);
            }
        }
        for (at, reason) in DropReason::NAMES.into_iter().enumerate() {
            let count = sum(&|core| core.dropped_datagrams[at].value());
            if count > 0 {
                let reason = [("reason", reason.to_owned())];
                dropped_datagrams.count(labels().into_iter().chain(reason).collect(), count);
            }
        }
        for (at, end) in StreamEnd::KINDS.into_iter().enumerate() {
            let count = sum(&|core| core.ends[at].value());
            if count > 0 {
                ends.count(labels().into_iter().chain([("end", end.to_owned())]).collect(), count);
            }
        }
    });
    if connections.0.is_empty() {
        return Vec::new();
    }
    vec![
        connections.counters("komainu_stream_connections", "Connections of streams that were relayed."),
        received.counters("komainu_stream_received_bytes", "Bytes of clients that the server has got."),
        sent.counters("komainu_stream_sent_bytes", "Bytes of the server that clients have got."),
        received_datagrams.counters(
            "komainu_stream_received_datagrams",
            "Datagrams of clients that were sent to the server.",
        ),
        sent_datagrams
            .counters("komainu_stream_sent_datagrams", "Datagrams of the server that were sent to clients."),
        dropped_datagrams
            .counters("komainu_stream_dropped_datagrams", "Datagrams that were dropped, by reason."),
        ends.counters("komainu_stream_ends", "Connections of streams that are over, by why they ended."),
    ]
}

/// Upstream metrics by server URL: groups that share a server are counted together.
fn upstreams(groups: &[Arc<GroupShared>]) -> Vec<Family> {
    let mut requests = Rows::default();
    let mut responses = Rows::default();
    let mut failures = Rows::default();
    let mut retries = Rows::default();
    let mut ejections = Rows::default();
    let mut active = Rows::default();
    let mut connects = Rows::default();
    let mut heads = Rows::default();
    let mut up = Rows::default();
    let mut drained = Rows::default();
    let mut servers: BTreeMap<&str, (&GroupShared, usize)> = BTreeMap::new();
    for group in groups {
        servers
            .extend((0..group.server_count()).map(|server| (group.display_name(server), (&**group, server))));
    }
    let now = Clock::new().now();
    for (url, (group, server)) in servers {
        let cores = group.counters(server);
        let labels = || vec![("server", url.to_owned())];
        let sum = |of: &dyn Fn(&UpstreamCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        // Read the ended counter first: a request that ends meanwhile would otherwise be counted as ended
        // only.
        let ended = sum(&|core| core.ended.value());
        let begun = sum(&|core| core.requests.value());
        requests.count(labels(), begun);
        active.gauge(labels(), begun.saturating_sub(ended) as f64);
        for (class, name) in ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate() {
            let count = sum(&|core| core.statuses[class].value());
            if count > 0 {
                responses.count(vec![("server", url.to_owned()), ("class", name.to_owned())], count);
            }
        }
        for (at, reason) in FAILURE_REASONS.into_iter().enumerate() {
            let count = sum(&|core| core.failures[at].value());
            if count > 0 {
                failures.count(vec![("server", url.to_owned()), ("reason", reason.to_owned())], count);
            }
        }
        retries.count(labels(), sum(&|core| core.retries.value()));
        ejections.count(labels(), sum(&|core| core.ejections.value()));
        connects.durations(labels(), cores.iter().map(|core| &core.connect));
        heads.durations(labels(), cores.iter().map(|core| &core.head));
        let is_up = group.reported_state(server, now) == ServerState::Up;
        up.gauge(labels(), f64::from(u8::from(is_up)));
        let is_ordered = group.order(server) != UpstreamOrder::Ready;
        drained.gauge(labels(), f64::from(u8::from(is_ordered)));
    }
    vec![
        requests.counters("komainu_upstream_requests", "Requests sent to an upstream server, retries too."),
        responses.counters("komainu_upstream_responses", "Its responses, by class of their statuses."),
        failures.counters("komainu_upstream_failures", "Requests that it failed, by reason."),
        retries.counters("komainu_upstream_retries", "Requests that were sent again after it failed them."),
        ejections.counters("komainu_upstream_ejections", "How often it was ejected."),
        active.gauges("komainu_upstream_requests_active", "Requests under way on it now."),
        up.gauges("komainu_upstream_up", "1 while it is in service, 0 while it is ejected, drained or ill."),
        drained.gauges(
            "komainu_upstream_drained",
            "1 while an operator has drained it or taken it out of service, else 0.",
        ),
        connects.histograms("komainu_upstream_connect_seconds", "To connect to it, TLS handshake included."),
        heads.histograms(
            "komainu_upstream_response_seconds",
            "From a request that can be sent to the head of its response.",
        ),
    ]
}

fn server(gauges: &Gauges) -> Vec<Family> {
    let sum = |of: &dyn Fn(&Counters) -> u64| gauges.cores.iter().map(|core| of(core)).sum::<u64>();
    let counter = |name, help, sample| {
        let rows = vec![(Vec::new(), sample)];
        Family { name, help, kind: FamilyKind::Counter, rows }
    };
    let gauge = |name, help, number| {
        let rows = vec![(Vec::new(), Sample::Number(number))];
        Family { name, help, kind: FamilyKind::Gauge, rows }
    };
    let count = |name, help, count| counter(name, help, Sample::Count(count));
    let mut handshakes = Rows::default();
    let of_kinds = [
        ("full", sum(&|core| core.tls_full.value())),
        ("resumed", sum(&|core| core.tls_resumed.value())),
        ("failed", sum(&|core| core.tls_failed.value())),
    ];
    for (kind, count) in of_kinds {
        handshakes.count(vec![("kind", kind.to_owned())], count);
    }
    let mut protocols = Rows::default();
    let of_protocols = [
        ("HTTP/1", sum(&|core| core.http1_requests())),
        ("HTTP/2", sum(&|core| core.http2_requests.value())),
        ("HTTP/3", sum(&|core| core.http3_requests.value())),
    ];
    for (protocol, count) in of_protocols {
        protocols.count(vec![("protocol", protocol.to_owned())], count);
    }
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let open = sum(&|core| core.connections_open.value());
    vec![
        Family {
            name: "komainu_build_info",
            help: "The version that runs.",
            kind: FamilyKind::Gauge,
            rows: vec![(version, Sample::Number(1.0))],
        },
        handshakes.counters("komainu_tls_handshakes", "TLS handshakes with clients."),
        protocols.counters("komainu_protocol_requests", "Requests answered, by the client's protocol."),
        count(
            "komainu_quic_retries",
            "New QUIC connections whose clients had to prove their address first.",
            sum(&|core| core.quic_retries.value()),
        ),
        count(
            "komainu_quic_refused_connections",
            "New QUIC connections ignored or refused, because there are too many.",
            sum(&|core| core.quic_refused.value()),
        ),
        count(
            "komainu_quic_dropped_packets",
            "HTTP/3 packets of no connection that were dropped, because there were too many.",
            sum(&|core| core.quic_dropped.value()),
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

fn applications(gauges: &Gauges) -> Vec<Family> {
    let mut states: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    // While an application is reloaded, two workers may have the same number; they are counted together.
    let mut workers: BTreeMap<(&str, usize), [u64; 3]> = BTreeMap::new();
    for worker in &gauges.workers {
        *states.entry((&worker.app, &worker.state)).or_default() += 1;
        *bytes.entry(&worker.app).or_default() += worker.pss_bytes;
        let sums = workers.entry((&worker.app, worker.worker)).or_default();
        let values = [worker.pss_bytes, worker.cpu_ms, worker.requests];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    let app = |app: &str| ("app", app.to_owned());
    let mut processes = Rows::default();
    let mut of_app = Rows::default();
    let mut of_worker = Rows::default();
    let mut cpu = Rows::default();
    let mut exits = Rows::default();
    let mut requests = Rows::default();
    let mut waiting = Rows::default();
    let mut active = Rows::default();
    for queue in &gauges.app_queues {
        waiting.gauge(vec![app(&queue.app)], queue.waiting as f64);
        active.gauge(vec![app(&queue.app)], queue.active as f64);
    }
    for ((name, state), count) in states {
        processes.gauge(vec![app(name), ("state", state.to_owned())], count as f64);
    }
    for (name, bytes) in bytes {
        of_app.gauge(vec![app(name)], bytes as f64);
    }
    for ((name, worker), [bytes, cpu_ms, answered]) in workers {
        let labels = vec![app(name), ("worker", worker.to_string())];
        // The prototype answers no requests.
        if worker > 0 {
            requests.count(labels.clone(), answered);
        }
        of_worker.gauge(labels.clone(), bytes as f64);
        cpu.0.push((labels, Sample::Seconds(cpu_ms as f64 / 1e3)));
    }
    for (name, counts) in &gauges.exits {
        for (exit, count) in WorkerExit::ALL.into_iter().zip(counts) {
            exits.count(vec![app(name), ("reason", exit.text().to_owned())], *count);
        }
    }
    vec![
        processes.gauges("komainu_app_processes", "Processes of applications, by state."),
        of_app.gauges("komainu_app_proportional_bytes", "Memory of an application's processes (PSS)."),
        of_worker.gauges("komainu_app_worker_proportional_bytes", "Memory of a worker (PSS)."),
        cpu.counters(
            "komainu_app_worker_cpu_seconds",
            "CPU time of a worker; it begins at 0 with each process.",
        ),
        requests.counters(
            "komainu_app_worker_requests",
            "Requests that a worker has answered; it begins at 0 with each process.",
        ),
        waiting.gauges("komainu_app_requests_waiting", "Requests that wait for a worker now."),
        active.gauges("komainu_app_requests_active", "Requests that workers have now."),
        exits.counters("komainu_app_worker_exits", "Workers that have ended, by reason."),
    ]
}

fn certificates(gauges: &Gauges) -> Vec<Family> {
    let mut rows = Rows::default();
    for (name, unix_s) in &gauges.certificates {
        rows.gauge(vec![("name", name.clone())], *unix_s as f64);
    }
    vec![rows.gauges(
        "komainu_certificate_expiry_timestamp_seconds",
        "When a certificate expires, in seconds since 1970.",
    )]
}

/// State of `komainu kubernetes`.
fn kubernetes(gauges: &Gauges) -> Vec<Family> {
    let Some(status) = &gauges.kubernetes else { return Vec::new() };
    let gauge = |value: f64, name, help| {
        let mut rows = Rows::default();
        rows.gauge(Vec::new(), value);
        rows.gauges(name, help)
    };
    let counter = |value: u64, name, help| {
        let mut rows = Rows::default();
        rows.count(Vec::new(), value);
        rows.counters(name, help)
    };
    let mut changes = Rows::default();
    for (kind, count) in [
        ("routes", status.whole_changes),
        ("servers", status.server_changes),
        ("certificates", status.certificate_changes),
        ("failed", status.failed_changes),
    ] {
        changes.count(vec![("kind", kind.to_owned())], count);
    }
    vec![
        gauge(
            f64::from(u8::from(status.fault.is_none())),
            "komainu_kubernetes_api_up",
            "Whether the API server answers.",
        ),
        gauge(
            status.away_since_unix_s.map_or(0.0, |at| at as f64),
            "komainu_kubernetes_api_away_since_seconds",
            "Time since which the API server does not answer, in seconds since 1970; 0 if it does.",
        ),
        counter(status.failures, "komainu_kubernetes_api_failures", "Times that the API server went away."),
        gauge(
            status.applied_unix_ms.map_or(0.0, |at| at as f64 / 1e3),
            "komainu_kubernetes_applied_seconds",
            "Time of the last change that was put in force, in seconds since 1970; 0 before the first.",
        ),
        changes.counters(
            "komainu_kubernetes_changes",
            "Changes that were put in force: with a new router, of servers alone, of certificates alone; and failed ones.",
        ),
        counter(
            status.sites_read,
            "komainu_kubernetes_sites_read",
            "Sites that were read because they had changed.",
        ),
        gauge(status.objects as f64, "komainu_kubernetes_objects", "Objects of the API server that are known."),
        gauge(
            f64::from(u8::from(status.is_leader)),
            "komainu_kubernetes_leader",
            "Whether this replica writes the statuses of objects.",
        ),
    ]
}

/// Metrics of the set of servers; none without one.
fn cluster(gauges: &Gauges) -> Vec<Family> {
    let Some(status) = &gauges.cluster else { return Vec::new() };
    let gauge = |value: f64, name, help| {
        let mut rows = Rows::default();
        rows.gauge(Vec::new(), value);
        rows.gauges(name, help)
    };
    let counter = |value: u64, name, help| {
        let mut rows = Rows::default();
        rows.count(Vec::new(), value);
        rows.counters(name, help)
    };
    vec![
        gauge(
            f64::from(u8::from(status.is_up)),
            "komainu_cluster_store_up",
            "Whether the store of the set of servers can be used.",
        ),
        gauge(
            status.servers.len() as f64,
            "komainu_cluster_servers",
            "Servers of the set that gave a sign of life in the last 10 seconds.",
        ),
        gauge(
            status.purges_unsent as f64,
            "komainu_cluster_purges_unsent",
            "Purges of this server that wait for the store.",
        ),
        counter(
            status.purges_applied,
            "komainu_cluster_purges_applied",
            "Purges of other servers that this one has applied.",
        ),
        counter(
            status.files_received,
            "komainu_cluster_files_received",
            "Certificates, accounts and tokens received from other servers.",
        ),
        counter(status.refused, "komainu_cluster_values_refused", "Values of the store that were not used."),
        counter(status.failures, "komainu_cluster_store_failures", "Times that the store went away."),
    ]
}

/// Metrics of the rules in [`FAMILIES`].
fn rules(gauges: &Gauges) -> Vec<Family> {
    let family = |(name, help): (&'static str, &'static str)| {
        let mut rows = Rows::default();
        for rule in gauges.rules.iter().filter(|rule| rule.family == name) {
            rows.count(rule.labels.clone(), rule.count);
        }
        rows.counters(name, help)
    };
    FAMILIES.into_iter().map(family).collect()
}

/// Metrics of the queues of routes; queues with equal labels are summed.
fn queues(gauges: &Gauges) -> Vec<Family> {
    let mut sums: BTreeMap<(&str, &str), [u64; 2]> = BTreeMap::new();
    for queue in &gauges.queues {
        let sum = sums.entry((&queue.site, &queue.route)).or_default();
        sum.iter_mut().zip([queue.active, queue.waiting]).for_each(|(sum, count)| *sum += count);
    }
    let mut active = Rows::default();
    let mut waiting = Rows::default();
    for ((site, route), sums) in sums {
        let labels = vec![("site", site.to_owned()), ("route", route.to_owned())];
        active.gauge(labels.clone(), sums[0] as f64);
        waiting.gauge(labels, sums[1] as f64);
    }
    vec![
        active.gauges("komainu_queue_active", "Requests in the handler of a route with a `queue`."),
        waiting.gauges("komainu_queue_waiting", "Requests that wait in the `queue` of a route."),
    ]
}

/// Metrics of rate limits; limits with equal labels are summed.
fn limits(gauges: &Gauges) -> Vec<Family> {
    let mut sums: BTreeMap<(&str, &str, &str, bool), [u64; 4]> = BTreeMap::new();
    for limit in &gauges.limits {
        let sum = sums.entry((&limit.site, &limit.route, &limit.limit, limit.is_dry)).or_default();
        let counts = [limit.refused, limit.delayed, limit.evicted, limit.bytes];
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let mut refused = Rows::default();
    let mut delayed = Rows::default();
    let mut forgotten = Rows::default();
    let mut bytes = Rows::default();
    for ((site, route, limit, is_dry), sums) in sums {
        let labels = vec![
            ("site", site.to_owned()),
            ("route", route.to_owned()),
            ("limit", limit.to_owned()),
            ("dry_run", is_dry.to_string()),
        ];
        refused.count(labels.clone(), sums[0]);
        delayed.count(labels.clone(), sums[1]);
        forgotten.count(labels.clone(), sums[2]);
        bytes.gauge(labels, sums[3] as f64);
    }
    vec![
        refused.counters(
            "komainu_limit_refused",
            "Requests refused by a limit, or that a dry run would refuse.",
        ),
        delayed.counters("komainu_limit_delayed", "Requests delayed by a limit."),
        forgotten.counters(
            "komainu_limit_forgotten_keys",
            "Keys that a limit has forgotten early, for want of room.",
        ),
        bytes.gauges("komainu_limit_table_bytes", "Memory of a limit's keys."),
    ]
}
