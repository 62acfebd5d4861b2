//! Lookup of the script that a request's path names, for servers that execute scripts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use times::Moment;

use crate::open::{BlockingMode, OpenError};
use crate::tree::FileTree;

/// Maximum number of scripts that are remembered, and the maximum length of their paths.
const CACHED_MAX: usize = 256;
const CACHED_PATH_BYTES_MAX: usize = 256;
/// Maximum number of path prefixes that are tried as scripts.
const TRIED_MAX: usize = 8;

/// A script among the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundScript {
    /// Root that contains the script.
    pub root: PathBuf,
    /// Path of the script below the root.
    pub name: Vec<u8>,
    /// Rest of the request's path after the script's; empty, or with a leading slash.
    pub info: Vec<u8>,
}

/// Scripts by path, with the time when they were found in milliseconds of the core's clock.
type KnownByPath = HashMap<Vec<u8>, (Moment, Rc<FoundScript>)>;

/// Cache of scripts by path.
#[derive(Debug, Default)]
pub(crate) struct KnownScripts(RefCell<KnownByPath>);

impl KnownScripts {
    /// Returns the script at a path if it was found at `from` (core's clock) or later.
    pub(crate) fn find_since(&self, path: &[u8], from: Moment) -> Option<Rc<FoundScript>> {
        let known = self.0.borrow();
        known.get(path).filter(|(found_at, _)| *found_at >= from).map(|(_, found)| found.clone())
    }

    /// Remembers a script.
    pub(crate) fn add(&self, path: &[u8], now: Moment, found: &Rc<FoundScript>) {
        if path.len() > CACHED_PATH_BYTES_MAX {
            return;
        }
        let mut known = self.0.borrow_mut();
        if known.len() >= CACHED_MAX {
            known.clear();
        }
        known.insert(path.to_vec(), (now, found.clone()));
    }
}

