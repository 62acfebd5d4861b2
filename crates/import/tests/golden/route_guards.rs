//! Checks that requests which Caddy refuses are refused after the import too, where routes are exclusive, are left out, or
//! ask for values that conditions of routes read differently.

use super::guards::{Guard, check};
use super::path_guards::{CLOSED, FILES, SERVED, denied, rewrite, routes, tries, within};

/// A route of files with these matchers.
fn files(matcher: &str, root: &str) -> String {
    format!(
        "{{\"match\": [{{{matcher}}}], \"handle\": [{{\"handler\": \"file_server\", \"root\": \"{root}\"}}]}}"
    )
}

/// A route with these matchers and a handler.
fn handled(matcher: &str, handler: &str) -> String {
    format!("{{\"match\": [{{{matcher}}}], \"handle\": [{{{handler}}}]}}")
}

const PRIVATE: &str = "\"path\": [\"/private/*\"]";
const PROGRAM: &str = "\"expression\": \"{http.request.uri.query} == 'p'\"";
const NOBODY: &str = "{\"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}";

#[test]
fn caddy_groups_enter_their_first_route_alone() {
    let refusal = denied("\"path\": [\"/private/none\"]");
    let all =
        format!("{{\"group\": \"g\", \"handle\": [{{\"handler\": \"subroute\", \"routes\": [{FILES}]}}]}}");
    let guards: Vec<Guard> = vec![
        (
            "requests that the first route does not answer",
            routes(&[&within(PRIVATE, &[&refusal]), &all]),
            &["respond = { status = 403 }", "not = { path = \"~* ^/private/\" }\nfiles ="],
            &[],
        ),
        (
            "requests that the first route only gives a field",
            routes(&[
                &within(
                    PRIVATE,
                    &[
                        "{\"handle\": [{\"handler\": \"headers\", \"response\": {\"set\": {\"X\": [\"y\"]}}}]}",
                    ],
                ),
                &all,
            ]),
            &["not = { path = \"~* ^/private/\" }\nfiles ="],
            &["[[site.route]]\nfiles ="],
        ),
        (
            "requests that the first route answers",
            routes(&[&within(PRIVATE, &[FILES]), &all]),
            &["path = \"~* ^/private/\"\nfiles =", "[[site.route]]\nfiles ="],
            &["not ="],
        ),
        (
            "a route of no group gets them",
            routes(&[&within(PRIVATE, &[&refusal]), FILES]),
            &["[[site.route]]\nfiles ="],
            &["not = { path = \"~* ^/private/\" }"],
        ),
        (
            "a group whose first route takes all",
            routes(&["{\"group\": \"g\", \"handle\": []}", &all]),
            &[],
            SERVED,
        ),
        (
            "the last route of those hosts",
            routes(&[
                "{\"match\": [{\"host\": [\"a.test\"]}], \"terminal\": true, \"handle\": [{\"handler\": \"subroute\", \"routes\": [{\"match\": [{\"path\": [\"/x*\"]}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}]}]}",
                FILES,
            ]),
            &[
                "path = \"~* ^/x\"\nrespond = { status = 403 }\n\n# Caddy answers these requests with an empty body.\n[[site.route]]\nrespond = 404",
            ],
            &[],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_hosts_within_hosts_are_those_of_both() {
    let host = |hosts: &str, inner: &[&str]| within(&format!("\"host\": [{hosts}]"), inner);
    let guards: Vec<Guard> = vec![
        (
            "one host of a pattern",
            routes(&[&host("\"*.test\"", &[&denied("\"host\": [\"a.test\"]"), FILES])]),
            &[
                "hosts = [\"a.test\"]\ntls = \"auto\"\n\n[[site.route]]\nrespond = { status = 403 }",
                "hosts = [\"*.test\"]",
            ],
            &[],
        ),
        (
            "a pattern within one host",
            routes(&[&host("\"a.test\"", &[&denied("\"host\": [\"*.test\"]"), FILES])]),
            &["hosts = [\"a.test\"]\ntls = \"auto\"\n\n[[site.route]]\nrespond = { status = 403 }"],
            &["*.test"],
        ),
        (
            "another host",
            routes(&[&host("\"a.test\"", &[&denied("\"host\": [\"b.test\"]"), FILES])]),
            &["hosts = [\"a.test\"]\ntls = \"auto\"\n\n[[site.route]]\nfiles"],
            &["b.test"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_routes_that_cannot_be_asked_for_are_closed() {
    let all = [
        ("the root of some requests", "\"handler\": \"vars\", \"root\": \"/srv/public\""),
        ("files for some requests", "\"handler\": \"file_server\", \"root\": \"/srv/public\""),
        (
            "a server for some requests",
            "\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:3000\"}]",
        ),
        ("a limit for some requests", "\"handler\": \"request_body\", \"max_size\": 1"),
        ("a field of some requests", "\"handler\": \"headers\", \"request\": {\"delete\": [\"X-Key\"]}"),
        ("a text for some requests", "\"handler\": \"static_response\", \"body\": \"closed\""),
        (
            "a route within one",
            "\"handler\": \"subroute\", \"routes\": [{\"handle\": [{\"handler\": \"file_server\", \"root\": \"/srv/public\"}]}]",
        ),
    ];
    let mut guards: Vec<Guard> = all
        .into_iter()
        .map(|(name, handler)| (name, routes(&[&handled(PROGRAM, handler), FILES]), CLOSED, SERVED))
        .collect();
    guards.push((
        "a field of some responses",
        routes(&[
            &handled(PROGRAM, "\"handler\": \"headers\", \"response\": {\"delete\": [\"Server\"]}"),
            FILES,
        ]),
        SERVED,
        &["respond = 403"],
    ));
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_matchers_mean_what_conditions_do_or_are_closed() {
    let only = |matcher: &str| routes(&[&files(matcher, "/srv/www"), NOBODY]);
    let but = |matcher: &str| routes(&[&denied(matcher), FILES]);
    let guards: Vec<Guard> = vec![
        (
            "a value like an expression",
            only("\"header\": {\"X-Key\": [\"~ .\"]}"),
            &["X-Key = '~ ^\\~ \\.$'"],
            &[],
        ),
        ("a star in a value", only("\"header\": {\"X-Key\": [\"a*b\"]}"), &["X-Key = '~ ^a\\*b$'"], &[]),
        ("a star at the end of a value", only("\"header\": {\"X-Key\": [\"a*\"]}"), &["X-Key = \"a*\""], &[]),
        (
            "several values",
            only("\"header\": {\"X-Key\": [\"a*\", \"~b\"]}"),
            &["X-Key = '~ ^a|^\\~b$'"],
            &[],
        ),
        (
            "a placeholder in a value",
            but("\"not\": [{\"header\": {\"X-Key\": [\"{env.KEY}\"]}}]"),
            CLOSED,
            SERVED,
        ),
        ("a star in a parameter", only("\"query\": {\"k\": [\"a*\"]}"), &["query = { k = '~ ^a\\*$' }"], &[]),
        ("a parameter", only("\"query\": {\"k\": [\"*\"]}"), &["query = { k = \"*\" }"], &[]),
        ("several parameters", but("\"query\": {\"k\": [\"a\"], \"l\": [\"b\"]}"), CLOSED, SERVED),
        (
            "a path and an expression",
            only("\"path\": [\"/a*\"], \"path_regexp\": {\"pattern\": \"^/(a|sub)/\"}"),
            &["path = \"~ ^/(a|sub)/\"\nnot = { not = { path = \"~* ^/a\" } }\nfiles ="],
            &[],
        ),
        (
            "a path and an expression, within `not`",
            but("\"not\": [{\"path\": [\"/pub/*\"], \"path_regexp\": {\"pattern\": \"x$\"}}]"),
            &["not = { path = \"~ x$\", not = { not = { path = \"~* ^/pub/\" } } }\nrespond"],
            &[],
        ),
        (
            "a path with dots and spaces behind it",
            but("\"path\": [\"/admin\"]"),
            &["path = \"~ [. ]$\"\nrespond = 403"],
            &[],
        ),
        (
            "a path with dots and spaces behind it, within `not`",
            but("\"not\": [{\"path\": [\"/pub\"]}]"),
            &["path = \"~ [. ]$\"\nrespond = 403"],
            &[],
        ),
        ("no parameter at all", but("\"not\": [{\"query\": {}}]"), CLOSED, SERVED),
        ("a parameter without values", but("\"not\": [{\"query\": {\"k\": []}}]"), CLOSED, SERVED),
        (
            "GET alone",
            but("\"not\": [{\"method\": [\"GET\"]}]"),
            &["not = { method = \"GET\", not = { method = \"HEAD\" } }\nrespond = { status = 403 }"],
            &[],
        ),
        ("a method in lower case", but("\"method\": [\"get\"]"), CLOSED, SERVED),
        (
            "not what is not",
            but("\"not\": [{\"not\": [{\"path\": [\"/pub/*\"]}]}]"),
            &["not = { not = { path = \"~* ^/pub/\" } }\nrespond = { status = 403 }"],
            &[],
        ),
        ("a set of characters", but("\"path\": [\"/[pq]rivate/*\"]"), CLOSED, SERVED),
        ("a star within a path", but("\"path\": [\"/a*n/*\"]"), &["path = \"~* ^/a[^/]*n/[^/]*$\""], &[]),
        ("a pattern of two labels", but("\"host\": [\"*.*.test\"]"), CLOSED, SERVED),
        ("two slashes in a path", but("\"path\": [\"//a/*\"]"), CLOSED, SERVED),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_files_in_place_of_missing_ones_meet_matchers_of_their_own_path() {
    let spa = tries("\"try_files\": [\"{http.request.uri.path}\", \"/index.html\"]");
    let guards: Vec<Guard> = vec![
        (
            "files of a folder alone",
            routes(&[&spa, &files("\"path\": [\"/admin/*\"]", "/srv/www"), NOBODY]),
            &["path = \"~* ^/admin/\"\nfiles ="],
            &["fallback"],
        ),
        (
            "all but a folder",
            routes(&[&spa, &denied("\"not\": [{\"path\": [\"/admin/*\"]}]"), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "a folder",
            routes(&[&spa, &denied("\"path\": [\"/admin/*\"]"), FILES]),
            &["path = \"~* ^/admin/\"\nrespond = { status = 403 }", "fallback = \"/index.html\""],
            &[],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_servers_that_decide_are_asked_or_the_route_is_closed() {
    let asked = |response: &str| {
        format!(
            "{{\"handle\": [{{\"handler\": \"reverse_proxy\", \"upstreams\": [{{\"dial\": \"127.0.0.1:9000\"}}], \"rewrite\": {{\"method\": \"GET\", \"uri\": \"/auth\"}}, \"handle_response\": [{response}]}}]}}"
        )
    };
    let fields = "{\"handle\": [{\"handler\": \"headers\", \"request\": {\"set\": {\"X-User\": [\"{http.reverse_proxy.header.X-User}\"]}}}]}";
    let refusal = NOBODY;
    let of = |matched: &str, inner: &str| asked(&format!("{{{matched}\"routes\": [{inner}]}}"));
    let success = "\"match\": {\"status_code\": [2]}, ";
    let ok = of(success, fields);
    let strip = rewrite("\"strip_path_prefix\": \"/s\"");
    let answered =
        handled("\"path\": [\"/private/none\"]", "\"handler\": \"static_response\", \"body\": \"a\"");
    let guards: Vec<Guard> = vec![
        (
            "a decision",
            routes(&[&ok, FILES]),
            &["auth = { ask = \"http://127.0.0.1:9000/auth\"", "files ="],
            &[],
        ),
        ("a refusal of those that it accepts", routes(&[&of(success, refusal), FILES]), CLOSED, SERVED),
        (
            "another status",
            routes(&[&of("\"match\": {\"status_code\": [404]}, ", fields), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "a field of the decision",
            routes(&[&of("\"match\": {\"headers\": {\"X-Ok\": [\"yes\"]}}, ", fields), FILES]),
            CLOSED,
            SERVED,
        ),
        ("all responses", routes(&[&of("", fields), FILES]), CLOSED, SERVED),
        ("a path that was changed before", routes(&[&strip, &ok, FILES]), CLOSED, SERVED),
        (
            "requests that the route does not answer",
            routes(&[&within(PRIVATE, &[&ok, &answered]), FILES]),
            &["path = \"~* ^/private/\"\nrespond = 403"],
            &[],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_scripts_without_files_do_not_open_the_other_files() {
    let path = "{http.request.uri.path}";
    let scripts = tries(&format!(
        "\"split_path\": [\".php\"], \"try_files\": [\"{path}\", \"{path}/index.php\", \"index.php\"]"
    ));
    let root = "{\"handle\": [{\"handler\": \"vars\", \"root\": \"/srv/www\"}]}";
    let fastcgi = handled(
        "\"path\": [\"*.php\"]",
        "\"handler\": \"reverse_proxy\", \"transport\": {\"protocol\": \"fastcgi\", \"split_path\": [\".php\"]}, \"upstreams\": [{\"dial\": \"127.0.0.1:9000\"}]",
    );
    let files = "{\"handle\": [{\"handler\": \"file_server\"}]}";
    let guards: Vec<Guard> = vec![
        (
            "scripts alone",
            routes(&[root, &scripts, &fastcgi]),
            &["respond = 403", "CHECK: ", "# php ="],
            SERVED,
        ),
        (
            "scripts beside files",
            routes(&[root, &scripts, &fastcgi, files]),
            &["php =", "files ="],
            &["respond"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}
