use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::{RequestHead, Template};
use net::{Client, Peer};

use super::*;
use crate::options::{Forwarded, UpstreamAddress, UpstreamServer};

fn group() -> GroupOptions {
    GroupOptions::new(vec![UpstreamServer::new(UpstreamAddress::Tcp { host: "app".into(), port: 3000 })])
}

/// Returns the upstream head for a request with these lines, and its properties.
fn forwarded(options: &RouteOptions, request: &str) -> (String, SentHead) {
    forwarded_for(options, request, Client::direct(SENDER, true))
}

const SENDER: Peer = Peer::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 5555));

/// Creates the context of a request from [`SENDER`].
fn context<'x>(head: &'x RequestHead, bytes: &'x [u8], client: Client) -> TemplateContext<'x> {
    TemplateContext {
        head,
        bytes,
        peer: SENDER,
        client,
        tls: None,
        empty_segments: http::EmptySegments::Merge,
        ids: http::RequestIds::default(),
        user: None,
        upstream: "app:3000",
        custom_variables: None,
    }
}

/// Like [`forwarded`], for a client whose address the sender may forward.
fn forwarded_for(options: &RouteOptions, request: &str, client: Client) -> (String, SentHead) {
    let bytes = request.replace('\n', "\r\n").into_bytes();
    let mut head = RequestHead::default();
    assert!(head.parse(&bytes, &http::Limits::default()).unwrap(), "{request}");
    let ask = context(&head, &bytes, client);
    let mut out = Vec::new();
    let sent = RequestRules::new(&group(), options).write(&mut out, &ask, true).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("\r\n\r\n"));
    // The written head must itself be a valid request with the same framing.
    let mut again = RequestHead::default();
    assert!(again.parse(text.as_bytes(), &http::Limits::default()).unwrap());
    assert_eq!(again.framing, head.framing);
    (text.trim_end().replace("\r\n", "\n"), sent)
}

const SENT: &str =
    "X-Forwarded-For: 192.0.2.7\nX-Forwarded-Proto: https\nX-Forwarded-Host: a.test\nVia: 1.1 komainu";

#[test]
fn plain_request_is_forwarded_with_normalized_fields() {
    let (text, sent) =
        forwarded(&RouteOptions::default(), "GET /x?y HTTP/1.1\nHost: a.test\nAccept:  */* \nx-id:7\n\n");
    assert_eq!(text, format!("GET /x?y HTTP/1.1\nHost: a.test\nAccept: */*\nx-id: 7\n{SENT}"));
    assert_eq!(sent, SentHead::default());
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let (text, sent) = forwarded(
        &RouteOptions::default(),
        "GET / HTTP/1.1\nHost: a.test\nConnection: keep-alive, X-Secret, close\nKeep-Alive: 5\nX-Secret: 1\n\
         Proxy-Connection: x\nProxy-Authorization: x\nTE: gzip\nTrailer: x\nUpgrade: h2c\nHTTP2-Settings: AAAA\n\
         connection: x-other\nX-Other: 2\nX-Kept: 3\n\n",
    );
    assert_eq!(text, format!("GET / HTTP/1.1\nHost: a.test\nX-Kept: 3\n{SENT}"));
    assert!(!sent.upgrade);
}

#[test]
fn body_framing_fields_are_written_anew() {
    for (request, line) in [
        ("POST / HTTP/1.1\nHost: a.test\nContent-Length: 007\n\n", "Content-Length: 7"),
        ("POST / HTTP/1.1\nHost: a.test\nTransfer-Encoding: Chunked\n\n", "Transfer-Encoding: chunked"),
        ("POST / HTTP/1.1\nHost: a.test\n\n", "Content-Length: 0"),
        ("DELETE / HTTP/1.1\nHost: a.test\nContent-Length: 0\n\n", "Content-Length: 0"),
    ] {
        let (text, _) = forwarded(&RouteOptions::default(), request);
        assert_eq!(
            text,
            format!("{} / HTTP/1.1\nHost: a.test\n{line}\n{SENT}", request.split(' ').next().unwrap())
        );
    }
}

#[test]
fn expect_is_forwarded_only_with_a_body() {
    let with = "POST / HTTP/1.1\nHost: a.test\nExpect: 100-Continue\nContent-Length: 3\n\n";
    let (text, sent) = forwarded(&RouteOptions::default(), with);
    assert!(text.contains("\nExpect: 100-Continue\n") && sent.expects);
    let (text, sent) =
        forwarded(&RouteOptions::default(), "GET / HTTP/1.1\nHost: a.test\nExpect: 100-continue\n\n");
    assert!(!text.contains("Expect") && !sent.expects);
}

