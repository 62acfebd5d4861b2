//! The JSON Schema of the configuration, for editors.

use crate::directive_table::{DirectiveTable, all_chapters};
use crate::node::{Node, NodeData};
use crate::reference::unindent;
use crate::shape::{DirectiveReference, TableReference};
use serde_json::{Map, Value, json};

/// Returns the JSON Schema (draft 2020-12) of a file whose top level is the table `R`.
///
/// # Panics
/// Panics if a default is not valid TOML.
#[must_use]
pub fn schema<R: DirectiveTable>(title: &str) -> Value {
    let mut tables =
        all_chapters::<R>().into_iter().map(|chapter| (chapter.name.to_owned(), table_schema(chapter)));
    let (_, mut schema) = tables.next().expect("the first chapter is the file's");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema["$defs"] = Value::Object(tables.collect());
    schema
}

fn table_schema(chapter: TableReference) -> Value {
    let articles = || chapter.directives.iter();
    let properties: Map<String, Value> =
        articles().map(|article| (article.name.to_owned(), property(article))).collect();
    let mut schema = json!({
        "type": "object",
        "description": first_paragraph(chapter.about),
        "properties": properties,
        "additionalProperties": false,
    });
    let required = articles().filter(|article| article.default == "required").map(|article| article.name);
    let required: Vec<&str> = required.collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(article: &DirectiveReference) -> Value {
    let mut schema = article.kind.schema.clone();
    schema["description"] =
        json!(format!("{}\n\nTakes {}.", first_paragraph(article.doc), article.kind.text));
    if !matches!(article.default, "absent" | "required" | "{}") {
        schema["default"] = default_value(article.default);
    }
    schema
}

/// The first paragraph of a document, on one line.
fn first_paragraph(doc: &str) -> String {
    let text = unindent(doc);
    let end = text.find("\n\n").unwrap_or(text.len());
    text[..end].replace('\n', " ").trim().to_owned()
}

fn default_value(toml: &str) -> Value {
    let document = Node::parse_document(&format!("default = {toml}")).expect("a default is valid TOML");
    let entry = document.entry("default").expect("the key was just written");
    node_to_json(&entry.value)
}

/// A value of the file as JSON.
fn node_to_json(node: &Node) -> Value {
    match &node.data {
        NodeData::Text(text) => json!(text),
        NodeData::Integer(number) => json!(number),
        NodeData::Float(number) => json!(number),
        NodeData::Flag(flag) => json!(flag),
        NodeData::Date => Value::Null,
        NodeData::List(items) => Value::Array(items.iter().map(node_to_json).collect()),
        NodeData::Table(entries) => Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), node_to_json(&entry.value))).collect(),
        ),
    }
}
