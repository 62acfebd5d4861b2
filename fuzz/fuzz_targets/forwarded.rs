//! Fuzzes values of `Forwarded` and `X-Forwarded-For`. Checks `laws::forwarded` of
//! `crates/http/tests/support`, which also runs in `cargo test`.
#![no_main]

#[path = "../../crates/http/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::forwarded(bytes));
