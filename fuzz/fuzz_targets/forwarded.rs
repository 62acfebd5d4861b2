//! Values of `Forwarded` and `X-Forwarded-For`. The law is `laws::forwarded` in `crates/http/tests/support`, which also runs in every `cargo test`.
#![no_main]

#[path = "../../crates/http/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::laws::forwarded(bytes));
