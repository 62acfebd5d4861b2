//! The server through which several servers share the counts of limits.

use cluster::address::{StoreAddress, prefix};
use settings::directives;
use settings::shape::{Maybe, PathShape, Text, Time};
use std::path::PathBuf;
use std::time::Duration;

directives! {
    /// A Redis or Valkey server through which servers share the counts of limits with `shared = true`.
    ///
    /// ```toml
    /// [limits.shared]
    /// redis         = "redis://10.0.0.5:6379"
    /// password_file = "/etc/komainu/redis.password"
    ///
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = "http://127.0.0.1:3000"
    /// limit = { rate = "100/s", key = "header:X-Api-Key", shared = true }
    /// ```
    ///
    /// No request waits for it: each server decides by the counts it has, and a separate thread exchanges
    /// counts every `interval`. While the Redis server is unavailable, each server keeps its own limit, and
    /// the log reports it. Redis gets digests of keys (SHA-256), not the keys.
    /// With `[cluster]`, this table is needed only for other settings than these.
    SharedLimits in "`[limits.shared]`" {
        /// Address of the Redis server: `redis://[USER@]HOST[:PORT][/DATABASE]`, `rediss://…` for TLS with an authority
        /// that the system trusts, or `unix:PATH`.
        "redis" redis: Option<StoreAddress> = absent("the store of `[cluster]`, with its TLS, password and Sentinels"),
            Maybe(Text { what: "an address such as \"redis://127.0.0.1:6379\"", parse: StoreAddress::parse });
        /// A file with the password of `redis`.
        "password_file" password_file: Option<PathBuf> = absent("no password"), Maybe(PathShape("a file"));
        /// Interval at which counts are exchanged. Two servers under full load together exceed a limit by the
        /// requests that they admit in this time.
        "interval" interval: Duration = "10ms", Time { min: Duration::from_millis(1), max: Duration::from_secs(10) };
        /// Maximum time to wait for an answer. Then the server counts as unavailable until it is reached
        /// again.
        "timeout" timeout: Duration = "1s", Time { min: Duration::from_millis(10), max: Duration::from_secs(60) };
        /// Prefix of the keys. Servers with the same prefix count together.
        "prefix" prefix: String = "komainu", Text { what: "a name", parse: prefix };
    }
}
