//! Warnings of directives that contradict others, so that they have no effect.

use settings::checker::{Checker, shorten};
use settings::node::{Node, as_text, is_enabled};

/// Warns of `strip_prefix` that no path of the route begins with.
pub(crate) fn warn_of_foreign_prefix(route: &Node, check: &mut Checker) {
    let paths = route.one_or_more("path");
    if paths.is_empty() || route.entry("rewrite").is_some() {
        return;
    }
    for key in ["files", "proxy", "app"] {
        let Some(entry) = route.entry(key).and_then(|action| action.value.entry("strip_prefix")) else {
            continue;
        };
        let Some(prefix) = as_text(&entry.value).filter(|prefix| !prefix.ends_with('/')) else { continue };
        let may_begin = |path: &Node| {
            as_text(path).is_none_or(|path| {
                let (start, is_open) = path.split_once('*').map_or((path, false), |(start, _)| (start, true));
                !path.starts_with('/') || start.starts_with(prefix) || is_open && prefix.starts_with(start)
            })
        };
        if !paths.iter().any(may_begin) {
            let title = format!("no path of this route begins with `{}`", shorten(prefix));
            let finding = check.warning(&entry.value.span, title, "there is nothing to remove");
            finding.help("write the start of `path`, or `strip_prefix = true`");
        }
    }
}

/// Warns of networks that are in `allow` and in `deny`.
pub(crate) fn warn_of_denied_networks(level: &Node, check: &mut Checker) {
    let denied: Vec<&str> = level.one_or_more("deny").iter().filter_map(as_text).collect();
    for item in level.one_or_more("allow") {
        if let Some(network) = as_text(item).filter(|network| denied.contains(network)) {
            let title = format!("`{}` is in `allow` and in `deny`", shorten(network));
            let finding = check.warning(&item.span, title, "`deny` counts, and these clients get 403");
            finding.help("remove it from one of them");
        }
    }
}

/// Warns of `hsts` of sites that no client reaches over TLS.
pub(crate) fn warn_of_hsts_without_tls(node: &Node, check: &mut Checker) {
    let has_tls = |level: &Node| {
        level.entry("tls").is_some_and(|tls| is_enabled(&tls.value))
            || level.entry("tls").is_none() && level.entry("trusted_proxies").is_some()
            || level.one_or_more("listen").iter().any(|item| {
                item.entry("tls").is_some()
                    || item.entry("proxy_protocol").is_some()
                    || as_text(item.entry("address").map_or(item, |entry| &entry.value))
                        .is_none_or(|address| address == "443" || address.ends_with(":443"))
            })
    };
    for site in node.items("site").iter().filter(|site| site.entry("tls").is_none()) {
        let Some(hsts) = site.entry("hsts").filter(|entry| is_enabled(&entry.value)) else { continue };
        if !has_tls(node) && !has_tls(site) {
            let title = "`hsts` without an address for TLS".to_owned();
            let finding = check.warning(&hsts.key_span, title, "the field is sent over TLS alone");
            finding.help("add `listen = [\":80\", \":443\"]` and `tls = \"auto\"`, or a certificate");
        }
    }
}
