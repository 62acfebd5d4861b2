//! Misbehaving applications: forked copies of workers, invalid responses, and output that is not text.

use std::io::{Read, Write};

use crate::hosted::{Client, folder, is_alive, kill, logged, only, ready, start, workers};
use crate::rig::{Rig, connect, eventually};

fn psgi(app: &str) -> Rig {
    let app = format!("sub {{ my $env = shift; my $path = $env->{{PATH_INFO}}; {app} }}\n");
    start(folder("app.psgi", &app), &format!("threads = 1\n{}", only("psgi = \"app.psgi\"\nworkers = 1")))
}

/// Returns everything that the server sends for one request until it closes the connection.
fn fetched(rig: &Rig, path: &str) -> String {
    let mut stream = connect(rig.address);
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Process ids of the copies, from the application's log.
fn copies(rig: &Rig) -> Vec<u32> {
    let reported = rig.reported();
    reported.lines().filter_map(|line| line.split_once("copy is ")?.1.trim().parse().ok()).collect()
}

fn copy_ends(rig: &Rig) {
    logged(rig, "copy is ");
    eventually("the copy has ended", || copies(rig).iter().all(|pid| !is_alive(*pid)));
    logged(rig, "a copy of a worker that the application has forked");
}

#[test]
fn forked_copy_of_perl_worker_sends_no_response() {
    let rig = psgi(
        "if ($path eq '/fork' && !fork) { print STDERR \"copy is $$\\n\"; return [200, [], ['copy']] } \
         select undef, undef, undef, 0.3 if $path eq '/fork'; [200, [], ['original']]",
    );
    let mut client = Client::new(rig.address);
    for _ in 0..3 {
        assert_eq!(client.get("/fork"), (200, "original".into()));
        assert_eq!(client.get("/"), (200, "original".into()));
    }
    copy_ends(&rig);
    assert_eq!(workers(&rig).len(), 1);
}

#[test]
fn forked_copy_of_ruby_worker_sends_no_response() {
    let app = "run(lambda do |env|\n  if env['PATH_INFO'] == '/fork'\n    if fork.nil?\n      \
        warn \"copy is #{Process.pid}\"\n      next [200, {}, ['copy']]\n    end\n    sleep 0.3\n  end\n  \
        [200, {}, ['original']]\nend)\n";
    let rig = start(
        folder("config.ru", app),
        &format!("threads = 1\n{}", only("rack = \"config.ru\"\nworkers = 1")),
    );
    let mut client = Client::new(rig.address);
    for _ in 0..3 {
        assert_eq!(client.get("/fork"), (200, "original".into()));
        assert_eq!(client.get("/"), (200, "original".into()));
    }
    copy_ends(&rig);
}

#[test]
fn forked_copy_of_python_worker_sends_no_response() {
    let wsgi = "import os, sys, time\ndef app(environ, start_response):\n    text = b'original'\n    \
        if environ['PATH_INFO'] == '/fork':\n        if os.fork() == 0:\n            \
        print('copy is', os.getpid(), flush=True)\n            text = b'copy'\n        else:\n            \
        time.sleep(0.3)\n    start_response('200 OK', [])\n    return [text]\n";
    let asgi = "import os, sys, time\nasync def app(scope, receive, send):\n    \
        if scope['type'] != 'http':\n        return\n    text = b'original'\n    \
        if scope['path'] == '/fork':\n        if os.fork() == 0:\n            \
        print('copy is', os.getpid(), flush=True)\n            text = b'copy'\n        else:\n            \
        time.sleep(0.3)\n    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
        await send({'type': 'http.response.body', 'body': text})\n";
    for (kind, app) in [("wsgi", wsgi), ("asgi", asgi)] {
        let rig = start(
            folder("a.py", app),
            &format!("threads = 1\n{}", only(&format!("{kind} = \"a.py:app\"\nworkers = 1"))),
        );
        let mut client = Client::new(rig.address);
        for _ in 0..3 {
            assert_eq!(client.get("/fork"), (200, "original".into()), "{kind}");
            assert_eq!(client.get("/"), (200, "original".into()), "{kind}");
        }
        copy_ends(&rig);
    }
}

#[test]
fn invalid_psgi_responses_are_rejected() {
    let rig = psgi(
        "return [200, ['Content-Type', 'a', \"X-A: a\\r\\nX-B\", '1'], ['x']] if $path eq '/name'; \
         return [200, ['X-A', \"a\\r\\nX-B: 1\"], ['x']] if $path eq '/value'; \
         return [200, ['X-A', 'a' x 50_000_000], ['x']] if $path eq '/long'; \
         return [200, [map { (\"X-$_\", $_) } 1 .. 200_000], ['x']] if $path eq '/many'; \
         return [\"200 OK\\r\\nX-B: 1\", [], ['x']] if $path eq '/status'; \
         [200, [], ['ok']]",
    );
    ready(&rig, 1);
    for path in ["/name", "/value", "/long", "/many", "/status"] {
        let answer = fetched(&rig, path);
        assert!(
            answer.starts_with("HTTP/1.1 502") || answer.starts_with("HTTP/1.1 500"),
            "{path}: {answer:?}"
        );
        assert!(!answer.contains("X-B"), "{path}: {answer:?}");
    }
    for why in
        ["header name", "header value", "header fields", "too large for the channel", "the status is not"]
    {
        logged(&rig, why);
    }
    assert!(fetched(&rig, "/").ends_with("ok"));
}

#[test]
fn psgi_body_falsely_declared_as_chunked_is_sent_whole() {
    let rig = psgi(
        "my @head = ('Transfer-Encoding', 'chunked'); \
         return [200, [@head], [\"3\\r\\nabc\\r\\n0\\r\\n\\r\\n\"]] if $path eq '/chunks'; \
         return [200, [@head], ['']] if $path eq '/empty'; [200, [@head], ['no chunks']]",
    );
    for (path, body) in [("/", "no chunks"), ("/chunks", "abc"), ("/empty", "")] {
        assert_eq!(Client::new(rig.address).get(path), (200, body.into()), "{path}");
    }
    logged(&rig, "is not chunked");
}

#[test]
fn control_bytes_in_application_output_are_escaped_in_log() {
    let rig =
        psgi("print STDERR \"a\\tb \\e[31m red \\x07 \\xc2\\x9b c1 \\x7f \\xc3\\xa9\\n\"; [200, [], ['ok']]");
    assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()));
    logged(&rig, "a\tb \\x1b[31m red \\x07 \\xc2\\x9b c1 \\x7f ");
    assert!(!rig.reported().contains(['\x1b', '\u{9b}', '\x07', '\x7f']));
}

#[test]
fn second_stop_signal_ends_server_immediately() {
    let rig = psgi(
        "if ($path eq '/fork' && !fork) { select undef, undef, undef, 30; exit } print STDERR \"busy\\n\"; sleep 1 while 1;",
    );
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /fork HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    logged(&rig, "busy");
    let pid = rig.child.id();
    assert!(kill(pid, "-TERM"));
    logged(&rig, "stopping");
    assert!(is_alive(pid));
    // Two signals within a second count as one.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert!(kill(pid, "-TERM"));
    eventually("it has ended", || !is_alive(pid));
}
