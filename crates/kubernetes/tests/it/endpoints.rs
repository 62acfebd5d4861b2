//! Which endpoints of a Service get requests.

use kubernetes::options::TranslateOptions;
use kubernetes::translate::translate;
use kubernetes::zones::ReplicaPlace;
use serde_json::{Value, json};

use crate::{objects, put, statuses};

const BEGINNING: &str = include_str!("cases/simple.yaml");

/// An endpoint of the Service `shop` with hints for a zone, or without.
fn endpoint(address: &str, zone: Option<&str>, conditions: Value) -> Value {
    let mut endpoint = json!({ "addresses": [address], "conditions": conditions });
    if let Some(zone) = zone {
        endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
    }
    endpoint
}

/// The servers of the Service `shop` for a replica in a zone.
fn servers(endpoints: &[Value], zone: &str) -> Value {
    let mut all = objects(BEGINNING);
    let slice = |name: &str, endpoints: &[Value]| {
        json!({
            "kind": "EndpointSlice",
            "metadata": { "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": "shop" } },
            "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }], "endpoints": endpoints,
        })
    };
    put(&mut all, slice("shop-a", endpoints));
    put(&mut all, slice("shop-b", &[]));
    let place = ReplicaPlace { zone: zone.to_owned(), node: String::new() };
    let translation = translate(&all, &TranslateOptions { place, ..TranslateOptions::default() }).unwrap();
    translation.tree["upstreams"]["shop.shop.80"]["to"].clone()
}

#[test]
fn endpoints_of_the_zone_are_used() {
    let ready = || json!({ "ready": true });
    let all = [
        endpoint("10.0.0.1", Some("a"), ready()),
        endpoint("10.0.0.2", Some("b"), ready()),
        endpoint("10.0.0.3", Some("b"), json!({ "ready": false, "serving": false })),
    ];
    assert_eq!(servers(&all, "a"), json!(["http://10.0.0.1:8080"]));
    assert_eq!(servers(&all, "b"), json!(["http://10.0.0.2:8080"]));
    assert_eq!(servers(&all, "c"), json!(["http://10.0.0.1:8080", "http://10.0.0.2:8080"]));
    assert_eq!(servers(&all, ""), json!(["http://10.0.0.1:8080", "http://10.0.0.2:8080"]));
}

#[test]
fn terminating_endpoints_serve_if_no_other_is_ready() {
    let ending = || json!({ "ready": false, "serving": true, "terminating": true });
    let all = [endpoint("10.0.0.1", Some("a"), ending()), endpoint("10.0.0.2", Some("b"), ending())];
    assert_eq!(servers(&all, "a"), json!(["http://10.0.0.1:8080", "http://10.0.0.2:8080"]));
    let one_ready = [all[0].clone(), endpoint("10.0.0.2", Some("b"), json!({ "ready": true }))];
    assert_eq!(servers(&one_ready, "a"), json!(["http://10.0.0.2:8080"]));
    let gone = json!({ "ready": false, "serving": false, "terminating": true });
    assert_eq!(servers(&[endpoint("10.0.0.1", None, gone)], "a"), Value::Null);
}

#[test]
fn external_names_are_refused() {
    let mut all = objects(BEGINNING);
    let service = json!({
        "kind": "Service", "metadata": { "name": "shop", "namespace": "shop" },
        "spec": { "type": "ExternalName", "externalName": "metadata.internal", "ports": [{ "port": 80 }, { "port": 81 }] },
    });
    put(&mut all, service);
    let translation = translate(&all, &TranslateOptions::default()).unwrap();
    let text = statuses(&translation);
    assert!(text.contains("HTTPRoute shop/shop parent web: ResolvedRefs=False BackendNotFound: the Service shop/shop is of the type ExternalName"), "{text}");
    assert!(!translation.tree.to_string().contains("metadata.internal"));
}
