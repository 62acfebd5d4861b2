//! The cache in front of slow, endless or dead origins: requests to them, and responses to clients.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Answer, PATIENCE, Rig, komainu};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Marks everything stored as stale.
fn expire(rig: &Rig) {
    let mut command = komainu();
    command.args(["cache", "purge", "--soft", "--all", "--pid", &rig.child.id().to_string()]);
    let done = command.env("RUNTIME_DIRECTORY", rig.folder.at("run")).output().unwrap();
    assert!(done.status.success(), "{}", rig::text(&done.stderr));
}

/// Raises the limit of open files of this process and its children to `count`.
fn allow_files(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit }).unwrap();
    }
}

/// Starts an origin that accepts one connection at a time and hands it over once the request has been
/// received.
fn by_hand() -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (came, comes): (Sender<TcpStream>, _) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let came = came.clone();
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    if !matches!(stream.read(&mut byte), Ok(1)) {
                        return;
                    }
                    head.push(byte[0]);
                }
                let _ = came.send(stream);
            });
        }
    });
    (url, comes)
}

fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut begun = Vec::new();
    let mut byte = [0];
    while !begun.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        begun.push(byte[0]);
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn thousand_concurrent_clients_cause_one_origin_request() {
    allow_files(8192);
    let (url, comes) = by_hand();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{url}"
        cache = true
        "#
    ));
    let mut clients: Vec<TcpStream> = (0..1000)
        .map(|_| {
            let mut client = rig.connect();
            client.write_all(GET).unwrap();
            client
        })
        .collect();
    let mut origin = comes.recv_timeout(PATIENCE).unwrap();
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 12\r\n\r\nfirst ";
    origin.write_all(head.as_bytes()).unwrap();
    // A client that has received the first bytes has joined the response.
    clients.iter_mut().for_each(|client| read_until(client, b"first "));
    origin.write_all(b"second").unwrap();
    for client in &mut clients {
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "second");
    }
    assert!(comes.try_recv().is_err(), "the origin was asked once");
}

#[test]
fn stalled_client_does_not_delay_clients_of_same_response() {
    const BYTES: usize = 48 << 20;
    let (url, comes) = by_hand();
    let rig = Rig::controlled(&format!(
        r#"
        [cache]
        memory = "1MiB"
        object = "16KiB"
        [[route]]
        proxy = "{url}"
        cache = true
        "#
    ));
    let mut clients: Vec<TcpStream> = (0..2).map(|_| rig.connect()).collect();
    clients.iter_mut().for_each(|client| client.write_all(GET).unwrap());
    let mut origin = comes.recv_timeout(PATIENCE).unwrap();
    let head =
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    origin.write_all(head.as_bytes()).unwrap();
    clients.iter_mut().for_each(|client| read_until(client, b"first"));
    let [slow, fast] = &mut clients[..] else { panic!("two") };
    let chunk = [&b"10000\r\n"[..], &vec![b'x'; 65536], b"\r\n"].concat();
    let mut piece = vec![0; 65536];
    for _ in 0..BYTES / 65536 {
        origin.write_all(&chunk).unwrap();
        // The fast client receives each chunk before the origin sends the next one.
        let mut left = 65536;
        while left > 0 {
            let len = fast.read(&mut piece).unwrap();
            assert_ne!(len, 0, "the fast one is served to the end");
            left -= piece[..len].iter().filter(|byte| **byte == b'x').count();
        }
    }
    origin.write_all(b"0\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    fast.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "{rest:?}");
    // The connection may be reset.
    let part = rig::read_to_close(slow);
    assert!(part.len() < BYTES && !part.ends_with(b"0\r\n\r\n"), "{}", part.len());
    // The response is known to be too large to store: each client gets an origin connection of its own.
    drop(origin);
    let mut again: Vec<TcpStream> = (0..2).map(|_| rig.connect()).collect();
    again.iter_mut().for_each(|client| client.write_all(GET).unwrap());
    let _both = [(); 2].map(|()| comes.recv_timeout(PATIENCE).unwrap());
}

/// Behavior of the origin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origins {
    Alive,
    /// Closes the connection without a response.
    Dead,
    /// Answers 503.
    Failing,
}

