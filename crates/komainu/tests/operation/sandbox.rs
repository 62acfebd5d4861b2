//! Restrictions on the server's threads and on processes of applications.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nix::libc;

use crate::hosted;
use crate::hosted::{modules, only, ready, status};
use crate::rig::{Folder, Rig, as_we_are, eventually, is_root, komainu, text};

/// The `Seccomp` line in the status of each thread whose name starts with `name`; 2 means a filter is active.
fn seccomp(pid: u32, name: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
        };
        field("Name")?.starts_with(name).then(|| field("Seccomp")).flatten()
    };
    threads.filter_map(|thread| of(thread.unwrap().path())).collect()
}

pub(crate) fn kernel_has_landlock() -> bool {
    let rig = Rig::files(&[("a", "A")]);
    let has = status(&rig)["sandbox"].as_str().unwrap().starts_with("Landlock");
    if !has {
        eprintln!("SKIPPED: this kernel has no Landlock");
    }
    has
}

#[test]
fn serving_threads_are_sandboxed_unless_disabled() {
    for (more, filtered, said) in [("", "2", "seccomp"), ("sandbox = false\n", "0", "off")] {
        let folder = Folder::new();
        folder.write("www/a", "A");
        folder.write(
            "komainu.toml",
            format!(
                r#"
                listen = "127.0.0.1:0"
                threads = 2
                {more}
                {}
                [[route]]
                files = "www"
                "#,
                as_we_are()
            ),
        );
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        rig.get("/a").expect(200, "A");
        let pid = status(&rig)["pid"].as_u64().unwrap() as u32;
        let threads = seccomp(pid, "komainu-");
        // The log's thread also has such a name and is not restricted, because it opens logs.
        let serving = threads.iter().filter(|value| *value == filtered).count();
        assert!(serving >= 2, "{threads:?}");
        assert!(status(&rig)["sandbox"].as_str().unwrap().contains(said), "{}", status(&rig));
        let shown = komainu().args(["status", "--pid", &rig.child.id().to_string()]).output().unwrap();
        assert!(text(&shown.stdout).contains("sandbox of the serving threads: "), "{}", text(&shown.stdout));
        // Threads that start workers and open logs are not restricted, so that workers do not inherit a
        // filter.
        assert_eq!(seccomp(pid, "supervise").len() + seccomp(pid, "signals").len(), 1);
        assert_eq!(seccomp(pid, "signals"), ["0"]);
    }
}

