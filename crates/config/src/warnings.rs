//! Warnings of valid but probably unintended configuration: terms of other servers with another meaning here,
//! and directives without effect.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use ipnet::IpNet;

use crate::condition_warnings::warn_of_unmet_conditions;
use crate::guards::{
    is_refusal, warn_of_unguarded_paths, warn_of_universal_access, warn_of_universal_exceptions,
};
use crate::no_effect::{warn_of_denied_networks, warn_of_foreign_prefix, warn_of_hsts_without_tls};
use crate::redirect_loops::{has_conditions, uses_tls, warn_of_redirect_loops, warn_of_scheme_loops};
use crate::scripts::warn_of_exposed_scripts;
use crate::side_doors::{php_apps, warn_of_side_doors, warn_of_unguarded_sites};
use crate::site::branch_nodes;
use settings::checker::{Checker, shorten};
use settings::node::{Node, NodeData, as_text, for_each_text, is_enabled};
use settings::report::TextSpan;
use settings::spelling::nearest_name;
use shapes::pattern::PathPattern;

/// Looks through the whole file.
pub(crate) fn warn_of_document(node: &Node, check: &mut Checker) {
    if let Some(entry) = node.entry("control").filter(|entry| entry.value.entry("listen").is_none()) {
        let title = "`[control]` without `listen`".to_owned();
        let finding = check.warning(&entry.key_span, title, "nobody can ask it");
        finding.help("add `listen = \"127.0.0.1:9180\"` or `listen = \"unix:/run/komainu/control.sock\"`");
    }
    for item in node.one_or_more("listen") {
        let from = item.entry("proxy_protocol").map_or(&[][..], |_| item.items("proxy_protocol"));
        let is_everybody = |item: &&Node| as_text(item).is_some_and(|text| text.ends_with("/0"));
        if let Some(item) = from.iter().find(is_everybody) {
            let title = "every client may say which address it has, by the PROXY protocol".to_owned();
            let finding = check.warning(&item.span, title, "this is every address");
            finding
                .help("name the network that the load balancer is in: `proxy_protocol = [\"10.0.0.0/8\"]`");
        }
    }
    for site in node.items("site") {
        for host in site.one_or_more("hosts").iter().filter(|host| as_text(host) == Some("_")) {
            let title = "`_` is the name of a host here, which nobody asks for".to_owned();
            let finding = check.warning(&host.span, title, "in nginx this stands for every host");
            finding.help("a site without `hosts` answers for every host that no other site has");
        }
    }
    if let Some(log) = node.entry("log").filter(|log| log.value.entry("access").is_none())
        && let Some(file) = log.value.entry("file")
    {
        let title = "`file` in `[log]` without `access`".to_owned();
        let finding = check.warning(&file.key_span, title, "nothing is written to it");
        finding.help("say in which format: `access = \"json\"` or `access = \"combined\"`");
    }
    warn_of_unused_settings(node, check);
    warn_of_shared_logs(node, check);
    warn_of_sites(node, check);
    warn_of_missing_error_pages(node, check);
    warn_of_unused_groups(node, check);
    warn_of_unused_apps(node, check);
    warn_of_host_bits(node, check);
    warn_of_proxy_loops(node, check);
    warn_of_scheme_loops(node, check);
    warn_of_unmet_conditions(node, check);
    warn_of_universal_exceptions(node, check);
    warn_of_hsts_without_tls(node, check);
    warn_of_unguarded_sites(node, check);
    for site in node.items("site") {
        warn_of_denied_networks(site, check);
        warn_of_universal_access(site, check);
    }
    let php_apps = php_apps(node);
    let sites = node.items("site").iter().map(|site| site.items("route"));
    for routes in std::iter::once(node.items("route")).chain(sites) {
        warn_of_redirect_loops(routes, check);
        warn_of_unguarded_paths(routes, check);
        warn_of_side_doors(routes, &php_apps, check);
        for route in routes {
            for route in std::iter::once(route).chain(branch_nodes(route)) {
                warn_of_route(route, check);
                warn_of_foreign_prefix(route, check);
                warn_of_denied_networks(route, check);
                warn_of_universal_access(route, check);
            }
            warn_of_exact_paths(route, routes, check);
            warn_of_misspelled_methods(route, check);
            warn_of_exposed_scripts(route, check);
            warn_of_unmarked_expressions(route, check);
            warn_of_total_exclusions(route, check);
        }
    }
}

