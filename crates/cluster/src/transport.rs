//! Streams to the store: TCP, TLS and Unix sockets, with a limit on what may be received.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::address::StoreEndpoint;

/// Maximum bytes of a reply: a certificate of the largest accepted size with its names.
pub(crate) const REPLY_BYTES_MAX: usize = 2 << 20;
/// Bytes that are received at once.
const BLOCK_BYTES: usize = 8 * 1024;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A stream that fails once more bytes were received than its allowance.
pub(crate) struct BoundedStream {
    stream: Box<dyn Duplex>,
    allowance: Arc<ReceiveAllowance>,
}

/// The bytes that a stream may still receive: renewed for each command, because one command is under way at a time.
#[derive(Debug, Default)]
pub(crate) struct ReceiveAllowance(AtomicUsize);

impl ReceiveAllowance {
    /// Permits the reply of one command.
    pub(crate) fn renew(&self) {
        self.0.store(REPLY_BYTES_MAX, Ordering::Relaxed);
    }
}

impl BoundedStream {
    /// Connects. The caller limits the time.
    ///
    /// # Errors
    /// The server cannot be reached, or its certificate is refused.
    pub(crate) async fn connect(
        endpoint: &StoreEndpoint,
        tls: Option<&TlsConnector>,
    ) -> io::Result<(BoundedStream, Arc<ReceiveAllowance>)> {
        let stream: Box<dyn Duplex> = match endpoint {
            StoreEndpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
            StoreEndpoint::Tcp { host, port, is_tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match (is_tls, tls) {
                    (false, _) => Box::new(stream),
                    (true, None) => return Err(io::Error::other("TLS is not set up")),
                    (true, Some(tls)) => {
                        let name = ServerName::try_from(host.clone());
                        let name = name.map_err(|error| io::Error::other(error.to_string()))?;
                        Box::new(tls.connect(name, stream).await?)
                    }
                }
            }
        };
        let allowance = Arc::new(ReceiveAllowance::default());
        allowance.renew();
        Ok((BoundedStream { stream, allowance: allowance.clone() }, allowance))
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.allowance.0.load(Ordering::Relaxed);
        if left == 0 {
            let text = format!("its reply is longer than {REPLY_BYTES_MAX} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let mut block = [0; BLOCK_BYTES];
        let mut part = ReadBuf::new(&mut block[..left.min(BLOCK_BYTES).min(buffer.remaining())]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut part);
        self.allowance.0.fetch_sub(part.filled().len(), Ordering::Relaxed);
        buffer.put_slice(part.filled());
        polled
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
