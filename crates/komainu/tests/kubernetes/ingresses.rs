//! Ingresses as they are served, with their status and Events.

use std::net::SocketAddr;

use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{named, service, start_controller, try_get};
use crate::rig::{Folder, Rig, eventually, komainu, nobody};

/// Starts a controller that serves Ingresses at this address.
fn controller(api: &ApiServer, address: SocketAddr) -> Rig {
    start_controller(api, |command, _| {
        command.args(["--ingress-http", &address.to_string(), "--ingress-https", &nobody().to_string()]);
        command.args(["--status-address", "lb.example.com"]);
    })
}

const CLASS: &str = "
kind: IngressClass
metadata: {name: komainu}
spec: {controller: komainu.dev/ingress-controller}
";

/// An Ingress of the host shop.example.com.
fn ingress(name: &str, path: &str, service: &str, annotations: &str) -> String {
    format!(
        "
kind: Ingress
metadata: {{name: {name}, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z', annotations: {{{annotations}}}}}
spec:
  ingressClassName: komainu
  rules:
    - host: shop.example.com
      http:
        paths: [{{path: '{path}', pathType: ImplementationSpecific, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}]
"
    )
}

fn annotation(name: &str, value: &str) -> String {
    format!("nginx.ingress.kubernetes.io/{name}: '{value}'")
}

#[test]
fn ingresses_are_served_with_their_annotations() {
    let (one, two) = (named("one"), named("two"));
    let (api, web) = (ApiServer::start(), nobody());
    api.apply_yaml(CLASS);
    api.apply_yaml(&service("one", &[&one]));
    api.apply_yaml(&service("two", &[&two]));
    let regex = [annotation("use-regex", "true"), annotation("rewrite-target", "/$2")].join(", ");
    api.apply_yaml(&ingress("api", "/api(/|$)(.*)", "one", &regex));
    let canary = [annotation("canary", "true"), annotation("canary-by-header", "X-Canary")].join(", ");
    api.apply_yaml(&ingress("canary", "/api(/|$)(.*)", "two", &canary));
    let _rig = controller(&api, web);
    let get = |path: &str| try_get(web, "shop.example.com", path).unwrap_or_default();
    eventually("the path is rewritten", || get("/API/a/b?c=d").contains("one GET /a/b?c=d HTTP"));
    assert!(get("/other").starts_with("HTTP/1.1 404 "));
    let status = || api.status("ingresses", "shop", "api");
    eventually("the status has the address", || {
        status()["loadBalancer"]["ingress"] == json!([{ "hostname": "lb.example.com" }])
    });
    let ask = || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(web).unwrap();
        let request =
            "GET /api/x HTTP/1.1\r\nHost: shop.example.com\r\nX-Canary: always\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(ask().contains("two GET /x HTTP"), "{}", ask());
}

#[test]
fn guard_that_is_not_followed_closes_and_has_one_event() {
    let one = named("one");
    let (api, web) = (ApiServer::start(), nobody());
    api.apply_yaml(CLASS);
    api.apply_yaml(&service("one", &[&one]));
    api.apply_yaml(&ingress("open", "/open", "one", ""));
    api.apply_yaml(&ingress("guarded", "/guarded", "one", &annotation("auth-snippet", "deny all;")));
    let _rig = controller(&api, web);
    let get = |path: &str| try_get(web, "shop.example.com", path).unwrap_or_default();
    eventually("the other path is served", || get("/open").contains("one GET /open HTTP"));
    assert!(get("/guarded").starts_with("HTTP/1.1 403 "), "{}", get("/guarded"));
    let events = || api.events_about("shop", "guarded");
    eventually("the Event is written", || events().len() == 1);
    let (reason, note) = events().remove(0);
    assert_eq!(reason, "UnsupportedAnnotation");
    assert!(note.contains("auth-snippet") && note.contains("closed (403)"), "{note}");
    assert!(api.events_about("shop", "open").is_empty());
    // The annotation goes: the path is served.
    api.apply_yaml(&ingress("guarded", "/guarded", "one", ""));
    eventually("the path is open", || get("/guarded").contains("one GET /guarded HTTP"));
    assert_eq!(events().len(), 1);
}

#[test]
fn urls_of_annotations_lead_to_no_address_of_this_machine() {
    let (inner, secret) = (named("inner"), named("secret"));
    let (api, web) = (ApiServer::start(), nobody());
    api.apply_yaml(CLASS);
    api.apply_yaml(&service("inner", &[&inner]));
    let port = secret.url.rsplit_once(':').unwrap().1.to_owned();
    let url = format!("http://127.0.0.1:{port}/");
    api.apply_yaml(&ingress("asks", "/asks", "inner", &annotation("auth-url", &url)));
    api.apply_yaml(&ingress("open", "/open", "inner", ""));
    let folder = Folder::new();
    let config = format!(
        "current-context: t\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\nclusters: [{{name: t, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: t, user: {{token: x}}}}]\n",
        api.address
    );
    folder.write("config", config);
    let mut command = komainu();
    command
        .args(["kubernetes", "--ready", "127.0.0.1:0", "--threads", "1", "--kubeconfig"])
        .arg(folder.at("config"));
    command.args(["--ingress-http", &web.to_string(), "--ingress-https", &nobody().to_string()]);
    command.env("RUNTIME_DIRECTORY", folder.at("run"));
    let _rig = Rig::start(command, folder);
    let get = |path: &str| try_get(web, "shop.example.com", path).unwrap_or_default();
    // Endpoints at loopback addresses are left out too.
    eventually("it serves", || get("/open").starts_with("HTTP/1.1 503 "));
    assert!(get("/asks").starts_with("HTTP/1.1 403 "), "{}", get("/asks"));
    let notes = || api.events_about("shop", "asks");
    eventually("an Event says why", || {
        notes().iter().any(|(_, note)| note.contains("address of this machine"))
    });
    assert!(secret.seen.lock().unwrap().asks.is_empty());
}
