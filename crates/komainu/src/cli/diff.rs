//! `komainu fmt` and `komainu diff`: formatting of configurations, and the effect of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use config::Config;
use failure::{Failure, FailureContext};
use serde_json::{Map, Value};

use crate::check::reading;
use crate::cli::values::parse_process_id;
use crate::cli::{control_client, status};
use crate::run::lifecycle;
use crate::run::staged_files::{StageError, StagedFiles};
use crate::terminal::sanitize;

#[derive(Debug, Args)]
pub(crate) struct FormatArguments {
    /// The files; `-` reads standard input and prints
    #[arg(value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) files: Vec<PathBuf>,
    /// Change nothing, and fail where a file is written otherwise
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Two files, the old and the new one, instead of the running server and `--config`
    #[arg(value_name = "FILE", num_args = 0..=2)]
    pub(crate) files: Vec<PathBuf>,
    /// The configuration file to compare with the running server
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml", conflicts_with = "files")]
    pub(crate) config: PathBuf,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id, conflicts_with = "files")]
    pub(crate) pid: Option<u32>,
}

/// Placeholder for a secret.
const HIDDEN: &str = "(hidden)";

/// Formats files; with `--check`, reports those that are not formatted. Returns the text to print.
///
/// # Errors
/// A file cannot be read, parsed or written; with `--check`, a file is not formatted.
pub(crate) fn run_format(arguments: &FormatArguments) -> Result<String, Failure> {
    let mut others = Vec::new();
    let mut printed = String::new();
    for path in &arguments.files {
        if path == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("standard input")?;
            let formatted = config::format(&text).context("standard input")?;
            match arguments.check {
                true if formatted != text => others.push("standard input".to_owned()),
                true => {}
                false => printed.push_str(&formatted),
            }
            continue;
        }
        let text = reading::read_file(path)?;
        let formatted = config::format(&text).with_context(|| path.display())?;
        if formatted == text {
            continue;
        }
        others.push(path.display().to_string());
        if !arguments.check {
            let staged = StagedFiles::stage(&[(path.clone(), text)], &[(path.clone(), formatted)]);
            let staged = staged.map_err(|error| match error {
                StageError::Changed(_) => {
                    Failure::new(format!("{} has just changed: try again", path.display()))
                }
                StageError::Unwritable(text) => Failure::new(text),
            })?;
            staged.commit().with_context(|| format!("{} cannot be written", path.display()))?;
        }
    }
    match (arguments.check, others.is_empty()) {
        (true, false) => Err(Failure::new(format!("not as `komainu fmt` writes it: {}", others.join(", ")))),
        _ => Ok(printed),
    }
}

/// Returns the changes that a reload of a file would make, or the differences between two files, as text.
///
/// # Errors
/// A configuration is invalid, or there is no server.
pub(crate) fn run_diff(arguments: &DiffArguments) -> Result<String, Failure> {
    let mut awaiting = Vec::new();
    let ((old_path, old_text), new_path) = match arguments.files.as_slice() {
        [] => {
            let (text, late) = running_config(arguments)?;
            awaiting = late;
            ((arguments.config.clone(), text), arguments.config.clone())
        }
        [old, new] => ((old.clone(), reading::read_text(old)?), new.clone()),
        _ => {
            return Err(Failure::new(
                "name two files, or none to compare `--config` with the running server",
            ));
        }
    };
    let new_text = reading::read_text(&new_path)?;
    let old = DiffSide::read_side(&old_path, &old_text)?;
    let new = DiffSide::read_side(&new_path, &new_text)?;
    let mut changes = Vec::new();
    compare("", Some(&old.tree), Some(&new.tree), false, &mut changes);
    let late = lifecycle::changes_requiring_restart(&old.config, &new.config);
    let is_coloured =
        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut said = format_changes(&changes, &late, is_coloured);
    awaiting.retain(|directive| !late.contains(&directive.as_str()));
    if !awaiting.is_empty() {
        let what = sanitize(&awaiting.join(", "));
        said.push_str(&format!(
            "a restart or an upgrade is still to apply what was changed before: {what}\n"
        ));
    }
    Ok(said)
}

