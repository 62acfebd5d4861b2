//! HTTP/2 to upstream servers: shared connections, limits, refusals and misbehaving servers.

use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::h2rig;
use crate::h2rig::{Came, H2Origin, Peer};
use crate::rig;
use crate::rig::{Client, Options, Origin, Rig};
use http::{Fields, Method, Status};
use http2::{ErrorCode, Options as H2};
use proxy::options::{HealthCheck, Retry};
use times::{Millis, Moment};

fn rig(origin: &H2Origin) -> Rig {
    Rig::with(Options::to(vec![origin.server()]))
}

fn ok(peer: &mut Peer, stream: u32, body: &[u8]) {
    peer.answer(stream, Status::OK, b"", body, &Fields::new());
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_thousand_requests_share_one_connection() {
    let origin = H2Origin::answering(|asked| (asked.path.clone().into_bytes(), Fields::new()));
    let rig = rig(&origin);
    // The first request opens the connection, so that concurrent ones do not open others.
    assert_eq!(rig.get("/first").text(), "/first");
    let address = rig.address;
    let clients: Vec<_> = (0..10)
        .map(|client| {
            thread::spawn(move || {
                let mut connection = Client::to(address);
                for n in 0..100 {
                    connection.send(&format!("GET /{client}/{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
                    let response = connection.response(Method::Get).unwrap();
                    assert_eq!((response.status, response.text()), (200, format!("/{client}/{n}")));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(origin.connections(), 1);
}

#[test]
fn heads_and_trailers_pass_without_connection_fields() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            peer.note(format!("{asked:?}"));
            peer.begin(asked.stream, Status::EARLY_HINTS, b"link: </a>\r\n", false);
            let mut trailers = Fields::new();
            trailers.try_push(b"grpc-status", b"0").unwrap();
            peer.answer(asked.stream, Status::CREATED, b"x-one: 1\r\n", b"body", &trailers);
        }
    });
    let rig = rig(&origin);
    let response = rig.ask(
        "POST /a%20b?q HTTP/1.1\r\nHost: site.test\r\nTE: trailers\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
         Upgrade: websocket\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    assert_eq!((response.status, response.text().as_str()), (201, "body"));
    assert_eq!(response.field("x-one"), Some("1"));
    assert!(
        response.interim[0].starts_with("HTTP/1.1 103") && response.interim[0].contains("</a>"),
        "{response:?}"
    );
    assert_eq!(response.trailers.to_ascii_lowercase(), "grpc-status: 0\r\n");
    let asked = &origin.noted()[0];
    for part in
        ["\"POST\"", "\"/a%20b?q\"", "\"site.test\"", "te: trailers", "x-end: 2", "x-sum: 7", "[97, 98, 99]"]
    {
        assert!(asked.to_ascii_lowercase().contains(&part.to_ascii_lowercase()), "{part}: {asked}");
    }
    for part in ["x-hop", "connection", "upgrade", "transfer-encoding"] {
        assert!(!asked.to_ascii_lowercase().contains(part), "{part}: {asked}");
    }
    // A response without a body ends with its head; a response to HEAD has a length but no content.
    let bare = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            peer.begin(asked.stream, Status::OK, b"content-length: 5\r\n", asked.method == "HEAD");
            if asked.method != "HEAD" {
                peer.content(asked.stream, b"12345", true);
            }
            peer.machine.release(asked.stream);
            peer.flush();
        }
    });
    let rig = Rig::with(Options::to(vec![bare.server()]));
    let head = rig.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.field("content-length")), (200, Some("5")));
    assert_eq!(rig.get("/").field("content-length"), Some("5"));
    assert_eq!(bare.connections(), 1);
}

