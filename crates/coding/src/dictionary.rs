//! Compression with a dictionary that the client already has, so that only differences are sent (RFC 9842).

use std::io::{self, Write};

use aws_lc_rs::digest;

use crate::effort::Effort;

/// Maximum length of a dictionary, and of content compressed with one, in bytes. Both together fit Brotli's
/// window of 16 MiB, so that a distance means the same to all decoders, and each fits the window of 8 MiB
/// that every Zstandard decoder must support (RFC 9842 section 5).
pub const DICTIONARY_BYTES_MAX: usize = (8 << 20) - 16;
/// Prefix of `dcb` content, before the hash (RFC 9842 section 4).
const BROTLI_MAGIC: [u8; 4] = [0xff, b'D', b'C', b'B'];
/// Prefix of `dcz` content, before the hash: a skippable frame of 32 bytes (RFC 9842 section 5).
const ZSTD_MAGIC: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 32, 0, 0, 0];
/// Prefix of a dictionary made by `zstd --train`, which decoders would not treat as raw bytes.
const ZSTD_TRAINED: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
const WINDOW_BITS_MIN: u32 = 16;

/// The SHA-256 of a dictionary, which identifies it in requests.
pub type DictionaryHash = [u8; 32];

/// A coding that needs a dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DictionaryCoding {
    /// Brotli with a dictionary: `dcb`.
    Brotli,
    /// Zstandard with a dictionary: `dcz`.
    Zstd,
}

impl DictionaryCoding {
    /// All codings, ordered by the size of their results, smallest first.
    pub const ALL: [DictionaryCoding; 2] = [DictionaryCoding::Brotli, DictionaryCoding::Zstd];

    /// The registered name of the coding.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            DictionaryCoding::Brotli => "dcb",
            DictionaryCoding::Zstd => "dcz",
        }
    }
}

