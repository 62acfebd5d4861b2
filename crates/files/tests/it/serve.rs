//! Complete requests over a socket.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use http::{Coding, Fields, Template};
use times::Millis;

use files::{Compress, FileOptions, FileSelector, Files, Options};
use shapes::pattern::PathPattern;

use crate::rig::{Answer, Rig, until};

/// Returns bytes that differ from their neighbours, so that a wrong offset is noticed.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at * 7) as u8).collect()
}

const LARGE: usize = 5 * 1024 * 1024 + 17;

fn plain() -> Rig {
    Rig::new(|folder, _| {
        folder.write("root/a.txt", "0123456789");
        folder.write("root/empty.txt", "");
        folder.write("root/large.bin", pattern(LARGE));
    })
}

#[test]
fn file_is_sent_with_its_header_fields() {
    let rig = plain();
    let answer = rig.get("/a.txt");
    answer
        .expect(200, "0123456789")
        .expect_field("Content-Type", "text/plain; charset=utf-8")
        .expect_field("Content-Length", "10")
        .expect_field("Accept-Ranges", "bytes")
        .expect_field("Vary", "")
        .expect_field("Cache-Control", "");
    assert!(answer.field("ETag").ends_with("-a\"") && !answer.field("Last-Modified").is_empty());
    rig.ask("HEAD", "/a.txt", &[]).expect(200, "").expect_field("Content-Length", "10");
    rig.get("/empty.txt").expect(200, "").expect_field("Content-Length", "0");
    assert!(rig.get("/large.bin").expect_status(200).body == pattern(LARGE));
    rig.ask("HEAD", "/large.bin", &[]).expect(200, "").expect_field("Content-Length", &LARGE.to_string());
    rig.get("/none").expect_status(404);
}

#[test]
fn conditional_requests_omit_the_body() {
    let rig = plain();
    let first = rig.get("/a.txt");
    let etag = first.field("ETag");
    let modified = first.field("Last-Modified");
    for field in [
        format!("If-None-Match: {etag}"),
        format!("If-None-Match: \"x\", W/{etag}"),
        format!("If-Modified-Since: {modified}"),
    ] {
        let answer = rig.ask_for("/a.txt", &[&field]);
        answer.expect(304, "").expect_field("ETag", etag).expect_field("Content-Type", "");
        assert_eq!(rig.ask("HEAD", "/a.txt", &[&field]).status, 304);
    }
    rig.ask_for("/a.txt", &["If-None-Match: \"x\"", &format!("If-Modified-Since: {modified}")])
        .expect(200, "0123456789");
    rig.ask_for("/a.txt", &[&format!("If-Match: {etag}")]).expect(200, "0123456789");
    rig.ask_for("/a.txt", &["If-Match: \"x\""]).expect_status(412);
    rig.ask_for("/a.txt", &["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT"]).expect_status(412);
}

#[test]
fn single_ranges_are_sent() {
    let rig = plain();
    rig.ask_for("/a.txt", &["Range: bytes=2-4"])
        .expect(206, "234")
        .expect_field("Content-Range", "bytes 2-4/10")
        .expect_field("Content-Length", "3");
    rig.ask_for("/a.txt", &["Range: bytes=-3"]).expect(206, "789");
    rig.ask_for("/a.txt", &["Range: bytes=10-"])
        .expect_status(416)
        .expect_field("Content-Range", "bytes */10");
    rig.ask_for("/a.txt", &["Range: lines=1-2"]).expect(200, "0123456789");
    rig.ask("HEAD", "/a.txt", &["Range: bytes=2-4"]).expect(200, "").expect_field("Content-Length", "10");
    let etag = rig.get("/a.txt").field("ETag").to_owned();
    rig.ask_for("/a.txt", &["Range: bytes=2-4", &format!("If-Range: {etag}")]).expect(206, "234");
    rig.ask_for("/a.txt", &["Range: bytes=2-4", "If-Range: \"x\""]).expect(200, "0123456789");

    let middle = rig.ask_for("/large.bin", &["Range: bytes=3000000-4999999"]);
    assert!(middle.expect_status(206).body == pattern(LARGE)[3_000_000..5_000_000]);
}

