//! Paths within and next to locations, for requests.

use crate::paths::matching_examples;

/// Maximum number of paths for one location.
pub(super) const PATHS_MAX: usize = 14;

pub(super) fn is_target(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>'))
}

pub(super) fn shorten_path(path: &str) -> String {
    path[..path.len().saturating_sub(1)].to_owned()
}

pub(super) fn paths_for_prefix(path: &str) -> (Vec<String>, Vec<String>) {
    let of = |rest: &[&str]| rest.iter().map(|rest| format!("{path}{rest}")).collect::<Vec<String>>();
    if path.ends_with('/') {
        (
            of(&[
                "verify.txt",
                "",
                "folder/verify.js",
                "folder",
                "folder/",
                "missing",
                "index.html",
                "verify.php",
            ]),
            vec![shorten_path(path), format!("{}x", shorten_path(path))],
        )
    } else {
        (of(&["", "/", "/verify.txt", "/folder/verify.js", "/missing", "x"]), vec![shorten_path(path)])
    }
}

pub(super) fn paths_for_regex(
    regex: &str,
    ignores_case: bool,
    within: Option<&str>,
) -> (Vec<String>, Vec<String>) {
    let prefix = within.unwrap_or("/").trim_end_matches('/');
    let mut paths: Vec<String> = Vec::new();
    for (text, at_start, at_end) in matching_examples(regex) {
        let path = match at_start {
            true => text,
            false if text.starts_with('/') => format!("{prefix}{text}"),
            false => format!("{prefix}/verify{text}"),
        };
        if !at_end {
            paths.push(format!("{path}more"));
        }
        paths.push(path);
    }
    paths.truncate(PATHS_MAX);
    let mut beside: Vec<String> = Vec::new();
    for path in paths.iter().take(3) {
        beside.extend([format!("{path}x"), shorten_path(path), format!("{path}/"), format!("/folder{path}")]);
        let upper = path.to_uppercase();
        if upper != *path {
            beside.push(upper);
        }
    }
    if ignores_case {
        let mixed = paths.first().map(|path| {
            path.char_indices().map(|(at, c)| if at % 2 == 0 { c } else { c.to_ascii_uppercase() }).collect()
        });
        beside.extend(mixed);
    }
    (paths, beside)
}
