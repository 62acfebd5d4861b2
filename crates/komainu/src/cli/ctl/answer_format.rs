//! Formatting of API answers as tables.

use bench::table::TextTable;
use serde_json::Value;

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn build_row(of: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| as_text(&of[*key])).collect()
}

/// Formats the groups of upstream servers.
pub(crate) fn format_upstreams(document: &Value) -> String {
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
    for group in as_list(&document["groups"]) {
        for (at, server) in as_list(&group["servers"]).iter().enumerate() {
            let name = if at == 0 { as_text(&group["name"]) } else { String::new() };
            let keys = ["url", "state", "health", "weight", "active", "requests", "retries", "ejections"];
            table.add_row([vec![name], build_row(server, &keys)].concat());
        }
    }
    table.plain("")
}

/// Formats the applications.
pub(crate) fn format_applications(document: &Value) -> String {
    let mut table = TextTable::new(&["application", "PID", "state", "generation", "requests"]);
    for app in as_list(&document["applications"]) {
        for (at, process) in as_list(&app["processes"]).iter().enumerate() {
            let name = if at == 0 { as_text(&app["name"]) } else { String::new() };
            table.add_row(
                [vec![name], build_row(process, &["pid", "state", "generation", "requests"])].concat(),
            );
        }
    }
    table.plain("")
}

/// Formats the generations of the configuration.
pub(crate) fn format_generations(document: &Value) -> String {
    let mut table = TextTable::new(&["generation", "state", "since", "requests", "upgraded"]);
    for one in as_list(&document["generations"]) {
        table.add_row(build_row(one, &["number", "state", "since", "requests", "upgraded"]));
    }
    table.plain("")
}

/// Formats the numbers of connections.
pub(crate) fn format_connections(document: &Value) -> String {
    let mut listeners = TextTable::new(&["listener", "protocol", "connections"]);
    for one in as_list(&document["listeners"]) {
        listeners.add_row(build_row(one, &["listener", "protocol", "connections"]));
    }
    let mut clients = TextTable::new(&["client", "connections"]);
    for one in as_list(&document["clients"]) {
        clients.add_row(build_row(one, &["client", "connections"]));
    }
    if document["of_other_clients"] != 0 {
        clients.add_row(vec!["others".to_owned(), as_text(&document["of_other_clients"])]);
    }
    format!("{}\n{}", listeners.plain(""), clients.plain(""))
}

/// Formats the statistics of the cache.
pub(crate) fn format_cache(document: &Value) -> String {
    let mut table = TextTable::new(&["figure", "value"]);
    add_figures(document, "", &mut table);
    table.plain("")
}

fn add_figures(value: &Value, name: &str, table: &mut TextTable) {
    match value.as_object() {
        None if !name.is_empty() => table.add_row(vec![name.to_owned(), as_text(value)]),
        None => {}
        Some(entries) => {
            for (key, value) in entries {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                add_figures(value, &name, table);
            }
        }
    }
}

/// Formats the certificates.
pub(crate) fn format_certificates(document: &Value) -> String {
    let mut table = TextTable::new(&["certificate", "names", "issuer", "expires in", "source"]);
    for one in as_list(&document["certificates"]) {
        let names: Vec<String> = as_list(&one["names"]).iter().map(as_text).collect();
        let days = one["expires_in_s"].as_i64().map_or(String::new(), |seconds| match seconds / 86_400 {
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        });
        let source = ["file", "directory"].iter().find_map(|key| one[*key].as_str()).unwrap_or_default();
        table.add_row(vec![
            as_text(&one["name"]),
            names.join(" "),
            as_text(&one["issuer"]),
            days,
            source.to_owned(),
        ]);
    }
    table.plain("")
}

/// Formats the audit log.
pub(crate) fn format_audit(document: &Value) -> String {
    let mut table = TextTable::new(&["time", "who", "what", "status", "result"]);
    for entry in as_list(&document["entries"]) {
        let mut cells = build_row(entry, &["time", "who", "what", "status", "result"]);
        if let Some(result) = cells.last_mut() {
            *result = result.lines().next().unwrap_or_default().to_owned();
        }
        table.add_row(cells);
    }
    table.plain("")
}

/// Formats the result of a change with the errors and warnings of the configuration.
pub(crate) fn format_outcome(document: &Value) -> String {
    let said = ["error", "done"].iter().find_map(|key| document[*key].as_str());
    let mut lines = vec![said.map_or_else(|| format!("{document:#}"), str::to_owned)];
    for finding in as_list(&document["findings"]) {
        let place = format!(
            "{}:{}:{}",
            as_text(&finding["file"]),
            as_text(&finding["line"]),
            as_text(&finding["column"])
        );
        let label = as_text(&finding["label"]);
        let label = if label.is_empty() { label } else { format!(" ({label})") };
        lines.push(format!("{place}: {}{label}", as_text(&finding["title"])));
        lines.extend(as_list(&finding["help"]).iter().map(|help| format!("  help: {}", as_text(help))));
    }
    lines.extend(
        as_list(&document["warnings"]).iter().map(|warning| format!("warning: {}", as_text(warning))),
    );
    for key in ["incomplete", "not_persisted"] {
        lines.extend(document[key].as_str().map(|text| format!("warning: {text}")));
    }
    lines.extend(
        as_list(&document["failures"]).iter().map(|failure| format!("warning: {}", as_text(failure))),
    );
    lines.join("\n") + "\n"
}
