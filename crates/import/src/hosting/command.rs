//! Parser of command lines: of a shell, a Procfile or a systemd unit.

use super::literal::LiteralSetting;
use super::settings::{AppSettings, SettingSource};
use crate::findings::{EntryIndex, Untranslatable};
use crate::kind::ImportKind;

/// Short options and the corresponding long options.
const SHORT_OPTIONS: [(&str, &str, &str); 30] = [
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
    ("gunicorn", "R", "enable_stdio_inheritance"),
    ("puma", "I", "include"),
    ("starman", "l", "listen"),
    ("starman", "o", "host"),
    ("starman", "p", "port"),
    ("starman", "S", "socket"),
    ("starman", "a", "application"),
    ("starman", "E", "env"),
    ("starman", "I", "include"),
    ("passenger", "a", "address"),
    ("passenger", "p", "port"),
    ("passenger", "S", "socket_file"),
    ("passenger", "e", "environment"),
    ("passenger", "R", "startup_file"),
];
/// Long options without a value.
const FLAGS: &str = "preload preload_app preload! daemon daemonize reload disable_keepalive D reuse_port check_config \
    print_config quiet q enable_ssl proxy_protocol capture_output no_sendfile prune_bundler spew initgroups \
    do_handshake_on_connect suppress_ragged_eofs strip_header_spaces permit_obsolete_folding \
    permit_unconventional_http_method permit_unconventional_http_version casefold_http_method log_syslog \
    enable_stdio_inheritance disable_redirect_access_to_syslog enable_backlog_metric control_socket_disable \
    http2_cleartext debug early_hints no_config log_requests redirect_append no_default_middleware r ssl";

/// Whether an option has no value of its own.
fn is_flag(server: &str, option: &str) -> bool {
    let is_of_starman =
        server == "starman" && (option.starts_with("enable_") || option.starts_with("disable_"));
    // `--ssl` of Starman has a value, that of Passenger none.
    is_of_starman
        || FLAGS.split_ascii_whitespace().any(|flag| flag == option)
            && (option != "ssl" || server == "passenger")
}

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
    let start = words.iter().position(is_server);
    let (launcher, own) = words.split_at(start.unwrap_or(0));
    read_launcher(app, (file, line), launcher);
    let mut words = own[usize::from(start.is_some())..].iter().peekable();
    words.next_if(|word| app.kind == ImportKind::Passenger && *word == "start");
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
                app.add_setting(LiteralSetting::new(entry, "application", vec![word.clone()]));
                continue;
            }
        };
        if value.is_none() && !is_flag(name, &option) {
            value = words.next().cloned();
        }
        if value.is_none() && option == "proxy_protocol" {
            value = words.next_if(|word| matches!(word.as_str(), "off" | "v1" | "v2" | "auto")).cloned();
        }
        let shown = format!(
            "{word}{}",
            value.as_ref().filter(|_| !word.contains('=')).map_or(String::new(), |value| format!(" {value}"))
        );
        let entry = app.ledger.add_entry(file, line, &shown);
        let value = value.unwrap_or_else(|| "true".to_owned());
        if value.contains('$') && !matches!(option.as_str(), "env" | "raw_env" | "environment") {
            app.ledger
                .mark_impossible(entry, "it depends on the environment: write what counts on this machine");
            app.add_setting(LiteralSetting::code(entry, option, &value, false));
        } else {
            app.add_setting(LiteralSetting::new(entry, option, vec![value]));
        }
    }
}

