//! Restrictions of threads and processes: file access outside of some directories (Landlock), and unused
//! system calls (seccomp).
//!
//! A restriction applies to the calling thread and everything it starts, and cannot be removed. The server's
//! serving threads restrict themselves. Other threads, which start workers, open logs and start an upgrade,
//! do not, because workers would inherit the restriction. Processes of an application with a `sandbox` are
//! started by `komainu confine`, which restricts itself and then executes the worker's program.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use failure::Failure;
use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use rights::privilege;
use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

use crate::confine_arguments::Confine;
use crate::granted_paths::{GrantedPaths, SandboxPaths};
use crate::refused_calls::{
    ADMINISTRATION, ATTRIBUTES, PROCESS_CONTROL, RefusedCalls, SHARED_BY_USER, clone3_filter, filter,
};
use crate::temporary_folder::{TemporaryFolder, folder_name};

/// The latest Landlock ABI whose rights are used; an older kernel enforces the ones that it supports.
const LANDLOCK_ABI: ABI = ABI::V5;

/// Devices that a confined application may use; others may be terminals or disks.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Paths that every program reads: itself, its libraries and settings, and data of the kernel.
const SYSTEM_PATHS: [&str; 11] = [
    "/bin",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/run/systemd/resolve",
    "/sbin",
    "/sys",
    "/usr",
];

/// Capabilities that a confined application of root keeps: to use the files of its sandbox whoever owns them, to change
/// users, and to bind ports below 1024. Others reach past a sandbox: CAP_PERFMON reads the environment and the memory map
/// of any process.
const KEPT_CAPABILITIES: [CapabilitySet; 7] = [
    CapabilitySet::CHOWN,
    CapabilitySet::DAC_OVERRIDE,
    CapabilitySet::FOWNER,
    CapabilitySet::KILL,
    CapabilitySet::SETGID,
    CapabilitySet::SETUID,
    CapabilitySet::NET_BIND_SERVICE,
];

/// Restrictions of the serving threads. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Option<Arc<ThreadRules>>);

struct ThreadRules {
    /// Directories that the server writes to while it serves.
    written_folders: Vec<PathBuf>,
    calls: BpfProgram,
}

impl Sandbox {
    /// Creates the sandbox; `temporary` is the directory of temporary files. Restricts nothing unless `is_enabled`.
    ///
    /// # Errors
    /// The system calls of this machine's architecture are not known.
    pub fn new(is_enabled: bool, temporary: PathBuf) -> io::Result<Sandbox> {
        if !is_enabled {
            return Ok(Sandbox(None));
        }
        let of_service = ["STATE_DIRECTORY", "CACHE_DIRECTORY"].into_iter().filter_map(std::env::var_os);
        let of_service = of_service.flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>());
        let written = of_service.chain([temporary]).collect();
        let calls =
            filter(RefusedCalls { calls: &[ADMINISTRATION, PROCESS_CONTROL], ..RefusedCalls::default() })?;
        Ok(Sandbox(Some(Arc::new(ThreadRules { written_folders: written, calls }))))
    }

    /// Restricts this thread and everything it starts: no writing outside of its directories, no execution of
    /// programs, and none of the refused system calls.
    ///
    /// # Errors
    /// The kernel supports the restrictions but refuses to apply them.
    pub fn restrict_thread(&self) -> io::Result<()> {
        let Some(rules) = &self.0 else { return Ok(()) };
        rules.restrict().map(drop)
    }

    /// Describes what the kernel enforces, determined by a thread that restricts itself.
    pub fn description(&self) -> String {
        let Some(rules) = self.0.clone() else { return "off (`sandbox = false`)".into() };
        let tried = std::thread::spawn(move || rules.restrict()).join();
        match tried {
            Ok(Ok(RulesetStatus::NotEnforced)) => "seccomp (this kernel has no Landlock)".into(),
            Ok(Ok(RulesetStatus::PartiallyEnforced)) => {
                "Landlock, as far as this kernel has it, and seccomp".into()
            }
            Ok(Ok(RulesetStatus::FullyEnforced)) => "Landlock and seccomp".into(),
            Ok(Err(error)) => format!("none: {error}"),
            Err(_) => "none".into(),
        }
    }
}

