//! Chooses the server for a request: turns the group's state into candidates for [`crate::balance`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll};

use http::{Method, Status};
use net::proxy_protocol::Endpoints;
use net::{Core, Exchange};
use times::{Millis, Moment};

use crate::balance::{self, Candidate, SmoothRoundRobin};
use crate::connection_limiter::QueueError;
use crate::hash::{hash, mix};
use crate::health::ServerState;
use crate::options::{Balance, HashKey};
use crate::shared::GroupShared;
use crate::template::TemplateContext;

/// The originator of a request to a group: a client's exchange, or this server itself.
pub(crate) trait Requester {
    /// Returns the template context of the request for a server with this authority.
    fn context<'x>(&'x self, upstream: &'x str) -> TemplateContext<'x>;

    /// Returns the request method.
    fn method(&self) -> Method;

    /// Whether the response has begun, so that it is too late for another attempt.
    fn has_response_begun(&self) -> bool;

    /// Whether the client has left, so that the response is no longer needed. If not, the task of `cx` is
    /// woken when that changes.
    fn poll_disconnected(&self, cx: &Context<'_>) -> bool;

    /// Both ends of the client's connection; `None` if it has no addresses.
    fn endpoints(&self) -> Option<Endpoints>;
}

impl Requester for Exchange<'_> {
    fn context<'x>(&'x self, upstream: &'x str) -> TemplateContext<'x> {
        TemplateContext::of(&self.request(), upstream)
    }

    fn method(&self) -> Method {
        self.request().method()
    }

    fn has_response_begun(&self) -> bool {
        Exchange::has_begun(self)
    }

    fn poll_disconnected(&self, cx: &Context<'_>) -> bool {
        Exchange::poll_disconnected(self, cx)
    }

    fn endpoints(&self) -> Option<Endpoints> {
        match (self.request().client().address, self.local_address()) {
            (net::Peer::Tcp(source), Some(destination)) => Some(Endpoints { source, destination }),
            _ => None,
        }
    }
}

/// Load balancer state of one core.
#[derive(Debug)]
pub(crate) struct Balancer {
    round_robin: RefCell<SmoothRoundRobin>,
    /// Kept between requests to reuse its memory.
    candidates: RefCell<Vec<Candidate>>,
    random_state: Cell<u64>,
}

/// The server chosen for a request, which counts towards the server's limit until this is dropped.
pub(crate) struct Selection<'s> {
    shared: &'s GroupShared,
    core: &'s Core,
    pub(crate) server: usize,
    /// Whether this request probes a server after its ejection.
    is_probe: Cell<bool>,
    /// The `name=value` of the sticky cookie for this server, if the client needs one.
    pub(crate) cookie: Option<String>,
}

/// Why no server was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    NoServer(NoServer),
    /// The client closed its connection.
    ClientDisconnected,
}

/// Why there is no server for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoServer {
    pub(crate) status: Status,
    pub(crate) reason: &'static str,
    pub(crate) retry_after_s: u64,
}

impl Balancer {
    /// Creates a balancer. `seed` must differ from core to core.
    pub(crate) fn new(seed: u64) -> Balancer {
        Balancer {
            round_robin: RefCell::default(),
            candidates: RefCell::default(),
            random_state: Cell::new(seed),
        }
    }

    pub(crate) fn next_random(&self) -> u64 {
        self.random_state.set(self.random_state.get().wrapping_add(1));
        mix(self.random_state.get())
    }

