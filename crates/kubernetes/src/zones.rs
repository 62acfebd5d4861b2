//! Endpoints near this replica, as their hints say (`trafficDistribution` of a Service).
//!
//! The hints are followed as kube-proxy does: those for a node if every endpoint has some and one is for this node, else those
//! for a zone in the same way, else none. So endpoints without hints, or hints that leave this replica nothing, mean all endpoints.

use crate::objects::{Endpoint, EndpointHint};

/// Where this replica runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaPlace {
    /// Name of the zone; empty if it is unknown.
    pub zone: String,
    /// Name of the node; empty if it is unknown.
    pub node: String,
}

/// Returns the endpoints that requests of this replica should go to.
pub(crate) fn nearest<'e, T: Copy>(
    endpoints: Vec<(&'e Endpoint, T)>,
    place: &ReplicaPlace,
) -> Vec<(&'e Endpoint, T)> {
    let of_node = |endpoint: &'e Endpoint| endpoint.hints.for_nodes.as_slice();
    let of_zone = |endpoint: &'e Endpoint| endpoint.hints.for_zones.as_slice();
    followed(&endpoints, &place.node, of_node)
        .or_else(|| followed(&endpoints, &place.zone, of_zone))
        .unwrap_or(endpoints)
}

/// Returns the endpoints with a hint for `name`; `None` if the hints are not followed.
fn followed<'e, T: Copy>(
    endpoints: &[(&'e Endpoint, T)],
    name: &str,
    hints: impl Fn(&'e Endpoint) -> &'e [EndpointHint],
) -> Option<Vec<(&'e Endpoint, T)>> {
    if name.is_empty() || endpoints.iter().any(|(endpoint, _)| hints(endpoint).is_empty()) {
        return None;
    }
    let is_for = |(endpoint, _): &&(&'e Endpoint, T)| hints(endpoint).iter().any(|hint| hint.name == name);
    let near: Vec<_> = endpoints.iter().filter(is_for).copied().collect();
    (!near.is_empty()).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::EndpointHints;

    fn endpoint(zones: &[&str], nodes: &[&str]) -> Endpoint {
        let hints = |names: &[&str]| {
            names.iter().map(|name| EndpointHint { name: (*name).to_owned() }).collect::<Vec<_>>()
        };
        Endpoint {
            hints: EndpointHints { for_zones: hints(zones), for_nodes: hints(nodes) },
            ..Endpoint::default()
        }
    }

    fn chosen(endpoints: &[Endpoint], zone: &str, node: &str) -> Vec<usize> {
        let place = ReplicaPlace { zone: zone.to_owned(), node: node.to_owned() };
        let all = endpoints.iter().enumerate().map(|(at, endpoint)| (endpoint, at)).collect();
        nearest(all, &place).into_iter().map(|(_, at)| at).collect()
    }

    #[test]
    fn hints_for_the_zone_are_followed() {
        let all = [endpoint(&["a"], &[]), endpoint(&["b"], &[]), endpoint(&["a", "b"], &[])];
        assert_eq!(chosen(&all, "a", ""), [0, 2]);
        assert_eq!(chosen(&all, "b", "n"), [1, 2]);
        // A zone without endpoints, and a replica whose zone is unknown, use all.
        assert_eq!(chosen(&all, "c", ""), [0, 1, 2]);
        assert_eq!(chosen(&all, "", ""), [0, 1, 2]);
        // So does everybody while an endpoint has no hints.
        let some = [endpoint(&["a"], &[]), endpoint(&[], &[])];
        assert_eq!(chosen(&some, "a", ""), [0, 1]);
    }

    #[test]
    fn hints_for_the_node_come_first() {
        let all = [endpoint(&["a"], &["n"]), endpoint(&["a"], &["m"]), endpoint(&["b"], &["o"])];
        assert_eq!(chosen(&all, "a", "n"), [0]);
        assert_eq!(chosen(&all, "a", "p"), [0, 1]);
        assert_eq!(chosen(&all, "c", "p"), [0, 1, 2]);
        assert_eq!(chosen(&[], "a", "n"), Vec::<usize>::new());
    }
}
