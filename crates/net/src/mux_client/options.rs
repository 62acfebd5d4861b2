//! Options and response events of shared client connections.

use times::Millis;

/// Limits and lifetime of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MuxLinkOptions {
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

impl MuxLinkOptions {
    /// Returns the options with a sensible number of streams.
    pub(super) fn bounded(self) -> MuxLinkOptions {
        MuxLinkOptions { streams_max: self.streams_max.clamp(1, 1_000), ..self }
    }
}

impl Default for MuxLinkOptions {
    fn default() -> MuxLinkOptions {
        MuxLinkOptions {
            head: http::Limits::default(),
            streams_max: 100,
            requests_max: 0,
            idle_timeout: Millis(60_000),
            age_max: Millis(3_600_000),
        }
    }
}

/// Next part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Nothing is available.
    Pending,
    /// [`crate::MuxRequestStream::head`] returns a head; interim ones come first.
    Head,
    /// [`crate::MuxRequestStream::data`] returns content until the next step.
    Data,
    /// The response is complete; [`crate::MuxRequestStream::trailers`] returns its trailers.
    End,
}

/// Reason why a response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The server has not processed the request (its code says so, or it is above the last stream of GOAWAY), so that
    /// it may be sent again, whatever its method (RFC 9113 section 8.7, RFC 9114 section 4.1.1).
    NotProcessed,
    /// The server has reset the stream.
    Reset,
    /// The connection was closed or has failed.
    Closed,
    /// The server has violated the protocol. The description contains no bytes from the server.
    Invalid(&'static str),
}
