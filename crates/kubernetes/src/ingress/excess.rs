//! Which Ingresses take more memory than their namespace may have, and what becomes of their hosts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Map;

use crate::allowance::{SITE_BYTES, excess_text, find_excess, route_bytes};
use crate::http_route::failing_table;
use crate::ingress::paths::PathRank;
use crate::ingress::site_set::{HostRoute, IngressHost, JudgedIngress, host_of};

/// Ingresses that are not served as they are.
#[derive(Default)]
pub(super) struct IngressExcess {
    /// Ingresses whose hosts are answered 500.
    failing: BTreeSet<usize>,
    /// Namespaces of which nothing is served.
    closed: BTreeSet<String>,
}

/// Returns what the sites of an Ingress take, and what they take if each answers 500.
fn costs(judged: &JudgedIngress) -> (u64, u64) {
    let spec = &judged.ingress.spec;
    let hosts: BTreeSet<String> = spec.rules.iter().map(|rule| host_of(rule.host.as_ref())).collect();
    let paths = spec.rules.iter().flat_map(|rule| &rule.http).map(|http| http.paths.len()).sum::<usize>();
    // A path and its variants: with and without TLS, with an address or a password.
    let variants = if judged.settings.satisfies_any { 4 } else { 2 };
    let routes = (paths + hosts.len()) as u64 * variants * route_bytes(judged.settings.route_bytes());
    let sites = (hosts.len() + judged.settings.aliases.len()).max(1) as u64 * 2 * SITE_BYTES;
    (routes + sites, sites)
}

impl IngressExcess {
    /// Finds them: the oldest Ingresses fit. `limit` is what each namespace may have, in bytes.
    pub(super) fn find(ingresses: &mut [JudgedIngress], limit: u64) -> IngressExcess {
        let mut excess = IngressExcess::default();
        let mut by_namespace: BTreeMap<String, Vec<(usize, u64, u64)>> = BTreeMap::new();
        // A canary changes paths of another one.
        for (at, judged) in
            ingresses.iter().enumerate().filter(|(_, judged)| judged.settings.canary.is_none())
        {
            let (whole, closed) = costs(judged);
            by_namespace.entry(judged.key.namespace.clone()).or_default().push((at, whole, closed));
        }
        for (namespace, parts) in by_namespace {
            let numbers = find_excess(parts.iter().map(|(_, whole, _)| *whole), limit);
            let closed: u64 = numbers.iter().map(|number| parts[*number].2).sum();
            for number in numbers {
                let at = parts[number].0;
                ingresses[at].faults.warn("TooManyRoutes", &excess_text(&namespace, limit));
                excess.failing.insert(at);
            }
            if closed > limit {
                excess.closed.insert(namespace);
            }
        }
        excess
    }

    /// Whether an Ingress gets no routes.
    pub(super) fn has(&self, ingress: usize) -> bool {
        self.failing.contains(&ingress)
    }

    /// Answers 500 at the hosts of these Ingresses, in place of all Ingresses of the namespace: a path without its guard would open.
    pub(super) fn close(&self, ingresses: &[JudgedIngress], hosts: &mut BTreeMap<String, IngressHost>) {
        hosts.retain(|_, host| !self.closed.contains(&host.namespace));
        for host in hosts.values_mut() {
            host.routes.retain(|route| !self.closed.contains(&ingresses[route.ingress].key.namespace));
        }
        for at in &self.failing {
            let judged = &ingresses[*at];
            for rule in &judged.ingress.spec.rules {
                let Some(host) = hosts.get_mut(&host_of(rule.host.as_ref())) else { continue };
                let namespace = &judged.key.namespace;
                host.routes.retain(|route| ingresses[route.ingress].key.namespace != *namespace);
                if self.closed.contains(namespace) {
                    continue;
                }
                host.routes.push(HostRoute {
                    ingress: *at,
                    rank: PathRank::of_default(*at),
                    conditions: Map::new(),
                    action: failing_table(),
                    redirects: false,
                    forces_tls: false,
                });
            }
        }
    }
}
