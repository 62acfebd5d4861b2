//! Process information from `/proc`: trees, CPU time, memory, listening sockets.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// CPU time and context switches of processes between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// User and system time together, from the scheduler's own clock, in nanoseconds.
    pub total_ns: u64,
    /// System time in nanoseconds, as the kernel splits it; coarser than the total.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub switches_voluntary: u64,
    /// Involuntary context switches.
    pub switches_involuntary: u64,
}

impl CpuUsage {
    /// Returns the user time in nanoseconds.
    #[must_use]
    pub fn user_ns(self) -> u64 {
        self.total_ns.saturating_sub(self.system_ns)
    }

    /// Adds the usage of another time.
    pub fn add(&mut self, other: CpuUsage) {
        self.total_ns += other.total_ns;
        self.system_ns += other.system_ns;
        self.switches_voluntary += other.switches_voluntary;
        self.switches_involuntary += other.switches_involuntary;
    }
}

/// Reading of the CPU time and context switches of processes.
#[derive(Clone, Debug, Default)]
pub struct UsageReading(HashMap<u32, ProcessUsage>);

/// Reading of one process. The process's ticks are coarse but include threads that have ended; the clocks of
/// its threads are exact but disappear with them.
#[derive(Clone, Debug, Default)]
struct ProcessUsage {
    parent: u32,
    /// Nanoseconds, voluntary and involuntary context switches by thread ID.
    threads: HashMap<u32, (u64, u64, u64)>,
    ticks_ns: u64,
    system_ns: u64,
    /// CPU time of children that have ended and been waited for, in nanoseconds.
    reaped_ns: u64,
}

impl UsageReading {
    /// Returns the usage between `earlier` and this reading; for new processes, their whole usage.
    #[must_use]
    pub fn since(&self, earlier: &UsageReading) -> CpuUsage {
        let nothing = ProcessUsage::default();
        let mut sum = CpuUsage::default();
        for (pid, used) in &self.0 {
            let before = earlier.0.get(pid).unwrap_or(&nothing);
            let mut exact_ns = 0;
            for (thread, (ns, voluntary, involuntary)) in &used.threads {
                let &(ns_before, voluntary_before, involuntary_before) =
                    before.threads.get(thread).unwrap_or(&(0, 0, 0));
                exact_ns += ns.saturating_sub(ns_before);
                sum.switches_voluntary += voluntary.saturating_sub(voluntary_before);
                sum.switches_involuntary += involuntary.saturating_sub(involuntary_before);
            }
            let ticks_ns = used.ticks_ns.saturating_sub(before.ticks_ns);
            // User and system time are each rounded down: if the difference is more than two ticks, a thread
            // has ended in between.
            let threads_ended = ticks_ns > exact_ns + ticks_to_ns(2);
            sum.total_ns += if threads_ended { ticks_ns } else { exact_ns };
            // The kernel adds the whole lifetime usage of an ended child, so subtract the usage up to the
            // earlier reading.
            let (gone_ns, gone_system_ns) = self.ended_children_usage(earlier, *pid);
            sum.total_ns += used.reaped_ns.saturating_sub(before.reaped_ns + gone_ns);
            sum.system_ns += used.system_ns.saturating_sub(before.system_ns + gone_system_ns);
        }
        sum
    }

    /// Returns the usage, up to `earlier`, of children of `parent` that have ended since: total, and system
    /// time.
    fn ended_children_usage(&self, earlier: &UsageReading, parent: u32) -> (u64, u64) {
        let children =
            earlier.0.iter().filter(|(pid, used)| used.parent == parent && !self.0.contains_key(pid));
        children.fold((0, 0), |(ns, system_ns), (_, used)| {
            (ns + used.ticks_ns + used.reaped_ns, system_ns + used.system_ns)
        })
    }

    /// Adds a reading of further processes.
    pub fn merge(&mut self, other: UsageReading) {
        self.0.extend(other.0);
    }

    /// Returns the usage since the processes started.
    #[must_use]
    pub fn since_start(&self) -> CpuUsage {
        self.since(&UsageReading::default())
    }
}

/// Memory of one process, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Process ID.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Resident memory (RSS); shared pages count in full.
    pub rss: u64,
    /// Proportional resident memory (PSS); shared pages are divided among their users.
    pub pss: u64,
    /// Private dirty memory: pages that only this process has and that it has written to.
    pub private_dirty: u64,
}

