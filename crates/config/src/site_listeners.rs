//! The addresses of sites that have their own: which listeners there are, and that a host belongs to one site at each.

use crate::site::Site;
use net::{ConfiguredListener, Listen};
use settings::checker::{Checker, shorten};
use settings::node::{Node, NodeData};
use settings::report::TextSpan;
use std::collections::HashMap;
use std::sync::Arc;

/// An address that sites have and the top of the file has not.
pub(crate) struct SiteListener {
    pub(crate) listener: ConfiguredListener,
    /// Place where the settings are given, else of the first mention.
    pub(crate) span: TextSpan,
    has_settings: bool,
}

/// Returns the sites with their tables; none if some could not be read. The routes at the top of the file are
/// a site without a table.
fn sites_with_nodes<'a>(sites: &'a [Arc<Site>], node: &'a Node) -> Vec<(&'a Site, &'a Node)> {
    let nodes = node.items("site");
    let of_tables: Vec<&Site> = sites.iter().map(Arc::as_ref).filter(|site| site.line.is_some()).collect();
    if of_tables.len() == nodes.len() { of_tables.into_iter().zip(nodes).collect() } else { Vec::new() }
}

/// Returns the addresses of sites that are not in `top`, the addresses at the top of the file; each once.
pub(crate) fn site_listeners(
    top: &[ConfiguredListener],
    sites: &[Arc<Site>],
    node: &Node,
    check: &mut Checker,
) -> Vec<SiteListener> {
    let mut own: Vec<SiteListener> = Vec::new();
    for (site, table) in sites_with_nodes(sites, node) {
        let items = table.one_or_more("listen");
        if items.len() != site.listen.len() {
            continue;
        }
        for (index, (listener, item)) in site.listen.iter().zip(items).enumerate() {
            let address = &listener.address;
            if *address == Listen::default() {
                continue; // reported already: it could not be read
            }
            if let Some(first) = site.listen[..index].iter().position(|other| other.address == *address) {
                let title = format!("`listen` of a site has `{address}` twice");
                let finding = check.error(&item.span, title, "given again here");
                finding.related(items[first].span.clone(), "first given here");
                continue;
            }
            if top.iter().any(|other| other.address == *address) {
                report_misplaced_settings(address, item, check);
                continue;
            }
            if let Some(other) = top.iter().find(|other| other.address.overlaps(address)) {
                let other = &other.address;
                let title = format!("a site listens on `{address}` beside `{other}` of the server");
                let finding = check.error(&item.span, title, format!("taken by `{other}` already"));
                finding.help(match node.entry("listen") {
                    Some(_) => format!("write \"{other}\" here too, or other addresses in `listen` at the top of the file"),
                    None => format!("\"{other}\" is the default of `listen`: write `listen` at the top of the file, with other addresses"),
                });
                continue;
            }
            add_listener(&mut own, listener, item, check);
        }
    }
    own
}

/// Adds an address of a site to `own`; reports overlapping addresses and conflicting settings.
fn add_listener(
    own: &mut Vec<SiteListener>,
    listener: &ConfiguredListener,
    item: &Node,
    check: &mut Checker,
) {
    let address = &listener.address;
    let has_settings = address_settings(item).next().is_some();
    let Some(known) = own.iter_mut().find(|known| known.listener.address == *address) else {
        if let Some(other) = own.iter().find(|other| other.listener.address.overlaps(address)) {
            let title = format!("`listen` of sites has `{address}` beside `{}`", other.listener.address);
            let label = format!("taken by `{}` already", other.listener.address);
            let finding = check.error(&item.span, title, label);
            finding.related(other.span.clone(), "given here").help("write the same address in both sites");
            return;
        }
        own.push(SiteListener { listener: listener.clone(), span: item.span.clone(), has_settings });
        return;
    };
    match (has_settings, known.has_settings) {
        (false, _) => {}
        (true, false) => {
            *known = SiteListener { listener: listener.clone(), span: item.span.clone(), has_settings };
        }
        (true, true) if known.listener == *listener => {}
        (true, true) => {
            let title = format!("`{address}` has other settings at another site");
            let finding = check.error(&item.span, title, "one address has one set of settings");
            finding
                .related(known.span.clone(), "the others")
                .help(format!("write them once, and \"{address}\" alone at the other sites"));
        }
    }
}

