//! Checks the laws of the fuzz targets on their seeds, the vectors, and mutations of both; deterministic.

use std::path::Path;

use crate::support::{laws, seeds};

/// Number of mutations for each law.
const MUTATIONS: usize = 20_000;

fn holds(law: fn(&[u8]), target: &str) {
    let mut inputs = corpus::seeds(target);
    inputs.extend(seeds::of(target, &Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")));
    corpus::replay(&inputs, MUTATIONS, law);
}

#[test]
fn request_law_holds() {
    holds(laws::request, "request");
}

#[test]
fn response_law_holds() {
    holds(laws::response, "response");
}

#[test]
fn chunked_law_holds() {
    holds(laws::chunked, "chunked");
}

#[test]
fn target_law_holds() {
    holds(laws::target, "target");
}

#[test]
fn forwarded_law_holds() {
    holds(laws::forwarded, "forwarded");
}
