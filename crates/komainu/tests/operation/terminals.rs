//! Resources that server processes must not inherit from the caller: the terminal, process groups, and open
//! descriptors.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpgid, getsid, pidfd_getfd, pidfd_open};

use crate::hosted;
use crate::hosted::{is_alive, modules, only, status};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, eventually, is_root};

/// Descriptor of the terminal's master side in the server.
const MASTER: i32 = 100;

/// Runs its arguments like a shell at a terminal: with a controlling terminal, in the foreground.
const PROMPT: &str = "import fcntl, os, sys, termios
master, terminal = os.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
os.dup2(terminal, 0)
os.dup2(master, 100)
os.closerange(3, 100)
os.execv(sys.argv[1], sys.argv[1:])
";

/// Tries to inject input into the terminal, to read from it, and to join process groups. Returns what worked.
const APP: &str = r#"
use POSIX ();
sub {
    my ($terminal, @groups) = split /;/, $_[0]{QUERY_STRING};
    my @done;
    for my $path ('/dev/tty', $terminal) {
        next unless $path;
        open(my $tty, '<', $path) and push @done, "opens $path";
        my $key = 'x';
        $tty and ioctl($tty, 0x5412, $key) and push @done, "types at $path";
    }
    for my $number (0 .. 2) {
        my $key = 'x';
        open(my $stream, '<&=', $number) or next;
        ioctl($stream, 0x5412, $key) and push @done, "types at descriptor $number";
    }
    for my $group (@groups) {
        pipe(my $in, my $out);
        my $pid = fork;
        if (!$pid) {
            syswrite $out, "joins $group" if POSIX::setpgid(0, $group) && getpgrp == $group;
            POSIX::_exit(0);
        }
        close $out;
        waitpid $pid, 0;
        my $said = join '', <$in>;
        push @done, $said if $said;
    }
    return [200, [], [join(', ', @done) || 'nothing']];
}
"#;

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

/// Runs `komainu start` with this configuration in a terminal.
fn at_a_prompt(folder: Folder, config: &str) -> Rig {
    // The build directory may be unreadable for other users, so the modules are copied.
    let copied = Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
    assert!(copied.unwrap().success());
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{config}"));
    let mut command = Command::new("python3");
    command
        .args(["-c", PROMPT, env!("CARGO_BIN_EXE_komainu"), "start", "-c"])
        .arg(folder.at("komainu.toml"))
        .env("KOMAINU_WORKERS", folder.at("workers"))
        .envs(rig::server_environment());
    let rig = Rig::start(command, folder);
    assert!(fs::read_link(format!("/proc/{}/fd/0", rig.child.id())).unwrap().starts_with("/dev/pts"));
    rig
}

/// Kinds of servers and applications, as configurations.
fn kinds() -> Vec<(&'static str, &'static str)> {
    let mut kinds = vec![(as_we_are(), ""), (as_we_are(), "preload = false\n")];
    if is_root() {
        let supervised = "user = \"65534\"\ngroup = \"65534\"\n";
        kinds.push((supervised, ""));
        kinds.push((supervised, "user = \"65533\"\ngroup = \"65533\"\n"));
    } else {
        eprintln!("SKIPPED: only root can start a server with a supervisor")
    }
    kinds
}

