//! Locating and editing an item in one document, preserving the comments around it.

use serde_json::{Map, Value as Json};
use toml_edit::{Array, ArrayOfTables, Item, RawString, TableLike, Value};

use crate::json::{
    TablePosition, item_to_json, json_to_item, json_to_table, json_to_value, table_to_json, value_to_json,
};
use crate::path::TreeError;

/// A step from a table or list to one of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeStep {
    Key(String),
    Index(usize),
}

/// A container of items.
pub(crate) enum Container<'d> {
    Table(&'d mut dyn TableLike, TablePosition),
    Array(&'d mut Array),
    Tables(&'d mut ArrayOfTables),
}

/// Follows the steps from a table to a container, if there is one.
pub(crate) fn container<'d>(
    table: &'d mut dyn TableLike,
    place: TablePosition,
    steps: &[TreeStep],
) -> Option<Container<'d>> {
    match steps.split_first() {
        None => Some(Container::Table(table, place)),
        Some((TreeStep::Key(key), rest)) => container_in_item(table.get_mut(key)?, rest),
        Some((TreeStep::Index(_), _)) => None,
    }
}

fn container_in_item<'d>(item: &'d mut Item, steps: &[TreeStep]) -> Option<Container<'d>> {
    match (item, steps.split_first()) {
        (Item::Table(table), _) => container(table, TablePosition::Header, steps),
        (Item::Value(value), _) => container_in_value(value, steps),
        (Item::ArrayOfTables(tables), None) => Some(Container::Tables(tables)),
        (Item::ArrayOfTables(tables), Some((TreeStep::Index(at), rest))) => {
            container(tables.get_mut(*at)?, TablePosition::Header, rest)
        }
        _ => None,
    }
}

fn container_in_value<'d>(value: &'d mut Value, steps: &[TreeStep]) -> Option<Container<'d>> {
    match (value, steps.split_first()) {
        (Value::InlineTable(table), _) => container(table, TablePosition::Inline, steps),
        (Value::Array(items), None) => Some(Container::Array(items)),
        (Value::Array(items), Some((TreeStep::Index(at), rest))) => {
            container_in_value(items.get_mut(*at)?, rest)
        }
        _ => None,
    }
}

impl Container<'_> {
    /// Sets an item; an index after the last item of a list appends.
    ///
    /// # Errors
    /// A value that TOML or this list cannot hold.
    pub(crate) fn set(&mut self, step: &TreeStep, json: &Json) -> Result<(), TreeError> {
        match (self, step) {
            (Container::Table(table, place), TreeStep::Key(key)) => set_in_table(*table, *place, key, json),
            (Container::Array(items), TreeStep::Index(at)) => match items.get_mut(*at) {
                Some(item) => put_value(item, json),
                None => push_value(items, json),
            },
            (Container::Tables(tables), TreeStep::Index(at)) => match (json.as_object(), tables.get_mut(*at))
            {
                (Some(entries), Some(table)) => put_table(table, TablePosition::Header, entries),
                (Some(entries), None) => {
                    tables.push(json_to_table(entries)?);
                    Ok(())
                }
                (None, _) => Err(TreeError::Invalid("the items of this list are tables".to_owned())),
            },
            _ => Err(TreeError::Invalid("the path does not lead there".to_owned())),
        }
    }

    /// Replaces the entries of a table.
    ///
    /// # Errors
    /// A value that TOML cannot represent, or the container is not a table.
    pub(crate) fn replace_entries(&mut self, entries: &Json) -> Result<(), TreeError> {
        match (self, entries) {
            (Container::Table(table, place), Json::Object(entries)) => put_table(*table, *place, entries),
            _ => Err(TreeError::Invalid("the path does not lead to a table".to_owned())),
        }
    }

    /// Removes an item. Returns whether the container is now empty.
    pub(crate) fn remove(&mut self, step: &TreeStep) -> bool {
        match (self, step) {
            (Container::Table(table, _), TreeStep::Key(key)) => {
                table.remove(key);
                table.is_empty()
            }
            (Container::Array(items), TreeStep::Index(at)) => {
                remove_value(items, *at);
                items.is_empty()
            }
            (Container::Tables(tables), TreeStep::Index(at)) => {
                tables.remove(*at);
                tables.is_empty()
            }
            _ => false,
        }
    }
}

impl Container<'_> {
    /// Removes an empty item that has no line in the file: a list of tables without a table, or a table that
    /// exists only through the keys and tables in it. Returns whether it was removed and the container is now
    /// empty.
    pub(crate) fn remove_implicit(&mut self, step: &TreeStep) -> bool {
        let (Container::Table(table, _), TreeStep::Key(key)) = (self, step) else { return false };
        let is_unwritten = match table.get(key) {
            Some(Item::ArrayOfTables(tables)) => tables.is_empty(),
            Some(Item::Table(table)) => table.is_empty() && (table.is_implicit() || table.is_dotted()),
            Some(Item::Value(Value::InlineTable(table))) => table.is_empty() && table.is_dotted(),
            _ => false,
        };
        if is_unwritten {
            table.remove(key);
        }
        is_unwritten && table.is_empty()
    }
}

