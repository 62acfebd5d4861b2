//! Handle of a connection for sending requests.

use std::rc::Rc;

use super::drive;
use super::options::{H2Options, H2Request};
use super::shared::{ClientConn, ClientState};
use super::stream::H2Stream;
use crate::link::Link;

/// An HTTP/2 connection to a server. Dropping it closes the connection after its requests.
pub struct H2Link(Rc<ClientConn>);

impl H2Link {
    /// Starts HTTP/2 on a new connection. `on_change` is called when a request can begin that could not
    /// before, and when the connection accepts no further ones.
    #[must_use]
    pub fn start(link: Link, options: &H2Options, on_change: impl Fn() + 'static) -> H2Link {
        let conn = Rc::new(ClientConn::new(link.core(), options, Box::new(on_change)));
        conn.core.spawn(drive::drive(conn.clone(), link));
        H2Link(conn)
    }

    /// Begins a request; `None` if the connection accepts none at the moment.
    #[must_use]
    pub fn request(&self, request: &H2Request<'_>) -> Option<H2Stream> {
        H2Stream::open(&self.0, request)
    }

    /// Whether a request can begin now.
    #[must_use]
    pub fn can_begin(&self) -> bool {
        self.0.can_begin()
    }

    /// Whether the server supports extended CONNECT (RFC 8441); `None` before its SETTINGS have arrived.
    #[must_use]
    pub fn supports_connect(&self) -> Option<bool> {
        let connects = self.0.frames.borrow().machine.peer_settings().connect_protocol;
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

impl Drop for H2Link {
    fn drop(&mut self) {
        self.0.begin_draining();
    }
}
