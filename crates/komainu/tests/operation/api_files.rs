//! Limits of the control API of a server with root privileges: files, programs and addresses that the
//! configuration does not name stay out of reach.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::api::{JSON, call};
use crate::control_tokens::{listener, send};
use crate::privileges::{can_be_tested, start};
use crate::rig::{Answer, Folder, Rig};

const ADMIN: &str = "admin-0123456789abcdef";
const SECRET: &str = "hunter2";

/// A configuration with a token of the role `admin`, and a file readable only by root.
fn prepared(more: &str) -> (Folder, String) {
    let folder = Folder::new();
    folder.write("chief.token", ADMIN).write("secret", format!("{SECRET}\n")).write("www/a", "a");
    folder.write("users", "").write("headers", format!("api-key: {SECRET}\n"));
    for name in ["chief.token", "secret", "users", "headers"] {
        fs::set_permissions(folder.at(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = format!(
        r#"
        {more}
        threads = 1

        [log]
        level = "info"

        [control]
        listen = "127.0.0.1:0"

        [[control.token]]
        name = "chief"
        role = "admin"
        token_file = "chief.token"

        [metrics]
        to = "http://127.0.0.1:1"
        headers_file = "headers"

        [upstreams.shop]
        to = "http://127.0.0.1:1"

        [[route]]
        path = "/hello"
        respond = "hello"

        [[route]]
        path = "/www/*"
        files = "www"

        [[route]]
        path = "/in/*"
        proxy = {{ upstream = "shop" }}
        auth = {{ basic = "users" }}
        "#
    );
    (folder, config)
}

fn edit(rig: &Rig, method: &str, path: &str, body: &Value) -> Answer {
    let fields = format!("{JSON}If-Match: *\r\nAuthorization: Bearer {ADMIN}\r\n");
    send(&listener(rig), method, path, &fields, &body.to_string())
}

/// Requests by which the holder of a token would misuse root privileges.
fn attacks(folder: &Folder) -> Vec<(&'static str, String, Value)> {
    let secret = folder.at("secret").display().to_string();
    let config = |path: &str| format!("/v1/config/{path}");
    let mut attacks = vec![
        ("PUT", config("route/-"), json!({ "path": "/f/*", "files": folder.path() })),
        ("PUT", config("route/-"), json!({ "path": "/f/*", "files": "/root" })),
        ("PUT", config("route/1/files"), json!("..")),
        ("PUT", config("route/1/files"), json!({ "root": [folder.at("www"), "/etc"] })),
        ("PUT", config("route/1/auth"), json!({ "basic": secret })),
        ("PUT", config("route/2/auth/basic"), json!("/etc/shadow")),
        // A file that the configuration names for another purpose.
        ("PUT", config("route/2/auth/basic"), json!("chief.token")),
        ("PUT", config("route/1/auth"), json!({ "jwt": { "jwks_file": secret } })),
        ("PUT", config("route/1/auth"), json!({ "signed": { "secret_file": secret } })),
        ("PUT", config("error_pages"), json!({ "404": secret })),
        ("PUT", config("maintenance"), json!({ "page": secret })),
        ("PUT", config("tls"), json!({ "ticket_keys": [secret] })),
        ("PUT", config("tracing"), json!({ "otlp": "http://127.0.0.1:1", "headers_file": secret })),
        ("PUT", config("geo"), json!({ "database": secret })),
        ("PUT", config("log/file"), json!("/etc/cron.d/x")),
        ("PUT", config("log/errors"), json!("/etc/cron.d/x")),
        ("PUT", config("control/audit"), json!("/etc/cron.d/x")),
        ("PUT", config("control/listen"), json!("unix:/run/other.sock")),
        ("PUT", config("temp_path"), json!("/etc")),
        ("PUT", config("cache"), json!({ "disk": { "path": "/etc", "size": "1GiB" } })),
        ("PUT", config("upstreams/shop"), json!({ "to": "https://127.0.0.1:1", "tls": { "ca": secret } })),
        ("PUT", config("upstreams/shop/to"), json!("unix:/run/docker.sock")),
        ("POST", "/v1/upstreams/shop".to_owned(), json!({ "url": "unix:/run/docker.sock" })),
        ("PUT", config("apps"), json!({ "x": { "psgi": secret } })),
        ("PUT", config("apps"), json!({ "x": { "wsgi": "os:system", "interpreter": "/bin/sh" } })),
        ("PUT", config("route/-"), json!({ "path": "/c/*", "cgi": "/bin" })),
        ("PUT", config("route/0/respond"), json!("${PATH}")),
        ("PUT", config("user"), json!("daemon")),
        ("PUT", config("route/1/files"), json!({ "root": "www", "symlinks": "on" })),
        // Sends the content of a file already named to another server.
        ("PUT", config("metrics/to"), json!("http://192.0.2.9:4318")),
        ("PUT", config("sandbox"), json!(false)),
        (
            "PATCH",
            config(""),
            json!({ "site": [{ "hosts": "a.test", "tls": { "certificate": secret, "key": secret } }] }),
        ),
    ];
    let own = folder.at("www").display().to_string();
    attacks.push(("PUT", config("route/1/files"), json!({ "root": [own], "fallback": "/../secret" })));
    attacks
}

fn is_refused(rig: &Rig, before: &str) {
    for (method, path, body) in attacks(&rig.folder) {
        let path = path.trim_end_matches('/');
        let answer = edit(rig, method, path, &body);
        assert!(matches!(answer.status(), 403 | 422), "{method} {path} {body}: {}", answer.text());
        // Paths below a directory already served are left to the check of the configuration.
        if !body.to_string().contains("fallback") && !body.to_string().contains("unix:/run/other") {
            assert_eq!(answer.status(), 403, "{method} {path} {body}: {}", answer.text());
        }
        assert!(!answer.text().contains(SECRET) && !answer.text().contains("root:"), "{}", answer.text());
        assert!(!rig.reported().contains(SECRET), "{}", rig.reported());
    }
    assert_eq!(fs::read_to_string(rig.folder.at("komainu.toml")).unwrap(), before);
    assert!(!std::path::Path::new("/etc/cron.d/x").exists());
    rig.get("/hello").expect(200, "hello");
    // Changes that name nothing new are allowed.
    for (path, body) in [
        ("/v1/config/route/0/respond", json!("bye")),
        ("/v1/config/route/-", json!({ "path": "/more/*", "files": "www" })),
        ("/v1/config/upstreams/shop/to", json!(["http://127.0.0.1:1", "http://127.0.0.1:2"])),
    ] {
        let answer = edit(rig, "PUT", path, &body);
        assert_eq!(answer.status(), 200, "{path} {body}: {}", answer.text());
    }
}

#[test]
fn root_server_refuses_new_files_programs_and_addresses_by_api() {
    if !can_be_tested() {
        return;
    }
    let (folder, config) = prepared("");
    let rig = Rig::config(folder, &config);
    let before = fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    is_refused(&rig, &before);
}

#[test]
fn supervisor_refuses_new_files_programs_and_addresses_by_api() {
    if !can_be_tested() {
        return;
    }
    let (folder, config) = prepared("listen = \"127.0.0.1:0\"\nuser = \"65534\"\ngroup = \"65534\"\n");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let rig = start(folder, &config);
    is_refused(&rig, &config);
}

#[test]
fn root_may_add_files_through_unix_control_listener() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "a");
    let rig = Rig::config(
        folder,
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "x"
        "#,
    );
    let route = json!({ "path": "/www/*", "files": { "root": "www", "strip_prefix": true } });
    let fields = format!("{JSON}If-Match: *\r\n");
    call(&rig, "PUT", "/v1/config/route/0", &fields, &route.to_string()).expect_status(200);
}
