//! HPACK against the public test data (github.com/http2jp/hpack-test-case), if it exists beside the checkout,
//! and against another implementation.

use std::path::{Path, PathBuf};

use http::Limits;
use http2::{ErrorCode, FieldBlock, HpackDecoder, HpackEncoder};

const ROOMY: Limits = Limits {
    head_bytes_max: 1 << 20,
    start_line_bytes_max: 1 << 20,
    fields_max: 10_000,
    bare_lf: false,
    lenient_heads: false,
};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// One header block of a story.
struct Case {
    wire: Vec<u8>,
    table_bytes_max: Option<usize>,
    fields: Pairs,
}

fn stories() -> Option<Vec<(PathBuf, Vec<Case>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vendor/hpack-test-case");
    let Ok(encoders) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: HPACK's public test data is not at {}", folder.display());
        return None;
    };
    let mut paths: Vec<PathBuf> = encoders
        .filter_map(|entry| std::fs::read_dir(entry.unwrap().path()).ok())
        .flat_map(|files| files.map(|file| file.unwrap().path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort_unstable();
    Some(paths.into_iter().map(|path| (path.clone(), story(&path))).collect())
}

fn story(path: &Path) -> Vec<Case> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = |case: &serde_json::Value| {
        let hex = case["wire"].as_str().unwrap_or_default();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let field = |field: &serde_json::Value| {
            let (name, value) = field.as_object().unwrap().iter().next().unwrap();
            (name.as_bytes().to_vec(), value.as_str().unwrap().as_bytes().to_vec())
        };
        Case {
            wire: (0..hex.len()).step_by(2).map(byte).collect(),
            table_bytes_max: case["header_table_size"].as_u64().map(|size| size as usize),
            fields: case["headers"].as_array().unwrap().iter().map(field).collect(),
        }
    };
    json["cases"].as_array().unwrap().iter().map(case).collect()
}

fn pairs(block: &FieldBlock) -> Pairs {
    block.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

#[test]
fn every_story_is_decoded() {
    let Some(stories) = stories() else { return };
    let mut blocks = 0;
    for (path, cases) in &stories {
        let mut decoder = HpackDecoder::new(16_384);
        let mut block = FieldBlock::default();
        for (at, case) in cases.iter().enumerate() {
            decoder.decode(&case.wire, &mut block, &ROOMY).unwrap_or_else(|error| {
                panic!("{}, block {at}: {}", path.display(), error.reason);
            });
            assert_eq!(pairs(&block), case.fields, "{}, block {at}", path.display());
            blocks += 1;
        }
    }
    assert!(stories.len() >= 100 && blocks > 1000, "{} stories, {blocks} blocks", stories.len());
}

/// Encodes each story, and decodes it with this decoder and with the other implementation; the table sizes
/// change as in the story.
#[test]
fn encoded_blocks_are_decoded_by_another_implementation() {
    let Some(stories) = stories() else { return };
    let mut wire_bytes = 0;
    let mut text_bytes = 0;
    for (path, cases) in &stories {
        let mut encoder = HpackEncoder::default();
        let mut ours = HpackDecoder::new(4096);
        let mut other = loona_hpack::Decoder::new();
        other.set_max_allowed_table_size(4096);
        let mut block = FieldBlock::default();
        for case in cases {
            if let Some(size) = case.table_bytes_max {
                encoder.set_table_bytes_max(size);
            }
            let mut wire = Vec::new();
            encoder.encode_block(&mut wire, case.fields.iter().map(|(name, value)| (&name[..], &value[..])));
            ours.decode(&wire, &mut block, &ROOMY).unwrap();
            assert_eq!(pairs(&block), case.fields, "{}", path.display());
            assert_eq!(other.decode(&wire).unwrap(), case.fields, "{}", path.display());
            wire_bytes += wire.len();
            text_bytes += case.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        }
    }
    assert!(wire_bytes * 5 < text_bytes * 2, "{wire_bytes} of {text_bytes}");
}

#[test]
fn invalid_header_blocks_are_rejected() {
    let decode = |wire: &[u8]| {
        let mut decoder = HpackDecoder::new(4096);
        decoder.decode(wire, &mut FieldBlock::default(), &ROOMY).map_err(|error| {
            assert_eq!(error.code, ErrorCode::COMPRESSION_ERROR);
            error.reason
        })
    };
    for (wire, reason) in [
        (&[0x80][..], "index outside the tables"),
        (&[0xbe], "index outside the tables"),
        (&[0xff, 0x00], "index outside the tables"),
        (&[0x40], "header block ends in an instruction"),
        (&[0x40, 0x01], "header block ends in a string"),
        (&[0x41, 0x83, 0xff, 0xff], "header block ends in a string"),
        (&[0x41, 0x82, 0xff, 0xff], "invalid Huffman padding"),
        (&[0x41, 0x84, 0xff, 0xff, 0xff, 0xff], "end-of-string symbol in a string"),
        (&[0x41, 0x81, 0x00], "invalid Huffman padding"),
        (&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00], "integer too large"),
        (&[0x82, 0x20], "table size update inside a header block"),
        (&[0x3f, 0xe2, 0x1f], "table size update above the limit"),
        (&[0x20, 0x20, 0x20], "too many table size updates"),
        (&[0x1f], "header block ends in an instruction"),
    ] {
        assert_eq!(decode(wire), Err(reason), "{wire:x?}");
    }
    assert_eq!(decode(&[0x20, 0x3f, 0xe1, 0x1f, 0x82]), Ok(()));
    assert_eq!(decode(&[]), Ok(()));
}

