//! Addresses of a pool that Gateways get.

use std::net::IpAddr;

use kubernetes::objects::{Kind, Objects};
use kubernetes::options::TranslateOptions;
use kubernetes::translate::{ClusterConfig, translate};
use serde_json::{Value, json};

use crate::{objects, put};

const CLASS: &str = "
kind: GatewayClass
metadata: {name: komainu}
spec: {controllerName: komainu.dev/gateway-controller}
";

/// Two Gateways of the same second: names decide.
fn gateway(name: &str) -> Value {
    json!({
        "kind": "Gateway",
        "metadata": { "name": name, "namespace": "infra", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "gatewayClassName": "komainu", "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }] },
    })
}

fn options() -> TranslateOptions {
    let pool: Vec<IpAddr> = (10..13).map(|last| IpAddr::from([198, 51, 100, last])).collect();
    TranslateOptions { pool, ..TranslateOptions::default() }
}

/// Translates as the controller does: the next translation knows the addresses of this one.
fn translated(objects: &Objects, options: &mut TranslateOptions) -> ClusterConfig {
    let config = translate(objects, options).unwrap();
    options.assigned.clone_from(&config.assigned);
    config
}

fn address(config: &ClusterConfig, name: &str) -> String {
    let is_named = |key: &kubernetes::objects::ObjectKey| key.name == name;
    let of =
        config.statuses.iter().find(|status| status.kind == Kind::Gateway && is_named(&status.key)).unwrap();
    of.status["addresses"][0]["value"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn gateways_keep_their_addresses_before_their_status_is_back() {
    let (mut objects, mut options) = (objects(CLASS), options());
    put(&mut objects, gateway("b"));
    assert_eq!(address(&translated(&objects, &mut options), "b"), "198.51.100.10");
    // The status of `b` is on its way when an older one comes.
    put(&mut objects, gateway("a"));
    let config = translated(&objects, &mut options);
    assert_eq!(
        (address(&config, "a"), address(&config, "b")),
        ("198.51.100.11".into(), "198.51.100.10".into())
    );
    // The status counts more than what this replica would give: another one has written it.
    let mut known = gateway("b");
    known["status"] = json!({ "addresses": [{ "type": "IPAddress", "value": "198.51.100.12" }] });
    put(&mut objects, known);
    let config = translated(&objects, &mut options);
    assert_eq!(
        (address(&config, "a"), address(&config, "b")),
        ("198.51.100.11".into(), "198.51.100.12".into())
    );
}
