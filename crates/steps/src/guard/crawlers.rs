//! Refusal of crawlers: by user agent, by the number of different pages they open, or by a trap path.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use admission::crawlers::Crawlers;
use admission::limits::RateLimit;
use admission::{LimitVerdict, Limiter, LimiterOptions, Quota, SeenKeys};
use engine::clients::proxies::peer_set;
use http::{Fields, Method, Name, Status};
use net::{Exchange, Fault, MemoryBudget, PeerSet, Request};
use shapes::rate::Rate;
use telemetry::rule_counters::{RuleCounter, RuleCounters};

use crate::flow::Flow;
use crate::limit::add_client;

/// Maximum networks that are counted, networks that are trapped, and pages that are remembered, for each
/// site.
const KEYS_MAX: usize = 50_000;
/// Bytes of a `User-Agent` that are searched, and the maximum length of a token in it.
const AGENT_BYTES_MAX: usize = 1024;
const TOKEN_BYTES_MAX: usize = 64;
const ROBOTS_PATH: &[u8] = b"/robots.txt";
const TOO_MANY: Status = Status::of(429).expect("three digits");
/// Extensions of files that belong to a page, such as images and style sheets.
const ASSETS: [&[u8]; 20] = [
    b"css", b"js", b"mjs", b"map", b"png", b"jpg", b"jpeg", b"gif", b"svg", b"webp", b"avif", b"ico",
    b"woff", b"woff2", b"ttf", b"otf", b"mp4", b"webm", b"mp3", b"ogg",
];

/// Counts of a site's crawlers, shared by all cores.
pub struct CrawlerShared {
    /// Limit of different pages per network. Its hasher makes the keys of all three tables.
    limiter: Arc<Limiter>,
    /// Pages that each network has opened recently, if there is a limit.
    opened: Option<SeenKeys>,
    /// Networks that have requested the trap path, which robots.txt forbids.
    trapped: Option<SeenKeys>,
    by_name: Arc<RuleCounter>,
    by_pages: Arc<RuleCounter>,
    by_trap: Arc<RuleCounter>,
}

/// Crawler rules of a site, on one core.
pub struct CrawlerRule {
    shared: Arc<CrawlerShared>,
    /// Refused product tokens, in lower case.
    denied: HashSet<Box<[u8]>>,
    robots: Option<String>,
    trap: Option<Vec<u8>>,
    trap_ns: u64,
    pages_ns: u64,
    except: PeerSet,
    /// Prefix lengths that define a client's network.
    network: RateLimit,
}

impl CrawlerShared {
    /// Creates the counts of a site. Their memory is charged to `memory`.
    pub fn new(
        config: &Crawlers,
        site: &str,
        memory: &MemoryBudget,
        counters: &RuleCounters,
    ) -> CrawlerShared {
        let account = || -> admission::TableAccount {
            let memory = memory.clone();
            Arc::new(move |before, after| memory.change(before, after))
        };
        let counter = |reason: &str| {
            counters.counter(
                "komainu_crawlers_refused",
                vec![("site", site.to_owned()), ("reason", reason.to_owned())],
            )
        };
        let rate = config.pages.unwrap_or(Rate { count: 1, period: Duration::from_secs(1) });
        let quota = Quota::new(rate.count, rate.period, rate.count.saturating_sub(1));
        let options = LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: KEYS_MAX };
        CrawlerShared {
            limiter: Arc::new(Limiter::new(options, account())),
            opened: config.pages.map(|_| SeenKeys::new(KEYS_MAX, account())),
            trapped: config.trap.as_ref().map(|_| SeenKeys::new(KEYS_MAX, account())),
            by_name: counter("name"),
            by_pages: counter("pages"),
            by_trap: counter("trap"),
        }
    }
}

impl CrawlerRule {
    /// Creates the rules of one core. No robots.txt is generated if the site has its own (`has_robots`).
    pub fn new(config: &Crawlers, has_robots: bool, shared: Arc<CrawlerShared>) -> CrawlerRule {
        let in_requests = config.denied_names().into_iter().filter(|(_, is_for_robots)| !is_for_robots);
        CrawlerRule {
            shared,
            denied: in_requests.map(|(name, _)| name.to_ascii_lowercase().into_bytes().into()).collect(),
            robots: (config.robots && !has_robots).then(|| config.robots_text()),
            trap: config.trap.as_ref().map(|path| path.clone().into_bytes()),
            trap_ns: times::nanos(config.trap_time),
            pages_ns: config.pages.map_or(0, |rate| times::nanos(rate.period)),
            except: peer_set(&config.except),
            network: RateLimit {
                ipv4_prefix: config.ipv4_prefix,
                ipv6_prefix: config.ipv6_prefix,
                ..RateLimit::default()
            },
        }
    }

    /// Returns the generated robots.txt, if there is one.
    pub(super) fn robots(&self) -> Option<&str> {
        self.robots.as_deref()
    }

