//! The listener for those who operate the server (`[control] listen`): `GET /metrics` and `GET /v1/status`.
//!
//! It is a small server of its own, with one thread, so that it answers however busy the others are.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use apps::Usage;
use http::{BodySize, Fields, Method, Name, Status};
use net::{Counters, Exchange, Fault, Listener, RequestRecord, Server, Service};
use serde_json::Value;

use crate::control::{self, ServerInfo};
use crate::engine;
use crate::exposition::{self, Gauges, WorkerMetrics};
use crate::metrics::Metrics;
use crate::notice::ErrorLog;
use crate::overview::{Followers, PagePart};

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 256;
/// For a client to send its request, and between two.
const HEAD_MS: u64 = 2_000;
const IDLE_MS: u64 = 120_000;
/// How long a server that replaces another one tries to listen where that one still does.
const PREDECESSOR_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// What it answers from.
#[derive(Clone)]
pub(crate) struct Operated {
    pub(crate) info: Arc<ServerInfo>,
    pub(crate) metrics: Metrics,
    /// Of the cores that serve.
    pub(crate) counters: Vec<Arc<Counters>>,
}

/// The listener that runs, or is still to begin.
#[derive(Clone, Default)]
pub(crate) struct ControlListener(Arc<Mutex<ListenerState>>);

#[derive(Default)]
struct ListenerState {
    stop: Option<net::Stop>,
    is_closed: bool,
}

impl ControlListener {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens no more: a server that replaces this one is to be seen at the address.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.stop.take().iter().for_each(net::Stop::drain);
    }

    fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn started(&self, server: Server) {
        let mut state = self.state();
        state.stop = Some(server.stop());
        if state.is_closed {
            server.stop().drain();
        }
        // Its thread ends by itself, or with the process.
        std::mem::forget(server);
    }
}

/// Starts it. A server that replaces another one listens as soon as that one does no more.
///
/// # Errors
/// The address cannot be listened on.
pub(crate) fn serve(
    address: &config::Listen,
    operated: Operated,
    replaces: bool,
    notices: &ErrorLog,
) -> io::Result<ControlListener> {
    let listener = ControlListener::default();
    let explained =
        |error: io::Error| io::Error::new(error.kind(), format!("`control.listen` = \"{address}\": {error}"));
    let (theirs, log, later) = (address.clone(), notices.clone(), listener.clone());
    match start(address, operated.clone(), &listener, notices) {
        Err(error) if replaces && error.kind() == io::ErrorKind::AddrInUse => {
            std::thread::Builder::new().name("operate".into()).spawn(move || {
                let until = Instant::now() + PREDECESSOR_MAX;
                let mut started = Err(error);
                while started.is_err() && Instant::now() < until && !later.is_closed() {
                    std::thread::sleep(PAUSE);
                    started = start(&theirs, operated.clone(), &later, &log);
                }
                if let Err(error) = started {
                    log.error(&format!("`control.listen` = \"{theirs}\": {error}"));
                }
            })?;
        }
        started => started.map_err(explained)?,
    }
    Ok(listener)
}

fn start(
    address: &config::Listen,
    operated: Operated,
    listener: &ControlListener,
    notices: &ErrorLog,
) -> io::Result<()> {
    let memory = operated.info.memory.clone();
    let mut options = net::Options { threads: 1, memory, ..net::Options::default() };
    options.limits.connections_max = CONNECTIONS_MAX;
    (options.timeouts.head_ms, options.timeouts.idle_ms) = (HEAD_MS, IDLE_MS);
    let binds = engine::binds(address).into_iter();
    let listeners = binds.map(|bind| Listener::bind(bind.into(), 1)).collect::<io::Result<_>>()?;
    let is_network = !matches!(address, config::Listen::Unix(_));
    let server = Server::serve(&options, listeners, move |_| {
        Ok(OperatorService { operated: operated.clone(), is_network, followers: Followers::default() })
    })?;
    let urls: Vec<String> = server.listeners().urls().iter().map(ToString::to_string).collect();
    notices.info(&format!("the control listener is {}", urls.join(", ")));
    listener.started(server);
    Ok(())
}

struct OperatorService {
    operated: Operated,
    is_network: bool,
    followers: Followers,
}

