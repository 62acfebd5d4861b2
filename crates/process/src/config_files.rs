//! Files that the configuration names (certificates, keys, tokens, user databases), opened by the supervisor
//! if there is one.
//!
//! The server's user then needs no permission to read them, and a compromised server process cannot open them
//! by itself. The supervisor opens only files named by the configuration, and only for reading.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use admission::auth::Auth;
use config::{Action, Config};
use failure::{Failure, IoFailure};
use link::LinkRequest;
use logging::Sink;
use net::tls::directives::{CertificateSource, SiteTls};
use net::trusted_path;
use proxy::directives::ProxyTls;
use proxy::options::ProxyOptions;
use rustix::fs::{Mode, OFlags};

use crate::link::{SupervisorLink, path_text};

/// Maximum size of such a file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum number of names read from a directory.
const NAMES_MAX: usize = 4096;

/// Files and directories named by a configuration.
#[derive(Debug, Default)]
pub struct NamedFiles {
    pub(crate) files: Vec<PathBuf>,
    /// Directories, all of whose files are named.
    pub(crate) folders: Vec<PathBuf>,
}

impl NamedFiles {
    /// Collects the files of a configuration.
    pub fn of(config: &Config) -> NamedFiles {
        let mut named = NamedFiles::default();
        let groups = config.upstreams.iter().map(|(_, proxy)| proxy);
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let actions = routes.flat_map(|route| std::iter::once(&route.action).chain(&route.otherwise));
        let inline = actions.filter_map(|action| match action {
            Action::Proxy(proxy) => Some(&**proxy),
            _ => None,
        });
        groups.chain(inline).for_each(|proxy| named.add_proxy(proxy));
        let of_sites = config.sites.iter().filter_map(|site| site.tls.as_ref());
        of_sites.chain(&config.control.tls).for_each(|tls| named.add_site(tls));
        let secret = config.acme.dns.iter().map(|dns| &dns.secret_file).chain(purge_token_files(config));
        let shared = config.limits.shared.iter().filter_map(|shared| shared.password_file.as_ref());
        let of_control = config.control.tokens.iter().map(|token| &token.token_file);
        let secret = secret.chain(shared).chain(of_control);
        config.auths().for_each(|auth| named.add_auth(auth));
        named.files.extend(config.tls.ticket_keys.iter().chain(&config.acme.ca).chain(secret).cloned());
        named.files.extend(collector_files(config));
        named.files.extend(config.geo.iter().map(|geo| geo.database.clone()));
        named
    }

    fn add_site(&mut self, tls: &SiteTls) {
        if let CertificateSource::Files(paths) = &tls.certificate {
            // Each path is a file or a directory.
            self.files.extend(paths.iter().cloned());
            self.folders.extend(paths.iter().cloned());
        }
        self.files.extend(tls.key.iter().cloned());
        let client = tls.client.iter();
        self.files.extend(client.flat_map(|client| client.ca.iter().chain(&client.crl)).cloned());
    }

    fn add_proxy(&mut self, proxy: &ProxyOptions) {
        let own = proxy.to.iter().filter_map(|upstream| upstream.tls.as_ref());
        own.chain([&proxy.tls]).for_each(|tls| self.add_tls(tls));
    }

    fn add_tls(&mut self, tls: &ProxyTls) {
        self.files.extend([&tls.ca, &tls.certificate, &tls.key].into_iter().flatten().cloned());
    }

    fn add_auth(&mut self, auth: &Auth) {
        let keys = auth.jwt.iter().filter_map(|jwt| jwt.jwks_file.as_ref());
        let secrets = auth.signed.iter().filter_map(|signed| signed.secret_file.as_ref());
        self.files.extend(auth.basic.iter().chain(keys).chain(secrets).cloned());
        self.add_tls(&auth.tls);
    }

