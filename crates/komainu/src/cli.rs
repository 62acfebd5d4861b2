//! The command line.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{EnumValueParser, NonEmptyStringValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use config::Listen;

use crate::ab::Ab;
use crate::confine_arguments::Confine;
use crate::control_endpoint::ControlCredentials;
use crate::ctl_arguments::Ctl;
use crate::env_file;
use crate::measure::{BenchArguments, LabArguments};
use crate::sign_url_arguments::SignUrl;

/// The range of `--timeout`: that of the configuration.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

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
    Run(Run),
    /// Serve with a configuration file
    Start(StartArguments),
    /// Check a configuration file, and show which route answers a URL
    Check(Check),
    /// Write configuration files in the one way to write them; comments stay
    Fmt(FormatArguments),
    /// Show what a reload of a configuration file would change in the running server, or what differs between two files
    Diff(DiffArguments),
    /// Translate the configuration of another server: the result goes to stdout, what differs and what is not possible to stderr
    Import(ImportArguments),
    /// Show the running servers: their processes, with requests, CPU time and memory
    Status(StatusArguments),
    /// Follow a running server in the terminal: rates, latencies by route, upstream servers, workers, certificates, cache, errors
    Top(Top),
    /// Load the applications of a running server again, and read its configuration again; no request is lost
    Reload(Reload),
    /// Purge what the cache of a running server holds, and show what it did and why
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show and renew the certificates that a server obtains by itself
    #[command(subcommand)]
    Cert(Cert),
    /// Sign a URL, so that a route with `auth = { signed = ... }` lets it in until a time
    SignUrl(SignUrl),
    /// Have this machine trust the local authority, which issues certificates for localhost and private names
    Trust(Trust),
    /// Start the program again, by now another version; it takes over when it serves, and no request is lost
    Upgrade(Upgrade),
    /// Operate a running server: its configuration, upstream servers, applications, cache and logs
    Ctl(Ctl),
    /// Load a server, and measure its responses, CPU time and memory
    Bench(Box<BenchArguments>),
    /// Load a server with the options of ab, and print a report like ab's
    Ab(Ab),
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

#[derive(Debug, Args)]
#[command(
    after_help = "Several folders are tried in order: the first that has the file answers. Several upstream \
servers share the requests. With folders and upstream servers or an application, files are served first, and \
all other requests go to the upstream servers or the application."
)]
pub(crate) struct Run {
    /// Folders to serve; upstream servers to proxy to: http://HOST:PORT, https://HOST:PORT, h2c://HOST:PORT or unix:PATH; an
    /// application to run: FILE.psgi or FILE.pl (Perl), FILE.ru or FILE.rb (Ruby), FILE.py, MODULE:NAME or
    /// MODULE:FACTORY() (Python), FILE.php (the front script of PHP), FILE.so (a native handler)
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// Address: HOST:PORT, :PORT (every address) or unix:PATH; port 0 is any free one. May be repeated
    #[arg(long, short, visible_alias = "bind", visible_short_alias = 'b', value_name = "ADDR",
        default_value = "127.0.0.1:8080", value_parser = listen)]
    pub(crate) listen: Vec<Listen>,
    /// Speak TLS on every TCP address, with this certificate and its chain (PEM); a file that holds its key as well, or a folder of
    /// such, needs no --tls-key
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let clients speak HTTP/2 in the clear, without asking first (prior knowledge)
    #[arg(long)]
    pub(crate) h2c: bool,
    /// Threads that serve, at most 1024; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=1024))]
    pub(crate) threads: u32,
    /// Bytes that a request body may have: 64MiB, 500KiB, or unlimited; a longer one is answered 413
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = body_max)]
    pub(crate) body_max: BodyMax,
    /// Write an access log to stdout [default: console on a terminal, else off]
    #[arg(long, visible_alias = "access-log", value_name = "FORMAT", num_args = 0..=1,
        default_missing_value = "combined", value_parser = LogFormatParser)]
    pub(crate) log: Option<LogFormat>,
    /// Show no requests
    #[arg(long, short, conflicts_with = "log")]
    pub(crate) quiet: bool,
    /// Log messages of this level and those above it to stderr
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log_level: LogLevel,
    /// Serve the dashboard (in a browser), /metrics (for Prometheus) and /v1/status on this address too: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub(crate) control: Option<Listen>,
    /// Cache responses of upstream servers and applications in memory, as far as they allow it
    #[arg(long)]
    pub(crate) cache: bool,
    /// Show the contents of folders that have no index.html
    #[arg(long)]
    pub(crate) listing: bool,
    /// As root: bind the addresses as root, then serve as this user, a name or a number [default: root]
    #[arg(long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) app: RunApp,
}

