//! Arguments of `komainu sign-url`.

use std::path::PathBuf;

use clap::Args;

/// `komainu sign-url`.
#[derive(Debug, Args)]
pub(crate) struct SignUrlArguments {
    /// The file with the secret: that of the route's `secret_file`
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: PathBuf,
    /// How long the URL is valid
    #[arg(long = "for", value_name = "TIME", default_value = "1h")]
    pub(crate) valid: String,
    /// Until when it is valid, in seconds since 1970, in place of --for
    #[arg(long, value_name = "SECONDS", conflicts_with = "valid")]
    pub(crate) until: Option<u64>,
    /// The one client that may use it, where the route has `client = true`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) client: Option<std::net::IpAddr>,
    /// The URL, or its path
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}
