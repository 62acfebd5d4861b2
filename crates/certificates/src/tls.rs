//! TLS with clients: reads and checks the certificates and keys that the configuration names.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::StapleOwner;
use crate::certified_sites::{CertificateSettings, CertifiedSite};
use failure::{Failure, IoFailure};
use logging::access::rfc3339;
use logging::notice::ErrorLog;
use net::tls::directives::{CertificateSource, ClientTls, SiteTls, Tls};
use net::{
    CertificateFault, CertificateStore, ClientCertificates, ServerCertificate, TicketKeys, TlsAcceptor,
    TlsOptions, TlsSite,
};
use process::config_files::ConfigFiles;
use reload::KeptState;
use settings::joined_text::add_config_place;
use shapes::host::HostPattern;

use crate::staples::{Staples, must_staple_problem};

/// TLS settings of a configuration, with the contents of its files.
#[derive(Debug)]
pub struct TlsPlan {
    options: TlsOptions,
    /// Settings by site; `None` for sites without TLS.
    sites: Vec<Option<TlsSite>>,
    /// Warnings about certificates in files that clients will reject.
    warnings: Vec<String>,
    /// Certificates in files, in the order of sites.
    files: Vec<FileCertificate>,
}

impl TlsPlan {
    /// Reads the files of a configuration. Ticket keys of the server's own are kept.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, also one of a setting that no site uses; the message names the site.
    pub fn new(
        settings: &CertificateSettings<'_>,
        kept: &mut KeptState,
        files: &ConfigFiles,
    ) -> io::Result<Option<TlsPlan>> {
        let shared_keys =
            read_ticket_keys(settings.tls, files).map_err(|error| error.attempting("`tls.ticket_keys`"))?;
        if settings.sites.iter().all(|site| site.tls.is_none()) {
            return Ok(None);
        }
        let own_keys = kept.share((), TicketKeys::random);
        let tickets = settings.tls.tickets.then(|| shared_keys.unwrap_or(own_keys));
        let options = TlsOptions { min: settings.tls.min, tickets, ..TlsOptions::default() };
        let now_unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut warnings = Vec::new();
        let mut all = Vec::new();
        let mut known = KnownCertificates::default();
        let mut parse = |chain: &[u8], key: &[u8]| {
            // Parsing takes a millisecond, and there may be thousands that have not changed.
            let pair = PemPair(chain.to_vec(), key.to_vec());
            kept.try_share(pair, || ServerCertificate::from_pem(chain, key))
        };
        let site = |site: &CertifiedSite<'_>| {
            let read = site.tls.map(|tls| read_site(tls, files, &mut known, &mut parse)).transpose();
            let place = site.line.map_or(String::new(), |line| format!(" (the site in {line})"));
            let read = read.map_err(|error| add_config_place("tls", "site", site.line, error))?;
            let found =
                read.iter().flat_map(|(_, files)| certificate_warnings(site.hosts, files, now_unix_s));
            warnings.extend(found.map(|text| format!("`tls`{place}: {text}")));
            Ok(read.map(|(site, files)| {
                all.extend(files);
                site
            }))
        };
        let sites = settings.sites.iter().map(site).collect::<io::Result<Vec<_>>>()?;
        // Sites that inherit `tls` from one `default` give the same warnings for the same files.
        warnings.dedup();
        all.dedup_by(|one, other| one.0 == other.0 && one.1.info() == other.1.info());
        let plan = TlsPlan { options, sites, warnings, files: all };
        // Validates authorities and revocation lists.
        TlsPlan::activate(Some(&plan), |_, _| None, None, &TlsAcceptor::new(CertificateStore::new()))?;
        Ok(Some(plan))
    }

    /// Applies a plan; without one, no site has TLS. `find` returns the site of a name or IP address at a
    /// listener; `more` are the settings of another site than those of the configuration, with its index.
    ///
    /// # Errors
    /// Authorities or revocation lists are invalid.
    pub fn activate(
        plan: Option<&TlsPlan>,
        find: impl Fn(&str, u64) -> Option<usize> + Send + Sync + 'static,
        more: Option<(usize, TlsSite)>,
        acceptor: &TlsAcceptor,
    ) -> io::Result<()> {
        let (options, mut sites) =
            plan.map(|plan| (plan.options.clone(), plan.sites.clone())).unwrap_or_default();
        if let Some((index, site)) = more {
            sites.resize(index, None);
            sites.push(Some(site));
        }
        acceptor.replace(&options, find, sites).map_err(invalid)
    }

    /// Keeps OCSP responses for the certificates in files that name a responder.
    pub fn watch_staples(plan: Option<&TlsPlan>, staples: &Staples, log: &ErrorLog) {
        let files = plan.map(TlsPlan::files).unwrap_or_default();
        let named = files.iter().map(|(path, certificate)| (path.display().to_string(), certificate.clone()));
        staples.watch(StapleOwner::Files, &named.collect::<Vec<_>>(), log);
    }

    /// Warnings about certificates in files that clients will reject: expired ones, or those for other hosts.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Certificates in files, each with the file or directory that it was read from.
    pub fn files(&self) -> &[FileCertificate] {
        &self.files
    }

    /// Number of the client certificate policy of a site, as recorded for its connections; 0 without a
    /// policy.
    pub fn policy(&self, site: usize) -> u64 {
        let site = self.sites.get(site).and_then(Option::as_ref);
        site.and_then(|site| site.client.as_ref()).map_or(0, ClientCertificates::policy)
    }
}

