//! Rate and concurrency limits of sites and routes: the key of a request, and the response if it exceeds a
//! limit. Counting is implemented in `admission`.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use admission::limits::{RateKey, RateLimit};
use admission::{
    ConcurrencyLimiter, ConcurrencyPermit, DelayPermit, KeyHasher, LimitReached, LimitState, LimitVerdict,
    Limiter, LimiterOptions, Quota, policy_item, state_item,
};
use config::Config;
use engine::clients::proxies::peer_set;
use http::{Fields, Name, Status, form};
use logging::Level;
use logging::notice::ErrorLog;
use net::{Exchange, Fault, MemoryBudget, Peer, PeerSet, Request};
use reload::KeptState;
use sharing::SharedTable;
use telemetry::gauges::LimitMetrics;
use telemetry::metrics::RouteLabels;
use times::Millis;

use crate::flow::Flow;
use crate::shaping::shared_limits;

/// Memory charged to a delayed request in addition to its connection, in bytes.
const DELAYED_BYTES: usize = 4096;
const REASON: &str = "too many requests: try again later";

/// A limit of a site or route, shared by all cores.
pub(crate) struct SharedLimit {
    config: RateLimit,
    /// Site and route of the limit. The handler is empty; for a limit of a site the route is empty too.
    labels: RouteLabels,
    counter: LimitCounter,
    /// Table exchanged with other servers, if the limit is shared with them.
    shared: Option<Arc<dyn SharedTable>>,
    name: String,
    /// Item of this limit in `RateLimit-Policy`.
    policy: Option<String>,
}

/// Counter of a limit.
#[derive(Debug)]
enum LimitCounter {
    /// Requests per key and period.
    Rate(Arc<Limiter>),
    /// Concurrent requests per key.
    Concurrent(Arc<ConcurrencyLimiter>),
}

/// Limits of a configuration by site: those of the site itself and those of its routes.
#[derive(Default)]
pub struct LimitPlan(Vec<SiteLimits>);

#[derive(Default)]
struct SiteLimits {
    site: Vec<Arc<SharedLimit>>,
    routes: Vec<Vec<Arc<SharedLimit>>>,
}

