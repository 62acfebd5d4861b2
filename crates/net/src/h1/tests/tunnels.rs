//! Tunnels between a client and a server, with and without TLS.

use std::cell::RefCell;
use std::rc::Rc;

use super::rig::{Rig, read};
use super::tls_connections::{Server, connect};
use crate::link::Link;
use crate::sim::{End, SimulatedWire};
use crate::stream::Stream;

/// Maximum content of a TLS record.
const RECORD_BYTES: usize = 16 * 1024;

/// Opens a tunnel to `origin`; returns its client.
fn open_tunnel(rig: &Rig) -> Rc<SimulatedWire> {
    let client = rig.connect(0);
    let answer = rig.send_and_read(&client, b"GET /tunnel HTTP/1.1\r\nHost: zoo\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    client
}

/// Opens a tunnel to a TLS server; returns its client and server.
fn open_tls_tunnel(rig: &Rig) -> (Rc<SimulatedWire>, Server) {
    let wire = rig.wire(7);
    let stream = Stream::simulated(&rig.core, wire.clone());
    let mut server = Server::new(&wire);
    let made: Rc<RefCell<Option<Link>>> = rig.engine.service.origin.clone();
    rig.core.spawn(async move {
        *made.borrow_mut() = Some(connect(stream).await);
    });
    for _ in 0..5 {
        rig.run_until_idle();
        server.run_turn();
    }
    (open_tunnel(rig), server)
}

#[test]
fn decrypted_tunnel_bytes_follow_when_the_client_reads_on() {
    let rig = Rig::with_short_timeouts();
    let (client, mut server) = open_tls_tunnel(&rig);
    client.set_room(0);
    // As much as a tunnel reads ahead, and a little more that is decrypted with the last of it.
    let ahead = "x".repeat(4 * RECORD_BYTES);
    server.send(ahead.as_bytes());
    server.send(b"last words");
    server.run_turn();
    rig.run_until_idle();
    client.whole_sends.set(true);
    client.set_room(usize::MAX);
    rig.run_until_idle();
    let came = read(&client);
    assert_eq!(came.len(), ahead.len() + "last words".len());
    assert!(came.ends_with("last words"));
}

#[test]
fn tunnel_delivers_everything_the_server_sent_before_its_reset() {
    let rig = Rig::with_short_timeouts();
    let server = rig.wire(7);
    let stream = Stream::simulated(&rig.core, server.clone());
    rig.engine.service.origin.replace(Some(Link::Plain(stream)));
    let client = open_tunnel(&rig);
    client.set_room(100);
    let said = "x".repeat(50_000);
    server.client_sends(said.as_bytes());
    server.client_half_closes();
    rig.run_until_idle();
    // The server closes both directions while the client still sends.
    server.client_resets();
    for _ in 0..3 {
        client.client_sends(b"are you there?");
        rig.run_until_idle();
    }
    client.set_room(usize::MAX);
    rig.run_until_idle();
    assert_eq!(read(&client).len(), said.len());
    assert_eq!(client.end(), Some(End::Fin));
    client.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}
