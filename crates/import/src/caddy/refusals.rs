//! Routes in front of all others of a site: they refuse requests that Caddy and Komainu read differently.

use super::hosts::host_covers;
use super::scripts::fastcgi_handler;
use crate::data::DataNode;
use crate::draft::{SiteDraft, TomlItem, TomlSection};
use crate::expressions::escape_literal;

/// Requests that a server of Caddy reads differently, and its sites here refuse.
pub(super) struct ServerRefusals {
    ignores_final_dots: bool,
    /// Prefixes that are removed from longer words too, with the hosts of their routes.
    cut_prefixes: Vec<(Vec<String>, String)>,
    /// Prefixes with letters that are removed in any case, with the hosts of their routes.
    letter_prefixes: Vec<(Vec<String>, String)>,
    /// Whether a site answers names that are no other site's.
    has_default: bool,
}

impl ServerRefusals {
    pub(super) fn new(server: &DataNode, sites: &[SiteDraft]) -> Self {
        let mut cut_prefixes = Vec::new();
        let mut letter_prefixes = Vec::new();
        for route in server.get("routes").map_or(&[][..], DataNode::items) {
            let mut prefixes = Vec::new();
            collect_cut_prefixes(route, &[], &mut prefixes);
            let hosts: Vec<String> = matcher_texts(route, "host").unwrap_or_default();
            cut_prefixes.extend(prefixes.into_iter().map(|prefix| (hosts.clone(), prefix)));
            let mut removed = Vec::new();
            collect_removed_prefixes(route, &mut removed);
            removed.retain(|prefix: &String| prefix.contains(|c: char| c.is_ascii_alphabetic()));
            letter_prefixes.extend(removed.into_iter().map(|prefix| (hosts.clone(), prefix)));
        }
        Self {
            ignores_final_dots: ignores_final_dots(server),
            cut_prefixes,
            letter_prefixes,
            has_default: sites
                .iter()
                .any(|site| site.section.get("hosts").is_none() && !site.routes.is_empty()),
        }
    }

    /// Returns the routes that refuse requests of a site.
    pub(super) fn routes(&self, site: &SiteDraft) -> Vec<TomlSection> {
        let hosts: Vec<&str> = match site.section.get("hosts") {
            Some(TomlItem::List(hosts)) => hosts.iter().filter_map(TomlItem::as_text).collect(),
            host => host.and_then(TomlItem::as_text).into_iter().collect(),
        };
        let mut routes = Vec::new();
        if self.has_default && !hosts.is_empty() {
            let comment = "Names with a final dot are no names of this site in Caddy.";
            routes.push(refusing_route(comment, "header", host_is("~ [.](:|$)".to_owned())));
        }
        routes.extend(hosts.iter().filter_map(|host| deeper_names_route(host, &hosts)));
        if self.ignores_final_dots {
            let comment = "Matchers for paths ignore dots and spaces at the end in some versions of Caddy.";
            routes.push(refusing_route(comment, "path", TomlItem::text("~ [. ]$")));
        }
        let of_site = |all: &[(Vec<String>, String)]| {
            let mut prefixes: Vec<String> = Vec::new();
            for (of, prefix) in all {
                let covers =
                    |host: &&str| of.iter().any(|one| host_covers(one, host) || host_covers(host, one));
                if (of.is_empty() || hosts.is_empty() || hosts.iter().any(covers))
                    && !prefixes.contains(prefix)
                {
                    prefixes.push(prefix.clone());
                }
            }
            prefixes
        };
        routes.extend(of_site(&self.letter_prefixes).into_iter().map(|prefix| {
            let comment = format!("Caddy removes {prefix} with letters in any case.");
            let text = escape_literal(&prefix);
            let mut route = refusing_route(&comment, "path", TomlItem::Text(format!("~* ^{text}(/|$)")));
            let as_written = TomlItem::Table(vec![("path".to_owned(), TomlItem::Text(format!("~ ^{text}")))]);
            route.entries.insert(1, ("not".to_owned(), as_written));
            route
        }));
        let prefixes = of_site(&self.cut_prefixes);
        routes.extend(prefixes.into_iter().map(|prefix| {
            let comment = format!("Caddy removes {prefix} also from the beginning of longer words.");
            let path = format!("~* ^{}[^/]", escape_literal(&prefix));
            refusing_route(&comment, "path", TomlItem::text(path))
        }));
        routes
    }
}

fn refusing_route(comment: &str, key: &str, condition: TomlItem) -> TomlSection {
    let mut route = TomlSection::default();
    route.comment(comment);
    route.set(key, condition);
    route.set("respond", TomlItem::Number(403));
    route
}

