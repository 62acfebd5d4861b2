//! The memory budget, and the return of free memory to the system.

use std::fs;
use std::path::{Path, PathBuf};

use mimalloc as _;

/// Minimum of the default budget, in bytes.
const SHARE_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Below this budget, in bytes, free memory is returned soon and the process uses no huge pages.
const SMALL_BYTES: u64 = 256 * 1024 * 1024;

/// Creates a budget of `bytes_max`, or of a share of the available memory. With a small budget, free memory
/// is returned to the system soon, and huge pages are disabled: each thread's first buffer of a size would
/// occupy a huge page of 2 MiB, however few bytes are counted. Programs started later do not inherit this
/// setting.
pub(crate) fn budget(bytes_max: Option<u64>) -> net::MemoryBudget {
    let bytes_max = bytes_max.unwrap_or_else(quarter);
    if bytes_max < SMALL_BYTES {
        set_short_purge_delay();
        // If the kernel does not support this, more memory is resident than necessary.
        apps::switch_off_huge_pages();
    }
    net::MemoryBudget::new(bytes_max)
}

/// Returns a quarter of the machine's memory, or of the control group's limit if that is lower, in bytes; at least 16 MiB.
/// `limits.memory` is this by default.
pub fn quarter() -> u64 {
    quarter_at(Path::new("/"))
}

fn quarter_at(system: &Path) -> u64 {
    let machine = machine_bytes(system).into_iter();
    let available = machine.chain(cgroup_limits(system)).min().unwrap_or(u64::MAX);
    (available / 4).max(SHARE_BYTES_MIN)
}

fn machine_bytes(system: &Path) -> Option<u64> {
    let text = fs::read_to_string(system.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory limits of this process's control groups and their ancestors, versions 1 and 2.
fn cgroup_limits(system: &Path) -> Vec<u64> {
    let text = fs::read_to_string(system.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            of if of.split(',').any(|one| one == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mount = system.join(mount);
        // In a container the path may be that of the host, so that only the mount point exists.
        let group: PathBuf = mount.join(path.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
        let limit = |group: &Path| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        limits.extend(groups.filter_map(limit));
    }
    limits
}

/// `mi_option_purge_delay` of mimalloc 3: milliseconds for which the allocator keeps free memory before it
/// returns it to the system.
const PURGE_DELAY_OPTION: i32 = 15;
/// Purge delay for small budgets, in milliseconds. With mimalloc's default of one second, buffers freed one
/// after the other in a burst stay resident together, 20 MB and more beyond the budget. Larger budgets keep
/// the default, because 10 ms cost a third of a page fault per proxied request with 1,000 connections.
const PURGE_DELAY_MS: i64 = 10;

/// Makes the allocator return free memory after [`PURGE_DELAY_MS`], unless `MIMALLOC_PURGE_DELAY` is set.
#[allow(unsafe_code)]
fn set_short_purge_delay() {
    unsafe extern "C" {
        fn mi_option_set_default(option: i32, value: std::ffi::c_long);
    }
    // SAFETY: a function of mimalloc that stores a number.
    unsafe { mi_option_set_default(PURGE_DELAY_OPTION, PURGE_DELAY_MS) };
}

/// Returns memory that the allocator caches for this thread to the system.
#[allow(unsafe_code)]
pub(crate) fn release_cached() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: a function of mimalloc that may be called at any time; it does not access memory in use.
    unsafe { mi_collect(true) };
}

/// Unmaps the program's code, much of which only the start needs. The kernel maps what runs
/// again, from the page cache. Does nothing for a traced process, whose breakpoints would be lost.
#[allow(unsafe_code)]
pub fn unmap_start_code() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_traced = !status.lines().any(|line| line.split_whitespace().eq(["TracerPid:", "0"]));
    let Ok(program) = fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for (start, len) in code_ranges(&maps, &program).filter(|_| !is_traced) {
        let start = std::ptr::without_provenance_mut(start);
        // SAFETY: these are pages of a file, mapped privately without the right to write, so that the kernel reads them
        // again as they were; nobody can write to the file of a running program.
        let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxDontNeed) };
    }
}