    /// Refuses a request of a crawler, except for robots.txt.
    pub(super) async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        let request = exchange.request();
        if request.path() == ROBOTS_PATH {
            let is_read = matches!(request.method(), Method::Get | Method::Head);
            let is_made = is_read && self.robots.is_some();
            return Ok(if is_made { Flow::Robots } else { Flow::Continue });
        }
        if self.except.contains(request.client().address) {
            return Ok(Flow::Continue);
        }
        let is_denied = |(id, _, agent): (Name, _, _)| id == Name::UserAgent && self.is_denied_agent(agent);
        if !self.denied.is_empty() && request.fields().any(is_denied) {
            self.shared.by_name.add(1);
            return refuse(exchange, "this crawler is not welcome here: see /robots.txt").await;
        }
        let now_ns = exchange.core().now_us().saturating_mul(1_000);
        if self.is_trapped(&request, now_ns) {
            self.shared.by_trap.add(1);
            return refuse(
                exchange,
                "this address was asked for although /robots.txt forbids it: try again later",
            )
            .await;
        }
        let Some(retry_ns) = self.count_page(&request, now_ns) else { return Ok(Flow::Continue) };
        self.shared.by_pages.add(1);
        let mut fields = Fields::new();
        fields.push(Name::RetryAfter, retry_ns.div_ceil(1_000_000_000).max(1).to_string().as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange.refuse_with(TOO_MANY, "too many different pages: try again later", &fields).await?;
        Ok(Flow::Answered)
    }

    /// Whether a `User-Agent` contains a refused product token.
    fn is_denied_agent(&self, agent: &[u8]) -> bool {
        let agent = &agent[..agent.len().min(AGENT_BYTES_MAX)];
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let tokens = agent.split(|byte| !is_part(byte));
        let mut space = [0; TOKEN_BYTES_MAX];
        tokens.filter(|token| (1..=TOKEN_BYTES_MAX).contains(&token.len())).any(|token| {
            let lower = &mut space[..token.len()];
            lower.copy_from_slice(token);
            lower.make_ascii_lowercase();
            self.denied.contains(&*lower)
        })
    }

    /// Whether the client's network requests the trap path, or has done so recently.
    fn is_trapped(&self, request: &Request<'_>, now_ns: u64) -> bool {
        let (Some(trap), Some(trapped)) = (&self.trap, &self.shared.trapped) else { return false };
        let key = self.key(request, None);
        // Another site may embed this URL as an image: its visitors are not crawlers.
        let is_sent_here = || {
            let mut fields = request.fields();
            fields.any(|(_, name, value)| {
                name.eq_ignore_ascii_case(b"sec-fetch-site") && value == b"cross-site"
            })
        };
        if request.normal_path().is_ok_and(|path| *path == **trap) && !is_sent_here() {
            trapped.insert(key, now_ns, now_ns.saturating_add(self.trap_ns));
            return true;
        }
        trapped.contains(key, now_ns)
    }

    /// Counts a page. An asset refunds one page instead, because browsers load the assets of the pages they
    /// open. Returns the time until the page would be admitted, in nanoseconds, if the limit is exceeded.
    fn count_page(&self, request: &Request<'_>, now_ns: u64) -> Option<u64> {
        let (limiter, Some(opened)) = (&self.shared.limiter, &self.shared.opened) else { return None };
        if !matches!(request.method(), Method::Get | Method::Head) {
            return None;
        }
        let network = self.key(request, None);
        if is_asset(request.path()) {
            limiter.refund(network, now_ns);
            return None;
        }
        let page = self.key(request, Some(request.path()));
        if opened.contains(page, now_ns) {
            return None;
        }
        match limiter.admit(network, now_ns) {
            LimitVerdict::Refuse { retry_ns } => Some(retry_ns),
            LimitVerdict::Pass { .. } | LimitVerdict::Delay { .. } => {
                opened.insert(page, now_ns, now_ns.saturating_add(self.pages_ns));
                None
            }
        }
    }

    /// Returns the key of a client's network, or of a page opened by it.
    fn key(&self, request: &Request<'_>, page: Option<&[u8]>) -> u64 {
        let mut hasher = self.shared.limiter.hasher();
        add_client(&mut hasher, request.client().address, &self.network);
        if let Some(page) = page {
            hasher.add(page);
        }
        hasher.key()
    }
}

async fn refuse(exchange: &mut Exchange<'_>, reason: &'static str) -> Result<Flow, Fault> {
    let mut fields = Fields::new();
    fields.push(Name::CacheControl, b"no-store");
    exchange.refuse_with(Status::FORBIDDEN, reason, &fields).await?;
    Ok(Flow::Answered)
}

/// Whether a path ends with an extension of [`ASSETS`].
fn is_asset(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else { return false };
    ASSETS.iter().any(|ending| name[dot + 1..].eq_ignore_ascii_case(ending))
}
