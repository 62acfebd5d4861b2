//! Managed certificates: translates their configuration for `control`, and installs the certificates it
//! obtains.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::certified_sites::CertificateSettings;
use crate::directives::{Acme, AcmeChallenge, AcmeDirectory, AcmeDns, DnsAddress};
use crate::{
    CertificateRenewer, CertificateSink, CertificateStatus, DnsRecords, DnsServer, HttpChallenges, Intervals,
    Issuer, Options, RenewerEnvironment, StapleOwner, Subject, TsigKey,
};
use cluster::ClusterStore;
use failure::{Failure, IoFailure};
use logging::notice::ErrorLog;
use net::{CertificateStore, ConfiguredListener, Listen, ServerCertificate, strip_byte_order_marks};
use process::config_files::ConfigFiles;
use process::link::SupervisorLink;
use rights::privilege::Identity;
use shapes::host::HostPattern;

use crate::staples::Staples;

/// State directory of a server that was started as root.
const SYSTEM_FOLDER: &str = "/var/lib/komainu";
/// Names of a default site with `tls = "auto"`: those of the local machine.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Installs certificates and challenges in the running server.
struct ServerSink {
    store: CertificateStore,
    staples: Staples,
    log: ErrorLog,
}

impl CertificateSink for ServerSink {
    fn install(&self, name: &str, pem: &str) -> Result<(), Failure> {
        let certificate = ServerCertificate::from_pem(pem.as_bytes(), pem.as_bytes())?;
        self.store.install(&[name], &certificate);
        self.staples.watch(StapleOwner::Name(name.to_owned()), &[(name.to_owned(), certificate)], &self.log);
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.store.remove(&[name]);
        self.staples.watch(StapleOwner::Name(name.to_owned()), &[], &self.log);
    }

    fn set_challenge(&self, server_name: &str, pem: &str) -> Result<(), Failure> {
        self.store.set_challenge(server_name, Some(ServerCertificate::of_challenge(pem.as_bytes())?));
        Ok(())
    }

    fn remove_challenge(&self, server_name: &str) {
        self.store.set_challenge(server_name, None);
    }

    fn info(&self, text: &str) {
        self.log.info(text);
    }

    fn warn(&self, text: &str) {
        self.log.warn(text);
    }

    fn error(&self, text: &str) {
        self.log.error(text);
    }
}

/// Obtains and renews certificates while the server runs.
pub struct RunningCertificates {
    renewer: CertificateRenewer,
    is_system: bool,
}

impl RunningCertificates {
    /// Installs the stored certificates and starts the thread; `None` if no site has `tls = "auto"`. Failures
    /// are logged, and the server runs without managed certificates.
    fn start(
        settings: &CertificateSettings<'_>,
        files: &ConfigFiles,
        is_system: bool,
        serving: &AutomaticCertificates,
        cluster: Option<&ClusterStore>,
        log: &ErrorLog,
    ) -> Option<RunningCertificates> {
        let subjects = subjects(settings, log);
        let is_on_demand = settings.acme.ask.is_some() && settings.automatic_sites().next().is_some();
        if subjects.is_empty() && !is_on_demand {
            return None;
        }
        let environment = RenewerEnvironment {
            now: Arc::new(SystemTime::now),
            random: Arc::new(|| fastrand::u64(..)),
            intervals: Intervals::default(),
            host: host_name(),
        };
        let AutomaticCertificates { store, challenges, staples, .. } = serving.clone();
        let missed = store.clone();
        let sink = Arc::new(ServerSink { store, staples, log: log.clone() });
        let options = options(settings, files, is_system, cluster)
            .and_then(|options| CertificateRenewer::start(options, subjects, environment, sink, challenges));
        match options {
            Ok(renewer) => {
                let missing = renewer.missing_names();
                missed.report_missing(move |name, client| missing.report(name, client));
                Some(RunningCertificates { renewer, is_system })
            }
            Err(error) => {
                log.error(&format!("certificates are neither obtained nor renewed: {error}"));
                None
            }
        }
    }

    /// Applies a new configuration.
    ///
    /// # Errors
    /// A file cannot be read; the previous names keep their certificates.
    fn reload(
        &self,
        settings: &CertificateSettings<'_>,
        files: &ConfigFiles,
        cluster: Option<&ClusterStore>,
        log: &ErrorLog,
    ) -> io::Result<()> {
        self.renewer.serve(options(settings, files, self.is_system, cluster)?, subjects(settings, log));
        Ok(())
    }

    /// Status of each certificate.
    pub fn statuses(&self) -> Vec<CertificateStatus> {
        self.renewer.statuses()
    }

