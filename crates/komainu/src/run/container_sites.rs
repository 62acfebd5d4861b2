//! Sites of containers in the configuration of a file.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use config::{Config, Finding, Severity};
use logging::notice::ErrorLog;
use operator::config_text::ConfigText;
use serde_json::Value;
use shapes::host::HostPattern;

use crate::assemble::discovery::UsedDiscovery;
use crate::check::reading::{base_folder, environment};

/// Returns the configuration with the sites of containers that the discovery in use has found, and these sites, whether or
/// not they can be used.
pub(crate) fn join_sites(
    used: &UsedDiscovery,
    config: Config,
    text: Option<&ConfigText>,
    notices: &ErrorLog,
) -> (Config, Arc<Vec<Value>>) {
    let (Some(discovery), Some(options)) = (&used.discovery, &config.discover) else {
        return (config, Arc::default());
    };
    if !discovery.has_options(options) {
        // The new configuration begins to look for containers by itself.
        return (config, Arc::default());
    }
    let sites = discovery.found().sites;
    let Some(text) = text.filter(|_| !sites.is_empty()) else { return (config, sites) };
    let declared: HashSet<&HostPattern> = config.sites.iter().flat_map(|site| &site.hosts).collect();
    let is_free = |site: &&Value| {
        let host = site.pointer("/hosts/0").and_then(Value::as_str).unwrap_or_default();
        let is_free = HostPattern::parse(host).is_ok_and(|host| !declared.contains(&host));
        if !is_free {
            notices.warn(&format!(
                "`[discover]`: {host} is the host of a `[[site]]`: containers with this host are not served"
            ));
        }
        is_free
    };
    let mut free: Vec<Value> = sites.iter().filter(is_free).cloned().collect();
    let name = text.path.display().to_string();
    let join = |free: &[Value]| {
        Config::parse_with_sites(&text.joined, &name, base_folder(&text.path), &environment, free)
    };
    let mut joined = join(&free);
    if joined.is_err() {
        free.retain(|site| is_valid(site, notices));
        joined = join(&free);
    }
    match joined {
        Ok((joined, _)) => (joined, sites),
        Err(report) => {
            notices.error(&format!("`[discover]`: containers are not served: {report}"));
            (config, sites)
        }
    }
}

/// Whether a site of containers is valid by itself. One that is not must not keep the others away.
fn is_valid(site: &Value, notices: &ErrorLog) -> bool {
    let alone = Config::parse_with_sites("", "labels", Path::new("/"), &|_| None, std::slice::from_ref(site));
    let Err(report) = alone else { return true };
    let host = site.pointer("/hosts/0").and_then(Value::as_str).unwrap_or_default();
    let reason = report.findings().iter().find(|finding| finding.severity == Severity::Error);
    let reason = reason.map(Finding::one_line).unwrap_or_default();
    notices.error(&format!("`[discover]`: the containers with the host {host} are not served: {reason}"));
    false
}
