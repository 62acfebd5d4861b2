//! `komainu cert` and `komainu trust`: certificates of running servers, and the local authority.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bench::table::TextTable;
use certificates::managed::default_state_folder;
use certificates::{StateFolder, TrustReport, TrustStores};
use clap::{Args, Subcommand};
use failure::{Failure, FailureContext};
use logging::access::rfc3339;
use net::trusted_path;
use operator::socket;
use process::config_files;
use serde_json::Value;

use crate::cli::values::parse_process_id;
use crate::cli::{control_client, status};
use crate::terminal::{indent_rest, print_error_line, sanitize};

#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Show the names with their issuer, lifetime, next renewal and last error
    List(CertListArguments),
    /// Show one certificate
    Show {
        /// The name: example.com, *.example.com or an IP address
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        of: CertSourceArguments,
    },
    /// Have a running server renew certificates now
    Renew {
        /// The names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// The server of this process id; not needed where one runs
        #[arg(long, value_parser = parse_process_id)]
        pid: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CertListArguments {
    #[command(flatten)]
    pub(crate) of: CertSourceArguments,
    /// As JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Source of the certificates: a server or a state folder.
#[derive(Debug, Args)]
pub(crate) struct CertSourceArguments {
    /// The server of this process id; all of this user unless given
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// Read this state folder, and ask no server
    #[arg(long, value_name = "FOLDER", conflicts_with = "pid")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TrustArguments {
    /// Remove what `komainu trust` installed: the authority of `--state`, or each one
    #[arg(long)]
    pub(crate) undo: bool,
    /// The state folder that holds the authority [default: that of a server which this user starts]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Install the authority only if this is its SHA-256 fingerprint; required where users other than root and the
    /// caller can replace it
    #[arg(long, value_name = "HEX", value_parser = parse_fingerprint, conflicts_with = "undo")]
    pub(crate) fingerprint: Option<String>,
}

/// Parses a SHA-256 fingerprint as openssl and browsers show it: 64 hexadecimal digits, perhaps with colons.
fn parse_fingerprint(text: &str) -> Result<String, Failure> {
    let digits = text.replace(':', "").to_ascii_lowercase();
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(digits)
    } else {
        Err("a SHA-256 fingerprint has 64 hexadecimal digits".into())
    }
}

/// Runs `komainu cert`; returns the text to print.
///
/// # Errors
/// No server runs and no state directory can be read, or the name is unknown.
pub(crate) fn run_cert(command: &CertCommand) -> Result<String, Failure> {
    match command {
        CertCommand::List(list) => {
            let all = fetch_certificates(&list.of)?;
            if list.json {
                Ok(format!("{:#}\n", Value::Array(all)))
            } else if all.is_empty() {
                Ok(sanitize(&explain_empty_list(&list.of)))
            } else {
                Ok(sanitize(&format_list(&all)))
            }
        }
        CertCommand::Show { name, of } => {
            let all = fetch_certificates(of)?;
            let found = all.iter().find(|one| one["name"].as_str() == Some(name.as_str()));
            let found = found.ok_or_else(|| {
                format!("there is no certificate for {name}: `komainu cert list` shows the names")
            })?;
            Ok(sanitize(&format_certificate(found)))
        }
        CertCommand::Renew { names, pid } => renew(names, *pid),
    }
}

/// Returns the certificates reported by servers, or stored in the state directory.
fn fetch_certificates(of: &CertSourceArguments) -> Result<Vec<Value>, Failure> {
    let pids = match (&of.state, of.pid) {
        (Some(_), _) => Vec::new(),
        (None, Some(pid)) => vec![pid],
        (None, None) => control_client::running_servers(),
    };
    if pids.is_empty() {
        let folder = of.state.clone().unwrap_or_else(own_state_folder);
        let listed = certificates::list(&folder).map_err(|error| {
            let text = format!("the state folder {} cannot be read: {error}", folder.display());
            Failure::new(match of.state {
                Some(_) => text,
                None => format!(
                    "no server of this user is running, and {text}; `--state FOLDER` names another one"
                ),
            })
        })?;
        return Ok(listed.iter().map(socket::certificate_document).collect());
    }
    let mut all = Vec::new();
    let mut failures = Vec::new();
    for (pid, answer) in pids.iter().zip(control_client::send_command_to_all(&pids, "certificates")) {
        match answer {
            Ok(answer) => all.extend(answer["certificates"].as_array().cloned().unwrap_or_default()),
            // Servers of older versions do not know the command.
            Err(error) if error.to_string().contains("unknown command") => {
                failures.push(format!("process {pid}: this server is older than `komainu cert`: restart it"));
            }
            Err(error) => failures.push(error.with_remedy()),
        }
    }
    if failures.len() == pids.len() {
        Err(Failure::new(failures.join("\n")))
    } else {
        failures.iter().for_each(|text| print_error_line(&format!("warning: {text}")));
        Ok(all)
    }
}

/// Returns the state directory of a server that this user starts.
fn own_state_folder() -> PathBuf {
    default_state_folder(rustix::process::geteuid().is_root())
}

/// Formats a Unix timestamp in UTC.
fn format_timestamp(value: &Value) -> Option<String> {
    value.as_u64().map(rfc3339)
}

/// Formats a duration in its largest unit.
fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Formats the difference between a Unix timestamp and `now`.
fn format_relative(value: &Value, now: SystemTime) -> String {
    let Some(unix_s) = value.as_u64() else { return "-".into() };
    // The server's value may be out of range.
    let Some(at) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(unix_s)) else { return "?".into() };
    match at.duration_since(now) {
        Ok(left) => format!("in {}", format_duration(left)),
        Err(past) => format!("{} ago", format_duration(past.duration())),
    }
}

