//! Upgrades of the program without a lost connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt::socket_type;
use rustix::net::{SendFlags, SocketType, send};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::certified;
use crate::h3_client::H3Client;
use crate::hosted::{is_alive, kill};
use crate::line::Line;
use crate::origin::{Origin, ok};
use crate::requests::A;
use crate::rig::{as_we_are, eventually, is_root, kinds};

/// The body is sent later.
const ONE_BYTE: (&str, &str) = ("content-length", "1");

/// Starts a server of each kind: one process, and a supervisor with a server.
fn start(kind: &str) -> Line {
    start_with(kind, "respond = \"yes\"")
}

/// Like [`start`], for a server that answers when it has read the whole body.
fn start_proxy(kind: &str) -> (Line, Origin) {
    let origin = Origin::start(|_| ok("yes"));
    (start_with(kind, &format!("proxy = \"{}\"", origin.url)), origin)
}

fn start_with(kind: &str, handler: &str) -> Line {
    let folder = certified::folder(&[("a.test", "ec")]);
    crate::certified::openssl(&folder, "chmod a+r a.test.key");
    let text = format!(
        r#"{kind}
        listen = [{{ address = "127.0.0.1:0", tls = true }}]
        threads = 2
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        [[site.route]]
        {handler}
        "#
    );
    Line::start(folder, &text)
}

#[test]
fn request_that_runs_is_finished_by_the_old_server() {
    for kind in kinds() {
        let (mut line, _origin) = start_proxy(kind);
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let mut client = H3Client::connect(line.rig.address, "a.test");
            let id = client.open("POST", "/", &[A, ONE_BYTE]);
            client.drive_for(Duration::from_millis(50));
            waiting.push((client, id));
            line.upgrade();
            // New connections belong to the successor, whatever core they reach.
            for _ in 0..8 {
                let mut other = H3Client::connect(line.rig.address, "a.test");
                assert_eq!(other.ask("GET", "/", &[A], b"").status, 200, "{kind}");
            }
        }
        // Packets of the first one pass through all successors, also from another address.
        for (mut client, id) in waiting {
            client.rebind();
            client.push(id, b"x", true);
            let answer = client.finish(id);
            assert_eq!(
                (answer.status, answer.text(), answer.is_whole),
                (200, "yes".to_owned(), true),
                "{kind}"
            );
        }
        line.stop();
    }
}

#[test]
fn request_outlives_a_successor_without_connections() {
    for kind in kinds() {
        let (mut line, _origin) = start_proxy(kind);
        let mut client = H3Client::connect(line.rig.address, "a.test");
        let id = client.open("POST", "/", &[A, ONE_BYTE]);
        client.drive_for(Duration::from_millis(50));
        // The second server has nothing to finish when the third takes over.
        let before = [line.upgrade(), line.upgrade()];
        client.drive_for(Duration::from_secs(2));
        client.push(id, b"x", true);
        let answer = client.finish(id);
        assert_eq!((answer.status, answer.is_whole), (200, true), "{kind}");
        drop(client);
        eventually("those before the third end", || {
            let _ = line.rig.child.try_wait();
            before.iter().all(|pid| !is_alive(*pid))
        });
        line.stop();
    }
}

#[test]
fn failed_upgrade_leaves_http3_to_the_old_server() {
    for kind in kinds() {
        let line = start(kind);
        let mut before = H3Client::connect(line.rig.address, "a.test");
        assert_eq!(before.ask("GET", "/", &[A], b"").status, 200);
        // The address of the control listener is bound last, and is not this machine's.
        let text = std::fs::read_to_string(line.rig.folder.at("komainu.toml")).unwrap();
        line.rig.folder.write("komainu.toml", format!("{text}\n[control]\nlisten = \"192.0.2.1:1\"\n"));
        let said = line.upgrade_in_vain();
        assert!(said.contains("192.0.2.1"), "{said}");
        assert_eq!(before.ask("GET", "/", &[A], b"").status, 200, "{kind}");
        let mut new = H3Client::connect(line.rig.address, "a.test");
        assert_eq!(new.ask("GET", "/", &[A], b"").status, 200, "{kind}");
        line.stop();
    }
}

/// Sends messages to the ends of all channels that the server has, as it could itself, and kills it.
fn write_to_channels_and_kill(server: u32) {
    let pid = Pid::from_raw(server.cast_signed()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let mut written = 0;
    for entry in std::fs::read_dir(format!("/proc/{server}/fd")).unwrap() {
        let number = entry.unwrap().file_name().to_string_lossy().parse().unwrap();
        let Ok(copy) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        if !socket_type(&copy).is_ok_and(|kind| kind == SocketType::SEQPACKET) {
            continue;
        }
        // "I receive now", as of a successor; and packets that are none.
        for message in [&[0][..], &[1, 2, 3], &[1; 100]] {
            written += usize::from(send(&copy, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok());
        }
    }
    assert!(written > 0);
    // Fails if its supervisor has ended it first.
    kill(server, "-KILL");
}

#[test]
fn messages_of_a_hostile_server_do_not_end_http3() {
    if !is_root() {
        return eprintln!("SKIPPED: only root can start a server with a supervisor");
    }
    let mut line = start("user = \"65534\"\ngroup = \"65534\"\n");
    for _ in 0..2 {
        let server = line.server().unwrap();
        write_to_channels_and_kill(server);
        eventually("another server serves", || line.server().is_some_and(|pid| pid != server));
        let mut client = H3Client::connect(line.rig.address, "a.test");
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
        // Neither does a server that is started in place of a successor depend on the first one.
        line.upgrade();
    }
    line.stop();
}

#[test]
fn no_request_fails_during_upgrades() {
    let mut line = start(if is_root() { as_we_are() } else { "" });
    let address = line.rig.address;
    let stop = Arc::new(AtomicBool::new(false));
    let good = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            let good = good.clone();
            std::thread::spawn(move || {
                let mut client = H3Client::connect(address, "a.test");
                while !stop.load(Ordering::Relaxed) {
                    if client.has_goaway {
                        client = H3Client::connect(address, "a.test");
                    }
                    let ids: Vec<_> = (0..8).map(|_| client.send("GET", "/", &[A], b"")).collect();
                    for id in ids {
                        let answer = client.finish(id);
                        // A request that arrives after the second GOAWAY was not processed (RFC 9114 section 5.2).
                        let is_rejected = answer.reset == Some(0x10b);
                        assert!(
                            is_rejected || answer.status == 200 && answer.is_whole,
                            "{answer:?} {:?}",
                            client.lost
                        );
                        good.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let before = good.load(Ordering::Relaxed);
        eventually("requests are answered", || good.load(Ordering::Relaxed) > before + 100);
        line.upgrade();
    }
    let before = good.load(Ordering::Relaxed);
    eventually("requests are answered", || good.load(Ordering::Relaxed) > before + 100);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    line.stop();
}
