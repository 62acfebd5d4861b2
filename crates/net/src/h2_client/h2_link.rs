//! A connection, for whoever sends requests on it.

use std::rc::Rc;

use super::drive;
use super::options::{H2Options, H2Request};
use super::shared::{ClientConn, ClientState};
use super::stream::H2Stream;
use crate::link::Link;

/// A connection to a server that speaks HTTP/2. Dropping it lets its requests end, and then closes the connection.
pub struct H2Link(Rc<ClientConn>);

impl H2Link {
    /// Begins to speak HTTP/2 on a connection just made. `on_change` is called when a request may begin that could not before, and when
    /// the connection takes no more.
    #[must_use]
    pub fn start(link: Link, options: &H2Options, on_change: impl Fn() + 'static) -> H2Link {
        let conn = Rc::new(ClientConn::new(link.core(), options, Box::new(on_change)));
        conn.core.spawn(drive::drive(conn.clone(), link));
        H2Link(conn)
    }

    /// Begins a request; `None` where the connection takes no further one now.
    #[must_use]
    pub fn request(&self, request: &H2Request<'_>) -> Option<H2Stream> {
        H2Stream::open(&self.0, request)
    }

    /// Whether a request can begin now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.has_room()
    }

    /// Whether the server takes extended CONNECT (RFC 8441); `None` while its settings have not come.
    #[must_use]
    pub fn connects(&self) -> Option<bool> {
        let connects = self.0.frames.borrow().machine.peer_settings().connect_protocol;
        (!self.is_opening()).then_some(connects)
    }

    /// Whether it waits for the server's settings, before which only one request begins.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.0.state.get() == ClientState::Opening
    }

    /// Whether it takes no further request, now or later.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.0.state.get(), ClientState::Leaving | ClientState::Over)
    }

    /// Requests under way.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.0.live()
    }
}

impl Drop for H2Link {
    fn drop(&mut self) {
        self.0.leave();
    }
}
