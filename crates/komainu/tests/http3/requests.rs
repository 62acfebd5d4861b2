//! Requests over HTTP/3 are served as over HTTP/1 and HTTP/2.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use quinn_proto::{TransportConfig, VarInt};

use crate::certified;
use crate::h3_client::{H3Client, client_config};
use crate::origin::{Origin, answer};
use crate::rig::{Rig, eventually};
use crate::weather::{Network, Weather};

/// Starts a server with one site `a.test` and these routes.
pub(crate) fn serve(routes: &str) -> Rig {
    serve_with("", routes, |_| {})
}

/// Like [`serve`], with lines in front of the site, and files that `prepare` creates.
pub(crate) fn serve_with(first: &str, routes: &str, prepare: impl FnOnce(&crate::rig::Folder)) -> Rig {
    let folder = certified::folder(&[("a.test", "ec")]);
    prepare(&folder);
    let text = format!(
        r#"
        listen = [{{ address = "127.0.0.1:0", tls = true }}]
        {first}
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        {routes}
        "#
    );
    certified::start(folder, &text)
}

pub(crate) fn connect(rig: &Rig) -> H3Client {
    H3Client::connect(rig.address, "a.test")
}

/// An upstream server whose only response is an event stream: one event at once, and another one before its end.
pub(crate) struct EventOrigin {
    pub(crate) url: String,
    last: Sender<()>,
    thread: JoinHandle<()>,
}

impl EventOrigin {
    pub(crate) fn start() -> EventOrigin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (last, wait) = channel();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
            stream.write_all(format!("{head}data: 1\n\n").as_bytes()).unwrap();
            wait.recv().unwrap();
            stream.write_all(b"data: 2\n\n").unwrap();
        });
        EventOrigin { url, last, thread }
    }

    /// Sends the last event, which ends the response.
    pub(crate) fn finish(self) {
        self.last.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

pub(crate) const A: (&str, &str) = (":authority", "a.test");

/// Chromium shows a response only once it has sent the whole request.
#[test]
fn upload_that_is_refused_early_is_read_to_its_end() {
    let rig = crate::hostile::serve_files("");
    let mut client = H3Client::connect(rig.address, "a.test");
    let content = vec![b'x'; 3_000_000];
    let id = client.open("POST", "/small", &[A, ("content-length", "3000000")]);
    client.drive_for(Duration::from_millis(50));
    assert_eq!(client.response(id).status, 405, "the response does not wait");
    client.push(id, &content, true);
    // Longer than the server would read over HTTP/2.
    client.drive_for(Duration::from_millis(1_500));
    client.drive("the end of the upload", |client| client.is_sent(id));
    assert!(!client.response(id).is_stopped);
}

#[test]
fn file_is_served_with_ranges_and_validators() {
    let content: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    let made = content.clone();
    let rig = serve_with("", "[[site.route]]\nfiles = \"www\"", move |folder| {
        std::fs::create_dir(folder.at("www")).unwrap();
        std::fs::write(folder.at("www/page.bin"), &made).unwrap();
    });
    let mut client = connect(&rig);
    let whole = client.ask("GET", "/page.bin", &[A], b"");
    assert_eq!((whole.status, whole.content == content, whole.is_whole), (200, true, true));
    let tag = whole.field("etag").unwrap().to_owned();
    let part = client.ask("GET", "/page.bin", &[A, ("range", "bytes=100-199")], b"");
    assert_eq!((part.status, &part.content[..]), (206, &content[100..200]));
    let same = client.ask("GET", "/page.bin", &[A, ("if-none-match", &tag)], b"");
    assert_eq!((same.status, same.content.len()), (304, 0));
    let head = client.ask("HEAD", "/page.bin", &[A], b"");
    assert_eq!((head.status, head.field("content-length"), head.content.len()), (200, Some("300000"), 0));
    assert_eq!(client.ask("GET", "/none", &[A], b"").status, 404);
    assert_eq!(client.ask("GET", "/page.bin", &[(":authority", "b.test")], b"").status, 404, "no such site");
}

#[test]
fn many_requests_of_one_connection_are_served_together() {
    let origin = Origin::start(|ask| answer("200 OK", "", &format!("this is {}", ask.line())));
    let rig = serve(&format!("[[site.route]]\nproxy = \"{}\"", origin.url));
    let mut client = connect(&rig);
    for round in 0..4 {
        let ids: Vec<_> =
            (0..100).map(|at| (at, client.send("GET", &format!("/{round}/{at}"), &[A], b""))).collect();
        for (at, id) in ids {
            assert_eq!(client.finish(id).text(), format!("this is GET /{round}/{at} HTTP/1.1"));
        }
    }
}

#[test]
fn proxied_bodies_trailers_and_interim_responses_arrive() {
    let origin = Origin::start(|ask| {
        let length = ask.body.len();
        let sum: u64 = ask.body.iter().map(|byte| u64::from(*byte)).sum();
        answer("200 OK", &format!("X-Length: {length}\r\nX-Sum: {sum}\r\n"), &"0123456789".repeat(100_000))
    });
    let rig = serve(&format!("[[site.route]]\nproxy = \"{}\"\nlimits = {{ body = \"20MiB\" }}", origin.url));
    let mut client = connect(&rig);
    let content: Vec<u8> = (0..5_000_000u32).map(|at| (at % 7) as u8).collect();
    let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
    let answer = client.ask("POST", "/up", &[A, ("content-length", "5000000")], &content);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("x-length"), Some("5000000"));
    assert_eq!(answer.field("x-sum"), Some(sum.to_string().as_str()));
    assert_eq!(answer.content.len(), 1_000_000);
    assert!(answer.is_whole && answer.content.chunks(10).all(|digits| digits == b"0123456789"));
}

