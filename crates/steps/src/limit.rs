//! Rate and concurrency limits of sites and routes: the key of a request, and the response if it exceeds a
//! limit. Counting is implemented in `admission`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;

use admission::{
    ConcurrencyLimiter, ConcurrencyPlace, DelayPlace, KeyHasher, LimitState, LimitVerdict, Limiter,
    LimiterOptions, Quota, TooMany, policy_item, state_item,
};
use config::{Config, Level, RateKey, RateLimit};
use engine::clients::proxies::sources;
use http::{Fields, Name, Status, form};
use logging::notice::ErrorLog;
use net::{Exchange, Fault, MemoryBudget, Peer, Request, Sources};
use sharing::SharedTable;
use telemetry::families::LimitMetrics;
use telemetry::metrics::RouteLabels;

use crate::flow::Flow;
use crate::shaping::shared;

/// Memory charged to a delayed request in addition to its connection, in bytes.
const DELAYED_BYTES: usize = 4096;
const REASON: &str = "too many requests: try again later";

/// A limit of a site or route, shared by all cores.
pub(crate) struct SharedLimit {
    of: RateLimit,
    /// Site and route of the limit. The handler is empty; for a limit of a site the route is empty too.
    place: RouteLabels,
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
    own: Vec<Arc<SharedLimit>>,
    routes: Vec<Vec<Arc<SharedLimit>>>,
}

