//! Processes of both servers, ports and the scratch folder.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};

/// Timeout for a server to accept connections, also on a machine that is busy.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Loopback address of the old server.
pub(crate) const OLD_ADDRESS: &str = "127.0.0.2";
/// Loopback address of Komainu.
pub(crate) const NEW_ADDRESS: &str = "127.0.0.3";

/// Server process that is killed when this value is dropped.
pub(crate) struct ComparedProcess {
    child: Child,
    name: &'static str,
    log: PathBuf,
}

impl ComparedProcess {
    /// Starts a server whose output is written to a file of the scratch folder.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub(crate) fn start(name: &'static str, mut command: Command, folder: &Path) -> Result<Self, Failure> {
        let log = folder.join(format!("{name}.log"));
        let attempted = || format!("{name} cannot be started");
        let output = File::create(&log).with_context(attempted)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().with_context(attempted)?)
            .stderr(output)
            .spawn()
            .with_context(attempted)?;
        Ok(Self { child, name, log })
    }

    /// Waits until the server accepts connections at all these addresses, or says that it serves: an address that it
    /// lacks then is one at which it refuses everything.
    ///
    /// # Errors
    /// Fails if the server has ended or does not accept connections; the message includes its last output.
    pub(crate) fn wait_until_listening(&mut self, addresses: &[SocketAddr]) -> Result<(), Failure> {
        let deadline = Instant::now() + START_TIMEOUT;
        for address in addresses {
            while TcpStream::connect_timeout(address, Duration::from_millis(500)).is_err() {
                if self.says_that_it_serves() {
                    break;
                }
                let has_ended = !matches!(self.child.try_wait(), Ok(None));
                if has_ended || Instant::now() > deadline {
                    let what = if has_ended { "ended" } else { "does not accept connections" };
                    return Err(Failure::new(format!("{} {what}:\n{}", self.name, self.output_tail())));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Whether the output names the addresses that are served, which Komainu does once all of them are bound.
    fn says_that_it_serves(&self) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|text| text.contains("info: serving on "))
    }

    /// Whether the process is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the output.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the end of the output.
    pub(crate) fn output_tail(&self) -> String {
        let text = self.output();
        let lines: Vec<&str> = text.lines().collect();
        // An error may be followed by warnings.
        let error = lines.iter().position(|line| line.starts_with("error:"));
        let first = error.unwrap_or(lines.len().saturating_sub(30));
        lines[first..].iter().take(30).copied().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ComparedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that is free at the addresses of both servers and of the stubs, below those that the kernel
/// gives to connections: one of these could be taken before the server listens on it.
///
/// # Errors
/// Fails if no such port is found.
pub(crate) fn free_port() -> Result<u16, Failure> {
    for _ in 0..50 {
        let port = fastrand::u16(20_000..32_000);
        let all = ["127.0.0.1", OLD_ADDRESS, NEW_ADDRESS].map(|host| TcpListener::bind((host, port)));
        if all.iter().all(Result::is_ok) {
            return Ok(port);
        }
    }
    Err(Failure::new("no port is free on loopback"))
}

/// Temporary folder that is removed when this value is dropped.
pub(crate) struct VerifyFolder(PathBuf);

impl VerifyFolder {
    /// # Errors
    /// Fails if the folder cannot be created.
    pub(crate) fn new() -> Result<Self, Failure> {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        for _ in 0..100 {
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("komainu-verify-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::new(format!("{}: {error}", path.display()))),
            }
        }
        Err(Failure::new("the folder for temporary files is full of scratch folders"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and creates its parent folders.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let path = self.0.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| path.display())?;
        }
        std::fs::write(&path, content).with_context(|| path.display())
    }
}

impl Drop for VerifyFolder {
    fn drop(&mut self) {
        if std::env::var_os("KOMAINU_VERIFY_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
