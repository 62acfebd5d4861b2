//! Files that a configuration names, which the supervisor opens for the server.

use crate::action::Action;
use crate::server::Config;
use admission::auth::Auth;
use cluster::ClusterTable;
use logging::Sink;
use net::tls::directives::{CertificateSource, SiteTls};
use proxy::directives::ProxyTls;
use proxy::options::ProxyOptions;
use std::path::{Path, PathBuf};

/// Files and directories named by a configuration.
#[derive(Debug, Default)]
pub struct NamedFiles {
    files: Vec<PathBuf>,
    /// Directories, all of whose files are named.
    folders: Vec<PathBuf>,
}

impl NamedFiles {
    /// Collects the files of a configuration.
    pub fn of(config: &Config) -> NamedFiles {
        let mut named = NamedFiles::default();
        let groups = config.upstreams.iter().map(|(_, proxy)| &**proxy);
        groups.chain(config.proxies()).for_each(|proxy| named.add_proxy(proxy));
        let of_sites = config.sites.iter().filter_map(|site| site.tls.as_ref());
        let of_streams = config.streams.iter().filter_map(|stream| stream.tls.as_ref());
        of_sites.chain(of_streams).chain(&config.control.tls).for_each(|tls| named.add_site(tls));
        let secret = config.acme.dns.iter().map(|dns| &dns.secret_file).chain(config.purge_token_files());
        let shared = config.limits.shared.iter().filter_map(|shared| shared.password_file.as_ref());
        let of_cluster = config.cluster.iter().flat_map(ClusterTable::files);
        let of_control = config.control.tokens.iter().map(|token| &token.token_file);
        let secret = secret.chain(shared).chain(of_cluster).chain(of_control);
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

impl Config {
    /// Returns the `proxy`, `php` and `cgi` actions of all routes.
    pub fn proxies(&self) -> impl Iterator<Item = &ProxyOptions> {
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        let actions = routes.flat_map(|route| std::iter::once(&route.action).chain(&route.otherwise));
        actions.filter_map(|action| match action {
            Action::Proxy(proxy) => Some(&**proxy),
            _ => None,
        })
    }

    /// Returns the error pages of the server and of all sites.
    pub fn error_page_files(&self) -> impl Iterator<Item = &PathBuf> {
        let of_sites = self.sites.iter().map(|site| &site.error_pages);
        of_sites.chain([&self.error_pages]).flatten().map(|(_, path)| path)
    }

    /// Returns the token files that authorize clients to purge the cache.
    pub fn purge_token_files(&self) -> impl Iterator<Item = &PathBuf> {
        let routes = self.sites.iter().flat_map(|site| &site.routes).map(|route| &route.cache);
        let caches = self.sites.iter().map(|site| &site.cache).chain(routes);
        let purges = caches.flatten().flatten().filter_map(|policy| policy.purge.as_ref());
        purges.filter_map(|purge| purge.token_file.as_ref())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::{Route, Site};

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
        let route = Route { action: Action::Proxy(Box::new(proxy.clone())), ..Route::default() };
        let site = Site { routes: vec![route], ..Site::default() };
        for config in [
            Config { sites: vec![site.into()], ..Config::default() },
            Config { upstreams: vec![("a".into(), proxy.into())], ..Config::default() },
        ] {
            let named = NamedFiles::of(&config);
            assert!(["ca", "certificate", "key"].iter().all(|file| named.contains(Path::new(file))));
        }
    }
}
