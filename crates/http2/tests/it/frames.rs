//! Effects of frames on a connection and its streams (RFC 9113 sections 3 to 6, RFC 9218).

use crate::support::drive::{Conduct, Driven, Seen};
use crate::support::wire::*;
use http2::{ErrorCode, NoStream, Options, Priority, RequestLine};

const LINE: RequestLine<'static> =
    RequestLine { method: b"GET", scheme: b"http", authority: b"a.test", path: b"/", protocol: None };

fn server(conduct: Conduct) -> Driven {
    let mut driven = Driven::server(Options::default(), conduct);
    driven.feed(&client_start());
    driven.sent();
    driven.seen.clear();
    driven
}

fn client(requests: usize) -> Driven {
    let mut driven = Driven::client(Options::default());
    driven.feed(&server_start());
    for _ in 0..requests {
        drop(driven.machine.request(&LINE, true, &mut driven.out).unwrap());
    }
    driven.sent();
    driven.seen.clear();
    driven
}

/// Frames that end the connection, sent by a client after an incomplete request on stream 1.
#[test]
fn invalid_frames_end_the_connection_with_goaway() {
    let get3 = block(&GET);
    for (bytes, code, reason) in [
        (frame(DATA, 0, 0, b"a"), ErrorCode::PROTOCOL_ERROR, "frame on a stream that it does not go with"),
        (frame(DATA, 0, 3, b"a"), ErrorCode::PROTOCOL_ERROR, "frame on an idle stream"),
        (frame(DATA, PADDED, 1, &[5, 0, 0]), ErrorCode::PROTOCOL_ERROR, "padding longer than its frame"),
        (frame(DATA, PADDED, 1, &[]), ErrorCode::FRAME_SIZE_ERROR, "padded frame without its padding"),
        (frame(DATA, 0, 1, &[0; 16_385]), ErrorCode::FRAME_SIZE_ERROR, "frame too large"),
        (
            frame(HEADERS, 5, 0, &get3),
            ErrorCode::PROTOCOL_ERROR,
            "frame on a stream that it does not go with",
        ),
        (frame(HEADERS, 5, 2, &get3), ErrorCode::PROTOCOL_ERROR, "frame on an idle stream"),
        (frame(HEADERS, 5 | PADDED, 3, &[9, 0]), ErrorCode::PROTOCOL_ERROR, "padding longer than its frame"),
        (frame(HEADERS, 5 | PADDED, 3, &[]), ErrorCode::FRAME_SIZE_ERROR, "padded frame without its padding"),
        (
            frame(HEADERS, 5 | PRIORITIZED, 3, &[0; 4]),
            ErrorCode::FRAME_SIZE_ERROR,
            "HEADERS without its priority",
        ),
        (frame(HEADERS, 5, 3, &[0xbf]), ErrorCode::COMPRESSION_ERROR, "index outside the tables"),
        (
            frame(PRIORITY, 0, 0, &[0; 5]),
            ErrorCode::PROTOCOL_ERROR,
            "frame on a stream that it does not go with",
        ),
        (frame(PRIORITY, 0, 9, &[0, 0, 0, 9, 0]), ErrorCode::PROTOCOL_ERROR, "stream depends on itself"),
        (frame(PRIORITY, 0, 9, &[0; 4]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (
            frame(RST_STREAM, 0, 0, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
            "frame on a stream that it does not go with",
        ),
        (frame(RST_STREAM, 0, 3, &[0; 4]), ErrorCode::PROTOCOL_ERROR, "frame on an idle stream"),
        (frame(RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (frame(SETTINGS, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR, "frame on a stream that it does not go with"),
        (frame(SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR, "settings of a wrong length"),
        (frame(SETTINGS, ACK, 0, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR, "acknowledgement with settings"),
        (settings(&[(4, 1 << 31)]), ErrorCode::FLOW_CONTROL_ERROR, "initial window too large"),
        (settings(&[(2, 2)]), ErrorCode::PROTOCOL_ERROR, "setting is neither 0 nor 1"),
        (frame(PUSH_PROMISE, 4, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR, "push is not enabled"),
        (frame(PING, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR, "frame on a stream that it does not go with"),
        (frame(PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (
            frame(GOAWAY, 0, 1, &[0; 8]),
            ErrorCode::PROTOCOL_ERROR,
            "frame on a stream that it does not go with",
        ),
        (frame(GOAWAY, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (window_update(0, 0), ErrorCode::PROTOCOL_ERROR, "window increment of 0"),
        (window_update(3, 1), ErrorCode::PROTOCOL_ERROR, "frame on an idle stream"),
        (frame(WINDOW_UPDATE, 0, 0, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (window_update(0, 0x7fff_ffff), ErrorCode::FLOW_CONTROL_ERROR, "window too large"),
        (frame(CONTINUATION, 4, 1, &[]), ErrorCode::PROTOCOL_ERROR, "CONTINUATION without HEADERS"),
        (
            [frame(HEADERS, 1, 3, &get3), frame(CONTINUATION, 4, 5, &[])].concat(),
            ErrorCode::PROTOCOL_ERROR,
            "header block is interrupted",
        ),
        (
            [frame(HEADERS, 1, 3, &get3), frame(99, 0, 0, &[])].concat(),
            ErrorCode::PROTOCOL_ERROR,
            "header block is interrupted",
        ),
        (
            frame(PRIORITY_UPDATE, 0, 1, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
            "frame on a stream that it does not go with",
        ),
        (frame(PRIORITY_UPDATE, 0, 0, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (
            frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 2]),
            ErrorCode::PROTOCOL_ERROR,
            "priority of a stream that no client opens",
        ),
    ] {
        let mut driven = server(Conduct::Keeps);
        driven.feed(&[post(1, &[]), bytes].concat());
        assert_eq!(driven.error.map(|error| (error.code, error.reason)), Some((code, reason)));
        let (kind, _, stream, payload) = driven.sent().pop().unwrap();
        assert_eq!(
            (kind, stream, &payload[..8]),
            (GOAWAY, 0, &[[0, 0, 0, payload[3]], code.0.to_be_bytes()].concat()[..])
        );
        assert_eq!(&payload[8..], reason.as_bytes());
    }
}

#[test]
fn a_connection_begins_with_the_preface_and_settings() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nXX",
        &[PREFACE, &frame(PING, 0, 0, &[0; 8])].concat(),
    ] {
        let mut driven = Driven::server(Options::default(), Conduct::Keeps);
        driven.feed(bytes);
        assert_eq!(driven.error.map(|error| error.code), Some(ErrorCode::PROTOCOL_ERROR));
    }
    let mut driven = Driven::server(Options::default(), Conduct::Keeps);
    assert!(driven.machine.is_reading_head());
    driven.feed(&client_start());
    assert!(driven.machine.settings_acked() && !driven.machine.is_reading_head());
    let frames = driven.sent();
    assert_eq!(
        frames.iter().map(|frame| (frame.0, frame.1)).collect::<Vec<_>>(),
        [(SETTINGS, 0), (WINDOW_UPDATE, 0), (SETTINGS, ACK)]
    );
    assert!(
        frames[0].3.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 128]),
        "streams are limited at once"
    );
    let mut driven = Driven::client(Options::default());
    driven.feed(&frame(PING, 0, 0, &[0; 8]));
    assert_eq!(driven.reason(), "first frame is not SETTINGS");
    assert!(driven.out.starts_with(PREFACE));
}

/// Frames that end one stream and leave the others: the request on stream 1 is incomplete.
#[test]
fn stream_errors_reset_only_their_own_stream() {
    for (bytes, code, reason) in [
        (window_update(1, 0), ErrorCode::PROTOCOL_ERROR, "window increment of 0"),
        (window_update(1, 0x7fff_ffff), ErrorCode::FLOW_CONTROL_ERROR, "window too large"),
        (frame(PRIORITY, 0, 1, &[0; 4]), ErrorCode::FRAME_SIZE_ERROR, "frame of a wrong length"),
        (frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0]), ErrorCode::PROTOCOL_ERROR, "stream depends on itself"),
        (
            [frame(DATA, END_STREAM, 1, b"a"), frame(DATA, 0, 1, b"b")].concat(),
            ErrorCode::STREAM_CLOSED,
            "DATA after the end",
        ),
        (
            [frame(DATA, END_STREAM, 1, b"a"), get(1)].concat(),
            ErrorCode::STREAM_CLOSED,
            "HEADERS after the end",
        ),
        (
            (0..5).flat_map(|_| frame(DATA, 0, 1, &[0; 16_384])).collect(),
            ErrorCode::FLOW_CONTROL_ERROR,
            "more DATA than the window",
        ),
    ] {
        let mut driven = server(Conduct::Keeps);
        driven.feed(&[post(1, &[]), bytes, get(3)].concat());
        assert_eq!(driven.error, None, "{reason}");
        assert!(driven.seen.contains(&Seen::Aborted { stream: 1, code, reason }), "{:?}", driven.seen);
        assert!(
            matches!(driven.seen.last(), Some(Seen::Head { stream: 3, .. })),
            "{reason}: the next request is served"
        );
        assert!(driven.sent().contains(&(RST_STREAM, 0, 1, code.0.to_be_bytes().to_vec())));
    }
}

#[test]
fn late_frames_after_a_server_reset_are_tolerated() {
    // After a reset by the server, the peer may still send any frame; its DATA counts towards the
    // connection's window.
    let mut driven = server(Conduct::Hurries);
    driven.feed(&post(1, &[]));
    let late = [
        frame(DATA, 0, 1, &[0; 9000]),
        headers(1, END_STREAM, &[("x", "y")]),
        window_update(1, 1),
        frame(RST_STREAM, 0, 1, &[0; 4]),
    ];
    for _ in 0..20 {
        driven.feed(&late.concat());
    }
    assert_eq!(driven.error, None);
    let windows: u32 = driven
        .sent()
        .iter()
        .filter(|frame| frame.0 == WINDOW_UPDATE)
        .map(|frame| u32::from_be_bytes(frame.3[..].try_into().unwrap()))
        .sum();
    assert!(windows >= 128 * 1024, "{windows} of 180,000 bytes are given back by halves of the window");
    // After its own reset, the peer must not send frames.
    for conduct in [Conduct::Keeps, Conduct::Serves] {
        let mut driven = server(conduct);
        driven
            .feed(&[post(1, &[]), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), frame(DATA, 0, 1, b"x")].concat());
        let reset = (RST_STREAM, 0, 1, ErrorCode::STREAM_CLOSED.0.to_be_bytes().to_vec());
        assert!(driven.error.is_none() && driven.sent().contains(&reset));
        driven.feed(&[post(3, &[]), frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]), get(3)].concat());
        assert_eq!(driven.error.map(|error| error.code), Some(ErrorCode::STREAM_CLOSED));
    }
    // On a stream that ended normally, HEADERS end the connection.
    let mut driven = server(Conduct::Serves);
    driven.feed(
        &[get(1), frame(RST_STREAM, 0, 1, &[0; 4]), window_update(1, 1), frame(PRIORITY, 0, 1, &[0; 5])]
            .concat(),
    );
    assert_eq!(driven.error, None);
    driven.feed(&get(1));
    assert_eq!(driven.reason(), "HEADERS on a closed stream");
}

#[test]
fn padded_and_continued_frames_are_read() {
    let block = block(&GET);
    let (first, rest) = block.split_at(10);
    let (second, third) = rest.split_at(20);
    let mut padded = vec![3, 0, 0, 0, 0, 7];
    padded.extend_from_slice(first);
    padded.extend([0; 3]);
    let mut driven = server(Conduct::Keeps);
    driven.feed(&frame(HEADERS, END_STREAM | PADDED | PRIORITIZED, 1, &padded));
    assert!(driven.machine.is_reading_head() && driven.seen.is_empty());
    driven.feed(&[frame(CONTINUATION, 0, 1, second), frame(CONTINUATION, END_HEADERS, 1, third)].concat());
    assert!(matches!(driven.seen[..], [Seen::Head { stream: 1, ended: true, .. }]), "{:?}", driven.seen);
    driven.feed(&[post(3, &[]), frame(DATA, PADDED | END_STREAM, 3, b"\x04ok\0\0\0\0"), get(5)].concat());
    assert_eq!(driven.seen[2], Seen::Data { stream: 3, content: b"ok".to_vec(), ended: true });
    assert!(matches!(driven.seen[3], Seen::Head { stream: 5, .. }));
}

#[test]
fn flow_control_windows_follow_settings_and_updates() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[settings(&[(4, 10)]), get(1)].concat());
    assert!(driven.machine.respond(1, http::Status::OK, false, &mut driven.out).is_some());
    let content = [b'x'; 40_000];
    assert_eq!(driven.machine.data(1, &content, true, &mut driven.out), 10);
    assert_eq!(driven.machine.sendable(1), 0);
    driven.seen.clear();
    driven.feed(&[settings(&[(4, 5)]), window_update(1, 5)].concat());
    assert_eq!((driven.machine.sendable(1), &driven.seen[..]), (0, &[Seen::Settings][..]));
    driven.feed(&window_update(1, 70_000));
    assert_eq!(driven.seen[1], Seen::Writable { stream: 1 });
    driven.out.clear();
    assert_eq!(driven.machine.data(1, &content, true, &mut driven.out), 40_000);
    let sizes: Vec<_> = driven.sent().iter().map(|(_, flags, _, payload)| (*flags, payload.len())).collect();
    assert_eq!(sizes, [(0, 16_384), (0, 16_384), (END_STREAM, 7232)]);
    // The connection's window limits all streams together.
    driven.feed(&get(3));
    assert!(driven.machine.respond(3, http::Status::OK, false, &mut driven.out).is_some());
    driven.feed(&window_update(3, 100_000));
    assert_eq!(driven.machine.data(3, &[0; 100_000], true, &mut driven.out), 65_535 - 40_010);
    driven.seen.clear();
    driven.feed(&window_update(0, 1));
    assert_eq!((&driven.seen[..], driven.machine.sendable(3)), (&[Seen::Writable { stream: 0 }][..], 1));
    // An overflow caused by the initial window affects all streams.
    driven.feed(&settings(&[(4, 0x7fff_ffff)]));
    assert_eq!(driven.reason(), "window too large");
}

#[test]
fn consumed_content_is_returned_by_window_updates() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[post(1, &[]), frame(DATA, 0, 1, &[0; 16_384]), frame(DATA, 0, 1, &[0; 16_384])].concat());
    assert!(driven.sent().is_empty());
    driven.machine.grant(1, 20_000);
    assert!(!driven.machine.wants_flush());
    driven.machine.grant(1, 12_768);
    driven.machine.flush(&mut driven.out);
    assert_eq!(driven.sent(), [(WINDOW_UPDATE, 0, 1, 32_768u32.to_be_bytes().to_vec())]);
    driven.machine.grow_window(1, 1 << 20);
    driven.machine.grow_window(0, 2 << 20);
    driven.machine.flush(&mut driven.out);
    let grown: Vec<_> = driven
        .sent()
        .iter()
        .map(|frame| (frame.2, u32::from_be_bytes(frame.3[..].try_into().unwrap())))
        .collect();
    assert_eq!(grown, [(1, (1 << 20) - 65_536), (0, (2 << 20) - 256 * 1024 + 32_768)]);
    let before = driven.machine.held_bytes();
    driven.feed(&frame(DATA, 0, 1, &[0; 10_000]));
    assert_eq!(driven.machine.held_bytes(), before + 10_000);
    driven.machine.release(1);
    assert!(driven.machine.held_bytes() < 8 * 1024, "{}", driven.machine.held_bytes());
}

#[test]
fn pings_are_acknowledged_and_own_acks_are_reported() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&frame(PING, 0, 0, b"12345678"));
    assert_eq!(driven.sent(), [(PING, ACK, 0, b"12345678".to_vec())]);
    driven.machine.ping(*b"abcdefgh");
    driven.feed(&frame(PING, ACK, 0, b"abcdefgh"));
    driven.feed(&frame(PING, ACK, 0, b"unasked!"));
    assert_eq!(driven.seen, [Seen::Pong]);
}

#[test]
fn graceful_shutdown_serves_requests_in_flight() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&get(1));
    driven.machine.shutdown();
    driven.feed(&get(3));
    let frames = driven.sent();
    assert_eq!((frames[0].0, &frames[0].3[..4]), (GOAWAY, &[0x7f, 0xff, 0xff, 0xff][..]));
    assert_eq!((frames[1].0, frames[1].1), (PING, 0));
    assert!(!driven.machine.is_drained());
    driven.feed(&frame(PING, ACK, 0, &frames[1].3));
    assert_eq!(driven.sent(), [(GOAWAY, 0, 0, vec![0, 0, 0, 3, 0, 0, 0, 0])]);
    // A request that crosses the second GOAWAY is ignored, with its body, but its header block is decoded.
    driven.feed(
        &[post(5, &[]), frame(DATA, 0, 5, b"a"), headers(5, END_STREAM, &[("x", "y")]), window_update(5, 9)]
            .concat(),
    );
    assert_eq!((driven.error, driven.seen.len()), (None, 2), "{:?}", driven.seen);
    driven.answer(1);
    assert!(!driven.machine.is_drained());
    driven.answer(3);
    assert!(driven.machine.is_drained());
}

