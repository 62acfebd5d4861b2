//! The text of a configuration as one tree: included files are merged, environment variables replaced.

use crate::checker::{Checker, shorten};
use crate::joined_text::JoinedText;
use crate::node::{Entry, Node, NodeData};
use crate::report::TextSpan;
use serde_json::Value;
use std::path::Path;

/// The largest configuration file, in bytes.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// Bytes that the values of environment variables may add to a configuration.
const EXPANDED_BYTES_MAX: usize = 1 << 20;

/// The value of an environment variable, if it is set.
pub type EnvironmentLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the names or patterns of included files, with environment variables replaced. Empty if `text` is
/// not valid TOML.
pub fn include_patterns(text: &str, environment: EnvironmentLookup<'_>) -> Vec<String> {
    let Ok(document) = Node::parse_document(text) else { return Vec::new() };
    let one = document.entry("include").map(|entry| &entry.value);
    let items = match document.items("include") {
        [] => one.map(std::slice::from_ref).unwrap_or_default(),
        items => items,
    };
    // Faults are reported when the whole is read.
    let mut check = Checker::new("", "", Path::new(""));
    let mut left_bytes = EXPANDED_BYTES_MAX;
    let text = |item: &Node| match &item.data {
        NodeData::Text(text) => {
            let expanded = expand_text(text, &item.span, environment, &mut left_bytes, &mut check);
            Some(expanded.unwrap_or_else(|| text.clone()))
        }
        _ => None,
    };
    items.iter().filter_map(text).collect()
}

/// Returns the directives of a text from [`join_files`](crate::joined_text::join_files) as one tree for comparison, with
/// environment variables replaced; `None` if a file is not valid TOML.
pub fn directive_tree(text: &str, environment: EnvironmentLookup<'_>) -> Option<Value> {
    // Faults are reported when the configuration itself is read.
    let mut check = Checker::new(text, "", Path::new(""));
    let sources = check.report.sources().clone();
    Some(plain_value(&read_document(&sources, environment, &mut check)?))
}

/// Returns the directives of a tree, without their places.
#[must_use]
pub fn plain_value(node: &Node) -> Value {
    match &node.data {
        NodeData::Text(text) => Value::from(text.as_str()),
        NodeData::Integer(number) => Value::from(*number),
        NodeData::Float(number) => Value::from(*number),
        NodeData::Flag(flag) => Value::from(*flag),
        // No directive is one.
        NodeData::Date => Value::from("a date"),
        NodeData::List(items) => items.iter().map(plain_value).collect(),
        NodeData::Table(entries) => Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), plain_value(&entry.value))).collect(),
        ),
    }
}

/// Returns the tree of all files, or `None` if one is not valid TOML; faults are reported.
pub fn read_document(
    sources: &JoinedText,
    environment: EnvironmentLookup<'_>,
    check: &mut Checker,
) -> Option<Node> {
    let mut merged: Option<Vec<Entry>> = None;
    for file in sources.files() {
        let text = &sources.text[file.start..file.end];
        match Node::parse_document(text) {
            Ok(mut node) => {
                shift_spans(&mut node, file.start);
                let NodeData::Table(entries) = node.data else { continue };
                match &mut merged {
                    None => merged = Some(entries),
                    Some(merged) => merge(merged, entries, "", check),
                }
            }
            Err(error) => {
                let at = error.span().unwrap_or(text.len()..text.len());
                let at = file.start + at.start..file.start + at.end;
                let first = find_first_definition(&sources.text, file.start, &at)
                    .filter(|_| error.message() == "duplicate key");
                let syntax_hint = check.advice.syntax_hint;
                let finding = check.error(&at, "this is not TOML".to_owned(), error.message());
                if let Some(first) = first {
                    finding.related(first, "first given here");
                }
                if let Some(help) =
                    syntax_hint(text).or_else(|| syntax_help(error.message(), &sources.text[at]))
                {
                    finding.help(help);
                }
            }
        }
    }
    let mut node = Node { span: 0..0, data: NodeData::Table(merged?) };
    let mut left_bytes = EXPANDED_BYTES_MAX;
    expand_strings(&mut node, environment, &mut left_bytes, check);
    Some(node)
}

/// The same key before, in the same table of a file that begins at `start`.
fn find_first_definition(text: &str, start: usize, at: &TextSpan) -> Option<TextSpan> {
    let key = text.get(at.clone())?;
    let mut line_end = at.start;
    while let Some(line_start) =
        text.get(start..line_end).map(|before| start + before.rfind('\n').map_or(0, |end| end + 1))
    {
        let line = &text[line_start..line_end];
        let indent = line.len() - line.trim_start().len();
        let is_it =
            line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        if is_it && line_start + indent < at.start {
            return Some(line_start + indent..line_start + indent + key.len());
        }
        if line.trim_start().starts_with('[') || line_start == start {
            return None;
        }
        line_end = line_start - 1;
    }
    None
}

