//! Clients that close their sending side early: each handler combined with each way of closing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::hosted;
use crate::hosted::start;
use crate::origin::{Origin, ok};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, read_answer};
use rustix::net::sockopt;

// Each application creates a file named by the query, takes a while (if the name ends in `busy`, until
// NAME.go exists), and returns the length of the body.
const PERL: &str = r#"sub { my $env = shift; my $mark = $env->{QUERY_STRING};
    if ($mark) { open my $file, '>', $mark or die $!; }
    select undef, undef, undef, 0.4;
    select undef, undef, undef, 0.01 while $mark =~ /busy$/ && !-e "$mark.go";
    my $body = ''; $env->{'psgi.input'}->read($body, 1 << 20); [200, [], ['body ' . length $body]] }"#;
const RUBY: &str = r#"run ->(env) { mark = env['QUERY_STRING']
    File.write(mark, '') unless mark.empty?
    sleep 0.4
    sleep 0.01 while mark.end_with?('busy') && !File.exist?(mark + '.go')
    [200, {}, ["body #{env['rack.input'].read.to_s.bytesize}"]] }"#;
const WSGI: &str = "import os, time
def app(env, start):
    if env['QUERY_STRING']:
        open(env['QUERY_STRING'], 'w').close()
    time.sleep(0.4)
    while env['QUERY_STRING'].endswith('busy') and not os.path.exists(env['QUERY_STRING'] + '.go'):
        time.sleep(0.01)
    start('200 OK', [])
    return [b'body %d' % len(env['wsgi.input'].read())]
";
const ASGI: &str = "import asyncio
async def app(scope, receive, send):
    if scope['type'] == 'lifespan':
        return
    if scope['query_string']:
        open(scope['query_string'].decode(), 'w').close()
    length, more = 0, True
    while more:
        event = await receive()
        length, more = length + len(event['body']), event['more_body']
    await asyncio.sleep(0.4)
    if scope['path'].endswith('/listens'):
        print('received', (await receive())['type'], flush=True)
        if not scope['query_string']:
            return
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'body %d' % length})
";
const APPS: [&str; 4] = ["psgi", "rack", "wsgi", "asgi"];
const HANDLERS: [&str; 7] = ["files", "respond", "proxy", "psgi", "rack", "wsgi", "asgi"];

fn all(more: &str) -> (Rig, Origin) {
    let origin = Origin::start(|ask| {
        std::thread::sleep(std::time::Duration::from_millis(400));
        ok(&format!("body {}", ask.body.len()))
    });
    let folder = Folder::new();
    folder.write("app.psgi", PERL).write("config.ru", RUBY).write("w.py", WSGI).write("a.py", ASGI);
    folder.write("files/at", "body 0");
    let mut text = format!(
        r#"
        [[route]]
        path = "/files/*"
        files = {{ root = "files", strip_prefix = true }}

        [[route]]
        path = "/respond/*"
        respond = {{ status = 200, body = "body 0" }}

        [[route]]
        path = "/proxy/*"
        proxy = {{ to = "{}", client_abort = "ignore" }}
        "#,
        origin.url
    );
    for (name, file) in [
        ("psgi", "psgi = \"app.psgi\""),
        ("rack", "rack = \"config.ru\""),
        ("wsgi", "wsgi = \"w.py\""),
        ("asgi", "asgi = \"a.py\""),
    ] {
        text += &format!(
            r#"
            [[route]]
            path = "/{name}/*"
            app = "{name}"
            [apps.{name}]
            {file}
            workers = 1
            {more}
            "#
        );
    }
    (start(folder, &text), origin)
}

fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    rig::text(&bytes)
}

/// Sends these bytes, closes the sending side, and reads until the end.
fn half_closed(rig: &Rig, bytes: &str) -> String {
    let mut stream = rig.connect();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    rest(stream)
}