/// Returns the settings in an address table, without the address.
fn address_settings(item: &Node) -> impl Iterator<Item = &settings::node::Entry> {
    let entries = match &item.data {
        NodeData::Table(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().filter(|entry| entry.key != "address")
}

fn report_misplaced_settings(address: &Listen, item: &Node, check: &mut Checker) {
    if let Some(entry) = address_settings(item).next() {
        let title = format!("`{}` of `{address}`, which the server listens on", entry.key);
        let finding = check.error(&entry.key_span, title, "the address has its settings elsewhere");
        finding.help("write it in `listen` at the top of the file");
    }
}

/// Place that claims a host.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum ClaimScope<'s> {
    /// At all addresses at the top of the file.
    AllTop,
    /// At one or more of them.
    SomeOfTop,
    At(&'s Listen),
}

/// At each address a host belongs to one site, and one site is the default.
pub(crate) fn check_hosts(top: &[ConfiguredListener], sites: &[Arc<Site>], node: &Node, check: &mut Checker) {
    let mut seen: HashMap<(String, ClaimScope<'_>), TextSpan> = HashMap::new();
    for (site, table) in sites_with_nodes(sites, node) {
        let items = table.one_or_more("hosts");
        let hosts: Vec<(String, &TextSpan)> = match table.entry("hosts") {
            None => vec![(String::new(), &table.span)],
            Some(_) => {
                site.hosts.iter().map(ToString::to_string).zip(items.iter().map(|item| &item.span)).collect()
            }
        };
        for (host, at) in hosts {
            if let Some((first, address)) = claim_host(&mut seen, &host, at, top, site) {
                let place = address.map_or_else(String::new, |address| format!(" at `{address}`"));
                let title = match host.as_str() {
                    "" => format!("duplicate default site{place}"),
                    host => format!("duplicate host `{}`{place}", shorten(host)),
                };
                let finding = check.error(at, title, "given again here");
                finding.related(first, "first given here");
                if address.is_some() {
                    finding.help("give both sites `listen`, with different addresses");
                } else if host.is_empty() {
                    finding.help(
                        "a site without `hosts` answers for all other hosts: name those of one of the two",
                    );
                } else {
                    finding.help("remove it from one site, or put the routes of both into one");
                }
            }
        }
    }
}

/// Claims a host for a site. If another site has it already, returns that site's place in the file, and the
/// common address.
fn claim_host<'s>(
    seen: &mut HashMap<(String, ClaimScope<'s>), TextSpan>,
    host: &str,
    at: &TextSpan,
    top: &[ConfiguredListener],
    site: &'s Site,
) -> Option<(TextSpan, Option<&'s Listen>)> {
    let found = |place: ClaimScope<'s>| seen.get(&(host.to_owned(), place)).cloned();
    let is_top = |address: &Listen| top.iter().any(|listener| listener.address == *address);
    if site.listen.is_empty() {
        if let Some(first) = found(ClaimScope::AllTop) {
            return Some((first, None));
        }
        if let Some(first) = found(ClaimScope::SomeOfTop) {
            return Some((first, find_claimed_address(seen, host, &is_top)));
        }
        seen.insert((host.to_owned(), ClaimScope::AllTop), at.clone());
        return None;
    }
    for ConfiguredListener { address, .. } in &site.listen {
        let first =
            found(ClaimScope::At(address)).or_else(|| found(ClaimScope::AllTop).filter(|_| is_top(address)));
        if let Some(first) = first {
            return Some((first, Some(address)));
        }
    }
    for ConfiguredListener { address, .. } in &site.listen {
        seen.insert((host.to_owned(), ClaimScope::At(address)), at.clone());
        if is_top(address) {
            seen.entry((host.to_owned(), ClaimScope::SomeOfTop)).or_insert_with(|| at.clone());
        }
    }
    None
}

/// Returns an address at the top of the file at which the host is claimed.
fn find_claimed_address<'s>(
    seen: &HashMap<(String, ClaimScope<'s>), TextSpan>,
    host: &str,
    is_top: &impl Fn(&Listen) -> bool,
) -> Option<&'s Listen> {
    seen.keys().find_map(|(other, place)| match place {
        ClaimScope::At(address) if other == host && is_top(address) => Some(*address),
        _ => None,
    })
}

/// Warns of addresses at the top of the file at which no site answers. `streams` are the addresses of
/// streams.
pub(crate) fn warn_of_unserved_addresses(
    top: &[ConfiguredListener],
    sites: &[Arc<Site>],
    streams: &[&Listen],
    node: &Node,
    check: &mut Checker,
) {
    if sites.is_empty() || check.report.error_count() > 0 {
        return;
    }
    for (listener, item) in top.iter().zip(node.one_or_more("listen")) {
        let address = &listener.address;
        if !sites.iter().any(|site| site.answers_at(address)) && !streams.contains(&address) {
            let title = format!("no site answers at `{address}`");
            let finding = check.warning(&item.span, title, "every site has `listen` with other addresses");
            finding.help("name it in `listen` of a site, or remove it");
        }
    }
}

impl Site {
    /// Whether it answers at an address at the top of the file.
    pub(crate) fn answers_at(&self, address: &Listen) -> bool {
        self.listen.is_empty() || self.listen.iter().any(|listener| listener.address == *address)
    }
}

#[cfg(test)]
mod tests;