#[test]
fn multiple_ranges_are_sent_as_multipart() {
    let rig = plain();
    let whole = pattern(LARGE);
    let answer = rig.ask_for("/large.bin", &["Range: bytes=3000000-3000004, 100-49999"]);
    let content_type = answer.expect_status(206).field("Content-Type");
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("a multipart type");
    let mut want = Vec::new();
    for part in [3_000_000..3_000_005, 100..50_000] {
        let first = part.start;
        let last = part.end - 1;
        let head = format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\
             Content-Range: bytes {first}-{last}/{LARGE}\r\n\r\n"
        );
        want.extend_from_slice(head.as_bytes());
        want.extend_from_slice(&whole[part]);
    }
    want.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(answer.body == want);
    answer.expect_field("Content-Length", &want.len().to_string()).expect_field("Content-Range", "");
    // Adjacent ranges are merged.
    rig.ask_for("/a.txt", &["Range: bytes=9-9, 0-0"])
        .expect(206, "0123456789")
        .expect_field("Content-Range", "bytes 0-9/10");
    let many: Vec<String> = (0..17).map(|at| format!("{}-{}", at * 1000, at * 1000)).collect();
    let answer = rig.ask_for("/large.bin", &[&format!("Range: bytes={}", many.join(","))]);
    assert_eq!((answer.status, answer.body.len()), (200, LARGE));
}

#[test]
fn unsupported_methods_get_405_and_options_lists_allowed_ones() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/a.txt", "a");
        folder.write("root/index.html", "i");
        options.files.fallback = Some("/index.html".into());
    });
    for method in ["POST", "PUT", "DELETE", "PATCH", "BREW"] {
        rig.ask(method, "/a.txt", &["Content-Length: 0"])
            .expect_status(405)
            .expect_field("Allow", "GET, HEAD, OPTIONS");
        // Declined, so that a fallback handler may respond: the fallback file is for GET and HEAD only.
        rig.ask(method, "/none", &["Content-Length: 0"]).expect_status(404);
    }
    rig.ask("OPTIONS", "/a.txt", &[]).expect(204, "").expect_field("Allow", "GET, HEAD, OPTIONS");
    rig.ask("OPTIONS", "/none", &[]).expect_status(404);
}

#[test]
fn directory_without_trailing_slash_is_redirected() {
    let rig = Rig::new(|folder, _| {
        folder.write("root/docs/index.html", "docs");
        folder.write("root/a b:c?/index.html", "odd");
        folder.write("root/evil.com/index.html", "evil");
        folder.write("root/bare/a.txt", "a");
    });
    for (target, location) in [
        ("/docs", "./docs/"),
        ("/docs?a=1&b", "./docs/?a=1&b"),
        ("/x/../docs", "./docs/"),
        ("/a%20b:c%3f", "./a%20b%3Ac%3F/"),
        ("//evil.com", "./evil.com/"),
    ] {
        rig.get(target).expect(301, "").expect_field("Location", location);
    }
    rig.get("/docs/").expect(200, "docs").expect_field("Content-Type", "text/html; charset=utf-8");
    rig.get("/docs/index.html").expect(200, "docs");
    rig.get("/docs/index.html/").expect_status(404);
    for target in ["/bare", "/bare/"] {
        let answer = rig.get(target);
        answer.expect_status(404);
        assert!(String::from_utf8_lossy(&answer.body).contains("this folder has no index page"), "{target}");
    }
}

#[test]
fn a_route_that_strips_its_path_still_redirects_to_itself() {
    let rig = Rig::stripping(b"/static", |folder, _| {
        folder.write("root/index.html", "home");
    });
    rig.get("/static").expect(301, "").expect_field("Location", "./static/");
    rig.get("/static/").expect(200, "home");
}

fn template(text: &str) -> Template {
    Template::parse(text, |_| true).unwrap()
}

#[test]
fn candidates_are_tried_in_order_before_the_fallback() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/index.html", "app");
        folder.write("root/about.html", "about");
        folder.write("root/both", "plain");
        folder.write("root/both.html", "html");
        folder.write("root/docs.html", "docs page");
        folder.write("root/docs/a.txt", "a");
        options.files.candidates = vec![template("$path"), template("$path.html")];
        options.files.fallback = Some("/index.html".into());
    });
    for (target, want) in [
        ("/about", "about"),
        ("/about.html", "about"),
        ("/both", "plain"),
        ("/docs", "docs page"),
        ("/", "app"),
        ("/any/where", "app"),
        ("/.env", "app"),
    ] {
        for _ in 0..2 {
            rig.get(target).expect(200, want);
        }
    }
}

