//! Starts the worker processes of the configured applications, and keeps the list of running applications.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use apps::{
    App, AppLogLevel, AppSettings, AppSnapshot, Handle, Lifespan, LogLine, Mount, Options, ProcessInfo,
    WorkerExit, Workers,
};
use failure::Failure;
use logging::Level;
use logging::notice::ErrorLog;
use net::{Core, Exchange, Fault, SpillQuota, SpillStore};
use process::config_files::ConfigFiles;
use process::link::{IDENTITY, SupervisorLink};
use process::sandbox;
use proxy::Script;
use rights::privilege::{Identity, account_environment};

use crate::language::{app_target, find_module, installed_module};
use crate::virtualenv::{skip_reason, virtual_environment};

/// Finds what an application needs on this machine: its command, folder, user and environment.
///
/// # Errors
/// A file, the language's module or the user is missing; or there are too many workers.
pub fn options(name: &str, app: &AppSettings) -> io::Result<Options> {
    let user = app.user.as_ref().map(|user| Identity::named(user, app.group.as_deref())).transpose();
    let user = user.map_err(|error| app_error(name, error))?;
    let (command, folder) = command(name, app, user.as_ref())?;
    let user = user.map(|user| (user.uid, user.gid));
    let mut options = Options { command, folder, user, ..base_options(name, app)? };
    // The environment of the user who started the server is inherited, whose home is not accessible to
    // another user.
    let is_other = user.is_some() || std::env::var_os(IDENTITY).is_some();
    let uid = user.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid);
    for (variable, value) in account_environment(uid).into_iter().flatten().filter(|_| is_other) {
        if options.env.iter().all(|(given, _)| *given != variable) {
            options.env.push((variable.into(), value));
        }
    }
    Ok(options)
}

/// Checks whether an application can be started by this user, as far as another process can tell.
///
/// # Errors
/// A file, program or module is missing.
pub fn check_as(name: &str, app: &AppSettings, user: &Identity) -> io::Result<()> {
    command(name, app, Some(user)).map(drop)
}

/// A warning about an application that can be started nevertheless. `user` is the application's user, if that
/// is not the user of this process.
pub fn warning(name: &str, app: &AppSettings, user: Option<&Identity>) -> Option<String> {
    let text = skip_reason(app, user).filter(|_| app.python_interface().is_some())?;
    Some(format!("the application {name}: {text}"))
}

/// The program, its arguments, and its working directory. `user` is the application's user, if that is not
/// the user of this process.
fn command(
    name: &str,
    app: &AppSettings,
    user: Option<&Identity>,
) -> io::Result<(Vec<OsString>, Option<PathBuf>)> {
    let target = app_target(app).map_err(|error| app_error(name, error))?;
    let folder = app.folder.as_deref().or(target.folder.as_deref()).map(std::path::absolute).transpose()?;
    let environment = if app.python_interface().is_some() {
        virtual_environment(app, folder.as_deref(), user).map_err(|error| app_error(name, error))?
    } else {
        None
    };
    let interpreter = match (&app.interpreter, &environment) {
        (Some(interpreter), _) => Some(interpreter.into()),
        (None, Some(environment)) => Some(environment.join("bin/python").into_os_string()),
        (None, None) => target.language.interpreter.map(OsString::from),
    };
    if let Some(program) = &interpreter {
        check_program(app, program, folder.as_deref()).map_err(|error| app_error(name, error))?;
    }
    let script = match environment.as_deref().and_then(installed_module) {
        Some(folder) => folder,
        None => find_module(target.language).map_err(|error| app_error(name, error))?,
    };
    let program = script.join(target.language.script).into_os_string();
    // An interpreter found in PATH is assumed to be in a system path, which every sandbox can read.
    let path = interpreter.as_ref().map(PathBuf::from).filter(|path| path.components().count() > 1);
    let path = path.map(|path| folder.as_deref().unwrap_or(Path::new("")).join(path));
    let command = interpreter.into_iter().chain([program]).chain(target.arguments).collect();
    let command = match &app.sandbox {
        None => command,
        Some(sandbox) => {
            let reads = [folder.clone(), environment, Some(script)];
            sandbox::confine_command(sandbox, reads.into_iter().flatten().collect(), path, command)
                .map_err(|error| app_error(name, error))?
        }
    };
    Ok((command, folder))
}

