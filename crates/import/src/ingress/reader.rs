//! State of the Ingress importer: collected routes, sites and ports.

use crate::draft::TomlSection;
use crate::findings::ImportLedger;

/// Prefix of ingress-nginx's annotations.
pub(super) const ANNOTATION_PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// A route of a host, with the keys of its precedence.
pub(super) struct IngressRoute {
    pub(super) host: String,
    pub(super) is_exact: bool,
    pub(super) path_length: usize,
    /// The expression of the path; empty for a plain path.
    pub(super) expression: String,
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
}

impl IngressReader<'_> {
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