#[test]
fn goaway_tells_the_client_which_streams_are_over() {
    let mut driven = client(3);
    driven.feed(&frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    assert_eq!(driven.seen, [Seen::GoAway { last_stream: 3, code: ErrorCode::NO_ERROR }]);
    assert_eq!(driven.machine.can_request(), Err(NoStream::Closing));
    driven.feed(&headers(5, END_STREAM, &[(":status", "200")]));
    driven.feed(&headers(3, END_STREAM, &[(":status", "200")]));
    assert!(
        matches!(driven.seen[1..], [Seen::Head { stream: 3, .. }]),
        "stream 5 is over: {:?}",
        driven.seen
    );
    driven.feed(&frame(GOAWAY, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0]));
    assert_eq!(driven.reason(), "GOAWAY takes back its last stream");
}

#[test]
fn client_respects_the_limits_of_the_server() {
    let mut driven = Driven::client(Options::default());
    driven.feed(&settings(&[(3, 1)]));
    drop(driven.machine.request(&LINE, true, &mut driven.out).unwrap());
    assert!(matches!(driven.machine.request(&LINE, true, &mut driven.out), Err(NoStream::Full)));
    driven.feed(&headers(1, END_STREAM, &[(":status", "204")]));
    let websocket = RequestLine { method: b"CONNECT", protocol: Some(b"websocket"), ..LINE };
    assert!(matches!(
        driven.machine.request(&websocket, false, &mut driven.out),
        Err(NoStream::NoConnectProtocol)
    ));
    driven.feed(&settings(&[(8, 1)]));
    drop(driven.machine.request(&websocket, false, &mut driven.out).unwrap());
    driven.feed(
        &[
            headers(3, 0, &[(":status", "103"), ("link", "a")]),
            headers(3, 0, &[(":status", "200")]),
            frame(DATA, 0, 3, b"x"),
        ]
        .concat(),
    );
    assert_eq!(driven.seen.last(), Some(&Seen::Data { stream: 3, content: b"x".to_vec(), ended: false }));
    for (bytes, reason) in [
        (headers(2, 0, &[(":status", "200")]), "frame on an idle stream"),
        (headers(5, 0, &[(":status", "200")]), "frame on an idle stream"),
        (frame(PUSH_PROMISE, 4, 3, &[0; 4]), "push is not enabled"),
        (settings(&[(2, 1)]), "server enables push"),
        (frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1]), "server sends PRIORITY_UPDATE"),
    ] {
        let mut driven = client(2);
        driven.feed(&bytes);
        assert_eq!(driven.reason(), reason);
    }
    let mut driven = client(1);
    driven.feed(&frame(DATA, 0, 1, b"x"));
    assert!(matches!(driven.seen[..], [Seen::Aborted { reason: "DATA before HEADERS", .. }]));
}

