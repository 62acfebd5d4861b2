//! Mirroring: copies of requests are sent to another server, whose responses are discarded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use config::MIRROR_FIELD;
use http::{BodySize, Method, Name};
use net::{Core, Exchange, MemoryBudget, Pressure, Request};
use proxy::{FetchLimits, FetchRequest, Proxy};
use telemetry::rule_counters::{RuleCounter, RuleCounters};
use times::Millis;

use super::conditions::RequestSelector;

/// Maximum bytes read of a response; the connection of a longer one is closed.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;
/// Memory charged to a copy in addition to its body, in bytes: its head, its connection, and a part of the
/// response.
const COPY_BYTES: u64 = 32 * 1024;

/// Counts of a mirror, shared by all cores.
pub struct MirrorShared {
    in_flight: AtomicUsize,
    in_flight_max: usize,
    /// Copies sent.
    sent: Arc<RuleCounter>,
    /// Copies sent that got no response.
    failed: Arc<RuleCounter>,
    /// Copies dropped because too many were in flight or memory was short.
    dropped: Arc<RuleCounter>,
    /// Requests not copied because their body is too long.
    too_long: Arc<RuleCounter>,
}

/// A copy in flight, with the memory charged to it.
struct InFlight {
    shared: Arc<MirrorShared>,
    budget: MemoryBudget,
    bytes: u64,
}

/// Mirror rule of a route, on one core.
pub struct MirrorRule {
    requests: RequestSelector,
    shared: Arc<MirrorShared>,
    proxy: Proxy,
    body_bytes_max: u64,
    timeout: Millis,
}

impl MirrorShared {
    /// Creates the counts of a route's mirror. At most `in_flight_max` copies are in flight at once.
    pub fn new(in_flight_max: u32, site: &str, route: &str, counters: &RuleCounters) -> MirrorShared {
        let counter = |outcome: &str| {
            let labels =
                vec![("site", site.to_owned()), ("route", route.to_owned()), ("outcome", outcome.to_owned())];
            counters.counter("komainu_mirror_requests", labels)
        };
        MirrorShared {
            in_flight: AtomicUsize::new(0),
            in_flight_max: in_flight_max as usize,
            sent: counter("sent"),
            failed: counter("failed"),
            dropped: counter("dropped"),
            too_long: counter("too_long"),
        }
    }

    /// Starts a copy. `None`, and counted as dropped, if too many are in flight or memory is short.
    fn begin_copy(self: &Arc<Self>, core: &Core, body_bytes: usize) -> Option<InFlight> {
        let is_short = core.memory().pressure() >= Pressure::High;
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        if is_short || before >= self.in_flight_max {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.dropped.add(1);
            return None;
        }
        let bytes = COPY_BYTES + body_bytes as u64;
        let budget = core.memory().budget().clone();
        budget.change(0, bytes);
        Some(InFlight { shared: self.clone(), budget, bytes })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.budget.change(self.bytes, 0);
    }
}

impl MirrorRule {
    /// Creates the rule. `proxy` is the proxy of the mirror's internal route.
    pub fn new(mirror: &config::Mirror, shared: Arc<MirrorShared>, proxy: Proxy) -> MirrorRule {
        MirrorRule {
            requests: RequestSelector::new(mirror.when.as_ref(), mirror.share),
            shared,
            proxy,
            body_bytes_max: mirror.body_bytes_max,
            timeout: mirror.timeout.into(),
        }
    }

    /// Copies a request once for each rule that applies to it. A request with a body is copied once the body
    /// has been read.
    pub(super) fn mirror(rules: &[MirrorRule], exchange: &mut Exchange<'_>) {
        let request = exchange.request();
        let is_copy =
            || request.fields().any(|(_, name, _)| name.eq_ignore_ascii_case(MIRROR_FIELD.as_bytes()));
        let is_plain = !matches!(request.method(), Method::Connect | Method::Trace)
            && request.field(Name::Upgrade).is_none();
        if rules.is_empty() || !is_plain || is_copy() {
            return;
        }
        let body = request.body();
        let copies: Vec<PlannedCopy> = rules.iter().filter_map(|rule| rule.plan_copy(&request)).collect();
        let Some(longest) = copies.iter().map(|copy| copy.body_bytes_max).max() else { return };
        let core = exchange.core().clone();
        if body == BodySize::None {
            return copies.into_iter().for_each(|copy| copy.send(&core, Some(Vec::new())));
        }
        let bytes_max = if let BodySize::Known(bytes) = body { bytes } else { longest };
        let copied = move |body: Option<Vec<u8>>| {
            for copy in copies {
                copy.send(&core, body.clone());
            }
        };
        exchange.copy_body(usize::try_from(bytes_max).unwrap_or(usize::MAX), Box::new(copied));
    }

    /// Returns the copy of a request, without its body, if the rule applies.
    fn plan_copy(&self, request: &Request<'_>) -> Option<PlannedCopy> {
        if !self.requests.selects(request) {
            return None;
        }
        let is_too_long = match request.body() {
            BodySize::None => false,
            BodySize::Known(bytes) => bytes > self.body_bytes_max,
            BodySize::Unknown => self.body_bytes_max == 0,
        };
        if is_too_long {
            self.shared.too_long.add(1);
            return None;
        }
        Some(PlannedCopy {
            copy: FetchRequest::of(request, Vec::new()),
            limits: FetchLimits { body_bytes_max: RESPONSE_BYTES_MAX, total: self.timeout },
            shared: self.shared.clone(),
            proxy: self.proxy.clone(),
            body_bytes_max: self.body_bytes_max,
        })
    }
}

/// A copy whose body may still be read.
struct PlannedCopy {
    copy: FetchRequest,
    limits: FetchLimits,
    shared: Arc<MirrorShared>,
    proxy: Proxy,
    body_bytes_max: u64,
}

impl PlannedCopy {
    /// Sends the copy with this body; `None` if the body is too long for every copy.
    fn send(mut self, core: &Core, body: Option<Vec<u8>>) {
        let Some(body) = body.filter(|body| body.len() as u64 <= self.body_bytes_max) else {
            return self.shared.too_long.add(1);
        };
        let bytes = body.len();
        if bytes > 0 {
            self.copy.set_body(body);
        }
        send(core, self.shared, self.proxy, self.copy, self.limits, bytes);
    }
}

/// Sends a copy in the background, unless it is dropped.
fn send(
    core: &Core,
    shared: Arc<MirrorShared>,
    proxy: Proxy,
    copy: FetchRequest,
    limits: FetchLimits,
    body_bytes: usize,
) {
    let Some(in_flight) = shared.begin_copy(core, body_bytes) else { return };
    shared.sent.add(1);
    core.spawn(async move {
        let _in_flight = in_flight;
        let proxy = proxy.bind();
        match proxy.fetch(&copy, &limits).await {
            // A longer response ends with an error, and its connection is closed.
            Ok(mut response) => while let Ok(Some(_)) = response.read().await {},
            Err(_) => shared.failed.add(1),
        }
    });
}