/// An application that performs the requested action and returns the result.
pub(crate) const APP: &str = r#"
use IO::Socket::INET;
sub {
    my ($what, $where) = $_[0]{QUERY_STRING} =~ /^(\w+)=(.*)$/;
    my $done =
        $what eq 'read' ? do { open(my $f, '<', $where) ? 'yes' : "no: $!" } :
        $what eq 'write' ? do { open(my $f, '>', $where) ? 'yes' : "no: $!" } :
        $what eq 'connect' ? do { IO::Socket::INET->new(PeerAddr => $where, Timeout => 5) ? 'yes' : "no: $@" } :
        $what eq 'control' ? do {
            require IO::Socket::UNIX;
            my ($socket, $line) = split /;/, $where, 2;
            $line = pack 'H*', $line;
            # As a child, and as an orphan whose parent has ended.
            join '|', map {
                my $forks = $_;
                pipe(my $in, my $out);
                my $pid = fork;
                if (!$pid) {
                    # A refusal may come, and the socket be closed, before the line is written.
                    $SIG{PIPE} = 'IGNORE';
                    for (1 .. $forks) { if (my $child = fork) { exit 0 } }
                    select undef, undef, undef, 0.05 if $forks;
                    require POSIX; POSIX::setsid() if $forks;
                    my $s = IO::Socket::UNIX->new(Peer => $socket);
                    syswrite $s, "$line\n" if $s;
                    my ($all, $piece) = ('', '');
                    $all .= $piece while $s && sysread $s, $piece, 65536;
                    syswrite $out, $s ? $all : "no: $!";
                    POSIX::_exit(0);
                }
                close $out;
                waitpid $pid, 0;
                join '', <$in>;
            } 0, 1 } :
        # Leaves a process behind that connects to the socket named in the file `go`; returns its id.
        $what eq 'orphan' ? do {
            require POSIX; require IO::Socket::UNIX;
            pipe(my $in, my $out);
            my $pid = fork;
            if (!$pid) {
                POSIX::_exit(0) if fork;
                POSIX::setsid();
                syswrite $out, $$;
                close $out;
                $SIG{PIPE} = 'IGNORE';
                for (1 .. 1200) { last if -e "$where/go"; select undef, undef, undef, 0.1 }
                open(my $go, '<', "$where/go") or POSIX::_exit(1);
                my $socket = <$go>;
                my $s = IO::Socket::UNIX->new(Peer => $socket);
                my ($all, $piece) = ($s ? '' : "no: $!", '');
                syswrite $s, "api {\"method\":\"DELETE\",\"path\":\"/v1/config/apps/shop/sandbox\"}\n" if $s;
                $all .= $piece while $s && sysread $s, $piece, 65536;
                open(my $said, '>', "$where/said.new"); syswrite $said, $all; close $said;
                rename "$where/said.new", "$where/said";
                POSIX::_exit(0);
            }
            close $out;
            waitpid $pid, 0;
            sysread $in, my $number, 20;
            $number } :
        $what eq 'signal' ? do {
            my ($number, $pid) = split /;/, $where;
            kill($number, $pid) ? 'yes' : "no: $!" } :
        $what eq 'own' ? do { my $pid = fork // die; if (!$pid) { sleep 60; exit }
            my $done = kill('TERM', $pid) ? 'yes' : "no: $!"; waitpid $pid, 0; $done } :
        $what eq 'call' ? do {
            my ($number, @arguments) = split /,/, $where;
            my $result = syscall($number, map { /^-?\d+$/ ? $_ + 0 : "$_" } @arguments);
            my $error = "$!";
            # The child of a clone(2) that worked.
            if ($number == $ENV{CLONE} && $result == 0) { require POSIX; POSIX::_exit(0) }
            $result < 0 ? "no: $error" : 'yes' } :
        # Runs shell commands by a copy of the shell in a file without a path.
        $what eq 'anonymous' ? do {
            my ($commands, $name) = (pack('H*', $where), 'shell');
            my $number = syscall($ENV{MEMFD}, $name, 0);
            open(my $memory, '>&=', $number) or die;
            open(my $shell, '<', '/bin/sh') or die;
            local $/;
            print {$memory} <$shell>;
            $memory->flush;
            my $pid = open(my $out, '-|') // die;
            if (!$pid) {
                exec { "/proc/self/fd/$number" } 'sh', '-c', $commands;
                syswrite STDOUT, "no: $!";
                require POSIX; POSIX::_exit(0);
            }
            <$out> } :
        $what eq 'abstract' ? do {
            require Socket;
            socket(my $s, Socket::AF_UNIX(), Socket::SOCK_STREAM(), 0) or die;
            connect($s, Socket::pack_sockaddr_un("\0$where")) ? 'yes' : "no: $!" } :
        $what eq 'variable' ? $ENV{$where} // '' :
        $what eq 'start' ? do { system('true') == 0 ? 'yes' : "no: $!" } :
        $what eq 'file' ? do { open my $f, '<', $where or die; return [200, ['Content-Length', -s $f], $f] } : 'what?';
    [200, ['Content-Length', length $done], [$done]]
}
"#;

pub(crate) fn application(folder: Folder, kind: &str, sandbox: &str) -> Rig {
    application_at(None, folder, kind, sandbox)
}

