//! A site of a listener as a tree of directives.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use settings::node::Node;

use crate::http_route::{ListenerPort, RouteEntry, failing_table};
use crate::listeners::{JudgedListener, ListenerProtocol, certificate_paths};
use crate::policies::AppliedPolicy;
use crate::translate::known_routes::{PieceState, RouteNumber};

/// What all sites of a listener have in common.
#[derive(PartialEq)]
pub(super) struct SiteHead {
    /// Directives of the site.
    table: Map<String, Value>,
    /// Policies of the listener, for the routes of its sites.
    policy: AppliedPolicy,
    /// What routes depend on.
    pub(super) port: ListenerPort,
    /// Length of the directives that policies add to each route, in bytes.
    pub(super) policy_bytes: usize,
}

/// A route of a site: its precedence within hosts from narrow to wide, and what is made of it.
#[derive(Clone)]
pub(super) struct SiteRoute {
    pub(super) host_depth: usize,
    pub(super) entries: Arc<Vec<RouteEntry>>,
    /// Position in `entries`.
    pub(super) at: usize,
    pub(super) id: RouteNumber,
    pub(super) state: PieceState,
}

impl SiteRoute {
    fn entry(&self) -> &RouteEntry {
        &self.entries[self.at]
    }

    /// Whether the same is made of two routes.
    pub(super) fn is_same(&self, other: &SiteRoute) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries)
            && (self.at, self.id, self.state) == (other.at, other.id, other.state)
    }
}

/// Sorts the routes of a site by their precedence.
pub(super) fn sort_routes(routes: &mut [SiteRoute]) {
    routes.sort_by(|one, other| {
        (one.host_depth, &one.entry().rank).cmp(&(other.host_depth, &other.entry().rank))
    });
}

impl SiteHead {
    /// Makes the head of a listener for HTTP. `has_datagrams` is whether the datagrams of its port are those of a route.
    pub(super) fn of(
        listener: &JudgedListener,
        port: ListenerPort,
        policy: AppliedPolicy,
        has_datagrams: bool,
    ) -> SiteHead {
        let is_tls = listener.protocol == ListenerProtocol::Https;
        let mut table = Map::new();
        let mut listen = json!({ "address": listener.address, "tls": is_tls, "h2c": !is_tls });
        if is_tls && has_datagrams {
            listen["http3"] = json!(false);
        }
        table.insert("listen".to_owned(), json!([listen]));
        if is_tls {
            table.insert("tls".to_owned(), tls_table(listener));
        }
        policy.add_to_site(&mut table);
        let policy_bytes = policy.route_bytes();
        SiteHead { table, policy, port, policy_bytes }
    }

    /// Returns the site of a host. Its place is 1, those of its routes are 2 and up.
    pub(super) fn site(&self, host: &str, routes: &[SiteRoute]) -> Node {
        let mut site = self.table.clone();
        if !host.is_empty() {
            site.insert("hosts".to_owned(), json!([host]));
        }
        let mut node = Node::from(Value::Object(site)).at(1);
        let routes = routes.iter().enumerate().map(|(index, route)| {
            let mut table = route.entry().conditions.table();
            match route.state {
                PieceState::Whole => {
                    let mut action = route.entry().action.table();
                    self.policy.add_defaults(&mut action);
                    self.policy.close(&mut action);
                    table.extend(action);
                }
                _ => table.extend(failing_table()),
            }
            Node::from(Value::Object(table)).at(index + 2)
        });
        let routes: Vec<Node> = routes.collect();
        if !routes.is_empty() {
            node.set_entry("route", Node::list(routes).at_own(1));
        }
        node
    }
}

/// Returns the `tls` of a listener.
pub(super) fn tls_table(listener: &JudgedListener) -> Value {
    let paths: Vec<(String, String)> = listener.certificates.iter().map(certificate_paths).collect();
    let (chains, keys): (Vec<String>, Vec<String>) = paths.into_iter().unzip();
    let mut tls = json!({ "certificate": chains, "key": keys });
    if let Some(client) = &listener.client {
        tls["client"] = json!({ "ca": client.authorities });
        if client.is_optional {
            tls["client"]["unverified"] = json!(true);
        }
    }
    if listener.protocol == ListenerProtocol::Https {
        tls["scope"] = json!(listener.scope);
    }
    tls
}
