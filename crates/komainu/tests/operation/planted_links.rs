//! Symbolic links that a local user plants on the way to paths that root creates, chowns, removes or binds.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::hosted::{is_alive, kill, server};
use crate::privileges::{can_be_tested, start};
use crate::rig::{Folder, Rig, eventually, komainu, text};

const USER: u32 = 65_533;

/// Creates a directory `theirs` of another user, with a symbolic link `x` to `roots`, which belongs to root.
fn planted() -> Folder {
    let folder = Folder::new();
    folder.write("www/a", "A").write("roots/nothing", "").write("theirs/nothing", "");
    for name in [".", "roots", "theirs"] {
        fs::set_permissions(folder.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink("../roots", folder.at("theirs/x")).unwrap();
    chown(folder.at("theirs"), Some(USER), Some(USER)).unwrap();
    folder
}

fn config(more: &str) -> String {
    format!(
        r#"
        user = "65534"
        group = "65534"
        {more}
        [[site]]
        hosts = ["localhost"]
        [[site.route]]
        files = "www"
        "#
    )
}

#[track_caller]
fn assert_untouched(folder: &Folder, name: &str) {
    let found = fs::metadata(folder.at(name)).unwrap();
    assert_eq!((found.uid(), found.gid()), (0, 0), "{name} has been given away");
}

#[test]
fn cache_and_state_directories_are_not_created_behind_symlink() {
    if !can_be_tested() {
        return;
    }
    for there in [false, true] {
        let folder = planted();
        if there {
            fs::create_dir(folder.at("roots/cache")).unwrap();
            fs::create_dir(folder.at("roots/state")).unwrap();
        }
        folder.certify();
        let more = r#"
            listen = ["127.0.0.1:0", { address = "127.0.0.1:0", tls = true }]
            [acme]
            state = "theirs/x/state"
            [cache]
            memory = "8MiB"
            [cache.disk]
            path = "theirs/x/cache"
            size = "8MiB"
        "#;
        let rig = start(folder, &config(more));
        rig.expect_report("theirs/x/state");
        rig.expect_report("theirs/x/cache");
        rig.expect_report("x is a symbolic link in a folder that others than root can change");
        for name in ["cache", "state"] {
            if there {
                assert_untouched(&rig.folder, &format!("roots/{name}"))
            } else {
                assert!(!rig.folder.at(&format!("roots/{name}")).exists(), "{name} was made")
            }
        }
    }
}

#[test]
fn cache_directory_is_created_below_directory_of_other_user() {
    if !can_be_tested() {
        return;
    }
    let folder = planted();
    let more = r#"
        listen = "127.0.0.1:0"
        [cache]
        memory = "8MiB"
        [cache.disk]
        path = "theirs/deep/cache"
        size = "8MiB"
    "#;
    let rig = start(folder, &config(more));
    assert_eq!(fs::metadata(rig.folder.at("theirs/deep/cache")).unwrap().uid(), 65_534);
}

#[test]
fn a_unix_socket_is_neither_removed_nor_made_behind_a_link() {
    if !can_be_tested() {
        return;
    }
    for stale in [true, false] {
        let folder = planted();
        if stale {
            drop(UnixListener::bind(folder.at("roots/app.sock")).unwrap());
        }
        folder.write("k.toml", config("listen = \"unix:theirs/x/app.sock\""));
        let inode =
            |folder: &Folder| fs::symlink_metadata(folder.at("roots/app.sock")).map(|found| found.ino()).ok();
        let before = inode(&folder);
        let mut command = server();
        let done = command.arg("start").arg("-c").arg(folder.at("k.toml")).output().unwrap();
        let said = text(&done.stderr);
        assert!(!done.status.success() && said.contains("a symbolic link"), "{said}");
        assert_eq!(inode(&folder), before);
    }
}

fn ask(path: &Path) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(b"\r\n\r\nA"), "{}", text(&bytes));
}

#[test]
fn unix_socket_in_directory_of_other_user_survives_upgrade() {
    if !can_be_tested() {
        return;
    }
    let folder = planted();
    let socket = folder.at("theirs/app.sock");
    drop(UnixListener::bind(&socket).unwrap());
    folder.write("komainu.toml", config("listen = [\"127.0.0.1:0\", \"unix:theirs/app.sock\"]"));
    let mut command = server();
    command.env("RUNTIME_DIRECTORY", folder.at("run")).arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut rig = Rig::start(command, folder);
    ask(&socket);
    let inode = fs::symlink_metadata(&socket).unwrap().ino();
    let old = rig.child.id();
    let done = komainu()
        .args(["upgrade", "--pid", &old.to_string()])
        .env("RUNTIME_DIRECTORY", rig.folder.at("run"))
        .output()
        .unwrap();
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    let successor: u32 =
        said.split_once("process ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
    eventually("the old one has ended", || {
        let _ = rig.child.try_wait();
        !is_alive(old)
    });
    ask(&socket);
    assert_eq!(fs::symlink_metadata(&socket).unwrap().ino(), inode, "the same socket");
    assert!(kill(successor, "-TERM"));
    eventually("the other one has ended too", || !is_alive(successor));
    assert!(!socket.exists(), "the last one removes its file");
}
