//! A blocking HTTP/3 client, which shows each part of a response and can misbehave.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Fields;
use http3::{MessageEvent, MessageStream, OwnStream, UnidirectionalStream};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, StreamEvent, StreamId, TransportConfig, VarInt, WriteError,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{PATIENCE, any_certificate};

/// Maximum size of a response head in bytes, and of its fields.
const HEAD_BYTES_MAX: usize = 1024 * 1024;
const FIELDS_MAX: usize = 10_000;

/// A response, as far as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Statuses and fields of interim responses.
    pub interim: Vec<(u16, String)>,
    pub status: u16,
    /// Field lines in HTTP/1 syntax.
    pub fields: String,
    /// The same lines as they were received; their bytes need not be UTF-8.
    pub field_bytes: Vec<u8>,
    pub content: Vec<u8>,
    pub trailers: String,
    pub is_whole: bool,
    /// Code with which the server has reset the stream.
    pub reset: Option<u64>,
    /// Whether the server reads no more of the request.
    pub is_stopped: bool,
}

/// A request without its content.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    pub method: &'r [u8],
    pub authority: Option<&'r [u8]>,
    pub path: &'r [u8],
    /// The protocol of an extended CONNECT.
    pub protocol: Option<&'r [u8]>,
    pub fields: &'r [(&'r [u8], &'r [u8])],
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

struct Stream {
    message: MessageStream,
    response: Response,
    /// Data after a section that waits for the dynamic table.
    held: Bytes,
    has_fin: bool,
    /// Content of the request that QUIC has not accepted.
    unsent: Vec<u8>,
    ends: bool,
    has_ended: bool,
}

/// One connection.
pub struct H3Client {
    pub socket: UdpSocket,
    server: SocketAddr,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    pub quic: Connection,
    http: http3::Connection,
    streams: HashMap<StreamId, Stream>,
    unidirectional: HashMap<StreamId, UnidirectionalStream>,
    own: [Option<StreamId>; 3],
    /// Reason why the connection was lost.
    pub lost: Option<ConnectionError>,
    /// Whether data of responses is read; a client that does not read lets them wait.
    pub reads: bool,
    /// Bytes of responses that may still be read.
    pub read_bytes_left: usize,
    /// Responses that are not read.
    pub unread: Vec<StreamId>,
    pub is_connected: bool,
    pub has_goaway: bool,
    /// Streams that GOAWAY frames named.
    pub goaways: Vec<u64>,
    /// Whether a test has sent something on this side's own streams.
    is_strange: bool,
}

/// Settings of QUIC and TLS for a client that trusts everybody.
pub fn client_config(protocols: &[&[u8]], transport: TransportConfig) -> ClientConfig {
    client_config_as(None, protocols, transport)
}

/// Like [`client_config`], with a certificate of the client: paths of files with it and with its key.
pub fn client_config_as(
    own: Option<[&Path; 2]>,
    protocols: &[&[u8]],
    transport: TransportConfig,
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(any_certificate());
    let mut tls = match own {
        Some([certificate, key]) => {
            let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
            tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
        None => tls.with_no_client_auth(),
    };
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport));
    config
}

impl H3Client {
    /// Connects, and waits for the end of the handshake.
    pub fn connect(server: SocketAddr, name: &str) -> H3Client {
        let mut client = H3Client::begin(server, name, client_config(&[b"h3"], TransportConfig::default()));
        client.drive("the handshake", |client| client.is_connected || client.lost.is_some());
        assert_eq!(client.lost, None);
        client
    }

    /// Begins to connect.
    pub fn begin(server: SocketAddr, name: &str, config: ClientConfig) -> H3Client {
        let head = http::Limits {
            head_bytes_max: HEAD_BYTES_MAX,
            fields_max: FIELDS_MAX,
            ..http::Limits::default()
        };
        let any: SocketAddr = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" }.parse().unwrap();
        let socket = UdpSocket::bind(any).unwrap();
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (handle, quic) = endpoint.connect(Instant::now(), config, server, name).unwrap();
        H3Client {
            socket,
            server,
            endpoint,
            handle,
            quic,
            http: http3::Connection::client(http3::Options { head, ..http3::Options::default() }),
            streams: HashMap::new(),
            unidirectional: HashMap::new(),
            own: [None; 3],
            lost: None,
            reads: true,
            read_bytes_left: usize::MAX,
            unread: Vec::new(),
            is_connected: false,
            has_goaway: false,
            goaways: Vec::new(),
            is_strange: false,
        }
    }

