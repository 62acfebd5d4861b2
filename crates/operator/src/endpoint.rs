//! The control listener (`[control] listen`): `GET /metrics`, and the API below `/v1/`.
//!
//! A separate server with one thread, so that it answers even when the serving cores are busy. Opened and
//! closed by [`crate::listener`].

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use apps::Usage;
use http::{BodySize, Fields, Method, Name, Reject, Status};
use logging::notice::ErrorLog;
use net::{
    BindAddress, Counters, Exchange, Fault, Listener, Listeners, Peer, Request, RequestRecord, Server,
    Service, TlsAcceptor,
};
use rustix::net::sockopt::socket_peercred;
use serde_json::Value;
use telemetry::families::{self, Family};
use telemetry::format::MetricsFormat;
use telemetry::gauges::{AppQueue, Gauges, WorkerMetrics};
use telemetry::metrics::Metrics;
use telemetry::{protobuf_format, text_format};
use times::Millis;

use crate::access::{ControlAccess, FAILURES_MAX, TokenFailures, bearer_token};
use crate::api::{self, Api, ApiRequest, ApiResponse, BODY_BYTES_MAX, Caller, CallerRole};
use crate::overview::{DashboardFile, EventClients};
use crate::socket;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 256;
/// Timeout for a request head, and the keep-alive timeout.
const HEAD_TIMEOUT: Millis = Millis(2_000);
const IDLE_TIMEOUT: Millis = Millis(120_000);
/// Maximum number of API requests in progress.
const API_REQUESTS_MAX: usize = 32;

/// Status of a request for another server or another kind of connection (RFC 9110 section 15.5.20).
const MISDIRECTED: Status = Status::of(421).expect("three digits");

/// Sources of the listener's responses.
#[derive(Clone)]
pub struct ControlSources {
    /// The operations below `/v1/`.
    pub api: Arc<Api>,
    /// Source of `GET /metrics`.
    pub metrics: Metrics,
    /// Counters of the serving cores.
    pub counters: Vec<Arc<Counters>>,
    /// Wrong tokens counted per address.
    pub failures: Arc<TokenFailures>,
}

/// Starts the server of these listeners; `is_leaving` is set before it closes and ends event streams.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(
    listeners: Vec<Listener>,
    tls: TlsAcceptor,
    sources: &ControlSources,
    is_leaving: &Arc<AtomicBool>,
    notices: &ErrorLog,
) -> io::Result<(net::StopHandle, Listeners)> {
    let memory = sources.api.info.memory.clone();
    let mut options = net::Options { threads: 1, memory, tls: Some(tls), ..net::Options::default() };
    options.limits.connections_max = CONNECTIONS_MAX;
    (options.timeouts.head, options.timeouts.idle) = (HEAD_TIMEOUT, IDLE_TIMEOUT);
    let is_network = listeners.iter().any(|listener| !matches!(listener.address(), BindAddress::Unix(_)));
    let operated = sources.clone();
    let is_leaving = is_leaving.clone();
    let server = Server::serve(&options, listeners, move |_| {
        Ok(OperatorService {
            sources: operated.clone(),
            is_over_tcp: is_network,
            is_closing: is_leaving.clone(),
            running_requests: RunningRequests::default(),
            event_clients: EventClients::default(),
        })
    })?;
    let urls: Vec<String> = server.listeners().urls().iter().map(ToString::to_string).collect();
    notices.info(&format!("the control listener is {}", urls.join(", ")));
    let running = (server.stop_handle(), server.listeners());
    // The server is not joined: its thread ends when it drains, or with the process.
    std::mem::forget(server);
    Ok(running)
}

/// Result of access control for a request.
enum AccessDecision {
    Admitted(Caller),
    Refused {
        caller: Caller,
        response: ApiResponse,
        /// Whether the refusal is written to the audit log; repeated ones are written once.
        is_recorded: bool,
    },
}

