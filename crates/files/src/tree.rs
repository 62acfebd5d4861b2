//! Path lookup: a file with its siblings, a folder, or nothing. All calls that may block are made here.

use std::fs::File;
use std::io;
use std::sync::Arc;

use http::Coding;

use crate::media;
use crate::open::{self, BlockingMode, OpenError, OpenResult, Root, RootChange, Stamp};
use crate::options::Options;

/// The roots, and the options for searching them. Shared with the threads for blocking calls.
#[derive(Clone, Debug)]
pub struct FileTree {
    roots: Vec<Arc<Root>>,
    index: Vec<String>,
    scripts: bool,
    listing: bool,
    hidden: bool,
    precompressed: Vec<Coding>,
    memory_bytes_max: u64,
}

/// Result of a path lookup.
#[derive(Debug)]
pub enum FoundEntry {
    /// A file, or the index of a folder.
    File(Box<LoadedFile>),
    /// A folder with an index or a listing, requested without a trailing slash.
    MissingSlash,
    /// A folder without an index, to be listed.
    Folder,
    /// A folder without an index that must not be listed.
    NoIndex,
    /// The path does not exist.
    Missing,
    /// An object that is not served, with the reason.
    Refused(&'static str),
}

/// An open file with its siblings in other codings.
#[derive(Debug)]
pub struct LoadedFile {
    /// Path below the root.
    pub path: Vec<u8>,
    /// The file itself.
    pub plain: FilePiece,
    /// Siblings, in order of preference.
    pub siblings: Vec<(Coding, FilePiece)>,
}

/// Content of one file.
#[derive(Debug)]
pub struct FilePiece {
    /// Stamp of the file when it was opened.
    pub stamp: Stamp,
    /// Location of the content.
    pub content: Content,
}

/// Location of a file's content.
#[derive(Clone, Debug)]
pub enum Content {
    /// The entire content, in memory.
    Memory(Arc<[u8]>),
    /// An open file.
    File(Arc<File>),
}

/// Maximum number of attempts to read a small file that changes during the read. After that it is sent from
/// its descriptor.
const READS_MAX: usize = 3;

impl FileTree {
    /// Opens the roots.
    ///
    /// # Errors
    /// A root cannot be opened.
    pub fn open(options: &Options) -> io::Result<FileTree> {
        let roots = options.files.root.iter().map(|root| Root::open(root, options.files.symlinks));
        Ok(FileTree {
            roots: roots.map(|root| root.map(Arc::new)).collect::<io::Result<_>>()?,
            index: options.files.index.clone(),
            scripts: options.scripts,
            listing: options.files.listing,
            hidden: options.files.hidden,
            precompressed: options.files.precompressed.clone(),
            memory_bytes_max: options.cache.file_bytes_max,
        })
    }

    /// Returns the names of index files.
    #[must_use]
    pub fn index(&self) -> &[String] {
        &self.index
    }

    /// Returns the roots.
    #[must_use]
    pub fn roots(&self) -> &[Arc<Root>] {
        &self.roots
    }

    /// Checks each root's path again, in the order of [`FileTree::roots`].
    ///
    /// # Errors
    /// [`OpenError::WouldBlock`].
    pub fn recheck(&self, mode: BlockingMode) -> Result<Vec<RootChange>, OpenError> {
        self.roots.iter().map(|root| root.recheck(mode)).collect()
    }

    /// Returns a copy of the tree with the root at index `at` replaced.
    #[must_use]
    pub fn with_root(&self, index: usize, root: Root) -> FileTree {
        let mut tree = self.clone();
        tree.roots[index] = Arc::new(root);
        tree
    }

    /// Whether a path or a folder on it is hidden. `.well-known` at the top never is (RFC 8615).
    #[must_use]
    pub fn is_hidden(&self, path: &[u8]) -> bool {
        let path = path.strip_prefix(b"/.well-known/").unwrap_or(path);
        !self.hidden && path.split(|&byte| byte == b'/').any(|segment| segment.starts_with(b"."))
    }

