//! WSGI and ASGI with the system's Python: supported application behaviour and its results.

use std::path::Path;
use std::time::Duration;

use crate::rig;
use crate::rig::{Rig, modules, one_worker, run_event_loop, until};
use apps::Options;

/// Serves `tests/python/TARGET` with two workers; `adapt` may change the options.
fn python(interface: &str, target: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("python").join("worker.py");
    let mut place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").into_os_string();
    place.push("/");
    place.push(target);
    let mut options = Options::new("shop", vec!["python3".into(), worker.into(), interface.into(), place]);
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    run_event_loop(&mut options, if interface == "wsgi" { 1 } else { 100 });
    adapt(&mut options);
    Rig::start(options)
}

#[test]
fn wsgi_validator_reports_no_errors() {
    let rig = python("auto", "checked.py", |_| {});
    let mut client = rig.connect();
    client.get("/a%20b?c=d").expect(200, "/a b c=d");
    client.get("/").expect(200, "/ ");
    client.post("/echo", b"a body").expect(200, "a body");
    client.post("/echo", b"").expect(200, "");
    client.post("/lines", b"one\ntwo\n\nthree").expect(200, "one\n|two\n|\n|three");
    client.get("/write").expect(200, "written and returned");
    client.get("/each").expect(200, "one two");
    rig.logged("closed");
    client.get("/late").expect(404, "not here");
    assert!(!rig.log().contains("Error"), "{}", rig.log());
}

#[test]
fn wsgi_application_errors_are_logged() {
    let rig = python("wsgi", "plain.py:create_app('named')", |_| {});
    let mut client = rig.connect();
    client.get("/").expect(200, "named");
    for (path, reported) in [
        ("/fail", "ValueError: on purpose"),
        ("/twice", "start_response was called before"),
        ("/silent", "start_response was not called"),
    ] {
        client.get(path).expect(500, "Internal Server Error\n");
        rig.logged(reported);
    }
    client.get("/long").expect(200, "abc");
    rig.logged("GET /long: more body written than announced");
    client.get("/long-list").expect(200, "abc");
    rig.logged("GET /long-list: more body written than announced");
    client.get("/").expect(200, "named");
}

#[test]
fn files_and_long_bodies_are_sent() {
    let rig = python("wsgi", "plain.py", |options| options.settings.threads = 2);
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/plain.py")).unwrap();
    assert_eq!(rig.get("/file").body, text[3..7]);
    assert_eq!(rig.get("/large").body.len(), 5_000_000);
    rig.get("/").expect(200, "made");
}

#[test]
fn worker_that_dies_fails_only_its_request() {
    let rig = python("wsgi", "plain.py", one_worker);
    let first = rig.ready(1);
    assert_eq!(rig.connect().post("/die", b"x").status, 502);
    until("another worker", || rig.pids("ready").first().is_some_and(|pid| *pid != first[0]));
    rig.get("/").expect(200, "made");
}

#[test]
fn threaded_worker_exits_on_reload() {
    let rig = python("wsgi", "plain.py", |options| {
        one_worker(options);
        options.settings.threads = 3;
    });
    let worker = rig.ready(1);
    rig.get("/").expect(200, "made");
    rig.app.reload();
    until("it leaves", || !rig::is_alive(worker[0]));
    rig.get("/").expect(200, "made");
    assert!(!rig.log().contains("killed"), "{}", rig.log());
}

#[test]
fn asgi_application_is_served() {
    let rig = python("auto", "events.py", one_worker);
    let mut client = rig.connect();
    client.get("/a?b").expect(200, "/a b began");
    client.post("/echo", &[b'x'; 300_000]).expect(200, &"x".repeat(300_000));
    client.get("/fail").expect(500, "Internal Server Error\n");
    rig.logged("ValueError: on purpose");
    assert_eq!(client.get("/large").body.len(), 10_000_000);
    assert_eq!(client.get("/hints").status, 103);
    client.answer().expect(200, "/hints  began");
}

