//! Reader of Python and Ruby files as far as they are data: assignments of literals, and calls with literal
//! arguments.

use crate::findings::{EntryIndex, ImportLedger};

/// A setting with its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LiteralSetting {
    pub(super) entry: EntryIndex,
    pub(super) name: String,
    pub(super) values: Vec<String>,
    /// Whether the value, or a part of it, is code that cannot be interpreted.
    pub(super) is_code: bool,
}

/// Placeholder for one process per core.
pub(super) const PER_CORE_PLACEHOLDER: &str = "\u{1}cores";
/// Maximum number of lines of a file.
const LINES_MAX: usize = 20_000;

/// Joins lines within brackets and strings; returns the number of the first line, and the text without
/// comments.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut now = String::new();
    let mut first = 0;
    let mut depth = 0_usize;
    let mut quote: Option<String> = None;
    for (at, line) in text.lines().take(LINES_MAX).enumerate() {
        if now.is_empty() {
            first = at + 1;
        }
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            if let Some(open) = &quote {
                if let Some(after) = rest.strip_prefix('\\') {
                    let len = after.chars().next().map_or(0, char::len_utf8);
                    now.push_str(&rest[..1 + len]);
                    rest = &after[len..];
                    continue;
                }
                if rest.starts_with(open.as_str()) {
                    now.push_str(open);
                    rest = &rest[open.len()..];
                    quote = None;
                    continue;
                }
            } else {
                let open = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|open| rest.starts_with(open));
                if let Some(open) = open {
                    now.push_str(open);
                    quote = Some(open.to_owned());
                    rest = &rest[open.len()..];
                    continue;
                }
                match c {
                    '#' => break,
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            now.push(c);
            rest = &rest[c.len_utf8()..];
        }
        if quote.as_ref().is_some_and(|open| open.len() == 1) {
            quote = None;
        }
        if depth == 0 && quote.is_none() {
            if !now.trim().is_empty() {
                found.push((first, std::mem::take(&mut now).trim_end().to_owned()));
            }
            now.clear();
        } else {
            now.push(' ');
        }
    }
    if !now.trim().is_empty() {
        found.push((first, now));
    }
    found
}

/// Splits at commas outside of brackets and strings.
fn split_commas(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut depth = 0_usize;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                found.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = found.last_mut() {
            last.push(c);
        }
    }
    found.into_iter().map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
}

/// Returns the values of a literal, and a note if they depend on the environment; `None` if it is code.
fn literal_values(
    text: &str,
    known: &[(String, Vec<String>)],
    depth: usize,
) -> Option<(Vec<String>, Option<String>)> {
    let text = text.trim();
    if depth > 8 {
        return None;
    }
    let one = |text: &str| Some((vec![text.to_owned()], None));
    if let Some((_, values)) = known.iter().find(|(name, _)| name == text) {
        return Some((values.clone(), None));
    }
    if text.contains("cpu_count") || text.contains("nprocessors") {
        return one(PER_CORE_PLACEHOLDER);
    }
    for wrapped in ["int(", "str(", "Integer(", "float("] {
        if let Some(inner) = text.strip_prefix(wrapped).and_then(|rest| rest.strip_suffix(')')) {
            return literal_values(inner, known, depth + 1);
        }
    }
    if let Some(inner) = text.strip_suffix(".to_i").or_else(|| text.strip_suffix(".to_s")) {
        return literal_values(inner.trim_start_matches('(').trim_end_matches(')'), known, depth + 1);
    }
    let of_environment = ["os.environ.get(", "os.getenv(", "environ.get(", "ENV.fetch(", "ENV["];
    if let Some(start) = of_environment.iter().find(|start| text.starts_with(**start)) {
        let inner = &text[start.len()..];
        let name = inner.trim_start_matches(['"', '\'']).split(['"', '\'']).next().unwrap_or("").to_owned();
        let default = match () {
            () if inner.contains("||") => inner.split("||").nth(1).map(str::to_owned),
            () if inner.contains('{') => inner
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'))
                .map(|(value, _)| value.to_owned()),
            () => split_commas(inner.trim_end_matches([')', ']'])).get(1).cloned(),
        };
        let (values, _) = literal_values(&default?, known, depth + 1)?;
        return Some((
            values,
            Some(format!(
                "the value that counts without the variable {name}: `komainu` reads no such variables"
            )),
        ));
    }
    let brackets = [('[', ']'), ('(', ')'), ('{', '}')];
    for (open, close) in brackets {
        let Some(inner) = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)) else { continue };
        let mut all = Vec::new();
        for item in split_commas(inner) {
            match item.split_once("=>").or_else(|| if open == '{' { item.split_once(':') } else { None }) {
                Some((key, value)) => {
                    let key = literal_values(key, known, depth + 1)
                        .or_else(|| is_name(key.trim()).then(|| (vec![key.trim().to_owned()], None)))?
                        .0;
                    let (value, _) = literal_values(value, known, depth + 1)?;
                    all.push(format!("{}={}", key.join(","), value.join(",")));
                }
                None => all.extend(literal_values(&item, known, depth + 1)?.0),
            }
        }
        return Some((all, None));
    }
    for quote in ["\"\"\"", "'''", "\"", "'"] {
        let Some(rest) = text.trim_start_matches('r').strip_prefix(quote) else { continue };
        let inner = rest.strip_suffix(quote)?;
        if inner.contains(quote) || inner.contains("#{") {
            return None;
        }
        return one(&inner.replace("\\\\", "\\"));
    }
    match text {
        "ssl.CERT_NONE" => one("0"),
        "ssl.CERT_OPTIONAL" => one("1"),
        "ssl.CERT_REQUIRED" => one("2"),
        "None" | "nil" => Some((Vec::new(), None)),
        "True" | "true" => one("true"),
        "False" | "false" => one("false"),
        _ if text.starts_with(':') => one(&text[1..]),
        _ => {
            let digits = text.replace('_', "");
            digits.parse::<f64>().ok()?;
            one(&digits)
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '!' | '?'))
}

