//! Warnings of what is valid and hardly meant: words of other servers that are something else here, and what has no effect.

use std::path::{Component, Path, PathBuf};

use crate::check::Checker;
use crate::node::{Data, Node};
use crate::site::branch_nodes;

/// Looks through the whole file.
pub(crate) fn warn_of_mistakes(node: &Node, check: &mut Checker) {
    if let Some(entry) = node.entry("control").filter(|entry| entry.value.entry("listen").is_none()) {
        let title = "`[control]` without `listen`".to_owned();
        let finding = check.warning(&entry.key_at, title, "nobody can ask it");
        finding.help("add `listen = \"127.0.0.1:9180\"` or `listen = \"unix:/run/komainu/control.sock\"`");
    }
    for item in node.one_or_more("listen") {
        let from = item.entry("proxy_protocol").map_or(&[][..], |_| item.items("proxy_protocol"));
        let is_everybody = |item: &&Node| text(item).is_some_and(|text| text.ends_with("/0"));
        if let Some(item) = from.iter().find(is_everybody) {
            let title = "every client may say which address it has, by the PROXY protocol".to_owned();
            let finding = check.warning(&item.at, title, "this is every address");
            finding
                .help("name the network that the load balancer is in: `proxy_protocol = [\"10.0.0.0/8\"]`");
        }
    }
    for site in node.items("site") {
        for host in site.one_or_more("hosts").iter().filter(|host| text(host) == Some("_")) {
            let title = "`_` is the name of a host here, which nobody asks for".to_owned();
            let finding = check.warning(&host.at, title, "in nginx this stands for every host");
            finding.help("a site without `hosts` answers for every host that no other site has");
        }
    }
    let sites = node.items("site").iter().flat_map(|site| site.items("route"));
    for route in node.items("route").iter().chain(sites) {
        for route in std::iter::once(route).chain(branch_nodes(route)) {
            warn_of_route(route, check);
        }
    }
}

fn warn_of_route(route: &Node, check: &mut Checker) {
    for path in route.one_or_more("path") {
        if let Some(part) = text(path).and_then(expression) {
            let title = format!("`{part}` is taken literally");
            let finding = check.warning(&path.at, title, "this is no regular expression");
            finding.help("a regular expression begins with `~`: `path = '~ ^/user/([0-9]+)$'`");
            continue;
        }
        let Some(part) = text(path).and_then(parameter) else { continue };
        let title = format!("`{part}` is taken literally");
        let finding = check.warning(&path.at, title, "paths have no parameters");
        finding.help("`*` at the end stands for anything: `path = \"/users/*\"`; a regular expression has variables: `path = '~ ^/users/(?<id>[^/]+)$'`");
    }
    if let Some(to) = route.entry("redirect").map(|entry| &entry.value) {
        let target = to.entry("to").map_or(to, |entry| &entry.value);
        if text(target).is_some_and(|target| matches!(target, "$uri" | "${uri}" | "$path" | "${path}")) {
            let title = "the redirect leads to the address that was asked for".to_owned();
            let finding = check.warning(&target.at, title, "clients follow it until they give up");
            finding.help("name the scheme or host that is different: `redirect = \"https://$host$uri\"`");
        }
    }
    let Some(files) = route.entry("files") else { return };
    let passes_on = ["proxy", "app", "php", "cgi"].iter().any(|key| route.entry(key).is_some());
    if let Some(cache) = route.entry("cache").filter(|entry| !passes_on && is_on(&entry.value)) {
        let title = "`cache` has no effect on files".to_owned();
        let finding = check.warning(&cache.key_at, title, "nothing is passed on here");
        finding.help("files are served from the system's memory already; for how browsers keep them, write `files = { root = …, cache_control = \"max-age=3600\" }`");
    }
    let root = files.value.entry("root").map_or(&files.value, |entry| &entry.value);
    if text(root).is_some_and(|folder| is_below(check.base(), folder)) {
        let title = "every client can read the configuration".to_owned();
        let finding = check.warning(&root.at, title, "its file is in this folder");
        finding.help("serve a folder of its own: `files = \"public\"`");
    }
}

/// The one value of a directive, or the items of its list.
fn text(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Text(text) => Some(text),
        _ => None,
    }
}

fn is_on(node: &Node) -> bool {
    !matches!(node.data, Data::Flag(false))
}

/// The part of a path that a regular expression would have: a class, a group, an end.
fn expression(path: &str) -> Option<&str> {
    if path.starts_with('~') {
        return None;
    }
    let within = |open: char, close: char| {
        let start = path.find(open)?;
        let end = start + path[start..].find(close)? + 1;
        path.get(start..end).filter(|part| part.len() > 2)
    };
    let end = || path.strip_suffix('$').and_then(|rest| path.get(rest.len()..));
    within('[', ']').or_else(|| within('(', ')')).or_else(end)
}

/// A segment of a path that is a parameter in the routes of frameworks: `{id}`, `:id`, `<id>`.
fn parameter(path: &str) -> Option<&str> {
    let is_parameter = |segment: &&str| {
        let within = |open, close| segment.len() > 2 && segment.starts_with(open) && segment.ends_with(close);
        within('{', '}') || within('<', '>') || (segment.len() > 1 && segment.starts_with(':'))
    };
    path.split('/').find(is_parameter)
}

/// Whether the folder of the configuration is this one, or below it.
fn is_below(base: &Path, folder: &str) -> bool {
    let normal = |path: PathBuf| {
        let mut normal = PathBuf::new();
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::ParentDir if normal.pop() => {}
                part => normal.push(part),
            }
        }
        normal
    };
    normal(base.to_owned()).starts_with(normal(base.join(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_hold_the_configuration_are_found() {
        for (base, folder, is) in [
            ("/etc/komainu", ".", true),
            ("/etc/komainu", "/", true),
            ("/etc/komainu", "../", true),
            ("/etc/komainu", "/etc/komainu/", true),
            ("/etc/komainu", "public", false),
            ("/etc/komainu", "/etc/komainu-site", false),
            ("", ".", true),
            ("", "public", false),
        ] {
            assert_eq!(is_below(Path::new(base), folder), is, "{base} {folder}");
        }
    }
}
