//! Parser of command lines: of a shell, a Procfile or a systemd unit.

use super::literal::LiteralSetting;
use super::settings::AppSettings;
use crate::findings::Untranslatable;

/// Short options and the corresponding long options.
const SHORT_OPTIONS: [(&str, &str, &str); 20] = [
    ("gunicorn", "b", "bind"),
    ("gunicorn", "w", "workers"),
    ("gunicorn", "k", "worker_class"),
    ("gunicorn", "t", "timeout"),
    ("gunicorn", "u", "user"),
    ("gunicorn", "g", "group"),
    ("gunicorn", "c", "config"),
    ("gunicorn", "e", "env"),
    ("gunicorn", "n", "name"),
    ("gunicorn", "p", "pid"),
    ("puma", "b", "bind"),
    ("puma", "w", "workers"),
    ("puma", "t", "threads"),
    ("puma", "p", "port"),
    ("puma", "e", "environment"),
    ("puma", "C", "config"),
    ("starman", "l", "listen"),
    ("starman", "p", "port"),
    ("starman", "E", "env"),
    ("starman", "I", "include"),
];
/// Long options without a value.
const FLAGS: [&str; 18] = [
    "preload",
    "preload_app",
    "preload!",
    "daemon",
    "daemonize",
    "reload",
    "disable_keepalive",
    "D",
    "reuse_port",
    "check_config",
    "quiet",
    "q",
    "enable_ssl",
    "proxy_protocol",
    "capture_output",
    "no_sendfile",
    "prune_bundler",
    "spew",
];

/// Splits a line into words as a shell does: quotes and backslashes are interpreted, variables are kept.
pub(super) fn split_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Reads a command line; launchers such as `bundle exec` may precede the server.
pub(super) fn read_command(app: &mut AppSettings<'_>, file: &str, line: usize, words: &[String]) {
    let name = app.program_name();
    let is_server = |word: &String| word.rsplit('/').next() == Some(name);
    let mut words = match words.iter().position(is_server) {
        Some(at) => words[at + 1..].iter(),
        None => words.iter(),
    };
    while let Some(word) = words.next() {
        let long = word.strip_prefix("--").filter(|long| !long.is_empty());
        let short = word.strip_prefix('-').filter(|short| long.is_none() && !short.is_empty());
        let (option, mut value) = match (long, short) {
            (Some(long), _) => {
                let (option, value) =
                    long.split_once('=').map_or((long, None), |(option, value)| (option, Some(value)));
                (option.replace('-', "_"), value.map(str::to_owned))
            }
            (None, Some(short)) => {
                let end = short.chars().next().map_or(0, char::len_utf8);
                let (letter, rest) = short.split_at(end);
                let known = SHORT_OPTIONS.iter().find(|(of, known, _)| *of == name && *known == letter);
                let rest = Some(rest.trim_start_matches('=').to_owned()).filter(|rest| !rest.is_empty());
                (known.map_or(letter, |(.., long)| long).to_owned(), rest)
            }
            (None, None) => {
                let entry = app.ledger.add_entry(file, line, word);
                app.translate_setting(LiteralSetting {
                    entry,
                    name: "application".to_owned(),
                    values: vec![word.clone()],
                    is_code: false,
                });
                continue;
            }
        };
        let is_flag = FLAGS.contains(&option.as_str());
        if value.is_none() && !is_flag {
            value = words.next().cloned();
        }
        let shown = format!(
            "{word}{}",
            value.as_ref().filter(|_| !word.contains('=')).map_or(String::new(), |value| format!(" {value}"))
        );
        let entry = app.ledger.add_entry(file, line, &shown);
        let values = vec![value.unwrap_or_else(|| "true".to_owned())];
        app.translate_setting(LiteralSetting { entry, name: option, values, is_code: false });
    }
}

/// Reads a Procfile or a systemd unit.
///
/// # Errors
/// The file has no command of the server.
pub(super) fn read_file(app: &mut AppSettings<'_>, name: &str, text: &str) -> Result<(), Untranslatable> {
    let server = app.program_name();
    let mut found = false;
    for (at, line) in join_continued_lines(text) {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';', '[']) {
            continue;
        }
        let command = match trimmed.split_once('=') {
            Some(("ExecStart", command)) => Some(command.trim_start_matches(['-', '@', '+', '!', ':'])),
            _ if name.starts_with("Procfile") => trimmed.split_once(':').map(|(_, command)| command),
            _ => None,
        };
        if let Some(command) = command {
            let all = split_words(command);
            if all.iter().any(|word| word.rsplit('/').next() == Some(server)) {
                found = true;
                read_command(app, name, at, &all);
            } else {
                let entry = app.ledger.add_entry(name, at, trimmed);
                app.ledger.mark_impossible(
                    entry,
                    format!("this does not start {server}: it needs a service of its own"),
                );
            }
            continue;
        }
        let Some((key, value)) = trimmed.split_once('=') else { continue };
        let entry = app.ledger.add_entry(name, at, trimmed);
        let setting = match key {
            "User" | "Group" => (key.to_lowercase(), vec![value.to_owned()]),
            "WorkingDirectory" => ("chdir".to_owned(), vec![value.to_owned()]),
            "Environment" => ("raw_env".to_owned(), split_words(value)),
            "EnvironmentFile" => {
                app.ledger.mark_impossible(
                    entry,
                    "files of variables are for the service: keep the line in Komainu's own unit",
                );
                continue;
            }
            _ => {
                app.ledger.mark_not_needed(entry, "not needed: Komainu's own unit has it");
                continue;
            }
        };
        app.translate_setting(LiteralSetting { entry, name: setting.0, values: setting.1, is_code: false });
    }
    if found { Ok(()) } else { Err(format!("no line starts `{server}`").into()) }
}

/// Returns lines with their numbers; a line that ends with a backslash is joined with the next one.
fn join_continued_lines(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut now: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        let (first, mut whole) = now.take().unwrap_or((at + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                whole.push_str(part);
                now = Some((first, whole));
            }
            None => {
                whole.push_str(line);
                found.push((first, whole));
            }
        }
    }
    found.extend(now);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_are_split() {
        assert_eq!(split_words(r#"a 'b c' "d \"e\"" f\ g ''"#), ["a", "b c", "d \"e\"", "f g", ""]);
    }
}
