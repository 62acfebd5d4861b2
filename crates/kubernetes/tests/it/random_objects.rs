//! Random objects of all kinds, of few names, so that they concern each other.

use data_encoding::BASE64;
use fastrand::Rng;
use serde_json::{Value, json};

/// Makes objects.
pub(crate) struct RandomObjects {
    /// Certificates with their keys, in base64.
    certificates: Vec<(String, String)>,
}

impl Default for RandomObjects {
    fn default() -> RandomObjects {
        let pair = |host: &str| {
            let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
            (
                BASE64.encode(made.cert.pem().as_bytes()),
                BASE64.encode(made.signing_key.serialize_pem().as_bytes()),
            )
        };
        RandomObjects { certificates: vec![pair("a.test"), pair("b.test")] }
    }
}

fn choose<'a>(random: &mut Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(0..of.len())]
}

fn namespace(random: &mut Rng) -> &'static str {
    choose(random, &["one", "two"])
}

fn object_name(random: &mut Rng) -> &'static str {
    choose(random, &["a", "b", "c"])
}

fn host(random: &mut Rng) -> &'static str {
    choose(random, &["a.test", "b.test", "x.a.test", "*.a.test", "*.test", "bad host"])
}

fn metadata(random: &mut Rng, name: &str, namespace: &str) -> Value {
    json!({
        "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"),
        "creationTimestamp": format!("2026-01-0{}T00:00:00Z", random.u8(1..4)),
    })
}

impl RandomObjects {
    /// Objects that are always there.
    pub(crate) fn lasting(&self) -> Vec<Value> {
        let space = |name: &str| json!({ "kind": "Namespace", "metadata": { "name": name, "labels": { "name": name } } });
        vec![
            json!({ "kind": "GatewayClass", "metadata": { "name": "k" }, "spec": { "controllerName": "komainu.dev/gateway-controller" } }),
            json!({ "kind": "IngressClass", "metadata": { "name": "k" }, "spec": { "controller": "komainu.dev/ingress-controller" } }),
            space("one"),
            space("two"),
        ]
    }

    /// Any object.
    pub(crate) fn any(&self, random: &mut Rng) -> Value {
        let (name, namespace) = (object_name(random), namespace(random));
        let metadata = metadata(random, name, namespace);
        match random.u8(0..26) {
            0..3 => self.gateway(random, &metadata),
            3 => self.listener_set(random, &metadata),
            4..9 => route(random, "HTTPRoute", &metadata),
            9..11 => route(random, "GRPCRoute", &metadata),
            11 => route(random, "TLSRoute", &metadata),
            12 => {
                let kind = choose(random, &["TCPRoute", "UDPRoute"]);
                route(random, kind, &metadata)
            }
            13..15 => service(random, &metadata),
            15..18 => slice(random, &metadata),
            18 => grant(random, &metadata),
            19 => tls_policy(random, &metadata),
            20..22 => policy(random, &metadata),
            22 => self.secret(random, &metadata),
            23 => self.config_map(random, &metadata),
            24 => ingress(random, &metadata),
            _ => other(random),
        }
    }

    fn listeners(&self, random: &mut Rng) -> Vec<Value> {
        let names = ["w", "x", "y", "z"];
        let count = random.usize(1..4);
        names[..count].iter().map(|name| self.listener(random, name)).collect()
    }

    fn listener(&self, random: &mut Rng, name: &str) -> Value {
        let protocol =
            choose(random, &["HTTP", "HTTP", "HTTP", "HTTPS", "HTTPS", "TLS", "TCP", "UDP", "ODD"]);
        let port = match protocol {
            "HTTP" => 80 + u16::from(random.u8(0..2)),
            "HTTPS" | "TLS" => 443,
            "UDP" => 5353,
            _ => 9000,
        };
        let mut listener = json!({ "name": name, "port": port, "protocol": protocol });
        if random.bool() && !matches!(protocol, "TCP" | "UDP") {
            listener["hostname"] = json!(host(random));
        }
        if matches!(protocol, "HTTPS" | "TLS") {
            let mut reference = json!({ "name": object_name(random) });
            if random.u8(0..4) == 0 {
                reference["namespace"] = json!(namespace(random));
            }
            listener["tls"] = json!({ "certificateRefs": [reference] });
            if protocol == "TLS" && random.bool() {
                listener["tls"] = json!({ "mode": "Passthrough" });
            }
        }
        let from = choose(random, &["All", "All", "All", "Same", "Selector"]);
        listener["allowedRoutes"] = json!({ "namespaces": { "from": from } });
        if from == "Selector" {
            listener["allowedRoutes"]["namespaces"]["selector"] =
                json!({ "matchLabels": { "name": namespace(random) } });
        }
        listener
    }

