//! Routes: their steps and handlers, and how a request passes through them.

use std::borrow::Cow;
use std::rc::Rc;

use cache_handler::handler::CachedHandler;
use cache_handler::peers::PeerAsk;
use http::{Method, Reject, Status};
use net::{Exchange, Fault, RouteLimits, pin_in_place};
use steps::flow::Flow;
use steps::guard::SiteGuard;
use telemetry::metrics::RouteLabel;

use crate::edits::RouteEdits;
use crate::path_rules::PathRules;
use crate::replace;
use crate::request_path::RequestPath;

mod handler;
mod script_choice;
mod step;

use handler::PhpServed;
pub use handler::{Handler, RoutePaths};
pub(crate) use script_choice::choose_route;
pub use script_choice::{ProgramFolder, RouteGuardSet};
pub use step::{RouteStep, RouteSteps, StepKind};

/// A route on one core.
pub struct Route {
    /// Steps before and around the handler.
    pub steps: RouteSteps,
    /// Handler of requests that pass all steps.
    pub handler: Handler,
    /// Captures and rewrites of the path.
    pub path_rules: Option<Rc<PathRules>>,
    /// Treatment of paths.
    pub paths: RoutePaths,
    /// Body limit, timeouts and compression.
    pub limits: RouteLimits,
    /// Edits of response fields.
    pub edits: RouteEdits,
    /// Label under which requests are counted.
    pub label: RouteLabel,
    /// Whether access logs leave its requests out.
    pub is_unlogged: bool,
    /// Guards, where the site has routes of PHP or CGI.
    pub guards: RouteGuardSet,
    /// CGI programs of the route.
    pub programs: Option<ProgramFolder>,
    /// Branches of the split.
    pub branches: Vec<Rc<Route>>,
}

/// A request on its way through the steps of its route.
pub(crate) struct RoutedRequest<'r> {
    /// The route, or the branch of its split.
    route: &'r Rc<Route>,
    path: Cow<'r, RequestPath>,
}

impl RoutedRequest<'_> {
    /// Makes the path visible as upstream servers and applications receive it, unless files may be served.
    ///
    /// # Errors
    /// 400 for an invalid path.
    fn use_upstream_path(&mut self, exchange: &mut Exchange<'_>) -> Result<(), Reject> {
        if !self.route.serves_files()
            && let Some(passed) = self.path.for_upstream(exchange)?
        {
            if let Some(rules) = &self.route.path_rules {
                rules.capture(exchange, &passed);
            }
            self.path = Cow::Owned(passed);
        }
        Ok(())
    }

    /// Runs a step that precedes the handler.
    ///
    /// # Errors
    /// The client is gone, or the step refuses the request.
    async fn run(&mut self, step: &RouteStep, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        match step {
            RouteStep::CorsFields(cors) => cors.set_fields(exchange),
            RouteStep::Access(access) => return access.run(exchange).await,
            // Boxed because few sites have it.
            RouteStep::Guard(guard) => {
                return Box::pin(apply_guard(guard, Some(self.route), exchange, &self.path)).await;
            }
            RouteStep::HeaderLimit(limit) => return limit.run(exchange).await,
            RouteStep::Limit(rates, counted) => return rates.run(exchange, *counted).await,
            RouteStep::Cors(cors) => return cors.run(exchange).await,
            RouteStep::Auth(auth) => {
                let flow = auth.run(exchange).await?;
                if flow == Flow::Continue && exchange.request().user().is_some() {
                    self.route.edits.apply_user_edits(exchange, &self.route.paths.prefix);
                }
                return Ok(flow);
            }
            RouteStep::Rewrite(rules) => {
                self.use_upstream_path(exchange)?;
                self.route.refuse_encoded_slash(&self.path)?;
                if let Some(rewritten) = rules.rewrite(exchange, &self.route.paths.prefix)? {
                    self.path = Cow::Owned(rewritten);
                }
            }
            // Boxed because few routes have it.
            RouteStep::Release(release) => {
                self.use_upstream_path(exchange)?;
                return Box::pin(release.run(exchange)).await;
            }
            RouteStep::Replace(replacement) => replacement.begin(exchange, &self.route.paths.prefix),
            RouteStep::InterceptErrors => exchange.intercept_errors(),
            RouteStep::ErrorServer(server) => server.begin(exchange),
            RouteStep::Bandwidth(bandwidth) => exchange.limit_bandwidth(bandwidth),
            RouteStep::Files(_) | RouteStep::Cache(_) | RouteStep::Queue(_) | RouteStep::NamedFiles(_) => {}
        }
        Ok(Flow::Continue)
    }
}

