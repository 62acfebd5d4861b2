//! An upstream server of HTTP/3 that refuses, leaves and closes as a test wants it.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::Status;
use http3::{Http3Code, MessageEvent, MessageStream, OwnStream, UnidirectionalStream};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, ServerConfig,
    StreamEvent, StreamId, VarInt,
};
use rcgen::{CertificateParams, KeyPair};

/// Treatment of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// 200 with field lines and content.
    Answer(String, String),
    /// No answer, and the end of the connection after this time.
    Close(Duration),
    /// A reset with H3_REQUEST_REJECTED; GOAWAY before it if so.
    Reject { goes_away: bool },
}

type Respond = dyn Fn(&str) -> Act + Send + Sync;

/// Runs until it is dropped.
pub(crate) struct H3Origin {
    pub(crate) address: SocketAddr,
    /// Paths of the requests received.
    asked: Arc<Mutex<Vec<String>>>,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl H3Origin {
    pub(crate) fn start(respond: impl Fn(&str) -> Act + Send + Sync + 'static) -> H3Origin {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let ends = Arc::<AtomicBool>::default();
        let respond: Arc<Respond> = Arc::new(respond);
        let (noted, stop) = (asked.clone(), ends.clone());
        let thread = std::thread::spawn(move || serve(&socket, &*respond, &noted, &stop));
        H3Origin { address, asked, ends, thread: Some(thread) }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for H3Origin {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn server_config() -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["a.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

fn serve(socket: &UdpSocket, respond: &Respond, asked: &Mutex<Vec<String>>, stop: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let config = Some(Arc::new(server_config()));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), config, true, None);
    let mut peers: HashMap<ConnectionHandle, H3Peer> = HashMap::new();
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((len, from)) = socket.recv_from(&mut packet) {
            let mut out = Vec::new();
            let bytes = BytesMut::from(&packet[..len]);
            match endpoint.handle(Instant::now(), from, None, None, bytes, &mut out) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    peers.get_mut(&handle).unwrap().quic.handle_event(event);
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let accepted = endpoint.accept(incoming, Instant::now(), &mut out, None);
                    let (handle, quic) = accepted.ok().unwrap();
                    peers.insert(handle, H3Peer::new(quic));
                }
                Some(DatagramEvent::Response(transmit)) => {
                    socket.send_to(&out[..transmit.size], transmit.destination).unwrap();
                }
                None => {}
            }
        }
        for (handle, peer) in &mut peers {
            peer.turn(respond, asked);
            while let Some(event) = peer.quic.poll_endpoint_events() {
                if let Some(event) = endpoint.handle_event(*handle, event) {
                    peer.quic.handle_event(event);
                }
            }
            let mut out = Vec::new();
            while let Some(transmit) = peer.quic.poll_transmit(Instant::now(), 1, &mut out) {
                // Lost packets are sent again.
                let _ = socket.send_to(&out[..transmit.size], transmit.destination);
                out.clear();
            }
        }
        peers.retain(|_, peer| !peer.quic.is_drained());
    }
}

/// A connection.
struct H3Peer {
    quic: Connection,
    http: http3::Connection,
    requests: HashMap<StreamId, MessageStream>,
    unidirectional: HashMap<StreamId, UnidirectionalStream>,
    own: [Option<StreamId>; 3],
    closes_at: Option<Instant>,
}

impl H3Peer {
    fn new(quic: Connection) -> H3Peer {
        H3Peer {
            quic,
            http: http3::Connection::server(http3::Options::default()),
            requests: HashMap::new(),
            unidirectional: HashMap::new(),
            own: [None; 3],
            closes_at: None,
        }
    }