#[test]
fn websocket_upgrade_is_forwarded_only_when_valid() {
    let ask = |lines: &str| {
        forwarded(&RouteOptions::default(), &format!("GET /chat HTTP/1.1\nHost: a.test\n{lines}\n\n"))
    };
    let (text, sent) = ask("Connection: keep-alive, Upgrade\nUpgrade: WebSocket\nSec-WebSocket-Key: k");
    assert!(sent.upgrade);
    assert_eq!(
        text,
        format!(
            "GET /chat HTTP/1.1\nHost: a.test\nSec-WebSocket-Key: k\n{SENT}\nConnection: Upgrade\nUpgrade: WebSocket"
        )
    );
    for lines in [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Connection: Upgrade\nUpgrade: h2c",
        "Connection: Upgrade\nUpgrade: websocket, h2c",
        "Connection: Upgrade\nUpgrade: websocket\nContent-Length: 3",
    ] {
        let (text, sent) = ask(lines);
        assert!(!sent.upgrade && !text.contains("Upgrade"), "{lines}: {text}");
    }
}

#[test]
fn forwarding_fields_of_untrusted_peers_are_removed() {
    let request = "GET / HTTP/1.1\nHost: a.test\nX-Forwarded-For: 10.9.9.9\nX-Forwarded-Proto: http\n\
                   X-Forwarded-Host: evil\nForwarded: for=10.9.9.9\nX-Forwarded-Port: 1\nX-Real-IP: 10.9.9.9\n\
                   X_Forwarded_For: 10.9.9.9\n\n";
    assert_eq!(
        forwarded(&RouteOptions::default(), request).0,
        format!("GET / HTTP/1.1\nHost: a.test\n{SENT}")
    );
    let mut quiet = RouteOptions::default();
    quiet.request.forwarded = Forwarded { x_forwarded: Some(false), standard: false, via: None };
    quiet.request.forwarded.via = None;
    assert_eq!(forwarded(&quiet, request).0, "GET / HTTP/1.1\nHost: a.test");
}

#[test]
fn only_the_trusted_forwarding_fields_are_extended() {
    let mut options = RouteOptions::default();
    options.request.forwarded.standard = true;
    options.request.forwarded.via = None;
    let request = "GET / HTTP/1.1\nHost: a.test\nX-Forwarded-For: 10.0.0.1\nX-Forwarded-For: 10.0.0.2\n\
                   X-Forwarded-Proto: ftp\nX-Forwarded-Host: b.test\nX-Forwarded-Port: 1\nForwarded: for=10.0.0.9\n\n";
    let address = Peer::Tcp("10.0.0.2:0".parse().unwrap());
    let reported = |dialect| {
        let client = Client { address, is_secure: false, trusted_dialect: Some(dialect) };
        forwarded_for(&options, request, client).0
    };
    assert_eq!(
        reported(Dialect::XForwarded),
        "GET / HTTP/1.1\nHost: a.test\nX-Forwarded-Port: 1\nX-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\n\
         X-Forwarded-Proto: http\nX-Forwarded-Host: b.test\n\
         Forwarded: for=10.0.0.2;host=\"a.test\";proto=http, for=192.0.2.7;host=\"a.test\";proto=http"
    );
    assert_eq!(
        reported(Dialect::Standard),
        "GET / HTTP/1.1\nHost: a.test\nX-Forwarded-For: 10.0.0.2, 192.0.2.7\nX-Forwarded-Proto: http\n\
         X-Forwarded-Host: a.test\nForwarded: for=10.0.0.9, for=192.0.2.7;host=\"a.test\";proto=http"
    );
}

#[test]
fn host_option_and_field_edits_are_applied() {
    let mut options = RouteOptions::default();
    options.request.forwarded.via = None;
    options.request.forwarded.x_forwarded = Some(false);
    options.request.host = Host::Upstream;
    options.request.edits = ProxyHeaders {
        remove: vec!["cookie".into()],
        set: vec![("X-Id".into(), Template::parse("$client_ip", |_| true).unwrap())],
        add: vec![("X-Tag".into(), Template::parse("b", |_| true).unwrap())],
    };
    let request = "GET / HTTP/1.1\nHost: a.test\nCookie: a=b\nx-id: 1\nX-ID: 2\nX-Tag: a\n\n";
    let (text, _) = forwarded(&options, request);
    assert_eq!(text, "GET / HTTP/1.1\nHost: app:3000\nX-Tag: a\nX-Id: 192.0.2.7\nX-Tag: b");
    options.request.host = Host::Set("b.test".into());
    assert!(forwarded(&options, request).0.contains("Host: b.test\n"));
    options.request.host = Host::Pass;
    assert!(forwarded(&options, "GET / HTTP/1.0\n\n").0.contains("Host: app:3000\n"));
}

