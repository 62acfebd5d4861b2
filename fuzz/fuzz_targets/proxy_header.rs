//! The PROXY protocol's header, versions 1 and 2. The law is `laws::proxy_header` in `crates/net/tests/support`, which also runs in every `cargo test`.
#![no_main]

#[path = "../../crates/net/tests/support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| laws::proxy_header(bytes));
