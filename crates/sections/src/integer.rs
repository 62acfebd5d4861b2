//! HPACK integers (RFC 7541 section 5.1).

/// Maximum number of bytes after the prefix: 28 bits, far above every limit here.
const CONTINUED_MAX: usize = 4;

/// Writes `value` with an integer prefix of the low `prefix` bits; the other bits of the first byte are those
/// of `opcode`.
pub fn write(out: &mut Vec<u8>, opcode: u8, prefix: u32, value: u64) {
    let max = (1u64 << prefix) - 1;
    if value < max {
        out.push(opcode | value as u8);
        return;
    }
    out.push(opcode | max as u8);
    let mut rest = value - max;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads the integer at the start of `bytes`, with a prefix of the low `prefix` bits; returns it and the
/// remaining bytes.
///
/// # Errors
/// A static reason: the integer is cut off or too large.
pub fn read(bytes: &[u8], prefix: u32) -> Result<(usize, &[u8]), &'static str> {
    let [first, rest @ ..] = bytes else { return Err("header block ends in an instruction") };
    let max = (1u8 << prefix).wrapping_sub(1);
    if first & max < max {
        return Ok((usize::from(first & max), rest));
    }
    let mut value = usize::from(max);
    for (at, &byte) in rest.iter().take(CONTINUED_MAX).enumerate() {
        value += usize::from(byte & 127) << (at * 7);
        if byte < 128 {
            return Ok((value, &rest[at + 1..]));
        }
    }
    Err(if rest.len() < CONTINUED_MAX { "header block ends in an instruction" } else { "integer too large" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_encoding_matches_the_rfc_examples() {
        for (value, prefix, expected) in [
            (10, 5, &[10][..]),
            (1337, 5, &[31, 154, 10]),
            (42, 8, &[42]),
            (127, 7, &[127, 0]),
            (31, 5, &[31, 0]),
        ] {
            let mut out = Vec::new();
            write(&mut out, 0, prefix, value);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn integers_round_trip_and_truncated_ones_fail() {
        for prefix in 4..=7 {
            for value in (0..600).chain([16_383, 16_384, 1 << 21, 1 << 27]) {
                let mut out = Vec::new();
                write(&mut out, 0, prefix, value);
                out.push(99);
                assert_eq!(read(&out, prefix), Ok((value as usize, &[99][..])));
                for len in 0..out.len() - 1 {
                    assert!(read(&out[..len], prefix).is_err(), "{value} in {len} bytes");
                }
            }
        }
        assert_eq!(read(&[127, 255, 255, 255, 255, 0], 7), Err("integer too large"));
        assert_eq!(read(&[127, 128, 128, 128, 128, 0], 7), Err("integer too large"));
    }
}