/// Warns of settings for things that are never sent or written.
fn warn_of_unused_settings(node: &Node, check: &mut Checker) {
    if let Some(tracing) = node.entry("tracing").map(|entry| &entry.value)
        && let Some(entry) = ["to", "sample", "slower_than"].iter().find_map(|key| tracing.entry(key))
        && tracing.entry("enabled").is_none()
    {
        let title = format!("`{}` in `[tracing]` without `enabled`", entry.key);
        let finding = check.warning(&entry.key_span, title, "this server takes no part in traces");
        finding.help("write `enabled = true`");
    }
    // `listen` in `[metrics]` is reported as an error elsewhere.
    let others = ["to", "listen", "enabled", "path"];
    let is_without =
        |metrics: &Node| metrics.is_table() && others.iter().all(|key| metrics.entry(key).is_none());
    if let Some(metrics) = node.entry("metrics").filter(|metrics| is_without(&metrics.value)) {
        let finding = check.warning(&metrics.key_span, "`[metrics]` without `to`".into(), "nothing is sent");
        finding.help(
            "name a collector: `to = \"http://127.0.0.1:4318\"`; Prometheus asks `[control]` at `/metrics`",
        );
    }
    for log in node.entry("log").map(|entry| &entry.value).into_iter().chain(node.items("logs")) {
        let format = log.entry("access").and_then(|entry| as_text(&entry.value));
        if let Some(fields) = log.entry("fields")
            && let Some(format) = format.filter(|format| !matches!(*format, "json" | "logfmt"))
        {
            let title = format!("`fields` beside `access = \"{}\"`", shorten(format));
            let finding = check.warning(&fields.key_span, title, "this format has its own");
            finding.help("write `access = \"json\"`, or a text with variables: `access = \"$time $status\"`");
        }
    }
}

/// Warns of requests that are forwarded to the address that they came to.
fn warn_of_proxy_loops(node: &Node, check: &mut Checker) {
    // Another site may answer them.
    if node.entry("site").is_some() {
        return;
    }
    let listens: Vec<&str> = match node.entry("listen") {
        None => vec!["127.0.0.1:8080"],
        Some(_) => {
            let address = |item| Node::entry(item, "address").map_or(item, |entry| &entry.value);
            node.one_or_more("listen").iter().filter_map(|item| as_text(address(item))).collect()
        }
    };
    let is_own = |authority: &str| {
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        listens.iter().filter_map(|listen| listen.rsplit_once(':')).any(|(at, own_port)| {
            let is_same_host = match host {
                "127.0.0.1" => matches!(at, "" | "*" | "0.0.0.0" | "127.0.0.1" | "localhost"),
                "[::1]" => matches!(at, "" | "*" | "[::]" | "[::1]" | "localhost"),
                "localhost" => matches!(at, "" | "*" | "localhost"),
                _ => false,
            };
            is_same_host && port == own_port
        })
    };
    // What comes back comes from this server, and with other fields: from such a route on, another one may answer it then.
    let depends = |route: &Node| {
        ["client", "header", "country", "not", "use", "rewrite"].iter().any(|key| route.entry(key).is_some())
    };
    for route in node.items("route").iter().take_while(|route| !depends(route)) {
        for item in route.one_or_more("proxy") {
            let authority = as_text(item)
                .and_then(|url| url.strip_prefix("http://"))
                .map(|rest| rest.trim_end_matches('/'));
            if let Some(authority) = authority.filter(|authority| is_own(authority)) {
                let title =
                    format!("the requests come back: this server itself listens at {}", shorten(authority));
                let finding = check.warning(&item.span, title, "what goes in a circle is refused with 508");
                finding.help("name the port that the application listens at");
            }
        }
    }
}

