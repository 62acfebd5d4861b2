//! QPACK (RFC 9204).

use http::Limits;
use http3::decode::SectionOutcome;
use http3::{Http3Code, QpackDecoder, QpackEncoder};
use sections::FieldBlock;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut QpackDecoder, stream: u64, section: &[u8]) -> Vec<(String, String)> {
    let mut block = FieldBlock::default();
    let outcome = decoder.decode(stream, section, &mut block, &Limits::default()).unwrap();
    assert_eq!(outcome, SectionOutcome::Done);
    let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
    block.iter().map(|(name, value)| (text(name), text(value))).collect()
}

fn line(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// The examples of RFC 9204 appendix B, one after another on one connection.
#[test]
fn decoder_reads_the_rfc_examples() {
    let mut decoder = QpackDecoder::new(220);
    let section = bytes("0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!(decode(&mut decoder, 0, &section), [line(":path", "/index.html")]);
    assert!(decoder.out().is_empty(), "nothing refers to the dynamic table");

    decoder.receive(&bytes("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d")).unwrap();
    decoder.receive(&bytes("c10c 2f73 616d 706c 652f 7061 7468")).unwrap();
    let expected = [line(":authority", "www.example.com"), line(":path", "/sample/path")];
    assert_eq!(decode(&mut decoder, 4, &bytes("0381 1011")), expected);
    assert_eq!(*decoder.out(), bytes("84"));
    decoder.out().clear();

    decoder.receive(&bytes("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565")).unwrap();
    assert_eq!(*decoder.out(), bytes("01"));
    decoder.out().clear();

    decoder.receive(&bytes("02")).unwrap();
    let expected =
        [line(":authority", "www.example.com"), line(":path", "/"), line("custom-key", "custom-value")];
    assert_eq!(decode(&mut decoder, 8, &bytes("0500 80c1 81")), expected);

    decoder.receive(&bytes("810d 6375 7374 6f6d 2d76 616c 7565 32")).unwrap();
    assert_eq!(decoder.inserted(), 5);
    let expected = [line("custom-key", "custom-value2")];
    assert_eq!(decode(&mut decoder, 12, &bytes("0600 80")), expected);
}

#[test]
fn instructions_are_read_alike_whole_and_byte_by_byte() {
    let instructions = bytes(
        "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468
         4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565 02",
    );
    for cut in 0..=instructions.len() {
        let mut decoder = QpackDecoder::new(220);
        let (first, rest) = instructions.split_at(cut);
        decoder.receive(first).unwrap();
        decoder.receive(rest).unwrap();
        assert_eq!(decoder.inserted(), 4, "cut at {cut}");
    }
    let mut decoder = QpackDecoder::new(220);
    instructions.iter().for_each(|byte| decoder.receive(&[*byte]).unwrap());
    assert_eq!(decoder.inserted(), 4);
    let expected = [line(":authority", "www.example.com"), line("custom-key", "custom-value")];
    assert_eq!(decode(&mut decoder, 0, &bytes("0500 80 81")), expected);
}

/// Sections 2.2.1, 3.2.2, 3.2.3, 4.1.1, 4.3 and 4.5.
#[test]
fn invalid_instructions_and_sections_end_the_connection() {
    let setup = "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d";
    for (instructions, why) in [
        ("3fbe01", "a capacity above the limit"),
        ("81 01 61", "a relative index outside the table"),
        ("05", "a duplicate outside the table"),
        ("ff24 01 61", "a static index outside the table"),
        ("41 61 7f ff ff ff ff ff ff ff ff ff ff", "an integer above 62 bits"),
        ("41 61 7f ff 03", "a string larger than the table"),
        ("20 41 61 01 62", "an entry in a table without room"),
    ] {
        let mut decoder = QpackDecoder::new(220);
        decoder.receive(&bytes(setup)).unwrap();
        let error = decoder.receive(&bytes(instructions)).expect_err(why);
        assert_eq!(error.code, Http3Code::QPACK_ENCODER_STREAM_ERROR, "{why}");
    }
    for (section, why) in [
        ("", "no prefix"),
        ("00", "a cut prefix"),
        ("0d00", "an insert count above twice the entries"),
        ("0280", "a negative base at 0 inserted entries before it"),
        ("0200 81", "an index before the table"),
        ("0000 80", "a dynamic entry without an insert count"),
        ("0200 10", "an entry beyond the insert count"),
        ("0000 ff24", "a static index outside the table"),
        ("0000 5f", "a cut index"),
        ("0000 51 05 61", "a cut value"),
        ("0000 2a", "a cut name"),
    ] {
        let mut decoder = QpackDecoder::new(220);
        decoder.receive(&bytes(setup)).unwrap();
        let mut block = FieldBlock::default();
        let outcome = decoder.decode(0, &bytes(section), &mut block, &Limits::default());
        let failed = outcome.as_ref().err().map(|error| error.code);
        if why == "a negative base at 0 inserted entries before it" {
            assert!(failed.is_none(), "a base below the insert count is valid: {outcome:?}");
        } else {
            assert_eq!(failed, Some(Http3Code::QPACK_DECOMPRESSION_FAILED), "{why}: {outcome:?}");
        }
    }
}

/// Fields over the limits cost no time; HPACK has to read them for its table.
#[test]
fn rest_of_a_section_over_the_limits_is_not_read() {
    let mut decoder = QpackDecoder::new(220);
    let mut block = FieldBlock::default();
    // Lines with `:path: /`, then one outside the static table.
    let lines = |count: usize| [&[0, 0][..], &vec![0xc1; count], &[0xff, 0xff, 0x01]].concat();
    assert!(decoder.decode(0, &lines(9), &mut block, &Limits::default()).is_err());
    let outcome = decoder.decode(4, &lines(10_000), &mut block, &Limits::default()).unwrap();
    assert!(outcome == SectionOutcome::Done && block.is_too_large);
}

#[test]
fn section_waits_for_entries_that_have_not_arrived() {
    let mut decoder = QpackDecoder::new(220);
    let mut block = FieldBlock::default();
    let section = bytes("0381 1011");
    let outcome = decoder.decode(4, &section, &mut block, &Limits::default()).unwrap();
    assert_eq!(outcome, SectionOutcome::Blocked(2));
    decoder.receive(&bytes("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d")).unwrap();
    let outcome = decoder.decode(4, &section, &mut block, &Limits::default()).unwrap();
    assert_eq!(outcome, SectionOutcome::Blocked(2));
    decoder.receive(&bytes("c10c 2f73 616d 706c 652f 7061 7468")).unwrap();
    assert_eq!(decode(&mut decoder, 4, &section).len(), 2);
}

#[test]
fn entries_without_requests_are_bounded() {
    let mut decoder = QpackDecoder::new(4096);
    decoder.receive(&bytes("3fe11f 41 61 01 62")).unwrap();
    let mut count = 0u64;
    let error = loop {
        match decoder.receive(&[0x00; 1000]) {
            Ok(()) => count += 1000,
            Err(error) => break error,
        }
        assert!(count < 1_000_000);
    };
    assert_eq!(error.code, Http3Code::EXCESSIVE_LOAD);
    assert!(count > 5_000, "{count}: an entry of 34 bytes each");
}

#[test]
fn acknowledgements_that_the_peer_does_not_read_are_bounded() {
    let mut decoder = QpackDecoder::new(4096);
    let mut stream = 0;
    let error = loop {
        match decoder.cancel(stream) {
            Ok(()) => stream += 4,
            Err(error) => break error,
        }
        assert!(stream < 1_000_000);
    };
    assert_eq!(error.code, Http3Code::EXCESSIVE_LOAD);
    assert!(decoder.held_bytes() < 256 * 1024, "{}", decoder.held_bytes());
}

/// A random message of names and values that partly repeat.
fn random_fields(random: &mut fastrand::Rng) -> Vec<(String, String)> {
    let names =
        ["accept", "user-agent", "cookie", "x-a", "x-b", "content-type", "etag", "authorization", "x-c"];
    let count = random.usize(0..12);
    let field = |random: &mut fastrand::Rng| {
        let name = names[random.usize(0..names.len())];
        let value = match random.u8(0..4) {
            0 => "text/css".to_owned(),
            1 => format!("value {}", random.u8(0..20)),
            2 => "v".repeat(random.usize(0..300)),
            _ => format!("{:x}", random.u64(..)),
        };
        (name.to_owned(), value)
    };
    (0..count).map(|_| field(random)).collect()
}

/// Stream, encoded section and fields.
type SentSection = (u64, Vec<u8>, Vec<(String, String)>);

/// The law of QPACK: whatever is sent is received, in any order of streams and with any delay of either
/// stream of instructions.
#[test]
fn sections_round_trip_with_delayed_instructions() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let table_bytes_max = [0, 31, 64, 220, 512, 4096][random.usize(0..6)];
        let blocked_max = [0, 1, 16][random.usize(0..3)];
        let mut encoder = QpackEncoder::default();
        encoder.set_limits(table_bytes_max as u64, blocked_max);
        let mut decoder = QpackDecoder::new(table_bytes_max);
        // Sections that have not been decoded, and instructions that have not been delivered.
        let mut waiting: Vec<SentSection> = Vec::new();
        let mut instructions: Vec<u8> = Vec::new();
        let mut acknowledgements: Vec<u8> = Vec::new();
        let mut blocked = 0;
        for stream in 0..200u64 {
            let fields = random_fields(&mut random);
            let mut section = encoder.begin(stream * 4);
            for (name, value) in &fields {
                section.field(name.as_bytes(), value.as_bytes());
            }
            let mut bytes = Vec::new();
            section.finish(&mut bytes);
            waiting.push((stream * 4, bytes, fields));
            instructions.append(encoder.out());
            let part = random.usize(0..=instructions.len());
            let delivered: Vec<u8> = instructions.drain(..part).collect();
            decoder.receive(&delivered).unwrap();
            waiting.retain(|(stream, bytes, fields)| {
                let mut block = FieldBlock::default();
                match decoder.decode(*stream, bytes, &mut block, &Limits::default()).unwrap() {
                    SectionOutcome::Blocked(_) => true,
                    SectionOutcome::Done => {
                        let decoded: Vec<_> =
                            block.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
                        let sent: Vec<_> = fields
                            .iter()
                            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                            .collect();
                        assert_eq!(decoded, sent, "seed {seed}");
                        false
                    }
                }
            });
            blocked = blocked.max(waiting.len() as u64);
            acknowledgements.append(decoder.out());
            let part = random.usize(0..=acknowledgements.len());
            let delivered: Vec<u8> = acknowledgements.drain(..part).collect();
            encoder.receive(&delivered).unwrap();
        }
        assert!(
            blocked <= blocked_max,
            "seed {seed}: {blocked} streams were blocked, {blocked_max} are allowed"
        );
        decoder.receive(&instructions).unwrap();
        for (stream, bytes, fields) in waiting {
            let decoded = decode(&mut decoder, stream, &bytes);
            assert_eq!(decoded, fields, "seed {seed}");
        }
    }
}

