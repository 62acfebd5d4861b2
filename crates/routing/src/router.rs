//! Router: selects the route of a request and runs its steps and handler. Each core has its own.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cache_handler::handler::CachedHandler;
use config::matcher::Routes;
use control::HttpChallenges;
use engine::clients::proxies::TrustedProxies;
use engine::generations::CoreGeneration;
use files::FileOutcome;
use http::{EmptySegments, Fields, Method, Name, Status, Variable};
use logging::access::AccessLogs;
use logging::notice::ErrorLog;
use net::{Exchange, Fault, Request, pin_in_place};
use proxy::Proxy;
use steps::guard::{GuardStep, SiteGuard};
use steps::limit::{self, CountedRequests};
use steps::release::ReleaseStep;
use steps::site_https::SiteHttps;
use steps::{auth, cors};
use telemetry::costs::CostPlan;
use telemetry::metrics::CoreMetrics;
use telemetry::traces::TraceExport;

use crate::conditions::{self, FieldsOf};
use crate::edits::{RouteEdits, values};
use crate::ids::{IdMaker, IdRules};
use crate::internal;
use crate::pages::{self, NO_SITE, PagesWithoutSite, SitePages};
use crate::path_rules::MapValues;
use crate::php::{PhpRoute, PhpTarget, ScriptRunner};
use crate::request_path::RequestPath;
use crate::streams::route::StreamRoutes;

mod route;
mod service;

pub use route::{Handler, Route};
pub use service::SharedRouter;

/// Routing tables of a configuration, for one core.
pub struct RouteTable {
    /// The matcher over all sites and routes.
    pub routes: Routes,
    /// Routes by site, then by route index.
    pub sites: Vec<Vec<Rc<Route>>>,
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
    pub introducers: Option<TrustedProxies>,
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
    id_maker: IdMaker,
    /// Request counter that selects those whose CPU time is measured.
    turn: Cell<u32>,
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
        let (id_maker, access) = (IdMaker::new(), RefCell::new(table.0.access.take()));
        let (table, turn) = (RefCell::new(table), Cell::default());
        Router { table, renew, access, notices, challenges, metrics, id_maker, turn }
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

    fn table(&self) -> GenerationTable {
        if let Some(table) = (self.renew)() {
            // Dropping the previous logs passes on the lines that they have collected.
            self.access.replace(table.0.access.take());
            *self.table.borrow_mut() = table;
        }
        self.table.borrow().clone()
    }

    async fn answer(&self, table: Rc<RouteTable>, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        if let Some(response) = self.challenges.response(request.path()) {
            // Precedes sites, routes and redirects: certificate authorities request it for every host name.
            let mut fields = Fields::new();
            fields.push(Name::ContentType, b"application/octet-stream");
            return exchange.reply(Status::OK, &fields, response.as_bytes()).await;
        }
        let site = site_of(&table, &request);
        let level = site.unwrap_or(table.sites.len());
        exchange.set_pages(table.pages[level].clone());
        exchange.set_empty_segments(table.empty_segments[level]);
        let introduced = table.introducers.as_ref().map_or(Ok(()), |one| one.introduce(exchange));
        exchange.set_ids(table.ids.ids(&exchange.request(), &self.id_maker));
        match table.costs.begin(exchange, &self.turn) {
            None => {
                let choice = self.choose(&table, site, introduced, exchange)?;
                // Fast path of most requests, which need none of the other steps.
                if let &RouteChoice::Proxy(proxy) = &choice {
                    drop(choice);
                    return proxy.serve(exchange).await;
                }
                self.serve_choice(&table, (site, level), choice, exchange).await
            }
            // Constructed in its box because it is rare.
            Some(meter) => {
                let measured = async {
                    let choice = self.choose(&table, site, introduced, exchange)?;
                    self.serve_choice(&table, (site, level), choice, exchange).await
                };
                pin_in_place(|| meter.run(measured)).await
            }
        }
    }

