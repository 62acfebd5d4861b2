//! Texts for directives of several servers.

pub(crate) const COUNTRIES: &str =
    "`[geo]` with `database`; then `country` is a condition of routes and `$country` a variable";
pub(crate) const RUNNING: &str =
    "`komainu status` finds the server, a service manager starts it in the foreground";
pub(crate) const CERTIFICATE: &str = "`tls = { certificate = \"FILE\", key = \"FILE\" }` in a `[[site]]`";
pub(crate) const COMPRESS: &str = "`compress = true`, at the top of the file, in a site or in a route";
pub(crate) const MODERN_TLS: &str =
    "TLS 1.3 and 1.2 with their safe ciphers are spoken: `min` of `[tls]` says which";
pub(crate) const CODE: &str = "it is code: do it where the application is loaded";
pub(crate) const FORKED: &str = "workers are forked from a process that has loaded the application";
pub(crate) const REPLACE: &str = "`replace = { from = \"...\", to = \"...\" }` in a site or route";
/// Differences of servers of applications.
pub(crate) const APPLICATION_DIFFERENCES: &[&str] = &[
    "The web server and the workers are one: requests and responses are buffered, so that slow clients occupy no worker.",
    "Workers are forked from a process that has loaded the application (`preload`); code that opens connections or starts \
     threads when it is loaded runs once, in none of the workers, and `preload = false` loads it in each.",
    "The output of the application goes to the error log.",
    "SIGHUP loads the configuration and the application again, without a lost request.",
];
