//! Requests to the API server, lists and watches. Everything that it sends is bounded in size and time: an API server is
//! trusted with the configuration, not with the memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::account::{ApiAccount, BearerToken};
use crate::objects::{Kind, OBJECTS_MAX, trimmed};

/// Maximum time to connect, including TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Maximum time for a response head, and for the body of a response that is not a watch.
const RESPONSE_MAX: Duration = Duration::from_secs(60);
/// Connections that are kept for another request; each watch has one of its own.
const IDLE_MAX: usize = 8;
/// Bytes of a response that is not a watch: a page of a list.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Objects of a page; fewer if they are large.
const PAGE_OBJECTS: usize = 500;
/// Bytes of a line of a watch. etcd stores objects of 1.5 MiB at most, and JSON writes a control character as six bytes.
const LINE_BYTES_MAX: usize = 10 << 20;
/// Seconds that a watch lasts at least; up to half as many are added, so that not all end together.
const WATCH_S: u64 = 240;
/// Time that a watch may last longer than was asked for.
const WATCH_GRACE: Duration = Duration::from_secs(30);
const AGENT: &str = concat!("komainu/", env!("CARGO_PKG_VERSION"));

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// A response with this status, and its message.
    Status(u16, String),
    /// No response, or not one that is accepted.
    Failed(String),
    /// A response with more bytes than are accepted.
    TooLarge,
    /// The connection of a watch ended: nothing unusual.
    Broken,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ApiError::Status(status, text) => write!(out, "status {status}: {text}"),
            ApiError::Failed(text) => out.write_str(text),
            ApiError::TooLarge => out.write_str("the API server sends a response of more than 64 MiB"),
            ApiError::Broken => out.write_str("the connection was closed"),
        }
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// An object in its newest state.
    Changed(Value),
    /// An object that is gone.
    Deleted(Value),
    /// Only a newer version.
    Bookmark(String),
}

/// Client of the API server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ApiClient {
    account: Arc<ApiAccount>,
    tls: Option<TlsConnector>,
    host: String,
    port: u16,
    /// Connections that wait for another request.
    idle: Arc<Mutex<Vec<RequestSender>>>,
}

type RequestSender = http1::SendRequest<Full<Bytes>>;

trait ApiStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ApiStream for S {}

