//! Request streams (RFC 9114 section 4).

use http3::error::ErrorScope;
use http3::{Http3Code, MessageEvent, MessageStream, Options};

use crate::rig::{GET, Pair, Received, frame, headers, lines, receive};

const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/"), ("x-a", "b")];

/// A request with content in two frames, an unknown frame, and trailers.
fn whole_request(pair: &mut Pair) -> Vec<u8> {
    let mut stream = pair.request(0, POST);
    stream.extend(frame(0x21, b"grease"));
    stream.extend(frame(0, b"hello "));
    stream.extend(frame(0, b""));
    stream.extend(frame(0, b"world"));
    stream.extend(headers(&mut pair.client, 0, &[("x-sum", "11")]));
    stream
}

#[test]
fn request_is_read_alike_whole_and_cut_everywhere() {
    let options = Options { table_bytes_max: 0, ..Options::default() };
    let mut pair = Pair::new(options);
    let stream = whole_request(&mut pair);
    let whole = receive(&mut pair.server, 0, &[&stream]).unwrap();
    let expected = Received {
        head: vec!["host: a.test".into(), "x-a: b".into()],
        content: b"hello world".to_vec(),
        trailers: vec!["x-sum: 11".into()],
        ..Received::default()
    };
    assert_eq!(whole, expected);
    for cut in 0..=stream.len() {
        let (first, rest) = stream.split_at(cut);
        assert_eq!(receive(&mut pair.server, 0, &[first, rest]).unwrap(), whole, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(receive(&mut pair.server, 0, &bytes).unwrap(), whole);
}

#[test]
fn request_that_ends_with_its_head_has_no_content() {
    let mut pair = Pair::new(Options::default());
    let request = pair.request(0, GET);
    pair.exchange();
    let received = receive(&mut pair.server, 0, &[&request]).unwrap();
    assert!(received.ended_with_head);
    assert_eq!(received.head, ["host: a.test"]);
    assert_eq!(pair.server.head.method, http::Method::Get);
    assert_eq!(pair.server.head.version, http::Version::Http3);
    assert!(pair.server.is_https);
}

/// Sections 4.1, 7.2 and 7.2.8.
#[test]
fn frames_in_a_wrong_place_end_the_connection() {
    let mut pair = Pair::new(Options { table_bytes_max: 0, ..Options::default() });
    let head = pair.request(0, POST);
    let trailers = headers(&mut pair.client, 0, &[("x-sum", "1")]);
    let after_head = |kind: u64| [head.clone(), frame(kind, b"\0")].concat();
    let after_trailers = |last: Vec<u8>| [head.clone(), trailers.clone(), last].concat();
    for (stream, why) in [
        (frame(0, b"a"), "DATA before HEADERS"),
        (after_trailers(frame(0, b"a")), "DATA after trailers"),
        (after_trailers(trailers.clone()), "HEADERS after trailers"),
        (after_head(0x2), "PRIORITY of HTTP/2"),
        (after_head(0x6), "PING of HTTP/2"),
        (after_head(0x8), "WINDOW_UPDATE of HTTP/2"),
        (after_head(0x9), "CONTINUATION of HTTP/2"),
        (after_head(0x3), "CANCEL_PUSH"),
        (after_head(0x4), "SETTINGS"),
        (after_head(0x5), "PUSH_PROMISE of a client"),
        (after_head(0x7), "GOAWAY"),
        (after_head(0xd), "MAX_PUSH_ID"),
        (after_head(0xf_0700), "PRIORITY_UPDATE"),
    ] {
        let error = receive(&mut pair.server, 0, &[&stream]).expect_err(why);
        assert_eq!((error.scope, error.code), (ErrorScope::Connection, Http3Code::FRAME_UNEXPECTED), "{why}");
    }
    let received = receive(&mut pair.server, 0, &[&after_trailers(frame(0x21, b"a"))]).unwrap();
    assert_eq!(received.trailers, ["x-sum: 1"], "unknown frames may follow");
}

/// Section 7.1.
#[test]
fn stream_that_ends_in_a_frame_ends_the_connection() {
    let mut pair = Pair::new(Options { table_bytes_max: 0, ..Options::default() });
    let head = pair.request(0, POST);
    let data = frame(0, b"hello");
    for len in 1..head.len() + data.len() {
        if len == head.len() {
            continue;
        }
        let stream = [head.clone(), data.clone()].concat();
        let error = receive(&mut pair.server, 0, &[&stream[..len]]).unwrap_err();
        assert_eq!((error.scope, error.code), (ErrorScope::Connection, Http3Code::FRAME_ERROR), "{len}");
    }
    let error = receive(&mut pair.server, 0, &[b""]).unwrap_err();
    assert_eq!((error.scope, error.code), (ErrorScope::Stream, Http3Code::REQUEST_INCOMPLETE));
}

/// Sections 4.1.2, 4.2, 4.3 and 4.4: malformed messages.
#[test]
fn malformed_requests_end_their_stream() {
    let line = |name, value| (name, value);
    let without = |name: &str| -> Vec<(&str, &str)> {
        GET.iter().copied().filter(|(other, _)| *other != name).collect()
    };
    let with = |name, value| [GET, &[line(name, value)]].concat();
    for (fields, why) in [
        (without(":method"), "no :method"),
        (without(":scheme"), "no :scheme"),
        (without(":path"), "no :path"),
        (without(":authority"), "no authority"),
        (with(":path", "/b"), "a repeated pseudo-header field"),
        (with(":status", "200"), "a pseudo-header field of responses"),
        (with("te", "gzip"), "TE"),
        (with("content-length", "5"), "content that does not follow"),
        (with("host", "b.test"), "Host that differs from :authority"),
    ] {
        let mut pair = Pair::new(Options::default());
        let stream = pair.request(0, &fields);
        pair.exchange();
        let error = receive(&mut pair.server, 0, &[&stream]).expect_err(why);
        assert_eq!((error.scope, error.code), (ErrorScope::Stream, Http3Code::MESSAGE_ERROR), "{why}");
    }
}

/// Section 4.1.2.
#[test]
fn content_must_be_as_long_as_content_length_says() {
    let fields = [POST, &[("content-length", "5")]].concat();
    for (content, ends) in [(&["hel", "lo"][..], true), (&["hell"], false), (&["hello", "!"], false)] {
        let mut pair = Pair::new(Options { table_bytes_max: 0, ..Options::default() });
        let mut stream = pair.request(0, &fields);
        content.iter().for_each(|piece| stream.extend(frame(0, piece.as_bytes())));
        let received = receive(&mut pair.server, 0, &[&stream]);
        match received {
            Ok(received) => assert!(ends && received.content == b"hello", "{content:?}"),
            Err(error) => {
                assert!(!ends, "{content:?}");
                assert_eq!((error.scope, error.code), (ErrorScope::Stream, Http3Code::MESSAGE_ERROR));
            }
        }
    }
}

#[test]
fn head_above_the_limit_is_refused_and_its_content_dropped() {
    let mut options = Options { table_bytes_max: 0, ..Options::default() };
    options.head.head_bytes_max = 4_000;
    options.head.fields_max = 10;
    for size in [5_000, 100_000] {
        let mut pair = Pair::new(options);
        let value = "a".repeat(size);
        let mut stream = pair.request(0, &[POST, &[("x-long", value.as_str())]].concat());
        stream.extend(frame(0, b"content"));
        for cut in [1, 10, stream.len() / 2, stream.len() - 3, stream.len()] {
            let (first, rest) = stream.split_at(cut);
            let received = receive(&mut pair.server, 0, &[first, rest]).unwrap();
            assert_eq!(received.refused, Some(431), "{size} bytes cut at {cut}");
            assert!(received.content.is_empty());
        }
    }
}

#[test]
fn frames_of_unknown_types_are_bounded() {
    let mut pair = Pair::new(Options::default());
    let head = pair.request(0, GET);
    let mut stream = MessageStream::new(0);
    pair.server.feed(&mut stream, &head, false).unwrap();
    let grease = frame(0x21, b"");
    let mut count = 0;
    let error = loop {
        match pair.server.feed(&mut stream, &grease, false) {
            Ok((consumed, event)) => assert_eq!((consumed, event), (grease.len(), MessageEvent::NeedMore)),
            Err(error) => break error,
        }
        count += 1;
        assert!(count < 1_000_000);
    };
    assert_eq!(error.code, Http3Code::EXCESSIVE_LOAD);
}

#[test]
fn blocked_request_is_read_when_its_entries_arrive() {
    let mut pair = Pair::new(Options::default());
    let request = pair.request(0, &[GET, &[("x-custom", "a value of some length")]].concat());
    let mut stream = MessageStream::new(0);
    let fed = pair.server.feed(&mut stream, &request, true).unwrap();
    assert_eq!(fed, (request.len(), MessageEvent::Blocked), "the encoder stream has not arrived");
    assert_eq!(pair.server.retry(&mut stream, true).unwrap(), MessageEvent::Blocked);
    pair.exchange();
    assert_eq!(pair.server.retry(&mut stream, true).unwrap(), MessageEvent::Head { ended: true });
    assert_eq!(lines(&pair.server), ["host: a.test", "x-custom: a value of some length"]);
    assert!(!stream.is_blocked());
    pair.server.finish(&stream).unwrap();
}

/// RFC 9204 section 2.1.2.
#[test]
fn blocked_streams_above_the_limit_end_the_connection() {
    let mut pair = Pair::new(Options::default());
    // The client believes in a higher limit than the server has.
    let options = Options { blocked_streams_max: 3, ..Options::default() };
    let mut server = http3::Connection::server(options);
    let mut streams = Vec::new();
    let mut count = 0;
    let error = loop {
        let id = count * 4;
        let request = pair.request(id, &[GET, &[("x-custom", "a value of some length")]].concat());
        let mut stream = MessageStream::new(id);
        match server.feed(&mut stream, &request, true) {
            Ok((_, event)) => assert_eq!(event, MessageEvent::Blocked),
            Err(error) => break error,
        }
        streams.push(stream);
        count += 1;
        assert!(count < 10);
    };
    assert_eq!((count, error.code), (3, Http3Code::QPACK_DECOMPRESSION_FAILED));
    // Streams that are abandoned make room.
    server.abandon(&mut streams[0]).unwrap();
    let request = pair.request(40, GET);
    let mut stream = MessageStream::new(40);
    assert!(server.feed(&mut stream, &request, true).is_ok());
}

/// RFC 9204 section 2.2.2: the client decides whether a section of a stream that the server has abandoned is
/// acknowledged or cancelled.
#[test]
fn section_of_an_abandoned_request_may_be_acknowledged() {
    let mut pair = Pair::new(Options::default());
    for id in [0, 4, 8] {
        let mut request = MessageStream::new(id);
        let bytes = pair.request(id, &[GET, &[("content-length", "5")]].concat());
        pair.server.feed(&mut request, &bytes, false).unwrap();
        let response =
            headers(&mut pair.server, id, &[(":status", "405"), ("x-reason", "a value of some length")]);
        pair.server.abandon(&mut request).unwrap();
        pair.exchange();
        let mut stream = MessageStream::new(id);
        let (_, event) = pair.client.feed(&mut stream, &response, true).unwrap();
        assert_eq!(event, MessageEvent::Head { ended: true });
        pair.client.finish(&stream).unwrap();
        pair.exchange();
    }
}

#[test]
fn responses_with_interim_heads_content_and_trailers_are_read() {
    let mut pair = Pair::new(Options { table_bytes_max: 0, ..Options::default() });
    let mut stream = MessageStream::new(0);
    let mut bytes = headers(&mut pair.server, 0, &[(":status", "103"), ("link", "</a>; rel=preload")]);
    let interim = bytes.len();
    bytes.extend(headers(&mut pair.server, 0, &[(":status", "200"), ("content-length", "2")]));
    bytes.extend(frame(0, b"hi"));
    bytes.extend(headers(&mut pair.server, 0, &[("x-sum", "2")]));
    let (consumed, event) = pair.client.feed(&mut stream, &bytes, false).unwrap();
    assert_eq!((consumed, event), (interim, MessageEvent::Head { ended: false }));
    assert_eq!((pair.client.status.code(), lines(&pair.client).len()), (103, 1));
    let mut at = consumed;
    let mut events = Vec::new();
    while at < bytes.len() {
        let (consumed, event) = pair.client.feed(&mut stream, &bytes[at..], true).unwrap();
        at += consumed;
        events.push(event);
    }
    assert!(matches!(
        events[..],
        [MessageEvent::Head { ended: false }, MessageEvent::Data(_), MessageEvent::Trailers]
    ));
    assert_eq!(pair.client.status.code(), 200);
    pair.client.finish(&stream).unwrap();
}

#[test]
fn response_to_head_may_have_a_length_without_content() {
    let mut pair = Pair::new(Options { table_bytes_max: 0, ..Options::default() });
    let bytes = headers(&mut pair.server, 0, &[(":status", "200"), ("content-length", "2")]);
    for (mut stream, is_whole) in [(MessageStream::of_head(0), true), (MessageStream::new(0), false)] {
        pair.client.feed(&mut stream, &bytes, true).unwrap();
        assert_eq!(pair.client.finish(&stream).is_ok(), is_whole);
    }
}

#[test]
fn extended_connect_needs_the_setting() {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/chat"),
    ];
    for connect_protocol in [true, false] {
        let mut pair = Pair::new(Options { connect_protocol, table_bytes_max: 0, ..Options::default() });
        assert_eq!(pair.client.peer_settings().connect_protocol, connect_protocol);
        let request = pair.request(0, &fields);
        let mut stream = MessageStream::new(0);
        let fed = pair.server.feed(&mut stream, &request, false);
        assert_eq!(fed.is_ok(), connect_protocol);
        let protocol = pair.server.protocol.map(|span| span.of(pair.server.head_bytes()).to_vec());
        assert_eq!(protocol, connect_protocol.then(|| b"websocket".to_vec()));
    }
}
