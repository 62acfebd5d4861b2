//! Objects of hostile tenants: they harm themselves alone.

use kubernetes::options::TranslateOptions;
use kubernetes::translate::translate;
use serde_json::{Value, json};

use crate::{objects, put, statuses, translated};

const BEGINNING: &str = include_str!("cases/simple.yaml");

fn route(name: &str, spec: Value) -> Value {
    let mut route =
        json!({ "kind": "HTTPRoute", "metadata": { "name": name, "namespace": "hostile" }, "spec": spec });
    route["spec"]["parentRefs"] = json!([{ "name": "web", "namespace": "infra" }]);
    route
}

fn redirecting(name: &str, one: Value) -> Value {
    let filter = json!({ "type": "RequestRedirect", "requestRedirect": { "hostname": "to.test" } });
    route(
        name,
        json!({ "hostnames": [format!("{name}.test")], "rules": [{ "matches": [one], "filters": [filter] }] }),
    )
}

#[test]
fn ten_thousand_broken_routes_stop_no_other() {
    let mut all = objects(BEGINNING);
    for index in 0..10_000 {
        let broken = match index % 5 {
            0 => json!({ "path": { "type": "RegularExpression", "value": "([" } }),
            1 => json!({ "headers": [{ "name": "bad name", "value": "x" }] }),
            2 => json!({ "method": "lower case" }),
            3 => json!({ "path": { "value": "no slash" } }),
            _ => json!({ "headers": [{ "name": "x", "type": "RegularExpression", "value": "(?<" }] }),
        };
        put(&mut all, redirecting(&format!("r{index}"), broken));
    }
    let translation = translate(&all, &TranslateOptions::default()).unwrap();
    let text = statuses(&translation);
    assert!(text.contains("HTTPRoute shop/shop parent web: Accepted=True Accepted\n"), "{}", &text[..2000]);
    assert_eq!(text.matches("Accepted=False UnsupportedValue: ").count(), 10_000);
    let tree = translation.tree.to_string();
    assert!(tree.contains("shop.example.com") && tree.contains("shop.shop.80"));
}

#[test]
fn ten_thousand_broken_objects_of_other_kinds_stop_no_other() {
    let mut all = objects(BEGINNING);
    let hostile = |kind: &str, index: usize, spec: Value| json!({ "kind": kind, "metadata": { "name": format!("o{index}"), "namespace": "hostile" }, "spec": spec });
    let parents = json!([{ "name": "web", "namespace": "infra" }]);
    for index in 0..10_000 {
        let object = match index % 7 {
            0 => {
                let one =
                    json!({ "method": { "type": "RegularExpression", "service": "([", "method": "x" } });
                hostile(
                    "GRPCRoute",
                    index,
                    json!({ "parentRefs": parents, "hostnames": [format!("r{index}.test")], "rules": [{ "matches": [one] }] }),
                )
            }
            1 => hostile(
                "TCPRoute",
                index,
                json!({ "parentRefs": parents, "rules": [{ "backendRefs": [{ "name": "shop", "namespace": "shop", "port": 80 }] }] }),
            ),
            2 => hostile("UDPRoute", index, json!({ "parentRefs": parents, "rules": [] })),
            3 => hostile(
                "TLSRoute",
                index,
                json!({ "parentRefs": parents, "hostnames": ["a b", "*"], "rules": [{}, {}] }),
            ),
            4 => {
                let listener =
                    json!({ "name": "x", "port": 80, "protocol": "HTTP", "hostname": "shop.example.com" });
                hostile(
                    "ListenerSet",
                    index,
                    json!({ "parentRef": { "name": "web", "namespace": "infra" }, "listeners": [listener] }),
                )
            }
            5 => {
                // A policy of this namespace for a Service of another one.
                let target = json!({ "group": "", "kind": "Service", "name": "shop" });
                hostile(
                    "BackendTLSPolicy",
                    index,
                    json!({ "targetRefs": [target], "validation": { "hostname": "$host", "wellKnownCACertificates": "System" } }),
                )
            }
            _ => {
                json!({ "kind": "ConfigMap", "metadata": { "name": format!("o{index}"), "namespace": "hostile" }, "data": { "ca.crt": "no certificate" } })
            }
        };
        put(&mut all, object);
    }
    let translation = translate(&all, &TranslateOptions::default()).unwrap();
    let text = statuses(&translation);
    assert!(text.contains("HTTPRoute shop/shop parent web: Accepted=True Accepted\n"), "{}", &text[..2000]);
    assert!(text.contains("HTTPRoute shop/shop parent web: ResolvedRefs=True ResolvedRefs\n"));
    let alone = translated(BEGINNING);
    let shop = |tree: &Value| {
        let sites = tree["site"].as_array().unwrap();
        sites.iter().find(|site| site["hosts"] == json!(["shop.example.com"])).cloned().unwrap()
    };
    assert_eq!(shop(&translation.tree), shop(&alone.tree));
    assert_eq!(translation.tree["upstreams"], alone.tree["upstreams"]);
    assert!(translation.tree.get("stream").is_none(), "no listener takes streams");
}

