//! Router: selects the route of a request and runs its steps and handler. Each core has its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use cache_handler::peers::PeerAsk;
use certificates::HttpChallenges;
use config::matcher::Routes;
use engine::clients::proxies::TrustedProxies;
use engine::generations::CoreGeneration;
use engine::options::PEER_LISTENER_KEY;
use http::template::CustomVariables;
use http::{EmptySegments, Fields, Method, Name, RequestIds, Status};
use logging::access::AccessLogs;
use logging::notice::ErrorLog;
use net::{Exchange, Fault, Request, RequestContext, pin_in_place};
use steps::cors;
use steps::flow::Flow;
use steps::guard::SiteGuard;
use steps::site_https::SiteHttps;
use telemetry::costs::CostPlan;
use telemetry::metrics::CoreMetrics;
use telemetry::traces::TraceExport;

use crate::conditions::{self, RouteRequestFields};
use crate::edits::RouteEdits;
use crate::ids::{IdGenerator, IdRules};
use crate::pages::{NO_SITE, PagesWithoutSite, SitePages};
use crate::path_rules::MapValues;
use crate::request_path::RequestPath;
use crate::route::{self, Handler, Route, choose_route};
use crate::streams::route::StreamRoutes;

mod service;

pub use service::SharedRouter;

/// Routing tables of a configuration, for one core.
pub struct RouteTable {
    /// The matcher over all sites and routes.
    pub routes: Arc<Routes>,
    /// Routes by site, then by route index.
    pub sites: Vec<Rc<Vec<Rc<Route>>>>,
    /// Treatment of empty path segments, by site; the last is for requests that match no site.
    pub empty_segments: Vec<EmptySegments>,
    /// Error pages by site; the last are for requests that match no site.
    pub pages: Vec<Rc<SitePages>>,
    /// Edits of response fields if no route matches: by site, and the last for requests that match no site.
    pub edits: Vec<RouteEdits>,
    /// TLS requirements, by site.
    pub https: Vec<SiteHttps>,
    /// Maintenance and crawler rules, by site. They apply even if no route matches.
    pub guards: Vec<Option<Rc<SiteGuard>>>,
    /// Trusted proxies, whose forwarding fields are used.
    pub trusted_proxies: Option<TrustedProxies>,
    /// Whether a route depends on the country of the client.
    pub uses_country: bool,
    /// Variables defined by the configuration, for all requests.
    pub maps: Option<Rc<MapValues>>,
    /// Rules of request ids and traces.
    pub ids: IdRules,
    /// Cost measurements.
    pub costs: CostPlan,
    /// Exporter of request spans.
    pub traces: Option<TraceExport>,
    /// Routes of streams.
    pub streams: StreamRoutes,
    /// Access logs, until the router takes them. They end with their configuration, whereas the table lives
    /// until its last request.
    pub access: Cell<Option<AccessLogs>>,
}

/// Routing tables and the generation that they belong to.
pub type GenerationTable = (Rc<RouteTable>, Rc<CoreGeneration>);

/// Router of one core.
pub struct Router {
    table: RefCell<GenerationTable>,
    renew: Box<dyn Fn() -> Option<GenerationTable>>,
    access: RefCell<Option<AccessLogs>>,
    notices: ErrorLog,
    /// Responses to HTTP-01 challenges of certificate authorities.
    challenges: HttpChallenges,
    metrics: Rc<CoreMetrics>,
    id_generator: IdGenerator,
    /// Request counter that selects those whose CPU time is measured.
    request_count: Cell<u32>,
    /// Whether a configuration with streams over UDP was replaced.
    has_datagrams_changed: Cell<bool>,
}

impl Router {
    /// Creates a router that calls `renew` at each request for a new table.
    pub fn new(
        table: GenerationTable,
        renew: Box<dyn Fn() -> Option<GenerationTable>>,
        notices: ErrorLog,
        challenges: HttpChallenges,
        metrics: Rc<CoreMetrics>,
    ) -> Router {
        let id_maker = IdGenerator::new();
        let access = RefCell::new(table.0.access.take());
        let table = RefCell::new(table);
        let turn = Cell::default();
        Router {
            table,
            renew,
            access,
            notices,
            challenges,
            metrics,
            id_generator: id_maker,
            request_count: turn,
            has_datagrams_changed: Cell::new(false),
        }
    }

    /// Passes the collected lines of the access log to its thread.
    pub fn flush(&self) {
        if let Some(access) = &*self.access.borrow() {
            access.flush();
        }
    }

    /// Whether there is an access log.
    pub fn logs_requests(&self) -> bool {
        self.access.borrow().is_some()
    }

    /// Switches to the new configuration, if there is one.
    pub fn renew(&self) {
        self.table();
    }

    /// Whether a configuration with streams over UDP was replaced since the last call: their sessions must check
    /// whether they may continue.
    pub fn take_datagrams_changed(&self) -> bool {
        self.has_datagrams_changed.take()
    }