/// Relevant fields of `/proc/PID/stat`; times in clock ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessStat {
    name: String,
    parent: u32,
    group: u32,
    user: u64,
    system: u64,
    reaped_user: u64,
    reaped_system: u64,
}

impl ProcessStat {
    /// Parses a line. The command name may contain spaces and parentheses, so the fields are counted from the
    /// last `)`.
    fn parse(line: &str) -> Option<ProcessStat> {
        let (before, after) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(ProcessStat {
            name: before.split_once('(')?.1.to_string(),
            parent: u32::try_from(number(1)?).ok()?,
            group: u32::try_from(number(2)?).ok()?,
            user: number(11)?,
            system: number(12)?,
            reaped_user: number(13)?,
            reaped_system: number(14)?,
        })
    }

    fn read_stat(pid: u32) -> Option<ProcessStat> {
        ProcessStat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

fn ticks_to_ns(ticks: u64) -> u64 {
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

fn numeric_entries(folder: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns every live process that is one of `roots`, descends from one, or is in its process group.
#[must_use]
pub fn process_tree(roots: &[u32]) -> Vec<u32> {
    let stats: HashMap<u32, ProcessStat> = numeric_entries("/proc")
        .into_iter()
        .filter_map(|pid| Some((pid, ProcessStat::read_stat(pid)?)))
        .collect();
    let belongs = |pid: u32| {
        let mut at = pid;
        // If a parent ends between two reads, a child may reuse its process ID: the bound prevents an endless
        // loop.
        for _ in 0..1_000 {
            let Some(stat) = stats.get(&at) else { return false };
            if roots.contains(&at) || roots.contains(&stat.group) {
                return true;
            }
            at = stat.parent;
        }
        false
    };
    let mut members: Vec<u32> = stats.keys().copied().filter(|&pid| belongs(pid)).collect();
    members.sort_unstable();
    members
}

/// Reads the usage of these processes, including that of children that have ended and been waited for.
#[must_use]
pub fn read_usage(pids: &[u32]) -> UsageReading {
    UsageReading(pids.iter().filter_map(|&pid| Some((pid, process_usage(pid)?))).collect())
}

fn process_usage(pid: u32) -> Option<ProcessUsage> {
    let stat = ProcessStat::read_stat(pid)?;
    let mut threads = HashMap::new();
    for thread in numeric_entries(&format!("/proc/{pid}/task")) {
        let folder = format!("/proc/{pid}/task/{thread}");
        let schedstat = fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
        let ns = schedstat.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        let voluntary = first_number(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        let involuntary = first_number(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        threads.insert(thread, (ns, voluntary, involuntary));
    }
    Some(ProcessUsage {
        parent: stat.parent,
        threads,
        ticks_ns: ticks_to_ns(stat.user + stat.system),
        system_ns: ticks_to_ns(stat.system + stat.reaped_system),
        reaped_ns: ticks_to_ns(stat.reaped_user + stat.reaped_system),
    })
}

/// Returns the first number of the line that begins with `name`.
fn first_number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the memory of each process that this one may inspect.
#[must_use]
pub fn process_memory(pids: &[u32]) -> Vec<ProcessMemory> {
    let of_one = |&pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let name = ProcessStat::read_stat(pid)?.name;
        Some(parse_memory(pid, name, &text))
    };
    pids.iter().filter_map(of_one).collect()
}

fn parse_memory(pid: u32, name: String, smaps_rollup: &str) -> ProcessMemory {
    let bytes = |name| first_number(smaps_rollup, name).unwrap_or(0) * 1024;
    ProcessMemory {
        pid,
        name,
        rss: bytes("Rss:"),
        pss: bytes("Pss:"),
        private_dirty: bytes("Private_Dirty:"),
    }
}

/// Returns the total RSS of all processes in bytes; shared pages count for each. Cheap enough to read during
/// a run.
#[must_use]
pub fn total_rss(pids: &[u32]) -> u64 {
    let of_one = |pid: &u32| {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        statm.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of_one).sum::<u64>() * rustix::param::page_size() as u64
}

/// Returns the CPU time of the whole machine since boot, in nanoseconds, over all cores.
#[must_use]
pub fn machine_busy_ns() -> u64 {
    fs::read_to_string("/proc/stat").ok().and_then(|text| busy_ticks(&text)).map_or(0, ticks_to_ns)
}

/// Returns user, nice, system, irq, softirq and steal time of the `cpu` line: all but idle and iowait.
fn busy_ticks(proc_stat: &str) -> Option<u64> {
    let line = proc_stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|&at| ticks.get(at)).sum())
}

/// Returns the number of cores that this process may use.
#[must_use]
pub fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Describes the machine in one line: processor, cores, memory, kernel and its TCP congestion control, which
/// costs CPU time too.
#[must_use]
pub fn describe_machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let kernel = fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let gibibytes = first_number(&memory, "MemTotal:").unwrap_or(0) as f64 / 1024.0 / 1024.0;
    format!(
        "{}, {} cores, {gibibytes:.0} GiB, Linux {}, {}",
        model.map_or("unknown processor", |(_, name)| name),
        core_count(),
        kernel.trim(),
        congestion.trim()
    )
}

// ---- listening processes ----

/// State of a listening socket in `/proc/net/tcp`.
const LISTEN_STATE: &str = "0A";
/// State of a socket without a peer in `/proc/net/udp`.
const UNCONNECTED_STATE: &str = "07";
/// Processes may begin and end while they are read.
const ANCESTORS_MAX: usize = 1_000;
/// Programs that bind the sockets of servers that they start. The one of a user is no ancestor of the user's shell.
const SERVICE_MANAGERS: [&str; 2] = ["systemd", "init"];

/// Returns the topmost processes that listen at `address`, if that is an address of this machine: on TCP, or on UDP if
/// `is_udp`.
#[must_use]
pub fn listening_processes(address: SocketAddr, is_udp: bool) -> Vec<u32> {
    if UdpSocket::bind((address.ip(), 0)).is_err() {
        return Vec::new();
    }
    let mut inodes = HashSet::new();
    let (name, state) = if is_udp { ("udp", UNCONNECTED_STATE) } else { ("tcp", LISTEN_STATE) };
    for v6 in [false, true] {
        let Ok(file) = fs::File::open(format!("/proc/net/{name}{}", if v6 { "6" } else { "" })) else {
            continue;
        };
        let lines = BufReader::new(file).lines().skip(1).map_while(Result::ok);
        // Listening sockets of TCP come first; stop after them, because the kernel is slow to list many connections.
        let listening =
            lines.take_while(|line| is_udp || line.split_ascii_whitespace().nth(3) == Some(LISTEN_STATE));
        inodes.extend(listening.filter_map(|line| listening_inode(&line, v6, address, state)));
    }
    topmost_servers(socket_owners(&inodes))
}

/// Returns the topmost processes that listen on the Unix socket at `path`.
#[must_use]
pub fn unix_listening_processes(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let shown = path.display().to_string();
    let inodes = text.lines().filter_map(|line| unix_inode(line, &shown)).collect();
    topmost_servers(socket_owners(&inodes))
}

/// Returns the inode in a line of `/proc/net/tcp` or `/proc/net/udp`, if it is a listening socket that accepts connections to
/// `address`.
fn listening_inode(line: &str, v6: bool, address: SocketAddr, state: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, port) = words.get(1)?.split_once(':')?;
    if *words.get(3)? != state || u16::from_str_radix(port, 16).ok()? != address.port() {
        return None;
    }
    // The address is written in groups of four bytes, each in host byte order.
    let mut bytes = Vec::new();
    for at in (0..local.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(local.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let local = if v6 {
        IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
    } else {
        IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
    };
    let reaches = local.is_unspecified() || local.to_canonical() == address.ip().to_canonical();
    (reaches && (v6 || address.ip().to_canonical().is_ipv4())).then(|| words.get(9)?.parse().ok())?
}

/// Returns the inode in a line of `/proc/net/unix`, if it is a listening socket at `path`.
fn unix_inode(line: &str, path: &str) -> Option<u64> {
    const ACCEPTS: u32 = 0x10000;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
    (flags & ACCEPTS != 0 && *words.get(7)? == path).then(|| words[6].parse().ok())?
}

/// Returns the processes that have one of these sockets open.
fn socket_owners(inodes: &HashSet<u64>) -> Vec<u32> {
    let holds = |&pid: &u32| {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        entries.flatten().any(|entry| {
            let Ok(target) = fs::read_link(entry.path()) else { return false };
            let inode = target
                .to_str()
                .and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            inode.is_some_and(|inode: u64| inodes.contains(&inode))
        })
    };
    if inodes.is_empty() { Vec::new() } else { numeric_entries("/proc").into_iter().filter(holds).collect() }
}

/// Returns the parent of a process, its parent, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    let parent =
        |pid: &u32| ProcessStat::read_stat(*pid).map(|stat| stat.parent).filter(|parent| *parent != 0);
    std::iter::successors(parent(&pid), parent).take(ANCESTORS_MAX)
}

/// Returns the processes of `pids` that descend from no other of them, without those that would be measured with everything
/// that they run: service managers, and those that this process descends from, such as a shell that has bound the socket.
fn topmost_servers(mut pids: Vec<u32>) -> Vec<u32> {
    let own: Vec<u32> = ancestors(std::process::id()).collect();
    let is_manager = |pid: u32| {
        ProcessStat::read_stat(pid).is_some_and(|stat| SERVICE_MANAGERS.contains(&stat.name.as_str()))
    };
    pids.retain(|&pid| !own.contains(&pid) && !is_manager(pid));
    let below = |pid: u32| ancestors(pid).any(|above| pids.contains(&above));
    let mut top: Vec<u32> = pids.iter().copied().filter(|&pid| !below(pid)).collect();
    top.sort_unstable();
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn process_name_with_parentheses_does_not_shift_fields() {
        let line = "42 (a ) (b) S 7 8 9 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 99";
        let stat = ProcessStat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.group, stat.name.as_str()), (7, 8, "a ) (b"));
        assert_eq!((stat.user, stat.system, stat.reaped_user, stat.reaped_system), (50, 60, 70, 80));
        assert_eq!(ProcessStat::parse("42 (cut) S 7"), None);
    }

