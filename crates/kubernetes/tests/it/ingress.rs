//! Ingresses: every annotation has the verdict of its table, paths and hosts belong to the oldest, and tenants do not harm others.

use std::fmt::Write as _;

use kubernetes::ingress::ObjectEvent;
use kubernetes::objects::Objects;
use kubernetes::options::{IngressOptions, TranslateOptions};
use kubernetes::translate::{ClusterConfig, translate};
use other_servers::{INGRESS_ANNOTATIONS, INGRESS_PREFIX, IngressVerdict};
use serde_json::{Map, Value, json};

use crate::{objects, put};

/// A class, a namespace with two Services, and what annotations name.
const BEGINNING: &str = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: komainu}
spec: {controller: komainu.dev/ingress-controller}
---
kind: Namespace
metadata: {name: default}
---
kind: Service
metadata: {name: shop, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
kind: EndpointSlice
metadata: {name: shop-a, namespace: default, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
ports: [{name: http, port: 8080}]
---
kind: Service
metadata: {name: fallback, namespace: default}
spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {name: fallback-a, namespace: default, labels: {kubernetes.io/service-name: fallback}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.9]}]
ports: [{port: 80}]
---
kind: ConfigMap
metadata: {name: fields, namespace: default}
data: {X-Frame-Options: DENY, X-Price: $5}
---
kind: ConfigMap
metadata: {name: fcgi, namespace: default}
data: {SCRIPT_FILENAME: /srv/www$fastcgi_script_name}
";

pub(crate) fn beginning() -> Objects {
    let mut all = objects(BEGINNING);
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let secret = |name: &str, kind: &str, data: Value| json!({ "kind": "Secret", "type": kind, "metadata": { "name": name, "namespace": "default" }, "data": data });
    let users = "alice:$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe\n";
    put(&mut all, secret("users", "Opaque", json!({ "auth": encode(users) })));
    let hash = users.trim_start_matches("alice:").trim_end();
    put(&mut all, secret("user-map", "Opaque", json!({ "alice": encode(hash) })));
    let made = rcgen::generate_simple_self_signed(vec!["shop.example.com".to_owned()]).unwrap();
    let (chain, key) = (encode(&made.cert.pem()), encode(&made.signing_key.serialize_pem()));
    put(&mut all, secret("cert", "kubernetes.io/tls", json!({ "tls.crt": chain, "tls.key": key })));
    put(&mut all, secret("staff", "Opaque", json!({ "ca.crt": chain })));
    put(&mut all, secret("client", "Opaque", json!({ "ca.crt": chain, "tls.crt": chain, "tls.key": key })));
    all
}

/// An Ingress with a path of the host shop.example.com.
pub(crate) fn ingress(
    namespace: &str,
    name: &str,
    created: u32,
    path: Value,
    annotations: &[(&str, &str)],
) -> Value {
    let mut texts = Map::new();
    for (name, value) in annotations {
        texts.insert(format!("{INGRESS_PREFIX}{name}"), json!(value));
    }
    let mut path = path;
    if path.get("backend").is_none() {
        path["backend"] = json!({ "service": { "name": "shop", "port": { "number": 80 } } });
    }
    let host = path.get("host").cloned().unwrap_or_else(|| json!("shop.example.com"));
    json!({
        "kind": "Ingress",
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "annotations": texts,
            "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", created / 60 % 60, created % 60),
        },
        "spec": {
            "ingressClassName": "komainu",
            "rules": [{ "host": host, "http": { "paths": [path] } }],
        },
    })
}

pub(crate) fn served(all: &Objects) -> ClusterConfig {
    translate(all, &TranslateOptions::default()).unwrap()
}

/// The routes of a host at `:80`, or at `:443`.
pub(crate) fn routes<'c>(cluster: &'c ClusterConfig, host: &str, address: &str) -> Vec<&'c Value> {
    let sites = cluster.tree["site"].as_array().unwrap();
    let site = sites.iter().find(|site| {
        let is_host = match host {
            "" => site.get("hosts").is_none(),
            host => site["hosts"].as_array().is_some_and(|hosts| hosts.iter().any(|one| one == host)),
        };
        is_host && site["listen"][0]["address"] == address
    });
    site.and_then(|site| site["route"].as_array()).map(|routes| routes.iter().collect()).unwrap_or_default()
}

pub(crate) fn notes<'e>(events: &'e [ObjectEvent], name: &str) -> Vec<&'e str> {
    events.iter().filter(|event| event.key.name == name).map(|event| event.note.as_str()).collect()
}

