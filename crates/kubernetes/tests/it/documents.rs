//! The examples of the documents are valid.

use import::parse_yaml;
use kubernetes::objects::{Kind, Objects};
use kubernetes::options::TranslateOptions;
use kubernetes::translate::translate;
use serde_json::{Value, json};

use crate::statuses;

/// The YAML of a page.
fn examples(page: &str) -> Vec<Value> {
    let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("\n```yaml\n").skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned());
    blocks.flat_map(|block| parse_yaml(page, &block).unwrap()).collect()
}

#[test]
fn policies_of_the_page_are_accepted_but_for_what_they_name() {
    let policies = examples("kubernetes-policies.md");
    assert!(policies.len() >= 7);
    let mut all = Objects::default();
    let class = json!({ "metadata": { "name": "komainu" }, "spec": { "controllerName": "komainu.dev/gateway-controller" } });
    all.put(Kind::GatewayClass, class).unwrap();
    let gateway = json!({
        "metadata": { "name": "web", "namespace": "infra" },
        "spec": { "gatewayClassName": "komainu", "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } } }] },
    });
    all.put(Kind::Gateway, gateway).unwrap();
    for name in ["shop", "api", "downloads"] {
        let route = json!({
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "parentRefs": [{ "name": "web", "namespace": "infra" }], "rules": [{ "name": "admin" }] },
        });
        all.put(Kind::HttpRoute, route).unwrap();
    }
    for policy in policies {
        all.put(Kind::KomainuPolicy, policy).unwrap();
    }
    let text = statuses(&translate(&all, &TranslateOptions::default()).unwrap());
    // Secrets and Services are not there; nothing else is wrong.
    for line in text.lines().filter(|line| line.contains("KomainuPolicy") && line.contains("Invalid")) {
        let is_reference = ["there is no Secret", "there is no Service", "no ReferenceGrant"];
        assert!(is_reference.iter().any(|wanted| line.contains(wanted)), "{line}");
    }
    assert!(text.contains("KomainuPolicy infra/web target web: Accepted=True"), "{text}");
    assert!(text.contains("KomainuPolicy shop/shop target shop: Accepted=True"), "{text}");
}