impl LimitPlan {
    /// Creates the limits. One that is configured as in `before` keeps its counts.
    pub fn new(config: &Config, before: Option<&LimitPlan>, memory: &MemoryBudget) -> LimitPlan {
        let mut before_at: HashMap<&RouteLabels, Vec<&Arc<SharedLimit>>> = HashMap::new();
        for limit in before.into_iter().flat_map(LimitPlan::all) {
            before_at.entry(&limit.place).or_default().push(limit);
        }
        let mut shared = |of: &RateLimit, place: RouteLabels| {
            let before = before_at.get_mut(&place);
            let same = before.and_then(|before| {
                let at = before.iter().position(|other| other.of == *of)?;
                Some(before.remove(at).clone())
            });
            match same {
                Some(same) => same,
                None => Arc::new(SharedLimit::new(of, place, memory)),
            }
        };
        let mut sites = Vec::new();
        for site in &config.sites {
            let of_site = RouteLabels { site: RouteLabels::of_site(site), ..RouteLabels::default() };
            let own = site.limit.iter().map(|limit| shared(limit, of_site.clone())).collect();
            let mut routes = Vec::new();
            for route in &site.routes {
                let place = RouteLabels { handler: String::new(), ..RouteLabels::of(site, route) };
                routes.push(route.limit.iter().map(|limit| shared(limit, place.clone())).collect());
            }
            sites.push(SiteLimits { own, routes });
        }
        LimitPlan(sites)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<SharedLimit>> {
        self.0.iter().flat_map(|site| site.own.iter().chain(site.routes.iter().flatten()))
    }

    /// Returns the tables of the limits that are shared with other servers.
    pub fn shared(&self) -> impl Iterator<Item = Weak<dyn SharedTable>> {
        self.all().filter_map(|limit| limit.shared.as_ref().map(Arc::downgrade))
    }

    /// Returns the metrics of all limits.
    pub fn metrics(&self) -> Vec<LimitMetrics> {
        let metrics = |limit: &Arc<SharedLimit>| {
            let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
            let (refused, delayed, forgotten, bytes) = match &limit.counter {
                LimitCounter::Rate(limiter) => {
                    let of = &limiter.counters;
                    (count(&of.refused), count(&of.delayed), count(&of.forgotten), limiter.bytes())
                }
                LimitCounter::Concurrent(limiter) => {
                    (count(&limiter.refused), 0, count(&limiter.uncounted), limiter.bytes())
                }
            };
            LimitMetrics {
                site: limit.place.site.clone(),
                route: limit.place.route.clone(),
                limit: limit.name.clone(),
                is_dry: limit.of.dry_run,
                refused,
                delayed,
                forgotten,
                bytes: bytes as u64,
            }
        };
        self.all().map(metrics).collect()
    }

    /// Returns the limits of a route, those of its site first, for one core. `None` if there are none.
    pub fn of(&self, site: usize, route: usize, notices: Option<&ErrorLog>) -> Option<RateRules> {
        let site = self.0.get(site)?;
        rules(site.own.iter().chain(site.routes.get(route)?).collect(), notices)
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
    let policies: Vec<&str> =
        all.iter().filter(|limit| !limit.of.dry_run).filter_map(|limit| limit.policy.as_deref()).collect();
    let rule =
        |shared: &Arc<SharedLimit>| RateRule { shared: shared.clone(), except: sources(&shared.of.except) };
    Some(RateRules {
        policies: policies.join(", "),
        has_misses: all.iter().any(|limit| limit.of.misses_only),
        rules: all.into_iter().map(rule).collect(),
        notices: notices.cloned(),
    })
}

impl SharedLimit {
    fn new(of: &RateLimit, place: RouteLabels, memory: &MemoryBudget) -> SharedLimit {
        let (memory, name) = (memory.clone(), of.name());
        let account = Arc::new(move |before, after| memory.change(before, after));
        let keys_max = of.keys_max as usize;
        if let Some(max) = of.concurrent {
            let counter = LimitCounter::Concurrent(Arc::new(ConcurrencyLimiter::new(max, keys_max, account)));
            return SharedLimit { of: of.clone(), place, counter, shared: None, name, policy: None };
        }
        let rate = of.rate();
        let quota = Quota::new(rate.count, rate.period, of.burst());
        let options = LimiterOptions { quota, delay_max: of.delay, delayed_max: of.delayed_max, keys_max };
        let limiter = Arc::new(match of.shared {
            true => Limiter::shared(options, account, &shared::scope(of, &place)),
            false => Limiter::new(options, account),
        });
        let shared = of.shared.then(|| shared::table(&limiter));
        let policy = Some(policy_item(&name, &quota));
        SharedLimit { of: of.clone(), place, counter: LimitCounter::Rate(limiter), shared, name, policy }
    }

    fn hasher(&self) -> KeyHasher {
        match &self.counter {
            LimitCounter::Rate(limiter) => limiter.hasher(),
            LimitCounter::Concurrent(limiter) => limiter.hasher(),
        }
    }

    /// Describes the limit for the log.
    fn amount(&self) -> String {
        match (self.of.rate, self.of.concurrent) {
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
    pub(crate) has_misses: bool,
    notices: Option<ErrorLog>,
}

struct RateRule {
    shared: Arc<SharedLimit>,
    except: Sources,
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
pub(crate) struct Checked {
    /// Index of the limit that refuses the request, and the time until it would admit it in nanoseconds.
    /// `None` for a concurrency limit, where the time is unknown.
    refused: Option<(usize, Option<u64>)>,
    wait_ns: u64,
    places: Vec<DelayPlace>,
    /// Permits of the concurrency limits.
    under_way: Vec<ConcurrencyPlace>,
    /// Items of `RateLimit` for the response to an admitted request.
    states: Vec<String>,
}

impl Checked {
    /// Whether the request passes without delay, permits or response fields.
    pub(crate) fn is_plain(&self) -> bool {
        self.refused.is_none()
            && self.places.is_empty()
            && self.states.is_empty()
            && self.under_way.is_empty()
    }
}

impl RateRules {
    /// Counts a request. Allocates only if the request is delayed, response fields are needed, or the key is
    /// encoded.
    pub(crate) fn check(&self, x: &Exchange<'_>, counted: CountedRequests) -> Checked {
        let (request, now_ns) = (x.request(), x.core().now_us().saturating_mul(1_000));
        let client = request.client().address;
        let is_asked = |rule: &RateRule| {
            let is_of_kind = match counted {
                CountedRequests::All => true,
                CountedRequests::Requests => !rule.shared.of.misses_only,
                CountedRequests::Misses => rule.shared.of.misses_only,
            };
            is_of_kind && !rule.except.contains(client)
        };
        let mut checked = Checked::default();
        for (index, rule) in self.rules.iter().enumerate().filter(|(_, rule)| is_asked(rule)) {
            let shared = &rule.shared;
            let limiter = match &shared.counter {
                LimitCounter::Rate(limiter) => limiter,
                LimitCounter::Concurrent(limiter) => {
                    let (key, is_dry) = (rule.key(&request).key(), shared.of.dry_run);
                    if is_dry && limiter.is_full(key) {
                        self.report(shared, client, "would be refused (dry run)");
                    }
                    match limiter.enter(key, is_dry) {
                        Ok(place) => checked.under_way.extend(place),
                        Err(TooMany) => {
                            self.report(shared, client, "refused");
                            self.refund(index, &checked, &is_asked, (&request, now_ns));
                            return Checked { refused: Some((index, None)), ..Checked::default() };
                        }
                    }
                    continue;
                }
            };
            match limiter.admit(rule.key(&request).limit_key(), now_ns) {
                LimitVerdict::Pass { full_at_ns } if shared.of.headers && !shared.of.dry_run => {
                    let (left, next_ns) = limiter.left(full_at_ns, now_ns);
                    checked.states.push(state_item(&shared.name, LimitState { left, next_ns }));
                }
                LimitVerdict::Pass { .. } => {}
                verdict @ (LimitVerdict::Delay { .. } | LimitVerdict::Refuse { .. }) if shared.of.dry_run => {
                    if let LimitVerdict::Delay { place, .. } = verdict {
                        place.take();
                    }
                    self.report(shared, client, "would be refused or delayed (dry run)");
                }
                LimitVerdict::Delay { wait_ns, place } => {
                    checked.wait_ns = checked.wait_ns.max(wait_ns);
                    checked.places.push(place);
                }
                LimitVerdict::Refuse { retry_ns } => {
                    self.report(shared, client, "refused");
                    self.refund(index, &checked, &is_asked, (&request, now_ns));
                    return Checked { refused: Some((index, Some(retry_ns))), ..Checked::default() };
                }
            }
        }
        checked
    }

    /// Refunds the request to the limits before `index`, the one that refuses it.
    fn refund(
        &self,
        index: usize,
        checked: &Checked,
        is_asked: &impl Fn(&RateRule) -> bool,
        (request, now_ns): (&Request<'_>, u64),
    ) {
        for rule in self.rules[..index].iter().filter(|rule| is_asked(rule) && !rule.shared.of.dry_run) {
            let LimitCounter::Rate(limiter) = &rule.shared.counter else { continue };
            // Limits that would delay the request are refunded when `checked.places` is dropped.
            if !checked.places.iter().any(|place| place.is_of(limiter)) {
                limiter.refund(rule.key(request).limit_key(), now_ns);
            }
        }
    }

    /// Carries out the result: delays or answers the request. Returns `false` if it has been answered.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) async fn apply(&self, x: &mut Exchange<'_>, checked: Checked) -> Result<bool, Fault> {
        if let Some((index, retry_ns)) = checked.refused {
            self.refuse(x, &self.rules[index].shared, retry_ns).await?;
            return Ok(false);
        }
        if !checked.places.is_empty() {
            x.hold(DELAYED_BYTES);
            let has_left = {
                let mut turn = pin!(x.core().sleep(checked.wait_ns.div_ceil(1_000_000)));
                poll_fn(|cx| match x.poll_left(cx) {
                    true => Poll::Ready(true),
                    false => turn.as_mut().poll(cx).map(|()| false),
                })
                .await
            };
            x.hold(0);
            if has_left {
                return Err(Fault::Gone);
            }
            checked.places.into_iter().for_each(DelayPlace::take);
        }
        if !checked.under_way.is_empty() {
            x.keep(Rc::new(checked.under_way));
        }
        if !checked.states.is_empty() {
            let mut fields = Fields::new();
            self.add_fields(&mut fields, &checked.states.join(", "));
            x.add_fields(&fields);
        }
        Ok(true)
    }

    async fn refuse(
        &self,
        x: &mut Exchange<'_>,
        shared: &SharedLimit,
        retry_ns: Option<u64>,
    ) -> Result<(), Fault> {
        let mut fields = Fields::new();
        let retry_s = retry_ns.unwrap_or(0).div_ceil(1_000_000_000).max(1);
        fields.push(Name::RetryAfter, retry_s.to_string().as_bytes());
        if let Some(retry_ns) = retry_ns {
            let state = LimitState { left: 0, next_ns: retry_ns.max(1) };
            self.add_fields(&mut fields, &state_item(&shared.name, state));
        }
        fields.push(Name::CacheControl, b"no-store");
        let status = Status::of(shared.of.status).expect("the configuration holds statuses of three digits");
        x.refuse_with(status, REASON, &fields).await
    }

    fn add_fields(&self, fields: &mut Fields, states: &str) {
        for (name, value) in [("RateLimit-Policy", &*self.policies), ("RateLimit", states)] {
            fields.try_push(name.as_bytes(), value.as_bytes()).expect("names of limits are printable ASCII");
        }
    }

    /// Reports at most one line per second for each limit, regardless of the number of clients.
    fn report(&self, shared: &SharedLimit, client: Peer, what: &str) {
        let Some(notices) = &self.notices else { return };
        let SharedLimit { place, name, .. } = shared;
        let kind = format!(
            "limit \"{name}\" of {} (site {}, route {}): {what}",
            shared.amount(),
            place.site,
            place.route_name()
        );
        notices.once_a_second(Level::Warn, kind.clone(), || format!("{client}: {kind}"));
    }
}

impl RateRule {
    /// Returns the hasher of a request's key. A key that the request does not have is replaced by its client.
    fn key(&self, request: &Request<'_>) -> KeyHasher {
        let of = &self.shared.of;
        let mut hasher = self.shared.hasher();
        for part in &of.key {
            let value = match part {
                RateKey::Client => None,
                RateKey::Header(name) => {
                    let is_of = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
                    let fields = request.fields().filter(|(_, other, _)| is_of(other));
                    sole(fields.map(|(.., value)| Cow::Borrowed(value)))
                }
                RateKey::Cookie(name) => {
                    let cookies = cache::vary::cookies(request.head());
                    let values = cookies.filter(|(other, _)| *other == name.as_bytes());
                    sole(values.map(|(_, value)| cookie_value(value)))
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
pub(crate) fn add_client(hasher: &mut KeyHasher, client: Peer, of: &RateLimit) {
    let address = match client {
        Peer::Unix => return hasher.add(b"unix"),
        Peer::Tcp(address) => address.ip().to_canonical(),
    };
    match address {
        std::net::IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(of.ipv4_prefix)).unwrap_or(0);
            hasher.add(&(address.to_bits() & mask).to_be_bytes());
        }
        std::net::IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(of.ipv6_prefix)).unwrap_or(0);
            hasher.add(&(address.to_bits() & mask).to_be_bytes());
        }
    }
}

/// Returns the common value of all occurrences. `None` if they differ, because origins differ in which one
/// they use.
fn sole<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|other| other == first).then_some(first)
}

/// Returns the value of a query parameter, decoded as origins do.
fn parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<Cow<'q, [u8]>> {
    sole(form::values(query, name)).flatten()
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
        if checked.is_plain() {
            return Ok(Flow::Continue);
        }
        // Boxed because it is rare.
        Ok(Flow::of_admission(Box::pin(self.apply(exchange, checked)).await?))
    }

    /// Whether a limit counts only requests that the cache does not answer.
    #[must_use]
    pub fn counts_misses(&self) -> bool {
        self.has_misses
    }
}

#[cfg(test)]
mod tests;
