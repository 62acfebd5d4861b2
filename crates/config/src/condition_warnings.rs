//! Warnings of conditions that no request meets, or fewer than they read: values in a form that requests do not have when they are compared.

use settings::checker::{Checker, shorten};
use settings::node::{Entry, Node, NodeData, as_text};
use settings::report::TextSpan;
use shapes::expression::{Expression, RequiredText};
use shapes::pattern::{ESCAPED_CHARACTER, PathFault, find_path_fault, is_escape};

/// Looks through the conditions of the whole file.
pub(crate) fn warn_of_unmet_conditions(node: &Node, check: &mut Checker) {
    let NodeData::Table(entries) = &node.data else { return };
    let merges = |node: &Node| {
        node.entry("merge_slashes").map(|entry| matches!(entry.value.data, NodeData::Flag(true)))
    };
    let is_merging = merges(node).unwrap_or(true);
    for entry in entries {
        match (&entry.value.data, entry.key.as_str()) {
            (NodeData::List(sites), "site") => {
                for site in sites {
                    warn_of_descendants(site, merges(site).unwrap_or(is_merging), check);
                }
            }
            _ => warn_of_entry(entry, is_merging, check),
        }
    }
}

fn warn_of_descendants(node: &Node, is_merging: bool, check: &mut Checker) {
    match &node.data {
        NodeData::List(items) => items.iter().for_each(|item| warn_of_descendants(item, is_merging, check)),
        NodeData::Table(entries) => entries.iter().for_each(|entry| warn_of_entry(entry, is_merging, check)),
        _ => {}
    }
}

fn warn_of_entry(entry: &Entry, is_merging: bool, check: &mut Checker) {
    let conditions = match &entry.value.data {
        NodeData::List(items) if matches!(entry.key.as_str(), "route" | "not" | "when") => items.as_slice(),
        NodeData::Table(_) if matches!(entry.key.as_str(), "not" | "when") => {
            std::slice::from_ref(&entry.value)
        }
        _ => &[],
    };
    for table in conditions {
        warn_of_conditions(table, is_merging, check);
    }
    // Rules of caches and dictionaries have paths, too.
    let paths = match &entry.value.data {
        NodeData::List(items) if entry.key == "path" => items.as_slice(),
        _ if entry.key == "path" => std::slice::from_ref(&entry.value),
        _ => &[],
    };
    for (path, item) in paths.iter().filter_map(|item| as_text(item).map(|path| (path, item))) {
        if let Some(Ok(expression)) = Expression::parse(path) {
            warn_of_expression(path, &expression, &item.span, is_merging, check);
        }
    }
    warn_of_descendants(&entry.value, is_merging, check);
}

/// A regular expression for paths that needs a text which no path has.
fn warn_of_expression(
    path: &str,
    expression: &Expression,
    at: &TextSpan,
    is_merging: bool,
    check: &mut Checker,
) {
    let fault =
        expression.required_texts().iter().find_map(|required| required_text_fault(required, is_merging));
    let ends_with_blank = path.ends_with(' ').then_some(PathFault {
        label: "the blank at its end is a part of the expression",
        remedy: "remove it, or write `[ ]$` for paths that end with one",
    });
    let misplaced = expression.has_misplaced_anchor().then_some(PathFault {
        label: "`^` is the start of a path, and `$` its end",
        remedy: "write `^` first and `$` last: \"~ ^/admin/.*$\"; `\\^` and `\\$` are the characters themselves",
    });
    let Some(fault) = misplaced.or(fault).or(ends_with_blank) else { return };
    let title = match fault.label {
        ESCAPED_CHARACTER => format!("`{}` matches only what is percent-encoded twice", shorten(path)),
        _ => format!("`{}` cannot match as it is written", shorten(path)),
    };
    check.warning(at, title, fault.label).help(fault.remedy);
}

fn required_text_fault(required: &RequiredText, is_merging: bool) -> Option<PathFault> {
    let text = &required.text;
    if required.is_at_start && !text.starts_with(b"/") && text != b"*" {
        return Some(PathFault {
            label: "every path starts with `/`",
            remedy: "write the slash: \"~ ^/user/([0-9]+)$\"",
        });
    }
    let is_doubled = text.windows(2).any(|pair| pair == b"//");
    if is_doubled && (is_merging || required.is_at_start && text.starts_with(b"//")) {
        return Some(EMPTY_SEGMENT);
    }
    if [&b"/./"[..], b"/../"].iter().any(|dots| text.windows(dots.len()).any(|part| part == *dots)) {
        return Some(PathFault {
            label: "no path has a dot segment",
            remedy: "dot segments are resolved before paths are matched",
        });
    }
    find_path_fault(text).map(|(fault, _)| fault)
}

const EMPTY_SEGMENT: PathFault = PathFault {
    label: "`//` in a path is one slash when it is matched",
    remedy: "write one slash; with `merge_slashes = false` paths have `//`, except at their start",
};

/// The conditions of a route, or of a table such as `not`.
fn warn_of_conditions(table: &Node, is_merging: bool, check: &mut Checker) {
    for item in table.one_or_more("path").iter().filter(|_| is_merging) {
        if let Some(path) = as_text(item).filter(|path| !path.starts_with('~') && path.find("//") > Some(0)) {
            let title = format!("no request has the path `{}`", shorten(path));
            check.warning(&item.span, title, EMPTY_SEGMENT.label).help(EMPTY_SEGMENT.remedy);
        }
    }
    for item in table.one_or_more("referer") {
        let expression = as_text(item).and_then(|text| text.strip_prefix('~'));
        let body = expression.map(|rest| rest.trim_start_matches('*').trim_start());
        if let Some(body) = body.filter(|body| body.starts_with("^http")) {
            let title = format!("`{}` matches no page", shorten(body));
            let finding = check.warning(&item.span, title, "URLs are compared without their scheme");
            finding.help("begin with the host: `referer = '~ ^www\\.example\\.com/'`");
        }
    }
    for_each_value(table, "header", |value, at| {
        if !value.starts_with('~') && (value.starts_with(is_blank) || value.ends_with(is_blank)) {
            let title = format!("no header field has the value \"{}\"", shorten(value));
            let finding = check.warning(at, title, "values have no blanks at their start and end");
            finding.help("remove the blank");
        }
    });
    for_each_value(table, "query", |value, at| {
        if !value.starts_with('~') && value.as_bytes().windows(3).any(is_escape) {
            let title = format!("`{}` is compared with decoded parameters", shorten(value));
            let finding = check.warning(at, title, "a percent-encoded character");
            finding.help("write the character itself");
        }
    });
}

/// Each text in the table of that key.
fn for_each_value(table: &Node, key: &str, mut see: impl FnMut(&str, &TextSpan)) {
    let Some(NodeData::Table(entries)) = table.entry(key).map(|entry| &entry.value.data) else { return };
    for entry in entries {
        if key == "query" {
            see(&entry.key, &entry.key_span);
        }
        if let Some(value) = as_text(&entry.value) {
            see(value, &entry.value.span);
        }
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}
