//! A store that sends too much, too little, too late, or nonsense.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use cluster::{Reply, StoreConnection, StoreError, StoreEvent};

use crate::{Server, block_on, eventually, options};

/// Starts a store that answers the first command with `head` and then `tail` without an end; its thread returns the
/// number of bytes that it could send.
fn store(head: &'static str, tail: &'static str) -> (String, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut command = [0; 4096];
        let _ = stream.read(&mut command).unwrap();
        stream.write_all([head, tail].concat().as_bytes()).unwrap();
        let tails = tail.repeat(1 + 4096 / (tail.len() + 1));
        let mut sent = 0;
        // Bounded, so that a client that reads everything fails the test instead of exhausting the machine.
        while !tail.is_empty() && sent < 256 << 20 {
            match stream.write(tails.as_bytes()) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        // Waits until the client closes the connection.
        let _ = stream.read(&mut command);
        sent
    });
    (url, thread)
}

fn ask(url: &str, timeout: Duration) -> Result<Reply, StoreError> {
    let options = options("one", url, |table| table.timeout = timeout);
    block_on(async { StoreConnection::open(&options).await?.command(&[b"GET", b"a"]).await })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn endless_and_malformed_replies_are_refused_in_bounded_memory() {
    // Nested deeper than any reply is.
    const NESTED: &str = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n";
    let lies = [
        ("$99999999999\r\n", "a"),
        ("$9223372036854775807\r\n", "a"),
        ("*2147483647\r\n", ":1\r\n"),
        ("*9223372036854775807\r\n", "*0\r\n"),
        ("%4611686018427387904\r\n", "+a\r\n"),
        ("+", "a"),
        ("-", "a"),
        (":", "1"),
        ("", NESTED),
        (">3\r\n", "+message\r\n"),
        ("|1\r\n", "+a\r\n"),
        ("=15\r\ntxt:\r\n", "a"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "a"),
        ("$-5\r\n*-5\r\n!-5\r\n", "\r\n"),
        ("\0\0\0\0", "\0"),
    ];
    for (head, tail) in lies {
        let (url, thread) = store(head, tail);
        let outcome = ask(&url, LONG);
        let sent = thread.join().unwrap();
        assert!(sent < 64 << 20, "{head:?}: {sent} bytes were read");
        // `$-5` is nothing, as old servers wrote it; messages to subscribers are passed over, and `+message` is a reply.
        if !["$-5\r\n*-5\r\n!-5\r\n", ">3\r\n"].contains(&head) {
            let error = outcome.expect_err(head).to_string();
            assert!(error.len() < 600, "{head:?}: {error}");
        }
    }
}

#[test]
fn silent_and_slow_stores_are_given_up() {
    for head in ["", "$5\r\nabc"] {
        let (url, thread) = store(head, "");
        let outcome = ask(&url, Duration::from_millis(50));
        assert_eq!(outcome, Err(StoreError::TimedOut(Duration::from_millis(50))), "{head:?}");
        thread.join().unwrap();
    }
    // A byte now and then does not prolong the time.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b"+").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(matches!(ask(&url, Duration::from_millis(100)), Err(StoreError::TimedOut(_))));
    thread.join().unwrap();
}

/// Starts a store that answers each command with `reply`.
fn liar(reply: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut command = [0; 65_536];
                while stream.read(&mut command).is_ok_and(|count| count > 0) {
                    if stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[test]
fn servers_go_on_beside_a_store_that_lies() {
    let lies = [
        "+OK\r\n",
        "$-1\r\n",
        ":-1\r\n",
        "*0\r\n",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        "*2\r\n$1\r\na\r\n$19\r\n9223372036854775807\r\n",
        "*2\r\n:1\r\n*-1\r\n",
        "-ERR no\r\n",
        "-MOVED 1 127.0.0.1:1\r\n",
        "*3\r\n$-1\r\n$-1\r\n$-1\r\n",
    ];
    for reply in lies {
        let url = liar(reply);
        let server = Server::start(options("one", &url, |table| {
            table.timeout = Duration::from_secs(2);
            table.purge_timeout = Duration::from_millis(50);
        }));
        server.store.receive_ticket_secrets(1_000, Box::new(|_, _| {}));
        server.write("a", "1");
        for _ in 0..3 {
            server.store.exchange_blocking();
            let _ = block_on(server.store.lease("a"));
            server.store.begin_purge(b"a".to_vec()).wait();
        }
        assert_eq!(server.files.text("a").as_deref(), Some("1"), "{reply:?}");
        assert!(server.count(|event| matches!(event, StoreEvent::Away(_))) <= 4, "{reply:?}");
        if reply.starts_with('-') {
            eventually("it is reported", || !server.store.status().is_up);
        }
    }
}
