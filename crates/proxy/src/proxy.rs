//! The proxy on one core: requests in, attempts out, and what is done when one fails.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use http::{BodySize, Fields, Method, Name, Status};
use net::{BodyPiece, Core, Exchange, Fault, SpillError, SpillQuota};

use crate::check;
use crate::choose::{Balancer, NoServer, SelectError, Selection};
use crate::dial::{Beside, before, beside};
use crate::failure::AttemptFailure;
use crate::h2_pool::H2Pool;
use crate::health::ServerState;
use crate::kept::ReplayBuffer;
use crate::options::RouteOptions;
use crate::pool::CorePool;
use crate::relay::{Relay, RelayOptions, RelayOutcome};
use crate::request::{RequestRules, SentHead};
use crate::response::ResponseRules;
use crate::retry::{self, AttemptProgress, RetryBudget, RetryDecision};
use crate::shared::GroupShared;
use crate::upstream_connection::{IdleConnection, UpstreamBuffers, UpstreamConnection, pool};
use crate::upstream_side::UpstreamSide;

mod connect;

/// How often kept connections are looked through.
const SWEEP_MS: u64 = 1_000;
/// Why a request is not passed on that carries our own mark.
const LOOP: &str = "the request loops: this proxy has passed it on before, and its upstream has sent it back";
/// What marks of this process begin with.
static PROCESS: OnceLock<u64> = OnceLock::new();

/// A core's part of a group: its kept connections, turns and retries in hand. Cheap to clone; they live as long as
/// the last clone.
#[derive(Clone)]
pub struct Group(Rc<GroupState>);

/// A proxy on one core: a group, and the rules for one way to it. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    group: Rc<GroupState>,
    rules: Rc<Rules>,
}

/// How requests travel.
struct Rules {
    options: Arc<RouteOptions>,
    request: RequestRules,
    response: ResponseRules,
    spill: Option<Arc<SpillQuota>>,
}

/// What went wrong between the proxy and a server, for an error log.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamError<'x> {
    /// The server's URL; `None` where none could be chosen.
    pub server: Option<&'x str>,
    /// What the request asked for, as it came.
    pub target: &'x [u8],
    /// What happened.
    pub reason: &'static str,
    /// The response to the client; `None` if the request is sent again.
    pub status: Option<Status>,
}

/// A server is asked no more, or is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// It has failed too often and is left alone for a while.
    Ejected,
    /// It has answered again.
    Back,
    /// Checks have found it ill.
    Ill,
    /// Checks have found it well again.
    Well,
}

/// An event for the error log.
#[derive(Clone, Copy, Debug)]
pub enum UpstreamEvent<'x> {
    /// An attempt has failed before the client was answered.
    UpstreamError(UpstreamError<'x>),
    /// A server's standing has changed.
    HealthChange {
        /// Its URL.
        server: &'x str,
        /// How.
        turn: HealthChange,
    },
    /// Responses are not moved to temporary files; said once a minute.
    Spill {
        /// Why not.
        why: &'x SpillError,
    },
}

/// The receiver of events.
pub type EventSink = Box<dyn Fn(&UpstreamEvent<'_>)>;

struct GroupState {
    core: Core,
    report: Option<EventSink>,
    shared: Arc<GroupShared>,
    /// One for each server.
    pools: Vec<Rc<CorePool>>,
    /// The same, of HTTP/2 connections; empty for servers that are asked over HTTP/1.
    h2_pools: Vec<H2Pool>,
    buffers: Rc<UpstreamBuffers>,
    chooser: Balancer,
    budget: Cell<RetryBudget>,
    /// Connections made: which of several addresses comes first.
    dialled: Cell<usize>,
}

/// A server that gets the request.
struct Reached<'p> {
    side: UpstreamSide,
    /// What runs until the server answers.
    room: Beside<'p>,
    sent: SentHead,
}

/// What one request has come to so far.
struct Attempts {
    deadline_ms: u64,
    /// Servers that have failed it.
    tried: Vec<usize>,
    attempts: u32,
    /// How often a server refused to process it.
    refusals: u32,
    kept: ReplayBuffer,
}

