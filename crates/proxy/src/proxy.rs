//! The proxy on one core: accepts requests, makes attempts at servers and decides about retries.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use http::{BodySize, Fields, HeadRef, Method, Name, Status};
use net::{BodyPiece, Exchange, FailedAttempt, Fault, SpillError, SpillQuota, TunnelEnd, pin_in_place};
use times::{Millis, Moment};

use crate::current_group::CoreGroup;
use crate::dial::{ConcurrentTask, run_concurrently, with_deadline};
use crate::failure::AttemptFailure;
use crate::group::{Group, GroupState, UpstreamError, UpstreamEvent};
use crate::options::{RouteOptions, StickyCookie, UpstreamProtocol};
use crate::relay::{Relay, RelayOptions, RelayOutcome};
use crate::replay_buffer::ReplayBuffer;
use crate::request::{RequestRules, Script, SentHead, max_forwards};
use crate::response::ResponseRules;
use crate::retry::{self, AttemptProgress, RetryDecision};
use crate::selection::{NoServer, Requester, SelectError, Selection};
use crate::template::TemplateContext;
use crate::upstream_connection::UpstreamConnection;
use crate::upstream_side::UpstreamSide;

mod connect;
mod fetch;
mod store;

pub use fetch::{FetchError, FetchLimits, FetchRequest, FetchResponse};

/// Reason for refusing a request that carries this proxy's own mark.
const LOOP_REASON: &str =
    "the request loops: this proxy has passed it on before, and its upstream has sent it back";
/// Random seed of this process's marks.
static PROCESS_SEED: OnceLock<u64> = OnceLock::new();

/// A proxy on one core: a group and the rules of one route to it. Cheap to clone.
#[derive(Clone)]
pub struct Proxy(Rc<ProxyState>);

struct ProxyState {
    group: CoreGroup,
    options: Arc<RouteOptions>,
    spill: Option<Arc<SpillQuota>>,
    /// Rules for the servers that the group had in this version: made when they are needed, because most of thousands of
    /// routes are idle.
    rules: RefCell<Option<(u64, Rc<RouteRules>)>>,
}

/// A proxy with the servers that its group has at one time. A request has one from its beginning to its end.
pub struct BoundProxy {
    group: Rc<GroupState>,
    rules: Rc<RouteRules>,
}

/// Rules of a route.
struct RouteRules {
    options: Arc<RouteOptions>,
    request: RequestRules,
    response: ResponseRules,
    spill: Option<Arc<SpillQuota>>,
}

/// A server to which the request head is being sent.
struct OpenedUpstream<'p> {
    side: UpstreamSide,
    /// Future to poll until the server answers.
    concurrent_task: ConcurrentTask<'p>,
    sent: SentHead,
}

/// Data about a request for servers of the CGI family.
#[derive(Clone, Copy, Default)]
struct CgiRequest<'x> {
    /// Script or program to run.
    script: Option<&'x Script>,
    /// Length of the body, if all of it has been received.
    length: Option<u64>,
}

/// An attempt to send a request to a server.
#[derive(Clone, Copy)]
struct UpstreamAttempt<'x> {
    /// Index of the server.
    server: usize,
    /// Whether the body waits for `100 Continue`.
    awaits_continue: bool,
    /// Whether kept HTTP/1 connections are not used.
    is_new: bool,
    /// For servers of the CGI family.
    cgi: CgiRequest<'x>,
}

/// State of the attempts at one request.
struct Attempts<'s> {
    deadline: Moment,
    /// Servers at which the request has failed.
    tried: Vec<usize>,
    count: u32,
    /// Whether an attempt was repeated on a new connection, which does not count.
    has_tried_fresh: bool,
    replay: ReplayBuffer,
    /// Script that a server of the CGI family is to run.
    script: Option<&'s Script>,
    /// Selection of a failed attempt, if the next attempt goes to the same server.
    retained_selection: Option<Selection<'s>>,
}

impl Group {
    /// Creates a route to the group's servers: see [`CoreGroup::proxy`].
    #[must_use]
    pub fn proxy(&self, options: &Arc<RouteOptions>, spill: Option<Arc<SpillQuota>>) -> Proxy {
        CoreGroup::fixed(self.clone()).proxy(options, spill)
    }
}