    fn gateway(&self, random: &mut Rng, metadata: &Value) -> Value {
        let class = choose(random, &["k", "k", "k", "k", "other"]);
        let mut spec = json!({ "gatewayClassName": class, "listeners": self.listeners(random) });
        if random.bool() {
            spec["allowedListeners"] = json!({ "namespaces": { "from": choose(random, &["All", "Same"]) } });
        }
        if random.u8(0..5) == 0 {
            spec["tls"] = json!({ "backend": { "clientCertificateRef": { "name": object_name(random) } } });
        }
        if random.u8(0..5) == 0 {
            let authority = json!({ "kind": "ConfigMap", "name": object_name(random) });
            spec["tls"] =
                json!({ "frontend": { "default": { "validation": { "caCertificateRefs": [authority] } } } });
        }
        if random.u8(0..6) == 0 {
            spec["addresses"] = json!([{ "value": choose(random, &["10.9.9.2", "10.8.8.8"]) }]);
        }
        json!({ "kind": "Gateway", "metadata": metadata, "spec": spec })
    }

    fn listener_set(&self, random: &mut Rng, metadata: &Value) -> Value {
        let parent = json!({ "name": object_name(random), "namespace": namespace(random) });
        json!({ "kind": "ListenerSet", "metadata": metadata, "spec": { "parentRef": parent, "listeners": self.listeners(random) } })
    }

    fn secret(&self, random: &mut Rng, metadata: &Value) -> Value {
        let (chain, key) = &self.certificates[random.usize(0..2)];
        let users = BASE64.encode(b"alice:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC");
        match random.u8(0..5) {
            0 => {
                json!({ "kind": "Secret", "type": "komainu.dev/policy", "metadata": metadata, "data": { "users": users } })
            }
            1 => {
                json!({ "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": { "tls.crt": chain } })
            }
            _ => {
                json!({ "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": { "tls.crt": chain, "tls.key": key } })
            }
        }
    }

    fn config_map(&self, random: &mut Rng, metadata: &Value) -> Value {
        let decoded = BASE64.decode(self.certificates[random.usize(0..2)].0.as_bytes()).unwrap();
        let pem = String::from_utf8(decoded).unwrap();
        let pem = if random.u8(0..4) == 0 { "no certificate".to_owned() } else { pem };
        json!({ "kind": "ConfigMap", "metadata": metadata, "data": { "ca.crt": pem } })
    }
}

fn backend(random: &mut Rng) -> Value {
    let mut reference = json!({ "name": object_name(random), "port": 80 + u16::from(random.u8(0..2)) });
    if random.u8(0..3) == 0 {
        reference["namespace"] = json!(namespace(random));
    }
    if random.u8(0..4) == 0 {
        reference["weight"] = json!(random.u8(0..4));
    }
    reference
}

fn parents(random: &mut Rng) -> Vec<Value> {
    let count = random.usize(1..3);
    let parent = |random: &mut Rng| {
        let mut parent = json!({ "name": object_name(random), "namespace": namespace(random) });
        match random.u8(0..8) {
            0 => parent["sectionName"] = json!(choose(random, &["w", "x", "nothing"])),
            1 => parent["port"] = json!(80),
            2 => parent["kind"] = json!("ListenerSet"),
            _ => {}
        }
        parent
    };
    (0..count).map(|_| parent(random)).collect()
}

