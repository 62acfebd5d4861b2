//! Besides requests with one response: WebSockets (RFC 9220), trailers, interim responses, expectations.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use quinn_proto::StreamId;

use crate::h3_client::{H3Client, Response};
use crate::requests::{A, connect, serve, serve_with};
use crate::rig::{Rig, installed};

const WEBSOCKET: [(&str, &str); 3] = [A, (":protocol", "websocket"), ("sec-websocket-version", "13")];

/// An upstream server that lets `exchange` act on one connection. Returns its URL, and what `exchange` returns.
fn upstream<T: Send + 'static>(
    exchange: impl FnOnce(&mut TcpStream) -> T + Send + 'static,
) -> (String, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (done, result) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = done.send(exchange(&mut stream));
    });
    (url, result)
}

fn read_head(stream: &mut TcpStream) -> String {
    read_to(stream, b"\r\n\r\n")
}

fn read_to(stream: &mut TcpStream, end: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn proxy(url: &str) -> Rig {
    serve(&format!("[[site.route]]\nproxy = \"{url}\""))
}

/// Waits for a part of a response.
fn wait(client: &mut H3Client, id: StreamId, what: &str, is_there: impl Fn(&Response) -> bool) -> Response {
    client.drive(what, |client| {
        let response = client.response(id);
        assert!(response.reset.is_none() && client.lost.is_none(), "{response:?} {:?}", client.lost);
        is_there(&response)
    });
    client.response(id)
}

#[test]
fn websocket_passes_through_the_proxy_until_either_side_ends_it() {
    for client_ends in [true, false] {
        let (url, asked) = upstream(move |stream| {
            let head = read_head(stream);
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            // The key of the client's side is the server's: it checks the answer to that.
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            let magic = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
            let digest =
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, magic.as_bytes());
            let accept = data_encoding::BASE64.encode(digest.as_ref());
            stream.write_all(answer.replace("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", &accept).as_bytes()).unwrap();
            let mut left = 1_000_000;
            let mut piece = vec![0; 65_536];
            while left > 0 {
                let len = stream.read(&mut piece).unwrap();
                stream.write_all(&piece[..len]).unwrap();
                left -= len;
            }
            // The client's end.
            let rest = if client_ends { stream.read(&mut piece).unwrap() } else { 0 };
            (head, rest)
        });
        let rig = proxy(&url);
        let mut client = connect(&rig);
        let id = client.open("CONNECT", "/socket", &WEBSOCKET);
        let begun = wait(&mut client, id, "head of the response", |response| response.status != 0);
        assert_eq!((begun.status, begun.field("upgrade"), begun.field("connection")), (200, None, None));
        assert_eq!(begun.field("sec-websocket-accept"), None);
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
        client.push(id, &sent, false);
        let back = wait(&mut client, id, "echo", |response| response.content.len() >= sent.len());
        assert!(back.content == sent);
        assert_eq!(client.lost, None);
        if client_ends {
            client.push(id, b"", true);
        }
        client.drive("end of the tunnel", |client| {
            let response = client.response(id);
            response.is_whole || response.reset.is_some()
        });
        let (head, rest) = asked.recv().unwrap();
        assert!(
            head.starts_with("GET /socket HTTP/1.1\r\n") && head.contains("Upgrade: websocket"),
            "{head}"
        );
        assert_eq!(rest, 0);
        // The connection goes on.
        assert_eq!(client.ask("GET", "/", &[(":authority", "b.test")], b"").status, 404);
    }
}

#[test]
fn protocols_that_nobody_speaks_are_refused_without_the_content() {
    let rig = serve("[[site.route]]\nrespond = \"content of the resource\"");
    let mut client = connect(&rig);
    for protocol in ["websocket", "connect-udp"] {
        let response = client.ask("CONNECT", "/", &[A, (":protocol", protocol)], b"");
        assert_eq!(response.status, 501, "{protocol}");
        assert!(!String::from_utf8_lossy(&response.content).contains("resource"), "{protocol}");
    }
}

