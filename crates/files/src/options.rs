//! The options of a file handler.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coding::Effort;
use http::{Coding, Fields, Template, TemplatePart, Variable};
use net::DictionaryTransport;
use net::compress::EFFORTS;
use serde_json::json;
use settings::checker::{Checker, DefinedVariables, InvalidValue, format_list};
use settings::directive_table::table;
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{
    Count, Flag, List, Map, Maybe, OneOrMore, PathShape, Shape, ShapeKind, Size, Text, Toggle, Word,
};
use settings::units::{GIB, MIB};
use shapes::header;
use shapes::media::{CODINGS, TYPE, every_coding, parse_type_pattern};
use shapes::pattern::PathPattern;
use shapes::prefix::{StripPrefix, parse_rooted_path, parse_strip_prefix};
use shapes::template::parse_template;
use times::Millis;

use crate::media;

/// Options of a file handler: the directives of a route and what surrounds them. Created once, and cloned for each core.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directives of the route.
    pub files: FileOptions,
    /// Whether the scripts among the files are executed by another server. If so, files named like a script
    /// or like a copy of one are never sent. Default false.
    pub scripts: bool,
    /// Maximum number of entries in a listing; the page states whether there are more. Default 10,000.
    pub listing_entries_max: usize,
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

/// Files to which a rule of `cache_control` applies.
#[derive(Clone, Debug, PartialEq)]
pub enum FileSelector {
    /// Every file.
    All,
    /// Files by their path below the root, which starts with `/`; the path of an index is that of the index file.
    Path(PathPattern),
    /// Files of a media type in lower case (`image/png`), or of all its subtypes (`image/`).
    Media(String),
}

impl FileSelector {
    /// Whether the rule applies to the file at this path, of this media type.
    #[must_use]
    pub fn selects(&self, path: &[u8], media: &str) -> bool {
        match self {
            FileSelector::All => true,
            FileSelector::Path(pattern) => pattern.matches(path),
            FileSelector::Media(wanted) => http::media::matches(media, wanted),
        }
    }
}

directives! {
    /// Compression while sending, in threads separate from those that serve requests.
    Compress in "`compress`", check compress_agrees {
        /// Codings in the order of preference, for clients that accept several equally.
        "codings" codings: Vec<Coding> = ["zstd", "br", "gzip"], OneOrMore(Word(CODINGS));
        /// Smaller files are sent as they are.
        "min" min_bytes: u64 = "1KiB", Size { min: 0, max: GIB };
        /// Larger files are sent as they are.
        "max" max_bytes: u64 = "8MiB", Size { min: 0, max: 64 * MIB };
        /// Compression effort: `"fast"`, `"balanced"` or `"small"`.
        "level" effort: Effort = "balanced",
            EFFORTS;
        /// Media types that are compressed.
        "types" types: Vec<String> = [
            "text/*", "application/javascript", "application/json", "application/xml", "application/manifest+json",
            "application/rss+xml", "application/atom+xml", "application/wasm", "image/svg+xml"
        ], List(TYPE);
    }
}

fn compress_agrees(compress: &mut Compress, node: &Node, check: &mut Checker) {
    if compress.min_bytes <= compress.max_bytes {
        return;
    }
    let at =
        ["min", "max"].iter().find_map(|key| node.entry(key)).map_or(&node.span, |entry| &entry.value.span);
    check.error(
        at,
        format!("`min` is above `max` in `{}`", check.directive_path_text()),
        "no size is between them",
    );
}

const NAME: Text<String> = Text { what: "a file name", parse: parse_file_name };
const TRIAL: Text<Template> = Text { what: "a path such as \"$path.html\"", parse: parse_try_file };
const CHARSET: Text<String> = Text { what: "a character set such as \"utf-8\"", parse: parse_charset };

