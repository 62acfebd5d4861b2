//! Protocol upgrades: WebSocket and other tunnels.

use crate::rig::{Client, Options, Origin, Rig};
use http::Method;
use times::Millis;

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Starts an origin that switches protocols and echoes everything until the end.
fn echo() -> Origin {
    Origin::start(|mut caller, _| {
        let head = caller.head().unwrap();
        assert!(head.contains("\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"), "{head}");
        caller.send(SWITCH);
        while let Some(bytes) = caller.raw() {
            caller.send_bytes(&bytes);
        }
    })
}

fn upgraded(rig: &Rig) -> Client {
    let mut client = rig.client();
    client.send(ASK);
    let response = client.response(Method::Get).unwrap();
    assert_eq!(
        response.head.lines().collect::<Vec<_>>(),
        [
            "HTTP/1.1 101 Switching Protocols",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        ]
    );
    client
}

#[test]
fn websocket_bytes_are_relayed_both_ways() {
    let origin = echo();
    let rig = Rig::to(&origin);
    let mut client = upgraded(&rig);
    // A masked text frame from RFC 6455 section 5.7, and frames of other sizes.
    let frame = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    for _ in 0..100 {
        client.send_bytes(frame);
        assert_eq!(client.raw(frame.len()), frame);
    }
    let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut writer = client.stream.try_clone().unwrap();
    let sent = large.clone();
    let sender = std::thread::spawn(move || {
        use std::io::Write;
        writer.write_all(&sent).unwrap();
    });
    assert!(client.raw(large.len()) == large);
    sender.join().unwrap();
    // The end of the client's stream is relayed, and then that of the server's.
    client.shutdown_write();
    assert_eq!(client.rest(), (Vec::new(), true));
}

#[test]
fn early_tunnel_bytes_are_not_lost() {
    // The server's first frame is sent with its 101, and the client's with its request.
    let origin = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.send(&format!("{SWITCH}welcome"));
        caller.raw_until(b"hello");
        caller.send("bye");
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    client.send(&format!("{ASK}hello"));
    assert_eq!(client.response(Method::Get).unwrap().status, 101);
    assert_eq!(client.rest(), (b"welcomebye".to_vec(), true));
}

#[test]
fn tunnel_stays_open_after_the_server_half_closes() {
    let origin = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.send(SWITCH);
        caller.stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The server still reads: the client's last bytes arrive.
        caller.raw_until(b"last words");
    });
    let rig = Rig::to(&origin);
    let mut client = upgraded(&rig);
    assert_eq!(client.rest(), (Vec::new(), true));
    client.send("last words");
    client.shutdown_write();
    origin.wait_seen("last words");
}

#[test]
fn last_client_bytes_reach_a_slowly_reading_server() {
    const BYTES: usize = 50_000_000;
    let (reported, read) = std::sync::mpsc::channel();
    let reported = std::sync::Mutex::new(reported);
    let origin = Origin::start(move |mut caller, _| {
        caller.head().unwrap();
        caller.send(SWITCH);
        caller.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut len = 0;
        while let Some(bytes) = caller.raw() {
            // Slower than the client, so that the client's end is seen before everything has been relayed.
            std::thread::sleep(std::time::Duration::from_millis(1));
            len += bytes.len();
        }
        reported.lock().unwrap().send(len).unwrap();
    });
    let rig = Rig::to(&origin);
    let mut client = upgraded(&rig);
    assert_eq!(client.rest(), (Vec::new(), true));
    client.send_bytes(&vec![b'x'; BYTES]);
    client.shutdown_write();
    assert_eq!(read.recv().unwrap(), BYTES);
}

#[test]
fn silent_tunnel_times_out() {
    let origin = echo();
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.tunnel = Millis(100);
    let rig = Rig::with(options);
    let mut client = upgraded(&rig);
    assert_eq!(client.rest().0, b"");
}

#[test]
fn declined_upgrade_returns_the_response() {
    let origin = Origin::answering("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    for _ in 0..2 {
        client.send(ASK);
        let response = client.response(Method::Get).unwrap();
        assert_eq!((response.status, response.text().as_str()), (426, "no"));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn h2c_upgrade_is_never_forwarded() {
    let origin = Origin::mirror();
    let rig = Rig::to(&origin);
    let seen = rig.ask(&ASK.replace("websocket", "h2c"));
    assert!(seen.status == 200 && !seen.text().contains("Upgrade"), "{}", seen.text());
    let mut options = Options::to(vec![origin.server()]);
    options.route.upgrades = vec!["h2c".into()];
    let seen = Rig::with(options).ask(&ASK.replace("websocket", "h2c"));
    assert!(seen.status == 200 && !seen.text().contains("Upgrade"), "{}", seen.text());
}

#[test]
fn switch_to_an_unrequested_protocol_yields_502() {
    for (answer, wanted) in
        [("websocket", 101), ("WebSocket", 101), ("websocket, h2c", 502), ("h2c", 502), ("", 502)]
    {
        let switch =
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {answer}\r\n\r\n");
        let origin = Origin::start(move |mut caller, _| {
            caller.head();
            caller.send(&switch);
            caller.rest();
        });
        let rig = Rig::to(&origin);
        let mut client = rig.client();
        client.send(ASK);
        assert_eq!(client.response(Method::Get).unwrap().status, wanted, "{answer:?}");
    }
}
