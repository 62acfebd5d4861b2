//! Upstream servers with unusual or invalid HTTP.

use std::io::{Read, Write};

use crate::origin::Origin;
use crate::rig::{Folder, Rig, read_answer};

#[test]
fn whitespace_after_chunk_size_is_ignored() {
    let origin = Origin::start(|ask| {
        let size = if ask.line().contains("/wrong") { "5 5" } else { "5 \t" };
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 ;a=b\r\n!\r\n{size}\r\nhello\r\n0   \r\n\r\n"
        )
    });
    let rig = Rig::config(Folder::new(), &format!("[[route]]\nproxy = \"{}\"\n", origin.url));
    let answer = rig.get("/");
    assert!(answer.text().ends_with("\r\nhello\r\n0\r\n\r\n"), "{}", answer.text());
    // The log names the server whose response is truncated.
    let mut client = rig.connect();
    client.write_all(b"GET /wrong HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    rig.expect_report(&format!(
        "127.0.0.1 \"/wrong\": upstream {}: invalid byte in a chunk size",
        origin.url
    ));
}

/// Header lines, their fault as logged by default, and the field that the client receives with
/// `lenient_heads`.
const REPAIRED: [(&str, &str, &str); 4] = [
    (
        "Content-Length: 5\r\nX-A: 1\r\ncontent-length: 5\r\n",
        "repeated Content-Length in field \"Content-Length\"",
        "X-A: 1",
    ),
    ("Content-Length: 5, 5\r\nX-A: 1\r\n", "repeated Content-Length in field \"Content-Length\"", "X-A: 1"),
    ("X-Bad \t: 1\r\nContent-Length: 5\r\n", "space before colon in field \"X-Bad\"", "X-Bad: 1"),
    ("Content-Length : 5\r\nX-A: 1\r\n", "space before colon in field \"Content-Length\"", "X-A: 1"),
];

/// Lines that are rejected with any setting.
const REFUSED: [&str; 9] = [
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: 5, 6\r\n",
    "Content-Length : 5\r\nContent-Length: 6\r\n",
    "Content-Length: 5,,5\r\n",
    "X-A: 1\r\n folded: 2\r\n",
    " X-A: 1\r\n",
    "X A: 1\r\n",
    "X-A \r\n",
    ": 1\r\n",
];

const SWITCH: &str = "(lenient_heads = true of the upstream group repairs it)";

/// Protocol of a server that answers with such a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http,
    Https2,
    FastCgi,
    Uwsgi,
    Scgi,
}

/// Starts a server that answers every request or health check with these lines and `hello`.
fn answering(speaks: Speaks, lines: &'static str) -> String {
    let listener = crate::rig::listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap(), speaks, lines));
        }
    });
    match speaks {
        Speaks::Http => format!("http://{address}"),
        Speaks::Https2 => format!("h2c://{address}"),
        Speaks::FastCgi => format!("fastcgi://{address}"),
        Speaks::Uwsgi => format!("uwsgi://{address}"),
        Speaks::Scgi => format!("scgi://{address}"),
    }
}

fn answer(mut stream: std::net::TcpStream, speaks: Speaks, lines: &str) {
    let mut bytes = [0; 16 * 1024];
    let len = stream.read(&mut bytes).unwrap_or(0);
    let cgi = format!("Status: 203 Found Out\r\n{lines}\r\nhello");
    let answer = match speaks {
        _ if len == 0 => return,
        Speaks::Http => {
            format!("HTTP/1.1 203 Found Out\r\nConnection: close\r\n{lines}\r\nhello").into_bytes()
        }
        Speaks::Https2 => h2_answer(lines),
        Speaks::FastCgi => {
            let record = |kind: u8, content: &[u8]| {
                [&[1, kind, 0, 1][..], &(content.len() as u16).to_be_bytes(), &[0, 0], content].concat()
            };
            [record(6, cgi.as_bytes()), record(6, b""), record(3, &[0; 8])].concat()
        }
        Speaks::Uwsgi | Speaks::Scgi => cgi.into_bytes(),
    };
    let _ = stream.write_all(&answer);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
}

