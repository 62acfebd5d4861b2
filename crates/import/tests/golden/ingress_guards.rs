//! Checks that requests which ingress-nginx refuses are refused after the import too, where several Ingresses have a host or
//! path, and where settings of the controller or annotations apply to more than one route.

use super::guards::{Guard, check};
use super::path_guards::{ingress, list};

const INTERN: (&str, &str) = ("whitelist-source-range", "10.0.0.0/8");

/// The same Ingress with the time when it was made.
fn made(at: &str, ingress: &str) -> String {
    let field = format!("{{\"creationTimestamp\": \"2025-01-0{at}T00:00:00Z\", \"namespace\"");
    ingress.replacen("{\"namespace\"", &field, 1)
}

fn all_of(guards: &[Guard]) {
    check(guards, "guarded.json", |path| import::ingress::import(path).unwrap());
}

#[test]
fn ingress_paths_of_no_type_are_prefixes_of_text() {
    let others = ingress(&[], &[("/", "Prefix", "all")]);
    all_of(&[
        (
            "a type of the controller's",
            list(&[ingress(&[INTERN], &[("/adm", "ImplementationSpecific", "a")]), others.clone()]),
            &["path = \"/adm*\"\nallow = [\"10.0.0.0/8\"]"],
            &[],
        ),
        (
            "no type",
            list(&[ingress(&[INTERN], &[("/adm", "", "a")]).replace("\"pathType\": \"\", ", ""), others]),
            &["path = \"/adm*\"\nallow = [\"10.0.0.0/8\"]"],
            &[],
        ),
        (
            "an exact path of a host with expressions",
            list(&[
                ingress(&[], &[("/admin", "Prefix", "a")]),
                ingress(&[INTERN], &[("/admin", "Exact", "b")]),
                ingress(&[("use-regex", "true")], &[("/x", "ImplementationSpecific", "c")]),
            ]),
            &["path = \"~* ^/admin/\"\nproxy", "path = \"~* ^/admin\"\nallow ="],
            &[],
        ),
    ]);
}

#[test]
fn ingress_limits_have_the_burst_of_their_multiplier() {
    let limited = |multiplier: &str| {
        ingress(&[("limit-rps", "5"), ("limit-burst-multiplier", multiplier)], &[("/", "Prefix", "a")])
    };
    all_of(&[
        ("the least", limited("1"), &["limit = { rate = \"5/s\", burst = 5, status = 503 }"], &[]),
        ("the default", limited("0"), &["limit = { rate = \"5/s\", burst = 25, status = 503 }"], &[]),
        ("no number", limited("x"), &["respond = 403", "CHECK guarded.json:"], &["http://a.n.svc:80"]),
    ]);
}

#[test]
fn ingress_canaries_alone_are_an_error() {
    let path = std::env::temp_dir().join(format!("komainu-canary-{}.json", std::process::id()));
    std::fs::write(&path, ingress(&[("canary", "true")], &[("/", "Prefix", "a")])).unwrap();
    let error = import::ingress::import(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("each Ingress in this file is a canary"), "{error}");
}

#[test]
fn ingress_paths_of_two_ingresses_are_those_of_the_older() {
    let open = ingress(&[], &[("/", "Prefix", "a")]);
    let guarded = ingress(&[INTERN], &[("/", "Prefix", "b")]);
    all_of(&[
        (
            "ages that are known",
            list(&[made("2", &open), made("1", &guarded)]),
            &["allow = [\"10.0.0.0/8\"]", "http://b.n.svc:80"],
            &["http://a.n.svc:80"],
        ),
        (
            "ages that are not known",
            list(&[open.clone(), guarded.clone()]),
            &["respond = 403", "CHECK guarded.json:"],
            &["http://a.n.svc:80", "http://b.n.svc:80"],
        ),
        (
            "with and without a slash at the end",
            list(&[ingress(&[INTERN], &[("/x", "Prefix", "a")]), ingress(&[], &[("/x/", "Prefix", "b")])]),
            &["respond = 403", "CHECK guarded.json:"],
            &["http://a.n.svc:80", "http://b.n.svc:80"],
        ),
        ("two equal ones", list(&[guarded.clone(), guarded]), &["http://b.n.svc:80"], &["respond"]),
    ]);
}

#[test]
fn ingress_networks_are_networks_or_the_route_is_closed() {
    let of = |name: &str, value: &str| ingress(&[(name, value)], &[("/", "Prefix", "a")]);
    all_of(&[
        (
            "an entry that is no network",
            of("whitelist-source-range", "10.0.0.0/8, intern"),
            &["respond = 403", "CHECK guarded.json:"],
            &["proxy", "allow"],
        ),
        (
            "bits that no address has",
            of("denylist-source-range", "10.0.0.0/33"),
            &["respond = 403"],
            &["proxy"],
        ),
        ("no entry", of("whitelist-source-range", ""), &["http://a.n.svc:80"], &["allow", "respond"]),
        (
            "addresses",
            of("whitelist-source-range", "10.0.0.1, ::1/128"),
            &["allow = [\"10.0.0.1\", \"::1/128\"]"],
            &[],
        ),
    ]);
}

#[test]
fn ingress_hosts_have_their_aliases_and_default_backends() {
    let default =
        "\"spec\": {\"defaultBackend\": {\"service\": {\"name\": \"d\", \"port\": {\"number\": 80}}}, ";
    let other_host = ingress(&[], &[("/", "Prefix", "c")]).replace("a.example.com", "c.example.com");
    all_of(&[
        (
            "an alias",
            list(&[
                ingress(
                    &[INTERN, ("server-alias", "b.example.com, C.example.com, ~x")],
                    &[("/", "Prefix", "a")],
                ),
                other_host,
            ]),
            &["hosts = [\"a.example.com\", \"b.example.com\"]", "hosts = [\"c.example.com\"]"],
            &[],
        ),
        (
            "the other paths of a host",
            ingress(&[INTERN], &[("/a", "Prefix", "a")]).replacen("\"spec\": {", default, 1),
            &["hosts = [\"a.example.com\"]\nallow = [\"10.0.0.0/8\"]\n", "http://d.n.svc:80"],
            &[],
        ),
    ]);
}

#[test]
fn settings_of_the_ingress_controller_close_all_hosts() {
    let of = |key: &str, value: &str| {
        let map = format!("{{\"kind\": \"ConfigMap\", \"data\": {{\"{key}\": \"{value}\"}}}}");
        list(&[ingress(&[], &[("/", "Prefix", "a")]), map])
    };
    all_of(&[
        ("networks", of("whitelist-source-range", "10.0.0.0/8"), &["respond = 403", "CHECK"], &["proxy"]),
        ("lines of nginx", of("server-snippet", "deny all;"), &["respond = 403", "CHECK"], &["proxy"]),
        ("a feature that is off", of("enable-modsecurity", "false"), &["proxy"], &["respond"]),
        ("a size", of("proxy-body-size", "8m"), &["proxy"], &["respond"]),
    ]);
}

#[test]
fn line_feeds_are_refused_where_paths_are_expressions() {
    let guarded =
        ingress(&[INTERN, ("use-regex", "true")], &[("/admin(/|$)(.*)", "ImplementationSpecific", "a")]);
    let asked = ingress(&[("auth-url", "http://asked.svc.cluster.local?code=200")], &[("/", "Prefix", "b")]);
    all_of(&[
        ("expressions", list(&[guarded]), &["path = '~ \\n'\nrespond = 404"], &[]),
        ("a URL without a path", list(&[asked]), &["http://asked.svc.cluster.local/?code=200"], &[r"'~ \n'"]),
    ]);
}
