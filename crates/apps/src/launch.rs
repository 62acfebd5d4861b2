//! Starting the processes of an application.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use net::sys::{set_limits, set_process_group};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Resource, test_kill_process_group};
use rustix::thread::disable_transparent_huge_pages;

use crate::launcher::Launch;
use crate::options::Options;
use crate::queues::lock;

/// Environment variables of the server that are not passed on.
const SERVER_VARIABLES: [&str; 9] = [
    "KOMAINU_SUPERVISOR",
    "KOMAINU_IDENTITY",
    "KOMAINU_PREDECESSOR",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// Processes started by this process; one that leads a process group is listed while the group exists. Locked
/// while descriptors have close-on-exec cleared, so that no other process inherits them, and until a new
/// process is listed.
pub(crate) static STARTED_PROCESSES: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Starts the application's program as a child of this process.
///
/// # Errors
/// Reason why the process cannot be started.
pub fn spawn(options: &Options, launch: &Launch<'_>) -> io::Result<Pid> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no program to start"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(options.env.iter().map(|(name, value)| (name, value)))
        .env(ring::ENVIRONMENT, ring::environment(&launch.channel, launch.threads))
        .env("KOMAINU_CONTROL", launch.control.as_raw_fd().to_string())
        .env("KOMAINU_SERVER", std::process::id().to_string())
        .env("KOMAINU_APP", &options.name)
        .env("KOMAINU_CONCURRENCY", options.settings.concurrency_max().to_string())
        .stdin(Stdio::null())
        .stdout(launch.output.try_clone_to_owned()?)
        .stderr(launch.errors.try_clone_to_owned()?);
    set_process_group(&mut command, options.settings.leads_session());
    SERVER_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    match &launch.worker_slots {
        None => command.env("KOMAINU_ROLE", "prototype"),
        Some(worker_slots) => command
            .env("KOMAINU_ROLE", "worker")
            .env("KOMAINU_SEAT", worker_slots.start.to_string())
            .env("KOMAINU_SEATS", worker_slots.len().to_string()),
    };
    if let Some(folder) = &options.folder {
        command.current_dir(folder);
    }
    if let Some((user, group)) = options.user {
        command.uid(user).gid(group);
    }
    // The whole channel is mapped, and counts as address space.
    let mapped = rustix::fs::fstat(launch.channel[0])?.st_size as u64;
    let limits = options.settings.limits.resources().map(|(resource, value)| {
        let ours = if resource == Resource::As { mapped } else { 0 };
        (resource, value.saturating_add(ours))
    });
    set_limits(&mut command, limits.collect());
    let process = {
        let mut started = lock(&STARTED_PROCESSES);
        let inherited = || launch.channel.iter().chain([&launch.control]);
        inherited().try_for_each(|fd| fcntl_setfd(fd, FdFlags::empty()))?;
        let process = spawn_with_huge_pages(&mut command, &mut started);
        inherited().try_for_each(|fd| fcntl_setfd(fd, FdFlags::CLOEXEC))?;
        process.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", program.to_string_lossy()))
        })?
    };
    Ok(Pid::from_child(&process))
}

/// Starts another program, which inherits no descriptor passed to an application's process.
///
/// # Errors
/// Reason why the program cannot be started.
pub fn spawn_unrelated(command: &mut Command) -> io::Result<Child> {
    spawn_with_huge_pages(command, &mut lock(&STARTED_PROCESSES))
}

/// Whether [`switch_off_huge_pages`] was called.
static HUGE_PAGES_OFF: AtomicBool = AtomicBool::new(false);

/// Disables transparent huge pages for this process, but not for its children, which would inherit the
/// setting. Without effect if the kernel does not support it.
pub fn switch_off_huge_pages() {
    HUGE_PAGES_OFF.store(disable_transparent_huge_pages(true).is_ok(), Ordering::Relaxed);
}

/// Starts a program and lists it in `started`.
fn spawn_with_huge_pages(command: &mut Command, started: &mut Vec<Pid>) -> io::Result<Child> {
    let is_off = HUGE_PAGES_OFF.load(Ordering::Relaxed);
    if is_off {
        // Has succeeded before; a failure is harmless.
        let _ = disable_transparent_huge_pages(false);
    }
    let process = command.spawn();
    if is_off {
        let _ = disable_transparent_huge_pages(true);
    }
    started.retain(|group| test_kill_process_group(*group) != Err(Errno::SRCH));
    process.inspect(|process| started.push(Pid::from_child(process)))
}
