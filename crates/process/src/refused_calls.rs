//! Lists of system calls, and seccomp filters that refuse them.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

/// System calls that neither serve requests nor belong in an application: they administer the machine, access
/// other processes, or are known for kernel vulnerabilities.
pub(crate) const ADMINISTRATION: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
];

/// System calls that a serving thread does not need either: starting programs, changing users, sending
/// signals.
pub(crate) const PROCESS_CONTROL: &[libc::c_long] = &[
    libc::SYS_capset,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_kill,
    libc::SYS_mknodat,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
];

/// System calls that change modes, owners, times and extended attributes of files. Those that take a
/// descriptor are included, because one opened for reading suffices.
pub(crate) const ATTRIBUTES: &[libc::c_long] = &[
    FCHMODAT2,
    FILE_SETATTR,
    REMOVEXATTRAT,
    SETXATTRAT,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_setxattr,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
];

/// Numbers of recent system calls, equal on all architectures.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const FILE_SETATTR: libc::c_long = 469;

/// ioctl(2) requests that change file attributes: FS_IOC_SETFLAGS, its 32-bit form, and FS_IOC_FSSETXATTR.
const ATTRIBUTE_REQUESTS: [u64; 3] = [0x4008_6602, 0x4004_6602, 0x401c_5820];

/// System calls for memory, semaphores and message queues that all processes of a user share by number or
/// name, which Landlock does not restrict. shmdt(2) is allowed: it only detaches the process's own memory.
pub(crate) const SHARED_BY_USER: &[libc::c_long] = &[
    libc::SYS_kcmp,
    libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify,
    libc::SYS_mq_open,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmget,
];

/// System calls that change limits or scheduling, with the index of the argument that names the process or
/// thread; 0 is the caller.
const PROCESS_LIMITS: [(libc::c_long, u8); 7] = [
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_setpriority, 1),
];
/// `which` of ioprio_set(2) for a single process; for setpriority(2) that is 0.
const IOPRIO_WHO_PROCESS: u64 = 1;

/// clone(2) flags that create namespaces: in a user namespace a process has all capabilities.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Commands of fcntl(2) and requests of ioctl(2) that make the kernel signal a given process when a
/// descriptor becomes ready: F_SETOWN, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
const OWNER_COMMANDS: [u64; 2] = [8, 15];
const OWNER_REQUESTS: [u64; 2] = [0x8901, 0x8902];

/// System calls that signal other processes, besides kill(2) and tgkill(2).
const SIGNALS: &[libc::c_long] =
    &[libc::SYS_pidfd_send_signal, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_tkill];

/// System calls that a filter refuses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusedCalls<'a> {
    /// System calls refused for all arguments.
    pub(crate) calls: &'a [&'a [libc::c_long]],
    /// Sockets other than Unix sockets.
    pub(crate) network: bool,
    /// Creating namespaces, and changing limits or scheduling of other processes and threads: a limit of CPU
    /// time would end the server. This includes other threads of the caller, whose ids a filter cannot
    /// distinguish.
    pub(crate) other_processes: bool,
    /// Changing file attributes by ioctl(2).
    pub(crate) attributes: bool,
    /// Signals to other processes, for kernels that do not confine them to the sandbox. tgkill(2), by which
    /// threads of one process signal each other, is refused only for these process ids.
    pub(crate) signals_to: Option<&'a [u32]>,
}

type CallRules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Adds a rule that refuses a call by one of its arguments.
fn refuse(
    rules: &mut CallRules,
    call: libc::c_long,
    place: u8,
    op: SeccompCmpOp,
    value: u64,
) -> io::Result<()> {
    let rule = SeccompCondition::new(place, SeccompCmpArgLen::Dword, op, value)
        .and_then(|condition| SeccompRule::new(vec![condition]));
    rules.entry(call).or_default().push(rule.map_err(backend_error)?);
    Ok(())
}

