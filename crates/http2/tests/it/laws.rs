//! Checks the laws of the fuzz target on its seeds and mutations of them; deterministic.

use crate::support::laws;

/// Number of mutations for each law.
const MUTATIONS: usize = 10_000;

#[test]
fn frames_law_holds() {
    corpus::replay(&corpus::seeds("http2"), MUTATIONS, laws::frames);
}

#[test]
fn hpack_law_holds() {
    corpus::replay(&corpus::seeds("hpack"), MUTATIONS, laws::hpack);
}
