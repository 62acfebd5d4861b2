//! Objects of the Kubernetes API: the fields that are used of each kind, and the store of all objects.
//!
//! | Module | Owns |
//! |---|---|
//! | `kind` | kinds, and the names of objects |
//! | `fields` | the fields that are used of each kind |
//! | `meaning` | whether two states of an object have the same meaning |
//!
//! Modules, from low to high; each imports only from those above it.

mod kind;
mod fields;
mod meaning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use crate::objects::fields::*;
pub use crate::objects::kind::*;
use crate::objects::meaning::SameMeaning;

/// Objects of one kind that are kept. Further ones are ignored, which is logged.
pub const OBJECTS_MAX: usize = 100_000;
/// Bytes of an entry of a ConfigMap that is kept.
const CONFIG_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// The type of Secrets with a certificate and its key.
pub(crate) const TLS_SECRET: &str = "kubernetes.io/tls";
/// Bytes that a name, namespace or resource version may have; the API server allows 253.
const NAME_BYTES_MAX: usize = 512;

/// Names of objects that have changed.
pub type ChangedObjects = BTreeSet<(Kind, ObjectKey)>;

/// Objects of one kind.
pub type Table<T> = BTreeMap<ObjectKey, Arc<T>>;

/// All objects. Copies share the objects themselves.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Classes of Gateways.
    pub gateway_classes: Table<GatewayClass>,
    /// Gateways.
    pub gateways: Table<Gateway>,
    /// HTTPRoutes.
    pub http_routes: Table<HttpRoute>,
    /// ListenerSets.
    pub listener_sets: Table<ListenerSet>,
    /// GRPCRoutes.
    pub grpc_routes: Table<GrpcRoute>,
    /// TLSRoutes.
    pub tls_routes: Table<StreamRoute>,
    /// TCPRoutes.
    pub tcp_routes: Table<StreamRoute>,
    /// UDPRoutes.
    pub udp_routes: Table<StreamRoute>,
    /// TLS towards Services.
    pub backend_tls_policies: Table<BackendTlsPolicy>,
    /// Policies.
    pub policies: Table<KomainuPolicy>,
    /// Policies that are there and were not kept. They could be guards.
    pub unread_policies: BTreeSet<ObjectKey>,
    /// Permissions of references.
    pub reference_grants: Table<ReferenceGrant>,
    /// Services.
    pub services: Table<Service>,
    /// Endpoints.
    pub endpoint_slices: Table<EndpointSlice>,
    /// Namespaces.
    pub namespaces: Table<Namespace>,
    /// Certificates with their keys, authorities, and users.
    pub secrets: Table<Secret>,
    /// Ingresses.
    pub ingresses: Table<Ingress>,
    /// Classes of Ingresses.
    pub ingress_classes: Table<IngressClass>,
    /// ConfigMaps.
    pub config_maps: Table<ConfigMap>,
    /// Objects that have changed since [`Objects::take_changed`] was called.
    changed: ChangedObjects,
}

/// Why an object is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedObject {
    /// The object lacks a name, or the name is longer than names are.
    Nameless,
    /// A field has another type than the API declares.
    Malformed(String),
    /// The store has the most objects of this kind that it takes.
    TooMany,
}

/// Applies `$call` to the table of a kind.
macro_rules! in_table {
    ($objects:expr, $kind:expr, $table:ident => $call:expr) => {
        match $kind {
            Kind::GatewayClass => {
                let $table = &mut $objects.gateway_classes;
                $call
            }
            Kind::Gateway => {
                let $table = &mut $objects.gateways;
                $call
            }
            Kind::HttpRoute => {
                let $table = &mut $objects.http_routes;
                $call
            }
            Kind::ListenerSet => {
                let $table = &mut $objects.listener_sets;
                $call
            }
            Kind::GrpcRoute => {
                let $table = &mut $objects.grpc_routes;
                $call
            }
            Kind::TlsRoute => {
                let $table = &mut $objects.tls_routes;
                $call
            }
            Kind::TcpRoute => {
                let $table = &mut $objects.tcp_routes;
                $call
            }
            Kind::UdpRoute => {
                let $table = &mut $objects.udp_routes;
                $call
            }
            Kind::BackendTlsPolicy => {
                let $table = &mut $objects.backend_tls_policies;
                $call
            }
            Kind::KomainuPolicy => {
                let $table = &mut $objects.policies;
                $call
            }
            Kind::ReferenceGrant => {
                let $table = &mut $objects.reference_grants;
                $call
            }
            Kind::Service => {
                let $table = &mut $objects.services;
                $call
            }
            Kind::EndpointSlice => {
                let $table = &mut $objects.endpoint_slices;
                $call
            }
            Kind::Namespace => {
                let $table = &mut $objects.namespaces;
                $call
            }
            Kind::Secret => {
                let $table = &mut $objects.secrets;
                $call
            }
            Kind::Ingress => {
                let $table = &mut $objects.ingresses;
                $call
            }
            Kind::IngressClass => {
                let $table = &mut $objects.ingress_classes;
                $call
            }
            Kind::ConfigMap => {
                let $table = &mut $objects.config_maps;
                $call
            }
        }
    };
}