fn application() -> Folder {
    let folder = Folder::new();
    folder.write("app/app.psgi", APP);
    fs::set_permissions(folder.at("app"), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn application_cannot_reach_terminal_or_process_groups() {
    for (kind, more) in kinds() {
        let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{more}"));
        let rig = at_a_prompt(application(), &format!("{kind}{app}"));
        let server = status(&rig)["pid"].as_u64().unwrap() as u32;
        let groups = [server, rig.child.id()].map(|process| getpgid(Some(pid(process))).unwrap());
        let [mut server_group, supervisor_group] = groups.map(|group| group.as_raw_pid());
        // Below a supervisor, server and application run as the same user in a session without a terminal.
        if kind.contains("65534") && more.is_empty() {
            server_group = supervisor_group;
        }
        let asked = format!("/?;{server_group};{supervisor_group}");
        assert_eq!(rig.get(&asked).expect_status(200).text(), "nothing", "{kind}{more}");
        assert!(!rig.reported().contains("generation 2"), "{}", rig.reported());
    }
}

/// The terminal also has a path, which a sandboxed application of the same user could open by its
/// permissions.
#[test]
fn a_sandboxed_application_does_not_open_the_terminal() {
    for (kind, more) in kinds() {
        let sandbox = "[apps.shop.sandbox]\nread = []\n";
        let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{more}{sandbox}"));
        let rig = at_a_prompt(application(), &format!("{kind}{app}"));
        let terminal = fs::read_link(format!("/proc/{}/fd/0", rig.child.id())).unwrap();
        let user = if more.contains("65533") {
            65533
        } else if kind.contains("65534") {
            65534
        } else {
            0
        };
        if is_root() {
            chown(&terminal, Some(user), None).unwrap();
        }
        let asked = format!("/?{}", terminal.display());
        assert_eq!(rig.get(&asked).expect_status(200).text(), "nothing", "{kind}{more}");
    }
}

#[test]
fn a_cgi_program_does_not_reach_the_terminal() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        folder.write_program(
            "bin/try",
            "#!/bin/sh\necho 'Content-Type: text/plain'\necho\n(: </dev/tty) 2>/dev/null && echo reached\necho done\n",
        );
        let rig = at_a_prompt(
            folder,
            &format!(
                r#"
                {kind}
                [[route]]
                path = "/bin/*"
                cgi = "bin"
                "#
            ),
        );
        let said = rig.get("/bin/try").expect_status(200).text();
        assert!(said.contains("done") && !said.contains("reached"), "{kind}: {said}");
    }
}

#[test]
fn interrupt_at_the_terminal_stops_server_and_workers() {
    for (kind, more) in kinds() {
        let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{more}"));
        let mut rig = at_a_prompt(application(), &format!("{kind}{app}"));
        rig.get("/").expect_status(200);
        let workers = hosted::workers(&rig);
        for worker in &workers {
            assert_ne!(getsid(Some(pid(*worker))), getsid(Some(pid(rig.child.id()))), "{kind}{more}");
        }
        let server = pidfd_open(pid(rig.child.id()), PidfdFlags::empty()).unwrap();
        let master: OwnedFd = pidfd_getfd(&server, MASTER, PidfdGetfdFlags::empty()).unwrap();
        fs::File::from(master).write_all(b"\x03").unwrap();
        assert!(rig.ended().success(), "{kind}{more}: {}", rig.reported());
        eventually("the workers have ended", || workers.iter().all(|worker| !is_alive(*worker)));
    }
}

/// Leaves a file and a listening socket open, and executes the server.
const LEAKING: &str = "import os, socket, sys
left = socket.create_server(('127.0.0.1', 0))
os.dup2(left.fileno(), 50)
os.dup2(os.open(sys.argv[1], os.O_RDWR), 51)
os.execv(sys.argv[2], sys.argv[2:])
";

/// Lists its open descriptors.
const DESCRIPTORS: &str = r#"#!/bin/sh
echo 'Content-Type: text/plain'
echo
for number in 50 51; do [ -e /proc/self/fd/$number ] && echo "has $number"; done
echo done
"#;

