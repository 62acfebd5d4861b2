//! Configuration changes by the control API and by `komainu ctl`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::api::{JSON, authority, call, change, get, named};
use crate::hosted::{self, Load};
use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, connect, eventually, is_root, komainu, text};

const CONFIG: &str = r#"# The shop's server.
threads = 2 # two are enough
include = "more.toml"
[control]
listen = "unix:control.sock"
# What is said.
[[route]]
path = "/hello"
respond = "hello" # politely
"#;

fn start() -> Rig {
    let folder = Folder::new();
    folder.write(
        "more.toml",
        r#"
        # More.
        [[route]]
        path = "/more"
        respond = "more"
        "#,
    );
    Rig::config(folder, CONFIG)
}

fn file(rig: &Rig, name: &str) -> String {
    std::fs::read_to_string(rig.folder.at(name)).unwrap()
}

/// Sends a change with `If-Match: version` and returns the status and the body.
fn edit(rig: &Rig, method: &str, path: &str, version: &str, body: &Value) -> (u16, Value) {
    let answer = call(rig, method, path, &format!("{JSON}If-Match: {version}\r\n"), &body.to_string());
    (answer.status(), serde_json::from_str(&answer.text()).unwrap())
}

fn version(rig: &Rig) -> String {
    call(rig, "GET", "/v1/config", "", "").expect_status(200).field("ETag").unwrap().to_owned()
}

#[test]
fn api_changes_running_configuration_and_file() {
    let rig = start();
    let before = file(&rig, "komainu.toml");
    assert_eq!(get(&rig, "/v1/config/route/%2Fhello/respond"), "hello");
    assert_eq!(get(&rig, "/v1/config/route/1/respond"), "more");
    let first = version(&rig);
    let (status, done) = edit(&rig, "PUT", "/v1/config/route/%2Fhello/respond", &first, &json!("bye"));
    assert_eq!(
        (status, &done["persisted"], &done["incomplete"]),
        (200, &json!(true), &Value::Null),
        "{done}"
    );
    eventually("every core has it", || rig.get("/hello").text() == "bye");
    assert_eq!(file(&rig, "komainu.toml"), before.replace("respond = \"hello\" #", "respond = \"bye\" #"));
    // A change based on an outdated version is rejected.
    let (status, said) = edit(&rig, "PUT", "/v1/config/route/%2Fhello/respond", &first, &json!("late"));
    assert!(status == 412 && said["error"].as_str().unwrap().contains("read it again"), "{said}");
    let (status, said) = change(&rig, "PUT", "/v1/config/route/%2Fhello/respond", &json!("blind"));
    assert!(status == 428 && said["error"].as_str().unwrap().contains("If-Match"), "{said}");
    // A change in an included file; a new item; a merge patch; a deletion.
    let more = file(&rig, "more.toml");
    assert_eq!(edit(&rig, "PUT", "/v1/config/route/%2Fmore/respond", "*", &json!("less")).0, 200);
    assert_eq!(file(&rig, "more.toml"), more.replace("\"more\"\n", "\"less\"\n"));
    let route = json!({ "path": "/new", "respond": "new" });
    assert_eq!(edit(&rig, "PUT", "/v1/config/route/-", &version(&rig), &route).0, 200);
    eventually("it answers", || rig.get("/new").text() == "new");
    assert_eq!(edit(&rig, "PATCH", "/v1/config/route/%2Fnew", "*", &json!({ "respond": "newer" })).0, 200);
    eventually("it answers otherwise", || rig.get("/new").text() == "newer");
    assert_eq!(edit(&rig, "DELETE", "/v1/config/route/%2Fnew", "*", &Value::Null).0, 200);
    eventually("it is gone", || rig.get("/new").status() == 404);
    assert!(
        !file(&rig, "more.toml").contains("/new")
            && file(&rig, "more.toml").trim_start().starts_with("# More.")
    );
    // A setting that needs a restart is written and reported as incomplete.
    let (status, done) = edit(&rig, "PUT", "/v1/config/threads", "*", &json!(3));
    assert!(status == 200 && done["incomplete"].as_str().unwrap().contains("restart"), "{done}");
    assert_eq!(get(&rig, "/v1/audit")["entries"][0]["what"], "PUT /v1/config/threads");
}