impl ThreadRules {
    fn restrict(&self) -> io::Result<RulesetStatus> {
        let write = AccessFs::from_write(LANDLOCK_ABI);
        let status = restrict(write | AccessFs::Execute, BitFlags::EMPTY, &[(&self.written_folders, write)]);
        let status = status.map_err(|error| io::Error::other(format!("Landlock: {error}")))?;
        match seccompiler::apply_filter(&self.calls) {
            Ok(()) => Ok(status),
            Err(error) => Err(io::Error::other(format!("seccomp: {error}"))),
        }
    }
}

/// Limits the rights `handled` to the granted paths, and communication with other processes by `scopes`. A
/// missing path grants nothing.
fn restrict(
    handled: BitFlags<AccessFs>,
    scopes: BitFlags<Scope>,
    granted: &[(&[PathBuf], BitFlags<AccessFs>)],
) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default().handle_access(handled)?;
    if !scopes.is_empty() {
        ruleset = ruleset.scope(scopes)?;
    }
    let mut ruleset = ruleset.create()?;
    for (paths, access) in granted {
        ruleset = ruleset.add_rules(path_beneath_rules(*paths, *access))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

/// Whether this kernel confines signals and connections to abstract sockets to a sandbox (Landlock ABI 6,
/// Linux 6.12).
fn has_scopes() -> bool {
    let scoped = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    scoped.scope(Scope::Signal | Scope::AbstractUnixSocket).is_ok()
}

/// Builds the command that starts an application's program in this sandbox. `reads` are the program's own
/// files, `interpreter` is the program that runs them.
///
/// # Errors
/// A path of the sandbox leads through a symbolic link that an application can replace.
pub fn confine_command(
    sandbox: &apps::AppSandbox,
    reads: Vec<PathBuf>,
    interpreter: Option<PathBuf>,
    command: Vec<OsString>,
) -> Result<Vec<OsString>, Failure> {
    // The program is started in the application's directory, so relative paths would change.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let (reads, interpreter) = match &sandbox.read {
        Some(given) => (reads.into_iter().chain(given.iter().cloned()).map(absolute).collect(), interpreter),
        None => (Vec::new(), None),
    };
    let writes: Vec<PathBuf> = sandbox.write.iter().cloned().map(absolute).collect();
    let interpreter = interpreter.map(absolute);
    let system = SYSTEM_PATHS.map(PathBuf::from);
    let others: Vec<PathBuf> = sandbox.written_by_others.iter().cloned().map(absolute).collect();
    let paths = SandboxPaths {
        system: &system,
        read: &reads,
        interpreter: interpreter.as_deref(),
        write: &writes,
        written_by_others: &others,
    };
    // `komainu confine` opens them again, as the application's user; here an error can still be returned.
    GrantedPaths::open(paths)?;
    let mut arguments: Vec<OsString> = vec!["/proc/self/exe".into(), "confine".into()];
    let mut path = |flag: &str, path: PathBuf| arguments.extend([flag.into(), path.into_os_string()]);
    reads.into_iter().for_each(|read| path("--read", read));
    interpreter.into_iter().for_each(|interpreter| path("--interpreter", interpreter));
    writes.into_iter().for_each(|write| path("--write", write));
    others.into_iter().for_each(|written| path("--written-by-others", written));
    if !sandbox.network {
        arguments.push("--no-network".into());
    }
    if sandbox.attributes {
        arguments.push("--attributes".into());
    }
    Ok(arguments.into_iter().chain(["--".into()]).chain(command).collect())
}

