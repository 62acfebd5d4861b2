//! The definition of KomainuPolicies for the API server, made from the directives, and its YAML.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::policy_words::{DIRECTIVES, DirectivePlace, WORDS, rules_schema, table_schema};

/// First line of the file.
const HEAD: &str = "# Written by `cargo xtask docs` from the directives of the configuration.\n";
/// Targets of one policy, and entries of its status.
const TARGETS_MAX: usize = 16;

/// Returns the definition as a YAML document.
#[must_use]
pub fn definition_yaml() -> String {
    let mut text = HEAD.to_owned();
    write_yaml(&mut text, &definition(), 0);
    text
}

/// Returns the definition.
#[must_use]
pub fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "komainupolicies.komainu.dev",
            "labels": { "gateway.networking.k8s.io/policy": "Inherited" },
            // With the definition, all policies would be deleted, and nothing would guard their targets.
            "annotations": { "helm.sh/resource-policy": "keep" },
        },
        "spec": {
            "group": "komainu.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "KomainuPolicy",
                "listKind": "KomainuPolicyList",
                "plural": "komainupolicies",
                "singular": "komainupolicy",
                "categories": ["gateway-api"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    { "name": "Target", "type": "string", "jsonPath": ".spec.targetRefs[0].name" },
                    { "name": "Accepted", "type": "string", "jsonPath": ".status.ancestors[0].conditions[?(@.type==\"Accepted\")].status" },
                    { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                ],
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "Directives of Komainu for Gateways and HTTPRoutes of its namespace.",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": spec_schema(),
                        "status": status_schema(),
                    },
                } },
            }],
        },
    })
}

fn spec_schema() -> Value {
    let mut schema = table_schema(&WORDS);
    let off: Vec<&str> =
        DIRECTIVES.iter().filter(|directive| directive.may_be_off).map(|directive| directive.name).collect();
    let target = json!({
        "type": "object",
        "required": ["group", "kind", "name"],
        "properties": {
            "group": { "type": "string", "enum": ["gateway.networking.k8s.io"] },
            "kind": { "type": "string", "enum": ["Gateway", "HTTPRoute"] },
            "name": { "type": "string", "minLength": 1, "maxLength": 253 },
            "sectionName": {
                "type": "string", "minLength": 1, "maxLength": 253,
                "description": "A listener of the Gateway, or a rule of the HTTPRoute, by its name.",
            },
        },
    });
    schema["properties"]["targetRefs"] = json!({
        "type": "array", "minItems": 1, "maxItems": TARGETS_MAX, "items": target,
        "description": "Objects of the policy's namespace.",
    });
    schema["properties"]["off"] = json!({
        "type": "array", "maxItems": off.len(), "items": { "type": "string", "enum": off },
        "description": "Directives of wider policies that are switched off here.",
    });
    schema["required"] = json!(["targetRefs"]);
    // The targets, and one directive.
    schema["minProperties"] = json!(2);
    let is_of_sites = |place| place == DirectivePlace::Site;
    let of_sites: Vec<&str> = DIRECTIVES
        .iter()
        .filter(|directive| is_of_sites(directive.place))
        .map(|directive| directive.name)
        .collect();
    let given: Vec<String> = of_sites.iter().map(|name| format!("has(self.{name})")).collect();
    let of_gateways = (
        format!("self.targetRefs.all(target, target.kind == 'Gateway') || !({})", given.join(" || ")),
        format!("{} are for hosts as a whole: attach them to a Gateway", of_sites.join(" and ")),
    );
    let both: Vec<String> =
        off.iter().map(|name| format!("(has(self.{name}) && '{name}' in self.off)")).collect();
    let once = (
        format!("!has(self.off) || !({})", both.join(" || ")),
        "a directive in off cannot be set in the same policy".to_owned(),
    );
    schema["x-kubernetes-validations"] =
        rules_schema([&of_gateways, &once].map(|(rule, message)| (rule.as_str(), message.as_str())));
    schema
}

fn status_schema() -> Value {
    let text = |bytes_max: usize| json!({ "type": "string", "maxLength": bytes_max });
    let condition = json!({
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": text(316),
            "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "reason": text(1024),
            "message": text(32_768),
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
        },
    });
    let names = ["group", "kind", "namespace", "name", "sectionName"];
    let reference = json!({
        "type": "object",
        "required": ["name"],
        "properties": names.map(|name| (name.to_owned(), text(253))).into_iter().collect::<Map<_, _>>(),
    });
    let ancestor = json!({
        "type": "object",
        "required": ["ancestorRef", "controllerName"],
        "properties": {
            "ancestorRef": reference,
            "controllerName": text(253),
            "conditions": {
                "type": "array", "maxItems": 8, "items": condition,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            },
        },
    });
    json!({
        "type": "object",
        "properties": { "ancestors": { "type": "array", "maxItems": TARGETS_MAX, "items": ancestor } },
    })
}

/// Writes a value as YAML in block style.
fn write_yaml(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                write!(out, "{:indent$}{}:", "", scalar(&json!(key))).expect("a String takes everything");
                write_below(out, value, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut text = String::new();
                match item {
                    Value::Object(entries) if !entries.is_empty() => write_yaml(&mut text, item, indent + 2),
                    _ => text = format!("{:1$}{2}\n", "", indent + 2, scalar(item)),
                }
                text.replace_range(indent..indent + 1, "-");
                out.push_str(&text);
            }
        }
        _ => out.push_str(&format!("{:indent$}{}\n", "", scalar(value))),
    }
}

fn write_below(out: &mut String, value: &Value, indent: usize) {
    let is_empty = match value {
        Value::Object(entries) => entries.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    };
    if is_empty {
        out.push_str(&format!(" {}\n", scalar(value)));
    } else {
        out.push('\n');
        write_yaml(out, value, indent + 2);
    }
}

/// Writes a value on one line. Texts with another meaning without quotes have them.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" _-./()".contains(&byte))
        && !text.ends_with(' ')
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if is_plain { text.clone() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_reads_as_what_was_written() {
        let value = json!({
            "a": { "b": [1, "x: y", { "c": true, "d": [] }, "off"], "e": {} },
            "f g": "\"#\n",
            "404": null,
        });
        let mut text = String::new();
        write_yaml(&mut text, &value, 0);
        let read = import::parse_yaml("test", &text).unwrap();
        assert_eq!(read, [value], "{text}");
        assert_eq!(import::parse_yaml("test", &definition_yaml()).unwrap(), [definition()]);
    }

    /// The API server refuses definitions whose values have no type, or one inside of a check.
    #[test]
    fn schema_is_structural() {
        fn visit(schema: &Value, place: &str) {
            let is_typed = schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == json!(true);
            assert!(is_typed, "{place} has no type: {schema}");
            for key in ["$ref", "default", "const"] {
                assert!(schema.get(key).is_none(), "{place} has {key}");
            }
            assert!(schema.get("properties").is_none() || schema.get("additionalProperties").is_none());
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                visit(inner, &format!("{place}.{name}"));
            }
            for key in ["items", "additionalProperties"] {
                if let Some(inner) = schema.get(key) {
                    visit(inner, &format!("{place}.{key}"));
                }
            }
            if schema["type"] == "array" {
                assert!(schema["maxItems"].is_u64(), "{place} is unbounded");
            }
        }
        let definition = definition();
        visit(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "");
    }
}
