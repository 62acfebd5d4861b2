//! Error messages of the commands: position, reason and remedy.

use std::fs;
use std::process::Output;

use serde_json::json;

use crate::api::{JSON, call};
use crate::rig::{Folder, Rig, komainu, text};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let done: Output = komainu().args(arguments).output().unwrap();
    (done.status.code(), text(&done.stderr) + &text(&done.stdout))
}

fn controlled() -> (Rig, String) {
    let folder = Folder::new();
    let config = r#"
        [control]
        listen = "unix:control.sock"
        [timeouts]
        drain = "9s"
        [[route]]
        files = "www"
    "#;
    folder.write("www/a", "a");
    let rig = Rig::config(folder, config);
    let to = format!("unix:{}", rig.folder.at("control.sock").display());
    (rig, to)
}

#[test]
fn rejected_change_reports_position_and_remedy() {
    let (rig, to) = controlled();
    let (code, said) = run(&["ctl", "--to", &to, "config", "set", "timeouts/idel", "60s"]);
    assert!(code == Some(1) && said.contains("did you mean `idle`?"), "{said}");
    let (_, said) = run(&["ctl", "--to", &to, "app", "restart", "nope"]);
    assert!(said.contains("there is no application `nope`; there are none"), "{said}");
    // Valid values that name missing or unusable files.
    rig.folder.write("www/users", "a:plain\n");
    for (path, body, named) in [
        ("/v1/config/route/0/files", json!("nixdir"), "nixdir"),
        ("/v1/config/route/0/auth", json!({ "basic": "www/users" }), "www/users"),
    ] {
        let answer = call(&rig, "PUT", path, &format!("{JSON}If-Match: *\r\n"), &body.to_string());
        let said: serde_json::Value = serde_json::from_str(&answer.expect_status(422).text()).unwrap();
        let finding = &said["findings"][0];
        assert!(finding["title"].as_str().is_some_and(|title| title.contains(named)), "{path}: {said}");
        assert!(finding["line"].as_u64().is_some_and(|line| line > 1), "{path}: {said}");
    }
}

#[test]
fn failing_editor_changes_nothing() {
    let (_rig, to) = controlled();
    let edit = |visual: &str, editor: &str| {
        let mut command = komainu();
        command.args(["ctl", "--to", &to, "config", "edit", "timeouts/drain"]);
        let done = command.env("VISUAL", visual).env("EDITOR", editor).output().unwrap();
        (done.status.code(), text(&done.stderr) + &text(&done.stdout))
    };
    for editor in ["false", "/nix/vi"] {
        let (code, said) = edit("", editor);
        assert!(code == Some(1) && said.contains("nothing was changed") && said.contains(editor), "{said}");
    }
    let (code, said) = edit("", "true");
    assert!(code == Some(0) && said.contains("nothing was changed"), "{said}");
}

#[test]
fn flags_of_other_commands_have_a_hint() {
    let (_, said) = run(&["fmt", "-c", "k.toml"]);
    assert!(said.contains("write `komainu fmt k.toml`"), "{said}");
}

#[test]
fn files_that_include_each_other_are_refused() {
    let folder = Folder::new();
    for (main, more, is_loop) in [
        ("include = \"komainu.toml\"\n", "", true),
        ("include = \"more.toml\"\n", "include = \"komainu.toml\"\n", true),
        // A pattern may match the file that contains it, and a file may be named twice.
        ("include = \"*.toml\"\n", "", false),
        ("include = [\"more.toml\", \"more.toml\"]\n", "", false),
    ] {
        folder
            .write(
                "komainu.toml",
                format!(
                    r#"
                    {main}
                    [[route]]
                    respond = "x"
                    "#
                ),
            )
            .write("more.toml", more);
        let path = folder.at("komainu.toml").display().to_string();
        let (code, said) = run(&["check", "-c", &path]);
        assert_eq!(code == Some(1), is_loop, "{main}: {said}");
        assert_eq!(said.contains("without end"), is_loop, "{main}: {said}");
    }
}