#[test]
fn repeated_fields_are_sent_as_indexes_once_acknowledged() {
    let mut encoder = QpackEncoder::default();
    encoder.set_limits(4096, 0);
    let mut decoder = QpackDecoder::new(4096);
    let mut sizes = Vec::new();
    for stream in 0..4 {
        let mut section = encoder.begin(stream * 4);
        section.field(b"User-Agent", b"a browser with a long name/1.0 (and a comment)");
        section.field(b"X-Custom", b"a value that repeats");
        let mut out = Vec::new();
        section.finish(&mut out);
        decoder.receive(&std::mem::take(encoder.out())).unwrap();
        assert_eq!(decode(&mut decoder, stream * 4, &out).len(), 2);
        encoder.receive(&std::mem::take(decoder.out())).unwrap();
        sizes.push(out.len());
    }
    assert!(sizes[0] > 40, "{sizes:?}: nothing is acknowledged yet");
    assert_eq!(sizes[1..], [4, 4, 4], "{sizes:?}");
}

#[test]
fn secrets_are_never_indexed() {
    let mut encoder = QpackEncoder::default();
    encoder.set_limits(4096, 16);
    encoder.out().clear();
    let mut section = encoder.begin(0);
    section.field(b"Authorization", b"Basic c2VjcmV0");
    section.field(b"Cookie", b"short");
    let mut out = Vec::new();
    section.finish(&mut out);
    assert!(encoder.out().is_empty(), "nothing is added to the table");
    // Literals with name reference whose N bit is set: authorization (84), cookie (5).
    assert_eq!(out[2] & 0xf0, 0x70);
    let cookie = out.len() - 1 - out[2..].iter().rev().position(|byte| *byte == 0x75).unwrap();
    assert_eq!(out[cookie], 0x75);
}

/// Sections 4.4.1 and 4.4.3.
#[test]
fn wrong_acknowledgements_end_the_connection() {
    for (instructions, why) in [
        ("84", "a section that was not sent"),
        ("00", "an increment of 0"),
        ("02", "entries that were not added"),
        ("3f ff ff ff ff ff ff ff ff ff 7f", "an integer above 62 bits"),
    ] {
        let mut encoder = QpackEncoder::default();
        encoder.set_limits(4096, 0);
        let mut section = encoder.begin(0);
        section.field(b"x-a", b"b");
        section.finish(&mut Vec::new());
        let error = encoder.receive(&bytes(instructions)).expect_err(why);
        assert_eq!(error.code, Http3Code::QPACK_DECODER_STREAM_ERROR, "{why}");
    }
}
