//! Hosts for requests: those that servers name, and combinations that several names match.

use std::collections::BTreeSet;

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

/// Beginnings and ends of hosts that names of servers match: `a` of `a.*`, and `b.test` of `*.b.test`. Each has the
/// number of its server.
pub(super) struct PartialNames {
    starts: BTreeSet<(usize, String)>,
    ends: BTreeSet<(usize, String)>,
}

impl PartialNames {
    pub(super) fn of_servers<'d>(servers: impl Iterator<Item = &'d NginxDirective>) -> Self {
        let mut found = Self { starts: BTreeSet::new(), ends: BTreeSet::new() };
        for (at, server) in servers.enumerate() {
            let names = server.block_directives().iter().filter(|one| one.name == "server_name");
            names.flat_map(|one| &one.args).for_each(|name| found.add(at, name));
        }
        found
    }

    fn add(&mut self, at: usize, name: &str) {
        let start = |text: &str| (at, text.trim_end_matches('.').to_owned());
        let end = |text: &str| (at, text.trim_start_matches('.').to_owned());
        match (name.strip_prefix('~'), name.strip_suffix(".*"), name.trim_start_matches('*')) {
            (Some(regex), ..) => {
                for (text, at_start, at_end) in matching_examples(regex) {
                    match (at_start, at_end) {
                        (true, false) => drop(self.starts.insert(start(&text))),
                        (false, true) => drop(self.ends.insert(end(&text))),
                        _ => {}
                    }
                }
            }
            (_, Some(text), _) => drop(self.starts.insert((at, text.to_owned()))),
            (.., text) if text.starts_with('.') => drop(self.ends.insert((at, text[1..].to_owned()))),
            _ => {}
        }
    }

    /// Returns hosts that several names match: each beginning of a name combined with each end of another, of which one is
    /// a name of server `at`. The last host is one that only names of other servers match, if there is one.
    pub(super) fn combined_hosts(&self, at: usize) -> Vec<String> {
        const CROSSED_MAX: usize = 8;
        let is_own = |(server, _): &&(usize, String)| *server == at;
        let combined = |(start, end): (&(usize, String), &(usize, String))| format!("{}.{}", start.1, end.1);
        let own_starts = self.starts.iter().filter(is_own);
        let own_ends = self.ends.iter().filter(is_own);
        let pairs = own_starts
            .flat_map(|start| self.ends.iter().map(move |end| (start, end)))
            .chain(own_ends.flat_map(|end| self.starts.iter().map(move |start| (start, end))));
        let mut hosts: Vec<String> = Vec::new();
        for host in pairs.map(combined).filter(|host| is_host(host)) {
            if hosts.len() == CROSSED_MAX {
                break;
            }
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let start = self.starts.iter().find(|one| !is_own(one));
        let end = self.ends.iter().find(|one| !is_own(one));
        let other = start.zip(end).map(combined);
        hosts.extend(
            other.filter(|host| is_host(host) && !hosts.contains(host)).into_iter().collect::<Vec<_>>(),
        );
        hosts
    }
}

fn is_host(host: &str) -> bool {
    host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) && !host.contains("..")
}
