//! Addresses of stores.

use settings::checker::InvalidValue;

const DEFAULT_PORT: u16 = 6379;
const HOW: &str =
    "write \"redis://HOST:PORT\", \"rediss://HOST:PORT\" for TLS, or \"unix:/run/valkey/valkey.sock\"";

/// Address of a server, with the user and database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreAddress {
    /// Endpoint to connect to.
    pub endpoint: StoreEndpoint,
    /// User (ACL); `None` for the default user.
    pub user: Option<String>,
    /// Number of the database.
    pub database: u32,
    /// The address as written.
    pub text: String,
}

/// Endpoint at which a store listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEndpoint {
    /// A name or IP address without brackets, and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Whether the connection uses TLS.
        is_tls: bool,
    },
    /// Path of a Unix socket.
    Unix(String),
}

impl Default for StoreEndpoint {
    fn default() -> StoreEndpoint {
        StoreEndpoint::Unix(String::new())
    }
}

impl StoreAddress {
    /// Parses `redis://[USER@]HOST[:PORT][/DATABASE]`, `rediss://…` or `unix:PATH`.
    ///
    /// # Errors
    /// The text has none of these forms, or contains a password.
    pub fn parse(text: &str) -> Result<StoreAddress, InvalidValue> {
        let wrong = |what: &str| InvalidValue::new(what.to_owned(), HOW);
        let of = |endpoint, user, database| StoreAddress { endpoint, user, database, text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong("there is no path"));
            }
            return Ok(of(StoreEndpoint::Unix(path.to_owned()), None, 0));
        }
        let schemes = [("redis://", false), ("rediss://", true)];
        let found = schemes.iter().find_map(|(scheme, tls)| Some((text.strip_prefix(scheme)?, *tls)));
        let (rest, is_tls) = found.ok_or_else(|| wrong("this is not the address of a Redis server"))?;
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), rest),
            None => (None, rest),
        };
        if user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err(InvalidValue::new(
                "a password in the configuration",
                "write it into a file, and name that in `password_file`",
            ));
        }
        let (at, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| wrong("the database is a number"))?,
        };
        // Colons within brackets belong to an IPv6 address.
        let (host, port) = match at.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong("the port is from 0 to 65535"))?),
            None => (at, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("there is no host"));
        }
        Ok(of(StoreEndpoint::Tcp { host: host.to_owned(), port, is_tls }, user, database))
    }
}

/// Parses the prefix of keys.
///
/// # Errors
/// The text is empty, long, or has other characters than visible ASCII.
pub fn prefix(text: &str) -> Result<String, InvalidValue> {
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
    fn store_addresses_are_parsed() {
        let tcp = |text: &str, host: &str, port, is_tls, user: Option<&str>, database| {
            let endpoint = StoreEndpoint::Tcp { host: host.into(), port, is_tls };
            let user = user.map(Into::into);
            assert_eq!(
                StoreAddress::parse(text).unwrap(),
                StoreAddress { endpoint, user, database, text: text.into() }
            );
        };
        tcp("redis://h", "h", 6379, false, None, 0);
        tcp("rediss://h:7", "h", 7, true, None, 0);
        tcp("redis://me@[::1]:1/2", "::1", 1, false, Some("me"), 2);
        tcp("redis://[::1]/3", "::1", 6379, false, None, 3);
        let unix = StoreAddress::parse("unix:/run/r").unwrap();
        assert_eq!(unix.endpoint, StoreEndpoint::Unix("/run/r".into()));
        let wrong = ["", "http://h", "redis://", "unix:", "redis://h:x", "redis://h/x", "redis://:1"];
        for text in wrong.into_iter().chain(["redis://:secret@h", "rediss://me:secret@h"]) {
            assert!(StoreAddress::parse(text).is_err(), "{text}");
        }
    }
}
