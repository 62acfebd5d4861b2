//! An HTTP/3 connection to a server, with its socket.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::{Fields, Head, Status};
use http3::Http3Code;
use times::{Millis, Moment};

use super::acknowledgements::Acknowledgements;
use super::client_link::{ClientLink, ReceiveWindows};
use super::connection::{H3Connection, var_int};
use super::event::Received;
use crate::core::Core;
use crate::fault::Fault;
use crate::mux::{ClientProtocol, ContentFrames, MuxRequest};
use crate::source::Source;
use crate::tls::{TlsAgreement, TlsClient};

/// Time for which the end of a connection waits for the server, so that it learns of it.
const CLOSE_TIMEOUT: Millis = Millis(1_000);

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Options {
    /// Limits of response heads and trailers.
    pub head: http::Limits,
    /// Unread bytes of a stream. Default 128 KiB.
    pub stream_window: u32,
    /// Unread bytes of the connection. Default 16 MiB: those of 100 streams, and more than the eighth that QUIC
    /// announces late, so that streams which nobody reads leave room for the others.
    pub connection_window: u32,
}

impl Default for Http3Options {
    fn default() -> Http3Options {
        let stream_window = 128 * 1024;
        Http3Options { head: http::Limits::default(), stream_window, connection_window: 128 * stream_window }
    }
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Http3Event {
    /// The head of a response, interim or final, is in [`Http3Client::with_head`]. If `ended`, nothing follows.
    Head {
        /// The number of the request.
        stream: u32,
        /// Whether the response ends with it.
        ended: bool,
    },
    /// Content of a response.
    Data {
        /// The number of the request.
        stream: u32,
        /// The content.
        data: Bytes,
        /// Whether the response ends with it.
        ended: bool,
    },
    /// The response is complete.
    End {
        /// The number of the request.
        stream: u32,
        /// The trailers.
        trailers: Fields,
    },
    /// The server has reset the stream.
    Reset {
        /// The number of the request.
        stream: u32,
        /// The code.
        code: Http3Code,
    },
    /// The server has violated the protocol on the stream.
    Failed {
        /// The number of the request.
        stream: u32,
        /// The reason.
        reason: &'static str,
    },
    /// The server processes no requests from this number on.
    GoAway {
        /// The number.
        first_stream: u64,
    },
    /// Another event, after which more may be possible than before.
    Other,
}

/// An HTTP/3 connection to a server. After [`Http3Client::receive`], take all events; what requests frame leaves with
/// [`Http3Client::send`]. Dropping it closes the connection and tells the server once.
pub struct Http3Client {
    core: Core,
    link: ClientLink,
    connection: Rc<RefCell<H3Connection>>,
    agreement: TlsAgreement,
}

impl Http3Client {
    /// Connects and performs the handshake.
    ///
    /// # Errors
    /// [`Fault::Timeout`]; [`Fault::Io`] if nobody listens at the address; [`Fault::Failed`] for an invalid certificate
    /// or answer.
    pub async fn connect(
        core: &Core,
        address: SocketAddr,
        tls: &TlsClient,
        options: &Http3Options,
        deadline: Moment,
    ) -> Result<Http3Client, Fault> {
        let acknowledgements = Arc::<Acknowledgements>::default();
        let windows = ReceiveWindows { stream: options.stream_window, connection: options.connection_window };
        let connecting = ClientLink::connect(core, address, tls, windows, &acknowledgements, deadline);
        // Boxed because it is large and needed once.
        let (link, quic, agreement) = Box::pin(connecting).await?;
        let http =
            http3::Connection::client(http3::Options { head: options.head, ..http3::Options::default() });
        let window = options.connection_window;
        let connection = H3Connection::new(Box::new(quic), http, acknowledgements, window, link.now());
        Ok(Http3Client { core: core.clone(), link, connection: Rc::new(RefCell::new(connection)), agreement })
    }

    /// Returns the core that owns the connection.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the negotiated parameters of TLS.
    #[must_use]
    pub fn agreement(&self) -> TlsAgreement {
        self.agreement
    }

    /// Returns the total size of received and sent packets, in bytes.
    #[must_use]
    pub fn packet_bytes(&self) -> (u64, u64) {
        self.link.packet_bytes()
    }

    pub(crate) fn connection(&self) -> Rc<RefCell<H3Connection>> {
        self.connection.clone()
    }

    /// Whether a request can begin now.
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.connection.borrow_mut().can_request()
    }

    /// Begins a request and returns its number; `None` if none can begin now.
    #[must_use]
    pub fn request(&mut self, request: &MuxRequest<'_>) -> Option<u32> {
        self.connection.borrow_mut().request(request)
    }

    /// Frames as much content of a request as flow control permits, and returns its size. `ends` means that the request
    /// ends with all of `bytes`.
    pub fn data(&mut self, stream: u32, bytes: &[u8], ends: bool) -> usize {
        let mut connection = self.connection.borrow_mut();
        let len = connection.capacity(stream).min(bytes.len());
        if len > 0 {
            connection.data(stream, &bytes[..len], ends && len == bytes.len());
            // Lets the next call see what QUIC has accepted.
            connection.flush_request(stream);
        }
        len
    }