    /// Looks up the normalised `path`.
    ///
    /// # Errors
    /// [`OpenError`], if this could not be determined.
    pub fn find(&self, path: &[u8], mode: BlockingMode) -> Result<FoundEntry, OpenError> {
        if path.ends_with(b"/") {
            return self.find_index(path, mode);
        }
        if self.scripts && is_source(path) {
            return Ok(FoundEntry::Missing);
        }
        let mut folder = false;
        for root in &self.roots {
            match root.open_path(path, mode)? {
                OpenResult::File(file, stamp) => return self.load(root, path, file, stamp, mode),
                OpenResult::Folder(_) => folder = true,
                OpenResult::Missing => {}
                OpenResult::Refused(reason) => return Ok(FoundEntry::Refused(reason)),
            }
        }
        if !folder {
            return Ok(FoundEntry::Missing);
        }
        Ok(if self.has_index_or_listing(path, mode)? {
            FoundEntry::MissingSlash
        } else {
            FoundEntry::NoIndex
        })
    }

    fn find_index(&self, folder: &[u8], patience: BlockingMode) -> Result<FoundEntry, OpenError> {
        for name in self.index.iter().filter(|name| !(self.scripts && is_source(name.as_bytes()))) {
            let path = [folder, name.as_bytes()].concat();
            for root in &self.roots {
                match root.open_path(&path, patience)? {
                    OpenResult::File(file, stamp) => return self.load(root, &path, file, stamp, patience),
                    OpenResult::Refused(reason) => return Ok(FoundEntry::Refused(reason)),
                    OpenResult::Folder(_) | OpenResult::Missing => {}
                }
            }
        }
        for root in &self.roots {
            match root.open_path(folder, patience)? {
                OpenResult::Folder(_) if self.listing => return Ok(FoundEntry::Folder),
                OpenResult::Folder(_) => return Ok(FoundEntry::NoIndex),
                OpenResult::Refused(reason) if self.listing => return Ok(FoundEntry::Refused(reason)),
                OpenResult::File(..) | OpenResult::Missing | OpenResult::Refused(_) => {}
            }
        }
        Ok(FoundEntry::Missing)
    }

    /// Whether the existing folder at `path` has an index or a listing.
    fn has_index_or_listing(&self, path: &[u8], patience: BlockingMode) -> Result<bool, OpenError> {
        for name in &self.index {
            let index = [path, b"/", name.as_bytes()].concat();
            for root in &self.roots {
                if matches!(root.open_path(&index, patience)?, OpenResult::File(..) | OpenResult::Refused(_))
                {
                    return Ok(true);
                }
            }
        }
        Ok(self.listing)
    }

    /// Loads the file at `path` of a root.
    fn load(
        &self,
        root: &Root,
        path: &[u8],
        file: File,
        stamp: Stamp,
        patience: BlockingMode,
    ) -> Result<FoundEntry, OpenError> {
        let mut siblings = Vec::new();
        if !http::media::is_compressed(media::media_type(path)) && media::coding(path) == Coding::Identity {
            for &coding in &self.precompressed {
                if let Some(piece) = self.sibling(root, path, coding, &stamp, patience)? {
                    siblings.push((coding, piece));
                }
            }
        }
        let plain = self.read_piece(file, stamp, patience)?;
        Ok(FoundEntry::File(Box::new(LoadedFile { path: path.to_vec(), plain, siblings })))
    }

