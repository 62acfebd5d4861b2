//! Golden files: `cases/NAME.yaml` has the objects, `cases/NAME.txt` the configuration and the statuses. `KOMAINU_BLESS=1` writes
//! them.

use crate::{statuses, translated};

fn expect_case(name: &str) {
    let folder = format!("{}/tests/it/cases", env!("CARGO_MANIFEST_DIR"));
    let translation = translated(&std::fs::read_to_string(format!("{folder}/{name}.yaml")).unwrap());
    let tree = serde_json::to_string_pretty(&translation.tree).unwrap();
    let found = format!("{tree}\n\n{}", statuses(&translation));
    let path = format!("{folder}/{name}.txt");
    if std::env::var_os("KOMAINU_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "{path}: KOMAINU_BLESS=1 writes it");
}

#[test]
fn golden_simple() {
    expect_case("simple");
}

#[test]
fn golden_precedence() {
    expect_case("precedence");
}

#[test]
fn golden_filters() {
    expect_case("filters");
}

#[test]
fn golden_references() {
    expect_case("references");
}

#[test]
fn golden_hosts() {
    expect_case("hosts");
}

#[test]
fn golden_conflicts() {
    expect_case("conflicts");
}

#[test]
fn golden_grpc() {
    expect_case("grpc");
}

#[test]
fn golden_streams() {
    expect_case("streams");
}

#[test]
fn golden_listener_sets() {
    expect_case("listener_sets");
}

#[test]
fn golden_backend_tls() {
    expect_case("backend_tls");
}

#[test]
fn golden_client_certificates() {
    expect_case("client_certificates");
}

#[test]
fn golden_policies() {
    expect_case("policies");
}