#[test]
fn inherited_descriptors_are_not_passed_to_programs() {
    let mut kinds: Vec<(&str, &str)> = rig::kinds().into_iter().map(|kind| (kind, "")).collect();
    kinds.extend(kinds.first().map(|(kind, _)| (*kind, "preload = false\n")));
    if is_root() {
        kinds.push((kinds[1].0, "user = \"65533\"\ngroup = \"65533\"\n"));
    }
    for (kind, more) in kinds {
        let folder = Folder::new();
        let psgi = "sub { [200, [], [join ' ', (grep { -e \"/proc/self/fd/$_\" } 50, 51), 'done']] }";
        folder.write("app/app.psgi", psgi).write("left", "root's").write_program("bin/try", DESCRIPTORS);
        fs::set_permissions(folder.at("app"), fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
        assert!(copied.unwrap().success());
        let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{more}"));
        let cgi = r#"
            [[route]]
            path = "/bin/*"
            cgi = "bin"
        "#;
        folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{kind}{cgi}{app}"));
        let mut command = Command::new("python3");
        command.args(["-c", LEAKING]).arg(folder.at("left")).arg(env!("CARGO_BIN_EXE_komainu"));
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        command.env("KOMAINU_WORKERS", folder.at("workers")).envs(rig::server_environment());
        let rig = Rig::start(command, folder);
        rig.get("/").expect(200, "done");
        let said = rig.get("/bin/try").expect_status(200).text();
        assert!(said.contains("done") && !said.contains("has"), "{kind}: {said}");
        // The server process started by the supervisor.
        let server = status(&rig)["pid"].as_u64().unwrap() as u32;
        let has = |number: u32| fs::read_link(format!("/proc/{server}/fd/{number}"));
        assert!(server == rig.child.id() || [50, 51].iter().all(|number| has(*number).is_err()), "{kind}");
    }
}

/// Lists each open descriptor with what it refers to; of a socket also its domain, its type and whether it listens.
const OPEN: &str = r#"
use Socket ();
sub {
    opendir(my $list, '/proc/self/fd') or die;
    my $own = fileno $list;
    my @lines;
    for my $number (sort { $a <=> $b } grep { /^\d+$/ && $_ != $own } readdir $list) {
        my $target = readlink "/proc/self/fd/$number";
        if ($target =~ /^socket:/) {
            open(my $socket, '+<&', $number) or die;
            # SO_DOMAIN, SO_TYPE, SO_ACCEPTCONN.
            $target = 'socket ' . join ' ', map { unpack 'i', getsockopt $socket, Socket::SOL_SOCKET(), $_ } 39, 3, 30;
        }
        push @lines, "$number $target";
    }
    [200, [], [join "\n", @lines]]
}
"#;

/// A worker has its own socket to the server, the memory and the events that it shares with it, and its output:
/// nothing of the server's listeners, connections, logs, cache, certificates and supervisor.
#[test]
fn a_worker_has_no_descriptor_of_its_server() {
    let mut kinds: Vec<(&str, &str)> = kinds();
    kinds.extend(kinds.clone().iter().map(|(kind, _)| (*kind, "[apps.shop.sandbox]\n")));
    for (kind, more) in kinds {
        let folder = Folder::new();
        folder.write("app/app.psgi", OPEN).write("control/nothing", "").certify();
        if kind.contains("65534") {
            chown(folder.at("control"), Some(65534), Some(65534)).unwrap();
        }
        let copied = Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
        assert!(copied.unwrap().success());
        let app = only(&format!("psgi = \"app/app.psgi\"\nworkers = 1\n{more}"));
        let text = format!(
            r#"
            listen = ["127.0.0.1:0", {{ address = "127.0.0.1:0", tls = true }}, "unix:s.sock"]
            threads = 2
            redirect_https = false
            {kind}
            tls.default = {{ certificate = "cert.pem", key = "key.pem" }}
            [log]
            access = "json"
            file = "access.log"
            errors = "errors.log"
            [cache]
            memory = "8MiB"
            [cache.disk]
            path = "cache"
            size = "8MiB"
            [control]
            listen = "unix:control/c.sock"
            [[stream]]
            protocol = "udp"
            listen = "127.0.0.1:0"
            to = "127.0.0.1:9"
            [[stream]]
            listen = "127.0.0.2:0"
            to = "127.0.0.1:9"
            {app}
            "#
        );
        folder.write("komainu.toml", text);
        let mut command = rig::komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        command.env("KOMAINU_WORKERS", folder.at("workers"));
        let rig = Rig::start(command, folder);
        // Connections that are open when the next worker starts.
        let _kept: Vec<_> = (0..10).map(|_| rig.connect()).collect();
        for round in 0..2 {
            let said = rig.get("/").expect_status(200).text();
            let target = |line: &str| {
                let target = line.split_once(' ').unwrap().1;
                if target.starts_with("pipe:") { "pipe".to_owned() } else { target.to_owned() }
            };
            let mut targets: Vec<String> = said.lines().map(target).collect();
            targets.sort_unstable();
            // Its input, the channel with an event for each thread, its outputs, and its own socket, a sequence of packets.
            let event = "anon_inode:[eventfd]";
            let own = ["/dev/null", "/memfd:komainu (deleted)", event, event, "pipe", "pipe", "socket 1 5 0"];
            assert_eq!(targets, own, "{kind}{more}{round}: {said}");
            let worker = hosted::workers(&rig)[0];
            assert!(hosted::kill(worker, "-KILL"));
            eventually("another one answers", || {
                hosted::workers(&rig).first().is_some_and(|pid| *pid != worker)
            });
        }
    }
}
