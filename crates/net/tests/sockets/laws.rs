//! The laws of this crate's fuzz targets over their seeds and mutations of them: the same in every run.

#[path = "../support/laws.rs"]
mod of_targets;

#[test]
fn proxy_header() {
    corpus::replay(&corpus::seeds("proxy_header"), 50_000, of_targets::proxy_header);
}