/// A server must not send content with 205 (RFC 9110 section 15.3.6), but unlike 204 its framing does not end
/// with the head. Content is relayed as over HTTP/1, and the connections remain usable.
#[test]
fn a_205_with_content_is_relayed_as_it_is() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            let body: &[u8] = if asked.path == "/content" { b"body" } else { b"" };
            peer.answer(asked.stream, Status::RESET_CONTENT, b"", body, &Fields::new());
        }
    });
    let rig = rig(&origin);
    let mut connection = Client::to(rig.address);
    for (path, body) in [("/content", "body"), ("/", ""), ("/content", "body")] {
        connection.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = connection.response(Method::Get).unwrap();
        assert_eq!((response.status, response.text().as_str()), (205, body));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn bodies_of_ten_megabytes_pass_both_ways() {
    let origin = H2Origin::answering(|asked| match asked.method.as_str() {
        "GET" => (pattern(10_000_000), Fields::new()),
        _ => (asked.body.clone(), Fields::new()),
    });
    let rig = rig(&origin);
    assert!(rig.get("/").body == pattern(10_000_000));
    let mut client = rig.client();
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
    client.send_bytes(&pattern(10_000_000));
    assert!(client.response(Method::Put).unwrap().body == pattern(10_000_000));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn stream_limit_of_the_server_is_respected() {
    let together = Arc::new(Barrier::new(6));
    let most = Arc::new(AtomicUsize::new(0));
    let theirs = together.clone();
    let seen = most.clone();
    // Two streams per connection; all six requests must be under way before any is answered.
    let origin = H2Origin::start(H2 { streams_max: 2, ..H2::default() }, move |peer, _| {
        let mut open = Vec::new();
        while let Some(asked) = peer.request() {
            if asked.path == "/warm" {
                ok(peer, asked.stream, b"");
                continue;
            }
            open.push(asked.stream);
            seen.fetch_max(open.len(), Ordering::SeqCst);
            if open.len() == 2 {
                let together = theirs.clone();
                let both = thread::spawn(move || together.wait());
                theirs.wait();
                both.join().unwrap();
                open.drain(..).for_each(|stream| ok(peer, stream, b"ok"));
            }
        }
    });
    let rig = rig(&origin);
    let mut clients: Vec<_> = (0..6).map(|_| rig.client()).collect();
    clients
        .iter_mut()
        .for_each(|client| client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.response(Method::Post).unwrap().text(), "ok");
    }
    assert_eq!((origin.connections(), most.load(Ordering::SeqCst)), (3, 2));
    assert!(!origin.noted().iter().any(|note| note.starts_with("broken")), "{:?}", origin.noted());
}

#[test]
fn requests_not_processed_before_goaway_are_sent_again() {
    // The first connection answers one request, and sends GOAWAY when the second one, a POST, arrives.
    let origin = H2Origin::start(H2::default(), |peer, number| {
        let mut first = None;
        while let Some(asked) = peer.request() {
            if number > 0 || first.is_none() {
                first.get_or_insert(asked.stream);
                ok(peer, asked.stream, &asked.body);
                continue;
            }
            let last = first.unwrap().to_be_bytes();
            let goaway = [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &last, &[0; 4]].concat();
            peer.send_raw(&goaway);
            return peer.drain();
        }
    });
    let rig = rig(&origin);
    for n in 0..4 {
        let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nn={n}");
        let response = rig.ask(&post);
        assert_eq!((response.status, response.text()), (200, format!("n={n}")));
    }
    assert_eq!(origin.connections(), 2);
}

#[test]
fn refused_stream_is_retried_a_few_times() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        let mut refused = 0;
        while let Some(asked) = peer.request() {
            if asked.path == "/never" || refused < 2 {
                refused += 1;
                peer.note("refused");
                peer.machine.reset(asked.stream, ErrorCode::REFUSED_STREAM);
                peer.machine.release(asked.stream);
            } else {
                ok(peer, asked.stream, &asked.body);
            }
            peer.flush();
        }
    });
    let rig = rig(&origin);
    let post =
        |path: &str| rig.ask(&format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
    assert_eq!(post("/").text(), "hi");
    assert_eq!(post("/never").refused(), (502, "the upstream refuses the request's stream".into()));
    assert_eq!(origin.noted().len(), 2 + 4, "the first and three more");
    assert_eq!(post("/").text(), "hi");
}

