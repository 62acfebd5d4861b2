//! ClusterConfig of objects: configurations and statuses as golden files, and properties of hostile objects.
#![allow(clippy::unwrap_used)] // test helpers are test code too

mod addresses;
mod cases;
mod changes;
mod chart;
mod documents;
mod endpoints;
mod gateway_services;
mod ingress;
mod hostile;
mod policies;
mod random_objects;
mod tenants;

use std::fmt::Write as _;

use import::parse_yaml;
use kubernetes::objects::{Kind, Objects};
use kubernetes::options::TranslateOptions;
use kubernetes::translate::{ClusterConfig, translate};
use serde_json::Value;

/// Objects of the YAML documents.
pub(crate) fn objects(yaml: &str) -> Objects {
    let mut objects = Objects::default();
    for document in parse_yaml("objects.yaml", yaml).unwrap() {
        put(&mut objects, document);
    }
    objects
}

pub(crate) fn put(objects: &mut Objects, document: Value) {
    let name = document["kind"].as_str().unwrap();
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
    objects.put(kind, document).unwrap();
}

pub(crate) fn translated(yaml: &str) -> ClusterConfig {
    translate(&objects(yaml), &TranslateOptions::default()).unwrap()
}

/// Conditions as one line each: object, part, type, status and reason, and the message of those that report a fault.
pub(crate) fn statuses(translation: &ClusterConfig) -> String {
    let mut out = String::new();
    for status in &translation.statuses {
        let name = format!("{} {}", status.kind.name(), status.key);
        conditions(&mut out, &name, &status.status);
        for listener in status.status["listeners"].as_array().into_iter().flatten() {
            let kinds: Vec<&str> = listener["supportedKinds"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|kind| kind["kind"].as_str())
                .collect();
            let part = format!("{name} listener {}", listener["name"].as_str().unwrap());
            writeln!(out, "{part}: attached {}, kinds {kinds:?}", listener["attachedRoutes"]).unwrap();
            conditions(&mut out, &part, listener);
        }
        for ancestor in status.status["ancestors"].as_array().into_iter().flatten() {
            let reference = &ancestor["ancestorRef"];
            let section = reference["sectionName"].as_str().map_or(String::new(), |name| format!("#{name}"));
            let word = if status.kind == Kind::KomainuPolicy { "target" } else { "ancestor" };
            let part = format!("{name} {word} {}{section}", reference["name"].as_str().unwrap());
            conditions(&mut out, &part, ancestor);
        }
        for parent in status.status["parents"].as_array().into_iter().flatten() {
            let reference = &parent["parentRef"];
            let section = reference["sectionName"].as_str().map_or(String::new(), |name| format!("#{name}"));
            conditions(
                &mut out,
                &format!("{name} parent {}{section}", reference["name"].as_str().unwrap()),
                parent,
            );
        }
    }
    out
}

fn conditions(out: &mut String, name: &str, status: &Value) {
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let text = |key: &str| condition[key].as_str().unwrap();
        let is_good = matches!(text("reason"), "Accepted" | "Programmed" | "ResolvedRefs" | "NoConflicts");
        let message = if is_good { String::new() } else { format!(": {}", text("message")) };
        writeln!(out, "{name}: {}={} {}{message}", text("type"), text("status"), text("reason")).unwrap();
    }
}