#[test]
fn one_worker_holds_many_requests() {
    let rig = python("asgi", "events.py", one_worker);
    let mut sleepers: Vec<_> = (0..50).map(|_| rig.connect()).collect();
    for sleeper in &mut sleepers {
        sleeper.send("GET /sleep HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    }
    rig.get("/quick").expect(200, "/quick  began");
    for mut sleeper in sleepers {
        sleeper.answer().expect(200, "/sleep  began");
    }
}

#[test]
fn asgi_application_receives_disconnect() {
    let rig = python("asgi", "events.py", one_worker);
    let mut client = rig.connect();
    client.send("GET /gone HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    rig.get("/").expect(200, "/  began");
    drop(client);
    rig.logged("received http.disconnect");
}

#[test]
fn timed_out_async_request_does_not_affect_others() {
    let rig = python("asgi", "events.py", |options| {
        one_worker(options);
        options.settings.timeouts.request = Duration::from_millis(1_000);
    });
    let worker = rig.ready(1);
    assert_eq!(rig.get("/stuck").status, 504);
    rig.get("/").expect(200, "/  began");
    assert_eq!(rig.ready(1), worker);
}

#[test]
fn lifespan_shutdown_runs_when_the_worker_exits() {
    let rig = python("asgi", "events.py", one_worker);
    rig.ready(1);
    rig.app.reload();
    rig.logged("shut down");
}

#[test]
fn asgi_2_applications_are_served() {
    for (interface, target, expected) in [
        ("asgi", "legacy.py", "class /x 2.0"),
        ("auto", "legacy.py", "class /x 2.0"),
        ("asgi", "legacy.py:function", "function /x 2.0"),
        ("auto", "legacy.py:function", "function /x 2.0"),
    ] {
        let rig = python(interface, target, one_worker);
        rig.get("/x").expect(200, expected);
    }
}

#[test]
fn lifespan_exceptions_are_logged_and_requests_are_served() {
    let rig = python("asgi", "legacy.py:fails", one_worker);
    rig.get("/").expect(200, "served all the same");
    rig.logged("lifespan: the application failed before its startup was complete");
    rig.logged("KeyError: 'no database'");
    let rig = python("asgi", "legacy.py", one_worker);
    rig.get("/x").expect(200, "class /x 2.0");
    rig.logged("lifespan: not supported by the application: ValueError: no lifespans here");
}

#[test]
fn lifespan_can_be_required_or_disabled() {
    let asked = |what: &'static str| {
        move |options: &mut Options| {
            one_worker(options);
            options.env.push(("KOMAINU_LIFESPAN".into(), what.into()));
            options.settings.show_errors = true;
        }
    };
    for target in ["legacy.py", "legacy.py:fails"] {
        let rig = python("asgi", target, asked("on"));
        rig.logged("lifespan = \"on\"");
        assert_eq!(rig.get("/").status, 500, "{target}");
    }
    let rig = python("asgi", "events.py", asked("on"));
    rig.get("/").expect(200, "/  began");
    let rig = python("asgi", "legacy.py:silent", asked("off"));
    rig.get("/").expect(200, "silent");
    assert!(!rig.log().contains("was asked"), "{}", rig.log());
    let rig = python("asgi", "legacy.py:silent", asked("auto"));
    rig.logged("was asked");
}

#[test]
fn python_load_errors_are_reported() {
    for (interface, target, reported) in [
        ("auto", "events.py:refuses", "no database today"),
        ("auto", "plain.py:create_ap()", "has no 'create_ap'"),
        ("auto", "absent.py", "there is no file"),
        ("auto", "./plain:app", "a file is written with its ending"),
        ("asgi", "plain.py:create_app()", "this is an application for WSGI"),
        ("wsgi", "legacy.py:silent", "this is an application for ASGI"),
    ] {
        let rig = python(interface, target, |options| {
            one_worker(options);
            options.settings.show_errors = true;
        });
        rig.logged(reported);
        let answer = rig.get("/");
        assert_eq!(answer.status, 500);
        assert!(answer.text().contains(reported.split('\'').next().unwrap()), "{}", answer.text());
    }
}

/// The intermediate process of a double fork must not become a prototype or a worker.
#[test]
fn failed_second_fork_of_a_double_fork_is_retried() {
    let folder = rig::scratch("half-a-fork");
    let file = folder.join("halves.py");
    let text = r#"
import os

owner, fork, failures = os.getpid(), os.fork, __file__ + ".failures"
open(failures, "w").close()

def fails_at_first():
    if os.getpid() != owner and os.stat(failures).st_size < 3:
        with open(failures, "a") as file:
            file.write("x")
        raise OSError("no more processes")
    return fork()

os.fork = fails_at_first

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"forked"]
"#;
    std::fs::write(&file, text).unwrap();
    let worker = modules("python").join("worker.py");
    let mut options = Options::new("shop", vec!["python3".into(), worker.into(), "wsgi".into(), file.into()]);
    one_worker(&mut options);
    run_event_loop(&mut options, 1);
    let rig = Rig::start(options);
    rig.logged("the prototype could not fork: no more processes");
    rig.ready(1);
    until("an answer", || rig.get("/").status == 200);
}

/// A list shared by threads, such as a cache: its contents at the time of the response are sent, even if it
/// changes later.
#[test]
fn response_body_is_kept_alive_while_it_is_sent() {
    let file = rig::scratch("shared-list").join("shared.py");
    let text = r#"
cache = [b"x" * (16 << 20)]

def app(environ, start_response):
    start_response("200 OK", [])
    if environ["PATH_INFO"] == "/clear":
        cache[:] = []
        return [b"cleared"]
    return cache
"#;
    std::fs::write(&file, text).unwrap();
    let worker = modules("python").join("worker.py");
    let mut options = Options::new("shop", vec!["python3".into(), worker.into(), "wsgi".into(), file.into()]);
    one_worker(&mut options);
    run_event_loop(&mut options, 1);
    options.settings.threads = 2;
    let rig = Rig::start(options);
    let mut slow = rig.connect();
    slow.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    slow.through("\r\n\r\n");
    // The body is being sent, and exceeds the buffers of the client and the connection.
    assert_eq!(slow.take(1), b"x");
    rig.get("/clear").expect(200, "cleared");
    assert!(slow.take((16 << 20) - 1).iter().all(|byte| *byte == b'x'));
    assert!(!rig.log().contains("killed"), "{}", rig.log());
}

/// A worker that leaves by itself before it has answered any request is replaced after a pause, like one that
/// crashes.
#[test]
fn workers_that_exit_at_once_are_restarted_with_growing_pauses() {
    let file = rig::scratch("leavers").join("leavers.py");
    let text = r#"
import os
import threading

import komainu

open(__file__ + ".count", "w").close()

def leave():
    with open(__file__ + ".count", "a") as file:
        file.write("x")
    os._exit(0)

@komainu.after_fork
def soon():
    threading.Timer(0.05, leave).start()

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"up"]
"#;
    std::fs::write(&file, text).unwrap();
    let worker = modules("python").join("worker.py");
    let mut options =
        Options::new("shop", vec!["python3".into(), worker.into(), "wsgi".into(), file.clone().into()]);
    one_worker(&mut options);
    run_event_loop(&mut options, 1);
    let since = std::time::Instant::now();
    let rig = Rig::start(options);
    until("the first", || !rig.pids("prototype").is_empty());
    let count = file.with_extension("py.count");
    until("four workers", || std::fs::metadata(&count).is_ok_and(|count| count.len() >= 4));
    // Pauses of 100, 200 and 400 ms between the attempts.
    assert!(since.elapsed() >= std::time::Duration::from_millis(700), "{:?}", since.elapsed());
}