impl CoreGroup {
    /// Creates a route to the group's servers. The mark in `Via` depends on the address of `options`: pass
    /// the same `Arc` on all cores. `spill` limits temporary files for responses beyond `read_ahead_bytes`;
    /// `None`: no such files.
    #[must_use]
    pub fn proxy(&self, options: &Arc<RouteOptions>, spill: Option<Arc<SpillQuota>>) -> Proxy {
        let rules = RefCell::default();
        Proxy(Rc::new(ProxyState { group: self.clone(), options: options.clone(), spill, rules }))
    }
}

impl Proxy {
    /// Returns the proxy with the servers that its group has now.
    #[must_use]
    pub fn bind(&self) -> BoundProxy {
        let group = self.0.group.state();
        let version = self.0.group.version();
        let mut known = self.0.rules.borrow_mut();
        let rules = match &*known {
            Some((of, rules)) if *of == version => rules.clone(),
            _ => {
                let rules = Rc::new(RouteRules::new(&group, &self.0.options, self.0.spill.clone()));
                known.insert((version, rules)).1.clone()
            }
        };
        BoundProxy { group, rules }
    }

    /// Forwards a request to an upstream server and sends the response to the client.
    ///
    /// # Errors
    /// The client has left, or a response under way cannot be completed: the caller must return the error.
    pub async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.bind().serve_script(exchange, None).await
    }

    /// Like [`Proxy::serve`]; servers of the CGI family run `script`.
    ///
    /// # Errors
    /// As [`Proxy::serve`].
    pub async fn serve_script(
        &self,
        exchange: &mut Exchange<'_>,
        script: Option<&Script>,
    ) -> Result<(), Fault> {
        self.bind().serve_script(exchange, script).await
    }

    /// Whether a request is cancelled when its client leaves: see [`Exchange::has_disconnected`].
    #[must_use]
    pub fn cancels_on_disconnect(&self) -> bool {
        self.0.options.cancels_on_disconnect
    }
}

impl RouteRules {
    fn new(group: &GroupState, options: &Arc<RouteOptions>, spill: Option<Arc<SpillQuota>>) -> RouteRules {
        let process = *PROCESS_SEED.get_or_init(|| RandomState::new().hash_one(0));
        let mark = crate::hash::mix(process ^ Arc::as_ptr(options).addr() as u64);
        let group = &group.shared.options;
        let request = RequestRules::marked(group, options, mark);
        let response = ResponseRules::new(group, options);
        RouteRules { options: options.clone(), request, response, spill }
    }
}

