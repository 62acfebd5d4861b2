//! Internal routes: files that applications and upstream servers name in place of a response, by `X-Accel-Redirect` or `X-Sendfile`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};
use std::rc::Rc;

use config::{Action, PathPattern};
use files::{FileOutcome, Files};
use http::path::normal_path;
use http::{EmptySegments, Fields, Status};
use net::{Exchange, Fault, FileReference, HeadTap, NamedFile};

use crate::request_path::Strip;

/// What is wrong where an application names a file that nothing may send.
pub(crate) const NO_INTERNAL_ROUTE: &str = "the application names a file that no internal route has";

/// The files of an internal route.
pub(crate) struct InternalFiles {
    paths: Vec<PathPattern>,
    roots: Vec<PathBuf>,
    /// The prefix that is taken from the front of paths.
    strip: Strip,
    files: Files,
}

/// Those of a site, in the order of its file.
pub(crate) type SiteInternals = Option<Rc<[InternalFiles]>>;

impl InternalFiles {
    /// Those of a site; `open` opens the files of a route, and says what is taken from the front of its paths.
    ///
    /// # Errors
    /// That of `open`.
    pub(crate) fn of_site(
        site: &config::Site,
        open: impl Fn(usize, &config::Files) -> io::Result<(Strip, Files)>,
    ) -> io::Result<SiteInternals> {
        let mut all = Vec::new();
        for (index, route) in site.routes.iter().enumerate().filter(|(_, route)| route.internal) {
            let Action::Files(files) = &route.action else { continue };
            let (paths, roots) = (route.path.clone(), files.root.iter().flat_map(spellings).collect());
            let (strip, files) = open(index, files)?;
            all.push(InternalFiles { paths, roots, strip, files });
        }
        Ok((!all.is_empty()).then(|| all.into()))
    }

    /// The path below the root of a path of requests.
    fn of_path<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let is_its_own = self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path));
        is_its_own.then(|| self.strip.below(path))
    }

    /// The same of a path on the disk.
    fn on_disk<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
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
    let mut written = PathBuf::new();
    for part in std::path::absolute(root).as_deref().unwrap_or(root).components() {
        match part {
            Component::ParentDir => _ = written.pop(),
            part => written.push(part),
        }
    }
    let real = root.canonicalize().ok().filter(|real| *real != written);
    [Some(written), real].into_iter().flatten().collect()
}

/// Sends the file that was named, with the fields of the response in whose place it is.
///
/// # Errors
/// The client's.
pub(crate) async fn send(all: &[InternalFiles], x: &mut Exchange<'_>, named: NamedFile) -> Result<(), Fault> {
    let normal;
    let found = match &named.name {
        FileReference::Path(target) => {
            let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
            match normal_path(path, EmptySegments::Merge) {
                Ok(path) if path.starts_with(b"/") => {
                    normal = path;
                    all.iter().find_map(|internal| Some((internal, internal.of_path(&normal)?)))
                }
                _ => None,
            }
        }
        FileReference::OnDisk(path) => {
            all.iter().find_map(|internal| Some((internal, internal.on_disk(path)?)))
        }
    };
    let Some((internal, path)) = found else {
        return x.refuse(Status::INTERNAL_SERVER_ERROR, NO_INTERNAL_ROUTE).await;
    };
    x.set_tap(Box::new(NamedFields(named.fields)));
    match internal.files.send(x, path).await? {
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