impl Group {
    /// A core's part of a group. The first core also runs the checks.
    #[must_use]
    pub fn new(core: &Core, shared: &Arc<GroupShared>) -> Group {
        Group::build(core, shared, None)
    }

    /// The same, and `report` gets errors and changes of servers.
    #[must_use]
    pub fn with_events(core: &Core, shared: &Arc<GroupShared>, report: EventSink) -> Group {
        Group::build(core, shared, Some(report))
    }

    fn build(core: &Core, shared: &Arc<GroupShared>, report: Option<EventSink>) -> Group {
        let options = &shared.options;
        let inner = Rc::new(GroupState {
            core: core.clone(),
            report,
            pools: shared.servers.iter().map(|it| Rc::new(CorePool::new(core, &it.idle))).collect(),
            h2_pools: shared.servers.iter().map(|_| H2Pool::new(core, &options.keep_alive)).collect(),
            buffers: pool(core.memory()),
            chooser: Balancer::new(core.now_ms() ^ std::ptr::from_ref(core) as u64),
            budget: Cell::new(RetryBudget::full()),
            dialled: Cell::new(0),
            shared: shared.clone(),
        });
        core.spawn(sweep(Rc::downgrade(&inner), core.clone()));
        if options.check.is_some() && !shared.checked.swap(true, Ordering::Relaxed) {
            for server in 0..shared.count() {
                core.spawn(watch(Rc::downgrade(&inner), core.clone(), server));
            }
        }
        Group(inner)
    }

    /// Whether it is a part of this one.
    #[must_use]
    pub fn is_of(&self, shared: &Arc<GroupShared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// Connections to a server kept on this core now.
    #[must_use]
    pub fn kept(&self, server: usize) -> usize {
        self.0.pools[server].len() + self.0.h2_pools[server].len()
    }

    /// A route to its servers. The mark in `Via` depends on the place of `options` in memory: pass the same `Arc` on all
    /// cores. `spill` is what temporary files may hold of responses beyond `read_ahead_bytes`; `None` for no such files.
    #[must_use]
    pub fn proxy(&self, options: &Arc<RouteOptions>, spill: Option<Arc<SpillQuota>>) -> Proxy {
        let process = *PROCESS.get_or_init(|| RandomState::new().hash_one(0));
        let mark = crate::hash::mix(process ^ Arc::as_ptr(options).addr() as u64);
        let group = &self.0.shared.options;
        let (request, response) =
            (RequestRules::marked(group, options, mark), ResponseRules::new(group, options));
        let rules = Rules { options: options.clone(), request, response, spill };
        Proxy { group: self.0.clone(), rules: Rc::new(rules) }
    }
}

impl Proxy {
    /// Carries a request to an upstream server and its response back.
    ///
    /// # Errors
    /// The client is gone, or a response under way cannot be completed: pass it up.
    pub async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let options = &self.rules.options;
        if matches!(x.request().method(), Method::Connect | Method::Trace) {
            return x.refuse(Status::METHOD_NOT_ALLOWED, "this method is not passed on").await;
        }
        if self.rules.request.loops(&x.request()) {
            let server = (self.group.shared.count() == 1).then_some(0);
            self.report(x, server, LOOP, Some(Status::LOOP_DETECTED));
            return x.refuse(Status::LOOP_DETECTED, LOOP).await;
        }
        self.group.budget.set(self.group.budget.get().earn(&options.retry));
        let mut trial = Attempts {
            deadline_ms: {
                let total_ms = Some(options.timeouts.total_ms).filter(|&total_ms| total_ms > 0);
                let ms = x.request().grpc_timeout_ms().into_iter().chain(total_ms).min();
                ms.map_or(u64::MAX, |ms| self.group.core.now_ms().saturating_add(ms))
            },
            tried: Vec::new(),
            attempts: 0,
            refusals: 0,
            kept: ReplayBuffer::new(self.kept_bytes_max(x)),
        };
        self.read_ahead(x, &mut trial).await?;
        // The place of a failed attempt, where the next one is to go to the same server.
        let mut same = None;
        loop {
            let (ticket, is_new) = match same.take() {
                Some(ticket) => (ticket, true),
                None => match self.choose(x, &trial).await {
                    Ok(ticket) => (ticket, false),
                    Err(SelectError::Left) => return Err(Fault::Gone),
                    Err(SelectError::NoServer(no_server)) => {
                        self.report(x, None, no_server.reason, Some(no_server.status));
                        return report(x, no_server).await;
                    }
                },
            };
            let failure = match self.attempt(x, &ticket, &mut trial, is_new).await {
                Ok(()) => return Ok(()),
                Err(AttemptFailure::Ours(fault)) => return Err(fault),
                Err(failure) => failure,
            };
            trial.refusals += u32::from(matches!(failure, AttemptFailure::Unprocessed));
            let ejected = failure.is_the_servers() && ticket.failed();
            let next = self.next(x, &failure, &trial);
            self.report_failure(x, &ticket, &failure, next);
            if ejected {
                self.group.turned(ticket.server, HealthChange::Ejected);
            }
            match next {
                RetryDecision::Fresh => same = Some(ticket),
                RetryDecision::Elsewhere => trial.tried.push(ticket.server),
                RetryDecision::GiveUp => return give_up(x, &failure).await,
            }
        }
    }