#[test]
fn a_dollar_sign_in_a_candidate_is_no_variable() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/all/$path", "the one");
        options.files.candidates = vec![template("/all/$$path")];
    });
    rig.get("/x").expect(200, "the one");
}

#[test]
fn hidden_and_special_files_are_refused() {
    let rig = Rig::new(|folder, _| {
        folder.write("root/.env", "secret");
        folder.write("root/.git/config", "secret");
        folder.write("root/.well-known/acme", "token");
        folder.write("outside.txt", "secret");
        symlink("../outside.txt", folder.path("root/link")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let fifo = folder.path("root/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    });
    rig.get("/.env").expect_status(404);
    rig.get("/%2eenv").expect_status(404);
    rig.get("/.git/config").expect_status(404);
    rig.get("/.well-known/acme").expect(200, "token");
    rig.get("/link").expect_status(403);
    rig.get("/fifo").expect_status(403);
    rig.get("/../outside.txt").expect_status(400);
    rig.get("/%2e%2e/outside.txt").expect_status(400);
    rig.get("/a/..%2f..%2foutside.txt").expect_status(400);
    rig.get("/link%00.png").expect_status(400);
}

#[test]
fn file_changes_are_noticed() {
    let rig = plain();
    for content in ["one", "two", "three", ""] {
        rig.folder.write("root/a.txt", content);
        rig.get("/a.txt").expect(200, content);
        rig.get("/a.txt").expect(200, content);
    }
    std::fs::remove_file(rig.folder.path("root/a.txt")).unwrap();
    rig.get("/a.txt").expect_status(404);
    rig.folder.write("root/a.txt", "back");
    rig.get("/a.txt").expect(200, "back");
    rig.folder.write("new", "by rename");
    std::fs::rename(rig.folder.path("new"), rig.folder.path("root/a.txt")).unwrap();
    rig.get("/a.txt").expect(200, "by rename");
    let before = rig.get("/large.bin");
    rig.folder.write("root/large.bin", &pattern(LARGE)[1..]);
    let after = rig.get("/large.bin");
    assert!(after.body == pattern(LARGE)[1..] && after.field("ETag") != before.field("ETag"));
}

#[test]
fn recently_checked_file_is_not_checked_again() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/a.txt", "one");
        folder.write("root/index.html", "home");
        options.cache.revalidate_after = Millis::MAX;
    });
    rig.get("/a.txt").expect(200, "one");
    rig.get("/").expect(200, "home");
    std::fs::remove_dir_all(rig.folder.path("root")).unwrap();
    rig.get("/a.txt").expect(200, "one");
    rig.get("/").expect(200, "home");
}

#[test]
fn files_are_served_without_a_cache() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/a.txt", "one");
        folder.write("root/large.bin", pattern(LARGE));
        options.cache.entries_max = 0;
        options.files.fallback = Some("/a.txt".into());
    });
    rig.get("/a.txt").expect(200, "one");
    rig.get("/else").expect(200, "one");
    assert!(rig.get("/large.bin").body == pattern(LARGE));
}

#[test]
fn file_truncated_while_it_is_sent_ends_the_response() {
    const SIZE: u64 = 64 * 1024 * 1024;
    let rig = Rig::new(|folder, _| {
        folder.write("root/big", "");
        File::options().write(true).open(folder.path("root/big")).unwrap().set_len(SIZE).unwrap();
    });
    let mut stream = rig.send("GET", "/big", &[]);
    let mut start = vec![0; 1000];
    stream.read_exact(&mut start).unwrap();
    File::options().write(true).open(rig.folder.path("root/big")).unwrap().set_len(1).unwrap();
    let mut rest = Vec::new();
    // The connection ends with a reset or a close, either way before the announced length.
    let _ = stream.read_to_end(&mut rest);
    assert!(((start.len() + rest.len()) as u64) < SIZE);
    rig.get("/big").expect(200, "\0");
}

