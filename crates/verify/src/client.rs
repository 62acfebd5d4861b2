//! HTTP client that keeps connections open if that cannot change the responses.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};
use http::Method;
use http::machine::{ClientMachine, Step};
use import::scratch::{RequestContent, VerifyRequest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::message::{CONTENT_BYTES_MAX, LIMITS, ServerResponse};

/// Timeout for a complete response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of request content that is sent before the response is read.
const EARLY_CONTENT_BYTES_MAX: usize = 16 << 10;
/// Failure of a request whose TLS handshake the server rejects.
pub(crate) const REJECTED_HANDSHAKE: &str = "invalid data";
/// Request field with the number of the request, recorded in nginx's log.
pub(crate) const NUMBER_FIELD: &str = "X-Verify";

/// Serializes a request with this number; unless `kept`, it asks to close the connection. Both servers
/// receive the same bytes.
fn serialize_request(request: &VerifyRequest, number: usize, kept: bool) -> Vec<u8> {
    let mut out = format!("{} {} HTTP/{}\r\n", request.method, request.target, request.version).into_bytes();
    if let Some(host) = &request.host {
        out.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
    }
    out.extend_from_slice(format!("{NUMBER_FIELD}: {number}\r\n").as_bytes());
    let mut has_connection = kept;
    for (name, value) in &request.fields {
        let is_connection = name == "Connection";
        has_connection |= is_connection;
        let close = if is_connection { ", close" } else { "" };
        out.extend_from_slice(format!("{name}: {value}{close}\r\n").as_bytes());
    }
    if !has_connection {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    match &request.content {
        RequestContent::Absent => out.extend_from_slice(b"\r\n"),
        RequestContent::Sized(content) => {
            let head = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n", content.len());
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(content);
        }
        RequestContent::Chunked(content) => {
            out.extend_from_slice(b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n");
            let (first, second) = content.split_at(content.len() / 2);
            for part in [first, second] {
                out.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                out.extend_from_slice(part);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
    out
}

/// Connection to a server, with or without TLS.
enum VerifyStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl VerifyStream {
    /// Connects to a server; TLS names the server in SNI. The handshake happens with the first bytes.
    fn connect(
        address: SocketAddr,
        tls: Option<(&Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Self, Failure> {
        let socket = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT).context("no connection")?;
        for set in [
            socket.set_read_timeout(Some(RESPONSE_TIMEOUT)),
            socket.set_write_timeout(Some(RESPONSE_TIMEOUT)),
            socket.set_nodelay(true),
        ] {
            set?;
        }
        let Some((config, name)) = tls else { return Ok(Self::Plain(socket)) };
        let session = ClientConnection::new(Arc::clone(config), name).map_err(Failure::new)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// Sends a complete request. A server may respond before it has read all of it, so an error is that of the response.
    fn send(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
    }
}

impl Read for VerifyStream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

/// Client of one server address.
pub(crate) struct VerifyClient {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    /// Connection that the server keeps, with the name in its SNI. Requests are ordered by host, so that one is enough.
    idle_connection: Option<(Option<ServerName<'static>>, VerifyStream)>,
    /// Responses for names in SNI whose handshake the server rejects. They do not depend on the request.
    rejected_handshakes: HashMap<ServerName<'static>, ServerResponse>,
}

impl VerifyClient {
    pub(crate) fn new(address: SocketAddr, tls: Option<Arc<ClientConfig>>) -> Self {
        Self { address, tls, idle_connection: None, rejected_handshakes: HashMap::new() }
    }

    /// Sends a request with this number and reads the complete response.
    pub(crate) fn exchange(&mut self, request: &VerifyRequest, number: usize) -> ServerResponse {
        let name = self.server_name(request).unwrap_or_default();
        if let Some(rejected) = name.as_ref().and_then(|name| self.rejected_handshakes.get(name)) {
            return rejected.clone();
        }
        let answer = if may_reuse_connection(request) {
            self.exchange_on_kept(request, number)
        } else {
            self.exchange_on_new(request, number)
        };
        let answer = answer.unwrap_or_else(|trouble| ServerResponse {
            failure: Some(trouble.to_string()),
            ..ServerResponse::default()
        });
        if let Some(name) = name
            && answer.status == 0
            && answer.failure.as_deref() == Some(REJECTED_HANDSHAKE)
        {
            self.rejected_handshakes.insert(name, answer.clone());
        }
        answer
    }

    /// Returns the name for SNI; `None` without TLS.
    fn server_name(&self, request: &VerifyRequest) -> Result<Option<ServerName<'static>>, Failure> {
        if self.tls.is_none() {
            return Ok(None);
        }
        let host = request.host.as_deref().unwrap_or("localhost");
        let host = host.split(':').next().unwrap_or(host).to_ascii_lowercase();
        let name = ServerName::try_from(host).or_else(|_| ServerName::try_from("localhost".to_owned()));
        name.map(Some).map_err(Failure::new)
    }

    fn connect(&self, name: Option<ServerName<'static>>) -> Result<VerifyStream, Failure> {
        VerifyStream::connect(self.address, self.tls.as_ref().zip(name))
    }

    /// Sends the request on the kept connection, or on a new one if the server has closed it or knows it by another name.
    fn exchange_on_kept(
        &mut self,
        request: &VerifyRequest,
        number: usize,
    ) -> Result<ServerResponse, Failure> {
        let bytes = serialize_request(request, number, true);
        let method = Method::of(request.method.as_bytes());
        let name = self.server_name(request)?;
        loop {
            let kept = self.idle_connection.take().filter(|(known, _)| *known == name);
            let (mut stream, is_new) = match kept {
                Some((_, stream)) => (stream, false),
                None => (self.connect(name.clone())?, true),
            };
            stream.send(&bytes);
            let answer = read_response(&mut stream, method)?;
            if answer.status == 0 && !is_new {
                continue;
            }
            let ends = answer.field("connection").is_some_and(|text| text.eq_ignore_ascii_case("close"));
            if answer.failure.is_none() && answer.is_framed(&request.method) && !ends {
                self.idle_connection = Some((name, stream));
            }
            return Ok(answer);
        }
    }

    fn exchange_on_new(&self, request: &VerifyRequest, number: usize) -> Result<ServerResponse, Failure> {
        let bytes = serialize_request(request, number, false);
        let method = Method::of(request.method.as_bytes());
        let mut stream = self.connect(self.server_name(request)?)?;
        if let VerifyStream::Plain(socket) = &stream
            && bytes.len() > EARLY_CONTENT_BYTES_MAX
        {
            let mut writer = socket.try_clone()?;
            return std::thread::scope(|scope| {
                scope.spawn(move || drop(writer.write_all(&bytes)));
                read_response(&mut stream, method)
            });
        }
        stream.send(&bytes);
        read_response(&mut stream, method)
    }
}

/// Whether the request does not depend on the connection and is small enough to be sent before the response
/// is read.
fn may_reuse_connection(request: &VerifyRequest) -> bool {
    let is_small = match &request.content {
        RequestContent::Absent => true,
        RequestContent::Sized(content) => content.len() <= EARLY_CONTENT_BYTES_MAX,
        RequestContent::Chunked(_) => false,
    };
    let is_of_connection =
        |name: &str| matches!(name, "Connection" | "Expect" | "Content-Length" | "Host" | "TE");
    is_small && request.version == "1.1" && !request.fields.iter().any(|(name, _)| is_of_connection(name))
}

fn read_response(stream: &mut impl Read, method: Method) -> Result<ServerResponse, Failure> {
    let deadline = Instant::now() + RESPONSE_TIMEOUT;
    let mut machine = ClientMachine::default();
    let mut answer = ServerResponse::default();
    let mut buffer: Vec<u8> = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        let fed = machine.feed(&buffer, method, &LIMITS);
        let fed = match fed {
            Ok(fed) => fed,
            Err(reject) => return incomplete_response(answer, reject.reason),
        };
        match fed.step {
            Step::Head => {
                answer.status = machine.head.status.code();
                answer.fields = machine
                    .head
                    .fields
                    .iter()
                    .map(|field| {
                        let text = |span: http::Span| String::from_utf8_lossy(span.of(&buffer)).into_owned();
                        (text(field.name).to_ascii_lowercase(), text(field.value))
                    })
                    .collect();
            }
            Step::Data(span) if answer.content.len() < CONTENT_BYTES_MAX => {
                answer.content.extend_from_slice(span.of(&buffer));
            }
            Step::Data(_) => return incomplete_response(answer, "the content is too long to compare"),
            Step::End if machine.head.status.is_informational() && answer.status != 101 => {
                machine.next();
                answer = ServerResponse::default();
            }
            Step::End => return Ok(answer),
            Step::NeedMore => {
                if Instant::now() > deadline {
                    return incomplete_response(answer, "the answer did not end in time");
                }
                match stream.read(&mut piece) {
                    Ok(0) => {
                        return match machine.eof() {
                            Ok(()) => Ok(answer),
                            Err(_) if answer.status == 0 && buffer.is_empty() => {
                                incomplete_response(answer, "closed without an answer")
                            }
                            Err(reject) => incomplete_response(answer, reject.reason),
                        };
                    }
                    Ok(count) => buffer.extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // The peer closed the connection without a TLS close_notify.
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                        let whole = machine.eof().is_ok();
                        return if whole {
                            Ok(answer)
                        } else {
                            incomplete_response(answer, "closed in the middle")
                        };
                    }
                    Err(error) => return incomplete_response(answer, &error.kind().to_string()),
                }
            }
        }
        buffer.drain(..fed.consumed);
    }
}

fn incomplete_response(mut response: ServerResponse, trouble: &str) -> Result<ServerResponse, Failure> {
    response.failure = Some(trouble.to_owned());
    Ok(response)
}
