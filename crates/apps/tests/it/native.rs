//! Native handlers: the examples in C, C++ and Rust, compiled and served.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::rig;
use crate::rig::{Rig, modules, native_handler, one_worker, scratch, until};
use apps::Options;

/// Compiles one of `workers/native/examples` with warnings as errors.
fn example(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers/native/examples").join(name);
    let object = scratch("native").join(name).with_extension("so");
    native_handler(&source, &object);
    object
}

fn native(object: &Path, adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("native").join("worker");
    let mut options = Options::new("native", vec![worker.into(), object.into()]);
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    adapt(&mut options);
    Rig::start(options)
}

#[test]
fn native_handler_functions_work() {
    let rig =
        native(&example("tour.c"), |options| options.env = vec![("GREETING".into(), "good day".into())]);
    let mut client = rig.connect();
    client.get("/").expect(200, "good day");
    client.send("GET /agent HTTP/1.1\r\nHost: a.test\r\nUser-Agent: somebody\r\n\r\n");
    client.answer().expect(200, "somebody");
    client.post("/echo", &[b'x'; 300_000]).expect(200, &"x".repeat(300_000));
    let many = client.get("/many?200000");
    assert_eq!((many.text().lines().count(), many.text().lines().last()), (200_000, Some("line 199999")));
    let program = std::fs::read(modules("native").join("worker")).unwrap();
    assert!(client.get("/file").body == program, "a file is sent as it is");
    client.get("/log").expect(200, "logged");
    rig.logged("a line of the handler's");
    client.get("/absent").expect(404, "Error 404\n");
    client.get("/fail").expect(500, "Error 500\n");
    rig.logged("the handler failed: -99");
    assert_eq!(client.get("/nothing").status, 500);
    rig.logged("before its response was complete");
    client.get("/").expect(200, "good day");
}

#[test]
fn crash_of_a_native_worker_fails_only_its_request() {
    let rig = native(&example("tour.c"), one_worker);
    let first = rig.ready(1);
    let mut client = rig.connect();
    assert_eq!(client.post("/crash", b"x").status, 502);
    client.get("/").expect(200, "hello");
    until("another worker", || rig.pids("ready").first().is_some_and(|pid| *pid != first[0]));
}

#[test]
fn native_threads_have_their_own_state_and_are_ended() {
    let rig = native(&example("tour.c"), |options| {
        one_worker(options);
        options.settings.threads = 3;
    });
    let worker = rig.ready(1);
    for _ in 0..20 {
        rig.get("/").expect(200, "hello");
    }
    rig.app.reload();
    until("it leaves", || !rig::is_alive(worker[0]));
    until("all three have counted", || {
        rig.log().lines().filter(|line| line.ends_with(" requests")).count() >= 3
    });
    let log = rig.log();
    let counts = log.lines().filter_map(|line| line.strip_suffix(" requests"));
    assert_eq!(counts.map(|count| count.parse::<u32>().unwrap()).sum::<u32>(), 20, "{log}");
    rig.get("/").expect(200, "hello");
}

#[test]
fn handlers_in_cpp_and_rust_are_served() {
    let words = native(&example("words.cpp"), one_worker);
    words.connect().post("/", b"one two one").expect(200, "one 2\ntwo 1\n");
    let upper = native(&example("upper.rs"), one_worker);
    upper.connect().post("/", b"quiet").expect(200, "QUIET");
}

#[test]
fn handler_that_logs_to_syslog_is_served() {
    let rig = native(&example("syslog.c"), |_| {});
    for _ in 0..3 {
        rig.get("/a").expect(200, "OK");
    }
}

#[test]
fn invalid_native_handler_is_reported_with_the_reason() {
    let folder = scratch("no-handler");
    let source = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let built = |source: PathBuf| {
        let object = source.with_extension("so");
        native_handler(&source, &object);
        object
    };
    let empty = built(source("empty.c", "int nothing;"));
    let newer = "#include <komainu_handler.h>\nconst komainu_handler komainu_entry = {.abi = 99};\n";
    let newer = built(source("newer.c", newer));
    let text = source("text.so", "no object at all");
    let refuses = example("tour.c");
    let long: std::ffi::OsString = "x".repeat(100).into();
    for (object, env, reported) in [
        (&empty, None, "it has no komainu_entry"),
        (&newer, None, "made for version 99 of komainu_handler.h"),
        (&text, None, "text.so: file too short"),
        (&refuses, Some(("GREETING".into(), long)), "GREETING is too long"),
    ] {
        let rig = native(object, |options| {
            one_worker(options);
            options.settings.show_errors = true;
            options.env.extend(env);
        });
        rig.logged(reported);
        let answer = rig.get("/");
        assert_eq!(answer.status, 500);
        assert!(answer.text().contains(reported.split('\'').next().unwrap()), "{}", answer.text());
    }
}