impl ApiClient {
    /// Creates a client.
    ///
    /// # Errors
    /// The URL or a certificate is invalid: a text.
    pub(crate) fn new(account: ApiAccount) -> Result<ApiClient, String> {
        let uri: hyper::Uri =
            account.server.parse().map_err(|error| format!("{}: {error}", account.server))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("{}: the URL of the API server begins with https://", account.server)),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = if is_tls { Some(tls_connector(&account)?) } else { None };
        Ok(ApiClient { account: Arc::new(account), tls, host, port, idle: Arc::default() })
    }

    fn token(&self) -> Result<Option<String>, ApiError> {
        match &self.account.token {
            BearerToken::None => Ok(None),
            BearerToken::Text(text) => Ok(Some(text.clone())),
            BearerToken::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| ApiError::Failed(format!("{}: {error}", path.display())))?;
                Ok(Some(text.trim().to_owned()))
            }
        }
    }

    /// Opens a connection.
    async fn connect(&self) -> Result<RequestSender, ApiError> {
        let failed = |text: String| ApiError::Failed(text);
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
            let stream =
                stream.map_err(|error| format!("cannot connect to {}:{}: {error}", self.host, self.port))?;
            // Ignored: only slower.
            let _ = stream.set_nodelay(true);
            let stream: Box<dyn ApiStream> = match &self.tls {
                None => Box::new(stream),
                Some(tls) => {
                    let name = ServerName::try_from(self.host.clone())
                        .map_err(|_| format!("{} is not a host", self.host))?;
                    let stream = tls.connect(name, stream).await;
                    Box::new(stream.map_err(|error| format!("TLS with {}: {error}", self.host))?)
                }
            };
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())
        };
        let connected = timeout(CONNECT_MAX, connect).await;
        let connected = connected
            .map_err(|_| failed(format!("no connection to {}:{} within 10 s", self.host, self.port)))?;
        let (sender, connection) = connected.map_err(failed)?;
        tokio::spawn(async move { _ = connection.await });
        Ok(sender)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<RequestSender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection that waits for another request, if there is one.
    async fn idle_connection(&self) -> Option<RequestSender> {
        loop {
            let mut sender = self.idle().pop()?;
            if matches!(timeout(CONNECT_MAX, sender.ready()).await, Ok(Ok(()))) {
                return Some(sender);
            }
        }
    }

    /// Keeps a connection whose response was read to its end.
    fn keep(&self, sender: RequestSender) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
    }

    /// Builds a request.
    fn build(
        &self,
        method: &Method,
        path: &str,
        body: Option<&(&'static str, Bytes)>,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, format!("{}:{}", self.host, self.port)).header(USER_AGENT, AGENT);
        request = request.header(ACCEPT, "application/json");
        if let Some(token) = self.token()? {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((media_type, _)) = body {
            request = request.header(CONTENT_TYPE, *media_type);
        }
        let body = Full::new(body.map(|(_, body)| body.clone()).unwrap_or_default());
        request.body(body).map_err(|error| ApiError::Failed(error.to_string()))
    }

    /// Sends a request, and returns the response once its head has come, with the connection. One that waits may have been closed just
    /// now: the request is sent again on a new one, unless the API server may have seen it and would do it twice.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
        uses_idle: bool,
    ) -> Result<(Response<Incoming>, RequestSender), ApiError> {
        let late = |_| ApiError::Failed(format!("no response to {path} within 60 s"));
        let idle = if uses_idle { self.idle_connection().await } else { None };
        if let Some(mut sender) = idle {
            let request = self.build(&method, path, body.as_ref())?;
            match timeout(RESPONSE_MAX, sender.send_request(request)).await.map_err(late)? {
                Ok(response) => return Ok((response, sender)),
                Err(error) if error.is_canceled() || method != Method::POST => {}
                Err(error) => return Err(ApiError::Failed(error.to_string())),
            }
        }
        let mut sender = self.connect().await?;
        let request = self.build(&method, path, body.as_ref())?;
        let response = timeout(RESPONSE_MAX, sender.send_request(request)).await.map_err(late)?;
        Ok((response.map_err(|error| ApiError::Failed(error.to_string()))?, sender))
    }

    /// Sends a request, and returns the JSON of a response with status 2xx.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Value, ApiError> {
        let body = body.map(|(media_type, value)| (media_type, Bytes::from(value.to_string())));
        let (response, sender) = self.send(method, path, body, true).await?;
        let status = response.status().as_u16();
        let text = read_body(response).await?;
        self.keep(sender);
        let value: Result<Value, _> = serde_json::from_slice(&text);
        match (status, value) {
            (200..=299, Ok(value)) => Ok(value),
            (200..=299, Err(error)) => {
                Err(ApiError::Failed(format!("the response to {path} is not JSON: {error}")))
            }
            (status, value) => {
                let message = value.ok().and_then(|value| value.get("message")?.as_str().map(str::to_owned));
                let message = message.unwrap_or_default().chars().take(500).collect();
                Err(ApiError::Status(status, message))
            }
        }
    }

    /// Returns all objects of a kind, with the version of the list and that of the API.
    pub(crate) async fn list(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> Result<(Vec<Value>, String, &'static str), ApiError> {
        let (_, versions, _) = kind.resource();
        let mut last = ApiError::Failed("no version".to_owned());
        for version in versions {
            match self.list_version(kind, version, namespace).await {
                Ok((objects, at)) => return Ok((objects, at, version)),
                Err(error @ ApiError::Status(404, _)) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    async fn list_version(
        &self,
        kind: Kind,
        version: &str,
        namespace: &str,
    ) -> Result<(Vec<Value>, String), ApiError> {
        let mut objects = Vec::new();
        let mut next = String::new();
        let mut limit = PAGE_OBJECTS;
        loop {
            let mut path = format!("{}?limit={limit}{}", kind.path(version, namespace, ""), selector(kind));
            if !next.is_empty() {
                path += &format!("&continue={next}");
            }
            let page = self.request(Method::GET, &path, None).await;
            if matches!(page, Err(ApiError::TooLarge)) && limit > 1 {
                // Objects of a tenant are as large as the tenant likes.
                limit /= 8;
                limit = limit.max(1);
                continue;
            }
            let mut page = page?;
            let text = |name: &str| page.pointer(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (at, following) = (text("/metadata/resourceVersion"), text("/metadata/continue"));
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=.~".contains(&byte);
            if following.len() > 16_384
                || !following.bytes().all(is_plain)
                || following == next && !next.is_empty()
            {
                return Err(ApiError::Failed("the API server sends an invalid `continue`".to_owned()));
            }
            let items = page.get_mut("items").map(Value::take);
            match items {
                Some(Value::Array(items)) => {
                    objects.extend(items.into_iter().map(|object| trimmed(kind, object)));
                }
                Some(Value::Null) => {}
                _ => return Err(ApiError::Failed(format!("the list of {} has no items", kind.name()))),
            }
            if objects.len() > OBJECTS_MAX {
                return Err(ApiError::Failed(format!(
                    "there are more than {OBJECTS_MAX} objects of the kind {}",
                    kind.name()
                )));
            }
            if following.is_empty() {
                return Ok((objects, at));
            }
            next = following;
        }
    }

    /// Watches a kind from a version on.
    ///
    /// # Errors
    /// [`ApiError::Status`] with 410: the version is too old, list again.
    pub(crate) async fn watch(
        &self,
        kind: Kind,
        version: &str,
        namespace: &str,
        since: &str,
    ) -> Result<Watch, ApiError> {
        let seconds = WATCH_S + fastrand::u64(0..WATCH_S / 2);
        let since: String = since.chars().filter(char::is_ascii_alphanumeric).collect();
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={since}{}",
            kind.path(version, namespace, ""),
            selector(kind)
        );
        let (response, _) = self.send(Method::GET, &path, None, false).await?;
        let status = response.status().as_u16();
        if status != 200 {
            let text = read_body(response).await?;
            return Err(ApiError::Status(
                status,
                String::from_utf8_lossy(&text[..text.len().min(500)]).into_owned(),
            ));
        }
        let limit = tokio::time::Instant::now() + Duration::from_secs(seconds) + WATCH_GRACE;
        Ok(Watch { body: response.into_body(), limit, line: Vec::new(), rest: Bytes::new() })
    }
}

/// A running watch.
pub(crate) struct Watch {
    body: Incoming,
    limit: tokio::time::Instant,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Bytes behind that line.
    rest: Bytes,
}

impl Watch {
    /// Returns the next event; `None` when the API server has ended the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            match self.rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    self.line.extend_from_slice(&self.rest.split_to(end + 1)[..end]);
                    check_line(&self.line)?;
                    let line = std::mem::take(&mut self.line);
                    if !line.is_empty() {
                        return parse_event(&line).map(Some);
                    }
                }
                None => {
                    self.line.extend_from_slice(&self.rest);
                    self.rest = Bytes::new();
                    check_line(&self.line)?;
                    let frame = tokio::time::timeout_at(self.limit, self.body.frame()).await;
                    let frame = frame
                        .map_err(|_| ApiError::Failed("the API server does not end a watch".to_owned()))?;
                    let Some(frame) = frame else { return Ok(None) };
                    let frame = frame.map_err(|_| ApiError::Broken)?;
                    self.rest = frame.into_data().unwrap_or_default();
                }
            }
        }
    }
}

