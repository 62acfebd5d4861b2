//! Connections of HTTP/3: their beginning and end, changes of address, reloads.

use std::time::{Duration, Instant};

use quinn_proto::{ConnectionError, TransportConfig, VarInt};

use crate::h3_client::{H3Client, client_config};
use crate::requests::{A, EventOrigin, connect, serve, serve_with};
use crate::rig::eventually;

const YES: &str = "[[site.route]]\nrespond = \"yes\"";

#[test]
fn unknown_name_and_protocol_are_refused_by_alerts() {
    let rig = serve(YES);
    for (name, protocol, alert) in [("b.test", &b"h3"[..], 112), ("a.test", b"other", 120)] {
        let config = client_config(&[protocol], TransportConfig::default());
        let mut client = H3Client::begin(rig.address, name, config);
        client.drive("end of the handshake", |client| client.lost.is_some());
        let Some(ConnectionError::ConnectionClosed(close)) = &client.lost else {
            panic!("{:?}", client.lost)
        };
        assert_eq!(u64::from(close.error_code), 0x100 + alert, "{name}");
    }
}

#[test]
fn client_whose_address_changes_keeps_its_connection() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    for _ in 0..5 {
        client.rebind();
        let answer = client.ask("GET", "/", &[A], b"");
        assert_eq!((answer.status, answer.text()), (200, "yes".to_owned()));
    }
}

/// Binds a TCP socket and three UDP sockets to one port, then executes the server, as systemd would.
const ACTIVATE: &str = "
import os, socket, sys
sockets = [socket.socket()] + [socket.socket(type=socket.SOCK_DGRAM) for _ in range(3)]
for one in sockets:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(sockets[0].getsockname() if one is not sockets[0] else ('127.0.0.1', 0))
sockets[0].listen(100)
held = [os.dup(one.fileno()) for one in sockets]
for number, one in enumerate(held):
    os.dup2(one, 3 + number, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(held)))
os.execv(sys.argv[1], sys.argv[1:])
";

/// A folder with a configuration that begins with these lines.
fn configured(lines: &str) -> crate::rig::Folder {
    let folder = crate::certified::folder(&[("a.test", "ec")]);
    let text = format!(
        r#"
        listen = [{{ address = "127.0.0.1:0", tls = true }}]
        {lines}
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        {YES}
        "#
    );
    folder.write("komainu.toml", text);
    folder
}

#[test]
fn udp_sockets_of_systemd_are_served_by_several_threads() {
    for kind in crate::rig::kinds() {
        let folder = configured(&format!("threads = 3\n{kind}"));
        let mut command = std::process::Command::new("python3");
        command.args(["-c", ACTIVATE, env!("CARGO_BIN_EXE_komainu"), "start", "-c"]);
        command.arg(folder.at("komainu.toml"));
        let rig = crate::rig::Rig::start(command, folder);
        // The kernel gives each connection to a socket, and must find it again when the client's address changes.
        let mut clients: Vec<_> = (0..12).map(|_| connect(&rig)).collect();
        for _ in 0..4 {
            for client in &mut clients {
                client.rebind();
                let answer = client.ask("GET", "/", &[A], b"");
                let (got, lost) = ((answer.status, answer.text()), &client.lost);
                assert_eq!(got, (200, "yes".to_owned()), "{kind}, {lost:?}");
            }
        }
    }
}

#[test]
fn client_that_moves_to_another_address_gets_large_responses() {
    let content = vec![b'x'; 3_000_000];
    let rig =
        serve_with("", "[[site.route]]\nfiles = \"www\"", |folder| _ = folder.write("www/large", &content));
    let mut client = connect(&rig);
    for address in ["127.0.0.2", "127.0.0.3", "127.0.0.1"] {
        let id = client.send("GET", "/large", &[A], b"");
        client.drive("a part", |client| client.response(id).content.len() > 100_000);
        client.move_to(address);
        let answer = client.finish(id);
        assert!(answer.is_whole && answer.content == content, "{address}: {:?}", client.lost);
    }
}

/// A client that sends packets with the addresses of others, who must get little for each.
#[test]
fn others_get_little_by_packets_with_their_addresses() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    let others: Vec<_> =
        (2..62).map(|last| std::net::UdpSocket::bind((format!("127.0.9.{last}"), 0)).unwrap()).collect();
    let (mut sent, mut received, mut packet) = (0, 0, [0; 2048]);
    for other in &others {
        sent += client.ping_from(other);
        client.drive_for(Duration::from_millis(20));
    }
    for other in &others {
        other.set_nonblocking(true).unwrap();
        while let Ok(len) = other.recv(&mut packet) {
            received += len;
        }
    }
    // Four packets of full size, and one more in five seconds.
    assert!(received <= 3 * sent + 5 * 1200, "{received} bytes for {sent}");
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn keys_are_updated() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    for _ in 0..3 {
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
        client.quic.force_key_update();
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    }
}

