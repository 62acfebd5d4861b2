//! Formatting of API answers as tables.

use bench::table::TextTable;
use serde_json::Value;

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn row(of: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| text(&of[*key])).collect()
}

/// Formats the groups of upstream servers.
pub(crate) fn upstreams(document: &Value) -> String {
    let mut table = TextTable::new(&[
        "group",
        "server",
        "state",
        "health",
        "weight",
        "active",
        "requests",
        "retries",
        "ejections",
    ]);
    for group in list(&document["groups"]) {
        for (at, server) in list(&group["servers"]).iter().enumerate() {
            let name = if at == 0 { text(&group["name"]) } else { String::new() };
            let keys = ["url", "state", "health", "weight", "active", "requests", "retries", "ejections"];
            table.row([vec![name], row(server, &keys)].concat());
        }
    }
    table.plain("")
}

/// Formats the applications.
pub(crate) fn applications(document: &Value) -> String {
    let mut table = TextTable::new(&["application", "PID", "state", "generation", "requests"]);
    for app in list(&document["applications"]) {
        for (at, process) in list(&app["processes"]).iter().enumerate() {
            let name = if at == 0 { text(&app["name"]) } else { String::new() };
            table.row([vec![name], row(process, &["pid", "state", "generation", "requests"])].concat());
        }
    }
    table.plain("")
}

/// Formats the generations of the configuration.
pub(crate) fn generations(document: &Value) -> String {
    let mut table = TextTable::new(&["generation", "state", "since", "requests", "upgraded"]);
    for one in list(&document["generations"]) {
        table.row(row(one, &["number", "state", "since", "requests", "upgraded"]));
    }
    table.plain("")
}

/// Formats the numbers of connections.
pub(crate) fn connections(document: &Value) -> String {
    let mut listeners = TextTable::new(&["listener", "protocol", "connections"]);
    for one in list(&document["listeners"]) {
        listeners.row(row(one, &["listener", "protocol", "connections"]));
    }
    let mut clients = TextTable::new(&["client", "connections"]);
    for one in list(&document["clients"]) {
        clients.row(row(one, &["client", "connections"]));
    }
    if document["of_other_clients"] != 0 {
        clients.row(vec!["others".to_owned(), text(&document["of_other_clients"])]);
    }
    format!("{}\n{}", listeners.plain(""), clients.plain(""))
}

/// Formats the statistics of the cache.
pub(crate) fn cache(document: &Value) -> String {
    let mut table = TextTable::new(&["figure", "value"]);
    figures(document, "", &mut table);
    table.plain("")
}

fn figures(value: &Value, name: &str, table: &mut TextTable) {
    match value.as_object() {
        None if !name.is_empty() => table.row(vec![name.to_owned(), text(value)]),
        None => {}
        Some(entries) => {
            for (key, value) in entries {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                figures(value, &name, table);
            }
        }
    }
}

/// Formats the certificates.
pub(crate) fn certificates(document: &Value) -> String {
    let mut table = TextTable::new(&["certificate", "names", "issuer", "expires in", "source"]);
    for one in list(&document["certificates"]) {
        let names: Vec<String> = list(&one["names"]).iter().map(text).collect();
        let days = one["expires_in_s"].as_i64().map_or(String::new(), |seconds| match seconds / 86_400 {
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        });
        let source = ["file", "directory"].iter().find_map(|key| one[*key].as_str()).unwrap_or_default();
        table.row(vec![text(&one["name"]), names.join(" "), text(&one["issuer"]), days, source.to_owned()]);
    }
    table.plain("")
}

/// Formats the audit log.
pub(crate) fn audit(document: &Value) -> String {
    let mut table = TextTable::new(&["time", "who", "what", "status", "result"]);
    for entry in list(&document["entries"]) {
        let mut cells = row(entry, &["time", "who", "what", "status", "result"]);
        if let Some(result) = cells.last_mut() {
            *result = result.lines().next().unwrap_or_default().to_owned();
        }
        table.row(cells);
    }
    table.plain("")
}

/// Formats the result of a change with the errors and warnings of the configuration.
pub(crate) fn outcome(document: &Value) -> String {
    let said = ["error", "done"].iter().find_map(|key| document[*key].as_str());
    let mut lines = vec![said.map_or_else(|| format!("{document:#}"), str::to_owned)];
    for finding in list(&document["findings"]) {
        let place =
            format!("{}:{}:{}", text(&finding["file"]), text(&finding["line"]), text(&finding["column"]));
        let label = text(&finding["label"]);
        let label = if label.is_empty() { label } else { format!(" ({label})") };
        lines.push(format!("{place}: {}{label}", text(&finding["title"])));
        lines.extend(list(&finding["help"]).iter().map(|help| format!("  help: {}", text(help))));
    }
    lines.extend(list(&document["warnings"]).iter().map(|warning| format!("warning: {}", text(warning))));
    for key in ["incomplete", "not_persisted"] {
        lines.extend(document[key].as_str().map(|text| format!("warning: {text}")));
    }
    lines.extend(list(&document["failures"]).iter().map(|failure| format!("warning: {}", text(failure))));
    lines.join("\n") + "\n"
}
