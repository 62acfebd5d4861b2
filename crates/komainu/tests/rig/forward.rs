//! TLS termination towards the server for tests whose clients do not speak TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// Client configuration that accepts every certificate.
pub fn client_config() -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(any_certificate())
        .with_no_client_auth();
    Arc::new(config)
}

/// A verifier that accepts every certificate.
pub fn any_certificate() -> Arc<dyn ServerCertVerifier> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    Arc::new(Any(provider.signature_verification_algorithms.supported_schemes()))
}

/// Starts to accept connections and to forward their bytes to `server` through TLS. Returns the listening
/// address.
pub fn start(server: SocketAddr) -> SocketAddr {
    let config = client_config();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let config = config.clone();
            // If the server is gone, the client's connection is closed.
            std::thread::spawn(move || client.ok().and_then(|client| pass(client, server, config)));
        }
    });
    address
}

/// Forwards bytes in both directions until the server closes.
fn pass(mut client: TcpStream, server: SocketAddr, config: Arc<ClientConfig>) -> Option<()> {
    let mut server = TcpStream::connect(server).ok()?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = ClientConnection::new(config, name).unwrap();
    tls.set_buffer_limit(None);
    let mut client_open = true;
    let mut end_announced = false;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // During the handshake rustls would send the alert at once and unencrypted, ahead of buffered client
        // data.
        if !client_open && !end_announced && !tls.is_handshaking() {
            tls.send_close_notify();
            end_announced = true;
        }
        while tls.wants_write() {
            tls.write_tls(&mut server).ok()?;
        }
        if end_announced {
            // Shuts down as a client does that has closed; the server may have closed as well.
            let _ = server.shutdown(Shutdown::Write);
        }
        let reads = |open: bool| if open { PollFlags::IN } else { PollFlags::empty() };
        let mut both = [PollFd::new(&client, reads(client_open)), PollFd::new(&server, reads(true))];
        poll(&mut both, None).ok()?;
        let ready = both.map(|end| end.revents());
        if !ready[0].is_empty() && client_open {
            match client.read(&mut buffer).ok()? {
                0 => client_open = false,
                len => tls.writer().write_all(&buffer[..len]).ok()?,
            }
        } else if ready[0].contains(PollFlags::ERR) {
            return None;
        }
        if !ready[1].is_empty() {
            let cut = tls.read_tls(&mut server).ok()? == 0;
            tls.process_new_packets().ok()?;
            let ended = loop {
                match tls.reader().read(&mut buffer) {
                    Ok(0) => break true,
                    Ok(len) => client.write_all(&buffer[..len]).ok()?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break cut,
                    // The server closed without close_notify: the response is truncated.
                    Err(_) => return None,
                }
            };
            if ended {
                return client.shutdown(Shutdown::Write).ok();
            }
        }
    }
}

#[derive(Debug)]
struct Any(Vec<SignatureScheme>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}