fn is_closed(route: &Value) -> bool {
    route.get("respond").is_some_and(|respond| *respond == serde_json::json!({ "status": 403 }))
}

/// Annotations that another one needs.
fn companions(name: &str) -> Vec<(&'static str, &'static str)> {
    match name {
        "auth-realm" | "auth-secret" => vec![("auth-type", "basic"), ("auth-secret", "users")],
        "auth-secret-type" => vec![("auth-type", "basic"), ("auth-secret", "user-map")],
        "auth-type" => vec![("auth-secret", "users")],
        "satisfy" => {
            vec![("auth-type", "basic"), ("auth-secret", "users"), ("allowlist-source-range", "10.0.0.0/8")]
        }
        "auth-cache-duration" => {
            vec![("auth-url", "http://auth.example.com/verify"), ("auth-cache-key", "$http_authorization")]
        }
        name if name.starts_with("auth-tls-") => vec![("auth-tls-secret", "default/staff")],
        name if name.starts_with("auth-") => vec![("auth-url", "http://auth.example.com/verify")],
        "cors-allow-credentials" => {
            vec![("enable-cors", "true"), ("cors-allow-origin", "https://app.example.com")]
        }
        name if name.starts_with("cors-") => vec![("enable-cors", "true")],
        name if name.starts_with("session-cookie") => vec![("affinity", "cookie")],
        "limit-burst-multiplier" | "limit-allowlist" | "limit-whitelist" => vec![("limit-rps", "5")],
        "limit-rate-after" => vec![("limit-rate", "100")],
        "mirror-host" | "mirror-request-body" => vec![("mirror-target", "https://copy.example.com")],
        name if name.starts_with("proxy-ssl-") => vec![("backend-protocol", "HTTPS")],
        "fastcgi-params-configmap" => vec![("backend-protocol", "FCGI")],
        "proxy-redirect-from" => vec![("proxy-redirect-to", "/")],
        "proxy-redirect-to" => vec![("proxy-redirect-from", "http://old.example.com/")],
        "custom-http-errors" => vec![("default-backend", "fallback")],
        "permanent-redirect-code" => vec![("permanent-redirect", "https://new.example.com")],
        "temporal-redirect-code" => vec![("temporal-redirect", "https://new.example.com")],
        "rewrite-target" => vec![("use-regex", "true")],
        _ => Vec::new(),
    }
}

/// The configuration of an Ingress with TLS and these annotations.
fn with_annotations(annotations: &[(&str, &str)]) -> ClusterConfig {
    let mut all = beginning();
    let mut object = ingress(
        "default",
        "one",
        1,
        json!({ "path": "/a/(.*)", "pathType": "ImplementationSpecific" }),
        annotations,
    );
    object["spec"]["tls"] = json!([{ "hosts": ["shop.example.com"], "secretName": "cert" }]);
    put(&mut all, object);
    served(&all)
}

#[test]
fn every_annotation_has_the_verdict_of_the_table() {
    for row in INGRESS_ANNOTATIONS {
        // Canaries have a test of their own.
        if row.name.starts_with("canary") || row.name == "affinity-canary-behavior" {
            continue;
        }
        let mut annotations = companions(row.name);
        annotations.retain(|(name, _)| *name != row.name);
        let without = with_annotations(&annotations);
        annotations.push((row.name, row.example));
        let with = with_annotations(&annotations);
        let is_same = with.tree == without.tree && with.files == without.files;
        let events = format!("{:?}", with.events);
        let route = routes(&with, "shop.example.com", ":443");
        let is_closed = route.first().is_some_and(|route| is_closed(route));
        match row.verdict {
            IngressVerdict::Refused => {
                assert!(events.contains(row.name), "{}: {events}", row.name);
                assert_eq!(is_closed, row.guards, "{}: {route:?}", row.name);
            }
            IngressVerdict::Done => {
                assert!(with.events.is_empty(), "{}: {events}", row.name);
                // Defaults, and values that are the same as without.
                let is_default = matches!(row.name, "proxy-redirect-to" | "auth-secret-type");
                assert!(
                    is_default || !is_same || without.events != with.events,
                    "{} changes nothing",
                    row.name
                );
                assert!(!is_closed, "{}", row.name);
            }
            IngressVerdict::Different | IngressVerdict::NotNeeded => {
                assert!(with.events.is_empty(), "{}: {events}", row.name);
                assert!(!is_closed, "{}", row.name);
            }
        }
    }
}

