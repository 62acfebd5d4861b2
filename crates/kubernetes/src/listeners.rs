//! Gateways and ListenerSets: which addresses they have, which of their listeners conflict, and their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use shapes::host::HostPattern;

use crate::authorities::{AuthorityFault, content_id, resolve_authorities};
use crate::grants::{CrossReference, is_reference_allowed, takes_namespace};
use crate::objects::{
    FrontendValidation, GATEWAY_GROUP, Gateway, GatewayListener, ListenerSet, ObjectKey, ObjectReference,
    Objects, RouteNamespaces, TLS_SECRET,
};
use crate::options::{MEMORY_FOLDER, StatusCondition, TranslateOptions};

/// Reason and message of a condition.
pub(crate) type ConditionFault = (&'static str, String);

/// All Gateways of this controller, the oldest first, with the ListenerSets that name them.
#[derive(Default)]
pub(crate) struct JudgedGateways {
    pub(crate) gateways: Vec<JudgedGateway>,
    pub(crate) sets: Vec<JudgedListenerSet>,
    /// Positions of Gateways, and those of ListenerSets.
    gateway_positions: BTreeMap<ObjectKey, usize>,
    set_positions: BTreeMap<ObjectKey, usize>,
}

/// A Gateway of this controller.
pub(crate) struct JudgedGateway {
    pub(crate) key: ObjectKey,
    pub(crate) gateway: Arc<Gateway>,
    /// The address of its own; `None` if it shares all addresses, or has none.
    pub(crate) address: Option<IpAddr>,
    /// Whether it has an address.
    is_addressed: bool,
    /// Why it is not accepted, whatever its listeners are.
    refused: Option<ConditionFault>,
    /// The certificate that servers are shown, or why there is none.
    client_certificate: Option<Result<ClientCertificate, ConditionFault>>,
    /// Listeners of its own, then those of its ListenerSets.
    pub(crate) listeners: Vec<JudgedListener>,
    /// Number of its own listeners.
    own_listeners: usize,
    /// ListenerSets with a listener that is served.
    attached_sets: usize,
}

/// A ListenerSet that names a Gateway of this controller.
pub(crate) struct JudgedListenerSet {
    pub(crate) key: ObjectKey,
    set: Arc<ListenerSet>,
    pub(crate) gateway: usize,
    /// Its listeners among those of the Gateway; none if it is not allowed.
    pub(crate) listeners: Range<usize>,
    is_allowed: bool,
}

/// The certificate that a Gateway shows to servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientCertificate {
    pub(crate) secret: ObjectKey,
    /// Files in memory.
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// What a listener speaks.
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
enum PortFamily {
    Http,
    Tls,
    Tcp,
    Udp,
    Other,
}

impl ListenerProtocol {
    fn of(listener: &GatewayListener) -> ListenerProtocol {
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

    fn kinds(self) -> &'static [&'static str] {
        match self {
            ListenerProtocol::Http | ListenerProtocol::Https => &["HTTPRoute", "GRPCRoute"],
            ListenerProtocol::Tls { .. } => &["TLSRoute"],
            ListenerProtocol::Tcp => &["TCPRoute"],
            ListenerProtocol::Udp => &["UDPRoute"],
            ListenerProtocol::Other => &[],
        }
    }

    fn port_family(self) -> PortFamily {
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
    namespace: String,
    /// Namespaces whose routes it takes.
    route_namespaces: Option<RouteNamespaces>,
    /// Why it takes no connections: reason and message of `Accepted`.
    pub(crate) refused: Option<ConditionFault>,
    /// Reason and message of `Conflicted`.
    conflict: Option<ConditionFault>,
    /// Reason and message of `ResolvedRefs`, if a reference is not resolved.
    unresolved: Option<ConditionFault>,
    /// Whether the Gateway is accepted and has an address.
    is_usable: bool,
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
    fn is_valid(&self) -> bool {
        self.is_judged_valid() && self.rejected.is_none()
    }

    fn is_judged_valid(&self) -> bool {
        self.refused.is_none()
            && self.conflict.is_none()
            && (!self.protocol.has_certificates() || !self.certificates.is_empty())
    }

    /// Returns the listener's entry of the status.
    fn status(&self, generation: i64) -> Value {
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
                "no address is left: give `--addresses` more of them, or the Gateway another one",
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

/// Judges all Gateways of the accepted classes and their ListenerSets, the oldest first. `files` gets the certificates.
pub(crate) fn judge_gateways(
    objects: &Objects,
    classes: &BTreeSet<&str>,
    options: &TranslateOptions,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> JudgedGateways {
    let mut ours: Vec<(&ObjectKey, &Arc<Gateway>)> = objects
        .gateways
        .iter()
        .filter(|(_, gateway)| classes.contains(gateway.spec.gateway_class_name.as_str()))
        .collect();
    ours.sort_by_key(|(key, gateway)| (gateway.metadata.creation_timestamp.clone(), (*key).clone()));
    let addresses = assign_addresses(&ours, options);
    let mut judged = JudgedGateways {
        gateways: Vec::new(),
        sets: Vec::new(),
        gateway_positions: BTreeMap::new(),
        set_positions: BTreeMap::new(),
    };
    let mut taken = TakenPlaces::default();
    for (key, gateway) in ours {
        let (is_addressed, address) = match options.pool.is_empty() {
            true => (shares_address(gateway, options), None),
            false => {
                let found = addresses.get(key).copied();
                (found.is_some(), found)
            }
        };
        let refused = refused_gateway(gateway);
        let is_usable = is_addressed && refused.is_none();
        let owner = ListenerOwner { kind: "Gateway", key, gateway, address, is_usable };
        let mut listeners = Vec::new();
        for listener in &gateway.spec.listeners {
            let mut listener = judge_listener(objects, &owner, listener, options, files);
            taken.take(address, &mut listener);
            listeners.push(listener);
        }
        judged.gateways.push(JudgedGateway {
            key: key.clone(),
            gateway: gateway.clone(),
            address,
            is_addressed,
            refused,
            client_certificate: client_certificate(objects, key, gateway, files),
            own_listeners: listeners.len(),
            listeners,
            attached_sets: 0,
        });
    }
    // After all Gateways: a ListenerSet takes no place that one of them has.
    judged.gateway_positions =
        judged.gateways.iter().enumerate().map(|(at, gateway)| (gateway.key.clone(), at)).collect();
    let positions = &judged.gateway_positions;
    let mut sets: Vec<(&ObjectKey, &Arc<ListenerSet>, usize)> = objects
        .listener_sets
        .iter()
        .filter_map(|(key, set)| Some((key, set, *positions.get(&parent_of_set(key, set)?)?)))
        .collect();
    sets.sort_by_key(|(key, set, _)| (set.metadata.creation_timestamp.clone(), (*key).clone()));
    for (key, set, at) in sets {
        let gateway = &mut judged.gateways[at];
        let allowed = gateway.gateway.spec.allowed_listeners.as_ref();
        let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
        // Without `allowedListeners`, none is allowed.
        let is_allowed = namespaces.and_then(|rule| rule.from.as_deref()).is_some()
            && takes_namespace(objects, namespaces, &gateway.key.namespace, &key.namespace);
        let first = gateway.listeners.len();
        if is_allowed {
            let parent = gateway.gateway.clone();
            let (address, is_usable) = (gateway.address, gateway.is_addressed && gateway.refused.is_none());
            let owner = ListenerOwner { kind: "ListenerSet", key, gateway: &parent, address, is_usable };
            for listener in &set.spec.listeners {
                let mut listener = judge_listener(objects, &owner, listener, options, files);
                taken.take(address, &mut listener);
                gateway.listeners.push(listener);
            }
        }
        let listeners = first..gateway.listeners.len();
        judged.set_positions.insert(key.clone(), judged.sets.len());
        judged.sets.push(JudgedListenerSet {
            key: key.clone(),
            set: set.clone(),
            gateway: at,
            listeners,
            is_allowed,
        });
    }
    judged
}

/// Returns the Gateway that a ListenerSet names.
fn parent_of_set(key: &ObjectKey, set: &ListenerSet) -> Option<ObjectKey> {
    let parent = &set.spec.parent_ref;
    let is_gateway = parent.kind.as_deref().is_none_or(|kind| kind == "Gateway")
        && parent.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP);
    let namespace = parent.namespace.as_deref().unwrap_or(&key.namespace);
    is_gateway.then(|| ObjectKey::new(namespace, &parent.name))
}

/// Ports that a protocol has taken, and hosts that a listener has taken there.
#[derive(Default)]
struct TakenPlaces {
    protocols: BTreeMap<(Option<IpAddr>, u16, bool), PortFamily>,
    hosts: BTreeSet<(Option<IpAddr>, u16, PortFamily, String)>,
}

impl TakenPlaces {
    /// Takes the place of a listener, or notes its conflict.
    fn take(&mut self, address: Option<IpAddr>, listener: &mut JudgedListener) {
        if listener.refused.is_some() || !listener.is_usable {
            return;
        }
        let port = listener.port;
        let wanted = listener.protocol.port_family();
        // Datagrams have ports of their own.
        let taken = *self.protocols.entry((address, port, wanted == PortFamily::Udp)).or_insert(wanted);
        if taken != wanted {
            let text = format!("another listener has port {port} for another protocol: choose another port");
            listener.conflict = Some(("ProtocolConflict", text));
        } else if !self.hosts.insert((address, port, wanted, listener.hostname.clone())) {
            let host = if listener.hostname.is_empty() { "every host" } else { &listener.hostname };
            let text =
                format!("another listener has port {port} for {host}: choose another port or hostname");
            let reason = match wanted {
                PortFamily::Http | PortFamily::Tls => "HostnameConflict",
                _ => "ProtocolConflict",
            };
            listener.conflict = Some((reason, text));
        }
    }
}

fn is_unspecific(value: Option<&str>) -> bool {
    value.is_none_or(|text| matches!(text, "" | "0.0.0.0" | "::"))
}

/// Whether a Gateway can have the addresses that all share.
fn shares_address(gateway: &Gateway, options: &TranslateOptions) -> bool {
    gateway.spec.addresses.iter().all(|asked| {
        let value = asked.value.as_deref();
        is_unspecific(value) || options.status_addresses.iter().any(|one| Some(one.as_str()) == value)
    })
}

/// Returns why a Gateway is not accepted.
fn refused_gateway(gateway: &Gateway) -> Option<ConditionFault> {
    let kind = |address: &crate::objects::GatewayAddress| address.r#type.clone().unwrap_or_default();
    let is_known = |kind: &String| matches!(kind.as_str(), "" | "IPAddress" | "Hostname");
    if let Some(kind) = gateway.spec.addresses.iter().map(kind).find(|kind| !is_known(kind)) {
        let text = format!("addresses of the type {kind} are not supported: IPAddress is");
        return Some(("UnsupportedAddress", text));
    }
    let parameters = gateway.spec.infrastructure.as_ref()?.parameters_ref.as_ref()?;
    let text = format!(
        "`infrastructure.parametersRef` names a {}, and no kind of parameters is supported: remove it",
        parameters.kind.as_deref().unwrap_or_default()
    );
    Some(("InvalidParameters", text))
}

/// Finds the address that a Gateway should have, if there is one.
type AddressWish<'a> = &'a dyn Fn(&ObjectKey, &Gateway) -> Option<String>;

/// Gives each Gateway an address of the pool: the one that it asks for, the one that it has by its status, the one that it was given
/// last, or the next.
fn assign_addresses(
    gateways: &[(&ObjectKey, &Arc<Gateway>)],
    options: &TranslateOptions,
) -> BTreeMap<ObjectKey, IpAddr> {
    let mut left: BTreeSet<IpAddr> = options.pool.iter().copied().collect();
    let mut assigned = BTreeMap::new();
    // A Gateway that asks for several has none, because each has one.
    let asked = |gateway: &Gateway| {
        let mut values = gateway.spec.addresses.iter().filter_map(|address| address.value.clone());
        let first = values.find(|text| !is_unspecific(Some(text)))?;
        let is_only = values.all(|other| is_unspecific(Some(&other)) || other == first);
        Some(if is_only { first } else { String::new() })
    };
    let known = |gateway: &Gateway| {
        let address = gateway.status.pointer("/addresses/0/value").and_then(Value::as_str)?;
        asked(gateway).is_none().then(|| address.to_owned())
    };
    // Before its status comes back from the API server, a Gateway keeps what it has been given.
    let given = |key: &ObjectKey, gateway: &Gateway| {
        let address = options.assigned.get(key)?;
        asked(gateway).is_none().then(|| address.to_string())
    };
    let wishes: [AddressWish<'_>; 3] = [&|_, gateway| asked(gateway), &|_, gateway| known(gateway), &given];
    for wish in wishes {
        for (key, gateway) in gateways {
            let address = wish(key, gateway).and_then(|text| text.parse().ok());
            if let Some(address) =
                address.filter(|_| !assigned.contains_key(*key)).filter(|one| left.remove(one))
            {
                assigned.insert((*key).clone(), address);
            }
        }
    }
    for (key, _) in gateways.iter().filter(|(_, gateway)| asked(gateway).is_none()) {
        if !assigned.contains_key(*key)
            && let Some(address) = left.pop_first()
        {
            assigned.insert((*key).clone(), address);
        }
    }
    assigned
}

/// The Gateway or ListenerSet of a listener.
struct ListenerOwner<'a> {
    kind: &'static str,
    key: &'a ObjectKey,
    gateway: &'a Gateway,
    address: Option<IpAddr>,
    /// Whether the Gateway is accepted and has an address.
    is_usable: bool,
}

fn judge_listener(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    listener: &GatewayListener,
    options: &TranslateOptions,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> JudgedListener {
    let hostname = listener.hostname.clone().unwrap_or_default().to_ascii_lowercase();
    let shown = match owner.address {
        Some(IpAddr::V6(address)) => format!("[{address}]:{}", listener.port),
        Some(address) => format!("{address}:{}", listener.port),
        None => format!(":{}", listener.port),
    };
    let protocol = ListenerProtocol::of(listener);
    let mut state = JudgedListener {
        name: listener.name.clone(),
        port: listener.port,
        protocol,
        refused: None,
        conflict: None,
        unresolved: None,
        kinds: protocol.kinds().to_vec(),
        scope: format!("{}/{}/{}", owner.kind, owner.key, listener.name),
        namespace: owner.key.namespace.clone(),
        route_namespaces: listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.clone()),
        certificates: Vec::new(),
        client: None,
        attached_routes: 0,
        rejected: None,
        is_usable: owner.is_usable,
        // Connections without TLS and datagrams name no host.
        hostname: if matches!(protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp) {
            String::new()
        } else {
            hostname
        },
        address: shown,
    };
    let bind_address = state.bind_address();
    if protocol == ListenerProtocol::Other {
        let text =
            format!("the protocol {} is not supported: HTTP, HTTPS, TLS, TCP and UDP are", listener.protocol);
        state.refused = Some(("UnsupportedProtocol", text));
    } else if !state.hostname.is_empty() && HostPattern::parse(&state.hostname).is_err() {
        state.refused = Some(("Invalid", format!("{} is not a host", state.hostname)));
    } else if let Some(reason) = options.unusable.get(&bind_address) {
        let text = format!("the address {} cannot be used: {reason}", state.address);
        state.refused = Some(("PortUnavailable", text));
    } else if listener.port == 0 {
        state.refused = Some(("PortUnavailable", "port 0 is not a port".to_owned()));
    }
    if let Some(allowed) = listener.allowed_routes.as_ref().filter(|allowed| !allowed.kinds.is_empty()) {
        let is_named = |kind: &crate::objects::RouteKind, name: &str| {
            kind.kind == name && kind.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP)
        };
        let is_known =
            |kind: &&crate::objects::RouteKind| protocol.kinds().iter().any(|name| is_named(kind, name));
        if let Some(other) = allowed.kinds.iter().find(|kind| !is_known(kind)) {
            state.unresolved = Some((
                "InvalidRouteKinds",
                format!("routes of the kind {} are not supported here", other.kind),
            ));
        }
        state.kinds.retain(|name| allowed.kinds.iter().any(|kind| is_named(kind, name)));
    }
    if protocol.has_certificates() {
        resolve_certificates(objects, owner, listener, &mut state, files);
    }
    if protocol == ListenerProtocol::Https {
        resolve_client_verification(objects, owner, &mut state, files);
    }
    state
}

/// Resolves the certificates of a listener that decrypts TLS.
fn resolve_certificates(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    listener: &GatewayListener,
    state: &mut JudgedListener,
    files: &mut BTreeMap<String, Vec<u8>>,
) {
    let tls = listener.tls.clone().unwrap_or_default();
    if tls.mode.as_deref().is_some_and(|mode| mode != "Terminate") {
        state.refused =
            Some(("UnsupportedValue", "an HTTPS listener terminates TLS: `mode: Terminate`".to_owned()));
        return;
    }
    if tls.certificate_refs.is_empty() {
        state.unresolved = Some((
            "InvalidCertificateRef",
            "the listener names no certificate (`certificateRefs`)".to_owned(),
        ));
    }
    for reference in &tls.certificate_refs {
        match resolve_certificate(objects, (owner.kind, &owner.key.namespace), reference, files) {
            Ok(key) if !state.certificates.contains(&key) => state.certificates.push(key),
            Ok(_) => {}
            Err(fault) => state.unresolved = Some(fault),
        }
    }
}

fn frontend_validations(gateway: &Gateway) -> impl Iterator<Item = &FrontendValidation> {
    let frontend = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
    frontend.into_iter().flat_map(|frontend| {
        let ports = frontend.per_port.iter().filter_map(|port| port.tls.validation.as_ref());
        frontend.default.validation.iter().chain(ports)
    })
}

fn is_insecure(validation: &FrontendValidation) -> bool {
    validation.mode.as_deref() == Some("AllowInsecureFallback")
}

/// Resolves the verification of the clients of an HTTPS listener: that of its port, or the Gateway's default.
fn resolve_client_verification(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    state: &mut JudgedListener,
    files: &mut BTreeMap<String, Vec<u8>>,
) {
    let Some(frontend) = owner.gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else {
        return;
    };
    let of_port = frontend.per_port.iter().find(|one| one.port == state.port).map(|one| &one.tls);
    let Some(validation) = &of_port.unwrap_or(&frontend.default).validation else { return };
    let namespace = &owner.gateway.metadata.namespace;
    let (authorities, fault) =
        resolve_authorities(objects, ("Gateway", namespace), &validation.authorities, files);
    if let Some((kind, message)) = fault {
        let reason = match kind {
            AuthorityFault::Kind => "InvalidCACertificateKind",
            AuthorityFault::NotPermitted => "RefNotPermitted",
            AuthorityFault::Invalid => "InvalidCACertificateRef",
        };
        state.unresolved.get_or_insert((reason, message));
    }
    if authorities.is_empty() {
        // Clients are not served unverified because of a missing authority.
        let text = "no authority of client certificates is valid: see `ResolvedRefs`".to_owned();
        state.refused.get_or_insert(("NoValidCACertificate", text));
    }
    state.client = Some(ListenerVerification { authorities, is_optional: is_insecure(validation) });
}

/// Resolves the certificate that a Gateway shows to servers.
fn client_certificate(
    objects: &Objects,
    key: &ObjectKey,
    gateway: &Gateway,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Option<Result<ClientCertificate, ConditionFault>> {
    let backend = gateway.spec.tls.as_ref()?.backend.as_ref()?;
    let reference = backend.client_certificate_ref.as_ref()?;
    let mut own = BTreeMap::new();
    let found = resolve_certificate(objects, ("Gateway", &key.namespace), reference, &mut own);
    let found = found.map(|secret| {
        // Of its own, because a changed certificate changes the groups of servers that name it.
        let contents: Vec<&[u8]> = own.values().map(Vec::as_slice).collect();
        let folder = format!("{MEMORY_FOLDER}/client/{}/{}", secret.namespace, secret.name);
        let folder = format!("{folder}/{}", content_id(&contents));
        let (chain_path, key_path) = certificate_paths(&secret);
        let made = ClientCertificate {
            certificate: format!("{folder}/tls.crt"),
            key: format!("{folder}/tls.key"),
            secret,
        };
        for (path, from) in [(&made.certificate, chain_path), (&made.key, key_path)] {
            files.insert(path.clone(), own.remove(&from).unwrap_or_default());
        }
        made
    });
    Some(found.map_err(|(reason, message)| {
        let reason = if reason == "InvalidCertificateRef" { "InvalidClientCertificateRef" } else { reason };
        (reason, message)
    }))
}

/// Names by which the configuration finds the certificate of a Secret, and its key.
pub(crate) fn certificate_paths(secret: &ObjectKey) -> (String, String) {
    let folder = format!("{MEMORY_FOLDER}/secret/{}/{}", secret.namespace, secret.name);
    (format!("{folder}/tls.crt"), format!("{folder}/tls.key"))
}

/// Resolves a certificate that an object of a kind and namespace names, and puts it among the files.
fn resolve_certificate(
    objects: &Objects,
    (from_kind, from_namespace): (&str, &str),
    reference: &ObjectReference,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<ObjectKey, ConditionFault> {
    let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(from_namespace), &reference.name);
    let (group, kind) = (reference.group.as_deref(), reference.kind.as_deref());
    let invalid = |text: String| ("InvalidCertificateRef", text);
    if group.is_some_and(|group| !group.is_empty()) || kind.is_some_and(|kind| kind != "Secret") {
        return Err(invalid(format!(
            "{} is not supported: certificates are in Secrets",
            kind.unwrap_or_default()
        )));
    }
    let cross = CrossReference {
        from_group: GATEWAY_GROUP,
        from_kind,
        from_namespace,
        to_group: "",
        to_kind: "Secret",
        to: &key,
    };
    // Asked first, so that a reference does not reveal whether the Secret exists.
    if !is_reference_allowed(objects, &cross) {
        let text = format!(
            "no ReferenceGrant in the namespace {} allows this {from_kind} the Secret {}",
            key.namespace, key.name
        );
        return Err(("RefNotPermitted", text));
    }
    let secret = objects.secrets.get(&key).filter(|secret| secret.r#type == TLS_SECRET);
    let secret =
        secret.ok_or_else(|| invalid(format!("there is no Secret {key} of the type kubernetes.io/tls")))?;
    let (chain, private_key) = secret.certificate().map_err(invalid)?;
    let (chain_path, key_path) = certificate_paths(&key);
    files.insert(chain_path, chain);
    files.insert(key_path, private_key);
    Ok(key)
}
