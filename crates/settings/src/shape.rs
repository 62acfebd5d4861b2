//! The shapes of values: each has a description, a JSON Schema and a parser.

use crate::checker::{Checker, InvalidValue, format_list, shorten};
use crate::node::{Node, NodeData};
use crate::report::{NamedAccount, NamedPath};
use crate::spelling::nearest_name;
use crate::units;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::path::PathBuf;
use std::time::Duration;

/// The description of a shape.
pub struct ShapeKind {
    /// Description for people; completes "expected …".
    pub text: String,
    /// Description for editors.
    pub schema: Value,
    /// The tables that the value is, or holds.
    pub chapters: Vec<fn() -> TableReference>,
    /// Short forms of a value that is a table.
    pub short_form: Option<ShortKeys>,
}

/// The directives of a table that a single value in its place stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortKeys {
    /// Directive whose value a string or list is.
    pub(crate) text: &'static str,
    /// Directive whose value a number is.
    pub(crate) number: Option<&'static str>,
}

impl ShortKeys {
    /// Returns the directive whose value this is; `None` for a table, and for values that have no short form.
    #[must_use]
    pub fn key_of(&self, value: &NodeData) -> Option<&'static str> {
        match (value, self.number) {
            (NodeData::Integer(_), Some(number)) => Some(number),
            (NodeData::Text(_) | NodeData::List(_), _) => Some(self.text),
            _ => None,
        }
    }
}

impl ShapeKind {
    /// Creates the description of a shape without tables.
    pub fn new(text: impl Into<String>, schema: Value) -> Self {
        Self { text: text.into(), schema, chapters: Vec::new(), short_form: None }
    }

    /// The same tables with another description.
    fn with_description(self, text: String, schema: Value) -> Self {
        Self { text, schema, short_form: None, ..self }
    }
}

/// The description of a table and its directives.
pub struct TableReference {
    /// Key in the schema's `$defs`.
    pub name: &'static str,
    /// Notation in the file, such as `[limits]`.
    pub place: &'static str,
    /// Documentation comment of the table.
    pub about: &'static str,
    /// The directives of the table, in the order of their declaration.
    pub directives: Vec<DirectiveReference>,
}

/// The description of a directive.
pub struct DirectiveReference {
    /// Key of the directive in the file.
    pub name: &'static str,
    /// Documentation comment of the directive.
    pub doc: &'static str,
    /// The default as TOML, or `absent`, or `required`.
    pub(crate) default: &'static str,
    /// Meaning of an absent directive.
    pub(crate) absent: &'static str,
    /// Description of the accepted values.
    pub kind: ShapeKind,
}

/// A kind of value and its range.
pub trait Shape {
    /// Type of the parsed value.
    type Out;
    /// Returns the description of the shape.
    fn kind(&self) -> ShapeKind;
    /// Reads a value; one that does not fit is reported, and is `None`.
    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out>;
}

/// `true` or `false`.
pub struct Flag;