#[test]
fn priorities_apply_before_with_and_after_their_request() {
    let update =
        |stream: u8, value: &[u8]| frame(PRIORITY_UPDATE, 0, 0, &[&[0, 0, 0, stream], value].concat());
    let mut driven = server(Conduct::Keeps);
    let with = [&GET[..], &[("priority", "u=1, i")]].concat();
    driven.feed(&[headers(1, END_STREAM, &with), update(3, b"u=6"), headers(3, END_STREAM, &with)].concat());
    assert_eq!(driven.machine.priority(1), Priority { urgency: 1, is_incremental: true });
    assert_eq!(
        driven.machine.priority(3),
        Priority { urgency: 6, is_incremental: false },
        "the frame goes before the field"
    );
    driven.feed(&[update(1, b"u=0"), update(1, b"u=0"), update(99, b"i")].concat());
    let priority = Priority { urgency: 0, is_incremental: false };
    assert_eq!(
        driven.seen[2..],
        [Seen::Reprioritized { stream: 1, priority }],
        "what does not change is not reported"
    );
}

#[test]
fn large_head_is_split_into_continuation_frames() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&get(1));
    let mut fields = http::Fields::new();
    for at in 0..40 {
        fields.try_push(format!("x-{at}").as_bytes(), &[b'~'; 1000]).unwrap();
    }
    fields.try_push(b"Connection", b"close").unwrap();
    driven.machine.respond(1, http::Status::OK, true, &mut driven.out).unwrap().fields(&fields);
    let frames = driven.sent();
    let shape: Vec<_> =
        frames.iter().map(|(kind, flags, _, payload)| (*kind, *flags, payload.len() <= 16_384)).collect();
    assert_eq!(
        shape,
        [(HEADERS, END_STREAM, true), (CONTINUATION, 0, true), (CONTINUATION, END_HEADERS, true)]
    );
    let block: Vec<u8> = frames.into_iter().flat_map(|frame| frame.3).collect();
    let limits = http::Limits { head_bytes_max: 1 << 20, ..Default::default() };
    let mut decoded = http2::FieldBlock::default();
    http2::HpackDecoder::new(4096).decode(&block, &mut decoded, &limits).unwrap();
    assert_eq!(decoded.fields.len(), 41, "the field of a connection is left out");
}