#[test]
fn diff_compares_file_with_the_server_that_uses_it() {
    let runtime = Folder::new();
    let start = |body: &str| {
        let folder = Folder::new();
        let config = format!(
            r#"
            listen = "127.0.0.1:0"
            {}
            [[route]]
            respond = "{body}"
            "#,
            crate::rig::as_we_are()
        );
        folder.write("komainu.toml", config);
        let mut command = komainu();
        command
            .arg("start")
            .arg("-c")
            .arg(folder.at("komainu.toml"))
            .env("RUNTIME_DIRECTORY", runtime.path());
        Rig::start(command, folder)
    };
    let one = start("one");
    let _other = start("other");
    let path = one.folder.at("komainu.toml");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("\"one\"", "\"two\"")).unwrap();
    let diff = |file: &std::path::Path| {
        komainu().args(["diff", "-c"]).arg(file).env("RUNTIME_DIRECTORY", runtime.path()).output().unwrap()
    };
    let done = diff(&path);
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(said.contains("one") && said.contains("two") && !said.contains("other"), "{said}");
    let missing = diff(&one.folder.at("none.toml"));
    let said = text(&missing.stderr);
    assert!(said.contains("there is no file") && said.contains("help:"), "{said}");
}

#[test]
fn unreadable_static_file_is_logged_with_status_403() {
    use std::os::unix::fs::PermissionsExt;
    if !crate::privileges::can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/closed", "x");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.at("www/closed"), fs::Permissions::from_mode(0o600)).unwrap();
    let config = r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        [[route]]
        files = "www"
    "#;
    let rig = crate::privileges::start(folder, config);
    rig.get("/closed").expect_status(403);
    rig.expect_report("\"/closed\": 403, because the server's user may not read what is there");
}

#[test]
fn check_reports_unavailable_address_and_swapped_key_file() {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        r#"
        listen = ["192.0.2.77:8080", "127.0.0.1:8080"]
        [[route]]
        respond = "x"
        "#,
    );
    let path = folder.at("komainu.toml").display().to_string();
    let (code, said) = run(&["check", "-c", &path]);
    assert!(code == Some(0) && said.contains("has the address 192.0.2.77"), "{said}");
    assert!(!said.contains("127.0.0.1:"), "{said}");
    // A certificate in place of a key is a mix-up, not a leaked secret.
    folder.certify();
    folder.write(
        "komainu.toml",
        r#"
        listen = "127.0.0.1:443"
        [[site]]
        hosts = "a.test"
        tls = { certificate = "key.pem", key = "cert.pem" }
        [[site.route]]
        respond = "x"
        "#,
    );
    let (code, said) = run(&["check", "-c", &path]);
    assert!(code == Some(1) && !said.contains("this is a secret"), "{said}");
}

#[test]
fn check_warns_of_inaccessible_acme_state_directory() {
    use std::os::unix::fs::PermissionsExt;
    if !crate::privileges::can_be_tested() {
        return;
    }
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.at("rootonly")).unwrap();
    fs::set_permissions(folder.at("rootonly"), fs::Permissions::from_mode(0o700)).unwrap();
    folder.write(
        "komainu.toml",
        r#"
        user = "65534"
        group = "65534"
        listen = "127.0.0.1:443"

        [acme]
        state = "rootonly/st"

        [[site]]
        hosts = "example.com"
        tls = "auto"

        [[site.route]]
        respond = "x"
        "#,
    );
    let path = folder.at("komainu.toml").display().to_string();
    let (_, said) = run(&["check", "-c", &path]);
    assert!(said.contains("may not enter") && said.contains("rootonly: there are no certificates"), "{said}");
}

#[test]
fn check_warns_of_unused_app_and_explains_client_access() {
    let folder = Folder::new();
    folder.write("a.psgi", "sub { [200, [], ['x']] }");
    folder.write(
        "komainu.toml",
        r#"
        [apps.unused]
        psgi = "a.psgi"
        [[route]]
        respond = "x"
        "#,
    );
    let path = folder.at("komainu.toml").display().to_string();
    let workers = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers");
    let done = komainu().env("KOMAINU_WORKERS", workers).args(["check", "-c", &path]).output().unwrap();
    assert!(text(&done.stderr).contains("no route uses `[apps.unused]`"), "{}", text(&done.stderr));
    folder.write("komainu.toml", "[[route]]\nrespond = \"x\"\n");
    folder.write(
        "komainu.toml",
        r#"
        [[route]]
        allow = "10.0.0.0/8"
        respond = "x"
        "#,
    );
    let explained = |client: &str| run(&["check", "-c", &path, "--explain", "/", "--client", client]).1;
    assert!(explained("192.0.2.1").contains("the client 192.0.2.1 gets 403"), "{}", explained("192.0.2.1"));
    assert!(!explained("10.0.0.1").contains("403"), "{}", explained("10.0.0.1"));
    let (code, said) = run(&["check", "-c", &path, "--explain", "ftp://x/"]);
    assert!(code == Some(1) && said.contains("http or https"), "{said}");
}
