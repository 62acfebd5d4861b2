//! KomainuPolicies: what they may reach, and what happens to those that cannot be followed.

use kubernetes::objects::{Kind, Objects};
use kubernetes::options::TranslateOptions;
use kubernetes::policy_definition::definition_yaml;
use kubernetes::translate::{ClusterConfig, translate};
use serde_json::{Value, json};

use crate::{objects, put, statuses};

const BEGINNING: &str = include_str!("cases/policies.yaml");

/// The class, the Gateway, its route and their Services, without policies.
fn beginning() -> Objects {
    let mut all = objects(BEGINNING);
    all.policies.clear();
    all
}

fn policy(name: &str, namespace: &str, target: Value, spec: Value) -> Value {
    let mut policy = json!({ "kind": "KomainuPolicy", "metadata": { "name": name, "namespace": namespace }, "spec": spec });
    let mut target = target;
    target["group"] = json!("gateway.networking.k8s.io");
    policy["spec"]["targetRefs"] = json!([target]);
    policy
}

fn shop() -> Value {
    json!({ "kind": "HTTPRoute", "name": "shop" })
}

fn translated(all: &Objects) -> ClusterConfig {
    translate(all, &TranslateOptions::default()).unwrap()
}

/// The routes of the first site of a host, by the start of their paths.
fn routes(translation: &ClusterConfig, port: &str) -> Vec<Value> {
    let sites = translation.tree["site"].as_array().unwrap();
    let is_site =
        |site: &&Value| site["listen"][0]["address"] == port && site["hosts"][0] == "shop.example.com";
    sites.iter().find(is_site).unwrap()["route"].as_array().unwrap().clone()
}

fn route(translation: &ClusterConfig, path: &str) -> Value {
    routes(translation, ":80").into_iter().find(|route| route["path"][0] == path).unwrap()
}

