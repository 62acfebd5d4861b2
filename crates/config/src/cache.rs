//! The cache of responses: its store, and the policy of a route.

use crate::cache_purge::CachePurge;
use crate::cache_rule::CacheRule;
use settings::checker::Checker;
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Maybe, PathShape, Shape, Size, Time, Toggle};
use settings::units::{GIB, KIB, MIB};
use shapes::pattern::PathPattern;
use std::path::PathBuf;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
/// Rules of one route.
const RULES_MAX: usize = 64;

/// `cache` of a site or a route; if absent, the level above applies.
pub(crate) fn policy() -> impl Shape<Out = Option<Option<CachePolicy>>> {
    Maybe(Toggle {
        on: Some(|| Some(CachePolicy::default())),
        off: || None,
        shape: Maybe(table::<CachePolicy>()),
    })
}

directives! {
    /// The store of cached responses, in memory, shared by all routes that have `cache`. It counts against
    /// `limits.memory`, of which it takes at most a quarter. A change empties it.
    ///
    /// ```toml
    /// [cache]
    /// memory = "256MiB"
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:3000"
    /// cache = true
    /// ```
    CacheStore in "`[cache]`" {
        /// Bytes of stored responses, with their keys and header fields. The least requested are removed
        /// first.
        "memory" memory_bytes_max: u64 = "64MiB", Size { min: MIB, max: 1024 * GIB };
        /// Content of the largest response that is stored; at most a sixteenth of `memory`.
        "object" object_bytes_max: u64 = "4MiB", Size { min: KIB, max: 64 * GIB };
        /// A second store on disk, which survives a restart.
        "disk" disk: Option<CacheDisk> = absent("none"), Maybe(table::<CacheDisk>());
    }
}

directives! {
    /// The cache on disk. Responses that are stored in memory and fresh for ten seconds or more are also
    /// written to disk. They are read from there after a restart, or when memory has no room for them.
    ///
    /// ```toml
    /// [cache]
    /// disk = { path = "/var/cache/komainu", size = "10GiB" }
    /// ```
    ///
    /// Each response is a file with checksums. Damaged or incomplete files are dropped. While the folder
    /// cannot be written to (the disk is full or fails), only memory is used; the error log reports it once.
    /// A folder can be used by one process at a time.
    CacheDisk in "`disk` of `[cache]`" {
        /// The folder. Started as root, the server makes it, for the user that it runs as; a change needs a restart while
        /// `sandbox` is on.
        "path" path: PathBuf = required(""), PathShape("a folder");
        /// Bytes of disk space, in whole blocks. The oldest responses that were not used since are removed
        /// first.
        "size" bytes_max: u64 = "1GiB", Size { min: MIB, max: 1 << 50 };
    }
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
        "purge" purge: Option<CachePurge> = absent("nobody: the method has no meaning here, and such requests are passed on"),
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
        crate::cache_rule::warn_of_set_cookie(entry, check);
    }
}

/// Checks that the rules of a site, or of a route with these paths, do not share personal pages with all
/// clients.
pub(crate) fn warn_of_shared_pages(
    cache: &Option<Option<CachePolicy>>,
    paths: &[PathPattern],
    node: &Node,
    check: &mut Checker,
) {
    let is_narrow = !paths.is_empty() && !paths.iter().any(PathPattern::matches_whole_site);
    let (Some(Some(policy)), Some(entry)) = (cache, node.entry("cache")) else { return };
    let nodes = entry.value.items("rule");
    if nodes.len() == policy.rules.len() {
        crate::cache_rule::warn_of_shared_personal_pages(&policy.rules, nodes, is_narrow, check);
    }
}