#[test]
fn default_backend_answers_in_place_of_errors() {
    let fallback = ("default-backend", "fallback");
    let found = |annotations: &[(&str, &str)]| {
        let cluster = with_annotations(annotations);
        let server = routes(&cluster, "shop.example.com", ":443")[0].get("error_server").cloned();
        (server, format!("{:?}", cluster.events))
    };
    let (server, events) = found(&[("custom-http-errors", "503, 404"), fallback]);
    let mut server = server.unwrap();
    assert!(server["to"]["upstream"].take().as_str().unwrap().contains("fallback"), "{server}");
    let fields = json!({
        "set": {
            "X-Namespace": "default", "X-Ingress-Name": "one", "X-Service-Name": "shop", "X-Service-Port": "80",
        },
    });
    let wanted = json!({ "to": { "upstream": null, "request_headers": fields }, "statuses": [404, 503] });
    assert_eq!((server, events), (wanted, "[]".to_owned()));
    // Errors reach the client, and the Ingress says so.
    for annotations in [
        &[("custom-http-errors", "404")][..],
        &[("custom-http-errors", "404,200"), fallback],
        &[("custom-http-errors", "404"), ("default-backend", "none")],
    ] {
        let (server, events) = found(annotations);
        assert!(server.is_none() && events != "[]", "{annotations:?} {server:?} {events}");
    }
    let off = [("custom-http-errors", "404"), fallback, ("disable-proxy-intercept-errors", "true")];
    assert_eq!(found(&off), (None, "[]".to_owned()));
}

#[test]
fn guards_with_values_that_are_not_followed_close_the_path() {
    let closing: &[&[(&str, &str)]] = &[
        &[("allowlist-source-range", "office")],
        &[("whitelist-source-range", "10.0.0.0/8,10.0.0.0/99")],
        &[("denylist-source-range", "x")],
        &[("auth-type", "digest"), ("auth-secret", "users")],
        &[("auth-type", "basic")],
        &[("auth-type", "basic"), ("auth-secret", "none")],
        &[("auth-type", "basic"), ("auth-secret", "staff")],
        &[("auth-secret", "users")],
        &[("auth-type", "basic"), ("auth-secret", "users"), ("auth-secret-type", "x")],
        &[("auth-url", "unix:/run/docker.sock:/x")],
        &[("auth-url", "http://auth.example.com/$request_uri")],
        &[("auth-url", "http://auth.example.com/"), ("auth-method", "POST")],
        &[("auth-url", "http://missing/")],
        &[("auth-url", "http://127.0.0.1:8080/")],
        &[("auth-url", "http://169.254.169.254/latest/")],
        &[("auth-url", "https://[::1]/")],
        &[("auth-url", "http://[::ffff:127.0.0.1]:80/")],
        &[("auth-url", "http://auth.example.com/"), ("auth-type", "basic"), ("auth-secret", "users")],
        &[("auth-url", "http://auth.example.com/"), ("auth-snippet", "x;")],
        &[("auth-tls-secret", "default/none")],
        &[("auth-tls-secret", "default/users")],
        &[("auth-tls-secret", "default/staff"), ("auth-tls-verify-client", "optional_no_ca")],
        &[("auth-tls-secret", "default/staff"), ("auth-tls-match-cn", "CN=(")],
        &[("auth-tls-verify-client", "on")],
        &[("satisfy", "some")],
        &[("proxy-ssl-secret", "default/none"), ("backend-protocol", "HTTPS")],
        &[("enable-modsecurity", "true")],
        &[("permanent-redirect", "javascript:alert(1)")],
        &[("whitelist-source-rang", "10.0.0.0/8")],
    ];
    for annotations in closing {
        let cluster = with_annotations(annotations);
        for address in [":80", ":443"] {
            let routes = routes(&cluster, "shop.example.com", address);
            assert!(
                !routes.is_empty() && routes.iter().all(|route| is_closed(route)),
                "{annotations:?}: {routes:?}"
            );
        }
        assert!(!cluster.events.is_empty(), "{annotations:?}");
    }
}