/// Returns the configuration of the running server, and the directives in it that only a restart applies; of several
/// servers, of the one that uses the configuration file.
fn running_config(arguments: &DiffArguments) -> Result<(String, Vec<String>), Failure> {
    let one = match arguments.pid {
        None => status::select_pid(None).or_else(|_| status::pid_for_file(&arguments.config))?,
        pid => status::select_pid(pid)?,
    };
    let answer = control_client::send_command(one, "config")?;
    match answer["text"].as_str() {
        Some(text) if !text.is_empty() => {
            let names = answer["awaiting_restart"].as_array().into_iter().flatten();
            Ok((text.to_owned(), names.filter_map(Value::as_str).map(str::to_owned).collect()))
        }
        _ => Err(Failure::new("the server was started without a configuration file: name two files")),
    }
}

struct DiffSide {
    config: Config,
    tree: Value,
}

impl DiffSide {
    fn read_side(path: &Path, text: &str) -> Result<DiffSide, Failure> {
        let config = reading::parse_silently(path, text)?;
        let tree = config::directive_tree(text, &reading::environment).unwrap_or_default();
        Ok(DiffSide { config, tree })
    }
}

/// A difference in a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectiveChange {
    /// Position of the directive: `site a.test, route /api/*: proxy`.
    place: String,
    old: Option<String>,
    new: Option<String>,
}

/// Compares tables by key, lists of tables by the names of their entries, and everything else by value.
fn compare(
    place: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    is_secret: bool,
    changes: &mut Vec<DirectiveChange>,
) {
    if old == new {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let before = old.get(key);
                let after = new.get(key);
                let is_secret =
                    is_secret || [before, after].into_iter().flatten().any(|value| holds_secret(key, value));
                compare(&join_place(place, key), before, after, is_secret, changes);
            }
        }
        (old, new) if is_table_list(old) || is_table_list(new) => {
            compare_lists(place, old, new, is_secret, changes)
        }
        (old, new) => {
            let text =
                |value: &Value| if is_secret { HIDDEN.to_owned() } else { hide_secrets(value).to_string() };
            let place = place.trim_end_matches(',').to_owned();
            changes.push(DirectiveChange { place, old: old.map(text), new: new.map(text) });
        }
    }
}

/// Compares lists of tables: entries with the same name are compared, regardless of their positions.
fn compare_lists(
    place: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    is_secret: bool,
    changes: &mut Vec<DirectiveChange>,
) {
    let kind = place.rsplit([' ', '.']).next().unwrap_or(place);
    let prefix = place.strip_suffix(kind).unwrap_or(place);
    let old = name_tables(kind, old);
    let new = name_tables(kind, new);
    let by_name = |all: &[(String, Value)]| all.iter().cloned().collect::<BTreeMap<String, Value>>();
    let olds = by_name(&old);
    let news = by_name(&new);
    for (name, _) in &old {
        compare(&format!("{prefix}{kind} {name},"), olds.get(name), news.get(name), is_secret, changes);
    }
    for (at, (name, table)) in new.iter().enumerate().filter(|(_, (name, _))| !olds.contains_key(name)) {
        // A route in front of others decides instead of them.
        let next = new[at..].iter().find(|(name, _)| olds.contains_key(name));
        let position = next.map_or(String::new(), |(next, _)| format!(" (before {next})"));
        compare(&format!("{prefix}{kind} {name}{position},"), None, Some(table), is_secret, changes);
    }
    let common = |all: &[(String, Value)], other: &BTreeMap<String, Value>| {
        let names = all.iter().map(|(name, _)| name.clone());
        names.filter(|name| other.contains_key(name)).collect::<Vec<_>>()
    };
    let before = common(&old, &news);
    let after = common(&new, &olds);
    if before != after {
        let text = |names: Vec<String>| Some(names.join("; "));
        let place = format!("{prefix}order of {kind}s");
        changes.push(DirectiveChange { place, old: text(before), new: text(after) });
    }
}

/// Whether a key names a password, a token, a secret or a key of an API, rather than a file that contains one. A single
/// word `key` is a directive.
fn names_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let words =
        ["secret", "password", "passwd", "passphrase", "token", "authorization", "credential", "apikey"];
    let is_key =
        key.rsplit_once(['_', '-']).is_some_and(|(_, last)| last == "key") || key.contains("access_key");
    (is_key || words.iter().any(|word| key.contains(word))) && !key.ends_with("_file")
}

