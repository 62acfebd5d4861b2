//! Routes that redirect every request to where it has come from.

use crate::check::{Checker, shortened};
use crate::node::{Data, Node};

/// Warns of sites that redirect to their own host by the scheme that they speak. `speaks_tls` says so of a table with `listen`.
pub(crate) fn warn_of_scheme_loops(node: &Node, speaks_tls: fn(&Node) -> bool, check: &mut Checker) {
    let sites = node.items("site").iter().map(|site| (site, site.items("route")));
    for (site, routes) in std::iter::once((node, node.items("route"))).chain(sites) {
        let listens = if site.entry("listen").is_some() { site } else { node };
        let is_off = site.entry("tls").is_some_and(|tls| matches!(tls.value.data, Data::Flag(false)));
        let (own, remedy) = match speaks_tls(listens) && !is_off {
            true => ("https://", "remove the route: `redirect_https` is on, and sends clients there"),
            false => ("http://", "name another host, or give the route a `path`"),
        };
        for route in routes.iter().filter(|route| is_for_everything(route)) {
            let Some(redirect) = route.entry("redirect").map(|entry| &entry.value) else { continue };
            let redirect = redirect.entry("to").map_or(redirect, |entry| &entry.value);
            let Data::Text(to) = &redirect.data else { continue };
            let target = to.strip_prefix(own).and_then(|rest| rest.strip_prefix("$host"));
            if target.is_some_and(|target| matches!(target, "$uri" | "$path" | "/$rest" | "")) {
                let title = format!("`{}` is where the request came from", shortened(to));
                check.warning(&redirect.at, title, "clients go round in a circle").help(remedy);
            }
        }
    }
}

/// Whether a route has conditions beside its path.
pub(crate) fn has_conditions(route: &Node) -> bool {
    let conditions = ["method", "header", "query", "referer", "client", "country", "host", "not", "use"];
    conditions.iter().any(|key| route.entry(key).is_some())
}

/// Whether a route answers every request.
fn is_for_everything(route: &Node) -> bool {
    let is_all = |path: &Node| matches!(&path.data, Data::Text(text) if text == "/*");
    !has_conditions(route) && (route.entry("path").is_none() || route.one_or_more("path").iter().any(is_all))
}