    /// Sends a request; `fields` are lines. The content ends it unless `more` follows.
    pub fn send(&mut self, method: &str, path: &str, fields: &[(&str, &str)], content: &[u8]) -> StreamId {
        let id = self.begin_request(method, path, fields);
        self.push(id, content, true);
        id
    }

    /// Opens a request whose content follows by [`H3Client::push`].
    pub fn open(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> StreamId {
        let id = self.begin_request(method, path, fields);
        self.turn();
        id
    }

    fn begin_request(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> StreamId {
        let pseudo =
            |wanted| fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes());
        let lines: Vec<(&[u8], &[u8])> = fields
            .iter()
            .filter(|(name, _)| !name.starts_with(':'))
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        let head = RequestHead {
            method: method.as_bytes(),
            authority: Some(pseudo(":authority").unwrap_or(b"localhost")),
            path: path.as_bytes(),
            protocol: pseudo(":protocol"),
            fields: &lines,
        };
        let mut opened = self.try_open(&head);
        if opened.is_none() {
            self.drive("room for a stream", |client| {
                assert_eq!(client.lost, None);
                opened = client.try_open(&head);
                opened.is_some()
            });
        }
        opened.unwrap()
    }

    /// Opens a request, unless the server permits no more streams.
    pub fn try_open(&mut self, head: &RequestHead<'_>) -> Option<StreamId> {
        let id = self.quic.streams().open(Dir::Bi)?;
        let number = u64::from(id);
        let mut unsent = Vec::new();
        self.http.write_section(number, &mut unsent, |section| {
            section.pseudo(b":method", head.method);
            section.pseudo(b":scheme", b"https");
            if let Some(authority) = head.authority {
                section.pseudo(b":authority", authority);
            }
            section.pseudo(b":path", head.path);
            if let Some(protocol) = head.protocol {
                section.pseudo(b":protocol", protocol);
            }
            for (name, value) in head.fields {
                section.field(name, value);
            }
        });
        let is_head = head.method == b"HEAD";
        let message = if is_head { MessageStream::of_head(number) } else { MessageStream::new(number) };
        let stream = Stream {
            message,
            response: Response::default(),
            held: Bytes::new(),
            has_fin: false,
            unsent,
            ends: false,
            has_ended: false,
        };
        self.streams.insert(id, stream);
        Some(id)
    }

    /// Sends content of a request.
    pub fn push(&mut self, id: StreamId, content: &[u8], ends: bool) {
        let stream = self.streams.get_mut(&id).unwrap();
        if !content.is_empty() {
            http3::Connection::write_data_header(content.len(), &mut stream.unsent);
            stream.unsent.extend_from_slice(content);
        }
        stream.ends = ends;
        self.turn();
    }

    /// Sends trailers, which end the request.
    pub fn push_trailers(&mut self, id: StreamId, fields: &[(&[u8], &[u8])]) {
        let stream = self.streams.get_mut(&id).unwrap();
        self.http.write_section(u64::from(id), &mut stream.unsent, |section| {
            fields.iter().for_each(|(name, value)| section.field(name, value));
        });
        stream.ends = true;
        self.turn();
    }

    /// Number of bytes of the request that QUIC has not accepted.
    pub fn unsent_bytes(&self, id: StreamId) -> usize {
        self.streams[&id].unsent.len()
    }

    /// Takes what was received of a response since the last call.
    pub fn take_received(&mut self, id: StreamId) -> Response {
        let response = &mut self.streams.get_mut(&id).unwrap().response;
        let taken = response.clone();
        response.interim.clear();
        response.content.clear();
        taken
    }

    pub fn forget(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    /// Sends bytes that need not be frames on one of this side's streams.
    pub fn push_own(&mut self, stream: OwnStream, bytes: &[u8]) {
        self.is_strange = true;
        self.http.output(stream).extend_from_slice(bytes);
        self.turn();
    }

    /// Sends bytes that need not be frames on a request stream.
    pub fn push_raw(&mut self, id: StreamId, bytes: &[u8]) {
        self.streams.get_mut(&id).unwrap().unsent.extend_from_slice(bytes);
        self.turn();
    }

    /// Sends a request and waits for the whole response.
    pub fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], content: &[u8]) -> Response {
        let id = self.send(method, path, fields, content);
        self.finish(id)
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.ask("GET", path, &[], b"")
    }

    /// Waits for the whole response, or for its reset or the end of the connection.
    pub fn finish(&mut self, id: StreamId) -> Response {
        self.drive("the response", |client| {
            let response = &client.streams[&id].response;
            response.is_whole || response.reset.is_some() || client.lost.is_some()
        });
        self.response(id)
    }

    /// Returns what was received of a response.
    pub fn response(&self, id: StreamId) -> Response {
        self.streams[&id].response.clone()
    }