/// Returns the acceptors of streams whose TLS is decrypted; `None` for the others. Application protocols are not negotiated. Ticket keys
/// of the server's own are kept.
///
/// # Errors
/// A file cannot be read or is invalid.
pub fn stream_acceptors<'c>(
    streams: impl Iterator<Item = (String, Option<&'c SiteTls>)>,
    tls: &Tls,
    kept: &mut KeptState,
    files: &ConfigFiles,
) -> io::Result<Vec<Option<TlsAcceptor>>> {
    let mut known = KnownCertificates::default();
    let mut acceptor = |(name, own): (String, Option<&SiteTls>)| {
        let Some(own) = own else { return Ok(None) };
        let place = || format!("`tls` of the stream {name}");
        let shared_keys =
            read_ticket_keys(tls, files).map_err(|error| error.attempting("`tls.ticket_keys`"))?;
        let own_keys = kept.share((), TicketKeys::random);
        let tickets = tls.tickets.then(|| shared_keys.unwrap_or(own_keys));
        let options = TlsOptions { min: tls.min, tickets, protocols: Vec::new() };
        let mut parse = |chain: &[u8], key: &[u8]| {
            let pair = PemPair(chain.to_vec(), key.to_vec());
            kept.try_share(pair, || ServerCertificate::from_pem(chain, key))
        };
        let read = read_site(own, files, &mut known, &mut parse);
        let (site, _) = read.map_err(|error| error.attempting(place()))?;
        let acceptor = TlsAcceptor::new(CertificateStore::new());
        let replaced = acceptor.replace(&options, |_, _| Some(0), vec![Some(site)]);
        replaced.map_err(|error| invalid(error).attempting(place()))?;
        Ok(Some(acceptor))
    };
    streams.map(&mut acceptor).collect()
}

fn invalid(error: impl Into<Failure>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.into())
}

/// Reads the keys that the configuration names, if any. Files that are no keys are an error even if no site needs them.
fn read_ticket_keys(tls: &Tls, files: &ConfigFiles) -> io::Result<Option<TicketKeys>> {
    if tls.ticket_keys.is_empty() {
        return Ok(None);
    }
    let secrets = tls.ticket_keys.iter().map(|path| files.read(path)).collect::<io::Result<_>>()?;
    TicketKeys::from_secrets(secrets).map(Some).map_err(invalid)
}

/// A certificate and the file or directory that it was read from.
pub type FileCertificate = (PathBuf, ServerCertificate);

/// Certificates by their chain and key files: thousands of sites may share the same ones.
type KnownCertificates = BTreeMap<(Vec<PathBuf>, Vec<PathBuf>), Vec<FileCertificate>>;

/// Returns the certificate of a chain and its key (PEM).
type ParseCertificate<'p> = &'p mut dyn FnMut(&[u8], &[u8]) -> Result<ServerCertificate, CertificateFault>;

/// A chain and its key (PEM), by which a certificate is taken over from the configuration before.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PemPair(Vec<u8>, Vec<u8>);

fn read_site(
    tls: &SiteTls,
    files: &ConfigFiles,
    known: &mut KnownCertificates,
    parse: ParseCertificate<'_>,
) -> io::Result<(TlsSite, Vec<FileCertificate>)> {
    let client = tls.client.as_ref().map(|client| read_client(client, files)).transpose()?;
    let CertificateSource::Files(paths) = &tls.certificate else {
        return Ok((TlsSite { uses_store: true, client, ..TlsSite::default() }, Vec::new()));
    };
    let found = match known.entry((paths.clone(), tls.key.clone())) {
        Entry::Occupied(found) => found.get().clone(),
        Entry::Vacant(place) => place.insert(read_certificates(paths, &tls.key, files, parse)?).clone(),
    };
    let certificates = found.iter().map(|(_, certificate)| certificate.clone()).collect();
    Ok((TlsSite { certificates, client, ..TlsSite::default() }, found))
}

/// Reads certificates with their keys from files and directories.
fn read_certificates(
    paths: &[PathBuf],
    keys: &[PathBuf],
    files: &ConfigFiles,
    parse: ParseCertificate<'_>,
) -> io::Result<Vec<FileCertificate>> {
    let mut found = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match keys.get(index) {
            None if files.is_folder(path) => {
                let all = read_folder(path, files)?;
                found.extend(all.into_iter().map(|certificate| (path.clone(), certificate)));
            }
            key => {
                let chain = files.read(path)?;
                let key_path = key.unwrap_or(path);
                let key = if key.is_some() { files.read(key_path)? } else { chain.clone() };
                let certificate = parse(&chain, &key);
                found.push((
                    path.clone(),
                    certificate.map_err(|fault| invalid(fault.in_files(path, key_path)).about(path))?,
                ));
            }
        }
    }
    Ok(found)
}

