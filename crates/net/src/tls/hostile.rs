//! TLS clients that send arbitrary data, for tests and fuzzing. Panics if a property is violated.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use times::Millis;

use super::acceptor::{TlsAcceptor, TlsOptions, TlsSite};
use super::certificate::ServerCertificate;
use super::handshake::{HandshakeFailure, HandshakeStep, TlsHandshake};
use super::store::CertificateStore;
use super::{TlsClient, TlsClientOptions, TlsStream};
use crate::core::Core;
use crate::stream::Stream;

const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBizCCATKgAwIBAgIUFkkirkgWM6hXU3JKRuRStunjUj0wCgYIKoZIzj0EAwIw\n\
ETEPMA0GA1UEAwwGYS50ZXN0MCAXDTI2MTEyMjE2NTAxNloYDzIxMjYxMDI5MTY1\n\
MDE2WjARMQ8wDQYDVQQDDAZhLnRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
AAT7FVG4yppwsaM8xApmyTDzMDzVwn9zMxSWL4DuqqDKOmI0qUNpbJPXu+S4SV6i\n\
Kj3nHpdl6GjWgHLttTSNx2euo2YwZDAdBgNVHQ4EFgQU1r4eFIOLetxmQWYZ1WHv\n\
MVs/Y0MwHwYDVR0jBBgwFoAU1r4eFIOLetxmQWYZ1WHvMVs/Y0MwDwYDVR0TAQH/\n\
BAUwAwEB/zARBgNVHREECjAIggZhLnRlc3QwCgYIKoZIzj0EAwIDRwAwRAIgHEjW\n\
J4o2okVSarFE1oRa4DQ6ejYfGQrgA/Z4yFJ5UJgCIAX7R+KLwdTP3fJkbKifVlqX\n\
BjPJYUAOkbZ3kuhbMYDn\n\
-----END CERTIFICATE-----\n";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgYciGBUeOSTvrjkeb\n\
mLF2CGIYG2GZHjzeKhRU11+2nxGhRANCAAT7FVG4yppwsaM8xApmyTDzMDzVwn9z\n\
MxSWL4DuqqDKOmI0qUNpbJPXu+S4SV6iKj3nHpdl6GjWgHLttTSNx2eu\n\
-----END PRIVATE KEY-----\n";

/// Maximum number of bytes that a server may send to a client that has not completed the key exchange.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Number of consecutive key updates above which the connection may be ended.
const KEY_UPDATES_MAX: usize = 16;
/// Time limit for receiving bytes that are already in the socket.
const WAIT_TIME: Millis = Millis(10_000);

/// Plays a client driven by `data`. If the first byte is even, the others are all that the client sends; if
/// it is odd, they are the steps of a client after a regular handshake.
///
/// Verifies two properties. Predetermined bytes complete no handshake, with the same result whether they
/// arrive whole or in pieces. After a handshake, the server reads a prefix of what the client has encrypted,
/// and all of it unless a byte was changed or inserted.
///
/// # Panics
/// Panics if a property is violated.
pub fn fuzz_tls(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let core = Core::for_client(1).expect("descriptors for an engine");
    let inner = core.clone();
    let rest = rest.to_vec();
    let played = core.run_until_end(async move {
        match first % 2 {
            0 => feed_arbitrary_bytes(&inner, &rest).await,
            _ => run_client_steps(&inner, &rest).await,
        }
    });
    played.expect("a law is broken");
}

fn acceptor() -> TlsAcceptor {
    static ACCEPTOR: OnceLock<TlsAcceptor> = OnceLock::new();
    let make = || {
        let certificate =
            ServerCertificate::from_pem(CERTIFICATE.as_bytes(), KEY.as_bytes()).expect("it is valid");
        let site = TlsSite { certificates: vec![certificate], ..TlsSite::default() };
        let acceptor = TlsAcceptor::new(CertificateStore::new());
        // Other names are unknown. For a client without a name, the address is looked up.
        let find = |name: &str, _| name.starts_with(['a', '1', '\0']).then_some(0);
        acceptor.replace(&TlsOptions::default(), find, vec![Some(site)]).expect("a site");
        acceptor
    };
    ACCEPTOR.get_or_init(make).clone()
}

/// Returns both ends of a connection; the remote one is non-blocking.
fn pair(core: &Core) -> (Stream, UnixStream) {
    let (near, far) = UnixStream::pair().expect("descriptors for sockets");
    far.set_nonblocking(true).expect("a socket");
    (Stream::adopt(core, near.into()).expect("room for a registration"), far)
}

/// Reads the available bytes.
fn received(mut far: &UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match far.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
    }
    bytes
}

async fn feed_arbitrary_bytes(core: &Core, bytes: &[u8]) {
    let whole = refusal(core, bytes, bytes.len().max(1)).await;
    let in_pieces = refusal(core, bytes, bytes.len() / 9 + 1).await;
    assert_eq!(whole, in_pieces, "whole, and in pieces");
}