#[test]
fn calls_on_a_closed_stream_have_no_effect() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[get(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat());
    let machine = &mut driven.machine;
    assert!(machine.respond(1, http::Status::OK, true, &mut driven.out).is_none());
    assert_eq!(machine.data(1, b"x", true, &mut driven.out), 0);
    assert!(!machine.send_trailers(1, &http::Fields::new(), &mut driven.out));
    machine.reset(1, ErrorCode::CANCEL);
    machine.release(1);
    machine.release(1);
    machine.grant(1, 10);
    assert!(driven.sent().is_empty() && driven.machine.stream_count() == 0);
    // A stream released early is reset; with a complete response, the rest of the request is not needed.
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[get(1), post(3, &[]), get(5)].concat());
    drop(driven.machine.respond(3, http::Status::OK, true, &mut driven.out));
    assert!(driven.machine.respond(5, http::Status::OK, false, &mut driven.out).is_some());
    let mut trailers = http::Fields::new();
    trailers.try_push(b"Grpc-Status", b"0").unwrap();
    assert!(driven.machine.send_trailers(5, &trailers, &mut driven.out));
    [1, 3, 5].into_iter().for_each(|stream| _ = driven.machine.release(stream));
    driven.feed(&[]);
    let resets: Vec<_> = driven
        .sent()
        .into_iter()
        .filter(|frame| frame.0 == RST_STREAM)
        .map(|frame| (frame.2, frame.3[3]))
        .collect();
    assert_eq!(resets, [(1, ErrorCode::INTERNAL_ERROR.0 as u8), (3, 0)]);
}

