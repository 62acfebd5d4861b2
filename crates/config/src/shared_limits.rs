//! Checks that shared limits have a server to share them in.

use settings::checker::Checker;
use settings::node::Node;

/// A limit that is shared needs a place to share it in.
pub(crate) fn check_shared_limits(is_configured: bool, node: &Node, check: &mut Checker) {
    if is_configured {
        return;
    }
    let places = std::iter::once(node).chain(node.items("site")).chain(node.items("route"));
    let routes = node.items("site").iter().flat_map(|site| site.items("route"));
    for place in places.chain(routes) {
        let Some(entry) = place.entry("limit") else { continue };
        let items = match place.items("limit") {
            [] => std::slice::from_ref(&entry.value),
            items => items,
        };
        for shared in items.iter().filter_map(|item| item.entry("shared")) {
            let finding = check.error(
                &shared.key_span,
                "`shared` without `[limits.shared]`".to_owned(),
                "no server to share it in",
            );
            finding.help("name a Redis server there or in `[cluster]`, or remove this");
        }
    }
}
