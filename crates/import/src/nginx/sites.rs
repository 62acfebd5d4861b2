//! Translation of servers to sites: the default site, and servers that only redirect to `https`.

use super::address_kinds::{
    AddressKind, address_kinds, address_selects_server, default_server, is_only_rejecting,
    is_redundant_redirect, merges_at, merges_slashes, rejects_unknown_hosts,
};
use super::client_addresses::ClientAddresses;
use super::host_conflicts::{contested_hosts, default_server_at, loopback_networks, share_address};
use super::listen::{SharedListenOptions, merge_addresses, write_listen};
use super::server::{AddressReach, ListenAddress, NginxServer};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection};

impl<'d> Translation<'d> {
    /// Writes `listen` and a site for each server.
    pub(crate) fn write_sites(&self, blocks: Vec<&'d NginxDirective>, draft: &mut ConfigDraft) {
        let mut servers: Vec<NginxServer<'d>> =
            blocks.into_iter().map(|block| self.read_server(block)).collect();
        Self::unite_parameters(&mut servers);
        self.remove_rejecting_addresses(&mut servers);
        self.merge_overlapping_addresses(&mut servers);
        self.remove_contested_hosts(&mut servers);
        // Some may have lost the hosts that expressions named.
        self.remove_rejecting_addresses(&mut servers);
        let groups = server_groups(&servers);
        // The addresses of most servers are written at the top level; the sites of the others have their own.
        let size = |group: usize| groups.iter().filter(|other| **other == group).count();
        let main = groups.iter().copied().rev().max_by_key(|group| size(*group));
        let clear_http2 = servers
            .iter()
            .any(|server| server.scope.effective("http2").is_some_and(|one| one.first_arg() == "on"));
        let proxies = match &self.client_addresses {
            ClientAddresses::ProxyProtocol { from } => from.clone(),
            _ => Vec::new(),
        };
        let options = SharedListenOptions { clear_http2, proxies };
        let mut sites: Vec<(usize, SiteDraft)> = Vec::new();
        for group in 0..servers.len() {
            let is_own = |at: &usize| groups[*at] == group;
            let own: Vec<(usize, &NginxServer<'d>)> =
                (0..servers.len()).filter(is_own).map(|at| (at, &servers[at])).collect();
            let all: Vec<&NginxServer<'d>> = own.iter().map(|(_, server)| *server).collect();
            let addresses = merge_addresses(all.iter().flat_map(|server| &server.addresses));
            let is_by_address = address_selects_server(&all);
            if Some(group) == main && !is_by_address {
                write_listen(&addresses, &options, &mut draft.top);
            }
            let merges = self.must_merge_slashes(&all);
            for ServerSite { server: at, mut site, addresses: listens } in self.build_sites(&own, &all) {
                // All addresses of a site agree.
                let own = listens.iter().flatten().next();
                if !own.map_or(merges, |address| merges_at(&all, &servers[at], address)) {
                    site.section.set("merge_slashes", TomlItem::Flag(false));
                }
                match listens {
                    Some(listens) => write_listen(&listens, &options, &mut site.section),
                    None if Some(group) != main || is_by_address => {
                        let texts = servers[at].addresses.iter().map(|address| address.text.as_str());
                        let texts: Vec<&str> = texts.collect();
                        let here = addresses.iter().filter(|address| texts.contains(&address.text.as_str()));
                        write_listen(&merge_addresses(here), &options, &mut site.section);
                    }
                    None => {}
                }
                sites.push((at, site));
            }
        }
        sites.sort_by_key(|(at, _)| *at);
        draft.sites.extend(sites.into_iter().map(|(_, site)| site));
    }

    /// Removes addresses at which no handshake succeeds, and servers without others: nobody is answered there. Besides
    /// servers that reject handshakes, these are servers that only expressions name, because their routes would stand
    /// in the default site.
    fn remove_rejecting_addresses(&self, servers: &mut Vec<NginxServer<'d>>) {
        let all: Vec<&NginxServer<'d>> = servers.iter().collect();
        let mut answering: Vec<String> = Vec::new();
        for (at, server) in all.iter().enumerate() {
            let answers = |address: &&ListenAddress| {
                let is_reached =
                    || !server.hosts.is_empty() || default_server_at(&all, &address.text) == Some(at);
                !address.tls || !server.rejects_handshakes() && is_reached()
            };
            answering.extend(server.addresses.iter().filter(answers).map(|address| address.text.clone()));
        }
        for server in servers.iter_mut() {
            let is_rejecting = server.rejects_handshakes();
            server.addresses.retain(|address| {
                let is_kept = answering.contains(&address.text);
                if !is_kept && !is_rejecting {
                    self.ledger.mark_impossible(address.entry, NO_DEFAULT_SITE_REMARK);
                }
                is_kept
            });
        }
        let gone = servers.extract_if(.., |server| server.addresses.is_empty());
        for server in gone.collect::<Vec<_>>() {
            match server.scope.effective("ssl_reject_handshake").filter(|_| server.rejects_handshakes()) {
                Some(rejects) => {
                    self.ledger.mark_different(
                        rejects.entry,
                        "nothing listens at addresses where all handshakes are rejected",
                    );
                    self.report_rejecting(server.block.block_directives());
                }
                None => self.report_skipped(server.block.block_directives()),
            }
        }
    }

    /// Reports `merge_slashes` of servers that share addresses, and returns whether sites without addresses
    /// of their own merge slashes: they do if the default server of any address does.
    fn must_merge_slashes(&self, all: &[&NginxServer<'d>]) -> bool {
        let merges =
            all.iter().any(|server| server.addresses.iter().any(|address| merges_at(all, server, address)));
        let is_by_address = address_selects_server(all);
        for server in all {
            let is_own = |address: &ListenAddress| {
                if is_by_address {
                    merges_at(all, server, address) == merges_slashes(server)
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
        own.iter().for_each(|(_, server)| self.report_rejected_handshakes(server));
        if address_selects_server(all) {
            return self.build_sites_by_address(own);
        }
        let is_kept = |(_, server): &&(usize, &NginxServer<'d>)| {
            let is_redundant = is_redundant_redirect(server, all);
            if is_redundant {
                self.report_redundant_redirect(server);
            }
            !is_redundant && !is_only_rejecting(server)
        };
        let kept: Vec<(usize, &NginxServer<'d>)> = own.iter().filter(is_kept).copied().collect();
        let kept_servers: Vec<&NginxServer<'d>> = kept.iter().map(|(_, server)| *server).collect();
        let default = default_server(&kept_servers).filter(|_| !rejects_unknown_hosts(all));
        let has_tls = all.iter().any(|server| server.has_tls_address());
        // Of two servers with the same host, the one that only redirects to the other is dropped.
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&at| kept_servers[at].any_https_redirect().is_some());
        let mut sites: Vec<ServerSite> = Vec::new();
        let mut taken: Vec<String> = Vec::new();
        let mut by_expression = self.expression_routes(&kept_servers, default, None);
        for at in order {
            let (place, server) = kept[at];
            let mut site = SiteDraft::default();
            let is_default = Some(at) == default;
            let contested = if is_default { contested_hosts(server, &kept_servers) } else { Vec::new() };
            let at = (server, server.addresses.as_slice());
            if let Some(site) = self.build_contested_site(at, has_tls, contested, &taken) {
                sites.push(ServerSite { server: place, site, addresses: None });
            }
            if !self.write_hosts(server, is_default, &mut taken, &mut site) {
                continue;
            }
            let own = if is_default { std::mem::take(&mut by_expression) } else { Vec::new() };
            self.write_site((server, &server.addresses), has_tls, own, &mut site);
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
        at: (&NginxServer<'d>, &[ListenAddress]),
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
        self.write_site(at, has_tls, Vec::new(), &mut site);
        Some(site)
    }

    /// Writes the site of a server for some of its addresses; `first` are routes that precede its own.
    fn write_site(
        &self,
        (server, addresses): (&NginxServer<'d>, &[ListenAddress]),
        has_tls: bool,
        first: Vec<TomlSection>,
        site: &mut SiteDraft,
    ) {
        let speaks_tls = addresses.iter().any(|address| address.tls);
        self.write_tls(server, site);
        if has_tls && !speaks_tls {
            // Otherwise the site would get a certificate and redirect to `https`, because an address uses
            // TLS.
            site.section.set("tls", TomlItem::Flag(false));
        }
        let answers_plainly = speaks_tls
            && addresses.iter().any(|address| !address.tls)
            && matches!(site.section.get("tls"), Some(TomlItem::Table(_)));
        if answers_plainly {
            site.section.set("redirect_https", TomlItem::Flag(false));
        }
        self.translate_error_pages(&server.scope, &mut site.section);
        self.write_maintenance(&server.scope, &mut site.section);
        site.section.set("logs", TomlItem::List(self.translate_access_logs(&server.scope)));
        site.routes = first;
        site.routes.extend(self.server_routes(&server.scope, server.block.entry));
        self.add_manual_comments(server.scope.innermost(), &mut site.section);
        if let Some(address) = addresses.iter().find(|address| address.reach != AddressReach::All) {
            let listen = self.ledger.manual_comment(address.entry).unwrap_or_default();
            if address.reach == AddressReach::Some {
                site.close(listen);
            } else {
                let mut route = TomlSection::default();
                route.set("client", loopback_networks(address));
                route.close(listen);
                site.routes.insert(0, route);
            }
        }
    }

    /// Returns the sites of servers that share some but not all of their addresses: each site has its own
    /// addresses, and may be the default of some of them.
    fn build_sites_by_address(&self, own: &[(usize, &NginxServer<'d>)]) -> Vec<ServerSite> {
        let has_tls = own.iter().any(|(_, server)| server.has_tls_address());
        let mut sites: Vec<ServerSite> = Vec::new();
        let mut taken: Vec<(String, String)> = Vec::new();
        for (at, (place, server)) in own.iter().enumerate() {
            let all: Vec<&NginxServer<'d>> = own.iter().map(|(_, server)| *server).collect();
            for kind in address_kinds(&all, at, &taken) {
                let AddressKind { hosts, servers, addresses, .. } = kind;
                let mut site = SiteDraft::default();
                let mut first = Vec::new();
                let here = (*server, addresses.as_slice());
                match &hosts {
                    Some(hosts) if hosts.is_empty() => {
                        if !is_only_rejecting(server) {
                            self.ledger.mark_different(server.block.entry, NOT_DEFAULT_REMARK);
                        }
                        continue;
                    }
                    Some(hosts) => site
                        .section
                        .set("hosts", TomlItem::List(hosts.iter().cloned().map(TomlItem::Text).collect())),
                    None => {
                        let there: Vec<&NginxServer<'d>> = servers.iter().map(|other| all[*other]).collect();
                        let default = servers.iter().position(|other| *other == at);
                        first = self.expression_routes(&there, default, Some(&addresses[0].text));
                        let is_free =
                            |host: &String| !taken.contains(&(addresses[0].text.clone(), host.clone()));
                        let contested = contested_hosts(server, &there).into_iter().filter(is_free).collect();
                        let site = self.build_contested_site(here, has_tls, contested, &[]);
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
                self.write_site(here, has_tls, first, &mut site);
                sites.push(ServerSite { server: *place, site, addresses: Some(addresses) });
            }
        }
        sites
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

    fn report_redundant_redirect(&self, server: &NginxServer<'d>) {
        if let Some(redirect) = server.same_site_https_redirect() {
            self.ledger.mark_different(
                redirect.entry,
                "the site with `tls` redirects by itself (`redirect_https`), with 308 in place of 301",
            );
        }
        self.report_redundant(server.block.block_directives());
    }

    /// Reports `ssl_reject_handshake`. A server without another task gets no site.
    fn report_rejected_handshakes(&self, server: &NginxServer<'d>) {
        let rejects = server.scope.effective("ssl_reject_handshake");
        let Some(rejects) = rejects.filter(|_| server.rejects_handshakes() && server.has_tls_address())
        else {
            return;
        };
        if !server.expressions.is_empty() {
            self.ledger.mark_impossible(
                rejects.entry,
                "handshakes of hosts that an expression names have the certificate of the default site: their requests are refused (403)",
            );
        } else if server.hosts.is_empty() {
            self.ledger.mark_different(
                rejects.entry,
                "a host that no site has gets no certificate of its own, and 404 or 421",
            );
        } else {
            self.count_taken(rejects);
        }
        if is_only_rejecting(server) {
            self.report_rejecting(server.block.block_directives());
        }
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
                    "the default site answers for hosts that this server does not name",
                );
            } else if !self.ledger.is_marked(one.entry) {
                self.not_needed(one, "the site with `tls` redirects by itself; certificates are obtained without files (`tls = \"auto\"`)");
            }
            self.report_redundant(one.block_directives());
        }
    }
}

/// Remark on a server that only expressions name, at an address whose default server rejects handshakes.
const NO_DEFAULT_SITE_REMARK: &str = "handshakes of hosts that an expression names are rejected there: its routes would stand in the default site, and the default server rejects handshakes";

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

/// A site, the index of its server, and its addresses; `None` if it has those of the top level.
struct ServerSite {
    server: usize,
    site: SiteDraft,
    addresses: Option<Vec<ListenAddress>>,
}
