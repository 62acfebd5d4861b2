//! Services of Gateways: one each, with the labels and annotations of the Gateway's `infrastructure`.
//!
//! Such a Service has no selector: its endpoints are written too, and are the address of the Gateway, or the pods that serve all
//! Gateways. Both end with the Gateway, which owns them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::authorities::content_id;
use crate::ingress::ObjectEvent;
use crate::listeners::{JudgedGateway, JudgedListener, ListenerProtocol};
use crate::objects::{Endpoint, GATEWAY_GROUP, Kind, Metadata, ObjectKey, Objects};
use crate::options::{GatewayServiceOptions, TranslateOptions};

/// Labels by which the objects of a Gateway are found.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Labels of the program that writes an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGED_BY_KOMAINU: &str = "komainu.dev";
/// Annotation with a number of the content that was written.
const CONTENT: &str = "komainu.dev/content";
/// Bytes of a label's value, and of the name of a Service.
const LABEL_BYTES_MAX: usize = 63;
/// Endpoints of a slice; the API server refuses more.
const ENDPOINTS_MAX: usize = 1_000;

/// An object that is to be created or changed.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedObject {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub key: ObjectKey,
    /// All fields that this controller sets.
    pub object: Value,
}

/// Returns the Services and endpoints that are absent or have another content, and warnings about Gateways whose Service has a name
/// that is taken.
pub(crate) fn wanted_services(
    objects: &Objects,
    gateways: &[JudgedGateway],
    options: &TranslateOptions,
) -> (Vec<WantedObject>, Vec<ObjectEvent>) {
    let (mut wanted, mut events) = (Vec::new(), Vec::new());
    let Some(services) = &options.gateway_services else { return (wanted, events) };
    for gateway in gateways {
        let own = ServiceOfGateway { objects, gateway, services };
        let ports = own.ports();
        if ports.is_empty() {
            continue;
        }
        let key = service_of(gateway);
        if let Some(present) = objects.services.get(&key)
            && !is_ours(&present.metadata, gateway)
        {
            events.push(ObjectEvent {
                kind: Kind::Gateway,
                key: gateway.key.clone(),
                uid: gateway.gateway.metadata.uid.clone(),
                reason: "ServiceExists",
                note: format!(
                    "the Service {key} is not this Gateway's: delete it, or name the Gateway otherwise"
                ),
            });
            continue;
        }
        wanted.extend(own.objects(&key, &ports));
    }
    wanted.retain(|wanted| !wanted.is_current(objects));
    (wanted, events)
}

/// Returns the addresses of a Gateway's Service: those of the load balancer, or else the cluster's.
pub(crate) fn service_addresses(objects: &Objects, gateway: &JudgedGateway) -> Vec<String> {
    let Some(service) = objects.services.get(&service_of(gateway)) else { return Vec::new() };
    if !is_ours(&service.metadata, gateway) {
        return Vec::new();
    }
    let balanced = service.status.load_balancer.ingress.iter();
    let addresses: Vec<String> = balanced
        .filter_map(|entry| entry.ip.clone().or_else(|| entry.hostname.clone()))
        .filter(|text| !text.is_empty())
        .collect();
    if !addresses.is_empty() || service.spec.r#type.as_deref() == Some("LoadBalancer") {
        return addresses;
    }
    service.spec.cluster_ip.iter().filter(|text| text.parse::<IpAddr>().is_ok()).cloned().collect()
}

/// Whether an object was written for a Gateway.
fn is_ours(metadata: &Metadata, gateway: &JudgedGateway) -> bool {
    let label = |name: &str| metadata.labels.get(name).map(String::as_str);
    label(MANAGED_BY) == Some(MANAGED_BY_KOMAINU)
        && label(GATEWAY_NAME) == Some(&short_name(&gateway.key.name))
}

/// Name of a Gateway's Service: `GATEWAY-CLASS`, as Gateway API asks for (GEP-1762).
pub(crate) fn service_of(gateway: &JudgedGateway) -> ObjectKey {
    let name = format!("{}-{}", gateway.key.name, gateway.gateway.spec.gateway_class_name);
    // Names of Services begin with a letter, and have no dots.
    let is_label = name.starts_with(|first: char| first.is_ascii_lowercase()) && !name.contains('.');
    let name = match is_label {
        true => short_name(&name),
        false => {
            short_name(&format!("gateway-{}-{}", name.replace('.', "-"), content_id(&[name.as_bytes()])))
        }
    };
    ObjectKey::new(&gateway.key.namespace, &name)
}

/// Returns a text that labels may have as their value: a long one ends with a number of its content.
fn short_name(name: &str) -> String {
    if name.len() <= LABEL_BYTES_MAX {
        return name.to_owned();
    }
    let id = content_id(&[name.as_bytes()]);
    let start: String = name.chars().take(LABEL_BYTES_MAX - id.len() - 1).collect();
    format!("{start}-{id}")
}

/// A port of a Service.
struct WantedPort {
    name: String,
    protocol: &'static str,
    number: u16,
}

/// A Gateway, and how its Service is made.
struct ServiceOfGateway<'a> {
    objects: &'a Objects,
    gateway: &'a JudgedGateway,
    services: &'a GatewayServiceOptions,
}