/// Whether the value of a key is secret. Header fields sent to a collector are included, since they may
/// contain API keys.
fn holds_secret(key: &str, value: &Value) -> bool {
    names_secret(key) || (key == "headers" && value.is_object())
}

/// Returns a value with secrets and passwords in URLs replaced.
fn hide_secrets(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let shown = |key: &String, value| {
                if holds_secret(key, value) { HIDDEN.into() } else { hide_secrets(value) }
            };
            Value::Object(entries.iter().map(|(key, value)| (key.clone(), shown(key, value))).collect())
        }
        Value::Array(items) => items.iter().map(hide_secrets).collect(),
        Value::String(text) => Value::from(hide_url_password(text)),
        other => other.clone(),
    }
}

/// Returns `scheme://USER:PASSWORD@…` with the password replaced.
fn hide_url_password(text: &str) -> String {
    let shortened = text.split_once("://").and_then(|(scheme, rest)| {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (user, host) = rest[..end].rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:{HIDDEN}@{host}{}", &rest[end..]))
    });
    shortened.unwrap_or_else(|| text.to_owned())
}

fn join_place(place: &str, key: &str) -> String {
    match place {
        "" => key.to_owned(),
        place if place.ends_with(',') => format!("{place} {key}"),
        place => format!("{place}.{key}"),
    }
}

fn is_table_list(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Array(items)) if !items.is_empty() && items.iter().all(Value::is_object))
}

/// Names the tables of a list: sites by their hosts, routes by their paths and conditions. Duplicate names
/// are numbered.
fn name_tables(kind: &str, list: Option<&Value>) -> Vec<(String, Value)> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let tables = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice).iter();
    tables
        .map(|table| {
            let base = table.as_object().map(|table| table_name(kind, table)).unwrap_or_default();
            let count = seen.entry(base.clone()).or_default();
            *count += 1;
            let name = if *count > 1 { format!("{base} ({count})") } else { base };
            (name, table.clone())
        })
        .collect()
}

fn table_name(kind: &str, table: &Map<String, Value>) -> String {
    let keys: &[&str] = match kind {
        "site" => &["hosts"],
        "route" => &["path", "method", "header", "query", "host"],
        "listen" => &["address"],
        _ => &["name", "key", "path", "status", "paths", "url", "to"],
    };
    let text = |value: &Value| match hide_secrets(value) {
        Value::String(text) => text,
        Value::Array(items) => {
            let items =
                items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned));
            items.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    let parts: Vec<String> = keys.iter().filter_map(|key| table.get(*key)).map(text).collect();
    if parts.is_empty() { "*".to_owned() } else { parts.join(" ") }
}

