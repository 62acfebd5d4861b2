//! Signals sent to the whole process group but meant for the server, and what delays a stop.

use std::time::Duration;

use crate::hosted::{Client, folder, is_alive, kill, logged, only, ready, start};
use crate::rig::eventually;

const WSGI: &str = "\
import os, signal, time
before = signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGTERM, before)
def app(environ, start_response):
    path = environ['PATH_INFO']
    if path == '/child':
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        start_response('200 OK', [])
        return [str(child).encode()]
    old = signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGTERM, old)
    start_response('200 OK', [])
    return [str(os.getpid()).encode()]
";
const RUBY: &str = "\
before = trap('TERM') {}
trap('TERM', before)
run(lambda do |env|
  if env['PATH_INFO'] == '/child'
    child = fork { sleep 60 }
    next [200, {}, [child.to_s]]
  end
  old = trap('TERM') {}
  trap('TERM', old)
  [200, {}, [Process.pid.to_s]]
end)
";
const PERL: &str = "\
my $before = $SIG{TERM};
$SIG{TERM} = sub {};
$SIG{TERM} = $before;
sub {
    my ($env) = @_;
    if ($env->{PATH_INFO} eq '/child') {
        my $child = fork;
        if (!$child) { sleep 60; POSIX::_exit(0) }
        return [200, [], [$child]];
    }
    my $old = $SIG{TERM};
    $SIG{TERM} = sub {};
    $SIG{TERM} = $old;
    { local $SIG{TERM} = sub {}; }
    [200, [], [$$]];
}
";

#[test]
fn worker_ignores_sigterm_after_application_restores_handler() {
    for (name, text, app) in [
        ("a.py", WSGI, "wsgi = \"a.py:app\""),
        ("config.ru", RUBY, "rack = \"config.ru\""),
        ("a.psgi", PERL, "psgi = \"a.psgi\""),
    ] {
        for preload in [true, false] {
            let app = format!("{app}\npreload = {preload}\nworkers = 1");
            let rig = start(folder(name, text), &format!("threads = 1\n{}", only(&app)));
            let worker = ready(&rig, 1)[0];
            let mut client = Client::new(rig.address);
            assert_eq!(client.get("/"), (200, worker.to_string()), "{name}");
            let child = client.get("/child").1.parse().unwrap();
            assert!(kill(worker, "-TERM") && kill(child, "-TERM"), "{name}");
            eventually(&format!("{name}: the child of the application has ended"), || !is_alive(child));
            assert_eq!(client.get("/"), (200, worker.to_string()), "{name}, preload = {preload}");
            std::thread::sleep(Duration::from_millis(100));
            assert!(is_alive(worker), "{name}, preload = {preload}");
        }
    }
}

#[test]
fn a_stop_names_the_process_that_it_ends() {
    let app = "my $child = 0; sub { system('sleep 300 & echo $!'); [200, [], ['ok']] }\n";
    let rig = start(
        folder("a.psgi", app),
        &format!(
            "threads = 1\n{}",
            only("psgi = \"a.psgi\"\nworkers = 1\ntimeouts = { stop = \"3s\", request = \"3s\" }")
        ),
    );
    assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()));
    assert!(kill(rig.child.id(), "-TERM"));
    logged(&rig, "sleep)");
    let log = rig.reported();
    assert!(log.contains("terminates processes that the application has started: "), "{log}");
}