impl LimitPlan {
    /// Creates the limits. A limit that is configured as before keeps its counts.
    pub fn new(config: &Config, kept: &mut KeptState, memory: &MemoryBudget) -> LimitPlan {
        let mut shared = |limit: &RateLimit, place: RouteLabels| {
            let is_unchanged = |other: &Arc<SharedLimit>| other.config == *limit;
            kept.keep_if(place.clone(), is_unchanged, || Arc::new(SharedLimit::new(limit, place, memory)))
        };
        let mut sites = Vec::new();
        for site in &config.sites {
            let of_site = || RouteLabels { site: RouteLabels::of_site(site), ..RouteLabels::default() };
            let own = site.limit.iter().map(|limit| shared(limit, of_site())).collect();
            let mut routes = Vec::new();
            for route in &site.routes {
                let place = || RouteLabels { handler: String::new(), ..RouteLabels::of(site, route) };
                routes.push(route.limit.iter().map(|limit| shared(limit, place())).collect());
            }
            sites.push(SiteLimits { site: own, routes });
        }
        LimitPlan(sites)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<SharedLimit>> {
        self.0.iter().flat_map(|site| site.site.iter().chain(site.routes.iter().flatten()))
    }

    /// Returns the tables of the limits that are shared with other servers.
    pub fn shared_tables(&self) -> impl Iterator<Item = Weak<dyn SharedTable>> {
        self.all().filter_map(|limit| limit.shared.as_ref().map(Arc::downgrade))
    }

    /// Returns the metrics of all limits.
    pub fn metrics(&self) -> Vec<LimitMetrics> {
        let metrics = |limit: &Arc<SharedLimit>| {
            let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
            let (refused, delayed, forgotten, bytes) = match &limit.counter {
                LimitCounter::Rate(limiter) => {
                    let of = &limiter.counters;
                    (count(&of.refused), count(&of.delayed), count(&of.evicted), limiter.bytes())
                }
                LimitCounter::Concurrent(limiter) => {
                    (count(&limiter.refused), 0, count(&limiter.uncounted), limiter.bytes())
                }
            };
            LimitMetrics {
                site: limit.labels.site.clone(),
                route: limit.labels.route.clone(),
                limit: limit.name.clone(),
                is_dry: limit.config.dry_run,
                refused,
                delayed,
                evicted: forgotten,
                bytes: bytes as u64,
            }
        };
        self.all().map(metrics).collect()
    }

    /// Returns the limits of a route, those of its site first, for one core. `None` if there are none.
    pub fn of(&self, site: usize, route: usize, notices: Option<&ErrorLog>) -> Option<RateRules> {
        let site = self.0.get(site)?;
        rules(site.site.iter().chain(site.routes.get(route)?).collect(), notices)
    }

    /// Returns the limits of a site without those of its routes.
    pub fn of_site(&self, site: usize, notices: Option<&ErrorLog>) -> Option<RateRules> {
        rules(self.0.get(site)?.site.iter().collect(), notices)
    }

    /// Returns the limits of a route without those of its site.
    pub fn of_route(&self, site: usize, route: usize, notices: Option<&ErrorLog>) -> Option<RateRules> {
        rules(self.0.get(site)?.routes.get(route)?.iter().collect(), notices)
    }
}

/// Creates the rules of one core. `None` if there are no limits.
fn rules(all: Vec<&Arc<SharedLimit>>, notices: Option<&ErrorLog>) -> Option<RateRules> {
    if all.is_empty() {
        return None;
    }
    let policies: Vec<&str> = all
        .iter()
        .filter(|limit| !limit.config.dry_run)
        .filter_map(|limit| limit.policy.as_deref())
        .collect();
    let rule = |shared: &Arc<SharedLimit>| RateRule {
        shared: shared.clone(),
        except: peer_set(&shared.config.except),
    };
    Some(RateRules {
        policies: policies.join(", "),
        counts_misses: all.iter().any(|limit| limit.config.misses_only),
        rules: all.into_iter().map(rule).collect(),
        notices: notices.cloned(),
    })
}

impl SharedLimit {
    fn new(of: &RateLimit, place: RouteLabels, memory: &MemoryBudget) -> SharedLimit {
        let memory = memory.clone();
        let name = of.name();
        let account = Arc::new(move |before, after| memory.change(before, after));
        let keys_max = of.keys_max as usize;
        if let Some(max) = of.concurrent {
            let counter = LimitCounter::Concurrent(Arc::new(ConcurrencyLimiter::new(max, keys_max, account)));
            return SharedLimit {
                config: of.clone(),
                labels: place,
                counter,
                shared: None,
                name,
                policy: None,
            };
        }
        let rate = of.rate();
        let quota = Quota::new(rate.count, rate.period, of.burst());
        let options = LimiterOptions { quota, delay_max: of.delay, delayed_max: of.delayed_max, keys_max };
        let limiter = Arc::new(if of.shared {
            Limiter::new_shared(options, account, &shared_limits::scope(of, &place))
        } else {
            Limiter::new(options, account)
        });
        let shared = of.shared.then(|| shared_limits::table(&limiter));
        let policy = Some(policy_item(&name, &quota));
        SharedLimit {
            config: of.clone(),
            labels: place,
            counter: LimitCounter::Rate(limiter),
            shared,
            name,
            policy,
        }
    }

    fn hasher(&self) -> KeyHasher {
        match &self.counter {
            LimitCounter::Rate(limiter) => limiter.hasher(),
            LimitCounter::Concurrent(limiter) => limiter.hasher(),
        }
    }

