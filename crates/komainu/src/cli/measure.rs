//! `komainu bench` and `komainu lab`: their arguments, translated to the load generator's.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bench::attack::selection::AnyAttack;
use bench::calibration::known_server;
use bench::calibration::run::CalibrationOptions;
use bench::expectation::Expectation;
use bench::job::{BenchJob, ComparedSide, OutputFiles, OutputFormat};
use bench::plan::{Arrivals, ConnectOptions, LoadPlan, Pace};
use bench::request::{BenchRequest, RequestSettings};
use bench::session::{self, LoadSubject};
use bench::url::Url;
use bench::{attack, calibration, quantity, url_list};
use clap::{Args, Subcommand, ValueEnum};
use failure::{Failure, FailureContext};
use http::{Fields, Version};

use crate::terminal::SanitizedOutput;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    komainu bench -c 100 -d 30s http://127.0.0.1:8080/\n  \
    komainu bench --rate 5k --html report.html http://127.0.0.1:8080/     an open loop: stalls show in full\n  \
    komainu bench --vs http://127.0.0.1:8081/ http://127.0.0.1:8080/      compares two servers, in turns\n  \
    komainu bench --expect 'p99 < 20ms' --expect 'errors = 0' http://127.0.0.1:8080/\n  \
    komainu bench compare before.json after.json\n  \
    komainu bench attack https://localhost:8443/     known attacks on a server of your own\n  \
    komainu bench calibrate     checks the figures against servers of known behaviour\n\n\
    Exit status: 0; 1 if an expectation does not hold, or requests were never answered and no expectation is about errors; 2 if the \
    measurement failed.")]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    action: Option<MeasureAction>,
    #[command(flatten)]
    load: LoadArguments,
    #[command(flatten)]
    request: RequestArguments,
    #[command(flatten)]
    report: ReportArguments,
    /// The URL to load
    #[arg(value_name = "URL", required_unless_present = "list")]
    urls: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum MeasureAction {
    /// Compare two results written with --json; exit status 1 if the second is worse
    Compare {
        /// The result to compare with
        a: PathBuf,
        /// The result to judge
        b: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Attack a server of your own in known ways, with an ordinary client beside it; exit status 1 unless it survives all of them
    Attack(AttackArguments),
    /// Check the figures of the report against servers of known behaviour, over HTTP/1, TLS, HTTP/2 and HTTP/3; exit status 1 if
    /// one is wrong
    Calibrate(CalibrateArguments),
}

#[derive(Debug, Args)]
struct CalibrateArguments {
    /// A quarter of a minute instead of two, without what other load on the machine can change: of times only the lower bounds
    #[arg(long)]
    short: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the server
    #[arg(long, hide = true)]
    serve: bool,
}

#[derive(Debug, Args)]
struct AttackArguments {
    /// What is attacked, and what the ordinary client requests; https:// is attacked over HTTP/2 by ALPN, http:// by prior knowledge
    #[arg(value_name = "URL", required_unless_present = "list")]
    url: Option<String>,
    /// How long each attack lasts
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = quantity::parse_duration)]
    duration: Duration,
    /// Only this attack. May be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only the attacks on HTTP/1
    #[arg(long, conflicts_with = "only")]
    http1: bool,
    /// The attacks on HTTP/3 and QUIC instead
    #[arg(long, conflicts_with_all = ["only", "http1"])]
    http3: bool,
    /// List the attacks
    #[arg(long)]
    list: bool,
    /// Attack addresses that are neither this machine's nor those of a private network
    #[arg(long)]
    force: bool,
    /// Accept any certificate
    #[arg(long, short = 'k')]
    insecure: bool,
    /// Certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The name for SNI and for the certificate, instead of the URL's host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// The server's first process [default: found by its listening address]
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadArguments {
    /// Connections at once, at least 1
    #[arg(short, long, value_name = "N", default_value = "50", value_parser = parse_connections)]
    connections: usize,
    /// Duration: 10s, 500ms, 2m [default: 10s, or no limit with -n]
    #[arg(short, long, short_alias = 'z', value_name = "TIME", value_parser = quantity::parse_duration)]
    duration: Option<Duration>,
    /// Stop after this number of requests
    #[arg(short = 'n', long, value_name = "N")]
    requests: Option<u64>,
    /// Threads of the generator [default: chosen from the load]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Requests a second, independent of the responses (an open loop): 5000, 5k
    #[arg(long, short_alias = 'R', value_name = "N", value_parser = quantity::count)]
    rate: Option<f64>,
    /// How the requests of --rate arrive
    #[arg(long, value_name = "HOW", default_value = "poisson", requires = "rate")]
    arrivals: ArrivalKind,
    /// Load without measuring, at the start [default: a tenth of -d, at most 1s]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    warm_up: Option<Duration>,
    /// Open the connections over this time instead of at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = quantity::parse_duration)]
    ramp: Duration,
    /// Time between a response and the next request
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = quantity::parse_duration, conflicts_with = "rate")]
    think: Duration,
    /// Timeout from sending a request to the end of its response
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_duration)]
    timeout: Duration,
    /// Timeout for connecting, including TLS
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_duration)]
    connect_timeout: Duration,
    /// Use a new connection for each request
    #[arg(long, alias = "disable-keepalive")]
    no_keepalive: bool,
    /// Requests sent at once on one connection (pipelining)
    #[arg(long, value_name = "DEPTH", default_value_t = 1, conflicts_with = "multiplexed")]
    pipeline: usize,
    /// Requests at once on one connection of --http2 or --http3, each a stream; the server may allow fewer
    #[arg(short = 'm', long, value_name = "N", default_value = "1", requires = "multiplexed", value_parser = parse_streams)]
    streams: usize,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
