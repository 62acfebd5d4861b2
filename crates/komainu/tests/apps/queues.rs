//! Metrics and log entries of requests that wait for a worker.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::hosted::{Client, folder, only, server, start, status};
use crate::loops::http2;
use crate::rig;
use crate::rig::{Rig, as_we_are, connect, eventually, text};

const APP: &str = "sub { select(undef, undef, undef, 0.4); [200, [], ['done']] }";

#[test]
fn metrics_and_log_report_queue_time_and_worker_requests() {
    let config = r#"
        threads = 1

        [control]
        listen = "127.0.0.1:0"

        [log]
        access = '$uri $queue_ms'
        file = "access.log"
        level = "info"

        [[route]]
        app = "shop"

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        threads = 1
    "#;
    let rig = start(folder("app.psgi", APP), config);
    rig.get("/alone").expect(200, "done");
    // The only worker handles the first request while the second one waits.
    let mut waiting: Vec<_> = ["/first", "/second"]
        .map(|target| {
            let mut stream = connect(rig.address);
            let ask = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            std::io::Write::write_all(&mut stream, ask.as_bytes()).unwrap();
            stream
        })
        .into();
    for stream in &mut waiting {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert!(text(&bytes).ends_with("done"));
    }
    let said = "the control listener is http://";
    eventually("the control listener is there", || rig.reported().contains(said));
    let reported = rig.reported();
    let control = reported.split(said).nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let metrics = || text(&rig::curl(&["-s", &format!("http://{control}/metrics")]).stdout);
    let value = |line: &str| -> Option<f64> {
        metrics().lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(' ')?.parse().ok())
    };
    let labels = "{site=\"*\",route=\"*\",handler=\"app shop\"}";
    let count = format!("komainu_http_queue_seconds_count{labels}");
    eventually("all three are counted", || value(&count) == Some(3.0));
    let sum = value(&format!("komainu_http_queue_seconds_sum{labels}")).unwrap();
    assert!(sum >= 0.2, "the second has waited for the first: {sum} s");
    let answered = "komainu_app_worker_requests_total{app=\"shop\",worker=\"1\"}";
    eventually("its worker has answered them", || value(answered) == Some(3.0));
    for now in ["komainu_app_requests_waiting", "komainu_app_requests_active"] {
        eventually("none waits", || value(&format!("{now}{{app=\"shop\"}}")) == Some(0.0));
    }
    // Each line of the log has its own time.
    let lines = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the lines are there", || lines().lines().count() == 3);
    let lines = lines();
    let waits: Vec<f64> =
        lines.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    let longest = waits.iter().copied().fold(0.0, f64::max);
    assert!(longest >= 200.0 && waits.iter().any(|wait| *wait < longest / 2.0), "{lines}");
}

#[test]
fn recycle_requests_limit_counts_all_threads_of_a_worker() {
    let app = "\
import os
def app(environ, start_response):
    start_response('200 OK', [])
    return [b'%d' % os.getpid()]
";
    let config = only(
        r#"
        wsgi = "a.py:app"
        workers = 1
        threads = 8
        recycle = { requests = 80 }
        "#,
    );
    let rig = start(folder("a.py", app), &format!("threads = 1\n{config}"));
    let mut client = Client::new(rig.address);
    let first = client.get("/").1;
    // With one client at a time, a single thread answers. The number varies by a tenth.
    for at in 1..70 {
        // After this pause the same thread waits again.
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(client.get("/").1, first, "after {at} requests");
    }
    eventually("it is replaced", || client.get("/").1 != first);
}

/// Starts a WSGI application with one worker, 16 queue slots, and `threads` server threads, over HTTP/2
/// without TLS.
fn with_queue_of_16(app: &str, threads: usize) -> Rig {
    let folder = folder("a.py", app);
    let config = only(
        r#"
        wsgi = "a.py:app"
        workers = 1
        threads = 1
        queue = 16
        "#,
    );
    let written = format!(
        "listen = {{ address = \"127.0.0.1:0\", h2c = true }}\nthreads = {threads}\n{}{config}",
        as_we_are()
    );
    folder.write("komainu.toml", written);
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "done");
    rig
}

#[test]
fn application_queue_is_not_divided_by_the_number_of_cores() {
    let app = "\
import time
def app(environ, start_response):
    time.sleep(.1)
    start_response('200 OK', [])
    return [b'done']
";
    let rig = with_queue_of_16(app, 4);
    // All streams of a connection are handled by one core.
    let mut stream = http2(&rig, "/", 16);
    let mut answered = 0;
    while answered < 16 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            // HPACK index of `:status 200`.
            assert_eq!(payload[0], 0x88, "after {answered} answers");
            answered += 1;
        }
    }
}

#[test]
fn a_burst_on_several_threads_is_bounded_by_the_queue() {
    let app = "\
import os, time
def app(environ, start_response):
    open(environ['PATH_INFO'] + '.begun', 'w').close()
    while not os.path.exists(environ['PATH_INFO']):
        time.sleep(.01)
    start_response('200 OK', [])
    return [b'done']
";
    let rig = with_queue_of_16(app, 2);
    let gate = rig.folder.at("gate");
    // The worker has a request before any waits. The streams of the second connection are all on one thread
    // and fill the queue; the other connections may be on either thread.
    let refused = Arc::new(AtomicUsize::new(0));
    let mut streams = vec![(http2(&rig, &gate.display().to_string(), 1), 1)];
    eventually("a request has begun", || rig.folder.at("gate.begun").exists());
    streams.push((http2(&rig, &gate.display().to_string(), 16), 16));
    eventually("the queue is full", || status(&rig)["apps"][0]["queue"]["waiting"] == 16);
    streams.extend((0..6).map(|_| (http2(&rig, &gate.display().to_string(), 8), 8)));
    let readers: Vec<_> = streams
        .into_iter()
        .map(|(stream, count)| {
            let refused = refused.clone();
            std::thread::spawn(move || successes(stream, count, &refused))
        })
        .collect();
    eventually("the others are refused", || refused.load(Ordering::Relaxed) >= 65 - 18);
    fs::write(&gate, "").unwrap();
    let answered: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    // The worker handles one request; the thread with an empty queue may add one.
    assert!((17..=18).contains(&answered), "{answered} of 65 were answered");
}

/// Returns the number of streams, out of `count`, that get status 200; adds the others to `refused` as they come.
fn successes(mut stream: std::net::TcpStream, count: usize, refused: &AtomicUsize) -> usize {
    let mut heads = 0;
    let mut successes = 0;
    while heads < count {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            heads += 1;
            // HPACK index of `:status 200`.
            let is_success = payload[0] == 0x88;
            successes += usize::from(is_success);
            refused.fetch_add(usize::from(!is_success), Ordering::Relaxed);
        }
    }
    successes
}
