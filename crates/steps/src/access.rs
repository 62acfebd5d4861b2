//! Client addresses that may use a route (`allow` and `deny`).

use engine::clients::access::ClientAccess;
use http::Status;
use net::{Exchange, Fault};

use crate::flow::Flow;

/// Access rule of a route.
pub struct RouteAccess(pub ClientAccess);

impl RouteAccess {
    /// Refuses clients that the rule excludes with 403.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        if self.0.admits(exchange.request().client().address) {
            return Ok(Flow::Continue);
        }
        exchange.refuse(Status::FORBIDDEN, "access to this address is forbidden").await?;
        Ok(Flow::Answered)
    }
}