impl Route {
    /// Serves a request by the handler alone. The route has no steps.
    ///
    /// # Errors
    /// Errors of the handler.
    pub(crate) async fn serve_directly(
        &self,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        self.edits.apply(exchange, &self.paths.prefix);
        self.label(exchange);
        let passed = if self.handler.files().is_some() { None } else { path.for_upstream(exchange)? };
        let path = passed.as_ref().unwrap_or(path);
        self.prepare(exchange, path)?;
        self.handler.serve(exchange, &self.paths, path).await
    }

    /// Serves a request: runs the steps in order, and then the handler.
    ///
    /// # Errors
    /// Errors of the steps and the handler.
    pub(crate) async fn serve(
        self: &Rc<Route>,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        if let Some(rules) = &self.path_rules {
            rules.capture(exchange, path);
        }
        self.edits.apply(exchange, &self.paths.prefix);
        self.label(exchange);
        let mut request = RoutedRequest { route: self, path: Cow::Borrowed(path) };
        let mut steps = self.steps.before_handler();
        while let Some((step, rest)) = steps.split_first() {
            steps = match request.run(step, exchange).await? {
                Flow::Continue => rest,
                Flow::Branch(branch) => {
                    request.route = &self.branches[branch];
                    exchange.set_label(request.route.label.number());
                    request.route.steps.after_release()
                }
                Flow::Answered | Flow::Robots => return Ok(()),
            };
        }
        request.use_upstream_path(exchange)?;
        let RoutedRequest { route, path } = request;
        route.prepare(exchange, &path)?;
        let outcome = route.serve_content(exchange, &path).await;
        match route.steps.error_server() {
            // Boxed because few routes have one.
            Some(server) if exchange.has_intercepted_error() => Box::pin(server.answer(exchange)).await,
            _ => outcome,
        }
    }

    /// Notes how the request is counted and logged.
    fn label(&self, exchange: &mut Exchange<'_>) {
        exchange.set_label(self.label.number());
        if self.is_unlogged {
            exchange.notes().is_unlogged = true;
        }
    }

    /// Serves a request that has passed the steps before the handler.
    async fn serve_content(
        self: &Rc<Route>,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        if let Handler::Php(php) = &self.handler {
            // Boxed, because it would make the future of every other request larger.
            return match pin_in_place(|| php.find_script(exchange, &self.paths, path)).await? {
                PhpServed::Done => Ok(()),
                PhpServed::Script(path) => self.serve_cached(exchange, &path).await,
            };
        }
        if let Some(files) = self.steps.files() {
            // Files are served for GET and HEAD only, and no file name contains a slash.
            let is_for_files = matches!(exchange.request().method(), Method::Get | Method::Head);
            if is_for_files
                && !path.has_encoded_slash
                && self.paths.serve_file(files, exchange, path).await?.is_done()
            {
                return Ok(());
            }
            if let Some(passed) = path.for_upstream(exchange)? {
                return self.serve_cached(exchange, &passed).await;
            }
        }
        self.serve_cached(exchange, path).await
    }

    /// Serves a request from the cache in front of the handler, if there is one.
    async fn serve_cached(
        self: &Rc<Route>,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        let Some(cache) = self.steps.cache().filter(|_| self.handler.is_backend()) else {
            return self.serve_handler(exchange, path).await;
        };
        let origin = || CachedRoute { route: self.clone(), path: path.clone() };
        let counted = self.steps.rates().filter(|rates| rates.counts_misses());
        cache.serve(exchange, origin, counted).await
    }

    /// Serves a request of another server of the set, for the response with this key.
    ///
    /// # Errors
    /// Errors of the cache and the handler.
    pub(crate) async fn serve_peer(
        self: &Rc<Route>,
        exchange: &mut Exchange<'_>,
        key: u64,
    ) -> Result<(), Fault> {
        let path = RequestPath::of(&exchange.request())?;
        let cache = self.steps.cache().filter(|_| matches!(self.handler, Handler::Proxy(_)));
        let Some(cache) = cache.map(|cache| cache.for_peer(key)) else {
            return exchange.refuse(PeerAsk::REFUSED, "this route has no cache").await;
        };
        exchange.set_label(self.label.number());
        cache.serve(exchange, || CachedRoute { route: self.clone(), path }, None).await
    }

