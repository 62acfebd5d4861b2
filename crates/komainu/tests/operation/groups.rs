//! Groups of a server started as root, and of its applications: the configured user's, and none of root's.
//!
//! The servers run in a mount namespace with an `/etc/group` of the test.

use std::fs;
use std::process::Command;

use crate::hosted::{modules, only, status};
use crate::privileges::can_be_tested;
use crate::rig::{Folder, Rig};
use crate::trust::has_namespaces;

/// Users and groups in addition to those of the machine. `starter` is a group of root alone.
const PASSWD: &str =
    "ktest:x:64001:64001::/nonexistent:/bin/false\nkapp:x:64010:64010::/nonexistent:/bin/false\n";
const GROUP: &str = "ktest:x:64001:\nlogs:x:64002:ktest,kapp\nmedia:x:64003:ktest\nother:x:64004:\nstarter:x:64005:root\n\
    kapp:x:64010:\nown:x:64011:kapp\n";

/// Runs its arguments with the directory's `passwd` and `group`, with root's rights and more of root's groups.
const PRIVATE: &str = "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/group\" /etc/group && \
    exec setpriv --groups 0,4,42,64005 \"$@\"";

fn start(folder: Folder, arguments: &[&str]) -> Rig {
    for (name, more) in [("passwd", PASSWD), ("group", GROUP)] {
        folder.write(name, fs::read_to_string(format!("/etc/{name}")).unwrap() + more);
    }
    let copied = Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
    assert!(copied.unwrap().success());
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", PRIVATE]).arg(folder.path());
    command.arg(env!("CARGO_BIN_EXE_komainu")).args(arguments).current_dir(folder.path());
    command.env("KOMAINU_WORKERS", folder.at("workers"));
    Rig::start(command, folder)
}

/// The ids of a process: its user, its group and its supplementary groups.
fn ids(pid: u64) -> (String, String, Vec<u32>) {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let mut groups: Vec<u32> =
        line("Groups:").split_whitespace().map(|group| group.parse().unwrap()).collect();
    groups.sort_unstable();
    (line("Uid:"), line("Gid:"), groups)
}

fn four(id: u32) -> String {
    format!("{id}\t{id}\t{id}\t{id}")
}

#[test]
fn server_and_workers_have_exactly_the_groups_of_their_user() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    for (group, gid, groups) in
        [("", 64001, vec![64001, 64002, 64003]), ("group = \"other\"\n", 64004, vec![64002, 64003, 64004])]
    {
        for (of_app, app_ids) in [
            ("", (64001, gid, groups.clone())),
            ("user = \"kapp\"\n", (64010, 64010, vec![])),
            ("user = \"kapp\"\ngroup = \"own\"\n", (64010, 64011, vec![])),
            ("preload = false\n", (64001, gid, groups.clone())),
            ("[apps.shop.sandbox]\n", (64001, gid, groups.clone())),
        ] {
            let folder = Folder::new();
            folder.write("app.psgi", "sub { [200, [], [$$]] }");
            let app = only(&format!("psgi = \"app.psgi\"\nworkers = 1\n{of_app}"));
            let config = format!("listen = \"127.0.0.1:0\"\nuser = \"ktest\"\n{group}{app}");
            folder.write("komainu.toml", config);
            let rig = start(folder, &["start", "-c", "komainu.toml"]);
            let worker: u64 = rig.get("/").expect_status(200).text().parse().unwrap();
            let server = status(&rig)["pid"].as_u64().unwrap();
            assert_eq!(ids(server), (four(64001), four(gid), groups.clone()), "{group}{of_app}");
            let (uid, gid, groups) = app_ids;
            assert_eq!(ids(worker), (four(uid), four(gid), groups), "{group}{of_app}");
        }
    }
}

#[test]
fn user_flag_gives_the_groups_of_that_user() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "A");
    let rig = start(folder, &["run", "--listen", "127.0.0.1:0", "--user", "ktest", "www"]);
    rig.get("/a").expect(200, "A");
    let server = status(&rig)["pid"].as_u64().unwrap();
    assert_eq!(ids(server), (four(64001), four(64001), vec![64001, 64002, 64003]));
}

/// A process that may read files of the server's group and of root's groups only if it has kept them.
#[test]
fn an_application_reads_no_files_of_its_servers_groups() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    let folder = Folder::new();
    let read = "join ' ', map { open(my $f, '<', $_) ? 'yes' : 'no' } qw(media starter own)";
    folder.write("app.psgi", format!("sub {{ [200, [], [{read}]] }}"));
    for (name, group) in [("media", 64003), ("starter", 64005), ("own", 64010)] {
        folder.write(name, "secret");
        std::os::unix::fs::chown(folder.at(name), Some(0), Some(group)).unwrap();
        fs::set_permissions(folder.at(name), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    }
    let app = only("psgi = \"app.psgi\"\nworkers = 1\nuser = \"kapp\"\n");
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\nuser = \"ktest\"\n{app}"));
    let rig = start(folder, &["start", "-c", "komainu.toml"]);
    rig.get("/").expect(200, "no no yes");
}
