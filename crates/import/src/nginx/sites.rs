//! Servers as sites: which is the default, which only redirect to `https`, and what is listened on.

use super::server::{ListenAddress, NginxServer};
use super::tree::NginxDirective;
use super::work::Translation;
use crate::draft::{Draft, SiteDraft, TomlItem, TomlSection};

impl<'d> Translation<'d> {
    /// Writes `listen` and a site for each server.
    pub(crate) fn sites(&self, blocks: Vec<&'d NginxDirective>, draft: &mut Draft) {
        let servers: Vec<NginxServer<'d>> = blocks.into_iter().map(|block| self.server_of(block)).collect();
        let groups = groups_of(&servers);
        // Addresses of most servers stand at the top; the sites of others name their own.
        let size = |group: usize| groups.iter().filter(|other| **other == group).count();
        let main = groups.iter().copied().rev().max_by_key(|group| size(*group));
        let clear_http2 =
            servers.iter().any(|server| server.scope.one("http2").is_some_and(|one| one.first() == "on"));
        let mut sites: Vec<(usize, SiteDraft)> = Vec::new();
        for group in 0..servers.len() {
            let is_own = |at: &usize| groups[*at] == group;
            let own: Vec<(usize, &NginxServer<'d>)> =
                (0..servers.len()).filter(is_own).map(|at| (at, &servers[at])).collect();
            let all: Vec<&NginxServer<'d>> = own.iter().map(|(_, server)| *server).collect();
            let addresses = listened(all.iter().flat_map(|server| &server.addresses));
            if Some(group) == main {
                write_listen(&addresses, clear_http2, &mut draft.top);
            }
            for (at, mut site) in self.sites_of(&own, &all) {
                if Some(group) != main {
                    let texts = servers[at].addresses.iter().map(|address| address.text.as_str());
                    let texts: Vec<&str> = texts.collect();
                    let here = addresses.iter().filter(|address| texts.contains(&address.text.as_str()));
                    write_listen(&listened(here), clear_http2, &mut site.section);
                }
                sites.push((at, site));
            }
        }
        sites.sort_by_key(|(at, _)| *at);
        draft.sites.extend(sites.into_iter().map(|(_, site)| site));
    }

    /// The sites of servers that share addresses, with the places of these servers.
    fn sites_of(
        &self,
        own: &[(usize, &NginxServer<'d>)],
        all: &[&NginxServer<'d>],
    ) -> Vec<(usize, SiteDraft)> {
        let is_kept = |(_, server): &&(usize, &NginxServer<'d>)| {
            !self.is_merged(server, all) && !self.refuses_all(server)
        };
        let kept: Vec<(usize, &NginxServer<'d>)> = own.iter().filter(is_kept).copied().collect();
        let kept_servers: Vec<&NginxServer<'d>> = kept.iter().map(|(_, server)| *server).collect();
        let rejects_others = all.iter().any(|server| {
            rejects_handshakes(server) && server.addresses.iter().any(|address| address.is_default)
        });
        let default = default_of(&kept_servers).filter(|_| !rejects_others);
        let has_tls = all.iter().any(|server| server.speaks_tls());
        // Of two servers with the same host, the one that only redirects to the other gives way.
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&at| kept_servers[at].any_https_redirect().is_some());
        let mut sites: Vec<(usize, SiteDraft)> = Vec::new();
        let mut taken: Vec<String> = Vec::new();
        for at in order {
            let (place, server) = kept[at];
            let mut site = SiteDraft::default();
            let is_default = Some(at) == default;
            if !self.hosts_of(server, is_default, &mut taken, &mut site) {
                continue;
            }
            self.tls(server, &mut site);
            if has_tls && !server.speaks_tls() {
                // Else it would get a certificate, and redirect to `https`, because an address speaks TLS.
                site.section.set("tls", TomlItem::Flag(false));
            }
            let answers_plainly =
                server.speaks_tls() && server.speaks_plainly() && site.section.get("tls").is_some();
            if answers_plainly {
                site.section.set("redirect_https", TomlItem::Flag(false));
            }
            self.error_pages(&server.scope, &mut site.section);
            self.maintenance(&server.scope, &mut site.section);
            site.section.set("logs", TomlItem::List(self.access_logs(&server.scope)));
            site.routes = self.locations(&server.scope);
            self.open_ends(server.scope.own(), &mut site.section);
            sites.push((place, site));
        }
        sites
    }

    /// Writes the hosts of a site; false where it can have none that another does not have.
    fn hosts_of(
        &self,
        server: &NginxServer<'d>,
        is_default: bool,
        taken: &mut Vec<String>,
        site: &mut SiteDraft,
    ) -> bool {
        if is_default {
            // Another server with one of them is never asked for it.
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
        let names = server.scope.own_one("server_name").unwrap_or(server.block);
        if let Some(redirect) = server.any_https_redirect().filter(|_| !twice.is_empty()) {
            self.ledger.differs(
                redirect.entry,
                format!(
                    "the site with `tls` redirects {} by itself, to the same host, with 308",
                    twice.join(", ")
                ),
            );
            if free.is_empty() {
                self.merged(server.block.inner());
                return false;
            }
        } else if !twice.is_empty() {
            self.ledger.impossible(
                names.entry,
                format!("another server has {} at another address: write a `[[site]]` with `listen` for each of them", twice.join(", ")),
            );
        }
        if free.is_empty() {
            if twice.is_empty() {
                self.ledger.impossible(
                    server.block.entry,
                    "it names no host that no other site has: requests for other hosts at its addresses are for another site; write a `[[site]]` with `listen` for it",
                );
            }
            self.skipped(server.block.inner());
            return false;
        }
        if server.addresses.iter().any(|address| address.is_default) {
            self.ledger.differs(
                server.block.entry,
                "another server is the default for all addresses; this one answers for its hosts alone",
            );
        }
        site.section.set("hosts", TomlItem::List(free.iter().cloned().map(TomlItem::Text).collect()));
        taken.extend(free);
        true
    }

    fn skipped(&self, block: &[NginxDirective]) {
        for one in block {
            self.ledger.impossible(one.entry, "it belongs to a server without a site");
            self.skipped(one.inner());
        }
    }

    /// Whether a server only redirects to `https`, which the sites that speak TLS do by themselves.
    fn is_merged(&self, server: &NginxServer<'d>, all: &[&NginxServer<'d>]) -> bool {
        let Some(redirect) = server.https_redirect() else { return false };
        let covers = |host: &String| all.iter().any(|other| other.speaks_tls() && other.hosts.contains(host));
        if server.hosts.is_empty() || !server.hosts.iter().all(covers) {
            return false;
        }
        self.ledger.differs(
            redirect.entry,
            "the site with `tls` redirects by itself (`redirect_https`), with 308 in place of 301",
        );
        self.merged(server.block.inner());
        true
    }

    /// Whether a server ends the handshakes of all hosts that no other has: without a site for them it is the same.
    fn refuses_all(&self, server: &NginxServer<'d>) -> bool {
        let rejects = server.scope.own_one("ssl_reject_handshake");
        let Some(rejects) = rejects.filter(|_| rejects_handshakes(server)) else { return false };
        self.ledger
            .differs(rejects.entry, "a host that no site has gets no certificate of its own, and 404 or 421");
        self.refused(server.block.inner());
        true
    }

    fn refused(&self, block: &[NginxDirective]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.ledger.needless(one.entry, "no handshake of its server succeeds");
            }
            self.refused(one.inner());
        }
    }

    fn merged(&self, block: &[NginxDirective]) {
        for one in block {
            if one.name == "return" && matches!(one.first(), "301" | "302" | "307" | "308") {
                self.ledger.differs(
                    one.entry,
                    "the site with `tls` redirects by itself (`redirect_https`), with 308, to the same host",
                );
            } else if one.name == "return" {
                self.ledger
                    .differs(one.entry, "hosts that this server does not name are for the default site");
            } else if !self.ledger.is_marked(one.entry) {
                self.ledger.needless(one.entry, "the site with `tls` redirects by itself; certificates are obtained without files (`tls = \"auto\"`)");
            }
            self.merged(one.inner());
        }
    }
}

/// The group of each server: servers that share an address, and those that only redirect to others which speak TLS. Each group is like a
/// server of its own to clients.
fn groups_of(servers: &[NginxServer<'_>]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..servers.len()).collect();
    let mut unite = |is_one: &dyn Fn(&[usize], usize, usize) -> bool| {
        for at in 0..servers.len() {
            for before in 0..at {
                if groups[at] != groups[before] && is_one(&groups, at, before) {
                    let (from, to) = (groups[at].max(groups[before]), groups[at].min(groups[before]));
                    groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
                }
            }
        }
    };
    unite(&|_, at, before| share_address(&servers[at], &servers[before]));
    unite(&|groups, at, before| {
        // All of the group only redirect: `redirect_https` of the others does the same.
        let only_redirects = |group: usize| {
            let own = servers.iter().zip(groups).filter(|(_, other)| **other == group);
            own.into_iter().all(|(server, _)| server.any_https_redirect().is_some())
        };
        let redirects_to = |from: usize, to: usize| {
            let (from, to, group) = (&servers[from], &servers[to], groups[from]);
            to.speaks_tls()
                && only_redirects(group)
                && (from.hosts.is_empty() || to.hosts.iter().any(|host| from.hosts.contains(host)))
        };
        redirects_to(at, before) || redirects_to(before, at)
    });
    groups
}

fn share_address(one: &NginxServer<'_>, other: &NginxServer<'_>) -> bool {
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

/// Whether no handshake of a server succeeds.
fn rejects_handshakes(server: &NginxServer<'_>) -> bool {
    let rejects = server.scope.own_one("ssl_reject_handshake").is_some_and(|one| one.first() == "on");
    rejects && !server.speaks_plainly()
}

/// Each address once; IPv4 and IPv6 together are every address.
fn listened<'a>(all: impl Iterator<Item = &'a ListenAddress>) -> Vec<ListenAddress> {
    let mut addresses: Vec<ListenAddress> = Vec::new();
    for address in all {
        match addresses.iter_mut().find(|known| known.text == address.text) {
            Some(known) => {
                known.tls |= address.tls;
                known.proxy_protocol |= address.proxy_protocol;
            }
            None => addresses.push(address.clone()),
        }
    }
    addresses
}

fn write_listen(addresses: &[ListenAddress], clear_http2: bool, section: &mut TomlSection) {
    let mut both: Vec<ListenAddress> = Vec::new();
    for address in addresses {
        let is_same_kind = |other: &ListenAddress, text: &str| {
            other.text == text && other.tls == address.tls && other.proxy_protocol == address.proxy_protocol
        };
        let has = |text: String| addresses.iter().any(|other| is_same_kind(other, &text));
        let ports = (address.text.strip_prefix("0.0.0.0:"), address.text.strip_prefix("[::]:"));
        match ports {
            (Some(port), _) if has(format!("[::]:{port}")) => {
                both.push(ListenAddress { text: format!(":{port}"), ..address.clone() });
            }
            (_, Some(port)) if has(format!("0.0.0.0:{port}")) => {}
            _ => both.push(address.clone()),
        }
    }
    let mut items: Vec<TomlItem> = both.iter().map(|address| address_item(address, clear_http2)).collect();
    match items.len() {
        0 => {}
        1 => section.set("listen", items.remove(0)),
        _ => section.set("listen", TomlItem::List(items)),
    }
}

fn address_item(address: &ListenAddress, clear_http2: bool) -> TomlItem {
    let by_port = address.text.ends_with(":443");
    let mut entries = vec![("address".to_owned(), TomlItem::text(address.text.clone()))];
    if address.tls != by_port {
        entries.push(("tls".to_owned(), TomlItem::Flag(address.tls)));
    }
    if address.proxy_protocol {
        let networks = ["0.0.0.0/0", "::/0"].map(TomlItem::text);
        entries.push(("proxy_protocol".to_owned(), TomlItem::List(networks.into())));
    }
    if clear_http2 && !address.tls {
        entries.push(("h2c".to_owned(), TomlItem::Flag(true)));
    }
    match entries.len() {
        1 => entries.remove(0).1,
        _ => TomlItem::Table(entries),
    }
}

/// The server that answers for all other hosts: the default of an address, at best one that names no host, and has TLS.
fn default_of(servers: &[&NginxServer<'_>]) -> Option<usize> {
    let is_default = |at: usize| {
        servers[at].addresses.iter().any(|address| {
            let same = |other: &&NginxServer<'_>| other.addresses.iter().any(|one| one.text == address.text);
            let flagged = servers
                .iter()
                .any(|other| other.addresses.iter().any(|one| one.text == address.text && one.is_default));
            match flagged {
                true => address.is_default,
                false => !servers[..at].iter().any(same),
            }
        })
    };
    let rank = |at: usize| {
        let server = servers[at];
        let flagged = server.addresses.iter().any(|address| address.is_default);
        (server.hosts.is_empty(), flagged, server.speaks_tls() && server.hosts.is_empty())
    };
    let mut best: Option<usize> = None;
    for at in (0..servers.len()).filter(|&at| is_default(at)) {
        if best.is_none_or(|before| rank(at) > rank(before)) {
            best = Some(at);
        }
    }
    best
}