#[test]
fn reload_keeps_connections() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    for round in 0..3 {
        let path = rig.folder.at("komainu.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let before = if round == 0 { "yes".to_owned() } else { format!("round {}", round - 1) };
        let changed = text.replace(&format!("\"{before}\""), &format!("\"round {round}\""));
        std::fs::write(&path, changed).unwrap();
        rig.signal("-HUP");
        let expected = format!("round {round}");
        eventually("the new configuration answers", || {
            let answer = client.ask("GET", "/", &[A], b"");
            assert_eq!(answer.status, 200);
            answer.text() == expected
        });
    }
    let mut other = connect(&rig);
    assert_eq!(other.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn reload_switches_http3_off_and_on() {
    crate::rig::kinds().into_iter().for_each(switch_off_and_on);
}

fn switch_off_and_on(kind: &str) {
    let folder = configured(kind);
    let mut command = crate::rig::komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = crate::rig::Rig::start(command, folder);
    let path = rig.folder.at("komainu.toml");
    let switch = |on: bool| {
        let text = std::fs::read_to_string(&path).unwrap().replace(", http3 = false }", " }");
        let text = if on { text } else { text.replace("tls = true }", "tls = true, http3 = false }") };
        std::fs::write(&path, text).unwrap();
        rig.signal("-HUP");
    };
    let port = format!(":{:04X} ", rig.address.port());
    let is_bound = || {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
        sockets
            .lines()
            .any(|line| line.split_whitespace().nth(1).is_some_and(|at| format!("{at} ").ends_with(&port)))
    };
    let connects = || {
        let config = client_config(&[b"h3"], TransportConfig::default());
        let mut client = H3Client::begin(rig.address, "a.test", config);
        client.drive_for(Duration::from_millis(300));
        client.is_connected
    };
    let mut kept = connect(&rig);
    switch(false);
    eventually("no new connection is accepted", || !connects());
    assert_eq!(kept.ask("GET", "/", &[A], b"").status, 200, "open connections stay");
    switch(true);
    eventually("new connections are accepted again, on the same sockets", connects);
    switch(false);
    kept.quic.close(std::time::Instant::now(), 0x100u32.into(), bytes::Bytes::new());
    kept.turn();
    eventually("the port is free", || !is_bound());
    let other = std::net::UdpSocket::bind(rig.address).unwrap();
    switch(true);
    rig.expect_report("HTTP/3 is not served at");
    let pid = rig.child.id().to_string();
    let again = crate::rig::komainu().args(["reload", "--pid", &pid]).output().unwrap();
    let said = String::from_utf8_lossy(&[again.stdout, again.stderr].concat()).into_owned();
    assert!(said.contains("HTTP/3 is not served at"), "who reloads learns it: {said}");
    drop(other);
    switch(true);
    eventually("the port is bound by a reload", connects);
}

/// A client chooses its round-trip time by the time of its acknowledgements, and with it the time for which QUIC keeps a
/// connection that was closed.
#[test]
fn stop_does_not_wait_for_closed_connections_of_slow_clients() {
    let mut rig = serve(YES);
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    client.send("GET", "/", &[A], b"");
    client.turn();
    // The response is acknowledged late, so that QUIC would keep the connection for a minute.
    std::thread::sleep(Duration::from_secs(6));
    client.drive_for(Duration::from_millis(100));
    client.quic.close(Instant::now(), VarInt::from_u32(0x100), bytes::Bytes::new());
    client.turn();
    std::thread::sleep(Duration::from_millis(200));
    let stopped = Instant::now();
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
}

#[test]
fn stopping_server_announces_it_and_finishes_requests() {
    let mut rig = serve(YES);
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    let id = client.open("POST", "/", &[A]);
    client.drive_for(Duration::from_millis(100));
    rig.signal("-TERM");
    client.drive("GOAWAY", |client| client.has_goaway);
    let config = client_config(&[b"h3"], TransportConfig::default());
    let mut late = H3Client::begin(rig.address, "a.test", config);
    late.drive("a refusal", |client| client.lost.is_some());
    let Some(ConnectionError::ConnectionClosed(close)) = &late.lost else { panic!("{:?}", late.lost) };
    assert_eq!(u64::from(close.error_code), 2, "CONNECTION_REFUSED");
    client.push(id, b"", true);
    let answer = client.finish(id);
    assert_eq!((answer.status, answer.is_whole), (200, true));
    client.drive("end of the connection", |client| client.lost.is_some());
    assert!(rig.ended().success());
}

#[test]
fn event_stream_without_events_stays_open() {
    let events = EventOrigin::start();
    let routes = format!("[[site.route]]\nproxy = \"{}\"", events.url);
    let rig = crate::requests::serve_with("timeouts = { write = \"1s\" }", &routes, |_| {});
    let mut client = connect(&rig);
    let id = client.send("GET", "/", &[A], b"");
    client.drive("the first event", |client| client.response(id).text().contains("data: 1"));
    // Longer than the write timeout, with packets that are no data.
    for _ in 0..6 {
        client.drive_for(Duration::from_millis(500));
        client.quic.ping();
    }
    assert_eq!(client.lost, None);
    events.finish();
    let answer = client.finish(id);
    assert_eq!((answer.text().as_str(), answer.is_whole), ("data: 1\n\ndata: 2\n\n", true));
}

/// Code and frame type of the close: [`ConnectionError::ApplicationClosed`] is one of HTTP/3.
fn http3_code(client: &H3Client) -> u64 {
    match &client.lost {
        Some(ConnectionError::ApplicationClosed(close)) => u64::from(close.error_code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_in_flight_at_the_request_limit_are_answered() {
    let origin = crate::origin::Origin::start(|_| {
        std::thread::sleep(Duration::from_millis(300));
        crate::origin::ok("slow")
    });
    let routes = format!("[[site.route]]\nproxy = \"{}\"", origin.url);
    let rig = crate::requests::serve_with("limits = { requests_per_connection = 1 }", &routes, |_| {});
    let mut client = connect(&rig);
    let ids: Vec<_> = (0..5).map(|_| client.send("GET", "/", &[A], b"")).collect();
    client.drive("GOAWAY", |client| client.has_goaway);
    // One more, which was on its way.
    let late = client.send("GET", "/", &[A], b"");
    for id in ids.into_iter().chain([late]) {
        let answer = client.finish(id);
        assert_eq!((answer.status, answer.text().as_str(), answer.is_whole), (200, "slow", true));
    }
    client.drive("the end of the connection", |client| client.lost.is_some());
    assert_eq!(http3_code(&client), 0x100, "H3_NO_ERROR");
    // Lower at each time, and the last one is after the last request that was answered (RFC 9114 section 5.2).
    assert_eq!(client.goaways, [(1 << 62) - 4, 6 * 4]);
}

#[test]
fn requests_after_the_last_one_are_rejected() {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = crate::origin::Origin::start(move |_| {
        wait.lock().unwrap().recv().unwrap();
        crate::origin::ok("slow")
    });
    let routes = format!("[[site.route]]\nproxy = \"{}\"", origin.url);
    let rig = crate::requests::serve_with("limits = { requests_per_connection = 1 }", &routes, |_| {});
    let mut client = connect(&rig);
    let first = client.send("GET", "/", &[A], b"");
    client.drive("the last GOAWAY", |client| client.goaways.len() == 2);
    let late = client.send("GET", "/", &[A], b"");
    assert_eq!(client.finish(late).reset, Some(0x10b), "H3_REQUEST_REJECTED: it may be sent again");
    done.send(()).unwrap();
    let answer = client.finish(first);
    assert_eq!((answer.text().as_str(), answer.is_whole), ("slow", true));
}

#[test]
fn idle_connection_is_announced_and_closed_without_an_error() {
    let rig = crate::requests::serve_with("timeouts = { idle = \"300ms\" }", YES, |_| {});
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    client.drive("the end of the connection", |client| client.lost.is_some());
    assert_eq!((http3_code(&client), client.has_goaway), (0x100, true));
}

/// Prints the memory of an idle connection.
#[test]
#[ignore = "a measurement: run it alone"]
#[allow(clippy::print_stderr)]
fn ten_thousand_idle_connections() {
    let count = std::env::var("CONNECTIONS").map_or(10_000, |count| count.parse().unwrap());
    let rig = crate::requests::serve_with("timeouts = { idle = \"1h\" }", YES, |_| {});
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    let config = client_config(&[b"h3"], transport);
    let idle = |count: usize| -> Vec<H3Client> {
        let begun = |_| {
            let mut client = H3Client::begin(rig.address, "a.test", config.clone());
            client.drive("the handshake", |client| client.is_connected);
            assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
            client.drive_for(Duration::from_millis(1));
            client
        };
        (0..count).map(begun).collect()
    };
    let memory = || {
        std::thread::sleep(Duration::from_secs(5));
        crate::hostile::memory_kib(rig.child.id())
    };
    let first = idle(count / 10);
    let before = memory();
    let all = idle(count);
    let after = memory();
    let held = crate::hosted::status(&rig)["memory"]["held_bytes"].as_u64().unwrap();
    let each = (after - before) * 1024 / count as u64;
    println!(
        "{each} bytes for each of {count} idle connections; {} are charged",
        held / (first.len() + all.len()) as u64
    );
}
