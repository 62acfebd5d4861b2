//! HTTP/2 to another server: the client's end of a connection, shared by many requests.
//!
//! One task owns the socket ([`drive`](crate::h2_client::drive)): it reads, hands what came to the streams, and sends what they
//! have written, in turns. A stream is the side of one request: it waits through a [`crate::Source`], which the connection's task
//! makes ready, as the streams of clients do.
//!
//! What a server can make us hold: for each stream its window and a few heads, and for the connection its tables and one buffer
//! each way. All of it is counted in the core's memory. A slow reader of one stream cannot stop the others: the connection's window
//! holds the windows of all streams together.

pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod drive;

use std::rc::Rc;

use http::Method;

use crate::link::Link;
use shared::{ClientConn, ClientState};

pub use stream::{H2Stream, StreamFailure, StreamStep};

/// What a connection may cost and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Options {
    /// Limits of response heads and of trailers.
    pub head: http::Limits,
    /// Requests under way at a time; fewer if the server allows fewer. Default 100.
    pub streams_max: u32,
    /// Requests after which no further one begins; 0 for no limit (default).
    pub requests_max: u32,
    /// How long it may carry no request before it is closed, in milliseconds. Default 60,000.
    pub idle_ms_max: u64,
    /// After this time it takes no further request, in milliseconds. Default one hour.
    pub age_ms_max: u64,
}

impl Default for H2Options {
    fn default() -> H2Options {
        H2Options {
            head: http::Limits::default(),
            streams_max: 100,
            requests_max: 0,
            idle_ms_max: 60_000,
            age_ms_max: 3_600_000,
        }
    }
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub struct H2Request<'a> {
    /// The method.
    pub method: Method,
    /// Its name.
    pub method_name: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a [u8],
    /// `host[:port]`.
    pub authority: &'a [u8],
    /// The path and the query, or `*`.
    pub path: &'a [u8],
    /// Field lines as HTTP/1 writes them. Those of a connection are left out.
    pub lines: &'a [u8],
    /// Whether no body follows.
    pub ended: bool,
}

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
