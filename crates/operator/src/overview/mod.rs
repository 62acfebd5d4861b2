//! Metrics of a running server, for `/v1/status`, `komainu top` and the dashboard: routes, upstream servers,
//! applications, connections. The size is bounded by the configuration. Counts are cumulative, so that each
//! reader can compute rates over its own interval.

mod page;
mod stream;

use std::sync::Arc;

use apps::{AppSnapshot, ProcessInfo, Usage};
use http::path::redact_target;
use net::clock::Clock;
use net::durations::DURATION_BOUNDS_US;
use net::{CacheOutcome, Counters, DurationCounts, DurationHistogram};
pub(crate) use page::DashboardFile;
use proxy::health::{ServerState, UpstreamOrder};
use proxy::{FAILURE_REASONS, GroupShared, UpstreamCounters};
use serde_json::{Map, Value, json};
pub(crate) use stream::EventClients;
use telemetry::metrics::{CpuEstimate, Metrics, RouteCounters, STATUS_MIN, STATUSES};
use times::Moment;

/// The reported percentiles of durations.
const PERCENTILES: [(&str, f64); 3] = [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)];

/// Returns the upper bounds of the duration classes in milliseconds; the last class has none.
pub(crate) fn duration_bounds_ms() -> Vec<f64> {
    DURATION_BOUNDS_US.iter().map(|us| *us as f64 / 1e3).collect()
}

/// Sums a histogram over all cores: its count, classes and percentiles.
fn summed_durations<'h>(histograms: impl Iterator<Item = &'h DurationHistogram>) -> Value {
    let sums = DurationCounts::of(histograms);
    let classes = sums.classic();
    let total_us = sums.total_us();
    let count = sums.count();
    let shown = if count == 0 { Vec::new() } else { classes.to_vec() };
    let mut document = json!({ "count": count, "total_ms": total_us as f64 / 1e3, "classes": shown });
    for (name, share) in PERCENTILES {
        document[name] = json!(percentile(&duration_bounds_ms(), &classes, share));
    }
    document
}

/// Returns the quantile `share` (0 to 1), interpolated linearly within its class; the last class, which has
/// no upper bound, yields its lower one. `None` if all classes are empty.
pub(crate) fn percentile(bounds_ms: &[f64], classes: &[u64], share: f64) -> Option<f64> {
    let count: u64 = classes.iter().sum();
    if count == 0 {
        return None;
    }
    let mut left = share * count as f64;
    let mut lower = 0.0;
    for (class, upper) in classes.iter().zip(bounds_ms) {
        let within = *class as f64;
        if left <= within {
            return Some(lower + (upper - lower) * left / within.max(1.0));
        }
        (left, lower) = (left - within, *upper);
    }
    Some(lower)
}

/// Returns the metrics of each route. Requests without a route are included only if there were any.
pub(crate) fn routes(metrics: &Metrics) -> Vec<Value> {
    let mut routes = Vec::new();
    metrics.for_each(|labels, cores| {
        let sum = |of: &dyn Fn(&RouteCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        let estimated = |of: &dyn Fn(&RouteCounters) -> &CpuEstimate| {
            json!({ "us": sum(&|core| of(core).us.value()), "requests": sum(&|core| of(core).requests.value()) })
        };
        let mut classes = Map::new();
        let mut requests = 0;
        for at in 0..STATUSES {
            let count = sum(&|core| core.statuses[at].value());
            if count > 0 {
                requests += count;
                let class = format!("{}xx", (usize::from(STATUS_MIN) + at) / 100);
                let before = classes.get(&class).and_then(Value::as_u64).unwrap_or_default();
                classes.insert(class, json!(before + count));
            }
        }
        let outcomes = CacheOutcome::ALL.into_iter().map(|outcome| {
            (outcome.text().to_owned(), json!(sum(&|core| core.cache[outcome as usize].value())))
        });
        let outcomes: Map<String, Value> = outcomes.filter(|(_, count)| count.as_u64() != Some(0)).collect();
        routes.push(json!({
            "site": labels.site,
            "route": labels.route,
            "handler": labels.handler,
            "requests": requests,
            "statuses": classes,
            "request_bytes": sum(&|core| core.request_bytes.value()),
            "response_bytes": sum(&|core| core.response_bytes.value()),
            "duration": summed_durations(cores.iter().map(|core| &core.duration)),
            "first_byte": summed_durations(cores.iter().map(|core| &core.first_byte)),
            "queue": summed_durations(cores.iter().map(|core| &core.queue)),
            "cpu": estimated(&|core| &core.server_cpu),
            "worker_cpu": estimated(&|core| &core.worker_cpu),
            "cache": outcomes,
        }));
    });
    // The entry of requests without a route is shown only if it has counted any.
    routes.retain(|route| route["handler"] != "" || route["requests"] != 0);
    routes
}

/// Returns the groups of upstream servers, each with its queue and servers.
pub(crate) fn upstreams(groups: &[(String, Arc<GroupShared>)]) -> Vec<Value> {
    let now = Clock::new().now();
    let group = |(name, group): &(String, Arc<GroupShared>)| {
        let servers = (0..group.server_count()).map(|at| server_document(group, at, now));
        json!({ "name": name, "waiting": group.waiting(), "servers": servers.collect::<Vec<_>>() })
    };
    groups.iter().map(group).collect()
}

fn server_document(group: &GroupShared, server: usize, now: Moment) -> Value {
    let cores = group.counters(server);
    let sum = |of: &dyn Fn(&UpstreamCounters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
    // Read `ended` first: a request that ends in between would otherwise make the difference negative.
    let ended = sum(&|core| core.ended.value());
    let begun = sum(&|core| core.requests.value());
    let classes = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate();
    let classes = classes.map(|(at, name)| (name.to_owned(), sum(&|core| core.statuses[at].value())));
    let reasons = FAILURE_REASONS.into_iter().enumerate();
    let reasons = reasons.map(|(at, name)| (name.to_owned(), sum(&|core| core.failures[at].value())));
    let some = |counts: &mut dyn Iterator<Item = (String, u64)>| {
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name, json!(count)))
            .collect::<Map<_, _>>()
    };
    let (state, back_in_ms) = match (group.order(server), group.reported_state(server, now)) {
        // Drained by an operator, which is not a failure.
        (UpstreamOrder::Drain, _) => ("drain", None),
        (_, ServerState::Up) => ("up", None),
        (_, ServerState::Probe) => ("probe", None),
        (_, ServerState::Ejected(until)) => ("ejected", Some((until - now).0)),
        (_, ServerState::Down) => ("down", None),
    };
    json!({
        "url": group.display_name(server),
        "state": state,
        "order": group.order(server).text(),
        "back_in_ms": back_in_ms,
        "requests": begun,
        "active": begun.saturating_sub(ended),
        "statuses": some(&mut { classes }),
        "failures": some(&mut { reasons }),
        "retries": sum(&|core| core.retries.value()),
        "ejections": sum(&|core| core.ejections.value()),
        "connect": summed_durations(cores.iter().map(|core| &core.connect)),
        "response": summed_durations(cores.iter().map(|core| &core.head)),
    })
}

