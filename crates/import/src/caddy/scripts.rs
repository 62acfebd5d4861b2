//! Scripts of PHP sites, and durations, in Caddy's JSON.

use crate::data::DataNode;
use crate::draft::TomlItem;

/// Scripts that handle paths of directories and paths without a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CaddyScripts {
    /// The index page of directories.
    pub(super) index_script: String,
    /// The script that handles paths without a file; `None` if they are answered 404.
    pub(super) front_script: Option<String>,
}

impl CaddyScripts {
    /// Parses `try_files` of a matcher with `split_path`.
    pub(super) fn from_file_matcher(file: &DataNode) -> Option<Self> {
        let splits = file.get("split_path")?.texts();
        let tries = file.get("try_files")?.texts();
        let [path, index, last] = tries.as_slice() else { return None };
        let index = index.strip_prefix("{http.request.uri.path}/")?;
        let front = match last.as_str() {
            "=404" => None,
            script => Some(format!("/{}", script.trim_start_matches('/'))),
        };
        let is_script = |name: &str| name.ends_with(".php") && !name.contains('{');
        let is_php = splits == [".php"]
            && path == "{http.request.uri.path}"
            && is_script(index)
            && front.as_deref().is_none_or(is_script);
        is_php.then(|| Self { index_script: index.to_owned(), front_script: front })
    }
}

/// Returns the handler of a route that only passes requests to FastCGI servers.
pub(super) fn fastcgi_handler(route: &DataNode) -> Option<&DataNode> {
    let [handler] = route.get("handle")?.items() else { return None };
    let protocol = handler.at(&["transport", "protocol"])?.text()?;
    (protocol == "fastcgi").then_some(handler)
}

/// Translates a duration, a text or a number of nanoseconds, to Komainu's notation.
pub(super) fn translate_duration(value: &DataNode) -> Option<TomlItem> {
    let text = value.text()?;
    let ms = match text.parse::<u64>() {
        Ok(nanoseconds) => nanoseconds / 1_000_000,
        Err(_) => return Some(TomlItem::text(text)),
    };
    let ms = ms.clamp(10, 86_400_000);
    Some(TomlItem::Text(if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }))
}
