//! The Helm chart and the plain manifests say the same. `packages/helm/default.yaml` is what the chart renders by default:
//! `scripts/chart` writes and checks it.

use std::collections::BTreeMap;

use import::parse_yaml;
use serde_json::Value;

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../packages/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Labels that tools of Helm want, and others do not need.
const OF_HELM: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Objects by kind and name, without the labels of Helm.
fn by_name(text: &str) -> BTreeMap<String, Value> {
    let objects = parse_yaml("manifests", &text.replace("VERSION", env!("CARGO_PKG_VERSION"))).unwrap();
    let named = objects.into_iter().map(|mut object| {
        let name =
            format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let metadata = object["metadata"].as_object_mut().unwrap();
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|label, _| !OF_HELM.contains(&label.as_str()));
            if labels.is_empty() {
                metadata.remove("labels");
            }
        }
        if let Some(rules) = object.get_mut("rules") {
            *rules = single_rights(rules);
        }
        (name, object)
    });
    named.collect()
}

/// Rights one by one, because rules that are written together in one file stand apart in another.
fn single_rights(rules: &Value) -> Value {
    let texts = |rule: &Value, key: &str| -> Vec<String> {
        let items = rule[key].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = Vec::new();
    for rule in rules.as_array().unwrap() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for verb in texts(rule, "verbs") {
                    rights.push(format!("{verb} {group} {resource} {:?}", texts(rule, "resourceNames")));
                }
            }
        }
    }
    rights.sort();
    Value::from(rights)
}

#[test]
fn chart_renders_the_plain_manifests() {
    let chart = by_name(&read("helm/default.yaml"));
    let list = parse_yaml("kustomization.yaml", &read("kubernetes/kustomization.yaml")).unwrap().remove(0);
    let mut manifests = BTreeMap::new();
    for name in list["resources"].as_array().unwrap() {
        manifests.extend(by_name(&read(&format!("kubernetes/{}", name.as_str().unwrap()))));
    }
    // Helm makes the namespace itself: `--create-namespace`.
    assert!(manifests.remove("Namespace komainu").is_some());
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&manifests));
    for (name, object) in &manifests {
        assert_eq!(&chart[name], object, "{name}");
    }
}

#[test]
fn pods_have_no_rights_that_they_do_not_need() {
    let chart = by_name(&read("helm/default.yaml"));
    let pod = &chart["Deployment komainu"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["capabilities"]["drop"][0], "ALL");
    assert!(container["capabilities"].get("add").is_none());
    // Nothing is created, deleted or read one by one but the Lease.
    for (name, object) in chart.iter().filter(|(name, _)| name.contains("Role ") && !name.contains("lease")) {
        for right in object["rules"].as_array().unwrap() {
            let right = right.as_str().unwrap();
            let is_known = ["list ", "watch ", "patch "].iter().any(|verb| right.starts_with(verb));
            assert!(is_known || right.ends_with(" events []"), "{name}: {right}");
        }
    }
}
