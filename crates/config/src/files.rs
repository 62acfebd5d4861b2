//! The `files` action: what is served from which folders, and how.

use crate::check::{Checker, InvalidValue};
use crate::compress::{CODINGS, Coding, Compress, every_coding, type_pattern};
use crate::header;
use crate::node::{Data, Node};
use crate::pattern::PathPattern;
use crate::record::{directives, table};
use crate::shape::{
    Count, Flag, List, Map, Maybe, OneOrMore, PathShape, Shape, ShapeKind, Text, Toggle, Word,
};
use crate::template::template;
use http::{Template, TemplatePart, Variable};
use serde_json::json;
use std::path::PathBuf;

/// What becomes of symbolic links that lead out of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// Refused.
    Off,
    /// Followed where the link and its target have the same owner.
    OwnerMatch,
    /// Followed.
    On,
}

/// What to take off the path before a file is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StripPrefix {
    /// Nothing.
    None,
    /// What the route's `path` says before its final `/*`.
    OfRoute,
    /// This text, which starts with `/` and does not end with one. Paths that do not start with it are left
    /// alone.
    Text(String),
}

/// Which files a rule of `cache_control` is for.
#[derive(Debug, Clone, PartialEq)]
pub enum FileMatch {
    /// Every file.
    All,
    /// Files by their path below the root, which starts with `/`.
    Path(PathPattern),
    /// Files by media type, in lower case: `image/png`, or `image/` for `image/*`.
    Type(String),
}

const NAME: Text<String> = Text { what: "a file name", parse: file_name };
const TRIAL: Text<Template> = Text { what: "a path such as \"$path.html\"", parse: trial };
const CHARSET: Text<String> = Text { what: "a character set such as \"utf-8\"", parse: charset };

directives! {
    /// Serves files to GET and HEAD requests. Just the folder, or a list of folders, stands for `root` alone.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/assets/*"
    /// files = { root = "public", cache_control = "max-age=3600", precompressed = true }
    /// ```
    Files in "`files`" {
        /// The folder; or several, in which a file is looked for in turn. Relative to the configuration
        /// file's folder. The request's whole path is looked for below it: `/assets/a.css` is
        /// `public/assets/a.css`, unless `strip_prefix` says otherwise.
        "root" root: Vec<PathBuf> = required(""), OneOrMore(PathShape("a folder"));
        /// Names that stand for a folder, the first that exists.
        "index" index: Vec<String> = ["index.html"], List(NAME);
        /// Paths to look for, the first that exists, in each root in turn. `$path` is the request's path,
        /// without what `strip_prefix` takes off.
        "try" candidates: Vec<Template> = ["$path"], OneOrMore(TRIAL);
        /// The file for paths where nothing is found, with status 200: the page of a single-page application.
        "fallback" fallback: Option<String> = absent("404 Not Found"),
            Maybe(Text { what: "a path such as \"/index.html\"", parse: rooted });
        /// Whether a folder without index shows its files: as a page, or as JSON for clients that prefer it.
        "listing" listing: bool = false, Flag;
        /// Whether files and folders whose name starts with a dot are served. `/.well-known/` always is.
        "hidden" hidden: bool = false, Flag;
        /// Symbolic links that lead out of the root: `"off"` refuses them (every absolute link counts as one),
        /// `"owner-match"` follows those whose target has the same owner as the link, `"on"` follows all. Links that
        /// stay below the root are always followed.
        "symlinks" symlinks: Symlinks = "off",
            Word(&[("off", Symlinks::Off), ("owner-match", Symlinks::OwnerMatch), ("on", Symlinks::On)]);
        /// The `Cache-Control` field: one for all files, or a table of rules of which the first that fits counts. A
        /// rule's key is a media type (`"text/html"`, `"image/*"`) or a path pattern (`"*.css"`, `"/fonts/*"`) for the
        /// file's path below the root.
        "cache_control" cache_control: Vec<(FileMatch, String)> = absent("no `Cache-Control` field"),
            CacheControl;
        /// Siblings to send in place of a file to clients that take them: `app.js.br`, `app.js.zst`,
        /// `app.js.gz`, in this order of preference among what the client likes equally. `true` is `["br",
        /// "zst", "gz"]`.
        "precompressed" precompressed: Vec<Coding> = false,
            Toggle { on: Some(every_coding), off: Vec::new, shape: List(Word(CODINGS)) };
        /// Compression while sending, of files that have no precompressed sibling. `true` is `{}`: every
        /// default.
        "compress" compress: Option<Compress> = false,
            Toggle { on: Some(|| Some(Compress::default())), off: || None, shape: Maybe(table::<Compress>()) };
        /// Taken off the start of the path before a file is looked for: `true` takes off what the route's
        /// `path` says before its final `/*`, a text takes off that text.
        "strip_prefix" strip_prefix: StripPrefix = false,
            Toggle {
                on: Some(|| StripPrefix::OfRoute),
                off: || StripPrefix::None,
                shape: Text { what: "the start of a path, such as \"/assets\"", parse: strip_text },
            };
        /// The most ranges that one request may ask for; one that asks for more gets the whole file. 0 turns
        /// ranges off.
        "ranges" ranges_max: u32 = 16, Count { min: 0, max: 1000 };
        /// The character set announced for text; `false` announces none.
        "charset" charset: Option<String> = "utf-8", Toggle { on: None, off: || None, shape: Maybe(CHARSET) };
    }
}

