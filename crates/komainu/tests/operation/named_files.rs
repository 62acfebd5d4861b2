//! Files named by applications and upstream servers in place of a response: `X-Accel-Redirect` and
//! `X-Sendfile`.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::hosted::{folder, start};
use crate::origin::{Origin, answer};
use crate::rig::{Answer, Folder, Rig, eventually};

const APP: &str = r#"
use strict;
sub { my $env = shift; my $q = $env->{QUERY_STRING};
    my ($name, $value) = split /=/, $q, 2;
    [$env->{HTTP_X_STATUS} || 200,
     ['Content-Type' => 'application/pdf', 'Content-Disposition' => 'attachment', 'Set-Cookie' => 'a=1', 'ETag' => '"app"',
      'Cache-Control' => 'private', ($name eq 'accel' ? 'X-Accel-Redirect' : 'X-Sendfile') => $value],
     ['the body of the application, which nobody gets']] }
"#;

fn rig(more: &str) -> Rig {
    let origin = Origin::start(|ask| {
        let target = ask.line().split(' ').nth(1).unwrap().to_owned();
        let path = target.split_once('=').unwrap().1;
        answer("200 OK", &format!("X-Accel-Redirect: {path}\r\nContent-Type: text/plain\r\n"), "hidden")
    });
    let folder = folder("app.psgi", APP);
    folder.write("files/a b.txt", "0123456789");
    folder.write("files/deep/c.txt", "deep");
    folder.write("outside.txt", "secret");
    let config = format!(
        r#"
        threads = 1

        [[route]]
        path = "/protected/*"
        internal = true
        files = {{ root = "files/deep/..", strip_prefix = true }}

        [[route]]
        path = "/up"
        proxy = "{}"

        [[route]]
        path = "/open/*"
        files = {{ root = "files", strip_prefix = true }}

        [[route]]
        app = "shop"
        {more}

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        "#,
        origin.url
    );
    start(folder, &config)
}

fn file(answer: &Answer) -> &Answer {
    answer.expect(200, "0123456789")
}

#[test]
fn x_accel_redirect_and_x_sendfile_send_the_named_file() {
    let rig = rig("");
    let sent = rig.get("/x?accel=/protected/a%20b.txt");
    file(&sent);
    for (name, value) in [
        ("Content-Type", "application/pdf"),
        ("Content-Disposition", "attachment"),
        ("Set-Cookie", "a=1"),
        ("Cache-Control", "private"),
        ("Content-Length", "10"),
        ("Accept-Ranges", "bytes"),
    ] {
        assert_eq!(sent.field(name), Some(value), "{sent:?}");
    }
    assert!(sent.field("X-Accel-Redirect").is_none(), "{sent:?}");
    // The validators are the file's, as is the content.
    let etag = sent.field("ETag").unwrap().to_owned();
    assert_ne!(etag, "\"app\"");
    let unchanged = rig.ask("/x?accel=/protected/a%20b.txt", &format!("If-None-Match: {etag}\r\n"));
    unchanged.expect_status(304);
    let part = rig.ask("/x?accel=/protected/a%20b.txt?query", "Range: bytes=2-4\r\n");
    assert_eq!((part.status(), part.text()), (206, "234".to_owned()));
    let path = rig.folder.at("files/deep/c.txt");
    rig.get(&format!("/x?sendfile={}", path.display())).expect(200, "deep");
    // For any request method.
    let posted = rig.send(
        "POST /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
    );
    posted.expect(200, "deep");
    let head = rig
        .send("HEAD /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((head.status(), head.field("Content-Length"), head.text()), (200, Some("4"), String::new()));
    // Upstream servers may name files as well.
    let up = rig.get("/up?x=/protected/a%20b.txt");
    assert_eq!(file(&up).field("Content-Type"), Some("text/plain"));
    // Persistent connections continue.
    let two = "GET /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\n\r\n\
               GET /up?x=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(
        rig.send(two).head.matches("200 OK").count() + rig.send(two).text().matches("200 OK").count(),
        2
    );
}

