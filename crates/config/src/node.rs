//! TOML text as a tree in which every key and value has its place in the text.

use crate::report::TextSpan;
use toml_edit::{Document, Item, Key, TableLike, TomlError, Value};

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The place of the value; for a `[table]` its header; for a table without one (`a.b = 1`), its first key.
    pub(crate) at: TextSpan,
    pub(crate) data: Data,
}

/// Value of a node, by type.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    Text(String),
    Integer(i64),
    Float(f64),
    Flag(bool),
    Date,
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: TextSpan,
    pub(crate) value: Node,
}

impl Node {
    /// Parses a document. The result is a table; values nest at most 80 deep.
    pub(crate) fn document(text: &str) -> Result<Self, TomlError> {
        let document = Document::parse(text)?;
        Ok(Self { at: 0..0, data: Data::Table(entries(document.as_table())) })
    }

    /// Returns the name of the type, with its article.
    pub(crate) fn what(&self) -> &'static str {
        match self.data {
            Data::Text(_) => "a string",
            Data::Integer(_) => "an integer",
            Data::Float(_) => "a float",
            Data::Flag(_) => "a boolean",
            Data::Date => "a date or time",
            Data::List(_) => "a list",
            Data::Table(_) => "a table",
        }
    }

    /// Whether it is a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.data, Data::Table(_))
    }

    /// The entry of that key, if this is a table that has one.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.data {
            Data::Table(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The items of the list under that key; none if there is no such list.
    pub(crate) fn items(&self, key: &str) -> &[Node] {
        match self.entry(key).map(|entry| &entry.value.data) {
            Some(Data::List(items)) => items,
            _ => &[],
        }
    }

    /// Returns the items of a list, or a single value that stands for a list.
    pub(crate) fn one_or_more(&self, key: &str) -> &[Node] {
        match self.entry(key).map(|entry| &entry.value) {
            Some(Node { data: Data::List(items), .. }) => items,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        }
    }
}

fn entries(table: &dyn TableLike) -> Vec<Entry> {
    let entry = |(name, item): (&str, &Item)| {
        let key_at = table.key(name).and_then(Key::span).unwrap_or_default();
        let value = node(item, &key_at);
        Entry { key: name.to_owned(), key_at, value }
    };
    table.iter().map(entry).collect()
}

fn node(item: &Item, key_at: &TextSpan) -> Node {
    let (at, data) = match item {
        Item::None => (None, Data::Table(Vec::new())),
        Item::Value(value) => return scalar(value, key_at),
        Item::Table(table) => (table.span(), Data::Table(entries(table))),
        Item::ArrayOfTables(array) => {
            let table = |table: &toml_edit::Table| Node {
                at: table.span().unwrap_or_else(|| key_at.clone()),
                data: Data::Table(entries(table)),
            };
            (None, Data::List(array.iter().map(table).collect()))
        }
    };
    // Tables that exist only through dotted keys or deeper headers have an empty span.
    Node { at: at.filter(|at| !at.is_empty()).unwrap_or_else(|| key_at.clone()), data }
}

fn scalar(value: &Value, key_at: &TextSpan) -> Node {
    let data = match value {
        Value::String(text) => Data::Text(text.value().clone()),
        Value::Integer(number) => Data::Integer(*number.value()),
        Value::Float(number) => Data::Float(*number.value()),
        Value::Boolean(flag) => Data::Flag(*flag.value()),
        Value::Datetime(_) => Data::Date,
        Value::Array(items) => Data::List(items.iter().map(|item| scalar(item, key_at)).collect()),
        Value::InlineTable(table) => Data::Table(entries(table)),
    };
    Node { at: value.span().filter(|at| !at.is_empty()).unwrap_or_else(|| key_at.clone()), data }
}

/// Returns the node's text if it is a string.
pub(crate) fn text(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Text(text) => Some(text),
        _ => None,
    }
}

/// Whether it is anything but `false`.
pub(crate) fn is_on(node: &Node) -> bool {
    !matches!(node.data, Data::Flag(false))
}

/// Visits every text at or below a node, with the key of the text or of its list.
pub(crate) fn each_text(node: &Node, key: &str, see: &mut dyn FnMut(&str, &str, &TextSpan)) {
    match &node.data {
        Data::Text(text) => see(key, text, &node.at),
        Data::List(items) => items.iter().for_each(|item| each_text(item, key, see)),
        Data::Table(entries) => entries.iter().for_each(|entry| each_text(&entry.value, &entry.key, see)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place<'a>(text: &'a str, path: &[&str]) -> &'a str {
        let mut node = Node::document(text).unwrap();
        for key in path {
            node = match (key.parse::<usize>(), &node.data) {
                (Ok(index), Data::List(items)) => items[index].clone(),
                _ => node.entry(key).expect("the key is there").value.clone(),
            };
        }
        &text[node.at]
    }

    #[test]
    fn every_value_knows_its_place() {
        let text = "a = [1, \"x\"]\nb.c.d = true\n[t]\nk = { i = 2.5 }\n[[s]]\n[[s.r]]\nz = 1\n[p.q]\n";
        assert_eq!(place(text, &["a"]), "[1, \"x\"]");
        assert_eq!(place(text, &["a", "1"]), "\"x\"");
        assert_eq!(place(text, &["b", "c", "d"]), "true");
        assert_eq!(place(text, &["b", "c"]), "c");
        assert_eq!(place(text, &["t"]), "[t]");
        assert_eq!(place(text, &["t", "k", "i"]), "2.5");
        assert_eq!(place(text, &["s", "0", "r", "0"]), "[[s.r]]");
        assert_eq!(place(text, &["s"]), "s");
        assert_eq!(place(text, &["p"]), "p");
    }
}
