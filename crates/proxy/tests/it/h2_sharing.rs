//! HTTP/2 to upstream servers: clients that read nothing, leave, or upload without end take nothing from those that share
//! their connection.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::h2rig::{Came, H2Origin, Peer};
use crate::rig::{self, Client, Options, Rig};
use http::{Fields, Status};
use http2::{ErrorCode, Machine, Options as H2, RequestLine};

/// Bytes of the responses that are read.
const CONTENT_BYTES: usize = 128 * 1024;
/// Cancelled requests after which servers of this test close their connection.
const CANCELLED_MAX: usize = 200;

/// Sends this many requests for `path` on one connection with HTTP/2, whose client reads nothing.
fn read_nothing(address: SocketAddr, path: &str, requests: usize) -> TcpStream {
    let mut machine = Machine::client(H2 { stream_window: 0, ..H2::default() });
    let mut out = Vec::new();
    for _ in 0..requests {
        let line = RequestLine {
            method: b"GET",
            scheme: b"http",
            authority: b"a",
            path: path.as_bytes(),
            protocol: None,
        };
        let _ = machine.request(&line, true, &mut out).expect("the server permits the streams");
    }
    // The server's settings are acknowledged, because it waits for that.
    out.extend_from_slice(&[0, 0, 0, 4, 1, 0, 0, 0, 0]);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&out).unwrap();
    stream
}

/// Answers `/large` without end and other requests with [`CONTENT_BYTES`], as the windows allow.
fn send_all(peer: &mut Peer) {
    let content = vec![b'x'; CONTENT_BYTES];
    let mut large = Vec::new();
    let mut others = Vec::new();
    let mut is_noted = false;
    loop {
        match peer.next() {
            Came::Whole(asked) => {
                peer.begin(asked.stream, Status::OK, b"", false);
                match asked.path.as_str() {
                    "/large" => large.push(asked.stream),
                    _ => others.push((asked.stream, CONTENT_BYTES)),
                }
            }
            Came::Reset(stream, _) => large.retain(|other| *other != stream),
            Came::End => return,
            _ => {}
        }
        for stream in &large {
            while peer.machine.data(*stream, &content, false, &mut peer.out) > 0 {}
        }
        others.retain_mut(|(stream, left_bytes)| {
            *left_bytes -= peer.machine.data(*stream, &content[..*left_bytes], true, &mut peer.out);
            if *left_bytes == 0 {
                peer.machine.release(*stream);
            }
            *left_bytes > 0
        });
        peer.flush();
        if large.len() == 95 && !std::mem::replace(&mut is_noted, true) {
            peer.note("full");
        }
    }
}

#[test]
fn unread_streams_never_use_up_the_window_of_the_connection() {
    let origin = H2Origin::start(H2::default(), |peer, _| send_all(peer));
    let rig = Rig::with(Options::to(vec![origin.server()]));
    assert_eq!(rig.get("/first").body.len(), CONTENT_BYTES);
    let unread = read_nothing(rig.h2c, "/large", 95);
    origin.wait_noted("full");
    for _ in 0..100 {
        assert_eq!(rig.get("/").body.len(), CONTENT_BYTES);
    }
    assert_eq!(origin.connections(), 1);
    drop(unread);
    assert_eq!(rig.get("/").body.len(), CONTENT_BYTES);
}

