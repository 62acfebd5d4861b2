//! A worker that writes what it likes into the memory it shares with the server. The laws are those of `ring::hostile`,
//! which also run in every `cargo test`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ring::hostile::fuzz_hostile(bytes));
