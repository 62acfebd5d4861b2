//! Crashes of a running server: waiting clients, restarts, and log entries.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::hosted::{is_alive, kill, modules, server, status};
use crate::rig::{self, Folder, PATIENCE, Rig, eventually, text};

/// Starts a supervised server with files and an application that returns its worker's process id. Without
/// root, prints a note and returns `None`.
fn supervised() -> Option<Rig> {
    if !rig::is_root() {
        eprintln!("SKIPPED: only root can start a server with a supervisor");
        return None;
    }
    modules();
    let folder = Folder::new();
    folder.write("www/a", "A").write("app.psgi", "sub { [200, [], [$$]] }");
    folder.write(
        "komainu.toml",
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        threads = 2

        [log]
        errors = "errors.log"

        [[route]]
        path = "/app"
        app = "shop"

        [[route]]
        files = "www"

        [apps.shop]
        psgi = "app.psgi"
        workers = 2
        "#,
    );
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Some(Rig::start(command, folder))
}

fn errors(rig: &Rig) -> String {
    fs::read_to_string(rig.folder.at("errors.log")).unwrap_or_default()
}

/// Running child processes.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids =
        lines.flat_map(|line| line.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>());
    pids.filter(|pid| is_alive(*pid)).collect()
}

/// Sends a GET request on a new connection. Returns `None` if the server accepted the connection and died
/// before the response.
///
/// # Panics
/// If the connection is refused or the response is a different one.
fn get(address: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect(address).expect("the address is bound all the time");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let asked = stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut bytes = Vec::new();
    match asked.and_then(|()| stream.read_to_end(&mut bytes)) {
        Ok(_) if !bytes.is_empty() => {
            let answer = text(&bytes);
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nA"), "{answer}");
            Some(())
        }
        Err(error) => {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "nobody answers");
            None
        }
        Ok(_) => None,
    }
}

#[test]
fn crashed_server_is_restarted_and_clients_are_answered() {
    let Some(rig) = supervised() else { return };
    let stop = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    let lost = AtomicUsize::new(0);
    let answered = |count: usize| {
        let before = answers.load(Ordering::Relaxed);
        eventually("clients are answered", || answers.load(Ordering::Relaxed) >= before + count);
    };
    std::thread::scope(|scope| {
        // The clients stop with the test, even if it fails.
        let ends = Ends(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let count = if get(rig.address).is_some() { &answers } else { &lost };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for (signal, said) in [
            ("-KILL", "signal: 9 (SIGKILL); it is started again\n"),
            ("-SEGV", "signal: 11 (SIGSEGV)"),
            ("-ABRT", "signal: 6 (SIGABRT)"),
        ] {
            answered(50);
            let before = status(&rig)["pid"].as_u64().unwrap() as u32;
            let worker: u32 = rig.get("/app").expect_status(200).text().parse().unwrap();
            assert_eq!(children(rig.child.id()), [before]);
            end(before, signal);
            answered(50);
            // The address is unchanged; the server process and the workers are new.
            let after = status(&rig)["pid"].as_u64().unwrap() as u32;
            let next: u32 = rig.get("/app").expect_status(200).text().parse().unwrap();
            assert!(before != after && worker != next, "{before} {after} {worker} {next}: {}", errors(&rig));
            eventually("what it had started has ended", || !is_alive(before) && !is_alive(worker));
            let line = format!("the server (process {before}) died: {said}");
            assert!(errors(&rig).contains(&line), "{}", errors(&rig));
        }
        drop(ends);
    });
    // At most one request in progress for each client is lost in each crash.
    assert!(lost.load(Ordering::Relaxed) <= 3 * 8, "{lost:?} of {answers:?}");
    // No core is dumped because the process changed its user; if there is one, its path is logged.
    assert!(errors(&rig).contains("left no core") || errors(&rig).contains("its core"), "{}", errors(&rig));
}

/// Terminates a process by a signal. Rust's own SIGSEGV handler looks for a stack overflow, ignores the first
/// signal that no fault has caused, and restores the default action for the next one.
fn end(pid: u32, signal: &str) {
    eventually("it has ended", || {
        kill(pid, signal);
        !is_alive(pid)
    });
}

/// Sets a flag on drop.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn crash_loop_is_delayed_and_connections_wait_in_backlog() {
    let Some(rig) = supervised() else { return };
    let supervisor = rig.child.id();
    let mut waited = false;
    for _ in 0..7 {
        let mut serving = Vec::new();
        eventually("a server runs", || {
            serving = children(supervisor);
            // The server has answered, so its crash does not count as a failed start.
            serving.len() == 1 && get(rig.address).is_some()
        });
        assert!(kill(serving[0], "-KILL"));
        let died = format!("(process {}) died: signal: 9 (SIGKILL); it is started again", serving[0]);
        eventually("it is said", || errors(&rig).contains(&died));
        // A client that connects while no server runs.
        let mut stream = rig.connect();
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        waited |= children(supervisor).is_empty();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert!(text(&bytes).ends_with("\r\n\r\nA"), "{}", text(&bytes));
    }
    assert!(waited, "each pause was over before its client came");
    // On a busy machine the server may run long enough to reset the restart delay.
    let log = errors(&rig);
    for pause_ms in [100, 200] {
        assert!(log.contains(&format!("it is started again in {pause_ms} ms\n")), "{log}");
    }
}