/// A server on which `/held` is answered in two parts, the second after two waits at `barrier`; `/cancelled` is answered
/// as far as the windows allow, and `/reset` by a reset. It closes a connection on which too many streams were reset.
fn guarded(barrier: &Arc<Barrier>) -> H2Origin {
    let barrier = barrier.clone();
    H2Origin::start(H2::default(), move |peer, number| {
        let mut cancelled = 0;
        loop {
            match peer.next() {
                Came::Whole(asked) if asked.path == "/held" => {
                    peer.begin(asked.stream, Status::OK, b"", false);
                    peer.machine.data(asked.stream, b"one ", false, &mut peer.out);
                    peer.flush();
                    let mut stream = peer.stream.try_clone().unwrap();
                    let barrier = barrier.clone();
                    thread::spawn(move || {
                        barrier.wait();
                        let last = [&[0, 0, 3, 0, 1][..], &asked.stream.to_be_bytes(), b"two"].concat();
                        let _ = stream.write_all(&last);
                    });
                }
                Came::Whole(asked) if asked.path == "/reset" => {
                    peer.machine.reset(asked.stream, ErrorCode::INTERNAL_ERROR);
                    peer.machine.release(asked.stream);
                    peer.flush();
                }
                Came::Whole(asked) => {
                    peer.begin(asked.stream, Status::OK, b"", false);
                    peer.machine.data(asked.stream, &[b'x'; 65_536], false, &mut peer.out);
                    peer.flush();
                }
                Came::Reset(..) => {
                    cancelled += 1;
                    peer.note(format!("cancelled on {number}"));
                    if cancelled == CANCELLED_MAX {
                        return;
                    }
                }
                Came::End => return,
                _ => {}
            }
        }
    })
}

/// Begins a request for `/held` on the first connection.
fn hold(rig: &Rig) -> Client {
    let mut held = rig.client();
    held.send("GET /held HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    // The head has been received, so the request is on the first connection.
    assert!(held.raw(12).starts_with(b"HTTP/1.1 200"));
    held
}

/// Lets the server complete the response to `/held`.
fn finish(held: &mut Client, barrier: &Barrier) {
    barrier.wait();
    let (rest, _) = held.rest();
    assert!(rest.ends_with(b"3\r\ntwo\r\n0\r\n\r\n"), "the response was cut: {}", rest.escape_ascii());
}

#[test]
fn clients_that_leave_cut_no_response_of_others() {
    for cancels_on_disconnect in [true, false] {
        let barrier = Arc::new(Barrier::new(2));
        let origin = guarded(&barrier);
        let mut options = Options::to(vec![origin.server()]);
        options.route.cancels_on_disconnect = cancels_on_disconnect;
        let rig = Rig::with(options);
        let mut held = hold(&rig);
        for count in 1..=2 * CANCELLED_MAX {
            let mut client = rig.client();
            client.send("GET /cancelled HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(client.raw(12).starts_with(b"HTTP/1.1 200"));
            rig::reset(&client.stream);
            drop(client);
            origin.wait_count(count);
        }
        for number in 0..origin.connections() {
            let note = format!("cancelled on {number}");
            let cancelled = origin.noted().iter().filter(|other| **other == note).count();
            assert!(cancelled <= 64, "{cancelled} requests were cancelled on connection {number}");
        }
        finish(&mut held, &barrier);
    }
}

#[test]
fn streams_that_the_server_resets_cut_no_response_of_others() {
    let barrier = Arc::new(Barrier::new(2));
    let origin = guarded(&barrier);
    let rig = Rig::with(Options::to(vec![origin.server()]));
    let mut held = hold(&rig);
    let post = "POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    for _ in 0..1_000 {
        assert_eq!(rig.ask(post).status, 502);
    }
    finish(&mut held, &barrier);
}

#[test]
fn uploads_that_the_server_does_not_read_stop_no_others() {
    let origin = H2Origin::start(H2::default(), |peer, _| {
        (peer.grants, peer.notes_content) = (false, true);
        while let Some(asked) = peer.request() {
            peer.answer(
                asked.stream,
                Status::OK,
                b"",
                asked.body.len().to_string().as_bytes(),
                &Fields::new(),
            );
        }
    });
    let rig = Rig::with(Options::to(vec![origin.server()]));
    assert_eq!(rig.get("/").text(), "0");
    let content = vec![b'x'; 200_000];
    let mut uploads: Vec<_> = (0..4).map(|_| rig.client()).collect();
    for upload in &mut uploads {
        upload.send("POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
        upload.stream.set_nonblocking(true).unwrap();
        let _ = upload.stream.write(&content);
    }
    // All of the connection's window.
    origin.wait_noted("received 262144");
    for _ in 0..3 {
        let post =
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n{}", "x".repeat(10_000));
        let response = rig.ask(&post);
        assert_eq!((response.status, response.text().as_str()), (200, "10000"));
        assert_eq!(rig.get("/").text(), "0");
    }
    assert_eq!(origin.connections(), 2);
}