fn check_line(line: &[u8]) -> Result<(), ApiError> {
    if line.len() > LINE_BYTES_MAX {
        Err(ApiError::Failed("the API server sends an object of more than 10 MiB".to_owned()))
    } else {
        Ok(())
    }
}

/// Leaves out Secrets of types that clusters have many of, and that nothing here names.
fn selector(kind: Kind) -> &'static str {
    match kind {
        Kind::Secret => {
            "&fieldSelector=type!%3Dhelm.sh%2Frelease.v1,type!%3Dkubernetes.io%2Fservice-account-token"
        }
        _ => "",
    }
}

fn parse_event(line: &[u8]) -> Result<WatchEvent, ApiError> {
    let mut event: Value = serde_json::from_slice(line)
        .map_err(|error| ApiError::Failed(format!("an event of the API server is not JSON: {error}")))?;
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    match event.get("type").and_then(Value::as_str) {
        Some("ADDED" | "MODIFIED") => Ok(WatchEvent::Changed(object)),
        Some("DELETED") => Ok(WatchEvent::Deleted(object)),
        Some("BOOKMARK") => {
            let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            Ok(WatchEvent::Bookmark(version.unwrap_or_default().to_owned()))
        }
        Some("ERROR") => {
            let code = object.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
            let text = object.get("message").and_then(Value::as_str).unwrap_or_default();
            Err(ApiError::Status(code.unwrap_or(500), text.chars().take(500).collect()))
        }
        _ => Err(ApiError::Failed("an event of the API server has an unknown type".to_owned())),
    }
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = timeout(RESPONSE_MAX, Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect()).await;
    let body = body.map_err(|_| ApiError::Failed("the response does not end within 60 s".to_owned()))?;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => ApiError::TooLarge,
        None => ApiError::Failed(error.to_string()),
    });
    Ok(body?.to_bytes())
}

fn tls_connector(account: &ApiAccount) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(account.authorities_pem.as_deref().unwrap_or_default())
    {
        let certificate = certificate.map_err(|error| format!("the authority of the API server: {error}"))?;
        roots.add(certificate).map_err(|error| format!("the authority of the API server: {error}"))?;
    }
    if roots.is_empty() {
        return Err(
            "there is no authority of the API server's certificate (`certificate-authority`)".to_owned()
        );
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &account.client_pem {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|error| format!("the client certificate: {error}"))?;
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the client key: {error}"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("the client certificate: {error}"))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
