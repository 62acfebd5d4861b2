//! Chooses the server for a request: turns the group's state into candidates for [`crate::balance`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll};

use http::{Method, Status};
use net::preface::Endpoints;
use net::{Core, Exchange};

use crate::balance::{self, Candidate, Turns};
use crate::gate::NoPlace;
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
    fn has_begun(&self) -> bool;

    /// Whether the client has left, so that the response is no longer needed. If not, the task of `cx` is
    /// woken when that changes.
    fn poll_left(&self, cx: &Context<'_>) -> bool;

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

    fn has_begun(&self) -> bool {
        Exchange::has_begun(self)
    }

    fn poll_left(&self, cx: &Context<'_>) -> bool {
        Exchange::poll_left(self, cx)
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
    turns: RefCell<Turns>,
    /// Kept between requests to reuse its memory.
    candidates: RefCell<Vec<Candidate>>,
    dice: Cell<u64>,
}

/// The server chosen for a request, which counts towards the server's limit until this is dropped.
pub(crate) struct Selection<'s> {
    shared: &'s GroupShared,
    core: &'s Core,
    pub(crate) server: usize,
    /// Whether this request probes a server after its ejection.
    probes: Cell<bool>,
    /// The `name=value` of the sticky cookie for this server, if the client needs one.
    pub(crate) cookie: Option<String>,
}

