//! The state of reading a configuration: the current directive, and the findings so far.

use crate::joined_text::ConfigLine;
use crate::node::{Entry as NodeEntry, Node, NodeData};
use crate::report::{Finding, Report, Severity, TextSpan};
use failure::Failure;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a text is not a valid value, and the remedy. Displays as both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    /// The faulty part of the text, in bytes; the whole text if absent.
    pub span: Option<Range<usize>>,
    /// Description of the fault.
    pub message: String,
    /// Suggested correction; empty if the message suffices.
    pub remedy: String,
}

impl InvalidValue {
    /// A fault of the whole text.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { span: None, message: message.into(), remedy: remedy.into() }
    }

    /// The same fault, of a part of the text.
    #[must_use]
    pub fn within(mut self, at: Range<usize>) -> Self {
        self.span = Some(at);
        self
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remedy.as_str() {
            "" => out.write_str(&self.message),
            remedy => write!(out, "{}; {remedy}", self.message),
        }
    }
}

impl std::error::Error for InvalidValue {}

impl From<InvalidValue> for Failure {
    fn from(fault: InvalidValue) -> Failure {
        Failure::new(fault)
    }
}

/// Part of a file that is read in several places: its keys and values, and its uses.
pub struct SnippetSpans {
    /// Name of the snippet: `NAME` in `[snippet.NAME]`.
    pub name: String,
    /// Places of the keys and values in the snippet.
    pub spans: Vec<TextSpan>,
    /// Places of the snippet's name in the `use` directives of sites and routes.
    pub uses: Vec<TextSpan>,
}

/// The variables that a configuration defines.
#[derive(Default)]
pub struct DefinedVariables {
    /// The names of all maps.
    pub maps: Vec<String>,
    /// Whether there is `[geo]`, so that `$country` is known.
    pub has_geo: bool,
    /// The groups of the regular expressions in the path of the route that is read.
    pub captures: Vec<String>,
}

impl DefinedVariables {
    /// Returns the names of all variables: first the captures, then the maps.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.captures.iter().chain(&self.maps).map(String::as_str)
    }
}

/// A key that its table does not define.
pub struct UnknownKey {
    /// Name of the table's type.
    pub table: &'static str,
    /// Notation of the table in the file.
    pub place: &'static str,
    /// Names of the table's directives.
    pub names: Vec<&'static str>,
}

/// Texts that depend on the directives: remedies for faults.
pub struct Advice {
    /// Returns an example of a table, which is shown if the value has another type.
    pub table_example: fn(table: &str) -> Option<&'static str>,
    /// Returns the remedy for a file in the syntax of another server.
    pub syntax_hint: fn(text: &str) -> Option<&'static str>,
    /// Reports a key that its table does not define.
    pub report_unknown_key: fn(&UnknownKey, &NodeEntry, &mut Checker<'_>),
}

impl Advice {
    /// No advice, for texts whose faults are reported when the whole configuration is read.
    pub(crate) const NONE: Advice = Advice {
        table_example: |_| None,
        syntax_hint: |_| None,
        report_unknown_key: |unknown, entry, check| {
            let title = format!("unknown key `{}` in {}", shorten(&entry.key), unknown.place);
            check.error(&entry.key_span, title, "no such key here");
        },
    };
}

/// State shared by all readers of values: the text, the current directive and the findings.
pub struct Checker<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    base_folder: &'a Path,
    directive_path: Vec<&'static str>,
    seen_names: HashMap<(&'static str, String), TextSpan>,
    /// The table of each key of the configuration, for keys that are written in the wrong table.
    pub tables_of_keys: Vec<(&'static str, &'static str)>,
    /// Groups of upstream servers that have been read, by name; `None` for one with faults.
    pub upstream_groups: BTreeMap<String, Option<Node>>,
    /// Offsets of keys that their table does not define.
    pub(crate) unknown_keys: HashSet<usize>,
    /// Snippets of the file and the places of their uses.
    pub snippets: Vec<SnippetSpans>,
    /// The variables that the file defines.
    pub defined_variables: DefinedVariables,
    /// Offsets of strings that contain environment variables.
    expanded: HashSet<usize>,
    /// Offsets of strings whose environment variables are not set.
    unresolved: HashSet<usize>,
    /// Findings so far, and the paths, users and groups that the configuration names.
    pub report: Report,
    /// Texts that depend on the directives.
    pub advice: &'static Advice,
}

impl<'a> Checker<'a> {
    /// Relative paths in `text` are relative to `base`.
    #[must_use]
    pub fn new(text: &'a str, name: &str, base: &'a Path) -> Self {
        let line_starts = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Self {
            text,
            line_starts: line_starts.collect(),
            base_folder: base,
            directive_path: Vec::new(),
            seen_names: HashMap::new(),
            tables_of_keys: Vec::new(),
            upstream_groups: BTreeMap::new(),
            unknown_keys: HashSet::new(),
            snippets: Vec::new(),
            defined_variables: DefinedVariables::default(),
            expanded: HashSet::new(),
            unresolved: HashSet::new(),
            report: Report::new(name, text),
            advice: &Advice::NONE,
        }
    }

    /// The folder that relative paths are relative to.
    #[must_use]
    pub fn base_folder(&self) -> &Path {
        self.base_folder
    }