    /// Requests the immediate renewal of a name's certificate.
    ///
    /// # Errors
    /// No certificate is managed for this name.
    pub fn renew(&self, name: &str) -> Result<(), Failure> {
        let subject = Subject::parse(name)?;
        if self.renewer.renew(&subject) {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "the server obtains no certificate for {name}: `komainu cert list` shows the names"
            )))
        }
    }
}

/// Managed certificates, if any site has them, and the state shared with TLS and HTTP. Clones share it.
#[derive(Clone, Default)]
pub struct AutomaticCertificates {
    /// Set when a site has managed certificates, at the start or by a reload.
    pub running: Arc<OnceLock<RunningCertificates>>,
    /// Certificates by name, as used by TLS.
    pub store: CertificateStore,
    /// Tokens of HTTP-01 challenges.
    pub challenges: HttpChallenges,
    /// OCSP responses of the certificates.
    pub staples: Staples,
}

impl AutomaticCertificates {
    /// Applies a configuration.
    ///
    /// # Errors
    /// The errors of [`RunningCertificates::reload`].
    pub fn apply(
        &self,
        settings: &CertificateSettings<'_>,
        files: &ConfigFiles,
        is_system: bool,
        cluster: Option<&ClusterStore>,
        log: &ErrorLog,
    ) -> io::Result<()> {
        if let Some(running) = self.running.get() {
            return running.reload(settings, files, cluster, log);
        }
        if let Some(started) = RunningCertificates::start(settings, files, is_system, self, cluster, log) {
            // No other thread sets it: reloads are sequential.
            let _ = self.running.set(started);
        }
        Ok(())
    }
}

/// Whether the server was started as root.
pub fn is_system(link: Option<&SupervisorLink>) -> bool {
    link.is_some() || rustix::process::geteuid().is_root()
}

/// Host name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Subjects to obtain certificates for: the hosts of sites with `tls = "auto"`.
fn subjects(settings: &CertificateSettings<'_>, log: &ErrorLog) -> Vec<Subject> {
    let mut subjects = BTreeSet::new();
    for (_, name) in names(settings) {
        match Subject::parse(&name) {
            Ok(subject) => _ = subjects.insert(subject),
            Err(error) => log.error(&format!("certificates: {error}")),
        }
    }
    subjects.into_iter().collect()
}

/// Hosts of sites with `tls = "auto"`, each preceded by its site for messages.
fn names(settings: &CertificateSettings<'_>) -> Vec<(String, String)> {
    let mut names = Vec::new();
    // With `ask`, names below a wildcard are obtained individually if the wildcard itself cannot be.
    let skips_wildcards =
        settings.acme.ask.is_some() && !challenges(settings).contains(&AcmeChallenge::Dns01);
    for site in settings.automatic_sites() {
        let hosts = site.hosts.iter().filter_map(|host| match host {
            HostPattern::Exact(name) => Some(name.clone()),
            HostPattern::Subdomains(_) if skips_wildcards => None,
            HostPattern::Subdomains(name) => Some(format!("*{name}")),
        });
        let own = OWN_NAMES.iter().map(|name| (*name).to_owned()).filter(|_| site.hosts.is_empty());
        let place = site.line.map_or("the default site".to_owned(), |line| format!("the site in {line}"));
        names.extend(hosts.chain(own).map(|name| (place.clone(), name)));
    }
    names
}

/// Warnings of `komainu check` about names without a certificate, or with one that clients do not trust by
/// default.
pub fn warnings(settings: &CertificateSettings<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let kinds = challenges(settings);
    for (place, name) in names(settings) {
        let subject = match Subject::parse(&name) {
            Ok(subject) => subject,
            Err(error) => {
                warnings.push(format!("`tls = \"auto\"` ({place}): {error}"));
                continue;
            }
        };
        let text = match subject.issuer() {
            Issuer::Unavailable => {
                "no authority issues certificates for this name: give the site a `certificate`, or a name \
                               below `internal`, `test` or `localhost`"
                    .to_owned()
            }
            Issuer::Local if is_local(&subject) => continue,
            Issuer::Local => {
                "no public authority issues for this name: its certificate is of this server's local \
                              authority, which machines trust after `komainu trust`"
                    .to_owned()
            }
            Issuer::Public => match subject.missing_challenge(&kinds) {
                Some(text) => format!("no certificate can be obtained: {text}"),
                None => continue,
            },
        };
        warnings.push(format!("`tls = \"auto\"` ({place}): {name}: {text}"));
    }
    warnings
}

