//! TOML text as a tree in which every key and value has its place in the text.

use crate::report::TextSpan;
use serde_json::Value as Json;
use toml_edit::{Document, Item, Key, TableLike, TomlError, Value};

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// The place of the value; for a `[table]` its header; for a table without one (`a.b = 1`), its first key.
    pub span: TextSpan,
    /// The value itself.
    pub data: NodeData,
}

/// Value of a node, by type.
#[derive(Debug, Clone)]
pub enum NodeData {
    /// String, without quotes and escapes.
    Text(String),
    /// Integer.
    Integer(i64),
    /// Floating-point number; infinities and NaN are possible.
    Float(f64),
    /// Boolean.
    Flag(bool),
    /// Date, time or both. The value is not kept, because no directive takes one.
    Date,
    /// Array, or array of tables, in the order of the file.
    List(Vec<Node>),
    /// Table or inline table. Keys are unique.
    Table(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key, without quotes. One part of a dotted key: `a.b = 1` is an entry `b` in the table of an entry `a`.
    pub key: String,
    /// The place of the key.
    pub key_span: TextSpan,
    /// The value of the key.
    pub value: Node,
}

impl Node {
    /// Parses a document. The result is a table; values nest at most 80 deep.
    ///
    /// # Errors
    /// Returns the error, with its place, if `text` is not valid TOML or nests deeper.
    pub fn parse_document(text: &str) -> Result<Self, TomlError> {
        let document = Document::parse(text)?;
        Ok(Self { span: 0..0, data: NodeData::Table(convert_table(document.as_table())) })
    }

    /// Creates a list at the start of the text.
    #[must_use]
    pub fn list(items: Vec<Node>) -> Self {
        Self { span: 0..0, data: NodeData::List(items) }
    }

    /// Moves the node and all below it to a line of a text that consists of line feeds: a tree that comes from no text has
    /// places nevertheless, by which findings tell its parts apart.
    #[must_use]
    pub fn at(mut self, line: usize) -> Self {
        self.move_to(&(line..line + 1));
        self
    }

    /// Moves the node to such a line, but nothing below it.
    #[must_use]
    pub fn at_own(mut self, line: usize) -> Self {
        self.span = line..line + 1;
        self
    }

    fn move_to(&mut self, span: &TextSpan) {
        self.span = span.clone();
        match &mut self.data {
            NodeData::List(items) => items.iter_mut().for_each(|item| item.move_to(span)),
            NodeData::Table(entries) => {
                for entry in entries {
                    entry.key_span = span.clone();
                    entry.value.move_to(span);
                }
            }
            _ => {}
        }
    }

    /// Sets an entry of a table; of other nodes nothing.
    pub fn set_entry(&mut self, key: &str, value: Node) {
        let key_span = self.span.clone();
        if let NodeData::Table(entries) = &mut self.data {
            entries.retain(|entry| entry.key != key);
            entries.push(Entry { key: key.to_owned(), key_span, value });
        }
    }

    /// Returns the name of the type, with its article.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.data {
            NodeData::Text(_) => "a string",
            NodeData::Integer(_) => "an integer",
            NodeData::Float(_) => "a float",
            NodeData::Flag(_) => "a boolean",
            NodeData::Date => "a date or time",
            NodeData::List(_) => "a list",
            NodeData::Table(_) => "a table",
        }
    }

    /// Whether it is a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        matches!(self.data, NodeData::Table(_))
    }

    /// The entry of that key, if this is a table that has one.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.data {
            NodeData::Table(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The items of the list under that key; none if there is no such list.
    #[must_use]
    pub fn items(&self, key: &str) -> &[Node] {
        match self.entry(key).map(|entry| &entry.value.data) {
            Some(NodeData::List(items)) => items,
            _ => &[],
        }
    }

    /// Returns the items of a list, or a single value that stands for a list.
    #[must_use]
    pub fn one_or_more(&self, key: &str) -> &[Node] {
        match self.entry(key).map(|entry| &entry.value) {
            Some(Node { data: NodeData::List(items), .. }) => items,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        }
    }
}

