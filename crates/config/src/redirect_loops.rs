//! Routes that redirect requests in a circle.

use settings::checker::{Checker, shorten};
use settings::node::{Node, as_text, is_enabled};
use settings::report::TextSpan;

/// The most routes among which circles are looked for: each is compared with each.
const LOOP_ROUTES_MAX: usize = 1_000;
/// Maximum length of a loop that is searched for, in routes.
const LOOP_LEN_MAX: usize = 10;

/// Warns of sites that redirect to their own host by the scheme that they speak.
pub(crate) fn warn_of_scheme_loops(node: &Node, check: &mut Checker) {
    let sites = node.items("site").iter().map(|site| (site, site.items("route")));
    for (site, routes) in std::iter::once((node, node.items("route"))).chain(sites) {
        let (own, remedy) = if uses_tls(node, site) {
            ("https://", "remove the route: `redirect_https` is on, and sends clients there")
        } else {
            ("http://", "name another host, or give the route a `path`")
        };
        for route in routes.iter().filter(|route| matches_every_request(route)) {
            let Some((redirect, to)) = find_redirect(route) else { continue };
            let target = to.strip_prefix(own).and_then(|rest| rest.strip_prefix("$host"));
            if target.is_some_and(|target| matches!(target, "$uri" | "$path" | "/$rest" | "")) {
                let title = format!("`{}` is where the request came from", shorten(to));
                check.warning(&redirect.span, title, "clients go round in a circle").help(remedy);
            }
        }
    }
}

/// Warns of routes at single paths that redirect to each other, whatever is asked.
pub(crate) fn warn_of_redirect_loops(routes: &[Node], check: &mut Checker) {
    if routes.len() > LOOP_ROUTES_MAX {
        return;
    }
    // The route that answers for a path, if it redirects every request for it and does nothing else.
    let step = |of: &str| {
        let path = of.split(['?', '#']).next().unwrap_or_default();
        let index = routes.iter().position(|route| may_match(route, path))?;
        let (redirect, to) = find_redirect(&routes[index])?;
        let is_plain = !has_conditions(&routes[index])
            && routes[index].one_or_more("path").iter().any(|one| as_text(one) == Some(path));
        is_plain.then_some((index, to, &redirect.span))
    };
    for (index, route) in routes.iter().enumerate() {
        let [path] = route.one_or_more("path") else { continue };
        let Some((first, mut to, _)) = as_text(path).and_then(step).filter(|found| found.0 == index) else {
            continue;
        };
        let mut through: Vec<(usize, &TextSpan)> = Vec::new();
        // Each loop is reported once, at its first route; routes that only lead into a loop are not reported.
        while let Some((found, next, at)) = step(to).filter(|found| found.0 > first)
            && through.len() < LOOP_LEN_MAX - 1
            && through.iter().all(|(before, _)| *before != found)
        {
            through.push((found, at));
            to = next;
        }
        // A route that names its own path has a warning of its own.
        if let Some((_, last)) = through.last()
            && step(to).is_some_and(|found| found.0 == first)
        {
            let title =
                format!("the redirect of {} comes back to it", shorten(as_text(path).unwrap_or_default()));
            let finding = check.warning(&route.span, title, "clients follow the circle until they give up");
            finding.related((*last).clone(), "from here").help("let one of these routes answer");
        }
    }
}

/// Whether a route may match a path, by its own `path` alone.
fn may_match(route: &Node, path: &str) -> bool {
    let may = |pattern: &str| match pattern.strip_suffix('*') {
        _ if pattern.starts_with(['~', '*']) => true,
        Some(start) => path.starts_with(start) || pattern.strip_suffix("/*") == Some(path),
        None => pattern == path,
    };
    let patterns = route.one_or_more("path");
    patterns.is_empty() || patterns.iter().any(|pattern| as_text(pattern).is_none_or(may))
}

/// Returns the redirect of a route and the node that contains it.
fn find_redirect(route: &Node) -> Option<(&Node, &str)> {
    let redirect = &route.entry("redirect")?.value;
    let redirect = redirect.entry("to").map_or(redirect, |entry| &entry.value);
    Some((redirect, as_text(redirect)?))
}

/// Whether a route has conditions beside its path.
pub(crate) fn has_conditions(route: &Node) -> bool {
    let conditions =
        ["method", "header", "query", "repeated", "referer", "client", "country", "host", "not", "use"];
    conditions.iter().any(|key| route.entry(key).is_some())
}

/// Whether a route answers every request.
fn matches_every_request(route: &Node) -> bool {
    let is_all = |path: &Node| as_text(path) == Some("/*");
    !has_conditions(route) && (route.entry("path").is_none() || route.one_or_more("path").iter().any(is_all))
}

/// Whether a site of this file uses TLS: at port 443, and where `listen` says so.
pub(crate) fn uses_tls(node: &Node, site: &Node) -> bool {
    let is_https = |at: &Node| as_text(at).is_some_and(|at| at == "443" || at.ends_with(":443"));
    let listens = if site.entry("listen").is_some() { site } else { node };
    site.entry("tls").is_none_or(|tls| is_enabled(&tls.value))
        && listens.one_or_more("listen").iter().any(|item| {
            is_https(item)
                || item.entry("tls").is_some()
                || item.entry("address").is_some_and(|address| is_https(&address.value))
        })
}
