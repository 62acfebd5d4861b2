//! Gateways and ListenerSets as they were judged, and their conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::grants::takes_namespace;
use crate::objects::{
    FrontendValidation, GATEWAY_GROUP, Gateway, GatewayListener, ListenerSet, ObjectKey, ObjectReference,
    Objects, RouteNamespaces,
};
use crate::options::StatusCondition;

/// Reason and message of a condition.
pub(crate) type ConditionFault = (&'static str, String);

/// All Gateways of this controller, the oldest first, with the ListenerSets that name them.
#[derive(Default)]
pub(crate) struct JudgedGateways {
    pub(crate) gateways: Vec<JudgedGateway>,
    pub(crate) sets: Vec<JudgedListenerSet>,
    /// Positions of Gateways, and those of ListenerSets.
    pub(super) gateway_positions: BTreeMap<ObjectKey, usize>,
    pub(super) set_positions: BTreeMap<ObjectKey, usize>,
}

/// A Gateway of this controller.
pub(crate) struct JudgedGateway {
    pub(crate) key: ObjectKey,
    pub(crate) gateway: Arc<Gateway>,
    /// The address of its own; `None` if it shares all addresses, or has none.
    pub(crate) address: Option<IpAddr>,
    /// Whether it has an address.
    pub(super) is_addressed: bool,
    /// Why it is not accepted, whatever its listeners are.
    pub(super) refused: Option<ConditionFault>,
    /// The certificate that servers are shown, or why there is none.
    pub(super) client_certificate: Option<Result<ClientCertificate, ConditionFault>>,
    /// Listeners of its own, then those of its ListenerSets.
    pub(crate) listeners: Vec<JudgedListener>,
    /// Number of its own listeners.
    pub(super) own_listeners: usize,
    /// ListenerSets with a listener that is served.
    pub(super) attached_sets: usize,
}

/// A ListenerSet that names a Gateway of this controller.
pub(crate) struct JudgedListenerSet {
    pub(crate) key: ObjectKey,
    pub(super) set: Arc<ListenerSet>,
    pub(crate) gateway: usize,
    /// Range of its listeners among those of the Gateway; empty if it is not allowed.
    pub(crate) listeners: Range<usize>,
    pub(super) is_allowed: bool,
}

/// The certificate that a Gateway shows to servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientCertificate {
    pub(crate) secret: ObjectKey,
    /// Files in memory.
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerProtocol {
    Http,
    Https,
    /// TLS for TLSRoutes, decrypted here or not.
    Tls {
        is_terminated: bool,
    },
    Tcp,
    Udp,
    /// Any that is not supported.
    Other,
}

/// Protocols that one port may have at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PortFamily {
    Http,
    Tls,
    Tcp,
    Udp,
    Other,
}

impl ListenerProtocol {
    pub(super) fn of(listener: &GatewayListener) -> ListenerProtocol {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        match listener.protocol.as_str() {
            "HTTP" => ListenerProtocol::Http,
            "HTTPS" => ListenerProtocol::Https,
            "TLS" => ListenerProtocol::Tls { is_terminated: mode != Some("Passthrough") },
            "TCP" => ListenerProtocol::Tcp,
            "UDP" => ListenerProtocol::Udp,
            _ => ListenerProtocol::Other,
        }
    }

    pub(super) fn kinds(self) -> &'static [&'static str] {
        match self {
            ListenerProtocol::Http | ListenerProtocol::Https => &["HTTPRoute", "GRPCRoute"],
            ListenerProtocol::Tls { .. } => &["TLSRoute"],
            ListenerProtocol::Tcp => &["TCPRoute"],
            ListenerProtocol::Udp => &["UDPRoute"],
            ListenerProtocol::Other => &[],
        }
    }

    pub(super) fn port_family(self) -> PortFamily {
        match self {
            ListenerProtocol::Http => PortFamily::Http,
            ListenerProtocol::Https | ListenerProtocol::Tls { .. } => PortFamily::Tls,
            ListenerProtocol::Tcp => PortFamily::Tcp,
            ListenerProtocol::Udp => PortFamily::Udp,
            ListenerProtocol::Other => PortFamily::Other,
        }
    }

    /// Whether requests of HTTP are served.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, ListenerProtocol::Http | ListenerProtocol::Https)
    }

    /// Whether the listener has certificates.
    pub(crate) fn has_certificates(self) -> bool {
        matches!(self, ListenerProtocol::Https | ListenerProtocol::Tls { is_terminated: true })
    }
}

/// Verification of the certificates that clients show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerVerification {
    /// Files in memory with the authorities.
    pub(crate) authorities: Vec<String>,
    /// Whether clients are served without a certificate, or with any.
    pub(crate) is_optional: bool,
}

