//! HTTP/2 load: several streams per connection, and servers that end them early.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::plan::{Arrivals, ConnectOptions, LoadPlan, Pace};
use bench::request::{BenchRequest, RequestSettings};
use bench::tally;
use bench::url::Url;
use http::{Status, Version};
use http2::{ErrorCode, Event, Machine, Options};

use crate::common::{self, run};

/// Response to a request.
#[derive(Clone, Copy)]
enum Reaction {
    /// Status 200 with this number of bytes.
    Content(usize),
    /// RST_STREAM.
    Reset(ErrorCode),
    /// Status 200 with two bytes; the connection accepts no further streams.
    Leave,
    /// Closes the connection immediately.
    Close,
    /// Sends nothing.
    Silence,
    /// Status 200 without content, after this time.
    Later(Duration),
}

/// Server that chooses its reaction by the number of the request, counted over all connections.
struct StreamServer {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    /// Bytes of request content received.
    received: Arc<AtomicU64>,
}

fn server(options: Options, react: impl Fn(u64) -> Reaction + Clone + Send + 'static) -> StreamServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, received, count) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let made = connections.clone();
    let taken = received.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            made.fetch_add(1, Ordering::Relaxed);
            let react = react.clone();
            let taken = taken.clone();
            let count = count.clone();
            std::thread::spawn(move || serve(stream, options, &react, &taken, &count));
        }
    });
    StreamServer { address, connections, received }
}

fn serve(
    mut link: TcpStream,
    options: Options,
    react: &dyn Fn(u64) -> Reaction,
    taken: &AtomicU64,
    count: &AtomicU64,
) {
    let mut machine = Machine::server(options);
    let mut held = Vec::new();
    let mut buffer = vec![0; 65_536];
    let mut out = Vec::new();
    // Response content that the flow-control windows did not allow to be sent yet.
    let mut waiting: Vec<(u32, usize)> = Vec::new();
    let mut late: VecDeque<(Instant, u32)> = VecDeque::new();
    link.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    loop {
        while late.front().is_some_and(|(at, _)| *at <= Instant::now()) {
            let (_, stream) = late.pop_front().unwrap();
            machine.respond(stream, Status::OK, true, &mut out).unwrap();
            machine.release(stream);
        }
        waiting.retain_mut(|(stream, left)| {
            *left -= machine.data(*stream, &vec![b'x'; *left], true, &mut out);
            if *left == 0 {
                machine.release(*stream);
            }
            *left > 0
        });
        machine.flush(&mut out);
        if link.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let len = match link.read(&mut buffer) {
            Ok(len @ 1..) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            _ => return,
        };
        held.extend_from_slice(&buffer[..len]);
        loop {
            let Ok((consumed, event)) = machine.feed(&held, 0) else { return };
            let whole = match event {
                Event::NeedMore => {
                    held.drain(..consumed);
                    break;
                }
                Event::Head { stream, ended } => ended.then_some(stream),
                Event::Data { stream, data, ended } => {
                    taken.fetch_add(data.len() as u64, Ordering::Relaxed);
                    machine.grant(stream, data.len());
                    ended.then_some(stream)
                }
                _ => None,
            };
            held.drain(..consumed);
            let Some(stream) = whole else { continue };
            match react(count.fetch_add(1, Ordering::Relaxed)) {
                Reaction::Content(len) => {
                    machine
                        .respond(stream, Status::OK, len == 0, &mut out)
                        .unwrap()
                        .content_length(len as u64);
                    waiting.push((stream, len));
                }
                Reaction::Leave => {
                    machine.respond(stream, Status::OK, false, &mut out).unwrap();
                    waiting.push((stream, 2));
                    machine.shutdown();
                    machine.finish_shutdown();
                }
                Reaction::Reset(code) => {
                    machine.reset(stream, code);
                    machine.release(stream);
                }
                Reaction::Close => return,
                Reaction::Silence => {}
                Reaction::Later(time) => late.push_back((Instant::now() + time, stream)),
            }
        }
    }
}

fn plan(server: &StreamServer, streams: usize, requests: u64) -> LoadPlan {
    plan_of(&[BenchRequest::get(url(server))], streams, requests)
}

fn url(server: &StreamServer) -> Url {
    Url::parse(&format!("http://{}/", server.address)).unwrap()
}

fn plan_of(asks: &[BenchRequest], streams: usize, requests: u64) -> LoadPlan {
    let manner = RequestSettings { version: Version::Http2, keep_alive: true, ..RequestSettings::default() };
    let plan = LoadPlan::new(asks, &manner, &ConnectOptions::default()).unwrap();
    LoadPlan {
        connections: 2,
        pipeline: streams,
        duration: None,
        requests_max: Some(requests),
        warm_up: Duration::ZERO,
        ..plan
    }
}

#[test]
fn many_streams_share_few_connections() {
    let server = server(Options::default(), |_| Reaction::Content(300_000));
    let tally = run(&LoadPlan { verify: true, ..plan(&server, 32, 400) }).tally;
    assert_eq!((tally.responses, tally.errors.total(), tally.content_bytes), (400, 0, 400 * 300_000));
    assert_eq!((tally.different_lengths, tally.different_contents, tally.connections), (0, 0, 2));
}

