//! KomainuPolicies as they are served: guards, pages, and their statuses.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::cluster::{Cluster, condition, named, route, service};
use crate::rig::eventually;

/// A user of the password `myPassword`.
const HASH: &str = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC";

fn users(names: &[&str]) -> String {
    let lines: String = names.iter().map(|name| format!("{name}:{HASH}\n")).collect();
    format!(
        "
kind: Secret
type: komainu.dev/policy
metadata: {{name: users, namespace: shop}}
data: {{users: {}}}
",
        data_encoding::BASE64.encode(lines.as_bytes())
    )
}

fn policy(name: &str, namespace: &str, target: &str, directives: &str) -> String {
    format!(
        "
kind: KomainuPolicy
metadata: {{name: {name}, namespace: {namespace}, generation: 1}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]
  {directives}
"
    )
}

/// Status and body of a request with these fields.
fn ask(cluster: &Cluster, fields: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(cluster.web).ok()?;
    stream.set_read_timeout(Some(crate::rig::PATIENCE)).ok()?;
    write!(stream, "GET /a HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n{fields}\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

fn basic(user: &str) -> String {
    let text = data_encoding::BASE64.encode(format!("{user}:myPassword").as_bytes());
    format!("Authorization: Basic {text}\r\n")
}

fn status_of(cluster: &Cluster, namespace: &str, name: &str) -> Option<String> {
    let status = cluster.api.status("komainupolicies", namespace, name);
    condition(&status["ancestors"][0], "Accepted")
}

#[test]
fn policy_asks_for_the_users_of_a_secret() {
    let one = named("one");
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    cluster.expect_body("/", "one GET");
    let answers = |fields: &str, status: u16| {
        eventually(&format!("{fields} is answered {status}"), || {
            ask(&cluster, fields).is_some_and(|answer| answer.0 == status)
        });
    };
    // Without its Secret nobody gets in.
    let directives = "auth: {basic: {name: users}}";
    cluster.api.apply_yaml(&policy("guard", "shop", "kind: HTTPRoute, name: app", directives));
    answers(&basic("alice"), 500);
    eventually("the policy is refused", || {
        status_of(&cluster, "shop", "guard").as_deref() == Some("False Invalid")
    });
    cluster.api.apply_yaml(&users(&["alice"]));
    answers("", 401);
    answers(&basic("alice"), 200);
    eventually("the policy is accepted", || {
        status_of(&cluster, "shop", "guard").as_deref() == Some("True Accepted")
    });
    cluster.api.apply_yaml(&users(&["berta"]));
    answers(&basic("alice"), 401);
    answers(&basic("berta"), 200);
    cluster.api.delete("komainupolicies", "shop", "guard");
    answers("", 200);
}

#[test]
fn policy_of_a_gateway_has_pages_for_errors() {
    let cluster = Cluster::start();
    let pages = "error_pages: {'404': '<h1>nothing here</h1>'}";
    cluster.api.apply_yaml(&policy("pages", "infra", "kind: Gateway, name: web", pages));
    eventually("the page is sent", || ask(&cluster, "") == Some((404, "<h1>nothing here</h1>".to_owned())));
    let pages = "error_pages: {'404': gone}";
    cluster.api.apply_yaml(&policy("pages", "infra", "kind: Gateway, name: web", pages));
    eventually("the other page is sent", || ask(&cluster, "") == Some((404, "gone".to_owned())));
}

#[test]
fn policy_limits_and_its_server_decides() {
    let (one, portal) = (named("one"), named("portal"));
    let cluster = Cluster::start();
    cluster.api.apply_yaml(&service("one", &[&one]));
    cluster.api.apply_yaml(&service("portal", &[&portal]));
    cluster.api.apply_yaml(&route("app", "/", "one"));
    let directives =
        "auth: {ask: {name: portal, port: 80, path: /verify}}\n  limit: [{rate: 2/d, key: [all]}]";
    cluster.api.apply_yaml(&policy("guard", "shop", "kind: HTTPRoute, name: app", directives));
    eventually("the portal is asked", || {
        ask(&cluster, "");
        portal.asks().iter().any(|ask| ask.line().starts_with("GET /verify"))
    });
    eventually("the limit counts", || ask(&cluster, "").is_some_and(|answer| answer.0 == 429));
}