const ECHO: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    if scope["path"] == "/no":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][0] if scope["subprotocols"] else None})
    await send({"type": "websocket.send", "text": scope["http_version"] + " " + scope["scheme"] + " " + scope["path"]})
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            print("disconnected", event["code"], flush=True)
            return
        if event.get("text") == "bye":
            await send({"type": "websocket.close", "code": 4321, "reason": "as you wish"})
            return
        await send({"type": "websocket.send", "bytes": event.get("bytes") or event["text"].encode()})
"#;

/// A masked frame of a client, with 126 bytes or more.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend([1, 2, 3, 4]);
    bytes.extend(payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// The joined payloads of a server's frames, of which the last may be cut off.
fn payloads(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while bytes.len() >= 10 || bytes.len() >= 2 && bytes[1] < 126 {
        let (header, len) = match bytes[1] {
            126 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
            127 => (10, u64::from_be_bytes(bytes[2..10].try_into().unwrap()) as usize),
            len => (2, usize::from(len)),
        };
        let end = (header + len).min(bytes.len());
        out.extend_from_slice(&bytes[header..end]);
        bytes = &bytes[end..];
    }
    out
}

fn asgi() -> Option<Rig> {
    installed("python3")?;
    let folder = crate::certified::folder(&[("a.test", "ec")]);
    folder.write("sockets.py", ECHO);
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = [{{ address = "127.0.0.1:0", tls = true }}]
            {}
            [[site]]
            hosts = ["a.test"]
            tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
            [[site.route]]
            app = "shop"
            [apps.shop]
            asgi = "sockets.py:app"
            workers = 1
            "#,
            crate::rig::as_we_are()
        ),
    );
    let mut command = crate::hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Some(Rig::start(command, folder))
}

#[test]
fn websocket_of_an_application_is_served() {
    let Some(rig) = asgi() else { return };
    let mut client = connect(&rig);
    let fields = [&WEBSOCKET[..], &[("sec-websocket-protocol", "chat")]].concat();
    let id = client.open("CONNECT", "/room", &fields);
    let greeting = b"\x81\x0d3 wss /room";
    let begun = wait(&mut client, id, "greeting", |response| response.content.len() >= greeting.len());
    assert_eq!((begun.status, begun.field("sec-websocket-protocol")), (200, Some("chat")));
    let text = String::from_utf8_lossy(&begun.content).into_owned();
    assert!(text.ends_with(" wss /room") && text.contains("3"), "{text}");
    let mut before = begun.content.len();
    for len in [1, 125, 70_000, 1_000_000] {
        let payload: Vec<u8> = (0..len as u32).map(|at| (at % 251) as u8).collect();
        client.push(id, &frame(0x82, &payload), false);
        let back =
            wait(&mut client, id, "echo", |response| payloads(&response.content[before..]).len() >= len);
        assert!(payloads(&back.content[before..]) == payload, "{len}");
        before = back.content.len();
    }
    // Ping, then the end by the application.
    client.push(id, &frame(0x89, b"here"), false);
    wait(&mut client, id, "pong", |response| response.content.ends_with(b"\x8a\x04here"));
    client.push(id, &frame(0x81, b"bye"), false);
    let ended = wait(&mut client, id, "close", |response| response.content.ends_with(b"as you wish"));
    let close = &ended.content[ended.content.len() - 15..];
    assert_eq!((close[0], &close[2..4]), (0x88, &4321u16.to_be_bytes()[..]));
    client.push(id, &frame(0x88, &4321u16.to_be_bytes()), true);
    client.drive("end of the stream", |client| {
        let response = client.response(id);
        response.is_whole || response.reset.is_some()
    });
    // Refused, and abandoned.
    assert_eq!(client.ask("CONNECT", "/no", &WEBSOCKET, b"").status, 403);
    let id = client.open("CONNECT", "/room", &WEBSOCKET);
    wait(&mut client, id, "greeting", |response| !response.content.is_empty());
    client.cancel(id);
    client.drive_for(std::time::Duration::from_millis(50));
    rig.expect_report("disconnected 1006");
}