fn http_rule(random: &mut Rng, name: &str) -> Value {
    let path = match random.u8(0..10) {
        0 => json!({ "type": "RegularExpression", "value": "([" }),
        1 => json!({ "type": "RegularExpression", "value": "/x[0-9]+" }),
        2 => json!({ "value": "no slash" }),
        3 => json!({ "type": "Exact", "value": "/exact" }),
        _ => json!({ "value": choose(random, &["/", "/a", "/b"]) }),
    };
    let mut one = json!({ "path": path });
    match random.u8(0..8) {
        0 => one["headers"] = json!([{ "name": "bad name", "value": "x" }]),
        1 => one["method"] = json!("lower case"),
        2 => one["method"] = json!("GET"),
        _ => {}
    }
    let backends: Vec<Value> = (0..random.usize(0..3)).map(|_| backend(random)).collect();
    let mut rule = json!({ "name": name, "matches": [one], "backendRefs": backends });
    match random.u8(0..8) {
        0 => {
            rule["filters"] =
                json!([{ "type": "RequestRedirect", "requestRedirect": { "hostname": "to.test" } }])
        }
        1 => {
            rule["filters"] =
                json!([{ "type": "RequestMirror", "requestMirror": { "backendRef": backend(random) } }])
        }
        2 => rule["filters"] = json!([{ "type": "Unknown" }]),
        3 => rule["timeouts"] = json!({ "request": choose(random, &["1s", "never"]) }),
        _ => {}
    }
    rule
}

fn route(random: &mut Rng, kind: &str, metadata: &Value) -> Value {
    let mut spec = json!({ "parentRefs": parents(random) });
    if !matches!(kind, "TCPRoute" | "UDPRoute") && random.u8(0..5) > 0 {
        let hosts: Vec<&str> = (0..random.usize(1..3)).map(|_| host(random)).collect();
        spec["hostnames"] = json!(hosts);
    }
    let rules: Vec<Value> = match kind {
        "HTTPRoute" => {
            ["first", "second"][..random.usize(1..3)].iter().map(|name| http_rule(random, name)).collect()
        }
        "GRPCRoute" => {
            let method = match random.u8(0..4) {
                0 => json!({ "type": "RegularExpression", "service": "([", "method": "x" }),
                _ => json!({ "service": choose(random, &["s.A", "s.B"]), "method": "M" }),
            };
            vec![json!({ "matches": [{ "method": method }], "backendRefs": [backend(random)] })]
        }
        _ => vec![json!({ "backendRefs": [backend(random)] })],
    };
    spec["rules"] = json!(rules);
    json!({ "kind": kind, "metadata": metadata, "spec": spec })
}

fn service(random: &mut Rng, metadata: &Value) -> Value {
    let mut port = json!({ "name": "p", "port": 80 });
    match random.u8(0..6) {
        0 => port["appProtocol"] = json!("kubernetes.io/h2c"),
        1 => port["appProtocol"] = json!("odd"),
        2 => port["protocol"] = json!("UDP"),
        _ => {}
    }
    let mut spec = json!({ "clusterIP": "10.96.0.1", "ports": [port, { "name": "q", "port": 81 }] });
    if random.u8(0..10) == 0 {
        spec["type"] = json!("ExternalName");
    }
    json!({ "kind": "Service", "metadata": metadata, "spec": spec })
}

fn slice(random: &mut Rng, metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    metadata["labels"] = json!({ "kubernetes.io/service-name": object_name(random) });
    let endpoint = |random: &mut Rng| {
        let conditions = match random.u8(0..4) {
            0 => json!({ "ready": false, "serving": true, "terminating": true }),
            _ => json!({ "ready": true }),
        };
        json!({ "addresses": [format!("10.0.0.{}", random.u8(1..6))], "conditions": conditions })
    };
    let endpoints: Vec<Value> = (0..random.usize(0..3)).map(|_| endpoint(random)).collect();
    let udp = json!({ "name": "p", "port": 5353, "protocol": "UDP" });
    json!({
        "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "p", "port": 8080 }, { "name": "q", "port": 8081 }, udp],
    })
}

