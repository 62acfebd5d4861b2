//! A route, ready to serve, and the kinds of handlers.

use std::rc::Rc;

use admission::CorsRules;
use files::Files;
use http::{Fields, Method, Reject, Status, Template};
use net::{Bandwidth, Compression, Exchange, Fault};
use proxy::Proxy;

use crate::edits::RouteEdits;
use crate::internal::SiteInternals;
use crate::path_rules::PathRules;
use crate::php::PhpRoute;
use crate::replace::RouteReplacement;
use crate::request_path::{RequestPath, Strip};
use crate::templates::FilledResponse;
use cache_handler::handler::RouteCache;
use engine::clients::access::ClientAccess;
use hosting::workers::Mounted;
use steps::auth::RouteAuth;
use steps::guard::SiteGuard;
use steps::limit::RateRules;
use steps::release::Release;
use steps::shaping::queue::QueueRule;

/// The kinds of handlers.
pub enum Handler {
    /// Files of a directory.
    Files(Box<Files>),
    /// Upstream servers.
    Proxy(Proxy),
    /// Scripts of PHP.
    Php(Box<PhpRoute>),
    /// An application.
    App(Mounted),
    /// A redirect.
    Redirect {
        /// Value of `Location`.
        to: Template,
        /// A status of the class 3xx.
        status: Status,
    },
    /// A fixed response.
    Respond {
        /// Its status.
        status: Status,
        /// Its header fields.
        fields: Fields,
        /// Its content.
        body: Vec<u8>,
    },
    /// A fixed response with variables in its body.
    Fill(Box<FilledResponse>),
}

impl Handler {
    /// The files among what it serves.
    pub(super) fn files(&self) -> Option<&Files> {
        match self {
            Handler::Files(files) => Some(files),
            Handler::Php(php) => Some(&php.files),
            _ => None,
        }
    }
}

/// A route, ready to serve.
pub struct Route {
    /// Answers requests that pass all steps.
    pub handler: Handler,
    /// The handler used when `handler` finds no file.
    pub otherwise: Option<Handler>,
    /// What it makes of the path, where that is something.
    pub path_rules: Option<Box<PathRules>>,
    /// Length of the prefix removed from the path for the handler, in bytes.
    pub strip: Strip,
    /// The part of its path before the final `*`, for `$rest`.
    pub prefix: Vec<u8>,
    /// Whether paths with encoded slashes are answered; not by files.
    pub keeps_encoded_slashes: bool,
    /// Largest request body in bytes.
    pub body_bytes_max: u64,
    /// Milliseconds without a byte of the request body.
    pub body_ms: u64,
    /// Milliseconds in which the client takes no byte of the response.
    pub write_ms: u64,
    /// How fast each of its responses is sent, where that is limited.
    pub bandwidth: Option<Bandwidth>,
    /// Edits of response fields.
    pub edits: RouteEdits,
    /// The cache in front of its upstream servers and applications.
    pub cache: Option<RouteCache>,
    /// The clients that it answers.
    pub client_access: ClientAccess,
    /// How often they may ask.
    pub rates: Option<Rc<RateRules>>,
    /// How many are in its handler at once.
    pub queue: Option<QueueRule>,
    /// What it asks of clients.
    pub auth: Option<RouteAuth>,
    /// Which other origins may read its responses, where it says so.
    pub cors: Option<CorsRules>,
    /// What its requests are counted under.
    pub label: usize,
    /// Whether its site's error pages are sent in place of errors of applications and upstream servers.
    pub intercepts_errors: bool,
    /// Compression of its responses.
    pub compression: Option<Rc<Compression>>,
    /// What is replaced in the bodies of its responses.
    pub replacement: Option<Box<RouteReplacement>>,
    /// What is done with its requests before the handler, where a release has rules for them.
    pub release: Option<Box<Release>>,
    /// The branches of its split.
    pub branches: Vec<Rc<Route>>,
    /// What its site does before it does anything.
    pub guard: Option<Rc<SiteGuard>>,
    /// The files that its handler may name in place of a response.
    pub internals: SiteInternals,
    /// Whether nothing stands between a request and its handler ([`Route::stands_alone`]).
    pub is_direct: bool,
}

impl Route {
    /// Whether its requests go to its handler with nothing asked before, changed on the way, or kept from the response.
    pub fn stands_alone(&self) -> bool {
        // Each field is named here, so that a new one cannot be forgotten.
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

    /// Prepares a request for its proxy, where that is all it has: what [`serve_route`] does of a route that stands alone.
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

    /// Whether it or a branch of it looks for files.
    pub(super) fn serves_files(&self) -> bool {
        self.handler.files().is_some() || self.branches.iter().any(|branch| branch.serves_files())
    }

    /// Sets what the route says of a request's body and response. Returns the handlers, as [`Route::handlers`] does.
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

    /// Its rules, where it only rewrites the path.
    pub(super) fn search(&self) -> Option<&PathRules> {
        self.path_rules.as_deref().filter(|rules| rules.is_search)
    }

    /// Refuses a path with an encoded slash, unless the route keeps it: before a rewrite, which may leave it out.
    ///
    /// # Errors
    /// 400.
    pub(super) fn refuse_encoded_slash(&self, path: &RequestPath) -> Result<(), Reject> {
        match path.has_encoded_slash && !self.keeps_encoded_slashes {
            true => Err(ENCODED_SLASH),
            false => Ok(()),
        }
    }

    /// The handler for a path, and its fallback.
    ///
    /// # Errors
    /// 400 for a path with an encoded slash, unless the route keeps it; for files always, because no file has a slash
    /// in its name.
    fn handlers(&self, path: &RequestPath, method: Method) -> Result<(&Handler, Option<&Handler>), Reject> {
        self.refuse_encoded_slash(path)?;
        let is_for_files = matches!(method, Method::Get | Method::Head) && !path.has_encoded_slash;
        match (&self.handler, &self.otherwise) {
            (Handler::Files(_), None) if path.has_encoded_slash => Err(ENCODED_SLASH),
            // Files answer GET and HEAD; other methods go to the fallback.
            (Handler::Files(_), Some(otherwise)) if !is_for_files => Ok((otherwise, None)),
            (handler, otherwise) => Ok((handler, otherwise.as_ref())),
        }
    }
}

const ENCODED_SLASH: Reject = Reject::bad("encoded slash or backslash in path");