#[test]
fn half_closed_client_receives_its_response() {
    let (rig, _origin) = all("client_abort = \"ignore\"");
    for handler in HANDLERS {
        let get = format!("GET /{handler}/at HTTP/1.1\r\nHost: a\r\n\r\n");
        for (request, answers) in [
            (get.clone(), 1),
            (get.repeat(2), 2),
            (get.replace("Host", "Connection: close\r\nHost"), 1),
            (get.replace("1.1", "1.0"), 1),
        ] {
            let answer = half_closed(&rig, &request);
            assert_eq!(answer.matches("200 OK").count(), answers, "{request}: {answer:?}");
            assert_eq!(answer.matches("body 0").count(), answers, "{request}: {answer:?}");
        }
        // After a response on the same connection.
        let mut kept = rig.connect();
        kept.write_all(get.as_bytes()).unwrap();
        read_until(&mut kept, "body 0");
        kept.write_all(get.as_bytes()).unwrap();
        kept.shutdown(Shutdown::Write).unwrap();
        let answer = rest(kept);
        assert!(answer.contains("body 0"), "{handler}: {answer:?}");
        // Without a request there is no response.
        assert_eq!(half_closed(&rig, ""), "", "{handler}");
    }
    for handler in ["proxy", "psgi", "rack", "wsgi", "asgi"] {
        let post = format!("POST /{handler}/at HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        let answer = half_closed(&rig, &(post.clone() + &"x".repeat(100_000)));
        assert!(answer.contains("200 OK") && answer.contains("body 100000"), "{handler}: {answer:?}");
        // A truncated body is not mistaken for a complete one.
        for sent in [10, 90_000] {
            let answer = half_closed(&rig, &(post.clone() + &"x".repeat(sent)));
            assert!(!answer.contains("200 OK"), "{handler} {sent}: {answer:?}");
        }
    }
    assert!(!rig.reported().contains("panicked"), "{}", rig.reported());
}

/// Whether the server's end of the connection from this client port is still open.
fn is_open(rig: &Rig, client_port: u16) -> bool {
    let ends = (format!(":{:04X}", rig.address.port()), format!(":{client_port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).any(|line| {
        // ESTABLISHED or CLOSE_WAIT.
        line[1].ends_with(&ends.0) && line[2].ends_with(&ends.1) && ["01", "08"].contains(&line[3])
    })
}

/// Reads up to and including `end`.
fn read_until(stream: &mut TcpStream, end: &str) {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while !rig::text(&bytes).contains(end) {
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "the connection ended in {:?}", rig::text(&bytes));
        bytes.extend_from_slice(&piece[..len]);
    }
}

#[test]
fn request_of_client_that_closes_immediately_is_started() {
    let (rig, origin) = all("client_abort = \"ignore\"");
    for handler in APPS {
        // The second request waits for the only worker.
        for mark in ["first", "second"] {
            let request = format!("GET /{handler}/at?{handler}-{mark} HTTP/1.1\r\nHost: a\r\n\r\n");
            rig.connect().write_all(request.as_bytes()).unwrap();
        }
    }
    rig.connect().write_all(b"GET /proxy/at HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    for handler in APPS {
        for mark in ["first", "second"] {
            let name = format!("{handler}-{mark}");
            eventually(&format!("{name} is begun"), || rig.folder.at(&name).exists());
        }
    }
    eventually("the upstream server is asked", || !origin.asks().is_empty());
}

#[test]
fn client_abort_cancel_skips_queued_requests() {
    let (rig, _origin) = all("client_abort = \"cancel\"");
    for handler in ["psgi", "rack", "wsgi"] {
        let mut busy = rig.connect();
        let get = |mark: &str| format!("GET /{handler}/at?{mark} HTTP/1.1\r\nHost: a\r\n\r\n");
        busy.write_all(get(&format!("{handler}-busy")).as_bytes()).unwrap();
        let name = format!("{handler}-busy");
        eventually("the worker is busy", || rig.folder.at(&name).exists());
        let mut never = rig.connect();
        let port = never.local_addr().unwrap().port();
        never.write_all(get(&format!("{handler}-never")).as_bytes()).unwrap();
        drop(never);
        eventually("the server has closed it too", || !is_open(&rig, port));
        rig.folder.write(&format!("{handler}-busy.go"), "");
        read_answer(&mut busy).expect_status(200);
        // A later request has been answered, so the earlier one was skipped.
        rig.get(&format!("/{handler}/at")).expect(200, "body 0");
        assert!(!rig.folder.at(&format!("{handler}-never")).exists(), "{handler}");
    }
    assert_eq!(half_closed(&rig, "GET /asgi/at HTTP/1.1\r\nHost: a\r\n\r\n"), "");
}

#[test]
fn client_reset_does_not_affect_other_requests() {
    let (rig, _origin) = all("");
    for handler in HANDLERS {
        let post = format!("POST /{handler}/at HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        for sent in [format!("GET /{handler}/at HTTP/1.1\r\nHost: a\r\n\r\n"), post, String::new()] {
            let mut stream = rig.connect();
            stream.write_all(sent.as_bytes()).unwrap();
            sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
        }
        rig.get(&format!("/{handler}/at")).expect(200, "body 0");
    }
    assert!(!rig.reported().contains("panicked"), "{}", rig.reported());
}

#[test]
fn asgi_disconnect_event_permits_a_late_response() {
    let (rig, _origin) = all("client_abort = \"ignore\"");
    // This application responds although it received the disconnect, and its client waits for the response.
    let answer = half_closed(&rig, "GET /asgi/listens?mark HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.contains("body 0"), "{answer:?}");
    hosted::logged(&rig, "received http.disconnect");
    // This application returns without a response, which is not an error.
    let answer = half_closed(&rig, "GET /asgi/listens HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer, "");
    assert!(!rig.reported().contains("before its response"), "{}", rig.reported());
}

/// Keeps its responses open and counts them.
const HOLDS: &str = "import asyncio
held = 0
async def app(scope, receive, send):
    global held
    if scope['type'] == 'lifespan':
        return
    holds = scope['path'].endswith('/holds')
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'begun' if holds else b'held %d' % held, 'more_body': holds})
    if holds:
        held += 1
        try:
            await asyncio.Event().wait()
        finally:
            held -= 1
