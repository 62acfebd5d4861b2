//! CPU time and memory of a whole process tree, read from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// CPU time that a process tree has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// User and system together, from the scheduler's own clock.
    pub(crate) total_ns: u64,
    /// The system's share as the kernel's ticks show it: coarser, for the split alone.
    pub(crate) system_ns: u64,
}

impl Cpu {
    /// What was used between `earlier` and this reading.
    pub(crate) fn since(self, earlier: Cpu) -> Cpu {
        Cpu {
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

/// The fields of `/proc/PID/stat` that matter here; times in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    group: u32,
    user: u64,
    system: u64,
    reaped_user: u64,
    reaped_system: u64,
}

impl Stat {
    /// The command's name may hold spaces and parentheses, so the fields are counted from the last `)`.
    fn parse(line: &str) -> Option<Stat> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Stat {
            parent: u32::try_from(number(1)?).ok()?,
            group: u32::try_from(number(2)?).ok()?,
            user: number(11)?,
            system: number(12)?,
            reaped_user: number(13)?,
            reaped_system: number(14)?,
        })
    }

    fn read(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Every live process that descends from `root` or is in its process group, `root` included.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let numbered = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let stats: HashMap<u32, Stat> =
        entries.flatten().filter_map(numbered).filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
    let belongs = |pid: u32| {
        let mut at = pid;
        loop {
            let Some(stat) = stats.get(&at) else { return false };
            if at == root || stat.group == root {
                return true;
            }
            at = stat.parent;
        }
    };
    let mut members: Vec<u32> = stats.keys().copied().filter(|&pid| belongs(pid)).collect();
    members.sort_unstable();
    members
}

/// CPU time of the tree under `root`, with that of its children that have ended and been waited for.
pub(crate) fn tree_cpu(root: u32) -> Cpu {
    tree(root).into_iter().filter_map(process_cpu).fold(Cpu::default(), |sum, one| Cpu {
        total_ns: sum.total_ns + one.total_ns,
        system_ns: sum.system_ns + one.system_ns,
    })
}

fn process_cpu(pid: u32) -> Option<Cpu> {
    let stat = Stat::read(pid)?;
    // The ticks count threads that have ended as well, but round down; the threads' own clocks are exact.
    let own_ns = threads_ns(pid).max(ticks_ns(stat.user + stat.system));
    Some(Cpu {
        total_ns: own_ns + ticks_ns(stat.reaped_user + stat.reaped_system),
        system_ns: ticks_ns(stat.system + stat.reaped_system),
    })
}

fn threads_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let spent = |thread: fs::DirEntry| {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(spent).sum()
}

/// CPU time of this process's children that have ended and been waited for, in nanoseconds, by the kernel's ticks.
pub(crate) fn reaped_ns() -> u64 {
    Stat::read(std::process::id()).map_or(0, |stat| ticks_ns(stat.reaped_user + stat.reaped_system))
}

/// CPU time that the whole machine has spent on anything since it started, in nanoseconds, all cores together.
pub(crate) fn machine_busy_ns() -> u64 {
    fs::read_to_string("/proc/stat").ok().and_then(|text| busy_ticks(&text)).map_or(0, ticks_ns)
}

/// User, nice, system, irq, softirq and steal of the `cpu` line: all but idle and waiting.
fn busy_ticks(proc_stat: &str) -> Option<u64> {
    let line = proc_stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|&at| ticks.get(at)).sum())
}

/// Proportional set size of the tree under `root`, in bytes: memory shared by several processes is counted once.
pub(crate) fn tree_pss_bytes(root: u32) -> u64 {
    let of_one = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        pss_bytes(&text)
    };
    tree(root).into_iter().filter_map(of_one).sum()
}

fn pss_bytes(smaps_rollup: &str) -> Option<u64> {
    let line = smaps_rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The machine in one line: processor, cores, kernel.
pub(crate) fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let kernel = fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores, Linux {}", model.map_or("unknown processor", |(_, name)| name), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = "42 (a ) (b) S 7 8 9 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 99";
        let stat = Stat::parse(line).expect("a whole line");
        assert_eq!((stat.parent, stat.group), (7, 8));
        assert_eq!((stat.user, stat.system, stat.reaped_user, stat.reaped_system), (50, 60, 70, 80));
        assert_eq!(Stat::parse("42 (cut) S 7"), None);
    }

    #[test]
    fn idle_and_waiting_are_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 5"), Some(63));
        assert_eq!(busy_ticks("intr 5"), None);
    }

    #[test]
    fn pss_is_in_kibibytes() {
        assert_eq!(pss_bytes("Rss:  9 kB\nPss:    3 kB\nPss_Anon: 1 kB\n"), Some(3072));
    }

    #[test]
    fn a_tree_counts_grandchildren_and_what_they_burn() {
        let script = "sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo burnt; read x'; true";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut burnt = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut burnt)
            .expect("the shell's line");
        let (members, alive) = (tree(child.id()), tree_cpu(child.id()));
        let reaped_before = reaped_ns();
        drop(child.stdin.take());
        child.wait().expect("the shell ends");
        assert!(members.len() >= 2, "the shell and its child: {members:?}");
        assert!(members.contains(&child.id()) && !members.contains(&std::process::id()));
        assert!(alive.total_ns > 0, "a loop of 60,000 turns costs something: {alive:?}");
        assert!(tree(child.id()).is_empty(), "nothing is left of the tree");
        assert!(reaped_ns() >= reaped_before);
    }
}