    /// Describes the limit for the log.
    fn describe(&self) -> String {
        match (self.config.rate, self.config.concurrent) {
            (_, Some(max)) => format!("{max} at the same time"),
            (rate, None) => rate.unwrap_or_default().to_string(),
        }
    }
}

/// Limits of one route on one core.
pub struct RateRules {
    rules: Vec<RateRule>,
    /// Value of `RateLimit-Policy`.
    policies: String,
    /// Whether a limit counts only requests that the cache does not answer.
    pub(crate) counts_misses: bool,
    notices: Option<ErrorLog>,
}

struct RateRule {
    shared: Arc<SharedLimit>,
    except: PeerSet,
}

/// Selects the limits that [`RateRules::run`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedRequests {
    /// All limits.
    All,
    /// Limits that count every request.
    Requests,
    /// Limits that count only requests that the cache does not answer.
    Misses,
}

/// Result of checking a request against the limits.
#[derive(Default)]
pub(crate) struct LimitOutcome {
    /// Index of the limit that refuses the request, and the time until it would admit it in nanoseconds.
    /// `None` for a concurrency limit, where the time is unknown.
    refused: Option<(usize, Option<u64>)>,
    wait_ns: u64,
    delay_permits: Vec<DelayPermit>,
    /// Permits of the concurrency limits.
    concurrency_permits: Vec<ConcurrencyPermit>,
    /// Items of `RateLimit` for the response to an admitted request.
    states: Vec<String>,
}

impl LimitOutcome {
    /// Whether the request passes without delay, permits or response fields.
    pub(crate) fn passes_unchanged(&self) -> bool {
        self.refused.is_none()
            && self.delay_permits.is_empty()
            && self.states.is_empty()
            && self.concurrency_permits.is_empty()
    }
}

impl RateRules {
    /// Counts a request. Allocates only if the request is delayed, response fields are needed, or the key is
    /// encoded.
    pub(crate) fn check(&self, exchange: &Exchange<'_>, counted: CountedRequests) -> LimitOutcome {
        let request = exchange.request();
        let now_ns = exchange.core().now_us().saturating_mul(1_000);
        let client = request.client().address;
        let is_asked = |rule: &RateRule| {
            let is_of_kind = match counted {
                CountedRequests::All => true,
                CountedRequests::Requests => !rule.shared.config.misses_only,
                CountedRequests::Misses => rule.shared.config.misses_only,
            };
            is_of_kind && !rule.except.contains(client)
        };
        let mut checked = LimitOutcome::default();
        for (index, rule) in self.rules.iter().enumerate().filter(|(_, rule)| is_asked(rule)) {
            let shared = &rule.shared;
            let limiter = match &shared.counter {
                LimitCounter::Rate(limiter) => limiter,
                LimitCounter::Concurrent(limiter) => {
                    let key = rule.key(&request).key();
                    let is_dry = shared.config.dry_run;
                    if is_dry && limiter.is_full(key) {
                        self.report(shared, client, "would be refused (dry run)");
                    }
                    match limiter.acquire(key, is_dry) {
                        Ok(place) => checked.concurrency_permits.extend(place),
                        Err(LimitReached) => {
                            self.report(shared, client, "refused");
                            self.refund(index, &checked, &is_asked, &request, now_ns);
                            return LimitOutcome { refused: Some((index, None)), ..LimitOutcome::default() };
                        }
                    }
                    continue;
                }
            };
            match limiter.admit(rule.key(&request).limit_key(), now_ns) {
                LimitVerdict::Pass { full_at_ns } if shared.config.headers && !shared.config.dry_run => {
                    let (left, next_ns) = limiter.remaining(full_at_ns, now_ns);
                    checked.states.push(state_item(&shared.name, LimitState { remaining: left, next_ns }));
                }
                LimitVerdict::Pass { .. } => {}
                verdict @ (LimitVerdict::Delay { .. } | LimitVerdict::Refuse { .. })
                    if shared.config.dry_run =>
                {
                    if let LimitVerdict::Delay { permit: place, .. } = verdict {
                        place.use_slot();
                    }
                    self.report(shared, client, "would be refused or delayed (dry run)");
                }
                LimitVerdict::Delay { wait_ns, permit: place } => {
                    checked.wait_ns = checked.wait_ns.max(wait_ns);
                    checked.delay_permits.push(place);
                }
                LimitVerdict::Refuse { retry_ns } => {
                    self.report(shared, client, "refused");
                    self.refund(index, &checked, &is_asked, &request, now_ns);
                    return LimitOutcome {
                        refused: Some((index, Some(retry_ns))),
                        ..LimitOutcome::default()
                    };
                }
            }
        }
        checked
    }

