//! Non-interactive output of a sample: as text and as JSON.

use serde_json::{Map, Value, json};

use crate::figures::{age, bytes, clean, count, number, percent};
use crate::sample::{StatusInterval, list};
use crate::tables::{TopTable, shown_ms, tables};

/// Returns the summary lines of the server and its activity.
pub(crate) fn head(sample: &StatusInterval) -> [String; 3] {
    let (document, server) = (sample.document(), sample.server());
    let figure = |key: &str| server[key].as_f64().unwrap_or_default();
    let text = |key: &str| clean(document[key].as_str().unwrap_or_default());
    let listen: Vec<String> = list(&document["listen"]).iter().filter_map(Value::as_str).map(clean).collect();
    let times = |key: &str| shown_ms(&server, key);
    let error_share = figure("status_5xx_per_s") / figure("requests_per_s").max(f64::MIN_POSITIVE);
    [
        format!(
            "Komainu {}  {}  PID {}  up {}  {}",
            text("version"),
            text("state"),
            document["pid"],
            age(document["age_ms"].as_f64().unwrap_or_default()),
            listen.join(" ")
        ),
        format!(
            "{} req/s  5xx {}/s ({})  p50 {}  p99 {}  waiting {}",
            number(figure("requests_per_s")),
            number(figure("status_5xx_per_s")),
            percent(error_share.min(1.0)),
            times("p50_ms"),
            times("p99_ms"),
            number(figure("waiting")),
        ),
        format!(
            "{} connections  CPU {}  memory {}  held {} of {}  out {}/s",
            count(server["connections"].as_u64().unwrap_or_default()),
            percent(figure("cpu")),
            bytes(figure("pss_bytes")),
            bytes(figure("held_bytes")),
            bytes(figure("budget_bytes")),
            bytes(figure("out_bytes_per_s")),
        ),
    ]
}

/// Formats everything as text, without colours or control characters.
#[must_use]
pub fn text(sample: &StatusInterval) -> String {
    let mut out = head(sample).map(|line| format!("{line}\n")).concat();
    for mut table in tables(sample).into_iter().filter(|table| !table.rows.is_empty()) {
        if let Some(column) = table.sort {
            table.sort_by(column, false);
        }
        out.push_str(&format!("\n{}\n", table.title));
        out.push_str(&plain(&table));
    }
    out
}

/// Formats a table in aligned columns.
fn plain(table: &TopTable) -> String {
    let heads: Vec<String> = table.columns.iter().map(|column| column.head.to_owned()).collect();
    let lines: Vec<Vec<String>> =
        std::iter::once(heads).chain(table.rows.iter().map(|row| table.cells(row))).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for ((cell, width), column) in line.iter().zip(&widths).zip(table.columns) {
            let gap = " ".repeat(width - cell.chars().count());
            match column.kind.is_number() {
                true => text.push_str(&format!("  {gap}{cell}")),
                false => text.push_str(&format!("  {cell}{gap}")),
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// Converts everything to JSON: `server`, and a list for each table.
#[must_use]
pub fn json(sample: &StatusInterval) -> Value {
    let document = sample.document();
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