    /// Reads the value of `key`; errors then contain the key.
    pub fn within_directive<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Self) -> T) -> T {
        self.directive_path.push(key);
        let out = read(self);
        self.directive_path.pop();
        out
    }

    /// The directive being read, such as `site.route.path`.
    #[must_use]
    pub fn directive_path_text(&self) -> String {
        self.directive_path.join(".")
    }

    /// Adds an error at `at` and returns it, so that the caller can add details. `label` is the text at the caret.
    pub fn error(&mut self, at: &TextSpan, title: String, label: impl Into<String>) -> &mut Finding {
        self.add_finding(Severity::Error, at, title, label.into())
    }

    /// Adds a warning at `at` and returns it, so that the caller can add details. `label` is the text at the caret.
    pub fn warning(&mut self, at: &TextSpan, title: String, label: impl Into<String>) -> &mut Finding {
        self.add_finding(Severity::Warning, at, title, label.into())
    }

    fn add_finding(
        &mut self,
        severity: Severity,
        at: &TextSpan,
        title: String,
        label: String,
    ) -> &mut Finding {
        self.report.push(Finding {
            severity,
            title,
            span: at.clone(),
            label,
            related: Vec::new(),
            help: Vec::new(),
        })
    }

    /// Reports that the directive being read does not accept the value at `at`.
    pub fn report_invalid(&mut self, at: &TextSpan, label: impl Into<String>) -> &mut Finding {
        let title = format!("invalid value for `{}`", self.directive_path_text());
        self.error(at, title, label)
    }

    /// The value has the wrong type.
    pub fn report_type_mismatch(&mut self, node: &Node, expected: &str) -> &mut Finding {
        let label = format!("this is {}", node.type_name());
        self.report_invalid(&node.span, label).help(format!("expected {expected}"))
    }

    /// Environment variables are a part of this string.
    pub(crate) fn mark_expanded(&mut self, at: &TextSpan) {
        self.expanded.insert(at.start);
    }

    /// The environment lacks a variable that is a part of this string.
    pub(crate) fn mark_unresolved(&mut self, at: &TextSpan) {
        self.unresolved.insert(at.start);
    }

    /// Whether a table has unknown keys that were reported. A missing key may be one of them, misspelled.
    #[must_use]
    pub fn has_unknown_keys(&self, node: &Node) -> bool {
        match &node.data {
            NodeData::Table(entries) => {
                entries.iter().any(|entry| self.unknown_keys.contains(&entry.key_span.start))
            }
            _ => false,
        }
    }

    /// The text of a string that environment variables are a part of: they hold numbers and flags as texts.
    pub(crate) fn expanded_text<'n>(&self, node: &'n Node) -> Option<&'n str> {
        match &node.data {
            NodeData::Text(text) if self.expanded.contains(&node.span.start) => Some(text),
            _ => None,
        }
    }

    /// Adds a remedy to the last finding if the value is a flag in quotes, or in the notation of another
    /// server.
    pub(crate) fn add_flag_help(&mut self, node: &Node) {
        let flag = match &node.data {
            NodeData::Text(text) if matches!(text.as_str(), "on" | "yes" | "true") => "true",
            NodeData::Text(text) if matches!(text.as_str(), "off" | "no" | "false") => "false",
            _ => return,
        };
        self.report.last_finding().help(format!("write `{flag}`, without quotes"));
    }

    /// Reports the fault of the text at `at`. The caret marks the faulty part if the file contains the text unescaped.
    pub fn report_fault(&mut self, at: &TextSpan, text: &str, fault: InvalidValue) {
        // The unresolved variable has been reported already.
        if self.unresolved.contains(&at.start) {
            return;
        }
        let raw = self.text.get(at.clone()).unwrap_or("");
        let at = match (fault.span, raw.find(text)) {
            (Some(part), Some(offset)) => at.start + offset + part.start..at.start + offset + part.end,
            _ => at.clone(),
        };
        let finding = self.report_invalid(&at, fault.message);
        if !fault.remedy.is_empty() {
            finding.help(fault.remedy);
        }
        if let Some(name) = shell_variable(text) {
            finding.help(format!("a variable of the environment is written `${{{name}}}`"));
        }
    }

    /// Reports a `name` of this `kind` that was given before; the name is empty if there can be only one of the kind.
    pub fn check_unique(&mut self, kind: &'static str, name: String, at: &TextSpan) {
        let title = match name.as_str() {
            "" => format!("duplicate {kind}"),
            name => format!("duplicate {kind} `{}`", shorten(name)),
        };
        match self.seen_names.entry((kind, name)) {
            Entry::Vacant(vacant) => {
                vacant.insert(at.clone());
            }
            Entry::Occupied(first) => {
                let first = first.get().clone();
                self.error(at, title, "given again here").related(first, "first given here");
            }
        }
    }

    /// The path that `text` names: relative to the configuration file's folder, if it is relative.
    #[must_use]
    pub fn resolve_path(&self, text: &str) -> PathBuf {
        self.base_folder.join(text)
    }

    /// The line of a place.
    #[must_use]
    pub fn line_of(&self, at: &TextSpan) -> ConfigLine {
        let line = |at: usize| self.line_starts.partition_point(|&start| start <= at);
        let file = self.report.sources().file_at(at.start);
        let number = (line(at.start) - line(file.start) + 1).try_into().unwrap_or(u32::MAX);
        ConfigLine { file: (file.start > 0).then(|| file.name.clone()), number }
    }
}

/// A variable of the environment as shells write it, `$PORT`, if a text has one.
fn shell_variable(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.split('$').skip(1).find_map(|rest| {
        let name = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        (name.len() > 1 && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
    })
}

/// Texts as a list in a configuration file.
pub fn format_list<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let quoted: Vec<String> = texts.map(|text| format!("\"{text}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Text short enough for an error's title.
#[must_use]
pub fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
