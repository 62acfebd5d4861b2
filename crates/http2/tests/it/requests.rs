//! Field sections that are valid requests, responses and trailers.

use crate::support::drive::{Conduct, Driven, Seen};
use crate::support::wire::*;
use http::{BodySize, Method};
use http2::Options;

type Fields<'a> = &'a [(&'a str, &'a str)];

fn serve(fields: Fields<'_>, flags: u8) -> Driven {
    let mut driven = Driven::server(Options { connect_protocol: true, ..Options::default() }, Conduct::Keeps);
    driven.feed(&[client_start(), headers(1, flags, fields)].concat());
    assert_eq!(driven.error, None);
    assert_eq!(driven.seen.remove(0), Seen::Settings);
    driven
}

/// The reason that a request is malformed; empty for a valid one.
fn reason(fields: Fields<'_>, flags: u8) -> &'static str {
    match &serve(fields, flags).seen[..] {
        [Seen::Aborted { reason, .. }] => reason,
        [Seen::Head { .. } | Seen::Refused { .. }] => "",
        other => panic!("{other:?}"),
    }
}

fn pairs(fields: Fields<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

#[test]
fn request_head_is_equivalent_to_an_http1_head() {
    let driven =
        serve(&[&POST[..], &[("content-length", "5"), ("expect", "100-continue"), ("x", "y")]].concat(), 0);
    let head = &driven.machine.head;
    let bytes = driven.machine.head_bytes();
    assert_eq!((head.method, head.method_name.of(bytes)), (Method::Post, &b"POST"[..]));
    assert_eq!((head.target.path(bytes), head.authority.of(bytes)), (&b"/"[..], &b"a.test"[..]));
    assert_eq!((head.body, head.expects_continue), (BodySize::Known(5), true));
    assert_eq!(head.field(bytes, http::Name::Host), Some(&b"a.test"[..]));
    let expected = [("host", "a.test"), ("content-length", "5"), ("expect", "100-continue"), ("x", "y")];
    let [Seen::Head { fields, ended: false, .. }] = &driven.seen[..] else { panic!("{:?}", driven.seen) };
    assert_eq!(*fields, pairs(&expected));
    for field in &head.fields {
        assert_eq!(
            &bytes[field.name.end()..field.value.start()],
            b": ",
            "a relay copies name and value at once"
        );
    }
}

#[test]
fn body_size_follows_end_stream_and_content_length() {
    for (flags, length, expected) in [
        (END_STREAM, None, BodySize::None),
        (END_STREAM, Some("0"), BodySize::None),
        (0, Some("0"), BodySize::None),
        (0, Some("7"), BodySize::Known(7)),
        (0, None, BodySize::Unknown),
    ] {
        let length = length.map(|length| ("content-length", length));
        let fields: Vec<_> = POST.into_iter().chain(length).collect();
        assert_eq!(serve(&fields, flags).machine.head.body, expected);
    }
}

#[test]
fn split_cookie_fields_are_joined() {
    let crumbs = [("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")];
    let driven = serve(&[&GET[..], &crumbs].concat(), END_STREAM);
    let [Seen::Head { fields, .. }] = &driven.seen[..] else { panic!("{:?}", driven.seen) };
    assert_eq!(*fields, pairs(&[("host", "a.test"), ("cookie", "a=1; b=2; c=3"), ("x", "y")]));
}

#[test]
fn optional_and_repeated_fields_are_accepted() {
    let host = [(":method", "GET"), (":scheme", "https"), (":path", "/x?y"), ("host", "A.test:80")];
    let driven = serve(&host, END_STREAM);
    let head = &driven.machine.head;
    let bytes = driven.machine.head_bytes();
    assert_eq!((head.authority.of(bytes), driven.machine.is_https), (&b"A.test:80"[..], true));
    assert_eq!(head.target.query.map(|query| query.of(bytes)), Some(&b"y"[..]));
    for more in [
        &[("host", "A.TEST")][..],
        &[("te", "trailers")],
        &[("te", "Trailers")],
        &[("x", "1"), ("x", "2")],
        &[("priority", "u=9, i")],
        &[("x", "")],
        &[("x", "caf\u{e9}")],
    ] {
        assert_eq!(reason(&[&GET[..], more].concat(), END_STREAM), "", "{more:?}");
    }
    let options = [(":method", "OPTIONS"), (":scheme", "http"), (":authority", "a"), (":path", "*")];
    assert_eq!(reason(&options, END_STREAM), "");
}

#[test]
fn invalid_request_fields_are_rejected() {
    for (more, expected) in [
        (("connection", "close"), "field of a connection"),
        (("keep-alive", "5"), "field of a connection"),
        (("proxy-connection", "close"), "field of a connection"),
        (("transfer-encoding", "chunked"), "field of a connection"),
        (("upgrade", "h2c"), "field of a connection"),
        (("te", "gzip"), "te other than trailers"),
        (("te", "trailers, gzip"), "te other than trailers"),
        (("X-Upper", "1"), "invalid byte in a field"),
        (("x y", "1"), "invalid byte in a field"),
        (("", "1"), "invalid byte in a field"),
        (("x", " 1"), "invalid byte in a field"),
        (("x", "1\t"), "invalid byte in a field"),
        (("x", "a\r\nb: c"), "invalid byte in a field"),
        (("x", "a\0"), "invalid byte in a field"),
        ((":path", "/b"), "repeated pseudo-header field"),
        ((":status", "200"), "unknown pseudo-header field"),
        (("host", "b.test"), ":authority and Host differ"),
        (("host", "a b"), "invalid Host"),
        (("host", "a..b"), "invalid Host"),
        (("content-length", "+1"), "invalid Content-Length"),
        (("content-length", "1, 1"), "repeated Content-Length"),
        (("content-length", "1, 2"), "different Content-Lengths"),
        (("content-length", "1"), "content-length without content"),
    ] {
        assert_eq!(reason(&[&GET[..], &[more]].concat(), END_STREAM), expected, "{more:?}");
    }
    let twice = [("content-length", "1"), ("content-length", "1")];
    assert_eq!(reason(&[&POST[..], &twice].concat(), 0), "repeated Content-Length");
    let twice = [("authorization", "Basic dTpw"), ("authorization", "Basic eDp5")];
    assert_eq!(reason(&[&GET[..], &twice].concat(), END_STREAM), "repeated Authorization");
    let late = [(":method", "GET"), (":scheme", "http"), ("x", "y"), (":path", "/")];
    assert_eq!(reason(&late, END_STREAM), "pseudo-header field after other fields");
}

#[test]
fn invalid_pseudo_header_fields_are_rejected() {
    for (method, scheme, authority, path, expected) in [
        ("", "http", "a", "/", "request without :method"),
        ("G T", "http", "a", "/", "invalid method"),
        ("GET", "", "a", "/", "request without :scheme"),
        ("GET", "ftp", "a", "/", "unknown scheme"),
        ("GET", "http", "a", "", "request without :path"),
        ("GET", "http", "a", "x", "invalid path"),
        ("GET", "http", "a", "http://a/", "invalid path"),
        ("GET", "http", "a", "/a b", "invalid path"),
        ("GET", "http", "a", "/a#b", "invalid path"),
        ("GET", "http", "a", "*", "target * needs OPTIONS"),
        ("GET", "http", "", "/", "request without :authority and Host"),
        ("GET", "http", "u@a", "/", "invalid :authority"),
        ("GET", "http", "a/b", "/", "invalid :authority"),
        ("CONNECT", "http", "a:1", "/", "CONNECT with :scheme or :path"),
        ("CONNECT", "", "", "", "CONNECT without :authority"),
        ("CONNECT", "", "a", "", "CONNECT needs host:port"),
        ("CONNECT", "", "a:1", "", ""),
    ] {
        let all = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)];
        let fields: Vec<_> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        assert_eq!(reason(&fields, END_STREAM), expected, "{all:?}");
    }
    let empty = [&GET[..2], &[(":path", "/"), (":authority", "")]].concat();
    assert_eq!(reason(&empty, END_STREAM), "invalid :authority");
}

