//! HTTP/1.1 client for ACME directories, OCSP responders, collectors and the `ask` URL: one connection per
//! request, with limits on time and response size.
//!
//! This crate owns the use of hyper and tokio as a client, on background threads. Requests of clients are never
//! sent by it: `proxy` does that.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Maximum size of a response in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Upper limit for `Retry-After` values.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Maximum number of interim responses (1xx) before a response.
const INTERIM_MAX: usize = 100;
const AGENT_VALUE: &str = concat!("komainu/", env!("CARGO_PKG_VERSION"));

/// Reason why there is no response.
pub type BoxedError = Box<dyn StdError + Send + Sync>;

/// HTTP client. Cheap to clone.
#[derive(Clone)]
pub struct WebClient {
    tls: TlsConnector,
    request_max: Duration,
    /// Value of `Retry-After` in the last unsuccessful response.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl WebClient {
    /// Creates a client that trusts the system's certificates and those of `extra`, a PEM text.
    ///
    /// # Errors
    /// Fails if a certificate cannot be read, or TLS cannot be set up.
    pub fn new(extra: &[u8], request_max: Duration) -> Result<WebClient, BoxedError> {
        let mut roots = RootCertStore::empty();
        // If the system has no certificates, verification of the directory reports it.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for certificate in CertificateDer::pem_slice_iter(extra) {
            let added = certificate
                .map_err(|_| "the file is cut off or damaged: copy it again".to_owned())
                .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
            added.map_err(|error| format!("`[acme] ca`: {error}"))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(WebClient { tls: TlsConnector::from(Arc::new(config)), request_max, retry_after: Arc::default() })
    }

    /// Takes the `Retry-After` value of the last unsuccessful response.
    pub fn take_retry_after(&self) -> Option<Duration> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the status of the response to a GET request.
    ///
    /// # Errors
    /// Reason why there is no response.
    pub async fn get(&self, url: &str) -> Result<u16, BoxedError> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let request = Request::get(uri).body(http_body_util::Empty::<Bytes>::new())?;
        let response = self.send(request).await.map_err(|error| format!("{url}: {error}"))?;
        Ok(response.status().as_u16())
    }

    /// Returns the body of a response with status 200 to a POST request.
    ///
    /// # Errors
    /// Reason why there is no such response.
    pub async fn post(
        &self,
        url: &str,
        media_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Bytes, BoxedError> {
        match self.post_with(url, media_type, &[], body).await? {
            (200, body) => Ok(body),
            (status, _) => Err(format!("a response with status {status}").into()),
        }
    }

    /// Returns the status and the body of the response to a POST request with additional header fields.
    ///
    /// # Errors
    /// Reason why there is no response.
    pub async fn post_with(
        &self,
        url: &str,
        media_type: &'static str,
        fields: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<(u16, Bytes), BoxedError> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let mut request = Request::post(uri).header(CONTENT_TYPE, HeaderValue::from_static(media_type));
        for (name, value) in fields {
            request = request.header(name, value);
        }
        let request = request.body(http_body_util::Full::new(Bytes::from(body)))?;
        let response = self.send(request).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// Sends a request and returns the whole response.
    ///
    /// # Errors
    /// Reason why there is no response.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Bytes>, BoxedError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxedError>,
    {
        let max = self.request_max;
        let response = tokio::time::timeout(max, self.exchange(request)).await;
        let response = response.map_err(|_| format!("no response within {} s", max.as_secs_f32()))??;
        if !response.status().is_success() {
            let value = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let wait = value.and_then(|value| retry_after(value, SystemTime::now()));
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = wait;
        }
        Ok(response)
    }

    async fn exchange<B>(&self, mut request: Request<B>) -> Result<Response<Bytes>, BoxedError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxedError>,
    {
        let uri = request.uri().clone();
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return Err("the URL names no host".into());
        };
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.map_err(|error| format!("cannot connect to {host}:{port}: {error}"))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT_VALUE));
        *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        if !is_tls {
            return exchange_on(stream, request).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("{host} is not a host name"))?;
        let stream =
            self.tls.connect(name, stream).await.map_err(|error| format!("TLS with {host}: {error}"))?;
        exchange_on(stream, request).await
    }
}

async fn exchange_on<S, B>(stream: S, mut request: Request<B>) -> Result<Response<Bytes>, BoxedError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxedError>,
{
    let interim = Arc::new(AtomicUsize::new(0));
    let counted = interim.clone();
    hyper::ext::on_informational(&mut request, move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(InterimLimiter { stream, interim: interim.clone() })).await?;
    let exchange = async move {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, body))
    };
    // The connection performs the I/O; it ends with the exchange, or before it.
    tokio::pin!(connection, exchange);
    let done = tokio::select! {
        biased;
        done = &mut exchange => done,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    };
    if interim.load(Ordering::Relaxed) > INTERIM_MAX {
        Err(format!("more than {INTERIM_MAX} interim responses (1xx)").into())
    } else {
        done
    }
}