    /// Whether the configuration names this file, or its directory.
    pub fn contains(&self, path: &Path) -> bool {
        let is_plain = || path.file_name().is_some() && path.components().eq(path.iter().map(as_component));
        self.files.iter().any(|file| file == path)
            || (is_plain() && path.parent().is_some_and(|folder| self.has_folder(folder)))
    }

    /// Whether the configuration names this directory.
    pub fn has_folder(&self, path: &Path) -> bool {
        self.folders.iter().any(|folder| folder == path)
    }
}

/// Token files that authorize clients to purge the cache.
pub fn purge_token_files(config: &Config) -> impl Iterator<Item = &PathBuf> {
    let routes = config.sites.iter().flat_map(|site| &site.routes).map(|route| &route.cache);
    let caches = config.sites.iter().map(|site| &site.cache).chain(routes);
    let purges = caches.flatten().flatten().filter_map(|policy| policy.purge.as_ref());
    purges.filter_map(|purge| purge.token_file.as_ref())
}

/// Files with header fields for requests to collectors.
fn collector_files(config: &Config) -> impl Iterator<Item = PathBuf> {
    let logs = config.log_destinations().into_iter().chain([config.log.errors.clone()]);
    let of_logs = logs.filter_map(|sink| match sink {
        Sink::Otlp(otlp) => otlp.headers_file,
        _ => None,
    });
    [config.tracing.headers_file.clone(), config.metrics.headers_file.clone()]
        .into_iter()
        .flatten()
        .chain(of_logs)
}

/// The first component of a part of a path, as [`Path::components`] yields it.
fn as_component(part: &std::ffi::OsStr) -> std::path::Component<'_> {
    Path::new(part).components().next().unwrap_or(std::path::Component::CurDir)
}

/// Access to the files named by the configuration. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConfigFiles(Option<SupervisorLink>);

impl ConfigFiles {
    /// Creates the access, through the supervisor if `link` is given.
    pub fn new(link: Option<SupervisorLink>) -> ConfigFiles {
        ConfigFiles(link)
    }

    /// Opens a file for reading. The supervisor opens only files of the configuration in force or of the one
    /// being loaded ([`NamedFiles::of`]).
    ///
    /// # Errors
    /// The file cannot be opened; the message contains its path.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let Some(link) = &self.0 else { return open(path) };
        let packet =
            link.ask(&LinkRequest::Read(path_text(path)?), &[]).map_err(|error| error.about(path))?;
        let file = packet.descriptors.into_iter().next().map(File::from);
        file.ok_or_else(|| io::Error::other("the supervisor sends no file"))
    }

    /// Header fields of requests to a collector: those of the configuration (`own`), then those of `file`.
    /// `table` is the configuration table, for errors.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain header fields; the message contains its path.
    pub fn headers(
        &self,
        table: &str,
        configured: &[(String, String)],
        file: Option<&PathBuf>,
    ) -> io::Result<Vec<(String, String)>> {
        let mut headers = configured.to_vec();
        if let Some(path) = file {
            let failed = |why: &str| {
                let title = format!("`headers_file` of {table}: {}: {why}", path.display());
                io::Error::from(Failure::new(title).about(path))
            };
            let text = String::from_utf8(self.read(path)?).map_err(|_| failed("it is not text"))?;
            headers.extend(otlp::parse_header_lines(&text).map_err(|why| failed(&why.to_string()))?);
        }
        Ok(headers)
    }

    /// Whether `path` can be listed as a directory that the configuration names.
    pub fn is_folder(&self, path: &Path) -> bool {
        self.list(path).is_ok()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is larger than 16 MiB.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_up_to(path, FILE_BYTES_MAX)
    }

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is larger.
    pub fn read_up_to(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.open(path)?.take(bytes_max + 1).read_to_end(&mut bytes);
        read.map_err(|error| with_path(path, error))?;
        if bytes.len() as u64 > bytes_max {
            Err(with_path(path, io::Error::other(format!("it is larger than {} MiB", bytes_max >> 20))))
        } else {
            Ok(bytes)
        }
    }

    /// Lists a directory named by the configuration, sorted and including subdirectories.
    ///
    /// # Errors
    /// The directory cannot be read; the message contains its path.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let names = match &self.0 {
            None => list(folder)?,
            Some(link) => {
                let packet = link.ask(&LinkRequest::List(path_text(folder)?), &[]);
                let packet = packet.map_err(|error| error.about(folder))?;
                packet.words().1.split('\n').filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }
        };
        Ok(names.into_iter().map(|name| folder.join(name)).collect())
    }
}