impl Objects {
    /// Stores an object in its newest state. A malformed object replaces what is known of it by nothing: an older state would be
    /// served for ever. Returns whether anything has changed that is not `status` or a version.
    ///
    /// # Errors
    /// The object is ignored.
    pub fn put(&mut self, kind: Kind, mut object: Value) -> Result<bool, RefusedObject> {
        remove_nulls(&mut object);
        let key = object_key(&object).ok_or(RefusedObject::Nameless)?;
        if kind == Kind::Secret && !is_kept_secret(&object) {
            return Ok(self.remove(kind, &key));
        }
        if kind == Kind::ConfigMap {
            drop_large_entries(&mut object);
        }
        let put = in_table!(self, kind, table => put_in(table, key.clone(), object));
        let mut is_noted = false;
        if kind == Kind::KomainuPolicy {
            is_noted = match &put {
                Ok(_) => self.unread_policies.remove(&key),
                Err(_) => self.unread_policies.insert(key.clone()),
            };
        }
        if is_noted || put.as_ref().map_or(true, |outcome| *outcome != PutOutcome::Same) {
            self.changed.insert((kind, key));
        }
        put.map(|outcome| is_noted || outcome == PutOutcome::Changed)
    }

    /// Returns the objects that were put with another meaning, or removed, since the last call.
    pub fn take_changed(&mut self) -> ChangedObjects {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn count(&mut self) -> usize {
        let count = |kind| in_table!(self, kind, table => table.len());
        Kind::ALL.into_iter().map(count).sum()
    }

    /// Returns the version and the status of an object of a kind that has one.
    #[must_use]
    pub fn status(&self, kind: Kind, key: &ObjectKey) -> Option<(String, Value)> {
        macro_rules! found {
            ($table:ident, $read:ident) => {{
                let object = self.$table.get(key)?;
                Some((object.metadata.resource_version.clone(), object.status.$read()))
            }};
        }
        match kind {
            Kind::GatewayClass => found!(gateway_classes, value),
            Kind::Gateway => found!(gateways, clone),
            Kind::ListenerSet => found!(listener_sets, value),
            Kind::HttpRoute => found!(http_routes, value),
            Kind::GrpcRoute => found!(grpc_routes, value),
            Kind::TlsRoute => found!(tls_routes, value),
            Kind::TcpRoute => found!(tcp_routes, value),
            Kind::UdpRoute => found!(udp_routes, value),
            Kind::BackendTlsPolicy => found!(backend_tls_policies, value),
            Kind::KomainuPolicy => found!(policies, clone),
            Kind::Ingress => found!(ingresses, value),
            _ => None,
        }
    }

    /// Removes an object. Returns whether it was there.
    pub fn remove(&mut self, kind: Kind, key: &ObjectKey) -> bool {
        let was_unread = kind == Kind::KomainuPolicy && self.unread_policies.remove(key);
        let was_there = was_unread | in_table!(self, kind, table => table.remove(key).is_some());
        if was_there {
            self.changed.insert((kind, key.clone()));
        }
        was_there
    }

    /// Removes the objects of a kind that are not among these, as after a list.
    pub fn retain(&mut self, kind: Kind, keys: &BTreeSet<ObjectKey>) -> bool {
        let gone: Vec<ObjectKey> = in_table!(self, kind, table => {
            table.keys().filter(|key| !keys.contains(key)).cloned().collect()
        });
        for key in &gone {
            self.remove(kind, key);
        }
        if kind == Kind::KomainuPolicy {
            let unread: Vec<ObjectKey> =
                self.unread_policies.iter().filter(|key| !keys.contains(key)).cloned().collect();
            unread.iter().for_each(|key| _ = self.remove(kind, key));
        }
        !gone.is_empty()
    }
}

/// Whether a Secret is of a type that is kept.
fn is_kept_secret(object: &Value) -> bool {
    matches!(
        object.get("type").and_then(Value::as_str),
        None | Some(TLS_SECRET | POLICY_SECRET_TYPE | "Opaque")
    )
}

/// Removes the entries of a ConfigMap that no directive has room for.
fn drop_large_entries(object: &mut Value) {
    if let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) {
        // Certificates of authorities are as large as the API server allows.
        data.retain(|name, value| {
            value.as_str().is_some_and(|text| name == "ca.crt" || text.len() <= CONFIG_ENTRY_BYTES_MAX)
        });
    }
}

