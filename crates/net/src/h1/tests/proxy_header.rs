//! Connections behind a proxy that sends the client's address.

use std::sync::Arc;

use super::rig::{Rig, read};
use crate::address::PeerSet;
use crate::sim::End;

const REQUEST: &[u8] = b"GET /who HTTP/1.1\r\nHost: zoo\r\n\r\n";
const HEADER_V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 443\r\n";
/// A version 2 header for a client with TLS.
const HEADER_V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x14\xc0\0\x02\x01\xc0\0\x02\x02\x04\xd2\x01\xbb\x20\0\x05\x01\0\0\0\0";
const EXPECTED_BODY: &str = "Tcp(192.0.2.1:1234) false Some(192.0.2.2:443)";

/// Permits all Unix sockets, which simulated clients use.
fn any_unix_peer() -> Arc<PeerSet> {
    Arc::new(PeerSet { includes_unix: true, ..PeerSet::default() })
}

#[test]
fn reported_client_address_is_used_wherever_bytes_are_split() {
    for (header, reported) in
        [(HEADER_V1, EXPECTED_BODY.to_owned()), (HEADER_V2, EXPECTED_BODY.replace("false", "true"))]
    {
        let wire = [header, REQUEST, REQUEST].concat();
        for cut in 0..=wire.len() {
            let rig = Rig::with_short_timeouts();
            let client = rig.connect_with_proxy_header(cut as u64, &any_unix_peer());
            let mut said = rig.send_and_read(&client, &wire[..cut]);
            rig.advance_ms(100);
            said += &rig.send_and_read(&client, &wire[cut..]);
            assert_eq!(said.matches(&reported).count(), 2, "cut at {cut}: {said}");
            // The reported address applies to the whole connection.
            rig.advance_ms(8_000);
            assert!(rig.send_and_read(&client, REQUEST).ends_with(&reported));
            client.client_closes();
            rig.run_until_idle();
            rig.assert_empty();
        }
    }
}

#[test]
fn proxy_header_is_read_byte_by_byte() {
    let rig = Rig::with_short_timeouts();
    let client = rig.connect_with_proxy_header(1, &any_unix_peer());
    let mut said = String::new();
    for byte in [HEADER_V2, REQUEST].concat() {
        said += &rig.send_and_read(&client, &[byte]);
    }
    assert!(said.contains("192.0.2.1:1234"), "{said}");
}

#[test]
fn proxy_header_length_limit_is_exact() {
    // 4,096 bytes: the addresses and an unknown extension.
    let mut header =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x10\0\xc0\0\x02\x01\xc0\0\x02\x02\x04\xd2\x01\xbb".to_vec();
    header.extend_from_slice(b"\xee\x0f\xf1");
    header.resize(16 + 4096, b'x');
    let request = format!("GET /who HTTP/1.1\r\nHost: zoo\r\nX: {}\r\n\r\n", "y".repeat(6_000));
    let rig = Rig::with_short_timeouts();
    let client = rig.connect_with_proxy_header(1, &any_unix_peer());
    let said = rig.send_and_read(&client, &[&header, request.as_bytes()].concat());
    assert!(said.ends_with(EXPECTED_BODY), "{said}");
    header[15] = 1;
    let client = rig.connect_with_proxy_header(1, &any_unix_peer());
    assert!(rig.send_and_read(&client, &header).starts_with("HTTP/1.1 400 "));
}

#[test]
fn local_proxy_header_keeps_the_connection_address() {
    let rig = Rig::with_short_timeouts();
    for header in [&b"PROXY UNKNOWN\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let client = rig.connect_with_proxy_header(1, &any_unix_peer());
        assert!(rig.send_and_read(&client, &[header, REQUEST].concat()).ends_with("Unix false None"));
    }
}

#[test]
fn requests_without_a_proxy_header_are_rejected() {
    let rig = Rig::with_short_timeouts();
    for wrong in [REQUEST, &HEADER_V2[..12], b"PROXY TCP4 1.2.3.4\r\n"] {
        let client = rig.connect_with_proxy_header(1, &any_unix_peer());
        client.client_sends(wrong);
        // An incomplete header is not invalid; it times out.
        rig.advance_ms(4_100);
        let status = if wrong == &HEADER_V2[..12] { "408" } else { "400" };
        assert!(read(&client).starts_with(&format!("HTTP/1.1 {status} ")));
        rig.advance_ms(2_100);
        assert_eq!(client.end(), Some(End::Fin));
    }
    let log = rig.engine.service.log.borrow().clone();
    let faults: Vec<&str> = log.iter().map(|(_, _, _, fault)| fault.as_str()).collect();
    assert_eq!(
        faults,
        [
            "400 no PROXY protocol header",
            "408 the PROXY protocol header took too long",
            "400 invalid PROXY protocol header"
        ]
    );
}

#[test]
fn proxy_header_from_untrusted_peer_is_rejected() {
    let rig = Rig::with_short_timeouts();
    let client = rig.connect_with_proxy_header(1, &Arc::default());
    assert!(rig.send_and_read(&client, &[HEADER_V1, REQUEST].concat()).starts_with("HTTP/1.1 403 "));
    rig.advance_ms(2_100);
    rig.assert_empty();
}

#[test]
fn connection_without_any_bytes_is_not_logged() {
    let rig = Rig::with_short_timeouts();
    let checks = rig.connect_with_proxy_header(1, &any_unix_peer());
    let waits = rig.connect_with_proxy_header(2, &any_unix_peer());
    checks.client_closes();
    rig.advance_ms(4_100);
    assert_eq!((read(&waits), waits.end()), (String::new(), Some(End::Fin)));
    assert!(rig.engine.service.log.borrow().is_empty());
    rig.assert_empty();
}