/// Opens a file for reading, without blocking. As root, [`trusted_path`] applies its checks.
///
/// # Errors
/// The file cannot be opened, or is no regular file; the message contains its path.
pub fn open(path: &Path) -> io::Result<File> {
    let opened = trusted_path::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty());
    let file = File::from(opened.map_err(|error| with_path(path, error))?);
    if file.metadata().map_err(|error| with_path(path, error))?.is_file() {
        Ok(file)
    } else {
        Err(with_path(path, io::Error::other("this is no file")))
    }
}

/// The names in a directory, sorted.
///
/// # Errors
/// The directory cannot be read, or has more than 4,096 names; the message contains its path.
pub fn list(folder: &Path) -> io::Result<Vec<String>> {
    let failed = |error: &dyn std::error::Error| with_path(folder, io::Error::other(error.to_string()));
    let opened = trusted_path::open(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let opened = opened.map_err(|error| with_path(folder, error))?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(opened).map_err(|error| failed(&error))? {
        let entry = entry.map_err(|error| failed(&error))?;
        // Names that are not UTF-8, or contain a line feed, cannot be sent over the link.
        let name = entry
            .file_name()
            .to_str()
            .ok()
            .filter(|name| !matches!(*name, "." | "..") && !name.contains('\n'));
        names.extend(name.map(str::to_owned));
    }
    names.sort();
    if names.len() > NAMES_MAX {
        Err(with_path(folder, io::Error::other(format!("it has more than {NAMES_MAX} names"))))
    } else {
        Ok(names)
    }
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    error.attempting(format_args!("cannot read {}", path.display())).about(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_named_by_the_configuration_are_allowed() {
        let named = NamedFiles { files: vec!["/etc/a.pem".into()], folders: vec!["/etc/keys".into()] };
        for (path, wanted) in [
            ("/etc/a.pem", true),
            ("/etc/b.pem", false),
            ("/etc/keys/a.pem", true),
            ("/etc/keys/more/a.pem", false),
            ("/etc/keys/..", false),
            ("/etc/keys/../shadow", false),
            ("/etc/keys/./../shadow", false),
            ("/etc/keys", false),
            ("", false),
        ] {
            assert_eq!(named.contains(Path::new(path)), wanted, "{path}");
        }
    }

    #[test]
    fn tls_files_of_upstream_servers_are_allowed() {
        let tls = ProxyTls {
            ca: Some("ca".into()),
            certificate: Some("certificate".into()),
            key: Some("key".into()),
            ..ProxyTls::default()
        };
        let proxy = ProxyOptions { tls, ..ProxyOptions::default() };
        let route =
            config::Route { action: Action::Proxy(Box::new(proxy.clone())), ..config::Route::default() };
        let site = config::Site { routes: vec![route], ..config::Site::default() };
        for config in [
            Config { sites: vec![site], ..Config::default() },
            Config { upstreams: vec![("a".into(), proxy)], ..Config::default() },
        ] {
            let named = NamedFiles::of(&config);
            assert!(["ca", "certificate", "key"].iter().all(|file| named.contains(Path::new(file))));
        }
    }

    #[test]
    fn opening_a_directory_as_a_file_fails() {
        let error = open(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("cannot read /"), "{error}");
    }
}