/// Returns the counts of client connections and their requests.
pub(crate) fn connections(cores: &[Arc<Counters>]) -> Value {
    let sum = |of: fn(&Counters) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
    json!({
        "open": sum(|core| core.connections_open.value()),
        "accepted": sum(|core| core.connections.value()),
        "requests": sum(|core| core.requests.value()),
        "invalid": sum(|core| core.rejected.value()),
        "panics": sum(|core| core.panics.value()),
        "tls_full": sum(|core| core.tls_full.value()),
        "tls_resumed": sum(|core| core.tls_resumed.value()),
        "tls_failed": sum(|core| core.tls_failed.value()),
        "http2_requests": sum(|core| core.http2_requests.value()),
        "http3_requests": sum(|core| core.http3_requests.value()),
        "quic_retries": sum(|core| core.quic_retries.value()),
        "quic_refused": sum(|core| core.quic_refused.value()),
        "quic_dropped": sum(|core| core.quic_dropped.value()),
    })
}

/// Returns an application with its processes, their current requests, and its queue.
pub(crate) fn application(name: &str, app: &AppSnapshot) -> Value {
    json!({
        "name": name,
        "processes": app.processes.iter().map(process).collect::<Vec<_>>(),
        "queue": { "waiting": app.waiting, "claimed": app.claimed, "waiting_max": app.waiting_max },
    })
}

/// Returns a process of an application with its current requests.
pub(crate) fn process(process: &ProcessInfo) -> Value {
    let current = process.current.iter().map(
        |request| json!({ "method": request.method, "target": redact_target(request.target.as_bytes()), "age_ms": request.age.0 }),
    );
    json!({
        "pid": process.pid,
        "worker": process.worker,
        "state": process.state,
        "generation": process.generation,
        "requests": process.requests,
        "age_ms": process.age.0,
        "current": current.collect::<Vec<_>>(),
        "usage": process.usage.map(usage),
    })
}

/// Returns the CPU time and memory of a process.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "cpu_ms": usage.cpu_ms,
        "rss_bytes": usage.rss_bytes,
        "pss_bytes": usage.pss_bytes,
        "private_dirty_bytes": usage.private_dirty_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_interpolated_within_a_bucket() {
        let bounds = [1.0, 2.0, 4.0];
        assert_eq!(percentile(&bounds, &[0; 4], 0.5), None);
        assert_eq!(percentile(&bounds, &[10, 0, 0, 0], 0.5), Some(0.5));
        assert_eq!(percentile(&bounds, &[50, 25, 25, 0], 0.5), Some(1.0));
        assert_eq!(percentile(&bounds, &[50, 0, 50, 0], 0.75), Some(3.0));
        // The last class has no upper bound.
        assert_eq!(percentile(&bounds, &[0, 0, 0, 7], 0.99), Some(4.0));
    }
}