#[test]
fn named_file_outside_internal_routes_is_refused() {
    let rig = rig("");
    // Clients cannot request the path directly.
    rig.get("/protected/a%20b.txt").expect_status(404);
    file(&rig.get("/open/a%20b.txt"));
    for target in [
        "/protected/none.txt",
        "/protected/../outside.txt",
        "/protected/%2e%2e/outside.txt",
        "/protected/..%2foutside.txt",
        "/open/a%20b.txt",
        "/outside.txt",
        "protected/a.txt",
        "@named",
        "http://a.test/",
        "",
    ] {
        let answer = rig.get(&format!("/x?accel={target}"));
        assert!(matches!(answer.status(), 404 | 500), "{target}: {answer:?}");
        assert!(!answer.text().contains("secret") && !answer.text().contains("nobody gets"), "{answer:?}");
        // The error page replaces the application's content type.
        assert_ne!(answer.field("Content-Type"), Some("application/pdf"), "{target}");
    }
    let files = rig.folder.at("files");
    for path in [
        "/etc/passwd".to_owned(),
        format!("{}/../outside.txt", files.display()),
        format!("{}x/a", files.display()),
        // Folders, with and without a slash.
        files.display().to_string(),
        format!("{}/", files.display()),
        format!("{}/deep", files.display()),
        format!("{}/deep/", files.display()),
    ] {
        let answer = rig.get(&format!("/x?sendfile={path}"));
        assert!(matches!(answer.status(), 404 | 500), "{path}: {answer:?}");
    }
}

#[test]
fn stalled_client_of_named_file_does_not_hold_worker() {
    let rig = rig("cache = true\n");
    for _ in 0..2 {
        let answer = rig.get("/x?accel=/protected/deep/c.txt");
        answer.expect(200, "deep");
    }
    rig.folder.write("files/large", "x".repeat(20 << 20));
    let _slow: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = rig.connect();
            std::io::Write::write_all(
                &mut stream,
                b"GET /x?accel=/protected/large HTTP/1.1\r\nHost: localhost\r\n\r\n",
            )
            .unwrap();
            stream
        })
        .collect();
    // There is only one worker.
    rig.get("/x?accel=/protected/deep/c.txt&x").expect_status(404);
    rig.get("/x?accel=/protected/a%20b.txt").expect_status(200);
}

#[test]
fn ignored_file_name_is_logged_without_internal_route() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /protected/a\r\n", "empty"));
    let config = format!(
        r#"
        threads = 1

        [[route]]
        path = "/up"
        proxy = "{}"

        [[route]]
        app = "shop"

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        "#,
        origin.url
    );
    let rig = start(folder("app.psgi", APP), &config);
    rig.get("/up").expect(200, "empty").expect_no_field("X-Accel-Redirect");
    rig.expect_report("\"/up\": the application names a file that no internal route has");
    // An application's response is logged as well, once a second has passed.
    eventually("the log has it", || {
        rig.get("/app?sendfile=/etc/hosts").expect_status(200).expect_no_field("X-Sendfile");
        rig.reported().contains("\"/app")
    });
}

#[test]
fn named_file_is_sent_before_dropped_upstream_body_ends() {
    // The upstream server names a file, announces content and sends none; it answers each connection once.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head =
                "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /protected/a.txt\r\nContent-Length: 900\r\n\r\nsome";
            stream.write_all(head.as_bytes()).unwrap();
            held.push(stream);
        }
    });
    let folder = Folder::new();
    folder.write("files/a.txt", "the file");
    let config = format!(
        r#"
        threads = 1
        [[route]]
        path = "/protected/*"
        internal = true
        files = {{ root = "files", strip_prefix = true }}
        [[route]]
        proxy = {{ to = "{url}", timeouts = {{ between = "1h" }} }}
        "#
    );
    let rig = Rig::config(folder, &config);
    for _ in 0..2 {
        rig.get("/x").expect(200, "the file");
    }
}

/// The application decides for each client whether it gets the file.
#[test]
fn named_file_age_does_not_make_response_cacheable() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /protected/a.txt\r\n", "hidden"));
    let folder = Folder::new();
    folder.write("files/a.txt", "0123456789");
    let year = std::time::Duration::from_secs(365 * 86_400);
    let file = std::fs::File::options().write(true).open(folder.at("files/a.txt")).unwrap();
    file.set_modified(std::time::SystemTime::now() - year).unwrap();
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            threads = 1
            [[route]]
            path = "/protected/*"
            internal = true
            files = {{ root = "files", strip_prefix = true }}
            [[route]]
            cache = true
            proxy = "{}"
            "#,
            origin.url
        ),
    );
    for asked in 1..=3 {
        rig.get("/x").expect(200, "0123456789");
        assert_eq!(origin.asks().len(), asked);
    }
}

