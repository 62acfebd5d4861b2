//! Upgrades of a running server's program without failing requests.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::hosted::{Client, is_alive, kill};
use crate::line::Line;
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, connect, eventually, is_closed, komainu, text};

/// Clients that send requests in a loop, half of them with a new connection for each request, and count
/// failures.
struct Traffic {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Traffic {
    fn start(address: SocketAddr, paths: &'static [&'static str]) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let good = Arc::new(AtomicUsize::new(0));
        let client = |number: usize| {
            let stop = stop.clone();
            let good = good.clone();
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                let mut stream = None;
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let close = if number.is_multiple_of(2) { "Connection: close\r\n" } else { "" };
                    let path = paths[(number / 2 + round) % paths.len()];
                    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n");
                    let answered = exchange(address, &mut stream, &request);
                    match answered {
                        Ok(200) => _ = good.fetch_add(1, Ordering::Relaxed),
                        Ok(status) => failures.push(format!("{path}: {status}")),
                        Err(error) => {
                            failures.push(format!("{path}: {error}"));
                            stream = None;
                        }
                    }
                }
                failures
            })
        };
        let threads = (0..8).map(client).collect();
        Traffic { stop, good, threads }
    }

    /// Waits for `answers` more successful responses.
    fn continues(&self, answers: usize) {
        let before = self.good.load(Ordering::Relaxed);
        eventually("the answers continue", || self.good.load(Ordering::Relaxed) >= before + answers);
    }

    /// Stops the clients; returns the number of successes and the failures.
    fn finish(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (self.good.load(Ordering::Relaxed), failures)
    }
}

/// Sends one request and reads the whole response; the connection is kept unless the response forbids it.
fn exchange(
    address: SocketAddr,
    kept: &mut Option<std::net::TcpStream>,
    request: &str,
) -> std::io::Result<u16> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_read_timeout(Some(rig::PATIENCE))?;
            stream
        }
    };
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let len = stream.read(&mut piece)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..len]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = text(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if bytes.len() >= end + 4 + length.unwrap_or(0) {
            if !head.contains("\r\nconnection: close") {
                *kept = Some(stream);
            }
            return Ok(head[9..12].parse().unwrap());
        }
    }
}

/// Answers with its process id; for `/slow?FILE` once that file exists.
const APP: &str = "sub { my $file = $_[0]{PATH_INFO} eq '/slow' && $_[0]{QUERY_STRING}; \
                   select undef, undef, undef, 0.02 until !$file || -e $file; \
                   my $b = \"$$\"; [200, ['Content-Length', length $b], [$b]] }";

/// Configuration with files and an application.
fn config(more: &str) -> String {
    format!(
        r#"
        listen = "127.0.0.1:0"
        threads = 2
        {more}

        [log]
        level = "info"

        [[route]]
        path = "/files/*"
        files = {{ root = "www", strip_prefix = true }}

        [[route]]
        app = "shop"

        [apps.shop]
        psgi = "app.psgi"
        workers = 2
        "#
    )
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("www/a", "A").write("app.psgi", APP);
    folder
}

/// Number of upgrades of the loaded server; `KOMAINU_UPGRADES` overrides it.
fn upgrades() -> usize {
    std::env::var("KOMAINU_UPGRADES").ok().and_then(|count| count.parse().ok()).unwrap_or(5)
}

#[test]
fn no_request_fails_during_repeated_upgrades() {
    for kind in rig::kinds() {
        let mut line = Line::start(folder(), &config(kind));
        let traffic = Traffic::start(line.rig.address, &["/files/a", "/app"]);
        traffic.continues(100);
        let mut old = Vec::new();
        for _ in 0..upgrades() {
            old.push(line.upgrade());
            traffic.continues(100);
        }
        let (good, failures) = traffic.finish();
        assert!(failures.is_empty(), "{} of {good} failed: {failures:?}", failures.len());
        eventually("the old ones have ended", || {
            let _ = line.rig.child.try_wait();
            !old.iter().any(|pid| is_alive(*pid))
        });
        eprintln!("{} upgrades, {good} requests, none failed", old.len());
        line.stop();
    }
}