    /// Chooses how a request is answered; `introduced` is the result of determining its client.
    fn choose<'t>(
        &self,
        table: &'t RouteTable,
        site: Option<usize>,
        introduced: Result<(), Fault>,
        exchange: &mut Exchange<'_>,
    ) -> Result<RouteChoice<'t>, Fault> {
        if let Some(maps) = &table.maps {
            exchange.set_own_values(maps.clone());
        }
        let request = exchange.request();
        let (mut path, outcome) = match RequestPath::of(&request) {
            Ok(path) => (path, introduced),
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
            if let Some(reason) = https.misdirected(&request, exchange.core().unix_s()) {
                return Ok(RouteChoice::Misdirected(reason));
            }
        }
        let mut rounds = 0;
        loop {
            let Some(route) = find_route(table, site, &exchange.request(), &path) else {
                return Ok(RouteChoice::NoRoute(path, outcome));
            };
            let Some(rules) = route.search() else {
                // Empty segments are passed on only if the path with them matches the same route.
                if let Some(sent) = path.as_sent(&exchange.request()) {
                    let found = find_route(table, site, &exchange.request(), &sent);
                    path.goes_as_sent = found.is_some_and(|other| Rc::ptr_eq(other, route));
                }
                let proxy = route.direct_proxy(exchange, &path)?;
                return Ok(proxy.map_or_else(|| RouteChoice::Route(path, route), RouteChoice::Proxy));
            };
            route.refuse_encoded_slash(&path)?;
            path = rules.search_again(exchange, &path, &route.prefix, &mut rounds)?;
        }
    }

    async fn serve_choice(
        &self,
        table: &RouteTable,
        (site, level): (Option<usize>, usize),
        choice: RouteChoice<'_>,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), Fault> {
        let (path, outcome) = match choice {
            RouteChoice::Proxy(proxy) => return proxy.serve(exchange).await,
            RouteChoice::Route(path, route) => {
                let outcome = serve_route(route, exchange, &path).await;
                return if exchange.has_intercepted() {
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
            RouteChoice::NoRoute(path, outcome) => (path, outcome),
        };
        table.edits[level].make(exchange, b"");
        outcome?;
        if let Some(Some(guard)) = table.guards.get(level)
            && Box::pin(guarded(guard, None, exchange, &path)).await?
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
                exchange.set_pages(Rc::new(pages));
                exchange.refuse(Status::NOT_FOUND, NO_SITE).await
            }
            _ => exchange.refuse(Status::NOT_FOUND, "there is nothing at this address").await,
        }
    }
}

