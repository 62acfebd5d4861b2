//! Addresses, hosts and memory that tenants share: who has them keeps them.

use std::net::IpAddr;

use kubernetes::objects::Objects;
use kubernetes::options::{IngressOptions, TranslateOptions};
use kubernetes::translate::{ClusterConfig, translate};
use serde_json::{Value, json};

use crate::ingress::{beginning, ingress, notes, routes};
use crate::{put, statuses};

const CLASS: &str = "komainu.dev/gateway-controller";

/// Ingresses of the namespace `default`, and a class of Gateways.
fn world() -> Objects {
    let mut all = beginning();
    put(
        &mut all,
        json!({ "kind": "GatewayClass", "metadata": { "name": "komainu" }, "spec": { "controllerName": CLASS } }),
    );
    put(&mut all, json!({ "kind": "Namespace", "metadata": { "name": "tenant" } }));
    all
}

fn created(second: u32) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60)
}

fn gateway(name: &str, second: u32, listeners: Value) -> Value {
    json!({
        "kind": "Gateway", "metadata": { "name": name, "namespace": "tenant", "creationTimestamp": created(second) },
        "spec": { "gatewayClassName": "komainu", "listeners": listeners },
    })
}

fn route(namespace: &str, name: &str, second: u32, hosts: Value, rules: Value) -> Value {
    json!({
        "kind": "HTTPRoute", "metadata": { "name": name, "namespace": namespace, "creationTimestamp": created(second) },
        "spec": { "parentRefs": [{ "name": "web", "namespace": "tenant" }], "hostnames": hosts, "rules": rules },
    })
}

fn open_listener(port: u16, protocol: &str) -> Value {
    json!({ "name": format!("p{port}"), "port": port, "protocol": protocol, "allowedRoutes": { "namespaces": { "from": "All" } } })
}

fn redirect(host: &str) -> Value {
    json!([{ "filters": [{ "type": "RequestRedirect", "requestRedirect": { "hostname": host } }] }])
}

fn address(config: &ClusterConfig, name: &str) -> Option<String> {
    let status = config.statuses.iter().find(|status| status.key.name == name).unwrap();
    status.status["addresses"][0]["value"].as_str().map(str::to_owned)
}

#[test]
fn addresses_of_the_server_itself_are_no_listeners() {
    let mut all = world();
    let listeners = [24062, 8081, 8082, 80].map(|port| open_listener(port, "HTTP"));
    put(&mut all, gateway("web", 1, json!(listeners)));
    let base = json!({
        "control": { "listen": "127.0.0.1:24062" },
        "site": [{ "listen": [{ "address": ":8081", "tls": false }], "route": [{ "path": "/live", "respond": 200 }] }],
    });
    let Value::Object(base) = base else { unreachable!() };
    let config = translate(&all, &TranslateOptions { base, ..TranslateOptions::default() }).unwrap();
    let text = statuses(&config);
    for (name, what) in [("p24062", "--control"), ("p8081", "--ready")] {
        let refused = format!("{name}: Accepted=False PortUnavailable: ");
        let line = text.lines().find(|line| line.contains(&refused)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(what), "{line}");
    }
    assert!(config.addresses.contains(":80") && config.addresses.contains(":8082"), "{:?}", config.addresses);
    assert_eq!(config.addresses.len(), 2);
}

#[test]
fn gateway_that_has_an_address_keeps_it() {
    let mut all = world();
    let pool: Vec<IpAddr> = (10..13).map(|last| IpAddr::from([198, 51, 100, last])).collect();
    let mut options = TranslateOptions { pool, ..TranslateOptions::default() };
    put(&mut all, gateway("old", 1, json!([open_listener(80, "HTTP")])));
    let config = translate(&all, &options).unwrap();
    let given = address(&config, "old").unwrap();
    options.assigned.clone_from(&config.assigned);
    let mut newer = gateway("newer", 2, json!([open_listener(80, "HTTP")]));
    newer["spec"]["addresses"] = json!([{ "type": "IPAddress", "value": given }]);
    put(&mut all, newer);
    let config = translate(&all, &options).unwrap();
    assert_eq!(address(&config, "old"), Some(given.clone()));
    assert_eq!(address(&config, "newer"), None);
    assert!(statuses(&config).contains("AddressNotUsable: no address is left, or another Gateway has it"));
    // After a restart, the status says who has it.
    let mut old = gateway("old", 1, json!([open_listener(80, "HTTP")]));
    old["status"] = json!({ "addresses": [{ "type": "IPAddress", "value": given }] });
    put(&mut all, old);
    options.assigned.clear();
    let config = translate(&all, &options).unwrap();
    assert_eq!((address(&config, "old"), address(&config, "newer")), (Some(given), None));
}