/// A listener, with its verdict.
pub(crate) struct JudgedListener {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: ListenerProtocol,
    /// In lower case; empty for every host.
    pub(crate) hostname: String,
    /// Address for `listen`.
    pub(crate) address: String,
    /// Secrets with its certificates.
    pub(crate) certificates: Vec<ObjectKey>,
    pub(crate) client: Option<ListenerVerification>,
    pub(crate) kinds: Vec<&'static str>,
    /// Name among all listeners.
    pub(crate) scope: String,
    /// Namespace of the Gateway or ListenerSet.
    pub(super) namespace: String,
    /// Namespaces whose routes it takes.
    pub(super) route_namespaces: Option<RouteNamespaces>,
    /// Why it takes no connections: reason and message of `Accepted`.
    pub(crate) refused: Option<ConditionFault>,
    /// Reason and message of `Conflicted`.
    pub(super) conflict: Option<ConditionFault>,
    /// Reason and message of `ResolvedRefs`, if a reference is not resolved.
    pub(super) unresolved: Option<ConditionFault>,
    /// Whether the Gateway is accepted and has an address.
    pub(super) is_usable: bool,
    /// A fault that the configuration's checks have found.
    pub(crate) rejected: Option<String>,
    pub(crate) attached_routes: u32,
}

impl JudgedListener {
    /// Whether it is part of the configuration.
    pub(crate) fn is_served(&self) -> bool {
        self.takes_address() && self.rejected.is_none()
    }

    /// Whether it has its address and host: it does without being served, if the configuration's checks have found a fault.
    pub(crate) fn takes_address(&self) -> bool {
        self.is_usable && self.is_judged_valid()
    }

    /// The address to bind, with `udp:` before those of datagrams.
    pub(crate) fn bind_address(&self) -> String {
        let start = if self.protocol == ListenerProtocol::Udp { "udp:" } else { "" };
        format!("{start}{}", self.address)
    }

    /// Whether it takes routes of a kind and namespace.
    pub(crate) fn takes(&self, objects: &Objects, kind: &str, namespace: &str) -> bool {
        self.kinds.contains(&kind)
            && takes_namespace(objects, self.route_namespaces.as_ref(), &self.namespace, namespace)
    }

    /// Whether it is served if its Gateway is.
    pub(super) fn is_valid(&self) -> bool {
        self.is_judged_valid() && self.rejected.is_none()
    }

    pub(super) fn is_judged_valid(&self) -> bool {
        self.refused.is_none()
            && self.conflict.is_none()
            && (!self.protocol.has_certificates() || !self.certificates.is_empty())
    }

    /// Returns the listener's entry of the status.
    pub(super) fn status(&self, generation: i64) -> Value {
        let accepted = match (&self.refused, &self.rejected, &self.conflict) {
            (Some((reason, message)), ..) | (None, None, Some((reason, message))) => {
                StatusCondition::new("Accepted", false, reason, message)
            }
            (None, Some(message), _) => StatusCondition::new("Accepted", false, "Invalid", message),
            (None, None, None) => {
                StatusCondition::new("Accepted", true, "Accepted", "the listener is accepted")
            }
        };
        let conflicted = match &self.conflict {
            Some((reason, message)) => StatusCondition::new("Conflicted", true, reason, message),
            None => StatusCondition::new("Conflicted", false, "NoConflicts", "no other listener conflicts"),
        };
        let resolved = match &self.unresolved {
            Some((reason, message)) => StatusCondition::new("ResolvedRefs", false, reason, message),
            None => StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        };
        let programmed = match (&self.conflict, self.is_served()) {
            (_, true) => StatusCondition::new("Programmed", true, "Programmed", "the listener is served"),
            (Some((reason, message)), _) => StatusCondition::new("Programmed", false, reason, message),
            (None, false) if self.is_valid() => StatusCondition::new(
                "Programmed",
                false,
                "Pending",
                "the Gateway is not served: see its conditions",
            ),
            (None, false) => StatusCondition::new(
                "Programmed",
                false,
                "Invalid",
                "the listener is not served: see the other conditions",
            ),
        };
        let kinds: Vec<Value> =
            self.kinds.iter().map(|kind| json!({ "group": GATEWAY_GROUP, "kind": kind })).collect();
        json!({
            "name": self.name,
            "supportedKinds": kinds,
            "attachedRoutes": self.attached_routes,
            "conditions": [
                accepted.json(generation), conflicted.json(generation), resolved.json(generation), programmed.json(generation)
            ],
        })
    }
}

impl JudgedGateways {
    /// Returns the addresses of the pool that Gateways have.
    pub(crate) fn addresses(&self) -> BTreeMap<ObjectKey, IpAddr> {
        self.gateways.iter().filter_map(|gateway| Some((gateway.key.clone(), gateway.address?))).collect()
    }