#[test]
fn streams_of_tenants_take_no_names_of_others_and_lead_to_no_gateway() {
    let own = "10.9.9.9";
    let gateway = json!({
        "kind": "Gateway", "metadata": { "name": "tls", "namespace": "infra" },
        "spec": { "gatewayClassName": "komainu", "listeners": [
            { "name": "tls", "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" }, "allowedRoutes": { "namespaces": { "from": "All" } } },
            { "name": "tcp", "port": 81, "protocol": "TCP", "allowedRoutes": { "namespaces": { "from": "All" } } },
        ] },
    });
    let mut all = objects(BEGINNING);
    put(&mut all, gateway);
    let route = |kind: &str, namespace: &str, created: &str, service: &str| {
        json!({
            "kind": kind, "metadata": { "name": "r", "namespace": namespace, "creationTimestamp": created },
            "spec": {
                "parentRefs": [{ "name": "tls", "namespace": "infra" }], "hostnames": ["git.example.com"],
                "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }],
            },
        })
    };
    put(&mut all, route("TLSRoute", "shop", "2026-01-01T00:00:00Z", "shop"));
    put(&mut all, route("TLSRoute", "hostile", "2026-01-02T00:00:00Z", "back"));
    // Its connections would come back to it.
    put(&mut all, route("TCPRoute", "hostile", "2026-01-02T00:00:00Z", "back"));
    put(
        &mut all,
        json!({ "kind": "Service", "metadata": { "name": "back", "namespace": "hostile" }, "spec": { "ports": [{ "port": 80 }] } }),
    );
    put(
        &mut all,
        json!({
            "kind": "EndpointSlice", "metadata": { "name": "back", "namespace": "hostile", "labels": { "kubernetes.io/service-name": "back" } },
            "addressType": "IPv4", "endpoints": [{ "addresses": [own] }], "ports": [{ "port": 81 }],
        }),
    );
    let options = TranslateOptions {
        pool: vec!["10.9.9.8".parse().unwrap(), own.parse().unwrap()],
        ..TranslateOptions::default()
    };
    let translation = translate(&all, &options).unwrap();
    let streams = translation.tree["stream"].as_array().unwrap();
    let of_git: Vec<&Value> =
        streams.iter().filter(|stream| stream["names"] == json!(["git.example.com"])).collect();
    assert_eq!(of_git.len(), 1, "{streams:?}");
    assert_eq!(of_git[0]["name"], "shop/r:443");
    let of_tcp = streams.iter().find(|stream| stream["name"] == "hostile/r:81").unwrap();
    assert!(of_tcp.get("deny").is_some(), "{of_tcp}");
}