#[test]
fn newer_gateway_takes_no_address_of_ingresses_for_another_protocol() {
    for (port, protocol) in [(80, "TCP"), (80, "HTTPS"), (443, "HTTP"), (443, "TCP")] {
        let mut all = world();
        let mut object = ingress("default", "shop", 60, json!({ "path": "/" }), &[("ssl-redirect", "false")]);
        object["spec"]["tls"] = json!([{ "hosts": ["shop.example.com"], "secretName": "cert" }]);
        put(&mut all, object);
        let mut listener = open_listener(port, protocol);
        if protocol == "HTTPS" {
            listener["tls"] = json!({ "certificateRefs": [{ "name": "cert", "namespace": "default" }] });
        }
        let mut newer = gateway("web", 61, json!([listener]));
        newer["metadata"]["namespace"] = json!("default");
        put(&mut all, newer.clone());
        let config = translate(&all, &TranslateOptions::default()).unwrap();
        assert_eq!(routes(&config, "shop.example.com", ":80").len(), 1, "{port} {protocol}");
        assert_eq!(routes(&config, "shop.example.com", ":443").len(), 1, "{port} {protocol}");
        let text = statuses(&config);
        assert!(text.contains("Conflicted=True ProtocolConflict: Ingresses have the address"), "{text}");
        // An older one has it.
        newer["metadata"]["creationTimestamp"] = json!(created(59));
        put(&mut all, newer);
        let config = translate(&all, &TranslateOptions::default()).unwrap();
        assert!(notes(&config.events, "shop").iter().any(|note| note.contains("another protocol")));
    }
}

#[test]
fn newer_routes_of_other_namespaces_take_no_host_of_an_ingress() {
    let mut all = world();
    for (name, host) in [("shop", "shop.example.com"), ("any", "")] {
        let mut object = ingress("default", name, 60, json!({ "path": "/", "host": host }), &[]);
        if host.is_empty() {
            object["spec"]["rules"][0].as_object_mut().unwrap().remove("host");
        }
        put(&mut all, object);
    }
    put(&mut all, gateway("web", 61, json!([open_listener(80, "HTTP")])));
    put(
        &mut all,
        route("tenant", "thief", 62, json!(["shop.example.com", "own.example.com"]), redirect("evil.test")),
    );
    let config = translate(&all, &TranslateOptions::default()).unwrap();
    let of_shop = routes(&config, "shop.example.com", ":80");
    assert!(of_shop.iter().all(|route| route.get("redirect").is_none()) && of_shop.len() == 1, "{of_shop:?}");
    assert_eq!(routes(&config, "own.example.com", ":80").len(), 1);
    let text = statuses(&config);
    let said = "PartiallyInvalid=True UnsupportedValue: Some hosts are not served: an older Ingress of another namespace has shop.example.com";
    assert!(text.contains(said), "{text}");
    assert!(
        routes(&config, "", ":80").iter().any(|route| route.get("proxy").is_some()),
        "the default backend"
    );

    // Its owner may move it to a Gateway.
    put(&mut all, route("default", "mover", 63, json!(["shop.example.com"]), redirect("new.test")));
    let config = translate(&all, &TranslateOptions::default()).unwrap();
    let of_shop = routes(&config, "shop.example.com", ":80");
    assert!(of_shop.iter().all(|route| route.get("redirect").is_some()), "{of_shop:?}");

    // An older route has the host.
    let mut all = world();
    put(&mut all, ingress("default", "shop", 60, json!({ "path": "/" }), &[]));
    put(&mut all, gateway("web", 61, json!([open_listener(80, "HTTP")])));
    put(&mut all, route("tenant", "older", 59, json!(["shop.example.com"]), redirect("own.test")));
    let config = translate(&all, &TranslateOptions::default()).unwrap();
    assert!(routes(&config, "shop.example.com", ":80").iter().all(|route| route.get("redirect").is_some()));
    assert!(notes(&config.events, "shop")[0].contains("a Gateway has the host"));
}

/// Options with a small allowance.
fn bounded(bytes: u64) -> TranslateOptions {
    TranslateOptions { namespace_bytes: Some(bytes), ..TranslateOptions::default() }
}