/// Warns of routes that are written below one site but belong to another, and of directives without effect
/// for lack of TLS.
fn warn_of_sites(node: &Node, check: &mut Checker) {
    let sites = node.items("site");
    if let Some(entry) = node.entry("redirect_https").filter(|entry| is_enabled(&entry.value))
        && !sites.iter().chain([node]).any(|site| uses_tls(node, site))
    {
        let title = "`redirect_https` where no address speaks TLS".to_owned();
        let finding = check.warning(&entry.key_span, title, "nobody is redirected");
        finding
            .help("add `:443` to `listen`, or remove it: where another server ends TLS, that one redirects");
    }
    for (index, site) in sites.iter().enumerate() {
        let end = sites.get(index + 1).map_or(usize::MAX, |next| next.span.start);
        let is_below = |route: &&Node| (site.span.start..end).contains(&route.span.start);
        if let Some(route) = node.items("route").iter().find(is_below)
            && site.entry("route").is_none()
            && site.entry("hosts").is_some()
        {
            let line = check.line_of(&route.span);
            let title = format!("the `[[route]]` in line {} belongs to the default site", line.number);
            let finding = check.warning(&route.span, title, "this is a route of the top of the file");
            finding.related(site.span.clone(), "and not of this site");
            finding.help("write `[[site.route]]`, so that the site above answers with it");
        }
        let is_tls = site.entry("tls").is_none_or(|tls| is_enabled(&tls.value));
        if let Some(entry) = site.entry("redirect_https").filter(|entry| is_enabled(&entry.value))
            && !uses_tls(node, site)
        {
            let title = "`redirect_https` where no address speaks TLS".to_owned();
            let finding = check.warning(&entry.key_span, title, "nobody is redirected");
            finding.help(if is_tls {
                "add `:443` to `listen`, or remove it: where another server ends TLS, that one redirects"
            } else {
                "remove it, or `tls = false`"
            });
        }
        if let Some(hsts) = site.entry("hsts").filter(|hsts| !is_tls && is_enabled(&hsts.value)) {
            let title = "`hsts` in a site with `tls = false`".to_owned();
            let finding = check.warning(&hsts.key_span, title, "only responses through TLS carry it");
            finding.help("give the site a certificate, or remove `hsts`");
        }
    }
}

/// Warns of `intercept_errors` without pages to send.
fn warn_of_missing_error_pages(node: &Node, check: &mut Checker) {
    let has_pages = |node: &Node| node.entry("error_pages").is_some();
    if has_pages(node) || node.items("site").iter().any(has_pages) {
        return;
    }
    let routes = node.items("site").iter().flat_map(|site| site.items("route")).chain(node.items("route"));
    let all = std::iter::once(node).chain(node.items("site")).chain(routes);
    let asks = |node: &Node| node.entry("intercept_errors").filter(|entry| is_enabled(&entry.value)).cloned();
    if let Some(entry) = all.filter_map(asks).next() {
        let title = "`intercept_errors` without `error_pages`".to_owned();
        let finding = check.warning(&entry.key_span, title, "there is no page to send in place of errors");
        finding.help(
            "write `error_pages = { 404 = \"404.html\", 5xx = \"error.html\" }` at the top or in the site",
        );
    }
}

