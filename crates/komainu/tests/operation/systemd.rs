//! Socket activation and notifications of systemd, with a service manager simulated by a socket and a script.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;

use crate::hosted::{is_alive, kill, modules, server, status};
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, eventually, komainu, text};

/// Binds a TCP socket and a Unix socket for each path, then executes the server, as systemd would.
const ACTIVATE: &str = "
import os, socket, sys
paths, command = sys.argv[1].split(',') if sys.argv[1] else [], sys.argv[2:]
sockets = [socket.socket()]
sockets[0].bind(('127.0.0.1', 0))
for path in paths:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(path)
    sockets.append(unix)
for one in sockets:
    one.listen(100)
held = [os.dup(one.fileno()) for one in sockets]
for number, one in enumerate(held):
    os.dup2(one, 3 + number, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(held)), LISTEN_FDNAMES=':'.join(['web'] * len(held)))
os.execv(command[0], command)
";

fn ask(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    text(&bytes)
}

/// The listening socket of this address as `/proc/PID/fd` shows it.
fn tcp_socket(address: SocketAddr) -> String {
    let local = format!("0100007F:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = lines.find(|fields| fields[1] == local && fields[3] == "0A").unwrap();
    format!("socket:[{}]", listening[9])
}

/// The listening socket of this path as `/proc/PID/fd` shows it, if a process has one.
fn unix_socket(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    // The flag of listening sockets tells them from accepted ones.
    let is_listening = |line: &&str| line.contains(" 00010000 ") && line.ends_with(path.to_str().unwrap());
    let listening = table.lines().find(is_listening)?;
    Some(format!("socket:[{}]", listening.split_whitespace().nth(6).unwrap()))
}

#[test]
fn sockets_passed_by_systemd_are_used_instead_of_binding() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        let unix = folder.at("web.sock");
        let other = folder.at("other.sock");
        folder.write("www/a", "A").write(
            "app.psgi",
            "sub { my @variables = grep { /^(LISTEN|NOTIFY|WATCHDOG)/ } sort keys %ENV; \
             my @files = map { readlink($_) // '' } glob '/proc/self/fd/*'; \
             [200, [], [join ' ', @variables, @files]] }",
        );
        folder.write(
            "komainu.toml",
            format!(
                r#"
                listen = ["127.0.0.1:0", "unix:{}"]
                threads = 3
                {kind}

                [[route]]
                path = "/app"
                app = "shop"

                [[route]]
                files = "www"

                [apps.shop]
                psgi = "app.psgi"
                workers = 1
                "#,
                unix.display()
            ),
        );
        let mut command = Command::new("python3");
        command
            .args(["-c", ACTIVATE])
            .arg(format!("{},{}", unix.display(), other.display()))
            .arg(env!("CARGO_BIN_EXE_komainu"))
            .arg("start")
            .arg("-c")
            .arg(folder.at("komainu.toml"))
            .env("KOMAINU_WORKERS", modules());
        let mut rig = Rig::start(command, folder);
        // All threads accept from the single socket.
        for _ in 0..20 {
            rig.get("/a").expect(200, "A");
            assert!(ask(&unix).ends_with("\r\n\r\nA"));
        }
        // A worker inherits neither the sockets nor what systemd says to the server.
        let inherited = rig.get("/app").expect_status(200).text();
        assert!(inherited.starts_with('/'), "{inherited}");
        for socket in [tcp_socket(rig.listens), unix_socket(&unix).unwrap()] {
            assert!(!inherited.contains(&socket), "{socket} in {inherited}");
        }
        eventually("the socket that nobody wants is logged", || {
            rig.reported().contains("other.sock, which no `listen` names")
        });
        assert_eq!(unix_socket(&other), None, "the socket that nobody wants is closed");
        let listening = status(&rig)["listen"].to_string();
        assert!(
            listening.contains(&rig.address.to_string()) && listening.contains("web.sock"),
            "{listening}"
        );
        rig.signal("-TERM");
        assert!(rig.ended().success());
        assert!(unix.exists() && other.exists(), "the files are systemd's");
    }
}

#[test]
fn invalid_passed_descriptor_prevents_the_start() {
    let folder = Folder::new();
    let mut command = Command::new("sh");
    // Descriptor 3 is not a socket.
    command
        .arg("-c")
        .arg("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" run --listen 127.0.0.1:0 . 3</dev/null")
        .arg(env!("CARGO_BIN_EXE_komainu"))
        .current_dir(folder.path());
    let refused = command.output().unwrap();
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("LISTEN_FDS=1: descriptor 3"), "{said}");
    // Descriptors meant for another process are ignored.
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0"]).arg(folder.path());
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    Rig::start(command, folder).get("/").expect_status(404);
}