/// Explains why the list is empty.
fn explain_empty_list(of: &CertSourceArguments) -> String {
    if of.state.is_none() && (of.pid.is_some() || !control_client::running_servers().is_empty()) {
        return "no certificates: no site has `tls`\n".into();
    }
    let path = of.state.clone().unwrap_or_else(own_state_folder);
    let text = format!("no certificate is stored in {}", path.display());
    if StateFolder::existing(&path).root_path().exists() {
        text + ", but a local authority: a server that runs has its certificates in memory, and \
                    `komainu cert list` without `--state` shows them\n"
    } else {
        text + "\n"
    }
}

/// Maximum width of a line of the list, in characters.
const LINE_CHARS_MAX: usize = 100;
/// Maximum bytes read of a local authority's certificate.
const ROOT_BYTES_MAX: u64 = 64 * 1024;
/// Maximum width of a name in the table; longer names get a line of their own.
const NAME_CHARS_MAX: usize = 36;
/// Maximum width of an issuer; longer ones are truncated, `komainu cert show` prints them in full.
const ISSUER_CHARS_MAX: usize = 34;

fn format_list(all: &[Value]) -> String {
    let now = SystemTime::now();
    let mut table = TextTable::new(&["name", "issuer", "expires", "next attempt"]);
    let text = |one: &Value, key: &str| one[key].as_str().map(str::to_owned);
    let is_long = |name: &str| name.chars().count() > NAME_CHARS_MAX;
    for one in all {
        let next =
            if one["last_error"].is_string() && one["retry_at"].is_u64() { "retry_at" } else { "renew_at" };
        table.add_row(vec![
            text(one, "name").filter(|name| !is_long(name)).unwrap_or_default(),
            text(one, "issuer").map_or_else(|| "-".into(), |issuer| truncate(&issuer, ISSUER_CHARS_MAX)),
            format_relative(&one["not_after"], now),
            format_relative(&one[next], now),
        ]);
    }
    let table = table.plain("");
    let mut lines = table.lines();
    let mut all_lines: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
    for (line, one) in lines.zip(all) {
        let name = text(one, "name").filter(|name| is_long(name));
        all_lines.extend(name.into_iter().flat_map(|name| wrap_text(&name, "", "")));
        all_lines.push(line.to_owned());
        let error = text(one, "last_error");
        all_lines.extend(error.into_iter().flat_map(|error| wrap_text(&error, "  last error: ", "    ")));
    }
    all_lines.join("\n") + "\n"
}

