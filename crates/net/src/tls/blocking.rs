//! TLS over blocking sockets, for programs with one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, Error, StreamOwned};

use super::{TlsClient, describe_error};

/// A TLS connection to a server.
pub struct BlockingTlsStream(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    /// Performs the handshake over a connected stream, whose timeouts apply to each read and write.
    ///
    /// # Errors
    /// Errors of the handshake, described in words; system errors.
    pub fn connect_blocking(&self, stream: TcpStream) -> io::Result<BlockingTlsStream> {
        let tls = ClientConnection::new(self.config.clone(), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(name_tls_error)?;
        }
        Ok(BlockingTlsStream(stream))
    }
}

/// Describes TLS errors in words.
fn name_tls_error(error: io::Error) -> io::Error {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match of_tls {
        Some(Error::AlertReceived(alert)) => {
            io::Error::other(format!("the server ended the TLS connection: {alert:?}"))
        }
        Some(error) => io::Error::other(describe_error(error)),
        None => error,
    }
}

impl Read for BlockingTlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(name_tls_error)
    }
}

impl Write for BlockingTlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(name_tls_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(name_tls_error)
    }
}