struct OperatorService {
    sources: ControlSources,
    is_over_tcp: bool,
    is_closing: Arc<AtomicBool>,
    event_clients: EventClients,
    running_requests: RunningRequests,
}

impl OperatorService {
    async fn send_metrics(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let format = MetricsFormat::accepted(exchange.request().field(Name::Accept).unwrap_or_default());
        let operated = self.sources.clone();
        let document = move || match format {
            MetricsFormat::Protobuf => protobuf_format::exposition(&operated.families()),
            MetricsFormat::OpenMetrics => text_format::exposition(operated.families(), true).into_bytes(),
            MetricsFormat::Text => text_format::exposition(operated.families(), false).into_bytes(),
        };
        let document = exchange.core().clone().offload(document).await;
        let mut fields = Fields::new();
        fields.push(Name::ContentType, format.media_type().as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange.reply(Status::OK, &fields, &document).await
    }

    /// Admits clients of a Unix socket with the role `admin`, except processes of applications.
    fn check_unix_client(&self, exchange: &Exchange<'_>) -> AccessDecision {
        let socket = exchange.unix_socket();
        let peer = socket.and_then(|socket| socket_peercred(socket).ok());
        let uid = peer.map(|peer| peer.uid.as_raw());
        let name = peer.map_or_else(
            || "the Unix socket".to_owned(),
            |peer| {
                format!("uid {} (process {}) by the Unix socket", peer.uid.as_raw(), peer.pid.as_raw_pid())
            },
        );
        let role = CallerRole::Admin;
        let address = String::new();
        let caller = Caller { name, role, uid, address, may_send_token: false };
        let refusal = match socket {
            Some(socket) => self.sources.api.info.peer_refusal(socket).map(|refusal| refusal.text),
            None => Some("by a Unix socket the API speaks HTTP/1.1".to_owned()),
        };
        match refusal {
            None => AccessDecision::Admitted(caller),
            Some(text) => {
                let caller = Caller { role: CallerRole::Open, ..caller };
                AccessDecision::Refused { caller, response: ApiResponse::error(403, text), is_recorded: true }
            }
        }
    }

    /// Determines the caller of a request and its role.
    fn check_access(&self, exchange: &Exchange<'_>, access: &ControlAccess) -> AccessDecision {
        let request = exchange.request();
        let Peer::Tcp(address) = request.peer() else {
            return self.check_unix_client(exchange);
        };
        let ip = address.ip();
        let shown = request.peer().to_string();
        let has_tokens = access.has_tokens();
        let mut caller = Caller {
            name: shown.clone(),
            role: CallerRole::Open,
            uid: None,
            address: shown,
            may_send_token: has_tokens,
        };
        let refused =
            |caller, response, is_recorded| AccessDecision::Refused { caller, response, is_recorded };
        let certificate = request.tls().and_then(|tls| tls.client.as_ref());
        let known = certificate.and_then(|client| access.find_client(&client.info));
        let Some(given) = request.field(Name::Authorization).filter(|_| has_tokens) else {
            if let Some((name, role)) = known {
                (caller.name, caller.role) = (name.to_owned(), role.into());
                return AccessDecision::Admitted(caller);
            }
            return if access.allows_anonymous_metrics {
                AccessDecision::Admitted(caller)
            } else {
                refused(caller, missing_credentials(access), true)
            };
        };
        caller.may_send_token = false;
        let now = Instant::now();
        if let Some(blocked) = self.sources.failures.check_address(ip, now) {
            let seconds = blocked.retry_after.as_secs() + 1;
            let text = format!("{FAILURES_MAX} wrong tokens from this address: wait {seconds} s");
            let retry_after_s = Some(seconds);
            let response = ApiResponse { retry_after_s, ..ApiResponse::error(429, text) };
            return refused(caller, response, blocked.is_first);
        }
        match access.find_token(bearer_token(given)) {
            Some((name, role)) => {
                (caller.name, caller.role) = (name.to_owned(), role.into());
                AccessDecision::Admitted(caller)
            }
            None => {
                self.sources.failures.count_failure(ip, now);
                refused(
                    caller,
                    ApiResponse::error(401, "this token is none of those of `[[control.token]]`"),
                    true,
                )
            }
        }
    }

    /// Refuses a request and records the refusal.
    async fn refuse(
        &self,
        exchange: &mut Exchange<'_>,
        request: &ApiRequest,
        response: ApiResponse,
    ) -> Result<(), Fault> {
        if response.is_refusal() {
            self.sources.api.audit.record(request, &response);
        }
        send_response(exchange, response).await
    }

    /// Answers requests below `/v1/`.
    async fn answer_api(&self, exchange: &mut Exchange<'_>, caller: Caller) -> Result<(), Fault> {
        let request = exchange.request();
        let mut asked = to_api_request(&request, caller);
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        let may =
            api::required_role(&asked.method, &asked.path).is_some_and(|role| asked.caller.role >= role);
        if let (false, Some(response)) = (is_read, refuse_cross_origin(&request)) {
            return self.refuse(exchange, &asked, response).await;
        }
        if may && request.body() != BodySize::None {
            exchange.limit_body(BODY_BYTES_MAX as u64)?;
            while let Some(piece) = exchange.read().await? {
                asked.body.extend_from_slice(piece);
                let held = asked.body.capacity();
                exchange.hold(held);
            }
        }
        let under_way = self.running_requests.clone();
        let theirs = self.sources.api.clone();
        let response = match under_way.try_begin() {
            Some(place) => {
                let work = move || {
                    let _place = place;
                    api::answer_request(&theirs, &asked)
                };
                run_on_thread(work).await
            }
            None => ApiResponse::error(503, "too many requests are being answered: try again"),
        };
        send_response(exchange, response).await
    }
}

/// Returns the refusal of a request without a token or a known client certificate.
fn missing_credentials(access: &ControlAccess) -> ApiResponse {
    let token = "send a token as `Authorization: Bearer TOKEN`";
    let certificate = "connect with a certificate that `[[control.client]]` names";
    match (access.has_tokens(), access.has_clients()) {
        (true, false) => {
            ApiResponse::error(401, "this needs a token: send it as `Authorization: Bearer TOKEN`")
        }
        (true, true) => ApiResponse::error(401, format!("{token}, or {certificate}")),
        (false, _) => ApiResponse::error(403, certificate),
    }
}

/// Converts a request, without its body.
fn to_api_request(request: &Request<'_>, caller: Caller) -> ApiRequest {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ApiRequest {
        caller,
        method: text(request.method_name()),
        path: text(request.path()),
        query: text(request.query().unwrap_or_default()),
        if_match: request.field(Name::IfMatch).map(text),
        body: Vec::new(),
    }
}

