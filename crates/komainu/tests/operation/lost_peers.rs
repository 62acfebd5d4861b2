//! Unresponsive peers: lost packets, and receivers that read nothing.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Child;

use crate::rig::space::{in_network, on_lost_network};
use crate::rig::{self, Answer, Folder, PATIENCE, Rig, eventually, komainu};

/// Sends a GET request over the server's Unix socket, because its network namespace is separate.
fn get(rig: &Rig, path: &str) -> Answer {
    take(ask(rig, path))
}

fn ask(rig: &Rig, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(rig.folder.at("web.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

fn take(mut stream: UnixStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an upstream server in the network of `rig` that responds with its address.
fn upstream(rig: &Rig, address: &str) -> Running {
    let name = address.replace(['.', ':'], "-");
    rig.folder.write(
        &format!("{name}.toml"),
        format!(
            r#"
            listen = "{address}"
            user = "root"
            threads = 1
            [[route]]
            respond = "{name}"
            "#
        ),
    );
    let file = rig.folder.at(&format!("{name}.toml"));
    let binary = komainu().get_program().to_str().unwrap().to_owned();
    let mut command = in_network(rig, &binary, &["start", "-c", file.to_str().unwrap()]);
    Running(command.stdout(std::process::Stdio::null()).spawn().unwrap())
}

fn address(rig: &Rig, change: &str) {
    let changed = in_network(rig, "ip", &["addr", change, "192.0.2.1/32", "dev", "lo"]).status();
    assert!(changed.unwrap().success());
}

#[test]
fn unreachable_upstream_server_is_ejected_and_restored() {
    let config = r#"
        threads = 1
        user = "root"

        [log]
        level = "info"

        [[route]]
        path = "/alone"
        proxy = { to = "http://192.0.2.1:81", timeouts = { connect = "1s", head = "1s" } }

        [[route]]
        path = "/two"
        proxy = { to = ["http://192.0.2.1:81", "http://127.0.0.1:82"], timeouts = { connect = "500ms", head = "500ms" }, eject = { failures = 2, first = "500ms", max = "1s" } }

        [[route]]
        respond = "here"
    "#;
    let Some(rig) = on_lost_network(Folder::new(), config) else { return };
    let _second = upstream(&rig, "127.0.0.1:82");
    // The upstream server is unreachable: the client gets an error in time, and others are not affected.
    let lost = |path: &str| {
        let waiting = ask(&rig, path);
        for _ in 0..20 {
            get(&rig, "/").expect(200, "here");
        }
        let status = take(waiting).status();
        assert!([502, 504].contains(&status), "{status}");
    };
    lost("/alone");
    eventually("it is said why", || {
        rig.reported().lines().any(|line| line.contains("192.0.2.1") && line.contains("/alone"))
    });
    let count = |text: &str| {
        rig.reported().lines().filter(|line| line.contains("192.0.2.1") && line.contains(text)).count()
    };
    eventually("the other one answers all, and this one is ejected", || {
        get(&rig, "/two").expect(200, "127-0-0-1-82");
        count("ejected: it gets no requests for a time") > 0
    });
    // The network is restored.
    address(&rig, "add");
    let first = upstream(&rig, "192.0.2.1:81");
    eventually("it answers", || get(&rig, "/alone").status() == 200);
    eventually("it is taken back", || {
        get(&rig, "/two").expect_status(200);
        count("back in service") > 0
    });
    eventually("it has its share again", || get(&rig, "/two").text() == "192-0-2-1-81");
    // The network is lost again while idle connections are open: requests sent on them are lost.
    get(&rig, "/alone").expect(200, "192-0-2-1-81");
    address(&rig, "del");
    lost("/alone");
    for _ in 0..4 {
        let status = get(&rig, "/two").status();
        assert!([200, 502, 504].contains(&status), "{status}");
    }
    address(&rig, "add");
    eventually("it answers again", || get(&rig, "/alone").status() == 200);
    drop(first);
}

/// Accepts connections and reads nothing until it is dropped.
fn takes_nothing() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = theirs.accept() {
            taken.push(stream);
        }
    });
    listener
}

fn resident_kib(rig: &Rig) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Sends `count` requests with a target of `bytes` bytes over one connection.
fn ask_often(rig: &Rig, count: usize, bytes: usize) {
    let mut stream = rig.connect();
    let request = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(bytes)).repeat(10);
    for _ in 0..count / 10 {
        stream.write_all(request.as_bytes()).unwrap();
        for _ in 0..10 {
            rig::read_answer(&mut stream).expect(200, "ok");
        }
    }
}

/// Upper bound of the queue for one receiver in MiB, including overhead.
const WAITING_MIB: u64 = 8;

#[test]
fn stalled_syslog_receiver_loses_only_its_own_lines() {
    let receiver = takes_nothing();
    let folder = Folder::new();
    let config = format!(
        r#"
        threads = 1

        [[logs]]
        access = "$uri $uri"
        file = {{ syslog = "tcp://{}" }}

        [[logs]]
        access = "$status"
        file = "other.log"

        [[route]]
        respond = "ok"
        "#,
        receiver.local_addr().unwrap()
    );
    let rig = Rig::config(folder, &config);
    ask_often(&rig, 100, 7_000);
    let before = resident_kib(&rig);
    // 14 kB each: the socket's buffers hold a few MiB of them.
    ask_often(&rig, 3_000, 7_000);
    let grown = resident_kib(&rig).saturating_sub(before) / 1024;
    assert!(grown <= 3 * WAITING_MIB, "{grown} MiB more");
    eventually("it is said", || {
        rig.reported().matches("cannot be reached: ").count() == 1
            && rig.reported().contains("lines wait for it")
    });
    eventually("another log has every line", || {
        std::fs::read_to_string(rig.folder.at("other.log")).unwrap_or_default().lines().count() == 3_100
    });
    // Stopping does not wait for the receiver.
    let mut rig = rig;
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(
        rig.reported().contains("lines dropped: they are not taken fast enough")
            || rig.reported().contains("lines were dropped"),
        "{}",
        rig.reported()
    );
}

#[test]
fn stalled_trace_collector_does_not_block_requests() {
    let collector = takes_nothing();
    let config = format!(
        r#"
        threads = 1
        [tracing]
        enabled = true
        sample = "100%"
        to = "http://{}"
        [[route]]
        respond = "ok"
        "#,
        collector.local_addr().unwrap()
    );
    let rig = Rig::config(Folder::new(), &config);
    ask_often(&rig, 100, 7_000);
    let before = resident_kib(&rig);
    ask_often(&rig, 20_000, 200);
    let grown = resident_kib(&rig).saturating_sub(before) / 1024;
    assert!(grown <= 24, "{grown} MiB more");
    eventually("it is said", || rig.reported().contains("spans"));
    rig.get("/").expect(200, "ok");
    let mut rig = rig;
    rig.signal("-TERM");
    assert!(rig.ended().success());
}