impl BoundProxy {
    async fn serve_script(&self, exchange: &mut Exchange<'_>, script: Option<&Script>) -> Result<(), Fault> {
        let request = exchange.request();
        if matches!(request.method(), Method::Connect | Method::Trace) {
            return exchange.refuse(Status::METHOD_NOT_ALLOWED, "this method is not passed on").await;
        }
        if request.method() == Method::Options && self.has_no_forwards_left(request.head()) {
            return exchange.reply(Status::NO_CONTENT, &Fields::new(), b"").await;
        }
        if !request.head().protocol.is_empty() && !self.rules.request.asks_for_upgrade(&exchange.context(""))
        {
            // An extended CONNECT for a protocol that is not allowed must not become a GET (RFC 8441 section
            // 4).
            let reason = "this protocol is not passed on";
            return Box::pin(exchange.refuse(Status::NOT_IMPLEMENTED, reason)).await;
        }
        if request.head().fields.has(Name::Via) && self.rules.request.is_loop(&exchange.context("")) {
            let server = (self.group.shared.server_count() == 1).then_some(0);
            self.report(exchange, server, LOOP_REASON, None, Some(Status::LOOP_DETECTED));
            return exchange.refuse(Status::LOOP_DETECTED, LOOP_REASON).await;
        }
        let has_body = request.body() != BodySize::None;
        let grpc_timeout = request.grpc_timeout();
        let kept_bytes_max = if has_body { self.kept_bytes_max(exchange) } else { 0 };
        let mut attempts = self.new_attempts(ReplayBuffer::new(kept_bytes_max), script);
        if let Some(ms) = grpc_timeout {
            attempts.deadline = attempts.deadline.min(self.group.core.now() + ms);
        }
        if has_body {
            if self.group.shared.stores_bodies {
                self.store_body(exchange, &mut attempts).await?
            } else {
                self.read_ahead(exchange, &mut attempts).await?
            }
        }
        loop {
            let since_us = self.group.core.now_us();
            let alone = self.group.balancer.select_only_server(&self.group.shared, &self.group.core);
            let (selection, is_new);
            match alone.filter(|_| attempts.retained_selection.is_none()) {
                Some(only) => (selection, is_new) = (only, false),
                None => match self.select(exchange, &mut attempts).await {
                    Ok(selected) => (selection, is_new) = selected,
                    Err(SelectError::ClientDisconnected) => return Err(Fault::Disconnected),
                    Err(SelectError::NoServer(no_server)) => {
                        add_queue_time(exchange, self.group.core.now_us() - since_us);
                        return respond_no_server(exchange, no_server).await;
                    }
                },
            }
            let queue_us = self.group.core.now_us() - since_us;
            add_queue_time(exchange, queue_us);
            let failure = match self.attempt(exchange, &selection, &mut attempts, is_new).await {
                Ok(()) => return Ok(()),
                Err(AttemptFailure::NotUpstream(fault)) => return Err(fault),
                Err(failure) => failure,
            };
            record_failed_attempt(exchange, &failure, self.group.core.now_us() - since_us - queue_us);
            if !self.record_and_decide(exchange, selection, &failure, &mut attempts) {
                return respond_failure(exchange, &failure).await;
            }
            if self.has_to_wait(&attempts) && !pin_in_place(|| self.wait_for_retry(exchange, &attempts)).await
            {
                return Err(Fault::Disconnected);
            }
        }
    }

    /// Whether the request must not be forwarded (`Max-Forwards: 0`, RFC 9110 section 7.6.2). Passing it to a
    /// program of the CGI family is not forwarding, because that is part of this server.
    fn has_no_forwards_left(&self, HeadRef { head, bytes }: HeadRef<'_>) -> bool {
        let servers = &self.group.shared.options.servers;
        let forwards = servers.iter().any(|server| !matches!(server.protocol, UpstreamProtocol::Cgi(_)));
        forwards && max_forwards(head, bytes).any(|forwards| forwards == 0)
    }

    /// Creates the state of a request before its first attempt.
    fn new_attempts<'s>(&'s self, kept: ReplayBuffer, script: Option<&'s Script>) -> Attempts<'s> {
        let options = &self.rules.options;
        self.group.budget.set(self.group.budget.get().with_request(&options.retry));
        let deadline = match options.timeouts.total {
            None => Moment::NEVER,
            Some(total) => self.group.core.now() + total,
        };
        Attempts {
            deadline,
            tried: Vec::new(),
            count: 0,
            has_tried_fresh: false,
            replay: kept,
            script,
            retained_selection: None,
        }
    }

    /// Reads a short body completely before a server is chosen, so that a slow client does not occupy one.
    async fn read_ahead(
        &self,
        exchange: &mut Exchange<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), Fault> {
        let BodySize::Known(len) = exchange.request().body() else { return Ok(()) };
        // The upstream server answers `Expect: 100-continue`.
        if len > self.rules.options.read_ahead_bytes as u64 || exchange.awaits_continue()? {
            return Ok(());
        }
        let kept = &mut attempts.replay;
        loop {
            match exchange.try_read()? {
                BodyPiece::Data(bytes) => kept.append_unlimited(bytes),
                BodyPiece::End => {
                    kept.end();
                    return Ok(());
                }
                BodyPiece::Pending => break,
            }
        }
        // Boxed because it is rarely needed: most short bodies arrive with their heads.
        let rest = Box::pin(async {
            while let Some(bytes) = exchange.read().await? {
                kept.append_unlimited(bytes);
            }
            kept.end();
            Ok(())
        });
        with_deadline(&self.group.core, attempts.deadline, rest).await.unwrap_or(Err(Fault::Timeout))
    }