/// Runs `komainu confine`: applies the restrictions and executes the program. Returns only on failure.
///
/// # Errors
/// The kernel lacks Landlock or seccomp, or the program cannot be executed.
pub fn confine(arguments: &Confine) -> Result<(), Failure> {
    let read = AccessFs::from_read(LANDLOCK_ABI);
    let write = AccessFs::from_write(LANDLOCK_ABI);
    let devices = DEVICES.map(PathBuf::from);
    let system = SYSTEM_PATHS.map(PathBuf::from);
    let mut handled = write;
    if !arguments.read.is_empty() {
        handled |= read;
    }
    let mut paths = GrantedPaths::open(SandboxPaths {
        system: &system,
        read: &arguments.read,
        interpreter: arguments.interpreter.as_deref(),
        write: &arguments.write,
        written_by_others: &arguments.written_by_others,
    })?;
    let temporary = temporary_folder(&paths);
    paths.write.extend(temporary.iter().map(TemporaryFolder::granted));
    let granted: [(&[PathBuf], BitFlags<AccessFs>); 4] = [
        (&devices, handled & (AccessFs::ReadFile | AccessFs::WriteFile)),
        (&system, handled & read),
        (&paths.read, handled & read),
        (&paths.write, handled),
    ];
    let granted: Vec<_> = granted.into_iter().filter(|(_, access)| !access.is_empty()).collect();
    let scopes = Scope::AbstractUnixSocket | Scope::Signal;
    let status =
        restrict(handled, scopes, &granted).map_err(|error| format!("sandbox: Landlock: {error}"))?;
    if status == RulesetStatus::NotEnforced {
        return Err("sandbox: this kernel has no Landlock: remove `sandbox` of this application".into());
    }
    // The server, or the prototype's parent if there is a supervisor; both are ancestors of this process.
    let ancestors =
        [rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid().cast_unsigned()), server_pid()];
    let kept = KEPT_CAPABILITIES.into_iter().collect();
    privilege::limit_capabilities(kept).map_err(|error| format!("sandbox: capabilities: {error}"))?;
    let attributes = if arguments.attributes { &[] } else { ATTRIBUTES };
    let calls = filter(RefusedCalls {
        calls: &[ADMINISTRATION, SHARED_BY_USER, attributes],
        network: arguments.no_network,
        other_processes: true,
        attributes: !arguments.attributes,
        signals_to: (!has_scopes()).then_some(&ancestors),
    });
    for calls in [clone3_filter(), calls] {
        let calls = calls.map_err(|error| format!("sandbox: {error}"))?;
        seccompiler::apply_filter(&calls).map_err(|error| format!("sandbox: seccomp: {error}"))?;
    }
    let [program, rest @ ..] = arguments.command.as_slice() else { return Err("sandbox: no program".into()) };
    let mut command = Command::new(program);
    command.args(rest);
    temporary.iter().for_each(|folder| _ = command.env("TMPDIR", &folder.path));
    let error = command.exec();
    Err(Failure::new(format!("sandbox: cannot start {}: {error}", program.display())))
}

/// The application's own temporary directory; `None` if its sandbox grants the usual one.
fn temporary_folder(granted: &GrantedPaths) -> Option<TemporaryFolder> {
    let usual = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let app = std::env::var("KOMAINU_APP").ok().filter(|_| !granted.may_write(&usual))?;
    let name = folder_name(&app);
    TemporaryFolder::below(&usual, &name).or_else(|_| TemporaryFolder::below(Path::new("/tmp"), &name)).ok()
}