fn hosts(name: &str, count: usize) -> Value {
    (0..count).map(|at| format!("{name}-{at}.test")).collect()
}

#[test]
fn routes_of_a_namespace_take_a_bounded_part_of_the_memory() {
    let mut all = world();
    put(&mut all, gateway("web", 1, json!([open_listener(80, "HTTP")])));
    put(&mut all, route("default", "shop", 2, json!(["shop.test"]), redirect("to.test")));
    put(&mut all, route("tenant", "small", 3, json!(["small.test"]), redirect("to.test")));
    // 16 hosts with 16 rules of 8 matches.
    let matches: Vec<Value> = (0..8).map(|at| json!({ "path": { "value": format!("/{at}") } })).collect();
    let rule = |at: usize| {
        let mut rule = redirect("evil.test")[0].clone();
        rule["matches"] = matches
            .clone()
            .into_iter()
            .map(|mut one| {
                one["path"]["value"] = json!(format!("/{at}{}", one["path"]["value"].as_str().unwrap()));
                one
            })
            .collect();
        rule
    };
    let rules: Vec<Value> = (0..16).map(rule).collect();
    for at in 0..40 {
        put(
            &mut all,
            route("tenant", &format!("r{at}"), 10 + at, hosts(&format!("h{at}"), 16), json!(rules)),
        );
    }
    let config = translate(&all, &bounded(32 << 20)).unwrap();
    let sites = config.config.sites.len();
    let all_routes: usize = config.config.sites.iter().map(|site| site.routes.len()).sum();
    assert!(sites > 600 && all_routes < 5_000, "{sites} sites with {all_routes} routes");
    // The older ones are served, the newer ones closed.
    assert_eq!(routes(&config, "shop.test", ":80").len(), 1);
    assert_eq!(routes(&config, "small.test", ":80").len(), 1);
    assert_eq!(routes(&config, "h0-0.test", ":80").len(), 128);
    let closed = routes(&config, "h39-0.test", ":80");
    assert_eq!(closed, [&json!({ "respond": { "status": 500 } })]);
    let text = statuses(&config);
    let said = "HTTPRoute tenant/r39 parent web: Accepted=False UnsupportedValue: the namespace tenant has more routes";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("HTTPRoute tenant/r0 parent web: Accepted=True"));
    assert!(text.contains("HTTPRoute default/shop parent web: Accepted=True"));
    // Nothing of the namespace is served where not even the answers 500 fit.
    let config = translate(&all, &bounded(4 << 20)).unwrap();
    assert_eq!(
        config.tree["site"].as_array().unwrap().len(),
        2,
        "that of the listener, and that of the other tenant"
    );
    assert_eq!(routes(&config, "shop.test", ":80").len(), 1);
    assert!(translate(&all, &TranslateOptions::default()).unwrap().config.sites.len() > 600);
}

#[test]
fn ingresses_of_a_namespace_take_a_bounded_part_of_the_memory() {
    let mut all = world();
    let networks: Vec<String> = (0..4_000).map(|at| format!("10.{}.{}.0/24", at / 256, at % 256)).collect();
    let networks = networks.join(",");
    let big = |name: &str, second: u32, count: usize| {
        let allow = [("whitelist-source-range", networks.as_str()), ("ssl-redirect", "false")];
        let mut object = ingress("tenant", name, second, json!({ "path": "/" }), &allow);
        let paths: Vec<Value> = (0..10)
            .map(|at| json!({ "path": format!("/{at}"), "pathType": "Prefix", "backend": { "service": { "name": "shop", "port": { "number": 80 } } } }))
            .collect();
        object["spec"]["rules"] = (0..count)
            .map(|at| json!({ "host": format!("{name}-{at}.test"), "http": { "paths": paths } }))
            .collect();
        object
    };
    put(&mut all, ingress("default", "shop", 2, json!({ "path": "/" }), &[]));
    put(&mut all, big("old", 3, 1));
    put(&mut all, big("huge", 4, 300));
    // A guarded path of a host that an Ingress which fits has too.
    let guard = json!({ "path": "/admin", "host": "old-0.test", "pathType": "Prefix" });
    let mut guarded = big("guard", 5, 300);
    guarded["spec"]["rules"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "host": "old-0.test", "http": { "paths": [guard] } }));
    put(&mut all, guarded);
    let config = translate(&all, &bounded(64 << 20)).unwrap();
    assert_eq!(routes(&config, "shop.example.com", ":80").len(), 1);
    let closed = json!({ "respond": { "status": 500 } });
    for host in ["huge-0.test", "huge-299.test", "guard-7.test", "old-0.test"] {
        assert_eq!(routes(&config, host, ":80"), [&closed], "{host}");
    }
    assert!(notes(&config.events, "huge").iter().any(|note| note.contains("--namespace-memory")));
    assert!(config.tree.to_string().len() < 1 << 20);
    // Not even that fits.
    let config = translate(&all, &bounded(8 << 20)).unwrap();
    assert_eq!(routes(&config, "shop.example.com", ":80").len(), 1);
    assert!(!config.tree.to_string().contains("huge-0.test"));
}