#[test]
fn too_many_connection_options_are_rejected() {
    let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", "x,".repeat(50)).into_bytes();
    let mut head = RequestHead::default();
    assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
    let ask = context(&head, &bytes, Client::direct(SENDER, false));
    assert!(
        RequestRules::new(&group(), &RouteOptions::default()).write(&mut Vec::new(), &ask, true).is_err()
    );
}

#[test]
fn ip_addresses_are_written_as_displayed() {
    for octets in [[0, 0, 0, 0], [1, 20, 255, 100], [255; 4], [10, 0, 9, 99], [192, 168, 101, 110]] {
        let mut out = Vec::new();
        write_ip(&mut out, IpAddr::from(octets));
        assert_eq!(String::from_utf8(out).unwrap(), Ipv4Addr::from(octets).to_string());
    }
}

#[test]
fn edited_fields_of_the_client_are_removed_in_every_spelling() {
    let mut options = RouteOptions::default();
    options.request.underscores = true;
    let role = Template::parse("guest", |_| false).unwrap();
    options.request.edits.set.push(("x-role".to_owned(), role));
    options.request.edits.remove.push("X-Gone".to_owned());
    let request = "GET / HTTP/1.1\nHost: a.test\nX_Role: admin\nX.Role: admin\nX_Gone: 1\nX_Stays: 1\n\n";
    let (text, _) = forwarded(&options, request);
    assert_eq!(text, format!("GET / HTTP/1.1\nHost: a.test\nX_Stays: 1\n{SENT}\nx-role: guest"));
}

#[test]
fn fields_written_by_the_proxy_are_removed_from_trailers() {
    let mut head = RequestHead::default();
    let bytes = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(head.parse(bytes, &http::Limits::default()).unwrap());
    let ask = context(&head, bytes, Client::direct(SENDER, true));
    let mut sent = Fields::new();
    for name in ["X-Request-Id", "Via", "traceparent", "Tracestate", "X-Forwarded-For", "X-Sum"] {
        sent.try_push(name.as_bytes(), b"1").unwrap();
    }
    let passed = RequestRules::new(&group(), &RouteOptions::default()).trailers(&sent, &ask);
    assert_eq!(passed.as_bytes(), b"X-Sum: 1\r\n");
}

#[test]
fn underscore_spellings_of_known_fields_are_recognized() {
    for (name, is_known) in [
        ("X_Forwarded_For", true),
        ("x_forwarded-proto", true),
        ("X_Real_IP", true),
        ("Content_Type", true),
        ("Content_Length", true),
        ("X_Accel_Redirect", true),
        ("X_Request_Id", true),
        ("My_Field", false),
        ("X_Token", false),
    ] {
        assert_eq!(is_known_with_hyphens(name.as_bytes()), is_known, "{name}");
    }
}

#[test]
fn options_stream_decrements_max_forwards() {
    let stream = |request: &str| {
        let bytes = request.replace('\n', "\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert!(head.parse(&bytes, &http::Limits::default()).unwrap(), "{request}");
        let ask = context(&head, &bytes, Client::direct(SENDER, true));
        let rules = RequestRules::new(&group(), &RouteOptions::default());
        let (head, _) = rules.stream_head(&ask, true, None).unwrap();
        String::from_utf8(head.lines).unwrap()
    };
    let lines = stream("OPTIONS * HTTP/1.1\nHost: a\nMax-Forwards: 10\nX: 1\n\n");
    assert!(lines.contains("Max-Forwards: 9\r\n") && !lines.contains("10"), "{lines}");
    let lines = stream("GET / HTTP/1.1\nHost: a\nMax-Forwards: 10\n\n");
    assert!(lines.contains("Max-Forwards: 10\r\n"), "{lines}");
    let lines = stream("OPTIONS / HTTP/1.1\nHost: a\nMax-Forwards: 10\nConnection: max-forwards\n\n");
    assert!(!lines.contains("orwards: "), "{lines}");
}
