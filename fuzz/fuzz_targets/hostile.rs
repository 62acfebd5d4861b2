//! Fuzzes the shared memory that a compromised worker can write. Checks the properties of `ring::hostile`,
//! which also run in `cargo test`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ring::hostile::fuzz_hostile(bytes));
