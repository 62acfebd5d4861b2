//! The address of the control listener and the permissions of its Unix socket, with their change by a reload.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::api::{JSON, change, get};
use crate::control_tokens::{listener, send, with};
use crate::origin::listens;
use crate::rig::{Folder, PATIENCE, Rig, eventually, is_closed, is_root, kinds, komainu, listen};

const TOKEN: &str = "admin-0123456789abcdef";

fn permissions(path: &Path) -> Option<(u32, u32)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.permissions().mode() & 0o777, found.gid()))
}

#[test]
fn a_reload_opens_another_address_and_closes_the_old_one() {
    let folder = Folder::new();
    folder.write("a.token", TOKEN);
    let config = |control: &str| {
        format!(
            r#"
            threads = 1

            [log]
            level = "info"
            {control}

            [[control.token]]
            name = "chief"
            role = "admin"
            token_file = "a.token"

            [[route]]
            respond = "x"
            "#
        )
    };
    let tcp = "[control]\nlisten = \"127.0.0.1:0\"\n";
    let rig = Rig::config(folder, &config(tcp));
    let listen = fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let (before, _) = listen.split_once("threads = 1").unwrap();
    let rewrite = |control: &str| rig.folder.write("komainu.toml", format!("{before}{}", config(control)));
    let first = listener(&rig);
    let mut follower = TcpStream::connect(&first).unwrap();
    follower.set_read_timeout(Some(PATIENCE)).unwrap();
    follower.write_all(format!("GET /v1/events HTTP/1.1\r\nHost: {first}\r\n\r\n").as_bytes()).unwrap();
    let mut begun = [0; 12];
    follower.read_exact(&mut begun).unwrap();
    let reload = |address: &str| send(address, "POST", "/v1/reload", &format!("{JSON}{}", with(TOKEN)), "{}");
    // Moves to a Unix socket; the response still arrives over the old address.
    rewrite("[control]\nlisten = \"unix:control.sock\"\n");
    reload(&first).expect_status(200);
    assert_eq!(get(&rig, "/v1/status")["pid"], rig.child.id());
    eventually("nobody listens at the old address", || !listens(first.parse().unwrap()));
    // Followers of events are disconnected.
    let mut rest = Vec::new();
    follower.read_to_end(&mut rest).unwrap();
    assert!(is_closed(&mut follower));
    // If the address is in use, the configuration is rejected.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = taken.local_addr().unwrap();
    rewrite(&format!("[control]\nlisten = \"{theirs}\"\n"));
    let (status, said) = change(&rig, "POST", "/v1/reload", &json!({}));
    assert!(status == 422 && said["error"].as_str().unwrap().contains("control.listen"), "{said}");
    assert_eq!(get(&rig, "/v1/status")["pid"], rig.child.id());
    // Back to TCP, and then no listener.
    rewrite(tcp);
    assert_eq!(change(&rig, "POST", "/v1/reload", &json!({})).0, 200);
    let said = "the control listener is http://";
    eventually("it listens there again", || rig.reported().matches(said).count() == 2);
    let second = listener(&rig);
    send(&second, "GET", "/v1/status", "", "").expect_status(200);
    eventually("the file is gone", || !rig.folder.at("control.sock").exists());
    rewrite("");
    reload(&second).expect_status(200);
    eventually("nobody listens any more", || !listens(second.parse().unwrap()));
    rig.get("/").expect(200, "x");
}

/// Covers a server without root privileges, for which the supervisor sets the group.
#[test]
fn unix_control_listener_has_configured_mode_and_group() {
    for kind in kinds() {
        let folder = Folder::new();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let own = own_group();
        let group = if is_root() { 4 } else { own };
        let text = format!(
            r#"
            {kind}
            threads = 1
            [control]
            listen = "unix:control.sock"
            mode = "0660"
            group = "{group}"
            [[route]]
            respond = "x"
            "#
        );
        folder.write("komainu.toml", format!("{}{text}", listen(&folder)));
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        let socket = rig.folder.at("control.sock");
        eventually("the socket has its permissions", || permissions(&socket) == Some((0o660, group)));
        let shown = get(&rig, "/v1/status");
        assert!(shown["pid"].as_u64().is_some(), "{shown}");
        // The system identifies the caller.
        assert_eq!(change(&rig, "POST", "/v1/logs/reopen", &json!({})).0, 200);
        let audit: Value = get(&rig, "/v1/audit");
        let who = audit["entries"][0]["who"].as_str().unwrap().to_owned();
        assert!(who.ends_with(&format!("(process {}) by the Unix socket", std::process::id())), "{who}");
        let config = fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
        rig.folder.write("komainu.toml", config.replace("0660", "0640"));
        let (status, said) = change(&rig, "POST", "/v1/reload", &json!({}));
        assert_eq!(status, 200, "{said}");
        assert_eq!(permissions(&socket), Some((0o640, group)), "{kind}");
        rig.folder.write("komainu.toml", config.replace("unix:control.sock", "unix:other.sock"));
        let (status, said) = change(&rig, "POST", "/v1/reload", &json!({}));
        assert_eq!(status, 200, "{said}");
        assert_eq!(permissions(&rig.folder.at("other.sock")), Some((0o660, group)), "{kind}");
    }
}

fn own_group() -> u32 {
    fs::metadata("/proc/self").unwrap().gid()
}