/// Start and length of the mappings of `program` that can be executed and not written.
fn code_ranges<'m>(maps: &'m str, program: &'m Path) -> impl Iterator<Item = (usize, usize)> + 'm {
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        let (rights, rest) = rest.split_once(' ')?;
        // Offset, device and inode precede the path, which may contain spaces.
        let path = rest.splitn(4, ' ').nth(3)?.trim_start();
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        (rights == "r-xp" && Path::new(path) == program).then_some((start, end.checked_sub(start)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_own_code_is_unmapped() {
        let maps = "\
5000-6000 r--p 00000000 fe:01 12 /usr/bin/a server
6000-9000 r-xp 00001000 fe:01 12                         /usr/bin/a server
9000-a000 rwxp 00004000 fe:01 12                         /usr/bin/a server
a000-b000 r-xp 00000000 fe:01 13                         /usr/lib/libc.so.6
b000-c000 r-xp 00000000 00:00 0
ffff-fffff r-xp 00000000 00:00 0                  [vdso]
";
        let ranges: Vec<_> = code_ranges(maps, Path::new("/usr/bin/a server")).collect();
        assert_eq!(ranges, [(0x6000, 0x3000)]);
        // The test itself goes on.
        unmap_start_code();
        assert!(
            code_ranges(
                &fs::read_to_string("/proc/self/maps").unwrap(),
                &fs::read_link("/proc/self/exe").unwrap()
            )
            .count()
                >= 1
        );
    }

    const MIB: u64 = 1024 * 1024;

    struct System(PathBuf);

    impl System {
        fn new(name: &str, files: &[(&str, &str)]) -> System {
            let path = std::env::temp_dir().join(format!("komainu-memory-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            System(path)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn return_soon_sets_the_purge_delay_of_mimalloc() {
        unsafe extern "C" {
            fn mi_option_get(option: i32) -> std::ffi::c_long;
        }
        // SAFETY: a function of mimalloc that reads a number.
        let delay_ms = || unsafe { mi_option_get(PURGE_DELAY_OPTION) };
        // Only this option is 1,000 by default, so a release of mimalloc that renumbers them fails here.
        assert!([1_000, PURGE_DELAY_MS].contains(&delay_ms()));
        set_short_purge_delay();
        assert_eq!(delay_ms(), PURGE_DELAY_MS);
    }

    #[test]
    fn memory_budget_is_a_quarter_of_the_smallest_limit() {
        let machine = ("proc/meminfo", "MemTotal:        4194304 kB\nMemFree: 1 kB\n");
        let two = ("proc/self/cgroup", "0::/system.slice/komainu.service\n");
        let one = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n");
        for (name, want, files) in [
            ("machine", 1024, vec![machine]),
            ("none", 1024, vec![machine, two]),
            (
                "own",
                512,
                vec![machine, two, ("sys/fs/cgroup/system.slice/komainu.service/memory.max", "2147483648\n")],
            ),
            (
                "above",
                256,
                vec![
                    machine,
                    two,
                    ("sys/fs/cgroup/system.slice/komainu.service/memory.max", "max\n"),
                    ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
                ],
            ),
            ("one", 128, vec![machine, one, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")]),
            (
                "unlimited",
                1024,
                vec![machine, one, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")],
            ),
            (
                "small",
                16,
                vec![machine, two, ("sys/fs/cgroup/system.slice/komainu.service/memory.max", "67108864\n")],
            ),
        ] {
            let system = System::new(name, &files);
            assert_eq!(quarter_at(&system.0) / MIB, want, "{name}");
        }
    }

    #[test]
    fn releasing_memory_keeps_allocations_intact() {
        let kept = vec![1_u8; 1 << 20];
        drop(vec![2_u8; 1 << 20]);
        release_cached();
        assert!(kept.iter().all(|&byte| byte == 1));
    }
}
