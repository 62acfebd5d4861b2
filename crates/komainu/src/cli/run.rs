//! `komainu run`: serves targets given on the command line, without a configuration file.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use apps::{AppKind, AppSettings, Mounted, PhpApp, PythonInterface, Workers};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use config::{Action, Config, Route, Site};
use failure::{Failure, FailureContext};
use hosting::env_file;
use logging::{AccessLog, Level};
use net::tls::directives::{CertificateSource, SiteTls};
use net::{ConfiguredListener, Listen};
use proxy::options::Origin;
use rights::privilege;
use rights::privilege::RightsDecision;

use crate::check::start_checks;
use crate::cli::serve::{InheritedState, run_server, run_supervisor};
use crate::cli::values::{
    BodyMax, Interface, LogFormat, LogFormatParser, LogLevel, count_parser, parse_body_max, parse_listen,
    parse_memory, parse_timeout,
};
use crate::run::start::ServerStart;

#[derive(Debug, Args)]
#[command(
    after_help = "Several folders are tried in order: the first that has the file answers. Several upstream \
servers share the requests. With folders and upstream servers or an application, files are served first, and \
all other requests go to the upstream servers or the application."
)]
pub(crate) struct RunArguments {
    /// Folders to serve; upstream servers to proxy to: http://HOST:PORT, https://HOST:PORT, h2c://HOST:PORT, h3://HOST:PORT or unix:PATH; an
    /// application to run: FILE.psgi or FILE.pl (Perl), FILE.ru or FILE.rb (Ruby), FILE.py, MODULE:NAME or
    /// MODULE:FACTORY() (Python), FILE.php (the front script of PHP), FILE.so (a native handler)
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// Address: HOST:PORT, :PORT (every address) or unix:PATH; port 0 is any free one. May be repeated
    #[arg(long, short, visible_alias = "bind", visible_short_alias = 'b', value_name = "ADDR",
        default_value = "127.0.0.1:8080", value_parser = parse_listen)]
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
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count_parser(0..=1024))]
    pub(crate) threads: u32,
    /// Bytes that a request body may have: 64MiB, 500KiB, or unlimited; a longer one is answered 413
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_body_max)]
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
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
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
    pub(crate) app: RunAppArguments,
}

/// The flags for applications.
#[derive(Debug, Args)]
#[command(next_help_heading = "Application")]
pub(crate) struct RunAppArguments {
    /// Worker processes [default: one for each core, and at least 2]
    #[arg(long, short, value_name = "N", value_parser = count_parser(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Requests that one worker answers at once, each in its own thread; not for Perl [default: 1]
    #[arg(long, value_name = "N", value_parser = count_parser(1..=256))]
    pub(crate) worker_threads: Option<u32>,
    /// How long a response may take, in seconds or as 2m, 500ms; then the client gets 504 and the worker is replaced [default: 60s]
    #[arg(long, short, value_name = "TIME", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,
    /// Replace a worker after this number of requests [default: never]
    #[arg(long, value_name = "N", value_parser = count_parser(1..=u32::MAX))]
    pub(crate) max_requests: Option<u32>,
    /// Replace a worker when its private memory exceeds this: 300MiB [default: never]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) max_memory: Option<u64>,
    /// Set an environment variable. May be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = env_file::parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Set variables from a file of NAME=VALUE lines, unless they are already set. May be repeated; --env takes precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Load the application again when a file beside it changes
    #[arg(long, visible_alias = "reload")]
    pub(crate) watch: bool,
    /// Load the application in each worker, and not once before they are forked
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// The interface of a Python application [default: detected]
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) interface: Option<Interface>,
}

