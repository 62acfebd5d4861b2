//! What is collected of Ingresses.

use crate::draft::TomlSection;
use crate::findings::ImportLedger;

/// The start of the names of ingress-nginx's annotations.
pub(super) const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// A route of a host, with what decides its order.
pub(super) struct IngressRoute {
    pub(super) host: String,
    pub(super) is_exact: bool,
    pub(super) length: usize,
    pub(super) section: TomlSection,
}

pub(super) struct IngressReader<'a> {
    pub(super) ledger: &'a ImportLedger,
    pub(super) routes: Vec<IngressRoute>,
    /// What sites have beside their routes, by host.
    pub(super) sites: Vec<(String, TomlSection)>,
    /// Ports of services with names: namespace, service, port, number.
    pub(super) ports: Vec<(String, String, String, u64)>,
    /// Hosts all of whose routes are closed, with what stands above them.
    pub(super) closed: Vec<(String, String)>,
}

impl IngressReader<'_> {
    /// The directives of a host beside its routes.
    pub(super) fn site(&mut self, host: &str) -> &mut TomlSection {
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
