//! Generations of the configuration: connections of old ones are listed and can be closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::api::{JSON, call, change, get};
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, eventually, is_closed, komainu, read_answer, text};

/// Starts a server that switches protocols and echoes; for `/slow` it sends a head and never the body.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let head = head(&mut stream);
                if head.starts_with("GET /slow") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun").unwrap();
                } else if head.to_ascii_lowercase().contains("upgrade: websocket") {
                    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                    stream.write_all(switched.as_bytes()).unwrap();
                } else {
                    let plain = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nplain";
                    return stream.write_all(plain).unwrap();
                }
                let mut bytes = [0; 64];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..len]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Reads up to the end of a head.
fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut one = [0; 1];
    while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut one).unwrap_or(0) == 1 {
        bytes.push(one[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn upgraded(rig: &Rig) -> TcpStream {
    let mut stream = rig.connect();
    let asked = "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(asked.as_bytes()).unwrap();
    let head = head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream
}

/// Asserts that both ends of a tunnel are connected.
fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ping");
}

/// Number, state, requests and upgraded connections of each generation, the newest first.
fn shown(rig: &Rig) -> Vec<(u64, String, u64, u64)> {
    let document = get(rig, "/v1/generations");
    let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
    let all = document["generations"].as_array().unwrap().iter();
    all.map(|one| {
        assert!(one["since"].as_str().unwrap().ends_with('Z'), "{one}");
        let state = one["state"].as_str().unwrap().to_owned();
        (number(one, "number"), state, number(one, "requests"), number(one, "upgraded"))
    })
    .collect()
}

fn row(number: u64, state: &str, requests: u64, upgraded: u64) -> (u64, String, u64, u64) {
    (number, state.to_owned(), requests, upgraded)
}

fn started() -> Rig {
    let origin = echo();
    Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 2
            [control]
            listen = "unix:control.sock"
            [[route]]
            proxy = "http://{origin}"
            "#
        ),
    )
}

#[test]
fn closing_old_generation_closes_only_its_websockets() {
    let rig = started();
    let mut old = upgraded(&rig);
    echoes(&mut old);
    let mut idle = rig.connect();
    let mut plain = |path: &str| {
        idle.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        read_answer(&mut idle).expect(200, "plain");
    };
    plain("/before");
    eventually("one request is left", || shown(&rig) == [row(1, "current", 1, 1)]);
    assert_eq!(change(&rig, "POST", "/v1/reload", &json!({})).0, 200);
    let mut new = upgraded(&rig);
    let mut slow = rig.connect();
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(head(&mut slow).starts_with("HTTP/1.1 200"));
    [&mut old, &mut new].into_iter().for_each(echoes);
    eventually("all are counted", || shown(&rig) == [row(2, "current", 2, 1), row(1, "draining", 1, 1)]);
    let close = |number: &str| {
        let answer = call(&rig, "DELETE", &format!("/v1/generations/{number}"), JSON, "");
        (answer.status(), answer.text())
    };
    let (status, said) = close("2");
    assert!(status == 409 && said.contains("in force"), "{status} {said}");
    for number in ["3", "0", "x", "-1"] {
        assert_eq!(close(number).0, 404, "{number}");
    }
    [&mut old, &mut new].into_iter().for_each(echoes);
    let (status, said) = close("1");
    assert!(status == 200 && said.contains("1 requests were closed, 1 of them upgraded"), "{status} {said}");
    assert!(is_closed(&mut old));
    echoes(&mut new);
    plain("/after");
    eventually("the new ones stay", || shown(&rig) == [row(2, "current", 2, 1)]);
    assert_eq!(close("1").0, 404);
}

#[test]
fn ctl_generation_close_aborts_unfinished_responses() {
    let rig = started();
    let mut slow = rig.connect();
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(head(&mut slow).starts_with("HTTP/1.1 200"));
    assert_eq!(change(&rig, "POST", "/v1/reload", &json!({})).0, 200);
    let to = format!("unix:{}", rig.folder.at("control.sock").display());
    let run = |arguments: &[&str]| {
        let done = komainu().args(["ctl", "--to", &to, "generation"]).args(arguments).output().unwrap();
        (done.status.success(), text(&done.stdout) + &text(&done.stderr))
    };
    eventually("the old one drains", || {
        let (good, said) = run(&["list"]);
        good && said.contains("draining") && said.contains("current")
    });
    let (good, said) = run(&["close", "2"]);
    assert!(!good && said.contains("in force"), "{said}");
    let (good, said) = run(&["close", "1"]);
    assert!(good && said.contains("1 requests were closed, 0 of them upgraded"), "{said}");
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    // The announced body is cut off.
    let rest = rig::read_to_close(&mut slow);
    assert!(rest.len() < 100, "{}", rest.len());
}
