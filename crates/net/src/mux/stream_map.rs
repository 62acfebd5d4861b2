//! Tables of the streams of one connection.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Values by the identifiers of streams.
pub(crate) type StreamMap<V> = HashMap<u32, V, BuildHasherDefault<StreamIdHasher>>;

/// Hashes the identifier of a stream by a multiplication. A peer could choose identifiers whose hashes collide, but a
/// connection has too few streams at once for that to cost anything.
#[derive(Default)]
pub(crate) struct StreamIdHasher(u64);

impl Hasher for StreamIdHasher {
    fn write_u32(&mut self, id: u32) {
        // The table takes the lowest bits, which differ for identifiers that follow each other, and the highest.
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn identifiers_of_one_connection_are_distributed() {
        let hasher = BuildHasherDefault::<StreamIdHasher>::default();
        // Those of HTTP/3 follow each other; those of HTTP/2 are odd.
        for (first, step) in [(0, 1), (1, 2), (40_000, 1), (1_000_001, 2)] {
            let hashes = (0..128).map(|at| hasher.hash_one(first + at * step));
            let places: HashSet<u64> = hashes.map(|hash| hash % 256).collect();
            assert_eq!(places.len(), 128, "from {first}");
        }
    }
}
