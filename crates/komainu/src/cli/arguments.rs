//! The command line.

use clap::{Parser, Subcommand};
use process::confine_arguments::Confine;

use crate::cli::ab::AbArguments;
use crate::cli::cache::CacheCommand;
use crate::cli::cert::{CertCommand, TrustArguments};
use crate::cli::check::CheckArguments;
use crate::cli::ctl_arguments::CtlArguments;
use crate::cli::diff::{DiffArguments, FormatArguments};
use crate::cli::import::ImportArguments;
use crate::cli::kubernetes::KubernetesArguments;
use crate::cli::measure::{BenchArguments, LabArguments};
use crate::cli::run::RunArguments;
use crate::cli::sign_url_arguments::SignUrlArguments;
use crate::cli::start::StartArguments;
use crate::cli::status::{ReloadArguments, StatusArguments, UpgradeArguments};
use crate::cli::top::TopArguments;

/// One web server in place of a stack: files, reverse proxy, applications, and measuring.
#[derive(Debug, Parser)]
#[command(name = "komainu", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:\n  \
    komainu run public/                       serve a folder on http://127.0.0.1:8080\n  \
    komainu run --listen :80 dist/ public/    on every address, the first folder that has the file\n  \
    komainu run http://127.0.0.1:3000         proxy to an application\n  \
    komainu run public/ unix:/run/app.sock    the same, with its files served first\n  \
    komainu run --listen :8443 --tls-certificate cert.pem --tls-key key.pem public/    HTTPS\n  \
    komainu run --workers 4 public/ app.psgi  an application, with its files served first\n  \
    komainu run shop.wsgi:application         a Python application, WSGI or ASGI\n  \
    komainu start -c komainu.toml             serve with a configuration file\n  \
    komainu check -c komainu.toml --explain https://example.com/a   which route answers, and why\n")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve targets given on the command line, without a configuration file
    Run(RunArguments),
    /// Serve with a configuration file
    Start(StartArguments),
    /// Serve Gateways and routes of a Kubernetes cluster (Gateway API)
    Kubernetes(Box<KubernetesArguments>),
    /// Check a configuration file, and show which route answers a URL
    Check(CheckArguments),
    /// Write configuration files in the one way to write them; comments stay
    Fmt(FormatArguments),
    /// Show what a reload of a configuration file would change in the running server, or what differs between two files
    Diff(DiffArguments),
    /// Translate the configuration of another server: the result goes to stdout, what differs and what is not possible to stderr
    Import(ImportArguments),
    /// Show the running servers: their processes, with requests, CPU time and memory
    Status(StatusArguments),
    /// Follow a running server in the terminal: rates, latencies by route, upstream servers, workers, certificates, cache, errors
    Top(TopArguments),
    /// Load the applications of a running server again, and read its configuration again; no request is lost
    Reload(ReloadArguments),
    /// Purge what the cache of a running server holds, and show what it did and why
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show and renew the certificates that a server obtains by itself
    #[command(subcommand)]
    Cert(CertCommand),
    /// Sign a URL, so that a route with `auth = { signed = ... }` lets it in until a time
    SignUrl(SignUrlArguments),
    /// Have this machine trust the local authority, which issues certificates for localhost and private names
    Trust(TrustArguments),
    /// Start the program again, by now another version; it takes over when it serves, and no request is lost
    Upgrade(UpgradeArguments),
    /// Operate a running server: its configuration, upstream servers, applications, cache and logs
    Ctl(CtlArguments),
    /// Load a server, and measure its responses, CPU time and memory
    Bench(Box<BenchArguments>),
    /// Load a server with the options of ab, and print a report like ab's
    Ab(AbArguments),
    /// Run experiments that compare servers, from files
    Lab(LabArguments),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    /// Print the reference of the configuration as Markdown
    Reference,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Start a program with a sandbox: what the server does for applications
    #[command(hide = true)]
    Confine(Confine),
}