#[test]
fn extended_connect_is_accepted_only_when_enabled() {
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "a.test"),
    ];
    let driven = serve(&websocket, 0);
    let (machine, bytes) = (&driven.machine, driven.machine.head_bytes());
    assert_eq!(machine.protocol.map(|protocol| protocol.of(bytes)), Some(&b"websocket"[..]));
    assert_eq!((machine.head.method, machine.head.target.path(bytes)), (Method::Connect, &b"/chat"[..]));
    assert_eq!(machine.head.body, BodySize::Unknown);
    assert_eq!(reason(&[&GET[..], &[]].concat(), END_STREAM), "");
    assert_eq!(
        reason(&[&[(":protocol", "websocket")], &GET[..]].concat(), END_STREAM),
        ":protocol without CONNECT"
    );
    let mut plain = Driven::server(Options::default(), Conduct::Keeps);
    plain.feed(&[client_start(), headers(1, 0, &websocket)].concat());
    assert!(matches!(plain.seen[1], Seen::Aborted { reason: "extended CONNECT is not enabled", .. }));
}

#[test]
fn requests_above_limits_get_an_error_response() {
    let long = format!("/{}", "x".repeat(200));
    let mut options = Options::default();
    options.head.start_line_bytes_max = 100;
    options.head.head_bytes_max = 1000;
    options.head.fields_max = 10;
    let refused = |fields: Fields<'_>| {
        let mut driven = Driven::server(options, Conduct::Serves);
        driven.feed(&[client_start(), headers(1, 0, fields), frame(DATA, 0, 1, b"dropped")].concat());
        let frames = driven.sent();
        assert!(frames.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (HEADERS, 1)), "it is answered");
        assert_eq!(frames.last().map(|(kind, ..)| *kind), Some(RST_STREAM), "its body is not wanted");
        match &driven.seen[..] {
            [Seen::Settings, Seen::Refused { status, .. }] => *status,
            other => panic!("{other:?}"),
        }
    };
    let path = [(":method", "PUT"), (":scheme", "http"), (":authority", "a"), (":path", &long[..])];
    assert_eq!(refused(&path), 414);
    assert_eq!(refused(&[&POST[..], &[("expect", "other")]].concat()), 417);
    assert_eq!(refused(&[&POST[..], &[("x", "y"); 12]].concat()), 431);
    let value = "v".repeat(230);
    assert_eq!(refused(&[&POST[..], &[("x", &value[..]); 6]].concat()), 431);
}

