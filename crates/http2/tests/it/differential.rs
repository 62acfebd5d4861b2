//! Sends the same valid and invalid frames to this server and to that of the `h2` crate: both must refuse the
//! same ones, except for the listed differences.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::drive::{Conduct, Driven, Seen};
use crate::support::wire::*;
use crate::support::{laws, wire};
use bytes::Bytes;
use http2::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// Number of mutated seeds, in addition to the seeds.
const MUTATIONS: usize = 1_500;

/// Number of scheduler turns for the `h2` server and its requests before the end.
const TURNS: usize = 100;

/// A server's reaction: the connection error, and the streams that ended with an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Verdict {
    connection: Option<u32>,
    streams: BTreeMap<u32, u32>,
    answered: BTreeSet<u32>,
}

impl Verdict {
    fn of(sent: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for (kind, flags, stream, payload) in wire::frames(sent) {
            let code = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
            match kind {
                GOAWAY if code(4) != 0 => verdict.connection = verdict.connection.or(Some(code(4))),
                // NO_ERROR: the response is complete, and the rest of the request is not needed.
                RST_STREAM if code(0) != 0 => _ = verdict.streams.insert(stream, code(0)),
                HEADERS if flags & END_HEADERS != 0 => _ = verdict.answered.insert(stream),
                _ => {}
            }
        }
        verdict
    }
}

/// Feeds bytes to this server: returns its verdict, the reason of each error, and whether a header block is
/// incomplete.
fn ours(bytes: &[u8]) -> (Verdict, Vec<&'static str>, bool) {
    let mut driven = Driven::server(Options::default(), Conduct::Serves);
    driven.feed(bytes);
    let mut reasons: Vec<&'static str> = driven
        .seen
        .iter()
        .filter_map(|seen| match seen {
            Seen::Aborted { reason, .. } => Some(*reason),
            _ => None,
        })
        .collect();
    reasons.extend(driven.error.map(|error| error.reason));
    (Verdict::of(&driven.out), reasons, driven.machine.is_reading_head())
}

/// Feeds bytes to the `h2` server, which answers each request that has ended.
async fn theirs(bytes: &[u8]) -> Verdict {
    let (mut pipe, end) = duplex(1 << 20);
    pipe.write_all(bytes).await.unwrap();
    let serving = tokio::spawn(async move {
        let mut connection = h2::server::Builder::new().handshake::<_, Bytes>(end).await?;
        while let Some(request) = connection.accept().await {
            let (request, respond) = request?;
            tokio::spawn(answer(request, respond));
        }
        Ok::<_, h2::Error>(())
    });
    // All output is complete by then, because everything is in this thread's memory.
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    pipe.shutdown().await.unwrap();
    let mut sent = Vec::new();
    pipe.read_to_end(&mut sent).await.unwrap();
    // The frames show the end of the connection.
    let _ = serving.await.unwrap();
    Verdict::of(&sent)
}

async fn answer(
    request: http_types::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut body = request.into_body();
    while let Some(piece) = body.data().await {
        body.flow_control().release_capacity(piece?.len())?;
    }
    body.trailers().await?;
    let response = http_types::Response::builder().status(200).body(()).unwrap();
    respond.send_response(response, false)?.send_data(Bytes::from_static(b"ok"), true)
}

/// Frames of every type on every kind of stream, with payloads of every significant length, after an
/// incomplete request on stream 1 and a complete one on stream 3.
fn each_frame() -> Vec<Vec<u8>> {
    let mut cases = Vec::new();
    let flags =
        [0, ACK, END_HEADERS, END_HEADERS | END_STREAM, END_HEADERS | PADDED, END_HEADERS | PRIORITIZED];
    for kind in (DATA..=CONTINUATION).chain([PRIORITY_UPDATE, 99]) {
        for stream in [0, 1, 2, 3, 5] {
            for flags in flags {
                for len in [0, 1, 3, 4, 5, 6, 7, 8, 9, 12] {
                    for byte in [0, 1, 0xff] {
                        let wrong = frame(kind, flags, stream, &vec![byte; len]);
                        cases.push([client_start(), post(1, &[]), get(3), wrong].concat());
                    }
                }
            }
        }
    }
    cases
}

/// The type, flags and stream of each frame in bytes that may end anywhere.
fn kinds(mut bytes: &[u8]) -> Vec<(u8, u8, u32)> {
    let mut frames = Vec::new();
    bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    while let [a, b, c, kind, flags, d, e, f, g, rest @ ..] = bytes {
        frames.push((*kind, *flags, u32::from_be_bytes([*d, *e, *f, *g])));
        bytes = rest.get(u32::from_be_bytes([0, *a, *b, *c]) as usize..).unwrap_or_default();
    }
    frames
}