struct RequestArguments {
    /// The method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// A header field. May be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Name and password, for the field Authorization (Basic)
    #[arg(short = 'u', long, short_alias = 'a', value_name = "NAME:PASSWORD")]
    user: Option<String>,
    /// The body: text, or @FILE
    #[arg(short, long, value_name = "TEXT")]
    body: Option<String>,
    /// Send the body in the chunked coding
    #[arg(long, requires = "body")]
    chunked: bool,
    /// HTTP/1.0, with keep-alive unless --no-keepalive
    #[arg(long = "http1.0")]
    http10: bool,
    /// HTTP/2: by ALPN to https:// URLs, with prior knowledge to http:// ones
    #[arg(long, conflicts_with = "http10", group = "multiplexed")]
    http2: bool,
    /// HTTP/3 to https:// URLs: QUIC to the UDP port of the same number
    #[arg(long, conflicts_with_all = ["http10", "unix"], group = "multiplexed")]
    http3: bool,
    /// A file of URLs as siege reads it: URL, URL POST body, URL POST <file; a number before the URL is its weight
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Request the URLs at random instead of in order
    #[arg(long)]
    random: bool,
    /// Connect to this Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, short = 'k')]
    insecure: bool,
    /// Certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The name for SNI and for the certificate, instead of the URL's host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Make a full TLS handshake each time, as `openssl s_time -new` does with --no-keepalive
    #[arg(long, visible_alias = "no-resume")]
    no_resumption: bool,
    /// Offer only this version of TLS
    #[arg(long, value_name = "VERSION", value_parser = ["1.2", "1.3"])]
    tls_version: Option<String>,
    /// Offer these groups of the key exchange, the preferred one first: X25519MLKEM768, X25519, P-256, P-384, MLKEM1024
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',', visible_alias = "groups")]
    tls_groups: Vec<String>,
    /// Compare each response's content with the first one's
    #[arg(long)]
    verify: bool,
    /// A script of wrk, a content type or file of hey: each is written in another way here.
    #[arg(short = 's', long, hide = true, value_parser = refuse_option("scripts are not run: --list FILE names several URLs with methods and bodies"))]
    script: Option<String>,
    #[arg(short = 'T', hide = true, value_parser = refuse_option("write -H 'Content-Type: …'"))]
    content_type: Option<String>,
    #[arg(short = 'D', hide = true, value_parser = refuse_option("write -b @FILE"))]
    body_file: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Judging and showing")]