/// The notification socket of a service.
struct NotifySocket(UnixDatagram);

impl NotifySocket {
    fn new(path: &Path) -> NotifySocket {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        NotifySocket(socket)
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let len = self.0.recv(&mut bytes).unwrap();
        text(&bytes[..len])
    }

    /// Next message other than a watchdog ping.
    fn next_state(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    fn sign_of_life(&self) {
        while self.next() != "WATCHDOG=1" {}
    }
}

#[test]
fn systemd_is_notified_of_state_changes() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        folder.write("www/a", "A");
        let config = format!(
            r#"
            listen = "127.0.0.1:0"
            {kind}
            [[route]]
            files = "www"
            "#
        );
        folder.write("komainu.toml", &config);
        let notified = NotifySocket::new(&folder.at("notify"));
        let mut command = server();
        command
            .env("NOTIFY_SOCKET", folder.at("notify"))
            .env("WATCHDOG_USEC", "200000")
            .env("RUNTIME_DIRECTORY", folder.at("run"))
            .arg("start")
            .arg("-c")
            .arg(folder.at("komainu.toml"));
        let mut rig = Rig::start(command, folder);
        let ready = notified.next_state();
        assert!(ready.starts_with("READY=1\nSTATUS=serving on ") && ready.contains("127.0.0.1"), "{ready}");
        notified.sign_of_life();
        notified.sign_of_life();
        // `systemctl reload` sends this signal for `Type=notify-reload`.
        for (config, status) in [(config.replace("www", "none"), "was not changed"), (config, "in use")] {
            rig.folder.write("komainu.toml", config);
            rig.signal("-HUP");
            let reloading = notified.next_state();
            let (first, rest) = reloading.split_once("\nMONOTONIC_USEC=").unwrap();
            assert_eq!(first, "RELOADING=1");
            assert!(rest.lines().next().unwrap().parse::<u64>().unwrap() > 0);
            let done = notified.next_state();
            assert!(done.starts_with("READY=1\nSTATUS=") && done.contains(status), "{done}");
        }
        let upgraded = komainu()
            .args(["upgrade", "--pid", &rig.child.id().to_string()])
            .env("RUNTIME_DIRECTORY", rig.folder.at("run"))
            .spawn();
        let mut states = vec![notified.next_state()];
        while !states.iter().any(|state| state.starts_with("MAINPID=")) {
            states.push(notified.next_state());
        }
        assert!(upgraded.unwrap().wait().unwrap().success());
        let main = states.iter().find_map(|state| state.strip_prefix("MAINPID=")).unwrap();
        let pid: u32 = main.lines().next().unwrap().parse().unwrap();
        assert!(main.contains("\nREADY=1\n"), "{main}");
        // The old process does not announce that the service stops.
        assert!(rig.ended().success());
        notified.sign_of_life();
        assert!(kill(pid, "-TERM"));
        let mut state = notified.next_state();
        while state.starts_with("READY=1") {
            state = notified.next_state();
        }
        assert!(state.starts_with("STOPPING=1"), "{state}");
        eventually("it has ended", || !is_alive(pid));
    }
}

#[test]
fn the_unit_files_are_valid_and_hardened() {
    let Some(analyze) = rig::installed("systemd-analyze") else { return };
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide.md")).unwrap();
    let folder = Folder::new();
    for (name, file) in
        [("komainu.service", "komainu.service"), ("komainu-user.service", "komainu-user.service")]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        let unit = fs::read_to_string(&path).unwrap();
        assert!(guide.contains(unit.trim_end()), "docs/guide.md shows {file} as it is");
        // A package installs the program and its directory elsewhere, so the paths are replaced.
        let unit = unit.replace("/usr/local/bin/komainu", env!("CARGO_BIN_EXE_komainu"));
        folder.write(name, &unit);
        let checked =
            Command::new(&analyze).args(["verify", "--man=no"]).arg(folder.at(name)).output().unwrap();
        let said = text(&checked.stderr);
        let own: Vec<&str> = said.lines().filter(|line| line.contains("komainu")).collect();
        assert!(own.is_empty(), "{said}");
        let checked = Command::new(&analyze)
            .args(["security", "--offline=yes", "--no-pager"])
            .arg(folder.at(name))
            .output()
            .unwrap();
        let said = text(&checked.stdout);
        let exposure = said.lines().find(|line| line.contains("Overall exposure level")).unwrap();
        let level: f32 =
            exposure.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        assert!(level < 4.0, "{said}");
        eprintln!("{file}: {exposure}");
    }
}
