//! Non-interactive output of a sample: as text and as JSON.

use serde_json::{Map, Value, json};

use crate::formatting::{format_age, format_bytes, format_count, format_number, format_percent, sanitize};
use crate::sample::{StatusInterval, list};
use crate::tables::{TopTable, format_ms, tables};

/// Returns the summary lines of the server and its activity.
pub(crate) fn summary_lines(sample: &StatusInterval) -> [String; 3] {
    let document = sample.latest_document();
    let server = sample.server();
    let figure = |key: &str| server[key].as_f64().unwrap_or_default();
    let text = |key: &str| sanitize(document[key].as_str().unwrap_or_default());
    let listen: Vec<String> =
        list(&document["listen"]).iter().filter_map(Value::as_str).map(sanitize).collect();
    let times = |key: &str| format_ms(&server, key);
    let error_share = figure("status_5xx_per_s") / figure("requests_per_s").max(f64::MIN_POSITIVE);
    [
        format!(
            "Komainu {}  {}  PID {}  up {}  {}",
            text("version"),
            text("state"),
            document["pid"],
            format_age(document["age_ms"].as_f64().unwrap_or_default()),
            listen.join(" ")
        ),
        format!(
            "{} req/s  5xx {}/s ({})  p50 {}  p99 {}  waiting {}",
            format_number(figure("requests_per_s")),
            format_number(figure("status_5xx_per_s")),
            format_percent(error_share.min(1.0)),
            times("p50_ms"),
            times("p99_ms"),
            format_number(figure("waiting")),
        ),
        format!(
            "{} connections{}  CPU {}  memory {}  held {} of {}  out {}/s",
            format_count(server["connections"].as_u64().unwrap_or_default()),
            protocol_shares(&figure),
            format_percent(figure("cpu")),
            format_bytes(figure("pss_bytes")),
            format_bytes(figure("held_bytes")),
            format_bytes(figure("budget_bytes")),
            format_bytes(figure("out_bytes_per_s")),
        ),
    ]
}

/// Returns the shares of HTTP/2 and HTTP/3 in the requests, if there are any.
fn protocol_shares(figure: &impl Fn(&str) -> f64) -> String {
    let all = figure("all_requests_per_s");
    let share = |(name, key)| {
        let count = figure(key);
        (count > 0.0).then(|| format!("  {name} {}", format_percent((count / all).min(1.0))))
    };
    let parts = [("HTTP/2", "all_http2_requests_per_s"), ("HTTP/3", "all_http3_requests_per_s")];
    parts.into_iter().filter_map(share).collect()
}

/// Formats everything as text, without colours or control characters.
#[must_use]
pub fn format_text(sample: &StatusInterval) -> String {
    let mut out = summary_lines(sample).map(|line| format!("{line}\n")).concat();
    for mut table in tables(sample).into_iter().filter(|table| !table.rows.is_empty()) {
        if let Some(column) = table.sort {
            table.sort_by(column, false);
        }
        out.push_str(&format!("\n{}\n", table.title));
        out.push_str(&format_table(&table));
    }
    out
}

/// Formats a table in aligned columns.
fn format_table(table: &TopTable) -> String {
    let heads: Vec<String> = table.columns.iter().map(|column| column.heading.to_owned()).collect();
    let lines: Vec<Vec<String>> =
        std::iter::once(heads).chain(table.rows.iter().map(|row| table.cells(row))).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for ((cell, width), column) in line.iter().zip(&widths).zip(table.columns) {
            let gap = " ".repeat(width - cell.chars().count());
            if column.kind.is_number() {
                text.push_str(&format!("  {gap}{cell}"))
            } else {
                text.push_str(&format!("  {cell}{gap}"))
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// Converts everything to JSON: `server`, and a list for each table.
#[must_use]
pub fn to_json(sample: &StatusInterval) -> Value {
    let document = sample.latest_document();
    let mut all = Map::new();
    for key in ["pid", "version", "state", "age_ms", "listen"] {
        all.insert(key.to_owned(), document[key].clone());
    }
    all.insert("seconds".into(), json!(sample.seconds()));
    all.insert("server".into(), Value::Object(sample.server()));
    for table in tables(sample) {
        all.insert(table.name.into(), json!(table.rows));
    }
    Value::Object(all)
}
