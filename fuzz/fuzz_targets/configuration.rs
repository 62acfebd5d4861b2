//! Fuzzes the text of a configuration file. Checks `laws::configuration` of `crates/config/tests/support`,
//! which also runs in `cargo test`.
#![no_main]

#[path = "../../crates/config/tests/support/laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    laws::configuration(&String::from_utf8_lossy(bytes));
});
