//! TLSRoutes, TCPRoutes and UDPRoutes as streams.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use crate::backends::{BackendSource, BackendUser};
use crate::http_route::RouteFaults;
use crate::objects::StreamRoute;

/// Servers of one stream. Further endpoints are left out.
const SERVERS_MAX: usize = 10_000;
/// The greatest `weight` of a server.
const WEIGHT_MAX: u64 = 1_000;
/// Parts into which the weight of a Service is divided at most.
const PARTS_MAX: u64 = 1_000_000;
/// Time after which a session of datagrams ends: the default of `[[stream]]` is for connections.
const UDP_IDLE: &str = "60s";

/// Translates a route to what its streams have in common; without servers, connections are refused.
pub(crate) fn stream_servers(
    user: BackendUser<'_>,
    route: &StreamRoute,
    source: &BackendSource<'_>,
    faults: &mut RouteFaults,
) -> Map<String, Value> {
    let mut backends = Vec::new();
    let rules = &route.spec.rules;
    if rules.len() > 1 {
        faults.invalid = Some("only the first rule is followed: nothing tells the rules apart".to_owned());
    }
    for reference in rules.first().into_iter().flat_map(|rule| &rule.backend_refs) {
        let servers = match source.resolve_stream(user, reference) {
            Ok(servers) => servers,
            Err(fault) => {
                faults.unresolved.get_or_insert(fault);
                continue;
            }
        };
        backends.push((u64::from(reference.weight.unwrap_or(1).min(1_000_000)), servers));
    }
    faults.has_valid_rule = true;
    let mut table = Map::new();
    table.insert("to".to_owned(), Value::Array(weighted_servers(&backends)));
    if user.kind == "UDPRoute" {
        table.insert("protocol".to_owned(), json!("udp"));
        table.insert("timeouts".to_owned(), json!({ "idle": UDP_IDLE }));
    }
    table
}

/// Returns the servers of Services, each of which shares the weight of its Service with the others. A server with a share, however
/// small, has the weight 1 at least.
fn weighted_servers(backends: &[(u64, BTreeSet<SocketAddr>)]) -> Vec<Value> {
    let counts = backends.iter().map(|(_, servers)| servers.len() as u64).filter(|count| *count > 0);
    let common =
        |parts: u64, count| (parts / common_divisor(parts, count)).saturating_mul(count).min(PARTS_MAX);
    let parts = counts.fold(1, common);
    let mut shares: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    for (weight, servers) in backends.iter().filter(|(weight, _)| *weight > 0) {
        for server in servers {
            *shares.entry(*server).or_default() += (weight * parts / servers.len() as u64).max(1);
        }
    }
    let divisor = shares.values().fold(0, |divisor, share| common_divisor(divisor, *share));
    let greatest = shares.values().max().map_or(1, |share| share / divisor);
    let shown = |(server, share): (SocketAddr, u64)| {
        let mut weight = share / divisor;
        if greatest > WEIGHT_MAX {
            weight = ((weight * WEIGHT_MAX + greatest / 2) / greatest).max(1);
        }
        let address = server.to_string();
        if weight == 1 { json!(address) } else { json!({ "address": address, "weight": weight }) }
    };
    shares.into_iter().take(SERVERS_MAX).map(shown).collect()
}

fn common_divisor(one: u64, other: u64) -> u64 {
    if one == 0 { other } else { common_divisor(other % one, one) }
}

/// A stream that refuses every connection: that of a route without servers.
pub(crate) fn refusing_stream() -> Map<String, Value> {
    Map::from_iter([
        ("to".to_owned(), json!("127.0.0.1:9")),
        ("deny".to_owned(), json!(["0.0.0.0/0", "::/0", "unix"])),
        ("log".to_owned(), json!(false)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_services_become_weights_of_servers() {
        let servers =
            |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<BTreeSet<_>>();
        let weights = |backends: &[(u64, &[&str])]| {
            let backends: Vec<_> = backends.iter().map(|(weight, names)| (*weight, servers(names))).collect();
            Value::Array(weighted_servers(&backends))
        };
        let (a, b, c) = ("10.0.0.1:80", "10.0.0.2:80", "[2001:db8::1]:80");
        assert_eq!(weights(&[(1, &[a, b])]), json!([a, b]));
        assert_eq!(
            weights(&[(70, &[a]), (30, &[b])]),
            json!([{ "address": a, "weight": 7 }, { "address": b, "weight": 3 }])
        );
        // Two servers share what one has elsewhere.
        assert_eq!(weights(&[(1, &[a, b]), (1, &[c])]), json!([a, b, { "address": c, "weight": 2 }]));
        assert_eq!(weights(&[(1, &[a]), (0, &[b])]), json!([a]));
        assert_eq!(weights(&[(1_000_000, &[a]), (1, &[b])]), json!([{ "address": a, "weight": 1000 }, b]));
        // One server of two Services has both shares.
        assert_eq!(weights(&[(1, &[a]), (1, &[a, b])]), json!([{ "address": a, "weight": 3 }, b]));
        assert_eq!(weights(&[(1, &[])]), json!([]));
    }
}
