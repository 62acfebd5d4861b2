//! Fuzzes bytes before a TLS handshake and records after it. Checks the properties of `net::tls::hostile`,
//! which also run in `cargo test`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| net::tls::hostile::fuzz_tls(bytes));
