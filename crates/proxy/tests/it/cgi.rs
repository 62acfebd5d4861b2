//! FastCGI, uwsgi and SCGI servers: the requests that they get, and the handling of their responses.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use http::{Fields, Method};
use proxy::options::{CgiProtocol, UpstreamProtocol};
use proxy::{FetchLimits, FetchRequest, Group, GroupShared};
use times::{Millis, Moment};

use crate::rig::{Caller, Client, Options, Origin, Rig};

type Variables = BTreeMap<String, String>;

/// A request, as received by a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    variables: Variables,
    body: Vec<u8>,
    keeps: bool,
}

impl Asked {
    fn of(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

fn read_exactly(stream: &mut TcpStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Reads a FastCGI request; `None` at the end of the connection.
fn fastcgi(stream: &mut TcpStream) -> Option<Asked> {
    let mut asked = Asked::default();
    let mut params = Vec::new();
    let mut kinds = Vec::new();
    loop {
        let header = read_exactly(stream, 8)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let content = read_exactly(stream, len)?;
        read_exactly(stream, usize::from(header[6]))?;
        assert_eq!((header[0], header[2], header[3]), (1, 0, 1), "version and id");
        if kinds.last() != Some(&header[1]) {
            kinds.push(header[1]);
        }
        match header[1] {
            1 => {
                assert_eq!(content[..2], [0, 1], "a responder");
                asked.keeps = content[2] == 1;
            }
            4 => params.extend(content),
            5 if len == 0 => break,
            5 => asked.body.extend(content),
            other => panic!("a record of kind {other}"),
        }
    }
    assert_eq!(kinds, [1, 4, 5]);
    let mut rest = &params[..];
    let length = |rest: &mut &[u8]| {
        let (first, after) = rest.split_first().unwrap();
        if *first < 128 {
            *rest = after;
            return usize::from(*first);
        }
        let (four, after) = rest.split_first_chunk::<4>().unwrap();
        *rest = after;
        (u32::from_be_bytes(*four) & 0x7fff_ffff) as usize
    };
    while !rest.is_empty() {
        let name = length(&mut rest);
        let value = length(&mut rest);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let before = asked.variables.insert(text(&rest[..name]), text(&rest[name..name + value]));
        assert_eq!(before, None, "a variable twice");
        rest = &rest[name + value..];
    }
    Some(asked)
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let padding = content.len().wrapping_neg() % 8;
    let len = u16::try_from(content.len()).unwrap().to_be_bytes();
    let head = [1, kind, 0, 1, len[0], len[1], padding as u8, 0];
    [&head[..], content, &vec![0; padding]].concat()
}

/// Returns a complete FastCGI response.
fn whole(text: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.chunks(65_000).flat_map(|part| record(6, part)).collect();
    bytes.extend(record(6, b""));
    bytes.extend(record(3, &[0; 8]));
    bytes
}

/// Starts a server that answers each request with the bytes returned by `answer`; also returns the requests
/// received.
fn server(
    protocol: CgiProtocol,
    answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static,
) -> (Origin, Arc<Mutex<Vec<Asked>>>) {
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let noted = asked.clone();
    let origin = Origin::start(move |Caller { mut stream, .. }, _| {
        loop {
            let asked = match protocol {
                CgiProtocol::FastCgi => fastcgi(&mut stream),
                CgiProtocol::Uwsgi => packet(&mut stream, uwsgi),
                CgiProtocol::Scgi => packet(&mut stream, scgi),
                CgiProtocol::Program => unreachable!("programs have tests with the real binary"),
            };
            let Some(asked) = asked else { return };
            noted.lock().unwrap().push(asked.clone());
            if stream.write_all(&answer(&asked)).is_err() || protocol != CgiProtocol::FastCgi || !asked.keeps
            {
                return;
            }
        }
    });
    (origin, asked)
}

/// Reads a uwsgi or SCGI request: the variables, and the body that they announce.
fn packet(stream: &mut TcpStream, variables: impl Fn(&mut TcpStream) -> Option<Variables>) -> Option<Asked> {
    let variables = variables(stream)?;
    let length = variables.get("CONTENT_LENGTH").and_then(|length| length.parse().ok()).unwrap_or(0);
    let body = read_exactly(stream, length)?;
    Some(Asked { variables, body, keeps: false })
}

fn uwsgi(stream: &mut TcpStream) -> Option<Variables> {
    let header = read_exactly(stream, 4)?;
    assert_eq!((header[0], header[3]), (0, 0), "the modifiers");
    let block = read_exactly(stream, usize::from(u16::from_le_bytes([header[1], header[2]])))?;
    let mut rest = &block[..];
    let mut texts = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<2>() {
        let (text, after) = after.split_at(usize::from(u16::from_le_bytes(*len)));
        texts.push(String::from_utf8(text.to_vec()).unwrap());
        rest = after;
    }
    Some(texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

fn scgi(stream: &mut TcpStream) -> Option<Variables> {
    let mut digits = String::new();
    loop {
        match read_exactly(stream, 1)?[0] {
            b':' => break,
            digit => digits.push(char::from(digit)),
        }
    }
    let block = read_exactly(stream, digits.parse().unwrap())?;
    assert_eq!(read_exactly(stream, 1)?, b",");
    let text = String::from_utf8(block).unwrap();
    assert!(text.starts_with("CONTENT_LENGTH\0"), "{text:?}");
    let texts: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
    Some(texts.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
}

fn options(origin: &Origin, protocol: CgiProtocol) -> Options {
    let mut server = origin.server();
    server.protocol = UpstreamProtocol::Cgi(protocol);
    Options::to(vec![server])
}

fn rig(origin: &Origin, protocol: CgiProtocol) -> Rig {
    Rig::with(options(origin, protocol))
}

#[test]
fn request_is_translated_to_variables_in_each_protocol() {
    for protocol in [CgiProtocol::FastCgi, CgiProtocol::Uwsgi, CgiProtocol::Scgi] {
        let text: &[u8] = b"Status: 201 Made\r\nX-Up: 1\r\nX-Accel-Redirect: /x\r\n\r\nanswer";
        let (origin, asked) = server(protocol, move |_| match protocol {
            CgiProtocol::FastCgi => whole(text),
            _ => text.to_vec(),
        });
        let rig = rig(&origin, protocol);
        let body = "x".repeat(200_000);
        let response = rig.ask(&format!(
            "POST /a%20b/c?d=%20e HTTP/1.1\r\nHost: site.test:81\r\nContent-Length: {}\r\nContent-Type: a/b\r\n\
             Cookie: a=1\r\nCookie: b=2\r\nX-Two: 1\r\nx-two: 2\r\nProxy: evil\r\nX_Two: 3\r\nX.Two: 4\r\n\
             X-Forwarded-For: 6.6.6.6\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Accel-Mine: 1\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!((response.status, response.text().as_str()), (201, "answer"), "{protocol:?}");
        assert_eq!((response.field("X-Up"), response.field("X-Accel-Redirect")), (Some("1"), None));
        assert_eq!(response.field("Status"), None);
        let asked = asked.lock().unwrap().pop().unwrap();
        assert_eq!(asked.body, body.as_bytes());
        let port = rig.address.port().to_string();
        for (name, value) in [
            ("REQUEST_METHOD", "POST"),
            ("REQUEST_URI", "/a%20b/c?d=%20e"),
            ("QUERY_STRING", "d=%20e"),
            ("SCRIPT_NAME", ""),
            ("PATH_INFO", "/a b/c"),
            ("DOCUMENT_URI", "/a b/c"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
            ("SERVER_NAME", "site.test"),
            ("SERVER_PORT", &port),
            ("SERVER_ADDR", "127.0.0.1"),
            ("REMOTE_ADDR", "127.0.0.1"),
            ("REQUEST_SCHEME", "http"),
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("CONTENT_LENGTH", "200000"),
            ("CONTENT_TYPE", "a/b"),
            ("HTTP_HOST", "site.test:81"),
            ("HTTP_COOKIE", "a=1; b=2"),
            ("HTTP_X_TWO", "1, 2"),
            ("HTTP_X_FORWARDED_FOR", "127.0.0.1"),
        ] {
            assert_eq!(asked.of(name), Some(value), "{name} in {protocol:?}: {:?}", asked.variables);
        }
        let unwanted = [
            "HTTP_PROXY",
            "HTTP_X_HOP",
            "HTTP_CONTENT_TYPE",
            "HTTP_CONTENT_LENGTH",
            "HTTP_CONNECTION",
            "HTTP_X_ACCEL_MINE",
            "HTTPS",
            "SCRIPT_FILENAME",
        ];
        for name in unwanted {
            assert_eq!(asked.of(name), None, "{name} in {protocol:?}");
        }
    }
}

#[test]
fn request_without_host_has_no_http_host_variable() {
    let (origin, asked) = server(CgiProtocol::FastCgi, |_| whole(b"Content-Type: a/b\r\n\r\nfine"));
    let rig = rig(&origin, CgiProtocol::FastCgi);
    assert_eq!(rig.ask("GET / HTTP/1.0\r\n\r\n").text(), "fine");
    let asked = asked.lock().unwrap().pop().unwrap();
    assert_eq!((asked.of("HTTP_HOST"), asked.of("SERVER_NAME")), (None, Some("127.0.0.1")));
}

#[test]
fn only_fastcgi_connections_are_kept_alive() {
    let text: &[u8] = b"Content-Type: a/b\r\n\r\nfine";
    for (protocol, connections) in
        [(CgiProtocol::FastCgi, 1), (CgiProtocol::Uwsgi, 5), (CgiProtocol::Scgi, 5)]
    {
        let (origin, asked) = server(protocol, move |_| match protocol {
            CgiProtocol::FastCgi => whole(text),
            _ => text.to_vec(),
        });
        let rig = rig(&origin, protocol);
        let mut client = rig.client();
        for _ in 0..5 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response(Method::Get).unwrap().text(), "fine");
        }
        assert_eq!(origin.connections(), connections, "{protocol:?}");
        let asked = asked.lock().unwrap();
        assert!(asked.iter().all(|asked| asked.keeps == (protocol == CgiProtocol::FastCgi)));
        assert_eq!(asked[0].of("CONTENT_LENGTH"), Some(if protocol == CgiProtocol::Scgi { "0" } else { "" }));
    }
    let (origin, asked) = server(CgiProtocol::FastCgi, move |_| whole(text));
    let mut options = options(&origin, CgiProtocol::FastCgi);
    options.group.keep_alive.idle_max = 0;
    let rig = Rig::with(options);
    for _ in 0..2 {
        assert_eq!(rig.get("/").text(), "fine");
    }
    assert_eq!(origin.connections(), 2);
    assert!(asked.lock().unwrap().iter().all(|asked| !asked.keeps));
}

#[test]
fn response_body_follows_content_length_or_the_end_record() {
    let large = vec![b'x'; 3_000_000];
    let of = |head: &str| [head.as_bytes(), &large].concat();
    let known = of("Content-Length: 3000000\r\n\r\n");
    let unknown = of("X: y\r\n\r\n");
    let (origin, _) = server(CgiProtocol::FastCgi, move |asked| match asked.of("PATH_INFO") {
        Some("/known") => whole(&known),
        Some("/unknown") => whole(&unknown),
        Some("/more") => whole(b"Content-Length: 2\r\n\r\nokgarbage"),
        Some("/none") => whole(b"Status: 304\r\n\r\nno content"),
        _ => {
            [record(6, b"X: y\r\n\r"), record(7, b"oh\n"), record(6, b"\nbody"), record(3, &[0; 8])].concat()
        }
    });
    let rig = rig(&origin, CgiProtocol::FastCgi);
    let mut client = rig.client();
    let mut ask = |method: &str, path: &str| {
        client.send(&format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.response(if method == "HEAD" { Method::Head } else { Method::Get }).unwrap()
    };
    for _ in 0..2 {
        for (path, length) in [("/known", Some("3000000")), ("/unknown", None)] {
            let response = ask("GET", path);
            assert_eq!((response.body.len(), response.field("Content-Length")), (3_000_000, length));
        }
        assert_eq!(ask("HEAD", "/known").field("Content-Length"), Some("3000000"));
        assert_eq!(ask("GET", "/more").text(), "ok");
        assert_eq!(ask("GET", "/none").status, 304);
        assert_eq!(ask("GET", "/split").text(), "body");
    }
    // A response to HEAD with a body above the limit costs a connection each time.
    assert_eq!(origin.connections(), 3);
}

/// PHP-FPM sends an empty head if neither the script nor the settings set a field.
#[test]
fn empty_fastcgi_head_is_accepted() {
    let (origin, _) = server(CgiProtocol::FastCgi, |_| whole(b"\r\n\n\nx"));
    let response = rig(&origin, CgiProtocol::FastCgi).get("/");
    assert_eq!((response.status, response.text().as_str()), (200, "\n\nx"));
}

#[test]
fn hostile_responses_are_answered_502_with_a_reason() {
    let end = record(3, &[0; 8]);
    let header = |kind: u8, id: u8, len: [u8; 2]| vec![1, kind, 0, id, len[0], len[1], 0, 0];
    let endless = format!("X: {}\r\n", "y".repeat(60_000));
    for (bytes, reason) in [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), "does not speak FastCGI"),
        (header(6, 2, [0, 1]), "of another request"),
        (header(11, 1, [0, 8]), "of a kind"),
        (header(3, 1, [0, 0]), "of another length"),
        ([record(6, b""), record(6, b"X: y\r\n\r\n")].concat(), "has ended"),
        (end.clone(), "has no head"),
        ([record(6, b"X: y\r\n"), end.clone()].concat(), "has no head"),
        (whole(b"Status: yes\r\n\r\n"), "not a number"),
        (whole(b"Status: 100 Continue\r\n\r\n"), "interim"),
        (whole(b"Status: 200 OK\r\nStatus: 500 No\r\n\r\n"), "two statuses"),
        (whole(b"PHP Warning\r\n\r\n"), "without a colon"),
        (whole(b"X: a\rY: b\r\n\r\n"), ""),
        (whole(b"X: a\0b\r\n\r\n"), ""),
        (whole(b" X: a\r\n\r\n"), ""),
        (whole(b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), ""),
        (whole(b"Content-Length: -1\r\n\r\n"), ""),
        (whole(endless.as_bytes()), "too long"),
        (record(3, &[0, 0, 0, 0, 1, 0, 0, 0]), "beside others"),
        (record(3, &[0, 0, 0, 0, 3, 0, 0, 0]), "no FastCGI responder"),
    ] {
        let shown = bytes.escape_ascii().to_string();
        let (origin, _) = server(CgiProtocol::FastCgi, move |_| bytes.clone());
        let (status, why) = rig(&origin, CgiProtocol::FastCgi).get("/").refused();
        assert_eq!(status, 502, "{shown}");
        assert!(why.contains(reason) && !why.is_empty(), "{shown}: {why}");
    }
}

#[test]
fn truncated_fastcgi_response_is_never_taken_as_complete() {
    for bytes in [
        record(6, b"Content-Length: 10\r\n\r\nfive!"),
        [record(6, b"Content-Length: 10\r\n\r\nfive!"), record(3, &[0; 8])].concat(),
        record(6, b"X: y\r\n\r\nfive!"),
        [record(6, b"X: y\r\n\r\nfive!"), b"junkjunkjunk".to_vec()].concat(),
    ] {
        let shown = bytes.escape_ascii().to_string();
        let origin = Origin::start(move |Caller { mut stream, .. }, _| {
            fastcgi(&mut stream);
            let _ = stream.write_all(&bytes);
        });
        let mut client: Client = rig(&origin, CgiProtocol::FastCgi).client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.response(Method::Get).is_err(), "{shown}");
    }
}

#[test]
fn complete_response_does_not_wait_for_the_end_record() {
    let ends = Arc::new(std::sync::RwLock::new(()));
    let may_end = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let gate = ends.clone();
    let ended = may_end.clone();
    let origin = Origin::start(move |Caller { mut stream, .. }, _| {
        while let Some(asked) = fastcgi(&mut stream) {
            let text = whole(b"Content-Length: 5\r\n\r\nhello");
            let end = text.len() - record(6, b"").len() - record(3, &[0; 8]).len();
            let _ = stream.write_all(&text[..end]);
            if asked.of("PATH_INFO") == Some("/works") {
                drop(gate.read());
            }
            let _ = stream.write_all(&text[end..]);
            ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let rig = rig(&origin, CgiProtocol::FastCgi);
    let working = ends.write().unwrap();
    // Responses to one client after another do not wait for the server to end them.
    let mut client: Client = rig.client();
    for _ in 0..64 {
        client.send("GET /works HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response(Method::Get).unwrap().text(), "hello");
    }
    assert_eq!(may_end.load(std::sync::atomic::Ordering::SeqCst), 0, "no server has ended a response");
    // The limit of lingering connections is reached: this response waits for the server to end it.
    client.send("GET /works HTTP/1.1\r\nHost: a\r\n\r\nGET /works HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response(Method::Get).unwrap().text(), "hello");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(origin.connections(), 65, "the second of them waits");
    drop(working);
    assert_eq!(client.response(Method::Get).unwrap().text(), "hello");
    // The connections are kept after the servers have ended the responses.
    while may_end.load(std::sync::atomic::Ordering::SeqCst) < 66 {
        std::thread::yield_now();
    }
    for _ in 0..10 {
        assert_eq!(rig.get("/").text(), "hello");
    }
    assert_eq!(origin.connections(), 65);
}

#[test]
fn stderr_records_do_not_extend_the_response_timeout() {
    let (ended, dripped) = std::sync::mpsc::channel();
    let origin = Origin::start(move |Caller { mut stream, .. }, _| {
        fastcgi(&mut stream);
        let _ = stream.write_all(&record(6, b"X: y\r\n\r\nb"));
        let drips = (0..300).take_while(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            stream.write_all(&record(7, b"e")).is_ok()
        });
        let _ = ended.send(drips.count());
    });
    let mut options = options(&origin, CgiProtocol::FastCgi);
    options.route.timeouts.between = Millis(300);
    let rig = Rig::with(options);
    let mut client: Client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.response(Method::Get).is_err(), "it is cut off");
    // Reading all of them would take thirty seconds.
    let drips = dripped.recv().expect("the server ends");
    assert!(drips < 150, "the connection was held for {drips} error messages");
}

#[test]
fn stderr_is_reported_line_by_line_and_bounded() {
    let (origin, _) = server(CgiProtocol::FastCgi, |asked| match asked.of("PATH_INFO") {
        Some("/flood") => {
            let mut bytes = record(7, "x\n".repeat(30_000).as_bytes()).repeat(300);
            bytes.extend(whole(b"X: y\r\n\r\nnever"));
            bytes
        }
        Some("/much") => {
            let mut bytes = record(7, "much\n".repeat(12_000).as_bytes()).repeat(50);
            bytes.extend(whole(b"X: y\r\n\r\nfine"));
            bytes
        }
        _ => [record(7, b"PHP message: o"), record(7, b"h\nsecond"), whole(b"X: y\r\n\r\nfine")].concat(),
    });
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let options = options(&origin, CgiProtocol::FastCgi);
    let noted = lines.clone();
    let route = Arc::new(options.route);
    let shared = GroupShared::new(options.group).unwrap();
    let rig = Rig::serving(1, shared, move |core, shared| {
        let noted = noted.clone();
        let sink = Box::new(move |event: &proxy::UpstreamEvent<'_>| {
            if let proxy::UpstreamEvent::ErrorLine { line, .. } = event {
                noted.lock().unwrap().push((*line).to_owned());
            }
        });
        crate::rig::Hop(Group::with_events(core, shared, sink).proxy(&route, None))
    });
    assert_eq!(rig.get("/").text(), "fine");
    assert_eq!(std::mem::take(&mut *lines.lock().unwrap()), ["PHP message: oh", "second"]);
    assert_eq!(rig.get("/much").text(), "fine");
    let logged: usize = std::mem::take(&mut *lines.lock().unwrap()).iter().map(String::len).sum();
    assert!((4_000..=10_240).contains(&logged), "{logged} bytes are logged");
    let (status, why) = rig.get("/flood").refused();
    assert_eq!(status, 502);
    assert!(why.contains("error messages without end"), "{why}");
}

#[test]
fn request_to_an_overloaded_server_goes_to_another_one() {
    let (busy, _) = server(CgiProtocol::FastCgi, |_| record(3, &[0, 0, 0, 0, 2, 0, 0, 0]));
    let (free, asked) = server(CgiProtocol::FastCgi, |_| whole(b"X: y\r\n\r\nfine"));
    let mut both = options(&busy, CgiProtocol::FastCgi);
    both.group.servers.extend(options(&free, CgiProtocol::FastCgi).group.servers);
    let rig = Rig::with(both);
    for _ in 0..4 {
        let response = rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(response.text(), "fine");
    }
    assert!(asked.lock().unwrap().iter().all(|asked| asked.body == b"hi"));
}

#[test]
fn fetch_and_health_checks_work_over_fastcgi() {
    let (origin, asked) = server(CgiProtocol::FastCgi, |asked| match asked.of("SCRIPT_NAME") {
        Some("/ping") => whole(format!("X: {}\r\n\r\npong", "y".repeat(28_000)).as_bytes()),
        _ => whole(b"X: y\r\n\r\nfine"),
    });
    let mut options = options(&origin, CgiProtocol::FastCgi);
    options.group.check = Some(proxy::options::HealthCheck {
        path: Some("/ping".into()),
        host: None,
        expect: (200, 299),
        interval: Millis(20),
        timeout: Millis(20_000),
        rise: 1,
        fall: 1,
    });
    let route = Arc::new(options.route);
    let shared = GroupShared::new(options.group).unwrap();
    let core = net::Core::for_client(1).unwrap();
    let group = Group::new(&core, &shared);
    let proxy = group.proxy(&route, None);
    let their_core = core.clone();
    let seen = asked.clone();
    let text = core.run_until_end(async move {
        let request = FetchRequest::new("POST", "site.test", "/a", &Fields::new(), b"body".to_vec()).unwrap();
        let proxy = proxy.bind();
        let mut response = proxy.fetch(&request, &FetchLimits::default()).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = response.read().await.unwrap() {
            text.extend_from_slice(piece);
        }
        drop(response);
        let is_ping = |asked: &Asked| asked.of("SCRIPT_NAME") == Some("/ping");
        // The result of a check is known before the next one begins.
        while seen.lock().unwrap().iter().filter(|asked| is_ping(asked)).count() < 3 {
            their_core.sleep(Millis(5)).await;
        }
        drop((proxy, group));
        text
    });
    assert_eq!(text.unwrap(), b"fine");
    assert_eq!(shared.state(0, Moment::ZERO), proxy::health::ServerState::Up);
    let asked = asked.lock().unwrap();
    let posted = asked.iter().find(|asked| asked.of("REQUEST_METHOD") == Some("POST")).unwrap();
    assert_eq!((posted.body.as_slice(), posted.of("PATH_INFO")), (&b"body"[..], Some("/a")));
}
