//! Slow clients do not occupy upstream connections: unread bytes wait in temporary files.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::rig::{Options, Origin, Rig};
use http::{Fields, Method, Status};
use net::{Exchange, Fault, SpillQuota, SpillStore};
use proxy::{Group, GroupShared, Proxy};
use times::Millis;

/// More than the socket buffers hold.
const BODY_BYTES: usize = 20 << 20;

/// Starts an upstream server with large responses.
fn origin(framing: &'static str) -> Origin {
    Origin::start(move |mut caller, _| {
        let body: Vec<u8> = (0..BODY_BYTES).map(|at| (at % 251) as u8).collect();
        while let Some(request) = caller.request() {
            if !request.starts_with(b"GET /much") {
                caller.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                continue;
            }
            caller.send(framing);
            if framing.contains("chunked") {
                for piece in body.chunks(1 << 20) {
                    caller.send(&format!("{:x}\r\n", piece.len()));
                    caller.send_bytes(piece);
                    caller.send("\r\n");
                }
                caller.send("0\r\nX-Last: yes\r\n\r\n");
            } else {
                caller.send_bytes(&body);
            }
        }
    })
}

fn spilling(origin: &Origin, bytes_max: u64) -> (Rig, Arc<SpillQuota>) {
    let store = SpillStore::new(&std::env::temp_dir(), u64::MAX);
    let quota = SpillQuota::new(&store, bytes_max).unwrap();
    let mut server = origin.server();
    server.connections_max = 1;
    let mut options = Options::to(vec![server]);
    options.route.timeouts.queue = Millis(20_000);
    (Rig::spilling(options, Some(quota.clone())), quota)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(60), "never: {what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn slow_readers_hold_no_upstream_connection() {
    for framing in [
        "HTTP/1.1 200 OK\r\nContent-Length: 20971520\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let origin = origin(framing);
        let (rig, quota) = spilling(&origin, u64::MAX);
        let mut readers: Vec<_> = (0..6)
            .map(|_| {
                let mut client = rig.client();
                client.send("GET /much HTTP/1.1\r\nHost: site.test\r\n\r\n");
                client
            })
            .collect();
        // Served on the only connection, after all the large responses.
        assert_eq!(rig.get("/").text(), "ok");
        assert!(quota.used() > 6 << 20);
        // Other tasks run while much is sent.
        readers.truncate(3);
        for mut reader in readers {
            let response = reader.response(Method::Get).unwrap();
            assert_eq!(response.body.len(), BODY_BYTES);
            assert!(response.body.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            assert_eq!(response.trailers.contains("X-Last"), framing.contains("chunked"));
        }
        until("all space is free", || quota.used() == 0);
    }
}

#[test]
fn upstream_waits_for_the_client_beyond_the_spill_quota() {
    let origin = origin("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let (rig, quota) = spilling(&origin, 1 << 20);
    let mut reader = rig.client();
    reader.send("GET /much HTTP/1.1\r\nHost: site.test\r\n\r\n");
    until("a full file", || quota.used() > 512 * 1024);
    assert!(quota.used() <= 1 << 20);
    let response = reader.response(Method::Get).unwrap();
    assert!(response.body.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    assert_eq!(response.body.len(), BODY_BYTES);
    until("all space is free", || quota.used() == 0);
}

/// A service that blocks all threads for blocking calls on a request for `/hold`, until the test releases
/// them.
struct Holding {
    proxy: Proxy,
    is_over: Arc<(Mutex<bool>, Condvar)>,
}

impl net::Service for Holding {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        if x.request().path() != b"/hold" {
            return self.proxy.serve(x).await;
        }
        let core = x.core().clone();
        let jobs = (0..net::Options::default().blocking_threads_max).map(|_| {
            let is_over = self.is_over.clone();
            let wait = move || drop(is_over.1.wait_while(is_over.0.lock().unwrap(), |is_over| !*is_over));
            Box::pin(core.offload_as(net::offload::BlockingKind::Spill, wait))
        });
        let mut jobs: Vec<_> = jobs.collect();
        poll_fn(|cx| {
            jobs.retain_mut(|job| job.as_mut().poll(cx).is_pending());
            if jobs.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        x.reply(Status::NO_CONTENT, &Fields::new(), b"").await
    }

    fn log(&self, _: &net::RequestRecord<'_>) {}
}

#[test]
fn failed_spill_file_creation_does_not_truncate_the_response() {
    let origin = origin("HTTP/1.1 200 OK\r\nContent-Length: 20971520\r\n\r\n");
    let options = Options::to(vec![origin.server()]);
    let quota = SpillQuota::new(&SpillStore::new(Path::new("/nowhere"), u64::MAX), u64::MAX);
    let route = Arc::new(options.route);
    let shared = GroupShared::new(options.group).unwrap();
    let is_over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let theirs = is_over.clone();
    let rig = Rig::serving(1, shared, move |core, shared| Holding {
        proxy: Group::new(core, shared).proxy(&route, quota.clone()),
        is_over: theirs.clone(),
    });
    let mut holding = rig.client();
    holding.send("GET /hold HTTP/1.1\r\nHost: site.test\r\n\r\n");
    let mut client = TcpStream::connect(rig.address).unwrap();
    client.write_all(b"GET /much HTTP/1.1\r\nHost: site.test\r\n\r\n").unwrap();
    // Wait until the client is so far behind that a file is to be created, for which no thread is free.
    let mut waiting = 0;
    let mut quiet = 0;
    while waiting == 0 || quiet < 10 {
        sleep(Duration::from_millis(50));
        let now = rustix::io::ioctl_fionread(&client).unwrap();
        quiet = if now == waiting { quiet + 1 } else { 0 };
        waiting = now;
    }
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut got = 0;
    while let Ok(len @ 1..) = client.read(&mut piece) {
        got += len;
    }
    assert!(got < BODY_BYTES);
    *is_over.0.lock().unwrap() = true;
    is_over.1.notify_all();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    while got < BODY_BYTES {
        let len = client.read(&mut piece).unwrap();
        assert!(len > 0, "cut after {got} bytes");
        got += len;
    }
}
