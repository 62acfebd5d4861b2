//! The Redis server of a set.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::{PATIENCE, eventually};

/// A Redis server without persistence, killed on drop.
pub(crate) struct Store {
    child: Child,
    socket: PathBuf,
}

impl Store {
    pub(crate) fn start(folder: &Path) -> Store {
        let socket = folder.join("redis.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--requirepass", "secret"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server is installed: `scripts/setup test` does that");
        let store = Store { child, socket };
        eventually("Redis answers", || store.ask("PING").contains("PONG"));
        store
    }

    /// The response to a command; empty if the server cannot be reached.
    pub(crate) fn ask(&self, line: &str) -> String {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return String::new() };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        let sent = stream.write_all(format!("AUTH secret\r\n{line}\r\nQUIT\r\n").as_bytes());
        sent.and_then(|()| stream.read_to_end(&mut bytes))
            .map_or(String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The table `[cluster]` of a server; its folder gets the files that it names.
    pub(crate) fn table(folder: &Path, name: &str) -> String {
        std::fs::write(folder.join("store.password"), "secret\n").unwrap();
        std::fs::write(folder.join("cluster.key"), [7; 48]).unwrap();
        format!(
            r#"
            [cluster]
            store = "unix:{0}/redis.sock"
            password_file = "{0}/store.password"
            key = "{0}/cluster.key"
            name = "{name}"
            timeout = "20s"
            purge_timeout = "20s"
            "#,
            folder.display()
        )
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
