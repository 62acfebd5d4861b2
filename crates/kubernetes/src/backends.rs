//! Services and their endpoints as groups of upstream servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use shapes::network::is_local;

use crate::backend_tls::{BackendTls, BackendTlsPolicies};
use crate::grants::{CrossReference, is_reference_allowed};
use crate::listeners::ClientCertificate;
use crate::objects::{
    BackendReference, Endpoint, EndpointSlice, GATEWAY_GROUP, ObjectKey, Objects, Service, ServicePort,
};
use crate::zones::{ReplicaPlace, nearest};

/// Servers of one group. Further endpoints are left out.
const SERVERS_MAX: usize = 10_000;

/// Endpoints by the Service that they belong to.
#[derive(Default)]
pub(crate) struct EndpointIndex {
    slices: BTreeMap<ObjectKey, BTreeMap<String, Arc<EndpointSlice>>>,
    /// The Service of each slice.
    services: BTreeMap<ObjectKey, ObjectKey>,
}

impl EndpointIndex {
    /// Sorts endpoints by their Service.
    pub(crate) fn of(objects: &Objects) -> EndpointIndex {
        let mut index = EndpointIndex::default();
        objects.endpoint_slices.keys().for_each(|slice| _ = index.refresh(objects, slice));
        index
    }

    /// Takes over the newest state of a slice. Returns the Services that it belonged to and belongs to.
    pub(crate) fn refresh(&mut self, objects: &Objects, slice: &ObjectKey) -> [Option<ObjectKey>; 2] {
        let before = self.services.remove(slice);
        if let Some(service) = &before
            && let Some(known) = self.slices.get_mut(service)
        {
            known.remove(&slice.name);
            if known.is_empty() {
                self.slices.remove(service);
            }
        }
        let Some(found) = objects.endpoint_slices.get(slice) else { return [before, None] };
        let service = found.metadata.labels.get("kubernetes.io/service-name");
        let service = service.map(|name| ObjectKey::new(&slice.namespace, name));
        if let Some(service) = &service {
            let slices = self.slices.entry(service.clone()).or_default();
            slices.insert(slice.name.clone(), found.clone());
            self.services.insert(slice.clone(), service.clone());
        }
        [before, service]
    }
}

/// A group of upstream servers: the endpoints of a port, and directives of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BackendGroup {
    pub(crate) service: ObjectKey,
    port: ServicePort,
    scheme: String,
    /// Directives, which may have `to` in place of the endpoints.
    extra: Map<String, Value>,
}

/// Groups of upstream servers that an object uses, by name, with whether they have servers.
#[derive(Default)]
pub(crate) struct BackendGroups {
    groups: BTreeMap<String, (BackendGroup, bool)>,
    /// Services that were resolved since they were last asked for.
    services: BTreeSet<ObjectKey>,
}

impl BackendGroups {
    /// Returns the groups.
    pub(crate) fn into_groups(self) -> BTreeMap<String, BackendGroup> {
        self.groups.into_iter().map(|(name, (group, _))| (name, group)).collect()
    }

    /// Returns a group.
    pub(crate) fn group(&self, name: &str) -> Option<&BackendGroup> {
        self.groups.get(name).map(|(group, _)| group)
    }

    /// Returns the Services that were resolved since the last call.
    pub(crate) fn take_services(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.services)
    }
}

/// Objects that were looked up for backends, found or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BackendReads {
    pub(crate) services: BTreeSet<ObjectKey>,
    /// Namespaces whose ReferenceGrants were asked for.
    pub(crate) granting: BTreeSet<String>,
}

/// A backend of a rule.
pub(crate) enum Backend {
    /// A group of servers, by name.
    Group(String),
    /// A Service without ready endpoints: 503.
    Empty,
    /// A Service whose BackendTLSPolicy cannot be followed: 500.
    Refused,
}

/// Why a backend is not resolved: reason and message of `ResolvedRefs`.
pub(crate) type UnresolvedBackend = (&'static str, String);

/// Where backends are looked up.
pub(crate) struct BackendSource<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) endpoints: &'a EndpointIndex,
    pub(crate) policies: &'a BackendTlsPolicies,
    /// Whether endpoints at loopback addresses are used.
    pub(crate) allows_loopback: bool,
    /// Where this replica runs.
    pub(crate) place: &'a ReplicaPlace,
    /// Addresses of Gateways. Streams do not lead there, because they could lead to themselves.
    pub(crate) own_addresses: &'a BTreeSet<IpAddr>,
    /// Objects that were looked up since [`BackendSource::take_reads`].
    pub(crate) reads: RefCell<BackendReads>,
}

/// The route that names a backend.
#[derive(Clone, Copy)]
pub(crate) struct BackendUser<'a> {
    /// Kind of the route.
    pub(crate) kind: &'static str,
    pub(crate) namespace: &'a str,
    /// The certificate that servers with TLS are shown.
    pub(crate) client: Option<&'a ClientCertificate>,
    /// The cookie that keeps a session at its server.
    pub(crate) session: Option<&'a str>,
}

/// A port of a Service that a reference names.
struct FoundPort<'a> {
    service: ObjectKey,
    port: &'a ServicePort,
}

