//! Names and settings of the controller that do not come from objects, and conditions of statuses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::Listen;
use serde_json::{Map, Value, json};

use crate::objects::ObjectKey;
use crate::zones::ReplicaPlace;

/// The controller that GatewayClasses name.
pub const CONTROLLER_NAME: &str = "komainu.dev/gateway-controller";
/// Folder of the contents of objects, which are in memory. No such folder exists.
pub const MEMORY_FOLDER: &str = "/komainu-kubernetes";

/// What does not come from objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TranslateOptions {
    /// The only GatewayClass to serve; `None` for all of this controller.
    pub gateway_class: Option<String>,
    /// Addresses, of which each Gateway gets one. If empty, all Gateways share every address of the machine.
    pub pool: Vec<IpAddr>,
    /// Addresses of the pool that Gateways had at the last translation.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
    /// Addresses in the status of Gateways that share every address.
    pub status_addresses: Vec<String>,
    /// Addresses of listeners that cannot be bound, with the reason.
    pub unusable: BTreeMap<String, String>,
    /// Memory that the routes of a namespace may take, in bytes, and again its Ingresses, and its streams; `None` for any.
    pub namespace_bytes: Option<u64>,
    /// Number of addresses at which Gateways listen at most, of which a namespace has half; `None` for any. Each takes descriptors of the
    /// process.
    pub addresses_max: Option<usize>,
    /// Whether endpoints at loopback addresses are used.
    pub allows_loopback: bool,
    /// Where this replica runs.
    pub place: ReplicaPlace,
    /// Services that are made for Gateways; `None` for none.
    pub gateway_services: Option<GatewayServiceOptions>,
    /// Settings of Ingresses.
    pub ingress: IngressOptions,
    /// Directives of the server itself: the top of a configuration file.
    pub base: Map<String, Value>,
}

impl TranslateOptions {
    /// Returns the addresses at which the server itself listens, with what for.
    pub(crate) fn own_addresses(&self) -> Vec<(Listen, &'static str)> {
        let sites = self.base.get("site").and_then(Value::as_array).into_iter().flatten();
        let listeners = sites.filter_map(|site| site.get("listen")?.as_array()).flatten();
        let of_sites = listeners.filter_map(|listener| Some((listener.get("address")?, "`--ready`")));
        let of = |table: &str, key: &str| self.base.get(table)?.get(key);
        let control = of("control", "listen").map(|address| (address, "`--control`"));
        let peers = of("cluster", "peers").map(|address| (address, "`[cluster] peers`"));
        let all = of_sites.chain(control).chain(peers);
        all.filter_map(|(address, what)| Some((Listen::parse(address.as_str()?).ok()?, what))).collect()
    }
}

/// How the Services of Gateways are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServiceOptions {
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    pub kind: String,
    /// The Service of the pods that serve all Gateways; `None` if each Gateway has an address of its own.
    pub pods: Option<ObjectKey>,
}

/// Settings of Ingresses that do not come from objects.
#[derive(Debug, Clone, PartialEq)]
pub struct IngressOptions {
    /// The only IngressClass to serve; `None` for all of this controller.
    pub class: Option<String>,
    /// Address for requests without TLS.
    pub http: String,
    /// Address for requests through TLS.
    pub https: String,
    /// Secret with the certificate of hosts that name none.
    pub default_certificate: Option<ObjectKey>,
    /// `Strict-Transport-Security` of hosts with a certificate.
    pub hsts: Option<String>,
    /// Whether proxies in front say by which scheme they have received a request.
    pub trusts_proxies: bool,
}

impl Default for IngressOptions {
    fn default() -> IngressOptions {
        IngressOptions {
            class: None,
            http: ":80".to_owned(),
            https: ":443".to_owned(),
            default_certificate: None,
            hsts: None,
            trusts_proxies: false,
        }
    }
}

/// A condition of a status, without its time.
pub(crate) struct StatusCondition {
    kind: &'static str,
    is_true: bool,
    reason: String,
    message: String,
}

impl StatusCondition {
    pub(crate) fn new(kind: &'static str, is_true: bool, reason: &str, message: &str) -> StatusCondition {
        // The API server refuses longer ones.
        let message = message.chars().take(4_000).collect();
        StatusCondition { kind, is_true, reason: reason.to_owned(), message }
    }

    pub(crate) fn json(&self, generation: i64) -> Value {
        json!({
            "type": self.kind,
            "status": if self.is_true { "True" } else { "False" },
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": generation,
        })
    }
}

/// Returns the features of Gateway API that are declared in the status of a GatewayClass, sorted.
pub(crate) fn supported_features(options: &TranslateOptions) -> Vec<&'static str> {
    let mut features = FEATURES.to_vec();
    if options.gateway_services.is_some() {
        features.push("GatewayInfrastructure");
        features.sort_unstable();
    }
    features
}

/// Features that every setting has.
const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];
