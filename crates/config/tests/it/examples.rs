//! The examples parse without a warning, and the schema takes them, as it refuses what the parser refuses.

use crate::place;
use config::{Config, schema};
use regex_lite::Regex;
use serde_json::{Map, Value, json};
use std::path::Path;

fn examples() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(place("examples")).expect("the examples are there");
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("an example is text");
        (path.display().to_string(), text)
    };
    folder.map(|entry| read(entry.expect("a folder can be read").path())).collect()
}

/// TOML as JSON.
fn json_of(text: &str) -> Value {
    fn value(one: &toml_edit::Value) -> Value {
        match one {
            toml_edit::Value::String(text) => json!(text.value()),
            toml_edit::Value::Integer(number) => json!(number.value()),
            toml_edit::Value::Float(number) => json!(number.value()),
            toml_edit::Value::Boolean(flag) => json!(flag.value()),
            toml_edit::Value::Datetime(date) => json!(date.value().to_string()),
            toml_edit::Value::Array(items) => items.iter().map(value).collect(),
            toml_edit::Value::InlineTable(inner) => table(inner),
        }
    }
    fn table(inner: &dyn toml_edit::TableLike) -> Value {
        let entry = |(key, item): (&str, &toml_edit::Item)| {
            let read = match item {
                toml_edit::Item::None => Value::Null,
                toml_edit::Item::Value(one) => value(one),
                toml_edit::Item::Table(one) => table(one),
                toml_edit::Item::ArrayOfTables(all) => all.iter().map(|one| table(one)).collect(),
            };
            (key.to_owned(), read)
        };
        Value::Object(inner.iter().map(entry).collect::<Map<_, _>>())
    }
    let document = toml_edit::Document::parse(text).expect("the text is TOML");
    table(document.as_table())
}

/// The part of JSON Schema that the schema uses. A keyword that it does not know is a panic, so that none is
/// passed over.
fn valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let keywords = schema.as_object().expect("a schema is an object");
    keywords.iter().all(|(keyword, wanted)| match keyword.as_str() {
        "$schema" | "$defs" | "title" | "description" | "default" => true,
        "$ref" => {
            let name =
                wanted.as_str().and_then(|text| text.strip_prefix("#/$defs/")).expect("a reference is local");
            valid(root, root["$defs"].get(name).expect("a reference leads somewhere"), value)
        }
        "type" => match wanted.as_str().expect("a type is a name") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64(),
            "boolean" => value.is_boolean(),
            other => panic!("the type {other}"),
        },
        "enum" => wanted.as_array().expect("an enum is a list").contains(value),
        "const" => wanted == value,
        "anyOf" => wanted.as_array().expect("a list").iter().any(|one| valid(root, one, value)),
        "minimum" => value.as_i64().is_none_or(|number| wanted.as_i64().is_some_and(|limit| number >= limit)),
        "maximum" => value.as_i64().is_none_or(|number| wanted.as_i64().is_some_and(|limit| number <= limit)),
        "minLength" => {
            value.as_str().is_none_or(|text| text.len() as u64 >= wanted.as_u64().expect("a length"))
        }
        "minItems" => {
            value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().expect("a length"))
        }
        "pattern" => {
            let pattern =
                Regex::new(wanted.as_str().expect("a pattern is text")).expect("a pattern is valid");
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| valid(root, wanted, item))),
        "required" => value.as_object().is_none_or(|object| {
            wanted
                .as_array()
                .expect("a list")
                .iter()
                .all(|name| name.as_str().is_some_and(|name| object.contains_key(name)))
        }),
        "properties" => value.as_object().is_none_or(|object| {
            let known = wanted.as_object().expect("properties are an object");
            object.iter().all(|(key, inner)| known.get(key).is_none_or(|schema| valid(root, schema, inner)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let known = |key: &str| schema["properties"].get(key).is_some();
            let allowed = |inner: &Value| wanted.as_bool().unwrap_or_else(|| valid(root, wanted, inner));
            object.iter().all(|(key, inner)| known(key) || allowed(inner))
        }),
        other => panic!("the keyword {other}"),
    })
}

#[test]
fn examples_are_valid_for_parser_and_schema() {
    let schema = schema();
    let examples = examples();
    assert!(examples.len() >= 3);
    for (name, text) in examples {
        match Config::parse(&text, &name, Path::new("/srv")) {
            Ok((_, report)) => assert!(report.is_empty(), "{report}"),
            Err(report) => panic!("{report}"),
        }
        assert!(valid(&schema, &schema, &json_of(&text)), "{name}");
    }
}

#[test]
fn schema_rejects_what_the_parser_rejects() {
    let schema = schema();
    for text in [
        "lisen = \":80\"",
        "listen = 80",
        "listen = \"8080\"",
        "listen = []",
        "threads = -1",
        "threads = 1025",
        "threads = \"2\"",
        "limits = { head = 16384 }",
        "limits = { head = \"16kb\" }",
        "limits = { body = \"none\" }",
        "timeouts = { idle = \"75\" }",
        "timeouts = { idle = \"1 m\" }",
        "log = { access = \"on\" }",
        "log = { file = \"\" }",
        "site = {}",
        "site = [{ host = \"a\" }]",
        "site = [{ hosts = [] }]",
        "route = [{ path = [], respond = \"\" }]",
        "route = [{ files = true }]",
        "route = [{ files = { index = [\"a\"] } }]",
        "route = [{ files = { root = \"a\", compress = \"on\" } }]",
        "route = [{ files = { root = \"a\", charset = true } }]",
        "route = [{ redirect = { to = \"/\", status = 304 } }]",
        "route = [{ respond = 99 }]",
        "route = [{ respond = \"\", header = { A = false } }]",
        "response_headers = { set = { A = 1 } }",
        "error_pages = { 404 = 1 }",
    ] {
        assert!(Config::parse(text, "test", Path::new("")).is_err(), "the parser takes {text}");
        assert!(!valid(&schema, &schema, &json_of(text)), "the schema takes {text}");
    }
}

#[test]
fn schema_accepts_its_own_defaults() {
    let schema = schema();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    let mut count = 0;
    for (name, property) in tables.flat_map(|table| table["properties"].as_object().unwrap()) {
        if let Some(default) = property.get("default") {
            assert!(valid(&schema, property, default), "{name}: {default}");
            count += 1;
        }
    }
    assert!(count >= 35, "{count}");
}