/// Truncates a text to `chars_max` characters, marked with an ellipsis.
fn truncate(text: &str, chars_max: usize) -> String {
    if text.chars().count() > chars_max {
        text.chars().take(chars_max - 1).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

/// Wraps a text at words into lines of at most [`LINE_CHARS_MAX`]; the first begins with `first`, the others
/// with `indent`.
fn wrap_text(text: &str, first: &str, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        let chars: Vec<char> = word.chars().collect();
        // Words longer than a line are split.
        for piece in chars.chunks(LINE_CHARS_MAX - first.len().max(indent.len())) {
            if is_begun && line.chars().count() + 1 + piece.len() > LINE_CHARS_MAX {
                lines.push(std::mem::replace(&mut line, indent.to_owned()));
                is_begun = false;
            }
            if is_begun {
                line.push(' ');
            }
            line.extend(piece);
            is_begun = true;
        }
    }
    lines.push(line);
    lines
}

fn format_certificate(one: &Value) -> String {
    let now = SystemTime::now();
    let text = |key: &str| one[key].as_str().map(str::to_owned);
    let at = |key: &str| {
        format_timestamp(&one[key]).map(|at| format!("{at} ({})", format_relative(&one[key], now)))
    };
    let names = one["names"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
    let rows = [
        ("names", names),
        ("issuer", text("issuer")),
        ("serial", text("serial")),
        ("valid from", at("not_before")),
        ("valid until", at("not_after")),
        (
            "directory",
            Some(text("directory").unwrap_or_else(|| "none: the local authority".into()))
                .filter(|_| one["issuer"].is_string() && !one["file"].is_string()),
        ),
        ("read from", text("file")),
        ("renewal", at("renew_at")),
        ("next attempt", at("retry_at")),
        ("last error", text("last_error")),
        ("of", at("last_error_at").filter(|_| one["last_error"].is_string())),
    ];
    let rows = rows.into_iter().filter_map(|(key, value)| Some(format!("{key:<13} {}\n", value?)));
    rows.collect()
}

fn renew(names: &[String], pid: Option<u32>) -> Result<String, Failure> {
    let pids = pid.map_or_else(control_client::serving_servers, |pid| vec![pid]);
    let pid = match pids.as_slice() {
        [pid] => *pid,
        [] => {
            return Err(Failure::new(
                "no server of this user is running: certificates are renewed by a running server",
            ));
        }
        pids => return Err(Failure::new(status::several_servers_message(pids))),
    };
    let mut text = String::new();
    for name in names {
        let answer = control_client::send_command(pid, &format!("renew {name}"))?;
        text += &format!("{}\n", indent_rest(answer["done"].as_str().unwrap_or("done")));
    }
    Ok(sanitize(&text) + "`komainu cert list` shows what becomes of it\n")
}

/// Runs `komainu trust`; returns the text to print.
///
/// # Errors
/// There is no valid local authority, or no step succeeded.
pub(crate) fn run_trust(arguments: &TrustArguments) -> Result<String, Failure> {
    let homes: Vec<PathBuf> = std::env::var_os("HOME").map(PathBuf::from).into_iter().collect();
    let stores = TrustStores::of_machine(&homes);
    if arguments.undo && arguments.state.is_none() {
        return format_trust_report(
            &certificates::untrust(None, &stores),
            "nothing to remove: no local authority of Komainu is trusted here\n",
        );
    }
    let path = arguments.state.clone().unwrap_or_else(own_state_folder);
    // Only servers create authorities: a directory named by mistake must not add one to the trust stores.
    let root = StateFolder::existing(&path).root_path();
    let mut text = Vec::new();
    let read = config_files::open(&root).and_then(|file| file.take(ROOT_BYTES_MAX).read_to_end(&mut text));
    read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Failure::new(format!(
            "there is no local authority in {}: start the server first, or name its folder by --state",
            path.display()
        )),
        _ => Failure::from(error),
    })?;
    // The server's user may write to that directory, and root is about to trust its content.
    let found = certificates::LocalRoot::parse(&text).with_context(|| {
        format!("{} is not the certificate of a local authority of Komainu", root.display())
    })?;
    if !arguments.undo {
        confirm_authority(&root, &found, arguments.fingerprint.as_deref())?;
    }
    let report = if arguments.undo {
        certificates::untrust(Some(&found), &stores)
    } else {
        certificates::trust(&found, &stores)
    };
    format_trust_report(&report, "nothing to remove: it is not trusted here\n")
        .map(|text| format!("the local authority of {}\n{text}", path.display()))
}

