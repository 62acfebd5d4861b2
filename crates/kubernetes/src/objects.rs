//! Objects of the Kubernetes API: the fields that are used of each kind, and the store of all objects.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use data_encoding::BASE64;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::packed::PackedJson;
use crate::policy_spec::PolicySpec;

/// Objects of one kind that are kept. Further ones are ignored, which is logged.
pub const OBJECTS_MAX: usize = 100_000;
/// Bytes of an entry of a ConfigMap that is kept.
const CONFIG_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// The type of Secrets with a certificate and its key.
pub(crate) const TLS_SECRET: &str = "kubernetes.io/tls";
/// Bytes that a name, namespace or resource version may have; the API server allows 253.
const NAME_BYTES_MAX: usize = 512;

/// Namespace and name of an object; the namespace is empty for kinds of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Creates a key.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => out.write_str(&self.name),
            namespace => write!(out, "{namespace}/{}", self.name),
        }
    }
}

/// Declares structs of an object, with the names of the API's fields; absent fields have their default.
macro_rules! api_structs {
    ($($(#[$attributes:meta])* $name:ident { $($(#[$field_attributes:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$attributes])*
            #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            #[allow(missing_docs, reason = "most fields are described by the API")]
            pub struct $name { $($(#[$field_attributes])* pub $field: $type),* }
        )*
    };
}

api_structs! {
    /// What every object has.
    Metadata {
        /// Name.
        name: String,
        /// Namespace; empty for kinds of the whole cluster.
        namespace: String,
        /// Identity; another object of the same name has another one.
        uid: String,
        /// Version of this state of the object.
        resource_version: String,
        /// Number of changes of `spec`.
        generation: i64,
        /// RFC 3339, in UTC: texts sort as times.
        creation_timestamp: String,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
    }
    /// A class of Gateways.
    GatewayClass { metadata: Metadata, spec: GatewayClassSpec, status: PackedJson }
    /// Its specification.
    GatewayClassSpec { controller_name: String }
    /// A Gateway: listeners at an address.
    Gateway { metadata: Metadata, spec: GatewaySpec, status: Value }
    /// Its specification.
    GatewaySpec {
        gateway_class_name: String,
        listeners: Vec<GatewayListener>,
        addresses: Vec<GatewayAddress>,
        allowed_listeners: Option<AllowedListeners>,
        tls: Option<GatewayTls>,
        infrastructure: Option<GatewayInfrastructure>,
    }
    /// ListenerSets that may add listeners.
    AllowedListeners { namespaces: Option<RouteNamespaces> }
    /// TLS of a Gateway: towards servers, and of clients.
    GatewayTls { backend: Option<GatewayBackendTls>, frontend: Option<GatewayFrontendTls> }
    /// TLS towards servers.
    GatewayBackendTls { client_certificate_ref: Option<ObjectReference> }
    /// TLS of clients, by port.
    GatewayFrontendTls { default: FrontendTls, per_port: Vec<FrontendPort> }
    /// TLS of clients at a port.
    FrontendPort { port: u16, tls: FrontendTls }
    /// TLS of clients.
    FrontendTls { validation: Option<FrontendValidation> }
    /// Certificates that clients show.
    FrontendValidation {
        #[serde(rename = "caCertificateRefs")]
        authorities: Vec<ObjectReference>,
        mode: Option<String>,
    }
    /// What is made for a Gateway.
    GatewayInfrastructure {
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        parameters_ref: Option<ObjectReference>,
    }
    /// More listeners of a Gateway.
    ListenerSet { metadata: Metadata, spec: ListenerSetSpec, status: PackedJson }
    /// Its specification.
    ListenerSetSpec { parent_ref: ParentReference, listeners: Vec<GatewayListener> }
    /// An address that a Gateway asks for.
    GatewayAddress { r#type: Option<String>, value: Option<String> }
    /// A listener of a Gateway.
    GatewayListener {
        name: String,
        hostname: Option<String>,
        port: u16,
        protocol: String,
        tls: Option<ListenerTls>,
        allowed_routes: Option<AllowedRoutes>,
    }
    /// TLS of a listener.
    ListenerTls { mode: Option<String>, certificate_refs: Vec<ObjectReference> }
    /// Routes that a listener takes.
    AllowedRoutes { namespaces: Option<RouteNamespaces>, kinds: Vec<RouteKind> }
    /// Namespaces whose routes a listener takes.
    RouteNamespaces { from: Option<String>, selector: Option<LabelSelector> }
    /// A kind of routes.
    RouteKind { group: Option<String>, kind: String }
    /// A selector of labels.
    LabelSelector { match_labels: BTreeMap<String, String>, match_expressions: Vec<LabelExpression> }
    /// A condition of a label.
    LabelExpression { key: String, operator: String, values: Vec<String> }
    /// A reference to an object.
    ObjectReference { group: Option<String>, kind: Option<String>, namespace: Option<String>, name: String }
    /// A reference of a route to its Gateway.
    ParentReference {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
        section_name: Option<String>,
        port: Option<u16>,
    }
    /// An HTTPRoute.
    HttpRoute { metadata: Metadata, spec: HttpRouteSpec, status: PackedJson }
    /// Its specification.
    HttpRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Vec<HttpRule> }
    /// A rule of an HTTPRoute.
    HttpRule {
        name: Option<String>,
        matches: Vec<HttpMatch>,
        filters: Vec<HttpFilter>,
        backend_refs: Vec<BackendReference>,
        timeouts: Option<RuleTimeouts>,
        retry: Option<RuleRetry>,
        session_persistence: Option<SessionPersistence>,
    }
    /// Timeouts of a rule.
    RuleTimeouts { request: Option<String>, backend_request: Option<String> }
    /// Retries of a rule.
    RuleRetry { codes: Vec<u16>, attempts: Option<u32>, backoff: Option<String> }
    /// Requests of a client that go to the same server.
    SessionPersistence {
        session_name: Option<String>,
        r#type: Option<String>,
        absolute_timeout: Option<String>,
        idle_timeout: Option<String>,
        cookie_config: Option<SessionCookie>,
    }
    /// The cookie of a session.
    SessionCookie { lifetime_type: Option<String> }
    /// Conditions of a rule, all of which a request must meet.
    HttpMatch {
        path: Option<PathMatch>,
        headers: Vec<NamedMatch>,
        query_params: Vec<NamedMatch>,
        method: Option<String>,
    }
    /// A condition of the path.
    PathMatch { r#type: Option<String>, value: Option<String> }
    /// A condition of a header field or query parameter.
    NamedMatch { r#type: Option<String>, name: String, value: String }
    /// A filter.
    HttpFilter {
        r#type: String,
        request_header_modifier: Option<HeaderModifier>,
        response_header_modifier: Option<HeaderModifier>,
        request_mirror: Option<RequestMirror>,
        request_redirect: Option<RequestRedirect>,
        url_rewrite: Option<UrlRewrite>,
        cors: Option<CorsFilter>,
    }
    /// Changes of header fields.
    HeaderModifier { set: Vec<NamedValue>, add: Vec<NamedValue>, remove: Vec<String> }
    /// Name and value of a field.
    NamedValue { name: String, value: String }
    /// Copies of requests.
    RequestMirror { backend_ref: BackendReference, percent: Option<u32>, fraction: Option<Fraction> }
    /// A fraction.
    Fraction { numerator: u32, denominator: Option<u32> }
    /// A redirect.
    RequestRedirect {
        scheme: Option<String>,
        hostname: Option<String>,
        path: Option<PathModifier>,
        port: Option<u16>,
        status_code: Option<u16>,
    }
    /// Another path.
    PathModifier { r#type: String, replace_full_path: Option<String>, replace_prefix_match: Option<String> }
    /// Another URL for the upstream server.
    UrlRewrite { hostname: Option<String>, path: Option<PathModifier> }
    /// Cross-origin requests.
    CorsFilter {
        allow_origins: Vec<String>,
        allow_credentials: Option<bool>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<i64>,
    }
    /// A GRPCRoute.
    GrpcRoute { metadata: Metadata, spec: GrpcRouteSpec, status: PackedJson }
    /// Its specification.
    GrpcRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Vec<GrpcRule> }
    /// A rule of a GRPCRoute.
    GrpcRule {
        matches: Vec<GrpcMatch>,
        filters: Vec<HttpFilter>,
        backend_refs: Vec<BackendReference>,
        session_persistence: Option<SessionPersistence>,
    }
    /// Conditions of a rule, all of which a call must meet.
    GrpcMatch { method: Option<GrpcMethodMatch>, headers: Vec<NamedMatch> }
    /// A condition of the called method.
    GrpcMethodMatch { r#type: Option<String>, service: Option<String>, method: Option<String> }
    /// A TLSRoute, TCPRoute or UDPRoute.
    StreamRoute { metadata: Metadata, spec: StreamRouteSpec, status: PackedJson }
    /// Its specification. Only a TLSRoute has hostnames.
    StreamRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Vec<StreamRule> }
    /// Its rule.
    StreamRule { backend_refs: Vec<BackendReference> }
    /// A BackendTLSPolicy: TLS towards the servers of a Service.
    BackendTlsPolicy { metadata: Metadata, spec: BackendTlsPolicySpec, status: PackedJson }
    /// Its specification.
    BackendTlsPolicySpec { target_refs: Vec<PolicyTarget>, validation: BackendValidation }
    /// A Service, or one port of it.
    PolicyTarget { group: String, kind: String, name: String, section_name: Option<String> }
    /// How the certificate of a server is verified.
    BackendValidation {
        #[serde(rename = "caCertificateRefs")]
        authorities: Vec<ObjectReference>,
        #[serde(rename = "wellKnownCACertificates")]
        well_known_authorities: Option<String>,
        hostname: String,
        subject_alt_names: Vec<SubjectAltName>,
    }
    /// A name that the certificate must have.
    SubjectAltName { r#type: String, hostname: Option<String>, uri: Option<String> }
    /// A reference to a backend, with its share of requests.
    BackendReference {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
        port: Option<u16>,
        weight: Option<u32>,
        filters: Vec<HttpFilter>,
    }
    /// Permission to refer to objects of the namespace from another one.
    ReferenceGrant { metadata: Metadata, spec: ReferenceGrantSpec }
    /// Its specification.
    ReferenceGrantSpec { from: Vec<GrantFrom>, to: Vec<GrantTo> }
    /// The kinds and namespace that may refer.
    GrantFrom { group: String, kind: String, namespace: String }
    /// The objects that may be referred to.
    GrantTo { group: String, kind: String, name: Option<String> }
    /// A Service.
    Service { metadata: Metadata, spec: ServiceSpec, status: ServiceStatus }
    /// Its specification.
    ServiceSpec {
        ports: Vec<ServicePort>,
        r#type: Option<String>,
        #[serde(rename = "clusterIP")]
        cluster_ip: Option<String>,
    }
    /// Its status.
    ServiceStatus { load_balancer: LoadBalancerStatus }
    /// Addresses of a load balancer.
    LoadBalancerStatus { ingress: Vec<LoadBalancerIngress> }
    /// An address of a load balancer.
    LoadBalancerIngress { ip: Option<String>, hostname: Option<String> }
    /// A port of a Service.
    ServicePort { name: Option<String>, port: u16, protocol: Option<String>, app_protocol: Option<String> }
    /// Endpoints of a Service.
    EndpointSlice { metadata: Metadata, address_type: String, endpoints: Vec<Endpoint>, ports: Vec<EndpointPort> }
    /// One endpoint.
    Endpoint {
        addresses: Vec<String>,
        conditions: EndpointConditions,
        hints: EndpointHints,
        node_name: Option<String>,
        zone: Option<String>,
    }
    /// Zones and nodes whose requests an endpoint should get.
    EndpointHints { for_zones: Vec<EndpointHint>, for_nodes: Vec<EndpointHint> }
    /// A zone or node.
    EndpointHint { name: String }
    /// Its state.
    EndpointConditions { ready: Option<bool>, serving: Option<bool>, terminating: Option<bool> }
    /// A port of the endpoints of a slice.
    EndpointPort { name: Option<String>, port: Option<u16>, protocol: Option<String>, app_protocol: Option<String> }
    /// A namespace.
    Namespace { metadata: Metadata }
    /// An Ingress.
    Ingress { metadata: Metadata, spec: IngressSpec, status: PackedJson }
    /// Its specification.
    IngressSpec {
        ingress_class_name: Option<String>,
        default_backend: Option<IngressBackend>,
        tls: Vec<IngressTls>,
        rules: Vec<IngressRule>,
    }
    /// Hosts and their certificate.
    IngressTls { hosts: Vec<String>, secret_name: Option<String> }
    /// Paths of a host.
    IngressRule { host: Option<String>, http: Option<IngressHttp> }
    /// Paths.
    IngressHttp { paths: Vec<IngressHttpPath> }
    /// A path and its backend.
    IngressHttpPath { path: Option<String>, path_type: Option<String>, backend: IngressBackend }
    /// A backend.
    IngressBackend { service: Option<IngressService>, resource: Option<Value> }
    /// A port of a Service.
    IngressService { name: String, port: IngressServicePort }
    /// Name or number of a port.
    IngressServicePort { name: Option<String>, number: Option<u16> }
    /// A class of Ingresses.
    IngressClass { metadata: Metadata, spec: IngressClassSpec }
    /// Its specification.
    IngressClassSpec { controller: String }
    /// Texts by name.
    ConfigMap { metadata: Metadata, data: BTreeMap<String, String> }
}

/// A Secret; only `kubernetes.io/tls`, `Opaque` and [`POLICY_SECRET_TYPE`] are kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Secret {
    /// What every object has.
    pub metadata: Metadata,
    /// The type.
    pub r#type: String,
    /// Contents by their keys, in base64.
    pub data: BTreeMap<String, String>,
    /// The fault of the certificate in it, once it was checked.
    #[serde(skip)]
    certificate_fault: OnceLock<Option<String>>,
}

impl Secret {
    /// Returns the certificates and the private key of the Secret (PEM), which are checked once.
    ///
    /// # Errors
    /// One of them is missing or invalid.
    pub(crate) fn certificate(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let key = ObjectKey::new(&self.metadata.namespace, &self.metadata.name);
        let part = |name: &str| {
            let text = self.data.get(name).ok_or_else(|| format!("the Secret {key} has no {name}"))?;
            BASE64.decode(text.as_bytes()).map_err(|_| format!("{name} of the Secret {key} is not base64"))
        };
        let (chain, private_key) = (part("tls.crt")?, part("tls.key")?);
        let fault = self.certificate_fault.get_or_init(|| {
            let fault = net::ServerCertificate::from_pem(&chain, &private_key).err()?;
            let (chain_name, key_name) = (format!("{key} tls.crt"), format!("{key} tls.key"));
            Some(fault.in_files(chain_name.as_ref(), key_name.as_ref()).to_string())
        });
        match fault {
            None => Ok((chain, private_key)),
            Some(fault) => Err(fault.clone()),
        }
    }
}

/// A KomainuPolicy. Its specification is read field by field, so that a fault in one hides no other.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KomainuPolicy {
    /// What every object has.
    pub metadata: Metadata,
    /// The specification, as it was sent.
    pub spec: Value,
    /// The status.
    pub status: Value,
    #[serde(skip)]
    read: OnceLock<PolicySpec>,
}

impl KomainuPolicy {
    /// Returns the specification, which is read once.
    pub(crate) fn spec(&self) -> &PolicySpec {
        self.read.get_or_init(|| PolicySpec::read(&self.spec))
    }
}

/// A kind of objects that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `GatewayClass`
    GatewayClass,
    /// `Gateway`
    Gateway,
    /// `HTTPRoute`
    HttpRoute,
    /// `ListenerSet`
    ListenerSet,
    /// `GRPCRoute`
    GrpcRoute,
    /// `TLSRoute`
    TlsRoute,
    /// `TCPRoute`
    TcpRoute,
    /// `UDPRoute`
    UdpRoute,
    /// `BackendTLSPolicy`
    BackendTlsPolicy,
    /// `KomainuPolicy`
    KomainuPolicy,
    /// `ReferenceGrant`
    ReferenceGrant,
    /// `Service`
    Service,
    /// `EndpointSlice`
    EndpointSlice,
    /// `Namespace`
    Namespace,
    /// `Secret`
    Secret,
    /// `Ingress`
    Ingress,
    /// `IngressClass`
    IngressClass,
    /// `ConfigMap`
    ConfigMap,
}

/// The group of Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// The group of Ingresses.
pub const INGRESS_GROUP: &str = "networking.k8s.io";
/// The group of KomainuPolicies.
pub const POLICY_GROUP: &str = "komainu.dev";
/// Type of the Secrets that KomainuPolicies name, so that a policy cannot name those of applications.
pub const POLICY_SECRET_TYPE: &str = "komainu.dev/policy";

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 18] = [
        Kind::GatewayClass,
        Kind::Gateway,
        Kind::HttpRoute,
        Kind::ListenerSet,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
        Kind::BackendTlsPolicy,
        Kind::KomainuPolicy,
        Kind::ReferenceGrant,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Namespace,
        Kind::Secret,
        Kind::Ingress,
        Kind::IngressClass,
        Kind::ConfigMap,
    ];

    /// Returns the group, with the versions to ask for, newest first, and the name in paths.
    #[must_use]
    pub fn resource(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Kind::GatewayClass => (GATEWAY_GROUP, &["v1"], "gatewayclasses"),
            Kind::Gateway => (GATEWAY_GROUP, &["v1"], "gateways"),
            Kind::HttpRoute => (GATEWAY_GROUP, &["v1"], "httproutes"),
            Kind::ListenerSet => (GATEWAY_GROUP, &["v1"], "listenersets"),
            Kind::GrpcRoute => (GATEWAY_GROUP, &["v1"], "grpcroutes"),
            Kind::TlsRoute => (GATEWAY_GROUP, &["v1", "v1alpha3", "v1alpha2"], "tlsroutes"),
            Kind::TcpRoute => (GATEWAY_GROUP, &["v1", "v1alpha2"], "tcproutes"),
            Kind::UdpRoute => (GATEWAY_GROUP, &["v1", "v1alpha2"], "udproutes"),
            Kind::BackendTlsPolicy => (GATEWAY_GROUP, &["v1", "v1alpha3"], "backendtlspolicies"),
            Kind::KomainuPolicy => (POLICY_GROUP, &["v1alpha1"], "komainupolicies"),
            Kind::ReferenceGrant => (GATEWAY_GROUP, &["v1", "v1beta1"], "referencegrants"),
            Kind::Service => ("", &["v1"], "services"),
            Kind::EndpointSlice => ("discovery.k8s.io", &["v1"], "endpointslices"),
            Kind::Namespace => ("", &["v1"], "namespaces"),
            Kind::Secret => ("", &["v1"], "secrets"),
            Kind::Ingress => (INGRESS_GROUP, &["v1"], "ingresses"),
            Kind::IngressClass => (INGRESS_GROUP, &["v1"], "ingressclasses"),
            Kind::ConfigMap => ("", &["v1"], "configmaps"),
        }
    }

    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::GatewayClass => "GatewayClass",
            Kind::Gateway => "Gateway",
            Kind::HttpRoute => "HTTPRoute",
            Kind::ListenerSet => "ListenerSet",
            Kind::GrpcRoute => "GRPCRoute",
            Kind::TlsRoute => "TLSRoute",
            Kind::TcpRoute => "TCPRoute",
            Kind::UdpRoute => "UDPRoute",
            Kind::BackendTlsPolicy => "BackendTLSPolicy",
            Kind::KomainuPolicy => "KomainuPolicy",
            Kind::ReferenceGrant => "ReferenceGrant",
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Namespace => "Namespace",
            Kind::Secret => "Secret",
            Kind::Ingress => "Ingress",
            Kind::IngressClass => "IngressClass",
            Kind::ConfigMap => "ConfigMap",
        }
    }

    /// Whether its objects are routes.
    #[must_use]
    pub fn is_route(self) -> bool {
        matches!(self, Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute)
    }

    /// Whether its objects may refuse requests: without the right to read them nothing may be served.
    #[must_use]
    pub fn guards(self) -> bool {
        self == Kind::KomainuPolicy
    }

    /// Whether its objects belong to namespaces.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Kind::GatewayClass | Kind::IngressClass | Kind::Namespace)
    }

    /// Returns the path of its objects at the API server, or of one object. `namespace` is empty for all.
    #[must_use]
    pub fn path(self, version: &str, namespace: &str, name: &str) -> String {
        let (group, _, plural) = self.resource();
        let mut path =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        if self.is_namespaced() && !namespace.is_empty() {
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{plural}");
        if !name.is_empty() {
            path += &format!("/{name}");
        }
        path
    }
}

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