/// The flags for applications.
#[derive(Debug, Args)]
#[command(next_help_heading = "Application")]
pub(crate) struct RunApp {
    /// Worker processes [default: one for each core, and at least 2]
    #[arg(long, short, value_name = "N", value_parser = count(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Requests that one worker answers at once, each in its own thread; not for Perl [default: 1]
    #[arg(long, value_name = "N", value_parser = count(1..=256))]
    pub(crate) worker_threads: Option<u32>,
    /// How long a response may take, in seconds or as 2m, 500ms; then the client gets 504 and the worker is replaced [default: 60s]
    #[arg(long, short, value_name = "TIME", value_parser = timeout)]
    pub(crate) timeout: Option<Duration>,
    /// Replace a worker after this number of requests [default: never]
    #[arg(long, value_name = "N", value_parser = count(1..=u32::MAX))]
    pub(crate) max_requests: Option<u32>,
    /// Replace a worker when its private memory exceeds this: 300MiB [default: never]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) max_memory: Option<u64>,
    /// Set an environment variable. May be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = env_file::pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Set variables from a file of NAME=VALUE lines, unless they are already set. May be repeated; --env takes precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Load the application again when a file beside it changes
    #[arg(long, visible_alias = "reload")]
    pub(crate) watch: bool,
    /// The interface of a Python application [default: detected]
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) interface: Option<Interface>,
}

