//! Responses that servers of a set get from each other.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, curl, eventually, nobody, read_answer, read_to_close};
use crate::store::Store;

const NAMES: [&str; 3] = ["one", "two", "three"];

struct Server {
    rig: Rig,
    peers: SocketAddr,
}

fn server(common: &Path, name: &str, origin: &Origin, timeout: &str) -> Server {
    let peers = nobody();
    let folder = Folder::new();
    // Before other tables: these are directives of `[cluster]`.
    let text = format!(
        r#"
        {}
        peers = "{peers}"
        peer_timeout = "{timeout}"
        [[route]]
        proxy = "{}"
        cache = {{ purge = {{ from = ["127.0.0.1"] }} }}
        "#,
        Store::table(common, name),
        origin.url
    );
    Server { rig: Rig::config(folder, &text), peers }
}

/// Starts three servers, and waits until each knows the others.
fn set(common: &Path, origin: &Origin, timeout: &str) -> Vec<Server> {
    let servers: Vec<Server> = NAMES.iter().map(|name| server(common, name, origin, timeout)).collect();
    let mut batch = 0;
    eventually("all know the same owners", || {
        batch += 1;
        for at in 0..20 {
            let path = format!("/begin/{batch}/{at}");
            servers.iter().for_each(|server| _ = server.rig.get(&path).expect_status(200));
        }
        asked(origin, &format!("/begin/{batch}/")) == 20
    });
    servers
}

/// The number of requests for this part that the origin got.
fn asked(origin: &Origin, part: &str) -> usize {
    origin.asks().iter().filter(|ask| ask.line().contains(part)).count()
}

