//! Translation of servers to sites: the default site, and servers that only redirect to `https`.

use super::host_conflicts::{contested_hosts, share_address};
use super::listen::{merge_addresses, write_listen};
use super::server::{HostExpression, ListenAddress, NginxServer};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::conditions::{RouteCondition, close_route};
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection};

impl<'d> Translation<'d> {
    /// Writes `listen` and a site for each server.
    pub(crate) fn write_sites(&self, blocks: Vec<&'d NginxDirective>, draft: &mut ConfigDraft) {
        let mut servers: Vec<NginxServer<'d>> =
            blocks.into_iter().map(|block| self.read_server(block)).collect();
        self.widen_addresses(&mut servers);
        self.remove_contested_hosts(&mut servers);
        let groups = server_groups(&servers);
        // The addresses of most servers are written at the top level; the sites of the others have their own.
        let size = |group: usize| groups.iter().filter(|other| **other == group).count();
        let main = groups.iter().copied().rev().max_by_key(|group| size(*group));
        let clear_http2 = servers
            .iter()
            .any(|server| server.scope.effective("http2").is_some_and(|one| one.first_arg() == "on"));
        let mut sites: Vec<(usize, SiteDraft)> = Vec::new();
        for group in 0..servers.len() {
            let is_own = |at: &usize| groups[*at] == group;
            let own: Vec<(usize, &NginxServer<'d>)> =
                (0..servers.len()).filter(is_own).map(|at| (at, &servers[at])).collect();
            let all: Vec<&NginxServer<'d>> = own.iter().map(|(_, server)| *server).collect();
            let addresses = merge_addresses(all.iter().flat_map(|server| &server.addresses));
            if Some(group) == main && !addresses_select_server(&all) {
                write_listen(&addresses, clear_http2, &mut draft.top);
            }
            let merges = self.must_merge_slashes(&all);
            for ServerSite { server: at, mut site, addresses: listens } in self.build_sites(&own, &all) {
                // All addresses of a site agree.
                let own = listens.iter().flatten().next();
                if !own.map_or(merges, |address| merges_at(&all, &address.text)) {
                    site.section.set("merge_slashes", TomlItem::Flag(false));
                }
                match listens {
                    Some(listens) => write_listen(&listens, clear_http2, &mut site.section),
                    None if Some(group) != main => {
                        let texts = servers[at].addresses.iter().map(|address| address.text.as_str());
                        let texts: Vec<&str> = texts.collect();
                        let here = addresses.iter().filter(|address| texts.contains(&address.text.as_str()));
                        write_listen(&merge_addresses(here), clear_http2, &mut site.section);
                    }
                    None => {}
                }
                sites.push((at, site));
            }
        }
        sites.sort_by_key(|(at, _)| *at);
        draft.sites.extend(sites.into_iter().map(|(_, site)| site));
    }

    /// Reports `merge_slashes` of servers that share addresses, and returns whether sites without addresses
    /// of their own merge slashes: they do if the default server of any address does.
    fn must_merge_slashes(&self, all: &[&NginxServer<'d>]) -> bool {
        let addresses = all.iter().flat_map(|server| &server.addresses);
        let merges = addresses.into_iter().any(|address| merges_at(all, &address.text));
        for server in all {
            let is_own = |address: &ListenAddress| {
                if addresses_select_server(all) {
                    merges_at(all, &address.text) == merges_slashes(server)
                } else {
                    merges == merges_slashes(server)
                }
            };
            let is_kept = server.addresses.iter().all(is_own);
            for one in self.take_all(&server.scope, "merge_slashes") {
                match is_kept {
                    true if merges_slashes(server) => {}
                    true => self.ledger.mark_different(
                        one.entry,
                        "no file has a path with `//`, and slashes at the start of a path are one",
                    ),
                    false => self
                        .ledger
                        .mark_different(one.entry, "that of the default server of its addresses counts"),
                }
            }
        }
        merges
    }

    /// Returns the sites of servers that share addresses.
    fn build_sites(&self, own: &[(usize, &NginxServer<'d>)], all: &[&NginxServer<'d>]) -> Vec<ServerSite> {
        if addresses_select_server(all) {
            return self.build_sites_by_address(own);
        }
        let is_kept = |(_, server): &&(usize, &NginxServer<'d>)| {
            !self.is_redundant_redirect(server, all) && !self.rejects_unknown_hosts(server)
        };
        let kept: Vec<(usize, &NginxServer<'d>)> = own.iter().filter(is_kept).copied().collect();
        let kept_servers: Vec<&NginxServer<'d>> = kept.iter().map(|(_, server)| *server).collect();
        let rejects_others = all.iter().any(|server| {
            rejects_handshakes(server) && server.addresses.iter().any(|address| address.is_default)
        });
        let default = default_server(&kept_servers).filter(|_| !rejects_others);
        let has_tls = all.iter().any(|server| server.has_tls_address());
        // Of two servers with the same host, the one that only redirects to the other is dropped.
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&at| kept_servers[at].any_https_redirect().is_some());
        let mut sites: Vec<ServerSite> = Vec::new();
        let mut taken: Vec<String> = Vec::new();
        let mut by_expression = self.expression_routes(&kept_servers, default);
        for at in order {
            let (place, server) = kept[at];
            let mut site = SiteDraft::default();
            let is_default = Some(at) == default;
            let contested = if is_default { contested_hosts(server, &kept_servers) } else { Vec::new() };
            if let Some(site) = self.build_contested_site(server, has_tls, contested, &taken) {
                sites.push(ServerSite { server: place, site, addresses: None });
            }
            if !self.write_hosts(server, is_default, &mut taken, &mut site) {
                continue;
            }
            let own = if is_default { std::mem::take(&mut by_expression) } else { Vec::new() };
            self.write_site(server, has_tls, own, &mut site);
            sites.push(ServerSite { server: place, site, addresses: None });
        }
        if let (false, Some((server, _))) = (by_expression.is_empty(), kept.first()) {
            let site = SiteDraft { section: TomlSection::default(), routes: by_expression };
            sites.push(ServerSite { server: *server, site, addresses: None });
        }
        sites
    }

    /// Returns the site for those names of a default server that names of other servers match too: nginx
    /// prefers exact names and longer wildcard names. `None` if there are no such names. The default site
    /// follows, with the same routes.
    fn build_contested_site(
        &self,
        server: &NginxServer<'d>,
        has_tls: bool,
        contested: Vec<String>,
        taken: &[String],
    ) -> Option<SiteDraft> {
        let hosts: Vec<String> = contested.into_iter().filter(|host| !taken.contains(host)).collect();
        if hosts.is_empty() {
            return None;
        }
        let mut site = SiteDraft::default();
        let hosts = TomlItem::List(hosts.into_iter().map(TomlItem::Text).collect());
        site.section.set("hosts", hosts);
        site.section.comment("The default server, for its names that other servers' names match too.");
        self.write_site(server, has_tls, Vec::new(), &mut site);
        Some(site)
    }

    /// Writes a site; `first` are routes that precede its own.
    fn write_site(
        &self,
        server: &NginxServer<'d>,
        has_tls: bool,
        first: Vec<TomlSection>,
        site: &mut SiteDraft,
    ) {
        self.write_tls(server, site);
        if has_tls && !server.has_tls_address() {
            // Otherwise the site would get a certificate and redirect to `https`, because an address uses
            // TLS.
            site.section.set("tls", TomlItem::Flag(false));
        }
        let answers_plainly =
            server.has_tls_address() && server.has_plain_address() && site.section.get("tls").is_some();
        if answers_plainly {
            site.section.set("redirect_https", TomlItem::Flag(false));
        }
        self.translate_error_pages(&server.scope, &mut site.section);
        self.write_maintenance(&server.scope, &mut site.section);
        site.section.set("logs", TomlItem::List(self.translate_access_logs(&server.scope)));
        site.routes = first;
        site.routes.extend(self.server_routes(&server.scope, server.block.entry));
        self.add_manual_comments(server.scope.innermost(), &mut site.section);
        if server.reaches_other_addresses {
            let listen =
                server.scope.innermost_last("listen").and_then(|one| self.ledger.manual_comment(one.entry));
            site.close(listen.unwrap_or_default());
        }
    }

    /// Returns the sites of servers that share some but not all of their addresses: each site has its own
    /// addresses, and may be the default of some of them.
    fn build_sites_by_address(&self, own: &[(usize, &NginxServer<'d>)]) -> Vec<ServerSite> {
        let mut sites: Vec<ServerSite> = Vec::new();
        let mut taken: Vec<(String, String)> = Vec::new();
        let names =
            |server: &NginxServer<'d>, text: &str| server.addresses.iter().any(|one| one.text == text);
        for (at, (place, server)) in own.iter().enumerate() {
            // Addresses with the same hosts and treatment of slashes; `None` for those of which the server is
            // the default.
            let mut kinds: Vec<(Option<Vec<String>>, bool, Vec<ListenAddress>)> = Vec::new();
            for address in &server.addresses {
                let there: Vec<usize> =
                    (0..own.len()).filter(|other| names(own[*other].1, &address.text)).collect();
                let all: Vec<&NginxServer<'d>> = there.iter().map(|other| own[*other].1).collect();
                let is_default =
                    default_server_at(&all, &address.text).is_some_and(|found| there[found] == at);
                let hosts = (!is_default).then(|| {
                    let is_free = |host: &&String| !taken.contains(&(address.text.clone(), (*host).clone()));
                    server.hosts.iter().filter(is_free).cloned().collect::<Vec<String>>()
                });
                let merges = merges_at(&all, &address.text);
                let is_kind = |known: &Option<Vec<String>>, merged: bool| {
                    *known == hosts && hosts.is_some() && merged == merges
                };
                match kinds.iter_mut().find(|(known, merged, _)| is_kind(known, *merged)) {
                    Some((.., addresses)) => addresses.push(address.clone()),
                    None => kinds.push((hosts, merges, vec![address.clone()])),
                }
            }
            for (hosts, _, addresses) in kinds {
                let mut site = SiteDraft::default();
                let mut first = Vec::new();
                match &hosts {
                    Some(hosts) if hosts.is_empty() => {
                        self.ledger.mark_different(server.block.entry, NOT_DEFAULT_REMARK);
                        continue;
                    }
                    Some(hosts) => site
                        .section
                        .set("hosts", TomlItem::List(hosts.iter().cloned().map(TomlItem::Text).collect())),
                    None => {
                        let all: Vec<&NginxServer<'d>> = own
                            .iter()
                            .map(|(_, other)| *other)
                            .filter(|other| names(other, &addresses[0].text))
                            .collect();
                        let default = all.iter().position(|other| other.block.entry == server.block.entry);
                        first = self.expression_routes(&all, default);
                        let is_free =
                            |host: &String| !taken.contains(&(addresses[0].text.clone(), host.clone()));
                        let contested = contested_hosts(server, &all).into_iter().filter(is_free).collect();
                        let site = self.build_contested_site(server, false, contested, &[]);
                        sites.extend(site.map(|site| ServerSite {
                            server: *place,
                            site,
                            addresses: Some(addresses.clone()),
                        }));
                    }
                }
                for address in &addresses {
                    taken.extend(server.hosts.iter().map(|host| (address.text.clone(), host.clone())));
                }
                self.write_site(server, false, first, &mut site);
                sites.push(ServerSite { server: *place, site, addresses: Some(addresses) });
            }
        }
        sites
    }

    /// Returns the routes of servers whose names cannot be written as `hosts`. They come first in the default
    /// site, as nginx tries regular expressions after all other names.
    fn expression_routes(&self, servers: &[&NginxServer<'d>], default: Option<usize>) -> Vec<TomlSection> {
        let mut all: Vec<(usize, usize, &HostExpression)> = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            all.extend(server.expressions.iter().map(|one| (one.rank, at, one)));
        }
        all.sort_by_key(|(rank, ..)| *rank);
        let mut routes = Vec::new();
        let mut of_default: Vec<RouteCondition> = Vec::new();
        for (_, at, one) in all {
            let condition = RouteCondition::on_value("header", "Host", one.pattern.clone());
            if Some(at) == default {
                of_default.push(condition);
                continue;
            }
            let condition = if of_default.is_empty() { condition } else { condition.excluding(&of_default) };
            let mut own = if one.matches_too_much {
                Vec::new()
            } else {
                self.server_routes(&servers[at].scope, servers[at].block.entry)
            };
            // Requests without a route must not reach the default server.
            let mut last = TomlSection::default();
            if one.matches_too_much {
                close_route(
                    &mut last,
                    servers[at]
                        .scope
                        .innermost_last("server_name")
                        .and_then(|one| self.ledger.manual_comment(one.entry))
                        .unwrap_or_default(),
                )
            } else {
                last.set("respond", TomlItem::Number(404))
            }
            own.extend(self.finish_routes(vec![last], &servers[at].scope));
            own.iter_mut().for_each(|route| condition.write(route));
            routes.extend(own);
        }
        routes
    }

    /// Writes the hosts of a site; returns false if other sites have all of them.
    fn write_hosts(
        &self,
        server: &NginxServer<'d>,
        is_default: bool,
        taken: &mut Vec<String>,
        site: &mut SiteDraft,
    ) -> bool {
        if is_default {
            // Another server with one of these names is never selected.
            taken.extend(server.hosts.iter().cloned());
            if !server.hosts.is_empty() {
                site.section.comment(format!(
                    "{}, and every host that no other site names.",
                    server.hosts.join(", ")
                ));
            }
            return true;
        }
        let (free, twice): (Vec<String>, Vec<String>) =
            server.hosts.iter().cloned().partition(|host| !taken.contains(host));
        let names = server.scope.innermost_last("server_name").unwrap_or(server.block);
        if let Some(redirect) = server.any_https_redirect().filter(|_| !twice.is_empty()) {
            self.ledger.mark_different(
                redirect.entry,
                format!(
                    "the site with `tls` redirects {} by itself, to the same host, with 308",
                    twice.join(", ")
                ),
            );
            if free.is_empty() {
                self.report_redundant(server.block.block_directives());
                return false;
            }
        } else if !twice.is_empty() {
            self.ledger.mark_impossible(
                names.entry,
                format!("another server has {} at another address: write a `[[site]]` with `listen` for each of them", twice.join(", ")),
            );
        }
        if free.is_empty() && !server.expressions.is_empty() {
            return false;
        }
        if free.is_empty() {
            if twice.is_empty() {
                self.ledger.mark_impossible(
                    server.block.entry,
                    "it names no host that no other site has: requests for other hosts at its addresses are for another site; write a `[[site]]` with `listen` for it",
                );
            }
            self.report_skipped(server.block.block_directives());
            return false;
        }
        if server.addresses.iter().any(|address| address.is_default) {
            self.ledger.mark_different(
                server.block.entry,
                "another server is the default for all addresses; this one answers for its hosts alone",
            );
        }
        site.section.set("hosts", TomlItem::List(free.iter().cloned().map(TomlItem::Text).collect()));
        taken.extend(free);
        true
    }

    fn report_skipped(&self, block: &[NginxDirective]) {
        for one in block {
            self.ledger.mark_impossible(one.entry, "it belongs to a server without a site");
            self.report_skipped(one.block_directives());
        }
    }

    /// Whether a server only redirects to `https`, which sites with TLS do automatically.
    fn is_redundant_redirect(&self, server: &NginxServer<'d>, all: &[&NginxServer<'d>]) -> bool {
        let Some(redirect) = server.same_site_https_redirect() else { return false };
        let covers =
            |host: &String| all.iter().any(|other| other.has_tls_address() && other.hosts.contains(host));
        if server.hosts.is_empty() || !server.hosts.iter().all(covers) {
            return false;
        }
        self.ledger.mark_different(
            redirect.entry,
            "the site with `tls` redirects by itself (`redirect_https`), with 308 in place of 301",
        );
        self.report_redundant(server.block.block_directives());
        true
    }

    /// Whether a server rejects the handshakes of all unknown hosts. Such a server gets no site: Komainu
    /// answers hosts without a site with 404 or 421.
    fn rejects_unknown_hosts(&self, server: &NginxServer<'d>) -> bool {
        let rejects = server.scope.innermost_last("ssl_reject_handshake");
        let Some(rejects) = rejects.filter(|_| rejects_handshakes(server)) else { return false };
        self.ledger.mark_different(
            rejects.entry,
            "a host that no site has gets no certificate of its own, and 404 or 421",
        );
        self.report_rejecting(server.block.block_directives());
        true
    }

    fn report_rejecting(&self, block: &[NginxDirective]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.not_needed(one, "no handshake of its server succeeds");
            }
            self.report_rejecting(one.block_directives());
        }
    }

    fn report_redundant(&self, block: &[NginxDirective]) {
        for one in block {
            if one.name == "return" && matches!(one.first_arg(), "301" | "302" | "307" | "308") {
                self.ledger.mark_different(
                    one.entry,
                    "the site with `tls` redirects by itself (`redirect_https`), with 308, to the same host",
                );
            } else if one.name == "return" {
                self.ledger.mark_different(
                    one.entry,
                    "hosts that this server does not name are for the default site",
                );
            } else if !self.ledger.is_marked(one.entry) {
                self.not_needed(one, "the site with `tls` redirects by itself; certificates are obtained without files (`tls = \"auto\"`)");
            }
            self.report_redundant(one.block_directives());
        }
    }
}

/// Remark on a server that one socket for several addresses makes unreachable.
pub(crate) const NOT_DEFAULT_REMARK: &str =
    "another server is the default of one of its addresses, where this one has no host of its own";

/// Returns the group of each server. Servers that share an address belong to one group, and so do servers
/// that only redirect to the TLS servers of the group.
fn server_groups(servers: &[NginxServer<'_>]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..servers.len()).collect();
    let mut unite = |is_one: &dyn Fn(&[usize], usize, usize) -> bool| {
        for at in 0..servers.len() {
            for before in 0..at {
                if groups[at] != groups[before] && is_one(&groups, at, before) {
                    let from = groups[at].max(groups[before]);
                    let to = groups[at].min(groups[before]);
                    groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
                }
            }
        }
    };
    unite(&|_, at, before| share_address(&servers[at], &servers[before]));
    unite(&|groups, at, before| {
        // Groups that consist of redirects: `redirect_https` of the others is equivalent.
        let only_redirects = |group: usize| {
            let own = servers.iter().zip(groups).filter(|(_, other)| **other == group);
            own.into_iter().all(|(server, _)| server.any_https_redirect().is_some())
        };
        let redirects_to = |from: usize, to: usize| {
            let (from, to, group) = (&servers[from], &servers[to], groups[from]);
            to.has_tls_address()
                && only_redirects(group)
                && (from.hosts.is_empty() || to.hosts.iter().any(|host| from.hosts.contains(host)))
        };
        redirects_to(at, before) || redirects_to(before, at)
    });
    groups
}

/// Whether a server rejects all handshakes.
fn rejects_handshakes(server: &NginxServer<'_>) -> bool {
    let rejects =
        server.scope.innermost_last("ssl_reject_handshake").is_some_and(|one| one.first_arg() == "on");
    rejects && !server.has_plain_address()
}

/// A site, the index of its server, and its addresses; `None` if it has those of the top level.
struct ServerSite {
    server: usize,
    site: SiteDraft,
    addresses: Option<Vec<ListenAddress>>,
}

/// Whether servers without TLS share some of their addresses but not all, so that the address determines the
/// server.
fn addresses_select_server(all: &[&NginxServer<'_>]) -> bool {
    let texts = |server: &NginxServer<'_>| {
        let mut texts: Vec<String> = server.addresses.iter().map(|address| address.text.clone()).collect();
        texts.sort();
        texts.dedup();
        texts
    };
    // A wildcard address and a specific one with the same port cannot be separate sockets.
    let overlaps = |text: &str| {
        let port = text.rsplit(':').next();
        let others = all.iter().flat_map(|server| &server.addresses).filter(|other| other.text != text);
        others.into_iter().any(|other| other.text.rsplit(':').next() == port)
    };
    let default = |text: &str| default_server_at(all, text);
    let shared = all.iter().flat_map(|server| &server.addresses).map(|address| default(&address.text));
    let defaults: Vec<Option<usize>> = shared.collect();
    let differ = all.iter().any(|server| texts(server) != texts(all[0]))
        || defaults.iter().any(|default| *default != defaults[0]);
    differ
        && all.iter().all(|server| {
            !server.has_tls_address() && server.addresses.iter().all(|address| !overlaps(&address.text))
        })
}

/// Whether a server merges slashes.
fn merges_slashes(server: &NginxServer<'_>) -> bool {
    server.scope.effective("merge_slashes").is_none_or(|one| one.first_arg() != "off")
}

/// Whether nginx merges slashes at an address. It parses the path before it knows the host, so the default
/// server of the address decides.
fn merges_at(servers: &[&NginxServer<'_>], text: &str) -> bool {
    default_server_at(servers, text).is_none_or(|at| merges_slashes(servers[at]))
}

/// Returns the default server of an address.
fn default_server_at(servers: &[&NginxServer<'_>], text: &str) -> Option<usize> {
    let named = |server: &NginxServer<'_>, is_flagged: bool| {
        server.addresses.iter().any(|address| address.text == text && (address.is_default || !is_flagged))
    };
    let flagged = servers.iter().position(|server| named(server, true));
    flagged.or_else(|| servers.iter().position(|server| named(server, false)))
}

/// Returns the server for all other hosts: the default of an address, preferably one that names no host and
/// has TLS.
fn default_server(servers: &[&NginxServer<'_>]) -> Option<usize> {
    let is_default = |at: usize| {
        servers[at].addresses.iter().any(|address| {
            let same = |other: &&NginxServer<'_>| other.addresses.iter().any(|one| one.text == address.text);
            let flagged = servers
                .iter()
                .any(|other| other.addresses.iter().any(|one| one.text == address.text && one.is_default));
            if flagged { address.is_default } else { !servers[..at].iter().any(same) }
        })
    };
    let rank = |at: usize| {
        let server = servers[at];
        let flagged = server.addresses.iter().any(|address| address.is_default);
        (server.hosts.is_empty(), flagged, server.has_tls_address() && server.hosts.is_empty())
    };
    let mut best: Option<usize> = None;
    for at in (0..servers.len()).filter(|&at| is_default(at)) {
        if best.is_none_or(|before| rank(at) > rank(before)) {
            best = Some(at);
        }
    }
    best
}
