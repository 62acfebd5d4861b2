//! Child processes of applications: started by them, forked for them, and terminated by them.

use std::time::Duration;

use crate::hosted::{Client, folder, is_alive, kill, logged, native, only, ready, start, workers};
use crate::rig::{Rig, eventually};

/// Number of zombie children of `parent`.
fn zombies(parent: u32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| stat.rsplit(')').next().unwrap().starts_with(&format!(" Z {parent} "))).count()
}

#[test]
fn orphaned_background_processes_are_reaped() {
    let app = "sub { system('setsid sleep 0.2 &'); [200, [], ['ok']] }\n";
    let rig =
        start(folder("app.psgi", app), &format!("threads = 1\n{}", only("psgi = \"app.psgi\"\nworkers = 1")));
    let mut client = Client::new(rig.address);
    for _ in 0..10 {
        assert_eq!(client.get("/"), (200, "ok".into()));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    eventually("they are reaped", || zombies(rig.child.id()) == 0);
}

#[test]
fn workers_are_forked_where_the_application_ignores_sigchld() {
    let wsgi = r"import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def app(environ, start_response):
    start_response('200 OK', [])
    return [b'ok']
";
    let rack = "trap('CLD', 'IGNORE')\nrun(proc { [200, {}, ['ok']] })\n";
    let psgi = "$SIG{CHLD} = 'IGNORE';\nsub { [200, [], ['ok']] }\n";
    for (name, text, app) in [
        ("a.py", wsgi, "wsgi = \"a.py:app\""),
        ("config.ru", rack, "rack = \"config.ru\""),
        ("a.psgi", psgi, "psgi = \"a.psgi\""),
    ] {
        let rig =
            start(folder(name, text), &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 2"))));
        // The kernel reaps the workers itself, so that nobody waits for one with success.
        for killed in ready(&rig, 2) {
            assert!(kill(killed, "-KILL"), "{name}");
            eventually(&format!("{name}: the successor of a killed worker"), || {
                let now = workers(&rig);
                now.len() == 2 && !now.contains(&killed)
            });
            assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()), "{name}");
        }
        eventually(&format!("{name}: all are reaped"), || zombies(rig.child.id()) == 0);
        assert!(!rig.reported().contains("could not fork"), "{name}: {}", rig.reported());
    }
}

#[test]
fn request_fails_with_502_when_application_exits() {
    let wsgi = "import sys\ndef app(environ, start_response):\n    sys.exit('the words of the end')\n";
    let rack = "run(proc { abort('the words of the end') })\n";
    let psgi = "sub { print STDERR \"the words of the end\\n\"; exit 1 }\n";
    for (name, text, app) in [
        ("a.py", wsgi, "wsgi = \"a.py:app\""),
        ("config.ru", rack, "rack = \"config.ru\""),
        ("a.psgi", psgi, "psgi = \"a.psgi\""),
    ] {
        let rig =
            start(folder(name, text), &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 1"))));
        ready(&rig, 1);
        assert_eq!(Client::new(rig.address).get("/").0, 502, "{name}");
        logged(&rig, "the words of the end");
    }
}

/// An application whose `/short` and `/long` leave an orphaned process behind: one in its own process group,
/// the other in its own session. The body is the process id.
const LEAVES: &str = "\
use POSIX ();
sub {
    my ($env) = @_;
    my ($manner, $seconds) = $env->{PATH_INFO} =~ m{^/(\\w+)/(\\S+)$} or return [200, [], [$$]];
    pipe my $read, my $write;
    my $between = fork;
    if (!$between) {
        my $child = fork;
        POSIX::_exit(0) if $child;
        $manner eq 'group' ? POSIX::setpgid(0, 0) : POSIX::setsid();
        syswrite $write, $$;
        close $write;
        select undef, undef, undef, $seconds;
        POSIX::_exit(0);
    }
    close $write;
    waitpid $between, 0;
    [200, [], [scalar <$read>]];
}
";

fn leaves() -> Rig {
    let app = only("psgi = \"app.psgi\"\nworkers = 1\ntimeouts = { stop = \"2s\" }");
    start(folder("app.psgi", LEAVES), &format!("threads = 1\n{app}"))
}

#[test]
fn children_in_own_process_group_or_session_are_reaped() {
    let rig = leaves();
    let mut client = Client::new(rig.address);
    for manner in ["group", "session"] {
        for _ in 0..5 {
            let child = client.get(&format!("/{manner}/0.2")).1.parse().unwrap();
            eventually(&format!("{manner}: it has ended"), || !is_alive(child));
        }
        eventually(&format!("{manner}: they are reaped"), || zombies(rig.child.id()) == 0);
    }
}

#[test]
fn stop_kills_and_logs_children_in_own_group_or_session() {
    let mut rig = leaves();
    let mut client = Client::new(rig.address);
    let children =
        ["group", "session"].map(|manner| client.get(&format!("/{manner}/300")).1.parse::<u32>().unwrap());
    rig.signal("-TERM");
    assert!(rig.ended().success());
    for child in children {
        assert!(!is_alive(child));
        assert!(rig.reported().contains(&format!("{child} (")), "{child}: {}", rig.reported());
    }
}

#[test]
fn children_of_recycled_workers_are_reaped_or_killed_at_stop() {
    let psgi = r"use POSIX ();
sub { my $path = $_[0]{PATH_INFO}; POSIX::setsid() if $path eq '/session';
my $seconds = $path eq '/short' ? 0.2 : 300;
[200, [], [scalar `sleep $seconds >/dev/null 2>&1 & echo \$!`]] }
";
    let c = r#"#include <sys/types.h>
#include <stdio.h>
#include <unistd.h>
#include "komainu_handler.h"
static int handle(komainu_request *request, void *process, void *state) {
    char text[16];
    pid_t child = fork();
    (void)process; (void)state;
    if (child == 0) { setpgid(0, 0); usleep(200 * 1000); _exit(0); }
    komainu_head(request, 200, NULL, 0);
    return komainu_write(request, text, (size_t)snprintf(text, sizeof text, "%d", child), KOMAINU_MORE);
}
const komainu_handler komainu_entry = {.abi = KOMAINU_HANDLER_ABI, .size = sizeof(komainu_handler), .handle = handle};
"#;
    let folder = folder("app.psgi", psgi);
    native(&folder, c);
    let apps = [("psgi", "psgi = \"app.psgi\""), ("native", "handler = \"n.so\"")].map(|(name, app)| {
        format!(
            r#"
            [[route]]
            path = "/{name}/*"
            app = {{ name = "{name}", strip_prefix = true }}
            [apps.{name}]
            {app}
            workers = 1
            recycle = {{ requests = 2 }}
            timeouts = {{ stop = "2s" }}
            "#
        )
    });
    let mut rig = start(folder, &format!("threads = 1\n{}", apps.concat()));
    let mut client = Client::new(rig.address);
    for path in ["/psgi/short", "/native/short", "/psgi/session"] {
        for _ in 0..5 {
            assert_eq!(client.get(path).0, 200, "{path}");
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    eventually("they are reaped", || zombies(rig.child.id()) == 0);
    let long: u32 = client.get("/psgi/session").1.trim().parse().unwrap();
    assert!(is_alive(long));
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(!is_alive(long), "{}", rig.reported());
    assert!(rig.reported().contains(&format!("{long} (sleep)")), "{}", rig.reported());
}