/// Reads what precedes the server in a command: variables, and launchers such as `bundle exec`.
fn read_launcher(app: &mut AppSettings<'_>, (file, line): (&str, usize), words: &[String]) {
    let assigned = |word: &String| word.split_once('=').is_some_and(|(name, _)| is_variable(name));
    let variables: Vec<String> = words.iter().filter(|word| assigned(word)).cloned().collect();
    if !variables.is_empty() {
        let entry = app.ledger.add_entry(file, line, &variables.join(" "));
        add_environment(app, (file, line, entry), variables);
    }
    let launchers: Vec<&str> = words.iter().filter(|word| !assigned(word)).map(String::as_str).collect();
    if !launchers.is_empty() {
        let entry = app.ledger.add_entry(file, line, &launchers.join(" "));
        app.ledger.mark_not_needed(entry, "not needed: Komainu starts the application by itself");
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Adds variables of the environment, among which are arguments of the server.
fn add_environment(
    app: &mut AppSettings<'_>,
    (file, line, entry): (&str, usize, EntryIndex),
    pairs: Vec<String>,
) {
    let (arguments, pairs): (Vec<String>, Vec<String>) = pairs
        .into_iter()
        .partition(|pair| app.kind == ImportKind::Gunicorn && pair.starts_with("GUNICORN_CMD_ARGS="));
    for pair in &arguments {
        let before = std::mem::replace(&mut app.source, SettingSource::Environment);
        let words = pair.split_once('=').map_or_else(Vec::new, |(_, text)| split_words(text));
        read_command(app, file, line, &words);
        app.source = before;
        app.ledger.mark_translated(entry);
    }
    if !pairs.is_empty() {
        app.add_setting(LiteralSetting::new(entry, "envvars", pairs));
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
        read_unit_line(app, (name, at, entry), key, value.trim());
    }
    if found { Ok(()) } else { Err(format!("no line starts `{server}`").into()) }
}

/// Directives of units that every service has.
const COMMON_DIRECTIVES: &str = "Description Documentation After Before Wants Requires Type NotifyAccess PIDFile \
    ExecReload ExecStop KillMode KillSignal Restart RestartSec TimeoutSec TimeoutStartSec TimeoutStopSec WantedBy \
    RequiredBy Alias StartLimitBurst StartLimitInterval StartLimitIntervalSec SyslogIdentifier StandardOutput \
    StandardError RemainAfterExit";

/// Reads a line of a systemd unit.
fn read_unit_line(
    app: &mut AppSettings<'_>,
    (file, line, entry): (&str, usize, EntryIndex),
    key: &str,
    value: &str,
) {
    let is_socket = matches!(key, "Requires" | "Sockets" | "BindsTo" | "Wants")
        && value.split_whitespace().any(|unit| unit.ends_with(".socket"));
    match key {
        "User" | "Group" => {
            app.add_setting(LiteralSetting::new(entry, key.to_lowercase(), vec![value.to_owned()]));
        }
        "WorkingDirectory" => {
            app.working_folder = Some(value.trim_start_matches('-').into());
            app.add_setting(LiteralSetting::new(entry, "chdir", vec![value.to_owned()]));
        }
        "Environment" => add_environment(app, (file, line, entry), split_words(value)),
        "EnvironmentFile" => app.ledger.mark_impossible(
            entry,
            "files of variables are for the service: keep the line in Komainu's own unit",
        ),
        _ if is_socket => {
            app.ledger.mark_impossible(
                entry,
                "the addresses stand in the unit of the socket: write them in `listen`",
            );
            app.code_addresses.push(entry);
        }
        "IPAddressDeny"
        | "IPAddressAllow"
        | "PrivateNetwork"
        | "IPIngressFilterPath"
        | "SocketBindDeny"
        | "SocketBindAllow"
        | "RestrictNetworkInterfaces"
        | "RestrictAddressFamilies"
        | "NetworkNamespacePath"
        | "JoinsNamespaceOf" => {
            app.close_for(entry, "it refuses connections: keep the line in Komainu's own unit");
        }
        _ if COMMON_DIRECTIVES.split_ascii_whitespace().any(|known| known == key) => {
            app.ledger.mark_not_needed(entry, "not needed: Komainu's own unit has it");
        }
        _ => app.ledger.mark_different(entry, "keep the line in Komainu's own unit if it is needed there"),
    }
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