#[test]
fn ingress_class_of_others_keeps_no_address() {
    let mut all = world();
    let mut foreign = ingress("default", "shop", 1, json!({ "path": "/" }), &[]);
    foreign["spec"]["ingressClassName"] = json!("nginx");
    put(&mut all, foreign);
    put(&mut all, gateway("web", 61, json!([open_listener(443, "TCP")])));
    let ingress = IngressOptions::default();
    let config = translate(&all, &TranslateOptions { ingress, ..TranslateOptions::default() }).unwrap();
    assert!(!statuses(&config).contains("Ingresses have the address"));
}

#[test]
fn streams_of_a_namespace_take_a_bounded_part_of_the_memory() {
    let tls = |port: u16| json!({ "name": format!("l{port}"), "port": port, "protocol": "TLS", "tls": { "mode": "Passthrough" }, "allowedRoutes": { "namespaces": { "from": "All" } } });
    let stream = |namespace: &str, name: &str, second: u32, hosts: Value| {
        json!({
            "kind": "TLSRoute",
            "metadata": { "name": name, "namespace": namespace, "creationTimestamp": created(second) },
            "spec": {
                "parentRefs": [{ "name": "web", "namespace": "tenant" }], "hostnames": hosts,
                "rules": [{ "backendRefs": [{ "name": "shop", "port": 80 }] }],
            },
        })
    };
    let mut all = world();
    put(&mut all, gateway("web", 1, (9000..9060).map(tls).collect()));
    put(&mut all, stream("default", "shop", 2, json!(["shop.test"])));
    for at in 0..30 {
        put(&mut all, stream("tenant", &format!("r{at}"), 10 + at, hosts(&format!("h{at}"), 16)));
    }
    let streams = |bytes: u64| {
        let config = translate(&all, &bounded(bytes)).unwrap();
        let names = |stream: &config::Stream| format!("{:?}", stream.names);
        let of =
            |host: &str| config.config.streams.iter().filter(|stream| names(stream).contains(host)).count();
        (of("shop.test"), of("h0-0.test"), of("h29-0.test"), statuses(&config))
    };
    let (shop, first, last, text) = streams(16 << 20);
    assert_eq!((shop, first, last), (60, 60, 0), "{text}");
    assert!(text.contains("TLSRoute tenant/r29 parent web: Accepted=False UnsupportedValue: the namespace tenant has more routes"));
    assert!(text.contains("TLSRoute tenant/r0 parent web: Accepted=True"));
    assert_eq!(streams(1 << 30).2, 60);
}

#[test]
fn gateways_of_a_namespace_listen_at_a_bounded_number_of_addresses() {
    let mut all = world();
    let many = |first: u16| (first..first + 60).map(|port| open_listener(port, "HTTP")).collect::<Value>();
    for at in 0..10 {
        put(&mut all, gateway(&format!("many{at}"), 10 + u32::from(at), many(20_000 + 100 * at)));
    }
    let mut late = gateway("late", 50, json!([open_listener(8080, "HTTP")]));
    late["metadata"]["namespace"] = json!("default");
    put(&mut all, late);
    // The same port once more is no further address.
    put(&mut all, gateway("again", 51, many(20_000)));
    let config =
        translate(&all, &TranslateOptions { addresses_max: Some(200), ..TranslateOptions::default() })
            .unwrap();
    assert_eq!(config.addresses.len(), 101, "{:?}", config.addresses);
    assert!(config.addresses.contains(":8080") && config.addresses.contains(":20000"));
    let text = statuses(&config);
    assert!(
        text.contains("the namespace tenant listens at 100 addresses, and all Gateways at 100; the server has descriptors for 200"),
        "{text}"
    );
    let again = "Gateway tenant/again listener p20000: Conflicted=True HostnameConflict";
    assert!(text.contains(again), "{text}");
}