/// SETTINGS, and a response on the first stream: fields as literals without Huffman coding.
fn h2_answer(lines: &str) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, content: &[u8]| {
        [&(content.len() as u32).to_be_bytes()[1..], &[kind, flags, 0, 0, 0, stream], content].concat()
    };
    let mut block = vec![0x08, 3, b'2', b'0', b'3'];
    for line in lines.split_terminator("\r\n") {
        let (name, value) = line.split_once(": ").unwrap();
        block.extend([0, name.len() as u8]);
        block.extend(name.to_ascii_lowercase().bytes());
        block.push(value.len() as u8);
        block.extend(value.bytes());
    }
    [frame(4, 0, 0, b""), frame(1, 4, 1, &block), frame(0, 1, 1, b"hello")].concat()
}

fn proxied(to: &str, more: &str) -> Rig {
    Rig::config(Folder::new(), &format!("[[route]]\nproxy = {{ to = {to:?}{more} }}\n"))
}

fn expect_repaired(rig: &Rig, field: &str, what: &str) {
    let answer = rig.get("/");
    answer.expect(203, "hello");
    let lengths = answer.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("content-length"));
    assert_eq!(lengths.collect::<Vec<_>>(), ["Content-Length: 5"], "{what}: {}", answer.head);
    assert!(answer.head.lines().any(|line| line == field), "{what}: {}", answer.head);
}

#[test]
fn repairable_heads_are_rejected_unless_group_is_lenient() {
    for speaks in [Speaks::Http, Speaks::Https2, Speaks::FastCgi, Speaks::Uwsgi, Speaks::Scgi] {
        for (lines, fault, field) in REPAIRED {
            // In HTTP/2 a space in a field name is always invalid.
            if speaks == Speaks::Https2 && fault.contains("colon") {
                continue;
            }
            let what = format!("{speaks:?} {lines:?}");
            let url = answering(speaks, lines);
            let strict = proxied(&url, "");
            strict.get("/").expect_status(502);
            strict.expect_report(&format!("{url}: \"/\": {fault} {SWITCH}: 502"));
            // HTTP/2 field names are lowercase.
            let lenient = proxied(&url, ", lenient_heads = true");
            let field = if speaks == Speaks::Https2 { "x-a: 1" } else { field };
            expect_repaired(&lenient, field, &what);
        }
    }
}

#[test]
fn lenient_group_rejects_unrepairable_heads() {
    for speaks in [Speaks::Http, Speaks::FastCgi, Speaks::Scgi] {
        for lines in REFUSED {
            let url = answering(speaks, lines);
            let rig = proxied(&url, ", lenient_heads = true");
            assert_eq!(rig.get("/").status(), 502, "{speaks:?} {lines:?}");
            rig.expect_report(&format!("{url}: \"/\": "));
            assert!(!rig.reported().contains(SWITCH), "{speaks:?} {lines:?}: {}", rig.reported());
        }
    }
    let both = "Content-Length: 5\r\nContent-Length: 5\r\nTransfer-Encoding : chunked\r\n";
    let url = answering(Speaks::Http, both);
    let rig = proxied(&url, ", lenient_heads = true");
    rig.get("/").expect_status(502);
    rig.expect_report("both Content-Length and Transfer-Encoding: 502");
}

#[test]
fn cgi_programs_and_named_groups_can_be_lenient() {
    let program = "#!/bin/sh\nprintf 'Content-Type : text/plain\\nStatus : 404 Gone\\nTransfer-Encoding : none\\nContent-Length: 5\\nContent-Length: 5\\n\\nhello'\n";
    let start = |more: &str| {
        let folder = Folder::new();
        folder.write_program("cgi-bin/spaced", program);
        let text = format!(
            r#"
            [[route]]
            path = "/cgi-bin/*"
            cgi = {{ root = "cgi-bin"{more} }}
            "#
        );
        Rig::config(folder, &text)
    };
    let strict = start("");
    strict.get("/cgi-bin/spaced").expect_status(502);
    strict.expect_report(&format!("space before colon in field \"Content-Type\" {SWITCH}: 502"));
    let lenient = start(", lenient_heads = true");
    let answer = lenient.get("/cgi-bin/spaced");
    answer
        .expect(404, "hello")
        .expect_field("Content-Type", "text/plain")
        .expect_no_field("Transfer-Encoding");

    let url = answering(Speaks::Http, "X-Bad : 1\r\nContent-Length: 5\r\n");
    let text = format!(
        r#"
        [upstreams.old]
        to = {url:?}
        lenient_heads = true
        [[route]]
        proxy = {{ upstream = "old" }}
        "#
    );
    expect_repaired(&Rig::config(Folder::new(), &text), "X-Bad: 1", "a group");
}

