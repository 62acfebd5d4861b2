//! Formatter of configuration files: `komainu fmt`. Comments and the order of everything are kept.

use failure::Failure;
use toml_edit::{Array, DocumentMut, InlineTable, Item, KeyMut, Table, Value};

/// Longer lists have a line for each item.
const LINE_WIDTH_MAX: usize = 100;
const INDENT: &str = "    ";

/// A configuration file in the one way to write it: a blank line before each table, at most one between directives, no indentation,
/// `key = value`, lists on one line where they fit. Lines whose `=` are aligned stay aligned.
///
/// # Errors
/// What is no TOML, with its place.
pub fn format(text: &str) -> Result<String, Failure> {
    let failed = |error: toml_edit::TomlError| Failure::new(error);
    let before: DocumentMut = text.parse().map_err(failed)?;
    let mut document = before.clone();
    format_table(document.as_table_mut(), &mut true);
    let mut trailing = document.trailing().as_str().unwrap_or_default().to_owned();
    if trailing.trim_end_matches([' ', '\t']).ends_with(|sign| sign != '\n') {
        // A comment in the last line, which has no line end.
        trailing.push('\n');
    }
    let trailing = format_comments(&trailing, BlankLines::AtMostOne);
    let end = if trailing.is_empty() { "" } else { "\n" };
    document.set_trailing(format!("{}{end}", trailing.trim_end_matches('\n')));
    let formatted = document.to_string().trim_start_matches('\n').to_owned();
    let comment_signs = |text: &str| text.matches('#').count();
    // Whatever a layout may be worth, no value and no comment may change for it.
    let is_same = |after: DocumentMut| {
        comparable_entries(before.as_table()) == comparable_entries(after.as_table())
            && comment_signs(text) == comment_signs(&formatted)
    };
    if formatted.parse().is_ok_and(is_same) {
        Ok(formatted)
    } else {
        Err("this file cannot be formatted without changing what it says".into())
    }
}

/// Whitespace before an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlankLines {
    /// At most one blank line, if there was any.
    AtMostOne,
    /// One blank line.
    ExactlyOne,
}

/// Comments and blank lines before something, each comment at the start of its line.
fn format_comments(prefix: &str, gap: BlankLines) -> String {
    let Some((lines, _)) = prefix.rsplit_once('\n') else {
        return if gap == BlankLines::ExactlyOne { "\n".into() } else { String::new() };
    };
    let mut out = String::new();
    let mut is_blank = gap == BlankLines::ExactlyOne;
    for line in lines.split('\n').map(str::trim) {
        if line.is_empty() {
            is_blank = true;
            continue;
        }
        if is_blank {
            out.push('\n');
        }
        out.push_str(line);
        out.push('\n');
        is_blank = false;
    }
    // A comment that stands alone stays alone.
    if is_blank {
        out.push('\n');
    }
    out
}

/// A comment behind a value, with the distance that it has, and one space at least.
fn format_trailing_comment(suffix: &str) -> String {
    let comment = suffix.trim();
    if comment.is_empty() {
        return String::new();
    }
    let distance = suffix.len() - suffix.trim_start().len();
    format!("{}{comment}", " ".repeat(distance.max(1)))
}

/// Formats a table. `is_head`: no directive of the table was seen yet, so no blank line follows the head.
fn format_table(table: &mut Table, is_head: &mut bool) {
    let widths = key_widths(table);
    for ((mut key, item), width) in table.iter_mut().zip(widths) {
        remove_key_spaces(&mut key);
        match item {
            Item::Value(value) => {
                let prefix = key.leaf_decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
                let shown = format_comments(prefix, BlankLines::AtMostOne);
                let shown = if *is_head { shown.trim_start_matches('\n') } else { &shown };
                key.leaf_decor_mut().set_prefix(shown);
                let spaces = width.saturating_sub(name_width(&key)).max(1);
                key.leaf_decor_mut().set_suffix(" ".repeat(spaces));
                let suffix = value.decor().suffix().and_then(|suffix| suffix.as_str()).unwrap_or_default();
                let suffix = format_trailing_comment(suffix);
                self::format_value(value, width + 2, "");
                value.decor_mut().set_prefix(" ");
                value.decor_mut().set_suffix(suffix);
                *is_head = false;
            }
            Item::Table(inner) if inner.is_dotted() => self::format_table(inner, is_head),
            Item::Table(inner) => {
                key.leaf_decor_mut().clear();
                format_header(inner);
                self::format_table(inner, &mut true);
            }
            Item::ArrayOfTables(tables) => {
                key.leaf_decor_mut().clear();
                for inner in tables.iter_mut() {
                    format_header(inner);
                    self::format_table(inner, &mut true);
                }
            }
            Item::None => {}
        }
    }
}