impl FileTree {
    /// Returns the script that a normalised path names: the file at the path, the index of the folder at it,
    /// or the first file on the path that is named like a script. The rest of the path is passed to the
    /// script as `info`. A file that is not named like a script never becomes one through the rest of the
    /// path.
    ///
    /// # Errors
    /// [`OpenError`], if this could not be determined.
    pub fn script(&self, path: &[u8], mode: BlockingMode) -> Result<Option<FoundScript>, OpenError> {
        let is_reachable = |name: &[u8]| !self.is_hidden(name) && !name.windows(2).any(|pair| pair == b"//");
        if !path.starts_with(b"/") {
            return Ok(None);
        }
        let whole = [path].into_iter().filter(|path| is_script(path));
        let names = scripts_within(path).chain(whole).take(TRIED_MAX);
        for name in names.filter(|name| is_reachable(name)) {
            if let Some(root) = self.root_of(name, mode)? {
                let info = path[name.len()..].to_vec();
                return Ok(Some(FoundScript { root, name: name.to_vec(), info }));
            }
        }
        if !path.ends_with(b"/") || !is_reachable(path) {
            return Ok(None);
        }
        for index in self.index() {
            let name = [path, index.as_bytes()].concat();
            match self.root_of(&name, mode)? {
                Some(root) if is_script(&name) => {
                    return Ok(Some(FoundScript { root, name, info: Vec::new() }));
                }
                Some(_) => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// Returns the first root with a file at this path.
    fn root_of(&self, path: &[u8], patience: BlockingMode) -> Result<Option<PathBuf>, OpenError> {
        for root in self.roots() {
            if root.has_file(path, patience)? {
                return Ok(Some(root.path().to_path_buf()));
            }
        }
        Ok(None)
    }
}

/// Returns the proper prefixes of a path that are named like a script, shortest first, at most `TRIED_MAX`.
pub fn scripts_within(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.map(|end| &path[..end]).filter(|name| is_script(name)).take(TRIED_MAX)
}

/// Whether files with this name are executed.
fn is_script(path: &[u8]) -> bool {
    path.ends_with(b".php") && !path.ends_with(b"/.php")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{FileOptions, Options};
    use crate::scratch::ScratchFolder;
    use crate::tree::FoundEntry;

    #[test]
    fn scripts_are_existing_files_below_the_root() {
        let scratch = ScratchFolder::new();
        for file in [
            "index.php",
            "a/b.php",
            "wp/index.php",
            "html/index.html",
            "html/index.php",
            "up/x.jpg",
            ".h/x.php",
        ] {
            scratch.write(&format!("root/{file}"), "<?php");
        }
        scratch.write("root/odd.php/x.php", "<?php");
        scratch.write("other.php", "<?php");
        std::os::unix::fs::symlink("../other.php", scratch.path("root").join("out.php")).unwrap();
        std::os::unix::fs::symlink("a/b.php", scratch.path("root").join("in.php")).unwrap();
        let index = vec!["index.php".to_owned(), "index.html".to_owned()];
        let options = Options {
            files: FileOptions { root: vec![scratch.path("root")], index, ..FileOptions::default() },
            scripts: true,
            ..Options::default()
        };
        let tree = FileTree::open(&options).unwrap();
        for (path, want) in [
            ("/", Some(("/index.php", ""))),
            ("/index.php", Some(("/index.php", ""))),
            ("/index.php/", Some(("/index.php", "/"))),
            ("/index.php/a/b.php", Some(("/index.php", "/a/b.php"))),
            ("/a/b.php/c", Some(("/a/b.php", "/c"))),
            ("/a/b.php/files/.hidden/y", Some(("/a/b.php", "/files/.hidden/y"))),
            ("/a/b.php//c", Some(("/a/b.php", "//c"))),
            ("/.h/x.php/c", None),
            ("/wp/", Some(("/wp/index.php", ""))),
            ("/wp", None),
            ("/html/", Some(("/html/index.php", ""))),
            ("/odd.php", None),
            ("/odd.php/x.php/y", Some(("/odd.php/x.php", "/y"))),
            ("/in.php", Some(("/in.php", ""))),
            ("/out.php", None),
            ("/up/x.jpg", None),
            ("/up/x.jpg/a.php", None),
            ("/up/x.jpg/.php", None),
            ("/up/x.jpg\0.php", None),
            ("/none.php", None),
            ("/INDEX.PHP", None),
            ("/index.php.", None),
            ("/index.php~", None),
            ("/.h/x.php", None),
            ("//index.php", None),
            ("/../other.php", None),
            ("", None),
        ] {
            let found = tree.script(path.as_bytes(), BlockingMode::Blocking).unwrap();
            let found = found.map(|found| {
                (String::from_utf8(found.name).unwrap(), String::from_utf8(found.info).unwrap())
            });
            assert_eq!(found, want.map(|(name, info)| (name.to_owned(), info.to_owned())), "{path}");
        }
        let html = FileTree::open(&Options {
            files: FileOptions { index: vec!["index.html".into(), "index.php".into()], ..options.files },
            ..options
        })
        .unwrap();
        assert_eq!(html.script(b"/html/", BlockingMode::Blocking).unwrap(), None);
    }

    #[test]
    fn script_sources_are_not_served_as_files() {
        let scratch = ScratchFolder::new();
        let sources = [
            "index.php",
            "a.PHP",
            "a.php5",
            "a.phtml",
            "a.phar",
            "a.php~",
            "a.php.bak",
            "wp-config.php.old",
            "a.inc",
            "a.phps",
        ];
        for file in sources.iter().chain(&["a.txt", "php.txt", "a.phpx", "sphp", "jquery.phpjs.js"]) {
            scratch.write(&format!("root/{file}"), "text");
        }
        let index = vec!["index.php".to_owned()];
        let options = Options {
            files: FileOptions { root: vec![scratch.path("root")], index, ..FileOptions::default() },
            scripts: true,
            ..Options::default()
        };
        let tree = FileTree::open(&options).unwrap();
        for file in sources {
            let found = tree.find(format!("/{file}").as_bytes(), BlockingMode::Blocking).unwrap();
            assert!(matches!(found, FoundEntry::Missing), "{file}: {found:?}");
        }
        for file in ["a.txt", "php.txt", "sphp", "jquery.phpjs.js"] {
            let found = tree.find(format!("/{file}").as_bytes(), BlockingMode::Blocking).unwrap();
            assert!(matches!(found, FoundEntry::File(_)), "{file}: {found:?}");
        }
        let folder = tree.find(b"/", BlockingMode::Blocking).unwrap();
        assert!(matches!(folder, FoundEntry::NoIndex), "{folder:?}");
    }
}