    /// Returns the only server of a group without a choice, if it is in service.
    #[inline]
    pub(crate) fn select_only_server<'s>(
        &self,
        shared: &'s GroupShared,
        core: &'s Core,
    ) -> Option<Selection<'s>> {
        let serves = shared.has_single_server && shared.state(0, core.now()) != ServerState::Down;
        serves.then(|| Selection { shared, core, server: 0, is_probe: Cell::new(false), cookie: None })
    }

    /// Chooses a server and counts the request on it. If all servers are at their limits, waits up to
    /// `queue` in the queue. Servers `tried` before come last.
    pub(crate) async fn choose<'s>(
        &self,
        shared: &'s GroupShared,
        core: &'s Core,
        requester: &impl Requester,
        queue: Millis,
        tried: &[usize],
    ) -> Result<Selection<'s>, SelectError> {
        let now = core.now();
        let ticket =
            |server, probes, cookie| Selection { shared, core, server, is_probe: Cell::new(probes), cookie };
        if shared.has_single_server {
            return self.select_only_server(shared, core).ok_or(SelectError::NoServer(NO_SERVER_IN_SERVICE));
        }
        if let Some(server) = self.probe(shared, now, tried) {
            if !shared.counts_load || shared.limiter.acquire(server) {
                return Ok(ticket(server, true, None));
            }
            shared.servers[server].health.release_probe();
        }
        loop {
            match self.pick(shared, now, requester, tried) {
                Picked::Server(server, cookie) => {
                    if !shared.counts_load || shared.limiter.acquire(server) {
                        return Ok(ticket(server, false, cookie));
                    }
                }
                Picked::Unavailable => return Err(SelectError::NoServer(NO_SERVER_IN_SERVICE)),
                Picked::Busy => break,
            }
        }
        let usable = |server: usize| shared.is_usable(server, core.now());
        let mut too_long = pin!(core.sleep(queue));
        // A request whose client has left must leave the queue; otherwise abandoned requests could keep the
        // queue full.
        let over = poll_fn(|context| {
            if requester.poll_disconnected(context) {
                Poll::Ready(QueueError::ClientDisconnected)
            } else {
                too_long.as_mut().poll(context).map(|()| QueueError::TimedOut)
            }
        });
        shared.limiter.wait(usable, over).await.map(|server| ticket(server, false, None)).map_err(
            |no_place| match no_place {
                QueueError::Full => SelectError::NoServer(QUEUE_FULL),
                QueueError::TimedOut => SelectError::NoServer(QUEUE_TIMEOUT),
                QueueError::ClientDisconnected => SelectError::ClientDisconnected,
            },
        )
    }

    /// Claims a server whose ejection has ended and that no request probes yet.
    fn probe(&self, shared: &GroupShared, now: Moment, tried: &[usize]) -> Option<usize> {
        (0..shared.server_count()).find(|&server| {
            !tried.contains(&server)
                && shared.state(server, now) == ServerState::Probe
                && shared.is_eligible(server, now)
                && shared.servers[server].health.claim_probe()
        })
    }

    /// Returns a draining server that still serves this client because of its sticky cookie.
    fn draining_sticky_server(
        &self,
        shared: &GroupShared,
        x: &impl Requester,
        tried: &[usize],
    ) -> Option<usize> {
        let Balance::Sticky { cookie } = &shared.options.balance else { return None };
        let drained = |server: &usize| shared.servers[*server].health.serves_sticky_clients();
        let mut drained = (0..shared.server_count()).filter(drained).peekable();
        drained.peek()?;
        let id = x.context("").values().cookie(cookie).and_then(from_hex);
        drained.find(|&server| {
            Some(shared.servers[server].id) == id
                && !tried.contains(&server)
                && (!shared.counts_load || shared.limiter.has_room(server))
        })
    }

    fn pick(&self, shared: &GroupShared, now: Moment, x: &impl Requester, tried: &[usize]) -> Picked {
        if let Some(server) = self.draining_sticky_server(shared, x, tried) {
            return Picked::Server(server, None);
        }
        let mut candidates = self.candidates.borrow_mut();
        // Order of preference: servers in service; backups; ejected servers, which may have recovered and are
        // preferred to one that has just failed this request; servers tried before.
        let mut busy = false;
        for (fallback, backup, again) in [
            (false, false, false),
            (false, true, false),
            (true, false, false),
            (true, true, false),
            (false, false, true),
            (false, true, true),
            (true, false, true),
            (true, true, true),
        ] {
            candidates.clear();
            for (server, options) in shared.options.servers.iter().enumerate() {
                let stands = match shared.state(server, now) {
                    ServerState::Up => true,
                    ServerState::Probe | ServerState::Ejected(_) => fallback,
                    ServerState::Down => false,
                };
                let could = stands && options.backup == backup && (again || !tried.contains(&server));
                let room = !shared.counts_load || shared.limiter.has_room(server);
                let upstream = &shared.servers[server];
                let weight = shared.weight(server);
                busy |= could && weight > 0 && !room;
                let share = upstream.health.weight_hundredths(weight, now, shared.options.slow_start);
                candidates.push(Candidate {
                    weight: if could && room { share } else { 0 },
                    load: if shared.counts_load { shared.limiter.load(server) } else { 0 },
                    id: upstream.id,
                });
            }
            if let Some((server, cookie)) = self.balance(shared, &candidates, x) {
                return Picked::Server(server, cookie);
            }
            // Backups replace servers that are down, not servers that are busy.
            if busy {
                return Picked::Busy;
            }
        }
        Picked::Unavailable
    }

    /// Applies the balancing method.
    fn balance(
        &self,
        shared: &GroupShared,
        candidates: &[Candidate],
        x: &impl Requester,
    ) -> Option<(usize, Option<String>)> {
        let server = match &shared.options.balance {
            Balance::RoundRobin => self.round_robin.borrow_mut().next(candidates)?,
            Balance::LeastRequests => {
                balance::least_loaded(candidates, self.next_random() as usize % candidates.len())?
            }
            Balance::TwoChoices => balance::two_choices(candidates, self.next_random())?,
            Balance::Hash(key) => balance::by_key(candidates, hash_of(key, &x.context("")))?,
            Balance::Sticky { cookie } => {
                let id = x.context("").values().cookie(cookie).and_then(from_hex);
                let named = |candidate: &Candidate| candidate.weight > 0 && Some(candidate.id) == id;
                if let Some(server) = candidates.iter().position(named) {
                    return Some((server, None));
                }
                let server = self.round_robin.borrow_mut().next(candidates)?;
                return Some((server, Some(format!("{cookie}={:016x}", candidates[server].id))));
            }
        };
        Some((server, None))
    }
}

