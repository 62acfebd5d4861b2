//! Conversion of arguments to API requests, and of answers to output.

use std::process::Command;

use failure::{Failure, FailureContext};
use http::path::encoded_segment;
use serde_json::{Map, Value, json};

use crate::cli::ctl::answer_format;
use crate::cli::ctl::transport::{CtlAnswer, CtlRequest, send};
use crate::cli::ctl_arguments::{
    CtlApp, CtlArguments, CtlCache, CtlCertificate, CtlCommand, CtlConfig, CtlConnection, CtlGeneration,
    CtlUpstream,
};
use crate::cli::status;
use crate::terminal;

/// How an answer is shown.
#[derive(Clone, Copy)]
enum AnswerForm {
    Json,
    /// As text, of a document whose own texts are indented.
    Text(fn(&Value) -> String),
}

/// Runs `komainu ctl`; returns the text to print.
///
/// # Errors
/// No server answers, or it refuses; a message for the user.
pub(crate) fn run_ctl(ctl: &CtlArguments) -> Result<String, Failure> {
    if let CtlCommand::Config(CtlConfig::Edit { path }) = &ctl.command {
        return edit(ctl, path.as_deref().unwrap_or_default());
    }
    let (request, form) = build_request(&ctl.command)?;
    format_result(ctl, send(ctl, &request)?, form)
}

fn format_result(ctl: &CtlArguments, answer: CtlAnswer, form: AnswerForm) -> Result<String, Failure> {
    let text = match form {
        _ if ctl.json => format_json(&answer.document),
        AnswerForm::Json if answer.status < 300 => format_json(&answer.document),
        AnswerForm::Text(shown) if answer.status < 300 => shown(&terminal::indent_texts(&answer.document)),
        _ => answer_format::format_outcome(&terminal::indent_texts(&answer.document)),
    };
    let text = terminal::sanitize(&text);
    if answer.status < 300 { Ok(text) } else { Err(Failure::new(text.trim_end())) }
}

/// The outcome of a change.
const OUTCOME: AnswerForm = AnswerForm::Text(answer_format::format_outcome);

fn format_json(document: &Value) -> String {
    format!("{document:#}\n")
}

fn read_request(path: &str, shown: fn(&Value) -> String) -> (CtlRequest, AnswerForm) {
    let (request, _) = read_json(path);
    (request, AnswerForm::Text(shown))
}

fn read_json(path: &str) -> (CtlRequest, AnswerForm) {
    (CtlRequest { method: "GET", path: path.into(), ..CtlRequest::default() }, AnswerForm::Json)
}

fn change_request(method: &'static str, path: String, body: Value) -> (CtlRequest, AnswerForm) {
    (CtlRequest { method, path, body: Some(body), ..CtlRequest::default() }, OUTCOME)
}

fn build_request(command: &CtlCommand) -> Result<(CtlRequest, AnswerForm), Failure> {
    Ok(match command {
        CtlCommand::Status => read_request("/v1/status", status::format_server),
        CtlCommand::Config(config) => config_request(config),
        CtlCommand::Upstream(upstream) => upstream_request(upstream),
        CtlCommand::App(app) => app_request(app),
        CtlCommand::Cache(CtlCache::Show) => read_request("/v1/cache", answer_format::format_cache),
        CtlCommand::Cache(CtlCache::Purge { url, prefix, tag, all, soft }) => {
            let texts = [("url", url), ("prefix", prefix), ("tag", tag)];
            let mut body: Map<String, Value> = texts
                .into_iter()
                .filter_map(|(key, text)| Some((key.to_owned(), json!(text.as_ref()?))))
                .collect();
            let flags = [("all", all), ("soft", soft)];
            body.extend(
                flags.into_iter().filter(|(_, flag)| **flag).map(|(key, _)| (key.to_owned(), json!(true))),
            );
            change_request("POST", "/v1/cache/purge".into(), Value::Object(body))
        }
        CtlCommand::Certificate(CtlCertificate::List) => {
            read_request("/v1/certificates", answer_format::format_certificates)
        }
        CtlCommand::Certificate(CtlCertificate::Renew { name }) => change_request(
            "POST",
            format!("/v1/certificates/{}/renew", encoded_segment(name.as_bytes())),
            json!({}),
        ),
        CtlCommand::Connection(CtlConnection::List) => {
            read_request("/v1/connections", answer_format::format_connections)
        }
        CtlCommand::Generation(CtlGeneration::List) => {
            read_request("/v1/generations", answer_format::format_generations)
        }
        CtlCommand::Generation(CtlGeneration::Close { number }) => {
            change_request("DELETE", format!("/v1/generations/{number}"), Value::Null)
        }
        CtlCommand::Reload => change_request("POST", "/v1/reload".into(), json!({})),
        CtlCommand::Reopen => change_request("POST", "/v1/logs/reopen".into(), json!({})),
        CtlCommand::Audit => read_request("/v1/audit", answer_format::format_audit),
        CtlCommand::Api { method, path, body } => {
            let known = ["GET", "PUT", "PATCH", "POST", "DELETE"];
            let method = known.into_iter().find(|known| known.eq_ignore_ascii_case(method));
            let method = method.ok_or("the method is GET, PUT, PATCH, POST or DELETE")?;
            let body = body.as_deref().map(serde_json::from_str).transpose();
            let body = body.map_err(Failure::new).context("the body is no JSON")?;
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let if_match = (method != "GET").then(|| "*".to_owned());
            (CtlRequest { method, path: path.into(), query: query.into(), if_match, body }, AnswerForm::Json)
        }
    })
}

