//! Checks the laws of this crate's fuzz targets on their seeds and mutations of them; deterministic.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

#[path = "support/laws.rs"]
mod laws;

#[test]
fn ring_head_law_holds() {
    corpus::replay(&corpus::seeds("ring_head"), 50_000, laws::ring_head);
}