    /// Whether the whole request has been handed to QUIC.
    pub fn is_sent(&self, id: StreamId) -> bool {
        self.streams[&id].has_ended
    }

    /// Resets the request and stops reading the response.
    pub fn cancel(&mut self, id: StreamId) {
        let code = VarInt::from_u32(0x10c);
        let _ = self.quic.send_stream(id).reset(code);
        let _ = self.quic.recv_stream(id).stop(code);
        self.turn();
    }

    /// Continues from another local port, as behind a NAT that has forgotten the client.
    pub fn rebind(&mut self) {
        self.socket = UdpSocket::bind((self.socket.local_addr().unwrap().ip(), 0)).unwrap();
    }

    /// Continues from another address of this machine.
    pub fn move_to(&mut self, address: &str) {
        self.socket = UdpSocket::bind((address, 0)).unwrap();
    }

    /// Sends a packet with a PING frame from another socket. Returns its size.
    pub fn ping_from(&mut self, socket: &UdpSocket) -> usize {
        self.quic.ping();
        let mut out = Vec::new();
        let transmit = self.quic.poll_transmit(Instant::now(), 1, &mut out).unwrap();
        socket.send_to(&out[..transmit.size], self.server).unwrap()
    }

    /// Exchanges packets until the condition is met.
    pub fn drive(&mut self, what: &str, is_done: impl FnMut(&mut H3Client) -> bool) {
        self.drive_within(PATIENCE, what, is_done);
    }

    /// Exchanges packets until the condition is met, at most for this time.
    pub fn drive_within(
        &mut self,
        patience: Duration,
        what: &str,
        mut is_done: impl FnMut(&mut H3Client) -> bool,
    ) {
        let until = Instant::now() + patience;
        while !is_done(self) {
            assert!(Instant::now() < until, "no {what} in time");
            self.turn();
            self.wait();
        }
    }

