//! A group of upstream servers on one core: its connections, health checks and events.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, Status};
use net::proxy_protocol;
use net::{Core, HeldBuffers, MuxRequest, MuxRequestStream, SpillError};
use times::{Millis, Moment};

use crate::cgi_side::ErrorSink;
use crate::check;
use crate::counts::UpstreamCounters;
use crate::dial::{ConcurrentTask, DialOptions, dial, dial_any, run_concurrently};
use crate::failure::AttemptFailure;
use crate::health::ServerState;
use crate::mux_pool::MuxPool;
use crate::options::{RouteOptions, UpstreamAddress};
use crate::pool::{CorePool, InUse, SharedPool};
use crate::retry::RetryBudget;
use crate::selection::{Balancer, Requester, Selection};
use crate::shared::{GroupShared, Upstream};
use crate::upstream_connection::{IdleConnection, UpstreamBuffers, UpstreamConnection, buffer_pool};
use crate::upstream_side::{UpstreamSide, UpstreamStep};

/// Interval at which kept connections are checked, in milliseconds.
const SWEEP_INTERVAL: Millis = Millis(1_000);
/// Maximum connections opened to learn whether a server supports extended CONNECT, if each closes before
/// sending SETTINGS.
const CONNECT_SUPPORT_DIALS_MAX: u32 = 2;

/// Part of a group on one core: kept connections, load balancer and retry budget. Cheap to clone; the
/// connections live as long as the last clone.
#[derive(Clone)]
pub struct Group(pub(crate) Rc<GroupState>);

/// An error between the proxy and a server, for an error log.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamError<'x> {
    /// URL of the server; `None` if none could be chosen.
    pub server: Option<&'x str>,
    /// Path of the server's Unix socket, if it has one.
    pub socket: Option<&'x Path>,
    /// Request target, as received.
    pub target: &'x [u8],
    /// Reason of the failure.
    pub reason: &'static str,
    /// Place in the response head of an error that `lenient_heads` would repair.
    pub repairable: Option<&'x str>,
    /// The response to the client; `None` if the request is sent again.
    pub status: Option<Status>,
}

/// A change of a server's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// Ejected for a time after too many failures.
    Ejected,
    /// Back in service after an ejection: a request succeeded.
    Recovered,
    /// Out of service: health checks fail.
    Unhealthy,
    /// Back in service: health checks succeed.
    Healthy,
}

/// Maximum lingering connections of a group on each core.
const LINGERING_MAX: usize = 64;

/// An event for the error log.
#[derive(Clone, Copy, Debug)]
pub enum UpstreamEvent<'x> {
    /// An attempt failed before the response to the client began.
    UpstreamError(UpstreamError<'x>),
    /// A health check failed because of an error in the response head that `lenient_heads` would repair.
    RefusedCheck {
        /// URL of the server.
        server: &'x str,
        /// Error in the response head.
        reason: &'static str,
        /// Place of the error in the head.
        place: &'x str,
    },
    /// A server went out of service or returned to it.
    HealthChange {
        /// URL of the server.
        server: &'x str,
        /// The change.
        change: HealthChange,
    },
    /// A server of the CGI family sent a line of error output.
    ErrorLine {
        /// URL of the server.
        server: &'x str,
        /// The line; it may contain control characters.
        line: &'x str,
    },
    /// Responses cannot be moved to temporary files; reported at most once a minute.
    SpillFailed {
        /// Reason.
        error: &'x SpillError,
    },
}

