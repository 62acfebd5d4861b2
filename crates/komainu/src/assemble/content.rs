//! Joins the directives of files with those of the server and with compression.

use std::sync::Arc;

use config::Config;
use config::matcher::RouteId;
use files::{CacheLimits, Compress, FileOptions};
use logging::notice::ErrorLog;
use net::CompressResponses;
use shapes::prefix::StripPrefix;

/// Returns the compression of files for that of other responses.
fn file_compression(compress: &CompressResponses) -> Compress {
    let CompressResponses { codings, min_bytes, effort, types, .. } = compress.clone();
    Compress { codings, min_bytes, effort, types, ..Compress::default() }
}

/// Returns the file options of a route.
pub(crate) fn build_route_files(
    config: &Config,
    route: RouteId,
    files: &FileOptions,
    cores: usize,
    notices: Option<&ErrorLog>,
) -> files::Options {
    let mut files = files.clone();
    // Files are compressed once and kept, instead of on each request.
    let kept = config.route_settings(route).compress.map(file_compression);
    files.compress = files.compress.or(kept);
    files::Options {
        files,
        cache: cache_limits(config, cores),
        root_report: notices.map(root_reporter),
        ..files::Options::default()
    }
}

/// Returns the prefix that is stripped from request paths.
pub(crate) fn stripped_prefix(route: &config::Route, prefix: &StripPrefix) -> Vec<u8> {
    match prefix {
        StripPrefix::None => Vec::new(),
        StripPrefix::OfRoute => route.prefix().unwrap_or_default().as_bytes().to_vec(),
        StripPrefix::Text(text) => text.as_bytes().to_vec(),
    }
}

fn cache_limits(config: &Config, cores: usize) -> CacheLimits {
    let open = &config.open_files;
    CacheLimits {
        // Rounded up, because 0 would disable the cache.
        entries_max: (open.entries_max as usize).div_ceil(cores),
        bytes_max: open.memory_bytes_max / cores as u64,
        file_bytes_max: open.memory_per_file_bytes_max,
        revalidate_after: open.recheck.into(),
        ..CacheLimits::default()
    }
}

/// Returns a report function that writes to the log.
fn root_reporter(notices: &ErrorLog) -> files::RootReport {
    let notices = notices.clone();
    files::RootReport(Arc::new(move |path, state| notices.log_root_state(path, state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_limit_is_divided_by_cores_and_rounded_up() {
        let mut config = Config::default();
        for (entries_max, each) in [(0, 0), (3, 1), (1024, 128)] {
            config.open_files.entries_max = entries_max;
            assert_eq!(cache_limits(&config, 8).entries_max, each);
        }
    }
}