#[test]
fn request_larger_than_the_limit_is_refused() {
    let origin = Origin::start(|_| answer("200 OK", "", "never"));
    let rig = serve(&format!("[[site.route]]\nproxy = \"{}\"\nlimits = {{ body = \"1KiB\" }}", origin.url));
    let mut client = connect(&rig);
    let refused = client.ask("POST", "/", &[A], &[b'a'; 200_000]);
    assert_eq!((refused.status, refused.is_whole), (413, true));
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200, "the connection goes on");
    let long = "a".repeat(40_000);
    let refused = client.ask("GET", "/", &[A, ("x-long", &long)], b"");
    assert_eq!(refused.status, 431);
}

#[test]
fn responses_over_tls_name_http3_and_logs_the_version() {
    let log = "log = { file = \"access.log\", access = \"json\" }";
    let rig = serve_with(log, "[[site.route]]\nrespond = \"yes\"", |_| {});
    let url = format!("https://a.test:{}/", rig.address.port());
    let resolve = format!("a.test:{}:127.0.0.1", rig.address.port());
    let shown = crate::rig::curl(&["-ki", "--resolve", &resolve, &url]);
    let head = crate::rig::text(&shown.stdout).to_ascii_lowercase();
    assert!(head.contains(&format!("alt-svc: h3=\":{}\"; ma=86400", rig.address.port())), "{head}");
    let mut client = connect(&rig);
    let answer = client.ask("GET", "/logged", &[A], b"");
    assert_eq!((answer.status, answer.field("alt-svc")), (200, None));
    eventually("the request is logged", || {
        let log = std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
        log.lines().any(|line| line.contains("/logged") && line.contains("HTTP/3"))
    });
}

#[test]
fn metrics_count_requests_by_protocol() {
    let control = "[control]\nlisten = \"unix:control.sock\"";
    let rig = serve_with(control, "[[site.route]]\nrespond = \"yes\"", |_| {});
    let mut client = connect(&rig);
    for _ in 0..3 {
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    }
    eventually("the requests are counted", || {
        rig.metrics().lines().any(|line| line == "komainu_protocol_requests_total{protocol=\"HTTP/3\"} 3")
    });
}

#[test]
fn urgent_responses_are_sent_first() {
    let rig = serve_with("", "[[site.route]]\nfiles = \"www\"", |folder| {
        folder.write("www/large.bin", vec![b'x'; 8_000_000]);
    });
    for (first, second) in [("u=7", "u=0"), ("u=0", "u=7")] {
        // With small windows, the less urgent response continues whenever the other one waits for room.
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(16_000_000));
        let mut client = H3Client::begin(rig.address, "a.test", client_config(&[b"h3"], transport));
        client.drive("the handshake", |client| client.is_connected);
        let ids = [first, second]
            .map(|urgency| (urgency, client.send("GET", "/large.bin", &[A, ("priority", urgency)], b"")));
        let mut whole = None;
        client.drive("a whole response", |client| {
            whole = ids.iter().find(|(_, id)| client.response(*id).content.len() == 8_000_000).copied();
            whole.is_some()
        });
        assert_eq!(whole.unwrap().0, "u=0", "asked for {first} and then {second}");
    }
}

/// A download fills a slow line for a minute; what is asked for meanwhile does not wait for its end.
#[test]
fn small_responses_do_not_wait_for_a_download() {
    let rig = serve_with("", "[[site.route]]\nfiles = \"www\"", |folder| {
        folder.write("www/large.bin", vec![b'x'; 60_000_000]).write("www/small", vec![b'y'; 5_000]);
    });
    let network = Network::start(rig.address, Weather::slow(1_000_000), fastrand::Rng::with_seed(1));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(16_000_000));
    let mut client = H3Client::begin(network.address, "a.test", client_config(&[b"h3"], transport));
    client.drive("the handshake", |client| client.is_connected);
    let large = client.send("GET", "/large.bin", &[A, ("priority", "u=3")], b"");
    client.drive("much of the download", |client| client.response(large).content.len() > 2_000_000);
    for priority in ["u=3", "u=3, i", "u=0", "u=0, i"] {
        let small = client.send("GET", "/small", &[A, ("priority", priority)], b"");
        client.drive_within(Duration::from_secs(60), "the small response", |client| {
            client.response(small).is_whole
        });
        assert_eq!(client.response(small).content.len(), 5_000, "{priority}");
        assert!(!client.response(large).is_whole, "{priority}");
    }
}