#[test]
fn file_replaced_while_it_is_sent_is_sent_unchanged() {
    let whole = pattern(24 * 1024 * 1024);
    let rig = Rig::new(|folder, _| folder.write("root/big", &whole));
    let mut stream = rig.send("GET", "/big", &[]);
    let mut bytes = vec![0; 1000];
    stream.read_exact(&mut bytes).unwrap();
    rig.folder.write("new", "new");
    std::fs::rename(rig.folder.path("new"), rig.folder.path("root/big")).unwrap();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(Answer::parse(&bytes).body == whole);
    rig.get("/big").expect(200, "new");
}

#[test]
fn precompressed_files_are_chosen_by_accept_encoding() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/app.js", "plain plain plain");
        folder.write("root/app.js.br", "brotli");
        folder.write("root/app.js.gz", "gzip");
        folder.write("root/alone.js", "alone");
        options.files.precompressed = vec![Coding::Brotli, Coding::Zstd, Coding::Gzip];
    });
    let mut tags = Vec::new();
    for (accept, coding, body) in [
        ("gzip, deflate, br, zstd", "br", "brotli"),
        ("gzip", "gzip", "gzip"),
        ("br;q=0.1, gzip;q=0.5", "gzip", "gzip"),
        ("zstd", "", "plain plain plain"),
        ("identity, br;q=0.5", "", "plain plain plain"),
    ] {
        let answer = rig.ask_for("/app.js", &[&format!("Accept-Encoding: {accept}")]);
        answer
            .expect(200, body)
            .expect_field("Content-Encoding", coding)
            .expect_field("Vary", "Accept-Encoding")
            .expect_field("Content-Type", "text/javascript; charset=utf-8");
        tags.push(answer.field("ETag").to_owned());
    }
    assert!(tags[0] != tags[1] && tags[1] == tags[2] && tags[1] != tags[3] && tags[3] == tags[4]);
    let br = "Accept-Encoding: br";
    rig.get("/app.js").expect(200, "plain plain plain").expect_field("Vary", "Accept-Encoding");
    rig.ask_for("/app.js", &[br, "Range: bytes=0-1"])
        .expect(206, "br")
        .expect_field("Content-Encoding", "br");
    let not_modified = rig.ask_for("/app.js", &[br, &format!("If-None-Match: {}", tags[0])]);
    not_modified.expect(304, "").expect_field("Vary", "Accept-Encoding").expect_field("ETag", &tags[0]);
    rig.ask_for("/app.js", &[br, &format!("If-None-Match: {}", tags[3])]).expect(200, "brotli");
    rig.ask_for("/app.js", &["Accept-Encoding: *;q=0"]).expect_status(406);
    rig.ask_for("/alone.js", &[br]).expect(200, "alone").expect_field("Vary", "");
    // The file changes, but not its siblings.
    let later = SystemTime::now() + Duration::from_secs(5);
    let file = File::options().write(true).open(rig.folder.path("root/app.js")).unwrap();
    file.set_modified(later).unwrap();
    rig.ask_for("/app.js", &[br]).expect(200, "plain plain plain").expect_field("Content-Encoding", "");
}

fn decoded(answer: &Answer) -> Vec<u8> {
    let mut plain = Vec::new();
    match answer.field("Content-Encoding") {
        "gzip" => _ = flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut plain).unwrap(),
        "zstd" => plain = zstd::stream::decode_all(&answer.body[..]).unwrap(),
        "br" => _ = brotli::Decompressor::new(&answer.body[..], 4096).read_to_end(&mut plain).unwrap(),
        other => panic!("no coding: {other:?}"),
    }
    plain
}

#[test]
fn directory_candidates_do_not_cause_redirect_loops() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/a/sub/index.html", "index");
        folder.write("root/below/b/index.html", "b");
        options.files.candidates = vec![template("$path/sub"), template("/below$path")];
    });
    // A trailing slash of the request's path does not turn a candidate that appends to the path into a folder.
    for path in ["/a", "/a/"] {
        rig.get(path).expect_status(404);
    }
    rig.get("/b").expect_status(301).expect_field("Location", "./b/");
    rig.get("/b/").expect(200, "b");
}

