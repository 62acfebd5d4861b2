//! Ends of application processes: signals, exit codes, and the log of those that take too long.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::rig::{Rig, is_alive, kill, modules, native_handler, one_worker, run_event_loop, scratch, until};
use apps::Options;

const SHARED: [&str; 6] = ["-TERM", "-INT", "-HUP", "-QUIT", "-USR1", "-USR2"];

/// Serves a file with one worker of a language.
fn serve(language: &str, arguments: &[&str], file: &Path, adapt: impl FnOnce(&mut Options)) -> Rig {
    let folder = modules(language);
    let mut command: Vec<std::ffi::OsString> = match language {
        "perl" => vec!["perl".into(), folder.join("worker.pl").into()],
        "ruby" => vec!["ruby".into(), folder.join("worker.rb").into()],
        "python" => vec!["python3".into(), folder.join("worker.py").into()],
        _ => vec![folder.join("worker").into()],
    };
    command.extend(arguments.iter().map(Into::into));
    command.push(file.into());
    let mut options = Options::new("shop", command);
    one_worker(&mut options);
    options.settings.timeouts.stop = Duration::from_millis(20_000);
    if language == "python" {
        run_event_loop(&mut options, 1);
    }
    adapt(&mut options);
    Rig::start(options)
}

fn python(adapt: impl FnOnce(&mut Options)) -> Rig {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/ends.py");
    serve("python", &["wsgi"], &file, adapt)
}

fn python_events(adapt: impl FnOnce(&mut Options)) -> Rig {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/ends.py:events");
    serve("python", &["asgi"], &file, |options| {
        options.settings.concurrency = 100;
        adapt(options);
    })
}

const PSGI: &str = r#"
my $worker = 0;
{ package Guard; sub DESTROY { print "destroyed in $_[0]{pid}\n" if $_[0]{pid} == $$ } }
our $kept;
END { print $worker == $$ ? "END in worker\n" : "END in prototype\n" }
sub stands_still { sleep 3600 while 1 }
sub {
    my ($env) = @_;
    $worker = $$;
    $kept ||= bless { pid => $$ }, 'Guard';
    my $path = $env->{PATH_INFO};
    stands_still() if $path eq '/stuck';
    { local $SIG{TERM} = sub { print "never called\n" } }
    if ($path eq '/fork') {
        pipe my $runs, my $says or die $!;
        my $child = fork;
        if (!$child) { syswrite $says, 'x'; sleep 3600; POSIX::_exit(0) }
        # Before it runs, it ignores the signal as its parent does.
        sysread $runs, my $byte, 1;
        kill TERM => $child;
        waitpid $child, 0;
        return [200, [], ["$?"]];
    }
    if ($path eq '/own') { $SIG{TERM} = sub { print "the application's own handler\n" } }
    if ($path eq '/scribble') {
        my ($memory) = split /;/, $ENV{KOMAINU_RING};
        open my $channel, '+<', "/proc/self/fd/$memory" or die "$memory: $!";
        syswrite $channel, "\0" x 64 or die $!;
    }
    if ($path =~ m{^/scribble-with-(..)}) {
        my ($memory) = split /;/, $ENV{KOMAINU_RING};
        open my $channel, '+<', "/proc/self/fd/$memory" or die "$memory: $!";
        sysseek $channel, 64, 0;
        my $left = (-s $channel) - 64;
        $left -= syswrite $channel, chr(hex $1) x ($left < 65536 ? $left : 65536) while $left > 0;
    }
    [200, [], ["$$"]];
}
"#;

const RACK: &str = r#"
worker = nil
at_exit { puts(Process.pid == worker ? "at_exit in worker" : "at_exit in prototype") }
def stands_still = sleep(3600)
lambda do |env|
  worker = Process.pid
  case env["PATH_INFO"]
  when "/stuck" then stands_still
  when "/own" then trap("TERM") { STDOUT.syswrite("the application's own handler\n") }
  when "/fork"
    runs, says = IO.pipe
    child = fork { says.write("x"); sleep 3600 }
    # Before it runs, it ignores the signal as its parent does.
    runs.read(1)
    Process.kill("TERM", child)
    Process.wait(child)
    next [200, {}, [$?.termsig.to_s]]
  end
  [200, {}, [Process.pid.to_s]]
end
"#;