#[test]
fn values_have_no_meaning_of_their_own() {
    let mut all = objects(BEGINNING);
    let odd = ["$host", "${HOME}", "*", "~ .*", "~* x", "!x", "a\"b", "$$", "$1"];
    for (index, text) in odd.iter().enumerate() {
        let one = json!({ "headers": [{ "name": "x", "value": text }], "queryParams": [{ "name": "q", "value": text }] });
        let filters = json!([
            { "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [{ "name": "x", "value": text }] } },
            { "type": "ResponseHeaderModifier", "responseHeaderModifier": { "set": [{ "name": "x", "value": text }] } },
            { "type": "URLRewrite", "urlRewrite": { "path": { "type": "ReplaceFullPath", "replaceFullPath": format!("/{text}") } } },
        ]);
        let refs = json!([{ "name": "shop", "namespace": "shop", "port": 80 }]);
        let name = format!("r{index}");
        let spec = json!({ "hostnames": [format!("{name}.test")], "rules": [{ "matches": [one], "filters": filters, "backendRefs": refs }] });
        let mut object = route(&name, spec);
        object["metadata"]["namespace"] = json!("shop");
        put(&mut all, object);
    }
    let translation = translate(&all, &TranslateOptions::default()).unwrap();
    let mut seen = 0;
    for site in &translation.config.sites {
        let Some(index) = site.hosts.first().and_then(|host| {
            host.to_string().strip_prefix('r')?.strip_suffix(".test")?.parse::<usize>().ok()
        }) else {
            continue;
        };
        seen += 1;
        let text = odd[index];
        let route = &site.routes[0];
        assert!(route.header[0].1.matches_bytes(text.as_bytes()), "{text}");
        for other in ["", "x", "localhost", "anything else"] {
            assert!(!route.header[0].1.matches_bytes(other.as_bytes()), "{text} matches {other}");
            assert!(!route.query[0].1.matches_bytes(other.as_bytes()), "{text} matches {other}");
        }
        // No variable: the templates are literal texts.
        let set = &route.proxy().unwrap().request_headers.set[0].1;
        assert_eq!(set.as_literal(), Some(text));
        assert_eq!(route.response_headers.set[0].1.as_literal(), Some(text));
    }
    assert_eq!(seen, odd.len());
}

#[test]
fn malformed_objects_are_ignored_alone() {
    let mut all = objects(BEGINNING);
    let kind = kubernetes::objects::Kind::HttpRoute;
    let refused = |all: &mut kubernetes::objects::Objects, object: Value| all.put(kind, object).is_err();
    assert!(refused(&mut all, json!({ "metadata": { "name": "x" }, "spec": { "rules": 5 } })));
    assert!(refused(&mut all, json!({ "metadata": { "name": "x".repeat(1000) } })));
    assert!(refused(&mut all, json!({ "metadata": { "name": "../../etc" } })));
    assert!(refused(&mut all, json!([])));
    assert!(refused(&mut all, Value::Null));
    let text = statuses(&translate(&all, &TranslateOptions::default()).unwrap());
    assert_eq!(text, statuses(&translated(BEGINNING)));
}

#[test]
fn null_is_an_empty_list() {
    let mut all = objects(BEGINNING);
    let slice = json!({ "metadata": { "name": "x", "namespace": "shop" }, "addressType": "IPv4", "endpoints": null, "ports": null });
    assert_eq!(all.put(kubernetes::objects::Kind::EndpointSlice, slice), Ok(true));
}

#[test]
fn secret_of_another_namespace_needs_a_grant() {
    let made = rcgen_pair();
    let secret = json!({
        "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "cert", "namespace": "vault" },
        "data": { "tls.crt": made.0, "tls.key": made.1 },
    });
    let gateway = json!({
        "kind": "Gateway", "metadata": { "name": "tls", "namespace": "infra" },
        "spec": { "gatewayClassName": "komainu", "listeners": [{
            "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": { "certificateRefs": [{ "name": "cert", "namespace": "vault" }] },
        }] },
    });
    let mut all = objects(BEGINNING);
    put(&mut all, secret);
    put(&mut all, gateway);
    let refused = translate(&all, &TranslateOptions::default()).unwrap();
    assert!(
        statuses(&refused).contains("Gateway infra/tls listener https: ResolvedRefs=False RefNotPermitted")
    );
    assert!(refused.files.is_empty() && !refused.tree.to_string().contains(":443"));
    let grant = |kind: &str| {
        json!({
            "kind": "ReferenceGrant", "metadata": { "name": "g", "namespace": "vault" },
            "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": kind, "namespace": "infra" }], "to": [{ "group": "", "kind": "Secret" }] },
        })
    };
    put(&mut all, grant("HTTPRoute"));
    assert!(translate(&all, &TranslateOptions::default()).unwrap().files.is_empty());
    put(&mut all, grant("Gateway"));
    let allowed = translate(&all, &TranslateOptions::default()).unwrap();
    assert!(statuses(&allowed).contains("Gateway infra/tls listener https: Programmed=True"));
    assert_eq!(allowed.files.len(), 2);
    assert!(allowed.config.sites.iter().any(|site| site.tls.is_some()));
}