    /// Refunds the request to the limits before `index`, the one that refuses it.
    fn refund(
        &self,
        index: usize,
        checked: &LimitOutcome,
        is_asked: &impl Fn(&RateRule) -> bool,
        request: &Request<'_>,
        now_ns: u64,
    ) {
        for rule in self.rules[..index].iter().filter(|rule| is_asked(rule) && !rule.shared.config.dry_run) {
            let LimitCounter::Rate(limiter) = &rule.shared.counter else { continue };
            // Limits that would delay the request are refunded when `checked.places` is dropped.
            if !checked.delay_permits.iter().any(|place| place.belongs_to(limiter)) {
                limiter.refund(rule.key(request).limit_key(), now_ns);
            }
        }
    }

    /// Carries out the result: delays or answers the request. Returns `false` if it has been answered.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) async fn apply(
        &self,
        exchange: &mut Exchange<'_>,
        checked: LimitOutcome,
    ) -> Result<bool, Fault> {
        if let Some((index, retry_ns)) = checked.refused {
            self.refuse(exchange, &self.rules[index].shared, retry_ns).await?;
            return Ok(false);
        }
        if !checked.delay_permits.is_empty() {
            exchange.hold(DELAYED_BYTES);
            let turn = exchange.core().sleep(Millis(checked.wait_ns.div_ceil(1_000_000)));
            let waited = exchange.unless_disconnected(turn).await;
            exchange.hold(0);
            waited?;
            checked.delay_permits.into_iter().for_each(DelayPermit::use_slot);
        }
        if !checked.concurrency_permits.is_empty() {
            exchange.keep_until_sent(Rc::new(checked.concurrency_permits));
        }
        if !checked.states.is_empty() {
            let mut fields = Fields::new();
            self.add_fields(&mut fields, &checked.states.join(", "));
            exchange.add_fields(&fields);
        }
        Ok(true)
    }

    async fn refuse(
        &self,
        exchange: &mut Exchange<'_>,
        shared: &SharedLimit,
        retry_ns: Option<u64>,
    ) -> Result<(), Fault> {
        let mut fields = Fields::new();
        let retry_s = retry_ns.unwrap_or(0).div_ceil(1_000_000_000).max(1);
        fields.push(Name::RetryAfter, retry_s.to_string().as_bytes());
        if let Some(retry_ns) = retry_ns {
            let state = LimitState { remaining: 0, next_ns: retry_ns.max(1) };
            self.add_fields(&mut fields, &state_item(&shared.name, state));
        }
        fields.push(Name::CacheControl, b"no-store");
        let status =
            Status::of(shared.config.status).expect("the configuration holds statuses of three digits");
        exchange.refuse_with(status, REASON, &fields).await
    }

    fn add_fields(&self, fields: &mut Fields, states: &str) {
        for (name, value) in [("RateLimit-Policy", &*self.policies), ("RateLimit", states)] {
            fields.try_push(name.as_bytes(), value.as_bytes()).expect("names of limits are printable ASCII");
        }
    }

    /// Reports at most one line per second for each limit, regardless of the number of clients.
    fn report(&self, shared: &SharedLimit, client: Peer, what: &str) {
        let Some(notices) = &self.notices else { return };
        let SharedLimit { labels: place, name, .. } = shared;
        let kind = format!(
            "limit \"{name}\" of {} (site {}, route {}): {what}",
            shared.describe(),
            place.site,
            place.route_name()
        );
        notices.throttled(Level::Warn, kind.clone(), || format!("{client}: {kind}"));
    }
}

