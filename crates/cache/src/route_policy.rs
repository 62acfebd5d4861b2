//! The directive `cache` of a site or route, as it is configured; [`crate::policy`] has what it comes to for one
//! response.

use crate::purge_clients::CachePurge;
use crate::rules::{self, CacheRule};
use settings::checker::Checker;
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Maybe, Shape, Time, Toggle};
use shapes::pattern::PathPattern;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
/// Rules of one route.
const RULES_MAX: usize = 64;

/// `cache` of a site or a route; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<CachePolicy>>> {
    Maybe(Toggle {
        on: Some(|| Some(CachePolicy::default())),
        off: || None,
        shape: Maybe(table::<CachePolicy>()),
    })
}

directives! {
    /// The cache of responses of `proxy` and `app` (RFC 9111): a shared cache in front of them. `true` is
    /// `{}`: it stores what the origin allows, for as long as the origin allows.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/shop/*"
    /// proxy = "http://127.0.0.1:3000"
    /// cache = { grace = "10m" }
    /// ```
    ///
    /// `Cache-Control`, `CDN-Cache-Control`, `Expires`, `Vary` and `Age` are handled as their RFCs specify.
    /// `Cache-Status` in a response tells how the cache handled the request. Concurrent requests for the same
    /// response are combined into one.
    CachePolicy in "`cache` of a site or route", check policy_agrees {
        /// Time for which a stale response is used while the origin cannot be reached, unless the origin
        /// forbids that (`must-revalidate`, `s-maxage`).
        "grace" grace: Duration = "1h", Time { min: Duration::ZERO, max: DAY };
        /// Maximum heuristic freshness of a response with `Last-Modified` that does not specify its
        /// freshness. The heuristic is a tenth of its age.
        "heuristic" heuristic: Duration = "1d", Time { min: Duration::ZERO, max: DAY };
        /// Whether responses with `Set-Cookie` may be stored: everyone gets the cookie then.
        "set_cookie" stores_cookies: bool = false, Flag;
        /// Clients that may purge by HTTP, with the method `PURGE`.
        "purge" purge: Option<CachePurge> = absent("nobody: such requests are passed on"),
            Maybe(table());
        /// Rules, in order: exceptions for some requests and responses. See `[[route.cache.rule]]`.
        "rule" rules: Vec<CacheRule> = [], List(table());
    }
}

fn policy_agrees(policy: &mut CachePolicy, node: &Node, check: &mut Checker) {
    let nodes = node.items("rule");
    if let Some(first) = nodes.get(RULES_MAX) {
        let title = format!("more than {RULES_MAX} rules in `{}`", check.directive_path_text());
        check
            .error(&first.span, title, "one too many")
            .help("a rule may have several paths, types and statuses");
    }
    if let Some(entry) = node.entry("set_cookie").filter(|_| policy.stores_cookies) {
        rules::warn_of_set_cookie(entry, check);
    }
}

/// Checks that the rules of a site, or of a route with these paths, do not share personal pages with all
/// clients.
pub fn warn_of_shared_pages(
    cache: &Option<Option<CachePolicy>>,
    paths: &[PathPattern],
    node: &Node,
    check: &mut Checker,
) {
    let is_narrow = !paths.is_empty() && !paths.iter().any(PathPattern::matches_whole_site);
    let (Some(Some(policy)), Some(entry)) = (cache, node.entry("cache")) else { return };
    let nodes = entry.value.items("rule");
    if nodes.len() == policy.rules.len() {
        rules::warn_of_shared_personal_pages(&policy.rules, nodes, is_narrow, check);
    }
}