async fn send_response(exchange: &mut Exchange<'_>, response: ApiResponse) -> Result<(), Fault> {
    let mut fields = Fields::new();
    fields.push(Name::ContentType, b"application/json");
    fields.push(Name::CacheControl, b"no-store");
    if let Some(etag) = &response.etag {
        fields.push(Name::Etag, etag.as_bytes());
    }
    if let Some(allow) = &response.allow {
        fields.push(Name::Allow, allow.as_bytes());
    }
    if let Some(seconds) = response.retry_after_s {
        fields.push(Name::RetryAfter, seconds.to_string().as_bytes());
    }
    if response.status == 401 {
        fields.push(Name::WwwAuthenticate, b"Bearer");
    }
    let status = Status::of(response.status).unwrap_or(Status::INTERNAL_SERVER_ERROR);
    exchange.reply(status, &fields, format!("{:#}\n", response.document).as_bytes()).await
}

/// Refuses a state-changing request that a page of another origin may have sent from a browser (CSRF).
/// Without a CORS preflight such a page cannot send JSON.
fn refuse_cross_origin(request: &Request<'_>) -> Option<ApiResponse> {
    let kind = request.field(Name::ContentType).unwrap_or_default();
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let is_json = [&b"application/json"[..], b"application/merge-patch+json"]
        .iter()
        .any(|json| kind.eq_ignore_ascii_case(json));
    if !is_json {
        return Some(ApiResponse::error(
            415,
            "requests to change something need `Content-Type: application/json`",
        ));
    }
    let origin = request.field(Name::Origin)?;
    let host = origin.split(|&byte| byte == b'/').nth(2).unwrap_or_default();
    (!host.eq_ignore_ascii_case(request.authority()))
        .then(|| ApiResponse::error(403, "a page of another origin has sent this: it may not"))
}