#[test]
fn api_rejects_invalid_configuration_changes() {
    let rig = start();
    let before = (file(&rig, "komainu.toml"), file(&rig, "more.toml"));
    let (status, said) = edit(&rig, "PUT", "/v1/config/threads", "*", &json!("many"));
    assert_eq!(status, 422, "{said}");
    let finding = &said["findings"][0];
    let place = (finding["line"].as_u64().unwrap(), finding["column"].as_u64().unwrap());
    assert!(
        finding["file"].as_str().unwrap().ends_with("komainu.toml") && place.0 > 1 && place.1 == 11,
        "{said}"
    );
    for (method, path, body, status) in [
        ("PUT", "/v1/config/thread", json!(2), 422),
        ("PUT", "/v1/config/include", json!("/etc/*.toml"), 409),
        ("PUT", "/v1/config/route/9", json!({ "respond": "x" }), 404),
        ("PUT", "/v1/config/threads", Value::Null, 400),
        ("DELETE", "/v1/config/route/9", Value::Null, 404),
        // Syntactically valid, but unusable.
        ("PUT", "/v1/config/route/-", json!({ "path": "/f/*", "files": "/nowhere/at/all" }), 422),
        // No site needs the keys.
        ("PUT", "/v1/config/tls", json!({ "ticket_keys": "more.toml" }), 422),
        ("PATCH", "/v1/config", json!([1]), 409),
    ] {
        let (found, said) = edit(&rig, method, path, "*", &body);
        assert!(found == status && said["error"].is_string(), "{method} {path}: {found} {said}");
    }
    assert_eq!((file(&rig, "komainu.toml"), file(&rig, "more.toml")), before);
    rig.get("/hello").expect(200, "hello");
    let left = std::fs::read_dir(rig.folder.path()).unwrap().flatten();
    assert!(left.into_iter().all(|one| !one.file_name().to_string_lossy().ends_with(".new")));
}

#[test]
fn api_does_not_overwrite_externally_modified_file() {
    let rig = start();
    let others = format!("{}# Mine.\n", file(&rig, "komainu.toml"));
    rig.folder.write("komainu.toml", &others);
    let path = "/v1/config/route/%2Fhello/respond";
    let (status, said) = edit(&rig, "PUT", path, "*", &json!("bye"));
    assert!(status == 412 && said["error"].as_str().unwrap().contains("reload first"), "{said}");
    assert_eq!(file(&rig, "komainu.toml"), others);
    rig.get("/hello").expect(200, "hello");
    // A change in memory only, which a reload replaces by the file.
    let (status, done) = edit(&rig, "PUT", &format!("{path}?persist=false"), "*", &json!("bye"));
    assert_eq!((status, &done["persisted"]), (200, &json!(false)), "{done}");
    eventually("it is in force", || rig.get("/hello").text() == "bye");
    assert_eq!(file(&rig, "komainu.toml"), others);
    assert_eq!(change(&rig, "POST", "/v1/reload", &json!({})).0, 200);
    eventually("the file counts", || rig.get("/hello").text() == "hello");
    assert_eq!(edit(&rig, "PUT", path, "*", &json!("bye")).0, 200);
    assert!(
        file(&rig, "komainu.toml").ends_with("# Mine.\n") && file(&rig, "komainu.toml").contains("\"bye\"")
    );
    // File permissions are kept, and a symbolic link remains a link.
    let target = rig.folder.at("real.toml");
    std::fs::rename(rig.folder.at("more.toml"), &target).unwrap();
    std::os::unix::fs::symlink(&target, rig.folder.at("more.toml")).unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(edit(&rig, "PUT", "/v1/config/route/%2Fmore/respond", "*", &json!("link")).0, 200);
    assert!(file(&rig, "real.toml").contains("\"link\""));
    assert!(std::fs::symlink_metadata(rig.folder.at("more.toml")).unwrap().is_symlink());
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn api_adds_and_removes_upstream_servers() {
    let one = named("one");
    let two = named("two");
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            [control]
            listen = "unix:control.sock"
            [upstreams.shop]
            to = "{}" # the first
            [[route]]
            proxy = {{ upstream = "shop" }}
            "#,
            one.url
        ),
    );
    let (status, done) = change(&rig, "POST", "/v1/upstreams/shop", &json!({ "url": two.url, "weight": 2 }));
    assert_eq!((status, &done["persisted"]), (200, &json!(true)), "{done}");
    assert!(
        file(&rig, "komainu.toml").contains("weight = 2")
            && file(&rig, "komainu.toml").contains("# the first")
    );
    eventually("it is asked", || rig.get("/").text() == "two");
    let path = |origin: &Origin| format!("/v1/upstreams/shop/{}", authority(origin));
    assert_eq!(change(&rig, "DELETE", &path(&one), &json!({})).0, 200);
    eventually("the other one has left", || (0..4).all(|_| rig.get("/").text() == "two"));
    let (status, said) = change(&rig, "DELETE", &path(&two), &json!({}));
    assert!(status == 409 && said["error"].as_str().unwrap().contains("at least one"), "{said}");
    assert_eq!(change(&rig, "POST", "/v1/upstreams/shop", &json!({ "url": "nonsense" })).0, 422);
}

