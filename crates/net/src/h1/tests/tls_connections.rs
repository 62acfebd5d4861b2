//! Connections through TLS. The roles in the handshake make no difference afterwards, so HTTP is served here
//! on the TLS client's end.

use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use times::Moment;

use super::rig::{FILE_BYTES, Rig, pattern_bytes};
use crate::address::Peer;
use crate::client_connection::IdleClient;
use crate::link::Link;
use crate::sim::{End, SimulatedWire};
use crate::stream::Stream;
use crate::tls::{TlsClient, TlsClientOptions, TlsStream};

/// The TLS server, at the remote end of a connection.
pub(super) struct Server {
    wire: Rc<SimulatedWire>,
    tls: ServerConnection,
}

impl Server {
    pub(super) fn new(wire: &Rc<SimulatedWire>) -> Server {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["app.test".to_owned()]).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(cert.pem().as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(signing_key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        tls.set_buffer_limit(None);
        Server { wire: wire.clone(), tls }
    }

    /// Receives and sends what is possible; returns the decrypted bytes.
    pub(super) fn run_turn(&mut self) -> Vec<u8> {
        let bytes = self.wire.client_reads();
        let mut rest = &bytes[..];
        let mut text = Vec::new();
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).unwrap();
            self.tls.process_new_packets().unwrap();
            // Fails when no more is available.
            let _ = self.tls.reader().read_to_end(&mut text);
        }
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).unwrap();
        }
        if !out.is_empty() {
            self.wire.client_sends(&out);
        }
        text
    }

    /// Whether the other end has sent close_notify.
    fn has_ended(&mut self) -> bool {
        matches!(self.tls.reader().read(&mut [0]), Ok(0))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
    }
}

/// Performs a handshake with a [`Server`] at the remote end.
pub(super) async fn connect(stream: Stream) -> Link {
    let options = TlsClientOptions { name: "app.test", insecure: true, ..TlsClientOptions::default() };
    let client = TlsClient::new(&options).unwrap();
    Link::Tls(Box::new(TlsStream::connect(stream, &client, Moment::NEVER).await.unwrap()))
}

/// Serves a connection through TLS, on which the remote end sends requests.
fn serve_over_tls(rig: &Rig) -> (Rc<SimulatedWire>, Server) {
    let wire = rig.wire(7);
    let stream = Stream::simulated(&rig.core, wire.clone());
    let mut far = Server::new(&wire);
    let engine = rig.engine.clone();
    rig.core.spawn(async move {
        IdleClient::new(&engine, connect(stream).await, Peer::Unix, false).park();
    });
    for _ in 0..5 {
        rig.run_until_idle();
        far.run_turn();
    }
    assert_eq!(rig.open_connections(), 1);
    (wire, far)
}

/// Lets both ends run until nothing more is sent; returns what the remote end has read.
fn run_until_idle(rig: &Rig, far: &mut Server) -> Vec<u8> {
    let mut came = Vec::new();
    loop {
        let before = came.len();
        came.extend(far.run_turn());
        rig.run_until_idle();
        came.extend(far.run_turn());
        if came.len() == before {
            return came;
        }
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: zoo\r\n\r\n")
}

#[test]
fn pipelined_requests_in_one_tls_record_are_all_answered() {
    let rig = Rig::with_short_timeouts();
    let (wire, mut far) = serve_over_tls(&rig);
    // More than fits into a buffer for heads, although it is one record.
    let requests = [get("/fixed?1").repeat(300), get("/file?7"), get("/fixed?3")].concat();
    far.send(requests.as_bytes());
    let came = run_until_idle(&rig, &mut far);
    assert!(came.ends_with(&pattern_bytes(3, 20)));
    let file = [pattern_bytes(7, 100), pattern_bytes(0, FILE_BYTES)[7..].to_vec()].concat();
    assert!(came.windows(file.len()).any(|window| window == file), "the file is not in the answers");
    assert_eq!(came.windows(9).filter(|window| window == b"HTTP/1.1 ").count(), 302);
    rig.advance_ms(1_500);
    assert_eq!(rig.core.running(), 0, "the idle connection is parked");
    far.send(get("/fixed?9").as_bytes());
    assert!(run_until_idle(&rig, &mut far).ends_with(&pattern_bytes(9, 20)));
    wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn decrypted_body_is_read_without_socket_readiness() {
    let rig = Rig::with_short_timeouts();
    let (_wire, mut far) = serve_over_tls(&rig);
    let body = pattern_bytes(5, 40_000);
    far.send(
        format!("POST /echo HTTP/1.1\r\nHost: zoo\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
    );
    far.send(&body);
    let came = run_until_idle(&rig, &mut far);
    let text = String::from_utf8(came).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("0\r\n\r\n"));
    let letters = text.split_once("\r\n\r\n").unwrap().1.bytes().filter(u8::is_ascii_lowercase).count();
    assert!(letters >= body.len(), "{letters} of {}", body.len());
}

#[test]
fn file_response_head_is_sent_with_the_first_file_bytes() {
    let rig = Rig::with_short_timeouts();
    let (wire, mut far) = serve_over_tls(&rig);
    wire.whole_sends.set(true);
    wire.sends.borrow_mut().clear();
    far.send(get("/file?7").as_bytes());
    assert!(run_until_idle(&rig, &mut far).ends_with(&pattern_bytes(0, FILE_BYTES)[7..]));
    let sends = wire.sends.borrow();
    assert!(sends[0] > 60_000 && sends.len() == 2, "{sends:?}");
}

#[test]
fn slow_tls_reader_receives_whole_file_and_close_notify() {
    let rig = Rig::with_short_timeouts();
    let (wire, mut far) = serve_over_tls(&rig);
    let ask = "GET /file?1 HTTP/1.1\r\nHost: zoo\r\nConnection: close\r\n\r\n";
    far.send(ask.as_bytes());
    let mut came = Vec::new();
    // A record takes several rounds, each of which transfers at least one byte.
    for _ in 0..FILE_BYTES {
        if wire.end().is_some() {
            break;
        }
        wire.set_room(3_000);
        came.extend(far.run_turn());
        rig.run_until_idle();
    }
    came.extend(far.run_turn());
    assert!(came.ends_with(&pattern_bytes(0, FILE_BYTES)[1..]));
    assert_eq!(wire.end(), Some(End::Fin));
    assert!(far.has_ended(), "the end was not announced");
    rig.assert_empty();
}
