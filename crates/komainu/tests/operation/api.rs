//! The control API: documents, changes, and authorization.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::origin::{Origin, answer};
use crate::rig::{Answer, Folder, PATIENCE, Rig, eventually};

/// Sends a request to the control listener on its Unix socket.
pub(crate) fn call(rig: &Rig, method: &str, path: &str, fields: &str, body: &str) -> Answer {
    let mut stream = UnixStream::connect(rig.folder.at("control.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

pub(crate) const JSON: &str = "Content-Type: application/json\r\n";

pub(crate) fn get(rig: &Rig, path: &str) -> Value {
    let answer = call(rig, "GET", path, "", "");
    serde_json::from_str(&answer.expect_status(200).text()).unwrap()
}

/// Sends a change and returns the status and the body.
pub(crate) fn change(rig: &Rig, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = call(rig, method, path, JSON, &body.to_string());
    (answer.status(), serde_json::from_str(&answer.text()).unwrap())
}

pub(crate) fn named(name: &'static str) -> Origin {
    Origin::start(move |_| answer("200 OK", "", name))
}

pub(crate) fn authority(origin: &Origin) -> String {
    origin.url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// Distinct origins that answered a few requests.
fn answers(rig: &Rig) -> Vec<String> {
    let mut all: Vec<String> = (0..6).map(|_| rig.get("/").expect_status(200).text()).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn api_drains_and_weights_upstream_servers() {
    let one = named("one");
    let two = named("two");
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 2

            [control]
            listen = "unix:control.sock"

            [upstreams.shop]
            to = ["{}", {{ url = "{}", weight = 3 }}]

            [[route]]
            path = "/own/*"
            proxy = "{}"

            [[route]]
            proxy = {{ upstream = "shop" }}
            "#,
            one.url, two.url, one.url
        ),
    );
    assert_eq!(answers(&rig), ["one", "two"]);
    let groups = get(&rig, "/v1/upstreams");
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["shop", "*/own/*"]);
    let path = format!("/v1/upstreams/shop/{}", authority(&two));
    let shown = get(&rig, &path);
    assert_eq!(
        (&shown["state"], &shown["health"], &shown["weight"]),
        (&json!("ready"), &json!("up"), &json!(3))
    );
    assert!(shown["requests"].as_u64().unwrap() > 0, "{shown}");
    for state in ["drain", "down"] {
        let (status, done) = change(&rig, "PATCH", &path, &json!({ "state": state }));
        assert_eq!(
            (status, &done["state"], &done["persisted"]),
            (200, &json!(state), &json!(false)),
            "{done}"
        );
        assert_eq!(answers(&rig), ["one"]);
        // An administrative state is not reported as a failure of the server.
        assert_eq!(get(&rig, &path)["health"], "up");
        let status = get(&rig, "/v1/status");
        let servers = status["upstreams"][0]["servers"].as_array().unwrap();
        let shown = servers.iter().find(|server| server["url"] == two.url.as_str()).unwrap();
        assert_eq!((&shown["state"], &shown["order"]), (&json!(state), &json!(state)), "{shown}");
    }
    // A reload that changes the group keeps the administrative state.
    let config = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    rig.folder.write("komainu.toml", config.replace("weight = 3", "weight = 4"));
    let (status, done) = change(&rig, "POST", "/v1/reload", &json!({}));
    assert_eq!(status, 200, "{done}");
    assert_eq!(get(&rig, &path)["weight"], 4);
    assert_eq!(answers(&rig), ["one"]);
    let (status, _) = change(&rig, "PATCH", &path, &json!({ "state": "ready", "weight": 1 }));
    assert_eq!((status, answers(&rig)), (200, vec!["one".to_owned(), "two".to_owned()]));
    let other = format!("/v1/upstreams/shop/{}", authority(&one));
    assert_eq!(change(&rig, "PATCH", &other, &json!({ "weight": 0 })).0, 200);
    assert_eq!(answers(&rig), ["two"]);
    // A server is addressed by its index, and an inline group by its route.
    assert_eq!(get(&rig, "/v1/upstreams/shop/0")["weight"], 0);
    assert_eq!(get(&rig, "/v1/upstreams/*%2Fown%2F*/0")["url"], one.url.as_str());
    for (path, body, status, says) in [
        ("/v1/upstreams/shop/0", json!({ "state": "away" }), 400, "\"ready\", \"drain\" or \"down\""),
        ("/v1/upstreams/shop/0", json!({ "weight": 1001 }), 400, "from 0 to 1000"),
        ("/v1/upstreams/shop/0", json!({ "wait": 1 }), 400, "write state, weight"),
        ("/v1/upstreams/shop/0", json!([]), 400, "an object"),
        ("/v1/upstreams/shop/7", json!({ "weight": 1 }), 404, &authority(&one)),
        ("/v1/upstreams/none/0", json!({ "weight": 1 }), 404, "there are: shop, */own/*"),
    ] {
        let (found, said) = change(&rig, "PATCH", path, &body);
        let text = said["error"].as_str().unwrap().replace("a JSON object", "an object");
        assert!(found == status && text.contains(says), "{path} {body}: {found} {said}");
    }
}

#[test]
fn a_sticky_client_stays_with_a_server_that_is_drained() {
    let one = named("one");
    let two = named("two");
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            [control]
            listen = "unix:control.sock"
            [upstreams.s]
            to = ["{}", "{}"]
            balance = "sticky"
            [[route]]
            proxy = {{ upstream = "s" }}
            "#,
            one.url, two.url
        ),
    );
    let first = rig.get("/");
    let cookie = first.field("Set-Cookie").unwrap().split(';').next().unwrap().to_owned();
    let (mine, other) = if first.text() == "one" { (&one, "two") } else { (&two, "one") };
    let path = format!("/v1/upstreams/s/{}", authority(mine));
    assert_eq!(change(&rig, "PATCH", &path, &json!({ "state": "drain" })).0, 200);
    let ask = || rig.ask("/", &format!("Cookie: {cookie}\r\n")).text();
    assert_eq!((ask(), ask()), (first.text(), first.text()));
    assert_eq!(answers(&rig), [other]);
    assert_eq!(change(&rig, "PATCH", &path, &json!({ "state": "down" })).0, 200);
    assert_eq!(ask(), other);
}

