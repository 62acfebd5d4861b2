//! The options of a file handler.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coding::Effort;
use http::{Coding, Fields, Template};
use net::DictionaryTransport;
use times::Millis;

use crate::media;

/// Options for finding and serving files. Created once, and cloned for each core.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders that are searched for a file, in this order. At least one.
    pub roots: Vec<PathBuf>,
    /// Names of index files; the first existing one is served for a folder. Default `index.html`.
    pub index: Vec<String>,
    /// Paths to try; the first that exists in any root is served. `$path`, the only variable, is the
    /// request's decoded path; a candidate without it is a fixed file. Default `$path` alone.
    pub candidates: Vec<Template>,
    /// File for GET and HEAD if no candidate exists, sent with status 200 (single-page applications). Default
    /// none.
    pub fallback: Option<String>,
    /// Whether the scripts among the files are executed by another server. If so, files named like a script
    /// or like a copy of one are never sent. Default false.
    pub scripts: bool,
    /// Whether to list folders without an index. Default false.
    pub listing: bool,
    /// Maximum number of entries in a listing; the page states whether there are more. Default 10,000.
    pub listing_entries_max: usize,
    /// Whether to serve names that begin with a dot; `/.well-known/` always is served. Default false.
    pub hidden: bool,
    /// Policy for symbolic links that lead out of the root. Default [`Symlinks::Inside`].
    pub symlinks: Symlinks,
    /// Rules for `Cache-Control`; the first matching one is used. Default none.
    pub cache_control: Vec<CacheRule>,
    /// Codings of siblings (`a.js.br`) that are sent in place of a file. Of codings with equal weight in the request,
    /// the first one here is used. A sibling whose modification time is a second or more older than the file's is stale
    /// and not used. Default none.
    pub precompressed: Vec<Coding>,
    /// Compression of files that have no such sibling. Default none.
    pub compression: Option<FileCompression>,
    /// Character set announced for text, as in `utf-8`. Default `utf-8`.
    pub charset: Option<String>,
    /// Media types by lower-case extension, which take precedence over the built-in ones; `*` is for unknown
    /// extensions. Default none.
    pub types: Vec<(String, String)>,
    /// Maximum number of ranges in one request; a request with more gets the whole file. 0 turns ranges off. Default
    /// 16.
    pub ranges_max: usize,
    /// Fields that are added to every file and listing. Default none.
    pub fields: Fields,
    /// Limits of the cache.
    pub cache: CacheLimits,
    /// Compression with dictionaries that clients hold. Default none.
    pub dictionaries: Option<DictionaryTransport>,
    /// Called when a root's path begins to name another folder, or none. Default none.
    pub root_report: Option<RootReport>,
}

/// Callback for changes of a root; called on the core that noticed the change.
#[derive(Clone)]
pub struct RootReport(pub Arc<RootReportFn>);

/// Function that receives a root's path and its state.
pub type RootReportFn = dyn Fn(&Path, RootState) + Send + Sync;

/// State of a root's path, or a problem below it.
#[derive(Debug)]
pub enum RootState {
    /// Another folder than before, identified by its device and inode number.
    Replaced(Option<(u64, u64)>),
    /// The path names no folder: nothing is served from it until it does again.
    Missing(io::Error),
    /// The state could not be determined: the open folder is served as before.
    Unknown(io::Error),
    /// The folder is unchanged, but this process lacks permission to read the file at this request path.
    PermissionDenied(Vec<u8>),
}

/// Policy for symbolic links. Links that stay below the root are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Links that lead out of the root are refused; an absolute link always counts as one that does.
    Inside,
    /// Links that lead out of the root are followed if the link and its final target have the same owner.
    OwnerMatch,
    /// All links are followed.
    Follow,
}

/// A rule for `Cache-Control`.
#[derive(Clone, Debug)]
pub struct CacheRule {
    /// Files to which the rule applies.
    pub files: FileSelector,
    /// Value of the field.
    pub value: String,
}