const HANDLER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <komainu_handler.h>
static void farewell(void) { puts("atexit"); }
static int start(void **process, char *error, size_t size) { (void)process; (void)error; (void)size; atexit(farewell); return 0; }
static void stop(void *process) { (void)process; puts("stop"); }
__attribute__((noinline)) void stands_still(void) { for (;;) sleep(3600); }
static int handle(komainu_request *request, void *process, void *thread) {
    char pid[16];
    komainu_text path = komainu_part(request, KOMAINU_PATH);
    (void)process; (void)thread;
    if (path.len == 6) stands_still();
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    return komainu_reply(request, 200, "text/plain", pid, strlen(pid));
}
KOMAINU_HANDLER(.handle = handle, .start = start, .stop = stop)
"#;

fn written(name: &str, file: &str, text: &str) -> PathBuf {
    let file = scratch(name).join(file);
    std::fs::write(&file, text).unwrap();
    file
}

fn perl(name: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    serve("perl", &[], &written(name, "app.psgi", PSGI), adapt)
}

fn ruby(name: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    serve("ruby", &[], &written(name, "app.rb", RACK), adapt)
}

fn native(name: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    let source = written(name, "handler.c", HANDLER);
    let object = source.with_extension("so");
    native_handler(&source, &object);
    serve("native", &[], &object, adapt)
}

// ---- ends ----

#[test]
fn python_worker_runs_exit_handlers_on_every_kind_of_end() {
    for end in ["reload", "recycle", "stop", "exit"] {
        let rig = python(|options| {
            if end == "recycle" {
                options.settings.recycle.requests = Some(2);
            }
        });
        let worker = rig.ready(1)[0];
        assert_eq!(rig.get("/leave-work").status, 200);
        match end {
            "reload" => rig.app.reload(),
            "recycle" => assert_eq!(rig.get("/").status, 200),
            "stop" => rig.app.stop(),
            _ => _ = rig.get("/exit"),
        }
        for text in
            ["the thread is done", "the executor is done", "atexit in worker", "the generator was finalized"]
        {
            rig.logged(text);
        }
        until("its end", || !is_alive(worker));
        assert!(!rig.log().contains("is killed"), "{end}: {}", rig.log());
    }
}

#[test]
fn event_loop_worker_ends_its_executor_and_tasks() {
    let rig = python_events(|_| {});
    rig.get("/leave-work").expect(200, "done");
    rig.app.reload();
    rig.logged("the executor is done");
    rig.logged("the task is cancelled");
    rig.logged("atexit in");
}

#[test]
fn prototype_runs_exit_handlers() {
    python(|_| {}).app.stop();
    for (rig, text) in [
        (python(|_| {}), "atexit in prototype"),
        (perl("end-prototype", |_| {}), "END in prototype"),
        (ruby("end-prototype", |_| {}), "at_exit in prototype"),
    ] {
        rig.ready(1);
        rig.app.stop();
        rig.logged(text);
    }
}

#[test]
fn perl_ruby_and_native_workers_run_exit_handlers() {
    let rig = perl("end-perl", |_| {});
    let pid = rig.get("/").text();
    rig.app.reload();
    rig.logged("END in worker");
    rig.logged(&format!("destroyed in {pid}"));
    let rig = ruby("end-ruby", |_| {});
    assert_eq!(rig.get("/").status, 200);
    rig.app.reload();
    rig.logged("at_exit in worker");
    let rig = native("end-native", |_| {});
    assert_eq!(rig.get("/").status, 200);
    rig.app.reload();
    rig.logged("stop");
    rig.logged("atexit");
}

#[test]
fn worker_that_does_not_exit_in_time_is_killed_with_its_stack() {
    for end in ["reload", "exit"] {
        let rig = python(|options| options.settings.timeouts.stop = Duration::from_millis(500));
        let worker = rig.ready(1)[0];
        assert_eq!(rig.get("/leave-a-thread-that-stays").status, 200);
        match end {
            "reload" => rig.app.reload(),
            _ => _ = rig.get("/exit"),
        }
        rig.logged(&format!("worker {worker} is killed: it did not leave within 0.5 s (timeouts.stop)"));
        rig.logged("in stands_still");
        until("its end", || !is_alive(worker));
    }
}

// ---- signals ----