/// The result of a choice.
enum Picked {
    Server(usize, Option<String>),
    /// All eligible servers are at their limits.
    Busy,
    Unavailable,
}

const NO_SERVER_IN_SERVICE: NoServer =
    NoServer { status: Status::SERVICE_UNAVAILABLE, reason: "no upstream is in service", retry_after_s: 5 };
const QUEUE_FULL: NoServer =
    NoServer { status: Status::SERVICE_UNAVAILABLE, reason: "too many requests wait", retry_after_s: 1 };
const QUEUE_TIMEOUT: NoServer = NoServer {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "no upstream became free in time",
    retry_after_s: 1,
};

fn hash_of(key: &HashKey, ask: &TemplateContext<'_>) -> u64 {
    match key {
        HashKey::Client => match ask.client_address().map(|address| address.ip()) {
            Some(IpAddr::V4(ip)) => hash(&ip.octets()),
            Some(IpAddr::V6(ip)) => hash(&ip.octets()),
            None => hash(b""),
        },
        HashKey::Field(name) => hash(ask.values().field(name)),
        HashKey::Cookie(name) => hash(ask.values().cookie(name).unwrap_or_default()),
        HashKey::Uri => {
            let target = &ask.head.target;
            let query = target.query.map_or(&b""[..], |query| query.of(ask.bytes));
            mix(hash(&ask.path().unwrap_or_default()) ^ mix(hash(query)))
        }
    }
}

fn from_hex(text: &[u8]) -> Option<u64> {
    if text.len() != 16 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| Some(sum << 4 | u64::from(http::scan::hex_value(byte)?)))
}

impl Selection<'_> {
    /// Whether this request probes a server after its ejection.
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe.get()
    }

    /// Records a successful response. True if that ends an ejection.
    pub(crate) fn record_success(&self) -> bool {
        self.is_probe.set(false);
        // The only server of a group is never ejected, so its successes are not recorded.
        let now = self.core.now();
        let back =
            self.shared.server_count() > 1 && self.shared.servers[self.server].health.record_success(now);
        if back {
            self.shared.assign_waiting(now);
        }
        back
    }

    /// Records a failure. True if that ejects the server.
    pub(crate) fn record_failure(&self) -> bool {
        self.is_probe.set(false);
        let ejection = self.shared.options.ejection.as_ref().filter(|_| self.shared.server_count() > 1);
        let health = &self.shared.servers[self.server].health;
        ejection.is_some_and(|ejection| health.record_failure(self.core.now(), ejection))
    }
}

impl Drop for Selection<'_> {
    fn drop(&mut self) {
        if self.is_probe.get() {
            self.shared.servers[self.server].health.release_probe();
        }
        if self.shared.counts_load {
            let now = self.core.now();
            self.shared.limiter.release(self.server, |server| self.shared.is_usable(server, now));
        }
    }
}
