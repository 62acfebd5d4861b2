//! The laws of the fuzz target over its seeds and mutations of them: the same in every run.

use crate::support::laws;

/// Mutations tried for each law.
const MUTATIONS: usize = 10_000;

#[test]
fn frames() {
    corpus::replay(&corpus::seeds("http2"), MUTATIONS, laws::frames);
}

#[test]
fn hpack() {
    corpus::replay(&corpus::seeds("hpack"), MUTATIONS, laws::hpack);
}
