//! TLS over a socket that blocks: for programs that ask a server one thing at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, Error, StreamOwned};

use super::{TlsClient, reason};

/// A connection to a server, through TLS.
pub struct BlockingTlsStream(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    /// Shakes hands over a stream just connected, whose timeouts hold for each read and write.
    ///
    /// # Errors
    /// What is wrong with the server's certificate or answer, in words; the system's.
    pub fn connect_blocking(&self, stream: TcpStream) -> io::Result<BlockingTlsStream> {
        let tls = ClientConnection::new(self.config.clone(), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(explained)?;
        }
        Ok(BlockingTlsStream(stream))
    }
}

/// The same error in words, where it is one of TLS.
fn explained(error: io::Error) -> io::Error {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match of_tls {
        Some(Error::AlertReceived(alert)) => {
            io::Error::other(format!("the server ended the TLS connection: {alert:?}"))
        }
        Some(error) => io::Error::other(reason(error)),
        None => error,
    }
}

impl Read for BlockingTlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(explained)
    }
}

impl Write for BlockingTlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(explained)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(explained)
    }
}