directives! {
    /// Serves files to GET and HEAD requests. A folder, or a list of folders, is shorthand for `root`.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/assets/*"
    /// files = { root = "public", cache_control = "max-age=3600", precompressed = true }
    /// ```
    FileOptions named "Files" in "`files`" {
        /// The folder; or several, which are searched in order. Relative to the configuration file's folder. The whole
        /// path of the request is searched below it: `/assets/a.css` is `public/assets/a.css`, unless `strip_prefix` is
        /// set.
        "root" root: Vec<PathBuf> = required(""), OneOrMore(PathShape("a folder"));
        /// Names of files that answer for a folder; the first that exists is used.
        "index" index: Vec<String> = ["index.html"], List(NAME);
        /// Paths to search; the first that exists is used, in each root in order. `$path` is the request's path without
        /// `strip_prefix`.
        "try" candidates: Vec<Template> = ["$path"], OneOrMore(TRIAL);
        /// The file for paths without a file, sent with status 200: the page of a single-page application.
        "fallback" fallback: Option<String> = absent("404 Not Found"),
            Maybe(Text { what: "a path such as \"/index.html\"", parse: fallback });
        /// Whether `fallback` also answers for folders without an index page. If not, they are 404 Not Found.
        "fallback_folders" falls_back_for_folders: bool = true, Flag;
        /// Whether a folder without index is listed: as a page, or as JSON for clients that prefer it.
        "listing" listing: bool = false, Flag;
        /// Whether files and folders with a leading dot are served. `/.well-known/` always is.
        "hidden" hidden: bool = false, Flag;
        /// Symbolic links that lead out of the root. `"off"` refuses them, and every absolute link.
        /// `"owner-match"` follows a link whose target has the same owner as the link. `"on"` follows all.
        /// Links that stay below the root are always followed.
        "symlinks" symlinks: Symlinks = "off",
            Word(&[("off", Symlinks::Inside), ("owner-match", Symlinks::OwnerMatch), ("on", Symlinks::Follow)]);
        /// The `Cache-Control` field: one for all files, or a table of rules of which the first that matches applies. A
        /// rule's key is a media type (`"text/html"`, `"image/*"`) or a path pattern (`"*.css"`, `"/fonts/*"`) for the
        /// file's path below the root.
        "cache_control" cache_control: Vec<(FileSelector, String)> = absent("no `Cache-Control` field"),
            CacheControl;
        /// Precompressed files to send to clients that accept them: `app.js.br`, `app.js.zst`, `app.js.gz` for
        /// `app.js`, in this order of preference for clients that accept several equally. `true` is `["br", "zst",
        /// "gz"]`.
        "precompressed" precompressed: Vec<Coding> = false,
            Toggle { on: Some(every_coding), off: Vec::new, shape: List(Word(CODINGS)) };
        /// Compression of files that have no precompressed file, while they are sent. `true` is `{}`: all defaults.
        "compress" compress: Option<Compress> = false,
            Toggle { on: Some(|| Some(Compress::default())), off: || None, shape: Maybe(table::<Compress>()) };
        /// The prefix to remove from the path before the file is searched: `true` removes what the route's `path` has
        /// before its final `/*`, a text removes that text.
        "strip_prefix" strip_prefix: StripPrefix = false,
            Toggle {
                on: Some(|| StripPrefix::OfRoute),
                off: || StripPrefix::None,
                shape: Text { what: "the start of a path, such as \"/assets\"", parse: parse_strip_prefix },
            };
        /// Ranges that one request may ask for; a request with more gets the whole file. 0 turns ranges off.
        "ranges" ranges_max: u32 = 16, Count { min: 0, max: 1000 };
        /// Media types by file name extension; they take precedence over the built-in ones: `{ foo =
        /// "text/x-foo" }`. `"*"` is for files of unknown type, in place of `application/octet-stream`.
        "types" types: Vec<(String, String)> = {},
            Map { what: "extensions of names of files", key: extension, value: Text { what: "a media type such as \"text/plain\"", parse: plain_type } };
        /// The character set in the `Content-Type` of text; `false` for none.
        "charset" charset: Option<String> = "utf-8", Toggle { on: None, off: || None, shape: Maybe(CHARSET) };
    }
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
            let found =
                self.files.types.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(wanted));
            found.map(|(_, media)| media.as_str())
        };
        if self.files.types.is_empty() {
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
            files: FileOptions::default(),
            scripts: false,
            listing_entries_max: 10_000,
            fields: Fields::new(),
            cache: CacheLimits::default(),
            dictionaries: None,
            root_report: None,
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

impl std::fmt::Debug for RootReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RootReport(..)")
    }
}

fn extension(text: &str) -> Result<String, InvalidValue> {
    match text.strip_prefix('.') {
        Some(rest) => {
            Err(InvalidValue::new("an extension is written without its dot", format!("write `{rest}`")))
        }
        None if text.is_empty() || text.contains(['/', '\0', '.']) => Err(InvalidValue::new(
            "this is not an extension",
            "write what follows the last dot of a name, or \"*\"",
        )),
        None => Ok(text.to_ascii_lowercase()),
    }
}

