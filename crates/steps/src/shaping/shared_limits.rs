//! Limits shared by several servers: `sharing` exchanges the counts of `admission`.

use std::io;
use std::sync::Arc;

use admission::Limiter;
use admission::limits::RateLimit;
use cluster::{ClusterTable, StoreOptions};
use config::Config;
use logging::notice::ErrorLog;
use process::config_files::ConfigFiles;
use reload::KeptState;
use sharing::{SharedChange, SharedLimits, SharedTable, Sharing, SharingEvent};
use telemetry::metrics::RouteLabels;

/// Returns the exchange with other servers, which is kept if its options have not changed. `None` if the
/// configuration has none or is only being checked.
///
/// # Errors
/// The password cannot be read, or the address is invalid.
pub fn open_sharing(
    config: &Config,
    kept: &mut KeptState,
    files: &ConfigFiles,
    notices: Option<&ErrorLog>,
) -> io::Result<Option<Arc<Sharing>>> {
    let usual = SharedLimits::default();
    let (of, table) = match (&config.limits.shared, &config.cluster) {
        (Some(of), _) if of.redis.is_some() => {
            // The connection of `[cluster]`, without its name and key.
            let store = of.redis.iter().cloned().collect();
            let password_file = of.password_file.clone();
            (of, ClusterTable { store, password_file, ..ClusterTable::default() })
        }
        (of, Some(cluster)) => (of.as_ref().unwrap_or(&usual), cluster.clone()),
        (_, None) => return Ok(None),
    };
    let store = StoreOptions::of_table(&table, &|path| files.read(path)).map_err(io::Error::other)?;
    // Only a running server exchanges counts; without `notices` the configuration is only being checked.
    let Some(notices) = notices else { return Ok(None) };
    let notices = notices.clone();
    let address = store.describe();
    let report = move |event| {
        match event {
        SharingEvent::Unreachable(why) => notices.warn(&format!(
            "`[limits.shared]`: {address} is away ({why}): until it is back, each server has its limits for itself"
        )),
        SharingEvent::Reachable => notices.info(&format!("`[limits.shared]`: {address} is back")),
    }
    };
    let is_unchanged = |before: &Arc<Sharing>| before.is_with(of, &store.clone().with_timeout(of.timeout));
    let start = || Sharing::start(of.clone(), store.clone(), Box::new(report)).map(Arc::new);
    kept.try_keep_if((), is_unchanged, start).map(Some)
}

/// Returns the name of a limit in all servers. Limits that differ in their place, name, rate, burst or key
/// have different names.
pub(crate) fn scope(limit: &RateLimit, labels: &RouteLabels) -> Vec<u8> {
    let keys: Vec<String> = limit.key.iter().map(ToString::to_string).collect();
    let prefixes = (limit.ipv4_prefix, limit.ipv6_prefix);
    let site = &labels.site;
    let route = &labels.route;
    format!("{:?}", (site, route, limit.name(), limit.rate().to_string(), limit.burst(), keys, prefixes))
        .into_bytes()
}

struct LimiterTable(Arc<Limiter>);

/// Returns the table that a limit exchanges with other servers.
pub(crate) fn table(limiter: &Arc<Limiter>) -> Arc<dyn SharedTable> {
    Arc::new(LimiterTable(limiter.clone()))
}

impl SharedTable for LimiterTable {
    fn take(&self) -> Vec<SharedChange> {
        let taken = self.0.take_unreported().into_iter();
        taken.map(|of| SharedChange { key: of.key, name: of.name, spent_ns: of.spent_ns }).collect()
    }

    fn set_total(&self, key: u64, now_ns: u64, ahead_ns: u64) {
        self.0.set_total(key, now_ns, ahead_ns);
    }
}