#[test]
fn lenient_group_repairs_bare_lf() {
    let url = answering(Speaks::Http, "X-A: 1\nContent-Length: 5\r\n");
    let strict = proxied(&url, "");
    strict.get("/").expect_status(502);
    strict.expect_report(&format!("LF without CR in field \"X-A\" {SWITCH}: 502"));
    expect_repaired(&proxied(&url, ", lenient_heads = true"), "X-A: 1", "lenient");
    expect_repaired(&proxied(&url, ", limits.lenient_bare_lf = true"), "X-A: 1", "of the route");
}

#[test]
fn health_checks_parse_heads_like_requests() {
    for speaks in [Speaks::Http, Speaks::Https2, Speaks::FastCgi] {
        for (lines, fault, _) in REPAIRED {
            if speaks == Speaks::Https2 && fault.contains("colon") {
                continue;
            }
            let url = answering(speaks, lines);
            let check =
                "health = { path = \"/up\", expect = \"203\", interval = \"100ms\", rise = 1, fall = 1 }";
            let strict = proxied(&url, &format!(", {check}"));
            strict.expect_report(&format!("{url}: health check: {fault} {SWITCH}"));
            strict.expect_report(&format!("{url}: out of service: its health checks fail"));
            let lenient = proxied(&url, &format!(", lenient_heads = true, {check}"));
            std::thread::sleep(std::time::Duration::from_millis(350));
            lenient.get("/").expect_status(203);
            assert!(!lenient.reported().contains("health check"), "{}", lenient.reported());
        }
    }
}

#[test]
fn lenient_group_repairs_trailers_and_interim_heads() {
    let chunks = "HTTP/1.1 103 Early Hints\r\nLink : </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum \t: 1\r\n\r\n";
    let origin = Origin::start(move |_| chunks.to_owned());
    let strict = proxied(&origin.url, "");
    strict.get("/").expect_status(502);
    strict.expect_report(&format!("space before colon in field \"Link\" {SWITCH}: 502"));
    let lenient = proxied(&origin.url, ", lenient_heads = true");
    let text = lenient.get("/").text();
    assert!(text.ends_with("5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"), "{text}");

    let origin = Origin::start(|_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum : 1\r\n\r\n".to_owned()
    });
    let strict = proxied(&origin.url, "");
    let mut client = strict.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    strict.expect_report(&format!(
        "upstream {}: space before colon in a trailer field, which lenient_heads = true repairs",
        origin.url
    ));
}

#[test]
fn lenient_group_repairs_websocket_upgrade_head() {
    let origin = Origin::start(|_| {
        "HTTP/1.1 101 Switching Protocols\r\nConnection : Upgrade\r\nUpgrade : websocket\r\n\
         Sec-WebSocket-Accept : s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            .to_owned()
    });
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
               Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let strict = proxied(&origin.url, "");
    let mut client = strict.connect();
    client.write_all(ask.as_bytes()).unwrap();
    read_answer(&mut client).expect_status(502);
    strict.expect_report(&format!("space before colon in field \"Connection\" {SWITCH}: 502"));
    let lenient = proxied(&origin.url, ", lenient_heads = true");
    let mut client = lenient.connect();
    client.write_all(format!("{ask}echo").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\necho") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.starts_with("HTTP/1.1 101 ") && text.contains("\r\nSec-WebSocket-Accept: s3pP"), "{text}");
}

#[test]
fn client_requests_are_parsed_strictly_for_lenient_groups() {
    let origin = Origin::start(|_| "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    let rig = proxied(&origin.url, ", lenient_heads = true");
    for lines in ["X-Bad : 1", "Content-Length: 0\r\nContent-Length: 0", "Content-Length: 0, 0"] {
        rig.send(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n")).expect_status(400);
    }
    assert!(origin.asks().is_empty());
}