#[test]
fn requests_on_closing_connections_get_one_attempt_beyond_retry() {
    // Each connection ends soon after its first request, whatever other requests have arrived by then.
    let origin = H2Origin::start(H2::default(), |peer, _| {
        let mut is_first = true;
        while let Some(asked) = peer.request() {
            peer.note(asked.path);
            if std::mem::take(&mut is_first) {
                let stream = peer.stream.try_clone().unwrap();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        }
    });
    for (attempts_max, budget_percent) in [(1, 0), (1, 1000), (3, 0), (3, 1000)] {
        origin.notes.lock().unwrap().clear();
        let mut options = Options::to(vec![origin.server()]);
        options.route.retry = Retry { attempts_max, budget_percent, ..Retry::default() };
        let rig = Rig::with(options);
        let mut clients: Vec<_> = (0..100).map(|_| rig.client()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        for client in &mut clients {
            assert_eq!(client.response(Method::Get).unwrap().status, 502);
        }
        let noted = origin.noted();
        for n in 0..100 {
            let sent = noted.iter().filter(|path| **path == format!("/{n}")).count();
            assert!(sent <= attempts_max as usize + 1, "/{n} was sent {sent} times");
        }
        // Each core begins with ten available retries.
        let retries_max = if attempts_max == 1 {
            0
        } else if budget_percent == 0 {
            10
        } else {
            200
        };
        assert!(noted.len() <= 200 + retries_max, "{} requests", noted.len());
        let counted: u64 = rig.shared.counters(0).iter().map(|core| core.retries.value()).sum();
        assert!(
            counted <= retries_max as u64 && noted.len() as u64 <= 200 + counted,
            "{counted} of {}",
            noted.len()
        );
    }
}

#[test]
fn stream_reset_yields_502_or_truncates_a_begun_response() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        loop {
            let asked = match peer.next() {
                Came::Head(asked) | Came::Whole(asked) => asked,
                Came::End => return,
                _ => continue,
            };
            if asked.path == "/within" {
                peer.begin(asked.stream, Status::OK, b"content-length: 100\r\n", false);
                peer.machine.data(asked.stream, b"half", false, &mut peer.out);
                peer.flush();
            }
            if asked.path == "/answered" {
                // The response is complete, and the rest of the request is not needed (RFC 9113 section 8.1).
                peer.begin(asked.stream, Status::CONTENT_TOO_LARGE, b"", false);
                peer.machine.data(asked.stream, b"too much", true, &mut peer.out);
                peer.flush();
                peer.machine.reset(asked.stream, ErrorCode::NO_ERROR);
            } else {
                peer.note(asked.path);
                peer.machine.reset(asked.stream, ErrorCode::INTERNAL_ERROR);
            }
            peer.machine.release(asked.stream);
            peer.flush();
        }
    });
    let rig = rig(&origin);
    assert_eq!(rig.ask("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").status, 502);
    assert_eq!(rig.get("/get").status, 502);
    // The only server may have begun to process the requests, so none is sent again.
    assert_eq!(origin.noted(), ["/post", "/get"]);
    let mut client = rig.client();
    client.send("GET /within HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.response(Method::Get).is_err());
    let mut client = rig.client();
    client.send("POST /answered HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nonly this much");
    let response = client.response(Method::Post).unwrap();
    assert_eq!((response.status, response.text().as_str()), (413, "too much"));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn client_disconnect_resets_only_its_own_stream() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        loop {
            match peer.next() {
                Came::Whole(asked) if asked.path == "/slow" => peer.note("slow"),
                Came::Whole(asked) => ok(peer, asked.stream, b"ok"),
                Came::Reset(stream, code) => peer.note(format!("reset {stream} {code:?}")),
                Came::End => return,
                _ => {}
            }
        }
    });
    let rig = rig(&origin);
    assert_eq!(rig.get("/").text(), "ok");
    let mut client = rig.client();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.wait_noted("slow");
    rig::reset(&client.stream);
    drop(client);
    let reset = origin.wait_noted("reset");
    assert!(reset.contains("ErrorCode(8)"), "CANCEL: {reset}");
    assert_eq!(rig.get("/").text(), "ok");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn unread_responses_do_not_block_other_streams() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        // Large responses are sent as far as the flow-control window allows.
        while let Some(asked) = peer.request() {
            if asked.path == "/large" {
                peer.begin(asked.stream, Status::OK, b"content-length: 100000000\r\n", false);
                let body = vec![b'x'; 65_536];
                let sent = peer.machine.data(asked.stream, &body, false, &mut peer.out);
                peer.note(format!("large {sent}"));
                peer.flush();
            } else {
                ok(peer, asked.stream, b"ok");
            }
        }
    });
    let rig = rig(&origin);
    let mut slow: Vec<_> = (0..20).map(|_| rig.client()).collect();
    slow.iter_mut().for_each(|client| client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n"));
    origin.wait_count(20);
    for _ in 0..20 {
        assert_eq!(rig.get("/").text(), "ok");
    }
    assert!(origin.noted().iter().all(|note| note == "large 65536"), "{:?}", origin.noted());
    assert_eq!(origin.connections(), 1);
}