fn respond(fields: Fields<'_>, flags: u8, method: &[u8]) -> Driven {
    let mut driven = Driven::client(Options::default());
    let line = http2::RequestLine { method, scheme: b"http", authority: b"a:1", path: b"/", protocol: None };
    drop(driven.machine.request(&line, true, &mut driven.out).unwrap());
    driven.feed(&[server_start(), headers(1, flags, fields)].concat());
    driven.seen.remove(0);
    driven
}

#[test]
fn responses_with_invalid_status_or_length_are_rejected() {
    let driven = respond(&[(":status", "404"), ("server", "x")], END_STREAM, b"GET");
    let expected = Seen::Head { stream: 1, status: 404, fields: pairs(&[("server", "x")]), ended: true };
    assert_eq!(driven.seen, [expected]);
    for (fields, flags, method, expected) in [
        (&[("server", "x")][..], END_STREAM, "GET", "invalid :status"),
        (&[(":status", "20")], END_STREAM, "GET", "invalid :status"),
        (&[(":status", "2000")], END_STREAM, "GET", "invalid :status"),
        (&[(":status", "+20")], END_STREAM, "GET", "invalid :status"),
        (&[(":status", "101")], 0, "GET", "101 in HTTP/2"),
        (&[(":status", "103")], END_STREAM, "GET", "1xx ends the stream"),
        (
            &[(":status", "200"), (":status", "200")],
            END_STREAM,
            "GET",
            "pseudo-header field after other fields",
        ),
        (&[(":status", "200"), ("connection", "close")], END_STREAM, "GET", "field of a connection"),
        (&[(":status", "200"), ("content-length", "2")], END_STREAM, "GET", "content-length without content"),
        (&[(":status", "200"), ("content-length", "2")], END_STREAM, "HEAD", ""),
        (&[(":status", "304"), ("content-length", "2")], END_STREAM, "GET", ""),
        (&[(":status", "103")], 0, "GET", ""),
    ] {
        match &respond(fields, flags, method.as_bytes()).seen[..] {
            [Seen::Aborted { reason, .. }] => assert_eq!(*reason, expected, "{fields:?}"),
            [Seen::Head { .. }] => assert_eq!("", expected, "{fields:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn content_must_match_its_content_length() {
    for (length, contents, trailers, expected) in [
        ("3", &["ab", "c"][..], false, ""),
        ("3", &["abc", ""], false, ""),
        ("3", &["ab"], false, "content-length is not the content's"),
        ("3", &["abcd"], false, "content-length is not the content's"),
        ("3", &["abc"], true, ""),
        ("3", &["ab"], true, "content shorter than content-length"),
    ] {
        let mut driven = Driven::server(Options::default(), Conduct::Keeps);
        driven.feed(&[client_start(), post(1, &[("content-length", length)])].concat());
        for (at, content) in contents.iter().enumerate() {
            let ends = at + 1 == contents.len() && !trailers;
            driven.feed(&frame(DATA, if ends { END_STREAM } else { 0 }, 1, content.as_bytes()));
        }
        if trailers {
            driven.feed(&headers(1, END_STREAM, &[("x", "y")]));
        }
        let reason = match driven.seen.last() {
            Some(Seen::Aborted { reason, .. }) => reason,
            _ => "",
        };
        assert_eq!(reason, expected, "{length} {contents:?}");
    }
}

#[test]
fn trailers_are_validated_and_control_fields_dropped() {
    for (fields, flags, expected) in [
        (
            &[("grpc-status", "0"), ("host", "b"), ("content-length", "1"), ("cookie", "a")][..],
            END_STREAM,
            "",
        ),
        (&[("x", "y")], 0, "trailers without the end of the stream"),
        (&[(":path", "/")], END_STREAM, "pseudo-header field in trailers"),
        (&[("X", "y")], END_STREAM, "invalid byte in a field"),
    ] {
        let mut driven = Driven::server(Options::default(), Conduct::Keeps);
        driven.feed(
            &[client_start(), post(1, &[]), frame(DATA, 0, 1, b"a"), headers(1, flags, fields)].concat(),
        );
        match driven.seen.last() {
            Some(Seen::Trailers { fields, .. }) => {
                assert_eq!((&fields[..], ""), (&pairs(&[("grpc-status", "0")])[..], expected));
            }
            Some(Seen::Aborted { reason, .. }) => assert_eq!(*reason, expected),
            other => panic!("{other:?}"),
        }
    }
}