#[test]
fn old_server_finishes_running_requests() {
    for kind in rig::kinds() {
        let mut line = Line::start(folder(), &config(kind));
        let old_worker = line.rig.get("/").text();
        let mut slow = Client::new(line.rig.address);
        let gate = line.rig.folder.at("gate");
        slow.send(format!("GET /slow?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", gate.display()));
        let mut idle = line.rig.connect();
        let old = line.upgrade();
        // The old server finishes and reports this; the new one serves with its own workers.
        let status = line.komainu(&["status", "--json"]);
        let servers: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        // Root also sees the servers of other users.
        let is_ours = |server: &&serde_json::Value| {
            let pids = [&server["pid"], &server["supervisor"]["pid"]].map(|pid| pid.as_u64());
            [old, line.pid].iter().any(|pid| pids.contains(&Some(u64::from(*pid))))
        };
        let ours = servers.as_array().unwrap().iter().filter(is_ours);
        let mut states: Vec<&str> = ours.map(|server| server["state"].as_str().unwrap()).collect();
        states.sort_unstable();
        assert_eq!(states, ["draining", "serving"], "{servers}");
        // The command selects the new server without a process id.
        let reload = line.komainu(&["reload"]);
        let said = text(&reload.stdout) + &text(&reload.stderr);
        assert!(!said.contains(&old.to_string()), "{said}");
        assert_ne!(line.rig.get("/").text(), old_worker);
        assert!(is_alive(old));
        fs::write(gate, "").unwrap();
        let (status, body) = slow.answer();
        assert_eq!(status, 200);
        assert_ne!(body, line.rig.get("/").text());
        assert!(is_closed(&mut idle), "an idle connection of the old server is closed");
        eventually("the old one has ended", || {
            let _ = line.rig.child.try_wait();
            !is_alive(old)
        });
        line.stop();
    }
}

const SOCKETS: &str = "
async def app(scope, receive, send):
    assert scope['type'] == 'websocket'
    await receive()
    await send({'type': 'websocket.accept'})
    while (await receive())['type'] != 'websocket.disconnect':
        pass
";

/// Opens a WebSocket.
fn websocket(rig: &Rig, path: &str) -> std::net::TcpStream {
    let mut stream = rig.connect();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    rig::read_answer(&mut stream).expect_status(101);
    stream
}

#[test]
fn upgrade_closes_websockets_with_1001_and_tunnels_after_drain() {
    // A proxied WebSocket server that sends nothing after its head.
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut clients = Vec::new();
        for client in upstream.incoming() {
            let mut client = client.unwrap();
            let _ = client.read(&mut [0; 4096]);
            let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
            let _ = write!(
                client,
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{accept}\r\n\r\n"
            );
            clients.push(client);
        }
    });
    for kind in rig::kinds() {
        let folder = Folder::new();
        folder.write("sockets.py", SOCKETS);
        let mut line = Line::start(
            folder,
            &format!(
                r#"
                listen = "127.0.0.1:0"
                threads = 2
                {kind}
                timeouts.drain = "1s"

                [[route]]
                path = "/tunnel"
                proxy = "http://{address}"

                [[route]]
                app = "sockets"

                [apps.sockets]
                asgi = "sockets.py"
                workers = 1
                "#
            ),
        );
        let mut socket = websocket(&line.rig, "/");
        let mut tunnel = websocket(&line.rig, "/tunnel");
        let old = line.upgrade();
        // A close frame with status 1001 (RFC 6455 section 7.4.1), which the client answers.
        let mut frame = [0; 4];
        socket.read_exact(&mut frame).unwrap();
        assert_eq!(frame, [0x88, 2, 0x03, 0xe9]);
        socket.write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]).unwrap();
        assert!(is_closed(&mut socket));
        assert!(is_closed(&mut tunnel));
        eventually("the old one has ended", || {
            let _ = line.rig.child.try_wait();
            !is_alive(old)
        });
        drop(websocket(&line.rig, "/"));
        line.stop();
    }
}

