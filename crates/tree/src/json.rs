//! Conversion between TOML values and JSON.

use serde_json::{Map, Number, Value as Json, json};
use toml_edit::{Array, ArrayOfTables, InlineTable, Item, Table, TableLike, Value};

use crate::path::TreeError;

/// The position of a table, which decides the formatting of tables in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TablePosition {
    /// The document root.
    Top,
    /// A table with a header.
    Header,
    /// An inline table.
    Inline,
}

/// Length above which a one-line table gets a header of its own.
const LINE_CHARS_MAX: usize = 100;
/// Maximum nesting depth of an accepted value.
const DEPTH_MAX: usize = 32;

/// Converts a table to JSON.
pub(crate) fn table_to_json(table: &dyn TableLike) -> Map<String, Json> {
    let present = table.iter().filter(|(_, item)| !item.is_none());
    present.map(|(key, item)| (key.to_owned(), item_to_json(item))).collect()
}

/// Converts an item to JSON.
pub(crate) fn item_to_json(item: &Item) -> Json {
    match item {
        Item::None => Json::Null,
        Item::Value(value) => value_to_json(value),
        Item::Table(table) => Json::Object(table_to_json(table)),
        Item::ArrayOfTables(tables) => {
            tables.iter().map(|table| Json::Object(table_to_json(table))).collect()
        }
    }
}

/// Converts a value to JSON. Dates, and numbers that JSON cannot represent, become text.
pub(crate) fn value_to_json(value: &Value) -> Json {
    match value {
        Value::String(text) => json!(text.value()),
        Value::Integer(number) => json!(number.value()),
        Value::Float(number) => {
            Number::from_f64(*number.value()).map_or_else(|| json!(number.value().to_string()), Json::Number)
        }
        Value::Boolean(flag) => json!(flag.value()),
        Value::Datetime(date) => json!(date.value().to_string()),
        Value::Array(items) => items.iter().map(value_to_json).collect(),
        Value::InlineTable(table) => Json::Object(table_to_json(table)),
    }
}

/// Converts JSON to an inline value.
pub(crate) fn json_to_value(json: &Json) -> Result<Value, TreeError> {
    json_to_value_within(json, DEPTH_MAX)
}

fn json_to_value_within(json: &Json, depth: usize) -> Result<Value, TreeError> {
    let invalid = |text: &str| Err(TreeError::Invalid(text.to_owned()));
    let Some(depth) = depth.checked_sub(1) else { return invalid("the value is nested too deeply") };
    Ok(match json {
        Json::Null => return invalid("TOML has no null: leave the key out, or delete it"),
        Json::Bool(flag) => (*flag).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.into(),
            (None, Some(float)) if number.is_f64() => float.into(),
            _ => return invalid("the number is larger than TOML's integers"),
        },
        Json::Array(items) => {
            let items = items.iter().map(|item| json_to_value_within(item, depth));
            Value::Array(items.collect::<Result<Array, _>>()?)
        }
        Json::Object(entries) => {
            let mut table = InlineTable::new();
            for (key, value) in entries {
                table.insert(key, json_to_value_within(value, depth)?);
            }
            Value::InlineTable(table)
        }
    })
}

/// Converts JSON to an item of a table at that position: long values get headers of their own where possible,
/// and so do tables at the top level.
pub(crate) fn json_to_item(json: &Json, place: TablePosition) -> Result<Item, TreeError> {
    let value = json_to_value(json)?;
    let fits = place != TablePosition::Top && value.to_string().len() <= LINE_CHARS_MAX;
    match json {
        _ if place == TablePosition::Inline || fits => Ok(Item::Value(value)),
        Json::Object(entries) => Ok(Item::Table(json_to_table(entries)?)),
        Json::Array(items) if !items.is_empty() && items.iter().all(Json::is_object) => {
            let mut tables = ArrayOfTables::new();
            for entries in items.iter().filter_map(Json::as_object) {
                tables.push(json_to_table(entries)?);
            }
            Ok(Item::ArrayOfTables(tables))
        }
        _ => Ok(Item::Value(value)),
    }
}

/// Converts entries to a table with a header.
pub(crate) fn json_to_table(entries: &Map<String, Json>) -> Result<Table, TreeError> {
    let mut table = Table::new();
    for (key, value) in entries {
        table.insert(key, json_to_item(value, TablePosition::Header)?);
    }
    Ok(table)
}