#[test]
fn smaller_table_limit_requires_a_size_update() {
    let mut decoder = HpackDecoder::new(4096);
    let mut block = FieldBlock::default();
    decoder.set_table_bytes_max(100);
    assert!(decoder.decode(&[0x82], &mut block, &ROOMY).is_err());
    decoder.decode(&[0x3f, 0x45, 0x82], &mut block, &ROOMY).unwrap();
    decoder.decode(&[0x82], &mut block, &ROOMY).unwrap();
    assert!(decoder.decode(&[0x3f, 0x46], &mut block, &ROOMY).is_err());
}

/// A block over the limits stores nothing beyond them, but updates the table, so that the next block can be
/// decoded.
#[test]
fn fields_above_the_limits_are_dropped_but_indexed() {
    let limits = Limits { head_bytes_max: 200, fields_max: 10, ..Limits::default() };
    let mut encoder = HpackEncoder::default();
    let mut decoder = HpackDecoder::new(4096);
    let mut block = FieldBlock::default();
    let value = [b'v'; 600];
    let mut wire = Vec::new();
    encoder.encode_block(&mut wire, [(&b"x-long"[..], &value[..])]);
    decoder.decode(&wire, &mut block, &limits).unwrap();
    assert!(block.is_too_large && block.fields.is_empty() && block.bytes.is_empty());
    assert_eq!(block.size, 638);
    wire.clear();
    encoder.encode_block(&mut wire, [(&b"x-long"[..], &value[..]), (b"x", b"y")]);
    decoder.decode(&wire, &mut block, &ROOMY).unwrap();
    assert_eq!(block.iter().collect::<Vec<_>>(), [(&b"x-long"[..], &value[..]), (b"x", b"y")]);
}

/// Secrets are never indexed: a correct guess in the same block would shrink it (RFC 7541 section 7.1).
#[test]
fn secrets_are_never_indexed() {
    for (name, value) in [
        ("authorization", "Basic c2VjcmV0"),
        ("Proxy-Authorization", "Basic c2VjcmV0"),
        ("set-cookie", "id=1"),
        ("cookie", "short"),
    ] {
        let mut encoder = HpackEncoder::default();
        let mut first = Vec::new();
        let mut second = Vec::new();
        encoder.encode_block(&mut first, [(name.as_bytes(), value.as_bytes())]);
        encoder.encode_block(&mut second, [(name.as_bytes(), value.as_bytes())]);
        assert_eq!(first, second);
        assert_eq!(first[0] & 0xf0, 0x10, "{name}: a literal that is never indexed");
    }
}

#[test]
fn encoder_signals_changes_of_the_table_limit() {
    let mut encoder = HpackEncoder::default();
    let mut out = Vec::new();
    let field = [(&b"x-a"[..], &b"b"[..])];
    encoder.encode_block(&mut out, field);
    encoder.set_table_bytes_max(0);
    encoder.set_table_bytes_max(1 << 20);
    encoder.set_table_bytes_max(4096);
    out.clear();
    encoder.encode_block(&mut out, field);
    assert_eq!(out[..4], [0x20, 0x3f, 0xe1, 0x1f], "the smallest size, then the last");
    let mut decoder = HpackDecoder::new(4096);
    let mut block = FieldBlock::default();
    decoder.decode(&out, &mut block, &ROOMY).unwrap();
    out.clear();
    encoder.encode_block(&mut out, field);
    assert_eq!(out, [0xbe], "indexed again");
    assert!(encoder.held_bytes() < 2048);
}