/// Warns of unused groups, and of URLs whose host is the name of a group.
fn warn_of_unused_groups(node: &Node, check: &mut Checker) {
    let Some(NodeData::Table(groups)) = node.entry("upstreams").map(|entry| &entry.value.data) else {
        return;
    };
    let mut used = HashSet::new();
    let mut urls: HashMap<String, Vec<TextSpan>> = HashMap::new();
    for_each_text(node, "", &mut |key, text, at| match (key, text.split_once("://")) {
        // `proxy = "shop"` is an error of its own, and the group is meant.
        ("upstream", _) | ("proxy" | "php" | "to" | "url", None) => _ = used.insert(text.to_owned()),
        ("proxy" | "php" | "to" | "url", Some((_, host))) => {
            urls.entry(host.trim_end_matches('/').to_owned()).or_default().push(at.clone());
        }
        _ => {}
    });
    for group in groups {
        let name = &group.key;
        let named = urls.get(name).map_or(&[][..], Vec::as_slice);
        for at in named {
            let title = format!("the host `{}` has the name of a group", shorten(name));
            let finding = check.warning(at, title, "a host of this name is asked, not the group");
            finding.related(group.key_span.clone(), "the group");
            finding.help(format!("write `proxy = {{ upstream = \"{}\" }}`", shorten(name)));
        }
        if named.is_empty() && !used.contains(name) {
            let title = format!("no route uses `[upstreams.{}]`", shorten(name));
            let finding = check.warning(&group.key_span, title, "nothing is sent to these servers");
            finding.help(format!(
                "write `proxy = {{ upstream = \"{}\" }}` in a route, or remove it",
                shorten(name)
            ));
        }
    }
}

/// Applications that nothing names.
fn warn_of_unused_apps(node: &Node, check: &mut Checker) {
    let NodeData::Table(all) = &node.data else { return };
    let Some(NodeData::Table(apps)) = node.entry("apps").map(|entry| &entry.value.data) else { return };
    let mut named = HashSet::new();
    for entry in all.iter().filter(|entry| entry.key != "apps") {
        for_each_text(&entry.value, &entry.key, &mut |_, text, _| _ = named.insert(text.to_owned()));
    }
    for app in apps.iter().filter(|app| !named.contains(&app.key)) {
        let name = shorten(&app.key);
        let title = format!("no route uses `[apps.{name}]`");
        let finding = check.warning(&app.key_span, title, "its workers get no requests");
        finding.help(format!("write `app = \"{name}\"` in a route, or remove it"));
    }
}

/// Warns of networks whose address has bits set beyond the prefix length.
fn warn_of_host_bits(node: &Node, check: &mut Checker) {
    let mut found = Vec::new();
    for_each_text(node, "", &mut |_, text, at| {
        if let Ok(network) = text.parse::<IpNet>()
            && network.trunc() != network
        {
            found.push((network, at.clone()));
        }
    });
    for (network, at) in found {
        let title = format!("`{network}` is the network {}", network.trunc());
        let finding = check.warning(&at, title, "the address says more than the network has");
        finding.help(format!(
            "write \"{}\", or \"{}\" for this address alone",
            network.trunc(),
            network.addr()
        ));
    }
}