struct ReportArguments {
    /// Measure this server in turns with the first, and report whether they differ
    #[arg(long, value_name = "URL", conflicts_with = "vs_cmd")]
    vs: Option<String>,
    /// Like --vs, with a server started by this command; {port} in it is a free port
    #[arg(long, value_name = "COMMAND")]
    vs_cmd: Option<String>,
    /// Pairs of runs for --vs, each run of the length of -d (unless given, 400 ms): many short ones give a more precise result than
    /// few long ones
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(2..=1000))]
    pairs: u16,
    /// A condition that must hold, such as 'p99 < 20ms', 'errors = 0', 'rate > 5k', 'cpu < 10us'. May be repeated
    #[arg(long, value_name = "CONDITION", value_parser = parse_expectation)]
    expect: Vec<String>,
    /// The server's first process [default: found by its listening address]
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
    /// How to print the figures
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the figures as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// The flag with which wrk prints percentiles: they are always printed here.
    #[arg(long, short = 'L', hide = true)]
    latency: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalKind {
    Constant,
    Poisson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Text,
    Ab,
    Json,
}

/// Runs `komainu bench`. Returns whether there were responses and all expectations hold.
pub(crate) fn run_bench(arguments: &BenchArguments) -> Result<bool, Failure> {
    let mut out = SanitizedOutput(io::stdout());
    if let Some(MeasureAction::Compare { a, b, json }) = &arguments.action {
        return bench::job::compare_files(a, b, *json, &mut out);
    }
    if let Some(MeasureAction::Attack(arguments)) = &arguments.action {
        return run_attack(arguments);
    }
    if let Some(MeasureAction::Calibrate(arguments)) = &arguments.action {
        return run_calibration(arguments, &mut out);
    }
    let showing = &arguments.report;
    let mut subject = load_subject(arguments, &arguments.urls)?;
    subject.server_pids = showing.server_pid.clone();
    let versus = match (&showing.vs, &showing.vs_cmd) {
        (Some(url), _) => {
            Some(ComparedSide::Subject(Box::new(self::load_subject(arguments, std::slice::from_ref(url))?)))
        }
        (None, Some(command)) => Some(ComparedSide::Command(command.clone())),
        (None, None) => None,
    };
    let expectations: Vec<Expectation> =
        showing.expect.iter().map(|text| Expectation::parse(text)).collect::<Result<_, _>>()?;
    if !subject.plan.verify && expectations.iter().any(Expectation::needs_contents) {
        return Err(Failure::new(
            "`--expect` of `differ` needs `--verify`, which compares contents: without it only lengths are compared",
        ));
    }
    let job = BenchJob {
        subject,
        compared_side: versus,
        pairs: usize::from(showing.pairs),
        expectations,
        format: match showing.format {
            ReportFormat::Text => OutputFormat::Text,
            ReportFormat::Ab => OutputFormat::Ab { any_length: false },
            ReportFormat::Json => OutputFormat::Json,
        },
        quiet: showing.quiet,
        output_files: OutputFiles {
            json: showing.json.clone(),
            csv: showing.csv.clone(),
            html: showing.html.clone(),
            percentiles: None,
        },
    };
    bench::job::run_job(&job, &mut out)
}

/// Runs `komainu bench calibrate`. Returns whether all figures are right.
fn run_calibration(arguments: &CalibrateArguments, out: &mut dyn Write) -> Result<bool, Failure> {
    if arguments.serve {
        return known_server::serve(out).map(|()| true);
    }
    let options = CalibrationOptions {
        program: std::env::current_exe().context("this program cannot be found")?,
        arguments: vec!["bench", "calibrate", "--serve"],
        is_short: arguments.short,
        is_json: arguments.json,
    };
    calibration::run::run(&options, out)
}

