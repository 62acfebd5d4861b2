//! The state of a running server in `/v1/status`, `/v1/events` and the dashboard.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;

use crate::hosted;
use crate::origin::{Origin, answer};
use crate::rig::{Folder, PATIENCE, Rig, connect, eventually, komainu, nobody, read_answer, text};

/// Starts an application with one worker that waits for a writer of a FIFO, a proxy with a reachable and an
/// unreachable server, and files.
fn start(origin: &str) -> Rig {
    let folder = Folder::new();
    let wait = "my ($env) = @_; if ($env->{PATH_INFO} =~ m{/wait$}) { open(my $gate, '<', 'gate'); my $line = <$gate>; }";
    folder.write("app.psgi", format!("sub {{ {wait} [200, [], ['ok']] }}\n"));
    folder.write("www/a", "A");
    assert!(Command::new("mkfifo").arg(folder.at("gate")).status().unwrap().success());
    let gone = nobody();
    let app = r#"
        [apps.shop]
        psgi = "app.psgi"
        workers = 1
    "#;
    hosted::start(
        folder,
        &format!(
            r#"
            threads = 1

            [control]
            listen = "unix:control.sock"

            [[route]]
            path = "/app/*"
            app = "shop"

            [[route]]
            path = "/up/*"
            proxy = ["{origin}", "http://{gone}"]

            [[route]]
            files = "www"
            {app}
            "#
        ),
    )
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Requests of the workers, as method and target.
fn current(status: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let processes = list(&status["apps"][0]["processes"]).iter();
    let requests = processes.flat_map(|process| list(&process["current"]));
    requests.map(|request| (text(&request["method"]), text(&request["target"]))).collect()
}

#[test]
fn a_status_reports_routes_servers_workers_queues_and_events() {
    let origin = Origin::start(|_| answer("200 OK", "", "four"));
    let rig = start(&origin.url);
    hosted::ready(&rig, 1);
    let hostile = "/app/wait?%3Cscript%3E\"'&x";
    let ask = |target: &str| {
        let mut stream = connect(rig.address);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let mut first = ask(hostile);
    let mut status = Value::Null;
    eventually("the worker has it", || {
        status = hosted::status(&rig);
        // Query values are redacted, because statistics can be read without a token.
        current(&status) == [("GET".to_owned(), "/app/wait?***".to_owned())]
    });
    let mut second = ask("/app/b");
    eventually("the second one waits", || {
        status = hosted::status(&rig);
        status["apps"][0]["queue"]["waiting"] == 1
    });
    let queue = &status["apps"][0]["queue"];
    assert!(queue["claimed"] == 1 && queue["waiting_max"].as_u64() > Some(1), "{queue}");
    std::fs::write(rig.folder.at("gate"), "go\n").unwrap();
    assert_eq!((read_answer(&mut first).status(), read_answer(&mut second).status()), (200, 200));
    for _ in 0..4 {
        rig.get("/up/a").expect(200, "four");
    }
    rig.get("/missing").expect_status(404);
    eventually("all of it is counted", || {
        status = hosted::status(&rig);
        let requests = list(&status["routes"]).iter().map(|route| route["requests"].as_u64().unwrap());
        requests.sum::<u64>() == 7 && current(&status).is_empty()
    });
    let route = |path: &str| list(&status["routes"]).iter().find(|route| route["route"] == path).unwrap();
    assert_eq!(route("/app/*")["statuses"], serde_json::json!({ "2xx": 2 }));
    assert_eq!((&route("*")["statuses"]["4xx"], &route("*")["handler"]), (&1.into(), &"files".into()));
    let duration = &route("/app/*")["duration"];
    assert_eq!(duration["count"], 2);
    assert!(duration["p50_ms"].as_f64() <= duration["p99_ms"].as_f64(), "{duration}");
    assert_eq!(list(&duration["classes"]).len(), list(&status["class_bounds_ms"]).len() + 1);
    let servers = list(&status["upstreams"][0]["servers"]);
    assert_eq!((&servers[0]["url"], &servers[0]["state"]), (&origin.url.clone().into(), &"up".into()));
    assert!(servers[0]["statuses"]["2xx"] == 4 && servers[1]["failures"]["connect"].as_u64() >= Some(1));
    // The failed connection is reported.
    let events = list(&status["events"]);
    let failed =
        |event: &Value| event["text"].as_str().unwrap().contains(servers[1]["url"].as_str().unwrap());
    assert!(events.iter().any(failed), "{events:?}");
    // `komainu top` shows the same state over the control socket and the control listener.
    let pid = rig.child.id().to_string();
    let socket = format!("unix:{}", rig.folder.at("control.sock").display());
    for place in [&["--pid", &pid][..], &[&socket]] {
        let top = |more: &[&str]| {
            let output = komainu()
                .args(["top", "--every", "250ms", "--once"])
                .args(place)
                .args(more)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout)
        };
        let document: Value = serde_json::from_str(&top(&["--json"])).unwrap();
        assert_eq!(
            (document["pid"].to_string(), &document["upstreams"][0]["state"]),
            (pid.clone(), &"up".into())
        );
        let shown = top(&[]);
        assert!(shown.contains("\nUpstream servers\n") && shown.contains(&origin.url), "{shown}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown}");
    }
    let output = komainu().args(["top", "--once", "127.0.0.1:1"]).output().unwrap();
    assert!(
        !output.status.success() && text(&output.stderr).contains("127.0.0.1:1: "),
        "{}",
        text(&output.stderr)
    );
    assert!(status["connections"]["accepted"].as_u64() >= Some(7) && status["cache"].is_null());
}

/// Sends a request on a new connection to the control listener and reads the head of the response.
fn listen_to(rig: &Rig, path: &str, fields: &str) -> (BufReader<UnixStream>, String) {
    let mut stream = UnixStream::connect(rig.folder.at("control.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (reader, head)
}

/// Returns the next event whose text contains `wanted`.
fn event(stream: &mut BufReader<UnixStream>, wanted: &str) -> Value {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "no event with {wanted}");
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        if event["text"].as_str().unwrap().contains(wanted) {
            return event;
        }
    }
}

#[test]
fn dashboard_has_strict_csp_and_events_are_streamed() {
    let gone = nobody();
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [control]
            listen = "unix:control.sock"
            [[route]]
            proxy = "http://{gone}"
            "#
        ),
    );
    for (path, kind) in
        [("/", "text/html"), ("/dashboard.css", "text/css"), ("/dashboard.js", "text/javascript")]
    {
        let (_, head) = listen_to(&rig, path, "");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(kind), "{head}");
        assert!(head.contains("default-src 'none'; script-src 'self'") && head.contains("nosniff"), "{head}");
    }
    let (mut first, head) = listen_to(&rig, "/v1/events", "");
    assert!(head.contains("200 OK") && head.contains("text/event-stream"), "{head}");
    event(&mut first, "the control listener is");
    // Client-controlled text is escaped as in the log, in one line of JSON.
    let hostile = "/%3Cscript%3E?<img/src=x>\u{1b}[2J\"'&";
    rig.get(&hostile.replace('\u{1b}', "%1b")).expect_status(502);
    let failed = event(&mut first, "%3Cscript%3E?***");
    assert_eq!(failed["level"], "error");
    // A reconnecting client receives the events it missed.
    let before = format!("Last-Event-ID: {}\r\n", failed["number"].as_u64().unwrap() - 1);
    let (mut again, _) = listen_to(&rig, "/v1/events", &before);
    assert_eq!(event(&mut again, ""), failed);
    // There is room for 16 followers, and for a status request besides.
    let others: Vec<_> = (0..14).map(|_| listen_to(&rig, "/v1/events", "")).collect();
    assert!(others.iter().all(|(_, head)| head.contains("200 OK")));
    let (_, head) = listen_to(&rig, "/v1/events", "");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let (_, head) = listen_to(&rig, "/v1/status", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[test]
fn a_file_is_formatted_and_compared_with_the_running_server() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [[route]]
        path   =  "/a"   # one
        respond = "a"
        "#,
    );
    let run = |arguments: &[&str]| {
        let output = komainu().args(arguments).current_dir(rig.folder.path()).output().unwrap();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let pid = rig.child.id().to_string();
    let before = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let (is_good, _, why) = run(&["fmt", "--check"]);
    assert!(!is_good && why.contains("komainu.toml"), "{why}");
    assert_eq!(std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap(), before);
    assert!(run(&["fmt"]).0 && run(&["fmt", "--check"]).0);
    let after = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    assert!(after.contains("path = \"/a\"   # one\n"), "{after}");
    // Whitespace changes are no difference.
    assert_eq!(run(&["diff", "--pid", &pid]), (true, "nothing would change\n".into(), String::new()));
    rig.folder.write(
        "new.toml",
        format!(
            r#"
            threads = 3
            {}
            [[route]]
            path = "/b"
            respond = "b"
            "#,
            after.replace("\"a\"", "\"c\"")
        ),
    );
    let (is_good, said, why) = run(&["diff", "--pid", &pid, "-c", "new.toml"]);
    assert!(is_good, "{why}");
    assert!(said.contains("~ route /a, respond: \"a\" -> \"c\"\n+ route /b = "), "{said}");
    assert!(said.contains("+ threads = 3\n") && said.contains("all of it but `threads`"), "{said}");
    assert_eq!(run(&["diff", "komainu.toml", "new.toml"]).1, said);
}