/// Checks that an interpreter exists; a bare name is searched in the application's `PATH`.
fn check_program(app: &AppSettings, program: &OsStr, folder: Option<&Path>) -> Result<(), Failure> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let own = app.env.iter().find(|(name, _)| name == "PATH").map(|(_, folders)| folders.into());
    let folders = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let (is_there, place) = match program.as_encoded_bytes().contains(&b'/') {
        // A relative path is resolved in the process's working directory.
        true => (is_program(&folder.unwrap_or(Path::new("")).join(program)), String::new()),
        false => {
            let is_there = std::env::split_paths(&folders).any(|folder| is_program(&folder.join(program)));
            (is_there, format!(" in the folders of PATH ({})", folders.to_string_lossy()))
        }
    };
    if is_there {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "there is no program {}{place}: install it, or name another one with `interpreter`, such as \"/usr/bin/python3\"",
            program.to_string_lossy()
        )))
    }
}

/// Options that require no access to the application's files: all except the command and the user.
///
/// # Errors
/// There are too many workers.
pub(crate) fn base_options(name: &str, app: &AppSettings) -> io::Result<Options> {
    let options = Options {
        settings: app.clone(),
        env: environment_of(app),
        workers: app.workers.clone().unwrap_or_else(default_workers),
        ..Options::new(name, Vec::new())
    };
    options.check().map_err(|error| app_error(name, error))?;
    Ok(options)
}

/// Environment variables of the processes, in addition to those of the server.
fn environment_of(app: &AppSettings) -> Vec<(OsString, OsString)> {
    let lifespan = (app.lifespan != Lifespan::Auto).then_some(("KOMAINU_LIFESPAN", app.lifespan.text()));
    let given = app.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    given.chain(lifespan).map(|(name, value)| (name.into(), value.into())).collect()
}

fn app_error(app: &str, error: impl Into<Failure>) -> io::Error {
    error.into().context(format!("the application {app}")).into()
}

fn default_workers() -> Workers {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let count = u32::try_from(cores).unwrap_or(u32::MAX).max(2);
    Workers { min: count, max: count }
}

/// The running applications.
pub struct Hosting {
    running: Mutex<Vec<(AppSettings, Arc<App>)>>,
    cores: usize,
    notices: ErrorLog,
    spill: Arc<SpillStore>,
    memory: net::MemoryBudget,
    /// The link to the supervisor, if there is one: it starts the processes of applications with a `user`.
    link: Option<SupervisorLink>,
    files: ConfigFiles,
    /// User ids of applications with a `sandbox`, including those removed by a reload.
    sandboxed_uids: Mutex<BTreeSet<u32>>,
}

impl Hosting {
    /// Creates the list, without applications.
    pub fn new(
        cores: usize,
        notices: &ErrorLog,
        spill: &Arc<SpillStore>,
        memory: &net::MemoryBudget,
        link: Option<SupervisorLink>,
    ) -> Hosting {
        let notices = notices.clone();
        let spill = spill.clone();
        let memory = memory.clone();
        Hosting {
            running: Mutex::default(),
            cores,
            notices,
            spill,
            memory,
            files: ConfigFiles::new(link.clone()),
            link,
            sandboxed_uids: Mutex::default(),
        }
    }

    /// Access to files named by the configuration.
    pub fn files(&self) -> ConfigFiles {
        self.files.clone()
    }

    /// The memory budget of the process.
    pub fn memory(&self) -> &net::MemoryBudget {
        &self.memory
    }

    /// The error log.
    pub fn notices(&self) -> &ErrorLog {
        &self.notices
    }

    /// The store of temporary files.
    pub fn spill(&self) -> &Arc<SpillStore> {
        &self.spill
    }