    #[test]
    fn idle_and_iowait_do_not_count_as_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 5"), Some(63));
        assert_eq!(busy_ticks("intr 5"), None);
    }

    #[test]
    fn memory_is_in_kibibytes() {
        let text = "Rss:  9 kB\nPss:    3 kB\nPss_Anon: 1 kB\nPrivate_Clean: 7 kB\nPrivate_Dirty:  2 kB\n";
        let memory = parse_memory(1, "x".into(), text);
        assert_eq!((memory.rss, memory.pss, memory.private_dirty), (9216, 3072, 2048));
    }

    #[test]
    fn listening_sockets_are_found_by_address_port_and_state() {
        // Formatted as on a little-endian machine: 127.0.0.1:8080 and [::]:8080.
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1";
        let v6 = "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 888 1";
        let ours: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(listening_inode(v4, false, ours, LISTEN_STATE), Some(777));
            assert_eq!(listening_inode(v4, false, "127.0.0.2:8080".parse().unwrap(), LISTEN_STATE), None);
        }
        assert_eq!(listening_inode(v6, true, ours, LISTEN_STATE), Some(888));
        assert_eq!(listening_inode(v6, true, "127.0.0.1:8081".parse().unwrap(), LISTEN_STATE), None);
        assert_eq!(listening_inode(&v6.replace(" 0A ", " 01 "), true, ours, LISTEN_STATE), None);
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 999 /run/x.sock";
        assert_eq!(unix_inode(unix, "/run/x.sock"), Some(999));
        assert_eq!(unix_inode(unix, "/run/y.sock"), None);
    }

    #[test]
    fn own_process_is_found_by_its_listening_socket() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listening_processes(listener.local_addr().unwrap(), false), [std::process::id()]);
        let path = std::env::temp_dir().join(format!("komainu-procfs-{}", std::process::id()));
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(unix_listening_processes(&path), [std::process::id()]);
        drop((listener, unix));
        std::fs::remove_file(&path).unwrap();
        assert!(unix_listening_processes(&path).is_empty());
    }

    #[test]
    fn service_managers_with_a_socket_are_not_taken_for_servers() {
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("komainu-manager-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, is_server) in [("server", true), ("systemd", false)] {
            let program = folder.join(name);
            symlink("/bin/sleep", &program).unwrap();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let socket = std::os::fd::OwnedFd::from(listener);
            let mut child = Command::new(&program).arg("600").stdin(socket).spawn().unwrap();
            let listening = listening_processes(address, false);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(listening, if is_server { vec![child.id()] } else { Vec::new() }, "{name}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn process_tree_includes_grandchildren_and_their_usage() {
        let script = "sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo burnt; read x'; true";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut burnt = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut burnt).unwrap();
        let members = process_tree(&[child.id()]);
        let used = read_usage(&members).since_start();
        let memory = process_memory(&members);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(members.len() >= 2, "the shell and its child: {members:?}");
        assert!(members.contains(&child.id()) && !members.contains(&std::process::id()));
        assert!(used.total_ns > 1_000_000, "60,000 turns take more than a millisecond: {used:?}");
        assert!(memory.iter().all(|one| one.rss >= one.pss && one.name == "sh"), "{memory:?}");
        assert!(process_tree(&[child.id()]).is_empty(), "nothing is left of the tree");
    }

    #[test]
    fn ended_threads_do_not_reduce_later_precision() {
        let ms = |ms: u64| ms * 1_000_000;
        let used = |threads: &[(u32, u64)], ticks_ms: u64| ProcessUsage {
            threads: threads.iter().map(|&(id, at)| (id, (at, 0, 0))).collect(),
            ticks_ns: ms(ticks_ms),
            ..ProcessUsage::default()
        };
        let reading = |used: ProcessUsage| UsageReading(HashMap::from([(1, used)]));
        // A thread has ended before the first reading: in both readings the ticks exceed the remaining
        // clocks.
        let before = reading(used(&[(7, ms(3))], 500));
        assert_eq!(reading(used(&[(7, ms(9) + 5)], 500)).since(&before).total_ns, ms(6) + 5);
        // A thread ends between the readings: only the ticks show its usage.
        let after = reading(used(&[(8, ms(1))], 560));
        assert_eq!(after.since(&before).total_ns, ms(60));
        assert_eq!(after.since_start().total_ns, ms(560));
    }

    #[test]
    fn usage_of_an_ended_child_counts_from_the_first_reading() {
        let ms = |ms: u64| ms * 1_000_000;
        let used = |parent: u32, ticks_ms: u64, reaped_ms: u64| ProcessUsage {
            parent,
            ticks_ns: ms(ticks_ms),
            system_ns: ms(reaped_ms / 2),
            reaped_ns: ms(reaped_ms),
            ..ProcessUsage::default()
        };
        // A worker that has run for a minute, including ten seconds of a grandchild.
        let old = ProcessUsage { system_ns: ms(35_000), ..used(1, 60_000, 10_000) };
        let before = UsageReading(HashMap::from([(1, used(0, 0, 4_000)), (2, old)]));
        // The worker uses 300 ms more and ends; its whole usage is added to its parent's.
        let after = UsageReading(HashMap::from([(1, used(0, 0, 74_300))]));
        let cpu = after.since(&before);
        assert_eq!((cpu.total_ns, cpu.system_ns), (ms(300), ms(150)));
        // A child that was not waited for is not part of its parent's usage: nothing is subtracted.
        let after = UsageReading(HashMap::from([(1, used(0, 0, 4_000))]));
        assert_eq!(after.since(&before).total_ns, 0);
    }

    /// Parses seconds from text such as `0m1.250000s`.
    fn seconds(text: &str) -> f64 {
        let (minutes, rest) = text.split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + rest.trim_end_matches('s').parse::<f64>().unwrap()
    }

    #[test]
    fn cpu_time_matches_that_reported_by_the_process() {
        let script = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; times; read x";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut reported = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut reported, &mut line).unwrap();
        let ours_s = read_usage(&[child.id()]).since_start().total_ns as f64 / 1e9;
        drop(child.stdin.take());
        child.wait().unwrap();
        let reported_s: f64 = line.split_ascii_whitespace().map(seconds).sum();
        // Tolerance for the shell's work between the two readings and for the clock's resolution.
        assert!((ours_s - reported_s).abs() < 0.02 * reported_s + 0.02, "{ours_s} against {reported_s}");
    }
}