#[test]
fn failed_upgrade_leaves_old_server_running() {
    for kind in rig::kinds() {
        let line = Line::start(folder(), &config(kind));
        let worker = |line: &Line| line.rig.get("/").expect_status(200).text();
        worker(&line);
        let pid = line.pid;
        for (name, content, said) in [
            ("komainu.toml", config(kind).replace("files", "fiels"), "fiels"),
            ("komainu.toml", config(kind).replace("\"www\"", "\"none\""), "none"),
            ("app.psgi", "die 'not today'".to_owned(), "not today"),
            ("app.psgi", "exit 3".to_owned(), "does not load"),
        ] {
            let before = fs::read(line.rig.folder.at(name)).unwrap();
            line.rig.folder.write(name, content);
            let text = line.upgrade_in_vain();
            assert!(text.contains(said) && text.contains("the old server continues"), "{said}: {text}");
            line.rig.folder.write(name, before);
            worker(&line);
            assert!(is_alive(pid));
        }
        let mut line = line;
        line.upgrade();
        worker(&line);
        line.stop();
    }
}

#[test]
fn replaced_program_file_takes_over_on_upgrade() {
    let folder = folder();
    let program = folder.at("komainu");
    let install = |content: &Path| {
        let new = program.with_extension("new");
        rig::install_program(content, &new);
        fs::rename(&new, &program).unwrap();
    };
    let this = Path::new(env!("CARGO_BIN_EXE_komainu"));
    install(this);
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            {}
            [[route]]
            files = "www"
            "#,
            as_we_are()
        ),
    );
    folder.write("broken", "#!/bin/sh\nexit 7\n").write("hung", "#!/bin/sh\nexec sleep 600\n");
    let broken = folder.at("broken");
    let hung = folder.at("hung");
    let mut command = Command::new(&program);
    command.env("RUNTIME_DIRECTORY", folder.at("run")).arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut line = Line::new(Rig::start(command, folder));
    install(&broken);
    let said = line.upgrade_in_vain();
    assert!(said.contains("it ended: exit status: 7"), "{said}");
    fs::remove_file(&program).unwrap();
    let said = line.upgrade_in_vain();
    assert!(said.contains("cannot start") && said.contains("komainu"), "{said}");
    // Stopping the server does not wait for a successor that never reports.
    install(&hung);
    let pid = line.pid.to_string();
    let runtime = line.rig.folder.at("run");
    let waiting =
        komainu().args(["upgrade", "--pid", &pid]).env("RUNTIME_DIRECTORY", runtime).spawn().unwrap();
    let sleeping = || {
        let found = Command::new("pgrep").args(["-P", &pid, "-x", "sleep"]).output().unwrap();
        text(&found.stdout).trim().parse::<u32>().ok()
    };
    eventually("it is started", || sleeping().is_some());
    let successor = sleeping().unwrap();
    line.rig.get("/a").expect(200, "A");
    install(this);
    kill(successor, "-KILL");
    assert!(!{ waiting }.wait().unwrap().success());
    line.upgrade();
    line.rig.get("/a").expect(200, "A");
    line.stop();
}

