//! The supervisor's answers to the server's requests ([`::link::LinkRequest`]).
//!
//! Requests refer to the configuration that the supervisor has read itself. Processes are passed as
//! descriptors, and must be children of the supervisor that run as the user of the named application
//! ([`SupervisorState::passed_process`]).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::link::{DESCRIPTORS_MAX, LinkRequest, LinkSession, TEXT_BYTES_MAX};
use apps::{Launch, Usage};
use config::{Config, NamedFiles};
use engine::options;
use hosting::workers;
use logging::notice::ErrorLog;
use logging::sink::{LogSink, LogTarget, open_file};
use net::{Listen, Listener};
use operator::socket::ControlSocket;
use process::config_files;
use process::systemd::Notifier;
use process::upgrade::Predecessor;
use process::{control_file, link};
use rights::privilege::Identity;
use rights::process_status::{ProcessStatus, pid_of};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, fcntl_getfl, fstat};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitId, WaitIdOptions, WaitStatus, kill_process_group,
    pidfd_getfd, pidfd_open, pidfd_send_signal, test_kill_process_group, waitid,
};

use crate::check::reading;

/// A configuration and the text it was read from; no text if it comes from the command line.
pub(crate) struct LoadedConfig {
    pub(crate) config: Config,
    pub(crate) text: Option<String>,
}

/// State from which the supervisor answers the server's requests.
pub(crate) struct SupervisorState {
    pub(crate) identity: Identity,
    pub(crate) file: Option<PathBuf>,
    pub(crate) current: Mutex<LoadedConfig>,
    /// The configuration last sent to the server, until it is adopted or rejected.
    pub(crate) offered_config: Mutex<Option<LoadedConfig>>,
    pub(crate) listeners: Mutex<Vec<Listener>>,
    /// Listeners that were bound for the offered configuration.
    pub(crate) offered_listeners: Mutex<Vec<Listener>>,
    pub(crate) notifier: Notifier,
    /// Interval of systemd's watchdog.
    pub(crate) watchdog: Option<Duration>,
    /// The server to replace, until this one serves.
    pub(crate) predecessor: Mutex<Option<Predecessor>>,
    pub(crate) control: Option<ControlSocket>,
    /// The supervisor's own log.
    pub(crate) notices: ErrorLog,
    pub(crate) app_processes: Mutex<AppProcesses>,
    /// Whether a server has served before: the next one then starts even if its logs cannot be opened.
    pub(crate) has_served: AtomicBool,
    /// Start failure reported by the last server.
    pub(crate) start_failure: Mutex<Option<String>>,
}

/// Processes of applications that have their own `user`.
#[derive(Default)]
pub(crate) struct AppProcesses {
    /// Processes started here; each leads a process group that contains the workers it forks.
    pub(crate) process_groups: Vec<Pid>,
    /// Exit statuses of the most recently ended processes.
    pub(crate) exit_statuses: VecDeque<(Pid, WaitStatus)>,
    /// Applications started here with the user of their processes; several entries if a reload has changed
    /// the user.
    app_users: Vec<(String, u32)>,
    /// Children that do not belong to an application: the server and successors.
    pub(crate) other_children: Vec<u32>,
    /// Successors of the last upgrades, running or ended. The server may not learn how they have ended.
    pub(crate) successors: VecDeque<u32>,
}

/// Number of exit statuses kept until the server asks for them.
pub(crate) const EXIT_STATUSES_MAX: usize = 4096;
/// Maximum number of running processes that were started here.
const PROCESS_GROUPS_MAX: usize = 4096;

/// Checks that the files and users exist of applications that this process will start.
pub(crate) fn check_apps_launchable(config: &Config) -> io::Result<()> {
    let launched = config.apps.iter().filter(|(_, app)| app.user.is_some());
    launched.into_iter().try_for_each(|(name, app)| workers::options(name, app).map(drop))
}

/// Refuses a process that is not a child of this one, or was reaped.
fn check_own_child(process: &OwnedFd) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::PidFd(process.as_fd()), options).map(drop)?)
}

