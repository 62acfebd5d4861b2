//! Responses to clients that read slowly or not at all, and the ends of their connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http3::OwnStream;
use quinn_proto::{TransportConfig, VarInt};

use crate::certified;
use crate::h3_client::{H3Client, client_config};
use crate::line::Line;
use crate::requests::{A, EventOrigin, connect, serve_with};
use crate::rig::as_we_are;
use crate::weather::{Network, Weather};

const FILES: &str = "[[site.route]]\npath = \"/files/*\"\nfiles = \"www\"";
const FILE_BYTES: usize = 300_000;
/// Unread bytes of a response for which a client has room.
const WINDOW_BYTES: u32 = 16 * 1024;

/// Connects a client that has little room for each response.
fn connect_with_small_window(server: SocketAddr) -> H3Client {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(WINDOW_BYTES));
    let config = client_config(&[b"h3"], transport);
    let mut client = H3Client::begin(server, "a.test", config);
    client.drive("the handshake", |client| client.is_connected);
    client
}

/// Reads a response of [`FILE_BYTES`] through a line on which it takes several seconds; `begin` is called when its first
/// bytes have arrived.
#[track_caller]
fn read_slowly(what: &str, server: SocketAddr, begin: impl FnOnce(&mut H3Client)) {
    let network = Network::start(server, Weather::slow(40_000), fastrand::Rng::with_seed(1));
    let mut client = H3Client::connect(network.address, "a.test");
    let id = client.send("GET", "/files/some", &[A], b"");
    client.drive("the first bytes", |client| client.response(id).content.len() > 1000);
    begin(&mut client);
    let answer = client.finish(id);
    assert!(answer.is_whole, "{what}: {} bytes, {:?}, {:?}", answer.content.len(), answer.reset, client.lost);
    assert_eq!(answer.content.len(), FILE_BYTES, "{what}");
    drop(network);
}

fn start(settings: &str) -> Line {
    let folder = certified::folder(&[("a.test", "ec")]);
    folder.write("www/files/some", vec![7; FILE_BYTES]);
    let text = format!(
        r#"{}
        listen = [{{ address = "127.0.0.1:0", tls = true }}]
        {settings}
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        {FILES}
        "#,
        as_we_are()
    );
    Line::start(folder, &text)
}

#[test]
fn responses_are_whole_when_connections_end() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let line = start("");
            let mut line = Some(line);
            let address = line.as_ref().unwrap().rig.address;
            let mut stop = None;
            read_slowly("a stop", address, |_| {
                let line = line.take().unwrap();
                stop = Some(std::thread::spawn(|| line.stop()));
            });
            stop.unwrap().join().unwrap();
        });
        scope.spawn(|| {
            let mut line = start("");
            let address = line.rig.address;
            read_slowly("an upgrade", address, |_| _ = line.upgrade());
            line.stop();
        });
        scope.spawn(|| {
            let line = start("limits = { requests_per_connection = 1 }");
            read_slowly("the last request of a connection", line.rig.address, |_| {});
            line.stop();
        });
        scope.spawn(|| {
            let line = start("timeouts = { idle = \"1s\" }");
            read_slowly("the idle timeout", line.rig.address, |_| {});
            line.stop();
        });
        scope.spawn(|| {
            let line = start("");
            read_slowly("GOAWAY of the client", line.rig.address, |client| {
                client.push_own(OwnStream::Control, &[0x07, 1, 0]);
            });
            line.stop();
        });
    });
}

#[test]
fn slow_but_steady_reader_gets_the_whole_response() {
    let rig = serve_with("timeouts = { write = \"1s\" }", FILES, |folder| {
        folder.write("www/files/some", vec![7; FILE_BYTES]);
    });
    let mut client = connect_with_small_window(rig.address);
    client.read_bytes_left = 1000;
    let id = client.send("GET", "/files/some", &[A], b"");
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        client.drive_for(Duration::from_millis(100));
        client.read_bytes_left = 1000;
    }
    client.read_bytes_left = usize::MAX;
    let answer = client.finish(id);
    assert_eq!((answer.is_whole, answer.content.len()), (true, FILE_BYTES), "{:?}", client.lost);
}

#[test]
fn stalled_responses_end_and_others_go_on() {
    let events = EventOrigin::start();
    let routes = format!("{FILES}\n[[site.route]]\nproxy = \"{}\"", events.url);
    let rig = serve_with("timeouts = { write = \"1s\" }", &routes, |folder| {
        folder.write("www/files/some", vec![7; FILE_BYTES]).write("www/files/small", vec![7; 40_000]);
    });
    let mut client = connect_with_small_window(rig.address);
    let quiet = client.send("GET", "/events", &[A], b"");
    client.drive("the first event", |client| client.response(quiet).text().contains("data: 1"));
    // The server keeps the rest of a small response after its task has ended.
    let stalled = ["/files/some", "/files/small"].map(|path| client.send("GET", path, &[A], b""));
    client.unread.extend(stalled);
    client.drive_for(Duration::from_secs(4));
    client.unread.clear();
    for id in stalled {
        let answer = client.finish(id);
        assert!(answer.reset.is_some(), "{} bytes, {:?}", answer.content.len(), client.lost);
    }
    events.finish();
    let answer = client.finish(quiet);
    assert_eq!((answer.text().as_str(), answer.is_whole), ("data: 1\n\ndata: 2\n\n", true));
}

#[test]
fn limits_of_heads_change_for_open_connections() {
    let rig = serve_with("limits = { head = \"16KiB\" }", "[[site.route]]\nrespond = \"yes\"", |_| {});
    let mut client = connect(&rig);
    let mut status = |bytes: usize| client.ask("GET", "/", &[A, ("x", &"x".repeat(bytes))], b"").status;
    assert_eq!((status(14_000), status(30_000)), (200, 431));
    let mut before = "16KiB";
    for (limit, small, large) in [("9KiB", 431, 431), ("64KiB", 200, 200)] {
        let path = rig.folder.at("komainu.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(before, limit)).unwrap();
        before = limit;
        rig.signal("-HUP");
        crate::rig::eventually("the new limit", || status(14_000) == small && status(30_000) == large);
    }
}

#[test]
fn idle_connections_make_room_for_new_ones() {
    let rig = serve_with(
        "threads = 1\nlimits = { connections = 4 }\ntimeouts = { idle = \"5m\" }",
        "[[site.route]]\nrespond = \"yes\"",
        |_| {},
    );
    let mut clients = Vec::new();
    for number in 0..10 {
        let mut client = connect(&rig);
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200, "{number}");
        // A connection is idle once its client has acknowledged the response.
        client.drive_for(Duration::from_millis(100));
        clients.push(client);
    }
}
