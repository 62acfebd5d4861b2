//! What the routes of each namespace take of the memory at each site, and which of them are not served because it is too much.

use std::collections::{BTreeMap, BTreeSet};

use crate::allowance::{Allowed, SITE_BYTES, excess_text, find_excess};
use crate::translate::known_routes::ListenerId;

/// A listener, and a host of it.
pub(super) type SiteName = (ListenerId, String);

/// The routes of a namespace at a site.
pub(super) struct SiteCost {
    /// When the newest of the site's routes was created.
    pub(super) newest: String,
    pub(super) bytes: u64,
}

#[derive(Default)]
struct NamespaceUse {
    sites: BTreeMap<SiteName, SiteCost>,
    total: u64,
    failing: BTreeSet<SiteName>,
    is_closed: bool,
}

/// The costs of all namespaces.
#[derive(Default)]
pub(super) struct SiteCosts {
    /// Bytes that each namespace may have.
    limit: Option<u64>,
    namespaces: BTreeMap<String, NamespaceUse>,
    by_site: BTreeMap<SiteName, BTreeSet<String>>,
    /// Namespaces whose costs are others, with the sites that had some.
    changed: BTreeMap<String, BTreeSet<SiteName>>,
}

impl SiteCosts {
    pub(super) fn new(limit: Option<u64>) -> SiteCosts {
        SiteCosts { limit, ..SiteCosts::default() }
    }

    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Forgets all costs, because sites have other names. Returns the namespaces that had too much.
    pub(super) fn clear(&mut self) -> BTreeSet<String> {
        self.by_site.clear();
        self.changed.clear();
        let all = std::mem::take(&mut self.namespaces).into_iter();
        all.filter(|(_, of)| !of.failing.is_empty()).map(|(namespace, _)| namespace).collect()
    }

    /// Returns the sites with costs in order, from this one on.
    pub(super) fn sites_from(&self, first: &SiteName) -> impl Iterator<Item = &SiteName> {
        self.by_site.range(first..).map(|(name, _)| name)
    }

    /// Sets the costs of a site by namespace; none if it does not exist.
    pub(super) fn set(&mut self, site: &SiteName, costs: BTreeMap<String, SiteCost>) {
        for namespace in self.by_site.remove(site).into_iter().flatten() {
            if let Some(of) = self.namespaces.get_mut(&namespace)
                && let Some(cost) = of.sites.remove(site)
            {
                of.total -= cost.bytes;
            }
            self.changed.entry(namespace).or_default().insert(site.clone());
        }
        if costs.is_empty() {
            return;
        }
        self.by_site.insert(site.clone(), costs.keys().cloned().collect());
        for (namespace, cost) in costs {
            self.changed.entry(namespace.clone()).or_default();
            let of = self.namespaces.entry(namespace).or_default();
            of.total += cost.bytes;
            of.sites.insert(site.clone(), cost);
        }
    }

    /// Decides again where costs have changed. Returns the sites with another verdict, and the namespaces that it concerns.
    pub(super) fn settle(&mut self) -> BTreeSet<(SiteName, String)> {
        let mut others = BTreeSet::new();
        let Some(limit) = self.limit else { return others };
        for (namespace, had_costs) in std::mem::take(&mut self.changed) {
            let Some(of) = self.namespaces.get_mut(&namespace) else { continue };
            let before = (std::mem::take(&mut of.failing), of.is_closed);
            of.is_closed = false;
            if of.total > limit {
                let mut by_age: Vec<(&SiteName, &SiteCost)> = of.sites.iter().collect();
                by_age.sort_by_key(|(name, cost)| (&cost.newest, *name));
                let excess = find_excess(by_age.iter().map(|(_, cost)| cost.bytes), limit);
                of.failing = excess.into_iter().map(|at| by_age[at].0.clone()).collect();
                of.is_closed = of.failing.len() as u64 * SITE_BYTES > limit;
            }
            if before.1 != of.is_closed {
                let all = of.sites.keys().chain(&before.0).chain(&had_costs);
                others.extend(all.map(|site| (site.clone(), namespace.clone())));
            } else {
                let differing = before.0.symmetric_difference(&of.failing);
                let gone = had_costs.iter().filter(|site| of.is_closed && !of.sites.contains_key(*site));
                others.extend(differing.chain(gone).map(|site| (site.clone(), namespace.clone())));
            }
            if of.sites.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        others
    }

    /// Returns what a namespace gets at a site.
    pub(super) fn allowed(&self, namespace: &str, site: &SiteName) -> Allowed {
        match self.namespaces.get(namespace) {
            Some(of) if of.is_closed && of.sites.contains_key(site) => Allowed::Absent,
            Some(of) if of.failing.contains(site) => Allowed::Failing,
            _ => Allowed::Whole,
        }
    }

    /// Says why a namespace does not get everything.
    pub(super) fn excess_text(&self, namespace: &str) -> String {
        excess_text(namespace, self.limit.unwrap_or_default())
    }
}