/// Runs `komainu bench attack`. Returns whether the server survives all attacks.
fn run_attack(arguments: &AttackArguments) -> Result<bool, Failure> {
    let mut out = SanitizedOutput(io::stdout());
    let is_chosen = |attack: &AnyAttack| match attack.version() {
        Version::Http3 => arguments.http3 || arguments.list && !arguments.http1,
        Version::Http2 => !arguments.http3 && !arguments.http1,
        _ => !arguments.http3,
    };
    let chosen: Vec<AnyAttack> = match arguments.only.as_slice() {
        [] => AnyAttack::all().filter(is_chosen).collect(),
        names => names.iter().map(|name| AnyAttack::find(name)).collect::<Result<_, _>>()?,
    };
    let Some(url) = arguments.url.as_deref().filter(|_| !arguments.list) else {
        for attack in chosen {
            let mark = if attack.version() == Version::Http3 { " (--http3)" } else { "" };
            writeln!(out, "{:<24} {}{mark}", attack.name(), attack.about()).context("cannot print")?;
        }
        return Ok(true);
    };
    let options = attack::run::AttackOptions {
        url: Url::parse(url)?,
        reach: ConnectOptions {
            insecure: arguments.insecure,
            ca: arguments.ca.clone(),
            server_name: arguments.sni.clone(),
            ..ConnectOptions::default()
        },
        duration: arguments.duration,
        server_pids: arguments.server_pid.clone(),
        is_forced: arguments.force,
    };
    let selftest = attack::run::run(&options, &chosen, |attack| {
        if !arguments.quiet {
            let _ = writeln!(io::stderr(), "{}: {}", attack.name(), attack.about());
        }
    })?;
    if arguments.json { writeln!(out, "{:#}", selftest.json()) } else { write!(out, "{}", selftest.text()) }
        .context("cannot print")?;
    Ok(selftest.has_survived_all())
}

/// Returns the load described by the arguments, for these URLs and those of the list.
fn load_subject(arguments: &BenchArguments, urls: &[String]) -> Result<LoadSubject, Failure> {
    let BenchArguments { load, request: asking, report: showing, .. } = arguments;
    let version = match asking {
        RequestArguments { http10: true, .. } => Version::Http10,
        RequestArguments { http2: true, .. } => Version::Http2,
        RequestArguments { http3: true, .. } => Version::Http3,
        _ => Version::Http11,
    };
    let manner = RequestSettings {
        version,
        keep_alive: !load.no_keepalive,
        chunked: asking.chunked,
        fields: {
            let mut lines = asking.header.clone();
            lines.extend(asking.user.as_deref().map(|user| basic_credentials("Authorization", user)));
            parse_fields(&lines)?
        },
    };
    let asks = build_requests(asking, urls)?;
    let reach = ConnectOptions {
        unix: asking.unix.clone(),
        insecure: asking.insecure,
        ca: asking.ca.clone(),
        server_name: asking.sni.clone(),
        no_resumption: asking.no_resumption,
        tls_version: asking.tls_version.clone(),
        tls_groups: asking.tls_groups.clone(),
    };
    let mut plan = LoadPlan::new(&asks, &manner, &reach)?;
    let compared = showing.vs.is_some() || showing.vs_cmd.is_some();
    let default = Duration::from_millis(if compared { 400 } else { 10_000 });
    plan.duration = load.duration.or(load.requests.is_none().then_some(default));
    plan.requests_max = load.requests;
    plan.connections = load.connections;
    plan.is_random = asking.random;
    plan.seed = load.seed;
    plan.pipeline = if plan.is_multiplexed() { load.streams } else { load.pipeline };
    plan.pace = match (load.rate, load.arrivals) {
        (None, _) => Pace::Closed { think: load.think },
        (Some(rate), ArrivalKind::Constant) => Pace::Open { rate, arrivals: Arrivals::Constant },
        (Some(rate), ArrivalKind::Poisson) => Pace::Open { rate, arrivals: Arrivals::Poisson },
    };
    let tenth = load.duration.unwrap_or(default) / 10;
    plan.warm_up = load.warm_up.unwrap_or(match load.requests {
        Some(_) => Duration::ZERO,
        None => tenth.min(Duration::from_secs(1)),
    });
    (plan.ramp, plan.timeout, plan.connect_timeout) = (load.ramp, load.timeout, load.connect_timeout);
    plan.verify = asking.verify;
    let suited =
        || session::suggested_threads(plan.connections, !bench::server_usage::find_server(&plan).is_empty());
    plan.threads = load.threads.unwrap_or_else(suited).max(1);
    let url = asks.first().map(|ask| ask.url.to_string()).unwrap_or_default();
    Ok(LoadSubject { plan, url, version, server_pids: Vec::new(), excluded_pids: Vec::new() })
}