    /// Reads a short body whole before a server is asked: however slowly its client sends it, no server waits for it.
    async fn read_ahead(&self, x: &mut Exchange<'_>, trial: &mut Attempts) -> Result<(), Fault> {
        let BodySize::Known(len) = x.request().body() else { return Ok(()) };
        // An expectation is the server's to answer.
        if len > self.rules.options.read_ahead_bytes as u64 || x.awaits_continue()? {
            return Ok(());
        }
        let kept = &mut trial.kept;
        loop {
            match x.try_read()? {
                BodyPiece::Data(bytes) => kept.take_in(bytes),
                BodyPiece::End => {
                    kept.end();
                    return Ok(());
                }
                BodyPiece::Pending => break,
            }
        }
        // Boxed, as it is seldom: most short bodies come with their heads.
        let rest = Box::pin(async {
            while let Some(bytes) = x.read().await? {
                kept.take_in(bytes);
            }
            kept.end();
            Ok(())
        });
        before(&self.group.core, trial.deadline_ms, rest).await.unwrap_or(Err(Fault::Timeout))
    }

    async fn choose(&self, x: &Exchange<'_>, trial: &Attempts) -> Result<Selection<'_>, SelectError> {
        let left_ms = trial.deadline_ms.saturating_sub(self.group.core.now_ms());
        let queue_ms = self.rules.options.timeouts.queue_ms.min(left_ms);
        self.group.chooser.choose(&self.group.shared, &self.group.core, x, queue_ms, &trial.tried).await
    }

    /// How much of the request's body is worth keeping: nothing, where it could not be sent again anyway.
    fn kept_bytes_max(&self, x: &Exchange<'_>) -> usize {
        let retry = &self.rules.options.retry;
        // A stream may be refused before anything was done, and then any request may be sent again.
        let repeats = x.request().method().is_idempotent()
            || retry.non_idempotent
            || self.group.shared.options.servers.iter().any(|server| server.http2);
        if repeats { retry.body_bytes_max } else { 0 }
    }

    /// One attempt at one server; `is_new` on a connection made for it.
    async fn attempt(
        &self,
        x: &mut Exchange<'_>,
        ticket: &Selection<'_>,
        trial: &mut Attempts,
        is_new: bool,
    ) -> Result<(), AttemptFailure> {
        let options = &self.rules.options;
        let upstream = &self.group.shared.servers[ticket.server];
        trial.attempts += u32::from(!is_new);
        let Reached { mut side, room, sent } = match self.is_for_stream(x, ticket.server) {
            true => Box::pin(self.open_stream(x, ticket.server, trial.deadline_ms)).await?,
            false => self.open_http1(x, ticket.server, trial.deadline_ms, is_new).await?,
        };
        let (asked_ms, reused) = (self.group.core.now_ms(), side.is_reused());
        let pool = matches!(side, UpstreamSide::H1(_)).then(|| &self.group.pools[ticket.server]);
        let cookie = ticket.cookie.as_ref().map(|pair| set_cookie(pair, x.request().client().secure));
        let may_retry = trial.attempts < options.retry.attempts_max
            && (x.request().method().is_idempotent() || options.retry.non_idempotent)
            && self.group.budget.get().spend().is_some();
        let succeeded = || {
            if ticket.succeeded() {
                self.group.turned(ticket.server, HealthChange::Back);
            }
        };
        let answered = || {
            room.take();
            if let Some(pool) = pool {
                pool.learn(self.group.core.now_ms() - asked_ms, reused);
            }
            if ticket.is_probe() {
                succeeded();
            }
        };
        let refused = |why: &SpillError| {
            if let Some(report) = &self.group.report {
                report(&UpstreamEvent::Spill { why });
            }
        };
        let plan = RelayOptions {
            options,
            request: &self.rules.request,
            response: &self.rules.response,
            upstream: &upstream.authority,
            deadline_ms: trial.deadline_ms,
            cookie: cookie.as_deref().map(str::as_bytes),
            spill: self.rules.spill.as_ref(),
            refused: &refused,
            may_retry,
            answered: &answered,
        };
        let relay = Relay::new(x, &mut side, &plan, &mut trial.kept, sent);
        let outcome = beside(&room, relay.run()).await?;
        drop(room);
        succeeded();
        match (outcome, side) {
            (RelayOutcome::Complete(sent_whole), UpstreamSide::H1(side)) => {
                self.put_back(side.connection, ticket.server, sent_whole);
            }
            (RelayOutcome::Upgraded, UpstreamSide::H1(mut side)) => {
                side.consume();
                let UpstreamConnection { mut link, buffers, .. } = side.connection;
                let early = buffers.input.rest().to_vec();
                drop(buffers);
                Box::pin(net::tunnel(x, &mut link, &early, options.timeouts.tunnel_ms)).await?;
            }
            (_, UpstreamSide::Stream(_)) => {}
        }
        Ok(())
    }

    /// A stale connection is nobody's trouble, and a response that breaks off is the connection's fault, logged there.
    fn report_failure(
        &self,
        x: &Exchange<'_>,
        ticket: &Selection<'_>,
        failure: &AttemptFailure,
        next: RetryDecision,
    ) {
        if failure.is_failure() && !x.has_begun() {
            let (status, reason) = retry::answer(failure);
            self.report(x, Some(ticket.server), reason, (next == RetryDecision::GiveUp).then_some(status));
        }
    }

    fn report(&self, x: &Exchange<'_>, server: Option<usize>, reason: &'static str, status: Option<Status>) {
        if let Some(report) = &self.group.report {
            let server = server.map(|server| self.group.shared.shown(server));
            report(&UpstreamEvent::UpstreamError(UpstreamError {
                server,
                target: x.request().target(),
                reason,
                status,
            }));
        }
    }

    /// What follows a failure.
    fn next(&self, x: &Exchange<'_>, failure: &AttemptFailure, trial: &Attempts) -> RetryDecision {
        let options = &self.rules.options;
        let progress = AttemptProgress {
            method: x.request().method(),
            begun: x.has_begun(),
            replayable: trial.kept.is_whole(),
            attempts: trial.attempts,
            refusals: trial.refusals,
        };
        let next = retry::next(failure, &progress, &options.retry);
        // A lone server that cannot be reached, or is slow, will be so again at once.
        let alone = self.group.shared.count() == 1
            && !matches!(failure, AttemptFailure::Cut | AttemptFailure::Refused(_));
        let late = self.group.core.now_ms() >= trial.deadline_ms;
        match next {
            RetryDecision::Fresh if !late => RetryDecision::Fresh,
            RetryDecision::Elsewhere if !late && !alone => match self.group.budget.get().spend() {
                Some(rest) => {
                    self.group.budget.set(rest);
                    RetryDecision::Elsewhere
                }
                None => RetryDecision::GiveUp,
            },
            _ => RetryDecision::GiveUp,
        }
    }
}

impl GroupState {
    fn turned(&self, server: usize, turn: HealthChange) {
        if let Some(report) = &self.report {
            report(&UpstreamEvent::HealthChange { server: self.shared.shown(server), turn });
        }
    }

