//! Internal routes: files that applications and upstream servers name with `X-Accel-Redirect` or `X-Sendfile`
//! instead of sending a body.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use config::Action;
use config::matcher::{RouteId, Routes};
use engine::clients::access::ClientAccess;
use files::{FileOptions, FileOutcome, Files};
use http::path::normal_path;
use http::{EmptySegments, Fields, Method, Status};
use net::{Exchange, Fault, FileReference, HeadTap, NamedFile};
use shapes::pattern::PathPattern;
use steps::auth::RouteAuth;
use steps::flow::Flow;
use steps::limit::{CountedRequests, RateRules};

use crate::conditions::{self, RouteRequestFields};
use crate::request_path::PathPrefix;

/// Reason of the error response if an application names a file that no internal route serves.
pub(crate) const NO_INTERNAL_ROUTE: &str = "the application names a file that no internal route has";
/// Reason of the error response if another route precedes the internal one for the named path.
pub(crate) const NOT_INTERNAL: &str =
    "a route that is not internal answers the path that the application names";

/// Access checks of an internal route, applied before it sends a file. Those of its site have been applied to
/// the request.
pub struct RouteGuards {
    /// Clients that are allowed to receive the file.
    pub client_access: ClientAccess,
    /// Rate limits of the internal route.
    pub rates: Option<RateRules>,
    /// Authentication of the internal route.
    pub auth: Option<RouteAuth>,
}

impl RouteGuards {
    /// Applies the checks. `asked` is the `auth` of the request's own route, which is not repeated. Returns
    /// `false` if the request has been answered.
    ///
    /// # Errors
    /// The client is gone.
    async fn check_access(
        &self,
        asked: Option<&RouteAuth>,
        exchange: &mut Exchange<'_>,
    ) -> Result<bool, Fault> {
        let auth = self.auth.as_ref().filter(|auth| !auth.is_covered_by(asked));
        if !self.client_access.admits_all() || self.rates.is_some() || auth.is_some() {
            exchange.forbid_storing();
        }
        if !self.client_access.admits(exchange.request().client().address) {
            exchange.refuse(Status::FORBIDDEN, "access to this file is forbidden").await?;
            return Ok(false);
        }
        if let Some(rates) = &self.rates
            && rates.run(exchange, CountedRequests::All).await? != Flow::Continue
        {
            return Ok(false);
        }
        match auth {
            Some(auth) => Ok(auth.run(exchange).await? == Flow::Continue),
            None => Ok(true),
        }
    }
}

/// An internal route.
struct InternalRoute {
    /// The route's index in its site.
    index: usize,
    paths: Vec<PathPattern>,
    roots: Vec<PathBuf>,
    /// Prefix removed from paths.
    strip: PathPrefix,
    files: Files,
    guards: RouteGuards,
}

/// Internal routes of a site, in configuration order.
pub struct InternalRoutes {
    all: Vec<InternalRoute>,
    /// All routes of the site, because the first match decides.
    routes: Routes,
}

/// Internal routes of a site; `None` if it has none.
pub type SiteInternals = Option<Rc<InternalRoutes>>;

