//! Bodies in both directions, in every framing.

use crate::rig::{Options, Origin, Rig};
use http::Method;
use times::Millis;

const GET: &str = "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n";

#[test]
fn request_is_forwarded_and_its_response_returned() {
    let origin = Origin::mirror();
    let rig = Rig::to(&origin);
    let response =
        rig.ask("POST /a?b HTTP/1.1\r\nHost: site.test\r\nContent-Length: 5\r\nX-One: 1\r\n\r\nhello");
    assert_eq!(response.status, 200);
    // The comment in `Via` is the mark that detects loops.
    let mark = response.text().split_once(" (").unwrap().1[..16].to_owned();
    assert!(mark.bytes().all(|byte| byte.is_ascii_hexdigit()), "{mark}");
    assert_eq!(
        response.text().replace(&format!(" ({mark})"), ""),
        "POST /a?b HTTP/1.1\r\nHost: site.test\r\nX-One: 1\r\nContent-Length: 5\r\n\
         X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: site.test\r\n\
         Via: 1.1 komainu\r\n\r\nhello"
    );
}

#[test]
fn default_fields_are_added_only_where_the_upstream_has_none() {
    let origin = Origin::answering(
        "HTTP/1.1 404 Nope\r\nServer: app\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Odd:a\r\n\
         Keep-Alive: timeout=9\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\nno",
    );
    let rig = Rig::to(&origin);
    let response = rig.get("/");
    let lines: Vec<&str> = response.head.lines().collect();
    assert_eq!(lines[0], "HTTP/1.1 404 Nope");
    assert!(lines[1].starts_with("Date: "));
    let rest = ["Content-Length: 2", "Server: app", "X-Odd: a", "set-cookie: a=1", "set-cookie: b=2"];
    assert_eq!(lines[2..], rest);
    assert_eq!(response.text(), "no");
}

#[test]
fn every_response_framing_is_converted_for_every_client() {
    for (answer, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
            "hello",
        ),
        ("HTTP/1.1 200 OK\r\n\r\nhello", "hello"),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", "hello"),
        ("HTTP/1.0 200 OK\r\n\r\nhello", "hello"),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        ("HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", ""),
    ] {
        // One response per connection.
        let origin = Origin::start(move |mut caller, _| {
            caller.request();
            caller.send(answer);
        });
        let rig = Rig::to(&origin);
        assert_eq!(rig.ask(GET).text(), body, "1.1: {answer}");
        for connection in ["", "Connection: keep-alive\r\n"] {
            let response = rig.ask(&format!("GET / HTTP/1.0\r\n{connection}\r\n"));
            assert_eq!(response.text(), body, "1.0 {connection}: {answer}");
            assert_eq!(response.field("Transfer-Encoding"), None);
        }
    }
}

#[test]
fn responses_without_body_keep_the_upstream_connection() {
    let origin = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    for _ in 0..3 {
        client.send("HEAD / HTTP/1.1\r\nHost: site.test\r\n\r\n");
        let response = client.response(Method::Head).unwrap();
        assert_eq!((response.field("Content-Length"), response.body.len()), (Some("5"), 0));
    }
    assert_eq!(origin.connections(), 1);
    let none = Origin::answering("HTTP/1.1 204 No Content\r\n\r\n");
    let rig = Rig::to(&none);
    for _ in 0..3 {
        assert_eq!(rig.get("/").field("Content-Length"), None);
    }
    assert_eq!(none.connections(), 1);
}