    fn table(&self) -> GenerationTable {
        if let Some(table) = (self.renew)() {
            // Dropping the previous logs passes on the lines that they have collected.
            self.access.replace(table.0.access.take());
            if self.table.borrow().0.streams.has_datagrams() {
                self.has_datagrams_changed.set(true);
            }
            *self.table.borrow_mut() = table;
        }
        self.table.borrow().clone()
    }

    async fn respond(&self, table: Rc<RouteTable>, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        if request.listener_key() == PEER_LISTENER_KEY {
            return Box::pin(respond_to_peer(&table, exchange)).await;
        }
        if let Some(response) = self.challenges.response(request.path()) {
            // Precedes sites, routes and redirects: certificate authorities request it for every host name.
            let mut fields = Fields::new();
            fields.push(Name::ContentType, b"application/octet-stream");
            return exchange.reply(Status::OK, &fields, response.as_bytes()).await;
        }
        let site = find_site(&table, &request);
        let level = site.unwrap_or(table.sites.len());
        let client_outcome = table.trusted_proxies.as_ref().map_or(Ok(()), |one| one.set_client(exchange));
        exchange.set_context(RequestContext {
            error_pages: table.pages[level].clone(),
            empty_segments: table.empty_segments[level],
            ids: table.ids.ids(&exchange.request(), &self.id_generator),
            custom_variables: table.maps.clone().map(|maps| maps as Rc<dyn CustomVariables>),
        });
        match table.costs.begin(exchange, &self.request_count) {
            None => {
                match self.choose_route(&table, site, client_outcome, exchange)? {
                    // Most requests: without the layers of the steps, which each poll would pass through.
                    RouteChoice::Route(path, route) if route.steps.is_empty() => {
                        route.serve_directly(exchange, &path).await
                    }
                    choice => self.serve_choice(&table, site, level, choice, exchange).await,
                }
            }
            // Constructed in its box because it is rare.
            Some(meter) => {
                let measured = async {
                    let choice = self.choose_route(&table, site, client_outcome, exchange)?;
                    self.serve_choice(&table, site, level, choice, exchange).await
                };
                pin_in_place(|| meter.run(measured)).await
            }
        }
    }

    /// Chooses how a request is answered; `client_outcome` is the result of determining its client.
    fn choose_route<'t>(
        &self,
        table: &'t RouteTable,
        site: Option<usize>,
        client_outcome: Result<(), Fault>,
        exchange: &mut Exchange<'_>,
    ) -> Result<RouteChoice<'t>, Fault> {
        let request = exchange.request();
        let (mut path, outcome) = match RequestPath::of(&request) {
            Ok(path) => (path, client_outcome),
            Err(reject) => (RequestPath::default(), Err(reject.into())),
        };
        let Some(site) = site.filter(|_| outcome.is_ok()) else {
            return Ok(RouteChoice::NoRoute(path, outcome));
        };
        if let Some(https) = table.https.get(site) {
            if let Some(location) = https.location(&request) {
                let mut fields = Fields::new();
                if fields.try_push(b"Location", &location).is_ok() {
                    return Ok(RouteChoice::Https(fields));
                }
            }
            let reason = https.misdirection_reason(&request, exchange.core().unix_s());
            if let Some(reason) = reason.or_else(|| scope_reason(table, https, &request)) {
                return Ok(RouteChoice::Misdirected(reason));
            }
            if https.refuses_subject(&request) {
                return Ok(RouteChoice::SubjectRefused);
            }
        }
        let mut rounds = 0;
        loop {
            let Some(route) = find_route(table, site, &exchange.request(), &path) else {
                return Ok(RouteChoice::NoRoute(path, outcome));
            };
            let Some(rules) = route.search_rules() else {
                // Empty segments are passed on only if the path with them matches the same route.
                if let Some(sent) = path.as_sent(&exchange.request()) {
                    let found = find_route(table, site, &exchange.request(), &sent);
                    path.preserves_empty_segments = found.is_some_and(|other| Rc::ptr_eq(other, route));
                }
                return Ok(RouteChoice::Route(path, route));
            };
            route.refuse_encoded_slash(&path)?;
            path = rules.rewrite_for_search(exchange, &path, &route.paths.prefix, &mut rounds)?;
        }
    }

    async fn serve_choice(
        &self,
        table: &RouteTable,
        site: Option<usize>,
        level: usize,
        choice: RouteChoice<'_>,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), Fault> {
        let (path, outcome) = match choice {
            RouteChoice::Route(path, route) => {
                let outcome = route.serve(exchange, &path).await;
                return if exchange.has_intercepted_error() {
                    Box::pin(exchange.send_page()).await
                } else {
                    outcome
                };
            }
            RouteChoice::Https(fields) => {
                let status = Status::PERMANENT_REDIRECT;
                return exchange.refuse_with(status, "this page is served over HTTPS", &fields).await;
            }
            RouteChoice::Misdirected(reason) => return exchange.refuse(MISDIRECTED, reason).await,
            RouteChoice::SubjectRefused => {
                return exchange
                    .refuse(Status::FORBIDDEN, "certificates of this subject are not admitted")
                    .await;
            }
            RouteChoice::NoRoute(path, outcome) => (path, outcome),
        };
        table.edits[level].apply(exchange, b"");
        outcome?;
        if let Some(Some(guard)) = table.guards.get(level)
            && Box::pin(route::apply_guard(guard, None, exchange, &path)).await? == Flow::Answered
        {
            return Ok(());
        }
        match exchange.request().method() {
            Method::Connect => exchange.refuse(Status::NOT_IMPLEMENTED, "CONNECT is not supported").await,
            Method::Options if exchange.request().path() == b"*" => {
                let mut fields = Fields::new();
                fields.push(Name::Allow, b"GET, HEAD, OPTIONS");
                exchange.reply(Status::NO_CONTENT, &fields, b"").await
            }
            _ if site.is_none() => {
                let pages = PagesWithoutSite::new(table.pages[level].clone(), exchange.request().authority());
                exchange.set_error_pages(Rc::new(pages));
                exchange.refuse(Status::NOT_FOUND, NO_SITE).await
            }
            _ => exchange.refuse(Status::NOT_FOUND, "there is nothing at this address").await,
        }
    }
}

