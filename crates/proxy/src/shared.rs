//! State shared by the cores of a proxy: health, load, addresses and TLS sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use failure::{Failure, FailureContext};
use net::{TlsClient, TlsClientOptions, TlsHttp};
use times::Moment;

use crate::connection_limiter::ConnectionLimiter;
use crate::counts::{UpstreamCounterSets, UpstreamCounters};
use crate::hash::hash;
use crate::health::{Health, ServerState, UpstreamOrder};
use crate::options::{Balance, GroupOptions, UpstreamAddress, UpstreamProtocol, UpstreamServer};
use crate::pool::SharedPool;
use crate::server_addresses::ServerAddresses;

/// State of a group of upstream servers, shared by all cores. Each core creates its [`crate::Group`] from it.
#[derive(Debug)]
pub struct GroupShared {
    pub(crate) options: Arc<GroupOptions>,
    pub(crate) servers: Vec<Upstream>,
    pub(crate) limiter: ConnectionLimiter,
    /// Whether loads are counted over all cores, because the balancing method or a limit needs them.
    pub(crate) counts_load: bool,
    /// Whether there is a single server without a limit or cookie, so that there is nothing to choose.
    pub(crate) has_single_server: bool,
    /// Whether request bodies are read completely first, because a server needs that.
    pub(crate) stores_bodies: bool,
    /// Whether a core runs the health checks.
    pub(crate) has_health_checker: AtomicBool,
}

/// State of one server.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// `host[:port]`, as in `Host`.
    pub(crate) authority: String,
    /// Identifier of the server in cookies and hashes.
    pub(crate) id: u64,
    pub(crate) health: Health,
    /// `None` for a Unix socket.
    pub(crate) addresses: Option<Arc<ServerAddresses>>,
    pub(crate) tls: Option<TlsClient>,
    /// TLS for HTTP/2; `None` without TLS or if the server does not use HTTP/2.
    pub(crate) tls_shared: Option<TlsClient>,
    /// Idle connections to the server, shared with other groups that use it.
    pub(crate) idle: Arc<SharedPool>,
    /// Counters of the server, shared with other groups that use it.
    pub(crate) counter_sets: Arc<UpstreamCounterSets>,
    /// Current weight: the configured one, unless an operator has changed it.
    weight: AtomicU32,
    /// Display name, by default the URL.
    pub(crate) display_name: String,
}

impl GroupShared {
    /// Creates the state of a group. Names are not resolved yet.
    ///
    /// # Errors
    /// Describes an error in the options: no server, or unreadable certificates.
    pub fn new(options: GroupOptions) -> Result<Arc<GroupShared>, Failure> {
        GroupShared::build(options).map(Arc::new)
    }

    pub(crate) fn build(options: GroupOptions) -> Result<GroupShared, Failure> {
        if options.servers.is_empty() {
            return Err("a proxy needs a server".into());
        }
        let servers = options
            .servers
            .iter()
            .map(|server| Upstream::new(server, options.allows_local))
            .collect::<Result<Vec<_>, _>>()?;
        let limits: Vec<u32> = options.servers.iter().map(|server| server.connections_max).collect();
        let by_load = matches!(options.balance, Balance::LeastRequests | Balance::TwoChoices);
        let counted = by_load || limits.iter().any(|&limit| limit > 0);
        let is_sticky = matches!(options.balance, Balance::Sticky { .. });
        let is_cgi = |server: &UpstreamServer| matches!(server.protocol, UpstreamProtocol::Cgi(_));
        Ok(GroupShared {
            stores_bodies: options.servers.iter().any(is_cgi),
            has_single_server: servers.len() == 1 && !counted && !is_sticky,
            counts_load: counted,
            limiter: ConnectionLimiter::new(limits, options.queue_max),
            servers,
            has_health_checker: AtomicBool::new(false),
            options: options.into(),
        })
    }

    /// Returns the options of the group.
    #[must_use]
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Returns the display name of a server (by default its URL). `server` is an index into the options.
    #[must_use]
    pub fn display_name(&self, server: usize) -> &str {
        &self.servers[server].display_name
    }