#[test]
fn trailers_are_forwarded_both_ways() {
    let origin = Origin::start(|mut caller, _| {
        let head = caller.head().unwrap();
        assert!(head.contains("\r\nTrailer: X-Sum\r\n") && head.contains("\r\nTE: trailers\r\n"), "{head}");
        let rest = caller.rest_until(b"0\r\nX-Sum: 1\r\n\r\n");
        assert_eq!(rest, b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n");
        caller.send("HTTP/1.1 200 OK\r\nTrailer: X-Done\r\nTransfer-Encoding: chunked\r\n\r\n");
        caller.send("2\r\nok\r\n0\r\nX-Done: yes\r\nContent-Length: 9\r\n\r\n");
    });
    let rig = Rig::to(&origin);
    let response = rig.ask(
        "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nTE: trailers\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
    );
    assert_eq!((response.text().as_str(), response.trailers.as_str()), ("ok", "X-Done: yes\r\n"));
}

#[test]
fn interim_responses_are_forwarded_only_to_http11_clients() {
    let origin = Origin::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: close\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let rig = Rig::to(&origin);
    let response = rig.get("/");
    assert_eq!(response.interim.len(), 2);
    assert_eq!(response.interim[0], "HTTP/1.1 103 Early Hints\r\nLink: </a.css>");
    assert_eq!(response.text(), "ok");
    let old = rig.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((old.interim.len(), old.text().as_str()), (0, "ok"));
}

#[test]
fn upstream_server_answers_expect_continue() {
    const ASK: &str =
        "PUT / HTTP/1.1\r\nHost: site.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let origin = Origin::start(|mut caller, _| {
        let head = caller.head().unwrap();
        assert!(head.contains("\r\nExpect: 100-continue\r\n"));
        caller.send("HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(caller.body_piece().unwrap(), b"body");
        caller.send("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    client.send(ASK);
    assert_eq!(client.raw(25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    assert_eq!(client.response(Method::Put).unwrap().status, 201);

    let refusing = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(caller.rest(), b"", "the body is not sent");
    });
    let rig = Rig::to(&refusing);
    let mut client = rig.client();
    client.send(ASK);
    let response = client.response(Method::Put).unwrap();
    assert_eq!((response.status, response.interim.len()), (403, 0));
    assert_eq!(response.field("Connection"), Some("close"));
}

#[test]
fn body_is_requested_after_the_continue_timeout() {
    let origin = Origin::mirror();
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.expect_continue = Millis(1);
    let rig = Rig::with(options);
    let mut client = rig.client();
    client.send("PUT / HTTP/1.1\r\nHost: site.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    assert_eq!(client.raw(25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    assert!(client.response(Method::Put).unwrap().text().ends_with("\r\n\r\nbody"));
}

#[test]
fn body_sent_with_the_head_needs_no_continue() {
    let origin = Origin::mirror();
    let mut options = Options::to(vec![origin.server()]);
    // Long enough that a wait for `100 Continue` would time out the test.
    options.route.timeouts.expect_continue = Millis(3_600_000);
    let rig = Rig::with(options);
    let long = "x".repeat(100_000);
    for (framing, body) in [
        ("Content-Length: 4".to_owned(), "body"),
        (format!("Content-Length: {}", long.len()), &long),
        ("Transfer-Encoding: chunked".to_owned(), "4\r\nbody\r\n0\r\n\r\n"),
    ] {
        let mut client = rig.client();
        for method in ["PUT", "POST"] {
            client.send(&format!(
                "{method} / HTTP/1.1\r\nHost: site.test\r\nExpect: 100-continue\r\n{framing}\r\n\r\n{body}"
            ));
            let response = client.response(Method::Put).unwrap();
            assert_eq!((response.status, response.interim.len()), (200, 0), "{framing}");
            assert_eq!(response.field("Connection"), None);
            let text = response.text();
            let body = if body.starts_with('x') { &long } else { "body" };
            assert!(text.ends_with(&format!("\r\n\r\n{body}")) && !text.contains("Expect"), "{framing}");
        }
    }
}

#[test]
fn body_sent_before_continue_is_forwarded_at_once() {
    // The server has received the head and does not send `100 Continue`.
    let (report, reported) = std::sync::mpsc::channel();
    let origin = Origin::start(move |mut caller, _| {
        while let Some(head) = caller.head() {
            report.send(head).unwrap();
            assert_eq!(caller.body_piece().unwrap(), b"body");
            assert_eq!(caller.body_piece(), None);
            caller.send("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.timeouts.expect_continue = Millis(3_600_000);
    let rig = Rig::with(options);
    let mut client = rig.client();
    for framing in ["Content-Length: 4", "Transfer-Encoding: chunked"] {
        let head = format!("PUT / HTTP/1.1\r\nHost: site.test\r\nExpect: 100-continue\r\n{framing}\r\n\r\n");
        client.send(&head);
        assert!(reported.recv().unwrap().contains("Expect: 100-continue"));
        client.send(if framing.contains("chunked") { "4\r\nbody\r\n0\r\n\r\n" } else { "body" });
        let response = client.response(Method::Put).unwrap();
        assert_eq!((response.status, response.interim.len()), (201, 0), "{framing}");
    }
}

#[test]
fn empty_host_is_forwarded_unchanged() {
    let origin = Origin::mirror();
    let rig = Rig::to(&origin);
    let text = rig.ask("GET / HTTP/1.1\r\nHost:\r\n\r\n").text();
    assert!(text.contains("\r\nHost: \r\n"), "{text}");
    let text = rig.ask("GET / HTTP/1.0\r\n\r\n").text();
    assert!(text.contains(&format!("\r\nHost: {}\r\n", origin.address)), "{text}");
}

#[test]
fn x_accel_and_x_sendfile_fields_are_not_forwarded() {
    let origin = Origin::start(|mut caller, _| {
        while let Some(request) = caller.request() {
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            assert!(!text.contains("sendfile") && !text.contains("accel"), "{text}");
            caller.send(
                "HTTP/1.1 103 Early Hints\r\nX-Sendfile: /srv/a\r\nLink: </a.css>\r\n\r\n\
                 HTTP/1.1 200 OK\r\nX-Accel-Redirect: /srv/secret\r\nx-sendfile: /srv/secret\r\n\
                 X-Accel-Buffering: no\r\nX-LIGHTTPD-send-file: /srv/secret\r\nX-Kept: 1\r\n\
                 Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sendfile: /srv/secret\r\nX-Sum: 1\r\n\r\n",
            );
        }
    });
    let rig = Rig::to(&origin);
    let response = rig.ask(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Sendfile-Type: X-Accel-Redirect\r\nX-Accel-Mapping: /=/srv/\r\n\r\n",
    );
    let all = format!("{}{}{}", response.interim.concat(), response.head, response.trailers);
    assert!(!all.to_ascii_lowercase().contains("sendfile") && !all.contains("Accel"), "{all}");
    assert!(!all.contains("srv"), "{all}");
    assert_eq!((response.field("X-Kept"), response.text().as_str()), (Some("1"), "ok"));
    assert_eq!(response.trailers, "X-Sum: 1\r\n");
}

#[test]
fn slowly_sent_short_body_occupies_no_upstream_connection() {
    let origin = Origin::mirror();
    let mut options = Options::to(vec![origin.server()]);
    options.group.servers[0].connections_max = 1;
    let rig = Rig::with(options);
    let mut slow = rig.client();
    slow.send("POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 4\r\n\r\nbo");
    for _ in 0..20 {
        // The only connection stays free for others meanwhile.
        assert_eq!(rig.get("/").status, 200);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(!origin.seen().contains("POST"), "{}", origin.seen());
    slow.send("dy");
    assert!(slow.response(Method::Post).unwrap().text().ends_with("\r\n\r\nbody"));
    // A client that stops in the middle of its body gets 400, and no server gets the request.
    let mut gone = rig.client();
    gone.send("PUT /gone HTTP/1.1\r\nHost: site.test\r\nContent-Length: 4\r\n\r\nbo");
    gone.shutdown_write();
    assert_eq!(gone.response(Method::Put).unwrap().status, 400);
    assert!(!origin.seen().contains("/gone"), "{}", origin.seen());
}

#[test]
fn an_early_response_is_not_lost() {
    // The upstream answers after the head and closes with the body unread, which resets the connection.
    let origin = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 7\r\n\r\ntoo big");
    });
    let rig = Rig::to(&origin);
    for _ in 0..20 {
        let mut client = rig.client();
        client.send("POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 100000000\r\n\r\n");
        let piece = vec![b'x'; 64 * 1024];
        let mut writer = client.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            use std::io::Write;
            while writer.write_all(&piece).is_ok() {}
        });
        let response = client.response(Method::Post).unwrap();
        assert_eq!((response.status, response.text().as_str()), (413, "too big"));
        // Otherwise the proxy would read on for 30 s.
        client.stream.shutdown(std::net::Shutdown::Both).unwrap();
        sender.join().unwrap();
    }
}

#[test]
fn response_streams_while_the_request_is_still_sent() {
    // Echoes piece by piece; each waits for the one before.
    let origin = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while let Some(piece) = caller.body_piece() {
            caller.send(&format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8(piece).unwrap()));
        }
        caller.send("0\r\n\r\n");
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    client.send("POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.raw(1));
    }
    for number in 0..50 {
        client.send(&format!("3\r\n{number:03}\r\n"));
        assert_eq!(client.raw(8), format!("3\r\n{number:03}\r\n").into_bytes());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.raw(5), b"0\r\n\r\n");
}

#[test]
fn large_bodies_arrive_whole_both_ways() {
    const PIECES: usize = 2_000;
    let piece = |number: usize| vec![(number % 251) as u8; 16 * 1024];
    let origin = Origin::start(move |mut caller, _| {
        caller.head().unwrap();
        let mut sum = 0u64;
        let mut len = 0u64;
        while let Some(bytes) = caller.body_piece() {
            len += bytes.len() as u64;
            sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        caller.send(&format!("HTTP/1.1 200 OK\r\nX-Sum: {sum} {len}\r\nTransfer-Encoding: chunked\r\n\r\n"));
        for number in 0..PIECES {
            caller.send("4000\r\n");
            caller.send_bytes(&piece(number));
            caller.send("\r\n");
        }
        caller.send("0\r\n\r\n");
    });
    let rig = Rig::to(&origin);
    let mut client = rig.client();
    client.send(&format!(
        "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: {}\r\n\r\n",
        PIECES * 16 * 1024
    ));
    let mut sum = 0u64;
    for number in 0..PIECES {
        let bytes = piece(number);
        sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        client.send_bytes(&bytes);
    }
    let response = client.response(Method::Post).unwrap();
    assert_eq!(response.field("X-Sum"), Some(format!("{sum} {}", PIECES * 16 * 1024).as_str()));
    assert_eq!(response.body.len(), PIECES * 16 * 1024);
    assert!(response.body.chunks(16 * 1024).enumerate().all(|(number, bytes)| bytes == piece(number)));
}

#[test]
fn read_ahead_frees_the_upstream_of_a_slow_client() {
    // The client reads nothing; 40 KiB fit the read-ahead whatever the socket buffers hold.
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 40960\r\n\r\n");
            caller.send_bytes(&[b'x'; 40 * 1024]);
        }
    });
    let rig = Rig::to(&origin);
    let mut slow: Vec<_> = (0..20)
        .map(|_| {
            let mut client = rig.client();
            client.send(GET);
            // The first byte has arrived, so the upstream will send the rest.
            client.raw(1);
            client
        })
        .collect();
    assert!(origin.connections() <= 20);
    let before = origin.connections();
    // The connections are idle, so no new one is opened.
    assert_eq!(rig.get("/").body.len(), 40 * 1024);
    assert_eq!(origin.connections(), before);
    for client in &mut slow {
        assert!(client.raw(40 * 1024).len() == 40 * 1024);
    }
}

#[test]
fn forbidden_fields_are_removed_from_trailers() {
    let origin = Origin::start(|mut caller, _| {
        caller.head().unwrap();
        caller.rest_until(b"\r\n\r\n");
        caller.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
        caller.send("0\r\nX-Internal: secret\r\nX-Done: yes\r\n\r\n");
    });
    let mut options = Options::to(vec![origin.server()]);
    options.route.request.edits.remove = vec!["x-user".into()];
    options.route.response.edits.remove = vec!["x-internal".into()];
    let rig = Rig::with(options);
    let response = rig.ask(
        "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\nConnection: X-Hop\r\n\r\n\
         0\r\nX-User: admin\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Port: 1\r\nX_Forwarded_For: 6.6.6.6\r\n\
         X-Hop: 1\r\nX-Sum: 1\r\n\r\n",
    );
    assert_eq!(response.text(), "ok");
    assert!(origin.seen().ends_with("\r\n\r\n0\r\nX-Sum: 1\r\n\r\n"), "{}", origin.seen());
    assert_eq!(response.trailers, "X-Done: yes\r\n");
}

#[test]
fn response_fields_named_in_connection_are_removed() {
    let origin = Origin::answering(
        "HTTP/1.1 200 OK\r\nConnection: Set-Cookie, X-Hop\r\nSet-Cookie: a=1\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n",
    );
    let response = Rig::to(&origin).get("/");
    // Fields for all recipients may not be named (RFC 9110 section 7.6.1), and stay.
    assert_eq!(
        (response.field("X-Hop"), response.field("Set-Cookie")),
        (None, Some("a=1")),
        "{}",
        response.head
    );
}
