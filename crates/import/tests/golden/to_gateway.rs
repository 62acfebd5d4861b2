//! Ingresses as objects of Gateway API: a golden sample, and guards that close.

use std::fmt::Write as _;

fn written(text: &str, name: &str) -> import::ImportResult {
    let path = std::env::temp_dir().join(format!("komainu-{name}-{}.yaml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let result = import::ingress::import_to_gateway(&path);
    std::fs::remove_file(&path).unwrap();
    result.unwrap()
}

#[test]
fn ingresses_become_gateways_and_routes() {
    let folder = format!("{}/tests/gateway", env!("CARGO_MANIFEST_DIR"));
    let source = std::path::PathBuf::from(format!("{folder}/shop.yaml"));
    let result = import::ingress::import_to_gateway(&source).unwrap();
    let mut found = result.toml.clone();
    for remark in &result.remarks {
        let _ = writeln!(found, "# {:?} {} {}", remark.verdict, remark.directive, remark.reasons.join(" "));
    }
    let found = found.replace(&format!("{folder}/"), "");
    let path = format!("{folder}/shop.out");
    if std::env::var_os("KOMAINU_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "{path}: KOMAINU_BLESS=1 writes it");
    // It is YAML that the same parser reads.
    let objects = import::parse_yaml("out", &result.toml).unwrap();
    assert!(
        objects.iter().all(|object| object["apiVersion"] == "gateway.networking.k8s.io/v1"),
        "{objects:?}"
    );
}

#[test]
fn guards_that_gateway_api_has_no_words_for_leave_no_backend() {
    for (name, value) in [
        ("whitelist-source-range", "10.0.0.0/8"),
        ("denylist-source-range", "10.0.0.0/8"),
        ("auth-url", "http://auth.example.com/"),
        ("auth-type", "basic"),
        ("auth-tls-secret", "default/staff"),
        ("satisfy", "any"),
        ("server-snippet", "deny all;"),
        ("enable-modsecurity", "true"),
        ("frobnicate", "x"),
        ("rewrite-target", "/$3/$1"),
        ("permanent-redirect", "https://example.com/$http_user_agent"),
    ] {
        let prefix = "nginx.ingress.kubernetes.io";
        let text = format!(
            "kind: Ingress\nmetadata: {{name: a, annotations: {{{prefix}/proxy-read-timeout: '5', {prefix}/enable-cors: 'true', {prefix}/{name}: {value:?}}}}}\nspec: {{rules: [{{host: a.example.com, http: {{paths: [{{path: '/a(/|$)(.*)', backend: {{service: {{name: a, port: {{number: 80}}}}}}}}]}}}}]}}\n"
        );
        let result = written(&text, &format!("gateway-{name}"));
        assert!(!result.toml.contains("backendRefs"), "{name}: {}", result.toml);
        assert!(
            result.toml.contains("# CHECK") && result.toml.contains("matches:"),
            "{name}: {}",
            result.toml
        );
        // Nothing that the route has only with a backend counts as translated.
        let verdicts = [import::ImportVerdict::Impossible, import::ImportVerdict::Translated];
        assert_eq!(verdicts.map(|verdict| result.count(verdict)), [4, 0], "{name}");
    }
}

#[test]
fn texts_of_ingresses_cannot_add_objects() {
    let odd = "a\n---\nkind: Secret";
    let text = format!(
        "kind: Ingress\nmetadata: {{name: {odd:?}, annotations: {{nginx.ingress.kubernetes.io/x-forwarded-prefix: {odd:?}, nginx.ingress.kubernetes.io/auth-url: {odd:?}}}}}\nspec: {{rules: [{{host: {odd:?}, http: {{paths: [{{path: {odd:?}, pathType: Prefix, backend: {{service: {{name: {odd:?}, port: {{number: 80}}}}}}}}]}}}}]}}\n"
    );
    let result = written(&text, "gateway-odd");
    let objects = import::parse_yaml("out", &result.toml).unwrap();
    assert_eq!(objects.len(), 2, "{}", result.toml);
    assert_eq!(objects[1]["metadata"]["name"], odd);
}

/// Returns an Ingress with annotations, `tls`, and rules of hosts and paths with ports.
fn ingress(annotations: &str, tls: &str, rules: &[(String, Vec<(String, &str)>)]) -> String {
    let mut text = format!(
        "kind: Ingress\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec:\n  tls: {tls}\n  rules:\n"
    );
    for (host, paths) in rules {
        let _ = writeln!(text, "  - host: {host:?}\n    http:\n      paths:");
        for (path, port) in paths {
            let _ = writeln!(
                text,
                "      - {{path: {path:?}, pathType: Prefix, backend: {{service: {{name: a, port: {{{port}}}}}}}}}"
            );
        }
    }
    text
}

fn objects(text: &str, name: &str) -> (Vec<serde_json::Value>, import::ImportResult) {
    let result = written(text, name);
    (import::parse_yaml("out", &result.toml).unwrap(), result)
}

#[test]
fn lists_are_no_longer_than_the_api_allows() {
    let paths = |count: usize| (0..count).map(|at| (format!("/p{at}"), "number: 80")).collect::<Vec<_>>();
    let mut rules: Vec<_> = (0..100).map(|at| (format!("h{at:02}.example"), paths(1))).collect();
    rules.push(("many.example".to_owned(), paths(40)));
    let (objects, _) = objects(&ingress("", "[{secretName: all}]", &rules), "gateway-long");
    let mut listeners = Vec::new();
    let mut seen = [0, 0];
    for object in &objects {
        let of = &object["spec"]["listeners"];
        let (name, kind) = (&object["metadata"]["name"], &object["kind"]);
        if let Some(of) = of.as_array() {
            assert!(of.len() <= 64, "{kind} {name} has {} listeners", of.len());
            listeners.extend(of.iter().map(|one| (kind.clone(), name.clone(), one["name"].clone())));
            let is_set = kind == "ListenerSet";
            assert_eq!(object["spec"]["parentRef"]["name"] == "ingress", is_set, "{object}");
        } else {
            let rules = object["spec"]["rules"].as_array().unwrap();
            assert!(rules.len() <= 16, "{name} has {} rules", rules.len());
            if object["spec"]["hostnames"][0] == "many.example" && !rules[0]["backendRefs"].is_null() {
                seen[0] += rules.len();
            }
            for parent in object["spec"]["parentRefs"].as_array().unwrap() {
                let kind = parent.get("kind").cloned().unwrap_or_else(|| "Gateway".into());
                let named = (kind, parent["name"].clone(), parent["sectionName"].clone());
                assert!(listeners.contains(&named), "{named:?}");
                seen[1] += usize::from(named.0 == "ListenerSet");
            }
        }
    }
    assert_eq!(listeners.len(), 202);
    assert!(seen[0] == 40 && seen[1] > 100, "{seen:?}");
    assert_eq!(objects[0]["spec"]["allowedListeners"]["namespaces"]["from"], "Same");
}

#[test]
fn certificates_of_hosts_are_named() {
    let rules = [("a.example".to_owned(), vec![("/".to_owned(), "number: 80")])];
    for (tls, secret) in [
        ("[{secretName: own}]", "own"),
        ("[{secretName: own, hosts: [a.example]}, {secretName: other}]", "own"),
        ("[{hosts: [A.example]}]", "default-certificate"),
        ("[{hosts: [a.example], secretName: ''}]", "default-certificate"),
    ] {
        let (objects, result) = objects(&ingress("", tls, &rules), "gateway-tls");
        let listener = &objects[0]["spec"]["listeners"][1];
        assert_eq!(listener["tls"]["certificateRefs"][0]["name"], secret, "{tls}: {}", result.toml);
        assert_eq!(result.toml.contains("# CHECK the Secret"), secret == "default-certificate", "{tls}");
        let filter = &objects[1]["spec"]["rules"][0]["filters"][0]["responseHeaderModifier"]["set"][0];
        assert_eq!(filter["name"], "Strict-Transport-Security", "{}", result.toml);
    }
}

#[test]
fn backends_have_numbers_of_ports() {
    let rules = [("a.example".to_owned(), vec![("/".to_owned(), "name: web")])];
    let text = ingress("", "[]", &rules);
    let (without, result) = objects(&text, "gateway-port");
    assert_eq!(without[1]["spec"]["rules"][0]["backendRefs"], serde_json::json!([]));
    assert_eq!(result.count(import::ImportVerdict::Impossible), 1);
    let service = "kind: Service\nmetadata: {name: a}\nspec: {ports: [{name: admin, port: 1}, {name: web, port: 8080}]}\n";
    let (with, result) = objects(&format!("{text}---\n{service}"), "gateway-ports");
    assert_eq!(with[1]["spec"]["rules"][0]["backendRefs"][0]["port"], 8080);
    assert_eq!(result.count(import::ImportVerdict::Impossible), 0);
}

#[test]
fn differences_of_paths_and_redirects_are_said() {
    let rules = [("a.example".to_owned(), vec![("/a(/|$)(.*)".to_owned(), "number: 80")])];
    let prefix = "nginx.ingress.kubernetes.io";
    for annotation in ["rewrite-target: /$2", "permanent-redirect: 'https://b.example/x'"] {
        let (_, result) = objects(&ingress(&format!("{prefix}/{annotation}"), "[]", &rules), "gateway-says");
        assert_eq!(result.count(import::ImportVerdict::Differs), 1, "{annotation}");
    }
}
