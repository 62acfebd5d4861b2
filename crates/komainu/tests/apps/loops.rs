//! Event loops: flushing of responses, state shared between requests, and client disconnects.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

use crate::hosted::{Client, folder, only, ready, server, start};
use crate::rig::{Rig, as_we_are, eventually};

const ASGI: &str = "\
import asyncio, contextvars, os, time
var = contextvars.ContextVar('var', default='unset')
left = 0

async def produce(send):
    await asyncio.sleep(.005)
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    for _ in range(4):
        await send({'type': 'http.response.body', 'body': b'x' * 15 * 1024, 'more_body': True})
    await send({'type': 'http.response.body', 'body': b'x' * 10 * 1024})

async def trail(send):
    await asyncio.sleep(.005)
    await send({'type': 'http.response.start', 'status': 200, 'headers': [], 'trailers': True})
    for _ in range(4):
        await send({'type': 'http.response.body', 'body': b'x' * 15 * 1024, 'more_body': True})
    await send({'type': 'http.response.body', 'body': b'x' * 3 * 1024})
    await send({'type': 'http.response.trailers', 'headers': [(b'x-last', b'y' * 9000)]})

async def hint(send):
    await asyncio.sleep(.005)
    for _ in range(20):
        await send({'type': 'http.response.early_hint', 'links': [b'</' + b'a' * 7000 + b'>; rel=preload']})
    await answer(send, b'hinted')

async def answer(send, body):
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': body})

async def context(send):
    seen = var.get()
    var.set('set')
    await asyncio.sleep(.05)
    await answer(send, seen.encode())

async def wait(send):
    global left
    try:
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'begun', 'more_body': True})
        await asyncio.Event().wait()
    finally:
        left += 1

async def linger(send):
    try:
        await wait(send)
    finally:
        time.sleep(.01)

async def app(scope, receive, send):
    if scope['type'] != 'http':
        raise RuntimeError('no lifespan')
    path = scope['path']
    if path == '/left':
        return await answer(send, b'%d' % left)
    if path == '/ping':
        return await answer(send, b'pong')
    if path == '/pid':
        return await answer(send, b'%d' % os.getpid())
    await {'/pieces': produce, '/trailers': trail, '/hints': hint, '/context': context, '/wait': wait, '/linger': linger}[path](send)
";

fn one_worker(more: &str) -> Rig {
    start(
        folder("a.py", ASGI),
        &format!("threads = 1\n{}", only(&format!("asgi = \"a.py:app\"\nworkers = 1\n{more}"))),
    )
}

#[test]
fn asgi_responses_larger_than_a_slot_are_delivered() {
    let rig = one_worker("");
    for path in ["/pieces", "/trailers"] {
        for at in 0..6 {
            let (status, body) = Client::new(rig.address).get(path);
            assert_eq!(status, 200, "{path} {at}");
            assert!(body.len() >= 63 * 1024, "{path} {at}");
        }
    }
}

#[test]
fn stalled_clients_do_not_block_the_event_loop() {
    // With the usual room for clients that read slowly, and with none.
    for room in ["", "spill = \"0B\"\nanswer_ahead = \"0B\"\n"] {
        stalled_clients_do_not_block(room);
    }
}

fn stalled_clients_do_not_block(room: &str) {
    // No client is given up before the other's request times out.
    let rig = one_worker(&format!("{room}[timeouts]\nwrite = \"10m\""));
    for path in ["/pieces", "/trailers", "/hints"] {
        let mut silent: Vec<TcpStream> = Vec::new();
        for _ in 0..3 {
            let mut stream = rig.connect();
            sockopt::set_socket_recv_buffer_size(&stream, 1024).unwrap();
            let asks = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(30);
            stream.write_all(asks.as_bytes()).unwrap();
            silent.push(stream);
        }
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(Client::new(rig.address).get("/ping"), (200, "pong".into()), "{path} {room}");
    }
}

#[test]
fn asgi_context_variables_are_not_shared_between_requests() {
    let rig = one_worker("concurrency = 2");
    let clients: Vec<_> = (0..12)
        .map(|_| {
            let address = rig.address;
            std::thread::spawn(move || Client::new(address).get("/context"))
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().unwrap(), (200, "unset".into()));
    }
}

