//! Gateways and routes as they are served.

use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{
    Cluster, condition, controller, gateway, named, route, service, start_controller, try_get,
};
use crate::rig::{eventually, nobody};

#[test]
fn route_reaches_the_endpoints_of_its_service() {
    let (one, two) = (named("one"), named("two"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&service("two", &[&two]));
    cluster.api.apply_yaml(&route("one", "/", "one"));
    cluster.api.apply_yaml(&route("two", "/two", "two"));
    cluster.expect_body("/two/x", "two GET /two/x ");
    cluster.expect_body("/", "one GET / ");
    cluster.expect_body("/twofold", "one GET /twofold ");
}

#[test]
fn ready_only_when_the_first_configuration_is_in_force() {
    let api = ApiServer::start();
    api.set_away(true);
    let web = nobody();
    api.apply_yaml(&gateway(web));
    let rig = controller(&api);
    assert_eq!(rig.get("/live").head.lines().next(), Some("HTTP/1.1 200 OK"));
    rig.expect_report("the API server does not answer, there is no configuration yet");
    assert!(rig.get("/ready").head.starts_with("HTTP/1.1 503 "));
    api.set_away(false);
    eventually("it is ready", || rig.get("/ready").head.starts_with("HTTP/1.1 200 "));
    assert!(try_get(web, "any.example.com", "/").unwrap().starts_with("HTTP/1.1 404 "));
}

#[test]
fn weights_filters_and_rewrites_apply() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(
        "
kind: HTTPRoute
metadata: {name: filters, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}]
  rules:
    - matches: [{path: {value: /prefix}}]
      filters:
        - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}
        - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Set, value: $host}], remove: [X-Gone]}}
        - {type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: X-Out, value: '$$'}]}}
      backendRefs: [{name: one, port: 80, weight: 1}, {name: absent, port: 80, weight: 0}]
    - matches: [{path: {value: /moved}}]
      filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: to.example.com, statusCode: 301}}]
    - matches: [{path: {value: /absent}}]
      backendRefs: [{name: absent, port: 80}]
",
    );
    cluster.expect_body("/prefix", "one GET /new HTTP");
    cluster.expect_body("/prefix/a%20b?q=1", "one GET /new/a%20b?q=1 HTTP");
    let text = try_get(cluster.web, "shop.example.com", "/prefix/x").unwrap();
    assert!(text.to_ascii_lowercase().contains("x-out: $$\r\n"), "{text}");
    let asks = one.seen.lock().unwrap().asks.clone();
    assert_eq!(asks.last().unwrap().field("x-set"), ["$host"]);
    let text = try_get(cluster.web, "shop.example.com", "/moved/x?y").unwrap();
    assert!(
        text.starts_with("HTTP/1.1 301 ") && text.contains("https://to.example.com/moved/x?y\r\n"),
        "{text}"
    );
    cluster.expect_status("/absent", 500);
}

#[test]
fn listeners_keep_their_hosts_apart() {
    let (wide, narrow) = (named("wide"), named("narrow"));
    let (api, web) = (ApiServer::start(), nobody());
    let wild = "- {name: wild, hostname: '*.example.com', port: PORT, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}";
    let text = gateway(web) + &format!("    {}\n", wild.replace("PORT", &web.port().to_string()));
    api.apply_yaml(&text);
    let rig = controller(&api);
    api.apply_yaml(&service("wide", &[&wide]));
    api.apply_yaml(&service("narrow", &[&narrow]));
    let section = |text: String, name: &str| {
        text.replace("namespace: infra}", &format!("namespace: infra, sectionName: {name}}}"))
    };
    api.apply_yaml(&section(route("wide", "/", "wide"), "http"));
    api.apply_yaml(&section(route("narrow", "/narrow", "narrow"), "wild"));
    eventually("both are served", || {
        let has = |host: &str, path: &str, text: &str| {
            try_get(web, host, path).is_some_and(|answer| answer.contains(text))
        };
        has("other.test", "/narrow", "wide GET") && has("a.example.com", "/narrow", "narrow GET")
    });
    // The listener for *.example.com has no route for it, and no other listener answers.
    assert!(try_get(web, "a.example.com", "/").unwrap().starts_with("HTTP/1.1 404 "));
    drop(rig);
}