/// Whether two states of an object have the same meaning: versions do not count.
trait SameMeaning {
    fn has_same_meaning(&self, other: &Self) -> bool;

    /// Whether the parts of the status that the next translation reads are the same.
    fn has_same_read_status(&self, other: &Self) -> bool;
}

/// Fields that have a meaning, and behind `=>` the parts of the status that are read.
macro_rules! same_meaning {
    ($($type:ty: $($field:ident),+ $(=> $($part:literal),+)?;)*) => {
        $(impl SameMeaning for $type {
            fn has_same_meaning(&self, other: &Self) -> bool {
                self.metadata.uid == other.metadata.uid
                    && self.metadata.generation == other.metadata.generation
                    && self.metadata.labels == other.metadata.labels
                    && self.metadata.annotations == other.metadata.annotations
                    $(&& self.$field == other.$field)+
            }

            #[allow(unused_variables, reason = "most kinds have no such part")]
            fn has_same_read_status(&self, other: &Self) -> bool {
                true $($(&& self.status.get($part) == other.status.get($part))+)?
            }
        })*
    };
}

same_meaning! {
    // Statuses have no meaning: they are written.
    GatewayClass: spec;
    Gateway: spec => "addresses", "attachedListenerSets";
    HttpRoute: spec;
    ListenerSet: spec;
    GrpcRoute: spec;
    StreamRoute: spec;
    BackendTlsPolicy: spec;
    KomainuPolicy: spec => "ancestors";
    ReferenceGrant: spec;
    Service: spec, status;
    EndpointSlice: address_type, endpoints, ports;
    Namespace: metadata;
    Secret: data, r#type;
    Ingress: spec;
    IngressClass: spec;
    ConfigMap: data;
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
