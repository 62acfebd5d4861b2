//! What a new configuration changes, so that it is applied to that alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use net::tls::directives::CertificateSource;
use proxy::options::ProxyOptions;

/// Contents of the files that a configuration of a cluster names.
pub type ClusterFiles = BTreeMap<PathBuf, Vec<u8>>;

/// A change of the configuration in force.
pub enum ClusterChange {
    /// A new configuration, whose sites, groups and base are those of the one before where they are the same ([`Arc`]).
    Whole(Box<Config>, Arc<ClusterFiles>),
    /// Servers of groups, by name: no router changes.
    Servers(Vec<(String, Arc<ProxyOptions>)>),
    /// Certificates and keys of sites: no router changes.
    Certificates(Arc<ClusterFiles>),
}

/// Returns what changes from one configuration of a [`crate::config_reader::ConfigReader`] to a later one, with their files;
/// `None` if nothing does.
#[must_use]
pub fn change(
    before: (&Config, &Arc<ClusterFiles>),
    after: (&Config, &Arc<ClusterFiles>),
) -> Option<ClusterChange> {
    let whole = || Some(ClusterChange::Whole(Box::new(after.0.clone()), after.1.clone()));
    let Some(groups) = changed_servers(before.0, after.0) else { return whole() };
    let are_same = Arc::ptr_eq(before.1, after.1) || before.1 == after.1;
    match (groups.is_empty(), are_same) {
        (true, true) => None,
        (false, true) => Some(ClusterChange::Servers(groups)),
        (true, false) if are_certificates(&changed_files(before.1, after.1), after.0) => {
            Some(ClusterChange::Certificates(after.1.clone()))
        }
        _ => whole(),
    }
}

/// Returns the groups that have other servers; `None` if more than that differs.
fn changed_servers(before: &Config, after: &Config) -> Option<Vec<(String, Arc<ProxyOptions>)>> {
    let has_same_sites = before.sites.len() == after.sites.len()
        && before.sites.iter().zip(&after.sites).all(|(one, other)| Arc::ptr_eq(one, other));
    let is_same = after.has_base_of(before) && has_same_sites && before.streams == after.streams;
    if !is_same || before.upstreams.len() != after.upstreams.len() {
        return None;
    }
    let mut changed = Vec::new();
    for ((name, known), (name_after, group)) in before.upstreams.iter().zip(&after.upstreams) {
        if name != name_after {
            return None;
        }
        if !Arc::ptr_eq(known, group) {
            if !has_other_servers_alone(known, group) {
                return None;
            }
            changed.push((name.clone(), group.clone()));
        }
    }
    Some(changed)
}

fn has_other_servers_alone(one: &ProxyOptions, other: &ProxyOptions) -> bool {
    let without = |group: &ProxyOptions| ProxyOptions { to: Vec::new(), ..group.clone() };
    let Some(first) = one.to.first() else { return false };
    let protocol = |url: &proxy::options::Origin| (url.is_tls(), url.is_h2c(), url.is_h3());
    let is_spoken_to_alike = one
        .to
        .iter()
        .chain(&other.to)
        .all(|server| server.tls == first.tls && protocol(&server.url) == protocol(&first.url));
    is_spoken_to_alike && without(one) == without(other)
}

/// Paths whose content differs, or that only one of the two has.
fn changed_files<'f>(before: &'f ClusterFiles, after: &'f ClusterFiles) -> BTreeSet<&'f PathBuf> {
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    before.keys().chain(after.keys()).filter(differs).collect()
}

/// Whether nothing reads these files but sites, as their certificates and keys.
fn are_certificates(changed: &BTreeSet<&PathBuf>, config: &Config) -> bool {
    let mut of_sites: BTreeSet<&PathBuf> = BTreeSet::new();
    for tls in config.sites.iter().filter_map(|site| site.tls.as_ref()) {
        if let CertificateSource::Files(paths) = &tls.certificate {
            of_sites.extend(paths.iter().chain(&tls.key));
        }
    }
    let of_groups = config.upstreams.iter().flat_map(|(_, group)| {
        let of_servers = group.to.iter().filter_map(|server| server.tls.as_ref());
        let tables = of_servers.chain([&group.tls]);
        tables.flat_map(|tls| [&tls.certificate, &tls.key, &tls.ca]).flatten()
    });
    let of_streams = config.streams.iter().filter_map(|stream| stream.tls.as_ref()).flat_map(|tls| {
        let paths = match &tls.certificate {
            CertificateSource::Files(paths) => paths.as_slice(),
            CertificateSource::Auto => &[],
        };
        paths.iter().chain(&tls.key)
    });
    changed.is_subset(&of_sites) && !of_groups.chain(of_streams).any(|path| changed.contains(path))
}