    /// Returns the Gateway of a parent reference, and the listeners that it means: those of the Gateway, or of a ListenerSet.
    pub(crate) fn parent(&self, kind: &str, key: &ObjectKey) -> Option<(usize, Range<usize>)> {
        match kind {
            "Gateway" => {
                let at = *self.gateway_positions.get(key)?;
                Some((at, 0..self.gateways[at].own_listeners))
            }
            "ListenerSet" => {
                let set = &self.sets[*self.set_positions.get(key)?];
                Some((set.gateway, set.listeners.clone()))
            }
            _ => None,
        }
    }

    /// Returns the position of a Gateway.
    pub(crate) fn position(&self, key: &ObjectKey) -> Option<usize> {
        self.gateway_positions.get(key).copied()
    }

    /// Returns all listeners with their positions: Gateway and listener.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = ((usize, usize), &JudgedListener)> {
        self.gateways.iter().enumerate().flat_map(|(at, gateway)| {
            gateway.listeners.iter().enumerate().map(move |(listener, state)| ((at, listener), state))
        })
    }

    /// Returns the names of the Secrets and ConfigMaps that Gateways and ListenerSets refer to.
    pub(crate) fn named_objects(&self) -> BTreeSet<ObjectKey> {
        let mut named = BTreeSet::new();
        for gateway in &self.gateways {
            let spec = &gateway.gateway.spec;
            let of_servers = spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
            let of_servers = of_servers.and_then(|backend| backend.client_certificate_ref.as_ref());
            let of_clients = frontend_validations(&gateway.gateway).flat_map(|one| &one.authorities);
            add_named(&mut named, &gateway.key, of_servers.into_iter().chain(of_clients));
            add_named(&mut named, &gateway.key, certificate_references(&spec.listeners));
        }
        for set in &self.sets {
            add_named(&mut named, &set.key, certificate_references(&set.set.spec.listeners));
        }
        named
    }

    /// Counts the ListenerSets of each Gateway, once their listeners have their verdicts.
    pub(crate) fn count_sets(&mut self) {
        self.gateways.iter_mut().for_each(|gateway| gateway.attached_sets = 0);
        for set in &self.sets {
            let gateway = &mut self.gateways[set.gateway];
            let is_attached = gateway.listeners[set.listeners.clone()].iter().any(JudgedListener::is_valid);
            gateway.attached_sets += usize::from(is_attached);
        }
    }
}

impl JudgedListenerSet {
    /// Returns the ListenerSet's status.
    pub(crate) fn status(&self, gateways: &[JudgedGateway]) -> Value {
        let generation = self.set.metadata.generation;
        let listeners = &gateways[self.gateway].listeners[self.listeners.clone()];
        let valid = listeners.iter().filter(|listener| listener.is_valid()).count();
        let is_served = listeners.iter().any(JudgedListener::is_served);
        let condition = |kind: &'static str, is_true: bool, reason: &str, message: &str| {
            StatusCondition::new(kind, is_true, reason, message).json(generation)
        };
        let conditions = match (self.is_allowed, valid) {
            (false, _) => {
                let text = "the Gateway allows no ListenerSet of this namespace (`allowedListeners`)";
                [
                    condition("Accepted", false, "NotAllowed", text),
                    condition("Programmed", false, "NotAllowed", text),
                ]
            }
            (true, 0) => {
                let text = "no listener is valid: see their conditions";
                [
                    condition("Accepted", false, "ListenersNotValid", text),
                    condition("Programmed", false, "ListenersNotValid", text),
                ]
            }
            (true, valid) => {
                let (reason, text) = if valid < listeners.len() {
                    ("ListenersNotValid", "some listeners are not valid: see their conditions")
                } else {
                    ("Accepted", "the ListenerSet is accepted")
                };
                let programmed = if is_served {
                    condition("Programmed", true, "Programmed", "the ListenerSet is served")
                } else {
                    condition("Programmed", false, "Pending", "the Gateway is not served: see its conditions")
                };
                [condition("Accepted", true, reason, text), programmed]
            }
        };
        let listeners: Vec<Value> = listeners.iter().map(|listener| listener.status(generation)).collect();
        json!({ "conditions": conditions, "listeners": listeners })
    }
}

impl JudgedGateway {
    /// When it was created.
    pub(crate) fn created(&self) -> &str {
        &self.gateway.metadata.creation_timestamp
    }

    /// Returns the listeners that are not those of its ListenerSets.
    pub(crate) fn own_listeners(&self) -> &[JudgedListener] {
        &self.listeners[..self.own_listeners]
    }