impl From<Json> for Node {
    /// Converts JSON. Entries that are null are left out, as TOML has none; integers beyond 64 bits become floats.
    fn from(json: Json) -> Self {
        let data = match json {
            Json::Null => NodeData::Table(Vec::new()),
            Json::Bool(flag) => NodeData::Flag(flag),
            Json::Number(number) => match number.as_i64() {
                Some(integer) => NodeData::Integer(integer),
                None => NodeData::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => NodeData::Text(text),
            Json::Array(items) => NodeData::List(items.into_iter().map(Node::from).collect()),
            Json::Object(entries) => {
                let present = entries.into_iter().filter(|(_, value)| !value.is_null());
                let entry = |(key, value)| Entry { key, key_span: 0..0, value: Node::from(value) };
                NodeData::Table(present.map(entry).collect())
            }
        };
        Self { span: 0..0, data }
    }
}

fn convert_table(table: &dyn TableLike) -> Vec<Entry> {
    let entry = |(name, item): (&str, &Item)| {
        let key_at = table.key(name).and_then(Key::span).unwrap_or_default();
        let value = convert_item(item, &key_at);
        Entry { key: name.to_owned(), key_span: key_at, value }
    };
    table.iter().map(entry).collect()
}

fn convert_item(item: &Item, key_at: &TextSpan) -> Node {
    let (at, data) = match item {
        Item::None => (None, NodeData::Table(Vec::new())),
        Item::Value(value) => return convert_value(value, key_at),
        Item::Table(table) => (table.span(), NodeData::Table(convert_table(table))),
        Item::ArrayOfTables(array) => {
            let table = |table: &toml_edit::Table| Node {
                span: table.span().unwrap_or_else(|| key_at.clone()),
                data: NodeData::Table(convert_table(table)),
            };
            (None, NodeData::List(array.iter().map(table).collect()))
        }
    };
    // Tables that exist only through dotted keys or deeper headers have an empty span.
    Node { span: at.filter(|at| !at.is_empty()).unwrap_or_else(|| key_at.clone()), data }
}

fn convert_value(value: &Value, key_at: &TextSpan) -> Node {
    let data = match value {
        Value::String(text) => NodeData::Text(text.value().clone()),
        Value::Integer(number) => NodeData::Integer(*number.value()),
        Value::Float(number) => NodeData::Float(*number.value()),
        Value::Boolean(flag) => NodeData::Flag(*flag.value()),
        Value::Datetime(_) => NodeData::Date,
        Value::Array(items) => NodeData::List(items.iter().map(|item| convert_value(item, key_at)).collect()),
        Value::InlineTable(table) => NodeData::Table(convert_table(table)),
    };
    Node { span: value.span().filter(|at| !at.is_empty()).unwrap_or_else(|| key_at.clone()), data }
}

/// Returns the node's text if it is a string.
#[must_use]
pub fn as_text(node: &Node) -> Option<&str> {
    match &node.data {
        NodeData::Text(text) => Some(text),
        _ => None,
    }
}

/// Whether it is anything but `false`.
#[must_use]
pub fn is_enabled(node: &Node) -> bool {
    !matches!(node.data, NodeData::Flag(false))
}

/// Visits every text at or below a node, with the key of the text or of its list.
pub fn for_each_text(node: &Node, key: &str, see: &mut dyn FnMut(&str, &str, &TextSpan)) {
    match &node.data {
        NodeData::Text(text) => see(key, text, &node.span),
        NodeData::List(items) => items.iter().for_each(|item| for_each_text(item, key, see)),
        NodeData::Table(entries) => {
            entries.iter().for_each(|entry| for_each_text(&entry.value, &entry.key, see))
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spanned_text<'a>(text: &'a str, path: &[&str]) -> &'a str {
        let mut node = Node::parse_document(text).unwrap();
        for key in path {
            node = match (key.parse::<usize>(), &node.data) {
                (Ok(index), NodeData::List(items)) => items[index].clone(),
                _ => node.entry(key).expect("the key is there").value.clone(),
            };
        }
        &text[node.span]
    }

    #[test]
    fn every_node_knows_its_span_in_the_text() {
        let text = "a = [1, \"x\"]\nb.c.d = true\n[t]\nk = { i = 2.5 }\n[[s]]\n[[s.r]]\nz = 1\n[p.q]\n";
        assert_eq!(spanned_text(text, &["a"]), "[1, \"x\"]");
        assert_eq!(spanned_text(text, &["a", "1"]), "\"x\"");
        assert_eq!(spanned_text(text, &["b", "c", "d"]), "true");
        assert_eq!(spanned_text(text, &["b", "c"]), "c");
        assert_eq!(spanned_text(text, &["t"]), "[t]");
        assert_eq!(spanned_text(text, &["t", "k", "i"]), "2.5");
        assert_eq!(spanned_text(text, &["s", "0", "r", "0"]), "[[s.r]]");
        assert_eq!(spanned_text(text, &["s"]), "s");
        assert_eq!(spanned_text(text, &["p"]), "p");
    }
}