#[test]
fn protocols_without_a_tunnel_are_refused() {
    let rig = serve("[[site.route]]\nrespond = \"yes\"");
    let mut client = connect(&rig);
    for protocol in ["connect-udp", "webtransport", "x"] {
        let answer = client.ask("CONNECT", "/", &[A, (":protocol", protocol)], b"");
        assert!(answer.status >= 400, "{protocol}: {answer:?}");
    }
    // A websocket where there is none.
    let answer = client.ask("CONNECT", "/", &WEBSOCKET, b"");
    assert!(answer.status != 0 && client.lost.is_none(), "{answer:?}");
}

#[test]
fn trailers_pass_both_ways() {
    let (url, asked) = upstream(|stream| {
        let head = read_head(stream);
        let body = read_to(stream, b"0\r\nx-sum: 7\r\n\r\n");
        let answer = "HTTP/1.1 200 OK\r\nTrailer: X-Done\r\nTransfer-Encoding: chunked\r\n\r\n\
                      2\r\nok\r\n0\r\nX-Done: yes\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        (head, body)
    });
    let rig = proxy(&url);
    let mut client = connect(&rig);
    let id = client.open("POST", "/", &[A, ("te", "trailers"), ("trailer", "x-sum")]);
    client.push(id, b"abc", false);
    client.push_trailers(id, &[(b"x-sum", b"7")]);
    let answer = client.finish(id);
    assert_eq!((answer.status, answer.text().as_str(), answer.is_whole), (200, "ok", true));
    assert_eq!(answer.trailers.to_ascii_lowercase(), "x-done: yes\n");
    let (head, body) = asked.recv().unwrap();
    assert!(head.to_ascii_lowercase().contains("te: trailers") && body.contains("abc"), "{head}{body}");
}

#[test]
fn early_hints_come_before_the_response() {
    let (url, _asked) = upstream(|stream| {
        read_head(stream);
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
        stream.write_all(hints.as_bytes()).unwrap();
        stream.write_all(hints.replace("a.css", "b.css").as_bytes()).unwrap();
        // The test waits for them.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let rig = proxy(&url);
    let mut client = connect(&rig);
    let answer = client.ask("GET", "/", &[A], b"");
    let link = |name: &str| (103, format!("link: </{name}>\n"));
    assert_eq!(answer.interim, [link("a.css"), link("b.css")]);
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
}

#[test]
fn expectation_is_answered_before_the_content_is_sent() {
    let (url, asked) = upstream(|stream| {
        let head = read_head(stream);
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = [0; 5];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        (head, body)
    });
    let rig = proxy(&url);
    let mut client = connect(&rig);
    let id = client.open("POST", "/", &[A, ("expect", "100-continue"), ("content-length", "5")]);
    wait(&mut client, id, "100 Continue", |response| response.interim.iter().any(|(code, _)| *code == 100));
    client.push(id, b"hello", true);
    let answer = client.finish(id);
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    let (head, body) = asked.recv().unwrap();
    assert!(head.to_ascii_lowercase().contains("expect: 100-continue"), "{head}");
    assert_eq!(&body, b"hello");
}

#[test]
fn refused_expectation_needs_no_content() {
    let rig = serve_with("", "[[site.route]]\nrespond = { body = \"no\", status = 403 }", |_| {});
    let mut client = connect(&rig);
    let id = client.open("POST", "/", &[A, ("expect", "100-continue"), ("content-length", "5")]);
    let answer = client.finish(id);
    assert_eq!((answer.status, answer.text().as_str(), answer.interim.len()), (403, "no", 0));
    let next = client.ask("GET", "/", &[A], b"");
    assert_eq!(next.status, 403, "{next:?} {:?}", client.lost);
}