#[test]
fn content_read_in_place_is_framed_like_copied_content() {
    let content: Vec<u8> = (0..70_000_u32).map(|at| (at % 251) as u8).collect();
    for (len, readable, ended) in [
        (1, 1, true),
        (16_384, 16_384, true),
        (16_385, 16_385, false),
        (40_000, 40_000, true),
        (65_535, 65_535, true),
        (40_000, 20_000, true),
        (40_000, 1, true),
        (40_000, 0, true),
        // More than the window, and more than is read at a time.
        (70_000, 70_000, true),
    ] {
        let begun = || {
            let mut driven = server(Conduct::Keeps);
            driven.feed(&get(1));
            drop(driven.machine.respond(1, http::Status::OK, false, &mut driven.out));
            driven.out.clear();
            driven
        };
        let mut one = begun();
        let mut other = begun();
        let allowed = readable.min(65_535);
        let is_whole = ended && allowed == len;
        one.machine.data(1, &content[..allowed], is_whole, &mut one.out);
        let mut calls = 0;
        let taken = other.machine.data_in_place(1, len, ended, &mut other.out, &mut |slices| {
            calls += 1;
            let mut at = 0;
            for slice in slices {
                let part = slice.len().min(readable - at);
                slice[..part].copy_from_slice(&content[at..at + part]);
                at += part;
            }
            at
        });
        assert_eq!((taken, calls), (allowed, 1), "{len} {readable}");
        // No frame is written if nothing was read.
        assert!(one.out == other.out || allowed == 0 && other.out.is_empty(), "{len} {readable}");
        assert_eq!(one.machine.sendable(1), other.machine.sendable(1));
        let again = other.machine.data_in_place(1, 1, true, &mut other.out, &mut |_| 0);
        assert_eq!(again, 0);
    }
}