/// Test of whether a rule applies to the file at a path.
pub type PathTest = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Selection of the files to which a rule applies.
#[derive(Clone)]
pub enum FileSelector {
    /// Every file.
    All,
    /// Files whose path below the root passes a test; the path of an index is that of the index file.
    Path(PathTest),
    /// Files of a media type in lower case (`image/png`), or of all its subtypes (`image/`).
    Media(String),
}

/// Compression while serving. Done once per file and coding, off the event loop; the result is cached with
/// the file. Until it is done, other requests get the uncompressed file.
#[derive(Clone, Debug)]
pub struct FileCompression {
    /// Codings in order of preference, which applies among those with equal weight in the request. Default
    /// zstd, brotli, gzip.
    pub codings: Vec<Coding>,
    /// Minimum size of compressed files. Default 1 KiB.
    pub bytes_min: u64,
    /// Maximum size of compressed files. Default 8 MiB.
    pub bytes_max: u64,
    /// Compression effort. Default [`Effort::Balanced`].
    pub effort: Effort,
    /// Media types to compress, as in [`FileSelector::Media`].
    pub media: Vec<String>,
}

/// Limits of the cache of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of files; each large one holds a descriptor. 0 turns the cache off. Default 1024.
    pub entries_max: usize,
    /// Maximum bytes of contents in memory. Default 32 MiB.
    pub bytes_max: u64,
    /// Files up to this size are kept in memory, larger ones as open descriptors. Default 32 KiB.
    pub file_bytes_max: u64,
    /// Time for which a file is served without checking whether it has changed, in milliseconds. Default
    /// 1000.
    pub revalidate_after: Millis,
    /// Time for which a file that is not requested is kept, in milliseconds. Default 60,000.
    pub idle_max: Millis,
}

impl Options {
    /// Returns the media type of a file by its path.
    #[must_use]
    pub fn media_type(&self, path: &[u8]) -> &str {
        let own = |wanted: &[u8]| {
            let found = self.types.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(wanted));
            found.map(|(_, media)| media.as_str())
        };
        if self.types.is_empty() {
            return media::media_type(path);
        }
        let listed = media::extension(path).and_then(|extension| own(extension.as_bytes()));
        listed.unwrap_or_else(|| match media::media_type(path) {
            media::UNKNOWN => own(b"*").unwrap_or(media::UNKNOWN),
            known => known,
        })
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            roots: Vec::new(),
            index: vec!["index.html".into()],
            candidates: vec![Template::parse("$path", |_| true).expect("a variable")],
            fallback: None,
            scripts: false,
            listing: false,
            listing_entries_max: 10_000,
            hidden: false,
            symlinks: Symlinks::Inside,
            cache_control: Vec::new(),
            precompressed: Vec::new(),
            compression: None,
            charset: Some("utf-8".into()),
            types: Vec::new(),
            ranges_max: 16,
            fields: Fields::new(),
            cache: CacheLimits::default(),
            dictionaries: None,
            root_report: None,
        }
    }
}

impl Default for FileCompression {
    fn default() -> FileCompression {
        let media = [
            "text/",
            "application/javascript",
            "application/json",
            "application/xml",
            "application/manifest+json",
            "application/rss+xml",
            "application/atom+xml",
            "application/wasm",
            "image/svg+xml",
        ];
        FileCompression {
            codings: vec![Coding::Zstd, Coding::Brotli, Coding::Gzip],
            bytes_min: 1024,
            bytes_max: 8 * 1024 * 1024,
            effort: Effort::default(),
            media: media.map(String::from).into(),
        }
    }
}

impl Default for CacheLimits {
    fn default() -> CacheLimits {
        CacheLimits {
            entries_max: 1024,
            bytes_max: 32 * 1024 * 1024,
            file_bytes_max: 32 * 1024,
            revalidate_after: Millis(1000),
            idle_max: Millis(60_000),
        }
    }
}

impl std::fmt::Debug for FileSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileSelector::All => f.write_str("All"),
            FileSelector::Path(_) => f.write_str("Path(..)"),
            FileSelector::Media(media) => f.debug_tuple("Media").field(media).finish(),
        }
    }
}

impl std::fmt::Debug for RootReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RootReport(..)")
    }
}
