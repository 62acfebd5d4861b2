//! Reader of Python and Ruby files as far as they are data: assignments of literals, and calls with literal
//! arguments.

use super::options::{is_harmless, is_of_gunicorn, named_settings};
use crate::findings::{EntryIndex, ImportLedger};
use crate::kind::ImportKind;

/// A setting with its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LiteralSetting {
    pub(super) entry: EntryIndex,
    pub(super) name: String,
    pub(super) values: Vec<String>,
    /// The line, if the value, or a part of it, is code that cannot be interpreted.
    pub(super) code: Option<String>,
    /// Whether the setting may not count.
    pub(super) is_conditional: bool,
}

impl LiteralSetting {
    pub(super) fn new(entry: EntryIndex, name: impl Into<String>, values: Vec<String>) -> Self {
        Self { entry, name: name.into(), values, code: None, is_conditional: false }
    }

    /// A setting whose value is code. It counts always if it is not within a block.
    pub(super) fn code(entry: EntryIndex, name: impl Into<String>, text: &str, is_conditional: bool) -> Self {
        let code = Some(text.to_owned());
        Self { entry, name: name.into(), values: Vec::new(), code, is_conditional }
    }
}

/// Name of the settings of a line that may set any.
pub(super) const ANY_SETTING: &str = "(any)";
/// Parts of Python code that may set any setting.
const PYTHON_NAMESPACES: [&str; 8] =
    ["globals(", "locals(", "vars(", "exec(", "eval(", "setattr(", "__import__(", "import *"];
/// Remark on a setting whose value depends on the environment.
const DEPENDS_REASON: &str = "it depends on the environment: write what counts on this machine";
/// Parts of Python code that change the application.
const PYTHON_APPLICATIONS: [&str; 5] = [".wsgi", ".callable", ".app", ".cfg", "load_wsgi"];

/// Placeholder for one process per core.
pub(super) const PER_CORE_PLACEHOLDER: &str = "\u{1}cores";
/// Maximum number of lines of a file.
const LINES_MAX: usize = 20_000;

/// Ends of lines after which a statement continues in the next line, in both languages and in Ruby.
const CONTINUED: [&str; 1] = ["\\"];
const CONTINUED_RUBY: [&str; 7] = ["\\", ",", "&&", "||", "+", "=>", "="];

/// Joins lines within brackets and strings and those that `continued` ends; returns the number of the first line, and
/// the text without comments.
fn logical_lines(text: &str, continued: &[&str]) -> Vec<(usize, String)> {
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
        let end = now.trim_end();
        let continues = quote.is_none() && continued.iter().any(|part| end.ends_with(part));
        if continues {
            let kept = end.strip_suffix('\\').unwrap_or(end).len();
            now.truncate(kept);
            now.push(' ');
        } else if depth == 0 && quote.is_none() {
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
        let plain = inner.replace("\\\\", "\u{1}");
        if inner.contains(quote) || inner.contains("#{") || plain.contains('\\') {
            return None;
        }
        return one(&plain.replace('\u{1}', "\\"));
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

/// Whether code reads the environment, or a variable of `names`, whose value depends on it.
fn depends_on_environment(text: &str, names: &[String]) -> bool {
    ["ENV", "environ", "getenv"].iter().any(|part| text.contains(part))
        || text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| names.iter().any(|name| name == word))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '!' | '?'))
}

