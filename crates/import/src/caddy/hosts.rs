//! Hosts of routes, and the sites that they make.

use crate::draft::{SiteDraft, TomlItem, TomlSection};

/// A route and its hosts.
pub(super) struct CaddyRoute {
    pub(super) hosts: Vec<String>,
    pub(super) section: TomlSection,
}

/// Returns a site for each set of hosts that the same routes answer, in Caddy's order.
pub(super) fn build_sites(routes: Vec<CaddyRoute>) -> Vec<SiteDraft> {
    let mut sites: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
    let mut known: Vec<String> = Vec::new();
    for host in routes.iter().flat_map(|route| &route.hosts) {
        if known.iter().any(|one| one.eq_ignore_ascii_case(host)) {
            continue;
        }
        known.push(host.clone());
        let is_for_host = |route: &CaddyRoute| {
            route.hosts.is_empty() || route.hosts.iter().any(|pattern| host_covers(pattern, host))
        };
        let own: Vec<usize> = (0..routes.len()).filter(|at| is_for_host(&routes[*at])).collect();
        match sites.iter_mut().find(|(_, others)| *others == own) {
            Some((hosts, _)) => hosts.push(host.clone()),
            None => sites.push((vec![host.clone()], own)),
        }
    }
    let mut found: Vec<SiteDraft> = Vec::new();
    for (hosts, own) in sites {
        let mut site = SiteDraft::default();
        site.section.set("hosts", TomlItem::List(hosts.into_iter().map(TomlItem::Text).collect()));
        site.routes = own.into_iter().map(|at| routes[at].section.clone()).collect();
        found.push(site);
    }
    let rest: Vec<TomlSection> =
        routes.into_iter().filter(|route| route.hosts.is_empty()).map(|route| route.section).collect();
    if !rest.is_empty() || found.is_empty() {
        found.push(SiteDraft { section: TomlSection::default(), routes: rest });
    }
    found
}

/// Whether all names of `host`, which may be a pattern itself, match a pattern of Caddy, whose `*` is one label.
pub(super) fn host_covers(pattern: &str, host: &str) -> bool {
    let is_below = |zone: &str| host.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(zone));
    pattern.eq_ignore_ascii_case(host) || pattern.strip_prefix("*.").is_some_and(is_below)
}

/// Returns the hosts that match a pattern of both lists, of which an empty one matches all; `None` if there are none.
pub(super) fn common_hosts(around: &[String], own: &[String]) -> Option<Vec<String>> {
    if around.is_empty() || own.is_empty() {
        return Some([around, own].concat());
    }
    let mut found: Vec<String> = Vec::new();
    for host in own {
        for outer in around {
            let both = match (host_covers(outer, host), host_covers(host, outer)) {
                (true, _) => host,
                (false, true) => outer,
                (false, false) => continue,
            };
            if !found.contains(both) {
                found.push(both.clone());
            }
        }
    }
    (!found.is_empty()).then_some(found)
}