impl Shape for Flag {
    type Out = bool;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new("`true` or `false`", json!({ "type": "boolean" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<bool> {
        if let Some(flag) = check.expanded_text(node).and_then(|text| text.parse().ok()) {
            return Some(flag);
        }
        let NodeData::Flag(flag) = node.data else {
            check.report_type_mismatch(node, "`true` or `false`");
            check.add_flag_help(node);
            return None;
        };
        Some(flag)
    }
}

/// A whole number from `min` to `max`.
pub struct Count<N> {
    /// Smallest accepted number.
    pub min: N,
    /// Largest accepted number.
    pub max: N,
}

impl<N: Copy + Display + Into<i64> + TryFrom<i64>> Shape for Count<N> {
    type Out = N;

    fn kind(&self) -> ShapeKind {
        let min = self.min.into();
        let max = self.max.into();
        let schema = json!({ "type": "integer", "minimum": min, "maximum": max });
        ShapeKind::new(format!("a number from {min} to {max}"), schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<N> {
        let expanded = check.expanded_text(node).and_then(|text| text.parse().ok());
        let number = match (expanded, &node.data) {
            (Some(number), _) | (None, &NodeData::Integer(number)) => number,
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                return None;
            }
        };
        let range = self.min.into()..=self.max.into();
        if !range.contains(&number) {
            let label = if number < self.min.into() { "too small" } else { "too large" };
            check.report_invalid(&node.span, label).help(format!("expected {}", self.kind().text));
            return None;
        }
        N::try_from(number).ok()
    }
}

/// One of a few numbers.
pub struct Numbers(pub &'static [u16]);

impl Shape for Numbers {
    type Out = u16;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(
            join_alternatives(self.0.iter().map(|number| format!("`{number}`"))),
            json!({ "enum": self.0 }),
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<u16> {
        let NodeData::Integer(number) = node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        let found = self.0.iter().copied().find(|&known| i64::from(known) == number);
        if found.is_none() {
            check
                .report_invalid(&node.span, "not one of these")
                .help(format!("expected {}", self.kind().text));
        }
        found
    }
}

/// Bytes from `min` to `max`, written as a size.
pub struct Size {
    /// Smallest accepted size, in bytes.
    pub min: u64,
    /// Largest accepted size, in bytes.
    pub max: u64,
}

impl Shape for Size {
    type Out = u64;

    fn kind(&self) -> ShapeKind {
        let min = units::format_size(self.min);
        let max = units::format_size(self.max);
        let schema = json!({ "type": "string", "pattern": units::SIZE_PATTERN });
        ShapeKind::new(format!("a size from \"{min}\" to \"{max}\""), schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<u64> {
        read_measured(
            node,
            check,
            &self.kind().text,
            units::parse_size,
            self.min..=self.max,
            ["too small", "too large"],
        )
    }
}

/// Time from `min` to `max`, written as a duration.
pub struct Time {
    /// Shortest accepted duration.
    pub min: Duration,
    /// Longest accepted duration.
    pub max: Duration,
}

impl Shape for Time {
    type Out = Duration;

    fn kind(&self) -> ShapeKind {
        let min = units::format_duration(self.min);
        let max = units::format_duration(self.max);
        let schema = json!({ "type": "string", "pattern": units::DURATION_PATTERN });
        ShapeKind::new(format!("a duration from \"{min}\" to \"{max}\""), schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Duration> {
        read_measured(
            node,
            check,
            &self.kind().text,
            units::parse_duration,
            self.min..=self.max,
            ["too short", "too long"],
        )
    }
}

/// A string with a unit, within a range.
fn read_measured<T: PartialOrd>(
    node: &Node,
    check: &mut Checker,
    expected: &str,
    parse: fn(&str) -> Result<T, InvalidValue>,
    range: std::ops::RangeInclusive<T>,
    outside: [&str; 2],
) -> Option<T> {
    let NodeData::Text(text) = &node.data else {
        let finding = check.report_type_mismatch(node, expected);
        if let NodeData::Integer(number) = node.data
            && number >= 0
        {
            let unit = if outside[1] == "too long" { "s" } else { "B" };
            let is_zero_in_range = || parse(&format!("0{unit}")).is_ok_and(|zero| range.contains(&zero));
            finding.help(match number {
                0 if !is_zero_in_range() => {
                    "write a value of this range; no limit is \"unlimited\" where a setting has it".to_owned()
                }
                // If the limit can be disabled, "unlimited" does that.
                0 => format!("write the unit in the value: \"0{unit}\"; no limit is \"unlimited\" where a setting has it"),
                _ => format!("write the unit in the value: \"{number}{unit}\""),
            });
        }
        return None;
    };
    match parse(text) {
        Err(fault) => check.report_fault(&node.span, text, fault),
        Ok(value) if range.contains(&value) => return Some(value),
        Ok(value) => {
            let label = outside[usize::from(value > *range.end())];
            check.report_invalid(&node.span, label).help(format!("expected {expected}"));
        }
    }
    None
}

/// `S`, or "unlimited" for `None`.
pub struct Unlimited<S>(pub S);

impl<S: Shape> Shape for Unlimited<S> {
    type Out = Option<S::Out>;

    fn kind(&self) -> ShapeKind {
        let inner = self.0.kind();
        let text = format!("{} or \"unlimited\"", inner.text);
        let schema = json!({ "anyOf": [inner.schema, { "const": "unlimited" }] });
        inner.with_description(text, schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        match &node.data {
            NodeData::Text(text) if text == "unlimited" => Some(None),
            NodeData::Text(text) if nearest_name(text, ["unlimited"]).is_some() => {
                check.report_invalid(&node.span, "did you mean \"unlimited\"?");
                None
            }
            _ => self.0.read(node, check).map(Some),
        }
    }
}

/// `S`, converted to the type that the code uses.
pub struct Mapped<S: Shape, T> {
    /// Shape of the value in the file.
    pub shape: S,
    /// Converts the value.
    pub map: fn(S::Out) -> T,
}

impl<S: Shape, T> Shape for Mapped<S, T> {
    type Out = T;

    fn kind(&self) -> ShapeKind {
        self.shape.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<T> {
        self.shape.read(node, check).map(self.map)
    }
}

/// Optional `S`, for a directive that may be absent.
pub struct Maybe<S>(pub S);

impl<S: Shape> Shape for Maybe<S> {
    type Out = Option<S::Out>;

    fn kind(&self) -> ShapeKind {
        self.0.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        self.0.read(node, check).map(Some)
    }
}

/// `S`, or `true` or `false`. `on` is the value of `true`; without it, only `false` is accepted.
pub struct Toggle<T, S> {
    /// Returns the value of `true`. If `None`, `shape` reads `true`.
    pub on: Option<fn() -> T>,
    /// Returns the value of `false`.
    pub off: fn() -> T,
    /// Shape of all other values.
    pub shape: S,
}

impl<T, S: Shape<Out = T>> Shape for Toggle<T, S> {
    type Out = T;

    fn kind(&self) -> ShapeKind {
        let inner = self.shape.kind();
        let (words, flags) = if self.on.is_some() {
            ("`true`, `false`", json!([true, false]))
        } else {
            ("`false`", json!([false]))
        };
        let text = format!("{words} or {}", inner.text);
        let schema = json!({ "anyOf": [{ "enum": flags }, inner.schema] });
        ShapeKind { text, schema, ..inner }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<T> {
        let expanded = check.expanded_text(node).and_then(|text| text.parse().ok()).map(NodeData::Flag);
        match (expanded.as_ref().unwrap_or(&node.data), self.on) {
            (NodeData::Flag(false), _) => Some((self.off)()),
            (NodeData::Flag(true), Some(on)) => Some(on()),
            _ => {
                let read = self.shape.read(node, check);
                if read.is_none() {
                    check.add_flag_help(node);
                }
                read
            }
        }
    }
}

/// One of a few words.
pub struct Word<E: 'static>(pub &'static [(&'static str, E)]);

impl<E: Copy> Shape for Word<E> {
    type Out = E;

    fn kind(&self) -> ShapeKind {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        ShapeKind::new(
            join_alternatives(words.iter().map(|word| format!("\"{word}\""))),
            json!({ "enum": words }),
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<E> {
        let NodeData::Text(text) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        let found = self.0.iter().find(|(word, _)| word == text);
        if found.is_none() {
            let label = match nearest_name(text, self.0.iter().map(|(word, _)| *word)) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => "not one of these".to_owned(),
            };
            check.report_invalid(&node.span, label).help(format!("expected {}", self.kind().text));
        }
        found.map(|&(_, value)| value)
    }
}

/// A string that a function parses.
pub struct Text<T> {
    /// Description of the value, such as "an address".
    pub what: &'static str,
    /// Parses the string. An error is reported at the place of the string.
    pub parse: fn(&str) -> Result<T, InvalidValue>,
}

impl<T> Shape for Text<T> {
    type Out = T;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(self.what, json!({ "type": "string" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<T> {
        let NodeData::Text(text) = &node.data else {
            check.report_type_mismatch(node, self.what);
            return None;
        };
        (self.parse)(text).map_err(|fault| check.report_fault(&node.span, text, fault)).ok()
    }
}

/// A path of the file system; a relative one is relative to the configuration file's folder.
pub struct PathShape(pub &'static str);

impl Shape for PathShape {
    type Out = PathBuf;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(self.0, json!({ "type": "string", "minLength": 1 }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<PathBuf> {
        let text = Text { what: self.0, parse: parse_file_path }.read(node, check)?;
        let path = check.resolve_path(&text);
        let directive = check.directive_path_text();
        check.report.add_named_path(NamedPath { directive, path: path.clone(), span: node.span.clone() });
        Some(path)
    }
}

/// The name or number of a user or a group of the system.
pub struct AccountName {
    /// Whether the name is that of a group.
    pub is_group: bool,
}

impl AccountName {
    fn description(&self) -> &'static str {
        if self.is_group {
            "the name or number of a group, in quotes"
        } else {
            "the name or number of a user, in quotes"
        }
    }
}

impl Shape for AccountName {
    type Out = String;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(self.description(), json!({ "type": "string", "minLength": 1 }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<String> {
        let name = Text { what: self.description(), parse: plain_name }.read(node, check)?;
        let is_group = self.is_group;
        let at = node.span.clone();
        check.report.add_named_account(NamedAccount { name: name.clone(), is_group, span: at });
        Some(name)
    }
}

/// Parses a name that is passed to the system unchanged.
///
/// # Errors
/// Returns an error if the name is empty or contains NUL.
pub fn plain_name(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "")),
        _ if text.contains('\0') => Err(InvalidValue::new("a name must not contain NUL", "")),
        _ => Ok(text.to_owned()),
    }
}

fn parse_file_path(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() {
        return Err(InvalidValue::new("an empty path", "\".\" is the configuration file's folder"));
    }
    match text.find('\0') {
        Some(at) => Err(InvalidValue::new("a path must not contain NUL", "").within(at..at + 1)),
        None => Ok(text.to_owned()),
    }
}

/// A list.
pub struct List<S>(pub S);

impl<S: Shape> Shape for List<S> {
    type Out = Vec<S::Out>;

    fn kind(&self) -> ShapeKind {
        let inner = self.0.kind();
        let text = format!("a list, each item {}", inner.text);
        let schema = json!({ "type": "array", "items": inner.schema });
        inner.with_description(text, schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        let NodeData::List(items) = &node.data else {
            let here = check.directive_path_text();
            let is_below = matches!(&node.data, NodeData::Table(entries) if matches!(entries.as_slice(), [one] if matches!(one.value.data, NodeData::List(_))));
            let remedy = if is_below && here == "site" {
                "write `[[site]]` in a line before it: the route belongs to that site; `[[route]]` is one of the default site".to_owned()
            } else {
                format!("write `[[{here}]]`, with two brackets: there may be several")
            };
            let finding = check.report_type_mismatch(node, &self.kind().text);
            match &node.data {
                NodeData::Table(_) => finding.help(remedy),
                NodeData::Text(text) => {
                    // As nginx separates them.
                    finding.help(format!("write a list: `{}`", format_list(shorten(text).split_whitespace())))
                }
                _ => finding,
            };
            return None;
        };
        let read: Vec<_> = items.iter().filter_map(|item| self.0.read(item, check)).collect();
        (read.len() == items.len()).then_some(read)
    }
}

/// One value, or a list of at least one.
pub struct OneOrMore<S>(pub S);

impl<S: Shape> Shape for OneOrMore<S> {
    type Out = Vec<S::Out>;

    fn kind(&self) -> ShapeKind {
        let inner = self.0.kind();
        let text = format!("{}, or a list of them", inner.text);
        let schema =
            json!({ "anyOf": [inner.schema, { "type": "array", "items": inner.schema, "minItems": 1 }] });
        inner.with_description(text, schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        match &node.data {
            NodeData::List(items) if items.is_empty() => {
                check
                    .report_invalid(&node.span, "an empty list")
                    .help(format!("expected {}", self.kind().text));
                None
            }
            NodeData::List(_) => List(&self.0).read(node, check),
            _ => self.0.read(node, check).map(|one| vec![one]),
        }
    }
}

impl<S: Shape> Shape for &S {
    type Out = S::Out;

    fn kind(&self) -> ShapeKind {
        (*self).kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        (*self).read(node, check)
    }
}

/// Table whose keys the user chooses, in the order of the file.
pub struct Map<K, S> {
    /// Description of the keys, such as "a header name".
    pub what: &'static str,
    /// Parses a key. A key that is equal to an earlier one once parsed is reported.
    pub key: fn(&str) -> Result<K, InvalidValue>,
    /// Shape of the values.
    pub value: S,
}

impl<K: Clone + Eq + Hash, S: Shape> Shape for Map<K, S> {
    type Out = Vec<(K, S::Out)>;

    fn kind(&self) -> ShapeKind {
        let inner = self.value.kind();
        let text = format!("a table from {} to {}", self.what, inner.text);
        let schema = json!({ "type": "object", "additionalProperties": inner.schema });
        inner.with_description(text, schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        let NodeData::Table(entries) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        let mut known = HashSet::new();
        let mut read = Vec::new();
        for entry in entries {
            let value = self.value.read(&entry.value, check);
            match (self.key)(&entry.key) {
                Err(fault) => check.report_fault(&entry.key_span, &entry.key, fault),
                Ok(key) if !known.insert(key.clone()) => {
                    let key = shorten(&entry.key);
                    check.report_invalid(
                        &entry.key_span,
                        format!("`{key}` is given twice, in different spellings"),
                    );
                }
                Ok(key) => read.extend(value.map(|value| (key, value))),
            }
        }
        (read.len() == entries.len()).then_some(read)
    }
}

/// `a, b or c`.
pub fn join_alternatives(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
