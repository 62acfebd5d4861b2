//! Fuzzes PROXY protocol headers, versions 1 and 2. Checks `laws::proxy_header` of
//! `crates/net/tests/support`, which also runs in `cargo test`.
#![no_main]

#[path = "../../crates/net/tests/support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| laws::proxy_header(bytes));
