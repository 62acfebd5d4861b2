//! The laws, for the seeds of the fuzz target and mutations of them.

use crate::support::laws;

const MUTATIONS: usize = 10_000;

#[test]
fn http3_law_holds() {
    corpus::replay(&corpus::seeds("http3"), MUTATIONS, laws::http3);
}