#[test]
fn no_more_streams_are_opened_than_the_server_allows() {
    // The server resets streams beyond its limit; a refused stream is sent again and would be counted twice.
    let seen = Arc::new(AtomicU64::new(0));
    let counted = seen.clone();
    let server = server(Options { streams_max: 3, ..Options::default() }, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Reaction::Content(10)
    });
    let tally = run(&plan(&server, 100, 500)).tally;
    assert_eq!((tally.responses, tally.errors.total()), (500, 0));
    assert_eq!(seen.load(Ordering::Relaxed), 500);
}

#[test]
fn request_content_follows_flow_control() {
    let server = server(Options::default(), |_| Reaction::Content(2));
    let ask = BenchRequest {
        method: "POST".into(),
        body: Some(vec![b'u'; 200_000]),
        ..BenchRequest::get(url(&server))
    };
    let tally = run(&plan_of(&[ask], 8, 50)).tally;
    assert_eq!((tally.responses, tally.errors.total()), (50, 0));
    assert_eq!(server.received.load(Ordering::Relaxed), 50 * 200_000);
}

#[test]
fn refused_streams_are_retried_and_other_resets_fail() {
    let refused = server(Options::default(), |number| match number % 10 {
        3 => Reaction::Reset(ErrorCode::REFUSED_STREAM),
        _ => Reaction::Content(1),
    });
    let tally = run(&plan(&refused, 4, 200)).tally;
    assert_eq!((tally.responses, tally.errors.total()), (200, 0));
    let broken = server(Options::default(), |number| match number % 10 {
        3 => Reaction::Reset(ErrorCode::INTERNAL_ERROR),
        _ => Reaction::Content(1),
    });
    let tally = run(&plan(&broken, 4, 200)).tally;
    assert_eq!((tally.responses, tally.errors.count_and_example(tally::ErrorKind::Closed).0), (180, 20));
}

#[test]
fn connection_closed_by_goaway_is_replaced_without_loss() {
    let server = server(Options::default(), |number| match number % 20 {
        19 => Reaction::Leave,
        _ => Reaction::Content(5),
    });
    let tally = run(&plan(&server, 8, 300)).tally;
    assert_eq!((tally.responses, tally.errors.total()), (300, 0));
    assert!(server.connections.load(Ordering::Relaxed) > 5);
}

#[test]
fn closed_and_silent_connections_are_counted_as_errors() {
    let closes = server(Options::default(), |_| Reaction::Close);
    let tally = run(&LoadPlan { connections: 1, ..plan(&closes, 2, 6) }).tally;
    assert_eq!((tally.responses, tally.errors.count_and_example(tally::ErrorKind::Closed).0), (0, 6));
    let silent = server(Options::default(), |_| Reaction::Silence);
    let timeout = Duration::from_millis(200);
    let tally = run(&LoadPlan { connections: 1, timeout, ..plan(&silent, 2, 4) }).tally;
    assert_eq!((tally.responses, tally.errors.count_and_example(tally::ErrorKind::Timeout).0), (0, 4));
}

#[test]
fn hanging_request_times_out_alone() {
    let server = server(Options::default(), |number| match number % 20 {
        7 => Reaction::Silence,
        _ => Reaction::Content(1),
    });
    let timeout = Duration::from_millis(300);
    let tally = run(&LoadPlan { connections: 1, timeout, ..plan(&server, 16, 200) }).tally;
    let timeouts = tally.errors.count_and_example(tally::ErrorKind::Timeout).0;
    assert_eq!((tally.responses, timeouts, tally.errors.total()), (190, 10, 10));
    assert_eq!(tally.connections, 1, "the others go on");
}

#[test]
fn due_requests_do_not_wait_for_responses_to_others() {
    let server = server(Options::default(), |_| Reaction::Later(Duration::from_millis(400)));
    let pace = Pace::Open { rate: 50.0, arrivals: Arrivals::Constant };
    let tally = run(&LoadPlan { connections: 1, pace, ..plan(&server, 200, 60) }).tally;
    assert_eq!((tally.responses, tally.errors.total()), (60, 0));
    // A request that leaves with the next response would take up to twice the time.
    let median = Duration::from_nanos(tally.latency.percentile(50.0));
    assert!(median < Duration::from_millis(600), "{median:?}");
}

#[test]
fn due_requests_pass_connections_whose_streams_are_used_up() {
    // The first two requests, which one connection gets, are never answered: it may have no more.
    let server = server(Options { streams_max: 2, ..Options::default() }, |number| match number {
        0 | 1 => Reaction::Silence,
        _ => Reaction::Content(1),
    });
    let pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Constant };
    let duration = Some(Duration::from_millis(500));
    let tally = run(&LoadPlan { duration, requests_max: None, pace, ..plan(&server, 8, 1) }).tally;
    let unanswered = tally.errors.count_and_example(tally::ErrorKind::Unanswered).0;
    assert_eq!((tally.responses, unanswered, tally.errors.total()), (48, 2, 2), "{:?}", tally.errors);
}

#[test]
fn http2_requests_to_an_http1_server_fail() {
    let origin = common::origin(|_| common::ok("x"));
    let url = Url::parse(&origin.url("/")).unwrap();
    let tally = run(&LoadPlan { connections: 1, ..plan_of(&[BenchRequest::get(url)], 1, 2) }).tally;
    assert_eq!((tally.responses, tally.errors.total()), (0, 2));
}
