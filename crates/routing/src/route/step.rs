//! Steps of a route: what its directives do to a request before and around the handler.

use std::rc::Rc;

use cache_handler::handler::RouteCache;
use files::Files;
use net::BandwidthLimit;
use steps::access::RouteAccess;
use steps::auth::RouteAuth;
use steps::cors::RouteCors;
use steps::guard::SiteGuard;
use steps::header_limit::RouteHeaderLimit;
use steps::limit::{CountedRequests, RateRules};
use steps::release::Release;
use steps::shaping::queue::QueueRule;

use crate::error_server::RouteErrorServer;
use crate::internal::InternalRoutes;
use crate::path_rules::PathRules;
use crate::replace::RouteReplacement;

/// Declares the steps in the order in which they run: [`RouteStep`] and [`StepKind`].
macro_rules! steps {
    ($( $(#[doc = $doc:literal])* $name:ident $(($($settings:ty),*))?, )*) => {
        /// A step with its settings.
        pub enum RouteStep {
            $( $(#[doc = $doc])* $name $(($($settings),*))?, )*
        }

        /// Kinds of steps, in the order in which they run. Those from [`StepKind::Files`] on are part of the
        /// handling: they surround the handler.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum StepKind {
            $( $(#[doc = $doc])* $name, )*
        }

        impl RouteStep {
            /// Returns the kind of the step.
            #[must_use]
            pub fn kind(&self) -> StepKind {
                match self {
                    $( RouteStep::$name { .. } => StepKind::$name, )*
                }
            }
        }
    };
}

steps! {
    /// Sets the CORS fields of all responses, including those of later steps.
    CorsFields(Rc<RouteCors>),
    /// Refuses clients by address.
    Access(RouteAccess),
    /// Applies the maintenance and crawler rules of the site.
    Guard(Rc<SiteGuard>),
    /// Refuses requests with too many header fields.
    HeaderLimit(RouteHeaderLimit),
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
    /// Lets a server answer in place of error responses.
    ErrorServer(Rc<RouteErrorServer>),
    /// Limits the bandwidth of the response.
    Bandwidth(BandwidthLimit),
    /// Serves a file if there is one. The handler serves all other requests.
    Files(Box<Files>),
    /// Serves stored responses.
    Cache(RouteCache),
    /// Waits for a permit for the handler.
    Queue(QueueRule),
    /// Sends files that the handler names in place of a response.
    NamedFiles(Rc<InternalRoutes>),
}

/// Steps of a route in the order of [`StepKind`]. A route without directives has none.
#[derive(Default)]
pub struct RouteSteps {
    all: Vec<RouteStep>,
}

impl RouteSteps {
    /// Adds a step. Each kind may be added once.
    pub fn add(&mut self, step: RouteStep) {
        let at = self.all.partition_point(|one| one.kind() < step.kind());
        debug_assert!(
            self.all.get(at).is_none_or(|one| one.kind() != step.kind()),
            "a second step of a kind"
        );
        self.all.insert(at, step);
    }

    /// Whether requests go straight to the handler.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Removes and returns the step of a kind.
    pub fn take(&mut self, kind: StepKind) -> Option<RouteStep> {
        let at = self.all.iter().position(|step| step.kind() == kind)?;
        Some(self.all.remove(at))
    }

    /// Returns the steps that run before the handler.
    pub(super) fn before_handler(&self) -> &[RouteStep] {
        &self.all[..self.all.partition_point(|step| step.kind() < StepKind::Files)]
    }

    /// Returns the steps of a branch that run before its handler: those up to the split have been run by the
    /// route that has the branch.
    pub(super) fn after_release(&self) -> &[RouteStep] {
        let steps = self.before_handler();
        &steps[steps.partition_point(|step| step.kind() <= StepKind::Release)..]
    }

    fn find<'s, T>(&'s self, of: impl Fn(&'s RouteStep) -> Option<T>) -> Option<T> {
        self.all.iter().find_map(of)
    }

    /// Whether the route answers preflights.
    pub(crate) fn has_cors(&self) -> bool {
        self.all.iter().any(|step| matches!(step, RouteStep::Cors(_)))
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

    /// Returns the server that answers in place of error responses.
    pub(super) fn error_server(&self) -> Option<&RouteErrorServer> {
        self.find(|step| if let RouteStep::ErrorServer(server) = step { Some(&**server) } else { None })
    }

    /// Returns the internal routes of the site.
    pub(super) fn internals(&self) -> Option<&InternalRoutes> {
        self.find(|step| if let RouteStep::NamedFiles(internals) = step { Some(&**internals) } else { None })
    }
}