impl Service for OperatorService {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let access = self.sources.api.access();
        let request = exchange.request();
        let has_expired = request.tls().is_some_and(|tls| tls.has_expired(exchange.core().unix_s()));
        let policy = request.tls().map(|tls| tls.policy);
        if self.is_over_tcp && (has_expired || policy != access.has_tls().then(|| access.client_policy_id()))
        {
            // The connection was made before a reload changed the TLS requirements; close it.
            let why = "the demands on connections have changed: connect again";
            return Err(Fault::Reject(Reject::new(MISDIRECTED, why)));
        }
        let entry = self.check_access(exchange, &access);
        let request = exchange.request();
        // Recipients may disagree about which of several values counts.
        for (name, why) in [
            (Name::Authorization, "there are several fields `Authorization`: send one"),
            (Name::Origin, "there are several fields `Origin`: send one"),
        ] {
            if request.fields().filter(|(id, _, _)| *id == name).count() > 1 {
                return exchange.refuse(Status::BAD_REQUEST, why).await;
            }
        }
        // Protects against DNS rebinding: a page of another origin has no token, but may use a name that
        // resolves here.
        let has_none = matches!(&entry, AccessDecision::Admitted(caller) if caller.role == CallerRole::Open);
        // Over TLS the browser rejects the connection, because the certificate does not match that name.
        let is_clear = self.is_over_tcp && request.tls().is_none();
        if is_clear && has_none && !is_plain_host(request.authority()) {
            let why = "ask by the address of this server, not by a name, or with a token";
            return exchange.refuse(MISDIRECTED, why).await;
        }
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        if is_read && request.body() != BodySize::None {
            return exchange.refuse(Status::BAD_REQUEST, "such requests have no body").await;
        }
        if let (true, Some(part)) = (is_read, DashboardFile::find_file(request.path())) {
            return part.send(exchange).await;
        }
        let caller = match entry {
            AccessDecision::Admitted(caller) => caller,
            AccessDecision::Refused { caller, response, is_recorded } => {
                let asked = to_api_request(&request, caller);
                return if is_recorded {
                    self.refuse(exchange, &asked, response).await
                } else {
                    send_response(exchange, response).await
                };
            }
        };
        if is_read && request.path() == b"/v1/events" {
            let info = &self.sources.api.info;
            let is_over = || info.stop_handle.is_draining() || self.is_closing.load(Ordering::Relaxed);
            let has_token = caller.role > CallerRole::Open;
            let address = match request.peer() {
                Peer::Tcp(address) => address.ip().to_string(),
                _ => String::new(),
            };
            let client = if has_token { &caller.name } else { &address };
            return self
                .event_clients
                .stream_events(exchange, &info.counters.events, client, has_token, is_over)
                .await;
        }
        if request.path().starts_with(b"/v1/") {
            return self.answer_api(exchange, caller).await;
        }
        if !is_read {
            let mut fields = Fields::new();
            fields.push(Name::Allow, b"GET, HEAD");
            return exchange.refuse_with(Status::METHOD_NOT_ALLOWED, "only GET and HEAD", &fields).await;
        }
        match request.path() {
            b"/metrics" => self.send_metrics(exchange).await,
            _ => {
                exchange
                    .refuse(
                        Status::NOT_FOUND,
                        "there are / and /metrics, and below /v1/ the API: /v1/openapi.json lists it",
                    )
                    .await
            }
        }
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// Number of API requests in progress, each on its own thread.
#[derive(Clone, Default)]
struct RunningRequests(Arc<AtomicUsize>);

impl RunningRequests {
    fn try_begin(&self) -> Option<RunningRequest> {
        let place = RunningRequest(self.0.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < API_REQUESTS_MAX).then_some(place)
    }
}

struct RunningRequest(Arc<AtomicUsize>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs blocking work, such as a reload, on its own thread.
async fn run_on_thread(work: impl FnOnce() -> ApiResponse + Send + 'static) -> ApiResponse {
    let shared: Arc<Mutex<(Option<ApiResponse>, Option<Waker>)>> = Arc::default();
    let theirs = shared.clone();
    let started = std::thread::Builder::new().name("control-api".into()).spawn(move || {
        let response = catch_unwind(AssertUnwindSafe(work));
        let failed = |_| ApiResponse::error(500, "this failed: the error log says how");
        let mut shared = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        shared.0 = Some(response.unwrap_or_else(failed));
        shared.1.take().into_iter().for_each(Waker::wake);
    });
    if let Err(error) = started {
        return ApiResponse::error(503, format!("there can be no thread: {error}"));
    }
    poll_fn(|context| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.0.take() {
            Some(response) => Poll::Ready(response),
            None => {
                shared.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

/// Whether the request's host is an IP address or `localhost`.
fn is_plain_host(authority: &[u8]) -> bool {
    let host = http::target::split_port(authority).map_or(authority, |(host, _)| host);
    let text = std::str::from_utf8(host).unwrap_or_default();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    inner.eq_ignore_ascii_case("localhost") || inner.parse::<std::net::IpAddr>().is_ok()
}

impl ControlSources {
    /// Collects all metrics.
    pub fn families(&self) -> Vec<Family> {
        families::collect_families(&self.metrics, &self.gauges())
    }

    fn gauges(&self) -> Gauges {
        let info = &self.api.info;
        let usage = Usage::of(std::process::id());
        let snapshots = info.hosting.snapshots();
        let queue = |(name, app): &(String, apps::AppSnapshot)| AppQueue {
            app: name.clone(),
            waiting: app.waiting,
            active: app.claimed,
        };
        let app_queues = snapshots.iter().map(queue).collect();
        let workers = snapshots.iter().flat_map(|(name, app)| {
            let worker = move |process: &apps::ProcessInfo| WorkerMetrics {
                app: name.clone(),
                worker: process.worker,
                state: process.state.to_string(),
                pss_bytes: process.usage.map_or(0, |usage| usage.pss_bytes),
                cpu_ms: process.usage.map_or(0, |usage| usage.cpu_ms),
                requests: process.requests,
            };
            app.processes.iter().map(worker)
        });
        let certificates = socket::all_certificates(info);
        let expiry = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["not_after"].as_i64()?));
        Gauges {
            cores: self.counters.clone(),
            uptime_s: info.started_at.elapsed().as_secs_f64(),
            cpu_s: usage.map_or(0.0, |usage| usage.cpu_ms as f64 / 1e3),
            resident_bytes: usage.map_or(0, |usage| usage.rss_bytes),
            held_bytes: info.memory.held_bytes(),
            budget_bytes: info.memory.bytes_max(),
            refused: info.memory.refused(),
            workers: workers.collect(),
            app_queues,
            limits: (info.limit_metrics)(),
            queues: (info.queue_metrics)(),
            rules: (info.rule_counts)(),
            exits: info.hosting.exits(),
            upstreams: (info.upstreams)(),
            cluster: (info.cluster_status)(),
            kubernetes: (info.kubernetes_status)(),
            certificates: certificates.iter().filter_map(expiry).collect(),
        }
    }
}