#[test]
fn unread_streams_use_up_no_window_of_a_client_whose_streams_bound_it() {
    const STREAMS: u32 = 10;
    let options =
        Options { connection_window: STREAMS * 64 * 1024, streams_bound_unread: true, ..Options::default() };
    let mut driven = Driven::client(options);
    driven.feed(&server_start());
    for _ in 0..STREAMS {
        drop(driven.machine.request(&LINE, true, &mut driven.out).unwrap());
    }
    driven.sent();
    let mut available = u64::from(STREAMS) * 64 * 1024;
    // All but the last stream are never read, which is read a hundred times.
    let last = 2 * STREAMS - 1;
    let streams = (1..last).step_by(2).chain([last; 100]);
    for (at, stream) in streams.enumerate() {
        if at < STREAMS as usize {
            driven.feed(&headers(stream, 0, &[(":status", "200")]));
        }
        available = available.checked_sub(64 * 1024).expect("the window has room");
        driven.feed(&frame(DATA, 0, stream, &[0; 16_384]).repeat(4));
        assert_eq!(driven.reason(), "");
        if stream == last {
            driven.machine.grant(last, 64 * 1024);
            driven.machine.flush(&mut driven.out);
        }
        for (kind, _, id, payload) in driven.sent() {
            if (kind, id) == (WINDOW_UPDATE, 0) {
                available += u64::from(u32::from_be_bytes(payload[..].try_into().unwrap()));
            }
        }
        assert!(available <= u64::from(STREAMS) * 64 * 1024, "bytes are returned once");
    }
    for stream in (1..last).step_by(2) {
        assert!(driven.machine.release(stream), "the stream was cut");
    }
    driven.feed(&frame(DATA, END_STREAM, last, &[]));
    assert!(!driven.machine.release(last), "the stream is whole");
    assert_eq!(driven.machine.stream_count(), 0);
}