/// Requests an endless response, reads its beginning, and resets the connection.
fn reset(rig: &Rig, ask: &str) {
    let mut stream = rig.connect();
    stream.write_all(ask.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn client_disconnects_cancel_event_loop_tasks() {
    let rig = one_worker("concurrency = 10");
    for _ in 0..3 {
        for _ in 0..10 {
            reset(&rig, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        // Each place is taken by a task that ends only when it is cancelled.
        assert_eq!(Client::new(rig.address).get("/ping"), (200, "pong".into()));
    }
    eventually("each task was cancelled", || Client::new(rig.address).get("/left").1 == "30");
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

/// Opens an HTTP/2 connection without TLS on which `streams` streams request `path`.
pub(crate) fn http2(rig: &Rig, path: &str, streams: u8) -> TcpStream {
    let mut stream = rig.connect();
    // `:method: GET`, `:scheme: http`, and path and authority as literals without indexing.
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'a']);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in 0..streams {
        bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 2 * stream + 1]);
        bytes.extend_from_slice(&block);
    }
    stream.write_all(&bytes).unwrap();
    stream
}

#[test]
fn http2_stream_reset_cancels_its_task() {
    let config = only("asgi = \"a.py:app\"\nworkers = 1\nconcurrency = 10");
    let folder = folder("a.py", ASGI);
    let text = format!("listen = {{ address = \"127.0.0.1:0\", h2c = true }}\n{}{config}", as_we_are());
    folder.write("komainu.toml", text);
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let mut streams: Vec<_> = (0..10).map(|_| http2(&rig, "/wait", 1)).collect();
    for stream in &mut streams {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"begun") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        stream.write_all(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]).unwrap();
    }
    assert_eq!(Client::new(rig.address).get("/ping"), (200, "pong".into()));
    eventually("each task was cancelled", || Client::new(rig.address).get("/left").1 == "10");
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

#[test]
fn requests_do_not_wait_for_a_blocked_event_loop() {
    let app = "\
import asyncio, os, time
async def app(scope, receive, send):
    if scope['type'] != 'http':
        raise RuntimeError('no lifespan')
    if scope['path'] == '/cpu':
        await asyncio.sleep(.05)
        open('begun', 'w').close()
        while not os.path.exists('go'):
            time.sleep(.01)
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'pong'})
";
    let config = format!("threads = 1\n{}", only("asgi = \"a.py:app\"\nworkers = 2"));
    let rig = start(folder("a.py", app), &config);
    ready(&rig, 2);
    let mut computing = Client::new(rig.address);
    computing.send("GET /cpu HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("its loop is blocked", || rig.folder.at("begun").exists());
    for _ in 0..5 {
        assert_eq!(Client::new(rig.address).get("/ping"), (200, "pong".into()));
    }
    rig.folder.write("go", "");
    assert_eq!(computing.answer(), (200, "pong".into()));
}

#[test]
fn requests_are_spread_over_processes_before_threads() {
    let app = "\
import os, time
def app(environ, start_response):
    time.sleep(.5)
    start_response('200 OK', [])
    return [b'%d' % os.getpid()]
";
    let config = format!("threads = 1\n{}", only("wsgi = \"a.py:app\"\nworkers = 2\nthreads = 4"));
    let rig = start(folder("a.py", app), &config);
    let pids = ready(&rig, 2);
    let seen = || -> Vec<u32> {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let address = rig.address;
                std::thread::sleep(Duration::from_millis(50));
                std::thread::spawn(move || Client::new(address).get("/").1)
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap().parse().unwrap()).collect()
    };
    // A busy machine may keep a process from claiming in time; another one is woken then.
    let is_spread =
        |seen: &Vec<u32>| pids.iter().all(|pid| seen.iter().filter(|one| *one == pid).count() == 2);
    let tries: Vec<_> = (0..5).map(|_| seen()).collect();
    assert!(tries.iter().filter(|seen| is_spread(seen)).count() >= 3, "{tries:?}");
}

#[test]
fn event_loop_cancelling_many_requests_is_not_killed() {
    // Long enough for all requests to have begun.
    let rig = one_worker("timeouts = { between = \"3s\" }");
    let process = Client::new(rig.address).get("/pid");
    // Cancelling all of them takes 2 s.
    let mut streams: Vec<TcpStream> = (0..200).map(|_| rig.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /linger HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    for stream in &mut streams {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    eventually("all are cancelled", || Client::new(rig.address).get("/left").1 == "200");
    assert_eq!(Client::new(rig.address).get("/pid"), process);
    assert!(!rig.reported().contains("is killed"), "{}", rig.reported());
}
