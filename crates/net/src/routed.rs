//! Values that a router hands over to an exchange: those of the request's site and of its route.

use std::rc::Rc;

use http::RequestIds;
use http::path::EmptySegments;
use http::template::CustomVariables;
use times::Millis;

use crate::compress::CompressResponses;
use crate::page::ErrorPages;

/// Properties of a request that its site determines, whatever its route.
pub struct RequestContext {
    /// Error pages, in place of [`crate::Service::error_pages`].
    pub error_pages: Rc<dyn ErrorPages>,
    /// Treatment of empty path segments.
    pub empty_segments: EmptySegments,
    /// Request IDs for upstream servers and applications.
    pub ids: RequestIds,
    /// Variables that the configuration defines.
    pub custom_variables: Option<Rc<dyn CustomVariables>>,
}

/// Limits of a route's requests, and the compression of its responses.
pub struct RouteLimits {
    /// Compression of responses. `None`: responses are not compressed.
    pub compression: Option<Rc<CompressResponses>>,
    /// Maximum size of the request body in bytes, in place of [`crate::Limits::body_bytes_max`].
    pub body_bytes_max: u64,
    /// Maximum time between two pieces of the request body, in milliseconds.
    pub body_timeout: Millis,
    /// Maximum time in which the client accepts no bytes of the response, in milliseconds.
    pub write_timeout: Millis,
}
