//! CGI programs (RFC 3875), run by a thread that keeps its privileges, because the serving threads cannot
//! start programs.
//!
//! The thread listens on sockets that accept connections of this process only, and reads requests like an
//! SCGI server. The data after the variables is left to the program: the connection becomes its standard
//! input and output, so that no body is copied here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apps::Orphans;
use failure::IoFailure;
use logging::notice::ErrorLog;
use net::sys::set_process_group;
use proxy::cgi_program::Cgi;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, ResolveFlags, accessat, openat2};
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open, set_child_subreaper};
use times::Millis;

/// Milliseconds that a program has to write something after its client has shut down its sending side. Most
/// such clients have left, and the program occupies a slot that others need.
pub const HALF_CLOSED_TIMEOUT: Millis = Millis(5_000);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum bytes of a request's variables, which exceeds the largest request head.
const VARIABLES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum bytes of one logged line of standard error, and of all lines of one program.
const LINE_BYTES_MAX: usize = 2 * 1024;
const LOGGED_BYTES_MAX: usize = 64 * 1024;
/// Bytes counted for each line in addition to its own, as the log's prefix is about as long.
const LINE_BYTES: usize = 64;
/// Interval at which processes left behind by programs are reaped.
const REAP_INTERVAL: Duration = Duration::from_secs(1);
/// `PATH` of CGI programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// CGI directories and programs of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct CgiPrograms(Arc<Mutex<CgiFolders>>);

#[derive(Debug, Default)]
struct CgiFolders {
    /// Directories by the name of their socket.
    folders: BTreeMap<String, Arc<Cgi>>,
    /// Sockets not yet adopted by the thread.
    new: Vec<(String, UnixListener)>,
    /// Eventfd that wakes the thread; set once it runs.
    eventfd: Option<Arc<OwnedFd>>,
}

