//! Compression of whole contents.

use std::io::{self, Write};

use http::Coding;

use crate::effort::Effort;

/// Compresses the bytes with that coding. Takes time: call it where blocking is allowed.
///
/// # Errors
/// The encoder's error, which for bytes in memory means out of memory.
pub fn compress(coding: Coding, effort: Effort, bytes: &[u8]) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Identity => Ok(bytes.to_vec()),
        Coding::Gzip => gzip(effort, bytes),
        Coding::Zstd => zstd::bulk::compress(bytes, effort.select([1, 6, 15])),
        Coding::Brotli => brotli(effort, bytes),
    }
}

fn gzip(effort: Effort, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let level = flate2::Compression::new(effort.select([1, 6, 9]));
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 3), level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn brotli(effort: Effort, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let params = brotli::enc::BrotliEncoderParams {
        quality: effort.select([2, 5, 10]),
        size_hint: bytes.len(),
        ..brotli::enc::BrotliEncoderParams::default()
    };
    let mut compressed = Vec::with_capacity(bytes.len() / 3);
    brotli::BrotliCompress(&mut &bytes[..], &mut compressed, &params)?;
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::tests::decompress;

    #[test]
    fn every_coding_round_trips_and_compresses() {
        let text: Vec<u8> =
            (0..2000).flat_map(|line| format!("line {line} of a text\n").into_bytes()).collect();
        for coding in Coding::ALL {
            for effort in [Effort::Fast, Effort::Balanced, Effort::Small] {
                let compressed = compress(coding, effort, &text).unwrap();
                assert_eq!(decompress(coding, &compressed), text, "{coding:?} {effort:?}");
                assert!(
                    coding == Coding::Identity || compressed.len() < text.len() / 3,
                    "{coding:?} {effort:?}"
                );
            }
            assert_eq!(decompress(coding, &compress(coding, Effort::Balanced, b"").unwrap()), b"");
        }
    }
}