/// Returns the settings of a gunicorn.conf.py.
pub(super) fn read_python(ledger: &ImportLedger, file: &str, text: &str) -> Vec<LiteralSetting> {
    let mut found: Vec<LiteralSetting> = Vec::new();
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    let mut of_environment: Vec<String> = Vec::new();
    let mut is_in_function = false;
    for (line, text) in logical_lines(text, &CONTINUED) {
        if text.starts_with([' ', '\t']) {
            read_python_body(ledger, (file, line), &text, is_in_function, &mut found);
            continue;
        }
        let entry = ledger.add_entry(file, line, &text);
        is_in_function = text.starts_with("def ") || text.starts_with("async def ");
        let mut names = named_settings(ImportKind::Gunicorn, &text);
        if PYTHON_NAMESPACES.iter().any(|part| text.contains(part)) {
            names.push(ANY_SETTING);
        }
        let assigned =
            text.split_once('=').filter(|(name, rest)| is_name(name.trim()) && !rest.starts_with('='));
        match assigned {
            Some((name, value)) => {
                let name = name.trim();
                match literal_values(value, &known, 0) {
                    Some((values, note)) => {
                        known.retain(|(other, _)| other != name);
                        known.push((name.to_owned(), values.clone()));
                        let depends = depends_on_environment(value, &of_environment);
                        of_environment.extend(depends.then(|| name.to_owned()));
                        let is_guard = is_of_gunicorn(name)
                            && !is_harmless(ImportKind::Gunicorn, name)
                            && !matches!(name, "bind" | "wsgi_app");
                        if is_guard && depends {
                            ledger.mark_impossible(entry, DEPENDS_REASON);
                            found.push(LiteralSetting::code(entry, name, &text, false));
                            continue;
                        }
                        note.into_iter().for_each(|note| ledger.mark_different(entry, note));
                        found.push(LiteralSetting::new(entry, name, values));
                    }
                    None => {
                        ledger.mark_impossible(entry, "it is code, not a value: write what it gives");
                        known.retain(|(other, _)| other != name);
                        let own = (!names.contains(&name)).then_some(name);
                        let all = own.into_iter().chain(names);
                        found.extend(all.map(|name| LiteralSetting::code(entry, name, &text, false)));
                    }
                }
            }
            None if (text.starts_with("import ")
                || text.starts_with("from ")
                || text.starts_with(['"', '\'']))
                && (names.is_empty() || text.starts_with(['"', '\''])) =>
            {
                ledger.mark_not_needed(entry, "not needed");
            }
            None if is_in_function => {
                ledger.mark_impossible(
                    entry,
                    "there are no hooks of the server: do it where the application is loaded, or in a lifespan of ASGI",
                );
                let name = text.split("def ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or("");
                found.push(LiteralSetting::code(entry, name.trim(), &text, false));
            }
            None => {
                ledger.mark_impossible(entry, "it is code: write what it sets");
                found.extend(names.into_iter().map(|name| LiteralSetting::code(entry, name, &text, true)));
            }
        }
    }
    found
}

/// Reads a line of a block. Its settings may count if the block is no function.
fn read_python_body(
    ledger: &ImportLedger,
    (file, line): (&str, usize),
    text: &str,
    is_in_function: bool,
    found: &mut Vec<LiteralSetting>,
) {
    let is_global = text.trim_start().starts_with("global ");
    let mut names =
        if is_in_function && !is_global { Vec::new() } else { named_settings(ImportKind::Gunicorn, text) };
    let changes = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if changes(&PYTHON_NAMESPACES) || is_in_function && changes(&PYTHON_APPLICATIONS) {
        names.push(ANY_SETTING);
    }
    if names.is_empty() {
        // The entry of the block's first line covers the others.
        return;
    }
    let entry = ledger.add_entry(file, line, text.trim());
    let reason = if is_in_function {
        "this hook may change the application: do it where the application is loaded"
    } else {
        "it counts under a condition: write what counts on this machine"
    };
    ledger.mark_impossible(entry, reason);
    found.extend(names.into_iter().map(|name| LiteralSetting::code(entry, name, text, true)));
}

/// Returns the settings of a config/puma.rb: calls and assignments at the top level. Statements in blocks and those
/// with a trailing `if` or `unless` are reported as not possible if they may refuse requests.
pub(super) fn read_ruby(ledger: &ImportLedger, file: &str, text: &str) -> Vec<LiteralSetting> {
    let mut reader = RubyReader {
        ledger,
        file,
        found: Vec::new(),
        known: Vec::new(),
        of_environment: Vec::new(),
        blocks: Vec::new(),
    };
    for (line, text) in logical_lines(&without_ruby_documents(text), &CONTINUED_RUBY) {
        reader.read_line(line, text.trim());
    }
    reader.found
}

/// Replaces lines between `=begin` and `=end`, and those after `__END__`, by empty ones.
fn without_ruby_documents(text: &str) -> String {
    let mut is_document = false;
    let mut is_end = false;
    let mut out = String::new();
    for line in text.lines() {
        is_document |= line.starts_with("=begin");
        is_end |= line == "__END__";
        if !is_document && !is_end {
            out.push_str(line);
        }
        is_document &= !line.starts_with("=end");
        out.push('\n');
    }
    out
}

/// Words of Ruby that open a block whose statements are executed in place.
const RUBY_BLOCKS: [&str; 8] = ["if", "unless", "case", "begin", "while", "until", "for", "def"];

struct RubyReader<'a> {
    ledger: &'a ImportLedger,
    file: &'a str,
    found: Vec<LiteralSetting>,
    known: Vec<(String, Vec<String>)>,
    /// Variables whose values depend on the environment.
    of_environment: Vec<String>,
    /// Open blocks: whether their statements are those of Puma's file.
    blocks: Vec<bool>,
}

