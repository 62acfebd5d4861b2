//! Error pages that replace error responses of any handler.

use crate::hosted;
use crate::hosted::start;
use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig};

fn pages() -> Folder {
    let folder = Folder::new();
    folder.write("404.html", "our 404").write("5xx.html", "our 5xx").write("401.txt", "our 401");
    folder.write("www/empty/x", "");
    folder
}

const PAGES: &str = "error_pages = { 404 = \"404.html\", 401 = \"401.txt\", \"5xx\" = \"5xx.html\" }\n";

#[test]
fn upstream_errors_are_replaced_by_error_pages() {
    let origin = Origin::start(|ask| {
        let path = ask.line().split(' ').nth(1).unwrap_or_default();
        match path {
            "/401" => answer("401 Unauthorized", "WWW-Authenticate: Basic realm=x\r\nX-Own: 1\r\n", "theirs"),
            "/404" => answer("404 Not Found", "Set-Cookie: a=b\r\n", "theirs"),
            "/410" => answer("410 Gone", "", "theirs"),
            "/500" => answer("500 Internal Server Error", "", &"x".repeat(300_000)),
            "/503" => answer("503 Service Unavailable", "Retry-After: 7\r\n", "theirs"),
            _ => answer("200 OK", "X-Own: 1\r\n", "fine"),
        }
    });
    let url = &origin.url;
    let rig = Rig::config(
        pages(),
        &format!(
            r#"
            {PAGES}

            [[route]]
            path = "/pass/*"
            proxy = {{ to = "{url}", strip_prefix = true }}

            [[route]]
            path = "/kept/*"
            intercept_errors = true
            cache = true
            proxy = {{ to = "{url}", strip_prefix = true }}

            [[route]]
            intercept_errors = true
            proxy = "{url}"
            "#
        ),
    );
    rig.get("/").expect(200, "fine").expect_field("X-Own", "1");
    let answer = rig.get("/401");
    answer.expect(401, "our 401").expect_field("WWW-Authenticate", "Basic realm=x").expect_no_field("X-Own");
    rig.get("/404").expect(404, "our 404").expect_no_field("Set-Cookie");
    rig.get("/410").expect(410, "theirs");
    rig.get("/500").expect(500, "our 5xx");
    rig.get("/503").expect(503, "our 5xx").expect_field("Retry-After", "7");
    rig.get("/pass/404").expect(404, "theirs");
    for _ in 0..2 {
        rig.get("/kept/404").expect(404, "our 404").expect_field("Content-Length", "7");
        rig.get("/kept/x").expect(200, "fine");
    }
    // The connection stays usable after an error whose body is discarded.
    let both = "GET /500 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answers = rig.send(both).text();
    assert!(answers.contains("our 5xx") && answers.ends_with("fine"), "{answers}");
    let head = rig.send("HEAD /404 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    head.expect(404, "").expect_field("Content-Length", "7");
}

const PSGI: &str = "sub { my $e = shift; $e->{PATH_INFO} =~ m{(\\d+)} or die 'no status';
    [$1, ['Content-Type' => 'text/plain', 'X-Own' => 1], ['theirs']] }";

#[test]
fn application_errors_are_replaced_by_error_pages() {
    let folder = hosted::folder("app.psgi", PSGI);
    folder.write("5xx.html", "our 5xx");
    let rig = start(
        folder,
        r#"
        [apps.shop]
        psgi = "app.psgi"
        workers = 1

        [[site]]
        intercept_errors = true
        error_pages = { "5xx" = "5xx.html" }

        [[site.route]]
        path = "/pass/*"
        intercept_errors = false
        app = "shop"

        [[site.route]]
        app = "shop"
        "#,
    );
    rig.get("/200").expect(200, "theirs").expect_field("X-Own", "1");
    rig.get("/503").expect(503, "our 5xx").expect_no_field("X-Own");
    rig.get("/404").expect(404, "theirs");
    rig.get("/pass/503").expect(503, "theirs");
    rig.get("/none").expect(500, "our 5xx");
}

#[test]
fn errors_of_the_server_itself_use_error_pages() {
    let rig = Rig::config(
        pages(),
        &format!(
            r#"
            {PAGES}

            [[route]]
            path = "/gone"
            respond = 503

            [[route]]
            path = "/own"
            intercept_errors = true
            respond = {{ status = 503, body = "own" }}

            [[route]]
            path = "/away"
            proxy = "http://127.0.0.1:1"

            [[route]]
            files = "www"
            "#
        ),
    );
    rig.get("/gone").expect(503, "our 5xx");
    rig.get("/own").expect(503, "own");
    rig.get("/away").expect(502, "our 5xx");
    rig.get("/empty/").expect(404, "our 404");
    rig.get("/none").expect(404, "our 404");
}
