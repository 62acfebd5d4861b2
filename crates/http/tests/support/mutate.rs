//! Small random things, and what they do to bytes.

/// SplitMix64: a few lines, and the same numbers everywhere.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded by the bytes themselves, so that a law over them is a function of them.
    pub(crate) fn of(bytes: &[u8]) -> Random {
        let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Random(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound - 1`; 0 where the bound is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// What breaks parsers.
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
    b"0",
    b"f",
    b"-",
    b"+",
    b"\"",
    b"%",
    b"%2f",
    b"%5c",
    b"\\",
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

/// Longest that a mutation grows.
const BYTES_MAX: usize = 2048;

/// One to four small changes; `other` lends its bytes.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at + 1).min(64));
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            4 => {
                let token = TOKENS[random.below(TOKENS.len())];
                drop(bytes.splice(at..end.min(at + 2), token.iter().copied()));
            }
            5 => {
                let token = TOKENS[random.below(TOKENS.len())];
                drop(bytes.splice(at..at, token.iter().copied()));
            }
            _ => {
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from.min(other.len())..]);
            }
        }
        bytes.truncate(BYTES_MAX);
    }
}
