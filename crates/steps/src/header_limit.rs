//! Limit of the header fields of a route's requests (`header_limit`).

use http::Status;
use net::{Exchange, Fault};

use crate::flow::Flow;

/// Limit of a route.
pub struct RouteHeaderLimit {
    /// Maximum number of header fields of a request.
    pub fields_max: usize,
}

impl RouteHeaderLimit {
    /// Refuses requests with more fields with 431 (RFC 6585 section 5).
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        if exchange.request().fields().count() <= self.fields_max {
            return Ok(Flow::Continue);
        }
        let reason = "too many header fields for this address: send fewer";
        exchange.refuse(Status::FIELDS_TOO_LARGE, reason).await?;
        Ok(Flow::Answered)
    }
}