#[test]
fn api_operations_are_recorded_in_audit_log() {
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=60\r\n", "four"));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [control]
            listen = "unix:control.sock"
            [log]
            level = "info"
            [[route]]
            proxy = "{}"
            cache = true
            "#,
            origin.url
        ),
    );
    rig.get("/a").expect(200, "four");
    eventually("it is stored", || get(&rig, "/v1/cache")["objects"] == 1);
    let (status, done) = change(&rig, "POST", "/v1/cache/purge", &json!({ "all": true }));
    assert_eq!((status, &done["objects"]), (200, &json!(1)), "{done}");
    assert_eq!(change(&rig, "POST", "/v1/cache/purge", &json!({})).0, 400);
    assert_eq!(change(&rig, "POST", "/v1/logs/reopen", &json!({})).0, 200);
    assert_eq!(get(&rig, "/v1/applications"), json!({ "applications": [] }));
    assert_eq!(change(&rig, "POST", "/v1/applications/shop/restart", &json!({})).0, 404);
    assert_eq!(get(&rig, "/v1/certificates"), json!({ "certificates": [] }));
    assert_eq!(change(&rig, "POST", "/v1/certificates/a.test/renew", &json!({})).0, 404);
    assert_eq!(get(&rig, "/v1/status")["pid"], rig.child.id());
    rig.folder.write("komainu.toml", "nonsense = 1\n");
    let (status, said) = change(&rig, "POST", "/v1/reload", &json!({}));
    assert!(status == 422 && said["error"].as_str().unwrap().contains("nonsense"), "{said}");
    let audit = get(&rig, "/v1/audit");
    let entries = audit["entries"].as_array().unwrap();
    let what: Vec<(&str, u64)> = entries
        .iter()
        .map(|entry| (entry["what"].as_str().unwrap(), entry["status"].as_u64().unwrap()))
        .collect();
    assert_eq!(what[0], ("POST /v1/reload", 422));
    assert_eq!(what[4..], [("POST /v1/cache/purge", 400), ("POST /v1/cache/purge", 200)]);
    assert!(entries[0]["who"].as_str().unwrap().ends_with(") by the Unix socket"), "{audit}");
    rig.expect_report(") by the Unix socket (admin): POST /v1/cache/purge: 200");
}

#[test]
fn tcp_clients_without_token_cannot_make_changes() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [control]
        listen = "127.0.0.1:0"
        [log]
        level = "info"
        [[route]]
        respond = "x"
        "#,
    );
    let said = "the control listener is http://";
    eventually("it listens", || rig.reported().contains(said));
    let reported = rig.reported();
    let (_, rest) = reported.split_once(said).unwrap();
    let address = rest.split_whitespace().next().unwrap().to_owned();
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.replace("{HOST}", &address).as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes)
    };
    for path in ["/v1/status", "/v1/upstreams", "/v1/openapi.json"] {
        ask(&format!("GET {path} HTTP/1.1\r\nHost: {{HOST}}\r\nConnection: close\r\n\r\n"))
            .expect_status(200);
    }
    let refused = ask("GET /v1/audit HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    assert!(refused.expect_status(403).text().contains("needs the role `read`"));
    let post = |fields: &str| {
        ask(&format!(
            "POST /v1/reload HTTP/1.1\r\nHost: {{HOST}}\r\nConnection: close\r\nContent-Length: 2\r\n{fields}\r\n{{}}"
        ))
    };
    let refused = post(JSON);
    assert!(refused.expect_status(403).text().contains("[control] listen"), "{}", refused.text());
    post("").expect_status(415);
    post("Content-Type: text/plain\r\n").expect_status(415);
    let foreign = post(&format!("{JSON}Origin: http://evil.test\r\n"));
    assert!(foreign.expect_status(403).text().contains("another origin"));
    let other = ask("GET /v1/status HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n");
    other.expect_status(421);
}

