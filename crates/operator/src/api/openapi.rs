//! `/v1/openapi.json`, generated from the table of operations.

use serde_json::{Map, Value, json};

use crate::api::operation::{BodyField, Operation};
use crate::api::request::CallerRole;

/// Returns the OpenAPI 3.1 document. `is_open` is whether metrics and status are available over TCP without a
/// token.
pub(crate) fn document(operations: &[Operation], is_open: bool) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let path = operation.path.replace("...}", "}");
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[operation.method.to_ascii_lowercase()] = describe_operation(operation, is_open);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Komainu control API",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Requests that change something need `Content-Type: application/json`. Changes of the configuration need `If-Match` with the `ETag` of what they change.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `[[control.token]]`, whose role is at least the `x-role` of the operation. Over a Unix socket none is needed.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "A client's certificate that a `[[control.client]]` with such a role names.",
                },
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": { "type": "string", "description": "What is wrong, and how it is mended." },
                        "findings": {
                            "type": "array",
                            "description": "Each mistake in the configuration.",
                            "items": { "$ref": "#/components/schemas/Finding" },
                        },
                    },
                },
                "Finding": {
                    "type": "object",
                    "required": ["severity", "title", "file", "line", "column"],
                    "properties": {
                        "severity": { "enum": ["error", "warning"] },
                        "title": { "type": "string" },
                        "file": { "type": "string" },
                        "line": { "type": "integer", "minimum": 1 },
                        "column": { "type": "integer", "minimum": 1 },
                        "label": { "type": "string" },
                        "help": { "type": "array", "items": { "type": "string" } },
                    },
                },
            },
        },
    })
}

fn describe_operation(operation: &Operation, is_open: bool) -> Value {
    let names = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = names
        .map(|name| {
            let name = name.trim_end_matches("...");
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    let changes_configuration = operation.role == CallerRole::Admin && operation.method != "GET";
    if changes_configuration {
        parameters.push(json!({
            "name": "persist", "in": "query", "schema": { "type": "boolean", "default": true },
            "description": "Whether the change is written to the file.",
        }));
    }
    if changes_configuration && operation.path.starts_with("/v1/config") {
        parameters.push(json!({
            "name": "If-Match", "in": "header", "required": true, "schema": { "type": "string" },
            "description": "The `ETag` of the configuration that is changed.",
        }));
    }
    let error = |text: &str| {
        json!({
            "description": text,
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
        })
    };
    let mut document = json!({
        "summary": operation.about,
        "operationId": format!("{} {}", operation.method.to_ascii_lowercase(), operation.path)
            .split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty() && *word != "v1")
            .collect::<Vec<_>>().join("_"),
        "x-role": operation.role.text(),
        "security": security_schemes(is_open && operation.role == CallerRole::Open),
        "parameters": parameters,
        "responses": {
            "2XX": { "description": "What was asked for.", "content": { "application/json": { "schema": {} } } },
            "401": error("There is no token, or a wrong one."),
            "403": error("The role of the token or the certificate does not allow it."),
            "429": error("Too many wrong tokens from this address."),
            "default": error("Why it was not done."),
        },
    });
    if let Some(fields) = operation.body {
        document["requestBody"] =
            json!({ "content": { "application/json": { "schema": body_schema(fields) } } });
    }
    document
}

/// Returns the accepted security schemes; `free` adds anonymous access.
fn security_schemes(free: bool) -> Value {
    let each = [json!({ "token": [] }), json!({ "certificate": [] })];
    free.then(|| json!({})).into_iter().chain(each).collect()
}

fn body_schema(fields: &[BodyField]) -> Value {
    if fields.is_empty() {
        return json!({});
    }
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let mut schema = (field.schema)();
            schema["description"] = json!(field.doc);
            (field.name.to_owned(), schema)
        })
        .collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}
