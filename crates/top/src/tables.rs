//! The tables: their columns, which of these are omitted on narrow screens, and the format of their values.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::formatting::{
    MISSING, format_age, format_bytes, format_clock, format_count, format_number, format_percent, format_time,
};
use crate::sample::{StatusInterval, bound_key};

/// Format of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Text,
    State,
    Level,
    /// Text that takes the remaining width.
    LongText,
    Number,
    Count,
    /// A number that identifies something.
    Id,
    Bytes,
    Ms,
    AgeMs,
    AgeS,
    Share,
    Clock,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) key: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) kind: ColumnKind,
    /// Columns with the highest rank are omitted first on narrow screens; those with 0 are always shown.
    pub(crate) rank: u8,
}

const fn column(key: &'static str, head: &'static str, kind: ColumnKind, rank: u8) -> Column {
    Column { key, heading: head, kind, rank }
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct TopTable {
    pub(crate) title: &'static str,
    /// Name in JSON.
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Map<String, Value>>,
    /// Initial sort column; `None` keeps the original order.
    pub(crate) sort: Option<usize>,
}

const ROUTES: &[Column] = &[
    column("site", "site", ColumnKind::Text, 4),
    column("route", "route", ColumnKind::Text, 0),
    column("handler", "handler", ColumnKind::Text, 3),
    column("requests_per_s", "req/s", ColumnKind::Number, 0),
    column("status_4xx_per_s", "4xx/s", ColumnKind::Number, 5),
    column("status_5xx_per_s", "5xx/s", ColumnKind::Number, 0),
    column("p50_ms", "p50", ColumnKind::Ms, 0),
    column("p90_ms", "p90", ColumnKind::Ms, 6),
    column("p99_ms", "p99", ColumnKind::Ms, 0),
    column("cpu_ms", "CPU", ColumnKind::Ms, 8),
    column("worker_cpu_ms", "worker", ColumnKind::Ms, 9),
    column("out_bytes_per_s", "out/s", ColumnKind::Bytes, 2),
    column("requests", "requests", ColumnKind::Count, 7),
];
const SERVERS: &[Column] = &[
    column("group", "group", ColumnKind::Text, 2),
    column("url", "server", ColumnKind::Text, 0),
    column("state", "state", ColumnKind::State, 0),
    column("active", "active", ColumnKind::Count, 1),
    column("requests_per_s", "req/s", ColumnKind::Number, 0),
    column("status_5xx_per_s", "5xx/s", ColumnKind::Number, 4),
    column("failures_per_s", "failed/s", ColumnKind::Number, 0),
    column("p50_ms", "p50", ColumnKind::Ms, 3),
    column("p99_ms", "p99", ColumnKind::Ms, 0),
    column("ejections", "ejected", ColumnKind::Count, 6),
    column("waiting", "waiting", ColumnKind::Count, 5),
];
const WORKERS: &[Column] = &[
    column("app", "app", ColumnKind::Text, 0),
    column("worker", "no.", ColumnKind::Id, 3),
    column("pid", "PID", ColumnKind::Id, 1),
    column("state", "state", ColumnKind::State, 0),
    column("pss_bytes", "memory", ColumnKind::Bytes, 0),
    column("cpu", "CPU", ColumnKind::Share, 2),
    column("requests_per_s", "req/s", ColumnKind::Number, 0),
    column("requests", "requests", ColumnKind::Count, 6),
    column("age_ms", "age", ColumnKind::AgeMs, 5),
    column("waiting", "waiting", ColumnKind::Count, 4),
    column("current_ms", "for", ColumnKind::AgeMs, 0),
    column("current", "current request", ColumnKind::LongText, 0),
];
const CERTIFICATES: &[Column] = &[
    column("name", "name", ColumnKind::Text, 0),
    column("expires_in_s", "expires in", ColumnKind::AgeS, 0),
    column("issuer", "issuer", ColumnKind::Text, 1),
    column("last_error", "last error", ColumnKind::LongText, 0),
];
const CACHE: &[Column] = &[
    column("hit_rate", "hit rate", ColumnKind::Share, 0),
    column("hits", "hits", ColumnKind::Count, 0),
    column("stale", "stale", ColumnKind::Count, 3),
    column("revalidated", "validated", ColumnKind::Count, 4),
    column("coalesced", "together", ColumnKind::Count, 5),
    column("misses", "misses", ColumnKind::Count, 0),
    column("passed", "passed", ColumnKind::Count, 2),
    column("objects", "responses", ColumnKind::Count, 1),
    column("evicted", "evicted", ColumnKind::Count, 1),
    column("bytes", "memory", ColumnKind::Bytes, 0),
    column("bytes_max", "of", ColumnKind::Bytes, 0),
];
const EVENTS: &[Column] = &[
    column("unix_ms", "UTC", ColumnKind::Clock, 0),
    column("level", "level", ColumnKind::Level, 0),
    column("text", "event", ColumnKind::LongText, 0),
];

/// Number of tables.
pub(crate) const TABLE_COUNT: usize = 6;

/// Returns all tables, in the order of their keys.
pub(crate) fn tables(sample: &StatusInterval) -> [TopTable; TABLE_COUNT] {
    let rows = |title, name, columns, rows, sort| TopTable { title, name, columns, rows, sort };
    let cache = Some(sample.cache()).filter(|cache| !cache.is_empty());
    [
        rows("Routes", "routes", ROUTES, sample.routes(), Some(3)),
        rows("Upstream servers", "upstreams", SERVERS, sample.servers(), None),
        rows("Applications", "workers", WORKERS, sample.workers(), Some(10)),
        rows("Certificates", "certificates", CERTIFICATES, sample.certificates(), Some(1)),
        rows("Cache", "cache", CACHE, cache.into_iter().collect(), None),
        rows("Events", "events", EVENTS, sample.events(), None),
    ]
}

/// Formats a duration of `row`, with `≤` or `>` if only a bound is known.
pub(crate) fn format_ms(row: &Map<String, Value>, key: &str) -> String {
    let Some(ms) = row.get(key).and_then(Value::as_f64) else { return MISSING.to_owned() };
    let sign = match row.get(&bound_key(key)).and_then(Value::as_str) {
        Some("upper") => "≤",
        Some(_) => ">",
        None => "",
    };
    format!("{sign}{}", format_time(ms))
}

impl Column {
    /// Formats the cell of a row.
    pub(crate) fn format_cell(&self, row: &Map<String, Value>) -> String {
        match self.kind {
            ColumnKind::Ms => format_ms(row, self.key),
            kind => kind.format_value(row.get(self.key).unwrap_or(&Value::Null)),
        }
    }
}

impl ColumnKind {
    pub(crate) fn is_number(self) -> bool {
        !matches!(
            self,
            ColumnKind::Text
                | ColumnKind::State
                | ColumnKind::Level
                | ColumnKind::LongText
                | ColumnKind::Clock
        )
    }

    /// Formats a value.
    pub(crate) fn format_value(self, value: &Value) -> String {
        if let Some(text) = value.as_str() {
            return text.to_owned();
        }
        let Some(figure) = value.as_f64() else { return MISSING.to_owned() };
        match self {
            ColumnKind::Text
            | ColumnKind::State
            | ColumnKind::Level
            | ColumnKind::LongText
            | ColumnKind::Number => format_number(figure),
            ColumnKind::Count => format_count(value.as_u64().unwrap_or_default()),
            ColumnKind::Id => value.to_string(),
            ColumnKind::Bytes => format_bytes(figure),
            ColumnKind::Ms => format_time(figure),
            ColumnKind::AgeMs => format_age(figure),
            ColumnKind::AgeS if figure < 0.0 => "expired".to_owned(),
            ColumnKind::AgeS => format_age(figure * 1e3),
            ColumnKind::Share => format_percent(figure),
            ColumnKind::Clock => format_clock(value.as_u64().unwrap_or_default()),
        }
    }
}

impl TopTable {
    /// Sorts by a column: numbers in descending order, text in ascending order; `reverse` inverts this.
    /// Missing values come last.
    pub(crate) fn sort_by(&mut self, column: usize, reverse: bool) {
        let key = self.columns[column].key;
        let order = |a: &Value, b: &Value| match (a, b) {
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Null, Value::Null) => Ordering::Equal,
            (Value::Null, _) => Ordering::Greater,
            (_, Value::Null) => Ordering::Less,
            (a, b) => b.as_f64().unwrap_or_default().total_cmp(&a.as_f64().unwrap_or_default()),
        };
        let value = |row: &Map<String, Value>| row.get(key).cloned().unwrap_or_default();
        self.rows.sort_by(|a, b| {
            let a = value(a);
            let b = value(b);
            let order = order(&a, &b);
            if reverse && !a.is_null() && !b.is_null() { order.reverse() } else { order }
        });
    }

    /// Formats the cells of a row.
    pub(crate) fn cells(&self, row: &Map<String, Value>) -> Vec<String> {
        self.columns.iter().map(|column| column.format_cell(row)).collect()
    }
}