#[test]
fn compression_continues_after_its_client_disconnects() {
    let text: String =
        (0..100_000u64).map(|line| format!("{:x}\n", line.wrapping_mul(0x9e37_79b9))).collect();
    let rig = Rig::new(|folder, options| {
        folder.write("root/small.png", "small");
        folder.write("root/a.txt", &text);
        let file = File::options().write(true).open(folder.path("root/a.txt")).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        options.files.compress = Some(Compress { effort: coding::Effort::Small, ..Compress::default() });
    });
    let mut gone = rig.connect();
    gone.write_all(b"GET /small.png HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(gone.peek(&mut [0]).unwrap(), 1);
    gone.write_all(b"GET /a.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n").unwrap();
    // The compression has begun: its memory is charged.
    until("compression", || rig.memory.held_bytes() > text.len() as u64);
    // Closing with unread bytes resets the connection.
    drop(gone);
    until("the end of the connection", || rig.count(|core| core.connections_open.value()) == 0);
    let ask = || rig.ask_for("/a.txt", &["Accept-Encoding: br"]);
    // The next request does not restart the compression: it gets the uncompressed file until it is done.
    ask().expect_status(200).expect_field("Content-Encoding", "");
    until("the compressed file", || ask().field("Content-Encoding") == "br");
}

#[test]
fn files_are_compressed_on_demand() {
    let text = "a line that comes again and again\n".repeat(100);
    let large = text.repeat(100);
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(4000).collect();
    let rig = Rig::new(|folder, options| {
        folder.write("root/a.txt", &text);
        folder.write("root/large.txt", &large);
        folder.write("root/noise.txt", &noise);
        folder.write("root/short.txt", "short");
        folder.write("root/a.png", &text);
        options.files.compress = Some(Compress::default());
    });
    for coding in ["gzip", "zstd", "br"] {
        let accept = format!("Accept-Encoding: {coding}");
        for (path, want) in [("/a.txt", &text), ("/large.txt", &large)] {
            let answer = rig.ask_for(path, &[&accept]);
            answer
                .expect_status(200)
                .expect_field("Vary", "Accept-Encoding")
                .expect_field("Accept-Ranges", "");
            assert!(decoded(&answer) == want.as_bytes() && answer.body.len() < want.len() / 4);
            let etag = answer.field("ETag");
            assert!(etag.starts_with("W/\"") && etag.ends_with(&format!("-{coding}\"")), "{etag}");
            let tag = format!("If-None-Match: {etag}");
            rig.ask_for(path, &[&accept, &tag]).expect(304, "").expect_field("ETag", etag);
            rig.ask("HEAD", path, &[&accept])
                .expect(200, "")
                .expect_field("Content-Length", &answer.body.len().to_string());
        }
        let range = rig.ask_for("/a.txt", &[&accept, "Range: bytes=2-5"]);
        range
            .expect(206, "line")
            .expect_field("Content-Encoding", "")
            .expect_field("Vary", "Accept-Encoding");
        for path in ["/noise.txt", "/short.txt", "/a.png"] {
            rig.ask_for(path, &[&accept]).expect_status(200).expect_field("Content-Encoding", "");
        }
    }
    rig.get("/a.txt").expect(200, &text).expect_field("Vary", "Accept-Encoding");
    rig.folder.write("root/a.txt", text.replace("again", "never"));
    let answer = rig.ask_for("/a.txt", &["Accept-Encoding: gzip"]);
    assert!(decoded(&answer) == text.replace("again", "never").as_bytes());
}

#[test]
fn cache_control_rules_and_extra_fields_are_applied() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/index.html", "i");
        folder.write("root/a.css", "c");
        folder.write("root/a.png", "p");
        folder.write("root/a.txt", "t");
        let rule = |applies, value: &str| (applies, value.to_owned());
        options.files.cache_control = vec![
            rule(FileSelector::Path(PathPattern::parse("*.css").unwrap()), "max-age=1"),
            rule(FileSelector::Media("image/".into()), "max-age=2"),
            rule(FileSelector::Media("text/html".into()), "no-cache"),
        ];
        options.fields = Fields::new();
        options.fields.try_push(b"X-Frame-Options", b"DENY").unwrap();
    });
    for (path, want) in [("/a.css", "max-age=1"), ("/a.png", "max-age=2"), ("/", "no-cache"), ("/a.txt", "")]
    {
        let answer = rig.get(path);
        answer.expect_status(200).expect_field("Cache-Control", want).expect_field("X-Frame-Options", "DENY");
        let tag = format!("If-None-Match: {}", answer.field("ETag"));
        rig.ask_for(path, &[&tag]).expect(304, "").expect_field("Cache-Control", want);
    }
}

