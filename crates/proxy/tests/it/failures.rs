//! Upstream servers that fail in various ways, and the client's view of each failure.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::rig;
use crate::rig::{Options, Origin, Rig, nobody, server};
use http::{Method, Status};
use proxy::{Group, GroupShared};
use times::Millis;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns options with short timeouts and a single attempt.
fn impatient(origin: &Origin) -> Options {
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.connect = Millis(300);
    options.route.timeouts.head = Millis(300);
    options.route.timeouts.between = Millis(300);
    options.route.retry.attempts_max = 1;
    options
}

#[test]
fn refused_connection_yields_502() {
    let rig = Rig::with(Options::to(vec![server(nobody())]));
    assert_eq!(rig.get("/").refused(), (502, "the upstream refused the connection".into()));
}

#[test]
fn connect_timeout_yields_504_or_another_server() {
    // The listen backlog is full: the kernel leaves further connection attempts unanswered.
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let listener = listener.unwrap();
    rustix::net::bind(&listener, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = std::net::SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let wait = std::time::Duration::from_millis(100);
    let queued: Vec<_> =
        (0..8).map_while(|_| std::net::TcpStream::connect_timeout(&address, wait).ok()).collect();
    assert!(queued.len() < 8, "the queue is never full");
    let mut options = Options::to(vec![server(address)]);
    options.route.timeouts.connect = Millis(300);
    options.route.retry.attempts_max = 1;
    let slow = (504, "the upstream could not be reached in time".into());
    assert_eq!(Rig::with(options.clone()).get("/").refused(), slow);
    // The request goes to another server, whatever its method, because nothing was sent.
    let origin = Origin::answering(OK);
    options.group.servers.push(origin.server());
    options.route.retry.attempts_max = 2;
    let rig = Rig::with(options);
    for _ in 0..4 {
        assert_eq!(rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").text(), "ok");
    }
}

#[test]
fn unresolvable_host_name_yields_502() {
    let at = proxy::options::UpstreamAddress::Tcp { host: "no-such-name.invalid".into(), port: 80 };
    let rig = Rig::with(Options::to(vec![proxy::options::UpstreamServer::new(at)]));
    assert_eq!(rig.get("/").refused(), (502, "the upstream's name cannot be resolved".into()));
}

#[test]
fn missing_unix_socket_yields_502() {
    let at = proxy::options::UpstreamAddress::Unix("/nowhere/app.sock".into());
    let rig = Rig::with(Options::to(vec![proxy::options::UpstreamServer::new(at)]));
    assert_eq!(rig.get("/").refused(), (502, "the upstream's socket does not exist".into()));
}

#[test]
fn silent_upstream_yields_504() {
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.rest();
    });
    let rig = Rig::with(impatient(&origin));
    assert_eq!(rig.get("/").refused(), (504, "the upstream took too long to answer".into()));
}

#[test]
fn only_server_is_asked_again_if_retries_say_so() {
    // The first connection of two has no answer: it is closed, or stays silent.
    for is_silent in [false, true] {
        let origin = Origin::start(move |mut caller, number| {
            caller.request();
            if number % 2 == 1 {
                caller.send(OK.replace("200 OK", "200 OK\r\nConnection: close").as_str());
            } else if is_silent {
                caller.rest();
            }
        });
        let mut options = impatient(&origin);
        options.route.retry.attempts_max = 2;
        let expected = if is_silent {
            (504, "the upstream took too long to answer".into())
        } else {
            (502, "the upstream closed the connection before it answered".into())
        };
        assert_eq!(Rig::with(options.clone()).get("/").refused(), expected);
        assert_eq!(origin.connections(), 1);
        assert_eq!(Rig::with(options.clone()).get("/").text(), "ok");
        options.route.retry.same_server = true;
        assert_eq!(Rig::with(options).get("/").text(), "ok");
        assert_eq!(origin.connections(), 4);
    }
}