    /// Processes what was received.
    fn turn(&mut self, respond: &Respond, asked: &Mutex<Vec<String>>) {
        let now = Instant::now();
        if self.quic.poll_timeout().is_some_and(|at| at <= now) {
            self.quic.handle_timeout(now);
        }
        let mut is_connected = !self.quic.is_handshaking();
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => is_connected = true,
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.quic.streams().accept(dir) {
                        match dir {
                            Dir::Bi => _ = self.requests.insert(id, MessageStream::new(u64::from(id))),
                            Dir::Uni => _ = self.unidirectional.insert(id, UnidirectionalStream::default()),
                        }
                    }
                }
                _ => {}
            }
        }
        if self.quic.is_closed() || !is_connected {
            return;
        }
        self.read_unidirectional();
        let ids: Vec<StreamId> = self.requests.keys().copied().collect();
        for id in ids {
            if let Some(path) = self.read_request(id) {
                asked.lock().unwrap().push(path.clone());
                self.act(id, &respond(&path));
            }
        }
        for stream in OwnStream::ALL {
            self.write_own(stream);
        }
        if self.closes_at.is_some_and(|at| at <= now) {
            self.quic.close(now, VarInt::from_u32(0x100), bytes::Bytes::new());
        }
    }

    fn write_own(&mut self, stream: OwnStream) {
        let out = self.http.output(stream);
        if out.is_empty() {
            return;
        }
        let place = &mut self.own[stream as usize];
        let Some(id) = place.or_else(|| self.quic.streams().open(Dir::Uni)) else { return };
        *place = Some(id);
        if let Ok(written) = self.quic.send_stream(id).write(out) {
            out.drain(..written);
        }
    }

    fn read_unidirectional(&mut self) {
        for (id, stream) in &mut self.unidirectional {
            while let Some(bytes) = read(&mut self.quic, *id) {
                let mut bytes = &bytes[..];
                while !bytes.is_empty() {
                    let (consumed, _) = self.http.feed_unidirectional(stream, bytes, false).unwrap();
                    bytes = &bytes[consumed..];
                }
            }
        }
    }

    /// Reads a request. Returns its path when its head has arrived.
    fn read_request(&mut self, id: StreamId) -> Option<String> {
        let mut stream = self.requests.remove(&id)?;
        let mut path = None;
        if stream.is_blocked() {
            let event = self.http.retry(&mut stream, false).unwrap();
            path = matches!(event, MessageEvent::Head { .. }).then(|| self.path());
        }
        while !stream.is_blocked() {
            let Some(bytes) = read(&mut self.quic, id) else { break };
            let mut bytes = &bytes[..];
            while !bytes.is_empty() && !stream.is_blocked() {
                let (consumed, event) = self.http.feed(&mut stream, bytes, false).unwrap();
                bytes = &bytes[consumed..];
                if matches!(event, MessageEvent::Head { .. }) {
                    path = Some(self.path());
                }
            }
            assert!(bytes.is_empty(), "content after a head that waits for the dynamic table");
        }
        self.requests.insert(id, stream);
        path
    }

    fn path(&self) -> String {
        let bytes = self.http.head_bytes();
        String::from_utf8_lossy(self.http.head.sent_target(bytes)).into_owned()
    }

    fn act(&mut self, id: StreamId, act: &Act) {
        match act {
            Act::Close(after) => {
                self.closes_at.get_or_insert(Instant::now() + *after);
            }
            Act::Reject { goes_away } => {
                if *goes_away {
                    self.http.go_away(false);
                    self.http.go_away(true);
                }
                let code = VarInt::from_u64(Http3Code::REQUEST_REJECTED.0).unwrap();
                self.quic.send_stream(id).reset(code).unwrap();
                let _ = self.quic.recv_stream(id).stop(code);
            }
            Act::Answer(lines, content) => {
                let mut out = Vec::new();
                self.http.write_section(u64::from(id), &mut out, |section| {
                    section.status(Status::OK);
                    section.lines(lines.as_bytes());
                    section.field(b"content-length", content.len().to_string().as_bytes());
                });
                http3::Connection::write_data_header(content.len(), &mut out);
                out.extend_from_slice(content.as_bytes());
                let written = self.quic.send_stream(id).write(&out).unwrap();
                assert_eq!(written, out.len(), "larger than a window");
                self.quic.send_stream(id).finish().unwrap();
            }
        }
    }
}

/// Reads what a stream has.
fn read(quic: &mut Connection, id: StreamId) -> Option<bytes::Bytes> {
    let mut receiving = quic.recv_stream(id);
    let mut chunks = receiving.read(true).ok()?;
    let chunk = chunks.next(usize::MAX);
    let _ = chunks.finalize();
    chunk.ok()?.map(|chunk| chunk.bytes)
}
