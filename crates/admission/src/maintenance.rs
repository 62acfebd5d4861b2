//! The maintenance page.

use settings::directive_table::brief;
use settings::directives;
use settings::shape::{Maybe, OneOrMore, PathShape, Shape, Text, Time, Toggle};
use shapes::network::{SOURCE, TrustedSource};
use shapes::pattern::PathPattern;
use std::path::PathBuf;
use std::time::Duration;

/// `maintenance` of the server or of a site; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<Maintenance>>> {
    Maybe(Toggle {
        on: Some(|| Some(Maintenance::default())),
        off: || None,
        shape: Maybe(brief::<Maintenance>("page")),
    })
}

directives! {
    /// Maintenance mode: requests are answered 503 with `Retry-After` and a page. A page alone is shorthand for
    /// `page`; `true` is the server's own page; `false` in a site exempts it from the server's maintenance
    /// mode.
    ///
    /// ```toml
    /// [[site]]
    /// hosts       = "example.com"
    /// maintenance = { page = "maintenance.html", file = "/run/komainu/maintenance", except = ["10.0.0.0/8"], except_paths = "/health" }
    ///
    /// [[site.route]]
    /// proxy = "http://127.0.0.1:3000"
    /// ```
    ///
    /// With `file`, the mode is on while that file exists (`touch FILE`, `rm FILE`), which is checked at most
    /// once a second. Without it, the mode is on as long as the directive is present: `komainu reload`
    /// switches it. It is applied before limits, authentication and the cache, and after `allow`, `deny` and
    /// the redirect to HTTPS. Challenges of certificate authorities are still answered.
    Maintenance in "`maintenance`" {
        /// The page, at most 1 MiB; `.html`, `.txt` or `.json`. It is read at the start and at a reload.
        "page" page: Option<PathBuf> = absent("as `error_pages` has it for 503"), Maybe(PathShape("a file"));
        /// The file that switches it on by being there.
        "file" file: Option<PathBuf> = absent("always on"), Maybe(PathShape("a file"));
        /// Clients that are served as ever, by address: networks, addresses and `"unix"`.
        "except" except: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Paths that are not affected, such as those of health checks; patterns as in `path` of a route.
        "except_paths" except_paths: Vec<PathPattern> = absent("none"),
            OneOrMore(Text { what: "a path such as \"/health\" or \"/status/*\"", parse: PathPattern::parse });
        /// Time after which clients should retry (`Retry-After`).
        "retry_after" retry_after: Duration = "10m",
            Time { min: Duration::from_secs(1), max: Duration::from_secs(30 * 86_400) };
    }
}
