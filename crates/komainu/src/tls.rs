//! TLS with clients: the certificates and keys that the configuration names, read and checked.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use config::matcher::Routes;
use config::{CertificateSource, ClientTls, Config, SiteTls, TlsVersion};
use net::{
    CertificateStore, ClientCertificates, ServerCertificate, TicketKeys, TlsAcceptor, TlsOptions, TlsSite,
};

use crate::config_files::ConfigFiles;

/// What a configuration says about TLS with clients, with its files read.
#[derive(Debug)]
pub(crate) struct TlsPlan {
    options: TlsOptions,
    /// By site; `None` for those that are not reached through TLS.
    sites: Vec<Option<TlsSite>>,
    /// Keys of tickets for configurations that name none. A reload keeps them.
    own_keys: TicketKeys,
}

impl TlsPlan {
    /// Reads what a configuration names, which may follow another one.
    ///
    /// # Errors
    /// A file that cannot be read or is not valid, with the site that names it.
    pub(crate) fn new(
        config: &Config,
        before: Option<&TlsPlan>,
        files: &ConfigFiles,
    ) -> io::Result<Option<TlsPlan>> {
        if config.sites.iter().all(|site| site.tls.is_none()) {
            return Ok(None);
        }
        let own_keys = before.map_or_else(TicketKeys::own, |before| before.own_keys.clone());
        let tickets = ticket_keys(&config.tls, &own_keys, files)
            .map_err(|error| io::Error::new(error.kind(), format!("`tls.ticket_keys`: {error}")))?;
        let options =
            TlsOptions { tls13_only: config.tls.min == TlsVersion::Tls13, tickets, ..TlsOptions::default() };
        let site = |site: &config::Site| {
            let read = site.tls.as_ref().map(|tls| read_site(tls, files)).transpose();
            let place =
                if site.line > 0 { format!(" (the site in line {})", site.line) } else { String::new() };
            read.map_err(|error| io::Error::new(error.kind(), format!("`tls`{place}: {error}")))
        };
        let sites = config.sites.iter().map(site).collect::<io::Result<Vec<_>>>()?;
        let plan = TlsPlan { options, sites, own_keys };
        // What is wrong with authorities and revocation lists shows here.
        TlsPlan::put_in_force(Some(&plan), config, &TlsAcceptor::new(CertificateStore::new()))?;
        Ok(Some(plan))
    }

    /// Puts a plan and its configuration in force; without a plan, TLS is for no site.
    ///
    /// # Errors
    /// Authorities or revocation lists that are not valid.
    pub(crate) fn put_in_force(
        plan: Option<&TlsPlan>,
        config: &Config,
        acceptor: &TlsAcceptor,
    ) -> io::Result<()> {
        let (options, sites) =
            plan.map(|plan| (plan.options.clone(), plan.sites.clone())).unwrap_or_default();
        acceptor.replace(&options, finder(config), sites).map_err(invalid)
    }

    /// What a site demands of clients' certificates: the number that its connections carry, 0 for nothing.
    pub(crate) fn policy(&self, site: usize) -> u64 {
        let site = self.sites.get(site).and_then(Option::as_ref);
        site.and_then(|site| site.client.as_ref()).map_or(0, ClientCertificates::policy)
    }
}

/// Finds the site of a host as the router does.
fn finder(config: &Config) -> impl Fn(&str) -> Option<usize> + Send + Sync + 'static {
    let routes = Routes::compile(&config.sites);
    move |host| match host.parse::<Ipv6Addr>() {
        Ok(address) => routes.site(format!("[{address}]").as_bytes()),
        Err(_) => routes.site(host.as_bytes()),
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn ticket_keys(tls: &config::Tls, own: &TicketKeys, files: &ConfigFiles) -> io::Result<Option<TicketKeys>> {
    if !tls.tickets {
        return Ok(None);
    }
    if tls.ticket_keys.is_empty() {
        return Ok(Some(own.clone()));
    }
    let secrets = tls.ticket_keys.iter().map(|path| files.read(path)).collect::<io::Result<_>>()?;
    TicketKeys::given(secrets).map(Some).map_err(invalid)
}

fn read_site(tls: &SiteTls, files: &ConfigFiles) -> io::Result<TlsSite> {
    let client = tls.client.as_ref().map(|client| read_client(client, files)).transpose()?;
    let CertificateSource::Files(paths) = &tls.certificate else {
        return Ok(TlsSite { automatic: true, client, ..TlsSite::default() });
    };
    let mut certificates = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match tls.key.get(index) {
            None if files.is_folder(path) => certificates.extend(read_folder(path, files)?),
            key => {
                let chain = files.read(path)?;
                let key_path = key.unwrap_or(path);
                let key = if key.is_some() { files.read(key_path)? } else { chain.clone() };
                let certificate = ServerCertificate::from_pem(&chain, &key).map_err(|error| {
                    let at = if error.contains("private key") { key_path } else { path };
                    invalid(format!("{}: {error}", at.display()))
                })?;
                certificates.push(certificate);
            }
        }
    }
    Ok(TlsSite { certificates, client, ..TlsSite::default() })
}

fn read_folder(folder: &Path, files: &ConfigFiles) -> io::Result<Vec<ServerCertificate>> {
    let is_pem = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("pem" | "crt" | "cer" | "key"))
    };
    let paths = files.list(folder)?.into_iter().filter(is_pem);
    let read = |path: PathBuf| files.read(&path).map(|bytes| (path, bytes));
    let contents = paths.map(read).collect::<io::Result<BTreeMap<_, _>>>()?;
    ServerCertificate::from_folder(folder, &contents).map_err(invalid)
}

fn read_client(client: &ClientTls, files: &ConfigFiles) -> io::Result<ClientCertificates> {
    let mut authorities_pem = Vec::new();
    for path in &client.ca {
        authorities_pem.extend(files.read(path)?);
        // A file need not end with a line.
        authorities_pem.push(b'\n');
    }
    let revoked_pem = client.crl.iter().map(|path| files.read(path)).collect::<io::Result<_>>()?;
    Ok(ClientCertificates { authorities_pem, revoked_pem, required: client.required })
}