impl RubyReader<'_> {
    fn add_code(&mut self, entry: EntryIndex, text: &str, names: &[&str], is_conditional: bool) {
        for name in names {
            self.found.push(LiteralSetting::code(entry, *name, text, is_conditional));
        }
    }

    fn read_line(&mut self, line: usize, text: &str) {
        let first = text.split([' ', '(', ';']).next().unwrap_or("");
        if text == "end" || text.starts_with("end.") || text.starts_with("end)") {
            self.blocks.pop();
            return;
        }
        let entry = self.ledger.add_entry(self.file, line, text);
        let (statement, condition) = match text.split_once(" if ").or_else(|| text.split_once(" unless ")) {
            Some((statement, condition)) if !RUBY_BLOCKS.contains(&first) => {
                (statement.trim(), Some(condition))
            }
            _ => (text, None),
        };
        let opens = RUBY_BLOCKS.contains(&first)
            || text.ends_with(" do")
            || text.contains(" do |")
            || text.ends_with("= begin");
        let is_closed = text.ends_with(" end") || text.ends_with(";end");
        if opens || !self.blocks.is_empty() {
            let reason = match first {
                "if" | "unless" | "case" => "it counts under a condition: write what counts on this machine",
                _ => "it is code of the master or the workers: do it where the application is loaded",
            };
            self.ledger.mark_impossible(entry, reason);
            let is_of_server = self.blocks.iter().all(|is_of_server| *is_of_server);
            if is_of_server {
                self.add_code(entry, text, &ruby_settings(text, first), true);
            }
            if opens && !is_closed {
                // Blocks of hooks and methods are executed later.
                let is_hook = first == "def" || first != "app" && is_harmless(ImportKind::Puma, first);
                self.blocks.push(is_of_server && !is_hook);
            }
            return;
        }
        if first == "require" || first == "require_relative" || matches!(first, "else" | "elsif") {
            self.ledger.mark_not_needed(entry, "not needed");
            return;
        }
        let assigned = statement
            .split_once('=')
            .filter(|(name, rest)| is_name(name.trim()) && !rest.starts_with(['=', '>', '~']));
        if let Some((name, value)) = assigned {
            self.known.retain(|(other, _)| other != name.trim());
            if depends_on_environment(value, &self.of_environment) {
                self.of_environment.push(name.trim().to_owned());
            }
            match literal_values(value, &self.known, 0).filter(|_| condition.is_none()) {
                Some((values, note)) => {
                    self.known.push((name.trim().to_owned(), values));
                    match note {
                        Some(note) => self.ledger.mark_different(entry, note),
                        None => self.ledger.mark_translated(entry),
                    }
                }
                None => {
                    self.ledger.mark_impossible(entry, "it is code, not a value: write what it gives");
                    let names = named_settings(ImportKind::Puma, value);
                    self.add_code(entry, text, &names, condition.is_some());
                }
            }
            return;
        }
        self.read_call(entry, text, statement, condition.is_some());
    }

    fn read_call(&mut self, entry: EntryIndex, text: &str, statement: &str, is_conditional: bool) {
        let end = statement.find([' ', '(']).unwrap_or(statement.len());
        let (name, rest) = statement.split_at(end);
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
        let mut all = Vec::new();
        let mut is_data = is_name(name);
        let mut depends = false;
        for argument in split_commas(rest) {
            let named = argument.split_once(": ").filter(|(key, _)| is_name(key));
            let pair = named.map(|(key, value)| format!("{{ '{key}' => {value} }}"));
            depends |= depends_on_environment(&argument, &self.of_environment);
            match literal_values(pair.as_ref().unwrap_or(&argument), &self.known, 0) {
                Some((values, note)) => {
                    note.into_iter().for_each(|note| self.ledger.mark_different(entry, note));
                    all.extend(values);
                }
                None => is_data = false,
            }
        }
        let is_plain = is_harmless(ImportKind::Puma, name);
        if is_plain && is_data && is_conditional {
            let reason = "its condition is left out: remove what was written if it does not hold";
            self.ledger.mark_different(entry, reason);
        }
        // A certificate of clients, and others, may depend on the environment.
        let depends = depends && !is_plain && !matches!(name, "bind" | "port" | "rackup");
        if is_data && !depends && (is_plain || !is_conditional) {
            self.found.push(LiteralSetting::new(entry, name, all));
            return;
        }
        let reason = match is_data {
            true if is_conditional => "it counts under a condition: write what counts on this machine",
            true => DEPENDS_REASON,
            false => "it is code, not a value: write what it gives",
        };
        self.ledger.mark_impossible(entry, reason);
        let names = ruby_settings(text, name);
        self.add_code(entry, text, &names, is_conditional);
    }
}

/// Returns the settings that a line of code may make. An unknown word at its start may be a method that makes any; a
/// method of another object makes none, unless it gets Puma's.
fn ruby_settings<'t>(text: &'t str, first: &'t str) -> Vec<&'t str> {
    let mut names = named_settings(ImportKind::Puma, text);
    let is_of_other = first.contains(['.', '[', ':']) || first.starts_with(char::is_uppercase);
    let passes_server =
        text.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "self" | "binding"));
    let is_known =
        RUBY_BLOCKS.contains(&first) || is_harmless(ImportKind::Puma, first) || names.contains(&first);
    let is_assigned =
        text.split_once('=').is_some_and(|(name, _)| is_name(name.trim_end_matches(['|', ' '])));
    if passes_server || !is_of_other && !is_known && !is_assigned {
        names.push(ANY_SETTING);
    }
    names
}