impl SupervisorState {
    /// Executes a request and sends its answer, if it has one.
    ///
    /// # Errors
    /// The server does not read the answer.
    pub(crate) fn answer_request(
        &self,
        link: &OwnedFd,
        session: &mut LinkSession,
        request: LinkRequest<'_>,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let answered = match request {
            LinkRequest::Start => self.send_start_state(link),
            LinkRequest::Config => {
                session.set_offered(false);
                self.offer_config(link).map(|()| session.set_offered(true))
            }
            LinkRequest::Adopted => return self.adopt_offered(),
            LinkRequest::Rejected => return self.reject_offered(),
            LinkRequest::Sockets { listener, from } => self.send_sockets(link, listener, from),
            LinkRequest::OpenLog(path) => self.send_opened_log(link, Path::new(path)),
            LinkRequest::Read(path) => self.send_file(link, Path::new(path)),
            LinkRequest::List(path) => self.send_folder_names(link, Path::new(path)),
            LinkRequest::ControlFile(path) => self.set_control_file(link, Path::new(path)),
            LinkRequest::Launch { app, first_slot, slots, threads } => {
                let slots = (slots > 0).then(|| first_slot..first_slot.saturating_add(slots));
                self.launch_app(link, app, slots, threads, &descriptors)
            }
            LinkRequest::Signal { app, signal } => {
                // Not answered: the process may have ended.
                let _ = self.signal_process(app, signal, &descriptors);
                return Ok(());
            }
            LinkRequest::Usage { app } => {
                self.passed_process(app, &descriptors).and_then(|(_, pid)| send_usage(link, pid))
            }
            LinkRequest::OwnUsage => send_usage(link, std::process::id()),
            LinkRequest::Ended { pid } => self.send_exit_status(link, pid),
            LinkRequest::File { app, number } => self.send_process_file(link, app, number, &descriptors),
            // Handled by the supervisor's other threads.
            LinkRequest::Ready
            | LinkRequest::Failed(_)
            | LinkRequest::Alive
            | LinkRequest::Reloaded(_)
            | LinkRequest::Upgrade
            | LinkRequest::More => return Ok(()),
        };
        answered.or_else(|error| link::send(link, &format!("error {error}"), &[]))
    }

    /// Returns the process passed with a request, and its id: a child of this process that was started or
    /// forked for the application.
    ///
    /// The server and its successors are refused whatever their users are: a successor has root's rights
    /// until it serves.
    fn passed_process<'a>(&self, app: &str, descriptors: &'a [OwnedFd]) -> io::Result<(&'a OwnedFd, u32)> {
        let refused = || io::Error::other("this is not a process of the application");
        let process = descriptors.first().ok_or_else(refused)?;
        let pid = pid_of(process).ok_or_else(refused)?;
        let user = ProcessStatus::of(pid).and_then(|status| status.user()).ok_or_else(refused)?;
        {
            let launched = lock(&self.app_processes);
            let is_the_apps = launched.app_users.iter().any(|(name, uid)| name == app && *uid == user);
            if !is_the_apps || launched.other_children.contains(&pid) {
                return Err(refused());
            }
        }
        // Checked last: the process id of a child cannot be reused before it is reaped.
        check_own_child(process).map_err(|_| refused())?;
        Ok((process, pid))
    }

    /// Sends everything that a server needs to start.
    fn send_start_state(&self, link: &OwnedFd) -> io::Result<()> {
        if self.has_served.load(Ordering::Relaxed) {
            link::send(link, "again", &[])?;
        }
        if lock(&self.predecessor).is_some() {
            link::send(link, "replaces", &[])?;
        }
        if let Some(watchdog) = self.watchdog {
            link::send(link, &format!("watchdog {}", watchdog.as_micros()), &[])?;
        }
        if let Some(text) = &lock(&self.current).text {
            link::send(link, "config", &[memory_file(text)?.as_fd()])?;
        }
        if let Some(control) = &self.control {
            link::send(link, "control", &[control.listener.as_fd()])?;
        }
        for listener in lock(&self.listeners).iter() {
            link::send(link, "listener", &[])?;
            for some in listener.server_descriptors().chunks(DESCRIPTORS_MAX) {
                link::send(link, "sockets", some)?;
            }
        }
        link::send(link, "end", &[])
    }

    /// Sends the configuration that is in the file, if it is valid.
    fn offer_config(&self, link: &OwnedFd) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::Error::other("there is no configuration file")) };
        let text = reading::read_text(file).map_err(io::Error::other)?;
        let config = reading::parse_silently(file, &text).map_err(io::Error::other)?;
        check_apps_launchable(&config)?;
        let memory = memory_file(&text)?;
        lock(&self.offered_listeners).clear();
        *lock(&self.offered_config) = Some(LoadedConfig { config, text: Some(text) });
        link::send(link, "config", &[memory.as_fd()])
    }

    /// Makes the offered configuration the current one.
    fn adopt_offered(&self) -> io::Result<()> {
        let Some(offered) = lock(&self.offered_config).take() else { return Ok(()) };
        let wanted = options::listen_options(&offered.config);
        self.update_log(&offered.config.log);
        *lock(&self.current) = offered;
        let mut listeners = lock(&self.listeners);
        listeners.append(&mut lock(&self.offered_listeners));
        let mut kept: Vec<Listener> = Vec::new();
        for listen in wanted {
            let Some(at) = listeners.iter().position(|open| open.matches_address(&listen.address)) else {
                continue;
            };
            let mut listener = listeners.swap_remove(at);
            // The server has its own descriptors until its connections have ended.
            listener.withdraw_http3(&listen);
            kept.push(listener);
        }
        // Dropping the remaining listeners closes them.
        *listeners = kept;
        Ok(())
    }

    /// Applies the log settings of the offered configuration to the supervisor.
    fn update_log(&self, log: &logging::Log) {
        let is_same = lock(&self.current).config.log.errors == log.errors;
        let sink = if is_same { None } else { LogSink::open_or_stderr(LogTarget::from(&log.errors)).ok() };
        self.notices.replace(sink, log.level);
    }

    /// Discards the offered configuration.
    fn reject_offered(&self) -> io::Result<()> {
        lock(&self.offered_config).take();
        lock(&self.offered_listeners).clear();
        Ok(())
    }

    /// Sends some of the sockets of a listener of the offered configuration, binding it on the first request.
    fn send_sockets(&self, link: &OwnedFd, place: usize, from: usize) -> io::Result<()> {
        let listen = match &*lock(&self.offered_config) {
            Some(offered) => options::listen_options(&offered.config).into_iter().nth(place),
            None => None,
        };
        let listen = listen.ok_or_else(|| io::Error::other("the configuration has no such address"))?;
        let mut listeners = lock(&self.listeners);
        if let Some(open) = listeners.iter_mut().find(|open| open.matches_address(&listen.address)) {
            open.provide_http3(&listen);
        }
        let mut offered = lock(&self.offered_listeners);
        let is_it = |listener: &&Listener| listener.matches_address(&listen.address);
        if listeners.iter().chain(offered.iter()).find(is_it).is_none() {
            let open: Vec<_> = listeners.iter().map(|open| open.address().clone()).collect();
            let threads = options::thread_count(&lock(&self.current).config);
            offered.push(options::bind(listen.clone(), threads, &open)?);
        }
        let listener = listeners.iter().chain(offered.iter()).find(is_it);
        let listener = listener.ok_or_else(|| io::Error::other("there is no such listener"))?;
        let sockets = listener.server_descriptors();
        let some = sockets.get(from..).unwrap_or_default().chunks(DESCRIPTORS_MAX).next().unwrap_or_default();
        link::send(link, &format!("sockets {}", sockets.len()), some)
    }

    /// Checks that the configuration in force, or the offered one, names a file.
    fn check_named(&self, is_named: impl Fn(&NamedFiles) -> bool) -> io::Result<()> {
        let is_named = |loaded: &LoadedConfig| is_named(&NamedFiles::of(&loaded.config));
        if is_named(&lock(&self.current)) || lock(&self.offered_config).as_ref().is_some_and(is_named) {
            Ok(())
        } else {
            Err(io::Error::other("the configuration does not name it"))
        }
    }

    /// Sets the permissions and group of the control listener's Unix socket.
    fn set_control_file(&self, link: &OwnedFd, path: &Path) -> io::Result<()> {
        let of = |loaded: &LoadedConfig| {
            let control = &loaded.config.control;
            let is_it = matches!(&control.listen, Some(Listen::Unix(named)) if named == path);
            is_it.then(|| control.clone())
        };
        let offered = lock(&self.offered_config).as_ref().and_then(of);
        let control = offered.or_else(|| of(&lock(&self.current)));
        let control =
            control.ok_or_else(|| io::Error::other("the configuration has no such control listener"))?;
        control_file::set(path, control.mode, control.group.as_deref(), self.identity.uid)?;
        link::send(link, "done", &[])
    }

    /// Sends a certificate or key that the configuration names.
    fn send_file(&self, link: &OwnedFd, path: &Path) -> io::Result<()> {
        self.check_named(|named| named.contains(path))?;
        link::send(link, "file", &[config_files::open(path)?.as_fd()])
    }

    /// Sends the names in a directory of certificates or keys.
    fn send_folder_names(&self, link: &OwnedFd, folder: &Path) -> io::Result<()> {
        self.check_named(|named| named.has_folder(folder))?;
        let text = format!("names {}", config_files::list(folder)?.join("\n"));
        if text.len() > TEXT_BYTES_MAX {
            Err(io::Error::other(format!("{} has too many names", folder.display())))
        } else {
            link::send(link, &text, &[])
        }
    }

    /// Opens and sends a log that the configuration in force, or the offered one, names.
    fn send_opened_log(&self, link: &OwnedFd, path: &Path) -> io::Result<()> {
        let is_named =
            |loaded: &LoadedConfig| loaded.config.log_files().iter().any(|named| named.as_path() == path);
        if !is_named(&lock(&self.current)) && !lock(&self.offered_config).as_ref().is_some_and(is_named) {
            return Err(io::Error::other("there is no such log"));
        }
        match open_file(path)? {
            Some(file) => link::send(link, "log", &[file.as_fd()]),
            // A FIFO without a reader; the server retries.
            None => link::send(link, "log", &[]),
        }
    }
}

