//! Large and small transfers over real sockets.

use std::io::Write;

use net::BindAddress;

use crate::rig::{Client, FILE_BYTES, finish, options, pattern, socket_path, start, tcp};

#[test]
fn large_bodies_pass_both_ways() {
    let server = start(&options(2), &[tcp(), BindAddress::Unix(socket_path())]);
    for address in &server.addresses() {
        let mut client = Client::connect(address).unwrap();
        assert!(client.ask("/file").unwrap().body == pattern(FILE_BYTES));
        // Sent while the response is read, because neither side could buffer all of it.
        let body = pattern(20_000_000);
        let mut sender = client.sender();
        let sent = body.clone();
        let sending = std::thread::spawn(move || {
            let head = format!("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: {}\r\n\r\n", sent.len());
            sender.write_all(head.as_bytes()).unwrap();
            for piece in sent.chunks(77_777) {
                sender.write_all(piece).unwrap();
            }
        });
        assert!(client.answer().unwrap().body == body);
        sending.join().unwrap();
        assert_eq!(client.ask("/").unwrap().body, b"hello");
    }
    assert!(finish(server));
}

#[test]
fn requests_sent_in_pieces_of_any_size_are_all_answered() {
    let server = start(&options(2), &[tcp(), BindAddress::Unix(socket_path())]);
    let clients: Vec<_> = (0..24)
        .map(|number: usize| {
            let address = server.addresses()[number % 2].clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(&address).unwrap();
                let heap = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".repeat(100);
                // A different piece size for each, from one byte to everything at once.
                let step = [1, 7, 31, 32, 33, 500, 1_000, heap.len()][number % 8];
                for _ in 0..5 {
                    for piece in heap.chunks(step) {
                        client.send(piece).unwrap();
                    }
                    for _ in 0..100 {
                        assert_eq!(client.answer().unwrap().body, b"hello");
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let requests: u64 = server.counters().iter().map(|core| core.requests.value()).sum();
    assert_eq!(requests, 24 * 500);
    assert!(finish(server));
}

#[test]
fn an_error_arrives_although_the_body_was_not_read() {
    let server = start(&options(1), &[tcp()]);
    for _ in 0..20 {
        let mut client = Client::connect(&server.addresses()[0]).unwrap();
        client.send(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1, 2\r\n\r\n").unwrap();
        // Much more than the socket's buffers hold, to a server that reads no more of it than necessary.
        let mut sender = client.sender();
        let sending = std::thread::spawn(move || sender.write_all(&vec![b'x'; 1_000_000]));
        let answer = client.answer().unwrap();
        assert!(answer.head.starts_with("HTTP/1.1 400 ") && answer.closes(), "{}", answer.head);
        sending.join().unwrap().unwrap();
    }
    assert!(finish(server));
}
