//! Regular expressions in paths, captures, rewritten paths, and maps.

use crate::hosted;
use crate::hosted::start;
use crate::origin::{Origin, answer, ok};
use crate::rig::{Folder, Rig, komainu, text};

fn with(config: &str) -> Rig {
    Rig::config(Folder::new(), config)
}

#[test]
fn rewritten_directory_serves_its_index_without_redirect() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /inner/dir\r\n", ""));
    let folder = Folder::new();
    folder.write("www/dir/index.html", "the index").write("www/bare/a", "");
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            [[route]]
            path = "/go"
            rewrite = "/dir"
            files = "www"

            [[route]]
            path = "/again/*"
            rewrite = "/$rest"

            [[route]]
            path = "/go-bare/"
            rewrite = "/bare"
            files = "www"

            [[route]]
            path = "/inner/*"
            internal = true
            files = {{ root = "www", strip_prefix = true }}

            [[route]]
            path = "/named/*"
            proxy = "{}"

            [[route]]
            files = "www"
            "#,
            origin.url
        ),
    );
    for path in ["/go", "/again/dir", "/named/", "/named/dir", "/dir/"] {
        rig.get(path).expect(200, "the index");
    }
    rig.get("/go-bare/").expect_status(404);
    // A directory requested by the client itself is redirected to its path with a slash.
    rig.get("/dir?x").expect_status(301).expect_field("Location", "./dir/?x");
}

#[test]
fn a_regular_expression_captures_variables() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let url = &origin.url;
    let rig = with(&format!(
        r#"
        [[route]]
        path     = "~ ^/user/(?<id>\\d+)$"
        redirect = "/profile/$id?was=$1"
        response_headers = {{ set = {{ X-User = "<$id>" }} }}

        [[route]]
        path    = "~* ^/pictures/(.*)\\.(PNG|gif)$"
        proxy   = {{ to = "{url}", request_headers = {{ set = {{ X-Picture = "$1 is a $2" }} }} }}
        rewrite = "/store/$2/$1"

        [[route]]
        path    = "~ ^/hello/(?<name>[^/]*)$"
        respond = {{ body = "<p>hello $name\n$$</p>", type = "text/html", variables = true }}

        [[route]]
        path    = ["/plain", "~ ^/either/(a|b)$"]
        respond = {{ body = "<$1>", variables = true }}
        "#
    ));
    let answer = rig.get("/user/42");
    answer.expect_status(302).expect_field("Location", "/profile/42?was=42").expect_field("X-User", "<42>");
    rig.get("/user/42x").expect_status(404);
    // The client's query is kept.
    rig.get("/Pictures/a%20b/c.gif?x=1").expect(200, "GET /store/gif/a%20b/c?x=1 HTTP/1.1");
    assert_eq!(origin.last().field("X-Picture"), ["a%20b/c is a gif"]);
    rig.get("/hello/%3Cb%3E&you").expect(200, "<p>hello %3Cb%3E&amp;you\n$</p>");
    rig.get("/plain").expect(200, "<>");
    rig.get("/either/b").expect(200, "<b>");
}

#[test]
fn captures_cannot_inject_fields_hosts_or_parameters() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let url = &origin.url;
    let rig = with(&format!(
        r#"
        [[route]]
        path     = "~ ^/go/(.*)$"
        redirect = "/$1"

        [[route]]
        path     = "~ ^/host/([^/]*)$"
        redirect = "https://$1.example.com/"
        response_headers = {{ set = {{ X-Host = "$1" }} }}

        [[route]]
        path    = "~ ^/query/(.*)$"
        rewrite = "/q?name=$1"
        proxy   = "{url}"

        [[route]]
        path    = "~ ^/dots(?<after>.*)$"
        rewrite = "/safe/.$after"
        proxy   = "{url}"

        [[route]]
        path    = "~ ^/twice/(.*)$"
        rewrite = "/$1$1$1$1$1$1$1$1$1$1"
        proxy   = "{url}"
        "#
    ));
    // Line breaks cannot be injected into a header field.
    let answer = rig.get("/host/a%0d%0aSet-Cookie:%20x=1");
    answer.expect_status(302).expect_no_field("Set-Cookie");
    answer.expect_field("X-Host", "a%0D%0ASet-Cookie:%20x=1");
    // The host cannot be changed.
    answer.expect_field("Location", "https://a%0D%0ASet-Cookie%3A%20x%3D1.example.com/");
    rig.get("/host/evil.test%3F").expect_field("Location", "https://evil.test%3F.example.com/");
    rig.get("/go//evil.test/").expect_field("Location", "/evil.test/");
    rig.get("/go/%5Cevil.test/").expect_status(400);
    // Parameters cannot be injected.
    rig.get("/query/a&admin=1%23%3F+%2B").expect(200, "GET /q?name=a%26admin%3D1%23%3F%2B%2B HTTP/1.1");
    // The path cannot leave its directory.
    rig.get("/dotsx").expect(200, "GET /safe/.x HTTP/1.1");
    rig.get("/dots./x").expect_status(400);
    rig.get("/dots/x").expect_status(400);
    // The length of a path is limited.
    let long = "a".repeat(5000);
    rig.get(&format!("/twice/{long}")).expect_status(414);
    assert_eq!(origin.asks().len(), 2);
}