#[test]
fn a_stop_terminates_and_then_kills_processes_of_the_application() {
    let told = r#"trap "echo told >$1; exit" TERM; echo ready >$2; while :; do sleep 0.05; done"#;
    let deaf = r#"trap "" TERM; echo ready >$2; while :; do sleep 0.05; done"#;
    for (script, is_told) in [(told, true), (deaf, false)] {
        let folder = folder("a.psgi", "");
        let (mark, ready) = (folder.at("told"), folder.at("ready"));
        let app = format!(
            "sub {{ system('sh', '-c', q{{sh -c '{}' sh {} {} 2>/dev/null & }}); [200, [], ['ok']] }}\n",
            script,
            mark.display(),
            ready.display()
        );
        folder.write("a.psgi", app);
        // Long enough that only the end of its processes ends the stop.
        let app = only("psgi = \"a.psgi\"\nworkers = 1\ntimeouts = { stop = \"1h\" }");
        let mut rig = start(folder, &format!("threads = 1\n{app}"));
        assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()));
        eventually("the process has installed its handler", || ready.exists());
        assert!(kill(rig.child.id(), "-TERM"));
        eventually("the server has stopped", || rig.child.try_wait().unwrap().is_some());
        assert_eq!(mark.exists(), is_told, "{script}");
    }
}

const ASGI: &str = "\
import asyncio, sys
async def app(scope, receive, send):
    if scope['type'] == 'lifespan':
        await receive()
        await send({'type': 'lifespan.startup.complete'})
        await asyncio.sleep(.1)
        MANNER
    elif scope['path'] == '/exit':
        sys.exit('the words of the end')
    elif scope['path'] == '/begun':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        sys.exit('the words after a head')
    else:
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'ok'})
";

#[test]
fn request_fails_with_502_when_event_loop_exits() {
    for path in ["/exit", "/begun"] {
        let app = only("asgi = \"a.py:app\"\nworkers = 1");
        let rig =
            start(folder("a.py", &ASGI.replace("MANNER", "await receive()")), &format!("threads = 1\n{app}"));
        ready(&rig, 1);
        assert_eq!(Client::new(rig.address).get(path).0, 502, "{path}");
        logged(&rig, "the words ");
        eventually("another worker answers", || Client::new(rig.address).get("/") == (200, "ok".into()));
    }
}

#[test]
fn a_lifespan_that_ends_while_its_worker_serves_is_logged() {
    for (manner, expected) in [
        ("raise ValueError('on purpose')", "lifespan: the application failed while serving"),
        ("return", "lifespan: the application returned while serving"),
    ] {
        let app = only("asgi = \"a.py:app\"\nworkers = 1");
        let rig = start(folder("a.py", &ASGI.replace("MANNER", manner)), &format!("threads = 1\n{app}"));
        ready(&rig, 1);
        logged(&rig, expected);
        assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()));
    }
}

/// Python applications that restore a signal's default action, as an event loop does when it removes a
/// handler.
const RESETS: [(&str, &str, &str); 2] = [
    (
        "a.py",
        "wsgi = \"a.py:app\"",
        r"import os, signal, time
def app(environ, start_response):
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if environ['PATH_INFO'] == '/slow': print('begun', flush=True); time.sleep(1)
    start_response('200 OK', [])
    return [str(os.getpid()).encode()]
",
    ),
    (
        "b.py",
        "asgi = \"b.py:app\"",
        r"import asyncio, os, signal
async def app(scope, receive, send):
    assert scope['type'] == 'http'
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print)
    loop.remove_signal_handler(signal.SIGTERM)
    if scope['path'] == '/slow':
        print('begun', flush=True)
        await asyncio.sleep(1)
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': str(os.getpid()).encode()})
",
    ),
];

#[test]
fn worker_with_reset_sigterm_finishes_requests_at_stop() {
    for (name, app, text) in RESETS {
        let mut rig =
            start(folder(name, text), &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 1"))));
        let worker = ready(&rig, 1)[0];
        let mut client = Client::new(rig.address);
        assert_eq!(client.get("/"), (200, worker.to_string()), "{name}");
        client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        logged(&rig, "begun");
        // systemd sends the signal to every process of the service.
        assert!(kill(rig.child.id(), "-TERM") && kill(worker, "-TERM"), "{name}");
        assert_eq!(client.answer(), (200, worker.to_string()), "{name}: {}", rig.reported());
        assert!(rig.ended().success(), "{name}");
    }
}
