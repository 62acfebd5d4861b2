//! The fields that are used of each kind.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::Value;

use crate::objects::kind::ObjectKey;
use crate::packed::PackedJson;
use crate::policy_spec::PolicySpec;

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
    /// Metadata of the object.
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
    /// Metadata of the object.
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
    /// Metadata of the object.
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
