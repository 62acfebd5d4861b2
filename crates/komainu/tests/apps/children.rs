//! Processes of applications: those that they start, those that are forked for them, and those that they end.

use crate::hosted::{Client, folder, logged, only, ready, start};
use crate::rig::eventually;

/// Ended children that nobody has reaped.
fn zombies(parent: u32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| stat.rsplit(')').next().unwrap().starts_with(&format!(" Z {parent} "))).count()
}

#[test]
fn children_of_an_application_that_leave_their_group_are_reaped() {
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
    let wsgi = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                def app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'ok']\n";
    let rack = "trap('CLD', 'IGNORE')\nrun(proc { [200, {}, ['ok']] })\n";
    let psgi = "$SIG{CHLD} = 'IGNORE';\nsub { [200, [], ['ok']] }\n";
    for (name, text, app) in [
        ("a.py", wsgi, "wsgi = \"a.py:app\""),
        ("config.ru", rack, "rack = \"config.ru\""),
        ("a.psgi", psgi, "psgi = \"a.psgi\""),
    ] {
        let rig =
            start(folder(name, text), &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 2"))));
        ready(&rig, 2);
        assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()), "{name}");
        assert!(!rig.reported().contains("could not fork"), "{name}: {}", rig.reported());
    }
}

#[test]
fn an_application_that_exits_in_a_request_makes_it_502() {
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
