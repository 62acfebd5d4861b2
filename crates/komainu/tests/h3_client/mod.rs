//! A blocking HTTP/3 client, which shows each part of a response and can misbehave.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
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

use crate::rig::{PATIENCE, any_certificate};

/// A response, as far as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Statuses and fields of interim responses.
    pub interim: Vec<(u16, String)>,
    pub status: u16,
    /// Field lines in HTTP/1 syntax.
    pub fields: String,
    pub content: Vec<u8>,
    pub trailers: String,
    pub is_whole: bool,
    /// Code with which the server has reset the stream.
    pub reset: Option<u64>,
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
    pub is_connected: bool,
    pub has_goaway: bool,
}

/// Settings of QUIC and TLS for a client that trusts everybody.
pub fn client_config(protocols: &[&[u8]], transport: TransportConfig) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(any_certificate())
        .with_no_client_auth();
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
            http: http3::Connection::client(http3::Options::default()),
            streams: HashMap::new(),
            unidirectional: HashMap::new(),
            own: [None; 3],
            lost: None,
            reads: true,
            is_connected: false,
            has_goaway: false,
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
        let mut opened = self.quic.streams().open(Dir::Bi);
        if opened.is_none() {
            self.drive("room for a stream", |client| {
                opened = client.quic.streams().open(Dir::Bi);
                opened.is_some()
            });
        }
        let id = opened.unwrap();
        let number = u64::from(id);
        let mut unsent = Vec::new();
        let authority =
            fields.iter().find(|(name, _)| *name == ":authority").map_or("localhost", |(_, value)| value);
        self.http.write_section(number, &mut unsent, |section| {
            section.pseudo(b":method", method.as_bytes());
            section.pseudo(b":scheme", b"https");
            section.pseudo(b":authority", authority.as_bytes());
            section.pseudo(b":path", path.as_bytes());
            for (name, value) in fields.iter().filter(|(name, _)| *name == ":protocol") {
                section.pseudo(name.as_bytes(), value.as_bytes());
            }
            for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(':')) {
                section.field(name.as_bytes(), value.as_bytes());
            }
        });
        let message =
            if method == "HEAD" { MessageStream::of_head(number) } else { MessageStream::new(number) };
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
        id
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

    /// Exchanges packets until the condition is met.
    pub fn drive(&mut self, what: &str, mut is_done: impl FnMut(&mut H3Client) -> bool) {
        let until = Instant::now() + PATIENCE;
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
        let longest = Duration::from_millis(20);
        let timeout =
            self.quic.poll_timeout().map_or(longest, |at| at.saturating_duration_since(Instant::now()));
        self.socket.set_read_timeout(Some(timeout.clamp(Duration::from_millis(1), longest))).unwrap();
        let mut buffer = [0; 2048];
        if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            self.receive(&buffer[..len], from);
            self.socket.set_nonblocking(true).unwrap();
            while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                self.receive(&buffer[..len], from);
            }
            self.socket.set_nonblocking(false).unwrap();
        }
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
                    Err(_) => stream.unsent.clear(),
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
                    let (consumed, event) = self.http.feed_unidirectional(stream, bytes, false).unwrap();
                    self.has_goaway |= matches!(event, Some(http3::ConnectionEvent::GoAway(_)));
                    bytes = &bytes[consumed..];
                }
            }
        }
    }

    fn read_responses(&mut self) {
        for (id, stream) in &mut self.streams {
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
                    let read = chunks.next(64 * 1024);
                    let _ = chunks.finalize();
                    match read {
                        Ok(Some(chunk)) => stream.held = chunk.bytes,
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
                response.interim.push((status.code(), lines));
            } else {
                (response.status, response.fields) = (status.code(), lines);
            }
        }
        MessageEvent::Data(span) => response.content.extend_from_slice(span.of(fed)),
        MessageEvent::Trailers => response.trailers = field_text(&http.trailers),
        MessageEvent::NeedMore => {}
        other => panic!("{other:?}"),
    }
}

fn lines(http: &http3::Connection) -> String {
    let bytes = http.head_bytes();
    http.head
        .fields
        .iter()
        .map(|field| {
            let part = |span: http::Span| String::from_utf8_lossy(span.of(bytes)).into_owned();
            format!("{}: {}\n", part(field.name), part(field.value))
        })
        .collect()
}

fn field_text(fields: &Fields) -> String {
    String::from_utf8_lossy(fields.as_bytes()).replace("\r\n", "\n")
}
