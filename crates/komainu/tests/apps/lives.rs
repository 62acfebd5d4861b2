//! Crashes, limits and reloads of applications while they serve requests, and their effect on clients.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::hosted::{
    Client, Load, folder, is_alive, logged, only, processes, ready, run, start, status, workers,
};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, text};

const ONE: &str = "sub { [200, [], ['one']] }";
const TWO: &str = "sub { [200, [], ['two']] }";
const PID: &str = "sub { [200, [], [$$]] }";

/// Answers `/hold?NAME` once the file NAME.go exists; creates NAME.held when the request begins.
const HOLD: &str = r#"sub { my ($env) = @_; my $name = $env->{QUERY_STRING};
    if ($env->{PATH_INFO} eq '/hold') {
        open my $held, '>', "$name.held" or die; close $held;
        select undef, undef, undef, 0.01 until -e "$name.go";
    }
    [200, [], ["$env->{PATH_INFO} $$"]] }"#;

/// Returns a client whose request is being handled by a worker.
fn held(rig: &Rig, name: &str) -> Client {
    let mut client = Client::new(rig.address);
    client.send(format!("GET /hold?{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
    eventually("a worker has it", || rig.folder.at(&format!("{name}.held")).exists());
    client
}

fn release_app(rig: &Rig, name: &str) {
    rig.folder.write(&format!("{name}.go"), "");
}

#[test]
fn workers_are_recycled_after_configured_requests() {
    let app = "psgi = \"app.psgi\"\nworkers = 2\nrecycle = { requests = 50 }";
    let rig = start(folder("app.psgi", PID), &only(app));
    let mut seen: HashSet<u32> = ready(&rig, 2).into_iter().collect();
    let load = Load::start(&rig, 4, "/");
    eventually("eight workers have been", || {
        seen.extend(workers(&rig));
        seen.len() >= 8
    });
    assert_eq!(load.finish(), [0u16; 0]);
    eventually("all but two are gone", || seen.iter().filter(|pid| is_alive(**pid)).count() <= 2);
}

#[test]
fn workers_above_memory_limit_are_recycled() {
    let app = "my $fat; sub { $fat = 'x' x (64 << 20) if $_[0]{PATH_INFO} eq '/eat'; [200, [], [$$]] }";
    let config = "psgi = \"app.psgi\"\nworkers = 1\nrecycle = { memory = \"40MiB\" }";
    let rig = start(folder("app.psgi", app), &only(config));
    let fat = rig.get("/eat").text();
    eventually("another one answers", || rig.get("/").text() != fat);
}

#[test]
fn broken_application_is_reloaded_with_backoff() {
    let app = "open my $count, '>>', 'count'; print $count 'x'; close $count; die 'no database'";
    let rig = run(folder("app.psgi", app), &["app.psgi"]);
    let attempts = || fs::metadata(rig.folder.at("count")).map_or(0, |file| file.len());
    let since = Instant::now();
    eventually("it is tried again", || attempts() >= 4);
    // Four attempts, with delays of 100, 200 and 400 ms between them.
    assert!(since.elapsed() >= Duration::from_millis(600), "{:?}", since.elapsed());
    rig.folder.write("app.psgi", ONE);
    eventually("it comes back by itself", || rig.get("/").status() == 200);
}

#[test]
fn crashing_workers_are_restarted_with_backoff() {
    let app =
        "sub { open my $count, '>>', 'count'; print $count 'x'; close $count; kill KILL => $$; sleep 9 }";
    let rig = start(folder("app.psgi", app), &only("psgi = \"app.psgi\"\nworkers = 1"));
    let since = Instant::now();
    let mut client = Client::new(rig.address);
    (0..5).for_each(|_| assert_eq!(client.post("/", "").0, 502));
    assert!(since.elapsed() >= Duration::from_millis(100 + 200 + 400 + 800), "{:?}", since.elapsed());
    assert_eq!(
        fs::read(rig.folder.at("count")).unwrap().len(),
        5,
        "what may have been done is not done twice"
    );
    logged(&rig, "signal");
}

#[test]
fn worker_is_killed_after_request_timeout() {
    let config = "psgi = \"app.psgi\"\nworkers = 1\ntimeouts = { request = \"300ms\" }";
    let rig = start(folder("app.psgi", HOLD), &only(config));
    let stuck = ready(&rig, 1)[0];
    rig.get("/hold?never").expect_status(504);
    eventually("the worker is killed", || !is_alive(stuck));
    logged(&rig, &format!("worker {stuck} is killed: it took too long to answer"));
    assert_ne!(rig.get("/").expect_status(200).text(), format!("/ {stuck}"));
}

#[test]
fn full_queue_rejects_oldest_request_with_503() {
    let config = format!("threads = 1\n{}", only("psgi = \"app.psgi\"\nworkers = 1\nqueue = 2"));
    let rig = start(folder("app.psgi", HOLD), &config);
    let mut busy = held(&rig, "a");
    let mut waiting: Vec<Client> = Vec::new();
    for count in 1..=2 {
        let mut client = Client::new(rig.address);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        waiting.push(client);
        // The first one is the oldest.
        eventually("it waits", || status(&rig)["apps"][0]["queue"]["waiting"] == count);
    }
    let mut last = Client::new(rig.address);
    last.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut oldest = waiting.remove(0);
    let head = oldest.head();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    release_app(&rig, "a");
    assert_eq!(busy.answer().0, 200);
    assert_eq!((waiting[0].answer().0, last.answer().0), (200, 200));
}

#[test]
fn queued_request_times_out_with_503() {
    let config = "psgi = \"app.psgi\"\nworkers = 1\ntimeouts = { queue = \"1s\" }";
    let rig = start(folder("app.psgi", HOLD), &only(config));
    let mut busy = held(&rig, "a");
    rig.get("/").expect_status(503).expect_field("Retry-After", "1");
    release_app(&rig, "a");
    assert_eq!(busy.answer().0, 200);
}

/// Waits until all processes are of a later generation than `before`.
fn renewed(rig: &Rig, before: u64) {
    eventually("the next generation is alone", || {
        let all = processes(rig);
        all.len() == 3 && all.iter().all(|process| process.generation > before && process.state != "starting")
    });
}

fn generation(rig: &Rig) -> u64 {
    processes(rig).iter().map(|process| process.generation).max().unwrap()
}

#[test]
fn a_reload_under_load_fails_no_request() {
    let rig = start(folder("app.psgi", ONE), &only("psgi = \"app.psgi\"\nworkers = 2"));
    ready(&rig, 2);
    let load = Load::start(&rig, 8, "/");
    for text in [TWO, ONE, TWO, ONE, TWO] {
        load.wait_for_good(200);
        rig.folder.write("app.psgi", text);
        let before = generation(&rig);
        rig.signal("-HUP");
        renewed(&rig, before);
    }
    load.wait_for_good(200);
    assert_eq!(load.finish(), [0u16; 0]);
    rig.get("/").expect(200, "two");
}

#[test]
fn a_reload_of_a_ruby_application_fails_no_request() {
    let app = |said: &str| format!("run ->(_) {{ [200, {{}}, [\"{said}\"]] }}");
    let rig = start(folder("config.ru", &app("one")), &only("rack = \"config.ru\"\nworkers = 2"));
    ready(&rig, 2);
    let load = Load::start(&rig, 8, "/");
    load.wait_for_good(200);
    rig.folder.write("config.ru", app("two"));
    rig.signal("-HUP");
    renewed(&rig, 1);
    load.wait_for_good(200);
    assert_eq!(load.finish(), [0u16; 0]);
    rig.get("/").expect(200, "two");
}

#[test]
fn old_worker_finishes_running_request_after_reload() {
    let rig = start(folder("app.psgi", HOLD), &only("psgi = \"app.psgi\"\nworkers = 1"));
    let old = ready(&rig, 1)[0];
    let mut long = held(&rig, "a");
    rig.signal("-HUP");
    logged(&rig, "generation 2 takes over");
    rig.get("/").expect_status(200);
    assert!(is_alive(old));
    release_app(&rig, "a");
    assert_eq!(long.answer(), (200, format!("/hold {old}")));
    eventually("it is gone", || !is_alive(old));
}

#[test]
fn failed_reload_keeps_previous_generation_serving() {
    let rig = start(folder("app.psgi", ONE), &only("psgi = \"app.psgi\"\nworkers = 2"));
    let before = ready(&rig, 2);
    rig.folder.write("app.psgi", "die 'halfway saved'");
    rig.signal("-HUP");
    logged(&rig, "halfway saved");
    logged(&rig, "the previous generation continues to serve");
    rig.get("/").expect(200, "one");
    assert_eq!(ready(&rig, 2), before);
}

#[test]
fn reload_applies_new_application_settings() {
    let app = "sub { [200, [], [$ENV{GREETING}]] }";
    let rig = start(
        folder("app.psgi", app),
        &only("psgi = \"app.psgi\"\nworkers = 1\nenv = { GREETING = \"moin\" }"),
    );
    rig.get("/").expect(200, "moin");
    let changed = only("psgi = \"app.psgi\"\nworkers = 3\nenv = { GREETING = \"servus\" }");
    rig.folder.write("komainu.toml", rig::listen(&rig.folder) + &changed);
    rig.signal("-HUP");
    eventually("the new environment is seen", || rig.get("/").text() == "servus");
    ready(&rig, 3);
}

#[test]
fn processes_of_removed_application_end_after_reload() {
    let rig = start(folder("app.psgi", ONE), &only("psgi = \"app.psgi\"\nworkers = 2"));
    ready(&rig, 2);
    let all: Vec<u32> = processes(&rig).iter().map(|process| process.pid).collect();
    rig.folder.write(
        "komainu.toml",
        format!(
            r#"
            {}
            [[route]]
            respond = "none"
            "#,
            rig::listen(&rig.folder)
        ),
    );
    rig.signal("-HUP");
    eventually("the new configuration is used", || rig.get("/").text() == "none");
    eventually("its processes are gone", || all.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn reload_of_one_application_leaves_others_running() {
    let files = folder("a.psgi", PID);
    files.write("b.psgi", PID);
    let config = r#"
        [[route]]
        path = "/b"
        app = "b"

        [[route]]
        app = "a"

        [apps.a]
        psgi = "a.psgi"
        workers = 1

        [apps.b]
        psgi = "b.psgi"
        workers = 1
    "#;
    let rig = start(files, config);
    let a = rig.get("/").text();
    let b = rig.get("/b").text();
    let reload = |app: &str| {
        let pid = rig.child.id().to_string();
        komainu().args(["reload", "--pid", &pid, app]).output().unwrap()
    };
    assert!(reload("a").status.success());
    eventually("a is another process", || rig.get("/").text() != a);
    assert_eq!(rig.get("/b").text(), b);
    let unknown = reload("c");
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("no application c"));
}

#[test]
fn watch_reloads_application_when_files_change() {
    let files = Folder::new();
    files.write("app.psgi", "use lib 'lib'; use Shop; sub { [200, [], [Shop::said()]] }");
    files.write("lib/Shop.pm", "package Shop; sub said { 'one' } 1;");
    let rig = run(files, &["--watch", "app.psgi"]);
    rig.get("/").expect(200, "one");
    rig.folder.write("lib/Shop.pm", "package Shop; sub said { 'two' } 1;");
    eventually("the change is served", || rig.get("/").text() == "two");
    rig.folder.write("lib/Shop.pm", "package Shop; sub said { oops( } 1;");
    logged(&rig, "the previous generation continues to serve");
    rig.get("/").expect(200, "two");
    rig.folder.write("lib/Shop.pm", "package Shop; sub said { 'three' } 1;");
    eventually("the next change is served", || rig.get("/").text() == "three");
}

#[test]
fn worker_count_follows_load() {
    let config = "psgi = \"app.psgi\"\nworkers = { min = 1, max = 3 }\ntimeouts = { idle = \"1s\" }";
    let rig = start(folder("app.psgi", HOLD), &only(config));
    ready(&rig, 1);
    let mut clients: Vec<Client> = Vec::new();
    for name in ["a", "b", "c"] {
        clients.push(held(&rig, name));
    }
    ready(&rig, 3);
    ["a", "b", "c"].iter().for_each(|name| release_app(&rig, name));
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().0, 200));
    ready(&rig, 1);
}

#[test]
fn stop_finishes_running_requests_and_ends_all_workers() {
    let mut rig = start(folder("app.psgi", HOLD), &only("psgi = \"app.psgi\"\nworkers = 2"));
    ready(&rig, 2);
    let all: Vec<u32> = processes(&rig).iter().map(|process| process.pid).collect();
    let mut running = held(&rig, "a");
    rig.signal("-TERM");
    logged(&rig, "stopping");
    release_app(&rig, "a");
    assert_eq!(running.answer().0, 200);
    assert!(rig.ended().success());
    assert!(all.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn workers_do_not_outlive_a_server_that_is_killed() {
    let mut rig = start(folder("app.psgi", HOLD), &only("psgi = \"app.psgi\"\nworkers = 2"));
    ready(&rig, 2);
    let all: Vec<u32> = processes(&rig).iter().map(|process| process.pid).collect();
    rig.signal("-KILL");
    rig.ended();
    eventually("they are gone", || all.iter().all(|pid| !is_alive(*pid)));
}
