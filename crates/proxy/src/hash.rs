//! A small hash that does not vary between cores, machines or restarts, because clients are assigned to
//! servers by it.

/// FNV-1a over the bytes, mixed so that every bit of the result depends on every byte.
#[must_use]
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(sum)
}

/// Returns a number in which every bit depends on every bit of `seed` (the finalizer of splitmix64).
#[must_use]
pub(crate) const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
