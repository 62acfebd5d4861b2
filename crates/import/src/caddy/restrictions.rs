//! Classification of Caddy's handlers and matchers that restrict access.

use crate::data::DataNode;

/// Handlers that refuse no requests and need no translation.
pub(super) const HARMLESS_HANDLERS: [&str; 5] = ["tracing", "log_append", "push", "metrics", "encode"];
/// Whether requests would get something else without a route: it refuses or authenticates some, answers them, changes
/// what the next handlers look at, or has unknown handlers. Redirects count if `redirects_restrict` is set.
pub(super) fn restricts_access(node: &DataNode, redirects_restrict: bool) -> bool {
    let status = node.get("status_code").and_then(DataNode::number).unwrap_or(200);
    let restricts_itself = match node.get("handler").and_then(DataNode::text) {
        Some("static_response") => redirects_restrict || !(300..400).contains(&status),
        Some("headers") => node.get("request").is_some(),
        Some("subroute") | None => false,
        Some(kind) => !HARMLESS_HANDLERS.contains(&kind),
    };
    let handlers = node.get("handle").map_or(&[][..], DataNode::items);
    let routes = node.get("routes").map_or(&[][..], DataNode::items);
    restricts_itself || handlers.iter().chain(routes).any(|one| restricts_access(one, redirects_restrict))
}

/// Whether a handler answers requests, other than with files or an error.
pub(super) fn is_answer_without_file(handler: &DataNode, kind: &str) -> bool {
    let status = handler.get("status_code").and_then(DataNode::number);
    let is_refused = handler.get("abort").and_then(DataNode::flag) == Some(true)
        || status.is_some_and(|status| (400..600).contains(&status));
    match kind {
        "static_response" => !is_refused,
        "reverse_proxy" => handler.get("handle_response").is_none(),
        _ => false,
    }
}

/// Whether a route, or one in it, answers requests other than with files or an error, or changes the path.
pub(super) fn answers_without_file(node: &DataNode) -> bool {
    let kind = node.get("handler").and_then(DataNode::text);
    let answers = match kind {
        None | Some("file_server" | "subroute" | "headers" | "vars" | "error" | "request_body") => false,
        Some(kind) if HARMLESS_HANDLERS.contains(&kind) => false,
        Some(kind @ "static_response") => is_answer_without_file(node, kind),
        Some(_) => true,
    };
    let handlers = node.get("handle").map_or(&[][..], DataNode::items);
    let routes = node.get("routes").map_or(&[][..], DataNode::items);
    answers || handlers.iter().chain(routes).any(answers_without_file)
}

/// Whether a redirect with these matchers may lead to a login page.
pub(super) fn may_lead_to_login(route: &DataNode) -> bool {
    let keys = route.get("match").map_or(&[][..], DataNode::items).iter().flat_map(DataNode::entries);
    keys.map(|(key, _)| key.as_str()).any(|key| !matches!(key, "file" | "protocol" | "host" | "path"))
}

/// Whether a set of matchers has a single matcher, the one for files.
pub(super) fn matches_only_files(set: &DataNode) -> bool {
    set.entries().len() == 1
}

/// Whether a value within this one uses groups of an expression.
pub(super) fn uses_groups(node: &DataNode) -> bool {
    node.text().is_some_and(|text| text.contains("{http.regexp."))
        || node.items().iter().any(uses_groups)
        || node.entries().iter().any(|(_, value)| uses_groups(value))
}

/// Whether a handler redirects to the path with a trailing slash.
pub(super) fn redirects_to_slash(handler: &DataNode) -> bool {
    let location = handler.at(&["headers", "Location"]).map_or_else(Vec::new, DataNode::texts);
    matches!(location.as_slice(), [to] if matches!(
        to.as_str(),
        "{http.request.orig_uri.path}/" | "{http.request.uri.path}/" | "{http.request.orig_uri.path}/{http.request.orig_uri.prefixed_query}"
    ))
}

/// Whether a handler rewrites the path to the file that the matcher `file` has found, and does nothing else.
pub(super) fn rewrites_to_found_file(handler: &DataNode) -> bool {
    handler.entries().len() == 2
        && handler.get("uri").and_then(DataNode::text) == Some("{http.matchers.file.relative}")
}

/// Whether a set of matchers matches directories whose path has no trailing slash.
pub(super) fn matches_folders_without_slash(set: &DataNode) -> bool {
    let is_with_slash = |not: &DataNode| not.get("path").is_some_and(|path| path.texts() == ["*/"]);
    set.get("file").is_some()
        && set
            .entries()
            .iter()
            .all(|(key, value)| key == "file" || key == "not" && value.items().iter().all(is_with_slash))
}
