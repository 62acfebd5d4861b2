//! Request paths, as one table: routes, handlers and upstream servers agree on each.

use std::io::{Read, Write};

use crate::hosted;
use crate::hosted::{server, start};
use crate::origin::{Origin, ok};
use crate::rig::{Folder, Rig, eventually, listener, text};

/// Expected treatment of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Answered with 400.
    Refused,
    /// Answered by the route `/app/admin/*`.
    Admin,
    /// Both forms passed to handlers: decoded, and percent-encoded.
    As(&'static str, &'static str),
}
use Seen::{Admin, As, Refused};

/// Path as sent; expected treatment by default; and with `encoded_slashes = "keep"` and `merge_slashes =
/// false`.
const TABLE: &[(&str, Seen, Seen)] = &[
    ("/app/x", As("/app/x", "/app/x"), As("/app/x", "/app/x")),
    ("/app/admin/x", Admin, Admin),
    // Decoded once.
    ("/app/%61dmin/x", Admin, Admin),
    ("/%61pp/b%20c", As("/app/b c", "/%61pp/b%20c"), As("/app/b c", "/%61pp/b%20c")),
    ("/app/%2561dmin/x", As("/app/%61dmin/x", "/app/%2561dmin/x"), As("/app/%61dmin/x", "/app/%2561dmin/x")),
    ("/app/%252e%252e/x", As("/app/%2e%2e/x", "/app/%252e%252e/x"), As("/app/%2e%2e/x", "/app/%252e%252e/x")),
    ("/app/a%3Fb%23", As("/app/a?b#", "/app/a%3Fb%23"), As("/app/a?b#", "/app/a%3Fb%23")),
    // Encoded slashes and backslashes.
    ("/app/admin%2fx", Refused, As("/app/admin%2Fx", "/app/admin%2fx")),
    ("/app%2Fadmin/x", Refused, As("/app%2Fadmin/x", "/app%2Fadmin/x")),
    ("/app/admin%5Cx", Refused, As("/app/admin%5Cx", "/app/admin%5Cx")),
    ("/app/admin\\x", Refused, As("/app/admin%5Cx", "/app/admin%5Cx")),
    // A literal `%2F` after decoding.
    ("/app/a%252Fb", As("/app/a%2Fb", "/app/a%252Fb"), As("/app/a%252Fb", "/app/a%252Fb")),
    ("/app/a%25%32Fb", As("/app/a%2Fb", "/app/a%25%32Fb"), As("/app/a%252Fb", "/app/a%25%32Fb")),
    ("/app/a%25252Fb", As("/app/a%252Fb", "/app/a%25252Fb"), As("/app/a%25252Fb", "/app/a%25252Fb")),
    // Dot segments.
    ("/app/x/../admin/x", Admin, Admin),
    ("/app/x/%2e%2E/admin/x", Admin, Admin),
    ("/app/./admin/./x", Admin, Admin),
    ("/app/admin/../y%20z", As("/app/y z", "/app/y%20z"), As("/app/y z", "/app/y%20z")),
    ("/app/x/..%2fadmin/x", Refused, Refused),
    ("/app/x%2f..%2fadmin/x", Refused, Refused),
    ("/app/x/..%5cadmin/x", Refused, Refused),
    ("/app/x/..\\admin/x", Refused, Refused),
    ("/app/../../etc/passwd", Refused, Refused),
    // Parameters.
    ("/app/x/..;/admin/x", Refused, Refused),
    ("/app/x/%2e%2e%3b/admin/x", Refused, Refused),
    ("/app/.;a=1/admin/x", Refused, Refused),
    ("/app/s;id=1/a..", As("/app/s;id=1/a..", "/app/s;id=1/a.."), As("/app/s;id=1/a..", "/app/s;id=1/a..")),
    // Empty segments.
    ("/app//admin/x", Admin, As("/app//admin/x", "/app//admin/x")),
    ("//app/admin/x", Admin, Admin),
    ("//app//admin/x", Admin, As("//app//admin/x", "//app//admin/x")),
    ("/app//%61dmin/x", Admin, As("/app//admin/x", "/app//%61dmin/x")),
    ("/app//./admin/x", Admin, As("/app//admin/x", "/app//admin/x")),
    ("//app/x", As("//app/x", "//app/x"), As("//app/x", "//app/x")),
    ("/app/m///n", As("/app/m///n", "/app/m///n"), As("/app/m///n", "/app/m///n")),
    (
        "/app/https://a.test/b",
        As("/app/https://a.test/b", "/app/https://a.test/b"),
        As("/app/https://a.test/b", "/app/https://a.test/b"),
    ),
    ("//m///n//", As("//m///n//", "//m///n//"), As("//m///n//", "//m///n//")),
    // A `..` after an empty segment removes a different segment if slashes are merged first.
    ("/app/m//../n", As("/app/n", "/app/n"), As("/app/m/n", "/app/m/n")),
    ("/app/admin//../y", As("/app/y", "/app/y"), Admin),
    ("/app/m/..//n", As("/app//n", "/app//n"), As("/app//n", "/app//n")),
    ("/m/..//evil.test", As("/evil.test", "/evil.test"), As("/evil.test", "/evil.test")),
    // Bytes and escapes that are always invalid.
    ("/app/x%00", Refused, Refused),
    ("/app/%zz", Refused, Refused),
    ("/app/x%2", Refused, Refused),
    // Bytes that should have been percent-encoded.
    ("/app/caf\u{e9}", As("/app/caf\u{e9}", "/app/caf%C3%A9"), As("/app/caf\u{e9}", "/app/caf%C3%A9")),
    ("/app/a|b", As("/app/a|b", "/app/a%7Cb"), As("/app/a|b", "/app/a%7Cb")),
];

