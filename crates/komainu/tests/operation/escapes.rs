//! Sandboxed applications that try to look into other processes, or to get around their sandbox by the kernel.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::libc;

use crate::hosted::{is_alive, kill, modules, only, ready, status};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, is_root};
use crate::sandbox::{application, application_at, ask, assert_refused, hex, kernel_has_landlock};

/// A process of the application's user that is killed on drop.
struct Bystander(Child);

impl Bystander {
    fn start(user: u32) -> Bystander {
        let mut command = Command::new("sleep");
        if is_root() {
            command.uid(user).gid(user);
        }
        Bystander(command.arg("600").spawn().unwrap())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Sandboxes that restrict reading, and those that do not.
const SANDBOXES: [&str; 2] = ["[apps.shop.sandbox]\n", "[apps.shop.sandbox]\nread = []\n"];

/// Calls that administer the machine or look into processes, with arguments for which the kernel itself has
/// another answer than EPERM, or none.
fn administration(server: u64) -> Vec<(libc::c_long, String)> {
    let space = "s".repeat(256);
    let calls = [
        // PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE.
        (libc::SYS_ptrace, "0,0,0,0".to_owned()),
        (libc::SYS_ptrace, format!("16,{server},0,0")),
        (libc::SYS_ptrace, format!("16902,{server},0,0")),
        (libc::SYS_process_vm_readv, format!("{server},0,0,0,0,0")),
        (libc::SYS_process_vm_writev, format!("{server},0,0,0,0,0")),
        (libc::SYS_process_vm_readv, format!("{server},0,0,0,0,1")),
        (libc::SYS_io_uring_setup, format!("1,{space}")),
        (libc::SYS_io_uring_enter, "-1,0,0,0,0,0".to_owned()),
        (libc::SYS_io_uring_register, "-1,0,0,0".to_owned()),
        (libc::SYS_bpf, "0,0,100000".to_owned()),
        (libc::SYS_keyctl, "0,-1,0".to_owned()),
        (libc::SYS_keyctl, "9999".to_owned()),
        (libc::SYS_add_key, "0,0,0,0,-1".to_owned()),
        (libc::SYS_request_key, "0,0,0,0".to_owned()),
        (libc::SYS_userfaultfd, "-1".to_owned()),
        (libc::SYS_open_by_handle_at, format!("-100,{space},0")),
        (libc::SYS_mount, "none,/nonexistent,tmpfs,0,0".to_owned()),
        (libc::SYS_umount2, "/nonexistent,-1".to_owned()),
        (libc::SYS_open_tree, "-100,/nonexistent,0".to_owned()),
        (libc::SYS_unshare, "0".to_owned()),
        // CLONE_NEWUSER, CLONE_NEWNS.
        (libc::SYS_unshare, "268435456".to_owned()),
        (libc::SYS_unshare, "131072".to_owned()),
        (libc::SYS_setns, "-1,0".to_owned()),
        (libc::SYS_perf_event_open, format!("{space},0,-1,-1,-1")),
        (libc::SYS_chroot, "/nonexistent".to_owned()),
        (libc::SYS_kcmp, format!("{server},{server},99,0,0")),
        (libc::SYS_pidfd_getfd, "-1,0,0".to_owned()),
        (libc::SYS_process_madvise, "-1,0,0,0,0".to_owned()),
    ];
    calls.into()
}

#[test]
fn a_sandboxed_application_does_not_look_into_its_server() {
    if !kernel_has_landlock() {
        return;
    }
    for kind in rig::kinds() {
        for sandbox in SANDBOXES {
            let rig = application(Folder::new(), kind, sandbox);
            let server = status(&rig)["pid"].as_u64().unwrap();
            let bystander = Bystander::start(if kind.contains("65534") { 65534 } else { 0 });
            for (number, arguments) in administration(server) {
                assert_refused(&rig, &[(number, &arguments)]);
            }
            // The application sees its own process in the same way.
            for name in ["environ", "maps", "mem", "fd/0", "root/etc/passwd"] {
                assert_eq!(ask(&rig, "read", &format!("/proc/self/{name}")), "yes", "{name}");
            }
            for pid in [server, u64::from(rig.child.id()), u64::from(bystander.0.id())] {
                for name in ["environ", "maps", "mem", "fd/0", "root/etc/passwd", "cwd/."] {
                    for path in [format!("/proc/{pid}/{name}"), format!("/proc/{pid}/task/{pid}/{name}")] {
                        if fs::symlink_metadata(&path).is_ok() {
                            let said = ask(&rig, "read", &path);
                            assert!(said.starts_with("no: "), "{kind}{sandbox}{path}: {said}");
                        }
                    }
                }
            }
            for path in ["sys/kernel/core_pattern", "sys/kernel/randomize_va_space", "self/oom_score_adj"] {
                let said = ask(&rig, "write", &format!("/proc/{path}"));
                assert!(said.starts_with("no: Permission denied"), "{kind}{sandbox}{path}: {said}");
            }
        }
    }
}

/// Capabilities that reach past a sandbox are dropped where the application runs as root.
#[test]
fn a_sandboxed_application_of_root_keeps_few_capabilities() {
    if !kernel_has_landlock() {
        return;
    }
    for kind in rig::kinds() {
        let rig = application(Folder::new(), kind, SANDBOXES[0]);
        let worker = ready(&rig, 1)[0];
        let shown = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let set = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, NET_BIND_SERVICE.
        let kept = [0, 1, 3, 5, 6, 7, 10].iter().fold(0, |bits, bit| bits | 1 << bit);
        for name in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"] {
            assert_eq!(set(name) & !kept, 0, "{kind}{name}");
        }
    }
}

/// A program in anonymous memory has no path that a sandbox could refuse: it runs, within the sandbox.
#[test]
fn a_program_in_memory_stays_in_the_sandbox() {
    if !kernel_has_landlock() {
        return;
    }
    for kind in rig::kinds() {
        for read in ["", "read = []\n"] {
            let folder = Folder::new();
            let at = |name: &str| folder.at(name).display().to_string();
            let (own, other) = (at("own/b"), at("other/b"));
            let sandbox = format!("[apps.shop.sandbox]\n{read}write = [\"{}\"]\n", at("own"));
            let rig = application(folder, kind, &sandbox);
            let server = status(&rig)["pid"].as_u64().unwrap();
            let commands = format!(
                "exec 2>/dev/null; (: > {own}) && echo own; (: > {other}) && echo other; \
                 kill -0 {server} && echo signals; (: < /proc/{server}/environ) && echo reads; echo done"
            );
            assert_eq!(ask(&rig, "anonymous", &hex(&commands)), "own\ndone\n", "{kind}{read}");
        }
    }
}

/// Landlock confines connections to abstract sockets from Linux 6.12 on.
#[test]
fn a_sandboxed_application_does_not_connect_to_abstract_sockets() {
    if !kernel_has_landlock() {
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|part: char| !part.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap());
    if (numbers.next().unwrap(), numbers.next().unwrap()) < (6, 12) {
        return eprintln!("SKIPPED: this kernel does not confine abstract sockets");
    }
    let name = format!("komainu-test-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    for kind in rig::kinds() {
        let free = application(Folder::new(), kind, "");
        assert_eq!(ask(&free, "abstract", &name), "yes");
        for sandbox in SANDBOXES {
            let rig = application(Folder::new(), kind, sandbox);
            let said = ask(&rig, "abstract", &name);
            assert!(said.starts_with("no: Operation not permitted"), "{kind}{sandbox}: {said}");
        }
    }
}

/// Executes its arguments as on a kernel without Landlock: landlock_create_ruleset(2) fails with the first one.
const WITHOUT_LANDLOCK: &str = "import ctypes, os, struct, sys
filter = ctypes.create_string_buffer(
    struct.pack('HBBI', 0x20, 0, 0, 0) + struct.pack('HBBI', 0x15, 0, 1, 444)
    + struct.pack('HBBI', 0x06, 0, 0, 0x50000 + int(sys.argv[1])) + struct.pack('HBBI', 0x06, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 4, ctypes.addressof(filter)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn an_application_does_not_start_without_its_sandbox() {
    for kind in rig::kinds() {
        // ENOSYS, EOPNOTSUPP where it is switched off, EPERM in some containers.
        for errno in [libc::ENOSYS, libc::EOPNOTSUPP, libc::EPERM] {
            let folder = Folder::new();
            folder.write("app.psgi", "sub { [200, [], ['runs']] }");
            let app = only("psgi = \"app.psgi\"\nworkers = 1\n[apps.shop.sandbox]\n");
            let fixed = "[[route]]\npath = \"/fixed\"\nrespond = \"fixed\"\n";
            folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{kind}{fixed}{app}"));
            let mut command = Command::new("python3");
            command.args(["-c", WITHOUT_LANDLOCK, &errno.to_string(), env!("CARGO_BIN_EXE_komainu")]);
            command.args(["start", "-c"]).arg(folder.at("komainu.toml")).env("KOMAINU_WORKERS", modules());
            let rig = Rig::start(command, folder);
            rig.get("/fixed").expect(200, "fixed");
            rig.expect_report("this kernel has no Landlock: remove `sandbox` of this application");
            let refused = rig.get("/");
            assert!(refused.status() >= 500, "{}", refused.text());
        }
    }
}

/// A process that a sandboxed application has left behind outlives its server, which is killed, and tries to
/// control the next server of the same user.
#[test]
fn a_sandboxed_orphan_does_not_control_the_next_server() {
    if !kernel_has_landlock() {
        return;
    }
    for kind in rig::kinds() {
        let folder = Folder::new();
        let own = folder.at("own").display().to_string();
        let sandbox = format!("[apps.shop.sandbox]\nread = []\nwrite = [\"{own}\"]\n");
        let mut first = application(folder, kind, &sandbox);
        let orphan: u32 = ask(&first, "orphan", &own).parse().unwrap();
        let killed = [status(&first)["pid"].as_u64().unwrap() as u32, first.child.id()];
        // A server ends what its applications have left behind when its supervisor is gone, and the other way round.
        first.signal("-STOP");
        assert!(kill(killed[0], "-KILL"));
        first.child.kill().unwrap();
        first.ended();
        eventually("it belongs to no server", || parent(orphan).is_some_and(|pid| !killed.contains(&pid)));
        let next = Folder::new();
        let run = next.at("run");
        let second = application_at(Some(&run), next, kind, &sandbox);
        let socket = run.join(format!("{}.sock", second.child.id()));
        first.folder.write("own/go.new", socket.display().to_string());
        fs::rename(first.folder.at("own/go.new"), first.folder.at("own/go")).unwrap();
        let said = first.folder.at("own/said");
        eventually("it has tried", || said.exists());
        let said = fs::read_to_string(said).unwrap();
        // Below a supervisor the socket is root's.
        let is_single = kind == rig::as_we_are();
        let refusal = if is_single {
            "is in a sandbox: it may not control this server"
        } else {
            "no: Permission denied"
        };
        assert!(said.contains(refusal), "{kind}: {said}");
        eventually("it has ended", || !is_alive(orphan));
        assert_eq!(ask(&second, "own", ""), "yes", "the next server serves");
    }
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
