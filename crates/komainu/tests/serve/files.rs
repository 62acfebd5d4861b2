//! Static files, as seen by clients.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use crate::rig;
use crate::rig::{Answer, Folder, Rig, curl, eventually, komainu, read_answer, text};

#[test]
fn files_of_a_directory_are_served() {
    let rig = Rig::files(&[("index.html", "<h1>hi</h1>"), ("a/b.txt", "text"), ("a/index.html", "sub")]);
    let index = rig.get("/");
    index.expect(200, "<h1>hi</h1>").expect_field("Content-Type", "text/html; charset=utf-8");
    index.expect_field("Content-Length", "11").expect_field("Accept-Ranges", "bytes");
    assert!(
        index.field("ETag").is_some()
            && index.field("Last-Modified").is_some()
            && index.field("Date").is_some()
    );
    rig.get("/a/b.txt").expect(200, "text").expect_field("Content-Type", "text/plain; charset=utf-8");
    rig.get("/a/").expect(200, "sub");
    rig.get("/a?x=1").expect_status(301).expect_field("Location", "./a/?x=1");
    rig.get("/nothing").expect_status(404);
    rig.get("/%61/b%2Etxt").expect(200, "text");
    rig.get("http://other.example/a/b.txt").expect(200, "text");
    rig.send("HEAD /a/b.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect(200, "")
        .expect_field("Content-Length", "4");
    rig.send("POST /a/b.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .expect_status(405);
    rig.send("DELETE /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect_status(404);
}

#[test]
fn nothing_outside_the_root_is_served() {
    let folder = Folder::new();
    folder
        .write("secret", "secret")
        .write("www/in", "in")
        .write("www/.hidden", "no")
        .write("www/.git/config", "no");
    folder.write("www/.well-known/acme", "yes");
    symlink("../secret", folder.at("www/out")).unwrap();
    symlink("in", folder.at("www/inner")).unwrap();
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0"]).arg(folder.at("www"));
    let rig = Rig::start(command, folder);
    for target in [
        "/../secret",
        "/a/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/.%2e/secret",
        "/in/../../secret",
        "/%2e%2e%2fsecret",
        "/\\..\\secret",
        "/in%00.html",
        "/%",
        "/%zz",
        "/out",
        "/.hidden",
        "/.git/config",
        "//secret",
        "/in/",
        "/in/x",
        "/..",
        "/./../secret",
    ] {
        let answer = rig.get(target);
        assert!((400..500).contains(&answer.status()), "{target}: {}", answer.head);
        assert!(!answer.text().contains("secret\n") && answer.text() != "secret", "{target}");
    }
    rig.get("/inner").expect(200, "in");
    rig.get("/.well-known/acme").expect(200, "yes");
    // The same symbolic link under three policies.
    for (policy, status) in [("off", 403), ("owner-match", 200), ("on", 200)] {
        let folder = Folder::new();
        folder.write("secret", "out").write("www/in", "in");
        symlink("../secret", folder.at("www/out")).unwrap();
        let rig = Rig::config(
            folder,
            &format!("[[route]]\nfiles = {{ root = \"www\", symlinks = \"{policy}\" }}\n"),
        );
        rig.get("/out").expect_status(status);
        rig.get("/in").expect(200, "in");
    }
}

#[test]
fn special_files_are_not_served() {
    let rig = Rig::files(&[("plain", "plain")]);
    assert!(std::process::Command::new("mkfifo").arg(rig.folder.at("www/pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(rig.folder.at("www/socket")).unwrap();
    for name in ["/pipe", "/socket"] {
        let answer = rig.get(name);
        assert!((400..500).contains(&answer.status()), "{}", answer.head);
    }
    rig.get("/plain").expect(200, "plain");
}

#[test]
fn conditional_and_range_requests_are_answered() {
    let rig = Rig::files(&[("digits", "0123456789")]);
    let whole = rig.get("/digits");
    let etag = whole.field("ETag").unwrap();
    let date = whole.field("Last-Modified").unwrap();
    rig.ask("/digits", &format!("If-None-Match: {etag}\r\n")).expect(304, "").expect_field("ETag", etag);
    rig.ask("/digits", &format!("If-None-Match: \"x\", W/{etag}\r\n")).expect(304, "");
    rig.ask("/digits", "If-None-Match: *\r\n").expect(304, "");
    rig.ask("/digits", &format!("If-Modified-Since: {date}\r\n")).expect(304, "");
    rig.ask("/digits", &format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {date}\r\n")).expect_status(200);
    rig.ask("/digits", "If-Match: \"x\"\r\n").expect_status(412);
    rig.ask("/digits", "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n").expect_status(412);
    let range = |range: &str| rig.ask("/digits", &format!("Range: {range}\r\n"));
    range("bytes=2-4").expect(206, "234").expect_field("Content-Range", "bytes 2-4/10");
    range("bytes=-3").expect(206, "789").expect_field("Content-Range", "bytes 7-9/10");
    range("bytes=8-").expect(206, "89");
    range("bytes=10-").expect_status(416).expect_field("Content-Range", "bytes */10");
    range("bytes=4-2").expect(200, "0123456789");
    range("lines=1-2").expect(200, "0123456789");
    // Close ranges are merged into one part; distant ones are sent as several parts.
    range("bytes=0-1, 5-6").expect(206, "0123456").expect_field("Content-Range", "bytes 0-6/10");
    rig.folder.write("www/long", "0123456789".repeat(100));
    let several = rig.ask("/long", "Range: bytes=0-1, 505-506\r\n");
    several.expect_status(206);
    let media = several.field("Content-Type").unwrap();
    let boundary = media.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let parts: Vec<String> = several.text().split(&format!("--{boundary}")).map(str::to_owned).collect();
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert!(parts[1].contains("Content-Range: bytes 0-1/1000") && parts[1].ends_with("\r\n\r\n01\r\n"));
    assert!(parts[2].contains("Content-Range: bytes 505-506/1000") && parts[2].ends_with("\r\n\r\n56\r\n"));
    assert!(parts[3].starts_with("--"));
    let many: String = (0..200).map(|at| format!("{at}-{at},")).collect();
    range(&format!("bytes={many}0-0")).expect(200, "0123456789");
    rig.ask("/digits", &format!("Range: bytes=0-0\r\nIf-Range: {etag}\r\n")).expect(206, "0");
    rig.ask("/digits", "Range: bytes=0-0\r\nIf-Range: \"x\"\r\n").expect(200, "0123456789");
}

#[test]
fn accept_encoding_selects_the_coding_of_a_file() {
    let folder = Folder::new();
    let large = "all work and no play makes jack a dull boy\n".repeat(500);
    folder
        .write("www/a.js", &large)
        .write("www/a.js.br", "BR")
        .write("www/a.js.gz", "GZ")
        .write("www/b.css", &large);
    folder.write("www/c.png", &large);
    let rig =
        Rig::config(folder, "[[route]]\nfiles = { root = \"www\", precompressed = true, compress = true }\n");
    let get = |target: &str, accept: &str| rig.ask(target, &format!("Accept-Encoding: {accept}\r\n"));
    get("/a.js", "gzip, br").expect(200, "BR").expect_field("Content-Encoding", "br");
    get("/a.js", "gzip").expect(200, "GZ").expect_field("Vary", "Accept-Encoding");
    let plain = get("/a.js", "identity");
    plain.expect(200, &large).expect_no_field("Content-Encoding").expect_field("Vary", "Accept-Encoding");
    get("/a.js", "br;q=0, gzip;q=0.5").expect(200, "GZ");
    assert!(get("/a.js", "br").field("Content-Type").unwrap().starts_with("text/javascript"));
    let mut compressed = None;
    eventually("the compressed form is ready", || {
        let answer = get("/b.css", "gzip");
        let done = answer.field("Content-Encoding") == Some("gzip");
        compressed = Some(answer);
        done
    });
    let compressed = compressed.unwrap();
    assert!(compressed.body.len() < large.len() / 10);
    assert_ne!(compressed.field("ETag"), get("/b.css", "identity").field("ETag"));
    get("/c.png", "gzip").expect(200, &large).expect_no_field("Content-Encoding");
    for coding in ["gzip", "br", "zstd"] {
        let url = rig.url("/b.css");
        let accept = format!("Accept-Encoding: {coding}");
        eventually(coding, || get("/b.css", coding).field("Content-Encoding") == Some(coding));
        if coding == "gzip" {
            assert_eq!(text(&curl(&["--compressed", "-H", &accept, &url]).stdout), large);
        }
    }
}

#[test]
fn precompressed_file_must_be_in_the_root_of_its_file() {
    let folder = Folder::new();
    // Written first, so that the compressed files are not older.
    folder.write("override/app.js", "mine").write("override/b/index.html", "mine");
    folder.write("base/app.js", "base").write("base/app.js.gz", "BASE").write("base/app.js.br", "BASE");
    folder.write("base/b/index.html.gz", "BASE").write("base/c.js", "base").write("base/c.js.gz", "BASE");
    folder.write("override/c.js.br", "NONE");
    let route = "[[route]]\nfiles = { root = [\"override\", \"base\"], precompressed = true }\n";
    let rig = Rig::config(folder, route);
    for path in ["/app.js", "/b/"] {
        let found = rig.ask(path, "Accept-Encoding: br, gzip\r\n");
        found.expect(200, "mine").expect_no_field("Content-Encoding").expect_no_field("Vary");
    }
    rig.ask("/c.js", "Accept-Encoding: br, gzip\r\n")
        .expect(200, "BASE")
        .expect_field("Content-Encoding", "gzip");
}

#[test]
fn compressed_file_types_are_not_compressed_again() {
    let folder = Folder::new();
    let drawing = "<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>".repeat(100);
    folder.write("www/a.svgz", &drawing).write("www/a.SVGZ.gz", "twice").write("www/b.SVGZ", &drawing);
    folder.write("www/a.svgz.gz", "twice").write("www/a.tgz", &drawing).write("www/a.svg.gz", &drawing);
    folder.write("own/a.svgz", &drawing);
    let compressed = "precompressed = true, compress = true";
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            compress = true
            [[route]]
            path = "/own/*"
            files = {{ root = "own", strip_prefix = true, types = {{ svgz = "application/gzip" }} }}
            [[route]]
            files = {{ root = "www", {compressed} }}
            "#
        ),
    );
    for accepts in ["gzip, br", "br", "identity"] {
        for path in ["/a.svgz", "/b.SVGZ"] {
            for _ in 0..2 {
                let found = rig.ask(path, &format!("Accept-Encoding: {accepts}\r\n"));
                found.expect(200, &drawing).expect_field("Content-Type", "image/svg+xml");
                found.expect_field("Content-Encoding", "gzip").expect_no_field("Vary");
                let tag = found.field("ETag").unwrap();
                let known = format!("Accept-Encoding: {accepts}\r\nIf-None-Match: {tag}\r\n");
                rig.ask(path, &known).expect(304, "").expect_field("ETag", tag).expect_no_field("Vary");
            }
            let part = rig.ask(path, &format!("Accept-Encoding: {accepts}\r\nRange: bytes=0-3\r\n"));
            part.expect(206, "<svg").expect_field("Content-Encoding", "gzip");
        }
        // Archives are sent as they are, without `Content-Encoding`.
        for (path, media_type) in [
            ("/a.tgz", "application/x-compressed"),
            ("/a.svg.gz", "application/gzip"),
            ("/own/a.svgz", "application/gzip"),
        ] {
            let found = rig.ask(path, &format!("Accept-Encoding: {accepts}\r\n"));
            found.expect(200, &drawing).expect_field("Content-Type", media_type);
            found.expect_no_field("Content-Encoding");
        }
    }
}

#[test]
fn changed_and_removed_files_are_detected() {
    let rig = Rig::files(&[("a", "old")]);
    rig.get("/a").expect(200, "old");
    rig.folder.write("www/a", "newer");
    eventually("the change is noticed", || rig.get("/a").text() == "newer");
    fs::remove_file(rig.folder.at("www/a")).unwrap();
    eventually("the removal is noticed", || rig.get("/a").status() == 404);
    rig.folder.write("www/a", "again");
    eventually("the return is noticed", || rig.get("/a").status() == 200);
}

#[test]
fn large_files_arrive_whole() {
    let rig = Rig::files(&[]);
    let large: Vec<u8> = (0..40_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    rig.folder.write("www/large", &large);
    for _ in 0..2 {
        assert!(rig.get("/large").body == large);
    }
    let part = rig.ask("/large", "Range: bytes=1000000-30000000\r\n");
    assert!(part.body == large[1_000_000..=30_000_000]);
}

#[test]
fn file_truncated_while_sent_ends_the_connection() {
    let rig = Rig::files(&[("small", "small")]);
    rig.folder.write("www/large", vec![b'x'; 50_000_000]);
    let mut stream = rig.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut buffer = [0; 1000];
    stream.read_exact(&mut buffer).unwrap();
    fs::File::options().write(true).open(rig.folder.at("www/large")).unwrap().set_len(10_000_000).unwrap();
    // Closed or reset: the response must neither appear complete nor hang.
    let rest = rig::read_to_close(&mut stream);
    assert!(rest.len() < 50_000_000 - 1000);
    rig.get("/small").expect(200, "small");
}

#[test]
fn several_folders_are_tried_in_order() {
    let folder = Folder::new();
    folder.write("one/a", "one").write("two/a", "two").write("two/b", "two");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0"]).arg(folder.at("one")).arg(folder.at("two"));
    let rig = Rig::start(command, folder);
    rig.get("/a").expect(200, "one");
    rig.get("/b").expect(200, "two");
    rig.get("/c").expect_status(404);
}

/// A refused method looks only at files that the path names.
#[test]
fn refused_method_does_not_change_what_others_get() {
    let folder = Folder::new();
    folder.write("www/gate.html", "gate");
    folder.write("www/db.txt", "secret");
    let rig = Rig::config(
        folder,
        r#"
        threads = 1
        [[route]]
        files = { root = "www", try = ["/gate.html", "$path"] }
        "#,
    );
    for _ in 0..3 {
        rig.get("/db.txt").expect(200, "gate");
        rig.send("POST /db.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .expect_status(405);
    }
}

#[test]
fn try_fallback_listing_and_cache_control_apply_to_files() {
    let folder = Folder::new();
    folder.write("www/about.html", "about").write("www/index.html", "app").write("www/x.css", "css");
    folder.write("list/<b>.txt", "b").write("list/.no", "no");
    let rig = Rig::config(
        folder,
        r#"
[[route]]
path = "/list/*"
files = { root = "list", listing = true, strip_prefix = true }
[[route]]
files = { root = "www", try = ["$path", "$path.html"], fallback = "/index.html", cache_control = { "*.css" = "max-age=60" } }
"#,
    );
    rig.get("/about").expect(200, "about").expect_no_field("Cache-Control");
    rig.get("/some/page").expect(200, "app");
    rig.get("/x.css").expect(200, "css").expect_field("Cache-Control", "max-age=60");
    let listing = rig.get("/list/");
    listing.expect_status(200);
    assert!(
        listing.text().contains("&lt;b&gt;.txt") && !listing.text().contains(".no"),
        "{}",
        listing.text()
    );
    let json = rig.ask("/list/", "Accept: application/json\r\n");
    assert!(json.field("Content-Type").unwrap().starts_with("application/json"));
    assert!(json.text().contains("\"<b>.txt\""));
}

#[test]
fn folders_without_an_index_page_are_not_for_the_fallback() {
    let folder = Folder::new();
    folder.write("www/index.html", "app").write("www/empty/x", "x").write("www/sub/index.html", "sub");
    folder.write("www/empty.html", "page");
    let rig = Rig::config(
        folder,
        r#"
[[route]]
path = "/spa/*"
files = { root = "www", strip_prefix = true, fallback = "/index.html" }
[[route]]
files = { root = "www", try = ["$path", "$path.html"], fallback = "/index.html", fallback_folders = false }
"#,
    );
    rig.get("/spa/empty/").expect(200, "app");
    rig.get("/empty/").expect_status(404);
    rig.get("/empty").expect(200, "page");
    rig.get("/sub/").expect(200, "sub");
    rig.get("/missing/").expect(200, "app");
    rig.get("/").expect(200, "app");
    // The same path again, from the cache of files.
    rig.get("/spa/empty/").expect(200, "app");
    rig.get("/empty/").expect_status(404);
}

#[test]
fn curl_receives_files_and_reuses_connections() {
    let rig = Rig::files(&[("a", "0123456789")]);
    let url = rig.url("/a");
    assert_eq!(text(&curl(&[&url]).stdout), "0123456789");
    assert_eq!(text(&curl(&["--http1.0", &url]).stdout), "0123456789");
    assert_eq!(text(&curl(&["-r", "2-3", &url]).stdout), "23");
    assert_eq!(text(&curl(&["-I", "-w", "%{http_code}", "-o", "/dev/null", &url]).stdout), "200");
    // Three requests, one connection.
    let many = curl(&["-w", "%{num_connects}", &url, &url, &url]);
    assert_eq!(text(&many.stdout), "012345678910123456789001234567890");
    // An unwanted body, announced with `Expect: 100-continue`.
    let body = "x".repeat(2_000_000);
    rig.folder.write("body", &body);
    let data = format!("@{}", rig.folder.at("body").display());
    let posted = curl(&[
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        "Expect: 100-continue",
        "--data-binary",
        &data,
        &url,
    ]);
    assert_eq!(text(&posted.stdout), "405");
}

#[test]
fn files_are_served_over_a_unix_socket() {
    let folder = Folder::new();
    folder.write("www/a", "over unix");
    let socket = folder.at("k.sock");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--listen"]).arg(format!("unix:{}", socket.display()));
    command.arg(folder.at("www"));
    let mut rig = Rig::start(command, folder);
    let answer = curl(&["--unix-socket", socket.to_str().unwrap(), "http://localhost/a"]);
    assert_eq!(text(&answer.stdout), "over unix");
    rig.get("/a").expect(200, "over unix");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(!socket.exists(), "the socket's file is gone");
}

#[test]
fn keep_alive_and_pipelined_requests_are_answered() {
    let rig = Rig::files(&[("a", "A"), ("b", "BB")]);
    let mut stream = rig.connect();
    for _ in 0..3 {
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_answer(&mut stream).expect(200, "A").expect_no_field("Connection");
    }
    let batch = "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
    stream.write_all(batch.as_bytes()).unwrap();
    for _ in 0..200 {
        read_answer(&mut stream).expect(200, "A");
        read_answer(&mut stream).expect(200, "BB");
    }
    // HTTP/1.0 keeps the connection open only on request.
    let mut old = rig.connect();
    old.write_all(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").unwrap();
    read_answer(&mut old).expect(200, "A").expect_field("Connection", "keep-alive");
    old.write_all(b"GET /b HTTP/1.0\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).unwrap();
    Answer::parse(rest).expect(200, "BB").expect_field("Connection", "close");
}

#[test]
fn symlinked_root_is_switched_and_its_loss_is_logged_once() {
    let folder = Folder::new();
    folder.write("releases/1/a", "one").write("releases/2/a", "two");
    std::os::unix::fs::symlink("releases/1", folder.at("current")).unwrap();
    let rig = Rig::config(
        folder,
        r#"
        threads = 2
        [open_files]
        recheck = "100ms"
        [[route]]
        files = "current"
        "#,
    );
    rig.get("/a").expect(200, "one");
    std::os::unix::fs::symlink("releases/2", rig.folder.at("next")).unwrap();
    fs::rename(rig.folder.at("next"), rig.folder.at("current")).unwrap();
    rig::eventually("the new release is served", || (0..8).all(|_| rig.get("/a").text() == "two"));
    rig::eventually("the log has it once", || rig.reported().matches("the folder was replaced").count() == 1);
    fs::rename(rig.folder.at("releases"), rig.folder.at("away")).unwrap();
    rig::eventually("the folder is missed", || (0..16).all(|_| rig.get("/a").status() == 404));
    rig::eventually("the log has it once", || rig.reported().matches("requests get 404").count() == 1);
    fs::rename(rig.folder.at("away"), rig.folder.at("releases")).unwrap();
    rig::eventually("the folder is back", || (0..8).all(|_| rig.get("/a").text() == "two"));
    assert_eq!(rig.reported().matches("requests get 404").count(), 1, "{}", rig.reported());
}