fn grant(random: &mut Rng, metadata: &Value) -> Value {
    let from = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "Gateway", "ListenerSet"];
    let from: Vec<Value> = from
        .iter()
        .map(|kind| json!({ "group": "gateway.networking.k8s.io", "kind": kind, "namespace": namespace(random) }))
        .collect();
    let to = json!([{ "group": "", "kind": choose(random, &["Service", "Secret"]) }, { "group": "", "kind": "ConfigMap" }]);
    json!({ "kind": "ReferenceGrant", "metadata": metadata, "spec": { "from": from, "to": to } })
}

fn tls_policy(random: &mut Rng, metadata: &Value) -> Value {
    let mut target = json!({ "group": "", "kind": "Service", "name": object_name(random) });
    if random.bool() {
        target["sectionName"] = json!("p");
    }
    let validation = match random.u8(0..4) {
        0 => json!({ "hostname": "not a host", "wellKnownCACertificates": "System" }),
        1 => json!({ "hostname": "s.test", "wellKnownCACertificates": "System" }),
        _ => {
            json!({ "hostname": "s.test", "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": object_name(random) }] })
        }
    };
    json!({ "kind": "BackendTLSPolicy", "metadata": metadata, "spec": { "targetRefs": [target], "validation": validation } })
}

fn policy(random: &mut Rng, metadata: &Value) -> Value {
    let kind = choose(random, &["Gateway", "HTTPRoute", "HTTPRoute"]);
    let mut target =
        json!({ "group": "gateway.networking.k8s.io", "kind": kind, "name": object_name(random) });
    match (random.u8(0..3), kind) {
        (0, "Gateway") => target["sectionName"] = json!(choose(random, &["w", "x"])),
        (0, _) => target["sectionName"] = json!("first"),
        _ => {}
    }
    let mut spec = json!({ "targetRefs": [target] });
    match random.u8(0..6) {
        0 => spec["limit"] = json!([{ "rate": choose(random, &["10/s", "20/s"]) }]),
        1 => spec["retry"] = json!({ "attempts": random.u8(1..4) }),
        2 => spec["error_pages"] = json!({ "503": "<h1>Soon</h1>" }),
        3 => {
            spec["auth"] = json!({ "users": { "secretRef": { "name": object_name(random), "key": "users" } }, "realm": "r" })
        }
        4 => spec["compress"] = json!({ "level": choose(random, &["fast", "odd"]) }),
        _ => spec["request_headers"] = json!({ "set": { "X-Edge": "1" } }),
    }
    json!({ "kind": "KomainuPolicy", "metadata": metadata, "spec": spec })
}

fn ingress(random: &mut Rng, metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    match random.u8(0..5) {
        0 => metadata["annotations"] = json!({ "nginx.ingress.kubernetes.io/rewrite-target": "/$1" }),
        1 => metadata["annotations"] = json!({ "nginx.ingress.kubernetes.io/ssl-passthrough": "true" }),
        2 => metadata["annotations"] = json!({ "nginx.ingress.kubernetes.io/limit-rps": "5" }),
        _ => {}
    }
    let backend = json!({ "service": { "name": object_name(random), "port": { "number": 80 } } });
    let path = json!({ "path": choose(random, &["/", "/a", "/(["]), "pathType": choose(random, &["Prefix", "ImplementationSpecific"]), "backend": backend });
    let name = host(random);
    let mut spec = json!({ "ingressClassName": choose(random, &["k", "k", "k", "no"]), "rules": [{ "host": name, "http": { "paths": [path] } }] });
    if random.bool() {
        spec["tls"] = json!([{ "hosts": [name], "secretName": object_name(random) }]);
    }
    json!({ "kind": "Ingress", "metadata": metadata, "spec": spec })
}

/// Changes of classes and namespaces.
fn other(random: &mut Rng) -> Value {
    let name = namespace(random);
    match random.u8(0..3) {
        0 => {
            let controller = choose(random, &["komainu.dev/gateway-controller", "example.com/other"]);
            json!({ "kind": "GatewayClass", "metadata": { "name": "k" }, "spec": { "controllerName": controller } })
        }
        _ => {
            json!({ "kind": "Namespace", "metadata": { "name": name, "labels": { "name": choose(random, &["one", "two"]) } } })
        }
    }
}
