//! The Huffman code of RFC 7541 appendix B: encoding and decoding.
//!
//! The code is canonical: codes of equal length follow the order of their symbols, and each length continues
//! where the shorter one ended. The lengths alone define the code, and every table here is computed from them
//! at compile time.

/// Code length of each byte, in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

/// Length of the longest code in bits; the end-of-string symbol, all ones, has this length too.
const BITS_MAX: usize = 30;
/// Number of bits that index [`PAIRS`].
const PAIR_BITS: usize = 10;

/// The canonical code, ordered by length.
struct Canonical {
    /// The bytes in the order of their codes.
    symbols: [u8; 256],
    /// Index in `symbols` of the first symbol of each length.
    offsets: [u16; BITS_MAX + 2],
    /// The first code of each length.
    first: [u32; BITS_MAX + 2],
    /// The first code after each length, aligned to 30 bits: smaller values have this length or a shorter
    /// one.
    limits: [u32; BITS_MAX + 2],
}

const CANONICAL: Canonical = {
    let mut canonical = Canonical { symbols: [0; 256], offsets: [0; 32], first: [0; 32], limits: [0; 32] };
    let mut bits = 1;
    let mut code = 0u32;
    let mut count = 0usize;
    while bits <= BITS_MAX {
        code <<= 1;
        canonical.first[bits] = code;
        canonical.offsets[bits] = count as u16;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == bits {
                canonical.symbols[count] = symbol as u8;
                count += 1;
                code += 1;
            }
            symbol += 1;
        }
        canonical.limits[bits] = code << (BITS_MAX - bits);
        bits += 1;
    }
    assert!(count == 256 && code == (1 << BITS_MAX) - 1, "one code is left: that of the end of the string");
    canonical
};

/// The code of each byte.
const CODES: [u32; 256] = {
    let mut codes = [0; 256];
    let mut place = 0;
    while place < 256 {
        let symbol = CANONICAL.symbols[place] as usize;
        let bits = LENGTHS[symbol] as usize;
        codes[symbol] = CANONICAL.first[bits] + (place - CANONICAL.offsets[bits] as usize) as u32;
        place += 1;
    }
    codes
};

/// The one or two complete codes at the start of a bit sequence.
#[derive(Clone, Copy)]
struct Pair {
    symbols: [u8; 2],
    /// Number of complete codes; 0 if the first code is longer than the bits.
    count: u8,
    /// Total bits of the codes.
    bits: u8,
    /// Bits of the first code.
    first_bits: u8,
}

static PAIRS: [Pair; 1 << PAIR_BITS] = {
    let mut pairs = [Pair { symbols: [0; 2], count: 0, bits: 0, first_bits: 0 }; 1 << PAIR_BITS];
    let mut index = 0;
    while index < pairs.len() {
        let window = (index as u32) << (BITS_MAX - PAIR_BITS);
        if let Some((symbol, bits)) = symbol_of(window, PAIR_BITS) {
            pairs[index] = Pair { symbols: [symbol, 0], count: 1, bits: bits as u8, first_bits: bits as u8 };
            let after = (window << bits) & ((1 << BITS_MAX) - 1);
            if let Some((second, second_bits)) = symbol_of(after, PAIR_BITS - bits) {
                pairs[index].symbols[1] = second;
                pairs[index].count = 2;
                pairs[index].bits += second_bits as u8;
            }
        }
        index += 1;
    }
    pairs
};

/// The code at the start of 30 bits, if it has at most `bits_max` bits: its symbol and its length.
const fn symbol_of(window: u32, bits_max: usize) -> Option<(u8, usize)> {
    let mut bits = 5;
    while bits <= bits_max {
        if window < CANONICAL.limits[bits] {
            let code = window >> (BITS_MAX - bits);
            let place = CANONICAL.offsets[bits] as u32 + (code - CANONICAL.first[bits]);
            return Some((CANONICAL.symbols[place as usize], bits));
        }
        bits += 1;
    }
    None
}

/// Length of `text` once encoded, in bytes.
pub fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the encoded `text`, padded with ones.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let mut pending = 0u64;
    let mut bits = 0u32;
    for &byte in text {
        let len = u32::from(LENGTHS[usize::from(byte)]);
        pending = pending << len | u64::from(CODES[usize::from(byte)]);
        bits += len;
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((pending >> bits) as u32).to_be_bytes());
        }
    }
    let padding = (8 - bits % 8) % 8;
    pending = pending << padding | ((1 << padding) - 1);
    bits += padding;
    while bits > 0 {
        bits -= 8;
        out.push((pending >> bits) as u8);
    }
}

