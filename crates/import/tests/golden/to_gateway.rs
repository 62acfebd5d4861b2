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
