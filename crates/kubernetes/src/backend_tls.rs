//! BackendTLSPolicies: which Services are spoken to over TLS, and how their certificates are verified.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::authorities::{AuthorityFault, content_id, resolve_authorities};
use crate::escape;
use crate::objects::{BackendTlsPolicy, GATEWAY_GROUP, ObjectKey, Objects};
use crate::options::{CONTROLLER_NAME, MEMORY_FOLDER, StatusCondition};

/// Gateways in the status of a policy; the API server refuses more.
const ANCESTORS_MAX: usize = 16;

/// All BackendTLSPolicies, with their verdicts.
#[derive(Default)]
pub(crate) struct BackendTlsPolicies {
    policies: Vec<JudgedPolicy>,
    /// Policies by the Service that they name, and by the name of its port; without one, for all ports.
    by_target: BTreeMap<ObjectKey, BTreeMap<Option<String>, usize>>,
    /// Gateways whose routes lead to a Service.
    uses: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

/// A BackendTLSPolicy.
struct JudgedPolicy {
    key: ObjectKey,
    policy: Arc<BackendTlsPolicy>,
    /// `tls` of a group of servers; `None` if the policy cannot be followed.
    table: Option<Map<String, Value>>,
    /// Reason and message of `Accepted`.
    refused: Option<(&'static str, String)>,
    /// Reason and message of `ResolvedRefs`.
    unresolved: Option<(&'static str, String)>,
}

/// TLS of a backend.
pub(crate) enum BackendTls {
    /// No policy: as the Service says.
    None,
    /// `tls` of its group.
    Verified(Map<String, Value>),
    /// The policy cannot be followed, so nothing is sent.
    Refused,
}

impl BackendTlsPolicies {
    /// Judges all policies; of several for the same port of a Service, the oldest holds. `files` gets the authorities.
    pub(crate) fn judge(objects: &Objects, files: &mut BTreeMap<String, Vec<u8>>) -> BackendTlsPolicies {
        let mut all: Vec<(&ObjectKey, &Arc<BackendTlsPolicy>)> =
            objects.backend_tls_policies.iter().collect();
        all.sort_by_key(|(key, policy)| (policy.metadata.creation_timestamp.clone(), (*key).clone()));
        let mut judged = BackendTlsPolicies::default();
        for (index, (key, policy)) in all.into_iter().enumerate() {
            let mut own = judge_policy(objects, key, policy, files);
            let mut has_target = false;
            for (service, port_name) in targets(key, policy) {
                let places = judged.by_target.entry(service).or_default();
                has_target |= *places.entry(port_name).or_insert(index) == index;
            }
            if !has_target && targets(key, policy).next().is_some() {
                let text = "an older BackendTLSPolicy is for the same Service and port".to_owned();
                own.refused = Some(("Conflicted", text));
            }
            judged.policies.push(own);
        }
        judged
    }

    /// Returns the TLS of a port of a Service.
    pub(crate) fn of_port(&self, service: &ObjectKey, port_name: &str) -> BackendTls {
        let Some(places) = self.by_target.get(service) else { return BackendTls::None };
        let named = places.get(&Some(port_name.to_owned())).or_else(|| places.get(&None));
        match named.map(|at| &self.policies[*at].table) {
            None => BackendTls::None,
            Some(Some(table)) => BackendTls::Verified(table.clone()),
            Some(None) => BackendTls::Refused,
        }
    }

    /// Returns the Services of all policies.
    pub(crate) fn targeted(&self) -> impl Iterator<Item = &ObjectKey> {
        self.by_target.keys()
    }

    /// Returns the names of the ConfigMaps of all policies.
    pub(crate) fn named_objects(&self) -> BTreeSet<ObjectKey> {
        let named = self.policies.iter().flat_map(|policy| {
            let authorities = policy.policy.spec.validation.authorities.iter();
            authorities.map(|reference| ObjectKey::new(&policy.key.namespace, &reference.name))
        });
        named.collect()
    }

    /// Takes over which Gateways' routes lead to each Service.
    pub(crate) fn set_uses(&mut self, uses: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>) {
        self.uses = uses;
    }

    /// Returns the names of all policies, the oldest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.policies.iter().map(|policy| &policy.key)
    }

    /// Returns the statuses of all policies. The Gateways of this controller that use them are ancestors.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (ObjectKey, Value)> {
        self.policies.iter().map(|policy| {
            let uses =
                targets(&policy.key, &policy.policy).filter_map(|(service, _)| self.uses.get(&service));
            (policy.key.clone(), policy.status(&uses.flatten().collect()))
        })
    }
}

/// Whether a text may stand in `verify_names`. Faults of groups would concern all routes.
fn is_certificate_name(text: &str) -> bool {
    let is_uri = text.split_once("://").is_some_and(|(scheme, rest)| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        !scheme.is_empty() && scheme.chars().all(fits) && !rest.is_empty()
    });
    escape::is_host(text) || (is_uri && text.chars().all(|c| c.is_ascii_graphic()))
}

