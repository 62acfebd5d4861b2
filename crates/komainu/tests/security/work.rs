//! The table of docs/security.md: CPU time for each unit of a flood.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::bounds::{quiet, work};
use crate::hosted;
use crate::rig;
use crate::rig::{Rig, connect, read_answer};

/// Reads until the server closes, and returns the last bytes.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(len @ 1..) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("still open"),
            _ => return bytes,
        };
        // Only the end matters, so earlier responses are dropped.
        if bytes.len() > 1 << 20 {
            bytes.clear();
        }
        bytes.extend_from_slice(&buffer[..len]);
    }
}

/// Sends `piece` `times` times while reading the responses.
fn flood(stream: &mut TcpStream, piece: &[u8], times: usize) -> Vec<u8> {
    let mut reader = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || rest(&mut reader));
    for _ in 0..times {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    reader.join().unwrap()
}

#[test]
fn request_floods_stay_within_cpu_bounds() {
    let config = r#"
        threads = 1
        [limits]
        body = "unlimited"
        [[route]]
        respond = "x"
    "#;
    let rig = Rig::config(rig::Folder::new(), config);
    assert_eq!(rig.get("/").status(), 200);
    work(&rig, "smallest requests, pipelined", || {
        let answers = flood(
            &mut rig.connect(),
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".repeat(100).as_bytes(),
            200,
        );
        assert!(answers.ends_with(b"\r\n\r\nx"));
        20_000
    });
    work(&rig, "a head byte by byte", || {
        let mut stream = rig.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: ").unwrap();
        for _ in 0..15_000 {
            stream.write_all(b"x").unwrap();
        }
        stream.write_all(b"\r\n\r\n").unwrap();
        read_answer(&mut stream).expect(200, "x");
        15_000
    });
    work(&rig, "a body in chunks of one byte", || {
        let mut total = 0;
        for _ in 0..16 {
            let mut stream = rig.connect();
            stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
            let answers = flood(&mut stream, &b"1\r\nx\r\n".repeat(10_000), 1);
            assert!(answers.starts_with(b"HTTP/1.1 200"));
            total += 10_000;
        }
        total
    });
    work(&rig, "a connection for each request", || {
        (0..1_000).for_each(|_| _ = rig.get("/").expect_status(200));
        1_000
    });
    work(&rig, "a connection for each refusal", || {
        (0..1_000).for_each(|_| _ = rig.send("GET /\r\n\r\n").expect_status(400));
        1_000
    });
}

const SOCKETS: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass
"#;

fn open(rig: &Rig) -> TcpStream {
    let mut stream = connect(rig.address);
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream).status(), 101);
    stream
}

#[test]
fn websocket_frame_floods_stay_within_cpu_bounds() {
    let app = hosted::only("asgi = \"sockets.py:app\"\nworkers = 1");
    let rig = hosted::start(hosted::folder("sockets.py", SOCKETS), &format!("threads = 1\n{app}"));
    let ping = [&[0x89, 0x80 | 125, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let empty = vec![0, 0x80, 0, 0, 0, 0];
    let close = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8].to_vec();
    let sockets = |state: &str, first: &[u8], frame: &[u8], code: u16| {
        work(&rig, state, || {
            for _ in 0..10 {
                let mut stream = open(&rig);
                stream.write_all(first).unwrap();
                let answers = flood(&mut stream, &frame.repeat(1_000), 1_000);
                let is_close = |bytes: &[u8]| bytes[0] == 0x88 && bytes[2..] == code.to_be_bytes();
                assert!(answers.windows(4).any(is_close), "{state}");
            }
            quiet(&rig);
            10
        });
    };
    sockets("WebSocket, pings without end", b"", &ping, 1008);
    sockets("WebSocket, empty fragments without end", &[1, 0x81, 0, 0, 0, 0, b'x'], &empty, 1008);
    sockets("WebSocket, frames after its close", &close, &empty, 1000);
    work(&rig, "WebSocket, fragments of one byte", || {
        let mut stream = open(&rig);
        stream.write_all(&[2, 0x81, 0, 0, 0, 0, b'x']).unwrap();
        let fragments = [0, 0x81, 0, 0, 0, 0, b'x'].repeat(1_000);
        (0..200).for_each(|_| stream.write_all(&fragments).unwrap());
        stream.write_all(&close).unwrap();
        assert!(rest(&mut stream).ends_with(&1000u16.to_be_bytes()));
        200_000
    });
}
