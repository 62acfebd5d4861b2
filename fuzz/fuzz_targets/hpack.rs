//! Header blocks of one connection. The law is `laws::hpack` in `crates/http2/tests/support`, which also runs in every `cargo test`.
#![no_main]

#[path = "../../crates/http2/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::hpack(bytes));