/// The characters of a key.
fn name_width(key: &KeyMut<'_>) -> usize {
    key.display_repr().chars().count()
}

/// Returns the column of `=` for each key. Neighbours that are aligned already stay aligned; a blank line, a
/// table or a dotted key ends a group.
fn key_widths(table: &mut Table) -> Vec<usize> {
    let is_blank = |prefix: &str| {
        let lines = prefix.rsplit_once('\n').map(|(lines, _)| lines);
        lines.is_some_and(|lines| lines.split('\n').any(|line| line.trim().is_empty()))
    };
    let mut widths = Vec::new();
    let mut begin = 0;
    let mut column = None;
    for (at, (key, item)) in table.iter_mut().enumerate() {
        let name = name_width(&key);
        let text = |part: Option<&toml_edit::RawString>| {
            part.and_then(|part| part.as_str()).unwrap_or_default().to_owned()
        };
        let before = text(key.leaf_decor().prefix());
        let spaces = text(key.leaf_decor().suffix()).len();
        let here = matches!(item, Item::Value(_)).then_some(name + spaces);
        if here.is_none() || here != column || is_blank(&before) {
            begin = at;
        }
        column = here;
        widths.push(name + 1);
        let widest = widths[begin..].iter().copied().max().unwrap_or_default();
        widths[begin..].fill(widest);
    }
    widths
}

/// A key of several parts has no spaces around its dots.
fn remove_key_spaces(key: &mut KeyMut<'_>) {
    key.dotted_decor_mut().set_prefix("");
    key.dotted_decor_mut().set_suffix("");
}

/// Formats the whitespace around `[name]`. Implicit tables have none.
fn format_header(table: &mut Table) {
    if table.is_implicit() {
        return;
    }
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    let prefix = format_comments(prefix, BlankLines::ExactlyOne);
    let suffix = format_trailing_comment(
        table.decor().suffix().and_then(|suffix| suffix.as_str()).unwrap_or_default(),
    );
    table.decor_mut().set_prefix(prefix);
    table.decor_mut().set_suffix(suffix);
}

/// A value that begins `width` columns into its line.
fn format_value(value: &mut Value, width: usize, indent: &str) {
    match value {
        Value::Array(array) => format_list(array, width, indent),
        Value::InlineTable(table) => {
            let before = table.clone();
            format_inline_table(table, true, width, indent);
            table.set_trailing("");
            table.set_trailing_comma(false);
            // One that has comments is left as it is.
            let signs = |table: &InlineTable| table.to_string().matches('#').count();
            if signs(table) != signs(&before) {
                *table = before;
            }
        }
        _ => {}
    }
}

/// Formats the entries of a table in one line; `is_last`: nothing follows them.
fn format_inline_table(table: &mut InlineTable, is_last: bool, width: usize, indent: &str) {
    let count = table.len();
    for (at, (mut key, value)) in table.iter_mut().enumerate() {
        let is_last = is_last && at + 1 == count;
        remove_key_spaces(&mut key);
        match value {
            Value::InlineTable(inner) if inner.is_dotted() => {
                format_inline_table(inner, is_last, width, indent)
            }
            value => {
                self::format_value(value, width, indent);
                key.leaf_decor_mut().set_prefix(" ");
                key.leaf_decor_mut().set_suffix(" ");
                value.decor_mut().set_prefix(" ");
                value.decor_mut().set_suffix(if is_last { " " } else { "" });
            }
        }
    }
}

