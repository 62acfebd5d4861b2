//! Error pages that a server writes, in place of error responses of any handler.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};

use crate::origin::{Ask, Origin, answer};
use crate::rig::{Folder, Rig, nobody};

/// A server whose status is in the path.
fn shop() -> Origin {
    Origin::start(|ask| match ask.line().split(' ').nth(1).unwrap_or_default() {
        path if path.starts_with("/404") => answer("404 Not Found", "Set-Cookie: a=b\r\n", "theirs"),
        "/500" => answer("500 Internal Server Error", "", &"x".repeat(300_000)),
        "/503" => answer("503 Service Unavailable", "Retry-After: 7\r\n", "theirs"),
        _ => answer("200 OK", "", "fine"),
    })
}

/// A server that writes pages, with the status that it is asked for.
fn pages() -> Origin {
    Origin::start(|ask: &Ask| match ask.field("X-Code")[..] {
        ["404"] => answer("404 Not Found", "Content-Type: text/plain\r\n", "page of 404"),
        ["500"] => answer("200 OK", "", &"y".repeat(5_000)),
        _ => answer("503 Service Unavailable", "", "page of an error"),
    })
}

#[test]
fn errors_are_replaced_by_pages_of_a_server() {
    let (shop, pages) = (shop(), pages());
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [upstreams.pages]
            to = "{}"

            [[route]]
            path = "/own"
            error_server = {{ to = {{ upstream = "pages" }}, statuses = 404 }}
            respond = 404

            [[route]]
            path = "/away"
            error_server = {{ to = {{ upstream = "pages" }}, statuses = [502, 503] }}
            proxy = "http://{}"

            [[route]]
            path = "/kept/*"
            cache = true
            error_server = {{ to = {{ upstream = "pages" }}, statuses = 404 }}
            proxy = {{ to = "{}", strip_prefix = true }}

            [[route]]
            proxy = "{}"

            [route.error_server]
            to = {{ upstream = "pages", request_headers = {{ set = {{ X-Namespace = "shop" }} }} }}
            statuses = [404, 500, 503]
            body_max = "4KiB"
            "#,
            pages.url,
            nobody(),
            shop.url,
            shop.url
        ),
    );
    rig.get("/").expect(200, "fine");
    assert!(pages.asks().is_empty());
    let fields = "X-Code: 200\r\nX_Code: 201\r\nX-Namespace: other\r\nAccept: text/*\r\nRange: bytes=0-1\r\nX-Own: 1\r\n";
    let answer = rig.ask("/404?a=b", fields);
    answer
        .expect(404, "page of 404")
        .expect_field("Content-Type", "text/plain")
        .expect_no_field("Set-Cookie");
    let ask = pages.last();
    assert_eq!(ask.line(), "GET / HTTP/1.1");
    for (name, value) in [
        ("X-Code", "404"),
        ("X-Format", "text/*"),
        ("X-Original-URI", "/404?a=b"),
        ("X-Namespace", "shop"),
        ("X-Own", "1"),
    ] {
        assert_eq!(ask.field(name), [value], "{}", ask.head);
    }
    assert!(ask.field("X_Code").is_empty() && ask.field("Range").is_empty(), "{}", ask.head);
    assert_eq!(ask.field("X-Request-Id").len(), 1, "{}", ask.head);
    // Fields of the error that the page does not have.
    rig.get("/503").expect(503, "page of an error").expect_field("Retry-After", "7");
    // A page that is too long: that of this server, with the status of the error.
    rig.get("/500").expect_status(500);
    // Errors of this server.
    rig.get("/own").expect(404, "page of 404");
    rig.get("/away").expect(503, "page of an error");
    assert_eq!(pages.last().field("X-Code"), ["502"]);
    for _ in 0..2 {
        rig.get("/kept/404").expect(404, "page of 404");
        rig.get("/kept/x").expect(200, "fine");
    }
    // The connection stays usable, also after a body that nobody has read.
    let both = "POST /404 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answers = rig.send(both).text();
    assert!(answers.contains("page of 404") && answers.ends_with("fine"), "{answers}");
    assert!(pages.last().body.is_empty() && pages.last().line().starts_with("GET / "));
    let head = rig.send("HEAD /404 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    head.expect(404, "").expect_field("Content-Length", "11");
}

#[test]
fn error_server_that_fails_leaves_the_error_page_of_the_site() {
    let shop = shop();
    let folder = Folder::new();
    folder.write("404.html", "our 404");
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            error_pages = {{ 404 = "404.html" }}

            [[route]]
            path = "/slow/*"
            error_server = {{ to = "{}", statuses = 404, timeout = "50ms" }}
            proxy = {{ to = "{}", strip_prefix = true }}

            [[route]]
            error_server = {{ to = "http://{}", statuses = [404, 503] }}
            proxy = "{}"
            "#,
            silent(),
            shop.url,
            nobody(),
            shop.url
        ),
    );
    rig.get("/404").expect(404, "our 404");
    rig.get("/503").expect_status(503).expect_field("Retry-After", "7");
    rig.get("/slow/404").expect(404, "our 404");
}

/// A server that accepts connections and never answers.
fn silent() -> String {
    let listener = crate::rig::listener();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let kept: Vec<_> = listener.incoming().collect();
        drop(kept);
    });
    url
}

#[test]
fn error_server_behind_which_is_this_server_does_not_loop() {
    let shop = shop();
    let own: Arc<OnceLock<SocketAddr>> = Arc::default();
    let address = own.clone();
    let pages = Origin::start(move |ask| {
        let mut stream = TcpStream::connect(address.get().unwrap()).unwrap();
        let via = ask.field("Via").join(", ");
        write!(stream, "GET /404 HTTP/1.1\r\nHost: a\r\nVia: {via}\r\nConnection: close\r\n\r\n").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all
    });
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            error_server = {{ to = "{}", statuses = [404, 508] }}
            proxy = "{}"
            "#,
            pages.url, shop.url
        ),
    );
    own.set(rig.listens).unwrap();
    rig.get("/404").expect_status(404);
    assert_eq!((shop.asks().len(), pages.asks().len()), (2, 1));
}
