//! One request on a connection of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use http::machine::{ClientMachine, Step};
use import::scratch::{RequestContent, VerifyRequest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::message::{CONTENT_BYTES_MAX, LIMITS, ServerAnswer};

/// How long an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The bytes of a request. Both servers get the same.
pub(crate) fn request_bytes(request: &VerifyRequest) -> Vec<u8> {
    let mut out = format!("{} {} HTTP/{}\r\n", request.method, request.target, request.version).into_bytes();
    if let Some(host) = &request.host {
        out.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
    }
    let mut has_connection = false;
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

/// Sends a request and reads the answer to its end.
pub(crate) fn ask(
    address: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    request: &VerifyRequest,
) -> ServerAnswer {
    match asked(address, tls, request) {
        Ok(answer) => answer,
        Err(trouble) => ServerAnswer { trouble: Some(trouble), ..ServerAnswer::default() },
    }
}

fn asked(
    address: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    request: &VerifyRequest,
) -> Result<ServerAnswer, String> {
    let socket = TcpStream::connect_timeout(&address, ANSWER_TIME_MAX)
        .map_err(|error| format!("no connection: {error}"))?;
    for set in
        [socket.set_read_timeout(Some(ANSWER_TIME_MAX)), socket.set_write_timeout(Some(ANSWER_TIME_MAX))]
    {
        set.map_err(|error| error.to_string())?;
    }
    let bytes = request_bytes(request);
    let method = Method::of(request.method.as_bytes());
    match tls {
        None => {
            let mut writer = socket.try_clone().map_err(|error| error.to_string())?;
            converse(socket, move || drop(writer.write_all(&bytes)), method)
        }
        Some(config) => {
            let host = request.host.as_deref().unwrap_or("localhost");
            let host = host.split(':').next().unwrap_or(host).to_ascii_lowercase();
            let name = ServerName::try_from(host)
                .or_else(|_| ServerName::try_from("localhost".to_owned()))
                .map_err(|error| error.to_string())?;
            let session =
                ClientConnection::new(Arc::clone(config), name).map_err(|error| error.to_string())?;
            let mut stream = StreamOwned::new(session, socket);
            // The answer can come before a long request was read: what is left of it is not sent.
            let sent = stream.write_all(&bytes).and_then(|()| stream.flush());
            converse(stream, move || drop(sent), method)
        }
    }
}

/// Reads an answer while `send` sends the request.
fn converse(
    mut stream: impl Read,
    send: impl FnOnce() + Send,
    method: Method,
) -> Result<ServerAnswer, String> {
    std::thread::scope(|scope| {
        scope.spawn(send);
        read_answer(&mut stream, method)
    })
}

fn read_answer(stream: &mut impl Read, method: Method) -> Result<ServerAnswer, String> {
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let mut machine = ClientMachine::default();
    let mut answer = ServerAnswer::default();
    let mut buffer: Vec<u8> = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let fed = machine.feed(&buffer, method, &LIMITS);
        let fed = match fed {
            Ok(fed) => fed,
            Err(reject) => return ended(answer, reject.reason),
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
            Step::Data(_) => return ended(answer, "the content is too long to compare"),
            Step::End if machine.head.status.is_informational() && answer.status != 101 => {
                machine.next();
                answer = ServerAnswer::default();
            }
            Step::End => return Ok(answer),
            Step::NeedMore => {
                if Instant::now() > deadline {
                    return ended(answer, "the answer did not end in time");
                }
                match stream.read(&mut piece) {
                    Ok(0) => {
                        return match machine.eof() {
                            Ok(()) => Ok(answer),
                            Err(_) if answer.status == 0 && buffer.is_empty() => {
                                ended(answer, "closed without an answer")
                            }
                            Err(reject) => ended(answer, reject.reason),
                        };
                    }
                    Ok(count) => buffer.extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // TLS that ends without its own closing message.
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                        let whole = machine.eof().is_ok();
                        return if whole { Ok(answer) } else { ended(answer, "closed in the middle") };
                    }
                    Err(error) => return ended(answer, &error.kind().to_string()),
                }
            }
        }
        buffer.drain(..fed.consumed);
    }
}

fn ended(mut answer: ServerAnswer, trouble: &str) -> Result<ServerAnswer, String> {
    answer.trouble = Some(trouble.to_owned());
    Ok(answer)
}
