//! Two versions of a script, and the decoding of the second with the first as a dictionary.
#![allow(unreachable_pub)] // several test programs use it

use std::io::Read;

use crate::rig::Answer;

/// A script as produced by a build tool, and its next version.
pub fn versions() -> (String, String) {
    let mut rng = fastrand::Rng::with_seed(9842);
    let line = |at: usize, rng: &mut fastrand::Rng| {
        format!("export function f{at}(x) {{ return x * {:x}; }}\n", rng.u64(..))
    };
    let mut lines: Vec<String> = (0..900).map(|at| line(at, &mut rng)).collect();
    let old = lines.concat();
    lines.remove(500);
    lines.insert(100, "export const added = true;\n".into());
    (old, lines.concat())
}

fn hash(text: &str) -> [u8; 32] {
    coding::HashedContent::new([text.as_bytes().into()].into()).hash
}

/// Fields `Available-Dictionary` for this content and `Accept-Encoding` with these codings.
pub fn has(text: &str, codings: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut value = String::new();
    for three in hash(text).chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        value.extend((0..=three.len()).map(|at| char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63])));
    }
    format!("Available-Dictionary: :{value}=:\r\nAccept-Encoding: {codings}\r\n")
}

/// Decodes a response as a client with the dictionary does.
pub fn decoded(answer: &Answer, dictionary: &str) -> String {
    let mut text = String::new();
    let hash = hash(dictionary);
    match answer.field("Content-Encoding") {
        Some("dcb") => {
            let content = answer.body.strip_prefix(b"\xff\x44\x43\x42").unwrap().strip_prefix(&hash).unwrap();
            let mut decoder = brotli::Decompressor::new(content, 4096);
            assert!(decoder.attach_dictionary(dictionary.as_bytes().to_vec().into()));
            decoder.read_to_string(&mut text).unwrap();
        }
        Some("dcz") => {
            assert_eq!(answer.body[..8], *b"\x5e\x2a\x4d\x18\x20\0\0\0");
            assert_eq!(answer.body[8..40], hash);
            let dictionary = dictionary.as_bytes();
            let mut decoder = zstd::stream::Decoder::with_dictionary(&answer.body[..], dictionary).unwrap();
            decoder.read_to_string(&mut text).unwrap();
        }
        other => panic!("{other:?}"),
    }
    text
}