/// Cases that only this server refuses: its reason, and the RFC section.
const STRICTER: &[(&str, &str)] = &[
    (":authority and Host differ", "RFC 9113 section 8.3.1"),
    ("request without :authority and Host", "RFC 9113 section 8.3.1"),
    ("invalid Host", "RFC 9110 section 7.2"),
    // The crate does not check for pseudo-header fields in trailers.
    ("invalid byte in a field", "RFC 9113 section 8.2.1"),
    // PRIORITY_UPDATE, which the crate does not support.
    ("frame on a stream that it does not go with", "RFC 9218 section 7.1"),
    ("frame of a wrong length", "RFC 9218 section 7.1"),
    ("priority of a stream that no client opens", "RFC 9218 section 7.1"),
    // The crate waits for the end of the header block first.
    ("frame on an idle stream", "RFC 9113 section 5.1.1"),
    ("push is not enabled", "RFC 9113 section 8.4"),
];

/// Cases that only the crate refuses.
const MORE_LENIENT: &[(&str, &str)] = &[
    (
        "a header block that has not ended is judged as it comes",
        "no rule: nothing is processed before its end",
    ),
    ("a stream's window beyond its limit after its response has ended", "RFC 9113 section 5.1: closed"),
    ("an authority with percent-encoded bytes", "allowed by RFC 3986 section 3.2.2"),
    ("more acknowledgements than settings", "no rule in RFC 9113 section 6.5.3"),
];

/// The index in [`MORE_LENIENT`] of the reason that only the crate refuses a case.
fn leniency(case: &[u8], is_reading_head: bool, our: &Verdict, their: &Verdict) -> Option<usize> {
    const FLOW_CONTROL_ERROR: u32 = 3;
    let late = |(stream, code): (&u32, &u32)| *code == FLOW_CONTROL_ERROR && our.answered.contains(stream);
    let is_acknowledgement = |frame: &&(u8, u8, u32)| frame.0 == SETTINGS && frame.1 & ACK != 0;
    match () {
        () if is_reading_head => Some(0),
        () if their.connection.is_none() && their.streams.iter().all(late) => Some(1),
        () if their.connection.is_none() && case.contains(&b'%') => Some(2),
        () if kinds(case).iter().filter(is_acknowledgement).count() > 1 => Some(3),
        () => None,
    }
}

#[test]
fn rejections_match_the_h2_crate_except_for_listed_cases() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut cases = each_frame();
    corpus::replay(&corpus::seeds("http2"), MUTATIONS, |bytes| {
        let Some((_, rest)) = bytes.split_first() else { return };
        cases.push([client_start(), laws::expand(rest)].concat());
    });
    let mut stricter = BTreeSet::new();
    let mut more_lenient = BTreeSet::new();
    for case in &cases {
        let (our, reasons, is_reading_head) = ours(case);
        let their = runtime.block_on(theirs(case));
        // The crate forgets errors of a stream that the client has reset.
        let given_up: Vec<u32> =
            kinds(case).into_iter().filter(|frame| frame.0 == RST_STREAM).map(|frame| frame.2).collect();
        let refused = |verdict: &Verdict| -> BTreeSet<u32> {
            verdict.streams.keys().copied().filter(|stream| !given_up.contains(stream)).collect()
        };
        let mine = refused(&our);
        let other = refused(&their);
        let refuses = |verdict: &Verdict| verdict.connection.is_some() || !verdict.streams.is_empty();
        // One may end the connection if the other ends the stream (RFC 9113 section 5.4.2).
        let is_same = match our.connection.or(their.connection) {
            Some(_) => refuses(&our) && refuses(&their),
            None => mine == other,
        };
        if is_same {
            continue;
        }
        let shown = || format!("{our:?} {reasons:?}; the crate: {their:?}; {}", case.escape_ascii());
        if our.connection.is_some() || mine.difference(&other).next().is_some() {
            let known = STRICTER.iter().position(|(reason, _)| reasons.contains(reason));
            stricter.insert(known.unwrap_or_else(|| panic!("only we refuse: {}", shown())));
        } else {
            let known = leniency(case, is_reading_head, &our, &their);
            more_lenient.insert(known.unwrap_or_else(|| panic!("only the crate refuses: {}", shown())));
        }
    }
    // Every listed difference must occur.
    let unseen = |list: &[(&'static str, &str)], seen: &BTreeSet<usize>| -> Vec<&'static str> {
        (0..list.len()).filter(|place| !seen.contains(place)).map(|place| list[place].0).collect()
    };
    assert_eq!((unseen(STRICTER, &stricter), unseen(MORE_LENIENT, &more_lenient)), (vec![], vec![]));
}
