//! Fuzzes frames to both ends of an HTTP/2 connection. Checks `laws::frames` of `crates/http2/tests/support`,
//! which also runs in `cargo test`.
#![no_main]

#[path = "../../crates/http2/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::frames(bytes));
