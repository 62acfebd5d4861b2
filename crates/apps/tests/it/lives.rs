//! Lifecycle of worker processes: loading, death, replacement and reload, and their effect on requests.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::rig;
use crate::rig::{Rig, is_alive, kill, scratch, until};
use apps::{Recycle, Workers};
use shapes::client_abort::ClientAbort;

fn workers(min: u32, max: u32) -> Workers {
    Workers { min, max }
}

/// Clients that request one path repeatedly, and the statuses that they received.
struct Load {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<u16>>>,
}

impl Load {
    fn start(rig: &Rig, clients: usize, path: &'static str) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let good = Arc::new(AtomicUsize::new(0));
        let threads = (0..clients).map(|_| {
            let mut client = rig.connect();
            let stop = stop.clone();
            let good = good.clone();
            std::thread::spawn(move || {
                let mut bad = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match client.get(path).status {
                        200 => _ = good.fetch_add(1, Ordering::Relaxed),
                        other => bad.push(other),
                    }
                }
                bad
            })
        });
        let threads = threads.collect();
        Load { stop, good, threads }
    }

    /// Waits for this number of further successful responses.
    fn wait_for_good(&self, answers: usize) {
        let before = self.good.load(Ordering::Relaxed);
        until("more answers", || self.good.load(Ordering::Relaxed) >= before + answers);
    }

    /// Stops the clients; returns the statuses other than 200.
    fn finish(self) -> Vec<u16> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// An application whose file can be rewritten.
struct Changing(PathBuf);

impl Changing {
    fn new(name: &str, text: &str) -> Changing {
        let file = Changing(scratch(name).join("app.psgi"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }
}

const ONE: &str = "sub { [200, [], ['one']] }";
const TWO: &str = "sub { [200, [], ['two']] }";
const BROKEN: &str = "use strict; sub { $undeclared <b> }";

#[test]
fn killed_workers_fail_only_requests_they_held() {
    let rig = Rig::perl("all", |options| options.workers = workers(4, 4));
    rig.ready(4);
    let load = Load::start(&rig, 16, "/");
    let mut killed = 0;
    while killed < 40 {
        load.wait_for_good(50);
        for pid in rig.pids("ready").into_iter().skip(killed % 4).take(1) {
            killed += usize::from(kill(pid, "-KILL"));
        }
    }
    rig.ready(4);
    load.wait_for_good(100);
    let bad = load.finish();
    // A worker holds one request at a time, and most requests are retried.
    assert!(bad.len() <= killed && bad.iter().all(|status| *status == 502), "{bad:?}");
}

#[test]
fn stuck_worker_is_killed_after_its_client_got_504() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.timeouts.request = Duration::from_millis(300);
    });
    let stuck = rig.ready(1)[0];
    assert_eq!(rig.get("/sleep?60").status, 504);
    until("its end", || !is_alive(stuck));
    rig.logged("is killed: it took too long to answer");
    assert_eq!(rig.get("/sleep?0.1").status, 200);
    assert_ne!(rig.ready(1)[0], stuck);
}

#[test]
fn full_queue_refuses_the_oldest_request() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.queue_max = 3;
    });
    rig.ready(1);
    let mut busy = rig.connect();
    busy.send("GET /sleep?1 HTTP/1.1\r\nHost: a\r\n\r\n");
    // The worker must claim this request before the others are sent.
    rig.logged("sleeps 1");
    let mut waiting: Vec<_> = (0..4)
        .map(|at| {
            let mut client = rig.connect();
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            rig.handed(2 + at);
            client
        })
        .collect();
    let refused = waiting[0].answer();
    assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")));
    for client in &mut waiting[1..] {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(busy.answer().status, 200);
}

#[test]
fn request_is_refused_after_the_queue_timeout() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.timeouts.queue = Duration::from_millis(200);
    });
    rig.ready(1);
    let mut busy = rig.connect();
    busy.send("GET /sleep?1 HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.logged("sleeps 1");
    let refused = rig.get("/");
    assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")));
    assert_eq!(busy.answer().status, 200);
}

