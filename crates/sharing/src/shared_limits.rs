//! The server through which several servers share the counts of limits.

use settings::checker::InvalidValue;
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
    SharedLimits in "`[limits.shared]`" {
        /// Address of the Redis server: `redis://[USER@]HOST[:PORT][/DATABASE]`, or `unix:PATH`.
        "redis" redis: String = required(""), Text { what: "an address such as \"redis://127.0.0.1:6379\"", parse: parse_redis };
        /// A file with its password.
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

fn parse_redis(text: &str) -> Result<String, InvalidValue> {
    const HOW: &str = "write \"redis://HOST:PORT\" or \"unix:/run/redis/redis.sock\"";
    if text.starts_with("rediss://") {
        return Err(InvalidValue::new(
            "TLS to Redis is not supported",
            "use a Unix socket, a tunnel or a private network",
        ));
    }
    if let Some(at) = text.strip_prefix("redis://")
        && let Some((user, _)) = at.rsplit_once('@')
        && user.contains(':')
    {
        return Err(InvalidValue::new(
            "a password in the configuration",
            "write it into a file, and name that in `password_file`",
        ));
    }
    let is_named = |rest: Option<&str>| rest.is_some_and(|rest| !rest.is_empty());
    if is_named(text.strip_prefix("redis://")) || is_named(text.strip_prefix("unix:")) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not the address of a Redis server", HOW))
    }
}

fn prefix(text: &str) -> Result<String, InvalidValue> {
    if (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a prefix", "write 1 to 64 letters, digits and signs of ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_addresses_must_not_contain_a_password() {
        for right in ["redis://127.0.0.1", "redis://user@h:1/2", "unix:/run/redis.sock"] {
            assert!(parse_redis(right).is_ok(), "{right}");
        }
        for wrong in ["", "redis://", "unix:", "rediss://h", "redis://:secret@h", "http://h"] {
            assert!(parse_redis(wrong).is_err(), "{wrong}");
        }
    }
}