    /// Options of an application, with its quota of temporary files.
    fn options(&self, name: &str, app: &AppSettings) -> io::Result<Options> {
        let options = match &self.link {
            // This process may have no access to the application's files.
            Some(link) if app.user.is_some() => {
                Options { launcher: Some(Arc::new(link.launcher(name))), ..base_options(name, app)? }
            }
            _ => options(name, app)?,
        };
        Ok(Options { spill: SpillQuota::new(&self.spill, app.spill_bytes_max), ..options })
    }

    /// Checks whether an application can be started, as far as this process can tell.
    ///
    /// # Errors
    /// A file, program or module is missing.
    pub fn check(&self, name: &str, app: &AppSettings) -> io::Result<()> {
        self.options(name, app).map(drop)
    }

    fn running(&self) -> MutexGuard<'_, Vec<(AppSettings, Arc<App>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts new applications, reloads changed ones, and unchanged ones too if `reloads`, and releases those
    /// that are no longer in the configuration.
    ///
    /// # Errors
    /// An application could not be started; the others are started.
    pub fn apply(&self, configured: &[(String, AppSettings)], reloads: bool) -> io::Result<()> {
        let mut running = self.running();
        running.retain(|(_, app)| configured.iter().any(|(name, _)| name == app.name()));
        let mut outcome = Ok(());
        for (name, config) in configured {
            self.record_sandbox(config);
            let known = running.iter_mut().find(|(_, app)| app.name() == name);
            let done = match known {
                Some((known, _)) if known == config && !reloads => Ok(()),
                Some((known, app)) if known == config => {
                    app.reload();
                    Ok(())
                }
                Some((known, app)) => self.options(name, config).map(|options| {
                    app.reload_with(options);
                    *known = config.clone();
                }),
                None => self.start(name, config).map(|app| running.push((config.clone(), app))),
            };
            outcome = outcome.and(done);
        }
        outcome
    }

    fn start(&self, name: &str, config: &AppSettings) -> io::Result<Arc<App>> {
        let user = config.user.as_ref().and_then(|user| Identity::named(user, config.group.as_deref()).ok());
        warning(name, config, user.as_ref()).iter().for_each(|text| self.notices.warn(text));
        let notices = self.notices.clone();
        let log = move |line: &LogLine<'_>| log_line(&notices, line);
        App::start(self.options(name, config)?, self.cores, Arc::new(log)).map(Arc::new)
    }

    /// Whether processes of a user may be sandboxed.
    pub fn is_sandboxed(&self, uid: u32) -> bool {
        self.sandboxed_uids.lock().unwrap_or_else(PoisonError::into_inner).contains(&uid)
    }

    fn record_sandbox(&self, config: &AppSettings) {
        if config.sandbox.is_some() {
            let named =
                config.user.as_ref().and_then(|user| Identity::named(user, config.group.as_deref()).ok());
            let uid = named.map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
            self.sandboxed_uids.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
        }
    }

    /// Waits until all applications are loaded.
    ///
    /// # Errors
    /// Names of the applications that failed to load, and the reasons.
    pub fn wait_until_loaded(&self) -> io::Result<()> {
        let failures: Vec<String> = self.loading().iter().filter_map(AppLoading::wait_for_failure).collect();
        if failures.is_empty() { Ok(()) } else { Err(io::Error::other(failures.join("; "))) }
    }

    /// Reloads an application; `None` if there is none with this name.
    pub fn reload(&self, name: &str) -> Option<AppLoading> {
        let running = self.running();
        let (config, app) = running.iter().find(|(_, app)| app.name() == name)?;
        app.reload();
        Some(AppLoading::of(config, app))
    }

    /// The latest load of each application.
    pub fn loading(&self) -> Vec<AppLoading> {
        self.running().iter().map(|(config, app)| AppLoading::of(config, app)).collect()
    }

    /// Directory of each application.
    pub fn folders(&self) -> Vec<(String, PathBuf)> {
        let folder = |config: &AppSettings| {
            let file = app_target(config).ok().and_then(|target| target.folder);
            let folder = config.folder.clone().or(file).unwrap_or_default();
            std::path::absolute(folder.join("."))
        };
        let running = self.running();
        let each = running.iter().map(|(config, app)| Ok((app.name().to_owned(), folder(config)?)));
        each.collect::<io::Result<_>>().unwrap_or_default()
    }

