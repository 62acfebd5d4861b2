//! Internal routes: files that applications and upstream servers name in place of a response, by `X-Accel-Redirect` or `X-Sendfile`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use config::matcher::{RouteId, Routes};
use config::{Action, PathPattern};
use files::{FileOutcome, Files};
use http::path::normal_path;
use http::{EmptySegments, Fields, Method, Status};
use net::{Exchange, Fault, FileReference, HeadTap, NamedFile};

use crate::conditions::{self, FieldsOf};
use crate::request_path::Strip;
use engine::clients::access::ClientAccess;
use steps::auth::{self, RouteAuth};
use steps::limit::{self, CountedRequests, RateRules};

/// What is wrong where an application names a file that nothing may send.
pub(crate) const NO_INTERNAL_ROUTE: &str = "the application names a file that no internal route has";
/// The fault of an application that names a file of an internal route behind another route.
pub(crate) const NOT_INTERNAL: &str =
    "a route that is not internal answers the path that the application names";

/// The rules that an internal route applies before it sends a file. Those of its site were applied to the request.
pub struct RouteGuards {
    /// Clients that may be sent the file.
    pub client_access: ClientAccess,
    /// Rate limits of the internal route.
    pub rates: Option<RateRules>,
    /// Authentication of the internal route.
    pub auth: Option<RouteAuth>,
}

impl RouteGuards {
    /// Answers a request that may not have the file. Returns whether it may. `asked` is the `auth` of the request's own route.
    ///
    /// # Errors
    /// The client is gone.
    async fn admit(&self, asked: Option<&RouteAuth>, x: &mut Exchange<'_>) -> Result<bool, Fault> {
        let auth = self.auth.as_ref().filter(|auth| !auth.is_covered_by(asked));
        if !self.client_access.admits_all() || self.rates.is_some() || auth.is_some() {
            x.forbid_storing();
        }
        if !self.client_access.admits(x.request().client().address) {
            x.refuse(Status::FORBIDDEN, "access to this file is forbidden").await?;
            return Ok(false);
        }
        Ok(limit::admit(self.rates.as_ref(), x, CountedRequests::All).await? && auth::admit(auth, x).await?)
    }
}

/// An internal route.
struct InternalRoute {
    /// The route's index in its site.
    index: usize,
    paths: Vec<PathPattern>,
    roots: Vec<PathBuf>,
    /// The prefix that is taken from the front of paths.
    strip: Strip,
    files: Files,
    guards: RouteGuards,
}

/// The internal routes of a site, in the order of its file.
pub struct InternalRoutes {
    all: Vec<InternalRoute>,
    /// All routes of the site: the first one that matches decides.
    routes: Routes,
}

/// Those of a site, if it has some.
pub type SiteInternals = Option<Rc<InternalRoutes>>;

impl InternalRoutes {
    /// Those of a site; `open` opens the files of a route, and says what is taken from the front of its paths, and what it asks.
    ///
    /// # Errors
    /// That of `open`.
    pub fn of_site(
        site: &config::Site,
        mut open: impl FnMut(usize, &config::Files) -> io::Result<(Strip, Files, RouteGuards)>,
    ) -> io::Result<SiteInternals> {
        let mut all = Vec::new();
        for (index, route) in site.routes.iter().enumerate().filter(|(_, route)| route.internal) {
            let Action::Files(files) = &route.action else { continue };
            let (paths, roots) = (route.path.clone(), files.root.iter().flat_map(spellings).collect());
            let (strip, files, guards) = open(index, files)?;
            all.push(InternalRoute { index, paths, roots, strip, files, guards });
        }
        let has_some = !all.is_empty();
        Ok(has_some.then(|| Rc::new(InternalRoutes { all, routes: Routes::of_site(site) })))
    }