const PSGI: &str = "sub { my $e = shift; [200, [], [join ' -> ', @$e{qw(PATH_INFO REQUEST_URI)}]] }";
const RACK: &str = "run ->(e) { [200, {}, [e['PATH_INFO'] + ' -> ' + e['REQUEST_URI']]] }";
const WSGI: &str = "def app(environ, start_response):
    start_response('200 OK', [])
    return [environ['PATH_INFO'].encode('latin-1'), b' -> ', environ['REQUEST_URI'].encode('latin-1')]
";
const ASGI: &str = "async def app(scope, receive, send):
    if scope['type'] == 'lifespan':
        raise NotImplementedError
    body = scope['path'].encode() + b' -> ' + scope['raw_path'] + b'?' + scope['query_string']
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': body})
";
const NATIVE: &str = r#"
#include <komainu_handler.h>
#include <stdio.h>
static int handle(komainu_request *request, void *process, void *thread) {
    komainu_text path = komainu_part(request, KOMAINU_PATH), target = komainu_part(request, KOMAINU_TARGET);
    char body[1024];
    int len = snprintf(body, sizeof body, "%.*s -> %.*s", (int)path.len, path.text, (int)target.len, target.text);
    (void)process, (void)thread;
    return komainu_reply(request, 200, "text/plain", body, (size_t)len);
}
KOMAINU_HANDLER(.handle = handle)
"#;

/// Prints the variables of a CGI program.
const PROGRAM: &str = r#"#!/bin/sh
LC_ALL=C
body="$PATH_INFO -> $REQUEST_URI"
printf 'Content-Length: %s\n\n%s' "${#body}" "$body"
"#;

/// Starts a FastCGI, SCGI or uwsgi server that responds with two variables of the request.
fn variables(scheme: &'static str) -> String {
    let listener = listener();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = Vec::new();
            let mut piece = [0; 4096];
            // The HTTP fields follow the other variables.
            while !bytes.windows(9).any(|window| window == b"HTTP_HOST") {
                let len = stream.read(&mut piece).unwrap();
                assert!(len > 0, "{scheme} ends early");
                bytes.extend_from_slice(&piece[..len]);
            }
            let of = |name: &str| variable(&bytes, scheme, name);
            let body = [&of("PATH_INFO")[..], b" -> ", &of("REQUEST_URI")].concat();
            let head = format!("Content-Length: {}\r\n\r\n", body.len());
            let body = [head.as_bytes(), &body].concat();
            let record = |kind: u8, content: &[u8]| {
                [&[1, kind, 0, 1][..], &(content.len() as u16).to_be_bytes(), &[0, 0], content].concat()
            };
            let answer = match scheme {
                "fastcgi" => [record(6, &body), record(6, b""), record(3, &[0; 8])].concat(),
                _ => body,
            };
            stream.write_all(&answer).unwrap();
        }
    });
    url
}