/// Process id of the server, from the environment of the worker.
fn server_pid() -> u32 {
    std::env::var("KOMAINU_SERVER").ok().and_then(|pid| pid.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    /// Runs `run` in a thread with a sandbox that allows writing to `folder`.
    fn restricted<T: Send + 'static>(
        folder: &std::path::Path,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let sandbox = Sandbox::new(true, folder.to_path_buf()).unwrap();
        std::thread::spawn(move || {
            sandbox.restrict_thread().unwrap();
            run()
        })
        .join()
        .unwrap()
    }

    fn has_landlock() -> bool {
        let sandbox = Sandbox::new(true, std::env::temp_dir()).unwrap();
        sandbox.description().contains("Landlock and")
    }

    #[test]
    fn sandboxed_thread_cannot_write_elsewhere_or_start_programs() {
        let base = std::env::temp_dir().join(format!("komainu-sandbox-{}", std::process::id()));
        let inside = base.join("inside");
        let outside = base.join("outside");
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("read"), "read").unwrap();
        let theirs_inside = inside.clone();
        let theirs_outside = outside.clone();
        let (written, refused, removed, read, started) = restricted(&inside, move || {
            (
                fs::write(theirs_inside.join("a"), "a").is_ok(),
                fs::write(theirs_outside.join("a"), "a").map_err(|error| error.kind()),
                fs::remove_file(theirs_outside.join("read")).map_err(|error| error.kind()),
                fs::read_to_string(theirs_outside.join("read")).ok(),
                Command::new("true").status().map_err(|error| error.kind()),
            )
        });
        assert!(written && read.as_deref() == Some("read"));
        assert_eq!(started.unwrap_err(), io::ErrorKind::PermissionDenied);
        if has_landlock() {
            assert_eq!(
                (refused, removed),
                (Err(io::ErrorKind::PermissionDenied), Err(io::ErrorKind::PermissionDenied))
            )
        } else {
            _ = writeln!(io::stderr(), "SKIPPED: this kernel has no Landlock")
        }
        // This thread is not restricted.
        fs::write(outside.join("b"), "b").unwrap();
        assert!(Command::new("true").status().unwrap().success());
        fs::remove_dir_all(&base).unwrap();
    }

    /// Each call has arguments for which the kernel itself has another answer than EPERM, at least for root.
    #[test]
    fn sandboxed_thread_cannot_administer_or_control_processes() {
        use rustix::fs::{AtFlags, CWD, FileType, Mode, chownat, mknodat};
        use rustix::io::Errno;
        use rustix::process::{
            PidfdFlags, Signal, chroot, getpid, getuid, pidfd_open, pidfd_send_signal, test_kill_process,
        };
        use rustix::thread::{move_into_link_name_space, set_thread_res_uid};
        let base = std::env::temp_dir().join(format!("komainu-calls-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let own = base.join("file");
        let theirs = own.clone();
        let outcomes = restricted(&base, move || {
            let file = fs::File::create(&theirs).unwrap();
            let itself = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
            let user = getuid();
            [
                ("kill", test_kill_process(getpid())),
                ("pidfd_send_signal", pidfd_send_signal(&itself, Signal::CONT)),
                ("setns", move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), None)),
                ("chroot", chroot("/nonexistent")),
                ("sethostname", rustix::system::sethostname(&[b'x'; 100])),
                ("fchownat", chownat(CWD, &theirs, None, None, AtFlags::empty())),
                ("mknodat", mknodat(CWD, "/nonexistent/a", FileType::Fifo, Mode::RUSR, 0)),
                ("setresuid", set_thread_res_uid(user, user, user)),
            ]
        });
        for (call, outcome) in outcomes {
            assert_eq!(outcome, Err(Errno::PERM), "{call}");
        }
        assert!(own.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn sandboxed_thread_may_do_what_serving_needs() {
        let folder = std::env::temp_dir();
        restricted(&folder, || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            std::thread::spawn(|| ()).join().unwrap();
            let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            fs::File::from(memory).write_all(b"a").unwrap();
            assert!(fs::read_dir("/").unwrap().count() > 0);
        });
    }

    #[test]
    fn disabled_sandbox_restricts_nothing() {
        let sandbox = Sandbox::new(false, PathBuf::new()).unwrap();
        assert!(sandbox.description().starts_with("off"));
        std::thread::spawn(move || {
            sandbox.restrict_thread().unwrap();
            assert!(Command::new("true").status().unwrap().success());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn confine_command_has_the_sandbox_options() {
        let sandbox = apps::AppSandbox {
            read: Some(vec!["/data".into()]),
            write: vec!["/data/own".into()],
            network: false,
            attributes: true,
            written_by_others: vec!["/other".into()],
        };
        let reads = vec!["/srv/app".into()];
        let program = vec!["perl".into(), "worker.pl".into()];
        let command = confine_command(&sandbox, reads, Some("/opt/bin/perl".into()), program).unwrap();
        let text: Vec<&str> = command.iter().map(|part| part.to_str().unwrap()).collect();
        assert_eq!(
            text.join(" "),
            "/proc/self/exe confine --read /srv/app --read /data --interpreter /opt/bin/perl --write /data/own \
             --written-by-others /other --no-network --attributes -- perl worker.pl"
        );
    }
}