fn plain_type(text: &str) -> Result<String, InvalidValue> {
    if text.contains(';') {
        Err(InvalidValue::new("a media type has no parameters here", "`charset` says the character set"))
    } else {
        header::parse_media_type(text).map(|media| media.to_ascii_lowercase())
    }
}

fn parse_file_name(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" | "." | ".." => {
            Err(InvalidValue::new("this is not a file name", "write a name such as \"index.html\""))
        }
        _ if text.contains(['/', '\0']) => {
            Err(InvalidValue::new("this is a path, not a name", "remove the slashes"))
        }
        _ => Ok(text.to_owned()),
    }
}

/// Rejects the status (`=404`) with which fallbacks of nginx may end.
fn reject_status(text: &str) -> Result<(), InvalidValue> {
    let remedy = "leave it out: 404 is answered where no file is found";
    if text.starts_with('=') { Err(InvalidValue::new("this is not a path", remedy)) } else { Ok(()) }
}

fn fallback(text: &str) -> Result<String, InvalidValue> {
    reject_status(text)?;
    parse_rooted_path(text)
}

fn parse_try_file(text: &str) -> Result<Template, InvalidValue> {
    reject_status(text)?;
    if text.contains(" /") || text.contains(" $") {
        let remedy = format!("write a list: `{}`", format_list(text.split_whitespace()));
        return Err(InvalidValue::new("several paths in one text", remedy));
    }
    let template = parse_template(text, &["path"], &DefinedVariables::default())?;
    if template.parts().first() != Some(&TemplatePart::Variable(Variable::Path)) {
        parse_rooted_path(template.literal_prefix())?;
    }
    Ok(template)
}

fn parse_charset(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "write `false` for none")),
        _ if text.chars().all(header::is_token_char) => Ok(text.to_owned()),
        _ => Err(InvalidValue::new("this is not a character set", "write a name such as \"utf-8\"")),
    }
}

fn parse_file_match(text: &str) -> Result<FileSelectorKey, InvalidValue> {
    let pattern = if text.starts_with(['/', '*']) {
        FileSelector::Path(PathPattern::parse(text)?)
    } else {
        let wrong = |_| {
            InvalidValue::new(
                "neither a path pattern nor a media type",
                "write \"*.css\", \"/fonts/*\" or \"image/*\"",
            )
        };
        FileSelector::Media(parse_type_pattern(text).map_err(wrong)?)
    };
    Ok(FileSelectorKey { text: text.to_owned(), pattern })
}

/// A rule's key; two are the same if their texts are.
#[derive(Clone)]
struct FileSelectorKey {
    text: String,
    pattern: FileSelector,
}

impl PartialEq for FileSelectorKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for FileSelectorKey {}

impl std::hash::Hash for FileSelectorKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// One value for all files, or a table of rules.
struct CacheControl;

impl CacheControl {
    const VALUE: Text<String> = Text { what: "a value such as \"max-age=3600\"", parse: parse_cache_control };
    const RULES: Map<FileSelectorKey, Text<String>> =
        Map { what: "path patterns or media types", key: parse_file_match, value: Self::VALUE };
}

/// Parses a value of `Cache-Control`; rejects a time alone, which other servers call `expires`.
fn parse_cache_control(text: &str) -> Result<String, InvalidValue> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit_s = match text.get(digits..).unwrap_or_default().trim_start() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        "y" => 31_536_000,
        _ => return header::parse_value(text),
    };
    let Ok(count) = text.get(..digits).unwrap_or_default().parse::<u64>() else {
        return header::parse_value(text);
    };
    let remedy = format!("write \"max-age={}\"", count.saturating_mul(unit_s));
    Err(InvalidValue::new("this is a time, not a value of Cache-Control", remedy))
}

impl Shape for CacheControl {
    type Out = Vec<(FileSelector, String)>;

    fn kind(&self) -> ShapeKind {
        let value = Self::VALUE.kind();
        let rules = Self::RULES.kind();
        ShapeKind::new(
            format!("{}, or {}", value.text, rules.text),
            json!({ "anyOf": [value.schema, rules.schema] }),
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        match &node.data {
            NodeData::Text(_) => Some(vec![(FileSelector::All, Self::VALUE.read(node, check)?)]),
            NodeData::Table(_) => {
                let rules = Self::RULES.read(node, check)?;
                Some(rules.into_iter().map(|(key, value)| (key.pattern, value)).collect())
            }
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                None
            }
        }
    }
}