fn build_requests(asking: &RequestArguments, urls: &[String]) -> Result<Vec<BenchRequest>, Failure> {
    let body = match asking.body.as_deref().map(|text| (text, text.strip_prefix('@'))) {
        None => None,
        Some((_, Some(file))) => Some(std::fs::read(file).with_context(|| format!("cannot read {file}"))?),
        Some((text, None)) => Some(text.as_bytes().to_vec()),
    };
    let method = asking.method.clone().unwrap_or_else(|| if body.is_some() { "POST" } else { "GET" }.into());
    let mut asks = Vec::new();
    for url in urls {
        asks.push(BenchRequest {
            method: method.clone(),
            url: Url::parse(url)?,
            body: body.clone(),
            weight: 1,
        });
    }
    if let Some(path) = &asking.list {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let folder = path.parent().unwrap_or(std::path::Path::new("."));
        asks.extend(url_list::parse_list(&text, folder).with_context(|| path.display())?);
    }
    Ok(asks)
}

pub(crate) fn parse_fields(lines: &[String]) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(format!("{line:?}: a header field is NAME: VALUE"))?;
        fields
            .try_push(name.trim().as_bytes(), value.trim().as_bytes())
            .map_err(|_| Failure::new(format!("{line:?} is not a header field")))?;
    }
    Ok(fields)
}

/// Returns a header line with Basic credentials (RFC 7617).
pub(crate) fn basic_credentials(field: &str, user: &str) -> String {
    format!("{field}: Basic {}", data_encoding::BASE64.encode(user.as_bytes()))
}

/// Parses the number of connections, at least 1.
pub(crate) fn parse_connections(text: &str) -> Result<usize, Failure> {
    match text.parse() {
        Ok(0) => Err(Failure::new("there has to be a connection: write 1 or more")),
        Ok(count) => Ok(count),
        Err(_) => Err(Failure::new("write a whole number from 1 on")),
    }
}

fn parse_streams(text: &str) -> Result<usize, Failure> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        // In hey, `-m` is the method.
        Err(_) if text.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            Err(Failure::new(format!("the method is -X {text}")))
        }
        _ => Err(Failure::new("write a whole number from 1 on")),
    }
}

/// Returns a parser that refuses an option of another tool, with the equivalent here as message.
pub(crate) fn refuse_option(equivalent: &'static str) -> impl Fn(&str) -> Result<String, Failure> + Clone {
    move |_| Err(equivalent.into())
}

fn parse_named(text: &str) -> Result<(String, String), Failure> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.trim().to_string(), value.trim().to_string()))
}

fn parse_expectation(text: &str) -> Result<String, Failure> {
    Expectation::parse(text).map(|_| text.to_string())
}

/// `komainu lab`: experiments as files.
#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    action: LabAction,
}

#[derive(Debug, Subcommand)]
enum LabAction {
    /// Run an experiment; after an interruption the same command continues from there
    Run(LabRunArguments),
    /// Run several experiments, and print one row of each beside its best peer, and what fell behind saved results
    Table(LabTableArguments),
    /// Compare two results (NAME.json) of the same experiment, cell by cell
    Compare {
        /// The result to compare with
        a: PathBuf,
        /// The result to judge
        b: PathBuf,
    },
}

