//! Hosts for requests: those that servers name, and combinations that several names match.

use std::collections::BTreeSet;

use super::scope::Scope;
use super::tree::NginxDirective;
use crate::paths::{hosts_from_regex, matching_examples};

/// Returns concrete hosts for the names of a server; an unknown host if it has none.
pub(super) fn server_hosts(server: &NginxDirective) -> Vec<String> {
    let mut hosts = Vec::new();
    for name in
        server.block_directives().iter().filter(|one| one.name == "server_name").flat_map(|one| &one.args)
    {
        match name.as_str() {
            "" | "_" | "__" | "$hostname" => {}
            name if name.starts_with('~') => {
                if let Some((found, _)) = hosts_from_regex(&name[1..]) {
                    hosts.extend(found.into_iter().map(|host| host.replace('*', "verify")));
                }
            }
            name if name.starts_with('.') => hosts.extend([name[1..].to_owned(), format!("verify{name}")]),
            name => hosts.push(name.replace('*', "verify")),
        }
    }
    hosts.truncate(6);
    if hosts.is_empty() {
        hosts.push("verify.invalid".to_owned());
    }
    hosts
}

/// Returns hosts that names of several servers match: each beginning of a name combined with each end of
/// another.
pub(super) fn combined_hosts(http: &Scope<'_>) -> Vec<String> {
    const CROSSED_MAX: usize = 8;
    let mut starts = BTreeSet::new();
    let mut ends = BTreeSet::new();
    let servers =
        http.innermost().iter().filter(|one| one.name == "server").flat_map(NginxDirective::block_directives);
    for name in servers.filter(|one| one.name == "server_name").flat_map(|one| &one.args) {
        match (name.strip_prefix('~'), name.strip_suffix(".*"), name.trim_start_matches('*')) {
            (Some(regex), ..) => {
                for (text, at_start, at_end) in matching_examples(regex) {
                    match (at_start, at_end) {
                        (true, false) => drop(starts.insert(text.trim_end_matches('.').to_owned())),
                        (false, true) => drop(ends.insert(text.trim_start_matches('.').to_owned())),
                        _ => {}
                    }
                }
            }
            (_, Some(start), _) => drop(starts.insert(start.to_owned())),
            (.., end) if end.starts_with('.') => drop(ends.insert(end[1..].to_owned())),
            _ => {}
        }
    }
    let is_host = |host: &String| {
        host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            && !host.contains("..")
    };
    let pairs = starts.iter().flat_map(|start| ends.iter().map(move |end| format!("{start}.{end}")));
    pairs.filter(is_host).take(CROSSED_MAX).collect()
}
