//! Checks that requests which another server refuses are refused after the import too, where handlers change
//! paths or matchers ignore case: the configuration is asked which route answers a request.

use super::guards::{Guard, check};

pub(super) fn routes(routes: &[&str]) -> String {
    format!(
        "{{\"apps\": {{\"http\": {{\"servers\": {{\"a\": {{\"listen\": [\":8080\"],\n\"routes\": [{}]}}}}}}}}}}",
        routes.join(",\n")
    )
}

pub(super) const FILES: &str = "{\"handle\": [{\"handler\": \"file_server\", \"root\": \"/srv/www\"}]}";

pub(super) fn denied(matcher: &str) -> String {
    format!(
        "{{\"match\": [{{{matcher}}}], \"handle\": [{{\"handler\": \"static_response\", \"status_code\": 403}}]}}"
    )
}

pub(super) fn rewrite(what: &str) -> String {
    format!("{{\"handle\": [{{\"handler\": \"rewrite\", {what}}}]}}")
}

pub(super) fn within(matcher: &str, inner: &[&str]) -> String {
    format!(
        "{{\"group\": \"g\", \"match\": [{{{matcher}}}], \"handle\": [{{\"handler\": \"subroute\", \"routes\": [{}]}}]}}",
        inner.join(", ")
    )
}

pub(super) fn tries(file: &str) -> String {
    format!(
        "{{\"match\": [{{\"file\": {{{file}}}}}], \"handle\": [{{\"handler\": \"rewrite\", \"uri\": \"{{http.matchers.file.relative}}\"}}]}}"
    )
}

const ADMIN: &str = "\"path\": [\"/admin*\"]";
pub(super) const CLOSED: &[&str] = &["respond = 403", "CHECK guarded.json:"];
pub(super) const SERVED: &[&str] = &["files ="];

