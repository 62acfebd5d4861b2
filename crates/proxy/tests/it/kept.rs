//! Kept connections: reuse, closing by the upstream, limits.

use crate::rig::{Options, Origin, Rig};
use http::Method;
use proxy::options::ProxyProtocol;
use times::Millis;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn one_connection_carries_many_requests() {
    let origin = Origin::answering(OK);
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    for _ in 0..100 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response(Method::Get).unwrap().text(), "ok");
    }
    // Other clients use the same connection.
    for _ in 0..10 {
        assert_eq!(rig.get("/").text(), "ok");
    }
    // `Connection: close` of a client applies to the client's connection only.
    assert_eq!(rig.ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").text(), "ok");
    assert_eq!(rig.get("/").text(), "ok");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn most_recently_used_connection_is_reused_first() {
    use std::sync::{Arc, Barrier};
    // Three concurrent requests open three connections; each response names its connection.
    let together = Arc::new(Barrier::new(3));
    let theirs = together.clone();
    let origin = Origin::start(move |mut caller, number| {
        while let Some(request) = caller.request() {
            if request.starts_with(b"GET /together") {
                theirs.wait();
            }
            caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    options.group.keep_alive.idle_max = 2;
    let rig = Rig::with(options);
    let mut clients: Vec<_> = (0..3).map(|_| rig.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /together HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut by: Vec<String> =
        clients.iter_mut().map(|client| client.response(Method::Get).unwrap().text()).collect();
    by.sort();
    assert_eq!(by, ["0", "1", "2"]);
    // One connection exceeds the limit and is closed; of the other two, the same one is used every time.
    let next = rig.get("/").text();
    assert!((0..20).all(|_| rig.get("/").text() == next));
    assert_eq!(origin.connections(), 3);
}

#[test]
fn retried_close_of_a_kept_connection_is_not_reported() {
    use std::sync::{Arc, Mutex};
    // The second request on each connection is read but not answered.
    let origin = Origin::start(move |mut caller, _| {
        if caller.request().is_some() {
            caller.send(OK);
            caller.request();
        }
    });
    let errors: Arc<Mutex<Vec<String>>> = Arc::default();
    let options = Options::to(vec![origin.server()]);
    let noted = errors.clone();
    let route = Arc::new(options.route);
    let shared = proxy::GroupShared::new(options.group).unwrap();
    let rig = Rig::serving(1, shared, move |core, shared| {
        let noted = noted.clone();
        let sink = Box::new(move |event: &proxy::UpstreamEvent<'_>| {
            if let proxy::UpstreamEvent::UpstreamError(error) = event {
                noted.lock().unwrap().push(error.reason.to_owned());
            }
        });
        crate::rig::Hop(proxy::Group::with_events(core, shared, sink).proxy(&route, None))
    });
    assert_eq!(rig.get("/").text(), "ok");
    assert_eq!(rig.get("/").text(), "ok", "on another connection");
    assert_eq!(*errors.lock().unwrap(), [""; 0]);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(rig.ask(post).refused().0, 502);
    assert_eq!(*errors.lock().unwrap(), ["the upstream closed the connection before it answered"]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::mirror();
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    let requests: String = (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.send(&requests);
    for n in 0..50 {
        assert!(client.response(Method::Get).unwrap().text().starts_with(&format!("GET /{n} HTTP/1.1")));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn requests_meeting_a_closing_connection_are_retried() {
    // Each connection answers one request and closes without a response when the second one arrives.
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send(OK);
        caller.request();
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    for number in 0..1_000 {
        // Idempotent methods, with and without bodies.
        match number % 3 {
            0 => client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
            _ => client.send(
                "DELETE / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            ),
        }
        let response = client.response(Method::Get).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "request {number}");
    }
    assert_eq!(origin.connections(), 1_000);
}

#[test]
fn connections_closed_while_idle_are_not_used() {
    // Each connection is closed after the response and before the next request, in step with the client.
    let (close, reported) = std::sync::mpsc::sync_channel(0);
    let (closed, wait) = std::sync::mpsc::sync_channel(0);
    let reported = std::sync::Mutex::new(reported);
    let origin = Origin::start(move |mut caller, _| {
        caller.request();
        caller.send(OK);
        let _ = reported.lock().unwrap().recv();
        drop(caller);
        let _ = closed.send(());
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    for number in 0..1_000 {
        // Must not be sent twice, so it must not meet a closed connection at all.
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.response(Method::Post).unwrap().text(), "ok", "request {number}");
        close.send(()).unwrap();
        wait.recv().unwrap();
    }
}

#[test]
fn late_408_on_a_kept_connection_is_retried_if_idempotent() {
    const LATE: &str = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlate";
    let origin = Origin::start(|mut caller, number| {
        caller.request();
        caller.send(OK);
        // As if the 408 had been sent while the request was on its way.
        if number < 2 && caller.request().is_some() {
            caller.send(LATE);
        } else {
            while caller.request().is_some() {
                caller.send(LATE);
            }
        }
    });
    let rig = Rig::to(&origin);
    assert_eq!(rig.get("/").text(), "ok");
    assert_eq!(rig.get("/").text(), "ok");
    assert_eq!(origin.connections(), 2);
    // A POST must not be sent twice, so the client gets the 408.
    let response = rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((response.status, response.text().as_str()), (408, "late"));
}

#[test]
fn post_on_a_closed_connection_is_not_repeated() {
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send(OK);
        caller.request();
    });
    let rig = Rig::to(&origin);
    assert_eq!(rig.get("/").text(), "ok");
    let refused = rig.ask("POST /once HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").refused();
    assert_eq!(refused, (502, "the upstream closed the connection before it answered".into()));
    assert_eq!(origin.seen().matches("POST /once").count(), 1);
}

#[test]
fn post_is_repeated_if_non_idempotent_retry_is_enabled() {
    let origin = Origin::start(|mut caller, _| {
        caller.request();
        caller.send(OK);
        caller.request();
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.retry.non_idempotent = true;
    let rig = Rig::with(options);
    assert_eq!(rig.get("/").text(), "ok");
    let response = rig.ask("POST /twice HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(response.text(), "ok");
    assert_eq!(origin.seen().matches("POST /twice").count(), 2);
    assert_eq!(origin.seen().matches("\r\n\r\nhi").count(), 2);
}

#[test]
fn connection_with_surplus_bytes_is_not_reused() {
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
        }
    });
    let rig = Rig::to(&origin);
    for number in 1..=5 {
        assert_eq!(rig.get("/").text(), "ok");
        assert_eq!(origin.connections(), number);
    }
}

#[test]
fn connections_are_closed_for_each_reason_not_to_keep_them() {
    for answer in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        // The announced keep-alive timeout is too short to use.
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0\r\nContent-Length: 2\r\n\r\nok",
    ] {
        let origin = Origin::answering(answer);
        let rig = Rig::to(&origin);
        assert_eq!((rig.get("/").text(), rig.get("/").text()), ("ok".into(), "ok".into()));
        assert_eq!(origin.connections(), 2, "{answer}");
    }
    let change: [fn(&mut Options); 4] = [
        |options| options.group.keep_alive.idle_max = 0,
        |options| options.group.keep_alive.idle_timeout = Millis(0),
        |options| options.group.keep_alive.requests_max = Some(1),
        |options| options.group.proxy_protocol = Some(ProxyProtocol::V1),
    ];
    for change in change {
        let origin = Origin::start(|mut caller, _| {
            if caller.skip_line("PROXY ") {
                caller.request();
                caller.send(OK);
                caller.request();
            }
        });
        let mut options = Options::to(vec![origin.server()]);
        change(&mut options);
        let rig = Rig::with(options);
        assert_eq!((rig.get("/").text(), rig.get("/").text()), ("ok".into(), "ok".into()));
        assert_eq!(origin.connections(), 2);
    }
}

#[test]
fn http10_keep_alive_connection_is_reused() {
    let origin =
        Origin::answering("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok");
    let rig = Rig::to(&origin);
    assert_eq!((rig.get("/").text(), rig.get("/").text()), ("ok".into(), "ok".into()));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn proxy_protocol_header_precedes_the_request() {
    for (version, begins) in [
        (ProxyProtocol::V1, &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]),
        (ProxyProtocol::V2, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01"),
    ] {
        let origin = Origin::start(|mut caller, _| {
            caller.raw_until(b"Connection: close\r\n\r\n");
            caller.send(OK);
        });
        let mut options = Options::to(vec![origin.server()]);
        options.group.proxy_protocol = Some(version);
        let rig = Rig::with(options);
        assert_eq!(rig.get("/").text(), "ok");
        assert!(origin.seen_bytes().starts_with(begins), "{}", origin.seen());
    }
}
