//! The response cache and its disk, which a reload keeps if their limits are unchanged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Disk, DiskEvent, DiskOptions};
use config::Config;
use hosting::workers::Hosting;

/// Divisor of `limits.memory` that gives the maximum memory for cached responses.
const CACHE_SHARE: u64 = 4;
/// Maximum time that a start waits for the index of the disk cache, so that the first requests can use it.
const DISK_INDEX_TIMEOUT: Duration = Duration::from_millis(500);
/// Time after a failure until the disk cache is retried.
const DISK_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Returns the response cache if any route uses one; the existing one if its limits are unchanged.
pub(crate) fn build_response_cache(
    config: &Config,
    previous: Option<&Arc<Cache>>,
    hosting: Option<&Hosting>,
) -> io::Result<Option<Arc<Cache>>> {
    let routes = config.sites.iter().enumerate();
    let mut routes = routes.flat_map(|(site, each)| (0..each.routes.len()).map(move |route| (site, route)));
    if !routes.any(|(site, route)| config.settings(Some(site), Some(route)).cache.is_some()) {
        return Ok(None);
    }
    let memory = hosting.map(Hosting::memory).cloned().unwrap_or_default();
    let limits = cache::StoreLimits {
        bytes_max: config.cache.memory_bytes_max.min(memory.bytes_max() / CACHE_SHARE),
        object_bytes_max: config.cache.object_bytes_max,
        ..cache::StoreLimits::default()
    };
    let disk_before = previous.and_then(|cache| cache.disk());
    let disk = open_cache_disk(config, limits.bytes_max, disk_before, hosting)?;
    let is_same = |before: &Arc<Cache>| {
        let disks = (before.disk().map(Arc::as_ptr), disk.as_ref().map(Arc::as_ptr));
        before.configured_limits() == limits && disks.0 == disks.1
    };
    if let Some(cache) = previous.filter(|cache| is_same(cache)) {
        return Ok(Some(cache.clone()));
    }
    let cache = Cache::new(limits, Arc::new(move |before, after| memory.change(before, after)));
    Ok(Some(Arc::new(cache.with_disk(disk))))
}

/// Returns the disk cache, if there is one; the existing one if its options are unchanged.
fn open_cache_disk(
    config: &Config,
    memory_bytes_max: u64,
    previous: Option<&Arc<Disk>>,
    hosting: Option<&Hosting>,
) -> io::Result<Option<Arc<Disk>>> {
    // Checking a configuration opens no files.
    let (Some(wanted), Some(hosting)) = (&config.cache.disk, hosting) else { return Ok(None) };
    let options = DiskOptions {
        path: wanted.path.clone(),
        bytes_max: wanted.bytes_max,
        index_bytes_max: memory_bytes_max / 2,
        open_wait: DISK_INDEX_TIMEOUT,
        retry_pause: DISK_RETRY_PAUSE,
    };
    if let Some(disk) = previous.filter(|disk| *disk.options() == options) {
        return Ok(Some(disk.clone()));
    }
    let memory = hosting.memory().clone();
    let notices = hosting.notices().clone();
    let account = Arc::new(move |before, after| memory.change(before, after));
    let path = wanted.path.clone();
    let report = Arc::new(move |event: DiskEvent<'_>| notices.log_disk_event(&path, &event));
    Ok(Some(Arc::new(Disk::open(options, account, report)?)))
}
