//! Services of Ingresses as groups of upstream servers.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::backend_tls::BackendTls;
use crate::backends::{Backend, BackendGroups, BackendSource};
use crate::objects::{ObjectKey, ServicePort};

/// A port of a Service, as an Ingress names it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NamedPort {
    /// Number.
    Number(u16),
    /// Name.
    Name(String),
    /// The Service's first one.
    First,
}

/// How the servers of a Service are asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerOptions<'a> {
    /// Protocol; `None` for what the Service's port says.
    pub(crate) scheme: Option<&'static str>,
    /// Directives of the group.
    pub(crate) table: &'a Map<String, Value>,
    /// Whether the Service's own address is used in place of its endpoints.
    pub(crate) uses_service_address: bool,
    /// Name of the owner of such a group, if it is not the usual one of the port.
    pub(crate) owner: &'a str,
}

/// Resolves a Service to its group. The permission has been asked for.
pub(crate) fn resolve_service(
    source: &BackendSource<'_>,
    groups: &mut BackendGroups,
    key: &ObjectKey,
    port: &NamedPort,
    options: ServerOptions<'_>,
) -> Result<Backend, String> {
    let service = source.service(key).ok_or_else(|| format!("there is no Service {key}"))?;
    if service.spec.r#type.as_deref() == Some("ExternalName") {
        return Err(format!(
            "the Service {key} is of the type ExternalName, which is refused: it could name any host"
        ));
    }
    let is_tcp =
        |port: &&ServicePort| port.protocol.as_deref().is_none_or(|name| name.is_empty() || name == "TCP");
    let found = service.spec.ports.iter().filter(is_tcp).find(|one| match port {
        NamedPort::Number(number) => one.port == *number,
        NamedPort::Name(name) => one.name.as_deref() == Some(name),
        NamedPort::First => true,
    });
    let found = found.ok_or_else(|| match port {
        NamedPort::Number(number) => format!("the Service {key} has no port {number}"),
        NamedPort::Name(name) => format!("the Service {key} has no port {name:?}"),
        NamedPort::First => format!("the Service {key} has no ports"),
    })?;
    let scheme = options.scheme.unwrap_or(match found.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => "h2c",
        _ => "http",
    });
    let mut name = format!("{}.{}.{}", key.namespace, key.name, found.port);
    // BackendTLSPolicies concern Gateways alone.
    let policy = source.policies.of_port(key, found.name.as_deref().unwrap_or_default());
    let is_usual = options.scheme.is_none()
        && options.table.is_empty()
        && !options.uses_service_address
        && matches!(policy, BackendTls::None);
    if !is_usual {
        name += &format!(".ingress.{}", options.owner);
    }
    let mut extra = options.table.clone();
    if options.uses_service_address {
        let address = service.spec.cluster_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
        let address = address.ok_or_else(|| {
            format!("the Service {key} has no address (`clusterIP`), which service-upstream needs")
        })?;
        let shown = match address {
            IpAddr::V4(address) => format!("{scheme}://{address}:{}", found.port),
            IpAddr::V6(address) => format!("{scheme}://[{address}]:{}", found.port),
        };
        extra.insert("to".to_owned(), json!([shown]));
    }
    Ok(source.add_group(groups, name, key, found, scheme, extra))
}
