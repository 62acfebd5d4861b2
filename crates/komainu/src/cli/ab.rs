//! `komainu ab`: ApacheBench's arguments, translated to the load generator's.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bench::job::{BenchJob, OutputFiles, OutputFormat};
use bench::plan::{ConnectOptions, LoadPlan};
use bench::request::{BenchRequest, RequestSettings};
use bench::session::LoadSubject;
use bench::url::Url;
use clap::Args;
use failure::{Failure, FailureContext};
use http::Version;

use crate::cli::measure::{self, basic_credentials, parse_fields, refuse_option};
use crate::terminal::SanitizedOutput;

/// `komainu ab`: ApacheBench's own flags.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
#[command(after_help = "The report has ab's format; `komainu bench` shows more.")]
pub(crate) struct AbArguments {
    /// Requests
    #[arg(short, value_name = "N")]
    n: Option<u64>,
    /// Concurrent requests
    #[arg(short, value_name = "N", default_value = "1", value_parser = measure::parse_connections)]
    c: usize,
    /// Maximum time in seconds; implies -n 50000
    #[arg(short, value_name = "S")]
    t: Option<u64>,
    /// Seconds to wait for a response
    #[arg(short, value_name = "S", default_value_t = 30)]
    s: u64,
    /// Keep connections alive (HTTP/1.0)
    #[arg(short)]
    k: bool,
    /// A header field
    #[arg(short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// A cookie
    #[arg(short = 'C', value_name = "NAME=VALUE")]
    cookie: Vec<String>,
    /// The method
    #[arg(short, value_name = "METHOD")]
    m: Option<String>,
    /// A file to POST
    #[arg(short, value_name = "FILE")]
    p: Option<PathBuf>,
    /// A file to PUT
    #[arg(short, value_name = "FILE", conflicts_with = "p")]
    u: Option<PathBuf>,
    /// The content's type
    #[arg(short = 'T', value_name = "TYPE", default_value = "text/plain")]
    content_type: String,
    /// Send HEAD requests
    #[arg(short)]
    i: bool,
    /// Name and password, for the field Authorization (Basic)
    #[arg(short = 'A', value_name = "NAME:PASSWORD")]
    user: Option<String>,
    /// The same for the field Proxy-Authorization
    #[arg(short = 'P', value_name = "NAME:PASSWORD")]
    proxy_user: Option<String>,
    /// Responses of another length than the first have not failed
    #[arg(short = 'l')]
    any_length: bool,
    /// A file for the percentiles (CSV)
    #[arg(short = 'e', value_name = "FILE")]
    percentiles: Option<PathBuf>,
    /// Continue after errors: always so
    #[arg(short = 'r')]
    continues: bool,
    /// Show no progress
    #[arg(short)]
    q: bool,
    /// Options of ab for what its report shows: this report is always whole.
    #[arg(short = 'S', hide = true)]
    no_deviation: bool,
    #[arg(short = 'd', hide = true)]
    no_table: bool,
    #[arg(short, hide = true)]
    v: Option<u8>,
    #[arg(short = 'g', hide = true, value_parser = refuse_option("single requests are not kept: -e FILE writes the percentiles, `komainu bench --html FILE` a page with charts"))]
    gnuplot: Option<String>,
    #[arg(short = 'w', hide = true)]
    html_table: bool,
    #[arg(short = 'X', hide = true, value_parser = refuse_option("proxies are not asked: name the proxy in the URL, and the server with -H 'Host: …'"))]
    proxy: Option<String>,
    /// Print this help
    #[arg(short = 'h', long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The URL to load
    #[arg(value_name = "URL")]
    url: String,
}

/// Runs `komainu ab`. Returns false if there was no response.
pub(crate) fn run_ab(arguments: &AbArguments) -> Result<bool, Failure> {
    if arguments.html_table {
        return Err(Failure::new("-w: `komainu bench --html FILE` writes a page"));
    }
    let mut header = arguments.header.clone();
    header.extend(arguments.cookie.iter().map(|cookie| format!("Cookie: {cookie}")));
    header.extend(arguments.user.as_deref().map(|user| basic_credentials("Authorization", user)));
    header.extend(arguments.proxy_user.as_deref().map(|user| basic_credentials("Proxy-Authorization", user)));
    let (body, method) = match (&arguments.p, &arguments.u) {
        (Some(path), _) => (Some(path), "POST"),
        (None, Some(path)) => (Some(path), "PUT"),
        (None, None) => (None, if arguments.i { "HEAD" } else { "GET" }),
    };
    let body = match body {
        Some(path) => Some(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => None,
    };
    if body.is_some() {
        header.push(format!("Content-Type: {}", arguments.content_type));
    }
    let manner = RequestSettings {
        version: Version::Http10,
        keep_alive: arguments.k,
        chunked: false,
        fields: parse_fields(&header)?,
    };
    let method = arguments.m.clone().unwrap_or_else(|| method.into());
    let ask = BenchRequest { method, url: Url::parse(&arguments.url)?, body, weight: 1 };
    let mut plan = LoadPlan::new(
        std::slice::from_ref(&ask),
        &manner,
        &ConnectOptions { insecure: true, ..ConnectOptions::default() },
    )?;
    plan.connections = arguments.c;
    plan.duration = arguments.t.map(Duration::from_secs);
    plan.requests_max = Some(arguments.n.unwrap_or(if arguments.t.is_some() { 50_000 } else { 1 }));
    plan.warm_up = Duration::ZERO;
    plan.timeout = Duration::from_secs(arguments.s);
    let subject = LoadSubject {
        url: ask.url.to_string(),
        plan,
        version: Version::Http10,
        server_pids: Vec::new(),
        excluded_pids: Vec::new(),
    };
    let job = BenchJob {
        subject,
        compared_side: None,
        pairs: 2,
        expectations: Vec::new(),
        format: OutputFormat::Ab { any_length: arguments.any_length },
        quiet: arguments.q,
        output_files: OutputFiles { percentiles: arguments.percentiles.clone(), ..OutputFiles::default() },
    };
    bench::job::run_job(&job, &mut SanitizedOutput(io::stdout()))
}