/// The spaces and comments around a value.
fn decor_text(raw: Option<&RawString>) -> String {
    raw.and_then(RawString::as_str).unwrap_or_default().to_owned()
}

/// Removes a value of a list and the comment after it. The comment after the preceding value, which is stored
/// before this one, is kept.
fn remove_value(items: &mut Array, at: usize) {
    let ahead = |value: &Value| decor_text(value.decor().prefix());
    let removed = items.remove(at);
    let behind = items.get(at).map_or_else(|| decor_text(Some(items.trailing())), ahead);
    let removed = ahead(&removed);
    let (Some(end), Some(from)) = (removed.find('\n'), behind.find('\n')) else { return };
    let kept = format!("{}{}", &removed[..end], &behind[from..]);
    match items.get_mut(at) {
        Some(next) => next.decor_mut().set_prefix(kept),
        None => items.set_trailing(kept),
    }
}

/// Appends a value to a list; in a multi-line list on a line of its own, so that a comment after the last
/// value stays there.
fn push_value(items: &mut Array, json: &Json) -> Result<(), TreeError> {
    let mut value = json_to_value(json)?;
    let last = items.iter().last().map(|last| decor_text(last.decor().prefix()));
    let trailing = decor_text(Some(items.trailing()));
    if let (Some(last), Some(end), true) = (last, trailing.find('\n'), items.trailing_comma()) {
        let indent = last.rsplit('\n').next().filter(|indent| indent.trim().is_empty()).unwrap_or("    ");
        value.decor_mut().set_prefix(format!("{}\n{indent}", &trailing[..end]));
        items.push_formatted(value);
        items.set_trailing(&trailing[end..]);
        items.set_trailing_comma(true);
        return Ok(());
    }
    items.push(value);
    Ok(())
}

fn set_in_table(
    table: &mut dyn TableLike,
    place: TablePosition,
    key: &str,
    json: &Json,
) -> Result<(), TreeError> {
    match table.get_mut(key).filter(|item| !item.is_none()) {
        Some(item) => put_item(item, place, json),
        None => {
            table.insert(key, json_to_item(json, place)?);
            Ok(())
        }
    }
}

/// Changes an item to a value; unchanged parts keep their formatting.
fn put_item(item: &mut Item, place: TablePosition, json: &Json) -> Result<(), TreeError> {
    if item_to_json(item) == *json {
        return Ok(());
    }
    match (&mut *item, json) {
        (Item::Table(table), Json::Object(entries)) => {
            if entries.is_empty() {
                // A table without keys needs its header.
                table.set_implicit(false);
                table.set_dotted(false);
            }
            put_table(table, TablePosition::Header, entries)
        }
        (Item::ArrayOfTables(tables), Json::Array(items))
            if !items.is_empty() && items.iter().all(Json::is_object) =>
        {
            while tables.len() > items.len() {
                tables.remove(tables.len() - 1);
            }
            for (at, entries) in items.iter().filter_map(Json::as_object).enumerate() {
                match tables.get_mut(at) {
                    Some(table) => put_table(table, TablePosition::Header, entries)?,
                    None => tables.push(json_to_table(entries)?),
                }
            }
            Ok(())
        }
        (Item::Value(value), json) if !json.is_object() || value.is_inline_table() => put_value(value, json),
        _ => {
            *item = json_to_item(json, place)?;
            Ok(())
        }
    }
}

fn put_table(
    table: &mut dyn TableLike,
    place: TablePosition,
    entries: &Map<String, Json>,
) -> Result<(), TreeError> {
    let gone: Vec<String> = table_to_json(table).into_iter().map(|(key, _)| key).collect();
    for key in gone.iter().filter(|key| !entries.contains_key(*key)) {
        table.remove(key);
    }
    entries.iter().try_for_each(|(key, json)| set_in_table(table, place, key, json))
}

fn put_value(value: &mut Value, json: &Json) -> Result<(), TreeError> {
    if value_to_json(value) == *json {
        return Ok(());
    }
    match (&mut *value, json) {
        (Value::InlineTable(table), Json::Object(entries)) => {
            put_table(table, TablePosition::Inline, entries)
        }
        (Value::Array(items), Json::Array(wanted)) => {
            while items.len() > wanted.len() {
                remove_value(items, items.len() - 1);
            }
            for (at, json) in wanted.iter().enumerate() {
                match items.get_mut(at) {
                    Some(item) => put_value(item, json)?,
                    None => push_value(items, json)?,
                }
            }
            Ok(())
        }
        _ => {
            // Decoration on the line, such as a comment, is kept.
            let decor = value.decor().clone();
            *value = json_to_value(json)?;
            *value.decor_mut() = decor;
            Ok(())
        }
    }
}