/// Like [`application`], with a directory for the control socket.
pub(crate) fn application_at(runtime: Option<&Path>, folder: Folder, kind: &str, sandbox: &str) -> Rig {
    folder.write("app/app.psgi", APP).write("app/file", "hello").write("own/a", "a").write("other/a", "a");
    for name in ["own", "other"] {
        fs::set_permissions(folder.at(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let app = only(&format!(
        r#"
        psgi = "app/app.psgi"
        workers = 1
        env = {{ CLONE = "{}", MEMFD = "{}" }}
        {sandbox}
        "#,
        libc::SYS_clone,
        libc::SYS_memfd_create
    ));
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{kind}{app}"));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    command.envs(runtime.map(|path| ("RUNTIME_DIRECTORY", path)));
    Rig::start(command, folder)
}

/// Result of a system call with these arguments: numbers, and strings without commas.
pub(crate) fn call(rig: &Rig, number: libc::c_long, arguments: &str) -> String {
    ask(rig, "call", &format!("{number},{arguments}"))
}

#[track_caller]
pub(crate) fn assert_refused(rig: &Rig, calls: &[(libc::c_long, &str)]) {
    for (number, arguments) in calls {
        let said = call(rig, *number, arguments);
        assert!(said.starts_with("no: Operation not permitted"), "{number} of {arguments}: {said}");
    }
}

pub(crate) fn ask(rig: &Rig, what: &str, place: &str) -> String {
    let answer = rig.get(&format!("/?{what}={place}"));
    answer.expect_status(200);
    answer.text()
}

#[test]
fn sandboxed_application_has_only_granted_access() {
    if !kernel_has_landlock() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut kinds = vec![as_we_are()];
    if is_root() {
        kinds.push("user = \"65534\"\ngroup = \"65534\"\n");
    }
    for kind in kinds {
        let folder = Folder::new();
        let at = |name: &str| folder.at(name).display().to_string();
        let own = at("own/b");
        let other = at("other/a");
        let sandbox = format!(
            r#"
            [apps.shop.sandbox]
            read = []
            write = ["{}"]
            network = false
            "#,
            at("own")
        );
        let rig = application(folder, kind, &sandbox);
        assert_eq!(ask(&rig, "write", &own), "yes");
        assert_eq!(ask(&rig, "read", &own), "yes");
        assert!(ask(&rig, "write", &other).starts_with("no: Permission denied"));
        assert!(ask(&rig, "read", &other).starts_with("no: Permission denied"));
        assert_eq!(ask(&rig, "read", "/etc/passwd"), "yes");
        assert_eq!(ask(&rig, "write", "/dev/null"), "yes");
        assert_eq!(ask(&rig, "start", ""), "yes");
        assert!(ask(&rig, "connect", &address).starts_with("no: "));
        // The next generation is restricted as well.
        let before = ready(&rig, 1);
        rig.signal("-HUP");
        eventually("another worker answers", || ready(&rig, 1) != before);
        assert!(ask(&rig, "write", &other).starts_with("no: Permission denied"));
    }
}

/// Servers and their applications' users: one that may control the server by its user id, and one that may not.
fn users() -> Vec<(&'static str, &'static str)> {
    let mut users: Vec<_> = crate::rig::kinds().into_iter().map(|kind| (kind, "")).collect();
    if is_root() {
        users.push((users[1].0, "user = \"65533\"\ngroup = \"65533\"\n"));
    }
    users
}

/// An application whose user id would allow it to control the server: it can connect to the control socket,
/// but is refused. One with another user cannot connect.
#[test]
fn an_application_does_not_control_its_server() {
    if !kernel_has_landlock() {
        return;
    }
    for (kind, user) in users() {
        for sandbox in ["[apps.shop.sandbox]\nread = []\nwrite = []\n", ""] {
            for control in ["", "[control]\nlisten = \"unix:control/c.sock\"\n"] {
                control_is_refused(kind, user, sandbox, control);
            }
        }
    }
}

fn control_is_refused(kind: &str, user: &str, sandbox: &str, control: &str) {
    let folder = Folder::new();
    let run = folder.at("run");
    folder.write("app/app.psgi", APP).write("control/nothing", "");
    if kind.contains("65534") {
        chown(folder.at("control"), Some(65534), Some(65534)).unwrap();
    }
    // The build directory may be unreadable for other users, so the modules are copied.
    let copied = std::process::Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
    assert!(copied.unwrap().success());
    let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{user}{sandbox}"));
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{kind}{control}{app}"));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("RUNTIME_DIRECTORY", &run);
    command.env("KOMAINU_WORKERS", folder.at("workers"));
    let rig = Rig::start(command, folder);
    let socket = run.join(format!("{}.sock", rig.child.id()));
    let (socket, line) = if control.is_empty() {
        (socket, "api {\"method\":\"DELETE\",\"path\":\"/v1/config/apps/shop/sandbox\"}")
    } else {
        (
            rig.folder.at("control/c.sock"),
            "DELETE /v1/config/apps/shop/sandbox HTTP/1.1\r\nHost: x\r\nIf-Match: *\r\nConnection: close\r\n\r\n",
        )
    };
    // Below a supervisor the socket is root's.
    let may_connect = user.is_empty() && (kind == as_we_are() || !control.is_empty());
    let refusal = if may_connect { "it may not control this server" } else { "no: Permission denied" };
    let answer = rig.send(&format!(
        "GET /?control={};{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        socket.display(),
        hex(line)
    ));
    let tried: Vec<String> = answer.text().split('|').map(str::to_owned).collect();
    assert_eq!(tried.len(), 2, "{}", answer.text());
    let all = tried.iter().all(|text| text.contains(refusal));
    assert!(all, "{kind}{user}{sandbox}{control}: {tried:?}");
    // A process that is not an application is served.
    let asked = komainu()
        .args(["status", "--pid", &rig.child.id().to_string()])
        .env("RUNTIME_DIRECTORY", &run)
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", text(&asked.stderr));
}

pub(crate) fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_application_signals_its_own_processes_and_no_others() {
    if !kernel_has_landlock() {
        return;
    }
    let mut bystander = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    for kind in crate::rig::kinds() {
        let rig = application(
            Folder::new(),
            kind,
            r"
            [apps.shop.sandbox]
            read = []
            write = []
            ",
        );
        let server = status(&rig)["pid"].as_u64().unwrap() as u32;
        for pid in [server, rig.child.id(), bystander.id()] {
            for number in [19, 15, 0] {
                let said = ask(&rig, "signal", &format!("{number};{pid}"));
                assert!(said.starts_with("no: Operation not permitted"), "{number} to {pid}: {said}");
            }
        }
        assert_eq!(ask(&rig, "own", ""), "yes");
    }
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn application_without_sandbox_has_rights_of_its_user() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let folder = Folder::new();
    let other = folder.at("other/b").display().to_string();
    let file = folder.at("app/file").display().to_string();
    let rig = application(folder, as_we_are(), "");
    assert_eq!(ask(&rig, "write", &other), "yes");
    assert_eq!(ask(&rig, "connect", &address), "yes");
    assert_eq!(ask(&rig, "start", ""), "yes");
    // A descriptor of a worker, which serving threads may not inspect.
    assert_eq!(ask(&rig, "file", &file), "hello");
}

#[test]
fn sandbox_can_restrict_only_writing() {
    if !kernel_has_landlock() {
        return;
    }
    let folder = Folder::new();
    let other = folder.at("other/a").display().to_string();
    let rig = application(folder, as_we_are(), "[apps.shop.sandbox]\n");
    assert_eq!(ask(&rig, "read", &other), "yes");
    assert!(ask(&rig, "write", &other).starts_with("no: Permission denied"));
}

#[test]
fn sandboxed_application_cannot_change_file_attributes() {
    if !kernel_has_landlock() {
        return;
    }
    let folder = Folder::new();
    let other = folder.at("other/a").display().to_string();
    let sandbox = format!("[apps.shop.sandbox]\nwrite = [\"{}\"]\n", folder.at("own").display());
    let rig = application(folder, as_we_are(), &sandbox);
    let here = libc::AT_FDCWD;
    let mode = || fs::metadata(&other).unwrap().permissions().mode() & 0o7777;
    let before = mode();
    assert_refused(
        &rig,
        &[
            (libc::SYS_fchmodat, &format!("{here},{other},511")),
            (452, &format!("{here},{other},511,0")),
            (libc::SYS_fchmod, "0,511"),
            (libc::SYS_fchownat, &format!("{here},{other},-1,-1,0")),
            (libc::SYS_fchown, "0,-1,-1"),
            (libc::SYS_utimensat, &format!("{here},{other},0,0")),
            (libc::SYS_setxattr, &format!("{other},user.a,b,1,0")),
            (libc::SYS_lsetxattr, &format!("{other},user.a,b,1,0")),
            (libc::SYS_fsetxattr, "0,user.a,b,1,0"),
            (463, &format!("{here},{other},0,user.a,b,1")),
            (libc::SYS_removexattr, &format!("{other},user.a")),
            (libc::SYS_lremovexattr, &format!("{other},user.a")),
            (libc::SYS_fremovexattr, "0,user.a"),
            (466, &format!("{here},{other},0,user.a")),
            (469, &format!("{here},{other},b,1,0")),
            // FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR.
            (libc::SYS_ioctl, "0,1074292226,flags---"),
            (libc::SYS_ioctl, "0,1075599392,attributes------------------"),
        ],
    );
    #[cfg(target_arch = "x86_64")]
    assert_refused(
        &rig,
        &[
            (libc::SYS_chmod, &format!("{other},511")),
            (libc::SYS_chown, &format!("{other},-1,-1")),
            (libc::SYS_lchown, &format!("{other},-1,-1")),
            (libc::SYS_utime, &format!("{other},0")),
            (libc::SYS_utimes, &format!("{other},0")),
            (libc::SYS_futimesat, &format!("{here},{other},0")),
            // The x32 ABI: chmod(2) on kernels that support it.
            (0x4000_0000 + libc::SYS_chmod, &format!("{other},511")),
        ],
    );
    assert_eq!(mode(), before);
}

#[test]
fn sandbox_can_permit_changing_file_attributes() {
    if !kernel_has_landlock() {
        return;
    }
    let rig = application(Folder::new(), as_we_are(), "[apps.shop.sandbox]\nattributes = true\n");
    let own = rig.folder.at("own/a").display().to_string();
    assert_eq!(call(&rig, libc::SYS_fchmodat, &format!("{},{own},384", libc::AT_FDCWD)), "yes");
    assert_eq!(call(&rig, libc::SYS_utimensat, &format!("{},{own},0,0", libc::AT_FDCWD)), "yes");
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn sandboxed_application_cannot_schedule_other_processes() {
    if !kernel_has_landlock() {
        return;
    }
    let mut bystander = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let rig = application(Folder::new(), as_we_are(), "[apps.shop.sandbox]\n");
    let server = status(&rig)["pid"].as_u64().unwrap();
    // Space for a mask, and for the arguments of sched_setattr(2) and sched_setscheduler(2).
    for pid in [server, u64::from(bystander.id())] {
        assert_refused(
            &rig,
            &[
                (libc::SYS_sched_setaffinity, &format!("{pid},8,maskmask")),
                (libc::SYS_sched_setscheduler, &format!("{pid},5,parameters")),
                (libc::SYS_sched_setparam, &format!("{pid},parameters")),
                (libc::SYS_sched_setattr, &format!("{pid},parameters,0")),
                (libc::SYS_setpriority, &format!("0,{pid},5")),
                (libc::SYS_ioprio_set, &format!("1,{pid},16388")),
                (libc::SYS_prlimit64, &format!("{pid},4,0,0")),
            ],
        );
    }
    // All processes of a group, and all of a user.
    assert_refused(&rig, &[(libc::SYS_setpriority, "1,0,5"), (libc::SYS_setpriority, "2,0,5")]);
    assert_refused(&rig, &[(libc::SYS_ioprio_set, "2,0,16388"), (libc::SYS_ioprio_set, "3,0,16388")]);
    assert_eq!(call(&rig, libc::SYS_setpriority, "0,0,5"), "yes");
    assert_eq!(call(&rig, libc::SYS_ioprio_set, "1,0,16388"), "yes");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn sandboxed_application_cannot_create_namespaces_or_use_ipc() {
    if !kernel_has_landlock() {
        return;
    }
    let rig = application(Folder::new(), as_we_are(), "[apps.shop.sandbox]\n");
    for flag in [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ] {
        assert_refused(&rig, &[(libc::SYS_clone, &format!("{},0,0,0,0", flag | libc::SIGCHLD))]);
    }
    let hidden = call(&rig, libc::SYS_clone3, "arguments,64");
    assert!(hidden.starts_with("no: Function not implemented"), "{hidden}");
    assert_refused(
        &rig,
        &[
            (libc::SYS_shmget, "0,4096,896"),
            (libc::SYS_kcmp, "1,1,0,0,0"),
            (libc::SYS_pidfd_getfd, "0,0,0"),
            (libc::SYS_shmat, "0,0,0"),
            (libc::SYS_shmctl, "0,0,0"),
            (libc::SYS_semget, "0,1,896"),
            (libc::SYS_semop, "0,0,0"),
            (libc::SYS_semtimedop, "0,0,0,0"),
            (libc::SYS_semctl, "0,0,0,0"),
            (libc::SYS_msgget, "0,896"),
            (libc::SYS_msgsnd, "0,message,0,0"),
            (libc::SYS_msgrcv, "0,message,0,0,0"),
            (libc::SYS_msgctl, "0,0,0"),
            (libc::SYS_mq_open, "queue,66,384,0"),
            (libc::SYS_mq_unlink, "queue"),
        ],
    );
    // Processes can still be started.
    assert_eq!(ask(&rig, "start", ""), "yes");
    assert_eq!(ask(&rig, "own", ""), "yes");
}

/// The application replaces a directory of its sandbox, inside a writable one, by a symbolic link to another
/// user's directory.
#[test]
fn an_application_does_not_widen_its_sandbox_by_a_link() {
    if !kernel_has_landlock() {
        return;
    }
    for (granted, more) in
        [("read", ""), ("write", ""), ("read", "preload = false\n"), ("write", "preload = false\n")]
    {
        let folder = Folder::new();
        let own = folder.at("own").display().to_string();
        let conf = folder.at("own/conf");
        folder.write("own/conf/a", "a");
        let in_list =
            |list: &str| if list == granted { format!("\"{}\"", conf.display()) } else { String::new() };
        let sandbox = format!(
            r#"
            {more}
            [apps.shop.sandbox]
            read = [{}]
            write = ["{own}", {}]
            "#,
            in_list("read"),
            in_list("write")
        );
        let rig = application(folder, as_we_are(), &sandbox);
        let secret = rig.folder.at("other/a").display().to_string();
        assert!(ask(&rig, "read", &secret).starts_with("no: Permission denied"));
        fs::remove_dir_all(&conf).unwrap();
        std::os::unix::fs::symlink("../other", &conf).unwrap();
        // By a reload, and by the start of another worker.
        let reloaded = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
        let said = text(&reloaded.stderr);
        assert!(
            !reloaded.status.success() && said.contains("leads through a symbolic link"),
            "{granted}: {said}"
        );
        let before = ready(&rig, 1);
        assert!(hosted::kill(before[0], "-KILL"));
        eventually("the start is refused, or a prototype forks another worker", || {
            let workers = hosted::workers(&rig);
            rig.reported().matches("leads through a symbolic link").count() > 1
                || (!workers.is_empty() && workers != before)
        });
        let checked =
            hosted::server().args(["check", "-c"]).arg(rig.folder.at("komainu.toml")).output().unwrap();
        assert!(text(&checked.stderr).contains("leads through a symbolic link"), "{}", text(&checked.stderr));
        let answer = rig.get(&format!("/?read={secret}"));
        assert!(answer.status() != 200 || answer.text().starts_with("no: "), "{granted}: {}", answer.text());
    }
}

/// Another application has planted a symbolic link in place of a directory that a sandbox grants.
#[test]
fn an_application_does_not_widen_the_sandbox_of_another() {
    let folder = Folder::new();
    folder.write("app/app.psgi", APP).write("shared/a", "a").write("other/a", "a");
    std::os::unix::fs::symlink("../other", folder.at("shared/conf")).unwrap();
    let at = |name: &str| folder.at(name).display().to_string();
    let reader = only(&format!(
        r#"
        psgi = "app/app.psgi"
        [apps.shop.sandbox]
        read = ["{}"]
        "#,
        at("shared/conf")
    ));
    let check = |others: &str| {
        folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{reader}{others}"));
        hosted::server().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap()
    };
    let alone = check("");
    assert!(alone.status.success(), "{}", text(&alone.stderr));
    let writer = format!(
        r#"
        [apps.writer]
        psgi = "app/app.psgi"
        [apps.writer.sandbox]
        write = ["{}"]
        "#,
        at("shared")
    );
    let refused = text(&check(&writer).stderr);
    assert!(refused.contains("leads through a symbolic link"), "{refused}");
}

/// The interpreter's directory is granted with it, so a symbolic link to an interpreter elsewhere, in a
/// directory that the application may write to, is rejected.
#[test]
fn an_application_does_not_widen_its_sandbox_by_its_interpreter() {
    let folder = Folder::new();
    folder.write("app/app.psgi", APP).write_program("other/bin/perl", "#!/bin/sh\n").write("own/bin/a", "");
    let at = |name: &str| folder.at(name).display().to_string();
    let app = only(&format!(
        r#"
        psgi = "app/app.psgi"
        interpreter = "{}"
        [apps.shop.sandbox]
        read = []
        write = ["{}"]
        "#,
        at("own/bin/perl"),
        at("own")
    ));
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{app}"));
    for (target, is_refused) in [("/usr/bin/perl", false), ("../../other/bin/perl", true)] {
        let _ = fs::remove_file(folder.at("own/bin/perl"));
        std::os::unix::fs::symlink(target, folder.at("own/bin/perl")).unwrap();
        let checked = hosted::server().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
        let said = text(&checked.stderr);
        assert_eq!(said.contains("leads through a symbolic link"), is_refused, "{target}: {said}");
        assert_eq!(checked.status.success(), !is_refused, "{target}: {said}");
    }
}

/// Covers symbolic links to directories that are granted anyway, as in releases and virtual environments.
/// Uploads and large bodies are stored in the temporary directory, which this sandbox does not grant.
#[test]
fn sandboxed_application_has_its_own_temporary_directory() {
    if !kernel_has_landlock() {
        return;
    }
    for sandbox in [
        "[apps.shop.sandbox]\n",
        r"
        [apps.shop.sandbox]
        read = []
        network = false
        ",
    ] {
        let rig = application(Folder::new(), as_we_are(), sandbox);
        let folder = ask(&rig, "variable", "TMPDIR");
        assert!(folder.contains("/komainu-app-") && folder.ends_with("-shop"), "{folder}");
        assert_eq!(ask(&rig, "write", &format!("{folder}/a")), "yes");
        assert_eq!(ask(&rig, "read", &format!("{folder}/a")), "yes");
        let above = folder.rsplit_once('/').unwrap().0;
        assert!(ask(&rig, "write", &format!("{above}/komainu-other")).starts_with("no: Permission denied"));
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    let temporary = std::env::temp_dir();
    let sandbox = format!("[apps.shop.sandbox]\nwrite = [\"{}\"]\n", temporary.display());
    let rig = application(Folder::new(), as_we_are(), &sandbox);
    assert!(!ask(&rig, "variable", "TMPDIR").contains("/komainu-app-"));
}

/// Another user has created the directory, or a symbolic link in its place, before the application starts.
#[test]
fn a_temporary_folder_of_another_user_is_not_used() {
    if !kernel_has_landlock() || !is_root() {
        return;
    }
    let folder = Folder::new();
    let base = folder.at("temporary");
    fs::create_dir(&base).unwrap();
    fs::create_dir(base.join("komainu-app-0-shop")).unwrap();
    std::os::unix::fs::chown(base.join("komainu-app-0-shop"), Some(65534), Some(65534)).unwrap();
    folder.write("app/app.psgi", APP).write("own/a", "a").write("other/a", "a");
    let app = only(
        r#"
        psgi = "app/app.psgi"
        workers = 1
        [apps.shop.sandbox]
        "#,
    );
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{}{app}", as_we_are()));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("TMPDIR", &base);
    let rig = Rig::start(command, folder);
    let own = ask(&rig, "variable", "TMPDIR");
    assert!(own.contains("/komainu-app-0-shop-"), "{own}");
    assert_eq!(ask(&rig, "write", &format!("{own}/a")), "yes");
    assert!(ask(&rig, "write", &format!("{}/komainu-app-0-shop/a", base.display())).starts_with("no: "));
}

#[test]
fn links_within_a_sandbox_are_followed() {
    if !kernel_has_landlock() {
        return;
    }
    let folder = Folder::new();
    folder.write("own/releases/1/a", "a").write("data/a", "a");
    std::os::unix::fs::symlink("releases/1", folder.at("own/current")).unwrap();
    std::os::unix::fs::symlink("data", folder.at("linked")).unwrap();
    let at = |name: &str| folder.at(name).display().to_string();
    let read = at("own/current/a");
    let data = at("data/a");
    let sandbox = format!(
        r#"
        [apps.shop.sandbox]
        read = ["{}", "{}"]
        write = ["{}"]
        "#,
        at("own/current"),
        at("linked"),
        at("own")
    );
    let rig = application(folder, as_we_are(), &sandbox);
    assert_eq!(ask(&rig, "read", &read), "yes");
    assert_eq!(ask(&rig, "read", &data), "yes");
}
