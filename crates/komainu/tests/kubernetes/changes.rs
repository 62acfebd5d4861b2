//! Changes of objects while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cluster::{Cluster, named, route, service, try_get};
use crate::rig::eventually;

#[test]
fn routes_and_endpoints_change_and_disappear() {
    let (one, two) = (named("one"), named("two"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("app", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "app"));
    cluster.expect_body("/", "one GET");
    cluster.api.apply_yaml(&service("app", &[&two]));
    cluster.expect_body("/", "two GET");
    cluster.api.delete("endpointslices", "shop", "app-0");
    cluster.expect_status("/", 503);
    cluster.api.delete("services", "shop", "app");
    cluster.expect_status("/", 500);
    cluster.api.delete("httproutes", "shop", "app");
    cluster.expect_status("/", 404);
    let listens = || try_get(cluster.web, "a.test", "/").is_some();
    assert!(listens());
    cluster.api.delete("gateways", "infra", "web");
    eventually("the address is closed", || !listens());
}

#[test]
fn changes_after_a_break_are_seen() {
    let (one, two) = (named("one"), named("two"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&service("two", &[&two]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
    // Watches that end are begun again where they were.
    let lists = cluster.api.list_count("httproutes");
    cluster.api.drop_watches();
    cluster.api.apply_yaml(&route("app", "/", "two"));
    cluster.expect_body("/", "two GET");
    assert!(cluster.api.list_count("httproutes") <= lists + 1);
    // Versions that are gone (410) make it list again, and objects that disappeared meanwhile are gone.
    cluster.api.delete("httproutes", "shop", "app");
    cluster.api.forget_versions();
    cluster.expect_status("/", 404);
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
}

#[test]
fn last_configuration_is_served_while_the_api_server_is_away() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
    cluster.api.set_away(true);
    cluster.rig.expect_report("the API server does not answer, the last configuration stays in force");
    for _ in 0..20 {
        assert!(try_get(cluster.web, "a.test", "/").unwrap().contains("one GET"));
    }
    cluster.api.apply_yaml(&route("app", "/later", "one"));
    cluster.api.set_away(false);
    cluster.rig.expect_report("the API server answers again");
    cluster.expect_status("/", 404);
}

#[test]
fn no_request_fails_while_routes_change() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
    let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (is_over, count, web) = (is_over.clone(), count.clone(), cluster.web);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let text = try_get(web, "shop.example.com", "/").unwrap();
                    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..30 {
        let prefix = format!("/round-{round}");
        cluster.api.apply_yaml(&route("other", &prefix, "absent"));
        cluster.expect_status(&prefix, 500);
    }
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(count.load(Ordering::Relaxed) > 0);
}
