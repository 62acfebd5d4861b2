//! Compression of responses from upstream servers, applications and files.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::origin::{Origin, answer};
use crate::rig::{Answer, Folder, Rig, as_we_are, curl, komainu, text};

const FIELDS: &str = "Content-Type: text/html; charset=utf-8\r\nETag: \"tag\"\r\n";

fn page() -> String {
    (0..500).map(|line| format!("<p>line {line} of a page</p>\n")).collect()
}

/// A compressing proxy in front of an origin that responds with `fields` and the page.
fn proxy(fields: &'static str, settings: &str) -> (Origin, Rig) {
    let origin = Origin::start(move |_| answer("200 OK", fields, &page()));
    let text = format!(
        r"
        threads = 1
        {settings}
        [[route]]
        proxy = {{ to = {:?} }}
        compress = true
        ",
        origin.url
    );
    let rig = Rig::config(Folder::new(), &text);
    (origin, rig)
}

/// Decodes a chunked body.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let line = bytes.iter().position(|&byte| byte == b'\n').expect("a whole chunked body");
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap().trim(), 16).unwrap();
        bytes = &bytes[line + 1..];
        if size == 0 {
            return content;
        }
        content.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
}

fn content(answer: &Answer) -> Vec<u8> {
    match answer.field("Transfer-Encoding") {
        Some(_) => unchunked(&answer.body),
        None => answer.body.clone(),
    }
}

/// Decodes the content.
fn plain(answer: &Answer) -> String {
    let content = content(answer);
    let mut plain = String::new();
    match answer.field("Content-Encoding") {
        None => plain = String::from_utf8(content).unwrap(),
        Some("gzip") => _ = flate2::read::GzDecoder::new(&content[..]).read_to_string(&mut plain).unwrap(),
        Some("br") => _ = brotli::Decompressor::new(&content[..], 4096).read_to_string(&mut plain).unwrap(),
        Some("zstd") => plain = String::from_utf8(zstd::stream::decode_all(&content[..]).unwrap()).unwrap(),
        Some(coding) => panic!("an unknown coding: {coding}"),
    }
    plain
}

#[test]
fn client_receives_its_preferred_coding() {
    let (_origin, rig) = proxy(FIELDS, "");
    for (accepts, coding) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, br", Some("br")),
        ("gzip", Some("gzip")),
        ("br;q=0.5, gzip", Some("gzip")),
        ("deflate", None),
        ("gzip;q=0", None),
    ] {
        let found = rig.ask("/", &format!("Accept-Encoding: {accepts}\r\n"));
        assert_eq!(found.field("Content-Encoding"), coding, "{accepts}: {}", found.head);
        assert_eq!(plain(&found), page(), "{accepts}");
        found.expect_field("Vary", "Accept-Encoding");
        let tag = if coding.is_some() { "W/\"tag\"" } else { "\"tag\"" };
        found.expect_field("ETag", tag);
        if coding.is_some() {
            assert!(content(&found).len() < page().len() / 4, "{accepts}: {}", content(&found).len());
        }
    }
}

#[test]
fn http2_responses_are_compressed() {
    let origin = Origin::start(move |_| answer("200 OK", FIELDS, &page()));
    let folder = Folder::new();
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }";
    let route = format!(
        r"
        compress = true
        [[route]]
        proxy = {:?}
        ",
        origin.url
    );
    folder.write("komainu.toml", format!("{listen}\n{}{route}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let head = text(&curl(&[version, "-sI", "-H", "Accept-Encoding: gzip", &rig.url("/")]).stdout)
            .to_ascii_lowercase();
        assert!(
            head.contains("content-encoding: gzip\r\n") && head.contains("etag: w/\"tag\""),
            "{version}: {head}"
        );
        let coded = curl(&[version, "-s", "-H", "Accept-Encoding: gzip", &rig.url("/")]).stdout;
        let mut plain = String::new();
        flate2::read::GzDecoder::new(&coded[..]).read_to_string(&mut plain).unwrap();
        assert_eq!(plain, page(), "{version}");
    }
}