/// Returns the settings of a gunicorn.conf.py.
pub(super) fn read_python(ledger: &ImportLedger, file: &str, text: &str) -> Vec<LiteralSetting> {
    let mut found: Vec<LiteralSetting> = Vec::new();
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    for (line, text) in logical_lines(text) {
        if text.starts_with([' ', '\t']) {
            // Bodies of blocks are covered by the entry of their first line.
            continue;
        }
        let entry = ledger.add_entry(file, line, &text);
        let assigned =
            text.split_once('=').filter(|(name, rest)| is_name(name.trim()) && !rest.starts_with('='));
        match assigned {
            Some((name, value)) => match literal_values(value, &known, 0) {
                Some((values, note)) => {
                    note.into_iter().for_each(|note| ledger.mark_different(entry, note));
                    known.push((name.trim().to_owned(), values.clone()));
                    found.push(LiteralSetting {
                        entry,
                        name: name.trim().to_owned(),
                        values,
                        is_code: false,
                    });
                }
                None => {
                    ledger.mark_impossible(entry, "it is code, not a value: write what it gives");
                    let name = name.trim().to_owned();
                    found.push(LiteralSetting { entry, name, values: Vec::new(), is_code: true });
                }
            },
            None if text.starts_with("import ")
                || text.starts_with("from ")
                || text.starts_with(['"', '\'']) =>
            {
                ledger.mark_not_needed(entry, "not needed");
            }
            None if text.starts_with("def ") || text.starts_with("async def ") => {
                ledger.mark_impossible(
                    entry,
                    "there are no hooks of the server: do it where the application is loaded, or in a lifespan of ASGI",
                );
                let name = text.split("def ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or("");
                found.push(LiteralSetting {
                    entry,
                    name: name.trim().to_owned(),
                    values: Vec::new(),
                    is_code: true,
                });
            }
            None => ledger.mark_impossible(entry, "it is code: write what it sets"),
        }
    }
    found
}

/// Returns the settings of a config/puma.rb: calls and assignments at the top level, including those with a
/// trailing `if` or `unless`. Statements in blocks are reported as not possible.
pub(super) fn read_ruby(ledger: &ImportLedger, file: &str, text: &str) -> Vec<LiteralSetting> {
    let mut found = Vec::new();
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    let mut depth = 0_usize;
    for (line, text) in logical_lines(text) {
        let text = text.trim();
        let first = text.split([' ', '(']).next().unwrap_or("");
        if text == "end" {
            depth = depth.saturating_sub(1);
            continue;
        }
        let entry = ledger.add_entry(file, line, text);
        let (statement, condition) = match text.split_once(" if ").or_else(|| text.split_once(" unless ")) {
            Some((statement, condition)) if !matches!(first, "if" | "unless") => {
                (statement.trim(), Some(condition))
            }
            _ => (text, None),
        };
        let opens = matches!(first, "if" | "unless" | "case" | "def" | "begin" | "while")
            || text.ends_with(" do")
            || text.contains(" do |");
        if opens || depth > 0 {
            depth += usize::from(opens);
            let reason = match first {
                "if" | "unless" | "case" => "it counts under a condition: write what counts on this machine",
                _ => "it is code of the master or the workers: do it where the application is loaded",
            };
            ledger.mark_impossible(entry, reason);
            if first == "bind" || first == "ssl_bind" {
                // The server may listen on other addresses than the default.
                found.push(LiteralSetting {
                    entry,
                    name: "bind".to_owned(),
                    values: Vec::new(),
                    is_code: true,
                });
            }
            continue;
        }
        if first == "require" || first == "require_relative" || matches!(first, "else" | "elsif") {
            ledger.mark_not_needed(entry, "not needed");
            continue;
        }
        let assigned = statement
            .split_once('=')
            .filter(|(name, rest)| is_name(name.trim()) && !rest.starts_with(['=', '>']));
        if let Some((name, value)) = assigned {
            match literal_values(value, &known, 0) {
                Some((values, note)) => {
                    known.push((name.trim().to_owned(), values));
                    match note {
                        Some(note) => ledger.mark_different(entry, note),
                        None => ledger.mark_translated(entry),
                    }
                }
                None => ledger.mark_impossible(entry, "it is code, not a value: write what it gives"),
            }
            continue;
        }
        let end = statement.find([' ', '(']).unwrap_or(statement.len());
        let (name, rest) = statement.split_at(end);
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
        let mut all = Vec::new();
        let mut is_data = is_name(name);
        for argument in split_commas(rest) {
            let named = argument.split_once(": ").filter(|(key, _)| is_name(key));
            let pair = named.map(|(key, value)| format!("{{ '{key}' => {value} }}"));
            match literal_values(pair.as_ref().unwrap_or(&argument), &known, 0) {
                Some((values, note)) => {
                    note.into_iter().for_each(|note| ledger.mark_different(entry, note));
                    all.extend(values);
                }
                None => is_data = false,
            }
        }
        if condition.is_some() {
            ledger.mark_different(
                entry,
                "its condition is left out: remove what was written if it does not hold",
            );
        }
        if !is_data {
            ledger.mark_impossible(entry, "it is code, not a value: write what it gives");
        }
        found.push(LiteralSetting { entry, name: name.to_owned(), values: all, is_code: !is_data });
    }
    found
}