/// Value of a variable in an encoded request.
fn variable(bytes: &[u8], scheme: &str, name: &str) -> Vec<u8> {
    let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    let value = &bytes[at + name.len()..];
    let len = match scheme {
        "fastcgi" => return value_of_fastcgi(bytes, at, name),
        "uwsgi" => usize::from(u16::from_le_bytes([value[0], value[1]])),
        _ => return value[1..].split(|&byte| byte == 0).next().unwrap().to_vec(),
    };
    value[2..2 + len].to_vec()
}

/// Value of a FastCGI variable shorter than 128 bytes: both lengths precede the name.
fn value_of_fastcgi(bytes: &[u8], at: usize, name: &str) -> Vec<u8> {
    let start = at + name.len();
    bytes[start..start + usize::from(bytes[at - 1])].to_vec()
}

/// Starts a server with a site for each kind of handler, with default settings and with everything kept
/// (`KIND.keep`).
fn everything(folder: Folder, origin: &Origin) -> Rig {
    folder.write("app.psgi", PSGI).write("config.ru", RACK).write("w.py", WSGI).write("a.py", ASGI);
    hosted::native(&folder, NATIVE);
    folder.write_program("show", PROGRAM);
    let mut config = String::new();
    for (name, target) in [
        ("psgi", "psgi = \"app.psgi\""),
        ("rack", "rack = \"config.ru\""),
        ("wsgi", "wsgi = \"w:app\""),
        ("asgi", "asgi = \"a:app\""),
        ("native", "handler = \"n.so\""),
    ] {
        config += &format!(
            r"
            [apps.{name}]
            {target}
            workers = 1
            "
        );
    }
    let proxy = format!("proxy = \"{}\"", origin.url);
    for (host, action) in [
        ("files", "files = \"www\""),
        ("psgi", "app = \"psgi\""),
        ("rack", "app = \"rack\""),
        ("wsgi", "app = \"wsgi\""),
        ("asgi", "app = \"asgi\""),
        ("native", "app = \"native\""),
        ("upstream", &proxy),
        ("cgi", "cgi = \"show\""),
        ("fastcgi", &format!("proxy = {:?}", variables("fastcgi"))),
        ("uwsgi", &format!("proxy = {:?}", variables("uwsgi"))),
        ("scgi", &format!("proxy = {:?}", variables("scgi"))),
    ] {
        for (keep, directives) in [("", ""), (".keep", "encoded_slashes = \"keep\"\nmerge_slashes = false\n")]
        {
            config += &format!(
                r#"
                [[site]]
                hosts = "{host}{keep}"
                {directives}
                [[site.route]]
                path = "/app/admin/*"
                respond = {{ status = 403, body = "admin" }}
                [[site.route]]
                {action}
                "#
            );
        }
    }
    // The server name that clients send over TLS.
    config += r#"
        [[site]]
        hosts = "localhost"
        [[site.route]]
        respond = 404
    "#;
    start(folder, &config)
}

/// A directory with a file for each decoded path of the table, which contains its own name.
fn www() -> Folder {
    let folder = Folder::new();
    for (_, default, keep) in TABLE {
        for seen in [default, keep] {
            let path = merged(*seen);
            if !path.is_empty() && !path.ends_with('/') {
                folder.write(&format!("www{path}"), &path);
            }
        }
    }
    folder.write("www/app/admin/x", "a secret");
    folder
}

/// The path of the file that is served by default, without empty segments.
fn merged(seen: Seen) -> String {
    let As(path, _) = seen else { return String::new() };
    let mut bytes = path.as_bytes().to_vec();
    bytes.dedup_by(|next, last| *next == b'/' && *last == b'/');
    String::from_utf8(bytes).unwrap()
}

