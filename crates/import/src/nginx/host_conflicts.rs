//! Names that match several servers: nginx prefers exact names, then the longest name that begins with `*`,
//! then the longest that ends with `*`, then the first regular expression, and then the default server.

use super::server::{ListenAddress, NginxServer};
use super::translation::Translation;

impl<'d> Translation<'d> {
    /// Replaces specific addresses by the wildcard address with the same port, if another server listens on
    /// that: one socket serves both. Servers without any other address are closed, because clients would
    /// reach them at all addresses.
    pub(crate) fn widen_addresses(&self, servers: &mut [NginxServer<'d>]) {
        let all: Vec<ListenAddress> = servers.iter().flat_map(|server| server.addresses.clone()).collect();
        for server in servers.iter_mut() {
            let wide = |address: &ListenAddress| all.iter().find(|other| covers_address(other, address));
            let count = server.addresses.iter().filter(|address| wide(address).is_some()).count();
            if count == 0 {
                continue;
            }
            server.reaches_other_addresses = count == server.addresses.len();
            for address in &mut server.addresses {
                if let Some(wide) = wide(address) {
                    *address = ListenAddress { is_default: false, ..wide.clone() };
                }
            }
            let listen = server.scope.innermost_last("listen").map_or(server.block.entry, |one| one.entry);
            let reason = "one socket is at every address with this port, and another server listens on it";
            if server.reaches_other_addresses {
                self.ledger.mark_impossible(
                    listen,
                    format!("{reason}: the site is closed (403), write `allow` for it, or another port"),
                )
            } else {
                self.ledger.mark_different(listen, reason)
            }
            if server.reaches_other_addresses {
                server.expressions.iter_mut().for_each(|one| one.matches_too_much = true);
            }
        }
        // None of these servers may be the default of the shared address.
        servers.sort_by_key(|server| server.reaches_other_addresses);
    }

    /// Removes hosts that were derived from an expression if names of other servers match them too: nginx
    /// tries expressions after all other names, and in their order. The server is then selected by a pattern
    /// for `Host`.
    pub(crate) fn remove_contested_hosts(&self, servers: &mut [NginxServer<'d>]) {
        let contested_of = |server: &NginxServer<'d>| -> Vec<(String, Vec<String>)> {
            let is_contested = |host: &String| {
                let is_other = |other: &&NginxServer<'d>| {
                    other.block.entry != server.block.entry && share_address(server, other)
                };
                servers.iter().filter(is_other).any(|other| {
                    other.hosts.iter().any(|name| covers_host(name, host))
                        || other.expressions.iter().any(|one| one.may_match(host))
                })
            };
            let mut found = server.hosts_by_expression.clone();
            found.retain(|(_, hosts)| hosts.iter().any(is_contested));
            found
        };
        let contested: Vec<_> = servers.iter().map(contested_of).collect();
        for (server, contested) in servers.iter_mut().zip(contested) {
            for (expression, hosts) in contested {
                server.hosts.retain(|host| !hosts.contains(host));
                let names = server.scope.innermost_last("server_name").unwrap_or(server.block);
                server.expressions.push(self.translate_host_expression(names, &expression));
            }
        }
    }
}

/// Whether the name of a site matches a host, or some of the hosts of another name.
fn covers_host(name: &str, host: &str) -> bool {
    name == host || name.strip_prefix('*').is_some_and(|end| host.ends_with(end))
}

/// Returns the hosts of a default server that less specific names of other servers match: without a site of
/// their own, the sites and routes of those would respond.
pub(crate) fn contested_hosts(server: &NginxServer<'_>, servers: &[&NginxServer<'_>]) -> Vec<String> {
    let is_contested = |host: &&String| {
        servers.iter().filter(|other| other.block.entry != server.block.entry).any(|other| {
            other.hosts.iter().any(|name| name != *host && covers_host(name, host))
                || other.expressions.iter().any(|one| one.may_match(host))
        })
    };
    server.hosts.iter().filter(is_contested).cloned().collect()
}

/// Whether a wildcard address includes another address, with the same protocol.
fn covers_address(wide: &ListenAddress, address: &ListenAddress) -> bool {
    let Some((host, port)) = address.text.rsplit_once(':') else { return false };
    let is_all = matches!(host, "" | "0.0.0.0" | "[::]");
    let family = if host.starts_with('[') { "[::]" } else { "0.0.0.0" };
    let is_wide = wide.text == format!("{family}:{port}") || wide.text == format!(":{port}");
    !is_all && is_wide && wide.tls == address.tls && wide.proxy_protocol == address.proxy_protocol
}

/// Whether two servers share an address.
pub(crate) fn share_address(one: &NginxServer<'_>, other: &NginxServer<'_>) -> bool {
    let port = |address: &ListenAddress| address.text.rsplit(':').next().map(str::to_owned);
    let is_wildcard = |address: &ListenAddress| {
        ["0.0.0.0:", "[::]:", ":"].iter().any(|start| address.text.starts_with(start))
    };
    // A wildcard address and a specific one with the same port share a socket.
    let shares = |this: &ListenAddress, that: &ListenAddress| {
        this.text == that.text || port(this) == port(that) && (is_wildcard(this) || is_wildcard(that))
    };
    one.addresses.iter().any(|this| other.addresses.iter().any(|that| shares(this, that)))
}
