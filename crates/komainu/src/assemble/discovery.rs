//! Servers and sites that are found while the server runs: names of DNS, and containers.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use admission::auth::AuthKind;
use config::Config;
use discovery::{DiscoverTable, DiscoveredName, Discovery, DiscoveryEvent, Found, NameKind};
use logging::notice::ErrorLog;
use proxy::origin::{Origin, OriginRecords};
use reload::KeptState;

/// What a configuration uses of what was found.
#[derive(Default)]
pub(crate) struct UsedDiscovery {
    /// `None` if nothing is looked for, or the configuration is only being checked.
    pub(crate) discovery: Option<Discovery>,
    pub(crate) found: Found,
}

impl UsedDiscovery {
    /// Follows the names of a configuration, and Docker, on a thread that is kept if its options have not changed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn open(
        config: &Config,
        kept: &mut KeptState,
        notices: Option<&ErrorLog>,
    ) -> io::Result<UsedDiscovery> {
        let names = followed_names(config);
        let options = config.discover.clone().unwrap_or_default();
        let Some(notices) = notices.filter(|_| !names.is_empty() || options.docker.is_some()) else {
            return Ok(UsedDiscovery::default());
        };
        let is_same = |before: &Discovery| before.has_options(&options);
        let discovery = kept.try_keep_if((), is_same, || start(options.clone(), notices.clone()))?;
        discovery.follow(names);
        // The caller knows with which sites the configuration was made.
        let found = Found { sites: Arc::default(), ..discovery.found() };
        Ok(UsedDiscovery { discovery: Some(discovery), found })
    }

    /// Whether nothing else has been found since.
    pub(crate) fn is_current(&self) -> bool {
        self.discovery.as_ref().is_none_or(|discovery| discovery.found() == self.found)
    }
}

fn start(options: DiscoverTable, notices: ErrorLog) -> io::Result<Discovery> {
    let report = move |event| match event {
        DiscoveryEvent::Away(source, why) => {
            notices.warn(&format!("`[discover]`: {source}: {why}: what was found before stays in use"));
        }
        DiscoveryEvent::Back(source) => notices.info(&format!("`[discover]`: {source} answers again")),
        DiscoveryEvent::Servers(name, 0) => {
            notices.warn(&format!("`[discover]`: {name} has no servers"));
        }
        DiscoveryEvent::Servers(name, count) => {
            notices.info(&format!("`[discover]`: servers of {name}: {count}"));
        }
        DiscoveryEvent::Sites(source, count) => {
            notices.info(&format!("`[discover]`: the hosts of containers of {source}: {count}"));
        }
        DiscoveryEvent::Problem(text) => notices.warn(&format!("`[discover]`: {text}")),
    };
    Discovery::start(options, Box::new(report))
}

/// Returns the name that a URL has in place of a server.
pub(crate) fn discovered_name(url: &Origin) -> Option<DiscoveredName> {
    let (records, name, port) = url.records()?;
    let kind = match records {
        OriginRecords::Service => NameKind::Service,
        OriginRecords::Host => NameKind::Host(port),
    };
    Some(DiscoveredName { name: name.trim_end_matches('.').to_ascii_lowercase(), kind })
}

fn followed_names(config: &Config) -> BTreeSet<DiscoveredName> {
    let named = config.upstreams.iter().map(|(_, proxy)| &**proxy);
    let servers = named.chain(config.proxies()).flat_map(|proxy| &proxy.to).map(|server| &server.url);
    let auths = config.auths().filter_map(|auth| match auth.kind()? {
        AuthKind::Server(server) => Some(&server.origin),
        AuthKind::Jwt(jwt) => jwt.jwks.as_ref().map(|server| &server.origin),
        AuthKind::Basic(_) | AuthKind::Signed(_) => None,
    });
    servers.chain(auths).filter_map(discovered_name).collect()
}
