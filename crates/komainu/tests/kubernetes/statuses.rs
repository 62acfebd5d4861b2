//! Statuses that the controller writes.

use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{Cluster, condition, controller, gateway, named, route, service};
use crate::rig::{eventually, nobody};

#[test]
fn statuses_are_written_and_then_left_alone() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    eventually("the route is accepted", || {
        cluster.route_condition("app", "Accepted").as_deref() == Some("True Accepted")
    });
    let gateway = || cluster.api.status("gateways", "infra", "web");
    eventually("the route is counted", || gateway()["listeners"][0]["attachedRoutes"] == 1);
    assert_eq!(gateway()["addresses"], json!([{ "type": "IPAddress", "value": "127.0.0.1" }]));
    assert_eq!(condition(&gateway(), "Programmed").as_deref(), Some("True Programmed"));
    let class = cluster.api.status("gatewayclasses", "", "komainu");
    assert_eq!(condition(&class, "Accepted").as_deref(), Some("True Accepted"));
    let parent = &cluster.api.status("httproutes", "shop", "app")["parents"][0];
    assert_eq!(parent["controllerName"], "komainu.dev/gateway-controller");
    assert_eq!(parent["conditions"][0]["observedGeneration"], 1);
    let time = parent["conditions"][0]["lastTransitionTime"].clone();
    assert!(time.as_str().unwrap().ends_with('Z'));
    // A change of the route updates the generation, and not the time.
    let (written, connections) = (cluster.api.patches().len(), cluster.api.connections());
    cluster.api.apply_yaml(&route("app", "/other", "one"));
    let status = || cluster.api.status("httproutes", "shop", "app");
    eventually("the generation is observed", || {
        status()["parents"][0]["conditions"][0]["observedGeneration"] == 2
    });
    assert_eq!(status()["parents"][0]["conditions"][0]["lastTransitionTime"], time);
    assert_eq!(cluster.api.patches().len(), written + 1);
    // Many are written one after the other on connections that are kept.
    for at in 0..15 {
        cluster.api.apply_yaml(&route(&format!("app-{at}"), "/more", "one"));
        let name = format!("app-{at}");
        eventually("it is accepted", || {
            cluster.route_condition(&name, "Accepted").as_deref() == Some("True Accepted")
        });
    }
    let opened = cluster.api.connections() - connections;
    assert!(opened < 10, "{opened} connections for {} statuses", cluster.api.patches().len() - written);
}

#[test]
fn conflicts_are_tried_again_and_other_controllers_keep_their_parents() {
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&route("app", "/", "absent"));
    eventually("the fault is reported", || {
        cluster.route_condition("app", "ResolvedRefs").as_deref() == Some("False BackendNotFound")
    });
    cluster.api.refuse_patches(3);
    let theirs =
        json!({ "controllerName": "example.com/other", "parentRef": { "name": "other" }, "conditions": [] });
    cluster.api.set_status("httproutes", "shop", "app", json!({ "parents": [theirs] }));
    eventually("both have their parents", || {
        let status = cluster.api.status("httproutes", "shop", "app");
        status["parents"].as_array().is_some_and(|parents| parents.len() == 2 && parents[0] == theirs)
    });
}

#[test]
fn route_that_leaves_has_no_status_of_this_controller() {
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&route("app", "/", "absent"));
    eventually("it is accepted", || {
        cluster.route_condition("app", "Accepted").as_deref() == Some("True Accepted")
    });
    let theirs =
        json!({ "controllerName": "example.com/other", "parentRef": { "name": "other" }, "conditions": [] });
    let mut status = cluster.api.status("httproutes", "shop", "app");
    status["parents"].as_array_mut().unwrap().push(theirs.clone());
    cluster.api.set_status("httproutes", "shop", "app", status);
    cluster.api.apply_yaml(&route("app", "/", "absent").replace("name: web", "name: nobodys"));
    eventually("the entries of others are left", || {
        cluster.api.status("httproutes", "shop", "app")["parents"] == json!([theirs])
    });
}

#[test]
fn only_the_holder_of_the_lease_writes_and_another_takes_over() {
    let one = named("one");
    let (api, web) = (ApiServer::start(), nobody());
    api.apply_yaml(&gateway(web));
    let first = controller(&api);
    eventually("a replica holds the Lease", || api.lease_holder().is_some());
    let holder = api.lease_holder().unwrap();
    assert!(holder.ends_with(&format!("_{}", first.child.id())), "{holder}");
    // Its own address is another process's: the second one serves nothing here, but it watches.
    let second = controller(&api);
    api.apply_yaml(&service("one", &[&one]));
    api.apply_yaml(&route("app", "/", "one"));
    let accepted = |name: &str| condition(&api.status("httproutes", "shop", name)["parents"][0], "Accepted");
    eventually("the first writes", || accepted("app").is_some());
    drop(first);
    api.apply_yaml(&route("later", "/later", "one"));
    eventually("the second writes", || accepted("later").is_some());
    assert!(api.lease_holder().unwrap().ends_with(&format!("_{}", second.child.id())));
}
