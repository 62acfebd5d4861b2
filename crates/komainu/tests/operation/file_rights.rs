//! Diagnostics for files, directories and sockets that the server's user cannot access, and for secrets that
//! everybody can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::privileges::{can_be_tested, start};
use crate::rig;
use crate::rig::{Folder, eventually, komainu};

#[test]
fn inaccessible_upstream_socket_is_explained_in_log() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    let socket = folder.at("app.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o755)).unwrap();
    let config = r#"
        user = "65534"
        group = "65534"
        listen = "127.0.0.1:0"
        [[route]]
        proxy = "unix:app.sock"
    "#;
    let rig = start(folder, config);
    // Reported at the start, and with the failing request.
    let said = format!("may not write to {} (mode 0755, of root:root): let the program", socket.display());
    rig.expect_report(&format!("warning: user 65534 {said}"));
    rig.get("/page").expect_status(502);
    eventually("it is logged", || {
        let log = rig.reported();
        let line =
            log.lines().find(|line| line.contains("\"/page\": the upstream's socket may not be opened: 502"));
        line.is_some_and(|line| line.contains(&said) && line.contains("mode 0660"))
    });
    drop(listener);
}

#[test]
fn inaccessible_directories_and_error_pages_cause_warnings() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("closed/index.html", "A").write("404.html", "no").write("open/a", "A");
    let set = |name: &str, mode: u32| {
        fs::set_permissions(folder.at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set("closed", 0o700);
    set("404.html", 0o600);
    let user = "user = \"65534\"\ngroup = \"65534\"\nlisten = \"127.0.0.1:0\"\n";
    let config = format!(
        r#"
        {user}
        error_pages = {{ 404 = "404.html" }}
        [[route]]
        files = ["closed", "open"]
        "#
    );
    folder.write("komainu.toml", &config);
    let checked = komainu().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
    let said = rig::text(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    let closed = folder.at("closed").display().to_string();
    let page = folder.at("404.html").display().to_string();
    assert!(
        said.contains(&format!(
            "warning: user 65534, who is to serve, may not enter {closed} (mode 0700, of root:root)\n"
        )),
        "{said}"
    );
    assert!(said.contains(&format!("may not read {page} (mode 0600, of root:root)\n")), "{said}");
    assert!(said.contains("komainu.toml:8:18") && said.contains(&format!("`chmod o+rx {closed}`")), "{said}");
    assert_eq!(said.matches("warning: ").count(), 2, "{said}");
    // Also reported at a start.
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {user}
            [[route]]
            files = "closed"
            "#
        ),
    );
    let config = fs::read_to_string(folder.at("komainu.toml")).unwrap();
    let rig = start(folder, &config);
    rig.get("/").expect_status(403);
    rig.expect_report(&format!("may not enter {closed} (mode 0700"));
}

#[test]
fn world_readable_secrets_and_empty_user_lists_cause_warnings() {
    let folder = Folder::new();
    folder.write("www/a", "A").write("empty.htpasswd", "# nobody yet\n");
    folder.write("url.secret", "0123456789abcdef0123456789abcdef\n");
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            {}

            [[route]]
            path = "/a/*"
            files = "www"
            auth = {{ basic = "empty.htpasswd" }}

            [[route]]
            files = "www"
            auth = {{ signed = {{ secret_file = "url.secret" }} }}
            "#,
            rig::as_we_are()
        ),
    );
    let said_of = |mode: u32| {
        for file in ["empty.htpasswd", "url.secret"] {
            fs::set_permissions(folder.at(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        let checked = komainu().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
        assert!(checked.status.success(), "{}", rig::text(&checked.stderr));
        rig::text(&checked.stderr)
    };
    let users = folder.at("empty.htpasswd");
    let secret = folder.at("url.secret");
    let said = said_of(0o644);
    for path in [&users, &secret] {
        let title =
            format!("warning: every user of this machine can read {} (mode 0644, of ", path.display());
        assert!(said.contains(&title) && said.contains(&format!("`chmod o-r {}`", path.display())), "{said}");
    }
    let said = said_of(0o640);
    assert!(!said.contains("every user"), "{said}");
    assert!(said.contains(&format!("warning: there is no user in {}\n", users.display())), "{said}");
}

#[test]
fn a_missing_fallback_causes_a_warning() {
    let folder = Folder::new();
    folder.write("www/index.html", "A").write("more/app.html", "B");
    let said_of = |roots: &str, fallback: &str| {
        let config = format!(
            r#"
            {}
            [[route]]
            path = "/other/*"
            files = "www"
            [[route]]
            files = {{ root = {roots}, fallback = "{fallback}" }}
            "#,
            rig::as_we_are()
        );
        folder.write("komainu.toml", config);
        let checked = komainu().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
        assert!(checked.status.success(), "{}", rig::text(&checked.stderr));
        rig::text(&checked.stderr)
    };
    let title = format!("the file of `fallback` is missing: {}", folder.at("www/app.html").display());
    let said = said_of("\"www\"", "/app.html");
    assert!(said.contains(&title) && said.contains("komainu.toml:8:"), "{said}");
    for (roots, fallback) in [("\"www\"", "/index.html"), ("[\"www\", \"more\"]", "/app.html")] {
        let said = said_of(roots, fallback);
        assert!(!said.contains("fallback"), "{said}");
    }
}
