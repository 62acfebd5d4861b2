//! The binary: arguments, assembly of the configuration into handlers, and the supervisor.
//!
//! It owns the process: signals, logs, descriptors and exit codes. It never parses HTTP or touches a connection.
//!
//! Modules, from low to high; a module uses only those above it.

mod terminal;
mod measure;
mod ab;
mod env_file;
mod control_endpoint;
mod confine_arguments;
mod ctl_arguments;
mod sign_url_arguments;
mod cli;
mod cli_hints;
mod foreign;
mod remote_log;
mod log_record;
mod process_status;
mod sink;
mod masks;
mod access;
mod burst;
mod events;
mod privilege;
mod file_rights;
mod notice;
mod crashes;
mod pages;
mod clients;
mod ids;
mod memory;
mod metrics;
mod traces;
mod rule_counters;
mod families;
mod exposition;
mod exposition_protobuf;
mod metrics_format;
mod otlp_metrics;
mod granted_paths;
mod refused_calls;
mod temporary_folder;
mod sandbox;
mod sockets;
mod systemd;
mod stream_listen;
mod engine;
mod client_access;
mod costs;
mod route_edits;
mod link;
mod config_files;
mod geo;
mod control_file;
mod log_target;
mod logs;
mod inherited;
mod stop_signals;
mod upgrade;
mod cgi_programs;
mod upstreams;
mod staples;
mod tls;
mod control_access;
mod certificates;
mod virtualenv;
mod shaping;
mod language;
mod hosting;
mod overview;
mod cache_request;
mod cache_rules;
mod cache_urls;
mod cache_commands;
mod config_text;
mod pending;
mod generations;
mod streams;
mod control_peer;
mod control;
mod control_client;
mod history;
mod api;
mod dictionaries;
mod operate;
mod control_listener;
mod push;
mod watch;
mod status_fetch;
mod status;
mod ctl;
mod look;
mod cache_cli;
mod cert;
mod rate;
mod auth;
mod sign_url;
mod cors;
mod site_https;
mod release;
mod guard;
mod filling;
mod purge_method;
mod coded;
mod cache_responses;
mod cached;
mod php;
mod request_path;
mod route_conditions;
mod path_rules;
mod filled;
mod replacing;
mod internal;
mod router;
mod fixed;
mod release_plan;
mod guard_plan;
mod content;
mod assemble;
mod named_paths;
mod path_doubts;
mod start_rights;
mod start_checks;
mod check;
mod answers;
mod parent;
mod lifecycle;
mod staged_files;
mod named_things;
mod config_edits;
mod diff;
mod supervise;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ::link::LinkRequest;
use clap::CommandFactory;
use config::{
    AccessLog, Action, App, CertificateSource, Config, Listener, Origin, Route, Site, SiteTls, Workers,
};
use signal_hook::consts::SIGXFSZ;