/// Heads that repeat each other, between others that change the table and sizes of the table, arrive as they were
/// written.
#[test]
fn repeated_heads_are_read_as_they_were_written() {
    let mut random = fastrand::Rng::with_seed(9);
    let (mut server, mut client) = connected();
    let mut repeats = 0;
    let mut before = String::new();
    for number in 0..400 {
        if random.u8(..40) == 0 {
            server.feed(&settings(&[(1, [0, 100, 4096][random.usize(..3)])]));
        }
        let lines = match random.u8(..8) {
            0 => format!("x-number: {number}\r\nServer: k\r\n"),
            1 => format!("date: {}\r\nServer: k\r\nConnection: close\r\n", number / 50),
            _ => "Server: k\r\nContent-Type: text/html\r\nETag: \"1-2\"\r\n".to_owned(),
        };
        repeats += u32::from(before == lines);
        let (stream, head) = client.machine.request(&LINE, true, &mut client.out).unwrap();
        drop(head);
        server.feed(&std::mem::take(&mut client.out));
        let mut head = server.machine.respond(stream, http::Status::OK, true, &mut server.out).unwrap();
        head.lines(lines.as_bytes());
        drop(head);
        server.machine.release(stream);
        client.feed(&std::mem::take(&mut server.out));
        client.machine.release(stream);
        assert_eq!((client.error, server.error), (None, None), "at {number}");
        let expected: Vec<(Vec<u8>, Vec<u8>)> = lines
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase().into_bytes(), value.as_bytes().to_vec()))
            .filter(|(name, _)| name != b"connection")
            .collect();
        let Some(Seen::Head { fields, .. }) = client.seen.pop() else { panic!("at {number}") };
        assert_eq!(fields, expected, "at {number}");
        before = lines;
    }
    assert!(repeats > 100);
}