impl BackendSource<'_> {
    /// Returns the objects that were looked up since the last call.
    pub(crate) fn take_reads(&self) -> BackendReads {
        self.reads.take()
    }

    /// Finds a Service, and notes that it was looked up.
    pub(crate) fn service(&self, key: &ObjectKey) -> Option<&Service> {
        self.reads.borrow_mut().services.insert(key.clone());
        self.objects.services.get(key).map(|service| &**service)
    }

    /// Resolves a reference of a route that speaks HTTP, and notes its group.
    pub(crate) fn resolve(
        &self,
        user: BackendUser<'_>,
        reference: &BackendReference,
        groups: &mut BackendGroups,
    ) -> Result<Backend, UnresolvedBackend> {
        let FoundPort { service, port } = self.find_port(user, reference, "TCP")?;
        let number = port.port;
        let tls = self.policies.of_port(&service, port.name.as_deref().unwrap_or_default());
        let is_h2c = port.app_protocol.as_deref() == Some("kubernetes.io/h2c");
        // Calls need HTTP/2, whatever the Service says.
        let is_http2 = is_h2c || user.kind == "GRPCRoute";
        let scheme = match (port.app_protocol.as_deref(), &tls) {
            (_, BackendTls::Verified(_) | BackendTls::Refused) => "https",
            (None | Some("" | "http" | "kubernetes.io/ws" | "kubernetes.io/h2c"), _) if is_http2 => "h2c",
            (None | Some("" | "http" | "kubernetes.io/ws"), _) => "http",
            (Some(other), _) => {
                let text = format!(
                    "the protocol {other} of port {number} of the Service {service} is not supported, or needs a BackendTLSPolicy"
                );
                return Err(("UnsupportedProtocol", text));
            }
        };
        groups.services.insert(service.clone());
        let mut extra = Map::new();
        // Namespaces have no underscore, so that no Secret's name makes the name of another group.
        let mut name = format!("{}.{}.{number}", service.namespace, service.name);
        if is_http2 && !is_h2c {
            name += ".h2";
        }
        if let Some(cookie) = user.session {
            // Balancing belongs to the group, so that routes with another cookie have another one.
            name += &format!(".session_{cookie}");
            extra.insert("balance".to_owned(), json!(format!("sticky:{cookie}")));
        }
        match tls {
            BackendTls::None => {}
            BackendTls::Refused => return Ok(Backend::Refused),
            BackendTls::Verified(mut table) => {
                if let Some(ClientCertificate { secret, certificate, key }) = user.client {
                    table.insert("certificate".to_owned(), json!(certificate));
                    table.insert("key".to_owned(), json!(key));
                    // Other Gateways have other certificates.
                    name += &format!(".client_{}.{}", secret.namespace, secret.name);
                }
                extra.insert("tls".to_owned(), Value::Object(table));
                if is_http2 {
                    extra.insert("http".to_owned(), json!("2"));
                }
            }
        }
        Ok(self.add_group(groups, name, &service, port, scheme, extra))
    }

    /// Resolves a reference of a route of connections or datagrams to the addresses of its endpoints.
    pub(crate) fn resolve_stream(
        &self,
        user: BackendUser<'_>,
        reference: &BackendReference,
    ) -> Result<BTreeSet<SocketAddr>, UnresolvedBackend> {
        let protocol = if user.kind == "UDPRoute" { "UDP" } else { "TCP" };
        let FoundPort { service, port } = self.find_port(user, reference, protocol)?;
        let mut servers = self.servers(&service, port);
        servers.retain(|address| !self.own_addresses.contains(&address.ip()));
        Ok(servers)
    }

    fn find_port(
        &self,
        user: BackendUser<'_>,
        reference: &BackendReference,
        protocol: &str,
    ) -> Result<FoundPort<'_>, UnresolvedBackend> {
        let is_service = reference.group.as_deref().is_none_or(|group| group.is_empty() || group == "core")
            && reference.kind.as_deref().is_none_or(|kind| kind == "Service");
        if !is_service {
            let text = format!(
                "a backend of the kind {} is not supported: name a Service",
                reference.kind.as_deref().unwrap_or_default()
            );
            return Err(("InvalidKind", text));
        }
        let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(user.namespace), &reference.name);
        let cross = CrossReference {
            from_group: GATEWAY_GROUP,
            from_kind: user.kind,
            from_namespace: user.namespace,
            to_group: "",
            to_kind: "Service",
            to: &key,
        };
        if key.namespace != user.namespace {
            self.reads.borrow_mut().granting.insert(key.namespace.clone());
        }
        if !is_reference_allowed(self.objects, &cross) {
            let text = format!(
                "no ReferenceGrant in the namespace {} allows this route the Service {}",
                key.namespace, key.name
            );
            return Err(("RefNotPermitted", text));
        }
        let service =
            self.service(&key).ok_or_else(|| ("BackendNotFound", format!("there is no Service {key}")))?;
        if service.spec.r#type.as_deref() == Some("ExternalName") {
            let text = format!(
                "the Service {key} is of the type ExternalName, which is refused: it could name any host"
            );
            return Err(("BackendNotFound", text));
        }
        let Some(number) = reference.port else {
            return Err(("BackendNotFound", format!("the reference to the Service {key} needs a `port`")));
        };
        let ports = &service.spec.ports;
        let port = ports.iter().find(|port| port.port == number && protocol_of(port) == protocol);
        let port = port.ok_or_else(|| {
            ("BackendNotFound", format!("the Service {key} has no port {number} of {protocol}"))
        })?;
        Ok(FoundPort { service: key, port })
    }

    /// Adds a group of a port's servers with directives of its own, which may have `to`.
    pub(crate) fn add_group(
        &self,
        groups: &mut BackendGroups,
        name: String,
        service: &ObjectKey,
        port: &ServicePort,
        scheme: &str,
        extra: Map<String, Value>,
    ) -> Backend {
        let (_, has_servers) = groups.groups.entry(name.clone()).or_insert_with(|| {
            let (service, port, scheme) = (service.clone(), port.clone(), scheme.to_owned());
            let group = BackendGroup { service, port, scheme, extra };
            let has_servers = self.has_servers(&group);
            (group, has_servers)
        });
        if *has_servers { Backend::Group(name) } else { Backend::Empty }
    }

    /// Whether a group has servers.
    pub(crate) fn has_servers(&self, group: &BackendGroup) -> bool {
        group.extra.contains_key("to") || !self.servers(&group.service, &group.port).is_empty()
    }

    /// Returns the table of a group; `None` if it has no servers.
    pub(crate) fn group_table(&self, group: &BackendGroup) -> Option<Value> {
        let mut table = json!({});
        if !group.extra.contains_key("to") {
            let servers = self.servers(&group.service, &group.port);
            if servers.is_empty() {
                return None;
            }
            let url = |address: &SocketAddr| format!("{}://{address}", group.scheme);
            table["to"] = servers.iter().take(SERVERS_MAX).map(url).collect();
        }
        for (key, value) in &group.extra {
            table[key] = value.clone();
        }
        Some(table)
    }

    /// Returns the addresses of the servers of a group.
    pub(crate) fn group_addresses(&self, group: &BackendGroup) -> Vec<String> {
        let table = self.group_table(group);
        let urls = table.as_ref().and_then(|table| table.get("to")).and_then(Value::as_array);
        let address = |url: &Value| Some(url.as_str()?.split_once("://")?.1.to_owned());
        urls.into_iter().flatten().filter_map(address).collect()
    }

    /// Returns the ready endpoints of a port; terminating ones if no other is ready.
    fn servers(&self, service: &ObjectKey, port: &ServicePort) -> BTreeSet<SocketAddr> {
        let Some(slices) = self.endpoints.slices.get(service) else { return BTreeSet::new() };
        let ready = self.addresses(slices, port, |endpoint| endpoint.conditions.ready.unwrap_or(true));
        let ready = addresses_of(nearest(ready, self.place));
        if ready.is_empty() {
            // Terminating endpoints still serve, and are better than none.
            addresses_of(
                self.addresses(slices, port, |endpoint| endpoint.conditions.serving.unwrap_or(false)),
            )
        } else {
            ready
        }
    }

    /// Returns the endpoints of a port, with their addresses.
    fn addresses<'e>(
        &self,
        slices: &'e BTreeMap<String, Arc<EndpointSlice>>,
        port: &ServicePort,
        is_used: impl Fn(&Endpoint) -> bool,
    ) -> Vec<(&'e Endpoint, SocketAddr)> {
        let wanted = port.name.as_deref().unwrap_or_default();
        let protocol = protocol_of(port);
        let mut found = Vec::new();
        for slice in slices.values().filter(|slice| matches!(slice.address_type.as_str(), "IPv4" | "IPv6")) {
            let of_slice = |port: &&crate::objects::EndpointPort| {
                port.name.as_deref().unwrap_or_default() == wanted
                    && port.protocol.as_deref().filter(|text| !text.is_empty()).unwrap_or("TCP") == protocol
            };
            let Some(number) = slice.ports.iter().find(of_slice).and_then(|port| port.port) else { continue };
            for endpoint in slice.endpoints.iter().filter(|endpoint| is_used(endpoint)) {
                let addresses = endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
                let usable = addresses.filter(|address| number > 0 && self.is_usable(*address));
                found.extend(usable.map(|address| (endpoint, SocketAddr::new(address, number))));
            }
        }
        found
    }

    /// Whether an address is one that pods have. The API server refuses others; here is a second check, because such an
    /// address could be this server's own control interface, or the metadata of a cloud.
    pub(crate) fn is_usable(&self, address: IpAddr) -> bool {
        !is_local(address) || (self.allows_loopback && address.to_canonical().is_loopback())
    }
}

fn addresses_of(endpoints: Vec<(&Endpoint, SocketAddr)>) -> BTreeSet<SocketAddr> {
    endpoints.into_iter().map(|(_, address)| address).collect()
}

fn protocol_of(port: &ServicePort) -> &str {
    port.protocol.as_deref().filter(|text| !text.is_empty()).unwrap_or("TCP")
}
