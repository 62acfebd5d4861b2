//! Gateways and ListenerSets: which addresses they have, which of their listeners conflict, and their certificates.
//!
//! | Module | Owns |
//! |---|---|
//! | `judged` | Gateways and ListenerSets as they were judged, and their conditions |
//! | `listener_tls` | certificates of listeners, and those that they ask clients for |
//!
//! Modules, from low to high; each imports only from those above it.

mod judged;
mod listener_tls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use net::Listen;
use serde_json::Value;
use shapes::host::HostPattern;

use crate::grants::takes_namespace;
pub(crate) use crate::listeners::judged::*;
pub(crate) use crate::listeners::listener_tls::certificate_paths;
use crate::listeners::listener_tls::{client_certificate, resolve_certificates, resolve_client_verification};
use crate::objects::{GATEWAY_GROUP, Gateway, GatewayListener, ListenerSet, ObjectKey, Objects};
use crate::options::{IngressOptions, TranslateOptions};

/// Judges all Gateways of the accepted classes and their ListenerSets, the oldest first. `ingresses_since` is when the oldest Ingress
/// was created, if there is one. `files` gets the certificates.
pub(crate) fn judge_gateways(
    objects: &Objects,
    classes: &BTreeSet<&str>,
    options: &TranslateOptions,
    ingresses_since: Option<&str>,
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
    let own_addresses = options.own_addresses();
    let mut taken = TakenPlaces {
        ingresses: ingresses_since.map(|since| (since, &options.ingress)),
        addresses_max: options.addresses_max.unwrap_or(usize::MAX),
        ..TakenPlaces::default()
    };
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
            let mut listener = judge_listener(objects, &owner, listener, (options, &own_addresses), files);
            taken.take(address, &gateway.metadata.creation_timestamp, &mut listener);
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
                let mut listener =
                    judge_listener(objects, &owner, listener, (options, &own_addresses), files);
                taken.take(address, &set.metadata.creation_timestamp, &mut listener);
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
struct TakenPlaces<'a> {
    /// When the oldest Ingress was created, and the addresses of Ingresses.
    ingresses: Option<(&'a str, &'a IngressOptions)>,
    protocols: BTreeMap<(Option<IpAddr>, u16, bool), PortFamily>,
    /// Number of ports at addresses that all may have, and that each namespace has.
    addresses_max: usize,
    addresses: BTreeMap<String, usize>,
    hosts: BTreeSet<(Option<IpAddr>, u16, PortFamily, String)>,
}

impl TakenPlaces<'_> {
    /// Takes the place of a listener of an object that was created at `created`, or notes its conflict.
    fn take(&mut self, address: Option<IpAddr>, created: &str, listener: &mut JudgedListener) {
        if listener.refused.is_some() || !listener.is_usable {
            return;
        }
        let port = listener.port;
        let wanted = listener.protocol.port_family();
        if let Some((since, ingresses)) = self.ingresses {
            let is_other = [(&ingresses.http, PortFamily::Http), (&ingresses.https, PortFamily::Tls)]
                .into_iter()
                .any(|(own, family)| *own == listener.address && wanted != family);
            // The oldest object has the address.
            if is_other && !created.is_empty() && created >= since {
                let text = format!(
                    "Ingresses have the address {} for another protocol: choose another port",
                    listener.address
                );
                listener.conflict = Some(("ProtocolConflict", text));
                return;
            }
        }
        // Datagrams have ports of their own.
        let place = (address, port, wanted == PortFamily::Udp);
        if !self.protocols.contains_key(&place) {
            let of_namespace = self.addresses.entry(listener.namespace.clone()).or_default();
            if *of_namespace >= self.addresses_max / 2 || self.protocols.len() >= self.addresses_max {
                let text = format!(
                    "the address {} cannot be used: the namespace {} listens at {of_namespace} addresses, and all Gateways at {}; the server has \
                     descriptors for {}, of which a namespace has half",
                    listener.address,
                    listener.namespace,
                    self.protocols.len(),
                    self.addresses_max
                );
                listener.refused = Some(("PortUnavailable", text));
                return;
            }
            *of_namespace += 1;
        }
        let taken = *self.protocols.entry(place).or_insert(wanted);
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

/// Gives each Gateway an address of the pool: the one that it has by its status, or was given last, if it asks for no other one; the
/// one that it asks for; or the next.
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
        asked(gateway).is_none_or(|asked| asked == address).then(|| address.to_owned())
    };
    // Before its status comes back from the API server, a Gateway keeps what it has been given.
    let given = |key: &ObjectKey, gateway: &Gateway| {
        let address = options.assigned.get(key)?.to_string();
        asked(gateway).is_none_or(|asked| asked == address).then_some(address)
    };
    let wishes: [AddressWish<'_>; 3] = [&|_, gateway| known(gateway), &given, &|_, gateway| asked(gateway)];
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

fn judge_listener(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    listener: &GatewayListener,
    (options, own_addresses): (&TranslateOptions, &[(Listen, &str)]),
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
    let is_own = |(own, _): &&(Listen, &str)| {
        protocol != ListenerProtocol::Udp
            && Listen::parse(&state.address).is_ok_and(|address| address.overlaps(own))
    };
    if protocol == ListenerProtocol::Other {
        let text =
            format!("the protocol {} is not supported: HTTP, HTTPS, TLS, TCP and UDP are", listener.protocol);
        state.refused = Some(("UnsupportedProtocol", text));
    } else if !state.hostname.is_empty() && HostPattern::parse(&state.hostname).is_err() {
        state.refused = Some(("Invalid", format!("{} is not a host", state.hostname)));
    } else if let Some(reason) = options.unusable.get(&bind_address) {
        let text = format!("the address {} cannot be used: {reason}", state.address);
        state.refused = Some(("PortUnavailable", text));
    } else if let Some((own, what)) = own_addresses.iter().find(is_own) {
        let text = format!(
            "the address {} cannot be used: the server itself listens at {own} ({what}): choose another port",
            state.address
        );
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
