//! Unidirectional streams (RFC 9114 sections 6.2 and 7.2, RFC 9218).

use http3::{
    Connection, ConnectionEvent, Http3Code, Http3Error, MessageStream, Options, OwnStream,
    UnidirectionalStream,
};
use sections::Priority;

use crate::rig::{GET, Pair, feed_all, frame};

/// The start of a control stream: its type, and empty settings.
const START: &[u8] = &[0x00, 0x04, 0x00];

fn control(is_server: bool, frames: &[u8]) -> Result<Vec<ConnectionEvent>, Http3Error> {
    let mut connection = match is_server {
        true => Connection::server(Options::default()),
        false => Connection::client(Options::default()),
    };
    feed_all(&mut connection, &mut UnidirectionalStream::default(), &[START, frames].concat())
}

#[test]
fn both_sides_learn_the_settings_of_the_other() {
    let mut pair = Pair::new(Options { connect_protocol: true, ..Options::default() });
    assert!(pair.client.has_peer_settings() && pair.server.has_peer_settings());
    let settings = *pair.client.peer_settings();
    assert_eq!((settings.table_bytes_max, settings.blocked_streams_max), (4096, 16));
    assert!(settings.connect_protocol && !pair.server.peer_settings().connect_protocol);
    assert!(pair.client.output(OwnStream::Control).is_empty());
}

/// Section 6.2.1.
#[test]
fn control_stream_begins_with_settings() {
    let mut connection = Connection::server(Options::default());
    let mut stream = UnidirectionalStream::default();
    let error = feed_all(&mut connection, &mut stream, &[0x00, 0x07, 0x01, 0x00]).unwrap_err();
    assert_eq!(error.code, Http3Code::MISSING_SETTINGS);
}

/// Sections 5.2, 7.2.3, 7.2.4, 7.2.6, 7.2.7, 7.2.8 and RFC 9218 section 7.2.
#[test]
fn invalid_control_frames_end_the_connection() {
    let goaway = |id: u8| frame(0x7, &[id]);
    for (is_server, frames, code, why) in [
        (true, frame(0x4, b""), Http3Code::FRAME_UNEXPECTED, "second SETTINGS"),
        (true, frame(0x0, b"a"), Http3Code::FRAME_UNEXPECTED, "DATA"),
        (true, frame(0x1, b"a"), Http3Code::FRAME_UNEXPECTED, "HEADERS"),
        (false, frame(0x5, b"a"), Http3Code::FRAME_UNEXPECTED, "PUSH_PROMISE"),
        (true, frame(0x2, b"a"), Http3Code::FRAME_UNEXPECTED, "PRIORITY of HTTP/2"),
        (true, frame(0x6, b"a"), Http3Code::FRAME_UNEXPECTED, "PING of HTTP/2"),
        (true, frame(0x8, b"a"), Http3Code::FRAME_UNEXPECTED, "WINDOW_UPDATE of HTTP/2"),
        (true, frame(0x9, b"a"), Http3Code::FRAME_UNEXPECTED, "CONTINUATION of HTTP/2"),
        (true, frame(0x7, b""), Http3Code::FRAME_ERROR, "GOAWAY without an identifier"),
        (true, frame(0x7, b"\0\0"), Http3Code::FRAME_ERROR, "GOAWAY with more than an identifier"),
        (false, goaway(1), Http3Code::ID_ERROR, "GOAWAY with a stream that is not a request"),
        (false, [goaway(4), goaway(8)].concat(), Http3Code::ID_ERROR, "GOAWAY that is raised"),
        (true, [goaway(1), goaway(2)].concat(), Http3Code::ID_ERROR, "GOAWAY of a client that is raised"),
        (false, frame(0xd, b"\x01"), Http3Code::FRAME_UNEXPECTED, "MAX_PUSH_ID of a server"),
        (
            true,
            [frame(0xd, b"\x02"), frame(0xd, b"\x01")].concat(),
            Http3Code::ID_ERROR,
            "MAX_PUSH_ID reduced",
        ),
        (true, frame(0x3, b"\0"), Http3Code::ID_ERROR, "CANCEL_PUSH of no push"),
        (false, frame(0x3, b"\0"), Http3Code::ID_ERROR, "CANCEL_PUSH of no push"),
        (false, frame(0xf_0700, b"\0u=1"), Http3Code::FRAME_UNEXPECTED, "PRIORITY_UPDATE of a server"),
        (true, frame(0xf_0700, b"\x01u=1"), Http3Code::ID_ERROR, "PRIORITY_UPDATE of no request"),
        (true, frame(0xf_0700, b""), Http3Code::FRAME_ERROR, "PRIORITY_UPDATE without an identifier"),
        (true, frame(0xf_0701, b"\0u=1"), Http3Code::ID_ERROR, "PRIORITY_UPDATE of no push"),
        (true, frame(0xf_0700, &[0; 5000]), Http3Code::EXCESSIVE_LOAD, "a frame above the limit"),
    ] {
        let error = control(is_server, &frames).expect_err(why);
        assert_eq!(error.code, code, "{why}");
    }
}

