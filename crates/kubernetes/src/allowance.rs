//! Estimates of the memory that routes take, and the share of it that a namespace may have.
//!
//! The API server bounds an object, not what it becomes: an HTTPRoute of 16 hosts and 128 matches at 64 listeners is 131,072 routes. Costs are
//! estimates, measured with the configuration of a server: a route takes some 9 KiB, a site 20 KiB, and each byte of a list of
//! networks 7 bytes.

use serde_json::Value;

/// A route without directives.
const ROUTE_BYTES: u64 = 9 << 10;
/// A site without routes.
pub(crate) const SITE_BYTES: u64 = 20 << 10;
/// A stream without names.
const STREAM_BYTES: u64 = 8 << 10;
/// A name of a stream.
pub(crate) const NAME_BYTES: u64 = 2 << 10;
/// Memory for each byte of the directives as text of JSON.
const BYTES_PER_DIRECTIVE_BYTE: u64 = 8;

/// Returns what a route with directives of this length takes, in bytes.
pub(crate) fn route_bytes(directives: usize) -> u64 {
    ROUTE_BYTES + BYTES_PER_DIRECTIVE_BYTE * directives as u64
}

/// Returns what a stream with directives of this length takes, in bytes, without its names.
pub(crate) fn stream_bytes(directives: usize) -> u64 {
    STREAM_BYTES + BYTES_PER_DIRECTIVE_BYTE * directives as u64
}

/// Returns the length of a value as text.
pub(crate) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 3,
        Value::Array(items) => items.iter().map(text_bytes).sum::<usize>() + 2,
        Value::Object(table) => {
            table.iter().map(|(name, value)| name.len() + 4 + text_bytes(value)).sum::<usize>() + 2
        }
    }
}

/// The part of its routes that a namespace gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Everything fits.
    Whole,
    /// It is answered 500.
    Failing,
    /// Nothing of the namespace is served, because even the answers 500 would take too much.
    Absent,
}

/// Decides which parts of a namespace fit, the first ones first. Returns the numbers of those that do not.
pub(crate) fn find_excess(parts: impl Iterator<Item = u64>, limit: u64) -> Vec<usize> {
    let (mut used, mut excess) = (0, Vec::new());
    for (at, bytes) in parts.enumerate() {
        if used + bytes <= limit {
            used += bytes;
        } else {
            excess.push(at);
        }
    }
    excess
}

/// Says that a namespace has too much.
pub(crate) fn excess_text(namespace: &str, limit: u64) -> String {
    let mib = limit >> 20;
    format!(
        "the namespace {namespace} has more routes, for each host and listener, than fit in {mib} MiB (`--namespace-memory`): remove hosts, listeners or matches"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_parts_fit() {
        assert!(find_excess([5, 5].into_iter(), 10).is_empty());
        assert_eq!(find_excess([5, 6, 5, 1].into_iter(), 10), [1, 3]);
        assert_eq!(find_excess([11; 4].into_iter(), 10), [0, 1, 2, 3]);
    }

    #[test]
    fn lengths_are_close_to_those_of_texts() {
        let value = json!({ "proxy": { "to": "http://a" }, "allow": ["10.0.0.0/8", "192.0.2.1"], "n": 1 });
        let exact = value.to_string().len();
        assert!(text_bytes(&value).abs_diff(exact) < 12, "{} {exact}", text_bytes(&value));
    }
}
