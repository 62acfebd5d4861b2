//! Handle of a connection for sending requests.

use std::cell::RefCell;
use std::rc::Rc;

use super::options::MuxLinkOptions;
use super::shared::{ClientConn, ClientState};
use super::stream::MuxRequestStream;
use super::{http2, http3};
use crate::core::Core;
use crate::h3::Http3Client;
use crate::link::Link;
use crate::mux::{ClientProtocol, MuxRequest};

/// A connection to a server that many requests share: HTTP/2 or HTTP/3. Dropping it closes the connection after its requests.
pub struct MuxLink(Rc<ClientConn>);

impl MuxLink {
    /// Starts HTTP/2 on a new connection. `on_change` is called when a request can begin that could not
    /// before, and when the connection accepts no further ones.
    #[must_use]
    pub fn start(link: Link, options: &MuxLinkOptions, on_change: impl Fn() + 'static) -> MuxLink {
        let options = options.bounded();
        let frames = http2::frames(&options);
        let this = MuxLink::new(link.core(), options, frames.clone(), on_change);
        this.0.core.spawn(http2::drive(this.0.clone(), frames, link));
        this
    }

    /// Starts HTTP/3 on a new connection, like [`MuxLink::start`].
    #[must_use]
    pub fn start_http3(
        client: Http3Client,
        options: &MuxLinkOptions,
        on_change: impl Fn() + 'static,
    ) -> MuxLink {
        let this = MuxLink::new(client.core(), options.bounded(), client.connection(), on_change);
        this.0.core.spawn(http3::drive(this.0.clone(), client));
        this
    }

    fn new(
        core: &Core,
        options: MuxLinkOptions,
        protocol: Rc<RefCell<dyn ClientProtocol>>,
        on_change: impl Fn() + 'static,
    ) -> MuxLink {
        MuxLink(Rc::new(ClientConn::new(core, options, protocol, Box::new(on_change))))
    }

    /// Begins a request; `None` if the connection accepts none at the moment.
    #[must_use]
    pub fn request(&self, request: &MuxRequest<'_>) -> Option<MuxRequestStream> {
        MuxRequestStream::open(&self.0, request)
    }

    /// Whether a request can begin now.
    #[must_use]
    pub fn can_begin(&self) -> bool {
        self.0.can_begin()
    }

    /// Whether the server's window for all streams together has room for content of a further request.
    #[must_use]
    pub fn has_send_room(&self) -> bool {
        self.0.protocol.borrow().has_send_room()
    }

    /// Whether so many requests were cancelled that the server may soon close the connection because of them: drop it, so
    /// that requests in progress end on it and further ones begin elsewhere.
    #[must_use]
    pub fn is_worn(&self) -> bool {
        self.0.is_worn()
    }

    /// Accepts no further requests; those in progress continue.
    pub fn retire(&self) {
        self.0.begin_draining();
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.state.get() == ClientState::Ended
    }

    /// Whether the server supports extended CONNECT (RFC 8441, RFC 9220); `None` before its SETTINGS have arrived.
    #[must_use]
    pub fn supports_connect(&self) -> Option<bool> {
        let connects = self.0.protocol.borrow().supports_connect();
        (!self.is_opening()).then_some(connects)
    }

    /// Whether the server's SETTINGS have not arrived; until then only one request can begin.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.0.state.get() == ClientState::Opening
    }

    /// Whether the connection accepts no further requests, now or later.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        matches!(self.0.state.get(), ClientState::Draining | ClientState::Ended)
    }

    /// Returns the number of requests in progress.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.0.live_streams()
    }
}

impl Drop for MuxLink {
    fn drop(&mut self) {
        self.0.begin_draining();
    }
}
