//! Names that match several servers: nginx prefers exact names, then the longest name that begins with `*`,
//! then the longest that ends with `*`, then the first regular expression, and then the default server.

use std::net::SocketAddr;

use super::server::{AddressReach, ListenAddress, NginxServer};
use super::translation::Translation;
use crate::draft::TomlItem;
use crate::findings::EntryIndex;

impl<'d> Translation<'d> {
    /// Gives an address the parameters that any server has for it: in nginx too, they are those of the socket.
    pub(crate) fn unite_parameters(servers: &mut [NginxServer<'d>]) {
        let all: Vec<ListenAddress> = servers.iter().flat_map(|server| server.addresses.clone()).collect();
        for address in servers.iter_mut().flat_map(|server| &mut server.addresses) {
            let same = || all.iter().filter(|other| other.text == address.text);
            let (tls, proxy_protocol) =
                (same().any(|other| other.tls), same().any(|other| other.proxy_protocol));
            address.tls = tls;
            address.proxy_protocol = proxy_protocol;
        }
    }

    /// Replaces specific addresses by the wildcard address with the same port, if there is one: one socket serves both.
    /// Servers that nginx does not choose at all of these addresses in the same way are closed, because clients would
    /// reach them where nginx chooses another server.
    pub(crate) fn merge_overlapping_addresses(&self, servers: &mut [NginxServer<'d>]) {
        let mut all: Vec<ListenAddress> = Vec::new();
        for address in servers.iter().flat_map(|server| &server.addresses) {
            if !all.iter().any(|known| known.text == address.text) {
                all.push(address.clone());
            }
        }
        let mut merged: Vec<Vec<ListenAddress>> =
            servers.iter().map(|server| server.addresses.clone()).collect();
        for wide in &all {
            let covered: Vec<&ListenAddress> = all.iter().filter(|one| covers_address(wide, one)).collect();
            if covered.is_empty() {
                continue;
            }
            let socket = SharedSocket { wide, covered: &covered };
            let reaches = self.reaches_of(&socket, servers);
            let own_default = {
                let all: Vec<&NginxServer<'d>> = servers.iter().collect();
                default_server_at(&all, &wide.text)
            };
            for (at, reach) in reaches.iter().enumerate() {
                let Some(reach) = *reach else { continue };
                let own = servers[at].addresses.iter().find(|one| socket.has(&one.text));
                let Some(own) = servers[at].address(&wide.text).or(own) else { continue };
                let addresses = &mut merged[at];
                addresses.retain(|one| one.text != wide.text);
                addresses.push(ListenAddress {
                    is_default: own_default == Some(at),
                    entry: own.entry,
                    reach,
                    ..wide.clone()
                });
                self.report_reach(own.entry, reach, &socket);
            }
        }
        let is_covered = |one: &ListenAddress| all.iter().any(|wide| covers_address(wide, one));
        for (server, addresses) in servers.iter_mut().zip(merged) {
            server.addresses = addresses.into_iter().filter(|one| !is_covered(one)).collect();
        }
    }

    /// Returns the reach of each server that listens on a shared socket.
    fn reaches_of(
        &self,
        socket: &SharedSocket<'_>,
        servers: &[NginxServer<'d>],
    ) -> Vec<Option<AddressReach>> {
        let all: Vec<&NginxServer<'d>> = servers.iter().collect();
        let texts: Vec<&str> = socket.texts().collect();
        let defaults: Vec<Option<usize>> = texts.iter().map(|text| default_server_at(&all, text)).collect();
        let reach = |at: usize| {
            let has = |text: &&str| servers[at].address(text).is_some();
            let is_chosen_alike =
                defaults.iter().all(|default| *default == defaults[0]) || !defaults.contains(&Some(at));
            match texts.iter().filter(|text| has(text)).count() {
                0 => return None,
                count if count == texts.len() && is_chosen_alike && socket.is_of_one_kind() => {
                    return Some(AddressReach::All);
                }
                _ => {}
            }
            let is_outside = has(&socket.wide.text.as_str());
            let knows_loopback = socket.is_loopback()
                && socket.is_of_one_kind()
                && !socket.wide.proxy_protocol
                && !self.has_real_ip();
            Some(match is_outside && knows_loopback {
                true => AddressReach::ExceptLoopback,
                false => AddressReach::Some,
            })
        };
        (0..servers.len()).map(reach).collect()
    }

    /// Whether proxies tell client addresses.
    fn has_real_ip(&self) -> bool {
        let mut found = false;
        for level in &self.http.levels {
            super::tree::visit(level, &mut |one| found |= one.name == "set_real_ip_from");
        }
        found
    }

    fn report_reach(&self, entry: EntryIndex, reach: AddressReach, socket: &SharedSocket<'_>) {
        let wide = &socket.wide.text;
        let reason = format!("one socket serves every address with this port (`{wide}`)");
        match reach {
            AddressReach::All => self.ledger.mark_different(entry, reason),
            AddressReach::ExceptLoopback => self.ledger.mark_impossible(
                entry,
                format!(
                    "{reason}, and nginx has other servers at {}: the site is closed (403) for clients with a loopback address; use another port for one of the two",
                    socket.covered_texts()
                ),
            ),
            AddressReach::Some => self.ledger.mark_impossible(
                entry,
                format!(
                    "{reason}, and nginx does not choose the same server at {}: the site is closed (403); use another port for one of the two, or the same `listen` in both servers",
                    socket.covered_texts()
                ),
            ),
        }
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

/// A wildcard address, and the more specific addresses with the same port, which it includes.
struct SharedSocket<'a> {
    wide: &'a ListenAddress,
    covered: &'a [&'a ListenAddress],
}

impl SharedSocket<'_> {
    fn texts(&self) -> impl Iterator<Item = &str> {
        let covered = self.covered.iter().map(|one| one.text.as_str());
        std::iter::once(self.wide.text.as_str()).chain(covered)
    }

    fn has(&self, text: &str) -> bool {
        self.texts().any(|own| own == text)
    }

    fn covered_texts(&self) -> String {
        let texts: Vec<String> = self.covered.iter().map(|one| format!("`{}`", one.text)).collect();
        texts.join(", ")
    }

    /// Whether all addresses speak the same protocol.
    fn is_of_one_kind(&self) -> bool {
        let is_same =
            |one: &&ListenAddress| one.tls == self.wide.tls && one.proxy_protocol == self.wide.proxy_protocol;
        self.covered.iter().all(is_same)
    }

    /// Whether all specific addresses are loopback addresses.
    fn is_loopback(&self) -> bool {
        let is_loopback = |one: &&ListenAddress| {
            one.text.starts_with("localhost:")
                || one.text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
        };
        self.covered.iter().all(is_loopback)
    }
}

/// Networks of the loopback addresses at which a wildcard address accepts connections.
pub(crate) fn loopback_networks(wide: &ListenAddress) -> TomlItem {
    match wide.text.as_str() {
        text if text.starts_with("0.0.0.0:") => TomlItem::text("127.0.0.0/8"),
        text if text.starts_with("[::]:") => TomlItem::text("::1"),
        _ => TomlItem::text_list(&["127.0.0.0/8", "::1"]),
    }
}

/// Whether a wildcard address includes another address.
fn covers_address(wide: &ListenAddress, address: &ListenAddress) -> bool {
    let Some((host, port)) = address.text.rsplit_once(':') else { return false };
    let is_all = matches!(host, "" | "0.0.0.0" | "[::]");
    let families: &[&str] = match host {
        "localhost" => &["0.0.0.0", "[::]", ""],
        host if host.starts_with('[') => &["[::]", ""],
        _ => &["0.0.0.0", ""],
    };
    !is_all && !host.starts_with("unix") && families.iter().any(|all| wide.text == format!("{all}:{port}"))
}

/// Whether two servers share an address.
pub(crate) fn share_address(one: &NginxServer<'_>, other: &NginxServer<'_>) -> bool {
    one.addresses.iter().any(|this| other.address(&this.text).is_some())
}

/// Returns the default server of an address.
pub(crate) fn default_server_at(servers: &[&NginxServer<'_>], text: &str) -> Option<usize> {
    let is_flagged = |server: &&NginxServer<'_>| server.address(text).is_some_and(|one| one.is_default);
    let flagged = servers.iter().position(is_flagged);
    flagged.or_else(|| servers.iter().position(|server| server.address(text).is_some()))
}
