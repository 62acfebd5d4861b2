//! The JSON Schema of the configuration, for editors.

use crate::node::{Data, Node};
use crate::record::chapters;
use crate::reference::plain;
use crate::server::Config;
use crate::shape::{Article, Chapter};
use serde_json::{Map, Value, json};

/// The JSON Schema (draft 2020-12) of a configuration file.
pub fn schema() -> Value {
    let mut tables =
        chapters::<Config>().into_iter().map(|chapter| (chapter.name.to_owned(), table_schema(chapter)));
    let (_, mut schema) = tables.next().expect("the first chapter is the file's");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Komainu configuration");
    schema["$defs"] = Value::Object(tables.collect());
    schema
}

fn table_schema(chapter: Chapter) -> Value {
    let articles = || chapter.articles.iter();
    let properties: Map<String, Value> =
        articles().map(|article| (article.name.to_owned(), property(article))).collect();
    let mut schema = json!({
        "type": "object",
        "description": paragraph(chapter.about),
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

fn property(article: &Article) -> Value {
    let mut schema = article.kind.schema.clone();
    schema["description"] = json!(format!("{}\n\nTakes {}.", paragraph(article.doc), article.kind.text));
    if !matches!(article.default, "absent" | "required" | "{}") {
        schema["default"] = default_value(article.default);
    }
    schema
}

/// The first paragraph of a document, on one line.
fn paragraph(doc: &str) -> String {
    let text = plain(doc);
    let end = text.find("\n\n").unwrap_or(text.len());
    text[..end].replace('\n', " ").trim().to_owned()
}

fn default_value(toml: &str) -> Value {
    let document = Node::document(&format!("default = {toml}")).expect("a default is valid TOML");
    let entry = document.entry("default").expect("the key was just written");
    json_of(&entry.value)
}

/// A value of the file as JSON.
fn json_of(node: &Node) -> Value {
    match &node.data {
        Data::Text(text) => json!(text),
        Data::Integer(number) => json!(number),
        Data::Float(number) => json!(number),
        Data::Flag(flag) => json!(flag),
        Data::Date => Value::Null,
        Data::List(items) => Value::Array(items.iter().map(json_of).collect()),
        Data::Table(entries) => {
            Value::Object(entries.iter().map(|entry| (entry.key.clone(), json_of(&entry.value))).collect())
        }
    }
}
