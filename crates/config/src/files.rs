//! The `files` action: which folders are served, and how.

use crate::compress::Compress;
use http::Coding;
use http::{Template, TemplatePart, Variable};
use serde_json::json;
use settings::checker::{Checker, DefinedVariables, InvalidValue, format_list};
use settings::directive_table::table;
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{
    Count, Flag, List, Map, Maybe, OneOrMore, PathShape, Shape, ShapeKind, Text, Toggle, Word,
};
use shapes::header;
use shapes::media::{CODINGS, every_coding, parse_type_pattern};
use shapes::pattern::PathPattern;
use shapes::prefix::{StripPrefix, parse_rooted_path, parse_strip_prefix};
use shapes::template::parse_template;
use std::path::PathBuf;

/// Handling of symbolic links that lead out of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// Refused.
    Off,
    /// Followed if the link and its target have the same owner.
    OwnerMatch,
    /// Followed.
    On,
}

/// The files to which a rule of `cache_control` applies.
#[derive(Debug, Clone, PartialEq)]
pub enum FileMatch {
    /// Every file.
    All,
    /// Files by their path below the root, which starts with `/`.
    Path(PathPattern),
    /// Files by media type, in lower case: `image/png`, or `image/` for `image/*`.
    Type(String),
}

const NAME: Text<String> = Text { what: "a file name", parse: parse_file_name };
const TRIAL: Text<Template> = Text { what: "a path such as \"$path.html\"", parse: parse_try_file };
const CHARSET: Text<String> = Text { what: "a character set such as \"utf-8\"", parse: parse_charset };

directives! {
    /// Serves files to GET and HEAD requests. A folder, or a list of folders, stands for `root`.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/assets/*"
    /// files = { root = "public", cache_control = "max-age=3600", precompressed = true }
    /// ```
    Files in "`files`" {
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
        /// Whether a folder without index is listed: as a page, or as JSON for clients that prefer it.
        "listing" listing: bool = false, Flag;
        /// Whether files and folders with a leading dot are served. `/.well-known/` always is.
        "hidden" hidden: bool = false, Flag;
        /// Symbolic links that lead out of the root. `"off"` refuses them, and every absolute link.
        /// `"owner-match"` follows a link whose target has the same owner as the link. `"on"` follows all.
        /// Links that stay below the root are always followed.
        "symlinks" symlinks: Symlinks = "off",
            Word(&[("off", Symlinks::Off), ("owner-match", Symlinks::OwnerMatch), ("on", Symlinks::On)]);
        /// The `Cache-Control` field: one for all files, or a table of rules of which the first that matches applies. A
        /// rule's key is a media type (`"text/html"`, `"image/*"`) or a path pattern (`"*.css"`, `"/fonts/*"`) for the
        /// file's path below the root.
        "cache_control" cache_control: Vec<(FileMatch, String)> = absent("no `Cache-Control` field"),
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

fn extension(text: &str) -> Result<String, InvalidValue> {
    match text.strip_prefix('.') {
        Some(rest) => {
            Err(InvalidValue::new("an extension is written without its dot", format!("write `{rest}`")))
        }
        None if text.is_empty() || text.contains(['/', '\0', '.']) => Err(InvalidValue::new(
            "this is no extension",
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

fn parse_file_match(text: &str) -> Result<FileMatchKey, InvalidValue> {
    let pattern = if text.starts_with(['/', '*']) {
        FileMatch::Path(PathPattern::parse(text)?)
    } else {
        let wrong = |_| {
            InvalidValue::new(
                "neither a path pattern nor a media type",
                "write \"*.css\", \"/fonts/*\" or \"image/*\"",
            )
        };
        FileMatch::Type(parse_type_pattern(text).map_err(wrong)?)
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
    const VALUE: Text<String> = Text { what: "a value such as \"max-age=3600\"", parse: parse_cache_control };
    const RULES: Map<FileMatchKey, Text<String>> =
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
    type Out = Vec<(FileMatch, String)>;

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
            NodeData::Text(_) => Some(vec![(FileMatch::All, Self::VALUE.read(node, check)?)]),
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
