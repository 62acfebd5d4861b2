//! Graceful shutdown: requests that were sent get their responses.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use net::{BindAddress, Options, Timeouts};
use times::Millis;

use crate::rig::{Client, finish, options, socket_path, start, tcp};

#[test]
fn a_drain_under_load_loses_no_request() {
    for bind in [tcp(), BindAddress::Unix(socket_path())] {
        let server = start(&options(2), &[bind]);
        let address = server.addresses()[0].clone();
        let answers = Arc::new(AtomicU64::new(0));
        let warm = Arc::new(Barrier::new(17));
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let address = address.clone();
                let answers = answers.clone();
                let warm = warm.clone();
                std::thread::spawn(move || {
                    let mut client = Client::connect(&address).unwrap();
                    client.ask("/").unwrap();
                    warm.wait();
                    // Runs until a response announces the close: each of these requests must get a response.
                    while !client.ask("/").unwrap().closes() {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    assert_eq!(client.rest().unwrap(), b"");
                })
            })
            .collect();
        warm.wait();
        while answers.load(Ordering::Relaxed) < 1_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.stop_handle().drain();
        for client in clients {
            client.join().unwrap();
        }
        assert!(server.join().unwrap());
        assert!(Client::connect(&address).is_err(), "nobody listens any more");
    }
}

#[test]
fn drain_finishes_running_requests_and_closes_idle_ones() {
    let server = start(&options(2), &[tcp()]);
    let address = &server.addresses()[0];
    let mut busy = Client::connect(address).unwrap();
    let mut idle = Client::connect(address).unwrap();
    let mut silent = Client::connect(address).unwrap();
    idle.ask("/").unwrap();
    busy.ask("/").unwrap();
    busy.send(b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\nGET /slow HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    assert!(finish(server));
    let answer = busy.answer().unwrap();
    // The response that was in progress when the server stopped, or the one after it.
    let last = if answer.closes() { answer } else { busy.answer().unwrap() };
    assert!(last.closes());
    assert_eq!(last.body, b"slow");
    assert_eq!(idle.rest().unwrap(), b"");
    // A client that has sent nothing is perhaps not accepted yet, and then notices the end when it sends.
    let noticed = silent.send(b"GET").and_then(|()| silent.rest());
    assert!(noticed.map_or_else(|error| is_end(&error), |rest| rest.is_empty()));
}

fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

#[test]
fn drain_deadline_aborts_unfinished_requests() {
    let timeouts = Timeouts { drain: Millis(300), ..Timeouts::default() };
    let server = start(&Options { timeouts, ..options(1) }, &[tcp()]);
    let address = &server.addresses()[0];
    let mut hanging = Client::connect(address).unwrap();
    let mut cut = Client::connect(address).unwrap();
    hanging.send(b"GET /hang HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    cut.send(b"GET /until-close HTTP/1.0\r\n\r\n").unwrap();
    // A third request gets its response only after the others have been accepted.
    Client::connect(address).unwrap().ask("/slow").unwrap();
    assert!(!finish(server), "not all were finished");
    assert_eq!(hanging.rest().unwrap(), b"");
    // A body that ends with the connection must not look complete.
    assert_eq!(cut.rest().expect_err("a cut body").kind(), ErrorKind::ConnectionReset);
}