    /// Returns the server of the next attempt, and whether to open a new connection to it.
    async fn select<'s>(
        &'s self,
        requester: &impl Requester,
        attempts: &mut Attempts<'s>,
    ) -> Result<(Selection<'s>, bool), SelectError> {
        if let Some(selection) = attempts.retained_selection.take() {
            return Ok((selection, true));
        }
        let group = &self.group;
        let left = attempts.deadline - group.core.now();
        let queue = self.rules.options.timeouts.queue.min(left);
        let selected =
            group.balancer.choose(&group.shared, &group.core, requester, queue, &attempts.tried).await;
        if let Err(SelectError::NoServer(no_server)) = &selected {
            self.report(requester, None, no_server.reason, None, Some(no_server.status));
        }
        selected.map(|selection| (selection, false))
    }

    /// Returns the maximum bytes of the request's body to keep; 0 if it could not be sent again anyway.
    fn kept_bytes_max(&self, exchange: &Exchange<'_>) -> usize {
        // A server may refuse a stream before processing it, and then any request may be sent again.
        let may_be_refused =
            self.group.shared.options.servers.iter().any(|server| server.protocol != UpstreamProtocol::Http1);
        if self.may_repeat(exchange) || may_be_refused {
            self.rules.options.retry.body_bytes_max as usize
        } else {
            0
        }
    }

    /// Whether the request may be sent twice.
    fn may_repeat(&self, requester: &impl Requester) -> bool {
        requester.method().is_idempotent() || self.rules.options.retry.non_idempotent
    }

    /// Whether a response with a status that counts as a failure may be followed by another attempt.
    fn may_retry(&self, requester: &impl Requester, attempts: &Attempts<'_>) -> bool {
        let options = &self.rules.options.retry;
        !options.statuses.is_empty()
            && attempts.count < options.attempts_max
            && self.may_repeat(requester)
            && !self.is_too_late(attempts)
            && self.group.budget.get().spend().is_some()
    }

    /// Whether the request has no time left for an attempt after the least wait.
    fn is_too_late(&self, attempts: &Attempts<'_>) -> bool {
        self.group.core.now() + self.rules.options.retry.backoff >= attempts.deadline
    }

    /// Whether the next attempt has to wait. One at the same server on another connection follows at once.
    fn has_to_wait(&self, attempts: &Attempts<'_>) -> bool {
        !self.rules.options.retry.backoff.is_zero() && attempts.retained_selection.is_none()
    }

    /// Waits before the next attempt. No place at a server is held meanwhile. Returns false if the client has left.
    async fn wait_for_retry(&self, requester: &impl Requester, attempts: &Attempts<'_>) -> bool {
        let (core, least) = (&self.group.core, self.rules.options.retry.backoff);
        let wait = retry::with_jitter(least, self.group.balancer.next_random());
        let mut sleep = pin!(core.sleep(wait.min(attempts.deadline - core.now())));
        poll_fn(|cx| {
            if requester.poll_disconnected(cx) {
                return Poll::Ready(false);
            }
            sleep.as_mut().poll(cx).map(|()| true)
        })
        .await
    }

    fn connect_deadline(&self, attempts: &Attempts<'_>) -> Moment {
        let connect = self.rules.options.timeouts.connect;
        (self.group.core.now() + connect).min(attempts.deadline)
    }

    /// Makes one attempt at one server; on a new connection if `is_new`.
    async fn attempt(
        &self,
        exchange: &mut Exchange<'_>,
        selection: &Selection<'_>,
        attempts: &mut Attempts<'_>,
        is_new: bool,
    ) -> Result<(), AttemptFailure> {
        let group = &self.group;
        let rules = &self.rules;
        let server = selection.server;
        attempts.count += u32::from(!is_new);
        let notes = exchange.notes();
        notes.attempts += 1;
        notes.upstream = Some(group.display_names[server].clone());
        let _in_use = group.track_request(server);
        let awaits_continue = exchange.awaits_continue()?;
        let since_us = group.core.now_us();
        let cgi = CgiRequest { script: attempts.script, length: attempts.replay.length() };
        let attempt = UpstreamAttempt { server, awaits_continue, is_new, cgi };
        let mut reached = match if is_new { None } else { self.send_on_kept(exchange, &attempt)? } {
            Some(reached) => reached,
            None => {
                let connect_by = self.connect_deadline(attempts);
                // Boxed because it is rarely needed and would enlarge the future of every request.
                pin_in_place(|| self.open_upstream(exchange, &attempt, connect_by)).await?
            }
        };
        let OpenedUpstream { side, concurrent_task: room, sent } = &mut reached;
        let asked_us = group.core.now_us();
        let reused = side.is_reused();
        if !reused {
            let notes = exchange.notes();
            notes.connect_us = Some(notes.connect_us.unwrap_or(0) + asked_us - since_us);
        }
        let cookie = sticky_cookie(exchange, selection, &rules.options.response.sticky);
        let answered = |status| {
            room.take();
            let us = group.core.now_us() - asked_us;
            group.record_response_head(selection, status, us, reused);
            us
        };
        let options = RelayOptions {
            route: &rules.options,
            request: &rules.request,
            response: &rules.response,
            upstream: &group.shared.servers[server].authority,
            deadline: attempts.deadline,
            cookie: cookie.as_deref().map(str::as_bytes),
            lingers: group.may_linger(),
            spill: rules.spill.as_ref(),
            on_spill_error: &|why: &SpillError| group.report(&UpstreamEvent::SpillFailed { error: why }),
            may_retry: self.may_retry(exchange, attempts),
            on_response_head: &answered,
        };
        let mut relay = Relay::new(exchange, side, &options, &mut attempts.replay, *sent);
        let outcome = run_concurrently(room, pin!(relay.run())).await?;
        room.take();
        group.record_success(selection);
        match outcome {
            RelayOutcome::Complete(_) if reached.side.awaits_end() => {
                group.linger(reached.side, server, exchange.request().method(), &rules.options);
            }
            RelayOutcome::Complete(sent_whole) => group.put_back(reached.side, server, sent_whole),
            // Boxed because it is rare.
            RelayOutcome::Upgraded => {
                Box::pin(tunnel(exchange, reached.side, rules.options.timeouts.tunnel)).await?;
            }
        }
        Ok(())
    }

    /// Records a failure and decides about a retry; true if another attempt follows.
    fn record_and_decide<'s>(
        &self,
        requester: &impl Requester,
        selection: Selection<'s>,
        failure: &AttemptFailure,
        attempts: &mut Attempts<'s>,
    ) -> bool {
        self.group.record_failure(&selection, failure);
        let next = self.decide_retry(requester, failure, attempts);
        // A response that breaks off is logged by the connection. A closed kept connection is not logged
        // unless the client gets the error.
        let gives_up = next == RetryDecision::GiveUp;
        if (failure.should_log() || gives_up) && !requester.has_response_begun() {
            let (status, reason) = retry::error_response(failure);
            let status = gives_up.then_some(status);
            self.report(requester, Some(selection.server), reason, failure.repairable(), status);
        }
        if next == RetryDecision::OtherServer || !gives_up && failure.should_log() {
            self.group.counters[selection.server].retries.add(1);
        }
        match next {
            RetryDecision::OtherConnection => {
                attempts.has_tried_fresh = true;
                attempts.retained_selection = Some(selection);
            }
            RetryDecision::OtherServer => attempts.tried.push(selection.server),
            RetryDecision::GiveUp => return false,
        }
        true
    }

    fn report(
        &self,
        requester: &impl Requester,
        server: Option<usize>,
        reason: &'static str,
        repairable: Option<&str>,
        status: Option<Status>,
    ) {
        let TemplateContext { head, bytes, .. } = requester.context("");
        self.group.report(&UpstreamEvent::UpstreamError(UpstreamError {
            server: server.map(|server| self.group.shared.display_name(server)),
            socket: server.and_then(|server| self.group.socket(server)),
            target: head.target.whole.of(bytes),
            reason,
            repairable,
            status,
        }));
    }

    fn decide_retry(
        &self,
        requester: &impl Requester,
        failure: &AttemptFailure,
        attempts: &Attempts<'_>,
    ) -> RetryDecision {
        let progress = AttemptProgress {
            method: requester.method(),
            has_response_begun: requester.has_response_begun(),
            is_replayable: attempts.replay.is_whole(),
            attempts: attempts.count,
            has_tried_fresh: attempts.has_tried_fresh,
        };
        let next = retry::decide(failure, &progress, &self.rules.options.retry);
        // Another attempt at the only server will most likely fail in the same way.
        let may_help = matches!(
            failure,
            AttemptFailure::RetryableStatus(_) | AttemptFailure::Stale | AttemptFailure::Unprocessed
        );
        let may_help = may_help || self.rules.options.retry.same_server;
        let alone = self.group.shared.server_count() == 1 && !may_help;
        let late = self.group.core.now() >= attempts.deadline;
        match next {
            RetryDecision::OtherConnection if !late => RetryDecision::OtherConnection,
            RetryDecision::OtherServer if !self.is_too_late(attempts) && !alone => {
                match self.group.budget.get().spend() {
                    Some(rest) => {
                        self.group.budget.set(rest);
                        RetryDecision::OtherServer
                    }
                    None => RetryDecision::GiveUp,
                }
            }
            _ => RetryDecision::GiveUp,
        }
    }
}

