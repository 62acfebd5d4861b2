//! Variable-length integers of QUIC (RFC 9000 section 16).

/// The largest value.
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// Reads the integer at the start of `bytes`; returns it and its length. `None` if it is cut off.
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let rest = bytes.get(1..len)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte));
    Some((value, len))
}

/// Writes a value of at most [`VARINT_MAX`] in its shortest form.
pub(crate) fn write(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= VARINT_MAX);
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 9000 appendix A.1.
    #[test]
    fn varints_match_the_rfc_examples() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out, bytes);
        }
        assert_eq!(read(&[0x40, 0x25]), Some((37, 2)), "a longer form is valid");
    }

    #[test]
    fn varints_round_trip_and_truncated_ones_are_incomplete() {
        for shift in 0..62 {
            for value in [1u64 << shift, (1 << shift) - 1, ((1 << shift) + 1).min(VARINT_MAX)] {
                let mut out = Vec::new();
                write(&mut out, value);
                assert_eq!(read(&out), Some((value, out.len())));
                for len in 0..out.len() {
                    assert_eq!(read(&out[..len]), None, "{value} in {len} bytes");
                }
            }
        }
    }
}