    /// Exchanges packets for a time.
    pub fn drive_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
            self.wait();
        }
    }

    fn wait(&mut self) {
        let timeout = self.timeout().min(Duration::from_millis(20));
        self.socket.set_read_timeout(Some(timeout.max(Duration::from_millis(1)))).unwrap();
        let mut buffer = [0; 2048];
        if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            self.receive(&buffer[..len], from);
            self.receive_rest();
        }
        self.handle_timeout();
    }

    /// Time until something is to be done although nothing was received, at most a minute.
    pub fn timeout(&mut self) -> Duration {
        let longest = Duration::from_secs(60);
        self.quic
            .poll_timeout()
            .map_or(longest, |at| at.saturating_duration_since(Instant::now()).min(longest))
    }

    /// Receives what has arrived, without waiting, and sends what there is.
    pub fn exchange(&mut self) {
        self.receive_rest();
        self.handle_timeout();
        self.turn();
    }

    fn receive_rest(&mut self) {
        let mut buffer = [0; 2048];
        self.socket.set_nonblocking(true).unwrap();
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            self.receive(&buffer[..len], from);
        }
        self.socket.set_nonblocking(false).unwrap();
    }

    fn handle_timeout(&mut self) {
        if self.quic.poll_timeout().is_some_and(|at| at <= Instant::now()) {
            self.quic.handle_timeout(Instant::now());
        }
    }

    fn receive(&mut self, packet: &[u8], from: SocketAddr) {
        let mut out = Vec::new();
        let event = self.endpoint.handle(Instant::now(), from, None, None, BytesMut::from(packet), &mut out);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.quic.handle_event(event);
        }
    }

    /// Processes what was received, and sends what there is.
    pub fn turn(&mut self) {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.quic.streams().accept(Dir::Uni) {
                        self.unidirectional.insert(id, UnidirectionalStream::default());
                    }
                }
                _ => {}
            }
        }
        self.read_unidirectional();
        if self.reads {
            self.read_responses();
        }
        if self.is_connected {
            self.write();
        }
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(event);
            }
        }
        let mut out = Vec::new();
        while let Some(transmit) = self.quic.poll_transmit(Instant::now(), 1, &mut out) {
            // Lost packets are sent again.
            let _ = self.socket.send_to(&out[..transmit.size], self.server);
            out.clear();
        }
    }

    fn write(&mut self) {
        for stream in OwnStream::ALL {
            let out = self.http.output(stream);
            if out.is_empty() {
                continue;
            }
            let place = &mut self.own[stream as usize];
            let Some(id) = place.or_else(|| self.quic.streams().open(Dir::Uni)) else { continue };
            *place = Some(id);
            if let Ok(written) = self.quic.send_stream(id).write(out) {
                out.drain(..written);
            }
        }
        for (id, stream) in &mut self.streams {
            while !stream.unsent.is_empty() {
                match self.quic.send_stream(*id).write(&stream.unsent) {
                    Ok(written) => _ = stream.unsent.drain(..written),
                    Err(WriteError::Blocked) => break,
                    Err(_) => {
                        stream.unsent.clear();
                        stream.response.is_stopped = true;
                    }
                }
            }
            if stream.ends && stream.unsent.is_empty() && !stream.has_ended {
                stream.has_ended = true;
                let _ = self.quic.send_stream(*id).finish();
            }
        }
    }

    fn read_unidirectional(&mut self) {
        let ids: Vec<StreamId> = self.unidirectional.keys().copied().collect();
        for id in ids {
            loop {
                let mut receiving = self.quic.recv_stream(id);
                let Ok(mut chunks) = receiving.read(true) else { break };
                let read = chunks.next(usize::MAX);
                let _ = chunks.finalize();
                let Ok(Some(chunk)) = read else { break };
                let mut bytes = &chunk.bytes[..];
                let stream = self.unidirectional.get_mut(&id).unwrap();
                while !bytes.is_empty() {
                    let fed = self.http.feed_unidirectional(stream, bytes, false);
                    let Ok((consumed, event)) = fed else {
                        // The answer to what a test has sent without this client's knowledge.
                        assert!(self.is_strange, "{fed:?}");
                        break;
                    };
                    if let Some(http3::ConnectionEvent::GoAway(first)) = event {
                        self.has_goaway = true;
                        self.goaways.push(first);
                    }
                    bytes = &bytes[consumed..];
                }
            }
        }
    }

    fn read_responses(&mut self) {
        for (id, stream) in self.streams.iter_mut().filter(|(id, _)| !self.unread.contains(id)) {
            if stream.message.is_blocked() {
                let event = self.http.retry(&mut stream.message, false).unwrap();
                if event == MessageEvent::Blocked {
                    continue;
                }
                take_event(&mut self.http, &mut stream.response, event, &[]);
            }
            while !stream.response.is_whole {
                if stream.held.is_empty() && !stream.has_fin {
                    let mut receiving = self.quic.recv_stream(*id);
                    let Ok(mut chunks) = receiving.read(true) else { break };
                    let bytes_max = self.read_bytes_left.min(64 * 1024);
                    if bytes_max == 0 {
                        break;
                    }
                    let read = chunks.next(bytes_max);
                    let _ = chunks.finalize();
                    match read {
                        Ok(Some(chunk)) => {
                            self.read_bytes_left -= chunk.bytes.len();
                            stream.held = chunk.bytes;
                        }
                        Ok(None) => stream.has_fin = true,
                        Err(quinn_proto::ReadError::Blocked) => break,
                        Err(quinn_proto::ReadError::Reset(code)) => {
                            stream.response.reset = Some(code.into_inner());
                            break;
                        }
                    }
                }
                if stream.held.is_empty() && stream.has_fin {
                    self.http.finish(&stream.message).unwrap();
                    stream.response.is_whole = true;
                    break;
                }
                let (consumed, event) = self.http.feed(&mut stream.message, &stream.held, false).unwrap();
                let fed = stream.held.split_to(consumed);
                if event == MessageEvent::Blocked {
                    break;
                }
                take_event(&mut self.http, &mut stream.response, event, &fed);
            }
        }
    }
}

fn take_event(http: &mut http3::Connection, response: &mut Response, event: MessageEvent, fed: &[u8]) {
    match event {
        MessageEvent::Head { .. } => {
            let lines = lines(http);
            let status = http.status;
            if status.is_informational() {
                response.interim.push((status.code(), String::from_utf8_lossy(&lines).into_owned()));
            } else {
                response.status = status.code();
                response.fields = String::from_utf8_lossy(&lines).into_owned();
                response.field_bytes = lines;
            }
        }
        MessageEvent::Data(span) => response.content.extend_from_slice(span.of(fed)),
        MessageEvent::Trailers => response.trailers = field_text(&http.trailers),
        MessageEvent::NeedMore => {}
        other => panic!("{other:?}"),
    }
}

fn lines(http: &http3::Connection) -> Vec<u8> {
    let bytes = http.head_bytes();
    let line = |field: &http::Field| [field.name.of(bytes), b": ", field.value.of(bytes), b"\n"].concat();
    http.head.fields.iter().flat_map(line).collect()
}

fn field_text(fields: &Fields) -> String {
    String::from_utf8_lossy(fields.as_bytes()).replace("\r\n", "\n")
}
