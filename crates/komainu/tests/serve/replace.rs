//! Text replacement in bodies, for every way of sending a body.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use crate::rig::{Answer, Folder, Rig, as_we_are, curl, komainu, text};

const PAGE: &str = "<a href=\"http://old.example/a\">http://old.example</a>";

/// The body of a response without `Content-Length`.
fn body(answer: &Answer) -> String {
    if answer.field("Transfer-Encoding").is_none() {
        return answer.text();
    }
    let mut rest = answer.body.as_slice();
    let mut out = Vec::new();
    loop {
        let end = rest.windows(2).position(|end| end == b"\r\n").unwrap();
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if len == 0 {
            return text(&out);
        }
        out.extend_from_slice(&rest[end + 2..end + 2 + len]);
        rest = &rest[end + 4 + len..];
    }
}

/// Starts an origin that sends these bytes for every request and reports the request heads.
fn origin(response: Vec<Vec<u8>>) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let _ = sender.send(String::from_utf8_lossy(&head).into_owned());
            for part in &response {
                if stream.write_all(part).is_err() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    });
    (address, asked)
}

fn html(fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn proxied(address: SocketAddr, more: &str) -> Rig {
    let text = format!(
        r#"
        {more}
        [[route]]
        proxy = "http://{address}"
        replace = {{ from = "http://old.example", to = "$scheme://$host/n" }}
        "#
    );
    Rig::config(Folder::new(), &text)
}

fn wanted(rig: &Rig) -> String {
    PAGE.replace("http://old.example", &format!("{}://localhost/n", rig.scheme()))
}

#[test]
fn upstream_page_is_edited_and_its_fields_are_adjusted() {
    let fields = "ETag: \"x\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n";
    let (address, asked) = origin(vec![html(fields, PAGE)]);
    let rig = proxied(address, "");
    let answer = rig.ask("/", "Accept-Encoding: gzip, br\r\n");
    assert_eq!(body(&answer), wanted(&rig));
    answer.expect_status(200).expect_field("ETag", "W/\"x\"").expect_no_field("Last-Modified");
    answer.expect_no_field("Accept-Ranges").expect_no_field("Content-Length");
    let asked = asked.recv().unwrap().to_ascii_lowercase();
    assert!(asked.contains("accept-encoding: identity\r\n") && !asked.contains("gzip"), "{asked}");
}

#[test]
fn match_across_piece_boundaries_is_replaced() {
    let whole = html("", PAGE);
    for piece in [1, 2, 7] {
        let (address, _asked) = origin(whole.chunks(piece).map(<[u8]>::to_vec).collect());
        let rig = proxied(address, "");
        assert_eq!(body(&rig.get("/")), wanted(&rig), "pieces of {piece}");
    }
}

#[test]
fn encoded_partial_and_non_html_bodies_are_not_edited() {
    let of = |head: &str| {
        let length = PAGE.len();
        let (address, _asked) = origin(vec![
            format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{PAGE}")
                .into_bytes(),
        ]);
        let rig = proxied(address, "");
        body(&rig.get("/"))
    };
    for head in [
        "200 OK\r\nContent-Type: text/plain",
        "200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip",
        "200 OK\r\nContent-Type: text/html\r\nCache-Control: no-transform",
        "206 Partial Content\r\nContent-Type: text/html\r\nContent-Range: bytes 0-99/200",
        "200 OK",
    ] {
        assert_eq!(of(head), PAGE, "{head}");
    }
    assert_ne!(
        of("404 Not Found\r\nContent-Type: text/html; charset=utf-8"),
        PAGE,
        "a page of an error is a page"
    );
}

#[test]
fn head_and_304_have_no_body() {
    let folder = Folder::new();
    folder.write("www/a.html", PAGE);
    let text = r#"
        [[route]]
        files = "www"
        replace = { from = "old.example", to = "new.example" }
    "#;
    let rig = Rig::config(folder, text);
    let head = rig.send("HEAD /a.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    head.expect(200, "").expect_no_field("Content-Length");
    let tag = head.field("ETag").unwrap().to_owned();
    assert!(tag.starts_with("W/"), "{tag}");
    let unchanged = rig.ask("/a.html", &format!("If-None-Match: {tag}\r\n"));
    unchanged.expect(304, "").expect_field("ETag", &tag).expect_no_field("Last-Modified");
}

#[test]
fn parts_of_edited_files_are_not_sent() {
    let folder = Folder::new();
    let edited = PAGE.replace("old.example", "new.example");
    folder.write("www/a.html", PAGE).write("www/a.txt", PAGE);
    let text = r#"
        [[route]]
        files = "www"
        replace = { from = "old.example", to = "new.example" }
    "#;
    let rig = Rig::config(folder, text);
    for range in ["bytes=0-1", "bytes=-5", "bytes=0-0,5-6", "bytes=9999-"] {
        let answer = rig.ask("/a.html", &format!("Range: {range}\r\n"));
        answer.expect_status(200).expect_no_field("Content-Range");
        assert_eq!(body(&answer), edited, "{range}");
    }
    rig.ask("/a.txt", "Range: bytes=0-1\r\n").expect(206, "<a");
    rig.ask("/a.txt", "Range: bytes=9999-\r\n").expect_status(416);
}

#[test]
fn parts_of_edited_stored_responses_are_not_sent() {
    let (address, asked) = origin(vec![html("Cache-Control: max-age=60\r\n", PAGE)]);
    let config = format!(
        r#"
        [[route]]
        proxy = "http://{address}"
        cache = true
        replace = {{ from = "http://old.example", to = "$scheme://$host/n" }}
        "#
    );
    let rig = Rig::config(Folder::new(), &config);
    for range in ["bytes=0-1", "bytes=-5", "bytes=9999-"] {
        let answer = rig.ask("/", &format!("Range: {range}\r\n"));
        answer.expect_status(200).expect_no_field("Content-Range");
        assert_eq!(body(&answer), wanted(&rig), "{range}");
    }
    assert_eq!(asked.try_iter().count(), 1, "two were answered from the cache");
}

#[test]
fn upstream_servers_get_ranges_of_compressed_content_alone() {
    let (address, asked) = origin(vec![html("", PAGE)]);
    let rig = proxied(address, "");
    for (path, has_range) in [
        ("/", false),
        ("/a", false),
        ("/a.html", false),
        ("/a.iso", false),
        ("/a.mp4", true),
        ("/a.zip", true),
    ] {
        rig.ask(path, "Range: bytes=0-1\r\nIf-Range: \"a\"\r\n");
        let asked = asked.recv().unwrap().to_ascii_lowercase();
        for field in ["\r\nrange: bytes=0-1\r\n", "\r\nif-range: \"a\"\r\n"] {
            assert_eq!(asked.contains(field), has_range, "{path}: {asked}");
        }
    }
}

#[test]
fn file_that_an_upstream_server_names_has_ranges() {
    let ask = |name: &str| {
        let head =
            format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /private/{name}\r\nConnection: close\r\n\r\n");
        let (address, _asked) = origin(vec![head.into_bytes()]);
        let text = format!(
            r#"
            [[site]]
            replace = {{ from = "old.example", to = "new.example" }}
            [[site.route]]
            path = "/private/*"
            internal = true
            files = {{ root = "private", strip_prefix = true }}
            [[site.route]]
            proxy = "http://{address}"
            "#
        );
        let folder = Folder::new();
        folder.write("private/a.txt", PAGE).write("private/a.html", PAGE);
        Rig::config(folder, &text).ask("/get", "Range: bytes=0-1\r\n")
    };
    ask("a.txt").expect(206, "<a");
    let whole = ask("a.html");
    assert_eq!(body(whole.expect_status(200)), PAGE.replace("old.example", "new.example"));
}

#[test]
fn files_are_edited_before_compression() {
    let folder = Folder::new();
    let large = PAGE.repeat(40_000);
    folder.write("www/small.html", PAGE).write("www/large.html", &large).write("www/small.txt", PAGE);
    folder.write("www/pre.html", PAGE).write("www/pre.html.gz", "not edited, because it is not sent");
    let config = r#"
        compress = { codings = ["gzip"], min = "1B" }
        [[route]]
        files = { root = "www", precompressed = ["gzip"] }
        replace = { from = "http://old.example", to = "https://new" }
    "#;
    let rig = Rig::config(folder, config);
    let edited = |page: &str| page.replace("http://old.example", "https://new");
    assert_eq!(body(&rig.get("/small.html")), edited(PAGE));
    rig.get("/small.txt").expect(200, PAGE);
    let fetch = |path: &str| {
        text(&curl(&["-k", "--compressed", &format!("{}://{}{path}", rig.scheme(), rig.listens)]).stdout)
    };
    assert_eq!(fetch("/pre.html"), edited(PAGE));
    assert!(fetch("/large.html") == edited(&large));
    let coded = rig.ask("/large.html", "Accept-Encoding: gzip\r\n");
    coded.expect_field("Content-Encoding", "gzip");
    assert!(coded.body.len() < large.len() / 10, "{}", coded.body.len());
}

#[test]
fn cached_pages_are_stored_unedited() {
    let (address, asked) = origin(vec![html("Cache-Control: max-age=60\r\n", PAGE)]);
    let config = format!(
        r#"
        compress = true
        [[route]]
        proxy = "http://{address}"
        cache = true
        replace = {{ from = "old.example", to = "$http_x_name" }}
        "#
    );
    let rig = Rig::config(Folder::new(), &config);
    for name in ["one.example", "two.example", "<b>"] {
        let answer = rig.ask("/", &format!("X-Name: {name}\r\nAccept-Encoding: gzip\r\n"));
        answer.expect_no_field("Content-Encoding");
        let name = name.replace('<', "&lt;").replace('>', "&gt;");
        assert_eq!(body(&answer), PAGE.replace("old.example", &name));
    }
    assert_eq!(asked.try_iter().count(), 1, "two were answered from the cache");
}

#[test]
fn once_replaces_only_the_first_match() {
    let config = r#"
        [[route]]
        respond = { body = "<p>a</p><p>a</p>", type = "text/html" }
        replace = [{ from = "<p>", to = "<p id=1>", once = true }, { from = "a", to = "b" }]
    "#;
    let rig = Rig::config(Folder::new(), config);
    assert_eq!(body(&rig.get("/")), "<p id=1>b</p><p>b</p>");
}

#[test]
fn million_matches_are_replaced_on_a_slow_connection() {
    let folder = Folder::new();
    folder.write("www/a.html", "ab".repeat(1_000_000));
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = [{{ address = "127.0.0.1:0", h2c = true }}]
            {}
            limits.memory = "16MiB"
            [[route]]
            files = "www"
            replace = {{ from = "ab", to = "0123456789" }}
            "#,
            as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        let url = format!("http://{}/a.html", rig.listens);
        let got = curl(&[protocol, "--limit-rate", "20M", &url]).stdout;
        assert!(got == "0123456789".repeat(1_000_000).into_bytes(), "{protocol}: {} bytes", got.len());
    }
}
