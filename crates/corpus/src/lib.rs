//! Inputs for laws. A law is a function that panics if a property does not hold for the given bytes. Only
//! tests and fuzz targets use this crate.
//!
//! This crate owns the checked-in seeds of the fuzz targets (`fuzz/seeds/TARGET`) and the mutations that
//! the ordinary tests make of them. It never contains the laws themselves.

use std::path::Path;

/// Maximum length of a mutated input; longer ones are truncated.
const BYTES_MAX: usize = 2048;

/// Byte sequences that often break HTTP parsers; for other formats the seeds contain such sequences.
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\r",
    b"\n",
    b"\0",
    b" ",
    b"\t",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b":",
    b";",
    b",",
    b"=",
    b"0",
    b"f",
    b"-",
    b"+",
    b"\"",
    b"\\",
    b"%",
    b"%2f",
    b"%5c",
    b"%2e",
    b"/../",
    b"//",
    b"?",
    b"#",
    b"[::1]",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"ffffffffffffffff",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: a\r\n",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"http://b/",
];

/// Returns the checked-in seeds of a fuzz target, ordered by name.
///
/// # Panics
/// If the directory has no seeds or cannot be read, because a law without inputs checks nothing.
#[must_use]
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort_unstable();
    let seeds: Vec<_> =
        paths.iter().map(|path| std::fs::read(path).expect("a seed is a readable file")).collect();
    assert!(!seeds.is_empty(), "{}: no seeds", folder.display());
    seeds
}

/// Calls `property` with each seed, and then with `mutations` mutated seeds; deterministic.
///
/// # Panics
/// If `property` panics.
pub fn replay(seeds: &[Vec<u8>], mutations: usize, mut property: impl FnMut(&[u8])) {
    seeds.iter().for_each(|bytes| property(bytes));
    let mut random = seeded(&seeds.concat());
    for _ in 0..mutations {
        let mut bytes = seeds[random.usize(..seeds.len())].clone();
        let other = &seeds[random.usize(..seeds.len())];
        mutate(&mut random, &mut bytes, other);
        property(&bytes);
    }
}

/// A random number generator seeded with the FNV-1a hash of `bytes`.
#[must_use]
pub fn seeded(bytes: &[u8]) -> fastrand::Rng {
    let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    fastrand::Rng::with_seed(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
}

/// Cuts `bytes` into pieces of random lengths, including empty ones; deterministic.
#[must_use]
pub fn random_cuts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut random = seeded(bytes);
    let longest = [2, 8, 64, 512][random.usize(..4)];
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(random.usize(..longest).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Makes one to four small changes; some of them append the end of `other`.
pub fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..=bytes.len());
        let end = at + random.usize(..=(bytes.len() - at).min(64));
        match random.usize(..7) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.u32(..8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            4 => {
                let token = TOKENS[random.usize(..TOKENS.len())];
                drop(bytes.splice(at..end.min(at + 2), token.iter().copied()));
            }
            5 => {
                let token = TOKENS[random.usize(..TOKENS.len())];
                drop(bytes.splice(at..at, token.iter().copied()));
            }
            _ => {
                let from = random.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
        bytes.truncate(BYTES_MAX);
    }
}