#[test]
fn unknown_frames_and_streams_are_ignored() {
    let frames = [frame(0x21, &[b'a'; 10_000]), frame(0x7, b"\0")].concat();
    let events = control(true, &frames).unwrap();
    assert_eq!(events, [ConnectionEvent::Settings, ConnectionEvent::GoAway(0)]);
    let mut connection = Connection::server(Options::default());
    let mut stream = UnidirectionalStream::default();
    let events = feed_all(&mut connection, &mut stream, b"\x21 content of any kind").unwrap();
    assert_eq!(events, [ConnectionEvent::StopReading(Http3Code::STREAM_CREATION_ERROR)]);
    assert_eq!(connection.feed_unidirectional(&mut stream, b"more", true), Ok((4, None)));
    assert_eq!(connection.reset_unidirectional(&stream), Ok(()));
}

#[test]
fn control_frames_are_read_alike_whole_and_cut_everywhere() {
    let frames = [
        START,
        &frame(0x40, b"unknown"),
        &frame(0xf_0700, b"\x04u=1, i"),
        &frame(0x21, b""),
        &frame(0x7, b"\x40\x04"),
    ]
    .concat();
    let expected = [ConnectionEvent::Settings, ConnectionEvent::GoAway(4)];
    for cut in 0..=frames.len() {
        let mut connection = Connection::server(Options::default());
        let mut stream = UnidirectionalStream::default();
        let mut events = feed_all(&mut connection, &mut stream, &frames[..cut]).unwrap();
        events.extend(feed_all(&mut connection, &mut stream, &frames[cut..]).unwrap());
        assert_eq!(events, expected, "cut at {cut}");
    }
    let mut connection = Connection::server(Options::default());
    let mut stream = UnidirectionalStream::default();
    let each = frames.iter().flat_map(|byte| feed_all(&mut connection, &mut stream, &[*byte]).unwrap());
    assert_eq!(each.collect::<Vec<_>>(), expected);
}

/// Sections 6.2.1 and 6.2.2, RFC 9204 section 4.2.
#[test]
fn critical_streams_open_once_and_never_close() {
    for kind in [0x00, 0x02, 0x03] {
        let mut connection = Connection::server(Options::default());
        let start = if kind == 0 { START } else { &[kind] };
        let mut stream = UnidirectionalStream::default();
        feed_all(&mut connection, &mut stream, start).unwrap();
        let reset = connection.reset_unidirectional(&stream).unwrap_err();
        assert_eq!(reset.code, Http3Code::CLOSED_CRITICAL_STREAM, "{kind}");
        let ended = connection.feed_unidirectional(&mut stream, b"", true).unwrap_err();
        assert_eq!(ended.code, Http3Code::CLOSED_CRITICAL_STREAM, "{kind}");
        let second = feed_all(&mut connection, &mut UnidirectionalStream::default(), &[kind]).unwrap_err();
        assert_eq!(second.code, Http3Code::STREAM_CREATION_ERROR, "{kind}");
    }
    let push = |mut connection: Connection| {
        feed_all(&mut connection, &mut UnidirectionalStream::default(), &[0x01]).unwrap_err().code
    };
    assert_eq!(push(Connection::server(Options::default())), Http3Code::STREAM_CREATION_ERROR);
    assert_eq!(push(Connection::client(Options::default())), Http3Code::ID_ERROR);
}

#[test]
fn control_frames_without_requests_are_bounded() {
    for kind in [0x21, 0xf_0700] {
        let mut connection = Connection::server(Options::default());
        let mut stream = UnidirectionalStream::default();
        feed_all(&mut connection, &mut stream, START).unwrap();
        let mut count = 0u32;
        let error = loop {
            // Each names another stream.
            let id = ((count * 4) | 0x8000_0000).to_be_bytes();
            match feed_all(&mut connection, &mut stream, &frame(kind, &id)) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 1_000_000);
        };
        assert_eq!(error.code, Http3Code::EXCESSIVE_LOAD);
        assert!(connection.held_bytes() < 32 * 1024, "{}", connection.held_bytes());
    }
}

/// RFC 9218 section 7.2: an update may arrive before its request.
#[test]
fn priority_comes_from_the_field_or_an_update() {
    let mut pair = Pair::new(Options::default());
    pair.client.prioritize(0, b"u=1, i");
    assert_eq!(pair.exchange(), []);
    let request = pair.request(0, &[GET, &[("priority", "u=5")]].concat());
    pair.exchange();
    pair.server.feed(&mut MessageStream::new(0), &request, true).unwrap();
    assert_eq!(pair.server.priority, Priority { urgency: 1, is_incremental: true });
    pair.client.prioritize(0, b"u=7");
    let changed = Priority { urgency: 7, is_incremental: false };
    assert_eq!(pair.exchange(), [ConnectionEvent::Priority(0, changed)]);
    let request = pair.request(4, &[GET, &[("priority", "u=5")]].concat());
    pair.exchange();
    pair.server.feed(&mut MessageStream::new(4), &request, true).unwrap();
    assert_eq!(pair.server.priority, Priority { urgency: 5, is_incremental: false });
}

/// Section 5.2.
#[test]
fn shutdown_is_announced_before_it_is_final() {
    let mut pair = Pair::new(Options::default());
    let request = pair.request(0, GET);
    pair.exchange();
    pair.server.feed(&mut MessageStream::new(0), &request, true).unwrap();
    pair.server.go_away(false);
    pair.server.go_away(false);
    assert_eq!(pair.exchange(), [ConnectionEvent::GoAway((1 << 62) - 4)]);
    pair.server.go_away(true);
    assert_eq!(pair.exchange(), [ConnectionEvent::GoAway(4)]);
    assert!(pair.client.is_peer_leaving() && !pair.server.is_peer_leaving());
}