#[test]
fn secrets_are_certificates_and_their_changes_are_followed() {
    let one = named("one");
    let (api, web) = (ApiServer::start(), nobody());
    let http = gateway(web);
    api.apply_yaml(
        &http.replace("protocol: HTTP,", "protocol: HTTPS, tls: {certificateRefs: [{name: cert}]},"),
    );
    let rig = controller(&api);
    api.apply_yaml(&service("one", &[&one]));
    api.apply_yaml(&route("one", "/", "one"));
    let reason = || condition(&api.status("gateways", "infra", "web")["listeners"][0], "ResolvedRefs");
    eventually("the missing Secret is reported", || {
        reason().as_deref() == Some("False InvalidCertificateRef")
    });
    let secret = || {
        let made = rcgen::generate_simple_self_signed(vec!["shop.example.com".to_owned()]).unwrap();
        let encode = |text: String| data_encoding::BASE64.encode(text.as_bytes());
        let data = json!({ "tls.crt": encode(made.cert.pem()), "tls.key": encode(made.signing_key.serialize_pem()) });
        api.apply(json!({
            "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "cert", "namespace": "infra" }, "data": data,
        }));
        made.cert.der().to_vec()
    };
    let presented = || {
        let mut client = rustls::ClientConnection::new(
            crate::rig::client_config(),
            "shop.example.com".try_into().unwrap(),
        )
        .unwrap();
        let mut stream = std::net::TcpStream::connect(web).ok()?;
        while client.is_handshaking() {
            client.complete_io(&mut stream).ok()?;
        }
        Some(client.peer_certificates()?[0].to_vec())
    };
    let first = secret();
    eventually("the certificate is presented", || presented().as_ref() == Some(&first));
    eventually("it is resolved", || reason().as_deref() == Some("True ResolvedRefs"));
    let second = secret();
    eventually("the new certificate is presented", || presented().as_ref() == Some(&second));
    drop(rig);
}

#[test]
fn port_in_use_concerns_its_listener_alone() {
    let one = named("one");
    let taken = crate::rig::listener();
    let (api, web) = (ApiServer::start(), nobody());
    let port = taken.local_addr().unwrap().port();
    api.apply_yaml(&(gateway(web) + &format!("    - {{name: taken, port: {port}, protocol: HTTP}}\n")));
    let rig = controller(&api);
    api.apply_yaml(&service("one", &[&one]));
    api.apply_yaml(&route("one", "/", "one"));
    eventually("it is served", || try_get(web, "a.test", "/").is_some_and(|text| text.contains("one GET /")));
    let listener = |at: usize| api.status("gateways", "infra", "web")["listeners"][at].clone();
    eventually("the listener is refused", || {
        condition(&listener(1), "Accepted").as_deref() == Some("False PortUnavailable")
    });
    assert_eq!(condition(&listener(0), "Programmed").as_deref(), Some("True Programmed"));
    drop(taken);
    eventually("the port is taken once it is free", || {
        condition(&listener(1), "Programmed").as_deref() == Some("True Programmed")
    });
    drop(rig);
}

#[test]
fn gateways_have_services_that_follow_them() {
    let (api, web) = (ApiServer::start(), nobody());
    let with_label = |team: &str| {
        gateway(web)
            .replace("  listeners:", &format!("  infrastructure: {{labels: {{team: {team}}}}}\n  listeners:"))
    };
    api.apply_yaml(&with_label("shop"));
    let rig = start_controller(&api, |command, _| {
        command.args(["--addresses", "127.0.0.1", "--gateway-services", "ClusterIP"]);
    });
    let made = || api.object("services", "infra", "web-komainu");
    let team = || made().map(|service| service["metadata"]["labels"]["team"].clone());
    eventually("the Service exists", || team() == Some(json!("shop")));
    assert_eq!(made().unwrap()["spec"]["ports"][0]["port"], web.port());
    eventually("it has endpoints", || {
        api.object("endpointslices", "infra", "web-komainu-ipv4")
            .is_some_and(|slice| slice["endpoints"][0]["addresses"] == json!(["127.0.0.1"]))
    });
    api.apply_yaml(&with_label("blog"));
    eventually("the label is another one", || team() == Some(json!("blog")));
    api.delete("services", "infra", "web-komainu");
    eventually("it is made again", || team() == Some(json!("blog")));
    drop(rig);
}