/// Routes whose rules refuse a named file, each with files of its own, followed by a route for all paths
/// below `/protected/`.
fn guarded() -> (Origin, Rig) {
    let origin = Origin::start(|ask| {
        let target = ask.line().split(' ').nth(1).unwrap().to_owned();
        let path = target.split_once('=').unwrap().1;
        let fields = format!("X-Accel-Redirect: {path}\r\nCache-Control: max-age=60\r\n");
        answer("200 OK", &fields, "hidden")
    });
    let folder = folder("app.psgi", APP);
    folder.write("passwords", "alice:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n");
    let mut routes = r#"
        [[route]]
        path = "/protected/adm/*"
        respond = 403
    "#
    .to_owned();
    for (name, rules) in [
        ("closed", "allow = \"10.0.0.0/8\""),
        ("denied", "deny = \"127.0.0.1\""),
        ("users", "auth = { basic = \"passwords\" }"),
        ("few", "limit = \"1/h\""),
        ("many", ""),
        ("keyed", "header = { X-Key = \"k\" }"),
        ("queried", "query = { key = \"k\" }"),
        ("read", "method = \"GET\""),
        ("excepted", "not = { path = \"*.key\" }"),
    ] {
        folder.write(&format!("{name}/a.txt"), name);
        folder.write(&format!("{name}/a.key"), "secret");
        routes += &format!(
            r#"
            [[route]]
            path = "/protected/{name}/*"
            internal = true
            {rules}
            files = {{ root = "{name}", strip_prefix = true }}
            "#
        );
    }
    folder.write("files/adm/a.txt", "secret");
    folder.write("files/a.txt", "open");
    folder.write("late/a.txt", "late");
    let config = format!(
        r#"
        threads = 1
        trusted_proxies = ["127.0.0.1"]

        [[site]]
        hosts = "limited.test"
        limit = "3/h"

        [[site.route]]
        path = "/protected/*"
        internal = true
        files = {{ root = "files", strip_prefix = true }}

        [[site.route]]
        proxy = "{url}"
        {routes}

        [[route]]
        path = "/protected/*"
        internal = true
        files = {{ root = "files", strip_prefix = true }}

        [[route]]
        path = "/up"
        proxy = "{url}"

        [[route]]
        path = "/kept"
        cache = true
        proxy = "{url}"

        [[route]]
        app = "shop"

        [[route]]
        path = "/late/*"
        internal = true
        files = {{ root = "late", strip_prefix = true }}

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        "#,
        url = origin.url
    );
    let rig = start(folder, &config);
    (origin, rig)
}

#[test]
fn rules_of_internal_route_apply_to_named_files() {
    let (_origin, rig) = guarded();
    let basic = "Authorization: Basic YWxpY2U6bXlQYXNzd29yZA==\r\n";
    for by in ["/up?x", "/app?accel"] {
        for (path, fields, status, text) in [
            ("closed/a.txt", "", 403, ""),
            ("closed/a.txt", "X-Forwarded-For: 10.0.0.1\r\n", 200, "closed"),
            ("denied/a.txt", "", 403, ""),
            ("denied/a.txt", "X-Forwarded-For: 10.0.0.1\r\n", 200, "denied"),
            ("users/a.txt", "", 401, ""),
            ("users/a.txt", basic, 200, "users"),
            ("many/a.txt", "", 200, "many"),
            ("keyed/a.txt", "X-Key: k\r\n", 200, "keyed"),
            // The next matching route has no such file.
            ("keyed/a.txt", "", 404, ""),
            ("queried/a.txt?key=k", "", 200, "queried"),
            ("queried/a.txt?key=l", "", 404, ""),
            ("excepted/a.txt", "", 200, "excepted"),
            ("excepted/a.key", "", 404, ""),
        ] {
            let answer = rig.ask(&format!("{by}=/protected/{path}"), fields);
            assert_eq!(answer.status(), status, "{by} {path} {fields}: {answer:?}");
            assert!(status != 200 || answer.text() == text, "{by} {path} {fields}: {answer:?}");
            assert!(!answer.text().contains("hidden"), "{answer:?}");
        }
        let client = format!("X-Forwarded-For: 192.0.2.{}\r\n", by.len());
        for status in [200, 429] {
            rig.ask(&format!("{by}=/protected/few/a.txt"), &client).expect_status(status);
        }
        // The file is always requested with GET, whatever the request's method.
        let post = format!(
            "POST {by}=/protected/read/a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nConnection: close\r\n\r\na"
        );
        rig.send(&post).expect(200, "read");
    }
    for name in ["closed", "denied"] {
        let path = rig.folder.at(&format!("{name}/a.txt"));
        rig.get(&format!("/app?sendfile={}", path.display())).expect_status(403);
    }
    // A limit of the site has counted the request already.
    let limited = |path: &str| {
        rig.send(&format!("GET {path} HTTP/1.1\r\nHost: limited.test\r\nConnection: close\r\n\r\n")).status()
    };
    assert_eq!([0; 4].map(|_| limited("/?x=/protected/a.txt")), [200, 200, 200, 429]);
}