#[test]
fn untransformable_responses_are_not_compressed() {
    for fields in [
        "Content-Type: text/html\r\nContent-Encoding: br\r\n",
        "Content-Type: text/html\r\nCache-Control: public, No-Transform\r\n",
        "Content-Type: image/png\r\n",
        "Content-Type: text/html\r\nContent-MD5: Q2hlY2sgSW50ZWdyaXR5IQ==\r\n",
        "X-No-Type: 1\r\n",
    ] {
        let (_origin, rig) = proxy(fields, "");
        let found = rig.ask("/", "Accept-Encoding: gzip\r\n");
        assert_eq!(found.text(), page(), "{fields}");
        found.expect_no_field("Vary").expect_no_field("Transfer-Encoding");
    }
    let (_origin, rig) = proxy(FIELDS, "");
    let old = rig.send("GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    old.expect(200, &page()).expect_field("Vary", "Accept-Encoding");
    let part = Origin::start(|_| {
        answer(
            "206 Partial Content",
            "Content-Type: text/html\r\nContent-Range: bytes 0-9999/20000\r\n",
            &page(),
        )
    });
    let text = format!(
        r"
        compress = true
        [[route]]
        proxy = {{ to = {:?} }}
        ",
        part.url
    );
    let rig = Rig::config(Folder::new(), &text);
    rig.ask("/", "Accept-Encoding: gzip\r\n").expect(206, &page()).expect_no_field("Content-Encoding");
}

/// A conditional request (`Accept-Encoding`, `If-None-Match`) and the expected 304: its ETag, and whether it
/// has `Vary`.
type NotModified = (&'static str, &'static str, Option<&'static str>, bool);

fn expect_not_modified(rig: &Rig, path: &str, cases: &[NotModified]) {
    const SINCE: &str = "If-Modified-Since: Wed, 01 Jan 2031 00:00:00 GMT\r\n";
    for (accepts, known, tag, varies) in cases {
        let condition = match *known {
            "" => SINCE.to_owned(),
            known => format!("If-None-Match: {known}\r\n"),
        };
        let found = rig.ask(path, &format!("Accept-Encoding: {accepts}\r\n{condition}"));
        assert_eq!(found.status(), 304, "{path} {accepts} {known}: {}", found.head);
        let got = (found.field("ETag"), found.field("Vary"));
        assert_eq!(
            got,
            (*tag, varies.then_some("Accept-Encoding")),
            "{path} {accepts} {known}: {}",
            found.head
        );
        found.expect_no_field("Content-Encoding");
    }
}

const WEAK: Option<&str> = Some("W/\"tag\"");
const STRONG: Option<&str> = Some("\"tag\"");

#[test]
fn not_modified_response_has_the_fields_of_the_200() {
    for (fields, cases) in [
        (
            "ETag: \"tag\"\r\n",
            &[
                ("gzip", "W/\"tag\"", WEAK, true),
                ("gzip", "\"other\", W/\"tag\"", WEAK, true),
                ("gzip", "*", WEAK, true),
                ("gzip", "", WEAK, true),
                // The client has the identity coding.
                ("gzip", "\"tag\"", STRONG, true),
                ("identity", "\"tag\"", STRONG, true),
                ("identity", "", STRONG, true),
            ][..],
        ),
        ("ETag: \"tag\"\r\nContent-Type: text/html\r\n", &[("gzip", "", WEAK, true)]),
        ("ETag: \"tag\"\r\nVary: accept-encoding\r\nVary: X\r\n", &[]),
        ("ETag: \"tag\"\r\nContent-Type: image/png\r\n", &[("gzip", "", STRONG, false)]),
        ("ETag: \"tag\"\r\nCache-Control: no-transform\r\n", &[("gzip", "", STRONG, false)]),
        ("X-A: 1\r\n", &[("gzip", "", None, true)]),
    ] {
        let origin = Origin::start(move |_| format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n"));
        let text = format!(
            r"
            compress = true
            [[route]]
            proxy = {{ to = {:?} }}
            ",
            origin.url
        );
        expect_not_modified(&Rig::config(Folder::new(), &text), "/", cases);
    }
}

#[test]
fn partial_response_varies_by_accept_encoding() {
    for (fields, varies) in [
        ("Content-Type: text/html\r\nETag: \"tag\"\r\n", true),
        ("Content-Type: multipart/byteranges; boundary=a\r\nETag: \"tag\"\r\n", true),
        ("Content-Type: image/png\r\nETag: \"tag\"\r\n", false),
        ("Content-Type: text/html\r\nContent-Encoding: br\r\nETag: \"tag\"\r\n", false),
        ("Content-Type: text/html\r\nCache-Control: no-transform\r\nETag: \"tag\"\r\n", false),
    ] {
        let fields = format!("{fields}Content-Range: bytes 0-9999/20000\r\n");
        let origin = Origin::start(move |_| answer("206 Partial Content", &fields, &page()));
        let text = format!(
            r"
            compress = true
            [[route]]
            proxy = {{ to = {:?} }}
            ",
            origin.url
        );
        let rig = Rig::config(Folder::new(), &text);
        for accepts in ["gzip", "identity"] {
            let part = rig.ask("/", &format!("Accept-Encoding: {accepts}\r\nRange: bytes=0-9999\r\n"));
            // The range refers to the identity coding.
            part.expect(206, &page()).expect_field("ETag", "\"tag\"");
            assert_eq!(part.field("Vary"), varies.then_some("Accept-Encoding"), "{}", part.head);
        }
    }
}

#[test]
fn not_modified_file_and_cached_response_match_the_200() {
    let origin = Origin::start(|ask| {
        let media_type = if ask.line().contains("png") { "image/png" } else { "text/html" };
        let fields = format!("Content-Type: {media_type}\r\nETag: \"tag\"\r\nCache-Control: max-age=60\r\n");
        answer("200 OK", &fields, &page())
    });
    let folder = Folder::new();
    folder.write("www/page.html", page()).write("www/large.txt", page().repeat(600));
    folder.write("www/image.png", page()).write("www/short.txt", "short");
    let route = format!(
        r#"
        [[route]]
        path = "/cached/*"
        proxy = {:?}
        cache = true
        "#,
        origin.url
    );
    let files = "[[route]]\nfiles = { root = \"www\" }\n";
    let rig = Rig::config(folder, &format!("threads = 1\ncompress = true\n{route}{files}"));
    let date = "If-Modified-Since: Wed, 01 Jan 2031 00:00:00 GMT\r\n";
    for path in ["/page.html", "/large.txt", "/image.png", "/short.txt", "/cached/page", "/cached/image.png"]
    {
        for accepts in ["gzip", "identity"] {
            let accepts = format!("Accept-Encoding: {accepts}\r\n");
            let mut whole = rig.ask(path, &accepts);
            // The first request for a file may get the identity coding while the file is being compressed.
            for _ in 0..3 {
                whole = rig.ask(path, &accepts);
            }
            let tag = whole.field("ETag").unwrap();
            for condition in [format!("If-None-Match: {tag}\r\n"), date.to_owned()] {
                let found = rig.ask(path, &format!("{accepts}{condition}"));
                found.expect(304, "");
                for name in ["ETag", "Vary"] {
                    assert_eq!(found.field(name), whole.field(name), "{path} {accepts}{condition}");
                }
            }
        }
    }
}

#[test]
fn head_response_has_the_fields_of_get() {
    let (_origin, rig) = proxy(FIELDS, "");
    let head = rig.send("HEAD / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
    head.expect(200, "").expect_field("Content-Encoding", "gzip").expect_no_field("Content-Length");
}

#[test]
fn route_compression_overrides_global_compression() {
    let origin = Origin::start(|_| answer("200 OK", FIELDS, &page()));
    let text = format!(
        r#"
        compress = {{ codings = ["gzip"] }}

        [[route]]
        path = "/off"
        proxy = {{ to = {0:?} }}
        compress = false

        [[route]]
        path = "/min"
        proxy = {{ to = {0:?} }}
        compress = {{ min = "1MiB" }}

        [[route]]
        proxy = {{ to = {0:?} }}
        "#,
        origin.url
    );
    let rig = Rig::config(Folder::new(), &text);
    let coding =
        |path| rig.ask(path, "Accept-Encoding: gzip, br\r\n").field("Content-Encoding").map(str::to_owned);
    assert_eq!([coding("/off"), coding("/min"), coding("/")], [None, None, Some("gzip".into())]);
}

#[test]
fn secrets_over_tls_are_compressed_only_when_configured() {
    const SECRET: &str = "Content-Type: text/html\r\nCache-Control: no-store\r\nSet-Cookie: sid=1\r\n";
    let origin = Origin::start(|_| answer("200 OK", SECRET, &page()));
    let text = format!(
        r#"
        trusted_proxies = ["127.0.0.1"]

        [[site]]
        redirect_https = false

        [[site.route]]
        path = "/asked"
        proxy = {{ to = {0:?} }}
        compress = {{ secrets = true }}

        [[site.route]]
        proxy = {{ to = {0:?} }}
        compress = true
        "#,
        origin.url
    );
    let rig = Rig::config(Folder::new(), &text);
    let coding = |path, scheme| {
        let found = rig.ask(
            path,
            &format!("Accept-Encoding: br\r\nX-Forwarded-Proto: {scheme}\r\nX-Forwarded-For: 1.1.1.1\r\n"),
        );
        assert_eq!(plain(&found), page());
        found.field("Content-Encoding").is_some()
    };
    assert!(!coding("/", "https"));
    assert!(coding("/", "http"));
    assert!(coding("/asked", "https"));
}

/// Starts an origin that sends pieces of a chunked body on request of the test.
fn piece_by_piece(fields: &'static str) -> (String, std::sync::mpsc::Sender<Option<&'static str>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, pieces) = std::sync::mpsc::channel::<Option<&str>>();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer).unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n").unwrap();
        for piece in pieces {
            match piece {
                Some(piece) => write!(stream, "{:x}\r\n{piece}\r\n", piece.len()).unwrap(),
                None => stream.write_all(b"0\r\n\r\n").unwrap(),
            }
        }
    });
    (url, sender)
}