/// A server without root privileges changes its running configuration but no file.
#[test]
fn unprivileged_server_applies_changes_without_writing_files() {
    if !is_root() {
        return eprintln!("SKIPPED: only root can start a server of another user");
    }
    let folder = Folder::new();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = r#"
        listen = "127.0.0.1:0"
        user = "nobody"
        [[route]]
        path = "/a"
        respond = "a"
    "#;
    folder.write("komainu.toml", config);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("RUNTIME_DIRECTORY", folder.at("run"));
    let rig = Rig::start(command, folder);
    let done = ctl(&rig, &["config", "set", "route/0/respond", "b"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("has given up root's rights"), "{}", text(&done.stdout));
    eventually("it is in force", || rig.get("/a").text() == "b");
    assert_eq!(file(&rig, "komainu.toml"), config);
    for (path, value) in [("user", "root"), ("listen", "127.0.0.1:1"), ("log/level", "debug")] {
        let refused = ctl(&rig, &["config", "set", path, value]);
        assert!(!refused.status.success() && text(&refused.stderr).contains("root's to change"), "{path}");
    }
    let refused = ctl(&rig, &["config", "set", "threads", "3"]);
    let said = text(&refused.stderr);
    assert!(said.contains("`threads` changes only at a restart and is root's to change"), "{said}");
    let refused = ctl(&rig, &["api", "PUT", "/v1/config/route/0/respond?persist=true", "\"c\""]);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("cannot write"),
        "{}",
        text(&refused.stderr)
    );
}

/// Runs `komainu ctl` with this server's control socket.
fn ctl(rig: &Rig, arguments: &[&str]) -> Output {
    let run: &Path = &rig.folder.at("run");
    let socket = std::fs::read_dir(run).unwrap().flatten().next().unwrap();
    let pid = socket.file_name().to_string_lossy().trim_end_matches(".sock").to_owned();
    komainu().args(["ctl", "--pid", &pid]).args(arguments).env("RUNTIME_DIRECTORY", run).output().unwrap()
}

