//! Names that several servers have: nginx finds exact names, then the longest that begins with a `*`, then the longest that ends with one,
//! then the first expression, and then the default server.

use super::server::{ListenAddress, NginxServer};
use super::work::Translation;

impl<'d> Translation<'d> {
    /// Has servers that listen at one address of the machine, where others listen at all of them with the same port, share that socket.
    /// Sites for one address alone are closed then: clients would reach them at all addresses.
    pub(crate) fn widen_addresses(&self, servers: &mut [NginxServer<'d>]) {
        let all: Vec<ListenAddress> = servers.iter().flat_map(|server| server.addresses.clone()).collect();
        for server in servers.iter_mut() {
            let wide = |address: &ListenAddress| all.iter().find(|other| covers_address(other, address));
            let count = server.addresses.iter().filter(|address| wide(address).is_some()).count();
            if count == 0 {
                continue;
            }
            server.is_too_wide = count == server.addresses.len();
            for address in &mut server.addresses {
                if let Some(wide) = wide(address) {
                    *address = ListenAddress { is_default: false, ..wide.clone() };
                }
            }
            let listen = server.scope.own_one("listen").map_or(server.block.entry, |one| one.entry);
            let reason = "one socket is at every address with this port, and another server listens on it";
            match server.is_too_wide {
                true => self.ledger.impossible(
                    listen,
                    format!("{reason}: the site is closed (403), write `allow` for it, or another port"),
                ),
                false => self.ledger.differs(listen, reason),
            }
            if server.is_too_wide {
                server.expressions.iter_mut().for_each(|one| one.is_wider = true);
            }
        }
        // None of them is the default of the shared address.
        servers.sort_by_key(|server| server.is_too_wide);
    }

    /// Has hosts that an expression names give way to other names that match them: nginx tries expressions after all other names, and
    /// those in their order. Their server answers by the expression then.
    pub(crate) fn yield_contested(&self, servers: &mut [NginxServer<'d>]) {
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
            let mut found = server.named_by_expression.clone();
            found.retain(|(_, hosts)| hosts.iter().any(is_contested));
            found
        };
        let contested: Vec<_> = servers.iter().map(contested_of).collect();
        for (server, contested) in servers.iter_mut().zip(contested) {
            for (expression, hosts) in contested {
                server.hosts.retain(|host| !hosts.contains(host));
                let names = server.scope.own_one("server_name").unwrap_or(server.block);
                server.expressions.push(self.host_expression(names, &expression));
            }
        }
    }
}

/// Whether a name of `hosts` is for a host, or for some of the hosts of another name.
fn covers_host(name: &str, host: &str) -> bool {
    name == host || name.strip_prefix('*').is_some_and(|end| host.ends_with(end))
}

/// The hosts of a default server that names of others match, which are less specific: sites and routes of others would answer them.
pub(crate) fn contested_hosts(server: &NginxServer<'_>, all: &[&NginxServer<'_>]) -> Vec<String> {
    let is_contested = |host: &&String| {
        all.iter().filter(|other| other.block.entry != server.block.entry).any(|other| {
            other.hosts.iter().any(|name| name != *host && covers_host(name, host))
                || other.expressions.iter().any(|one| one.may_match(host))
        })
    };
    server.hosts.iter().filter(is_contested).cloned().collect()
}

/// Whether an address is one of those that another one stands for, and speaks the same there.
fn covers_address(wide: &ListenAddress, address: &ListenAddress) -> bool {
    let Some((host, port)) = address.text.rsplit_once(':') else { return false };
    let is_all = matches!(host, "" | "0.0.0.0" | "[::]");
    let family = if host.starts_with('[') { "[::]" } else { "0.0.0.0" };
    let is_wide = wide.text == format!("{family}:{port}") || wide.text == format!(":{port}");
    !is_all && is_wide && wide.tls == address.tls && wide.proxy_protocol == address.proxy_protocol
}

/// Whether two servers have an address in common.
pub(crate) fn share_address(one: &NginxServer<'_>, other: &NginxServer<'_>) -> bool {
    let port = |address: &ListenAddress| address.text.rsplit(':').next().map(str::to_owned);
    let is_wildcard = |address: &ListenAddress| {
        ["0.0.0.0:", "[::]:", ":"].iter().any(|start| address.text.starts_with(start))
    };
    // One socket cannot be at every address, and another at one of them with the same port.
    let shares = |this: &ListenAddress, that: &ListenAddress| {
        this.text == that.text || port(this) == port(that) && (is_wildcard(this) || is_wildcard(that))
    };
    one.addresses.iter().any(|this| other.addresses.iter().any(|that| shares(this, that)))
}