    /// The route of a path of requests, and the path below its root.
    ///
    /// # Errors
    /// Why there is none.
    fn of_path(&self, x: &Exchange<'_>, target: &[u8]) -> Result<(&InternalRoute, Vec<u8>), &'static str> {
        let mut parts = target.splitn(2, |&byte| byte == b'?');
        let (path, query) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let path = normal_path(path, EmptySegments::Merge).map_err(|_| NO_INTERNAL_ROUTE)?;
        if !path.starts_with(b"/") {
            return Err(NO_INTERNAL_ROUTE);
        }
        let request = x.request();
        let wanted = self.wanted(x, (&path, query));
        let first = self.routes.find_in(0, &wanted, FieldsOf(&request));
        let internal = self.all.iter().find(|internal| Some(internal.index) == first);
        let internal = internal.ok_or_else(|| match self.all.iter().any(|one| one.is_of_path(&path)) {
            true => NOT_INTERNAL,
            false => NO_INTERNAL_ROUTE,
        })?;
        self.note_conditions(internal, x, &path);
        Ok((internal, internal.strip.below(&path).to_vec()))
    }

    /// The same of a path on the disk.
    fn on_disk(&self, x: &Exchange<'_>, path: &[u8]) -> Result<(&InternalRoute, Vec<u8>), &'static str> {
        let path = normal(Path::new(std::ffi::OsStr::from_bytes(path)));
        let mut why = NO_INTERNAL_ROUTE;
        for internal in &self.all {
            let Some(rest) = internal.below_root(path.as_os_str().as_bytes()) else { continue };
            // The path by which requests would name the file.
            let named = [&internal.strip.0, rest].concat();
            let (request, id) = (x.request(), RouteId { site: 0, route: internal.index });
            if self.routes.is_first_beside_path(id, &self.wanted(x, (&named, b"")), FieldsOf(&request)) {
                self.note_conditions(internal, x, &named);
                return Ok((internal, rest.to_vec()));
            }
            why = NOT_INTERNAL;
        }
        Err(why)
    }

    /// What routes look at in a request for the file: it is read, whatever the method of the client's request.
    fn wanted<'a>(
        &self,
        x: &'a Exchange<'_>,
        path_and_query: (&'a [u8], &'a [u8]),
    ) -> config::matcher::RouteRequest<'a> {
        let request = x.request();
        let method = if request.method() == Method::Head { &b"HEAD"[..] } else { b"GET" };
        conditions::of_request(&request, method, path_and_query, self.routes.uses_country())
    }

    /// Keeps the file from caches where other clients get another one, or none.
    fn note_conditions(&self, internal: &InternalRoute, x: &Exchange<'_>, path: &[u8]) {
        if self.routes.has_conditions_up_to(RouteId { site: 0, route: internal.index }, path) {
            x.forbid_storing();
        }
    }
}

impl InternalRoute {
    fn is_of_path(&self, path: &[u8]) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path))
    }

    /// The path below its root of a path on the disk.
    fn below_root<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let below = |root: &PathBuf| {
            let root = root.as_os_str().as_bytes();
            let root = root.strip_suffix(b"/").unwrap_or(root);
            path.strip_prefix(root).filter(|rest| rest.starts_with(b"/"))
        };
        self.roots.iter().find_map(below)
    }
}

/// The absolute paths of a folder: as it is written, without `.` and `..`, and without symbolic links. Applications name files by either.
fn spellings(root: &PathBuf) -> Vec<PathBuf> {
    let written = normal(std::path::absolute(root).as_deref().unwrap_or(root));
    let real = root.canonicalize().ok().filter(|real| *real != written);
    [Some(written), real].into_iter().flatten().collect()
}

/// A path without `.`, `..` and empty segments.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            part => normal.push(part),
        }
    }
    normal
}

/// Sends the file that was named, with the fields of the response in whose place it is. `asked` is the `auth` of the request's own route.
///
/// # Errors
/// The client's.
pub(crate) async fn send(
    internals: &InternalRoutes,
    asked: Option<&RouteAuth>,
    x: &mut Exchange<'_>,
    named: NamedFile,
) -> Result<(), Fault> {
    let found = match &named.name {
        FileReference::Path(target) => internals.of_path(x, target),
        FileReference::OnDisk(path) => internals.on_disk(x, path),
    };
    let (internal, path) = match found {
        Ok(found) => found,
        Err(why) => return x.refuse(Status::INTERNAL_SERVER_ERROR, why).await,
    };
    if !internal.guards.admit(asked, x).await? {
        return Ok(());
    }
    x.set_tap(Box::new(NamedFields(named.fields)));
    match internal.files.send(x, &path).await? {
        FileOutcome::Done => Ok(()),
        FileOutcome::Declined(_) => {
            x.refuse(Status::NOT_FOUND, "the file that the application names is not there").await
        }
    }
}

/// Puts the fields of the application's response in place of the file's, where that is sent.
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