#[test]
fn tls_is_decrypted_for_tlsroutes_beside_sites_and_passed_connections() {
    let made = rcgen_pair();
    let listener = |name: &str, protocol: &str, mode: &str| {
        json!({
            "name": name, "port": 443, "protocol": protocol, "hostname": format!("{name}.example.com"),
            "allowedRoutes": { "namespaces": { "from": "All" } },
            "tls": { "mode": mode, "certificateRefs": [{ "name": "cert" }] },
        })
    };
    let mut all = objects(BEGINNING);
    put(
        &mut all,
        json!({
            "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "cert", "namespace": "infra" },
            "data": { "tls.crt": made.0, "tls.key": made.1 },
        }),
    );
    put(
        &mut all,
        json!({
            "kind": "Gateway", "metadata": { "name": "tls", "namespace": "infra" },
            "spec": { "gatewayClassName": "komainu", "listeners": [
                listener("site", "HTTPS", "Terminate"), listener("opened", "TLS", "Terminate"), listener("passed", "TLS", "Passthrough"),
            ] },
        }),
    );
    for name in ["opened", "passed"] {
        put(
            &mut all,
            json!({
                "kind": "TLSRoute", "metadata": { "name": name, "namespace": "shop" },
                "spec": {
                    "parentRefs": [{ "name": "tls", "namespace": "infra" }], "hostnames": [format!("{name}.example.com")],
                    "rules": [{ "backendRefs": [{ "name": "shop", "port": 80 }] }],
                },
            }),
        );
    }
    let translation = translate(&all, &TranslateOptions::default()).unwrap();
    let text = statuses(&translation);
    for name in ["site", "opened", "passed"] {
        assert!(text.contains(&format!("Gateway infra/tls listener {name}: Programmed=True")), "{text}");
    }
    let streams = translation.tree["stream"].as_array().unwrap();
    assert_eq!(streams.len(), 2, "the sites get what no stream has: {streams:?}");
    let tls = |name: &str| {
        let hosts = json!([format!("{name}.example.com")]);
        streams.iter().find(|stream| stream["names"] == hosts).unwrap().get("tls").cloned()
    };
    let files = "/komainu-kubernetes/secret/infra/cert/tls";
    let expected = json!({ "certificate": [format!("{files}.crt")], "key": [format!("{files}.key")] });
    assert_eq!((tls("opened"), tls("passed")), (Some(expected), None));
    let site = translation.config.sites.iter().find_map(|site| site.tls.as_ref()).unwrap();
    assert_eq!(site.scope.as_deref(), Some("Gateway/infra/tls/site"));
}

/// A certificate and its key, in base64 as Secrets have them.
fn rcgen_pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["a.example.com".to_owned()]).unwrap();
    let encode = |text: String| data_encoding::BASE64.encode(text.as_bytes());
    (encode(made.cert.pem()), encode(made.signing_key.serialize_pem()))
}