#[test]
fn a_program_that_others_can_replace_is_not_started() {
    if !rig::is_root() {
        eprintln!("SKIPPED: this needs another user");
        return;
    }
    let folder = folder();
    folder.write("bin/nothing", "");
    fs::set_permissions(folder.at("bin"), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.at("bin/komainu");
    rig::install_program(Path::new(env!("CARGO_BIN_EXE_komainu")), &program);
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            {}
            [[route]]
            files = "www"
            "#,
            as_we_are()
        ),
    );
    let mut command = Command::new(&program);
    command.env("RUNTIME_DIRECTORY", folder.at("run")).arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut line = Line::new(Rig::start(command, folder));
    let bin = line.rig.folder.at("bin");
    let change = |path: &Path, owner: u32, mode: u32| {
        std::os::unix::fs::chown(path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    for (path, owner, mode, why) in [
        (&bin, 65_533, 0o755, "belongs to user 65533"),
        (&bin, 0, 0o777, "can be written to by everybody"),
        (&program, 65_533, 0o755, "belongs to user 65533"),
        (&program, 0, 0o757, "can be written to by everybody"),
    ] {
        change(path, owner, mode);
        let said = line.upgrade_in_vain();
        let named = format!("{} {why}", path.display());
        assert!(said.contains(&named) && said.contains("chmod go-w"), "{said}");
        change(path, 0, 0o755);
    }
    line.upgrade();
    line.rig.get("/a").expect(200, "A");
    line.stop();
}

#[test]
fn sigusr2_upgrades_the_server() {
    for kind in rig::kinds() {
        let mut line = Line::start(folder(), &config(kind));
        line.rig.get("/files/a").expect(200, "A");
        line.rig.signal("-USR2");
        eventually("it has taken over", || line.rig.reported().contains("has taken over"));
        let log = line.rig.reported();
        // The new server is not mistaken for an application that tries to control the old one.
        assert!(!log.contains("may not control this server"), "{log}");
        let (_, rest) = log.split_once("upgrade: process ").unwrap();
        line.pid = rest.split_whitespace().next().unwrap().parse().unwrap();
        assert!(line.rig.ended().success());
        line.rig.get("/files/a").expect(200, "A");
        line.stop();
    }
}

#[test]
fn stop_during_upgrade_ends_the_successor() {
    for kind in rig::kinds() {
        let mut line = Line::start(folder(), &config(kind));
        line.rig.get("/").expect_status(200);
        line.rig.folder.write("app.psgi", "sleep 600; sub {}");
        line.rig.signal("-USR2");
        eventually("it is started", || line.rig.reported().contains("is started"));
        let log = line.rig.reported();
        let (_, rest) = log.split_once("upgrade: process ").unwrap();
        let successor: u32 = rest.split_whitespace().next().unwrap().parse().unwrap();
        line.rig.signal("-TERM");
        assert!(line.rig.ended().success());
        eventually("the other one has ended too", || !is_alive(successor));
    }
}

#[test]
fn upgrade_keeps_unix_sockets_and_removes_unlisted_ones() {
    for kind in rig::kinds() {
        let folder = folder();
        let stays = folder.at("stays.sock");
        let goes = folder.at("goes.sock");
        let config = |sockets: &[&Path]| {
            let sockets: String =
                sockets.iter().map(|path| format!(", \"unix:{}\"", path.display())).collect();
            format!(
                r#"
                listen = ["127.0.0.1:0"{sockets}]
                {kind}
                [[route]]
                files = "www"
                "#
            )
        };
        let mut line = Line::start(folder, &config(&[&stays, &goes]));
        let ask = |path: &Path| {
            let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
            stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            assert!(bytes.ends_with(b"\r\n\r\nA"), "{}", text(&bytes));
        };
        ask(&stays);
        ask(&goes);
        line.rig.folder.write("komainu.toml", config(&[&stays]));
        let old = line.upgrade();
        eventually("the old one has ended", || {
            let _ = line.rig.child.try_wait();
            !is_alive(old)
        });
        ask(&stays);
        assert!(!goes.exists(), "nobody listens there any more");
        // A failed upgrade leaves the file to its owner.
        line.rig.folder.write("komainu.toml", "listen = 1");
        line.upgrade_in_vain();
        ask(&stays);
        let _ = connect(line.rig.address);
        line.stop();
        assert!(!stays.exists(), "the last one removes its file");
    }
}

#[test]
fn new_server_takes_over_control_listener() {
    let folder = Folder::new();
    folder.write("www/large", vec![b'x'; 30_000_000]);
    let config = r#"
        listen = "127.0.0.1:0"
        threads = 1
        [timeouts]
        drain = "2m"
        [control]
        listen = "unix:c.sock"
        [[route]]
        files = "www"
    "#;
    let mut line = Line::start(folder, &format!("{}{config}", as_we_are()));
    // Keeps the old server busy, because the response is not read.
    let mut slow = connect(line.rig.address);
    slow.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    slow.read_exact(&mut [0; 15]).unwrap();
    let before = line.upgrade();
    let socket = line.rig.folder.at("c.sock");
    let pid = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).ok()?;
        let request = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str::<serde_json::Value>(body).ok()?["pid"].as_u64()
    };
    eventually("the new server answers", || pid() == Some(line.pid.into()));
    assert!(is_alive(before), "the old one still sends its file");
    drop(slow);
    line.stop();
}
