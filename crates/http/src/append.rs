//! Copies of content.

/// Bytes that are copied at once. The C library (glibc before 2.39, on AMD processors since Zen 3) copies 2,112 bytes and
/// more by `rep movsb`, which can take several times as long as its loop for fewer (glibc bug 30994).
pub const COPY_BYTES: usize = 1024;

/// Appends `bytes` to `out`, in pieces of at most [`COPY_BYTES`].
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    bytes.chunks(COPY_BYTES).for_each(|piece| out.extend_from_slice(piece));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_bytes_are_those_given() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, 1023, 1024, 1025, 4096, 10_000] {
            let mut out = b"before".to_vec();
            append(&mut out, &bytes[..len]);
            assert!(out == [b"before", &bytes[..len]].concat(), "{len} bytes");
        }
    }
}
