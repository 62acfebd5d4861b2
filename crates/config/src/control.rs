//! The listener of those who operate the server.

use crate::listen::{Address, Listen};
use crate::record::directives;
use crate::shape::Maybe;

directives! {
    /// The listener of those who operate the server: `GET /metrics` is for Prometheus, `GET /v1/status` is what `komainu status
    /// --json` prints. Whoever reaches it can read both, so choose an address of this machine or of a network of your own.
    /// A change needs a restart or an upgrade.
    ///
    /// ```toml
    /// [control]
    /// listen = "127.0.0.1:9180"
    /// ```
    Control in "`[control]`" {
        /// Its address: one of TCP, or a Unix socket (`unix:PATH`), which belongs to the user of the server.
        "listen" listen: Option<Listen> = absent("none"), Maybe(Address);
    }
}
