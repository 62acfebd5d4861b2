//! Orphans of an application's processes.
//!
//! The server is a subreaper, so that forked workers become its children. Other orphans become its children
//! as well and must be reaped, because a zombie keeps its process id.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, kill_process, kill_process_group, waitpgid,
    waitpid,
};

use crate::launch::STARTED_PROCESSES;
use crate::log::{AppLog, AppLogLevel};
use crate::queues::lock;

/// Time in which processes that an application has started may end after SIGTERM, at most.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which killed processes must end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which their end is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Time in which processes may end by themselves after the workers.
const EXIT_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of processes in that report.
const NAMED_MAX: usize = 8;

/// Whether a child has left the process group in which it was started. Children that this process has started
/// lead a group or are in the group of this process.
fn is_stray(child: Pid, started: &[Pid]) -> bool {
    !started.contains(&child)
        && getpgid(Some(child)).is_ok_and(|group| group != getpgrp() && !started.contains(&group))
}

/// Process groups led by processes that were started here.
#[derive(Default)]
pub struct Orphans(Vec<Pid>);

impl Orphans {
    /// Adds a group, by the id of its leader.
    pub fn add(&mut self, leader: Pid) {
        self.0.push(leader);
    }

    /// Ends all groups, of which the workers have ended already: by SIGTERM, and by SIGKILL 5 seconds later, or at
    /// `until` if that is sooner. Logs the processes that get these signals.
    pub(crate) fn end(&mut self, until: Instant, app_log: &AppLog) {
        let now = Instant::now();
        if self.await_end(now + EXIT_TIMEOUT) {
            return;
        }
        for (signal, until, verb) in [
            (Signal::TERM, until.min(now + TERM_TIMEOUT), "terminates"),
            (Signal::KILL, now + TERM_TIMEOUT + KILL_TIMEOUT, "kills"),
        ] {
            let text = format!("{verb} processes that the application has started: {}", self.names());
            app_log.report(AppLogLevel::Warn, &text);
            // Groups of another user get no signal from here: they are killed by its launcher.
            self.0.iter().for_each(|group| _ = kill_process_group(*group, signal));
            if self.await_end(until) {
                return;
            }
        }
    }

    /// Waits until all groups have ended, at most until `until`. Returns whether they have.
    fn await_end(&mut self, until: Instant) -> bool {
        loop {
            self.reap(|_, _| {});
            if self.0.is_empty() || Instant::now() >= until {
                return self.0.is_empty();
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Names of the processes in the groups, for the log: `12 (sleep), 13 (node)`.
    fn names(&self) -> String {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        let members = stats.filter_map(|stat| {
            let (name, fields) = stat.split_at(stat.rfind(')')? + 1);
            let group = fields.split_ascii_whitespace().nth(2)?.parse().ok().and_then(Pid::from_raw)?;
            self.0.contains(&group).then(|| name.escape_debug().to_string())
        });
        members.take(NAMED_MAX).collect::<Vec<_>>().join(", ")
    }

    /// Reaps ended processes that have left their group by setpgid(2) or setsid(2). Calls `on_exit` for all of
    /// them, because one may be a worker.
    pub fn reap_strays(mut on_exit: impl FnMut(Pid, WaitStatus)) {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let started = lock(&STARTED_PROCESSES);
        while let Some(pid) = nix::sys::wait::waitid(Id::All, look).ok().and_then(|ended| ended.pid())
            && let Some(pid) = Pid::from_raw(pid.as_raw())
            && is_stray(pid, &started)
            && let Ok(Some((pid, status))) = waitpid(Some(pid), WaitOptions::NOHANG)
        {
            on_exit(pid, status);
        }
    }

    /// Kills processes that have left their group, and their descendants, once no application runs any more;
    /// returns their names. On a kernel that does not list a process's children, none are killed.
    #[must_use]
    pub fn end_strays() -> Vec<String> {
        let until = Instant::now() + KILL_TIMEOUT;
        let mut names = Vec::new();
        loop {
            Self::reap_strays(|_, _| {});
            let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
            let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            let children = lists.collect::<String>();
            let children =
                children.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            let started = lock(&STARTED_PROCESSES);
            let strays: Vec<Pid> = children.filter(|pid| is_stray(*pid, &started)).collect();
            drop(started);
            if strays.is_empty() || Instant::now() >= until {
                return names;
            }
            for stray in strays {
                let stat =
                    fs::read_to_string(format!("/proc/{}/stat", stray.as_raw_pid())).unwrap_or_default();
                let name = stat.split_inclusive(')').next().unwrap_or_default().escape_debug().to_string();
                if names.len() < NAMED_MAX && !names.contains(&name) {
                    names.push(name);
                }
                // Fails only if the process has ended.
                let _ = kill_process(stray, Signal::KILL);
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Reaps ended processes; calls `on_exit` for all of them, because one may be a worker.
    pub fn reap(&mut self, mut on_exit: impl FnMut(Pid, WaitStatus)) {
        self.0.retain(|group| {
            loop {
                match waitpgid(*group, WaitOptions::NOHANG) {
                    Ok(Some((pid, status))) => on_exit(pid, status),
                    Ok(None) => return true,
                    // The group is empty.
                    Err(_) => return false,
                }
            }
        });
    }
}