#[test]
fn history_and_handler_names_are_reported() {
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], ['ok']] }\n").write("www/a", "A");
    let rig = hosted::start(
        folder,
        r#"
        threads = 1

        [control]
        listen = "unix:control.sock"

        [[route]]
        files = "www"
        app = "shop"

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        "#,
    );
    hosted::ready(&rig, 1);
    for path in ["/a", "/b"] {
        rig.get(path).expect_status(200);
    }
    assert_eq!(hosted::status(&rig)["routes"][0]["handler"], "files, app shop");
    let ask = || crate::api::get(&rig, "/v1/history");
    assert_eq!(ask()["step_s"], 5);
    // The first point includes the requests, and the memory of the server and its worker.
    eventually("a point is there", || !list(&ask()["requests"]).is_empty());
    let history = ask();
    assert!(list(&history["requests"])[0].as_f64().unwrap() > 0.0, "{history}");
    assert!(list(&history["memory_bytes"])[0].as_u64().unwrap() > 1 << 20, "{history}");
    assert_eq!(list(&history["p99_ms"]).len(), list(&history["waiting"]).len());
}

#[test]
fn non_reading_history_clients_hold_little_memory() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        threads = 1
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "x"
        "#,
    );
    eventually("the listener is open", || UnixStream::connect(rig.folder.at("control.sock")).is_ok());
    let request = b"GET /v1/history HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
    let mut clients: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(rig.folder.at("control.sock")).unwrap()).collect();
    for client in &mut clients {
        client.set_nonblocking(true).unwrap();
        // As much as the server accepts.
        let _ = client.write(&request);
    }
    // Well-behaved clients are still served, and the memory of the others is accounted.
    for _ in 0..5 {
        let status = crate::api::get(&rig, "/v1/status");
        let held = status["memory"]["held_bytes"].as_u64().unwrap();
        assert!(held < 100 * (128 << 10), "{held}");
    }
}
