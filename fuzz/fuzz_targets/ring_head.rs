//! Fuzzes heads and trailers in a worker's memory. Checks `laws::ring_head` of `crates/ring/tests/support`,
//! which also runs in `cargo test`.
#![no_main]

#[path = "../../crates/ring/tests/support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| laws::ring_head(bytes));