/// Formats the changes: `+` added, `-` removed, `~` changed.
fn format_changes(changes: &[DirectiveChange], late: &[&str], is_coloured: bool) -> String {
    let mut out = String::new();
    for DirectiveChange { place, old, new } in changes {
        let (colour, line) = match (old, new) {
            (None, Some(new)) => (32, format!("+ {place} = {new}")),
            (Some(old), None) => (31, format!("- {place} = {old}")),
            (old, new) => {
                let old = old.as_deref().unwrap_or_default();
                let new = new.as_deref().unwrap_or_default();
                (33, format!("~ {place}: {old} -> {new}"))
            }
        };
        let line = sanitize(&line).replace('\n', " ");
        if is_coloured {
            out.push_str(&format!("\u{1b}[{colour}m{line}\u{1b}[0m\n"))
        } else {
            out.push_str(&format!("{line}\n"))
        }
    }
    match (changes.is_empty(), late.is_empty()) {
        // Relative paths may refer to other files in another directory, but the directives are the same.
        (true, _) => out.push_str("nothing would change\n"),
        (false, true) => out.push_str("a reload applies all of it\n"),
        (false, false) => out.push_str(&format!(
            "a reload applies all of it but {}: only a restart or an upgrade does\n",
            late.join(", ")
        )),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(old: &str, new: &str) -> Vec<String> {
        let tree = |text: &str| config::directive_tree(text, &|_| None).unwrap();
        let mut changes = Vec::new();
        compare("", Some(&tree(old)), Some(&tree(new)), false, &mut changes);
        let text = format_changes(&changes, &[], false);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.pop();
        lines
    }

    #[test]
    fn diff_identifies_sites_by_hosts_and_routes_by_paths() {
        let old = "threads = 2\n[[site]]\nhosts = [\"a.test\", \"b.test\"]\n[[site.route]]\npath = \"/x\"\nproxy = \"http://one\"\n\
            [[site.route]]\nfiles = \"www\"\n[[site]]\nhosts = [\"old.test\"]\nrespond = 1\n";
        let new = "[[site]]\nhosts = [\"new.test\"]\nrespond = 1\n[[site]]\nhosts = [\"a.test\", \"b.test\"]\n[[site.route]]\nfiles = \"www\"\n\
            [[site.route]]\npath = \"/x\"\nproxy = \"http://two\"\nlimit = { rate = \"1/s\" }\n";
        assert_eq!(
            changes(old, new),
            [
                "+ site a.test b.test, route /x, limit = {\"rate\":\"1/s\"}",
                "~ site a.test b.test, route /x, proxy: \"http://one\" -> \"http://two\"",
                "~ site a.test b.test, order of routes: /x; * -> *; /x",
                "- site old.test = {\"hosts\":[\"old.test\"],\"respond\":1}",
                "+ site new.test (before a.test b.test) = {\"hosts\":[\"new.test\"],\"respond\":1}",
                "- threads = 2",
            ]
        );
        assert!(changes(old, old).is_empty() && changes("# a\na.b = 1", "[a]\nb = 1").is_empty());
    }

    #[test]
    fn diff_shows_where_a_route_was_added() {
        let route = |text: &str| format!("[[site.route]]\n{text}\n");
        let (site, x) = ("[[site]]\nhosts = [\"a.test\"]\n", route("path = \"/x\"\nrespond = 1"));
        let (y, all) = (route("path = \"/y\"\nrespond = 2"), route("respond = 3"));
        let added =
            |routes: &[&str]| changes(&[site, &x, &y].concat(), &[&[site][..], routes].concat().concat());
        assert_eq!(added(&[&all, &x, &y]), ["+ site a.test, route * (before /x) = {\"respond\":3}"]);
        assert_eq!(added(&[&x, &all, &y]), ["+ site a.test, route * (before /y) = {\"respond\":3}"]);
        assert_eq!(added(&[&x, &y, &all]), ["+ site a.test, route * = {\"respond\":3}"]);
    }

    #[test]
    fn diff_hides_secrets_and_control_characters() {
        assert_eq!(
            changes(
                "[upstreams.api]\nto = [\"http://a\"]\n[log]\nlevel = \"info\"",
                "[upstreams.api]\nto = [\"http://a\", \"http://b\"]\n"
            ),
            [
                "- log = {\"level\":\"info\"}",
                "~ upstreams.api.to: [\"http://a\"] -> [\"http://a\",\"http://b\"]"
            ]
        );
        assert_eq!(
            changes("client_secret = \"x\"", "client_secret = \"y\""),
            ["~ client_secret: (hidden) -> (hidden)"]
        );
        for name in ["API_KEY", "AWS_ACCESS_KEY_ID", "x-api-key", "MYSQL_PASSWD"] {
            let [old, new] = [1, 2].map(|value| format!("[apps.a.env]\n{name} = \"{value}\""));
            assert_eq!(changes(&old, &new), [format!("~ apps.a.env.{name}: (hidden) -> (hidden)")]);
        }
        // Secrets are hidden in added tables as well as in changed ones.
        let site = "[[site]]\nhosts = [\"token.test\"]\n";
        let env = "[apps.a.env]\nDB = \"pg://me:pw@db/x\"\nSECRET_KEY = \"k\"\nkey_file = \"f\"\n";
        let shown_env = "{\"DB\":\"pg://me:(hidden)@db/x\",\"SECRET_KEY\":\"(hidden)\",\"key_file\":\"f\"}";
        assert_eq!(
            changes("", &format!("{env}{site}")),
            [
                format!("+ apps = {{\"a\":{{\"env\":{shown_env}}}}}"),
                "+ site token.test = {\"hosts\":[\"token.test\"]}".into()
            ]
        );
        let coloured = format_changes(
            &[DirectiveChange { place: "a\u{1b}b".into(), old: None, new: Some("1".into()) }],
            &["`user`"],
            true,
        );
        assert!(
            coloured.starts_with("\u{1b}[32m+ a?b = 1\u{1b}[0m\n") && coloured.contains("but `user`"),
            "{coloured}"
        );
    }
}