/// Checks that the caller wants this authority to be trusted, and not one that another user has put in its place.
fn confirm_authority(
    path: &Path,
    found: &certificates::LocalRoot,
    confirmed: Option<&str>,
) -> Result<(), Failure> {
    let fingerprint = found.fingerprint();
    match confirmed {
        Some(confirmed) if confirmed == fingerprint => return Ok(()),
        Some(confirmed) => {
            let title =
                format!("{} has another SHA-256 fingerprint than {confirmed}: {fingerprint}", path.display());
            return Err(Failure::new(title));
        }
        None => {}
    }
    let Some(reason) = trusted_path::replaceable_by_others(path)? else { return Ok(()) };
    let title = format!("another user may have written the authority in {}: {reason}", path.display());
    Err(Failure::new(title).help(format!(
        "compare its SHA-256 fingerprint with that of the server's authority, and confirm it: \
         --fingerprint {fingerprint}"
    )))
}

/// Formats the successful and the failed steps; an error if all failed.
fn format_trust_report(report: &TrustReport, nothing: &str) -> Result<String, Failure> {
    let done: String = report.done.iter().map(|text| format!("  {text}\n")).collect();
    let failed: String = report.failed.iter().map(|text| format!("  not done: {text}\n")).collect();
    match (report.done.is_empty(), report.failed.is_empty()) {
        (true, true) => Ok(nothing.to_owned()),
        (true, false) => Err(Failure::new(failed.trim_end())),
        _ => Ok(done + &failed),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn certificate_list_fits_terminal_with_full_names_and_errors() {
        let long = format!("{}.example.com", "sub.".repeat(50));
        let error = format!(
            "http-01: {} https://a.example.com/{}",
            "the authority says ".repeat(20),
            "x".repeat(300)
        );
        let moment = |days: u64| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            json!(now + days * 86_400 + 60)
        };
        let text = format_list(&[
            json!({ "name": "example.com", "issuer": "CN=R11,O=Let's Encrypt,C=US", "not_after": moment(89), "renew_at": moment(60) }),
            json!({ "name": long, "issuer": "CN=".to_owned() + &"An Authority ".repeat(9), "not_after": moment(0), "renew_at": moment(1),
                "last_error": error, "retry_at": moment(20_000) }),
            json!({ "name": "other.example.com" }),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        assert!(lines[0].starts_with("name ") && lines[1].starts_with("example.com "), "{text}");
        assert!(lines[1].contains("Let's Encrypt") && lines[1].contains("in 89 d"), "{text}");
        let joined = |text: &str| text.split_whitespace().collect::<String>();
        assert!(joined(&text).contains(&joined(&long)) && joined(&text).contains(&joined(&error)), "{text}");
        assert!(text.contains("  last error: http-01: the authority says") && text.contains('…'), "{text}");
        assert!(lines.last().unwrap().starts_with("other.example.com "), "{text}");
    }
}