/// Warns of a path that ends with `/` and matches only itself, if the paths below it have no other route.
fn warn_of_exact_paths(route: &Node, routes: &[Node], check: &mut Checker) {
    const ANSWERS: [&str; 6] = ["files", "proxy", "app", "php", "cgi", "split"];
    const GUARDS: [&str; 5] = ["deny", "allow", "auth", "limit", "internal"];
    let has = |route: &Node, key: &&&str| route.entry(key).is_some();
    let answer = ANSWERS.iter().find(|key| has(route, key));
    // Refused or protected paths should probably not be served by the next route.
    let guard = GUARDS.iter().find(|key| has(route, key)).or(is_refusal(route).then_some(&"respond"));
    let Some(directive) = answer.or(guard) else { return };
    let covers = |other: &Node, wide: &str| match other.entry("path") {
        Some(_) => other.one_or_more("path").iter().any(|path| as_text(path) == Some(wide)),
        None => wide == "/*",
    };
    let reaches = |other: &Node, wide: &PathPattern| {
        let paths = other.one_or_more("path");
        let is_wider = |path: &str| PathPattern::parse(path).is_ok_and(|path| path.covers(wide));
        ANSWERS.iter().any(|key| has(other, &key))
            && (paths.is_empty() || paths.iter().filter_map(as_text).any(is_wider))
    };
    for path in route.one_or_more("path") {
        let Some(exact) = as_text(path).filter(|text| text.starts_with('/') && text.ends_with('/')) else {
            continue;
        };
        let wide = format!("{exact}*");
        // Other paths below it, of this route or another, show that the distinction is intended.
        let is_below = |other: &str| other.len() > exact.len() && other.starts_with(exact);
        if exact.contains('*')
            || routes.iter().any(|other| covers(other, &wide))
            || route.one_or_more("path").iter().filter_map(as_text).any(is_below)
        {
            continue;
        }
        let is_reached = || {
            let wide = PathPattern::parse(&wide);
            exact != "/" && wide.is_ok_and(|wide| routes.iter().any(|other| reaches(other, &wide)))
        };
        if answer.is_none() && !is_reached() {
            continue;
        }
        let title = format!("the path `{}` matches itself alone", shorten(exact));
        let label = format!("not what is below it, for which `{directive}` is here");
        let finding = check.warning(&path.span, title, label);
        finding.help(format!("write \"{}\"", shorten(&wide)));
    }
}

/// Values that look like regular expressions, and are texts.
fn warn_of_unmarked_expressions(route: &Node, check: &mut Checker) {
    let nots = route.one_or_more("not");
    for table in std::iter::once(route).chain(nots) {
        for key in ["header", "query"] {
            let Some(NodeData::Table(entries)) = table.entry(key).map(|entry| &entry.value.data) else {
                continue;
            };
            for entry in entries {
                let Some(value) = as_text(&entry.value) else { continue };
                let has_group = value.contains('(') && value.contains('|') && value.contains(')');
                if value.starts_with('~') {
                    continue;
                }
                let has_class = ["\\d", "\\w", "\\s", "\\."].iter().any(|class| value.contains(class));
                let is_expression =
                    value.starts_with('^') || value.starts_with("(?") || value.starts_with(".*");
                if is_expression || has_class || has_group || (value.contains(".*") && value.ends_with('$')) {
                    let title = format!("`{}` is taken literally", shorten(value));
                    let finding = check.warning(&entry.value.span, title, "this is not a regular expression");
                    finding.help(format!("a regular expression begins with `~`: `'~ {}'`", shorten(value)));
                }
            }
        }
    }
}

/// Warns of logs with different formats in one file, which cannot be parsed.
fn warn_of_shared_logs(node: &Node, check: &mut Checker) {
    let log = node.entry("log").map(|entry| &entry.value);
    let of_sites = node.items("site").iter().flat_map(|site| site.items("logs"));
    let all = log.into_iter().chain(node.items("logs")).chain(of_sites);
    let mut seen: Vec<(&str, &str, TextSpan)> = Vec::new();
    let errors = log.and_then(|log| log.entry("errors"));
    if let Some(entry) = errors {
        seen.extend(as_text(&entry.value).map(|file| (file, "the error log", entry.value.span.clone())));
    }
    for log in all {
        let Some(access) = log.entry("access").and_then(|entry| as_text(&entry.value)) else { continue };
        let Some(file) = log.entry("file").map(|entry| &entry.value) else { continue };
        let Some(name) =
            as_text(file).filter(|name| !matches!(*name, "stdout" | "stderr" | "syslog" | "journald"))
        else {
            continue;
        };
        match seen.iter().find(|(other, format, _)| *other == name && *format != access) {
            Some((_, _, first)) => {
                let title = format!("logs of two formats in one file, {}", shorten(name));
                let finding =
                    check.warning(&file.span, title, "its lines stand between those of another log");
                finding.related(first.clone(), "the other").help("give each log a file of its own");
            }
            None => seen.push((name, access, file.span.clone())),
        }
    }
}

