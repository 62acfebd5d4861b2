//! Fuzzes chunked bodies. Checks `laws::chunked` of `crates/http/tests/support`, which also runs in `cargo
//! test`.
#![no_main]

#[path = "../../crates/http/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::chunked(bytes));