/// Removes fields that are null: the API server writes empty lists so.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(table) => {
            table.retain(|_, value| !value.is_null());
            table.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns an object without large parts that are not used, so that a list needs no more memory than what is kept of it.
#[must_use]
pub(crate) fn trimmed(kind: Kind, mut object: Value) -> Value {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    match kind {
        Kind::ConfigMap => {
            drop_large_entries(&mut object);
            if let Value::Object(table) = &mut object {
                table.remove("binaryData");
            }
        }
        Kind::Secret if !is_kept_secret(&object) => {
            if let Value::Object(table) = &mut object {
                table.remove("data");
            }
        }
        _ => {}
    }
    object
}

/// Returns the name of an object.
#[must_use]
pub fn object_key(object: &Value) -> Option<ObjectKey> {
    let metadata = object.get("metadata")?;
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let key = ObjectKey::new(text("namespace"), text("name"));
    let is_name = |text: &str| {
        text.len() <= NAME_BYTES_MAX
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':'))
    };
    (!key.name.is_empty() && is_name(&key.name) && is_name(&key.namespace)).then_some(key)
}

/// How a state of an object differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PutOutcome {
    Same,
    /// In a part of the status that the next translation reads.
    StatusRead,
    Changed,
}

fn put_in<T: DeserializeOwned + SameMeaning>(
    table: &mut Table<T>,
    key: ObjectKey,
    object: Value,
) -> Result<PutOutcome, RefusedObject> {
    let object: T = match serde_json::from_value(object) {
        Ok(object) => object,
        Err(error) => {
            table.remove(&key);
            return Err(RefusedObject::Malformed(error.to_string()));
        }
    };
    match table.get(&key) {
        Some(known) => {
            let outcome = match (known.has_same_meaning(&object), known.has_same_read_status(&object)) {
                (false, _) => PutOutcome::Changed,
                (true, false) => PutOutcome::StatusRead,
                (true, true) => PutOutcome::Same,
            };
            // The version counts for the next change of the status.
            table.insert(key, Arc::new(object));
            Ok(outcome)
        }
        None if table.len() >= OBJECTS_MAX => Err(RefusedObject::TooMany),
        None => {
            table.insert(key, Arc::new(object));
            Ok(PutOutcome::Changed)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_used_parts_of_large_objects_are_kept() {
        let large = "x".repeat(CONFIG_ENTRY_BYTES_MAX + 1);
        let mut object = json!({
            "metadata": { "name": "a", "managedFields": ["x"] },
            "data": { "ca.crt": large, "large": large, "small": "D" },
            "binaryData": { "x": "E" },
        });
        let expected = json!({ "metadata": { "name": "a" }, "data": { "ca.crt": large, "small": "D" } });
        assert_eq!(trimmed(Kind::ConfigMap, object.clone()), expected);
        assert_eq!(trimmed(Kind::Service, object.clone())["data"], object["data"]);
        for (kind, is_kept) in
            [(TLS_SECRET, true), (POLICY_SECRET_TYPE, true), ("Opaque", true), ("helm.sh/release.v1", false)]
        {
            object["type"] = json!(kind);
            assert_eq!(trimmed(Kind::Secret, object.clone()).get("data").is_some(), is_kept, "{kind}");
        }
    }

    #[test]
    fn entries_of_config_maps_without_a_use_are_not_kept() {
        let mut objects = Objects::default();
        let mut put = |data: Value| {
            let object = json!({ "metadata": { "name": "a", "namespace": "n" }, "data": data });
            objects.put(Kind::ConfigMap, object)
        };
        let large = "x".repeat(CONFIG_ENTRY_BYTES_MAX + 1);
        assert_eq!(put(json!({ "x": "y" })), Ok(true));
        assert_eq!(put(json!({ "x": "y", "large": large })), Ok(false));
        assert_eq!(put(json!({ "x": "y", "ca.crt": large })), Ok(true));
    }
}