#[derive(Debug, Args)]
struct LabRunArguments {
    /// The experiment's file
    #[arg(value_name = "LAB.toml")]
    lab: PathBuf,
    /// The short form: under two minutes, enough to see that everything works
    #[arg(long)]
    short: bool,
    /// Folder for the results: NAME.md, NAME.html, NAME.json and, measurement by measurement, NAME.jsonl
    #[arg(long, value_name = "FOLDER", default_value = "lab-results")]
    out: PathBuf,
    /// Start over, even if there are results already
    #[arg(long)]
    fresh: bool,
    /// Measure only subjects whose name contains this. May be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Only this level of a factor (repeat it for more), or another setting of the load: duration=1s
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_named)]
    set: Vec<(String, String)>,
    /// Another build of Komainu, measured in every place where this one is. May be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    also: Vec<(String, String)>,
    /// Another program for the peers that run NAME, such as nginx=/opt/nginx/sbin/nginx; a second one of the same name is
    /// measured beside it. May be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    peer: Vec<(String, String)>,
    /// The program for subjects that are Komainu, instead of this one
    #[arg(long, value_name = "PATH")]
    komainu: Option<PathBuf>,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct LabTableArguments {
    /// The file of the rows
    #[arg(value_name = "ROWS.toml")]
    file: PathBuf,
    /// Only rows whose name contains this; further ones after commas or spaces. May be repeated
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    rows: Vec<String>,
    /// The short form: enough to see that everything works, too short for figures
    #[arg(long)]
    short: bool,
    /// Folder for the results of the experiments
    #[arg(long, value_name = "FOLDER", default_value = "lab-results")]
    out: PathBuf,
    /// Start over, even if there are results already
    #[arg(long)]
    fresh: bool,
    /// A setting of the load for all experiments: repetitions=5
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_named)]
    set: Vec<(String, String)>,
    /// Another program for the peers that run NAME, such as nginx=/opt/nginx/sbin/nginx; a second one of the same name is
    /// measured beside it. May be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    peer: Vec<(String, String)>,
    /// The program for subjects that are Komainu, instead of this one
    #[arg(long, value_name = "PATH")]
    komainu: Option<PathBuf>,
    /// File of saved results, with which the new ones are compared [default: results.json beside ROWS.toml]
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Write the new results to that file
    #[arg(long)]
    save: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// The path of the program for subjects that are Komainu.
fn komainu_program(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    let path = given.map_or_else(std::env::current_exe, std::path::absolute);
    path.context("this program cannot be found")
}

fn run_lab_table(table: &LabTableArguments) -> Result<bool, Failure> {
    let words = table.rows.iter().flat_map(|rows| rows.split_whitespace());
    let options = bench::lab::row_run::RowOptions {
        file: table.file.clone(),
        rows: words.map(str::to_string).collect(),
        short: table.short,
        out: table.out.clone(),
        fresh: table.fresh,
        overrides: table.set.clone(),
        peers: named_paths(&table.peer),
        komainu: komainu_program(table.komainu.as_ref())?,
        quiet: table.quiet,
        results: table.results.clone().unwrap_or_else(|| table.file.with_file_name("results.json")),
        saves: table.save,
    };
    bench::lab::row_run::run_rows(&options, &mut SanitizedOutput(io::stdout()))
}

/// The values of options NAME=PATH.
fn named_paths(options: &[(String, String)]) -> Vec<(String, PathBuf)> {
    options.iter().map(|(name, path)| (name.clone(), PathBuf::from(path))).collect()
}

/// Runs `komainu lab`. Returns whether every installed subject was measured.
pub(crate) fn run_lab(arguments: &LabArguments) -> Result<bool, Failure> {
    match &arguments.action {
        LabAction::Compare { a, b } => {
            bench::lab::run::compare_files(a, b, &mut SanitizedOutput(io::stdout()))?;
            Ok(true)
        }
        LabAction::Table(table) => run_lab_table(table),
        LabAction::Run(run) => {
            let options = bench::lab::run::LabOptions {
                lab: run.lab.clone(),
                short: run.short,
                out: run.out.clone(),
                fresh: run.fresh,
                only: run.only.clone(),
                overrides: run.set.clone(),
                other_builds: named_paths(&run.also),
                peers: named_paths(&run.peer),
                komainu: komainu_program(run.komainu.as_ref())?,
                quiet: run.quiet,
            };
            bench::lab::run::run_lab(&options, &mut SanitizedOutput(io::stdout()))
        }
    }
}
