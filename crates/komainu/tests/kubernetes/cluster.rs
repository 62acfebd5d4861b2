//! A cluster: an API server, a Gateway at a loopback address, and a controller.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // test helpers are test code too

use std::net::SocketAddr;

use serde_json::Value;

use crate::api_server::ApiServer;
use crate::origin::Origin;
use crate::rig::{Folder, Rig, komainu, nobody};

pub struct Cluster {
    pub api: ApiServer,
    pub rig: Rig,
    /// Address of the Gateway `web`.
    pub web: SocketAddr,
}

/// An answer with its name.
pub fn named(name: &'static str) -> Origin {
    Origin::start(move |ask| {
        let body = format!("{name} {}\n", ask.line());
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    })
}

/// A class, and a Gateway for the routes of all namespaces.
pub fn gateway(address: SocketAddr) -> String {
    format!(
        "
kind: GatewayClass
metadata: {{name: komainu}}
spec: {{controllerName: komainu.dev/gateway-controller}}
---
kind: Gateway
metadata: {{name: web, namespace: infra}}
spec:
  gatewayClassName: komainu
  listeners:
    - {{name: http, port: {}, protocol: HTTP, allowedRoutes: {{namespaces: {{from: All}}}}}}
",
        address.port()
    )
}

/// A Service with these servers as endpoints.
pub fn service(name: &str, origins: &[&Origin]) -> String {
    let mut text = format!(
        "kind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{port: 80}}]}}\n"
    );
    for (index, origin) in origins.iter().enumerate() {
        let address = origin.url.strip_prefix("http://").unwrap();
        let (host, port) = address.split_once(':').unwrap();
        text += &format!(
            "---
kind: EndpointSlice
metadata: {{name: {name}-{index}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
endpoints: [{{addresses: [{host}], conditions: {{ready: true}}}}]
ports: [{{port: {port}}}]
"
        );
    }
    text
}

/// A route of a prefix to a Service.
pub fn route(name: &str, prefix: &str, service: &str) -> String {
    format!(
        "
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop}}
spec:
  parentRefs: [{{name: web, namespace: infra}}]
  rules:
    - matches: [{{path: {{value: {prefix}}}}}]
      backendRefs: [{{name: {service}, port: 80}}]
"
    )
}

impl Cluster {
    /// Starts a controller at an API server that has a Gateway.
    pub fn start() -> Cluster {
        let (api, web) = (ApiServer::start(), nobody());
        api.apply_yaml(&gateway(web));
        let rig = controller(&api);
        Cluster { api, rig, web }
    }

    /// Waits until the Gateway answers with this beginning.
    pub fn expect_body(&self, path: &str, beginning: &str) {
        crate::rig::eventually(&format!("{path} is answered with {beginning}"), || {
            try_get(self.web, "shop.example.com", path)
                .is_some_and(|answer| answer.contains(&format!("\r\n\r\n{beginning}")))
        });
    }

    /// Waits until the Gateway answers with this status.
    pub fn expect_status(&self, path: &str, status: u16) {
        crate::rig::eventually(&format!("{path} is answered {status}"), || {
            try_get(self.web, "shop.example.com", path)
                .is_some_and(|answer| answer.starts_with(&format!("HTTP/1.1 {status} ")))
        });
    }

    /// The value of a metric of the controller; `label` is `name="value"`, or empty.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        metric(&self.rig, name, label)
    }

    /// The condition of a route's first parent.
    pub fn route_condition(&self, name: &str, kind: &str) -> Option<String> {
        let status = self.api.status("httproutes", "shop", name);
        condition(&status["parents"][0], kind)
    }
}

/// The value of a metric of a controller; `label` is `name="value"`, or empty.
pub fn metric(rig: &Rig, name: &str, label: &str) -> f64 {
    let text = rig.metrics();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(label));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name} {label}: {text}"))
}

/// Status and reason of a condition.
pub fn condition(status: &Value, kind: &str) -> Option<String> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some(format!("{} {}", found["status"].as_str()?, found["reason"].as_str()?))
}

/// Starts a controller.
pub fn controller(api: &ApiServer) -> Rig {
    start_controller(api, |command, folder| {
        command.args(["--addresses", "127.0.0.1"]);
        command.arg("--control").arg(format!("unix:{}", folder.at("control.sock").display()));
    })
}

/// Starts a controller with the arguments that `add` adds.
pub fn start_controller(api: &ApiServer, add: impl FnOnce(&mut std::process::Command, &Folder)) -> Rig {
    let folder = Folder::new();
    let config = format!(
        "
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: 'http://{}'}}}}]
users: [{{name: test, user: {{token: secret}}}}]
",
        api.address
    );
    folder.write("config", config);
    let mut command = komainu();
    command.args(["kubernetes", "--ready", "127.0.0.1:0", "--loopback-endpoints", "--threads", "2"]);
    command.arg("--kubeconfig").arg(folder.at("config"));
    add(&mut command, &folder);
    command.env("RUNTIME_DIRECTORY", folder.at("run"));
    Rig::start(command, folder)
}

/// Sends a GET request, and returns the response; `None` if there is none.
pub fn try_get(address: SocketAddr, host: &str, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(crate::rig::PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}