fn format_list(array: &mut Array, width: usize, indent: &str) {
    let inner = format!("{indent}{INDENT}");
    for item in array.iter_mut() {
        format_value(item, inner.len(), &inner);
    }
    let text =
        |raw: Option<&toml_edit::RawString>| raw.and_then(|raw| raw.as_str()).unwrap_or_default().to_owned();
    let decor: Vec<(String, String)> =
        array.iter().map(|item| (text(item.decor().prefix()), text(item.decor().suffix()))).collect();
    let trailing = array.trailing().as_str().unwrap_or_default().to_owned();
    let has_comments = trailing.contains('#')
        || decor.iter().any(|(before, after)| before.contains('#') || after.contains('#'));
    // Nothing before, a space behind the comma: as long as that fits into a line.
    for (at, item) in array.iter_mut().enumerate() {
        item.decor_mut().set_prefix(if at == 0 { "" } else { " " });
        item.decor_mut().set_suffix("");
    }
    array.set_trailing("");
    array.set_trailing_comma(false);
    let line = array.to_string();
    let is_short = width + line.trim().len() <= LINE_WIDTH_MAX && !line.trim().contains('\n');
    if !has_comments && is_short {
        return;
    }
    let spread = |before: &str| {
        let lines = before.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(|line| format!("\n{inner}{line}")).collect::<String>()
    };
    let mut waiting = String::new();
    for (item, (before, after)) in array.iter_mut().zip(&decor) {
        // A comment behind the comma belongs to the item before it.
        let (same_line, rest) = before.split_once('\n').unwrap_or(("", before));
        let beside = format_trailing_comment(same_line);
        item.decor_mut().set_prefix(format!("{waiting}{beside}{}\n{inner}", spread(rest)));
        waiting.clear();
        if after.contains('#') {
            waiting = spread(after);
        }
    }
    let (same_line, rest) = trailing.split_once('\n').unwrap_or(("", &trailing));
    let end = format!("{waiting}{}{}\n{indent}", format_trailing_comment(same_line), spread(rest));
    array.set_trailing(end);
    array.set_trailing_comma(true);
}

/// A tree without layout, to compare.
fn comparable_entries(table: &Table) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (key, item) in table.iter() {
        collect(key, item, &mut all);
    }
    all
}

fn collect(place: &str, item: &Item, all: &mut Vec<(String, String)>) {
    match item {
        Item::None => {}
        Item::Value(value) => collect_value(place, value, all),
        Item::Table(table) => {
            all.push((place.to_owned(), "table".into()));
            table.iter().for_each(|(key, item)| collect(&format!("{place}.{key}"), item, all));
        }
        Item::ArrayOfTables(tables) => {
            for (at, table) in tables.iter().enumerate() {
                all.push((format!("{place}[{at}]"), "table".into()));
                table.iter().for_each(|(key, item)| collect(&format!("{place}[{at}].{key}"), item, all));
            }
        }
    }
}