#[test]
fn supervisor_stops_during_restart_delay() {
    let Some(mut rig) = supervised() else { return };
    let supervisor = rig.child.id();
    for round in 0..7 {
        eventually("a server runs", || children(supervisor).len() == 1 && get(rig.address).is_some());
        assert!(kill(children(supervisor)[0], "-KILL"));
        eventually("it is said", || errors(&rig).matches("died: signal: 9").count() > round);
    }
    rig.signal("-TERM");
    assert!(rig.ended().success());
}

/// Binds a socket and keeps it open, as a `.socket` unit does, and starts the server with it; after the
/// server has died, it is started once more as soon as a file exists.
const SOCKET_UNIT: &str = "
import os, socket, sys, time
go, command = sys.argv[1], sys.argv[2:]
kept = socket.socket()
kept.bind(('127.0.0.1', 0))
kept.listen(100)
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        os.dup2(kept.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
        os.execv(command[0], command)
    open(go + '.pid', 'w').write(str(pid) + '\\n')
    os.waitpid(pid, 0)
    while not os.path.exists(go):
        time.sleep(0.01)
";

#[test]
fn inherited_socket_keeps_connections_across_server_crash() {
    let folder = Folder::new();
    folder.write("www/a", "A").write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            {}
            [[route]]
            files = "www"
            "#,
            rig::as_we_are()
        ),
    );
    let mut command = Command::new("python3");
    command.args(["-c", SOCKET_UNIT]).arg(folder.at("go")).arg(env!("CARGO_BIN_EXE_komainu"));
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    rig.get("/a").expect(200, "A");
    let before = pid_in(&rig.folder.at("go.pid"));
    let _server = Server(rig.folder.at("go.pid"));
    end(before, "-SEGV");
    let mut waiting = rig.connect();
    waiting.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    rig.folder.write("go", "");
    let mut bytes = Vec::new();
    waiting.read_to_end(&mut bytes).unwrap();
    assert!(text(&bytes).ends_with("\r\n\r\nA"), "{}", text(&bytes));
    assert_ne!(pid_in(&rig.folder.at("go.pid")), before);
}

fn pid_in(path: &Path) -> u32 {
    let mut pid = None;
    eventually("its id is there", || {
        pid = fs::read_to_string(path).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// Kills the server of the script, which would outlive it.
struct Server(std::path::PathBuf);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse().ok()) {
            kill(pid, "-KILL");
        }
    }
}