impl ServiceOfGateway<'_> {
    /// Ports of the listeners that are served.
    fn ports(&self) -> Vec<WantedPort> {
        let served = self.gateway.listeners.iter().filter(|listener| listener.is_served());
        let protocol = |listener: &JudgedListener| match listener.protocol {
            ListenerProtocol::Udp => "UDP",
            _ => "TCP",
        };
        let ports: BTreeSet<(u16, &'static str)> =
            served.map(|listener| (listener.port, protocol(listener))).collect();
        ports
            .into_iter()
            .map(|(number, protocol)| WantedPort {
                name: format!("{}-{number}", protocol.to_ascii_lowercase()),
                protocol,
                number,
            })
            .collect()
    }

    fn objects(&self, key: &ObjectKey, ports: &[WantedPort]) -> Vec<WantedObject> {
        let of_service = |port: &WantedPort| json!({ "name": port.name, "protocol": port.protocol, "port": port.number, "targetPort": port.number });
        let spec = json!({
            "type": self.services.kind,
            "ports": ports.iter().map(of_service).collect::<Vec<_>>(),
        });
        let mut wanted = vec![self.object(Kind::Service, key, &[], json!({ "spec": spec }))];
        let of_slice =
            |port: &WantedPort| json!({ "name": port.name, "protocol": port.protocol, "port": port.number });
        let ports: Vec<Value> = ports.iter().map(of_slice).collect();
        let endpoints = self.endpoints();
        for (family, suffix) in [("IPv4", "ipv4"), ("IPv6", "ipv6")] {
            let of_family = |(is_v6, _): &&(bool, Value)| *is_v6 == (family == "IPv6");
            let of_family: Vec<&Value> = endpoints
                .iter()
                .filter(of_family)
                .map(|(_, endpoint)| endpoint)
                .take(ENDPOINTS_MAX)
                .collect();
            let slice = ObjectKey::new(&key.namespace, &format!("{}-{suffix}", key.name));
            if of_family.is_empty() && !self.objects.endpoint_slices.contains_key(&slice) {
                continue;
            }
            let labels =
                [("kubernetes.io/service-name", key.name.as_str()), (SLICE_MANAGED_BY, MANAGED_BY_KOMAINU)];
            let content = json!({ "addressType": family, "endpoints": of_family, "ports": ports });
            wanted.push(self.object(Kind::EndpointSlice, &slice, &labels, content));
        }
        wanted
    }

    /// The endpoints, with whether each has an address of IPv6.
    fn endpoints(&self) -> Vec<(bool, Value)> {
        if let Some(address) = self.gateway.address {
            let endpoint = json!({ "addresses": [address.to_string()], "conditions": { "ready": true } });
            return vec![(address.is_ipv6(), endpoint)];
        }
        let Some(pods) = &self.services.pods else { return Vec::new() };
        let mut found: BTreeMap<IpAddr, Value> = BTreeMap::new();
        for (key, slice) in &self.objects.endpoint_slices {
            let service = slice.metadata.labels.get("kubernetes.io/service-name");
            if key.namespace != pods.namespace || service != Some(&pods.name) {
                continue;
            }
            for endpoint in &slice.endpoints {
                for address in endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
                    found.insert(address, endpoint_json(address, endpoint));
                }
            }
        }
        found.into_iter().map(|(address, endpoint)| (address.is_ipv6(), endpoint)).collect()
    }

    fn object(&self, kind: Kind, key: &ObjectKey, labels: &[(&str, &str)], content: Value) -> WantedObject {
        let (group, versions, _) = kind.resource();
        let infrastructure = self.gateway.gateway.spec.infrastructure.clone().unwrap_or_default();
        let mut all = infrastructure.labels;
        let own = [
            (MANAGED_BY, MANAGED_BY_KOMAINU),
            (GATEWAY_NAME, &short_name(&self.gateway.key.name)),
            (CLASS_NAME, &short_name(&self.gateway.gateway.spec.gateway_class_name)),
        ];
        all.extend(own.iter().chain(labels).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let version = versions[0];
        let mut object = json!({
            "apiVersion": if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            "kind": kind.name(),
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": all,
                "annotations": infrastructure.annotations,
                "ownerReferences": [{
                    "apiVersion": format!("{GATEWAY_GROUP}/v1"),
                    "kind": "Gateway",
                    "name": self.gateway.key.name,
                    "uid": self.gateway.gateway.metadata.uid,
                }],
            },
        });
        if let (Value::Object(object), Value::Object(content)) = (&mut object, content) {
            object.extend(content);
        }
        let id = content_id(&[object.to_string().as_bytes()]);
        object["metadata"]["annotations"][CONTENT] = json!(id);
        WantedObject { kind, key: key.clone(), object }
    }
}

/// Returns an endpoint as another slice has it.
fn endpoint_json(address: IpAddr, endpoint: &Endpoint) -> Value {
    let conditions = &endpoint.conditions;
    let states = [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ];
    let known: BTreeMap<&str, bool> =
        states.into_iter().filter_map(|(name, state)| Some((name, state?))).collect();
    let mut object = json!({ "addresses": [address.to_string()], "conditions": known });
    for (name, place) in [("nodeName", &endpoint.node_name), ("zone", &endpoint.zone)] {
        if let Some(place) = place {
            object[name] = json!(place);
        }
    }
    object
}

impl WantedObject {
    /// Whether the object exists with this content.
    fn is_current(&self, objects: &Objects) -> bool {
        let metadata = match self.kind {
            Kind::Service => objects.services.get(&self.key).map(|object| &object.metadata),
            _ => objects.endpoint_slices.get(&self.key).map(|object| &object.metadata),
        };
        let written = self.object["metadata"]["annotations"][CONTENT].as_str();
        metadata.and_then(|metadata| metadata.annotations.get(CONTENT)).map(String::as_str) == written
    }
}