#[test]
fn definition_is_that_of_the_directives() {
    let wanted = definition_yaml();
    for folder in ["kubernetes", "helm/komainu/files"] {
        let path = format!("{}/../../packages/{folder}/policy.yaml", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("KOMAINU_BLESS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == wanted, "the directives have changed: `cargo xtask docs` writes {path}");
    }
}

#[test]
fn guard_that_cannot_be_followed_closes_its_target() {
    let admin = || json!({ "kind": "HTTPRoute", "name": "shop", "sectionName": "admin" });
    let closed = json!({ "status": 500 });
    for (spec, reason) in [
        (json!({ "auth": 5 }), "Invalid"),
        (json!({ "auth": {} }), "Invalid"),
        (json!({ "auth": { "basic": { "name": "absent" } } }), "Invalid"),
        (json!({ "auth": { "basic": { "name": "users", "key": "absent" } } }), "Invalid"),
        (json!({ "auth": { "basic": { "name": "users", "namespace": "vault" } } }), "Invalid"),
        (json!({ "auth": { "ask": { "name": "absent", "port": 80 } } }), "Invalid"),
        (json!({ "limit": [{ "rate": "never" }] }), "Invalid"),
        (json!({ "deny": ["everybody"] }), "Invalid"),
        (json!({ "allow": [], "cache": {} }), "Invalid"),
        (json!({ "limit": [{ "rate": "1/s" }], "cache": { "purge": {} } }), "Invalid"),
    ] {
        let mut all = beginning();
        put(&mut all, policy("guard", "shop", admin(), spec.clone()));
        let found = translated(&all);
        let text = statuses(&found);
        let wanted = format!("KomainuPolicy shop/guard target shop#admin: Accepted=False {reason}: ");
        assert!(text.contains(&wanted) && text.contains("answered 500"), "{spec}: {text}");
        assert_eq!(route(&found, "/admin")["respond"], closed, "{spec}");
        assert!(route(&found, "/admin").get("proxy").is_none());
        // Other rules are served.
        assert!(route(&found, "/moved").get("redirect").is_some(), "{spec}");
    }
}

#[test]
fn guard_of_an_unknown_part_closes_the_whole_object() {
    let mut all = beginning();
    let target = json!({ "kind": "HTTPRoute", "name": "shop", "sectionName": "amdin" });
    put(&mut all, policy("guard", "shop", target, json!({ "auth": { "basic": { "name": "users" } } })));
    let found = translated(&all);
    assert!(
        statuses(&found)
            .contains("Accepted=False TargetNotFound: the HTTPRoute shop/shop has no rule \"amdin\"")
    );
    assert!(routes(&found, ":80").iter().all(|route| route["respond"]["status"] == 500));
    let mut all = beginning();
    let target = json!({ "kind": "Gateway", "name": "web", "sectionName": "absent" });
    put(&mut all, policy("guard", "shop", target, json!({ "allow": ["10.0.0.0/8"] })));
    let found = translated(&all);
    for port in [":80", ":8080"] {
        assert!(routes(&found, port).iter().all(|route| route["respond"]["status"] == 500));
    }
}

#[test]
fn guard_without_a_server_that_could_answer_is_503() {
    let mut all = beginning();
    let asked = json!({ "auth": { "ask": { "name": "auth", "port": 80 } } });
    put(&mut all, policy("guard", "shop", shop(), asked));
    assert_eq!(route(&translated(&all), "/admin")["auth"]["upstream"], "shop.auth.80");
    put(
        &mut all,
        json!({ "kind": "EndpointSlice", "metadata": { "name": "auth-a", "namespace": "shop", "labels": { "kubernetes.io/service-name": "auth" } }, "addressType": "IPv4" }),
    );
    let found = translated(&all);
    assert_eq!(route(&found, "/admin")["respond"]["status"], 503);
    assert!(statuses(&found).contains("KomainuPolicy shop/guard target shop: Accepted=True Accepted"));
}

#[test]
fn policy_that_was_not_kept_closes_its_namespace_alone() {
    let mut all = beginning();
    let malformed = json!({ "metadata": { "name": "x", "namespace": "shop", "labels": 5 } });
    assert!(all.put(Kind::KomainuPolicy, malformed).is_err());
    let found = translated(&all);
    assert!(routes(&found, ":80").iter().all(|route| route["respond"]["status"] == 500));
    let key = kubernetes::objects::ObjectKey::new("shop", "x");
    assert!(all.remove(Kind::KomainuPolicy, &key));
    assert!(route(&translated(&all), "/admin").get("proxy").is_some());
    assert!(
        all.put(
            Kind::KomainuPolicy,
            json!({ "metadata": { "name": "x", "namespace": "other", "labels": 5 } })
        )
        .is_err()
    );
    assert!(route(&translated(&all), "/admin").get("proxy").is_some());
}

#[test]
fn policies_reach_only_objects_of_their_namespace() {
    let mut all = beginning();
    for kind in ["HTTPRoute", "Gateway"] {
        for name in ["shop", "web"] {
            let target = json!({ "kind": kind, "name": name, "namespace": "shop" });
            let name = format!("{}-{name}", kind.to_lowercase());
            put(
                &mut all,
                policy(&name, "hostile", target, json!({ "deny": ["0.0.0.0/0", "::/0"], "auth": 5 })),
            );
        }
    }
    let found = translated(&all);
    assert_eq!(statuses(&found).matches("Accepted=False TargetNotFound: there is no ").count(), 4);
    let without = translated(&beginning());
    assert_eq!(found.tree, without.tree);
}

#[test]
fn references_to_other_namespaces_need_a_grant() {
    let secret = json!({
        "kind": "Secret", "type": "komainu.dev/policy", "metadata": { "name": "users", "namespace": "vault" },
        "data": all_users(),
    });
    let grant = |kind: &str| {
        json!({
            "kind": "ReferenceGrant", "metadata": { "name": "g", "namespace": "vault" },
            "spec": { "from": [{ "group": "komainu.dev", "kind": kind, "namespace": "shop" }], "to": [{ "group": "", "kind": "Secret" }] },
        })
    };
    let mut all = beginning();
    put(&mut all, secret);
    let spec = json!({ "auth": { "basic": { "name": "users", "namespace": "vault" } } });
    put(&mut all, policy("guard", "shop", shop(), spec));
    let refused = translated(&all);
    assert!(statuses(&refused).contains("target shop: ResolvedRefs=False RefNotPermitted: auth.basic: no ReferenceGrant in the namespace vault"));
    assert!(refused.files.is_empty());
    put(&mut all, grant("HTTPRoute"));
    assert!(translated(&all).files.is_empty());
    put(&mut all, grant("KomainuPolicy"));
    let allowed = translated(&all);
    assert!(statuses(&allowed).contains("target shop: Accepted=True Accepted"));
    assert_eq!(allowed.files.len(), 1);
    let file = allowed.files.keys().next().unwrap().to_str().unwrap();
    assert_eq!(route(&allowed, "/admin")["auth"]["basic"], file);
}

fn all_users() -> Value {
    let line = "alice:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n";
    json!({ "users": data_encoding::BASE64.encode(line.as_bytes()) })
}

#[test]
fn secrets_of_other_types_are_not_kept() {
    let mut all = beginning();
    let secret = |kind: &str| json!({ "kind": "Secret", "type": kind, "metadata": { "name": "app", "namespace": "shop" }, "data": all_users() });
    let has_it = |all: &Objects| all.secrets.keys().any(|key| key.name == "app");
    put(&mut all, secret("helm.sh/release.v1"));
    assert!(!has_it(&all));
    put(&mut all, secret("komainu.dev/policy"));
    assert!(has_it(&all));
    put(&mut all, secret("helm.sh/release.v1"));
    assert!(!has_it(&all));
}

#[test]
fn changed_secrets_change_the_configuration() {
    let mut all = beginning();
    put(&mut all, policy("guard", "shop", shop(), json!({ "auth": { "basic": { "name": "users" } } })));
    let before = translated(&all);
    let secret = |text: &str| {
        let users = data_encoding::BASE64.encode(text.as_bytes());
        json!({ "kind": "Secret", "type": "komainu.dev/policy", "metadata": { "name": "users", "namespace": "shop" }, "data": { "users": users } })
    };
    put(&mut all, secret("berta:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n"));
    let after = translated(&all);
    assert_ne!(route(&before, "/admin")["auth"], route(&after, "/admin")["auth"]);
    // A line that the server could not read would stop every change.
    for broken in ["", "# nobody\n", "alice:secret\n", "alice\n", "\u{0}"] {
        put(&mut all, secret(broken));
        let closed = translated(&all);
        assert_eq!(route(&closed, "/admin")["respond"]["status"], 500, "{broken:?}");
        assert!(statuses(&closed).contains("ResolvedRefs=False InvalidSecret: auth.basic: "), "{broken:?}");
        assert!(closed.files.is_empty());
    }
}

#[test]
fn fields_of_identities_are_removed_from_requests_to_the_route_alone() {
    let mut all = beginning();
    let asked = json!({ "auth": { "ask": { "name": "auth", "port": 80 }, "response_headers": ["Accept"] } });
    put(&mut all, policy("guard", "shop", shop(), asked));
    assert_eq!(route(&translated(&all), "/admin")["auth"]["remove_from"], "route");
}

#[test]
fn ten_thousand_broken_policies_stop_nothing() {
    let mut all = beginning();
    put(
        &mut all,
        json!({
            "kind": "HTTPRoute", "metadata": { "name": "other", "namespace": "shop" },
            "spec": { "parentRefs": [{ "name": "web" }], "hostnames": ["other.example.com"], "rules": [{ "backendRefs": [{ "name": "shop", "port": 80 }] }] },
        }),
    );
    let specs = [
        json!({ "cache": { "rule": [{ "path": "~ ([" }] } }),
        json!({ "compress": { "codings": ["none"] } }),
        json!({ "auth": { "basic": { "name": "absent" } } }),
        json!({ "cache": { "purge": { "token_file": "/etc/passwd" } } }),
        json!({ "error_pages": { "404": "x" }, "mirror": { "to": "http://169.254.169.254" } }),
        json!({ "limit": [{ "rate": "1/s", "burst": 1_000_000 }], "queue": { "active": 0 } }),
    ];
    for index in 0..10_000 {
        let target = match index % 3 {
            0 => shop(),
            1 => json!({ "kind": "HTTPRoute", "name": format!("absent-{index}") }),
            _ => json!({ "kind": "HTTPRoute", "name": "shop", "sectionName": format!("s{index}") }),
        };
        put(&mut all, policy(&format!("p{index}"), "shop", target, specs[index % specs.len()].clone()));
    }
    let found = translated(&all);
    assert_eq!(statuses(&found).matches("KomainuPolicy shop/p").count(), 10_000 + unresolved(&all));
    // The route that the guards among them have as target is closed; the other is served.
    assert_eq!(route(&found, "/admin")["respond"]["status"], 500);
    let sites = found.tree["site"].as_array().unwrap();
    let other = sites.iter().find(|site| site["hosts"][0] == "other.example.com").unwrap();
    assert!(other["route"][0].get("proxy").is_some());
}

/// Conditions besides `Accepted`: those of policies that name a Secret.
fn unresolved(all: &Objects) -> usize {
    all.policies.values().filter(|policy| policy.spec.pointer("/auth/basic").is_some()).count()
}