#[test]
fn request_of_a_disconnected_client_is_not_run() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.client_abort = Some(ClientAbort::Cancel);
    });
    rig.ready(1);
    let mut busy = rig.connect();
    busy.send("GET /sleep?2 HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.logged("sleeps 2");
    let mut gone = rig.connect();
    gone.send("GET /errors HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.handed(2);
    drop(gone);
    assert_eq!(busy.answer().status, 200);
    assert_eq!(rig.get("/").status, 200);
    assert!(!rig.log().contains("to the log"), "{}", rig.log());
}

#[test]
fn a_new_generation_takes_over_without_loss() {
    let app = Changing::new("reload", ONE);
    let rig = Rig::perl_file(&app.0, |options| options.workers = workers(2, 2));
    let before = rig.ready(2);
    rig.get("/").expect(200, "one");
    let load = Load::start(&rig, 8, "/");
    for text in [TWO, ONE, TWO] {
        app.write(text);
        let generation = rig.app.processes().iter().map(|process| process.generation).max().unwrap();
        rig.app.reload();
        until("the next generation alone", || {
            let processes = rig.app.processes();
            processes.len() == 3 && processes.iter().all(|process| process.generation == generation + 1)
        });
        load.wait_for_good(200);
    }
    assert_eq!(load.finish(), [0_u16; 0]);
    rig.get("/").expect(200, "two");
    assert!(before.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn old_generation_finishes_its_long_request() {
    let rig = Rig::perl("all", |options| options.workers = workers(1, 1));
    let old = rig.ready(1)[0];
    let mut long = rig.connect();
    long.send("GET /sleep?1.5 HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.logged("sleeps 1.5");
    rig.app.reload();
    rig.logged("generation 2 takes over");
    assert_ne!(rig.get("/").text(), format!("hello from {old}"));
    long.answer().expect(200, &format!("slept in {old}"));
    until("its end", || !is_alive(old));
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let app = Changing::new("bad-reload", ONE);
    let rig = Rig::perl_file(&app.0, |_| {});
    let before = rig.ready(2);
    app.write(BROKEN);
    rig.app.reload();
    rig.logged("the previous generation continues to serve");
    rig.get("/").expect(200, "one");
    assert_eq!(rig.ready(2), before);
}

#[test]
fn load_error_is_shown_and_loading_is_retried() {
    let app = Changing::new("broken", BROKEN);
    for preload in [true, false] {
        app.write(BROKEN);
        let rig = Rig::perl_file(&app.0, |options| {
            options.settings.preload = preload;
            options.settings.show_errors = true;
        });
        let page = rig.get("/");
        assert_eq!(page.status, 500);
        assert!(page.text().contains("Global symbol \"$undeclared\""), "{}", page.text());
        assert!(
            page.text().contains("near \"&gt; }\""),
            "what the application says is text: {}",
            page.text()
        );
        rig.logged("does not load");
        app.write(ONE);
        rig.logged("the application loads again");
        until("an answer", || rig.get("/").status == 200);
    }
}

#[test]
fn load_error_is_hidden_from_clients_by_default() {
    let app = Changing::new("hidden", BROKEN);
    let rig = Rig::perl_file(&app.0, |_| {});
    let page = rig.get("/");
    assert_eq!((page.status, page.field("retry-after")), (503, Some("1")));
    assert!(!page.text().contains("undeclared"));
}

#[test]
fn failed_loads_are_retried_with_growing_pauses() {
    let app =
        Changing::new("spin", "open my $f, '>>', __FILE__ . '.count'; print $f 'x'; close $f; die 'no'");
    let _ = std::fs::remove_file(app.0.with_extension("psgi.count"));
    let since = std::time::Instant::now();
    let rig = Rig::perl_file(&app.0, |_| {});
    rig.logged("does not load: no");
    let count = app.0.with_extension("psgi.count");
    until("four attempts", || std::fs::metadata(&count).unwrap().len() >= 4);
    // Pauses of 100, 200 and 400 ms between the attempts.
    assert!(since.elapsed() >= std::time::Duration::from_millis(700), "{:?}", since.elapsed());
}

#[test]
fn loading_is_ended_by_the_start_timeout() {
    let app = Changing::new("slow", "sleep 60; sub { [200, [], []] }");
    let rig = Rig::perl_file(&app.0, |options| options.settings.timeouts.start = Duration::from_millis(300));
    assert_eq!(rig.get("/").status, 503);
    rig.logged("did not load within 1 s");
}

#[test]
fn missing_program_yields_503_and_is_logged() {
    let rig = Rig::start(apps::Options::new("shop", vec!["/nowhere/perl".into()]));
    assert_eq!(rig.get("/").status, 503);
    rig.logged("cannot start /nowhere/perl");
}

#[test]
fn requests_wait_while_the_application_loads() {
    let app = Changing::new("loading", "select undef, undef, undef, 0.5; sub { [200, [], ['up']] }");
    let rig = Rig::perl_file(&app.0, |_| {});
    rig.get("/").expect(200, "up");
}

#[test]
fn workers_load_for_themselves_without_preloading() {
    let rig = Rig::perl("all", |options| options.settings.preload = false);
    rig.ready(2);
    assert_eq!(rig.pids("prototype"), [0_u32; 0]);
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn workers_are_started_under_load_and_stopped_when_idle() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 4);
        options.settings.timeouts.idle = Duration::from_millis(1);
    });
    rig.ready(1);
    let load = Load::start(&rig, 8, "/sleep?0.05");
    rig.ready(4);
    assert_eq!(load.finish(), [0_u16; 0]);
    rig.ready(1);
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn workers_are_replaced_after_their_request_limit() {
    let rig = Rig::perl("all", |options| {
        options.settings.recycle = Recycle { requests: Some(50), ..Recycle::default() }
    });
    let mut seen: HashSet<u32> = rig.ready(2).into_iter().collect();
    let load = Load::start(&rig, 4, "/");
    until("ten workers", || {
        seen.extend(rig.pids("ready"));
        seen.len() >= 10
    });
    assert_eq!(load.finish(), [0_u16; 0]);
    until("the end of all but two", || seen.iter().filter(|pid| is_alive(**pid)).count() <= 2);
}

#[test]
fn workers_are_replaced_at_their_age_or_memory_limit() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.recycle = Recycle { age: Some(Duration::from_millis(1_000)), ..Recycle::default() };
    });
    let old = rig.ready(1)[0];
    until("the end of the old one", || !is_alive(old));
    rig.ready(1);

    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        options.settings.recycle = Recycle { memory_bytes: Some(50 << 20), ..Recycle::default() };
    });
    let fat = rig.ready(1)[0];
    rig.get("/eat").expect(200, "full");
    until("the end of the fat one", || !is_alive(fat));
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn processes_are_reported_with_state_requests_and_memory() {
    let rig = Rig::perl("all", |options| options.workers = workers(1, 1));
    rig.ready(1);
    let mut client = rig.connect();
    for _ in 0..5 {
        client.get("/");
    }
    let processes = rig.app.processes();
    let states: Vec<_> = processes.iter().map(|process| (process.state, process.requests)).collect();
    assert_eq!(states, [("prototype", 0), ("ready", 5)]);
    let usage = processes[1].usage.unwrap();
    assert!(usage.rss_bytes > usage.pss_bytes && usage.pss_bytes > usage.private_dirty_bytes, "{usage:?}");
}