#[test]
fn total_timeout_bounds_the_whole_request() {
    // An occasional byte keeps every other timeout from expiring.
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        use std::io::Write;
        while caller.stream.write_all(b"x").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.total = Some(Millis(400));
    let rig = Rig::with(options);
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.response(Method::Get).is_err());
}

#[test]
fn invalid_responses_yield_502_with_a_reason() {
    for (answer, reason) in [
        ("HTTP/1.1 200 OK\r\nContent-Le", "the upstream closed the connection before it answered"),
        ("", "the upstream closed the connection before it answered"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "invalid version"),
        ("HTTP/2.0 200 OK\r\n\r\n", "unknown HTTP version"),
        ("HTTP/1.1 2x0 OK\r\n\r\n", "invalid status"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", "repeated Content-Length"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "different Content-Lengths"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok", "different Content-Lengths"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "both Content-Length and Transfer-Encoding",
        ),
        ("HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "CR without LF"),
        ("HTTP/1.1 200 OK\r\nX: a\nContent-Length: 2\r\n\r\nok", "LF without CR"),
        ("HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "space before colon"),
        ("HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n", "obsolete line folding"),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", "the upstream switches protocols without being asked"),
    ] {
        let origin = Origin::start(move |mut caller, _| {
            caller.request();
            caller.send(answer);
        });
        let rig = Rig::with(impatient(&origin));
        assert_eq!(rig.get("/").refused(), (502, reason.into()), "{answer}");
    }
}

#[test]
fn endless_response_heads_yield_502() {
    let many = || (0..300).map(|n| format!("X-{n}: 1\r\n")).collect::<String>();
    let long = || format!("X: {}\r\n", "x".repeat(100_000));
    let interim = || "HTTP/1.1 102 Processing\r\n\r\n".repeat(100);
    let floods: [(String, &str); 3] = [
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", many()), "too many fields"),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", long()), "head too large"),
        (interim(), "the upstream sends interim responses without end"),
    ];
    for (flood, reason) in floods {
        let origin = Origin::start(move |mut caller, _| {
            caller.request();
            caller.send(&flood);
        });
        let rig = Rig::with(impatient(&origin));
        assert_eq!(rig.get("/").refused(), (502, reason.into()));
    }
}

#[test]
fn truncated_response_is_visible_and_its_connection_not_reused() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    ] {
        for resets in [false, true] {
            let origin = Origin::start(move |mut caller, number| {
                caller.request();
                if number > 0 {
                    caller.send(OK);
                    caller.request();
                    return;
                }
                caller.send(answer);
                if resets {
                    caller.reset();
                }
            });
            let rig = Rig::with(impatient(&origin));
            for version in ["1.1", "1.0"] {
                let first = origin.connections() == 0;
                let mut client = rig.client();
                client.send(&format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"));
                match client.response(Method::Get) {
                    // A reset may arrive before the head; then the client gets an error response.
                    Ok(response) if first => {
                        assert!(resets && response.status == 502, "{answer}: {response:?}")
                    }
                    Ok(response) => assert_eq!(response.text(), "ok"),
                    Err(_) => assert!(first, "{answer}"),
                }
            }
            assert_eq!(origin.connections(), 2, "{answer}");
        }
    }
}

#[test]
fn stalled_close_delimited_body_is_visibly_truncated() {
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send("HTTP/1.1 200 OK\r\n\r\nhello");
        // Waits until the proxy closes, after it has relayed the first piece.
        caller.raw_until(b"never");
    });
    let mut options = impatient(&origin);
    options.route.timeouts.between = Millis(100);
    let rig = Rig::with(options);
    // An HTTP/1.1 client gets chunks without a last chunk; an HTTP/1.0 client sees a reset.
    let mut new = rig.client();
    new.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(new.response(Method::Get).unwrap_err(), "body cut short");
    let mut old = rig.client();
    old.send("GET / HTTP/1.0\r\n\r\n");
    let (bytes, peaceful) = old.rest();
    assert!(bytes.ends_with(b"hello") && !peaceful, "{}", bytes.escape_ascii());
}

