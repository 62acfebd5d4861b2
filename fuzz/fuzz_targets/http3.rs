//! Fuzzes the streams of one connection. Checks `laws::http3` of `crates/http3/tests/support`, which also runs
//! in `cargo test`.
#![no_main]

#[path = "../../crates/http3/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::http3(bytes));