#[test]
fn compressed_events_are_flushed_immediately() {
    for coding in ["gzip", "br", "zstd"] {
        let (url, events) = piece_by_piece("Content-Type: text/event-stream\r\n");
        let text = format!(
            r"
            threads = 1
            compress = true
            [[route]]
            proxy = {{ to = {url:?} }}
            "
        );
        let rig = Rig::config(Folder::new(), &text);
        let mut client = rig.connect();
        write!(client, "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n").unwrap();
        let mut received = Vec::new();
        for (count, event) in ["data: one\n\n", "data: two\n\n", "data: three\n\n"].into_iter().enumerate() {
            events.send(Some(event)).unwrap();
            // Reads until the event can be decoded, which would time out if bytes were held back.
            let mut buffer = [0; 4096];
            while decoded_so_far(coding, &received).matches("data:").count() <= count {
                let len = client.read(&mut buffer).unwrap();
                assert!(len > 0, "closed early");
                received.extend_from_slice(&buffer[..len]);
            }
        }
        drop(rig);
    }
}

/// Decodes the received part of a chunked, compressed response.
fn decoded_so_far(coding: &str, bytes: &[u8]) -> String {
    let Some(head) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return String::new() };
    let mut whole = bytes[head + 4..].to_vec();
    whole.extend_from_slice(b"0\r\n\r\n");
    let content = unchunked(&whole);
    let mut plain = Vec::new();
    let _ = match coding {
        "gzip" => flate2::read::GzDecoder::new(&content[..]).read_to_end(&mut plain),
        "br" => brotli::Decompressor::new(&content[..], 4096).read_to_end(&mut plain),
        _ => zstd::stream::Decoder::new(&content[..]).and_then(|mut decoder| decoder.read_to_end(&mut plain)),
    };
    String::from_utf8(plain).unwrap()
}

