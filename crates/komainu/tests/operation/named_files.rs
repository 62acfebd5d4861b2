//! Files that applications and upstream servers name in place of a response: `X-Accel-Redirect` and `X-Sendfile`.

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
        "threads = 1\n[[route]]\npath = \"/protected/*\"\ninternal = true\nfiles = {{ root = \"files/deep/..\", strip_prefix = true }}\n\
         [[route]]\npath = \"/up\"\nproxy = \"{}\"\n[[route]]\npath = \"/open/*\"\nfiles = {{ root = \"files\", strip_prefix = true }}\n\
         [[route]]\napp = \"shop\"\n{more}[apps.shop]\npsgi = \"app.psgi\"\nworkers = 1\n",
        origin.url
    );
    start(folder, &config)
}

fn file(answer: &Answer) -> &Answer {
    answer.expect(200, "0123456789")
}

#[test]
fn an_application_names_a_file_and_the_server_sends_it() {
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
    // The validators are the file's, as its content is.
    let etag = sent.field("ETag").unwrap().to_owned();
    assert_ne!(etag, "\"app\"");
    let unchanged = rig.ask("/x?accel=/protected/a%20b.txt", &format!("If-None-Match: {etag}\r\n"));
    unchanged.expect_status(304);
    let part = rig.ask("/x?accel=/protected/a%20b.txt?query", "Range: bytes=2-4\r\n");
    assert_eq!((part.status(), part.text()), (206, "234".to_owned()));
    let path = rig.folder.at("files/deep/c.txt");
    rig.get(&format!("/x?sendfile={}", path.display())).expect(200, "deep");
    // Whatever the method was.
    let posted = rig.send(
        "POST /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
    );
    posted.expect(200, "deep");
    let head = rig
        .send("HEAD /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((head.status(), head.field("Content-Length"), head.text()), (200, Some("4"), String::new()));
    // An upstream server may too.
    let up = rig.get("/up?x=/protected/a%20b.txt");
    assert_eq!(file(&up).field("Content-Type"), Some("text/plain"));
    // Kept connections serve on.
    let two = "GET /x?accel=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\n\r\n\
               GET /up?x=/protected/deep/c.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(
        rig.send(two).head.matches("200 OK").count() + rig.send(two).text().matches("200 OK").count(),
        2
    );
}

#[test]
fn nobody_gets_what_no_internal_route_has() {
    let rig = rig("");
    // Clients cannot ask for it.
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
        // It is a page of errors, not the application's PDF.
        assert_ne!(answer.field("Content-Type"), Some("application/pdf"), "{target}");
    }
    let files = rig.folder.at("files");
    for path in [
        "/etc/passwd".to_owned(),
        format!("{}/../outside.txt", files.display()),
        format!("{}x/a", files.display()),
    ] {
        let answer = rig.get(&format!("/x?sendfile={path}"));
        assert!(matches!(answer.status(), 404 | 500), "{path}: {answer:?}");
    }
}

#[test]
fn a_cache_in_front_gets_the_file_and_a_client_that_reads_nothing_holds_no_worker() {
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
    // There is one worker.
    rig.get("/x?accel=/protected/deep/c.txt&x").expect_status(404);
    rig.get("/x?accel=/protected/a%20b.txt").expect_status(200);
}

#[test]
fn where_no_route_is_internal_the_log_has_what_was_ignored() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /protected/a\r\n", "empty"));
    let config = format!(
        "threads = 1\n[[route]]\npath = \"/up\"\nproxy = \"{}\"\n[[route]]\napp = \"shop\"\n\
         [apps.shop]\npsgi = \"app.psgi\"\nworkers = 1\n",
        origin.url
    );
    let rig = start(folder("app.psgi", APP), &config);
    rig.get("/up").expect(200, "empty").expect_no_field("X-Accel-Redirect");
    rig.expect_report("\"/up\": the application names a file that no internal route has");
    // The same of an application, once a second has passed.
    eventually("the log has it", || {
        rig.get("/app?sendfile=/etc/hosts").expect_status(200).expect_no_field("X-Sendfile");
        rig.reported().contains("\"/app")
    });
}

#[test]
fn a_file_is_sent_while_the_content_that_is_dropped_does_not_end() {
    // It names a file, announces content and sends none; it answers each connection once.
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
        "threads = 1\n[[route]]\npath = \"/protected/*\"\ninternal = true\nfiles = {{ root = \"files\", strip_prefix = true }}\n\
         [[route]]\nproxy = {{ to = \"{url}\", timeouts = {{ between = \"1h\" }} }}\n"
    );
    let rig = Rig::config(folder, &config);
    for _ in 0..2 {
        rig.get("/x").expect(200, "the file");
    }
}

/// The application decides for each client whether it gets the file.
#[test]
fn the_age_of_a_named_file_lets_nobody_have_it_from_the_cache() {
    let origin = Origin::start(|_| answer("200 OK", "X-Accel-Redirect: /protected/a.txt\r\n", "hidden"));
    let folder = Folder::new();
    folder.write("files/a.txt", "0123456789");
    let year = std::time::Duration::from_secs(365 * 86_400);
    let file = std::fs::File::options().write(true).open(folder.at("files/a.txt")).unwrap();
    file.set_modified(std::time::SystemTime::now() - year).unwrap();
    let rig = Rig::config(
        folder,
        &format!(
            "threads = 1\n[[route]]\npath = \"/protected/*\"\ninternal = true\nfiles = {{ root = \"files\", strip_prefix = true }}\n\
             [[route]]\ncache = true\nproxy = \"{}\"\n",
            origin.url
        ),
    );
    for asked in 1..=3 {
        rig.get("/x").expect(200, "0123456789");
        assert_eq!(origin.asks().len(), asked);
    }
}