impl InternalRoutes {
    /// Creates the internal routes of a site. `open` returns the prefix, the files and the checks of a route.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn of_site(
        site: &config::Site,
        mut open: impl FnMut(usize, &FileOptions) -> io::Result<(PathPrefix, Files, RouteGuards)>,
    ) -> io::Result<SiteInternals> {
        let mut all = Vec::new();
        for (index, route) in site.routes.iter().enumerate().filter(|(_, route)| route.internal) {
            let Action::Files(files) = &route.action else { continue };
            let paths = route.path.clone();
            let roots = files.root.iter().flat_map(absolute_paths).collect();
            let (strip, files, guards) = open(index, files)?;
            all.push(InternalRoute { index, paths, roots, strip, files, guards });
        }
        let has_some = !all.is_empty();
        Ok(has_some.then(|| Rc::new(InternalRoutes { all, routes: Routes::compile_site(site) })))
    }

    /// Returns the internal route of a URL path, and the path of the file below the route's root.
    ///
    /// # Errors
    /// The reason why no internal route serves the path.
    fn find_by_url_path(
        &self,
        exchange: &Exchange<'_>,
        target: &[u8],
    ) -> Result<(&InternalRoute, Vec<u8>), &'static str> {
        let mut parts = target.splitn(2, |&byte| byte == b'?');
        let path = parts.next().unwrap_or_default();
        let query = parts.next().unwrap_or_default();
        let path = normal_path(path, EmptySegments::Merge).map_err(|_| NO_INTERNAL_ROUTE)?;
        if !path.starts_with(b"/") {
            return Err(NO_INTERNAL_ROUTE);
        }
        let request = exchange.request();
        let wanted = self.route_request(exchange, &path, query);
        let first = self.routes.find_in(0, &wanted, RouteRequestFields(&request));
        let internal = self.all.iter().find(|internal| Some(internal.index) == first);
        let internal = internal.ok_or_else(|| {
            if self.all.iter().any(|one| one.matches_path(&path)) { NOT_INTERNAL } else { NO_INTERNAL_ROUTE }
        })?;
        self.forbid_storing_if_conditional(internal, exchange, &path);
        Ok((internal, internal.strip.strip_from(&path).to_vec()))
    }

    /// Returns the internal route of a file system path, and the path of the file below the route's root.
    ///
    /// # Errors
    /// The reason why no internal route serves the path.
    fn find_by_file_path(
        &self,
        exchange: &Exchange<'_>,
        path: &[u8],
    ) -> Result<(&InternalRoute, Vec<u8>), &'static str> {
        let path = normalize(Path::new(std::ffi::OsStr::from_bytes(path)));
        let mut why = NO_INTERNAL_ROUTE;
        for internal in &self.all {
            let Some(rest) = internal.below_root(path.as_os_str().as_bytes()) else { continue };
            // URL path that corresponds to the file.
            let named = [&internal.strip.0, rest].concat();
            let request = exchange.request();
            let id = RouteId { site: 0, route: internal.index };
            if self.routes.is_first_ignoring_path(
                id,
                &self.route_request(exchange, &named, b""),
                RouteRequestFields(&request),
            ) {
                self.forbid_storing_if_conditional(internal, exchange, &named);
                return Ok((internal, rest.to_vec()));
            }
            why = NOT_INTERNAL;
        }
        Err(why)
    }

    /// Returns the properties of a request for the file. The method is GET unless the client's is HEAD.
    fn route_request<'a>(
        &self,
        exchange: &'a Exchange<'_>,
        path: &'a [u8],
        query: &'a [u8],
    ) -> config::matcher::RouteRequest<'a> {
        let request = exchange.request();
        let method = if request.method() == Method::Head { &b"HEAD"[..] } else { b"GET" };
        conditions::route_request(&request, method, path, query, self.routes.uses_country())
    }

    /// Forbids caches to store the response if the choice of the route depends on more than the path and
    /// query.
    fn forbid_storing_if_conditional(&self, internal: &InternalRoute, exchange: &Exchange<'_>, path: &[u8]) {
        if self.routes.has_conditions_up_to(RouteId { site: 0, route: internal.index }, path) {
            exchange.forbid_storing();
        }
    }
}

impl InternalRoute {
    fn matches_path(&self, path: &[u8]) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path))
    }

    /// Returns the part of a file system path below a root of the route.
    fn below_root<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let below = |root: &PathBuf| {
            let root = root.as_os_str().as_bytes();
            let root = root.strip_suffix(b"/").unwrap_or(root);
            path.strip_prefix(root).filter(|rest| rest.starts_with(b"/"))
        };
        self.roots.iter().find_map(below)
    }
}

/// Returns the absolute paths of a directory: as configured, without `.` and `..`, and with symbolic links
/// resolved. Applications may use either.
fn absolute_paths(root: &PathBuf) -> Vec<PathBuf> {
    let written = normalize(std::path::absolute(root).as_deref().unwrap_or(root));
    let real = root.canonicalize().ok().filter(|real| *real != written);
    [Some(written), real].into_iter().flatten().collect()
}

/// Removes `.`, `..` and empty segments from a path.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            part => normal.push(part),
        }
    }
    normal
}

/// Sends the named file with the fields of the application's response. `asked` is the `auth` of the request's
/// own route.
///
/// # Errors
/// Those of sending to the client.
pub(crate) async fn send(
    internals: &InternalRoutes,
    request_auth: Option<&RouteAuth>,
    exchange: &mut Exchange<'_>,
    named: NamedFile,
) -> Result<(), Fault> {
    let found = match &named.name {
        FileReference::Path(target) => internals.find_by_url_path(exchange, target),
        FileReference::OnDisk(path) => internals.find_by_file_path(exchange, path),
    };
    let (internal, path) = match found {
        Ok(found) => found,
        Err(why) => return exchange.refuse(Status::INTERNAL_SERVER_ERROR, why).await,
    };
    if !internal.guards.check_access(request_auth, exchange).await? {
        return Ok(());
    }
    exchange.set_tap(Box::new(NamedFields(named.fields)));
    match internal.files.send(exchange, &path).await? {
        FileOutcome::Done => Ok(()),
        FileOutcome::Declined(_) => {
            exchange.refuse(Status::NOT_FOUND, "the file that the application names is not there").await
        }
    }
}

/// Replaces the fields of the file's response with those of the application's, unless it is an error
/// response.
struct NamedFields(Fields);

impl HeadTap for NamedFields {
    fn head(self: Box<Self>, status: Status, fields: &mut Fields) {
        if !(200..300).contains(&status.code()) && status != Status::NOT_MODIFIED {
            return;
        }
        for (name, _) in self.0.iter() {
            fields.remove(name);
        }
        fields.extend(&self.0);
    }
}