use crate::cli::{Cli, Command, Interface, LogFormat, LogLevel, Run, RunApp};
use crate::config_text::ConfigText;
use crate::inherited::Inherited;
use crate::privilege::{Identity, Rights};
use crate::sockets::GivenSockets;
use crate::supervise::Start;
use crate::terminal::printable;
use crate::upgrade::Predecessor;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done = match cli_hints::parsed().command {
        Command::Run(run) => taking_over(|taken| serve_targets(&run, taken)),
        Command::Start(start) => taking_over(|taken| serve_file(start.config.clone(), taken))
            .map_err(|error| check::placed(&start.config, error)),
        Command::Check(arguments) => {
            check::check(&arguments).map_err(|error| check::placed(&arguments.config, error))
        }
        Command::Import(arguments) => return judged(foreign::import(&arguments)),
        Command::Fmt(arguments) => diff::format(&arguments).and_then(|text| print(&text)),
        Command::Diff(arguments) => diff::diff(&arguments).and_then(|text| print(&text)),
        Command::Status(arguments) => status::status(&arguments).and_then(report),
        Command::Ctl(arguments) => ctl::ctl(&arguments).and_then(report),
        Command::Top(arguments) => look::top(&arguments),
        Command::Reload(arguments) => status::reload(&arguments).and_then(report),
        Command::Cache(command) => cache_cli::cache(&command).and_then(report),
        Command::Cert(command) => cert::cert(&command).and_then(report),
        Command::SignUrl(arguments) => sign_url::sign_url(&arguments).and_then(report),
        Command::Trust(arguments) => cert::trust(&arguments).and_then(report),
        Command::Upgrade(arguments) => status::upgrade(&arguments).and_then(report),
        Command::Bench(arguments) => return judged(measure::bench(&arguments)),
        Command::Ab(arguments) => return judged(ab::ab(&arguments)),
        Command::Lab(arguments) => return judged(measure::lab(&arguments)),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Reference => print(&config::reference()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "komainu", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man => manual(),
        Command::Confine(arguments) => sandbox::confine(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain_of_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// The exit status of commands that measure: 1 if an expectation does not hold, 2 if the measurement failed.
fn judged(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            terminal::complain(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Prints what may repeat texts of others.
fn report(text: String) -> Result<(), String> {
    print(&printable(&text))
}

fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: `komainu schema | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| error.to_string()),
    }
}

fn manual() -> Result<(), String> {
    let mut page = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(|error| error.to_string())?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let named = sub.clone().name(format!("komainu-{}", sub.get_name()));
        clap_mangen::Man::new(named).render(&mut page).map_err(|error| error.to_string())?;
    }
    print(&String::from_utf8_lossy(&page))
}

/// What this process takes over when it starts.
struct TakenOver {
    inherited: Option<Inherited>,
    predecessor: Option<Predecessor>,
    given: GivenSockets,
}

/// Serves by what this process takes over; the server to be replaced receives the reason if this one cannot.
fn taking_over(serve: impl FnOnce(TakenOver) -> Result<(), String>) -> Result<(), String> {
    net::sys::keep_descriptors_from_programs().map_err(failed)?;
    upgrade::program().map_err(failed)?;
    // A file that may not grow any more (`LimitFSIZE`) is an error of its write, as a full disk is, and not the end.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
    if let Some(inherited) = Inherited::take().map_err(failed)? {
        let given = GivenSockets::default();
        return serve(TakenOver { inherited: Some(inherited), predecessor: None, given });
    }
    let Some((predecessor, given)) = Predecessor::take().map_err(failed)? else {
        let given = systemd::sockets().map_err(failed)?;
        return serve(TakenOver { inherited: None, predecessor: None, given });
    };
    let done = serve(TakenOver { inherited: None, predecessor: Some(predecessor.clone()), given });
    done.inspect_err(|error| predecessor.report_failure(error.strip_prefix("error: ").unwrap_or(error)))
}

/// `komainu start -c FILE`
fn serve_file(path: PathBuf, taken: TakenOver) -> Result<(), String> {
    let TakenOver { inherited, predecessor, given } = taken;
    if let Some(text) = inherited.as_ref().map(|given| given.text.clone().unwrap_or_default()) {
        // The supervisor has printed its warnings.
        let config = check::parse_silently(&path, &text)?;
        let in_force = ConfigText { path: path.clone(), joined: text.as_str().into() };
        let link = inherited.as_ref().map(|given| given.link.clone());
        let reread: check::Reread = Box::new(move || {
            let packet = link.as_ref().map(|link| link.ask(&LinkRequest::Config, &[])).transpose();
            let packet = packet.map_err(|error| error.to_string())?.ok_or("there is no supervisor")?;
            check::read_again(&path, inherited::text_of(packet).map_err(|error| error.to_string())?)
        });
        let text = Some(in_force);
        let start = Start {
            config,
            reread: Some(reread),
            text,
            watch: false,
            inherited,
            predecessor,
            given,
            warning: None,
        };
        return served(start);
    }
    let text = check::read_text(&path)?;
    let config = check::parse(&path, &text)?;
    match privilege::rights(&config, false).map_err(|error| format!("error: {error}"))? {
        Rights::Drop(identity) => {
            start_checks::files_are_open(&config, &identity)?;
            supervised(config, Some((path, text)), identity, (predecessor, given))
        }
        Rights::Keep(warning) => {
            let text = Some(ConfigText { path: path.clone(), joined: text.into() });
            let reread: check::Reread = Box::new(move || check::read_again(&path, check::read_text(&path)?));
            let reread = Some(reread);
            served(Start { config, reread, text, watch: false, inherited: None, predecessor, given, warning })
        }
    }
}

/// Runs the supervisor of a server that has another user, and returns that server's exit status.
fn supervised(
    config: Config,
    file: Option<(PathBuf, String)>,
    identity: Identity,
    taken: (Option<Predecessor>, GivenSockets),
) -> Result<(), String> {
    match parent::supervise(config, file, identity, taken).map_err(failed)? {
        0 => Ok(()),
        status => std::process::exit(status.into()),
    }
}

fn failed(error: io::Error) -> String {
    format!("error: {error}")
}

/// `komainu run TARGET…`
fn serve_targets(run: &Run, taken: TakenOver) -> Result<(), String> {
    let TakenOver { inherited, predecessor, given } = taken;
    let config = configuration(run)?;
    let warning = match inherited {
        Some(_) => None,
        // Root's `komainu run` serves what root can read, as similar servers do; `komainu start` as root changes the
        // user instead.
        None => match privilege::rights(&config, true).map_err(|error| format!("error: {error}"))? {
            Rights::Drop(identity) => {
                start_checks::files_are_open(&config, &identity)?;
                return supervised(config, None, identity, (predecessor, given));
            }
            Rights::Keep(warning) => warning,
        },
    };
    served(Start {
        config,
        reread: None,
        text: None,
        watch: run.app.watch,
        inherited,
        predecessor,
        given,
        warning,
    })
}

/// Serves; reports a failure to the supervisor as well, if there is one.
fn served(start: Start) -> Result<(), String> {
    let link = start.inherited.as_ref().map(|given| given.link.clone());
    supervise::serve(start, announce).map_err(|error| {
        link.iter().for_each(|link| link.report(&LinkRequest::Failed(&error.to_string())));
        failed(error)
    })
}

/// The configuration that corresponds to the arguments.
fn configuration(run: &Run) -> Result<Config, String> {
    let (mut folders, mut origins, mut apps) = (Vec::new(), Vec::new(), Vec::new());
    for target in &run.targets {
        if is_url(target) {
            origins.push(Origin::parse(target).map_err(|fault| format!("error: {target}: {fault}"))?);
        } else if let Some(app) = application(run, target).map_err(|text| format!("error: {text}"))? {
            apps.push(app);
        } else {
            check_folder(Path::new(target))?;
            folders.push(PathBuf::from(target));
        }
    }
    let otherwise = match (apps.as_slice(), origins.is_empty()) {
        ([], true) => None,
        ([], false) => Some(Action::Proxy(Box::new(config::Proxy::to(origins)))),
        ([(name, _)], true) => {
            Some(Action::App(Box::new(config::Mounted { name: name.clone(), ..config::Mounted::default() })))
        }
        _ => {
            return Err(
                "error: more than one application, or an application and upstream servers: write a configuration file, and use `komainu start`".into()
            );
        }
    };
    if let Some(flag) = run.app.first_given().filter(|_| apps.is_empty()) {
        return Err(format!("error: {flag} is only for applications, and no target is an application"));
    }
    if let Some((_, app)) = apps.first_mut() {
        app.env = variables(&run.app).map_err(|text| format!("error: {text}"))?;
    }
    let files = config::Files { root: folders, listing: run.listing, ..config::Files::default() };
    let (action, otherwise) = match otherwise {
        Some(action) if files.root.is_empty() => (action, None),
        otherwise => (Action::Files(Box::new(files)), otherwise),
    };
    let route = route(run, action, otherwise)?;
    let tls = run.tls_certificate.as_ref().map(|certificate| SiteTls {
        certificate: CertificateSource::Files(vec![certificate.clone()]),
        key: run.tls_key.iter().cloned().collect(),
        ..SiteTls::default()
    });
    let speaks_tls = |address: &config::Listen| tls.is_some() && !matches!(address, config::Listen::Unix(_));
    let listener =
        |at: config::Listen| Listener { tls: Some(speaks_tls(&at)), h2c: run.h2c, ..Listener::at(at) };
    let mut config = Config {
        listen: run.listen.iter().cloned().map(listener).collect(),
        threads: run.threads,
        user: run.user.clone(),
        sites: vec![Site { routes: vec![route], tls, ..Site::default() }],
        apps,
        ..Config::default()
    };
    config.control.listen.clone_from(&run.control);
    config.limits.body_bytes_max = run.body_max.0;
    config.log.level = match run.log_level {
        LogLevel::Error => config::Level::Error,
        LogLevel::Warn => config::Level::Warn,
        LogLevel::Info => config::Level::Info,
        LogLevel::Debug => config::Level::Debug,
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

/// The one route.
fn route(run: &Run, action: Action, otherwise: Option<Action>) -> Result<Route, String> {
    if run.cache && otherwise.is_none() && matches!(action, Action::Files(_)) {
        return Err("error: --cache is for upstream servers and applications, and no target is one".into());
    }
    let cache = run.cache.then(|| Some(config::CachePolicy::default()));
    Ok(Route { action, otherwise, cache, ..Route::default() })
}

/// The application that a target names, and a name for it; `None` if it is not an application.
///
/// # Errors
/// A flag that does not apply to this kind of application, or an address that looks like `MODULE:NAME`.
fn application(run: &Run, target: &str) -> Result<Option<(String, App)>, String> {
    let place = target.split(':').next().unwrap_or_default();
    let path = Path::new(place);
    let file = || Some(PathBuf::from(target));
    let callable = || Some(target.to_owned());
    let given = &run.app;
    let kind = match (path.extension().and_then(|extension| extension.to_str()), given.interface) {
        (Some("psgi" | "pl"), _) => App { psgi: file(), ..App::default() },
        (Some("ru" | "rb"), _) => App { rack: file(), ..App::default() },
        (Some("php"), _) => App { php: Some(config::PhpApp::of_script(path)), ..App::default() },
        (Some("so"), _) => App { handler: file(), ..App::default() },
        _ if Path::new(target).is_dir() => return Ok(None),
        _ if is_address(target) => return Err(address_hint(target)),
        (_, Some(Interface::Wsgi)) => App { wsgi: callable(), ..App::default() },
        (_, Some(Interface::Asgi)) => App { asgi: callable(), ..App::default() },
        (Some("py"), None) => App { python: callable(), ..App::default() },
        _ if target.contains(':') => App { python: callable(), ..App::default() },
        _ => return Ok(None),
    };
    let is_python =
        kind.psgi.is_none() && kind.rack.is_none() && kind.php.is_none() && kind.handler.is_none();
    if given.interface.is_some() && !is_python {
        return Err(format!("--interface is only for Python applications, and {target} is not one"));
    }
    let single = if kind.psgi.is_some() { Some("Perl") } else { kind.php.is_some().then_some("PHP") };
    if let Some(language) = single.filter(|_| given.worker_threads.is_some_and(|threads| threads > 1)) {
        return Err(format!(
            "--worker-threads is not for an application in {language}, and {target} is one: its workers answer one \
             request at a time; write --workers"
        ));
    }
    let workers = given.workers.map(|count| Workers { min: count, max: count });
    // A user at the command line needs the error message in the browser.
    let mut app = App { workers, threads: given.worker_threads.unwrap_or(1), show_errors: true, ..kind };
    app.timeouts.request = given.timeout.unwrap_or(app.timeouts.request);
    app.recycle.requests = given.max_requests.map(u64::from);
    app.recycle.memory_bytes = given.max_memory;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Some((name.split('.').next().unwrap_or_default().to_owned(), app)))
}

/// Whether a target is `HOST:PORT`, `:PORT` or a port: no Python name begins with a digit.
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

/// The variables of the application, in addition to those of the server: `--env` overrides the environment, and the
/// environment overrides the files of `--env-file`.
fn variables(given: &RunApp) -> Result<Vec<(String, String)>, String> {
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

/// The targets that `komainu run` accepts.
const TARGETS: &str = "a target is a folder, an upstream server (http://HOST:PORT, https://HOST:PORT, h2c://HOST:PORT, unix:PATH), or an \
    application: FILE.psgi or FILE.pl (Perl), FILE.ru or FILE.rb (Ruby), FILE.py or MODULE:NAME (Python), FILE.php, FILE.so (native)";

/// What to write for a target that another server takes.
fn run_hint(target: &Path) -> Option<String> {
    let name = target.file_name()?.to_str()?;
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
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

fn check_folder(target: &Path) -> Result<(), String> {
    let shown = target.display();
    if let Some(meant) = run_hint(target).filter(|_| !target.is_dir()) {
        return Err(format!("error: {shown}: {meant}"));
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("error: {shown}: this file is not an application; {TARGETS}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("error: {shown}: there is no such folder; {TARGETS}"))
        }
        Err(error) => Err(format!("error: {shown}: {error}")),
    }
}

/// Prints the addresses of the server once it accepts connections, and those of its dashboard.
fn announce(urls: &[net::ListenUrl], control: &[net::ListenUrl]) {
    let mut out = io::stdout();
    for url in urls {
        let scheme = match url.is_tls {
            _ if url.is_stream => "tcp",
            true => "https",
            false => "http",
        };
        let shown = match &url.at {
            net::Bind::Any(port) => format!("{scheme}://localhost:{port} (every address)"),
            net::Bind::Tcp(address) if address.ip().is_unspecified() && address.is_ipv6() => {
                format!("{scheme}://[::1]:{} (every IPv6 address)", address.port())
            }
            net::Bind::Tcp(address) if address.ip().is_unspecified() => {
                format!("{scheme}://localhost:{} (every IPv4 address)", address.port())
            }
            _ => url.to_string(),
        };
        let _ = writeln!(out, "komainu serves {}", terminal::printable(&shown));
    }
    for url in control {
        let _ = match url.at {
            net::Bind::Unix(_) => writeln!(out, "the control listener is {url}"),
            _ => writeln!(out, "the dashboard is at {url}"),
        };
    }
    if out.is_terminal() {
        let _ = writeln!(out, "Ctrl-C stops it.");
    }
    let _ = out.flush();
}