#[test]
fn closed_send_window_stalls_only_its_own_request() {
    let origin = H2Origin::start(H2 { stream_window: 0, ..H2::default() }, |peer, _| {
        while let Came::Head(_) | Came::Whole(_) | Came::Reset(..) | Came::Other = match peer.next() {
            Came::Whole(asked) => {
                ok(peer, asked.stream, b"ok");
                Came::Other
            }
            came => came,
        } {}
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.between = Millis(300);
    let rig = Rig::with(options);
    assert_eq!(rig.get("/").text(), "ok");
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    assert_eq!(rig.ask(&post).status, 504);
    assert_eq!(rig.get("/").text(), "ok");
}

#[test]
fn server_floods_end_the_connection_and_yield_502() {
    let frame =
        |kind: u8, payload: &[u8]| [&[0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 0][..], payload].concat();
    let floods = [
        ("settings", frame(4, &[0, 3, 0, 0, 0, 100])),
        ("ping", frame(6, b"12345678")),
        ("window", [&[0, 0, 4, 8, 0, 0, 0, 0, 0][..], &[0, 0, 0, 1]].concat()),
    ];
    let kinds = floods.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let origin = H2Origin::start(H2::default(), move |peer, _| {
        while let Some(asked) = peer.request() {
            let Some((_, frame)) = floods.iter().find(|(name, _)| asked.path == format!("/{name}")) else {
                ok(peer, asked.stream, b"ok");
                continue;
            };
            let flood = frame.repeat(1_000);
            while peer.send_raw(&flood) {}
            peer.note(format!("ended {}", asked.path));
            return;
        }
    });
    let rig = rig(&origin);
    for kind in kinds {
        let post = format!("POST /{kind} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(rig.ask(&post).status, 502, "{kind}");
        origin.wait_noted(&format!("ended /{kind}"));
        assert_eq!(rig.get("/").text(), "ok");
    }
}

#[test]
fn oversized_heads_and_endless_interim_responses_yield_502() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            match asked.path.as_str() {
                "/large" => {
                    let line = format!("x-large: {}\r\n", "x".repeat(9_000)).repeat(8);
                    peer.begin(asked.stream, Status::OK, line.as_bytes(), true);
                }
                "/many" => peer.begin(asked.stream, Status::OK, "a: b\r\n".repeat(5_000).as_bytes(), true),
                "/interim" => {
                    for _ in 0..1_000 {
                        peer.begin(asked.stream, Status::EARLY_HINTS, b"link: </a>\r\n", false);
                    }
                }
                _ => ok(peer, asked.stream, b"ok"),
            }
            peer.flush();
            peer.machine.release(asked.stream);
        }
    });
    let rig = rig(&origin);
    for path in ["/large", "/many", "/interim"] {
        let post = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let mut client = rig.client();
        client.send(&post);
        let response = client.response(Method::Post).unwrap();
        assert_eq!(response.status, 502, "{path}");
        assert_eq!(rig.get("/").text(), "ok", "{path}");
    }
}