impl RunApp {
    /// The first given flag that needs an application.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        [
            ("--workers", self.workers.is_some()),
            ("--worker-threads", self.worker_threads.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--max-requests", self.max_requests.is_some()),
            ("--max-memory", self.max_memory.is_some()),
            ("--env", !self.env.is_empty()),
            ("--env-file", !self.env_file.is_empty()),
            ("--watch", self.watch),
            ("--interface", self.interface.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
    }
}

/// Bytes of a request body; `None` for any number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMax(pub(crate) Option<u64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Interface {
    Wsgi,
    Asgi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Off,
    Console,
    Combined,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct StartArguments {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    komainu import /etc/nginx/nginx.conf > komainu.toml\n  \
    komainu import nginx /etc/nginx/nginx.conf --verify > komainu.toml\n  \
    komainu import unit config.json > komainu.toml\n  \
    komainu import starman -- --workers 10 app.psgi > komainu.toml\n")]
pub(crate) struct ImportArguments {
    /// Whose configuration it is (nginx, unit, caddy, ingress, gunicorn, puma, starman, passenger; guessed if it is not given), and its
    /// file; files that it includes are read too
    #[arg(num_args = 1..=2, required = true, value_names = ["KIND", "FILE"])]
    pub(crate) source: Vec<PathBuf>,
    /// The arguments of a command, in place of a file
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) command: Vec<String>,
    /// The folder of nginx's configuration on the machine that serves, for names of files in it [default: that of the file]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prefix: Option<PathBuf>,
    /// Run the old server and the result side by side on loopback, and show every difference; exits 1 if the report does not name one
    #[arg(long)]
    pub(crate) verify: bool,
    /// Where the comparison is written as JSON
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) verify_json: Option<PathBuf>,
    /// The program of the old server [default: the one that is found]
    #[arg(long, value_name = "PROGRAM", requires = "verify")]
    pub(crate) old_server: Option<PathBuf>,
    /// The most requests of a comparison
    #[arg(long, value_name = "NUMBER", default_value = "3000", requires = "verify", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: u32,
    /// The most time for the requests of a comparison, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "2m", requires = "verify", value_parser = verify_time)]
    pub(crate) time: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// The control listener of a server: HOST:PORT, https://HOST:PORT or unix:PATH [default: the control sockets of all servers of this user]
    #[arg(value_name = "ADDR", conflicts_with = "pid")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: ControlCredentials,
    /// The server with this process id [default: all servers of this user]
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The control listener of a server: HOST:PORT, https://HOST:PORT or unix:PATH [default: the control socket of the server that runs]
    #[arg(value_name = "ADDR", conflicts_with = "pid")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: ControlCredentials,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// The time between two looks, 250ms to 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub(crate) every: Duration,
    /// Print what happens in one interval, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON, for programs: a line for each interval
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Remove stored responses; once it is done, every thread of the server has seen it
    Purge(CachePurge),
    /// Show what the cache holds, and what became of requests
    Stats(ShowCacheStats),
    /// Say why the last response for a URL was stored, missed or refused
    Why(CacheWhy),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    komainu cache purge https://example.com/news      this URL, in all its variants\n  \
    komainu cache purge --prefix //example.com/news/  every URL that begins so, by http and https\n  \
    komainu cache purge --soft --tag article-17       make stale what has this tag; it is validated, or used in need\n")]
pub(crate) struct CachePurge {
    /// URLs: http://HOST/PATH, https://HOST/PATH, or //HOST/PATH for both; in all their variants
    #[arg(value_name = "URL", required_unless_present_any = ["prefix", "tag", "all"])]
    pub(crate) urls: Vec<String>,
    /// Every URL that begins so. May be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) prefix: Vec<String>,
    /// Every response with this tag (Surrogate-Key, xkey, Cache-Tag) or in this group (Cache-Groups). May be repeated
    #[arg(long, value_name = "TAG", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tag: Vec<String>,
    /// Everything
    #[arg(long, conflicts_with_all = ["urls", "prefix", "tag"])]
    pub(crate) all: bool,
    /// Make responses stale instead of removing them: they can be validated, and used while the origin cannot be reached
    #[arg(long)]
    pub(crate) soft: bool,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowCacheStats {
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CacheWhy {
    /// The URL: http://HOST/PATH, https://HOST/PATH, or //HOST/PATH for both
    pub(crate) url: String,
    /// A header field of the request to explain. May be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cert {
    /// Show the names with their issuer, lifetime, next renewal and last error
    List(CertList),
    /// Show one certificate
    Show {
        /// The name: example.com, *.example.com or an IP address
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        of: CertPlace,
    },
    /// Have a running server renew certificates now
    Renew {
        /// The names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// The server of this process id; not needed where one runs
        #[arg(long, value_parser = process_id)]
        pid: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CertList {
    #[command(flatten)]
    pub(crate) of: CertPlace,
    /// As JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where certificates are looked up.
#[derive(Debug, Args)]
pub(crate) struct CertPlace {
    /// The server of this process id; all of this user unless given
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// Read this state folder, and ask no server
    #[arg(long, value_name = "FOLDER", conflicts_with = "pid")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// Remove what `komainu trust` installed: the authority of `--state`, or each one
    #[arg(long)]
    pub(crate) undo: bool,
    /// The state folder that holds the authority [default: that of a server which this user starts]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    /// The server that uses this configuration file
    #[arg(long, short, value_name = "FILE", conflicts_with = "pid")]
    pub(crate) config: Option<PathBuf>,
    /// Load only this application again, and do not read the configuration
    #[arg(value_name = "APP")]
    pub(crate) app: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The server of this process id; not needed where one runs
    #[arg(long, value_parser = process_id)]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct FormatArguments {
    /// The files; `-` reads standard input and prints
    #[arg(value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) files: Vec<PathBuf>,
    /// Change nothing, and fail where a file is written otherwise
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Two files, the old and the new one, instead of the running server and `--config`
    #[arg(value_name = "FILE", num_args = 0..=2)]
    pub(crate) files: Vec<PathBuf>,
    /// The configuration file to compare with the running server
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml", conflicts_with = "files")]
    pub(crate) config: PathBuf,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = process_id, conflicts_with = "files")]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) config: PathBuf,
    /// Show, route by route, how a request for this URL is answered
    #[arg(long, value_name = "URL")]
    pub(crate) explain: Option<String>,
    /// The method of the request to explain
    #[arg(long, value_name = "METHOD", default_value = "GET", requires = "explain")]
    pub(crate) method: String,
    /// A header field of the request to explain. May be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", requires = "explain")]
    pub(crate) header: Vec<String>,
    /// The address of the client of the request to explain; without one, conditions of clients are not met
    #[arg(long, value_name = "ADDRESS", requires = "explain")]
    pub(crate) client: Option<std::net::IpAddr>,
}

fn listen(text: &str) -> Result<Listen, String> {
    Listen::parse(text).map_err(reported)
}

fn reported(fault: config::InvalidValue) -> String {
    match fault.remedy.as_str() {
        "" => fault.message,
        remedy => format!("{}: {remedy}", fault.message),
    }
}

/// Reads a whole number within a range; the error contains the range.
fn count(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("write a whole number from {} to {}", range.start(), range.end())),
    }
}

fn process_id(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "write the process id of a server: a number that `komainu status` shows".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = config::duration(text).map_err(reported)?;
    let range = Duration::from_millis(250)..=Duration::from_secs(60);
    if range.contains(&time) { Ok(time) } else { Err("write a time from 250ms to 1m".into()) }
}

fn verify_time(text: &str) -> Result<Duration, String> {
    let time = config::duration(text).map_err(reported)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    if range.contains(&time) { Ok(time) } else { Err("write a time from 1s to 1h".into()) }
}

/// Reads the format of the access log. The format may be left out, so that a target after `--log` is read as one.
#[derive(Clone)]
struct LogFormatParser;

impl TypedValueParser for LogFormatParser {
    type Value = LogFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        flag: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<LogFormat, clap::Error> {
        let text = value.to_string_lossy();
        EnumValueParser::new().parse_ref(command, flag, value).map_err(|error| {
            if !text.contains(['/', '.', ':']) && !Path::new(value).exists() {
                return error;
            }
            let message = format!(
                "`{text}` is not a format of the access log (off, console, combined, json); if it is a target, write \
                 `--log=combined {text}`, or put --log last"
            );
            command.clone().error(ErrorKind::InvalidValue, message)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = [LogFormat::Off, LogFormat::Console, LogFormat::Combined, LogFormat::Json];
        Some(Box::new(formats.into_iter().filter_map(|format| clap::ValueEnum::to_possible_value(&format))))
    }
}

fn body_max(text: &str) -> Result<BodyMax, String> {
    if text == "unlimited" {
        return Ok(BodyMax(None));
    }
    config::size(text).map_err(reported).map(|bytes| BodyMax(Some(bytes)))
}

fn memory(text: &str) -> Result<u64, String> {
    match config::size(text).map_err(reported)? {
        bytes if bytes < config::MIB => Err("too small: a worker needs at least 1MiB".into()),
        bytes => Ok(bytes),
    }
}

/// A time with units, or in seconds without.
fn timeout(text: &str) -> Result<Duration, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = if digits { config::duration(&format!("{text}s")) } else { config::duration(text) };
    match time.map_err(reported)? {
        time if time < TIMEOUT_MIN => {
            Err("too short: write at least 10ms; there is no value for no limit".into())
        }
        time if time > TIMEOUT_MAX => Err("too long: at most 1d".into()),
        time => Ok(time),
    }
}
