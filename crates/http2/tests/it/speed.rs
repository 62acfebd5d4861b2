//! Measures the cost of a head; reports a figure and checks nothing:
//! `cargo test --release -p komainu-http2 --test it -- --ignored speed --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use http::{Limits, Status};
use http2::{Event, FieldBlock, HpackDecoder, HpackEncoder, Machine, Options};

/// The head of a typical browser request.
const REQUEST: [(&str, &str); 12] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.com"),
    (":path", "/assets/app.js?v=1234"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-US,en;q=0.9,ja;q=0.8"),
    ("referer", "https://www.example.com/"),
    ("cookie", "session=0123456789abcdef0123456789abcdef"),
    ("sec-fetch-mode", "no-cors"),
    ("priority", "u=1, i"),
];

const ROUNDS: u32 = 200_000;

fn measure(name: &str, mut round: impl FnMut()) {
    (0..1000).for_each(|_| round());
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        (0..ROUNDS / 5).for_each(|_| round());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS / 5));
    }
    eprintln!("{name}: {best:.0} ns");
}

fn fields() -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    REQUEST.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

#[test]
#[ignore = "a measurement"]
fn measure_hpack_coding_of_request_heads() {
    let limits = Limits::default();
    let mut first = Vec::new();
    let mut next = Vec::new();
    let mut encoder = HpackEncoder::default();
    encoder.encode_block(&mut first, fields());
    encoder.encode_block(&mut next, fields());
    eprintln!(
        "a request head of {} fields: {} bytes at first, then {}",
        REQUEST.len(),
        first.len(),
        next.len()
    );

    let mut block = FieldBlock::default();
    measure("decode, first request of a connection", || {
        let mut decoder = HpackDecoder::new(4096);
        decoder.decode(black_box(&first), &mut block, &limits).unwrap();
    });
    let mut decoder = HpackDecoder::new(4096);
    decoder.decode(&first, &mut block, &limits).unwrap();
    measure("decode, later requests", || decoder.decode(black_box(&next), &mut block, &limits).unwrap());
    let mut other = loona_hpack::Decoder::new();
    other.decode(&first).unwrap();
    measure("decode, later requests, loona-hpack", || {
        drop(black_box(other.decode(black_box(&next)).unwrap()))
    });

    let mut out = Vec::new();
    measure("encode, later requests", || {
        out.clear();
        encoder.encode_block(&mut out, black_box(fields()));
    });
    let mut other = loona_hpack::Encoder::new();
    measure("encode, later requests, loona-hpack", || drop(black_box(other.encode(black_box(fields())))));
}

/// A whole exchange of a server: frames, stream, request head, response head, 1,024 bytes of content.
#[test]
#[ignore = "a measurement"]
fn measure_server_exchanges() {
    let mut machine = Machine::server(Options::default());
    let mut out = Vec::new();
    let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    assert!(machine.feed(start, 0).is_ok());
    let mut encoder = HpackEncoder::default();
    let mut frame = |stream: u32| {
        let mut bytes = vec![0; 9];
        encoder.encode_block(&mut bytes, fields());
        let len = bytes.len() - 9;
        bytes[..5].copy_from_slice(&[0, (len >> 8) as u8, len as u8, 1, 5]);
        bytes[5..9].copy_from_slice(&stream.to_be_bytes());
        // The client announces the bytes that it has read.
        bytes.extend(b"\0\0\x04\x08\0\0\0\0\0\0\0\x04\0");
        bytes
    };
    let inputs: Vec<Vec<u8>> = (0..ROUNDS + 1000).map(|at| frame(at * 2 + 1)).collect();
    let mut inputs = inputs.iter();
    let content = [b'x'; 1024];
    measure("a request and its response through the machine", || {
        let input = inputs.next().unwrap();
        let mut at = 0;
        loop {
            let (consumed, event) = machine.feed(&input[at..], 0).unwrap();
            at += consumed;
            match event {
                Event::Head { stream, .. } => {
                    let mut head = machine.respond(stream, Status::OK, false, &mut out).unwrap();
                    head.lines(b"Server: Komainu\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
                    head.lines(b"Content-Type: application/javascript\r\n");
                    head.content_length(1024);
                    drop(head);
                    assert_eq!(machine.data(stream, &content, true, &mut out), 1024);
                    machine.release(stream);
                }
                Event::NeedMore => break,
                _ => {}
            }
        }
        out.clear();
    });
}