impl SupervisorState {
    /// Starts a process of an application according to the supervisor's configuration.
    fn launch_app(
        &self,
        link: &OwnedFd,
        name: &str,
        slots: Option<Range<usize>>,
        threads: usize,
        descriptors: &[OwnedFd],
    ) -> io::Result<()> {
        let options = {
            let current = lock(&self.current);
            let app = current.config.apps.iter().find(|(other, app)| other == name && app.user.is_some());
            let (_, app) = app.ok_or_else(|| io::Error::other("there is no such application"))?;
            workers::options(name, app)?
        };
        let (user, _) =
            options.user.ok_or_else(|| io::Error::other("the application has no user of its own"))?;
        let fds: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let launch = Launch::of(slots, threads, &fds);
        let launch = launch.ok_or_else(|| io::Error::other("descriptors are missing"))?;
        let mut launched = lock(&self.app_processes);
        launched.process_groups.retain(|group| test_kill_process_group(*group).is_ok());
        if launched.process_groups.len() >= PROCESS_GROUPS_MAX {
            return Err(io::Error::other("too many processes"));
        }
        let pid = apps::spawn(&options, &launch)?;
        launched.process_groups.push(pid);
        // The id of an ended successor is used again.
        launched.successors.retain(|successor| *successor != pid.as_raw_pid().cast_unsigned());
        let user = (name.to_owned(), user);
        if !launched.app_users.contains(&user) {
            launched.app_users.push(user);
        }
        drop(launched);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        link::send(link, &format!("pid {}", pid.as_raw_pid()), &[pidfd.as_fd()])
    }

