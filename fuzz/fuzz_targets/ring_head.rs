//! Heads and trailers in a worker's memory. The law is `laws::ring_head` in `crates/ring/tests/support`, which also runs in every `cargo test`.
#![no_main]

#[path = "../../crates/ring/tests/support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| laws::ring_head(bytes));
