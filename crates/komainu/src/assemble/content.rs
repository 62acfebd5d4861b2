//! Converts the configuration of files and compression to handler options.

use std::sync::Arc;

use coding::Effort;
use config::Config;
use logging::notice::ErrorLog;
use net::Compression;

pub(crate) fn convert_effort(effort: config::Effort) -> Effort {
    match effort {
        config::Effort::Fast => Effort::Fast,
        config::Effort::Balanced => Effort::Balanced,
        config::Effort::Small => Effort::Small,
    }
}

pub(crate) fn convert_compression(compress: &config::CompressResponses) -> Compression {
    Compression {
        codings: compress.codings.clone(),
        bytes_min: compress.min_bytes,
        effort: convert_effort(compress.effort),
        media: compress.types.clone(),
        compresses_secrets: compress.secrets,
    }
}

/// Returns the compression options for files.
fn file_compression(compress: &config::CompressResponses) -> files::FileCompression {
    let Compression { codings, bytes_min, effort, media, .. } = convert_compression(compress);
    files::FileCompression { codings, bytes_min, effort, media, ..files::FileCompression::default() }
}

/// Returns the file options of a route.
pub(crate) fn build_route_files(
    config: &Config,
    (site, index): (usize, usize),
    files: &config::Files,
    cores: usize,
    notices: Option<&ErrorLog>,
) -> files::Options {
    let mut options = file_options(config, files, cores);
    // Files are compressed once and kept, instead of on each request.
    let kept = config.settings(Some(site), Some(index)).compress.map(file_compression);
    options.compression = options.compression.or(kept);
    options.root_report = notices.map(root_reporter);
    options
}

/// Returns the prefix that is stripped from request paths.
pub(crate) fn stripped_prefix(route: &config::Route, prefix: &shapes::prefix::StripPrefix) -> Vec<u8> {
    match prefix {
        shapes::prefix::StripPrefix::None => Vec::new(),
        shapes::prefix::StripPrefix::OfRoute => route.prefix().unwrap_or_default().as_bytes().to_vec(),
        shapes::prefix::StripPrefix::Text(text) => text.as_bytes().to_vec(),
    }
}

fn file_options(config: &Config, files: &config::Files, cores: usize) -> files::Options {
    let open = &config.open_files;
    files::Options {
        roots: files.root.clone(),
        index: files.index.clone(),
        candidates: files.candidates.clone(),
        fallback: files.fallback.clone(),
        listing: files.listing,
        hidden: files.hidden,
        symlinks: match files.symlinks {
            config::Symlinks::Off => files::Symlinks::Inside,
            config::Symlinks::OwnerMatch => files::Symlinks::OwnerMatch,
            config::Symlinks::On => files::Symlinks::Follow,
        },
        cache_control: files.cache_control.iter().map(convert_cache_rule).collect(),
        precompressed: files.precompressed.clone(),
        compression: files.compress.as_ref().map(|compress| files::FileCompression {
            codings: compress.codings.clone(),
            bytes_min: compress.min_bytes,
            bytes_max: compress.max_bytes,
            effort: convert_effort(compress.effort),
            media: compress.types.clone(),
        }),
        charset: files.charset.clone(),
        types: files.types.clone(),
        ranges_max: files.ranges_max as usize,
        cache: files::CacheLimits {
            // Rounded up, because 0 would disable the cache.
            entries_max: (open.entries_max as usize).div_ceil(cores),
            bytes_max: open.memory_bytes_max / cores as u64,
            file_bytes_max: open.memory_per_file_bytes_max,
            revalidate_after: open.recheck.into(),
            ..files::CacheLimits::default()
        },
        ..files::Options::default()
    }
}

fn convert_cache_rule((applies, value): &(config::FileMatch, String)) -> files::CacheRule {
    let applies = match applies {
        config::FileMatch::All => files::FileSelector::All,
        config::FileMatch::Type(media) => files::FileSelector::Media(media.clone()),
        config::FileMatch::Path(pattern) => {
            let pattern = pattern.clone();
            files::FileSelector::Path(Arc::new(move |path| pattern.matches(path)))
        }
    };
    files::CacheRule { files: applies, value: value.clone() }
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
            assert_eq!(file_options(&config, &config::Files::default(), 8).cache.entries_max, each);
        }
    }
}