    /// Whether a kept connection still goes where its server is.
    fn fits(&self, server: usize, rested: &IdleConnection) -> bool {
        self.is_its_address(server, rested.address)
    }

    fn is_its_address(&self, server: usize, address: Option<SocketAddr>) -> bool {
        match (&self.shared.servers[server].names, address) {
            (Some(names), Some(address)) => names.has(address),
            _ => true,
        }
    }
}

/// The value of `Set-Cookie` for a server's cookie.
fn set_cookie(pair: &str, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{pair}; Path=/; HttpOnly; SameSite=Lax{secure}")
}

async fn report(x: &mut Exchange<'_>, no_server: NoServer) -> Result<(), Fault> {
    let mut fields = Fields::new();
    fields.push(Name::RetryAfter, no_server.retry_after_s.to_string().as_bytes());
    x.refuse_with(no_server.status, no_server.reason, &fields).await
}

async fn give_up(x: &mut Exchange<'_>, failure: &AttemptFailure) -> Result<(), Fault> {
    let (status, reason) = retry::answer(failure);
    if x.has_begun() {
        return Err(Fault::Broken(reason));
    }
    x.refuse(status, reason).await
}

/// Looks through the kept connections, as long as the proxy lives.
async fn sweep(inner: Weak<GroupState>, core: Core) {
    loop {
        core.sleep(SWEEP_MS).await;
        let Some(inner) = inner.upgrade() else { return };
        let now_ms = core.now_ms();
        for names in inner.shared.servers.iter().filter_map(|server| server.names.as_ref()) {
            // Names that nobody has asked for yet are left alone.
            if !names.known().is_empty() {
                names.renew(&core, inner.shared.options.resolve_ms);
            }
        }
        inner.buffers.trim();
        for (server, pool) in inner.pools.iter().enumerate() {
            let down = inner.shared.standing(server, now_ms) == ServerState::Down;
            pool.sweep(inner.shared.options.keep_alive.idle_max, |rested| {
                !down && inner.fits(server, rested)
            });
            inner.h2_pools[server].sweep(|address| !down && inner.is_its_address(server, address));
        }
    }
}

/// Checks one server, as long as the proxy lives.
async fn watch(inner: Weak<GroupState>, core: Core, server: usize) {
    loop {
        let Some(this) = inner.upgrade() else { return };
        let (shared, pool) = (this.shared.clone(), this.pools[server].clone());
        drop(this);
        let Some(check) = &shared.options.check else { return };
        let upstream = &shared.servers[server];
        let well = {
            let room: Beside<'_> = RefCell::new(Some(Box::pin(pool.make_room(check.timeout_ms / 8))));
            beside(&room, check::probe(&core, &shared.options, server, upstream, check)).await
        };
        drop(pool);
        let now_ms = core.now_ms();
        if let Some(well) = well
            && upstream.health.checked(well, now_ms, check)
            && let Some(this) = inner.upgrade()
        {
            this.turned(server, if well { HealthChange::Well } else { HealthChange::Ill });
            shared.came(now_ms);
        }
        core.sleep(check.interval_ms).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{UpstreamAddress, UpstreamServer};

    #[test]
    fn a_name_is_resolved_again_though_kept_connections_are_all_that_is_needed() {
        let core = Core::for_client(1).expect("an engine");
        let server = UpstreamServer::at(UpstreamAddress::Tcp { host: "localhost".into(), port: 80 });
        let shared = GroupShared::new(crate::GroupOptions::to(vec![server])).expect("valid options");
        let names = shared.servers[0].names.clone().expect("a name");
        let old = "192.0.2.1:80".parse().expect("an address");
        names.found(vec![old]);
        let theirs = core.clone();
        let group = Group::new(&core, &shared);
        let moved = core.run_until_end(async move {
            let _group = group;
            for _ in 0..100 {
                if !names.has(old) {
                    return true;
                }
                theirs.sleep(100).await;
            }
            false
        });
        assert!(moved.expect("the engine turns"));
    }
}
