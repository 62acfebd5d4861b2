//! Classification of Caddy's handlers and matchers that restrict access.

use crate::data::DatumAt;

/// Handlers that refuse no requests and need no translation.
pub(super) const HARMLESS: [&str; 5] = ["tracing", "log_append", "push", "metrics", "encode"];
/// Handlers that refuse no requests and are translated.
pub(super) const SERVING: [&str; 7] =
    ["file_server", "headers", "vars", "rewrite", "request_body", "subroute", "reverse_proxy"];

/// Whether a route refuses or authenticates requests, or has unknown handlers. Redirects count if
/// `redirects_restrict` is set.
pub(super) fn restricts(within: &DatumAt, redirects_restrict: bool) -> bool {
    let status = within.get("status_code").and_then(DatumAt::number).unwrap_or(200);
    let restricts_itself = match within.get("handler").and_then(DatumAt::text) {
        Some("static_response") => {
            status >= 400
                || redirects_restrict && status >= 300
                || within.get("abort").and_then(DatumAt::flag) == Some(true)
        }
        Some("reverse_proxy") => within.get("handle_response").is_some(),
        Some(kind) => !SERVING.contains(&kind) && !HARMLESS.contains(&kind),
        None => false,
    };
    let handlers = within.get("handle").map_or(&[][..], DatumAt::items);
    let routes = within.get("routes").map_or(&[][..], DatumAt::items);
    restricts_itself || handlers.iter().chain(routes).any(|one| restricts(one, redirects_restrict))
}

/// Whether a redirect with these matchers may lead to a login page.
pub(super) fn may_ask_users(route: &DatumAt) -> bool {
    let keys = route.get("match").map_or(&[][..], DatumAt::items).iter().flat_map(DatumAt::entries);
    keys.map(|(key, _)| key.as_str()).any(|key| !matches!(key, "file" | "protocol" | "host" | "path"))
}

/// Whether a set of matchers has a single matcher, the one for files.
pub(super) fn asks_files_alone(set: &DatumAt) -> bool {
    set.entries().len() == 1
}

/// Whether a value within this one uses groups of an expression.
pub(super) fn names_groups(within: &DatumAt) -> bool {
    within.text().is_some_and(|text| text.contains("{http.regexp."))
        || within.items().iter().any(names_groups)
        || within.entries().iter().any(|(_, value)| names_groups(value))
}

/// Whether a handler redirects to the path with a trailing slash.
pub(super) fn adds_slash(handler: &DatumAt) -> bool {
    let location = handler.at(&["headers", "Location"]).map_or_else(Vec::new, DatumAt::texts);
    matches!(location.as_slice(), [to] if matches!(
        to.as_str(),
        "{http.request.orig_uri.path}/" | "{http.request.uri.path}/" | "{http.request.orig_uri.path}/{http.request.orig_uri.prefixed_query}"
    ))
}

/// Whether a set of matchers matches directories whose path has no trailing slash.
pub(super) fn asks_for_folders(set: &DatumAt) -> bool {
    let is_with_slash = |not: &DatumAt| not.get("path").is_some_and(|path| path.texts() == ["*/"]);
    set.get("file").is_some()
        && set
            .entries()
            .iter()
            .all(|(key, value)| key == "file" || key == "not" && value.items().iter().all(is_with_slash))
}
