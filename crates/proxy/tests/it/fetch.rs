//! Requests without a client: what is sent and returned, including from misbehaving servers.

use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use crate::rig;
use crate::rig::{Caller, Options, Origin, Rig};
use http::Fields;
use net::{Core, Exchange, Fault, RequestRecord};
use proxy::{FetchError, FetchLimits, FetchRequest, Group, GroupShared, Proxy};
use times::Millis;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Result of a fetch.
#[derive(Debug, PartialEq, Eq)]
struct Fetched {
    status: u16,
    fields: String,
    body: Vec<u8>,
}

/// Runs `work` with a proxy on a core without a server.
fn run<T: 'static>(options: Options, work: impl AsyncFnOnce(Core, Proxy) -> T + 'static) -> T {
    let core = Core::for_client(1).unwrap();
    let shared = GroupShared::new(options.group).unwrap();
    let group = Group::new(&core, &shared);
    let proxy = group.proxy(&Arc::new(options.route), None);
    let theirs = core.clone();
    core.run_until_end(async move {
        let _group = group;
        work(theirs, proxy).await
    })
    .unwrap()
}

fn request(method: &str, target: &str, body: &[u8]) -> FetchRequest {
    FetchRequest::new(method, "site.test", target, &Fields::new(), body.to_vec()).unwrap()
}

async fn fetch(proxy: &Proxy, request: &FetchRequest, limits: FetchLimits) -> Result<Fetched, FetchError> {
    let proxy = proxy.bind();
    let mut response = proxy.fetch(request, &limits).await?;
    let mut fetched = Fetched {
        status: response.status().code(),
        fields: String::from_utf8(response.fields().as_bytes().to_vec()).unwrap(),
        body: Vec::new(),
    };
    while let Some(piece) = response.read().await? {
        fetched.body.extend_from_slice(piece);
    }
    assert_eq!(response.read().await, Ok(None), "the end stays the end");
    Ok(fetched)
}

/// Fetches `GET /` from a server that handles connections with `serve`.
fn get(
    options: impl FnOnce(&mut Options),
    limits: FetchLimits,
    serve: impl Fn(Caller, usize) + Send + Sync + 'static,
) -> Result<Fetched, FetchError> {
    let origin = Origin::start(serve);
    let mut to = Options::to(vec![origin.server()]);
    options(&mut to);
    run(to, async move |_, proxy| fetch(&proxy, &request("GET", "/", b""), limits).await)
}

#[test]
fn fetch_applies_route_rules_and_keeps_the_connection() {
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                 HTTP/1.1 404 Not Found\r\nETag: \"x\"\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
                 Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n",
            );
        }
    });
    let options = Options::to(vec![origin.server()]);
    let fetched = run(options, async |_, proxy| {
        let mut all = Vec::new();
        for target in ["/1", "/2?q", "/3"] {
            all.push(fetch(&proxy, &request("GET", target, b""), FetchLimits::default()).await.unwrap());
        }
        all
    });
    let want = || Fetched { status: 404, fields: "ETag: \"x\"\r\n".into(), body: b"abcde".to_vec() };
    assert_eq!(fetched, [want(), want(), want()]);
    assert_eq!(origin.connections(), 1);
    let seen = origin.seen();
    assert!(seen.starts_with("GET /1 HTTP/1.1\r\nHost: site.test\r\n"), "{seen}");
    assert_eq!(seen.matches("Via: 1.1 komainu").count(), 3);
    assert!(!seen.contains("X-Forwarded-For"), "{seen}");
}

#[test]
fn fetch_sends_its_body_while_reading_the_response() {
    // The server returns each piece as it reads it, so sending the whole body first would block for ever.
    let origin = Origin::start(|mut caller, _| {
        while caller.head().is_some() {
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n");
            while let Some(piece) = caller.body_piece() {
                caller.send_bytes(&piece);
            }
        }
    });
    let body: Vec<u8> = (0..8_000_000_u32).map(|at| (at % 251) as u8).collect();
    let expected = body.clone();
    let fetched = run(Options::to(vec![origin.server()]), async move |_, proxy| {
        let limits = FetchLimits { body_bytes_max: 8_000_000, ..FetchLimits::default() };
        fetch(&proxy, &request("POST", "/", &body), limits).await.unwrap()
    });
    assert!(fetched.body == expected);
}

#[test]
fn fetch_receives_a_response_sent_before_the_body_is_read() {
    let origin = Origin::start(|mut caller, _| {
        caller.head();
        caller.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
        // Bytes in flight are read, because otherwise the kernel would send a reset and discard the response.
        caller.rest();
    });
    let fetched = run(Options::to(vec![origin.server()]), async |_, proxy| {
        let body = vec![b'x'; 16_000_000];
        fetch(&proxy, &request("POST", "/", &body), FetchLimits::default()).await.unwrap()
    });
    assert_eq!((fetched.status, fetched.body), (413, b"big".to_vec()));
}