/// Callback that receives events.
pub type EventSink = Box<dyn Fn(&UpstreamEvent<'_>)>;

/// The state of a group on one core.
pub(crate) struct GroupState {
    pub(crate) core: Core,
    report: Option<Rc<EventSink>>,
    /// Receivers of each server's error messages; empty if events are not reported.
    error_sinks: Vec<ErrorSink>,
    pub(crate) shared: Arc<GroupShared>,
    /// Pool of each server.
    pools: Vec<Rc<CorePool>>,
    /// HTTP/2 connections to each server; empty for servers with other protocols.
    mux_pools: Vec<Rc<MuxPool>>,
    /// Counters of each server on this core.
    pub(crate) counters: Vec<Arc<UpstreamCounters>>,
    /// Display name of each server.
    pub(crate) display_names: Vec<Rc<str>>,
    buffers: Rc<UpstreamBuffers>,
    pub(crate) balancer: Balancer,
    pub(crate) budget: Cell<RetryBudget>,
    /// Number of connections opened, which selects the address to try first.
    dial_count: Cell<usize>,
    /// Connections whose responses are delivered but not ended by their servers.
    lingering: Cell<usize>,
}

impl Group {
    /// Creates a core's part of a group. The first core also runs the health checks.
    #[must_use]
    pub fn new(core: &Core, shared: &Arc<GroupShared>) -> Group {
        Group::build(core, shared, None)
    }

    /// Creates a core's part of a group that reports errors and changes of servers to `report`.
    #[must_use]
    pub fn with_events(core: &Core, shared: &Arc<GroupShared>, report: EventSink) -> Group {
        Group::build(core, shared, Some(report))
    }

    fn build(core: &Core, shared: &Arc<GroupShared>, report: Option<EventSink>) -> Group {
        Group::build_after(core, shared, report.map(Rc::new), None)
    }

    /// Creates this core's part of a group that replaces this one. Connections to servers that both have are kept.
    pub(crate) fn succeeded_by(&self, shared: &Arc<GroupShared>) -> Group {
        Group::build_after(&self.0.core, shared, self.0.report.clone(), Some(&self.0))
    }

    fn build_after(
        core: &Core,
        shared: &Arc<GroupShared>,
        report: Option<Rc<EventSink>>,
        before: Option<&GroupState>,
    ) -> Group {
        let options = &shared.options;
        let places = before.map(|before| before.places_of_servers()).unwrap_or_default();
        // The pool of a server belongs to the server: it is the same if the server is.
        let kept = |server: &Upstream| Some((before?, *places.get(&Arc::as_ptr(&server.idle))?));
        let pool = |server: &Upstream| match kept(server) {
            Some((before, at)) => before.pools[at].clone(),
            None => Rc::new(CorePool::new(core, &server.idle)),
        };
        let mux_pool = |server: &Upstream| match kept(server) {
            Some((before, at)) => before.mux_pools[at].clone(),
            None => Rc::new(MuxPool::new(core, options)),
        };
        let shown: Vec<Rc<str>> =
            (0..shared.server_count()).map(|server| shared.display_name(server).into()).collect();
        let sink = |report: &Rc<EventSink>, shown: &Rc<str>| -> ErrorSink {
            let report = report.clone();
            let shown = shown.clone();
            Rc::new(move |line| report(&UpstreamEvent::ErrorLine { server: &shown, line }))
        };
        let inner = Rc::new(GroupState {
            core: core.clone(),
            error_sinks: report.iter().flat_map(|to| shown.iter().map(|one| sink(to, one))).collect(),
            report,
            pools: shared.servers.iter().map(pool).collect(),
            mux_pools: shared.servers.iter().map(mux_pool).collect(),
            counters: shared.servers.iter().map(|server| server.counter_sets.take()).collect(),
            display_names: shown,
            buffers: buffer_pool(core.memory()),
            balancer: Balancer::new(core.now().0 ^ std::ptr::from_ref(core) as u64),
            budget: Cell::new(before.map_or_else(RetryBudget::full, |before| before.budget.get())),
            dial_count: Cell::new(0),
            lingering: Cell::new(0),
            shared: shared.clone(),
        });
        core.spawn(sweep(Rc::downgrade(&inner), core.clone()));
        if options.check.is_some() && !shared.has_health_checker.swap(true, Ordering::Relaxed) {
            for server in 0..shared.server_count() {
                core.spawn(run_health_checks(Rc::downgrade(&inner), core.clone(), server));
            }
        }
        Group(inner)
    }

    /// Returns the state shared by all cores.
    #[must_use]
    pub fn shared(&self) -> &Arc<GroupShared> {
        &self.0.shared
    }

    /// Returns the number of connections to a server that this core keeps.
    #[must_use]
    pub fn kept_count(&self, server: usize) -> usize {
        self.0.pools[server].len() + self.0.mux_pools[server].len()
    }
}

impl GroupState {
    /// Returns the place of each server, by its pool.
    fn places_of_servers(&self) -> HashMap<*const SharedPool, usize> {
        let servers = self.shared.servers.iter().enumerate();
        servers.map(|(at, server)| (Arc::as_ptr(&server.idle), at)).collect()
    }

    /// Returns the path of a server's Unix socket, if it has one.
    pub(crate) fn socket(&self, server: usize) -> Option<&Path> {
        match &self.shared.options.servers[server].address {
            UpstreamAddress::Unix(path) => Some(path),
            UpstreamAddress::Tcp { .. } => None,
        }
    }

    /// Passes an event to the error log.
    pub(crate) fn report(&self, event: &UpstreamEvent<'_>) {
        if let Some(report) = &self.report {
            report(event);
        }
    }

    /// Returns the receiver of error messages of a server of the CGI family.
    pub(crate) fn error_sink(&self, server: usize) -> Option<ErrorSink> {
        self.error_sinks.get(server).cloned()
    }

    fn report_change(&self, server: usize, turn: HealthChange) {
        self.report(&UpstreamEvent::HealthChange { server: self.shared.display_name(server), change: turn });
    }

    /// Records a response head with `status`, received `us` microseconds after its request was ready to be
    /// sent.
    pub(crate) fn record_response_head(
        &self,
        selection: &Selection<'_>,
        status: Status,
        us: u64,
        reused: bool,
    ) {
        let counters = &self.counters[selection.server];
        let length = Millis(us / 1_000);
        counters.head.observe(us);
        counters.statuses[Some(usize::from(status.code() / 100)).filter(|class| *class < 6).unwrap_or(0)]
            .add(1);
        if !self.shared.options.servers[selection.server].shares_connections() {
            self.pools[selection.server].record_response_time(length, reused);
        }
        if selection.is_probe() {
            self.record_success(selection);
        }
    }

    /// Records a successful request.
    pub(crate) fn record_success(&self, selection: &Selection<'_>) {
        if selection.record_success() {
            self.report_change(selection.server, HealthChange::Recovered);
        }
    }

    /// Records a failed request, and counts it against the server if the server is the cause.
    pub(crate) fn record_failure(&self, selection: &Selection<'_>, failure: &AttemptFailure) {
        self.counters[selection.server].count_failure(failure);
        if failure.is_server_fault() && selection.record_failure() {
            self.counters[selection.server].ejections.add(1);
            self.report_change(selection.server, HealthChange::Ejected);
        }
    }

    /// Counts a request under way on a server until the result is dropped.
    pub(crate) fn track_request(&self, server: usize) -> UpstreamInUse<'_> {
        let counters = &*self.counters[server];
        counters.requests.add(1);
        UpstreamInUse { _in_use: self.pools[server].track_request(), counters }
    }

    /// Takes a kept connection to a server, if there is one.
    #[inline]
    pub(crate) fn take_kept(&self, requester: &impl Requester, server: usize) -> Option<UpstreamConnection> {
        if !self.shared.options.keeps_connections() {
            return None;
        }
        let certain = !requester.method().is_idempotent();
        let (link, rested) =
            self.pools[server].take(certain, |rested| self.has_current_address(server, rested))?;
        Some(rested.activate(link, HeldBuffers::take(&self.buffers)))
    }

    /// Returns a connection to a server: a kept one or, if there is none or `is_new` is set, a new one,
    /// opened before `deadline`. The future returned with it must be polled until the response begins.
    pub(crate) async fn connect(
        &self,
        requester: &impl Requester,
        server: usize,
        is_new: bool,
        deadline: Moment,
    ) -> Result<(UpstreamConnection, ConcurrentTask<'_>), AttemptFailure> {
        let options = &self.shared.options;
        let upstream = &self.shared.servers[server];
        let pool = &self.pools[server];
        if !is_new && let Some(connection) = self.take_kept(requester, server) {
            return Ok((connection, RefCell::new(None)));
        }
        let mut preface = Vec::new();
        if let Some(version) = options.proxy_protocol {
            proxy_protocol::write(&mut preface, version, requester.endpoints());
        }
        let how =
            DialOptions { first_address: self.next_address_index(), preface: &preface, is_shared: false };
        // Boxed because it is rarely needed and would enlarge the future of every request.
        let dialling = Box::pin(dial(&self.core, options, server, upstream, &how, deadline));
        let since_us = self.core.now_us();
        let (link, address) = dialling.await?;
        self.counters[server].connect.observe(self.core.now_us() - since_us);
        // Only after connecting: a connection that waits for room in the listen queue does not wait for a
        // worker.
        let room: ConcurrentTask<'_> = RefCell::new(Some(Box::pin(pool.make_room(Millis::MAX))));
        Ok((UpstreamConnection::new(link, address, HeldBuffers::take(&self.buffers)), room))
    }

    /// Opens a stream on a shared connection, or on a new one, opened before `deadline`, if none has room.
    pub(crate) async fn open_stream(
        &self,
        server: usize,
        request: &MuxRequest<'_>,
        deadline: Moment,
    ) -> Result<MuxRequestStream, AttemptFailure> {
        let pool = &self.mux_pools[server];
        let needs_connect = request.protocol.is_some();
        let has_body = !request.has_no_body;
        loop {
            if let Some(stream) = pool.request(request) {
                return Ok(stream);
            }
            if needs_connect && pool.supports_connect() == Some(false) {
                return Err(AttemptFailure::Invalid("the upstream takes no extended CONNECT any more"));
            }
            match pool.acquire_dial_permit() {
                Some(_dialling) => {
                    if let Err(failure) = self.dial_shared(server, deadline).await {
                        // The server may take no further connection.
                        return pool.request_anywhere(request).ok_or(failure);
                    }
                }
                None if pool.wait_for_room(has_body, needs_connect, deadline).await => {}
                None => return pool.request_anywhere(request).ok_or(AttemptFailure::ConnectTimeout),
            }
        }
    }

    /// Whether the server supports extended CONNECT, according to its SETTINGS. Opens a connection if there
    /// is none.
    pub(crate) async fn supports_connect(
        &self,
        server: usize,
        deadline: Moment,
    ) -> Result<bool, AttemptFailure> {
        let pool = &self.mux_pools[server];
        for _ in 0..CONNECT_SUPPORT_DIALS_MAX {
            if let Some(connects) = pool.supports_connect() {
                return Ok(connects);
            }
            if let Some(_dialling) = pool.acquire_dial_permit() {
                self.dial_shared(server, deadline).await?;
            }
            if !pool.wait_for_settings(deadline).await {
                return Err(AttemptFailure::ConnectTimeout);
            }
        }
        pool.supports_connect().ok_or(AttemptFailure::ConnectionLost)
    }

    /// Opens a connection whose streams are shared by many requests.
    async fn dial_shared(&self, server: usize, deadline: Moment) -> Result<(), AttemptFailure> {
        let options = &self.shared.options;
        let upstream = &self.shared.servers[server];
        let how = DialOptions { first_address: self.next_address_index(), preface: b"", is_shared: true };
        let since_us = self.core.now_us();
        let connected = dial_any(&self.core, options, server, upstream, &how, deadline).await?;
        self.counters[server].connect.observe(self.core.now_us() - since_us);
        self.mux_pools[server].add(connected);
        Ok(())
    }

    /// Returns the index of the address to try first, if there are several.
    pub(crate) fn next_address_index(&self) -> usize {
        let turn = self.dial_count.get();
        self.dial_count.set(turn.wrapping_add(1));
        turn
    }

    /// Keeps a connection for the next request if it can serve one. `sent_whole`: the request was sent
    /// completely.
    pub(crate) fn put_back(&self, side: UpstreamSide, server: usize, sent_whole: bool) {
        let options = &self.shared.options;
        let now = self.core.now();
        let serves = sent_whole && options.proxy_protocol.is_none();
        let kept = match side {
            UpstreamSide::H1(side) if serves => side.connection.into_idle(&options.keep_alive, now),
            UpstreamSide::Cgi(side) if serves => {
                let is_done = side.is_done();
                side.connection.into_idle_if(is_done, &options.keep_alive, now)
            }
            // HTTP/2 connections stay in their pool.
            UpstreamSide::H1(_) | UpstreamSide::Cgi(_) | UpstreamSide::Stream(_) => None,
        };
        if let Some((link, rested)) = kept {
            self.pools[server].put(link, rested, options.keep_alive.idle_max as usize);
        }
    }

    /// Whether another connection may wait for its server to end a response that was delivered to the client.
    pub(crate) fn may_linger(&self) -> bool {
        self.lingering.get() < LINGERING_MAX
    }

    /// Waits, for at most `timeouts.between`, until the server ends a response whose content is complete,
    /// then keeps the connection. PHP scripts can flush all announced content and continue to run.
    pub(crate) fn linger(
        self: &Rc<Self>,
        mut side: UpstreamSide,
        server: usize,
        method: Method,
        route: &Arc<RouteOptions>,
    ) {
        let this = self.clone();
        let route = route.clone();
        let until = self.core.now() + route.timeouts.between;
        self.lingering.set(self.lingering.get() + 1);
        self.core.spawn(async move {
            loop {
                match side.step(method, &route.head_limits) {
                    Ok(UpstreamStep::Pending) => {
                        side.release_buffers();
                        if side.wait_alone(side.interest(true), until).await.is_err() {
                            break;
                        }
                    }
                    Ok(UpstreamStep::NonContent) => this.core.yield_now().await,
                    Ok(UpstreamStep::End) => {
                        this.put_back(side, server, true);
                        break;
                    }
                    Ok(UpstreamStep::Head | UpstreamStep::Data) | Err(_) => break,
                }
            }
            this.lingering.set(this.lingering.get() - 1);
        });
    }

    /// Whether a kept connection leads to a current address of its server.
    fn has_current_address(&self, server: usize, rested: &IdleConnection) -> bool {
        self.is_address_of_server(server, rested.address)
    }

    fn is_address_of_server(&self, server: usize, address: Option<SocketAddr>) -> bool {
        match (&self.shared.servers[server].addresses, address) {
            (Some(names), Some(address)) => names.has(address),
            _ => true,
        }
    }
}

