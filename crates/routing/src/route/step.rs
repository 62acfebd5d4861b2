//! Steps of a route: what its directives do to a request before and around the handler.

use std::rc::Rc;

use cache_handler::handler::RouteCache;
use files::Files;
use net::{Bandwidth, Exchange, Fault};
use steps::access::RouteAccess;
use steps::auth::RouteAuth;
use steps::cors::RouteCors;
use steps::flow::Flow;
use steps::guard::SiteGuard;
use steps::limit::{CountedRequests, RateRules};
use steps::release::Release;
use steps::shaping::queue::QueueRule;

use super::{Route, RoutedRequest};
use crate::internal::InternalRoutes;
use crate::path_rules::PathRules;
use crate::replace::RouteReplacement;
use crate::request_path::RequestPath;

/// A step with its settings.
pub enum RouteStep {
    /// Sets the CORS fields of all responses, including those of later steps.
    CorsFields(Rc<RouteCors>),
    /// Refuses clients by address.
    Access(RouteAccess),
    /// Applies the maintenance and crawler rules of the site.
    Guard(Rc<SiteGuard>),
    /// Applies rate and concurrency limits.
    Limit(Rc<RateRules>, CountedRequests),
    /// Answers preflights.
    Cors(Rc<RouteCors>),
    /// Authenticates the client.
    Auth(RouteAuth),
    /// Rewrites the path.
    Rewrite(Rc<PathRules>),
    /// Injects faults, mirrors requests, and chooses a branch.
    Release(Box<Release>),
    /// Replaces texts in the body of the response.
    Replace(Box<RouteReplacement>),
    /// Replaces error responses of the handler by the site's error pages.
    InterceptErrors,
    /// Limits the bandwidth of the response.
    Bandwidth(Bandwidth),
    /// Serves a file if there is one. The handler serves all other requests.
    Files(Box<Files>),
    /// Serves stored responses.
    Cache(RouteCache),
    /// Waits for a permit for the handler.
    Queue(QueueRule),
    /// Sends files that the handler names in place of a response.
    NamedFiles(Rc<InternalRoutes>),
}

/// Kinds of steps, in the order in which they run. Those from [`StepKind::Files`] on are part of the handling:
/// they surround the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "documented at the variants of `RouteStep`")]
pub enum StepKind {
    CorsFields,
    Access,
    Guard,
    Limit,
    Cors,
    Auth,
    Rewrite,
    Release,
    Replace,
    InterceptErrors,
    Bandwidth,
    Files,
    Cache,
    Queue,
    NamedFiles,
}

impl RouteStep {
    /// Returns the kind of the step.
    #[must_use]
    pub fn kind(&self) -> StepKind {
        match self {
            RouteStep::CorsFields(_) => StepKind::CorsFields,
            RouteStep::Access(_) => StepKind::Access,
            RouteStep::Guard(_) => StepKind::Guard,
            RouteStep::Limit(..) => StepKind::Limit,
            RouteStep::Cors(_) => StepKind::Cors,
            RouteStep::Auth(_) => StepKind::Auth,
            RouteStep::Rewrite(_) => StepKind::Rewrite,
            RouteStep::Release(_) => StepKind::Release,
            RouteStep::Replace(_) => StepKind::Replace,
            RouteStep::InterceptErrors => StepKind::InterceptErrors,
            RouteStep::Bandwidth(_) => StepKind::Bandwidth,
            RouteStep::Files(_) => StepKind::Files,
            RouteStep::Cache(_) => StepKind::Cache,
            RouteStep::Queue(_) => StepKind::Queue,
            RouteStep::NamedFiles(_) => StepKind::NamedFiles,
        }
    }