";

#[test]
fn asgi_requests_are_cancelled_on_disconnect_by_default() {
    let folder = Folder::new();
    folder.write("a.py", HOLDS).write("w.py", WSGI).write("slow.py", ASGI);
    // Only the client ends the response. The interface of `python` is detected.
    let limits = "workers = 1\ntimeouts = { request = \"10m\", queue = \"10m\" }";
    let text = format!(
        r#"
        [[route]]
        path = "/asgi/*"
        app = "asgi"

        [apps.asgi]
        python = "a.py"
        concurrency = 20
        {limits}

        [[route]]
        path = "/one/*"
        app = "one"

        [apps.one]
        asgi = "a.py"
        concurrency = 1
        {limits}

        [[route]]
        path = "/slow/*"
        app = "slow"

        [apps.slow]
        asgi = "slow.py"
        {limits}

        [[route]]
        path = "/wsgi/*"
        app = "wsgi"

        [apps.wsgi]
        python = "w.py"
        {limits}
        "#
    );
    let rig = start(folder, &text);
    // As many as the worker handles concurrently; none of them may remain.
    for (name, count) in [("asgi", 20), ("one", 1)] {
        let held: Vec<_> = (0..count)
            .map(|_| {
                let mut client = rig.connect();
                let get = format!("GET /{name}/holds HTTP/1.1\r\nHost: a\r\n\r\n");
                client.write_all(get.as_bytes()).unwrap();
                read_until(&mut client, "begun");
                client
            })
            .collect();
        drop(held);
        eventually(&format!("{name} holds none"), || rig.get(&format!("/{name}/held")).body == b"held 0");
    }
    // A client that sent `Connection: close` may still wait for its response.
    for (asked, answers) in [
        ("GET /slow/at HTTP/1.1\r\nHost: a\r\n\r\n", 0),
        ("GET /slow/at HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 1),
        ("GET /slow/at HTTP/1.0\r\n\r\n", 1),
        ("GET /wsgi/at HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ] {
        assert_eq!(half_closed(&rig, asked).matches("body 0").count(), answers, "{asked}");
    }
}

#[test]
fn queued_client_that_requested_close_may_half_close() {
    let origin = Origin::start(|ask| {
        std::thread::sleep(std::time::Duration::from_millis(300));
        ok(ask.line())
    });
    let folder = Folder::new();
    folder.write("app.psgi", "sub { select undef, undef, undef, 0.3; [200, [], [$_[0]{PATH_INFO}]] }");
    let url = &origin.url;
    let mut text = r#"
        [apps.psgi]
        psgi = "app.psgi"
        workers = 1
        client_abort = "cancel"
    "#
    .to_owned();
    let ways = [
        ("queue", format!("queue = {{ active = 1, waiting = 9, age = \"9s\" }}\nproxy = \"{url}\"")),
        ("delay", format!("limit = {{ rate = \"3/s\", burst = 0, delay = \"9s\" }}\nproxy = \"{url}\"")),
        ("fault", format!("fault = [{{ delay = \"300ms\" }}]\nproxy = \"{url}\"")),
        ("places", format!("proxy = {{ to = [{{ url = \"{url}\", connections = 1 }}] }}")),
        ("psgi", "app = \"psgi\"".to_owned()),
    ];
    for (name, how) in &ways {
        text += &format!(
            r#"
            [[route]]
            path = "/{name}/*"
            {how}
            "#
        );
    }
    let rig = start(folder, &text);
    for (name, _) in &ways {
        let ask = |path: &str, version: &str, field: &str| {
            let mut client = rig.connect();
            let head = format!("GET /{name}/{path} HTTP/{version}\r\nHost: a\r\n{field}\r\n");
            client.write_all(head.as_bytes()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            client
        };
        // The first request occupies the only slot, or delays those behind it.
        let first = ask("first", "1.1", "Connection: close\r\n");
        let closing = ask("closing", "1.1", "Connection: close\r\n");
        let old = ask("old", "1.0", "");
        let kept = ask("kept", "1.1", "");
        for (client, path) in [(first, "first"), (closing, "closing"), (old, "old")] {
            let response = rest(client);
            assert!(response.contains(&format!("/{name}/{path}")), "{name}, {path}: {response:?}");
        }
        // A client without `Connection: close` has disconnected.
        assert_eq!(rest(kept), "", "{name}");
    }
}