/// Expected status and body from a kind of handler.
fn shown(kind: &str, keeps: bool, raw: &str, seen: Seen) -> (u16, String) {
    let As(decoded, encoded) = seen else {
        return if seen == Admin { (403, "admin".into()) } else { (400, String::new()) };
    };
    match kind {
        // File names are not empty and contain no slash.
        "files" if http::path::has_encoded_slash(raw.as_bytes()) => (400, String::new()),
        "files" if decoded.ends_with('/') => (404, String::new()),
        "files" if keeps && decoded.trim_start_matches('/').contains("//") => (404, String::new()),
        // The file name is the path, decoded once.
        "files" if keeps => (200, merged(seen).replacen("%25", "%", 1)),
        "files" => (200, merged(seen)),
        "rack" => (200, format!("{encoded} -> {encoded}?q")),
        "upstream" => (200, format!("GET {encoded}?q HTTP/1.1")),
        _ => (200, format!("{decoded} -> {encoded}?q")),
    }
}

const KINDS: [&str; 11] =
    ["files", "psgi", "rack", "wsgi", "asgi", "native", "upstream", "cgi", "fastcgi", "uwsgi", "scgi"];

#[test]
fn handlers_see_the_path_that_routes_match() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let rig = everything(www(), &origin);
    let mut wrong = Vec::new();
    for (raw, default, keep) in TABLE {
        for kind in KINDS {
            for (host, seen) in [(kind.to_owned(), *default), (format!("{kind}.keep"), *keep)] {
                let ask = format!("GET {raw}?q HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                let answer = rig.send(&ask);
                let (status, body) = shown(kind, host.ends_with("keep"), raw, seen);
                let is_right = answer.status() == status && (body.is_empty() || answer.text() == body);
                if !is_right {
                    wrong.push(format!(
                        "{raw} to {host}: {} {:?} in place of {status} {body:?}",
                        answer.status(),
                        answer.text().lines().next_back().unwrap_or_default()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn check_explain_agrees_with_the_server() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let rig = everything(www(), &origin);
    for (raw, default, keep) in TABLE {
        for (kind, host, seen) in [
            ("psgi", "psgi", default),
            ("psgi", "psgi.keep", keep),
            ("files", "files", default),
            ("files", "files.keep", keep),
        ] {
            let url = format!("http://{host}{raw}?q");
            let done = server()
                .args(["check", "--explain", &url, "-c"])
                .arg(rig.folder.at("komainu.toml"))
                .output()
                .unwrap();
            let reported = text(&done.stdout) + &text(&done.stderr);
            let status = shown(kind, host.ends_with("keep"), raw, *seen).0;
            assert_eq!(reported.contains("400"), status == 400, "{url}: {reported}");
            assert_eq!(reported.contains("matches: respond"), *seen == Admin, "{url}: {reported}");
        }
    }
}

#[test]
fn encoded_slashes_can_be_kept_by_one_route() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [[route]]
        path = "/keep/*"
        encoded_slashes = "keep"
        respond = "kept"

        [[route]]
        path = "/exact/a%2Fb"
        encoded_slashes = "keep"
        respond = "exact"

        [[route]]
        respond = "rest"
        "#,
    );
    rig.get("/keep/a%2fb").expect(200, "kept");
    rig.get("/exact/a%2fb").expect(200, "exact");
    rig.get("/exact/a/b").expect(200, "rest");
    // The encoded slash is no separator, and the other route refuses it.
    rig.get("/keep%2fa").expect_status(400);
}

#[test]
fn unencoded_bytes_are_encoded_in_redirects_fields_and_logs() {
    let folder = Folder::new();
    folder.write("www/caf\u{e9}/index.html", "");
    let rig = Rig::config(
        folder,
        r#"
        log = { access = "json", file = "access.log", level = "debug" }
        response_headers = { set = { X-At = "$path" } }
        [[route]]
        path = "/old/*"
        redirect = "/new/$rest$query"
        [[route]]
        files = "www"
        "#,
    );
    rig.get("/old/\u{e9}|<?q=\u{e9}")
        .expect_status(302)
        .expect_field("Location", "/new/%C3%A9%7C%3C?q=%C3%A9")
        .expect_field("X-At", "/old/%C3%A9%7C%3C");
    rig.get("/caf\u{e9}?q=\u{e9}").expect(301, "").expect_field("Location", "./caf%C3%A9/?q=%C3%A9");
    rig.get("/caf\u{e9}\u{9b}/..%2f").expect_status(400);
    rig.get("/old/%0d%0aX:y").expect_field("Location", "/new/%0d%0aX:y").expect_no_field("X");
    let log = || std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("four lines are logged", || log().lines().count() >= 4);
    eventually("the error is logged", || rig.reported().contains("/caf%C3%A9%C2%9B/..%2f"));
    let access = log();
    let errors = rig.reported();
    assert!(access.contains("/caf%C3%A9?q=%C3%A9") && access.is_ascii(), "{access}");
    assert!(errors.is_ascii(), "{errors}");
}

#[test]
fn empty_segments_are_preserved_by_redirects_and_proxies() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let folder = Folder::new();
    folder.write("www/both/a/b", "a file");
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            [[route]]
            path = "/old/*"
            redirect = "/new/$rest"

            [[route]]
            path = "/cut/*"
            proxy = {{ to = "{url}", strip_prefix = true }}

            [[route]]
            path = "~ ^/got/(.*)$"
            rewrite = "/get/$1"
            proxy = "{url}"

            [[route]]
            path = "/both/*"
            files = "www"
            proxy = "{url}"

            [[route]]
            path = "/kept/*"
            cache = true
            proxy = "{url}"
            "#,
            url = origin.url
        ),
    );
    rig.get("/old/https://a.test/b").expect_status(302).expect_field("Location", "/new/https://a.test/b");
    for (path, line) in [
        ("/cut/https://a.test/b", "/https://a.test/b"),
        ("/cut//a.test//b", "/a.test//b"),
        ("/got/https://a.test/b", "/get/https://a.test/b"),
        ("/both//a//c", "/both//a//c"),
        ("/kept//a", "/kept//a"),
        ("/kept/a", "/kept/a"),
        ("/kept//a", "/kept//a"),
    ] {
        rig.get(path).expect(200, &format!("GET {line} HTTP/1.1"));
    }
    rig.get("/both//a//b").expect(200, "a file");
}

#[test]
fn redirect_of_a_path_with_many_slashes_stays_on_the_host() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        merge_slashes = false
        [[route]]
        path = "/old/*"
        redirect = "/$rest"
        [[route]]
        redirect = "$path"
        "#,
    );
    for (path, location) in [
        ("/old//evil.test/x", "/evil.test/x"),
        ("/old///evil.test//x", "/evil.test//x"),
        ("//evil.test//x", "/evil.test//x"),
        ("/x/..//evil.test", "/evil.test"),
    ] {
        rig.get(path).expect_status(302).expect_field("Location", location);
    }
    rig.get("/old/\\evil.test").expect_status(400);
}