fn collect_value(place: &str, value: &Value, all: &mut Vec<(String, String)>) {
    let text = match value {
        Value::String(value) => format!("{:?}", value.value()),
        Value::Integer(value) => format!("{:?}", value.value()),
        Value::Float(value) => format!("{:?}", value.value()),
        Value::Boolean(value) => format!("{:?}", value.value()),
        Value::Datetime(value) => format!("{:?}", value.value()),
        Value::Array(array) => {
            for (at, item) in array.iter().enumerate() {
                collect_value(&format!("{place}[{at}]"), item, all);
            }
            "list".into()
        }
        Value::InlineTable(table) => {
            table.iter().for_each(|(key, item)| collect_value(&format!("{place}.{key}"), item, all));
            "table".into()
        }
    };
    all.push((place.to_owned(), text));
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNFORMATTED: &str = "# The shop.\n\n\n  listen=[ '127.0.0.1:80',\"[::1]:80\" ]   # both\r\n\n\n\nthreads   =  2\n[log]\nlevel= \"info\"\n\n\n# Sites\n\
        # follow.\n[[site]]   # one\n   hosts = [\"a.test\"]\n\t# by hand\n  tls={certificate=\"a.pem\",  key = \"a.key\"}\n[[site.route]]\nfiles=\"www\"\nheaders.set = {A=\"b\"}\n\
        allow = [\n\"10.0.0.0/8\", # ours\n # theirs\n \"192.0.2.0/24\"\n]\n[upstreams.api]\nto = [\"http://127.0.0.1:3000\", \"http://127.0.0.1:3001\", \"http://127.0.0.1:3002\", \"http://127.0.0.1:3003\"]\n\n\n# The end.\n\n\n";
    const FORMATTED: &str = "# The shop.\n\nlisten = ['127.0.0.1:80', \"[::1]:80\"]   # both\n\nthreads = 2\n\n[log]\nlevel = \"info\"\n\n# Sites\n\
        # follow.\n[[site]]   # one\nhosts = [\"a.test\"]\n# by hand\ntls = { certificate = \"a.pem\", key = \"a.key\" }\n\n[[site.route]]\nfiles = \"www\"\nheaders.set = { A = \"b\" }\n\
        allow = [\n    \"10.0.0.0/8\", # ours\n    # theirs\n    \"192.0.2.0/24\",\n]\n\n[upstreams.api]\nto = [\n    \"http://127.0.0.1:3000\",\n    \"http://127.0.0.1:3001\",\n    \"http://127.0.0.1:3002\",\n    \"http://127.0.0.1:3003\",\n]\n\n# The end.\n";

    #[test]
    fn formatting_is_canonical_and_idempotent() {
        assert_eq!(format(UNFORMATTED).unwrap(), FORMATTED);
        assert_eq!(format(FORMATTED).unwrap(), FORMATTED);
    }

    #[test]
    fn blank_lines_at_file_start_and_end_are_normalized() {
        for (text, wanted) in [
            ("", ""),
            ("\n\n", ""),
            ("# only\n\n\n", "# only\n"),
            ("\n\na=1", "a = 1\n"),
            ("\n[log]\n", "[log]\n"),
            ("a = 1 # b", "a = 1 # b\n"),
            ("a = 1\n# b", "a = 1\n# b\n"),
            ("# only", "# only\n"),
            ("[a.b]\n[a]\nc=1", "[a.b]\n\n[a]\nc = 1\n"),
        ] {
            assert_eq!(format(text).as_deref(), Ok(wanted), "{text:?}");
        }
    }

    #[test]
    fn dotted_keys_and_inline_tables_are_formatted() {
        for (text, wanted) in [
            ("a=1\n\n\nb . c=2\nb.d=3\n", "a = 1\n\nb.c = 2\nb.d = 3\n"),
            ("[ a . b ]\nc=1\n[[ d ]]\n", "[a.b]\nc = 1\n\n[[d]]\n"),
            ("a={b.c=1,b.d=2 ,e={}}", "a = { b.c = 1, b.d = 2, e = {} }\n"),
            ("a = {\n  b = 1,\n  c = \"#\",\n}\n", "a = { b = 1, c = \"#\" }\n"),
            ("a = {\n  # one\n  b = 1,\n}\n", "a = {\n  # one\n  b = 1,\n}\n"),
        ] {
            assert_eq!(format(text).as_deref(), Ok(wanted), "{text:?}");
        }
    }

    #[test]
    fn aligned_equals_signs_stay_aligned() {
        for (text, wanted) in [
            ("a    = 1\nbcd  = 2\n", "a   = 1\nbcd = 2\n"),
            ("a   = 1   # one\n# two\nbcd = 2\n", "a   = 1   # one\n# two\nbcd = 2\n"),
            // Others do not.
            ("a   = 1\nb = 2\n", "a = 1\nb = 2\n"),
            ("a   = 1\n\nbcd = 2\n", "a = 1\n\nbcd = 2\n"),
            ("a   = 1\nbcd = 2\nlonger = 3\nx = 4\n", "a   = 1\nbcd = 2\nlonger = 3\nx = 4\n"),
            ("[t]\na   = 1\nb.c = 2\n", "[t]\na = 1\nb.c = 2\n"),
            ("a   = 1\n[bcd]\nx = 1\n\"y z\" = 2\n", "a = 1\n\n[bcd]\nx = 1\n\"y z\" = 2\n"),
            ("x     = 1\n\"y z\" = 2\n", "x     = 1\n\"y z\" = 2\n"),
        ] {
            assert_eq!(format(text).as_deref(), Ok(wanted), "{text:?}");
            assert_eq!(format(wanted).as_deref(), Ok(wanted), "{wanted:?}");
        }
    }

    #[test]
    fn line_ends_in_multi_line_strings_are_kept() {
        let text = "a=1 # one\r\n\r\n\r\n# two\r\nb = \"\"\"\r\n x\r\n y\"\"\"\r\nc = [\r\n  1, # one\r\n  2,\r\n]\r\n";
        let formatted =
            "a = 1 # one\n\n# two\nb = \"\"\"\r\n x\r\n y\"\"\"\nc = [\n    1, # one\n    2,\n]\n";
        assert_eq!(format(text).as_deref(), Ok(formatted));
        assert_eq!(format(formatted).as_deref(), Ok(formatted));
    }

    #[test]
    fn invalid_toml_is_rejected_with_its_line() {
        assert!(format("a = = 1").unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn formatting_keeps_comments_and_is_idempotent() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/tests/errors");
        let mut seen = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let Some("toml") = path.extension().and_then(|end| end.to_str()) else { continue };
            let text = std::fs::read_to_string(&path).unwrap();
            let Ok(first) = format(&text) else { continue };
            assert_eq!(format(&first).as_ref(), Ok(&first), "{}", path.display());
            let words = |text: &str| text.matches('#').count();
            assert_eq!(words(&first), words(&text), "{}", path.display());
            seen += 1;
        }
        assert!(seen > 10, "{seen}");
    }
}