/// Hashes a content given in pieces.
pub fn hash<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> DictionaryHash {
    let mut context = digest::Context::new(&digest::SHA256);
    pieces.for_each(|piece| context.update(piece));
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Compresses a content for a client that has the dictionary of that hash. Takes time: call it where blocking
/// is allowed. Returns `None` if the dictionary or content is too long, or the dictionary is unusable with
/// this coding.
///
/// # Errors
/// The encoder's error, which for bytes in memory means out of memory.
pub fn compress_with(
    coding: DictionaryCoding,
    effort: Effort,
    hash: &DictionaryHash,
    dictionary: &[u8],
    bytes: &[u8],
) -> io::Result<Option<Vec<u8>>> {
    let fits = |bytes: &[u8]| (2..=DICTIONARY_BYTES_MAX).contains(&bytes.len());
    if !fits(dictionary) || !fits(bytes) {
        return Ok(None);
    }
    match coding {
        DictionaryCoding::Brotli => brotli(effort, hash, dictionary, bytes).map(Some),
        DictionaryCoding::Zstd if dictionary.starts_with(&ZSTD_TRAINED) => Ok(None),
        DictionaryCoding::Zstd => zstd(effort, hash, dictionary, bytes).map(Some),
    }
}

/// The base-two logarithm of a window for that many bytes.
fn window_bits(bytes: usize) -> u32 {
    (usize::BITS - bytes.leading_zeros()).max(WINDOW_BITS_MIN)
}

fn brotli(effort: Effort, hash: &DictionaryHash, dictionary: &[u8], bytes: &[u8]) -> io::Result<Vec<u8>> {
    let params = brotli::enc::BrotliEncoderParams {
        quality: effort.select([5, 7, 11]),
        // The usable window is 16 bytes smaller than its size.
        lgwin: window_bits(dictionary.len() + bytes.len() + 16).min(24) as i32,
        size_hint: bytes.len(),
        ..brotli::enc::BrotliEncoderParams::default()
    };
    let mut compressed = [&BROTLI_MAGIC[..], hash].concat();
    brotli::enc::BrotliCompressCustomIoCustomDict(
        &mut brotli::IoReaderWrapper(&mut &bytes[..]),
        &mut brotli::IoWriterWrapper(&mut compressed),
        &mut [0; 4096],
        &mut [0; 4096],
        &params,
        brotli::enc::StandardAlloc::default(),
        &mut |_, _, _, _| (),
        dictionary,
        io::ErrorKind::UnexpectedEof.into(),
    )?;
    Ok(compressed)
}

fn zstd(effort: Effort, hash: &DictionaryHash, dictionary: &[u8], bytes: &[u8]) -> io::Result<Vec<u8>> {
    let compressed = [&ZSTD_MAGIC[..], hash].concat();
    let level = effort.select([3, 12, 19]);
    let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(compressed, level, dictionary)?;
    // The dictionary stays accessible as long as the content fits the window.
    encoder.window_log(window_bits(dictionary.len().max(bytes.len())).min(23))?;
    encoder.long_distance_matching(dictionary.len() > 1 << 20)?;
    encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;

    use super::*;

    /// Decompresses as a client does.
    pub(crate) fn decompress(coding: DictionaryCoding, dictionary: &[u8], bytes: &[u8]) -> Vec<u8> {
        let hash = hash([dictionary].into_iter());
        let mut plain = Vec::new();
        match coding {
            DictionaryCoding::Brotli => {
                let coded = bytes.strip_prefix(&[&b"\xff\x44\x43\x42"[..], &hash].concat()[..]).unwrap();
                let mut decoder = brotli::Decompressor::new(coded, 4096);
                assert!(decoder.attach_dictionary(dictionary.to_vec().into()));
                decoder.read_to_end(&mut plain).unwrap();
            }
            DictionaryCoding::Zstd => {
                assert!(bytes.starts_with(&[&b"\x5e\x2a\x4d\x18\x20\0\0\0"[..], &hash].concat()));
                let mut decoder = zstd::stream::Decoder::with_dictionary(bytes, dictionary).unwrap();
                decoder.window_log_max(23).unwrap();
                decoder.read_to_end(&mut plain).unwrap();
            }
        }
        plain
    }

    pub(crate) fn versions(lines: usize) -> (Vec<u8>, Vec<u8>) {
        let mut rng = fastrand::Rng::with_seed(7);
        let line = |at: usize, rng: &mut fastrand::Rng| {
            format!("function f{at}(x) {{ return {:x}; }}\n", rng.u64(..))
        };
        let old: Vec<String> = (0..lines).map(|at| line(at, &mut rng)).collect();
        let mut new = old.clone();
        new.insert(lines / 3, line(0, &mut rng));
        new.remove(lines / 2);
        (old.concat().into_bytes(), new.concat().into_bytes())
    }

    #[test]
    fn delta_round_trips_and_is_small() {
        for lines in [1, 60, 5_000, 60_000] {
            let (old, new) = versions(lines);
            let hash = hash([&old[..]].into_iter());
            for coding in DictionaryCoding::ALL {
                let efforts: &[Effort] = match lines {
                    60_000 => &[Effort::Fast],
                    _ => &[Effort::Fast, Effort::Balanced, Effort::Small],
                };
                for &effort in efforts {
                    let coded = compress_with(coding, effort, &hash, &old, &new).unwrap().unwrap();
                    assert_eq!(decompress(coding, &old, &coded), new, "{coding:?} {effort:?} {lines}");
                    assert!(
                        lines < 60 || coded.len() < 60 + new.len() / 50,
                        "{coding:?} {effort:?} {}",
                        coded.len()
                    );
                }
            }
        }
    }

    #[test]
    fn unusable_dictionaries_and_contents_are_not_compressed() {
        let (mut old, new) = versions(60);
        old[..4].copy_from_slice(&ZSTD_TRAINED);
        let with = |coding, dictionary: &[u8], bytes: &[u8]| {
            let hash = hash([dictionary].into_iter());
            compress_with(coding, Effort::Fast, &hash, dictionary, bytes).unwrap()
        };
        assert_eq!(with(DictionaryCoding::Zstd, &old, &new), None);
        assert!(with(DictionaryCoding::Brotli, &old, &new).is_some());
        for coding in DictionaryCoding::ALL {
            assert_eq!(with(coding, b"", &new), None);
            assert_eq!(with(coding, &new, b""), None);
            assert_eq!(with(coding, &vec![0; DICTIONARY_BYTES_MAX + 1], &new), None);
            assert_eq!(with(coding, &new, &vec![0; DICTIONARY_BYTES_MAX + 1]), None);
        }
    }
}