#[test]
fn api_errors_have_matching_status_codes() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "x"
        "#,
    );
    let answer = call(&rig, "GET", "/v1/nothing", "", "");
    assert!(answer.expect_status(404).text().contains("/v1/openapi.json"));
    call(&rig, "DELETE", "/v1/status", JSON, "").expect_status(405).expect_field("Allow", "GET, HEAD");
    call(&rig, "GET", "/v1/cache", "", "").expect_status(404);
    assert!(call(&rig, "POST", "/v1/cache/purge", JSON, "{").expect_status(400).text().contains("no JSON"));
    let long = format!("{{\"tag\": \"{}\"}}", "x".repeat(1 << 20));
    call(&rig, "POST", "/v1/cache/purge", JSON, &long).expect_status(413);
    let head = call(&rig, "HEAD", "/v1/status", "", "");
    assert_eq!((head.status(), head.text().as_str()), (200, ""));
}

/// The document passes the validator of OpenAPI 3.1.
#[test]
fn the_openapi_document_is_valid() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "x"
        "#,
    );
    rig.folder.write("openapi.json", get(&rig, "/v1/openapi.json").to_string());
    let python = crate::rig::environment().join("bin/python");
    let judged = std::process::Command::new(python)
        .args(["-c", "import json,sys,openapi_spec_validator as v; v.validate(json.load(open(sys.argv[1])))"])
        .arg(rig.folder.at("openapi.json"))
        .output()
        .unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
}

/// The control socket accepts the same requests, one a line.
#[test]
fn control_socket_accepts_api_requests_on_one_line() {
    let rig = Rig::controlled("[[route]]\nrespond = \"x\"\n");
    let socket = rig.folder.at(&format!("run/{}.sock", rig.child.id()));
    let ask = |line: &str| -> Value {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let status = ask("api {\"path\": \"/v1/status\"}");
    assert_eq!((&status["status"], &status["document"]["pid"]), (&json!(200), &json!(rig.child.id())));
    assert_eq!(ask("api {\"method\": \"POST\", \"path\": \"/v1/reload\"}")["status"], 200);
    let audit = ask("api {\"path\": \"/v1/audit\"}");
    assert!(
        audit["document"]["entries"][0]["who"].as_str().unwrap().ends_with("by the control socket"),
        "{audit}"
    );
    assert!(ask("api nonsense")["error"].as_str().unwrap().contains("no JSON"));
}

#[test]
fn connections_are_counted_by_listener_protocol_and_client() {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {}
            threads = 2
            listen = [{{ address = "127.0.0.1:0", h2c = true }}, "unix:site.sock"]
            [control]
            listen = "unix:control.sock"
            [[route]]
            respond = "x"
            "#,
            crate::rig::as_we_are()
        ),
    );
    let mut command = crate::rig::komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).current_dir(folder.path());
    let rig = Rig::start(command, folder);
    let list = || get(&rig, "/v1/connections");
    let count = |protocol: &str, listener: &str| {
        let document = list();
        let rows = document["listeners"].as_array().unwrap().clone();
        let fits = |row: &&Value| {
            row["protocol"] == protocol && row["listener"].as_str().unwrap().starts_with(listener)
        };
        rows.iter().filter(fits).map(|row| row["connections"].as_u64().unwrap()).sum::<u64>()
    };
    // The rig's first connection may still be open.
    eventually("nobody is connected", || list()["connections"] == 0);
    let mut http1: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(rig.address).unwrap()).collect();
    // Connections with a request, and idle ones.
    http1[0].write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut http2 = TcpStream::connect(rig.address).unwrap();
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let local = UnixStream::connect(rig.folder.at("site.sock")).unwrap();
    eventually("all are counted", || {
        (count("HTTP/1", "http:"), count("HTTP/2", "http:"), count("HTTP/1", "unix:")) == (5, 1, 1)
    });
    let document = list();
    assert_eq!((&document["connections"], &document["counted_in_full"]), (&json!(7), &json!(true)));
    assert_eq!(document["clients"][0], json!({ "client": "127.0.0.1", "connections": 6 }));
    assert_eq!(document["oldest"].as_array().unwrap().len(), 7);
    drop((http1, http2, local));
    eventually("they have ended", || list()["connections"] == 0);
}

#[test]
fn duplicate_authorization_and_origin_fields_are_rejected() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "ok"
        "#,
    );
    for (fields, reason) in [
        ("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", "repeated Authorization"),
        ("Origin: http://x\r\norigin: http://evil.test\r\n", "send one"),
    ] {
        let answer = call(&rig, "POST", "/v1/logs/reopen", &format!("{JSON}{fields}"), "{}");
        assert!(answer.status() == 400 && answer.text().contains(reason), "{fields}: {answer:?}");
    }
    call(&rig, "POST", "/v1/logs/reopen", &format!("{JSON}Origin: http://x\r\n"), "{}").expect_status(200);
}