#[test]
fn rewrite_only_route_restarts_route_matching() {
    let folder = Folder::new();
    folder.write("public/new/a.txt", "the file");
    let rig = Rig::config(
        folder,
        r#"
        [[route]]
        path    = "/old/*"
        rewrite = "/older/$rest"

        [[route]]
        path    = "/older/*"
        method  = "GET"
        rewrite = "/new/$rest?n=1&$args"

        [[route]]
        path  = "/new/*"
        query = { n = "1" }
        files = "public"
        response_headers = { set = { X-Path = "$uri" } }

        [[route]]
        path    = "~ ^/round/(.*)$"
        rewrite = "/round/$1x"

        [[route]]
        path    = "/nowhere"
        rewrite = "/nothing"
        "#,
    );
    rig.get("/old/a.txt?m=2").expect(200, "the file").expect_field("X-Path", "/new/a.txt?n=1&m=2");
    rig.get("/new/a.txt").expect_status(404);
    rig.send("POST /old/a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect_status(404);
    rig.get("/nowhere").expect_status(404);
    let answer = rig.get("/round/");
    answer.expect_status(500);
    assert!(answer.text().contains("more than 10 routes have rewritten the path"), "{}", answer.text());
}

const PSGI: &str =
    "sub { my $e = shift; [200, [], [join ' ', @$e{qw(PATH_INFO QUERY_STRING REQUEST_URI)}]] }";

#[test]
fn application_receives_rewritten_path_and_original_target() {
    let rig = start(
        hosted::folder("app.psgi", PSGI),
        r#"
        [apps.shop]
        psgi    = "app.psgi"
        workers = 1

        [[route]]
        path    = "~ ^/item/(?<id>\\d+)$"
        rewrite = "/index?item=$id&$args"
        app     = "shop"
        "#,
    );
    rig.get("/item/%37?a=b").expect(200, "/index item=7&a=b /item/%37?a=b");
    rig.send("GET http://h.test/item/7 HTTP/1.1\r\nHost: h.test\r\nConnection: close\r\n\r\n")
        .expect(200, "/index item=7& /item/7");
}

#[test]
fn maps_define_variables() {
    let rig = with(
        r#"
        [maps.pool]
        of      = "$host"
        values  = { "*.shop.test" = "shop at $host", "~* ^OLD\\d+\\." = "old", "a.shop.test" = "a" }
        default = "none"

        [maps.agent]
        of     = "$http_user_agent"
        values = { "~* bot" = "bot" }

        [[route]]
        path    = "~ ^/x/(.*)$"
        respond = { body = "$pool $agent $1", variables = true }

        [[route]]
        respond = "fine"
        response_headers = { set = { X-Pool = "$pool", X-Agent = "$agent" } }
        "#,
    );
    let pool = |host: &str| {
        let ask = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        rig.send(&ask).field("X-Pool").map(str::to_owned)
    };
    assert_eq!(pool("a.shop.test").as_deref(), Some("a"));
    assert_eq!(pool("b.Shop.test:80").as_deref(), Some("shop at b.shop.test"));
    assert_eq!(pool("old12.test").as_deref(), Some("old"));
    assert_eq!(pool("shop.test").as_deref(), Some("none"));
    rig.ask("/x/y", "User-Agent: A Bot\r\n").expect(200, "none bot y");
    // A field with an empty value is not sent.
    rig.get("/").expect_no_field("X-Agent");
    rig.ask("/", "User-Agent: A Bot\r\n").expect_field("X-Agent", "bot");
}

#[test]
fn the_check_explains_rewrites() {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        r#"
        [[route]]
        path = "~ ^/a/(.*)$"
        rewrite = "/b/$1"

        [[route]]
        path = "/b/*"
        respond = "b"
        "#,
    );
    let file = folder.at("komainu.toml");
    let done = komainu().args(["check", "--explain", "/a/x?q=1", "-c"]).arg(&file).output().unwrap();
    assert_eq!(
        text(&done.stdout),
        "default site: no other site has this host\n\
         > line 2: ~ ^/a/(.*)$: matches: rewrite\n  line 6: /b/*: not reached\n\
         the search begins again with /b/x?q=1\ndefault site: no other site has this host\n  \
         line 2: ~ ^/a/(.*)$: the path does not match\n> line 6: /b/*: matches: respond\n",
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn referer_header_and_client_conditions_select_routes() {
    let folder = Folder::new();
    folder.write("www/a.foo", "foo").write("www/README", "read");
    let rig = Rig::config(
        folder,
        r#"
        [maps.area]
        of       = "$remote_addr"
        networks = { "127.0.0.0/8" = "here", "::/0" = "six" }
        default  = "elsewhere"

        [[route]]
        path    = "/images/*"
        referer = ["none", "shop.test", "*.shop.test"]
        respond = "image"

        [[route]]
        path    = "/images/*"
        respond = 403

        [[route]]
        path    = "/fields"
        header  = { X-Key = "~ ^good$" }
        not     = { header = { X-Kind = "*" } }
        respond = "good"

        [[route]]
        path    = "/fields"
        respond = 403

        [[route]]
        path    = "/client"
        client  = "192.0.2.0/24"
        respond = "far"

        [[route]]
        path    = "/client"
        client  = ["127.0.0.1", "unix"]
        respond = { body = "near, $area", variables = true }

        [[route]]
        files = { root = "www", types = { foo = "application/x-foo", "*" = "text/markdown" } }
        "#,
    );
    rig.get("/images/a").expect(200, "image");
    for (referer, status) in [
        ("https://shop.test/page", 200),
        ("https://www.SHOP.test:8443/", 200),
        ("https://shop.test.evil.test/", 403),
        ("https://evil.test/?https://shop.test/", 403),
    ] {
        rig.ask("/images/a", &format!("Referer: {referer}\r\n")).expect_status(status);
    }
    for (fields, status) in [
        ("X-Key: good\r\n", 200),
        ("X-Key: bad\r\nx-key: good\r\n", 200),
        ("X-Key: bad, good\r\n", 403),
        ("X-Key: good\r\nX-Kind: \r\n", 403),
    ] {
        rig.ask("/fields", fields).expect_status(status);
    }
    rig.get("/client").expect(200, "near, here");
    rig.get("/a.foo").expect(200, "foo").expect_field("Content-Type", "application/x-foo");
    rig.get("/README").expect(200, "read").expect_field("Content-Type", "text/markdown; charset=utf-8");
}

#[test]
fn repeated_fields_select_routes() {
    let text = r#"
        [[route]]
        path = "/twice/*"
        repeated = ["X-Key", "X-Other"]
        respond = 400

        [[route]]
        path = "/once/*"
        not = { repeated = "X-Key" }
        respond = 204

        [[route]]
        respond = { body = "ok" }
    "#;
    let rig = Rig::config(Folder::new(), text);
    for (path, fields, status) in [
        ("/twice/", "", 200),
        ("/twice/", "X-Key: a\r\n", 200),
        ("/twice/", "X-Key: a\r\nX-Other: a\r\n", 200),
        ("/twice/", "X-Key: a\r\nx-key: a\r\n", 400),
        ("/twice/", "X-Other:\r\nAccept: a\r\nX-Other:\r\n", 400),
        ("/once/", "X-Key: a\r\n", 204),
        ("/once/", "X-Key: a\r\nX-Key: b\r\n", 200),
        ("/once/", "X-Other: a\r\nX-Other: b\r\n", 204),
        ("/", "X-Key: a\r\nX-Key: b\r\n", 200),
    ] {
        rig.ask(path, fields).expect_status(status);
    }
}