#[test]
fn http1_server_yields_502_and_silent_server_504() {
    let old = Origin::start(|mut caller, _| {
        caller.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        caller.raw_until(b"never");
    });
    let rig = Rig::with(Options::to(vec![h2rig::server(old.address)]));
    let refused = rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").refused();
    assert_eq!(refused, (502, "the upstream speaks HTTP/1 and not HTTP/2".into()));
    let silent = Origin::start(|mut caller, _| caller.raw_until(b"never"));
    let mut options = Options::to(vec![h2rig::server(silent.address)]);
    (options.route.timeouts.head, options.route.timeouts.connect) = (Millis(200), Millis(200));
    let rig = Rig::with(options);
    let mut clients = [rig.client(), rig.client()];
    clients
        .iter_mut()
        .for_each(|client| client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    // One client opened the connection; the other waited for its SETTINGS.
    assert!(clients.iter_mut().all(|client| client.response(Method::Post).unwrap().status == 504));
    assert_eq!(Rig::with(Options::to(vec![h2rig::server(rig::nobody())])).get("/").status, 502);
}

#[test]
fn connection_closed_while_idle_fails_no_request() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        let asked = peer.request().unwrap();
        ok(peer, asked.stream, b"ok");
    });
    let rig = rig(&origin);
    for _ in 0..20 {
        assert_eq!(rig.get("/").text(), "ok");
    }
    // The connection is closed after the request has arrived.
    let late = H2Origin::start(H2::default(), |peer, _| {
        let asked = peer.request().unwrap();
        ok(peer, asked.stream, b"ok");
        peer.request();
    });
    let rig = Rig::with(Options::to(vec![late.server()]));
    for _ in 0..20 {
        assert_eq!(rig.get("/").text(), "ok");
    }
    assert_eq!(late.connections(), 20);
}

#[test]
fn idle_timeout_and_request_limit_end_connections() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            ok(peer, asked.stream, b"ok");
        }
        peer.note("closed");
    });
    let mut options = Options::to(vec![origin.server()]);
    options.group.keep_alive.idle_timeout = Millis(50);
    let rig = Rig::with(options.clone());
    assert_eq!(rig.get("/").text(), "ok");
    origin.wait_noted("closed");
    drop(rig);
    options.group.keep_alive.requests_max = Some(2);
    options.group.keep_alive.idle_timeout = Millis(60_000);
    let rig = Rig::with(options);
    let before = origin.connections();
    (0..6).for_each(|_| assert_eq!(rig.get("/").text(), "ok"));
    assert_eq!(origin.connections() - before, 3);
}

#[test]
fn health_checks_work_over_http2() {
    let policy = format!("content-security-policy: {}\r\n", "script-src 'self';".repeat(1_500));
    let origin = H2Origin::start(H2::default(), move |peer, _| {
        while let Some(asked) = peer.request() {
            // A field of the maximum length that routes accept.
            let fields = if asked.path == "/up" { policy.as_bytes() } else { b"" };
            peer.note(&asked.path);
            peer.answer(asked.stream, Status::OK, fields, asked.path.as_bytes(), &Fields::new());
        }
    });
    let ill = H2Origin::start(H2::default(), |peer, _| {
        while let Some(asked) = peer.request() {
            let status = if asked.path == "/up" { Status::SERVICE_UNAVAILABLE } else { Status::OK };
            peer.answer(asked.stream, status, b"", b"ill", &Fields::new());
        }
    });
    let mut options = Options::to(vec![origin.server(), ill.server()]);
    let probe =
        HealthCheck { path: Some("/up".into()), host: None, expect: (200, 399), ..HealthCheck::default() };
    options.group.check = Some(HealthCheck { interval: Millis(20), fall: 1, ..probe });
    let rig = Rig::with(options);
    let began = std::time::Instant::now();
    while rig.shared.state(1, Moment::ZERO) != proxy::health::ServerState::Down {
        assert!(began.elapsed().as_secs() < 20, "the checks find nothing");
        thread::sleep(std::time::Duration::from_millis(5));
    }
    origin.wait_count(3);
    assert_eq!(rig.shared.state(0, Moment::ZERO), proxy::health::ServerState::Up);
    (0..10).for_each(|_| assert_eq!(rig.get("/x").text(), "/x"));
}
