//! Checks that directives which restrict access are translated, or that everything they protected is closed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use config::Config;
use import::ImportResult;

/// A test case: name of the directive, source, expected parts and forbidden parts of the configuration.
pub(super) type Guard = (&'static str, String, &'static [&'static str], &'static [&'static str]);

struct Source(PathBuf);

impl Source {
    fn new(name: &str, text: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("komainu-import-guards-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.0.parent().map(std::fs::remove_dir_all);
    }
}

pub(super) fn check(guards: &[Guard], file: &str, import: impl Fn(&Path) -> ImportResult) {
    let mut faults = Vec::new();
    for (name, text, has, has_not) in guards {
        let source = Source::new(file, text);
        let toml = import(&source.0).toml;
        if let Err(report) = Config::parse(&toml, "komainu.toml", Path::new("/etc/komainu")) {
            faults.push(format!("{name}: {}", report.render(false)));
        }
        // Routes behind closed ones are comments.
        let active: String =
            toml.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        let missing =
            has.iter().filter(|one| !toml.contains(**one)).map(|one| format!("{name}: not there: {one}"));
        let open =
            has_not.iter().filter(|one| active.contains(**one)).map(|one| format!("{name}: there: {one}"));
        let found: Vec<String> = missing.chain(open).collect();
        if !found.is_empty() {
            faults.push(format!("{}\n{toml}", found.join("\n")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n----\n"));
}

/// Returns a Caddy configuration with a server at an address, and `more` in addition to its routes.
fn caddy_server(listen: &str, more: &str, routes: &str) -> String {
    format!(
        "{{\"apps\": {{\"http\": {{\"servers\": {{\"a\": {{\"listen\": [\"{listen}\"],\n{more}\n\"routes\": [{routes}]}}}}}}}}}}"
    )
}

const SHOP: &str = "{\"match\": [{\"host\": [\"shop.example.com\"]}], \"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:3000\"}]}]}";
const PROXY: &str =
    "{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:3000\"}]}]}";
const OPEN: &str = "proxy = { to = \"http://127.0.0.1:3000\"";

fn caddy_policy(client: &str) -> String {
    format!(
        "\"tls_connection_policies\": [{{\"match\": {{\"sni\": [\"shop.example.com\"]}}, \"client_authentication\": {client}}}, {{}}],"
    )
}

fn caddy_routes(before: &str) -> String {
    caddy_server(":8080", "", &format!("{before}, {PROXY}"))
}

#[test]
fn caddy_tls_restrictions_are_kept_or_closed() {
    let client = |client: &str| caddy_server(":443", &caddy_policy(client), SHOP);
    let guards: Vec<Guard> = vec![
        (
            "client certificates of files",
            client("{\"mode\": \"require_and_verify\", \"ca\": {\"provider\": \"file\", \"pem_files\": [\"/etc/ca.pem\"]}}"),
            &["client = { ca = \"/etc/ca.pem\" }", OPEN],
            &[],
        ),
        (
            "client certificates, by the older name",
            client("{\"trusted_ca_certs_pem_files\": [\"/etc/ca.pem\"], \"mode\": \"verify_if_given\"}"),
            &["client = { ca = \"/etc/ca.pem\", required = false }", OPEN],
            &[],
        ),
        (
            "client certificates of an authority in the configuration",
            client("{\"mode\": \"require_and_verify\", \"ca\": {\"provider\": \"inline\", \"trusted_ca_certs\": [\"MII=\"]}}"),
            &["respond = 403", "CHECK guarded.json:2:"],
            &["\n[[site.route]]\nproxy"],
        ),
        ("client certificates that are not verified", client("{\"mode\": \"require\"}"), &["respond = 403"], &["\n[[site.route]]\nproxy"]),
        (
            "leaf certificates",
            client("{\"mode\": \"require_and_verify\", \"trusted_leaf_certs\": [\"MII=\"]}"),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "a policy for the second of two hosts",
            caddy_server(
                ":443",
                "\"tls_connection_policies\": [{\"match\": {\"sni\": [\"a.example.com\"]}}, {\"client_authentication\": {\"mode\": \"require_and_verify\", \"ca\": {\"provider\": \"file\", \"pem_files\": [\"/etc/ca.pem\"]}}}],",
                &SHOP.replacen("[\"shop", "[\"a.example.com\", \"shop", 1),
            ),
            &["client = { ca = \"/etc/ca.pem\" }"],
            &[],
        ),
        (
            "a policy for a name below a wildcard",
            client("{\"mode\": \"require_and_verify\", \"ca\": {\"provider\": \"file\", \"pem_files\": [\"/etc/ca.pem\"]}}")
                .replace("[{\"host\": [\"shop.", "[{\"host\": [\"*."),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "policies that are for no host of the site",
            caddy_server(":443", "\"tls_connection_policies\": [{\"match\": {\"sni\": [\"b.example.com\"]}}],", SHOP),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "a policy behind one with a name",
            caddy_server(
                ":443",
                "\"tls_connection_policies\": [{\"match\": {\"sni\": [\"a.example.com\"]}}, {\"client_authentication\": {\"mode\": \"require\"}}],",
                PROXY,
            ),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "a host at another port",
            caddy_server(":23152", "", SHOP),
            &["address = \":23152\", tls = true", "tls = \"auto\""],
            &["\":23152\"]"],
        ),
        (
            "a policy of TLS at another port",
            caddy_server(":8443", "\"tls_connection_policies\": [{}],", PROXY),
            &["address = \":8443\", tls = true"],
            &["tls = false"],
        ),
        (
            "another port without HTTPS",
            caddy_server(":8080", "\"automatic_https\": {\"disable\": true},", SHOP),
            &["listen = [\":8080\"]"],
            &["tls = true", "tls = \"auto\""],
        ),
        (
            "an internal authority",
            caddy_server(":443", "", SHOP).replacen(
                "\"apps\": {",
                "\"apps\": {\"tls\": {\"automation\": {\"policies\": [{\"subjects\": [\"shop.example.com\"], \"issuers\": [{\"module\": \"internal\"}]}]}},",
                1,
            ),
            &["certificate = \"/etc/komainu/tls/shop.example.com.pem\"", "CHECK"],
            &["\"auto\""],
        ),
        (
            "certificates of files",
            caddy_server(":443", "", SHOP).replacen(
                "\"apps\": {",
                "\"apps\": {\"tls\": {\"certificates\": {\"load_files\": [{\"certificate\": \"/c.pem\", \"key\": \"/k.pem\"}]}},",
                1,
            ),
            &["tls = { certificate = \"/c.pem\", key = \"/k.pem\" }"],
            &["\"auto\""],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_client_restrictions_are_kept_or_closed() {
    let trusts = "\"trusted_proxies\": {\"source\": \"static\", \"ranges\": [\"10.0.0.0/8\"]},";
    let denies = |matcher: &str| {
        format!(
            "{{\"match\": [{{\"{matcher}\": {{\"ranges\": [\"192.0.2.1\"]}}}}], \"handle\": [{{\"handler\": \"static_response\", \"status_code\": 404}}]}}, {PROXY}"
        )
    };
    let of = |more: &str, matcher: &str| caddy_server(":8080", more, &denies(matcher));
    let wrapper = |rest: &str| {
        caddy_server(
            ":8080",
            &format!("\"listener_wrappers\": [{{\"wrapper\": \"proxy_protocol\"{rest}}}],"),
            SHOP,
        )
    };
    let guards: Vec<Guard> = vec![
        (
            "a client that trusted proxies name",
            of(&format!("{trusts} \"trusted_proxies_strict\": 1,"), "client_ip"),
            &["trusted_proxies = [\"10.0.0.0/8\"]", "client = \"192.0.2.1\"\nrespond = { status = 404 }"],
            &[],
        ),
        (
            "the first address that proxies pass on",
            of(trusts, "client_ip"),
            &["trusted_proxies = [\"10.0.0.0/8\"]", "respond = 403"],
            &["client =", "\n[[site.route]]\nproxy"],
        ),
        (
            "the proxy itself where the first address counts",
            of(trusts, "remote_ip"),
            &["respond = 403"],
            &["client =", "\n[[site.route]]\nproxy"],
        ),
        (
            "the proxy itself beside a list of trusted ones",
            of(&format!("{trusts} \"trusted_proxies_strict\": 1,"), "remote_ip"),
            &["respond = 403"],
            &["client ="],
        ),
        (
            "proxies that a module names",
            of("\"trusted_proxies\": {\"source\": \"cloudflare\"},", "client_ip"),
            &["respond = 403"],
            &["client =", "trusted_proxies ="],
        ),
        (
            "a client in another field",
            of(&format!("{trusts} \"client_ip_headers\": [\"CF-Connecting-IP\"],"), "client_ip"),
            &["respond = 403"],
            &["client =", "trusted_proxies ="],
        ),
        (
            "no proxies",
            of("", "client_ip"),
            &["client = \"192.0.2.1\"\nrespond = { status = 404 }"],
            &["trusted_proxies"],
        ),
        (
            "the PROXY protocol of a network",
            wrapper(", \"allow\": [\"10.0.0.0/8\"]"),
            &["proxy_protocol = \"10.0.0.0/8\"", OPEN],
            &[],
        ),
        (
            "the PROXY protocol of anybody",
            wrapper(""),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy", "proxy_protocol ="],
        ),
        (
            "the PROXY protocol of all but some",
            wrapper(", \"allow\": [\"10.0.0.0/8\"], \"deny\": [\"10.1.0.0/16\"]"),
            &["respond = 403"],
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "errors that are handled",
            caddy_server(
                ":8080",
                "\"errors\": {\"routes\": [{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:4000\"}]}]}]},",
                SHOP,
            ),
            &["CHECK guarded.json:", OPEN],
            &["4000"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_servers_keep_their_addresses() {
    let text = format!(
        "{{\"apps\": {{\"http\": {{\"servers\": {{\"a\": {{\"listen\": [\":8080\"], \"routes\": [{{\"handle\": [{{\"handler\": \"file_server\", \"root\": \"/srv/www\"}}]}}]}}, \"b\": {{\"listen\": [\"127.0.0.1:9000\"], \"routes\": [{PROXY}]}}}}}}}}}}"
    );
    let guards: Vec<Guard> = vec![(
        "a server at loopback",
        text,
        &["[[site]]\nlisten = \"127.0.0.1:9000\""],
        &["listen = [\":8080\", \"127"],
    )];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn caddy_route_restrictions_are_kept_or_closed() {
    let closed: &[&str] = &["respond = 403", "CHECK guarded.json:"];
    let guards: Vec<Guard> = vec![
        (
            "the case of paths",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/admin/*\", \"*.bak\"]}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}",
            ),
            &["path = [\"~* ^/admin/\", '~* \\.bak$']", "respond = { status = 403 }"],
            &[],
        ),
        (
            "a prefix of longer words",
            caddy_routes(
                "{\"handle\": [{\"handler\": \"rewrite\", \"strip_path_prefix\": \"/api\"}]}, {\"match\": [{\"path\": [\"/api-internal/*\"]}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}",
            ),
            &["path = \"~* ^/api[^/]\"\nrespond = 403"],
            &[],
        ),
        (
            "a prefix that a pattern cuts",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/s*\"]}], \"handle\": [{\"handler\": \"subroute\", \"routes\": [{\"handle\": [{\"handler\": \"rewrite\", \"strip_path_prefix\": \"/s\"}]}, {\"match\": [{\"path\": [\"/ecret/*\"]}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}]}]}",
            ),
            &["path = \"~* ^/s[^/]\"\nrespond = 403"],
            &[],
        ),
        (
            "a prefix of whole segments",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/api/*\"]}], \"handle\": [{\"handler\": \"rewrite\", \"strip_path_prefix\": \"/api\"}]}",
            ),
            &[],
            &["[^/]"],
        ),
        (
            "names of several labels",
            caddy_server(
                ":8080",
                "",
                "{\"match\": [{\"host\": [\"*.b.test\", \"x.y.b.test\"]}], \"handle\": [{\"handler\": \"file_server\", \"root\": \"/srv\"}]}, {\"handle\": [{\"handler\": \"static_response\", \"status_code\": 403}]}",
            ),
            &[
                "header = { Host = '~* [^.:][.][^.:]+[.]b\\.test[.]?(:|$)' }",
                "not = { host = [\"x.y.b.test\"] }",
                "header = { Host = \"~ [.](:|$)\" }\nrespond = 403",
            ],
            &[],
        ),
        (
            "passwords",
            caddy_routes(
                "{\"handle\": [{\"handler\": \"authentication\", \"providers\": {\"http_basic\": {\"accounts\": []}}}]}",
            ),
            closed,
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "an unknown handler",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/a/*\"]}], \"handle\": [{\"handler\": \"rate_limit\"}]}",
            ),
            &["path = \"~* ^/a/\"\nrespond = 403", "CHECK guarded.json:"],
            &[],
        ),
        (
            "a rewrite under a matcher",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/a/*\"]}], \"handle\": [{\"handler\": \"rewrite\", \"uri\": \"/b{http.request.uri}\"}]}",
            ),
            &["path = \"~* ^/a/\"\nrespond = 403", "CHECK guarded.json:"],
            &["rewrite ="],
        ),
        (
            "try_files under a path",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/a/*\"], \"file\": {\"try_files\": [\"{http.request.uri.path}\", \"/index.html\"]}}], \"handle\": [{\"handler\": \"rewrite\", \"uri\": \"{http.matchers.file.relative}\"}]}",
            ),
            closed,
            &["fallback ="],
        ),
        (
            "fields of requests that are removed",
            caddy_routes(
                "{\"handle\": [{\"handler\": \"headers\", \"request\": {\"delete\": [\"X-User\"]}}]}",
            ),
            &["request_headers = { remove = [\"X-User\"] }"],
            &[],
        ),
        (
            "a field of requests with an unknown variable",
            caddy_routes(
                "{\"handle\": [{\"handler\": \"headers\", \"request\": {\"set\": {\"X-User\": [\"{http.auth.user.id}\"]}}}]}",
            ),
            &["request_headers = { remove = [\"X-User\"] }", "CHECK guarded.json:"],
            &[],
        ),
        (
            "fields of responses under a matcher",
            caddy_routes(
                "{\"match\": [{\"path\": [\"/a/*\"]}], \"handle\": [{\"handler\": \"headers\", \"response\": {\"set\": {\"X-Frame-Options\": [\"DENY\"]}}}]}",
            ),
            &[
                "path = \"~* ^/a/\"\nproxy = { to = \"http://127.0.0.1:3000\" }\nresponse_headers = { set = { X-Frame-Options = \"DENY\" } }",
            ],
            &["respond"],
        ),
        (
            "a server that is asked, in another way",
            caddy_routes(
                "{\"handle\": [{\"handler\": \"reverse_proxy\", \"upstreams\": [{\"dial\": \"127.0.0.1:9000\"}], \"handle_response\": [{\"match\": {\"status_code\": [2]}}], \"rewrite\": {\"method\": \"GET\", \"uri\": \"/{http.request.host}\"}}]}",
            ),
            closed,
            &["127.0.0.1:9000\" }"],
        ),
        (
            "a redirect by an expression",
            caddy_routes(
                "{\"match\": [{\"expression\": \"!{http.request.cookie.a}\"}], \"handle\": [{\"handler\": \"static_response\", \"status_code\": 302, \"headers\": {\"Location\": [\"/login\"]}}]}",
            ),
            closed,
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "wrappers of listeners",
            caddy_server(":8080", "\"listener_wrappers\": [{\"wrapper\": \"blocklist\"}],", PROXY),
            closed,
            &["\n[[site.route]]\nproxy"],
        ),
        (
            "harmless handlers",
            caddy_routes("{\"handle\": [{\"handler\": \"tracing\", \"span\": \"a\"}]}"),
            &[OPEN],
            &["respond"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

fn ingress(annotations: &str, tls: &str) -> String {
    format!(
        "{{\"kind\": \"Ingress\", \"metadata\": {{\"namespace\": \"a\", \"annotations\": {{\n{annotations}\n}}}}, \"spec\": {{{tls} \"rules\": [{{\"host\": \"a.example.com\", \"http\": {{\"paths\": [{{\"path\": \"/\", \"pathType\": \"Prefix\", \"backend\": {{\"service\": {{\"name\": \"web\", \"port\": {{\"number\": 80}}}}}}}}]}}}}]}}}}"
    )
}

const WITH_TLS: &str = "\"tls\": [{\"hosts\": [\"a.example.com\"], \"secretName\": \"cert\"}],";

#[test]
fn ingress_restrictions_are_kept_or_closed() {
    let own = |name: &str, value: &str| format!("\"nginx.ingress.kubernetes.io/{name}\": \"{value}\"");
    let closed: &[&str] = &["respond = 403", "CHECK guarded.json:2:"];
    let open: &[&str] = &["\nproxy =", "[site.route.proxy]"];
    let mut guards: Vec<Guard> = Vec::new();
    for name in [
        "configuration-snippet",
        "server-snippet",
        "auth-snippet",
        "modsecurity-snippet",
        "auth-url",
        "auth-type",
        "auth-secret",
        "auth-tls-secret",
        "enable-modsecurity",
        "enable-owasp-core-rules",
        "ssl-passthrough",
        "auth-method",
        "unknown-thing",
        "auth-tls-match-cn",
    ] {
        let value = match name {
            "auth-url" => "http://auth.svc/$host",
            "enable-modsecurity" | "enable-owasp-core-rules" | "ssl-passthrough" => "true",
            _ => "deny all;",
        };
        guards.push((name, ingress(&own(name, value), ""), closed, open));
    }
    guards.push((
        "traefik",
        ingress("\"traefik.ingress.kubernetes.io/router.middlewares\": \"auth\"", ""),
        closed,
        open,
    ));
    guards.extend::<Vec<Guard>>(vec![
        (
            "client certificates",
            ingress(&own("auth-tls-secret", "a/ca"), WITH_TLS),
            &["client = { ca = \"/etc/komainu/tls/a/ca/ca.crt\" }", "http://web.a.svc:80"],
            &["respond"],
        ),
        (
            "optional client certificates",
            ingress(
                &[own("auth-tls-secret", "a/ca"), own("auth-tls-verify-client", "optional")].join(","),
                WITH_TLS,
            ),
            &["required = false", "ssl-client-verify = \"$tls_client_verify\""],
            &["respond"],
        ),
        (
            "client certificates that nobody verifies",
            ingress(
                &[own("auth-tls-secret", "a/ca"), own("auth-tls-verify-client", "optional_no_ca")].join(","),
                WITH_TLS,
            ),
            closed,
            open,
        ),
        (
            "a redirect without a certificate",
            ingress(&own("force-ssl-redirect", "true"), ""),
            &["tls = \"auto\""],
            &[],
        ),
        (
            "a snippet of fields",
            ingress(
                &own("configuration-snippet", "more_set_headers \\\"X-A: b\\\";\\nadd_header X-B c always;"),
                "",
            ),
            &["X-A = \"b\"", "X-B = \"c\"", "proxy ="],
            &["respond"],
        ),
        (
            "certificates of services",
            ingress(
                &[
                    own("backend-protocol", "HTTPS"),
                    own("proxy-ssl-verify", "on"),
                    own("proxy-ssl-secret", "a/up"),
                ]
                .join(","),
                "",
            ),
            &["ca = \"/etc/komainu/tls/a/up/ca.crt\""],
            &["verify = false"],
        ),
        (
            "errors that a service answers",
            ingress(&[own("custom-http-errors", "404,503"), own("default-backend", "pages")].join(","), ""),
            &["proxy =", "error_server", "http://pages.a.svc:80", "404"],
            &["respond"],
        ),
        (
            "harmless",
            ingress(
                &[
                    own("proxy-buffering", "on"),
                    own("custom-http-errors", "404"),
                    "\"meta.helm.sh/release-name\": \"a\"".to_owned(),
                ]
                .join(","),
                "",
            ),
            &["proxy ="],
            &["respond"],
        ),
    ]);
    let second = ingress("\"a\": \"b\"", WITH_TLS);
    let both = format!(
        "{{\"kind\": \"List\", \"items\": [{}, {second}]}}",
        ingress(&own("auth-tls-secret", "a/ca"), WITH_TLS)
    );
    guards.push(("client certificates of a host with two objects", both, &["client = { ca = "], &[]));
    check(&guards, "guarded.json", |path| import::ingress::import(path).unwrap());
    // Remarks on untranslated directives must not claim that these are not needed.
    for (name, text, ..) in &guards {
        let source = Source::new("remarks.json", text);
        for remark in import::ingress::import(&source.0).unwrap().remarks {
            let is_needless = remark.reasons.iter().any(|reason| reason.starts_with("not needed"));
            assert!(!is_needless || remark.verdict == import::ImportVerdict::Translated, "{name}: {remark}");
        }
    }
}

#[test]
fn fields_set_by_several_routes_become_a_snippet() {
    let route = |path: &str| {
        format!(
            "{{\"match\": [{{\"path\": [\"{path}\"]}}], \"handle\": [{{\"handler\": \"headers\", \"response\": {{\"set\": {{\"Content-Security-Policy\": [\"default-src 'self'; frame-ancestors 'none'\"]}}}}}}, {{\"handler\": \"file_server\", \"root\": \"/srv/www\"}}]}}"
        )
    };
    let routes = ["/a", "/b", "/c"].map(route).join(", ");
    let guards: Vec<Guard> = vec![(
        "a snippet",
        caddy_routes(&routes),
        &["[snippet.fields]\nresponse_headers = ", "use = \"fields\""],
        &["symlinks = \"on\" }\nresponse_headers"],
    )];
    check(&guards, "guarded.json", |path| import::caddy::import(path).unwrap());
}

#[test]
fn imported_configurations_have_no_unreachable_routes() {
    for format in ["caddy", "unit", "ingress"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format);
        for source in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if source.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            let text = std::fs::read_to_string(&source).unwrap();
            let (_, report) = Config::parse(&text, "komainu.toml", Path::new("/etc/komainu")).ok().unwrap();
            let shown = report.render(false);
            assert!(!shown.contains("never answers"), "{}:\n{shown}", source.display());
            assert!(!text.contains("= {}"), "{}: an empty table", source.display());
        }
    }
}
