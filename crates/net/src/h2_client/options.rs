//! What the parts of the client's end agree on: limits, requests, and how responses end.

use http::Method;

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
    /// The protocol of an extended CONNECT (RFC 8441), which only a connection takes whose server announces it: see [`crate::H2Link::connects`].
    /// `method` is then CONNECT.
    pub protocol: Option<&'a [u8]>,
}

/// What a response brings next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Nothing now.
    Pending,
    /// A head is in [`crate::H2Stream::head`]; interim ones come first.
    Head,
    /// Content is in [`crate::H2Stream::data`] until the next step.
    Data,
    /// The response is complete; its trailers are in [`crate::H2Stream::trailers`].
    End,
}

/// Why a response does not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The server has not processed the request (REFUSED_STREAM, or above the last stream of GOAWAY): it may be sent again,
    /// whatever its method (RFC 9113 section 8.7).
    NotProcessed,
    /// The server has reset the stream.
    Reset,
    /// The connection was closed, or broke.
    Closed,
    /// The server has broken a rule of HTTP/2; a few words that hold no bytes of its.
    Invalid(&'static str),
}