/// Asserts that signals addressed to the server do not end its processes.
fn stays(rig: &Rig) {
    let before = (rig.ready(1), rig.pids("prototype"));
    let all = || before.0.iter().chain(&before.1);
    let answer = rig.get("/").text();
    for signal in SHARED {
        all().for_each(|pid| assert!(kill(*pid, signal)));
        assert_eq!(rig.get("/").text(), answer, "after {signal}");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(all().all(|pid| is_alive(*pid)), "{}", rig.log());
    assert_eq!((rig.ready(1), rig.pids("prototype")), before);
    rig.app.reload();
    until("their end when the server says so", || !all().any(|pid| is_alive(*pid)));
}

#[test]
fn common_signals_end_no_worker() {
    stays(&perl("signals-perl", |_| {}));
    stays(&ruby("signals-ruby", |_| {}));
    stays(&native("signals-native", |_| {}));
    stays(&python(|_| {}));
    stays(&python_events(|_| {}));
    stays(&python(|options| options.settings.threads = 3));
}

#[test]
fn application_may_fork_and_install_signal_handlers() {
    for rig in [perl("own-perl", |_| {}), ruby("own-ruby", |_| {}), python(|_| {})] {
        rig.get("/fork").expect(200, "15");
        rig.get("/fork-and-exit");
        let worker = rig.ready(1)[0];
        assert_eq!(rig.get("/own").status, 200);
        assert!(kill(worker, "-TERM"));
        rig.logged("the application's own handler");
        assert_eq!(rig.get("/").text(), worker.to_string());
    }
}

// ---- timeouts ----

#[test]
fn killed_worker_logs_request_duration_and_stack() {
    // a busy machine may use part of this time until the worker claims the request
    let short = |options: &mut Options| options.settings.timeouts.request = Duration::from_millis(2_000);
    for (rig, place) in [
        (perl("where-perl", short), "called Komainu::App::stands_still"),
        (ruby("where-ruby", short), "stands_still"),
        (native("where-native", short), "stands_still"),
        (python(short), "in stands_still"),
        (
            python(|options| {
                options.settings.threads = 2;
                options.settings.timeouts.request = Duration::from_secs(2);
            }),
            "in stands_still",
        ),
    ] {
        let worker = rig.ready(1)[0];
        assert_eq!(rig.get("/stuck?secret=1").status, 504);
        rig.logged("GET /stuck: no answer within 2 s (timeouts.request); worker");
        rig.logged(&format!("worker {worker} has had it for "));
        rig.logged(place);
        rig.logged(&format!("worker {worker} is killed: it took too long to answer"));
        until("its end", || !is_alive(worker));
        assert!(!rig.log().contains("secret"), "{}", rig.log());
        // The interpreter of the next worker may take longer to start than the 2 s that a request may wait.
        until("its successor answers", || rig.get("/").status == 200);
    }
}

#[test]
fn slow_event_loop_request_is_logged_with_the_blocking_place() {
    let rig = python_events(|options| options.settings.timeouts.request = Duration::from_millis(500));
    let worker = rig.ready(1)[0];
    assert_eq!(rig.get("/stuck").status, 504);
    rig.logged(&format!(
        "GET /stuck: no answer within 0.5 s (timeouts.request); worker {worker} has had it for"
    ));
    assert_eq!(rig.ready(1), [worker]);
    assert_eq!(rig.get("/blocked").status, 504);
    rig.logged("and does not release the request");
    rig.logged("in stands_still");
}

#[test]
fn non_async_worker_is_killed_at_the_request_timeout() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/ends.py");
    let rig = serve("python", &["auto"], &file, |options| {
        options.settings.concurrency = 100;
        options.settings.timeouts.request = Duration::from_millis(500);
    });
    let worker = rig.ready(1)[0];
    assert_eq!(rig.get("/stuck").status, 504);
    rig.logged(&format!("worker {worker} is killed: it took too long to answer"));
    rig.logged("in stands_still");
    assert!(!rig.log().contains("does not release"), "{}", rig.log());
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn blocked_event_loop_is_replaced_before_it_is_killed() {
    let rig = python_events(|options| options.settings.timeouts.request = Duration::from_millis(500));
    let worker = rig.ready(1)[0];
    assert_eq!(rig.get("/blocked").status, 504);
    let mut both = false;
    until("another one, or the end", || {
        both |= rig.pids("ready").contains(&worker) && rig.app.processes().len() > 2;
        both || !is_alive(worker)
    });
    assert!(both, "another one is started meanwhile");
    rig.logged("and does not release the request");
    until("its end", || !is_alive(worker));
    assert_eq!(rig.get("/leave-work").status, 200);
}

#[test]
fn blocked_worker_is_killed_despite_reload_stop_or_drain() {
    for end in ["reload", "stop", "drain"] {
        let rig = python_events(|options| {
            options.settings.timeouts.request = Duration::from_millis(500);
            options.settings.timeouts.stop = Duration::from_secs(50);
        });
        let worker = rig.ready(1)[0];
        assert_eq!(rig.get("/blocked").status, 504);
        match end {
            "reload" => rig.app.reload(),
            "stop" => rig.app.stop(),
            _ => rig.drain(),
        }
        rig.logged(&format!(
            "worker {worker} is killed: it took too long to answer, and does not release the request"
        ));
        rig.logged("in stands_still");
        until("its end", || !is_alive(worker));
    }
}

#[test]
fn pause_in_a_response_has_its_own_timeout() {
    let rig = python(|options| {
        options.settings.timeouts.request = Duration::from_millis(500);
        options.settings.timeouts.between = Some(Duration::from_secs(60));
    });
    rig.get("/pause?2").expect(200, "first second");
    let rig = python(|options| options.settings.timeouts.between = Some(Duration::from_millis(500)));
    let mut client = rig.connect();
    client.send("GET /pause?60 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(String::from_utf8(client.rest()).unwrap().contains("first "));
    rig.logged("GET /pause: its answer paused, and is cut short: within 0.5 s (timeouts.between)");
}

// ---- the log ----

#[test]
fn incomplete_log_lines_are_written_separately() {
    let rig = python(|_| {});
    assert_eq!(rig.get("/halves").status, 200);
    rig.logged("half of a line of errors");
    rig.logged("half of a line of output");
    let log = rig.log();
    for line in ["half of a line of output", "half of a line of errors"] {
        assert!(log.lines().any(|other| other == line), "{log}");
    }
}

// ---- the channel ----

#[test]
fn a_damaged_channel_is_replaced() {
    let rig = perl("damaged", |_| {});
    let damaged = rig.ready(1)[0];
    assert_eq!(rig.get("/scribble").status, 200);
    kill(damaged, "-KILL");
    let since = Instant::now();
    until("an answer", || rig.get("/").status == 200);
    assert!(since.elapsed() < Duration::from_secs(30), "nobody waits for ever: {:?}", since.elapsed());
    rig.logged("a worker has damaged the channel of generation 1");
    until("the next generation alone", || rig.app.processes().iter().all(|process| process.generation == 2));
    assert_eq!(rig.get("/").status, 200);
}

/// Random data in the memory after the header harms only the application itself, and only temporarily.
#[test]
fn server_survives_random_data_in_the_channel() {
    for noise in ["ff", "00", "01", "55"] {
        let rig = perl("noise", |options| {
            options.settings.timeouts.request = Duration::from_secs(2);
            options.settings.timeouts.queue = Duration::from_secs(2);
        });
        rig.ready(1);
        let mut client = rig.connect();
        let head = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.send(format!("GET /scribble-with-{noise} {head}"));
        client.rest();
        until(&format!("answers after {noise}"), || (0..5).all(|_| rig.get("/").status == 200));
    }
}

#[test]
fn repeatedly_damaged_channel_is_replaced_with_growing_pauses() {
    let rig = perl("damages", |_| {});
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(6) {
        let _ = rig.get("/scribble").status;
        std::thread::sleep(Duration::from_millis(100));
    }
    // Immediately, and after pauses of 1, 2, 4 and more seconds.
    let count = rig.log().matches("has damaged the channel").count();
    let most = 1 + (since.elapsed().as_secs() + 2).ilog2() as usize;
    assert!((1..=most).contains(&count), "{count} of {most}: {}", rig.log());
}

// ---- request variables ----

#[test]
fn server_port_is_the_listening_port_despite_the_host_field() {
    let rig = Rig::perl("all", one_worker);
    for host in ["shop.example", "shop.example:443"] {
        let mut client = rig.connect();
        client.send(format!("GET /env HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let text = client.answer().text();
        let port = rig.address.port();
        assert!(text.contains(&format!("SERVER_NAME=shop.example\nSERVER_PORT={port}\n")), "{text}");
    }
}

/// See RFC 9112 section 3.2.2.
#[test]
fn host_of_an_absolute_target_overrides_the_host_field() {
    let rig = Rig::perl("all", one_worker);
    let mut client = rig.connect();
    client.send("GET http://shop.example/env HTTP/1.1\r\nHost: other.example\r\n\r\n");
    let text = client.answer().text();
    assert!(
        text.contains("SERVER_NAME=shop.example\n") && text.contains("HTTP_HOST=shop.example\n"),
        "{text}"
    );
}
