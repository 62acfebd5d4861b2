//! Child processes that are killed when this process ends, including on an error, a panic or Ctrl-C.
//!
//! The first Ctrl-C ends the measurement with the figures so far ([`stop_flag`]); the second one ends the program
//! at once.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

const STOP_MS_MAX: u64 = 3_000;
/// Interval after the first signal in which further signals count as the same one.
const REPEATED_SIGNAL_INTERVAL: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Process groups and temporary folders that must be removed at exit.
struct Cleanup {
    groups: Vec<Pid>,
    folders: Vec<PathBuf>,
}

static CLEANUP: Mutex<Cleanup> = Mutex::new(Cleanup { groups: Vec::new(), folders: Vec::new() });
static SIGNAL_HANDLER: Once = Once::new();
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Flag that is set by the first signal that asks this process to end. The first call installs the signal
/// handler.
pub fn stop_flag() -> &'static AtomicBool {
    watch_signals();
    &STOP_REQUESTED
}

fn lock_cleanup() -> std::sync::MutexGuard<'static, Cleanup> {
    // The list is needed most after a panic elsewhere, so poisoning is ignored.
    CLEANUP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_signals() {
    SIGNAL_HANDLER.call_once(|| {
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).expect("these may be caught");
        std::thread::spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                STOP_REQUESTED.store(true, Ordering::Relaxed);
            }
            // Some senders signal a process twice, by its process ID and by its group: that counts as one
            // request.
            let first = Instant::now();
            let Some(signal) = signals.find(|_| first.elapsed() > REPEATED_SIGNAL_INTERVAL) else { return };
            let litter = lock_cleanup();
            for &group in &litter.groups {
                let _ = kill_process_group(group, Signal::KILL);
            }
            for folder in &litter.folders {
                let _ = std::fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal);
        });
    });
}

/// A process and all its descendants, in a process group of their own; dropping it kills them all.
pub struct ProcessTree {
    child: Child,
    group: Pid,
    log: PathBuf,
}

impl ProcessTree {
    /// Starts `command` with stdout and stderr redirected to the file `log`.
    ///
    /// # Errors
    /// Fails if the program cannot be started or the file cannot be created.
    pub fn start(command: &mut Command, log: &Path) -> io::Result<ProcessTree> {
        use std::os::unix::process::CommandExt;
        watch_signals();
        let out = File::create(log)?;
        // Locked during the start, so that a signal is handled either before it or with the child in the list.
        let mut litter = lock_cleanup();
        let child =
            command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        litter.groups.push(group);
        Ok(ProcessTree { child, group, log: log.to_path_buf() })
    }

    /// Returns the process ID of the first process of the tree.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Whether the first process is still running.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Calls `ready` repeatedly until it returns a value, the process ends, or `ms_max` milliseconds have
    /// passed.
    pub fn wait_until<T>(
        &mut self,
        ms_max: u64,
        mut ready: impl FnMut(&ProcessTree) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + Duration::from_millis(ms_max);
        loop {
            if let Some(found) = ready(self) {
                return Some(found);
            }
            if !self.is_alive() || Instant::now() >= deadline || STOP_REQUESTED.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        let _ = kill_process_group(self.group, Signal::TERM);
        let deadline = Instant::now() + Duration::from_millis(STOP_MS_MAX);
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
        lock_cleanup().groups.retain(|&group| group != self.group);
    }
}

/// Temporary folder that is removed when this value is dropped or the process ends.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a temporary folder. It is readable by everyone, because servers that give up root must be able
    /// to read it.
    ///
    /// # Errors
    /// Fails if the folder cannot be created.
    pub fn new(name: &str) -> io::Result<TempFolder> {
        use std::os::unix::fs::PermissionsExt;
        watch_signals();
        let mut litter = lock_cleanup();
        let folder = create_folder(name)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        litter.folders.push(folder.clone());
        Ok(TempFolder(folder))
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Creates a folder. An existing one is refused, because it may belong to another user or be a symbolic link.
fn create_folder(name: &str) -> io::Result<PathBuf> {
    const ATTEMPTS_MAX: u32 = 1_000;
    let mut tries = 0;
    loop {
        let suffix = if tries == 0 { String::new() } else { format!("-{tries}") };
        let folder = std::env::temp_dir().join(format!("komainu-{name}-{}{suffix}", std::process::id()));
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < ATTEMPTS_MAX => tries += 1,
            Err(error) => return Err(error),
            Ok(()) => return Ok(folder),
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        lock_cleanup().folders.retain(|folder| *folder != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_process_tree_kills_grandchildren_even_on_a_panic() {
        let scratch = TempFolder::new("children-test").expect("a scratch folder");
        let log = scratch.path().join("log");
        // The grandchild ignores SIGTERM; only the SIGKILL to the group can end it.
        let script = "(trap '' TERM; echo started; while :; do sleep 1; done) & wait";
        let mut tree = ProcessTree::start(Command::new("sh").args(["-c", script]), &log).expect("a shell");
        let group = tree.group;
        tree.wait_until(10_000, |tree| tree.output().contains("started").then_some(())).expect("it starts");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = tree;
            panic!("as a measurement might");
        }));
        assert!(panicked.is_err());
        let gone = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            crate::procfs::process_tree(&[group.as_raw_nonzero().get() as u32]).is_empty()
        });
        assert!(gone, "the grandchild is still there");
        assert!(!lock_cleanup().groups.contains(&group));
    }

    #[test]
    fn existing_scratch_directory_is_not_used() {
        let name = format!("komainu-taken-{}", std::process::id());
        let taken = std::env::temp_dir().join(&name);
        let elsewhere = std::env::temp_dir().join(name + "-else");
        std::fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &taken).unwrap();
        let scratch = TempFolder::new("taken").unwrap();
        std::fs::write(scratch.path().join("file"), "").unwrap();
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing goes where a link leads");
        drop(scratch);
        assert!(taken.is_symlink());
        std::fs::remove_file(taken).unwrap();
        std::fs::remove_dir(elsewhere).unwrap();
    }

    #[test]
    fn waiting_ends_when_the_process_does() {
        let scratch = TempFolder::new("children-wait").expect("a scratch folder");
        let mut tree =
            ProcessTree::start(Command::new("sh").args(["-c", "echo gone"]), &scratch.path().join("log"))
                .expect("a shell");
        assert_eq!(tree.wait_until(60_000, |_| None::<()>), None);
        assert_eq!(tree.output(), "gone\n");
    }
}