fn file_name(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" | "." | ".." => {
            Err(InvalidValue::new("this is no file name", "write a name such as \"index.html\""))
        }
        _ if text.contains(['/', '\0']) => {
            Err(InvalidValue::new("a name, not a path, belongs here", "leave the slashes out"))
        }
        _ => Ok(text.to_owned()),
    }
}

/// A path below the root.
pub(crate) fn rooted(text: &str) -> Result<String, InvalidValue> {
    if !text.starts_with('/') {
        return Err(InvalidValue::new("a path below the root starts with `/`", format!("write \"/{text}\"")));
    }
    if text.contains('\0') || text.split('/').any(|segment| segment == "..") {
        return Err(InvalidValue::new("a path below the root has no `..` and no NUL", ""));
    }
    Ok(text.to_owned())
}

fn trial(text: &str) -> Result<Template, InvalidValue> {
    let template = template(text, &["path"])?;
    if template.parts().first() != Some(&TemplatePart::Variable(Variable::Path)) {
        rooted(template.start())?;
    }
    Ok(template)
}

pub(crate) fn strip_text(text: &str) -> Result<StripPrefix, InvalidValue> {
    let path = rooted(text)?;
    match path.strip_suffix('/') {
        Some(stripped) => {
            Err(InvalidValue::new("a prefix does not end with `/`", format!("write \"{stripped}\"")))
        }
        None => Ok(StripPrefix::Text(path)),
    }
}

fn charset(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "write `false` to announce none")),
        _ if text.chars().all(header::is_token) => Ok(text.to_owned()),
        _ => Err(InvalidValue::new("this is no character set", "write a name such as \"utf-8\"")),
    }
}

fn file_match(text: &str) -> Result<FileMatchKey, InvalidValue> {
    let pattern = if text.starts_with(['/', '*']) {
        FileMatch::Path(PathPattern::parse(text)?)
    } else {
        let wrong = |_| {
            InvalidValue::new(
                "neither a path pattern nor a media type",
                "write \"*.css\", \"/fonts/*\" or \"image/*\"",
            )
        };
        FileMatch::Type(type_pattern(text).map_err(wrong)?)
    };
    Ok(FileMatchKey { text: text.to_owned(), pattern })
}

/// A rule's key; two are the same if their texts are.
#[derive(Clone)]
struct FileMatchKey {
    text: String,
    pattern: FileMatch,
}

impl PartialEq for FileMatchKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for FileMatchKey {}

impl std::hash::Hash for FileMatchKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// One value for all files, or a table of rules.
struct CacheControl;

impl CacheControl {
    const VALUE: Text<String> = Text { what: "a value such as \"max-age=3600\"", parse: header::value };
    const RULES: Map<FileMatchKey, Text<String>> =
        Map { what: "path patterns or media types", key: file_match, value: Self::VALUE };
}

impl Shape for CacheControl {
    type Out = Vec<(FileMatch, String)>;

    fn kind(&self) -> ShapeKind {
        let (value, rules) = (Self::VALUE.kind(), Self::RULES.kind());
        ShapeKind::new(
            format!("{}, or {}", value.text, rules.text),
            json!({ "anyOf": [value.schema, rules.schema] }),
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        match &node.data {
            Data::Text(_) => Some(vec![(FileMatch::All, Self::VALUE.read(node, check)?)]),
            Data::Table(_) => {
                let rules = Self::RULES.read(node, check)?;
                Some(rules.into_iter().map(|(key, value)| (key.pattern, value)).collect())
            }
            _ => {
                check.mismatch(node, &self.kind().text);
                None
            }
        }
    }
}