impl Drop for GroupState {
    fn drop(&mut self) {
        for (server, counters) in self.shared.servers.iter().zip(self.counters.drain(..)) {
            server.counter_sets.release(counters);
        }
    }
}

/// A request under way on a server.
pub(crate) struct UpstreamInUse<'g> {
    _in_use: InUse<'g>,
    counters: &'g UpstreamCounters,
}

impl Drop for UpstreamInUse<'_> {
    fn drop(&mut self) {
        self.counters.ended.add(1);
    }
}

/// Checks the kept connections periodically, as long as the group exists.
async fn sweep(inner: Weak<GroupState>, core: Core) {
    loop {
        core.sleep(SWEEP_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let now = core.now();
        for names in inner.shared.servers.iter().filter_map(|server| server.addresses.as_ref()) {
            // A name that was never resolved is not needed yet.
            if !names.known_addresses().is_empty() {
                names.refresh_if_due(&core, inner.shared.options.resolve_interval);
            }
        }
        inner.buffers.trim();
        for (server, pool) in inner.pools.iter().enumerate() {
            let down = inner.shared.state(server, now) == ServerState::Down;
            pool.sweep(inner.shared.options.keep_alive.idle_max as usize, |rested| {
                !down && inner.has_current_address(server, rested)
            });
            inner.mux_pools[server].sweep(|address| !down && inner.is_address_of_server(server, address));
        }
    }
}

/// Runs the health checks of one server, as long as the group exists.
async fn run_health_checks(inner: Weak<GroupState>, core: Core, server: usize) {
    loop {
        let Some(this) = inner.upgrade() else { return };
        let shared = this.shared.clone();
        let pool = this.pools[server].clone();
        let buffers = HeldBuffers::take(&this.buffers);
        drop(this);
        let Some(check) = &shared.options.check else { return };
        let upstream = &shared.servers[server];
        let checked = {
            let room: ConcurrentTask<'_> = RefCell::new(Some(Box::pin(pool.make_room(check.timeout / 8))));
            let probe = pin!(check::probe(&core, &shared.options, server, upstream, check, buffers));
            run_concurrently(&room, probe).await
        };
        drop(pool);
        let now = core.now();
        if let Some(checked) = checked
            && let well = matches!(checked, Ok(true))
            && upstream.health.record_check(well, now, check)
            && let Some(this) = inner.upgrade()
        {
            if let Err(AttemptFailure::Repairable(reason, place)) = &checked {
                this.report(&UpstreamEvent::RefusedCheck {
                    server: shared.display_name(server),
                    reason,
                    place,
                });
            }
            this.report_change(server, if well { HealthChange::Healthy } else { HealthChange::Unhealthy });
            shared.assign_waiting(now);
        }
        core.sleep(check.interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{UpstreamAddress, UpstreamServer};

    #[test]
    fn host_name_is_resolved_again_without_new_requests() {
        let core = Core::for_client(1).expect("an engine");
        let server = UpstreamServer::new(UpstreamAddress::Tcp { host: "localhost".into(), port: 80 });
        let shared = GroupShared::new(crate::GroupOptions::new(vec![server])).expect("valid options");
        let names = shared.servers[0].addresses.clone().expect("a name");
        let old = "192.0.2.1:80".parse().expect("an address");
        names.set_addresses(vec![old]);
        let theirs = core.clone();
        let group = Group::new(&core, &shared);
        let moved = core.run_until_end(async move {
            let _group = group;
            for _ in 0..100 {
                if !names.has(old) {
                    return true;
                }
                theirs.sleep(Millis(100)).await;
            }
            false
        });
        assert!(moved.expect("the engine turns"));
    }
}