fn connected() -> (Driven, Driven) {
    let mut server = Driven::server(Options::default(), Conduct::Keeps);
    let mut client = Driven::client(Options::default());
    for _ in 0..2 {
        client.machine.flush(&mut client.out);
        server.feed(&std::mem::take(&mut client.out));
        client.feed(&std::mem::take(&mut server.out));
    }
    (server, client)
}

/// A response's last frame gets END_STREAM after it was framed; bytes that are not exactly a DATA frame of the stream do
/// not.
#[test]
fn last_frame_ends_the_message() {
    let (mut server, mut client) = connected();
    let [first, second] = [(); 2].map(|()| client.machine.request(&LINE, true, &mut client.out).unwrap().0);
    server.feed(&std::mem::take(&mut client.out));
    drop(server.machine.respond(first, http::Status::OK, false, &mut server.out));
    drop(server.machine.respond(second, http::Status::OK, false, &mut server.out));
    let start = server.out.len();
    server.machine.data(first, b"all", false, &mut server.out);
    let framed = server.out[start..].to_vec();
    for wrong in 0..framed.len() {
        assert!(!server.machine.end_with(first, &mut framed[..wrong].to_vec()), "{wrong} bytes");
    }
    assert!(!server.machine.end_with(first, &mut [&framed[..], b"x"].concat()), "more follows");
    assert!(!server.machine.end_with(second, &mut framed.clone()), "of another stream");
    assert!(server.machine.end_with(first, &mut server.out[start..]));
    assert!(!server.machine.end_with(first, &mut framed.clone()), "it has ended");
    client.feed(&std::mem::take(&mut server.out));
    assert_eq!(client.error, None);
    assert_eq!(
        client.seen.last(),
        Some(&Seen::Data { stream: first, content: b"all".to_vec(), ended: true })
    );
    assert!(!server.machine.release(first), "the stream was not cut");
}