#[test]
fn caddy_matchers_look_at_changed_paths() {
    let strip = rewrite("\"strip_path_prefix\": \"/s\"");
    let sub = rewrite("\"uri\": \"/sub{http.request.uri}\"");
    let login = "{\"match\": [{\"path\": [\"/admin*\"]}], \"handle\": [{\"handler\": \"authentication\", \"providers\": {}}]}";
    let guards: Vec<Guard> = vec![
        (
            "a refusal within handle_path",
            routes(&[&within("\"path\": [\"/s/*\"]", &[&strip, &denied(ADMIN), FILES])]),
            &["path = \"~* ^/s/admin\"\nrespond = { status = 403 }", "files ="],
            &[],
        ),
        (
            "passwords within handle_path",
            routes(&[&within("\"path\": [\"/s/*\"]", &[&strip, login, FILES])]),
            &["path = \"~* ^/s/admin\"\nrespond = 403", "files ="],
            &[],
        ),
        (
            "a refusal after a prefix was removed",
            routes(&[&strip, &denied(ADMIN), FILES]),
            &["path = [\"~* ^/admin\", \"~* ^/s/admin\"]\nrespond = { status = 403 }", "files ="],
            &[],
        ),
        (
            "a refusal after a prefix was added",
            routes(&[&sub, &denied("\"path\": [\"/sub/admin*\"]"), FILES]),
            &["path = \"~* ^/admin\"\nrespond = { status = 403 }", "rewrite = \"/sub$uri\""],
            &["^/sub/admin"],
        ),
        (
            "a refusal of the path that a prefix was added to",
            routes(&[&sub, &denied("\"path\": [\"/sub*\"]"), FILES]),
            &["[[site.route]]\nrespond = { status = 403 }"],
            SERVED,
        ),
        (
            "an expression after a change",
            routes(&[&sub, &denied("\"path_regexp\": {\"pattern\": \"^/sub/admin\"}"), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "the exception of a refusal after a change",
            routes(&[&sub, &denied("\"not\": [{\"path\": [\"/sub/pub/*\"]}]"), FILES]),
            &["not = { path = \"~* ^/pub/\" }\nrespond = { status = 403 }"],
            &["/sub/pub"],
        ),
        (
            "two changes",
            routes(&[&sub, &rewrite("\"uri\": \"/x{http.request.uri}\""), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "a change with an unknown variable",
            routes(&[&rewrite("\"uri\": \"/x/{http.request.uuid}\""), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "replaced parts of paths",
            routes(&[&rewrite("\"uri_substring\": [{\"find\": \"/x\", \"replace\": \"/y\"}]"), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "a change within a route block",
            routes(&[
                &format!("{{\"handle\": [{{\"handler\": \"subroute\", \"routes\": [{sub}]}}]}}"),
                FILES,
            ]),
            &["rewrite = \"/sub$uri\""],
            &[],
        ),
        (
            "a change of requests that another route answers",
            routes(&[&within("\"path\": [\"/s/*\"]", &[&strip, &denied(ADMIN)]), FILES]),
            &["path = \"~* ^/s/\"\nrespond = 403", "CHECK guarded.json:"],
            &[],
        ),
        (
            "the path that an upstream server gets",
            routes(&[
                "{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:3000\"}], \"rewrite\": {\"uri\": \"/public{http.request.uri}\"}}]}",
            ]),
            &["rewrite = \"/public$uri\""],
            &[],
        ),
        (
            "the method that an upstream server gets",
            routes(&[
                "{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:3000\"}], \"rewrite\": {\"method\": \"GET\"}}]}",
            ]),
            CLOSED,
            &["proxy ="],
        ),
        (
            "a header field that was changed before",
            routes(&[
                "{\"handle\": [{\"handler\": \"headers\", \"request\": {\"delete\": [\"X-Trusted\"]}}]}",
                &denied("\"not\": [{\"header\": {\"X-Trusted\": [\"yes\"]}}]"),
                FILES,
            ]),
            CLOSED,
            SERVED,
        ),
        (
            "a query that was changed before",
            routes(&[&rewrite("\"uri\": \"/?a=b\""), &denied("\"query\": {\"a\": [\"b\"]}"), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "hidden files after a change",
            routes(&[
                &sub,
                "{\"handle\": [{\"handler\": \"file_server\", \"root\": \"/srv/www\", \"hide\": [\"/srv/www/sub/private\"]}]}",
            ]),
            CLOSED,
            SERVED,
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_files_are_found_as_before_or_closed() {
    let path = "{http.request.uri.path}";
    let guards: Vec<Guard> = vec![
        (
            "try_files below a folder",
            routes(&[&tries(&format!("\"try_files\": [\"/pub{path}\", \"=404\"]")), FILES]),
            &["path = \"*/\"\nrespond = 404", "try = [\"/pub$path\"]"],
            &["fallback"],
        ),
        (
            "try_files with folders and a page for the rest",
            routes(&[&tries(&format!("\"try_files\": [\"{path}\", \"{path}/\", \"/index.html\"]")), FILES]),
            &["fallback = \"/index.html\"\nfallback_folders = false"],
            &["respond"],
        ),
        (
            "try_files before a server",
            routes(&[
                &tries(&format!("\"try_files\": [\"{path}\", \"/index.html\"]")),
                "{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:1\"}]}]}",
            ]),
            CLOSED,
            &["proxy ="],
        ),
        (
            "a response behind try_files that needs a file",
            routes(&[
                &tries(&format!("\"try_files\": [\"{path}\", \"=404\"]")),
                "{\"handle\": [{\"handler\": \"static_response\", \"status_code\": 200}]}",
            ]),
            CLOSED,
            &["status = 200"],
        ),
        (
            "a matcher for paths behind try_files",
            routes(&[
                &tries(&format!("\"try_files\": [\"{path}\", \"/index.html\"]")),
                "{\"match\": [{\"path\": [\"/a/*\"]}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 200}]}",
                FILES,
            ]),
            &["path = \"~* ^/a/\"\nrespond = 403"],
            &["status = 200"],
        ),
        (
            "try_files that leaves the path as it is",
            routes(&[&tries(&format!("\"try_files\": [\"/pub{path}\"]")), FILES]),
            &["try = [\"/pub$path\", \"$path\"]"],
            &["fallback", "respond"],
        ),
        (
            "a page for all requests",
            routes(&[&tries("\"try_files\": [\"/foo.html\"]"), FILES]),
            &["rewrite = \"/foo.html\""],
            &["fallback"],
        ),
        (
            "an error",
            routes(&[&tries(&format!("\"try_files\": [\"{path}\", \"=403\"]")), FILES]),
            CLOSED,
            SERVED,
        ),
        (
            "the smallest file",
            routes(&[
                &tries(&format!("\"try_policy\": \"smallest_size\", \"try_files\": [\"{path}\", \"/a\"]")),
                FILES,
            ]),
            CLOSED,
            SERVED,
        ),
        (
            "another folder",
            routes(&[
                "{\"handle\": [{\"handler\": \"vars\", \"root\": \"/srv/www\"}]}",
                &tries(&format!("\"root\": \"/srv/other\", \"try_files\": [\"{path}\", \"/a\"]")),
                FILES,
            ]),
            CLOSED,
            SERVED,
        ),
        (
            "a refusal of the page for missing files",
            routes(&[
                &tries(&format!("\"try_files\": [\"{path}\", \"/index.html\"]")),
                &denied("\"path\": [\"*.html\"]"),
                FILES,
            ]),
            CLOSED,
            SERVED,
        ),
        (
            "a refusal of a folder, with a page for missing files",
            routes(&[
                &tries(&format!("\"try_files\": [\"{path}\", \"/index.html\"]")),
                &denied(ADMIN),
                FILES,
            ]),
            &["path = \"~* ^/admin\"\nrespond = { status = 403 }", "fallback = \"/index.html\""],
            &[],
        ),
        (
            "a status of files",
            routes(&[
                "{\"handle\": [{\"handler\": \"file_server\", \"root\": \"/srv/www\", \"status_code\": 403}]}",
            ]),
            CLOSED,
            SERVED,
        ),
        (
            "another file system",
            routes(&["{\"handle\": [{\"handler\": \"file_server\", \"fs\": \"embedded\"}]}"]),
            CLOSED,
            SERVED,
        ),
        (
            "a status that is a variable",
            routes(&[
                "{\"handle\": [{\"handler\": \"static_response\", \"status_code\": \"{http.vars.status}\"}]}",
            ]),
            CLOSED,
            &["status = 200"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn routes_behind_closed_ones_are_comments() {
    let login = "{\"handle\": [{\"handler\": \"authentication\", \"providers\": {}}]}";
    let guards: Vec<Guard> = vec![(
        "passwords of all paths",
        routes(&[login, &denied(ADMIN), FILES]),
        &[
            "respond = 403\n\n# Not reached, because the route above is closed:\n# [[site.route]]\n# path",
            "# files = { root = \"/srv/www\"",
        ],
        &["\nfiles ="],
    )];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_conditions_within_others_ignore_case() {
    let guards: Vec<Guard> = vec![(
        "a path within a path",
        routes(&[&within("\"path\": [\"/a*/*\"]", &[&denied("\"path\": [\"*.php\"]"), FILES])]),
        &["not = { not = { path = '~* \\.php$' } }"],
        &["\"*.php\""],
    )];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_hosts_have_the_routes_of_their_patterns() {
    let admin = denied("\"host\": [\"a.test\"], \"path\": [\"/admin*\"]");
    let all = denied("\"host\": [\"*.test\"], \"path\": [\"/secret*\"]");
    let files = FILES.replacen('{', "{\"match\": [{\"host\": [\"A.test\", \"*.test\"]}], ", 1);
    let guards: Vec<Guard> = vec![(
        "a host and the pattern that it matches",
        routes(&[&admin, &all, &files]),
        &[
            "hosts = [\"a.test\"]\ntls = \"auto\"\n\n[[site.route]]\npath = \"~* ^/admin\"\nrespond = { status = 403 }\n\n[[site.route]]\npath = \"~* ^/secret\"\nrespond = { status = 403 }\n\n[[site.route]]\nfiles",
            "header = { Host = \"~* [^.:][.][^.:]+[.]test[.]?(:|$)\" }\nrespond = 403\n\n[[site.route]]\npath = \"~* ^/secret\"",
        ],
        &["A.test"],
    )];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

/// Returns an Ingress for `a.example.com` with these annotations and paths: text, type and service.
pub(super) fn ingress(annotations: &[(&str, &str)], paths: &[(&str, &str, &str)]) -> String {
    let annotations: Vec<String> = annotations
        .iter()
        .map(|(name, value)| format!("\"nginx.ingress.kubernetes.io/{name}\": \"{value}\""))
        .collect();
    let paths: Vec<String> = paths
        .iter()
        .map(|(path, kind, service)| {
            format!("{{\"path\": \"{path}\", \"pathType\": \"{kind}\", \"backend\": {{\"service\": {{\"name\": \"{service}\", \"port\": {{\"number\": 80}}}}}}}}")
        })
        .collect();
    format!(
        "{{\"kind\": \"Ingress\", \"metadata\": {{\"namespace\": \"n\", \"annotations\": {{\n{}\n}}}}, \"spec\": {{\"rules\": [{{\"host\": \"a.example.com\", \"http\": {{\"paths\": [{}]}}}}]}}}}",
        annotations.join(",\n"),
        paths.join(", ")
    )
}

pub(super) fn list(ingresses: &[String]) -> String {
    format!("{{\"items\": [{}]}}", ingresses.join(",\n"))
}

#[test]
fn ingress_paths_are_rewritten_or_closed() {
    let guards: Vec<Guard> = vec![
        (
            "a target without groups",
            ingress(&[("rewrite-target", "/public")], &[("/api", "Prefix", "b")]),
            &["path = \"~* ^/api\"", "rewrite = \"/public\"", "http://b.n.svc:80"],
            &["respond = 403"],
        ),
        (
            "a group that the path does not have",
            ingress(
                &[("use-regex", "true"), ("rewrite-target", "/$2")],
                &[("/api", "ImplementationSpecific", "b")],
            ),
            &["path = \"~* ^/api\"\nrespond = 403", "CHECK guarded.json:3:"],
            &["proxy"],
        ),
        (
            "a target that is a variable",
            ingress(&[("rewrite-target", "/$http_x")], &[("/api", "Prefix", "b")]),
            &["respond = 403", "CHECK guarded.json:2:"],
            &["proxy"],
        ),
        (
            "an expression that is not possible",
            ingress(
                &[("use-regex", "true")],
                &[("/a(?=b)c", "ImplementationSpecific", "b"), ("/", "Prefix", "all")],
            ),
            &["respond = 403", "CHECK guarded.json:"],
            &["http://b.n.svc:80"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::ingress::import(path).unwrap());
}

#[test]
fn ingress_paths_of_a_host_with_expressions_are_expressions() {
    let guards: Vec<Guard> = vec![
        (
            "use-regex of another Ingress",
            list(&[
                ingress(&[("use-regex", "true")], &[("/adm", "ImplementationSpecific", "a")]),
                ingress(&[("whitelist-source-range", "10.0.0.0/8")], &[("/admin-private", "Prefix", "b")]),
            ]),
            &["path = \"~* ^/admin-private\"", "path = \"~* ^/adm\""],
            &["\"/admin-private"],
        ),
        (
            "rewrite-target of another Ingress",
            list(&[
                ingress(&[("rewrite-target", "/v1/$2")], &[("/api(/|$)(.*)", "ImplementationSpecific", "a")]),
                ingress(&[], &[("/exact", "Exact", "b"), ("/exact/longer", "Prefix", "c")]),
            ]),
            &[
                "path = \"~* ^/api(/|$)(.*)\"",
                "rewrite = \"/v1/$2\"",
                "path = \"~* ^/exact/longer\"",
                "path = \"~* ^/exact\"",
            ],
            &["\"/exact\"", "strip_prefix"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::ingress::import(path).unwrap());
}

#[test]
fn reports_do_not_call_translated_what_is_not_written() {
    let closed = ingress(
        &[
            ("whitelist-source-range", "10.0.0.0/8"),
            ("auth-url", "http://auth.svc/check"),
            ("configuration-snippet", "deny all;"),
        ],
        &[("/", "Prefix", "b")],
    );
    let plain =
        ingress(&[], &[("/", "Prefix", "c")]).replacen("\"annotations\": {\n\n}", "\"annotations\": {}", 1);
    let other = "{\"kind\": \"HTTPRoute\", \"spec\": {\"hostnames\": [\"b.example.com\"]}}".to_owned();
    let folder = std::env::temp_dir().join(format!("komainu-import-reports-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("all.json");
    std::fs::write(&path, list(&[closed, plain, other])).unwrap();
    let imported = import::ingress::import(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    for (part, expected) in [
        ("whitelist-source-range", import::ImportVerdict::Differs),
        ("auth-url", import::ImportVerdict::Differs),
        ("configuration-snippet", import::ImportVerdict::Impossible),
        ("annotations = {}", import::ImportVerdict::Translated),
        ("spec.hostnames", import::ImportVerdict::Impossible),
    ] {
        let found = imported.remarks.iter().find(|remark| remark.directive.contains(part));
        assert_eq!(found.map(|remark| remark.verdict), Some(expected), "{part}\n{}", imported.report());
    }
}
