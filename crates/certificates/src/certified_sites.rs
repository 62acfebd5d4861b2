//! The parts of a configuration that concern certificates.

use net::ConfiguredListener;
use net::tls::directives::{SiteTls, Tls};
use settings::joined_text::ConfigLine;
use shapes::host::HostPattern;

use crate::directives::Acme;

/// Settings of the certificates of a server.
#[derive(Clone, Debug)]
pub struct CertificateSettings<'c> {
    /// Settings of certificates that the server obtains.
    pub acme: &'c Acme,
    /// Settings of TLS for all sites.
    pub tls: &'c Tls,
    /// The sites, in their order.
    pub sites: Vec<CertifiedSite<'c>>,
    /// Addresses of all sites.
    pub listeners: Vec<&'c ConfiguredListener>,
}

/// A site that may have certificates.
#[derive(Clone, Copy, Debug)]
pub struct CertifiedSite<'c> {
    /// Hosts of the site; empty for the default site.
    pub hosts: &'c [HostPattern],
    /// `tls` of the site; `None` for a site without TLS.
    pub tls: Option<&'c SiteTls>,
    /// Line of the site in the configuration, for messages.
    pub line: Option<&'c ConfigLine>,
}

impl<'c> CertificateSettings<'c> {
    /// Sites whose certificates the server obtains.
    pub(crate) fn automatic_sites(&self) -> impl Iterator<Item = &CertifiedSite<'c>> {
        self.sites.iter().filter(|site| site.tls.is_some_and(SiteTls::is_automatic))
    }
}