/// A document, and its media type.
type Document = (&'static str, String);

impl OperatorService {
    /// What a path stands for.
    fn document(&self, path: &[u8], is_open: bool) -> Option<Box<dyn FnOnce() -> Document + Send>> {
        let operated = self.operated.clone();
        match path {
            b"/metrics" => Some(Box::new(move || {
                let kind = match is_open {
                    true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    false => "text/plain; version=0.0.4; charset=utf-8",
                };
                (kind, exposition::exposition(&operated.metrics, operated.gauges(), is_open))
            })),
            b"/v1/status" => Some(Box::new(move || {
                ("application/json", format!("{:#}\n", control::status(&operated.info)))
            })),
            _ => None,
        }
    }
}

impl Service for OperatorService {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        // A page of elsewhere whose name was made to point here (DNS rebinding) gets nothing.
        if self.is_network && !is_plain_host(request.authority()) {
            let why = "ask by the address of this server, not by a name";
            return exchange.refuse(Status::of(421).expect("three digits"), why).await;
        }
        if !matches!(request.method(), Method::Get | Method::Head) {
            let mut fields = Fields::new();
            fields.push(Name::Allow, b"GET, HEAD");
            return exchange.refuse_with(Status::METHOD_NOT_ALLOWED, "only GET and HEAD", &fields).await;
        }
        if request.body() != BodySize::None {
            return exchange.refuse(Status::BAD_REQUEST, "requests here have no body").await;
        }
        if let Some(part) = PagePart::at(request.path()) {
            return part.send(exchange).await;
        }
        if request.path() == b"/v1/events" {
            let info = &self.operated.info;
            let is_over = || info.stop.is_draining();
            return self.followers.follow(exchange, &info.counted.events, is_over).await;
        }
        let wants_open = |value: &[u8]| value.windows(23).any(|part| part == b"application/openmetrics");
        let is_open = request.field(Name::Accept).is_some_and(wants_open);
        let Some(document) = self.document(request.path(), is_open) else {
            return exchange
                .refuse(Status::NOT_FOUND, "there are /, /metrics, /v1/status and /v1/events")
                .await;
        };
        let (kind, text) = exchange.core().clone().offload(document).await;
        let mut fields = Fields::new();
        fields.push(Name::ContentType, kind.as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange.reply(Status::OK, &fields, text.as_bytes()).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// Whether a request names an IP address or `localhost`.
fn is_plain_host(authority: &[u8]) -> bool {
    let host = http::target::split_port(authority).map_or(authority, |(host, _)| host);
    let text = std::str::from_utf8(host).unwrap_or_default();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    inner.eq_ignore_ascii_case("localhost") || inner.parse::<std::net::IpAddr>().is_ok()
}

impl Operated {
    fn gauges(&self) -> Gauges {
        let info = &self.info;
        let usage = Usage::of(std::process::id());
        let processes = info.hosting.processes().into_iter();
        let workers = processes.flat_map(|(name, processes)| {
            let worker = move |process: &apps::ProcessInfo| WorkerMetrics {
                app: name.clone(),
                worker: process.worker,
                state: process.state.to_string(),
                pss_bytes: process.usage.map_or(0, |usage| usage.pss_bytes),
                cpu_ms: process.usage.map_or(0, |usage| usage.cpu_ms),
            };
            processes.iter().map(worker).collect::<Vec<_>>()
        });
        let certificates = control::all_certificates(info);
        let expiry = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["not_after"].as_i64()?));
        Gauges {
            cores: self.counters.clone(),
            uptime_s: info.since.elapsed().as_secs_f64(),
            cpu_s: usage.map_or(0.0, |usage| usage.cpu_ms as f64 / 1e3),
            resident_bytes: usage.map_or(0, |usage| usage.rss_bytes),
            held_bytes: info.memory.held_bytes(),
            budget_bytes: info.memory.bytes_max(),
            refused: info.memory.refused(),
            workers: workers.collect(),
            limits: (info.limits)(),
            exits: info.hosting.exits(),
            upstreams: (info.upstreams)(),
            certificates: certificates.iter().filter_map(expiry).collect(),
        }
    }
}
