//! The connection limit: new connections wait instead of failing.

use std::time::Duration;

use net::{BindAddress, Limits, Options};

use crate::rig::{Client, finish, options, socket_path, start, tcp, wait_until};

fn connection_limit(connections_max: usize) -> Options {
    Options { limits: Limits { connections_max, ..Limits::default() }, ..options(1) }
}

#[test]
fn new_connections_get_the_permits_of_idle_ones() {
    let server = start(&connection_limit(2), &[tcp()]);
    let address = &server.addresses()[0];
    let mut clients: Vec<Client> = Vec::new();
    // Before and after the time for which an idle connection keeps its future.
    for pause in [0, 0, 0, 1_300, 0, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        let mut client = Client::connect(address).unwrap();
        assert_eq!(client.ask("/").unwrap().body, b"hello");
        clients.push(client);
    }
    assert_eq!(server.counters()[0].connections_open.value(), 2);
    assert!(finish(server));
}

#[test]
fn new_connections_wait_for_permits_on_every_listener() {
    let path = socket_path();
    let server = start(&connection_limit(2), &[tcp(), BindAddress::Unix(path)]);
    let addresses = server.addresses().to_vec();
    let waiting: Vec<_> = (0..12)
        .map(|number| {
            let address = addresses[number % 2].clone();
            std::thread::spawn(move || Client::connect(&address).unwrap().ask("/slow").unwrap().body)
        })
        .collect();
    // Each connection holds its permit for 200 ms, so more than two would be noticed.
    let mut most = 0;
    wait_until("all are answered", || {
        most = most.max(server.counters()[0].connections_open.value());
        waiting.iter().all(|client| client.is_finished())
    });
    assert_eq!(most, 2);
    for client in waiting {
        assert_eq!(client.join().unwrap(), b"slow");
    }
    // Both listeners still work.
    for address in &addresses {
        assert_eq!(Client::connect(address).unwrap().ask("/").unwrap().body, b"hello");
    }
    assert_eq!(server.counters()[0].panics.value(), 0);
    assert!(finish(server));
}

#[test]
fn new_connections_go_to_cores_with_free_permits() {
    const CORES: usize = 4;
    let limits = Limits { connections_max: CORES, ..Limits::default() };
    let server = start(&Options { limits, ..options(CORES) }, &[BindAddress::Unix(socket_path())]);
    let open = || server.counters().iter().map(|core| core.connections_open.value()).sum::<u64>();
    let mut clients = Vec::new();
    for number in 1..=CORES {
        let mut client = Client::connect(&server.addresses()[0]).unwrap();
        client.send(b"GET /hang HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        clients.push(client);
        wait_until("a permit for each", || open() == number as u64);
    }
    drop(clients);
    wait_until("permits are given back", || open() == 0);
    assert!(finish(server));
}

#[test]
fn idle_connections_stay_open_while_no_new_one_waits() {
    let server = start(&connection_limit(3), &[tcp()]);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server.addresses()[0]).unwrap()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            assert!(!client.ask("/").unwrap().closes());
        }
        // Long enough to be parked and closed, if a new connection arrived.
        std::thread::sleep(Duration::from_millis(1_300));
    }
    assert_eq!(server.counters()[0].connections.value(), 3);
    assert!(finish(server));
}

#[test]
fn two_thousand_connections_are_kept_and_released() {
    let server = start(&options(2), &[tcp()]);
    let mut clients: Vec<Client> =
        (0..2_000).map(|_| Client::connect(&server.addresses()[0]).unwrap()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            assert_eq!(client.ask("/").unwrap().body, b"hello");
        }
    }
    let open = || server.counters().iter().map(|core| core.connections_open.value()).collect::<Vec<_>>();
    assert_eq!(open().iter().sum::<u64>(), 2_000);
    assert!(open().iter().all(|&count| count > 0), "one thread has them all: {:?}", open());
    drop(clients);
    wait_until("permits are given back", || open().iter().sum::<u64>() == 0);
    assert!(finish(server));
}
