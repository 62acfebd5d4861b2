//! Warnings of access controls that can be bypassed: requests that another route answers, and exceptions for
//! everybody.

use crate::redirect_loops::has_conditions;
use settings::checker::{Checker, shorten};
use settings::node::{Entry, Node, NodeData, as_text, for_each_text, is_enabled};
use settings::report::TextSpan;
use shapes::pattern::PathPattern;

/// Actions that give access to the guarded resource.
const HANDLER_DIRECTIVES: [&str; 6] = ["proxy", "app", "php", "cgi", "files", "split"];

/// Looks through the routes of a site.
pub(crate) fn warn_of_unguarded_paths(routes: &[Node], check: &mut Checker) {
    for (index, route) in routes.iter().enumerate() {
        let Some(guard) = find_guard(route) else { continue };
        let later = &routes[index + 1..];
        if let Some(entry) = read_only_method(route) {
            warn_of_unguarded_methods(route, entry, guard, later, check);
            continue;
        }
        if has_conditions(route) {
            continue;
        }
        for path in route.one_or_more("path") {
            let Some(name) = as_text(path).filter(|name| name.starts_with('/') && name.len() > 1) else {
                continue;
            };
            match name.strip_suffix("/*") {
                Some(folder) if !folder.is_empty() && !folder.contains('*') => {
                    warn_of_unguarded_folder(route, path, folder, guard, routes, later, check);
                }
                None if !name.ends_with('/') && !name.contains(['*', '.']) => {
                    warn_of_unguarded_subpaths(route, path, name, guard, routes, later, check);
                }
                _ => {}
            }
        }
    }
}

/// Warns if `/admin/*` is guarded, and `/admin` goes to another route.
fn warn_of_unguarded_folder(
    route: &Node,
    path: &Node,
    folder: &str,
    guard: &str,
    routes: &[Node],
    later: &[Node],
    check: &mut Checker,
) {
    let before = &routes[..routes.len() - later.len()];
    let names = |other: &Node| matches_path(other, folder) && other.entry("path").is_some();
    let Some(next) = first_unconditional(later, |other| matches_path(other, folder)) else { return };
    if before.iter().any(names) || !bypasses_guard(route, next) || next.entry("files").is_some() {
        return;
    }
    let folder = shorten(folder);
    let title = format!("the path `{folder}/*` does not match `{folder}`");
    let finding = check.warning(&path.span, title, format!("`{guard}` does not apply to that path"));
    finding.related(next.span.clone(), "this route answers it");
    finding.help(format!(
        "write `path = [\"{folder}\", \"{folder}/*\"]`, or a route of its own for \"{folder}\""
    ));
}

/// Warns if `/admin` is guarded, and the paths below it go to another route.
fn warn_of_unguarded_subpaths(
    route: &Node,
    path: &Node,
    name: &str,
    guard: &str,
    routes: &[Node],
    later: &[Node],
    check: &mut Checker,
) {
    let below = format!("{name}/");
    let is_below = |path: &Node| as_text(path).is_some_and(|path| path.starts_with(&below));
    let Some(next) = first_unconditional(later, |other| covers(other, &format!("{name}/*"))) else { return };
    let is_known = routes.iter().any(|other| other.one_or_more("path").iter().any(is_below));
    // An answer of its own is for one path.
    if is_known || find_handler(route).is_none() || !bypasses_guard(route, next) {
        return;
    }
    let title = format!("the path `{}` matches itself alone", shorten(name));
    let label = format!("`{guard}` does not apply to what is below it");
    let finding = check.warning(&path.span, title, label);
    finding.related(next.span.clone(), "this route answers it");
    finding.help(format!("write `path = [\"{0}\", \"{0}/*\"]`", shorten(name)));
}

/// Reading is guarded, and other methods go to another route.
fn warn_of_unguarded_methods(route: &Node, method: &Entry, guard: &str, later: &[Node], check: &mut Checker) {
    let Some(next) = next_unguarded(route, later) else { return };
    let title = format!("`{guard}` applies to `GET` and `HEAD` alone");
    let finding = check.warning(&method.key_span, title, "a request with another method is not guarded");
    finding.related(next.span.clone(), "this route answers it").help("remove `method`");
}

/// Returns the route among `later` that answers all paths of `route` without its guard.
pub(crate) fn next_unguarded<'n>(route: &Node, later: &'n [Node]) -> Option<&'n Node> {
    let paths = route.one_or_more("path");
    let covers_all = |other: &Node| match paths {
        [] => other.entry("path").is_none(),
        paths => paths.iter().filter_map(as_text).all(|path| covers(other, path)),
    };
    first_unconditional(later, covers_all).filter(|next| bypasses_guard(route, next))
}

/// The first of these routes that answers, whatever else a request is.
pub(crate) fn first_unconditional(routes: &[Node], answers: impl Fn(&Node) -> bool) -> Option<&Node> {
    routes.iter().find(|route| !has_conditions(route) && answers(route))
}

/// Limits and maintenance that excuse every client of IPv4 or IPv6.
pub(crate) fn warn_of_universal_exceptions(node: &Node, check: &mut Checker) {
    let entries = match &node.data {
        NodeData::Table(entries) => entries.as_slice(),
        NodeData::List(items) => {
            return items.iter().for_each(|item| warn_of_universal_exceptions(item, check));
        }
        _ => return,
    };
    for entry in entries {
        if matches!(entry.key.as_str(), "limit" | "maintenance" | "crawlers") {
            let items = match &entry.value.data {
                NodeData::List(items) => items.as_slice(),
                _ => std::slice::from_ref(&entry.value),
            };
            let excepted = items.iter().flat_map(|item| item.one_or_more("except"));
            for (item, clients) in
                excepted.filter_map(|item| Some((item, universal_network_family(as_text(item)?)?)))
            {
                let title = format!("`{}` does not apply to any {clients} client", entry.key);
                let finding = check.warning(&item.span, title, "this is every address");
                finding.help("name the networks that are excepted: `except = [\"10.0.0.0/8\"]`");
            }
        }
        warn_of_universal_exceptions(&entry.value, check);
    }
}