/// Returns a remedy for the syntax error with this message, at this text.
fn syntax_help(message: &str, text: &str) -> Option<&'static str> {
    if message.contains("escaped value") {
        return Some("a text with `\\` stands in single quotes: `path = '~ ^/user/(\\d+)$'`");
    }
    if text.contains(['“', '”', '„', '‘', '’', '«', '»']) {
        return Some("write straight quotes, `\"` or `'`: a word processor has changed them");
    }
    // A table of an entry, such as `[[route.cache.rule]]`, has defined the list as a table.
    (message == "duplicate key" && matches!(text, "route" | "site"))
        .then_some("`[[route]]` and `[[site]]` begin an entry; tables that belong to it, such as `[[route.cache.rule]]`, stand below it")
}

/// Shifts the places of a tree by the offset of its file in the joined text.
fn shift_spans(node: &mut Node, by: usize) {
    let moved = |at: &TextSpan| at.start + by..at.end + by;
    node.span = moved(&node.span);
    match &mut node.data {
        NodeData::List(items) => items.iter_mut().for_each(|item| shift_spans(item, by)),
        NodeData::Table(entries) => {
            for entry in entries {
                entry.key_span = moved(&entry.key_span);
                shift_spans(&mut entry.value, by);
            }
        }
        _ => {}
    }
}

/// Merges the directives of an included file: lists of tables are concatenated, tables are joined, and
/// duplicate directives are reported.
fn merge(entries: &mut Vec<Entry>, included: Vec<Entry>, place: &str, check: &mut Checker) {
    for entry in included {
        let Some(known) = entries.iter_mut().find(|known| known.key == entry.key) else {
            entries.push(entry);
            continue;
        };
        let name = match place {
            // The files that it names are there already.
            "" if entry.key == "include" => continue,
            "" => entry.key.clone(),
            place => format!("{place}.{}", entry.key),
        };
        match (&mut known.value.data, entry.value.data) {
            (NodeData::Table(known), NodeData::Table(more)) => merge(known, more, &name, check),
            (NodeData::List(known), NodeData::List(more)) if is_table_list(known) && is_table_list(&more) => {
                known.extend(more)
            }
            _ => {
                let first = known.key_span.clone();
                let title = format!("`{}` is given in two files", shorten(&name));
                check.error(&entry.key_span, title, "given again here").related(first, "first given here");
            }
        }
    }
}

fn is_table_list(items: &[Node]) -> bool {
    items.iter().all(|item| matches!(item.data, NodeData::Table(_)))
}

/// Replaces `${NAME}` and `${NAME:-default}` in every string by the environment's value.
fn expand_strings(
    node: &mut Node,
    environment: EnvironmentLookup<'_>,
    left_bytes: &mut usize,
    check: &mut Checker,
) {
    match &mut node.data {
        NodeData::Text(text) if text.contains("${") => {
            if let Some(expanded) = expand_text(text, &node.span, environment, left_bytes, check) {
                *text = expanded;
                check.mark_expanded(&node.span);
            }
        }
        NodeData::List(items) => {
            items.iter_mut().for_each(|item| expand_strings(item, environment, left_bytes, check))
        }
        NodeData::Table(entries) => {
            entries
                .iter_mut()
                .for_each(|entry| expand_strings(&mut entry.value, environment, left_bytes, check));
        }
        _ => {}
    }
}

/// Returns the text with variables replaced; `None` if it contains none.
fn expand_text(
    text: &str,
    at: &TextSpan,
    environment: EnvironmentLookup<'_>,
    left_bytes: &mut usize,
    check: &mut Checker,
) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut is_changed = false;
    while let Some(dollar) = rest.find('$') {
        let (before, tail) = rest.split_at(dollar);
        out.push_str(before);
        let Some((name, default, end)) = parse_variable(tail) else {
            // `$$` is a dollar sign in templates, so the name after it is not a variable.
            let kept = if tail.starts_with("$$") { 2 } else { 1 };
            out.push_str(&tail[..kept]);
            rest = &tail[kept..];
            continue;
        };
        is_changed = true;
        rest = &tail[end..];
        let value = environment(name).filter(|value| default.is_none() || !value.is_empty());
        let Some(value) = value.as_deref().or(default) else {
            let title = format!("the environment has no `{}`", shorten(name));
            let finding = check.error(at, title, "it is named here");
            finding.help(format!(
                "set it where the server is started, or write a default: `${{{name}:-value}}`"
            ));
            check.mark_unresolved(at);
            continue;
        };
        match left_bytes.checked_sub(value.len()) {
            Some(left) => *left_bytes = left,
            None => {
                let title = format!("environment variables add more than {EXPANDED_BYTES_MAX} bytes");
                check.error(at, title, "one too many");
                return None;
            }
        }
        out.push_str(value);
    }
    out.push_str(rest);
    is_changed.then_some(out)
}

/// Parses the variable at the start of a text: its name, its default and its end. Names of environment
/// variables are in capital letters; those of template variables are not.
fn parse_variable(text: &str) -> Option<(&str, Option<&str>, usize)> {
    let inner = text.strip_prefix("${")?;
    let close = inner.find('}')?;
    let (name, default) = match inner[..close].split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (&inner[..close], None),
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    is_name.then_some((name, default, "${".len() + close + 1))
}
