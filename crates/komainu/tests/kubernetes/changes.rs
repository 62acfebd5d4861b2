//! Changes of objects while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::api_server::ApiServer;
use crate::cluster::{Cluster, controller, gateway, metric, named, route, service, try_get};
use crate::rig::{eventually, nobody};

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

const CHANGES: &str = "komainu_kubernetes_changes_total";

#[test]
fn endpoints_change_without_a_router() {
    let (one, two) = (named("one"), named("two"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("app", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "app"));
    cluster.expect_body("/", "one GET");
    let routers = || cluster.metric(CHANGES, "kind=\"routes\"");
    // Counts follow the changes.
    let mut before = routers();
    eventually("the routes are counted", || {
        thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut before, routers()) == before && before > 0.0
    });
    for _ in 0..3 {
        cluster.api.apply_yaml(&service("app", &[&one, &two]));
        cluster.expect_body("/", "two GET");
        cluster.expect_body("/", "one GET");
        cluster.api.delete("endpointslices", "shop", "app-0");
        eventually("the endpoint that is gone gets no request", || {
            (0..4).all(|_| try_get(cluster.web, "a.test", "/").unwrap().contains("two GET"))
        });
    }
    assert_eq!(routers(), before);
    // Two changes each time, or more where objects come one by one.
    eventually("they are counted", || cluster.metric(CHANGES, "kind=\"servers\"") >= 6.0);
    assert_eq!(cluster.metric(CHANGES, "kind=\"failed\""), 0.0);
    // A later change of routes has the servers of then.
    cluster.api.apply_yaml(&route("other", "/other", "app"));
    cluster.expect_body("/other", "two GET");
    assert!((0..4).all(|_| try_get(cluster.web, "a.test", "/").unwrap().contains("two GET")));
    eventually("the change is counted", || routers() == before + 1.0);
}

#[test]
fn change_of_one_route_reads_one_site() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("app", &[&one]));
    let host = |at: usize, prefix: &str| {
        let text = route(&format!("r{at}"), prefix, "app");
        text.replace("  rules:", &format!("  hostnames: [h{at}.test]\n  rules:"))
    };
    for at in 0..30 {
        cluster.api.apply_yaml(&host(at, "/"));
    }
    let is_answered = |host: &str, path: &str, status: &str| {
        try_get(cluster.web, host, path).is_some_and(|text| text.starts_with(&format!("HTTP/1.1 {status} ")))
    };
    eventually("all are served", || (0..30).all(|at| is_answered(&format!("h{at}.test"), "/", "200")));
    let before = cluster.metric("komainu_kubernetes_sites_read_total", "");
    cluster.api.apply_yaml(&host(7, "/seven"));
    eventually("the change is served", || is_answered("h7.test", "/", "404"));
    assert!(is_answered("h7.test", "/seven", "200"));
    // The count follows the change.
    eventually("one site was read", || {
        cluster.metric("komainu_kubernetes_sites_read_total", "") == before + 1.0
    });
    assert!((0..30).filter(|at| *at != 7).all(|at| is_answered(&format!("h{at}.test"), "/", "200")));
}

#[test]
fn state_of_the_api_server_is_shown_while_everything_goes_on() {
    let (one, two) = (named("one"), named("two"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&service("two", &[&two]));
    cluster.api.apply_yaml(&route("one", "/", "one"));
    cluster.expect_body("/", "one GET");
    let is_up = || cluster.metric("komainu_kubernetes_api_up", "");
    assert_eq!(is_up(), 1.0);
    assert!(cluster.metric("komainu_kubernetes_applied_seconds", "") > 1.7e9);
    cluster.api.set_away(true);
    eventually("it is away", || is_up() == 0.0);
    assert!(cluster.metric("komainu_kubernetes_api_away_since_seconds", "") > 1.7e9);
    assert!(cluster.rig.get("/ready").head.starts_with("HTTP/1.1 200 "));
    cluster.api.apply_yaml(&route("two", "/two", "two"));
    for _ in 0..20 {
        assert!(try_get(cluster.web, "a.test", "/two").unwrap().contains("one GET"));
    }
    cluster.api.set_away(false);
    cluster.expect_body("/two", "two GET");
    eventually("it is back", || is_up() == 1.0);
    assert_eq!(cluster.metric("komainu_kubernetes_api_away_since_seconds", ""), 0.0);
    assert!(cluster.metric("komainu_kubernetes_api_failures_total", "") >= 1.0);
}

#[test]
fn warning_of_a_certificate_is_logged_once() {
    let one = named("one");
    let (api, web) = (ApiServer::start(), nobody());
    let http = gateway(web);
    api.apply_yaml(
        &http.replace("protocol: HTTP,", "protocol: HTTPS, tls: {certificateRefs: [{name: cert}]},"),
    );
    let secret = || {
        let made = rcgen::generate_simple_self_signed(vec!["other.example.com".to_owned()]).unwrap();
        let encode = |text: String| data_encoding::BASE64.encode(text.as_bytes());
        let data = serde_json::json!({ "tls.crt": encode(made.cert.pem()), "tls.key": encode(made.signing_key.serialize_pem()) });
        api.apply(serde_json::json!({
            "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "cert", "namespace": "infra" }, "data": data,
        }));
    };
    secret();
    api.apply_yaml(&service("one", &[&one]));
    let named_host = |name: &str| {
        route(name, "/", "one").replace("  rules:", &format!("  hostnames: [{name}.example.com]\n  rules:"))
    };
    api.apply_yaml(&named_host("shop"));
    let rig = controller(&api);
    rig.expect_report("no certificate is for shop.example.com");
    for round in 0..5 {
        let before = metric(&rig, CHANGES, "kind=\"routes\"");
        api.apply_yaml(&route(&format!("r{round}"), &format!("/{round}"), "one"));
        eventually("the change is applied", || metric(&rig, CHANGES, "kind=\"routes\"") > before);
    }
    let before = metric(&rig, CHANGES, "kind=\"routes\"");
    secret();
    eventually("the certificate is applied", || metric(&rig, CHANGES, "kind=\"certificates\"") > 0.0);
    assert_eq!(metric(&rig, CHANGES, "kind=\"routes\""), before);
    let count = rig.reported().matches("no certificate is for shop.example.com").count();
    assert_eq!(count, 1, "{}", rig.reported());
}