#[test]
fn listings_are_sent_as_html_and_json() {
    let rig = Rig::stripping(b"/files", |folder, options| {
        folder.write("root/sub/a.txt", "abc");
        folder.write("root/sub/b.txt", "b");
        folder.write("root/sub/.hidden", "");
        options.files.listing = true;
        options.listing_entries_max = 2;
    });
    rig.get("/files/sub").expect(301, "").expect_field("Location", "./sub/");
    let page = rig.get("/files/sub/");
    page.expect_status(200)
        .expect_field("Content-Type", "text/html; charset=utf-8")
        .expect_field("Vary", "Accept");
    let title = "<title>/files/sub/</title>";
    let link = "<a href=\"./a.txt\">a.txt</a>";
    assert!(page.text().contains(title) && page.text().contains(link) && !page.text().contains("hidden"));
    let json = rig.ask_for("/files/sub/?sort=size&order=desc", &["Accept: application/json"]);
    json.expect_status(200).expect_field("Content-Type", "application/json");
    let larger = json.text().find("a.txt").unwrap();
    let smaller = json.text().find("b.txt").unwrap();
    assert!(json.text().starts_with("{\"path\":\"/files/sub/\",\"truncated\":false") && larger < smaller);
    rig.folder.write("root/sub/c.txt", "c");
    assert!(rig.get("/files/sub/?format=json").text().contains("\"truncated\":true"));
    rig.ask("POST", "/files/sub/", &["Content-Length: 0"]).expect_status(405);
}

#[test]
fn options_are_checked_at_the_start() {
    let refused = |change: fn(&mut Options)| {
        let mut options = Options {
            files: FileOptions { root: vec![std::env::temp_dir()], ..FileOptions::default() },
            ..Options::default()
        };
        change(&mut options);
        Files::new(options).unwrap_err().to_string()
    };
    assert_eq!(refused(|options| options.files.root.clear()), "no folder to serve");
    assert!(refused(|options| options.files.root.push("/none".into())).starts_with("cannot serve /none: "));
    assert_eq!(
        refused(|options| options.files.charset = Some("a\nb".into())),
        "`a\\nb` is not valid in a field"
    );
    for candidate in ["a", "", "/../a", "$path/../a", "$host"] {
        let mut options = Options {
            files: FileOptions { root: vec![std::env::temp_dir()], ..FileOptions::default() },
            ..Options::default()
        };
        options.files.candidates.push(template(candidate));
        assert!(Files::new(options).is_err(), "{candidate}");
    }
}

#[test]
fn switched_or_removed_root_is_noticed() {
    use std::sync::{Arc, Mutex};
    let said = Arc::new(Mutex::new(Vec::new()));
    let theirs = said.clone();
    let rig = Rig::new(|folder, options| {
        folder.write("releases/1/a.txt", "one");
        folder.write("releases/2/a.txt", "two");
        std::os::unix::fs::symlink("releases/1", folder.path("current")).unwrap();
        options.files.root = vec![folder.path("current")];
        options.cache.revalidate_after = Millis(50);
        options.root_report = Some(files::RootReport(Arc::new(move |_, state| {
            theirs.lock().unwrap().push(format!("{state:?}").split('(').next().unwrap().to_owned());
        })));
    });
    let eventually = |status: u16, body: &str| {
        for _ in 0..1_000 {
            let answer = rig.get("/a.txt");
            if answer.status == status && (status != 200 || answer.body == body.as_bytes()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("never {status} {body}");
    };
    rig.get("/a.txt").expect(200, "one");
    // Like `ln -sfn` and Capistrano: a new link replaces the old one.
    let switch = |to: &str| {
        std::os::unix::fs::symlink(to, rig.folder.path("next")).unwrap();
        std::fs::rename(rig.folder.path("next"), rig.folder.path("current")).unwrap();
    };
    switch("releases/2");
    eventually(200, "two");
    std::fs::rename(rig.folder.path("releases/2"), rig.folder.path("releases/away")).unwrap();
    eventually(404, "");
    for _ in 0..20 {
        assert_eq!(rig.get("/a.txt").status, 404);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::fs::rename(rig.folder.path("releases/away"), rig.folder.path("releases/2")).unwrap();
    eventually(200, "two");
    switch("releases/1");
    eventually(200, "one");
    assert_eq!(*said.lock().unwrap(), ["Replaced", "Missing", "Replaced", "Replaced"]);
}
