//! Redis servers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::eventually;

/// A temporary folder, removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("komainu-test-cluster-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Redis server at a Unix socket, killed on drop.
pub(crate) struct Redis {
    child: Child,
    socket: PathBuf,
}

impl Redis {
    /// Starts a server without persistence, with more options.
    pub(crate) fn start(folder: &Path, name: &str, options: &[&str]) -> Redis {
        let socket = folder.join(format!("{name}.sock"));
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("redis-server");
        let has_port = options.iter().any(|option| option.ends_with("port"));
        command.args(if has_port { &[][..] } else { &["--port", "0"] });
        command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]).args(options);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server is installed: `scripts/setup test` does that");
        let redis = Redis { child, socket };
        eventually("Redis answers", || !redis.ask("PING").is_empty());
        redis
    }

    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The response to commands; empty if the server cannot be reached.
    pub(crate) fn ask(&self, lines: &str) -> String {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return String::new() };
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut bytes = Vec::new();
        let sent = stream.write_all(format!("{lines}\r\nQUIT\r\n").as_bytes());
        sent.and_then(|()| stream.read_to_end(&mut bytes))
            .map_or(String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