/// Returns the value of `Set-Cookie` that binds the client to the server, if one is needed.
fn sticky_cookie(
    exchange: &Exchange<'_>,
    selection: &Selection<'_>,
    attributes: &StickyCookie,
) -> Option<String> {
    let pair = selection.cookie.as_ref()?;
    Some(format!("{pair}{}", attributes.text(exchange.request().client().is_secure)))
}

/// Relays bytes in both directions after the upstream has switched protocols.
async fn tunnel(exchange: &mut Exchange<'_>, side: UpstreamSide, idle_timeout: Millis) -> Result<(), Fault> {
    let mut side = match side {
        UpstreamSide::H1(side) => side,
        UpstreamSide::Cgi(_) => return Err(Fault::Failed("this protocol switches to no other")),
        UpstreamSide::Stream(mut stream) => {
            return net::tunnel(exchange, TunnelEnd::Stream(&mut stream), b"", idle_timeout).await;
        }
    };
    side.consume();
    let UpstreamConnection { mut link, buffers, .. } = side.connection;
    let early = buffers.input.unconsumed().to_vec();
    drop(buffers);
    net::tunnel(exchange, TunnelEnd::Link(&mut link), &early, idle_timeout).await
}

async fn respond_no_server(exchange: &mut Exchange<'_>, no_server: NoServer) -> Result<(), Fault> {
    let mut fields = Fields::new();
    fields.push(Name::RetryAfter, no_server.retry_after_s.to_string().as_bytes());
    exchange.refuse_with(no_server.status, no_server.reason, &fields).await
}

/// Adds to the time for which the request has waited for a server.
fn add_queue_time(exchange: &mut Exchange<'_>, us: u64) {
    let notes = exchange.notes();
    notes.queue_us = Some(notes.queue_us.unwrap_or(0) + us);
}

/// Records a failed attempt of this duration for traces.
#[cold]
fn record_failed_attempt(exchange: &mut Exchange<'_>, failure: &AttemptFailure, us: u64) {
    let notes = exchange.notes();
    notes.upstream_us = Some(us);
    let Some(upstream) = notes.upstream.clone().filter(|_| failure.should_log()) else { return };
    let (_, reason) = retry::error_response(failure);
    notes.failed_attempts.get_or_insert_default().0.push(FailedAttempt { upstream, duration_us: us, reason });
}

async fn respond_failure(exchange: &mut Exchange<'_>, failure: &AttemptFailure) -> Result<(), Fault> {
    let (status, reason) = retry::error_response(failure);
    if exchange.has_begun() {
        return Err(Fault::Failed(reason));
    }
    exchange.refuse(status, reason).await
}
