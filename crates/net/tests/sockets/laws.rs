//! Runs the properties of this crate's fuzz targets on their seeds and deterministic mutations of these.

#[path = "../support/laws.rs"]
mod of_targets;

#[test]
fn proxy_header_law_holds() {
    corpus::replay(&corpus::seeds("proxy_header"), 50_000, of_targets::proxy_header);
}
