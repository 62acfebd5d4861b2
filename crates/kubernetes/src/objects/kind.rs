//! Kinds of objects, and the names of objects.

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