/// Choice of how a request is answered.
enum RouteChoice<'t> {
    /// The proxy of a route without other steps.
    Proxy(&'t Proxy),
    Route(RequestPath, &'t Rc<Route>),
    /// Redirect to HTTPS with these fields.
    Https(Fields),
    /// 421, for this reason.
    Misdirected(&'static str),
    /// No route matches, or the request has the given error.
    NoRoute(RequestPath, Result<(), Fault>),
}

/// Returns the site of a request, by its host and the listener that accepted it.
fn site_of(table: &RouteTable, request: &Request<'_>) -> Option<usize> {
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
        let wanted = conditions::of_request(request, method, (path, query), table.uses_country);
        Some(&table.sites[site][table.routes.find_in(site, &wanted, FieldsOf(request))?])
    };
    let (path, method) = (path.bytes(request), request.method_name());
    // A preflight belongs to the route of the actual request, if that route has CORS rules.
    let asked = cors::preflight_method(request).and_then(|method| find_at(path, method));
    let found = asked.filter(|route| route.cors.is_some()).or_else(|| find_at(path, method))?;
    if !matches!(found.handler, Handler::Php(_)) {
        return Some(found);
    }
    // A path below a script belongs to the route of the script, so that access rules of that route apply.
    let of_scripts = files::scripts_within(path).filter_map(|script| find_at(script, method));
    of_scripts.into_iter().find(|other| !Rc::ptr_eq(other, found)).or(Some(found))
}

/// 421 (RFC 9110 section 15.5.20).
const MISDIRECTED: Status = Status::of(421).expect("three digits");

async fn serve_route(
    route: &Rc<Route>,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    route.path_rules.iter().for_each(|rules| rules.capture(exchange, path));
    route.edits.make(exchange, &route.prefix);
    if let Some(cors) = &route.cors {
        cors::mark(cors, exchange);
    }
    exchange.set_label(route.label);
    if !route.client_access.admits(exchange.request().client().address) {
        return exchange.refuse(Status::FORBIDDEN, "access to this address is forbidden").await;
    }
    if let Some(guard) = &route.guard
        && Box::pin(guarded(guard, Some(route), exchange, path)).await?
    {
        return Ok(());
    }
    let counted = if route.cache.is_some() { CountedRequests::Requests } else { CountedRequests::All };
    if !limit::admit(route.rates.as_deref(), exchange, counted).await? {
        return Ok(());
    }
    if let Some(cors) = &route.cors
        && !cors::admit(cors, exchange).await?
    {
        return Ok(());
    }
    if !auth::admit(route.auth.as_ref(), exchange).await? {
        return Ok(());
    }
    if exchange.request().user().is_some() {
        route.edits.name_user(exchange, &route.prefix);
    }
    let passed = if route.serves_files() { Cow::Borrowed(path) } else { path.passed_on(exchange)? };
    let path = &*passed;
    if let (Cow::Owned(_), Some(rules)) = (&passed, &route.path_rules) {
        rules.capture(exchange, path);
    }
    let rules = route.path_rules.as_deref();
    if rules.is_some() {
        route.refuse_encoded_slash(path)?;
    }
    let rewritten = rules.map_or(Ok(None), |rules| rules.rewrite(exchange, &route.prefix))?;
    let path = rewritten.as_ref().unwrap_or(path);
    let route = match &route.release {
        None => route,
        // Boxed because few routes need it.
        Some(release) => match Box::pin(release.begin(exchange)).await? {
            ReleaseStep::Answered => return Ok(()),
            ReleaseStep::Serve => route,
            ReleaseStep::Branch(branch) => {
                let branch = &route.branches[branch];
                exchange.set_label(branch.label);
                branch
            }
        },
    };
    if let Some(replacement) = &route.replacement {
        replacement.begin(exchange, &route.prefix);
    }
    if route.intercepts_errors {
        exchange.intercept_errors();
    }
    let (handler, otherwise) = route.begin(exchange, path)?;
    if let Some(bandwidth) = route.bandwidth {
        exchange.limit_bandwidth(bandwidth);
    }
    if let Handler::Php(php) = handler {
        // Boxed, because it would make the future of every other request larger.
        return pin_in_place(|| serve_php(php, route, exchange, path)).await;
    }
    let handler = match (handler, otherwise) {
        (Handler::Files(files), Some(otherwise)) => {
            match files.serve(exchange, route.strip.below(&path.kept(exchange, false))).await? {
                FileOutcome::Done => return Ok(()),
                FileOutcome::Declined(_) => otherwise,
            }
        }
        (handler, _) => handler,
    };
    let passed = if handler.files().is_some() { Cow::Borrowed(path) } else { path.passed_on(exchange)? };
    serve_cached(handler, route, exchange, &passed).await
}

/// Serves a request of a PHP route: a file or a script.
async fn serve_php(
    php: &PhpRoute,
    route: &Rc<Route>,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    let kept = path.kept(exchange, false);
    match php.find(exchange, route.strip.below(&kept), !path.has_encoded_slash).await? {
        PhpTarget::Done => Ok(()),
        PhpTarget::Missing(reason) => exchange.refuse(Status::NOT_FOUND, reason).await,
        PhpTarget::Script(mut script) => {
            if route.keeps_encoded_slashes {
                script.info = path.end_like(&script.info, &exchange.request()).to_vec();
            }
            let path = RequestPath { script: Some(Rc::new(script)), ..path.clone() };
            serve_cached(&route.handler, route, exchange, &path).await
        }
    }
}

/// Applies the maintenance and crawler rules of a site. Returns whether the request has been answered.
async fn guarded(
    guard: &SiteGuard,
    route: Option<&Route>,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<bool, Fault> {
    match guard.begin(exchange).await? {
        GuardStep::Serve => return Ok(false),
        GuardStep::Answered => return Ok(true),
        GuardStep::Robots => {}
    }
    if let Some(Route { handler, strip, .. }) = route
        && let Some(files) = handler.files()
        && let FileOutcome::Done = files.serve(exchange, strip.below(&path.kept(exchange, false))).await?
    {
        return Ok(true);
    }
    guard.send_robots(exchange).await?;
    Ok(true)
}

/// Serves a request with a handler that has no fallback, from the cache in front of it if there is one.
async fn serve_cached(
    handler: &Handler,
    route: &Rc<Route>,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    let Some(cache) = route
        .cache
        .as_ref()
        .filter(|_| matches!(handler, Handler::Proxy(_) | Handler::Php(_) | Handler::App(_)))
    else {
        return serve_handler(handler, route, exchange, path).await;
    };
    let is_fallback = !std::ptr::eq(handler, &raw const route.handler);
    let origin = || RouteHandler { route: route.clone(), is_fallback, path: path.clone() };
    cache.serve(exchange, origin, limit::of_misses(route.rates.as_ref())).await
}

/// Handler behind a cache.
struct RouteHandler {
    route: Rc<Route>,
    is_fallback: bool,
    path: RequestPath,
}

impl CachedHandler for RouteHandler {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        serve_handler(self.handler(), &self.route, x, &self.path).await
    }

    fn cancels_left(&self) -> bool {
        match self.handler() {
            Handler::Proxy(proxy) => proxy.cancels_left(),
            Handler::Php(php) => matches!(&php.runner, ScriptRunner::Server(proxy) if proxy.cancels_left()),
            _ => false,
        }
    }
}

impl RouteHandler {
    fn handler(&self) -> &Handler {
        match &self.route.otherwise {
            Some(otherwise) if self.is_fallback => otherwise,
            _ => &self.route.handler,
        }
    }
}

/// Serves a request with a handler that has no fallback, after waiting in the queue of the route.
async fn serve_handler(
    handler: &Handler,
    route: &Route,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    let Some(queue) = &route.queue else { return serve_admitted(handler, route, exchange, path).await };
    let Some(place) = queue.admit(exchange).await? else { return Ok(()) };
    // The permit is returned below or, if the client has left, when the last task for the request ends.
    exchange.set_handler_place(Some(Rc::new(place)));
    let served = serve_admitted(handler, route, exchange, path).await;
    exchange.set_handler_place(None);
    served
}

/// Serves a request that has passed the queue.
async fn serve_admitted(
    handler: &Handler,
    route: &Route,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    match handler {
        Handler::Files(files) => {
            match files.serve(exchange, route.strip.below(&path.kept(exchange, false))).await? {
                FileOutcome::Done => Ok(()),
                FileOutcome::Declined(reason) => exchange.refuse(Status::NOT_FOUND, reason).await,
            }
        }
        Handler::Proxy(_) | Handler::Php(_) | Handler::App(_) => {
            pass_on(handler, route, exchange, path).await
        }
        Handler::Redirect { to, status } => {
            let mut location = Vec::new();
            to.write(&mut location, &values(exchange, &route.prefix));
            // `$rest` may begin with a slash if empty segments are kept. A leading `//` would be read as a
            // host name.
            if !to.start().starts_with("//") && location.starts_with(b"//") {
                let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
                location.drain(..slashes - 1);
            }
            let mut fields = Fields::new();
            let nameless = to.uses(&Variable::Host) && exchange.request().authority().is_empty();
            if nameless || fields.try_push(b"Location", &location).is_err() {
                return exchange
                    .refuse(Status::BAD_REQUEST, "the redirect target for this address is not valid")
                    .await;
            }
            exchange.refuse_with(*status, "the page is at another address", &fields).await
        }
        Handler::Respond { status, body, .. } if status.code() >= 400 && body.is_empty() => {
            exchange.refuse(*status, pages::why(*status)).await
        }
        Handler::Respond { status, fields, body } => exchange.reply(*status, fields, body).await,
        Handler::Fill(response) => response.serve(exchange, &route.prefix).await,
    }
}

/// Passes a request to an upstream server or application, and sends the file that the response names, if any.
async fn pass_on(
    handler: &Handler,
    route: &Route,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<(), Fault> {
    if route.internals.is_some() {
        exchange.let_name_files();
    }
    let outcome = match handler {
        Handler::Proxy(proxy) => proxy.serve(exchange).await,
        Handler::Php(php) => php.run(exchange, path.script.as_deref()).await,
        Handler::App(app) => app.serve(exchange, &path.kept(exchange, route.keeps_encoded_slashes)).await,
        Handler::Files(_) | Handler::Redirect { .. } | Handler::Respond { .. } | Handler::Fill(_) => Ok(()),
    };
    match (&route.internals, exchange.take_named_file()) {
        // Boxed because it is rare.
        (Some(internals), Some(file)) => {
            Box::pin(internal::send(internals, route.auth.as_ref(), exchange, file)).await
        }
        _ => outcome,
    }
}
