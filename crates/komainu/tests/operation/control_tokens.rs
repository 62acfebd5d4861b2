//! Tokens of the control listener over TCP: roles, and failed authentication.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::api::JSON;
use crate::rig::{Answer, Folder, PATIENCE, Rig, eventually, kinds, komainu, listen, text};

const READ: &str = "read-0123456789abcdef";
const OPERATE: &str = "operate-0123456789abcdef";
const ADMIN: &str = "admin-0123456789abcdef";

/// Writes the token files and returns their configuration.
fn tokens(folder: &Folder) -> String {
    let each = [("reader", "read", READ), ("deploy", "operate", OPERATE), ("chief", "admin", ADMIN)];
    let one = |(name, role, token): (&str, &str, &str)| {
        let file = format!("{name}.token");
        folder.write(&file, format!(" {token}\n"));
        fs::set_permissions(folder.at(&file), fs::Permissions::from_mode(0o600)).unwrap();
        format!(
            r#"
            [[control.token]]
            name = "{name}"
            role = "{role}"
            token_file = "{file}"
            "#
        )
    };
    each.into_iter().map(one).collect()
}

/// Starts a server whose control listener has tokens and these directives of `[control]`.
fn start(control: &str) -> Rig {
    let folder = Folder::new();
    let tokens = tokens(&folder);
    Rig::config(
        folder,
        &format!(
            r#"
            threads = 1

            [log]
            level = "info"

            [control]
            listen = "127.0.0.1:0"
            {control}
            {tokens}

            [[route]]
            respond = "x"
            "#
        ),
    )
}

/// Address of the control listener opened last.
pub(crate) fn listener(rig: &Rig) -> String {
    let said = "the control listener is http://";
    eventually("the control listener is there", || rig.reported().contains(said));
    rig.reported().rsplit(said).next().unwrap().split_whitespace().next().unwrap().to_owned()
}