#[test]
fn values_that_refuse_nobody_are_reported_and_change_nothing() {
    let without = with_annotations(&[("rewrite-target", "/$1")]);
    for (name, value) in [
        ("proxy-body-size", "huge"),
        ("proxy-read-timeout", "soon"),
        ("limit-rps", "many"),
        ("load-balance", "fastest"),
        ("upstream-hash-by", "$request_uri$host"),
        ("affinity", "ip"),
        ("backend-protocol", "GOPHER"),
        ("upstream-vhost", "a b"),
        ("proxy-next-upstream", "errors"),
        ("proxy-cookie-domain", "one"),
        ("proxy-redirect-from", "http://a/"),
        ("custom-headers", "default/none"),
        ("server-alias", "~^www\\d+"),
        ("mirror-target", "http://copy.example.com/other"),
        ("app-root", "javascript:x"),
    ] {
        let cluster = with_annotations(&[("rewrite-target", "/$1"), (name, value)]);
        assert_eq!(cluster.tree, without.tree, "{name}");
        assert!(
            notes(&cluster.events, "one").iter().any(|note| note.contains(name)),
            "{name}: {:?}",
            cluster.events
        );
    }
}

#[test]
fn canaries_have_shares_of_requests() {
    let canary = |annotations: &[(&str, &str)]| {
        let mut all = beginning();
        put(
            &mut all,
            ingress(
                "default",
                "main",
                1,
                json!({ "path": "/", "pathType": "Prefix" }),
                &[("proxy-read-timeout", "9")],
            ),
        );
        let mut annotations = annotations.to_vec();
        annotations.push(("canary", "true"));
        let backend = json!({ "service": { "name": "fallback", "port": { "number": 80 } } });
        put(
            &mut all,
            ingress(
                "default",
                "canary",
                2,
                json!({ "path": "/", "pathType": "Prefix", "backend": backend }),
                &annotations,
            ),
        );
        let cluster = served(&all);
        assert!(cluster.events.is_empty(), "{:?}", cluster.events);
        routes(&cluster, "shop.example.com", ":80")[0]["split"].clone()
    };
    let shown = |split: &Value| {
        let mut out = split["by"].as_str().unwrap().to_owned();
        for branch in split["branches"].as_array().unwrap() {
            let when = branch.get("when").map(Value::to_string).unwrap_or_default();
            write!(out, "\n{} {} {} {when}", branch["name"], branch["weight"], branch["proxy"]["upstream"])
                .unwrap();
            assert_eq!(branch["proxy"]["timeouts"]["head"], "9s");
        }
        out
    };
    assert_eq!(
        shown(&canary(&[
            ("canary-weight", "10"),
            ("canary-by-header", "X-Canary"),
            ("canary-by-cookie", "canary")
        ])),
        r#"random
"canary-by-header" 0 "default.fallback.80" {"header":{"x-canary":"always"}}
"main-by-header" 0 "default.shop.80" {"header":{"x-canary":"never"}}
"canary-by-cookie" 0 "default.fallback.80" {"cookie":{"canary":"always"}}
"main-by-cookie" 0 "default.shop.80" {"cookie":{"canary":"never"}}
"main" 90 "default.shop.80" 
"canary" 10 "default.fallback.80" "#
    );
    assert_eq!(
        shown(&canary(&[
            ("canary-weight", "3"),
            ("canary-weight-total", "1000"),
            ("canary-by-header", "X-Canary"),
            ("canary-by-header-value", "a*b")
        ])),
        r#"random
"canary-by-header" 0 "default.fallback.80" {"header":{"x-canary":"~ ^a\\*b$"}}
"main" 997 "default.shop.80" 
"canary" 3 "default.fallback.80" "#
    );
    let pattern = canary(&[("canary-by-header", "X-Canary"), ("canary-by-header-pattern", "^(a|b)$")]);
    assert_eq!(pattern["branches"][0]["when"]["header"]["x-canary"], "~ ^(a|b)$");
}