#[test]
fn empty_lines_before_requests_are_ignored() {
    let rig = Rig::config(Folder::new(), "[[route]]\nrespond = \"fine\"\n");
    for lines in 0..=4 {
        let empty = "\r\n".repeat(lines);
        let ask = format!("{empty}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        rig.send(&ask).expect(200, "fine");
    }
    rig.send(&"\r\n".repeat(5)).expect_status(400);
}

#[test]
fn respond_and_missing_index_errors_use_error_pages() {
    let folder = Folder::new();
    folder.write("403.html", "<p>no").write("404.html", "<p>none").write("www/bare/a.txt", "a");
    let rig = Rig::config(
        folder,
        r#"
        [[site]]
        hosts = ["plain", "localhost"]

        [[site.route]]
        path = "/no"
        respond = 403

        [[site.route]]
        files = "www"

        [[site]]
        hosts = "pages"
        error_pages = { 403 = "403.html", 404 = "404.html" }

        [[site.route]]
        path = "/no"
        respond = 403

        [[site.route]]
        path = "/own"
        respond = { status = 403, body = "own" }

        [[site.route]]
        files = "www"
        "#,
    );
    let ask = |host: &str, path: &str| {
        rig.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    ask("pages", "/no").expect(403, "<p>no").expect_field("Content-Type", "text/html; charset=utf-8");
    ask("pages", "/own").expect(403, "own").expect_field("Content-Type", "text/plain; charset=utf-8");
    for (path, sentence) in [
        ("/no", "access to this address is forbidden"),
        ("/bare/", "this folder has no index page, and its files are not listed"),
        ("/bare", "this folder has no index page, and its files are not listed"),
        ("/bare/b", "there is no such file"),
        ("/none/", "there is no such file"),
    ] {
        let answer = ask("plain", path);
        assert!(answer.text().contains(sentence), "{path}: {}", answer.text());
        if path != "/no" {
            answer.expect_status(404);
            ask("pages", path).expect(404, "<p>none");
        }
    }
}

#[test]
fn php_path_info_decoding_follows_encoded_slashes_setting() {
    for (keep, seen) in [("encoded_slashes = \"keep\"\n", "/a%252Fb/c d"), ("", "/a%2Fb/c d")] {
        let folder = Folder::new();
        folder.write("www/index.php", "<?php");
        let php = variables("fastcgi");
        let rig = Rig::config(
            folder,
            &format!(
                r#"
                {keep}
                [[route]]
                files = "www"
                php = {php:?}
                "#
            ),
        );
        rig.get("/index.php/a%252Fb/c%20d").expect(200, &format!("{seen} -> /index.php/a%252Fb/c%20d"));
    }
}

#[test]
fn path_rules_normalize_paths_like_routes() {
    let origin = Origin::start(|ask| {
        format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\nX: {}\r\n\r\nx",
            ask.line()
        )
    });
    let folder = Folder::new();
    folder.write("secret", "0123456789abcdef0123456789abcdef\n");
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            encoded_slashes = "keep"

            [[route]]
            path = "/denied/a"
            respond = 403

            [[route]]
            path = "/signed/*"
            auth = {{ signed = {{ secret_file = "secret" }} }}
            proxy = {url:?}

            [[route]]
            path = "/rated/*"
            limit = {{ key = "path", rate = "1/h", burst = 0 }}
            proxy = {url:?}

            [[route]]
            proxy = {url:?}

            [[route.cache.rule]]
            path = ["/live/a", "/live/x%2Fy"]
            bypass = true
            "#,
            url = origin.url
        ),
    );
    // A cache rule: requests that bypass the cache reach the origin each time.
    for (path, passes) in [
        ("/live/a", true),
        ("/live//a", true),
        ("//live/a", true),
        ("/live/./a", true),
        ("/live/x%2fy", true),
        ("/live/x%252Fy", false),
        ("/live//b", false),
    ] {
        let before = origin.asks().len();
        for _ in 0..2 {
            rig.get(path).expect(200, "x");
        }
        assert_eq!(origin.asks().len() - before, if passes { 2 } else { 1 }, "{path}");
    }
    for path in ["/denied/a", "/denied//a", "//denied/a", "//denied///a", "/denied/%61"] {
        assert_eq!(rig.get(path).status(), 403, "{path}");
    }
    // A limit with the path as its key.
    for (path, status) in [
        ("/rated/a", 200),
        ("/rated//a", 429),
        ("//rated/a", 429),
        ("/rated/a%2Fb", 200),
        ("/rated/a%252Fb", 200),
        ("/rated/a%2fb", 429),
    ] {
        assert_eq!(rig.get(path).status(), status, "{path}");
    }
    for path in ["/signed/a", "/signed//a", "//signed/a", "/x/..//signed/a"] {
        assert_eq!(rig.get(path).status(), 403, "{path}");
    }
    let signed = |path: &str| {
        let done = server()
            .args(["sign-url", "--for", "2h", &format!("http://localhost{path}"), "--secret-file"])
            .arg(rig.folder.at("secret"))
            .output();
        let done = done.unwrap();
        text(&done.stdout)
            .trim()
            .strip_prefix("http://localhost")
            .unwrap_or_else(|| panic!("{}", text(&done.stderr)))
            .to_owned()
    };
    let url = signed("/signed/a%2Fb");
    rig.get(&url).expect(200, "x");
    rig.get(&url.replace("/signed/", "/signed//")).expect_status(403);
    rig.get(&url.replace("%2F", "%2f")).expect(200, "x");
    rig.get(&url.replace("%2F", "%252F")).expect_status(403);
    rig.get(&signed("/signed/a%252Fb")).expect(200, "x");
}
