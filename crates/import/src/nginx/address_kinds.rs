//! Addresses that servers share: the behaviour of each server there, and whether its sites need addresses of their own.

use super::host_conflicts::default_server_at;
use super::server::{AddressReach, ListenAddress, NginxServer};

/// Whether a server only redirects to `https`, which sites with TLS do automatically.
pub(super) fn is_redundant_redirect(server: &NginxServer<'_>, all: &[&NginxServer<'_>]) -> bool {
    let covers =
        |host: &String| all.iter().any(|other| other.has_tls_address() && other.hosts.contains(host));
    server.same_site_https_redirect().is_some() && !server.hosts.is_empty() && server.hosts.iter().all(covers)
}

/// Whether a server does nothing but reject the handshakes of hosts that no other server names: Komainu does so where an
/// address has no default site.
pub(super) fn is_only_rejecting(server: &NginxServer<'_>) -> bool {
    server.rejects_handshakes()
        && !server.has_plain_address()
        && server.hosts.is_empty()
        && server.expressions.is_empty()
}

/// Whether handshakes of hosts that no server names are rejected at an address with TLS alone.
pub(super) fn rejects_unknown_hosts(all: &[&NginxServer<'_>]) -> bool {
    unknown_hosts_rejected(all).any(|rejects| rejects)
}

/// Returns for each address with TLS whether handshakes of hosts that no server names are rejected there.
pub(super) fn unknown_hosts_rejected(all: &[&NginxServer<'_>]) -> impl Iterator<Item = bool> {
    let rejects = |address: &ListenAddress| {
        let default = default_server_at(all, &address.text).map(|at| all[at]);
        default.is_some_and(|server| server.rejects_handshakes() && !server.has_plain_address())
    };
    all.iter().flat_map(|server| &server.addresses).filter(|address| address.tls).map(rejects)
}

/// Addresses at which a server answers in the same way.
pub(super) struct AddressKind {
    /// The hosts for which it answers; `None` where it is the default server.
    pub(super) hosts: Option<Vec<String>>,
    /// Whether slashes are merged.
    pub(super) merges: bool,
    /// Whether a server asks clients for certificates: a site that asks for them refuses requests without TLS (421).
    pub(super) asks: bool,
    pub(super) reach: AddressReach,
    /// The servers that listen there.
    pub(super) servers: Vec<usize>,
    pub(super) addresses: Vec<ListenAddress>,
}

/// Returns the addresses of a server, by what it does there. `taken` are addresses with hosts for which servers before it
/// answer.
pub(super) fn address_kinds(
    all: &[&NginxServer<'_>],
    at: usize,
    taken: &[(String, String)],
) -> Vec<AddressKind> {
    let server = all[at];
    let mut kinds: Vec<AddressKind> = Vec::new();
    for address in &server.addresses {
        let servers: Vec<usize> =
            (0..all.len()).filter(|other| all[*other].address(&address.text).is_some()).collect();
        // Where the default server rejects handshakes, there is no default site.
        let is_default = default_server_at(all, &address.text) == Some(at)
            && !(address.tls && server.rejects_handshakes());
        let hosts = (!is_default).then(|| {
            let is_free = |host: &&String| !taken.contains(&(address.text.clone(), (*host).clone()));
            server.hosts.iter().filter(is_free).cloned().collect::<Vec<String>>()
        });
        let merges = merges_at(all, server, address);
        let asks = address.tls && servers.iter().any(|other| all[*other].asks_for_certificates());
        let is_same = |known: &&mut AddressKind| {
            known.hosts == hosts
                && known.merges == merges
                && known.asks == asks
                && known.reach == address.reach
                && (hosts.is_some() || known.servers == servers)
        };
        match kinds.iter_mut().find(is_same) {
            Some(known) => known.addresses.push(address.clone()),
            None => kinds.push(AddressKind {
                hosts,
                merges,
                asks,
                reach: address.reach,
                servers,
                addresses: vec![address.clone()],
            }),
        }
    }
    kinds
}

/// Whether each address needs sites of its own, because servers that share some of their addresses would answer at others
/// too.
pub(super) fn address_selects_server(all: &[&NginxServer<'_>]) -> bool {
    let addresses = || all.iter().flat_map(|server| &server.addresses);
    let asks_at_some = |server: &&NginxServer<'_>| {
        server.asks_for_certificates() && server.has_tls_address() && server.has_plain_address()
    };
    let rejects_at_some = rejects_unknown_hosts(all) && unknown_hosts_rejected(all).any(|rejects| !rejects);
    let merges = |wanted: bool| {
        all.iter().any(|server| server.addresses.iter().any(|one| merges_at(all, server, one) == wanted))
    };
    let merges_at_some = merges(true) && merges(false);
    if addresses().any(|address| address.reach != AddressReach::All)
        || all.iter().any(asks_at_some)
        || rejects_at_some
        || merges_at_some
    {
        return true;
    }
    if !all.iter().any(|server| server.has_tls_address()) {
        let texts = |server: &NginxServer<'_>| {
            let mut texts: Vec<String> =
                server.addresses.iter().map(|address| address.text.clone()).collect();
            texts.sort();
            texts.dedup();
            texts
        };
        let defaults: Vec<Option<usize>> =
            addresses().map(|address| default_server_at(all, &address.text)).collect();
        return all.iter().any(|server| texts(server) != texts(all[0]))
            || defaults.iter().any(|default| *default != defaults[0]);
    }
    // Sites with TLS redirect from addresses without, and sites without TLS answer at no address with it.
    let is_kept =
        |server: &&&NginxServer<'_>| !is_redundant_redirect(server, all) && !is_only_rejecting(server);
    let kept: Vec<&NginxServer<'_>> = all.iter().filter(is_kept).copied().collect();
    let default = default_server(&kept).filter(|_| !rejects_unknown_hosts(all)).map(|at| kept[at]);
    let is_same = |one: &NginxServer<'_>, other: &NginxServer<'_>| one.block.entry == other.block.entry;
    addresses().any(|address| {
        let answers = |server: &NginxServer<'_>| match address.tls {
            true => server.has_tls_address() && !server.rejects_handshakes(),
            false => server.has_plain_address(),
        };
        let is_elsewhere = |server: &&NginxServer<'_>| {
            server.address(&address.text).is_none() && server.any_https_redirect().is_none()
        };
        let here = default_server_at(all, &address.text).map(|at| all[at]);
        let other_default = default.filter(|server| here.is_some_and(|here| !is_same(here, server)));
        // Only a default site of the address has its routes.
        let needs_default = |here: &NginxServer<'_>| {
            here.hosts.is_empty() && answers(here) && here.any_https_redirect().is_none()
        };
        let lacks_site = other_default.is_some() && here.is_some_and(needs_default);
        // Routes of names by expression stand in the default site, at all of its addresses.
        let is_in_default = |server: &NginxServer<'_>| {
            !server.expressions.is_empty() && default.is_some_and(|default| !is_same(server, default))
        };
        lacks_site
            || kept
                .iter()
                .filter(|server| is_elsewhere(server))
                .any(|server| answers(server) || is_in_default(server))
            || other_default.is_some_and(|server| answers(server) && server.any_https_redirect().is_none())
    })
}

/// Whether a server merges slashes.
pub(super) fn merges_slashes(server: &NginxServer<'_>) -> bool {
    server.scope.effective("merge_slashes").is_none_or(|one| one.first_arg() != "off")
}

/// Whether nginx merges slashes in requests for a server at an address. It parses the path before it knows the host, so
/// the default server of the address decides, except with TLS, where the name in the handshake selects the server.
pub(super) fn merges_at(
    servers: &[&NginxServer<'_>],
    server: &NginxServer<'_>,
    address: &ListenAddress,
) -> bool {
    let default = default_server_at(servers, &address.text).filter(|_| !address.tls);
    merges_slashes(default.map_or(server, |at| servers[at]))
}

/// Returns the server for all other hosts: the default of an address, preferably one that names no host and
/// has TLS.
pub(super) fn default_server(servers: &[&NginxServer<'_>]) -> Option<usize> {
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
