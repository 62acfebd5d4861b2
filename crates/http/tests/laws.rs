//! The laws of the fuzz targets over mutated vectors: the same every time, and quick enough for every test run.

mod support;

use std::path::Path;

use support::mutate::{Random, mutate};
use support::{laws, seeds};

/// Mutations tried for each law.
const ROUNDS: usize = 20_000;

/// Calls the law with the seeds, then with mutations of them.
fn try_law(law: fn(&[u8]), name: &str) {
    let seeds = seeds::of(name, &Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"));
    let mut random = Random::of(name.as_bytes());
    seeds.iter().for_each(|bytes| law(bytes));
    for _ in 0..ROUNDS {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut random, &mut bytes, other);
        law(&bytes);
    }
}

#[test]
fn request() {
    try_law(laws::request, "request");
}

#[test]
fn response() {
    try_law(laws::response, "response");
}

#[test]
fn chunked() {
    try_law(laws::chunked, "chunked");
}

#[test]
fn target() {
    try_law(laws::target, "target");
}