/// Why no server was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    NoServer(NoServer),
    /// The client closed its connection.
    Left,
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
        Balancer { turns: RefCell::default(), candidates: RefCell::default(), dice: Cell::new(seed) }
    }

    fn roll(&self) -> u64 {
        self.dice.set(self.dice.get().wrapping_add(1));
        mix(self.dice.get())
    }

    /// Returns the only server of a group without a choice, if it is in service.
    #[inline]
    pub(crate) fn alone<'s>(&self, shared: &'s GroupShared, core: &'s Core) -> Option<Selection<'s>> {
        let serves = shared.alone && shared.standing(0, core.now_ms()) != ServerState::Down;
        serves.then(|| Selection { shared, core, server: 0, probes: Cell::new(false), cookie: None })
    }

    /// Chooses a server and counts the request on it. If all servers are at their limits, waits up to
    /// `queue_ms` in the queue. Servers `tried` before come last.
    pub(crate) async fn choose<'s>(
        &self,
        shared: &'s GroupShared,
        core: &'s Core,
        x: &impl Requester,
        queue_ms: u64,
        tried: &[usize],
    ) -> Result<Selection<'s>, SelectError> {
        let now_ms = core.now_ms();
        let ticket =
            |server, probes, cookie| Selection { shared, core, server, probes: Cell::new(probes), cookie };
        if shared.alone {
            return self.alone(shared, core).ok_or(SelectError::NoServer(NONE));
        }
        if let Some(server) = self.probe(shared, now_ms, tried) {
            if !shared.counted || shared.gate.enter(server) {
                return Ok(ticket(server, true, None));
            }
            shared.servers[server].health.forget_probe();
        }
        loop {
            match self.pick(shared, now_ms, x, tried) {
                Picked::Server(server, cookie) => {
                    if !shared.counted || shared.gate.enter(server) {
                        return Ok(ticket(server, false, cookie));
                    }
                }
                Picked::None => return Err(SelectError::NoServer(NONE)),
                Picked::Busy => break,
            }
        }
        let usable = |server: usize| shared.is_usable(server, core.now_ms());
        let mut too_long = pin!(core.sleep(queue_ms));
        // A request whose client has left must leave the queue; otherwise abandoned requests could keep the
        // queue full.
        let over = poll_fn(|context| match x.poll_left(context) {
            true => Poll::Ready(NoPlace::Left),
            false => too_long.as_mut().poll(context).map(|()| NoPlace::TooLong),
        });
        shared.gate.wait(usable, over).await.map(|server| ticket(server, false, None)).map_err(|no_place| {
            match no_place {
                NoPlace::Full => SelectError::NoServer(FULL),
                NoPlace::TooLong => SelectError::NoServer(TOO_LONG),
                NoPlace::Left => SelectError::Left,
            }
        })
    }

    /// Claims a server whose ejection has ended and that no request probes yet.
    fn probe(&self, shared: &GroupShared, now_ms: u64, tried: &[usize]) -> Option<usize> {
        (0..shared.count()).find(|&server| {
            !tried.contains(&server)
                && shared.standing(server, now_ms) == ServerState::Probe
                && shared.is_its_turn(server, now_ms)
                && shared.servers[server].health.claim_probe()
        })
    }

    /// Returns a draining server that still serves this client because of its sticky cookie.
    fn known(&self, shared: &GroupShared, x: &impl Requester, tried: &[usize]) -> Option<usize> {
        let Balance::Sticky { cookie } = &shared.options.balance else { return None };
        let drained = |server: &usize| shared.servers[*server].health.serves_known();
        let mut drained = (0..shared.count()).filter(drained).peekable();
        drained.peek()?;
        let id = x.context("").values().cookie(cookie).and_then(from_hex);
        drained.find(|&server| {
            Some(shared.servers[server].id) == id
                && !tried.contains(&server)
                && (!shared.counted || shared.gate.has_room(server))
        })
    }

    fn pick(&self, shared: &GroupShared, now_ms: u64, x: &impl Requester, tried: &[usize]) -> Picked {
        if let Some(server) = self.known(shared, x, tried) {
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
                let stands = match shared.standing(server, now_ms) {
                    ServerState::Up => true,
                    ServerState::Probe | ServerState::Ejected(_) => fallback,
                    ServerState::Down => false,
                };
                let could = stands && options.backup == backup && (again || !tried.contains(&server));
                let room = !shared.counted || shared.gate.has_room(server);
                let (upstream, weight) = (&shared.servers[server], shared.weight(server));
                busy |= could && weight > 0 && !room;
                let share = upstream.health.share(weight, now_ms, shared.options.slow_start_ms);
                candidates.push(Candidate {
                    weight: if could && room { share } else { 0 },
                    load: if shared.counted { shared.gate.load(server) } else { 0 },
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
        Picked::None
    }

    /// Applies the balancing method.
    fn balance(
        &self,
        shared: &GroupShared,
        candidates: &[Candidate],
        x: &impl Requester,
    ) -> Option<(usize, Option<String>)> {
        let server = match &shared.options.balance {
            Balance::RoundRobin => self.turns.borrow_mut().next(candidates)?,
            Balance::LeastRequests => balance::least(candidates, self.roll() as usize % candidates.len())?,
            Balance::TwoChoices => balance::two_choices(candidates, self.roll())?,
            Balance::Hash(key) => balance::by_key(candidates, hash_of(key, &x.context("")))?,
            Balance::Sticky { cookie } => {
                let id = x.context("").values().cookie(cookie).and_then(from_hex);
                let named = |candidate: &Candidate| candidate.weight > 0 && Some(candidate.id) == id;
                if let Some(server) = candidates.iter().position(named) {
                    return Some((server, None));
                }
                let server = self.turns.borrow_mut().next(candidates)?;
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
    None,
}

const NONE: NoServer =
    NoServer { status: Status::SERVICE_UNAVAILABLE, reason: "no upstream is in service", retry_after_s: 5 };
const FULL: NoServer =
    NoServer { status: Status::SERVICE_UNAVAILABLE, reason: "too many requests wait", retry_after_s: 1 };
const TOO_LONG: NoServer = NoServer {
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
    text.iter().try_fold(0u64, |sum, &byte| Some(sum << 4 | u64::from(http::scan::hex(byte)?)))
}

impl Selection<'_> {
    /// Whether this request probes a server after its ejection.
    pub(crate) fn is_probe(&self) -> bool {
        self.probes.get()
    }

    /// Records a successful response. True if that ends an ejection.
    pub(crate) fn succeeded(&self) -> bool {
        self.probes.set(false);
        // The only server of a group is never ejected, so its successes are not recorded.
        let now_ms = self.core.now_ms();
        let back = self.shared.count() > 1 && self.shared.servers[self.server].health.succeeded(now_ms);
        if back {
            self.shared.came(now_ms);
        }
        back
    }

    /// Records a failure. True if that ejects the server.
    pub(crate) fn failed(&self) -> bool {
        self.probes.set(false);
        let ejection = self.shared.options.ejection.as_ref().filter(|_| self.shared.count() > 1);
        let health = &self.shared.servers[self.server].health;
        ejection.is_some_and(|ejection| health.failed(self.core.now_ms(), ejection))
    }
}

impl Drop for Selection<'_> {
    fn drop(&mut self) {
        if self.probes.get() {
            self.shared.servers[self.server].health.forget_probe();
        }
        if self.shared.counted {
            let now_ms = self.core.now_ms();
            self.shared.gate.leave(self.server, |server| self.shared.is_usable(server, now_ms));
        }
    }
}
