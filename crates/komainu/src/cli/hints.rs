//! Hints for commands and flags of other programs, with their equivalents here.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::cli::arguments::Cli;

/// Parses the command line of this process. Invalid ones end the process with an error and a hint.
pub(crate) fn parse_arguments() -> Cli {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    Cli::try_parse_from(&arguments).unwrap_or_else(|error| with_hint(error, &arguments).exit())
}

/// Replaces clap's suggestion in an error by a hint, if there is one.
fn with_hint(mut error: Error, arguments: &[OsString]) -> Error {
    let words: Vec<String> =
        arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            text(ContextKind::InvalidSubcommand).and_then(|word| command_hint(&word, &words))
        }
        ErrorKind::UnknownArgument => {
            text(ContextKind::InvalidArg).and_then(|argument| argument_hint(&argument, &words))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

/// Returns the hint for an unknown command.
fn command_hint(word: &str, words: &[&str]) -> Option<String> {
    let hint = match word {
        "serve" | "server" | "up" | "file-server" | "http" | "static" => {
            "`komainu run FOLDER` serves a folder, and `komainu start -c FILE` with a configuration file"
        }
        "reverse-proxy" | "proxy" => "write `komainu run http://127.0.0.1:PORT`",
        "validate" | "test" | "configtest" | "config-test" | "lint" | "verify" => {
            "write `komainu check -c FILE`"
        }
        "version" => "write `komainu --version`",
        "stop" | "quit" | "shutdown" | "kill" => STOP_HINT,
        "restart" => {
            "`komainu reload` reads the configuration again, and `komainu upgrade` starts the program again"
        }
        "adapt" | "convert" => "`komainu import` translates the configurations of other servers",
        "format" => "write `komainu fmt FILE`",
        "explain" => "write `komainu check -c FILE --explain URL`",
        "reopen" => "write `komainu ctl reopen`",
        "purge" => "write `komainu cache purge URL`",
        "certificates" | "certs" => "write `komainu cert list`",
        _ if Path::new(word).extension().is_some_and(|extension| extension == "toml") => {
            return Some(format!("write `komainu start -c {word}`"));
        }
        _ if word.contains(['/', ':', '.']) || Path::new(word).exists() => {
            return Some(format!("write `komainu run {}`", words.join(" ")));
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

const STOP_HINT: &str = "send the server TERM: `kill PID`, with the process id that `komainu status` shows; with systemd `systemctl stop komainu`";

/// Returns the hint for an unknown argument.
fn argument_hint<'w>(argument: &str, words: &[&'w str]) -> Option<String> {
    let command = words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
    // The value in `--port 80` or `--port=80`.
    let after = |(at, word): (usize, &&'w str)| match word.strip_prefix(argument)? {
        "" => words.get(at + 1).copied().filter(|next| !next.starts_with('-')),
        rest => rest.strip_prefix('='),
    };
    let value = words.iter().enumerate().find_map(after);
    match (command, argument) {
        ("start" | "check", file) if !file.starts_with('-') => Some(if file.contains("://") {
            format!("write `komainu check -c FILE --explain {file}`")
        } else {
            format!("write `komainu {command} -c {file}`")
        }),
        ("fmt", "-c" | "--config") => Some(format!("write `komainu fmt {}`", value.unwrap_or("FILE"))),
        ("run", flag) => run_flag_hint(flag, value),
        ("status" | "upgrade" | "ctl" | "top", "-c" | "--config") => Some(format!(
            "the running server knows its file: write `komainu {command}`, with `--pid` where several run"
        )),
        // nginx has no subcommands, so its flags are recognized in the first position only.
        (_, _) if words.first() != Some(&argument) => None,
        (_, "-t" | "-T" | "--test" | "--validate") => Some("write `komainu check -c FILE`".to_owned()),
        (_, "-c" | "--config") => Some(format!("write `komainu start -c {}`", value.unwrap_or("FILE"))),
        (_, "-v") => Some("write `komainu --version`".to_owned()),
        (_, "-s") => Some(match value {
            Some("stop" | "quit") => STOP_HINT.to_owned(),
            Some("reopen") => "write `komainu ctl reopen`".to_owned(),
            _ => "write `komainu reload`".to_owned(),
        }),
        _ => None,
    }
}

/// Returns the hint for an unknown flag of `komainu run`.
fn run_flag_hint(flag: &str, value: Option<&str>) -> Option<String> {
    Some(match flag {
        "-p" | "--port" => {
            let port = value.unwrap_or("PORT");
            format!("write `--listen 127.0.0.1:{port}`, or `--listen :{port}` for every address")
        }
        "-H" | "-a" | "--host" | "--address" | "--addr" | "--ip" => {
            format!("the address has its port: write `--listen {}:8080`", value.unwrap_or("HOST"))
        }
        "-c" | "--config" => format!("write `komainu start -c {}`", value.unwrap_or("FILE")),
        "-d" | "-r" | "--dir" | "--directory" | "--folder" | "--root" => {
            format!("a folder stands by itself: write `komainu run {}`", value.unwrap_or("FOLDER"))
        }
        "--tls" | "--ssl" | "--https" | "--cert" | "--certificate" | "--certfile" | "--ssl-cert" => {
            "write `--tls-certificate FILE --tls-key FILE`".to_owned()
        }
        "--key" | "--keyfile" | "--ssl-key" => "write `--tls-key FILE`".to_owned(),
        "-D" | "--daemon" | "--daemonize" => {
            "the server stays in the foreground: let systemd start it, or a shell with `&`".to_owned()
        }
        "-v" | "--verbose" | "--debug" => "write `--log-level debug`".to_owned(),
        "--proxy" | "--upstream" | "--to" => {
            format!(
                "a URL stands by itself: write `komainu run {}`",
                value.unwrap_or("http://127.0.0.1:PORT")
            )
        }
        "--browse" | "--index" | "--autoindex" => "write `--listing`".to_owned(),
        "--processes" | "-n" => {
            "write `--workers N` for an application, and `--threads N` for the threads that serve".to_owned()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error message for a command line.
    fn hint_for(line: &str) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&arguments).err().unwrap_or_else(|| panic!("{line} is fine"));
        with_hint(error, &arguments).to_string()
    }

    #[test]
    fn options_of_other_programs_produce_hints() {
        for (line, words) in [
            ("komainu start foo.toml", "tip: write `komainu start -c foo.toml`"),
            ("komainu check foo.toml", "tip: write `komainu check -c foo.toml`"),
            ("komainu check https://a.test/b", "`komainu check -c FILE --explain https://a.test/b`"),
            ("komainu run --port 80 public", "`--listen 127.0.0.1:80`, or `--listen :80` for every"),
            ("komainu run --port=80 public", "`--listen 127.0.0.1:80`"),
            ("komainu run -p 80 public", "`--listen 127.0.0.1:80`"),
            ("komainu run --host 0.0.0.0 public", "write `--listen 0.0.0.0:8080`"),
            ("komainu run --root public", "write `komainu run public`"),
            ("komainu run -c a.toml", "write `komainu start -c a.toml`"),
            ("komainu status -c a.toml", "write `komainu status`, with `--pid`"),
            ("komainu serve", "`komainu run FOLDER` serves a folder"),
            ("komainu serve public", "`komainu run FOLDER` serves a folder"),
            ("komainu validate", "write `komainu check -c FILE`"),
            ("komainu version", "write `komainu --version`"),
            ("komainu stop", "with the process id that `komainu status` shows"),
            ("komainu restart", "`komainu reload` reads"),
            ("komainu a.toml", "write `komainu start -c a.toml`"),
            ("komainu http://127.0.0.1:3000", "write `komainu run http://127.0.0.1:3000`"),
            ("komainu src --listing", "write `komainu run src --listing`"),
            ("komainu -t", "write `komainu check -c FILE`"),
            ("komainu -t -c a.toml", "write `komainu check -c FILE`"),
            ("komainu -c a.toml", "write `komainu start -c a.toml`"),
            ("komainu -s reload", "write `komainu reload`"),
            ("komainu -s stop", "`kill PID`"),
            ("komainu -v", "write `komainu --version`"),
        ] {
            let said = hint_for(line);
            assert!(said.starts_with("error: ") && said.contains(words), "{line}: {said}");
            assert_eq!(said.matches("tip: ").count(), 1, "{line}: {said}");
        }
    }

    #[test]
    fn mistyped_words_produce_suggestions_of_clap() {
        let strat = hint_for("komainu strat");
        assert!(strat.contains("similar subcommand") && strat.contains("'start'"), "{strat}");
        assert!(hint_for("komainu run --listn :80 public").contains("'--listen'"));
        assert!(!hint_for("komainu frobnicate").contains("tip: "));
        assert!(!hint_for("komainu status -t").contains("komainu check"));
    }
}