#[test]
fn directory_environment_and_limits_are_applied() {
    let text = "my $dir = do { require Cwd; Cwd::getcwd() }; my $files = `sh -c 'ulimit -n'`; \
                sub { [200, [], [\"$dir $ENV{GREETING} $files\"]] }";
    let app = Changing::new("surroundings", text);
    let folder = app.0.parent().unwrap().canonicalize().unwrap();
    let rig = Rig::perl_file(&app.0, |options| {
        options.folder = Some(folder.clone());
        options.env = vec![("GREETING".into(), "moin".into())];
        options.settings.limits.files = Some(99);
    });
    rig.get("/").expect(200, &format!("{} moin 99\n", folder.display()));
}

#[test]
fn several_cores_share_the_workers() {
    let worker = rig::modules("perl").join("worker.pl");
    let file = format!("{}/tests/perl/all.psgi", env!("CARGO_MANIFEST_DIR"));
    let rig = Rig::start_on(3, apps::Options::new("shop", vec!["perl".into(), worker.into(), file.into()]));
    rig.ready(2);
    let load = Load::start(&rig, 12, "/");
    for _ in 0..10 {
        load.wait_for_good(100);
        // The process may have ended by itself since it was listed.
        let _ = kill(rig.ready(2)[0], "-KILL");
    }
    load.wait_for_good(100);
    assert!(load.finish().len() <= 10);
    rig.ready(2);
}