    /// Returns the number of requests that wait for a server below its limit.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.limiter.waiting()
    }

    /// Returns the counters of a server, one set per core. Groups that use the same URL share them.
    #[must_use]
    pub fn counters(&self, server: usize) -> Vec<Arc<UpstreamCounters>> {
        self.servers[server].counter_sets.all()
    }

    /// Returns the state of a server at a time of the cores' clock.
    #[must_use]
    pub fn state(&self, server: usize, now: Moment) -> ServerState {
        self.servers[server].health.state(now)
    }

    /// Returns the state of a server as it is reported. One that does not exist at present is down, although requests are
    /// answered 502 because of it, and not 503.
    #[must_use]
    pub fn reported_state(&self, server: usize, now: Moment) -> ServerState {
        if self.options.servers[server].is_absent() { ServerState::Down } else { self.state(server, now) }
    }

    /// Returns the state of a server regardless of the operator's order.
    #[must_use]
    pub fn observed_state(&self, server: usize, now: Moment) -> ServerState {
        if self.options.servers[server].is_absent() {
            return ServerState::Down;
        }
        self.servers[server].health.observed_state(now)
    }

    /// Returns the operator's order for a server.
    #[must_use]
    pub fn order(&self, server: usize) -> UpstreamOrder {
        self.servers[server].health.order()
    }

    /// Sets the operator's order for a server. Requests under way complete; kept connections to a server out
    /// of service are closed by the next sweep.
    pub fn set_order(&self, server: usize, order: UpstreamOrder, now: Moment) {
        self.servers[server].health.set_order(order, now);
        if order == UpstreamOrder::Ready {
            self.assign_waiting(now);
        }
    }

    /// Returns the weight of a server.
    #[must_use]
    pub fn weight(&self, server: usize) -> u32 {
        self.servers[server].weight.load(Ordering::Relaxed)
    }

    /// Changes the weight of a server, until a new configuration has a different one.
    pub fn set_weight(&self, server: usize, weight: u32, now: Moment) {
        self.servers[server].weight.store(weight, Ordering::Relaxed);
        self.assign_waiting(now);
    }

    /// Returns the number of requests under way on a server.
    #[must_use]
    pub fn active_requests(&self, server: usize) -> u64 {
        let each = self.counters(server);
        let ended: u64 = each.iter().map(|core| core.ended.value()).sum();
        each.iter().map(|core| core.requests.value()).sum::<u64>().saturating_sub(ended)
    }

    /// Assigns waiting requests after a server has returned to service.
    pub(crate) fn assign_waiting(&self, now: Moment) {
        self.limiter.assign_waiting(|server| self.is_usable(server, now));
    }

    /// Whether a server may be assigned to a waiting request.
    pub(crate) fn is_usable(&self, server: usize, now: Moment) -> bool {
        self.is_serving(server, now) && self.is_eligible(server, now)
    }

    fn is_serving(&self, server: usize, now: Moment) -> bool {
        self.weight(server) > 0 && self.state(server, now) == ServerState::Up
    }

    /// Whether a server is not a backup, or all servers that are not backups are out of service; busy servers
    /// do not count as such.
    pub(crate) fn is_eligible(&self, server: usize, now: Moment) -> bool {
        let servers = &self.options.servers;
        !servers[server].backup
            || !(0..servers.len()).any(|other| !servers[other].backup && self.is_serving(other, now))
    }
}

impl Upstream {
    /// Keeps the weight that an operator has set for server `index` of `group`, the previous one, unless the configured
    /// weight has changed.
    pub(crate) fn resume_weight(&self, group: &GroupShared, index: usize) {
        if group.options.servers[index].weight == self.weight.load(Ordering::Relaxed) {
            self.weight.store(group.weight(index), Ordering::Relaxed);
        }
    }

    fn new(server: &UpstreamServer, allows_local: bool) -> Result<Upstream, Failure> {
        let shown = server.to_string();
        let (names, host) = match &server.address {
            UpstreamAddress::Unix(_) => (None, "localhost"),
            UpstreamAddress::Tcp { host, port } => {
                (Some(Arc::new(ServerAddresses::new(host, *port, allows_local))), host.as_str())
            }
        };
        let client = |http: TlsHttp| {
            let Some(tls) = &server.tls else { return Ok(None) };
            let options = TlsClientOptions {
                name: tls.name.as_deref().unwrap_or(host),
                roots_pem: tls.roots_pem.as_deref(),
                identity_pem: tls.identity_pem.as_ref().map(|(chain, key)| (&chain[..], &key[..])),
                verify_names: &tls.verify_names,
                insecure: tls.insecure,
                http,
                ..TlsClientOptions::default()
            };
            TlsClient::new(&options).map(Some).context(&shown)
        };
        let tls = client(TlsHttp::Http1)?;
        let tls_shared = match server.protocol {
            UpstreamProtocol::Http2 => client(TlsHttp::Http2)?,
            UpstreamProtocol::Http3 => client(TlsHttp::Http3)?,
            _ => None,
        };
        let id = hash(shown.as_bytes());
        Ok(Upstream {
            authority: server.authority(),
            id,
            health: Health::default(),
            addresses: names,
            tls,
            tls_shared,
            idle: Arc::default(),
            counter_sets: Arc::default(),
            weight: AtomicU32::new(server.weight),
            display_name: shown,
        })
    }
}