/// Starts an origin whose responses have the `Cache-Control` given in the query.
fn mortal() -> (Origin, Arc<Mutex<Origins>>) {
    let mode = Arc::new(Mutex::new(Origins::Alive));
    let theirs = mode.clone();
    let origin = Origin::start(move |ask| {
        let target = ask.line().split(' ').nth(1).unwrap();
        let says = target.split_once('?').map_or("", |(_, query)| query).replace('+', ", ");
        let fields = format!("Cache-Control: {says}\r\nAge: 10\r\nETag: \"a\"\r\n");
        match *theirs.lock().unwrap() {
            Origins::Alive => answer("200 OK", &fields, "old"),
            Origins::Dead => String::new(),
            Origins::Failing => answer("503 Down", "", "down"),
        }
    });
    (origin, mode)
}

#[test]
fn stale_responses_are_served_by_policy_when_origin_fails() {
    let (origin, mode) = mortal();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        path = "/no-grace/*"
        proxy = "{0}"
        cache = {{ grace = "0s" }}
        [[route]]
        proxy = "{0}"
        cache = true
        "#,
        origin.url
    ));
    let cases = [
        ("/?max-age=60", Origins::Dead, 200, "unreachable"),
        ("/?max-age=60+must-revalidate", Origins::Dead, 502, ""),
        ("/?max-age=60+proxy-revalidate", Origins::Dead, 502, ""),
        ("/?s-maxage=60", Origins::Dead, 502, ""),
        ("/?max-age=60+no-cache", Origins::Dead, 502, ""),
        ("/no-grace/?max-age=60", Origins::Dead, 502, ""),
        ("/no-grace/?max-age=60+stale-if-error=60", Origins::Dead, 200, "unreachable"),
        ("/?max-age=60+stale-if-error=60", Origins::Failing, 200, "stale-if-error"),
        ("/?max-age=60", Origins::Failing, 503, ""),
        ("/?max-age=60+stale-while-revalidate=60", Origins::Dead, 200, "hit; ttl="),
        ("/?max-age=60+stale-while-revalidate=60", Origins::Failing, 200, "hit; ttl="),
    ];
    for (target, ..) in &cases {
        rig.get(target).expect(200, "old");
    }
    for (target, dies, status, detail) in cases {
        *mode.lock().unwrap() = dies;
        expire(&rig);
        for again in 0..2 {
            let got = rig.get(target);
            assert_eq!(got.status(), status, "{target} {dies:?} {again}: {}", got.head);
            if status == 200 {
                got.expect(200, "old");
                assert!(
                    got.field("Cache-Status").unwrap().contains(detail),
                    "{target} {dies:?}: {}",
                    got.head
                );
            }
        }
    }
    *mode.lock().unwrap() = Origins::Dead;
    rig.get("/never?max-age=60").expect_status(502);
    // The origin recovers.
    *mode.lock().unwrap() = Origins::Alive;
    for (target, ..) in cases {
        rig.get(target).expect(200, "old");
    }
}

#[test]
fn truncated_revalidation_keeps_the_stored_response() {
    let (url, comes) = by_hand();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{url}"
        cache = true
        "#
    ));
    let send = |path: &str| {
        let mut client = rig.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        client
    };
    let read = |mut client: TcpStream| {
        let bytes = rig::read_to_close(&mut client);
        Answer::parse(bytes)
    };
    let whole = |text: &str| {
        format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nCache-Control: max-age=60\r\nAge: 10\r\nETag: \"a\"\r\n\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        )
    };
    let client = send("/");
    comes.recv_timeout(PATIENCE).unwrap().write_all(whole("old").as_bytes()).unwrap();
    read(client).expect(200, "old");
    // Many clients wait for the revalidation; the origin dies in the middle of its response.
    expire(&rig);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| send("/")).collect();
    let mut origin = comes.recv_timeout(PATIENCE).unwrap();
    let cut = whole("new content").replace("Content-Length: 11", "Content-Length: 1000");
    origin.write_all(cut.as_bytes()).unwrap();
    clients.iter_mut().for_each(|client| read_until(client, b"new content"));
    drop(origin);
    for mut client in clients {
        // Closed or reset, because the response is incomplete.
        let rest = rig::read_to_close(&mut client);
        assert_eq!(rest, b"");
    }
    assert!(comes.try_recv().is_err(), "the origin was asked once");
    // The origin closes every connection after the request. The earlier response is still stored.
    drop(comes);
    let stale = read(send("/"));
    stale.expect(200, "old");
    assert!(stale.field("Cache-Status").unwrap().contains("unreachable"), "{}", stale.head);
}