    /// Processes of each application.
    pub fn processes(&self) -> Vec<(String, Vec<ProcessInfo>)> {
        let apps: Vec<Arc<App>> = self.running().iter().map(|(_, app)| app.clone()).collect();
        apps.iter().map(|app| (app.name().to_owned(), app.processes())).collect()
    }

    /// Processes of each application with their current work, and its queue.
    pub fn snapshots(&self) -> Vec<(String, AppSnapshot)> {
        let apps: Vec<Arc<App>> = self.running().iter().map(|(_, app)| app.clone()).collect();
        apps.iter().map(|app| (app.name().to_owned(), app.snapshot())).collect()
    }

    /// Number of requests waiting for workers of all applications.
    pub fn waiting(&self) -> usize {
        let apps: Vec<Arc<App>> = self.running().iter().map(|(_, app)| app.clone()).collect();
        apps.iter().map(|app| app.queue_snapshot().waiting).sum()
    }

    /// Names of the applications.
    pub fn names(&self) -> Vec<String> {
        self.running().iter().map(|(_, app)| app.name().to_owned()).collect()
    }

    /// Number of ended workers of each application, by reason.
    pub fn exits(&self) -> Vec<(String, [u64; WorkerExit::ALL.len()])> {
        self.running().iter().map(|(_, app)| (app.name().to_owned(), app.exits())).collect()
    }

    /// Stops all applications, and waits for their processes to end.
    pub fn stop(&self) {
        let running = std::mem::take(&mut *self.running());
        if running.is_empty() {
            return;
        }
        // Concurrently, because each may have requests to finish.
        let ending: Vec<_> =
            running.into_iter().map(|(_, app)| std::thread::spawn(move || app.stop())).collect();
        for thread in ending {
            // A panic has already been logged.
            let _ = thread.join();
        }
        let strays = apps::Orphans::end_strays().join(", ");
        if !strays.is_empty() {
            let text =
                "killed processes that applications have started and that have left their process group";
            self.notices.warn(&format!("{text}: {strays}"));
        }
    }
}

/// Replaces each byte of control characters by `\xHH`, because they would affect the terminal of a reader of
/// the log.
fn escape_control(text: &str) -> Cow<'_, str> {
    let is_hidden = |char: char| char.is_control() && !matches!(char, '\t' | '\n');
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_hidden(char) {
            char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")))
        } else {
            shown.push(char)
        }
    }
    shown.into()
}

/// An application that is being loaded.
pub struct AppLoading {
    name: String,
    until: Instant,
    start_max: Duration,
    result: Receiver<Result<(), apps::LoadError>>,
}

/// Additional time for an application's supervisor to report that the start timed out.
const LOADING_GRACE: Duration = Duration::from_secs(2);

impl AppLoading {
    fn of(config: &AppSettings, app: &App) -> AppLoading {
        let start_max = config.timeouts.start;
        AppLoading {
            name: app.name().to_owned(),
            until: Instant::now() + start_max + LOADING_GRACE,
            start_max,
            result: app.load_result(),
        }
    }

    /// Waits until the application is loaded or fails; returns the reason of a failure.
    pub fn wait_for_failure(&self) -> Option<String> {
        let name = &self.name;
        match self.result.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => {
                let rest = if failure.old_code_serves {
                    "the old one continues to serve"
                } else {
                    "no worker serves it"
                };
                let why = first_line(&failure.error_text);
                Some(format!("application {name} does not load: {why}; {rest} (the log has the whole error)"))
            }
            Err(RecvTimeoutError::Timeout) => {
                let start_s = self.start_max.as_secs();
                Some(format!("application {name} is not loaded after {start_s} s (timeouts.start)"))
            }
            Err(RecvTimeoutError::Disconnected) => Some(format!("application {name} was stopped")),
        }
    }
}

/// The most informative line of an error message: the last line of a Python traceback, otherwise the first.
fn first_line(words: &str) -> &str {
    let mut lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines.next() {
        Some(line) if line.starts_with("Traceback (") => lines.next_back().unwrap_or(line),
        line => line.unwrap_or("no error message"),
    }
}

