//! Prefixed integers of up to 62 bits (RFC 9204 section 4.1.1), of instructions that may be cut anywhere.

/// Maximum number of bytes after the prefix: nine of seven bits.
const CONTINUED_MAX: usize = 9;

/// Reads the integer at the start of `bytes`, with a prefix of the low `prefix` bits; returns it and its
/// length. `None` if it is cut off.
///
/// # Errors
/// The integer is larger than 62 bits.
pub(crate) fn read(bytes: &[u8], prefix: u32) -> Result<Option<(u64, usize)>, &'static str> {
    const TOO_LARGE: &str = "integer too large";
    let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
    let max = ((1u16 << prefix) - 1) as u8;
    if first & max < max {
        return Ok(Some((u64::from(first & max), 1)));
    }
    let mut value = u64::from(max);
    for (at, &byte) in rest.iter().take(CONTINUED_MAX).enumerate() {
        value = value.checked_add(u64::from(byte & 127) << (at * 7)).ok_or(TOO_LARGE)?;
        if byte < 128 {
            let fits = value <= crate::varint::VARINT_MAX;
            return if fits { Ok(Some((value, at + 2))) } else { Err(TOO_LARGE) };
        }
    }
    if rest.len() < CONTINUED_MAX { Ok(None) } else { Err(TOO_LARGE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::varint::VARINT_MAX;
    use sections::integer::write;

    #[test]
    fn long_integers_round_trip_and_truncated_ones_are_incomplete() {
        for prefix in 3..=8 {
            for shift in 0..62 {
                for value in [1u64 << shift, (1 << shift) - 1, VARINT_MAX] {
                    let mut out = Vec::new();
                    write(&mut out, 0, prefix, value);
                    assert_eq!(read(&out, prefix), Ok(Some((value, out.len()))));
                    for len in 0..out.len() {
                        assert_eq!(read(&out[..len], prefix), Ok(None), "{value} in {len} bytes");
                    }
                }
            }
        }
    }

    #[test]
    fn integers_above_62_bits_are_rejected() {
        assert!(read(&[0xff; 10], 8).is_err());
        let mut out = Vec::new();
        write(&mut out, 0, 8, VARINT_MAX + 1);
        assert!(read(&out, 8).is_err());
    }
}