    /// The certificate that servers are shown.
    pub(crate) fn client_certificate(&self) -> Option<&ClientCertificate> {
        self.client_certificate.as_ref()?.as_ref().ok()
    }

    /// Returns the Gateway's status. `shared` are the addresses of a Gateway that has none of its own.
    pub(crate) fn status(&self, shared: &[String]) -> Value {
        let generation = self.gateway.metadata.generation;
        let own = self.own_listeners();
        let valid = own.iter().filter(|listener| listener.is_valid()).count();
        let all = own.len();
        let accepted = match (&self.refused, valid) {
            (Some((reason, message)), _) => StatusCondition::new("Accepted", false, reason, message),
            (None, 0) if all > 0 => StatusCondition::new(
                "Accepted",
                false,
                "ListenersNotValid",
                "no listener is valid: see their conditions",
            ),
            (None, valid) if valid < all => StatusCondition::new(
                "Accepted",
                true,
                "ListenersNotValid",
                "some listeners are not valid: see their conditions",
            ),
            _ => StatusCondition::new("Accepted", true, "Accepted", "the Gateway is accepted"),
        };
        let is_served = self.listeners.iter().any(JudgedListener::is_served);
        let programmed = match (self.is_addressed, is_served) {
            (false, _) if self.refused.is_none() => StatusCondition::new(
                "Programmed",
                false,
                "AddressNotUsable",
                "no address is left, or another Gateway has it: give `--addresses` more of them, or the Gateway another one",
            ),
            (_, false) => StatusCondition::new("Programmed", false, "Invalid", "no listener is served"),
            (_, true) => StatusCondition::new("Programmed", true, "Programmed", "the Gateway is served"),
        };
        let mut conditions = vec![accepted.json(generation), programmed.json(generation)];
        match &self.client_certificate {
            None => {}
            Some(Ok(_)) => conditions.push(
                StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved")
                    .json(generation),
            ),
            Some(Err((reason, message))) => {
                conditions.push(StatusCondition::new("ResolvedRefs", false, reason, message).json(generation))
            }
        }
        if frontend_validations(&self.gateway).any(is_insecure) {
            let text = "clients are served without a valid certificate (`AllowInsecureFallback`)";
            let condition =
                StatusCondition::new("InsecureFrontendValidationMode", true, "ConfigurationChanged", text);
            conditions.push(condition.json(generation));
        }
        let addresses: Vec<Value> = match self.address {
            Some(address) => vec![json!({ "type": "IPAddress", "value": address.to_string() })],
            None if self.is_addressed => shared.iter().map(|text| address_json(text)).collect(),
            None => Vec::new(),
        };
        let listeners: Vec<Value> = own.iter().map(|listener| listener.status(generation)).collect();
        let mut status = json!({ "addresses": addresses, "conditions": conditions, "listeners": listeners });
        // Clusters with an older Gateway API do not know the field.
        if self.attached_sets > 0 || self.gateway.status.get("attachedListenerSets").is_some() {
            status["attachedListenerSets"] = json!(self.attached_sets);
        }
        status
    }
}

fn certificate_references(listeners: &[GatewayListener]) -> impl Iterator<Item = &ObjectReference> {
    listeners.iter().filter_map(|listener| listener.tls.as_ref()).flat_map(|tls| &tls.certificate_refs)
}

/// Adds the names of objects that an object refers to.
fn add_named<'r>(
    named: &mut BTreeSet<ObjectKey>,
    from: &ObjectKey,
    references: impl Iterator<Item = &'r ObjectReference>,
) {
    let name = |reference: &ObjectReference| {
        ObjectKey::new(reference.namespace.as_deref().unwrap_or(&from.namespace), &reference.name)
    };
    named.extend(references.map(name));
}

fn address_json(text: &str) -> Value {
    let kind = if text.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    json!({ "type": kind, "value": text })
}

pub(super) fn frontend_validations(gateway: &Gateway) -> impl Iterator<Item = &FrontendValidation> {
    let frontend = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
    frontend.into_iter().flat_map(|frontend| {
        let ports = frontend.per_port.iter().filter_map(|port| port.tls.validation.as_ref());
        frontend.default.validation.iter().chain(ports)
    })
}

pub(super) fn is_insecure(validation: &FrontendValidation) -> bool {
    validation.mode.as_deref() == Some("AllowInsecureFallback")
}

/// The Gateway or ListenerSet of a listener.
pub(super) struct ListenerOwner<'a> {
    pub(super) kind: &'static str,
    pub(super) key: &'a ObjectKey,
    pub(super) gateway: &'a Gateway,
    pub(super) address: Option<IpAddr>,
    /// Whether the Gateway is accepted and has an address.
    pub(super) is_usable: bool,
}
