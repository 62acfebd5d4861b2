//! The response cache and its disk, which a reload keeps if their limits are unchanged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Disk, DiskEvent, DiskOptions, StoreLimits};
use config::Config;
use hosting::workers::Hosting;
use reload::KeptState;

/// Divisor of `limits.memory` that gives the maximum memory for cached responses.
const CACHE_SHARE: u64 = 4;
/// Maximum time that a start waits for the index of the disk cache, so that the first requests can use it.
const DISK_INDEX_TIMEOUT: Duration = Duration::from_millis(500);
/// Time after a failure until the disk cache is retried.
const DISK_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Returns the response cache if any route uses one; the one before if its limits are unchanged.
pub(crate) fn build_response_cache(
    config: &Config,
    kept: &mut KeptState,
    hosting: Option<&Hosting>,
) -> io::Result<Option<Arc<Cache>>> {
    let mut caches =
        config.sites.iter().flat_map(|site| site.routes.iter().map(|route| site.cache_of(route)));
    if !caches.any(|cache| cache.is_some()) {
        return Ok(None);
    }
    let memory = hosting.map(Hosting::memory).cloned().unwrap_or_default();
    let limits = StoreLimits::of(&config.cache, memory.bytes_max() / CACHE_SHARE);
    let disk = open_cache_disk(config, limits.bytes_max, kept, hosting)?;
    let has_same_disk = |cache: &Arc<Cache>| cache.disk().map(Arc::as_ptr) == disk.as_ref().map(Arc::as_ptr);
    let make = || {
        let cache = Cache::new(limits, Arc::new(move |before, after| memory.change(before, after)));
        Arc::new(cache.with_disk(disk.clone()))
    };
    Ok(Some(kept.keep_if(limits, has_same_disk, make)))
}

/// Returns the disk cache, if there is one; the one before if its options are unchanged.
fn open_cache_disk(
    config: &Config,
    memory_bytes_max: u64,
    kept: &mut KeptState,
    hosting: Option<&Hosting>,
) -> io::Result<Option<Arc<Disk>>> {
    // Checking a configuration opens no files.
    let (Some(wanted), Some(hosting)) = (&config.cache.disk, hosting) else { return Ok(None) };
    let options = DiskOptions {
        disk: wanted.clone(),
        index_bytes_max: memory_bytes_max / 2,
        open_wait: DISK_INDEX_TIMEOUT,
        retry_pause: DISK_RETRY_PAUSE,
    };
    let memory = hosting.memory().clone();
    let notices = hosting.notices().clone();
    let account = Arc::new(move |before, after| memory.change(before, after));
    let path = wanted.path.clone();
    let report = Arc::new(move |event: DiskEvent<'_>| notices.log_disk_event(&path, &event));
    let is_unchanged = |disk: &Arc<Disk>| *disk.options() == options;
    kept.try_keep_if((), is_unchanged, || Disk::open(options.clone(), account, report).map(Arc::new))
        .map(Some)
}
