//! Addresses of clients behind trusted proxies: `set_real_ip_from`, `real_ip_header`, `real_ip_recursive`, and the PROXY
//! protocol of `listen`.

use super::scope::Scope;
use super::tree::{NginxDirective, visit};

/// Source of client addresses, for all servers and locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientAddresses {
    /// The peer of the connection.
    Peer,
    /// X-Forwarded-For from these networks.
    Field { from: Vec<String>, recursive: bool },
    /// The PROXY protocol from these networks.
    ProxyProtocol { from: Vec<String> },
    /// Another one than Komainu has, with the reason and the remedy. No proxy is trusted.
    Unknown { reason: &'static str, remedy: &'static str },
}

const OTHER_FIELD: ClientAddresses = ClientAddresses::Unknown {
    reason: "`set_real_ip_from` is not translated, so that all clients of its proxies have the address of the proxy",
    remedy: "`trusted_proxies` is not written: have this proxy send X-Forwarded-For in place of the field of `real_ip_header` (X-Real-IP by default), then write it",
};
const NOT_ALIKE: ClientAddresses = ClientAddresses::Unknown {
    reason: "`set_real_ip_from`, `real_ip_header` and `real_ip_recursive` are not the same for all servers and locations, and `trusted_proxies` counts for all: it is not written",
    remedy: "`trusted_proxies` counts for all servers and locations, which differ here, so it is not written: routes that ask for addresses are closed (403)",
};
const NAMED_PROXIES: ClientAddresses = ClientAddresses::Unknown {
    reason: "`set_real_ip_from` names a host, whose addresses are not known: `trusted_proxies` is not written",
    remedy: "a trusted proxy is an address or a network: write `trusted_proxies` with its addresses",
};
const UNUSED_PROXY_PROTOCOL: ClientAddresses = ClientAddresses::Unknown {
    reason: "`proxy_protocol` of `listen` gives clients the address in its header here; in nginx they keep that of the proxy unless `real_ip_header proxy_protocol` and `set_real_ip_from` stand there",
    remedy: "`trusted_proxies` is not written: addresses come from the PROXY protocol of `listen` here",
};

/// The directives that determine the client's address in a place.
#[derive(PartialEq, Eq)]
struct RealIp {
    from: Vec<String>,
    field: String,
    recursive: bool,
}

impl RealIp {
    /// `None` if no proxy is trusted there.
    fn of(scope: &Scope<'_>) -> Option<Self> {
        let word =
            |name: &str| scope.effective(name).map_or("", NginxDirective::first_arg).to_ascii_lowercase();
        let mut from: Vec<String> =
            scope.effective_all("set_real_ip_from").iter().map(|one| one.first_arg().to_owned()).collect();
        from.sort();
        from.dedup();
        (!from.is_empty()).then(|| Self {
            from,
            field: word("real_ip_header"),
            recursive: word("real_ip_recursive") == "on",
        })
    }
}

impl ClientAddresses {
    /// Finds the source for all places of the configuration.
    pub(crate) fn of(http: &Scope<'_>) -> Self {
        let mut all = Vec::new();
        let servers = http.innermost().iter().filter(|one| one.name == "server" && !always_returns(one));
        servers.for_each(|server| collect(&http.with_block(server.block_directives()), &mut all));
        if all.is_empty() {
            // A file that a server includes.
            collect(http, &mut all);
        }
        let mut has_proxy_protocol = false;
        visit(http.innermost(), &mut |one| {
            has_proxy_protocol |= one.name == "listen" && one.args.iter().any(|arg| arg == "proxy_protocol");
        });
        let mut all = all.into_iter();
        let first = all.next().flatten();
        if all.any(|other| other != first) {
            return NOT_ALIKE;
        }
        match first {
            None if has_proxy_protocol => UNUSED_PROXY_PROTOCOL,
            None => Self::Peer,
            Some(one) if !one.from.iter().all(|text| is_network(text)) => NAMED_PROXIES,
            Some(one) => match one.field.as_str() {
                "proxy_protocol" => Self::ProxyProtocol { from: one.from },
                _ if has_proxy_protocol => UNUSED_PROXY_PROTOCOL,
                "x-forwarded-for" => Self::Field { from: one.from, recursive: one.recursive },
                _ => OTHER_FIELD,
            },
        }
    }

    /// Returns the reason why conditions on client addresses cannot be translated, if they cannot.
    pub(crate) fn unknown_reason(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { reason, .. } => Some(reason),
            Self::Peer | Self::Field { .. } | Self::ProxyProtocol { .. } => None,
        }
    }
}

/// Collects the directives of a place and of the locations in it.
fn collect(scope: &Scope<'_>, all: &mut Vec<Option<RealIp>>) {
    all.push(RealIp::of(scope));
    for location in scope.innermost().iter().filter(|one| one.name == "location") {
        collect(&scope.with_block(location.block_directives()), all);
    }
}

/// Whether a server has the same response for all requests, before any address is looked at.
fn always_returns(server: &NginxDirective) -> bool {
    let has = |name: &str| server.block_directives().iter().any(|one| one.name == name);
    has("return") && !has("if") && !has("location")
}

/// Whether a text is one that `trusted_proxies` takes.
fn is_network(text: &str) -> bool {
    text == "unix:" || text.contains('/') || text.parse::<std::net::IpAddr>().is_ok()
}