#[test]
fn fetch_retries_idempotent_requests_on_stale_connections() {
    // Each connection answers one request and closes when the second one arrives.
    let serve = |mut caller: Caller, _| {
        caller.request();
        caller.send(OK);
        caller.request();
    };
    let origin = Origin::start(serve);
    run(Options::to(vec![origin.server()]), async |_, proxy| {
        for number in 0..20 {
            let method = if number % 2 == 0 { "GET" } else { "PUT" };
            let fetched = fetch(&proxy, &request(method, "/", b"hi"), FetchLimits::default()).await;
            assert_eq!(fetched.unwrap().body, b"ok", "request {number}");
        }
    });
    assert_eq!(origin.connections(), 20);
    // A POST must not be sent twice.
    let origin = Origin::start(serve);
    let failed = run(Options::to(vec![origin.server()]), async |_, proxy| {
        fetch(&proxy, &request("GET", "/", b""), FetchLimits::default()).await.unwrap();
        fetch(&proxy, &request("POST", "/once", b"hi"), FetchLimits::default()).await.unwrap_err()
    });
    assert_eq!(failed.reason, "the upstream closed the connection before it answered");
    assert_eq!(origin.seen().matches("POST /once").count(), 1);
}

#[test]
fn fetch_tries_another_server_when_one_fails() {
    let broken = Origin::start(|mut caller, _| _ = caller.request());
    let good = Origin::answering(OK);
    let options = Options::to(vec![rig::server(rig::nobody()), broken.server(), good.server()]);
    run(options, async |_, proxy| {
        for _ in 0..6 {
            let fetched = fetch(&proxy, &request("GET", "/", b""), FetchLimits::default()).await;
            assert_eq!(fetched.unwrap().body, b"ok");
        }
    });
    assert!(broken.connections() > 0);
}

#[test]
fn dropped_fetch_closes_its_connection_and_frees_its_slot() {
    let origin = Origin::start(|mut caller, number| {
        caller.request();
        match number {
            0 => {}
            1 => caller.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"),
            _ => caller.send(OK),
        }
        caller.rest();
    });
    let mut options = Options::to(vec![origin.server()]);
    options.group.servers[0].connections_max = 1;
    let origin = Rc::new(origin);
    let seen = origin.clone();
    run(options, async move |core, proxy| {
        let limits = FetchLimits::default();
        let before_head = request("GET", "/1", b"");
        let bound = proxy.bind();
        let mut waiting = Box::pin(bound.fetch(&before_head, &limits));
        while !seen.seen().contains("GET /1") {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            core.sleep(Millis(1)).await;
        }
        drop(waiting);
        let mut begun = bound.fetch(&request("GET", "/2", b""), &limits).await.unwrap();
        assert_eq!(begun.read().await.unwrap(), Some(&b"ok"[..]));
        drop(begun);
        assert_eq!(fetch(&proxy, &request("GET", "/3", b""), limits).await.unwrap().body, b"ok");
    });
    origin.wait_idle();
    assert_eq!(origin.connections(), 3);
}