fn config_path(path: &str) -> String {
    match path.trim_matches('/') {
        "" => "/v1/config".into(),
        // Directives may be written with dots, as in messages and the documentation; no top-level key
        // contains a dot.
        path if !path.contains('/') => format!("/v1/config/{}", path.replace('.', "/")),
        path => format!("/v1/config/{path}"),
    }
}

fn config_request(config: &CtlConfig) -> (CtlRequest, AnswerForm) {
    let changed = |method, path: &str, body, no_persist: bool| {
        let query = if no_persist { "persist=false".into() } else { String::new() };
        let if_match = Some("*".to_owned());
        (CtlRequest { method, path: config_path(path), query, if_match, body }, OUTCOME)
    };
    match config {
        CtlConfig::Get { path } => read_json(&config_path(path.as_deref().unwrap_or_default())),
        CtlConfig::Set { path, value, no_persist } => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            changed("PUT", path, Some(value), *no_persist)
        }
        CtlConfig::Unset { path, no_persist } => changed("DELETE", path, None, *no_persist),
        CtlConfig::Edit { path } => read_json(&config_path(path.as_deref().unwrap_or_default())),
    }
}

fn upstream_request(upstream: &CtlUpstream) -> (CtlRequest, AnswerForm) {
    let at = |group: &str, server: &str| {
        let [group, server] = [group, server].map(|name| encoded_segment(name.as_bytes()));
        format!("/v1/upstreams/{group}/{server}")
    };
    let state =
        |group, server, state: &str| change_request("PATCH", at(group, server), json!({ "state": state }));
    match upstream {
        CtlUpstream::List => read_request("/v1/upstreams", answer_format::format_upstreams),
        CtlUpstream::Drain { group, server } => state(group, server, "drain"),
        CtlUpstream::Down { group, server } => state(group, server, "down"),
        CtlUpstream::Ready { group, server } => state(group, server, "ready"),
        CtlUpstream::Weight { group, server, weight } => {
            change_request("PATCH", at(group, server), json!({ "weight": weight }))
        }
        CtlUpstream::Add { group, url } => {
            let path = format!("/v1/upstreams/{}", encoded_segment(group.as_bytes()));
            change_request("POST", path, json!({ "url": url }))
        }
        CtlUpstream::Remove { group, server } => change_request("DELETE", at(group, server), Value::Null),
    }
}

fn app_request(app: &CtlApp) -> (CtlRequest, AnswerForm) {
    let at = |name: &str| format!("/v1/applications/{}", encoded_segment(name.as_bytes()));
    match app {
        CtlApp::List => read_request("/v1/applications", answer_format::format_applications),
        CtlApp::Restart { name } => change_request("POST", format!("{}/restart", at(name)), json!({})),
        CtlApp::Workers { name, count } => change_request("PATCH", at(name), json!({ "workers": count })),
    }
}

/// Edits an item in the user's editor. If the configuration has changed meanwhile, the request is refused and
/// the edited text is kept.
fn edit(ctl: &CtlArguments, path: &str) -> Result<String, Failure> {
    let (request, _) = read_json(&config_path(path));
    let before = send(ctl, &request)?;
    if before.status != 200 {
        return format_result(ctl, before, AnswerForm::Json);
    }
    let file = std::env::temp_dir().join(format!("komainu-{}-edit.json", std::process::id()));
    write_private_file(&file, &format_json(&before.document)).with_context(|| file.display())?;
    let named = |name: &&str| std::env::var_os(name).filter(|editor| !editor.is_empty());
    let editor = ["VISUAL", "EDITOR"].iter().find_map(named).unwrap_or_else(|| "vi".into());
    let run = Command::new("sh").arg("-c").arg("$0 \"$1\"").arg(&editor).arg(&file).status();
    let run = run.with_context(|| editor.display())?;
    if !run.success() {
        let _ = std::fs::remove_file(&file);
        let title = format!("nothing was changed: the editor `{}` ended with {run}", editor.display());
        return Err(Failure::new(title).help("`EDITOR` names another one"));
    }
    let after = std::fs::read_to_string(&file).with_context(|| file.display())?;
    let after: Value = serde_json::from_str(&after)
        .map_err(Failure::new)
        .with_context(|| format!("{} is no JSON, and was left there", file.display()))?;
    if after == before.document {
        let _ = std::fs::remove_file(&file);
        return Ok("nothing was changed\n".into());
    }
    let request = CtlRequest {
        method: "PUT",
        path: config_path(path),
        if_match: before.etag,
        body: Some(after),
        ..CtlRequest::default()
    };
    let answer = send(ctl, &request)?;
    if answer.status < 300 {
        let _ = std::fs::remove_file(&file);
        return format_result(ctl, answer, OUTCOME);
    }
    let refused = format_result(ctl, answer, OUTCOME);
    refused.map_err(|error| Failure::new(format!("{error}\nwhat you have written is in {}", file.display())))
}

/// Writes a file that only this user can access, replacing an existing one.
fn write_private_file(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::config_path;

    #[test]
    fn config_paths_accept_slashes_or_dots() {
        for (path, expected) in [
            ("", "/v1/config"),
            ("/", "/v1/config"),
            ("timeouts/drain", "/v1/config/timeouts/drain"),
            ("timeouts.drain", "/v1/config/timeouts/drain"),
            ("apps/shop/env/a.b", "/v1/config/apps/shop/env/a.b"),
        ] {
            assert_eq!(config_path(path), expected, "{path}");
        }
    }
}