/// Compiles a filter; refused calls fail with EPERM.
pub(crate) fn filter(refused: RefusedCalls<'_>) -> io::Result<BpfProgram> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules = CallRules::new();
    if refused.network {
        refuse(&mut rules, libc::SYS_socket, 0, Ne, u64::try_from(libc::AF_UNIX).unwrap_or_default())?;
    }
    if refused.other_processes {
        for (call, place) in PROCESS_LIMITS {
            refuse(&mut rules, call, place, Ne, 0)?;
        }
        refuse(&mut rules, libc::SYS_setpriority, 0, Ne, 0)?;
        refuse(&mut rules, libc::SYS_ioprio_set, 0, Ne, IOPRIO_WHO_PROCESS)?;
        for flag in NAMESPACES {
            let flag = u64::from(flag.cast_unsigned());
            refuse(&mut rules, libc::SYS_clone, 0, MaskedEq(flag), flag)?;
        }
    }
    if refused.attributes {
        ATTRIBUTE_REQUESTS
            .iter()
            .try_for_each(|number| refuse(&mut rules, libc::SYS_ioctl, 1, Eq, *number))?;
    }
    if let Some(processes) = refused.signals_to {
        // 0 is the caller's own process group.
        refuse(&mut rules, libc::SYS_kill, 0, Ne, 0)?;
        for pid in processes {
            refuse(&mut rules, libc::SYS_tgkill, 0, Eq, u64::from(*pid))?;
        }
        OWNER_COMMANDS.iter().try_for_each(|number| refuse(&mut rules, libc::SYS_fcntl, 1, Eq, *number))?;
        OWNER_REQUESTS.iter().try_for_each(|number| refuse(&mut rules, libc::SYS_ioctl, 1, Eq, *number))?;
        rules.extend(SIGNALS.iter().map(|call| (*call, Vec::new())));
    }
    // A call without rules is refused for all arguments.
    rules.extend(refused.calls.iter().copied().flatten().map(|call| (*call, Vec::new())));
    let mut program = compile(rules, libc::EPERM)?;
    if cfg!(target_arch = "x86_64") {
        program.splice(0..0, X32_PROLOGUE);
    }
    Ok(program)
}

/// A filter that hides clone3(2), because seccomp cannot inspect its flags, which are in memory. The C
/// library falls back to clone(2).
pub(crate) fn clone3_filter() -> io::Result<BpfProgram> {
    compile(CallRules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)
}

fn compile(rules: CallRules, errno: libc::c_int) -> io::Result<BpfProgram> {
    let refusal = SeccompAction::Errno(errno.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().map_err(backend_error)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch).map_err(backend_error)?;
    filter.try_into().map_err(backend_error)
}

fn backend_error(error: seccompiler::BackendError) -> io::Error {
    io::Error::other(format!("seccomp: {error}"))
}

/// Prologue of a filter that refuses the x32 ABI: the same calls with numbers from 0x40000000.
const X32_PROLOGUE: [sock_filter; 3] = [
    // Loads the number of the call.
    sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
    // Skips the next instruction if the number is less.
    sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 },
    // SECCOMP_RET_ERRNO with EPERM.
    sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0001 },
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Makes the kernel signal a process when input arrives.
    const OWNER: &str = "print '8: ', fcntl(STDIN, 8, $ARGV[0]) ? 'done' : $!";

    #[test]
    fn filter_refuses_limits_of_other_processes() {
        use rustix::io::Errno;
        use rustix::process::{Resource, getppid, getrlimit, prlimit, setrlimit};
        let calls = filter(RefusedCalls { other_processes: true, ..RefusedCalls::default() }).unwrap();
        let outcome = std::thread::spawn(move || {
            seccompiler::apply_filter(&calls).unwrap();
            let own = getrlimit(Resource::Core);
            (prlimit(getppid(), Resource::Core, own).err(), setrlimit(Resource::Core, own))
        });
        assert_eq!(outcome.join().unwrap(), (Some(Errno::PERM), Ok(())));
    }

    #[test]
    fn filter_refuses_signals_to_other_processes() {
        use rustix::io::Errno;
        use rustix::process::{Signal, getpid, getppid, kill_process, kill_process_group, test_kill_process};
        let parent = getppid().unwrap();
        let signals_to = [parent.as_raw_pid().cast_unsigned()];
        let calls =
            filter(RefusedCalls { signals_to: Some(&signals_to), ..RefusedCalls::default() }).unwrap();
        let outcome = std::thread::spawn(move || {
            seccompiler::apply_filter(&calls).unwrap();
            let others = [parent, getpid(), rustix::process::Pid::INIT];
            let kill = others.map(|pid| kill_process(pid, Signal::CONT));
            let number = parent.as_raw_pid().to_string();
            let by_kernel = Command::new("perl").args(["-e", OWNER, &number]).output().unwrap();
            (kill, test_kill_process(parent), kill_process_group(parent, Signal::CONT), by_kernel.stdout)
        });
        let (kill, tested, group, by_kernel) = outcome.join().unwrap();
        assert_eq!(String::from_utf8_lossy(&by_kernel), "8: Operation not permitted");
        assert!(kill.iter().all(|outcome| *outcome == Err(Errno::PERM)), "{kill:?}");
        assert_eq!((tested, group), (Err(Errno::PERM), Err(Errno::PERM)));
    }
}
