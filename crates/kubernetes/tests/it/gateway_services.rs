//! Services that are made for Gateways.

use kubernetes::gateway_services::WantedObject;
use kubernetes::objects::{Kind, ObjectKey, Objects};
use kubernetes::options::{GatewayServiceOptions, TranslateOptions};
use kubernetes::translate::{ClusterConfig, translate};
use serde_json::{Value, json};

use crate::{objects, put};

const GATEWAY: &str = "
kind: GatewayClass
metadata: {name: komainu}
spec: {controllerName: komainu.dev/gateway-controller}
---
kind: Gateway
metadata: {name: web, namespace: infra, uid: '1'}
spec:
  gatewayClassName: komainu
  infrastructure:
    labels: {team: shop, gateway.networking.k8s.io/gateway-name: other}
    annotations: {example.com/pool: edge, komainu.dev/content: own}
  listeners:
    - {name: http, port: 80, protocol: HTTP}
    - {name: more, port: 80, protocol: HTTP, hostname: a.example.com}
    - {name: dns, port: 53, protocol: UDP}
    - {name: broken, port: 443, protocol: HTTPS}
";

fn options(pods: Option<ObjectKey>) -> TranslateOptions {
    let pool = if pods.is_none() { vec!["198.51.100.10".parse().unwrap()] } else { Vec::new() };
    let services = GatewayServiceOptions { kind: "LoadBalancer".to_owned(), pods };
    TranslateOptions { pool, gateway_services: Some(services), ..TranslateOptions::default() }
}

fn wanted(objects: &Objects, options: &TranslateOptions) -> Vec<WantedObject> {
    translate(objects, options).unwrap().wanted.to_vec()
}

fn addresses(config: &ClusterConfig) -> Value {
    let status = config.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap();
    status.status["addresses"].clone()
}

#[test]
fn gateways_have_services_with_their_labels_and_annotations() {
    let (mut objects, options) = (objects(GATEWAY), options(None));
    let first = wanted(&objects, &options);
    let [service, slice] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!((service.kind, service.key.to_string()), (Kind::Service, "infra/web-komainu".to_owned()));
    assert_eq!(
        service.object["spec"],
        json!({ "type": "LoadBalancer", "ports": [
            { "name": "udp-53", "protocol": "UDP", "port": 53, "targetPort": 53 },
            { "name": "tcp-80", "protocol": "TCP", "port": 80, "targetPort": 80 },
        ] })
    );
    assert_eq!(slice.object["endpoints"][0]["addresses"], json!(["198.51.100.10"]));
    assert_eq!(slice.object["metadata"]["labels"]["kubernetes.io/service-name"], "web-komainu");
    for WantedObject { object, .. } in &first {
        let metadata = &object["metadata"];
        assert_eq!(metadata["labels"]["team"], "shop");
        // The labels by which objects are found are not a tenant's to choose.
        assert_eq!(metadata["labels"]["gateway.networking.k8s.io/gateway-name"], "web");
        assert_eq!(metadata["annotations"]["example.com/pool"], "edge");
        assert_ne!(metadata["annotations"]["komainu.dev/content"], "own");
        assert_eq!(metadata["ownerReferences"][0]["uid"], "1");
    }
    // Once written, they are left alone, until their content has to change.
    first.into_iter().for_each(|wanted| put(&mut objects, wanted.object));
    assert_eq!(wanted(&objects, &options), []);
    for document in import::parse_yaml("changed", &GATEWAY.replace("team: shop", "team: blog")).unwrap() {
        put(&mut objects, document);
    }
    assert_eq!(wanted(&objects, &options).len(), 2);
    objects.remove(Kind::EndpointSlice, &ObjectKey::new("infra", "web-komainu-ipv4"));
    assert_eq!(wanted(&objects, &options).len(), 2);
}

#[test]
fn services_of_others_are_left_alone() {
    let theirs = "
---
kind: Service
metadata: {name: web-komainu, namespace: infra, labels: {app: shop}}
spec: {ports: [{port: 80}], clusterIP: 10.0.0.1}
";
    let config = translate(&objects(&format!("{GATEWAY}{theirs}")), &options(None)).unwrap();
    assert!(config.wanted.is_empty());
    let [event] = config.events.as_slice() else { panic!("{:?}", config.events) };
    assert_eq!((event.reason, event.key.to_string()), ("ServiceExists", "infra/web".to_owned()));
    // Their address is not the Gateway's.
    let pods = options(Some(ObjectKey::new("komainu", "komainu")));
    let config = translate(&objects(&format!("{GATEWAY}{theirs}")), &pods).unwrap();
    assert_eq!(addresses(&config), json!([]));
}

#[test]
fn shared_gateways_have_the_endpoints_of_the_pods() {
    let pods = "
---
kind: EndpointSlice
metadata: {name: komainu-a, namespace: komainu, labels: {kubernetes.io/service-name: komainu}}
addressType: IPv4
endpoints:
  - {addresses: [10.1.0.2], nodeName: b, zone: z, conditions: {ready: false, serving: true, terminating: true}}
  - {addresses: [10.1.0.1], conditions: {ready: true}}
ports: [{name: http, port: 80}]
---
kind: EndpointSlice
metadata: {name: other-a, namespace: komainu, labels: {kubernetes.io/service-name: other}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.3]}]
";
    let options = options(Some(ObjectKey::new("komainu", "komainu")));
    let mut objects = objects(&format!("{GATEWAY}{pods}"));
    let first = wanted(&objects, &options);
    assert_eq!(
        first[1].object["endpoints"],
        json!([
            { "addresses": ["10.1.0.1"], "conditions": { "ready": true } },
            { "addresses": ["10.1.0.2"], "nodeName": "b", "zone": "z",
              "conditions": { "ready": false, "serving": true, "terminating": true } },
        ])
    );
    // The load balancer's address, once it has one.
    let mut service = first[0].object.clone();
    put(&mut objects, service.clone());
    assert_eq!(addresses(&translate(&objects, &options).unwrap()), json!([]));
    service["status"] =
        json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "hostname": "lb.example.net" }] } });
    put(&mut objects, service.clone());
    assert_eq!(
        addresses(&translate(&objects, &options).unwrap()),
        json!([{ "type": "IPAddress", "value": "192.0.2.1" }, { "type": "Hostname", "value": "lb.example.net" }])
    );
    service["spec"]["type"] = json!("ClusterIP");
    service["spec"]["clusterIP"] = json!("10.9.0.1");
    service["status"] = json!({});
    put(&mut objects, service);
    assert_eq!(
        addresses(&translate(&objects, &options).unwrap()),
        json!([{ "type": "IPAddress", "value": "10.9.0.1" }])
    );
}

#[test]
fn names_of_services_are_labels() {
    let named = |name: &str| {
        let text = GATEWAY.replace("name: web, namespace", &format!("name: {name}, namespace"));
        let first = wanted(&objects(&text), &options(None)).remove(0);
        let label = first.object["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"].clone();
        assert!(label.as_str().unwrap().len() <= 63, "{label}");
        first.key.name
    };
    for name in ["1a".to_owned(), "a.b".to_owned(), "x".repeat(63), "y.".repeat(100) + "z"] {
        let service = named(&name);
        assert!(service.len() <= 63 && !service.contains('.') && !service.starts_with('1'), "{service}");
    }
    // Names that differ at their end alone differ.
    assert_ne!(named(&("x".repeat(62) + "a")), named(&("x".repeat(62) + "b")));
    assert_ne!(named("a.b"), named("a-b"));
}
