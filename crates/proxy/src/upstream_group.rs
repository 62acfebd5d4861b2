//! Groups of upstream servers under a name, and the routes that share them.

use crate::cgi_program::Cgi;
use crate::directives::{ProxyOptions, Upstream};
use crate::origin::{CgiProtocol, Origin, group_name};
use serde_json::json;
use settings::checker::{Checker, shorten};
use settings::directive_table::{brief, table};
use settings::node::{Entry, Node, NodeData};
use settings::report::TextSpan;
use settings::shape::{Map, Shape, ShapeKind};
use settings::spelling::nearest_name;
use std::sync::Arc;

/// The action `proxy`: its own group, or one that it shares with other routes.
pub struct Proxied;

impl Shape for Proxied {
    type Out = ProxyOptions;

    fn kind(&self) -> ShapeKind {
        brief::<ProxyOptions>("to").kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<ProxyOptions> {
        if let NodeData::Integer(port @ 1..=65_535) = node.data {
            let finding = check.report_type_mismatch(node, "the URL of an upstream server");
            finding.help(format!("write \"http://127.0.0.1:{port}\""));
            return None;
        }
        if let NodeData::Text(name) = &node.data
            && check.upstream_groups.contains_key(name)
        {
            let finding = check.report_invalid(&node.span, "this is the name of a group, not a URL");
            finding.help(format!("write `{{ upstream = \"{name}\" }}`"));
            return None;
        }
        let Some(entry) = node.entry("upstream") else {
            return brief::<ProxyOptions>("to").read(node, check);
        };
        let (NodeData::Table(own), NodeData::Text(name)) = (&node.data, &entry.value.data) else {
            return table().read(node, check);
        };
        let own_group = own.iter().filter(|entry| GROUP_DIRECTIVES.contains(&entry.key.as_str()));
        for entry in own_group {
            let title = format!("`{}` beside `upstream` in `{}`", entry.key, check.directive_path_text());
            let finding = check.error(&entry.key_span, title, "this directive belongs to the group");
            finding.help(format!("write it in `[upstreams.{}]`", shorten(name)));
        }
        let Some(group) = check.upstream_groups.get(name) else {
            report_unknown_group(name, &entry.value.span, check);
            return None;
        };
        // The faults of the group have been reported already.
        let Some(NodeData::Table(shared)) = group.as_ref().map(|group| group.data.clone()) else {
            return table().read(node, check);
        };
        let others = shared.into_iter().filter(|entry| node.entry(&entry.key).is_none());
        let entries = own.iter().cloned().chain(others).collect();
        table().read(&Node { span: node.span.clone(), data: NodeData::Table(entries) }, check)
    }
}

/// Name of a group of upstream servers that the configuration has.
pub struct GroupName;

impl Shape for GroupName {
    type Out = String;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new("the name of a group: `NAME` of `[upstreams.NAME]`", json!({ "type": "string" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<String> {
        let NodeData::Text(name) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        if check.upstream_groups.contains_key(name) {
            return Some(name.clone());
        }
        report_unknown_group(name, &node.span, check);
        None
    }
}

fn report_unknown_group(name: &str, at: &TextSpan, check: &mut Checker) {
    let names = check.upstream_groups.keys().map(String::as_str);
    let label = match nearest_name(name, names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "no such group of upstream servers".to_owned(),
    };
    let title = format!("there is no `[upstreams.{}]`", shorten(name));
    let help = format!("add `[upstreams.{}]` with `to = [\"http://127.0.0.1:3000\"]`", shorten(name));
    check.error(at, title, label).help(help);
}

/// Translates a port, a PHP-FPM version or a URL of another notation into an address.
fn php_server_remedy(text: &str) -> Option<String> {
    if let Some(address) = text.strip_prefix("tcp://") {
        return Some(format!("fastcgi://{}", shorten(address)));
    }
    if text.parse::<u16>().is_ok() {
        return Some(format!("fastcgi://127.0.0.1:{text}"));
    }
    let is_number = |part: &str| part.parse::<u8>().is_ok();
    let version = text.split_once('.').is_some_and(|(major, minor)| is_number(major) && is_number(minor));
    version.then(|| format!("unix:/run/php/php{text}-fpm.sock"))
}

/// The action `php`: the servers that run the scripts among the route's files.
pub struct PhpServers;

impl Shape for PhpServers {
    type Out = ProxyOptions;

    fn kind(&self) -> ShapeKind {
        Proxied.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<ProxyOptions> {
        if let NodeData::Integer(port @ 1..=65_535) = node.data {
            let finding = check.report_type_mismatch(node, "the URL of a PHP server");
            finding.help(format!("write \"fastcgi://127.0.0.1:{port}\""));
            return None;
        }
        if let NodeData::Text(text) = &node.data
            && let Some(url) = php_server_remedy(text)
        {
            let title = format!("`{}` is not the URL of a PHP server", shorten(text));
            check.error(&node.span, title, "where does it listen?").help(format!("write \"{url}\""));
            return None;
        }
        let mut node = node.clone();
        if let NodeData::Text(text) = &mut node.data
            && !text.contains("://")
            && !text.contains("unix:")
            && Origin::parse(&format!("fastcgi://{text}")).is_ok_and(|_| text.contains(':'))
        {
            // As other servers write it.
            *text = format!("fastcgi://{text}");
        }
        let mut proxy = Proxied.read(&node, check)?;
        for upstream in &mut proxy.to {
            if proxy.upstream.is_none()
                && matches!(&upstream.url, Origin::Unix(path) if !path.as_os_str().is_empty())
            {
                let at = Box::new(std::mem::take(&mut upstream.url));
                upstream.url = Origin::Cgi(CgiProtocol::FastCgi, at);
            }
        }
        let is_fastcgi = |upstream: &Upstream| {
            matches!(upstream.url, Origin::Cgi(CgiProtocol::FastCgi, _)) || upstream.url == Origin::default()
        };
        if let Some(other) = proxy.to.iter().find(|upstream| !is_fastcgi(upstream)) {
            let title = format!("`php` with the server {}", other.url);
            let finding = check.error(&node.span, title, "this server does not speak FastCGI");
            finding.help("write \"fastcgi://HOST:PORT\", or \"fastcgi+unix:PATH\" in `[upstreams.NAME]`");
        }
        proxy.is_php = true;
        Some(proxy)
    }
}

/// Programs in the place of servers, one request each.
pub fn programs(cgi: Cgi) -> ProxyOptions {
    let at = Box::new(Origin::Unix(cgi.root.clone()));
    let mut proxy = ProxyOptions::with_servers([Origin::Cgi(CgiProtocol::Program, at)]);
    proxy.to[0].connections_max = Some(cgi.processes_max);
    proxy.keep_alive.idle_max = 0;
    proxy.retry.attempts_max = 1;
    proxy.eject = None;
    // The program's own paths are those that clients use.
    proxy.rewrite = false;
    proxy.lenient_heads = cgi.lenient_heads;
    proxy.timeouts.head = cgi.time.into();
    proxy.timeouts.between = cgi.time.into();
    proxy.timeouts.total = Some(cgi.time.into());
    proxy.cgi = Some(cgi);
    proxy
}

/// The groups of upstream servers, by name.
pub struct Groups;

impl Shape for Groups {
    type Out = Vec<(String, Arc<ProxyOptions>)>;

    fn kind(&self) -> ShapeKind {
        Map { what: "names of groups", key: group_name, value: table::<ProxyOptions>() }.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        let NodeData::Table(entries) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        let mut groups = Vec::new();
        for Entry { key, key_span: key_at, value } in entries {
            let errors = check.report.error_count();
            if let Err(fault) = group_name(key) {
                check.report_fault(key_at, key, fault);
            }
            if let Some(entry) = value.entry("upstream") {
                let title = format!("`upstream` in `[upstreams.{}]`", shorten(key));
                check.error(&entry.key_span, title, "a group needs its own servers, in `to`");
            }
            let group = table::<ProxyOptions>().read(value, check);
            let fine = check.report.error_count() == errors;
            check.upstream_groups.insert(key.clone(), fine.then(|| value.clone()));
            groups.extend(group.map(|group| (key.clone(), Arc::new(group))));
        }
        Some(groups)
    }
}

/// Directives of a group as a whole, which a route cannot override.
const GROUP_DIRECTIVES: [&str; 11] = [
    "to",
    "balance",
    "keep_alive",
    "eject",
    "health",
    "slow_start",
    "queue",
    "resolve",
    "tls",
    "proxy_protocol",
    "lenient_heads",
];