    /// Runs a step that precedes the handler.
    ///
    /// # Errors
    /// The client is gone, or the step refuses the request.
    pub(super) async fn run(
        &self,
        exchange: &mut Exchange<'_>,
        request: &mut RoutedRequest<'_>,
    ) -> Result<Flow, Fault> {
        match self {
            RouteStep::CorsFields(cors) => cors.set_fields(exchange),
            RouteStep::Access(access) => return access.run(exchange).await,
            // Boxed because few sites have it.
            RouteStep::Guard(guard) => {
                return Box::pin(apply_guard(guard, Some(request.route), exchange, &request.path)).await;
            }
            RouteStep::Limit(rates, counted) => return rates.run(exchange, *counted).await,
            RouteStep::Cors(cors) => return cors.run(exchange).await,
            RouteStep::Auth(auth) => {
                let flow = auth.run(exchange).await?;
                if flow == Flow::Continue && exchange.request().user().is_some() {
                    request.route.edits.apply_user_edits(exchange, &request.route.prefix);
                }
                return Ok(flow);
            }
            RouteStep::Rewrite(rules) => {
                request.use_upstream_path(exchange)?;
                request.route.refuse_encoded_slash(&request.path)?;
                if let Some(rewritten) = rules.rewrite(exchange, &request.route.prefix)? {
                    request.path = std::borrow::Cow::Owned(rewritten);
                }
            }
            // Boxed because few routes have it.
            RouteStep::Release(release) => {
                request.use_upstream_path(exchange)?;
                return Box::pin(release.run(exchange)).await;
            }
            RouteStep::Replace(replacement) => replacement.begin(exchange, &request.route.prefix),
            RouteStep::InterceptErrors => exchange.intercept_errors(),
            RouteStep::Bandwidth(bandwidth) => exchange.limit_bandwidth(*bandwidth),
            RouteStep::Files(_) | RouteStep::Cache(_) | RouteStep::Queue(_) | RouteStep::NamedFiles(_) => {}
        }
        Ok(Flow::Continue)
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
        && files.serve(exchange, route.strip.strip_from(&path.copy_for_handler(exchange, false))).await?.is_done()
    {
        return Ok(Flow::Answered);
    }
    guard.send_robots(exchange).await?;
    Ok(Flow::Answered)
}

/// Steps of a route in the order of [`StepKind`]. A route without directives has none.
#[derive(Default)]
pub struct RouteSteps {
    steps: Vec<RouteStep>,
}

impl RouteSteps {
    /// Adds a step. Each kind may be added once.
    pub fn add(&mut self, step: RouteStep) {
        let at = self.steps.partition_point(|one| one.kind() < step.kind());
        debug_assert!(
            self.steps.get(at).is_none_or(|one| one.kind() != step.kind()),
            "a second step of a kind"
        );
        self.steps.insert(at, step);
    }

    /// Whether requests go straight to the handler.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Removes and returns the step of a kind.
    pub fn take(&mut self, kind: StepKind) -> Option<RouteStep> {
        let at = self.steps.iter().position(|step| step.kind() == kind)?;
        Some(self.steps.remove(at))
    }

    /// Returns the steps that run before the handler.
    pub(super) fn before_handler(&self) -> &[RouteStep] {
        &self.steps[..self.steps.partition_point(|step| step.kind() < StepKind::Files)]
    }

    /// Returns the steps of a branch that run before its handler: those up to the split have been run by the
    /// route that has the branch.
    pub(super) fn after_release(&self) -> &[RouteStep] {
        let steps = self.before_handler();
        &steps[steps.partition_point(|step| step.kind() <= StepKind::Release)..]
    }

    fn find<'s, T>(&'s self, of: impl Fn(&'s RouteStep) -> Option<T>) -> Option<T> {
        self.steps.iter().find_map(of)
    }

    /// Whether the route answers preflights.
    pub(crate) fn has_cors(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, RouteStep::Cors(_)))
    }

    /// Returns the rate limits.
    pub(super) fn rates(&self) -> Option<&RateRules> {
        self.find(|step| if let RouteStep::Limit(rates, _) = step { Some(&**rates) } else { None })
    }

    /// Returns the authentication.
    pub(super) fn auth(&self) -> Option<&RouteAuth> {
        self.find(|step| if let RouteStep::Auth(auth) = step { Some(auth) } else { None })
    }

    /// Returns the files that precede the handler.
    pub(super) fn files(&self) -> Option<&Files> {
        self.find(|step| if let RouteStep::Files(files) = step { Some(&**files) } else { None })
    }

    /// Returns the cache.
    pub(super) fn cache(&self) -> Option<&RouteCache> {
        self.find(|step| if let RouteStep::Cache(cache) = step { Some(cache) } else { None })
    }

    /// Returns the queue.
    pub(super) fn queue(&self) -> Option<&QueueRule> {
        self.find(|step| if let RouteStep::Queue(queue) = step { Some(queue) } else { None })
    }

    /// Returns the internal routes of the site.
    pub(super) fn internal_routes(&self) -> Option<&InternalRoutes> {
        self.find(|step| if let RouteStep::NamedFiles(internals) = step { Some(&**internals) } else { None })
    }
}