/// Answers another server of the set from the cache of the route that it names, or by the handler behind it. Its
/// connection is authenticated; it has run the steps of the route.
async fn respond_to_peer(table: &RouteTable, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
    let ask = PeerAsk::of(&exchange.request());
    let route = |ask: &PeerAsk| table.sites.get(ask.route.0)?.get(ask.route.1);
    let Some((ask, route)) = ask.and_then(|ask| Some((ask, route(&ask)?))) else {
        return exchange.refuse(PeerAsk::REFUSED, "this address is for servers of the set").await;
    };
    exchange.amend(&PeerAsk::own_fields(), &Fields::new());
    exchange.stand_in(ask.peer, ask.client);
    exchange.set_context(RequestContext {
        error_pages: table.pages[ask.route.0].clone(),
        empty_segments: table.empty_segments[ask.route.0],
        ids: RequestIds::default(),
        custom_variables: table.maps.clone().map(|maps| maps as Rc<dyn CustomVariables>),
    });
    route.serve_peer(exchange, ask.key).await
}

/// Choice of how a request is answered.
enum RouteChoice<'t> {
    Route(RequestPath, &'t Rc<Route>),
    /// Redirect to HTTPS with these fields.
    Https(Fields),
    /// 421, for this reason.
    Misdirected(&'static str),
    /// 403 for the subject of the client's certificate.
    SubjectRefused,
    /// No route matches, or the request has the given error.
    NoRoute(RequestPath, Result<(), Fault>),
}

/// Returns the reason to refuse a request for a site with a scope, on a connection for a host of another one.
fn scope_reason(table: &RouteTable, https: &SiteHttps, request: &Request<'_>) -> Option<&'static str> {
    // A client that names no host has the site of its request.
    let name = request.tls().filter(|_| https.scope != 0)?.server_name.as_deref()?;
    let named = table.routes.site_of_name(name, request.listener_key());
    https.scope_reason(named.and_then(|site| table.https.get(site)))
}

/// Returns the site of a request, by its host and the listener that accepted it.
fn find_site(table: &RouteTable, request: &Request<'_>) -> Option<usize> {
    table.routes.site(request.authority(), request.listener_key())
}

/// Returns the route of a request with this path. `None` for `CONNECT` and the target `*`.
fn find_route<'t>(
    table: &'t RouteTable,
    site: usize,
    request: &Request<'_>,
    path: &RequestPath,
) -> Option<&'t Rc<Route>> {
    if request.method() == Method::Connect || request.path() == b"*" {
        return None;
    }
    let find_at = |path: &[u8], method: &[u8]| {
        let query = request.query().unwrap_or_default();
        let wanted = conditions::route_request(request, method, path, query, table.uses_country);
        Some(&table.sites[site][table.routes.find_in(site, &wanted, RouteRequestFields(request))?])
    };
    let path = path.bytes(request);
    let method = request.method_name();
    // A preflight belongs to the route of the actual request, if that route has CORS rules.
    let asked = cors::preflight_method(request).and_then(|method| find_at(path, method));
    let found = asked.filter(|route| route.steps.has_cors()).or_else(|| find_at(path, method))?;
    let is_other = |other: &&'t Rc<Route>| !Rc::ptr_eq(other, found);
    let of_script = match &found.programs {
        Some(programs) => {
            programs.program_within(path).and_then(|program| find_at(program, method)).filter(is_other)
        }
        None if matches!(found.handler, Handler::Php(_)) => {
            files::scripts_within(path).filter_map(|script| find_at(script, method)).find(is_other)
        }
        None => None,
    };
    of_script.map_or(Some(found), |script| choose_route(found, script))
}

/// 421 (RFC 9110 section 15.5.20).
const MISDIRECTED: Status = Status::of(421).expect("three digits");