/// Returns the Services of a policy, with the names of their ports; without one for all ports.
fn targets<'a>(
    key: &'a ObjectKey,
    policy: &'a BackendTlsPolicy,
) -> impl Iterator<Item = (ObjectKey, Option<String>)> + 'a {
    let all = policy.spec.target_refs.iter();
    let services = all.filter(|target| target.kind == "Service" && target.group.is_empty());
    services.map(|target| (ObjectKey::new(&key.namespace, &target.name), target.section_name.clone()))
}

impl JudgedPolicy {
    fn status(&self, gateways: &BTreeSet<&ObjectKey>) -> Value {
        let generation = self.policy.metadata.generation;
        let accepted = match &self.refused {
            Some((reason, message)) => StatusCondition::new("Accepted", false, reason, message),
            None => StatusCondition::new("Accepted", true, "Accepted", "the policy is accepted"),
        };
        let resolved = match &self.unresolved {
            Some((reason, message)) => StatusCondition::new("ResolvedRefs", false, reason, message),
            None => StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        };
        let ancestor = |gateway: &&ObjectKey| {
            json!({
                "ancestorRef": {
                    "group": GATEWAY_GROUP,
                    "kind": "Gateway",
                    "namespace": gateway.namespace,
                    "name": gateway.name,
                },
                "controllerName": CONTROLLER_NAME,
                "conditions": [accepted.json(generation), resolved.json(generation)],
            })
        };
        let ancestors: Vec<Value> = gateways.iter().take(ANCESTORS_MAX).map(ancestor).collect();
        json!({ "ancestors": ancestors })
    }
}

fn judge_policy(
    objects: &Objects,
    key: &ObjectKey,
    policy: &Arc<BackendTlsPolicy>,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> JudgedPolicy {
    let mut judged = JudgedPolicy {
        key: key.clone(),
        policy: policy.clone(),
        table: None,
        refused: None,
        unresolved: None,
    };
    let validation = &policy.spec.validation;
    let mut table = Map::new();
    let mut found = BTreeMap::new();
    // References of this kind have no namespace.
    let local: Vec<_> = validation
        .authorities
        .iter()
        .map(|reference| crate::objects::ObjectReference { namespace: None, ..reference.clone() })
        .collect();
    let (paths, fault) =
        resolve_authorities(objects, ("BackendTLSPolicy", &key.namespace), &local, &mut found);
    if let Some((kind, message)) = fault {
        let reason = match kind {
            AuthorityFault::Kind => "InvalidKind",
            AuthorityFault::NotPermitted | AuthorityFault::Invalid => "InvalidCACertificateRef",
        };
        judged.unresolved = Some((reason, message));
    }
    match (paths.is_empty(), validation.well_known_authorities.as_deref()) {
        (false, _) => {
            let mut content = Vec::new();
            for pem in paths.iter().filter_map(|path| found.get(path)) {
                content.extend_from_slice(pem);
                // The last line may lack its line feed.
                content.push(b'\n');
            }
            let folder = format!("{MEMORY_FOLDER}/policy/{}/{}", key.namespace, key.name);
            let path = format!("{folder}/{}/ca.crt", content_id(&[&content]));
            table.insert("ca".to_owned(), json!(path));
            files.insert(path, content);
        }
        (true, Some("System")) if validation.authorities.is_empty() => {}
        (true, Some(other)) if validation.authorities.is_empty() => {
            let text = format!("wellKnownCACertificates {other} is not supported: System is");
            judged.refused = Some(("Invalid", text));
        }
        (true, _) => {
            let text = "no certificate of an authority is valid: see `ResolvedRefs`".to_owned();
            judged.refused = Some(("NoValidCACertificate", text));
        }
    }
    if escape::is_host(&validation.hostname) {
        table.insert("name".to_owned(), json!(validation.hostname));
    } else {
        let text = format!("{:?} is not a host name", validation.hostname);
        judged.refused.get_or_insert(("Invalid", text));
    }
    let names: Vec<&str> = validation
        .subject_alt_names
        .iter()
        .filter_map(|name| match name.r#type.as_str() {
            "Hostname" => name.hostname.as_deref(),
            "URI" => name.uri.as_deref(),
            _ => None,
        })
        .collect();
    if names.len() < validation.subject_alt_names.len() {
        let text = "subjectAltNames have the type Hostname or URI, and a value of it".to_owned();
        judged.refused.get_or_insert(("Invalid", text));
    } else if !names.is_empty() {
        match names.iter().find(|name| !is_certificate_name(name)) {
            Some(odd) => {
                let text =
                    format!("{odd:?} is neither a host name nor a URI such as \"spiffe://example.com/app\"");
                judged.refused.get_or_insert(("Invalid", text));
            }
            None => _ = table.insert("verify_names".to_owned(), json!(names)),
        }
    }
    judged.table = judged.refused.is_none().then_some(table);
    judged
}
