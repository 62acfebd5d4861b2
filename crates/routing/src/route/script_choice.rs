//! Choice between the route of a path and that of a script or program on it, whose `PATH_INFO` is the rest of the path.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use super::{Handler, Route};

/// Guards of a route, as numbers: equal guards of the routes of a site have the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteGuardSet(Vec<usize>);

impl RouteGuardSet {
    /// Creates the set of these guards.
    #[must_use]
    pub fn new(numbers: Vec<usize>) -> Self {
        Self(numbers)
    }

    /// Whether every guard of `other` is one of these too.
    fn includes(&self, other: &Self) -> bool {
        other.0.iter().all(|number| self.0.contains(number))
    }
}

/// The folder of a route's CGI programs.
#[derive(Debug)]
pub struct ProgramFolder {
    root: PathBuf,
    /// The path of the folder, without a final slash.
    prefix: Vec<u8>,
}

impl ProgramFolder {
    /// Returns the folder of the programs that the route runs; `None` if it runs none.
    #[must_use]
    pub fn of(route: &config::Route) -> Option<Self> {
        let mut actions = std::iter::once(&route.action).chain(&route.otherwise);
        let root = actions.find_map(|action| match action {
            config::Action::Proxy(proxy) => proxy.cgi.as_ref().map(|cgi| cgi.root.clone()),
            _ => None,
        })?;
        Some(Self { root, prefix: route.prefix().unwrap_or_default().as_bytes().to_vec() })
    }

    /// Returns the path of the program that a longer path names: that of the first entry on it that is no folder.
    #[must_use]
    pub fn program_within<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let start = self.prefix.len() + 1;
        let ends = path.iter().enumerate().skip(start).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends {
            // An empty segment would be the folder before it, or the root of the file system.
            if path[..end].ends_with(b"/") {
                return None;
            }
            match fs::metadata(self.root.join(OsStr::from_bytes(&path[start..end]))) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Some(&path[..end]),
                // No program can be run.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return None;
                }
                Err(_) => return Some(&path[..end]),
            }
        }
        None
    }
}

/// Returns the route that answers a path with a script on it: that of the script, so that its guards apply to all
/// paths below it, unless that of the whole path guards more. `None` if neither has the guards of both, or if the route
/// of the whole path guards more and that of the script does something else than to run it.
pub(crate) fn choose_route<'t>(whole: &'t Rc<Route>, script: &'t Rc<Route>) -> Option<&'t Rc<Route>> {
    if script.guards.includes(&whole.guards) || script.handler.is_refusal() {
        return Some(script);
    }
    let is_run = matches!(script.handler, Handler::Php(_)) || script.programs.is_some();
    (is_run && whole.guards.includes(&script.guards)).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_include_their_parts() {
        let set = |numbers: &[usize]| RouteGuardSet::new(numbers.to_vec());
        for (all, part, expected) in [
            (&[][..], &[][..], true),
            (&[1], &[], true),
            (&[1, 2], &[2], true),
            (&[1], &[1, 2], false),
            (&[], &[0], false),
        ] {
            assert_eq!(set(all).includes(&set(part)), expected, "{all:?} {part:?}");
        }
    }
}
