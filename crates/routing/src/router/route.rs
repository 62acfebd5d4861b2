//! Routes with their steps, and the kinds of handlers.

use std::rc::Rc;

use admission::CorsRules;
use cache_handler::handler::RouteCache;
use engine::clients::access::ClientAccess;
use files::Files;
use hosting::workers::Mounted;
use http::{Fields, Method, Reject, Status, Template};
use net::{Bandwidth, Compression, Exchange, Fault};
use proxy::Proxy;
use steps::auth::RouteAuth;
use steps::guard::SiteGuard;
use steps::limit::RateRules;
use steps::release::Release;
use steps::shaping::queue::QueueRule;

use crate::edits::RouteEdits;
use crate::internal::SiteInternals;
use crate::path_rules::PathRules;
use crate::php::PhpRoute;
use crate::replace::RouteReplacement;
use crate::request_path::{RequestPath, Strip};
use crate::templates::FilledResponse;

/// Handler of a route.
pub enum Handler {
    /// Files of a directory.
    Files(Box<Files>),
    /// Upstream servers.
    Proxy(Proxy),
    /// PHP scripts.
    Php(Box<PhpRoute>),
    /// A hosted application.
    App(Mounted),
    /// A redirect.
    Redirect {
        /// Value of `Location`.
        to: Template,
        /// Redirect status (3xx).
        status: Status,
    },
    /// A fixed response.
    Respond {
        /// Status of the response.
        status: Status,
        /// Header fields of the response.
        fields: Fields,
        /// Body of the response.
        body: Vec<u8>,
    },
    /// A fixed response with variables in its body.
    Fill(Box<FilledResponse>),
}

impl Handler {
    /// Returns the files that the handler serves, if any.
    pub(super) fn files(&self) -> Option<&Files> {
        match self {
            Handler::Files(files) => Some(files),
            Handler::Php(php) => Some(&php.files),
            _ => None,
        }
    }
}

/// A route on one core, with all of its rules.
pub struct Route {
    /// Handler of requests that pass all steps.
    pub handler: Handler,
    /// Handler used if `handler` finds no file.
    pub otherwise: Option<Handler>,
    /// Captures and rewrites of the path.
    pub path_rules: Option<Box<PathRules>>,
    /// Prefix removed from the path for files.
    pub strip: Strip,
    /// Part of the route's path before the final `*`, for `$rest`.
    pub prefix: Vec<u8>,
    /// Whether paths with encoded slashes are accepted. Files never accept them.
    pub keeps_encoded_slashes: bool,
    /// Maximum size of the request body, in bytes.
    pub body_bytes_max: u64,
    /// Timeout between bytes of the request body, in milliseconds.
    pub body_ms: u64,
    /// Timeout for the client to accept bytes of the response, in milliseconds.
    pub write_ms: u64,
    /// Bandwidth limit of each response.
    pub bandwidth: Option<Bandwidth>,
    /// Edits of response fields.
    pub edits: RouteEdits,
    /// Cache in front of upstream servers and applications.
    pub cache: Option<RouteCache>,
    /// Clients that are allowed to use the route.
    pub client_access: ClientAccess,
    /// Rate and concurrency limits.
    pub rates: Option<Rc<RateRules>>,
    /// Queue in front of the handler.
    pub queue: Option<QueueRule>,
    /// Authentication.
    pub auth: Option<RouteAuth>,
    /// CORS rules.
    pub cors: Option<CorsRules>,
    /// Label under which requests are counted.
    pub label: usize,
    /// Whether error responses of applications and upstream servers are replaced by the site's error pages.
    pub intercepts_errors: bool,
    /// Compression of responses.
    pub compression: Option<Rc<Compression>>,
    /// Replacements in response bodies.
    pub replacement: Option<Box<RouteReplacement>>,
    /// Fault injection, mirroring and splitting.
    pub release: Option<Box<Release>>,
    /// Branches of the split.
    pub branches: Vec<Rc<Route>>,
    /// Maintenance and crawler rules of the site.
    pub guard: Option<Rc<SiteGuard>>,
    /// Internal routes whose files the handler may name in place of a response.
    pub internals: SiteInternals,
    /// Whether requests go straight to the handler ([`Route::stands_alone`]).
    pub is_direct: bool,
}