#[test]
fn fetch_rejects_invalid_and_endless_responses() {
    const SHORT: FetchLimits = FetchLimits { body_bytes_max: 100_000, total: Millis(60_000) };
    let once = |options: &mut Options| options.route.retry.attempts_max = 1;
    let said = |fetched: Result<Fetched, FetchError>| {
        let error = fetched.unwrap_err();
        (error.status.code(), error.reason)
    };
    let endless = |start: &'static str, more: &'static str| {
        move |mut caller: Caller, _: usize| {
            caller.request();
            caller.send(start);
            while caller.stream.write_all(more.as_bytes()).is_ok() {}
        }
    };
    let answer = |bytes: &'static str| {
        move |mut caller: Caller, _: usize| {
            caller.request();
            caller.send(bytes);
        }
    };
    let head = "HTTP/1.1 200 OK\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let too_long = (502, "the response is longer than may be read");
    // Endless heads, interim responses and bodies.
    assert_eq!(said(get(once, SHORT, endless(head, "X: y\r\n"))), (502, "too many fields"));
    assert_eq!(
        said(get(once, SHORT, endless("", "HTTP/1.1 103 Early Hints\r\n\r\n"))),
        (502, "the upstream sends interim responses without end")
    );
    assert_eq!(said(get(once, SHORT, endless("HTTP/1.1 200 OK\r\n\r\n", "body"))), too_long);
    assert_eq!(said(get(once, SHORT, endless(chunked, "4\r\nbody\r\n"))), too_long);
    let extension = endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", "extension");
    assert_eq!(said(get(once, SHORT, extension)).0, 502);
    assert_eq!(
        said(get(once, SHORT, endless("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "body"))),
        too_long
    );
    // Invalid chunk framing.
    for nonsense in ["nonsense\r\n", "-1\r\n", "4\r\nbodyX\r\n", "ffffffffffffffffff\r\n"] {
        let serve = move |mut caller: Caller, _: usize| {
            caller.request();
            caller.send(chunked);
            caller.send(nonsense);
            caller.rest();
        };
        assert_eq!(said(get(once, SHORT, serve)).0, 502, "{nonsense}");
    }
    for nonsense in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ] {
        assert_eq!(said(get(once, SHORT, answer(nonsense))).0, 502, "{nonsense}");
    }
    // Premature ends.
    let closed = (502, "the upstream closed the connection before it answered");
    for end in ["", "HTTP/1.1 200 O", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"] {
        assert_eq!(said(get(once, SHORT, answer(end))), closed, "{end}");
    }
    for end in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ] {
        let cut = (502, "the upstream closed in the middle of a response");
        assert_eq!(said(get(once, SHORT, answer(end))), cut, "{end}");
    }
}

#[test]
fn fetch_times_out_on_silent_and_slow_servers() {
    let silent = |bytes: &'static str| {
        move |mut caller: Caller, _: usize| {
            caller.request();
            caller.send(bytes);
            caller.rest();
        }
    };
    let slow = |bytes: &'static str, more: &'static str| {
        move |mut caller: Caller, _: usize| {
            caller.request();
            caller.send(bytes);
            while caller.stream.write_all(more.as_bytes()).is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    };
    let short = |options: &mut Options| {
        options.route.retry.attempts_max = 1;
        options.route.timeouts.head = Millis(100);
        options.route.timeouts.between = Millis(100);
    };
    let long = |options: &mut Options| options.route.retry.attempts_max = 1;
    let said = |fetched: Result<Fetched, FetchError>| fetched.unwrap_err().reason;
    let total = FetchLimits { total: Millis(200), ..FetchLimits::default() };
    let late = "the upstream took too long to answer";
    let stopped = "the upstream took too long in the middle of a response";
    assert_eq!(said(get(short, FetchLimits::default(), silent(""))), late);
    assert_eq!(said(get(short, FetchLimits::default(), silent("HTTP/1.1 200"))), late);
    assert_eq!(said(get(long, total, silent("HTTP/1.1 200 OK\r\n\r\nx"))), stopped);
    assert_eq!(
        said(get(short, FetchLimits::default(), silent("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx"))),
        stopped
    );
    // An occasional byte extends neither timeout.
    assert_eq!(said(get(short, FetchLimits::default(), slow("HTTP/1.1 200 OK\r\nX: ", "y"))), late);
    assert_eq!(said(get(long, total, slow("HTTP/1.1 200 OK\r\n\r\n", "x"))), stopped);
}

/// A service that asks a server for permission before it answers a client.
struct Gatekeeper(Proxy);

impl net::Service for Gatekeeper {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = FetchRequest::of(&x.request(), Vec::new());
        let fetched = fetch(&self.0, &request, FetchLimits::default()).await.unwrap();
        x.refuse(http::Status::FORBIDDEN, if fetched.body == b"ok" { "it was asked" } else { "?" }).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

#[test]
fn subrequest_about_a_client_request_omits_body_and_upgrade() {
    let origin = Origin::answering(OK);
    let options = Options::to(vec![origin.server()]);
    let route = Arc::new(options.route);
    let rig = Rig::serving(1, GroupShared::new(options.group).unwrap(), move |core, shared| {
        Gatekeeper(Group::new(core, shared).proxy(&route, None))
    });
    let refused = rig
        .ask(
            "POST /x?y HTTP/1.1\r\nHost: a.test\r\nX-Id: 7\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        )
        .refused();
    assert_eq!(refused, (403, "it was asked".into()));
    let seen = origin.seen();
    assert!(seen.starts_with("POST /x?y HTTP/1.1\r\nHost: a.test\r\nX-Id: 7\r\n"), "{seen}");
    assert!(
        seen.contains("Content-Length: 0\r\n") && seen.contains("X-Forwarded-For: 127.0.0.1\r\n"),
        "{seen}"
    );
    assert!(!seen.contains("pgrade") && !seen.contains("Expect") && !seen.contains("abc"), "{seen}");
}
