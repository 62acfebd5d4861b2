//! An API server that lies: what it sends is bounded, and the last configuration stays in force.

use std::time::Duration;

use crate::cluster::{Cluster, named, route, service, try_get};

fn serving() -> (Cluster, crate::origin::Origin) {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
    (cluster, one)
}

fn expect_served(cluster: &Cluster) {
    assert!(try_get(cluster.web, "a.test", "/").unwrap().contains("one GET"));
}

#[test]
fn endless_lists_are_given_up() {
    let (cluster, _one) = serving();
    let item = b"{\"metadata\":{\"name\":\"x\"},\"spec\":{}},".repeat(4096);
    cluster.api.lie("httproutes", b"{\"metadata\":{},\"items\":[", &item, Duration::ZERO);
    cluster.api.forget_versions();
    cluster.rig.expect_report("HTTPRoute: the API server sends a response of more than 64 MiB");
    expect_served(&cluster);
    cluster.api.be_honest();
    cluster.rig.expect_report("the API server answers again");
    expect_served(&cluster);
}

#[test]
fn endless_lines_of_watches_are_given_up() {
    let (cluster, _one) = serving();
    cluster.api.send_false_event(&b"x".repeat(11 << 20));
    cluster.rig.expect_report("the API server sends an object of more than 10 MiB");
    expect_served(&cluster);
    cluster.api.send_false_event(b"not json\n");
    cluster.api.be_honest();
    cluster.api.apply_yaml(&route("app", "/later", "one"));
    cluster.expect_body("/later", "one GET");
}

#[test]
fn odd_objects_are_ignored() {
    let (cluster, _one) = serving();
    let name = "x".repeat(100_000);
    for object in [
        "null".to_owned(),
        "{}".to_owned(),
        "{\"metadata\":{\"name\":5}}".to_owned(),
        format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}"),
        "{\"metadata\":{\"name\":\"odd\",\"namespace\":\"../..\"}}".to_owned(),
        "{\"metadata\":{\"name\":\"odd\"},\"spec\":[]}".to_owned(),
    ] {
        cluster.api.send_false_event(format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n").as_bytes());
    }
    cluster.api.be_honest();
    cluster.api.apply_yaml(&route("app", "/later", "one"));
    cluster.expect_body("/later", "one GET");
}