fn host_is(expression: String) -> TomlItem {
    TomlItem::Table(vec![("Host".to_owned(), TomlItem::Text(expression))])
}

/// Returns the route that refuses names of more labels than a pattern of Caddy has: its `*` stands for one. Those that
/// other patterns of the site match are its own.
fn deeper_names_route(host: &str, hosts: &[&str]) -> Option<TomlSection> {
    let zone = host.strip_prefix("*.")?;
    let deeper = format!("~* [^.:][.][^.:]+[.]{}[.]?(:|$)", escape_literal(zone));
    let comment = "A `*` in a name stands for one label in Caddy.";
    let mut route = refusing_route(comment, "header", host_is(deeper));
    let is_below = |other: &&&str| {
        let rest = other.strip_suffix(zone).and_then(|rest| rest.strip_suffix('.'));
        rest.is_some_and(|rest| rest.contains('.'))
    };
    let own: Vec<TomlItem> = hosts.iter().filter(is_below).map(|other| TomlItem::text(*other)).collect();
    if !own.is_empty() {
        route
            .entries
            .insert(1, ("not".to_owned(), TomlItem::Table(vec![("host".to_owned(), TomlItem::List(own))])));
    }
    Some(route)
}

/// Returns the texts of a matcher in all sets of a route; `None` if a set has no such matcher, or there is no set.
fn matcher_texts(route: &DataNode, key: &str) -> Option<Vec<String>> {
    let sets = route.get("match").map_or(&[][..], DataNode::items);
    let texts: Option<Vec<Vec<String>>> = sets.iter().map(|set| Some(set.get(key)?.texts())).collect();
    texts.map(|texts| texts.concat()).filter(|texts| !texts.is_empty())
}

/// Adds the prefixes that handlers remove from paths, if a path may go on with other letters. `around` are the paths of
/// the routes around this one; empty for all.
fn collect_cut_prefixes(route: &DataNode, around: &[String], prefixes: &mut Vec<String>) {
    let own = matcher_texts(route, "path").unwrap_or_else(|| around.to_vec());
    for handler in route.get("handle").map_or(&[][..], DataNode::items) {
        if let Some(prefix) = handler.get("strip_path_prefix").and_then(DataNode::text) {
            let prefix = format!("/{}", prefix.trim_start_matches('/')).to_lowercase();
            let may_go_on = |path: &String| {
                let start = path.split('*').next().unwrap_or(path).to_lowercase();
                let has_end = start != path.to_lowercase();
                !start.starts_with(&format!("{prefix}/"))
                    && (start.starts_with(&prefix) && start.len() > prefix.len()
                        || has_end && prefix.starts_with(&start))
            };
            if prefix.len() > 1 && (own.is_empty() || own.iter().any(may_go_on)) {
                prefixes.push(prefix);
            }
        }
        for inner in handler.get("routes").map_or(&[][..], DataNode::items) {
            collect_cut_prefixes(inner, &own, prefixes);
        }
    }
}

/// Adds the prefixes that handlers of a route, or of routes in it, remove from paths.
fn collect_removed_prefixes(route: &DataNode, prefixes: &mut Vec<String>) {
    for handler in route.get("handle").map_or(&[][..], DataNode::items) {
        if let Some(prefix) = handler.get("strip_path_prefix").and_then(DataNode::text) {
            prefixes.push(format!("/{}", prefix.trim_start_matches('/')));
        }
        let routes = handler.get("routes").map_or(&[][..], DataNode::items);
        routes.iter().for_each(|inner| collect_removed_prefixes(inner, prefixes));
    }
}

/// Whether matchers for paths may mean other paths with dots and spaces at the end, which some versions of Caddy ignore.
fn ignores_final_dots(node: &DataNode) -> bool {
    let is_bound = |path: &String| {
        let start = path.trim_end_matches('*');
        // `*/` is for folders, whose paths end alike for all versions.
        path != "*/" && (start == path || start.ends_with(['.', ' ']))
    };
    let is_path = |(key, value): &(String, DataNode)| key == "path" && value.texts().iter().any(is_bound);
    let in_matchers = |node: &DataNode| {
        let sets = node.get("match").map_or(&[][..], DataNode::items);
        let not = |set: &DataNode| {
            let inner = set.get("not").map_or(&[][..], DataNode::items);
            inner.iter().flat_map(DataNode::entries).any(is_path)
        };
        sets.iter().any(|set| set.entries().iter().any(is_path) || not(set))
    };
    // No file has the name of a script with a dot behind it.
    in_matchers(node) && fastcgi_handler(node).is_none()
        || node.items().iter().any(ignores_final_dots)
        || node.entries().iter().any(|(_, value)| ignores_final_dots(value))
}