impl Route {
    /// Whether the route only has a handler: no step checks, changes or delays requests, and responses are
    /// processed only by edits and compression.
    pub fn stands_alone(&self) -> bool {
        // All fields are listed, so that adding one requires a decision here.
        let Route {
            handler: _,
            otherwise,
            path_rules,
            strip: _,
            prefix: _,
            keeps_encoded_slashes: _,
            body_bytes_max: _,
            body_ms: _,
            write_ms: _,
            bandwidth,
            edits: _,
            cache,
            client_access,
            rates,
            queue,
            auth,
            cors,
            label: _,
            intercepts_errors,
            compression: _,
            replacement,
            release,
            branches: _,
            guard,
            internals,
            is_direct: _,
        } = self;
        let admits_all = client_access.admits_all() && guard.is_none() && rates.is_none();
        let asks_nothing = auth.is_none() && cors.is_none() && queue.is_none();
        let changes_nothing = path_rules.is_none() && release.is_none() && replacement.is_none();
        let has_one_handler = otherwise.is_none() && cache.is_none() && internals.is_none();
        let sends_as_it_comes = bandwidth.is_none() && !intercepts_errors;
        admits_all && asks_nothing && changes_nothing && has_one_handler && sends_as_it_comes
    }

    /// Returns the proxy of a route that stands alone, after preparing the request as `serve_route` would.
    /// `None` for other routes.
    pub(super) fn direct_proxy(
        &self,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<Option<&Proxy>, Fault> {
        let (true, Handler::Proxy(proxy)) = (self.is_direct, &self.handler) else { return Ok(None) };
        path.passed_on(exchange)?;
        self.edits.make(exchange, &self.prefix);
        exchange.set_label(self.label);
        self.begin(exchange, path)?;
        Ok(Some(proxy))
    }

    /// Whether the route or one of its branches serves files.
    pub(super) fn serves_files(&self) -> bool {
        self.handler.files().is_some() || self.branches.iter().any(|branch| branch.serves_files())
    }

    /// Applies the route's compression, body limit and timeouts. Returns the handlers, as [`Route::handlers`]
    /// does.
    pub(super) fn begin(
        &self,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<(&Handler, Option<&Handler>), Fault> {
        exchange.set_compression(self.compression.clone());
        let handlers = self.handlers(path, exchange.request().method())?;
        exchange.limit_body(self.body_bytes_max)?;
        exchange.set_timeouts(self.body_ms, self.write_ms);
        Ok(handlers)
    }

    /// Returns the path rules if the route only rewrites the path.
    pub(super) fn search(&self) -> Option<&PathRules> {
        self.path_rules.as_deref().filter(|rules| rules.is_search)
    }

    /// Refuses a path with an encoded slash, unless the route keeps it. Called before a rewrite, which may
    /// drop the slash.
    ///
    /// # Errors
    /// 400.
    pub(super) fn refuse_encoded_slash(&self, path: &RequestPath) -> Result<(), Reject> {
        match path.has_encoded_slash && !self.keeps_encoded_slashes {
            true => Err(ENCODED_SLASH),
            false => Ok(()),
        }
    }

    /// Returns the handler for a path, and its fallback.
    ///
    /// # Errors
    /// 400 for a path with an encoded slash, unless the route keeps it. Files always refuse it, because no
    /// file name contains a slash.
    fn handlers(&self, path: &RequestPath, method: Method) -> Result<(&Handler, Option<&Handler>), Reject> {
        self.refuse_encoded_slash(path)?;
        let is_for_files = matches!(method, Method::Get | Method::Head) && !path.has_encoded_slash;
        match (&self.handler, &self.otherwise) {
            (Handler::Files(_), None) if path.has_encoded_slash => Err(ENCODED_SLASH),
            // Files are served for GET and HEAD only; other methods go to the fallback.
            (Handler::Files(_), Some(otherwise)) if !is_for_files => Ok((otherwise, None)),
            (handler, otherwise) => Ok((handler, otherwise.as_ref())),
        }
    }
}

const ENCODED_SLASH: Reject = Reject::bad("encoded slash or backslash in path");
