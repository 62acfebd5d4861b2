//! Servers as sites: which is the default, which only redirect to `https`, and what is listened on.

use super::server::{Address, Server};
use super::tree::Directive;
use super::work::Translation;
use crate::draft::{Draft, Item, SiteDraft};

impl<'d> Translation<'d> {
    /// Writes `listen` and a site for each server.
    pub(crate) fn sites(&self, blocks: Vec<&'d Directive>, draft: &mut Draft) {
        let servers: Vec<Server<'d>> = blocks.into_iter().map(|block| self.server_of(block)).collect();
        self.listen(&servers, draft);
        let merged: Vec<bool> = servers.iter().map(|server| self.is_merged(server, &servers)).collect();
        let kept: Vec<&Server<'d>> =
            servers.iter().zip(&merged).filter(|(_, merged)| !**merged).map(|(s, _)| s).collect();
        let default = default_of(&kept);
        let mut taken: Vec<String> = Vec::new();
        for (at, server) in kept.iter().enumerate() {
            let mut site = SiteDraft::default();
            let is_default = Some(at) == default;
            if !self.hosts_of(server, is_default, &mut taken, &mut site) {
                continue;
            }
            self.tls(server, &mut site);
            let answers_plainly = server.speaks_plainly() && site.section.get("tls").is_some();
            if answers_plainly {
                site.section.set("redirect_https", Item::Flag(false));
            }
            self.error_pages(&server.scope, &mut site.section);
            site.routes = self.locations(&server.scope);
            draft.sites.push(site);
        }
    }

    /// Writes the hosts of a site; false where it can have none that another does not have.
    fn hosts_of(
        &self,
        server: &Server<'d>,
        is_default: bool,
        taken: &mut Vec<String>,
        site: &mut SiteDraft,
    ) -> bool {
        if is_default {
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
        if !twice.is_empty() {
            self.ledger.impossible(
                names.entry,
                format!("another server has {} at another address: each host has one site, so run a second Komainu for this one", twice.join(", ")),
            );
        }
        if free.is_empty() {
            if twice.is_empty() {
                self.ledger.impossible(
                    server.block.entry,
                    "it is the default of its address, or names no host that there can be; there is one default site for all addresses: run a second Komainu for it",
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
        site.section.set("hosts", Item::List(free.iter().cloned().map(Item::Text).collect()));
        taken.extend(free);
        true
    }

    fn skipped(&self, block: &[Directive]) {
        for one in block {
            self.ledger.impossible(one.entry, "it belongs to a server without a site");
            self.skipped(one.inner());
        }
    }

    /// Whether a server only redirects to `https`, which the sites that speak TLS do by themselves.
    fn is_merged(&self, server: &Server<'d>, all: &[Server<'d>]) -> bool {
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

    fn merged(&self, block: &[Directive]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.ledger.needless(one.entry, "the site with `tls` redirects by itself; certificates are obtained without files (`tls = \"auto\"`)");
            }
            self.merged(one.inner());
        }
    }

    fn listen(&self, servers: &[Server<'d>], draft: &mut Draft) {
        let mut addresses: Vec<Address> = Vec::new();
        for address in servers.iter().flat_map(|server| &server.addresses) {
            match addresses.iter_mut().find(|known| known.text == address.text) {
                Some(known) => {
                    known.tls |= address.tls;
                    known.proxy_protocol |= address.proxy_protocol;
                }
                None => addresses.push(address.clone()),
            }
        }
        // IPv4 and IPv6 together are every address.
        let mut both: Vec<Address> = Vec::new();
        for address in &addresses {
            let port = address.text.strip_prefix("0.0.0.0:");
            let pair = port.map(|port| format!("[::]:{port}"));
            let is_pair = |other: &Address| {
                Some(&other.text) == pair.as_ref()
                    && other.tls == address.tls
                    && other.proxy_protocol == address.proxy_protocol
            };
            let is_second = address.text.strip_prefix("[::]:").is_some_and(|port| {
                let first = format!("0.0.0.0:{port}");
                addresses.iter().any(|other| {
                    other.text == first
                        && other.tls == address.tls
                        && other.proxy_protocol == address.proxy_protocol
                })
            });
            match (addresses.iter().any(is_pair), is_second) {
                (true, _) => {
                    both.push(Address { text: format!(":{}", port.unwrap_or("80")), ..address.clone() })
                }
                (_, true) => {}
                _ => both.push(address.clone()),
            }
        }
        let clear_http2 =
            servers.iter().any(|server| server.scope.one("http2").is_some_and(|one| one.first() == "on"));
        let items: Vec<Item> = both.iter().map(|address| address_item(address, clear_http2)).collect();
        match items.len() {
            0 => {}
            1 => draft.top.set("listen", items.into_iter().next().unwrap_or(Item::Flag(false))),
            _ => draft.top.set("listen", Item::List(items)),
        }
    }
}

fn address_item(address: &Address, clear_http2: bool) -> Item {
    let by_port = address.text.ends_with(":443");
    let mut entries = vec![("address".to_owned(), Item::text(address.text.clone()))];
    if address.tls != by_port {
        entries.push(("tls".to_owned(), Item::Flag(address.tls)));
    }
    if address.proxy_protocol {
        let networks = ["0.0.0.0/0", "::/0"].map(Item::text);
        entries.push(("proxy_protocol".to_owned(), Item::List(networks.into())));
    }
    if clear_http2 && !address.tls {
        entries.push(("h2c".to_owned(), Item::Flag(true)));
    }
    match entries.len() {
        1 => entries.remove(0).1,
        _ => Item::Table(entries),
    }
}

/// The server that answers for all other hosts: one that says so, or the first.
fn default_of(servers: &[&Server<'_>]) -> Option<usize> {
    let says = |server: &&Server<'_>| server.addresses.iter().any(|address| address.is_default);
    let with_tls =
        servers.iter().position(|server| says(server) && server.speaks_tls() && server.hosts.is_empty());
    let any = servers.iter().position(says);
    // A server that redirects all to `https` does so for hosts that no site has.
    with_tls.or(any).or(if servers.is_empty() { None } else { Some(0) })
}