impl CgiPrograms {
    fn folders(&self) -> MutexGuard<'_, CgiFolders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds directories of programs; standard error of programs is written to `notices`. Without
    /// `notices` they are only checked.
    ///
    /// # Errors
    /// A directory or program is missing, or a thread or socket cannot be created.
    pub fn apply<'c>(
        &self,
        programs: impl Iterator<Item = &'c Cgi>,
        notices: Option<&ErrorLog>,
    ) -> io::Result<()> {
        for cgi in programs {
            let metadata = std::fs::metadata(&cgi.root);
            let wrong = |error| {
                let title = format!("`cgi`: cannot serve {}: {error}", cgi.root.display());
                io::Error::new(io::ErrorKind::NotFound, title).about(&cgi.root)
            };
            metadata.map_err(wrong)?;
            let Some(notices) = notices else { continue };
            let name = socket_name(cgi);
            let mut state = self.folders();
            // Programs start in their own directory, where relative paths would change.
            let absolute = Cgi { root: std::path::absolute(&cgi.root)?, ..cgi.clone() };
            if state.folders.insert(name.clone(), Arc::new(absolute)).is_none() {
                let address = SocketAddr::from_abstract_name(&name)?;
                let listener = UnixListener::bind_addr(&address)?;
                listener.set_nonblocking(true)?;
                state.new.push((name, listener));
            }
            let bell = match &state.eventfd {
                Some(bell) => bell.clone(),
                None => {
                    set_child_subreaper(Some(getpid()))?;
                    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
                    let folders = self.clone();
                    let notices = notices.clone();
                    let theirs = bell.clone();
                    thread::Builder::new()
                        .name("cgi".into())
                        .spawn(move || run(&folders, &notices, &theirs))?;
                    state.eventfd.insert(bell).clone()
                }
            };
            drop(state);
            rustix::io::write(&*bell, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn find_folder(&self, name: &str) -> Option<Arc<Cgi>> {
        self.folders().folders.get(name).cloned()
    }
}

/// Name of the abstract socket for a directory's programs, unique to this process and to the settings.
fn socket_name(cgi: &Cgi) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (&cgi.root, &cgi.env).hash(&mut hasher);
    format!("komainu-cgi-{}-{:016x}", std::process::id(), hasher.finish())
}

/// Address at which the server connects to the programs of a directory.
pub fn socket(cgi: &Cgi) -> PathBuf {
    format!("@{}", socket_name(cgi)).into()
}

/// A CGI request.
struct CgiJob {
    cgi: Arc<Cgi>,
    stream: UnixStream,
    stage: CgiStage,
}

enum CgiStage {
    /// Reading the variables: the digits of their length, the bytes so far, and the length once known.
    Head {
        digits: Vec<u8>,
        bytes: Vec<u8>,
        wanted: Option<usize>,
    },
    Running(Box<CgiProcess>),
    Finished,
}

/// A running program.
struct CgiProcess {
    child: Child,
    pidfd: OwnedFd,
    errors: Option<File>,
    line: Vec<u8>,
    logged_bytes: usize,
    name: String,
    /// Time of SIGKILL, once SIGTERM was sent.
    kill_at: Option<Instant>,
}

/// Event loop of the thread, which runs until the process exits.
fn run(programs: &CgiPrograms, notices: &ErrorLog, bell: &OwnedFd) {
    let mut listeners: Vec<(String, UnixListener)> = Vec::new();
    let mut jobs: Vec<CgiJob> = Vec::new();
    let mut left = OrphanReaper::default();
    loop {
        listeners.append(&mut programs.folders().new);
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        fds.extend(listeners.iter().map(|(_, listener)| PollFd::new(listener, PollFlags::IN)));
        for job in &jobs {
            let wanted = match &job.stage {
                CgiStage::Head { .. } => PollFlags::IN,
                _ => PollFlags::empty(),
            };
            fds.push(PollFd::new(&job.stream, wanted));
            if let CgiStage::Running(process) = &job.stage {
                fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
                fds.extend(process.errors.iter().map(|errors| PollFd::new(errors, PollFlags::IN)));
            }
        }
        let due = jobs.iter().filter_map(CgiJob::kill_at).min();
        let timeout = due.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.into_iter().chain(left.checks_strays.then_some(REAP_INTERVAL)).min();
        let timeout = timeout
            .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
        let polled = poll(&mut fds, timeout.as_ref());
        if polled.is_err() {
            continue;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut ready = ready.into_iter();
        if !ready.next().unwrap_or(PollFlags::empty()).is_empty() {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        let mut accepted = Vec::new();
        for (name, listener) in &listeners {
            if !ready.next().unwrap_or(PollFlags::empty()).is_empty() {
                accept(programs, name, listener, &mut accepted);
            }
        }
        for job in &mut jobs {
            let stream = ready.next().unwrap_or(PollFlags::empty());
            let mut ended = PollFlags::empty();
            let mut errors = PollFlags::empty();
            if let CgiStage::Running(process) = &job.stage {
                ended = ready.next().unwrap_or(ended);
                if process.errors.is_some() {
                    errors = ready.next().unwrap_or(errors);
                }
            }
            let leader = job.leader();
            job.advance(stream, ended, errors, notices);
            if let (CgiStage::Finished, Some(leader)) = (&job.stage, leader) {
                left.groups.add(leader);
                left.checks_strays = true;
            }
        }
        left.reap();
        jobs.retain(|job| !matches!(job.stage, CgiStage::Finished));
        jobs.extend(accepted);
    }
}

/// Processes that programs have started and not waited for. If the server hosts applications or runs programs
/// it is a child subreaper, so that they become its children, and must reap them.
#[derive(Default)]
struct OrphanReaper {
    /// Process groups of ended programs.
    groups: Orphans,
    /// Whether to look for processes that have left their group by setsid(2); stays set, as they may end at
    /// any time.
    checks_strays: bool,
}

impl OrphanReaper {
    fn reap(&mut self) {
        self.groups.reap(|_, _| {});
        if self.checks_strays {
            Orphans::reap_strays(|_, _| {});
        }
    }
}

/// Accepts waiting connections; closes those of other processes.
fn accept(programs: &CgiPrograms, name: &str, listener: &UnixListener, jobs: &mut Vec<CgiJob>) {
    while let Ok((stream, _)) = listener.accept() {
        let is_ours = sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.pid == getpid());
        let Some(cgi) = programs.find_folder(name).filter(|_| is_ours) else { continue };
        if stream.set_nonblocking(true).is_ok() {
            let stage = CgiStage::Head { digits: Vec::new(), bytes: Vec::new(), wanted: None };
            jobs.push(CgiJob { cgi, stream, stage });
        }
    }
}

impl CgiJob {
    /// Process id of the program, which leads its process group.
    fn leader(&self) -> Option<Pid> {
        match &self.stage {
            CgiStage::Running(process) => Some(Pid::from_child(&process.child)),
            _ => None,
        }
    }

    fn kill_at(&self) -> Option<Instant> {
        match &self.stage {
            CgiStage::Running(process) => process.kill_at,
            _ => None,
        }
    }

    /// Processes the events of this job.
    fn advance(&mut self, stream: PollFlags, ended: PollFlags, errors: PollFlags, notices: &ErrorLog) {
        let is_gone = stream.intersects(PollFlags::HUP | PollFlags::ERR);
        match &mut self.stage {
            CgiStage::Finished => {}
            CgiStage::Head { .. } if stream.is_empty() => {}
            CgiStage::Head { digits, bytes, wanted } => {
                match read_head(&self.stream, digits, bytes, wanted) {
                    Ok(None) if is_gone => self.stage = CgiStage::Finished,
                    Ok(None) => {}
                    Ok(Some(variables)) => self.start(&variables, notices),
                    Err(_) => self.stage = CgiStage::Finished,
                }
            }
            CgiStage::Running(process) => {
                if !errors.is_empty() {
                    process.read_errors(notices);
                }
                if !ended.is_empty() {
                    process.end(notices);
                    self.stage = CgiStage::Finished;
                    self.close();
                    return;
                }
                let now = Instant::now();
                match process.kill_at {
                    None if is_gone => {
                        process.signal(Signal::TERM);
                        process.kill_at = Some(now + GRACE);
                    }
                    Some(at) if at <= now => {
                        process.signal(Signal::KILL);
                        process.kill_at = Some(now + GRACE);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Shuts down the connection, which descendants of the program may still hold open. Unread input is
    /// drained, because it would turn the close into a reset.
    fn close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.stream.set_nonblocking(true);
        let mut buffer = [0; 16 * 1024];
        while matches!(self.stream.read(&mut buffer), Ok(1..)) {}
    }

    /// Starts the program that the variables name, or sends an error response.
    fn start(&mut self, variables: &[u8], notices: &ErrorLog) {
        let started = find(&self.cgi, variables).and_then(|found| self.spawn(&found, notices));
        self.stage = match started {
            Ok(process) => CgiStage::Running(Box::new(process)),
            Err((status, reason)) => {
                let _ = self.stream.set_nonblocking(false);
                let _ = self.stream.set_write_timeout(Some(GRACE));
                let _ = write!(self.stream, "Status: {status}\r\nContent-Type: text/plain\r\n\r\n{reason}\n");
                self.close();
                CgiStage::Finished
            }
        };
    }

    fn spawn(&self, found: &FoundProgram<'_>, notices: &ErrorLog) -> Result<CgiProcess, CgiRefusal> {
        const FAILED: CgiRefusal = ("500 Internal Server Error", "the program cannot be started");
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|_| FAILED)?;
        let connection = || {
            // Programs expect blocking input and output.
            self.stream.set_nonblocking(false)?;
            self.stream.try_clone().map(OwnedFd::from)
        };
        let input = connection().map_err(|_| FAILED)?;
        let output = connection().map_err(|_| FAILED)?;
        let mut command = Command::new(&found.program);
        command
            .env_clear()
            .env("PATH", PATH)
            .envs(self.cgi.env.iter().map(|(name, value)| (name, value)))
            .envs(found.env.iter().map(|(name, value)| (os(name), os(value))))
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(write));
        set_process_group(&mut command, false);
        if let Some(folder) = found.program.parent() {
            command.current_dir(folder);
        }
        let name = found.program.display().to_string();
        let spawned = apps::spawn_unrelated(&mut command);
        drop(command);
        let child = spawned.map_err(|error| {
            notices.error(&format!("cgi {name}: cannot be started: {error}"));
            FAILED
        })?;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|_| FAILED)?;
        let errors = Some(File::from(read));
        if let Some(errors) = &errors {
            let _ = rustix::io::ioctl_fionbio(errors, true);
        }
        Ok(CgiProcess { child, pidfd: ended, errors, line: Vec::new(), logged_bytes: 0, name, kill_at: None })
    }
}

impl CgiProcess {
    /// Sends a signal to the process group of the program.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Reaps the program after it has ended, and kills its remaining process group.
    fn end(&mut self, notices: &ErrorLog) {
        // Kill before reaping: afterwards the process id may be reused.
        self.signal(Signal::KILL);
        self.read_errors(notices);
        let _ = self.child.wait();
        if !self.line.is_empty() {
            self.log_line(notices);
        }
    }

    fn read_errors(&mut self, notices: &ErrorLog) {
        let mut buffer = [0; 4096];
        while let Some(errors) = &mut self.errors {
            match errors.read(&mut buffer) {
                Ok(0) => self.errors = None,
                Ok(len) => {
                    for &byte in &buffer[..len] {
                        match byte {
                            b'\n' => self.log_line(notices),
                            _ if self.line.len() < LINE_BYTES_MAX => self.line.push(byte),
                            _ => {}
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.errors = None,
            }
        }
    }

    fn log_line(&mut self, notices: &ErrorLog) {
        let line = std::mem::take(&mut self.line);
        self.logged_bytes += line.len() + LINE_BYTES;
        if self.logged_bytes <= LOGGED_BYTES_MAX {
            let line = String::from_utf8_lossy(&line).escape_debug().to_string();
            notices.error(&format!("cgi {}: stderr: {line}", self.name));
        }
    }
}

/// Reads exactly the variables, as the following data belongs to the program. `None` while they are
/// incomplete.
fn read_head(
    mut stream: &UnixStream,
    digits: &mut Vec<u8>,
    bytes: &mut Vec<u8>,
    wanted: &mut Option<usize>,
) -> io::Result<Option<Vec<u8>>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let room = match *wanted {
            None => 1,
            Some(wanted) => wanted - bytes.len(),
        };
        let mut buffer = vec![0; room.min(64 * 1024)];
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        if wanted.is_some() {
            bytes.extend_from_slice(&buffer[..len]);
        } else if buffer[0] == b':' {
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<usize>().ok());
            let length = length.filter(|length| *length <= VARIABLES_BYTES_MAX).ok_or_else(invalid)?;
            // Include the comma after the netstring.
            *wanted = Some(length + 1);
        } else {
            digits.push(buffer[0]);
            if digits.len() > 8 {
                return Err(invalid());
            }
        }
        if *wanted == Some(bytes.len()) {
            bytes.pop();
            return Ok(Some(std::mem::take(bytes)));
        }
    }
}

/// A program and its environment.
#[derive(Debug)]
struct FoundProgram<'v> {
    program: PathBuf,
    env: Vec<(&'v [u8], Vec<u8>)>,
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Status and reason of an error response.
type CgiRefusal = (&'static str, &'static str);

const NOT_FOUND: CgiRefusal = ("404 Not Found", "there is no such program");

/// Finds the program for a request in the directory, and builds its environment.
fn find<'v>(cgi: &Cgi, variables: &'v [u8]) -> Result<FoundProgram<'v>, CgiRefusal> {
    let mut texts = variables.split(|&byte| byte == 0);
    let mut env: Vec<(&[u8], Vec<u8>)> = Vec::new();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        env.push((name, value.to_vec()));
    }
    let value = |name: &str| {
        let found = env.iter().find(|(other, _)| *other == name.as_bytes());
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let mount = value("SCRIPT_NAME");
    let info = value("PATH_INFO");
    let (program, name, rest) = if cgi.root.is_file() {
        (cgi.root.clone(), Vec::new(), info)
    } else {
        let (name, rest) = find_file(&cgi.root, &info)?;
        (cgi.root.join(os(&name[1..])), name, rest)
    };
    let file = program.file_name().unwrap_or_default().as_encoded_bytes();
    if file.starts_with(b"nph-") {
        return Err(("501 Not Implemented", "programs that write the whole head (nph-) are not supported"));
    }
    if accessat(rustix::fs::CWD, &program, Access::EXEC_OK, AtFlags::empty()).is_err() {
        return Err(("403 Forbidden", "the program may not be run"));
    }
    // Must be unset without a body (RFC 3875 section 4.1.2).
    let has_body = !matches!(value("CONTENT_LENGTH").as_slice(), b"" | b"0");
    let replaced =
        ["SCGI", "SCRIPT_NAME", "PATH_INFO", "DOCUMENT_URI", "PATH_TRANSLATED", "SCRIPT_FILENAME", "PATH"];
    env.retain(|(name, _)| {
        !replaced.iter().any(|other| *name == other.as_bytes()) && (has_body || *name != b"CONTENT_LENGTH")
    });
    env.push((b"SCRIPT_NAME", [&mount[..], &name].concat()));
    env.push((b"SCRIPT_FILENAME", program.as_os_str().as_encoded_bytes().to_vec()));
    if !rest.is_empty() {
        env.push((b"PATH_TRANSLATED", [cgi.root.as_os_str().as_encoded_bytes(), &rest].concat()));
        env.push((b"PATH_INFO", rest));
    }
    Ok(FoundProgram { program, env })
}

/// Finds the first file on a path below the directory; returns its part of the path, and the rest. Symbolic
/// links that lead out of the directory are not followed.
fn find_file(root: &Path, path: &[u8]) -> Result<(Vec<u8>, Vec<u8>), CgiRefusal> {
    let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let folder = folder.map_err(|_| NOT_FOUND)?;
    let mut end = 0;
    for segment in path.split(|&byte| byte == b'/').skip(1) {
        if segment.is_empty() || segment.starts_with(b".") {
            return Err(NOT_FOUND);
        }
        end += 1 + segment.len();
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found =
            openat2(folder.as_fd(), os(&path[1..end]), flags, Mode::empty(), how).map_err(|_| NOT_FOUND)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found).map_err(|_| NOT_FOUND)?.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile => return Ok((path[..end].to_vec(), path[end..].to_vec())),
            _ => return Err(NOT_FOUND),
        }
    }
    Err(NOT_FOUND)
}
