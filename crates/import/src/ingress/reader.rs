//! State of the Ingress importer: collected routes, sites and ports.

use crate::data::DataNode;
use crate::draft::TomlSection;
use crate::findings::ImportLedger;

/// Prefix of ingress-nginx's annotations.
pub(super) const ANNOTATION_PREFIX: &str = other_servers::INGRESS_PREFIX;

/// A route of a host, with the keys of its precedence.
pub(super) struct IngressRoute {
    pub(super) host: String,
    pub(super) is_exact: bool,
    pub(super) path_length: usize,
    /// The expression of the path; empty for a plain path.
    pub(super) expression: String,
    /// Kind and text of the path: of two Ingresses with the same one, the older one's counts.
    pub(super) place: String,
    /// Number of the Ingress.
    pub(super) ingress: usize,
    pub(super) section: TomlSection,
}

pub(super) struct IngressReader<'a> {
    pub(super) ledger: &'a ImportLedger,
    pub(super) routes: Vec<IngressRoute>,
    /// Directives of sites other than routes, by host.
    pub(super) sites: Vec<(String, TomlSection)>,
    /// Named ports of services: namespace, service, port name, number.
    pub(super) named_ports: Vec<(String, String, String, u64)>,
    /// Hosts whose routes are all closed, with the comment above them.
    pub(super) closed_hosts: Vec<(String, String)>,
    /// Hosts whose paths are expressions that ignore case.
    pub(super) expression_hosts: Vec<String>,
    /// Hosts and their paths of the type `Exact`.
    pub(super) exact_paths: Vec<(String, String)>,
    /// Further names of hosts.
    pub(super) aliases: Vec<(String, Vec<String>)>,
    /// Hosts that Ingresses before the one being read have.
    pub(super) known_hosts: Vec<String>,
    /// Comments above all sites, which are closed.
    pub(super) closed_all: Vec<String>,
    /// Whether Ingresses are read from the oldest to the newest.
    pub(super) is_by_age: bool,
    /// Number of the Ingress being read.
    pub(super) ingress: usize,
}

impl IngressReader<'_> {
    /// Adds the route of a path, unless an older Ingress has a route for it. Where the ages of two Ingresses are not known,
    /// the path is closed, unless both routes are equal.
    pub(super) fn add_route(&mut self, route: IngressRoute, path: &DataNode) {
        let ledger = self.ledger;
        let is_same = |known: &&mut IngressRoute| known.host == route.host && known.place == route.place;
        let Some(known) = self.routes.iter_mut().find(is_same) else {
            self.routes.push(route);
            return;
        };
        if self.is_by_age || known.ingress == route.ingress {
            path.mark_different(
                ledger,
                "an older Ingress, or an earlier rule, has this path: that one counts",
            );
        } else if known.section != route.section {
            let reason = "two Ingresses have this path, and the older one counts: the path is closed (403) until its route is written";
            let entry = path.get("path").or(Some(path)).and_then(|one| one.entry);
            entry.into_iter().for_each(|entry| ledger.mark_impossible(entry, reason));
            known.section.close(ledger.check_comment(path.line, reason));
        }
    }

    /// Returns the directives of a host other than routes.
    pub(super) fn site_section(&mut self, host: &str) -> &mut TomlSection {
        let at = match self.sites.iter().position(|(known, _)| known == host) {
            Some(at) => at,
            None => {
                self.sites.push((host.to_owned(), TomlSection::default()));
                self.sites.len() - 1
            }
        };
        &mut self.sites[at].1
    }
}