/// Decodes `code` and appends the text. On an error, `out` holds the text decoded before it.
///
/// # Errors
/// Padding of eight bits or more, padding that is not ones, and the end-of-string symbol (RFC 7541 section
/// 5.2).
pub fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    let start = out.len();
    // The shortest code has five bits; each lookup writes two bytes.
    out.resize(start + code.len() * 8 / 5 + 2, 0);
    let mut len = start;
    let mut rest = code;
    // Bits read but not yet decoded are at the top of `window`; the bits below are zeros.
    let mut window = 0u64;
    let mut bits = 0usize;
    loop {
        if bits <= 32
            && let Some((four, after)) = rest.split_first_chunk::<4>()
        {
            window |= u64::from(u32::from_be_bytes(*four)) << (32 - bits);
            (bits, rest) = (bits + 32, after);
        }
        while bits <= 56
            && rest.len() < 4
            && let [byte, after @ ..] = rest
        {
            window |= u64::from(*byte) << (56 - bits);
            (bits, rest) = (bits + 8, after);
        }
        let pair = PAIRS[(window >> (64 - PAIR_BITS)) as usize];
        let (used, count) = match pair.count {
            0 => match symbol_of((window >> (64 - BITS_MAX)) as u32, BITS_MAX) {
                Some((symbol, used)) if used <= bits => {
                    out[len] = symbol;
                    (used, 1)
                }
                _ => break,
            },
            count if usize::from(pair.bits) <= bits => {
                out[len..len + 2].copy_from_slice(&pair.symbols);
                (usize::from(pair.bits), usize::from(count))
            }
            _ if usize::from(pair.first_bits) <= bits => {
                out[len] = pair.symbols[0];
                (usize::from(pair.first_bits), 1)
            }
            _ => break,
        };
        len += count;
        window <<= used;
        bits -= used;
    }
    out.truncate(len);
    // The remaining bits are padding: shorter than any code, or a prefix of the end-of-string symbol.
    match bits {
        0..8 if window == !(u64::MAX >> bits) => Ok(()),
        30.. => Err("end-of-string symbol in a string"),
        _ => Err("invalid Huffman padding"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text, &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    #[test]
    fn huffman_codes_match_the_rfc() {
        // One code of each length (RFC 7541 appendix B).
        for (symbol, code, bits) in [
            (b'0', 0x0, 5),
            (b'%', 0x15, 6),
            (b':', 0x5c, 7),
            (b'&', 0xf8, 8),
            (b'!', 0x3f8, 10),
            (b'|', 0x7fc, 11),
            (b'#', 0xffa, 12),
            (0, 0x1ff8, 13),
            (b'^', 0x3ffc, 14),
            (b'<', 0x7ffc, 15),
            (b'\\', 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (153, 0x1fffdc, 21),
            (129, 0x3fffd2, 22),
            (1, 0x7fffd8, 23),
            (9, 0xffffea, 24),
            (199, 0x1ffffec, 25),
            (192, 0x3ffffe0, 26),
            (203, 0x7ffffde, 27),
            (2, 0xfffffe2, 28),
            (22, 0x3ffffffe, 30),
            (255, 0x3ffffee, 26),
        ] {
            assert_eq!((CODES[usize::from(symbol)], LENGTHS[usize::from(symbol)]), (code, bits), "{symbol}");
        }
        // The whole table, verified by a sum over all codes of the appendix.
        let all: u64 = CODES.iter().zip(LENGTHS).map(|(&code, bits)| u64::from(code) * u64::from(bits)).sum();
        assert_eq!(all, 426_587_047_688);
        assert_eq!(
            encoded(b"www.example.com"),
            [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff]
        );
    }

    #[test]
    fn huffman_coding_round_trips() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let text = [first, second, b'a', first];
                let mut out = vec![7];
                decode(&encoded(&text), &mut out).unwrap();
                assert_eq!(out[1..], text);
            }
        }
        let mut random = fastrand::Rng::with_seed(1);
        for len in 0..2000 {
            let text: Vec<u8> = (0..len % 97).map(|_| random.u8(..)).collect();
            let mut out = Vec::new();
            assert_eq!(decode(&encoded(&text), &mut out), Ok(()));
            assert_eq!(out, text);
        }
    }

    /// A trivially simple decoder of one bit at a time.
    fn bit_by_bit(code: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut value = 0u32;
        let mut bits = 0u8;
        for at in 0..code.len() * 8 {
            value = value << 1 | u32::from(code[at / 8] >> (7 - at % 8) & 1);
            bits += 1;
            if let Some(symbol) = (0..256).find(|&symbol| LENGTHS[symbol] == bits && CODES[symbol] == value) {
                out.push(symbol as u8);
                (value, bits) = (0, 0);
            } else if bits == 30 {
                return None;
            }
        }
        (bits < 8 && value == (1 << bits) - 1).then_some(out)
    }

    #[test]
    fn huffman_decoder_agrees_with_a_bitwise_decoder() {
        for code in [
            &b""[..],
            &[0xff],
            &[0xff; 2],
            &[0xff; 4],
            &[0xff; 5],
            &[0xff, 0xff, 0xff, 0xfc],
            &[0x00],
            &[0x07],
            &[0x18],
            &[0xfe],
            &[0xff, 0xff, 0xff, 0xff, 0x00],
        ] {
            assert_eq!(decode(code, &mut Vec::new()).is_ok(), bit_by_bit(code).is_some(), "{code:x?}");
        }
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..3000 {
            let ones = random.bool();
            let code: Vec<u8> = (0..random.usize(..12))
                .map(|_| if ones && random.bool() { 0xff } else { random.u8(..) })
                .collect();
            let mut out = Vec::new();
            let result = decode(&code, &mut out).ok().map(|()| out);
            assert_eq!(result, bit_by_bit(&code), "{code:x?}");
        }
    }
}