impl RateRule {
    /// Returns the hasher of a request's key. A key that the request does not have is replaced by its client.
    fn key(&self, request: &Request<'_>) -> KeyHasher {
        let of = &self.shared.config;
        let mut hasher = self.shared.hasher();
        for part in &of.key {
            let value = match part {
                RateKey::Client => None,
                RateKey::Header(name) => {
                    let is_of = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
                    let fields = request.fields().filter(|(_, other, _)| is_of(other));
                    common_value(fields.map(|(.., value)| Cow::Borrowed(value)))
                }
                RateKey::Cookie(name) => {
                    let cookies = cache::vary::cookies(request.head());
                    let values = cookies.filter(|(other, _)| *other == name.as_bytes());
                    common_value(values.map(|(_, value)| cookie_value(value)))
                }
                RateKey::Query(name) => parameter(request.query().unwrap_or_default(), name.as_bytes()),
                RateKey::Path => {
                    hasher.add(&request.route_path().unwrap_or_default());
                    continue;
                }
                RateKey::Host => {
                    let authority = request.authority();
                    let host = http::target::split_port(authority).map_or(authority, |(host, _)| host);
                    // A trailing dot (the DNS root) denotes the same host.
                    hasher.add(&host.strip_suffix(b".").unwrap_or(host).to_ascii_lowercase());
                    continue;
                }
                RateKey::All => continue,
            };
            match value {
                Some(value) => {
                    hasher.add(b"=");
                    hasher.add(&value);
                }
                None => add_client(&mut hasher, request.client().address, of),
            }
        }
        hasher
    }
}

/// Adds a client's address to a key, reduced to the prefix length that identifies a client.
pub(crate) fn add_client(hasher: &mut KeyHasher, client: Peer, limit: &RateLimit) {
    let address = match client {
        Peer::Unix => return hasher.add(b"unix"),
        Peer::Tcp(address) => address.ip().to_canonical(),
    };
    match address {
        std::net::IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(limit.ipv4_prefix)).unwrap_or(0);
            hasher.add(&(address.to_bits() & mask).to_be_bytes());
        }
        std::net::IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(limit.ipv6_prefix)).unwrap_or(0);
            hasher.add(&(address.to_bits() & mask).to_be_bytes());
        }
    }
}

/// Returns the common value of all occurrences. `None` if they differ, because origins differ in which one
/// they use.
fn common_value<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|other| other == first).then_some(first)
}

/// Returns the value of a query parameter, decoded as origins do.
fn parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<Cow<'q, [u8]>> {
    common_value(form::values(query, name)).flatten()
}

/// Returns the value of a cookie as most origins decode it: without quotes, percent-decoded.
fn cookie_value(value: &[u8]) -> Cow<'_, [u8]> {
    let value = http::scan::trim(value);
    form::decoded(value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value))
}

impl RateRules {
    /// Checks a request against those limits that `counted` selects.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>, counted: CountedRequests) -> Result<Flow, Fault> {
        let checked = self.check(exchange, counted);
        if checked.passes_unchanged() {
            return Ok(Flow::Continue);
        }
        // Boxed because it is rare.
        Ok(Flow::of_admission(Box::pin(self.apply(exchange, checked)).await?))
    }

    /// Whether a limit counts only requests that the cache does not answer.
    #[must_use]
    pub fn counts_misses(&self) -> bool {
        self.counts_misses
    }
}

#[cfg(test)]
mod tests;
