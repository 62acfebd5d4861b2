//! Translation of annotation values.

use shapes::template::nginx_target;

use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::ImportLedger;

/// Returns the `timeouts` of `proxy` with another one added.
pub(super) fn with_timeout(section: &TomlSection, key: &str, text: &str) -> TomlItem {
    let value = format!("{}s", text.trim_end_matches('s').parse::<u64>().unwrap_or(60).clamp(1, 86_400));
    let mut entries = match section.get("proxy") {
        Some(TomlItem::Table(entries)) => match entries.iter().find(|(name, _)| name == "timeouts") {
            Some((_, TomlItem::Table(known))) => known.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    entries.push((key.to_owned(), TomlItem::Text(value)));
    TomlItem::Table(entries)
}

/// Returns the target of the redirect to the login page, with the requested URL as a parameter.
#[must_use]
pub fn translate_sign_in(text: &str, parameter: Option<&str>) -> Option<String> {
    let mut to = text.to_owned();
    for host in ["$host", "$http_host", "$best_http_host"] {
        for scheme in ["$scheme", "$pass_access_scheme", "https", "http"] {
            to = to.replace(&format!("{scheme}://{host}$escaped_request_uri"), "$url");
            // A path is a URL on the same host.
            to =
                to.strip_prefix(&format!("{scheme}://{host}/")).map_or(to.clone(), |path| format!("/{path}"));
        }
    }
    to = to.replace("$escaped_request_uri", "$url");
    if !to.contains("$url") {
        let sign = if to.contains('?') { '&' } else { '?' };
        to = format!("{to}{sign}{}=$url", parameter.unwrap_or("rd"));
    }
    (to.matches('$').count() == to.matches("$url").count()).then_some(to)
}

/// Translates a size in nginx's notation.
pub(super) fn translate_body_size(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    match (digits.parse::<u64>(), text.to_lowercase().chars().last()) {
        (Ok(0), _) => "unlimited".to_owned(),
        (Ok(count), Some('k')) => format!("{count}KiB"),
        (Ok(count), Some('m')) => format!("{count}MiB"),
        (Ok(count), Some('g')) => format!("{count}GiB"),
        (Ok(count), _) => format!("{count}B"),
        (Err(_), _) => "1MiB".to_owned(),
    }
}

/// Translates `rewrite-target`: the new path of all requests of a route, which may contain groups of its
/// expression. The route is closed if it contains anything else.
pub(super) fn translate_rewrite_target(
    ledger: &ImportLedger,
    target: &DataNode,
    path: &str,
    section: &mut TomlSection,
) {
    let text = target.text().unwrap_or("");
    if section.is_closed() {
        target.mark_different(ledger, "not written: the route is closed (403)");
        return;
    }
    if text == path || section.get("proxy").is_none() {
        target.mark_not_needed(ledger, "not needed: the path stays as it is");
        return;
    }
    let groups = match section.get("path") {
        Some(TomlItem::Text(path)) => {
            shapes::pattern::PathPattern::parse(path).map_or_else(|_| Vec::new(), |path| path.groups())
        }
        _ => Vec::new(),
    };
    let is_known = |rest: &str| {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        groups.contains(&name)
    };
    let is_path = text.starts_with('/') && text.chars().all(|c| c.is_ascii_graphic() && c != '#');
    if is_path && text.split('$').skip(1).all(is_known) {
        section.set_text("rewrite", nginx_target(text));
        target.mark_translated(ledger);
        return;
    }
    let reason = "the target is a path with groups (`$1`) of the expression in `path`: the route is closed (403) until `rewrite` has the new path";
    target.entry.into_iter().for_each(|entry| ledger.mark_impossible(entry, reason));
    section
        .close(ledger.check_comment(target.line, &format!("rewrite-target `{text}` of `{path}`: {reason}")));
}