/// A stream that fails after too many interim responses, because an endless sequence of them would keep this
/// thread busy.
struct InterimLimiter<S> {
    stream: S,
    interim: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for InterimLimiter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.interim.load(Ordering::Relaxed) > INTERIM_MAX {
            Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
        } else {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InterimLimiter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Parses seconds or a date (RFC 9110 section 10.2.3) as a duration, of a week at most.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves one connection with these bytes; returns the address.
    fn serve(response: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(&response);
        });
        format!("http://{address}/ask?domain=a")
    }

    fn get(response: &[u8], request_max: Duration) -> (Option<u16>, Option<Duration>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = WebClient::new(b"", request_max).unwrap();
        let status = runtime.block_on(client.get(&serve(response.to_vec())));
        (status.ok(), client.take_retry_after())
    }

    #[test]
    fn responses_are_limited_in_size_and_time() {
        let second = Duration::from_secs(20);
        assert_eq!(get(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", second), (Some(200), None));
        assert_eq!(
            get(b"HTTP/1.1 404 No\r\nRetry-After: 7\r\n\r\nuntil the end", second),
            (Some(404), Some(Duration::from_secs(7)))
        );
        let mut long = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        long.resize(RESPONSE_BYTES_MAX + 1_000, b'x');
        assert!(get(&long, second).0.is_none());
        assert!(get(b"nonsense", second).0.is_none());
        assert!(get(b"", second).0.is_none());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The listener never accepts.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = WebClient::new(b"", Duration::from_millis(50)).unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        assert!(runtime.block_on(client.get(&url)).unwrap_err().to_string().contains("no response within"));
    }

    /// Serves one connection with pieces until the client closes it, or the maximum number was sent; returns
    /// the URL and a receiver for the number of bytes taken.
    fn drip(
        first: &'static [u8],
        piece: &'static [u8],
        pause_ms: u64,
    ) -> (String, std::sync::mpsc::Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/ask?domain=a", listener.local_addr().unwrap());
        let (sender, taken) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]);
            let mut sent = 0;
            let mut next = first;
            while sent < 1 << 28 && client.write_all(next).is_ok() {
                sent += next.len();
                next = piece;
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
            sender.send(sent).unwrap();
        });
        (url, taken)
    }

    #[test]
    fn truncated_root_certificate_file_is_reported() {
        let said =
            WebClient::new(b"-----BEGIN CERTIFICATE-----\nMIIB\n", Duration::from_secs(1)).err().unwrap();
        assert_eq!(said.to_string(), "`[acme] ca`: the file is cut off or damaged: copy it again");
    }

    const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

    #[test]
    fn a_few_interim_responses_are_skipped() {
        let all = [&INTERIM.repeat(INTERIM_MAX)[..], b"HTTP/1.1 204 No Content\r\n\r\n"].concat();
        assert_eq!(get(&all, Duration::from_secs(60)).0, Some(204));
    }

    #[test]
    fn endless_responses_cost_bounded_time_and_memory() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let filler: &[u8] = &[b'x'; 16 * 1024];
        let long = Duration::from_secs(60);
        let short = Duration::from_millis(300);
        for (first, piece, pause_ms, request_max, cause) in [
            // Endless heads and bodies, and announced ones.
            (&b"HTTP/1.1 200 OK\r\nX: "[..], filler, 0, long, "too large"),
            (b"HTTP/1.1 200 OK\r\n\r\n", filler, 0, long, "limit"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", filler, 0, long, "limit"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0, long, "limit"),
            (b"HTTP/1.1 100 Continue\r\n\r\n", INTERIM, 0, long, "more than 100 interim responses"),
            (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", INTERIM, 1, long, "interim responses"),
            // Slow responses, one byte at a time.
            (b"HTTP/1.1 200 OK\r\nX: ", b"x", 5, short, "no response within"),
            (b"HTTP/1.1 200 OK\r\n\r\n", b"x", 5, short, "no response within"),
        ] {
            let client = WebClient::new(b"", request_max).unwrap();
            let (url, taken) = drip(first, piece, pause_ms);
            let error = runtime.block_on(client.get(&url)).unwrap_err();
            assert!(error.to_string().contains(cause), "{error}");
            // Includes data buffered by the kernel.
            assert!(taken.recv_timeout(long).unwrap() < 32 << 20, "{error}");
        }
        // Redirects are not followed.
        let moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(get(moved, long).0, Some(302));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        assert_eq!(retry_after(" 120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("99999999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon", now), None);
    }
}