#[test]
fn truncated_compressed_response_has_no_last_chunk() {
    // The origin closes after its response.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n{FIELDS}Content-Length: 100000\r\n\r\n{}", page());
        }
    });
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r"
            compress = true
            [[route]]
            proxy = {{ to = {url:?} }}
            "
        ),
    );
    let found = rig.ask("/", "Accept-Encoding: gzip\r\n");
    found.expect_field("Content-Encoding", "gzip");
    assert!(!found.body.ends_with(b"0\r\n\r\n"), "it looks whole: {}", found.head);
}

#[test]
fn files_and_fixed_responses_are_compressed_too() {
    let folder = Folder::new();
    folder.write("www/page.html", page()).write("www/large.txt", page().repeat(600));
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            compress = true
            [[route]]
            path = "/fixed"
            respond = {{ body = {:?}, type = "text/html" }}
            [[route]]
            files = {{ root = "www", charset = false }}
            "#,
            page()
        ),
    );
    for (path, want) in [("/fixed", page()), ("/page.html", page()), ("/large.txt", page().repeat(600))] {
        // The first request for a file that is compressed once and stored gets the identity coding, or a
        // streamed one.
        for _ in 0..2 {
            let found = rig.ask(path, "Accept-Encoding: br\r\n");
            assert!(plain(&found) == want, "{path}: {}", found.head);
            found.expect_field("Vary", "Accept-Encoding");
        }
    }
    let part = rig.ask("/page.html", "Accept-Encoding: br\r\nRange: bytes=0-9\r\n");
    part.expect_status(206).expect_no_field("Content-Encoding");
}