#[test]
fn ctl_commands_call_the_control_api() {
    let one = named("one");
    let rig = Rig::controlled(&format!(
        r#"
        [control]
        listen = "unix:control.sock"
        [upstreams.shop]
        to = "{}"
        [[route]]
        proxy = {{ upstream = "shop" }}
        "#,
        one.url
    ));
    let run = |arguments: &[&str]| {
        let done = ctl(&rig, arguments);
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    assert!(run(&["status"]).contains("server"));
    let server = authority(&one);
    assert!(run(&["upstream", "drain", "shop", &server]).contains("drain"));
    let table = run(&["upstream", "list"]);
    assert!(table.contains("drain") && table.contains(&one.url), "{table}");
    let shown: Value = serde_json::from_str(&run(&["--json", "upstream", "list"])).unwrap();
    assert_eq!(shown["groups"][0]["servers"][0]["state"], "drain");
    run(&["upstream", "ready", "shop", &server]);
    run(&["upstream", "weight", "shop", "0", "7"]);
    assert_eq!(run(&["config", "get", "upstreams/shop/to"]).trim(), format!("{:?}", one.url));
    run(&["config", "set", "timeouts/drain", "9s"]);
    assert!(file(&rig, "komainu.toml").contains("drain = \"9s\""));
    run(&["config", "unset", "timeouts/drain"]);
    assert!(!file(&rig, "komainu.toml").contains("9s"));
    run(&["reload"]);
    run(&["reopen"]);
    assert!(run(&["audit"]).contains("by the control socket"));
    let refused = ctl(&rig, &["config", "set", "threads", "many"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("komainu.toml:") && said.contains("help:"), "{said}");
    // Through the control listener, and with an editor.
    let to = format!("unix:{}", rig.folder.at("control.sock").display());
    let by_listener = |arguments: &[&str], editor: &str| {
        komainu()
            .args(["ctl", "--to", &to])
            .args(arguments)
            .env("EDITOR", editor)
            .env_remove("VISUAL")
            .output()
            .unwrap()
    };
    assert!(text(&by_listener(&["app", "list"], "").stdout).contains("application"));
    rig.folder.write_program("editor", "#!/bin/sh\necho '\"8s\"' > \"$1\"\n");
    let editor = rig.folder.at("editor");
    run(&["config", "set", "timeouts/drain", "9s"]);
    let edited = by_listener(&["config", "edit", "timeouts/drain"], editor.to_str().unwrap());
    assert!(edited.status.success(), "{}", text(&edited.stderr));
    assert!(file(&rig, "komainu.toml").contains("drain = \"8s\""));
    let missing = by_listener(&["config", "get", "nothing"], "");
    assert!(!missing.status.success() && text(&missing.stderr).contains("there is no `nothing`"));
}

/// Starts a server that switches protocols and echoes everything.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || switched(stream));
        }
    });
    address
}

fn switched(mut stream: TcpStream) {
    head(&mut stream);
    stream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
        .unwrap();
    let mut from = stream.try_clone().unwrap();
    // Until the peer closes.
    let _ = std::io::copy(&mut from, &mut stream);
}

fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    text(&bytes)
}

/// `KOMAINU_CHANGES=50` sets the number of changes of each kind.
#[test]
fn no_request_fails_while_the_configuration_changes() {
    let rounds = std::env::var("KOMAINU_CHANGES").ok().and_then(|count| count.parse().ok()).unwrap_or(2);
    let origin = Origin::start(|_| answer("200 OK", "", "proxied"));
    let folder = Folder::new();
    folder.write("www/a", "A").write("app.psgi", "sub { [200, ['Content-Type' => 'text/plain'], ['app']] }");
    let rig = hosted::start(
        folder,
        &format!(
            r#"
            threads = 2

            [control]
            listen = "unix:control.sock"

            [apps.shop]
            psgi = "app.psgi"
            workers = 2

            [upstreams.shop]
            to = ["{}"]

            [[route]]
            path = "/said"
            respond = "0"

            [[route]]
            path = "/p/*"
            proxy = {{ upstream = "shop" }}

            [[route]]
            path = "/ws"
            proxy = "http://{}"

            [[route]]
            path = "/app"
            app = "shop"

            [[route]]
            files = "www"
            "#,
            origin.url,
            echo()
        ),
    );
    let mut socket = connect(rig.address);
    socket
        .write_all(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    assert!(head(&mut socket).starts_with("HTTP/1.1 101"));
    let loads = ["/a", "/p/x", "/app"].map(|path| Load::start(&rig, 2, path));
    for round in 1..=rounds {
        let said = json!(round.to_string());
        let (status, done) = edit(&rig, "PUT", "/v1/config/route/%2Fsaid/respond", "*", &said);
        assert!(status == 200 && done["persisted"] == true && done["failures"].is_null(), "{done}");
        let (status, done) = change(&rig, "POST", "/v1/reload", &json!({}));
        assert!(status == 200, "{done}");
        eventually("it is in force", || json!(rig.get("/said").text()) == said);
        socket.write_all(b"ping").unwrap();
        let mut back = [0; 4];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"ping");
        loads.iter().for_each(|load| load.wait_for_good(10));
    }
    for load in loads {
        assert_eq!(load.finish(), Vec::<u16>::new());
    }
}
