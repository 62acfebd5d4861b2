//! Gateways: which addresses they have, which of their listeners conflict, and their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use data_encoding::BASE64;
use serde_json::{Value, json};
use shapes::host::HostPattern;

use crate::grants::{CrossReference, is_reference_allowed};
use crate::objects::{GATEWAY_GROUP, Gateway, GatewayListener, ObjectKey, Objects, TLS_SECRET};
use crate::options::{StatusCondition, TranslateOptions};

/// A Gateway of this controller.
pub(crate) struct JudgedGateway {
    pub(crate) key: ObjectKey,
    pub(crate) gateway: Arc<Gateway>,
    /// The address of its own; `None` if it shares all addresses, or has none.
    pub(crate) address: Option<IpAddr>,
    /// Whether it has an address.
    pub(crate) is_addressed: bool,
    pub(crate) listeners: Vec<JudgedListener>,
}

/// A listener, with its verdict.
pub(crate) struct JudgedListener {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// In lower case; empty for every host.
    pub(crate) hostname: String,
    /// Address for `listen`.
    pub(crate) address: String,
    /// Secrets with its certificates.
    pub(crate) certificates: Vec<ObjectKey>,
    pub(crate) kinds: Vec<&'static str>,
    /// Why it takes no connections: reason and message of `Accepted`.
    pub(crate) refused: Option<(&'static str, String)>,
    /// Reason and message of `Conflicted`.
    pub(crate) conflict: Option<(&'static str, String)>,
    /// Reason and message of `ResolvedRefs`, if a reference is not resolved.
    pub(crate) unresolved: Option<(&'static str, String)>,
    pub(crate) attached_routes: u32,
}

impl JudgedListener {
    /// Whether it is part of the configuration.
    pub(crate) fn is_served(&self) -> bool {
        self.refused.is_none() && self.conflict.is_none() && (!self.is_tls || !self.certificates.is_empty())
    }

    /// Returns the listener's entry of the status.
    pub(crate) fn status(&self, generation: i64) -> Value {
        let fault = self.refused.as_ref();
        let accepted = match fault {
            Some((reason, message)) => StatusCondition::new("Accepted", false, reason, message),
            None => StatusCondition::new("Accepted", true, "Accepted", "the listener is accepted"),
        };
        let conflicted = match &self.conflict {
            Some((reason, message)) => StatusCondition::new("Conflicted", true, reason, message),
            None => StatusCondition::new("Conflicted", false, "NoConflicts", "no other listener conflicts"),
        };
        let resolved = match &self.unresolved {
            Some((reason, message)) => StatusCondition::new("ResolvedRefs", false, reason, message),
            None => StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        };
        let programmed = if self.is_served() {
            StatusCondition::new("Programmed", true, "Programmed", "the listener is served")
        } else {
            StatusCondition::new(
                "Programmed",
                false,
                "Invalid",
                "the listener is not served: see the other conditions",
            )
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

impl JudgedGateway {
    /// Returns the Gateway's status.
    pub(crate) fn status(&self, options: &TranslateOptions) -> Value {
        let generation = self.gateway.metadata.generation;
        let served = self.listeners.iter().filter(|listener| listener.is_served()).count();
        let all = self.listeners.len();
        let accepted = match served {
            0 => StatusCondition::new(
                "Accepted",
                false,
                "ListenersNotValid",
                "no listener is valid: see their conditions",
            ),
            _ if served < all => StatusCondition::new(
                "Accepted",
                true,
                "ListenersNotValid",
                "some listeners are not valid: see their conditions",
            ),
            _ => StatusCondition::new("Accepted", true, "Accepted", "the Gateway is accepted"),
        };
        let programmed = match (self.is_addressed, served) {
            (false, _) => StatusCondition::new(
                "Programmed",
                false,
                "AddressNotUsable",
                "no address is left: give `--addresses` more of them, or the Gateway another one",
            ),
            (true, 0) => StatusCondition::new("Programmed", false, "Invalid", "no listener is served"),
            (true, _) => StatusCondition::new("Programmed", true, "Programmed", "the Gateway is served"),
        };
        let addresses: Vec<Value> = match self.address {
            Some(address) => vec![json!({ "type": "IPAddress", "value": address.to_string() })],
            None if self.is_addressed => {
                options.status_addresses.iter().map(|text| address_json(text)).collect()
            }
            None => Vec::new(),
        };
        let listeners: Vec<Value> =
            self.listeners.iter().map(|listener| listener.status(generation)).collect();
        json!({
            "addresses": addresses,
            "conditions": [accepted.json(generation), programmed.json(generation)],
            "listeners": listeners,
        })
    }
}

fn address_json(text: &str) -> Value {
    let kind = if text.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    json!({ "type": kind, "value": text })
}

/// Judges all Gateways of the accepted classes, the oldest first. `files` gets the certificates.
pub(crate) fn judge_gateways(
    objects: &Objects,
    classes: &BTreeSet<&str>,
    options: &TranslateOptions,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Vec<JudgedGateway> {
    let mut ours: Vec<(&ObjectKey, &Arc<Gateway>)> = objects
        .gateways
        .iter()
        .filter(|(_, gateway)| classes.contains(gateway.spec.gateway_class_name.as_str()))
        .collect();
    ours.sort_by_key(|(key, gateway)| (gateway.metadata.creation_timestamp.clone(), (*key).clone()));
    let addresses = assign_addresses(&ours, options);
    // Ports that a protocol has taken, and hosts that a listener has taken there.
    let mut protocols: BTreeMap<(Option<IpAddr>, u16), bool> = BTreeMap::new();
    let mut hosts: BTreeSet<(Option<IpAddr>, u16, String)> = BTreeSet::new();
    let mut states = Vec::new();
    for (key, gateway) in ours {
        let (is_addressed, address) = match options.pool.is_empty() {
            true => (gateway.spec.addresses.iter().all(|asked| is_unspecific(asked.value.as_deref())), None),
            false => {
                let found = addresses.get(key).copied();
                (found.is_some(), found)
            }
        };
        let mut state = JudgedGateway {
            key: key.clone(),
            gateway: gateway.clone(),
            address,
            is_addressed,
            listeners: Vec::new(),
        };
        for listener in &gateway.spec.listeners {
            let mut judged = judge_listener(objects, key, listener, address, options, files);
            if !is_addressed && judged.refused.is_none() {
                judged.refused = Some(("Pending", "the Gateway has no address".to_owned()));
            }
            if judged.refused.is_none() {
                let taken = *protocols.entry((address, judged.port)).or_insert(judged.is_tls);
                let place = (address, judged.port, judged.hostname.clone());
                if taken != judged.is_tls {
                    let text = format!(
                        "another listener has port {} for another protocol: choose another port",
                        judged.port
                    );
                    judged.conflict = Some(("ProtocolConflict", text));
                } else if !hosts.insert(place) {
                    let host = if judged.hostname.is_empty() { "every host" } else { &judged.hostname };
                    let text = format!(
                        "another listener has port {} for {host}: choose another port or hostname",
                        judged.port
                    );
                    judged.conflict = Some(("HostnameConflict", text));
                }
            }
            state.listeners.push(judged);
        }
        states.push(state);
    }
    states
}

fn is_unspecific(value: Option<&str>) -> bool {
    value.is_none_or(|text| matches!(text, "" | "0.0.0.0" | "::"))
}

/// Gives each Gateway an address of the pool: the one that it asks for, the one that it has by its status, or the next.
fn assign_addresses(
    gateways: &[(&ObjectKey, &Arc<Gateway>)],
    options: &TranslateOptions,
) -> BTreeMap<ObjectKey, IpAddr> {
    let mut left: BTreeSet<IpAddr> = options.pool.iter().copied().collect();
    let mut assigned = BTreeMap::new();
    let asked = |gateway: &Gateway| {
        let value = gateway.spec.addresses.iter().find_map(|address| address.value.clone());
        value.filter(|text| !is_unspecific(Some(text)))
    };
    let known = |gateway: &Gateway| {
        let address = gateway.status.pointer("/addresses/0/value").and_then(Value::as_str)?;
        asked(gateway).is_none().then(|| address.to_owned())
    };
    for wish in [&asked as &dyn Fn(&Gateway) -> Option<String>, &known] {
        for (key, gateway) in gateways {
            let address = wish(gateway).and_then(|text| text.parse().ok());
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
    gateway: &ObjectKey,
    listener: &GatewayListener,
    address: Option<IpAddr>,
    options: &TranslateOptions,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> JudgedListener {
    let hostname = listener.hostname.clone().unwrap_or_default().to_ascii_lowercase();
    let shown = match address {
        Some(IpAddr::V6(address)) => format!("[{address}]:{}", listener.port),
        Some(address) => format!("{address}:{}", listener.port),
        None => format!(":{}", listener.port),
    };
    let mut state = JudgedListener {
        name: listener.name.clone(),
        port: listener.port,
        is_tls: listener.protocol == "HTTPS",
        refused: None,
        conflict: None,
        unresolved: None,
        kinds: vec!["HTTPRoute"],
        certificates: Vec::new(),
        attached_routes: 0,
        hostname,
        address: shown.clone(),
    };
    if !matches!(listener.protocol.as_str(), "HTTP" | "HTTPS") {
        state.kinds.clear();
        let text = format!("the protocol {} is not supported: HTTP and HTTPS are", listener.protocol);
        state.refused = Some(("UnsupportedProtocol", text));
    } else if !state.hostname.is_empty() && HostPattern::parse(&state.hostname).is_err() {
        state.refused = Some(("Invalid", format!("{} is not a host", state.hostname)));
    } else if let Some(reason) = options.unusable.get(&shown) {
        let text = format!("the address {shown} cannot be used: {reason}");
        state.refused = Some(("PortUnavailable", text));
    } else if listener.port == 0 {
        state.refused = Some(("PortUnavailable", "port 0 is not a port".to_owned()));
    }
    if let Some(allowed) = &listener.allowed_routes
        && !allowed.kinds.is_empty()
    {
        let is_known = |kind: &crate::objects::RouteKind| {
            kind.kind == "HTTPRoute" && kind.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP)
        };
        if let Some(other) = allowed.kinds.iter().find(|kind| !is_known(kind)) {
            state.unresolved = Some((
                "InvalidRouteKinds",
                format!("routes of the kind {} are not supported here", other.kind),
            ));
        }
        if !allowed.kinds.iter().any(is_known) {
            state.kinds.clear();
        }
    }
    if state.is_tls {
        resolve_certificates(objects, gateway, listener, &mut state, files);
    }
    state
}

/// Resolves the certificates of an HTTPS listener.
fn resolve_certificates(
    objects: &Objects,
    gateway: &ObjectKey,
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
        let namespace = reference.namespace.as_deref().unwrap_or(&gateway.namespace);
        let key = ObjectKey::new(namespace, &reference.name);
        match resolve_certificate(
            objects,
            gateway,
            reference.group.as_deref(),
            reference.kind.as_deref(),
            &key,
        ) {
            Ok((chain, private_key)) => {
                let (chain_path, key_path) = certificate_paths(&key);
                files.insert(chain_path, chain);
                files.insert(key_path, private_key);
                if !state.certificates.contains(&key) {
                    state.certificates.push(key);
                }
            }
            Err(fault) => state.unresolved = Some(fault),
        }
    }
}

/// Names by which the configuration finds the certificate of a Secret, and its key.
pub(crate) fn certificate_paths(secret: &ObjectKey) -> (String, String) {
    let folder = format!("{}/secret/{}/{}", crate::options::MEMORY_FOLDER, secret.namespace, secret.name);
    (format!("{folder}/tls.crt"), format!("{folder}/tls.key"))
}

/// A chain and its key (PEM).
type CertificatePair = (Vec<u8>, Vec<u8>);

fn resolve_certificate(
    objects: &Objects,
    gateway: &ObjectKey,
    group: Option<&str>,
    kind: Option<&str>,
    key: &ObjectKey,
) -> Result<CertificatePair, (&'static str, String)> {
    let invalid = |text: String| ("InvalidCertificateRef", text);
    if group.is_some_and(|group| !group.is_empty()) || kind.is_some_and(|kind| kind != "Secret") {
        return Err(invalid(format!(
            "{} is not supported: certificates are in Secrets",
            kind.unwrap_or_default()
        )));
    }
    let reference = CrossReference {
        from_group: GATEWAY_GROUP,
        from_kind: "Gateway",
        from_namespace: &gateway.namespace,
        to_group: "",
        to_kind: "Secret",
        to: key,
    };
    // Asked first, so that a reference does not reveal whether the Secret exists.
    if !is_reference_allowed(objects, &reference) {
        let text = format!(
            "no ReferenceGrant in the namespace {} allows this Gateway the Secret {}",
            key.namespace, key.name
        );
        return Err(("RefNotPermitted", text));
    }
    let secret = objects.secrets.get(key).filter(|secret| secret.r#type == TLS_SECRET);
    let secret =
        secret.ok_or_else(|| invalid(format!("there is no Secret {key} of the type kubernetes.io/tls")))?;
    let part = |name: &str| {
        let text = secret.data.get(name).ok_or_else(|| invalid(format!("the Secret {key} has no {name}")))?;
        BASE64
            .decode(text.as_bytes())
            .map_err(|_| invalid(format!("{name} of the Secret {key} is not base64")))
    };
    let (chain, private_key) = (part("tls.crt")?, part("tls.key")?);
    match net::ServerCertificate::from_pem(&chain, &private_key) {
        Ok(_) => Ok((chain, private_key)),
        Err(fault) => {
            let (chain_name, key_name) = (format!("{key} tls.crt"), format!("{key} tls.key"));
            Err(invalid(fault.in_files(chain_name.as_ref(), key_name.as_ref())))
        }
    }
}