/// Checks the files named by `[acme]`, which a running server uses only when a certificate is due.
pub fn files_exist(acme: &Acme) -> Result<(), Failure> {
    if let Some(path) = &acme.ca {
        let pem = ConfigFiles::default().read(path).map_err(|error| format!("`[acme] ca`: {error}"))?;
        net::ClientCertificates::check_authority(&pem)
            .map_err(|text| format!("`[acme] ca`: {}: {text}", path.display()))?;
    }
    let Some(program) = acme.dns_hook.first().map(Path::new) else { return Ok(()) };
    let is_program = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_found = if program.components().count() > 1 || program.is_absolute() {
        is_program(program)
    } else {
        std::env::split_paths(&folders).any(|folder| is_program(&folder.join(program)))
    };
    if is_found {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "`[acme] dns_hook`: {} is not a program: name one that exists, and make it executable (`chmod +x`)",
            program.display()
        )))
    }
}

/// Whether a name denotes the local machine, for which a certificate of the local authority is expected.
fn is_local(subject: &Subject) -> bool {
    match subject {
        Subject::Ip(address) => address.is_loopback(),
        Subject::Dns(name) => name == "localhost" || name.ends_with(".localhost"),
    }
}

fn options(
    settings: &CertificateSettings<'_>,
    files: &ConfigFiles,
    is_system: bool,
    cluster: Option<&ClusterStore>,
) -> io::Result<Options> {
    let acme = settings.acme;
    let directories = acme.directories.iter().map(|directory| AcmeDirectory {
        url: directory.url.clone(),
        eab: directory.eab.as_ref().or(acme.eab.as_ref()).cloned(),
        profile: directory.profile.as_ref().or(acme.profile.as_ref()).cloned(),
    });
    let dns = match &acme.dns {
        Some(dns) => Some(DnsRecords::Update(dns_server(dns, files)?)),
        None if acme.dns_hook.is_empty() => None,
        None => Some(DnsRecords::Hook(acme.dns_hook.iter().map(Into::into).collect())),
    };
    let roots_pem = acme.ca.as_ref().map(|path| files.read(path)).transpose()?.unwrap_or_default();
    Ok(Options {
        directories: directories.collect(),
        email: acme.email.clone(),
        challenges: challenges(settings),
        dns,
        ask: acme.ask.clone(),
        state_folder: state_folder(acme, is_system),
        cluster: cluster.cloned(),
        roots_pem: strip_byte_order_marks(&roots_pem).into_owned(),
    })
}

/// The DNS server of `[acme]`, with its key.
///
/// # Errors
/// The key file cannot be read or contains no valid key.
pub fn dns_server(dns: &AcmeDns, files: &ConfigFiles) -> io::Result<DnsServer> {
    let key = TsigKey::parse(&files.read(&dns.secret_file)?, dns.key.as_deref(), dns.algorithm);
    let key = key.map_err(|text| {
        let text = format!("`[acme] dns`: {}: {text}", dns.secret_file.display());
        io::Error::new(io::ErrorKind::InvalidData, text).about(&dns.secret_file)
    })?;
    let DnsAddress { host, port } = dns.server.clone();
    Ok(DnsServer { host, port, zone: dns.zone.clone(), key, wait: dns.wait })
}

/// Usable challenge types: the configured ones, or those that the listening addresses allow.
fn challenges(settings: &CertificateSettings<'_>) -> Vec<AcmeChallenge> {
    let acme = settings.acme;
    if !acme.challenges.is_empty() {
        return acme.challenges.clone();
    }
    let mut kinds = Vec::new();
    let port = |listener: &ConfiguredListener| match &listener.address {
        Listen::Tcp(address) => Some(address.port()),
        Listen::Any(port) => Some(*port),
        Listen::Localhost(_) | Listen::Unix(_) => None,
    };
    let listens = |wanted: Option<u16>, is_tls: bool| {
        let with = |listener: &ConfiguredListener| {
            listener.is_tls() == is_tls
                && port(listener).is_some_and(|port| wanted.is_none_or(|wanted| wanted == port))
        };
        settings.listeners.iter().copied().any(with)
    };
    if acme.dns.is_some() || !acme.dns_hook.is_empty() {
        kinds.push(AcmeChallenge::Dns01);
    }
    let of = |http: Option<u16>, tls: Option<u16>| {
        [(listens(http, false), AcmeChallenge::Http01), (listens(tls, true), AcmeChallenge::TlsAlpn01)]
    };
    let mut reachable: Vec<AcmeChallenge> =
        of(Some(80), Some(443)).into_iter().filter_map(|(is, kind)| is.then_some(kind)).collect();
    if reachable.is_empty() {
        // Ports 80 and 443 may be forwarded to other ports of this machine.
        reachable.extend(of(None, None).into_iter().filter_map(|(is, kind)| is.then_some(kind)));
    }
    kinds.extend(reachable);
    kinds
}