impl RunAppArguments {
    /// Returns the first given flag that needs an application.
    pub(crate) fn first_given_flag(&self) -> Option<&'static str> {
        [
            ("--workers", self.workers.is_some()),
            ("--worker-threads", self.worker_threads.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--max-requests", self.max_requests.is_some()),
            ("--max-memory", self.max_memory.is_some()),
            ("--env", !self.env.is_empty()),
            ("--env-file", !self.env_file.is_empty()),
            ("--watch", self.watch),
            ("--no-preload", self.no_preload),
            ("--interface", self.interface.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
    }
}

/// Runs `komainu run TARGET…`.
pub(crate) fn serve_targets(run: &RunArguments, inherited_state: InheritedState) -> Result<(), Failure> {
    let InheritedState { inherited, predecessor, inherited_sockets: given } = inherited_state;
    let config = build_config(run)?;
    let warning = match inherited {
        Some(_) => None,
        // As root, `komainu run` keeps root's rights, as similar servers do; `komainu start` changes the user
        // instead.
        None => match privilege::decide_rights(config.user.as_deref(), config.group.as_deref(), true)? {
            RightsDecision::Drop(identity) => {
                start_checks::check_file_access(&config, &identity)?;
                return run_supervisor(config, None, identity, predecessor, given);
            }
            RightsDecision::Keep(warning) => warning,
        },
    };
    run_server(ServerStart {
        config,
        reread: None,
        text: None,
        watch: run.app.watch,
        inherited,
        predecessor,
        inherited_sockets: given,
        warning,
        source: None,
        source_status: None,
    })
}

/// Converts the arguments to a configuration.
fn build_config(run: &RunArguments) -> Result<Config, Failure> {
    let mut folders = Vec::new();
    let mut origins = Vec::new();
    let mut apps = Vec::new();
    for target in &run.targets {
        if is_url(target) {
            origins.push(Origin::parse(target).context(target)?);
        } else if let Some(app) = detect_application(run, target)? {
            apps.push(app);
        } else {
            check_folder(Path::new(target))?;
            folders.push(PathBuf::from(target));
        }
    }
    let otherwise = match (apps.as_slice(), origins.is_empty()) {
        ([], true) => None,
        ([], false) => Some(Action::Proxy(Box::new(proxy::options::ProxyOptions::with_servers(origins)))),
        ([(name, _)], true) => {
            Some(Action::App(Box::new(Mounted { name: name.clone(), ..Mounted::default() })))
        }
        _ => {
            return Err(Failure::new(
                "more than one application, or an application and upstream servers: write a configuration file, and use `komainu start`",
            ));
        }
    };
    if let Some(flag) = run.app.first_given_flag().filter(|_| apps.is_empty()) {
        return Err(Failure::new(format!(
            "{flag} is only for applications, and no target is an application"
        )));
    }
    if let Some((_, app)) = apps.first_mut() {
        app.env = environment_variables(&run.app)?;
    }
    let files = files::FileOptions { root: folders, listing: run.listing, ..files::FileOptions::default() };
    let (action, otherwise) = match otherwise {
        Some(action) if files.root.is_empty() => (action, None),
        otherwise => (Action::Files(Box::new(files)), otherwise),
    };
    let route = build_route(run, action, otherwise)?;
    let tls = run.tls_certificate.as_ref().map(|certificate| SiteTls {
        certificate: CertificateSource::Files(vec![certificate.clone()]),
        key: run.tls_key.iter().cloned().collect(),
        ..SiteTls::default()
    });
    let speaks_tls = |address: &Listen| tls.is_some() && !matches!(address, Listen::Unix(_));
    let listener = |at: Listen| ConfiguredListener {
        tls: Some(speaks_tls(&at)),
        h2c: run.h2c,
        ..ConfiguredListener::plain(at)
    };
    let mut config = Config {
        listen: run.listen.iter().cloned().map(listener).collect(),
        threads: run.threads,
        user: run.user.clone(),
        sites: vec![Site { routes: vec![route], tls, ..Site::default() }.into()],
        apps,
        ..Config::default()
    };
    config.control.listen.clone_from(&run.control);
    config.limits.body_bytes_max = run.body_max.0;
    config.log.level = match run.log_level {
        LogLevel::Error => Level::Error,
        LogLevel::Warn => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug => Level::Debug,
    };
    let is_watched = io::stdout().is_terminal();
    let shown = if is_watched && !run.quiet { LogFormat::Console } else { LogFormat::Off };
    config.log.access = match run.log.unwrap_or(shown) {
        LogFormat::Off => AccessLog::Off,
        LogFormat::Console => {
            AccessLog::Console { color: is_watched && std::env::var_os("NO_COLOR").is_none() }
        }
        LogFormat::Combined => AccessLog::Combined,
        LogFormat::Json => AccessLog::Json,
    };
    Ok(config)
}

/// Returns the only route of the configuration.
fn build_route(run: &RunArguments, action: Action, otherwise: Option<Action>) -> Result<Route, Failure> {
    if run.cache && otherwise.is_none() && matches!(action, Action::Files(_)) {
        return Err(Failure::new("--cache is for upstream servers and applications, and no target is one"));
    }
    let cache = run.cache.then(|| Some(cache::CachePolicy::default()));
    Ok(Route { action, otherwise, cache, ..Route::default() })
}

/// Returns the application that a target names and its name; `None` if the target is not an application.
///
/// # Errors
/// A flag that does not apply to this kind of application, or an address that looks like `MODULE:NAME`.
fn detect_application(run: &RunArguments, target: &str) -> Result<Option<(String, AppSettings)>, Failure> {
    let place = target.split(':').next().unwrap_or_default();
    let path = Path::new(place);
    let given = &run.app;
    let python = |interface| AppKind::Python { interface, callable: target.to_owned() };
    let kind = match (path.extension().and_then(|extension| extension.to_str()), given.interface) {
        (Some("psgi" | "pl"), _) => AppKind::Psgi(target.into()),
        (Some("ru" | "rb"), _) => AppKind::Rack(target.into()),
        (Some("php"), _) => AppKind::Php(PhpApp::from_script(path)),
        (Some("so"), _) => AppKind::Native(target.into()),
        _ if Path::new(target).is_dir() => return Ok(None),
        _ if is_address(target) => return Err(Failure::new(address_hint(target))),
        (_, Some(Interface::Wsgi)) => python(PythonInterface::Wsgi),
        (_, Some(Interface::Asgi)) => python(PythonInterface::Asgi),
        (Some("py"), None) => python(PythonInterface::Auto),
        _ if target.contains(':') => python(PythonInterface::Auto),
        _ => return Ok(None),
    };
    if given.interface.is_some() && !matches!(kind, AppKind::Python { .. }) {
        return Err(Failure::new(format!(
            "--interface is only for Python applications, and {target} is not one"
        )));
    }
    let single = match &kind {
        AppKind::Psgi(_) => Some("Perl"),
        AppKind::Php(_) => Some("PHP"),
        _ => None,
    };
    if let Some(language) = single.filter(|_| given.worker_threads.is_some_and(|threads| threads > 1)) {
        return Err(Failure::new(format!(
            "--worker-threads is not for an application in {language}, and {target} is one: its workers answer one \
             request at a time; write --workers"
        )));
    }
    let workers = given.workers.map(|count| Workers { min: count, max: count });
    // Interactive use: show errors of the application in the browser.
    let mut app = AppSettings {
        workers,
        threads: given.worker_threads.unwrap_or(1),
        show_errors: true,
        ..AppSettings::of_kind(kind)
    };
    app.preload = !given.no_preload;
    app.timeouts.request = given.timeout.unwrap_or(app.timeouts.request);
    app.recycle.requests = given.max_requests.map(u64::from);
    app.recycle.memory_bytes = given.max_memory;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Some((name.split('.').next().unwrap_or_default().to_owned(), app)))
}

/// Whether a target is `HOST:PORT`, `:PORT` or a port, and not `MODULE:NAME`: Python names do not begin with
/// a digit.
fn is_address(target: &str) -> bool {
    let authority = target.split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':').map_or(target, |(_, port)| port);
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

fn address_hint(target: &str) -> String {
    let authority = match target.split('/').next().unwrap_or_default() {
        port if !port.contains(':') => format!("127.0.0.1:{port}"),
        port if port.starts_with(':') => format!("127.0.0.1{port}"),
        authority => authority.to_owned(),
    };
    format!("{target}: an upstream server is a URL: write \"http://{authority}\"")
}

/// Returns the environment variables of the application in addition to the server's. `--env` overrides the
/// environment, and the environment overrides the files of `--env-file`.
fn environment_variables(given: &RunAppArguments) -> Result<Vec<(String, String)>, Failure> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for path in &given.env_file {
        let read = env_file::read(path)?;
        variables.extend(read.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    }
    variables.extend(given.env.iter().cloned());
    Ok(variables)
}

/// Whether a target is an upstream server rather than a folder.
fn is_url(target: &str) -> bool {
    target.starts_with("unix:") || target.contains("://")
}

/// Description of the targets that `komainu run` accepts.
const TARGETS_HELP: &str = "a target is a folder, an upstream server (http://HOST:PORT, https://HOST:PORT, h2c://HOST:PORT, h3://HOST:PORT, unix:PATH), or an \
    application: FILE.psgi or FILE.pl (Perl), FILE.ru or FILE.rb (Ruby), FILE.py or MODULE:NAME (Python), FILE.php, FILE.so (native)";

/// Returns the hint for a target that is meant for another program or command.
fn run_hint(target: &Path) -> Option<String> {
    let name = target.file_name()?.to_str()?;
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let module = Path::new(&name.replace('.', "/")).with_extension("py");
    if target.components().count() == 1 && !target.exists() && module.is_file() {
        return Some(format!(
            "a Python application is MODULE:NAME: `komainu run {name}:application` is `application` in {}",
            module.display()
        ));
    }
    let text = match (name, extension) {
        ("package.json", _)
        | (_, "js" | "mjs" | "cjs" | "ts" | "go" | "jar" | "war" | "exs" | "ex" | "rs") => {
            "start this with its own program on a port, and pass requests to it: `komainu run http://127.0.0.1:PORT`"
        }
        (_, "html" | "htm") => {
            let folder = target.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
            return Some(format!("name the folder of the file: `komainu run {}`", folder.display()));
        }
        (_, "toml") => "this is a configuration: `komainu start -c FILE`",
        ("Caddyfile", _) => "`komainu import caddy` translates what `caddy adapt` makes of a Caddyfile",
        (_, "conf") => "`komainu import nginx FILE` translates a configuration of nginx",
        _ => return None,
    };
    Some(text.to_owned())
}

fn check_folder(target: &Path) -> Result<(), Failure> {
    let shown = target.display();
    if let Some(meant) = run_hint(target).filter(|_| !target.is_dir()) {
        return Err(Failure::new(format!("{shown}: {meant}")));
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{shown}: this file is not an application; {TARGETS_HELP}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::new(format!("{shown}: there is no such folder; {TARGETS_HELP}")))
        }
        Err(error) => Err(Failure::from(error).context(shown)),
    }
}
