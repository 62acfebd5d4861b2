//! What the cores of one proxy share: who is well, how much each server has to do, addresses, TLS sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use net::{TlsClient, TlsClientOptions};

use crate::counts::{UpstreamCounters, UpstreamCounts};
use crate::gate::ConnectionLimiter;
use crate::hash::hash;
use crate::health::{Health, ServerState, UpstreamOrder};
use crate::names::ServerAddresses;
use crate::options::{Balance, GroupOptions, UpstreamAddress, UpstreamProtocol, UpstreamServer};
use crate::pool::IdleEntry;

/// The state of a group of upstream servers. Made once; each core makes its [`crate::Proxy`] from it.
#[derive(Debug)]
pub struct GroupShared {
    pub(crate) options: Arc<GroupOptions>,
    pub(crate) servers: Vec<Upstream>,
    pub(crate) gate: ConnectionLimiter,
    /// Loads are counted over all cores: somebody looks at them.
    pub(crate) counted: bool,
    /// There is one server, which takes any number of requests and needs no cookie: nothing to choose.
    pub(crate) alone: bool,
    /// A server takes requests whose bodies are here as a whole.
    pub(crate) stores_bodies: bool,
    /// A core runs the checks.
    pub(crate) checked: AtomicBool,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// `host[:port]`, as in `Host`.
    pub(crate) authority: String,
    /// Identifies it, in cookies and hashes.
    pub(crate) id: u64,
    pub(crate) health: Health,
    /// `None` for a Unix socket.
    pub(crate) names: Option<Arc<ServerAddresses>>,
    pub(crate) tls: Option<TlsClient>,
    /// TLS for HTTP/2; `None` where the server is not asked over that, or in the clear.
    pub(crate) tls_http2: Option<TlsClient>,
    /// Idle connections to it, which other groups that ask it share.
    pub(crate) idle: Arc<IdleEntry>,
    /// What the cores count of it, also for other groups that ask it.
    pub(crate) counts: Arc<UpstreamCounts>,
    /// Its share of the requests: that of the options, unless an operator has changed it.
    weight: AtomicU32,
    /// Its URL.
    pub(crate) shown: String,
}

impl GroupShared {
    /// The state of a group. Names are not resolved yet.
    ///
    /// # Errors
    /// What is wrong with the options, in words: no server, certificates that cannot be read.
    pub fn new(options: GroupOptions) -> Result<Arc<GroupShared>, String> {
        GroupShared::build(options).map(Arc::new)
    }

    pub(crate) fn build(options: GroupOptions) -> Result<GroupShared, String> {
        if options.servers.is_empty() {
            return Err("a proxy needs a server".into());
        }
        let servers = options.servers.iter().map(Upstream::new).collect::<Result<Vec<_>, _>>()?;
        let limits: Vec<u32> = options.servers.iter().map(|server| server.connections_max).collect();
        let by_load = matches!(options.balance, Balance::LeastRequests | Balance::TwoChoices);
        let counted = by_load || limits.iter().any(|&limit| limit > 0);
        let is_sticky = matches!(options.balance, Balance::Sticky { .. });
        let is_cgi = |server: &UpstreamServer| matches!(server.protocol, UpstreamProtocol::Cgi(_));
        Ok(GroupShared {
            stores_bodies: options.servers.iter().any(is_cgi),
            alone: servers.len() == 1 && !counted && !is_sticky,
            counted,
            gate: ConnectionLimiter::new(limits, options.queue_max),
            servers,
            checked: AtomicBool::new(false),
            options: options.into(),
        })
    }

    /// What it was made by.
    #[must_use]
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// How many servers there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// The URL of a server, by its place in the options.
    #[must_use]
    pub fn shown(&self, server: usize) -> &str {
        &self.servers[server].shown
    }

    /// Requests that wait for a server that is below its limit.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }

    /// What the cores have counted of a server. Groups that ask the same URL count together.
    #[must_use]
    pub fn counters(&self, server: usize) -> Vec<Arc<UpstreamCounters>> {
        self.servers[server].counts.all()
    }

    /// How a server stands at a time of the cores' clock.
    #[must_use]
    pub fn standing(&self, server: usize, now_ms: u64) -> ServerState {
        self.servers[server].health.standing(now_ms)
    }