/// Warns of `allow` that admits every client, and of `deny` that refuses every client beside `allow`.
pub(crate) fn warn_of_universal_access(level: &Node, check: &mut Checker) {
    let every = |key: &str| -> Vec<(&TextSpan, &'static str)> {
        let of_item = |item: &'_ Node| universal_network_family(as_text(item)?);
        level.one_or_more(key).iter().filter_map(|item| Some((&item.span, of_item(item)?))).collect()
    };
    let admitted = every("allow");
    let has = |family: &str| admitted.iter().any(|(_, found)| *found == family);
    if let Some((span, _)) =
        admitted.first().filter(|_| has("IPv4") && has("IPv6") && level.entry("deny").is_none())
    {
        let finding = check.warning(span, "`allow` admits every client".to_owned(), "this is every address");
        finding.help("name the networks that are let in: `allow = [\"10.0.0.0/8\"]`");
    }
    if level.entry("allow").is_some() {
        for (span, clients) in every("deny") {
            let title = format!("`deny` refuses every {clients} client");
            let finding = check.warning(span, title, "`deny` counts before `allow`");
            finding.help("remove it: `allow` refuses everybody whom it does not name");
        }
    }
}

fn universal_network_family(network: &str) -> Option<&'static str> {
    match network {
        "0.0.0.0/0" | "::ffff:0:0/96" => Some("IPv4"),
        "::/0" => Some("IPv6"),
        _ => None,
    }
}

/// Returns the directive by which a route refuses some requests, or all.
pub(crate) fn find_guard(route: &Node) -> Option<&'static str> {
    let guards = ["deny", "allow", "auth"].into_iter();
    let found = guards.filter_map(|key| Some((key, route.entry(key)?)));
    let mut found =
        found.filter(|(key, entry)| *key != "auth" || is_enabled(&entry.value)).map(|(key, _)| key);
    found.next().or(is_refusal(route).then_some("respond"))
}

/// Returns the `method` of a route if that is its only condition besides paths.
pub(crate) fn only_method(route: &Node) -> Option<&Entry> {
    let others = ["header", "query", "repeated", "referer", "client", "country", "host", "not", "use"];
    route.entry("method").filter(|_| others.iter().all(|key| route.entry(key).is_none()))
}

/// Returns the `method` of a route if that is its only condition and names only methods for reading.
fn read_only_method(route: &Node) -> Option<&Entry> {
    let is_read = |item: &Node| matches!(as_text(item), Some("GET" | "HEAD"));
    only_method(route).filter(|_| route.one_or_more("method").iter().all(is_read))
}

pub(crate) fn find_handler(route: &Node) -> Option<&Entry> {
    HANDLER_DIRECTIVES.iter().find_map(|key| route.entry(key))
}

/// Whether `next` gives access, without a guard, to the resource that `route` guards.
pub(crate) fn bypasses_guard(route: &Node, next: &Node) -> bool {
    let has_same = |key: &&str| {
        let both = route.entry(key).zip(next.entry(key));
        both.is_some_and(|(own, other)| entry_texts(own) == entry_texts(other))
    };
    let is_same = find_handler(route).is_none() || HANDLER_DIRECTIVES.iter().any(has_same);
    find_handler(next).is_some() && is_same && find_guard(next).is_none()
}

pub(crate) fn entry_texts(entry: &Entry) -> Vec<String> {
    let mut texts = Vec::new();
    for_each_text(&entry.value, &entry.key, &mut |key, text, _| {
        if key != "strip_prefix" {
            texts.push(text.to_owned());
        }
    });
    texts
}

pub(crate) fn matches_path(route: &Node, path: &str) -> bool {
    let matches = |text: &str| {
        begins_like(text, path)
            && PathPattern::parse(text).is_ok_and(|pattern| pattern.matches(path.as_bytes()))
    };
    route.entry("path").is_none() || route.one_or_more("path").iter().filter_map(as_text).any(matches)
}

fn covers(route: &Node, path: &str) -> bool {
    let covers = |text: &str| {
        let pair = || Some((PathPattern::parse(text).ok()?, PathPattern::parse(path).ok()?));
        begins_like(text, path) && pair().is_some_and(|(pattern, wide)| pattern.covers(&wide))
    };
    match route.entry("path") {
        None => PathPattern::parse(path).is_ok(),
        Some(_) => route.one_or_more("path").iter().filter_map(as_text).any(covers),
    }
}

/// Whether a pattern may match a path, or all paths of another pattern, as far as that is seen without parsing it: a
/// site may have thousands of routes.
fn begins_like(pattern: &str, path: &str) -> bool {
    !pattern.starts_with('/') || path.starts_with(pattern.split('*').next().unwrap_or_default())
}

/// Whether a route answers with an error.
pub(crate) fn is_refusal(route: &Node) -> bool {
    let Some(answer) = route.entry("respond").map(|entry| &entry.value) else { return false };
    let status = answer.entry("status").map_or(answer, |entry| &entry.value);
    matches!(status.data, NodeData::Integer(status) if status >= 400)
}
