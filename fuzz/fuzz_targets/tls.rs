//! Bytes of clients before a TLS handshake, and records after one. The laws are those of `net::tls::hostile`, which also run in every
//! `cargo test`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| net::tls::hostile::fuzz_tls(bytes));