    /// Lets the server send more after `bytes` bytes of content were used.
    pub fn grant(&mut self, stream: u32, bytes: usize) {
        self.connection.borrow_mut().grant(stream, bytes);
    }

    /// Forgets a request; cancels it if it is incomplete.
    pub fn release(&mut self, stream: u32) {
        ClientProtocol::release(&mut *self.connection.borrow_mut(), stream);
    }

    /// Calls `read` with the head of the last [`Http3Event::Head`] and the bytes that its spans refer to.
    pub fn with_head<T>(&self, read: impl FnOnce(Status, &Head, &[u8]) -> T) -> T {
        let connection = self.connection.borrow();
        read(connection.http.status, &connection.http.head, connection.http.head_bytes())
    }

    /// Receives packets. Returns false if the socket may hold more.
    ///
    /// # Errors
    /// The network reports that the server does not listen.
    pub fn receive(&mut self) -> Result<bool, Fault> {
        let mut connection = self.connection.borrow_mut();
        connection.now = self.link.now();
        let received = self.link.receive(&mut connection.quic);
        connection.note_acknowledgements();
        received
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn next_event(&mut self) -> Result<Option<Http3Event>, Fault> {
        let mut connection = self.connection.borrow_mut();
        let Some(received) = connection.next_event()? else { return Ok(None) };
        Ok(Some(match received {
            Received::Head { id, ended } => Http3Event::Head { stream: id, ended },
            Received::Data(id, data, ended) => Http3Event::Data { stream: id, data, ended },
            Received::End(id, trailers) => Http3Event::End { stream: id, trailers },
            Received::Reset(id, code) => Http3Event::Reset { stream: id, code },
            Received::Failed(id, error) => Http3Event::Failed { stream: id, reason: error.reason },
            Received::GoAway(first_stream) => Http3Event::GoAway { first_stream },
            Received::Refused(..)
            | Received::Stopped(_)
            | Received::Writable(_)
            | Received::Priority(..)
            | Received::Settings
            | Received::StreamsAvailable => Http3Event::Other,
        }))
    }

    pub(crate) fn next_received(&mut self) -> Result<Option<Received>, Fault> {
        self.connection.borrow_mut().next_event()
    }

    /// Sends what was framed, as far as the connection permits.
    pub fn send(&mut self) -> usize {
        let mut connection = self.connection.borrow_mut();
        connection.update_send_window();
        connection.flush();
        let sent = self.link.send(&mut connection.quic);
        connection.note_sent();
        sent
    }

    /// Whether packets wait for room in the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.link.is_blocked()
    }

    /// Waits for packets, for a timer of the connection, for `other` to be readable, at most until `deadline` of the
    /// core's clock.
    pub(crate) async fn wait_with(&mut self, other: Option<&Source>, deadline: Moment) {
        let timer = self.connection.borrow_mut().quic.poll_timeout();
        self.link.wait(timer, other, deadline).await;
    }

    /// Answers the server's packets and keeps the connection open until `other` is ready. Events wait meanwhile.
    ///
    /// # Errors
    /// The network reports that the server does not listen.
    pub async fn answer_while(&mut self, other: impl Future<Output = ()>) -> Result<(), Fault> {
        let core = self.core.clone();
        let mut other = std::pin::pin!(other);
        loop {
            let is_empty = self.receive()?;
            self.send();
            if !is_empty {
                core.yield_now().await;
            }
            let mut packets = std::pin::pin!(self.wait_with(None, Moment::NEVER));
            let is_ready = std::future::poll_fn(|cx| match other.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => packets.as_mut().poll(cx).map(|()| false),
            });
            if is_ready.await {
                return Ok(());
            }
        }
    }

    /// Closes the connection, unless it has ended, and tells the server once.
    fn say_goodbye(&mut self) {
        let mut connection = self.connection.borrow_mut();
        if !connection.quic.is_closed() {
            connection.quic.close(self.link.now(), var_int(Http3Code::NO_ERROR), Bytes::new());
        }
        self.link.send(&mut connection.quic);
    }

    /// Closes the connection like [`Http3Client::say_goodbye`], and waits a little until the server knows.
    pub(crate) async fn close(mut self) {
        self.say_goodbye();
        let core = self.core.clone();
        let deadline = core.now() + CLOSE_TIMEOUT;
        let connection = self.connection.clone();
        let quic = || std::cell::RefMut::map(connection.borrow_mut(), |connection| &mut connection.quic);
        loop {
            // Events are of no more use.
            while quic().poll().is_some() {}
            self.link.send(&mut quic());
            if quic().is_drained() || core.now() >= deadline {
                return;
            }
            self.wait_with(None, deadline).await;
            if self.link.receive(&mut quic()).is_err() {
                return;
            }
        }
    }
}

impl Drop for Http3Client {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}