/// Sends a request over TCP; `fields` are lines with CRLF.
pub(crate) fn send(address: &str, method: &str, path: &str, fields: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = format!("Content-Length: {}\r\n", body.len());
    let length = if body.is_empty() { "" } else { &length };
    let host = if fields.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    let request =
        format!("{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{length}{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

pub(crate) fn with(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn document(answer: &Answer) -> Value {
    serde_json::from_str(&answer.text()).unwrap_or_else(|error| panic!("{error}: {}", answer.text()))
}

/// A request of each class of operations, with the role that it needs.
const CLASSES: [(&str, &str, &str, u8); 7] = [
    ("GET", "/v1/status", "", 0),
    ("GET", "/metrics", "", 0),
    ("GET", "/v1/openapi.json", "", 0),
    ("GET", "/v1/config", "", 3),
    ("GET", "/v1/audit", "", 1),
    ("POST", "/v1/logs/reopen", "{}", 2),
    ("PUT", "/v1/config/timeouts/drain?persist=false", "\"60s\"", 3),
];

#[test]
fn each_token_role_permits_its_operations() {
    let rig = start("");
    let address = listener(&rig);
    for (method, path, body, needed) in CLASSES {
        let kind = if method == "GET" { "" } else { "Content-Type: application/json\r\nIf-Match: *\r\n" };
        let holders = [(0, String::new()), (1, with(READ)), (2, with(OPERATE)), (3, with(ADMIN))];
        for (role, token) in holders {
            let answer = send(&address, method, path, &format!("{kind}{token}"), body);
            let wanted = match (role >= needed, role) {
                (true, _) => 200,
                (false, 0) => 401,
                (false, _) => 403,
            };
            assert_eq!(answer.status(), wanted, "{method} {path} as {role}: {}", answer.text());
            let name = ["open", "read", "operate", "admin"][usize::from(needed)];
            match wanted {
                401 => _ = answer.expect_field("WWW-Authenticate", "Bearer"),
                403 => {
                    assert!(answer.text().contains(&format!("needs the role `{name}`")), "{}", answer.text())
                }
                _ => {}
            }
        }
    }
    // The scheme is case-insensitive, and with a token any name in `Host` is accepted.
    send(&address, "GET", "/v1/audit", &format!("authorization: bEARER  {READ} \r\n"), "").expect_status(200);
    send(&address, "GET", "/v1/audit", &format!("{}Host: komainu.test\r\n", with(READ)), "")
        .expect_status(200);
    send(&address, "GET", "/v1/status", "Host: komainu.test\r\n", "").expect_status(421);
    let wrong = format!("{}Host: komainu.test\r\n", with("wrong-0123456789abcdef"));
    send(&address, "GET", "/v1/status", &wrong, "").expect_status(401);
    for wrong in ["x", "", &READ[1..], &format!("{READ}x"), &READ.to_uppercase()] {
        let answer = send(&address, "GET", "/v1/status", &with(wrong), "");
        answer.expect_status(401).expect_field("WWW-Authenticate", "Bearer");
    }
    send(&address, "GET", "/v1/status", "Authorization: Basic cmVhZDpyZWFk\r\n", "").expect_status(401);
}

#[test]
fn token_guessing_blocks_the_client_address() {
    let rig = start("");
    let address = listener(&rig);
    let ask = |token: &str| send(&address, "GET", "/v1/audit", &with(token), "");
    for at in 0..10 {
        ask(&format!("guess-{at}-0123456789abcdef")).expect_status(401);
    }
    for _ in 0..200 {
        let answer = ask("guess-0123456789abcdef");
        let wait: u64 = answer.expect_status(429).field("Retry-After").unwrap().parse().unwrap();
        assert!((1..=61).contains(&wait), "{wait}");
    }
    // A correct token is refused as well, otherwise guessing could continue. Requests that need no token are
    // answered.
    ask(READ).expect_status(429);
    send(&address, "GET", "/v1/status", "", "").expect_status(200);
    // The flood is logged as one entry.
    let logged = rig.reported();
    assert!(logged.contains("control: 127.0.0.1 (open): GET /v1/audit: 401"), "{logged}");
    assert!(logged.matches("control: 127.0.0.1").count() < 20, "{logged}");
}

#[test]
fn closed_control_listener_requires_token_for_data() {
    let rig = start("open = false\n");
    let address = listener(&rig);
    for path in ["/v1/status", "/metrics", "/v1/events", "/v1/openapi.json", "/v1/nothing", "/nothing"] {
        let answer = send(&address, "GET", path, "", "");
        answer.expect_status(401).expect_field("WWW-Authenticate", "Bearer");
        assert!(!answer.text().contains("pid"), "{}", answer.text());
    }
    // The page contains no data without a token, which it asks for.
    let page = send(&address, "GET", "/", "", "").expect_status(200).text();
    assert!(page.contains("token-value"), "{page}");
    for path in ["/dashboard.css", "/dashboard.js"] {
        send(&address, "GET", path, "", "").expect_status(200);
    }
    for path in ["/v1/status", "/metrics"] {
        send(&address, "GET", path, &with(READ), "").expect_status(200);
    }
    let described = document(&send(&address, "GET", "/v1/openapi.json", &with(READ), ""));
    assert_eq!(
        described["paths"]["/v1/status"]["get"]["security"],
        json!([{ "token": [] }, { "certificate": [] }])
    );
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let follow = format!("GET /v1/events HTTP/1.1\r\nHost: {address}\r\n{}\r\n", with(READ));
    stream.write_all(follow.as_bytes()).unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
}

#[test]
fn a_reload_reads_the_tokens_again() {
    let rig = start("");
    let address = listener(&rig);
    let reload = |token: &str| send(&address, "POST", "/v1/reload", &format!("{JSON}{}", with(token)), "{}");
    let other = "operate-fedcba9876543210";
    rig.folder.write("deploy.token", other);
    reload(other).expect_status(401);
    reload(OPERATE).expect_status(200);
    reload(OPERATE).expect_status(401);
    reload(other).expect_status(200);
    // An invalid token rejects the new configuration, and the old tokens stay valid.
    for (content, part) in [("short", "at least 20"), ("", "at least 20"), (READ, "the same token")] {
        rig.folder.write("deploy.token", content);
        let answer = reload(other);
        assert!(answer.expect_status(422).text().contains(part), "{}", answer.text());
    }
    rig.folder.write("deploy.token", other);
    // `open` is one of the directives that a reload changes.
    let config = fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    rig.folder.write("komainu.toml", config.replace("[control]\n", "[control]\nopen = false\n"));
    send(&address, "GET", "/v1/status", "", "").expect_status(200);
    reload(other).expect_status(200);
    send(&address, "GET", "/v1/status", "", "").expect_status(401);
}

/// Lines of the audit log once there are `count` of them.
fn audited(rig: &Rig, name: &str, count: usize) -> Vec<Value> {
    let read = || fs::read_to_string(rig.folder.at(name)).unwrap_or_default();
    eventually("the audit log has its lines", || read().lines().count() >= count);
    let lines: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

#[test]
fn audit_file_records_changes_and_refusals() {
    let rig = start("audit = \"audit.log\"\n");
    let address = listener(&rig);
    let post = |token: &str| send(&address, "POST", "/v1/logs/reopen", &format!("{JSON}{token}"), "{}");
    send(&address, "GET", "/v1/status", "", "").expect_status(200);
    send(&address, "GET", "/v1/audit", &with(READ), "").expect_status(200);
    post(&with(OPERATE)).expect_status(200);
    post(&with(READ)).expect_status(403);
    post("").expect_status(401);
    post(&with("wrong-0123456789abcdef")).expect_status(401);
    send(&address, "GET", "/v1/audit", "", "").expect_status(401);
    let long = format!("/v1/upstreams/{}", "%41".repeat(2_000));
    send(&address, "PATCH", &format!("{long}/0"), &format!("{JSON}{}", with(OPERATE)), "{}")
        .expect_status(404);
    let lines = audited(&rig, "audit.log", 6);
    let shown: Vec<(&str, &str, u64)> = lines
        .iter()
        .map(|line| {
            (
                line["actor"].as_str().unwrap(),
                line["role"].as_str().unwrap(),
                line["status"].as_u64().unwrap(),
            )
        })
        .collect();
    let wanted = [
        ("deploy", "operate", 200),
        ("reader", "read", 403),
        ("127.0.0.1", "open", 401),
        ("127.0.0.1", "open", 401),
        ("127.0.0.1", "open", 401),
        ("deploy", "operate", 404),
    ];
    assert_eq!(shown, wanted);
    let first = &lines[0];
    assert_eq!(
        (&first["method"], &first["path"], &first["address"]),
        (&json!("POST"), &json!("/v1/logs/reopen"), &json!("127.0.0.1"))
    );
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
    assert_eq!(lines[5]["path"].as_str().unwrap().len(), 1_024);
    assert!(!fs::read_to_string(rig.folder.at("audit.log")).unwrap().contains("0123456789abcdef"));
    // After a rotation, entries go to the new file.
    fs::rename(rig.folder.at("audit.log"), rig.folder.at("audit.log.1")).unwrap();
    rig.signal("-USR1");
    eventually("the file is opened again", || rig.folder.at("audit.log").exists());
    post(&with(ADMIN)).expect_status(200);
    assert_eq!(audited(&rig, "audit.log", 1)[0]["actor"], "chief");
    audited(&rig, "audit.log.1", 6);
    // The audit log is one of the directives that a reload changes.
    let config = fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    rig.folder.write("komainu.toml", config.replace("audit.log", "other.log"));
    send(&address, "POST", "/v1/reload", &format!("{JSON}{}", with(ADMIN)), "{}").expect_status(200);
    let said = audited(&rig, "other.log", 1);
    assert_eq!((&said[0]["path"], &said[0]["actor"]), (&json!("/v1/reload"), &json!("chief")));
}

#[test]
fn full_audit_log_disk_does_not_block_requests() {
    let rig = start("audit = \"/dev/full\"\n");
    let address = listener(&rig);
    for _ in 0..20 {
        let answer = send(&address, "POST", "/v1/logs/reopen", &format!("{JSON}{}", with(OPERATE)), "{}");
        answer.expect_status(200);
    }
}

#[test]
fn ctl_status_and_top_send_token_from_file() {
    let rig = start("open = false\n");
    let address = listener(&rig);
    let run = |arguments: &[&str], variable: Option<&str>| {
        let mut command: Command = komainu();
        command.args(arguments).env_remove("KOMAINU_TOKEN_FILE");
        variable.into_iter().for_each(|name| _ = command.env("KOMAINU_TOKEN_FILE", rig.folder.at(name)));
        let done = command.output().unwrap();
        (done.status.success(), text(&done.stdout) + &text(&done.stderr))
    };
    let to = format!("http://{address}");
    let file = rig.folder.at("reader.token");
    let file = file.to_str().unwrap();
    let pid = format!("\"pid\": {}", rig.child.id());
    let (good, said) = run(&["ctl", "--to", &to, "--json", "status"], None);
    assert!(!good && said.contains("needs a token"), "{said}");
    let (good, said) = run(&["ctl", "--to", &to, "--token-file", file, "--json", "status"], None);
    assert!(good && said.contains(&pid), "{said}");
    let (good, said) = run(&["ctl", "--to", &to, "--json", "status"], Some("reader.token"));
    assert!(good && said.contains(&pid), "{said}");
    let (good, said) = run(&["ctl", "--to", &to, "reload"], Some("reader.token"));
    assert!(!good && said.contains("needs the role `operate`"), "{said}");
    // The option takes precedence over the environment.
    let (good, said) = run(&["ctl", "--to", &to, "--token-file", file, "reload"], Some("chief.token"));
    assert!(!good && said.contains("`reader`"), "{said}");
    let (good, said) = run(&["ctl", "--to", &to, "status"], Some("none.token"));
    assert!(!good && said.contains("none.token"), "{said}");
    // `komainu status` and `komainu top` by address.
    let (good, said) = run(&["status", &to, "--token-file", file, "--json"], None);
    assert!(good && said.contains(&pid), "{said}");
    let (good, said) = run(&["status", &address], Some("reader.token"));
    assert!(good && said.contains("komainu "), "{said}");
    let top = ["top", &address, "--once", "--json", "--every", "250ms"];
    let (good, said) = run(&top, None);
    assert!(!good && said.contains("401"), "{said}");
    let (good, said) = run(&top, Some("reader.token"));
    assert!(good && said.contains("\"server\""), "{said}");
    let (good, said) = run(&[&top[..], &["--token-file", file]].concat(), None);
    assert!(good && said.contains("\"server\""), "{said}");
}

#[test]
fn check_warns_of_world_readable_token_file() {
    let folder = Folder::new();
    let tokens = tokens(&folder);
    folder.write(
        "komainu.toml",
        format!(
            r#"
            [control]
            listen = "127.0.0.1:9180"
            {tokens}
            [[route]]
            respond = "x"
            "#
        ),
    );
    let check = || {
        let done = komainu().args(["check", "--config"]).arg(folder.at("komainu.toml")).output().unwrap();
        (done.status.success(), text(&done.stderr))
    };
    assert_eq!(check(), (true, String::new()));
    fs::set_permissions(folder.at("deploy.token"), fs::Permissions::from_mode(0o644)).unwrap();
    let (good, said) = check();
    assert!(good && said.contains("deploy.token: chmod o-r"), "{said}");
    folder.write("deploy.token", "too short");
    let (good, said) = check();
    assert!(!good && said.contains("deploy.token") && said.contains("at least 20"), "{said}");
}

/// The supervisor reads the tokens, which only root may read, and opens the audit log in a directory of root.
#[test]
fn unprivileged_server_has_tokens_and_audit_log() {
    for kind in kinds() {
        let folder = Folder::new();
        let tokens = tokens(&folder);
        let text = format!(
            r#"
            {}
            {kind}
            threads = 1

            [log]
            level = "info"

            [control]
            listen = "127.0.0.1:0"
            audit = "audit.log"
            {tokens}

            [[route]]
            respond = "x"
            "#,
            listen(&folder)
        );
        folder.write("komainu.toml", &text);
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        let address = listener(&rig);
        let post =
            |path: &str, token: &str| send(&address, "POST", path, &format!("{JSON}{}", with(token)), "{}");
        post("/v1/logs/reopen", READ).expect_status(403);
        rig.folder.write("deploy.token", "another-0123456789abcdef");
        post("/v1/reload", OPERATE).expect_status(200);
        post("/v1/reload", OPERATE).expect_status(401);
        let lines = audited(&rig, "audit.log", 3);
        let statuses: Vec<u64> = lines.iter().filter_map(|line| line["status"].as_u64()).collect();
        assert_eq!(statuses, [403, 200, 401], "{kind}");
        fs::rename(rig.folder.at("audit.log"), rig.folder.at("audit.log.1")).unwrap();
        rig.signal("-USR1");
        eventually("the file is opened again", || rig.folder.at("audit.log").exists());
        post("/v1/logs/reopen", ADMIN).expect_status(200);
        audited(&rig, "audit.log", 1);
        if kind.contains("65534") {
            // Settings that the supervisor applies with root privileges cannot be changed by the API.
            let fields = format!("{JSON}If-Match: *\r\n{}", with(ADMIN));
            let path = "/v1/config/control/audit?persist=false";
            let refused = send(&address, "PUT", path, &fields, "\"/etc/other.log\"");
            assert!(refused.expect_status(403).text().contains("root's rights"), "{}", refused.text());
        }
    }
}

/// A client that sends requests endlessly and reads nothing occupies only its own slot.
#[test]
fn non_reading_control_client_does_not_block_others() {
    let rig = start("open = false\n");
    let address = listener(&rig);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let ask = format!("GET /v1/audit HTTP/1.1\r\nHost: {address}\r\n{}\r\n", with("wrong-0123456789abcdef"));
    let many = ask.repeat(1_000);
    let mut sent = 0;
    // Until the server stops reading or closes the connection.
    while sent < 1_000 && stream.write_all(many.as_bytes()).is_ok() {
        sent += 1;
    }
    // Its address is blocked; clients of the process's socket are not.
    send(&address, "GET", "/v1/status", &with(READ), "").expect_status(429);
    send(&address, "GET", "/", "", "").expect_status(200);
    let refusals = rig.reported().matches("control: 127.0.0.1").count();
    assert!(refusals < 20, "{refusals}");
}
