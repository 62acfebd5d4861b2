//! A route, ready to serve, and the kinds of handlers.

use std::rc::Rc;

use admission::CorsRules;
use files::Files;
use http::{Fields, Method, Reject, Status, Template};
use net::{Bandwidth, Compression, Exchange, Fault};
use proxy::Proxy;

use crate::applications::hosting::Mounted;
use crate::cache_handler::handler::RouteCache;
use crate::clients::access::ClientAccess;
use crate::routing::edits::RouteEdits;
use crate::routing::internal::SiteInternals;
use crate::routing::path_rules::PathRules;
use crate::routing::php::PhpRoute;
use crate::routing::replace::RouteReplacement;
use crate::routing::request_path::{RequestPath, Strip};
use crate::routing::templates::FilledResponse;
use crate::steps::auth::RouteAuth;
use crate::steps::guard::SiteGuard;
use crate::steps::limit::RateRules;
use crate::steps::release::Release;
use crate::steps::shaping::queue::QueueRule;

/// The kinds of handlers.
pub(crate) enum Handler {
    Files(Box<Files>),
    Proxy(Proxy),
    Php(Box<PhpRoute>),
    App(Mounted),
    Redirect { to: Template, status: Status },
    Respond { status: Status, fields: Fields, body: Vec<u8> },
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
pub(crate) struct Route {
    pub(crate) handler: Handler,
    /// The handler used when `handler` finds no file.
    pub(crate) otherwise: Option<Handler>,
    /// What it makes of the path, where that is something.
    pub(crate) path_rules: Option<Box<PathRules>>,
    /// Length of the prefix removed from the path for the handler, in bytes.
    pub(crate) strip: Strip,
    /// The part of its path before the final `*`, for `$rest`.
    pub(crate) prefix: Vec<u8>,
    /// Whether paths with encoded slashes are answered; not by files.
    pub(crate) keeps_encoded_slashes: bool,
    pub(crate) body_bytes_max: u64,
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    /// How fast each of its responses is sent, where that is limited.
    pub(crate) bandwidth: Option<Bandwidth>,
    pub(crate) edits: RouteEdits,
    /// The cache in front of its upstream servers and applications.
    pub(crate) cache: Option<RouteCache>,
    /// The clients that it answers.
    pub(crate) client_access: ClientAccess,
    /// How often they may ask.
    pub(crate) rates: Option<Rc<RateRules>>,
    /// How many are in its handler at once.
    pub(crate) queue: Option<QueueRule>,
    /// What it asks of clients.
    pub(crate) auth: Option<RouteAuth>,
    /// Which other origins may read its responses, where it says so.
    pub(crate) cors: Option<CorsRules>,
    /// What its requests are counted under.
    pub(crate) label: usize,
    /// Whether its site's error pages are sent in place of errors of applications and upstream servers.
    pub(crate) intercepts_errors: bool,
    /// Compression of its responses.
    pub(crate) compression: Option<Rc<Compression>>,
    /// What is replaced in the bodies of its responses.
    pub(crate) replacement: Option<Box<RouteReplacement>>,
    /// What is done with its requests before the handler, where a release has rules for them.
    pub(crate) release: Option<Box<Release>>,
    /// The branches of its split.
    pub(crate) branches: Vec<Rc<Route>>,
    /// What its site does before it does anything.
    pub(crate) guard: Option<Rc<SiteGuard>>,
    /// The files that its handler may name in place of a response.
    pub(crate) internals: SiteInternals,
    /// Whether nothing stands between a request and its handler ([`Route::stands_alone`]).
    pub(crate) is_direct: bool,
}

impl Route {
    /// Whether its requests go to its handler with nothing asked before, changed on the way, or kept from the response.
    pub(crate) fn stands_alone(&self) -> bool {
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