/// A `not` that excludes everything its route answers.
fn warn_of_total_exclusions(route: &Node, check: &mut Checker) {
    for excluded in route.one_or_more("not") {
        let holds_always = match &excluded.data {
            // Each of its conditions holds for all that the route answers.
            NodeData::Table(entries) => entries.iter().all(|entry| {
                if entry.key == "not" {
                    return false;
                }
                let asked = route.one_or_more(&entry.key);
                let takes_all = entry.key == "path" && excluded.one_or_more("path").iter().any(is_every_path);
                let is_within = |one: &Node| {
                    excluded
                        .one_or_more(&entry.key)
                        .iter()
                        .any(|other| as_text(one).is_some() && as_text(one) == as_text(other))
                };
                takes_all || !asked.is_empty() && asked.iter().all(is_within)
            }),
            _ => is_every_path(excluded),
        };
        if holds_always {
            let finding = check.warning(
                &excluded.span,
                "the route answers nothing".to_owned(),
                "this excludes all that it is for",
            );
            finding.help("exclude a part: `path = \"/app/*\"` with `not = { path = \"/app/private/*\" }`");
        }
    }
}

fn is_every_path(path: &Node) -> bool {
    matches!(as_text(path), Some("/*" | "*"))
}

/// Methods that are one mistake away from one that there is.
fn warn_of_misspelled_methods(route: &Node, check: &mut Checker) {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    for item in route.one_or_more("method") {
        if let Some(every) = as_text(item).filter(|text| matches!(*text, "*" | "ANY" | "ALL")) {
            let title = format!("no client sends the method `{every}`");
            let finding = check.warning(&item.span, title, "this does not stand for every method");
            finding.help("a route without `method` answers every one");
            continue;
        }
        let is_method = |method: &&str| !KNOWN.contains(method) && !method.starts_with('!');
        let Some(method) = as_text(item).filter(is_method) else { continue };
        // Another case is an error already.
        if let Some(near) = nearest_name(method, KNOWN).filter(|near| !near.eq_ignore_ascii_case(method)) {
            let title = format!("no client sends the method `{}`", shorten(method));
            check.warning(&item.span, title, format!("did you mean \"{near}\"?"));
        }
    }
}

fn warn_of_route(route: &Node, check: &mut Checker) {
    for path in route.one_or_more("path") {
        if let Some(part) = as_text(path).and_then(find_regex_syntax) {
            let title = format!("`{part}` is taken literally");
            let finding = check.warning(&path.span, title, "this is not a regular expression");
            finding.help("a regular expression begins with `~`: `path = '~ ^/user/([0-9]+)$'`");
            continue;
        }
        if let Some(list) = as_text(path).and_then(quote_separated_paths) {
            let title = "these are several paths in one text".to_owned();
            let finding = check.warning(&path.span, title, "no request has this path");
            finding.help(format!("write `path = [{list}]`"));
            continue;
        }
        let Some(part) = as_text(path).and_then(find_path_parameter) else { continue };
        let title = format!("`{part}` is taken literally");
        let finding = check.warning(&path.span, title, "paths have no parameters");
        finding.help("`*` at the end stands for anything: `path = \"/users/*\"`; a regular expression has variables: `path = '~ ^/users/(?<id>[^/]+)$'`");
    }
    // With a condition, the second request may be another route's.
    let redirect = route.entry("redirect").filter(|_| !has_conditions(route));
    if let Some(to) = redirect.map(|entry| &entry.value) {
        let target = to.entry("to").map_or(to, |entry| &entry.value);
        if as_text(target).is_some_and(|target| matches!(target, "$uri" | "${uri}" | "$path" | "${path}")) {
            let title = "the redirect leads to the address that was asked for".to_owned();
            let finding = check.warning(&target.span, title, "clients follow it until they give up");
            finding.help("name the scheme or host that is different: `redirect = \"https://$host$uri\"`");
        } else if let (Some(to), Some(path)) =
            (as_text(target), route.entry("path").and_then(|entry| as_text(&entry.value)))
            && to.split(['?', '#']).next() == Some(path)
            && path.starts_with('/')
            && !path.contains('*')
        {
            let title = "the redirect leads to the path that was asked for".to_owned();
            let finding = check.warning(&target.span, title, "clients follow it until they give up");
            finding.help("name another path, or scheme and host: `redirect = \"https://www.example.com/\"`");
        }
    }
    let Some(files) = route.entry("files") else { return };
    let passes_on = ["proxy", "app", "php", "cgi"].iter().any(|key| route.entry(key).is_some());
    if let Some(cache) = route.entry("cache").filter(|entry| !passes_on && is_enabled(&entry.value)) {
        let title = "`cache` has no effect on files".to_owned();
        let finding = check.warning(&cache.key_span, title, "nothing is passed on here");
        finding.help("files are served from the system's memory already; for how browsers keep them, write `files = { root = …, cache_control = \"max-age=3600\" }`");
    }
    let root = files.value.entry("root").map_or(&files.value, |entry| &entry.value);
    if as_text(root).is_some_and(|folder| folder.starts_with('/') && folder.bytes().all(|byte| byte == b'/'))
    {
        let title = "every client can read every file of this machine that the server can".to_owned();
        let finding = check.warning(&root.span, title, "this is the root of the file system");
        finding.help("serve a folder of its own: `files = \"/srv/www\"`");
    } else if as_text(root).is_some_and(|folder| is_below(check.base_folder(), folder)) {
        let title = "every client can read the configuration".to_owned();
        let finding = check.warning(&root.span, title, "its file is in this folder");
        finding.help("serve a folder of its own: `files = \"public\"`");
    }
}

