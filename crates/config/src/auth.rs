//! Who has to prove who they are.

use crate::check::InvalidValue;
use crate::rate::{RATE, Rate};
use crate::record::{directives, table};
use crate::shape::{Maybe, PathShape, Shape, Text, Time, Toggle, Unlimited};
use std::path::PathBuf;
use std::time::Duration;

/// `auth` of a site or a route; if absent, the level above applies.
pub(crate) fn policy() -> impl Shape<Out = Option<Option<Auth>>> {
    Maybe(Toggle { on: None, off: || None, shape: Maybe(table::<Auth>()) })
}

directives! {
    /// Users and passwords: requests without them get 401, and browsers ask for them (Basic authentication, RFC 7617). `false` is
    /// for routes of a site that has them.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/admin/*"
    /// proxy = "http://127.0.0.1:3000"
    /// auth  = { basic = "/etc/komainu/admin.htpasswd" }
    /// ```
    ///
    /// `htpasswd -B -c FILE NAME` writes such a file. Passwords are hashed with bcrypt (cost 4 to 15) or Argon2; others are refused,
    /// because a stolen file would reveal them. A changed file counts within a few seconds. The request is passed on with its
    /// `Authorization`. Passwords are readable by everyone on the network path unless the site has `tls`.
    Auth in "`auth` of a site or route" {
        /// A file with a line `NAME:HASH` for each user; `#` begins a comment.
        "basic" basic: PathBuf = required(""), PathShape("a file of users and passwords");
        /// What browsers show when they ask.
        "realm" realm: String = "restricted", Text { what: "a text", parse: realm };
        /// How long a password that was right is remembered, as a keyed hash in memory, so that not each request costs the time that
        /// the password's hash takes. `"0s"` remembers none.
        "remember" remember: Duration = "1m", Time { min: Duration::ZERO, max: Duration::from_secs(3600) };
        /// How often a client, by address, may send a wrong password; more get 429. What is remembered is not counted.
        "failures" failures: Option<Rate> = "10/m", Unlimited(RATE);
    }
}

fn realm(text: &str) -> Result<String, InvalidValue> {
    let is_plain = |byte: u8| (byte == b' ' || byte.is_ascii_graphic()) && !matches!(byte, b'"' | b'\\');
    match text.len() <= 128 && text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(InvalidValue::new(
            "this cannot be shown by every browser",
            "write at most 128 characters of ASCII, without quotes and backslashes",
        )),
    }
}