fn log_line(notices: &ErrorLog, line: &LogLine<'_>) {
    let text = String::from_utf8_lossy(line.text);
    let text = escape_control(&text);
    match (line.level, line.pid) {
        (AppLogLevel::Error, _) => notices.report(Level::Error, &format!("{}: {text}", line.app)),
        (AppLogLevel::Warn, _) => notices.report(Level::Warn, &format!("{}: {text}", line.app)),
        (AppLogLevel::Info, _) => notices.report(Level::Info, &format!("{}: {text}", line.app)),
        (AppLogLevel::Output, Some(pid)) => notices.output(&format!("{}[{pid}]: {text}", line.app)),
        (AppLogLevel::Output, None) => notices.output(&format!("{}: {text}", line.app)),
    }
}

/// Handles of the applications for one core.
pub struct AppHandles {
    core: Core,
    index: usize,
    hosting: Arc<Hosting>,
    handles: RefCell<HashMap<String, (Arc<App>, Handle)>>,
}

impl AppHandles {
    /// Creates the handles of core `index`.
    pub fn new(core: &Core, index: usize, hosting: &Arc<Hosting>) -> AppHandles {
        AppHandles { core: core.clone(), index, hosting: hosting.clone(), handles: RefCell::default() }
    }

    /// Releases applications that no longer run: an application ends when no core holds a handle.
    pub fn release_stopped(&self) {
        let running = self.hosting.running();
        self.handles
            .borrow_mut()
            .retain(|_, (app, _)| running.iter().any(|(_, other)| Arc::ptr_eq(app, other)));
    }

    /// The handle of an application; `None` if it is not running.
    pub fn of(&self, name: &str) -> Option<Handle> {
        let running = self.hosting.running();
        let mut known = self.handles.borrow_mut();
        let (_, app) = running.iter().find(|(_, app)| app.name() == name)?;
        let way =
            known.entry(name.to_owned()).or_insert_with(|| (app.clone(), app.handle(&self.core, self.index)));
        Some(way.1.clone())
    }
}

/// An application mounted at a path.
pub struct MountedApp {
    /// The application that handles requests.
    pub app: Handle,
    /// The prefix that is removed from paths, and passed as `SCRIPT_NAME`.
    pub prefix: Vec<u8>,
    /// Name of the target within the application.
    pub target: Vec<u8>,
}

impl MountedApp {
    /// Passes a request to the application; `path` is the path that the route matched.
    ///
    /// # Errors
    /// The errors of [`Handle::serve`].
    pub async fn serve(&self, exchange: &mut Exchange<'_>, path: &[u8]) -> Result<(), Fault> {
        let (prefix, path) = match path.strip_prefix(self.prefix.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => (self.prefix.as_slice(), rest),
            _ => (&b""[..], path),
        };
        let scheme = if exchange.request().client().is_secure { "https" } else { "http" };
        let mount = Mount { prefix, path, scheme, host: b"localhost", target: &self.target, variables: &[] };
        self.app.serve(exchange, &mount).await
    }

    /// Passes a request for a script to the application.
    ///
    /// # Errors
    /// The errors of [`Handle::serve`].
    pub async fn serve_script(&self, exchange: &mut Exchange<'_>, script: &Script) -> Result<(), Fault> {
        let Script { root, prefix, name, info } = script;
        let scheme = if exchange.request().client().is_secure { "https" } else { "http" };
        let address = exchange.local_address().map(|local| local.ip().to_canonical().to_string());
        let url = [&prefix[..], name].concat();
        let file = [&root[..], name].concat();
        let variables = [
            ("DOCUMENT_ROOT", root.as_slice()),
            ("SCRIPT_FILENAME", &file),
            ("SERVER_SOFTWARE", proxy::SOFTWARE),
            ("SERVER_ADDR", address.as_deref().unwrap_or_default().as_bytes()),
        ];
        let mount = Mount {
            prefix: &url,
            path: info,
            scheme,
            host: b"localhost",
            target: b"",
            variables: &variables,
        };
        self.app.serve(exchange, &mount).await
    }
}