#[test]
fn stalled_response_body_is_truncated_after_the_timeout() {
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        caller.rest();
    });
    let rig = Rig::with(impatient(&origin));
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.response(Method::Get).is_err());
}

#[test]
fn retries_reach_a_healthy_server() {
    let good = Origin::answering(OK);
    for attempts in [1, 2] {
        let bad: [Origin; 2] = [
            Origin::start(|mut caller, _| {
                caller.request();
            }),
            Origin::start(|caller, _| caller.reset()),
        ];
        let mut options =
            Options::to(vec![server(nobody()), bad[0].server(), bad[1].server(), good.server()]);
        options.route.retry.attempts_max = attempts * 2;
        options.route.retry.budget_percent = 300;
        options.group.ejection = None;
        let rig = Rig::with(options);
        let answers: Vec<u16> = (0..8).map(|_| rig.get("/").status).collect();
        let fine = answers.iter().filter(|&&status| status == 200).count();
        // Round robin starts one server further for each request: two attempts do not always reach the good
        // server, four do.
        if attempts == 2 {
            assert_eq!(fine, 8, "{answers:?}");
        } else {
            assert!(fine < 8, "{answers:?}");
        }
    }
}

#[test]
fn unsent_requests_are_retried_whatever_the_method() {
    let good = Origin::answering(OK);
    let mut options = Options::to(vec![server(nobody()), good.server()]);
    options.group.ejection = None;
    let rig = Rig::with(options);
    for _ in 0..6 {
        assert_eq!(rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").text(), "ok");
    }
}

#[test]
fn sent_requests_are_retried_only_if_idempotent() {
    let good = Origin::answering(OK);
    let bad = Origin::start(|mut caller, _| {
        caller.request();
    });
    let mut options = Options::to(vec![bad.server(), good.server()]);
    options.group.ejection = None;
    let rig = Rig::with(options);
    let ask = |method: &str| {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        let mut statuses = [rig.ask(&request).status, rig.ask(&request).status];
        statuses.sort_unstable();
        statuses
    };
    assert_eq!((ask("PUT"), ask("POST")), ([200, 200], [200, 502]));
}

#[test]
fn listed_status_is_retried_on_another_server() {
    let good = Origin::answering(OK);
    let bad = Origin::answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
    let mut options = Options::to(vec![bad.server(), good.server()]);
    options.route.retry.statuses = vec![Status::SERVICE_UNAVAILABLE];
    options.group.ejection = None;
    let rig = Rig::with(options.clone());
    assert_eq!((rig.get("/").text(), rig.get("/").text()), ("ok".into(), "ok".into()));
    // Without another server, the client gets the response with the listed status.
    options.group.servers.pop();
    let rig = Rig::with(options);
    assert_eq!((rig.get("/").status, rig.get("/").text()), (503, "busy".into()));
}

#[test]
fn retry_waits_for_the_backoff_unless_time_is_too_short() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let origin = Origin::start(move |mut caller: rig::Caller, _| {
        while caller.request().is_some() {
            counter.fetch_add(1, Ordering::SeqCst);
            caller.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.retry.statuses = vec![Status::SERVICE_UNAVAILABLE];
    options.route.retry.backoff = Millis(40);
    let rig = Rig::with(options.clone());
    let start = std::time::Instant::now();
    assert_eq!((rig.get("/").status, calls.swap(0, Ordering::SeqCst)), (503, 3));
    assert!(start.elapsed() >= std::time::Duration::from_millis(80), "{:?}", start.elapsed());
    // There is no time for a second attempt: the client gets the response of the first.
    options.route.retry.backoff = Millis(60_000);
    options.route.timeouts.total = Some(Millis(30_000));
    let rig = Rig::with(options);
    assert_eq!((rig.get("/").text(), calls.load(Ordering::SeqCst)), ("busy".into(), 1));
}

/// A proxy that counts the requests that have ended, however they did.
struct Counting(rig::Hop, Arc<AtomicUsize>);

struct CountAtEnd<'c>(&'c AtomicUsize);

impl Drop for CountAtEnd<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl net::Service for Counting {
    async fn serve(&self, exchange: &mut net::Exchange<'_>) -> Result<(), net::Fault> {
        let _count = CountAtEnd(&self.1);
        self.0.serve(exchange).await
    }

    fn log(&self, _: &net::RequestRecord<'_>) {}
}

#[test]
fn client_that_leaves_ends_the_wait_before_a_retry() {
    let origin = Origin::answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
    let mut options = Options::to(vec![origin.server()]);
    options.route.retry.statuses = vec![Status::SERVICE_UNAVAILABLE];
    options.route.retry.backoff = Millis(3_600_000);
    let (route, ended) = (Arc::new(options.route), Arc::new(AtomicUsize::new(0)));
    let count = ended.clone();
    let rig = Rig::serving(1, GroupShared::new(options.group).unwrap(), move |core, shared| {
        Counting(rig::Hop(Group::new(core, shared).proxy(&route, None)), count.clone())
    });
    let mut client = rig.client();
    client.send("GET /asked HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.wait_seen("/asked");
    // By then the response has most likely been read, and the request waits.
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    rig::reset(&client.stream);
    drop(client);
    while ended.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(origin.seen().matches("/asked").count(), 1);
}

#[test]
fn retries_stay_within_their_budget() {
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = tried.clone();
    let count = move |mut caller: rig::Caller, _| {
        caller.request();
        counter.fetch_add(1, Ordering::SeqCst);
    };
    let bad = [Origin::start(count.clone()), Origin::start(count)];
    let mut options = Options::to(bad.iter().map(Origin::server).collect());
    options.group.ejection = None;
    options.route.retry.budget_percent = 10;
    let rig = Rig::with(options);
    for _ in 0..100 {
        assert_eq!(rig.get("/").status, 502);
    }
    // A hundred first attempts, ten initial retries, and a tenth of the requests.
    let tried = tried.load(Ordering::SeqCst);
    assert!((115..=120).contains(&tried), "{tried}");
}

#[test]
fn trace_and_connect_are_rejected_with_405() {
    let origin = Origin::answering(OK);
    let rig = Rig::to(&origin);
    assert_eq!(rig.ask("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n").status, 405);
    assert_eq!(rig.ask("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n").status, 405);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn client_disconnect_closes_the_upstream_connection() {
    let (gone, reported) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::start(move |mut caller, _| {
        caller.request();
        caller.rest();
        gone.lock().unwrap().send(()).unwrap();
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.wait_seen("GET / HTTP/1.1");
    rig::reset(&client.stream);
    drop(client);
    reported.recv_timeout(std::time::Duration::from_secs(20)).expect("the upstream connection is closed");
}

#[test]
fn looping_request_is_rejected_with_508() {
    // The upstream sends the request back to the proxy unchanged.
    let here: Arc<OnceLock<SocketAddr>> = Arc::default();
    let to = here.clone();
    let origin = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            let mut back = rig::Client::to(*to.get().unwrap());
            back.send_bytes(&request);
            let response = back.response(Method::Get).unwrap();
            caller.send(&format!("{}\r\n\r\n", response.head));
            caller.send_bytes(&response.body);
        }
    });
    let rig = Rig::on(3, Options::to(vec![origin.server()]));
    here.set(rig.address).unwrap();
    for _ in 0..10 {
        let refused = rig.get("/").refused();
        assert!(refused.0 == 508 && refused.1.starts_with("the request loops"), "{refused:?}");
    }
    assert_eq!(origin.seen().matches("GET / ").count(), 10, "once for each request");
    // `Via` of another proxy with the same pseudonym is not a loop.
    let origin = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let rig = Rig::to(&origin);
    let via = "GET / HTTP/1.1\r\nHost: a\r\nVia: 1.1 komainu, 1.1 komainu (0123456789abcdef)\r\n\r\n";
    assert_eq!(rig.ask(via).status, 200);
}
