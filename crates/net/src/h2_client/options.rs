//! Options, requests and response events of the HTTP/2 client.

use http::Method;
use times::Millis;

/// Limits and lifetime of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Options {
    /// Limits of response heads and trailers.
    pub head: http::Limits,
    /// Maximum number of concurrent requests; lower if the server's limit is. Default 100.
    pub streams_max: u32,
    /// Maximum number of requests of a connection; 0 for no limit (default).
    pub requests_max: u32,
    /// Time without requests after which the connection is closed, in milliseconds. Default 60,000.
    pub idle_timeout: Millis,
    /// Age at which the connection accepts no further requests, in milliseconds. Default one hour.
    pub age_max: Millis,
}

impl Default for H2Options {
    fn default() -> H2Options {
        H2Options {
            head: http::Limits::default(),
            streams_max: 100,
            requests_max: 0,
            idle_timeout: Millis(60_000),
            age_max: Millis(3_600_000),
        }
    }
}

/// A request head.
#[derive(Clone, Copy, Debug)]
pub struct H2Request<'a> {
    /// The method.
    pub method: Method,
    /// The name of the method.
    pub method_name: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a [u8],
    /// `host[:port]`.
    pub authority: &'a [u8],
    /// Path and query, or `*`.
    pub path: &'a [u8],
    /// Field lines in HTTP/1 syntax. Connection-specific fields are left out.
    pub lines: &'a [u8],
    /// Whether the request has no body.
    pub has_no_body: bool,
    /// Protocol of an extended CONNECT (RFC 8441); the server must support this: see
    /// [`crate::H2Link::supports_connect`]. `method` must be CONNECT.
    pub protocol: Option<&'a [u8]>,
}

/// Next part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Nothing is available.
    Pending,
    /// [`crate::H2Stream::head`] returns a head; interim ones come first.
    Head,
    /// [`crate::H2Stream::data`] returns content until the next step.
    Data,
    /// The response is complete; [`crate::H2Stream::trailers`] returns its trailers.
    End,
}

/// Reason why a response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The server has not processed the request (REFUSED_STREAM, or above the last stream of GOAWAY), so that
    /// it may be sent again, whatever its method (RFC 9113 section 8.7).
    NotProcessed,
    /// The server has reset the stream.
    Reset,
    /// The connection was closed or has failed.
    Closed,
    /// The server has violated HTTP/2. The description contains no bytes from the server.
    Invalid(&'static str),
}
