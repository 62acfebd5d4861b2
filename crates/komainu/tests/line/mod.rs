//! Servers that replace each other.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::process::Output;

use crate::hosted::{is_alive, kill, server};
use crate::rig::{Folder, Rig, eventually, komainu, text};

/// A server and its successors after upgrades.
pub struct Line {
    pub rig: Rig,
    /// Process id of the current server, or of its supervisor.
    pub pid: u32,
}

impl Line {
    pub fn new(rig: Rig) -> Line {
        Line { pid: rig.child.id(), rig }
    }

    /// Runs `komainu start` with this configuration, in a directory that also contains the control socket.
    pub fn start(folder: Folder, config: &str) -> Line {
        folder.write("komainu.toml", config);
        let mut command = server();
        command.env("RUNTIME_DIRECTORY", folder.at("run"));
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        Line::new(Rig::start(command, folder))
    }

    pub fn komainu(&self, arguments: &[&str]) -> Output {
        komainu().args(arguments).env("RUNTIME_DIRECTORY", self.rig.folder.at("run")).output().unwrap()
    }

    /// Process id of the current server, which is not that of its supervisor.
    pub fn server(&self) -> Option<u32> {
        let reported = self.komainu(&["status", "--json", "--pid", &self.pid.to_string()]);
        let servers: serde_json::Value = serde_json::from_slice(&reported.stdout).ok()?;
        servers[0]["pid"].as_u64().map(|pid| pid as u32)
    }

    /// Runs `komainu upgrade`, which must succeed.
    pub fn upgrade(&mut self) -> u32 {
        let before = self.pid;
        let done = self.komainu(&["upgrade", "--pid", &before.to_string()]);
        let said = text(&done.stdout);
        assert!(done.status.success(), "{said}{}", text(&done.stderr));
        let (_, rest) = said.split_once("process ").unwrap();
        self.pid = rest.split_whitespace().next().unwrap().parse().unwrap();
        assert_ne!(self.pid, before);
        before
    }

    /// Runs `komainu upgrade`, which must fail, and returns its output.
    pub fn upgrade_in_vain(&self) -> String {
        let done = self.komainu(&["upgrade", "--pid", &self.pid.to_string()]);
        assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
        text(&done.stderr)
    }

    /// Stops the last server, which must exit cleanly.
    pub fn stop(mut self) {
        let pid = self.pid;
        assert!(kill(pid, "-TERM"));
        eventually("the last one ends", || {
            // The first server is a child of this process.
            let _ = self.rig.child.try_wait();
            !is_alive(pid)
        });
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.pid != self.rig.child.id() && is_alive(self.pid) {
            kill(self.pid, "-KILL");
        }
    }
}