/// Reads the control listener's `tls`; also returns warnings about its certificates.
///
/// # Errors
/// A file cannot be read or is invalid.
pub fn read_control(tls: &SiteTls, files: &ConfigFiles) -> io::Result<(TlsSite, Vec<String>)> {
    let parse = &mut |chain: &[u8], key: &[u8]| ServerCertificate::from_pem(chain, key);
    let (site, found) = read_site(tls, files, &mut KnownCertificates::default(), parse)
        .map_err(|error| error.attempting("`control.tls`"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let doubts = certificate_warnings(&[], &found, now.map_or(0, |since| since.as_secs()));
    Ok((site, doubts.into_iter().map(|text| format!("`control.tls`: {text}")).collect()))
}

/// Problems for which clients of these hosts will reject the certificates.
fn certificate_warnings(hosts: &[HostPattern], files: &[FileCertificate], now_unix_s: u64) -> Vec<String> {
    let mut doubts = Vec::new();
    if files.is_empty() {
        return doubts;
    }
    let now_unix_s = i64::try_from(now_unix_s).unwrap_or(i64::MAX);
    let moment = |unix_s: i64| rfc3339(u64::try_from(unix_s).unwrap_or_default());
    for (path, certificate) in files {
        let info = certificate.info();
        doubts.extend(
            must_staple_problem(certificate)
                .map(|fault| format!("{}: the certificate of {} {fault}", path.display(), info.subject)),
        );
        doubts.extend(
            certificate
                .chain_fault()
                .map(|fault| format!("{}: the certificate of {} {fault}", path.display(), info.subject)),
        );
        let of = if info.names.is_empty() { info.subject.clone() } else { join_shortened(&info.names) };
        let fault = match (info.not_before_unix_s, info.not_after_unix_s) {
            (_, end) if end < now_unix_s => format!("has expired, on {}: renew it", moment(end)),
            (start, _) if start > now_unix_s => format!("is not valid before {}", moment(start)),
            _ if info.names.is_empty() => {
                "has no subjectAltName, and clients do not look at its CN: make one with DNS:NAME in that extension".into()
            }
            _ => continue,
        };
        doubts.push(format!("{}: the certificate of {of} {fault}", path.display()));
    }
    let names: Vec<String> = files.iter().flat_map(|(_, one)| one.info().names.clone()).collect();
    let is_covered = |host: &HostPattern| match host {
        HostPattern::Exact(host) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            files.iter().any(|(_, one)| one.info().is_for(host))
        }
        HostPattern::Subdomains(domain) => names.iter().any(|name| name.ends_with(domain.as_str())),
    };
    let others: Vec<String> =
        hosts.iter().filter(|host| !is_covered(host)).map(ToString::to_string).collect();
    if !others.is_empty() && !names.is_empty() {
        doubts.push(format!(
            "no certificate is for {}: {} is for {}",
            join_shortened(&others),
            join_shortened(&files.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>()),
            join_shortened(&names)
        ));
    }
    doubts
}

/// Joins names for a message, shortened because a directory may hold thousands.
fn join_shortened(all: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text += &format!(" and {} more", all.len() - SHOWN);
    }
    text
}

fn read_folder(folder: &Path, files: &ConfigFiles) -> io::Result<Vec<ServerCertificate>> {
    let is_pem = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("pem" | "crt" | "cer" | "key"))
    };
    let paths = files.list(folder)?.into_iter().filter(is_pem);
    let read = |path: PathBuf| files.read(&path).map(|bytes| (path, bytes));
    let contents = paths.map(read).collect::<io::Result<BTreeMap<_, _>>>()?;
    ServerCertificate::from_folder(folder, &contents).map_err(|text| invalid(text).about(folder))
}

fn read_client(client: &ClientTls, files: &ConfigFiles) -> io::Result<ClientCertificates> {
    let mut authorities_pem = Vec::new();
    for path in &client.ca {
        let pem = files.read(path)?;
        ClientCertificates::check_authority(&pem).map_err(|error| file_error("ca", path, &error))?;
        authorities_pem.extend(pem);
        // The last line of a file may lack its line feed.
        authorities_pem.push(b'\n');
    }
    let revoked = |path: &PathBuf| {
        let pem = files.read(path)?;
        let alone = ClientCertificates {
            authorities_pem: authorities_pem.clone(),
            revoked_pem: vec![pem.clone()],
            is_required: client.required,
            admits_unverified: client.unverified,
        };
        alone.check().map_err(|error| file_error("crl", path, &error))?;
        Ok(pem)
    };
    let revoked_pem = client.crl.iter().map(revoked).collect::<io::Result<_>>()?;
    Ok(ClientCertificates {
        authorities_pem,
        revoked_pem,
        is_required: client.required && !client.unverified,
        admits_unverified: client.unverified,
    })
}

/// Error about a file named by `client`.
fn file_error(directive: &str, path: &Path, error: &Failure) -> io::Error {
    invalid(format!("`client.{directive}`: {}: {error}", path.display())).about(path)
}