#[test]
fn directives_of_internal_routes_do_not_apply_to_clients() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /protected/a.txt\r\n", "hidden"));
    let folder = Folder::new();
    folder.write("files/a.txt", "0123456789");
    let config = format!(
        r#"
        threads = 1
        [[site]]
        limit = "6/h"
        [[site.route]]
        path = "/protected/*"
        internal = true
        limit = "1/h"
        header_limit = 1
        fault = {{ status = 503 }}
        cors = {{ origins = "https://a.test" }}
        files = {{ root = "files", strip_prefix = true }}
        [[site.route]]
        proxy = "{}"
        "#,
        origin.url
    );
    let rig = Rig::config(folder, &config);
    let preflight = "OPTIONS /protected/a.txt HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.test\r\n\
                     Access-Control-Request-Method: GET\r\nConnection: close\r\n\r\n";
    for _ in 0..2 {
        rig.get("/protected/a.txt").expect_status(404);
        rig.send(preflight).expect_status(404).expect_no_field("Access-Control-Allow-Origin");
    }
    // Requests of clients have not used up the limit of the route.
    rig.get("/x").expect(200, "0123456789");
    rig.get("/x").expect_status(429);
    // The limit of the site counts all of them.
    rig.get("/protected/a.txt").expect_status(429);
}

#[test]
fn the_first_route_that_matches_a_named_path_decides() {
    let (_origin, rig) = guarded();
    for by in ["/up?x", "/app?accel"] {
        rig.get(&format!("{by}=/protected/a.txt")).expect(200, "open");
        for path in ["/protected/adm/a.txt", "/protected//adm/a.txt", "/protected/%61dm/a.txt", "/late/a.txt"]
        {
            let answer = rig.get(&format!("{by}={path}")).expect_status(500).text();
            assert!(!answer.contains("secret") && !answer.contains("late"), "{path}: {answer}");
        }
    }
    for path in ["files/adm/a.txt", "late/a.txt"] {
        rig.get(&format!("/app?sendfile={}", rig.folder.at(path).display())).expect_status(500);
    }
    rig.get(&format!("/app?sendfile={}", rig.folder.at("files/a.txt").display())).expect(200, "open");
    rig.expect_report("a route that is not internal answers the path that the application names");
}

#[test]
fn named_file_behind_access_rules_is_not_cached_for_others() {
    let (origin, rig) = guarded();
    for _ in 0..2 {
        rig.ask("/kept?x=/protected/closed/a.txt", "X-Forwarded-For: 10.0.0.1\r\n").expect(200, "closed");
        rig.ask("/kept?x=/protected/closed/a.txt", "X-Forwarded-For: 192.0.2.1\r\n").expect_status(403);
    }
    assert_eq!(origin.asks().len(), 4);
    // The same holds if access depends on a field outside of the cache key.
    rig.ask("/kept?x=/protected/keyed/a.txt", "X-Key: k\r\n").expect(200, "keyed");
    rig.get("/kept?x=/protected/keyed/a.txt").expect_status(404);
    let before = origin.asks().len();
    for _ in 0..2 {
        rig.get("/kept?x=/protected/many/a.txt").expect(200, "many");
    }
    assert_eq!(origin.asks().len(), before + 1);
}