/// State directory: configured, from the systemd unit, of the system, or of the user.
pub fn state_folder(acme: &Acme, is_system: bool) -> PathBuf {
    acme.state.clone().unwrap_or_else(|| default_state_folder(is_system))
}

/// Default state directory. `is_system`: the server was started as root.
pub fn default_state_folder(is_system: bool) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folders) = variable("STATE_DIRECTORY")
        && let Some(first) = std::env::split_paths(&folders).next()
    {
        return first;
    }
    if is_system {
        return SYSTEM_FOLDER.into();
    }
    match (variable("XDG_STATE_HOME"), variable("HOME")) {
        (Some(folder), _) => Path::new(&folder).join("komainu"),
        (None, Some(home)) => Path::new(&home).join(".local/state/komainu"),
        (None, None) => SYSTEM_FOLDER.into(),
    }
}

/// Creates the state directory for the server's user; called by the supervisor.
///
/// # Errors
/// The directory cannot be created.
pub fn create_state_folder(settings: &CertificateSettings<'_>, identity: &Identity) -> io::Result<()> {
    if settings.automatic_sites().next().is_none() {
        return Ok(());
    }
    let path = state_folder(settings.acme, true);
    identity
        .create_folder(&path)
        .map_err(|error| error.attempting(format_args!("the state folder {}", path.display())).about(&path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use net::tls::directives::Tls;
    use settings::checker::Checker;
    use settings::directive_table::{DirectiveTable, brief, table};
    use settings::node::Node;
    use settings::shape::{OneOrMore, Shape};

    use super::*;

    fn read<T: DirectiveTable>(text: &str) -> T {
        let mut check = Checker::new(text, "test.toml", Path::new("/etc/komainu"));
        table().read(&Node::parse_document(text).unwrap(), &mut check).unwrap()
    }

    #[test]
    fn acme_challenges_depend_on_the_listening_addresses() {
        use AcmeChallenge::{Dns01 as Dns, Http01 as Http, TlsAlpn01 as TlsAlpn};
        let of = |listen: &str, acme: &str| {
            let text = format!("listen = {listen}");
            let node = Node::parse_document(&text).unwrap();
            let mut check = Checker::new(&text, "test.toml", Path::new("/etc/komainu"));
            let shape = OneOrMore(brief::<ConfiguredListener>("address"));
            let listeners = shape.read(&node.entry("listen").unwrap().value, &mut check).unwrap();
            challenges(&CertificateSettings {
                acme: &read(acme),
                tls: &Tls::default(),
                sites: Vec::new(),
                listeners: listeners.iter().collect(),
            })
        };
        assert_eq!(of("[\":80\", \":443\"]", ""), [Http, TlsAlpn]);
        assert_eq!(of("\":443\"", ""), [TlsAlpn]);
        assert_eq!(of("[\":8080\", \":443\"]", ""), [TlsAlpn]);
        assert_eq!(of("[\":8080\", { address = \":8443\", tls = true }]", ""), [Http, TlsAlpn]);
        assert_eq!(of("[\":80\", \":443\"]", "dns_hook = \"/bin/true\""), [Dns, Http, TlsAlpn]);
        let dns = "dns = { server = \"127.0.0.1\", secret_file = \"key\" }";
        assert_eq!(of("[\":80\", \":443\"]", dns), [Dns, Http, TlsAlpn]);
        assert_eq!(of("[\":80\", \":443\"]", "challenge = \"tls-alpn-01\""), [TlsAlpn]);
    }

    #[test]
    fn invalid_dns_key_file_is_named_in_the_error() {
        let path = std::env::temp_dir().join(format!("komainu-dns-key-{}", std::process::id()));
        let text = format!("server = \"ns\"\nsecret_file = {path:?}\n");
        let parsed = || read::<AcmeDns>(&text);
        let error = dns_server(&parsed(), &ConfigFiles::default()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        fs::write(&path, "secret").unwrap();
        let error = dns_server(&parsed(), &ConfigFiles::default()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("`key`"), "{error}");
        let secret = "QUFBQUFBQUFBQUFBQUFBQUFBQUE=";
        fs::write(&path, format!("key \"k\" {{ algorithm hmac-sha512; secret \"{secret}\"; }};")).unwrap();
        let server = dns_server(&parsed(), &ConfigFiles::default()).unwrap();
        assert_eq!((server.host.as_str(), server.port, server.wait.as_secs()), ("ns", 53, 10));
        fs::remove_file(&path).unwrap();
    }
}