    /// Serves a request by the handler, after waiting in the queue of the route.
    async fn serve_handler(&self, exchange: &mut Exchange<'_>, path: &RequestPath) -> Result<(), Fault> {
        let Some(queue) = self.steps.queue() else { return self.serve_admitted(exchange, path).await };
        let Some(permit) = queue.acquire(exchange).await? else { return Ok(()) };
        // The permit is returned below or, if the client has left, when the last task for the request ends.
        exchange.set_handler_permit(Some(Rc::new(permit)));
        let served = self.serve_admitted(exchange, path).await;
        exchange.set_handler_permit(None);
        served
    }

    /// Serves a request that has passed the queue, and sends the file that the response names, if any.
    async fn serve_admitted(&self, exchange: &mut Exchange<'_>, path: &RequestPath) -> Result<(), Fault> {
        let internals = self.steps.internals().filter(|_| self.handler.is_backend());
        if internals.is_some() {
            exchange.permit_named_file();
        }
        let ranges = if self.handler.is_backend() { replace::take_ranges(exchange) } else { None };
        let outcome = self.handler.serve(exchange, &self.paths, path).await;
        match (internals, exchange.take_named_file()) {
            // Boxed because it is rare.
            (Some(internals), Some(file)) => {
                if let Some(ranges) = ranges {
                    exchange.amend(&[], &ranges);
                }
                Box::pin(crate::internal::send(internals, self.steps.auth(), exchange, file)).await
            }
            _ => outcome,
        }
    }

    /// Whether the route or one of its branches serves files.
    fn serves_files(&self) -> bool {
        self.handler.files().is_some()
            || self.steps.files().is_some()
            || self.branches.iter().any(|branch| branch.serves_files())
    }

    /// Refuses a path that the route does not accept, and applies the route's limits.
    ///
    /// # Errors
    /// 501 for an extended CONNECT with a protocol that the handler does not speak, which must not become a GET (RFC 8441
    /// section 4). 400 for a path with an encoded slash, unless the route keeps it. Files always refuse it, because no
    /// file name contains a slash. 413 if the announced length of the body exceeds the limit.
    fn prepare(&self, exchange: &mut Exchange<'_>, path: &RequestPath) -> Result<(), Fault> {
        let request = exchange.request();
        let protocol = request.head().protocol.of(request.head().bytes);
        if !protocol.is_empty() && !self.handler.may_switch_to(protocol) {
            return Err(Reject {
                status: Status::NOT_IMPLEMENTED,
                reason: "this protocol is not spoken here",
            }
            .into());
        }
        self.refuse_encoded_slash(path)?;
        if path.has_encoded_slash && matches!(self.handler, Handler::Files(_)) {
            return Err(ENCODED_SLASH.into());
        }
        exchange.apply_limits(&self.limits)
    }

    /// Returns the path rules if the route only rewrites the path.
    pub(crate) fn search_rules(&self) -> Option<&PathRules> {
        self.path_rules.as_deref().filter(|rules| rules.rewrites_only)
    }

    /// Refuses a path with an encoded slash, unless the route keeps it. Called before a rewrite, which may
    /// drop the slash.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn refuse_encoded_slash(&self, path: &RequestPath) -> Result<(), Reject> {
        if path.has_encoded_slash && !self.paths.keeps_encoded_slashes { Err(ENCODED_SLASH) } else { Ok(()) }
    }
}

/// Applies the maintenance and crawler rules of a site. `route` serves the site's own robots.txt.
///
/// # Errors
/// The client is gone.
pub(crate) async fn apply_guard(
    guard: &SiteGuard,
    route: Option<&Rc<Route>>,
    exchange: &mut Exchange<'_>,
    path: &RequestPath,
) -> Result<Flow, Fault> {
    let flow = guard.run(exchange).await?;
    if flow != Flow::Robots {
        return Ok(flow);
    }
    let files = route.and_then(|route| Some((route, route.handler.files().or(route.steps.files())?)));
    if let Some((route, files)) = files
        && route.paths.serve_file(files, exchange, path).await?.is_done()
    {
        return Ok(Flow::Answered);
    }
    guard.send_robots(exchange).await?;
    Ok(Flow::Answered)
}

/// The route behind its cache.
struct CachedRoute {
    route: Rc<Route>,
    path: RequestPath,
}

impl CachedHandler for CachedRoute {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.route.serve_handler(exchange, &self.path).await
    }

    fn cancels_on_disconnect(&self) -> bool {
        self.route.handler.cancels_on_disconnect()
    }
}

const ENCODED_SLASH: Reject = Reject::bad_request("encoded slash or backslash in path");