#[test]
fn paths_and_groups_are_those_of_ingress_nginx() {
    let of = |kind: &str, path: &str, annotations: &[(&str, &str)]| {
        let mut all = beginning();
        put(&mut all, ingress("default", "one", 1, json!({ "path": path, "pathType": kind }), annotations));
        let cluster = served(&all);
        let all = routes(&cluster, "shop.example.com", ":80");
        // Of expressions, the first route refuses line feeds.
        let is_refusing = *all[0] == json!({ "path": [r"~ \n"], "respond": 404 });
        let route = all[usize::from(is_refusing)];
        assert_eq!(is_refusing, route["path"][0].as_str().unwrap().starts_with('~'), "{all:?}");
        format!(
            "{} {}",
            route.get("path").unwrap_or(&Value::Null),
            route.get("rewrite").unwrap_or(&Value::Null)
        )
    };
    assert_eq!(of("Exact", "/a", &[]), r#"["/a"] null"#);
    assert_eq!(of("Prefix", "/a", &[]), r#"["/a","/a/*"] null"#);
    assert_eq!(of("ImplementationSpecific", "/a", &[]), r#"["/a*"] null"#);
    let rewritten = of("ImplementationSpecific", "/a(/|$)(.*)", &[("rewrite-target", "/$2")]);
    assert_eq!(rewritten, r#"["~* ^/a(/|$)(.*)"] "/${2}""#);
    // The query of the request follows that of the target, unless it ends with `?`.
    for (target, written) in
        [("/i.php?p=$2", "/i.php?p=${2}&$args"), ("/i.php?p=$2?", "/i.php?p=${2}"), ("/$2?", "/${2}?")]
    {
        let rewritten = of("ImplementationSpecific", "/a(/|$)(.*)", &[("rewrite-target", target)]);
        assert_eq!(rewritten, format!(r#"["~* ^/a(/|$)(.*)"] "{written}""#));
    }
    // A group that the path does not have is empty, and no other variable is followed.
    assert_eq!(of("Prefix", "/a", &[("rewrite-target", "/x$1$host")]), r#"["~* ^/a"] "/x$$host""#);
}

#[test]
fn hosts_have_certificates_and_redirects() {
    let with = |annotations: &[(&str, &str)]| {
        let mut all = beginning();
        let mut object =
            ingress("default", "one", 1, json!({ "path": "/", "pathType": "Prefix" }), annotations);
        object["spec"]["tls"] = json!([{ "hosts": ["shop.example.com"], "secretName": "cert" }]);
        put(&mut all, object);
        let challenge = json!({ "path": "/.well-known/acme-challenge/x", "pathType": "Exact" });
        put(&mut all, ingress("default", "solver", 2, challenge, &[]));
        served(&all)
    };
    let plain = with(&[]);
    let shown: Vec<String> =
        routes(&plain, "shop.example.com", ":80").iter().map(|route| route.to_string()).collect();
    assert!(shown[0].contains("acme-challenge") && shown[0].contains("proxy"), "{shown:?}");
    assert!(shown[1].contains(r#""to":"https://$host$uri""#) && shown[1].contains("308"), "{shown:?}");
    assert!(routes(&plain, "shop.example.com", ":443")[1].get("proxy").is_some());
    let open = with(&[("ssl-redirect", "false")]);
    assert!(routes(&open, "shop.example.com", ":80")[1].get("proxy").is_some());
    let www = with(&[("from-to-www-redirect", "true"), ("server-alias", "shop.example.net")]);
    assert_eq!(
        routes(&www, "www.shop.example.com", ":443")[0]["redirect"]["to"],
        "$scheme://shop.example.com$uri"
    );
    assert!(routes(&www, "shop.example.net", ":443")[1].get("proxy").is_some());
    let passed = with(&[("ssl-passthrough", "true")]);
    assert_eq!(passed.tree["stream"][0]["to"], json!(["10.0.0.1:8080", "10.0.0.2:8080"]));
    assert!(routes(&passed, "shop.example.com", ":443").is_empty());
    let staff = with(&[("auth-tls-secret", "default/staff"), ("ssl-redirect", "false")]);
    assert!(routes(&staff, "shop.example.com", ":80").iter().all(|route| route.get("proxy").is_none()));
    let fields = &routes(&staff, "shop.example.com", ":443")[1]["proxy"]["request_headers"];
    assert_eq!(fields["set"]["ssl-client-verify"], "$tls_client_verify");
}

#[test]
fn classes_select_ingresses() {
    let count = |change: &dyn Fn(&mut Value), only: Option<&str>, class: Value| {
        let mut all = beginning();
        put(&mut all, class);
        let mut object = ingress("default", "one", 1, json!({ "path": "/" }), &[]);
        change(&mut object);
        put(&mut all, object);
        let ingress = IngressOptions { class: only.map(str::to_owned), ..IngressOptions::default() };
        let options = TranslateOptions { ingress, ..TranslateOptions::default() };
        translate(&all, &options)
            .unwrap()
            .statuses
            .iter()
            .filter(|status| status.kind.name() == "Ingress")
            .count()
    };
    let class = |name: &str, controller: &str, is_default: &str| {
        json!({
            "kind": "IngressClass", "spec": { "controller": controller },
            "metadata": { "name": name, "annotations": { "ingressclass.kubernetes.io/is-default-class": is_default } },
        })
    };
    let ours = class("other", "komainu.dev/ingress-controller", "false");
    let default = class("other", "komainu.dev/ingress-controller", "true");
    let theirs = class("nginx", "k8s.io/ingress-nginx", "true");
    let name =
        |name: &'static str| move |object: &mut Value| object["spec"]["ingressClassName"] = json!(name);
    let old = |name: &'static str| {
        move |object: &mut Value| {
            object["spec"].as_object_mut().unwrap().remove("ingressClassName");
            object["metadata"]["annotations"]["kubernetes.io/ingress.class"] = json!(name);
        }
    };
    let none = |object: &mut Value| _ = object["spec"].as_object_mut().unwrap().remove("ingressClassName");
    assert_eq!(count(&name("other"), None, ours.clone()), 1);
    assert_eq!(count(&name("other"), Some("komainu"), ours.clone()), 0);
    assert_eq!(count(&old("komainu"), None, ours.clone()), 1);
    assert_eq!(count(&old("nginx"), None, theirs.clone()), 0);
    assert_eq!(count(&old("nginx"), Some("nginx"), ours.clone()), 1);
    assert_eq!(count(&name("nginx"), Some("nginx"), theirs.clone()), 0);
    assert_eq!(count(&none, None, ours), 0);
    assert_eq!(count(&none, None, default), 1);
    assert_eq!(count(&none, None, theirs), 0);
}

#[test]
fn oldest_ingress_has_the_host_and_path() {
    let mut all = beginning();
    for kind in ["Service", "EndpointSlice"] {
        let mut object = match kind {
            "Service" => {
                json!({ "kind": kind, "metadata": { "name": "shop" }, "spec": { "ports": [{ "port": 80 }] } })
            }
            _ => json!({
                "kind": kind, "addressType": "IPv4", "endpoints": [{ "addresses": ["10.6.6.6"] }], "ports": [{ "port": 80 }],
                "metadata": { "name": "shop-a", "labels": { "kubernetes.io/service-name": "shop" } },
            }),
        };
        object["metadata"]["namespace"] = json!("evil");
        put(&mut all, object);
    }
    put(&mut all, ingress("default", "victim", 50, json!({ "path": "/", "pathType": "Prefix" }), &[]));
    let before = served(&all);
    let hostile: &[(Value, &[(&str, &str)])] = &[
        (json!({ "path": "/", "pathType": "Prefix" }), &[]),
        (json!({ "path": "/", "pathType": "ImplementationSpecific" }), &[]),
        (json!({ "path": "/(.*)(.*)(.*)", "pathType": "ImplementationSpecific" }), &[("use-regex", "true")]),
        (json!({ "path": "/(", "pathType": "ImplementationSpecific" }), &[("use-regex", "true")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("rewrite-target", "/$1")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("app-root", "/evil")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("auth-tls-secret", "evil/none")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("ssl-passthrough", "true")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("server-snippet", "deny all;")]),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("canary", "true"), ("canary-weight", "100")]),
        (
            json!({ "path": "/", "pathType": "Prefix", "host": "a.example.com" }),
            &[("server-alias", "shop.example.com")],
        ),
        (json!({ "path": "/", "pathType": "Prefix" }), &[("from-to-www-redirect", "true")]),
    ];
    for (number, (path, annotations)) in hostile.iter().enumerate() {
        let mut all = all.clone();
        let mut object = ingress("evil", "hostile", 51, path.clone(), annotations);
        object["spec"]["tls"] = json!([{ "hosts": ["shop.example.com"], "secretName": "cert" }]);
        put(&mut all, object);
        let after = served(&all);
        let (before, now) =
            (routes(&before, "shop.example.com", ":80"), routes(&after, "shop.example.com", ":80"));
        // The first route answers everything: none behind it does.
        assert_eq!(before[0], now[0], "{number}: {path} {annotations:?}");
        assert!(now[0].get("path").is_none());
        assert!(routes(&after, "shop.example.com", ":443").is_empty(), "{number}");
        assert!(!notes(&after.events, "hostile").is_empty(), "{number}: {path} {annotations:?}");
        assert!(notes(&after.events, "victim").is_empty());
        assert!(!format!("{:?}", after.events).contains("victim"), "the name of another tenant's object");
    }
    // An alias is a host that exists, too.
    put(
        &mut all,
        ingress(
            "default",
            "named",
            52,
            json!({ "path": "/", "host": "b.example.com" }),
            &[("server-alias", "c.example.com")],
        ),
    );
    put(&mut all, ingress("evil", "hostile", 53, json!({ "path": "/", "host": "c.example.com" }), &[]));
    let cluster = served(&all);
    let shown = format!("{:?}", routes(&cluster, "c.example.com", ":80"));
    assert!(shown.contains("default.shop.80") && !shown.contains("evil"), "{shown}");
}

#[test]
fn objects_of_other_namespaces_need_grants() {
    let granted = |annotations: &[(&str, &str)], kind: Option<&str>| {
        let mut all = beginning();
        let service = json!({ "kind": "Service", "metadata": { "name": "shop", "namespace": "evil" }, "spec": { "ports": [{ "port": 80 }] } });
        put(&mut all, service);
        put(&mut all, json!({ "kind": "Namespace", "metadata": { "name": "evil" } }));
        if let Some(kind) = kind {
            put(
                &mut all,
                json!({
                    "kind": "ReferenceGrant", "metadata": { "name": "g", "namespace": "default" },
                    "spec": {
                        "from": [{ "group": "networking.k8s.io", "kind": "Ingress", "namespace": "evil" }],
                        "to": [{ "group": "", "kind": kind }],
                    },
                }),
            );
        }
        put(
            &mut all,
            ingress("evil", "hostile", 1, json!({ "path": "/", "host": "evil.example.com" }), annotations),
        );
        let cluster = served(&all);
        let route = routes(&cluster, "evil.example.com", ":80")[0].to_string();
        let files: String = cluster.files.keys().map(|path| path.display().to_string()).collect();
        (route, files, format!("{:?}", cluster.events))
    };
    for (annotations, kind, mark) in [
        (&[("auth-type", "basic"), ("auth-secret", "default/users")][..], "Secret", "users"),
        (&[("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "default/client")], "Secret", "client"),
        (&[("custom-headers", "default/fields")], "ConfigMap", "DENY"),
        (&[("auth-url", "http://shop.default.svc.cluster.local/")], "Service", "default.shop"),
        (&[("auth-url", "http://shop.default/")], "Service", "default.shop"),
        (&[("mirror-target", "http://shop.default.svc")], "Service", "default.shop"),
    ] {
        let (route, files, events) = granted(annotations, None);
        assert!(!route.contains(mark) && !files.contains(mark), "{annotations:?}: {route} {files}");
        assert!(events.contains("no ReferenceGrant"), "{annotations:?}: {events}");
        // Whether the object exists is not said.
        let missing: Vec<(&str, String)> = annotations
            .iter()
            .map(|(name, value)| {
                (
                    *name,
                    value
                        .replace("users", "none")
                        .replace("client", "none")
                        .replace("fields", "none")
                        .replace("shop", "none"),
                )
            })
            .collect();
        let missing: Vec<(&str, &str)> =
            missing.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert!(granted(&missing, None).2.contains("no ReferenceGrant"), "{annotations:?}");
        let (route, files, _) = granted(annotations, Some(kind));
        assert!(route.contains(mark) || files.contains(mark), "{annotations:?}: {route} {files}");
    }
}

#[test]
fn cookies_of_all_sites_are_secure() {
    let sticky = |secure: &str| {
        let mut all = beginning();
        let annotations =
            [("affinity", "cookie"), ("session-cookie-samesite", "None"), ("session-cookie-secure", secure)];
        put(&mut all, ingress("default", "one", 1, json!({ "path": "/" }), &annotations));
        let cluster = served(&all);
        let route = routes(&cluster, "shop.example.com", ":80")[0].clone();
        (route["proxy"]["sticky"].clone(), notes(&cluster.events, "one").join("; "))
    };
    assert_eq!(sticky("true"), (json!({ "same_site": "None", "secure": true }), String::new()));
    let (cookie, said) = sticky("false");
    assert_eq!(cookie, json!({ "same_site": "None" }));
    assert!(said.contains("session-cookie-secure"), "{said}");
}

#[test]
fn ten_thousand_broken_ingresses_stop_no_other() {
    let mut all = beginning();
    put(&mut all, ingress("default", "good", 1, json!({ "path": "/good", "pathType": "Exact" }), &[]));
    let expected = routes(&served(&all), "shop.example.com", ":80")[0].clone();
    let broken: &[(&str, &[(&str, &str)])] = &[
        ("/(((", &[("use-regex", "true")]),
        ("/a{99999}", &[("use-regex", "true")]),
        ("not a path", &[]),
        ("/x", &[("session-cookie-path", "no path"), ("affinity", "cookie")]),
        ("/x", &[("session-cookie-domain", "a b"), ("affinity", "cookie")]),
        ("/x", &[("cors-allow-origin", "nonsense"), ("enable-cors", "true")]),
        ("/x", &[("cors-allow-methods", "G E T"), ("enable-cors", "true")]),
        ("/x", &[("auth-response-headers", "a b,:"), ("auth-url", "http://auth.example.com/")]),
        ("/x", &[("rewrite-target", "/$999999999999999999999")]),
        ("/x", &[("server-snippet", "}")]),
        ("/x", &[("mirror-target", "http://")]),
        ("/x", &[("permanent-redirect", "http://")]),
        ("/x", &[("upstream-vhost", "\u{0}\n"), ("x-forwarded-prefix", "a\r\nEvil: yes")]),
    ];
    for number in 0..10_000 {
        let (path, annotations) = broken[number % broken.len()];
        let host = format!("h{number}.example.com");
        let path = json!({ "path": path, "pathType": "ImplementationSpecific", "host": host });
        put(&mut all, ingress("evil", &format!("broken-{number}"), 2, path, annotations));
    }
    let cluster = served(&all);
    assert_eq!(routes(&cluster, "shop.example.com", ":80")[0], &expected);
    // Each says why, a bounded number of times.
    let named: std::collections::BTreeSet<&str> =
        cluster.events.iter().map(|event| event.key.name.as_str()).collect();
    assert!(named.len() > 9_000, "{}", named.len());
    assert!(cluster.events.len() < 40_000 && cluster.events.iter().all(|event| event.note.len() <= 1_000));
    let tree = cluster.tree.to_string();
    assert!(!tree.contains("Evil: yes") || !tree.contains("\\r\\n"), "a line break in a field");
}

#[test]
fn gateways_keep_their_hosts_and_addresses() {
    let gateway = |port: u16, protocol: &str, host: &str| {
        let mut all = beginning();
        put(
            &mut all,
            json!({ "kind": "GatewayClass", "metadata": { "name": "komainu" }, "spec": { "controllerName": "komainu.dev/gateway-controller" } }),
        );
        let tls = json!({ "certificateRefs": [{ "name": "cert" }] });
        put(
            &mut all,
            json!({
                "kind": "Gateway", "metadata": { "name": "web", "namespace": "default" },
                "spec": { "gatewayClassName": "komainu", "listeners": [{ "name": "one", "port": port, "protocol": protocol, "hostname": host, "tls": tls }] },
            }),
        );
        for (name, host) in [("one", "shop.example.com"), ("two", "other.example.com")] {
            let mut object = ingress(
                "default",
                name,
                1,
                json!({ "path": "/", "host": host }),
                &[("ssl-redirect", "false")],
            );
            object["spec"]["tls"] = json!([{ "hosts": [host], "secretName": "cert" }]);
            put(&mut all, object);
        }
        served(&all)
    };
    let same_host = gateway(443, "HTTPS", "shop.example.com");
    assert_eq!(routes(&same_host, "shop.example.com", ":443").len(), 0);
    assert_eq!(routes(&same_host, "shop.example.com", ":80").len(), 1);
    assert_eq!(routes(&same_host, "other.example.com", ":443").len(), 1);
    assert!(notes(&same_host.events, "one")[0].contains("a Gateway has the host"));
    assert!(notes(&same_host.events, "two").is_empty());
    let other_protocol = gateway(443, "HTTP", "third.example.com");
    assert_eq!(routes(&other_protocol, "other.example.com", ":443").len(), 0);
    assert_eq!(routes(&other_protocol, "other.example.com", ":80").len(), 1);
    assert!(notes(&other_protocol.events, "two")[0].contains("another protocol"));
}

#[test]
fn lost_certificate_does_not_open_its_host_without_tls() {
    let mut all = beginning();
    let path = |path: &str| json!({ "path": path, "pathType": "Prefix" });
    let mut object = ingress("default", "one", 1, path("/"), &[]);
    object["spec"]["tls"] = json!([{ "hosts": ["shop.example.com"], "secretName": "lost" }]);
    put(&mut all, object);
    put(&mut all, ingress("default", "solver", 2, path("/.well-known/acme-challenge/x"), &[]));
    let cluster = served(&all);
    let found = routes(&cluster, "shop.example.com", ":80");
    let of = |path: &str| {
        found.iter().find(|route| route["path"][0].as_str().is_some_and(|own| own.starts_with(path)))
    };
    let everything = found.iter().find(|route| route.get("path").is_none()).unwrap();
    assert_eq!(everything["redirect"]["status"], 308, "{found:?}");
    // Who gives the certificate may ask for the challenge.
    assert!(of("/.well-known/").unwrap().get("redirect").is_none(), "{found:?}");
    assert!(routes(&cluster, "shop.example.com", ":443").is_empty());
    assert!(notes(&cluster.events, "one").iter().any(|note| note.contains("lost")));
}