/// Returns the failure of a handshake that receives the bytes in pieces; `None` if it waits for more.
async fn refusal(core: &Core, bytes: &[u8], piece: usize) -> Option<HandshakeFailure> {
    let (stream, mut far) = pair(core);
    let mut handshake = TlsHandshake::new(&acceptor(), b"").expect("nothing was said");
    let mut answered = 0;
    for piece in bytes.chunks(piece) {
        far.write_all(piece).expect("room in the socket");
        stream.readable(core.now() + WAIT_TIME).await.expect("the socket can be read");
        let step = handshake.advance(&stream, None, 0);
        answered += received(&far).len();
        assert!(answered < ANSWER_BYTES_MAX, "{answered} bytes in answer to {}", bytes.len());
        match step {
            Ok(HandshakeStep::WantsRead) => {}
            Ok(HandshakeStep::WantsWrite) => panic!("there is room for {answered} bytes"),
            Ok(HandshakeStep::Done(..) | HandshakeStep::ChallengeDone) => panic!("nobody has the keys"),
            Err(failure) => return Some(failure),
        }
    }
    None
}

/// Returns a connection whose handshake is complete.
async fn connected(core: &Core) -> (TlsStream, ClientConnection, UnixStream) {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let options = TlsClientOptions {
            name: "a.test",
            insecure: true,
            disables_resumption: true,
            groups: &["X25519"],
            ..TlsClientOptions::default()
        };
        TlsClient::new(&options).expect("a client").config
    });
    let (stream, mut far) = pair(core);
    let name = ServerName::try_from("a.test").expect("a name");
    let mut client = ClientConnection::new(config.clone(), name).expect("a client");
    let mut handshake = TlsHandshake::new(&acceptor(), b"").expect("nothing was said");
    loop {
        while client.wants_write() {
            client.write_tls(&mut far).expect("room in the socket");
        }
        stream.readable(core.now() + WAIT_TIME).await.expect("the socket can be read");
        match handshake.advance(&stream, None, 0).expect("an honest client") {
            HandshakeStep::Done(tls, session) => {
                return (TlsStream::accepted(stream, tls, session), client, far);
            }
            _ => receive(&mut client, &received(&far)),
        }
    }
}

fn receive(client: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).expect("a record has room");
        client.process_new_packets().expect("an honest server");
    }
}

async fn run_client_steps(core: &Core, steps: &[u8]) {
    let (mut server, mut client, mut far) = connected(core).await;
    let mut said = Vec::new();
    let mut heard = Vec::new();
    let mut is_honest = true;
    let mut has_ended = false;
    let mut updates = 0;
    for step in steps.chunks_exact(2) {
        let what = step[0];
        let by = usize::from(step[1]);
        let mut out = Vec::new();
        match what % 8 {
            // A record that is not encrypted with the client's keys, from the second byte of the step.
            0 => {
                is_honest = false;
                out.extend([20 + what / 8 % 5, 3, 3, 0, step[1]]);
                out.extend(std::iter::repeat_n(what, by));
            }
            1 if !has_ended => {
                updates += 1;
                client.refresh_traffic_keys().expect("TLS 1.3");
            }
            2 => {
                has_ended = true;
                client.send_close_notify();
            }
            _ if !has_ended => {
                let text = vec![step[1]; by * 17 + 1];
                client.writer().write_all(&text).expect("room for records");
                said.extend(text);
            }
            _ => {}
        }
        while client.wants_write() {
            client.write_tls(&mut out).expect("memory");
        }
        if what % 8 == 3 && !out.is_empty() {
            is_honest = false;
            let at = by % out.len();
            out[at] ^= 1 << (what / 8 % 8);
        }
        if out.is_empty() {
            continue;
        }
        far.write_all(&out).expect("room in the socket");
        stream_readable(core, &server).await;
        let failed = read_all(&mut server, &mut heard);
        assert!(said.starts_with(&heard), "what nobody has said");
        let answer = received(&far);
        if failed {
            assert!(!is_honest || updates > KEY_UPDATES_MAX, "an honest client was refused");
            return;
        }
        receive(&mut client, &answer);
        assert!(!is_honest || said == heard, "{} bytes of {}", heard.len(), said.len());
    }
}

async fn stream_readable(core: &Core, server: &TlsStream) {
    server.stream().readable(core.now() + WAIT_TIME).await.expect("the socket can be read");
}

/// Reads the available bytes; returns whether the connection has failed.
fn read_all(server: &mut TlsStream, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1500];
    loop {
        match server.try_read(&mut buffer) {
            Ok(Some(0) | None) => return false,
            Ok(Some(len)) => heard.extend(&buffer[..len]),
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::Interest;

    #[test]
    fn tls_law_holds_for_seeds_and_their_mutations() {
        corpus::replay(&corpus::seeds("tls"), 2_000, super::fuzz_tls);
    }

    /// After the peer is gone, the kernel keeps reporting that the socket is writable, although writes fail.
    /// A wait for input must not be woken by that.
    #[test]
    fn waiting_for_input_of_a_closed_peer_does_not_spin() {
        let core = Core::for_client(1).unwrap();
        let inner = core.clone();
        let done = core.run_until_end(async move {
            let (mut server, _client, far) = connected(&inner).await;
            assert!(matches!(server.try_read(&mut [0; 64]), Ok(None)));
            drop(far);
            // The core has not been notified of the end yet.
            assert!(server.try_write(b"too late", b"", false).is_err());
            for _ in 0..1_000 {
                if !matches!(server.try_read(&mut [0; 64]), Ok(None)) {
                    return;
                }
                let until = inner.now() + WAIT_TIME;
                server.stream().ready_for(server.interest(Interest::READ), until).await.unwrap();
            }
            panic!("it is never over");
        });
        done.unwrap();
    }
}
