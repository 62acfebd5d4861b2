//! Translation of annotation values.

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
pub(super) fn translate_sign_in(text: &str, parameter: Option<&str>) -> Option<String> {
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

/// Translates `rewrite-target`, which replaces the prefix of the path.
pub(super) fn translate_rewrite_target(
    ledger: &ImportLedger,
    target: &DataNode,
    (prefix, keeps_rest, is_expression): (&str, bool, bool),
    section: &mut TomlSection,
) {
    let text = target.text().unwrap_or("");
    let groups = match section.get("path") {
        Some(TomlItem::Text(path)) if is_expression => {
            shapes::pattern::PathPattern::parse(path).map_or_else(|_| Vec::new(), |path| path.groups())
        }
        _ => Vec::new(),
    };
    let is_known = |rest: &str| {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        groups.contains(&name)
    };
    if is_expression && text.starts_with('/') && text.split('$').skip(1).all(is_known) {
        if section.get("proxy").is_some() {
            section.entries.retain(|(key, _)| key != "rewrite");
            section.set_text("rewrite", text);
        }
        target.mark_translated(ledger);
        return;
    }
    let head = text.trim_end_matches("$1").trim_end_matches("$2").trim_end_matches('/');
    if !keeps_rest || head.contains('$') || !(text.ends_with("$1") || text.ends_with("$2")) {
        target.mark_impossible(ledger, "only what a final `(.*)` finds can be kept: `strip_prefix` and `add_prefix` change the start of paths");
        section.comment(format!("CHECK: rewrite-target {text} is not applied."));
        return;
    }
    if section.get("proxy").is_some() {
        if !prefix.is_empty() {
            section.set_in("proxy", "strip_prefix", TomlItem::text(prefix));
        }
        if !head.is_empty() {
            section.set_in("proxy", "add_prefix", TomlItem::text(head));
        }
    }
    target.mark_translated(ledger);
}
