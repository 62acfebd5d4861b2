//! Arguments of `komainu ctl`.

use clap::{Args, Subcommand};

use crate::cli::control_endpoint::ControlCredentials;

/// `komainu ctl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    komainu ctl upstream drain shop 10.0.0.2:8080    no new clients for this server\n  \
    komainu ctl config get upstreams/shop            an item of the configuration\n  \
    komainu ctl config set timeouts/drain 60s        change one (or timeouts.drain); comments stay\n  \
    komainu ctl cache purge --tag article-17\n  \
    komainu ctl --to https://10.0.0.5:9180 --cacert ca.pem --token-file admin.token status\n")]
pub(crate) struct CtlArguments {
    /// The server with this process id; not needed if only one runs
    #[arg(long, global = true, conflicts_with = "to")]
    pub(crate) pid: Option<u32>,
    /// The control listener of a server: https://HOST:PORT, http://HOST:PORT or unix:PATH [default: a server of this user, on this machine]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: ControlCredentials,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Show the server, its processes and what they use
    Status,
    /// Read or change the configuration
    #[command(subcommand)]
    Config(CtlConfig),
    /// Upstream servers
    #[command(subcommand)]
    Upstream(CtlUpstream),
    /// Applications
    #[command(subcommand)]
    App(CtlApp),
    /// The cache
    #[command(subcommand)]
    Cache(CtlCache),
    /// Certificates
    #[command(subcommand)]
    Certificate(CtlCertificate),
    /// Connections of clients
    #[command(subcommand)]
    Connection(CtlConnection),
    /// Configurations that requests still work by
    #[command(subcommand)]
    Generation(CtlGeneration),
    /// Read the configuration again
    Reload,
    /// Open the log files again, after they were moved away
    Reopen,
    /// Show who has changed what, the newest first
    Audit,
    /// Send any request of the API, and print what is answered
    Api {
        /// GET, PUT, PATCH, POST or DELETE
        method: String,
        /// Such as /v1/status
        path: String,
        /// The body: JSON
        body: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlConfig {
    /// Show an item, or all of it, as JSON
    Get {
        /// Keys, places in lists and names, with `/` between them: site/example.com/route/0
        path: Option<String>,
    },
    /// Give an item a value
    Set {
        path: String,
        /// JSON, or a text
        value: String,
        /// Do not write it to the file
        #[arg(long)]
        no_persist: bool,
    },
    /// Remove an item
    Unset {
        path: String,
        /// Do not write it to the file
        #[arg(long)]
        no_persist: bool,
    },
    /// Change an item in an editor ($VISUAL or $EDITOR), as JSON
    Edit { path: Option<String> },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlUpstream {
    /// Show all groups and servers
    List,
    /// Give a server no more requests, but those of clients whose sticky cookie names it
    Drain { group: String, server: String },
    /// Give a server no requests
    Down { group: String, server: String },
    /// Return a server
    Ready { group: String, server: String },
    /// Change a server's share of the requests
    Weight { group: String, server: String, weight: u32 },
    /// Add a server to a group, in the configuration too
    Add { group: String, url: String },
    /// Remove a server from a group, in the configuration too
    Remove { group: String, server: String },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlApp {
    /// Show all applications and processes
    List,
    /// Load an application again, without losing a request
    Restart { name: String },
    /// Change how many workers an application has, in the configuration too
    Workers { name: String, count: u32 },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCache {
    /// Show what it holds
    Show,
    /// Remove stored responses
    Purge {
        /// A URL, in all its variants
        #[arg(required_unless_present_any = ["prefix", "tag", "all"])]
        url: Option<String>,
        /// Every URL that begins so
        #[arg(long)]
        prefix: Option<String>,
        /// Every response with this tag
        #[arg(long)]
        tag: Option<String>,
        /// Everything
        #[arg(long, conflicts_with_all = ["url", "prefix", "tag"])]
        all: bool,
        /// Make them stale instead
        #[arg(long)]
        soft: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlConnection {
    /// Show how many there are by listener, protocol and client
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlGeneration {
    /// Show the one in force, and those that requests still work by
    List,
    /// Close the requests, WebSockets and tunnels of an old one
    Close { number: u64 },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCertificate {
    /// Show those in use
    List,
    /// Renew one now
    Renew { name: String },
}
