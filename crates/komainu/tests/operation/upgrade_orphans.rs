//! Processes forked by workers, which would never exit by themselves, are terminated with their server.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::hosted::{is_alive, kill, only, server, status};
use crate::rig::{Folder, Rig, as_we_are, eventually, is_root};

/// Serves an application whose worker double-forks a copy of itself; returns the copy's process id.
fn forked(kind: &str) -> (Rig, u32) {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let pids = folder.at("pids");
    let app = format!(
        "sub {{ unless (fork) {{ unless (fork) {{ open my $f, '>>', '{}'; print $f \"$$\\n\"; close $f; \
         sleep 1000 while 1 }} require POSIX; POSIX::_exit(0) }} wait; [200, [], ['ok']] }}",
        pids.display()
    );
    folder.write("app.psgi", app);
    let app = only("psgi = \"app.psgi\"\nworkers = 1\ntimeouts = { stop = \"1s\" }");
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{kind}{app}"));
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "ok");
    eventually("it runs", || fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n')));
    let pid = fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    assert!(is_alive(pid));
    (rig, pid)
}

#[test]
fn a_copy_of_a_worker_ends_when_its_server_stops() {
    let mut kinds = vec![as_we_are()];
    if is_root() {
        kinds.push("user = \"65534\"\ngroup = \"65534\"\n");
    }
    for kind in kinds {
        let (mut rig, pid) = forked(kind);
        rig.signal("-TERM");
        assert!(rig.ended().success());
        // The kernel may need a moment after the SIGKILL. Otherwise the copy would run for a quarter of an
        // hour.
        eventually("the copy has ended", || !is_alive(pid));
    }
}

#[test]
fn a_copy_of_a_worker_ends_when_its_server_dies() {
    if !is_root() {
        return eprintln!("SKIPPED: only root can start a server with a supervisor");
    }
    let (rig, pid) = forked("user = \"65534\"\ngroup = \"65534\"\n");
    let serving = status(&rig)["pid"].as_u64().unwrap() as u32;
    assert!(kill(serving, "-KILL"));
    eventually("the copy has ended", || !is_alive(pid));
    rig.get("/").expect(200, "ok");
}