#[test]
fn owners_answer_the_misses_of_others() {
    let common = Folder::new();
    let version = Arc::new(AtomicU32::new(1));
    let served = version.clone();
    let origin = Origin::start(move |ask| {
        if ask.line().contains("/private") {
            return answer("200 OK", "Cache-Control: private\r\n", "mine");
        }
        let version = served.load(Ordering::Relaxed);
        let fields = format!("Cache-Control: max-age=600\r\nCache-Tag: t\r\nX-Version: {version}\r\n");
        answer("200 OK", &fields, ask.line())
    });
    let _store = Store::start(common.path());
    let servers = set(common.path(), &origin, "20s");

    // One request for all, whoever is asked first.
    for at in 0..30 {
        let path = format!("/page/{at}?x=1");
        for turn in 0..3 {
            let claims = "X-Request-Id: theirs\r\nX-Forwarded-For: 192.0.2.9\r\nX-Real-IP: 192.0.2.9\r\n\
                 Forwarded: for=192.0.2.9\r\nKomainu-Peer: 1\r\nKomainu_Peer-Ask: 0\r\n";
            let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{claims}Connection: close\r\n\r\n");
            let answer = servers[(at + turn) % 3].rig.send(&head);
            answer.expect(200, &format!("GET {path} HTTP/1.1"));
            answer
                .expect_field("X-Version", "1")
                .expect_no_field("Komainu-Peer")
                .expect_no_field("Cache-Tag");
        }
    }
    assert_eq!(asked(&origin, "/page/"), 30);
    // Whoever asks the origin, it learns of the client what the server knows that the client has asked.
    for ask in origin.asks().iter().filter(|ask| ask.line().contains("/page/")) {
        // `Via` names this server, and no other field does.
        let fields = ask.head.lines().filter(|line| !line.to_lowercase().starts_with("via:"));
        assert!(!fields.map(str::to_lowercase).any(|line| line.contains("komainu")), "{}", ask.head);
        assert!(!ask.head.contains("192.0.2.9"), "{}", ask.head);
        assert_eq!(ask.field("X-Forwarded-For"), ["127.0.0.1"], "{}", ask.head);
        let id = ask.field("X-Request-Id");
        assert!(matches!(id[..], [id] if id.len() == 32), "{}", ask.head);
    }
    for server in &servers {
        server.rig.get("/page/1?x=1").expect_hit();
    }
    // Responses that may not be stored are for one client.
    for server in &servers {
        server.rig.get("/private").expect(200, "mine");
    }
    assert_eq!(asked(&origin, "/private"), 3);

    // A purge by a tag: copies have the tags of the origin, and none comes back from another server.
    let purge = "PURGE /page/1 HTTP/1.1\r\nHost: localhost\r\nCache-Tag: t\r\nConnection: close\r\n\r\n";
    version.store(2, Ordering::Relaxed);
    let said = servers[0].rig.send(purge).expect_status(200).text();
    assert!(said.contains(r#""missing":[]"#), "{said}");
    servers.iter().for_each(|server| _ = server.rig.get("/page/1?x=1").expect_field("X-Version", "2"));
    // An unsafe request removes the copy of its server, which the owner does not know.
    let before = asked(&origin, "GET /page/2");
    let post =
        "POST /page/2?x=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for server in &servers {
        server.rig.get("/page/2?x=1").expect_status(200);
        server.rig.send(post).expect_status(200);
        server.rig.get("/page/2?x=1").expect_no_hit();
    }
    assert!(asked(&origin, "GET /page/2") >= before + 3);

    // Nobody else is answered: neither without TLS, nor without the certificate of the set.
    for server in &servers {
        let mut stream = TcpStream::connect(server.peers).unwrap();
        stream.write_all(b"GET /page/1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        assert!(!String::from_utf8_lossy(&read_to_close(&mut stream)).contains("GET /page/1"));
        let url = format!("https://{}/page/1", server.peers);
        let output = curl(&["-ks", "--max-time", "20", "-H", "Komainu-Peer-Ask: 0 0 0 0", &url]);
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn origin_is_asked_while_the_owner_is_slow_or_gone() {
    let common = Folder::new();
    let origin = Origin::start(|ask| answer("200 OK", "Cache-Control: max-age=600\r\n", ask.line()));
    let _store = Store::start(common.path());
    let mut servers = set(common.path(), &origin, "1s");
    // A process that stands still accepts connections and answers nothing.
    servers[2].rig.signal("-STOP");
    for at in 0..20 {
        let path = format!("/still/{at}");
        servers[0].rig.get(&path).expect(200, &format!("GET {path} HTTP/1.1"));
    }
    servers[2].rig.signal("-CONT");
    drop(servers.pop());
    for at in 0..20 {
        let path = format!("/gone/{at}");
        servers[0].rig.get(&path).expect(200, &format!("GET {path} HTTP/1.1"));
        servers[1].rig.get(&path).expect(200, &format!("GET {path} HTTP/1.1"));
    }
}

/// Requests at the origin for a trace with Zipf's distribution, of one server and of three. Prints, and asserts nothing of
/// the figures but that sharing saves requests.
#[test]
fn sharing_saves_requests_to_the_origin() {
    const OBJECTS: usize = 500;
    const REQUESTS: usize = 6_000;
    let weights: Vec<f64> = (1..=OBJECTS).map(|rank| 1.0 / rank as f64).collect();
    let sum: f64 = weights.iter().sum();
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let trace: Vec<(usize, usize)> = (0..REQUESTS)
        .map(|_| {
            let mut left = random() * sum;
            let object = weights.iter().position(|weight| {
                left -= weight;
                left <= 0.0
            });
            (object.unwrap_or(OBJECTS - 1), (random() * 3.0) as usize % 3)
        })
        .collect();
    let distinct = trace.iter().map(|(object, _)| object).collect::<std::collections::BTreeSet<_>>().len();
    let common = Folder::new();
    let origin = Origin::start(|ask| answer("200 OK", "Cache-Control: max-age=600\r\n", ask.line()));
    let _store = Store::start(common.path());
    let servers = set(common.path(), &origin, "20s");
    let mut streams: Vec<TcpStream> = servers.iter().map(|server| server.rig.connect()).collect();
    for (object, server) in &trace {
        let head = format!("GET /zipf/{object} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        streams[*server].write_all(head.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut streams[*server]).status(), 200);
    }
    let shared = asked(&origin, "/zipf/");
    let mut alone = std::collections::BTreeSet::new();
    trace.iter().for_each(|one| _ = alone.insert(*one));
    println!(
        "{REQUESTS} requests for {distinct} of {OBJECTS} objects: {distinct} requests at the origin with one server, {shared} \
         with three that share, {} with three that do not",
        alone.len()
    );
    assert!(shared < alone.len());
}