    /// The same, whatever an operator has ordered.
    #[must_use]
    pub fn condition(&self, server: usize, now_ms: u64) -> ServerState {
        self.servers[server].health.condition(now_ms)
    }

    /// What an operator has ordered for a server.
    #[must_use]
    pub fn order(&self, server: usize) -> UpstreamOrder {
        self.servers[server].health.order()
    }

    /// Gives a server no more requests (or gives it some again). Those under way end in peace; kept connections to
    /// it are closed when they are found.
    pub fn set_order(&self, server: usize, order: UpstreamOrder, now_ms: u64) {
        self.servers[server].health.set_order(order, now_ms);
        if order == UpstreamOrder::Ready {
            self.came(now_ms);
        }
    }

    /// A server's share of the requests.
    #[must_use]
    pub fn weight(&self, server: usize) -> u32 {
        self.servers[server].weight.load(Ordering::Relaxed)
    }

    /// Changes that share until the configuration says another.
    pub fn set_weight(&self, server: usize, weight: u32, now_ms: u64) {
        self.servers[server].weight.store(weight, Ordering::Relaxed);
        self.came(now_ms);
    }

    /// Requests under way on a server.
    #[must_use]
    pub fn active(&self, server: usize) -> u64 {
        let each = self.counters(server);
        let ended: u64 = each.iter().map(|core| core.ended.value()).sum();
        each.iter().map(|core| core.requests.value()).sum::<u64>().saturating_sub(ended)
    }

    /// A server is back: who waits may have it.
    pub(crate) fn came(&self, now_ms: u64) {
        self.gate.came(|server| self.is_usable(server, now_ms));
    }

    /// Whether a server may be handed a request that has waited.
    pub(crate) fn is_usable(&self, server: usize, now_ms: u64) -> bool {
        self.serves(server, now_ms) && self.is_its_turn(server, now_ms)
    }

    fn serves(&self, server: usize, now_ms: u64) -> bool {
        self.weight(server) > 0 && self.standing(server, now_ms) == ServerState::Up
    }

    /// A backup's turn is when all others are out of service, not when they are busy.
    pub(crate) fn is_its_turn(&self, server: usize, now_ms: u64) -> bool {
        let servers = &self.options.servers;
        !servers[server].backup
            || !(0..servers.len()).any(|other| !servers[other].backup && self.serves(other, now_ms))
    }
}

impl Upstream {
    /// Keeps the weight that an operator has given the server at that place of another group, if the configuration says what it said.
    pub(crate) fn resume_weight(&self, group: &GroupShared, at: usize) {
        if group.options.servers[at].weight == self.weight.load(Ordering::Relaxed) {
            self.weight.store(group.weight(at), Ordering::Relaxed);
        }
    }

    fn new(server: &UpstreamServer) -> Result<Upstream, String> {
        let shown = server.to_string();
        let (names, host) = match &server.at {
            UpstreamAddress::Unix(_) => (None, "localhost"),
            UpstreamAddress::Tcp { host, port } => {
                (Some(Arc::new(ServerAddresses::new(host, *port))), host.as_str())
            }
        };
        let client = |http2: bool| {
            let Some(tls) = &server.tls else { return Ok(None) };
            let options = TlsClientOptions {
                name: tls.name.as_deref().unwrap_or(host),
                roots_pem: tls.roots_pem.as_deref(),
                identity_pem: tls.identity_pem.as_ref().map(|(chain, key)| (&chain[..], &key[..])),
                insecure: tls.insecure,
                http2,
                ..TlsClientOptions::default()
            };
            TlsClient::new(&options).map(Some).map_err(|error| format!("{shown}: {error}"))
        };
        let tls = client(false)?;
        let tls_http2 = if server.is_http2() { client(true)? } else { None };
        let id = hash(shown.as_bytes());
        Ok(Upstream {
            authority: server.authority(),
            id,
            health: Health::default(),
            names,
            tls,
            tls_http2,
            idle: Arc::default(),
            counts: Arc::default(),
            weight: AtomicU32::new(server.weight),
            shown,
        })
    }
}