/// The death of a worker is noticed late if its client reads slowly; its slot then belongs to another
/// request.
#[test]
fn late_notice_of_a_dead_worker_does_not_end_the_next_request() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        // More than is received from the channel at once.
        options.settings.response_head_bytes = 512 * 1024;
    });
    let worker = rig.ready(1)[0];
    let mut slow = rig.connect();
    slow.send("GET /download?32 HTTP/1.1\r\nHost: a\r\n\r\n");
    slow.through("\r\n\r\n");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(kill(worker, "-KILL"));
    until("another worker", || rig.pids("ready").first().is_some_and(|pid| *pid != worker));
    let mut next = rig.connect();
    next.send("GET /sleep?1 HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.logged("sleeps 1");
    assert!(slow.rest().len() < 32 << 20, "it was cut short");
    next.stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    assert_eq!(next.answer().status, 200);
}

/// A core handles an application's events only once it has used the application, which may never happen.
#[test]
fn unused_core_does_not_delay_replacement_of_workers() {
    let worker = rig::modules("perl").join("worker.pl");
    let file = format!("{}/tests/perl/all.psgi", env!("CARGO_MANIFEST_DIR"));
    let mut options = apps::Options::new("shop", vec!["perl".into(), worker.into(), file.into()]);
    options.workers = workers(1, 1);
    let rig = Rig::start_knowing(2, 1, options);
    for _ in 0..5 {
        let dead = rig.ready(1)[0];
        assert!(kill(dead, "-KILL"));
        until("another worker", || rig.pids("ready").iter().any(|pid| *pid != dead));
        assert_eq!(rig.get("/").status, 200);
    }
    let before = rig.ready(1)[0];
    rig.app.reload();
    until("the old worker's end", || !is_alive(before));
    assert_eq!(rig.get("/").status, 200);
}

/// Closing standard output must not slow the application down.
#[test]
fn application_that_closes_its_output_uses_no_cpu_time() {
    let text = "open STDOUT, '>', '/dev/null'; open STDERR, '>', '/dev/null'; sub { [200, [], ['quiet']] }";
    let app = Changing::new("closes-output", text);
    let rig = Rig::perl_file(&app.0, |options| {
        options.name = "quiet".into();
        options.settings.preload = false;
    });
    rig.ready(2);
    rig.get("/").expect(200, "quiet");
    let before = rig::cpu_ms_of_thread("app-quiet");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spent = rig::cpu_ms_of_thread("app-quiet") - before;
    assert!(spent < 200, "{spent} ms");
    assert!(kill(rig.ready(2)[0], "-KILL"), "and its death is seen all the same");
    rig.logged("was killed by signal 9");
    rig.ready(2);
}

#[test]
fn a_prototype_that_is_stuck_is_replaced() {
    let rig = Rig::perl("all", |options| {
        options.workers = workers(1, 1);
        // Also limits the next prototype, which must load within this time on a busy machine.
        options.settings.timeouts.start = Duration::from_millis(3_000);
        options.settings.timeouts.queue = Duration::from_millis(5_000);
    });
    let worker = rig.ready(1)[0];
    let prototype = rig.pids("prototype")[0];
    assert!(kill(prototype, "-STOP") && kill(worker, "-KILL"));
    until("its end", || !is_alive(worker));
    until("an answer", || rig.get("/").status == 200);
    assert_ne!(rig.pids("prototype"), [prototype]);
    assert!(!is_alive(prototype));
}

/// An orphan that a worker leaves behind becomes a child of the server, which must reap it.
#[test]
fn orphaned_processes_are_reaped() {
    let text = "sub { system q{sh -c 'sleep 0.2 & echo $! >>'} . __FILE__ . '.left'; [200, [], ['left']] }";
    let app = Changing::new("orphans", text);
    let left = app.0.with_extension("psgi.left");
    let _ = std::fs::remove_file(&left);
    for preload in [true, false] {
        let rig = Rig::perl_file(&app.0, |options| options.settings.preload = preload);
        rig.get("/").expect(200, "left");
        let pid = std::fs::read_to_string(&left).unwrap().lines().last().unwrap().to_owned();
        until("its end", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
        let worker = rig.ready(2)[0];
        assert!(kill(worker, "-KILL"));
        rig.logged(&format!("worker {worker} was killed by signal 9"));
    }
}