    /// Returns the sibling of a file in a coding, if there is one and it is not stale: its modification time
    /// is in the same second or later. Compression tools copy the time or set a later one, so an older
    /// sibling belongs to an older version of the file. A sibling in another root belongs to another file.
    fn sibling(
        &self,
        root: &Root,
        path: &[u8],
        coding: Coding,
        of: &Stamp,
        patience: BlockingMode,
    ) -> Result<Option<FilePiece>, OpenError> {
        let path = [path, suffix(coding)].concat();
        match root.open_path(&path, patience)? {
            OpenResult::File(file, stamp) if stamp.modified_s >= of.modified_s => {
                self.read_piece(file, stamp, patience).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn read_piece(
        &self,
        file: File,
        mut stamp: Stamp,
        patience: BlockingMode,
    ) -> Result<FilePiece, OpenError> {
        for _ in 0..READS_MAX {
            if stamp.size > self.memory_bytes_max {
                break;
            }
            let bytes = open::read(&file, stamp.size, patience)?;
            let after = Stamp::of(&file).map_err(OpenError::Failed)?;
            if after == stamp && bytes.len() as u64 == stamp.size {
                return Ok(FilePiece { stamp, content: Content::Memory(bytes.into()) });
            }
            stamp = after;
        }
        Ok(FilePiece { stamp, content: Content::File(Arc::new(file)) })
    }
}

/// Whether a file is named like the source of a script or like a copy of one: `a.php`, `a.PHP5`, `a.phtml`,
/// `a.php~`, `a.php.bak`, `a.inc`.
fn is_source(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_ascii_lowercase();
    let mut at = 0;
    while let Some(found) = name[at..].iter().position(|&byte| byte == b'.') {
        at += found + 1;
        let rest = &name[at..];
        let word = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let word = &rest[..word];
        let is_php = word.strip_prefix(b"php").is_some_and(|more| more.iter().all(u8::is_ascii_digit));
        if is_php || matches!(word, b"phtml" | b"phar" | b"phps" | b"pht" | b"inc") {
            return true;
        }
    }
    false
}

/// Suffix of a sibling's name.
fn suffix(coding: Coding) -> &'static [u8] {
    match coding {
        Coding::Identity => b"",
        Coding::Gzip => b".gz",
        Coding::Zstd => b".zst",
        Coding::Brotli => b".br",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::options::FileOptions;
    use crate::scratch::ScratchFolder;

    fn tree(scratch: &ScratchFolder, change: impl FnOnce(&mut Options)) -> FileTree {
        let mut options = Options {
            files: FileOptions { root: vec![scratch.path("root")], ..FileOptions::default() },
            ..Options::default()
        };
        change(&mut options);
        FileTree::open(&options).unwrap()
    }

    fn describe(tree: &FileTree, path: &str) -> String {
        match tree.find(path.as_bytes(), BlockingMode::Blocking).unwrap() {
            FoundEntry::File(loaded) => {
                let siblings = loaded.siblings.iter().map(|(coding, _)| format!(" {}", coding.text()));
                format!("{}{}", String::from_utf8_lossy(&loaded.path), siblings.collect::<String>())
            }
            FoundEntry::Refused(reason) => reason.into(),
            found => format!("{found:?}"),
        }
    }

    #[test]
    fn files_directories_and_indexes_are_found() {
        let scratch = ScratchFolder::new();
        scratch.write("root/index.html", "");
        scratch.write("root/a.txt", "");
        scratch.write("root/with/index.htm", "");
        scratch.write("root/without/a.txt", "");
        scratch.write("root/odd/index.html/a.txt", "");
        let index =
            |options: &mut Options| options.files.index = vec!["index.html".into(), "index.htm".into()];
        let plain = tree(&scratch, index);
        let listing = tree(&scratch, |options| {
            index(options);
            options.files.listing = true;
        });
        for (path, want, want_listing) in [
            ("/", "/index.html", "/index.html"),
            ("/a.txt", "/a.txt", "/a.txt"),
            ("/with/", "/with/index.htm", "/with/index.htm"),
            ("/with", "MissingSlash", "MissingSlash"),
            ("/without/", "NoIndex", "Folder"),
            ("/without", "NoIndex", "MissingSlash"),
            ("/odd/", "NoIndex", "Folder"),
            ("", "MissingSlash", "MissingSlash"),
            ("/a.txt/", "Missing", "Missing"),
            ("/none", "Missing", "Missing"),
            ("/none/", "Missing", "Missing"),
        ] {
            assert_eq!(describe(&plain, path), want, "{path}");
            assert_eq!(describe(&listing, path), want_listing, "{path} with listing");
        }
    }

    #[test]
    fn later_roots_are_searched_after_earlier_ones() {
        let scratch = ScratchFolder::new();
        scratch.write("root/both.txt", "first");
        scratch.write("root/folder/a.txt", "");
        scratch.write("second/both.txt", "second!");
        scratch.write("second/only.txt", "");
        scratch.write("second/folder/index.html", "");
        let second = scratch.path("second");
        let tree = tree(&scratch, |options| options.files.root.push(second));
        let Ok(FoundEntry::File(both)) = tree.find(b"/both.txt", BlockingMode::Blocking) else {
            panic!("a file")
        };
        assert_eq!(both.plain.stamp.size, 5);
        assert_eq!(describe(&tree, "/only.txt"), "/only.txt");
        assert_eq!(describe(&tree, "/folder"), "MissingSlash");
        assert_eq!(describe(&tree, "/folder/"), "/folder/index.html");
    }

    #[test]
    fn dotfiles_are_hidden_except_well_known() {
        let scratch = ScratchFolder::new();
        let tree_of = |hidden| tree(&scratch, |options| options.files.hidden = hidden);
        let hiding = tree_of(false);
        let showing = tree_of(true);
        for (path, hidden) in [
            ("/a.txt", false),
            ("/.git/config", true),
            ("/a/.env", true),
            ("/.htaccess", true),
            ("/.well-known/acme-challenge/x", false),
            ("/.well-known/.git/config", true),
            ("/a/.well-known/x", true),
            ("/.well-known", true),
            ("/a..b/c.", false),
        ] {
            assert_eq!(hiding.is_hidden(path.as_bytes()), hidden, "{path}");
            assert!(!showing.is_hidden(path.as_bytes()));
        }
    }

    #[test]
    fn outdated_and_unsuitable_precompressed_files_are_ignored() {
        let scratch = ScratchFolder::new();
        let now = SystemTime::now();
        for (file, age_s) in
            [("a.js", 10), ("a.js.br", 10), ("a.js.gz", 5), ("a.js.zst", 12), ("b.png", 10), ("b.png.br", 10)]
        {
            scratch.write(&format!("root/{file}"), file);
            let opened = File::options().write(true).open(scratch.path("root").join(file)).unwrap();
            opened.set_modified(now - Duration::from_secs(age_s)).unwrap();
        }
        let codings = vec![Coding::Brotli, Coding::Zstd, Coding::Gzip];
        let tree = tree(&scratch, |options| options.files.precompressed = codings);
        assert_eq!(describe(&tree, "/a.js"), "/a.js br gzip");
        assert_eq!(describe(&tree, "/b.png"), "/b.png");
        assert_eq!(describe(&tree, "/a.js.br"), "/a.js.br");
    }

    #[test]
    fn small_files_are_loaded_and_large_ones_kept_open() {
        let scratch = ScratchFolder::new();
        scratch.write("root/small", vec![b's'; 100]);
        scratch.write("root/large", vec![b'l'; 101]);
        let tree = tree(&scratch, |options| options.cache.file_bytes_max = 100);
        let content = |path: &[u8]| match tree.find(path, BlockingMode::Blocking) {
            Ok(FoundEntry::File(loaded)) => loaded.plain.content,
            _ => panic!("a file"),
        };
        assert!(matches!(content(b"/small"), Content::Memory(bytes) if *bytes == [b's'; 100]));
        assert!(matches!(content(b"/large"), Content::File(_)));
    }
}