    /// Sends the exit status of a process that was started or forked for an application.
    fn send_exit_status(&self, link: &OwnedFd, pid: u32) -> io::Result<()> {
        let unknown = || io::Error::other("no such process has ended");
        if lock(&self.app_processes).successors.contains(&pid) {
            return Err(unknown());
        }
        let pid = Pid::from_raw(pid.cast_signed());
        for _ in 0..EXIT_CHECKS_MAX {
            let found = lock(&self.app_processes)
                .exit_statuses
                .iter()
                .rev()
                .find(|(ended, _)| Some(*ended) == pid)
                .copied();
            if let Some((_, status)) = found {
                let text = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("exited {code}"),
                    (_, signal) => format!("killed {}", signal.unwrap_or_default()),
                };
                return link::send(link, &text, &[]);
            }
            // The reaping thread is about to record it.
            std::thread::sleep(EXIT_CHECK_INTERVAL);
        }
        Err(unknown())
    }

    /// Kills the processes started for a server that has ended.
    pub(crate) fn kill_app_processes(&self) {
        for group in std::mem::take(&mut lock(&self.app_processes).process_groups) {
            // Fails only if the process group is empty.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Kills the remaining descendants of a server that has ended, which are children of this process by then.
/// Processes of `kept` are spared.
pub(crate) fn kill_orphans(spared_pids: &[u32]) {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // Without kernel support for `children`, none are killed.
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    for pid in children
        .flat_map(|line| line.split(' ').filter_map(|pid| pid.trim().parse().ok()).collect::<Vec<u32>>())
    {
        let pidfd = Pid::from_raw(pid.cast_signed()).filter(|_| !spared_pids.contains(&pid));
        let pidfd = pidfd.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = pidfd.filter(|process| check_own_child(process).is_ok()) {
            // Fails only if the process has ended already.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

const EXIT_CHECKS_MAX: u32 = 100;
pub(crate) const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Sends the CPU time and memory of a process that the server has no permission to inspect.
fn send_usage(link: &OwnedFd, pid: u32) -> io::Result<()> {
    let found = Usage::of(pid).ok_or_else(|| io::Error::other("the process has ended"))?;
    let Usage { cpu_ms, rss_bytes, pss_bytes, private_dirty_bytes } = found;
    link::send(link, &format!("usage {cpu_ms} {rss_bytes} {pss_bytes} {private_dirty_bytes}"), &[])
}

/// Returns a read-only descriptor of a regular file that a process has open for reading.
fn regular_file(process: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let copy = pidfd_getfd(process, number.cast_signed(), PidfdGetfdFlags::empty())?;
    let is_file = FileType::from_raw_mode(fstat(&copy)?.st_mode) == FileType::RegularFile;
    let flags = fcntl_getfl(&copy)?;
    // An `O_PATH` descriptor only refers to a file, which the process may not be allowed to read.
    if !is_file || flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(io::Error::other("the descriptor is not a regular file that the process can read"));
    }
    if flags & OFlags::RWMODE == OFlags::RDONLY {
        return Ok(copy);
    }
    let itself = format!("/proc/self/fd/{}", copy.as_raw_fd());
    Ok(rustix::fs::open(itself, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

impl SupervisorState {
    fn signal_process(&self, app: &str, number: i32, descriptors: &[OwnedFd]) -> io::Result<()> {
        let signal =
            Signal::from_named_raw(number).ok_or_else(|| io::Error::other("there is no such signal"))?;
        let (process, _) = self.passed_process(app, descriptors)?;
        Ok(pidfd_send_signal(process, signal)?)
    }

    fn send_process_file(
        &self,
        link: &OwnedFd,
        app: &str,
        number: u32,
        descriptors: &[OwnedFd],
    ) -> io::Result<()> {
        let (process, _) = self.passed_process(app, descriptors)?;
        link::send(link, "file", &[regular_file(process, number)?.as_fd()])
    }
}

/// Returns an in-memory file with this text.
fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("komainu-config", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Locks `mutex`. Poisoning is ignored, because no thread panics while holding one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