/// The part of a path that a regular expression would have: a class, a group, an end.
fn find_regex_syntax(path: &str) -> Option<&str> {
    if path.starts_with('~') {
        return None;
    }
    let within = |open: char, close: char| {
        let start = path.find(open)?;
        let end = start + path[start..].find(close)? + 1;
        path.get(start..end).filter(|part| part.len() > 2)
    };
    let end = || path.strip_suffix('$').and_then(|rest| path.get(rest.len()..));
    // Names of files may have parentheses.
    let group = || within('(', ')').filter(|part| part.contains(['|', '\\', '*', '+', '?', '[', '^']));
    within('[', ']').or_else(group).or_else(end)
}

/// Paths that are separated in one text, each in quotes.
fn quote_separated_paths(path: &str) -> Option<String> {
    let parts: Vec<&str> =
        path.split([',', '|', ' ']).map(str::trim).filter(|part| !part.is_empty()).collect();
    let are_paths = parts.len() > 1 && parts.iter().all(|part| part.starts_with('/'));
    are_paths
        .then(|| parts.iter().map(|part| format!("\"{}\"", shorten(part))).collect::<Vec<_>>().join(", "))
}

/// A segment of a path that is a parameter in the routes of frameworks: `{id}`, `:id`, `<id>`.
fn find_path_parameter(path: &str) -> Option<&str> {
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
    let folder = normal(base.join(folder));
    // Folders above a relative one have no names here.
    let is_above = base.is_relative() && folder.components().all(|part| part == Component::ParentDir);
    is_above || normal(base.to_owned()).starts_with(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_containing_the_configuration_are_detected() {
        for (base, folder, is) in [
            ("/etc/komainu", ".", true),
            ("/etc/komainu", "/", true),
            ("/etc/komainu", "../", true),
            ("/etc/komainu", "/etc/komainu/", true),
            ("/etc/komainu", "public", false),
            ("/etc/komainu", "/etc/komainu-site", false),
            ("", ".", true),
            ("", "..", true),
            ("etc", "../..", true),
            ("", "../public", false),
            ("", "public", false),
        ] {
            assert_eq!(is_below(Path::new(base), folder), is, "{base} {folder}");
        }
    }
}
